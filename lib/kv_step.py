"""The memory bound on a decode step (chapter `kv_step`)."""

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatOrArray,
    count,
    nonnegative,
    positive,
    result,
    result_size,
    together,
)


def kv_step_bytes(
    active_batch: ArrayLike, bytes_per_token: ArrayLike, avg_cache_tokens: ArrayLike
) -> int | FloatOrArray:
    """KV bytes that one decode step reads, B x bytes_per_token x T_cache (eq-kv-step-bytes).

    Parameters
    ----------
    active_batch : B, sequences in the step, >= 1.
    bytes_per_token : KV cache per token (bytes), see `kv_cache`.
    avg_cache_tokens : T_cache, context averaged over the B sequences (tokens).

    Returns
    -------
    Bytes per step.

    Raises
    ------
    ValueError : an argument is zero, negative, NaN or infinite, or B is not whole.

    Source: the seed, section 6.1.
    """
    batch = count("active_batch", active_batch, minimum=1)
    width = positive("bytes_per_token", bytes_per_token)
    context = positive("avg_cache_tokens", avg_cache_tokens)
    together(active_batch=batch, bytes_per_token=width, avg_cache_tokens=context)
    return result_size("kv_step_bytes", batch * width * context)


def kv_step_time_lower_bound(
    active_batch: ArrayLike,
    bytes_per_token: ArrayLike,
    avg_cache_tokens: ArrayLike,
    memory_bandwidth_bytes_per_s: ArrayLike,
    *,
    weight_bytes: ArrayLike = 0,
) -> FloatOrArray:
    """No decode step beats T_step >= (M + B x bytes_per_token x T_cache) / BW (eq-kv-step).

    Parameters
    ----------
    active_batch, bytes_per_token, avg_cache_tokens : as `kv_step_bytes`.
    memory_bandwidth_bytes_per_s : BW that the device sustains (bytes/s), not GB/s.
    weight_bytes : M, weights that the step reads once (bytes); 0 leaves them out, which is the
        seed's bound: still true, and looser.

    Returns
    -------
    Seconds per step, for the whole batch: every sequence in it waits this long for its token.

    Raises
    ------
    ValueError : as `kv_step_bytes`; the bandwidth is not positive, or M is negative.

    Source: the seed, section 6.2; Pope et al. (MLSys 2023), section 2, for the weights.
    """
    read = kv_step_bytes(active_batch, bytes_per_token, avg_cache_tokens)
    bandwidth = positive("memory_bandwidth_bytes_per_s", memory_bandwidth_bytes_per_s)
    weights = nonnegative("weight_bytes", weight_bytes)
    together(
        kv_step_bytes=np.asarray(read), memory_bandwidth_bytes_per_s=bandwidth, weight_bytes=weights
    )
    return result("kv_step_time_lower_bound", (weights + read) / bandwidth)
