"""Little's law and the exact counts, against counts by hand, brute force and the scheduler."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.occupancy import (
    batch_occupancy,
    batch_utilization,
    little_law_concurrency,
    occupancy_curve,
    peak,
    time_average,
    time_inside,
)
from lib.scheduling import replay

# Whole stamps from a small range: ties, touching and empty intervals are common, sums are exact.
intervals = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    min_size=1,
    max_size=25,
).map(lambda rows: np.array(rows).T)
windows = st.tuples(st.integers(-25, 30), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1]))
# The functions that take stamps, each with a window where it needs one.
sweeps = pytest.mark.parametrize(
    "sweep",
    [
        occupancy_curve,
        time_average,
        peak,
        lambda start, end: time_inside(start, end, (0, 1)),
    ],
)


def present(start, end, time):
    """The number of requests present at `time`, one by one."""
    return sum(1 for s, e in zip(start, end, strict=True) if s <= time < e)


# --- Little's law --------------------------------------------------------------------------


def test_little_counts_the_system_and_the_batch():
    # Eight slots in a queue at rho 0.9: the product with E2E passes the limit, the batch cannot.
    assert little_law_concurrency(4.0, 3.35) == pytest.approx(13.4, rel=1e-12)
    assert batch_occupancy(4.0, 3.35, 1.55) == pytest.approx(7.2, rel=1e-12)
    assert batch_occupancy(4.0, 3.35, 0.0) == little_law_concurrency(4.0, 3.35)
    assert batch_occupancy(4.0, 3.35, 3.35) == 0.0


def test_little_reproduces_a_reported_concurrency():
    """Case L09: a result file of 300 requests under a limit of 16."""
    concurrency = little_law_concurrency(300 / 91.824762128, 4.7602028687488)
    assert concurrency == pytest.approx(15.5520235232, abs=1e-9)
    assert concurrency <= 16


def test_little_takes_arrays():
    assert little_law_concurrency([1.0, 2.0], 3.0).tolist() == [3.0, 6.0]
    assert batch_occupancy(2.0, [3.0, 4.0], [[1.0], [2.0]]).tolist() == [[4.0, 6.0], [2.0, 4.0]]
    assert isinstance(little_law_concurrency(1, 2), float)
    assert isinstance(batch_occupancy(1, 2, 1), float)


@pytest.mark.parametrize("name", ["arrival_rate", "avg_latency"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "must be > 0: got 0"),
        (-2.0, ValueError, "must be > 0: got -2"),
        ([1.0, np.nan], ValueError, "must be finite .*: got nan at index 1"),
        (np.inf, ValueError, "must be finite .*: got inf"),
        ("1", TypeError, "must be a real number"),
        (True, TypeError, "must be a real number"),
        (None, TypeError, "must be a real number"),
    ],
)
def test_little_refuses_bad_input(name, value, error, message):
    arguments = {"arrival_rate": 1.0, "avg_latency": 1.0, name: value}
    with pytest.raises(error, match=f"{name} {message}"):
        little_law_concurrency(**arguments)
    with pytest.raises(error, match=f"{name} {message}"):
        batch_occupancy(**arguments, avg_queue_wait=0.0)


def test_batch_occupancy_refuses_a_wait_it_cannot_subtract():
    with pytest.raises(ValueError, match=r"avg_queue_wait must be <= avg_latency: got 3\.5$"):
        batch_occupancy(1.0, 3.0, 3.5)
    with pytest.raises(ValueError, match=r"avg_queue_wait must be <= .*: got 3\.5 at index 1"):
        batch_occupancy(1.0, [4.0, 3.0], 3.5)
    with pytest.raises(ValueError, match="avg_queue_wait must be >= 0: got -1"):
        batch_occupancy(1.0, 3.0, -1.0)
    with pytest.raises(ValueError, match="avg_queue_wait must be finite"):
        batch_occupancy(1.0, 3.0, np.nan)


def test_little_refuses_lengths_that_differ():
    with pytest.raises(ValueError, match=r"lengths must match: got arrival_rate \(2,\)"):
        little_law_concurrency([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"lengths must match: .* avg_queue_wait \(3,\)"):
        batch_occupancy(1.0, [1.0, 2.0], [0.0, 0.0, 0.0])


# --- batch utilisation ---------------------------------------------------------------------


def test_utilization_by_hand():
    assert batch_utilization([4, 2, 0, 2], 4) == 0.5
    assert batch_utilization((8,), 8) == 1.0
    assert batch_utilization(np.array([0, 0]), 8) == 0.0


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        ([], ValueError, r"must be a non-empty list of batch sizes: got shape \(0,\)"),
        (3, ValueError, r"must be a non-empty list of batch sizes: got shape \(\)"),
        ([[1, 2]], ValueError, r"must be a non-empty list of batch sizes: got shape \(1, 2\)"),
        ([8, 9, 7], ValueError, "must be <= max_batch_size 8: got 9 at index 1"),
        ([3, -1], ValueError, "must be >= 0: got -1 at index 1"),
        ([3, 2.5], ValueError, "must be a whole number: got 2.5 at index 1"),
        ([3, np.nan], ValueError, "must be finite .*: got nan at index 1"),
        ([True, False], TypeError, "must be a real number"),
        (["3"], TypeError, "must be a real number"),
    ],
)
def test_utilization_refuses_a_bad_history(history, error, message):
    with pytest.raises(error, match=f"active_batch_history {message}"):
        batch_utilization(history, 8)


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "must be >= 1: got 0"),
        (2.5, ValueError, "must be a whole number: got 2.5"),
        (np.nan, ValueError, "must be finite"),
        ([8, 8], TypeError, "must be one number"),
        (True, TypeError, "must be a real number"),
    ],
)
def test_utilization_refuses_a_bad_limit(limit, error, message):
    with pytest.raises(error, match=f"max_batch_size {message}"):
        batch_utilization([0], limit)


# --- the sweep -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0, 0.3], [0.3, 0.6], [0.6, 0.9]], 1),
        ([[0, 1], [1, 2]], 1),
        ([[1, 2], [0, 1]], 1),
        ([[0, 1.5], [1, 2]], 2),
        ([[5, 5]], 0),
    ],
)
def test_peak_counts_no_request_past_its_end(rows, expected):
    """Case L05: whole-second bins report 3 and 2 for the first two."""
    start, end = np.array(rows, dtype=float).T
    assert peak(start, end) == expected
    assert type(peak(start, end)) is int


def test_curve_by_hand():
    curve = occupancy_curve([0, 2, 1, 3, 4], [2, 5, 5, 3, 4])
    assert curve.times.tolist() == [0, 1, 2, 3, 4, 5]
    assert curve.counts.tolist() == [1, 2, 2, 2, 2, 0]


def test_time_average_by_hand():
    start, end = [0, 1, 6], [4, 3, 8]  # counts 1 2 2 1 0 0 1 1 over eight seconds
    assert time_average(start, end) == 1.0
    assert time_average(start, end, (0, 16)) == 0.5
    assert time_average(start, end, (2, 7)) == 4 / 5
    assert time_average(start, end, (4, 6)) == 0.0
    assert time_average(start, end, (1.5, 2.5)) == 2.0
    assert time_average(start, end, (-9, -8)) == 0.0
    assert time_inside(start, end, (2, 7)).tolist() == [2.0, 1.0, 1.0]


def test_peak_looks_inside_the_window_only():
    start, end = [0, 1, 6], [4, 3, 8]
    assert peak(start, end) == 2
    assert peak(start, end, (3, 7)) == 1  # the second request leaves as the window opens
    assert peak(start, end, (0, 1)) == 1  # and arrives as this one closes
    assert peak(start, end, (2, 2.5)) == 2
    assert peak(start, end, (4, 6)) == 0
    assert peak(start, end, (20, 30)) == 0


@given(intervals)
def test_curve_is_the_count_one_by_one(rows):
    start, end = rows
    curve = occupancy_curve(start, end)
    assert np.all(np.diff(curve.times) > 0)
    assert set(curve.times) == set(start) | set(end)
    assert curve.counts.tolist() == [present(start, end, time) for time in curve.times]
    assert curve.counts[-1] == 0


@given(intervals, windows)
def test_average_and_peak_are_those_of_the_counts_one_by_one(rows, window):
    start, end = rows
    # Stamps are whole, so the count is constant over each unit of time.
    counts = [present(start, end, time) for time in range(*window)]
    assert peak(start, end, window) == max(counts)
    # Areas are whole numbers, so one division is all that rounds.
    assert time_average(start, end, window) == sum(counts) / len(counts)
    assert peak(start, end) == max(present(start, end, time) for time in range(-20, 33))


@given(intervals, windows)
def test_area_is_the_sum_of_the_times_inside(rows, window):
    """The finite-window identity, eq-little-window, in any window."""
    start, end = rows
    t0, t1 = window
    assert time_average(start, end, window) == time_inside(start, end, window).sum() / (t1 - t0)


@given(intervals)
def test_area_of_a_whole_log_is_the_sum_of_the_sojourns(rows):
    start, end = rows
    span = end.max() - start.min()
    if span:
        assert time_average(start, end) == (end - start).sum() / span


def test_identity_holds_for_a_million_random_requests():
    rng = np.random.default_rng(1)
    start = np.cumsum(rng.exponential(0.1, 1_000_000))
    end = start + rng.exponential(3.0, start.size)
    window = (1_000.0, 90_000.0)
    # Stamps this close subtract exactly; pairwise sums of 2e6 terms round by at most about 22
    # units of 1.1e-16 a side.
    assert time_average(start, end, window) == pytest.approx(
        time_inside(start, end, window).sum() / (window[1] - window[0]), rel=1e-14
    )


def test_counts_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(2)
    start = rng.integers(0, 50, 200).astype(float)
    end = start + rng.integers(0, 9, 200)
    shuffled = rng.permutation(200)
    curve, again = occupancy_curve(start, end), occupancy_curve(start[shuffled], end[shuffled])
    assert np.array_equal(curve.times, again.times)
    assert np.array_equal(curve.counts, again.counts)


def test_a_window_cut_through_live_requests():
    """Case L11: four slots, always busy with requests of 4 s, seen for 10 s."""
    start = np.tile([0.0, 4.0, 8.0], 4)
    end = start + 4
    assert time_average(start, end, (0, 10)) == 4.0
    inside = end <= 10
    assert inside.sum() == 8
    rate = inside.sum() / 10
    assert little_law_concurrency(rate, (end - start)[inside].mean()) == pytest.approx(3.2)


def test_a_burst_beyond_capacity_fills_the_system():
    """Case L03: 1000 requests at once, 2.3 served a second; the queue drains in a straight line."""
    end = np.arange(1, 1001) / 2.3
    start = np.zeros(1000)
    assert end[-1] == pytest.approx(434.7826, abs=1e-3)
    assert np.mean(end - start) == pytest.approx(217.6087, abs=1e-3)
    assert peak(start, end) == 1000
    # From 1000 down to 1 in equal steps.
    assert time_average(start, end) == pytest.approx(500.5, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_sweep_agrees_with_the_schedulers_own_counts(seed, limit):
    rng = np.random.default_rng(seed)
    arrival = rng.integers(0, 60, 20)
    played = replay(
        arrival,
        rng.integers(1, 10, 20),
        rng.integers(1, 8, 20),
        max_batch_size=limit,
        prefill_chunk=4,
    )
    log = played.log
    span = log.last_token.max() - log.arrival.min()
    window = (log.arrival.min(), log.last_token.max())
    assert time_average(log.scheduled, log.last_token, window) == played.running.sum() / span
    assert time_average(log.arrival, log.last_token) == (
        (played.running + played.waiting).sum() / span
    )
    assert peak(log.scheduled, log.last_token) == played.running.max() <= limit


# --- bad stamps and windows ----------------------------------------------------------------


@sweeps
@pytest.mark.parametrize(
    ("start", "end", "error", "message"),
    [
        ([], [], ValueError, r"start must be a non-empty list of stamps: got shape \(0,\)"),
        (1.0, 2.0, ValueError, r"start must be a non-empty list of stamps: got shape \(\)"),
        ([[1.0]], [[2.0]], ValueError, r"start must be a non-empty list .*: got shape \(1, 1\)"),
        ([1.0, 2.0], [3.0], ValueError, r"lengths must match: got start \(2,\), end \(1,\)"),
        ([1.0, 2.0], 3.0, ValueError, r"lengths must match: got start \(2,\), end \(\)"),
        ([1.0, 2.0], [3.0, 1.5], ValueError, "end must not precede start: got 1.5 < 2 at index 1"),
        ([1.0, np.nan], [3.0, 4.0], ValueError, "start must be finite .*: got nan at index 1"),
        ([1.0, 2.0], [np.inf, 4.0], ValueError, "end must be finite .*: got inf at index 0"),
        ([1.0, 2.0], [None, 4.0], TypeError, "end must be a real number"),
        ([True], [2.0], TypeError, "start must be a real number"),
    ],
)
def test_sweeps_refuse_bad_stamps(sweep, start, end, error, message):
    with pytest.raises(error, match=message):
        sweep(start, end)


@pytest.mark.parametrize("sweep", [time_average, peak, time_inside])
@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        ((1.0, 1.0), ValueError, r"must have t0 < t1: got \(1, 1\)"),
        ((2.0, 1.0), ValueError, r"must have t0 < t1: got \(2, 1\)"),
        ((0.0, np.inf), ValueError, "must be finite .*: got inf at index 1"),
        ((np.nan, 1.0), ValueError, "must be finite .*: got nan at index 0"),
        ((1.0,), ValueError, r"must be a pair \(t0, t1\): got shape \(1,\)"),
        (5.0, ValueError, r"must be a pair \(t0, t1\): got shape \(\)"),
        (("a", "b"), TypeError, "must be a real number"),
    ],
)
def test_sweeps_refuse_a_bad_window(sweep, window, error, message):
    with pytest.raises(error, match=f"window {message}"):
        sweep([0.0], [1.0], window)


def test_no_average_over_no_time():
    with pytest.raises(ValueError, match="end must come after start somewhere: all stamps are 5"):
        time_average([5.0, 5.0], [5.0, 5.0])
