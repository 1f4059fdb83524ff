"""Production traces of LLM services as the common record: arrivals and token counts.

A row without an output token is a request that failed: `succeeded` is False there. It is an
arrival like any other (`log.arrival`), but its tokens say nothing about lengths: take those from
`log.where(log.succeeded)`, and say both counts.
"""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lib._files import COUNT, DATA, NUMBER, STAMP, Field, counts, entry, read_csv, read_json
from lib._validate import FloatArray, choice, real
from lib.record import RequestLog

_AZURE = {"TIMESTAMP": STAMP, "ContextTokens": COUNT, "GeneratedTokens": COUNT}
_ISO = STAMP.pattern.replace(" ", "[ T]")
_TIME = Field(f"(?:{NUMBER.pattern}|{_ISO})", "seconds, or a stamp like 2023-11-16 18:15:46.68")
_MOONCAKE = ("timestamp", "input_length", "output_length")
_WORD = Field(r'[^,"\n]*', "a text without comma or quote")
_BURSTGPT = {
    "Timestamp": Field(NUMBER.pattern, "seconds >= 0"),
    "Session ID": _WORD,
    "Elapsed time": Field(f"(?:{NUMBER.pattern})?", "seconds >= 0, or empty"),
    "Model": _WORD,
    "Request tokens": COUNT,
    "Response tokens": COUNT,
    "Total tokens": COUNT,
    "Log Type": _WORD,
}
_LATER = ("Session ID", "Elapsed time")  # columns that the first release lacks

LATEST = 1e11
"""Unix time of the year 5138 (s): a larger stamp is in milliseconds."""

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Ticks a second of the units that a trace of one's own may be in."""

SHIPPED = {
    "azure2023/code": "azure2023/AzureLLMInferenceTrace_code.csv",
    "azure2023/conv": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake/conversation": "mooncake/conversation_trace.jsonl",
}


def load(name: str) -> RequestLog:
    """A trace that comes with the course, by its name in `SHIPPED`.

    Raises
    ------
    ValueError : no such name.
    """
    choice("name", name, tuple(SHIPPED))
    read = read_azure if name.startswith("azure") else read_mooncake
    return read(DATA / SHIPPED[name])


def read_azure(path: str | Path) -> RequestLog:
    """Azure's LLM inference trace of 2023: TIMESTAMP, ContextTokens, GeneratedTokens.

    Parameters
    ----------
    path : CSV file; CRLF or LF, with or without a final newline.

    Returns
    -------
    RequestLog with `arrival` (s from the first row) and the token counts; no other stamp.

    Raises
    ------
    ValueError : a malformed file, with file, line and column; rows out of time order.

    Source: Azure/AzurePublicDataset; Patel et al., Splitwise (ISCA 2024).
    """
    stamp, context, generated = read_csv(path, _AZURE)
    arrival = _seconds(Path(path).name, "TIMESTAMP", stamp)
    return _log(arrival, context, generated)


def read_trace(
    path: str | Path,
    columns: tuple[str, str, str] = ("timestamp", "input_tokens", "output_tokens"),
    unit: str = "s",
) -> RequestLog:
    """Your own trace: a CSV file with the time and the two token counts of each request.

    Parameters
    ----------
    path : CSV file, UTF-8, one row a request in order of time, with a header.
    columns : the header: the names of time, input tokens and output tokens. Times are all numbers
        (from any origin, Unix time too), or all calendar stamps of one time zone, such as
        2023-11-16 18:15:46.68 or 2023-11-16T18:15:46.
    unit : unit of times that are numbers, one of `UNITS`.

    Returns
    -------
    RequestLog with `arrival` (s from the first row) and the token counts; no other stamp.

    Raises
    ------
    TypeError : `columns` is no tuple.
    ValueError : `columns` are not three different names; an unknown unit; a malformed file, with
        file, line and column; rows out of time order.
    """
    choice("unit", unit, tuple(UNITS))
    if not isinstance(columns, tuple | list):
        raise TypeError(f"columns must be a tuple of names: got {columns!r:.80}")
    if len(columns) != 3 or len(set(columns)) < 3:
        raise ValueError(f"columns must be three different names: got {columns!r:.80}")
    fields = dict(zip(columns, (_TIME, COUNT, COUNT), strict=True))
    stamp, prompt, answer = read_csv(path, fields)
    name, key = Path(path).name, columns[0]
    calendar = ":" in stamp[0]
    for at, text in enumerate(stamp):
        if (":" in text) is not calendar:
            raise ValueError(
                f"{name}, line {at + 2}: {key} must be of one kind in all rows: "
                f"got {text!r} after {stamp[0]!r}"
            )
    if calendar:
        if unit != "s":
            raise ValueError(
                f"{name}, line 2: {key} must be numbers in {unit}: got {stamp[0]!r:.40}"
            )
        return _log(_seconds(name, key, stamp), prompt, answer)
    time = np.array(stamp, np.float64) / UNITS[unit]
    if time.max() > LATEST:
        at = int(np.argmax(time))
        words = {"s": "seconds"}.get(unit, unit)
        raise ValueError(
            f"{name}, line {at + 2}: {key} must be in {words}: got {stamp[at]!r:.40}, "
            "which is later than the year 5000 in Unix time (a smaller unit?)"
        )
    _refuse_disorder(name, key, stamp, time)
    return _log(time - time[0], prompt, answer)


def read_burstgpt(path: str | Path) -> RequestLog:
    """BurstGPT's trace: Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type.

    Parameters
    ----------
    path : CSV file of any release: the columns in any order, later releases with Session ID and
        Elapsed time.

    Returns
    -------
    RequestLog with `arrival` (s from the first row), the token counts, and `last_token` where
        Elapsed time (to the complete answer) is known. The stamps are whole seconds, so many gaps
        are exactly 0; the head of the trace is far quieter than the rest of it.

    Raises
    ------
    ValueError : a malformed file, with file, line and column; rows out of time order.

    Source: HPMLL/BurstGPT; Wang et al., BurstGPT (arXiv:2401.17644).
    """
    name = Path(path).name
    with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline().rstrip("\n").split(",")
    if sorted({*header, *_LATER}) != sorted(_BURSTGPT) or len(set(header)) < len(header):
        raise ValueError(
            f"{name}, line 1: the header must have the columns {', '.join(_BURSTGPT)} "
            f"({' and '.join(_LATER)} may be missing): got {','.join(header)!r:.200}"
        )
    table = dict(zip(header, read_csv(path, {key: _BURSTGPT[key] for key in header}), strict=True))
    stamp = table["Timestamp"]
    time = np.array(stamp, np.float64)
    _refuse_disorder(name, "Timestamp", stamp, time)
    arrival = time - time[0]
    took = table.get("Elapsed time", [])
    end = arrival + np.array([text or "nan" for text in took], np.float64) if took else None
    return _log(arrival, table["Request tokens"], table["Response tokens"], end)


def _log(
    arrival: FloatArray, prompt: list[str], answer: list[str], end: FloatArray | None = None
) -> RequestLog:
    """The record; an answer without a token is a failure."""
    output = np.array(answer, np.float64)
    answered = output > 0
    return RequestLog(
        arrival=arrival,
        input_tokens=np.array(prompt, np.float64),
        output_tokens=output,
        succeeded=answered,
        last_token=np.where(answered, np.nan if end is None else end, np.nan),
    )


def _seconds(name: str, key: str, stamp: list[str]) -> FloatArray:
    """Calendar stamps as seconds from the first."""
    try:
        time = np.array(stamp, "datetime64[ns]")
    except ValueError:  # a pattern cannot know that month 13 does not exist
        at = next(i for i, text in enumerate(stamp) if not _exists(text))
        raise ValueError(
            f"{name}, line {at + 2}: {key} must be a date that exists: got {stamp[at]!r}"
        ) from None
    arrival: FloatArray = (time - time[0]).astype(np.int64) / 1e9
    _refuse_disorder(name, key, stamp, arrival)
    return arrival


def _refuse_disorder(name: str, key: str, stamp: list[str], time: FloatArray) -> None:
    if late := _out_of_order(time):
        raise ValueError(
            f"{name}, line {late + 2}: {key} must not precede the line before it: "
            f"got {stamp[late]!r} after {stamp[late - 1]!r}"
        )


def _exists(stamp: str) -> bool:
    try:
        np.datetime64(stamp)
    except ValueError:
        return False
    return True


def read_mooncake(path: str | Path) -> RequestLog:
    """Mooncake's trace: timestamp (ms), input_length, output_length and the hash_ids of prefixes.

    Parameters
    ----------
    path : JSON lines.

    Returns
    -------
    RequestLog with `arrival` (s from the first row) and the token counts; no other stamp. The
    published stamps tick about every 3 s, so most gaps are exactly 0, and one row appears twice:
    both are in the data and both are kept.

    Raises
    ------
    ValueError : a malformed file, with file, line and key; rows out of time order.

    Source: kvcache-ai/Mooncake; Qin et al., Mooncake (FAST 2025).
    """
    rows = [entry(where, value) for where, value in read_json(path)]
    stamp, inputs, outputs = (counts(rows, key) for key in _MOONCAKE)
    arrival = (stamp - stamp[0]) / 1000
    if late := _out_of_order(arrival):
        raise ValueError(
            f"{rows[late].where}: timestamp must not precede the line before it: "
            f"got {stamp[late]:.15g} after {stamp[late - 1]:.15g}"
        )
    return RequestLog(
        arrival=arrival, input_tokens=inputs, output_tokens=outputs, succeeded=outputs > 0
    )


def _out_of_order(arrival: FloatArray) -> int:
    """The first row that precedes the row before it; 0 when all are in order."""
    back = np.diff(arrival) < 0
    return int(np.argmax(back)) + 1 if back.any() else 0


def arrival_rate(arrival: ArrayLike) -> float:
    """Mean arrival rate, lambda = (n - 1) / (last - first): n arrivals bound n - 1 gaps.

    Parameters
    ----------
    arrival : (n,) stamps on one clock, in any order (s).

    Returns
    -------
    lambda (1/s).

    Raises
    ------
    ValueError : fewer than two arrivals, all at one instant, or a stamp NaN or infinite.

    Source: MLPerf Inference loadgen, `results.cc` (the same n - 1).
    """
    stamps = real("arrival", arrival)
    if stamps.ndim != 1 or stamps.size < 2:
        raise ValueError(f"arrival must hold at least 2 stamps: got shape {stamps.shape}")
    span = float(np.ptp(stamps))
    if span == 0:
        raise ValueError(
            f"arrival must span more than 0 s: got {stamps.size} stamps at one instant"
        )
    return (stamps.size - 1) / span
