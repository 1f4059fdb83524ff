"""Reading data files strictly: every error names the file, the line or key, and the rule."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib._validate import FloatArray, count, nonnegative

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
        return float(numbers(f"{self.where}: {key}", [self.get(key)], scalar=True)[0])

    def count(self, key: str) -> int:
        """The whole number >= 0 under `key`."""
        value = self.number(key)
        if not value.is_integer():
            raise ValueError(f"{self.where}: {key} must be a whole number: got {value!r}")
        return int(self.get(key))  # not the float, which rounds nanoseconds since 1970


def numbers(name: str, values: list[Any], *, scalar: bool = False) -> FloatArray:
    """A list of finite numbers >= 0 from a file."""
    strange = set(map(type, values)) - {int, float}
    if strange:
        at, value = next((i, v) for i, v in enumerate(values) if type(v) in strange)
        place = "" if scalar else f"[{at}]"
        raise ValueError(f"{name}{place} must be a number: got {value!r:.80}")
    try:
        array = np.array(values, np.float64)
    except OverflowError:
        raise ValueError(f"{name} must fit a float64: got an integer beyond 1e308") from None
    return nonnegative(name, array[0] if scalar else array).reshape(-1)


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


def read_json(path: str | Path) -> list[tuple[str, Any]]:
    """The JSON values of a file, one after another, each with the words for its place.

    JSON lines, one object, and several appended objects are all the same thing here. A repeated
    key and NaN are refused; `Infinity` passes, because tools write it for an unlimited rate.
    """
    name, text = Path(path).name, read_text(path)
    decoder = json.JSONDecoder(object_pairs_hook=_no_repeats, parse_constant=_constant)
    space = re.compile(r"\s*")
    values: list[tuple[str, Any]] = []
    line, at = 1, 0
    while True:
        start = space.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", at, start)
        if start == len(text):
            return values
        where = f"{name}, line {line}"
        try:
            value, at = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}, line {error.lineno}: not valid JSON: {error.msg}") from None
        except RecursionError:
            raise ValueError(f"{where}: not valid JSON: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        values.append((where, value))
        line += text.count("\n", start, at)


def read_one(path: str | Path) -> tuple[str, Any]:
    """The only JSON value of a file, with the words for its place."""
    found, *more = read_json(path)
    if more:
        raise ValueError(f"{more[0][0]}: expected one JSON value in the file")
    return found


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
