"""Your own result file through the whole ledger (chapter `audit`).

Checks what runs say against what their rows say. `audit` returns the ledger of a run, or of a
sweep, as plain data; `text.text`, `text.to_json` and `page.html` show it, and the command
`python -m lib.audit FILE...` does all of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    one,
    positive,
    real,
    result,
    together,
)
from lib.benchmarks import BenchmarkRun
from lib.diagnosis import TARGET, Diagnosis, diagnose, ledger
from lib.dialects import reproduce
from lib.goodput import attainment, request_throughput, token_throughput
from lib.latency import RequestMetrics, e2e_from_ttft_tpot
from lib.occupancy import batch_occupancy, little_law_concurrency, peak, time_average
from lib.percentile import percentile
from lib.record import RequestLog
from lib.suspicions import Suspicion, decode_by_means, suspicions, totals, tpot_word

QUANTILES = (50, 90, 95, 99, 99.9)
"""Percentiles that the ledger shows where the sample carries them."""

ROUNDING_S = 1e-6
"""Files round their times to 0.1 us or write float64 of Unix time, which steps by 0.24 us."""

ROUNDING = 1e-6
"""The same for a ratio, as a share of it."""

HALF = 0.5
"""Extra requests a second answered for each one offered: 1 below saturation, 0 beyond, and half-way
between the two is where a sweep turns from one to the other."""


# The data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Limits (s, s per token, s) that a request must keep, and the share that must keep them.

    given : False where the limits are the file's own; a run then misses nothing.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    target: float = TARGET
    given: bool = True

    def __post_init__(self) -> None:
        if not self.limits():
            raise ValueError("ttft, tpot or e2e must be given: an SLO needs a limit")
        for name, limit in self.limits().items():
            one(f"{name}_slo", positive(f"{name}_slo", limit))
        share = one("target", real("target", self.target))
        if not 0 < share <= 1:
            raise ValueError(f"target must be a share in (0, 1]: 0.99 for 99 %: got {share:.12g}")

    def limits(self) -> dict[str, float]:
        """The limits that there are, by metric."""
        given = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        return {name: limit for name, limit in given.items() if limit is not None}


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One figure of the ledger. unit : "s", "s/token", "1/s", "tokens/s", "requests", "tokens",
    "" for a share or a plain number. chapter : where its formula stands."""

    name: str
    value: float
    unit: str
    chapter: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A latency over requests or gaps (s). percentiles : (q, value), those alone that the sample
    carries; withheld : the q that it does not. smallest, largest : None where only the file's
    summary is known and lacks them."""

    name: str
    unit: str
    n: int
    mean: float
    smallest: float | None
    largest: float | None
    percentiles: tuple[tuple[float, float], ...]
    withheld: tuple[float, ...]
    chapter: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """An equation that must hold between figures. error : the largest gap between its two sides,
    tolerance : what rounding in the file explains; None where it was not checked. n : how often."""

    name: str
    verdict: Literal["holds", "broken", "not checked"]
    error: float | None
    tolerance: float | None
    unit: str
    n: int
    chapter: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Requests that keep a limit, or all of them, with Wilson's 95 % interval."""

    name: str
    limit: float | None
    good: int
    judged: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Attainment under the SLO, and goodput (1/s) with its interval over `window` (s).

    outcome : "missed" where fewer than the target share keep all limits. decided : False where the
    interval holds the target, so that another run of this size could tell otherwise.
    """

    slo: Slo
    joint: Share
    single: tuple[Share, ...]
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    window: float | None
    outcome: Literal["met", "missed", "not asked"]
    decided: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A figure of the file beside the same one recomputed from its rows under the tool's rule."""

    key: str
    stated: float
    recomputed: float | None
    unit: str
    agrees: bool | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """One run through the ledger. `run` is the data itself, for plots; JSON leaves it out."""

    label: str
    file: str
    tool: str
    format: str
    notes: tuple[str, ...]
    counts: tuple[Quantity, ...]
    latencies: tuple[Distribution, ...]
    occupancy: tuple[Quantity, ...]
    identities: tuple[Identity, ...]
    goodput: Goodput | None
    stated: tuple[Stated, ...]
    suspicions: tuple[Suspicion, ...]
    diagnosis: Diagnosis | None
    run: BenchmarkRun = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One run of a sweep; a figure it lacks is None. offered : what the client was told, or else
    what it sent (1/s)."""

    label: str
    offered: float | None
    throughput: float | None
    output_throughput: float | None
    ttft: float | None
    tpot: float | None
    e2e: float | None
    in_system: float | None
    attainment: float | None
    goodput: float | None


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Where throughput stops following the offered rate (1/s). throughput : the most that the
    system carried; below, beyond : the offered rates of the sweep around it."""

    throughput: float
    below: float | None
    beyond: float | None
    says: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Several runs, by offered rate."""

    rows: tuple[SweepRow, ...]
    saturation: Saturation | None
    best: SweepRow | None  # the largest goodput
    suspicions: tuple[Suspicion, ...]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What `audit` returns; plain data but for the runs' arrays."""

    runs: tuple[RunAudit, ...]
    slo: Slo | None
    sweep: Sweep | None

    @property
    def missed(self) -> bool:
        """True when an SLO was given and a run keeps it for a smaller share than the target."""
        return any(r.goodput is not None and r.goodput.outcome == "missed" for r in self.runs)


# The audit ----------------------------------------------------------------------------------------


def audit(
    runs: Iterable[BenchmarkRun],
    slo: Slo | None = None,
    *,
    max_batch_size: int | None = None,
    progress: Callable[[str], object] | None = None,
) -> Audit:
    """Everything that runs tell, checked.

    Parameters
    ----------
    runs : one or more, as `benchmarks.read` returns them.
    slo : limits to judge by; the limits that a file names itself when left out.
    max_batch_size : B_max of the engine, for the diagnosis.
    progress : called with a line of text before each run.

    Returns
    -------
    Audit, with a sweep where there are several runs.

    Raises
    ------
    ValueError : no run.
    TypeError : something is no BenchmarkRun.
    """
    runs = list(runs)
    if not runs:
        raise ValueError("runs must hold a run: got none")
    for run in runs:
        if not isinstance(run, BenchmarkRun):
            raise TypeError(f"runs must hold BenchmarkRun: got {run!r:.80}")
    if max_batch_size is not None:
        max_batch_size = int(
            one("max_batch_size", count("max_batch_size", max_batch_size, minimum=1))
        )
    labels, done = _labels(runs), []
    for label, run in zip(labels, runs, strict=True):
        if progress is not None:
            size = "" if run.requests is None else f": {len(run.requests):,} requests"
            progress(f"auditing {label}{size}")
        done.append(_run(label, run, slo, max_batch_size))
    return Audit(runs=tuple(done), slo=slo, sweep=_sweep(done) if len(done) > 1 else None)


def _labels(runs: Sequence[BenchmarkRun]) -> list[str]:
    """Short names that tell the runs apart."""
    names = [run.source or run.tool for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


def _run(label: str, run: BenchmarkRun, slo: Slo | None, max_batch_size: int | None) -> RunAudit:
    notes = list(run.notes)
    facts = _Facts.of(run)
    judged = _goodput(run, facts, slo)
    if slo is not None and judged is None:
        notes.append("the file has no rows, so no request can be judged by your limits")
    return RunAudit(
        label=label,
        file=run.source or label,
        tool=run.tool,
        format=run.format,
        notes=tuple(notes),
        counts=_counts(run, facts),
        latencies=_latencies(run, facts),
        occupancy=_occupancy(run, facts, max_batch_size),
        identities=_identities(run, facts),
        goodput=judged,
        stated=_stated(run, slo),
        suspicions=suspicions(run),
        diagnosis=_diagnosis(run, facts, judged, max_batch_size),
        run=run,
    )


@dataclass(frozen=True, eq=False)
class _Facts:
    """What the sections share: the rows that can be timed, and the figures of the whole run.

    log : answered requests whose first and last token are known, None without rows.
    window : what rates are per (s), the client's wall clock or else first send to last token.
    """

    log: RequestLog | None
    sent: int
    answered: int
    window: float | None
    wall: bool
    throughput: float | None
    ttft: float | None
    tpot: float | None
    e2e: float | None

    @classmethod
    def of(cls, run: BenchmarkRun) -> "_Facts":
        if run.requests is None:
            said = totals(run)
            answered = int(said.get("completed", 0))
            window = said.get("duration")
            rate = answered / window if window else said.get("request_throughput")
            return cls(
                log=None,
                sent=answered + int(said.get("failed", 0)),
                answered=answered,
                window=window,
                wall="duration" in run.stated or run.duration is not None,
                throughput=rate,
                ttft=said.get("ttft.mean"),
                tpot=said.get(f"{tpot_word(run)}.mean"),
                e2e=said.get("e2e.mean"),
            )
        every = run.requests
        known = every.succeeded & ~np.isnan(every.first_token) & ~np.isnan(every.last_token)
        log = every.where(known & ~np.isnan(every.arrival) & (every.output_tokens >= 1))
        window, wall = run.duration, True
        if window is None and every.shared_clock and len(log):
            window, wall = float(log.last_token.max() - np.nanmin(every.arrival)), False
        answered = int(every.succeeded.sum())
        return cls(
            log=log,
            sent=len(every),
            answered=answered,
            window=window or None,
            wall=wall,
            throughput=float(request_throughput(answered, window))
            if window
            else run.stated.get("request_throughput"),
            ttft=float((log.first_token - log.arrival).mean()) if len(log) else None,
            tpot=_mean(_tpot(log)),
            e2e=float((log.last_token - log.arrival).mean()) if len(log) else None,
        )


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if values.size else None


def _tpot(log: RequestLog) -> FloatArray:
    """TPOT of the answers with two tokens or more (s per token)."""
    many = log.output_tokens > 1
    return (log.last_token - log.first_token)[many] / (log.output_tokens[many] - 1)


def _counts(run: BenchmarkRun, facts: _Facts) -> tuple[Quantity, ...]:
    found: list[Quantity] = []

    def add(name: str, value: float | None, unit: str, chapter: str, note: str = "") -> None:
        if value is not None and not np.isnan(value):
            found.append(Quantity(name=name, value=value, unit=unit, chapter=chapter, note=note))

    log, said = run.requests, totals(run)
    failed = facts.sent - facts.answered
    add("requests sent", facts.sent, "requests", "goodput", f"{failed:,} failed" if failed else "")
    whose = "the client's own clock"
    if not facts.wall:
        whose = "answers / stated rate" if log is None else "first send to last token"
    add("time", facts.window, "s", "goodput", whose)
    add("asked rate", run.request_rate, "1/s", "occupancy")
    if log is not None and log.shared_clock:
        at = log.arrival[~np.isnan(log.arrival)]
        if at.size > 1 and np.ptp(at) > 0:
            rate = (at.size - 1) / float(np.ptp(at))
            add("sent rate", rate, "1/s", "occupancy", "n - 1 gaps between n sends")
    add("throughput", facts.throughput, "1/s", "goodput", "answered requests")
    inputs = said.get("input_tokens")
    outputs = said.get("output_tokens")
    if log is not None:
        inputs = _total(log.input_tokens[log.succeeded])
        outputs = _total(log.output_tokens[log.succeeded])
    for name, tokens in (("output", outputs), ("input", inputs)):
        if tokens is None or not facts.answered:
            rate_said = said.get(f"{name}_throughput")
            add(f"{name} throughput", rate_said, "tokens/s", "goodput", "as the file states it")
            continue
        note = f"{tokens / facts.answered:,.4g} a request on average"
        if facts.window:
            rate = float(token_throughput(tokens, facts.window))
            add(f"{name} throughput", rate, "tokens/s", "goodput", note)
        else:
            add(f"{name} tokens", tokens, "tokens", "goodput", note)
    return tuple(found)


def _total(tokens: FloatArray) -> float | None:
    """Their sum, if every request has a count."""
    return None if np.isnan(tokens).any() else float(tokens.sum())


def _latencies(run: BenchmarkRun, facts: _Facts) -> tuple[Distribution, ...]:
    if facts.log is None:
        return _stated_latencies(run, facts)
    log, found = facts.log, []

    def add(name: str, values: FloatArray, unit: str, chapter: str, note: str = "") -> None:
        if values.size:
            found.append(_distribution(name, values, unit, chapter, note))

    add("TTFT", log.first_token - log.arrival, "s", "ttft")
    wait = (log.scheduled - log.arrival)[~np.isnan(log.scheduled)]
    add("queue wait", wait, "s", "ttft", "its part before the first step")
    single = int((log.output_tokens == 1).sum())
    add(
        "TPOT",
        _tpot(log),
        "s/token",
        "e2e",
        f"{single:,} one-token answers have none" * (single > 0),
    )
    if run.itl is not None:
        add("ITL", run.itl, "s", "e2e", "gaps between chunks, all requests together")
    add("E2E", log.last_token - log.arrival, "s", "e2e")
    return tuple(found)


def _distribution(
    name: str, values: FloatArray, unit: str, chapter: str, note: str
) -> Distribution:
    ranks = [percentile(values, q) for q in QUANTILES]
    return Distribution(
        name=name,
        unit=unit,
        n=values.size,
        mean=float(values.mean()),
        smallest=float(values.min()),
        largest=float(values.max()),
        percentiles=tuple((p.q, p.value) for p in ranks if p.supported),
        withheld=tuple(p.q for p in ranks if not p.supported),
        chapter=chapter,
        note=note,
    )


_WORDS = {
    "ttft": ("TTFT", "s", "ttft"),
    "tpot": ("TPOT", "s/token", "e2e"),
    "itl": ("ITL", "s", "e2e"),
    "chunk_itl": ("chunk gap", "s", "e2e"),
    "ntpot": ("E2E / N", "s/token", "e2e"),
    "e2e": ("E2E", "s", "e2e"),
}

_GAPS = ("vllm", "sglang", "inference-perf")
"""Tools whose ITL is taken over all gaps; that of the others is a mean of each request."""

_OWN = {
    ("guidellm", "tpot"): ", (last token - send) / N: the first token's wait is in it",
    ("llmperf", "itl"): ", (TTFT + gaps) / N: the first token's wait is in it",
}
"""Tools whose word means another thing than in the book."""


def _stated_latencies(run: BenchmarkRun, facts: _Facts) -> tuple[Distribution, ...]:
    """A file without rows: its own figures, less the percentiles that no such sample carries."""
    found, said_all = [], totals(run)
    gaps = int(said_all.get("output_tokens", 0)) - facts.answered
    for metric, (name, unit, chapter) in _WORDS.items():
        said = {
            key.partition(".")[2]: value
            for key, value in run.stated.items()
            if key.startswith(f"{metric}.")
        }
        if "mean" not in said:
            continue
        ranks = {"median": 50.0} | {f"p{q:g}": float(q) for q in QUANTILES}
        have = {ranks[word]: value for word, value in said.items() if word in ranks}
        n = gaps if metric == "itl" and run.tool in _GAPS and gaps > 0 else facts.answered
        carried = {q for q in have if n * (1 - q / 100) >= 1}
        found.append(
            Distribution(
                name=name,
                unit=unit,
                n=n,
                mean=said["mean"],
                smallest=said.get("min"),
                largest=said.get("max"),
                percentiles=tuple((q, have[q]) for q in sorted(carried)),
                withheld=tuple(sorted(set(have) - carried)),
                chapter=chapter,
                note="as the file states it" + _OWN.get((run.tool, metric), ""),
            )
        )
    return tuple(found)


def _occupancy(
    run: BenchmarkRun, facts: _Facts, max_batch_size: int | None
) -> tuple[Quantity, ...]:
    found: list[Quantity] = []

    def add(name: str, value: float, note: str) -> None:
        found.append(
            Quantity(name=name, value=value, unit="requests", chapter="occupancy", note=note)
        )

    log, said = facts.log, run.stated
    if log is not None and log.shared_clock and len(log) and np.ptp(log.arrival) > 0:
        rate = len(log) / float(log.last_token.max() - log.arrival.min())
        mean = time_average(log.arrival, log.last_token)
        add("in the system, mean", mean, "counted, first send to last token")
        add("in the system, peak", peak(log.arrival, log.last_token), "counted")
        wait = (log.scheduled - log.arrival).mean()
        if not np.isnan(wait):
            batch = float(batch_occupancy(rate, (log.last_token - log.arrival).mean(), wait))
            note = "rate x (E2E - queue wait)"
            if max_batch_size is not None:
                note += f": {100 * batch / max_batch_size:.3g} % of {max_batch_size} seats"
            add("in the batch, mean", batch, note)
    elif facts.throughput and facts.e2e:
        little = float(little_law_concurrency(facts.throughput, facts.e2e))
        add("in the system, mean", little, "Little's law: throughput x mean E2E")
    for key, name in (("concurrency", "mean"), ("peak_concurrency", "peak")):
        if key in said:
            add(f"stated {name}", said[key], "as the file states it")
    if run.max_concurrency is not None:
        add("the client's limit", run.max_concurrency, "requests in flight that it allowed")
    return tuple(found)


# Where a tool's own TPOT stands among its figures of each request.
_OWN_TPOT = ("tpot", "inter_token_latency", "time_per_output_token")


def _identities(run: BenchmarkRun, facts: _Facts) -> tuple[Identity, ...]:
    checks = (_e2e_identity, _gap_identity, _total_identity, _rate_identity, _little_identity)
    found = [check(run, facts) for check in checks]
    return tuple(identity for identity in found if identity is not None)


def _checked(
    name: str,
    gap: ArrayLike,
    bound: ArrayLike,
    unit: str,
    chapter: str,
    note: str = "",
) -> Identity:
    """The verdict on gaps between two sides, each with what rounding allows."""
    gaps, bounds = np.broadcast_arrays(np.abs(np.atleast_1d(gap)), np.asarray(bound))
    worst = int(np.argmax(gaps - bounds))
    return Identity(
        name=name,
        verdict="holds" if gaps[worst] <= bounds[worst] else "broken",
        error=float(gaps[worst]),
        tolerance=float(bounds[worst]),
        unit=unit,
        n=gaps.size,
        chapter=chapter,
        note=note,
    )


def _unchecked(name: str, chapter: str, why: str) -> Identity:
    return Identity(
        name=name,
        verdict="not checked",
        error=None,
        tolerance=None,
        unit="",
        n=0,
        chapter=chapter,
        note=why,
    )


def _e2e_identity(run: BenchmarkRun, facts: _Facts) -> Identity | None:
    """E2E against TTFT and the TPOT that the tool itself reports."""
    name = "E2E = TTFT + (N - 1) TPOT"
    if facts.log is None:
        found = decode_by_means(run)
        if found is None:
            return _unchecked(name, "e2e", "the file states too little")
        decode, after, least, most = found
        gap = max(after * least - decode, decode - after * most, 0.0)
        note = "on means, from least to largest TPOT"
        return _checked(name, gap, ROUNDING_S, "s", "e2e", note)
    every = run.requests
    own = next((run.reported[key] for key in _OWN_TPOT if key in run.reported), None)
    if every is None or own is None or run.tool == "llmperf":
        return _unchecked(name, "e2e", "the file has no TPOT of each request")
    ok = every.succeeded & ~np.isnan(own) & ~np.isnan(every.last_token - every.first_token)
    ok &= every.output_tokens > 1
    if not ok.any():
        return _unchecked(name, "e2e", "no answer has two tokens")
    log = every.where(ok)
    told = e2e_from_ttft_tpot(log.first_token - log.arrival, own[ok], log.output_tokens)
    # A TPOT rounded to 1 ns is N - 1 times as far off in the sum.
    bound = ROUNDING_S + 1e-9 * log.output_tokens
    return _checked(name, told - (log.last_token - log.arrival), bound, "s", "e2e", "each request")


def _gap_identity(run: BenchmarkRun, facts: _Facts) -> Identity | None:
    """The gaps of each answer against its first and last token."""
    name, every = "last - first token = sum of gaps", run.requests
    if every is None or run.itl is None or run.itl_counts is None:
        return None
    owner = np.repeat(np.arange(len(every)), run.itl_counts)
    total = np.bincount(owner, weights=run.itl, minlength=len(every))
    ok = every.succeeded & ~np.isnan(every.last_token - every.first_token) & (run.itl_counts > 0)
    if not ok.any():
        return _unchecked(name, "e2e", "no answer has two chunks")
    span = every.last_token - every.first_token
    bound = ROUNDING_S + 1e-7 * run.itl_counts[ok]  # each gap may be rounded to 0.1 us
    return _checked(name, (total - span)[ok], bound, "s", "e2e", "each request")


def _total_identity(run: BenchmarkRun, facts: _Facts) -> Identity | None:
    """The file's totals against its rows."""
    log, said = run.requests, run.stated
    if log is None:
        return None
    rows = {
        "completed": float(log.succeeded.sum()),
        "failed": float((~log.succeeded).sum()),
        "input_tokens": _total(log.input_tokens[log.succeeded]),
        "output_tokens": _total(log.output_tokens[log.succeeded]),
    }
    both = {key: value for key, value in rows.items() if value is not None and key in said}
    if not both:
        return None
    gaps = np.array([value - said[key] for key, value in both.items()])
    words = ", ".join(key.removesuffix("_tokens") for key in both)
    return _checked("totals of the rows = stated totals", gaps, 0.0, "", "goodput", words)


def _rate_identity(run: BenchmarkRun, facts: _Facts) -> Identity | None:
    """Stated rates against stated totals over the stated time."""
    said = run.stated
    time = said.get("duration")
    if not time:
        return None
    pairs = {
        "request_throughput": said.get("completed"),
        "output_throughput": said.get("output_tokens"),
        "input_throughput": said.get("input_tokens"),
    }
    both = {k: total for k, total in pairs.items() if total and said.get(k)}
    if not both:
        return None
    gaps = np.array([said[key] * time / total - 1 for key, total in both.items()])
    # A table with two decimals rounds a rate, and the time, by up to 0.005.
    coarse = 0.005 if run.format.endswith("csv") else 0.0
    bound = np.array([ROUNDING + coarse / said[key] + coarse / time for key in both])
    words = ", ".join(key.removesuffix("_throughput") for key in both)
    if np.any(np.abs(gaps) > bound):
        key = next(iter(both))
        words += f": the rates are per {shown(both[key] / said[key], 's')}, not {shown(time, 's')}"
    return _checked("rate x time = total, as stated", gaps, bound, "", "goodput", words)


def _little_identity(run: BenchmarkRun, facts: _Facts) -> Identity | None:
    """Stated requests x stated mean E2E against the requests counted over time, or else against
    the stated mean concurrency."""
    name, said, log = "mean in system = rate x mean E2E", run.stated, run.requests
    n, mean = said.get("completed"), said.get("e2e.mean")
    if log is not None and log.shared_clock and n and mean:
        ends = log.last_token if run.closed is None else run.closed
        timed = log.succeeded & ~np.isnan(log.arrival) & ~np.isnan(ends)
        start, end = log.arrival[timed], ends[timed]
        if timed.sum() == log.succeeded.sum() and timed.any() and end.max() > start.min():
            residual = little_residual(n, mean, start, end)
            note = "n W against stamps"
            return _checked(name, residual, ROUNDING_S / mean + ROUNDING, "", "audit", note)
    stated = said.get("concurrency")
    if stated and facts.throughput and facts.e2e:
        little = facts.throughput * facts.e2e
        return _checked(
            name, stated / little - 1, 1e-3, "", "occupancy", "the file's own mean concurrency"
        )
    if log is None or not log.shared_clock:
        return _unchecked(name, "occupancy", "the file has no stamps on one clock")
    return _unchecked(name, "occupancy", "the file states no mean E2E")


def request_residual(
    ttft: ArrayLike, tpot: ArrayLike, output_tokens: ArrayLike, e2e_latency: ArrayLike
) -> FloatOrArray:
    """What an answer's own times leave, r = E2E - TTFT - (N_out - 1) TPOT (eq-audit-request).

    Parameters
    ----------
    ttft, tpot, e2e_latency : as a file states them (s, s per token, s), each >= 0.
    output_tokens : N_out >= 1.

    Returns
    -------
    Residuals (s), 0 but for rounding where the three are of one request, clock and count.

    Raises
    ------
    ValueError : a time is negative or missing, a count is not a whole number >= 1, lengths differ.
    """
    latency = nonnegative("e2e_latency", e2e_latency)
    told = np.asarray(e2e_from_ttft_tpot(ttft, tpot, output_tokens))
    together(e2e_latency=latency, told=told)
    return result("request_residual", latency - told)


def little_residual(completed: float, mean_e2e: float, start: ArrayLike, end: ArrayLike) -> float:
    """Little's residual: n W as stated, over the area under the number in the system, less 1
    (eq-audit-little).

    Parameters
    ----------
    completed : n, requests that the file states, >= 1.
    mean_e2e : W, their mean E2E as it states it (s) > 0.
    start, end : (m,) arrivals and ends of its rows (s), see `occupancy_curve`.

    Returns
    -------
    The residual. With stays rounded by at most u it is within u / W of 0 in an honest file.

    Raises
    ------
    ValueError : a value out of range; no row, lengths differ, or all stays are 0.
    """
    n = one("completed", count("completed", completed, minimum=1))
    mean = one("mean_e2e", positive("mean_e2e", mean_e2e))
    area = time_average(start, end) * (np.max(end) - np.min(start))
    return float(n * mean / area - 1)


def _slo_of(run: BenchmarkRun) -> Slo | None:
    """The limits that the file names itself."""
    limits = {name: run.limits[name] for name in ("ttft", "tpot", "e2e") if name in run.limits}
    if "itl" in run.limits and "tpot" not in limits:
        limits["tpot"] = run.limits["itl"]  # a limit on a request's mean gap, whatever its name
    return Slo(**limits, given=False) if limits else None


def _goodput(run: BenchmarkRun, facts: _Facts, slo: Slo | None) -> Goodput | None:
    asked = slo or _slo_of(run)
    if asked is None or facts.log is None or run.requests is None or not facts.sent:
        return None
    log = facts.log
    gaps = np.maximum(log.output_tokens - 1, 1)
    metrics = RequestMetrics(
        request_id=log.request_id,
        output_tokens=log.output_tokens,
        ttft=log.first_token - log.arrival,
        tpot=(log.last_token - log.first_token) / gaps,
        e2e_latency=log.last_token - log.arrival,
    )
    lost = facts.sent - len(log)

    def share(name: str, limits: Mapping[str, float]) -> Share:
        ttft, tpot, e2e = (limits.get(metric) for metric in ("ttft", "tpot", "e2e"))
        found = attainment(metrics, ttft, tpot, e2e, failed=lost)
        return Share(
            name=name,
            limit=next(iter(limits.values())) if len(limits) == 1 else None,
            good=found.good,
            judged=found.judged,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
        )

    limits = asked.limits()
    joint = share("all limits", limits)
    single = tuple(share(name.upper(), {name: limit}) for name, limit in limits.items())
    rate = facts.sent / facts.window if facts.window else None
    outcome: Literal["met", "missed", "not asked"] = "not asked"
    if asked.given:
        outcome = "met" if joint.ratio >= asked.target else "missed"
    notes = []
    if lost:
        notes.append(f"{lost:,} failed or unseen answers count as missed")
    if one_token := int((log.output_tokens == 1).sum()):
        notes.append(f"{one_token:,} one-token answers keep any TPOT limit")
    notes += _odd_limits(asked, metrics)
    return Goodput(
        slo=asked,
        joint=joint,
        single=single,
        rate=None if rate is None else joint.ratio * rate,
        rate_low=None if rate is None else joint.low * rate,
        rate_high=None if rate is None else joint.high * rate,
        window=facts.window,
        outcome=outcome,
        decided=not joint.low <= asked.target <= joint.high,
        note="; ".join(notes),
    )


def _odd_limits(slo: Slo, metrics: RequestMetrics) -> list[str]:
    """Limits that are ten times beyond every value: perhaps meant in another unit."""
    found = []
    columns = {"ttft": metrics.ttft, "tpot": metrics.tpot, "e2e": metrics.e2e_latency}
    for name, limit in slo.limits().items():
        values = columns[name]
        if not values.size:
            continue
        if limit > 10 * values.max():
            says = f"more than ten times the largest measured, {shown(float(values.max()), 's')}"
        elif limit < values.min() / 10:
            says = f"less than a tenth of the smallest measured, {shown(float(values.min()), 's')}"
        else:
            continue
        found.append(f"the {name.upper()} limit of {shown(limit, 's')} is {says}: limits are in s")
    return found


def _diagnosis(
    run: BenchmarkRun, facts: _Facts, judged: Goodput | None, max_batch_size: int | None
) -> Diagnosis | None:
    if facts.log is None or run.requests is None or not len(facts.log):
        return None
    limits = {} if judged is None else judged.slo.limits()
    target = TARGET if judged is None else judged.slo.target
    return diagnose(
        ledger(
            run.requests,
            ttft_slo=limits.get("ttft"),
            tpot_slo=limits.get("tpot"),
            e2e_slo=limits.get("e2e"),
            target=target,
            duration=run.duration,
            max_batch_size=max_batch_size,
            itl=run.itl,
            itl_counts=run.itl_counts,
        )
    )


def _stated(run: BenchmarkRun, slo: Slo | None) -> tuple[Stated, ...]:
    """The file's figures beside those from its rows. Where it names no limits, a goodput may be
    that of the limits asked for, or of others."""
    asked = None if slo is None or run.limits else slo.limits()
    found = []
    for row in reproduce(run, asked):
        others = asked is not None and row.agrees is False and row.key in _BY_LIMITS
        found.append(
            Stated(
                key=row.key,
                stated=row.stated,
                recomputed=None if others else row.recomputed,
                unit=_unit(row.key),
                agrees=None if others else row.agrees,
                why="the file names no limits, and yours give another" if others else row.why,
            )
        )
    return tuple(found)


_BY_LIMITS = ("good", "goodput", "attainment")


def _unit(key: str) -> str:
    """The unit of a stated figure."""
    if "." in key:
        return "s"
    if key.endswith("_throughput"):
        return "1/s" if key == "request_throughput" else "tokens/s"
    return {"duration": "s", "goodput": "1/s", "attainment": ""}.get(key, "")


# The sweep ----------------------------------------------------------------------------------------


def _sweep(runs: Sequence[RunAudit]) -> Sweep:
    rows = [_sweep_row(run) for run in runs]
    order = sorted(
        range(len(rows)), key=lambda i: (rows[i].offered is None, rows[i].offered or 0.0)
    )
    rows = [rows[i] for i in order]
    judged = [row for row in rows if row.goodput is not None]
    same = len({run.tool for run in runs}) == 1
    return Sweep(
        rows=tuple(rows),
        saturation=saturation(rows) if same else None,
        best=max(judged, key=lambda row: row.goodput or 0.0) if judged else None,
        suspicions=_flat([runs[i] for i in order], rows),
    )


def _sweep_row(run: RunAudit) -> SweepRow:
    facts = _Facts.of(run.run)
    counts = {q.name: q.value for q in run.counts}
    occupancy = {q.name: q.value for q in run.occupancy}
    judged = run.goodput
    return SweepRow(
        label=run.label,
        offered=counts.get("asked rate", counts.get("sent rate")),
        throughput=facts.throughput,
        output_throughput=counts.get("output throughput"),
        ttft=facts.ttft,
        tpot=facts.tpot,
        e2e=facts.e2e,
        in_system=occupancy.get("in the system, mean"),
        attainment=None if judged is None else judged.joint.ratio,
        goodput=None if judged is None else judged.rate,
    )


def saturation(rows: Sequence[SweepRow]) -> Saturation | None:
    """Where throughput stops following the offered rate.

    Parameters
    ----------
    rows : runs of one system at three offered rates or more, in order.

    Returns
    -------
    Saturation, at the largest throughput of the sweep. None where the last step of the sweep still
    adds half a request for each one offered (`HALF`): the sweep has not got there. Raises nothing.
    """
    known = [
        (row.offered, row.throughput)
        for row in rows
        if row.offered is not None and isfinite(row.offered) and row.throughput is not None
    ]
    rates = sorted({offered for offered, _ in known})
    if len(rates) < 3:
        return None
    carried = [float(np.mean([x for offered, x in known if offered == rate])) for rate in rates]
    more, gained = rates[-1] - rates[-2], carried[-1] - carried[-2]
    if gained >= HALF * more:
        return None
    most = max(carried)
    below = max((rate for rate in rates if rate <= most), default=None)
    beyond = min((rate for rate in rates if rate > most), default=None)
    says = (
        f"Throughput levels off at {most:.4g} requests/s: from {rates[-2]:.4g} to {rates[-1]:.4g} "
        f"offered, {more:.3g}/s more load brought {gained:.2g}/s more answers. "
    )
    says += "No offered rate of the sweep fits." if below is None else f"{below:.4g}/s still fits"
    says += "." if below is None or beyond is None else f", {beyond:.4g}/s does not."
    return Saturation(throughput=most, below=below, beyond=beyond, says=says)


def _flat(runs: Sequence[RunAudit], rows: Sequence[SweepRow]) -> tuple[Suspicion, ...]:
    """Runs that each held requests back, with as many in flight whatever was offered."""
    held = [
        row
        for run, row in zip(runs, rows, strict=True)
        if any(s.name == "closed loop" for s in run.suspicions)
        and row.in_system is not None
        and row.offered is not None
        and isfinite(row.offered)
    ]
    if len(held) < 2 or held[-1].offered == held[0].offered:
        return ()
    flights = [row.in_system or 0.0 for row in held]
    offered = [row.offered or 0.0 for row in held]
    if max(flights) / min(flights) >= max(offered) / min(offered):
        return ()
    listed = ", ".join(f"{x:.3g}" for x in flights)
    return (
        Suspicion(
            name="closed loop",
            seen=f"at {', '.join(f'{x:.4g}' for x in offered)} requests/s offered, {listed} were "
            "in flight on average",
            why="an open loop beyond saturation piles up more the more is offered. A number that "
            "stays is the load generator's own limit, so these runs are one run, repeated",
            chapter="occupancy",
        ),
    )


# Figures in words ---------------------------------------------------------------------------------


def shown(value: float, unit: str, digits: int = 4) -> str:
    """A figure with its unit in words that fit it: 0.1218 s is "121.8 ms".

    Parameters
    ----------
    value : the figure. unit : as in `Quantity`; "s" and "s/token" become ms below one.
    digits : significant digits.

    Returns
    -------
    ASCII text; raises nothing.
    """
    if unit in ("s", "s/token") and 0 < abs(value) < 1:
        scale, prefix = (1e3, "m") if abs(value) >= 1e-4 else (1e6, "u")
        value, unit = scale * value, f"{prefix}{unit}"
    number = f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
    if isfinite(value) and value == round(value):
        number = f"{value:,.0f}"
    return f"{number} {unit.replace('1/s', '/s')}".rstrip()


def percent(share: float) -> str:
    """A `share` in percent; "0 %" and "100 %" only when it is none or all. Raises nothing."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{100 * min(max(share, 0.001), 0.999):.1f} %"
