"""The ledger read backwards: from late requests to the entry that makes them late (chapter
`diagnosis`).

A time is its floor, what the request would take alone, and the excesses of its entries. A value is
*high* when the share of requests within its limit is below the target, and the interval of that
share says so too. The rules in `RULES` are data: conditions on a `Ledger`, tried in order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    count,
    nonnegative,
    of_kind,
    one,
    positive,
    real,
    require,
)
from lib.goodput import SLACK_S, wilson_interval
from lib.latency import tpot
from lib.occupancy import occupancy_curve, peak, time_average
from lib.queue_sim import mean_interval
from lib.record import RequestLog

BATCHES = 10
"""Stretches of a run whose means are compared. Student's t with 9 degrees of freedom is 2.26, near
the 1.96 of many; more and shorter stretches would hide that neighbours resemble each other."""

FEWEST = 2 * BATCHES
"""Requests below which no share is judged: a stretch of one has no mean."""

METRICS = ("ttft", "tpot", "e2e")
WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}

TARGET = 0.9
"""Share of requests that must keep a limit, unless told: as in DistServe (OSDI 2024), section 2."""


@dataclass(frozen=True, eq=False)
class Split:
    """A time of every request, floor plus excesses, exactly (eq-diagnosis-split).

    floor : (n,) what the request would take alone. excess : for each entry (n,) what it adds, >= 0.
    alone : (k,) the time itself of requests that had the engine to themselves.
    """

    floor: FloatArray
    excess: Mapping[str, FloatArray]
    alone: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def total(self) -> FloatArray:
        """(n,) the time itself."""
        total: FloatArray = self.floor + np.sum(list(self.excess.values()), axis=0)
        return total


@dataclass(frozen=True)
class Judged:
    """How one limit is kept, and what the late requests are late for.

    limit : (s; s per token for TPOT), None where it is each request's own. judged, kept : requests.
    low, high : 95 % interval of the share kept. late : for each name of `blame` the late requests
    that it names. late_alone : late ones that had the engine to themselves, and those of `unloaded`
    that would be.
    """

    metric: str
    limit: float | None
    target: float
    judged: int
    kept: int
    low: float
    high: float
    late: Mapping[str, int] = field(default_factory=dict)
    late_alone: int = 0

    @property
    def share(self) -> float:
        """Share of the judged requests within the limit."""
        return self.kept / self.judged


@dataclass(frozen=True)
class Growth:
    """Growth of the number present while more arrive: dN/dt = lambda - X (eq-diagnosis-growth).

    value, low, high : growth with its 95 % interval (requests/s). arrived, left : lambda and X in
    the window (requests/s). start, end : the window (s). what : present where, "system" or "queue".
    """

    value: float
    low: float
    high: float
    arrived: float
    left: float
    start: float
    end: float
    what: str = "system"


@dataclass(frozen=True, eq=False, kw_only=True)
class Ledger:
    """What a run's record says, as far as it is known: None is not known, and `missing` says why.

    requests, failed : completed ones, and others. duration : window (s). throughput, goodput :
    (requests/s). ttft, tpot, e2e, slo : how each limit, and all of them together, are kept; where
    `e2e_slo` is not given but the other two are, E2E is held to their sum, request by request.
    mean_ttft, mean_tpot, mean_e2e : (s). entries : mean of each entry of E2E (s), floors included.
    growth : see `Growth`. in_system, in_batch : time averages (requests). peak_batch : the most in
    the batch at once. max_batch_size : B_max. full : share of all waiting that passed while the
    batch was full. pool_full : the same for the KV pool, see `pool_full`. preemptions : how often
    requests were thrown out. step_floor : what the hardware
    allows at best (s a step), see `kv_step`. missing : figure -> why it is not known.
    """

    requests: int
    failed: int
    duration: float | None = None
    throughput: float | None = None
    goodput: float | None = None
    ttft: Judged | None = None
    tpot: Judged | None = None
    e2e: Judged | None = None
    slo: Judged | None = None
    mean_ttft: float | None = None
    mean_tpot: float | None = None
    mean_e2e: float | None = None
    entries: Mapping[str, float] = field(default_factory=dict)
    growth: Growth | None = None
    in_system: float | None = None
    in_batch: float | None = None
    peak_batch: int | None = None
    max_batch_size: int | None = None
    full: float | None = None
    pool_full: float | None = None
    preemptions: int | None = None
    step_floor: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What one rule found. evidence : one sentence with numbers and units for each condition."""

    rule: str
    pattern: str
    says: str
    evidence: tuple[str, ...]
    refuted_by: str


@dataclass(frozen=True)
class Silence:
    """Why one rule gave no verdict: a condition that is "not met", or that is "not known"."""

    rule: str
    pattern: str
    kind: str
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """Verdicts and silences, each in the order of `RULES`: every rule is in one of the two."""

    verdicts: tuple[Verdict, ...]
    silent: tuple[Silence, ...]


def lone_floor(tokens: ArrayLike, seconds: ArrayLike, at: ArrayLike) -> FloatArray:
    """The largest convex function that never falls and lies under every point (eq-diagnosis-floor).

    What a request needs alone grows with its tokens, and for a longer one no more slowly. So the
    true floor is such a function, and this one, the largest, is never below it.

    Parameters
    ----------
    tokens, seconds : (m,) measured points, loaded or not.
    at : (n,) tokens.

    Returns
    -------
    (n,) the floor (s); left and right of the points it is level.

    Raises
    ------
    ValueError : no point, lengths differ, a value is negative, NaN or infinite.
    """
    x, y = nonnegative("tokens", tokens), nonnegative("seconds", seconds)
    wanted = nonnegative("at", at)
    if x.ndim != 1 or x.size == 0 or y.shape != x.shape:
        raise ValueError(
            f"tokens and seconds must be non-empty and of one length: "
            f"got shapes {x.shape} and {y.shape}"
        )
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    first = np.append(True, x[1:] > x[:-1])  # the least time of each length
    x, y = x[first], y[first]
    y = np.minimum.accumulate(y[::-1])[::-1]  # what never falls and lies under all of them
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    floor: FloatArray = np.interp(wanted, *np.transpose(hull))
    return floor


def _above(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def split_ttft(
    requests: RequestLog, *, max_batch_size: int | None = None, unloaded: RequestLog | None = None
) -> Split:
    """TTFT of every completed request as a floor and excesses (eq-diagnosis-ttft).

    Parameters
    ----------
    requests : arrival, first token and input tokens known.
    max_batch_size : B_max; splits the wait into "seats", while the batch is full, and "queue".
    unloaded : a run of the same engine with next to no load.

    Returns
    -------
    Split in seconds. Entries: "seats" and "queue", or "wait" without `max_batch_size`; "squeeze",
    prefill beyond its floor; "first decode", beyond its least. Where no request has a `scheduled`
    stamp, "delay" is all of them.

    Raises
    ------
    ValueError : a column is missing for some requests; more in the batch than `max_batch_size`.
    TypeError : an argument is no RequestLog.
    """
    of_kind("requests", requests, RequestLog)
    done = requests.where(requests.succeeded)
    parts = _first_parts(done)
    points = [(done, parts)]
    if unloaded is not None:
        of_kind("unloaded", unloaded, RequestLog)
        other = unloaded.where(unloaded.succeeded)
        points.append((other, _first_parts(other)))
    own = [p.get("prefill", p.get("delay")) for _, p in points]
    prompts = done.column("input_tokens")
    least = lone_floor(
        np.concatenate([log.column("input_tokens") for log, _ in points]),
        np.concatenate(own),  # type: ignore[arg-type]
        prompts,
    )
    lone = [np.sum(list(p.values()), axis=0)[_alone(log, log.first_token)] for log, p in points]
    alone = np.concatenate(lone)
    if "delay" in parts:
        least = np.minimum(least, parts["delay"])
        return Split(least, {"delay": parts["delay"] - least}, alone)
    least = np.minimum(least, parts["prefill"])
    excess = {"wait": parts["wait"], "squeeze": parts["prefill"] - least}
    if max_batch_size is not None:
        excess = {**_seats(done, parts["wait"], max_batch_size), "squeeze": excess["squeeze"]}
    if "first decode" in parts:
        lowest = min(float(p["first decode"].min()) for _, p in points if "first decode" in p)
        excess["first decode"] = parts["first decode"] - lowest
        least = least + lowest
    return Split(least, excess, alone)


def _first_parts(done: RequestLog) -> dict[str, FloatArray]:
    """TTFT in the parts that the stamps tell apart."""
    arrival, first = done.column("arrival"), done.column("first_token")
    if np.isnan(done.scheduled).any():
        return {"delay": first - arrival}
    wait = done.scheduled - arrival
    if np.isnan(done.prefill_end).any():
        return {"wait": wait, "prefill": first - done.scheduled}
    return {
        "wait": wait,
        "prefill": done.prefill_end - done.scheduled,
        "first decode": first - done.prefill_end,
    }


def _seats(done: RequestLog, wait: FloatArray, seats: int) -> dict[str, FloatArray]:
    """The wait while the batch was full, and the rest of it."""
    curve = occupancy_curve(done.scheduled, done.column("last_token"))
    taken = np.where(curve.counts[:-1] >= seats, np.diff(curve.times), 0.0)
    passed = np.append(0.0, np.cumsum(taken))
    full = np.interp(done.scheduled, curve.times, passed) - np.interp(
        done.arrival, curve.times, passed
    )
    full = np.clip(full, 0.0, wait)
    return {"seats": full, "queue": wait - full}


def _alone(done: RequestLog, until: FloatArray) -> NDArray[np.bool_]:
    """Requests that had the engine to themselves from their arrival until a stamp."""
    if not done.shared_clock or not len(done) or np.isnan(done.last_token).any():
        return np.full(len(done), False)
    order = np.argsort(done.arrival, kind="stable")
    arrival, last = done.arrival[order], done.last_token[order]
    before = np.append(-np.inf, np.maximum.accumulate(last)[:-1])
    after = np.append(arrival[1:], np.inf)
    alone = np.empty(len(done), dtype=np.bool_)
    alone[order] = (before <= arrival) & (until[order] <= after)
    return alone


def pace(itl: ArrayLike, itl_counts: ArrayLike) -> FloatArray:
    """Each request's median gap (s); NaN for a request without gaps.

    Parameters
    ----------
    itl : (m,) gaps, those of one request after those of another (s).
    itl_counts : (n,) how many belong to each.

    Returns
    -------
    (n,) medians.

    Raises
    ------
    ValueError : the counts do not add up to m; a gap is negative, NaN or infinite.
    """
    gaps, counts = nonnegative("itl", itl), count("itl_counts", itl_counts)
    if gaps.ndim != 1 or counts.ndim != 1 or counts.sum() != gaps.size:
        raise ValueError(
            f"itl_counts must add up to the number of gaps, {gaps.size}: got {counts.sum():.12g}"
        )
    sizes = counts.astype(np.int64)
    begin = np.cumsum(sizes) - sizes
    medians = np.full(sizes.size, np.nan)
    for size in np.unique(sizes[sizes > 0]).tolist():  # equal lengths make a table
        rows = np.flatnonzero(sizes == size)
        middle = [(size - 1) // 2, size // 2]
        table = gaps[begin[rows, None] + np.arange(size)]
        table.partition(middle, axis=1)
        medians[rows] = table[:, middle].mean(axis=1)
    return medians


def step_gaps(
    requests: RequestLog, start: ArrayLike, end: ArrayLike
) -> tuple[FloatArray, NDArray[np.int64]]:
    """The lengths of the engine's steps while each request decodes, as `itl` and `itl_counts`.

    For a log without gaps: a sequence that keeps its seat gets a token in every step.

    Parameters
    ----------
    requests : the record; a request that failed gets no gaps.
    start, end : (k,) steps in order (s).

    Returns
    -------
    (flat lengths, counts).

    Raises
    ------
    ValueError : a stamp is missing, lengths differ, or a step ends before it starts.
    """
    begins, ends = real("start", start), real("end", end)
    if begins.ndim != 1 or begins.shape != ends.shape or begins.size == 0:
        raise ValueError(
            f"start and end must be non-empty and of one length: "
            f"got shapes {begins.shape} and {ends.shape}"
        )
    require("end", ends, ends >= begins, ">= start")
    done = requests.where(requests.succeeded)
    low = np.searchsorted(begins, done.column("first_token") - SLACK_S)
    high = np.searchsorted(ends, done.column("last_token") + SLACK_S, side="right")
    counts = np.zeros(len(requests), dtype=np.int64)
    counts[requests.succeeded] = np.maximum(high - low, 0)
    flat = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.zeros(len(requests), dtype=np.int64)
    first[requests.succeeded] = low
    steps = np.repeat(first, counts) + flat
    return (ends - begins)[steps], counts


def split_tpot(
    requests: RequestLog,
    *,
    itl: ArrayLike | None = None,
    itl_counts: ArrayLike | None = None,
    preemptions: ArrayLike | None = None,
    unloaded: RequestLog | None = None,
) -> Split:
    """TPOT of every completed request as a floor and excesses (eq-diagnosis-tpot).

    Parameters
    ----------
    requests : first and last token and output tokens known.
    itl, itl_counts : gaps between tokens, as `pace`.
    preemptions : (n,) how often each request was thrown out.
    unloaded : a run of the same engine with next to no load.

    Returns
    -------
    Split in seconds per token. Entries: "batch", the median gap beyond the floor; "stalls", the
    mean gap beyond the median, or "preempted" where the request was thrown out. Without gaps
    "decode" is all of them. A one-token answer has no gap: all are 0.

    Raises
    ------
    ValueError : a column is missing for some requests, lengths differ.
    TypeError : an argument is no RequestLog.
    """
    of_kind("requests", requests, RequestLog)
    done = requests.where(requests.succeeded)
    value = _tpot(done)
    gaps = np.maximum(done.column("output_tokens") - 1, 1)
    logs = [done]
    if unloaded is not None:
        of_kind("unloaded", unloaded, RequestLog)
        logs.append(unloaded.where(unloaded.succeeded))
    spent = np.concatenate([log.column("last_token") - log.column("first_token") for log in logs])
    emitted = np.concatenate([log.column("output_tokens") for log in logs])
    least = np.minimum(lone_floor(emitted, spent, done.output_tokens) / gaps, value)
    lone = [_tpot(log)[_alone(log, log.last_token)] for log in logs]
    alone = np.concatenate(lone)
    if itl is None:
        return Split(least, {"decode": value - least}, alone)
    medians = pace(itl, () if itl_counts is None else itl_counts)
    if medians.shape != (len(requests),):
        raise ValueError(
            f"itl_counts must have one value a request: got {medians.size} "
            f"for {len(requests)} requests"
        )
    medians = medians[requests.succeeded]
    steady = np.clip(np.where(np.isnan(medians), value, medians), least, value)
    excess = {"batch": steady - least, "stalls": value - steady}
    if preemptions is not None:
        times = count("preemptions", preemptions)
        if times.ndim:
            out = times[requests.succeeded] > 0
            excess["preempted"] = np.where(out, excess["stalls"], 0.0)
            excess["stalls"] = np.where(out, 0.0, excess["stalls"])
    return Split(least, excess, alone)


def _tpot(done: RequestLog) -> FloatArray:
    stamps = done.column("first_token"), done.column("last_token")
    return np.asarray(tpot(*stamps, done.column("output_tokens")))


def split_e2e(first: Split, later: Split, output_tokens: ArrayLike) -> Split:
    """E2E of every request: TTFT's entries and N_out - 1 times TPOT's (eq-diagnosis-e2e).

    Parameters
    ----------
    first, later : TTFT and TPOT of the same n requests.
    output_tokens : (n,) N_out >= 1.

    Returns
    -------
    Split in seconds.

    Raises
    ------
    ValueError : lengths differ, or N_out < 1.
    """
    gaps = count("output_tokens", output_tokens, minimum=1) - 1
    if not first.floor.shape == later.floor.shape == gaps.shape:
        raise ValueError(
            f"lengths must match: got first {first.floor.shape}, later {later.floor.shape}, "
            f"output_tokens {gaps.shape}"
        )
    decode = {name: gaps * each for name, each in later.excess.items()}
    return Split(first.floor + gaps * later.floor, {**first.excess, **decode})


def blame(split: Split, limit: ArrayLike) -> dict[str, NDArray[np.bool_]]:
    """Name for every late request the entry without which it would be in time (eq-diagnosis-blame).

    Parameters
    ----------
    split : of n requests.
    limit : (s), or (n,).

    Returns
    -------
    Masks (n,), disjoint, whose union are the late requests. "floor": late even without any excess.
    An entry: the largest one, and without it the request would be in time. "several": more than one
    entry must shrink.

    Raises
    ------
    ValueError : the limit is not > 0.
    """
    bound = np.broadcast_to(positive("limit", limit), split.floor.shape) + SLACK_S
    over = split.total - bound
    late, hopeless = over > 0, split.floor > bound
    each = np.array(list(split.excess.values()))
    largest = each.argmax(axis=0)
    alone = late & ~hopeless & (each.max(axis=0) >= over)
    named = {name: alone & (largest == i) for i, name in enumerate(split.excess)}
    return {"floor": late & hopeless, **named, "several": late & ~hopeless & ~alone}


def share_interval(hits: NDArray[np.bool_]) -> tuple[float, float]:
    """The 95 % interval of a share when neighbours resemble each other.

    The wider of two on each side: Wilson's, which knows that counts near all or none are uncertain,
    and Student's over `BATCHES` stretches, which sees that late requests come together.

    Parameters
    ----------
    hits : (n,) in order of arrival, n >= `FEWEST`.

    Returns
    -------
    (low, high).

    Raises
    ------
    ValueError : fewer than `FEWEST`.
    TypeError : not bool.
    """
    values = np.asarray(hits)
    if values.dtype != np.bool_:
        raise TypeError(f"hits must be bool: got {values.dtype}")
    if values.ndim != 1 or values.size < FEWEST:
        raise ValueError(f"hits must be {FEWEST} values or more: got shape {values.shape}")
    low, high = wilson_interval(values.sum(), values.size)
    student = mean_interval(values.astype(np.float64), warm_up=0, batches=BATCHES)
    return max(0.0, min(float(low), student.low)), min(1.0, max(float(high), student.high))


def growth(arrival: ArrayLike, left: ArrayLike, since: float | None = None) -> Growth:
    """How fast the number present grows while requests arrive (eq-diagnosis-growth).

    The window closes with the last arrival. The interval is Student's over the growth in `BATCHES`
    equal stretches of it.

    Parameters
    ----------
    arrival, left : (n,) stamps on one clock (s): arrivals and last tokens for the system, arrivals
        and `scheduled` for the queue.
    since : the window's start (s). When left out, the moment at which all who came before the first
        departure have left, for until then an engine fills even without a queue.

    Returns
    -------
    Growth.

    Raises
    ------
    ValueError : the window is empty, or holds fewer than `FEWEST` arrivals; as `occupancy_curve`.
    """
    occupancy_curve(arrival, left)  # refuses what are no stays
    came, went = real("arrival", arrival), real("left", left)
    if since is None:
        start = float(went[came < went.min()].max(initial=went.min()))
    else:
        start = one("since", real("since", since))
    came, went = np.sort(came), np.sort(went)
    end = float(came[-1])
    inside = int(np.sum((came >= start) & (came < end)))
    if not start < end or inside < FEWEST:
        raise ValueError(
            f"arrival must hold {FEWEST} requests or more from {start:.6g} s on, when the first "
            f"ones have left: got {inside}"
        )
    edges = np.linspace(start, end, BATCHES + 1)
    arrived, gone = np.searchsorted(came, edges), np.searchsorted(went, edges)
    width = (end - start) / BATCHES
    each = mean_interval(np.diff(arrived - gone) / width, warm_up=0, batches=BATCHES)
    rate = float(arrived[-1] - arrived[0]) / (end - start)
    return Growth(each.value, each.low, each.high, rate, rate - each.value, start, end)


def pool_full(running: ArrayLike, waiting: ArrayLike, kv_use: ArrayLike) -> float:
    """Share of all waiting that passes while the KV pool has no room for one more sequence.

    One more, as large as those that run, needs kv_use / running of the pool.

    Parameters
    ----------
    running, waiting : (k,) sequences in the batch and requests that wait, an engine's samples at
        even distances.
    kv_use : (k,) share of the pool's blocks in use, 0 to 1.

    Returns
    -------
    The share, each sample weighted by the requests that wait.

    Raises
    ------
    ValueError : lengths differ, a value is out of range, or nobody ever waits.

    Source: vLLM's log line "Running: ..., Waiting: ..., GPU KV cache usage: ...".
    """
    batch, queue = count("running", running), count("waiting", waiting)
    used = nonnegative("kv_use", kv_use)
    require("kv_use", used, used <= 1, "a share of the pool, 0 to 1")
    if not batch.shape == queue.shape == used.shape or batch.ndim != 1:
        raise ValueError(
            f"running, waiting and kv_use must be lists of one length: got shapes {batch.shape}, "
            f"{queue.shape} and {used.shape}"
        )
    if not queue.sum():
        raise ValueError("waiting must be > 0 in a sample: nobody waits")
    full = used * (batch + 1) > batch
    return float(queue[full & (batch > 0)].sum() / queue.sum())


def ledger(
    requests: RequestLog,
    *,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    target: float = TARGET,
    duration: float | None = None,
    max_batch_size: int | None = None,
    preemptions: ArrayLike | None = None,
    pool_full: float | None = None,
    itl: ArrayLike | None = None,
    itl_counts: ArrayLike | None = None,
    step_floor: float | None = None,
    unloaded: RequestLog | None = None,
) -> Ledger:
    """Everything that the rules ask of a run.

    Parameters
    ----------
    requests : the record; a missing column makes what rests on it not known.
    ttft_slo, tpot_slo, e2e_slo : limits (s, s per token, s); None judges nothing.
    target : share of requests that must keep a limit, 0 < target < 1.
    duration : the client's wall clock (s); from the first arrival to the last token when left out.
    max_batch_size : B_max, seats of the engine.
    preemptions : (n,) how often each request was thrown out, or their sum.
    pool_full : share of all waiting that passed while the KV pool was full, see `pool_full`.
    itl, itl_counts : gaps between tokens, flat, and how many of them belong to each request (s).
    step_floor : shortest step that the hardware allows (s), `kv_step.kv_step_time_lower_bound` with
        the weights: tells a slow engine from a limit that no engine keeps.
    unloaded : a run of the same engine with next to no load, for the floors.

    Returns
    -------
    Ledger.

    Raises
    ------
    ValueError : no completed request; a limit or time that is not > 0; lengths differ.
    TypeError : an argument of another kind.
    """
    of_kind("requests", requests, RequestLog)
    aim = one("target", real("target", target))
    if not 0 < aim < 1:
        raise ValueError(f"target must be between 0 and 1, both left out: got {aim:.12g}")
    given = {"ttft": ttft_slo, "tpot": tpot_slo, "e2e": e2e_slo}
    limits = {
        name: one(f"{name}_slo", positive(f"{name}_slo", limit))
        for name, limit in given.items()
        if limit is not None
    }
    seats = None if max_batch_size is None else _whole("max_batch_size", max_batch_size)
    best = None if step_floor is None else one("step_floor", positive("step_floor", step_floor))
    thrown = None if preemptions is None else count("preemptions", preemptions)
    memory = None if pool_full is None else one("pool_full", nonnegative("pool_full", pool_full))
    if memory is not None and memory > 1:
        raise ValueError(f"pool_full must be a share, 0 to 1: got {memory:.12g}")
    if (itl is None) != (itl_counts is None):
        raise ValueError("itl and itl_counts must be given together: got one of them")
    if thrown is not None and thrown.shape not in ((), (len(requests),)):
        raise ValueError(
            f"preemptions must be one number or one a request: got shape {thrown.shape} "
            f"for {len(requests)} requests"
        )
    done = requests.where(requests.succeeded)
    if not len(done):
        raise ValueError(f"requests must hold a completed one: got {len(requests)} rows")

    missing = _why_unsplit(done)
    splits: dict[str, Split] = {}
    if "ttft" not in missing:
        splits["ttft"] = split_ttft(requests, max_batch_size=seats, unloaded=unloaded)
    if "tpot" not in missing:
        splits["tpot"] = split_tpot(
            requests, itl=itl, itl_counts=itl_counts, preemptions=thrown, unloaded=unloaded
        )
    if "e2e" not in missing:
        splits["e2e"] = split_e2e(splits["ttft"], splits["tpot"], done.output_tokens)
    figures: dict[str, Any] = {
        "max_batch_size": seats,
        "step_floor": best,
        "preemptions": None if thrown is None else int(thrown.sum()),
        "pool_full": memory,
        "duration": None if duration is None else one("duration", positive("duration", duration)),
        **_means(done, splits),
    }
    for found in (
        _judge(requests, splits, limits, aim, missing),
        _presence(done, splits.get("ttft"), seats, bool(figures["preemptions"]), missing),
    ):
        figures = {**found, **{name: x for name, x in figures.items() if x is not None}}
    if figures.get("duration"):
        figures["throughput"] = len(done) / figures["duration"]
        if "slo" in figures:
            figures["goodput"] = figures["slo"].kept / figures["duration"]
    else:
        missing["duration"] = "no duration is given, and the stamps do not tell it"
    return Ledger(requests=len(done), failed=len(requests) - len(done), missing=missing, **figures)


def _lacking(done: RequestLog, *columns: str) -> str:
    """Why what rests on these columns is not known; empty if it is."""
    for column in columns:
        if rows := int(np.isnan(getattr(done, column)).sum()):
            return f"{column} is missing for {rows} of {len(done)} requests"
    return ""


def _why_unsplit(done: RequestLog) -> dict[str, str]:
    """Which of the three times cannot be split, and why."""
    first = _lacking(done, "arrival", "first_token", "input_tokens")
    later = _lacking(done, "first_token", "last_token", "output_tokens")
    if not later:
        gap = done.last_token > done.first_token
        if odd := int(np.sum((done.output_tokens < 1) | (gap & (done.output_tokens < 2)))):
            later = f"output_tokens is too low for the stamps of {odd} requests"
    why = {"ttft": first, "tpot": later, "e2e": first or later}
    return {name: reason for name, reason in why.items() if reason}


def _means(done: RequestLog, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Means of the three times, and of E2E's entries."""
    means: dict[str, Any] = {f"mean_{name}": split.total.mean() for name, split in splits.items()}
    if "tpot" in splits:
        many = done.output_tokens > 1
        means["mean_tpot"] = splits["tpot"].total[many].mean() if many.any() else None
    means = {name: None if mean is None else float(mean) for name, mean in means.items()}
    if "e2e" in splits:
        whole, prompt = splits["e2e"], splits["ttft"].floor
        entries = {"prompt floor": prompt, "step floor": whole.floor - prompt, **whole.excess}
        means["entries"] = {name: float(each.mean()) for name, each in entries.items()}
    return means


def _judge(
    requests: RequestLog,
    splits: Mapping[str, Split],
    limits: Mapping[str, float],
    target: float,
    missing: dict[str, str],
) -> dict[str, Any]:
    """How each limit is kept, and all of them; `missing` hears why one is not judged."""
    done = requests.where(requests.succeeded)
    bounds: dict[str, Any] = dict(limits)
    if limits.keys() == {"ttft", "tpot"} and "e2e" in splits:  # who keeps both keeps their sum
        bounds["e2e"] = limits["ttft"] + (done.output_tokens - 1) * limits["tpot"]
    judged: dict[str, Any] = {}
    kept = np.full(len(done), True)
    for name in METRICS:
        if name not in bounds:
            missing.setdefault(name, f"{name}_slo is not given: without a limit nothing is high")
        elif len(done) < FEWEST:
            too_few = f"{len(done)} completed requests are too few: {FEWEST} are needed"
            missing.setdefault(name, too_few)
        elif name in splits:
            split, bound = splits[name], bounds[name]
            good = split.total <= bound + SLACK_S
            low, high = share_interval(_in_order(done, good))
            judged[name] = Judged(
                metric=name,
                limit=limits.get(name),
                target=target,
                judged=len(done),
                kept=int(good.sum()),
                low=low,
                high=high,
                late={entry: int(mask.sum()) for entry, mask in blame(split, bound).items()},
                late_alone=int(np.sum(split.alone > limits.get(name, np.inf) + SLACK_S)),
            )
            if name in limits:
                kept &= good
    if limits and all(name in judged for name in limits):
        every = requests.succeeded.copy()
        every[every] = kept
        low, high = share_interval(_in_order(requests, every))
        judged["slo"] = Judged("slo", None, target, len(requests), int(kept.sum()), low, high)
    else:
        reasons = [missing[name] for name in METRICS if name in limits and name in missing]
        missing["slo"] = reasons[0] if reasons else "no limit is given"
    return judged


def _in_order(requests: RequestLog, hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """In order of arrival, or of the rows where they share no clock."""
    return hits[np.argsort(requests.arrival, kind="stable")] if requests.shared_clock else hits


def _presence(
    done: RequestLog, ttft: Split | None, seats: int | None, thrown: bool, missing: dict[str, str]
) -> dict[str, Any]:
    """Who is in the system and in the batch; `missing` hears what is not known."""
    found: dict[str, Any] = {}
    reason = _lacking(done, "arrival", "last_token")
    if not done.shared_clock:
        reason = "the rows share no clock"
    elif not reason and done.last_token.max() == done.arrival.min():
        reason = "no time passes"
    staged = reason or _lacking(done, "scheduled")
    missing |= dict.fromkeys(("growth", "in_system"), reason) if reason else {}
    missing |= dict.fromkeys(("in_batch", "full"), staged) if staged else {}
    if not reason:
        found["in_system"] = time_average(done.arrival, done.last_token)
        found["duration"] = float(done.last_token.max() - done.arrival.min())
        try:
            found["growth"] = growth(done.arrival, done.last_token)
        except ValueError as error:  # the window is too short; the queue needs none to fill
            missing["growth"] = str(error)
            if not staged and np.sum(done.arrival < done.arrival.max()) >= FEWEST:
                queue = growth(done.arrival, done.scheduled, float(done.arrival.min()))
                found["growth"] = replace(queue, what="queue")
    if not staged:
        most = found["peak_batch"] = peak(done.scheduled, done.last_token)
        if seats is not None and most > seats and not thrown:
            raise ValueError(
                f"max_batch_size must be >= {most}, the most in the batch at once: got {seats}"
            )
        if np.any(done.last_token > done.scheduled):
            found["in_batch"] = time_average(done.scheduled, done.last_token)
        if ttft is not None and "seats" in ttft.excess:
            full, free = (float(ttft.excess[name].sum()) for name in ("seats", "queue"))
            found["full"] = full / (full + free) if full + free > 0 else None
    return found


def _whole(name: str, value: int) -> int:
    return int(one(name, count(name, value, minimum=1)))


# Rules --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A question to a ledger. test : the answer, None where it is not known, and its numbers."""

    text: str
    test: Callable[[Ledger], tuple[bool | None, str]]


@dataclass(frozen=True)
class Rule:
    """A verdict, and the conditions that must all be met.

    pattern : section of the seed's part 7. when : asked in order. says : the verdict. refuted_by :
    what would show that it is wrong.
    """

    name: str
    pattern: str
    when: tuple[Condition, ...]
    says: str
    refuted_by: str


def _percent(share: float, low: float, high: float) -> str:
    return f"{share:.0%} (95 %: {low:.0%} to {high:.0%})"


def _judged(of: Ledger, metric: str) -> Judged | None:
    judged: Judged | None = getattr(of, metric)
    return judged


def _high(metric: str) -> Condition:
    def test(of: Ledger) -> tuple[bool | None, str]:
        judged = _judged(of, metric)
        if judged is None:
            return None, of.missing[metric]
        limit = "its limits" if judged.limit is None else f"{judged.limit:.4g} s"
        share = _percent(judged.share, judged.low, judged.high)
        met = judged.high < judged.target
        return met, (
            f"{WORDS[metric]}: {judged.kept} of {judged.judged} requests within {limit}, "
            f"{share}; {judged.target:.0%} promised"
        )

    return Condition(f"{WORDS[metric]} high", test)


def _steady(metric: str) -> Condition:
    high = _high(metric)

    def test(of: Ledger) -> tuple[bool | None, str]:
        met, words = high.test(of)
        return None if met is None else not met, words

    return Condition(f"{WORDS[metric]} not high", test)


def _late_for(metric: str, *entries: str) -> Condition:
    """Most of the late requests are late for the first of `entries` that the ledger has."""

    def test(of: Ledger) -> tuple[bool | None, str]:
        judged = _judged(of, metric)
        if judged is None:
            return None, of.missing[metric]
        entry = next((name for name in entries if name in judged.late), None)
        if entry is None:
            return None, f"{WORDS[metric]} is not split into {' or '.join(entries)}"
        late = sum(judged.late.values())
        if not late:
            return False, "no request is late"
        low, high = map(float, wilson_interval(judged.late[entry], late))
        return low > 0.5, (
            f"{entry}: names {judged.late[entry]} of {late} requests with a late "
            f"{WORDS[metric]}, {_percent(judged.late[entry] / late, low, high)}"
        )

    return Condition(f"late {WORDS[metric]} mostly for {' or '.join(entries)}", test)


def _late_alone(metric: str) -> Condition:
    def test(of: Ledger) -> tuple[bool | None, str]:
        judged = _judged(of, metric)
        if judged is None:
            return None, of.missing[metric]
        words = f"{judged.late_alone} requests are late although nobody else was there"
        return judged.late_alone > 0, words

    return Condition(f"{WORDS[metric]} late even alone", test)


def _hopeless(most: bool) -> Condition:
    """Whether most of all requests could not keep the TTFT limit even alone."""

    def test(of: Ledger) -> tuple[bool | None, str]:
        if of.ttft is None:
            return None, of.missing["ttft"]
        low, high = map(float, wilson_interval(of.ttft.late["floor"], of.ttft.judged))
        share = _percent(of.ttft.late["floor"] / of.ttft.judged, low, high)
        met = low > 0.5 if most else high < 0.5
        return met, f"the prompt alone exceeds the limit for {share} of all requests"

    return Condition(f"{'most' if most else 'less than half'} of the prompts too long", test)


def _bound(within: bool) -> Condition:
    def test(of: Ledger) -> tuple[bool | None, str]:
        if of.step_floor is None:
            return None, "step_floor is not given: what the hardware allows is not known"
        if of.tpot is None:
            return None, of.missing["tpot"]
        limit = of.tpot.limit or 0.0
        met = (of.step_floor <= limit) == within
        return met, f"the hardware allows a step of {of.step_floor:.4g} s, the limit {limit:.4g} s"

    return Condition(f"hardware {'can' if within else 'cannot'} keep the TPOT limit", test)


def _no_bound(of: Ledger) -> tuple[bool | None, str]:
    known = of.step_floor is not None
    return not known, f"step_floor is {'' if known else 'not '}given"


def _grows(of: Ledger) -> tuple[bool | None, str]:
    if of.growth is None:
        return None, of.missing["growth"]
    g = of.growth
    return g.low > 0, (
        f"{g.arrived:.3g} requests/s come and {g.left:.3g} leave: the number in the {g.what} grows "
        f"by {g.value:.3g}/s (95 %: {g.low:.3g} to {g.high:.3g})"
    )


def _thrown_out(of: Ledger) -> tuple[bool | None, str]:
    if of.preemptions is None:
        return None, "preemptions are not given"
    return of.preemptions > 0, f"requests were thrown out {of.preemptions} times"


def _no_room(of: Ledger) -> tuple[bool | None, str]:
    """Thrown out once is enough: nobody is while the pool has a free block."""
    known = []
    if of.preemptions is not None:
        known.append(_thrown_out(of)[1])
    if of.pool_full is not None:
        known.append(f"{of.pool_full:.0%} of all waiting passed while the KV pool was full")
    if not known:
        return None, "neither preemptions nor pool_full is given"
    return bool(of.preemptions) or (of.pool_full or 0.0) > 0.5, "; ".join(known)


def _crowded(of: Ledger) -> tuple[bool | None, str]:
    if of.max_batch_size is None:
        return None, "max_batch_size is not given"
    if of.in_system is None:
        return None, of.missing["in_system"]
    return of.in_system > of.max_batch_size, (
        f"{of.in_system:.3g} requests are in the system on average, and {of.max_batch_size} seats"
    )


def _bad(of: Ledger) -> tuple[bool | None, str]:
    if of.slo is None:
        return None, of.missing["slo"]
    if of.throughput is None or of.goodput is None:
        return None, of.missing["duration"]
    share = _percent(of.slo.share, of.slo.low, of.slo.high)
    return of.slo.high < of.slo.target, (
        f"throughput {of.throughput:.3g} requests/s, goodput {of.goodput:.3g}: {share} keep every "
        f"limit; {of.slo.target:.0%} promised"
    )


TTFT_ALONE = (_high("ttft"), _steady("tpot"))
TPOT_ALONE = (_high("tpot"), _steady("ttft"))
GROWS = Condition("number in the system or queue grows", _grows)
THROWN_OUT = Condition("requests thrown out", _thrown_out)
NO_ROOM = Condition("requests thrown out, or the pool full while they wait", _no_room)

RULES: tuple[Rule, ...] = (
    Rule(
        "seats",
        "7.1",
        (*TTFT_ALONE, _late_for("ttft", "seats")),
        "Requests wait for a seat: max_num_seqs is too small.",
        "With more seats TTFT stays late, or TPOT becomes late instead.",
    ),
    Rule(
        "KV pool",
        "7.1",
        (*TTFT_ALONE, _late_for("ttft", "queue", "wait"), NO_ROOM),
        "Requests wait for KV memory.",
        "With more KV blocks TTFT stays late, or the log shows free blocks while they wait.",
    ),
    Rule(
        "overload",
        "7.4",
        (GROWS,),
        "More comes in than goes out: the load is above what this setting serves.",
        "A longer run at this rate levels off.",
    ),
    Rule(
        "queue",
        "7.1",
        (*TTFT_ALONE, _late_for("ttft", "queue", "wait")),
        "Requests wait, and not for a seat: for a turn in the token budget, or for memory.",
        "The same requests spread evenly in time, or with a larger budget, are as late.",
    ),
    Rule(
        "squeeze",
        "7.1",
        (*TTFT_ALONE, _late_for("ttft", "squeeze")),
        "Prefill starts in time and is stretched: decodes take the step's tokens first.",
        "With a larger token budget, or fewer decodes, prefill takes as long.",
    ),
    Rule(
        "delay",
        "7.1",
        (*TTFT_ALONE, _late_for("ttft", "delay")),
        "The first token waits for other requests: in a queue, or in a stretched prefill.",
        "The same prompts sent one by one are as late.",
    ),
    Rule(
        "prompts",
        "7.1",
        (_high("ttft"), _late_for("ttft", "floor"), _late_alone("ttft"), _hopeless(most=False)),
        "Prompts are too long: their own prefill exceeds the limit.",
        "Sent one by one, these prompts are in time.",
    ),
    Rule(
        "TTFT limit",
        "7.3",
        (_high("ttft"), _late_alone("ttft"), _hopeless(most=True)),
        "The TTFT limit lies below what an empty engine needs.",
        "Sent one by one, most requests are in time.",
    ),
    Rule(
        "TPOT limit",
        "7.3",
        (_high("tpot"), _late_for("tpot", "floor"), _late_alone("tpot"), _bound(within=False)),
        "The TPOT limit lies below what the hardware allows.",
        "A single request is in time.",
    ),
    Rule(
        "memory",
        "7.2",
        (_high("tpot"), _late_for("tpot", "floor"), _late_alone("tpot"), _bound(within=True)),
        "A step is too slow even for one request, though the hardware can: slow memory or kernels.",
        "A single request is in time; or the hardware's bound is wrong.",
    ),
    Rule(
        "lone step",
        "7.2",
        (
            _high("tpot"),
            _late_for("tpot", "floor"),
            _late_alone("tpot"),
            Condition("step_floor not given", _no_bound),
        ),
        "A step is too slow even for one request: slow memory, or a limit that no engine keeps.",
        "A single request is in time.",
    ),
    Rule(
        "preemption",
        "7.2",
        (_high("tpot"), _late_for("tpot", "preempted"), THROWN_OUT),
        "Requests lose their seat in mid-answer: the KV pool is too small.",
        "With more KV blocks TPOT stays late.",
    ),
    Rule(
        "batch",
        "7.2",
        (*TPOT_ALONE, _late_for("tpot", "batch")),
        "The typical step is slow: the batch's KV scan and tokens fill it.",
        "With fewer requests at once, or shorter contexts, the median gap stays.",
    ),
    Rule(
        "unstable",
        "7.2",
        (*TPOT_ALONE, _late_for("tpot", "stalls")),
        "The typical step is fast enough, and some gaps are long: decodes lose their turn.",
        "Without new prompts, or with smaller chunks, the mean gap stays above the median.",
    ),
    Rule(
        "decode",
        "7.2",
        (*TPOT_ALONE, _late_for("tpot", "decode")),
        "Decoding is slow in company; without the gaps it is not told whether always or at times.",
        "Sent one by one, the same requests are as slow.",
    ),
    Rule(
        "saturated",
        "7.1 and 7.2",
        (_high("ttft"), _high("tpot")),
        "First tokens and later ones are late: the load fills the engine, or two causes meet.",
        "At a lower rate one of the two stays late.",
    ),
    Rule(
        "goodput",
        "7.3",
        (Condition("goodput low beside the throughput", _bad),),
        "The engine works for requests that miss the SLO: look at goodput, not at throughput.",
        "A longer run whose attainment reaches the target.",
    ),
    Rule(
        "backlog",
        "7.4",
        (Condition("more in the system than seats", _crowded), _high("e2e")),
        "The batch is full because a backlog waits: check rho before calling it well used.",
        "With E2E in time, or fewer in the system than seats, it is only well used.",
    ),
)
"""The rules, in the order in which they are tried: causes first, then what they look like."""


def diagnose(of: Ledger) -> Diagnosis:
    """Try every rule of `RULES` on a ledger, in order.

    Parameters
    ----------
    of : see `ledger`.

    Returns
    -------
    Diagnosis.

    Raises
    ------
    TypeError : `of` is no Ledger.
    """
    of_kind("of", of, Ledger)
    verdicts: list[Verdict] = []
    silent: list[Silence] = []
    for rule in RULES:
        evidence: list[str] = []
        for condition in rule.when:
            met, words = condition.test(of)
            if not met:
                kind = "not known" if met is None else "not met"
                silent.append(Silence(rule.name, rule.pattern, kind, f"{condition.text}? {words}"))
                break
            evidence.append(words)
        else:
            verdicts.append(
                Verdict(rule.name, rule.pattern, rule.says, tuple(evidence), rule.refuted_by)
            )
    return Diagnosis(tuple(verdicts), tuple(silent))
