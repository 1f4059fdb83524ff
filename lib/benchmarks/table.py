"""A plain CSV table with one row a request."""

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from lib._files import COUNT, NUMBER, Field, located
from lib._validate import FloatArray, choice, require
from lib.benchmarks.head import Head, read_head
from lib.benchmarks.run import BenchmarkRun
from lib.record import STAMPS, TOKENS, RequestLog
from lib.traces import LATEST

DURATIONS = {"ttft": "first_token", "e2e": "last_token"}
"""Times from the arrival that may stand in for a stamp."""

COLUMNS = (*STAMPS, "due", *DURATIONS, *TOKENS, "succeeded", "request_id")
"""What a table may hold of each request."""

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of time, and how many of each make a second."""

_TIME = Field(f"(?:{NUMBER.pattern})?", "a number >= 0, or nothing where it is missing")
_TOKENS = Field(rf"(?:{COUNT.pattern}(?:\.0)?)?", "a whole number >= 0, or nothing")
_TRUTH = Field("[Tt]rue|[Ff]alse|TRUE|FALSE|0|1", "true or false, 1 or 0")
_LABEL = Field(r"[^\n]*", "one line of text")
_FIELDS = {
    **dict.fromkeys((*STAMPS, "due", *DURATIONS), _TIME),
    **dict.fromkeys(TOKENS, _TOKENS),
    "succeeded": _TRUTH,
    "request_id": _LABEL,
}
_ROWS = 50_000
"""Rows that are held as text at a time."""


def is_csv(head: Head) -> bool:
    """Whether a file looks like a table whose columns have the record's own names."""
    return head.shape == "table" and bool({"arrival", *DURATIONS} & set(head.header))


def read_csv(
    path: str | Path, columns: Mapping[str, str] | None = None, unit: str = "s"
) -> BenchmarkRun:
    """A CSV table: a header, then one row a request.

    Parameters
    ----------
    path : UTF-8 text with commas between the fields; a field may stand in double quotes.
    columns : what the table calls things, as {name in `COLUMNS`: name in the header}; names in
        `COLUMNS` that the header has as they are need no entry, and other columns are ignored.
    unit : of all times: "s", "ms", "us" or "ns".

    Returns
    -------
    BenchmarkRun with `requests` and, if there is such a column, `due`. Without arrivals each row
    has its own origin (`shared_clock=False`, arrival 0). An empty field is a missing value. Times
    not in seconds count from the first arrival; float64 holds nanoseconds since 1970 to 256 ns.

    Raises
    ------
    ValueError : a malformed file, with file, line and column; no such column; the stamp and the
        duration of one event; times that are not in the unit; stamps out of order.
    TypeError : `columns` is no mapping.
    """
    choice("unit", unit, tuple(UNITS))
    name = Path(path).name
    read_head(path)  # says what a file is that is no text
    table = _read(Path(path), columns)
    seconds = _Seconds(name, table, unit)
    arrival = seconds.stamp("arrival")
    size = next(iter(table.values())).size
    own_clock = arrival is None
    start = np.zeros(size) if arrival is None else arrival
    done = np.full(size, True) if "succeeded" not in table else table["succeeded"] > 0
    missing = np.full(size, np.nan)

    def event(stamp: str) -> FloatArray:
        found = seconds.stamp(stamp)
        for duration, end in DURATIONS.items():
            if end == stamp and duration in table:
                found = start + seconds.length(duration)
        return missing if found is None else np.where(done, found, np.nan)

    outputs = table.get("output_tokens", missing)
    with located(f"{name} (index 0 is its first row)"):
        log = RequestLog(
            arrival=start,
            **{stamp: event(stamp) for stamp in STAMPS[1:]},
            input_tokens=table.get("input_tokens", missing),
            output_tokens=np.where(done, outputs, np.nan),
            succeeded=done,
            request_id=table.get("request_id", np.arange(size)),
            shared_clock=not own_clock,
        )
    notes = ["no arrivals: each request has its own clock"] if own_clock else []
    return BenchmarkRun(
        tool="csv",
        requests=log,
        due=seconds.stamp("due"),
        notes=tuple(notes),
        source=name,
        format="csv",
    )


class _Seconds:
    """The times of a table, in seconds."""

    def __init__(self, name: str, table: Mapping[str, FloatArray], unit: str) -> None:
        self._name, self._table, self._unit = name, table, unit
        self._origin = 0.0
        if unit != "s" and "arrival" in table and not np.isnan(table["arrival"]).all():
            self._origin = float(np.nanmin(table["arrival"]))

    def stamp(self, column: str) -> FloatArray | None:
        if column not in self._table:
            return None
        given = self._table[column]
        # Unix time of the year 5138: a larger stamp is in a smaller unit.
        fits = np.isnan(given) | (given / UNITS[self._unit] <= LATEST)
        rule = f"in {self._unit}, before the year 5000 in Unix time (a smaller unit?)"
        require(f"{self._name}: {column}", given, fits, rule)
        return (given - self._origin) / UNITS[self._unit]

    def length(self, column: str) -> FloatArray:
        return self._table[column] / UNITS[self._unit]


def _read(path: Path, columns: Mapping[str, str] | None) -> dict[str, FloatArray]:
    """The columns of a table, by the names in `COLUMNS`."""
    if columns is not None and not isinstance(columns, Mapping):
        raise TypeError(f"columns must be a mapping of names: got {columns!r:.80}")
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        header = _next(path.name, lines, 1)
        if not header:
            raise ValueError(f"{path.name}: the file is empty")
        wanted = _wanted(path.name, header[0], columns or {})
        parts: dict[str, list[FloatArray]] = {column: [] for column in wanted}
        line = lines.line_num
        while rows := _next(path.name, lines, _ROWS):
            for i, row in enumerate(rows):
                if len(row) != len(header[0]):
                    raise ValueError(
                        f"{path.name}, line {line + 1 + i}: expected {len(header[0])} fields "
                        f"({','.join(header[0])}): got {','.join(row)!r:.80}"
                    )
            for column, at in wanted.items():
                where = f"{path.name}, line", line + 1, header[0][at]
                parts[column].append(_values(*where, column, [row[at] for row in rows]))
            line = lines.line_num
    if not any(parts.values()):
        raise ValueError(f"{path.name}: no row follows the header")
    return {column: np.concatenate(values) for column, values in parts.items()}


def _next(name: str, lines: Iterator[list[str]], count: int) -> list[list[str]]:
    try:
        return list(islice(lines, count))
    except UnicodeDecodeError:
        raise ValueError(f"{name}: the file must be UTF-8 text") from None
    except csv.Error as error:
        raise ValueError(f"{name}, line {lines.line_num}: {error}") from None  # type: ignore[attr-defined]


def _wanted(name: str, header: list[str], columns: Mapping[str, str]) -> dict[str, int]:
    """Where in the header each known column stands."""
    for column, title in columns.items():
        choice("a name in columns", column, COLUMNS)
        if title not in header:
            raise ValueError(
                f"{name}, line 1: no column {title!r} for {column}: the header is "
                f"{','.join(header):.200}"
            )
    titles = {column: columns.get(column, column) for column in COLUMNS}
    # A column that is renamed away is not taken by its own name as well.
    renamed = set(columns.values())
    wanted = {}
    for column, title in titles.items():
        if title in header and (column in columns or title not in renamed):
            if header.count(title) > 1:
                raise ValueError(f"{name}, line 1: column {title!r} appears twice")
            wanted[column] = header.index(title)
    for duration, stamp in DURATIONS.items():
        if duration in wanted and stamp in wanted:
            raise ValueError(f"{name}, line 1: {stamp} must be given once: got {duration} as well")
    if not {"arrival", *DURATIONS} & set(wanted):
        raise ValueError(
            f"{name}, line 1: the table must have a column for arrival, ttft or e2e: the header is "
            f"{','.join(header):.200}"
        )
    return wanted


def _values(where: str, line: int, title: str, column: str, texts: list[str]) -> FloatArray:
    field = _FIELDS[column]
    # One match over the column; possessive, so that a long one costs no memory.
    if not re.fullmatch(rf"(?:(?:{field.pattern})\n)*+(?:{field.pattern})", "\n".join(texts), re.A):
        at = next(i for i, text in enumerate(texts) if not re.fullmatch(field.pattern, text, re.A))
        raise ValueError(
            f"{where} {line + at}: {title} must be {field.rule}: got {texts[at]!r:.80}"
        )
    if column == "request_id":
        return np.array(texts)
    if column == "succeeded":
        return np.array([float(text in ("1", "true", "True", "TRUE")) for text in texts])
    if "" in texts:
        texts = [text or "nan" for text in texts]
    return np.array([float(text) for text in texts])
