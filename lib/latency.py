"""What one request feels: TTFT and its parts, TPOT, ITL, E2E (chapters `ttft` and `e2e`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    choice,
    count,
    nonnegative,
    ordered,
    real,
    require,
    result,
    together,
)


def ttft(request_arrive: ArrayLike, first_token_out: ArrayLike) -> FloatOrArray:
    """Time to first token, TTFT = t_first - t_arrive (eq-ttft-definition).

    Parameters
    ----------
    request_arrive, first_token_out : stamps on one clock (s), scalars or arrays that broadcast.

    Returns
    -------
    TTFT (s), a float or an array.

    Raises
    ------
    ValueError : a stamp is NaN or infinite, or the first token precedes the arrival.

    Source: vLLM `benchmarks/serve.py`, metric `ttft`; the seed, section 1.1.
    """
    arrive = real("request_arrive", request_arrive)
    first = real("first_token_out", first_token_out)
    ordered(request_arrive=arrive, first_token_out=first)
    return result("ttft", first - arrive)


@dataclass(frozen=True)
class TTFTParts:
    """The three parts of TTFT (s); added left to right they give TTFT to the last bit."""

    queue_wait: FloatOrArray
    prefill: FloatOrArray
    first_decode: FloatOrArray


def ttft_parts(
    request_arrive: ArrayLike,
    scheduled: ArrayLike,
    prefill_end: ArrayLike,
    first_token_out: ArrayLike,
) -> TTFTParts:
    """Split TTFT = W_queue + T_prefill + T_first-decode (eq-ttft).

    Parameters
    ----------
    request_arrive : the request reaches the system (s).
    scheduled : start of the step that first serves it (s).
    prefill_end : end of the step that computes the last prompt token (s). Where that step also
        emits the first token, as in vLLM, pass `first_token_out` again: T_first-decode is 0.
    first_token_out : end of the step that emits the first token (s).

    Returns
    -------
    TTFTParts, each part (s) >= 0.

    Raises
    ------
    ValueError : a stamp is missing (NaN), infinite, or precedes the one before it.

    Source: the seed, section 1.2.
    """
    stamps = {
        "request_arrive": real("request_arrive", request_arrive),
        "scheduled": real("scheduled", scheduled),
        "prefill_end": real("prefill_end", prefill_end),
        "first_token_out": real("first_token_out", first_token_out),
    }
    ordered(**stamps)
    arrive, start, end, first = np.broadcast_arrays(*stamps.values())
    total = first - arrive
    ulp = np.spacing(total)  # on TTFT's own float grid, differences and sums are exact
    served, prefilled = (np.round((stamp - arrive) / ulp) * ulp for stamp in (start, end))
    return TTFTParts(
        queue_wait=result("queue_wait", served),
        prefill=result("prefill", prefilled - served),
        first_decode=result("first_decode", total - prefilled),
    )


def tpot(
    first_token_out: ArrayLike,
    last_token_out: ArrayLike,
    output_tokens: ArrayLike,
    *,
    first_chunk_tokens: ArrayLike = 1,
    one_token: str = "zero",
) -> FloatOrArray:
    """Time per output token, TPOT = (t_last - t_first) / (N_out - 1) (eq-tpot).

    Parameters
    ----------
    first_token_out, last_token_out : stamps on one clock (s).
    output_tokens : N_out >= 1.
    first_chunk_tokens : tokens that arrive with the first one; the divisor is N_out less these.
    one_token : TPOT where no gap exists (N_out = first_chunk_tokens): "zero" (the seed's
        convention, and vLLM's when it judges a goodput target) or "missing" (NaN; load tools
        leave such requests out of their TPOT statistics).

    Returns
    -------
    TPOT (s per token), one value a request.

    Raises
    ------
    ValueError : a stamp is NaN or infinite, the last token precedes the first, N_out < 1, or the
        stamps differ although all tokens came at once.

    Source: vLLM `benchmarks/serve.py`, metric `tpot`; MLPerf Inference loadgen; the seed, 1.1.
    """
    choice("one_token", one_token, ("zero", "missing"))
    first = real("first_token_out", first_token_out)
    last = real("last_token_out", last_token_out)
    ordered(first_token_out=first, last_token_out=last)
    tokens = count("output_tokens", output_tokens, minimum=1)
    at_once = count("first_chunk_tokens", first_chunk_tokens, minimum=1)
    together(last_token_out=last - first, output_tokens=tokens, first_chunk_tokens=at_once)
    span, gaps = np.broadcast_arrays(last - first, tokens - at_once)
    require("output_tokens", gaps + at_once, gaps >= 0, ">= first_chunk_tokens")
    stray = (gaps == 0) & (span > 0)
    require(
        "output_tokens", gaps + at_once, ~stray, "> 1 when the last token comes after the first"
    )
    value = result("tpot", span / np.maximum(gaps, 1))
    if one_token == "missing":
        value = np.where(gaps == 0, np.nan, value)
        return value if value.ndim else float(value)
    return value


def itl(token_times: ArrayLike) -> FloatArray:
    """Inter-token latencies of one request, the gaps t_{k+1} - t_k (eq-itl).

    Parameters
    ----------
    token_times : (N,) stamps of the tokens (or of the chunks that carry them), in order (s).

    Returns
    -------
    (N - 1,) gaps (s); empty for one token. The wait for the first token is not among them.

    Raises
    ------
    ValueError : no stamp, a stamp is NaN or infinite, or one precedes the stamp before it.

    Source: vLLM `benchmarks/serve.py`, metric `itl`.
    """
    times = real("token_times", token_times)
    if times.ndim != 1 or times.size == 0:
        raise ValueError(f"token_times must be a non-empty list of stamps: got shape {times.shape}")
    gaps = np.diff(times)
    require("token_times", times[1:], gaps >= 0, ">= the stamp before it")
    return gaps


def e2e_latency(request_arrive: ArrayLike, last_token_out: ArrayLike) -> FloatOrArray:
    """End-to-end latency, E2E = t_last - t_arrive (eq-e2e-definition).

    Parameters
    ----------
    request_arrive, last_token_out : stamps on one clock (s).

    Returns
    -------
    E2E (s).

    Raises
    ------
    ValueError : a stamp is NaN or infinite, or the last token precedes the arrival.

    Source: the seed, section 1.1.
    """
    arrive = real("request_arrive", request_arrive)
    last = real("last_token_out", last_token_out)
    ordered(request_arrive=arrive, last_token_out=last)
    return result("e2e_latency", last - arrive)


def e2e_from_ttft_tpot(
    ttft_value: ArrayLike, tpot_value: ArrayLike, output_tokens: ArrayLike
) -> FloatOrArray:
    """End-to-end latency from its ledger entries, E2E = TTFT + (N_out - 1) TPOT (eq-e2e).

    Parameters
    ----------
    ttft_value : TTFT (s) >= 0.
    tpot_value : TPOT (s per token) >= 0.
    output_tokens : N_out >= 1.

    Returns
    -------
    E2E (s).

    Raises
    ------
    ValueError : a time is negative, NaN or infinite, or N_out < 1.

    Source: the seed, section 1.3.
    """
    first = nonnegative("ttft_value", ttft_value)
    each = nonnegative("tpot_value", tpot_value)
    tokens = count("output_tokens", output_tokens, minimum=1)
    together(ttft_value=first, tpot_value=each, output_tokens=tokens)
    return result("e2e_from_ttft_tpot", first + (tokens - 1) * each)


def normalized_latency(
    request_arrive: ArrayLike, last_token_out: ArrayLike, output_tokens: ArrayLike
) -> FloatOrArray:
    """E2E / N_out: a time per token that includes the wait for the first (eq-normalized).

    Parameters
    ----------
    request_arrive, last_token_out : stamps on one clock (s).
    output_tokens : N_out >= 1.

    Returns
    -------
    E2E / N_out (s per token). GuideLLM calls this TPOT and llmperf calls it inter-token latency.

    Raises
    ------
    ValueError : as `e2e_latency`; N_out < 1.

    Source: Yu et al., Orca (OSDI 2022), section 6; GuideLLM `schemas/base/request_stats.py`.
    """
    total = np.asarray(e2e_latency(request_arrive, last_token_out))
    tokens = count("output_tokens", output_tokens, minimum=1)
    together(request_arrive=total, output_tokens=tokens)
    return result("normalized_latency", total / tokens)


@dataclass(frozen=True)
class RequestMetrics:
    """TTFT (s), TPOT (s per token), E2E (s) and N_out of one request, or of many as arrays."""

    request_id: Any
    output_tokens: Any
    ttft: Any
    tpot: Any
    e2e_latency: Any


def request_metrics(
    request_id: Any,
    request_arrive: ArrayLike,
    first_token_out: ArrayLike,
    last_token_out: ArrayLike,
    output_tokens: ArrayLike,
) -> RequestMetrics:
    """TTFT, TPOT and E2E of one request, or of many when the stamps are arrays.

    Parameters
    ----------
    request_id : a label, or one a request.
    request_arrive, first_token_out, last_token_out : stamps on one clock (s).
    output_tokens : N_out >= 1.

    Returns
    -------
    RequestMetrics; TPOT is 0 for N_out = 1 (`tpot`, `one_token="zero"`).

    Raises
    ------
    ValueError, TypeError : as `ttft`, `tpot` and `e2e_latency`.

    Source: the seed, section 1.3.
    """
    tokens = count("output_tokens", output_tokens, minimum=1)
    return RequestMetrics(
        request_id=request_id,
        output_tokens=tokens if tokens.ndim else int(tokens),
        ttft=ttft(request_arrive, first_token_out),
        tpot=tpot(first_token_out, last_token_out, output_tokens),
        e2e_latency=e2e_latency(request_arrive, last_token_out),
    )
