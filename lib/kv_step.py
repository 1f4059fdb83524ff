"""The memory bound on a decode step, and the bytes it counts (chapter `kv_step`)."""

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatOrArray,
    count,
    nonnegative,
    positive,
    require,
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
    memory_bandwidth_bytes_per_s : BW, what the memory delivers at most (bytes/s, not GB/s): the
        peak, or the best rate measured. With less than the memory can sustain it is no bound.
    weight_bytes : M, model weights that the step reads once (bytes), see `llama_weight_bytes`; 0
        leaves them out, which is the seed's bound: still true, and looser.

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
        kv_step_bytes=np.asarray(read),
        memory_bandwidth_bytes_per_s=bandwidth,
        weight_bytes=weights,
    )
    return result("kv_step_time_lower_bound", (weights + read) / bandwidth)


def llama_weight_bytes(
    *,
    hidden_size: ArrayLike,
    intermediate_size: ArrayLike,
    num_hidden_layers: ArrayLike,
    num_attention_heads: ArrayLike,
    num_key_value_heads: ArrayLike,
    head_dim: ArrayLike,
    vocab_size: ArrayLike,
    bytes_per_element: ArrayLike = 2,
) -> int | FloatOrArray:
    """Weights that a decode step of a dense Llama reads, M (eq-kv-step-weights).

    That is every matrix and norm of every layer, the last norm and the output head. The input
    embedding is left out: a step reads one row of it a sequence.

    Parameters
    ----------
    hidden_size : n_hid; these names are the keys of the model's `config.json`.
    intermediate_size : n_ff, width of the MLP.
    num_hidden_layers : n_layer.
    num_attention_heads : H, query heads, a multiple of the KV heads.
    num_key_value_heads : H_kv.
    head_dim : d; where the file has none, n_hid / H.
    vocab_size : n_voc.
    bytes_per_element : s; 2 for bf16.

    Returns
    -------
    Bytes.

    Raises
    ------
    ValueError : a count below 1 or not whole, H no multiple of H_kv, or s not positive.

    Source: Grattafiori et al., The Llama 3 Herd of Models (arXiv:2407.21783), section 3.2.
    """
    counts = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "num_key_value_heads": num_key_value_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
    }
    sizes = {name: count(name, value, minimum=1) for name, value in counts.items()}
    sizes["bytes_per_element"] = positive("bytes_per_element", bytes_per_element)
    together(**sizes)
    h, f, layers, heads, kv_heads, d, vocabulary, s = np.broadcast_arrays(*sizes.values())
    require("num_attention_heads", heads, heads % kv_heads == 0, "a multiple of the KV heads")
    layer = 2 * d * (heads + kv_heads) + 3 * f + 2  # attention, MLP, two norms
    return result_size("llama_weight_bytes", s * h * (layers * layer + vocabulary + 1))
