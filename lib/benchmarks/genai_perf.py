"""GenAI-Perf, AIPerf's ancestor, over Perf Analyzer."""

import re
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib._files import Entry, entry, located, numbers, read_one, rows
from lib._validate import FloatArray
from lib.benchmarks.aiperf import figures, limits
from lib.benchmarks.columns import Columns
from lib.benchmarks.head import Head
from lib.benchmarks.run import BenchmarkRun
from lib.benchmarks.stream import channel, decoded, usage
from lib.record import RequestLog

_FIELD = re.compile(r"(data|event|id|retry)?:")


def read_genai_perf(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """Perf Analyzer's `profile_export.json`: one BenchmarkRun an experiment.

    Parameters
    ----------
    path : one JSON object. `profile_export_genai_perf.json` beside it, if there, gives the
        `stated` figures of a file with one experiment.

    Returns
    -------
    BenchmarkRuns. Arrival is the send, in seconds from the first one. Responses without text are
    removed first, as GenAI-Perf does, and a response in splinters is joined to its beginning;
    first and last token are the first and last response that remain. GenAI-Perf encodes the texts
    again to count tokens. That needs the model's tokenizer, so N is the server's usage count, if
    the stream holds one for every answer; else the number of responses with text. A note says
    which. A request that drew an error event counts as failed.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request; stamps out of order.

    Source: GenAI-Perf 0.0.16, `profile_data_parser/llm_profile_data_parser.py`.
    """
    path = Path(path)
    where, value = read_one(path, {"experiments[].requests": _fold})
    file = entry(where, value)
    file.text("service_kind")
    experiments = file.entries("experiments")
    if not experiments:
        raise ValueError(f"{where}: experiments must hold at least one run: got []")
    beside = path.with_name(f"{path.stem}_genai_perf.json")
    told: dict[str, Any] = {}
    if len(experiments) == 1 and beside.is_file():
        told = _told(*read_one(beside))
    return tuple(_run(run, path.name, told, beside.name) for run in experiments)


class _Requests(NamedTuple):
    columns: Columns
    sent: "array[int]"  # ns since 1970, which a float64 would round
    has_ids: bool


def _fold(where: str, pieces: Iterator[list[Any]]) -> _Requests:
    columns = Columns("done", "first", "content", "last", "input", "usage", "chunks", "ids", "gaps")
    sent: array[int] = array("q")
    has_ids = False
    for row in rows(where, pieces):
        start = row.count("timestamp")
        stamps, outputs = row.items("response_timestamps"), row.entries("response_outputs")
        if len(stamps) != len(outputs):
            raise ValueError(
                f"{row.where}: response_timestamps must have one value a response: got "
                f"{len(stamps)} for {len(outputs)} response_outputs"
            )
        numbers(f"{row.where}: response_timestamps", stamps)
        if any(late < early for early, late in pairwise([start, *stamps])):
            raise ValueError(f"{row.where}: response_timestamps must not run back from timestamp")
        has_ids |= any("output_ids" in output for output in outputs)
        sent.append(start)
        columns.add(**_answer(columns, outputs, [int(stamp) - start for stamp in stamps]))
    return _Requests(columns, sent, has_ids)


def _answer(columns: Columns, outputs: list[Entry], after: list[int]) -> dict[str, float]:
    """The row of one request; `after` (ns from the send) are the stamps of its responses."""
    values: dict[str, float] = {"done": 1, "gaps": 0, "chunks": 0, "ids": 0}
    held, kinds = [], []
    for stamp, output, text in zip(after, outputs, _joined(outputs), strict=True):
        ids = output.values.get("output_ids")
        count = len(ids) if isinstance(ids, list) else int(isinstance(ids, int))
        said = {"content"} if count else set()
        for frame in _frames(output, text):
            if frame.get("error") is not None:
                return {"done": 0, "gaps": 0}
            said.add(channel(frame))
            counted = usage(f"{output.where}, key 'usage'", frame.get("usage"))
            if counted.input_tokens is not None:
                values["input"] = counted.input_tokens
            if counted.output_tokens is not None:
                values["usage"] = counted.output_tokens
        if kind := "content" if "content" in said else "reasoning" if "reasoning" in said else "":
            held.append(stamp)
            kinds.append(kind)
            values["ids"] += count
    if held:
        values |= {"first": held[0], "last": held[-1], "chunks": len(held), "gaps": len(held) - 1}
        columns.extend("gaps", np.diff(held).tolist())
    if "content" in kinds:
        values["content"] = held[kinds.index("content")]
    return values


def _joined(outputs: list[Entry]) -> list[str]:
    """The text of each response, its splinters put back to the response they broke off."""
    texts = [output.text("response") if "response" in output else "" for output in outputs]
    for i in range(len(texts) - 1, 0, -1):
        if texts[i] and not _FIELD.match(texts[i]):
            begins = texts[i].find("data:")
            begins = len(texts[i]) if begins < 0 else begins
            texts[i - 1], texts[i] = texts[i - 1] + texts[i][:begins], texts[i][begins:]
    return texts


def _frames(output: Entry, text: str) -> Iterator[dict[str, Any]]:
    """What a response holds: the events of a stream, or one whole answer."""
    where = f"{output.where}: response"
    if not text:
        if "text_output" in output:
            yield output.values
        return
    if not _FIELD.match(text):
        yield decoded(where, text)
        return
    for line in text.splitlines():
        if line.startswith("event:") and line.removeprefix("event:").strip() == "error":
            yield {"error": line}
        elif line.startswith("data:"):
            yield decoded(where, line)


def _run(run: Entry, source: str, told: dict[str, Any], beside: str) -> BenchmarkRun:
    requests = run.get("requests")
    if not isinstance(requests, _Requests):
        raise ValueError(f"{run.where}, key 'requests': expected a list: got {requests!r:.80}")
    columns, sent = requests.columns, np.array(requests.sent, np.int64)
    if not len(columns):
        raise ValueError(f"{run.where}: no request")
    start = (sent - sent.min()) / 1e9
    done = columns["done"] == 1
    first, content, last = (start + columns[key] / 1e9 for key in ("first", "content", "last"))
    served = columns["usage"]
    notes = []
    if requests.has_ids:
        output = columns["ids"]
        notes.append("N is the number of token ids in the responses")
    elif done.any() and not np.isnan(served[done]).any():
        output = served
        notes.append("N is the server's usage count; GenAI-Perf counts the text again")
    else:
        output = columns["chunks"]
        notes.append(
            "N is the number of responses with text, not of tokens: the file holds no usage count, "
            "and GenAI-Perf's own count needs the model's tokenizer"
        )
    unseen = int((done & np.isnan(first)).sum())
    if unseen:
        notes.append(
            f"{unseen} answers are empty: GenAI-Perf skips them, yet counts them in its rate"
        )
    if np.isnan(columns["input"]).all():
        notes.append("input tokens are not in the file")
    with located(run.where):
        log = RequestLog(
            arrival=start,
            first_token=first,
            last_token=last,
            input_tokens=columns["input"],
            output_tokens=np.where(done, output, np.nan),
            succeeded=done,
        )
    setup = run.entry("experiment")
    level = setup.number("value")
    rate = level if setup.text("mode") == "request_rate" else 0
    clients = setup.count("value") if setup.text("mode") == "concurrency" else 0
    if told:
        notes.append(f"the stated figures stand in {beside}")
    return BenchmarkRun(
        tool="genai-perf",
        requests=log,
        itl=_seconds(columns.flat("gaps")),
        itl_counts=columns.counts("gaps"),
        first_content=None if np.array_equal(first, content, equal_nan=True) else content,
        request_rate=rate or None,
        max_concurrency=clients or None,
        notes=tuple(notes),
        source=source,
        format="genai-perf",
        **told,
    )


def _seconds(nanoseconds: FloatArray) -> FloatArray:
    return nanoseconds / 1e9


def read_genai_perf_summary(path: str | Path) -> BenchmarkRun:
    """GenAI-Perf's `profile_export_genai_perf.json`: figures of a run, without its requests.

    Parameters
    ----------
    path : one JSON object.

    Returns
    -------
    BenchmarkRun with `requests` None.

    Raises
    ------
    ValueError : a malformed file, with file and key; a unit that GenAI-Perf does not write; no
        figure.

    Source: GenAI-Perf 0.0.16, `export_data/json_exporter.py`.
    """
    path = Path(path)
    return BenchmarkRun(
        tool="genai-perf",
        requests=None,
        source=path.name,
        format="genai-perf-summary",
        **_told(*read_one(path)),
    )


def _told(where: str, value: Any) -> dict[str, Any]:
    run = entry(where, value)
    stated = figures(run)
    if not stated:
        raise ValueError(f"{where}: no figure that GenAI-Perf writes")
    setup = run.entry("input_config") if run.values.get("input_config") is not None else None
    return {
        "stated": stated,
        "limits": limits(setup, "goodput") if setup else {},
        "summary": run.values,
    }


def is_genai_perf(head: Head) -> bool:
    return head.shape == "object" and {"service_kind", "experiments"} <= head.first.keys()


def is_genai_perf_summary(head: Head) -> bool:
    """Like AIPerf's aggregate file, but from before there was a version in it."""
    latency = head.first.get("request_latency")
    told = isinstance(latency, dict) and {"unit", "avg"} <= latency.keys()
    return told and not {"aiperf_version", "benchmark_duration"} & head.first.keys()
