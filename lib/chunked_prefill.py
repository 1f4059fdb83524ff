"""A prompt computed in pieces: how far it gets, and what the pieces cost (chapter
`chunked_prefill`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import FloatOrArray, count, require, result, together
from lib.step_time import StepTime, attention_pairs


def prefill_progress(
    prefilled: ArrayLike, input_tokens: ArrayLike, chunk: ArrayLike
) -> FloatOrArray:
    """Prompt tokens computed after one step more, p(t+1) = min(T_in, p(t) + C) (eq-chunk).

    Parameters
    ----------
    prefilled : p(t), prompt tokens computed before the step, <= T_in.
    input_tokens : T_in, prompt tokens, >= 1.
    chunk : C, the most tokens that the step computes of this prompt; 0 where it is not served.

    Returns
    -------
    Tokens.

    Raises
    ------
    ValueError : a count is negative or not whole, T_in is 0, or p(t) exceeds T_in.

    Source: the seed, section 4.3.
    """
    done = count("prefilled", prefilled)
    prompt = count("input_tokens", input_tokens, minimum=1)
    most = count("chunk", chunk)
    together(prefilled=done, input_tokens=prompt, chunk=most)
    done, prompt, most = np.broadcast_arrays(done, prompt, most)
    require("prefilled", done, done <= prompt, "<= input_tokens")
    return result("prefill_progress", np.minimum(prompt, done + most))


def chunk_left(max_num_batched_tokens: ArrayLike, decode_seqs: ArrayLike) -> FloatOrArray:
    """What a step's token budget leaves for prompts, C = max(0, S - B) (eq-chunk-budget).

    Parameters
    ----------
    max_num_batched_tokens : S, tokens that a step may compute, >= 1.
    decode_seqs : B, sequences served before the prompt, with one token each.

    Returns
    -------
    Tokens.

    Raises
    ------
    ValueError : a count is negative or not whole, or the budget is 0.

    Source: vLLM `v1/core/sched/scheduler.py`, `token_budget`; Agrawal et al. (OSDI 2024),
    algorithm 3.
    """
    budget = count("max_num_batched_tokens", max_num_batched_tokens, minimum=1)
    decodes = count("decode_seqs", decode_seqs)
    together(max_num_batched_tokens=budget, decode_seqs=decodes)
    return result("chunk_left", np.maximum(0.0, budget - decodes))


def chunk_count(input_tokens: ArrayLike, chunk: ArrayLike) -> FloatOrArray:
    """Steps that compute a prompt, n = ceil(T_in / C) (eq-chunk-count).

    Parameters
    ----------
    input_tokens : T_in, prompt tokens to compute, >= 1: without those that a prefix cache holds.
    chunk : C, tokens a step, >= 1.

    Returns
    -------
    Steps.

    Raises
    ------
    ValueError : a count is below 1 or not whole.

    Source: the seed, section 4.3.
    """
    prompt = count("input_tokens", input_tokens, minimum=1)
    most = count("chunk", chunk, minimum=1)
    together(input_tokens=prompt, chunk=most)
    return result("chunk_count", -(-prompt // most))


def kv_read_again(input_tokens: ArrayLike, chunk: ArrayLike) -> FloatOrArray:
    """KV that chunks read and a prompt in one piece does not, C n (n - 1) / 2 (eq-chunk-again).

    Parameters
    ----------
    input_tokens, chunk : as `chunk_count`.

    Returns
    -------
    Tokens: each chunk reads the KV of all chunks before it. Times b for bytes.

    Raises
    ------
    ValueError : as `chunk_count`.

    Source: Agrawal et al. (OSDI 2024), section 4.3, names the cost; the sum is the chapter's.
    """
    n = np.asarray(chunk_count(input_tokens, chunk))
    return result("kv_read_again", count("chunk", chunk) * n * (n - 1) / 2)


@dataclass(frozen=True, eq=False)
class ChunkedPrefill:
    """What a prompt's chunks take; see `chunked_prefill`.

    steps : n, one chunk each. seconds : their lengths together, T_prefill (s). longest_step : the
    longest of them, and so the longest gap between two tokens of a sequence that decodes in all
    of them (s).
    """

    steps: FloatOrArray
    seconds: FloatOrArray
    longest_step: FloatOrArray


def chunked_prefill(
    input_tokens: ArrayLike,
    chunk: ArrayLike,
    step_time: StepTime,
    *,
    decode_seqs: ArrayLike = 0,
    decode_context: ArrayLike = 0,
) -> ChunkedPrefill:
    """Time of a prompt in chunks beside B decodes (eq-chunk-time).

    Parameters
    ----------
    input_tokens, chunk : as `chunk_count`.
    step_time : the length of a step.
    decode_seqs : B, sequences that decode one token in each of the steps.
    decode_context : K, their tokens with KV before the first step, summed; at least B.

    Returns
    -------
    ChunkedPrefill, of numbers or of arrays of the arguments' common shape.

    Raises
    ------
    ValueError : as `chunk_count`; a count of the decodes is negative or not whole, or K < B.

    Source: the chapter, which has the sum in closed form.
    """
    counts = {
        "input_tokens": count("input_tokens", input_tokens, minimum=1),
        "chunk": count("chunk", chunk, minimum=1),
        "decode_seqs": count("decode_seqs", decode_seqs),
        "decode_context": count("decode_context", decode_context),
    }
    together(**counts)
    prompt, most, decodes, context = np.broadcast_arrays(*counts.values())
    require("decode_context", context, context >= decodes, ">= decode_seqs")
    n = np.asarray(chunk_count(prompt, most))

    # One row a chunk, the rows of a prompt together; `turn` counts them from 1.
    steps = n.ravel().astype(np.int64)
    first = np.cumsum(steps) - steps
    turn = np.arange(1, steps.sum() + 1) - np.repeat(first, steps)
    prompts, mosts, beside, before = (
        np.repeat(column.ravel(), steps) for column in (prompt, most, decodes, context)
    )
    end = np.minimum(prompts, turn * mosts)
    tokens = end - (turn - 1) * mosts
    held = before + turn * beside
    length = np.asarray(step_time(tokens, beside, held + end, held + attention_pairs(tokens, end)))
    return ChunkedPrefill(
        steps=result("steps", n),
        seconds=result("seconds", np.add.reduceat(length, first).reshape(n.shape)),
        longest_step=result("longest_step", np.maximum.reduceat(length, first).reshape(n.shape)),
    )


def gap_bound(
    max_num_batched_tokens: ArrayLike,
    step_time: StepTime,
    *,
    decode_seqs: ArrayLike,
    context_tokens: ArrayLike,
    longest_prompt: ArrayLike,
) -> FloatOrArray:
    """No step of a token budget lasts longer, T(C, B, K, K + C T_max) (eq-chunk-gap).

    So no gap between two tokens of a sequence that decodes in every step is longer.

    Parameters
    ----------
    max_num_batched_tokens : S; C = S - B is left for prompts, see `chunk_left`.
    step_time : the length of a step.
    decode_seqs : B, sequences that decode in the step, <= S.
    context_tokens : K, tokens with KV after the step, summed over all sequences in it.
    longest_prompt : T_max, the longest prompt in the system (tokens), >= 1. With preemption: the
        longest prompt and answer so far, which are computed again.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : a count is negative or not whole, S or T_max is 0, or B exceeds S or K.

    Source: the chapter, thm-chunk-gap.
    """
    budget = count("max_num_batched_tokens", max_num_batched_tokens, minimum=1)
    decodes = count("decode_seqs", decode_seqs)
    held = count("context_tokens", context_tokens)
    longest = count("longest_prompt", longest_prompt, minimum=1)
    together(
        max_num_batched_tokens=budget,
        decode_seqs=decodes,
        context_tokens=held,
        longest_prompt=longest,
    )
    budget, decodes, held = np.broadcast_arrays(budget, decodes, held)
    require("decode_seqs", decodes, decodes <= budget, "<= max_num_batched_tokens")
    require("context_tokens", held, held >= decodes, ">= decode_seqs")
    left = budget - decodes
    return step_time(left, decodes, held, held + left * longest)
