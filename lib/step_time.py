"""How long an engine step takes: roofline, sum, and lines fitted to measured time (chapter
`step_time`).

A step is described by four counts. `prefill_tokens`: prompt tokens that it computes.
`decode_seqs`: sequences that decode. `context_tokens`: tokens with KV after the step, summed over
the sequences in it. `pairs`: pairs of a query and a key, see `attention_pairs`.
"""

from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    numeric,
    of_kind,
    one,
    ordered,
    positive,
    real,
    require,
    result,
    together,
)
from lib.kv_cache import kv_bytes_per_token
from lib.kv_step import llama_weight_bytes

TERMS = ("steps", "prefill_tokens", "decode_seqs", "context_tokens", "pairs")
"""What a line's five coefficients multiply, in order; `steps` is 1 for a single step."""

BLOCKS, STUDENT, ROUNDS = 20, 2.0930, 10
"""Stretches of time that `fit` leaves out in turn; the 97.5 % point of Student's t with 19 degrees
of freedom, for 95 % intervals; and rounds of reweighting, far more than they take to settle."""

CLOCK_ROUNDS, CLOCK_ERROR = 200, 1e-3
"""Rounds of mending the step clock at most, and the error of every request at which it is good."""

Line = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepTime:
    """T = max over lines of a + p P + q B + g K + r R (eq-step-time-lines).

    Parameters
    ----------
    lines : one or more, each (a, p, q, g, r): seconds a step, a prompt token, a decoding sequence,
        a token of context, a pair.

    Raises
    ------
    ValueError : no line; a line that is not five finite numbers >= 0; no number above 0.
    TypeError : a coefficient is no real number.

    Source: Williams et al. (CACM 2009) for the max of two lines.
    """

    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        lines = nonnegative("lines", self.lines)
        if lines.ndim != 2 or lines.shape[0] == 0 or lines.shape[1] != len(TERMS):
            raise ValueError(
                f"lines must be one or more of {len(TERMS)} coefficients: got shape {lines.shape}"
            )
        if not np.any(lines > 0):
            raise ValueError("lines must hold a coefficient above 0: such a step takes no time")
        # Plain floats: a simulator reads them a million times.
        object.__setattr__(self, "lines", tuple(tuple(line) for line in lines.tolist()))

    def __call__(
        self,
        prefill_tokens: ArrayLike,
        decode_seqs: ArrayLike,
        context_tokens: ArrayLike,
        pairs: ArrayLike,
    ) -> FloatOrArray:
        """Seconds of a step with these counts; arrays broadcast.

        Raises
        ------
        ValueError : a count is negative, NaN or infinite; shapes do not broadcast.
        """
        counts = {
            "prefill_tokens": nonnegative("prefill_tokens", prefill_tokens),
            "decode_seqs": nonnegative("decode_seqs", decode_seqs),
            "context_tokens": nonnegative("context_tokens", context_tokens),
            "pairs": nonnegative("pairs", pairs),
        }
        together(**counts)
        p, q, k, r = counts.values()
        each = [a + b * p + c * q + d * k + e * r for a, b, c, d, e in self.lines]
        return result("step time", np.maximum.reduce(each))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A dense Llama-like decoder; the first seven names are the keys of its `config.json`.

    Parameters
    ----------
    hidden_size : n_hid.
    intermediate_size : n_ff, width of the gated MLP.
    num_hidden_layers : n_layer.
    num_attention_heads : H, query heads, a multiple of the KV heads.
    num_key_value_heads : H_kv.
    head_dim : d; where the file has none, n_hid / H.
    vocab_size : n_voc.
    bytes_per_weight, bytes_per_kv : bytes of a number (B): 2 for bf16, 1 for fp8, 0.5 for 4 bit.

    Raises
    ------
    ValueError : a count below 1 or not whole, H no multiple of H_kv, a size not positive.
    TypeError : an argument is not one real number.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    bytes_per_weight: float = 2
    bytes_per_kv: float = 2

    def __post_init__(self) -> None:
        for name in ("bytes_per_weight", "bytes_per_kv"):
            one(name, positive(name, getattr(self, name)))
        for name in self.__slots__[:-2]:
            one(name, count(name, getattr(self, name), minimum=1))
        require(
            "num_attention_heads",
            np.asarray(float(self.num_attention_heads)),
            np.asarray(self.num_attention_heads % self.num_key_value_heads == 0),
            "a multiple of the KV heads",
        )

    @property
    def weight_bytes(self) -> float:
        """M, weights that a step reads (B), see `kv_step.llama_weight_bytes`."""
        return float(
            llama_weight_bytes(
                hidden_size=self.hidden_size,
                intermediate_size=self.intermediate_size,
                num_hidden_layers=self.num_hidden_layers,
                num_attention_heads=self.num_attention_heads,
                num_key_value_heads=self.num_key_value_heads,
                head_dim=self.head_dim,
                vocab_size=self.vocab_size,
                bytes_per_element=self.bytes_per_weight,
            )
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """b, KV cache of a token (B), see `kv_cache.kv_bytes_per_token`."""
        return float(
            kv_bytes_per_token(
                self.num_hidden_layers, self.num_key_value_heads, self.head_dim, self.bytes_per_kv
            )
        )

    @property
    def layer_flops(self) -> float:
        """f_tok, FLOPs of a token in all layers, 2 for each parameter (eq-step-time-flops)."""
        heads = self.num_attention_heads + self.num_key_value_heads
        layer = 2 * self.head_dim * heads + 3 * self.intermediate_size
        return 2.0 * self.hidden_size * self.num_hidden_layers * layer

    @property
    def head_flops(self) -> float:
        """f_head, FLOPs of a token in the output head (eq-step-time-flops)."""
        return 2.0 * self.hidden_size * self.vocab_size

    @property
    def pair_flops(self) -> float:
        """f_pair, FLOPs of a query-key pair: score and weighted value (eq-step-time-pair-flops)."""
        return 4.0 * self.num_hidden_layers * self.num_attention_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a device can do at most.

    Parameters
    ----------
    flops_per_s : F, arithmetic in the number format of the products (FLOP/s), dense.
    memory_bandwidth_bytes_per_s : BW (B/s).
    memory_bytes : size of that memory (B).

    Raises
    ------
    ValueError : a figure is not positive.
    TypeError : a figure is not one real number.
    """

    flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            one(name, positive(name, getattr(self, name)))


def attention_pairs(tokens: ArrayLike, context: ArrayLike) -> FloatOrArray:
    """Query-key pairs of n tokens that end a context of K_1 (eq-step-time-pairs).

    Parameters
    ----------
    tokens : n, tokens of one sequence that the step computes; 1 for a decode.
    context : K_1, tokens of that sequence with KV after the step, >= n.

    Returns
    -------
    n (2 K_1 - n + 1) / 2 pairs: each token looks at itself and at all before it.

    Raises
    ------
    ValueError : a count is negative or not whole, or `context` is below `tokens`.
    """
    n, k = count("tokens", tokens), count("context", context)
    together(tokens=n, context=k)
    n, k = np.broadcast_arrays(n, k)
    require("context", k, k >= n, ">= tokens")
    return result("attention_pairs", n * (2 * k - n + 1) / 2)


def roofline(
    model: Model,
    hardware: Hardware,
    *,
    overhead: float = 0.0,
    tokens_per_seq: float = 1,
) -> StepTime:
    """T = max(compute, memory) + overhead (eq-step-time).

    Compute is (f_tok (P + k B) + f_head k B + f_pair R) / F, memory is (M + b K) / BW
    (eq-step-time-parts), with the FLOPs and bytes of `model`. Left out: activations, norms,
    biases, the output head of a prompt's last token, and what the kernels lose.

    Parameters
    ----------
    model, hardware : see `Model` and `Hardware`.
    overhead : seconds that each step takes beside both.
    tokens_per_seq : k, tokens computed for a decoding sequence: 1, or with speculative decoding
        the proposed ones and one more. `context_tokens` and `pairs` of the step are then those
        of k tokens (`attention_pairs(k, context)`).

    Returns
    -------
    StepTime of two lines: compute, memory.

    Raises
    ------
    TypeError : `model` or `hardware` is of another kind.
    ValueError : overhead is negative, NaN or infinite; tokens_per_seq is below 1 or not whole.

    Source: Williams et al. (CACM 2009); Pope et al. (MLSys 2023), section 2.
    """
    of_kind("model", model, Model)
    of_kind("hardware", hardware, Hardware)
    lost = one("overhead", nonnegative("overhead", overhead))
    tokens = one("tokens_per_seq", count("tokens_per_seq", tokens_per_seq, minimum=1))
    rate, bandwidth = hardware.flops_per_s, hardware.memory_bandwidth_bytes_per_s
    prefill, pair = model.layer_flops / rate, model.pair_flops / rate
    decode = tokens * (model.layer_flops + model.head_flops) / rate
    weights, kv = model.weight_bytes / bandwidth, model.kv_bytes_per_token / bandwidth
    compute = (lost, prefill, decode, 0.0, pair)
    memory = (lost + weights, 0.0, 0.0, kv, 0.0)
    return StepTime((compute, memory))


def additive(
    model: Model,
    hardware: Hardware,
    *,
    overhead: float = 0.0,
    tokens_per_seq: float = 1,
) -> StepTime:
    """T = compute + memory + overhead: nothing overlaps (eq-step-time-sum).

    Parameters
    ----------
    model, hardware, overhead, tokens_per_seq : as `roofline`.

    Returns
    -------
    StepTime of one line, at least `roofline` and at most twice it.

    Raises
    ------
    ValueError : as `roofline`.
    """
    compute, memory = roofline(model, hardware, tokens_per_seq=tokens_per_seq).lines
    lost = one("overhead", nonnegative("overhead", overhead))
    a, p, q, k, r = (x + y for x, y in zip(compute, memory, strict=True))
    return StepTime(((lost + a, p, q, k, r),))


def ridge_tokens(
    model: Model,
    hardware: Hardware,
    *,
    context: float = 0,
    tokens_per_seq: float = 1,
) -> float:
    """Tokens in a decode step from which compute outlasts memory (eq-step-time-ridge).

    Parameters
    ----------
    model, hardware : see `Model` and `Hardware`.
    context : K_1, tokens of each sequence with KV after the step; 0 leaves attention out.
    tokens_per_seq : k, as in `roofline`.

    Returns
    -------
    Tokens, k B*; infinity where each further sequence brings more time of
    memory than of compute, so that no batch is large enough.

    Raises
    ------
    ValueError : context is negative, or below k though not 0; tokens_per_seq as `roofline`.
    """
    compute, memory = roofline(model, hardware, tokens_per_seq=tokens_per_seq).lines
    held = one("context", nonnegative("context", context))
    pairs = float(attention_pairs(tokens_per_seq, held)) if held else 0.0
    more = compute[2] + compute[4] * pairs - memory[3] * held  # by one sequence more
    return tokens_per_seq * memory[0] / more if more > 0 else inf


# Fitted lines -------------------------------------------------------------------------------------


_ONE, _ABSENT = cast(FloatArray, 1), cast(FloatArray, np.nan)  # for columns left out


@dataclass(frozen=True, eq=False, kw_only=True)
class Intervals:
    """Stretches of time and the work of the steps in them, one row each, in order of time.

    Parameters
    ----------
    duration : (n,) seconds > 0.
    steps, prefill_tokens, decode_seqs, context_tokens, pairs : (n,) or a number; the counts of
        this module summed over the steps of the row. `steps` is 1 for a step log. NaN where the
        source does not tell: a fit cannot use that term.

    Raises
    ------
    ValueError : lengths differ, no row, a negative or infinite value, a duration of 0.
    """

    duration: FloatArray
    steps: FloatArray = _ONE
    prefill_tokens: FloatArray = _ABSENT
    decode_seqs: FloatArray = _ABSENT
    context_tokens: FloatArray = _ABSENT
    pairs: FloatArray = _ABSENT

    def __post_init__(self) -> None:
        duration = positive("duration", self.duration)
        if duration.ndim != 1 or duration.size == 0:
            raise ValueError(f"duration must be a non-empty list: got shape {duration.shape}")
        object.__setattr__(self, "duration", duration)
        for name in TERMS:
            values = numeric(name, getattr(self, name))
            require(name, values, ~(values < 0), ">= 0")
            if values.shape not in ((), duration.shape):
                raise ValueError(
                    f"{name} must have one value a duration: got shape {values.shape} "
                    f"for {duration.size} durations"
                )
            object.__setattr__(self, name, np.broadcast_to(values, duration.shape))

    def __len__(self) -> int:
        return self.duration.size

    def where(self, mask: ArrayLike) -> "Intervals":
        """The rows that a mask or an index selects."""
        columns = {name: getattr(self, name)[mask] for name in ("duration", *TERMS)}
        return Intervals(**columns)

    def predict(self, line: Line) -> FloatArray:
        """(n,) seconds by one line; terms with coefficient 0 may be missing."""
        total = np.zeros(len(self))
        for name, coefficient in zip(TERMS, line, strict=True):
            if coefficient:
                total = total + coefficient * getattr(self, name)
        return total


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit:
    """A line fitted to measured time.

    step_time : StepTime of one line; a term that was not fitted has coefficient 0.
    terms : the fitted terms.
    without : (20, 5) the line fitted with each stretch of rows left out.
    predicted, residuals : (n,) seconds of each row by the line, and measured minus predicted.
    """

    step_time: StepTime
    terms: tuple[str, ...]
    without: FloatArray
    predicted: FloatArray
    residuals: FloatArray

    def margin(self, counts: ArrayLike) -> FloatOrArray:
        """Half the width of the 95 % confidence interval of line . counts (s).

        It holds the error of the coefficients, not the scatter of single rows.

        Parameters
        ----------
        counts : (..., 5) in the order of `TERMS`: (1, 0, 1, 0, 0) for a decode step of one
            sequence, or sums over many steps. A term that was not fitted adds nothing.

        Returns
        -------
        Seconds, of shape (...).

        Raises
        ------
        ValueError : the last axis is not 5 long, or a count is NaN or infinite.
        """
        values = real("counts", counts)
        if values.shape[-1:] != (len(TERMS),):
            raise ValueError(f"counts must have {len(TERMS)} columns: got shape {values.shape}")
        spread = np.std(values @ self.without.T, axis=-1) * np.sqrt(BLOCKS - 1)
        return result("margin", STUDENT * spread)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """For each fitted term, the 95 % confidence interval of its coefficient, cut at 0."""
        line = np.array(self.step_time.lines[0])
        margin = self.margin(np.eye(len(TERMS)))
        low, high = np.maximum(line - margin, 0).tolist(), (line + margin).tolist()
        each = dict(zip(TERMS, zip(low, high, strict=True), strict=True))
        return {term: each[term] for term in self.terms}


def fit(rows: Intervals, terms: tuple[str, ...] = TERMS) -> Fit:
    """Least squares of duration on counts in relative terms, no coefficient below 0
    (eq-step-time-fit).

    Parameters
    ----------
    rows : measured stretches of time, in order of time.
    terms : which of `TERMS` the line has.

    Returns
    -------
    Fit. Noise grows with a step, so a residual counts as a share of the predicted duration (the
    weights follow the fit in a few rounds). More work never takes less time, so coefficients are
    held at >= 0: the result is the best of all lines without a negative one. The confidence
    intervals come from a block jackknife: the fit is repeated with each of 20 consecutive
    stretches of rows left out. Residuals that stay alike from row to row do not fool it while
    they forget within a stretch. Rows that overlap in time (requests) share steps across
    stretches: there the intervals are too narrow; so are those of a coefficient that the data hold
    at 0.

    Raises
    ------
    TypeError : `rows` are no Intervals, or `terms` no tuple.
    ValueError : an unknown or repeated term; fewer than two rows a stretch; a term missing in the
        rows; a term that is a linear combination of those before it, also with a stretch left
        out; no coefficient above 0.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23; Künsch (Annals
    of Statistics 1989) for the block jackknife.
    """
    of_kind("rows", rows, Intervals)
    if not isinstance(terms, tuple | list):
        raise TypeError(f"terms must be a tuple of names: got {terms!r:.80}")
    unknown = [term for term in terms if term not in TERMS]
    if unknown or not terms or len(set(terms)) < len(terms):
        raise ValueError(f"terms must be different ones of {', '.join(TERMS)}: got {terms!r}")
    n = len(rows)
    if n < 2 * BLOCKS:
        raise ValueError(f"rows must be at least {2 * BLOCKS} for a fit: got {n}")
    y = rows.duration
    columns = []
    for term in terms:
        column: FloatArray = getattr(rows, term)
        require(term, column, ~np.isnan(column), "known to be fitted: choose terms without it")
        columns.append(column)
    x = np.stack(columns, axis=1)
    scale = np.linalg.norm(x, axis=0)
    x = x / np.where(scale > 0, scale, 1)

    predicted = np.full(n, y.mean())
    for _ in range(ROUNDS):
        weight = 1 / np.maximum(predicted, y.min())
        gram, moment = _sums(x * weight[:, None], y * weight)
        _refuse_collinear(gram[0], terms)
        predicted = x @ _nonnegative_least_squares(gram[:1], moment[:1])[0]
    for matrix in gram[1:]:
        _refuse_collinear(matrix, terms)
    lines = np.zeros((BLOCKS + 1, len(TERMS)))
    lines[:, [TERMS.index(term) for term in terms]] = (
        _nonnegative_least_squares(gram, moment) / scale
    )
    step_time = StepTime((tuple(lines[0].tolist()),))
    predicted = rows.predict(step_time.lines[0])
    return Fit(
        step_time=step_time,
        terms=terms,
        without=lines[1:],
        predicted=predicted,
        residuals=y - predicted,
    )


def _sums(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sums of products over all rows, then over all but each stretch: (21, k, k) and (21, k)."""
    ends = np.arange(BLOCKS) * len(y) // BLOCKS
    gram = np.add.reduceat(x[:, :, None] * x[:, None, :], ends, axis=0)
    moment = np.add.reduceat(x * y[:, None], ends, axis=0)
    both = (np.concatenate([(whole := t.sum(axis=0))[None], whole - t]) for t in (gram, moment))
    return next(both), next(both)


def _refuse_collinear(gram: FloatArray, terms: tuple[str, ...]) -> None:
    """Each column must keep some length of its own beside the columns before it."""
    for j, term in enumerate(terms):
        before = gram[:j, :j]
        own = gram[j, j] - gram[j, :j] @ np.linalg.solve(before, gram[:j, j])
        if own <= 1e-10 * gram[j, j]:  # a part in 1e5 of the column: five digits would be lost
            others = " and ".join(terms[:j]) or "nothing"
            raise ValueError(
                f"{term} must vary on its own to be fitted: in these rows (or with one stretch of "
                f"them left out) it follows from {others}"
            )


def _nonnegative_least_squares(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """The best coefficients >= 0 of each system: the best subset whose free solution is >= 0."""
    best, gain = np.zeros_like(moment), np.zeros(len(moment))
    for size in range(1, moment.shape[1] + 1):
        for subset in map(list, combinations(range(moment.shape[1]), size)):
            part = moment[:, subset]
            free = np.linalg.solve(gram[:, subset][:, :, subset], part[:, :, None])[:, :, 0]
            drop = np.sum(free * part, axis=1)  # how far the sum of squares falls
            better = np.all(free >= 0, axis=1) & (drop > gain)
            best[better], gain[better] = 0.0, drop[better]
            best[np.ix_(better, subset)] = free[better]
    return best


def intervals_from_stamps(
    first_token: ArrayLike,
    last_token: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
) -> Intervals:
    """Rows for `fit` from request stamps alone: the time from first to last token of each request.

    Row i has N_out - 1 steps: the request decodes in every one. In its time fall the prompts of
    the requests whose first token comes after its own, until its last, and the steps of all
    other requests, which are counted on one clock for all: in each step every request that
    decodes gets a token, so between its stamps each must see its own number of steps. The clock
    runs evenly from stamp to stamp of any request, and is mended until it fits all of them.

    Parameters
    ----------
    first_token, last_token : (n,) ends of the steps that emit them, on one clock (s).
    input_tokens, output_tokens : (n,) whole numbers >= 1.

    Returns
    -------
    Intervals, in order of the first token; a request of one token has no row, but counts in
    those of others. Right where every request takes part in each step from its first to its last
    token: no clock fits preempted requests. A chunked prompt counts as if its last chunk were all
    of it.

    Raises
    ------
    ValueError : no request of two tokens; lengths differ; a stamp is missing or infinite, or the
        last token does not come after the first; a count is not whole or below 1.
    """
    first, last = nonnegative("first_token", first_token), nonnegative("last_token", last_token)
    prompt = count("input_tokens", input_tokens, minimum=1)
    made = count("output_tokens", output_tokens, minimum=1)
    if first.ndim != 1:
        raise ValueError(f"first_token must be a list of stamps: got shape {first.shape}")
    together(first_token=first, last_token=last, input_tokens=prompt, output_tokens=made)
    if not first.shape == last.shape == prompt.shape == made.shape:
        raise ValueError("lengths must match: one value a request")
    ordered(first_token=first, last_token=last)
    many = made > 1
    require("last_token", last, (last > first) | ~many, "after first_token for two tokens or more")
    if not many.any():
        raise ValueError("output_tokens must be above 1 in some request: no step to measure")

    order = np.argsort(first, kind="stable")
    first, last, prompt, made = (column[order] for column in (first, last, prompt, made))
    many = made > 1
    a, b, steps = first[many], last[many], made[many] - 1
    begin, end = _step_clock(a, b, steps)
    events = np.concatenate([begin, end])

    def during(slope: ArrayLike, curve: float) -> FloatArray:
        """Growth over each row of a total that every live request feeds, ever faster."""
        start, bend = np.broadcast_to(slope, steps.shape), np.full_like(steps, curve)
        jump = np.concatenate([start, -(start + bend * (end - begin))])
        return _integral(events, jump, np.concatenate([bend, -bend]), begin, end)

    def prompts(size: FloatArray) -> FloatArray:
        """Sum over the prompts that end in each row, its own left out."""
        total = np.concatenate([[0.0], np.cumsum(size)])
        i, j = (np.searchsorted(first, stamps, "right") for stamps in (a, b))
        return np.asarray(total[j] - total[i])

    decoded = during(prompt[many] + 0.5, 1)
    return Intervals(
        duration=b - a,
        steps=steps,
        prefill_tokens=prompts(prompt),
        decode_seqs=during(1, 0),
        context_tokens=decoded + prompts(prompt),
        pairs=decoded + prompts(prompt * (prompt + 1) / 2),
    )


def _step_clock(
    first: FloatArray, last: FloatArray, steps: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Steps of the engine up to each request's first and last token: last - first is its own.

    Between two stamps the rate of steps is the mean of what the live requests ask for; round by
    round it is multiplied by the mean factor by which they are still short.
    """
    moments, where = np.unique(np.concatenate([first, last]), return_inverse=True)
    i, j = where[: first.size], where[first.size :]
    size = moments.size

    def live(value: FloatArray) -> FloatArray:
        """Sum of a value over the requests that live between each moment and the next."""
        return np.cumsum(np.bincount(i, value, size) - np.bincount(j, value, size))[:-1]

    # Where nobody lives no step is counted; the sums leave rounding there.
    many = np.round(live(np.ones_like(steps)))
    share = np.divide(1, many, out=np.zeros(size - 1), where=many > 0)
    rate = live(steps / (last - first)) * share
    for _ in range(CLOCK_ROUNDS):
        clock = np.concatenate([[0.0], np.cumsum(rate * np.diff(moments))])
        short = steps / (clock[j] - clock[i])
        if np.all(abs(short - 1) < CLOCK_ERROR):
            break
        rate = rate * live(short) * share
    return clock[i], clock[j]


def _integral(
    events: FloatArray, jumps: FloatArray, bends: FloatArray, start: FloatArray, end: FloatArray
) -> FloatArray:
    """Integral from start to end of a rate that jumps, and changes its slope, at events.

    It goes from event to event instead of summing powers of the clock, which would cancel.
    """
    order = np.argsort(events, kind="stable")
    time = events[order]
    gap = np.diff(time, prepend=time[0])
    bend = np.cumsum(bends[order])
    rate = np.cumsum(jumps[order] + _before(bend) * gap)
    total = np.cumsum(_before(rate) * gap + _before(bend) * gap**2 / 2)

    def at(moment: FloatArray) -> FloatArray:
        i = np.searchsorted(time, moment, "right") - 1
        since = moment - time[i]
        return np.asarray(total[i] + rate[i] * since + bend[i] * since**2 / 2)

    return at(end) - at(start)


def _before(values: FloatArray) -> FloatArray:
    """Each value's predecessor; 0 before the first."""
    return np.concatenate([[0.0], values[:-1]])
