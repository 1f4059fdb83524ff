"""GuideLLM."""

from pathlib import Path

import numpy as np

from lib._files import Entry, column, entry, located, read_one
from lib._validate import FloatArray
from lib.benchmarks.run import BenchmarkRun
from lib.record import RequestLog

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
