"""The queue simulations, against plain loops, closed forms written out here, and invariants.

A closed form must lie in the 99.9 % interval over independent replications, and the interval must
be narrower than 4 % of it on either side: a formula wrong by a tenth could not pass.
"""

from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.occupancy import occupancy_curve, peak, time_average
from lib.queue_sim import (
    BLOCK,
    Estimate,
    Served,
    _student,
    batch_server,
    gamma_times,
    mean_interval,
    multi_server,
    processor_sharing,
    quantile_interval,
    single_server,
)

# Whole numbers from a small range: ties are common, and every sum is exact.
customers = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=15).map(
    lambda rows: (np.cumsum([gap for gap, _ in rows]), np.array([work for _, work in rows]))
)


def steps_of(work):
    """Work of at least one step each."""
    return np.maximum(work, 1)


# --- plain loops, one tick or one step at a time ---------------------------------------------


def plain_fcfs(arrival, service, servers):
    """Starts and departures on a clock that ticks once a second, with a line and a counter."""
    n = len(arrival)
    start, departure, line, left, clock = [0] * n, [0] * n, [], {}, 0
    coming = 0
    while coming < n or line or left:
        for i in [i for i, ticks in left.items() if ticks == 0]:
            departure[i] = clock
            del left[i]
        while coming < n and arrival[coming] == clock:
            line.append(coming)
            coming += 1
        while line and len(left) < servers:
            i = line.pop(0)
            start[i] = departure[i] = clock
            if service[i]:
                left[i] = service[i]
        clock += 1
        left = {i: ticks - 1 for i, ticks in left.items()}
    return start, departure


def plain_sharing(arrival, service):
    """Departures in exact fractions: every customer's own remaining work, from event to event."""
    n = len(arrival)
    departure, left, clock, coming = [Fraction(0)] * n, {}, Fraction(0), 0
    while coming < n or left:
        for i in [i for i, work in left.items() if work == 0]:
            departure[i] = clock
            del left[i]
        while coming < n and arrival[coming] == clock:
            left[coming] = Fraction(int(service[coming]))
            coming += 1
        if any(work == 0 for work in left.values()):
            continue
        events = [clock + min(left.values()) * len(left)] if left else []
        events += [Fraction(int(arrival[coming]))] if coming < n else []
        if events:
            share = (min(events) - clock) / max(len(left), 1)
            left = {i: work - share for i, work in left.items()}
            clock = min(events)
    return departure


def plain_batches(arrival, steps, step_time):
    """Starts and departures, one step after the other."""
    n = len(arrival)
    start, departure, left, clock = [0.0] * n, [0.0] * n, {}, 0.0
    line = list(range(n))
    while line or left:
        if not left and arrival[line[0]] > clock:
            clock = arrival[line[0]]
        while line and arrival[line[0]] <= clock and len(left) < len(step_time):
            start[line[0]] = clock
            left[line[0]] = steps[line[0]]
            line.pop(0)
        clock = clock + step_time[len(left) - 1]
        left = {i: more - 1 for i, more in left.items()}
        for i in [i for i, more in left.items() if more == 0]:
            departure[i] = clock
            del left[i]
    return start, departure


@given(customers)
def test_single_server_is_the_plain_loop(case):
    arrival, service = case
    start, departure = plain_fcfs(arrival, service, 1)
    served = single_server(arrival, service)
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


@given(customers, st.integers(1, 5))
def test_multi_server_is_the_plain_loop(case, servers):
    arrival, service = case
    start, departure = plain_fcfs(arrival, service, servers)
    served = multi_server(arrival, service, servers)
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


@given(customers)
def test_processor_sharing_is_the_plain_loop(case):
    arrival, service = case
    served = processor_sharing(arrival, service)
    exact = [float(time) for time in plain_sharing(arrival, service)]
    # Thirds and sevenths of a second: a few roundings of numbers below 200.
    np.testing.assert_allclose(served.departure, exact, rtol=0, atol=1e-11)
    np.testing.assert_allclose(served.response, exact - arrival, rtol=0, atol=1e-11)
    assert served.start.tolist() == arrival.tolist()
    assert not served.wait.any()


@given(customers, st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_batch_server_is_the_plain_loop(case, step_time):
    arrival, steps = case[0], steps_of(case[1])
    start, departure = plain_batches(arrival.tolist(), steps.tolist(), step_time)
    served = batch_server(arrival, steps, step_time)
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


def test_they_are_the_plain_loops_on_any_times():
    """Times that no tick hits: equal to rounding, far below a microsecond."""
    rng = np.random.default_rng(1)
    arrival, work = np.cumsum(rng.exponential(1.0, 3000)), rng.gamma(0.5, 1.6, 3000)
    steps, step_time = rng.geometric(0.05, 3000), 0.03 + 0.01 * np.arange(16)
    start, departure = plain_batches(arrival.tolist(), steps.tolist(), step_time.tolist())
    served = batch_server(arrival, steps, step_time)
    np.testing.assert_allclose(served.start, start, rtol=0, atol=1e-9)
    np.testing.assert_allclose(served.departure, departure, rtol=0, atol=1e-9)
    lines = [0.0] * 3  # when each server is free: looked at one by one
    waits = []
    for now, length in zip(arrival.tolist(), (3 * work).tolist(), strict=True):
        k = min(range(3), key=lines.__getitem__)
        lines[k] = max(lines[k], now) + length
        waits.append(lines[k] - length - now)
    np.testing.assert_allclose(multi_server(arrival, 3 * work, 3).wait, waits, atol=1e-9)


def lindley(arrival, service):
    """The recursion as it is written, one customer after the other."""
    waits = [0.0]
    for change in (service[:-1] - np.diff(arrival)).tolist():
        waits.append(max(0.0, waits[-1] + change))
    return np.array(waits)


@pytest.mark.parametrize("n", [BLOCK, BLOCK + 1, BLOCK + 2, 3 * BLOCK + 7])
@pytest.mark.parametrize("load", [0.9, 1.1])
def test_blocks_join_without_a_seam(n, load):
    rng = np.random.default_rng(2)
    arrival = np.cumsum(rng.integers(0, 200, n))
    service = rng.integers(0, int(200 * load), n)
    assert single_server(arrival, service).wait.tolist() == lindley(arrival, service).tolist()


def test_rounding_does_not_grow_over_a_million_customers():
    rng = np.random.default_rng(3)
    arrival, service = np.cumsum(rng.exponential(1.0, 10**6)), gamma_times(rng, 0.9, 2.0, 10**6)
    wait, plain = single_server(arrival, service).wait, lindley(arrival, service)
    # A sum of 4,096 = 2^12 gaps stays near 2^12, so one addition errs by 2^-41 at most; errors of
    # either sign add up like a root, 2^6. A running sum over all customers errs by over 1e-10.
    assert np.max(np.abs(wait - plain)) < 2.0**-41 * 2.0**6
    assert np.array_equal(wait == 0, plain == 0)


@pytest.mark.parametrize("origin", [0.0, 1.7e9])
@pytest.mark.parametrize("servers", [1, 3])
def test_one_moment_is_one_number(servers, origin):
    """Who takes the place of another starts at its very departure, so no count passes a limit."""
    rng = np.random.default_rng(6)
    arrival = origin + np.cumsum(rng.exponential(1.0, 60_000))
    work = 1.8 * servers * rng.exponential(1.0, 60_000) * (rng.random(60_000) < 0.5)
    steps, step_time = rng.integers(1, 8, 60_000), np.linspace(0.2, 0.3, servers)
    lines = [multi_server(arrival, work, servers)]
    lines += [single_server(arrival, work)] if servers == 1 else []
    for served in (*lines, batch_server(arrival, steps, step_time)):
        assert np.all(served.arrival <= served.start)
        assert np.all(served.start <= served.departure)
        assert peak(served.start, served.departure) == servers
        assert np.all(np.diff(served.start) >= 0)
        resolution = 1e-11 if not origin else 1e-6
        for name, stamp in (("wait", served.start), ("response", served.departure)):
            gap = stamp - served.arrival
            np.testing.assert_allclose(getattr(served, name), gap, rtol=0, atol=resolution)
    for served in lines:
        assert np.all(np.isin(served.start[served.wait > 0], served.departure))


def test_rounding_never_turns_the_shared_clock_back():
    """Customers of no work arrive a rounding error before another one leaves."""
    arrival = [0.1, 0.2, 0.2, 0.2, 39.8, 39.8, 127.10000000000001, 127.10000000000001, 143.1]
    arrival += [143.1, 152.1, 152.1]
    service = [10.0, 56.0, 47.0, 39.0, 0.0, 0.0, 0.0, 0.0, 1 / 7, 0.0, 0.0, 0.0]
    assert np.all(processor_sharing(arrival, service).response >= 0)


# --- replications ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "queue",
    [
        single_server,
        lambda a, s: multi_server(a, s, 2),
        processor_sharing,
        lambda a, s: batch_server(a, s, [1.0, 1.5, 1.75]),
    ],
)
def test_each_row_is_a_run_of_its_own(queue):
    rng = np.random.default_rng(4)
    arrival = np.cumsum(rng.integers(0, 4, (2, 3, 40)), axis=-1)
    service = rng.integers(1, 4, (2, 3, 40))
    together = queue(arrival, service)
    shared = queue(arrival[0, 0], service)  # one trace under six draws
    assert together.wait.shape == shared.wait.shape == shared.arrival.shape == (2, 3, 40)
    for row in np.ndindex(2, 3):
        for name in ("wait", "response", "start", "departure"):
            each = queue(arrival[row], service[row])
            assert getattr(together, name)[row].tolist() == getattr(each, name).tolist()
            each = queue(arrival[0, 0], service[row])
            assert getattr(shared, name)[row].tolist() == getattr(each, name).tolist()
    constant = queue(arrival[0, 0], 2)
    assert constant.response.tolist() == queue(arrival[0, 0], np.full(40, 2)).response.tolist()


def test_one_customer():
    for served in (
        single_server([5.0], [2.0]),
        multi_server([5.0], [2.0], 3),
        processor_sharing([5.0], [2.0]),
        batch_server([5.0], [4], [0.5]),
    ):
        assert isinstance(served, Served)
        assert (served.start[0], served.wait[0], served.response[0]) == (5.0, 0.0, 2.0)
        assert served.departure.tolist() == [7.0]


# --- public cases and published errors -------------------------------------------------------


def test_a_deterministic_queue_is_counted_at_its_horizon():
    """Case Q03: one arrival an hour from the first hour on, an hour's service, 24 hours."""
    arrival = np.arange(1.0, 30.0)
    for served in (
        single_server(arrival, 1.0),
        multi_server(arrival, 1.0, 1),
        processor_sharing(arrival, 1.0),
        batch_server(arrival, 1, [1.0]),
    ):
        assert np.sum(served.arrival < 24) == 23
        assert np.sum(served.departure < 24) == 22
        assert np.sum((served.start < 24) & (served.departure >= 24)) == 1
        assert not served.wait.any()


def test_wait_behind_a_client_limit_is_part_of_the_response():
    """Case L01: a request every 0.1 s, 0.5 s of service, one at a time."""
    served = single_server(0.1 * np.arange(8), 0.5)
    assert served.wait.mean() == pytest.approx(1.4, abs=1e-9)
    assert served.response.mean() == pytest.approx(1.9, abs=1e-9)
    assert served.response.max() == pytest.approx(3.3, abs=1e-9)
    assert np.quantile(served.response, 0.99) == pytest.approx(3.272, abs=1e-9)


def test_a_burst_waits_for_its_backlog():
    """Case L03: 1,000 requests at once into 2.3 requests/s."""
    served = single_server(np.zeros(1000), 1 / 2.3)
    assert served.response[-1] == pytest.approx(434.7826, abs=1e-3)
    assert served.response.mean() == pytest.approx(217.6087, abs=1e-3)


def test_requests_in_the_system_are_not_requests_in_service():
    """Eight servers at load 0.9: the count in the system passes eight, the busy ones cannot."""
    rng = np.random.default_rng(5)
    arrival = np.cumsum(rng.exponential(1 / 7.2, 200_000))
    served = multi_server(arrival, rng.exponential(1.0, 200_000), 8)
    window = (arrival[20_000], arrival[-1])
    assert time_average(served.arrival, served.departure, window) > 12
    assert time_average(served.start, served.departure, window) == pytest.approx(7.2, rel=0.01)
    assert peak(served.start, served.departure) == 8


# --- closed forms ----------------------------------------------------------------------------


def inside(estimate, exact):
    """`exact` is in the interval, and the interval is narrow enough to tell."""
    assert estimate.confidence == 0.999
    assert estimate.low <= exact <= estimate.high, f"{estimate} without {exact:.4g}"
    assert estimate.high - estimate.low <= 0.08 * exact


def draw(seed, load, cv, shape, servers=1):
    """Poisson arrivals, and service of mean 1 s with the given CV."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / (load * servers), shape), axis=-1)
    return arrival, gamma_times(rng, 1.0, cv, shape)


def mean(values, warm_up=2000):
    return mean_interval(values, warm_up=warm_up, confidence=0.999)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.8])
def test_mm1(load):
    served = single_server(*draw(10, load, 1.0, (50, 60_000)))
    inside(mean(served.wait), load / (1 - load))
    inside(mean(served.response), 1 / (1 - load))
    inside(mean((served.wait > 0).astype(float)), load)

    def p99(values):
        return quantile_interval(values, 99, warm_up=2000, confidence=0.999)

    wait, response = p99(served.wait), p99(served.response)
    inside(wait, np.log(100 * load) / (1 - load))
    inside(response, np.log(100) / (1 - load))
    if load == 0.7:  # a figure in print for the p99 wait
        assert not wait.low <= 13.4 <= wait.high
    assert response.low > wait.value + 0.2  # the two are not one


@pytest.mark.parametrize(("load", "cv"), [(0.5, 0.0), (0.8, 0.0), (0.5, 0.5), (0.7, 2.0)])
def test_mg1(load, cv):
    """Pollaczek and Khinchine; M/D/1 at load 0.5 waits 0.5, not the 0.25 in print."""
    served = single_server(*draw(11, load, cv, (50, 60_000)))
    inside(mean(served.wait), load * (1 + cv**2) / (2 * (1 - load)))


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8), (8, 0.7)])
def test_mmc(servers, load):
    offered, blocked = load * servers, 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    served = multi_server(*draw(12, load, 1.0, (40, 60_000), servers), servers)
    inside(mean((served.wait > 0).astype(float)), waits)
    inside(mean(served.wait), waits / (servers - offered))


@pytest.mark.parametrize("cv", [0.0, 1.0, 2.0])
def test_processor_sharing_feels_only_the_mean(cv):
    """M/G/1-PS: the mean response is E[S] / (1 - rho) for every distribution of S."""
    load = 0.6
    arrival, service = draw(13, load, cv, (30, 20_000))
    served = processor_sharing(arrival, service)
    inside(mean(served.response), 1 / (1 - load))
    # And a customer of size s takes s / (1 - rho): the slowdown is the same for long and short.
    if cv:
        for size in (service < 1, service > 2):
            size[:, :2000] = False
            slow = [
                np.mean(t[k] / s[k])
                for t, s, k in zip(
                    served.response, np.maximum(service, 0.05), size & (service > 0.05), strict=True
                )
            ]
            inside(mean(np.reshape(slow, (-1, 1)), warm_up=0), 1 / (1 - load))


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
def test_bulk_service_without_a_limit(load):
    """Poisson arrivals into steps of 1 s that take all who wait.

    A step brings `load` arrivals, which wait half a second in the mean. With chance exp(-load) it
    brings none, and the next arrival finds the server idle and waits for nothing.
    """
    rng = np.random.default_rng(14)
    arrival = np.cumsum(rng.exponential(1 / load, (20, 20_000)), axis=-1)
    served = batch_server(arrival, 1, np.ones(64))
    inside(mean(served.wait), load / 2 / (load + np.exp(-load)))
    assert np.allclose(served.response - served.wait, 1.0)


# --- invariants ------------------------------------------------------------------------------


def area(start, end):
    """Customer-seconds under the curve of the number present."""
    curve = occupancy_curve(start, end)
    return np.sum(curve.counts[:-1] * np.diff(curve.times))


def busy(start, end):
    """Seconds with somebody present."""
    curve = occupancy_curve(start, end)
    return np.sum((curve.counts[:-1] > 0) * np.diff(curve.times))


@given(customers, st.integers(1, 4))
def test_littles_law_is_exact_on_a_closed_path(case, servers):
    arrival, work = case
    for served in (
        single_server(arrival, work),
        multi_server(arrival, work, servers),
        batch_server(arrival, steps_of(work), np.arange(1, 4)),
    ):
        assert area(served.arrival, served.departure) == served.response.sum()
        assert area(served.arrival, served.start) == served.wait.sum()
    shared = processor_sharing(arrival, work)
    gap = area(shared.arrival, shared.departure) - shared.response.sum()
    assert abs(gap) < 1e-9


@given(customers, st.integers(1, 4))
def test_no_server_idles_while_a_customer_waits(case, servers):
    arrival, service = case
    served = multi_server(arrival, service, servers)
    assert peak(served.start, served.departure) <= servers
    for came, start in zip(served.arrival, served.start, strict=True):
        inner = np.minimum(served.departure, start) - np.maximum(served.start, came)
        assert np.maximum(inner, 0).sum() == servers * (start - came)


@given(customers, st.integers(1, 4))
def test_work_is_conserved(case, servers):
    """The server works while work is there, in whatever order: the same seconds are busy."""
    arrival, service = case
    one, shared = single_server(arrival, service), processor_sharing(arrival, service)
    assert busy(one.arrival, one.departure) == service.sum()
    assert busy(shared.arrival, shared.departure) == pytest.approx(service.sum(), abs=1e-9)
    assert shared.departure.max() == pytest.approx(one.departure.max(), abs=1e-9)
    assert (one.response - one.wait).tolist() == service.tolist()
    assert np.all(shared.response >= service - 1e-9)


@given(customers, st.integers(1, 4))
def test_first_come_is_first_served(case, servers):
    arrival, work = case
    for served in (
        single_server(arrival, work),
        multi_server(arrival, work, servers),
        batch_server(arrival, steps_of(work), np.ones(servers)),
    ):
        assert np.all(served.wait >= 0)
        assert np.all(np.diff(served.start) >= 0)
    assert np.all(np.diff(single_server(arrival, work).departure) >= 0)


@given(customers, st.integers(1, 4))
def test_one_more_server_makes_nobody_wait_longer(case, servers):
    more, fewer = (multi_server(*case, c).wait for c in (servers + 1, servers))
    assert np.all(more <= fewer)
    assert multi_server(*case, 1).wait.tolist() == single_server(*case).wait.tolist()


@given(customers, st.integers(1, 4))
def test_a_batch_of_one_is_a_single_server(case, length):
    arrival, steps = case[0], steps_of(case[1])
    batch, single = batch_server(arrival, steps, [length]), single_server(arrival, length * steps)
    assert batch.wait.tolist() == single.wait.tolist()
    assert batch.response.tolist() == single.response.tolist()


@given(customers, st.integers(1, 5))
def test_a_batch_never_passes_its_limit(case, limit):
    served = batch_server(case[0], steps_of(case[1]), np.ones(limit))
    assert peak(served.start, served.departure) <= limit


@given(customers)
def test_short_steps_in_proportion_to_the_batch_share_the_server(case):
    """Round robin with a small quantum is processor sharing."""
    arrival, service, quantum = case[0], steps_of(case[1]), 2.0**-12
    n = len(arrival)
    turns = batch_server(arrival, service / quantum, quantum * np.arange(1, n + 1))
    # A customer joins up to one step late, n quanta; each of the n customers may delay the others.
    shared = processor_sharing(arrival, service)
    assert np.max(np.abs(turns.response - shared.response)) <= n * n * quantum


# --- intervals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.9, 3, 2.3534),
        (0.95, 4, 2.7764),
        (0.99, 5, 4.0321),
        (0.95, 19, 2.0930),
        (0.999, 30, 3.6460),
        (0.95, 120, 1.9799),
    ],
)
def test_students_t_is_the_printed_table(confidence, freedom, table):
    assert _student(confidence, freedom) == pytest.approx(table, abs=6e-5)


def test_students_t_tends_to_the_normal():
    # The first term of its expansion, (z^3 + z) / (4 nu); the next is of order 1 / nu^2.
    z = NormalDist().inv_cdf(0.975)
    for freedom in (10_000, 10_001):
        expected = z + (z**3 + z) / (4 * freedom)
        assert _student(0.95, freedom) == pytest.approx(expected, abs=1e-7)


def test_intervals_by_hand():
    rows = mean_interval([[9.0, 1.0, 3.0], [9.0, 4.0, 6.0]], warm_up=1)
    half = 12.7062047 * 1.5  # means 2 and 5: their standard error is 3 / 2
    assert rows == Estimate(3.5, rows.low, rows.high, 0.95, 2, "replications")
    assert (rows.low, rows.high) == pytest.approx((3.5 - half, 3.5 + half), abs=1e-6)
    run = mean_interval([7.0, 8.0, 1.0, 3.0, 4.0, 6.0], warm_up=1, batches=2, confidence=0.9)
    half = 6.31375 * 1.5  # 8 would not fill a batch, so it is left out with 7
    assert run == Estimate(3.5, run.low, run.high, 0.9, 2, "batches")
    assert (run.low, run.high) == pytest.approx((3.5 - half, 3.5 + half), abs=1e-4)
    assert str(mean_interval(np.ones((3, 4)), warm_up=0)) == "1 in [1, 1] (95 %, 3 replications)"


def test_a_quantile_by_hand():
    values = [[99.0, 0.0, 1.0, 2.0], [99.0, 4.0, 5.0, 9.0]]
    median = quantile_interval(values, 50, warm_up=1)
    # Medians 1 and 5 about the pooled 3: sqrt((4 + 4) / 1 / 2) = 2.
    half = 12.7062047 * 2
    assert median == Estimate(3.0, median.low, median.high, 0.95, 2, "replications")
    assert (median.low, median.high) == pytest.approx((3 - half, 3 + half), abs=1e-6)
    skew = quantile_interval([[0.0, 1.0, 2.0], [1.5, 5.0, 9.0]], 50, warm_up=0)
    half = 12.7062047 * np.sqrt((0.75**2 + 3.25**2) / 2)  # medians 1 and 5 about the pooled 1.75
    assert (skew.low, skew.high) == pytest.approx((1.75 - half, 1.75 + half), abs=1e-6)
    lone = quantile_interval([0.0, 1.0, 2.0, 1.5, 5.0, 9.0], 50, warm_up=0, batches=2)
    assert (lone.value, lone.low, lone.high) == (skew.value, skew.low, skew.high)
    assert (skew.method, lone.method) == ("replications", "batches")


def covered(estimates, exact):
    return sum(e.low <= exact <= e.high for e in estimates)


def near(hits, tries, share):
    """Hits within four standard errors of a count with the given share."""
    return abs(hits - tries * share) <= 4 * np.sqrt(tries * share * (1 - share))


@pytest.mark.parametrize(("rows", "confidence"), [(2, 0.8), (3, 0.95), (6, 0.9)])
def test_the_interval_covers_a_normal_mean_exactly_as_often_as_it_says(rows, confidence):
    draws = np.random.default_rng(20).normal(5.0, 2.0, (4000, rows, 1))
    each = [mean_interval(values, warm_up=0, confidence=confidence) for values in draws]
    assert near(covered(each, 5.0), 4000, confidence)


def test_the_intervals_cover_a_queue():
    """M/M/1 at load 0.5, 90 % intervals: means over replications and batches, and the p95."""
    tries, exact, p95 = 400, 1.0, np.log(10) / 0.5
    means, batches, quantiles = [], [], []
    for seed in range(tries):
        wait = single_server(*draw((21, seed), 0.5, 1.0, (10, 2100))).wait
        means.append(mean_interval(wait, warm_up=100, confidence=0.9))
        quantiles.append(quantile_interval(wait, 95, warm_up=100, confidence=0.9))
        wait = single_server(*draw((22, seed), 0.5, 1.0, 20_100)).wait
        batches.append(mean_interval(wait, warm_up=100, batches=10, confidence=0.9))
    assert near(covered(means, exact), tries, 0.9)
    assert near(covered(batches, exact), tries, 0.9)
    assert near(covered(quantiles, p95), tries, 0.9)
    # A single customer is no batch: neighbours wait alike, and the interval is far too narrow.
    wrong = mean_interval(wait, warm_up=100, batches=20_000, confidence=0.9)
    assert wrong.high - wrong.low < 0.5 * (batches[-1].high - batches[-1].low)


def test_a_cold_start_biases_the_mean_unless_it_is_left_out():
    wait = single_server(*draw(23, 0.9, 1.0, (4000, 400))).wait
    cold = mean_interval(wait[:, :100], warm_up=0, confidence=0.999)
    assert cold.high < 0.7 * 9.0
    warm = mean_interval(wait, warm_up=300, confidence=0.999)
    assert cold.high < warm.low


# --- samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_times_have_their_mean_and_cv(cv):
    values = gamma_times(np.random.default_rng(30), 2.5, cv, (50, 20_000))
    inside(mean_interval(values, warm_up=0, confidence=0.999), 2.5)
    inside(mean_interval((values / 2.5 - 1) ** 2, warm_up=0, confidence=0.999), cv**2)


def test_gamma_times_at_the_edges():
    rng = np.random.default_rng(31)
    assert gamma_times(rng, 2.5, 0, 3).tolist() == [2.5, 2.5, 2.5]
    share = (gamma_times(rng, 2.0, 1, (50, 2000)) > 2.0).astype(float)  # CV 1 is exponential
    inside(mean_interval(share, warm_up=0, confidence=0.999), np.exp(-1))
    first, second = (gamma_times(np.random.default_rng(32), 1.0, 2.0, 4) for _ in range(2))
    assert first.tolist() == second.tolist()


# --- bad input -------------------------------------------------------------------------------

QUEUES = {
    "single_server": lambda **k: single_server(**k),
    "multi_server": lambda **k: multi_server(**k, servers=2),
    "processor_sharing": lambda **k: processor_sharing(**k),
    "batch_server": lambda arrival, service: batch_server(arrival, service, [1.0, 2.0]),
}


@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES.keys())
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"arrival": [0.0, 2.0, 1.0]}, ValueError, "arrival must be in order .*: got 1 at index 2"),
        (
            {"arrival": [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]},
            ValueError,
            r"arrival must be in order .*: got 1 at index \(1, 2\)",
        ),
        ({"arrival": []}, ValueError, r"arrival must be a non-empty list|lengths must match"),
        ({"arrival": [], "service": 1}, ValueError, r"non-empty list: got shape \(0,\)"),
        ({"arrival": 1.0}, ValueError, r"arrival must be a non-empty list: got shape \(\)"),
        ({"arrival": [0.0, np.nan, 2.0]}, ValueError, "arrival must be finite .* at index 1"),
        ({"arrival": [0.0, 1.0, np.inf]}, ValueError, "arrival must be finite .* at index 2"),
        ({"arrival": ["0", "1", "2"]}, TypeError, "arrival must be a real number"),
        ({"arrival": None}, TypeError, "arrival must be a real number"),
        ({"service": [1, 1, -2]}, ValueError, "(service|steps) must be >= [01]: got -2 at index 2"),
        ({"service": [1, np.nan, 2]}, ValueError, "(service|steps) must be finite .* at index 1"),
        ({"service": [1, 1, 10.0**80]}, ValueError, "(service|steps) must be finite and at most"),
        ({"service": [True, True, True]}, TypeError, "(service|steps) must be a real number"),
        ({"service": [1, 2]}, ValueError, r"lengths must match: got arrival \(3,\)"),
        ({"arrival": [5.0]}, ValueError, r"lengths must match: got arrival \(1,\)"),
    ],
)
def test_queues_refuse_bad_input(queue, change, error, message):
    with pytest.raises(error, match=message):
        queue(**{"arrival": [0.0, 1.0, 2.0], "service": [1, 2, 1], **change})


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "servers must be >= 1: got 0"),
        (1.5, ValueError, "servers must be a whole number: got 1.5"),
        (np.nan, ValueError, "servers must be finite"),
        ([2, 3], TypeError, "servers must be one number"),
        (True, TypeError, "servers must be a real number"),
    ],
)
def test_servers_are_counted(value, error, message):
    with pytest.raises(error, match=message):
        multi_server([0.0], [1.0], value)


@pytest.mark.parametrize(
    ("steps", "step_time", "error", "message"),
    [
        ([0], [1.0], ValueError, "steps must be >= 1: got 0"),
        ([1.5], [1.0], ValueError, "steps must be a whole number: got 1.5"),
        ([1], [], ValueError, r"step_time must be a non-empty list, .*: got shape \(0,\)"),
        ([1], 1.0, ValueError, r"step_time must be a non-empty list, .*: got shape \(\)"),
        ([1], [[1.0]], ValueError, r"step_time must be a non-empty list, .*: got shape \(1, 1\)"),
        ([1], [1.0, 0.0], ValueError, "step_time must be > 0: got 0 at index 1"),
        ([1], [1.0, np.nan], ValueError, "step_time must be finite .* at index 1"),
        ([1], ["1"], TypeError, "step_time must be a real number"),
    ],
)
def test_steps_have_a_number_and_a_length(steps, step_time, error, message):
    with pytest.raises(error, match=message):
        batch_server([0.0], steps, step_time)


@pytest.mark.parametrize(
    "interval", [mean_interval, lambda values, **k: quantile_interval(values, 50, **k)]
)
@pytest.mark.parametrize(
    ("values", "change", "error", "message"),
    [
        ([1.0] * 9, {}, ValueError, "batches must be given for one run"),
        ([[1.0] * 9] * 2, {"batches": 2}, ValueError, "batches must be left out for .*: got 2"),
        ([[1.0] * 9], {}, ValueError, "values must hold 2 replications or more: got 1"),
        ([1.0] * 9, {"batches": 1}, ValueError, "batches must be >= 2: got 1"),
        ([1.0] * 9, {"batches": 2.5}, ValueError, "batches must be a whole number: got 2.5"),
        ([1.0] * 9, {"batches": 9, "warm_up": 1}, ValueError, "batches must be <= 8, .*: got 9"),
        ([1.0] * 9, {"batches": [2]}, TypeError, "batches must be one number"),
        ([[1.0] * 9] * 2, {"warm_up": 9}, ValueError, "warm_up must be < 9 customers: got 9"),
        ([[1.0] * 9] * 2, {"warm_up": -1}, ValueError, "warm_up must be >= 0: got -1"),
        ([[1.0] * 9] * 2, {"warm_up": 0.5}, ValueError, "warm_up must be a whole number: got 0.5"),
        ([[1.0] * 9] * 2, {"confidence": 95}, ValueError, "confidence must be between .*: got 95"),
        ([[1.0] * 9] * 2, {"confidence": 0}, ValueError, "confidence must be between .*: got 0"),
        ([[1.0] * 9] * 2, {"confidence": 1.0}, ValueError, "confidence must be between .*: got 1"),
        ([[1.0] * 9] * 2, {"confidence": np.nan}, ValueError, "confidence must be finite"),
        ([[[1.0]]], {}, ValueError, r"values must be one run .*: got shape \(1, 1, 1\)"),
        ([], {"batches": 2}, ValueError, r"values must be one run .*: got shape \(0,\)"),
        (3.0, {}, ValueError, r"values must be one run .*: got shape \(\)"),
        ([[1.0, np.nan]] * 2, {}, ValueError, r"values must be finite .* at index \(0, 1\)"),
        ([[True, False]] * 2, {}, TypeError, "values must be a real number"),
    ],
)
def test_intervals_refuse_bad_input(interval, values, change, error, message):
    with pytest.raises(error, match=message):
        interval(values, **{"warm_up": 0, **change})


def test_warm_up_is_never_guessed():
    with pytest.raises(TypeError, match="warm_up"):
        mean_interval([[1.0], [2.0]])
    with pytest.raises(TypeError, match="warm_up"):
        quantile_interval([[1.0], [2.0]], 50)


def test_a_quantile_needs_values_beyond_it():
    with pytest.raises(ValueError, match=r"reach beyond p99: got 50 values in each, 0\.5 of them"):
        quantile_interval(np.ones((10, 50)), 99, warm_up=0)
    assert quantile_interval(np.ones((10, 100)), 99, warm_up=0).value == 1.0
    with pytest.raises(ValueError, match=r"q must be a percentage .*: got 0\.99"):
        quantile_interval(np.ones((10, 100)), 0.99, warm_up=0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"generator": 1}, TypeError, "generator must be a numpy Generator: got 1"),
        ({"generator": np.random}, TypeError, "generator must be a numpy Generator"),
        ({"mean": 0.0}, ValueError, "mean must be > 0: got 0"),
        ({"mean": [1.0, 2.0]}, TypeError, "mean must be one number"),
        ({"cv": -0.5}, ValueError, "cv must be >= 0: got -0.5"),
        ({"cv": np.nan}, ValueError, "cv must be finite"),
    ],
)
def test_gamma_times_refuse_bad_input(change, error, message):
    rng = np.random.default_rng(0)
    with pytest.raises(error, match=message):
        gamma_times(**{"generator": rng, "mean": 1.0, "cv": 1.0, "size": 3, **change})
