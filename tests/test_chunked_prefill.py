"""Chunked prefill: values, a literal loop, the scheduler, the real engine's records, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import engine_runs
from lib.chunked_prefill import (
    chunk_count,
    chunk_left,
    chunked_prefill,
    gap_bound,
    kv_read_again,
    prefill_progress,
)
from lib.record import RequestLog
from lib.scheduling import Request, TokenBudgetScheduler
from lib.simulator import StepLog, simulate
from lib.step_time import StepTime

prompts, chunks = st.integers(1, 3000), st.integers(1, 700)
ONE_LINE = StepTime(((0.007, 2e-4, 1e-4, 2e-7, 1e-7),))
TWO_LINES = StepTime(((0.001, 3e-4, 1e-4, 0.0, 1e-7), (0.009, 0.0, 2e-4, 1e-6, 0.0)))
either = st.sampled_from([ONE_LINE, TWO_LINES])


def engine(**limits: Any) -> TokenBudgetScheduler:
    ample = {"max_num_seqs": 64, "num_kv_blocks": 10**6, "block_size": 16, "max_model_len": 10**6}
    return TokenBudgetScheduler(**{**ample, **limits})


# Progress and count -------------------------------------------------------------------------------


def test_progress_by_hand() -> None:
    assert prefill_progress(0, 300, 128) == 128.0
    assert prefill_progress(256, 300, 128) == 300.0
    assert prefill_progress(300, 300, 128) == 300.0
    assert prefill_progress(100, 300, 0) == 100.0
    assert isinstance(prefill_progress(0, 300, 128), float)
    np.testing.assert_array_equal(prefill_progress([[0], [5]], 6, [2, 4]), [[2, 4], [6, 6]])


def test_left_by_hand() -> None:
    assert chunk_left(512, 12) == 500.0
    np.testing.assert_array_equal(chunk_left(8, [0, 7, 8, 9]), [8, 1, 0, 0])


def test_count_by_hand() -> None:
    np.testing.assert_array_equal(chunk_count([1, 128, 129, 1000], 128), [1, 1, 2, 8])
    assert chunk_count(2**53 - 1, 1) == 2.0**53 - 1
    assert chunk_count(2**53 - 1, 2) == 2.0**52


@given(prompts, chunks)
@settings(max_examples=30)
def test_count_is_the_steps_that_progress_takes(prompt: int, chunk: int) -> None:
    done, steps, read = 0.0, 0, 0.0
    while done < prompt:
        read += done
        done = float(prefill_progress(done, prompt, chunk))
        steps += 1
    assert done == prompt
    assert steps == chunk_count(prompt, chunk)
    assert read == kv_read_again(prompt, chunk)


@given(prompts, st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_a_chunk_that_varies(prompt: int, given_chunks: list[int]) -> None:
    """Whatever the chunks are, progress is their sum until the prompt is done."""
    done = 0.0
    for chunk in given_chunks:
        done = float(prefill_progress(done, prompt, chunk))
    assert done == min(prompt, sum(given_chunks))


def test_one_piece_reads_nothing_again() -> None:
    assert kv_read_again(500, 500) == kv_read_again(500, 10_000) == 0.0
    np.testing.assert_array_equal(kv_read_again(10, [3, 4]), [3 + 6 + 9, 4 + 8])


# The time of the chunks ---------------------------------------------------------------------------


def literal(
    prompt: int, chunk: int, step_time: StepTime, decodes: int, context: int
) -> list[float]:
    """Step lengths, one token at a time."""
    lengths, done = [], 0
    while done < prompt:
        tokens, pairs = 0, 0
        while tokens < chunk and done < prompt:
            tokens, done = tokens + 1, done + 1
            pairs += done
        context += decodes
        counts = (1, tokens, decodes, context + done, context + pairs)
        lengths.append(
            max(sum(x * y for x, y in zip(line, counts, strict=True)) for line in step_time.lines)
        )
    return lengths


@given(prompts, chunks, either, st.integers(0, 30), st.integers(0, 10_000))
def test_time_against_a_literal_loop(
    prompt: int, chunk: int, step_time: StepTime, decodes: int, more: int
) -> None:
    lengths = literal(prompt, chunk, step_time, decodes, decodes + more)
    took = chunked_prefill(
        prompt, chunk, step_time, decode_seqs=decodes, decode_context=decodes + more
    )
    assert took.steps == len(lengths)
    assert took.seconds == pytest.approx(sum(lengths), rel=1e-12)
    assert took.longest_step == pytest.approx(max(lengths), rel=1e-12)
    assert isinstance(took.seconds, float)


def test_time_of_many_prompts_is_that_of_each() -> None:
    rng = np.random.default_rng(1)
    prompt, chunk = rng.integers(1, 2000, (40, 1)), rng.integers(1, 600, (1, 7))
    beside, context = rng.integers(0, 20, (40, 1)), rng.integers(20, 9000, (40, 1))
    took = chunked_prefill(prompt, chunk, TWO_LINES, decode_seqs=beside, decode_context=context)
    for i, j in np.ndindex(40, 7):
        alone = chunked_prefill(
            prompt[i, 0],
            chunk[0, j],
            TWO_LINES,
            decode_seqs=beside[i, 0],
            decode_context=context[i, 0],
        )
        for name in ("steps", "seconds", "longest_step"):
            assert getattr(took, name)[i, j] == pytest.approx(getattr(alone, name), rel=1e-12)


def test_a_million_prompts() -> None:
    prompt = np.random.default_rng(2).integers(1, 2000, 1_000_000)
    took = chunked_prefill(prompt, 512, ONE_LINE)
    a, p, _, k, r = ONE_LINE.lines[0]
    steps = np.ceil(prompt / 512)
    closed = (
        steps * a
        + p * prompt
        + k * (prompt + 512 * steps * (steps - 1) / 2)
        + r * prompt * (prompt + 1) / 2
    )
    np.testing.assert_allclose(took.seconds, closed, rtol=1e-12)


@given(prompts, chunks, either, st.integers(0, 12))
@settings(max_examples=40)
def test_time_against_the_scheduler(
    prompt: int, chunk: int, step_time: StepTime, beside: int
) -> None:
    """Decoders first, then a prompt: the engine's rule gives it the budget left, step by step."""
    held = 3
    workload = RequestLog(
        arrival=np.array([0.0] * beside + [1e-6]),  # all decoders start in the step before
        input_tokens=np.array([held] * beside + [prompt]),
        output_tokens=np.array([4000] * beside + [1]),
    )
    scheduler = engine(max_num_batched_tokens=max(chunk + beside, held * beside))
    left = scheduler.max_num_batched_tokens - beside
    sim = simulate(workload, scheduler, step_time)
    took = chunked_prefill(
        prompt, left, step_time, decode_seqs=beside, decode_context=held * beside
    )
    stay = sim.requests.first_token[-1] - sim.requests.scheduled[-1]
    assert stay == pytest.approx(took.seconds, rel=1e-9)
    log = sim.steps()
    mine = log.start >= sim.requests.scheduled[-1] - 1e-9
    mine &= log.end <= sim.requests.first_token[-1] + 1e-9
    assert mine.sum() == took.steps
    assert np.max((log.end - log.start)[mine]) == pytest.approx(took.longest_step, rel=1e-9)
    context, pairs = log.context_tokens[mine], log.pairs[mine]
    decoding = beside * (held + np.arange(1, mine.sum() + 1))
    assert np.sum(pairs - decoding) == prompt * (prompt + 1) / 2  # once, however it is cut
    assert np.sum(context - decoding) - prompt == kv_read_again(prompt, left)


def test_a_token_budget_trades_gaps_against_the_first_token() -> None:
    """Case F09: 48 decodes, a prompt of 5,000, steps of 10 ms and 50 us a token."""
    step_time = StepTime(((0.01, 5e-5, 5e-5, 0.0, 0.0),))
    took = chunked_prefill(
        5000, chunk_left([2048, 8192], 48), step_time, decode_seqs=48, decode_context=48
    )
    np.testing.assert_array_equal(took.steps, [3, 1])
    np.testing.assert_allclose(took.seconds, [0.2872, 0.2624], rtol=0, atol=1e-9)
    np.testing.assert_allclose(took.longest_step, [0.1124, 0.2624], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(chunk_count(32_768, [4096, 16_384]), [8, 2])


# The longest gap ----------------------------------------------------------------------------------


def bounds(log: StepLog, budget: int, step_time: StepTime, longest: float) -> Any:
    return gap_bound(
        budget,
        step_time,
        decode_seqs=log.decode_seqs,
        context_tokens=log.context_tokens,
        longest_prompt=longest,
    )


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 90), st.integers(1, 40)), min_size=1),
    st.integers(1, 80),
    st.sampled_from([0, 5]),
    st.sampled_from([40, 10**6]),
    either,
)
def test_no_step_exceeds_the_bound(
    rows: list[tuple[int, int, int]], budget: int, threshold: int, blocks: int, step_time: StepTime
) -> None:
    arrival, prompt, answer = np.transpose(rows)
    workload = RequestLog(arrival=arrival / 10, input_tokens=prompt, output_tokens=answer)
    scheduler = engine(
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        num_kv_blocks=blocks,
        block_size=4,
    )
    log = simulate(workload, scheduler, step_time).steps()
    longest = float(np.max(prompt + answer))  # a preempted request computes its answer again
    assert np.all(log.end - log.start <= bounds(log, budget, step_time, longest) * (1 + 1e-9))


def test_the_bound_is_nearly_reached() -> None:
    """The last token of a long prompt: only its own context is counted once too often."""
    took = chunked_prefill(100, 1, ONE_LINE, decode_seqs=3, decode_context=30)
    held = 30 + 3 * 100 + 100
    bound = gap_bound(4, ONE_LINE, decode_seqs=3, context_tokens=held, longest_prompt=100)
    assert bound - took.longest_step == pytest.approx(100 * ONE_LINE.lines[0][4], rel=1e-6)


def test_the_bound_grows_with_the_budget() -> None:
    found = gap_bound(
        [16, 64, 512], TWO_LINES, decode_seqs=8, context_tokens=4000, longest_prompt=2000
    )
    assert np.all(np.diff(found) > 0)


# Records of the real engine -----------------------------------------------------------------------

RECORDS = [
    *(
        f"v0.32/{family}/{i}"
        for family in ("chunked", "tight_budget", "long_prefill_threshold")
        for i in range(4)
    ),
    "v0.33/s01_chunked_prefill_basic",
    "v0.33/s02_staggered_decode_first",
    "v0.33/s04_long_prefill_threshold",
    "v0.33/s15_budget_saturated_by_decodes",
]


@pytest.mark.parametrize("name", RECORDS)
def test_records_follow_the_recurrence(name: str) -> None:
    """vLLM gives each prompt what the budget leaves, or the threshold unless it is alone."""
    record = engine_runs.load_scheduler_record(name)
    budget = record["limits"]["max_num_batched_tokens"]
    threshold = record["limits"].get("long_prefill_token_threshold", 0) or budget
    prompt = {req_id: tokens for req_id, _, tokens, _ in record["workload"]}
    predicted, recorded = dict.fromkeys(prompt, 0.0), dict.fromkeys(prompt, 0)
    for step in record["steps"]:
        if step.get("idle"):  # the engine was not called
            continue
        served = 0
        limit = threshold if len(step["running"]) + len(step["waiting"]) > 1 else budget
        for req_id, tokens in step["scheduled"].items():
            if predicted[req_id] < prompt[req_id]:
                chunk = min(limit, int(chunk_left(budget, served)))
                predicted[req_id] = float(
                    prefill_progress(predicted[req_id], prompt[req_id], chunk)
                )
                recorded[req_id] += tokens
                assert recorded[req_id] == predicted[req_id], (step, req_id)
            served += tokens
    assert recorded == prompt


@pytest.mark.parametrize("name", ["rate2", "rate4", "rate6", "budget2048_rate4"])
def test_real_prompts_end_in_the_predicted_step(name: str) -> None:
    run = engine_runs.load(f"cpu/{name}")
    log, steps, budget = run.requests, run.steps, run.meta["max_num_batched_tokens"]
    assert steps is not None
    taken = steps.decode_seqs.copy()
    begun = np.searchsorted(steps.start, log.scheduled)
    for prompt, step, first_token in zip(log.input_tokens, begun, log.first_token, strict=True):
        done, now = 0.0, int(step) - 1
        while done < prompt:
            now += 1
            before, done = (
                done,
                float(prefill_progress(done, prompt, chunk_left(budget, taken[now]))),
            )
            taken[now] += done - before
        assert steps.end[now] == first_token
    np.testing.assert_array_equal(taken - steps.decode_seqs, steps.prefill_tokens)


def test_a_lone_request_gets_more_than_the_threshold() -> None:
    scheduler = engine(max_num_batched_tokens=256, long_prefill_token_threshold=64)
    scheduler.submit(Request("alone", 200, 1))
    assert scheduler.step().scheduled == {"alone": 200}
    assert chunk_count(200, 64) == 4


# Bad input ----------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = [
    (prefill_progress, (-1, 9, 3), ValueError, "prefilled must be >= 0: got -1"),
    (prefill_progress, (10, 9, 3), ValueError, "prefilled must be <= input_tokens: got 10"),
    (prefill_progress, (0, 0, 3), ValueError, "input_tokens must be >= 1: got 0"),
    (prefill_progress, (0, 9, -3), ValueError, "chunk must be >= 0: got -3"),
    (prefill_progress, (0, 9, 2.5), ValueError, "chunk must be a whole number: got 2.5"),
    (prefill_progress, (np.nan, 9, 3), ValueError, "prefilled must be finite"),
    (prefill_progress, ([0, 1], [9] * 3, 3), ValueError, r"lengths must match: got prefilled \(2"),
    (prefill_progress, ("0", 9, 3), TypeError, "prefilled must be a real number"),
    (chunk_left, (0, 3), ValueError, "max_num_batched_tokens must be >= 1: got 0"),
    (chunk_left, (8, -1), ValueError, "decode_seqs must be >= 0: got -1"),
    (chunk_left, (8, np.inf), ValueError, "decode_seqs must be finite"),
    (chunk_left, ([8, 8], [1] * 3), ValueError, "lengths must match"),
    (chunk_left, (True, 1), TypeError, "max_num_batched_tokens must be a real number"),
    (chunk_count, (0, 8), ValueError, "input_tokens must be >= 1: got 0"),
    (chunk_count, (8, 0), ValueError, "chunk must be >= 1: got 0"),
    (chunk_count, ([8, 2.5], 8), ValueError, "input_tokens .* whole number: got 2.5 at index 1"),
    (chunk_count, (8, np.nan), ValueError, "chunk must be finite"),
    (chunk_count, ([8, 8], [1] * 3), ValueError, "lengths must match"),
    (chunk_count, (None, 8), TypeError, "input_tokens must be a real number"),
    (kv_read_again, (8, 0), ValueError, "chunk must be >= 1: got 0"),
    (kv_read_again, (-8, 4), ValueError, "input_tokens must be >= 1: got -8"),
]


@pytest.mark.parametrize(("function", "arguments", "error", "message"), REFUSED)
def test_refusals(
    function: Callable[..., Any], arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(*arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_tokens": 0}, "input_tokens must be >= 1: got 0"),
        ({"input_tokens": np.nan}, "input_tokens must be finite"),
        ({"chunk": 0}, "chunk must be >= 1: got 0"),
        ({"chunk": 1.5}, "chunk must be a whole number: got 1.5"),
        ({"decode_seqs": -1}, "decode_seqs must be >= 0: got -1"),
        ({"decode_seqs": 5}, "decode_context must be >= decode_seqs: got 4"),
        ({"decode_context": 1}, "decode_context must be >= decode_seqs: got 1"),
        ({"decode_context": np.inf}, "decode_context must be finite"),
        ({"input_tokens": [1, 2], "chunk": [1] * 3}, "lengths must match"),
    ],
)
def test_chunked_prefill_refuses(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "input_tokens": 9,
        "chunk": 4,
        "step_time": ONE_LINE,
        "decode_seqs": 2,
        "decode_context": 4,
    }
    chunked_prefill(**good)
    with pytest.raises(ValueError, match=message):
        chunked_prefill(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be >= 1: got 0"),
        ({"decode_seqs": 9}, "decode_seqs must be <= max_num_batched_tokens: got 9"),
        ({"decode_seqs": -1}, "decode_seqs must be >= 0: got -1"),
        ({"context_tokens": -1}, "context_tokens must be >= 0: got -1"),
        ({"context_tokens": 1}, "context_tokens must be >= decode_seqs: got 1"),
        ({"longest_prompt": 0}, "longest_prompt must be >= 1: got 0"),
        ({"longest_prompt": np.nan}, "longest_prompt must be finite"),
        ({"context_tokens": [1, 2], "decode_seqs": [1] * 3}, "lengths must match"),
    ],
)
def test_gap_bound_refuses(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "max_num_batched_tokens": 8,
        "step_time": ONE_LINE,
        "decode_seqs": 2,
        "context_tokens": 40,
        "longest_prompt": 30,
    }
    gap_bound(**good)
    with pytest.raises(ValueError, match=message):
        gap_bound(**{**good, **change})
