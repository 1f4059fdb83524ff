"""The beginning of a file, by which its format is recognised."""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZE = 1 << 20
"""Bytes that are looked at."""

_BINARY = {
    b"\x1f\x8b": "gzip-compressed: unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: unpack it first",
    b"BZh": "bzip2-compressed: unpack it first",
    b"\xfd7zXZ": "xz-compressed: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"PAR1": "a Parquet table: save it as CSV",
    b"SQLite format 3": "a database, not a result file",
}
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the first megabyte of a file shows.

    name : the file's name.
    shape : "object" (one, or several behind each other), "array" or "table" (CSV).
    first : the first object, or the first object in the array, as far as it goes; the value that
        the head cuts off is None.
    header : the names in the first line of a table.
    """

    name: str
    shape: str
    first: Mapping[str, Any]
    header: tuple[str, ...]

    def has(self, *keys: str) -> bool:
        """Whether the first object has all these keys."""
        return all(key in self.first for key in keys)

    def __str__(self) -> str:
        names = self.header if self.shape == "table" else tuple(self.first)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        kind = {
            "object": "a JSON object with the keys",
            "array": "a JSON list of objects with the keys",
            "table": "a table with the columns",
        }[self.shape]
        return f"{kind} {shown}" if names else f"{kind.rpartition(' with ')[0]} without names"


def read_head(path: str | Path) -> Head:
    """The head of a file.

    Raises
    ------
    ValueError : no text file, an empty one, or neither JSON nor a table.
    OSError : the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        data = file.read(SIZE)
        whole = not file.read(1)
    for mark, kind in _BINARY.items():
        if data.startswith(mark):
            raise ValueError(f"{path.name}: the file is {kind}")
    try:
        # A character may be cut in two by the end of the head.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=whole)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name}: the file must be UTF-8 text: bad byte {error.start}"
        ) from None
    if "\0" in text:
        raise ValueError(f"{path.name}: the file must be text: byte {text.index(chr(0))} is 0")
    at = _after_space(text, 0)
    start = text[at : at + 1]
    if not start:
        raise ValueError(f"{path.name}: the file is empty")
    if start == "<":
        raise ValueError(f"{path.name}: the file is a web page or XML, not a result file")
    if start == "{":
        return Head(name=path.name, shape="object", first=_object(text, at), header=())
    if start == "[":
        return Head(
            name=path.name,
            shape="array",
            first=_object(text, _after_space(text, at + 1)),
            header=(),
        )
    line = text[at:].splitlines()[0]
    header = tuple(name.strip().strip('"') for name in line.split(","))
    if len(header) < 2:
        raise ValueError(f"{path.name}, line 1: expected JSON or a CSV header: got {line[:80]!r}")
    return Head(name=path.name, shape="table", first={}, header=header)


def _object(text: str, at: int) -> dict[str, Any]:
    """What can be read of the object that begins at `at`; empty if none does.

    Loose on purpose: the reader of the format will say what is wrong, and where.
    """
    values: dict[str, Any] = {}
    if text[at : at + 1] != "{":
        return values
    decoder = json.JSONDecoder()
    separator = "{"
    try:
        while separator in ("{", ","):
            key, at = decoder.raw_decode(text, _after_space(text, at + 1))
            if not isinstance(key, str):
                break
            values[key] = None
            colon = _after_space(text, at)
            values[key], at = decoder.raw_decode(text, _after_space(text, colon + 1))
            at = _after_space(text, at)
            separator = text[at : at + 1]
    except (ValueError, RecursionError):
        pass
    return values


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]
