"""M/G/1: Pollaczek-Khinchine against chains of stages, Crommelin's M/D/1, and its own tail."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib.mg1 import (
    kingman_wait_bound,
    mg1_externality,
    mg1_queue_wait,
    mg1_response_time,
    mg1_wait_percentile_approximation,
    mg1_wait_tail_approximation,
    mg1_wait_tail_bounds,
)
from lib.mm1 import mm1_stats, mm1_wait_percentile, mm1_wait_tail

NAN, INF = float("nan"), float("inf")
QUEUE = {"arrival_rate": 0.5, "mean_service_time": 1.0, "service_time_cv": 0.7}
CALLS = {
    mg1_queue_wait: QUEUE,
    mg1_response_time: QUEUE,
    mg1_externality: {**QUEUE, "extra_service_time": 3.0},
    mg1_wait_tail_approximation: {**QUEUE, "time": 2.0},
    mg1_wait_percentile_approximation: {**QUEUE, "q": 99.0},
    kingman_wait_bound: {**QUEUE, "interarrival_cv": 1.3},
}
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.items() for name in kw]
ZERO_ALLOWED = {"service_time_cv", "interarrival_cv", "time", "extra_service_time"}

means = st.floats(1e-3, 1e3)
loads = st.floats(0.001, 0.999)
cvs = st.floats(0, 20)


def wait_by_stages(arrival_rate, starts, stage_rates, moves, longest=400):
    """Mean wait of M/PH/1: the chain of (requests, stage) as linear equations, then Little's law.

    A service starts in stage i with probability starts[i], leaves it at stage_rates[i], goes on to
    stage j with probability moves[i][j], and ends otherwise. `longest` cuts the queue off.
    """
    stages = len(starts)
    size = 1 + longest * stages
    flow = np.zeros((size, size))

    def at(n, stage):
        return 1 + (n - 1) * stages + stage

    for i in range(stages):
        flow[0, at(1, i)] += arrival_rate * starts[i]
        for n in range(1, longest + 1):
            if n < longest:
                flow[at(n, i), at(n + 1, i)] += arrival_rate
            for j in range(stages):
                flow[at(n, i), at(n, j)] += stage_rates[i] * moves[i][j]
                if n > 1:
                    flow[at(n, i), at(n - 1, j)] += stage_rates[i] * (1 - sum(moves[i])) * starts[j]
            if n == 1:
                flow[at(n, i), 0] += stage_rates[i] * (1 - sum(moves[i]))
    flow -= np.diag(flow.sum(axis=1))
    equations = np.vstack([flow.T[:-1], np.ones(size)])
    pi = np.linalg.solve(equations, np.append(np.zeros(size - 1), 1.0))
    in_queue = np.concatenate([[0], np.repeat(np.arange(longest), stages)])
    return in_queue @ pi / arrival_rate


def crommelin(arrival_rate, service, t):
    """Pr[W_queue > t] of M/D/1: a finite sum, exact while its alternating terms stay small."""
    total = 0.0
    for k in range(int(t / service) + 1):
        x = arrival_rate * (t - k * service)
        total += (-x) ** k / math.factorial(k) * math.exp(x)
    return 1 - (1 - arrival_rate * service) * total


# --- means -----------------------------------------------------------------------------------


def test_by_hand():
    # rho 0.5, E[D] 1, CV 1: M/M/1 waits 1. Constant service halves that: 0.5, and not 0.25.
    assert mg1_queue_wait(0.5, 1.0) == 1.0
    assert mg1_queue_wait(0.5, 1.0, 0.0) == 0.5
    assert mg1_response_time(0.5, 1.0, 0.0) == 1.5
    # Services of 1 s and 3 s, half each: E[D] 2, E[D^2] 5, so 0.25 x 5 / (2 x 0.5) = 1.25 s.
    assert mg1_queue_wait(0.25, 2.0, 0.5) == 1.25
    assert type(mg1_queue_wait(0.25, 2, 0)) is float


def test_one_long_prompt_in_a_hundred():
    # 99 of 1 s and one of 100 s: E[D] 1.99, E[D^2] 100.99; at rho 0.5 the wait is 25.4 s,
    # where the same mean without spread gives 1.0 s.
    sample = np.array([1.0] * 99 + [100.0])
    cv = sample.std() / sample.mean()
    rate = 0.5 / 1.99
    assert mg1_queue_wait(rate, 1.99, cv) == pytest.approx(rate * 100.99, rel=1e-12)
    assert mg1_queue_wait(rate, 1.99, 0.0) == pytest.approx(0.995, rel=1e-12)


@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_erlang_service_solved_as_a_chain(rho):
    for k in (1, 2, 5):  # CV^2 = 1/k
        onward = np.eye(k, k=1)
        wait = wait_by_stages(rho, [1.0] + [0.0] * (k - 1), [float(k)] * k, onward, 300)
        assert mg1_queue_wait(rho, 1.0, k**-0.5) == pytest.approx(wait, rel=1e-9)


@pytest.mark.parametrize("rho", [0.3, 0.6])
def test_hyperexponential_service_solved_as_a_chain(rho):
    starts, rates = np.array([0.9, 0.1]), np.array([3.0, 0.25])
    mean, square = starts @ (1 / rates), starts @ (2 / rates**2)
    cv = math.sqrt(square / mean**2 - 1)
    assert cv > 1.9
    # The longest queue cuts off less than 1e-12 of the time at these loads.
    wait = wait_by_stages(rho / mean, starts, rates, np.zeros((2, 2)), 600)
    assert mg1_queue_wait(rho / mean, mean, cv) == pytest.approx(wait, rel=1e-7)


@given(means, loads)
def test_exponential_service_is_mm1(mean, rho):
    stats = mm1_stats(rho / mean, 1 / mean)
    # 1 - rho loses up to three digits at rho = 0.999.
    assert mg1_queue_wait(rho / mean, mean) == pytest.approx(stats.avg_queue_wait, rel=1e-11)
    assert mg1_response_time(rho / mean, mean) == pytest.approx(stats.avg_response_time, rel=1e-11)


@given(means, loads, cvs, st.floats(0.001, 5))
def test_variance_and_load_cost(mean, rho, cv, more):
    base = mg1_queue_wait(rho / mean, mean, cv)
    assert mg1_queue_wait(rho / mean, mean, cv + more) > base
    assert mg1_queue_wait(rho / mean * (1 - 1e-3), mean, cv) < base
    # The wait is linear in CV^2, with M/D/1 at half of M/M/1.
    constant = mg1_queue_wait(rho / mean, mean, 0.0)
    assert base == pytest.approx(constant * (1 + cv**2), rel=1e-12)
    assert constant == pytest.approx(mm1_stats(rho, 1.0).avg_queue_wait * mean / 2, rel=1e-11)


def test_arrays_by_broadcasting():
    wait = mg1_queue_wait([0.25, 0.5], 1.0, [[0.0], [1.0]])
    assert_allclose(wait, [[1 / 6, 0.5], [1 / 3, 1.0]], rtol=1e-15)
    assert_array_equal(mg1_response_time([0.25, 0.5], 1.0, [[0.0], [1.0]]), wait + 1)
    assert mg1_wait_tail_approximation(0.5, 1, [0, 1], [[0], [1], [2]]).shape == (3, 2)
    assert mg1_wait_percentile_approximation([0.1, 0.5], 1, 1, 99).shape == (2,)
    assert kingman_wait_bound([0.1, 0.5], 1, [[1], [2]], 1).shape == (2, 2)


# --- one more request ------------------------------------------------------------------------


def test_externality_by_hand():
    # rho 0.5, W_q 1.25 s: 10 s more delay the others by 0.25 / 0.5 x (12.5 + 50) s in all.
    assert mg1_externality(0.25, 2.0, 0.5, 10.0) == 31.25
    assert mg1_externality(0.25, 2.0, 0.5, 0.0) == 0.0
    assert type(mg1_externality(0.25, 2, 0.5, 10)) is float
    assert mg1_externality(0.25, 2, 0.5, [1, 2, 3]).shape == (3,)


@given(means, loads, st.floats(0.1, 20), st.floats(0.01, 50))
def test_externality_is_the_slope_of_all_waiting(mean, rho, cv, times):
    # A small stream of requests of length x at rate e adds to the waiting per second of all
    # others, lambda W_q, its own share being apart: the slope at e = 0, by central difference.
    rate, x = rho / mean, times * mean
    second = mean**2 * (1 + cv**2)

    def waiting(e):
        new = rate + e
        average = (rate * mean + e * x) / new
        spread = math.sqrt((rate * second + e * x**2) / new - average**2) / average
        return rate * mg1_queue_wait(new, average, spread)

    e = 1e-4 * (1 - rho) / x * min(1, rho)
    slope = (waiting(e) - waiting(-e)) / (2 * e)
    # Relative error of the difference: (e x / (1 - rho))^2 = 1e-8, and rounding over e.
    assert mg1_externality(rate, mean, cv, x) == pytest.approx(slope, rel=1e-5)


# --- the tail --------------------------------------------------------------------------------


@given(means, loads, st.floats(0, 30), st.floats(1, 99.9))
def test_the_approximation_is_exact_for_exponential_service(mean, rho, services, q):
    rate, t = rho / mean, services * mean
    exact = mm1_wait_tail(rate, 1 / mean, t)
    assert mg1_wait_tail_approximation(rate, mean, 1.0, t) == pytest.approx(exact, rel=1e-10)
    # Near the q at which the percentile leaves 0 both logarithms cancel: hence `abs`.
    assert mg1_wait_percentile_approximation(rate, mean, 1.0, q) == pytest.approx(
        mm1_wait_percentile(rate, 1 / mean, q), rel=1e-9, abs=1e-9 * mean
    )


@given(means, loads, cvs, st.floats(1, 99.9))
def test_the_approximation_keeps_the_mean_and_the_share_that_waits(mean, rho, cv, q):
    rate = rho / mean
    wait = mg1_queue_wait(rate, mean, cv)
    assert mg1_wait_tail_approximation(rate, mean, cv, 0) == pytest.approx(rho, rel=1e-12)
    nodes, weights = np.polynomial.laguerre.laggauss(5)
    tail = mg1_wait_tail_approximation(rate, mean, cv, nodes * wait / rho)
    assert wait / rho * np.sum(weights * np.exp(nodes) * tail) == pytest.approx(wait, rel=1e-9)
    t = mg1_wait_percentile_approximation(rate, mean, cv, q)
    if t > 0:
        p = (100 - q) / 100
        assert mg1_wait_tail_approximation(rate, mean, cv, t) == pytest.approx(p, rel=1e-9)
    else:
        assert rho <= (100 - q) / 100 * (1 + 1e-12)


def test_no_wait_while_q_percent_find_the_server_idle():
    wait = mg1_wait_percentile_approximation([0.001, 0.0099, 0.0101], 1.0, 2.0, 99)
    assert_array_equal(wait[:2], [0, 0])
    assert wait[2] > 0


@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_bounds_hold_for_constant_service(rho):
    service = 2.0
    t = np.linspace(0, 24, 97)
    exact = np.array([crommelin(rho / service, service, x) for x in t])
    widths = []
    for step in (0.1, 0.05):
        low, high = mg1_wait_tail_bounds(rho / service, [service], t, step)
        # The alternating sum loses up to seven digits.
        assert np.all(low <= exact + 1e-9)
        assert np.all(exact <= high + 1e-9)
        widths.append(np.max(high - low))
    assert widths[1] < 0.6 * widths[0] < 0.06
    # The exponential with the same mean is outside: it is an approximation.
    apart = mg1_wait_tail_approximation(rho / service, service, 0.0, t)
    low, high = mg1_wait_tail_bounds(rho / service, [service], t, 0.05)
    assert np.any((apart < low) | (apart > high))


def test_bounds_on_the_tail_bound_the_mean():
    # The area under the tail is the mean wait, which Pollaczek-Khinchine knows exactly.
    sample = np.array([0.2, 0.5, 0.5, 1.0, 3.0, 9.0])
    rate, step = 0.6 / sample.mean(), 0.05
    t = step * np.arange(6000)
    low, high = mg1_wait_tail_bounds(rate, sample, t, step)
    wait = mg1_queue_wait(rate, sample.mean(), sample.std() / sample.mean())
    assert low[-1] < high[-1] < 1e-12
    assert step * np.sum(low) < wait < step * np.sum(high)
    assert step * np.sum(high - low) < 0.06 * wait
    # They only fall, and start at the share that waits.
    assert np.all(np.diff(low) <= 1e-15)
    assert np.all(np.diff(high) <= 1e-15)
    assert low[0] < high[0] == pytest.approx(0.6, rel=1e-12)


def test_bounds_hold_for_a_sample_of_exponentials():
    # Quantiles of the exponential in place of a draw: the tail must be close to that of M/M/1.
    sample = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)
    t = np.array([0.0, 1.0, 5.0, 20.0])
    # 20,000 steps of the recursion.
    low, high = mg1_wait_tail_bounds(0.7, sample, t, 0.001)
    assert_allclose((low + high) / 2, mm1_wait_tail(0.7, 1, t), rtol=0.01, atol=0)
    assert np.all(high - low < 0.001)


def test_bounds_of_one_time_are_floats():
    low, high = mg1_wait_tail_bounds(0.5, [1.0], 1.0, 0.1)
    assert type(low) is type(high) is float
    assert 0 < low < high < 0.5
    low, high = mg1_wait_tail_bounds(0.5, [1.0], [[1.0], [2.0]], 0.1)
    assert low.shape == high.shape == (2, 1)


@given(
    st.lists(st.floats(0.05, 20), min_size=1, max_size=8),
    st.floats(0.05, 0.95),
    st.floats(0.05, 1.0),
)
def test_bounds_never_cross(sample, rho, step):
    t = np.linspace(0, 30, 20)
    low, high = mg1_wait_tail_bounds(rho / np.mean(sample), sample, t, step)
    assert np.all(low >= 0)
    assert np.all(low <= high + 1e-13)
    assert np.all(high <= rho * (1 + 1e-15))


# --- Kingman's bound -------------------------------------------------------------------------


def wait_of_dm1(rho):
    """D/M/1 with mu = 1: sigma = e^{-(1 - sigma) / rho}, W_q = sigma / (1 - sigma)."""
    sigma = 0.5
    for _ in range(100_000):
        sigma = math.exp(-(1 - sigma) / rho)
    return sigma / (1 - sigma)


def test_kingman_by_hand():
    # lambda 0.5, gaps of 2 s with CV_a 3: 36 s^2; services of 1 s with CV 1.5: 2.25 s^2.
    assert kingman_wait_bound(0.5, 1.0, 3.0, 1.5) == 0.5 * 38.25 / (2 * 0.5)
    assert kingman_wait_bound(0.5, 1.0, 0.0, 0.0) == 0.0


@given(means, loads, cvs)
def test_kingman_holds_for_mg1(mean, rho, cv):
    exact = mg1_queue_wait(rho / mean, mean, cv)
    bound = kingman_wait_bound(rho / mean, mean, 1.0, cv)
    assert exact < bound
    # What it adds does not depend on the service's spread: (1 + rho) / (2 lambda).
    assert bound - exact == pytest.approx((1 + rho) * mean / (2 * rho), rel=1e-6)


def test_kingman_is_tight_in_heavy_traffic_only():
    over = [
        kingman_wait_bound(rho, 1.0, 0.0, 1.0) / wait_of_dm1(rho) for rho in (0.3, 0.5, 0.9, 0.99)
    ]
    assert all(ratio > 1 for ratio in over)
    assert over == sorted(over, reverse=True)
    assert over[0] > 4
    assert over[-1] < 1.03


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("function", CALLS)
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_unstable_queues_are_refused(function, rate):
    rule = r"arrival_rate must be below 1 / mean service time \(rho >= 1 is unstable\): got "
    with pytest.raises(ValueError, match=rule + f"{rate:g}"):
        function(**{**CALLS[function], "arrival_rate": rate})
    with pytest.raises(ValueError, match=rule + "0.5 at index 1"):
        function(**{**CALLS[function], "mean_service_time": [1.0, 2.0 * rate]})


@pytest.mark.parametrize("bad", [0, -1, NAN, INF, -INF, 1e300, 10**400, [0.5, NAN]])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_values_refused(function, good, name, bad):
    if bad == 0 and name in ZERO_ALLOWED:
        function(**{**good, name: bad})
        return
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize("bad", [None, "8", True, 8j, np.ma.array([1.0, 2.0])])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_kinds_refused(function, good, name, bad):
    with pytest.raises(TypeError, match=f"^{name} must be "):
        function(**{**good, name: bad})


@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_lengths_must_match(function, good, name):
    others = {key: [value] * 2 for key, value in good.items()}
    with pytest.raises(ValueError, match=r"lengths must match: got .*\(3,\)"):
        function(**{**others, name: [good[name]] * 3})


@pytest.mark.parametrize("q", [0.99, 100, 0, -5])
def test_q_is_a_percentage(q):
    with pytest.raises(ValueError, match=rf"q must be a percentage in \[1, 100\).*: got {q}"):
        mg1_wait_percentile_approximation(0.5, 1.0, 1.0, q)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arrival_rate": 0}, ValueError, r"arrival_rate must be > 0: got 0"),
        ({"arrival_rate": 1.0}, ValueError, r"arrival_rate must be below .* unstable\): got 1"),
        ({"arrival_rate": [0.1, 0.2]}, TypeError, r"arrival_rate must be one number"),
        ({"service_times": []}, ValueError, r"service_times must be a non-empty list"),
        ({"service_times": 1.0}, ValueError, r"service_times must be a non-empty list"),
        ({"service_times": [[1.0]]}, ValueError, r"service_times must be a non-empty list"),
        ({"service_times": [1.0, 0.0]}, ValueError, r"service_times must be > 0: got 0 at index 1"),
        ({"service_times": [1.0, NAN]}, ValueError, r"service_times must be finite .*: got nan"),
        ({"service_times": ["1"]}, TypeError, r"service_times must be a real number"),
        ({"time": -1.0}, ValueError, r"time must be >= 0: got -1"),
        ({"time": [1.0, INF]}, ValueError, r"time must be finite .*: got inf at index 1"),
        ({"time": 1e5}, ValueError, r"time must be at most 100,000 steps of 0\.1 s: got 100000"),
        ({"step": 0.0}, ValueError, r"step must be > 0: got 0"),
        ({"step": [0.1, 0.2]}, TypeError, r"step must be one number"),
        ({"step": NAN}, ValueError, r"step must be finite"),
    ],
)
def test_refusals_of_the_bounds(changes, error, message):
    good = {"arrival_rate": 0.5, "service_times": [1.0], "time": 1.0, "step": 0.1}
    mg1_wait_tail_bounds(**good)
    with pytest.raises(error, match=message):
        mg1_wait_tail_bounds(**{**good, **changes})


@pytest.mark.parametrize(("rate", "mean"), [(0.5e75, 1e-75), (1e-75, 0.5e75), (1e-75, 1e-75)])
def test_no_size_overflows(rate, mean):
    assert 0 < mg1_queue_wait(rate, mean, 1e75) < INF
    assert 0 < kingman_wait_bound(rate, mean, 1e75, 1e75) < INF
    assert 0 < mg1_externality(rate, mean, 1e75, 1e75) < INF
    assert 0 <= mg1_wait_tail_approximation(rate, mean, 1e75, 1e75) < 1
    assert 0 <= mg1_wait_percentile_approximation(rate, mean, 1e75, 99) < INF
