"""The memory bound on a decode step: values, invariants, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib.kv_cache import kv_bytes_per_token
from lib.kv_step import kv_step_bytes, kv_step_time_lower_bound, llama_weight_bytes

NAN, INF = float("nan"), float("inf")
BYTES = {"active_batch": 4, "bytes_per_token": 131_072, "avg_cache_tokens": 100.5}
TIME = {**BYTES, "memory_bandwidth_bytes_per_s": 2e12, "weight_bytes": 14e9}
LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LLAMA_2_7B = {
    **LLAMA_3_8B,
    "intermediate_size": 11_008,
    "num_key_value_heads": 32,
    "vocab_size": 32_000,
}
CALLS = {
    kv_step_bytes: BYTES,
    kv_step_time_lower_bound: TIME,
    llama_weight_bytes: {**LLAMA_3_8B, "bytes_per_element": 2},
}
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.items() for name in kw]


def test_bytes():
    assert kv_step_bytes(32, 131_072, 8192) == 32 * 2**30
    assert type(kv_step_bytes(32, 131_072, 8192)) is int
    assert kv_step_bytes(3, 1, 0.5) == 1.5
    assert_array_equal(kv_step_bytes(np.array([100, 2], np.int8), [10, 20], 3), [3000, 120])


def test_time():
    assert kv_step_time_lower_bound(32, 131_072, 8192, 2e12) == 32 * 2**30 / 2e12
    # 14 GB of weights at 2 TB/s: 7 ms before any KV is read.
    with_weights = kv_step_time_lower_bound(1, 1, 1, 2e12, weight_bytes=14e9)
    assert with_weights == pytest.approx(7e-3, rel=1e-9)
    assert kv_step_time_lower_bound(2, 3, 5, 10.0, weight_bytes=20) == 5.0
    assert type(kv_step_time_lower_bound(2, 3, 5, 10)) is float
    assert_array_equal(
        kv_step_time_lower_bound([1, 2], 10, [[1], [2]], 5.0, weight_bytes=[0, 5]),
        [[2, 5], [4, 9]],
    )


def test_the_step_reads_what_lies_in_memory():
    # Two sequences of 3 and 5 tokens: count the bytes of a real cache.
    layers, heads, dim = 2, 4, 8
    caches = [np.zeros((2, layers, tokens, heads, dim), np.float16) for tokens in (3, 5)]
    assert kv_step_bytes(2, kv_bytes_per_token(layers, heads, dim), np.mean([3, 5])) == sum(
        cache.nbytes for cache in caches
    )


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_3_8B, 8_030_261_248),  # half of the 16,060,522,496 bytes in the checkpoint's index
        (LLAMA_3_70B, 70_553_706_496),  # half of 141,107,412,992
        (LLAMA_2_7B, 6_738_415_616),
    ],
)
def test_published_checkpoints(config, parameters):
    embedding = config["vocab_size"] * config["hidden_size"]
    size = llama_weight_bytes(**config)
    assert size == 2 * (parameters - embedding)
    assert type(size) is int
    assert llama_weight_bytes(**config, bytes_per_element=0.5) == size / 4


def test_weights_of_an_allocated_model():
    h, f, layers, heads, kv_heads, d, vocabulary = 24, 40, 3, 6, 2, 5, 11
    layer = [(heads * d, h), (kv_heads * d, h), (kv_heads * d, h), (h, heads * d)]
    layer += [(f, h), (f, h), (h, f), (h,), (h,)]
    model = [np.zeros(shape, np.float16) for shape in [*layer * layers, (h,), (vocabulary, h)]]
    config = dict(zip(LLAMA_3_8B, (h, f, layers, heads, kv_heads, d, vocabulary), strict=True))
    assert llama_weight_bytes(**config) == sum(weights.nbytes for weights in model)


def test_weights_of_many_models_at_once():
    models = [LLAMA_3_8B, LLAMA_3_70B, LLAMA_2_7B]
    columns = {name: [model[name] for model in models] for name in LLAMA_3_8B}
    assert_array_equal(
        llama_weight_bytes(**columns), [llama_weight_bytes(**model) for model in models]
    )


def test_query_heads_are_a_multiple_of_kv_heads():
    wrong = {**LLAMA_3_8B, "num_attention_heads": 8, "num_key_value_heads": [1, 32]}
    with pytest.raises(
        ValueError, match="num_attention_heads must be a multiple of the KV heads: got 8 at index 1"
    ):
        llama_weight_bytes(**wrong)


@pytest.mark.parametrize("bad", [0, -1, NAN, INF, 1e300, 10**400])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_values_refused(function, good, name, bad):
    if name == "weight_bytes" and bad == 0:
        assert function(**{**good, name: bad}) > 0  # no weights: the seed's bound
        return
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize("bad", [None, "8", True, 8j])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_kinds_refused(function, good, name, bad):
    with pytest.raises(TypeError, match=f"^{name} must be a real number"):
        function(**{**good, name: bad})


@pytest.mark.parametrize(
    ("function", "good", "name"),
    [a for a in ARGUMENTS if a[2] == "active_batch" or a[2] in LLAMA_3_8B],
)
def test_counts_are_whole(function, good, name):
    with pytest.raises(ValueError, match=rf"{name} must be a whole number: got 1\.5"):
        function(**{**good, name: 1.5})


@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_lengths_must_match(function, good, name):
    others = {key: [value] * 2 for key, value in good.items()}
    with pytest.raises(ValueError, match=r"lengths must match: got .*\(3,\)"):
        function(**{**others, name: [good[name]] * 3})


@pytest.mark.parametrize("size", [1e-75, 1e75])
def test_no_product_overflows_or_vanishes(size):
    batch = 1 if size < 1 else 2**53 - 1
    step = kv_step_time_lower_bound(batch, size, size, 1 / size if size > 1 else 1e75)
    assert 0 < step < INF


batch = st.integers(1, 1000)
positive = st.floats(1e-3, 1e15)
rows = st.tuples(batch, positive, positive, positive, st.floats(0, 1e15))


@given(rows, st.floats(1, 10))
def test_more_of_anything_takes_longer_and_more_bandwidth_less(row, factor):
    b, width, context, bandwidth, weights = row

    def bound(b, width, context, bandwidth, weights):
        return kv_step_time_lower_bound(b, width, context, bandwidth, weight_bytes=weights)

    base = bound(*row)
    assert bound(b + 1, width, context, bandwidth, weights) >= base
    assert bound(b, width * factor, context, bandwidth, weights) >= base
    assert bound(b, width, context * factor, bandwidth, weights) >= base
    assert bound(b, width, context, bandwidth * factor, weights) <= base
    assert bound(b, width, context, bandwidth, weights * factor) >= base
    assert base >= kv_step_time_lower_bound(b, width, context, bandwidth)


@given(st.lists(rows, min_size=1, max_size=6))
def test_arrays_equal_scalars(many):
    b, width, context, bandwidth, weights = np.array(many).T
    assert_array_equal(kv_step_bytes(b, width, context), [kv_step_bytes(*row[:3]) for row in many])
    assert_array_equal(
        kv_step_time_lower_bound(b, width, context, bandwidth, weight_bytes=weights),
        [kv_step_time_lower_bound(*row[:4], weight_bytes=row[4]) for row in many],
    )
