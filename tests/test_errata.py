"""Published errors: each as printed, each by how much it is off, and against what is true."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import errata
from lib.demand import request_service_demand
from lib.erlang_c import erlang_c_wait_probability, mmc_avg_response_time
from lib.errata import (
    MM1_P99_WAITS,
    e2e_of_all_tokens,
    erlang_c_by_factorials,
    kv_bytes_from_hidden_size,
    md1_queue_wait_of_rho_squared,
    percentile_of_buckets,
    relative_error,
    response_from_mean_service,
    step_time_over_batch,
    sum_of_percentiles,
    throughput_linear_in_batch,
)
from lib.kv_cache import kv_bytes_per_token
from lib.kv_step import kv_step_time_lower_bound
from lib.latency import e2e_from_ttft_tpot
from lib.mg1 import mg1_queue_wait
from lib.mm1 import (
    mm1_response_percentile,
    mm1_response_tail,
    mm1_wait_percentile,
    mm1_wait_tail,
)
from lib.occupancy import batch_occupancy, little_law_concurrency
from lib.scheduling import ContinuousBatchScheduler, Request, TokenBudgetScheduler, replay

NAN, INF = float("nan"), float("inf")
loads = st.floats(0.011, 0.999)  # P99 of the M/M/1 wait is 0 below 0.01


# The twelve claims, numbered as in the chapter ----------------------------------------------------


def test_1_every_token_is_one_too_many():
    assert e2e_of_all_tokens(1.0, 0.02, 101) == pytest.approx(3.02, abs=1e-12)
    assert e2e_from_ttft_tpot(1.0, 0.02, 101) == pytest.approx(3.0, abs=1e-12)
    assert e2e_of_all_tokens(0.7, 0.02, 1) == pytest.approx(0.72, abs=1e-12)
    log = replay([0, 0, 3], [150, 80, 10], [3, 1, 20], max_batch_size=8, prefill_chunk=100).log
    first = log.first_token - log.arrival
    over = e2e_of_all_tokens(first, 1.0, log.output_tokens) - (log.last_token - log.arrival)
    assert over.tolist() == [1.0, 1.0, 1.0]


@given(st.floats(0.001, 100), st.floats(0.001, 1), st.integers(1, 10_000))
def test_1_the_error_of_every_token(ttft, tpot, tokens):
    printed = e2e_of_all_tokens(ttft, tpot, tokens)
    error = relative_error(printed, e2e_from_ttft_tpot(ttft, tpot, tokens))
    assert error == pytest.approx(1 / (tokens - 1 + ttft / tpot), abs=1e-9)


def test_2_decode_steps_after_prefill_made_the_first_token():
    limits = {"max_num_seqs": 8, "num_kv_blocks": 100, "block_size": 16, "max_model_len": 1000}
    textbook = ContinuousBatchScheduler(8, 100)
    vllm = TokenBudgetScheduler(max_num_batched_tokens=100, **limits)
    for scheduler, steps in ((textbook, 12), (vllm, 11)):
        request, decodes = Request("alone", 80, 12), 0
        scheduler.submit(request)
        while scheduler.unfinished:
            decodes += len(scheduler.step().decoded)
        assert decodes == steps
    printed, true = (request_service_demand(200, n, 1.0, 36.0) for n in (2, 1))
    assert relative_error(printed, true) == pytest.approx(1 / (1 + 200 / 36), rel=1e-12)


def test_3_the_batch_is_not_the_system():
    e2e = mmc_avg_response_time(7.2, 1.0, 8)
    system = little_law_concurrency(7.2, e2e)
    # In print it is 13.4; M/M/8 gives 13.51 (L = L_q + a).
    assert system == pytest.approx(13.51, abs=0.005)
    assert system > 8 > batch_occupancy(7.2, e2e, e2e - 1.0) == pytest.approx(7.2, rel=1e-12)
    assert relative_error(system, 7.2) == pytest.approx(e2e - 1.0, rel=1e-12)  # W_q / s


@given(loads, st.floats(0, 5))
def test_4_the_waits_tail_is_not_the_responses(rho, time):
    printed, true = mm1_wait_tail(rho, 1.0, time), mm1_response_tail(rho, 1.0, time)
    assert relative_error(printed, true) == pytest.approx(rho - 1, abs=1e-9)


def test_5_md1_with_rho_squared():
    assert md1_queue_wait_of_rho_squared(0.5, 1.0) == pytest.approx(0.25, rel=1e-12)
    assert mg1_queue_wait(0.5, 1.0, 0.0) == pytest.approx(0.5, rel=1e-12)


@given(loads, st.floats(0.01, 100))
def test_5_the_error_is_rho_less_one(rho, service):
    printed = md1_queue_wait_of_rho_squared(rho * service, service)
    error = relative_error(printed, mg1_queue_wait(rho * service, 1 / service, 0.0))
    assert error == pytest.approx(rho - 1, abs=1e-9)


@pytest.mark.parametrize(("rho", "error"), [(0.1, -0.305), (0.5, -0.042), (0.9, -0.001)])
def test_6_mean_service_plus_p99_wait(rho, error):
    printed = response_from_mean_service(mm1_wait_percentile(rho, 1.0, 99), 1.0)
    true = mm1_response_percentile(rho, 1.0, 99)
    assert relative_error(printed, true) == pytest.approx(error, abs=0.0005)


@given(loads)
def test_6_the_error_is_never_positive_and_a_square_at_the_end(rho):
    printed = response_from_mean_service(mm1_wait_percentile(rho, 1.0, 99), 1.0)
    error = relative_error(printed, mm1_response_percentile(rho, 1.0, 99))
    assert error == pytest.approx((1 - rho + math.log(rho)) / math.log(100), abs=1e-9)
    assert error <= -((1 - rho) ** 2) / (2 * math.log(100)) + 1e-12


def test_7_sums_of_p99s():
    assert relative_error(5.29, 3.96) == pytest.approx(0.336, abs=0.001)
    # Exponential parts of these means have the figures: the tail of the sum at its P99 is 1 %.
    a, b = 0.722, 0.427
    assert (a + b) * math.log(100) == pytest.approx(5.29, abs=0.005)
    tail = (a * math.exp(-3.96 / a) - b * math.exp(-3.96 / b)) / (a - b)
    assert tail == pytest.approx(0.01, abs=1e-4)
    # By counting: the parts are ranked apart, the sums together; 1 % for two P99s of 1e6 draws.
    parts = np.random.default_rng(1).exponential([[a], [b]], (2, 1_000_000))
    assert sum_of_percentiles(parts, 99) == pytest.approx(5.29, rel=0.01)
    assert np.percentile(parts.sum(axis=0), 99) == pytest.approx(3.96, rel=0.01)


def test_7_the_sum_is_exact_for_ranks_that_agree_and_errs_both_ways():
    first = np.arange(101.0)
    assert sum_of_percentiles([first, first], 99) == 198.0
    assert sum_of_percentiles([first], 50) == 50.0
    assert sum_of_percentiles([first, first[::-1]], 99) == 198.0  # every sum is 100
    rare = np.where(np.arange(1000) < 8, 1.0, 0.0)  # 0.8 % each: both P99s are 0
    assert sum_of_percentiles([rare, rare[::-1]], 99) == 0.0
    assert np.percentile(rare + rare[::-1], 99) == 1.0


@given(loads)
def test_7_the_error_of_wait_plus_service(rho):
    printed = mm1_wait_percentile(rho, 1.0, 99) + math.log(100)
    error = relative_error(printed, mm1_response_percentile(rho, 1.0, 99))
    assert error == pytest.approx(1 - rho + math.log(rho) / math.log(100), abs=1e-9)


@given(st.integers(1, 512), st.floats(1, 1e12), st.floats(0, 1e12), st.floats(1, 1e13))
def test_8_a_step_over_the_batch(batch, weights, cache, bandwidth):
    printed = step_time_over_batch(batch, weights, cache, bandwidth)
    step = (weights + batch * cache) / bandwidth
    assert relative_error(printed, step) == pytest.approx(1 / batch - 1, abs=1e-9)


def test_8_the_step_a_user_feels():
    # 16 GB of weights, 32 sequences of 1 GiB, 2 TB/s.
    printed = step_time_over_batch(32, 16e9, 2**30, 2e12)
    step = kv_step_time_lower_bound(32, 131_072, 8192, 2e12, weight_bytes=16e9)
    assert (round(1e3 * printed, 3), round(1e3 * step, 2)) == (0.787, 25.18)


def test_9_throughput_bends():
    # Memory bound, KV of one sequence 1/4 of the weights: a step of B lasts 1 + B/4.
    batch = np.array([1, 2, 16])
    printed = throughput_linear_in_batch(batch, 1.25)
    assert printed.tolist() == [0.8, 1.6, 12.8]
    error = relative_error(printed, batch / (1 + batch / 4))
    assert error == pytest.approx((batch - 1) * 0.25 / 1.25, abs=1e-12)


@pytest.mark.parametrize(
    ("layers", "hidden", "kv_heads", "factor"),
    [(80, 8192, 8, 8.0), (32, 4096, 8, 4.0), (32, 4096, 32, 1.0)],
)
def test_10_the_hidden_size_forgets_gqa(layers, hidden, kv_heads, factor):
    """Case K01 (32 layers), and 64 query heads on 8."""
    printed = kv_bytes_from_hidden_size(layers, hidden)
    assert printed == factor * kv_bytes_per_token(layers, kv_heads, 128)
    assert type(printed) is int
    assert kv_bytes_from_hidden_size(32, 4096) == 524_288


def test_10_nor_is_the_head_size_hidden_over_heads():
    # Case K03: 32 query heads of 128 in a model of hidden size 2,560; 8 KV heads.
    assert kv_bytes_from_hidden_size(36, 2560) / kv_bytes_per_token(36, 8, 128) == 2.5


@pytest.mark.parametrize(
    ("rho", "printed", "true", "error"),
    [(0.5, 7.82, 7.82, 0.0), (0.7, 13.4, 14.16, -0.054), (0.9, 46.1, 45.00, 0.024)],
)
def test_11_three_p99_waits(rho, printed, true, error):
    assert MM1_P99_WAITS[rho] == printed
    right = mm1_wait_percentile(rho, 1.0, 99)
    assert right == pytest.approx(true, abs=0.005)
    assert relative_error(MM1_P99_WAITS[rho], right) == pytest.approx(error, abs=0.001)


def test_11_the_value_at_ninety_per_cent_is_the_responses():
    assert MM1_P99_WAITS[0.9] == round(mm1_response_percentile(0.9, 1.0, 99), 1) == 46.1
    assert len(MM1_P99_WAITS) == 3
    with pytest.raises(TypeError):
        MM1_P99_WAITS[0.9] = 45.0


@pytest.mark.parametrize(
    ("servers", "load", "wait"),
    [(200, 180.0, 0.0944712182), (500, 480.0, 0.26651252), (171, 160.0, 0.2910026401)],
)
def test_12_factorials_overflow(servers, load, wait):
    """Case Q01, and the two of the print below."""
    with pytest.raises(OverflowError):
        erlang_c_by_factorials(load, 1.0, servers)
    with pytest.raises(OverflowError):
        erlang_c_by_factorials(90.0, 1.0, 171)
    assert erlang_c_wait_probability(load, 1.0, servers) == pytest.approx(wait, abs=1e-9)


def test_12_before_they_overflow_they_are_right():
    for c in (1, 2, 10, 100, 145):
        printed, true = (f(0.9 * c, 1.0, c) for f in (erlang_c_by_factorials, _exact))
        assert printed == pytest.approx(true, rel=1e-12)
        assert erlang_c_wait_probability(0.9 * c, 1.0, c) == pytest.approx(true, rel=1e-12)
    with pytest.raises(OverflowError):
        erlang_c_by_factorials(0.9 * 146, 1.0, 146)
    # The same formula in fractions has a value: the fault is in the floats.
    assert _exact(180.0, 1.0, 200) == pytest.approx(0.0944712182, abs=1e-9)


def _exact(arrivals, service, servers):
    """Erlang C by factorials, in fractions."""
    a = Fraction(arrivals) / Fraction(service)
    terms = [Fraction(1)]
    for k in range(1, servers + 1):
        terms.append(terms[-1] * a / k)
    last = terms.pop() / (1 - a / servers)
    return float(last / (last + sum(terms)))


def test_percentiles_of_buckets_are_invented():
    """Case P05: 1,000 gaps of 3.3 ms below a first edge of 10 ms."""
    gaps = np.full(1000, 0.0033)
    edges = [0.01, 0.025]
    counts = np.histogram(gaps, [0, *edges])[0]
    assert counts.tolist() == [1000, 0]
    assert percentile_of_buckets(edges, counts, [50, 99]) == pytest.approx([0.005, 0.0099])
    assert np.percentile(gaps, [50, 99]) == pytest.approx([0.0033, 0.0033], abs=1e-12)
    assert gaps.sum() / counts.sum() == pytest.approx(0.0033, rel=1e-12)  # the exact part
    # Other gaps, the same buckets, the same answer: the percentiles are not recoverable.
    assert np.histogram(3 * gaps, [0, *edges])[0].tolist() == counts.tolist()


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.integers(1, 99),
)
def test_the_rank_falls_into_its_bucket(counts, q):
    edges = np.arange(1.0, len(counts) + 1)
    value = percentile_of_buckets(edges, counts, q)
    ranked = np.repeat(edges, counts)  # each value at its bucket's upper edge
    upper = ranked[math.ceil(Fraction(q, 100) * len(ranked)) - 1]
    assert upper - 1 <= value <= upper + 1e-9


# What a check sees --------------------------------------------------------------------------------


def test_relative_error_has_a_sign():
    assert relative_error(3.0, 4.0) == -0.25
    assert relative_error([5.0, -4.0], 4.0).tolist() == [0.25, -2.0]
    assert type(relative_error(1, 2)) is float


@given(
    st.floats(-0.99, 5), st.floats(0, 0.5), st.floats(0, 0.3), st.floats(-1, 1), st.floats(0.1, 10)
)
def test_a_check_and_its_witness(error, tolerance, blur, place, true):
    """The chapter's theorem: for sure caught, for sure passed, and a band between."""
    printed, witness = (1 + error) * true, (1 + place * blur) * true
    caught = abs(relative_error(printed, witness)) > tolerance
    band, slack = (1 + tolerance) * blur, 1e-9
    if abs(error) > tolerance + band + slack:
        assert caught
    if abs(error) < tolerance - band - slack:
        assert not caught


# Shapes and refusals ------------------------------------------------------------------------------

CALLS = {
    "relative_error": {"printed": 1.0, "true": 2.0},
    "e2e_of_all_tokens": {"ttft_value": 1.0, "tpot_value": 0.1, "output_tokens": 5},
    "response_from_mean_service": {"wait_percentile": 1.0, "mean_service_time": 2.0},
    "md1_queue_wait_of_rho_squared": {"arrival_rate": 0.5, "service_rate": 1.0},
    "erlang_c_by_factorials": {"arrival_rate": 1.5, "service_rate": 1.0, "servers": 2},
    "kv_bytes_from_hidden_size": {"layers": 2, "hidden_size": 64, "bytes_per_element": 2},
    "step_time_over_batch": {
        "active_batch": 4,
        "weight_bytes": 1e9,
        "sequence_kv_bytes": 1e6,
        "memory_bandwidth_bytes_per_s": 1e12,
    },
    "throughput_linear_in_batch": {"active_batch": 4, "step_time_of_one": 0.01},
}
ARGUMENTS = [(function, name) for function, call in CALLS.items() for name in call]
WHOLE = {"output_tokens", "servers", "layers", "hidden_size", "active_batch"}
MAY_BE_ZERO = {"ttft_value", "tpot_value", "wait_percentile", "sequence_kv_bytes"}


def call(function, **changes):
    return getattr(errata, function)(**CALLS[function] | changes)


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
def test_bad_arguments(function, name):
    signed = name == "printed"
    for value, error, message in (
        (NAN, ValueError, "must be finite"),
        (INF, ValueError, "must be finite"),
        ("1", TypeError, "must be a real number"),
        (None, TypeError, "must be a real number"),
        (True, TypeError, "must be a real number"),
    ):
        with pytest.raises(error, match=f"^{name} {message}.*got"):
            call(function, **{name: value})
    if not signed:
        with pytest.raises(ValueError, match=f"^{name} must be (>|>=) [01]: got -1"):
            call(function, **{name: -1})
    if not signed and name not in MAY_BE_ZERO:
        with pytest.raises(ValueError, match=f"^{name} must be (> 0|>= 1): got 0"):
            call(function, **{name: 0})
    if name in WHOLE:
        with pytest.raises(ValueError, match=f"^{name} must be a whole number: got 2.5"):
            call(function, **{name: 2.5})


@pytest.mark.parametrize("function", [f for f in CALLS if f != "erlang_c_by_factorials"])
def test_arrays_broadcast_and_scalars_are_plain(function):
    assert type(call(function)) in (float, int)
    first, second = list(CALLS[function])[:2]
    value = CALLS[function][first]
    row, column = np.full(3, value), np.full((2, 1), CALLS[function][second])
    table = call(function, **{first: row, second: column})
    assert table.shape == (2, 3)
    assert np.all(table == call(function))
    with pytest.raises(ValueError, match=rf"lengths must match: got .*{first} \(3,\)"):
        call(function, **{first: row, second: np.full(2, CALLS[function][second])})


def test_unstable_queues_are_refused():
    for function, rate in (("md1_queue_wait_of_rho_squared", 1.0), ("erlang_c_by_factorials", 2.0)):
        with pytest.raises(ValueError, match=rf"^arrival_rate must be below .*: got {rate:g}"):
            call(function, arrival_rate=rate)


def test_factorials_take_one_queue():
    for name in ("arrival_rate", "service_rate", "servers"):
        with pytest.raises(TypeError, match=f"^{name} must be one number"):
            call("erlang_c_by_factorials", **{name: [2.0]})


@pytest.mark.parametrize(
    ("parts", "q", "error", "message"),
    [
        ([1.0, 2.0], 99, ValueError, r"parts must be a table .*: got shape \(2,\)"),
        (1.0, 99, ValueError, r"parts must be a table .*: got shape \(\)"),
        (np.empty((2, 0)), 99, ValueError, r"parts must be a table .*: got shape \(2, 0\)"),
        ([[1.0, NAN]], 99, ValueError, r"parts must be finite .*: got nan at index \(0, 1\)"),
        ([[1.0], [2.0, 3.0]], 99, ValueError, "parts must be a number or a rectangular array"),
        ([["a"]], 99, TypeError, "parts must be a real number"),
        ([[1.0]], 0.99, ValueError, r"q must be a percentage in \[1, 100\).*: got 0.99"),
        ([[1.0]], 100, ValueError, r"q must be a percentage in \[1, 100\).*: got 100"),
        ([[1.0]], "99", TypeError, "q must be a real number"),
    ],
)
def test_sums_of_percentiles_refuse(parts, q, error, message):
    with pytest.raises(error, match=message):
        sum_of_percentiles(parts, q)


@pytest.mark.parametrize(
    ("edges", "counts", "q", "error", "message"),
    [
        ([1.0, 1.0], [1, 1], 50, ValueError, "edges must be above the edge before it: got 1"),
        ([0.0, 1.0], [1, 1], 50, ValueError, "edges must be > 0: got 0"),
        ([1.0, INF], [1, 1], 50, ValueError, "edges must be finite .*: got inf"),
        ([1.0], [-1], 50, ValueError, "counts must be >= 0: got -1"),
        ([1.0], [0.5], 50, ValueError, "counts must be a whole number: got 0.5"),
        ([1.0], [0], 50, ValueError, "counts must be in all at least 1: got 0"),
        ([1.0, 2.0], [1], 50, ValueError, r"lengths must match: got edges \(2,\), counts \(1,\)"),
        ([], [], 50, ValueError, r"lengths must match: got edges \(0,\), counts \(0,\)"),
        (1.0, 1, 50, ValueError, r"lengths must match: got edges \(\), counts \(\)"),
        ([1.0], [1], 0.99, ValueError, r"q must be a percentage in \[1, 100\).*: got 0.99"),
        (["1"], [1], 50, TypeError, "edges must be a real number"),
    ],
)
def test_percentiles_of_buckets_refuse(edges, counts, q, error, message):
    with pytest.raises(error, match=message):
        percentile_of_buckets(edges, counts, q)


def test_sums_of_several_percentiles():
    parts = [np.arange(101.0), 2 * np.arange(101.0)]
    assert sum_of_percentiles(parts, [50, 99]).tolist() == [150.0, 297.0]
