"""Capacity: moments by counting, rates by simulation, limits by inversion, and bad input."""

from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import capacity, constants
from lib.capacity import (
    Load,
    Replica,
    batch_step_time,
    largest_batch,
    planned_replica,
    replica_rate,
    required_replicas,
    serve,
    sustainable_rate,
)
from lib.goodput import attainment
from lib.record import RequestLog
from lib.simulator import simulate
from lib.step_time import StepTime, roofline

LINE = StepTime(((7e-3, 2e-4, 1e-4, 1e-6, 1e-8),))
TWO = Load([100, 300], [10, 30])

lengths = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=25).map(
    np.array
)


def engine(step_time: StepTime = LINE, **limits: int) -> Replica:
    roomy = {
        "num_kv_blocks": 100_000,
        "block_size": 16,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 100_000,
        "max_model_len": 100_000,
    }
    return Replica(step_time=step_time, **(roomy | limits))


def workload(n: int = 400, seed: int = 1, rate: float = 1.0) -> RequestLog:
    random = np.random.default_rng(seed)
    return RequestLog(
        arrival=np.cumsum(random.standard_exponential(n)) / rate,
        input_tokens=random.integers(1, 600, n),
        output_tokens=random.integers(1, 80, n),
    )


# Moments of a load --------------------------------------------------------------------------------


@given(lengths, st.integers(1, 40))
def test_moments_are_means_over_steps(pairs: np.ndarray, block: int) -> None:
    """Every step of every request, written out."""
    contexts, keys = [], []
    for prompt, answer in pairs.tolist():
        contexts += range(prompt, prompt + answer)
        keys += [sum(range(1, prompt + 1)), *range(prompt + 1, prompt + answer)]
    load = Load(*pairs.T)
    assert load.mean_input == pytest.approx(np.mean(pairs[:, 0]), rel=1e-12)
    assert load.mean_output == pytest.approx(len(contexts) / len(pairs), rel=1e-12)
    assert load.mean_context == pytest.approx(np.mean(contexts), rel=1e-12)
    assert load.mean_pairs == pytest.approx(np.mean(keys), rel=1e-12)
    assert load.mean_blocks(block) == pytest.approx(
        np.mean([ceil(t / block) for t in contexts]), rel=1e-12
    )


def test_long_answers_weigh_more() -> None:
    """(10 x 104.5 + 30 x 314.5) / 40, not (104.5 + 314.5) / 2 = 209.5."""
    assert TWO.mean_context == 262
    assert Load([300, 100], [10, 30]).mean_context < 209.5


@pytest.mark.parametrize(
    ("prompt", "answer", "error", "message"),
    [
        ([], [], ValueError, "input_tokens must be a non-empty list: got shape"),
        (5, 5, ValueError, "input_tokens must be a non-empty list: got shape"),
        ([5, 6], [1], ValueError, "output_tokens must have one value a prompt: got 1 for 2"),
        ([5], [0], ValueError, "output_tokens must be >= 1: got 0 at index 0"),
        ([5.5], [1], ValueError, "input_tokens must be a whole number: got 5.5"),
        ([np.nan], [1], ValueError, "input_tokens must be finite"),
        (["5"], [1], TypeError, "input_tokens must be a real number"),
    ],
)
def test_load_refuses(prompt: object, answer: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Load(prompt, answer)  # type: ignore[arg-type]


def test_load_refuses_a_block_of_nothing() -> None:
    with pytest.raises(ValueError, match="block_size must be >= 1: got 0"):
        TWO.mean_blocks(0)


# The rate of a full batch -------------------------------------------------------------------------


def test_mean_step_by_hand() -> None:
    """B = 4: 0.2 requests enter a step with 40 prompt tokens, 3.8 sequences decode."""
    step = StepTime(((10e-3, 1e-4, 1e-3, 0, 0),))
    assert batch_step_time(step, TWO, 4) == pytest.approx(10e-3 + 40e-4 + 3.8e-3, rel=1e-12)
    assert replica_rate(engine(step), TWO, 4) == pytest.approx(4 / (20 * 17.8e-3), rel=1e-12)
    context = StepTime(((0, 0, 0, 1e-6, 0),))
    assert batch_step_time(context, TWO, 4) == pytest.approx(4 * 262e-6, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 12), st.floats(0, 0.05))
def test_every_run_on_a_line_has_the_rate_of_its_mean_batch(
    pairs: np.ndarray, slots: int, gap: float
) -> None:
    """Completions per busy second, whatever the arrivals: thm-capacity-run."""
    n = len(pairs)
    log = RequestLog(
        arrival=gap * np.arange(n), input_tokens=pairs[:, 0], output_tokens=pairs[:, 1]
    )
    replica = engine(max_num_seqs=slots)
    steps = simulate(log, replica.scheduler(), LINE).steps()
    busy = float(np.sum(steps.end - steps.start))
    rate = replica_rate(replica, Load(*pairs.T), float(steps.seqs.mean()))
    assert rate == pytest.approx(n / busy, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 12))
def test_several_lines_make_the_rate_an_upper_bound(pairs: np.ndarray, slots: int) -> None:
    lines = StepTime(((1e-3, 3e-4, 1e-4, 0, 0), (8e-3, 0, 0, 2e-6, 0)))
    n = len(pairs)
    log = RequestLog(arrival=np.zeros(n), input_tokens=pairs[:, 0], output_tokens=pairs[:, 1])
    replica = engine(lines, max_num_seqs=slots)
    steps = simulate(log, replica.scheduler(), lines).steps()
    rate = replica_rate(replica, Load(*pairs.T), float(steps.seqs.mean()))
    assert rate >= n / float(steps.end[-1]) * (1 - 1e-9)


def test_rate_rises_to_one_over_the_marginal_demand() -> None:
    batch = np.array([1, 10, 100, 1e9])
    rate = replica_rate(engine(), TWO, batch)
    assert isinstance(rate, np.ndarray)
    assert np.all(np.diff(rate) > 0)
    marginal = 200 * 2e-4 + 19 * 1e-4 + 20 * 262 * 1e-6 + 20 * TWO.mean_pairs * 1e-8
    assert rate[-1] == pytest.approx(1 / marginal, rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (0, ValueError, "batch must be > 0: got 0"),
        (-1, ValueError, "batch must be > 0: got -1"),
        ([1, np.nan], ValueError, "batch must be finite"),
        (np.inf, ValueError, "batch must be finite"),
        ("8", TypeError, "batch must be a real number"),
    ],
)
def test_rate_refuses_a_batch(batch: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        replica_rate(engine(), TWO, batch)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        batch_step_time(LINE, TWO, batch)  # type: ignore[arg-type]


def test_rate_refuses_other_kinds() -> None:
    with pytest.raises(TypeError, match="replica must be of type Replica"):
        replica_rate(LINE, TWO, 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load must be of type Load"):
        replica_rate(engine(), [1, 2], 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step_time must be of type StepTime"):
        batch_step_time(0.02, TWO, 8)  # type: ignore[arg-type]


# The largest batch --------------------------------------------------------------------------------


def test_each_limit_can_bind() -> None:
    held = TWO.mean_blocks(16)
    computed = (200 + 19) / 20  # tokens a step for each sequence in it
    found = largest_batch(engine(num_kv_blocks=100, max_num_batched_tokens=500), TWO)
    assert found.limits == pytest.approx(
        {"memory": 100 / held, "max_num_seqs": 64, "max_num_batched_tokens": 500 / computed}
    )
    assert (found.limit, found.batch) == ("memory", found.limits["memory"])
    assert largest_batch(engine(), TWO).limit == "max_num_seqs"
    assert largest_batch(engine(max_num_batched_tokens=500), TWO).limit == "max_num_batched_tokens"
    assert largest_batch(engine(), TWO, 0.02).limit == "tpot"


@settings(deadline=None)
@given(lengths, st.floats(0.02, 1))
def test_the_step_at_the_tpot_limit_takes_just_that(pairs: np.ndarray, slo: float) -> None:
    lines = StepTime(((1e-3, 3e-4, 1e-4, 0, 1e-9), (8e-3, 0, 0, 2e-6, 0)))
    load = Load(*pairs.T)
    try:
        found = largest_batch(engine(lines, max_num_seqs=10**6), load, slo)
    except ValueError:
        assert batch_step_time(lines, load, 1) > slo
        return
    assert batch_step_time(lines, load, found.limits["tpot"]) == pytest.approx(slo, rel=1e-9)


def test_tpot_limit_of_a_constant_step() -> None:
    """A step of fixed length is either within the limit at any batch, or at none."""
    flat = engine(StepTime(((0.01, 0, 0, 0, 0),)))
    assert largest_batch(flat, TWO, 0.02).limits["tpot"] == inf
    with pytest.raises(ValueError, match="tpot permits 0"):
        largest_batch(flat, TWO, 0.005)
    decode_only = engine(StepTime(((0.01, 0, 1e-3, 0, 0),)))
    assert largest_batch(decode_only, Load([5], [1]), 0.02).limits["tpot"] == inf


def test_less_than_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch of 1 or more: memory permits 0\.47"):
        largest_batch(engine(num_kv_blocks=8), TWO)
    with pytest.raises(ValueError, match=r"batch of 1 or more: tpot permits 0\."):
        largest_batch(engine(), TWO, 0.008)
    with pytest.raises(ValueError, match="tpot_slo must be > 0: got 0"):
        largest_batch(engine(), TWO, 0)
    with pytest.raises(TypeError, match="tpot_slo must be one number"):
        largest_batch(engine(), TWO, [0.1, 0.2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load must be of type Load"):
        largest_batch(engine(), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="replica must be of type Replica"):
        largest_batch(TWO, TWO)  # type: ignore[arg-type]


def test_memory_bounds_the_mean_batch() -> None:
    """A simulated engine never holds more in the mean, as long as it preempts nobody."""
    log = replace(workload(600), arrival=np.zeros(600))
    load = Load(log.input_tokens, log.output_tokens)
    for blocks in (600, 1200, 2400):
        replica = engine(num_kv_blocks=blocks, max_num_seqs=10_000)
        run = simulate(log, replica.scheduler(), LINE)
        mean = float(run.steps().seqs.mean())
        bound = largest_batch(replica, load).limits["memory"]
        preempted = run.preemptions.sum() / len(log)
        assert 0.75 * bound < mean < bound * (1 + preempted)


# A replica ----------------------------------------------------------------------------------------


def test_planned_replica_by_hand() -> None:
    """Llama-3.1-8B on an H100: 80 GB x 0.9, 8.03e9 weights of 2 bytes, blocks of 2 MiB."""
    model, device = constants.load_model("Llama-3.1-8B"), constants.load_hardware("H100 SXM")
    plan = planned_replica(
        model,
        device,
        other_bytes=2e9,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=32768,
        overhead=1e-3,
    )
    weights = 2 * 8_030_261_248  # parameters of Llama-3.1-8B, embedding included
    left = 0.9 * device.memory_bytes - weights - 2e9
    assert plan.num_kv_blocks == left // (16 * 131_072)
    assert plan.step_time == roofline(model, device, overhead=1e-3)
    small = planned_replica(
        model,
        device,
        other_bytes=2e9,
        max_num_seqs=1,
        max_num_batched_tokens=8,
        max_model_len=9,
        utilization=0.5,
        block_size=32,
    )
    assert small.num_kv_blocks == (0.5 * device.memory_bytes - weights - 2e9) // (32 * 131_072)
    assert (small.max_num_seqs, small.max_num_batched_tokens, small.max_model_len) == (1, 8, 9)


def test_a_model_that_does_not_fit_is_refused() -> None:
    big, card = constants.load_model("Llama-3.1-70B"), constants.load_hardware("RTX 4090")
    with pytest.raises(ValueError, match="must leave room for one block"):
        planned_replica(
            big,
            card,
            other_bytes=1e9,
            max_num_seqs=1,
            max_num_batched_tokens=8,
            max_model_len=9,
        )


def test_replica_refuses() -> None:
    with pytest.raises(TypeError, match="step_time must be of type StepTime"):
        engine(0.01)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_num_seqs must be >= 1: got 0"):
        engine(max_num_seqs=0)
    with pytest.raises(TypeError, match=r"num_kv_blocks must be an integer: got 10\.5"):
        engine(num_kv_blocks=10.5)  # type: ignore[arg-type]


# Replicas, simulated ------------------------------------------------------------------------------


def test_serve_by_one_is_the_simulator() -> None:
    log, replica = workload(50), engine()
    ours, theirs = serve(replica, log), simulate(log, replica.scheduler(), LINE).requests
    for name in ("arrival", "input_tokens", "first_token", "last_token", "request_id"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))


def test_serve_goes_round_in_order_of_arrival() -> None:
    """Rows in any order: each replica's share, simulated apart, gives the same stamps."""
    shuffled = np.random.default_rng(3).permutation(60)
    log = workload(60, rate=50)
    mixed = RequestLog(
        arrival=log.arrival[shuffled],
        input_tokens=log.input_tokens[shuffled],
        output_tokens=log.output_tokens[shuffled],
        request_id=shuffled,
    )
    replica = engine()
    served = serve(replica, mixed, 3)
    assert np.array_equal(served.request_id, shuffled)
    for i in range(3):
        share = log.where(np.arange(60) % 3 == i)
        alone = simulate(share, replica.scheduler(), LINE).requests
        mine = np.argsort(served.arrival)[i::3]
        assert np.array_equal(served.last_token[mine], alone.last_token)
        assert np.array_equal(served.input_tokens[mine], alone.input_tokens)


@pytest.mark.parametrize(
    ("replicas", "error", "message"),
    [
        (0, ValueError, "replicas must be >= 1: got 0"),
        (51, ValueError, "replicas must be <= the 50 requests: got 51"),
        (1.5, ValueError, r"replicas must be a whole number: got 1\.5"),
        ([1, 2], TypeError, "replicas must be one number"),
    ],
)
def test_serve_refuses(replicas: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        serve(engine(), workload(50), replicas)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="workload must be of type RequestLog"):
        serve(engine(), TWO)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0.01, 1, 100])
def test_sustainable_rate_is_where_attainment_crosses(start: float) -> None:
    """The clock of the workload given does not matter; the crossing is simulated again here."""
    log, replica = workload(600, rate=start), engine(max_num_seqs=8)
    slo = {"ttft_slo": 0.5, "tpot_slo": 0.05}
    rate = sustainable_rate(replica, log, **slo, target=0.9, precision=0.02)
    base = 599 / float(np.ptp(log.arrival))

    def reached(at: float) -> float:
        scaled = replace(log, arrival=(log.arrival - log.arrival[0]) * base / at)
        run = simulate(scaled, replica.scheduler(), LINE).requests
        return attainment(run.metrics(), 0.5, 0.05).ratio

    assert reached(rate) >= 0.9
    assert reached(rate * 1.02) < 0.9
    load = Load(log.input_tokens, log.output_tokens)
    assert rate < replica_rate(replica, load, 8)


def test_sustainable_rate_never_exceeds_a_full_batch() -> None:
    """For a while a replica takes more than it finishes: no rate for the long run."""
    log, replica = workload(60), engine(max_num_seqs=2)
    full = replica_rate(replica, Load(log.input_tokens, log.output_tokens), 2)
    found = [sustainable_rate(replica, log, target=0.5, ttft_slo=limit) for limit in (0.5, 2)]
    assert found[0] < full
    assert found[-1] == full


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"target": 1}, ValueError, "target must be < 1"),
        ({"target": 0}, ValueError, "target must be > 0: got 0"),
        ({"precision": 0}, ValueError, "precision must be > 0: got 0"),
        ({"precision": 1e-17}, ValueError, "precision must be a share from 1e-6 to below 1"),
        ({"precision": 1}, ValueError, "precision must be a share from 1e-6 to below 1: got 1"),
        ({"precision": [0.1, 0.2]}, TypeError, "precision must be one number"),
        ({"ttft_slo": None}, ValueError, "must be given: no limit"),
        ({"ttft_slo": 1e4}, ValueError, "its 50 requests meet the target even at"),
        ({"ttft_slo": 1e-3}, ValueError, "target must be within reach: even at"),
    ],
)
def test_sustainable_rate_refuses(change: dict[str, Any], error: type, message: str) -> None:
    arguments: dict[str, Any] = {"target": 0.9, "ttft_slo": 1.0} | change
    with pytest.raises(error, match=message):
        sustainable_rate(engine(), workload(50), **arguments)


def test_sustainable_rate_refuses_a_workload() -> None:
    one = workload(1)
    with pytest.raises(ValueError, match="arrival must hold at least 2 stamps"):
        sustainable_rate(engine(), one, target=0.9, ttft_slo=1.0)
    with pytest.raises(TypeError, match="workload must be of type RequestLog"):
        sustainable_rate(engine(), TWO, target=0.9, ttft_slo=1.0)  # type: ignore[arg-type]


# How many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "each", "headroom", "replicas"),
    [
        (30, 10, 0, 3),
        (30.1, 10, 0, 4),
        (29.9, 10, 0, 3),
        (0.1, 10, 0, 1),
        (0.3, 0.1, 0, 3),  # 2.9999999999999996
        (0.6, 0.2, 0, 3),
        (1.1, 1.21, 0.1, 1),  # 1.0000000000000002
        (3, 1.1, 0.1, 3),  # 3.0000000000000004
        (1, 1 / 3, 0, 3),
        (100, 10, 0.3, 13),
        (100, 10, 0.31, 14),
        (3.000001, 1, 0, 4),  # a real excess is no rounding
    ],
)
def test_required_replicas(rate: float, each: float, headroom: float, replicas: int) -> None:
    found = required_replicas(rate, each, headroom)
    assert found == replicas
    assert type(found) is int


@given(st.integers(1, 10**6), st.floats(1e-6, 1e6))
def test_whole_quotients_are_exact(n: int, each: float) -> None:
    assert required_replicas(n * each, each) == n
    assert required_replicas((n + 1e-6 * n) * each, each) == ceil(n + 1e-6 * n)


@given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4), st.floats(0, 3))
def test_enough_and_no_more(rate: float, each: float, headroom: float) -> None:
    found = required_replicas(rate, each, headroom)
    assert found * each >= rate * (1 + headroom) * (1 - 1e-8)
    assert (found - 1) * each < rate * (1 + headroom)


def test_required_replicas_broadcasts() -> None:
    found = required_replicas([10, 20, 30], [[10], [15]])
    assert np.array_equal(found, [[1, 2, 3], [1, 2, 2]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1), ValueError, "arrival_rate must be > 0: got 0"),
        ((-1, 1), ValueError, "arrival_rate must be > 0: got -1"),
        ((1, 0), ValueError, "replica_rate must be > 0: got 0"),
        ((1, np.nan), ValueError, "replica_rate must be finite"),
        ((np.inf, 1), ValueError, "arrival_rate must be finite"),
        ((1, 1, -0.1), ValueError, r"headroom must be >= 0: got -0\.1"),
        (([1, 2], [1, 2, 3]), ValueError, "lengths must match"),
        (("1", 1), TypeError, "arrival_rate must be a real number"),
        ((1, True), TypeError, "replica_rate must be a real number"),
    ],
)
def test_required_replicas_refuses(arguments: tuple[Any, ...], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        required_replicas(*arguments)


def test_the_module_has_no_other_public_names() -> None:
    public = {
        n for n, v in vars(capacity).items() if getattr(v, "__module__", "") == "lib.capacity"
    }
    assert {n for n in public if not n.startswith("_")} == {
        "LargestBatch",
        "Load",
        "Replica",
        "batch_step_time",
        "largest_batch",
        "planned_replica",
        "replica_rate",
        "required_replicas",
        "serve",
        "sustainable_rate",
    }
