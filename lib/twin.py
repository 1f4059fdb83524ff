"""A twin of a real engine: the scheduler's rule and a fitted step time, run on a workload before
the engine runs it (chapter `twin`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import FloatArray, choice, of_kind, one, positive, require
from lib.engine_runs import EngineRun
from lib.goodput import attainment, goodput
from lib.record import RequestLog
from lib.scheduling import Request, Scheduler, TokenBudgetScheduler
from lib.simulator import SLACK, Simulation, StepLog, simulate
from lib.step_time import TERMS, Fit, Intervals, StepTime, fit, intervals_from_stamps

ROUNDS, STRIDE = 20, 0.7
"""Most rounds of simulating and fitting, and how far a round goes from its line to the fitted one.
A line that is too slow makes the batches too large, so the fit overshoots; whole strides swing."""

_LIMITS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_kv_blocks",
    "block_size",
    "max_model_len",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
)


def limits(run: EngineRun) -> dict[str, Any]:
    """The keyword arguments of `TokenBudgetScheduler` that a run's `meta` tells.

    Parameters
    ----------
    run : an engine run. Its engine arguments are read from `meta` itself, or from the parts
        `engine_kwargs`, `resolved_config` and `kv_cache` of it.

    Returns
    -------
    The limits. vLLM's `num_gpu_blocks` holds one null block, so one less is usable. What `meta`
    leaves out limits nothing: blocks (of 16 tokens, vLLM's size) for all requests at once, and
    the length of the longest request.

    Raises
    ------
    TypeError : `run` is no EngineRun.
    ValueError : `meta` has no `max_num_batched_tokens` or no `max_num_seqs`; a part of it is no
        object, a count of blocks or a block's size no whole number >= 1; a token count is missing.
    """
    of_kind("run", run, EngineRun)
    resolved = _part(run, run.meta, "resolved_config")
    told = {**run.meta, **_part(run, resolved, "scheduler_config")}
    for part in ("engine_kwargs", "kv_cache"):
        told |= _part(run, run.meta, part)
    told = {name: value for name, value in told.items() if value is not None}
    for name in ("num_gpu_blocks", "block_size"):
        if name in told and (type(told[name]) is not int or told[name] < 1):
            raise ValueError(
                f"{name} must be a whole number >= 1 in meta of run {run.name}: got {told[name]!r}"
            )
    if "num_gpu_blocks" in told:
        told["num_kv_blocks"] = told["num_gpu_blocks"] - 1
    told = {name: told[name] for name in _LIMITS if name in told}
    for name in _LIMITS[:2]:
        if name not in told:
            raise ValueError(f"{name} is missing in meta of run {run.name}")
    length = run.requests.column("input_tokens") + run.requests.column("output_tokens")
    block_size = told.setdefault("block_size", 16)
    told.setdefault("num_kv_blocks", int(np.sum(np.ceil(length / block_size))))
    told.setdefault("max_model_len", int(length.max()))
    return told


def _part(run: EngineRun, whole: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of the meta file, empty where the file has none."""
    part = whole.get(key) or {}
    if not isinstance(part, Mapping):
        raise ValueError(f"{key} must be an object in meta of run {run.name}: got {part!r:.80}")
    return part


@dataclass(frozen=True, eq=False)
class Retrace:
    """What the rule does on a real engine's clock; see `retrace`.

    requests : the run's requests, stamped by the rule; NaN for what it has not done by the end.
    steps : the engine's starts and ends, with the rule's counts.
    begin : (k,) moment (s) from which the engine is busy with the step: the end of the step
        before, or a later arrival at an idle engine.
    """

    requests: RequestLog
    steps: StepLog
    begin: FloatArray

    def rows(self) -> Intervals:
        """Rows for `step_time.fit`. A step lasts from `begin` to its end, so that the time between
        two steps has its place: the clock of the twin has no gaps."""
        counts = {name: getattr(self.steps, name) for name in TERMS[1:]}
        return Intervals(duration=self.steps.end - self.begin, **counts)


def retrace(run: EngineRun, scheduler: Scheduler) -> Retrace:
    """Drive a scheduler with the steps that an engine took: its starts and ends, our batches.

    A step serves what the scheduler chooses from the requests queued by its start. No step-time
    model takes part, so a difference from the engine's log is an error of the rule alone.

    Parameters
    ----------
    run : an engine run with a step log.
    scheduler : an empty scheduler, `TokenBudgetScheduler(**limits(run))` for the engine's rule.

    Returns
    -------
    Retrace.

    Raises
    ------
    TypeError : an argument is of another kind.
    ValueError : the run has no step log; a stamp or token count is missing; the scheduler holds
        requests or can never serve one.
    """
    of_kind("run", run, EngineRun)
    of_kind("scheduler", scheduler, Scheduler)
    if run.steps is None:
        raise ValueError(f"steps must be recorded to retrace them: run {run.name} has no step log")
    if scheduler.unfinished:
        raise ValueError(f"scheduler must be empty: got {scheduler.unfinished} unfinished requests")
    log = run.requests
    queued, arrival = log.column("queued"), log.column("arrival")
    prompt, answer = log.column("input_tokens"), log.column("output_tokens")
    coming = np.argsort(queued, kind="stable").tolist()[::-1]
    stamps = {name: np.full(len(log), np.nan) for name in ("scheduled", "first", "last")}
    columns = (*TERMS[1:], "seqs", "running", "waiting")
    counts: list[list[int]] = []
    begin: list[float] = []
    before = 0.0
    for start, end in zip(run.steps.start.tolist(), run.steps.end.tolist(), strict=True):
        idle, due = not scheduler.unfinished, start
        while coming and queued[coming[-1]] <= start + SLACK:
            i = coming.pop()
            due = min(due, float(arrival[i]))
            scheduler.submit(Request(i, int(prompt[i]), int(answer[i])))
        begin.append(max(before, due) if idle else before)
        before = end
        work = scheduler.work()
        stamps["scheduled"][work.started] = start
        stamps["first"][work.first] = end
        stamps["last"][work.finished] = end
        counts.append([getattr(work, name) for name in columns])
    return Retrace(
        requests=RequestLog(
            arrival=arrival,
            queued=queued,
            input_tokens=prompt,
            output_tokens=answer,
            scheduled=np.maximum(stamps["scheduled"], queued),
            first_token=stamps["first"],
            last_token=stamps["last"],
            request_id=log.request_id,
        ),
        steps=StepLog(
            start=run.steps.start,
            end=run.steps.end,
            **dict(zip(columns, np.array(counts, dtype=np.float64).T, strict=True)),
        ),
        begin=np.array(begin),
    )


def calibrate(*runs: EngineRun) -> Fit:
    """A step time fitted to the step logs of one or more runs (eq-step-time-fit).

    The logs do not tell the pairs; the rule does, see `retrace`.

    Parameters
    ----------
    runs : engine runs with a step log, of one model on one machine.

    Returns
    -------
    Fit, its rows in the order of the runs.

    Raises
    ------
    ValueError, TypeError : no run; as `limits`, `retrace` and `step_time.fit`.
    """
    if not runs:
        raise ValueError("runs must hold a run: got none")
    each = [retrace(run, TokenBudgetScheduler(**limits(run))).rows() for run in runs]
    columns = {
        name: np.concatenate([getattr(rows, name) for rows in each])
        for name in ("duration", *TERMS)
    }
    return fit(Intervals(**columns))


def calibrate_from_stamps(
    log: RequestLog,
    scheduler: Scheduler,
    chosen: ArrayLike,
    terms: tuple[str, ...] = ("steps", "prefill_tokens", "context_tokens"),
) -> StepTime:
    """A step time fitted to request stamps, where the engine logs no steps (eq-twin-stamps).

    The steps come from a simulation: what the twin computes from a request's arrival to its last
    token, and from its first token to its last, is put against the time that the engine took.
    The fit changes the simulation, so both are repeated until the fit comes back to one it has
    been at, or `ROUNDS` times. Of these fits the one with the least squared relative error in the
    two times is returned.

    Parameters
    ----------
    log : all requests of the run.
    scheduler : an empty scheduler with the engine's rule and limits; it is empty again afterwards.
    chosen : (n,) bool, requests whose stamps are used. Of the others only arrival and lengths are.
    terms : which of `step_time.TERMS` the line has. A decoding sequence costs mostly by its
        context, and where all contexts are long the two cannot be told apart.

    Returns
    -------
    StepTime of one line.

    Raises
    ------
    ValueError, TypeError : `chosen` is not one bool a request; a stamp is missing; as `simulate`
        and `step_time.fit`.
    """
    of_kind("log", log, RequestLog)
    some = log.where(np.asarray(chosen))
    rows = intervals_from_stamps(
        some.column("first_token"),
        some.column("last_token"),
        some.column("input_tokens"),
        some.column("output_tokens"),
    )
    measured = _spans(some)
    step_time = best = _rounded(fit(rows, terms).step_time.lines[0])
    seen: set[StepTime] = set()
    least = np.inf
    while step_time not in seen and len(seen) < ROUNDS:
        seen.add(step_time)
        simulation = simulate(log, scheduler, step_time)
        spans = _spans(simulation.requests.where(np.asarray(chosen)))
        loss = sum(
            float(np.mean((twin[2] / real[2] - 1) ** 2))
            for twin, real in zip(spans, measured, strict=True)
        )
        if loss < least:
            least, best = loss, step_time
        target = fit(_work(simulation, spans, measured), terms).step_time.lines[0]
        here = step_time.lines[0]
        step_time = _rounded(x + STRIDE * (y - x) for x, y in zip(here, target, strict=True))
    return best


def _rounded(line: Iterable[float]) -> StepTime:
    """Four digits: more than the stamps tell. A twin that preempts turns the last bit of a float
    into another schedule, and that bit is not the same on every platform."""
    a, p, q, k, r = (float(f"{x:.4g}") for x in line)
    return StepTime(((a, p, q, k, r),))


_Span = tuple[FloatArray, FloatArray, FloatArray]


def _spans(log: RequestLog) -> tuple[_Span, _Span]:
    """Begin, end and length (s): from arrival to last token, and from first token to last."""
    many = log.output_tokens > 1
    arrival, first, last = log.arrival, log.first_token[many], log.last_token
    return (arrival, last, last - arrival), (first, last[many], last[many] - first)


def _work(
    simulation: Simulation, spans: tuple[_Span, _Span], measured: tuple[_Span, _Span]
) -> Intervals:
    """What the simulated engine computes in each span, and how long the real one took for it."""
    steps = simulation.steps()
    edges = np.stack([steps.start, steps.end], axis=1).ravel()
    begin, end = (np.concatenate([span[i] for span in spans]) for i in (0, 1))
    work = {}
    for name in TERMS:
        each = np.ones(len(steps.start)) if name == "steps" else getattr(steps, name)
        total = np.cumsum(each)
        done = np.stack([total - each, total], axis=1).ravel()
        work[name] = np.interp(end, edges, done) - np.interp(begin, edges, done)
    order = np.argsort(begin, kind="stable")
    rows = Intervals(duration=np.concatenate([span[2] for span in measured]), **work)
    return rows.where(order)


def predict(
    run: EngineRun,
    step_time: StepTime,
    policy: type[TokenBudgetScheduler] = TokenBudgetScheduler,
    **changes: Any,
) -> Simulation:
    """Run the twin on a run's arrivals and lengths (eq-twin-clock); its stamps are not read.

    Parameters
    ----------
    run : tells the arrivals, the lengths and the limits.
    step_time : the length of a step, from another run.
    policy : the scheduler's rule.
    changes : limits that differ from the run's.

    Returns
    -------
    Simulation.

    Raises
    ------
    ValueError, TypeError : as `limits`, the scheduler and `simulate`.
    """
    scheduler = policy(**limits(run) | changes)
    return simulate(run.requests, scheduler, step_time)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A prediction beside the measurement; see `compare`.

    measured, predicted : by name, such as "TTFT P99" (s), "attainment", "goodput" (requests/s).
    each : (n,) relative error of each request's E2E.
    """

    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    each: FloatArray

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over measured, less 1, by name."""
        return {name: self.predicted[name] / self.measured[name] - 1 for name in self.measured}

    @property
    def typical_error(self) -> float:
        """Median of the absolute values of `each`."""
        return float(np.median(np.abs(self.each)))


def error_table(
    comparisons: Mapping[str, Comparison], targets: Mapping[str, float] | None = None
) -> str:
    """A Markdown table of `Comparison.errors`, one column a comparison and one row a figure.

    Parameters
    ----------
    comparisons : by the name that heads the column.
    targets : largest relative error by figure, such as {"TTFT P99": 0.1}; what misses is bold.

    Returns
    -------
    Markdown, the errors in per cent; the last row is `Comparison.typical_error`.

    Raises
    ------
    ValueError : no comparison; a target for a figure that is not compared, or one that is not > 0.
    """
    if not comparisons:
        raise ValueError("comparisons must hold a comparison: got none")
    limit = {name: one(name, positive(name, x)) for name, x in (targets or {}).items()}
    for name in limit:
        choice("targets", name, tuple(next(iter(comparisons.values())).measured))
    heads = (name.replace("_", " ") for name in comparisons)  # so that a long one can wrap
    lines = [f"| error (%) | {' | '.join(heads)} |", "|---" * (len(comparisons) + 1) + "|"]
    errors = [comparison.errors for comparison in comparisons.values()]
    for name in errors[0]:
        each = [f"{round(100 * e[name], 1) + 0.0:+.1f}" for e in errors]  # no "-0.0"
        missed = [abs(e[name]) > limit.get(name, np.inf) for e in errors]
        each = [f"**{text}**" if bold else text for text, bold in zip(each, missed, strict=True)]
        lines.append(f"| {name} | {' | '.join(each)} |")
    typical = [f"{100 * comparison.typical_error:.1f}" for comparison in comparisons.values()]
    lines.append(f"| E2E of a request, median size | {' | '.join(typical)} |")
    return "\n".join(lines)


def compare(
    measured: RequestLog,
    predicted: RequestLog,
    *,
    ttft_slo: float,
    tpot_slo: float,
    chosen: ArrayLike | None = None,
) -> Comparison:
    """Errors of a prediction: TTFT, TPOT and E2E (mean, P50, P90, P99), attainment and goodput.

    Parameters
    ----------
    measured, predicted : the same requests in the same order, stamped by the engine and by the
        twin.
    ttft_slo, tpot_slo : limits for attainment and goodput (s, s per token).
    chosen : (n,) bool, the requests to compare; all when left out.

    Returns
    -------
    Comparison. Goodput is per second from the first arrival to the last token of those compared.
    TPOT is that of answers of two tokens or more.

    Raises
    ------
    TypeError : a log is no RequestLog.
    ValueError : the logs hold different requests, or a stamp is missing; a limit is not > 0;
        `chosen` is not one bool a request, or selects none of two tokens, or one that failed; a
        measured figure is 0, or the engine met the SLO for no request, so that a relative error
        has no meaning.
    """
    of_kind("measured", measured, RequestLog)
    of_kind("predicted", predicted, RequestLog)
    for name in ("arrival", "input_tokens", "output_tokens"):
        if not np.array_equal(measured.column(name), predicted.column(name)):
            raise ValueError(f"predicted must hold the same requests as measured: {name} differs")
    ttft_slo = one("ttft_slo", positive("ttft_slo", ttft_slo))
    tpot_slo = one("tpot_slo", positive("tpot_slo", tpot_slo))
    mask = np.full(len(measured), True) if chosen is None else np.asarray(chosen)
    logs = measured.where(mask), predicted.where(mask)
    for name, log in zip(("measured", "predicted"), logs, strict=True):
        if not log.succeeded.all():
            raise ValueError(
                f"{name} must hold requests that succeeded: {np.sum(~log.succeeded)} of those "
                "chosen failed"
            )
    if not np.any(logs[0].output_tokens > 1):
        raise ValueError("chosen must select a request of two tokens or more: got none")
    real, twin = (_figures(log, ttft_slo, tpot_slo) for log in logs)
    if min(real.values()) <= 0 and real["goodput"]:
        name = min(real, key=lambda figure: real[figure])
        raise ValueError(f"measured must be above 0 to be compared: got {name} = {real[name]:g}")
    if not real["goodput"]:
        raise ValueError(
            f"ttft_slo and tpot_slo must be met by some request of the engine: got {ttft_slo:g}, "
            f"{tpot_slo:g}, met by none"
        )
    e2e, twin_e2e = (log.last_token - log.arrival for log in logs)
    require("E2E of measured", e2e, e2e > 0, "> 0")
    return Comparison(measured=real, predicted=twin, each=twin_e2e / e2e - 1)


def _figures(log: RequestLog, ttft_slo: float, tpot_slo: float) -> dict[str, float]:
    metrics = log.metrics()
    many = log.output_tokens > 1
    values = {
        "TTFT": np.asarray(metrics.ttft),
        "TPOT": np.asarray(metrics.tpot)[many],
        "E2E": np.asarray(metrics.e2e_latency),
    }
    figures = {}
    for name, value in values.items():
        figures[f"{name} mean"] = float(value.mean())
        for q in (50, 90, 99):
            figures[f"{name} P{q}"] = float(np.percentile(value, q))
    window = float(log.last_token.max() - log.arrival.min())
    figures["attainment"] = attainment(metrics, ttft_slo, tpot_slo).ratio
    figures["goodput"] = goodput(metrics, window, ttft_slo, tpot_slo)
    return figures
