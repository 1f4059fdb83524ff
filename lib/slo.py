"""What a service level objective allows: error budgets and admission (chapter `slo`).

The way back from an SLO to a service rate or an arrival rate is the queue's: see `required_...` and
`admissible_...` in `mm1` and `erlang_c`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatOrArray,
    count,
    nonnegative,
    one,
    positive,
    real,
    require,
    result,
    together,
)

SLACK = 1e-9
"""Share of the burst that a request may lack: three gaps of 0.1 s, summed in floats, fill a little
less than 0.3 s do. The debt stays in the bucket, so it does not add up."""


def attainment_bound(targets: ArrayLike) -> float:
    """The share of requests that surely keep all their limits, 1 - sum of (1 - A_i) (eq-slo-union).

    Who keeps each limit keeps their sum too, so it also bounds the attainment of a sum of parts
    from below, at the sum of the parts' limits. Nothing is assumed about how the parts depend.

    Parameters
    ----------
    targets : (n,) A_i, the share of requests that keep limit i, 0 to 1.

    Returns
    -------
    A lower bound, 0 or more. Without independence there is none better.

    Raises
    ------
    ValueError : no target, a table of them, or one that is NaN or not in [0, 1].
    TypeError : a target is no number.

    Source: Boole's inequality.
    """
    shares = real("targets", targets)
    if shares.ndim != 1 or shares.size == 0:
        raise ValueError(f"targets must be a non-empty list: got shape {shares.shape}")
    require("targets", shares, (shares >= 0) & (shares <= 1), "a share in [0, 1]: 0.99 for 99 %")
    return max(0.0, 1.0 - float(np.sum(1 - shares)))


def error_budget(target: ArrayLike, total: ArrayLike) -> FloatOrArray:
    """Misses that an SLO allows among `total` requests, (1 - A*) n (eq-slo-budget).

    Parameters
    ----------
    target : A*, the attainment that is promised, 0 < A* < 1: 0.99 for 99 %.
    total : n >= 0 requests in the window.

    Returns
    -------
    Requests; not rounded.

    Raises
    ------
    ValueError : a target out of range (99 is not 0.99), a count that is negative or not whole.

    Source: Beyer et al., Site Reliability Engineering (2016), chapter 3.
    """
    promised = real("target", target)
    require("target", promised, (promised > 0) & (promised < 1), "between 0 and 1: 0.99 for 99 %")
    n = count("total", total)
    together(target=promised, total=n)
    # 0.9 of 120 is 108, but 1 - 0.9 of 120 is less than 12 in floats.
    return result("error_budget", n - promised * n)


def burn_rate(missed: ArrayLike, total: ArrayLike, target: ArrayLike) -> FloatOrArray:
    """How fast the error budget goes: misses over allowed misses, (k/n) / (1 - A*) (eq-slo-burn).

    Parameters
    ----------
    missed : k, requests that missed the SLO, 0 <= k <= n.
    total : n >= 1 requests judged.
    target : as `error_budget`.

    Returns
    -------
    1 spends the budget of a window in just that window; b spends it in 1/b of it.

    Raises
    ------
    ValueError : as `error_budget`; no request; more misses than requests.

    Source: The Site Reliability Workbook (2018), chapter 5, Alerting on SLOs: alert on burn rate.
    """
    k, n = count("missed", missed), count("total", total, minimum=1)
    together(missed=k, total=n, target=real("target", target))
    k, n = np.broadcast_arrays(k, n)
    require("missed", k, k <= n, "<= total")
    return result("burn_rate", k / error_budget(target, n))


def token_bucket(
    arrival: ArrayLike, rate: float, burst: float, cost: ArrayLike = 1.0
) -> NDArray[np.bool_]:
    """Who is admitted by a token bucket (eq-slo-bucket).

    The bucket is full at the first arrival. Between arrivals tokens = min(tokens + rate dt, burst);
    a request whose cost is there takes it and is admitted, any other is refused and takes nothing.
    What is admitted in any window of length w costs at most burst + rate w.

    Parameters
    ----------
    arrival : (n,) arrivals (s), in order.
    rate : tokens/s > 0.
    burst : tokens that the bucket holds > 0. Who costs more is never admitted.
    cost : (n,) or one number >= 0 (tokens): 1 counts requests.

    Returns
    -------
    (n,) bool. O(n): each verdict depends on those before it.

    Raises
    ------
    ValueError : no arrival, or more than one run; arrivals out of order; lengths that differ; a
        rate, burst or cost that is NaN, infinite or out of range.
    TypeError : an argument of another kind.

    Source: the seed; for the bound Cruz, IEEE Trans. Inf. Theory 37 (1991) 114-131.
    """
    came = real("arrival", arrival)
    if came.ndim != 1 or came.size == 0:
        raise ValueError(f"arrival must be a non-empty list: got shape {came.shape}")
    require("arrival", came, np.diff(came, prepend=came[:1]) >= 0, "in order of time")
    fill, most = one("rate", positive("rate", rate)), one("burst", positive("burst", burst))
    price = nonnegative("cost", cost)
    if price.ndim and price.shape != came.shape:
        raise ValueError(f"lengths must match: got arrival {came.shape}, cost {price.shape}")
    prices = np.broadcast_to(price, came.shape).tolist()
    tokens, before, verdicts = most, float(came[0]), []
    for now, wanted in zip(came.tolist(), prices, strict=True):
        tokens = min(tokens + fill * (now - before), most)
        before = now
        admit = wanted <= tokens + SLACK * most
        tokens -= wanted * admit
        verdicts.append(admit)
    return np.array(verdicts)
