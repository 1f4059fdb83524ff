"""The schedulers, against counts by hand, a plain rewriting of their rules, and real records.

The seed's scheduler also meets a queue with c servers, the real rule 39 records of vLLM.
"""

import heapq
import random
from collections import Counter
from math import ceil

import numpy as np
import pytest
from engine_cases import cases, until
from hypothesis import given
from hypothesis import strategies as st
from plain_engine import Job, plain_step

from lib.engine_runs import SHIPPED_RECORDS, load_scheduler_record
from lib.scheduling import (
    ContinuousBatchScheduler,
    DecodeFirstScheduler,
    DoorScheduler,
    PrefillFirstScheduler,
    QueueBackScheduler,
    Request,
    Step,
    TokenBudgetScheduler,
    replay,
)

# Requests as (gap to the one before, input tokens, output tokens); small numbers collide often.
workloads = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 12), st.integers(1, 6)), min_size=1, max_size=14
)
fractional = st.lists(
    st.tuples(st.integers(0, 60).map(lambda n: n / 4), st.integers(1, 12), st.integers(1, 6)),
    min_size=1,
    max_size=14,
)
batch_sizes = st.integers(1, 5)
chunks = st.integers(1, 5)


def stamps(request):
    return (
        request.arrived,
        request.scheduled,
        request.prefill_end,
        request.first_token,
        request.last_token,
    )


def drive(workload, max_batch_size, chunk):
    """Submit by hand, step by step: the scheduler, its requests and what each step served."""
    scheduler = ContinuousBatchScheduler(max_batch_size, chunk)
    requests = [Request(i, n_in, n_out) for i, (_, n_in, n_out) in enumerate(workload)]
    times = np.cumsum([gap for gap, _, _ in workload]).tolist()
    steps = []
    for _ in until(lambda: all(request.finished for request in requests)):
        for request, time in zip(requests, times, strict=True):
            if time == scheduler.time_step:
                scheduler.submit(request)
        steps.append(scheduler.step())
    return scheduler, requests, steps


def served(step):
    """Who decodes, and who prefills how much."""
    return step.decoded, step.prefilled


def seed_rule(workload, max_batch_size, chunk):
    """The seed's rule, read literally: rescan every request in every step."""
    times = np.cumsum([gap for gap, _, _ in workload]).tolist()
    prefilled, decoded = Counter(), Counter()
    served = []
    while any(decoded[i] < n_out for i, (_, _, n_out) in enumerate(workload)):
        active = [
            i
            for i, (_, _, n_out) in enumerate(workload)
            if times[i] <= len(served) and decoded[i] < n_out
        ]
        decode = [i for i in active if prefilled[i] >= workload[i][1]][:max_batch_size]
        prefill = [i for i in active if prefilled[i] < workload[i][1]]
        prefill = prefill[: max_batch_size - len(decode)]
        tokens = {}
        for i in prefill:
            after = min(workload[i][1], prefilled[i] + chunk)
            tokens[i], prefilled[i] = after - prefilled[i], after
        decoded.update(decode)
        served.append((decode, tokens))
    return served


# --- one request ---------------------------------------------------------------------------


def test_request_passes_through_its_stages_and_stamps_each():
    request = Request("a", input_tokens=5, output_tokens=2)
    assert request.stage() == "prefill"
    assert stamps(request) == (None,) * 5
    scheduler = ContinuousBatchScheduler(max_batch_size=8, prefill_chunk=4)
    scheduler.step()  # the clock runs while nobody is there
    scheduler.submit(request)
    assert stamps(request) == (1, None, None, None, None)

    seen = []
    for _ in range(4):
        scheduler.step()
        progress = (request.prefilled, request.decoded, request.stage(), request.finished)
        seen.append((progress, stamps(request)))
    assert seen == [
        ((4, 0, "prefill", False), (1, 1, None, None, None)),
        ((5, 0, "decode", False), (1, 1, 3, None, None)),
        ((5, 1, "decode", False), (1, 1, 3, 4, None)),
        ((5, 2, "done", True), (1, 1, 3, 4, 5)),
    ]


def test_stage_reads_the_progress_of_the_request():
    request = Request(1, 10, 5)
    request.prefilled = 9
    assert request.stage() == "prefill"
    request.prefilled = 10
    assert request.stage() == "decode"
    request.finished = True
    assert request.stage() == "done"


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [0, -1])
def test_request_refuses_a_count_below_one(name, value):
    with pytest.raises(ValueError, match=f"{name} must be >= 1: got {value}"):
        Request("a", **{"input_tokens": 1, "output_tokens": 1, name: value})


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
@pytest.mark.parametrize(
    "value", [2.0, float("nan"), True, "3", None, np.float64(2), np.True_, [2]]
)
def test_request_refuses_a_count_that_is_no_integer(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer: got"):
        Request("a", **{"input_tokens": 1, "output_tokens": 1, name: value})


def test_request_takes_numpy_integers_and_a_hashable_label():
    request = Request(("run", 1), np.int64(3), np.uint8(2))
    assert type(request.input_tokens) is int
    with pytest.raises(TypeError, match=r"req_id must be hashable: got \['a'\]"):
        Request(["a"], 1, 1)


# --- the rule ------------------------------------------------------------------------------


def test_steps_counted_by_hand():
    scheduler = ContinuousBatchScheduler(max_batch_size=2, prefill_chunk=4)
    a, b, c = Request("a", 6, 2), Request("b", 3, 3), Request("c", 4, 1)
    for request in (a, b, c):
        scheduler.submit(request)
    steps = [scheduler.step() for _ in range(6)]
    ab, c_only = ["a", "b"], ["c"]
    assert steps == [  # two slots: c waits
        Step(0, {"a": 4, "b": 3}, [], [], ab, c_only, None, []),
        Step(1, {"b": 1, "a": 2}, ["b"], [], ab, c_only, None, []),  # decode first
        Step(2, {"a": 1, "b": 1}, ab, [], ab, c_only, None, []),
        Step(3, {"a": 1, "b": 1}, ab, [], ab, c_only, None, ab),
        Step(4, {"c": 4}, [], [], c_only, [], None, []),  # both are done, c is served at last
        Step(5, {"c": 1}, c_only, [], c_only, [], None, c_only),
    ]
    assert [list(step.scheduled) for step in steps[:2]] == [["a", "b"], ["b", "a"]]
    assert [step.prefilled for step in steps[:3]] == [{"a": 4, "b": 3}, {"a": 2}, {}]
    assert [step.batch_size for step in steps] == [2, 2, 2, 2, 1, 1]
    assert scheduler.batch_history == [2, 2, 2, 2, 1, 1]
    assert scheduler.time_step == 6
    assert [stamps(request) for request in (a, b, c)] == [
        (0, 0, 2, 3, 4),
        (0, 0, 1, 2, 4),
        (0, 4, 5, 6, 6),
    ]


def test_the_batch_fills_to_its_limit_and_no_further():
    scheduler = ContinuousBatchScheduler(max_batch_size=3, prefill_chunk=10)
    for i in range(10):
        scheduler.submit(Request(i, 10, 2))
    assert served(scheduler.step()) == ([], {0: 10, 1: 10, 2: 10})
    assert served(scheduler.step()) == ([0, 1, 2], {})
    assert scheduler.run_until_done() == 10
    assert scheduler.batch_history == [3] * 9 + [1] * 3


def test_defaults_are_the_seeds():
    scheduler = ContinuousBatchScheduler()
    for i in range(9):
        scheduler.submit(Request(i, 200, 1))
    assert scheduler.step().prefilled == dict.fromkeys(range(8), 128)


def test_a_later_request_may_take_a_slot_that_decodes_leave():
    scheduler = ContinuousBatchScheduler(max_batch_size=2, prefill_chunk=1)
    for request in (Request("long", 5, 1), Request("short", 1, 1), Request("next", 2, 1)):
        scheduler.submit(request)
    assert [served(scheduler.step()) for _ in range(4)] == [
        ([], {"long": 1, "short": 1}),
        (["short"], {"long": 1}),
        ([], {"long": 1, "next": 1}),
        ([], {"long": 1, "next": 1}),
    ]


@given(workloads, batch_sizes, chunks)
def test_every_step_serves_what_the_seeds_rule_serves(workload, limit, chunk):
    _, _, steps = drive(workload, limit, chunk)
    assert [served(step) for step in steps] == seed_rule(workload, limit, chunk)


@given(workloads, batch_sizes, chunks)
def test_nothing_is_lost_served_twice_or_served_beyond_the_limit(workload, limit, chunk):
    scheduler, requests, steps = drive(workload, limit, chunk)
    decoded, prefilled = Counter(), Counter()
    for step in steps:
        assert len(step.decoded) + len(step.prefilled) == step.batch_size
        assert len(step.running) <= limit  # no slot is promised twice
        assert (step.preempted, step.free_blocks) == ([], None)
        assert len(set(step.decoded) | set(step.prefilled)) == step.batch_size
        for i in step.decoded:
            assert prefilled[i] == requests[i].input_tokens  # in an earlier step
        assert all(0 < tokens <= chunk for tokens in step.prefilled.values())
        decoded.update(step.decoded)
        prefilled.update(step.prefilled)
    assert decoded == {i: n_out for i, (_, _, n_out) in enumerate(workload)}
    assert prefilled == {i: n_in for i, (_, n_in, _) in enumerate(workload)}
    assert scheduler.batch_history == [step.batch_size for step in steps]
    assert scheduler.time_step == len(steps)
    assert scheduler.unfinished == 0


@given(workloads, batch_sizes, chunks)
def test_slots_are_left_empty_only_when_nobody_waits(workload, limit, chunk):
    _, requests, steps = drive(workload, limit, chunk)
    for step in steps:
        here = [r for r in requests if r.arrived <= step.start < r.last_token]
        assert step.batch_size == min(limit, len(here))


@given(workloads, batch_sizes, chunks)
def test_stamps_are_the_steps_that_served(workload, limit, chunk):
    _, requests, steps = drive(workload, limit, chunk)
    times = np.cumsum([gap for gap, _, _ in workload]).tolist()
    for request, time in zip(requests, times, strict=True):
        prefill = [step.start for step in steps if request.req_id in step.prefilled]
        decode = [step.start for step in steps if request.req_id in step.decoded]
        assert stamps(request) == (time, prefill[0], prefill[-1] + 1, decode[0] + 1, decode[-1] + 1)


@given(workloads, batch_sizes, chunks)
def test_once_served_a_request_is_served_in_every_step(workload, limit, chunk):
    _, requests, steps = drive(workload, limit, chunk)
    for step in steps:
        running = [r.req_id for r in requests if r.scheduled <= step.start < r.last_token]
        assert sorted([*step.decoded, *step.prefilled]) == step.running == running
        assert step.waiting == [r.req_id for r in requests if r.arrived <= step.start < r.scheduled]
        assert step.finished == [
            i for i in step.decoded if requests[i].last_token == step.start + 1
        ]


@given(workloads, batch_sizes, chunks)
def test_it_is_a_first_come_queue_with_a_server_for_each_slot(workload, limit, chunk):
    """Each slot is a server that a request holds for ceil(N_in / C) + N_out steps."""
    _, requests, _ = drive(workload, limit, chunk)
    free_at = [0] * limit
    for request in requests:
        start = max(request.arrived, heapq.heappop(free_at))
        end = start + ceil(request.input_tokens / chunk) + request.output_tokens
        heapq.heappush(free_at, end)
        assert (request.scheduled, request.last_token) == (start, end)


# --- submit, idle, run ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_batch_size", "prefill_chunk"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "must be >= 1: got 0"),
        (-4, ValueError, "must be >= 1: got -4"),
        (8.0, TypeError, "must be an integer: got 8.0"),
        (True, TypeError, "must be an integer: got True"),
        (None, TypeError, "must be an integer: got None"),
    ],
)
def test_scheduler_refuses_a_bad_size(name, value, error, message):
    with pytest.raises(error, match=f"{name} {message}"):
        ContinuousBatchScheduler(**{name: value})


def test_submit_refuses_a_live_label_and_takes_it_again_later():
    scheduler = ContinuousBatchScheduler(max_batch_size=1)
    scheduler.submit(Request("a", 1, 1))
    with pytest.raises(ValueError, match="req_id must be unique among live requests: got 'a'"):
        scheduler.submit(Request("a", 1, 1))  # while it waits
    scheduler.step()
    with pytest.raises(ValueError, match="req_id must be unique among live requests: got 'a'"):
        scheduler.submit(Request("a", 1, 1))  # while it runs
    assert scheduler.run_until_done() == 1
    again = Request("a", 1, 1)
    scheduler.submit(again)
    assert scheduler.run_until_done() == 2
    assert stamps(again) == (2, 2, 3, 4, 4)


def test_submit_refuses_a_used_request():
    request = Request("a", 1, 1)
    ContinuousBatchScheduler().submit(request)
    with pytest.raises(ValueError, match=r"request must be new: got Request\(req_id='a'"):
        ContinuousBatchScheduler().submit(request)
    for name in ("prefilled", "decoded", "finished"):
        request = Request("a", 1, 1)
        setattr(request, name, 1)
        with pytest.raises(ValueError, match="request must be new"):
            ContinuousBatchScheduler().submit(request)


def test_submit_refuses_what_is_no_request():
    with pytest.raises(TypeError, match="request must be a Request: got 'a'"):
        ContinuousBatchScheduler().submit("a")


def test_an_empty_step_lets_time_pass():
    scheduler = ContinuousBatchScheduler()
    assert scheduler.step() == Step(0, {}, [], [], [], [], None, [])
    assert (scheduler.time_step, scheduler.batch_history) == (1, [0])


def test_idle_until_jumps_over_empty_time_only():
    scheduler = ContinuousBatchScheduler()
    scheduler.idle_until(5)
    scheduler.idle_until(5)
    assert (scheduler.time_step, scheduler.batch_history) == (5, [])
    with pytest.raises(ValueError, match="time_step must be >= 5: got 4"):
        scheduler.idle_until(4)
    with pytest.raises(TypeError, match=r"time_step must be an integer: got 5\.5"):
        scheduler.idle_until(5.5)
    scheduler.submit(Request("a", 1, 1))
    with pytest.raises(RuntimeError, match="idle_until needs an empty system: 1 unfinished"):
        scheduler.idle_until(9)


def test_run_until_done_counts_its_own_steps():
    scheduler = ContinuousBatchScheduler(max_batch_size=1, prefill_chunk=2)
    assert scheduler.run_until_done(0) == 0
    scheduler.submit(Request("a", 3, 2))
    scheduler.step()
    assert scheduler.run_until_done(3) == 3
    assert scheduler.run_until_done(3) == 0


def test_run_until_done_says_when_the_steps_do_not_suffice():
    scheduler = ContinuousBatchScheduler(max_batch_size=1, prefill_chunk=2)
    scheduler.submit(Request("a", 3, 2))
    scheduler.submit(Request("b", 1, 1))
    with pytest.raises(
        RuntimeError, match="max_steps must suffice to finish every request: got 5, 1 unfinished"
    ):
        scheduler.run_until_done(5)
    assert scheduler.time_step == 5
    assert scheduler.run_until_done(1) == 1


@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_run_until_done_refuses_a_bad_limit(value, error):
    with pytest.raises(error, match="max_steps must be"):
        ContinuousBatchScheduler().run_until_done(value)


# --- the real rule: records of vLLM ----------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_RECORDS)
def test_every_decision_of_the_real_scheduler_is_repeated(name):
    record = load_scheduler_record(name)
    scheduler = TokenBudgetScheduler(**record["limits"])
    requests = {row[0]: Request(row[0], *row[2:]) for row in record["workload"]}
    preemptions = 0
    for now, real in enumerate(record["steps"]):
        for label, arrival, *_ in record["workload"]:
            if arrival == now:
                scheduler.submit(requests[label])
        step = scheduler.step()
        if real.get("idle"):  # the engine was not called
            assert (step.scheduled, step.running, step.waiting) == ({}, [], [])
            continue
        assert list(step.scheduled.items()) == list(real["scheduled"].items())
        for field in ("preempted", "running", "waiting", "free_blocks"):
            assert getattr(step, field) == real[field]
        assert step.finished == real.get("finished", step.finished)
        for label, computed in real.get("computed_tokens", {}).items():
            request = requests[label]
            assert request.prefilled == min(computed, request.input_tokens)
            assert request.decoded == real["output_tokens"][label]
        preemptions += len(step.preempted)
    assert scheduler.unfinished == 0
    assert preemptions == record.get("n_preemptions", record.get("preemptions"))
    if "finish_step" in record:
        ends = {label: request.last_token - 1 for label, request in requests.items()}
        assert ends == record["finish_step"]


# --- the real rule: by hand ------------------------------------------------------------------

SMALL = {
    "max_num_batched_tokens": 8,
    "max_num_seqs": 4,
    "num_kv_blocks": 100,
    "block_size": 2,
    "max_model_len": 64,
}


def engine(*lengths, policy=TokenBudgetScheduler, **limits):
    """A scheduler that holds requests a, b, ... of these (input, output) tokens."""
    scheduler = policy(**(SMALL | limits))
    for label, (prompt, answer) in zip("abcdefgh", lengths, strict=False):
        scheduler.submit(Request(label, prompt, answer))
    return scheduler


def test_budget_steps_counted_by_hand():
    scheduler = engine((5, 2), (6, 1), (1, 1), max_num_seqs=2)
    assert scheduler.step() == Step(0, {"a": 5, "b": 3}, [], [], ["a", "b"], ["c"], 95, [])
    # b has three tokens to go and the budget seven; c waits for a seat.
    second = Step(1, {"a": 1, "b": 3}, ["a"], [], ["a", "b"], ["c"], 94, ["a", "b"])
    assert scheduler.step() == second
    assert scheduler.step() == Step(2, {"c": 1}, [], [], ["c"], [], 99, ["c"])
    assert scheduler.step() == Step(3, {}, [], [], [], [], 100, [])
    assert second.prefilled == {"b": 3}


def test_budget_request_passes_through_its_stages_and_stamps_each():
    scheduler = engine()
    scheduler.step()  # the clock runs while nobody is there
    request = Request("a", 10, 3)
    scheduler.submit(request)
    seen = []
    for _ in range(4):
        scheduler.step()
        progress = (request.prefilled, request.decoded, request.stage(), request.finished)
        seen.append((progress, stamps(request)))
    assert seen == [
        ((8, 0, "prefill", False), (1, 1, None, None, None)),
        ((10, 1, "decode", False), (1, 1, 3, 3, None)),  # the step that ends the prompt emits
        ((10, 2, "decode", False), (1, 1, 3, 3, None)),
        ((10, 3, "done", True), (1, 1, 3, 3, 5)),
    ]


@pytest.mark.parametrize(
    ("policy", "second"),
    [
        (TokenBudgetScheduler, [("a", 3), ("b", 1), ("c", 2)]),
        (DecodeFirstScheduler, [("b", 1), ("a", 3), ("c", 2)]),
    ],
)
def test_admission_order_goes_before_decodes_or_not(policy, second):
    limits = {"long_prefill_token_threshold": 3, "max_num_batched_tokens": 6}
    scheduler = engine((9, 1), (1, 9), (9, 1), policy=policy, **limits)
    assert list(scheduler.step().scheduled.items()) == [("a", 3), ("b", 1), ("c", 2)]
    assert list(scheduler.step().scheduled.items()) == second


def test_the_threshold_exempts_a_request_that_is_alone():
    scheduler = engine((12, 2), long_prefill_token_threshold=3)
    assert scheduler.step().scheduled == {"a": 8}
    scheduler.submit(Request("b", 6, 1))
    assert scheduler.step().scheduled == {"a": 3, "b": 3}
    assert scheduler.step().scheduled == {"a": 1, "b": 3}
    scheduler = engine((12, 1), (12, 1), long_prefill_token_threshold=3, max_num_seqs=1)
    assert scheduler.step().scheduled == {"a": 3}  # the one that waits counts too


def test_seats_and_budget_stop_admissions_in_order():
    scheduler = engine((3, 1), (6, 1), (1, 1), max_num_seqs=3)
    assert scheduler.step().scheduled == {"a": 3, "b": 5}  # no budget left for c
    assert scheduler.step().scheduled == {"b": 1, "c": 1}
    scheduler = engine(*[(1, 3)] * 4, max_num_seqs=3)
    assert scheduler.step().running == ["a", "b", "c"]


def test_without_chunks_a_prompt_waits_for_a_budget_that_holds_it():
    whole = {"enable_chunked_prefill": False, "max_model_len": 8}
    scheduler = engine((5, 2), (4, 1), (1, 1), **whole)
    assert scheduler.step().scheduled == {"a": 5}  # 3 left for 4 tokens, and c does not overtake
    assert scheduler.step().scheduled == {"a": 1, "b": 4, "c": 1}
    assert engine((5, 2), (3, 1), **whole).step().scheduled == {"a": 5, "b": 3}  # just enough


@pytest.mark.parametrize(
    ("blocks", "watermark", "prompt", "admitted"),
    [
        (9, 0.1, 4, True),  # int(0.1 x 10) = 1 stays free of the 5 that a leaves
        (9, 0.1, 5, False),
        (8, 0.1, 4, True),  # int(0.1 x 9) = 0
        (9, 0.0, 5, True),
        (9, 0.19, 4, True),  # cut, not rounded
        (99, 0.29, 67, True),  # 0.29 x 100 is just below 29, and is cut to 28
        (99, 0.29, 68, False),
    ],
)
@pytest.mark.parametrize("reserve", [True, False])
def test_watermark_blocks_stay_free(blocks, watermark, prompt, admitted, reserve):
    sizes = {"num_kv_blocks": blocks, "block_size": 1, "max_num_batched_tokens": 200}
    limits = sizes | {"max_model_len": 80, "scheduler_reserve_full_isl": reserve}
    step = engine((4, 2), (prompt, 1), watermark=watermark, **limits).step()
    assert step.running == ["a", "b"][: 1 + admitted]


def test_watermark_binds_only_beside_others():
    scheduler = engine((4, 1), (1, 1), num_kv_blocks=2, watermark=1.0)
    assert scheduler.step().running == ["a"]
    assert scheduler.step().running == ["b"]


def test_reservation_holds_a_prompt_back_until_all_of_it_fits():
    scarce = {"num_kv_blocks": 6, "max_num_batched_tokens": 4}
    held = engine((4, 4), (8, 1), **scarce)
    free = engine((4, 4), (8, 1), scheduler_reserve_full_isl=False, **scarce)
    for scheduler in (held, free):
        assert scheduler.step().free_blocks == 4  # 2 held: 4 left, just what b needs
    # a takes a block for its next token first, and then 3 are left.
    assert held.step() == Step(1, {"a": 1}, ["a"], [], ["a"], ["b"], 3, [])
    assert free.step() == Step(1, {"a": 1, "b": 3}, ["a"], [], ["a", "b"], [], 1, [])
    assert engine((4, 1), (8, 1), num_kv_blocks=6).step().running == ["a", "b"]  # just enough


def test_preemption_takes_the_last_and_starts_it_again():
    """Four blocks of two tokens. Both hold two; a needs a third, so b goes."""
    scheduler = engine((3, 3), (3, 3), (1, 1), num_kv_blocks=4, max_num_seqs=2)
    steps = [scheduler.step() for _ in range(6)]
    ab, bc = ["a", "b"], ["b", "c"]
    assert steps == [
        Step(0, {"a": 3, "b": 3}, [], [], ab, ["c"], 0, []),
        Step(1, {"a": 1, "b": 1}, ab, [], ab, ["c"], 0, []),
        # b goes to the front of the queue; one block is free, and nobody is let in.
        Step(2, {"a": 1}, ["a"], ["b"], ["a"], bc, 1, ["a"]),
        # Prompt and answer so far are computed again: 3 + 2 tokens.
        Step(3, {"b": 5, "c": 1}, [], [], bc, [], 0, bc),
        Step(4, {}, [], [], [], [], 4, []),
        Step(5, {}, [], [], [], [], 4, []),
    ]


def test_a_preempted_request_keeps_its_answer_and_its_stamps():
    scheduler = engine(num_kv_blocks=4)
    a, b = Request("a", 3, 3), Request("b", 3, 3)
    scheduler.submit(a)
    scheduler.submit(b)
    for _ in range(3):
        scheduler.step()
    assert (b.prefilled, b.decoded, b.stage()) == (0, 2, "prefill")
    assert stamps(b) == (0, 0, 1, 1, None)
    scheduler.step()
    assert (b.prefilled, b.decoded, b.stage()) == (3, 3, "done")
    assert stamps(b) == (0, 0, 1, 1, 4)


def test_the_last_running_request_may_throw_itself_out():
    scheduler = engine((2, 4), (4, 3), num_kv_blocks=4)
    steps = [scheduler.step() for _ in range(3)]
    assert steps[0].scheduled == {"a": 2, "b": 4}
    # a takes the last free block; b needs one too and is the last itself.
    assert steps[1] == Step(1, {"a": 1}, ["a"], ["b"], ["a"], ["b"], 2, [])
    assert steps[2].scheduled == {"a": 1}


def test_one_preemption_blocks_every_admission_of_the_step():
    lengths = (3, 3), (3, 3), (1, 1)
    scheduler = engine(*lengths, policy=QueueBackScheduler, num_kv_blocks=4, max_num_seqs=2)
    steps = [scheduler.step() for _ in range(4)]
    # c is first now, a seat and a block are free, and still it is not let in.
    assert steps[2] == Step(2, {"a": 1}, ["a"], ["b"], ["a"], ["c", "b"], 1, ["a"])
    assert list(steps[3].scheduled.items()) == [("c", 1), ("b", 5)]


def test_prefill_first_lets_decodes_stand_still():
    whole = {"policy": PrefillFirstScheduler, "max_model_len": 8}
    scheduler = engine((5, 3), (4, 2), (1, 1), **whole)
    assert [scheduler.step().scheduled for _ in range(4)] == [
        {"a": 5},
        {"b": 4, "c": 1},  # a decodes nothing
        {"a": 1, "b": 1},
        {"a": 1},
    ]


def test_an_answer_is_cut_at_the_longest_length():
    scheduler = engine(max_model_len=8)
    cut, fits = Request("cut", 5, 10), Request("fits", 5, 3)
    for request in (cut, fits):
        scheduler.submit(request)
    scheduler.run_until_done(max_steps=10)
    assert (cut.decoded, cut.finished, cut.last_token) == (3, True, 3)
    assert fits.decoded == 3


# --- the real rule: any workload -------------------------------------------------------------


class Plain:
    """`plain_step`, driven in steps, with what a Request should show afterwards."""

    def __init__(self, case):
        self.case, self.now = case, 0
        self.running, self.waiting, self.jobs = [], [], {}
        self.seen = {}

    def submit(self, i):
        self.jobs[i] = Job(i, self.case.prompts[i], self.case.answers[i])
        self.waiting.append(self.jobs[i])
        self.seen[i] = [self.now, None, None, None, None]

    def step(self):
        granted, preempted, started, free = plain_step(
            self.running, self.waiting, self.case.limits, self.case.policy
        )
        step = Step(
            self.now,
            {job.id: tokens for job, tokens in granted},
            [job.id for job, _ in granted if job.decoding],
            [job.id for job in preempted],
            [job.id for job in self.running],
            [job.id for job in self.waiting],
            free,
            finished := [],
        )
        for job in started:
            if self.seen[job.id][1] is None:
                self.seen[job.id][1] = self.now
        self.now += 1
        for job, tokens in granted:
            job.computed += tokens
            if job.computed == job.known:
                job.emitted += 1
                job.decoding = True
                if job.emitted == 1:
                    self.seen[job.id][2:4] = [self.now] * 2
                if job.emitted == job.answer or job.known == self.case.limits["max_model_len"]:
                    self.seen[job.id][4] = self.now
                    self.running.remove(job)
                    finished.append(job.id)
        return step

    def shows(self, i):
        job = self.jobs[i]
        return min(job.computed, job.prompt), job.emitted, tuple(self.seen[i])


def over(case, *schedulers):
    """Whether every request of `case` has come, and left."""
    come = schedulers[0].time_step > max(case.arrival)
    return come and not any(scheduler.unfinished for scheduler in schedulers)


def submit_due(case, requests, *schedulers, now):
    for i, arrival in enumerate(case.arrival):
        if arrival == now:
            for scheduler in schedulers:
                scheduler.submit(requests[i] if isinstance(scheduler, TokenBudgetScheduler) else i)


@given(cases())
def test_every_step_is_the_plain_rules_step(case):
    scheduler, plain = case.scheduler(), Plain(case)
    requests = [Request(i, *n) for i, n in enumerate(zip(case.prompts, case.answers, strict=True))]
    for _ in until(lambda: over(case, scheduler)):
        submit_due(case, requests, scheduler, plain, now=scheduler.time_step)
        step, expected = scheduler.step(), plain.step()
        assert list(step.scheduled.items()) == list(expected.scheduled.items())
        assert step == expected
        for i in plain.jobs:
            request = requests[i]
            assert (request.prefilled, request.decoded, stamps(request)) == plain.shows(i)
            assert request.finished == (i in step.finished or request.last_token is not None)
    assert not plain.running
    assert not plain.waiting


@given(cases(), st.booleans())
def test_requests_and_tokens_are_conserved(case, ample):
    """Each request emits its answer once; tokens are computed twice only after a preemption."""
    if ample:
        case.limits["num_kv_blocks"] += 12 * case.limits["max_model_len"]
    scheduler = case.scheduler()
    requests = [Request(i, *n) for i, n in enumerate(zip(case.prompts, case.answers, strict=True))]
    scheduled, ended, thrown = Counter(), Counter(), Counter()
    for _ in until(lambda: over(case, scheduler)):
        submit_due(case, requests, scheduler, now=scheduler.time_step)
        step = scheduler.step()
        scheduled.update(step.scheduled)
        ended.update(step.finished)
        thrown.update(step.preempted)
        assert sum(step.scheduled.values()) <= case.limits["max_num_batched_tokens"]
        assert len(step.running) <= case.limits["max_num_seqs"]
        assert 0 <= step.free_blocks <= case.limits["num_kv_blocks"]
        assert not set(step.running) & set(step.waiting)
    assert ended == Counter(range(len(requests)))
    assert [request.decoded for request in requests] == case.emitted()
    assert not (ample and thrown)
    for request in requests:
        needed = request.input_tokens + request.decoded - 1
        if thrown[request.req_id]:
            assert scheduled[request.req_id] > needed
        else:
            assert scheduled[request.req_id] == needed


@given(cases())
def test_nobody_who_runs_is_passed_over(case):
    """All running requests get what they lack, up to the threshold; only the last may get less.

    At the admission of the last there was budget left behind all others, and what they claim never
    grows. So decodes never wait for prefills, though nobody puts them first. Scarce memory changes
    who runs, and nothing of this.
    """
    if case.policy == "prefill first":
        return
    scheduler = case.scheduler()
    requests = [Request(i, *n) for i, n in enumerate(zip(case.prompts, case.answers, strict=True))]
    threshold = case.limits["long_prefill_token_threshold"] or 1000
    known, computed = Counter(dict(enumerate(case.prompts))), Counter()
    for _ in until(lambda: over(case, scheduler)):
        submit_due(case, requests, scheduler, now=scheduler.time_step)
        alone = scheduler.unfinished == 1
        step = scheduler.step()
        assert sorted(step.scheduled) == sorted(step.running)
        computed.update({i: -computed[i] for i in step.preempted})
        for i in step.running[:-1]:
            assert step.scheduled[i] == min(known[i] - computed[i], threshold)
        for i in step.running[-1:]:
            most = known[i] - computed[i] if alone else min(known[i] - computed[i], threshold)
            assert 1 <= step.scheduled[i] <= most
        computed.update(step.scheduled)
        known.update(i for i in step.scheduled if computed[i] == known[i])


def run_both(case):
    """Steps of the real rule and of decodes first, on the same requests."""
    ours, theirs = TokenBudgetScheduler(**case.limits), DecodeFirstScheduler(**case.limits)
    sizes = list(zip(case.prompts, case.answers, strict=True))
    both = [[Request(i, *n) for i, n in enumerate(sizes)] for _ in range(2)]
    for _ in until(lambda: over(case, ours, theirs)):
        submit_due(case, both[0], ours, now=ours.time_step)
        submit_due(case, both[1], theirs, now=theirs.time_step)
        yield ours.step(), theirs.step()


@given(cases(ample=True))
def test_decodes_first_is_another_order_and_no_other_tokens(case):
    if case.policy == "prefill first":
        return
    for real, textbook in run_both(case):
        assert real == textbook or sorted(real.decoded) == sorted(textbook.decoded)
        assert real.scheduled == textbook.scheduled
        assert (real.running, real.finished) == (textbook.running, textbook.finished)


@given(cases())
def test_without_a_threshold_decodes_first_is_the_real_rule(case):
    if case.policy == "prefill first":
        return
    case.limits["long_prefill_token_threshold"] = 0
    for real, textbook in run_both(case):
        assert list(real.scheduled.items()) == list(textbook.scheduled.items())
        assert real == textbook


def seed_twins(draw):
    n = draw(st.integers(1, 8))
    sizes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20)), min_size=n, max_size=n)
    arrival = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    limits = draw(batch_sizes), draw(chunks)
    return arrival, draw(sizes), lambda: ContinuousBatchScheduler(*limits)


def budget_twins(draw):
    case = draw(cases())
    return case.arrival, list(zip(case.prompts, case.answers, strict=True)), case.scheduler


def costs(work):
    return {
        name: getattr(work, name)
        for name in ("prefill_tokens", "decode_seqs", "seqs", "context_tokens", "pairs")
    }


@pytest.mark.parametrize("twins", [seed_twins, budget_twins])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_step_work_and_repeat_mix(twins, data, seed):
    """A scheduler driven by any mix of the three is where one that only steps is."""
    arrival, sizes, make = twins(data.draw)
    pick = random.Random(seed)  # a draw for each step would be more than hypothesis can take
    mixed, stepped = make(), make()
    ours, theirs = ([Request(i, *n) for i, n in enumerate(sizes)] for _ in range(2))
    coming = sorted(range(len(sizes)), key=lambda i: arrival[i])
    for _ in until(lambda: not coming and not stepped.unfinished):
        while coming and arrival[coming[0]] <= stepped.time_step:
            i = coming.pop(0)
            mixed.submit(ours[i])
            stepped.submit(theirs[i])
        left = arrival[coming[0]] - stepped.time_step if coming else 1000
        run = mixed.run()
        how = pick.choice(["step", "work", "repeat"])
        if how == "step":
            step = mixed.step()
            assert step == stepped.step()
            for a, b in zip(ours, theirs, strict=True):
                progress = (a.prefilled, a.decoded, a.finished)
                assert progress == (b.prefilled, b.decoded, b.finished)
        elif how == "work" or not run.steps:
            work, step = mixed.work(), stepped.step()
            assert (work.finished, work.preempted) == (step.finished, step.preempted)
            assert (work.decode_seqs, work.seqs) == (len(step.decoded), step.batch_size)
            assert work.prefill_tokens == sum(step.prefilled.values())
            assert (work.running, work.waiting) == (len(step.running), len(step.waiting))
            for name, stamp, now in (
                ("started", "scheduled", step.start),
                ("prefilled", "prefill_end", stepped.time_step),
                ("first", "first_token", stepped.time_step),
            ):
                assert sorted(getattr(work, name)) == [
                    request.req_id for request in theirs if getattr(request, stamp) == now
                ]
        else:
            steps = pick.randint(1, min(run.steps, left))
            finished = mixed.repeat(run, steps)
            context = run.decode_context + run.prefilled
            for k in range(1, steps + 1):
                work = stepped.work()
                context += run.decode_seqs + run.chunk
                assert not any((work.started, work.preempted, work.prefilled, work.first))
                assert costs(work) | {"pairs": 0} == {
                    "prefill_tokens": run.chunk,
                    "decode_seqs": run.decode_seqs,
                    "seqs": run.decode_seqs + (run.chunk > 0),
                    "context_tokens": context,
                    "pairs": 0,
                }
                assert work.finished == (finished if k == steps else [])
        assert (mixed.time_step, mixed.unfinished) == (stepped.time_step, stepped.unfinished)
    assert [stamps(a) for a in ours] == [stamps(b) for b in theirs]
    assert [a.decoded for a in ours] == [b.decoded for b in theirs]


def test_work_counts_contexts_and_pairs_by_hand():
    scheduler = engine((5, 3), (6, 1))
    work = scheduler.work()  # a: 5 tokens, b: 3
    assert costs(work) == {
        "prefill_tokens": 8,
        "decode_seqs": 0,
        "seqs": 2,
        "context_tokens": 8,
        "pairs": 15 + 6,
    }
    assert (work.started, work.first, work.prefilled) == (["a", "b"], ["a"], ["a"])
    work = scheduler.work()  # a decodes its sixth token, b computes its tokens 4 to 6
    assert costs(work) == {
        "prefill_tokens": 3,
        "decode_seqs": 1,
        "seqs": 2,
        "context_tokens": 12,
        "pairs": 6 + 15,
    }
    assert (work.started, work.first, work.finished) == ([], ["b"], ["b"])


@pytest.mark.parametrize("how", ["step", "work"])
def test_progress_is_exact_after_a_step_whatever_came_before(how):
    """a and b decode together; the third step throws b out, which has emitted two tokens."""
    limits = {"num_kv_blocks": 4, "max_num_seqs": 2}
    scheduler = engine(**limits)
    a, b = Request("a", 3, 3), Request("b", 3, 3)
    scheduler.submit(a)
    scheduler.submit(b)
    for _ in range(2):
        getattr(scheduler, how)()
    assert scheduler.step().preempted == ["b"]
    assert (a.decoded, b.decoded) == (3, 2)
    assert (b.prefilled, b.stage()) == (0, "prefill")


def test_a_run_ends_where_the_batch_changes():
    scheduler = engine((5, 10), (2, 6))
    assert scheduler.run().steps == 0  # nobody runs yet
    scheduler.work()
    run = scheduler.run()
    assert run[:5] == (5, 2, 7, 0, 0)  # b ends with the fifth
    assert scheduler.repeat(run, 2) == []
    assert scheduler.run()[:5] == (3, 2, 11, 0, 0)
    assert scheduler.repeat(scheduler.run(), 3) == ["b"]
    scheduler.submit(Request("c", 30, 1))
    assert scheduler.run().steps == 0  # c can enter
    scheduler.work()  # 7 of its tokens
    assert scheduler.run()[:5] == (3, 1, 11, 7, 7)  # 21 more, and two are left for the step after


def test_a_run_ends_before_the_blocks_do():
    scheduler = engine((2, 20), (2, 20), num_kv_blocks=12)
    scheduler.work()
    assert scheduler.run().steps == 10  # ten free blocks: five each, two steps a block
    scheduler.repeat(scheduler.run(), 10)
    assert scheduler.run().steps == 0
    assert scheduler.step().preempted == ["b"]


def test_a_million_tokens_are_one_run():
    scheduler = engine((1, 10**6), num_kv_blocks=10**6, max_model_len=2 * 10**6)
    scheduler.work()
    assert scheduler.run().steps == 10**6 - 1


# --- the door --------------------------------------------------------------------------------


def heads(request):
    return 1


def to_compute(request):
    return request.input_tokens - request.prefilled


def door(load=heads, most=2, **limits):
    return DoorScheduler(load, most, **(SMALL | limits))


def test_the_door_counts_who_waits_runs_and_comes():
    scheduler = door(max_num_seqs=1)
    requests = [Request(i, 3, 2) for i in range(4)]
    for request in requests[:3]:
        scheduler.submit(request)
    assert [request.arrived for request in requests] == [0, 0, None, None]
    step = scheduler.step()
    assert (step.running, step.waiting) == ([0], [1])
    scheduler.submit(requests[2])  # still full: one runs, one waits
    assert requests[2].arrived is None
    scheduler.step()  # the first is done
    scheduler.submit(requests[2])  # a refused request may come again
    scheduler.submit(requests[3])
    assert [request.arrived for request in requests] == [0, 0, 2, None]
    scheduler.run_until_done()
    assert [request.finished for request in requests] == [True, True, True, False]
    assert stamps(requests[3]) == (None,) * 5


@pytest.mark.parametrize(("steps", "room"), [(0, 2), (1, 10), (2, 14)])
def test_the_door_asks_for_the_load_of_now(steps, room):
    """A budget of 8 tokens: 12 prompt tokens to compute, then 4, then none; 14 are let in."""
    scheduler = door(to_compute, 14)
    scheduler.submit(Request("a", 12, 9))
    for _ in range(steps):
        scheduler.step()
    over, fits = Request("over", room + 1, 1), Request("fits", room, 1)
    scheduler.submit(over)
    scheduler.submit(fits)
    assert (over.arrived, fits.arrived) == (None, steps)


@given(cases(), st.sampled_from([heads, to_compute]), st.integers(0, 200))
def test_behind_the_door_the_load_never_exceeds_the_threshold(case, load, most):
    if case.policy != "admission":
        return
    scheduler = DoorScheduler(load, most, **case.limits)
    sizes = zip(case.prompts, case.answers, strict=True)
    requests = [Request(i, *size) for i, size in enumerate(sizes)]
    for _ in until(lambda: scheduler.time_step > max(case.arrival) and not scheduler.unfinished):
        for request, due in zip(requests, case.arrival, strict=True):
            if due != scheduler.time_step:
                continue
            here = [r for r in requests if r.arrived is not None and not r.finished]
            total = sum(map(load, [*here, request]))
            scheduler.submit(request)
            assert (request.arrived is not None) == (total <= most)
        scheduler.step()
    for request in requests:
        assert request.finished == (request.arrived is not None)


@given(cases())
def test_an_open_door_is_the_real_rule(case):
    if case.policy != "admission":
        return
    ours, theirs = DoorScheduler(heads, 1e9, **case.limits), case.scheduler()
    both = [[Request(i, *n) for i, n in enumerate(zip(case.prompts, case.answers, strict=True))]]
    both.append([Request(r.req_id, r.input_tokens, r.output_tokens) for r in both[0]])
    for _ in until(lambda: over(case, ours, theirs)):
        submit_due(case, both[0], ours, now=ours.time_step)
        submit_due(case, both[1], theirs, now=theirs.time_step)
        assert ours.step() == theirs.step()


def test_what_exceeds_the_threshold_alone_never_comes_in():
    scheduler = door(to_compute, 10)
    scheduler.submit(large := Request("large", 11, 1))
    assert (large.arrived, scheduler.unfinished) == (None, 0)
    scheduler.submit(Request("just", 10, 1))
    assert scheduler.unfinished == 1
    shut = door(heads, 0)
    shut.submit(Request("a", 1, 1))
    assert shut.unfinished == 0


def test_a_fault_is_an_error_at_a_shut_door_too():
    scheduler = door(heads, 0, max_model_len=8)
    with pytest.raises(TypeError, match="request must be a Request: got 'a'"):
        scheduler.submit("a")
    with pytest.raises(ValueError, match="input_tokens must be below max_model_len = 8"):
        scheduler.submit(Request("a", 8, 1))
    used = Request("a", 1, 1)
    used.finished = True
    with pytest.raises(ValueError, match="request must be new"):
        scheduler.submit(used)


@pytest.mark.parametrize(
    ("load", "most", "error", "message"),
    [
        (1, 2, TypeError, "load must be a function of a Request: got 1"),
        (None, 2, TypeError, "load must be a function of a Request: got None"),
        (heads, -1, ValueError, "most must be >= 0: got -1"),
        (heads, float("nan"), ValueError, "most must be finite"),
        (heads, float("inf"), ValueError, "most must be finite"),
        (heads, "2", TypeError, "most must be a real number"),
        (heads, None, TypeError, "most must be a real number"),
        (heads, [1, 2], TypeError, "most must be one number"),
    ],
)
def test_the_door_refuses_bad_arguments(load, most, error, message):
    with pytest.raises(error, match=message):
        door(load, most)


def test_the_door_checks_its_limits_like_any_engine():
    with pytest.raises(ValueError, match="max_num_seqs must be >= 1: got 0"):
        door(max_num_seqs=0)
    with pytest.raises(TypeError, match="num_kv_blocks"):
        DoorScheduler(heads, 1, max_num_seqs=1)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "load must be >= 0: got -1"),
        (float("nan"), ValueError, "load must be finite"),
        (float("inf"), ValueError, "load must be finite"),
        (None, TypeError, "load must be a real number"),
        ("1", TypeError, "load must be a real number"),
    ],
)
def test_a_bad_load_lets_nobody_in(value, error, message):
    scheduler = door(lambda request: value)
    with pytest.raises(error, match=message):
        scheduler.submit(request := Request("a", 1, 1))
    assert (scheduler.unfinished, request.arrived) == (0, None)


# --- the real rule: refusals -----------------------------------------------------------------


def test_submit_refuses_a_prompt_that_leaves_no_room_for_a_token():
    scheduler = engine(max_model_len=8)
    for prompt in (8, 9):
        with pytest.raises(ValueError, match=rf"input_tokens must be below .* = 8.*: got {prompt}"):
            scheduler.submit(Request("a", prompt, 1))
    scheduler.submit(Request("a", 7, 1))
    assert scheduler.unfinished == 1


def test_submit_refuses_what_never_fits_in_the_blocks():
    scheduler = engine(num_kv_blocks=3)
    with pytest.raises(ValueError, match=r"fit in num_kv_blocks = 3: got 5 \+ 3 tokens, 4 blocks"):
        scheduler.submit(Request("a", 5, 3))
    request = Request("a", 5, 2)  # the last token is never put into memory
    scheduler.submit(request)
    scheduler.run_until_done(max_steps=3)
    assert request.finished
    engine((5, 60), num_kv_blocks=3, max_model_len=7)  # cut before it outgrows the memory


def test_check_refuses_what_submit_would_and_takes_nothing():
    scheduler = engine(num_kv_blocks=3, max_model_len=16)
    for request, reason in (
        (Request("a", 16, 1), "input_tokens must be below max_model_len = 16"),
        (Request("a", 5, 3), "must fit in num_kv_blocks = 3"),
    ):
        for refuse in (scheduler.check, scheduler.submit):
            with pytest.raises(ValueError, match=reason):
                refuse(request)
    fits = Request("a", 5, 2)
    scheduler.check(fits)
    assert (scheduler.unfinished, stamps(fits)) == (0, (None,) * 5)
    ContinuousBatchScheduler(1, 1).check(Request("a", 10**9, 10**9))  # it has no memory to fill


def test_a_refused_request_leaves_nothing_behind():
    scheduler = engine(num_kv_blocks=3)
    request = Request("a", 5, 3)
    with pytest.raises(ValueError, match="num_kv_blocks"):
        scheduler.submit(request)
    assert stamps(request) == (None,) * 5
    assert scheduler.unfinished == 0
    scheduler.submit(Request("a", 1, 1))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_num_batched_tokens", 1),
        ("max_num_seqs", 1),
        ("num_kv_blocks", 1),
        ("block_size", 1),
        ("max_model_len", 2),
        ("long_prefill_token_threshold", 0),
    ],
)
@pytest.mark.parametrize("policy", [TokenBudgetScheduler, DecodeFirstScheduler, QueueBackScheduler])
def test_limits_must_be_integers_that_are_large_enough(name, least, policy):
    engine(policy=policy, **{name: least})
    with pytest.raises(ValueError, match=f"{name} must be >= {least}: got {least - 1}"):
        engine(policy=policy, **{name: least - 1})
    for value in (4.0, True, None, "4", float("nan")):
        with pytest.raises(TypeError, match=f"{name} must be an integer: got"):
            engine(policy=policy, **{name: value})


@pytest.mark.parametrize("name", ["enable_chunked_prefill", "scheduler_reserve_full_isl"])
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_switches_must_be_true_or_false(name, value):
    with pytest.raises(TypeError, match=f"{name} must be True or False: got {value!r}"):
        engine(**{name: value})


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-0.1, ValueError, r"must be in \[0, 1\]: got -0.1"),
        (1.5, ValueError, r"must be in \[0, 1\]: got 1.5"),
        (float("nan"), ValueError, r"must be in \[0, 1\]: got nan"),
        (True, TypeError, "must be a number: got True"),
        ("0.1", TypeError, "must be a number: got '0.1'"),
        (None, TypeError, "must be a number: got None"),
    ],
)
def test_watermark_must_be_a_share(value, error, message):
    with pytest.raises(error, match=f"watermark {message}"):
        engine(watermark=value)


def test_limits_are_named_and_none_is_forgotten():
    with pytest.raises(TypeError):
        TokenBudgetScheduler(8, 4, 100, 2, 64)
    for name in SMALL:
        with pytest.raises(TypeError, match=name):
            TokenBudgetScheduler(**{key: value for key, value in SMALL.items() if key != name})


def test_without_chunks_the_budget_must_hold_the_longest_prompt():
    whole = {"enable_chunked_prefill": False}
    with pytest.raises(ValueError, match=r"must be >= max_model_len .*: got 8 < 64"):
        engine(**whole)
    engine(max_model_len=8, **whole)


@pytest.mark.parametrize(
    "limit", [{"enable_chunked_prefill": True}, {"long_prefill_token_threshold": 4}]
)
def test_prefill_first_takes_whole_prompts_only(limit):
    with pytest.raises(ValueError, match="must be off for whole prompts"):
        engine(policy=PrefillFirstScheduler, max_model_len=8, **limit)


# --- replay --------------------------------------------------------------------------------


def test_replay_counted_by_hand():
    played = replay(
        [0.5, 20.0, 0.25, 1.0], [4, 1, 8, 4], [1, 1, 2, 1], max_batch_size=1, prefill_chunk=4
    )
    log = played.log
    # Row 2 arrives first and holds the one slot from 1 to 5; row 0 is before row 3; then a gap.
    assert log.queued.tolist() == [1, 20, 1, 1]
    assert log.scheduled.tolist() == [5, 20, 1, 7]
    assert log.prefill_end.tolist() == [6, 21, 3, 8]
    assert log.first_token.tolist() == [7, 22, 4, 9]
    assert log.last_token.tolist() == [7, 22, 5, 9]
    assert log.arrival.tolist() == [0.5, 20.0, 0.25, 1.0]
    assert log.input_tokens.tolist() == [4, 1, 8, 4]
    assert log.output_tokens.tolist() == [1, 1, 2, 1]
    assert played.start.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 20, 21]
    assert played.running.tolist() == [1] * 10
    assert played.waiting.tolist() == [2, 2, 2, 2, 1, 1, 0, 0, 0, 0]


def test_requests_that_arrive_together_are_queued_in_the_order_given():
    arrival = np.tile([3.0, 1.0], 200)  # many, since a short sort keeps ties in order by chance
    played = replay(arrival, [1] * 400, [1] * 400, max_batch_size=1, prefill_chunk=1)
    scheduled = played.log.scheduled
    assert scheduled[1::2].tolist() == list(range(1, 401, 2))
    assert scheduled[0::2].tolist() == list(range(401, 801, 2))


def test_a_request_due_when_the_system_empties_is_served_at_once():
    played = replay([0, 2, 4.5], [1] * 3, [1] * 3, max_batch_size=1, prefill_chunk=1)
    assert played.log.scheduled.tolist() == [0, 2, 5]
    assert played.start.tolist() == [0, 1, 2, 3, 5, 6]


@given(workloads, batch_sizes, chunks)
def test_replay_is_submit_and_step_by_hand(workload, limit, chunk):
    gaps, n_in, n_out = zip(*workload, strict=True)
    played = replay(np.cumsum(gaps), n_in, n_out, max_batch_size=limit, prefill_chunk=chunk)
    _, requests, steps = drive(workload, limit, chunk)
    log = played.log
    columns = (log.queued, log.scheduled, log.prefill_end, log.first_token, log.last_token)
    assert np.array_equal(np.transpose(columns), [stamps(request) for request in requests])
    busy = [step for step in steps if step.batch_size]
    assert played.start.tolist() == [step.start for step in busy]
    assert played.running.tolist() == [step.batch_size for step in busy]


@given(fractional, batch_sizes, chunks)
def test_counts_by_step_are_the_areas_under_the_stamps(workload, limit, chunk):
    arrival, n_in, n_out = map(np.array, zip(*workload, strict=True))
    played = replay(arrival, n_in, n_out, max_batch_size=limit, prefill_chunk=chunk)
    log = played.log
    assert np.array_equal(log.queued, np.ceil(arrival))
    assert played.running.sum() == (log.last_token - log.scheduled).sum()
    assert played.waiting.sum() == (log.scheduled - log.queued).sum()
    for start, running, waiting in zip(played.start, played.running, played.waiting, strict=True):
        assert running == np.sum((log.scheduled <= start) & (start < log.last_token))
        assert waiting == np.sum((log.queued <= start) & (start < log.scheduled))


def test_one_server_with_fixed_times():
    """Case L01: 8 requests 0.1 s apart, 0.5 s of service each; a step lasts 0.1 s."""
    log = replay(np.arange(8), [1] * 8, [4] * 8, max_batch_size=1, prefill_chunk=1).log
    e2e = 0.1 * (log.last_token - log.arrival)
    assert 0.1 * np.mean(log.scheduled - log.arrival) == pytest.approx(1.4, abs=1e-9)
    assert np.mean(e2e) == pytest.approx(1.9, abs=1e-9)
    assert np.max(e2e) == pytest.approx(3.3, abs=1e-9)
    assert np.percentile(e2e, 99) == pytest.approx(3.272, abs=1e-9)


def test_events_at_the_horizon_are_outside_it():
    """Case Q03: one arrival an hour from hour 1, one hour of service; a step is half an hour."""
    log = replay(2 * np.arange(1, 31), [1] * 30, [1] * 30, max_batch_size=1, prefill_chunk=1).log
    horizon = 2 * 24
    assert np.sum(log.arrival < horizon) == 23
    assert np.sum(log.last_token < horizon) == 22
    assert np.sum((log.scheduled < horizon) & (log.last_token >= horizon)) == 1


def play(**changes):
    arguments = {
        "arrival": [0.0, 1.0],
        "input_tokens": [5, 6],
        "output_tokens": [1, 2],
        "max_batch_size": 2,
        "prefill_chunk": 4,
    }
    return replay(**(arguments | changes))


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("arrival", [], ValueError, "must be a non-empty list of times: got shape"),
        ("arrival", 1.0, ValueError, "must be a non-empty list of times: got shape"),
        ("arrival", [[0.0, 1.0]], ValueError, "must be a non-empty list of times: got shape"),
        ("arrival", [0.0, np.nan], ValueError, "must be finite .*: got nan at index 1"),
        ("arrival", [np.inf, 0.0], ValueError, "must be finite .*: got inf at index 0"),
        ("arrival", [0.0, -0.5], ValueError, "must be >= 0: got -0.5 at index 1"),
        ("arrival", [0.0, 2.0**52], ValueError, r"must be < 2\*\*52 steps: got 4.5\d+e\+15 at"),
        ("arrival", ["a", "b"], TypeError, "must be a real number"),
        ("input_tokens", [5], ValueError, r"must have one value an arrival: got shape \(1,\)"),
        ("input_tokens", 5, ValueError, r"must have one value an arrival: got shape \(\)"),
        ("input_tokens", [5, 0], ValueError, "must be >= 1: got 0 at index 1"),
        ("input_tokens", [5, 1.5], ValueError, "must be a whole number: got 1.5 at index 1"),
        ("output_tokens", [1, 2, 3], ValueError, "must have one value an arrival: got shape"),
        ("output_tokens", [0, 2], ValueError, "must be >= 1: got 0 at index 0"),
        ("output_tokens", [np.nan, 2], ValueError, "must be finite .*: got nan at index 0"),
        ("output_tokens", [True, True], TypeError, "must be a real number"),
        ("max_batch_size", 0, ValueError, "must be >= 1: got 0"),
        ("prefill_chunk", 2.0, TypeError, "must be an integer: got 2.0"),
    ],
)
def test_replay_refuses_bad_input(name, value, error, message):
    with pytest.raises(error, match=f"{name} {message}"):
        play(**{name: value})


def test_replay_takes_the_last_time_it_can_count():
    log = play(arrival=[0.0, 2.0**52 - 1]).log
    assert (log.last_token - log.scheduled).tolist() == [3, 4]


def test_repeat_refuses_what_is_no_part_of_the_run():
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "num_kv_blocks": 99}
    scheduler = TokenBudgetScheduler(**limits, block_size=16, max_model_len=999)
    scheduler.submit(Request("a", 1, 100))
    scheduler.step()
    run = scheduler.run()
    assert run.steps == 99
    for steps in (0, -1):
        with pytest.raises(ValueError, match=f"steps must be >= 1: got {steps}"):
            scheduler.repeat(run, steps)
    with pytest.raises(ValueError, match=r"steps must be at most run.steps = 99: got 100"):
        scheduler.repeat(run, 100)
    with pytest.raises(TypeError, match=r"steps must be an integer: got 1\.5"):
        scheduler.repeat(run, 1.5)
    scheduler.step()
    with pytest.raises(RuntimeError, match="run must be taken at once: it is of step 1, now is 2"):
        scheduler.repeat(run, 99)
    assert scheduler.repeat(scheduler.run(), 98) == ["a"]


def test_a_block_beyond_any_engines_is_refused():
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "num_kv_blocks": 9}
    with pytest.raises(ValueError, match="block_size must be at most 65536: got 65537"):
        TokenBudgetScheduler(**limits, block_size=65_537, max_model_len=64)
