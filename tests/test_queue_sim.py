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
    limited_room,
    mean_interval,
    multi_server,
    processor_sharing,
    quantile_interval,
    shortest_first,
    shortest_queue,
    single_server,
    split_servers,
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


def plain_shortest(arrival, service, size):
    """Starts and departures on the ticking clock: one server looks through all who wait."""
    n = len(arrival)
    start, departure, line, clock, busy_until = [0] * n, [0] * n, [], 0, 0
    coming = 0
    while coming < n or line:
        line += [i for i in range(n) if arrival[i] == clock]
        coming = sum(came <= clock for came in arrival)
        while line and busy_until <= clock:
            i = min(line, key=lambda i: (size[i], i))
            line.remove(i)
            start[i], departure[i] = clock, clock + service[i]
            busy_until = departure[i]
        clock += 1
    return start, departure


def plain_lines(arrival, service, servers, choose):
    """Starts and departures of lines on the ticking clock; `choose` sees the number in each."""
    n = len(arrival)
    start, departure, clock = [0] * n, [0] * n, 0
    lines, left, coming = [[] for _ in range(servers)], list(service), 0

    def clear():
        for line in lines:
            while line and left[line[0]] == 0:
                departure[line.pop(0)] = clock
                if line:
                    start[line[0]] = clock

    while coming < n or any(lines):
        clear()
        while coming < n and arrival[coming] == clock:
            line = lines[choose([len(line) for line in lines], coming)]
            line.append(coming)
            if len(line) == 1:
                start[coming] = clock
            coming += 1
            clear()
        for line in lines:
            if line:
                left[line[0]] -= 1
        clock += 1
    return start, departure


def plain_room(arrival, service, servers, size, room):
    """Who is admitted, and their starts and departures, on the ticking clock."""
    n = len(arrival)
    admitted, start, departure, line, left, clock = [False] * n, [0] * n, [0] * n, [], {}, 0

    def go_on():
        for i in [i for i, ticks in left.items() if ticks == 0]:
            departure[i] = clock
            del left[i]
        while line and len(left) < servers:
            i = line.pop(0)
            start[i] = clock
            left[i] = service[i]
            if not left[i]:
                departure[i] = clock
                del left[i]

    coming = 0
    while coming < n or line or left:
        go_on()
        while coming < n and arrival[coming] == clock:
            if sum(size[i] for i in [*line, *left, coming]) <= room:
                admitted[coming] = True
                line.append(coming)
                go_on()
            coming += 1
        clock += 1
        left = {i: ticks - 1 for i, ticks in left.items()}
    return admitted, start, departure


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


@given(customers, st.none() | st.lists(st.integers(-2, 2), min_size=15, max_size=15))
def test_shortest_first_is_the_plain_loop(case, size):
    arrival, service = case
    size = None if size is None else size[: len(arrival)]
    start, departure = plain_shortest(arrival, service, service if size is None else size)
    served = shortest_first(arrival, service, size)
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


@given(customers, st.lists(st.sampled_from([0, 1, 5]), min_size=15, max_size=15))
def test_split_servers_is_the_plain_loop(case, sent):
    arrival, service = case
    start, departure = plain_lines(arrival, service, 6, lambda _, i: sent[i])
    served = split_servers(arrival, service, sent[: len(arrival)])
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


@given(customers, st.integers(1, 5))
def test_shortest_queue_is_the_plain_loop(case, servers):
    arrival, service = case
    start, departure = plain_lines(
        arrival, service, servers, lambda lengths, _: lengths.index(min(lengths))
    )
    served = shortest_queue(arrival, service, servers)
    assert served.start.tolist() == start
    assert served.departure.tolist() == departure


sizes = st.lists(st.integers(1, 6), min_size=15, max_size=15)


@given(customers, st.integers(1, 4), sizes, st.integers(1, 15))
def test_limited_room_is_the_plain_loop(case, servers, size, room):
    arrival, service = case
    size = size[: len(arrival)]
    expected, start, departure = plain_room(arrival, service, servers, size, room)
    admitted, served = limited_room(arrival, service, servers, size, room)
    assert admitted.tolist() == expected
    assert served.arrival.tolist() == arrival[admitted].tolist()
    assert served.start.tolist() == np.array(start)[admitted].tolist()
    assert served.departure.tolist() == np.array(departure)[admitted].tolist()


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
    lines += [limited_room(arrival, work, servers, 1, 10 * servers)[1]]
    others = [split_servers(arrival, work, rng.integers(0, servers, 60_000))]
    others += [shortest_queue(arrival, work, servers)]
    others += [shortest_first(arrival, work)] if servers == 1 else []
    for served in (*lines, *others, batch_server(arrival, steps, step_time)):
        assert np.all(served.arrival <= served.start)
        assert np.all(served.start <= served.departure)
        assert peak(served.start, served.departure) == servers
        resolution = 1e-11 if not origin else 1e-6
        for name, stamp in (("wait", served.start), ("response", served.departure)):
            gap = stamp - served.arrival
            np.testing.assert_allclose(getattr(served, name), gap, rtol=0, atol=resolution)
    for served in (*lines, *others):
        assert np.all(np.isin(served.start[served.wait > 0], served.departure))
    for served in (*lines, batch_server(arrival, steps, step_time)):
        assert np.all(np.diff(served.start) >= 0)


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
        shortest_first,
        lambda a, s: shortest_first(a, s, np.arange(40) % 5),
        lambda a, s: split_servers(a, s, np.arange(40) % 3),
        lambda a, s: shortest_queue(a, s, 2),
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
    expected = queue(arrival[0, 0], np.full(40, 2)).response.tolist()
    assert queue(arrival[0, 0], 2).response.tolist() == expected
    assert queue(arrival[0, 0], [[2], [3]]).response[0].tolist() == expected


def test_sizes_and_servers_may_differ_from_row_to_row():
    rng = np.random.default_rng(7)
    arrival, service = np.cumsum(rng.integers(0, 3, 40)), rng.integers(0, 4, 40)
    column = rng.integers(0, 3, (2, 3, 40))
    for queue in (shortest_first, split_servers):
        served = queue(arrival, service, column)
        for row in np.ndindex(2, 3):
            assert served.start[row].tolist() == queue(arrival, service, column[row]).start.tolist()
        assert (
            queue(arrival, service, 1).wait.tolist()
            == single_server(arrival, service).wait.tolist()
        )


def test_one_customer():
    for served in (
        single_server([5.0], [2.0]),
        multi_server([5.0], [2.0], 3),
        shortest_first([5.0], [2.0]),
        split_servers([5.0], [2.0], [7]),
        shortest_queue([5.0], [2.0], 3),
        limited_room([5.0], [2.0], 3, [4], 4)[1],
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
        shortest_first(arrival, 1.0),
        shortest_queue(arrival, 1.0, 1),
        limited_room(arrival, 1.0, 1, 1, 1)[1],
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


def erlang_b(offered, servers):
    """Blocked share of a loss system: the last of `servers + 1` states of a birth-death chain."""
    states = np.cumprod([1.0, *(offered / k for k in range(1, servers + 1))])
    return states[-1] / states.sum()


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8), (8, 0.7)])
def test_mmc(servers, load):
    offered = load * servers
    blocked = erlang_b(offered, servers)
    waits = blocked / (1 - load * (1 - blocked))
    served = multi_server(*draw(12, load, 1.0, (40, 60_000), servers), servers)
    inside(mean((served.wait > 0).astype(float)), waits)
    inside(mean(served.wait), waits / (servers - offered))


@pytest.mark.parametrize("load", [0.6, 0.8])
def test_shortest_first_by_cobham_and_phipps(load):
    """M/M/1: a customer of size x waits load / (1 - rho(x))^2, with rho(x) the load below x."""
    arrival, service = draw(15, load, 1.0, (50, 20_000))
    served = shortest_first(arrival, service)
    x = (np.arange(200_000) + 0.5) / 5000  # midpoints up to 40 s; e^-40 lie beyond
    density, wait = np.exp(-x), load / (1 - load * (1 - np.exp(-x) * (1 + x))) ** 2
    inside(mean(served.wait), np.sum(wait * density) / 5000)
    short = np.where(service < 1, served.wait, 0.0)
    inside(mean(short), np.sum((wait * density)[x < 1]) / 5000)


def test_two_classes_wait_by_cobham():
    """The size may be any mark: here a class that goes first and takes longer."""
    load, rng = 0.7, np.random.default_rng(16)
    arrival = np.cumsum(rng.exponential(1 / load, (50, 20_000)), axis=-1)
    second = rng.integers(0, 2, (50, 20_000))
    service = np.where(second, 0.5, 1.5)
    served = shortest_first(arrival, service, second)
    residual = load * (0.5**2 + 1.5**2) / 2 / 2  # lambda E[S^2] / 2
    first = load * 0.75  # the load of the class that goes first
    for mine, wait in (
        (second == 0, residual / (1 - first)),
        (second == 1, residual / (1 - first) / (1 - load)),
    ):
        inside(mean(np.where(mine, served.wait, 0.0)), wait / 2)


def test_round_robin_splits_poisson_arrivals_into_erlang():
    """E_2/M/1: sigma is the root of sigma = ((2 load) / (2 load + 1 - sigma))^2 below 1."""
    load, servers = 0.7, 2
    arrival, service = draw(17, load, 1.0, (50, 60_000), servers)
    served = split_servers(arrival, service, np.arange(60_000) % servers)
    sigma = 0.0
    for _ in range(500):  # the map has slope below 1 at the root, so it contracts
        sigma = (2 * load / (2 * load + 1 - sigma)) ** 2
    inside(mean(served.wait), sigma / (1 - sigma))
    inside(mean((served.wait > 0).astype(float)), sigma)


def test_random_split_is_mm1_in_each_part():
    load, servers = 0.6, 3
    arrival, service = draw(18, load, 1.0, (50, 60_000), servers)
    sent = np.random.default_rng(19).integers(0, servers, (50, 60_000))
    inside(mean(split_servers(arrival, service, sent).wait), load / (1 - load))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_shorter_of_two_lines_is_its_markov_chain(load):
    """Poisson arrivals, exponential service: the balance of all pairs (i, j) of line lengths."""
    limit = 40
    rates = np.zeros((limit, limit, limit, limit))
    for i, j in np.ndindex(limit, limit):
        if i <= j and i + 1 < limit:
            rates[i, j, i + 1, j] = 2 * load
        elif j < i:
            rates[i, j, i, j + 1] = 2 * load
        if i:
            rates[i, j, i - 1, j] = 1
        if j:
            rates[i, j, i, j - 1] = 1
    flow = rates.reshape(limit**2, limit**2)
    balance = flow.T - np.diag(flow.sum(axis=1))
    balance[0] = 1.0  # one equation is the sum of the others: the shares add up to 1 instead
    shares = np.linalg.solve(balance, np.eye(limit**2)[0]).reshape(limit, limit)
    assert shares[-1].sum() < 1e-6  # the cut at `limit` changes nothing
    i, j = np.indices((limit, limit))
    served = shortest_queue(*draw(24, load, 1.0, (40, 30_000), 2), 2)
    # An arrival sees the shares of time, and waits for all who are before it, 1 s each.
    inside(mean(served.wait), np.sum(shares * np.minimum(i, j)))
    inside(mean((served.wait > 0).astype(float)), shares[1:, 1:].sum())


def door(seed, load, cv, shape, servers, room):
    """Refused share (r, 1) of replications of `limited_room` with sizes of 1, after a warm-up."""
    arrival, service = draw(seed, load, cv, shape, servers)
    runs = [limited_room(a, s, servers, 1, room)[0] for a, s in zip(arrival, service, strict=True)]
    return 1.0 - np.array(runs)


@pytest.mark.parametrize("cv", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 0.8), (8, 1.25)])
def test_room_for_the_servers_alone_is_erlangs_loss_system(servers, load, cv):
    """M/G/c/c: only the mean of the service counts."""
    refused = door(25, load, cv, (25, 20_000), servers, servers)
    inside(mean(refused, warm_up=500), erlang_b(load * servers, servers))


@pytest.mark.parametrize(("load", "room"), [(0.8, 4), (1.0, 4), (2.0, 3)])
def test_mm1_with_a_room(load, room):
    """The states 0 to `room` have shares in proportion to load^k."""
    shares = load ** np.arange(room + 1.0)
    inside(mean(door(26, load, 1.0, (25, 20_000), 1, room)), shares[-1] / shares.sum())


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
        shortest_first(arrival, work),
        split_servers(arrival, work, np.arange(len(work)) % servers),
        shortest_queue(arrival, work, servers),
        limited_room(arrival, work, servers, 1, 5)[1],
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
    short = shortest_first(arrival, service)
    assert busy(one.arrival, one.departure) == service.sum()
    assert busy(short.arrival, short.departure) == service.sum()
    assert busy(short.start, short.departure) == service.sum()
    assert short.departure.max() == one.departure.max()
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
def test_where_the_rule_decides_nothing_all_are_one_queue(case, servers):
    arrival, service = case
    n, expected = len(arrival), single_server(arrival, service)
    for served in (
        shortest_first(arrival, service, np.arange(n)),
        shortest_first(arrival, service, np.zeros(n)),
        split_servers(arrival, service, np.full(n, servers)),
        shortest_queue(arrival, service, 1),
    ):
        assert served.wait.tolist() == expected.wait.tolist()
        assert served.departure.tolist() == expected.departure.tolist()
    several = multi_server(arrival, service, servers)
    admitted, roomy = limited_room(arrival, service, servers, 6, 6 * n)
    assert admitted.all()
    assert roomy.departure.tolist() == several.departure.tolist()
    assert not split_servers(arrival, service, np.arange(n)).wait.any()
    assert not shortest_queue(arrival, service, n).wait.any()


@given(customers, st.integers(1, 4), sizes, st.integers(1, 15))
def test_all_who_are_admitted_fit_and_nobody_else_would(case, servers, size, room):
    arrival, service = case
    size = np.array(size[: len(arrival)])
    admitted, served = limited_room(arrival, service, servers, size, room)
    fcfs = multi_server(arrival[admitted], service[admitted], servers) if admitted.any() else served
    assert served.departure.tolist() == fcfs.departure.tolist()
    # Every customer counted once for each unit of its size.
    units = size[admitted]
    if units.size:
        assert peak(np.repeat(served.arrival, units), np.repeat(served.departure, units)) <= room
    earlier = np.cumsum(admitted) - admitted  # how many of the admitted came before
    for i in np.flatnonzero(~admitted):
        there = served.departure[: earlier[i]] > arrival[i]
        assert units[: earlier[i]][there].sum() + size[i] > room


def test_nobody_may_fit():
    admitted, served = limited_room([0.0, 1.0], [1.0, 1.0], 2, [3, 4], 2)
    assert admitted.tolist() == [False, False]
    for name in ("arrival", "start", "departure", "wait", "response"):
        assert getattr(served, name).shape == (0,)
    admitted, served = limited_room([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], 2, [3, 2, 1], 4)
    assert admitted.tolist() == [True, False, True]  # the smaller one still fits
    assert served.departure.tolist() == [1.0, 1.0]


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
    "shortest_first": lambda **k: shortest_first(**k),
    "split_servers": lambda **k: split_servers(**k, server=0),
    "shortest_queue": lambda **k: shortest_queue(**k, servers=2),
    "limited_room": lambda **k: limited_room(**k, servers=2, size=1, room=3),
    "processor_sharing": lambda **k: processor_sharing(**k),
    "batch_server": lambda arrival, service: batch_server(arrival, service, [1.0, 2.0]),
}


@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES.keys())
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"arrival": [0.0, 2.0, 1.9]}, ValueError, "arrival must be in order .*: got 1.9 at index"),
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
    "queue", [multi_server, shortest_queue, lambda a, s, servers: limited_room(a, s, servers, 1, 9)]
)
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
def test_servers_are_counted(queue, value, error, message):
    with pytest.raises(error, match=message):
        queue([0.0], [1.0], value)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        ([1.0, np.nan, 2.0], ValueError, "size must be finite .* at index 1"),
        ([1.0, 2.0, np.inf], ValueError, "size must be finite and at most .* at index 2"),
        (["1", "2", "3"], TypeError, "size must be a real number"),
        ([True, False, True], TypeError, "size must be a real number"),
        ([1, 2], ValueError, r"lengths must match: got arrival \(3,\), .*size \(2,\)"),
        ([], ValueError, r"lengths must match: got arrival \(3,\), .*size \(0,\)"),
    ],
)
def test_sizes_are_numbers(size, error, message):
    with pytest.raises(error, match=message):
        shortest_first([0.0, 1.0, 2.0], [1.0, 1.0, 1.0], size)
    with pytest.raises(error, match=message):
        limited_room([0.0, 1.0, 2.0], [1.0, 1.0, 1.0], 2, size, 9)


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        ([0, 1, -1], ValueError, "server must be >= 0: got -1 at index 2"),
        ([0, 0.5, 1], ValueError, "server must be a whole number: got 0.5 at index 1"),
        ([0, np.nan, 1], ValueError, "server must be finite .* at index 1"),
        ([0, 1], ValueError, r"lengths must match: got arrival \(3,\), .*server \(2,\)"),
        (["a", "b", "c"], TypeError, "server must be a real number"),
        (None, TypeError, "server must be a real number"),
    ],
)
def test_each_customer_is_sent_to_a_server(server, error, message):
    with pytest.raises(error, match=message):
        split_servers([0.0, 1.0, 2.0], [1.0, 1.0, 1.0], server)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": [1, 0, 1]}, ValueError, "size must be >= 1: got 0 at index 1"),
        ({"size": [1, 1, 1.5]}, ValueError, "size must be a whole number: got 1.5 at index 2"),
        ({"size": None}, TypeError, "size must be a real number"),
        ({"room": 0}, ValueError, "room must be >= 1: got 0"),
        ({"room": 2.5}, ValueError, "room must be a whole number: got 2.5"),
        ({"room": np.inf}, ValueError, "room must be finite"),
        ({"room": [3, 4]}, TypeError, "room must be one number"),
        ({"room": "3"}, TypeError, "room must be a real number"),
        (
            {"arrival": [[0.0, 1.0, 2.0]] * 2},
            ValueError,
            r"must be one run, .*: got shape \(2, 3\)",
        ),
        ({"size": np.ones((2, 3))}, ValueError, r"must be one run, .*: got shape \(2, 3\)"),
    ],
)
def test_a_room_is_counted(change, error, message):
    good = {"arrival": [0.0, 1.0, 2.0], "service": [1, 2, 1], "servers": 1, "size": 1, "room": 9}
    with pytest.raises(error, match=message):
        limited_room(**{**good, **change})


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


def test_servers_beyond_the_customers_are_not_built() -> None:
    arrival, service = [0.0, 0.0, 1.0], [2.0, 3.0, 1.0]
    for served in (
        multi_server(arrival, service, 10**15),
        shortest_queue(arrival, service, 10**15),
        limited_room(arrival, service, 10**15, 1, 3)[1],
    ):
        np.testing.assert_array_equal(served.wait, 0.0)


@pytest.mark.parametrize("cv", [1e-160, 1e-7, 31.0, 1e75])
def test_spreads_that_float64_cannot_draw_are_refused(cv: float) -> None:
    with pytest.raises(ValueError, match=r"cv must be 0, or from 1e-6 to 30"):
        gamma_times(np.random.default_rng(0), 1.0, cv, 3)
