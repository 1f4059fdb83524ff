"""The common record: missing values stay missing, rows stay in order, nothing is invented."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib.record import STAMPS, TOKENS, RequestLog

NAN = float("nan")
FULL = {
    "arrival": [0.0, 1.0],
    "queued": [0.0, 1.5],
    "scheduled": [0.5, 2.0],
    "prefill_end": [1.0, 3.0],
    "first_token": [1.0, 3.5],
    "last_token": [3.0, 3.5],
    "input_tokens": [7, 8],
    "output_tokens": [5, 1],
}
NEEDED = {name: FULL[name] for name in ("arrival", *TOKENS)}


def test_every_column_becomes_an_array():
    log = RequestLog(**FULL)
    assert len(log) == 2
    for name, values in FULL.items():
        column = log.column(name)
        assert column.dtype == np.float64
        assert_array_equal(column, values)
    assert_array_equal(log.succeeded, [True, True])
    assert_array_equal(log.request_id, [0, 1])
    assert log.shared_clock is True


def test_a_column_left_out_is_missing_not_zero():
    log = RequestLog(**NEEDED)
    for name in set(FULL) - set(NEEDED):
        assert_array_equal(getattr(log, name), [NAN, NAN])
        with pytest.raises(
            ValueError, match=f"{name} is missing for 2 of 2 requests, the first at index 0"
        ):
            log.column(name)


def test_a_value_left_out_is_missing():
    log = RequestLog(**{**FULL, "first_token": [1.0, NAN], "output_tokens": [5, NAN]})
    for name in ("first_token", "output_tokens"):
        with pytest.raises(ValueError, match=f"{name} is missing for 1 of 2 .* at index 1"):
            log.column(name)
    with pytest.raises(ValueError, match=r"name must be a column \(arrival, .*: got 'speed'"):
        log.column("speed")


@pytest.mark.parametrize("name", FULL)
def test_columns_have_one_length(name):
    with pytest.raises(ValueError, match=r"must have one value a request: got shape \(.,\) for"):
        RequestLog(**{**FULL, name: [9.0, 9.0, 9.0]})
    with pytest.raises(ValueError, match="must have one value a request: got shape"):
        RequestLog(**{**FULL, name: 9.0})


@pytest.mark.parametrize("name", FULL)
def test_columns_are_numbers(name):
    with pytest.raises(TypeError, match=f"{name} must be a real number"):
        RequestLog(**{**FULL, name: ["1", "2"]})
    with pytest.raises(TypeError, match=f"{name} must be a plain array: a masked array"):
        RequestLog(**{**FULL, name: np.ma.array(FULL[name])})
    for bad in (np.inf, -np.inf, 1e300):
        with pytest.raises(ValueError, match=f"{name} must be finite.*: got .* at index 1"):
            RequestLog(**{**FULL, name: [FULL[name][0], bad]})


def test_arrivals_are_needed():
    with pytest.raises(TypeError, match=r"arrival must be a real number.*: got None"):
        RequestLog(**{**FULL, "arrival": None})
    with pytest.raises(TypeError, match="arrival"):
        RequestLog(input_tokens=[1], output_tokens=[1])


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("bad", [-1, 0.5, 2**53])
def test_tokens_are_counts(name, bad):
    with pytest.raises(
        ValueError,
        match=rf"{name} must be a whole number >= 0, .*: got {re.escape(f'{bad:.12g}')} at index 1",
    ):
        RequestLog(**{**FULL, name: [1, bad]})
    assert_array_equal(RequestLog(**{**FULL, name: [0, 1]}).column(name), [0, 1])


@pytest.mark.parametrize(("before", "after"), list(pairwise(STAMPS)))
def test_stamps_follow_each_other(before, after):
    late = {**FULL, **{name: [9.0, 9.0] for name in STAMPS[STAMPS.index(after) + 1 :]}}
    limit = FULL[before][1]
    with pytest.raises(
        ValueError,
        match=f"{after} must not precede {before}: got {limit - 0.5:g} < {limit:g} at index 1",
    ):
        RequestLog(**{**late, after: [9.0, limit - 0.5]})


def test_a_missing_stamp_does_not_hide_disorder():
    with pytest.raises(ValueError, match=r"last_token must not precede arrival: got 0\.5 < 1"):
        RequestLog(**NEEDED, last_token=[0.5, 0.5])
    with pytest.raises(ValueError, match="last_token must not precede scheduled: got 1 < 2 at"):
        RequestLog(**NEEDED, scheduled=[NAN, 2.0], last_token=[0.0, 1.0])


def test_succeeded_is_bool():
    assert_array_equal(RequestLog(**FULL, succeeded=[True, False]).succeeded, [True, False])
    with pytest.raises(TypeError, match="succeeded must be bool: got int64"):
        RequestLog(**FULL, succeeded=np.array([1, 0], np.int64))
    with pytest.raises(ValueError, match="succeeded must have one value a request"):
        RequestLog(**FULL, succeeded=[True])
    with pytest.raises(ValueError, match="request_id must have one value a request"):
        RequestLog(**FULL, request_id=["a"])


def test_where():
    log = RequestLog(**FULL, request_id=["a", "b"], shared_clock=False, succeeded=[False, True])
    second = log.where(log.arrival > 0)
    assert len(second) == 1
    assert second.request_id == ["b"]
    assert second.succeeded == [True]
    assert second.shared_clock is False
    for name, values in FULL.items():
        assert_array_equal(second.column(name), values[1:])
    for bad in ([True], [0, 1], np.array([1.0, 0.0])):
        with pytest.raises(ValueError, match=r"mask must be bool of shape \(2,\): got "):
            log.where(bad)


def test_the_record_keeps_its_own_copy():
    mine = np.array([0.0, 1.0])
    log = RequestLog(**{**FULL, "arrival": mine})
    mine[:] = 99
    assert_array_equal(log.arrival, [0, 1])
    with pytest.raises(AttributeError):
        log.arrival = mine


def test_metrics_of_the_requests_that_succeeded():
    log = RequestLog(
        arrival=[0.0, 1.0, 2.0],
        input_tokens=[4, 4, 4],
        output_tokens=[5, NAN, 1],
        first_token=[1.0, NAN, 4.0],
        last_token=[3.0, NAN, 4.0],
        succeeded=[True, False, True],
    )
    metrics = log.metrics()
    assert_array_equal(metrics.request_id, [0, 2])
    assert_array_equal(metrics.output_tokens, [5, 1])
    assert_array_equal(metrics.ttft, [1, 2])
    assert_array_equal(metrics.tpot, [0.5, 0])
    assert_array_equal(metrics.e2e_latency, [3, 2])
    with pytest.raises(ValueError, match="first_token is missing for 1 of 3"):
        RequestLog(**{n: getattr(log, n) for n in ("first_token", "last_token", *NEEDED)}).metrics()


def test_a_done_request_without_a_first_token_yields_no_ttft():
    # A completed row whose first token was never seen (sgl-project/sglang#12389): E2E stays
    # known, TTFT is refused, and no default 0 stands in for it.
    log = RequestLog(
        arrival=[0.0], input_tokens=[9], output_tokens=[1000], last_token=[4.7602028687]
    )
    assert log.column("last_token") - log.column("arrival") == 4.7602028687
    with pytest.raises(ValueError, match="first_token is missing for 1 of 1"):
        log.metrics()


def test_an_empty_log():
    log = RequestLog(arrival=[], input_tokens=[], output_tokens=[])
    assert len(log) == 0
    assert log.column("last_token").shape == (0,)
    assert log.metrics().ttft.shape == (0,)


@given(st.lists(st.lists(st.floats(0, 1e6) | st.just(NAN), min_size=5, max_size=5), max_size=6))
def test_rows_are_accepted_exactly_when_their_known_stamps_are_in_order(rows):
    arrival = np.zeros(len(rows))
    later = np.array(rows).reshape(len(rows), 5).T
    known = [[s for s in row if s == s] for row in rows]
    columns = dict(zip(STAMPS[1:], later, strict=True))
    tokens = np.ones(len(rows))

    def make():
        return RequestLog(arrival=arrival, input_tokens=tokens, output_tokens=tokens, **columns)

    if all(row == sorted(row) for row in known):
        assert len(make()) == len(rows)
    else:
        with pytest.raises(ValueError, match="must not precede"):
            make()


def test_ttft_parts_take_each_stamp_and_only_successes():
    log = RequestLog(
        arrival=[0.0, 1.0, 2.0],
        queued=[0.5, 1.5, 2.5],
        scheduled=[1.0, 3.0, 2.5],
        prefill_end=[3.0, 6.0, np.nan],
        first_token=[6.0, 10.0, np.nan],
        input_tokens=[5, 6, 7],
        output_tokens=[2, 2, np.nan],
        succeeded=[True, True, False],
    )
    parts = log.ttft_parts()
    assert parts.queue_wait.tolist() == [1.0, 2.0]
    assert parts.prefill.tolist() == [2.0, 3.0]
    assert parts.first_decode.tolist() == [3.0, 4.0]


def test_ttft_parts_name_the_missing_stamp():
    log = RequestLog(
        arrival=[0.0], scheduled=[1.0], first_token=[2.0], input_tokens=[5], output_tokens=[1]
    )
    with pytest.raises(ValueError, match="prefill_end is missing for 1 of 1 requests"):
        log.ttft_parts()


def test_work_done_for_aborted_requests_is_counted_apart():
    """Case L13: five requests of 602 prompt tokens, all given up before their first token."""
    log = RequestLog(
        arrival=np.zeros(5),
        input_tokens=np.full(5, 602.0),
        output_tokens=np.zeros(5),
        succeeded=np.zeros(5, dtype=bool),
    )
    assert log.input_tokens.sum() == 3010
    assert log.where(log.succeeded).input_tokens.sum() == 0


def test_a_last_token_before_the_first_is_refused_by_row():
    """Case F07: the second row's last token still holds its arrival."""
    with pytest.raises(
        ValueError, match=r"last_token must not precede first_token: got 0 < 0\.0237351 at index 1$"
    ):
        RequestLog(
            arrival=[0.0, 0.0],
            first_token=[0.01, 0.0237351],
            last_token=[0.02, 0.0],
            input_tokens=[5, 5],
            output_tokens=[2, 16],
        )
