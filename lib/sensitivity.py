"""How far the inputs of a calculation move its result: draws, intervals, a tornado (chapter
`cost`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import count, of_kind, one, real


def resample(n: int, generator: np.random.Generator, block: int = 1) -> NDArray[np.int64]:
    """Indices of a sample of n rows drawn from n rows in order, in blocks (eq-cost-bootstrap).

    Parameters
    ----------
    n : rows, >= 1.
    generator : source of chance.
    block : rows a block, 1 to n. Neighbours in a trace are alike; drawn one by one they would
        look independent, and a mean more certain than it is.

    Returns
    -------
    (n,) indices: blocks that start anywhere, one after the other, the last one cut. A block that
    passes the end goes on at the beginning, so that every row is equally likely.

    Raises
    ------
    TypeError : `generator` is no numpy Generator, a count is no number.
    ValueError : n or block is below 1 or not whole, or block is above n.

    Source: Künsch (Annals of Statistics 1989); the circle: Politis and Romano, A Circular
    Block-Resampling Procedure for Stationary Data (1992).
    """
    of_kind("generator", generator, np.random.Generator)
    rows = int(one("n", count("n", n, minimum=1)))
    length = int(one("block", count("block", block, minimum=1)))
    if length > rows:
        raise ValueError(f"block must be <= n: got {length} > {rows}")
    starts = generator.integers(rows, size=-(-rows // length))
    return ((starts[:, None] + np.arange(length)).ravel()[:rows]) % rows


def interval(draws: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of draws: equal shares lie below and above it.

    Parameters
    ----------
    draws : (n,) values, n >= 2.
    confidence : share inside, between 0 and 1.

    Returns
    -------
    (low, high), interpolated between neighbours.

    Raises
    ------
    ValueError : fewer than two draws, one that is NaN or infinite, confidence out of range.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993).
    """
    values = real("draws", draws)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"draws must be a list of two or more: got shape {values.shape}")
    level = one("confidence", real("confidence", confidence))
    if not 0 < level < 1:
        raise ValueError(f"confidence must be between 0 and 1, both left out: got {level:.12g}")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Swing:
    """How far one input alone moves the result: its `name`, and the interval of the result."""

    name: str
    low: float
    high: float

    @property
    def size(self) -> float:
        """high - low."""
        return self.high - self.low


def tornado(
    function: Callable[..., float],
    base: Mapping[str, Any],
    draws: Mapping[str, Sequence[Any]],
    confidence: float = 0.95,
) -> tuple[Swing, ...]:
    """Let one input vary at a time, the others at their base (eq-cost-swing).

    Parameters
    ----------
    function : called with keyword arguments, returns the result, a number.
    base : every argument and its value.
    draws : for each argument that varies, two or more values, equally likely.
    confidence : as `interval`, of the results.

    Returns
    -------
    A `Swing` each, the largest first; equals in the order of `draws`. What inputs do together
    does not show: for that, draw them all at once.

    Raises
    ------
    ValueError : no draws, or of an argument that `base` lacks; as `interval`, of the results.
    TypeError : a result is no number; an argument that `function` does not take.
    """
    if not callable(function):
        raise TypeError(f"function must be callable: got {function!r:.80}")
    for kind, mapping in (("base", base), ("draws", draws)):
        if not isinstance(mapping, Mapping):
            raise TypeError(f"{kind} must be a mapping: got {mapping!r:.80}")
    if not draws:
        raise ValueError("draws must hold an input that varies: got none")
    swings = []
    for name, values in draws.items():
        if name not in base:
            raise ValueError(f"draws must name arguments of base: got {name!r}")
        results = [function(**{**base, name: value}) for value in values]
        real(f"results over {name}", results)
        swings.append(Swing(name, *interval(results, confidence)))
    return tuple(sorted(swings, key=lambda swing: -swing.size))
