"""Production traces of LLM services as the common record: arrivals and token counts."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lib._files import COUNT, DATA, STAMP, counts, entry, read_csv, read_json
from lib._validate import FloatArray, choice, real
from lib.record import RequestLog

_AZURE = {"TIMESTAMP": STAMP, "ContextTokens": COUNT, "GeneratedTokens": COUNT}
_MOONCAKE = ("timestamp", "input_length", "output_length")

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
    name = Path(path).name
    stamp, context, generated = read_csv(path, _AZURE)
    try:
        time = np.array(stamp, "datetime64[ns]")
    except ValueError:  # a pattern cannot know that month 13 does not exist
        at = next(i for i, text in enumerate(stamp) if not _exists(text))
        raise ValueError(
            f"{name}, line {at + 2}: TIMESTAMP must be a date that exists: got {stamp[at]!r}"
        ) from None
    arrival = (time - time[0]).astype(np.int64) / 1e9
    if late := _out_of_order(arrival):
        raise ValueError(
            f"{name}, line {late + 2}: TIMESTAMP must not precede the line before it: "
            f"got {stamp[late]!r} after {stamp[late - 1]!r}"
        )
    return RequestLog(
        arrival=arrival,
        input_tokens=np.array(context, np.float64),
        output_tokens=np.array(generated, np.float64),
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
    return RequestLog(arrival=arrival, input_tokens=inputs, output_tokens=outputs)


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
