"""Percentiles: two methods, exact ranks, honest labels."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.percentile import Percentile, percentile

NAN, INF = float("nan"), float("inf")
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
percent = st.one_of(st.integers(1, 99), st.floats(1, 100, exclude_max=True), st.just(99.9))


def nearest_rank(sample, q, failed=0):
    """The smallest value with at least q % of the sample at or below it, by counting."""
    ranked = sorted(sample) + [INF] * failed
    share = Fraction(str(float(q))) / 100
    for value in ranked:
        if Fraction(sum(v <= value for v in ranked), len(ranked)) >= share:
            return value
    raise AssertionError


@pytest.mark.parametrize(
    ("sample", "q", "method", "expected"),
    [
        ([10, 20, 30], 99, "nearest_rank", 30.0),  # Case P01: not the median 20
        ([10, 20, 30], 99, "linear", 29.8),
        (range(1, 11), 90, "nearest_rank", 9.0),  # a float cumulative sum gives 10
        (range(1, 21), 50, "nearest_rank", 10.0),  # and 11 here
        (range(1, 101), 7, "nearest_rank", 7.0),  # 0.07 * 100 > 7 in floats
        (range(1, 1001), 99.9, "nearest_rank", 999.0),
        ([3, 1, 2], 50, "linear", 2.0),
        ([5], 1, "linear", 5.0),
        ([5], 99, "nearest_rank", 5.0),
    ],
)
def test_values(sample, q, method, expected):
    assert percentile(list(sample), q, method).value == pytest.approx(expected, rel=1e-15)


def test_failures_rank_above_every_value():
    # Case P03 (ai-dynamo/aiperf#688): nine successes of 100 ms and one failure.
    nine = [100.0] * 9
    assert percentile(nine, 95, "nearest_rank").value == 100.0
    assert percentile(nine, 90, "nearest_rank", failed=1).value == 100.0
    assert percentile(nine, 95, "nearest_rank", failed=1).value == INF
    assert percentile(nine, 95, "nearest_rank", failed=1).n == 10
    with pytest.raises(ValueError, match=r"failed must be 0 with method 'linear'.*: got 1"):
        percentile(nine, 95, failed=1)


def test_a_small_sample_says_so():
    p99 = percentile(range(20), 99)
    assert isinstance(p99, Percentile)
    assert not p99.supported
    assert p99.beyond == 0.2
    assert str(p99) == "p99 = 18.81 (linear, n = 20: too few, 0.2 of them lie beyond)"
    enough = percentile(range(100), 99)
    assert enough.supported
    assert enough.beyond == 1.0
    assert str(enough) == "p99 = 98.01 (linear, n = 100)"
    assert not percentile(range(99), 99).supported
    assert percentile(range(99), 99, "nearest_rank", failed=1).supported
    assert str(percentile([1, 2], 50, "nearest_rank")) == "p50 = 1 (nearest_rank, n = 2)"


def test_plain_numbers_come_out():
    for method in ("linear", "nearest_rank"):
        p = percentile(np.arange(5, dtype=np.int8), np.float32(50), method)
        assert [type(x) for x in (p.q, p.value, p.n, p.beyond)] == [float, float, int, float]


def test_the_sample_is_left_as_it_was():
    mine = np.array([3.0, 1.0, 2.0])
    percentile(mine, 50, "nearest_rank")
    assert mine.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 50), ValueError, r"values must be a non-empty list: got shape \(0,\)"),
        ((1.0, 50), ValueError, r"values must be a non-empty list: got shape \(\)"),
        (([[1.0, 2.0]], 50), ValueError, r"values must be a non-empty list: got shape \(1, 2\)"),
        (([1.0, NAN], 50), ValueError, "values must be finite .*: got nan at index 1"),
        (([INF], 50), ValueError, "values must be finite .*: got inf"),
        (([None], 50), TypeError, "values must be a real number"),
        (([1.0], 0.99), ValueError, r"q must be a percentage in \[1, 100\): 99 .*: got 0.99"),
        (([1.0], 100), ValueError, r"q must be a percentage in \[1, 100\).*: got 100"),
        (([1.0], 0), ValueError, r"q must be a percentage in \[1, 100\).*: got 0"),
        (([1.0], -5), ValueError, r"q must be a percentage in \[1, 100\).*: got -5"),
        (([1.0], NAN), ValueError, "q must be finite"),
        (([1.0], "99"), TypeError, "q must be a real number"),
        (([1.0], [50]), TypeError, "q must be one number"),
        (([1.0], 50, "median"), ValueError, "method must be one of 'linear', 'nearest_rank'"),
        (([1.0], 50, "nearest_rank", -1), ValueError, "failed must be >= 0: got -1"),
        (([1.0], 50, "nearest_rank", 0.5), ValueError, "failed must be a whole number: got 0.5"),
        (([1.0], 50, "nearest_rank", [1]), TypeError, "failed must be one number"),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        percentile(*arguments)


def test_the_edges_of_q():
    assert percentile([1.0, 2.0], 1, "nearest_rank").value == 1.0
    assert percentile([1.0, 2.0], 99.9999, "nearest_rank").value == 2.0


@given(values, percent, st.integers(0, 5))
def test_nearest_rank_is_its_definition(sample, q, failed):
    p = percentile(sample, q, "nearest_rank", failed=failed)
    assert p.value == nearest_rank(sample, q, failed)
    assert p.n == len(sample) + failed


@given(values, percent)
def test_linear_is_numpys(sample, q):
    span = max(sample) - min(sample)
    assert percentile(sample, q).value == pytest.approx(
        np.percentile(sample, q, method="linear"),
        rel=1e-12,
        abs=1e-12 * span,  # two ways to write q/100 in floats
    )


@given(values, percent, percent)
def test_percentiles_rise_with_q(sample, a, b):
    low, high = sorted((a, b))
    one, two = (percentile(sample, q, "nearest_rank").value for q in (low, high))
    assert min(sample) <= one <= two <= max(sample)


@given(st.integers(1, 300), percent)
def test_supported_means_one_value_beyond(n, q):
    p = percentile(np.arange(n), q)
    exact = n * (1 - Fraction(str(float(q))) / 100)
    assert p.beyond == float(exact)
    assert p.supported == (float(exact) >= 1)


def test_a_million_values():
    sample = np.random.default_rng(1).permutation(10**6)
    assert percentile(sample, 99, "nearest_rank").value == 989_999
