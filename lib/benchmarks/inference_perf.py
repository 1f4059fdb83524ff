"""inference-perf."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lib._files import Entry, entry, located, numbers, read_one, rows
from lib.benchmarks.columns import Columns
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.benchmarks.stream import channel, decoded, usage
from lib.record import RequestLog

# The words of `BenchmarkRun.stated` for inference-perf's own.
_TIMES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "normalized_time_per_output_token": "ntpot",
    "request_latency": "e2e",
}
_THROUGHPUT = {
    "requests_per_sec": "request_throughput",
    "input_tokens_per_sec": "input_throughput",
    "output_tokens_per_sec": "output_throughput",
    "total_tokens_per_sec": "total_throughput",
}
_STATISTIC = re.compile(r"mean|median|min|max|p\d{1,2}(\.\d+)?")
_ROWS, _SUMMARY = "per_request_lifecycle_metrics.json", "summary_lifecycle_metrics.json"


def read_inference_perf(path: str | Path) -> BenchmarkRun:
    """inference-perf's `per_request_lifecycle_metrics.json`.

    Parameters
    ----------
    path : one JSON array, one object a request. `summary_lifecycle_metrics.json` beside it, if
        there, gives the run's `stated` figures and duration.

    Returns
    -------
    BenchmarkRun. Arrival is the send, in seconds from the first one; `closed` is where the tool's
    request latency ends, after it has encoded the text again. First and last token are the first
    and last chunk with text or reasoning, where the file keeps the chunks, else the first and last
    stamp of a token. N is the server's count if it gave one for every answer; `text_tokens` then
    holds the client's, which the tool's own figures use. `reported` holds the tool's figures of a
    request, where the file has them.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request; chunks out of order or after the
        end; a summary that counts other requests.

    Source: inference-perf, `reportgen/base.py`, `apis/streaming_parser.py` (commit 7de5ef2).
    """
    path = Path(path)
    where, columns = read_one(path, {"": _fold})
    if not isinstance(columns, Columns):
        raise ValueError(f"{where}: expected a list: got {columns!r:.80}")
    if not len(columns):
        raise ValueError(f"{where}: no request")
    done, text, server = columns["done"] == 1, columns["text"], columns["server"]
    by_server = bool(done.any()) and not np.isnan(server[done]).any()
    origin = columns["sent"].min()
    first, content = columns["first"], columns["content"]
    with located(where):
        log = RequestLog(
            arrival=columns["sent"] - origin,
            first_token=first - origin,
            last_token=columns["last"] - origin,
            input_tokens=columns["input"],
            output_tokens=np.where(done, server if by_server else text, np.nan),
            succeeded=done,
        )
    notes = []
    if by_server:
        notes.append("N is the server's count; inference-perf's own figures count the text again")
    unseen = int((done & np.isnan(first)).sum())
    if unseen:
        notes.append(f"{unseen} answers have no stamp of a token: not streamed, or empty")
    beside = path.with_name(_SUMMARY)
    told: dict[str, Any] = {}
    if path.name == _ROWS and beside.is_file():
        told = _told(*read_one(beside))
        notes.append(f"the stated figures stand in {beside.name}")
        counted = told["stated"].get("completed", done.sum())
        if counted != done.sum():
            raise ValueError(
                f"{beside.name}: successes.count must agree with {path.name}: got {counted:.12g} "
                f"for {done.sum()} rows without an error"
            )
    chunk_tokens = columns.flat("chunk_tokens")
    own = {key: column for key in _TIMES if (column := columns.given(key)) is not None}
    return BenchmarkRun(
        tool="inference-perf",
        requests=log,
        itl=columns.flat("gaps"),
        itl_counts=columns.counts("gaps"),
        chunk_tokens=None if np.isnan(chunk_tokens).all() else chunk_tokens,
        closed=columns["closed"] - origin,
        first_content=None if np.array_equal(first, content, equal_nan=True) else content - origin,
        text_tokens=np.where(done, text, np.nan) if by_server else None,
        reported=own,
        notes=tuple(notes),
        source=path.name,
        format="inference-perf",
        **told,
    )


def _fold(where: str, pieces: Iterator[list[Any]]) -> Columns:
    columns = Columns(
        "done", "sent", "first", "content", "last", "closed", "input", "text", "server", "gaps",
        *_TIMES,
    )  # fmt: skip
    for row in rows(where, pieces):
        sent, closed = row.number("start_time"), row.number("end_time")
        if closed < sent:
            raise ValueError(
                f"{row.where}: end_time must not precede start_time: got {closed:.12g} < "
                f"{sent:.12g}"
            )
        failed = row.get("error") is not None
        if failed and row.values.get("info") is None:
            columns.add(done=0, sent=sent, closed=closed, gaps=0)
            continue
        info = row.entry("info")
        values = {"done": float(not failed), "sent": sent, "closed": closed, "gaps": 0.0}
        values |= _input(info)
        if not failed:
            values |= _answer(columns, info, sent, closed)
            if row.values.get("computed_metrics") is not None:
                own = row.entry("computed_metrics")
                values |= {
                    key: own.number(key) for key in _TIMES if own.values.get(key) is not None
                }
        columns.add(**values)
    return columns


def _input(info: Entry) -> dict[str, float]:
    """The prompt's tokens; earlier files have them in `info` itself."""
    if info.values.get("request_metrics") is not None:
        metrics = info.entry("request_metrics")
        if metrics.values.get("text") is not None:
            return {"input": metrics.entry("text").count("input_tokens")}
    return {"input": info.count("input_tokens")}


def _answer(columns: Columns, info: Entry, sent: float, closed: float) -> dict[str, float]:
    """Counts and stamps of an answer; its gaps and chunks go to the flat lists."""
    if "response_metrics" in info:
        if info.get("response_metrics") is None:
            return {"text": 0}
        answer = info.entry("response_metrics")
    else:
        answer = info  # files from before the response had an object of its own
    values: dict[str, float] = {"text": answer.count("output_tokens")}
    counted = usage(f"{answer.where}, key 'server_usage'", answer.values.get("server_usage"))
    if counted.output_tokens is not None:
        values["server"] = counted.output_tokens
    stamps, kinds = _chunks(answer)
    if not stamps:
        return values
    if any(late < early for early, late in pairwise(stamps)):
        raise ValueError(f"{answer.where}: the stamps of the answer must not run back")
    if stamps[0] < sent or stamps[-1] > closed:
        raise ValueError(
            f"{answer.where}: the stamps of the answer must lie in its request's "
            f"[{sent:.12g}, {closed:.12g}] s: got [{stamps[0]:.12g}, {stamps[-1]:.12g}]"
        )
    columns.extend("gaps", np.diff(stamps).tolist())
    columns.extend("chunk_tokens", _tokens(answer, stamps, kinds))
    values |= {"first": stamps[0], "last": stamps[-1], "gaps": len(stamps) - 1}
    if "content" in kinds:
        values["content"] = stamps[kinds.index("content")]
    return values


def _chunks(answer: Entry) -> tuple[list[float], list[str]]:
    """The stamps of the chunks that carry a token, and which channel each belongs to."""
    stamps = _stamps(answer, "chunk_times")
    if not stamps:
        stamps = _stamps(answer, "output_token_times")
        return stamps, ["content"] * len(stamps)
    if not answer.values.get("response_chunks"):  # the user may leave the texts out
        return stamps, ["content"] * len(stamps)
    frames = answer.items("response_chunks")
    if len(frames) != len(stamps):
        raise ValueError(
            f"{answer.where}: response_chunks must have one value a chunk: got {len(frames)} for "
            f"{len(stamps)} chunk_times"
        )
    kinds = []
    for i, frame in enumerate(frames):
        where = f"{answer.where}: response_chunks[{i}]"
        if not isinstance(frame, str):
            raise ValueError(f"{where} must be a text: got {frame!r:.80}")
        kinds.append(channel(decoded(where, frame)))
    held = [i for i, kind in enumerate(kinds) if kind]
    return [stamps[i] for i in held], [kinds[i] for i in held]


def _stamps(answer: Entry, key: str) -> list[float]:
    if answer.values.get(key) is None:
        return []
    return list(numbers(f"{answer.where}: {key}", answer.items(key)))


def _tokens(answer: Entry, stamps: list[float], kinds: list[str]) -> list[float]:
    """Tokens of each chunk: as many as share its stamp. NaN where the file does not say."""
    each = np.array(_stamps(answer, "output_token_times"))
    at = np.array(stamps)
    here = np.searchsorted(each, at, "right") - np.searchsorted(each, at, "left")
    here[1:][at[1:] == at[:-1]] = 0  # two chunks of one stamp: the first takes its tokens
    if not answer.values.get("chunk_times") or here.sum() != each.size:
        return [np.nan] * at.size
    # The tool counts the text only, so what a chunk of reasoning holds is not known.
    return [float(n) if kind == "content" else np.nan for n, kind in zip(here, kinds, strict=True)]


# The summaries ------------------------------------------------------------------------------------


def read_inference_perf_stage(path: str | Path) -> BenchmarkRun:
    """inference-perf's `stage_N_` or `summary_lifecycle_metrics.json`: figures without requests.

    Parameters
    ----------
    path : one JSON object.

    Returns
    -------
    BenchmarkRun with `requests` None. `request_rate` is the stage's requested rate, and
    `max_concurrency` the stage's workers, where it has them. A distribution that is null is absent.

    Raises
    ------
    ValueError : a malformed file, with file and key; no figure.

    Source: inference-perf, `reportgen/base.py` (commit 7de5ef2).
    """
    path = Path(path)
    return BenchmarkRun(
        tool="inference-perf",
        requests=None,
        source=path.name,
        format="inference-perf-stage",
        **_told(*read_one(path)),
    )


def is_inference_perf(head: Head) -> bool:
    return head.shape == "array" and {"start_time", "end_time", "error"} <= head.first.keys()


def is_inference_perf_stage(head: Head) -> bool:
    return head.shape == "object" and {"load_summary", "successes"} <= head.first.keys()


def _told(where: str, value: Any) -> dict[str, Any]:
    """What a summary tells of a run, as fields of a BenchmarkRun."""
    run = entry(where, value)
    load, good, bad = run.entry("load_summary"), run.entry("successes"), run.entry("failures")
    stated: dict[str, float] = {"completed": good.count("count"), "failed": bad.count("count")}
    if run.values.get("benchmark_time_seconds") is not None:
        stated["duration"] = run.number("benchmark_time_seconds")
    if good.values.get("latency") is not None:
        latency = good.entry("latency")
        for key, word in _TIMES.items():
            if latency.values.get(key) is not None:
                told = latency.entry(key)
                for name in filter(_STATISTIC.fullmatch, told.values):
                    stated[f"{word}.{name}"] = told.number(name)
    if good.values.get("throughput") is not None:
        throughput = good.entry("throughput")
        for key, word in _THROUGHPUT.items():
            if throughput.values.get(key) is not None:
                stated[word] = throughput.number(key)
    for key, word in (("prompt_tokens", "input_tokens"), ("output_tokens", "output_tokens")):
        if good.values.get(key) is not None:
            stated[word] = good.entry(key).count("total")
    if good.values.get("goodput_metrics") is not None:
        told = good.entry("goodput_metrics")
        stated["good"] = told.count("good_requests")
        stated["goodput"] = told.number("request_goodput")
        stated["attainment"] = told.number("goodput_percentage") / 100
    rate = load.number("requested_rate") if load.values.get("requested_rate") is not None else 0
    workers = load.count("concurrency") if load.values.get("concurrency") is not None else 0
    return {
        "stated": stated,
        "duration": stated.get("duration"),
        "request_rate": rate or None,
        "max_concurrency": workers or None,
        "summary": run.values,
    }
