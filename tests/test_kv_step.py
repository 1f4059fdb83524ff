"""The memory bound on a decode step: values, invariants, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib.kv_cache import kv_bytes_per_token
from lib.kv_step import kv_step_bytes, kv_step_time_lower_bound

NAN, INF = float("nan"), float("inf")
BYTES = {"active_batch": 4, "bytes_per_token": 131_072, "avg_cache_tokens": 100.5}
TIME = {**BYTES, "memory_bandwidth_bytes_per_s": 2e12, "weight_bytes": 14e9}
ARGUMENTS = [(f, kw, n) for f, kw in ((kv_step_bytes, BYTES), (kv_step_time_lower_bound, TIME))
             for n in kw]  # fmt: skip


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


@pytest.mark.parametrize("function", [kv_step_bytes, kv_step_time_lower_bound])
def test_the_batch_is_whole(function):
    good = BYTES if function is kv_step_bytes else TIME
    with pytest.raises(ValueError, match=r"active_batch must be a whole number: got 1\.5"):
        function(**{**good, "active_batch": 1.5})


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
