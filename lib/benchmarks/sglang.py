"""SGLang `bench_serving`."""

from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, read_json
from lib._validate import positive
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
from lib.record import RequestLog

_DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e"}
_SCALARS = {
    "completed": "completed",
    "duration": "duration",
    "total_input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens",
    "request_throughput": "request_throughput",
    "input_throughput": "input_throughput",
    "output_throughput": "output_throughput",
    "total_throughput": "total_throughput",
    "concurrency": "concurrency",
    "max_output_tokens_per_s": "peak_output_throughput",
    "max_concurrent_requests": "peak_concurrency",
    "request_goodput": "goodput",
    "slo_attainment": "attainment",
}
_LIMITS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
ONLY = (
    "total_output_tokens_retokenized",
    "mean_e2e_latency_ms",
    "total_throughput",
    "input_throughput",
    "sharegpt_output_len",
    "random_input_len",
    "server_info",
)
"""Keys that vLLM's files, which are alike, do not have."""


def is_sglang(head: Head) -> bool:
    """Whether a file looks like one of these."""
    return (
        head.shape == "object" and head.has("request_rate") and any(k in head.first for k in ONLY)
    )


def read_sglang(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """Result file of SGLang's `bench_serving`: one run a line.

    Parameters
    ----------
    path : JSON lines; the tool appends to its file.

    Returns
    -------
    One BenchmarkRun a run. The rows of `--output-details` hold no send time and no latency: each
    row has its own origin (`shared_clock=False`, arrival 0), and the last token is ttft + sum(itl),
    while the tool's own E2E and TPOT run on to the end of the stream. `output_tokens` is what the
    tool counts: the server's figure, or the length that was requested where the server sends none.
    Without `--output-details`, `requests` and `itl` are None. A success whose ttft is exactly 0
    never saw a token: its stamps are missing. A row with an error or without tokens failed.

    Raises
    ------
    ValueError : not JSON, a key missing, repeated or of the wrong kind, arrays of unequal length, a
        time negative or not finite, totals that contradict the rows; with file, line and key.

    Source: SGLang 0.5.23, `benchmark/serving.py`.
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
    rate = None
    if run.get("request_rate") == "trace":
        notes.append("the requests left at the times of a trace: there is no one rate")
    else:
        rate = request_rate(run)
    rows: dict[str, Any] = {"requests": None}
    if any(key in run for key in _DETAIL):
        rows = _rows(run, wall, notes)
    else:
        notes.append("no rows, only summaries: the run was saved without --output-details")
    text_tokens = run.values.get("total_output_tokens_retokenized")
    if text_tokens is not None and run.count("total_output_tokens_retokenized") != run.count(
        "total_output_tokens"
    ):
        notes.append(
            f"output_tokens adds up to {run.count('total_output_tokens')}, but the texts have "
            f"{text_tokens} tokens: where the server sends no count, SGLang takes the length it "
            "asked for"
        )
    figures = stated(run, _METRICS, _SCALARS, notes)
    return BenchmarkRun(
        tool="sglang",
        duration=wall,
        request_rate=rate,
        max_concurrency=max_concurrency(run),
        stated=figures,
        limits=_limits(run),
        notes=tuple(notes),
        summary=settings,
        source=source,
        format="sglang",
        **rows,
    )


def _limits(run: Entry) -> dict[str, float]:
    """The SLO of `--goodput`, in seconds."""
    if run.values.get("goodput_slos_ms") is None:
        return {}
    slos = run.entry("goodput_slos_ms")
    limits = {}
    for key in slos.values:
        if key not in _LIMITS:
            raise ValueError(f"{slos.where}: expected {', '.join(_LIMITS)}: got {key!r}")
        limits[_LIMITS[key]] = float(positive(f"{slos.where}: {key}", slos.number(key))) / 1000
    return limits


def _rows(run: Entry, wall: float, notes: list[str]) -> dict[str, Any]:
    """The detailed lists of one run, as the fields of a BenchmarkRun."""
    rows = Rows(run)
    done = rows.without_error & (rows.output_tokens > 0)
    agree(run, "completed", int(done.sum()), "rows with tokens and no error")
    outputs = int(rows.output_tokens[done].sum())
    agree(run, "total_output_tokens", outputs, "output_lens in those rows")
    inputs = int(rows.input_tokens[done].sum())
    if run.count("total_input_tokens") != inputs:  # that of the data set, which a server recounts
        notes.append(
            f"total_input_tokens is {run.count('total_input_tokens')}, but input_lens adds up to "
            f"{inputs} over the answered requests"
        )
    seen = done & (rows.ttft > 0)
    if unseen := int((done & ~seen).sum()):
        notes.append(f"{unseen} answers without a first token: their ttft is the default 0")
    last = np.where(seen, rows.last_chunk(), np.nan)
    cover(run, "ttft + sum(itl)", last, wall)
    notes.append("no send times: each request has its own clock; concurrency cannot be recomputed")
    notes.append(
        "no latencies: the last token is ttft + sum(itl), before SGLang's own E2E and TPOT end"
    )
    with located(run.where):
        log = RequestLog(
            arrival=np.zeros(rows.size),
            first_token=np.where(seen, rows.ttft, np.nan),
            last_token=last,
            input_tokens=rows.input_tokens,
            output_tokens=np.where(done, rows.output_tokens, np.nan),
            succeeded=done,
            shared_clock=False,
        )
    return {
        "requests": log,
        "reported": {"ttft": np.where(seen, rows.ttft, np.nan)},
        **rows.gaps_of(done),
    }
