"""GuideLLM."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, read_one, rows
from lib._validate import FloatArray
from lib.benchmarks.columns import Columns
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.record import RequestLog

_MS = ("time_to_first_token", "time_per_output_token", "inter_token_latency")
_STAMPS = {
    "targeted_start": "due",
    "first_token_iteration": "first",
    "first_output_token_iteration": "content",
    "last_token_iteration": "last",
    "request_end": "closed",
}
_GROUPS = ("successful", "errored", "incomplete")
# The words of `BenchmarkRun.stated` for GuideLLM's own, and its unit in seconds.
_TIMES = {
    "time_to_first_token_ms": ("ttft", 1e-3),
    "time_per_output_token_ms": ("tpot", 1e-3),
    "inter_token_latency_ms": ("itl", 1e-3),
    "request_latency": ("e2e", 1.0),
}
_STATISTICS = {"mean": "mean", "median": "median", "std_dev": "std", "min": "min", "max": "max"}
_RATES = {
    "requests_per_second": "request_throughput",
    "prompt_tokens_per_second": "input_throughput",
    "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_throughput",
    "request_concurrency": "concurrency",
}
_LIMITS = {"ttft_ms": "ttft", "tpot_ms": "itl", "e2el_ms": "e2e"}
_DAY = 86_400.0


def read_guidellm(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """GuideLLM's `benchmarks.json`: one BenchmarkRun a benchmark.

    Parameters
    ----------
    path : one JSON object.

    Returns
    -------
    BenchmarkRuns. Arrival is the send, in seconds from the first one. The last token is the last
    token, while `reported["request_latency"]` and `closed` end when the stream has closed, later.
    `reported["inter_token_latency"]` is (last - first) / (N_out - 1); GuideLLM's
    `time_per_output_token` is (last - send) / N_out, the first token included. Requests cut off
    when the run ended count as failed. `due` is the targeted start, where it is on the clock of
    the other stamps; `limits` puts GuideLLM's limit on "tpot" at itl, which it judges.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request; times that contradict the
        stamps, as one in ms for one in s.

    Source: GuideLLM 0.8.1, `schemas/base/request_stats.py`.
    """
    path = Path(path)
    folds = {f"benchmarks[].requests.{group}": _fold for group in _GROUPS}
    where, value = read_one(path, folds)
    runs = entry(where, value).entries("benchmarks")
    if not runs:
        raise ValueError(f"{where}: benchmarks must hold at least one run: got []")
    return tuple(_run(run, path.name) for run in runs)


def _fold(where: str, pieces: Iterator[list[Any]]) -> Columns:
    """The requests of one group; only a successful one must hold its figures."""
    columns = Columns("sent", "latency", "input", "output", *_MS, *_STAMPS.values())
    done = where.endswith("successful")
    for row in rows(where, pieces):
        timings = row.entry("info").entry("timings")
        stamps: dict[str, float] = {}
        if done or timings.get("request_start") is not None:  # else cut off in the client's queue
            stamps["sent"] = timings.number("request_start")
        for key, column in _STAMPS.items():
            if _has(timings, key) and (done or column in ("due", "closed")):
                # A plan can precede the origin of its clock.
                stamps[column] = _signed(timings, key) if column == "due" else timings.number(key)
        if done:
            for key in ("first_token_iteration", "last_token_iteration"):
                timings.get(key)  # null for an answer without a token, but there
            times = {key: row.number(f"{key}_ms") / 1000 for key in _MS if _has(row, f"{key}_ms")}
            stamps |= times | _answer(row, timings)
        elif _has(row, "prompt_tokens"):
            stamps["input"] = row.count("prompt_tokens")
        columns.add(**stamps)
    return columns


def _has(row: Entry, key: str) -> bool:
    return row.values.get(key) is not None


def _signed(timings: Entry, key: str) -> float:
    value = timings.get(key)
    return value if type(value) is float else timings.number(key)


def _answer(row: Entry, timings: Entry) -> dict[str, float]:
    """What every successful request holds; its latency must be that of its stamps."""
    latency = row.number("request_latency")
    if _has(timings, "request_end"):
        span = timings.number("request_end") - timings.number("request_start")
        if abs(span - latency) > 1e-3 + 1e-6 * latency:  # stamps of Unix time step by 0.2 us
            raise ValueError(
                f"{row.where}: request_latency must be request_end - request_start in seconds: "
                f"got {latency:.9g} for {span:.9g} s"
            )
    return {
        "latency": latency,
        "input": row.count("prompt_tokens"),
        "output": row.count("output_tokens"),
    }


def _run(run: Entry, source: str) -> BenchmarkRun:
    groups = run.entry("requests")
    parts: list[Columns] = []
    for group in _GROUPS:
        part = groups.get(group)
        if not isinstance(part, Columns):
            raise ValueError(f"{groups.where}, key {group!r}: expected a list: got {part!r:.80}")
        parts.append(part)

    def column(name: str) -> FloatArray:
        return np.concatenate([part[name] for part in parts])

    sent = column("sent")
    if not sent.size:
        raise ValueError(f"{groups.where}: no request")
    if np.isnan(sent).all():
        raise ValueError(f"{groups.where}: no request was sent")
    done = np.arange(sent.size) < len(parts[0])
    origin = np.nanmin(sent)
    with located(run.where):
        log = RequestLog(
            arrival=sent - origin,
            first_token=column("first") - origin,
            last_token=column("last") - origin,
            input_tokens=column("input"),
            output_tokens=column("output"),
            succeeded=done,
        )
    _check_ttft(run, log, column("time_to_first_token"))
    notes = []
    due = column("due")
    if (np.abs(due - sent) > _DAY).any():
        due = np.full(due.size, np.nan)
        notes.append("targeted_start is on another clock than the sends: left out")
    for words, size in zip(("failed", "cut off at the end"), map(len, parts[1:]), strict=True):
        if size:
            notes.append(f"{size} requests {words}")
    unseen = int(np.isnan(log.first_token[done]).sum())
    if unseen:
        notes.append(f"{unseen} answers have no first token")
    trimmed = [f"{key.partition('_')[0]} {run.number(key):.6g} s" for key in _trims(run)]
    if trimmed:
        notes.append(f"the stated figures leave out {' and '.join(trimmed)}")
    closed, content = column("closed"), column("content")
    setup = run.entry("config") if _has(run, "config") else Entry(run.where, {})
    strategy = setup.entry("strategy") if _has(setup, "strategy") else Entry(run.where, {})
    return BenchmarkRun(
        tool="guidellm",
        requests=log,
        due=None if np.isnan(due).all() else due - origin,
        closed=None if np.isnan(closed).all() else closed - origin,
        first_content=None if np.isnan(content).all() else content - origin,
        reported={"request_latency": column("latency"), **{key: column(key) for key in _MS}},
        duration=run.number("duration"),
        request_rate=strategy.number("rate") or None if _has(strategy, "rate") else None,
        max_concurrency=(
            strategy.count("max_concurrency") or None if _has(strategy, "max_concurrency") else None
        ),
        stated=_stated(run),
        limits=_limits(setup),
        notes=tuple(notes),
        summary=run.entry("metrics").values,
        source=source,
        format="guidellm",
    )


def _trims(run: Entry) -> list[str]:
    return [
        key
        for key in ("warmup_duration", "cooldown_duration")
        if _has(run, key) and run.number(key) > 0
    ]


def _check_ttft(run: Entry, log: RequestLog, told: FloatArray) -> None:
    """TTFT in ms must be that of the stamps in s; a slip of units is 1,000 times off."""
    ttft = log.first_token - log.arrival
    wrong = np.abs(told - ttft) > 1e-3 + 1e-6 * ttft
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{run.where}: time_to_first_token_ms must be first_token_iteration - request_start "
            f"in ms: got {told[i] * 1000:.9g} for {ttft[i]:.9g} s in request {i}"
        )


def _limits(setup: Entry) -> dict[str, float]:
    if not _has(setup, "slo"):
        return {}
    slo = setup.entry("slo")
    return {word: slo.number(key) / 1000 for key, word in _LIMITS.items() if _has(slo, key)}


def _stated(run: Entry) -> dict[str, float]:
    metrics = run.entry("metrics")
    stated = {"duration": run.number("duration")}
    if _has(metrics, "request_totals"):
        totals = metrics.entry("request_totals")
        stated["completed"] = totals.count("successful")
        stated["failed"] = totals.count("errored") + totals.count("incomplete")
    for key, (word, unit) in _TIMES.items():
        if (told := _distribution(metrics, key)) is None:
            continue
        for name, statistic in _STATISTICS.items():
            if _has(told, name):
                stated[f"{word}.{statistic}"] = told.number(name) * unit
        if _has(told, "percentiles"):
            percentiles = told.entry("percentiles")
            for name in filter(re.compile(r"p\d{2,3}").fullmatch, percentiles.values):
                if _has(percentiles, name):
                    # p05 is the 5th percentile, p001 the 0.1th, p999 the 99.9th.
                    q = f"{float(f'{name[1:3]}.{name[3:]}0'):g}"
                    stated[f"{word}.p{q}"] = percentiles.number(name) * unit
    for key, word in _RATES.items():
        told = _distribution(metrics, key)
        if told is not None and _has(told, "mean"):
            stated[word] = told.number("mean")
            if word == "concurrency":
                stated["peak_concurrency"] = told.number("max")
    for key, word in (("slo_attainment", "attainment"), ("request_goodput", "goodput")):
        if type(metrics.values.get(key)) in (int, float):
            stated[word] = metrics.number(key)
    return stated


def _distribution(metrics: Entry, key: str) -> Entry | None:
    """The figures of the successful requests; an empty distribution is full of zeros."""
    if not _has(metrics, key):
        return None
    by_status = metrics.entry(key)
    if not _has(by_status, "successful"):
        return None
    told = by_status.entry("successful")
    return None if told.values.get("count") == 0 else told


def is_guidellm(head: Head) -> bool:
    if head.shape != "object" or "benchmarks" not in head.first:
        return False
    metadata = head.first.get("metadata")
    told = isinstance(metadata, dict) and "guidellm_version" in metadata
    return told or "args" in head.first  # before GuideLLM wrote its version
