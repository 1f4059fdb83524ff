"""lib.cost: money per good token by counting, the chain by hand, and plans that can be checked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.capacity import Load, Replica, serve
from lib.cost import Plan, cost_per_million_tokens, fleet_cost, plan, step_time_draws
from lib.goodput import attainment
from lib.record import RequestLog
from lib.step_time import Intervals, StepTime, fit
from lib.traces import arrival_rate, load

# Cost of tokens -----------------------------------------------------------------------------------


def test_cost_by_hand() -> None:
    assert cost_per_million_tokens(3.6, 1, 1000) == 1.0
    assert cost_per_million_tokens(3.6, 2, 1000) == 2.0
    assert cost_per_million_tokens(0, 1, 1000) == 0.0
    # 8 GPUs at 14.40 an hour; 56 requests/s of 200 tokens, all good.
    assert cost_per_million_tokens(1.80, 8, 56 * 200) == pytest.approx(14.40 / 40.32)


def test_money_is_counted_hour_by_hour() -> None:
    hours, good = 7, [3_000_000, 1_000_000, 0, 2_500_000, 500_000, 4_000_000, 1_000_000]
    paid = sum(2.5 * 3 for _ in range(hours))
    cost = cost_per_million_tokens(2.5, 3, sum(good) / (3600 * hours))
    assert cost == pytest.approx(paid / (sum(good) / 1e6))


def test_costs_broadcast() -> None:
    costs = cost_per_million_tokens([1, 2], [[1], [3]], 1e6 / 3600)
    assert np.allclose(costs, [[1, 2], [3, 6]])


@given(st.floats(0.01, 100), st.integers(1, 1000), st.floats(0.1, 1e6), st.floats(0.5, 2))
def test_elasticities_are_one(price, gpus, tokens, factor) -> None:
    cost = cost_per_million_tokens(price, gpus, tokens)
    assert cost_per_million_tokens(factor * price, gpus, tokens) == pytest.approx(factor * cost)
    assert cost_per_million_tokens(price, gpus, factor * tokens) == pytest.approx(cost / factor)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 1, 1), ValueError, r"price_per_gpu_hour must be >= 0: got -1"),
        ((np.nan, 1, 1), ValueError, r"price_per_gpu_hour must be finite"),
        ((1, 0, 1), ValueError, r"gpus must be >= 1: got 0"),
        ((1, 1.5, 1), ValueError, r"gpus must be a whole number: got 1.5"),
        ((1, 1, 0), ValueError, r"good_tokens_per_s must be > 0: got 0"),
        ((1, 1, np.inf), ValueError, r"good_tokens_per_s must be finite"),
        (("1", 1, 1), TypeError, r"price_per_gpu_hour must be a real number"),
        (([1, 2], [1, 2, 3], 1), ValueError, r"lengths must match: got price_per_gpu_hour \(2,\)"),
    ],
)
def test_bad_costs(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        cost_per_million_tokens(*arguments)


# The chain ----------------------------------------------------------------------------------------

# 100 tokens in, 200 out: mean context 199.5, so T = 10 + 0.4 B ms by the line below.
SAME = Load(np.full(4, 100.0), np.full(4, 200.0))
LINE = StepTime(((0.010, 0.0, 0.0, 0.0004 / 199.5, 0.0),))
ENGINE = Replica(
    step_time=LINE,
    num_kv_blocks=10_000,
    block_size=16,
    max_num_seqs=1000,
    max_num_batched_tokens=8192,
    max_model_len=4096,
)
BASE: dict[str, Any] = {
    "load": SAME,
    "replica": ENGINE,
    "step_time": LINE,
    "slowdown": 1.0,
    "num_kv_blocks": 10_000,
    "tpot_slo": 0.050,
    "load_share": 0.7,
    "arrival_rate": 56.0,
    "headroom": 0.0,
    "good_share": 1.0,
    "gpus_per_replica": 1,
    "price_per_gpu_hour": 1.80,
    "whole": True,
}


def unrounded(**changes: Any) -> float:
    return fleet_cost(**{**BASE, "whole": False, **changes})[1]


def test_the_chain_by_hand() -> None:
    """T = 10 + 0.4 B ms within 50 ms: B = 100, 10 requests/s, 7 at the SLO, 8 replicas."""
    replicas, cost = fleet_cost(**BASE)
    assert replicas == 8
    assert cost == pytest.approx(14.40 / 40.32)
    assert fleet_cost(**{**BASE, "headroom": 0.1})[0] == 9
    needed, same = fleet_cost(**{**BASE, "headroom": 0.1, "whole": False})
    assert needed == pytest.approx(8.8)
    assert same == pytest.approx(1.1 * cost)


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"price_per_gpu_hour": 3.60}, 2),
        ({"gpus_per_replica": 4}, 4),
        ({"arrival_rate": 560.0}, 1),
        ({"headroom": 0.25}, 1.25),
        ({"load_share": 0.35}, 2),
        ({"good_share": 0.8}, 1.25),
        ({"num_kv_blocks": 5_000}, 1),
        ({"slowdown": 1.1}, 1.1 * 40 / 39),  # s (tau - a) / (tau - s a)
        ({"slowdown": 2.0}, 2 * 40 / 30),
    ],
)
def test_what_an_input_does_without_rounding(change, factor) -> None:
    assert unrounded(**change) == pytest.approx(factor * unrounded())


def test_memory_that_binds_spreads_the_fixed_part_of_a_step() -> None:
    blocks = SAME.mean_blocks(16)
    half, quarter = (unrounded(num_kv_blocks=int(n * blocks)) for n in (50, 25))
    # T / B = 10 / B + 0.4 ms at B = 50 and 25; the blocks are whole.
    assert quarter / half == pytest.approx(0.8 / 0.6, rel=0.01)


def test_the_number_of_blocks_is_cut_to_a_whole_one() -> None:
    assert unrounded(num_kv_blocks=400.9) == unrounded(num_kv_blocks=400)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slowdown": 0}, r"slowdown must be > 0: got 0"),
        ({"load_share": 0.0}, r"load_share must be > 0: got 0"),
        ({"good_share": 0.0}, r"good_share must be > 0: got 0"),
        ({"load_share": 80}, r"load_share must be a share in \(0, 1\]: 0.99, not 99: got 80"),
        ({"good_share": 99}, r"good_share must be a share in \(0, 1\]: 0.99, not 99: got 99"),
        ({"num_kv_blocks": np.nan}, r"num_kv_blocks must be finite"),
        ({"headroom": -0.1}, r"headroom must be >= 0: got -0.1"),
        ({"price_per_gpu_hour": -1}, r"price_per_gpu_hour must be >= 0: got -1"),
        ({"tpot_slo": 0.009}, r"replica must hold a batch of 1 or more: tpot permits"),
        ({"num_kv_blocks": 0.5}, r"num_kv_blocks must be >= 1: got 0"),
    ],
)
def test_bad_chains(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        fleet_cost(**{**BASE, **change})


@pytest.mark.parametrize("name", ["load", "replica", "step_time"])
def test_chains_of_another_kind(name) -> None:
    with pytest.raises(TypeError, match=rf"{name} must be of type"):
        fleet_cost(**{**BASE, name: None})


@pytest.mark.parametrize("name", ["arrival_rate", "num_kv_blocks", "good_share", "load_share"])
def test_chains_of_arrays(name) -> None:
    with pytest.raises(TypeError, match=rf"{name} must be one number"):
        fleet_cost(**{**BASE, name: [0.5, 0.6]})


# Draws of a fitted line ---------------------------------------------------------------------------


def measured() -> Any:
    generator = np.random.default_rng(4)
    prompts, seqs = generator.integers(0, 500, 400), generator.integers(1, 60, 400)
    duration = (0.010 + 1e-4 * prompts + 2e-4 * seqs) * generator.normal(1, 0.1, 400)
    rows = Intervals(duration=duration, prefill_tokens=prompts, decode_seqs=seqs)
    return fit(rows, ("steps", "prefill_tokens", "decode_seqs"))


def test_drawn_lines_have_the_spread_of_the_jackknife() -> None:
    fitted = measured()
    drawn = step_time_draws(fitted, 4000, np.random.default_rng(5))
    lines = np.array([step_time.lines[0] for step_time in drawn])
    line = np.array(fitted.step_time.lines[0])
    for counts in ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (1, 300, 20, 0, 0)):
        margin = fitted.margin(counts)
        values = lines @ np.array(counts)
        # Of 4,000 draws the spread is good to 1.1 %, the mean to 1.6 % of the spread.
        assert 2.0930 * np.std(values) == pytest.approx(margin, rel=0.05)
        assert np.mean(values) == pytest.approx(line @ counts, abs=0.05 * margin)
    assert np.all(lines[:, 3:] == 0)
    assert np.all(lines >= 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((LINE, 3, np.random.default_rng(0)), TypeError, r"fit must be of type Fit"),
        ((measured(), 0, np.random.default_rng(0)), ValueError, r"draws must be >= 1: got 0"),
        ((measured(), 3, 7), TypeError, r"generator must be of type Generator: got 7"),
    ],
)
def test_bad_draws(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        step_time_draws(*arguments)


# Plans --------------------------------------------------------------------------------------------

SLO: dict[str, Any] = {"ttft_slo": 1.0, "tpot_slo": 0.040}


def trace(n: int = 900) -> RequestLog:
    """The beginning of a production trace, ten times as fast."""
    log = load("azure2023/conv")
    log = log.where(np.arange(len(log)) < n)
    return replace(log, arrival=log.arrival / 10)


GPU = Replica(
    step_time=StepTime(((0.0133, 40e-6, 0.0, 1e-7, 0.0),)),
    num_kv_blocks=28_456,
    block_size=16,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    max_model_len=16_384,
)
ASKED: dict[str, Any] = {**SLO, "target": 0.95, "price_per_gpu_hour": 2.0, "draws": 20}


def planned(**changes: Any) -> Plan:
    return plan(trace(), GPU, **{**ASKED, "generator": np.random.default_rng(1), **changes})


@pytest.fixture(scope="module")
def found() -> Plan:
    return planned()


def test_a_plan_is_what_a_simulation_counts(found) -> None:
    workload = trace()
    served = serve(GPU, workload, found.replicas)
    share = attainment(served.metrics(), **SLO)
    assert found.attainment == share.ratio >= 0.95
    metrics = served.metrics()
    good = (metrics.ttft <= SLO["ttft_slo"]) & (
        (served.output_tokens == 1) | (metrics.tpot <= SLO["tpot_slo"])
    )
    tokens = served.output_tokens[good].sum()
    assert found.good_share == tokens / served.output_tokens.sum()
    # Money and tokens of the run, counted: n requests take n / lambda seconds.
    hours = len(served) / arrival_rate(workload.arrival) / 3600
    assert found.cost == pytest.approx(found.replicas * 2.0 * hours / (tokens / 1e6))
    fewer = serve(GPU, workload, found.replicas // 2)
    assert attainment(fewer.metrics(), **SLO).ratio < 0.95


def test_a_plan_repeats_with_its_seed(found) -> None:
    assert planned() == found
    assert planned(generator=np.random.default_rng(2)) != found


def test_intervals_hold_the_plan_and_only_what_varies_swings() -> None:
    found = planned(
        headroom=0.1,
        fit=None,
        ranges={"price_per_gpu_hour": (1.0, 3.0), "arrival_rate": (40, 80), "slowdown": (0.9, 1.1)},
    )
    low, high = found.replicas_interval
    assert low <= found.replicas <= high
    assert found.cost_interval[0] < found.cost < found.cost_interval[1]
    swings = {swing.name: swing for swing in found.swings}
    assert set(swings) == {"load", "load_share", "price_per_gpu_hour", "arrival_rate", "slowdown"}
    assert found.swings[0].name == "price_per_gpu_hour"
    assert swings["arrival_rate"].size == pytest.approx(0, abs=1e-9)  # it cancels: thm-cost
    sizes = [swing.size for swing in found.swings]
    assert sizes == sorted(sizes, reverse=True)
    assert 0.5 < found.load_share < 1
    assert swings["load_share"].size > 0.01 * found.unrounded_cost  # replicas' shares differ
    assert found.limit == "tpot"


def test_more_headroom_buys_more(found) -> None:
    assert planned(headroom=1.0).replicas > found.replicas


def test_more_gpus_a_replica_cost_as_many_times_more(found) -> None:
    assert planned(gpus_per_replica=2).cost == pytest.approx(2 * found.cost)


def test_a_fit_swings_too() -> None:
    fitted = measured()
    names = {swing.name for swing in planned(fit=fitted).swings}
    assert names == {"load", "load_share", "step_time"}


def test_one_replica_has_no_scatter_of_its_own() -> None:
    log = trace(400)
    slow = replace(log, arrival=log.arrival * 10)
    found = plan(slow, GPU, **ASKED, generator=np.random.default_rng(1))
    assert [swing.name for swing in found.swings] == ["load"]
    assert found.replicas == 1
    assert found.replicas_interval == (1, 1)


def test_a_plan_prints_what_was_asked(found) -> None:
    text = str(found)
    for word in ("replicas", "cost per 1e6 tokens", "attainment", "matters most", "limit: tpot"):
        assert word in text


def test_a_plan_below_its_target_says_so(found) -> None:
    assert "BELOW" not in str(found)
    assert "BELOW the 95.0% asked" in str(replace(found, attainment=0.9, target=0.95))


def test_a_trace_too_short_to_tell_is_refused() -> None:
    """450 requests in 1.5 s: they drain for free, faster than a full batch finishes requests."""
    generator = np.random.default_rng(0)
    log = RequestLog(
        arrival=np.cumsum(generator.exponential(1 / 300, 450)),
        input_tokens=generator.integers(1, 300, 450),
        output_tokens=generator.integers(1, 60, 450),
    )
    engine = Replica(
        step_time=StepTime(((0.005, 1e-5, 1e-4, 1e-8, 0.0),)),
        num_kv_blocks=2000,
        block_size=16,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        max_model_len=4096,
    )
    limits = {"ttft_slo": 1.0, "tpot_slo": 0.05, "target": 0.9}
    with pytest.raises(ValueError, match=r"workload must be long enough to overload the replica"):
        plan(log, engine, **limits, price_per_gpu_hour=2.0, generator=generator)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"target": 1.0}, ValueError, r"target must be < 1"),
        ({"target": 0.0}, ValueError, r"target must be > 0: got 0"),
        ({"ttft_slo": 0.0}, ValueError, r"ttft_slo must be > 0: got 0"),
        ({"tpot_slo": np.nan}, ValueError, r"tpot_slo must be finite"),
        ({"price_per_gpu_hour": -1.0}, ValueError, r"price_per_gpu_hour must be >= 0: got -1"),
        ({"headroom": -0.1}, ValueError, r"headroom must be >= 0: got -0.1"),
        ({"gpus_per_replica": 0}, ValueError, r"gpus_per_replica must be >= 1: got 0"),
        ({"ranges": 5}, TypeError, r"ranges must be a mapping: got 5"),
        ({"headroom": [0.1]}, TypeError, r"headroom must be one number"),
        ({"draws": 1}, ValueError, r"draws must be >= 2: got 1"),
        ({"generator": 7}, TypeError, r"generator must be of type Generator: got 7"),
        ({"fit": LINE}, TypeError, r"fit must be of type Fit"),
        ({"ranges": {"weather": (0, 1)}}, ValueError, r"ranges must be one of .*: got 'weather'"),
        (
            {"ranges": {"headroom": (0.3, 0.1)}},
            ValueError,
            r"ranges must hold \(low, high\): got \(0.3, 0.1\) for headroom",
        ),
        ({"ranges": {"headroom": (0.3,)}}, ValueError, r"ranges must hold \(low, high\)"),
        (
            {"ranges": {"price_per_gpu_hour": (2.5, 3)}},
            ValueError,
            r"range of price_per_gpu_hour must hold the plan's value, 2: got \(2.5, 3\)",
        ),
        (
            {"ranges": {"arrival_rate": (1, 5)}},
            ValueError,
            r"range of arrival_rate must hold the plan's value, \d+\.\d+: got \(1, 5\)",
        ),
        ({"ranges": {"slowdown": (1.1, 2)}}, ValueError, r"range of slowdown must hold .* 1: got"),
        ({"ranges": {"headroom": (0, np.inf)}}, ValueError, r"range of headroom must be finite"),
    ],
)
def test_bad_plans(changes, error, message) -> None:
    with pytest.raises(error, match=message):
        planned(**changes)


def test_bad_workloads() -> None:
    asked = {**ASKED, "generator": np.random.default_rng(1)}
    with pytest.raises(TypeError, match=r"workload must be of type RequestLog: got 7"):
        plan(7, GPU, **asked)
    with pytest.raises(TypeError, match=r"replica must be of type Replica: got 7"):
        plan(trace(), 7, **asked)
    with pytest.raises(ValueError, match=r"arrival must hold at least 2 stamps"):
        plan(trace(1), GPU, **asked)
    with pytest.raises(ValueError, match=r"workload must be long enough to overload"):
        plan(trace(20), GPU, **asked)
    log = trace(300)
    with pytest.raises(ValueError, match=r"output_tokens must be >= 1: got 0"):
        plan(replace(log, output_tokens=0 * log.output_tokens), GPU, **asked)
