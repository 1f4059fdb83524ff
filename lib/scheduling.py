"""The seed's continuous-batch scheduler: decode first, prefill in chunks (chapter `scheduling`).

Time is counted in steps: step k lasts from time k to time k + 1. A stamp is the time of a step's
start or end, so the difference of two stamps is a number of steps.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import FloatArray, count, nonnegative, require
from lib.record import RequestLog


def _integer(name: str, value: object, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer: got {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be >= {minimum}: got {value}")
    return int(value)


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through prefill -> decode -> done.

    Parameters
    ----------
    req_id : a hashable label, unique among the requests that a scheduler holds.
    input_tokens, output_tokens : whole numbers >= 1.

    The scheduler writes the rest: the tokens `prefilled` and `decoded` so far, `finished`, and
    the stamps (steps), each None until it happens. `arrived` is the time of submission and
    `scheduled` the start of the step that first serves the request; `prefill_end`, `first_token`
    and `last_token` are the ends of the steps that compute the last prompt token, emit the first
    token and emit the last.

    Raises
    ------
    TypeError : a token count is not an integer, or `req_id` is not hashable.
    ValueError : a token count is < 1.

    Source: the seed, section 4.1.
    """

    req_id: Hashable
    input_tokens: int
    output_tokens: int
    prefilled: int = field(default=0, init=False)
    decoded: int = field(default=0, init=False)
    finished: bool = field(default=False, init=False)
    arrived: int | None = field(default=None, init=False)
    scheduled: int | None = field(default=None, init=False)
    prefill_end: int | None = field(default=None, init=False)
    first_token: int | None = field(default=None, init=False)
    last_token: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.req_id, Hashable):
            raise TypeError(f"req_id must be hashable: got {self.req_id!r}")
        self.input_tokens = _integer("input_tokens", self.input_tokens, minimum=1)
        self.output_tokens = _integer("output_tokens", self.output_tokens, minimum=1)

    def stage(self) -> str:
        """The stage the request is in: "prefill", "decode" or "done"."""
        if self.finished:
            return "done"
        return "prefill" if self.prefilled < self.input_tokens else "decode"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step served, in order of submission: `prefilled` maps req_id to tokens."""

    start: int
    decoded: tuple[Hashable, ...]
    prefilled: dict[Hashable, int]

    @property
    def batch_size(self) -> int:
        """The number of requests served."""
        return len(self.decoded) + len(self.prefilled)


class ContinuousBatchScheduler:
    """A batch that is filled anew in every step: decodes first, prefills in what is left.

    A step gives one token to every request in decode. The slots that remain,
    B_prefill = B_max - B_decode (eq-decode-first), go to the first requests in prefill, in order
    of submission, and each advances by a chunk: p(t+1) = min(T_in, p(t) + C) (eq-chunk). The
    step that ends a prefill emits no token: the first one comes a step later.

    A request that has been served once is served in every step until it is done: decodes come
    first, and a slot that a decode takes is the one its own prefill held. So `running` never
    holds more than B_max requests, and the batch of a step is all of them.

    Parameters
    ----------
    max_batch_size : B_max >= 1, requests served in a step.
    prefill_chunk : C >= 1, prompt tokens that one request can prefill in a step.

    Attributes
    ----------
    time_step : the time now, the start of the next step.
    waiting : submitted and never served, in order of submission.
    running : served at least once and not finished, in order of submission.
    batch_history : the batch size of each step taken.

    Raises
    ------
    TypeError, ValueError : a size is not an integer, or is < 1.

    Source: the seed, sections 4.2 and 4.3.
    """

    def __init__(self, max_batch_size: int = 8, prefill_chunk: int = 128) -> None:
        self.max_batch_size = _integer("max_batch_size", max_batch_size, minimum=1)
        self.prefill_chunk = _integer("prefill_chunk", prefill_chunk, minimum=1)
        self.time_step = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.batch_history: list[int] = []
        self._live_ids: set[Hashable] = set()

    @property
    def unfinished(self) -> int:
        """The number of requests in the system, waiting or running."""
        return len(self.waiting) + len(self.running)

    def submit(self, request: Request) -> None:
        """Queue a new request; the next step can serve it.

        Raises
        ------
        TypeError : `request` is not a Request.
        ValueError : it has been submitted or served before, or its req_id is still in use.
        """
        if not isinstance(request, Request):
            raise TypeError(f"request must be a Request: got {request!r}")
        if request.arrived is not None or request.prefilled or request.decoded or request.finished:
            raise ValueError(f"request must be new: got {request!r}")
        if request.req_id in self._live_ids:
            raise ValueError(f"req_id must be unique among live requests: got {request.req_id!r}")
        request.arrived = self.time_step
        self._live_ids.add(request.req_id)
        self.waiting.append(request)

    def step(self) -> Step:
        """Serve one batch, which may be empty, and let one step of time pass."""
        decoding = [request for request in self.running if request.stage() == "decode"]
        prefilling = [request for request in self.running if request.stage() == "prefill"]
        prefill_slots = self.max_batch_size - len(decoding)
        while self.waiting and len(prefilling) < prefill_slots:
            prefilling.append(self._admit())

        start, self.time_step = self.time_step, self.time_step + 1
        for request in decoding:
            self._decode(request)
        prefilled = {request.req_id: self._prefill(request) for request in prefilling}
        self.running = [request for request in self.running if not request.finished]

        step = Step(start, tuple(request.req_id for request in decoding), prefilled)
        self.batch_history.append(step.batch_size)
        return step

    def idle_until(self, time_step: int) -> None:
        """Let time pass with no request in the system; no step is taken.

        Raises
        ------
        TypeError, ValueError : `time_step` is not an integer, or lies in the past.
        RuntimeError : a request is waiting or running.
        """
        if self.unfinished:
            raise RuntimeError(f"idle_until needs an empty system: {self.unfinished} unfinished")
        self.time_step = _integer("time_step", time_step, minimum=self.time_step)

    def run_until_done(self, max_steps: int = 1_000_000) -> int:
        """Step until every request is finished; the number of steps taken.

        Raises
        ------
        TypeError, ValueError : `max_steps` is not an integer, or is < 0.
        RuntimeError : requests are unfinished after `max_steps` steps, which stay taken.
        """
        max_steps = _integer("max_steps", max_steps, minimum=0)
        began = self.time_step
        while self.unfinished:
            if self.time_step - began == max_steps:
                raise RuntimeError(
                    f"max_steps must suffice to finish every request: got {max_steps}, "
                    f"{self.unfinished} unfinished"
                )
            self.step()
        return self.time_step - began

    def _admit(self) -> Request:
        request = self.waiting.popleft()
        request.scheduled = self.time_step
        self.running.append(request)
        return request

    def _prefill(self, request: Request) -> int:
        before = request.prefilled
        request.prefilled = min(request.input_tokens, before + self.prefill_chunk)
        if request.prefilled == request.input_tokens:
            request.prefill_end = self.time_step
        return request.prefilled - before

    def _decode(self, request: Request) -> None:
        request.decoded += 1
        if request.decoded == 1:
            request.first_token = self.time_step
        if request.decoded == request.output_tokens:
            request.last_token = self.time_step
            request.finished = True
            self._live_ids.remove(request.req_id)


@dataclass(frozen=True, eq=False)
class Replay:
    """A workload's passage through the scheduler: stamps by request, counts by step.

    Parameters
    ----------
    log : one row a request, in the order given; its stamps are in steps, not seconds.
    start : (k,) start of each step taken; a gap is time in which the system was empty.
    running : (k,) requests in the batch during the step.
    waiting : (k,) requests queued and never served, once the batch was chosen.

    The counts come from the scheduler's queues, not from the stamps. A step lasts one unit of
    time, so their sums are areas: sum(running) is the time spent in the batch, and sum(waiting)
    the time from `log.queued` to `log.scheduled`, over all requests.
    """

    log: RequestLog
    start: NDArray[np.int64]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]


def replay(
    arrival: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    max_batch_size: int,
    prefill_chunk: int,
) -> Replay:
    """Drive a ContinuousBatchScheduler with requests that arrive over time.

    A request that arrives at time a is queued for the first step that starts at or after a
    (`log.queued`); requests are queued in order of arrival, ties in the order given. Steps are
    not taken while the system is empty, but their time passes.

    Parameters
    ----------
    arrival : (n,) times >= 0 in steps, whole or not, in any order. For a trace in seconds, divide
        by the length of a step.
    input_tokens, output_tokens : (n,) whole numbers >= 1.
    max_batch_size, prefill_chunk : as in ContinuousBatchScheduler.

    Returns
    -------
    Replay, every request finished.

    Raises
    ------
    ValueError : no request, lengths differ, a time is negative, NaN, infinite or too large for
        a float64 to count single steps, or a token count or size is not a whole number >= 1.
    TypeError : an argument is not numeric, or a size is not an integer.
    """
    arrival = nonnegative("arrival", arrival)
    if arrival.ndim != 1 or arrival.size == 0:
        raise ValueError(f"arrival must be a non-empty list of times: got shape {arrival.shape}")
    require("arrival", arrival, arrival < 2**52, "< 2**52 steps")
    prompts = count("input_tokens", input_tokens, minimum=1)
    answers = count("output_tokens", output_tokens, minimum=1)
    for name, tokens in {"input_tokens": prompts, "output_tokens": answers}.items():
        if tokens.shape != arrival.shape:
            raise ValueError(
                f"{name} must have one value an arrival: got shape {tokens.shape} "
                f"for {arrival.size} arrivals"
            )

    scheduler = ContinuousBatchScheduler(max_batch_size, prefill_chunk)
    requests = [Request(i, int(prompts[i]), int(answers[i])) for i in range(arrival.size)]
    coming = deque(np.argsort(arrival, kind="stable").tolist())
    due = [ceil(time) for time in arrival.tolist()]
    start, running, waiting = [], [], []
    while coming or scheduler.unfinished:
        if not scheduler.unfinished:
            scheduler.idle_until(due[coming[0]])
        while coming and due[coming[0]] <= scheduler.time_step:
            scheduler.submit(requests[coming.popleft()])
        step = scheduler.step()
        start.append(step.start)
        running.append(step.batch_size)
        waiting.append(len(scheduler.waiting))

    def stamps(name: str) -> FloatArray:
        return np.array([getattr(request, name) for request in requests], dtype=np.float64)

    log = RequestLog(
        arrival=arrival,
        input_tokens=prompts,
        output_tokens=answers,
        queued=stamps("arrived"),
        scheduled=stamps("scheduled"),
        prefill_end=stamps("prefill_end"),
        first_token=stamps("first_token"),
        last_token=stamps("last_token"),
    )
    return Replay(log, np.array(start), np.array(running), np.array(waiting))
