"""The KV cache: bytes of published models, blocks one by one, what fits, prefix hits, refusals."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib._files import DATA
from lib.engine_runs import load_scheduler_record
from lib.kv_cache import (
    fits_in_order,
    kv_blocks,
    kv_bytes_per_token,
    kv_heads_per_rank,
    layers_per_stage,
    max_concurrency,
    mean_sequence_blocks,
    mla_bytes_per_token,
    pool_blocks,
    pool_tokens,
    prefix_hit_rate,
    prefix_hit_tokens,
    quantized_bytes,
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
        ((32, 32, 128), 524_288),  # Case K01 (vllm#29736): query heads, four times as many
        ((32, 1, 128), 16_384),  # and as MQA
        ((36, 8, 128), 147_456),  # Case K03 (LMCache#688): Qwen3-4B, head_dim is not 2560 / 32
        ((36, 8, 2560 // 32), 92_160),  # which would give this
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


def test_a_pool_for_all_ranks_on_one():
    """Case K05: a planner forgot that 4 ranks share the heads, and found 814 blocks for 3,258."""
    block, b = 256, kv_bytes_per_token(80, 8, 128)
    a_rank = kv_bytes_per_token(80, kv_heads_per_rank(8, 4), 128)
    room = {"utilization": 1, "weight_bytes": 0, "other_bytes": 0, "block_size": block}
    memory = 3258 * block * a_rank
    before, after = (pool_blocks(memory, bytes_per_token=x, **room) for x in (b, a_rank))
    assert (before, after) == (814, 3258)
    assert after / before == pytest.approx(4.0025, abs=0.001)


def test_the_latent_vector_is_on_every_rank():
    # MLA has one vector for all heads: tensor parallelism copies it instead of sharing it.
    assert kv_heads_per_rank(1, 8) == 1


def test_pipeline_stages():
    assert_array_equal(layers_per_stage(80, [1, 2, 3, 80]), [80, 40, 27, 1])
    assert type(layers_per_stage(61, 4)) is int
    assert layers_per_stage(61, 4) == 16  # 15 + 15 + 15 + 16
    with pytest.raises(ValueError, match=r"^stages must be <= layers: got 5$"):
        layers_per_stage(4, 5)
    for name in ("layers", "stages"):
        for bad in (0, -1, 1.5, NAN, INF):
            with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
                layers_per_stage(**{"layers": 8, "stages": 2} | {name: bad})
    with pytest.raises(ValueError, match=r"lengths must match: got layers \(2,\)"):
        layers_per_stage([4, 4], [1, 2, 3])


@given(st.integers(1, 200), st.data())
def test_no_stage_holds_more_layers(layers, data):
    stages = data.draw(st.integers(1, layers))
    dealt = [len(range(i, layers, stages)) for i in range(stages)]  # like cards
    assert layers_per_stage(layers, stages) == max(dealt)


# --- Scales ---------------------------------------------------------------------------------


def test_scales_of_a_quantised_cache():
    assert quantized_bytes(8, 32, 2) == 34 / 32  # q8_0: 34 bytes for 32 elements
    assert quantized_bytes(4, 32, 2) == 18 / 32  # q4_0
    assert quantized_bytes(8, 128, 0) == 1  # one scale a tensor is no part of the cache
    # A head of 128 in fp8 with a float32 scale, counted one array after the other.
    keys, scales = np.empty((32, 8, 128), np.uint8), np.empty((32, 8), np.float32)
    size = kv_bytes_per_token(32, 8, 128, quantized_bytes(8, 128, 4))
    assert size == 2 * (keys.nbytes + scales.nbytes)
    assert_array_equal(quantized_bytes([8, 4], 32, 2), [1.0625, 0.5625])


def test_a_latent_vector_in_fp8_beside_positions_in_bf16():
    # vLLM `fp8_ds_mla`: 512 bytes, 4 scales of 4 bytes, 64 numbers of 2 bytes a layer.
    a_layer = mla_bytes_per_token(1, 512, 64, quantized_bytes(8, 128, 4), rope_bytes=2)
    assert a_layer == 512 + 4 * 4 + 64 * 2 == 656
    assert mla_bytes_per_token(61, 512, 64, 2, rope_bytes=2) == mla_bytes_per_token(61, 512, 64)
    with pytest.raises(ValueError, match=r"^rope_bytes must be > 0: got 0$"):
        mla_bytes_per_token(61, 512, 64, 1, rope_bytes=0)
    with pytest.raises(ValueError, match=r"lengths must match: .*rope_bytes \(3,\)"):
        mla_bytes_per_token([1, 2], 512, 64, rope_bytes=[1, 2, 2])


@pytest.mark.parametrize(
    ("name", "bads"),
    [("bits", (0, -8, NAN, INF)), ("group_size", (0, 1.5, NAN)), ("scale_bytes", (-1, NAN, INF))],
)
def test_scales_refused(name, bads):
    good = {"bits": 8, "group_size": 32, "scale_bytes": 2}
    for bad in bads:
        with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
            quantized_bytes(**good | {name: bad})
    with pytest.raises(TypeError, match=f"^{name} must be a real number"):
        quantized_bytes(**good | {name: None})
    with pytest.raises(ValueError, match=r"lengths must match"):
        quantized_bytes(**{key: [value] * 2 for key, value in good.items()} | {name: [1, 1, 1]})


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


def test_tokens_of_a_pool():
    """Case K09: a log has 290,864 tokens beside 33.04 sequences of 32,768."""
    tokens = pool_tokens(33.04, 32_768)
    assert tokens == pytest.approx(1_082_654.72, abs=1e-6)
    rounding = 0.005 * 32_768  # of 33.04 as printed: 164 tokens
    assert abs(tokens - 290_864) > rounding
    assert type(tokens) is float


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 4096))
def test_tokens_of_a_pool_are_its_slots_where_every_layer_keeps_every_token(pool, block, n):
    full = max_concurrency(pool, kv_blocks(n * block, block))
    assert pool_tokens(full, n * block) == pytest.approx(pool * block, rel=1e-14)
    # A length that leaves the last block part empty counts the empty slots out.
    assert pool_tokens(max_concurrency(pool, kv_blocks(n, block)), n) <= pool * block * (1 + 1e-14)


def test_a_hybrid_model_has_no_one_number_of_bytes():
    # One pool, layers of two kinds: full attention, and a window of 1,024 tokens.
    longest, block, pool = 32_768, 16, 60_000
    full, window = kv_blocks(longest, block), window_blocks(1024, 2048, longest, block)
    assert (full, window) == (2048, 193)
    fits = max_concurrency(pool, full + window)
    assert fits == pytest.approx(60_000 / 2241)
    # Split evenly over the kinds, the pool seems to hold far less than it does.
    even_split = pool // 2 * block
    assert pool_tokens(fits, longest) > 1.8 * even_split


def test_tokens_of_a_pool_refused():
    for bad in (0, -1, NAN, INF):
        with pytest.raises(ValueError, match=r"^concurrency must be .*: got "):
            pool_tokens(bad, 8192)
    for bad in (0, 1.5, NAN, INF):
        with pytest.raises(ValueError, match=r"^max_model_len must be .*: got "):
            pool_tokens(2.5, bad)
    with pytest.raises(TypeError, match=r"^concurrency must be a real number"):
        pool_tokens("33.04x", 8192)
    with pytest.raises(ValueError, match=r"lengths must match: got concurrency \(2,\)"):
        pool_tokens([1, 2], [1, 2, 3])


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


# --- Prefix cache ---------------------------------------------------------------------------


def test_hits_come_in_whole_blocks_and_never_cover_the_prompt():
    """Case F03: a warm turn of 8,410 tokens, and a full repeat of a prompt of 32."""
    assert prefix_hit_tokens(8410, 8410, 3584) == 7168
    assert prefix_hit_tokens(8359, 8410, 3584) == 7168
    assert prefix_hit_tokens(32, 32, 16) == 16  # floor(31 / 16): the last token is computed
    assert prefix_hit_tokens(32, 33, 16) == 32
    assert type(prefix_hit_tokens(32, 32, 16)) is int
    assert_array_equal(prefix_hit_tokens([0, 15, 16, 40], 64, 16), [0, 0, 16, 32])
    assert prefix_hit_tokens(1, 1, 1) == 0


def test_the_hit_rate_is_that_of_the_window():
    """Case F03: 0.85 on the warm turn, 0.43 over the cold one as well."""
    hits = prefix_hit_tokens(8359, 8410, 3584)
    assert prefix_hit_rate(hits, 8410) == pytest.approx(0.8523186683, abs=1e-9)
    assert prefix_hit_rate([0, hits], [8359, 8410]) == pytest.approx(0.4274554237, abs=1e-9)
    # The same from a counter read before and after each turn.
    found, asked = np.array([0, 0, 7168]), np.array([0, 8359, 16_769])
    assert prefix_hit_rate(np.diff(found)[1], np.diff(asked)[1]) == hits / 8410


def test_a_preempted_request_does_not_hit():
    """Case F01: four requests look their own 1,500 tokens up again and find 1,488."""
    hits, queries = [0] + [1488] * 4, [10_000] + [1500] * 4
    assert prefix_hit_rate(hits, queries, [False] + [True] * 4) == 0.0
    assert prefix_hit_rate(hits, queries) == pytest.approx(0.372, abs=1e-12)
    assert prefix_hit_tokens(1500, 1500, 16) == 1488


def test_a_rate_by_tokens_is_not_a_mean_of_rates():
    assert prefix_hit_rate([90, 0], [100, 900]) == 0.09


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=8)


@given(prompts, st.integers(1, 5), st.data())
def test_hits_block_by_block(tokens, block, data):
    """A cache that keeps whole blocks under all the tokens up to their end, and loses some."""
    cache: set[tuple[int, ...]] = set()
    for prompt in tokens:
        whole = [tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block)]
        held = 0
        while held < len(whole) and whole[held] in cache:
            held += 1
        computed = 0  # what an engine may skip: whole blocks that leave a token to compute
        while (computed + 1) * block < len(prompt) and computed < held:
            computed += 1
        assert prefix_hit_tokens(held * block, len(prompt), block) == computed * block
        cache.update(whole)
        cache -= set(data.draw(st.lists(st.sampled_from(sorted(cache)))) if cache else [])


def test_an_endless_cache_on_a_production_trace():
    """Blocks of 512 tokens, by the names that the trace gives them."""
    path = DATA / "mooncake/conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    cached = []
    for row in rows:
        new = (i for i, name in enumerate(row["hash_ids"]) if name not in seen)
        cached.append(512 * next(new, len(row["hash_ids"])))
        seen.update(row["hash_ids"])
    prompt = np.array([row["input_length"] for row in rows])
    hits = prefix_hit_tokens(np.minimum(cached, prompt), prompt, 512)
    # 37 % is what others count in this file; the cap at T_in - 1 costs 0.04 % of the tokens.
    assert prefix_hit_rate(hits, prompt) == pytest.approx(0.37, abs=0.005)
    assert 0 < (np.sum(cached) - hits.sum()) / prompt.sum() < 0.0005


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cached_tokens": 33}, "^cached_tokens must be <= prompt_tokens: got 33$"),
        ({"cached_tokens": -1}, "^cached_tokens must be >= 0: got -1$"),
        ({"cached_tokens": NAN}, "^cached_tokens must be finite"),
        ({"prompt_tokens": 0}, "^prompt_tokens must be >= 1: got 0$"),
        ({"prompt_tokens": 32.5}, "^prompt_tokens must be a whole number: got 32.5$"),
        ({"block_size": 0}, "^block_size must be >= 1: got 0$"),
        ({"cached_tokens": [1, 1], "block_size": [4, 4, 4]}, r"lengths must match: .*\(3,\)"),
    ],
)
def test_prefix_hits_refused(change, message):
    with pytest.raises(ValueError, match=message):
        prefix_hit_tokens(**{"cached_tokens": 16, "prompt_tokens": 32, "block_size": 16} | change)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([5], [4]), ValueError, "^hit_tokens must be <= query_tokens: got 5 at index 0$"),
        (([3, -7], [9, 9]), ValueError, "^hit_tokens must be >= 0: got -7 at index 1$"),  # reset
        (([3], [-9]), ValueError, "^query_tokens must be >= 0: got -9"),
        (([0.5], [4]), ValueError, "^hit_tokens must be a whole number: got 0.5"),
        (([NAN], [4]), ValueError, "^hit_tokens must be finite"),
        (([], []), ValueError, "^query_tokens must hold a first look-up: got 0 tokens$"),
        ((0, 0), ValueError, "^query_tokens must hold a first look-up"),
        (([3], [4], [True]), ValueError, "^query_tokens must hold a first look-up"),
        (([1, 2], [3, 3, 3]), ValueError, r"lengths must match: got hit_tokens \(2,\)"),
        (([1, 2], [3, 3], [True] * 3), ValueError, r"lengths must match: .*requeried \(3,\)"),
        (([1], [3], [1]), TypeError, "^requeried must be bool: got int"),
        ((None, [3]), TypeError, "^hit_tokens must be a real number"),
    ],
)
def test_hit_rates_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        prefix_hit_rate(*arguments)
