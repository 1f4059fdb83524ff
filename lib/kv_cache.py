"""Bytes of KV cache per token (chapter `kv_step` derives them)."""

from numpy.typing import ArrayLike

from lib._validate import FloatOrArray, count, positive, result_size, together


def kv_bytes_per_token(
    layers: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    bytes_per_element: ArrayLike = 2,
) -> int | FloatOrArray:
    """KV cache per token, 2 n_layer H_kv d s (eq-kv-bytes).

    Parameters
    ----------
    layers : n_layer, attention layers.
    kv_heads : H_kv, key/value heads: all query heads for MHA, fewer for GQA, 1 for MQA.
    head_dim : d, the model's own head size; not always hidden size / query heads.
    bytes_per_element : s; 2 for bf16, 1 for fp8, 0.5 for 4-bit without scales.

    Returns
    -------
    Bytes per token, over all layers.

    Raises
    ------
    ValueError : a count below 1 or not whole, or s not positive.

    Source: Ainslie et al., GQA (EMNLP 2023), section 2; Shazeer (2019) for MQA.
    """
    factors = {
        "layers": count("layers", layers, minimum=1),
        "kv_heads": count("kv_heads", kv_heads, minimum=1),
        "head_dim": count("head_dim", head_dim, minimum=1),
        "bytes_per_element": positive("bytes_per_element", bytes_per_element),
    }
    together(**factors)
    size = 2 * factors["layers"] * factors["kv_heads"] * factors["head_dim"]
    return result_size("kv_bytes_per_token", size * factors["bytes_per_element"])


def mla_bytes_per_token(
    layers: ArrayLike,
    latent_dim: ArrayLike,
    rope_dim: ArrayLike,
    bytes_per_element: ArrayLike = 2,
) -> int | FloatOrArray:
    """KV cache per token under multi-head latent attention, n_layer (r + d_rope) s (eq-mla-bytes).

    Parameters
    ----------
    layers : n_layer, attention layers.
    latent_dim : r, the compressed vector that keys and values are both rebuilt from.
    rope_dim : d_rope, the part of the key that carries position; shared by all heads.
    bytes_per_element : s.

    Returns
    -------
    Bytes per token, over all layers. One vector serves as key and value: there is no factor 2.

    Raises
    ------
    ValueError : a count below 1 or not whole, or s not positive.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """
    factors = {
        "layers": count("layers", layers, minimum=1),
        "latent_dim": count("latent_dim", latent_dim, minimum=1),
        "rope_dim": count("rope_dim", rope_dim, minimum=1),
        "bytes_per_element": positive("bytes_per_element", bytes_per_element),
    }
    together(**factors)
    size = factors["layers"] * (factors["latent_dim"] + factors["rope_dim"])
    return result_size("mla_bytes_per_token", size * factors["bytes_per_element"])
