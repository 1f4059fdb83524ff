"""Bytes of KV cache per token: published models, exact integers, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib.kv_cache import kv_bytes_per_token, mla_bytes_per_token

NAN, INF = float("nan"), float("inf")
CALLS = {
    kv_bytes_per_token: {"layers": 32, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 2},
    mla_bytes_per_token: {"layers": 61, "latent_dim": 512, "rope_dim": 64, "bytes_per_element": 2},
}
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.items() for name in kw]
COUNTS = [a for a in ARGUMENTS if a[2] != "bytes_per_element"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 8, 128), 131_072),  # Llama-3-8B in bf16: 128 KiB, so 8,192 tokens are 1 GiB
        ((32, 32, 128), 524_288),  # the same model as MHA: vllm#29736
        ((32, 1, 128), 16_384),  # and as MQA
        ((36, 8, 128), 147_456),  # Qwen3-4B: head_dim is not 2560 / 32 (LMCache#688)
        ((80, 8, 128, 1), 163_840),  # 70B in fp8
        ((80, 8, 128, 0.5), 81_920),  # and in 4 bits
    ],
)
def test_models(shape, expected):
    size = kv_bytes_per_token(*shape)
    assert size == expected
    assert type(size) is int


def test_8192_tokens_of_llama_3_8b_are_one_gib():
    assert 8192 * kv_bytes_per_token(32, 8, 128) == 2**30


def test_mla():
    assert mla_bytes_per_token(61, 512, 64) == 70_272  # DeepSeek-V3 in bf16
    assert mla_bytes_per_token(60, 512, 64, 1) == 34_560
    assert type(mla_bytes_per_token(61, 512, 64)) is int


def test_odd_sizes_stay_fractions():
    assert kv_bytes_per_token(1, 1, 1, 0.25) == 0.5
    assert mla_bytes_per_token(1, 1, 1, 0.25) == 0.5


def test_arrays():
    # MHA, GQA, MQA at once; the small integer type must not wrap.
    heads = np.array([32, 8, 1], np.int8)
    assert_array_equal(kv_bytes_per_token(32, heads, 128), [524_288, 131_072, 16_384])
    assert_array_equal(mla_bytes_per_token([1, 2], 3, [[1], [5]]), [[8, 16], [16, 32]])


@pytest.mark.parametrize("bad", [0, -1, NAN, INF, 1e300, 10**400])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_values_refused(function, good, name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize(("function", "good", "name"), COUNTS)
def test_counts_are_whole(function, good, name):
    for bad in (1.5, 2**53):
        with pytest.raises(ValueError, match=f"^{name} must be (a whole number|below).*: got "):
            function(**{**good, name: bad})
    assert function(**{**good, name: 1}) > 0


@pytest.mark.parametrize("bad", [None, "8", True, 8j])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_kinds_refused(function, good, name, bad):
    with pytest.raises(TypeError, match=f"^{name} must be a real number"):
        function(**{**good, name: bad})


@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_lengths_must_match(function, good, name):
    others = {key: [value] * 2 for key, value in good.items()}
    with pytest.raises(ValueError, match=r"lengths must match: got .*\(3,\)"):
        function(**{**others, name: [good[name]] * 3})


def test_sizes_beyond_exact_integers_are_floats():
    huge = kv_bytes_per_token(2**26, 2**26, 2, 1)
    assert (huge, type(huge)) == (2.0**54, float)


small = st.integers(1, 4096)


@given(small, small, small, st.sampled_from([0.5, 1, 2, 4]))
def test_the_cache_holds_one_key_and_one_value_a_head_and_layer(layers, heads, dim, width):
    key = np.empty((1, dim), np.uint8)  # one vector, one byte an element
    assert kv_bytes_per_token(layers, heads, dim, width) == sum(
        layers * heads * part.nbytes * width for part in (key, key)
    )


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_an_allocated_cache_has_that_size(layers, a, b):
    tokens = 3
    cache = np.empty((2, layers, tokens, a, b), np.float16)
    assert kv_bytes_per_token(layers, a, b, cache.itemsize) * tokens == cache.nbytes
    latent, rope = np.empty((layers, tokens, a), np.int64), np.empty((layers, tokens, b), np.int64)
    assert mla_bytes_per_token(layers, a, b, 8) * tokens == latent.nbytes + rope.nbytes


@given(st.lists(st.tuples(small, small, small, st.sampled_from([0.5, 1, 2])), min_size=1))
def test_arrays_equal_scalars(rows):
    columns = np.array(rows).T
    for function in CALLS:
        assert_array_equal(function(*columns), [function(*row) for row in rows])
