"""One server, Poisson arrivals, any service time: the M/G/1 queue (chapter `mg1`).

Exact: both means and the externality, for any service time with a finite variance, and the bounds
on the tail. An approximation: the exponential tail, as the function's name says. Kingman's bound
drops the Poisson arrivals. All of it assumes one request at a time, FCFS, unlimited room,
independent arrivals and service times, and the long run. The service time is the demand D of the
chapter `demand`.
"""

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    nonnegative,
    one,
    percentage,
    positive,
    require,
    result,
    together,
)

MOST_STEPS = 100_000
"""The recursion of `mg1_wait_tail_bounds` takes time that grows as the square of its steps."""


def mg1_queue_wait(
    arrival_rate: ArrayLike, mean_service_time: ArrayLike, service_time_cv: ArrayLike = 1.0
) -> FloatOrArray:
    """Mean wait, W_q = rho E[D] (1 + CV^2) / (2 (1 - rho)), Pollaczek-Khinchine (eq-mg1-wait).

    Exact. Only the mean and the variance of the service time enter, not its shape. It is
    lambda E[D^2] / (2 (1 - rho)), since E[D^2] = E[D]^2 (1 + CV^2).

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    mean_service_time : E[D] > 0 (s); rho = lambda E[D].
    service_time_cv : CV >= 0, standard deviation of D over its mean: 0 for a constant, 1 for an
        exponential.

    Returns
    -------
    Seconds from arrival to the start of service.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, or rho >= 1 (unstable).

    Source: the seed; Kleinrock, Queueing Systems, vol. 1 (1975), chapter 5; Harchol-Balter,
    Performance Modeling and Design of Computer Systems (2013), chapter 23.
    """
    arrivals, mean, cv = _queue(arrival_rate, mean_service_time, service_time_cv)
    rho = arrivals * mean
    return result("mg1_queue_wait", rho * mean * (1 + cv**2) / (2 * (1 - rho)))


def mg1_response_time(
    arrival_rate: ArrayLike, mean_service_time: ArrayLike, service_time_cv: ArrayLike = 1.0
) -> FloatOrArray:
    """Mean response, W = W_q + E[D] (eq-mg1-response). Exact.

    Parameters
    ----------
    arrival_rate, mean_service_time, service_time_cv : as `mg1_queue_wait`.

    Returns
    -------
    Seconds from arrival to the end of service.

    Raises
    ------
    ValueError : as `mg1_queue_wait`.

    Source: as `mg1_queue_wait`.
    """
    arrivals, mean, cv = _queue(arrival_rate, mean_service_time, service_time_cv)
    return result("mg1_response_time", mg1_queue_wait(arrivals, mean, cv) + mean)


def mg1_externality(
    arrival_rate: ArrayLike,
    mean_service_time: ArrayLike,
    service_time_cv: ArrayLike,
    extra_service_time: ArrayLike,
) -> FloatOrArray:
    """Waiting that one more request adds to all others, lambda (x W_q + x^2 / 2) / (1 - rho)
    (eq-mg1-externality). Exact, a mean.

    Parameters
    ----------
    arrival_rate, mean_service_time, service_time_cv : as `mg1_queue_wait`, without that request.
    extra_service_time : x >= 0, its service time (s). It comes at a moment that does not depend
        on the queue, and like all others it is served in its turn.

    Returns
    -------
    Seconds, summed over all requests that come after it.

    Raises
    ------
    ValueError : as `mg1_queue_wait`; x is negative, NaN or infinite.

    Source: derived in the chapter; Haviv and Ritov, Externalities, Tangible Externalities, and
    Queue Disciplines (Management Science 44, 1998, 850-858), for the idea.
    """
    extra = nonnegative("extra_service_time", extra_service_time)
    arrivals, mean, cv = _queue(
        arrival_rate, mean_service_time, service_time_cv, extra_service_time=extra
    )
    wait = mg1_queue_wait(arrivals, mean, cv)
    added = arrivals * extra * (wait + extra / 2) / (1 - arrivals * mean)
    return result("mg1_externality", added)


def mg1_wait_tail_approximation(
    arrival_rate: ArrayLike,
    mean_service_time: ArrayLike,
    service_time_cv: ArrayLike,
    time: ArrayLike,
) -> FloatOrArray:
    """Pr[W_queue > t] ~ rho e^{-rho t / W_q} (eq-mg1-tail-approximation). An approximation.

    The share that waits, rho, and the mean, W_q, are exact. That the waits of those who wait are
    exponential is exact for exponential service, and in the limit rho -> 1. Elsewhere it errs on
    either side. `mg1_wait_tail_bounds` needs no such assumption.

    Parameters
    ----------
    arrival_rate, mean_service_time, service_time_cv : as `mg1_queue_wait`.
    time : t >= 0 (s).

    Returns
    -------
    The approximate probability that a request waits longer than t.

    Raises
    ------
    ValueError : as `mg1_queue_wait`; t is negative, NaN or infinite.

    Source: Kingman, The single server queue in heavy traffic (Math. Proc. Cambridge 57, 1961).
    """
    t = nonnegative("time", time)
    arrivals, mean, cv = _queue(arrival_rate, mean_service_time, service_time_cv, time=t)
    rho = arrivals * mean
    tail = rho * np.exp(-t * (rho / mg1_queue_wait(arrivals, mean, cv)))
    return result("mg1_wait_tail_approximation", tail)


def mg1_wait_percentile_approximation(
    arrival_rate: ArrayLike,
    mean_service_time: ArrayLike,
    service_time_cv: ArrayLike,
    q: ArrayLike,
) -> FloatOrArray:
    """max(0, ln(rho / p) W_q / rho), p = 1 - q/100 (eq-mg1-percentile-approximation).

    An approximation: the t at which `mg1_wait_tail_approximation` is p.

    Parameters
    ----------
    arrival_rate, mean_service_time, service_time_cv : as `mg1_queue_wait`.
    q : percentage, 1 <= q < 100: 99 for P99.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : as `mg1_queue_wait`; q is out of range (0.99 is not P99).

    Source: as `mg1_wait_tail_approximation`.
    """
    percent = percentage("q", q)
    arrivals, mean, cv = _queue(arrival_rate, mean_service_time, service_time_cv, q=percent)
    rho = arrivals * mean
    wait = np.log(rho / ((100 - percent) / 100)) * (mg1_queue_wait(arrivals, mean, cv) / rho)
    return result("mg1_wait_percentile_approximation", np.maximum(wait, 0.0))


def mg1_wait_tail_bounds(
    arrival_rate: float, service_times: ArrayLike, time: ArrayLike, step: float
) -> tuple[FloatOrArray, FloatOrArray]:
    """Two numbers with Pr[W_queue > t] between them, for the service times given (eq-mg1-tail).

    The wait is a sum of N residual service times, N geometric: Pr[N = n] = (1 - rho) rho^n. Each
    residual is rounded down, then up, to a multiple of `step`, and Panjer's recursion adds them
    up: the first sum is never above the wait, the second never below. Half the step, and the
    bounds come about twice as close.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_times : (n,) sample of D, each as likely as the other (s) > 0.
    time : t >= 0 (s), a number or an array.
    step : width of the grid (s) > 0; the largest t is at most 100,000 steps.

    Returns
    -------
    (low, high), each in the shape of `time`. Rounding leaves about 1e-13 in either.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, no service time, rho >= 1
        (unstable), or too many steps.
    TypeError : the rate or the step is an array.

    Source: Kleinrock, Queueing Systems, vol. 1 (1975), chapter 5, for the geometric sum; Panjer,
    Recursive Evaluation of a Family of Compound Distributions (ASTIN Bulletin 12, 1981).
    """
    arrivals = positive("arrival_rate", arrival_rate)
    one("arrival_rate", arrivals)
    width = one("step", positive("step", step))
    sample = positive("service_times", service_times)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError(f"service_times must be a non-empty list: got shape {sample.shape}")
    t = nonnegative("time", time)
    require("time", t, t / width <= MOST_STEPS, f"at most {MOST_STEPS:,} steps of {width:.6g} s")
    mean = sample.mean()
    _require_stable(arrivals, mean)
    rho = float(arrivals * mean)
    last = np.floor(t / width).astype(np.int64)  # the last grid point at or before t
    edges = width * np.arange(int(last.max(initial=0)) + 2)
    # Of a residual: Pr[<= x] = E[min(D, x)] / E[D], the share of service time that is of age < x.
    ranked = np.sort(sample)
    below = np.searchsorted(ranked, edges, side="right")
    totals = np.concatenate([[0.0], np.cumsum(ranked)])
    residual = (totals[below] + edges * (sample.size - below)) / totals[-1]
    pieces = np.diff(residual)
    low = 1 - np.cumsum(_geometric_sum(rho, pieces))[last]
    high = 1 - np.cumsum(_geometric_sum(rho, np.concatenate([[0.0], pieces[:-1]])))[last]
    return (
        result("low", np.clip(low, 0.0, rho)),
        result("high", np.clip(high, 0.0, rho)),
    )


def kingman_wait_bound(
    arrival_rate: ArrayLike,
    mean_service_time: ArrayLike,
    interarrival_cv: ArrayLike,
    service_time_cv: ArrayLike,
) -> FloatOrArray:
    """W_q <= lambda (sigma_a^2 + sigma_D^2) / (2 (1 - rho)) (eq-mg1-kingman). An upper bound.

    True for every GI/G/1 queue: gaps between arrivals independent of each other and of the
    service times, which are independent too, all with finite variance. It is tight as rho -> 1
    and loose at low load. Bursts that last longer than a gap break its assumption.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    mean_service_time : E[D] > 0 (s); rho = lambda E[D].
    interarrival_cv : CV_a >= 0, of the gaps: sigma_a = CV_a / lambda; 1 for Poisson arrivals.
    service_time_cv : CV >= 0: sigma_D = CV E[D].

    Returns
    -------
    Seconds that the mean wait does not exceed.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, or rho >= 1 (unstable).

    Source: Kingman, Some Inequalities for the Queue GI/G/1 (Biometrika 49, 1962, 315-324).
    """
    gaps = nonnegative("interarrival_cv", interarrival_cv)
    arrivals, mean, cv = _queue(
        arrival_rate, mean_service_time, service_time_cv, interarrival_cv=gaps
    )
    variances = (gaps / arrivals) ** 2 + (cv * mean) ** 2
    return result("kingman_wait_bound", arrivals * variances / (2 * (1 - arrivals * mean)))


def _geometric_sum(rho: float, pieces: FloatArray) -> FloatArray:
    """Pr[sum = k steps], k = 0, 1, ..., of N pieces, Pr[N = n] = (1 - rho) rho^n."""
    total = np.zeros_like(pieces)
    scale = 1 / (1 - rho * pieces[0])
    total[0] = (1 - rho) * scale
    # Panjer's sum for k, spread forward: each total, once complete, goes to all after it. (As a dot
    # product for each k it is left to BLAS threads, whose start costs far more than the product.)
    for k in range(pieces.size - 1):
        total[k + 1 :] += rho * scale * total[k] * pieces[1 : pieces.size - k]
    return total


def _queue(
    arrival_rate: ArrayLike,
    mean_service_time: ArrayLike,
    service_time_cv: ArrayLike,
    **others: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """lambda, E[D] and CV of a stable queue; `others` must broadcast with them."""
    arrivals = positive("arrival_rate", arrival_rate)
    mean = positive("mean_service_time", mean_service_time)
    cv = nonnegative("service_time_cv", service_time_cv)
    together(arrival_rate=arrivals, mean_service_time=mean, service_time_cv=cv, **others)
    _require_stable(arrivals, mean)
    return arrivals, mean, cv


def _require_stable(arrivals: FloatArray, mean: FloatArray) -> None:
    rho = arrivals * mean
    rule = "below 1 / mean service time (rho >= 1 is unstable)"
    require("arrival_rate", np.broadcast_to(arrivals, rho.shape), rho < 1, rule)
