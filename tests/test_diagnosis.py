"""The ledger read backwards: splits, blame, growth, and rules that find what was planted."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import benchmarks, diagnosis, engine_runs
from lib._validate import FloatArray
from lib.diagnosis import (
    FEWEST,
    RULES,
    Diagnosis,
    Ledger,
    Split,
    blame,
    diagnose,
    growth,
    ledger,
    lone_floor,
    pace,
    pool_full,
    share_interval,
    split_e2e,
    split_tpot,
    split_ttft,
    step_gaps,
)
from lib.goodput import attainment, wilson_interval
from lib.record import RequestLog
from lib.scheduling import TokenBudgetScheduler
from lib.simulator import simulate
from lib.step_time import StepTime
from lib.twin import limits

SLO: dict[str, Any] = {"ttft_slo": 0.25, "tpot_slo": 0.025}
LIMITS: dict[str, Any] = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 32,
    "num_kv_blocks": 2000,
    "block_size": 16,
    "max_model_len": 4096,
}
STEP = StepTime(((0.005, 1e-4, 1e-4, 1e-7, 0.0),))


def poisson(seed: int, rate: float, n: int = 300, prompt: float = 200, answer: float = 60) -> Any:
    rng = np.random.default_rng(seed)
    return RequestLog(
        arrival=np.cumsum(rng.exponential(1 / rate, n)),
        input_tokens=np.clip(rng.lognormal(np.log(prompt), 0.5, n), 1, 3000).astype(int),
        output_tokens=np.clip(rng.lognormal(np.log(answer), 0.5, n), 2, 900).astype(int),
    )


def served(log: RequestLog, step: StepTime = STEP, **changes: int) -> tuple[RequestLog, Any]:
    """A simulated run and what the ledger takes from it beside the record."""
    rule = TokenBudgetScheduler(**{**LIMITS, **changes})
    run = simulate(log, rule, step)
    steps = run.steps()
    itl, counts = step_gaps(run.requests, steps.start, steps.end)
    seats = {**LIMITS, **changes}["max_num_seqs"]
    return run.requests, {
        "max_batch_size": seats,
        "preemptions": run.preemptions,
        "itl": itl,
        "itl_counts": counts,
    }


def rules(found: Diagnosis) -> list[str]:
    return [verdict.rule for verdict in found.verdicts]


def why(found: Diagnosis, rule: str) -> tuple[str, str]:
    return next((s.kind, s.why) for s in found.silent if s.rule == rule)


# The floor ----------------------------------------------------------------------------------------


def test_floor_by_hand() -> None:
    tokens, seconds = [10, 20, 30, 20], [1.0, 4.0, 3.0, 2.5]
    # (20, 2.5) lies above the line from (10, 1) to (30, 3), which is 2 there.
    assert lone_floor(tokens, seconds, [5, 10, 20, 30, 40]).tolist() == [1, 1, 2, 3, 3]
    # A short prompt that took longer than a long one says nothing of the floor.
    assert lone_floor([10, 20, 30], [5.0, 1.0, 2.0], [10, 20, 25]).tolist() == [1, 1, 1.5]


points = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 50)), min_size=1, max_size=12).map(
    lambda rows: np.array(rows, float)
)


@given(points)
def test_floor_is_the_largest_convex_function_that_never_falls(rows: FloatArray) -> None:
    tokens, seconds = rows.T
    grid = np.arange(tokens.min(), tokens.max() + 1)
    floor = lone_floor(tokens, seconds, grid)
    assert np.all(lone_floor(tokens, seconds, tokens) <= seconds + 1e-9)
    assert np.all(np.diff(floor) >= -1e-9)
    assert np.all(np.diff(floor, 2) >= -1e-9)
    # Largest, by brute force: at each place the best line, level or rising, under all points.
    for at, value in zip(grid, floor, strict=True):
        slopes = [0.0]
        for x, y in rows:
            slopes += [(y - b) / (x - a) for a, b in rows if x > a and y > b]
        best = max(np.min(seconds + s * (at - tokens)) for s in slopes)
        assert value == pytest.approx(best, abs=1e-9)


@given(points, st.floats(0, 3), st.floats(0, 0.2))
def test_floor_is_never_below_a_true_one(rows: FloatArray, slope: float, bend: float) -> None:
    tokens = rows[:, 0]
    true = slope * tokens + bend * tokens**2
    assert np.all(lone_floor(tokens, true + rows[:, 1], tokens) >= true - 1e-9)


@pytest.mark.parametrize(
    ("tokens", "seconds", "at", "match"),
    [
        ([], [], [1], "tokens and seconds must be non-empty"),
        ([1, 2], [1.0], [1], "of one length"),
        ([1], [-1.0], [1], "seconds must be >= 0: got -1"),
        ([1], [np.nan], [1], "seconds must be finite"),
        ([1], [1.0], [-1], "at must be >= 0"),
    ],
)
def test_floor_refuses(tokens: Any, seconds: Any, at: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        lone_floor(tokens, seconds, at)


# Splits -------------------------------------------------------------------------------------------


def by_hand() -> RequestLog:
    """One seat. The second waits for it, and its prefill of 1 s is stretched to 3 s."""
    return RequestLog(
        arrival=np.array([0.0, 1.0, 20.0]),
        scheduled=np.array([0.0, 6.0, 20.0]),
        prefill_end=np.array([1.0, 9.0, 22.0]),
        first_token=np.array([1.0, 9.5, 22.0]),
        last_token=np.array([6.0, 12.5, 23.0]),
        input_tokens=np.array([10, 10, 20]),
        output_tokens=np.array([6, 3, 2]),
    )


def test_splits_by_hand() -> None:
    log = by_hand()
    ttft = split_ttft(log, max_batch_size=1)
    assert ttft.floor.tolist() == [1, 1, 2]
    assert {k: v.tolist() for k, v in ttft.excess.items()} == {
        "seats": [0, 5, 0],
        "queue": [0, 0, 0],
        "squeeze": [0, 2, 0],
        "first decode": [0, 0.5, 0],
    }
    assert ttft.alone.tolist() == [1, 2]  # the second met the first
    itl = [1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.0]
    tpot = split_tpot(log, itl=itl, itl_counts=[5, 2, 1])
    assert tpot.floor.tolist() == [1, 1, 1]
    assert tpot.excess["batch"].tolist() == [0, 0.5, 0]
    assert tpot.excess["stalls"].tolist() == [0, 0, 0]
    e2e = split_e2e(ttft, tpot, log.output_tokens)
    assert e2e.total.tolist() == [6, 11.5, 3]
    assert e2e.excess["batch"].tolist() == [0, 1, 0]


def test_the_wait_is_for_a_seat_only_while_the_batch_is_full() -> None:
    log = RequestLog(
        arrival=np.array([0.0, 1.0]),
        scheduled=np.array([0.0, 8.0]),
        first_token=np.array([1.0, 9.0]),
        last_token=np.array([6.0, 10.0]),
        input_tokens=np.array([1, 1]),
        output_tokens=np.array([2, 2]),
    )
    excess = split_ttft(log, max_batch_size=1).excess
    assert excess["seats"].tolist() == [0, 5]
    assert excess["queue"].tolist() == [0, 2]
    assert split_ttft(log, max_batch_size=2).excess["seats"].tolist() == [0, 0]
    assert list(split_ttft(log).excess) == ["wait", "squeeze"]
    blind = replace(log, scheduled=np.array([0.0, np.nan]))
    assert list(split_ttft(blind).excess) == ["delay"]
    assert split_ttft(blind).excess["delay"].tolist() == [0, 7]


def test_an_unloaded_run_lowers_the_floor() -> None:
    log = by_hand()
    lone = RequestLog(
        arrival=np.array([0.0]),
        scheduled=np.array([0.0]),
        prefill_end=np.array([0.5]),
        first_token=np.array([0.5]),
        last_token=np.array([1.0]),
        input_tokens=np.array([10]),
        output_tokens=np.array([3]),
    )
    assert split_ttft(log, unloaded=lone).floor.tolist() == [0.5, 0.5, 2]
    assert split_tpot(log, unloaded=lone).floor.tolist()[1] == 0.25
    assert split_ttft(log, unloaded=lone).alone.tolist() == [1, 2, 0.5]


def test_preempted_requests_have_their_own_entry() -> None:
    log = RequestLog(
        arrival=np.zeros(3),
        first_token=np.ones(3),
        last_token=np.array([6.0, 9.0, 8.0]),
        input_tokens=np.full(3, 10),
        output_tokens=np.full(3, 6),
    )
    gaps: dict[str, Any] = {
        "itl": [1.0] * 5 + [1.0, 1.0, 1.0, 1.0, 4.0] + [1.0, 1.0, 1.0, 1.0, 3.0],
        "itl_counts": [5, 5, 5],
    }
    excess = split_tpot(log, preemptions=[0, 1, 0], **gaps).excess
    assert excess["batch"].tolist() == [0, 0, 0]
    assert excess["stalls"] == pytest.approx([0, 0, 0.4])
    assert excess["preempted"] == pytest.approx([0, 0.6, 0])
    assert list(split_tpot(log, preemptions=3, **gaps).excess) == ["batch", "stalls"]
    assert list(split_tpot(log).excess) == ["decode"]


@pytest.mark.parametrize("seed", range(4))
def test_splits_add_up_to_what_the_stamps_say(seed: int) -> None:
    log, known = served(poisson(seed, 6.0), max_num_seqs=8, num_kv_blocks=300)
    seats = known.pop("max_batch_size")
    ttft, tpot = split_ttft(log, max_batch_size=seats), split_tpot(log, **known)
    whole = split_e2e(ttft, tpot, log.output_tokens)
    m = log.metrics()
    for split, value in ((ttft, m.ttft), (tpot, m.tpot), (whole, m.e2e_latency)):
        assert np.allclose(split.total, value, rtol=0, atol=1e-9)
        assert min(each.min() for each in split.excess.values()) >= 0
        assert split.floor.min() >= 0


def test_one_token_answers_have_no_gap() -> None:
    log = by_hand().where(np.array([True, True, True]))
    log = replace(log, output_tokens=np.array([6, 3, 1]), last_token=np.array([6.0, 12.5, 22.0]))
    split = split_tpot(log)
    assert split.total.tolist() == [1, 1.5, 0]


def test_pace_is_the_median_gap() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 9, 200)
    gaps = rng.exponential(1.0, counts.sum())
    each = np.split(gaps, np.cumsum(counts)[:-1])
    expected = [np.median(x) if x.size else np.nan for x in each]
    assert np.array_equal(pace(gaps, counts), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("gaps", "counts", "match"),
    [
        ([1.0], [2], "itl_counts must add up to the number of gaps, 1: got 2"),
        ([-1.0], [1], "itl must be >= 0"),
        ([1.0], [0.5], "itl_counts must be a whole number"),
        ([np.nan], [1], "itl must be finite"),
    ],
)
def test_pace_refuses(gaps: Any, counts: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        pace(gaps, counts)


def test_step_gaps_are_the_steps_between_first_and_last_token() -> None:
    log = by_hand()
    end = np.array([1.0, 3.0, 6.0, 9.5, 11.0, 12.5, 22.0, 23.0])
    start = np.array([0.0, 1.0, 3.0, 6.0, 9.5, 11.0, 20.0, 22.0])
    gaps, counts = step_gaps(log, start, end)
    assert counts.tolist() == [2, 2, 1]
    assert gaps.tolist() == [2, 3, 1.5, 1.5, 1]
    failed = replace(log, succeeded=np.array([True, False, True]))
    assert step_gaps(failed, start, end)[1].tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="start and end must be non-empty"):
        step_gaps(log, [], [])
    with pytest.raises(ValueError, match="end must be >= start"):
        step_gaps(log, [1.0], [0.5])


def test_splits_refuse() -> None:
    log = by_hand()
    with pytest.raises(TypeError, match="requests must be of type RequestLog"):
        split_ttft([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unloaded must be of type RequestLog"):
        split_tpot(log, unloaded=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="first_token is missing for 3 of 3"):
        split_ttft(replace(log, first_token=np.full(3, np.nan)))
    with pytest.raises(ValueError, match="itl_counts must have one value a request: got 1"):
        split_tpot(log, itl=[1.0], itl_counts=[1])
    with pytest.raises(ValueError, match="lengths must match: got first"):
        split_e2e(split_ttft(log), split_tpot(log), [1, 2])


# Blame --------------------------------------------------------------------------------------------


def test_blame_by_hand() -> None:
    split = Split(
        np.array([1.0, 1, 1, 1, 5]),
        {"wait": np.array([0.0, 4, 2, 3, 9]), "squeeze": np.array([1.0, 1, 3, 3, 0])},
    )
    named = blame(split, 3.0)  # totals 2, 6, 6, 7, 14
    assert {k: v.tolist() for k, v in named.items()} == {
        "floor": [False, False, False, False, True],
        "wait": [False, True, False, False, False],
        "squeeze": [False, False, True, False, False],
        "several": [False, False, False, True, False],
    }


entries = st.lists(st.integers(0, 20), min_size=3, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 20), entries), min_size=1, max_size=8), st.integers(1, 40))
def test_blame_names_what_would_have_helped(rows: list[Any], limit: int) -> None:
    """Against the definition: take each entry away in turn and look."""
    floor = np.array([row[0] for row in rows], float)
    table = np.array([row[1] for row in rows], float).T
    split = Split(floor, dict(zip("abc", table, strict=True)))
    named = blame(split, limit)
    late = split.total > limit
    assert np.array_equal(np.sum(list(named.values()), axis=0), late)  # one name each
    for i in np.flatnonzero(late):
        helps = [split.total[i] - entry[i] <= limit for entry in table]
        name = next(key for key, mask in named.items() if mask[i])
        if floor[i] > limit:
            assert name == "floor"
            assert not any(helps)
        elif name == "several":
            assert not any(helps)
        else:
            j = "abc".index(name)
            assert helps[j]
            assert table[j, i] == table[:, i].max()


def test_blame_refuses() -> None:
    split = Split(np.array([1.0]), {"a": np.array([1.0])})
    for limit in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="limit must be"):
            blame(split, limit)


# Intervals ----------------------------------------------------------------------------------------


def test_interval_is_at_least_wilsons_and_sees_clusters() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.random(400) < 0.8
    clustered = np.sort(mixed)  # the same share, in one block
    low, high = wilson_interval(mixed.sum(), 400)
    for hits in (mixed, clustered):
        got = share_interval(hits)
        assert got[0] <= low
        assert got[1] >= high
    assert np.ptp(share_interval(clustered)) > 3 * np.ptp(share_interval(mixed))
    assert share_interval(np.full(40, True))[1] == 1
    assert share_interval(np.full(40, True))[0] == pytest.approx(float(wilson_interval(40, 40)[0]))


def test_interval_refuses() -> None:
    with pytest.raises(ValueError, match="hits must be 20 values or more"):
        share_interval(np.full(FEWEST - 1, True))
    with pytest.raises(TypeError, match="hits must be bool"):
        share_interval(np.ones(30))  # type: ignore[arg-type]


# Growth -------------------------------------------------------------------------------------------


def test_growth_is_what_comes_less_what_goes() -> None:
    """A clock: 10 come a second, 6 leave."""
    arrival = np.arange(1000) / 10
    left = np.maximum.accumulate(np.arange(1000) / 6 + 0.3)
    found = growth(arrival, left)
    assert found.value == pytest.approx(4.0, abs=0.05)
    assert found.arrived == pytest.approx(10.0, abs=0.05)
    assert found.left == pytest.approx(6.0, abs=0.05)
    assert found.low > 3.5
    still = growth(arrival, arrival + 0.25)
    assert still.value == pytest.approx(0.0, abs=0.05)
    assert still.low <= 0 <= still.high


def test_growth_does_not_take_the_filling_of_an_idle_engine_for_a_backlog() -> None:
    """Everybody stays 30 s and nobody waits: from 0 to 300 requests, and then level."""
    arrival = np.arange(1000) / 10
    found = growth(arrival, arrival + 30)
    assert found.start == 60 - 0.1  # who came before 30 s has left
    assert found.value == pytest.approx(0.0, abs=0.05)
    with pytest.raises(ValueError, match="arrival must hold 20 requests or more from"):
        growth(arrival[:400], arrival[:400] + 30)
    assert growth(arrival[:400], arrival[:400] + 30, since=0.0).low > 0  # a wrong window says so


def test_growth_errs_as_rarely_as_its_interval_says() -> None:
    """M/M/1 from the empty state: at a load of 0.8 it must not speak, at 1.3 it must."""
    from lib.queue_sim import single_server

    rng = np.random.default_rng(1)
    said = {}
    for load in (0.8, 0.95, 1.3):
        arrival = np.cumsum(rng.exponential(1.0, (200, 400)), axis=1)
        run = single_server(arrival, rng.exponential(load, (200, 400)))
        said[load] = sum(
            growth(a, d).low > 0 for a, d in zip(run.arrival, run.departure, strict=True)
        )
    assert max(said[0.8], said[0.95]) <= 12  # 2.5 % of 200 is 5, and three standard errors are 7
    assert said[1.3] >= 150


def test_growth_refuses() -> None:
    with pytest.raises(ValueError, match="start must be a non-empty list"):
        growth([], [])
    with pytest.raises(ValueError, match="lengths must match"):
        growth([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="since must be finite"):
        growth(np.arange(50.0), np.arange(50.0) + 1, since=np.nan)


# The ledger ---------------------------------------------------------------------------------------


def test_ledger_of_a_run() -> None:
    log, known = served(poisson(1, 4.0))
    book = ledger(log, **SLO, **known)
    m = log.metrics()
    assert (book.requests, book.failed, book.preemptions) == (300, 0, 0)
    assert book.mean_ttft == pytest.approx(m.ttft.mean())
    assert book.mean_tpot == pytest.approx(m.tpot.mean())
    assert book.mean_e2e == pytest.approx(m.e2e_latency.mean())
    assert sum(book.entries.values()) == pytest.approx(book.mean_e2e)
    span = log.last_token.max() - log.arrival.min()
    assert book.throughput == pytest.approx(300 / span)
    assert book.in_system == pytest.approx(m.e2e_latency.sum() / span)  # Little
    stay = (log.last_token - log.scheduled).sum()
    assert book.in_batch == pytest.approx(
        stay / (log.last_token.max() - log.scheduled.min()), rel=1e-9
    )
    share = attainment(m, **SLO)
    assert book.slo is not None
    assert (book.slo.kept, book.slo.judged) == (share.good, share.judged)
    assert book.goodput == pytest.approx(share.good / span)
    assert book.ttft is not None
    assert book.ttft.kept == attainment(m, ttft_slo=0.25).good
    assert sum(book.ttft.late.values()) == 300 - book.ttft.kept
    assert book.e2e is not None
    assert book.e2e.limit is None
    both = m.e2e_latency <= 0.25 + (m.output_tokens - 1) * 0.025 + 1e-9
    assert book.e2e.kept == both.sum()
    assert ledger(log, duration=1000.0).throughput == 0.3


def test_failed_requests_miss_the_slo_and_nothing_else() -> None:
    log, _ = served(poisson(1, 2.0))
    lost = np.arange(300) % 3 == 0
    nothing: dict[str, Any] = {
        name: np.where(lost, np.nan, getattr(log, name))
        for name in ("scheduled", "prefill_end", "first_token", "last_token", "output_tokens")
    }
    book = ledger(replace(log, succeeded=~lost, **nothing), **SLO)
    assert (book.requests, book.failed) == (200, 100)
    assert book.ttft is not None
    assert book.ttft.judged == 200
    assert book.slo is not None
    assert (book.slo.judged, book.slo.kept) == (300, 200)
    assert rules(diagnose(book)) == ["goodput"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ttft_slo": 0.0}, "ttft_slo must be > 0: got 0"),
        ({"tpot_slo": np.nan}, "tpot_slo must be finite"),
        ({"e2e_slo": -1.0}, "e2e_slo must be > 0: got -1"),
        ({"target": 90}, "target must be between 0 and 1, both left out: got 90"),
        ({"duration": 0.0}, "duration must be > 0"),
        ({"max_batch_size": 0}, "max_batch_size must be >= 1: got 0"),
        ({"max_batch_size": 2.5}, "max_batch_size must be a whole number"),
        ({"preemptions": [1, 2]}, "preemptions must be one number or one a request"),
        ({"preemptions": -1}, "preemptions must be >= 0"),
        ({"pool_full": 1.1}, "pool_full must be a share, 0 to 1: got 1.1"),
        ({"pool_full": -0.1}, "pool_full must be >= 0"),
        ({"step_floor": 0.0}, "step_floor must be > 0"),
        ({"itl": [0.1]}, "itl and itl_counts must be given together"),
        ({"itl": [0.1], "itl_counts": [1]}, "itl_counts must have one value a request"),
        ({"max_batch_size": 1}, "max_batch_size must be >= [0-9]+, the most in the batch"),
    ],
)
def test_ledger_refuses(changes: dict[str, Any], match: str) -> None:
    log, _ = served(poisson(1, 4.0, n=40))
    with pytest.raises(ValueError, match=match):
        ledger(log, **changes)


def test_ledger_refuses_what_is_no_run() -> None:
    log, _ = served(poisson(1, 4.0, n=40))
    with pytest.raises(TypeError, match="requests must be of type RequestLog"):
        ledger([log])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="requests must hold a completed one: got 40 rows"):
        ledger(replace(log, succeeded=np.full(40, False)))
    with pytest.raises(TypeError, match="of must be of type Ledger"):
        diagnose(log)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_batch_size must be a real number"):
        ledger(log, max_batch_size="8")  # type: ignore[arg-type]


# Silence ------------------------------------------------------------------------------------------


def test_every_rule_speaks_or_says_why_not() -> None:
    log, known = served(poisson(2, 4.0))
    for book in (ledger(log), ledger(log, **SLO), ledger(log, **SLO, **known)):
        found = diagnose(book)
        names = [v.rule for v in found.verdicts] + [s.rule for s in found.silent]
        assert sorted(names) == sorted(rule.name for rule in RULES)
        assert all(s.why and s.kind in ("not met", "not known") for s in found.silent)
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(c.text for rule in RULES for c in rule.when)


def test_no_slo_no_high() -> None:
    log, known = served(poisson(2, 4.0))
    found = diagnose(ledger(log, **known))
    assert not found.verdicts
    assert why(found, "seats") == (
        "not known",
        "TTFT high? ttft_slo is not given: without a limit nothing is high",
    )
    assert "no limit is given" in why(found, "goodput")[1]
    assert why(found, "overload")[0] == "not met"
    only = diagnose(ledger(log, ttft_slo=1e-4, **known))
    assert "tpot_slo is not given" in why(only, "queue")[1]


def test_too_few_requests() -> None:
    log, known = served(poisson(2, 200.0, n=FEWEST - 1))
    found = diagnose(ledger(log, ttft_slo=1e-4, tpot_slo=1e-4, **known))
    assert not found.verdicts
    assert "19 completed requests are too few: 20 are needed" in why(found, "saturated")[1]
    assert "arrival must hold 20 requests" in why(found, "overload")[1]


def test_missing_columns_are_named() -> None:
    log, _ = served(poisson(2, 4.0))
    thin = RequestLog(
        arrival=log.arrival,
        input_tokens=log.input_tokens,
        output_tokens=log.output_tokens,
        first_token=log.first_token,
    )
    book = ledger(thin, ttft_slo=0.01, tpot_slo=0.025)
    found = diagnose(book)
    assert book.missing["tpot"] == "last_token is missing for 300 of 300 requests"
    assert book.missing["e2e"] == "last_token is missing for 300 of 300 requests"
    assert "last_token" in why(found, "overload")[1]
    assert "last_token" in why(found, "delay")[1]
    apart = diagnose(ledger(replace(log, shared_clock=False), **SLO))
    assert "the rows share no clock" in why(apart, "overload")[1]
    wrong = ledger(replace(log, output_tokens=np.ones(300)), **SLO)
    assert wrong.missing["tpot"] == "output_tokens is too low for the stamps of 300 requests"
    no_prompt = ledger(replace(log, input_tokens=np.full(300, np.nan)), **SLO)
    assert "input_tokens is missing" in no_prompt.missing["ttft"]


def test_what_only_the_engine_knows_is_asked_for() -> None:
    log, known = served(poisson(1, 12.0), max_num_seqs=4)
    loose: dict[str, Any] = {"ttft_slo": 0.5, "tpot_slo": 0.05}
    assert rules(diagnose(ledger(log, **loose, **known)))[0] == "seats"
    no_seats = diagnose(ledger(log, **loose))
    assert "not split into seats" in why(no_seats, "seats")[1]
    assert "queue" in rules(no_seats)  # it waits; for what is not known
    ample = diagnose(ledger(log, **{**known, "max_batch_size": 300}, **loose))
    assert "queue" in rules(ample)
    assert why(ample, "KV pool") == (
        "not met",
        "requests thrown out, or the pool full while they wait? requests were thrown out 0 times",
    )
    client = replace(log, scheduled=np.full(300, np.nan), prefill_end=np.full(300, np.nan))
    blind = diagnose(ledger(client, **loose))
    assert "delay" in rules(blind)
    assert not {"seats", "queue", "squeeze"} & set(rules(blind))
    assert why(blind, "backlog") == (
        "not known",
        "more in the system than seats? max_batch_size is not given",
    )


def test_a_full_pool_is_seen_without_preemptions() -> None:
    log, known = served(poisson(1, 12.0), max_num_seqs=4)
    known |= {"max_batch_size": 300, "preemptions": None}
    loose: dict[str, Any] = {"ttft_slo": 0.5, "tpot_slo": 0.05}
    blind = diagnose(ledger(log, **known, **loose))
    assert why(blind, "KV pool")[0] == "not known"
    assert "neither preemptions nor pool_full is given" in why(blind, "KV pool")[1]
    for share, named in ((0.6, True), (0.5, False)):
        found = diagnose(ledger(log, pool_full=share, **known, **loose))
        assert ("KV pool" in rules(found)) is named
    assert "50% of all waiting passed while the KV pool was full" in why(found, "KV pool")[1]


def test_pool_full_by_hand() -> None:
    """Four sequences hold 0.8 of the pool: a fifth takes the rest, and 0.81 has no room for it."""
    assert pool_full([4, 4], [1, 3], [0.8, 0.81]) == 0.75
    assert pool_full([4, 4], [1, 0], [0.8, 0.81]) == 0.0
    assert pool_full([0, 1], [1, 1], [0.3, 0.51]) == 0.5  # of what size, with nobody there?


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([1], [0], [0.5]), "waiting must be > 0 in a sample: nobody waits"),
        (([1], [1, 2], [0.5]), "running, waiting and kv_use must be lists of one length"),
        ((1, 1, 0.5), "running, waiting and kv_use must be lists of one length"),
        (([1], [1], [1.5]), "kv_use must be a share of the pool, 0 to 1: got 1.5"),
        (([1], [1], [-0.1]), "kv_use must be >= 0"),
        (([1], [1], [np.nan]), "kv_use must be finite"),
        (([0.5], [1], [0.1]), "running must be a whole number"),
        (([1], [-1], [0.1]), "waiting must be >= 0"),
    ],
)
def test_pool_full_refuses(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        pool_full(*arguments)


def test_high_needs_the_interval_too() -> None:
    log, known = served(poisson(2, 4.0))
    book = ledger(log, **SLO, **known)
    assert book.ttft is not None
    for high, word in ((0.91, "not met"), (0.89, "")):
        unsure = replace(book, ttft=replace(book.ttft, kept=255, high=high, late={"queue": 45}))
        said = [s for s in diagnose(unsure).silent if s.rule == "queue"]
        assert [s.kind for s in said] == ([word] if word else [])


def test_a_limit_is_too_tight_only_if_a_lone_request_missed_it() -> None:
    """Never at rest: every floor is above the limit, and nobody was alone."""
    log, known = served(poisson(1, 12.0), max_num_seqs=4)
    early = log.arrival < log.arrival[20]
    busy = log.where(~early)
    known["itl"] = known["itl"][int(known["itl_counts"][early].sum()) :]
    known["itl_counts"] = known["itl_counts"][~early]
    known["preemptions"] = known["preemptions"][~early]
    tight = ledger(busy, ttft_slo=1e-3, tpot_slo=1e-4, step_floor=1e-5, **known)
    assert tight.tpot is not None
    assert tight.tpot.late["floor"] == tight.tpot.judged
    assert tight.tpot.late_alone == 0
    found = diagnose(tight)
    assert not {"TTFT limit", "TPOT limit", "memory", "lone step"} & set(rules(found))
    assert "late even alone? 0 requests" in why(found, "memory")[1]


# Planted causes -----------------------------------------------------------------------------------

SLOW = StepTime(((0.030, 1e-4, 1e-4, 1e-7, 0.0),))
LOOSE: dict[str, Any] = {"ttft_slo": 0.5, "tpot_slo": 0.025}
PLANTED: dict[str, dict[str, Any]] = {
    "seats": {"rate": 12.0, "limits": {"max_num_seqs": 4}},
    "KV pool": {"rate": 16.0, "limits": {"num_kv_blocks": 80}},
    "overload": {"rate": 40.0, "limits": {"max_num_seqs": 256, "num_kv_blocks": 20000}},
    "prompts": {"rate": 0.2, "long": 3000, "slo": {"ttft_slo": 0.2, "tpot_slo": 0.025}},
    "TTFT limit": {"rate": 1.0, "slo": {"ttft_slo": 0.008, "tpot_slo": 0.025}},
    "TPOT limit": {"rate": 1.0, "slo": {"ttft_slo": 0.5, "tpot_slo": 0.003}},
    "memory": {"rate": 1.0, "step": SLOW},
}


@pytest.mark.parametrize("cause", PLANTED)
@pytest.mark.parametrize("seed", range(3))
def test_the_first_verdict_names_what_was_planted(cause: str, seed: int) -> None:
    plan = PLANTED[cause]
    work = poisson(seed, plan["rate"])
    if "long" in plan:
        third = np.arange(300) % 3 == 0
        work = replace(work, input_tokens=np.where(third, plan["long"], work.input_tokens))
    step = plan.get("step", STEP)
    log, known = served(work, step, **plan.get("limits", {}))
    lone, _ = served(replace(poisson(99, 0.05, n=60)), step, **plan.get("limits", {}))
    book = ledger(log, **plan.get("slo", LOOSE), **known, step_floor=0.005, unloaded=lone)
    found = diagnose(book)
    assert found.verdicts[0].rule == cause
    assert all(found.verdicts[0].evidence)
    assert found.verdicts[0].refuted_by


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_run_has_no_verdict(seed: int) -> None:
    log, known = served(poisson(seed, 4.0))
    assert not diagnose(ledger(log, **LOOSE, **known)).verdicts


def test_without_the_bound_a_slow_step_is_not_told_from_a_tight_limit() -> None:
    log, known = served(poisson(1, 1.0), SLOW)
    lone, _ = served(poisson(99, 0.05, n=60), SLOW)
    found = diagnose(ledger(log, **LOOSE, **known, unloaded=lone))
    assert rules(found)[0] == "lone step"
    assert why(found, "memory")[0] == "not known"
    assert why(found, "TPOT limit")[0] == "not known"


# Real runs ----------------------------------------------------------------------------------------


def test_two_gpus() -> None:
    loose: dict[str, Any] = {"ttft_slo": 1.0, "tpot_slo": 0.05}
    found = {}
    for card in ("RTX4090", "RTXPRO6000"):
        run = engine_runs.load(f"gpu/{card}_Llama-3.1-8B")
        seats = limits(run)["max_num_seqs"]
        found[card] = diagnose(ledger(run.requests, **loose, max_batch_size=seats))
    # The logs: the RTX 4090's blocks are full with seats free, the other's 128 seats are taken.
    assert rules(found["RTX4090"]) == ["overload", "queue", "goodput"]
    assert rules(found["RTXPRO6000"])[:2] == ["seats", "overload"]


def test_a_server_under_rising_load() -> None:
    found = []
    for rate in (1, 2, 3, 4, 5, 6, 8):
        run = benchmarks.load(f"vllm/{rate}rps")
        assert run.requests is not None
        assert run.itl is not None
        assert run.itl_counts is not None
        book = ledger(
            run.requests,
            **SLO,
            itl=run.itl,
            itl_counts=run.itl_counts,
            duration=run.duration,
            max_batch_size=16,
        )
        assert book.goodput == pytest.approx(run.summary["request_goodput"], abs=1e-9)
        found.append(rules(diagnose(book)))
    assert found[:3] == [[], [], []]
    assert all("goodput" in names for names in found[3:])
    assert all("saturated" in names for names in found[4:])
    assert all("backlog" in names for names in found[5:])


def test_healthy_engine_runs_are_left_alone() -> None:
    for name in ("rate2", "rate4", "rate6", "budget2048_rate4"):
        run = engine_runs.load(f"cpu/{name}")
        assert run.steps is not None
        itl, counts = step_gaps(run.requests, run.steps.start, run.steps.end)
        seats = limits(run)["max_num_seqs"]
        book = ledger(run.requests, **SLO, max_batch_size=seats, itl=itl, itl_counts=counts)
        assert not diagnose(book).verdicts


def test_a_million_rows() -> None:
    rng = np.random.default_rng(1)
    n = 1_000_000
    arrival = np.cumsum(rng.exponential(0.01, n))
    scheduled = arrival + rng.exponential(0.05, n)
    prompt, answer = rng.integers(1, 4000, n), rng.integers(1, 400, n)
    first = scheduled + 0.01 + prompt * 1e-5 * rng.uniform(1, 1.5, n)
    log = RequestLog(
        arrival=arrival,
        input_tokens=prompt.astype(float),
        output_tokens=answer.astype(float),
        scheduled=scheduled,
        first_token=first,
        last_token=first + (answer - 1) * 0.01 * rng.uniform(1, 2, n),
    )
    began = time.perf_counter()
    book = ledger(log, ttft_slo=0.1, tpot_slo=0.03)
    assert rules(diagnose(book))
    assert time.perf_counter() - began < 60  # 4 s on two cores; a loop over rows takes minutes
    assert isinstance(book, Ledger)
    assert diagnosis.BATCHES * 2 == FEWEST
