"""Percentiles: two methods, exact ranks, honest labels; what a histogram can tell."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.errata import percentile_of_buckets
from lib.percentile import Histogram, Percentile, percentile

NAN, INF = float("nan"), float("inf")
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
percent = st.one_of(st.integers(1, 99), st.floats(1, 100, exclude_max=True), st.just(99.9))


def nearest_rank(sample, q, failed=0):
    """The smallest value with at least q % of the sample at or below it, by counting."""
    ranked = sorted(sample) + [INF] * failed
    share = Fraction(str(float(q))) / 100
    for value in ranked:
        if Fraction(sum(v <= value for v in ranked), len(ranked)) >= share:
            return value
    raise AssertionError


@pytest.mark.parametrize(
    ("sample", "q", "method", "expected"),
    [
        ([10, 20, 30], 99, "nearest_rank", 30.0),  # Case P01: not the median 20
        ([10, 20, 30], 99, "linear", 29.8),
        (range(1, 11), 90, "nearest_rank", 9.0),  # Case S01: a float cumulative sum gives 10
        (range(1, 21), 50, "nearest_rank", 10.0),  # and 11 here
        (range(1, 101), 7, "nearest_rank", 7.0),  # 0.07 * 100 > 7 in floats
        (range(1, 1001), 99.9, "nearest_rank", 999.0),
        ([3, 1, 2], 50, "linear", 2.0),
        ([5], 1, "linear", 5.0),
        ([5], 99, "nearest_rank", 5.0),
    ],
)
def test_values(sample, q, method, expected):
    assert percentile(list(sample), q, method).value == pytest.approx(expected, rel=1e-15)


def test_failures_rank_above_every_value():
    # Case P03 (ai-dynamo/aiperf#688): nine successes of 100 ms and one failure.
    nine = [100.0] * 9
    assert percentile(nine, 95, "nearest_rank").value == 100.0
    assert percentile(nine, 90, "nearest_rank", failed=1).value == 100.0
    assert percentile(nine, 95, "nearest_rank", failed=1).value == INF
    assert percentile(nine, 95, "nearest_rank", failed=1).n == 10
    with pytest.raises(ValueError, match=r"failed must be 0 with method 'linear'.*: got 1"):
        percentile(nine, 95, failed=1)


def test_a_small_sample_says_so():
    p99 = percentile(range(20), 99)
    assert isinstance(p99, Percentile)
    assert not p99.supported
    assert p99.beyond == 0.2
    assert str(p99) == "p99 = 18.81 (linear, n = 20: too few, 0.2 of them lie beyond)"
    enough = percentile(range(100), 99)
    assert enough.supported
    assert enough.beyond == 1.0
    assert str(enough) == "p99 = 98.01 (linear, n = 100)"
    assert not percentile(range(99), 99).supported
    assert percentile(range(99), 99, "nearest_rank", failed=1).supported
    assert str(percentile([1, 2], 50, "nearest_rank")) == "p50 = 1 (nearest_rank, n = 2)"


def test_plain_numbers_come_out():
    for method in ("linear", "nearest_rank"):
        p = percentile(np.arange(5, dtype=np.int8), np.float32(50), method)
        assert [type(x) for x in (p.q, p.value, p.n, p.beyond)] == [float, float, int, float]


def test_the_sample_is_left_as_it_was():
    mine = np.array([3.0, 1.0, 2.0])
    percentile(mine, 50, "nearest_rank")
    assert mine.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 50), ValueError, r"values must be a non-empty list: got shape \(0,\)"),
        ((1.0, 50), ValueError, r"values must be a non-empty list: got shape \(\)"),
        (([[1.0, 2.0]], 50), ValueError, r"values must be a non-empty list: got shape \(1, 2\)"),
        (([1.0, NAN], 50), ValueError, "values must be finite .*: got nan at index 1"),
        (([INF], 50), ValueError, "values must be finite .*: got inf"),
        (([None], 50), TypeError, "values must be a real number"),
        (([1.0], 0.99), ValueError, r"q must be a percentage in \[1, 100\): 99 .*: got 0.99"),
        (([1.0], 100), ValueError, r"q must be a percentage in \[1, 100\).*: got 100"),
        (([1.0], 0), ValueError, r"q must be a percentage in \[1, 100\).*: got 0"),
        (([1.0], -5), ValueError, r"q must be a percentage in \[1, 100\).*: got -5"),
        (([1.0], NAN), ValueError, "q must be finite"),
        (([1.0], "99"), TypeError, "q must be a real number"),
        (([1.0], [50]), TypeError, "q must be one number"),
        (([1.0], 50, "median"), ValueError, "method must be one of 'linear', 'nearest_rank'"),
        (([1.0], 50, "nearest_rank", -1), ValueError, "failed must be >= 0: got -1"),
        (([1.0], 50, "nearest_rank", 0.5), ValueError, "failed must be a whole number: got 0.5"),
        (([1.0], 50, "nearest_rank", [1]), TypeError, "failed must be one number"),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        percentile(*arguments)


def test_the_edges_of_q():
    assert percentile([1.0, 2.0], 1, "nearest_rank").value == 1.0
    assert percentile([1.0, 2.0], 99.9999, "nearest_rank").value == 2.0


@given(values, percent, st.integers(0, 5))
def test_nearest_rank_is_its_definition(sample, q, failed):
    p = percentile(sample, q, "nearest_rank", failed=failed)
    assert p.value == nearest_rank(sample, q, failed)
    assert p.n == len(sample) + failed


@given(values, percent)
def test_linear_is_numpys(sample, q):
    span = max(sample) - min(sample)
    assert percentile(sample, q).value == pytest.approx(
        np.percentile(sample, q, method="linear"),
        rel=1e-12,
        abs=1e-12 * span,  # two ways to write q/100 in floats
    )


@given(values, percent, percent)
def test_percentiles_rise_with_q(sample, a, b):
    low, high = sorted((a, b))
    one, two = (percentile(sample, q, "nearest_rank").value for q in (low, high))
    assert min(sample) <= one <= two <= max(sample)


@given(st.integers(1, 300), percent)
def test_supported_means_one_value_beyond(n, q):
    p = percentile(np.arange(n), q)
    exact = n * (1 - Fraction(str(float(q))) / 100)
    assert p.beyond == float(exact)
    assert p.supported == (float(exact) >= 1)


def test_a_million_values():
    sample = np.random.default_rng(1).permutation(10**6)
    assert percentile(sample, 99, "nearest_rank").value == 989_999


def test_a_missing_value_is_no_zero():
    """Case S03: a mean or a percentile over [2, 4, None] has n = 2, not a third value of 0."""
    latency = np.array([2.0, 4.0, NAN])
    with pytest.raises(ValueError, match=r"values must be finite .*: got nan at index 2"):
        percentile(latency, 50)
    known = latency[~np.isnan(latency)]
    assert (percentile(known, 50).value, percentile(known, 50).n) == (3.0, 2)


# Histograms ---------------------------------------------------------------------------------------


def test_all_values_below_the_first_edge():
    """Case P05 (vllm#55276): 1,000 gaps of 3.3 ms below a first edge of 10 ms."""
    gaps = Histogram([0.01, 0.025, INF], [1000, 1000, 1000], 3.3)
    assert gaps.mean == pytest.approx(0.0033, abs=1e-15)
    assert gaps.n == 1000
    for q, printed in ((50, 0.005), (99, 0.0099)):
        p = gaps.percentile(q)
        assert p.interpolated == pytest.approx(printed, abs=1e-12)
        assert (p.low, p.high) == (0.0, 0.01)
        assert not p.bounded
    assert {type(x) for x in vars(gaps.percentile(50)).values()} == {float}


def test_values_beyond_the_last_edge():
    slow = Histogram([0.1, 1.0, INF], [50, 80, 100], 900.0)
    p = slow.percentile(99)
    assert (p.low, p.high, p.interpolated) == (1.0, INF, 1.0)  # printed as the last finite edge
    assert not p.bounded
    p = slow.percentile(80)
    assert (p.low, p.high, p.interpolated) == (0.1, 1.0, 1.0)
    assert p.bounded
    assert slow.percentile(65).interpolated == pytest.approx(0.55)


def test_replicas_add_up_and_their_percentiles_do_not():
    fast = Histogram([1, 2, 4, INF], [98, 100, 100, 100], 60.0)
    slow = Histogram([1, 2, 4, INF], [0, 0, 99, 100], 310.0)
    both = Histogram(fast.edges, fast.cumulative + slow.cumulative, fast.total + slow.total)
    assert both.mean == pytest.approx(1.85)
    p99 = [h.percentile(99).high for h in (fast, slow, both)]
    assert p99 == [2.0, 4.0, 4.0]  # the mean of the two replicas, 3, is below every value of p99


@given(
    st.lists(st.floats(1e-6, 100), min_size=1, max_size=60),
    st.lists(st.floats(1e-3, 90), min_size=1, max_size=6, unique=True),
    percent,
)
def test_the_bucket_holds_the_percentile(sample, edges, q):
    edges = [*sorted(edges), INF]
    cumulative = [sum(v <= edge for v in sample) for edge in edges]
    h = Histogram(edges, cumulative, sum(sample))
    assert (h.n, h.mean) == (len(sample), pytest.approx(np.mean(sample), rel=1e-12))
    p = h.percentile(q)
    assert p.low < nearest_rank(sample, q) <= p.high
    assert p.low <= p.interpolated <= p.high
    assert p.bounded == (p.low > 0 and p.high < INF)
    if cumulative[-2] == len(sample):  # no value beyond the last edge: the dashboards' formula
        printed = percentile_of_buckets(edges[:-1], np.diff(cumulative[:-1], prepend=0), q)
        assert p.interpolated == pytest.approx(printed, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, INF], [1], 1.0), ValueError, r"one length >= 2: got shapes \(2,\) and \(1,\)"),
        (([INF], [1], 1.0), ValueError, r"one length >= 2: got shapes \(1,\) and \(1,\)"),
        (([[1.0, INF]], [[1, 1]], 1.0), ValueError, "edges and cumulative must be two lists"),
        (([1.0, 2.0], [1, 1], 1.0), ValueError, "edges must end at infinity: got 2"),
        (([1.0, NAN], [1, 1], 1.0), ValueError, "edges must end at infinity: got nan"),
        (([NAN, INF], [1, 1], 1.0), ValueError, "edges must be finite .*: got nan at index 0"),
        (([0.0, INF], [1, 1], 1.0), ValueError, "edges must be > 0: got 0 at index 0"),
        (([2.0, 1.0, INF], [1, 1, 1], 1.0), ValueError, "edges must be above the edge before it"),
        (([1.0, 1.0, INF], [1, 1, 1], 1.0), ValueError, "edges must be above the edge before it"),
        (([1.0, INF, INF], [1, 1, 1], 1.0), ValueError, "edges must be finite"),
        (([1.0, 2.0, INF], [3, 2, 5], 5.0), ValueError, "cumulative must be >= the count before"),
        (([1.0, INF], [1, 1.5], 1.0), ValueError, "cumulative must be a whole number: got 1.5"),
        (([1.0, INF], [-1, 1], 1.0), ValueError, "cumulative must be >= 0: got -1"),
        (([1.0, INF], [0, 0], 0.0), ValueError, "cumulative must be in all at least 1: got 0"),
        (
            ([1.0, 2.0, INF], [2, 2, 2], 2000.0),
            ValueError,
            r"total must be .* from 0 to 2: got 2000",
        ),
        (([1.0, 2.0, INF], [0, 2, 2], 1.9), ValueError, r"total must be .* from 2 to 4: got 1.9"),
        (([1.0, INF], [0, 3], 2.9), ValueError, r"total must be .* from 3 to inf: got 2.9"),
        (([1.0, INF], [1, 1], -1.0), ValueError, "total must be >= 0: got -1"),
        (([1.0, INF], [1, 1], NAN), ValueError, "total must be finite"),
        (([1.0, INF], [1, 1], [1.0]), TypeError, "total must be one number"),
        ((["1", "inf"], [1, 1], 1.0), TypeError, r"edges must be real numbers: got \['1', 'inf'\]"),
        ((None, [1, 1], 1.0), TypeError, "edges must be real numbers: got None"),
        (([1.0, INF], ["1", "1"], 1.0), TypeError, "cumulative must be a real number"),
    ],
)
def test_histograms_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Histogram(*arguments)


def test_percentiles_of_histograms_refused():
    h = Histogram([1.0, INF], [1, 1], 0.5)
    for bad in (0, 0.99, 100, NAN):
        with pytest.raises(ValueError, match="q must be"):
            h.percentile(bad)
    with pytest.raises(TypeError, match="q must be one number"):
        h.percentile([50])
