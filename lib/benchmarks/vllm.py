"""vLLM `bench serve`."""

from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, read_json
from lib._validate import require
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.benchmarks.serving import (
    FOLDS,
    Rows,
    agree,
    cover,
    duration,
    max_concurrency,
    request_rate,
    stated,
    summary,
)
from lib.benchmarks.sglang import is_sglang
from lib.record import RequestLog

# What `--save-detailed` adds; `latencies` and `start_times` came later and may be absent.
_DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_METRICS = {
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "itl",
    "e2el": "e2e",
    "client_queue_time": "client_queue_time",
    "e2el_including_client_queue": "e2e_including_client_queue",
}
_SCALARS = {
    "completed": "completed",
    "failed": "failed",
    "duration": "duration",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "request_throughput": "request_throughput",
    "request_goodput": "goodput",
    "output_throughput": "output_throughput",
    "total_token_throughput": "total_throughput",
    "max_output_tokens_per_s": "peak_output_throughput",
    "max_concurrent_requests": "peak_concurrency",
}


def is_vllm(head: Head) -> bool:
    """Whether a file looks like one of these."""
    own = head.has("request_rate", "duration", "completed") or head.has("num_prompts", "burstiness")
    return head.shape == "object" and own and not is_sglang(head)


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
    `due` is start - queue_time: the client's limit on requests in flight holds a request back.
    Of a one-token answer the last token is the first, even where the stream closed later. A
    success whose ttft is exactly 0 never saw a token chunk: its first token is missing, and so
    is its last unless `latencies` holds it.

    Raises
    ------
    ValueError : not JSON, a key missing, repeated or of the wrong kind, arrays of unequal length, a
        time negative or not finite, totals that contradict the rows; with file, line and key.

    Source: vLLM `benchmarks/serve.py` and `benchmarks/lib/endpoint_request_func.py`.
    """
    return tuple(
        _run(Path(path).name, entry(where, value)) for where, value in read_json(path, FOLDS)
    )


def _run(source: str, run: Entry) -> BenchmarkRun:
    settings = summary(run)
    wall = duration(run)
    for key in ("completed", "total_input_tokens", "total_output_tokens"):
        run.count(key)
    notes = []
    if "ramp_up_strategy" in run:
        notes.append(
            f"the rate ramps up ({run.get('ramp_up_strategy')}) from "
            f"{run.get('ramp_up_start_rps')} to {run.get('ramp_up_end_rps')} requests/s"
        )
    rows: dict[str, Any] = {"requests": None}
    if any(key in run for key in _DETAIL):
        rows = _rows(run, wall, notes)
    else:
        notes.append("no rows, only summaries: the run was saved without --save-detailed")
    figures = stated(run, _METRICS, _SCALARS, notes)
    return BenchmarkRun(
        tool="vllm",
        duration=wall,
        request_rate=request_rate(run),
        max_concurrency=max_concurrency(run),
        stated=figures,
        notes=tuple(notes),
        summary=settings,
        source=source,
        format="vllm",
        **rows,
    )


def _rows(run: Entry, wall: float, notes: list[str]) -> dict[str, Any]:
    """The detailed lists of one run, as the fields of a BenchmarkRun."""
    rows = Rows(run)
    ttft, outputs = rows.ttft, rows.output_tokens
    # A failed row has an error text, or ended with no text, no chunk and no token at all. An
    # answer whose chunks hold no text counts 0 tokens where the client counts them itself.
    done = rows.without_error & ((outputs > 0) | (ttft > 0))
    agree(run, "completed", int(done.sum()), "rows with tokens or a first chunk, and no error")
    if "failed" in run:
        agree(run, "failed", int((~done).sum()), "rows without tokens or with an error")
    inputs = int(rows.input_tokens[done].sum())
    agree(run, "total_input_tokens", inputs, "input_lens in those rows")
    agree(run, "total_output_tokens", int(outputs[done].sum()), "output_lens in those rows")

    seen = done & (ttft > 0)  # a success with the default 0.0 never saw a token chunk
    if unseen := int((done & ~seen).sum()):
        notes.append(f"{unseen} answers without a first token: their ttft is the default 0")
    last_chunk = rows.last_chunk()
    if "latencies" in run:
        latency = rows.times("latencies")
        ended = done & (latency > 0)
    else:
        latency, ended = last_chunk, seen
        notes.append("E2E is ttft + sum(itl): the file has no latencies")
    rounding = 1e-7 * (rows.gap_counts + 2)  # a file may round each of its times to 0.1 us
    early = done & (latency + rounding < last_chunk)
    require(f"{run.where}: latency", latency, ~early, ">= the request's ttft + sum(itl)")
    last = np.where((outputs == 1) & seen, ttft, latency)  # one token is both first and last
    start = np.zeros(rows.size)
    if "start_times" in run:
        start = rows.times("start_times")
        start = np.where(~done & (start == 0), np.nan, start)  # failed before it was sent
    else:
        cover(run, "latency", np.where(done, latency, np.nan), wall)
        notes.append("no send times: each request has its own clock")
    due = None
    if "start_times" in run and "queue_times" in run:
        queue = rows.times("queue_times")
        require(f"{run.where}: queue_times", queue, ~(queue < 0) | ~done, ">= 0")
        due = start - queue
    with located(run.where):
        log = RequestLog(
            arrival=start,
            first_token=np.where(seen, start + ttft, np.nan),
            last_token=np.where(ended, start + last, np.nan),
            input_tokens=rows.input_tokens,
            output_tokens=np.where(done, outputs, np.nan),
            succeeded=done,
            shared_clock="start_times" in run,
        )
    if log.shared_clock and ended.any():
        span = log.last_token[ended].max() - start[done].min()
        if span > wall + 1e-6:  # start times are rounded to 1 ns, latencies to 0.1 us
            raise ValueError(
                f"{run.where}: duration must cover its requests: got {wall:.9g} s for rows "
                f"that span {span:.9g} s"
            )
    return {
        "requests": log,
        "due": due,
        "reported": {
            "ttft": np.where(seen, ttft, np.nan),
            "latency": np.where(ended, latency, np.nan),
        },
        **rows.gaps_of(done),
    }
