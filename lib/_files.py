"""Reading data files strictly: every error names the file, the line or key, and the rule."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lib._validate import LARGEST, FloatArray, count, nonnegative, numeric

DATA = Path(__file__).parent / "data"


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` before the message of a ValueError or TypeError raised inside."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a file that must not be empty; CRLF line ends read as LF."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name}: the file must be UTF-8 text: bad byte {error.start}"
        ) from None
    if not text.strip():
        raise ValueError(f"{path.name}: the file is empty")
    return text


# CSV ----------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """What a CSV column holds: a pattern, and the rule in words."""

    pattern: str
    rule: str


COUNT = Field(r"\d{1,15}", "a whole number >= 0")
NUMBER = Field(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "a number >= 0")
STAMP = Field(
    r"(?:19|20)\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?",
    "a stamp like 2023-11-16 18:15:46.6805900",
)


def read_csv(path: str | Path, columns: Mapping[str, Field]) -> list[list[str]]:
    """The columns of a CSV file, as text, in the order of `columns`, which is also its header.

    Both line ends and a missing final newline pass; a blank line or a field that does not fit its
    column's pattern does not.
    """
    name = Path(path).name
    header, _, body = read_text(path).removesuffix("\n").partition("\n")
    if header != ",".join(columns):
        raise ValueError(f"{name}, line 1: the header must be {','.join(columns)}: got {header!r}")
    if not body:
        raise ValueError(f"{name}: no row follows the header")
    row = ",".join(f"(?:{field.pattern})" for field in columns.values())
    # One match over the whole file; possessive, so that a long file costs no memory.
    if not re.fullmatch(f"(?:{row}\n)*+{row}", body, re.ASCII):
        for line, text in enumerate(body.split("\n"), start=2):
            with located(f"{name}, line {line}"):
                _explain(text, columns)
    fields = body.replace("\n", ",").split(",")
    return [fields[i :: len(columns)] for i in range(len(columns))]


def _explain(row: str, columns: Mapping[str, Field]) -> None:
    """Raise for a row that does not fit its columns, naming the first field at fault."""
    values = row.split(",")
    if len(values) != len(columns):
        raise ValueError(f"expected {len(columns)} fields ({','.join(columns)}): got {row!r}")
    for value, (key, field) in zip(values, columns.items(), strict=True):
        if not re.fullmatch(field.pattern, value, re.ASCII):
            raise ValueError(f"{key} must be {field.rule}: got {value!r}")


def read_table(path: str | Path, columns: Mapping[str, Field]) -> dict[str, FloatArray]:
    """The columns of a CSV file of numbers."""
    table = read_csv(path, columns)
    return {key: np.array(text, np.float64) for key, text in zip(columns, table, strict=True)}


# JSON ---------------------------------------------------------------------------------------------

BLOCK = 1 << 20
"""Bytes that are read at a time."""

Fold = Callable[[str, Iterator[list[Any]]], Any]
"""Makes an array or the like of a long list that comes in pieces."""

_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(slots=True)  # not frozen: a file holds one a row, and frozen ones are slow to make
class Entry:
    """A JSON object and the words for its place; the getters check kind and sign."""

    where: str
    values: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise ValueError(f"{self.where}: key {key!r} is missing")
        return self.values[key]

    def entry(self, key: str) -> "Entry":
        """The object under `key`."""
        return entry(f"{self.where}, key {key!r}", self.get(key))

    def entries(self, key: str) -> list["Entry"]:
        """The list of objects under `key`."""
        return entries(f"{self.where}, key {key!r}", self.get(key))

    def items(self, key: str) -> list[Any]:
        """The list under `key`."""
        value = self.get(key)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {key} must be a list: got {value!r:.80}")
        return value

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {key} must be a text: got {value!r:.80}")
        return value

    def number(self, key: str) -> float:
        """The finite number >= 0 under `key`."""
        value: Any = self.values.get(key)
        if type(value) in (int, float) and 0 <= value <= LARGEST:  # a file holds millions
            return float(value)
        return float(numbers(f"{self.where}: {key}", [self.get(key)], scalar=True)[0])

    def count(self, key: str) -> int:
        """The whole number >= 0 under `key`."""
        value = self.number(key)
        if not value.is_integer():
            raise ValueError(f"{self.where}: {key} must be a whole number: got {value!r}")
        return int(self.get(key))  # not the float, which rounds nanoseconds since 1970


def numbers(name: str, values: list[Any], *, scalar: bool = False) -> FloatArray:
    """A list of finite numbers >= 0 from a file."""
    array = _floats(name, values, scalar=scalar)
    return nonnegative(name, array[0] if scalar else array).reshape(-1)


def _floats(name: str, values: list[Any], first: int = 0, *, scalar: bool = False) -> FloatArray:
    """A list of numbers from a file, of which the first is the `first` one in its list there."""
    strange = set(map(type, values)) - {int, float}
    if strange:
        at, value = next((i, v) for i, v in enumerate(values, first) if type(v) in strange)
        place = "" if scalar else f"[{at}]"
        raise ValueError(f"{name}{place} must be a number: got {value!r:.80}")
    try:
        return np.array(values, np.float64)
    except OverflowError:
        raise ValueError(f"{name} must fit a float64: got an integer beyond 1e308") from None


def column(rows: list[Entry], key: str) -> FloatArray:
    """The finite number >= 0 that every row holds under `key`."""
    try:
        return numbers(key, [row.values[key] for row in rows])
    except (KeyError, ValueError):  # once more, row by row: the error must say which
        return np.array([row.number(key) for row in rows])


def counts(rows: list[Entry], key: str) -> FloatArray:
    """The whole number >= 0 that every row holds under `key`."""
    values = column(rows, key)
    try:
        return count(key, values)
    except ValueError:  # once more, row by row: the error must say which
        for row in rows:
            count(f"{row.where}: {key}", row.number(key))
        raise


def entry(where: str, value: Any) -> Entry:
    """`value` as an Entry, if it is a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object: got {value!r:.80}")
    return Entry(where, value)


def entries(where: str, value: Any) -> list[Entry]:
    """`value` as a list of Entries, if it is a list of JSON objects."""
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list: got {value!r:.80}")
    return [entry(f"{where}[{i}]", item) for i, item in enumerate(value)]


class _Window:
    """A window that slides over the text of a file, so that the text is never held as a whole."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.where = name  # words for the place of the value being read
        self._file = file
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0
        self._line, self._counted = 1, 0  # the line at `_counted`, which trails `_at`
        self._bytes = 0
        self._done = False
        self._json = json.JSONDecoder(object_pairs_hook=_no_repeats, parse_constant=_constant)

    def _more(self) -> bool:
        """Read on and let go of what is behind; at the end of the file, False and no change."""
        if self._done:
            return False
        # As much again as is still needed: a value that does not fit is tried log(size) times.
        block = self._file.read(max(BLOCK, len(self._text) - self._at))
        self._done = not block
        held = len(self._utf8.getstate()[0])  # bytes of a character that began in the last block
        try:
            text = self._utf8.decode(block, final=self._done)
        except UnicodeDecodeError as error:
            bad = self._bytes - held + error.start
            raise ValueError(f"{self.name}: the file must be UTF-8 text: bad byte {bad}") from None
        if self._done:
            return False
        self._bytes += len(block)
        self._line += self._text.count("\n", self._counted, self._at)
        self._text, self._at, self._counted = self._text[self._at :] + text, 0, 0
        return True

    def peek(self) -> str:
        """The next character that is no white space; empty at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def step(self, wanted: str) -> bool:
        """Pass the next character if it is the one wanted."""
        found = self.peek() == wanted
        self._at += found
        return found

    def line(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def error(self, rule: str, at: int | None = None) -> ValueError:
        at = self._at if at is None else at
        line = self.line() + self._text.count("\n", self._at, at)
        return ValueError(f"{self.name}, line {line}: not valid JSON: {rule}")

    def _scan(self, text: str, at: int) -> tuple[Any, int]:
        """The value at `at` and its end; JSONDecodeError if it is wrong or goes on."""
        try:
            return self._json.raw_decode(text, at)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise ValueError(f"{self.where}: not valid JSON: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from None

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except json.JSONDecodeError as error:
                # Near the end of the window, or in a string that goes on, it may just be cut off.
                cut = error.pos > len(self._text) - 32 or error.msg.startswith("Unterminated")
                if not (cut and self._more()):
                    raise self.error(error.msg, error.pos) from None
            else:
                # A number at the end of the window may go on; "1.5e-" first reads as 1.5.
                if end + 2 < len(self._text) or not self._more():
                    self._at = end
                    return value

    def members(self, end: str) -> Iterator[None]:
        """Stop before each member of the list or object that begins here."""
        self._at += 1
        if self.step(end):
            return
        while True:
            yield
            if self.step(end):
                return
            if not self.step(","):
                raise self.error("Expecting ',' delimiter")

    def pieces(self) -> Iterator[list[Any]]:
        """The elements of the list that begins here, as many at a time as the window holds."""
        self.step("[")
        if self.step("]"):
            return
        while True:
            if self.peek() in ("", "]"):
                raise self.error("Expecting value")  # a comma, and nothing behind it
            items, closed = self._piece()
            yield items
            if closed or self.step("]"):
                return
            if not self.step(","):
                raise self.error("Expecting ',' delimiter")

    def _piece(self) -> tuple[list[Any], bool]:
        """The next elements, and whether the list has been closed behind them."""
        if len(self._text) - self._at < BLOCK // 2:
            self._more()
        text, at = self._text, self._at
        # What precedes the last comma is a list of its own, unless that comma is inside an element:
        # then a bracket or a quote is open, and the scanner refuses it.
        mark = {"[": "],", '"': '",', "{": ""}.get(text[at], ",")
        found = text.rfind(mark, at) if mark else -1
        if found >= 0:
            cut = found + len(mark) - 1
            with suppress(json.JSONDecodeError):
                items, end = self._scan(f"[{text[at:cut]}]", 0)
                closed = end < cut - at + 2  # by a bracket of the file before the one added here
                self._at = at + end - 1 if closed else cut
                return items, closed
        # One by one: elements with commas in them, and the last of a window.
        items = [self.value()]
        while self._at < len(self._text) and self.peek() == ",":
            text, at = self._text, self._at
            try:
                value, end = self._scan(text, _SPACE.match(text, at + 1).end())  # type: ignore[union-attr]
            except json.JSONDecodeError:
                break
            if end + 2 >= len(text):  # as in `value`
                break
            items.append(value)
            self._at = end
        return items, False


def read_json(
    path: str | Path, folds: Mapping[str, Fold] = MappingProxyType({})
) -> Iterator[tuple[str, Any]]:
    """The JSON values of a file, one after another, each with the words for its place.

    JSON lines, one object, and several appended objects are all the same thing here. A repeated
    key and NaN are refused; `Infinity` passes, because tools write it for an unlimited rate.

    Parameters
    ----------
    path : the file. It is read as it is asked for, a window at a time.
    folds : what to make of a long list, by its place: `a` is the list under the key a, `a[].b` the
        list under b in each element of the list a, and the empty place the list that is the whole
        value. A fold is called with the words for the place and an iterator over pieces of the
        list, and what it returns stands in the value. What is no list stays as it is.
    """
    # The place a.b[].c lies on the ways '', a, a.b, a.b[] and a.b[].c.
    cuts = re.compile(r"^|\.|\[\]|$")
    ways = {place[:at] for place in folds for cut in cuts.finditer(place) for at in cut.span()}
    path = Path(path)
    with path.open("rb") as file:
        window = _Window(file, path.name)
        if not window.peek():
            raise ValueError(f"{path.name}: the file is empty")
        while window.peek():
            window.where = f"{path.name}, line {window.line()}"
            yield window.where, _folded(window, window.where, "", "", folds, ways)


def _folded(
    window: _Window, where: str, key: str, place: str, folds: Mapping[str, Fold], ways: set[str]
) -> Any:
    """The next value, its lists folded; off the ways to a fold it is read in one go."""
    kind = window.peek() if place in ways else ""
    if kind == "[" and place in folds:
        pieces = window.pieces()
        result = folds[place](f"{where}: {key}" if key else where, pieces)
        for _ in pieces:  # what the fold left
            pass
        return result
    if key and kind:
        where = f"{where}, key {key!r}"
    if kind == "[":
        items: list[Any] = []
        for _ in window.members("]"):
            inner = f"{where}[{len(items)}]"
            items.append(_folded(window, inner, "", f"{place}[]", folds, ways))
        return items
    if kind == "{":
        values: dict[str, Any] = {}
        for _ in window.members("}"):
            if window.peek() != '"':
                raise window.error("Expecting property name enclosed in double quotes")
            name = window.value()
            if name in values:
                raise ValueError(f"{window.where}: key {name!r} appears twice")
            if not window.step(":"):
                raise window.error("Expecting ':' delimiter")
            inner = f"{place}.{name}" if place else name
            values[name] = _folded(window, where, name, inner, folds, ways)
        return values
    return window.value()


def read_one(path: str | Path, folds: Mapping[str, Fold] = MappingProxyType({})) -> tuple[str, Any]:
    """The only JSON value of a file, with the words for its place."""
    values = read_json(path, folds)
    found = next(values)
    for where, _ in values:
        raise ValueError(f"{where}: expected one JSON value in the file")
    return found


# Folds: what to make of a list that comes in pieces


def drop(where: str, pieces: Iterable[list[Any]]) -> None:
    """Nothing."""


def fold_numbers(where: str, pieces: Iterable[list[Any]]) -> FloatArray:
    """A list of finite numbers >= 0."""
    parts, size = [np.empty(0)], 0
    for piece in pieces:
        parts.append(_floats(where, piece, size))
        size += len(piece)
    return nonnegative(where, np.concatenate(parts))


def fold_signed(where: str, pieces: Iterable[list[Any]]) -> FloatArray:
    """A list of finite numbers of any sign; null is NaN."""
    parts, size = [np.empty(0)], 0
    for piece in pieces:
        parts.append(_floats(where, [np.nan if v is None else v for v in piece], size))
        size += len(piece)
    return numeric(where, np.concatenate(parts))


def fold_lists(where: str, pieces: Iterable[list[Any]]) -> tuple[FloatArray, NDArray[np.int64]]:
    """A list of lists of finite numbers >= 0: all of them flat, and the length of each list."""
    flat, lengths, size = [np.empty(0)], [np.empty(0, np.int64)], 0
    for piece in pieces:
        for i, value in enumerate(piece, size):
            if not isinstance(value, list):
                raise ValueError(f"{where}[{i}] must be a list: got {value!r:.80}")
        try:
            flat.append(numbers(where, list(chain.from_iterable(piece))))
        except ValueError:  # once more, list by list: the error must say which
            for i, value in enumerate(piece, size):
                numbers(f"{where}[{i}]", value)
            raise
        lengths.append(np.array([len(value) for value in piece], np.int64))
        size += len(piece)
    return np.concatenate(flat), np.concatenate(lengths)


def rows(where: str, pieces: Iterable[list[Any]]) -> Iterator[Entry]:
    """The objects of a list, one by one."""
    for i, value in enumerate(chain.from_iterable(pieces)):
        yield entry(f"{where}[{i}]", value)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} appears twice")
    return values


def _constant(word: str) -> float:
    if word == "Infinity":
        return float("inf")
    raise ValueError(f"{word} is not a JSON number: a missing value must be null or left out")
