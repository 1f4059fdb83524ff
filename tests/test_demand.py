"""Service demand: values, moments, the fit of its costs and its intervals, refusals."""

import statistics
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lib import engine_runs
from lib._validate import FloatArray
from lib.demand import (
    BLOCKS,
    STUDENT,
    demand_stats,
    fit_step_costs,
    request_service_demand,
)

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


# The fit ------------------------------------------------------------------------------------------

COSTS = np.array([6.9e-3, 0.2e-3, 0.13e-3])


def workload(steps: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Prompt tokens, mostly none, and sequences that come and go slowly."""
    rng = np.random.default_rng(seed)
    prompt = np.where(rng.random(steps) < 0.1, rng.integers(1, 513, steps), 0)
    walk = np.abs(np.cumsum(rng.integers(-1, 2, steps))) % 16
    return prompt.astype(float), walk.astype(float)


def design(prompt: FloatArray, seqs: FloatArray) -> FloatArray:
    return np.stack([np.ones_like(prompt), prompt, seqs], axis=-1)


def noise(steps: int, rng: np.random.Generator, memory: float = 0.0) -> FloatArray:
    """Autoregressive, with standard deviation 1."""
    fresh = rng.standard_normal(steps)
    out = np.empty(steps)
    out[0] = fresh[0]
    for i in range(1, steps):
        out[i] = memory * out[i - 1] + np.sqrt(1 - memory**2) * fresh[i]
    return out


def test_fit_finds_exact_costs() -> None:
    x = design(*workload(400, seed=1))
    costs = fit_step_costs(x @ COSTS, x[:, 1], x[:, 2])
    assert costs.step_seconds == pytest.approx(COSTS[0], rel=1e-10)
    assert costs.prefill_seconds_per_token == pytest.approx(COSTS[1], rel=1e-10)
    assert costs.sequence_seconds == pytest.approx(COSTS[2], rel=1e-9)
    assert costs.decode_seconds_per_token == pytest.approx(COSTS[0] + COSTS[2], rel=1e-10)
    assert np.abs(costs.residuals).max() < 1e-14
    assert costs.margin([1, 0, 0], [0, 1, 0], [0, 0, 1]) == pytest.approx(np.zeros(3), abs=1e-13)


@pytest.mark.parametrize("steps", [2 * BLOCKS, 2 * BLOCKS + 7, 1003])
def test_fit_is_least_squares_and_the_jackknife_leaves_out_each_stretch(steps: int) -> None:
    x = design(*workload(steps, seed=2))
    if steps < 100:  # a short log needs a prompt in more than one stretch
        x[::3, 1] = np.arange(1, x[::3].shape[0] + 1) * 7
    y = x @ COSTS + 1e-3 + 1e-4 * noise(steps, np.random.default_rng(3))
    costs = fit_step_costs(y, x[:, 1], x[:, 2])
    best = np.linalg.lstsq(x, y)[0]
    found = [costs.step_seconds, costs.prefill_seconds_per_token, costs.sequence_seconds]
    np.testing.assert_allclose(found, best, rtol=1e-8)
    np.testing.assert_allclose(costs.residuals, y - x @ best, atol=1e-12)

    edges = [i * steps // BLOCKS for i in range(BLOCKS + 1)]
    again = []
    for first, end in pairwise(edges):
        rest = np.r_[0:first, end:steps]
        again.append(np.linalg.lstsq(x[rest], y[rest])[0])
    np.testing.assert_allclose(costs.without, again, rtol=1e-7)
    decode = np.array(again) @ [1, 0, 1]
    spread = np.sqrt((BLOCKS - 1) / BLOCKS * np.sum((decode - decode.mean()) ** 2))
    assert costs.margin(1, 0, 1) == pytest.approx(STUDENT * spread, rel=1e-6)


def test_seconds_is_the_account_of_a_run() -> None:
    x = design(*workload(500, seed=4))
    y = x @ COSTS + 1e-3 * np.abs(noise(500, np.random.default_rng(5)))
    costs = fit_step_costs(y, x[:, 1], x[:, 2])
    assert costs.seconds(500, x[:, 1].sum(), x[:, 2].sum()) == pytest.approx(y.sum(), rel=1e-9)
    assert costs.seconds(1, 0, 1) == pytest.approx(costs.decode_seconds_per_token, rel=1e-12)
    assert costs.seconds([1, 0], [0, 7], 0) == pytest.approx(
        [costs.step_seconds, 7 * costs.prefill_seconds_per_token], rel=1e-12
    )
    assert costs.seconds(0, 0, 0) == 0


@given(arrays(float, 3, elements=st.integers(0, 1000)), st.integers(1, 50))
def test_margin_scales_and_obeys_the_triangle(work: FloatArray, times: int) -> None:
    x = design(*workload(300, seed=6))
    costs = fit_step_costs(
        x @ COSTS + 1e-3 * np.abs(noise(300, np.random.default_rng(7))), x[:, 1], x[:, 2]
    )
    assert costs.margin(*(times * work)) == pytest.approx(times * costs.margin(*work), rel=1e-9)
    alone = sum(costs.margin(*part) for part in np.diag(work))
    assert costs.margin(*work) <= alone * (1 + 1e-9)


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_intervals_cover_when_residuals_remember(memory: float) -> None:
    """At least 95 % of 200 intervals less 4 standard errors of that share (1.5 points each);
    textbook intervals fail as soon as neighbouring residuals are alike."""
    trials, steps = 200, 2000
    prompt, seqs = workload(steps, seed=8)
    x = design(prompt, seqs)
    inverse = np.linalg.inv(x.T @ x)
    decode = np.array([1, 0, 1])
    truth, rng = COSTS @ decode, np.random.default_rng(9)
    covered = covered_by_textbook = 0
    for _ in range(trials):
        # the noise grows with the step, as in a real log
        y = x @ COSTS * (1 + 0.05 * np.clip(noise(steps, rng, memory), -9, 9))
        costs = fit_step_costs(y, prompt, seqs)
        error = abs(costs.decode_seconds_per_token - truth)
        covered += error <= costs.margin(1, 0, 1)
        naive = np.sqrt(decode @ inverse @ decode * costs.residuals.var())
        covered_by_textbook += error <= 1.96 * naive
    assert covered / trials >= 0.89
    if memory:
        assert covered_by_textbook / trials < 0.8


def test_scaling_durations_scales_costs_and_margins() -> None:
    x = design(*workload(300, seed=10))
    y = x @ COSTS + 1e-3 * np.abs(noise(300, np.random.default_rng(11)))
    one, ten = (fit_step_costs(k * y, x[:, 1], x[:, 2]) for k in (1, 10))
    assert ten.seconds(3, 2, 1) == pytest.approx(10 * one.seconds(3, 2, 1), rel=1e-12)
    assert ten.margin(3, 2, 1) == pytest.approx(10 * one.margin(3, 2, 1), rel=1e-9)


@pytest.mark.parametrize("name", ["cpu/rate4", "cpu/rate6", "cpu/budget2048_rate4"])
def test_costs_of_one_run_predict_the_busy_time_of_another(name: str) -> None:
    """Within the 95 % interval, and as much again for the other run's own drift."""
    seen, other = (engine_runs.load(run) for run in ("cpu/rate2", name))
    assert seen.steps is not None
    assert other.steps is not None
    costs = fit_step_costs(
        seen.steps.end - seen.steps.start, seen.steps.prefill_tokens, seen.steps.decode_seqs
    )
    log, busy = other.requests, (other.steps.end - other.steps.start).sum()
    work = other.steps.start.size, log.input_tokens.sum(), (log.output_tokens - 1).sum()
    assert abs(costs.seconds(*work) - busy) <= np.sqrt(2) * costs.margin(*work)


ONES, NONE = np.ones(60), np.zeros(60)
SOME = np.arange(60.0) % 7
OTHER = np.arange(60.0) % 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ONES[:39], SOME[:39], OTHER[:39]), ValueError, r"duration must be .* 40 or more.*\(39,"),
        ((1.0, 1, 1), ValueError, r"duration must be a list of 40 or more: got shape \(\)"),
        ((ONES, SOME[:59], OTHER), ValueError, r"prefill_tokens must have one value a step.*\(59,"),
        ((ONES, SOME, 3), ValueError, r"decode_seqs must have one value a step: got shape \(\)"),
        ((NONE, SOME, OTHER), ValueError, r"duration must be > 0: got 0 at index 0"),
        ((-ONES, SOME, OTHER), ValueError, r"duration must be > 0: got -1"),
        ((ONES * np.nan, SOME, OTHER), ValueError, r"duration must be finite"),
        ((ONES, SOME + 0.5, OTHER), ValueError, r"prefill_tokens must be a whole number: got 0.5"),
        ((ONES, SOME, OTHER - 1), ValueError, r"decode_seqs must be >= 0: got -1"),
        ((ONES, NONE, OTHER), ValueError, r"prefill_tokens must be > 0 in some step: got 0"),
        ((ONES, SOME, NONE), ValueError, r"decode_seqs must be > 0 in some step: got 0"),
        ((ONES, SOME, ONES), ValueError, r"must vary .* c_step, c_prefill and c_seq undetermined"),
        ((ONES, SOME, 2 * SOME), ValueError, r"must vary .*: got 60 steps"),
        ((ONES, SOME, 9 - SOME), ValueError, r"must vary"),
        ((["a"] * 60, SOME, OTHER), TypeError, r"duration must be a real number"),
    ],
)
def test_fit_refuses(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_step_costs(*arguments)


def test_fit_refuses_costs_that_rest_on_one_stretch() -> None:
    """All prompts in one stretch: left out, nothing tells the cost of a prompt token."""
    prompt = np.where(np.arange(60) == 30, 100.0, 0.0)
    with pytest.raises(ValueError, match=r"each of 20 stretches left out in turn"):
        fit_step_costs(ONES, prompt, OTHER)


@pytest.mark.parametrize("method", ["seconds", "margin"])
def test_work_is_checked(method: str) -> None:
    costs = fit_step_costs(1 + 0.1 * SOME + 0.2 * OTHER, SOME, OTHER)
    ask = getattr(costs, method)
    with pytest.raises(ValueError, match=r"steps must be >= 0: got -1"):
        ask(-1, 0, 0)
    with pytest.raises(ValueError, match=r"prefill_tokens must be a whole number"):
        ask(1, 0.5, 0)
    with pytest.raises(ValueError, match=r"decode_tokens must be finite"):
        ask(1, 0, np.nan)
    with pytest.raises(ValueError, match=r"lengths must match"):
        ask([1, 2], [1, 2, 3], 0)
