"""TTFT and its parts, TPOT, ITL and E2E: values, identities, refusals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib import latency
from lib.latency import (
    RequestMetrics,
    e2e_from_ttft_tpot,
    e2e_latency,
    itl,
    normalized_latency,
    request_metrics,
    tpot,
    ttft,
    ttft_parts,
)

NAN, INF = float("nan"), float("inf")
ULP = 2.0**-53  # half an ulp of 1: the relative error of one rounding

# function, good arguments by name
CALLS = {
    "ttft": (ttft, {"request_arrive": 1.0, "first_token_out": 3.0}),
    "ttft_parts": (
        ttft_parts,
        {"request_arrive": 1.0, "scheduled": 2.0, "prefill_end": 3.0, "first_token_out": 4.0},
    ),
    "tpot": (tpot, {"first_token_out": 1.0, "last_token_out": 3.0, "output_tokens": 5}),
    "itl": (itl, {"token_times": [0.0, 1.0]}),
    "e2e_latency": (e2e_latency, {"request_arrive": 1.0, "last_token_out": 3.0}),
    "e2e_from_ttft_tpot": (
        e2e_from_ttft_tpot,
        {"ttft_value": 1.0, "tpot_value": 0.5, "output_tokens": 5},
    ),
    "normalized_latency": (
        normalized_latency,
        {"request_arrive": 1.0, "last_token_out": 3.0, "output_tokens": 5},
    ),
    "request_metrics": (
        request_metrics,
        {
            "request_id": "a",
            "request_arrive": 1.0,
            "first_token_out": 2.0,
            "last_token_out": 3.0,
            "output_tokens": 5,
        },
    ),
}
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.values() for name in kw if name != "request_id"]
NUMBERS = [(f, kw, name) for f, kw, name in ARGUMENTS if name != "token_times"]


def label(value):
    return getattr(value, "__name__", value if isinstance(value, str) else "")


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e300])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS, ids=label)
def test_no_infinite_or_missing_number(function, good, name, bad):
    value = [0.0, bad] if name == "token_times" else bad
    with pytest.raises(ValueError, match=f"^{name} must be finite.*: got "):
        function(**{**good, name: value})


@pytest.mark.parametrize("bad", [None, "1", True, 1j, np.array([1, None])])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS, ids=label)
def test_no_other_kind(function, good, name, bad):
    with pytest.raises(TypeError, match=f"^{name} must be a real number.*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize(("function", "good", "name"), NUMBERS, ids=label)
def test_lengths_must_match(function, good, name):
    others = {key: np.full(2, value) if key != "request_id" else 0 for key, value in good.items()}
    with pytest.raises(ValueError, match=r"lengths must match: got .*\(3,\)"):
        function(**{**others, name: np.full(3, good[name])})


def test_lengths_must_match_beside_a_scalar():
    with pytest.raises(ValueError, match=r"lengths must match: got last_token_out \(3,\)"):
        tpot(0.0, [1.0, 2.0, 3.0], [4, 5])
    with pytest.raises(ValueError, match=r"lengths must match: got request_arrive \(3,\)"):
        normalized_latency(0.0, [1.0, 2.0, 3.0], [4, 5])


@pytest.mark.parametrize("bad", [0, -1, 1.5, 2**53])
@pytest.mark.parametrize(
    ("function", "good", "name"), [a for a in NUMBERS if a[2] == "output_tokens"], ids=label
)
def test_output_tokens_are_a_count_from_one(function, good, name, bad):
    with pytest.raises(ValueError, match=r"^output_tokens must be (a whole|>= 1|below 2).*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize(
    ("function", "stamps", "message"),
    [
        (ttft, (2.0, 1.0), "first_token_out must not precede request_arrive: got 1 < 2"),
        (e2e_latency, (2.0, 1.0), "last_token_out must not precede request_arrive"),
        (normalized_latency, (2.0, 1.0, 3), "last_token_out must not precede request_arrive"),
        (tpot, (2.0, 1.0, 3), "last_token_out must not precede first_token_out"),
        (ttft_parts, (1, 0, 2, 3), "scheduled must not precede request_arrive: got 0 < 1"),
        (ttft_parts, (0, 2, 1, 3), "prefill_end must not precede scheduled: got 1 < 2"),
        (ttft_parts, (0, 1, 3, 2), "first_token_out must not precede prefill_end: got 2 < 3"),
        (ttft_parts, ([0, 0], [1, 1], [2, 0.5], 3), "prefill_end .* got 0.5 < 1 at index 1"),
    ],
)
def test_stamps_out_of_order(function, stamps, message):
    with pytest.raises(ValueError, match=message):
        function(*stamps)


def test_a_last_token_before_the_first():
    # A stamp set at arrival and never updated (vllm-project/vllm#11376): no negative TPOT.
    with pytest.raises(ValueError, match="last_token_out must not precede first_token_out"):
        request_metrics("a", 0.0, 0.0237351, 0.0, 16)


@pytest.mark.parametrize("name", ["ttft_value", "tpot_value"])
def test_e2e_takes_no_negative_time(name):
    good = {"ttft_value": 1.0, "tpot_value": 0.5, "output_tokens": 5}
    with pytest.raises(ValueError, match=f"{name} must be >= 0: got -1e-06"):
        e2e_from_ttft_tpot(**{**good, name: -1e-6})


# --- values -----------------------------------------------------------------------------------


def test_differences_of_stamps():
    assert ttft(10.0, 10.25) == 0.25
    assert e2e_latency(10.0, 12.5) == 2.5
    assert ttft(5.0, 5.0) == 0.0
    assert_array_equal(ttft([0, 1], [[2], [3]]), [[2, 1], [3, 2]])


def test_itl_leaves_the_first_wait_out():
    # vllm-project/vllm#7242: N tokens have N - 1 gaps, and TTFT is not one of them.
    gaps = itl([0.5, 0.52, 0.54, 0.56])
    assert gaps.shape == (3,)
    assert_allclose(gaps.mean(), 0.02, atol=1e-15)
    assert itl([3.0]).shape == (0,)
    assert_array_equal(itl([1, 1, 4]), [0, 3])


@pytest.mark.parametrize("bad", [[], 1.0, [[0.0, 1.0]]])
def test_itl_needs_a_list_of_stamps(bad):
    with pytest.raises(ValueError, match="token_times must be a non-empty list of stamps"):
        itl(bad)


def test_itl_refuses_a_step_back():
    with pytest.raises(
        ValueError, match="token_times must be >= the stamp before it: got 1 at index 1"
    ):
        itl([0.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("first", "last", "tokens", "expected"),
    [
        (0.5, 0.9, 12, 0.0363636364),  # 3 chunks of 4 tokens: inference-perf#364
        (0.214, 0.254, 3, 0.02),  # the role-only chunk left out: vllm#3759
        (0.0, 1.06, 107, 0.01),  # server's token count: flexible-inference-bench#66
        (1.0, 3.0, 101, 0.02),  # vllm#17802
        (2.0, 2.0, 1, 0.0),  # the seed's convention for one token
        (2.0, 2.0, 3, 0.0),
    ],
)
def test_tpot(first, last, tokens, expected):
    assert tpot(first, last, tokens) == pytest.approx(expected, abs=1e-10)


def test_a_last_token_before_the_first_gives_no_negative_tpot():
    """Case F07: the field still held the arrival; 16 tokens would have a TPOT of -1.58 ms."""
    with pytest.raises(
        ValueError, match=r"last_token_out must not precede first_token_out: got 0 < 0\.0237351$"
    ):
        tpot(0.0237351, 0.0, 16)
    with pytest.raises(ValueError, match="last_token_out must not precede first_token_out"):
        request_metrics("a", 0.0, 0.0237351, 0.0, 16)


def test_tpot_where_the_first_chunk_holds_several_tokens():
    # ai-dynamo/aiperf#1279: 21 tokens, 5 of them in the first chunk.
    assert tpot(0.4, 1.2, 21, first_chunk_tokens=5) == pytest.approx(0.05, abs=1e-15)
    assert tpot(0.4, 1.2, 21) == pytest.approx(0.04, abs=1e-15)
    assert_allclose(tpot(0.0, [1, 2], [5, 6], first_chunk_tokens=[1, 2]), [0.25, 0.5])
    with pytest.raises(ValueError, match="output_tokens must be >= first_chunk_tokens: got 4"):
        tpot(0.0, 1.0, 4, first_chunk_tokens=5)
    with pytest.raises(ValueError, match="first_chunk_tokens must be >= 1: got 0"):
        tpot(0.0, 1.0, 4, first_chunk_tokens=0)


def test_tpot_of_a_one_token_answer_is_a_named_choice():
    assert tpot(2.0, 2.0, 1, one_token="zero") == 0.0
    missing = tpot(2.0, 2.0, 1, one_token="missing")
    assert type(missing) is float
    assert math.isnan(missing)
    assert tpot(2.0, 4.0, 3, one_token="missing") == 1.0
    assert_array_equal(tpot(0.0, [0, 4], [1, 5], one_token="missing"), [NAN, 1.0])
    with pytest.raises(ValueError, match="one_token must be one of 'zero', 'missing': got 'nan'"):
        tpot(2.0, 2.0, 1, one_token="nan")


@pytest.mark.parametrize("at_once", [1, 3])
def test_tokens_that_came_at_once_have_one_stamp(at_once):
    with pytest.raises(ValueError, match=f"output_tokens must be > 1 when .*: got {at_once}"):
        tpot(0.0, 1.0, at_once, first_chunk_tokens=at_once)


def test_tokens_per_chunk_is_itl_over_tpot():
    # vllm-project/vllm#12841: ITL per chunk, TPOT per token, and both right. With equal chunks they
    # differ by the tokens that a chunk carries; here 4 in each of 26 chunks after the first.
    chunk_times = np.arange(27) * 0.2
    per_token = tpot(chunk_times[0], chunk_times[-1], 1 + 26 * 4)
    assert itl(chunk_times).mean() / per_token == pytest.approx(4.0, rel=1e-12)


def test_normalized_latency_includes_the_first_token():
    # vllm-project/vllm#17802: TTFT 1 s, E2E 3 s, 101 tokens.
    assert normalized_latency(0.0, 3.0, 101) == pytest.approx(0.0297029703, abs=1e-10)
    assert tpot(1.0, 3.0, 101) == pytest.approx(0.02, abs=1e-15)
    assert normalized_latency(2.0, 5.0, 1) == 3.0


def test_e2e_from_its_entries():
    assert e2e_from_ttft_tpot(1.0, 0.02, 101) == pytest.approx(3.0, abs=1e-15)
    assert e2e_from_ttft_tpot(0.7, 123.0, 1) == 0.7  # one token: no step after the first
    # Case P07: one stream, N / (TTFT + (N - 1) / rate), warm and cold.
    for first, tokens_per_s in ((0.656, 43.307), (3.37, 38.848)):
        assert 1024 / e2e_from_ttft_tpot(first, 1 / 44.5, 1024) == pytest.approx(
            tokens_per_s, abs=0.001
        )


def test_parts_of_ttft():
    parts = ttft_parts(10.0, 10.5, 11.25, 11.375)
    assert (parts.queue_wait, parts.prefill, parts.first_decode) == (0.5, 0.75, 0.125)
    merged = ttft_parts([0, 1], [1, 1], [3, 4], [3, 4])
    assert_array_equal(merged.queue_wait, [1, 0])
    assert_array_equal(merged.prefill, [2, 3])
    assert_array_equal(merged.first_decode, [0, 0])
    nothing = ttft_parts(7.0, 7.0, 7.0, 7.0)
    assert (nothing.queue_wait, nothing.prefill, nothing.first_decode) == (0.0, 0.0, 0.0)


def test_request_metrics_of_one_and_of_many():
    one = request_metrics("a", 0.0, 1.0, 3.0, 5)
    assert one == RequestMetrics("a", 5, 1.0, 0.5, 3.0)
    assert type(one.output_tokens) is int
    many = request_metrics(["a", "b"], [0, 1], [1, 2], [3, 2], [5, 1])
    assert_array_equal(many.output_tokens, [5, 1])
    assert_array_equal(many.ttft, [1, 1])
    assert_array_equal(many.tpot, [0.5, 0])
    assert_array_equal(many.e2e_latency, [3, 1])
    assert many.request_id == ["a", "b"]
    with pytest.raises(AttributeError):
        one.ttft = 0.0


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("itl", "request_metrics")])
def test_scalars_give_plain_floats(name):
    function, good = CALLS[name]
    for kind in (float, np.float32, np.array):
        given_ = {key: kind(value) for key, value in good.items()}
        value = function(**given_)
        values = vars(value).values() if isinstance(value, latency.TTFTParts) else [value]
        assert {type(v) for v in values} == {float}


def test_small_integer_types_do_not_wrap():
    assert_array_equal(ttft(np.array([-100], np.int8), np.array([100], np.int8)), [200])
    assert_array_equal(tpot(0, np.array([250], np.uint8), np.array([251], np.uint8)), [1])
    frozen = np.array([0.0, 1.0])
    frozen.setflags(write=False)
    assert_array_equal(ttft(frozen, 2.0), [2, 1])


# --- properties -------------------------------------------------------------------------------

stamp = st.floats(0, 1e9)
four_stamps = st.lists(stamp, min_size=4, max_size=4).map(sorted)
three_stamps = st.lists(stamp, min_size=3, max_size=3).map(sorted)


@given(four_stamps)
def test_parts_sum_to_ttft_to_the_last_bit(stamps):
    arrive, scheduled, prefilled, first = stamps
    parts = ttft_parts(*stamps)
    total = ttft(arrive, first)
    assert parts.queue_wait + parts.prefill + parts.first_decode == total
    assert min(parts.queue_wait, parts.prefill, parts.first_decode) >= 0
    # Each boundary lies within one rounding of TTFT (and one of its own) of its exact place.
    for part, start, end in (
        (parts.queue_wait, arrive, scheduled),
        (parts.prefill, scheduled, prefilled),
        (parts.first_decode, prefilled, first),
    ):
        exact = Fraction(end) - Fraction(start)
        assert abs(Fraction(part) - exact) <= 4 * ULP * total


def test_parts_of_a_sum_that_rounding_cannot_reach():
    # 0.5 + x rounds to an even number for every x near 2**52: an odd TTFT needs another 0.5.
    parts = ttft_parts(0.0, 0.5, 2.0**52 + 1, 2.0**52 + 1)
    assert parts.queue_wait + parts.prefill + parts.first_decode == 2.0**52 + 1


@given(three_stamps, st.integers(2, 10**6))
def test_the_identity_closes(stamps, tokens):
    arrive, first, last = stamps
    metrics = request_metrics(0, arrive, first, last, tokens)
    rebuilt = e2e_from_ttft_tpot(metrics.ttft, metrics.tpot, tokens)
    # At most five roundings act on either term (difference, quotient, product, sum; and the E2E
    # that is compared); a subnormal quotient is out by up to 5e-324, times N_out.
    bound = 5 * ULP * metrics.e2e_latency * (1 + 1e-9) + tokens * 5e-324
    assert abs(rebuilt - metrics.e2e_latency) <= bound
    wrong = e2e_from_ttft_tpot(metrics.ttft, metrics.tpot, tokens + 1)
    if metrics.tpot > 1e-6:  # N_out instead of N_out - 1 is out by one TPOT
        assert wrong - metrics.e2e_latency > bound


@given(st.lists(stamp, min_size=2, max_size=50).map(sorted))
def test_mean_itl_is_tpot_when_each_chunk_is_a_token(times):
    assert itl(times).mean() == pytest.approx(
        tpot(times[0], times[-1], len(times)), rel=1e-12, abs=1e-300
    )


@given(st.lists(st.tuples(four_stamps, st.integers(2, 1000)), min_size=1, max_size=8))
def test_arrays_equal_scalars(rows):
    a, s, p, f = np.array([stamps for stamps, _ in rows]).T
    n = np.array([tokens for _, tokens in rows])
    calls = {
        ttft: (a, f),
        e2e_latency: (a, f),
        tpot: (p, f, n),
        e2e_from_ttft_tpot: (a, s, n),
        normalized_latency: (a, f, n),
        lambda *x: ttft_parts(*x).queue_wait: (a, s, p, f),
        lambda *x: ttft_parts(*x).prefill: (a, s, p, f),
        lambda *x: ttft_parts(*x).first_decode: (a, s, p, f),
    }
    for function, columns in calls.items():
        each = [function(*row) for row in zip(*columns, strict=True)]
        assert_array_equal(function(*columns), each)


def test_a_million_rows():
    n = 10**6
    arrive = np.arange(n) * 0.01
    metrics = request_metrics(np.arange(n), arrive, arrive + 0.5, arrive + 1.5, np.full(n, 11))
    assert_allclose(metrics.tpot, 0.1, rtol=1e-9)
    assert metrics.ttft.shape == (n,)
