"""Wrong formulas and numbers, kept as they are printed (chapter `errata`).

They are exhibits, not tools: each docstring says what is true, and which function computes it. Some
claims of the chapter have no function here, for their formula is right and only said of the wrong
quantity: `occupancy.little_law_concurrency` for the batch, `mm1.mm1_wait_tail` for the response,
`demand.request_service_demand` where the prefill has its own price and emits the first token.
"""

from math import factorial
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    one,
    percentage,
    positive,
    real,
    require,
    result,
    result_size,
    together,
)

MM1_P99_WAITS = MappingProxyType({0.5: 7.82, 0.7: 13.4, 0.9: 46.1})
"""Printed P99 of the M/M/1 wait, in mean service times, by rho. True is ln(100 rho) / (1 - rho):
7.82, 14.16 and 45.00. What stands at 0.9 is the P99 of the response."""


def relative_error(printed: ArrayLike, true: ArrayLike) -> FloatOrArray:
    """Relative error of a printed formula, e = f / g - 1 (eq-errata).

    Parameters
    ----------
    printed : f, what the formula gives, any unit.
    true : g > 0, the true value, in the same unit.

    Returns
    -------
    e: negative where the printed value is too small.

    Raises
    ------
    ValueError : a value is NaN or infinite, g is not positive, or the shapes do not broadcast.
    """
    f, g = real("printed", printed), positive("true", true)
    together(printed=f, true=g)
    return result("relative_error", f / g - 1)


def e2e_of_all_tokens(
    ttft_value: ArrayLike, tpot_value: ArrayLike, output_tokens: ArrayLike
) -> FloatOrArray:
    """Printed: E2E = TTFT + N_out TPOT.

    One token too many: N_out tokens have N_out - 1 gaps, and TTFT has paid for the first. True:
    `latency.e2e_from_ttft_tpot`. The error is 1 / (N_out - 1 + TTFT / TPOT).

    Parameters
    ----------
    ttft_value : TTFT (s) >= 0.
    tpot_value : TPOT (s per token) >= 0.
    output_tokens : N_out >= 1.

    Returns
    -------
    Seconds, one TPOT too long.

    Raises
    ------
    ValueError : a time is negative, NaN or infinite, or N_out < 1.
    """
    first = nonnegative("ttft_value", ttft_value)
    each = nonnegative("tpot_value", tpot_value)
    tokens = count("output_tokens", output_tokens, minimum=1)
    together(ttft_value=first, tpot_value=each, output_tokens=tokens)
    return result("e2e_of_all_tokens", first + tokens * each)


def sum_of_percentiles(parts: ArrayLike, q: ArrayLike) -> FloatOrArray:
    """Printed: the percentile of a sum is the sum of the parts' percentiles.

    It adds requests that need not be the same: the slowest wait and the slowest prefill. True:
    the percentile of the sums. The error has either sign.

    Parameters
    ----------
    parts : (k, n) samples of k parts, one column a request, any unit.
    q : percentage, 1 <= q < 100: 99 for P99.

    Returns
    -------
    The sum, in the unit of `parts`.

    Raises
    ------
    ValueError : `parts` is no table or empty, a value is NaN or infinite, or q is out of range.
    """
    table, rank = real("parts", parts), percentage("q", q)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"parts must be a table (k, n), not empty: got shape {table.shape}")
    return result("sum_of_percentiles", np.percentile(table, rank, axis=1).sum(axis=-1))


def percentile_of_buckets(edges: ArrayLike, counts: ArrayLike, q: ArrayLike) -> FloatOrArray:
    """Printed by dashboards: the percentile of a histogram, interpolated inside its bucket.

    It spreads a bucket's values evenly over the bucket, whatever they are. True is only that the
    percentile lies between the bucket's edges; the mean, sum over count, is exact.

    Parameters
    ----------
    edges : (k,) upper edges of the buckets, rising and > 0 (s); the first bucket begins at 0.
    counts : (k,) values in each bucket, not cumulated, in all at least one.
    q : percentage, 1 <= q < 100, one or an array.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : an edge is not above the one before, a count is negative or not whole, all are 0,
        the lengths differ, or q is out of range.
    """
    upper, inside = positive("edges", edges), count("counts", counts)
    if upper.ndim != 1 or upper.shape != inside.shape or upper.size == 0:
        raise ValueError(f"lengths must match: got edges {upper.shape}, counts {inside.shape}")
    require("edges", upper, np.diff(upper, prepend=0) > 0, "above the edge before it")
    edge, below = np.append(0, upper), np.append(0, np.cumsum(inside))
    require("counts", below[-1], below[-1] > 0, "in all at least 1")
    rank = percentage("q", q) / 100 * below[-1]
    i = np.searchsorted(below[1:], rank)  # the bucket that the rank falls into
    share = (rank - below[i]) / inside[i]
    return result("percentile_of_buckets", edge[i] + share * (upper[i] - edge[i]))


def response_from_mean_service(
    wait_percentile: ArrayLike, mean_service_time: ArrayLike
) -> FloatOrArray:
    """Printed: P99 of the response = mean service + P99 of the wait.

    A request with a long wait is served as long as any other, and one with a long service may not
    have waited at all. True: `mm1.mm1_response_percentile`, for M/M/1. At P99 there the error is
    (1 - rho + ln rho) / ln 100, never above 0: a square near rho = 1, -30 % at rho = 0.1.

    Parameters
    ----------
    wait_percentile : percentile of the wait (s) >= 0.
    mean_service_time : (s) > 0.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range.
    """
    wait = nonnegative("wait_percentile", wait_percentile)
    service = positive("mean_service_time", mean_service_time)
    together(wait_percentile=wait, mean_service_time=service)
    return result("response_from_mean_service", service + wait)


def md1_queue_wait_of_rho_squared(arrival_rate: ArrayLike, service_rate: ArrayLike) -> FloatOrArray:
    """Printed: W_q = rho^2 / (2 mu (1 - rho)) for M/D/1.

    The number in the queue, divided by the wrong rate: L_q = rho^2 / (2 (1 - rho)), and W_q is
    L_q / lambda, not L_q / mu. True: `mg1.mg1_queue_wait` with a CV of 0. The error is rho - 1.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    service_rate : mu > lambda (requests/s).

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : a rate is NaN, infinite or <= 0, or rho >= 1 (unstable).
    """
    arrivals = positive("arrival_rate", arrival_rate)
    service = positive("service_rate", service_rate)
    together(arrival_rate=arrivals, service_rate=service)
    _require_stable(arrivals, service)
    rho = arrivals / service
    wait = rho**2 / (2 * (service - arrivals))
    return result("md1_queue_wait_of_rho_squared", wait)


def erlang_c_by_factorials(
    arrival_rate: ArrayLike, service_rate: ArrayLike, servers: ArrayLike
) -> float:
    """Printed: C = A / (A + sum_{k<c} a^k / k!), A = a^c / c! / (1 - rho), as it reads.

    The formula is right; its powers and factorials pass 1.8e308 long before their quotient does:
    at rho = 0.9 from c = 146 on. True: `erlang_c.erlang_c_wait_probability`, by a recursion.

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s), one number.
    service_rate : mu > 0, of one server (requests/s), one number.
    servers : c >= 1, one number, with lambda < c mu.

    Returns
    -------
    The probability that a request waits.

    Raises
    ------
    OverflowError : a^c or c! is too large for a float. This is the erratum.
    ValueError : a rate is NaN, infinite or <= 0, c is not whole or < 1, or rho >= 1 (unstable).
    TypeError : an argument is no single number.
    """
    arrivals = one("arrival_rate", positive("arrival_rate", arrival_rate))
    service = one("service_rate", positive("service_rate", service_rate))
    c = int(one("servers", count("servers", servers, minimum=1)))
    _require_stable(np.asarray(arrivals), np.asarray(c * service))
    a = arrivals / service
    last = a**c / factorial(c) / (1 - a / c)
    return last / (last + sum(a**k / factorial(k) for k in range(c)))


def kv_bytes_from_hidden_size(
    layers: ArrayLike, hidden_size: ArrayLike, bytes_per_element: ArrayLike = 2
) -> int | FloatOrArray:
    """Printed: KV cache per token = 2 n_layer n_hid s.

    A key and a value for every *query* head. Under GQA only H_kv heads are cached. True:
    `kv_cache.kv_bytes_per_token`. Where n_hid = H d the error is H / H_kv - 1, and 0 for MHA.

    Parameters
    ----------
    layers : n_layer.
    hidden_size : n_hid.
    bytes_per_element : s; 2 for bf16.

    Returns
    -------
    Bytes per token.

    Raises
    ------
    ValueError : a count below 1 or not whole, or s not positive.
    """
    depth = count("layers", layers, minimum=1)
    width = count("hidden_size", hidden_size, minimum=1)
    size = positive("bytes_per_element", bytes_per_element)
    together(layers=depth, hidden_size=width, bytes_per_element=size)
    return result_size("kv_bytes_from_hidden_size", 2 * depth * width * size)


def step_time_over_batch(
    active_batch: ArrayLike,
    weight_bytes: ArrayLike,
    sequence_kv_bytes: ArrayLike,
    memory_bandwidth_bytes_per_s: ArrayLike,
) -> FloatOrArray:
    """Printed: "batched TPOT" = M / (B BW) + KV / BW.

    That is the step over B: the time between two tokens of the *engine*. A user gets one token a
    step and waits for all of it, (M + B KV) / BW. True: `kv_step.kv_step_time_lower_bound`. The
    error is 1 / B - 1.

    Parameters
    ----------
    active_batch : B >= 1.
    weight_bytes : M (bytes) > 0.
    sequence_kv_bytes : KV, the cache of one sequence (bytes) >= 0.
    memory_bandwidth_bytes_per_s : BW (bytes/s) > 0.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, or B is not whole.
    """
    batch = count("active_batch", active_batch, minimum=1)
    weights = positive("weight_bytes", weight_bytes)
    cache = nonnegative("sequence_kv_bytes", sequence_kv_bytes)
    bandwidth = positive("memory_bandwidth_bytes_per_s", memory_bandwidth_bytes_per_s)
    together(
        active_batch=batch,
        weight_bytes=weights,
        sequence_kv_bytes=cache,
        memory_bandwidth_bytes_per_s=bandwidth,
    )
    return result("step_time_over_batch", weights / (batch * bandwidth) + cache / bandwidth)


def throughput_linear_in_batch(
    active_batch: ArrayLike, step_time_of_one: ArrayLike
) -> FloatOrArray:
    """Printed: until arithmetic is the limit, throughput is linear in the batch, X = B / T_step(1).

    So it is while a step reads little but weights. Each sequence adds its own KV to the step.
    True: B / T_step(B). Where memory is the limit the error is (B - 1) KV / (M + KV).

    Parameters
    ----------
    active_batch : B >= 1.
    step_time_of_one : T_step(1), a decode step of one sequence (s) > 0.

    Returns
    -------
    Tokens per second.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, or B is not whole.
    """
    batch = count("active_batch", active_batch, minimum=1)
    step = positive("step_time_of_one", step_time_of_one)
    together(active_batch=batch, step_time_of_one=step)
    return result("throughput_linear_in_batch", batch / step)


def _require_stable(arrivals: FloatArray, capacity: FloatArray) -> None:
    arrivals, capacity = np.broadcast_arrays(arrivals, capacity)
    rule = "below the service capacity (rho >= 1 is unstable)"
    require("arrival_rate", arrivals, arrivals < capacity, rule)
