"""llmperf."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, read_one, rows
from lib._validate import nonnegative
from lib.benchmarks.columns import Columns
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.record import RequestLog

_TIMES = {"ttft_s": "ttft", "inter_token_latency_s": "itl", "end_to_end_latency_s": "e2e"}
_WORDS = {"stddev": "std", "quantiles_p50": "median"}
_STATISTIC = re.compile(r"mean|stddev|min|max|quantiles_p\d{1,2}")
_SUMMARY_ENDS = (
    (".individual.json", ".summary.json"),
    ("_individual_responses.json", "_summary.json"),
)


def read_llmperf(path: str | Path) -> BenchmarkRun:
    """llmperf's `individual_responses.json`.

    Parameters
    ----------
    path : one JSON array, one object a request. The summary file beside it, if there, gives the
        run's `stated` figures and its limit on requests in flight.

    Returns
    -------
    BenchmarkRun. The file holds durations and no stamp: each row has its own origin
    (`shared_clock=False`, arrival 0), and the last token is where llmperf's end-to-end latency
    ends, after the stream has closed. `reported` holds ttft, end_to_end_latency and
    inter_token_latency, which counts the first token's wait among the gaps.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request; a summary that counts other
        requests.

    Source: llmperf, `ray_clients/openai_chat_completions_client.py` (commit f1d6bed).
    """
    path = Path(path)
    where, columns = read_one(path, {"": _fold})
    if not isinstance(columns, Columns):
        raise ValueError(f"{where}: expected a list: got {columns!r:.80}")
    if not len(columns):
        raise ValueError(f"{where}: no request")
    done = columns["done"] == 1
    seen = np.where(columns["ttft"] > 0, columns["ttft"], np.nan)  # 0 is the default, no time
    with located(where):
        log = RequestLog(
            arrival=np.zeros(len(columns)),
            first_token=seen,
            last_token=columns["end_to_end_latency"],
            input_tokens=columns["input"],
            output_tokens=columns["output"],
            succeeded=done,
            shared_clock=False,
        )
    notes = [
        "the file has no stamps: nothing can be said about its requests' order or overlap",
        "the last token is taken for the end of the stream, which the file has instead",
    ]
    unseen = int((done & np.isnan(seen)).sum())
    if unseen:
        notes.append(f"{unseen} answers have no first token")
    told: dict[str, Any] = {}
    for end, summary_end in _SUMMARY_ENDS:
        beside = path.with_name(path.name.removesuffix(end) + summary_end)
        if path.name.endswith(end) and beside.is_file():
            told = _told(*read_one(beside))
            notes.append(f"the stated figures stand in {beside.name}")
            counted = told["stated"].get("completed", done.sum())
            if counted != done.sum():
                raise ValueError(
                    f"{beside.name}: results_num_completed_requests must agree with {path.name}: "
                    f"got {counted:.12g} for {done.sum()} rows without an error"
                )
    return BenchmarkRun(
        tool="llmperf",
        requests=log,
        closed=columns["end_to_end_latency"],
        reported={
            "ttft": seen,
            "end_to_end_latency": columns["end_to_end_latency"],
            "inter_token_latency": columns["inter_token_latency"],
        },
        notes=tuple(notes),
        source=path.name,
        format="llmperf",
        **told,
    )


def _fold(where: str, pieces: Iterator[list[Any]]) -> Columns:
    times = ("ttft", "end_to_end_latency", "inter_token_latency")
    columns = Columns("done", *times, "input", "output")
    for row in rows(where, pieces):
        sent = {"input": float(row.count("number_input_tokens"))}
        if row.get("error_code") is not None:
            columns.add(done=0, **sent)
            continue
        columns.add(
            done=1,
            output=row.count("number_output_tokens"),
            **sent,
            **{key: row.number(f"{key}_s") for key in times},
        )
    return columns


def read_llmperf_summary(path: str | Path) -> BenchmarkRun:
    """llmperf's `summary.json`: figures of a run, without its requests.

    Parameters
    ----------
    path : one JSON object with flat keys.

    Returns
    -------
    BenchmarkRun with `requests` None. `max_concurrency` is the number of clients: each sends its
    next request when the last one ends.

    Raises
    ------
    ValueError : a malformed file, with file and key; no figure.

    Source: llmperf, `token_benchmark_ray.py` (commit f1d6bed).
    """
    path = Path(path)
    return BenchmarkRun(
        tool="llmperf",
        requests=None,
        source=path.name,
        format="llmperf-summary",
        **_told(*read_one(path)),
    )


def is_llmperf(head: Head) -> bool:
    return head.shape == "array" and {"error_code", "end_to_end_latency_s"} <= head.first.keys()


def is_llmperf_summary(head: Head) -> bool:
    return head.shape == "object" and "results_num_completed_requests" in head.first


def _told(where: str, value: Any) -> dict[str, Any]:
    """What a summary tells of a run, as fields of a BenchmarkRun."""
    run = entry(where, value)
    stated: dict[str, float] = {}
    for key, word in _TIMES.items():
        for name in run.values:
            statistic = name.removeprefix(f"results_{key}_")
            if statistic != name and _STATISTIC.fullmatch(statistic):
                short = _WORDS.get(statistic, statistic.removeprefix("quantiles_"))
                stated |= _figure(run, name, f"{word}.{short}")
    stated |= _figure(run, "results_num_completed_requests", "completed")
    stated |= _figure(run, "results_number_errors", "failed")
    stated |= _figure(run, "results_mean_output_throughput_token_per_s", "output_throughput")
    stated |= {
        key: value / 60
        for key, value in _figure(
            run, "results_num_completed_requests_per_min", "request_throughput"
        ).items()
    }
    if not stated:
        raise ValueError(f"{where}: no figure that llmperf writes")
    clients = run.count("num_concurrent_requests") if "num_concurrent_requests" in run else None
    return {"stated": stated, "max_concurrency": clients or None, "summary": run.values}


def _figure(run: Entry, key: str, word: str) -> dict[str, float]:
    """A number, which llmperf writes as a text where it came from NumPy; null is absent."""
    value = run.values.get(key)
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"{run.where}: {key} must be a number: got {value!r:.80}") from None
        return {word: float(nonnegative(f"{run.where}: {key}", value))}
    return {word: run.number(key)}
