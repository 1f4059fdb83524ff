"""Continuous-batch schedulers, step by step (chapter `scheduling`).

Time is counted in steps: step k lasts from time k to time k + 1. A stamp is the time of a step's
start or end, so the difference of two stamps is a number of steps. `lib.simulator` gives the
steps a length in seconds.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import FloatArray, count, nonnegative, one, require
from lib.record import RequestLog


def _integer(name: str, value: Any, minimum: int) -> int:
    if type(value) is int and value >= minimum:  # nearly always: a long trace makes a million
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer: got {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be >= {minimum}: got {value}")
    return int(value)


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number: got {value!r} ({type(value).__name__})")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1]: got {value}")
    return float(value)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False: got {value!r}")
    return value


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through prefill -> decode -> done.

    Parameters
    ----------
    req_id : a hashable label, unique among the requests that a scheduler holds.
    input_tokens, output_tokens : whole numbers >= 1.

    The scheduler writes the rest: the prompt tokens `prefilled` and the tokens `decoded` (emitted)
    so far, `finished`, and the stamps (steps), each None until it happens. `arrived` is the time of
    submission and `scheduled` the start of the step that first serves the request; `prefill_end`,
    `first_token` and `last_token` are the ends of the steps that compute the last prompt token,
    emit the first token and emit the last.

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
        try:
            hash(self.req_id)
        except TypeError:
            raise TypeError(f"req_id must be hashable: got {self.req_id!r}") from None
        self.input_tokens = _integer("input_tokens", self.input_tokens, minimum=1)
        self.output_tokens = _integer("output_tokens", self.output_tokens, minimum=1)

    def stage(self) -> str:
        """The stage the request is in: "prefill", "decode" or "done"."""
        if self.finished:
            return "done"
        return "prefill" if self.prefilled < self.input_tokens else "decode"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, by req_id.

    Parameters
    ----------
    start : the number of steps before it.
    scheduled : tokens computed for each request, in the order in which they were granted.
    decoded : those of `scheduled` that decode one token; the others prefill.
    preempted : thrown out of the batch, in order.
    running, waiting : the queues as they stand after scheduling.
    free_blocks : KV blocks free after scheduling; None where the scheduler has no KV memory.
    finished : those that end with this step.
    """

    start: int
    scheduled: dict[Hashable, int]
    decoded: list[Hashable]
    preempted: list[Hashable]
    running: list[Hashable]
    waiting: list[Hashable]
    free_blocks: int | None
    finished: list[Hashable]

    @property
    def prefilled(self) -> dict[Hashable, int]:
        """Prompt tokens computed for each request in prefill."""
        decoded = set(self.decoded)
        return {i: tokens for i, tokens in self.scheduled.items() if i not in decoded}

    @property
    def batch_size(self) -> int:
        """The number of requests served."""
        return len(self.scheduled)


class Work:
    """What one step computes: the counts that set its length, and the stamps that it earns.

    prefill_tokens : prompt tokens computed, or computed again after a preemption. decode_seqs :
    sequences that decode one token. seqs : sequences served. context_tokens : their contexts after
    the step, summed. pairs : query-key pairs, the sum of the positions (from 1) of all computed
    tokens. running, waiting : requests after scheduling. started, prefilled, first, finished,
    preempted : req_ids that are served for the first time, complete their prompt, emit the first
    token, emit the last, are thrown out.
    """

    __slots__ = (
        "context_tokens",
        "decode_seqs",
        "finished",
        "first",
        "pairs",
        "preempted",
        "prefill_tokens",
        "prefilled",
        "running",
        "seqs",
        "started",
        "waiting",
    )

    def __init__(self) -> None:
        self.prefill_tokens = self.decode_seqs = self.seqs = self.context_tokens = self.pairs = 0
        self.running = self.waiting = 0
        self.started: list[Any] = []
        self.prefilled: list[Any] = []
        self.first: list[Any] = []
        self.finished: list[Any] = []
        self.preempted: list[Any] = []

    def prefill(self, tokens: int, context: int) -> None:
        """Count a chunk of `tokens` that ends at `context`."""
        self.prefill_tokens += tokens
        self.seqs += 1
        self.context_tokens += context
        self.pairs += tokens * (2 * context - tokens + 1) // 2

    def decode(self, seqs: int, context: int) -> None:
        """Count `seqs` decodes whose contexts after the step sum to `context`."""
        self.decode_seqs += seqs
        self.seqs += seqs
        self.context_tokens += context
        self.pairs += context


class Run(NamedTuple):
    """Steps to come that repeat one batch: nobody enters, leaves before the last, or is preempted.

    steps : how many; 0 if the next step is none of the kind. decode_seqs : sequences that decode
    one token in each. decode_context : their computed tokens before the first, summed. chunk :
    tokens of one prompt that each computes, 0 for none. prefilled : its computed tokens before the
    first; the last step leaves some of the prompt to do. time_step : the first step.
    """

    steps: int
    decode_seqs: int = 0
    decode_context: int = 0
    chunk: int = 0
    prefilled: int = 0
    time_step: int = 0


NO_RUN = Run(0)

LARGEST_BLOCK = 65_536
"""The scheduler keeps a count for each slot of a block. Engines use 16 to some thousand."""


class Scheduler(ABC):
    """What every policy has in common: requests go in, steps come out.

    Attributes
    ----------
    time_step : the time now, the start of the next step.
    """

    def __init__(self) -> None:
        self.time_step = 0
        self._live_ids: set[Hashable] = set()

    @property
    def unfinished(self) -> int:
        """The number of requests in the system, waiting or running."""
        return len(self._live_ids)

    def submit(self, request: Request) -> None:
        """Queue a new request; the next step can serve it.

        Raises
        ------
        TypeError : `request` is not a Request.
        ValueError : it has been submitted or served before, its req_id is still in use, or it can
            never fit.
        """
        if not isinstance(request, Request):
            raise TypeError(f"request must be a Request: got {request!r}")
        if request.arrived is not None or request.prefilled or request.decoded or request.finished:
            raise ValueError(f"request must be new: got {request!r}")
        if request.req_id in self._live_ids:
            raise ValueError(f"req_id must be unique among live requests: got {request.req_id!r}")
        self.check(request)
        if not self._lets_in(request):
            return
        self._queue(request)
        request.arrived = self.time_step
        self._live_ids.add(request.req_id)

    def check(self, request: Request) -> None:  # noqa: B027 (most policies take any request)
        """Refuse a request that can never fit; `submit` does it too.

        Raises
        ------
        ValueError : with the reason.
        """

    def _lets_in(self, request: Request) -> bool:
        """Whether a request that fits may come in now; most policies take all."""
        return True

    @abstractmethod
    def _queue(self, request: Request) -> None:
        """Append a new request to the waiting queue."""

    @abstractmethod
    def step(self) -> Step:
        """Serve one batch, which may be empty, and let one step of time pass."""

    @abstractmethod
    def work(self) -> Work:
        """Take a step, like `step`, and tell only what it costs and whom it advances."""

    @abstractmethod
    def run(self) -> Run:
        """The steps to come that only repeat one batch."""

    def repeat(self, run: Run, steps: int) -> list[Any]:
        """Take the first `steps` of a `run` at once: the req_ids that finish with them.

        Raises
        ------
        TypeError, ValueError : `steps` is not a whole number from 1 to `run.steps`.
        RuntimeError : the scheduler has moved on since it gave the run.
        """
        if _integer("steps", steps, minimum=1) > run.steps:
            raise ValueError(f"steps must be at most run.steps = {run.steps}: got {steps}")
        if run.time_step != self.time_step:
            raise RuntimeError(
                f"run must be taken at once: it is of step {run.time_step}, now is {self.time_step}"
            )
        return self._repeat(run, steps)

    @abstractmethod
    def _repeat(self, run: Run, steps: int) -> list[Any]:
        """Take the steps, which are known to be right."""

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


class ContinuousBatchScheduler(Scheduler):
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
        super().__init__()
        self.max_batch_size = _integer("max_batch_size", max_batch_size, minimum=1)
        self.prefill_chunk = _integer("prefill_chunk", prefill_chunk, minimum=1)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.batch_history: list[int] = []

    def _queue(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> Step:
        """Serve one batch, which may be empty, and let one step of time pass."""
        return self._step(Work())

    def work(self) -> Work:
        """Take a step, like `step`, and tell only what it costs and whom it advances."""
        self._step(work := Work())
        return work

    def _step(self, work: Work) -> Step:
        decoding = [request for request in self.running if request.stage() == "decode"]
        prefilling = [request for request in self.running if request.stage() == "prefill"]
        prefill_slots = self.max_batch_size - len(decoding)
        while self.waiting and len(prefilling) < prefill_slots:
            prefilling.append(self._admit(work))

        start, self.time_step = self.time_step, self.time_step + 1
        scheduled: dict[Hashable, int] = {}
        for request in decoding:
            scheduled[request.req_id] = 1
            self._decode(request, work)
        for request in prefilling:
            scheduled[request.req_id] = self._prefill(request, work)
        step = Step(
            start=start,
            scheduled=scheduled,
            decoded=[request.req_id for request in decoding],
            preempted=[],
            running=[request.req_id for request in self.running],
            waiting=[request.req_id for request in self.waiting],
            free_blocks=None,
            finished=work.finished,
        )
        work.running, work.waiting = len(self.running), len(self.waiting)
        self.running = [request for request in self.running if not request.finished]
        self.batch_history.append(step.batch_size)
        return step

    def _admit(self, work: Work) -> Request:
        request = self.waiting.popleft()
        request.scheduled = self.time_step
        work.started.append(request.req_id)
        self.running.append(request)
        return request

    def _prefill(self, request: Request, work: Work) -> int:
        before = request.prefilled
        request.prefilled = min(request.input_tokens, before + self.prefill_chunk)
        if request.prefilled == request.input_tokens:
            request.prefill_end = self.time_step
            work.prefilled.append(request.req_id)
        work.prefill(request.prefilled - before, request.prefilled)
        return request.prefilled - before

    def _decode(self, request: Request, work: Work) -> None:
        request.decoded += 1
        work.decode(1, request.input_tokens + request.decoded)
        if request.decoded == 1:
            request.first_token = self.time_step
            work.first.append(request.req_id)
        if request.decoded == request.output_tokens:
            request.last_token = self.time_step
            request.finished = True
            self._live_ids.remove(request.req_id)
            work.finished.append(request.req_id)

    def run(self) -> Run:
        """The steps to come that only repeat one batch."""
        full = len(self.running) == self.max_batch_size
        settled = all(request.decoded for request in self.running)
        if not self.running or not settled or (self.waiting and not full):
            return NO_RUN
        return Run(
            min(request.output_tokens - request.decoded for request in self.running),
            len(self.running),
            sum(request.input_tokens + request.decoded for request in self.running),
            time_step=self.time_step,
        )

    def _repeat(self, run: Run, steps: int) -> list[Any]:
        self.time_step += steps - 1
        for request in self.running:
            request.decoded += steps - 1
        self.batch_history.extend([len(self.running)] * (steps - 1))
        return self.work().finished


class _Job:
    """A request in a TokenBudgetScheduler: what it knows, what is computed, what it holds.

    known : prompt tokens, and the tokens emitted so far. computed : those with KV. end : `known`
    when the last token is out. blocks : KV blocks held. order : rank of the admission. decoding :
    caught up once since its admission, so that it lacks exactly one token.
    """

    __slots__ = ("blocks", "computed", "decoding", "end", "known", "order", "request")

    def __init__(self, request: Request, end: int) -> None:
        self.request = request
        self.known = request.input_tokens
        self.end = end
        self.computed = self.blocks = self.order = 0
        self.decoding = False


class _Decoders:
    """Requests that decode a token in every step, advanced together at the cost of one.

    In a round each takes one token. So a member's count of computed tokens is a constant plus
    `rounds`, and only the constant is stored: it says too when the member ends, and in which
    rounds (once in `block_size`) it needs a new block.

    size : members. context_tokens : their computed tokens, summed. last : no member was admitted
    later.
    """

    __slots__ = ("_ends", "_takers", "block_size", "context_tokens", "last", "rounds", "size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.rounds = self.size = self.context_tokens = 0
        self.last = -1
        self._ends: list[tuple[int, int, _Job]] = []
        self._takers = [0] * block_size  # members by (round mod block_size) of a new block

    @property
    def rounds_to_end(self) -> int:
        """Rounds until the first member ends."""
        return self._ends[0][0] - self.rounds

    def members(self) -> list[_Job]:
        """The members in order of admission."""
        return [job for _, _, job in sorted(self._ends, key=lambda entry: entry[1])]

    def add(self, job: _Job) -> None:
        self.size += 1
        self.context_tokens += job.computed
        heappush(self._ends, (self.rounds + job.end - job.known, job.order, job))
        job.computed -= self.rounds
        self._takers[-job.computed % self.block_size] += 1
        self.last = max(self.last, job.order)

    def _leave(self, job: _Job) -> _Job:
        self.size -= 1
        self._takers[-job.computed % self.block_size] -= 1
        job.computed += self.rounds
        job.known = job.computed + 1
        job.request.decoded = job.known - job.request.input_tokens
        job.blocks = -(-job.computed // self.block_size)
        self.context_tokens -= job.computed
        return job

    def release(self) -> list[_Job]:
        """Let all members go, in order of admission."""
        members = [self._leave(job) for job in self.members()]
        self._ends.clear()
        self.last = -1
        return members

    def advance(self, rounds: int) -> list[_Job]:
        """Take `rounds` rounds: the members that end with the last one, in order of admission."""
        self.rounds += rounds
        self.context_tokens += self.size * rounds
        ended = []
        while self._ends and self._ends[0][0] == self.rounds:
            ended.append(self._leave(heappop(self._ends)[2]))
        return ended

    def blocks_taken(self, rounds: int) -> int:
        """New blocks that the next `rounds` rounds take."""
        if rounds == 1:  # by far the most frequent
            return self._takers[self.rounds % self.block_size]
        cycles, rest = divmod(rounds, self.block_size)
        first = self.rounds % self.block_size
        taken = sum(self._takers[first : first + rest])
        if first + rest > self.block_size:
            taken += sum(self._takers[: first + rest - self.block_size])
        return cycles * self.size + taken

    def rounds_within(self, rounds: int, blocks: int) -> int:
        """The most rounds, up to `rounds`, that take no more than `blocks` new blocks."""
        if -(-rounds // self.block_size) * self.size <= blocks:
            return rounds
        cycles = min(blocks // self.size, rounds // self.block_size)
        fit, left = cycles * self.block_size, blocks - cycles * self.size
        while fit < rounds and self._takers[(self.rounds + fit) % self.block_size] <= left:
            left -= self._takers[(self.rounds + fit) % self.block_size]
            fit += 1
        return fit


class TokenBudgetScheduler(Scheduler):
    """The rule of a real engine (vLLM): each step hands out a budget of tokens.

    There is no prefill phase and no decode phase. A request has known tokens (prompt and answer so
    far) and computed ones; a step lets computed catch up with known, within the budget
    (eq-scheduling-budget). The running requests come first, in order of admission, then the
    waiting ones in order of arrival. KV memory is granted in blocks. If a running request needs a
    block and none is free, the last running request is thrown out: it goes to the front of the
    queue, keeps its answer so far, and computes everything again. The step that catches up emits
    a token.

    Parameters
    ----------
    max_num_batched_tokens : token budget of a step, >= 1.
    max_num_seqs : most requests running, >= 1.
    num_kv_blocks : KV blocks that requests can use, >= 1. (vLLM's `num_gpu_blocks` is one more: it
        keeps a null block.)
    block_size : tokens a block, 1 to `LARGEST_BLOCK`.
    max_model_len : a request ends when prompt and answer reach this length (tokens).
    long_prefill_token_threshold : most tokens that one request gets in a step; a request alone in
        the system is exempt. 0 sets no limit.
    enable_chunked_prefill : False admits a prompt only if the budget left holds all of it.
    scheduler_reserve_full_isl : True admits a request only if the blocks for all its known tokens
        are free, though it takes those of its first chunk only.
    watermark : share of the blocks that an admission must leave free while others run, 0 to 1.

    Raises
    ------
    TypeError, ValueError : a count is not an integer or too small, a switch is not a bool, the
        watermark is not in [0, 1], or, without chunked prefill, the budget is below
        `max_model_len`, so that a prompt could wait for ever.

    Source: vLLM 0.32 and 0.33, `v1/core/sched/scheduler.py` (`schedule`) and
    `v1/core/kv_cache_manager.py` (`allocate_slots`), without prefix cache, speculative decoding,
    priorities and asynchronous scheduling.
    """

    def __init__(
        self,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        num_kv_blocks: int,
        block_size: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        enable_chunked_prefill: bool = True,
        scheduler_reserve_full_isl: bool = True,
        watermark: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_num_batched_tokens = _integer("max_num_batched_tokens", max_num_batched_tokens, 1)
        self.max_num_seqs = _integer("max_num_seqs", max_num_seqs, 1)
        self.num_kv_blocks = _integer("num_kv_blocks", num_kv_blocks, 1)
        self.block_size = _integer("block_size", block_size, 1)
        if self.block_size > LARGEST_BLOCK:
            raise ValueError(f"block_size must be at most {LARGEST_BLOCK}: got {block_size}")
        self.max_model_len = _integer("max_model_len", max_model_len, 2)
        self.long_prefill_token_threshold = _integer(
            "long_prefill_token_threshold", long_prefill_token_threshold, 0
        )
        self.enable_chunked_prefill = _switch("enable_chunked_prefill", enable_chunked_prefill)
        self.scheduler_reserve_full_isl = _switch(
            "scheduler_reserve_full_isl", scheduler_reserve_full_isl
        )
        self.watermark = _share("watermark", watermark)
        if not enable_chunked_prefill and max_num_batched_tokens < max_model_len:
            raise ValueError(
                "max_num_batched_tokens must be >= max_model_len without chunked prefill: got "
                f"{max_num_batched_tokens} < {max_model_len}"
            )
        self._free = self.num_kv_blocks
        self._reserve = int(self.watermark * (self.num_kv_blocks + 1))
        self._waiting: deque[_Job] = deque()
        self._running: dict[_Job, None] = {}  # in order of admission
        self._decoders = _Decoders(self.block_size)  # running, served together
        self._single: list[_Job] = []  # running, served one by one
        self._admissions = 0
        self._budget = 0
        self._round = False  # the decoders are served in this step
        self._granted: list[tuple[_Job, int]] = []  # and these, with their tokens

    def check(self, request: Request) -> None:
        """Refuse a request that can never fit; `submit` does it too.

        Raises
        ------
        ValueError : the prompt leaves no room for a token below `max_model_len`, or prompt and
            answer need more blocks than there are.
        """
        if request.input_tokens >= self.max_model_len:
            raise ValueError(
                f"input_tokens must be below max_model_len = {self.max_model_len}, to leave room "
                f"for a token: got {request.input_tokens}"
            )
        end = self._end(request)
        if (blocks := -(-(end - 1) // self.block_size)) > self.num_kv_blocks:
            raise ValueError(
                f"input_tokens + output_tokens must fit in num_kv_blocks = {self.num_kv_blocks}: "
                f"got {request.input_tokens} + {request.output_tokens} tokens, {blocks} blocks "
                f"of {self.block_size}"
            )

    def _end(self, request: Request) -> int:
        return min(request.input_tokens + request.output_tokens, self.max_model_len)

    def _queue(self, request: Request) -> None:
        self._waiting.append(_Job(request, self._end(request)))

    def step(self) -> Step:
        """Serve one batch, which may be empty, and let one step of time pass."""
        work = Work()
        self._schedule(work)
        together = self._decoders.members() if self._round else []
        granted = [(job, 1) for job in together] + self._granted
        step = Step(
            start=self.time_step,
            scheduled={job.request.req_id: tokens for job, tokens in granted},
            decoded=[
                job.request.req_id
                for job in [*together, *(job for job, _ in self._granted if job.decoding)]
            ],
            preempted=work.preempted,
            running=[job.request.req_id for job in self._running],
            waiting=[job.request.req_id for job in self._waiting],
            free_blocks=self._free,
            finished=work.finished,
        )
        self._update(work)
        for job in self._decoders.members():
            job.request.decoded = (
                self._decoders.rounds + job.computed + 1 - job.request.input_tokens
            )
        return step

    def work(self) -> Work:
        """Take a step, like `step`, and tell only what it costs and whom it advances.

        `Request.decoded` lags for requests that decode together, until they are done.
        """
        work = Work()
        self._schedule(work)
        self._update(work)
        return work

    def run(self) -> Run:
        """The steps to come that only repeat one batch."""
        decoders, chunk, prefilled = self._decoders, 0, 0
        steps = decoders.rounds_to_end if decoders.size else self.max_model_len
        self._budget = self._room()
        if self._single:
            job = self._single[0]
            lacking = job.known - job.computed
            chunk, prefilled = min(self._lacking(job), self._budget), job.computed
            alone = len(self._single) == 1 and self._turn(job) > (False, decoders.last)
            if not alone or not 0 < chunk < lacking:
                return NO_RUN
            steps = min(steps, (lacking - 1) // chunk)
            self._budget -= chunk
        if not 0 < decoders.size + chunk <= self.max_num_batched_tokens:
            return NO_RUN
        seats = len(self._running) < self.max_num_seqs
        if self._waiting and self._budget and seats and self._admissible(self._waiting[0]):
            return NO_RUN
        if chunk:
            most = decoders.size * self._blocks(steps) + self._blocks(steps * chunk)
            if most > self._free and self._run_blocks(steps, chunk) > self._free:
                return NO_RUN
        else:
            steps = decoders.rounds_within(steps, self._free)
        return Run(steps, decoders.size, decoders.context_tokens, chunk, prefilled, self.time_step)

    def _repeat(self, run: Run, steps: int) -> list[Any]:
        self._free -= self._run_blocks(steps, run.chunk)
        if run.chunk:
            job = self._single[0]
            job.computed += steps * run.chunk
            job.request.prefilled = min(job.computed, job.request.input_tokens)
            job.blocks = self._blocks(job.computed)
        self.time_step += steps
        return [self._finish(job) for job in self._decoders.advance(steps)]

    def _run_blocks(self, steps: int, chunk: int) -> int:
        """New blocks that `steps` steps of a run take."""
        blocks = self._decoders.blocks_taken(steps)
        if chunk:
            job = self._single[0]
            blocks += self._blocks(job.computed + steps * chunk) - job.blocks
        return blocks

    # The rule.

    def _schedule(self, work: Work) -> None:
        self._budget = self.max_num_batched_tokens
        self._granted = []
        self._round = False
        self._plan(work)
        work.running, work.waiting = len(self._running), len(self._waiting)

    def _plan(self, work: Work) -> None:
        self._serve_running(work)
        if not work.preempted:
            self._admit(work)

    def _serve_running(self, work: Work) -> None:
        """Grant tokens to the running requests, in turn, and throw out the last for want of KV."""
        self._serve_decoders()
        turns = self._single
        served = 0
        while served < len(turns) and self._budget:
            job = turns[served]
            tokens = min(self._lacking(job), self._budget)
            blocks = self._blocks(job.computed + tokens) - job.blocks
            while blocks > self._free:
                self._preempt(victim := turns.pop(), work)
                if victim is job:
                    return
            self._grant(job, tokens, blocks)
            served += 1

    def _admit(self, work: Work) -> None:
        """Let waiting requests in, strictly in order, as budget, seats and KV blocks allow."""
        while self._waiting and self._budget and len(self._running) < self.max_num_seqs:
            job = self._waiting[0]
            if not (tokens := self._admissible(job)):
                return
            self._waiting.popleft()
            job.order = self._admissions
            self._admissions += 1
            self._running[job] = None
            self._single.append(job)
            self._grant(job, tokens, self._blocks(tokens))
            if job.request.scheduled is None:
                job.request.scheduled = self.time_step
                work.started.append(job.request.req_id)

    def _lacking(self, job: _Job) -> int:
        """The tokens a request lacks, cut to the threshold unless it is alone."""
        lacking = job.known - job.computed
        limit = self.long_prefill_token_threshold
        return limit if 0 < limit < lacking and len(self._live_ids) > 1 else lacking

    def _admissible(self, job: _Job) -> int:
        """Tokens for a waiting request if it can be let in now, else 0."""
        tokens = self._lacking(job)
        if tokens > self._budget:
            if not self.enable_chunked_prefill:
                return 0
            tokens = self._budget
        needed = self._blocks(job.known if self.scheduler_reserve_full_isl else tokens)
        kept = self._reserve if self._running else 0
        return tokens if needed + kept <= self._free else 0

    def _grant(self, job: _Job, tokens: int, blocks: int) -> None:
        self._budget -= tokens
        self._free -= blocks
        job.blocks += blocks
        self._granted.append((job, tokens))

    def _preempt(self, job: _Job, work: Work) -> None:
        del self._running[job]
        self._free += job.blocks
        job.blocks = job.computed = job.request.prefilled = 0
        job.decoding = False
        self._requeue(job)
        work.preempted.append(job.request.req_id)

    def _update(self, work: Work) -> None:
        """The forward pass: computed catches up, and whoever has caught up emits a token."""
        self.time_step += 1
        decoders = self._decoders
        if self._round:
            work.decode(decoders.size, decoders.context_tokens + decoders.size)
            work.finished += [self._finish(job) for job in decoders.advance(1)]
        for job, tokens in self._granted:
            job.computed += tokens
            if job.decoding:
                work.decode(1, job.computed)
            else:
                work.prefill(tokens, job.computed)
                job.request.prefilled = min(job.computed, job.request.input_tokens)
            if job.computed == job.known:
                self._single.remove(job)
                self._emit(job, work)

    def _emit(self, job: _Job, work: Work) -> None:
        request = job.request
        job.known += 1
        job.decoding = True
        request.decoded = job.known - request.input_tokens
        if request.first_token is None:
            request.prefill_end = request.first_token = self.time_step
            work.prefilled.append(request.req_id)
            work.first.append(request.req_id)
        if job.known == job.end:
            work.finished.append(self._finish(job))
        else:
            self._decoders.add(job)

    def _finish(self, job: _Job) -> Hashable:
        request = job.request
        del self._running[job]
        self._free += job.blocks
        request.decoded = job.end - request.input_tokens
        request.last_token = self.time_step
        request.finished = True
        self._live_ids.remove(request.req_id)
        return request.req_id

    # Requests that decode together, so that a step costs what changes in it, not what it serves.

    def _serve_decoders(self) -> None:
        """Serve the decoders in one round if they come first and all fit; else one by one."""
        decoders, single = self._decoders, self._single
        if len(single) > 1:
            single.sort(key=self._turn)
        blocks = decoders.blocks_taken(1)
        first = not single or self._turn(single[0]) > (False, decoders.last)
        if first and decoders.size <= self._budget and blocks <= self._free:
            self._round = decoders.size > 0
            self._budget -= decoders.size
            self._free -= blocks
        else:
            single += decoders.release()
            single.sort(key=self._turn)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # What the other policies change.

    def _turn(self, job: _Job) -> tuple[bool, int]:
        """The place of a running request in the order of service."""
        return False, job.order

    def _requeue(self, job: _Job) -> None:
        """Put a preempted request back into the queue."""
        self._waiting.appendleft(job)

    def _room(self) -> int:
        """The budget that a batch of decoders leaves for admissions."""
        return self.max_num_batched_tokens - self._decoders.size


class DecodeFirstScheduler(TokenBudgetScheduler):
    """The real engine's rule, but decodes are served before prefills, whoever came first.

    The last to be served is the first to be preempted, so a prefill goes before any decode.
    """

    def _turn(self, job: _Job) -> tuple[bool, int]:
        return not job.decoding, job.order


class PrefillFirstScheduler(TokenBudgetScheduler):
    """Whole prompts first: a step prefills if it can admit anybody, and decodes only otherwise.

    Prompts are not chunked and not mixed with decodes, which stand still meanwhile. Parameters as
    TokenBudgetScheduler; `enable_chunked_prefill` and `long_prefill_token_threshold` are off.

    Source: Agrawal et al. (OSDI 2024), section 3, on prefill-prioritising schedulers.
    """

    def __init__(self, **limits: Any) -> None:
        super().__init__(**{"enable_chunked_prefill": False, **limits})
        if self.enable_chunked_prefill or self.long_prefill_token_threshold:
            raise ValueError(
                "enable_chunked_prefill and long_prefill_token_threshold must be off for whole "
                f"prompts: got {self.enable_chunked_prefill}, {self.long_prefill_token_threshold}"
            )

    def _plan(self, work: Work) -> None:
        self._admit(work)
        if not self._granted:
            self._serve_running(work)

    def _room(self) -> int:
        return self.max_num_batched_tokens


class QueueBackScheduler(TokenBudgetScheduler):
    """The real engine's rule, but a preempted request goes to the back of the queue."""

    def _requeue(self, job: _Job) -> None:
        self._waiting.append(job)


class DoorScheduler(TokenBudgetScheduler):
    """The real engine's rule behind a door: `submit` may refuse a request, by the load inside.

    A request is let in if its load and that of all unfinished requests sum to at most `most`. One
    that is refused stays as it was: `arrived` is None, and it may be submitted again.

    Parameters
    ----------
    load : what one request counts for now, a number >= 0, from its token counts and `prefilled`
        (`decoded` lags, see `work`): `lambda request: 1` counts heads. Each submission asks it of
        every unfinished request.
    most : the largest sum that is let in, >= 0. A request that alone exceeds it never comes in.
    limits : as TokenBudgetScheduler.

    Raises
    ------
    TypeError, ValueError : `load` is not a function, `most` is not a number >= 0, or as
        TokenBudgetScheduler. `submit` : a load that is not a number >= 0; nothing is queued then.
    """

    def __init__(self, load: Callable[[Request], float], most: float, **limits: Any) -> None:
        super().__init__(**limits)
        if not callable(load):
            raise TypeError(f"load must be a function of a Request: got {load!r}")
        self.load = load
        self.most = one("most", nonnegative("most", most))

    def _lets_in(self, request: Request) -> bool:
        inside = [job.request for job in (*self._running, *self._waiting)]
        loads = nonnegative("load", [self.load(r) for r in [*inside, request]])
        return bool(loads.sum() <= self.most)


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
