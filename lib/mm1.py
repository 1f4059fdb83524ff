"""One server, Poisson arrivals, exponential service: the M/M/1 queue (chapter `mm1`).

All of it assumes FCFS, unlimited room and the long run. Times are in seconds, rates in requests/s.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    choice,
    count,
    nonnegative,
    percentage,
    positive,
    require,
    result,
    together,
)

MEASURES = ("wait", "response")


def utilization(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike = 1
) -> FloatOrArray:
    """Share of time that a server is busy, rho = lambda / (c mu) (eq-mm1-utilization).

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > 0, of one server (requests/s).
    servers : c >= 1.

    Returns
    -------
    rho, between 0 and 1.

    Raises
    ------
    ValueError : a rate is NaN, infinite or <= 0, c is not a whole number >= 1, or rho >= 1: then
        the queue grows without end, and nothing has a long-run value.

    Source: the seed; Kleinrock, Queueing Systems, vol. 1 (1975), chapter 2.
    """
    arrivals = positive("arrival_rate", arrival_rate)
    service = positive("service_rate", service_rate)
    c = count("servers", servers, minimum=1)
    together(arrival_rate=arrivals, service_rate=service, servers=c)
    capacity = c * service
    _require_stable(arrivals, capacity)
    return result("utilization", arrivals / capacity)


@dataclass(frozen=True)
class MM1Stats:
    """The long-run means of an M/M/1 queue; floats, or arrays of one shape.

    Rates in requests/s, times in seconds, lengths in requests.
    """

    arrival_rate: FloatOrArray
    service_rate: FloatOrArray
    utilization: FloatOrArray
    avg_response_time: FloatOrArray
    avg_queue_wait: FloatOrArray
    avg_in_system: FloatOrArray
    avg_queue_length: FloatOrArray


def mm1_stats(arrival_rate: ArrayLike, service_rate: ArrayLike) -> MM1Stats:
    """Means of the M/M/1 queue (eq-mm1-means).

    W = 1 / (mu - lambda), W_q = rho W, L = lambda W, L_q = lambda W_q.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > lambda (requests/s).

    Returns
    -------
    MM1Stats: W is `avg_response_time`, W_q `avg_queue_wait`, L `avg_in_system`, L_q
    `avg_queue_length`.

    Raises
    ------
    ValueError : a rate is NaN, infinite or <= 0, or rho >= 1 (unstable).

    Source: the seed; Kleinrock, Queueing Systems, vol. 1 (1975), chapter 3; Little (1961).
    """
    arrivals, service = _queue(arrival_rate, service_rate)
    rho = arrivals / service
    response = 1 / (service - arrivals)
    values = {
        "arrival_rate": arrivals,
        "service_rate": service,
        "utilization": rho,
        "avg_response_time": response,
        "avg_queue_wait": rho * response,
        "avg_in_system": arrivals * response,
        "avg_queue_length": rho * arrivals * response,
    }
    return MM1Stats(**{name: result(name, value) for name, value in values.items()})


def mm1_state_probability(
    arrival_rate: ArrayLike, service_rate: ArrayLike, in_system: ArrayLike
) -> FloatOrArray:
    """Share of time with n requests in the system, pi_n = (1 - rho) rho^n (eq-mm1-state).

    Parameters
    ----------
    arrival_rate, service_rate : as `mm1_stats`.
    in_system : n >= 0, the one in service included.

    Returns
    -------
    The probability, for an arriving request as for an instant of time (PASTA).

    Raises
    ------
    ValueError : as `mm1_stats`; n is negative or not whole.

    Source: Kleinrock, Queueing Systems, vol. 1 (1975), chapter 3.
    """
    n = count("in_system", in_system)
    arrivals, service = _queue(arrival_rate, service_rate, in_system=n)
    return result(
        "mm1_state_probability", (service - arrivals) / service * (arrivals / service) ** n
    )


def mm1_wait_tail(
    arrival_rate: ArrayLike, service_rate: ArrayLike, time: ArrayLike
) -> FloatOrArray:
    """Pr[W_queue > t] = rho e^{-(mu - lambda) t} (eq-mm1-wait-tail).

    Parameters
    ----------
    arrival_rate, service_rate : as `mm1_stats`.
    time : t >= 0 (s).

    Returns
    -------
    The probability that a request waits longer than t for its service to start: rho at t = 0.

    Raises
    ------
    ValueError : as `mm1_stats`; t is negative, NaN or infinite.

    Source: Kleinrock, Queueing Systems, vol. 1 (1975), chapter 5.
    """
    t = nonnegative("time", time)
    arrivals, service = _queue(arrival_rate, service_rate, time=t)
    return result("mm1_wait_tail", arrivals / service * np.exp(-(service - arrivals) * t))


def mm1_response_tail(
    arrival_rate: ArrayLike, service_rate: ArrayLike, time: ArrayLike
) -> FloatOrArray:
    """Pr[E2E > t] = e^{-(mu - lambda) t} (eq-mm1-response-tail).

    Parameters
    ----------
    arrival_rate, service_rate, time : as `mm1_wait_tail`.

    Returns
    -------
    The probability that wait and service together last longer than t: 1 at t = 0.

    Raises
    ------
    ValueError : as `mm1_wait_tail`.

    Source: Kleinrock, Queueing Systems, vol. 1 (1975), chapter 5.
    """
    t = nonnegative("time", time)
    arrivals, service = _queue(arrival_rate, service_rate, time=t)
    return result("mm1_response_tail", np.exp(-(service - arrivals) * t))


def mm1_wait_percentile(
    arrival_rate: ArrayLike, service_rate: ArrayLike, q: ArrayLike
) -> FloatOrArray:
    """The q-th percentile of the wait (eq-mm1-wait-percentile).

    max(0, ln(rho / p) / (mu - lambda)) with p = 1 - q/100: it is 0 while q % find the server idle.

    Parameters
    ----------
    arrival_rate, service_rate : as `mm1_stats`.
    q : percentage, 1 <= q < 100: 99 for P99.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : as `mm1_stats`; q is out of range (0.99 is not P99).

    Source: `mm1_wait_tail`, solved for t.
    """
    beyond = _beyond(q)
    arrivals, service = _queue(arrival_rate, service_rate, q=beyond)
    wait = np.log(arrivals / service / beyond) / (service - arrivals)
    return result("mm1_wait_percentile", np.maximum(wait, 0.0))


def mm1_response_percentile(
    arrival_rate: ArrayLike, service_rate: ArrayLike, q: ArrayLike
) -> FloatOrArray:
    """The q-th percentile of the response, ln(1/p) / (mu - lambda) (eq-mm1-response-percentile).

    p = 1 - q/100. At P99, the mean service time plus `mm1_wait_percentile` is less than this.

    Parameters
    ----------
    arrival_rate, service_rate, q : as `mm1_wait_percentile`.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : as `mm1_wait_percentile`.

    Source: `mm1_response_tail`, solved for t.
    """
    beyond = _beyond(q)
    arrivals, service = _queue(arrival_rate, service_rate, q=beyond)
    return result("mm1_response_percentile", -np.log(beyond) / (service - arrivals))


def required_mm1_service_rate(
    arrival_rate: ArrayLike, target_response_time: ArrayLike, q: ArrayLike | None = None
) -> FloatOrArray:
    """Smallest mu that keeps a response time, mu = lambda + 1/W (eq-mm1-required-rate).

    With q the target is for that percentile, and mu = lambda + ln(1/p) / target, p = 1 - q/100.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    target_response_time : the most the response may last, its mean or its q-th percentile (s) > 0.
    q : percentage, 1 <= q < 100; None for the mean.

    Returns
    -------
    mu (requests/s).

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range.

    Source: the seed; `mm1_stats` and `mm1_response_percentile`, solved for mu.
    """
    arrivals = positive("arrival_rate", arrival_rate)
    target = positive("target_response_time", target_response_time)
    means = np.ones(()) if q is None else -np.log(_beyond(q))
    together(arrival_rate=arrivals, target_response_time=target, q=means)
    # Where the sum rounds to lambda, the number after it keeps the target too, and is stable.
    rate = np.maximum(arrivals + means / target, np.nextafter(arrivals, np.inf))
    return result("required_mm1_service_rate", rate)


def admissible_mm1_arrival_rate(
    service_rate: ArrayLike, target: ArrayLike, *, of: str, q: ArrayLike | None = None
) -> FloatOrArray:
    """Largest lambda that keeps an SLO on the wait or the response (eq-mm1-admissible-rate).

    With p = 1 - q/100 and x = lambda / mu:

    - mean wait: x = mu t / (1 + mu t);
    - mean response: lambda = mu - 1/t;
    - percentile of the response: lambda = mu - ln(1/p) / t;
    - percentile of the wait: the root of ln x + mu t x = mu t + ln p. Its left side is increasing
      and concave, and x = p lies below the root, so Newton's steps from there rise to the root and
      never pass it.

    Parameters
    ----------
    service_rate : mu > 0 (requests/s).
    target : t, the most that the mean or the percentile may be (s) > 0; 0 too for a percentile of
        the wait, where it asks that q % do not wait at all.
    of : "wait" or "response".
    q : percentage, 1 <= q < 100; None for the mean.

    Returns
    -------
    lambda (requests/s), always below mu.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range; `of` is unknown; or the target is
        for the response and no longer than the service alone takes, so that no rate keeps it.

    Source: `mm1_stats`, `mm1_wait_tail` and `mm1_response_tail`, solved for lambda.
    """
    choice("of", of, MEASURES)
    service = positive("service_rate", service_rate)
    share = None if q is None else _beyond(q)
    no_wait_allowed = of == "wait" and share is not None
    limit = nonnegative("target", target) if no_wait_allowed else positive("target", target)
    beyond = np.ones(()) if share is None else share
    together(service_rate=service, target=limit, q=beyond)
    service, limit, beyond = np.broadcast_arrays(service, limit, beyond)
    if of == "response":
        means = np.ones_like(beyond) if share is None else -np.log(beyond)
        rate = service - means / limit
        require("target", limit, rate > 0, "longer than the service alone takes")
    elif share is None:
        rate = service * (service * limit / (1 + service * limit))
    else:
        rate = service * _root(service * limit, beyond)
    # Where the rate rounds to mu, the number before it keeps the target too, and is stable.
    return result("admissible_mm1_arrival_rate", np.minimum(rate, np.nextafter(service, 0)))


def _root(scaled: FloatArray, beyond: FloatArray) -> FloatArray:
    """x in [p, 1] with ln x + s x = s + ln p, by Newton's rising steps."""
    x = beyond.copy()
    while True:
        step = -(np.log(x / beyond) - scaled * (1 - x)) / (1 / x + scaled)
        higher = np.minimum(x + step, 1.0)
        if not np.any(higher > x):
            return x
        x = np.maximum(x, higher)


def _queue(
    arrival_rate: ArrayLike, service_rate: ArrayLike, **others: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """lambda and mu of a stable queue, in one shape; `others` must broadcast with them."""
    arrivals = positive("arrival_rate", arrival_rate)
    service = positive("service_rate", service_rate)
    together(arrival_rate=arrivals, service_rate=service, **others)
    _require_stable(arrivals, service)
    arrivals, service = np.broadcast_arrays(arrivals, service)
    return arrivals, service


def _require_stable(arrivals: FloatArray, capacity: FloatArray) -> None:
    arrivals, capacity = np.broadcast_arrays(arrivals, capacity)
    rule = "below the service capacity (rho >= 1 is unstable)"
    require("arrival_rate", arrivals, arrivals < capacity, rule)


def _beyond(q: ArrayLike) -> FloatArray:
    """The share of requests beyond the q-th percentile."""
    return (100 - percentage("q", q)) / 100
