"""c servers on one queue, Poisson arrivals, exponential service: M/M/c (chapter `erlang_c`).

All of it assumes FCFS, unlimited room and the long run; `allen_cunneen_queue_wait` and
`square_root_servers` are approximations. Times are in seconds, rates in requests/s.
"""

from collections.abc import Callable
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
MOST_SERVERS = 1_000_000
"""The recursion takes one step a server, so more than this is refused and not computed."""


def erlang_b_blocking_probability(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike
) -> FloatOrArray:
    """Share of requests lost by c servers without a queue, Erlang B (eq-erlang-b).

    B_k = a B_{k-1} / (k + a B_{k-1}), from B_0 = 1 up to k = c, with a = lambda / mu. It adds and
    multiplies positive numbers only, and each step shrinks the relative error that it inherits by
    the factor 1 - B_k: no factorial, no overflow.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > 0, of one server (requests/s).
    servers : c, 1 to 1,000,000.

    Returns
    -------
    B, from 0 to 1, at any load: a loss system is stable at rho >= 1 too. 0 where B < 1e-323.

    Raises
    ------
    ValueError : a rate is NaN, infinite or <= 0, or c is not a whole number in range.

    Source: Cooper, Introduction to Queueing Theory (2nd ed., 1981), chapter 3.
    """
    arrivals, service, c = _servers(arrival_rate, service_rate, servers)
    return result("erlang_b_blocking_probability", _erlang_b(arrivals / service, c))


def erlang_c_wait_probability(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike
) -> FloatOrArray:
    """Share of requests that find all c servers busy and wait, Erlang C (eq-erlang-c).

    C = B / (1 - rho (1 - B)), with B of `erlang_b_blocking_probability`; computed as
    c mu B / (c mu - lambda + lambda B), where nothing cancels near rho = 1.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > 0, of one server (requests/s).
    servers : c, 1 to 1,000,000, with lambda < c mu.

    Returns
    -------
    C = Pr[W_queue > 0], from 0 to 1.

    Raises
    ------
    ValueError : a rate is NaN, infinite or <= 0, c is not a whole number in range, or rho >= 1
        (unstable).

    Source: the seed; Harchol-Balter, Performance Modeling and Design of Computer Systems (2013),
    chapter 14.
    """
    arrivals, service, c = _queue(arrival_rate, service_rate, servers)
    return result("erlang_c_wait_probability", _waits(arrivals, service, c))


def mmc_avg_queue_wait(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike
) -> FloatOrArray:
    """Mean wait over all requests, W_q = C / (c mu - lambda) (eq-erlang-wait).

    Parameters
    ----------
    arrival_rate, service_rate, servers : as `erlang_c_wait_probability`.

    Returns
    -------
    Seconds; those who do wait, wait 1 / (c mu - lambda) on average.

    Raises
    ------
    ValueError : as `erlang_c_wait_probability`.

    Source: as `erlang_c_wait_probability`.
    """
    arrivals, service, c = _queue(arrival_rate, service_rate, servers)
    wait = _waits(arrivals, service, c) / (c * service - arrivals)
    return result("mmc_avg_queue_wait", wait)


def mmc_avg_response_time(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike
) -> FloatOrArray:
    """Mean response, W = W_q + 1/mu (eq-erlang-wait).

    Parameters
    ----------
    arrival_rate, service_rate, servers : as `erlang_c_wait_probability`.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : as `erlang_c_wait_probability`.

    Source: as `erlang_c_wait_probability`.
    """
    arrivals, service, c = _queue(arrival_rate, service_rate, servers)
    wait = _waits(arrivals, service, c) / (c * service - arrivals)
    return result("mmc_avg_response_time", wait + 1 / service)


def mmc_wait_tail(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, time: ArrayLike
) -> FloatOrArray:
    """Pr[W_queue > t] = C e^{-(c mu - lambda) t} (eq-erlang-wait-tail).

    Parameters
    ----------
    arrival_rate, service_rate, servers : as `erlang_c_wait_probability`.
    time : t >= 0 (s).

    Returns
    -------
    The probability that a request waits longer than t: C at t = 0.

    Raises
    ------
    ValueError : as `erlang_c_wait_probability`; t is negative, NaN or infinite.

    Source: Gross, Shortle, Thompson and Harris, Fundamentals of Queueing Theory (4th ed., 2008),
    chapter 2.
    """
    t = nonnegative("time", time)
    arrivals, service, c = _queue(arrival_rate, service_rate, servers, time=t)
    spare = c * service - arrivals
    return result("mmc_wait_tail", _waits(arrivals, service, c) * np.exp(-spare * t))


def mmc_response_tail(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, time: ArrayLike
) -> FloatOrArray:
    """Pr[E2E > t], wait and service together (eq-erlang-response-tail).

    e^{-mu t} + C mu (e^{-mu t} - e^{-delta t}) / (delta - mu), delta = c mu - lambda; where
    delta = mu the fraction is t e^{-mu t}. With c = 1 it is e^{-(mu - lambda) t}.

    Parameters
    ----------
    arrival_rate, service_rate, servers, time : as `mmc_wait_tail`.

    Returns
    -------
    The probability that a response takes longer than t: 1 at t = 0.

    Raises
    ------
    ValueError : as `mmc_wait_tail`.

    Source: as `mmc_wait_tail`.
    """
    t = nonnegative("time", time)
    arrivals, service, c = _queue(arrival_rate, service_rate, servers, time=t)
    waits = _waits(arrivals, service, c)
    return result("mmc_response_tail", _response_tail(waits, c * service - arrivals, service, t))


def mmc_wait_percentile(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, q: ArrayLike
) -> FloatOrArray:
    """The q-th percentile of the wait (eq-erlang-wait-percentile).

    max(0, ln(C / p) / (c mu - lambda)) with p = 1 - q/100: it is 0 while q % do not wait.

    Parameters
    ----------
    arrival_rate, service_rate, servers : as `erlang_c_wait_probability`.
    q : percentage, 1 <= q < 100: 99 for P99.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : as `erlang_c_wait_probability`; q is out of range (0.99 is not P99).

    Source: `mmc_wait_tail`, solved for t.
    """
    beyond = _beyond(q)
    arrivals, service, c = _queue(arrival_rate, service_rate, servers, q=beyond)
    ratio = np.maximum(_waits(arrivals, service, c) / beyond, 1.0)
    return result("mmc_wait_percentile", np.log(ratio) / (c * service - arrivals))


def mmc_response_percentile(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, q: ArrayLike
) -> FloatOrArray:
    """The q-th percentile of the response, from its tail (eq-erlang-response-tail).

    The t at which `mmc_response_tail` is p = 1 - q/100. The tail falls in t. It is >= p at
    ln(1/p) / mu, for a response takes longer than its service, and <= p at
    ln(2/p) / mu + max(0, ln(2C/p) / (c mu - lambda)), where the service and the wait each pass
    their part with probability p/2 at most. The interval between is halved until no float is left
    inside.

    Parameters
    ----------
    arrival_rate, service_rate, servers, q : as `mmc_wait_percentile`.

    Returns
    -------
    Seconds. At P99, 1/mu plus `mmc_wait_percentile` is less than this.

    Raises
    ------
    ValueError : as `mmc_wait_percentile`.

    Source: `mmc_response_tail`, solved for t.
    """
    beyond = _beyond(q)
    arrivals, service, c = _queue(arrival_rate, service_rate, servers, q=beyond)
    beyond = np.broadcast_to(beyond, np.broadcast_shapes(beyond.shape, arrivals.shape))
    waits, spare = _waits(arrivals, service, c), c * service - arrivals
    low = -np.log(beyond) / service
    high = np.log(2 / beyond) / service + np.log(np.maximum(2 * waits / beyond, 1.0)) / spare
    return result(
        "mmc_response_percentile",
        _halve(lambda t: _response_tail(waits, spare, service, t) > beyond, low, high),
    )


def required_mmc_servers(
    arrival_rate: ArrayLike,
    service_rate: ArrayLike,
    target: ArrayLike,
    *,
    of: str,
    q: ArrayLike | None = None,
) -> int | NDArray[np.int64]:
    """Smallest c that keeps an SLO on the wait or the response (eq-erlang-required).

    One pass of the recursion for B tries every c > lambda / mu in turn, and stops at the first that
    keeps the target: nothing stable is skipped, so nothing smaller keeps it. It ends, because B
    falls below any number above 0 as c grows.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > 0, of one server (requests/s); the load lambda / mu is at most 900,000.
    target : the most that the mean or the percentile may be (s) > 0; 0 too for a percentile of the
        wait, where it asks that q % do not wait at all.
    of : "wait" or "response".
    q : percentage, 1 <= q < 100; None for the mean.

    Returns
    -------
    c: an int, or an array of them.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range; `of` is unknown; or the target is
        for the response and no longer than the service alone takes, so that no c keeps it.

    Source: `mmc_avg_queue_wait`, `mmc_wait_tail` and `mmc_response_tail`, tried at each c.
    """
    arrivals = positive("arrival_rate", arrival_rate)
    service, limit, beyond = _slo(service_rate, target, of, q, arrival_rate=arrivals)
    arrivals = np.broadcast_to(arrivals, limit.shape)
    load, blocked = _countable_load(arrivals, service), np.ones(limit.shape)
    needed = np.zeros(limit.shape, dtype=np.int64)
    # No c below lambda / mu is stable; one less, for the quotient may have been rounded up.
    k = max(int(load.min()) - 1, 0) if load.size else 0
    for unstable in range(1, k + 1):
        blocked = _next_b(load, blocked, unstable)
    while np.any(needed == 0):
        k += 1
        blocked = _next_b(load, blocked, k)
        stable = k * service > arrivals
        spare = np.where(stable, k * service - arrivals, 1.0)
        waits = k * service * blocked / (spare + arrivals * blocked)
        kept = stable & _keeps(waits, spare, service, limit, of, beyond)
        needed = np.where(kept & (needed == 0), k, needed)
    return needed if needed.ndim else int(needed)


def square_root_servers(
    arrival_rate: ArrayLike, service_rate: ArrayLike, wait_probability: ArrayLike
) -> int | NDArray[np.int64]:
    """Servers by the square-root rule, c = ceil(a + gamma sqrt(a)) (eq-erlang-square-root).

    An approximation for a large load a = lambda / mu: gamma solves
    phi(gamma) / (phi(gamma) + gamma Phi(gamma)) = C, the limit of Erlang C. For a from 1 to 10,000
    it is never too high, and too low by at most one server at C >= 0.05, by at most two at 0.01;
    `required_mmc_servers` is exact.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > 0, of one server (requests/s); the load lambda / mu is at most 900,000.
    wait_probability : C, the share that may wait, between 0 and 1.

    Returns
    -------
    c > a: an int, or an array of them.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range.

    Source: Halfin and Whitt, Oper. Res. 29 (1981) 567-588.
    """
    arrivals = positive("arrival_rate", arrival_rate)
    service = positive("service_rate", service_rate)
    share = positive("wait_probability", wait_probability)
    require("wait_probability", share, share < 1, "< 1")
    together(arrival_rate=arrivals, service_rate=service, wait_probability=share)
    arrivals, service, share = np.broadcast_arrays(arrivals, service, share)
    load = _countable_load(arrivals, service)
    # At gamma = 40 the density is 0 in float64: the limit of C is below any share there.
    top = np.full(share.shape, 40.0)
    gamma = _halve(lambda g: _halfin_whitt(g) > share, np.zeros(share.shape), top)
    needed = np.maximum(np.ceil(load + gamma * np.sqrt(load)), np.floor(load) + 1)
    return needed.astype(np.int64) if needed.ndim else int(needed)


def admissible_mmc_arrival_rate(
    service_rate: ArrayLike,
    servers: ArrayLike,
    target: ArrayLike,
    *,
    of: str,
    q: ArrayLike | None = None,
) -> FloatOrArray:
    """Largest lambda that c servers carry within an SLO (eq-erlang-required).

    More arrivals make every measure longer, so the rates that keep the target form an interval.
    It starts at 0, where nobody waits, and ends before c mu, where the wait has no bound: the
    interval (0, c mu) is halved until no float is left inside.

    Parameters
    ----------
    service_rate : mu > 0, of one server (requests/s).
    servers : c, 1 to 1,000,000.
    target, of, q : as `required_mmc_servers`.

    Returns
    -------
    lambda (requests/s), the last float that keeps the target as computed; always below c mu.

    Raises
    ------
    ValueError : as `required_mmc_servers`.

    Source: as `required_mmc_servers`, solved for lambda.
    """
    c = _server_count(servers)
    service, limit, beyond = _slo(service_rate, target, of, q, servers=c)
    c = np.broadcast_to(c, limit.shape)

    def kept(rate: FloatArray) -> NDArray[np.bool_]:
        return _keeps(_waits(rate, service, c), c * service - rate, service, limit, of, beyond)

    rate = _halve(kept, np.zeros(limit.shape), c * service)
    return result("admissible_mmc_arrival_rate", rate)


def allen_cunneen_queue_wait(
    arrival_rate: ArrayLike,
    service_rate: ArrayLike,
    servers: ArrayLike,
    interarrival_cv: ArrayLike,
    service_time_cv: ArrayLike,
) -> FloatOrArray:
    """Mean wait of G/G/c, about (C_a^2 + C_s^2) / 2 times M/M/c (eq-erlang-allen-cunneen).

    An approximation, no bound; with c = 1 it is Kingman's formula. Exact for M/M/c, for M/G/1,
    and in the limit rho -> 1. It is too high where arrivals are smoother than Poisson and the
    load is light: for D/M/1 by 96 % at rho = 0.5, and by 8 % at 0.9. It knows nothing of gaps
    that depend on each other, as bursts do.

    Parameters
    ----------
    arrival_rate, service_rate, servers : as `erlang_c_wait_probability`.
    interarrival_cv : C_a >= 0, standard deviation over mean of the gaps between arrivals.
    service_time_cv : C_s >= 0, the same of the service times. Both count squared.

    Returns
    -------
    Seconds, approximately.

    Raises
    ------
    ValueError : as `erlang_c_wait_probability`; a coefficient is negative, NaN or infinite.

    Source: Allen, Probability, Statistics, and Queueing Theory (2nd ed., 1990), chapter 5; Whitt,
    Approximations for the GI/G/m Queue (Production and Operations Management 2, 1993).
    """
    gaps = nonnegative("interarrival_cv", interarrival_cv)
    cv = nonnegative("service_time_cv", service_time_cv)
    arrivals, service, c = _queue(
        arrival_rate, service_rate, servers, interarrival_cv=gaps, service_time_cv=cv
    )
    exponential = _waits(arrivals, service, c) / (c * service - arrivals)
    return result("allen_cunneen_queue_wait", exponential * (gaps**2 + cv**2) / 2)


def _next_b(load: FloatArray, blocked: FloatArray, k: int) -> FloatArray:
    carried = load * blocked
    return carried / (k + carried)


def _erlang_b(load: FloatArray, servers: FloatArray) -> FloatArray:
    found, blocked = np.ones(load.shape), np.ones(load.shape)
    wanted = set(servers.ravel().tolist())
    for k in range(1, int(servers.max(initial=0)) + 1):
        blocked = _next_b(load, blocked, k)
        if k in wanted:
            found = np.where(servers == k, blocked, found)
    return found


def _waits(arrivals: FloatArray, service: FloatArray, servers: FloatArray) -> FloatArray:
    """Erlang C; three arrays of one shape."""
    blocked = _erlang_b(arrivals / service, servers)
    capacity = servers * service
    return capacity * blocked / (capacity - arrivals + arrivals * blocked)


def _countable_load(arrivals: FloatArray, service: FloatArray) -> FloatArray:
    """lambda / mu, where servers for it can be counted one by one."""
    rule = "at most 900,000 times service_rate"
    require("arrival_rate", arrivals, arrivals <= 0.9 * MOST_SERVERS * service, rule)
    return arrivals / service


def _halfin_whitt(gamma: FloatArray) -> FloatArray:
    """The limit of Erlang C with a + gamma sqrt(a) servers, as a grows."""
    density = np.exp(-(gamma**2) / 2) / sqrt(2 * pi)
    below: FloatArray = (1 + np.vectorize(erf, otypes=[float])(gamma / sqrt(2))) / 2
    return density / (density + gamma * below)


def _response_tail(
    waits: FloatArray, spare: FloatArray, service: FloatArray, time: FloatArray
) -> FloatArray:
    # (e^-mt - e^-nt) / (n - m) is t e^-mt (1 - e^-x) / x with x = (n - m) t, and the same with m
    # and n exchanged: taken with the smaller rate outside, nothing overflows and nothing cancels.
    x = np.abs(spare - service) * time
    ratio = np.ones(x.shape)
    np.divide(-np.expm1(-x), x, out=ratio, where=x > 0)
    delayed = time * np.exp(-np.minimum(spare, service) * time) * ratio
    return np.exp(-service * time) + waits * service * delayed


def _keeps(
    waits: FloatArray,
    spare: FloatArray,
    service: FloatArray,
    target: FloatArray,
    of: str,
    beyond: FloatArray | None,
) -> NDArray[np.bool_]:
    """Where M/M/c keeps the target, from C and c mu - lambda; `beyond` is None for the mean."""
    if beyond is None:
        left = target - 1 / service if of == "response" else target
        return waits / spare <= left
    if of == "wait":
        return waits * np.exp(-spare * target) <= beyond
    return _response_tail(waits, spare, service, target) <= beyond


def _halve(
    holds: Callable[[FloatArray], NDArray[np.bool_]], low: FloatArray, high: FloatArray
) -> FloatArray:
    """The last float in [low, high) at which `holds`, true at low and false at high, is true."""
    while True:
        middle = low + (high - low) / 2
        inside = (low < middle) & (middle < high)
        if not np.any(inside):
            return low
        true = holds(np.where(inside, middle, low))
        low, high = np.where(inside & true, middle, low), np.where(inside & ~true, middle, high)


def _slo(
    service_rate: ArrayLike,
    target: ArrayLike,
    of: str,
    q: ArrayLike | None,
    **others: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """mu, the target and the share allowed beyond it, in one shape with `others`."""
    choice("of", of, MEASURES)
    service = positive("service_rate", service_rate)
    beyond = None if q is None else _beyond(q)
    no_wait_allowed = of == "wait" and beyond is not None
    limit = nonnegative("target", target) if no_wait_allowed else positive("target", target)
    arrays = {"service_rate": service, "target": limit, **others}
    if beyond is not None:
        arrays["q"] = beyond
    together(**arrays)
    shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    service, limit = np.broadcast_to(service, shape), np.broadcast_to(limit, shape)
    if beyond is not None:
        beyond = np.broadcast_to(beyond, shape)
    if of == "response":
        alone = 1 / service < limit if beyond is None else np.exp(-service * limit) < beyond
        require("target", limit, alone, "longer than the service alone takes")
    return service, limit, beyond


def _server_count(servers: ArrayLike) -> FloatArray:
    c = count("servers", servers, minimum=1)
    require("servers", c, c <= MOST_SERVERS, f"<= {MOST_SERVERS:,}, for each takes a step")
    return c


def _servers(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, **others: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """lambda, mu and c in one shape; `others` must broadcast with them."""
    arrivals = positive("arrival_rate", arrival_rate)
    service = positive("service_rate", service_rate)
    c = _server_count(servers)
    together(arrival_rate=arrivals, service_rate=service, servers=c, **others)
    arrivals, service, c = np.broadcast_arrays(arrivals, service, c)
    return arrivals, service, c


def _queue(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike, **others: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """As `_servers`, of a stable queue."""
    arrivals, service, c = _servers(arrival_rate, service_rate, servers, **others)
    rule = "below servers x service_rate (rho >= 1 is unstable)"
    require("arrival_rate", arrivals, arrivals < c * service, rule)
    return arrivals, service, c


def _beyond(q: ArrayLike) -> FloatArray:
    """The share of requests beyond the q-th percentile."""
    return (100 - percentage("q", q)) / 100
