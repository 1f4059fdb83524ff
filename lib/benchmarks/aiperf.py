"""AIPerf."""

import csv
import re
from array import array
from collections.abc import Mapping
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import Entry, entry, located, numbers, read_json, read_one, read_text
from lib._validate import choice, nonnegative
from lib.benchmarks.columns import Columns
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.record import RequestLog

# The words of `BenchmarkRun.stated` for AIPerf's own, and the unit that AIPerf writes.
_TIMES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "itl",
    "inter_chunk_latency": "chunk_itl",
    "request_latency": "e2e",
    "adj_time_to_first_token": "adj_ttft",
    "adj_inter_token_latency": "adj_itl",
    "adj_request_latency": "adj_e2e",
}
_SCALARS = {
    "request_count": ("completed", "requests"),
    "error_request_count": ("failed", "requests"),
    "benchmark_duration": ("duration", "sec"),
    "total_isl": ("input_tokens", "tokens"),
    "total_osl": ("output_tokens", "tokens"),
    "request_throughput": ("request_throughput", "requests/sec"),
    "input_token_throughput": ("input_throughput", "tokens/sec"),
    "output_token_throughput": ("output_throughput", "tokens/sec"),
    "total_token_throughput": ("total_throughput", "tokens/sec"),
    "goodput": ("goodput", "requests/sec"),
    "request_goodput": ("goodput", "requests/sec"),
    "good_request_count": ("good", "requests"),
    "good_request_fraction": ("attainment", "ratio"),
}
_STATISTIC = re.compile(r"avg|std|min|max|p\d{1,2}(\.\d+)?")
_WORDS = {"avg": "mean", "p50": "median"}
# The CSV has titles where the JSON has tags.
_TITLES = {
    "Time to First Token": "time_to_first_token",
    "Inter Token Latency": "inter_token_latency",
    "Inter Chunk Latency": "inter_chunk_latency",
    "Request Latency": "request_latency",
    "Request Count": "request_count",
    "Error Request Count": "error_request_count",
    "Benchmark Duration": "benchmark_duration",
    "Total Input Sequence Length": "total_isl",
    "Total Output Sequence Length": "total_osl",
    "Request Throughput": "request_throughput",
    "Input Token Throughput": "input_token_throughput",
    "Output Token Throughput": "output_token_throughput",
    "Total Token Throughput": "total_token_throughput",
    "Goodput": "goodput",
    "Good Request Count": "good_request_count",
    "GoodRequestFraction": "good_request_fraction",
}


def read_aiperf(path: str | Path) -> BenchmarkRun:
    """AIPerf's `profile_export.jsonl`; warm-up requests are left out.

    Parameters
    ----------
    path : JSON lines, one record a request. `profile_export_aiperf.json` beside it, if there,
        gives the run's `stated` figures, limits and duration.

    Returns
    -------
    BenchmarkRun. Arrival is the send, in seconds from the first one; the last token is the last
    response with content. `due` is when the credit for the request was issued. `reported` holds
    time_to_first_token, request_latency and inter_token_latency, which is (request_latency -
    time_to_first_token) / (N_out - 1). A cancelled request counts as failed.

    Raises
    ------
    ValueError : a malformed file, with file, line and key; no profiled request; an aggregate file
        that counts other requests.

    Source: AIPerf 0.13.0, `metrics/types`.
    """
    path = Path(path)
    columns = Columns(
        "done", "ttft", "latency", "itl", "content", "input", "output", "usage", "gaps"
    )
    sent, issued = array("q"), array("q")  # ns since 1970, which a float64 would round
    warm_up = 0
    for where, value in read_json(path):
        row = entry(where, value)
        metadata = row.entry("metadata")
        phase = metadata.text("benchmark_phase")
        with located(metadata.where):
            choice("benchmark_phase", phase, ("warmup", "profiling"))
        if phase == "warmup":
            warm_up += 1
            continue
        sent.append(_stamp(metadata, "request_start_ns"))
        credited = metadata.values.get("credit_issued_ns") is not None
        issued.append(_stamp(metadata, "credit_issued_ns") if credited else -1)
        metrics = row.entry("metrics")
        if row.values.get("error") is None and not metadata.values.get("was_cancelled"):
            _add_done(columns, metrics)
        else:
            columns.add(done=0, gaps=0, **_optional(metrics, "error_isl", "tokens", "input"))
    if not len(columns):
        raise ValueError(f"{path.name}: no request of the profiling phase")

    starts = np.array(sent, np.int64)
    start = (starts - starts.min()) / 1e9
    credits = np.array(issued, np.int64)
    due = np.where(credits < 0, np.nan, credits - starts.min()) / 1e9
    done = columns["done"] == 1
    ttft, latency, itl = (columns[key] / 1000 for key in ("ttft", "latency", "itl"))
    content = columns.given("content")
    with located(path.name):
        log = RequestLog(
            arrival=start,
            first_token=start + ttft,
            last_token=start + latency,
            input_tokens=columns["input"],
            output_tokens=columns["output"],
            succeeded=done,
        )
    beside = path.with_name(f"{path.stem}_aiperf.json")
    told = _told(*read_one(beside)) if beside.is_file() else {}
    counted = told.get("stated", {}).get("completed", done.sum())
    if counted != done.sum():
        raise ValueError(
            f"{beside.name}: request_count must agree with {path.name}: got {counted:.12g} for "
            f"{done.sum()} answered requests"
        )
    return BenchmarkRun(
        tool="aiperf",
        requests=log,
        itl=columns.flat("gaps") / 1000,
        itl_counts=columns.counts("gaps"),
        due=None if np.isnan(due).all() else due,
        first_content=None if content is None else start + content / 1000,
        reported={
            "time_to_first_token": ttft,
            "request_latency": latency,
            "inter_token_latency": itl,
        },
        notes=_notes(columns, done, warm_up, beside if told else None),
        source=path.name,
        format="aiperf",
        **told,
    )


def _stamp(metadata: Entry, key: str) -> int:
    stamp = metadata.count(key)
    if stamp >= 2**63:
        raise ValueError(f"{metadata.where}: {key} must be a stamp in ns since 1970: got {stamp}")
    return stamp


def _add_done(columns: Columns, metrics: Entry) -> None:
    """The row of a request that was answered. Without streaming it has no first token."""
    gaps: list[float] = []
    if "inter_chunk_latency" in metrics:
        chunks = _in_unit(metrics, "inter_chunk_latency", "ms")
        gaps = numbers(f"{chunks.where}: value", chunks.items("value")).tolist()
    columns.extend("gaps", gaps)
    columns.add(
        done=1,
        latency=_in_unit(metrics, "request_latency", "ms").number("value"),
        input=_in_unit(metrics, "input_sequence_length", "tokens").number("value"),
        output=_in_unit(metrics, "output_sequence_length", "tokens").number("value"),
        gaps=len(gaps),
        **_optional(metrics, "time_to_first_token", "ms", "ttft"),
        **_optional(metrics, "time_to_first_output_token", "ms", "content"),
        **_optional(metrics, "inter_token_latency", "ms", "itl"),
        **_optional(metrics, "usage_completion_tokens", "tokens", "usage"),
    )


def _optional(metrics: Entry, key: str, unit: str, column: str) -> dict[str, float]:
    if key not in metrics:
        return {}
    return {column: _in_unit(metrics, key, unit).number("value")}


def _in_unit(metrics: Entry, key: str, unit: str) -> Entry:
    metric = metrics.entry(key)
    if metric.values.get("unit") != unit:
        raise ValueError(f"{metric.where}: unit must be {unit!r}: got {metric.text('unit')!r}")
    return metric


def _notes(
    columns: Columns, done: NDArray[np.bool_], warm_up: int, beside: Path | None
) -> tuple[str, ...]:
    notes = []
    if warm_up:
        notes.append(f"{warm_up} warm-up requests are left out")
    unseen = int(np.isnan(columns["ttft"][done]).sum())
    if unseen:
        notes.append(f"{unseen} answers have no time to first token: they were not streamed")
    usage, counted = columns["usage"], columns["output"]
    differ = int((done & ~np.isnan(usage) & (usage != counted)).sum())
    if differ:
        notes.append(
            f"N is output_sequence_length; the server counts otherwise in {differ} answers"
        )
    if beside is not None:
        notes.append(f"the stated figures stand in {beside.name}")
    return tuple(notes)


# The summaries ------------------------------------------------------------------------------------


def read_aiperf_summary(path: str | Path) -> BenchmarkRun:
    """AIPerf's `profile_export_aiperf.json`: figures of a run, without its requests.

    Parameters
    ----------
    path : one JSON object.

    Returns
    -------
    BenchmarkRun with `requests` None. A figure adjusted for failures that is null counts failed
    requests as infinite, and is infinite; any other null is absent.

    Raises
    ------
    ValueError : a malformed file, with file and key; a unit that AIPerf does not write; no figure.

    Source: AIPerf 0.13.0, `common/models/export_models.py`.
    """
    path = Path(path)
    told = _told(*read_one(path))
    return BenchmarkRun(
        tool="aiperf", requests=None, source=path.name, format="aiperf-summary", **told
    )


def read_aiperf_csv(path: str | Path) -> BenchmarkRun:
    """AIPerf's `profile_export_aiperf.csv`: figures of a run with two decimals.

    Parameters
    ----------
    path : a table of distributions, an empty line, a table of single figures; what follows
        (telemetry) is passed over.

    Returns
    -------
    BenchmarkRun with `requests` None; `summary` maps each title to its fields as they stand there.

    Raises
    ------
    ValueError : a malformed file, with file and line; a unit that AIPerf does not write; no figure.

    Source: AIPerf 0.13.0, `exporters/metrics_csv_exporter.py`.
    """
    path = Path(path)
    stated: dict[str, float] = {}
    titles: dict[str, Mapping[str, str]] = {}
    header: list[str] = []
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        where = f"{path.name}, line {line}"
        fields = next(csv.reader([text]), [])
        if not any(fields):
            header = []
        elif not header:
            if fields[0] != "Metric":
                break
            header = fields
        else:
            if len(fields) != len(header):
                raise ValueError(f"{where}: expected {len(header)} fields: got {text!r:.80}")
            title = fields[0]
            if title in titles:
                raise ValueError(f"{where}: metric {title!r} appears twice")
            titles[title] = dict(zip(header[1:], fields[1:], strict=True))
            with located(where):
                stated |= _csv_figures(title, titles[title])
    if not stated:
        raise ValueError(f"{path.name}: no figure that AIPerf writes: expected a row like 'Metric'")
    return BenchmarkRun(
        tool="aiperf",
        requests=None,
        duration=stated.get("duration"),
        stated=stated,
        summary=titles,
        notes=("the figures have two decimals",),
        source=path.name,
        format="aiperf-csv",
    )


def is_aiperf(head: Head) -> bool:
    return head.shape == "object" and {"metadata", "metrics"} <= head.first.keys()


def is_aiperf_summary(head: Head) -> bool:
    told = "aiperf_version" in head.first or _has_duration(head.first)
    return head.shape == "object" and told


def is_aiperf_csv(head: Head) -> bool:
    return head.shape == "table" and head.header[:3] == ("Metric", "avg", "min")


def _has_duration(first: Mapping[str, Any]) -> bool:
    """An aggregate file from before AIPerf wrote its version."""
    duration = first.get("benchmark_duration")
    return isinstance(duration, dict) and {"unit", "avg"} <= duration.keys()


def _csv_figures(title: str, fields: Mapping[str, str]) -> dict[str, float]:
    name, _, unit = title.partition(" (")
    tag = _TITLES.get(name)
    if tag is None:
        return {}
    if tag in _TIMES:
        wanted, keys = "ms", {key: f"{_TIMES[tag]}.{_WORDS.get(key, key)}" for key in fields}
    else:
        key, wanted = _SCALARS[tag]
        keys = {"Value": key}
    if unit.removesuffix(")") not in (wanted, ""):
        raise ValueError(f"the unit of {name!r} must be {wanted!r}: got {title!r}")
    figures = {}
    for column, key in keys.items():
        if column == "sum" or not fields[column]:
            continue
        value = float(nonnegative(f"{name} {column}", _decimal(fields[column])))
        figures[key] = value / 1000 if tag in _TIMES else value
    return figures


def _decimal(text: str) -> float:
    if not re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(f"expected a number: got {text!r}")
    return float(text)


def _told(where: str, value: Any) -> dict[str, Any]:
    """What an aggregate file tells of a run, as fields of a BenchmarkRun."""
    run = entry(where, value)
    stated = figures(run)
    if not stated:
        raise ValueError(f"{where}: no figure that AIPerf writes")
    setup = _entry(run, "input_config")
    phases = setup.values.get("phases") if setup else None
    load = next(
        (phase for phase in phases or [] if isinstance(phase, dict) and _profiling(phase)), {}
    )
    return {
        "stated": stated,
        "duration": _wall_clock(run) or stated.get("duration"),
        "request_rate": _setting(load, "rate"),
        "max_concurrency": _whole(_setting(load, "concurrency")),
        "limits": limits(setup, "slos") if setup else {},
        "summary": run.values,
    }


def _wall_clock(run: Entry) -> float | None:
    """From `start_time` to `end_time` (s): AIPerf divides by it for a throughput.

    `benchmark_duration`, from the first send to the last token, is shorter. The stamps are local
    time without a zone: a clock set back in between leaves nothing to subtract.
    """
    if run.values.get("start_time") is None or run.values.get("end_time") is None:
        return None
    with located(f"{run.where}: start_time, end_time"):
        start, end = (datetime.fromisoformat(run.text(key)) for key in ("start_time", "end_time"))
        seconds = (end - start).total_seconds()
    return seconds if seconds > 0 else None


def _profiling(phase: Mapping[str, Any]) -> bool:
    return "profiling" in (phase.get("kind"), phase.get("name"))


def _setting(load: Mapping[str, Any], key: str) -> float | None:
    value = load.get(key)
    return float(value) if isinstance(value, int | float) and 0 < value < inf else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _entry(run: Entry, key: str) -> Entry | None:
    return run.entry(key) if run.values.get(key) is not None else None


def figures(run: Entry) -> dict[str, float]:
    """The `stated` figures of an aggregate file, AIPerf's or its ancestor GenAI-Perf's."""
    stated = {}
    for tag, word in _TIMES.items():
        if tag not in run:
            continue
        metric = _in_unit(run, tag, "ms")
        for key in filter(_STATISTIC.fullmatch, metric.values):
            if metric.get(key) is not None:
                stated[f"{word}.{_WORDS.get(key, key)}"] = metric.number(key) / 1000
            elif tag.startswith("adj_") and key != "std":  # infinity less infinity is no number
                stated[f"{word}.{_WORDS.get(key, key)}"] = inf
    for tag, (word, unit) in _SCALARS.items():
        if tag in run:
            metric = _in_unit(run, tag, unit)
            if metric.get("avg") not in (None, -1):  # -1 is GenAI-Perf's word for an unknown SLO
                stated[word] = metric.number("avg")
    return stated


def limits(setup: Entry, key: str) -> dict[str, float]:
    """The SLO under `key`, from ms."""
    slo = _entry(setup, key)
    if slo is None:
        return {}
    return {_TIMES[tag]: slo.number(tag) / 1000 for tag in slo.values if tag in _TIMES}
