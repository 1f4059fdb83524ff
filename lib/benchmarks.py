"""Result files of load tools as the common record, with the tool's own figures beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import (
    DATA,
    Entry,
    column,
    counts,
    entries,
    entry,
    located,
    numbers,
    read_json,
    read_one,
)
from lib._validate import FloatArray, choice, count, require
from lib.record import RequestLog

# What `--save-detailed` adds; `latencies` and `start_times` came later and may be absent.
_VLLM_DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "errors")

_VLLM_RATES = (1, 2, 3, 4, 5, 6, 8)
SHIPPED = {
    **{f"vllm/{rate}rps": f"vllm_bench/vllm-0.32-poisson-{rate}rps.json" for rate in _VLLM_RATES},
    "aiperf/rate3": "aiperf/profile_export.jsonl",
    "guidellm/2rps": "guidellm/guidellm-0.8-poisson-2rps.json",
    "llmperf/anyscale_7b": "llmperf/anyscale_7b.individual.json",
    "llmperf/groq_70b": "llmperf/groq_70b.individual.json",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchmarkRun:
    """One run of a load tool; a figure that the file lacks is None.

    tool : "vllm", "aiperf", "guidellm" or "llmperf".
    requests : the record, or None where the file has summaries only. A failed request keeps its
        arrival and input tokens; its tokens and later stamps are missing (NaN).
    itl, itl_counts : gaps between the chunks of the answers (s), all requests' in one flat array
        in request order, and how many are whose. A chunk may carry several tokens.
    reported : the tool's own figure for each request, under the tool's own name, in seconds; NaN
        where it gives none.
    duration : the client's wall clock (s).
    request_rate : what the client was told to offer (1/s); infinite for "all at once".
    max_concurrency : the client's own limit on requests in flight.
    summary : the file's own figures, as they stand there.
    """

    tool: str
    requests: RequestLog | None
    itl: FloatArray | None = None
    itl_counts: NDArray[np.int64] | None = None
    reported: Mapping[str, FloatArray] = field(default_factory=dict)
    duration: float | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


def load(name: str) -> BenchmarkRun:
    """A run that comes with the course, by its name in `SHIPPED`.

    Raises
    ------
    ValueError : no such name.
    """
    path = DATA / SHIPPED[choice("name", name, tuple(SHIPPED))]
    match name.split("/")[0]:
        case "vllm":
            return read_vllm(path)[0]
        case "aiperf":
            return read_aiperf(path)
        case "guidellm":
            return read_guidellm(path)[0]
        case _:
            return read_llmperf(path)


# vLLM ---------------------------------------------------------------------------------------------


def read_vllm(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """Result file of `vllm bench serve`: one run, or several appended.

    Parameters
    ----------
    path : JSON file written with `--save-result` or `--append-result`.

    Returns
    -------
    One BenchmarkRun a run. Stamps are on the client's clock: arrival is the send, the first token
    is start + ttft, the last token is start + latency. Without `latencies` (older files) the
    latency is ttft + sum(itl); without `start_times` each row has its own origin
    (`shared_clock=False`, arrival 0). Without `--save-detailed`, `requests` and `itl` are None.
    Of a one-token answer the last token is the first, even where the stream closed later. A
    success whose ttft is exactly 0 never saw a token chunk: its first token is missing, and so
    is its last unless `latencies` holds it.

    Raises
    ------
    ValueError : not JSON, a key missing, repeated or of the wrong kind, arrays of unequal length, a
        time negative or not finite, totals that contradict the rows; with file, line and key.

    Source: vLLM `benchmarks/serve.py` and `benchmarks/lib/endpoint_request_func.py`.
    """
    return tuple(_vllm_run(entry(where, value)) for where, value in read_json(path))


def _vllm_run(run: Entry) -> BenchmarkRun:
    summary = {key: value for key, value in run.values.items() if not isinstance(value, list)}
    for key, value in summary.items():
        # Both settings may be unlimited; an unlimited burstiness means equal gaps.
        unlimited = key in ("request_rate", "burstiness")
        if isinstance(value, float) and np.isinf(value) and not unlimited:
            raise ValueError(f"{run.where}: {key} must be finite: got {value}")
    duration = run.number("duration")
    if duration == 0:
        raise ValueError(f"{run.where}: duration must be > 0: got 0")
    for key in ("completed", "total_input_tokens", "total_output_tokens"):
        run.count(key)
    limit = run.values.get("max_concurrency")
    rows: dict[str, Any] = {"requests": None}
    if any(key in run for key in _VLLM_DETAIL):
        rows = _vllm_rows(run, duration)
    return BenchmarkRun(
        tool="vllm",
        duration=duration,
        request_rate=_rate(run),
        max_concurrency=None if limit is None else run.count("max_concurrency") or None,
        summary=summary,
        **rows,
    )


def _rate(run: Entry) -> float:
    """`request_rate`: a number, or unlimited, as the text "inf" or as a bare Infinity."""
    value = run.get("request_rate")
    if value in ("inf", float("inf")):
        return float("inf")
    rate = run.number("request_rate")
    if rate == 0:
        raise ValueError(f"{run.where}: request_rate must be > 0: got 0")
    return rate


def _vllm_rows(run: Entry, duration: float) -> dict[str, Any]:
    """The detailed arrays of one run, as the fields of a BenchmarkRun."""
    size = len(run.items("ttfts"))
    if size == 0:
        raise ValueError(f"{run.where}: ttfts must hold at least one request: got []")

    def items(key: str) -> list[Any]:
        values = run.items(key)
        if len(values) != size:
            raise ValueError(
                f"{run.where}: {key} must have one value a request: got {len(values)} for {size} "
                "ttfts"
            )
        return values

    def times(key: str) -> FloatArray:
        return numbers(f"{run.where}: {key}", items(key))

    def tokens(key: str) -> FloatArray:
        return count(f"{run.where}: {key}", times(key))

    ttft, inputs, outputs = times("ttfts"), tokens("input_lens"), tokens("output_lens")
    gaps, gap_counts = _ragged(f"{run.where}: itls", items("itls"))
    for i, error in enumerate(items("errors")):
        if not isinstance(error, str):
            raise ValueError(f"{run.where}: errors[{i}] must be a text: got {error!r:.80}")

    # A failed row has an error text, or ended with no text, no chunk and no token at all. An
    # answer whose chunks hold no text counts 0 tokens where the client counts them itself.
    done = np.array([error == "" for error in run.get("errors")], bool)
    done &= (outputs > 0) | (ttft > 0)
    _agree(run, "completed", int(done.sum()), "rows with tokens or a first chunk, and no error")
    if "failed" in run:
        _agree(run, "failed", int((~done).sum()), "rows without tokens or with an error")
    _agree(run, "total_input_tokens", int(inputs[done].sum()), "input_lens in those rows")
    _agree(run, "total_output_tokens", int(outputs[done].sum()), "output_lens in those rows")

    seen = done & (ttft > 0)  # a success with the default 0.0 never saw a token chunk
    owner = np.repeat(np.arange(size), gap_counts)
    last_chunk = ttft + np.bincount(owner, weights=gaps, minlength=size)
    if "latencies" in run:
        latency = times("latencies")
        ended = done & (latency > 0)
    else:
        latency, ended = last_chunk, seen
    rounding = 1e-7 * (gap_counts + 2)  # a file may round each of its times to 0.1 us
    early = done & (latency + rounding < last_chunk)
    require(f"{run.where}: latency", latency, ~early, ">= the request's ttft + sum(itl)")
    last = np.where((outputs == 1) & seen, ttft, latency)  # one token is both first and last
    start = np.zeros(size)
    if "start_times" in run:
        start = times("start_times")
        start = np.where(~done & (start == 0), np.nan, start)  # failed before it was sent
    with located(run.where):
        log = RequestLog(
            arrival=start,
            first_token=np.where(seen, start + ttft, np.nan),
            last_token=np.where(ended, start + last, np.nan),
            input_tokens=inputs,
            output_tokens=np.where(done, outputs, np.nan),
            succeeded=done,
            shared_clock="start_times" in run,
        )
    if log.shared_clock and ended.any():
        span = log.last_token[ended].max() - start[done].min()
        if span > duration + 1e-6:  # start times are rounded to 1 ns, latencies to 0.1 us
            raise ValueError(
                f"{run.where}: duration must cover its requests: got {duration:.9g} s for rows "
                f"that span {span:.9g} s"
            )
    return {
        "requests": log,
        "itl": gaps[np.repeat(done, gap_counts)],
        "itl_counts": np.where(done, gap_counts, 0),
        "reported": {
            "ttft": np.where(seen, ttft, np.nan),
            "latency": np.where(ended, latency, np.nan),
        },
    }


def _ragged(name: str, lists: list[Any]) -> tuple[FloatArray, NDArray[np.int64]]:
    """A list of lists of times as one flat array and the length of each list."""
    for i, value in enumerate(lists):
        if not isinstance(value, list):
            raise ValueError(f"{name}[{i}] must be a list: got {value!r:.80}")
    try:
        flat = numbers(name, list(chain.from_iterable(lists)))
    except ValueError:  # once more, list by list: the error must say which
        for i, value in enumerate(lists):
            numbers(f"{name}[{i}]", value)
        raise
    return flat, np.array([len(value) for value in lists], np.int64)


def _agree(run: Entry, key: str, counted: int, what: str) -> None:
    if run.count(key) != counted:
        raise ValueError(
            f"{run.where}: {key} must agree with the rows: got {run.get(key)} for {counted} {what}"
        )


# Other tools --------------------------------------------------------------------------------------


def read_aiperf(path: str | Path) -> BenchmarkRun:
    """AIPerf's `profile_export.jsonl`; warm-up requests are left out.

    Parameters
    ----------
    path : JSON lines, one record a request.

    Returns
    -------
    BenchmarkRun. Arrival is the send, in seconds from the first one; the last token is the last
    response with content. `reported` holds time_to_first_token, request_latency and
    inter_token_latency, which is (request_latency - time_to_first_token) / (N_out - 1).

    Raises
    ------
    ValueError : a malformed file, with file, line and key; no profiled request.

    Source: AIPerf 0.13.0, `metrics/types`.
    """
    rows = [entry(where, value) for where, value in read_json(path)]
    rows = [row for row in rows if row.entry("metadata").text("benchmark_phase") == "profiling"]
    if not rows:
        raise ValueError(f"{Path(path).name}: no request of the profiling phase")
    done = np.array(
        [
            row.values.get("error") is None
            and not row.entry("metadata").values.get("was_cancelled")
            for row in rows
        ],
        bool,
    )
    begun = [row.entry("metadata").count("request_start_ns") for row in rows]
    metrics = [row.entry("metrics") for row in rows]

    def metric(key: str, unit: str, needed: bool = True) -> FloatArray:
        """One value a request: seconds for ms; NaN for a failed request."""
        values = np.full(len(rows), np.nan)
        for i in np.flatnonzero(done):
            if needed or key in metrics[i]:
                values[i] = _aiperf_value(metrics[i], key, unit).number("value")
        return values / 1000 if unit == "ms" else values

    first = min(begun)
    start = np.array([(stamp - first) / 1e9 for stamp in begun])
    ttft, latency = metric("time_to_first_token", "ms"), metric("request_latency", "ms")
    chunks = [
        _aiperf_value(metrics[i], "inter_chunk_latency", "ms").items("value")
        if done[i] and "inter_chunk_latency" in metrics[i]
        else []
        for i in range(len(rows))
    ]
    gaps, gap_counts = _ragged(f"{Path(path).name}: inter_chunk_latency", chunks)
    with located(Path(path).name):
        log = RequestLog(
            arrival=start,
            first_token=start + ttft,
            last_token=start + latency,
            input_tokens=metric("input_sequence_length", "tokens"),
            output_tokens=metric("output_sequence_length", "tokens"),
            succeeded=done,
        )
    return BenchmarkRun(
        tool="aiperf",
        requests=log,
        itl=gaps / 1000,
        itl_counts=gap_counts,
        reported={
            "time_to_first_token": ttft,
            "request_latency": latency,
            "inter_token_latency": metric("inter_token_latency", "ms", needed=False),
        },
    )


def _aiperf_value(metrics: Entry, key: str, unit: str) -> Entry:
    metric = metrics.entry(key)
    if metric.text("unit") != unit:
        raise ValueError(f"{metric.where}: unit must be {unit!r}: got {metric.get('unit')!r}")
    return metric


_GUIDELLM_MS = ("time_to_first_token", "time_per_output_token", "inter_token_latency")


def read_guidellm(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """GuideLLM's `benchmarks.json`: one BenchmarkRun a benchmark.

    Parameters
    ----------
    path : one JSON object.

    Returns
    -------
    BenchmarkRuns. Arrival is the send, in seconds from the first one. The last token is the last
    token, while `reported["request_latency"]` ends when the stream has closed, later.
    `reported["inter_token_latency"]` is (last - first) / (N_out - 1); GuideLLM's
    `time_per_output_token` is (last - send) / N_out, the first token included. Requests cut off
    when the run ended count as failed.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request.

    Source: GuideLLM 0.8.1, `schemas/base/request_stats.py`.
    """
    where, value = read_one(path)
    runs = entry(where, value).entries("benchmarks")
    if not runs:
        raise ValueError(f"{where}: benchmarks must hold at least one run: got []")
    return tuple(_guidellm_run(run) for run in runs)


def _guidellm_run(run: Entry) -> BenchmarkRun:
    groups = run.entry("requests")
    done_rows = groups.entries("successful")
    rows = done_rows + groups.entries("errored") + groups.entries("incomplete")
    if not rows:
        raise ValueError(f"{groups.where}: no request")
    done = np.arange(len(rows)) < len(done_rows)
    timings = [row.entry("info").entry("timings") for row in rows]

    def of_done(source: list[Entry], key: str) -> FloatArray:
        values = column(source[: len(done_rows)], key)
        return np.concatenate([values, np.full(len(rows) - len(done_rows), np.nan)])

    def optional(key: str) -> FloatArray:
        """A figure in ms that a one-token answer may lack, in seconds."""
        values = np.full(len(rows), np.nan)
        for i, row in enumerate(done_rows):
            if row.get(key) is not None:
                values[i] = row.number(key) / 1000
        return values

    sent = np.full(len(rows), np.nan)  # a request cut off in the client's queue was never sent
    for i, timing in enumerate(timings):
        if done[i] or timing.get("request_start") is not None:
            sent[i] = timing.number("request_start")
    if np.isnan(sent).all():
        raise ValueError(f"{groups.where}: no request was sent")
    origin = np.nanmin(sent)
    with located(run.where):
        log = RequestLog(
            arrival=sent - origin,
            first_token=of_done(timings, "first_token_iteration") - origin,
            last_token=of_done(timings, "last_token_iteration") - origin,
            input_tokens=of_done(rows, "prompt_tokens"),
            output_tokens=of_done(rows, "output_tokens"),
            succeeded=done,
        )
    return BenchmarkRun(
        tool="guidellm",
        requests=log,
        reported={
            "request_latency": of_done(rows, "request_latency"),
            **{key: optional(f"{key}_ms") for key in _GUIDELLM_MS},
        },
        duration=run.number("duration"),
        summary=run.entry("metrics").values,
    )


def read_llmperf(path: str | Path) -> BenchmarkRun:
    """llmperf's `individual_responses.json`.

    Parameters
    ----------
    path : one JSON array, one object a request.

    Returns
    -------
    BenchmarkRun. The file holds durations and no stamp: each row has its own origin
    (`shared_clock=False`, arrival 0), and the last token is where llmperf's end-to-end latency
    ends, after the stream has closed. `reported` holds ttft, end_to_end_latency and
    inter_token_latency, which counts the first token's wait among the gaps.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request.

    Source: llmperf, `ray_clients/openai_chat_completions_client.py` (commit f1d6bed).
    """
    where, value = read_one(path)
    rows = entries(where, value)
    if not rows:
        raise ValueError(f"{where}: no request")
    done = np.array([row.get("error_code") is None for row in rows], bool)

    def of_done(read: Any, key: str) -> FloatArray:
        return np.where(done, read(rows, key), np.nan)

    reported = {
        key: of_done(column, f"{key}_s")
        for key in ("ttft", "end_to_end_latency", "inter_token_latency")
    }
    with located(where):
        log = RequestLog(
            arrival=np.zeros(len(rows)),
            first_token=reported["ttft"],
            last_token=reported["end_to_end_latency"],
            input_tokens=counts(rows, "number_input_tokens"),
            output_tokens=of_done(counts, "number_output_tokens"),
            succeeded=done,
            shared_clock=False,
        )
    return BenchmarkRun(tool="llmperf", requests=log, reported=reported)
