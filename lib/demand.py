"""Engine time that one request needs, and its spread (chapter `demand`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import FloatOrArray, count, nonnegative, positive, result, together


def request_service_demand(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    prefill_seconds_per_token: ArrayLike,
    decode_seconds_per_token: ArrayLike,
) -> FloatOrArray:
    """Engine time of a request served alone, D = N_in c_prefill + N_out c_decode (eq-demand).

    Parameters
    ----------
    input_tokens : N_in, prompt tokens to compute: without those that a prefix cache holds.
    output_tokens : N_out; 0 for the prefill alone.
    prefill_seconds_per_token : c_prefill (s).
    decode_seconds_per_token : c_decode, a decode step of one sequence (s). The prefill step has
        the same fixed cost, so it is charged N_out times, not N_out - 1.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : an argument is negative, NaN or infinite, or a token count is not whole.

    Source: the seed, section 3.
    """
    prompt = count("input_tokens", input_tokens)
    answer = count("output_tokens", output_tokens)
    prefill = nonnegative("prefill_seconds_per_token", prefill_seconds_per_token)
    decode = nonnegative("decode_seconds_per_token", decode_seconds_per_token)
    together(
        input_tokens=prompt,
        output_tokens=answer,
        prefill_seconds_per_token=prefill,
        decode_seconds_per_token=decode,
    )
    return result("request_service_demand", prompt * prefill + answer * decode)


@dataclass(frozen=True, slots=True)
class DemandStats:
    """Moments of a demand; see `demand_stats`.

    mean : E[D] (s). variance : Var D (s^2). cv : standard deviation over mean. service_rate :
    mu = 1 / E[D], one request at a time (requests/s).
    """

    mean: float
    variance: float
    cv: float
    service_rate: float


def demand_stats(demand: ArrayLike) -> DemandStats:
    """Mean, variance and CV of a demand, and the rate mu = 1 / E[D] (eq-demand-rate).

    Parameters
    ----------
    demand : (n,) D of each request (s), n >= 2. The trace is the distribution: all n weigh 1 / n.

    Returns
    -------
    DemandStats.

    Raises
    ------
    ValueError : fewer than two values, or one that is not positive, NaN or infinite.

    Source: the seed, section 3.3.
    """
    values = positive("demand", demand)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"demand must be a list of two or more: got shape {values.shape}")
    mean, variance = float(values.mean()), float(values.var())
    return DemandStats(mean, variance, float(np.sqrt(variance)) / mean, 1 / mean)
