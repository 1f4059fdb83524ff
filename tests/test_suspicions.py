"""Each fault is planted in a healthy run and found by its own detector; the healthy run is silent.

The faults are those of public bug reports: a client that waits for answers, a clock that slips, a
count that is not one.
"""

from dataclasses import replace

import numpy as np
import pytest

from lib import benchmarks
from lib.benchmarks import BenchmarkRun
from lib.record import RequestLog
from lib.suspicions import (
    DETECTORS,
    decode_by_means,
    suspicions,
    totals,
    tpot_word,
)

N = 300
RATE = 4.0


def healthy(seed: int = 1, n: int = N, **changes) -> BenchmarkRun:
    """Poisson arrivals at the rate asked for, one token a chunk, everything counted once."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / RATE, n))
    ttft = rng.uniform(0.1, 0.2, n)
    tokens = rng.integers(2, 60, n)
    gaps = [rng.uniform(0.01, 0.03, count - 1) for count in tokens]
    return run_of(arrival, ttft, gaps, **changes)


def run_of(arrival, ttft, gaps, succeeded=None, **changes) -> BenchmarkRun:
    decode = np.array([g.sum() for g in gaps])
    log = RequestLog(
        arrival=arrival,
        first_token=arrival + ttft,
        last_token=arrival + ttft + decode,
        input_tokens=np.full(len(arrival), 100.0),
        output_tokens=np.array([len(g) + 1.0 for g in gaps]),
        succeeded=succeeded,
    )
    run = BenchmarkRun(
        tool="csv",
        requests=log,
        itl=np.concatenate(gaps),
        itl_counts=np.array([len(g) for g in gaps]),
        request_rate=RATE,
        duration=float(log.last_token.max()),
    )
    return replace(run, **changes)


def names(run: BenchmarkRun) -> list[str]:
    return [suspicion.name for suspicion in suspicions(run)]


def seen(run: BenchmarkRun, name: str) -> str:
    return next(s.seen for s in suspicions(run) if s.name == name)


def stamps(log: RequestLog, **changes) -> RequestLog:
    """The record with some columns changed."""
    return replace(log, **changes)


# Silence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_healthy_run_is_silent(seed):
    assert names(healthy(seed)) == []


@pytest.mark.parametrize("n", [1, 2, 3, 10, 12, 20, 50])
def test_few_requests_are_silent(n):
    """Few times lie far apart and on no grid; few gaps carry no rate."""
    for seed in range(10):
        assert names(healthy(seed, n)) == []


def test_healthy_simulated_overload_is_silent():
    """An honest open loop beyond saturation: one server, a queue that grows."""
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(1 / RATE, N))
    free, begin = 0.0, np.empty(N)
    service = 0.4
    for i, at in enumerate(arrival):
        begin[i] = max(at, free)
        free = begin[i] + service
    gaps = [np.full(10, 0.03)] * N
    assert names(run_of(arrival, begin - arrival + 0.1, gaps)) == []


@pytest.mark.parametrize("rate", [1, 8])
def test_real_open_loop_shows_only_its_bins(rate):
    """vLLM's client really counts in whole seconds; its runs have no other fault."""
    assert names(benchmarks.load(f"vllm/{rate}rps")) == ["whole-second bins"]


def test_a_run_with_nothing_known_is_silent():
    assert names(BenchmarkRun(tool="vllm", requests=None)) == []
    missing = np.full(20, np.nan)
    log = RequestLog(arrival=np.arange(20.0), input_tokens=missing, output_tokens=missing)
    assert names(BenchmarkRun(tool="csv", requests=log)) == ["no first token"]


def test_all_failed_is_told_once():
    log = RequestLog(
        arrival=np.cumsum(np.random.default_rng(1).exponential(1, 50)),
        input_tokens=np.full(50, 9.0),
        output_tokens=np.full(50, np.nan),
        succeeded=np.full(50, False),
    )
    assert names(BenchmarkRun(tool="csv", requests=log)) == ["failed requests"]


# Planted faults -----------------------------------------------------------------------------------


def test_failed_requests():
    run = healthy()
    done = np.arange(N) % 10 != 3
    log = stamps(
        run.requests,
        succeeded=done,
        first_token=np.where(done, run.requests.first_token, np.nan),
        last_token=np.where(done, run.requests.last_token, np.nan),
    )
    run = replace(run, requests=log)
    assert names(run) == ["failed requests"]
    assert "30 of 300" in seen(run, "failed requests")
    assert "10 %" in seen(run, "failed requests")
    assert "p90" in suspicions(run)[0].why


def test_failed_requests_of_a_summary():
    run = BenchmarkRun(tool="vllm", requests=None, stated={"completed": 98.0, "failed": 2.0})
    assert "2 of 100" in seen(run, "failed requests")


@pytest.mark.parametrize("value", ["zero", "missing"])
def test_no_first_token(value):
    """Case T19: completed, TTFT exactly 0."""
    run = healthy()
    first = run.requests.first_token.copy()
    first[7] = run.requests.arrival[7] if value == "zero" else np.nan
    run = replace(run, requests=stamps(run.requests, first_token=first))
    assert names(run) == ["no first token"]
    assert "1 of 300" in seen(run, "no first token")
    assert "row 7" in seen(run, "no first token")


@pytest.mark.parametrize(("scale", "word"), [(1e3, "milliseconds were"), (1e-4, "seconds were")])
def test_units_slip(scale, word):
    """The time after the first token in another unit than the rest."""
    run = healthy()
    log = run.requests
    last = log.first_token + scale * (log.last_token - log.first_token)
    run = replace(run, requests=stamps(log, last_token=last), itl=None, itl_counts=None)
    found = {s.name: s for s in suspicions(run)}
    assert word in found["units slip"].why


def test_units_slip_of_a_summary():
    run = BenchmarkRun(tool="vllm", requests=None, stated={"tpot.mean": 18.9})
    assert names(run) == ["units slip"]
    run = BenchmarkRun(tool="vllm", requests=None, stated={"tpot.mean": 0.0189})
    assert names(run) == []


def test_clock_set_back_between_due_and_sent():
    run = healthy()
    due = run.requests.arrival - 1e-4
    due[5] += 2.0
    run = replace(run, due=due)
    assert names(run) == ["several clocks"]
    assert "1 of 300" in seen(run, "several clocks")


def test_two_clocks_in_one_file():
    run = healthy()
    shift = np.where(np.arange(N) < 120, 0.0, 5e4)
    log = run.requests
    moved = {c: getattr(log, c) + shift for c in ("arrival", "first_token", "last_token")}
    run = replace(run, requests=stamps(log, **moved), duration=None, request_rate=None)
    assert names(run) == ["several clocks"]
    assert "120 requests" in seen(run, "several clocks")


@pytest.mark.parametrize(("pause", "found"), [(17.9, []), (18.1, ["several clocks"])])
def test_a_long_gap_is_a_burst_or_another_run(pause, found):
    """Two halves of 1 s each: the gap is nine tenths of the run when it lasts 18 s."""
    half = np.linspace(0.0, 1.0, 15)
    arrival = np.concatenate([half, half + 1.0 + pause])
    rng = np.random.default_rng(3)
    gaps = [np.full(20, 0.02)] * 30
    run = run_of(arrival, rng.uniform(0.1, 0.2, 30), gaps, request_rate=None)
    assert names(run) == found
    if found:  # 18.1 s of 20.1
        assert "15 requests, then 18.1 s without one, then 15: 90.0%" in seen(run, "several clocks")


@pytest.mark.parametrize("grid", [0.01, 0.02])
def test_coarse_stamps(grid):
    run = healthy()
    log = run.requests
    wait = np.ceil((log.first_token - log.arrival) / grid) * grid
    decode = log.last_token - log.first_token
    first = log.arrival + wait
    run = replace(run, requests=stamps(log, first_token=first, last_token=first + decode))
    assert names(run) == ["coarse stamps"]
    assert f"{1000 * grid:g} ms" in seen(run, "coarse stamps")


def test_a_few_values_on_no_grid_are_silent():
    rng = np.random.default_rng(1)
    waits = rng.choice([0.1, 0.13, 0.175], N)
    gaps = [np.full(20, 0.02)] * N
    assert names(run_of(healthy().requests.arrival, waits, gaps)) == []


def closed(cap: int, n: int = 200, think: float = 1e-3) -> BenchmarkRun:
    """A client that sends the next request when an answer is there, never more than `cap`."""
    rng = np.random.default_rng(2)
    free = np.zeros(cap)
    arrival, gaps = np.empty(n), []
    for i in range(n):
        seat = int(free.argmin())
        arrival[i] = free[seat]
        gaps.append(rng.uniform(0.01, 0.03, rng.integers(20, 60)))
        free[seat] = arrival[i] + 0.15 + gaps[-1].sum() + think
    ttft = np.full(n, 0.15) + rng.uniform(0, 1e-3, n)
    return run_of(arrival, ttft, gaps, request_rate=None)


@pytest.mark.parametrize("cap", [4, 16])
def test_closed_loop_without_a_word(cap):
    run = closed(cap)
    assert names(run) == ["closed loop"]
    assert f"of at most {cap} requests" in seen(run, "closed loop")
    assert "the file names no limit" in seen(run, "closed loop")


def test_closed_loop_posing_as_a_rate():
    run = replace(closed(8), request_rate=100.0, max_concurrency=8)
    assert names(run) == ["not the rate asked for", "closed loop"]
    assert "limit is 8" in seen(run, "closed loop")


def test_open_loop_at_even_gaps_is_no_closed_loop():
    """As many in flight as a closed loop has, but the sends keep their own time."""
    arrival = 0.25 * np.arange(N)
    gaps = [np.full(49, 0.02)] * N
    rng = np.random.default_rng(1)
    assert names(run_of(arrival, rng.uniform(0.14, 0.15, N), gaps)) == []


def test_a_peak_at_the_end_is_no_closed_loop():
    """Forty requests one by one, then a few together whose successors happen to follow answers."""
    burst = 400.0 + np.array([0.0, 0.1, 0.2, 0.3, 1.201, 1.301, 1.401])
    arrival = np.concatenate([10.0 * np.arange(40), burst])
    waits = np.full(47, 0.2)
    gaps = [np.full(50, 0.02)] * 47
    assert names(run_of(arrival, waits, gaps, request_rate=None)) == []


def test_closed_loop_by_littles_law_on_a_summary():
    """200 requests asked at 10/s take 20 s; this run took 60 s, and no answer took 5."""
    said = {"completed": 200.0, "failed": 0.0, "duration": 60.0, "e2e.mean": 4.0, "e2e.max": 5.0}
    run = BenchmarkRun(tool="vllm", requests=None, stated=said, request_rate=10.0)
    assert names(run) == ["closed loop"]
    assert "held back" in seen(run, "closed loop")
    assert "13 in flight over the run" in seen(run, "closed loop")  # 200 x 4 s / 60 s
    assert "14 while it sent" in seen(run, "closed loop")  # 200 x 4 s / 56 s
    for change in ({"duration": 25.0}, {"e2e.max": 45.0}, {"failed": 1.0}):
        other = replace(run, stated=said | change)
        assert "closed loop" not in names(other)


def test_not_the_rate_asked_for():
    assert names(healthy(request_rate=2 * RATE)) == ["not the rate asked for"]
    assert names(healthy(request_rate=RATE / 2)) == ["not the rate asked for"]
    even = run_of(np.arange(21.0), np.full(21, 0.1), [np.full(9, 0.02)] * 21, request_rate=10.0)
    assert "10 requests/s were asked for, 1 were sent" in seen(even, "not the rate asked for")
    assert names(healthy(request_rate=float("inf"))) == []
    assert names(healthy(request_rate=1.1 * RATE)) == []  # 300 arrivals carry no 10 %


def test_all_at_once():
    rng = np.random.default_rng(1)
    arrival = np.sort(rng.uniform(0, 0.1, N))
    gaps = [np.full(20, 0.02)] * N
    run = run_of(arrival, rng.permutation(np.linspace(0.2, 60, N)), gaps, request_rate=None)
    assert names(run) == ["all at once"]


def test_real_burst_is_found():
    """GuideLLM was asked for 2 requests/s and sent all 70 within 0.53 s."""
    found = names(benchmarks.load("guidellm/2rps"))
    assert {"all at once", "not the rate asked for"} <= set(found)


def test_sent_late():
    run = healthy()
    late = np.full(N, 0.015)
    late[3] = 0.4
    run = replace(run, due=run.requests.arrival - late)
    assert names(run) == ["sent late"]
    assert "400 ms" in seen(run, "sent late")
    assert names(replace(run, due=run.requests.arrival - 1e-4)) == []


@pytest.mark.parametrize("cold", [1, 4])
def test_warm_up_inside(cold):
    """Case P07: the first requests pay for compilation."""
    run = healthy()
    log = run.requests
    extra = np.where(np.arange(N) < cold, 2.7, 0.0)
    first = log.first_token + extra
    run = replace(run, requests=stamps(log, first_token=first, last_token=log.last_token + extra))
    assert names(run) == ["warm-up inside"]
    assert f"the first {cold} of 300" in seen(run, "warm-up inside")


def test_slow_request_elsewhere_is_no_warm_up():
    run = healthy()
    log = run.requests
    extra = np.where(np.arange(N) == 50, 2.7, 0.0)
    run = replace(
        run,
        requests=stamps(
            log, first_token=log.first_token + extra, last_token=log.last_token + extra
        ),
    )
    assert names(run) == []


@pytest.mark.parametrize("each", [2, 5])
def test_fewer_stamps_than_tokens(each):
    run = healthy()
    tokens = each * run.requests.output_tokens
    run = replace(run, requests=stamps(run.requests, output_tokens=tokens))
    assert names(run) == ["fewer stamps than tokens"]
    assert f"{each} a chunk" in seen(run, "fewer stamps than tokens")


def test_first_token_among_the_gaps():
    """Case T05: as many gaps as tokens."""
    run = healthy()
    waits = run.requests.first_token - run.requests.arrival
    ends = np.cumsum(run.itl_counts) - run.itl_counts
    run = replace(run, itl=np.insert(run.itl, ends, waits), itl_counts=run.itl_counts + 1)
    assert names(run) == ["more stamps than tokens"]


def test_tpot_of_a_summary_that_contradicts_its_e2e():
    said = {
        "e2e.mean": 2.0,
        "ttft.mean": 0.5,
        "tpot.mean": 0.0075,
        "tpot.min": 0.005,
        "tpot.max": 0.01,
        "output_tokens": 10100.0,
        "completed": 100.0,
    }
    run = BenchmarkRun(tool="inference-perf", requests=None, stated=said)
    assert names(run) == ["TPOT contradicts E2E"]  # 1.5 s over 100 tokens is 15 ms
    assert "15 ms a token" in seen(run, "TPOT contradicts E2E")
    assert names(replace(run, stated=said | {"tpot.max": 0.02})) == []
    assert names(replace(run, tool="guidellm")) == []  # its TPOT is another thing


def test_chunks_read_together():
    run = healthy()
    bunched = np.where(np.arange(run.itl.size) % 2, 1e-6, run.itl)
    run = replace(run, itl=bunched)
    assert names(run) == ["chunks read together"]
    assert "50 %" in seen(run, "chunks read together")


def test_two_token_counts():
    """Case T17: the text encoded again has fewer tokens."""
    run = healthy()
    text = run.requests.output_tokens.copy()
    assert names(replace(run, text_tokens=text)) == []
    text[0] = 0
    found = replace(run, text_tokens=text)
    assert names(found) == ["two token counts"]
    assert "1 answers differ" in seen(found, "two token counts")
    for share in (0.9, 1.1):
        other = np.ceil(share * run.requests.output_tokens)
        assert names(replace(run, text_tokens=other)) == ["two token counts"]


def test_whole_second_bins():
    """Case L05: three requests one after another, within one second."""
    arrival = np.array([0.0, 0.3, 0.6])
    gaps = [np.full(2, 0.05)] * 3
    run = run_of(
        arrival, np.full(3, 0.1), gaps, request_rate=None, stated={"peak_concurrency": 3.0}
    )
    assert names(run) == ["whole-second bins"]
    assert "by the stamps it was 1" in seen(run, "whole-second bins")
    assert names(replace(run, stated={"peak_concurrency": 1.0})) == []


def test_peak_below_mean():
    """Case T11: the peak counts chunks, the mean tokens."""
    said = {"peak_output_throughput": 111.0, "output_throughput": 414.75}
    run = BenchmarkRun(tool="sglang", requests=None, stated=said)
    assert names(run) == ["peak below mean"]


# Rules that all share -----------------------------------------------------------------------------


def test_every_detector_is_told_with_numbers_and_a_chapter():
    """Every planted fault above has a detector; each message is whole."""
    assert len(set(DETECTORS)) == len(DETECTORS)
    for name in benchmarks.SHIPPED:
        for found in suspicions(benchmarks.load(name)):
            assert any(letter.isdigit() for letter in found.seen)
            assert found.why
            assert found.chapter
            assert (found.seen + found.why).isascii()


def test_totals_follow_from_rates():
    said = {"completed": 60.0, "request_throughput": 2.0, "output_throughput": 20.0}
    found = totals(BenchmarkRun(tool="inference-perf", requests=None, stated=said))
    assert found["duration"] == pytest.approx(30.0)
    assert found["output_tokens"] == 600
    assert "input_tokens" not in found


def test_tpot_goes_by_the_tools_own_word():
    words = {tool: tpot_word(BenchmarkRun(tool=tool, requests=None)) for tool in ("vllm", "aiperf")}
    assert words == {"vllm": "tpot", "aiperf": "itl"}
    assert tpot_word(BenchmarkRun(tool="llmperf", requests=None)) is None
    assert decode_by_means(BenchmarkRun(tool="llmperf", requests=None)) is None
