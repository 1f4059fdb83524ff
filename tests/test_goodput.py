"""Throughput, attainment and goodput: values, rules, the Wilson interval, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib.goodput import (
    Attainment,
    attainment,
    goodput,
    goodput_ratio,
    meets_slo,
    request_throughput,
    token_throughput,
    wilson_interval,
)
from lib.latency import RequestMetrics, request_metrics, tpot

NAN, INF = float("nan"), float("inf")
ULP = 2.0**-53  # relative error of one rounding

SEED = [request_metrics("a", 0.0, 0.2, 1.0, 9), request_metrics("b", 0.0, 0.9, 2.0, 12)]


def rows(ttft, tpot=0.01, tokens=10):
    """One record a TTFT (s)."""
    return [RequestMetrics(i, tokens, t, tpot, t + (tokens - 1) * tpot) for i, t in enumerate(ttft)]


# --- throughput -------------------------------------------------------------------------------


def test_throughput():
    assert request_throughput(2, 2.0) == 1.0
    assert request_throughput(0, 2.0) == 0.0
    assert_array_equal(request_throughput([2, 4], 2.0), [1, 2])
    assert token_throughput([9, 12], 2.0) == 10.5
    assert token_throughput(21, 2.0) == 10.5
    assert token_throughput(np.full(3, 200, np.uint8), 2.0) == 300.0
    # Case L11: 4 slots finish 2 requests of 40 tokens each in 10 s, and are half through a third.
    assert token_throughput([40] * 8, 10.0) == 32.0
    assert token_throughput([40] * 8 + [20] * 4, 10.0) == 40.0
    assert {type(f(3, 2)) for f in (request_throughput, token_throughput)} == {float}


def test_throughput_of_a_burst():
    # Case L03 (vllm-project/vllm#3096): 1000 requests into 2.3 req/s end after 434.78 s.
    assert request_throughput(1000, 434.7826) == pytest.approx(2.3, abs=1e-6)


def test_the_window_is_the_callers():
    # Case S07: 18 tokens: by the wall clock, and from first send to last token (1.1 s - 0.1 s).
    assert token_throughput(18, 1.15) == pytest.approx(15.652173913, abs=1e-9)
    assert token_throughput(18, 1.1 - 0.1) == pytest.approx(18.0, abs=1e-12)


@pytest.mark.parametrize("function", [request_throughput, token_throughput])
@pytest.mark.parametrize(
    ("number", "time", "message"),
    [
        (-1, 1.0, "(num_completed|output_tokens) must be >= 0: got -1"),
        (1.5, 1.0, "(num_completed|output_tokens) must be a whole number: got 1.5"),
        (NAN, 1.0, "(num_completed|output_tokens) must be finite .*: got nan"),
        (1, 0.0, "total_time must be > 0: got 0"),
        (1, -1.0, "total_time must be > 0: got -1"),
        (1, NAN, "total_time must be finite .*: got nan"),
        (1, INF, "total_time must be finite .*: got inf"),
    ],
)
def test_throughput_refuses(function, number, time, message):
    with pytest.raises(ValueError, match=message):
        function(number, time)
    with pytest.raises(TypeError, match="total_time must be a real number"):
        function(1, "1")


def test_throughput_lengths_must_match():
    with pytest.raises(ValueError, match=r"lengths must match: got num_completed \(2,\)"):
        request_throughput([1, 2], [1.0, 2.0, 3.0])


# --- Wilson -----------------------------------------------------------------------------------


def normal_quantile(confidence):
    """z with P(|Z| < z) = confidence, by bisection on erf."""
    low, high = 0.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle / 2**0.5) < confidence else (low, middle)
    return low


def score_roots(good, total, confidence):
    """The two p at which the score test is just indifferent, by bisection on its definition."""
    share, z = good / total, normal_quantile(confidence)

    def excess(p):
        return (share - p) ** 2 - z**2 * p * (1 - p) / total

    def root(outside, inside):
        for _ in range(200):
            middle = (outside + inside) / 2
            outside, inside = (middle, inside) if excess(middle) > 0 else (outside, middle)
        return inside

    return root(0.0, share), root(1.0, share)


@pytest.mark.parametrize(
    ("good", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(good, total, low, high):
    # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
    assert_allclose(wilson_interval(good, total), (low, high), atol=5e-5)


@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
def test_wilson_solves_the_score_equation(total, data, confidence):
    good = data.draw(st.integers(0, total))
    assert_allclose(
        wilson_interval(good, total, confidence), score_roots(good, total, confidence), atol=1e-9
    )


def test_wilson_covers():
    # Exact: the binomial probability of the samples whose interval holds p, for n = 60.
    n = 60
    g = np.arange(n + 1)
    low, high = wilson_interval(g, n)
    p = np.linspace(0.02, 0.98, 1921)[:, None]
    ways = np.array([math.comb(n, k) for k in range(n + 1)], float)
    covered = (ways * p**g * (1 - p) ** (n - g) * ((low <= p) & (p <= high))).sum(axis=1)
    assert abs(covered.mean() - 0.95) < 0.005
    assert covered.min() > 0.90
    # Mistakes in z show: 90 % intervals taken for 95 % ones cover about 90 %.
    low, high = wilson_interval(g, n, 0.90)
    covered = (ways * p**g * (1 - p) ** (n - g) * ((low <= p) & (p <= high))).sum(axis=1)
    assert abs(covered.mean() - 0.90) < 0.01


def test_sixty_requests_do_not_measure_99_percent():
    low, high = wilson_interval(60, 60)
    assert low == pytest.approx(0.93982, abs=1e-5)
    assert high == 1.0
    assert low < 0.99


@given(st.integers(1, 10**6), st.data())
def test_wilson_stays_inside_and_mirrors(total, data):
    good = data.draw(st.integers(0, total))
    low, high = wilson_interval(good, total)
    assert 0 <= low <= good / total <= high <= 1
    assert low < high
    assert wilson_interval(total - good, total) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_wilson_shapes_and_extremes():
    low, high = wilson_interval([0, 5, 10], 10)
    assert low[0] == 0.0
    assert high[2] == 1.0
    assert (low[1], high[1]) == wilson_interval(5, 10)
    assert {type(bound) for bound in wilson_interval(5, 10)} == {float}
    low, high = wilson_interval(1, 2, 1 - 2**-53)  # the largest confidence below 1
    assert 0 < low < 0.02
    assert 0.98 < high < 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, 2), ValueError, "good must be <= total: got 3"),
        (([1, 3], 2), ValueError, "good must be <= total: got 3 at index 1"),
        ((-1, 2), ValueError, "good must be >= 0: got -1"),
        ((1.5, 2), ValueError, "good must be a whole number: got 1.5"),
        ((0, 0), ValueError, "total must be >= 1: got 0"),
        ((0, NAN), ValueError, "total must be finite"),
        ((1, 2, 0.0), ValueError, "confidence must be between 0 and 1.*: got 0"),
        ((1, 2, 1.0), ValueError, "confidence must be between 0 and 1.*: got 1"),
        ((1, 2, 95), ValueError, "confidence must be between 0 and 1.*: got 95"),
        ((1, 2, NAN), ValueError, "confidence must be finite"),
        ((1, 2, [0.9]), TypeError, "confidence must be one number"),
        (([1, 2], [3, 4, 5]), ValueError, r"lengths must match: got good \(2,\), total \(3,\)"),
    ],
)
def test_wilson_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        wilson_interval(*arguments)


# --- attainment and goodput -------------------------------------------------------------------


def test_the_seeds_example():
    assert request_throughput(2, 2.0) == 1.0
    assert goodput_ratio(SEED, 0.5, 0.15) == 0.5
    assert goodput(SEED, 2.0, 0.5, 0.15) == 0.5
    assert goodput_ratio([], 0.5, 0.15) == 0.0
    assert goodput([], 2.0, 0.5, 0.15) == 0.0


def test_attainment_says_all():
    share = attainment(SEED, 0.5, 0.15, confidence=0.9)
    low, high = wilson_interval(1, 2, 0.9)
    assert share == Attainment(good=1, judged=2, ratio=0.5, low=low, high=high, confidence=0.9)
    assert {type(x) for x in vars(share).values()} == {int, float}
    nothing = attainment([], 0.5)
    assert (nothing.judged, nothing.ratio, nothing.low, nothing.high) == (0, 0.0, 0.0, 1.0)


def test_seconds_not_milliseconds():
    # Case G01 (vllm-project/vllm#9338): limits in ms there; here all times are in seconds.
    three = rows([0.18, 0.25, 0.9])
    assert attainment(three, 200 / 1000).good == 1
    assert goodput(three, 3.0, 200 / 1000) == pytest.approx(0.3333333333, abs=1e-9)
    assert goodput(three, 3.0, 200.0) == 1.0  # a slip: the goodput is the throughput
    assert goodput(three, 3.0, 0.2 / 1000) == 0.0  # the other slip


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft_slo": 1.0}, [1, 1, 0, 1]),
        ({"tpot_slo": 0.1}, [1, 0, 1, 1]),
        ({"e2e_slo": 3.0}, [1, 1, 1, 0]),
        ({"ttft_slo": 1.0, "tpot_slo": 0.1}, [1, 0, 0, 1]),
        ({"ttft_slo": 1.0, "e2e_slo": 3.0}, [1, 1, 0, 0]),
        ({"tpot_slo": 0.1, "e2e_slo": 3.0}, [1, 0, 1, 0]),
        ({"ttft_slo": 1.0, "tpot_slo": 0.1, "e2e_slo": 3.0}, [1, 0, 0, 0]),
    ],
)
def test_any_set_of_limits(limits, good):
    many = RequestMetrics(
        np.arange(4),
        np.full(4, 5),
        ttft=np.array([0.5, 0.5, 2.0, 0.5]),
        tpot=np.array([0.05, 0.5, 0.05, 0.05]),
        e2e_latency=np.array([1.0, 2.5, 2.2, 9.0]),
    )
    assert attainment(many, **limits).good == sum(good)
    assert goodput(many, 2.0, **limits) == sum(good) / 2


def test_a_limit_is_met_when_equal():
    # Case S05: 0.1 s + 0.2 s is 0.30000000000000004 s, and meets 300 ms.
    assert goodput_ratio(rows([0.1 + 0.2]), 0.3) == 1.0
    assert goodput_ratio(rows([0.3 + 0.9e-9]), 0.3) == 1.0
    assert goodput_ratio(rows([0.3 + 1.1e-9]), 0.3) == 0.0
    assert goodput_ratio(rows([0.5 + 1e-9]), 0.5) == 1.0
    assert goodput_ratio(rows([math.nextafter(0.5 + 1e-9, INF)]), 0.5) == 0.0
    assert goodput_ratio(rows([0.1], tpot=0.3), tpot_slo=0.3) == 1.0
    assert goodput_ratio(rows([0.1], tpot=0.3001), tpot_slo=0.3) == 0.0
    assert goodput_ratio(rows([0.1], tokens=1), e2e_slo=0.1) == 1.0


def test_failures_in_the_share_or_not():
    # Case G03 (ai-dynamo/aiperf#688): 10 sent, 2 errors, 6 good in 4 s.
    done = rows([0.1] * 6 + [9.0] * 2)
    assert goodput_ratio(done, 1.0, failed=2) == 0.6
    assert goodput_ratio(done, 1.0, failed=2, failures="leave_out") == 0.75
    assert attainment(done, 1.0, failed=2).judged == 10
    assert attainment(done, 1.0, failed=2, failures="leave_out").judged == 8
    for failures in ("miss", "leave_out"):
        assert goodput(done, 4.0, 1.0, failed=2, failures=failures) == pytest.approx(1.5, rel=1e-15)
    only = attainment([], 1.0, failed=3)
    assert (only.good, only.judged, only.ratio) == (0, 3, 0.0)
    assert only.high < 1


@pytest.mark.parametrize(
    ("one_token", "good", "judged"), [("pass", 2, 3), ("fail", 1, 3), ("skip", 1, 2)]
)
def test_a_one_token_answer_and_a_tpot_limit(one_token, good, judged):
    three = RequestMetrics(
        [0, 1, 2], [1, 5, 5], ttft=[0.1] * 3, tpot=[0.0, 0.1, 0.9], e2e_latency=[0.1, 0.5, 3.7]
    )
    share = attainment(three, tpot_slo=0.2, one_token=one_token)
    assert (share.good, share.judged) == (good, judged)
    assert goodput_ratio(three, tpot_slo=0.2, one_token=one_token) == good / judged
    assert goodput(three, 2.0, tpot_slo=0.2, one_token=one_token) == pytest.approx(good / 2)
    # Without a TPOT limit the answer's length does not matter.
    assert attainment(three, ttft_slo=0.2, one_token=one_token).judged == 3
    assert attainment(three, ttft_slo=0.2, one_token=one_token).good == 3


def test_a_one_token_answer_passes_by_default():
    one = rows([0.5], tokens=1)
    assert attainment(one, tpot_slo=0.1) == attainment(one, tpot_slo=0.1, one_token="pass")
    assert goodput_ratio(one, tpot_slo=0.1) == 1.0
    assert goodput(one, 2.0, tpot_slo=0.1) == 0.5


def test_a_one_token_answer_still_has_a_ttft():
    late = rows([5.0], tokens=1)
    assert goodput_ratio(late, 1.0, 0.1, one_token="pass") == 0.0


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(list, id="list"),
        pytest.param(tuple, id="tuple"),
        pytest.param(iter, id="iterator"),
        pytest.param(lambda r: (x for x in r), id="generator"),
        pytest.param(lambda r: dict(enumerate(r)).values(), id="view"),
        pytest.param(
            lambda r: RequestMetrics(
                *(
                    [getattr(x, n) for x in r]
                    for n in ("request_id", "output_tokens", "ttft", "tpot", "e2e_latency")
                )
            ),
            id="arrays",
        ),
    ],
)
def test_metrics_in_every_form(form):
    assert attainment(form(SEED), 0.5, 0.15).good == 1
    assert goodput(form(SEED), 2.0, 0.5, 0.15) == 0.5


def test_one_record_with_scalars_and_arrays():
    assert goodput_ratio(SEED[0], 0.5, 0.15) == 1.0
    mixed = request_metrics("all", 0.0, [0.2, 0.9], 2.0, 9)
    assert attainment(mixed, 0.5).judged == 2
    assert goodput_ratio(mixed, 0.5) == 0.5


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        (None, TypeError, "metrics must be RequestMetrics or an iterable of them: got None"),
        (3, TypeError, "metrics must be RequestMetrics or an iterable of them: got 3"),
        ([1], TypeError, "metrics must hold RequestMetrics: got 1"),
        ("ab", TypeError, "metrics must hold RequestMetrics: got 'a'"),
        (RequestMetrics(0, 0, 1.0, 1.0, 1.0), ValueError, "output_tokens must be >= 1: got 0"),
        (RequestMetrics(0, 5, NAN, 1.0, 1.0), ValueError, "ttft must be finite .*: got nan"),
        (RequestMetrics(0, 5, 1.0, -1.0, 1.0), ValueError, "tpot must be >= 0: got -1"),
        (RequestMetrics(0, 5, 1.0, 1.0, INF), ValueError, "e2e_latency must be finite .*: got inf"),
        (RequestMetrics(0, 5, None, 1.0, 1.0), TypeError, "ttft must be a real number"),
        (
            RequestMetrics(0, [5, 5, 5], [1.0, 1.0], 1.0, 1.0),
            ValueError,
            r"lengths must match: got output_tokens \(3,\), ttft \(2,\)",
        ),
        (
            RequestMetrics(0, 5, np.ones((2, 1)), np.ones(2), 1.0),
            ValueError,
            r"ttft must be one value a request: got shape \(2, 1\)",
        ),
        (
            [request_metrics(0, [0, 0], 1, 2, 3), request_metrics(0, [0, 0, 0], 1, 2, 3)],
            ValueError,
            "ttft must be a number or a rectangular array",
        ),
    ],
)
def test_metrics_are_refused(metrics, error, message):
    with pytest.raises(error, match=message):
        goodput_ratio(metrics, 1.0, 1.0)


@pytest.mark.parametrize("name", ["ttft_slo", "tpot_slo", "e2e_slo"])
@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0.0, ValueError, "must be > 0: got 0"),
        (-1.0, ValueError, "must be > 0: got -1"),
        (NAN, ValueError, "must be finite .*: got nan"),
        (INF, ValueError, "must be finite .*: got inf"),
        ([0.2], TypeError, "must be one number"),
        ("200", TypeError, "must be a real number"),
        (True, TypeError, "must be a real number"),
    ],
)
def test_limits_are_refused(name, limit, error, message):
    for call in (attainment, goodput_ratio):
        with pytest.raises(error, match=f"^{name} {message}"):
            call([], **{name: limit})
    with pytest.raises(error, match=f"^{name} {message}"):
        goodput([], 1.0, **{name: limit})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"one_token": "maybe"}, ValueError, "one_token must be one of 'pass', 'fail', 'skip'"),
        ({"failures": "ignore"}, ValueError, "failures must be one of 'miss', 'leave_out'"),
        ({"failed": -1}, ValueError, "failed must be >= 0: got -1"),
        ({"failed": -1, "failures": "leave_out"}, ValueError, "failed must be >= 0: got -1"),
        ({"failed": 0.5}, ValueError, "failed must be a whole number: got 0.5"),
        ({"failed": NAN}, ValueError, "failed must be finite"),
        ({"failed": [1]}, TypeError, "failed must be one number"),
    ],
)
def test_options_are_refused(options, error, message):
    for call in (attainment, goodput_ratio):
        with pytest.raises(error, match=message):
            call(SEED, 1.0, **options)
    with pytest.raises(error, match=message):
        goodput(SEED, 1.0, 1.0, **options)


def test_more_refusals():
    for call in (attainment, goodput_ratio):
        with pytest.raises(ValueError, match="must be given: no limit"):
            call(SEED)
    with pytest.raises(ValueError, match="must be given: no limit"):
        goodput(SEED, 1.0)
    for time in (0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="total_time must be"):
            goodput(SEED, time, 1.0)
    with pytest.raises(TypeError, match="total_time must be one number"):
        goodput(SEED, [1.0], 1.0)
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        attainment([], 1.0, confidence=1.5)


def test_good_tokens():
    # Goodput in tokens: the tokens of the good requests, not those of all times the attainment.
    two = RequestMetrics([0, 1], [10, 90], ttft=[0.1, 9.0], tpot=[0.01] * 2, e2e_latency=[0.2, 9.9])
    good, _ = meets_slo(two, 1.0)
    assert token_throughput(np.array(two.output_tokens) * good, 2.0) == 5.0
    assert token_throughput(two.output_tokens, 2.0) * goodput_ratio(two, 1.0) == 25.0


def test_limits_hold_together_not_one_by_one():
    # TTFT and TPOT fail in different requests: 0.5 and 0.5 leave none good, not a quarter.
    two = RequestMetrics([0, 1], [9, 9], ttft=[0.1, 9.0], tpot=[9.0, 0.1], e2e_latency=[72, 9.8])
    assert goodput_ratio(two, ttft_slo=1.0) == goodput_ratio(two, tpot_slo=1.0) == 0.5
    assert goodput_ratio(two, 1.0, 1.0) == 0.0


def test_metrics_keep_their_requests():
    # Lists without their failures or one-token answers no longer match row by row: refused.
    with pytest.raises(
        ValueError, match=r"lengths must match: got output_tokens \(3,\), tpot \(2,"
    ):
        attainment(RequestMetrics(0, [5, 1, 5], [0.1] * 3, [0.1, 0.2], [1.0] * 3), 1.0, 1.0)


# --- properties -------------------------------------------------------------------------------

seconds = st.floats(0, 10)
metric = st.builds(RequestMetrics, st.integers(), st.integers(1, 3), seconds, seconds, seconds)
limit = st.none() | st.floats(0.01, 10)
limits = st.tuples(limit, limit, limit).filter(lambda three: any(x is not None for x in three))
rules = st.fixed_dictionaries(
    {
        "one_token": st.sampled_from(["pass", "fail", "skip"]),
        "failed": st.integers(0, 5),
        "failures": st.sampled_from(["miss", "leave_out"]),
    }
)


def counted(metrics, three, one_token, failed, failures):
    """Good and judged, one request at a time."""
    good = judged = 0
    for m in metrics:
        meets = []
        for value, top, is_tpot in zip(
            (m.ttft, m.tpot, m.e2e_latency), three, (False, True, False), strict=True
        ):
            if top is None:
                continue
            if is_tpot and m.output_tokens == 1:
                meets.append({"pass": True, "fail": False, "skip": None}[one_token])
            else:
                meets.append(value <= top + 1e-9)
        if None not in meets:
            judged += 1
            good += all(meets)
    return good, judged + (failed if failures == "miss" else 0)


@given(st.lists(metric, max_size=12), limits, rules, st.floats(0.1, 1e4))
def test_goodput_is_good_over_time_under_every_rule(metrics, three, rule, time):
    good, judged = counted(metrics, three, **rule)
    share = attainment(metrics, *three, **rule)
    assert (share.good, share.judged) == (good, judged)
    assert share.ratio == (good / judged if judged else 0.0)
    assert share.low <= share.ratio <= share.high
    assert goodput_ratio(metrics, *three, **rule) == share.ratio
    # Three roundings in the product, one in the quotient.
    assert abs(goodput(metrics, time, *three, **rule) - good / time) <= 4 * ULP * good / time


@given(st.lists(metric, max_size=12), limits, rules, st.sampled_from([0, 1, 2]), st.floats(0, 5))
def test_attainment_grows_with_each_limit(metrics, three, rule, which, more):
    before = attainment(metrics, *three, **rule)
    wider = [x + more if i == which and x is not None else x for i, x in enumerate(three)]
    assert attainment(metrics, *wider, **rule).good >= before.good


@given(st.lists(metric, min_size=1, max_size=12), limits, rules)
def test_rows_and_arrays_agree(metrics, three, rule):
    columns = RequestMetrics(
        *(
            np.array([getattr(m, name) for m in metrics])
            for name in ("request_id", "output_tokens", "ttft", "tpot", "e2e_latency")
        )
    )
    assert attainment(columns, *three, **rule) == attainment(metrics, *three, **rule)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(50, 60))
def test_wilson_arrays_equal_scalars(good, total):
    low, high = wilson_interval(good, total)
    for i, g in enumerate(good):
        assert (low[i], high[i]) == wilson_interval(g, total)


def test_a_million_requests():
    n = 10**6
    many = request_metrics(np.arange(n), 0.0, np.linspace(0, 1, n), 2.0, np.full(n, 5))
    assert attainment(many, 0.25).good == pytest.approx(n / 4, abs=1)


def test_a_missing_tpot_is_no_fault_of_a_one_token_answer():
    one = request_metrics("a", 0.0, 0.1, 0.1, 1)
    missing = RequestMetrics("a", 1, 0.1, tpot(0.1, 0.1, 1, one_token="missing"), 0.1)
    for rule in ("pass", "fail", "skip"):
        for slo in ({"ttft_slo": 0.2}, {"tpot_slo": 0.05}, {"e2e_slo": 0.05}):
            assert attainment(missing, **slo, one_token=rule) == attainment(
                one, **slo, one_token=rule
            )
    with pytest.raises(ValueError, match="tpot must be finite"):
        attainment(RequestMetrics("a", 2, 0.1, float("nan"), 0.1), tpot_slo=0.05)
