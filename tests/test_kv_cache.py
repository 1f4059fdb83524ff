"""The KV cache: bytes of published models, blocks one by one, what fits, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib.engine_runs import load_scheduler_record
from lib.kv_cache import (
    fits_in_order,
    kv_blocks,
    kv_bytes_per_token,
    kv_heads_per_rank,
    max_concurrency,
    mean_sequence_blocks,
    mla_bytes_per_token,
    pool_blocks,
    wasted_slots,
    window_blocks,
)

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


# --- Tensor parallelism, MLA ----------------------------------------------------------------


def test_more_ranks_than_kv_heads():
    """Case K05: 70B on 32 ranks. Each rank needs a head, so the model is cached four times."""
    assert kv_heads_per_rank(8, 32) == 1
    a_rank = kv_bytes_per_token(80, kv_heads_per_rank(8, 32), 128)
    assert a_rank == 40_960
    assert 32 * a_rank / kv_bytes_per_token(80, 8, 128) == 4


def test_kv_heads_per_rank():
    assert_array_equal(kv_heads_per_rank(8, [1, 2, 4, 8, 16]), [8, 4, 2, 1, 1])
    assert type(kv_heads_per_rank(8, 2)) is int
    for heads, ranks in ((8, 3), (8, 12), (6, 4)):
        with pytest.raises(ValueError, match=f"^ranks must be a divisor or .*: got {ranks}$"):
            kv_heads_per_rank(heads, ranks)


def test_mla_tiles():
    """Case K13: a kernel that streams a separate value reads 34 tiles of 32 numbers, not 18."""
    once, twice = mla_bytes_per_token(1, 512, 64, 1), mla_bytes_per_token(1, 2 * 512, 64, 1)
    assert (once / 32, twice / 32) == (18, 34)
    assert 184 * twice / once == pytest.approx(347.56, abs=0.005)


# --- Blocks ---------------------------------------------------------------------------------


def test_blocks_and_waste():
    tokens = [0, 1, 15, 16, 17, 32]
    assert_array_equal(kv_blocks(tokens, 16), [0, 1, 1, 1, 2, 2])
    assert_array_equal(wasted_slots(tokens, 16), [0, 15, 1, 0, 15, 0])
    assert (kv_blocks(17, 16), wasted_slots(17, 16)) == (2, 15)
    assert type(kv_blocks(17, 16)) is int
    assert_array_equal(kv_blocks([[5], [9]], [1, 4, 16]), [[5, 2, 1], [9, 3, 1]])


def test_blocks_of_huge_contexts_are_exact():
    for tokens in (2**53 - 1, 2**52 + 1):  # the quotient of two floats would round
        assert kv_blocks(tokens, 16) == (tokens + 15) // 16
        assert wasted_slots(tokens, 16) == -tokens % 16


@given(st.lists(st.integers(0, 300), min_size=1), st.integers(1, 40))
def test_blocks_are_taken_when_the_last_one_is_full(lengths, block):
    for tokens in lengths:
        taken = room = 0
        for _ in range(tokens):
            if not room:
                taken, room = taken + 1, block
            room -= 1
        assert (kv_blocks(tokens, block), wasted_slots(tokens, block)) == (taken, room)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 64))
def test_mean_waste_is_half_a_block(first, steps, block):
    waste = wasted_slots(np.arange(first, first + steps), block)
    assert abs(np.mean(waste) - (block - 1) / 2) <= block**2 / (8 * steps) + 1e-9  # rounding
    if steps % block == 0:
        assert np.mean(waste) == pytest.approx((block - 1) / 2, rel=1e-12)


def test_blocks_of_the_real_scheduler():
    record = load_scheduler_record("v0.33/s07b_reserve_full_isl_off")
    size, seen = record["config"]["block_size"], 0
    for step in record["steps"]:
        own = {name: kv_blocks(t, size) for name, t in step["computed_tokens"].items()}
        assert own == step["blocks"]
        assert record["usable_blocks"] - sum(own.values()) == step["free_blocks"]
        seen += len(own)
    assert seen == 50


sequences = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 90)).map(lambda p: (p[0], p[0] + p[1])),
    min_size=1,
    max_size=12,
)


@given(sequences, st.integers(1, 40))
def test_mean_blocks_step_by_step(rows, block):
    held = [-(-t // block) for first, last in rows for t in range(first, last + 1)]
    first, last = np.array(rows).T
    assert mean_sequence_blocks(first, last, block) == pytest.approx(np.mean(held), rel=1e-12)


def test_mean_blocks_weigh_by_steps():
    assert mean_sequence_blocks(3, 6, 4) == 1.5
    # One step in one block, nine steps in two: not (1 + 2) / 2.
    assert mean_sequence_blocks([4, 8], [4, 16], 8) == pytest.approx((1 + 1 + 8 * 2) / 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_tokens": []}, "^first_tokens must not be empty"),
        ({"first_tokens": 0}, "^first_tokens must be >= 1: got 0$"),
        ({"first_tokens": NAN}, "^first_tokens must be finite"),
        ({"last_tokens": 2}, "^last_tokens must be >= first_tokens: got 2$"),
        ({"last_tokens": 6.5}, "^last_tokens must be a whole number: got 6.5$"),
        ({"last_tokens": INF}, "^last_tokens must be finite"),
        ({"first_tokens": [3, 3], "last_tokens": [6, 6, 6]}, r"lengths must match: .*\(3,\)"),
        ({"block_size": 0}, "^block_size must be >= 1: got 0$"),
    ],
)
def test_mean_blocks_refused(change, message):
    with pytest.raises(ValueError, match=message):
        mean_sequence_blocks(**{"first_tokens": 3, "last_tokens": 6, "block_size": 4} | change)


def test_mean_blocks_wants_one_block_size():
    with pytest.raises(TypeError, match=r"^block_size must be one number"):
        mean_sequence_blocks(3, 6, [4, 4])


# --- The pool and what fits -----------------------------------------------------------------

GIB = 2**30
POOL = {
    "memory_bytes": 24 * GIB,
    "utilization": 0.75,
    "weight_bytes": 15 * GIB,
    "other_bytes": 1 * GIB,
    "bytes_per_token": 131_072,
    "block_size": 16,
}


def test_pool():
    assert pool_blocks(**POOL) == 1024  # 2 GiB in blocks of 2 MiB
    assert type(pool_blocks(**POOL)) is int
    assert pool_blocks(**POOL | {"other_bytes": GIB + 1}) == 1023
    assert pool_blocks(**POOL | {"bytes_per_token": 524_288}) == 256  # GQA forgotten
    assert pool_blocks(**POOL | {"utilization": 1}) == 4096


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("memory_bytes", 0, "must be > 0: got 0"),
        ("memory_bytes", INF, "must be finite"),
        ("utilization", 0, "must be > 0: got 0"),
        ("utilization", 1.01, "must be <= 1: it is a share: got 1.01"),
        ("utilization", 90, "must be <= 1"),
        ("weight_bytes", -1, "must be >= 0: got -1"),
        ("other_bytes", NAN, "must be finite"),
        ("bytes_per_token", 0, "must be > 0: got 0"),
        ("block_size", 0, "must be >= 1: got 0"),
        ("block_size", 1.5, "must be a whole number: got 1.5"),
    ],
)
def test_pool_refused(name, bad, message):
    with pytest.raises(ValueError, match=f"^{name} {message}"):
        pool_blocks(**POOL | {name: bad})


@pytest.mark.parametrize("name", POOL)
def test_pool_kinds_refused(name):
    with pytest.raises(TypeError, match=f"^{name} must be a real number"):
        pool_blocks(**POOL | {name: None})
    with pytest.raises(TypeError, match=f"^{name} must be one number: got an array"):
        pool_blocks(**POOL | {name: [POOL[name]] * 2})


def test_pool_without_room():
    exactly_one = POOL | {"other_bytes": 3 * GIB - 2 * 2**20}
    assert pool_blocks(**exactly_one) == 1
    with pytest.raises(ValueError, match=r"must leave room for one block .*: got 2097151 bytes"):
        pool_blocks(**exactly_one | {"other_bytes": exactly_one["other_bytes"] + 1})
    with pytest.raises(ValueError, match=r"must leave room .*: got -6442450944 bytes"):
        pool_blocks(**POOL | {"weight_bytes": 23 * GIB})


def test_maximum_concurrency():
    """Cases K11: what an engine prints, and the slip of a factor of 1,000."""
    assert max_concurrency(5373, kv_blocks(8192, 16)) == pytest.approx(10.49414, abs=1e-5)
    assert max_concurrency(15_728_640 / 16, kv_blocks(8192, 16)) == 1920
    # Not a limit on requests: 4.61 of 8,192 tokens are 47.2 of 800.
    pool = 4.61 * kv_blocks(8192, 16)
    small = max_concurrency(round(pool), kv_blocks(800, 16))
    assert small == pytest.approx(47.2064, abs=0.5 / kv_blocks(800, 16))  # whole blocks
    assert_array_equal(max_concurrency([10, 20], [4, 0.5]), [2.5, 40])


def test_maximum_concurrency_refused():
    for pool in (0, -1, 1.5, NAN):
        with pytest.raises(ValueError, match=r"^pool_blocks must be .*: got "):
            max_concurrency(pool, 4)
    for blocks in (0, -1, NAN, INF):
        with pytest.raises(ValueError, match=r"^sequence_blocks must be .*: got "):
            max_concurrency(4, blocks)
    with pytest.raises(TypeError, match=r"^sequence_blocks must be a real number"):
        max_concurrency(4, "1")
    with pytest.raises(ValueError, match=r"lengths must match: .*\(2,\).*\(3,\)"):
        max_concurrency([4, 4], [1, 1, 1])


def test_sliding_window():
    """Case K07: 134.19x was printed, 178.68x is right."""
    pool = 2_198_512 // 16
    assert max_concurrency(pool, kv_blocks(16_384, 16)) == pytest.approx(134.19, abs=0.005)
    assert window_blocks(4096, 8192, 16_384, 16) == 769
    assert max_concurrency(pool, 769) == pytest.approx(178.6827, abs=1e-4)
    # A window beyond the longest context frees nothing.
    assert window_blocks(10**6, 8192, 16_384, 16) == kv_blocks(16_384, 16) + 1


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 80), st.integers(1, 12))
def test_sliding_window_holds_what_any_step_needs(window, budget, longest, block):
    most = 0
    for computed in range(longest):  # tokens cached before the step
        after = min(computed + budget, longest)
        oldest = max(0, computed - window + 1)  # what the step's first query still sees
        most = max(most, (after - 1) // block - oldest // block + 1)
    assert most <= window_blocks(window, budget, longest, block) <= most + 2


@pytest.mark.parametrize("name", ["window", "max_num_batched_tokens", "max_model_len"])
def test_sliding_window_refused(name):
    good = {"window": 8, "max_num_batched_tokens": 8, "max_model_len": 8, "block_size": 4}
    for bad in (0, -1, 1.5, NAN, INF):
        with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
            window_blocks(**good | {name: bad})
    with pytest.raises(ValueError, match=r"lengths must match"):
        window_blocks(**good | {name: [8, 8], "block_size": [4, 4, 4]})


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 9), st.integers(1, 40))
def test_the_last_admitted_gives_way(tokens, block, pool):
    running = [i for i, t in enumerate(tokens) if t]
    while sum(-(-tokens[i] // block) for i in running) > pool:
        running.pop()
    fits = fits_in_order(tokens, block, pool)
    assert fits.dtype == np.bool_
    assert np.flatnonzero(fits).tolist() == running


def test_fits_by_row():
    tokens = [[9, 14, 6, 5], [0, 0, 6, 5], [41, 1, 0, 0]]
    expected = [[True, True, True, False], [False, False, True, True], [False] * 4]
    assert_array_equal(fits_in_order(tokens, 4, 10), expected)


def test_fits_refused():
    with pytest.raises(TypeError, match=r"^tokens must be an array of sequences: got one number"):
        fits_in_order(5, 4, 10)
    with pytest.raises(ValueError, match=r"^tokens must be >= 0: got -1 at index 1$"):
        fits_in_order([5, -1], 4, 10)
    with pytest.raises(ValueError, match=r"^tokens must be finite"):
        fits_in_order([5, NAN], 4, 10)
    with pytest.raises(ValueError, match=r"^pool_blocks must be >= 1: got 0$"):
        fits_in_order([5], 4, 0)
    with pytest.raises(ValueError, match=r"^block_size must be >= 1: got 0$"):
        fits_in_order([5], 0, 10)
    with pytest.raises(TypeError, match=r"^pool_blocks must be one number"):
        fits_in_order([5], 4, [10, 10])


@pytest.mark.parametrize("function", [kv_blocks, wasted_slots])
def test_blocks_refused(function):
    for tokens in (-1, 1.5, NAN, INF, 2**53):
        with pytest.raises(ValueError, match=r"^tokens must be .*: got "):
            function(tokens, 16)
    for block in (0, -16, 1.5, NAN, INF):
        with pytest.raises(ValueError, match=r"^block_size must be .*: got "):
            function(5, block)
    with pytest.raises(TypeError, match=r"^tokens must be a real number"):
        function(None, 16)
    with pytest.raises(ValueError, match=r"lengths must match: got tokens \(2,\)"):
        function([1, 2], [1, 2, 3])
