"""Step-time models: counts of a real forward pass, invariants, fits, refusals."""

from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from lib import engine_runs
from lib.constants import load_hardware, load_model
from lib.scheduling import TokenBudgetScheduler
from lib.simulator import simulate
from lib.step_time import (
    BLOCKS,
    TERMS,
    Hardware,
    Intervals,
    Model,
    StepTime,
    additive,
    attention_pairs,
    fit,
    intervals_from_stamps,
    ridge_tokens,
    roofline,
)

NAN, INF = float("nan"), float("inf")
TINY = Model(
    hidden_size=6,
    intermediate_size=10,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=3,
    vocab_size=11,
)
LLAMA = Model(
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128_256,
)
UNIT = Hardware(flops_per_s=1, memory_bandwidth_bytes_per_s=1, memory_bytes=1)
H100 = Hardware(flops_per_s=989.4e12, memory_bandwidth_bytes_per_s=3.35e12, memory_bytes=80e9)


# StepTime -----------------------------------------------------------------------------------------


def test_the_longest_line_counts():
    step = StepTime(((1, 2, 3, 4, 5), (100, 0, 0, 1, 0)))
    assert step(1, 1, 1, 1) == 101
    assert step(10, 10, 10, 10) == 141
    assert type(step(1, 1, 1, 1)) is float
    assert_array_equal(step([0, 50], 0, 0, 0), [100, 101])
    assert step(np.zeros((2, 1)), np.ones(3), 0, 0).shape == (2, 3)


def test_lines_are_plain_floats():
    given_lines = np.array([[1, 0, 0, 0, 0], [0, 2, 0, 0, 0]], np.float32)
    step = StepTime(given_lines)
    assert step.lines == ((1.0, 0.0, 0.0, 0.0, 0.0), (0.0, 2.0, 0.0, 0.0, 0.0))
    assert {type(c) for line in step.lines for c in line} == {float}
    assert step == StepTime(step.lines)
    assert hash(step) == hash(StepTime(step.lines))
    with pytest.raises(FrozenInstanceError):
        step.lines = ()


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ((), "lines must be one or more of 5 coefficients: got shape \\(0,\\)"),
        ((1, 2, 3, 4, 5), "one or more of 5 coefficients: got shape \\(5,\\)"),
        (((1, 2, 3, 4),), "5 coefficients: got shape \\(1, 4\\)"),
        (((1, 2, 3, 4, -5),), "lines must be >= 0: got -5 at index \\(0, 4\\)"),
        (((1, 2, 3, NAN, 5),), "lines must be finite .*: got nan"),
        (((1, 2, 3, INF, 5),), "lines must be finite .*: got inf"),
        (((0, 0, 0, 0, 0),), "lines must hold a coefficient above 0"),
        (((1, 2, 3, 4, 5), (1, 2)), "lines must be a number or a rectangular array"),
    ],
)
def test_lines_refused(lines, rule):
    with pytest.raises(ValueError, match=rule):
        StepTime(lines)


@pytest.mark.parametrize("name", TERMS[1:])
@pytest.mark.parametrize("bad", [-1, NAN, INF])
def test_counts_refused(name, bad):
    counts = dict.fromkeys(TERMS[1:], 1) | {name: bad}
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        StepTime(((1, 1, 1, 1, 1),))(**counts)


def test_counts_of_other_kinds_or_lengths_refused():
    step = StepTime(((1, 1, 1, 1, 1),))
    with pytest.raises(TypeError, match="decode_seqs must be a real number"):
        step(1, "2", 1, 1)
    with pytest.raises(TypeError, match="lines must be a real number"):
        StepTime("fast")
    with pytest.raises(ValueError, match=r"lengths must match: got prefill_tokens \(2,\)"):
        step([1, 2], [1, 2, 3], 1, 1)


# Roofline -----------------------------------------------------------------------------------------


def forward(model, chunks):
    """A step of a Llama, shapes only: FLOPs and bytes of (tokens, context, decodes) chunks."""
    flops, read = 0, set()

    def times(weight, rows):
        nonlocal flops
        read.add(weight)
        flops += 2 * rows * weight[1] * weight[2]

    h, d = model.hidden_size, model.head_dim
    q, kv = model.num_attention_heads * d, model.num_key_value_heads * d
    cached = 0
    for tokens, context, decodes in chunks:
        for layer in range(model.num_hidden_layers):
            for name, a, b in (("q", h, q), ("k", h, kv), ("v", h, kv), ("o", q, h)):
                times((f"{layer}{name}", a, b), tokens)
            for name, a, b in (
                ("gate", h, model.intermediate_size),
                ("up", h, model.intermediate_size),
                ("down", model.intermediate_size, h),
            ):
                times((f"{layer}{name}", a, b), tokens)
            for position in range(context - tokens + 1, context + 1):
                for _ in range(model.num_attention_heads):
                    flops += 2 * d * position  # scores
                    flops += 2 * position * d  # weighted values
            read |= {(f"{layer}norm{i}", h, 1) for i in range(2)}
            cached += 2 * context * kv
        if decodes:
            times(("head", h, model.vocab_size), tokens)
    read |= {("norm", h, 1), ("head", h, model.vocab_size)}
    weights = sum(a * b for _, a, b in read)
    return flops, weights * model.bytes_per_weight + cached * model.bytes_per_kv


STEPS = [
    [(1, 5, True)],
    [(1, 5, True), (1, 9, True), (1, 1, True)],
    [(4, 4, False)],
    [(3, 8, False), (1, 7, True), (1, 2, True)],
]


@pytest.mark.parametrize("chunks", STEPS)
@pytest.mark.parametrize("model", [TINY, replace(TINY, bytes_per_weight=0.5, bytes_per_kv=1)])
def test_the_lines_count_a_forward_pass(model, chunks):
    flops, read = forward(model, chunks)
    counts = {
        "prefill_tokens": sum(n for n, _, decodes in chunks if not decodes),
        "decode_seqs": sum(decodes for *_, decodes in chunks),
        "context_tokens": sum(k for _, k, _ in chunks),
        "pairs": sum(attention_pairs(n, k) for n, k, _ in chunks),
    }
    for rate, bandwidth in ((1, 1), (7, 3), (1e3, 0.1)):
        hardware = Hardware(
            flops_per_s=rate, memory_bandwidth_bytes_per_s=bandwidth, memory_bytes=1
        )
        compute, memory = (StepTime((line,)) for line in roofline(model, hardware).lines)
        assert compute(**counts) == pytest.approx(flops / rate)
        assert memory(**counts) == pytest.approx(read / bandwidth)
        longest = max(flops / rate, read / bandwidth)
        late = roofline(model, hardware, overhead=0.5)(**counts)
        assert late == pytest.approx(longest + 0.5)
        added = additive(model, hardware, overhead=0.5)(**counts)
        assert added == pytest.approx(flops / rate + read / bandwidth + 0.5)


def test_speculative_tokens_count_as_computed():
    chunks = [(4, 20, True), (4, 9, True)]
    flops, read = forward(TINY, chunks)
    pairs = attention_pairs(4, 20) + attention_pairs(4, 9)
    compute, memory = roofline(TINY, UNIT, tokens_per_seq=4).lines
    assert StepTime((compute,))(0, 2, 29, pairs) == flops
    assert StepTime((memory,))(0, 2, 29, pairs) == read


tokens = st.integers(0, 5000)


@given(
    tokens, st.integers(0, 300), st.integers(0, 10**6), st.floats(1e6, 1e15), st.floats(1e6, 1e13)
)
def test_between_the_max_and_twice_the_max(prefill, decodes, context, rate, bandwidth):
    hardware = Hardware(flops_per_s=rate, memory_bandwidth_bytes_per_s=bandwidth, memory_bytes=1)
    counts = (prefill, decodes, context, context)
    low, added = roofline(LLAMA, hardware)(*counts), additive(LLAMA, hardware)(*counts)
    assert low * (1 - 1e-12) <= added <= 2 * low * (1 + 1e-12)
    faster = replace(hardware, flops_per_s=2 * rate)
    assert roofline(LLAMA, faster)(*counts) <= low
    assert roofline(replace(LLAMA, bytes_per_kv=1), hardware)(*counts) <= low


@given(st.integers(0, 40), st.integers(0, 60))
def test_pairs_are_those_one_counts(chunk, before):
    context = before + chunk
    counted = sum(1 for t in range(before, context) for key in range(context) if key <= t)
    assert attention_pairs(chunk, context) == counted


def test_pairs_do_not_depend_on_the_chunks():
    ends = np.array([0, 100, 130, 131, 500])
    assert sum(attention_pairs(np.diff(ends), ends[1:])) == attention_pairs(500, 500)


@pytest.mark.parametrize(
    ("tokens", "context", "rule"),
    [
        (3, 2, "context must be >= tokens: got 2"),
        (-1, 2, "tokens must be >= 0: got -1"),
        (1.5, 2, "tokens must be a whole number: got 1.5"),
        (1, NAN, "context must be finite"),
        ([1, 2], [3, 4, 5], "lengths must match"),
    ],
)
def test_pairs_refused(tokens, context, rule):
    with pytest.raises(ValueError, match=rule):
        attention_pairs(tokens, context)


@pytest.mark.parametrize("context", [0, 10, 300])
@pytest.mark.parametrize("k", [1, 4])
def test_the_lines_cross_at_the_ridge(context, k):
    batch = ridge_tokens(LLAMA, H100, context=context, tokens_per_seq=k) / k
    pairs = attention_pairs(k, context) if context else 0
    compute, memory = (
        StepTime((line,))(0, batch, batch * context, batch * pairs)
        for line in roofline(LLAMA, H100, tokens_per_seq=k).lines
    )
    assert compute == pytest.approx(memory)


def test_ridge_by_hand():
    # Two FLOPs for every two bytes: F / BW tokens, apart from the norms, which are only read.
    assert ridge_tokens(LLAMA, H100) == pytest.approx(989.4 / 3.35, rel=1e-4)
    four_bit = replace(LLAMA, bytes_per_weight=0.5)
    assert ridge_tokens(four_bit, H100) == pytest.approx(989.4 / 3.35 / 4, rel=1e-4)
    # 387 tokens of KV take as long to read as a token takes to compute.
    assert ridge_tokens(LLAMA, H100, context=385) > 1e4
    assert ridge_tokens(LLAMA, H100, context=400) == INF


@pytest.mark.parametrize("name", list(asdict(TINY)))
@pytest.mark.parametrize("bad", [0, -1, NAN, INF])
def test_models_refused(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        replace(TINY, **{name: bad})


def test_models_of_other_kinds_refused():
    with pytest.raises(ValueError, match=r"head_dim must be a whole number: got 1\.5"):
        replace(TINY, head_dim=1.5)
    with pytest.raises(TypeError, match="head_dim must be one number"):
        replace(TINY, head_dim=[1, 2])
    with pytest.raises(TypeError, match="head_dim must be a real number"):
        replace(TINY, head_dim=None)
    with pytest.raises(
        ValueError, match="num_attention_heads must be a multiple of the KV heads: got 4"
    ):
        replace(TINY, num_key_value_heads=3)


@pytest.mark.parametrize("name", list(asdict(UNIT)))
@pytest.mark.parametrize("bad", [0, -1, NAN, INF])
def test_hardware_refused(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        replace(UNIT, **{name: bad})


@pytest.mark.parametrize("make", [roofline, additive])
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"overhead": -1}, "overhead must be >= 0: got -1"),
        ({"overhead": NAN}, "overhead must be finite"),
        ({"tokens_per_seq": 0}, "tokens_per_seq must be >= 1: got 0"),
        ({"tokens_per_seq": 1.5}, "tokens_per_seq must be a whole number: got 1.5"),
    ],
)
def test_roofline_refuses(make, wrong, rule):
    with pytest.raises(ValueError, match=rule):
        make(TINY, UNIT, **wrong)


def test_ridge_refuses():
    with pytest.raises(ValueError, match="context must be >= 0: got -1"):
        ridge_tokens(TINY, UNIT, context=-1)
    with pytest.raises(ValueError, match="context must be >= tokens: got 2"):
        ridge_tokens(TINY, UNIT, context=2, tokens_per_seq=4)
    with pytest.raises(ValueError, match="tokens_per_seq must be >= 1: got 0"):
        ridge_tokens(TINY, UNIT, tokens_per_seq=0)


# Fits ---------------------------------------------------------------------------------------------

TRUE = dict(zip(TERMS, (6e-3, 2e-4, 1.5e-4, 4e-7, 1e-7), strict=True))


def synthetic(seed, n=400, noise=0.0, forget=1.0, true=TRUE):
    """A step log whose relative noise is an autoregression that forgets `forget` of it a step."""
    g = np.random.default_rng(seed)
    decodes = g.integers(1, 20, n)
    context = decodes * g.integers(100, 500, n)
    prefill = np.where(g.random(n) < 0.2, g.integers(1, 500, n), 0)
    shocks, state, errors = g.standard_normal(n), 0.0, []
    for shock in shocks:
        state = (1 - forget) * state + np.sqrt(1 - (1 - forget) ** 2) * shock
        errors.append(state)
    counts = {
        "prefill_tokens": prefill,
        "decode_seqs": decodes,
        "context_tokens": context + prefill,
        "pairs": context + prefill * (prefill + 1) / 2,
    }
    duration = true["steps"] + sum(true[name] * values for name, values in counts.items())
    return Intervals(duration=duration * (1 + noise * np.array(errors)), **counts)


NOISY = fit(synthetic(6, noise=0.1))


def test_fit_recovers_a_line_without_noise():
    found = fit(synthetic(1))
    assert_allclose(found.step_time.lines[0], list(TRUE.values()), rtol=1e-6)
    assert_allclose(found.residuals, 0, atol=1e-10)
    for name, (low, high) in found.intervals.items():
        assert low == pytest.approx(TRUE[name], rel=1e-5)
        assert high == pytest.approx(TRUE[name], rel=1e-5)


def test_fit_of_sums_is_the_fit_of_steps():
    rows = synthetic(2)
    sums = {name: np.add.reduceat(getattr(rows, name), np.arange(0, 400, 5)) for name in TERMS}
    duration = np.add.reduceat(rows.duration, np.arange(0, 400, 5))
    found = fit(Intervals(duration=duration, **sums))
    assert_allclose(found.step_time.lines[0], list(TRUE.values()), rtol=1e-6)


def test_residuals_and_predictions_add_up():
    rows = synthetic(3, noise=0.1)
    terms = ("steps", "prefill_tokens", "context_tokens")
    found = fit(rows, terms)
    line = found.step_time.lines[0]
    assert [c > 0 for c in line] == [name in terms for name in TERMS]
    assert list(found.intervals) == list(terms)
    assert_allclose(found.predicted + found.residuals, rows.duration, rtol=1e-12)
    counts = {name: getattr(rows, name) for name in TERMS[1:]}
    assert_allclose(found.step_time(**counts), found.predicted, rtol=1e-12)
    assert_allclose(rows.predict(line), found.predicted, rtol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_no_coefficient_is_negative_and_none_could_be_better(seed):
    """The conditions of Karush, Kuhn and Tucker, at the weights that the fit ends with."""
    rows = synthetic(seed, n=60, noise=0.3, true=TRUE | {"decode_seqs": 0.0, "pairs": 0.0})
    found = fit(rows)
    line = np.array(found.step_time.lines[0])
    assert np.all(line >= 0)
    weight = 1 / np.maximum(found.predicted, rows.duration.min())
    x = np.stack([getattr(rows, name) for name in TERMS], axis=1) * weight[:, None]
    slope = x.T @ (x @ line - rows.duration * weight) / np.linalg.norm(x, axis=0)
    assert_allclose(slope[line > 0], 0, atol=1e-6)
    assert np.all(slope[line == 0] >= -1e-6)


def test_some_of_those_fits_have_a_coefficient_at_0():
    true = TRUE | {"decode_seqs": 0.0, "pairs": 0.0}
    lines = [fit(synthetic(s, n=60, noise=0.3, true=true)).step_time.lines[0] for s in range(8)]
    assert any(0.0 in line for line in lines)


def test_margins_come_from_fits_without_each_stretch():
    """Without noise elsewhere, a disturbed stretch is what its own left-out fit does not see."""
    rows = synthetic(4, n=200)
    late = np.arange(200) >= 190  # the last of 20 stretches
    found = fit(replace(rows, duration=rows.duration * np.where(late, 1.5, 1)))
    assert found.without.shape == (BLOCKS, len(TERMS))
    assert_allclose(found.without[-1], list(TRUE.values()), rtol=1e-6)
    assert np.all(np.abs(found.without[:-1, 0] / TRUE["steps"] - 1) > 1e-3)
    decode = found.without @ [1, 0, 1, 300, 300]
    spread = (BLOCKS - 1) / BLOCKS * np.sum((decode - decode.mean()) ** 2)
    assert found.margin([1, 0, 1, 300, 300]) == pytest.approx(2.0930 * np.sqrt(spread), rel=1e-12)


def test_intervals_are_margins_of_single_terms_cut_at_0():
    terms = ("prefill_tokens", "steps", "decode_seqs")
    free = dict.fromkeys(("decode_seqs", "context_tokens", "pairs"), 0.0)
    found = fit(synthetic(5, noise=0.1, true=TRUE | free), terms)
    line, margins = np.array(found.step_time.lines[0]), found.margin(np.eye(len(TERMS)))
    assert np.all((margins > 0) == [name in terms for name in TERMS])
    assert not found.without[:, 3:].any()
    assert tuple(found.intervals) == terms
    for name, (low, high) in found.intervals.items():
        i = TERMS.index(name)
        assert high == pytest.approx(line[i] + margins[i], rel=1e-9)
        assert low == pytest.approx(line[i] - margins[i] if name != "decode_seqs" else 0, rel=1e-9)
    assert line[2] < margins[2]


@given(arrays(float, 5, elements=st.floats(-1000, 1000)), st.floats(-50, 50))
def test_margin_scales_and_obeys_the_triangle(counts, times):
    margin = NOISY.margin
    assert margin(times * counts) == pytest.approx(abs(times) * margin(counts), rel=1e-9, abs=1e-12)
    assert margin(counts) <= margin(np.diag(counts)).sum() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("counts", "rule"),
    [
        ([1, 0, 1], r"counts must have 5 columns: got shape \(3,\)"),
        (1.0, r"counts must have 5 columns: got shape \(\)"),
        ([[1], [0], [1], [0], [0]], r"counts must have 5 columns: got shape \(5, 1\)"),
        ([1, 0, NAN, 0, 0], "counts must be finite"),
        ([1, 0, 1, INF, 0], "counts must be finite"),
    ],
)
def test_margins_refused(counts, rule):
    with pytest.raises(ValueError, match=rule):
        NOISY.margin(counts)


def test_intervals_cover_the_truth_when_noise_lingers():
    terms = ("steps", "prefill_tokens", "decode_seqs", "context_tokens")
    true = TRUE | {"pairs": 0.0}
    fits = [fit(synthetic(seed, 400, 0.09, 0.2, true), terms) for seed in range(60)]
    for i, name in enumerate(terms):
        covered = np.mean(
            [low <= true[name] <= high for low, high in (f.intervals[name] for f in fits)]
        )
        # 95 % in the long run; fewer than 51 of 60 has a chance below 0.2 %.
        assert covered >= 0.85, name
        estimates = np.array([f.step_time.lines[0][i] for f in fits])
        widths = np.array(
            [f.intervals[name][1] - estimate for f, estimate in zip(fits, estimates, strict=True)]
        )
        assert np.median(widths) < 6 * estimates.std()  # and they are not just wide
    decode = np.array([1, 0, 1, 300, 0])
    errors = [np.array(f.step_time.lines[0]) @ decode - decode @ list(true.values()) for f in fits]
    margins = np.array([f.margin(decode) for f in fits])
    assert np.mean(np.abs(errors) <= margins) >= 0.85
    assert np.median(margins) < 6 * np.std(errors)


def test_long_steps_are_no_quieter_so_they_do_not_decide_alone():
    """With noise in percent, weights make the cost of a step better known than without them."""
    ours, plain = [], []
    for seed in range(30):
        rows = synthetic(seed, noise=0.09)
        ours.append(fit(rows).step_time.lines[0][0])
        x = np.stack([getattr(rows, name) for name in TERMS], axis=1)
        plain.append(np.linalg.lstsq(x, rows.duration, rcond=None)[0][0])
    assert np.std(ours) < 0.7 * np.std(plain)
    assert np.mean(ours) == pytest.approx(TRUE["steps"], abs=3 * np.std(ours) / np.sqrt(30))


def test_collinear_terms_are_refused_by_name():
    n = np.arange(100.0)
    rows = Intervals(duration=1 + n, decode_seqs=4, context_tokens=n, pairs=3 * n + 8)
    with pytest.raises(ValueError, match=r"decode_seqs must vary on its own.* from steps$"):
        fit(rows, ("steps", "decode_seqs"))
    with pytest.raises(ValueError, match=r"pairs must vary.* from steps and context_tokens$"):
        fit(rows, ("steps", "context_tokens", "pairs"))
    zero = Intervals(duration=1 + n, decode_seqs=0)
    with pytest.raises(ValueError, match=r"decode_seqs must vary on its own.* from nothing$"):
        fit(zero, ("decode_seqs",))
    once = Intervals(duration=1 + n, decode_seqs=np.where(n == 7, 5, 4))
    with pytest.raises(ValueError, match=r"decode_seqs must vary.*one stretch of them left out"):
        fit(once, ("steps", "decode_seqs"))


@pytest.mark.parametrize(
    ("terms", "rule"),
    [
        ((), r"terms must be different ones of steps, .*: got \(\)"),
        (("steps", "steps"), "terms must be different ones"),
        (("steps", "tokens"), "terms must be different ones .*: got .*'tokens'"),
    ],
)
def test_terms_refused(terms, rule):
    with pytest.raises(ValueError, match=rule):
        fit(synthetic(1), terms)


def test_a_term_that_the_rows_do_not_know_is_refused():
    rows = Intervals(duration=np.arange(1.0, 101), decode_seqs=np.arange(100))
    with pytest.raises(ValueError, match="pairs must be known to be fitted: choose terms without"):
        fit(rows, ("steps", "decode_seqs", "pairs"))


def test_too_few_rows_are_refused():
    few = 2 * BLOCKS - 1
    with pytest.raises(ValueError, match="rows must be at least 40 for a fit: got 39"):
        fit(synthetic(1, n=few))


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"duration": []}, "duration must be a non-empty list"),
        ({"duration": 1.0}, "duration must be a non-empty list"),
        ({"duration": [1.0, 0.0]}, "duration must be > 0: got 0 at index 1"),
        ({"duration": [1.0, NAN]}, "duration must be finite"),
        ({"duration": [1.0, 2.0], "pairs": [1, -1]}, "pairs must be >= 0: got -1 at index 1"),
        ({"duration": [1.0, 2.0], "pairs": [1, INF]}, "pairs must be finite"),
        ({"duration": [1.0, 2.0], "pairs": [1, 2, 3]}, "pairs must have one value a duration"),
    ],
)
def test_intervals_refused(columns, rule):
    with pytest.raises(ValueError, match=rule):
        Intervals(**columns)


def test_intervals_keep_what_is_missing():
    rows = Intervals(duration=[1.0, 2.0], decode_seqs=[1, 2])
    assert_array_equal(rows.steps, [1, 1])
    assert np.isnan(rows.pairs).all()
    part = rows.where(np.array([False, True]))
    assert len(part) == 1
    assert part.decode_seqs == [2]
    assert_array_equal(rows.predict((0.5, 0, 2, 0, 0)), [2.5, 4.5])


# Stamps -------------------------------------------------------------------------------------------


def by_steps(first, prompt, made):
    """Rows of an engine with steps of one second, counted step by step."""
    last = first + made - 1
    rows = []
    for a, b in zip(first, last, strict=True):
        row = dict.fromkeys(TERMS, 0)
        for now in range(a + 1, b + 1):
            row["steps"] += 1
            for f, end, p in zip(first, last, prompt, strict=True):
                if f == now:
                    row["prefill_tokens"] += p
                    row["context_tokens"] += p
                    row["pairs"] += p * (p + 1) // 2
                if f < now <= end:
                    row["decode_seqs"] += 1
                    row["context_tokens"] += p + now - f
                    row["pairs"] += p + now - f
        if b > a:
            rows.append(row)
    return rows


requests = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=12
).filter(lambda rows: any(made > 1 for *_, made in rows))


@given(requests, st.sampled_from([0.0, 3.0, 1e6]), st.sampled_from([1.0, 0.01, 7.0]))
def test_stamps_of_steady_steps_give_exact_rows(requests, origin, length):
    first, prompt, made = np.array(sorted(requests)).T
    counted = by_steps(first, prompt, made)
    rows = intervals_from_stamps(
        origin + length * first, origin + length * (first + made - 1), prompt, made
    )
    assert len(rows) == len(counted)
    rtol = 1e-9 if origin < 10 else 1e-6  # a stamp near 1e6 s is exact to 1e-10 s
    assert_allclose(rows.duration, length * rows.steps, rtol=rtol)
    for name in TERMS:
        expected = [row[name] for row in counted]
        assert_allclose(getattr(rows, name), expected, rtol=rtol, atol=rtol, err_msg=name)


def test_rows_do_not_depend_on_the_order_given():
    first, prompt, made = np.array([[4, 1, 9], [3, 7, 5], [6, 12, 4]])
    sorted_rows = intervals_from_stamps(
        *(x[[1, 0, 2]] for x in (first, first + made - 1, prompt, made))
    )
    rows = intervals_from_stamps(first, first + made - 1, prompt, made)
    for name in ("duration", *TERMS):
        assert_array_equal(getattr(rows, name), getattr(sorted_rows, name))


@pytest.mark.parametrize("name", ["rate2", "rate4", "rate6", "budget2048_rate4"])
def test_rows_of_a_real_run_are_those_of_its_step_log(name):
    run = engine_runs.load(f"cpu/{name}")
    r, s = run.requests, run.steps
    rows = intervals_from_stamps(r.first_token, r.last_token, r.input_tokens, r.output_tokens)
    order = np.argsort(r.first_token, kind="stable")
    i = np.searchsorted(s.end, r.first_token[order], "right")
    j = np.searchsorted(s.end, r.last_token[order], "right")
    assert_array_equal(rows.steps, j - i)
    for term, per_step, typical in (
        ("prefill_tokens", s.prefill_tokens, None),
        ("decode_seqs", s.decode_seqs, 0.04),
        ("context_tokens", s.kv_tokens, 0.05),
    ):
        total = np.concatenate([[0], np.cumsum(per_step)])
        ours, logged = getattr(rows, term), total[j] - total[i]
        # The log splits long prompts over steps; between two stamps steps differ in length.
        assert ours.sum() == pytest.approx(logged.sum(), rel=0.04), term
        if typical:  # requests spread evenly over their own time would be off by 0.05 to 0.2
            assert np.sqrt(np.mean((ours / logged - 1) ** 2)) < typical, term


@pytest.mark.parametrize(
    "truth",
    [(13e-3, 40e-6, 30e-6, 80e-9, 0.0), (15e-3, 30e-6, 120e-6, 0.0, 0.0)],
)
def test_stamps_give_back_the_step_time_of_a_simulated_engine(truth):
    """A full batch whose contexts and size rise and fall together, and steps of uneven length."""
    log = engine_runs.load("gpu/RTXPRO6000_Llama-3.1-8B").requests
    limits = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    scheduler = TokenBudgetScheduler(**limits, num_kv_blocks=30_000, block_size=16)
    r = simulate(log, scheduler, StepTime((truth,))).requests
    rows = intervals_from_stamps(r.first_token, r.last_token, r.input_tokens, r.output_tokens)
    # At most the 128 that the engine serves; the clock is 1 % off in places.
    assert (rows.decode_seqs / rows.steps).max() < 128 * 1.01
    found = fit(rows, TERMS[:4]).step_time.lines[0]
    a, p, q, k, _ = truth
    assert found[0] == pytest.approx(a, rel=0.01)
    assert found[1] == pytest.approx(p, rel=0.02)
    # What a sequence of about 1,200 tokens costs, and its two parts, which are hard to tell apart.
    assert found[2] + 1200 * found[3] == pytest.approx(q + 1200 * k, rel=0.01)
    assert found[3] == pytest.approx(k, abs=5e-9)


def test_no_clock_fits_preempted_requests():
    run = engine_runs.load("gpu/RTX4090_Llama-3.1-8B")
    r = run.requests
    rows = intervals_from_stamps(r.first_token, r.last_token, r.input_tokens, r.output_tokens)
    held = rows.context_tokens / rows.steps
    assert held.max() > run.meta["kv_cache"]["num_kv_tokens"]


def test_an_idle_engine_takes_no_steps():
    first = np.array([0.0, 100.0])
    rows = intervals_from_stamps(first, first + np.array([4.0, 2.0]), [3, 5], [5, 5])
    assert_allclose(rows.decode_seqs, rows.steps)
    assert_allclose(rows.context_tokens, [4 + 5 + 6 + 7, 6 + 7 + 8 + 9])


GOOD = {
    "first_token": [1.0, 2.0],
    "last_token": [5.0, 6.0],
    "input_tokens": [3, 4],
    "output_tokens": [5, 5],
}


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"last_token": [5.0, 1.0]}, "last_token must not precede first_token"),
        ({"last_token": [5.0, 2.0]}, "last_token must be after first_token .*: got 2 at index 1"),
        ({"first_token": [1.0, NAN]}, "first_token must be finite"),
        ({"last_token": [1.0, INF]}, "last_token must be finite"),
        ({"first_token": 1.0}, "first_token must be a list of stamps"),
        ({"input_tokens": [0, 4]}, "input_tokens must be >= 1: got 0"),
        ({"output_tokens": [1.5, 4]}, "output_tokens must be a whole number"),
        ({"output_tokens": [1, 1]}, "output_tokens must be above 1 in some request"),
        ({"input_tokens": [3, 4, 5]}, "lengths must match"),
        ({"input_tokens": [3]}, "lengths must match"),
    ],
)
def test_stamps_refused(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        intervals_from_stamps(**(GOOD | wrong))


def test_a_million_stamps_are_as_natural_as_four():
    n = 1_000_000
    first = np.arange(n) * 0.01
    rows = intervals_from_stamps(first, first + 1.0, np.full(n, 7), np.full(n, 11))
    middle = slice(1000, n - 1000)
    # A hundred requests are live at any time, each with 10 tokens a second.
    assert_allclose(rows.decode_seqs[middle], 1000, rtol=1e-3)
    assert_allclose(rows.context_tokens[middle], 1000 * 12.5 + 100 * 7, rtol=2e-3)
    assert all(np.isfinite(getattr(rows, name)).all() for name in TERMS)


def test_arguments_of_another_kind_are_named() -> None:
    llama, card = load_model("Llama-3.1-8B"), load_hardware("H100 SXM")
    for function in (roofline, additive, ridge_tokens):
        with pytest.raises(TypeError, match="model must be of type Model: got None"):
            function(None, card)
        with pytest.raises(TypeError, match="hardware must be of type Hardware: got 3"):
            function(llama, 3)
    with pytest.raises(TypeError, match=r"rows must be of type Intervals: got \[1\]"):
        fit([1])
    with pytest.raises(TypeError, match="terms must be a tuple of names: got None"):
        fit(Intervals(duration=np.ones(50)), None)
