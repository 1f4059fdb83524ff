"""Percentiles that say how they are computed and whether the sample can carry them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    choice,
    count,
    nonnegative,
    one,
    percentage,
    positive,
    real,
    require,
)

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


@dataclass(frozen=True)
class BucketPercentile:
    """One percentile of a histogram: where it lies for certain, and what dashboards print.

    The percentile (nearest rank) is above `low` and at most `high`. `interpolated` assumes values
    spread evenly over the bucket; in the last bucket, which has no upper edge, it is `low`.
    """

    q: float
    low: float
    high: float
    interpolated: float

    @property
    def bounded(self) -> bool:
        """True when the bucket has both edges; the first one begins at nothing better than 0."""
        return self.low > 0 and self.high < float("inf")


@dataclass(frozen=True, eq=False)
class Histogram:
    """Values that a server counted into buckets: what a metrics endpoint exposes.

    Parameters
    ----------
    edges : (k,) upper edges ("le") in rising order, k >= 2, above 0, the last one infinite.
    cumulative : (k,) values at or below each edge, in all at least one. Counters run since the
        server started: pass the difference of two scrapes. Replicas add up, edge by edge; their
        percentiles do not.
    total : sum of the values, in the unit of the edges.

    Raises
    ------
    TypeError : edges or counts are no numbers.
    ValueError : lengths differ, edges do not rise or do not end at infinity, counts are not
        whole, fall from one edge to the next (not cumulated, or reset between two scrapes), or
        are all 0; a total that values in these buckets cannot have (another unit?).

    Source: Prometheus documentation, Histograms and summaries; `histogram_quantile`.
    """

    edges: FloatArray
    cumulative: FloatArray
    total: float

    def __post_init__(self) -> None:
        edges, seen = np.asarray(self.edges), count("cumulative", self.cumulative)
        if edges.dtype.kind not in "iuf":
            raise TypeError(f"edges must be real numbers: got {self.edges!r:.80}")
        if edges.ndim != 1 or edges.shape != seen.shape or edges.size < 2:
            raise ValueError(
                "edges and cumulative must be two lists of one length >= 2: "
                f"got shapes {edges.shape} and {seen.shape}"
            )
        if edges[-1] != float("inf"):
            raise ValueError(f"edges must end at infinity: got {edges[-1]:.12g}")
        positive("edges", edges[:-1])
        require("edges", edges[1:], np.diff(edges) > 0, "above the edge before it")
        require("cumulative", seen[1:], np.diff(seen) >= 0, ">= the count before it")
        require("cumulative", seen[-1], seen[-1] >= 1, "in all at least 1")
        total = one("total", nonnegative("total", self.total))
        inside = np.diff(seen, prepend=0)
        low, used = np.append(0, edges[:-1]), inside > 0
        least, most = (inside[used] @ edge[used] for edge in (low, edges))
        if not least * (1 - 1e-9) <= total <= most * (1 + 1e-9):  # the sum is a sum of floats
            raise ValueError(
                f"total must be the sum of values in these buckets, from {least:.6g} to "
                f"{most:.6g}: got {total:.6g} (another unit?)"
            )
        for name, value in (
            ("edges", edges.astype(np.float64)),
            ("cumulative", seen),
            ("total", total),
        ):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """How many values were counted."""
        return int(self.cumulative[-1])

    @property
    def mean(self) -> float:
        """The mean, total / n: exact, whatever the buckets are."""
        return self.total / self.n

    def percentile(self, q: float) -> BucketPercentile:
        """The bucket of the q-th percentile, 1 <= q < 100.

        Raises
        ------
        ValueError : q out of range (0.99 is not p99).
        """
        share = Fraction(str(one("q", percentage("q", q)))) / 100
        rank = self.n * share
        at = int(np.argmax(self.cumulative >= -(-rank.numerator // rank.denominator)))
        below = float(self.cumulative[at - 1]) if at else 0.0
        low, high = float(self.edges[at - 1]) if at else 0.0, float(self.edges[at])
        part = (float(rank) - below) / (float(self.cumulative[at]) - below)
        value = low + (high - low) * part if high < float("inf") else low
        return BucketPercentile(float(q), low, high, value)
