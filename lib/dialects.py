"""One log under the rules of eight load tools (chapter `dialects`).

A tool's rules are data: `print(DIALECTS["vllm"])` shows them. `translate` applies them to a
`ClientLog`, `reproduce` recomputes the figures that a result file states about itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    FloatOrArray,
    choice,
    count,
    of_kind,
    one,
    positive,
    real,
    require,
    result,
    together,
)
from lib.benchmarks.run import BenchmarkRun
from lib.goodput import SLACK_S
from lib.occupancy import peak
from lib.record import ClientLog

STAMPS = ("due", "sent", "first", "first_content", "last", "done", "closed")
DIVISORS = ("1", "N", "N - 1", "N - first chunk", "chunks", "chunk gaps")
EACH = ("request", "chunk gap", "token gap")
STATISTICS = ("mean", "median", "std", "min", "max", "p90", "p95", "p99")


@dataclass(frozen=True)
class Measure:
    """A time of one request, (end - begin) / divisor (eq-dialects-family), and how it is averaged.

    begin, end : names of stamps, of `STAMPS`: "due" (load plan), "sent", "first" token of any
        channel, "first_content" outside the reasoning channel, "last" token, "done" (last line
        of the stream), "closed" (client finished).
    divisor : of `DIVISORS`: "1", the tokens "N", the gaps between them "N - 1", the tokens after
        those of the first chunk, the "chunks" up to the last token, or the "chunk gaps".
    each : what one sample of the tool's statistics is: a "request", a "chunk gap", or a
        "token gap", which is 0 between tokens of one chunk.
    weighted : statistics weigh each request by its divisor.
    at_least : answers of fewer tokens have no value.

    Raises
    ------
    ValueError : another name, an end that does not come after the begin in `STAMPS`, weights for
        samples that are gaps, `at_least` negative or not whole.
    """

    begin: str
    end: str
    divisor: str = "1"
    each: str = "request"
    weighted: bool = False
    at_least: int = 0

    def __post_init__(self) -> None:
        choice("begin", self.begin, STAMPS)
        choice("end", self.end, STAMPS)
        choice("divisor", self.divisor, DIVISORS)
        choice("each", self.each, EACH)
        if STAMPS.index(self.end) <= STAMPS.index(self.begin):
            raise ValueError(f"end must come after begin {self.begin!r}: got {self.end!r}")
        if self.weighted and self.each != "request":
            raise ValueError(f"weighted must be False where a sample is a {self.each}: got True")
        one("at_least", count("at_least", self.at_least))

    def times(self, stamps: Mapping[str, FloatArray], divisor: FloatArray) -> FloatArray:
        """(end - begin) / divisor (s), NaN where a stamp or the divisor is missing, or it is 0."""
        span = stamps[self.end] - stamps[self.begin]
        has = divisor > 0
        times: FloatArray = np.where(has, span / np.where(has, divisor, 1.0), np.nan)
        return times

    def short(self, tokens: FloatArray) -> NDArray[np.bool_]:
        """The answers that have too few tokens for a value: no gap, or fewer than `at_least`."""
        gaps = self.divisor not in ("1", "N", "chunks")
        few: NDArray[np.bool_] = tokens < max(self.at_least, 2 if gaps else 0)
        return few

    def __str__(self) -> str:
        text = f"{self.end} - {self.begin}"
        if self.divisor != "1":
            text = f"({text}) / " + (f"({self.divisor})" if "-" in self.divisor else self.divisor)
        if self.each != "request":
            text += f", one sample a {self.each}"
        if self.weighted:
            text += f", weighted by {self.divisor}"
        if self.at_least > 1:
            text += f", none below {self.at_least} tokens"
        return text


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The rules of one tool.

    tool, version : what was read.
    measures : the latencies it reports, under the words it uses.
    names : its full name of each, where the word is ours for short.
    tokens : what it takes as N: the "server" count, or the "text" encoded again.
    limits : which measure each limit of an SLO judges, in `limit_unit` on the command line.
    verdict : a limit is for each "request"; for the 99th percentile of each measure ("p99"); for
        measures paired by "position" once missing ones are dropped; or there is "none".
    one_token : an answer without gaps passes ("pass"), fails ("fail") or is left out ("skip").
    failures : failed requests "miss" the SLO in the attainment or are left out ("leave_out");
        "no ratio" where the tool gives no attainment.
    window : the throughput's denominator: the client's "wall" clock; the "span" from the first
        send to the last `window_end` over `window_over`, "answered" or all "sent" requests; or
        the tool's own "measured" window around that span, which the rows do not show.
    rate_less : requests not counted in the request rate: 1 where n stamps make n - 1 gaps.
    percentile : "linear" interpolates; "cumulative" is the first value whose share of the weight,
        summed in floats, reaches q; "floor" is sorted[floor(n q)].
    ddof : divisor of the standard deviation is n - ddof.
    peaks : its peak figures count chunks, and requests present, in whole "seconds"; it counts the
        requests by a "sweep" over sends and ends; or "none".
    concurrency : mean concurrency as the "sum" of E2E over the window, or "none".
    clock : the clock that stamps.

    Raises
    ------
    ValueError : a rule has another value than those above, a limit judges no measure, there is no
        measure "ttft" or "e2e".
    TypeError : a measure is no Measure.
    """

    tool: str
    version: str
    measures: Mapping[str, Measure]
    names: Mapping[str, str]
    tokens: Literal["server", "text"]
    limits: Mapping[str, str]
    limit_unit: Literal["ms", "s", "none"]
    verdict: Literal["request", "position", "p99", "none"]
    one_token: Literal["pass", "fail", "skip"]
    failures: Literal["miss", "leave_out", "no ratio"]
    window: Literal["wall", "span", "measured"]
    window_end: str = "last"
    window_over: Literal["answered", "sent"] = "answered"
    rate_less: int = 0
    percentile: Literal["linear", "cumulative", "floor"] = "linear"
    ddof: int = 0
    peaks: Literal["seconds", "sweep", "none"] = "none"
    concurrency: Literal["sum", "none"] = "none"
    clock: str

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                choice(name, getattr(self, name), get_args(kind))
        choice("window_end", self.window_end, STAMPS)
        for name, measure in self.measures.items():
            of_kind(f"measures[{name!r}]", measure, Measure)
        for name in ("ttft", "e2e"):  # the window begins where TTFT does, a stay ends with E2E
            if name not in self.measures:
                raise ValueError(f"measures must hold {name!r}: got {', '.join(self.measures)}")
        for limit, name in self.limits.items():
            choice(f"limits[{limit!r}]", name, tuple(self.measures))
        for name in ("rate_less", "ddof"):
            one(name, count(name, getattr(self, name)))

    def rules(self) -> dict[str, str]:
        """Every rule as a name and a text."""
        rules = {name: str(measure) for name, measure in self.measures.items()}
        rules["N"] = "server's count" if self.tokens == "server" else "text encoded again"
        rules["limits"] = "none"
        if self.limits:
            judged = ", ".join(f"{limit} judges {name}" for limit, name in self.limits.items())
            rules["limits"] = f"{judged}; in {self.limit_unit}"
        rules["verdict"] = _SAYS[self.verdict]
        if self.verdict in ("request", "position"):
            rules["one-token answers"] = _SAYS[self.one_token]
            rules["failures"] = _SAYS[self.failures]
        rules["window"] = "wall clock of the client"
        if self.window != "wall":
            around = "the tool's own, around " if self.window == "measured" else ""
            span = f"earliest {self._begin()} to latest {self.window_end}"
            rules["window"] = f"{around}{span}, of all {self.window_over}"
        rules["requests in the rate"] = f"n - {self.rate_less}" if self.rate_less else "n"
        rules["percentile"] = _SAYS[self.percentile]
        rules["std divides by"] = f"n - {self.ddof}" if self.ddof else "n"
        rules["peaks"], rules["concurrency"] = _SAYS[self.peaks], _SAYS[self.concurrency]
        rules["clock"] = self.clock
        return rules

    def __str__(self) -> str:
        lines = [f"{self.tool} {self.version}"]
        return "\n".join(lines + [f"  {name}: {text}" for name, text in self.rules().items()])

    def _begin(self) -> str:
        """The stamp from which the window runs."""
        return "due" if self.measures["ttft"].begin == "due" else "sent"


_SAYS = {
    "request": "each request is good or not",
    "p99": "the run passes if each P99 is within its limit",
    "position": "lists paired by position, missing values dropped",
    "pass": "pass",
    "fail": "fail",
    "skip": "left out",
    "miss": "count as misses",
    "leave_out": "left out",
    "no ratio": "no attainment is given",
    "linear": "linear interpolation",
    "cumulative": "first value whose summed share reaches q",
    "floor": "sorted[floor(n q)]",
    "seconds": "chunks and requests in whole seconds",
    "sweep": "requests by a sweep over sends and ends",
    "sum": "sum of E2E over the window",
    "none": "none",
}

_LIMITS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e"}
_ITL_LIMITS = {"ttft": "ttft", "tpot": "itl", "e2e": "e2e"}
_SHORT = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "e2e": "request_latency"}

_TOOLS = (
    Dialect(
        tool="vllm",
        version="0.33.0, bench serve",
        measures={
            "ttft": Measure("sent", "first"),
            "tpot": Measure("first", "last", "N - 1"),
            "itl": Measure("first", "last", "chunk gaps", each="chunk gap"),
            "e2e": Measure("sent", "last"),
        },
        names={"e2e": "latency"},
        tokens="server",
        limits=_LIMITS,
        limit_unit="ms",
        verdict="request",
        one_token="pass",
        failures="no ratio",
        window="wall",
        peaks="seconds",
        clock="perf_counter",
    ),
    Dialect(
        tool="sglang",
        version="0.5.23, bench_serving",
        measures={
            "ttft": Measure("sent", "first"),
            "tpot": Measure("first", "done", "N - 1"),
            "itl": Measure("first", "last", "chunk gaps", each="chunk gap"),
            "e2e": Measure("sent", "done"),
        },
        names={"e2e": "e2e_latency"},
        tokens="server",
        limits=_LIMITS,
        limit_unit="ms",
        verdict="request",
        one_token="pass",
        failures="miss",
        window="wall",
        peaks="seconds",
        concurrency="sum",
        clock="perf_counter",
    ),
    Dialect(
        tool="aiperf",
        version="0.13.0",
        measures={
            "ttft": Measure("sent", "first"),
            "itl": Measure("first", "last", "N - 1"),
            "itl_chunk_usage": Measure("first", "last", "N - first chunk"),
            "chunk_itl": Measure("first", "last", "chunk gaps", each="chunk gap"),
            "e2e": Measure("sent", "last"),
        },
        names=_SHORT
        | {"chunk_itl": "inter_chunk_latency", "itl_chunk_usage": "with --per-chunk-usage"},
        tokens="text",
        limits=_ITL_LIMITS,
        limit_unit="ms",
        verdict="request",
        one_token="fail",
        failures="miss",
        window="measured",
        clock="perf_counter_ns, time_ns",
    ),
    Dialect(
        tool="genai-perf",
        version="0.0.16",
        measures={
            "ttft": Measure("sent", "first"),
            "itl": Measure("first", "last", "N - 1"),
            "e2e": Measure("sent", "last"),
        },
        names=_SHORT,
        tokens="text",
        limits=_ITL_LIMITS,
        limit_unit="ms",
        verdict="position",
        one_token="skip",
        failures="no ratio",
        window="span",
        clock="system_clock",
    ),
    Dialect(
        tool="guidellm",
        version="0.8.1",
        measures={
            "ttft": Measure("sent", "first"),
            "tpot": Measure("sent", "last", "N", weighted=True),
            "itl": Measure("first", "last", "N - 1", weighted=True),
            "e2e": Measure("sent", "done"),
        },
        names=_SHORT | {"tpot": "time_per_output_token"},
        tokens="server",
        limits=_ITL_LIMITS,
        limit_unit="ms",
        verdict="request",
        one_token="skip",
        failures="miss",
        window="measured",
        window_end="done",
        percentile="cumulative",
        peaks="sweep",
        concurrency="sum",
        clock="time.time",
    ),
    Dialect(
        tool="inference-perf",
        version="7de5ef2",
        measures={
            "ttft": Measure("sent", "first_content", at_least=2),
            "tpot": Measure("first_content", "last", "N - 1"),
            "itl": Measure("first_content", "last", "N - 1", each="token gap"),
            "ntpot": Measure("sent", "closed", "N"),
            "e2e": Measure("sent", "closed"),
        },
        names=_SHORT
        | {"tpot": "time_per_output_token", "ntpot": "normalized_time_per_output_token"},
        tokens="text",
        limits=_LIMITS | {"ntpot": "ntpot"},
        limit_unit="s",
        verdict="request",
        one_token="fail",
        failures="leave_out",
        window="span",
        window_end="closed",
        window_over="sent",
        clock="perf_counter",
    ),
    Dialect(
        tool="llmperf",
        version="f1d6bed",
        measures={
            "ttft": Measure("sent", "first"),
            "itl": Measure("sent", "last", "chunks"),
            "e2e": Measure("sent", "closed"),
        },
        names={"itl": "inter_token_latency", "e2e": "end_to_end_latency"},
        tokens="text",
        limits={},
        limit_unit="none",
        verdict="none",
        one_token="pass",
        failures="no ratio",
        window="wall",
        ddof=1,
        clock="monotonic",
    ),
    Dialect(
        tool="mlperf",
        version="LoadGen 05a9cec",
        measures={
            "ttft": Measure("due", "first"),
            "tpot": Measure("first", "last", "N - 1"),
            "e2e": Measure("due", "last"),
        },
        names={},
        tokens="server",
        limits={"ttft": "ttft", "tpot": "tpot"},
        limit_unit="ms",
        verdict="p99",
        one_token="fail",
        failures="no ratio",
        window="span",
        rate_less=1,
        percentile="floor",
        clock="ns since start",
    ),
)
DIALECTS: Mapping[str, Dialect] = {dialect.tool: dialect for dialect in _TOOLS}
"""The eight tools, by name."""


@dataclass(frozen=True, eq=False)
class Translation:
    """One log under one dialect.

    dialect : whose rules.
    values : for each measure one value a request (s), NaN where it has none: a failed request, no
        gap, a stamp missing.
    samples : for each measure the values that its statistics are taken over: the requests' that
        have one, or all gaps of all requests (s).
    weights : for a weighted measure, the weight of each sample.
    figures : the tool's figures, "measure.statistic" in seconds, and scalars: completed, failed,
        duration (of the window), span (first send to last end, unless the window is the client's
        wall clock), input_tokens, output_tokens, request_throughput (1/s), output_throughput,
        input_throughput, total_throughput (tokens/s), good, judged, goodput (1/s), attainment,
        passes (0 or 1), concurrency, peak_concurrency, peak_output_throughput (chunks/s).
    missing : a figure or measure that the log does not carry, and why.
    notes : what was taken in place of what, and how many answers lack a measure.
    """

    dialect: Dialect
    values: Mapping[str, FloatArray]
    samples: Mapping[str, FloatArray]
    weights: Mapping[str, FloatArray]
    figures: Mapping[str, float]
    missing: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def statistic(self, measure: str, name: str) -> float:
        """One statistic of a measure (s): mean, median, std, min, max, count or p50, p99.9 ..."""
        choice("measure", measure, tuple(self.samples))
        weights = self.weights.get(measure)
        return _statistic(self.samples[measure], name, self.dialect, weights)


def translate(
    log: ClientLog,
    dialect: str | Dialect,
    *,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
) -> Translation:
    """What a tool would report about a log: (end - begin) / divisor (eq-dialects-family) and more.

    Parameters
    ----------
    log : what the client saw. Its missing stamps stay missing: what needs them is listed in
        `missing`, never guessed; `log.closed_at_once()` states the guess that they cost nothing.
    dialect : a name of `DIALECTS`, or a Dialect of your own.
    ttft_slo, tpot_slo, e2e_slo : limits (s), judged by `dialect.limits` with 1 ns of slack (stamps
        have no finer resolution; the tools compare floats).

    Returns
    -------
    Translation, with the percentiles of `STATISTICS`; others by its `statistic`.

    Raises
    ------
    ValueError : an unknown dialect, no request, a limit that is not positive.
    TypeError : `log` is no ClientLog.

    Source: each tool's source, at the version in `DIALECTS`.
    """
    of_kind("log", log, ClientLog)
    rules = (
        dialect
        if isinstance(dialect, Dialect)
        else DIALECTS[choice("dialect", dialect, tuple(DIALECTS))]
    )
    if not len(log.requests):
        raise ValueError("log must hold at least one request: got none")
    given = {"ttft": ttft_slo, "tpot": tpot_slo, "e2e": e2e_slo}
    slo = {
        name: one(f"{name}_slo", positive(f"{name}_slo", limit))
        for name, limit in given.items()
        if limit is not None
    }
    return _Reading(log, rules).translation(slo)


class _Reading:
    """A log as one dialect reads it; `translation` puts the parts together."""

    def __init__(self, log: ClientLog, dialect: Dialect, window: float | None = None) -> None:
        self.log, self.dialect, self.done = log, dialect, log.requests.succeeded
        self.known_window = window
        self.notes: list[str] = []
        self.missing: dict[str, str] = {}
        self.stamps = {
            "due": log.due,
            "sent": log.requests.arrival,
            "first": log.requests.first_token,
            "first_content": log.first_content,
            "last": log.requests.last_token,
            "done": log.done,
            "closed": log.closed,
        }
        self.tokens = log.requests.output_tokens
        if dialect.tokens == "text":
            recounted = ~np.isnan(log.text_tokens)
            self.tokens = np.where(recounted, log.text_tokens, self.tokens)
            if not recounted[self.done].all():
                self.notes.append("N is the log's own count: it has no text encoded again")
        # The chunks of answers that carry a token: their place, request, stamp and tokens.
        self.place = self.owner = np.empty(0, np.int64)
        self.times = self.chunk_tokens = np.empty(0)
        times, tokens, counts = log.chunk_times, log.chunk_tokens, log.chunk_counts
        if times is not None and tokens is not None and counts is not None:
            owner = np.repeat(np.arange(self.tokens.size), counts)
            self.place = np.flatnonzero(self.done[owner] & (tokens != 0))
            self.owner, self.times = owner[self.place], times[self.place]
            self.chunk_tokens = tokens[self.place]

    def translation(self, slo: Mapping[str, float]) -> Translation:
        values, samples, weights = {}, {}, {}
        figures: dict[str, float] = {}
        for name, measure in self.dialect.measures.items():
            value, divisor = self.measure(measure)
            values[name] = value
            has = ~np.isnan(value)
            samples[name] = value[has] if measure.each == "request" else self.gaps(measure, has)
            if measure.weighted:
                weights[name] = divisor[has]
            figures[f"{name}.count"] = float(samples[name].size)
            if not samples[name].size:
                self.missing[name] = self.why(measure)
                continue
            if lacking := int((self.done & ~has).sum()):
                self.notes.append(f"{lacking} of {int(self.done.sum())} answers have no {name}")
            for statistic, figure in _statistics(
                samples[name], STATISTICS, self.dialect, weights.get(name)
            ).items():
                figures[f"{name}.{statistic}"] = figure
        figures |= self.rates(values)
        if slo and self.dialect.verdict != "none":
            figures |= self.verdicts(slo, values, samples, figures.get("duration"))
        return Translation(
            self.dialect, values, samples, weights, figures, self.missing, tuple(self.notes)
        )

    def divisor(self, name: str) -> FloatArray:
        """The divisor of each request, NaN where unknown."""
        n, counts = self.tokens, self.log.chunk_counts
        value = np.full(n.size, np.nan)
        if name == "1":
            value[:] = 1
        elif name == "N":
            value = n
        elif name == "N - 1":
            value = n - 1
        elif counts is not None and name == "chunks":
            # Role chunks count; a usage frame after the last token does not.
            value[self.owner] = self.place + 1  # of each request the last one stays
            value -= np.cumsum(counts) - counts
        elif counts is not None and name == "chunk gaps":
            value[:] = np.bincount(self.owner, minlength=n.size) - 1
        elif counts is not None:
            value[self.owner[::-1]] = self.chunk_tokens[::-1]  # of each request the first stays
            value = n - value
        return value

    def measure(self, measure: Measure) -> tuple[FloatArray, FloatArray]:
        """The measure of each request, NaN where it has none; and the divisor."""
        divisor = self.divisor(measure.divisor)
        has = self.done & ~measure.short(self.tokens)
        value = measure.times(self.stamps, np.where(has, divisor, np.nan))
        return value, divisor

    def gaps(self, measure: Measure, has: NDArray[np.bool_]) -> FloatArray:
        """The gaps of the requests that have one, in one array."""
        if self.log.chunk_times is None:
            return np.empty(0)
        inside = (np.diff(self.owner) == 0) & has[self.owner[1:]]
        if measure.begin == "first_content":  # the gaps before it are those of another channel
            since = self.log.first_content[self.owner] - SLACK_S
            inside &= (self.times >= since)[:-1]
        gaps: FloatArray = np.diff(self.times)[inside]
        if measure.each == "chunk gap":
            return gaps
        within = self.tokens[has].sum() - has.sum() - gaps.size  # tokens that share a stamp
        if within < 0:
            self.notes.append("fewer tokens than chunks: gaps of chunks, not of tokens")
            return gaps
        return np.concatenate([np.zeros(int(within)), gaps])

    def why(self, measure: Measure) -> str:
        """Why no request has a value."""
        if not self.done.any():
            return "no request succeeded"
        for name in (measure.begin, measure.end):
            if np.isnan(self.stamps[name][self.done]).all():
                return f"the log has no stamp {name!r}"
        by_chunk = "chunk" in measure.divisor or measure.each != "request"
        if by_chunk and self.log.chunk_times is None:
            return "the log has no chunks"
        if "first chunk" in measure.divisor and np.isnan(self.chunk_tokens).all():
            return "the log has no token counts of chunks"
        if np.isnan(self.tokens[self.done]).all():
            return "the log has no output tokens"
        if measure.divisor != "1" or measure.at_least:
            return "no answer has enough tokens"
        return "no request has both stamps"

    def window(self) -> dict[str, float]:
        """The throughput's denominator, `duration`, and the span of the rows (s)."""
        known = {} if self.known_window is None else {"duration": self.known_window}
        if self.dialect.window == "wall":
            if not known and self.log.wall is None:
                self.missing["duration"] = "the log has no wall clock"
            return {"duration": self.log.wall} | known if self.log.wall is not None else known
        reason = ""
        begin, name = self.stamps[self.dialect._begin()], self.dialect.window_end
        end, answered = self.stamps[name], self.done
        if not self.log.requests.shared_clock:
            reason = "each request has a clock of its own: there is no span"
        elif not answered.any() or np.isnan((end - begin)[answered]).any():
            reason = f"the log has no stamp {name!r} for every answer"
        else:
            over = answered if self.dialect.window_over == "answered" else np.full(end.size, True)
            span = float(np.nanmax(end[over]) - np.nanmin(begin[over]))
            if span > 0:
                return {"duration": span, "span": span} | known
            reason = "the span is 0 s"
        self.missing |= {key: reason for key in ("duration", "span") if key not in known}
        return known

    def rates(self, values: Mapping[str, FloatArray]) -> dict[str, float]:
        """Counts, the window, and the rates over it."""
        completed = int(self.done.sum())
        figures: dict[str, float] = {
            "completed": completed,
            "failed": self.done.size - completed,
        }
        totals = {"input": self.log.requests.input_tokens, "output": self.tokens}
        for name, column in totals.items():
            tokens = column[self.done]
            if np.isnan(tokens).any():
                self.missing[f"{name}_tokens"] = f"the log has no {name} tokens for every answer"
            else:
                figures[f"{name}_tokens"] = float(tokens.sum())
        figures |= self.window()
        if "duration" in figures:
            window = figures["duration"]
            figures["request_throughput"] = max(completed - self.dialect.rate_less, 0) / window
            sums = [figures[f"{name}_tokens"] for name in totals if f"{name}_tokens" in figures]
            for name in totals:
                if f"{name}_tokens" in figures:
                    figures[f"{name}_throughput"] = figures[f"{name}_tokens"] / window
            if len(sums) == 2:
                figures["total_throughput"] = sum(sums) / window
            if self.dialect.concurrency == "sum" and "e2e" not in self.missing:
                figures["concurrency"] = float(np.nansum(values["e2e"])) / window
        if self.dialect.peaks != "none":
            figures |= self.peaks()
        return figures

    def peaks(self) -> dict[str, float]:
        """The most requests at once and, by whole seconds, the most chunks."""
        name, figures = self.dialect.measures["e2e"].end, {}
        begin, end = self.stamps["sent"][self.done], self.stamps[name][self.done]
        by_second = self.dialect.peaks == "seconds"
        reason = "" if self.log.requests.shared_clock else "each request has a clock of its own"
        if not self.done.any():
            reason = "no request succeeded"
        if reason or np.isnan(end).any():
            self.missing["peak_concurrency"] = reason or f"the log has no stamp {name!r}"
        elif not by_second:
            figures["peak_concurrency"] = float(peak(begin, end))
        else:  # the second in which a request ends counts as well
            enter, leave = ((x - begin.min()).astype(np.int64) for x in (begin, end))
            change = np.bincount(enter, minlength=leave.max() + 2).astype(np.float64)
            change[1:] -= np.bincount(leave, minlength=change.size - 1)
            figures["peak_concurrency"] = float(np.cumsum(change).max())
        if by_second and (reason or self.log.chunk_times is None):
            self.missing["peak_output_throughput"] = reason or "the log has no chunks"
        elif by_second:
            second = (self.times - begin.min()).astype(np.int64)
            figures["peak_output_throughput"] = float(np.bincount(second).max(initial=0))
        return figures

    def verdicts(
        self,
        slo: Mapping[str, float],
        values: Mapping[str, FloatArray],
        samples: Mapping[str, FloatArray],
        window: float | None,
    ) -> dict[str, float]:
        """Good requests, goodput and attainment under the limits."""
        rules = self.dialect
        for name in slo:
            if name not in rules.limits:
                self.missing["good"] = f"{rules.tool} has no limit on {name}"
                return {}
            lacking = self.missing.get(rules.limits[name])
            short = rules.measures[rules.limits[name]].short(self.tokens)
            # Where no answer is long enough, a verdict on each request still stands.
            if lacking and (rules.verdict != "request" or (self.done & ~short).any()):
                self.missing["good"] = lacking
                return {}
        limits = {rules.limits[name]: limit + SLACK_S for name, limit in slo.items()}
        if rules.verdict == "p99":
            tails = {name: _statistic(samples[name], "p99", rules, None) for name in limits}
            return {"passes": float(all(tails[name] <= limits[name] for name in limits))}
        judged = self.done.copy()
        if rules.verdict == "position":
            size = min(samples[name].size for name in limits)
            good = np.full(size, True)
            for name, limit in limits.items():
                good &= samples[name][:size] <= limit
        else:
            good = self.done.copy()
            for name, limit in limits.items():
                within = values[name] <= limit  # a missing value is not
                short = rules.measures[name].short(self.tokens)
                within |= short & (rules.one_token == "pass")
                judged &= ~short | (rules.one_token != "skip")
                good &= within
        figures = {"good": float(good.sum())}
        if window is not None:
            figures["goodput"] = figures["good"] / window
        if rules.failures != "no ratio":
            lost = int((~self.done).sum()) if rules.failures == "miss" else 0
            figures["judged"] = float(judged.sum() + lost)
            if figures["judged"]:
                figures["attainment"] = figures["good"] / figures["judged"]
            else:
                self.missing["attainment"] = "no request is judged"
        return figures


# Statistics by a dialect's rules ------------------------------------------------------------------


def _statistic(
    values: FloatArray, name: str, dialect: Dialect, weights: FloatArray | None
) -> float:
    return _statistics(values, (name,), dialect, weights)[name]


def _statistics(
    values: FloatArray, names: tuple[str, ...], dialect: Dialect, weights: FloatArray | None
) -> dict[str, float]:
    """The named statistics; those that do not exist (std of one value with ddof 1) are left out."""
    found: dict[str, float] = {}
    shares = {name: _share(name) for name in names}
    wanted = {name: share for name, share in shares.items() if share is not None}
    if wanted:
        quantiles = _quantiles(values, list(wanted.values()), dialect.percentile, weights)
        found |= dict(zip(wanted, quantiles, strict=True))
    mean = float(np.average(values, weights=weights))
    total = values.size if weights is None else float(weights.sum())
    for name in set(names) - set(wanted):
        match name:
            case "mean":
                found[name] = mean
            case "std":
                if total > dialect.ddof:
                    spread = (values - mean) ** 2
                    weighed = spread.sum() if weights is None else (weights * spread).sum()
                    found[name] = float(np.sqrt(weighed / (total - dialect.ddof)))
            case "min":
                found[name] = float(values.min())
            case "max":
                found[name] = float(values.max())
            case "count":
                found[name] = float(total)
    return {name: found[name] for name in names if name in found}


def _share(name: str) -> float | None:
    """The share q of a percentile's name; None for another statistic."""
    if name == "median":
        return 0.5
    if name in ("mean", "std", "min", "max", "count"):
        return None
    try:
        share = float(name.removeprefix("p")) / 100 if name.startswith("p") else np.nan
    except ValueError:
        share = np.nan
    if not 0 <= share <= 1:
        raise ValueError(
            f"statistic must be mean, median, std, min, max, count or p50, p99, ...: got {name!r}"
        )
    return share


def _quantiles(
    values: FloatArray, shares: list[float], rule: str, weights: FloatArray | None
) -> list[float]:
    if rule == "linear":
        return [float(x) for x in np.quantile(values, shares)]
    if rule == "cumulative":
        return [float(x) for x in cumulative_quantile(values, shares, weights)]
    ordered = np.sort(values)
    return [float(ordered[min(int(values.size * q), values.size - 1)]) for q in shares]


def cumulative_quantile(
    values: FloatArray, shares: ArrayLike, weights: FloatArray | None = None
) -> FloatArray:
    """The first value whose share of the weight, summed in floats, reaches q: GuideLLM's rule.

    Parameters
    ----------
    values : (n,) the sample, any unit.
    shares : q between 0 and 1, one or many.
    weights : (n,) weight of each value; 1 when left out.

    Returns
    -------
    One quantile a share, in the unit of `values`. Float sums may miss q by the last bit: the P90
    of ten equal weights is the 10th value, where the exact nearest rank is the 9th
    (`percentile.percentile`, "nearest_rank").

    Raises
    ------
    ValueError : no value, a value that is NaN or infinite, shares out of range, a negative weight.

    Source: GuideLLM 0.8.1, `schemas/base/statistics.py`.
    """
    sample, q = real("values", values), real("shares", shares)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError(f"values must be a non-empty list: got shape {sample.shape}")
    require("shares", q, (q >= 0) & (q <= 1), "between 0 and 1")
    weight = np.ones(sample.size) if weights is None else real("weights", weights)
    require("weights", weight, weight >= 0, ">= 0")
    if weight.shape != sample.shape:
        raise ValueError(
            f"weights must have one value a sample: got shape {weight.shape} for {sample.size}"
        )
    if weight.sum() == 0:
        raise ValueError("weights must sum to more than 0: got 0")
    distinct, place = np.unique(sample, return_inverse=True)
    mass = np.bincount(place, weights=weight)
    cumulated = np.cumsum(mass / mass.sum())
    rank = np.minimum(np.searchsorted(cumulated, q, side="left"), distinct.size - 1)
    return np.atleast_1d(distinct[rank])


# A file's own figures, recomputed -----------------------------------------------------------------

AGREE_S, AGREE_SHARE = 1e-6, 1e-6
"""Two figures agree within 1 us plus 1 part in a million: Unix stamps in float64 step by 0.24 us,
and files write times to 0.1 us or coarser."""


@dataclass(frozen=True)
class Reproduced:
    """One figure of a result file: as stated, and recomputed from the file's rows.

    recomputed is None where the rows do not carry it; `why` then says what they lack. Otherwise
    `why` is empty, or says what was taken from the file on the way.
    """

    key: str
    stated: float
    recomputed: float | None
    agrees: bool | None
    why: str = ""


def reproduce(
    run: BenchmarkRun, limits: Mapping[str, float] | None = None
) -> tuple[Reproduced, ...]:
    """Each figure that a result file states, recomputed from its rows in its tool's dialect.

    Parameters
    ----------
    run : a run with its `stated` figures, as the readers of `lib.benchmarks` return it.
    limits : the SLO behind a stated goodput (s), keys ttft, tpot, itl, e2e, where the file does
        not name it; `run.limits` when left out.

    Returns
    -------
    One Reproduced a stated figure, in the file's order. They agree within `AGREE_S` plus
    `AGREE_SHARE` of the value.

    Raises
    ------
    ValueError : a limit is not positive, or has another name.
    TypeError : `run` is no BenchmarkRun.
    """
    of_kind("run", run, BenchmarkRun)
    if run.tool not in DIALECTS:
        return _none_of(run, f"no tool's rules apply to {run.tool!r}")
    if run.requests is None:
        return _none_of(run, "the file has no rows, only summaries")
    dialect = DIALECTS[run.tool]
    given = run.limits if limits is None else limits
    slo = {
        "tpot" if choice("limits", name, ("ttft", "tpot", "itl", "e2e")) == "itl" else name: one(
            name, positive(name, limit)
        )
        for name, limit in given.items()
    }
    window = None if dialect.window == "span" else run.duration
    told = _Reading(run.client_log(), dialect, window).translation(slo)
    return tuple(_reproduced(key, stated, run, told, window) for key, stated in run.stated.items())


_OVER_WINDOW = (
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "total_throughput",
    "goodput",
    "concurrency",
)


def _none_of(run: BenchmarkRun, why: str) -> tuple[Reproduced, ...]:
    return tuple(Reproduced(key, stated, None, None, why) for key, stated in run.stated.items())


def _reproduced(
    key: str, stated: float, run: BenchmarkRun, told: Translation, window: float | None
) -> Reproduced:
    measure, _, statistic = key.partition(".")
    value, why = told.figures.get(key), ""
    if window is not None and key == "duration":
        if stated == window:
            return Reproduced(key, stated, None, None, "the client's own clock is not in the rows")
        value = told.figures.get("span")  # AIPerf's benchmark_duration is not its denominator
    elif window is not None and key in _OVER_WINDOW:
        why = "over the file's own window"
    if value is None and statistic and measure in told.samples:
        own = run.reported.get(told.dialect.names.get(measure, measure))
        if told.samples[measure].size:
            value = told.statistic(measure, statistic)
        elif own is not None and not np.isnan(own).all():
            value = _statistic(own[~np.isnan(own)], statistic, told.dialect, None)
            why = f"from the tool's own figure of each row: {told.missing[measure]}"
    if value is None:
        why = told.missing.get(key) or told.missing.get(measure) or _unknown(key, told)
        return Reproduced(key, stated, None, None, why)
    agrees = abs(value - stated) <= AGREE_S + AGREE_SHARE * abs(stated)
    return Reproduced(key, stated, value, bool(agrees), why)


def _unknown(key: str, told: Translation) -> str:
    if "duration" in told.missing and ("throughput" in key or key in ("goodput", "concurrency")):
        return told.missing["duration"]
    if key in ("good", "goodput", "attainment"):
        return told.missing.get("good", "the file names no limits")
    return f"no rule of {told.dialect.tool} for it here"


# Chunks and tokens --------------------------------------------------------------------------------


def peak_throughput(
    times: ArrayLike, tokens: ArrayLike, duration: float, bin_s: float = 1.0
) -> float:
    """Largest token rate of the bins that tile a run (eq-dialects-peak).

    Parameters
    ----------
    times : (n,) stamps of the chunks, from the start of the window (s).
    tokens : (n,) tokens in each, or one number for all.
    duration : length of the window (s) > 0.
    bin_s : length of a bin (s) > 0. The last bin ends with the window: a rest shorter than half a
        bin joins the one before it, lest the final token alone look like a peak.

    Returns
    -------
    Tokens per second. The bins tile the window, so the peak is never below the mean rate.

    Raises
    ------
    ValueError : a chunk outside the window, a count negative or not whole, a length not positive.

    Source: the mean of a sample never exceeds its largest value.
    """
    at, each = real("times", times), count("tokens", tokens)
    if each.ndim and each.shape != at.shape:
        raise ValueError(
            f"tokens must have one value a chunk: got shape {each.shape} for {at.size} times"
        )
    if at.ndim != 1 or at.size == 0:
        raise ValueError(f"times must be a non-empty list of stamps: got shape {at.shape}")
    window = one("duration", positive("duration", duration))
    width = one("bin_s", positive("bin_s", bin_s))
    require("times", at, (at >= 0) & (at <= window), f"inside the window, 0 to {window:.12g} s")
    bins = max(int(window / width + 0.5), 1)
    place = np.minimum((at / width).astype(np.int64), bins - 1)
    held = np.bincount(place, weights=np.broadcast_to(each, at.shape), minlength=bins)
    lengths = np.full(bins, width)
    lengths[-1] = window - width * (bins - 1)
    return float((held / lengths).max())


def tokens_per_chunk(mean_itl: ArrayLike, mean_tpot: ArrayLike) -> FloatOrArray:
    """Tokens a chunk after the first, mean ITL over chunk gaps / mean TPOT (eq-dialects-chunk).

    Parameters
    ----------
    mean_itl : mean gap between chunks (s, or any unit) > 0.
    mean_tpot : mean gap between tokens, weighted by N - 1 where answers differ in length, > 0.

    Raises
    ------
    ValueError : a mean that is not positive and finite.

    Source: both means share the numerator, the decode time.
    """
    gap, token = positive("mean_itl", mean_itl), positive("mean_tpot", mean_tpot)
    together(mean_itl=gap, mean_tpot=token)
    return result("tokens_per_chunk", gap / token)


@dataclass(frozen=True)
class Speculation:
    """What speculative decoding made of its drafts.

    acceptance_rate : accepted / drafted tokens.
    accepted_per_draft : accepted tokens a draft, without the bonus token.
    tokens_per_step : with it: every verified draft also yields one token of the target model.
    tokens : output tokens of all steps.
    per_position : (k,) share of the drafts whose k-th token was accepted.
    """

    acceptance_rate: float
    accepted_per_draft: float
    tokens_per_step: float
    tokens: int
    per_position: FloatArray = field(default_factory=lambda: np.empty(0))


def speculation(
    drafts: int, draft_tokens: int, accepted: int, accepted_per_position: ArrayLike = ()
) -> Speculation:
    """Acceptance length with and without the bonus token (eq-dialects-speculation).

    Parameters
    ----------
    drafts : verification steps > 0.
    draft_tokens : tokens proposed in all of them > 0.
    accepted : tokens accepted, <= draft_tokens.
    accepted_per_position : (k,) accepted at the first, second, ... place; may be left out.

    Raises
    ------
    ValueError : a count negative or not whole, accepted > draft_tokens, positions that do not sum
        to `accepted`, that rise, or that exceed the drafts.

    Source: vLLM `v1/spec_decode/metrics.py`.
    """
    steps = one("drafts", count("drafts", drafts, minimum=1))
    drafted = one("draft_tokens", count("draft_tokens", draft_tokens, minimum=1))
    taken = one("accepted", count("accepted", accepted))
    if taken > drafted:
        raise ValueError(f"accepted must be <= draft_tokens: got {taken:.12g} > {drafted:.12g}")
    places = count("accepted_per_position", accepted_per_position)
    if places.ndim != 1:
        raise ValueError(f"accepted_per_position must be a list: got shape {places.shape}")
    if places.size:
        bound = np.r_[steps, places[:-1]]
        require("accepted_per_position", places, places <= bound, "<= that of the place before it")
        if places.sum() != taken:
            raise ValueError(
                f"accepted_per_position must sum to accepted: got {places.sum():.12g} for "
                f"{taken:.12g}"
            )
    return Speculation(
        acceptance_rate=taken / drafted,
        accepted_per_draft=taken / steps,
        tokens_per_step=1 + taken / steps,
        tokens=int(taken + steps),
        per_position=places / steps,
    )
