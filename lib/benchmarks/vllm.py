"""vLLM `bench serve`."""

from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, numbers, read_json
from lib._validate import FloatArray, count, require
from lib.benchmarks.run import BenchmarkRun, ragged
from lib.record import RequestLog

# What `--save-detailed` adds; `latencies` and `start_times` came later and may be absent.
_VLLM_DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "errors")


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
    gaps, gap_counts = ragged(f"{run.where}: itls", items("itls"))
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


def _agree(run: Entry, key: str, counted: int, what: str) -> None:
    if run.count(key) != counted:
        raise ValueError(
            f"{run.where}: {key} must agree with the rows: got {run.get(key)} for {counted} {what}"
        )
