"""Percentiles that say how they are computed and whether the sample can carry them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import choice, count, one, percentage, real

METHODS = ("linear", "nearest_rank")


@dataclass(frozen=True)
class Percentile:
    """One percentile with the facts that it rests on.

    `beyond` is n (1 - q/100), the number of values expected above it. Below 1 the sample is too
    small: the value is an extreme of the sample, and `str` says so.
    """

    q: float
    value: float
    method: str
    n: int
    beyond: float

    @property
    def supported(self) -> bool:
        """True when at least one value is expected beyond the percentile."""
        return self.beyond >= 1

    def __str__(self) -> str:
        label = f"p{self.q:g} = {self.value:.4g} ({self.method}, n = {self.n}"
        if self.supported:
            return label + ")"
        return label + f": too few, {self.beyond:.2g} of them lie beyond)"


def percentile(values: ArrayLike, q: float, method: str = "linear", failed: int = 0) -> Percentile:
    """The q-th percentile, "linear" (eq-percentile-linear) or "nearest_rank" (eq-percentile-rank).

    Parameters
    ----------
    values : (n,) the sample, any unit; a missing value is refused, drop and count it first.
    q : percentage, 1 <= q < 100: 99 for p99.
    method : "linear" interpolates at rank 1 + (n - 1) q/100, the default of NumPy and of most
        load tools. "nearest_rank" is the ceil(n q/100)-th smallest value, in exact arithmetic.
    failed : requests without a value, which rank above every value (nearest_rank only).

    Returns
    -------
    Percentile, in the unit of `values`; infinite where it falls among the failed requests.

    Raises
    ------
    ValueError : empty or not one-dimensional values, a value that is NaN or infinite, q out of
        range (0.99 is not p99), an unknown method, failures with "linear".

    Source: Hyndman and Fan, Am. Stat. 50 (1996) 361-365, definitions 7 and 1.
    """
    choice("method", method, METHODS)
    sample = real("values", values)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError(f"values must be a non-empty list: got shape {sample.shape}")
    rank_at = percentage("q", q)
    lost = int(one("failed", count("failed", failed)))
    if lost and method == "linear":
        raise ValueError(
            f"failed must be 0 with method 'linear', which cannot interpolate to infinity: "
            f"got {lost}; use 'nearest_rank'"
        )
    n = sample.size + lost
    share = Fraction(str(one("q", rank_at))) / 100  # exact: 0.07 * 100 > 7 in floats
    if method == "linear":
        value = float(np.quantile(sample, float(share)))
    else:
        rank = -(-n * share.numerator // share.denominator)
        value = float(np.sort(sample)[rank - 1]) if rank <= sample.size else float("inf")
    return Percentile(float(q), value, method, n, float(n * (1 - share)))
