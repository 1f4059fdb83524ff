"""Error budgets, their bound for sums, and the token bucket: values, guarantees, refusals."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.slo import attainment_bound, burn_rate, error_budget, token_bucket

share = st.floats(0, 1)


# Budgets add --------------------------------------------------------------------------------------


def test_bound_by_hand() -> None:
    assert attainment_bound([0.99, 0.99]) == pytest.approx(0.98, rel=1e-15)
    assert attainment_bound([0.9, 0.95, 0.99]) == pytest.approx(0.84, rel=1e-15)
    assert attainment_bound([0.75]) == 0.75
    assert isinstance(attainment_bound([1, 1]), float)


def test_bound_is_never_negative() -> None:
    assert attainment_bound([0.4, 0.4]) == 0.0
    assert attainment_bound([0, 0, 0]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), share, share)
def test_bound_holds_for_any_sample(pairs: list[tuple[int, int]], a: float, b: float) -> None:
    """Whatever the parts and the limits: counted, with no assumption about how they depend."""
    first, second = np.transpose(pairs)
    low, high = 9 * a, 9 * b
    kept = attainment_bound([np.mean(first <= low), np.mean(second <= high)])
    assert np.mean(first + second <= low + high) >= kept - 1e-12


def test_bound_is_reached_where_misses_never_coincide() -> None:
    first = np.array([9] + 9 * [0])
    second = first[::-1]
    kept = attainment_bound([np.mean(first <= 1), np.mean(second <= 1)])
    assert np.mean(first + second <= 2) == pytest.approx(kept, rel=1e-15)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([], ValueError, r"targets must be a non-empty list: got shape \(0,\)"),
        (0.99, ValueError, r"targets must be a non-empty list: got shape \(\)"),
        ([[0.9, 0.9]], ValueError, r"targets must be a non-empty list: got shape \(1, 2\)"),
        ([0.9, 99], ValueError, r"targets must be a share in \[0, 1\].*: got 99 at index 1"),
        ([-0.1], ValueError, r"targets must be a share in \[0, 1\].*: got -0.1"),
        ([0.9, np.nan], ValueError, r"targets must be finite"),
        ([0.9, np.inf], ValueError, r"targets must be finite"),
        (["0.9"], TypeError, r"targets must be a real number"),
        ([True], TypeError, r"targets must be a real number"),
        (None, TypeError, r"targets must be a real number"),
    ],
)
def test_bound_refuses(targets: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attainment_bound(targets)


# The error budget ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0.5", "0.9", "0.95", "0.99", "0.995", "0.999", "0.9999"])
def test_budget_is_exact_where_it_is_whole(text: str) -> None:
    target = Fraction(text)
    for whole in range(200):
        total = whole / (1 - target)
        assert error_budget(float(target), int(total)) == whole


def test_budget_broadcasts() -> None:
    np.testing.assert_allclose(error_budget([0.9, 0.99], 1000), [100, 10], rtol=1e-15)
    np.testing.assert_allclose(error_budget([[0.9], [0.5]], [10, 20]), [[1, 2], [5, 10]])
    assert error_budget(0.99, 0) == 0.0
    assert error_budget(0.99, 120) == pytest.approx(1.2, rel=1e-14)  # not rounded


def test_burn_rate_by_hand() -> None:
    assert burn_rate(12, 120, 0.9) == 1.0
    assert burn_rate(33, 120, 0.9) == pytest.approx(2.75, rel=1e-15)
    assert burn_rate(0, 120, 0.9) == 0.0
    assert burn_rate(120, 120, 0.99) == pytest.approx(100, rel=1e-13)
    assert isinstance(burn_rate(1, 2, 0.5), float)


def test_burn_rate_broadcasts() -> None:
    np.testing.assert_allclose(burn_rate([2, 12, 33], 120, 0.9), [1 / 6, 1, 2.75], rtol=1e-15)
    np.testing.assert_allclose(burn_rate(1, [10, 20], [0.9, 0.95]), [1, 1], rtol=1e-13)


@given(st.integers(1, 10**6), st.floats(0.01, 0.999), st.data())
def test_burn_rate_is_the_share_of_misses_over_the_allowed(
    total: int, target: float, data: st.DataObject
) -> None:
    missed = data.draw(st.integers(0, total))
    assert burn_rate(missed, total, target) == pytest.approx(missed / total / (1 - target), 1e-9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((99, 10), ValueError, r"target must be between 0 and 1: 0.99 for 99 %: got 99"),
        ((1, 10), ValueError, r"target must be between 0 and 1: .*: got 1"),
        ((0.0, 10), ValueError, r"target must be between 0 and 1: .*: got 0"),
        (([0.9, 1.0], 10), ValueError, r"target must be .*: got 1 at index 1"),
        ((np.nan, 10), ValueError, r"target must be finite"),
        ((0.9, -1), ValueError, r"total must be >= 0: got -1"),
        ((0.9, 1.5), ValueError, r"total must be a whole number: got 1.5"),
        ((0.9, np.inf), ValueError, r"total must be finite"),
        (([0.9, 0.99], [1, 2, 3]), ValueError, r"lengths must match: .*total \(3,\)"),
        (("0.9", 10), TypeError, r"target must be a real number"),
        ((0.9, None), TypeError, r"total must be a real number"),
    ],
)
def test_budget_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        error_budget(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 10, 0.9), ValueError, r"missed must be >= 0: got -1"),
        ((0.5, 10, 0.9), ValueError, r"missed must be a whole number: got 0.5"),
        ((11, 10, 0.9), ValueError, r"missed must be <= total: got 11"),
        (([1, 3], [1, 2], 0.9), ValueError, r"missed must be <= total: got 3 at index 1"),
        ((0, 0, 0.9), ValueError, r"total must be >= 1: got 0"),
        ((1, 10, 90), ValueError, r"target must be between 0 and 1: .*: got 90"),
        ((np.nan, 10, 0.9), ValueError, r"missed must be finite"),
        (([1, 2], [3, 4, 5], 0.9), ValueError, r"lengths must match: got missed \(2,\)"),
        (([1, 2], 4, [0.9, 0.9, 0.9]), ValueError, r"lengths must match: .*target \(3,\)"),
        (("1", 10, 0.9), TypeError, r"missed must be a real number"),
    ],
)
def test_burn_rate_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        burn_rate(*arguments)


# The token bucket ---------------------------------------------------------------------------------


def test_bucket_by_hand() -> None:
    admitted = token_bucket([0, 0, 0, 0, 1, 1, 4, 9, 9, 9, 9], rate=1, burst=3)
    assert admitted.tolist() == [True] * 3 + [False, True, False, True] + [True] * 3 + [False]
    assert admitted.dtype == np.bool_


def test_a_refused_request_takes_nothing() -> None:
    assert token_bucket([0, 0, 0], 1, 3, [2, 2, 1]).tolist() == [True, False, True]


def test_what_costs_more_than_the_burst_is_never_admitted() -> None:
    assert token_bucket([0, 1e6], 10, 3, 3.001).tolist() == [False, False]  # nor after long rest
    assert token_bucket([0], 1, 3, 3).tolist() == [True]


def test_free_requests_pass() -> None:
    assert token_bucket([0, 0, 0], 1, 1, [1, 0, 1]).tolist() == [True, True, False]


def test_rounding_of_stamps_refuses_nobody() -> None:
    """0.3 s fill three tokens at 10/s, though 0.3 - 0.2 < 0.1 in floats."""
    arrival = np.arange(1000) * 0.1
    assert token_bucket(arrival, 10, 1).all()
    assert not token_bucket(arrival, 9.99, 1).all()


def test_the_slack_does_not_add_up_to_a_free_request() -> None:
    """Each lacks less than the slack, 1e-9 of the burst; the debt stays until it is paid."""
    cost = np.append(1e6, np.ones(10_000))
    admitted = token_bucket(np.arange(10_001), 1 - 5e-4, 1e6, cost)
    assert np.sum(cost[admitted]) <= (1 + 1e-9) * 1e6 + (1 - 5e-4) * 10_000
    assert np.sum(~admitted) == 5


def test_bucket_starts_full_on_any_clock() -> None:
    late = token_bucket([1.7e9, 1.7e9, 1.7e9], rate=1, burst=2)
    assert late.tolist() == [True, True, False]


gaps = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(gaps, st.integers(1, 4), st.integers(1, 12), st.data())
def test_guarantee_in_every_window_and_nobody_refused_without_need(
    steps: list[int], rate: int, burst: int, data: st.DataObject
) -> None:
    """All windows that begin and end at arrivals, counted in whole numbers."""
    arrival, n = np.cumsum(steps), len(steps)
    cost = np.array(data.draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
    admitted = token_bucket(arrival, rate, burst, cost)
    taken = np.where(admitted, cost, 0)
    for end in range(len(steps)):
        over = [
            taken[begin : end + 1].sum() - rate * (arrival[end] - arrival[begin]) - burst
            for begin in range(end + 1)
        ]
        assert max(over) <= 0
        if not admitted[end]:
            assert max(over) + cost[end] > 0


@given(gaps, st.integers(1, 4), st.integers(1, 12))
def test_a_larger_bucket_admits_more(steps: list[int], rate: int, burst: int) -> None:
    """With equal costs; with unequal ones a large request may push out two small ones."""
    arrival = np.cumsum(steps)
    small = token_bucket(arrival, rate, burst).sum()
    assert small <= token_bucket(arrival, rate, burst + 1).sum()
    assert small <= token_bucket(arrival, rate + 1, burst).sum()


def test_a_million_requests() -> None:
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1.0, 1_000_000))
    assert token_bucket(arrival, 0.5, 10).sum() == pytest.approx(0.5 * arrival[-1], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 1, 1), ValueError, r"arrival must be a non-empty list: got shape \(0,\)"),
        ((1.0, 1, 1), ValueError, r"arrival must be a non-empty list: got shape \(\)"),
        (([[0, 1]], 1, 1), ValueError, r"arrival must be a non-empty list: got shape \(1, 2\)"),
        (([1, 0], 1, 1), ValueError, r"arrival must be in order of time: got 0 at index 1"),
        (([0, np.nan], 1, 1), ValueError, r"arrival must be finite"),
        (([0, 1], 0, 1), ValueError, r"rate must be > 0: got 0"),
        (([0, 1], -2, 1), ValueError, r"rate must be > 0: got -2"),
        (([0, 1], np.inf, 1), ValueError, r"rate must be finite"),
        (([0, 1], 1, 0), ValueError, r"burst must be > 0: got 0"),
        (([0, 1], 1, np.nan), ValueError, r"burst must be finite"),
        (([0, 1], 1, 1, -1), ValueError, r"cost must be >= 0: got -1"),
        (([0, 1], 1, 1, [1, np.nan]), ValueError, r"cost must be finite"),
        (([0, 1], 1, 1, [1, 2, 3]), ValueError, r"lengths must match: .*\(2,\), cost \(3,\)"),
        (([0, 1], 1, 1, [1]), ValueError, r"lengths must match: .*\(2,\), cost \(1,\)"),
        (([0, 1], [1, 2], 1), TypeError, r"rate must be one number"),
        (([0, 1], 1, [1, 2]), TypeError, r"burst must be one number"),
        ((["0"], 1, 1), TypeError, r"arrival must be a real number"),
        (([0, 1], "1", 1), TypeError, r"rate must be a real number"),
        (([0, 1], 1, None), TypeError, r"burst must be a real number"),
        (([0, 1], 1, 1, True), TypeError, r"cost must be a real number"),
    ],
)
def test_bucket_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        token_bucket(*arguments)
