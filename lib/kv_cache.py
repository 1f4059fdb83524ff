"""The KV cache: bytes per token, blocks, and what fits (chapter `kv_cache`)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    one,
    positive,
    require,
    result,
    result_size,
    together,
)


def kv_bytes_per_token(
    layers: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    bytes_per_element: ArrayLike = 2,
) -> int | FloatOrArray:
    """KV cache per token, 2 n_layer H_kv d s (eq-kv-cache-bytes).

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
    rope_bytes: ArrayLike | None = None,
) -> int | FloatOrArray:
    """KV cache per token under multi-head latent attention, n_layer (r + d_rope) s (eq-mla-bytes).

    Parameters
    ----------
    layers : n_layer, attention layers.
    latent_dim : r, the compressed vector that keys and values are both rebuilt from.
    rope_dim : d_rope, the part of the key that carries position; shared by all heads.
    bytes_per_element : s.
    rope_bytes : bytes an element of the d_rope numbers, where they keep a wider type than the
        latent vector; s when left out.

    Returns
    -------
    Bytes per token, over all layers. One vector serves as key and value: there is no factor 2.

    Raises
    ------
    ValueError : a count below 1 or not whole, or a width not positive.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """
    factors = {
        "layers": count("layers", layers, minimum=1),
        "latent_dim": count("latent_dim", latent_dim, minimum=1),
        "rope_dim": count("rope_dim", rope_dim, minimum=1),
        "bytes_per_element": positive("bytes_per_element", bytes_per_element),
    }
    wide = factors["bytes_per_element"]
    if rope_bytes is not None:
        wide = factors["rope_bytes"] = positive("rope_bytes", rope_bytes)
    together(**factors)
    latent = factors["latent_dim"] * factors["bytes_per_element"]
    size = factors["layers"] * (latent + factors["rope_dim"] * wide)
    return result_size("mla_bytes_per_token", size)


def quantized_bytes(bits: ArrayLike, group_size: ArrayLike, scale_bytes: ArrayLike) -> FloatOrArray:
    """Bytes per element of a quantised cache with its scales, s = bits / 8 + scale / group.

    Parameters
    ----------
    bits : width of an element, such as 8 or 4.
    group_size : elements that share one scale (and zero point).
    scale_bytes : bytes of the scale (and zero point) of a group; 0 for one scale a tensor, which
        is not kept token by token.

    Returns
    -------
    s, the `bytes_per_element` of the functions above.

    Raises
    ------
    ValueError : bits not positive, a group below 1 or not whole, scale bytes negative.

    Source: llama.cpp `ggml-common.h`, blocks of 32 elements with a scale of 2 bytes.
    """
    width = positive("bits", bits)
    group = count("group_size", group_size, minimum=1)
    scale = nonnegative("scale_bytes", scale_bytes)
    together(bits=width, group_size=group, scale_bytes=scale)
    return result("quantized_bytes", width / 8 + scale / group)


def kv_heads_per_rank(kv_heads: ArrayLike, ranks: ArrayLike) -> int | FloatOrArray:
    """KV heads on one of `ranks` tensor-parallel ranks, max(1, H_kv / ranks).

    Parameters
    ----------
    kv_heads : H_kv of the model.
    ranks : tensor-parallel size.

    Returns
    -------
    Heads a rank. With more ranks than KV heads every rank still needs one, so `ranks / kv_heads`
    ranks hold the same head: the cache of all ranks together is that many times larger.

    Raises
    ------
    ValueError : a count below 1 or not whole, or neither divides the other.

    Source: vLLM `config/model.py`, `get_num_kv_heads`.
    """
    heads = count("kv_heads", kv_heads, minimum=1)
    ranks = count("ranks", ranks, minimum=1)
    together(kv_heads=heads, ranks=ranks)
    heads, ranks = np.broadcast_arrays(heads, ranks)
    divides = (heads % ranks == 0) | (ranks % heads == 0)
    require("ranks", ranks, divides, "a divisor or a multiple of kv_heads")
    return result_size("kv_heads_per_rank", np.maximum(1, heads // ranks))


def layers_per_stage(layers: ArrayLike, stages: ArrayLike) -> int | FloatOrArray:
    """Most layers on one of `stages` pipeline stages, ceil(n_layer / stages).

    Parameters
    ----------
    layers : n_layer of the model.
    stages : pipeline-parallel size.

    Returns
    -------
    Layers. A token's cache on that device is b of these layers alone; the fullest stage is the
    first to run out of blocks, so it sets the pool of all.

    Raises
    ------
    ValueError : a count below 1 or not whole, or more stages than layers.

    Source: vLLM `distributed/utils.py`, `get_pp_indices`.
    """
    total = count("layers", layers, minimum=1)
    parts = count("stages", stages, minimum=1)
    together(layers=total, stages=parts)
    total, parts = np.broadcast_arrays(total, parts)
    require("stages", parts, parts <= total, "<= layers")
    return result_size("layers_per_stage", -(-total // parts))


def kv_blocks(tokens: ArrayLike, block_size: ArrayLike) -> int | FloatOrArray:
    """Blocks that hold a context, ceil(T / beta) (eq-kv-cache-blocks).

    Parameters
    ----------
    tokens : T, tokens with KV in one sequence; 0 needs no block.
    block_size : beta, tokens a block.

    Returns
    -------
    Whole blocks.

    Raises
    ------
    ValueError : a count that is negative or not whole, or a block of 0 tokens.

    Source: Kwon et al., PagedAttention (SOSP 2023), section 4.
    """
    context = count("tokens", tokens)
    block = count("block_size", block_size, minimum=1)
    together(tokens=context, block_size=block)
    # Floor division is exact; the quotient of two large floats would round before the ceiling.
    return result_size("kv_blocks", -(-context // block))


def wasted_slots(tokens: ArrayLike, block_size: ArrayLike) -> int | FloatOrArray:
    """Empty slots in the last block, beta ceil(T / beta) - T (eq-kv-cache-waste).

    Parameters
    ----------
    tokens, block_size : as `kv_blocks`.

    Returns
    -------
    Tokens that would still fit into the blocks taken, 0 to beta - 1.

    Raises
    ------
    ValueError : as `kv_blocks`.

    Source: Kwon et al., PagedAttention (SOSP 2023), section 4.
    """
    slots = kv_blocks(tokens, block_size) * count("block_size", block_size)
    return result_size("wasted_slots", slots - count("tokens", tokens))


def mean_sequence_blocks(
    first_tokens: ArrayLike, last_tokens: ArrayLike, block_size: ArrayLike
) -> float:
    """Blocks that a sequence holds, averaged over its steps (eq-kv-cache-mean).

    Parameters
    ----------
    first_tokens : context in its first step with a full prompt, T_in (tokens).
    last_tokens : context in its last step, T_in + N_out - 1 (tokens).
    block_size : beta, tokens a block.

    Returns
    -------
    Blocks, over all sequences, each weighed by its steps: a long answer is in the batch for long.

    Raises
    ------
    ValueError : no sequence, a context below 1, a count that is not whole, a last context below
        the first.

    Source: the sum of ceil(t / beta) in closed form.
    """
    first = count("first_tokens", first_tokens, minimum=1)
    last = count("last_tokens", last_tokens, minimum=1)
    block = one("block_size", count("block_size", block_size, minimum=1))
    together(first_tokens=first, last_tokens=last)
    first, last = np.broadcast_arrays(first, last)
    if not first.size:
        raise ValueError("first_tokens must not be empty: a mean needs a sequence")
    require("last_tokens", last, last >= first, ">= first_tokens")
    held = _blocks_up_to(last, block) - _blocks_up_to(first - 1, block)
    return float(np.sum(held) / np.sum(last - first + 1))


def pool_blocks(
    memory_bytes: float,
    utilization: float,
    weight_bytes: float,
    other_bytes: float,
    bytes_per_token: float,
    block_size: int,
) -> int:
    """Blocks in the memory that is left, (u Mem - M_all - M_other) / (beta b) (eq-kv-cache-pool).

    Parameters
    ----------
    memory_bytes : Mem, the device's memory (bytes, not GB).
    utilization : u, the share of it that the engine may use, above 0 and at most 1.
    weight_bytes : M_all (bytes), every weight that is loaded.
    other_bytes : M_other, the peak of activations, graphs and runtime (bytes): an engine measures
        it in a trial step, a planner has to name it.
    bytes_per_token : b (bytes), see `kv_bytes_per_token`.
    block_size : beta, tokens a block.

    Returns
    -------
    Whole blocks. (vLLM keeps one of them for itself.)

    Raises
    ------
    ValueError : an argument out of its range, or no room for one block.

    Source: vLLM `v1/worker/gpu_worker.py`, `determine_available_memory`.
    """
    memory = one("memory_bytes", positive("memory_bytes", memory_bytes))
    share = positive("utilization", utilization)
    require("utilization", share, share <= 1, "<= 1: it is a share")
    weights = one("weight_bytes", nonnegative("weight_bytes", weight_bytes))
    other = one("other_bytes", nonnegative("other_bytes", other_bytes))
    width = one("bytes_per_token", positive("bytes_per_token", bytes_per_token))
    block = one("block_size", count("block_size", block_size, minimum=1))
    left = memory * one("utilization", share) - weights - other
    if left < block * width:
        raise ValueError(
            "memory_bytes x utilization must leave room for one block beside "
            f"weight_bytes and other_bytes: got {left:.12g} bytes left for blocks "
            f"of {block * width:.12g}"
        )
    return int(left // (block * width))


def max_concurrency(pool_blocks: ArrayLike, sequence_blocks: ArrayLike) -> FloatOrArray:
    """Sequences of one size that a pool holds at once, N_blk / blocks (eq-kv-cache-fit).

    Parameters
    ----------
    pool_blocks : N_blk, usable blocks.
    sequence_blocks : blocks that one sequence holds, or their mean. With the blocks of
        `max_model_len` tokens the result is the "maximum concurrency" that engines print. Layers
        of several kinds take their blocks from one pool: pass the sum over the kinds.

    Returns
    -------
    Sequences, not rounded: below 1 not even one fits.

    Raises
    ------
    ValueError : no pool, or a sequence without blocks.

    Source: vLLM `v1/core/kv_cache_utils.py`, `get_max_concurrency_for_kv_cache_config`.
    """
    pool = count("pool_blocks", pool_blocks, minimum=1)
    held = positive("sequence_blocks", sequence_blocks)
    together(pool_blocks=pool, sequence_blocks=held)
    return result("max_concurrency", pool / held)


def pool_tokens(concurrency: ArrayLike, max_model_len: ArrayLike) -> FloatOrArray:
    """The "cache size in tokens" that engines print, max_concurrency x max_model_len.

    Parameters
    ----------
    concurrency : sequences of full length that fit, see `max_concurrency`.
    max_model_len : longest context (tokens).

    Returns
    -------
    Tokens, not rounded. Only where every layer keeps every token is that the number of slots,
    N_blk beta. Where some layers keep a window or a fixed state it is the concurrency in other
    units, and no number of bytes follows from it.

    Raises
    ------
    ValueError : a concurrency that is not positive, a length below 1 or not whole.

    Source: vLLM `v1/core/kv_cache_utils.py`, the line "GPU KV cache size".
    """
    held = positive("concurrency", concurrency)
    longest = count("max_model_len", max_model_len, minimum=1)
    together(concurrency=held, max_model_len=longest)
    return result("pool_tokens", held * longest)


def window_blocks(
    window: ArrayLike,
    max_num_batched_tokens: ArrayLike,
    max_model_len: ArrayLike,
    block_size: ArrayLike,
) -> int | FloatOrArray:
    """Most blocks of a sequence under sliding-window attention (eq-kv-cache-window).

    Parameters
    ----------
    window : w, tokens that a query attends to, its own included.
    max_num_batched_tokens : most tokens of the sequence that one step computes.
    max_model_len : longest context.
    block_size : beta, tokens a block.

    Returns
    -------
    Blocks for w - 1 past tokens and those of the step, and one more: the window may begin inside
    a block.

    Raises
    ------
    ValueError : a count below 1 or not whole.

    Source: vLLM `v1/kv_cache_interface.py`, `SlidingWindowSpec`.
    """
    sizes = {
        "window": count("window", window, minimum=1),
        "max_num_batched_tokens": count(
            "max_num_batched_tokens", max_num_batched_tokens, minimum=1
        ),
        "max_model_len": count("max_model_len", max_model_len, minimum=1),
        "block_size": count("block_size", block_size, minimum=1),
    }
    together(**sizes)
    seen, budget, longest, block = sizes.values()
    held = np.minimum(seen - 1 + budget, longest)
    return result_size("window_blocks", kv_blocks(held, block) + 1)


def fits_in_order(
    tokens: ArrayLike, block_size: ArrayLike, pool_blocks: ArrayLike
) -> NDArray[np.bool_]:
    """Which sequences hold their blocks when the last admitted gives way (eq-kv-cache).

    Parameters
    ----------
    tokens : (..., n) contexts (tokens) of n sequences in order of admission; 0 is absent.
    block_size : beta, tokens a block.
    pool_blocks : N_blk, usable blocks.

    Returns
    -------
    (..., n) True where a sequence is present and the blocks of it and of all before it fit.

    Raises
    ------
    ValueError : a count that is negative or not whole, no pool, a block of 0 tokens.
    TypeError : `tokens` is one number.

    Source: vLLM `v1/core/sched/scheduler.py` (it preempts the last of the running list).
    """
    context = count("tokens", tokens)
    if not context.ndim:
        raise TypeError("tokens must be an array of sequences: got one number")
    block = one("block_size", count("block_size", block_size, minimum=1))
    pool = one("pool_blocks", count("pool_blocks", pool_blocks, minimum=1))
    return (context > 0) & (np.cumsum(kv_blocks(context, block), axis=-1) <= pool)


def prefix_hit_tokens(
    cached_tokens: ArrayLike, prompt_tokens: ArrayLike, block_size: ArrayLike
) -> int | FloatOrArray:
    """Prompt tokens that a prefix cache saves, beta floor(min(T_hit, T_in - 1) / beta).

    Parameters
    ----------
    cached_tokens : T_hit, leading tokens of the prompt whose KV is still cached; the first block
        that was evicted ends them, whatever lies behind it.
    prompt_tokens : T_in >= 1. The last token is always computed: its logits give the first token.
    block_size : beta, tokens a block; a hit is a whole block. Where layers of several kinds share
        the pool, the block that all of them fill together.

    Returns
    -------
    Tokens, a multiple of beta below T_in.

    Raises
    ------
    ValueError : a count that is negative or not whole, a prompt or a block of 0 tokens, more
        tokens cached than the prompt has.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    cached = count("cached_tokens", cached_tokens)
    prompt = count("prompt_tokens", prompt_tokens, minimum=1)
    block = count("block_size", block_size, minimum=1)
    together(cached_tokens=cached, prompt_tokens=prompt, block_size=block)
    cached, prompt, block = np.broadcast_arrays(cached, prompt, block)
    require("cached_tokens", cached, cached <= prompt, "<= prompt_tokens")
    return result_size("prefix_hit_tokens", np.minimum(cached, prompt - 1) // block * block)


def prefix_hit_rate(
    hit_tokens: ArrayLike, query_tokens: ArrayLike, requeried: ArrayLike = False
) -> float:
    """Share of the prompt tokens looked up that a prefix cache held, sum hits / sum queries.

    Parameters
    ----------
    hit_tokens : (n,) tokens found, one value a look-up, or the increase of a counter over the
        window in question (cold turns and warm turns are two windows).
    query_tokens : (n,) prompt tokens looked up, >= hit_tokens.
    requeried : (n,) bool, True where a preempted request looks up again what it computed itself:
        left out, since no other request saved that work.

    Returns
    -------
    The rate, 0 to 1: by tokens, so that a long prompt weighs more than a short one.

    Raises
    ------
    ValueError : a count that is negative (a counter that was reset) or not whole, more hits than
        queries, lengths that differ, or no first query: a rate of nothing is not 0.
    TypeError : `requeried` is not bool.

    Source: vLLM `v1/metrics/stats.py`, `PrefixCacheStats` (preempted requests counted apart).
    """
    hits = count("hit_tokens", hit_tokens)
    queries = count("query_tokens", query_tokens)
    again = np.asarray(requeried)
    if again.dtype != np.bool_:
        raise TypeError(f"requeried must be bool: got {again.dtype}")
    together(hit_tokens=hits, query_tokens=queries, requeried=again.astype(np.float64))
    hits, queries, again = np.broadcast_arrays(hits, queries, again)
    require("hit_tokens", hits, hits <= queries, "<= query_tokens")
    asked = queries[~again].sum()
    if not asked:
        raise ValueError("query_tokens must hold a first look-up: got 0 tokens")
    return float(hits[~again].sum() / asked)


def _blocks_up_to(tokens: FloatArray, block: float) -> FloatArray:
    """Sum of ceil(t / beta) for t = 1 to `tokens`: full blocks count 1, 2, ..., then the rest."""
    full, rest = np.divmod(tokens, block)
    blocks: FloatArray = block * full * (full + 1) / 2 + rest * (full + 1)
    return blocks
