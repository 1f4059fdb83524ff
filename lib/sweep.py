"""Sweeps: rates, policies, chunk sizes and seeds, simulated on any `concurrent.futures.Executor`.

A case is a few plain values, and a pure function turns it into a result, so cases run anywhere and
in any order: threads, processes, or the pool of a cluster (Dask, Ray, MPI) with the same face.
"""

import json
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor, Future, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, read_json
from lib._validate import FloatArray, choice, count, of_kind, one, positive
from lib.goodput import attainment, goodput, request_throughput
from lib.percentile import percentile
from lib.record import RequestLog
from lib.scheduling import (
    DecodeFirstScheduler,
    PrefillFirstScheduler,
    QueueBackScheduler,
    TokenBudgetScheduler,
)
from lib.simulator import simulate
from lib.step_time import StepTime

POLICIES: dict[str, type[TokenBudgetScheduler]] = {
    "admission order": TokenBudgetScheduler,
    "decode first": DecodeFirstScheduler,
    "prefill first": PrefillFirstScheduler,
    "queue back": QueueBackScheduler,
}
"""The policies that share a token budget and KV blocks. The first is the real engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation of a sweep.

    Parameters
    ----------
    rate : arrivals per second (1/s) > 0.
    policy : a name in `POLICIES`.
    max_num_batched_tokens : token budget of a step, and with it the largest chunk, >= 1.
    seed : whole number >= 0. It sets arrivals and lengths, whatever the policy and the budget.

    Raises
    ------
    ValueError, TypeError : a value is out of range or of another kind.
    """

    rate: float
    policy: str
    max_num_batched_tokens: int
    seed: int

    def __post_init__(self) -> None:
        budget = count("max_num_batched_tokens", self.max_num_batched_tokens, minimum=1)
        plain = {
            "rate": one("rate", positive("rate", self.rate)),
            "policy": choice("policy", self.policy, tuple(POLICIES)),
            "max_num_batched_tokens": int(one("max_num_batched_tokens", budget)),
            "seed": int(one("seed", count("seed", self.seed))),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles (linear) of a latency over requests, in its unit."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one case gave.

    case : the case. n : requests, all served. ttft, e2e : (s). tpot : (s per token), over the
    requests with two tokens or more; None without any. throughput, goodput : requests per second,
    from the first arrival to the last token. attainment : share of requests that meet the SLO.
    preemptions : over all requests. mean_batch : sequences in a step, every step weighing the same.
    """

    case: Case
    n: int
    ttft: Summary
    tpot: Summary | None
    e2e: Summary
    throughput: float
    goodput: float
    attainment: float
    preemptions: int
    mean_batch: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Setting:
    """What all cases of a sweep share.

    Parameters
    ----------
    input_tokens, output_tokens : (m,) lengths to draw from, row by row: those of a trace, say.
    requests : in each case, >= 1.
    limits : the scheduler's other keyword arguments (see TokenBudgetScheduler).
    step_time : the length of a step.
    ttft_slo, tpot_slo, e2e_slo : limits (s, s per token, s), at least one; None leaves one out.

    Raises
    ------
    ValueError, TypeError : a value is out of range or of another kind; the lengths differ in number
        or are none; no SLO.
    """

    input_tokens: FloatArray
    output_tokens: FloatArray
    requests: int
    limits: Mapping[str, Any]
    step_time: StepTime
    ttft_slo: float | None = None
    tpot_slo: float | None = None
    e2e_slo: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            lengths = count(name, getattr(self, name), minimum=1)
            if lengths.ndim != 1 or lengths.size == 0:
                raise ValueError(f"{name} must be a non-empty list: got shape {lengths.shape}")
            object.__setattr__(self, name, lengths)
        if self.input_tokens.size != self.output_tokens.size:
            raise ValueError(
                "output_tokens must have one value a prompt: "
                f"got {self.output_tokens.size} for {self.input_tokens.size}"
            )
        object.__setattr__(
            self, "requests", int(one("requests", count("requests", self.requests, minimum=1)))
        )
        if not isinstance(self.limits, Mapping):
            raise TypeError(f"limits must be a mapping: got {self.limits!r:.80}")
        if "max_num_batched_tokens" in self.limits:
            raise ValueError("limits must leave max_num_batched_tokens to the cases")
        object.__setattr__(self, "limits", dict(self.limits))
        if not isinstance(self.step_time, StepTime):
            raise TypeError(f"step_time must be a StepTime: got {self.step_time!r:.80}")
        for name in ("ttft_slo", "tpot_slo", "e2e_slo"):
            if (limit := getattr(self, name)) is not None:
                object.__setattr__(self, name, one(name, positive(name, limit)))
        if self.slo == (None, None, None):
            raise ValueError("ttft_slo, tpot_slo or e2e_slo must be given: no limit")

    @property
    def slo(self) -> tuple[float | None, float | None, float | None]:
        """The limits of TTFT, TPOT and E2E, as `lib.goodput` takes them."""
        return self.ttft_slo, self.tpot_slo, self.e2e_slo

    def workload(self, rate: float, seed: int) -> RequestLog:
        """Poisson arrivals at `rate` (1/s), and lengths drawn with replacement from the rows given.

        One seed gives the same lengths at any rate, and the same arrivals but for the scale.

        Raises
        ------
        ValueError, TypeError : as `Case`.
        """
        rate = one("rate", positive("rate", rate))
        random = np.random.default_rng(int(one("seed", count("seed", seed))))
        row = random.integers(self.input_tokens.size, size=self.requests)
        return RequestLog(
            arrival=np.cumsum(random.standard_exponential(self.requests)) / rate,
            input_tokens=self.input_tokens[row],
            output_tokens=self.output_tokens[row],
        )

    def scheduler(self, case: Case) -> TokenBudgetScheduler:
        """An empty scheduler for a case."""
        return POLICIES[case.policy](
            max_num_batched_tokens=case.max_num_batched_tokens, **self.limits
        )

    def identity(self) -> dict[str, Any]:
        """Everything that results depend on beside the case, as plain JSON values."""
        lengths = np.stack([self.input_tokens, self.output_tokens]).astype("<i8")
        plain = {
            "lengths": sha256(lengths.tobytes()).hexdigest(),
            "requests": self.requests,
            "limits": self.limits,
            "step_time": self.step_time.lines,
            "slo": self.slo,
        }
        copy: dict[str, Any] = json.loads(json.dumps(plain, default=lambda scalar: scalar.item()))
        return copy


def grid(
    *,
    rates: Iterable[float],
    policies: Iterable[str],
    max_num_batched_tokens: Iterable[int],
    seeds: Iterable[int],
) -> list[Case]:
    """Every combination, the last argument varying fastest.

    Parameters
    ----------
    rates, policies, max_num_batched_tokens, seeds : values of the fields of `Case`.

    Returns
    -------
    The cases.

    Raises
    ------
    ValueError, TypeError : as `Case`.
    """
    return [
        Case(rate=rate, policy=policy, max_num_batched_tokens=budget, seed=seed)
        for rate, policy, budget, seed in product(rates, policies, max_num_batched_tokens, seeds)
    ]


def run_case(setting: Setting, case: Case) -> Result:
    """Simulate one case: a pure function of its arguments.

    Parameters
    ----------
    setting : what the cases share.
    case : the case.

    Returns
    -------
    Result.

    Raises
    ------
    TypeError : an argument is of another kind.
    ValueError : a request can never fit, or the limits suit no scheduler.
    """
    for name, value, kind in (("setting", setting, Setting), ("case", case, Case)):
        of_kind(name, value, kind)
    workload = setting.workload(case.rate, case.seed)
    simulation = simulate(workload, setting.scheduler(case), setting.step_time)
    served = simulation.requests
    metrics = served.metrics()
    window = float(served.last_token.max() - served.arrival.min())
    many = metrics.output_tokens > 1
    return Result(
        case=case,
        n=len(served),
        ttft=_summary(metrics.ttft),
        tpot=_summary(metrics.tpot[many]) if many.any() else None,
        e2e=_summary(metrics.e2e_latency),
        throughput=float(request_throughput(len(served), window)),
        goodput=goodput(metrics, window, *setting.slo),
        attainment=attainment(metrics, *setting.slo).ratio,
        preemptions=int(simulation.preemptions.sum()),
        mean_batch=float(simulation.steps().seqs.mean()),
    )


def sweep(
    executor: Executor,
    setting: Setting,
    cases: Iterable[Case],
    *,
    results: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Result]:
    """Simulate every case on an executor.

    Parameters
    ----------
    executor : anything with the face of `concurrent.futures.Executor`; it stays open.
    setting : what the cases share.
    cases : no two alike, from `grid` or by hand.
    results : file that keeps each result as soon as it is there, as JSON lines. Its first line
        tells the setting, each further line is a case. Cases found there are not run again, so a
        sweep that was stopped goes on where it was, and a grid can grow later. The file cannot
        tell that the library's code has changed: then begin a new one.
    progress : called with (cases done, all cases) before the first and after each.

    Returns
    -------
    Results in the order of `cases`, the same for every executor.

    Raises
    ------
    TypeError : an argument is of another kind.
    ValueError : no case; a case appears twice; a scheduler refuses the limits; `results` holds a
        line that is none of these, a case twice, or a sweep of another setting.
    RuntimeError : a case failed; the message names it. Cases not begun are cancelled, and results
        already in the file stay.

    A run that is killed while it writes leaves a last line without its end. Such a line is cut off
    with a warning, and its case is run again. A line that is no result of a case is refused with
    file and line; a figure that was altered by hand cannot be told from a measured one.
    """
    for name, value, kind in (("executor", executor, Executor), ("setting", setting, Setting)):
        of_kind(name, value, kind)
    cases = list(cases)
    for case in cases:
        if not isinstance(case, Case):
            raise TypeError(f"cases must hold Case objects: got {case!r:.80}")
    if not cases:
        raise ValueError("cases must hold a case: got none")
    if len(set(cases)) < len(cases):
        twice = next(case for i, case in enumerate(cases) if case in cases[:i])
        raise ValueError(f"cases must differ: got {twice} twice")
    for case in cases:
        with located(str(case)):
            setting.scheduler(case)

    done = {} if results is None else _open(Path(results), setting)
    todo = [case for case in cases if case not in done]
    report = progress or (lambda *_: None)
    report(len(cases) - len(todo), len(cases))
    with closing(_run(executor, setting, todo)) as stream:
        for finished, result in enumerate(stream, start=len(cases) - len(todo) + 1):
            done[result.case] = result
            if results is not None:
                _append(Path(results), asdict(result))
            report(finished, len(cases))
    return [done[case] for case in cases]


def _run(executor: Executor, setting: Setting, cases: list[Case]) -> Generator[Result, None, None]:
    """The results, each as soon as it is there."""
    futures: dict[Future[Result], Case] = {}
    waiting = []
    try:
        for case in cases:
            future = executor.submit(run_case, setting, case)
            futures[future] = case
            if future.done():  # an executor may run it on the spot
                yield _outcome(case, future)
            else:
                waiting.append(future)
        for future in as_completed(waiting):
            yield _outcome(futures[future], future)
    finally:
        for future in futures:
            future.cancel()


def _outcome(case: Case, future: Future[Result]) -> Result:
    try:
        return future.result()
    except Exception as error:
        raise RuntimeError(f"{case} failed: {type(error).__name__}: {error}") from error


def _summary(values: FloatArray) -> Summary:
    return Summary(float(values.mean()), *(percentile(values, q).value for q in (50, 90, 99)))


# The file of results ------------------------------------------------------------------------------


def _append(path: Path, row: dict[str, Any]) -> None:
    """Add a line in a single write, so that a killed run leaves at most this one unfinished."""
    line = json.dumps(row, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def _open(path: Path, setting: Setting) -> dict[Case, Result]:
    """The results that a file holds; a missing or empty one begins with the setting."""
    content = path.read_bytes() if path.exists() else b""
    head = b'{"setting": '
    if not head.startswith(content[: len(head)]):
        raise ValueError(f"{path.name}, line 1: results must be a file that a sweep began")
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        line = content.count(b"\n") + 1
        warnings.warn(f"{path.name}, line {line}: cut off an unfinished line", stacklevel=3)
        with path.open("r+b") as file:
            file.truncate(whole)
    if not whole:
        _append(path, {"setting": setting.identity()})
        return {}
    (where, first), *rows = read_json(path)
    found = entry(where, first).entry("setting")
    for key, value in setting.identity().items():
        if (other := found.get(key)) != value:
            raise ValueError(
                f"{found.where}: the file holds another sweep: {key} is {other!r}, not {value!r}"
            )
    done: dict[Case, Result] = {}
    for where, row in rows:
        result = _result(entry(where, row))
        if asdict(result) != row:
            raise ValueError(f"{where}: the line must hold the keys of a Result and no other")
        if result.case in done:
            raise ValueError(f"{where}: {result.case} appears twice")
        done[result.case] = result
    return done


def _result(row: Entry) -> Result:
    def summary(key: str) -> Summary:
        return Summary(*(row.entry(key).number(name) for name in ("mean", "p50", "p90", "p99")))

    values = row.entry("case")
    rate, policy = values.number("rate"), values.text("policy")
    budget, seed = values.count("max_num_batched_tokens"), values.count("seed")
    with located(values.where):
        case = Case(rate=rate, policy=policy, max_num_batched_tokens=budget, seed=seed)
    return Result(
        case=case,
        n=row.count("n"),
        ttft=summary("ttft"),
        tpot=None if row.get("tpot") is None else summary("tpot"),
        e2e=summary("e2e"),
        throughput=row.number("throughput"),
        goodput=row.number("goodput"),
        attainment=row.number("attainment"),
        preemptions=row.count("preemptions"),
        mean_batch=row.number("mean_batch"),
    )
