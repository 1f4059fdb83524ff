"""The seed's scheduler, against counts by hand, the seed's rule and a queue with c servers."""

import heapq
from collections import Counter
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.scheduling import ContinuousBatchScheduler, Request, Step, replay

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
    while not all(request.finished for request in requests):
        for request, time in zip(requests, times, strict=True):
            if time == scheduler.time_step:
                scheduler.submit(request)
        steps.append(scheduler.step())
    return scheduler, requests, steps


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
        served.append((tuple(decode), tokens))
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
    served = [scheduler.step() for _ in range(6)]
    assert served == [
        Step(0, (), {"a": 4, "b": 3}),  # two slots: c waits
        Step(1, ("b",), {"a": 2}),  # decode first, then the one slot left
        Step(2, ("a", "b"), {}),  # no slot left
        Step(3, ("a", "b"), {}),
        Step(4, (), {"c": 4}),  # both are done, c is served at last
        Step(5, ("c",), {}),
    ]
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
    assert scheduler.step() == Step(0, (), {0: 10, 1: 10, 2: 10})
    assert scheduler.step() == Step(1, (0, 1, 2), {})
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
    assert [scheduler.step() for _ in range(4)] == [
        Step(0, (), {"long": 1, "short": 1}),
        Step(1, ("short",), {"long": 1}),
        Step(2, (), {"long": 1, "next": 1}),
        Step(3, (), {"long": 1, "next": 1}),
    ]


@given(workloads, batch_sizes, chunks)
def test_every_step_serves_what_the_seeds_rule_serves(workload, limit, chunk):
    _, _, steps = drive(workload, limit, chunk)
    assert [(step.decoded, step.prefilled) for step in steps] == seed_rule(workload, limit, chunk)


@given(workloads, batch_sizes, chunks)
def test_nothing_is_lost_served_twice_or_served_beyond_the_limit(workload, limit, chunk):
    scheduler, requests, steps = drive(workload, limit, chunk)
    decoded, prefilled = Counter(), Counter()
    for step in steps:
        assert len(step.decoded) + len(step.prefilled) <= limit
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
        running = {r.req_id for r in requests if r.scheduled <= step.start < r.last_token}
        assert set(step.decoded) | set(step.prefilled) == running


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
    assert scheduler.step() == Step(0, (), {})
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
