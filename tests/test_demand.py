"""Service demand: values, moments, refusals."""

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.demand import demand_stats, request_service_demand

tokens = st.integers(0, 10**6)
cost = st.floats(0, 10, allow_subnormal=False)


# The demand ---------------------------------------------------------------------------------------


def test_demand_by_hand() -> None:
    assert request_service_demand(300, 60, 0.0002, 0.007) == pytest.approx(0.06 + 0.42, rel=1e-15)
    assert request_service_demand(100, 20, 0.001, 0.01) == pytest.approx(0.3, rel=1e-15)
    assert isinstance(request_service_demand(300, 60, 0.0002, 0.007), float)


def test_demand_charges_every_output_token() -> None:
    """The seed's convention: N_out, not N_out - 1; none for a prefill alone."""
    assert request_service_demand(0, 1, 0.5, 2.0) == 2.0
    assert request_service_demand(3, 0, 0.5, 2.0) == 1.5


def test_demand_broadcasts() -> None:
    by_costs = request_service_demand([[10], [20]], [1, 2, 3], 0.1, 1.0)
    np.testing.assert_allclose(by_costs, [[2, 3, 4], [3, 4, 5]], rtol=1e-15)
    one_each = request_service_demand([10, 20], 4, [0.1, 0.2], [1.0, 2.0])
    np.testing.assert_allclose(one_each, [5, 12], rtol=1e-15)


@given(tokens, tokens, tokens, tokens, cost, cost)
def test_demand_adds_over_requests(i: int, j: int, k: int, m: int, p: float, d: float) -> None:
    parts = request_service_demand([i, j], [k, m], p, d)
    whole = request_service_demand(i + j, k + m, p, d)
    assert whole == pytest.approx(np.sum(parts), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 2, 0.1, 0.1), ValueError, r"input_tokens must be >= 0: got -1"),
        ((1, -2, 0.1, 0.1), ValueError, r"output_tokens must be >= 0: got -2"),
        ((1.5, 2, 0.1, 0.1), ValueError, r"input_tokens must be a whole number: got 1.5"),
        ((1, [2, 2.5], 0.1, 0.1), ValueError, r"output_tokens .* whole .*2.5 at index 1"),
        ((1, 2, -0.1, 0.1), ValueError, r"prefill_seconds_per_token must be >= 0: got -0.1"),
        ((1, 2, 0.1, -0.1), ValueError, r"decode_seconds_per_token must be >= 0: got -0.1"),
        ((1, 2, np.nan, 0.1), ValueError, r"prefill_seconds_per_token must be finite"),
        ((1, 2, 0.1, np.inf), ValueError, r"decode_seconds_per_token must be finite"),
        ((np.nan, 2, 0.1, 0.1), ValueError, r"input_tokens must be finite"),
        (([1, 2], [1, 2, 3], 0.1, 0.1), ValueError, r"lengths must match: .*output_tokens \(3,\)"),
        (("1", 2, 0.1, 0.1), TypeError, r"input_tokens must be a real number"),
        ((1, True, 0.1, 0.1), TypeError, r"output_tokens must be a real number"),
        ((1, 2, None, 0.1), TypeError, r"prefill_seconds_per_token must be a real number"),
    ],
)
def test_demand_refuses(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        request_service_demand(*arguments)


# Its moments --------------------------------------------------------------------------------------


def test_stats_by_hand() -> None:
    stats = demand_stats([0.48, 0.16])
    assert stats.mean == pytest.approx(0.32, rel=1e-15)
    assert stats.variance == pytest.approx(0.16**2, rel=1e-14)
    assert stats.cv == pytest.approx(0.5, rel=1e-14)
    assert stats.service_rate == pytest.approx(3.125, rel=1e-15)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=30))
def test_stats_against_the_standard_library(demand: list[float]) -> None:
    stats = demand_stats(demand)
    assert stats.mean == pytest.approx(statistics.fmean(demand), rel=1e-12)
    spread = statistics.pstdev(demand)
    assert stats.variance == pytest.approx(spread**2, rel=1e-9, abs=1e-18)
    assert stats.cv == pytest.approx(spread / stats.mean, rel=1e-9, abs=1e-9)


def test_the_rate_is_not_the_mean_of_the_rates() -> None:
    demand = np.array([0.48, 0.16])
    assert demand_stats(demand).service_rate < np.mean(1 / demand) - 1


@pytest.mark.parametrize(
    ("demand", "error", "message"),
    [
        ([0.5], ValueError, r"demand must be a list of two or more: got shape \(1,\)"),
        ([], ValueError, r"demand must be a list of two or more: got shape \(0,\)"),
        (0.5, ValueError, r"demand must be a list of two or more: got shape \(\)"),
        ([[0.5, 1.0]], ValueError, r"got shape \(1, 2\)"),
        ([0.5, 0.0], ValueError, r"demand must be > 0: got 0 at index 1"),
        ([0.5, -1.0], ValueError, r"demand must be > 0: got -1 at index 1"),
        ([np.nan, 0.5], ValueError, r"demand must be finite"),
        ([0.5, np.inf], ValueError, r"demand must be finite"),
        (["a", "b"], TypeError, r"demand must be a real number"),
    ],
)
def test_stats_refuse(demand: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        demand_stats(demand)
