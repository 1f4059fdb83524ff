"""AIPerf."""

from pathlib import Path

import numpy as np

from lib._files import Entry, entry, located, read_json
from lib._validate import FloatArray
from lib.benchmarks.run import BenchmarkRun, ragged
from lib.record import RequestLog


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
    gaps, gap_counts = ragged(f"{Path(path).name}: inter_chunk_latency", chunks)
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
