"""Throughput, SLO attainment and goodput (chapter `goodput`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    FloatOrArray,
    choice,
    count,
    nonnegative,
    numeric,
    one,
    positive,
    real,
    require,
    result,
    together,
)
from lib.latency import RequestMetrics

SLACK_S = 1e-9
"""Stamps have nanosecond resolution: 0.1 s + 0.2 s meets a limit of 0.3 s."""

ONE_TOKEN = ("pass", "fail", "skip")
FAILURES = ("miss", "leave_out")


def request_throughput(num_completed: ArrayLike, total_time: ArrayLike) -> FloatOrArray:
    """Completed requests per second, N / T (eq-request-throughput).

    Parameters
    ----------
    num_completed : requests that succeeded, >= 0.
    total_time : length of the window (s) > 0.

    Returns
    -------
    Requests per second.

    Raises
    ------
    ValueError : a count is negative or not whole, or the time is not positive and finite.

    Source: the seed, section 2.1.
    """
    completed = count("num_completed", num_completed)
    time = positive("total_time", total_time)
    together(num_completed=completed, total_time=time)
    return result("request_throughput", completed / time)


def token_throughput(output_tokens: ArrayLike, total_time: ArrayLike) -> FloatOrArray:
    """Output tokens per second, sum of N_out / T (eq-token-throughput).

    Parameters
    ----------
    output_tokens : N_out of every completed request, or their total.
    total_time : length of the window (s) > 0.

    Returns
    -------
    Tokens per second.

    Raises
    ------
    ValueError : a count is negative or not whole, or the time is not positive and finite.

    Source: the seed, section 2.1.
    """
    tokens = count("output_tokens", output_tokens)
    time = positive("total_time", total_time)
    return result("token_throughput", tokens.sum() / time)


def wilson_interval(
    good: ArrayLike, total: ArrayLike, confidence: float = 0.95
) -> tuple[FloatOrArray, FloatOrArray]:
    """Wilson's score interval for a share good / total (eq-wilson).

    Parameters
    ----------
    good, total : counts with 0 <= good <= total and total >= 1.
    confidence : coverage, between 0 and 1.

    Returns
    -------
    (low, high), both within [0, 1]; wide even at good = 0 or good = total.

    Raises
    ------
    ValueError : counts out of range, or confidence not strictly between 0 and 1.

    Source: Wilson, JASA 22 (1927) 209-212; Brown, Cai, DasGupta, Stat. Sci. 16 (2001) 101-133.
    """
    g, n = count("good", good), count("total", total, minimum=1)
    together(good=g, total=n)
    g, n = np.broadcast_arrays(g, n)
    require("good", g, g <= n, "<= total")
    level = one("confidence", real("confidence", confidence))
    if not 0 < level < 1:
        raise ValueError(f"confidence must be between 0 and 1, both left out: got {level:.12g}")
    z = -NormalDist().inv_cdf((1 - level) / 2)
    share = g / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = np.where(g == 0, 0.0, np.maximum(centre - half, 0.0))
    high = np.where(g == n, 1.0, np.minimum(centre + half, 1.0))
    return result("low", low), result("high", high)


def meets_slo(
    metrics: RequestMetrics | Iterable[RequestMetrics],
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    *,
    one_token: str = "pass",
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which requests meet every limit given, the indicator I_i (eq-attainment).

    Parameters
    ----------
    metrics : completed requests, as an iterable of RequestMetrics or as one with array fields.
    ttft_slo, tpot_slo, e2e_slo : limits (s, s per token, s); None leaves one out. A request
        meets a limit when its value is <= the limit, with 1 ns of slack.
    one_token : what a one-token answer means for `tpot_slo`. It has no gap, so "pass" (the
        default: no user waits for a second token; vLLM and SGLang), "fail" (AIPerf,
        inference-perf) or "skip", which leaves it out of the count (GuideLLM).

    Returns
    -------
    (good, judged), each bool, one value a request; a skipped one is neither.

    Raises
    ------
    ValueError : no limit; a limit that is not > 0; a metric that is negative or missing; an
        unknown rule.
    TypeError : `metrics` holds something else than RequestMetrics.

    Source: the seed, section 2.2.
    """
    choice("one_token", one_token, ONE_TOKEN)
    given = {"ttft": ttft_slo, "tpot": tpot_slo, "e2e": e2e_slo}
    limits = {
        name: one(f"{name}_slo", positive(f"{name}_slo", limit))
        for name, limit in given.items()
        if limit is not None
    }
    if not limits:
        raise ValueError("ttft_slo, tpot_slo or e2e_slo must be given: no limit")
    columns = _columns(metrics)
    judged = np.full(columns["output_tokens"].size, True)
    good = judged.copy()
    single = columns["output_tokens"] == 1
    for name, limit in limits.items():
        within = columns["e2e_latency" if name == "e2e" else name] <= limit + SLACK_S
        if name == "tpot":
            within = np.where(single, one_token != "fail", within)
            judged &= ~single | (one_token != "skip")
        good &= within
    return good & judged, judged


@dataclass(frozen=True)
class Attainment:
    """How many of the judged requests meet the SLO, and how sure the sample makes us."""

    good: int
    judged: int
    ratio: float
    low: float
    high: float
    confidence: float


def attainment(
    metrics: RequestMetrics | Iterable[RequestMetrics],
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    *,
    one_token: str = "pass",
    failed: int = 0,
    failures: str = "miss",
    confidence: float = 0.95,
) -> Attainment:
    """SLO attainment, the share of requests that meet every limit given (eq-attainment).

    Parameters
    ----------
    metrics, ttft_slo, tpot_slo, e2e_slo, one_token : as `meets_slo`.
    failed : requests that got no answer, beside those in `metrics`.
    failures : "miss" counts them as judged and not good (the default: a user who gets an error
        was not served in time; SGLang, AIPerf, GuideLLM), "leave_out" does not (inference-perf).
    confidence : coverage of the Wilson interval.

    Returns
    -------
    Attainment; with no request judged, ratio 0 and interval (0, 1): nothing is known.

    Raises
    ------
    ValueError, TypeError : as `meets_slo`; an unknown rule, a bad count or confidence.

    Source: the seed, section 2.2; Zhong et al., DistServe (OSDI 2024), section 2.
    """
    choice("failures", failures, FAILURES)
    lost = int(one("failed", count("failed", failed)))
    good, judged = meets_slo(metrics, ttft_slo, tpot_slo, e2e_slo, one_token=one_token)
    total = int(judged.sum()) + (lost if failures == "miss" else 0)
    hits = int(good.sum())
    low, high = wilson_interval(hits, max(total, 1), confidence)
    if not total:
        high = 1.0  # no request, no knowledge
    return Attainment(
        good=hits,
        judged=total,
        ratio=hits / total if total else 0.0,
        low=float(low),
        high=float(high),
        confidence=float(confidence),
    )


def goodput_ratio(
    metrics: RequestMetrics | Iterable[RequestMetrics],
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    *,
    one_token: str = "pass",
    failed: int = 0,
    failures: str = "miss",
) -> float:
    """SLO attainment as a plain number (eq-attainment).

    Parameters
    ----------
    metrics, ttft_slo, tpot_slo, e2e_slo, one_token, failed, failures : as `attainment`.

    Returns
    -------
    `attainment(...).ratio`; 0 with no request judged.

    Raises
    ------
    ValueError, TypeError : as `attainment`.

    Source: the seed, section 2.2.
    """
    return attainment(
        metrics,
        ttft_slo,
        tpot_slo,
        e2e_slo,
        one_token=one_token,
        failed=failed,
        failures=failures,
    ).ratio


def goodput(
    metrics: RequestMetrics | Iterable[RequestMetrics],
    total_time: float,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    *,
    one_token: str = "pass",
    failed: int = 0,
    failures: str = "miss",
) -> float:
    """Goodput = request throughput x SLO attainment (eq-goodput).

    Parameters
    ----------
    metrics, ttft_slo, tpot_slo, e2e_slo, one_token, failed, failures : as `attainment`.
    total_time : length of the window (s) > 0.

    Returns
    -------
    Good requests per second. The throughput is that of the judged requests, so the product is
    good / total_time under either rule for failures.

    Raises
    ------
    ValueError, TypeError : as `attainment` and `request_throughput`.

    Source: the seed, section 2.2.
    """
    window = one("total_time", positive("total_time", total_time))
    share = attainment(
        metrics,
        ttft_slo,
        tpot_slo,
        e2e_slo,
        one_token=one_token,
        failed=failed,
        failures=failures,
    )
    return float(request_throughput(share.judged, window)) * share.ratio


def _columns(metrics: RequestMetrics | Iterable[RequestMetrics]) -> dict[str, FloatArray]:
    """The metrics' numbers as one-dimensional arrays of one length."""
    try:
        each = iter([metrics] if isinstance(metrics, RequestMetrics) else metrics)
    except TypeError:
        raise TypeError(
            f"metrics must be RequestMetrics or an iterable of them: got {metrics!r:.80}"
        ) from None
    rows = list(each)
    for row in rows:
        if not isinstance(row, RequestMetrics):
            raise TypeError(f"metrics must hold RequestMetrics: got {row!r:.80}")

    def column(name: str) -> Any:  # one record may hold whole arrays, and scalars that fit all
        fields = [getattr(row, name) for row in rows]
        return fields[0] if len(fields) == 1 else fields

    tokens = count("output_tokens", column("output_tokens"), minimum=1)
    gaps = numeric("tpot", column("tpot"))
    together(output_tokens=tokens, tpot=gaps)
    columns = {
        "output_tokens": tokens,
        "ttft": nonnegative("ttft", column("ttft")),
        # A one-token answer has no TPOT: 0 and missing are the same here.
        "tpot": nonnegative("tpot", np.where(tokens == 1, 0.0, gaps)),
        "e2e_latency": nonnegative("e2e_latency", column("e2e_latency")),
    }
    together(**columns)
    for name, values in columns.items():
        if values.ndim > 1:
            raise ValueError(f"{name} must be one value a request: got shape {values.shape}")
    return dict(zip(columns, map(np.ravel, np.broadcast_arrays(*columns.values())), strict=True))
