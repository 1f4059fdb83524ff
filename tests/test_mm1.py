"""M/M/1: by hand, against its chain solved as linear equations, and its inverses."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib.mm1 import (
    MM1Stats,
    admissible_mm1_arrival_rate,
    mm1_response_percentile,
    mm1_response_tail,
    mm1_state_probability,
    mm1_stats,
    mm1_wait_percentile,
    mm1_wait_tail,
    required_mm1_service_rate,
    utilization,
)

NAN, INF = float("nan"), float("inf")
QUEUE = {"arrival_rate": 0.8, "service_rate": 1.0}
CALLS = {
    utilization: {**QUEUE, "servers": 1},
    mm1_stats: QUEUE,
    mm1_state_probability: {**QUEUE, "in_system": 2},
    mm1_wait_tail: {**QUEUE, "time": 3.0},
    mm1_response_tail: {**QUEUE, "time": 3.0},
    mm1_wait_percentile: {**QUEUE, "q": 99.0},
    mm1_response_percentile: {**QUEUE, "q": 99.0},
    required_mm1_service_rate: {"arrival_rate": 0.8, "target_response_time": 5.0, "q": 99.0},
    admissible_mm1_arrival_rate: {"service_rate": 1.0, "target": 9.0, "of": "wait", "q": 99.0},
}
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.items() for name in kw if name != "of"]
ZERO_ALLOWED = {"in_system", "time", "target"}

rates = st.floats(1e-3, 1e3)
loads = st.floats(0.001, 0.999)
percents = st.floats(1, 99.99)


def chain(arrival_rate, service_rate, states=600):
    """pi of the birth and death chain, cut off at `states`, from its balance equations."""
    n = np.arange(states)
    flow = np.zeros((states, states))
    flow[n[:-1], n[1:]] = arrival_rate
    flow[n[1:], n[:-1]] = service_rate
    flow -= np.diag(flow.sum(axis=1))
    equations = np.vstack([flow.T[:-1], np.ones(states)])
    return np.linalg.solve(equations, np.append(np.zeros(states - 1), 1.0))


def stages_left(rate, time, stages):
    """P(fewer than n of a Poisson stream's events by `time`), n = 0 .. stages - 1."""
    terms = [math.exp(-rate * time)]
    for k in range(1, stages):
        terms.append(terms[-1] * rate * time / k)
    return np.concatenate([[0.0], np.cumsum(terms)])[:stages]


# --- values ----------------------------------------------------------------------------------


def test_by_hand():
    assert utilization(3.0, 2.0, 4) == 0.375
    assert utilization(1, 2) == 0.5
    stats = mm1_stats(0.75, 1.0)
    assert stats == MM1Stats(
        arrival_rate=0.75,
        service_rate=1.0,
        utilization=0.75,
        avg_response_time=4.0,
        avg_queue_wait=3.0,
        avg_in_system=3.0,
        avg_queue_length=2.25,
    )
    assert all(type(value) is float for value in vars(stats).values())
    assert mm1_state_probability(0.75, 1.0, 2) == 0.25 * 0.75**2
    assert mm1_wait_tail(0.75, 1.0, 0) == 0.75
    assert mm1_response_tail(0.75, 1.0, 0) == 1.0
    assert mm1_wait_tail(2, 4, 1.5) == pytest.approx(0.5 * math.exp(-3), rel=1e-14)
    assert mm1_response_tail(2, 4, 1.5) == pytest.approx(math.exp(-3), rel=1e-14)
    assert required_mm1_service_rate(3.0, 0.5) == 5.0
    assert required_mm1_service_rate(3.0, 0.5, 75) == pytest.approx(3 + 2 * math.log(4), rel=1e-14)


def test_arrays_by_broadcasting():
    assert_array_equal(utilization([1, 2], 4.0, [[1], [2]]), [[0.25, 0.5], [0.125, 0.25]])
    stats = mm1_stats([1.0, 2.0], [[4.0], [5.0]])
    assert_array_equal(stats.avg_response_time, [[1 / 3, 1 / 2], [1 / 4, 1 / 3]])
    assert stats.arrival_rate.shape == stats.service_rate.shape == (2, 2)
    assert mm1_wait_tail(1, 2, [[0, 1, 2]]).shape == (1, 3)
    assert mm1_wait_percentile([1, 2, 3], 4, [[50], [99]]).shape == (2, 3)
    assert admissible_mm1_arrival_rate([1.0, 2.0], [[3.0]], of="wait", q=99).shape == (1, 2)
    assert mm1_stats(np.array([], float), 1.0).avg_queue_wait.shape == (0,)
    assert type(admissible_mm1_arrival_rate(1, 3, of="wait", q=99)) is float


@pytest.mark.parametrize(("rho", "wait"), [(0.5, 7.82), (0.7, 14.16), (0.9, 45.00)])
def test_p99_of_the_wait(rho, wait):
    # In units of the mean service time. In print: 13.4 at 0.7, and 46.1 at 0.9.
    assert mm1_wait_percentile(rho, 1.0, 99) == pytest.approx(wait, abs=0.005)


def test_no_wait_while_q_percent_find_the_server_idle():
    waits = mm1_wait_percentile([0.001, 0.0099, 0.0101], 1.0, 99)
    assert_array_equal(waits[:2], 0)
    assert waits[2] > 0


def test_p99_of_the_response_is_another_number():
    assert mm1_response_percentile(0.9, 1.0, 99) == pytest.approx(46.05, abs=0.005)
    assert mm1_response_percentile(0.5, 2.0, 99) == pytest.approx(math.log(100) / 1.5, rel=1e-12)


@pytest.mark.parametrize(("rho", "low"), [(0.1, 0.30), (0.5, 0.04), (0.9, 0.001)])
def test_mean_service_plus_p99_wait_is_too_low(rho, low):
    response = mm1_response_percentile(rho, 1.0, 99)
    error = 1 - (1.0 + mm1_wait_percentile(rho, 1.0, 99)) / response
    assert error == pytest.approx(low, abs=0.005 if rho < 0.9 else 0.0005)


def test_the_tail_of_the_wait_is_not_that_of_the_response():
    t = np.array([0.0, 1.0, 20.0])
    assert_allclose(mm1_wait_tail(0.3, 1, t) / mm1_response_tail(0.3, 1, t), 0.3, rtol=1e-14)


@pytest.mark.parametrize(("arrivals", "service"), [(0.3, 1.0), (7.0, 10.0), (0.0045, 0.005)])
def test_the_chain_solved_as_linear_equations(arrivals, service):
    # At rho 0.9, 600 states leave out less than 1e-27; what is left is the solver's rounding.
    pi = chain(arrivals, service)
    n = np.arange(pi.size)
    stats = mm1_stats(arrivals, service)
    assert_allclose(mm1_state_probability(arrivals, service, n), pi, atol=1e-12)
    assert stats.utilization == pytest.approx(1 - pi[0], rel=1e-10)
    assert stats.avg_in_system == pytest.approx(n @ pi, rel=1e-10)
    assert stats.avg_queue_length == pytest.approx(np.maximum(n - 1, 0) @ pi, rel=1e-10)
    # An arrival that finds n waits for n services, each exponential (PASTA).
    assert stats.avg_queue_wait == pytest.approx(n @ pi / service, rel=1e-10)
    assert stats.avg_response_time == pytest.approx((n + 1) @ pi / service, rel=1e-10)
    for t in (0.0, 0.4 / service, 3 / service, 20 / service):
        left = stages_left(service, t, pi.size + 1)
        assert mm1_wait_tail(arrivals, service, t) == pytest.approx(left[:-1] @ pi, rel=1e-9)
        assert mm1_response_tail(arrivals, service, t) == pytest.approx(left[1:] @ pi, rel=1e-9)


def test_near_saturation_nothing_cancels():
    # 1 - 2**-30 is a float, and so is every right value here.
    rho, gap = 1 - 2.0**-30, 2.0**30
    stats = mm1_stats(rho, 1.0)
    assert stats.avg_response_time == gap
    assert stats.avg_queue_wait == gap - 1
    assert stats.avg_queue_length == pytest.approx(gap - 2, rel=1e-15)
    assert mm1_state_probability(rho, 1.0, 0) == 2.0**-30


# --- inverses --------------------------------------------------------------------------------


def test_admissible_rate_by_hand():
    assert admissible_mm1_arrival_rate(2.0, 1.5, of="wait") == pytest.approx(1.5, rel=1e-15)
    assert admissible_mm1_arrival_rate(2.0, 2.0, of="response") == 1.5
    p99 = admissible_mm1_arrival_rate(10.0, 1.0, of="response", q=99)
    assert p99 == pytest.approx(10 - math.log(100), rel=1e-14)
    x = admissible_mm1_arrival_rate(1, 10, of="wait", q=99)
    assert x * math.exp(-10 * (1 - x)) == pytest.approx(0.01, rel=1e-13)
    # Nobody of 99 % waits: rho is 1 %.
    assert admissible_mm1_arrival_rate(3.0, 0, of="wait", q=99) == pytest.approx(0.03, rel=1e-14)


MEASURES = {
    ("wait", False): lambda rate, mu, q: mm1_stats(rate, mu).avg_queue_wait,
    ("response", False): lambda rate, mu, q: mm1_stats(rate, mu).avg_response_time,
    ("wait", True): mm1_wait_percentile,
    ("response", True): mm1_response_percentile,
}


@given(st.sampled_from(sorted(MEASURES)), rates, loads, percents)
def test_admissible_rate_undoes_the_measure(kind, mu, rho, q):
    (of, tail), measure = kind, MEASURES[kind]
    rate = rho * mu
    target = measure(rate, mu, q)
    assume(target > 0)
    found = admissible_mm1_arrival_rate(mu, target, of=of, q=q if tail else None)
    # A measure near no load at all tells the rate badly: 1e-13 mu covers the rounding of both.
    assert found == pytest.approx(rate, rel=1e-11, abs=1e-12 * mu)


@given(st.sampled_from(sorted(MEASURES)), rates, st.floats(1e-3, 1e4), percents)
def test_admissible_rate_is_the_largest(kind, mu, services, q):
    (of, tail), measure = kind, MEASURES[kind]
    target = services / mu
    alone = {False: 1.0, True: -math.log(1 - q / 100)}[tail] if of == "response" else 0.0
    assume(services > 1.001 * alone)
    rate = admissible_mm1_arrival_rate(mu, target, of=of, q=q if tail else None)
    assert 0 < rate < mu
    # A little more load, and the target is missed; a little less, and it is kept.
    more, less = rate + 1e-6 * (mu - rate), rate * (1 - 1e-6)
    assert measure(less, mu, q) <= target * (1 + 1e-9)
    assert measure(more, mu, q) > target


def test_an_endless_target_still_leaves_a_stable_queue():
    for of, q in [("wait", None), ("response", None), ("wait", 99), ("response", 99)]:
        rate = admissible_mm1_arrival_rate(7.0, 1e30, of=of, q=q)
        assert rate == np.nextafter(7.0, 0)
        assert mm1_stats(rate, 7.0).utilization < 1


@given(rates, st.floats(1e-3, 1e3), percents)
def test_required_rate_keeps_its_target(arrivals, target, q):
    mean = required_mm1_service_rate(arrivals, target)
    tail = required_mm1_service_rate(arrivals, target, q)
    assume(mean - arrivals > 1e-6 * mean)
    assume(tail - arrivals > 1e-6 * tail)
    # mu - lambda keeps at least 10 of 16 digits.
    assert mm1_stats(arrivals, mean).avg_response_time == pytest.approx(target, rel=1e-9)
    assert mm1_response_percentile(arrivals, tail, q) == pytest.approx(target, rel=1e-9)


# --- invariants ------------------------------------------------------------------------------


@given(rates, loads, percents, st.floats(0.1, 10))
def test_identities(mu, rho, q, unit):
    rate = rho * mu
    stats = mm1_stats(rate, mu)
    # Little's law for the system, the queue and the server; W is the wait plus a service.
    assert stats.avg_in_system == pytest.approx(rate * stats.avg_response_time, rel=1e-12)
    assert stats.avg_queue_length == pytest.approx(rate * stats.avg_queue_wait, rel=1e-12)
    assert stats.avg_in_system - stats.avg_queue_length == pytest.approx(
        stats.utilization, rel=1e-9
    )
    assert stats.avg_response_time == pytest.approx(stats.avg_queue_wait + 1 / mu, rel=1e-12)
    # Twice as fast a clock halves every time.
    faster = mm1_stats(rate * unit, mu * unit)
    assert faster.avg_queue_wait * unit == pytest.approx(stats.avg_queue_wait, rel=1e-9)
    # A percentile is where the tail is p, and the wait's is 0 while p or less wait.
    p = (100 - q) / 100
    response = mm1_response_percentile(rate, mu, q)
    assert mm1_response_tail(rate, mu, response) == pytest.approx(p, rel=1e-9)
    wait = mm1_wait_percentile(rate, mu, q)
    assert 0 <= wait <= response
    if wait > 0:
        assert mm1_wait_tail(rate, mu, wait) == pytest.approx(p, rel=1e-9)
    else:
        assert rho <= p * (1 + 1e-12)


@given(rates, loads, loads, percents)
def test_more_load_is_never_better(mu, one, other, q):
    low, high = sorted((one, other))
    assume(high > low * (1 + 1e-9))
    light, heavy = mm1_stats(low * mu, mu), mm1_stats(high * mu, mu)
    for name in vars(light).keys() - {"service_rate"}:
        assert getattr(heavy, name) > getattr(light, name)
    assert mm1_wait_percentile(high * mu, mu, q) >= mm1_wait_percentile(low * mu, mu, q)
    assert mm1_response_percentile(high * mu, mu, q) > mm1_response_percentile(low * mu, mu, q)
    assert mm1_wait_tail(high * mu, mu, 1 / mu) > mm1_wait_tail(low * mu, mu, 1 / mu)


@given(rates, loads)
def test_the_tails_integrate_to_the_means(mu, rho):
    rate = rho * mu
    stats = mm1_stats(rate, mu)
    # Gauss-Laguerre is exact for an exponential times a polynomial: here of degree 0.
    nodes, weights = np.polynomial.laguerre.laggauss(5)
    scale = stats.avg_response_time
    for tail, mean in [
        (mm1_wait_tail, stats.avg_queue_wait),
        (mm1_response_tail, stats.avg_response_time),
    ]:
        area = scale * np.sum(weights * np.exp(nodes) * tail(rate, mu, nodes * scale))
        assert area == pytest.approx(mean, rel=1e-9)


@given(st.lists(st.tuples(rates, loads, percents), min_size=1, max_size=5))
def test_arrays_equal_scalars(rows):
    mu, rho, q = np.array(rows).T
    rate = rho * mu
    each = list(zip(rate, mu, q, strict=True))
    assert_allclose(mm1_wait_percentile(rate, mu, q), [mm1_wait_percentile(*r) for r in each])
    assert_allclose(
        admissible_mm1_arrival_rate(mu, q, of="wait", q=q),
        [admissible_mm1_arrival_rate(m, t, of="wait", q=t) for _, m, t in each],
        rtol=1e-13,
    )


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [f for f in CALLS if "service_rate" in CALLS[f]][:-1])
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_unstable_queues_are_refused(function, rate):
    rule = rf"arrival_rate must be below the service capacity \(rho >= 1.*\): got {rate:g}"
    with pytest.raises(ValueError, match=rule):
        function(**{**CALLS[function], "arrival_rate": rate})
    with pytest.raises(ValueError, match=rule + " at index 1"):
        function(**{**CALLS[function], "arrival_rate": [0.5, rate]})


def test_servers_count_in_the_capacity():
    assert utilization(3.9, 1.0, 4) == pytest.approx(0.975)
    with pytest.raises(ValueError, match="rho >= 1 is unstable"):
        utilization(4.0, 1.0, 4)
    with pytest.raises(ValueError, match=r"servers must be a whole number: got 1\.5"):
        utilization(1.0, 2.0, 1.5)


@pytest.mark.parametrize("bad", [0, -1, NAN, INF, -INF, 1e300, 10**400, [0.5, NAN]])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_values_refused(function, good, name, bad):
    if bad == 0 and name in ZERO_ALLOWED:
        function(**{**good, name: bad})
        return
    with pytest.raises(ValueError, match=f"^{name} must be .*: got "):
        function(**{**good, name: bad})


@pytest.mark.parametrize("bad", ["8", True, 8j, [None], np.ma.array([1.0, 2.0])])
@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_kinds_refused(function, good, name, bad):
    with pytest.raises(TypeError, match=f"^{name} must be "):
        function(**{**good, name: bad})


@pytest.mark.parametrize(("function", "good", "name"), ARGUMENTS)
def test_lengths_must_match(function, good, name):
    others = {key: value if key == "of" else [value] * 2 for key, value in good.items()}
    with pytest.raises(ValueError, match=r"lengths must match: got .*\(3,\)"):
        function(**{**others, name: [good[name]] * 3})


@pytest.mark.parametrize("q", [0.99, 100, 0, -5])
@pytest.mark.parametrize("function", [f for f in CALLS if "q" in CALLS[f]])
def test_q_is_a_percentage(function, q):
    with pytest.raises(ValueError, match=rf"q must be a percentage in \[1, 100\).*: got {q}"):
        function(**{**CALLS[function], "q": q})


def test_targets_no_rate_keeps():
    rule = "target must be longer than the service alone takes: got"
    for target, q in [(0.5, None), (0.4, None), (2.3, 99), (0.69, 75)]:
        with pytest.raises(ValueError, match=rule):
            admissible_mm1_arrival_rate(2.0, target, of="response", q=q)
    with pytest.raises(ValueError, match=rule + " 0.1 at index 1"):
        admissible_mm1_arrival_rate(2.0, [1.0, 0.1], of="response")
    with pytest.raises(ValueError, match="target must be > 0: got 0"):
        admissible_mm1_arrival_rate(2.0, 0, of="wait")
    with pytest.raises(ValueError, match="of must be one of 'wait', 'response': got 'e2e'"):
        admissible_mm1_arrival_rate(2.0, 1.0, of="e2e")


@pytest.mark.parametrize("size", [1e-75, 1e75])
def test_no_size_overflows(size):
    # The longest and the shortest that the arguments allow; the record checks itself.
    stats = mm1_stats(1e-75, 1.5e-75 if size < 1 else size)
    assert 0 < stats.avg_queue_wait < INF
    assert 0 <= mm1_wait_tail(0.5 * 1e75, 1e75, size) <= 0.5
    assert 0 < admissible_mm1_arrival_rate(size, 1e75, of="wait", q=99) < size
    assert 0 < admissible_mm1_arrival_rate(size, 1e-75, of="wait") < size


@pytest.mark.parametrize(("rate", "target", "q"), [(1e17, 1.0, None), (977.1, 2.9e14, 1)])
def test_a_required_rate_is_stable_where_the_sum_rounds(rate, target, q) -> None:
    assert required_mm1_service_rate(rate, target, q) > rate
