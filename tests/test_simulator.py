"""The simulator, against a plain loop over steps, counts by hand, and its own books."""

import numpy as np
import pytest
from engine_cases import cases, until
from hypothesis import given
from hypothesis import strategies as st
from plain_engine import plain_simulate

from lib import simulator
from lib.record import RequestLog
from lib.scheduling import (
    ContinuousBatchScheduler,
    DoorScheduler,
    Request,
    Scheduler,
    TokenBudgetScheduler,
)
from lib.simulator import SLACK, Simulation
from lib.step_time import StepTime

STAMPS = ("scheduled", "prefill_end", "first_token", "last_token")
SECOND = StepTime(((1.0, 0.0, 0.0, 0.0, 0.0),))
TOKEN = StepTime(((0.0, 1.0, 0.0, 0.0, 0.0),))
"""A second a step, and a second a prompt token: then a decode step takes no time at all."""

models = st.sampled_from(
    [
        ((0.01, 0.0, 0.0, 0.0, 0.0),),
        ((0.01, 1e-3, 1e-4, 1e-5, 1e-6),),
        # Lines that cross while a batch decodes, once and twice.
        ((0.01, 1e-3, 1e-4, 0.0, 1e-6), (0.005, 0.0, 1e-3, 5e-4, 0.0)),
        ((0.0, 0.0, 0.0, 1e-3, 0.0), (0.01, 1e-3, 0.0, 0.0, 1e-4), (0.03, 0.0, 0.0, 0.0, 0.0)),
        ((0.0, 1e-3, 0.0, 0.0, 0.0),),  # decode steps of no time
    ]
)
scales = st.sampled_from([0.0, 0.01, 0.3, 3.0])


def workload(arrival, prompts, answers, **columns):
    tokens = {"input_tokens": np.array(prompts), "output_tokens": np.array(answers)}
    return RequestLog(arrival=np.array(arrival, dtype=float), **tokens, **columns)


def engine(policy=TokenBudgetScheduler, **changes):
    limits = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "num_kv_blocks": 10**6,
        "block_size": 2,
        "max_model_len": 2 * 10**6,
    }
    return policy(**(limits | changes))


def simulate(workload, scheduler, step_time):
    """`lib.simulator.simulate`, made to fail where it would turn for ever."""
    if not isinstance(scheduler, Scheduler):
        return simulator.simulate(workload, scheduler, step_time)
    turns, run = until(lambda: False), scheduler.run
    scheduler.run = lambda: (next(turns), run())[1]
    try:
        return simulator.simulate(workload, scheduler, step_time)
    finally:
        del scheduler.run


def close(ours, theirs):
    """Equal to rounding: the closed form adds the same lengths in another order."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


# --- against a plain loop --------------------------------------------------------------------


@given(cases(), models, scales)
def test_it_is_the_plain_loop(case, lines, scale):
    arrival = scale * np.array(case.arrival)
    stamps, preemptions, steps = plain_simulate(
        arrival.tolist(), case.prompts, case.answers, case.limits, lines, case.policy
    )
    log = workload(arrival, case.prompts, case.answers)
    simulation = simulate(log, case.scheduler(), StepTime(lines))
    for name, times in stamps.items():
        close(getattr(simulation.requests, name), times)
    assert simulation.preemptions.tolist() == preemptions
    assert simulation.requests.output_tokens.tolist() == case.emitted()
    taken = simulation.steps()
    assert taken.start.size == len(steps)
    for name in ("start", "end"):
        close(getattr(taken, name), [step[name] for step in steps])
    for name in ("prefill_tokens", "decode_seqs", "context_tokens", "pairs"):
        assert getattr(taken, name).tolist() == [step[name] for step in steps]
    for name, source in (("running", "running"), ("waiting", "waiting"), ("seqs", "scheduled")):
        assert getattr(taken, name).tolist() == [len(step[source]) for step in steps]


def plain_textbook(arrival, prompts, answers, limits, line):
    """The seed's scheduler, one step at a time on a running clock: stamps and step ends."""
    scheduler = ContinuousBatchScheduler(*limits)
    requests = [Request(i, *n) for i, n in enumerate(zip(prompts, answers, strict=True))]
    coming = sorted(range(len(arrival)), key=lambda i: arrival[i])
    edges, ends, now = [], [], 0.0  # start of each step, by scheduler.time_step, and its end
    for _ in until(lambda: not coming and not scheduler.unfinished):
        if not scheduler.unfinished:
            now = max(now, arrival[coming[0]])
        while coming and arrival[coming[0]] <= now + 1e-9:
            scheduler.submit(requests[coming.pop(0)])
        step = scheduler.step()
        context = sum(requests[i].prefilled for i in step.prefilled)
        context += sum(requests[i].input_tokens + requests[i].decoded for i in step.decoded)
        a, b, c, d, _ = line
        edges.append(now)
        now += a + b * sum(step.prefilled.values()) + c * len(step.decoded) + d * context
        ends.append(now)
    table = [
        [
            max(edges[request.scheduled], arrival[request.req_id]),
            *(ends[getattr(request, name) - 1] for name in STAMPS[1:]),
        ]
        for request in requests
    ]
    return np.transpose(table), edges, ends


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(1, 30)),
        min_size=1,
        max_size=12,
    ),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from([(0.01, 0.0, 0.0, 0.0, 0.0), (0.01, 1e-3, 1e-4, 1e-5, 0.0)]),
    scales,
)
def test_it_is_the_plain_loop_for_the_textbook_scheduler(rows, limits, line, scale):
    arrival, prompts, answers = (np.array(column) for column in zip(*rows, strict=True))
    arrival = scale * arrival
    stamps, edges, ends = plain_textbook(
        arrival.tolist(), prompts.tolist(), answers.tolist(), limits, line
    )
    scheduler = ContinuousBatchScheduler(*limits)
    simulation = simulate(workload(arrival, prompts, answers), scheduler, StepTime((line,)))
    for name, times in zip(STAMPS, stamps, strict=True):
        close(getattr(simulation.requests, name), times)
    close(simulation.steps().start, edges)
    close(simulation.steps().end, ends)
    assert scheduler.batch_history == simulation.steps().seqs.tolist()


# --- its own books ---------------------------------------------------------------------------


@given(cases(), models, scales)
def test_the_step_log_agrees_with_the_requests(case, lines, scale):
    log = workload(scale * np.array(case.arrival), case.prompts, case.answers)
    simulation = simulate(log, case.scheduler(), StepTime(lines))
    steps, requests = simulation.steps(), simulation.requests
    computed = steps.prefill_tokens.sum() + steps.decode_seqs.sum()
    needed = (requests.input_tokens + requests.output_tokens - 1).sum()
    if simulation.preemptions.any():
        assert computed > needed
    else:
        assert computed == needed
        assert steps.prefill_tokens.sum() == requests.input_tokens.sum()
    served = steps.seqs > 0
    length = steps.end - steps.start
    counts = (steps.prefill_tokens, steps.decode_seqs, steps.context_tokens, steps.pairs)
    close(length[served], StepTime(lines)(*(count[served] for count in counts)))
    assert np.all(length[~served] == 0)
    assert np.all(steps.start[1:] >= steps.end[:-1] - 1e-9)
    assert steps.end[-1] == pytest.approx(requests.last_token.max(), abs=1e-9)
    for name, edges in (("scheduled", steps.start), ("last_token", steps.end)):
        nearest = np.abs(edges[:, None] - getattr(requests, name)).min(axis=0)
        assert np.all(nearest <= 2e-9)  # a start may lie SLACK before the arrival it serves
    assert np.all(requests.scheduled >= requests.arrival)
    assert np.array_equal(requests.queued, requests.arrival)


def test_stamps_by_hand():
    """A budget of 8 and a second a step: b waits for its last three tokens until step 1."""
    simulation = simulate(workload([0.0, 0.0], [5, 6], [2, 1]), engine(), SECOND)
    requests, steps = simulation.requests, simulation.steps()
    assert requests.scheduled.tolist() == [0.0, 0.0]
    assert requests.prefill_end.tolist() == requests.first_token.tolist() == [1.0, 2.0]
    assert requests.last_token.tolist() == [2.0, 2.0]
    assert steps.prefill_tokens.tolist() == [8.0, 3.0]
    assert steps.decode_seqs.tolist() == [0.0, 1.0]
    assert steps.context_tokens.tolist() == [8.0, 12.0]
    assert steps.pairs.tolist() == [15.0 + 6.0, 6.0 + 15.0]
    assert simulation.preemptions.tolist() == [0, 0]


def test_lengths_by_hand():
    """A step costs 1; a prompt token 2, a decode 3, a token of context 4, a pair 5."""
    model = StepTime(((1.0, 2.0, 3.0, 4.0, 5.0),))
    steps = simulate(workload([0.0], [3], [3]), engine(), model).steps()
    assert (steps.end - steps.start).tolist() == [
        1 + 2 * 3 + 4 * 3 + 5 * 6,
        1 + 3 + 4 * 4 + 5 * 4,
        1 + 3 + 4 * 5 + 5 * 5,
    ]


def test_a_preempted_request_pays_twice_and_keeps_its_first_token():
    log = workload([0.0, 0.0], [3, 3], [3, 3])
    simulation = simulate(log, engine(num_kv_blocks=4), SECOND)
    assert simulation.preemptions.tolist() == [0, 1]
    assert simulation.requests.first_token.tolist() == [1.0, 1.0]
    assert simulation.requests.last_token.tolist() == [3.0, 4.0]
    assert simulation.steps().prefill_tokens.tolist() == [6.0, 0.0, 0.0, 5.0]


def test_the_longest_length_cuts_an_answer():
    log = workload([0.0], [5], [10])
    simulation = simulate(log, engine(max_model_len=8), SECOND)
    assert simulation.requests.output_tokens.tolist() == [3.0]
    assert simulation.requests.last_token.tolist() == [3.0]


# --- when requests come ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrival", "scheduled"),
    [
        (1.0, 1.0),  # at the very end of the step: in time for the next
        (1.0 + SLACK / 2, 1.0 + SLACK / 2),  # float sums cannot tell; never before the arrival
        (1.0 + 2 * SLACK, 2.0),
        (1.5, 2.0),
    ],
)
@pytest.mark.parametrize("answer", [2, 9])
def test_a_tie_with_a_step_is_in_time(arrival, scheduled, answer):
    log = workload([0.0, arrival], [1, 1], [answer, 1])
    requests = simulate(log, engine(), SECOND).requests
    assert requests.scheduled[1] == scheduled
    assert requests.first_token[1] == pytest.approx(round(scheduled) + 1.0, abs=1e-9)


def test_an_arrival_cuts_a_long_run():
    """It comes in step 500 of 1,000 equal ones, and enters with the next."""
    log = workload([0.0, 499.5], [1, 3], [1000, 1])
    simulation = simulate(log, engine(), SECOND)
    assert simulation.requests.scheduled[1] == 500.0
    assert simulation.requests.last_token.tolist() == [1000.0, 501.0]
    assert len(simulation.events) == 4


def test_an_idle_engine_starts_when_a_request_comes():
    log = workload([7.25, 0.5, 100.0], [1, 1, 1], [1, 2, 1])
    requests = simulate(log, engine(), SECOND).requests
    assert requests.scheduled.tolist() == [7.25, 0.5, 100.0]
    assert requests.last_token.tolist() == [8.25, 2.5, 101.0]


@given(cases(), models, st.randoms(use_true_random=False))
def test_rows_may_come_in_any_order(case, lines, random):
    """Rows move with their request; only requests that arrive together are served as listed."""
    arrival = [0.3 * i for i in range(len(case.prompts))]
    rows = list(zip(arrival, case.prompts, case.answers, strict=True))
    order = list(range(len(rows)))
    random.shuffle(order)
    plain = simulate(workload(*zip(*rows, strict=True)), case.scheduler(), StepTime(lines))
    mixed = [rows[i] for i in order]
    shuffled = simulate(workload(*zip(*mixed, strict=True)), case.scheduler(), StepTime(lines))
    assert np.array_equal(shuffled.requests.last_token, plain.requests.last_token[order])
    assert np.array_equal(shuffled.requests.output_tokens, plain.requests.output_tokens[order])
    assert np.array_equal(shuffled.preemptions, plain.preemptions[order])


def test_requests_that_arrive_together_are_served_as_listed():
    log = workload(np.tile([3.0, 1.0], 100), [1] * 200, [1] * 200)
    scheduled = simulate(log, engine(max_num_seqs=1), SECOND).requests.scheduled
    assert scheduled[1::2].tolist() == list(range(1, 101))
    assert scheduled[0::2].tolist() == list(range(101, 201))


def test_labels_stay_with_their_rows():
    log = workload([1.0, 0.0], [1, 1], [1, 1], request_id=np.array(["late", "early"]))
    requests = simulate(log, engine(), SECOND).requests
    assert requests.request_id.tolist() == ["late", "early"]
    assert requests.last_token.tolist() == [2.0, 1.0]


# --- requests that the scheduler refuses -----------------------------------------------------


def door(most, load=lambda request: 1):
    return engine(policy=lambda **limits: DoorScheduler(load, most, **limits))


def test_a_refused_request_has_no_stamp_and_no_metrics():
    """Two may be inside; the third comes while they are, the fourth when both are done."""
    log = workload([5.5, 0.0, 0.5, 1.5], [1, 1, 1, 1], [2, 4, 4, 9])
    run = simulate(log, door(2), SECOND)
    requests = run.requests
    assert requests.succeeded.tolist() == [True, True, True, False]
    for name in ("queued", *STAMPS):
        assert np.isnan(getattr(requests, name)).tolist() == [False, False, False, True], name
    assert requests.arrival.tolist() == log.arrival.tolist()
    assert requests.output_tokens.tolist() == [2, 4, 4, 0]
    assert run.preemptions.tolist() == [0] * 4
    metrics = requests.metrics()
    assert metrics.request_id.tolist() == [0, 1, 2]
    assert metrics.ttft.tolist() == [1.0, 1.0, 1.5]
    # The others are served as if it had not come.
    alone = simulate(log.where(requests.succeeded), engine(), SECOND)
    assert np.array_equal(alone.requests.last_token, requests.last_token[:3])
    assert np.array_equal(alone.events, run.events)
    with pytest.raises(ValueError, match="first_token is missing for 1 of 4 requests"):
        requests.column("first_token")


def test_nobody_let_in_is_no_step():
    run = simulate(workload([0.0, 3.0, 3.0], [1, 1, 1], [1, 1, 1]), door(0), SECOND)
    assert not run.requests.succeeded.any()
    assert run.events.shape == (0, 9)
    assert run.steps().start.size == 0
    assert run.requests.metrics().ttft.size == 0


def test_an_idle_engine_that_refuses_starts_with_the_next():
    def prompt(request):
        return request.input_tokens

    log = workload([0.0, 1.0, 2.0], [7, 2, 7], [1, 1, 1])
    run = simulate(log, door(5, prompt), SECOND)
    assert run.requests.succeeded.tolist() == [False, True, False]
    assert run.steps().start.tolist() == [1.0]


# --- cost grows with events ------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", [engine(), ContinuousBatchScheduler()])
def test_a_million_tokens_take_a_few_events(scheduler):
    model = StepTime(((1e-3, 1e-4, 1e-5, 1e-9, 0.0),))
    simulation = simulate(workload([0.0], [5], [10**6]), scheduler, model)
    assert len(simulation.events) <= 4
    steps = 10**6 - 1
    # The first step prefills five tokens; then step j has a context of 5 + j tokens.
    late = isinstance(scheduler, ContinuousBatchScheduler)  # its first token takes a step more
    context = 5 * (steps + late) + (steps + late) * (steps + late + 1) / 2
    expected = 1e-3 + 5e-4 + 5e-9 + (1e-3 + 1e-5) * (steps + late) + 1e-9 * context
    assert simulation.requests.last_token[0] == pytest.approx(expected, rel=1e-9)


def test_a_long_prompt_takes_a_few_events():
    """125,000 chunks of eight tokens, beside a decode that goes on all the while."""
    model = StepTime(((1e-3, 0.0, 0.0, 0.0, 1e-12),))
    alone = simulate(workload([0.0], [10**6], [1]), engine(), model)
    assert len(alone.events) <= 3
    assert alone.steps().start.size == 125_000
    pairs = 10**6 * (10**6 + 1) / 2
    assert alone.requests.last_token[0] == pytest.approx(125 + 1e-12 * pairs, rel=1e-9)
    beside = simulate(workload([0.0, 0.5], [1, 10**6], [10**6, 1]), engine(), model)
    assert len(beside.events) <= 7
    assert beside.requests.first_token[1] > 1e6 / 7 * 1e-3


def test_equal_steps_are_few_events_at_any_batch_size():
    log = workload(np.zeros(100), [4] * 100, [10_000] * 100)
    limits = {"max_num_seqs": 100, "max_num_batched_tokens": 400}
    simulation = simulate(log, engine(**limits), SECOND)
    assert len(simulation.events) <= 3
    assert simulation.steps().start.size == 10_000


# --- steps of no time ------------------------------------------------------------------------


def test_decode_steps_may_take_no_time():
    """They still wait for the prompts that they share a step with, as long as one is due."""
    log = workload([0.0, 1.0, 3.5, 9.0], [3, 2, 2, 1], [1000, 5, 1, 50])
    requests = simulate(log, engine(), TOKEN).requests
    assert requests.first_token.tolist() == [3.0, 5.0, 7.0, 10.0]
    assert requests.last_token.tolist() == [7.0, 7.0, 7.0, 10.0]


def test_a_step_that_serves_nobody_takes_no_time():
    """a takes the last block, b throws itself out; in the step after, a throws nobody out."""
    log = workload([0.0, 0.0], [2, 4], [4, 3])
    simulation = simulate(log, engine(num_kv_blocks=4), SECOND)
    assert simulation.preemptions.tolist() == [0, 1]
    assert simulation.requests.last_token.tolist() == [4.0, 6.0]


# --- what it leaves alone, and what it refuses -----------------------------------------------


def test_the_callers_arrays_stay_as_they_are():
    arrival, prompts, answers = np.array([2.0, 0.0]), np.array([3.0, 4.0]), np.array([50.0, 6.0])
    log = RequestLog(arrival=arrival, input_tokens=prompts, output_tokens=answers)
    simulation = simulate(log, engine(max_model_len=9), SECOND)
    assert (arrival.tolist(), prompts.tolist(), answers.tolist()) == ([2, 0], [3, 4], [50, 6])
    assert log.output_tokens.tolist() == [50, 6]
    assert np.isnan(log.last_token).all()
    assert simulation.requests.output_tokens.tolist() == [6, 5]


@pytest.mark.parametrize("scheduler", [engine(num_kv_blocks=4), ContinuousBatchScheduler()])
def test_the_scheduler_can_be_used_again(scheduler):
    log = workload([0.0, 0.0, 5.0], [3, 3, 2], [3, 3, 2])
    first = simulate(log, scheduler, SECOND)
    assert scheduler.unfinished == 0
    again = simulate(log, scheduler, SECOND)
    for name in STAMPS:
        assert np.array_equal(getattr(again.requests, name), getattr(first.requests, name))
    assert np.array_equal(again.events, first.events)
    assert np.array_equal(again.preemptions, first.preemptions)


def test_the_result_carries_its_model():
    simulation = simulate(workload([0.0], [1], [1]), engine(), SECOND)
    assert isinstance(simulation, Simulation)
    assert simulation.step_time is SECOND


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("workload", [0.0], "RequestLog"),
        ("scheduler", TokenBudgetScheduler, "Scheduler"),
        ("step_time", lambda *counts: 1.0, "StepTime"),
        ("step_time", 0.01, "StepTime"),
    ],
)
def test_arguments_of_another_kind_are_refused(name, value, kind):
    arguments = {
        "workload": workload([0.0], [1], [1]),
        "scheduler": engine(),
        "step_time": SECOND,
    }
    with pytest.raises(TypeError, match=f"{name} must be a {kind}: got"):
        simulate(**(arguments | {name: value}))


nan = float("nan")


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (workload([], [], []), "workload must hold a request: got 0 rows"),
        (workload([0.0], [1], [1], shared_clock=False), "workload must share one clock"),
        (workload([0.0, nan], [1, 1], [1, 1]), "arrival"),
        (workload([0.0, -1.0], [1, 1], [1, 1]), "arrival must be >= 0: got -1 at index 1"),
        (workload([0.0, 0.0], [1, nan], [1, 1]), "input_tokens"),
        (workload([0.0, 0.0], [1, 1], [nan, 1]), "output_tokens"),
        (workload([0.0], [0], [1]), "input_tokens must be >= 1: got 0"),
        (workload([0.0], [1], [0]), "output_tokens must be >= 1: got 0"),
        (workload([0.0], [2 * 10**6], [1]), "input_tokens must be below max_model_len"),
        (workload([0.0], [10], [1999990 - 1]), "must fit in num_kv_blocks"),
    ],
)
def test_bad_workloads_are_refused(log, message):
    with pytest.raises(ValueError, match=message):
        simulate(log, engine(num_kv_blocks=100_000), SECOND)


@pytest.mark.parametrize(("prompt", "answer"), [(63, 1), (64, 1), (5, 5)])
def test_a_request_that_can_never_fit_is_refused_before_anything_starts(prompt, answer):
    """It comes last; the scheduler has served nobody, is empty, and works."""
    scheduler = engine(num_kv_blocks=4, max_model_len=64)
    log = workload([0.0, 1.0], [1, prompt], [5, answer])
    with pytest.raises(ValueError, match=r"got 6[34]$|fit in num_kv_blocks = 4: got"):
        simulate(log, scheduler, SECOND)
    assert (scheduler.unfinished, scheduler.time_step) == (0, 0)
    after = simulate(workload([0.0, 1.0], [1, 1], [5, 1]), scheduler, SECOND)
    assert after.requests.last_token.tolist() == [5.0, 2.0]


def test_a_scheduler_with_requests_in_it_is_refused():
    scheduler = engine()
    scheduler.submit(Request("old", 1, 1))
    with pytest.raises(ValueError, match="scheduler must be empty: got 1 unfinished requests"):
        simulate(workload([0.0], [1], [1]), scheduler, SECOND)


def test_a_step_shorter_than_the_slack_ends_after_all_it_serves_have_come():
    """0.1 + 0.2 lies one rounding error after 0.3, and is let into the step that starts there."""
    log = RequestLog(
        arrival=np.array([0.3, 0.1 + 0.2]),
        input_tokens=np.array([5, 5]),
        output_tokens=np.array([3, 3]),
    )
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "num_kv_blocks": 99}
    scheduler = TokenBudgetScheduler(**limits, block_size=16, max_model_len=64)
    served = simulate(log, scheduler, StepTime(((0.0, 0.0, 1e-3, 0.0, 0.0),))).requests
    assert np.all(served.scheduled >= log.arrival)
    assert np.all(served.first_token >= served.scheduled)
    assert served.last_token == pytest.approx([0.3 + 4e-3] * 2, abs=1e-9)  # 2 steps of 2 decodes
