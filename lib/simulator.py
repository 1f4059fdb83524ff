"""A serving engine in simulated time: a workload, a scheduler and a step-time model.

The clock runs from event to event. A step starts when the one before it ends, or when a request
arrives at an idle engine; it lasts as long as the step-time model says. Steps that only repeat
one decode batch are taken together: their lengths grow linearly with the context, so their sum
has a closed form (eq-twin-run), and the cost grows with events, not with tokens.
"""

from dataclasses import dataclass
from math import ceil, inf, nan, sqrt
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from lib._validate import FloatArray, nonnegative
from lib.record import RequestLog
from lib.scheduling import Request, Scheduler
from lib.step_time import StepTime

SLACK = 1e-9
"""A request that arrives within this time (s) after the start of a step is in time for it: sums
of float64 seconds cannot tell the two moments apart."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepLog:
    """The steps that a simulated engine took, one value a step; the times in seconds.

    start, end : (s). prefill_tokens : prompt tokens computed, or computed again. decode_seqs :
    sequences that decode one token. seqs : sequences in the step. context_tokens : their contexts
    after the step, summed. pairs : query-key pairs. running, waiting : requests after scheduling.
    """

    start: FloatArray
    end: FloatArray
    prefill_tokens: FloatArray
    decode_seqs: FloatArray
    seqs: FloatArray
    context_tokens: FloatArray
    pairs: FloatArray
    running: FloatArray
    waiting: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Simulation:
    """A simulated run.

    Parameters
    ----------
    requests : the workload's rows in their order, with every stamp (s); `queued` is `arrival`. A
        request that the scheduler refused has no stamp but `arrival`.
    preemptions : (n,) how often each request was thrown out.
    events : (m, 9) one row for each step, or for several that repeat one decode batch: start (s),
        steps, then the first step's counts, in the order of `StepLog`.
    step_time : the model that set the lengths.
    """

    requests: RequestLog
    preemptions: NDArray[np.int64]
    events: FloatArray
    step_time: StepTime

    def steps(self) -> StepLog:
        """Every step, one value a step."""
        repeat = self.events[:, 1].astype(np.int64)
        rows = np.repeat(self.events, repeat, axis=0)
        first = np.cumsum(repeat) - repeat
        later = np.arange(repeat.sum()) - np.repeat(first, repeat)
        prefill, decode, seqs, context, pairs, running, waiting = rows[:, 2:].T
        context = context + later * (decode + prefill)
        pairs = pairs + later * (decode + prefill**2)
        length = np.asarray(self.step_time(prefill, decode, context, pairs)) * (seqs > 0)
        before = np.cumsum(length) - length
        start = rows[:, 0] + before - np.repeat(before[first], repeat)
        return StepLog(
            start=start,
            end=start + length,
            prefill_tokens=prefill,
            decode_seqs=decode,
            seqs=seqs,
            context_tokens=context,
            pairs=pairs,
            running=running,
            waiting=waiting,
        )


def simulate(workload: RequestLog, scheduler: Scheduler, step_time: StepTime) -> Simulation:
    """Serve a workload on a simulated engine.

    A request that arrives during a step is queued for the next one. An idle engine starts a step
    the moment a request arrives.

    Parameters
    ----------
    workload : arrivals (s) in any order, input and output tokens, all known and >= 1.
    scheduler : the policy, with no request in it; it is empty again afterwards.
    step_time : the length of a step.

    Returns
    -------
    Simulation, every request finished that the scheduler lets in. `output_tokens` is what was
    emitted: less than asked where the scheduler's `max_model_len` cuts a request. Of a request that
    the scheduler refuses (`DoorScheduler`) every stamp but `arrival` is missing, `output_tokens` is
    0 and `succeeded` is False, so that `metrics()` leaves it out.

    Raises
    ------
    TypeError : an argument is of another kind.
    ValueError : no request; an arrival is missing or negative; a token count is missing or < 1; a
        request can never fit; the rows share no clock; the scheduler holds requests.
    """
    for name, value, kind in (
        ("workload", workload, RequestLog),
        ("scheduler", scheduler, Scheduler),
        ("step_time", step_time, StepTime),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}: got {value!r:.80}")
    if scheduler.unfinished:
        raise ValueError(f"scheduler must be empty: got {scheduler.unfinished} unfinished requests")
    if not workload.shared_clock:
        raise ValueError("workload must share one clock: its rows have an origin each")
    if len(workload) == 0:
        raise ValueError("workload must hold a request: got 0 rows")
    arrival = nonnegative("arrival", workload.column("arrival"))
    order = np.argsort(arrival, kind="stable")
    requests = [
        Request(i, int(prompt), int(answer))
        for i, prompt, answer in zip(
            order.tolist(),
            workload.column("input_tokens")[order].tolist(),
            workload.column("output_tokens")[order].tolist(),
            strict=True,
        )
    ]
    for request in requests:
        scheduler.check(request)
    due = [*arrival[order].tolist(), inf]
    scheduled, prefill_end, first_token, last_token = ([nan] * len(requests) for _ in range(4))
    preemptions = [0] * len(requests)
    events, pack = (
        bytearray(),
        Struct("9d").pack,
    )  # a tuple for each would take ten times the memory
    lines = step_time.lines
    now, coming = 0.0, 0
    while True:
        if not scheduler.unfinished:
            if coming == len(requests):
                break
            now = max(now, due[coming])
        while due[coming] <= now + SLACK:
            scheduler.submit(requests[coming])
            now = max(now, due[coming])  # the step starts once they are all there
            coming += 1
        if not scheduler.unfinished:
            continue  # all were refused: no step
        run = scheduler.run()
        if run.steps:
            _, decodes, context, chunk, prefilled, _ = run
            pairs = context + decodes + chunk * (2 * prefilled + chunk + 1) // 2
            context += decodes + prefilled + chunk
            wider, more = decodes + chunk, decodes + chunk * chunk  # a step's context, pairs
            each = [
                (a + b * chunk + c * decodes + d * context + e * pairs, d * wider + e * more)
                for a, b, c, d, e in lines
            ]
            steps, length = _take(each, run.steps, due[coming] - SLACK - now)
            seqs = decodes + (chunk > 0)
            waiting = scheduler.unfinished - seqs
            finished = scheduler.repeat(run, steps)
            events += pack(now, steps, chunk, decodes, seqs, context, pairs, seqs, waiting)
        else:
            work = scheduler.work()
            p, q, k, r = work.prefill_tokens, work.decode_seqs, work.context_tokens, work.pairs
            # A request may throw itself out: then nothing is computed, and no time passes.
            length = max([a + b * p + c * q + d * k + e * r for a, b, c, d, e in lines])
            length *= work.seqs > 0
            events += pack(now, 1, p, q, work.seqs, k, r, work.running, work.waiting)
            for i in work.started:
                scheduled[i] = now
            for i in work.preempted:
                preemptions[i] += 1
            for i in work.prefilled:
                prefill_end[i] = now + length
            for i in work.first:
                first_token[i] = now + length
            finished = work.finished
        now += length
        for i in finished:
            last_token[i] = now

    emitted, let_in = np.empty(len(requests)), np.empty(len(requests), dtype=np.bool_)
    emitted[order] = [request.decoded for request in requests]
    let_in[order] = [request.arrived is not None for request in requests]
    log = RequestLog(
        arrival=arrival,
        queued=np.where(let_in, arrival, nan),
        input_tokens=workload.input_tokens,
        output_tokens=emitted,
        scheduled=np.array(scheduled),
        prefill_end=np.array(prefill_end),
        first_token=np.array(first_token),
        last_token=np.array(last_token),
        succeeded=let_in,
        request_id=workload.request_id,
    )
    return Simulation(
        requests=log,
        preemptions=np.array(preemptions),
        events=np.frombuffer(events).reshape(-1, 9),
        step_time=step_time,
    )


def _take(each: list[tuple[float, float]], most: int, left: float) -> tuple[int, float]:
    """Steps of a run, up to `most`, until `left` seconds have passed, and their length together.

    Step j takes the largest of the lines A + C j in `each`. While one line is the largest, n steps
    take n A + C n (n - 1) / 2 (eq-twin-run).
    """
    if most == 1:  # often: the loop below would take one turn
        return 1, max(each)[0]
    done, total = 0, 0.0
    while done < most and total < left:
        first, slope = max([(a + c * done, c) for a, c in each])
        n = most - done
        for a, c in each:
            if c > slope:  # it becomes the largest later
                n = min(n, max(0, int((first - a - c * done) / (c - slope))) + 1)
        length = n * first + slope * n * (n - 1) / 2
        if total + length >= left:
            n = _steps_to(left - total, first, slope)
            length = n * first + slope * n * (n - 1) / 2
        done += n
        total += length
    return done, total


def _steps_to(left: float, first: float, slope: float) -> int:
    """The least n >= 1 with n first + slope n (n - 1) / 2 >= left."""
    linear = first - slope / 2
    n = max(1, ceil(2 * left / (linear + sqrt(linear**2 + 2 * slope * left))))
    while n > 1 and (n - 1) * first + slope * (n - 1) * (n - 2) / 2 >= left:
        n -= 1
    while n * first + slope * n * (n - 1) / 2 < left:
        n += 1
    return n
