"""Columns that grow a row at a time, for readers that see one request after another."""

from array import array
from collections.abc import Iterable
from math import nan

import numpy as np
from numpy.typing import NDArray

from lib._validate import FloatArray


class Columns:
    """Named columns of floats, 8 bytes a value, however many rows come.

    Parameters
    ----------
    names : of the columns; `add` fills each with one value, `columns[name]` is (n,).
    """

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("d") for name in names}
        self._flat = {name: array("d") for name in ("gaps", "chunk_tokens")}

    def add(self, **row: float) -> None:
        """One more row; a column that it does not name is missing (NaN)."""
        for name, column in self._columns.items():
            column.append(row.get(name, nan))

    def extend(self, name: str, values: Iterable[float]) -> None:
        """More values of the flat list "gaps" or "chunk_tokens"."""
        self._flat[name].extend(values)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> FloatArray:
        return np.array(self._columns[name], np.float64)

    def flat(self, name: str) -> FloatArray:
        return np.array(self._flat[name], np.float64)

    def given(self, name: str) -> FloatArray | None:
        """The column, or None where no row has a value."""
        values = self[name]
        return None if np.isnan(values).all() else values

    def counts(self, name: str) -> NDArray[np.int64]:
        """A column of whole numbers that no row lacks."""
        return self[name].astype(np.int64)
