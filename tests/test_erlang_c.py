"""M/M/c: Erlang's formulas in whole numbers, the chain by hand, and inverses by brute force."""

import math
from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib.erlang_c import (
    admissible_mmc_arrival_rate,
    allen_cunneen_queue_wait,
    erlang_b_blocking_probability,
    erlang_c_wait_probability,
    mmc_avg_queue_wait,
    mmc_avg_response_time,
    mmc_response_percentile,
    mmc_response_tail,
    mmc_wait_percentile,
    mmc_wait_tail,
    required_mmc_servers,
    square_root_servers,
)
from lib.mg1 import mg1_queue_wait
from lib.mm1 import (
    admissible_mm1_arrival_rate,
    mm1_response_percentile,
    mm1_response_tail,
    mm1_stats,
    mm1_wait_percentile,
    mm1_wait_tail,
)

NAN, INF = float("nan"), float("inf")
QUEUE = {"arrival_rate": 1.5, "service_rate": 1.0, "servers": 2}
SLO = {"target": 9.0, "of": "wait", "q": 99.0}
CALLS = {
    erlang_b_blocking_probability: QUEUE,
    erlang_c_wait_probability: QUEUE,
    mmc_avg_queue_wait: QUEUE,
    mmc_avg_response_time: QUEUE,
    mmc_wait_tail: {**QUEUE, "time": 1.0},
    mmc_response_tail: {**QUEUE, "time": 1.0},
    mmc_wait_percentile: {**QUEUE, "q": 99.0},
    mmc_response_percentile: {**QUEUE, "q": 99.0},
    required_mmc_servers: {"arrival_rate": 1.5, "service_rate": 1.0, **SLO},
    square_root_servers: {"arrival_rate": 1.5, "service_rate": 1.0, "wait_probability": 0.1},
    admissible_mmc_arrival_rate: {"service_rate": 1.0, "servers": 2, **SLO},
    allen_cunneen_queue_wait: {**QUEUE, "interarrival_cv": 1.5, "service_time_cv": 0.5},
}
STABLE = [f for f in CALLS if "servers" in CALLS[f] and "arrival_rate" in CALLS[f]][1:]
ARGUMENTS = [(f, kw, name) for f, kw in CALLS.items() for name in kw if name != "of"]
ZERO_ALLOWED = {"time", "target", "interarrival_cv", "service_time_cv"}

rates = st.floats(1e-3, 1e3)
loads = st.floats(0.01, 0.99)
counts = st.integers(1, 40)
percents = st.floats(1, 99.9)
# For slow tests that catch the same broken formulas with half the examples.
half = settings(max_examples=50)


@cache
def states(load, servers):
    """pi_0 .. pi_{c-1} and P(n >= c) of M/M/c from its balance equations, in exact fractions.

    Across each cut the flows are equal: lambda pi_n = min(n + 1, c) mu pi_{n+1}.
    """
    weight = [Fraction(1)]
    for n in range(servers):
        weight.append(weight[n] * load / (n + 1))
    ratio = load / servers
    beyond = weight[servers] / (1 - ratio)
    whole = sum(weight[:servers]) + beyond
    return [w / whole for w in weight[:servers]], beyond / whole


def blocked_exactly(load, servers):
    """(a^c / c!) / sum a^k / k! in whole numbers: a = p/q, every term times q^c c!."""
    p, q = load.numerator, load.denominator
    term = last = p**servers
    total = term
    for k in range(servers, 0, -1):
        term = term * k * q // p  # from a^k / k! to the one before it, without remainder
        total += term
    return Fraction(last, total)


def wait_tail_by_states(load, servers, t):
    """P(W_q > t), mu = 1: a request that finds n >= c waits for n - c + 1 departures at rate c."""
    _, waits = states(load, servers)
    ratio, waits = float(load / servers), float(waits)
    total, term, fewer, j = 0.0, math.exp(-servers * t), 0.0, 0
    while ratio**j > 1e-18:
        fewer += term  # P(at most j departures by t)
        total += waits * (1 - ratio) * ratio**j * fewer
        j += 1
        term *= servers * t / j
    return total


def response_tail_by_states(load, servers, t):
    """P(R > t), mu = 1: the service alone passes t, or it lasts s and the wait passes t - s."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    lasted = t * (nodes + 1) / 2
    passed = [wait_tail_by_states(load, servers, t - s) for s in lasted]
    return math.exp(-t) + t / 2 * np.sum(weights * np.exp(-lasted) * passed)


# --- Erlang B and C --------------------------------------------------------------------------


def test_by_hand():
    # Two servers, a = 1: weights 1, 1, 1/2, so B = 1/5; C = 2 rho^2 / (1 + rho) = 1/3.
    assert erlang_b_blocking_probability(1, 1, 2) == pytest.approx(1 / 5, rel=1e-15)
    assert erlang_c_wait_probability(1, 1, 2) == pytest.approx(1 / 3, rel=1e-15)
    assert mmc_avg_queue_wait(1, 1, 2) == pytest.approx(1 / 3, rel=1e-15)
    assert mmc_avg_response_time(1, 1, 2) == pytest.approx(4 / 3, rel=1e-15)
    assert mmc_wait_tail(1, 1, 2, 2) == pytest.approx(math.exp(-2) / 3, rel=1e-15)
    # theta = mu here: e^-t (1 + C t).
    assert mmc_response_tail(1, 1, 2, 2) == pytest.approx(math.exp(-2) * 5 / 3, rel=1e-15)
    assert mmc_wait_percentile(1, 1, 2, 90) == pytest.approx(math.log(10 / 3), rel=1e-14)
    assert type(mmc_response_percentile(1, 1, 2, 90)) is float


def test_factorials_above_170():
    """Case Q01; a**c / factorial(c) overflows at each, and at (90, 171)."""
    servers, load = [200, 500, 171], [180.0, 480.0, 160.0]
    expected = [0.0944712182, 0.26651252, 0.2910026401]
    assert_allclose(erlang_c_wait_probability(load, 1.0, servers), expected, rtol=0, atol=1e-9)
    assert 0 < erlang_c_wait_probability(90.0, 1.0, 171) < 1e-12


def test_busy_slots_are_not_the_number_in_the_system():
    # Eight slots at rho 0.9: lambda x E2E is 13.5 with 7.2 busy, which no batch of 8 can hold.
    in_system = 7.2 * mmc_avg_response_time(7.2, 1.0, 8)
    busy, waits = states(Fraction(36, 5), 8)
    assert in_system == pytest.approx(7.2 + 9 * float(waits), rel=1e-12)
    assert in_system == pytest.approx(13.5, abs=0.05)
    assert sum(n * p for n, p in enumerate(busy)) + 8 * waits == Fraction(36, 5)


@pytest.mark.parametrize("servers", [1, 2, 3, 8, 30])
@pytest.mark.parametrize("rho", [Fraction(1, 100), Fraction(1, 2), Fraction(19, 20)])
def test_balance_equations_in_fractions(servers, rho):
    load = rho * servers
    _, waits = states(load, servers)
    args = float(load), 1.0, servers
    assert erlang_c_wait_probability(*args) == pytest.approx(float(waits), rel=1e-12)
    assert erlang_b_blocking_probability(*args) == pytest.approx(
        float(blocked_exactly(load, servers)), rel=1e-13
    )
    queue = waits * rho / (1 - rho)  # sum of (n - c) pi_n over n >= c, a geometric sum
    assert mmc_avg_queue_wait(*args) == pytest.approx(float(queue / load), rel=1e-12)


@pytest.mark.parametrize("rho", [Fraction(1, 2), Fraction(99, 100), Fraction(999_999, 1_000_000)])
def test_ten_thousand_servers(rho):
    servers = 10_000
    load = rho * servers
    blocked = blocked_exactly(load, servers)
    waits = blocked / (1 - rho * (1 - blocked))
    found = erlang_b_blocking_probability(float(load), 1.0, servers)
    if blocked < Fraction(1, 10**320):
        assert found == 0.0  # the nearest float
    else:
        assert found == pytest.approx(float(blocked), rel=1e-12)
        # The gap c mu - lambda carries the rounding of lambda: 1e-16 / (1 - rho).
        assert erlang_c_wait_probability(float(load), 1.0, servers) == pytest.approx(
            float(waits), rel=1e-9
        )
    assert mmc_wait_percentile(float(load), 1.0, servers, 99) >= 0


def test_blocking_needs_no_stable_queue():
    assert erlang_b_blocking_probability(3.0, 1.0, 1) == 0.75
    for load, servers in [(Fraction(50), 20), (Fraction(10**6), 3), (Fraction(1, 10**6), 3)]:
        assert erlang_b_blocking_probability(float(load), 1.0, servers) == pytest.approx(
            float(blocked_exactly(load, servers)), rel=1e-14
        )


@half
@given(rates, loads, counts)
def test_b_and_c(mu, rho, c):
    rate = rho * c * mu
    blocked = erlang_b_blocking_probability(rate, mu, c)
    waits = erlang_c_wait_probability(rate, mu, c)
    true_rho = rate / (c * mu)
    assert waits == pytest.approx(blocked / (1 - true_rho * (1 - blocked)), rel=1e-12)
    assert 0 < blocked < waits < 1
    # 1/C = rho + (1 - rho) / B, the mean of 1 and 1/B.
    assert 1 / waits == pytest.approx(true_rho + (1 - true_rho) / blocked, rel=1e-12)
    # At the same load per server, more servers wait less; at the same load, all the more so.
    assert erlang_c_wait_probability(rho * (c + 1) * mu, mu, c + 1) < waits
    assert erlang_c_wait_probability(rate, mu, c + 1) < waits
    assert erlang_c_wait_probability(rate * 1.001, mu, c) > waits
    # Pooled, c queues of rate lambda / c wait less than apart.
    if c > 1:
        assert mmc_avg_queue_wait(rate, mu, c) < mm1_stats(rate / c, mu).avg_queue_wait


# --- distributions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "load"),
    [(1, "0.7"), (2, "1"), (2, "1.9"), (3, "2"), (8, "7.2"), (20, "12")],
)
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.0])
def test_tails_by_summing_over_states(servers, load, t):
    # (2, 1) and (3, 2) are the case theta = mu.
    load = Fraction(load)
    args = float(load), 1.0, servers
    expected = wait_tail_by_states(load, servers, t)
    assert mmc_wait_tail(*args, t) == pytest.approx(expected, rel=1e-10)
    expected = response_tail_by_states(load, servers, t)
    assert mmc_response_tail(*args, t) == pytest.approx(expected, rel=1e-9)


@half
@given(rates, loads, st.floats(0, 20), percents)
def test_one_server_is_mm1(mu, rho, services, q):
    rate, t = rho * mu, services / mu
    assert erlang_c_wait_probability(rate, mu, 1) == pytest.approx(rate / mu, rel=1e-13)
    stats = mm1_stats(rate, mu)
    assert mmc_avg_queue_wait(rate, mu, 1) == pytest.approx(stats.avg_queue_wait, rel=1e-12)
    assert mmc_avg_response_time(rate, mu, 1) == pytest.approx(stats.avg_response_time, rel=1e-12)
    assert mmc_wait_tail(rate, mu, 1, t) == pytest.approx(mm1_wait_tail(rate, mu, t), rel=1e-11)
    assert mmc_response_tail(rate, mu, 1, t) == pytest.approx(
        mm1_response_tail(rate, mu, t), rel=1e-11
    )
    assert mmc_wait_percentile(rate, mu, 1, q) == pytest.approx(
        mm1_wait_percentile(rate, mu, q), rel=1e-9, abs=1e-12 / mu
    )
    assert mmc_response_percentile(rate, mu, 1, q) == pytest.approx(
        mm1_response_percentile(rate, mu, q), rel=1e-9
    )


@given(rates, loads, counts, percents)
def test_percentiles_are_where_the_tails_are_p(mu, rho, c, q):
    queue = rho * c * mu, mu, c
    p = (100 - q) / 100
    wait, response = mmc_wait_percentile(*queue, q), mmc_response_percentile(*queue, q)
    assert mmc_response_tail(*queue, response) == pytest.approx(p, rel=1e-9)
    if wait > 0:
        assert mmc_wait_tail(*queue, wait) == pytest.approx(p, rel=1e-9)
    else:
        assert erlang_c_wait_probability(*queue) <= p * (1 + 1e-12)
    assert response > wait >= 0
    assert response >= -math.log(p) / mu * (1 - 1e-12)


@half
@given(rates, loads, counts)
def test_mean_service_plus_p99_wait_is_too_low(mu, rho, c):
    queue = rho * c * mu, mu, c
    assert 1 / mu + mmc_wait_percentile(*queue, 99) < mmc_response_percentile(*queue, 99)


@half
@given(rates, loads, counts)
def test_tails_integrate_to_the_means(mu, rho, c):
    queue = rho * c * mu, mu, c
    theta = c * mu - queue[0]
    nodes, weights = np.polynomial.laguerre.laggauss(5)
    area = np.sum(weights * np.exp(nodes) * mmc_wait_tail(*queue, nodes / theta)) / theta
    assert area == pytest.approx(mmc_avg_queue_wait(*queue), rel=1e-9)
    # The response mixes two rates: a fine grid, whose ends lie 60 of the slower apart.
    slower = min(theta, mu)
    t = np.linspace(0, 60 / slower, 60_001)
    tail = mmc_response_tail(*queue, t)
    assert np.all(np.diff(tail) <= 0)
    assume(max(theta, mu) < 30 * slower)  # so that the grid resolves the faster
    area = np.sum((tail[1:] + tail[:-1]) / 2 * np.diff(t))
    assert area == pytest.approx(mmc_avg_response_time(*queue), rel=1e-3)


@given(st.integers(2, 40), st.floats(-12, -1))
def test_nothing_jumps_near_equal_rates(c, power):
    # theta = mu at lambda = (c - 1) mu; a little to either side the tail must stay close.
    t = np.array([0.1, 1.0, 5.0])
    middle = mmc_response_tail(c - 1.0, 1.0, c, t)
    for sign in (-1, 1):
        near = mmc_response_tail(c - 1.0 + sign * 10**power, 1.0, c, t)
        assert_allclose(near, middle, rtol=20 * 10**power, atol=0)


def test_arrays_by_broadcasting():
    load, servers = np.array([0.5, 5.0, 7.0]), np.array([[8], [9], [200]])
    for function in (
        erlang_b_blocking_probability,
        erlang_c_wait_probability,
        lambda *queue: mmc_response_percentile(*queue, 95),
    ):
        together = function(load, 1.0, servers)
        one = [[function(a, 1.0, c) for a in load] for c in servers.ravel()]
        assert_allclose(together, one, rtol=1e-14)
    assert mmc_wait_tail(1.0, 1.0, 2, [[0.0, 1.0]]).shape == (1, 2)
    assert mmc_wait_percentile(1.0, 1.0, [2, 3], [[50], [90], [99]]).shape == (3, 2)
    assert erlang_c_wait_probability([], 1.0, []).shape == (0,)


# --- inverses --------------------------------------------------------------------------------

slos = st.tuples(st.sampled_from(["wait", "response"]), st.none() | percents)


def measure(queue, of, q):
    """What an SLO on `of` limits: the mean, or the q-th percentile."""
    if of == "wait":
        return mmc_avg_queue_wait(*queue) if q is None else mmc_wait_percentile(*queue, q)
    return mmc_avg_response_time(*queue) if q is None else mmc_response_percentile(*queue, q)


def service_alone(of, q):
    """The same without any wait, mu = 1: no number of servers gets below it."""
    if of == "wait":
        return 0.0
    return 1.0 if q is None else -math.log(1 - q / 100)


@given(st.integers(1, 60), st.integers(1, 200), st.sampled_from([None, 50, 90, 99]))
def test_smallest_number_of_servers_in_fractions(tenths, hundredths, q):
    """Every stable c in turn, C from exact fractions; at 0.1 to 6 erlangs and 0.01 to 2 s."""
    load, target = Fraction(tenths, 10), hundredths / 100
    c = math.floor(load) + 1
    while True:
        _, waits = states(load, c)
        spare = float(c - load)
        over = (
            float(waits) / spare > target
            if q is None
            else float(waits) * math.exp(-spare * target) > (100 - q) / 100
        )
        if not over:
            break
        c += 1
    found = required_mmc_servers(float(load), 1.0, target, of="wait", q=q)
    assert type(found) is int
    assert found == c


@given(slos, rates, st.floats(0.05, 60), st.floats(0.01, 10))
def test_one_server_less_misses_the_target(slo, mu, load, services):
    of, q = slo
    assume(services > service_alone(of, q) * 1.001)
    rate, target = load * mu, services / mu
    c = required_mmc_servers(rate, mu, target, of=of, q=q)
    assert measure((rate, mu, c), of, q) <= target * (1 + 1e-9)
    if (c - 1) * mu > rate:
        assert measure((rate, mu, c - 1), of, q) > target * (1 - 1e-9)


def test_required_servers_by_hand():
    # a = 1: one server is unstable, two wait 1/3 on average and three 1/22.
    assert required_mmc_servers(1.0, 1.0, 0.34, of="wait") == 2
    assert required_mmc_servers(1.0, 1.0, 0.33, of="wait") == 3
    assert required_mmc_servers(1.0, 1.0, 1 / 22, of="wait") == 3
    assert required_mmc_servers(1.0, 1.0, 0.045, of="wait") == 4
    assert required_mmc_servers(1.0, 1.0, 1.34, of="response") == 2
    assert required_mmc_servers(1.0, 1.0, 1.33, of="response") == 3
    # C is 1/3 and 1/11: 90 % do not wait with three, 50 % with two.
    found = required_mmc_servers(1.0, 1.0, 0, of="wait", q=[50, 90])
    assert found.dtype == np.int64
    assert_array_equal(found, [2, 3])
    # However long the wait may be, the queue must be stable, to the last float.
    loads = [2.0, np.nextafter(3.0, 0), np.nextafter(3.0, 4)]
    assert_array_equal(required_mmc_servers(loads, 1.0, 1e30, of="wait"), [3, 3, 4])
    # 10,000 times the load, and the square root of it is enough to spare.
    assert required_mmc_servers(10_000, 1.0, 0.01, of="wait", q=90) - 10_000 < 2 * 100


@half
@given(slos, rates, loads, counts)
def test_admissible_rate_undoes_the_measure(slo, mu, rho, c):
    of, q = slo
    rate = rho * c * mu
    target = measure((rate, mu, c), of, q)
    assume(target > 0)
    if of == "response":
        # Where hardly anyone waits, the response does not tell the rate.
        assume(mmc_avg_queue_wait(rate, mu, c) * mu > 1e-4)
    if q is not None:
        assume(erlang_c_wait_probability(rate, mu, c) > 1e-3)
    found = admissible_mmc_arrival_rate(mu, c, target, of=of, q=q)
    assert found == pytest.approx(rate, rel=1e-6)


@half
@given(slos, rates, counts, st.floats(0.001, 1000))
def test_admissible_rate_is_the_largest(slo, mu, c, services):
    of, q = slo
    assume(services > service_alone(of, q) * 1.001)
    target = services / mu
    rate = admissible_mmc_arrival_rate(mu, c, target, of=of, q=q)
    assert 0 < rate < c * mu
    assert measure((rate * (1 - 1e-9), mu, c), of, q) <= target * (1 + 1e-9)
    more = rate + 1e-4 * (c * mu - rate)
    assert measure((more, mu, c), of, q) > target * (1 - 1e-12)


@half
@given(slos, rates, st.floats(0.01, 100))
def test_admissible_rate_of_one_server_has_a_closed_form(slo, mu, services):
    of, q = slo
    assume(services > service_alone(of, q) * 1.001)
    closed = admissible_mm1_arrival_rate(mu, services / mu, of=of, q=q)
    halved = admissible_mmc_arrival_rate(mu, 1, services / mu, of=of, q=q)
    assert halved == pytest.approx(closed, rel=1e-9, abs=1e-12 * mu)


@given(slos, st.floats(0.5, 50), st.floats(0.05, 10))
def test_the_two_inverses_agree(slo, load, services):
    of, q = slo
    assume(services > service_alone(of, q) * 1.001)
    c = required_mmc_servers(load, 1.0, services, of=of, q=q)
    most = admissible_mmc_arrival_rate(1.0, [c, max(c - 1, 1)], services, of=of, q=q)
    assert most[0] >= load * (1 - 1e-9)
    if c > 1:
        assert most[1] <= load * (1 + 1e-9)


def test_inverses_take_arrays():
    target = np.array([[0.5], [2.0]])
    found = required_mmc_servers([0.5, 3.0, 30.0], 1.0, target, of="wait")
    one = [[required_mmc_servers(a, 1.0, t, of="wait") for a in (0.5, 3.0, 30.0)] for t in (0.5, 2)]
    assert_array_equal(found, one)
    assert required_mmc_servers([], 1.0, 1.0, of="wait").shape == (0,)
    slo = {"of": "response", "q": 20}
    rate = admissible_mmc_arrival_rate(1.0, [1, 2, 30], target, **slo)
    one = [[admissible_mmc_arrival_rate(1.0, c, t, **slo) for c in (1, 2, 30)] for t in (0.5, 2)]
    assert_array_equal(rate, one)


# --- the square-root rule --------------------------------------------------------------------


@half
@given(st.floats(1, 900_000), st.floats(1e-6, 1 - 1e-6), rates)
def test_square_root_rule_solves_its_equation(load, share, mu):
    """The limit of C, written with another normal distribution, lies at `share`."""
    normal = NormalDist()

    def limit(spare):
        gamma = max(spare, 0) / math.sqrt(load)
        return 1 / (1 + gamma * normal.cdf(gamma) / normal.pdf(gamma))

    c = square_root_servers(load * mu, mu, share)
    assert type(c) is int
    assert c > load * mu / mu
    noise = 1e-9 * load
    assert limit(c - load + noise) <= share * (1 + 1e-9)
    if c - 1 > load:  # one less would leave too many waiting
        assert limit(c - 1 - load - noise) >= share * (1 - 1e-9)


@pytest.mark.parametrize(("share", "short"), [(0.9, {0, 1}), (0.1, {0, 1}), (0.01, {1, 2})])
def test_square_root_rule_against_the_search(share, short):
    load = np.append(np.linspace(1, 50, 197), np.geomspace(50, 10_000, 200))
    exact = required_mmc_servers(load, 1.0, 0, of="wait", q=100 * (1 - share))
    rule = square_root_servers(load, 1.0, share)
    assert rule.dtype == np.int64
    assert set((exact - rule).tolist()) == short


def test_square_root_rule_by_hand():
    # C = 1/2 where gamma Phi(gamma) = phi(gamma), at 0.506: 100 + 5.06 and 10,000 + 50.6.
    assert_array_equal(square_root_servers([100, 10_000], 1.0, 0.5), [106, 10_051])
    # However many may wait, the queue must be stable.
    assert square_root_servers(3.0, 1.0, np.nextafter(1, 0)) == 4
    assert square_root_servers([], 1.0, 0.5).shape == (0,)


def test_square_root_rule_refuses():
    with pytest.raises(ValueError, match="wait_probability must be < 1: got 1"):
        square_root_servers(1.0, 1.0, 1.0)


# --- G/G/c -----------------------------------------------------------------------------------


def wait_of_dm1(rho):
    """D/M/1 with mu = 1: sigma = e^{-(1 - sigma) / rho}, W_q = sigma / (1 - sigma)."""
    sigma = 0.5
    for _ in range(10_000):
        sigma = math.exp(-(1 - sigma) / rho)
    return sigma / (1 - sigma)


def test_burstiness():
    """Case Q05: coefficients of variation are given, and count squared."""
    wait = allen_cunneen_queue_wait(0.8, 1.0, 1, [3.0, 1.0], 1.5)
    assert_allclose(wait, [22.5, 6.5], rtol=0, atol=1e-9)
    assert wait[0] / wait[1] == pytest.approx(3.4615384615, abs=1e-9)


@given(rates, loads, counts, st.floats(0, 10))
def test_allen_cunneen_where_it_is_exact(mu, rho, c, cv):
    rate = rho * c * mu
    waits = float(states(Fraction(rate) / Fraction(mu), c)[1]) if c <= 8 else None
    if waits is not None:
        assert allen_cunneen_queue_wait(rate, mu, c, 1, 1) == pytest.approx(
            waits / (c * mu - rate), rel=1e-11
        )
    assert allen_cunneen_queue_wait(rho * mu, mu, 1, 1.0, cv) == pytest.approx(
        mg1_queue_wait(rho * mu, 1 / mu, cv), rel=1e-11
    )
    assert allen_cunneen_queue_wait(rate, mu, c, 0, 0) == 0.0


def test_allen_cunneen_is_too_high_for_steady_arrivals():
    for rho, error in [(0.5, 0.96), (0.9, 0.08)]:
        found = allen_cunneen_queue_wait(rho, 1.0, 1, 0.0, 1.0) / wait_of_dm1(rho) - 1
        assert found == pytest.approx(error, abs=0.005)
    assert allen_cunneen_queue_wait(0.999, 1.0, 1, 0.0, 1.0) == pytest.approx(
        wait_of_dm1(0.999), rel=1e-3
    )


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("function", STABLE)
@pytest.mark.parametrize("rate", [2.0, 2.5])
def test_unstable_queues_are_refused(function, rate):
    rule = r"arrival_rate must be below servers x service_rate \(rho >= 1 is unstable\): got "
    with pytest.raises(ValueError, match=rule + f"{rate:g}"):
        function(**{**CALLS[function], "arrival_rate": rate})
    with pytest.raises(ValueError, match=rule + "1.5 at index 1"):
        function(**{**CALLS[function], "servers": [2, 1]})


def test_stability_has_no_slack():
    waits = erlang_c_wait_probability(np.nextafter(2.0, 0), 1.0, 2)
    assert waits < 1
    assert waits == pytest.approx(1, abs=1e-15)


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


@pytest.mark.parametrize("function", [f for f in CALLS if "servers" in CALLS[f]])
def test_servers_are_whole_and_not_endless(function):
    for bad, rule in [
        (1.5, r"a whole number: got 1\.5"),
        (-2, ">= 1: got -2"),
        (1_000_001, "<= 1,000,000, for each takes a step: got 1000001"),
    ]:
        with pytest.raises(ValueError, match=f"servers must be {rule}"):
            function(**{**CALLS[function], "servers": bad})


@pytest.mark.parametrize("q", [0.99, 100, 0, -5])
@pytest.mark.parametrize("function", [f for f in CALLS if "q" in CALLS[f]])
def test_q_is_a_percentage(function, q):
    with pytest.raises(ValueError, match=rf"q must be a percentage in \[1, 100\).*: got {q}"):
        function(**{**CALLS[function], "q": q})


@pytest.mark.parametrize(
    ("function", "good"),
    [
        (required_mmc_servers, {"arrival_rate": 1.0, "service_rate": 2.0}),
        (admissible_mmc_arrival_rate, {"servers": 3, "service_rate": 2.0}),
    ],
)
def test_targets_nothing_keeps(function, good):
    rule = "target must be longer than the service alone takes: got"
    for target, q in [(0.5, None), (0.4, None), (2.3, 99), (0.69, 75)]:
        with pytest.raises(ValueError, match=rule):
            function(**good, target=target, of="response", q=q)
    with pytest.raises(ValueError, match=rule + " 0.1 at index 1"):
        function(**good, target=[1.0, 0.1], of="response")
    with pytest.raises(ValueError, match="target must be > 0: got 0"):
        function(**good, target=0, of="wait")
    with pytest.raises(ValueError, match="of must be one of 'wait', 'response': got 'e2e'"):
        function(**good, target=1.0, of="e2e")
    # Just above what the service takes, a rate and a number of servers do keep it.
    for q, alone in [(None, 0.5), (99, math.log(100) / 2)]:
        assert function(**good, target=alone * (1 + 1e-12), of="response", q=q) > 0


def test_a_load_too_large_is_refused_at_once():
    rule = "arrival_rate must be at most 900,000 times service_rate: got 1000000"
    with pytest.raises(ValueError, match=rule):
        required_mmc_servers(1e6, 1.0, 1.0, of="wait")
    with pytest.raises(ValueError, match=rule):
        square_root_servers(1e6, 1.0, 0.5)


@pytest.mark.parametrize(("rate", "mu"), [(1e-75, 1e75), (1e-75, 1e-75), (1e75, 1e75)])
def test_no_size_overflows(rate, mu):
    for t in (1e-75, 1e75):
        assert 0 <= mmc_response_tail(rate, mu, 3, t) <= 1
        assert 0 <= mmc_wait_tail(rate, mu, 3, t) <= 1
    assert 0 <= allen_cunneen_queue_wait(rate, mu, 3, 1e75, 1e75) < INF
    assert 0 < mmc_response_percentile(rate, mu, 3, 99) < INF
    assert 0 < admissible_mmc_arrival_rate(mu, 3, 1e75, of="wait", q=99) < 3 * mu
    assert required_mmc_servers(rate, mu, 1e75, of="wait", q=99) >= 1
