"""What in a result file makes its figures mean less, or something else, than they say.

Each detector looks for one fault of clients, clocks and counts that public bug reports know, and
tells it with its numbers. None of them judges the server: that is `diagnosis`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, isfinite, sqrt

import numpy as np

from lib.benchmarks import BenchmarkRun
from lib.goodput import SLACK_S, wilson_interval
from lib.occupancy import occupancy_curve

SHOWS = 0.01
"""A fault that moves a figure by less than 1 % is left out: it does not show in two digits."""

SIGMAS = 3.0
"""A Poisson stream of n requests takes its planned time within 3 / sqrt(n) of it, but for one run
in 370; with fewer than `FEWEST` requests it strays more often."""

FEWEST = 20
"""Requests below which no pattern over time is looked for."""

CHANCE = 0.01
"""A pattern that chance alone makes in more than one run of 100 is no sign of anything."""

PAUSE = 0.9
"""Share of a run that one gap takes only between two runs: bursts as irregular as CV 3 make one in
20 requests less than once in 100 runs."""

COLD = 2.0
"""Times the usual TTFT that a cold server takes, at least; compilation takes many times that."""

FASTEST_TOKEN, SLOWEST_TOKEN = 5e-5, 1.0
"""Seconds per token of one answer. No served model writes 20,000 tokens/s to one user, and none
that a user waits for needs a second a token: beyond these, milliseconds and seconds are mixed."""

PROMPTLY = 0.1
"""Of the mean gap between sends: without a closed loop the last completion lies about 0.7 gaps back
at the median."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A fault that a file shows: its name, what was seen, why it matters, and the chapter that
    explains the figure at fault."""

    name: str
    seen: str
    why: str
    chapter: str


def suspicions(run: BenchmarkRun) -> tuple[Suspicion, ...]:
    """Everything suspicious in one run, in the order of `DETECTORS`.

    Parameters
    ----------
    run : a run as a reader of `benchmarks` returns it.

    Returns
    -------
    Suspicions; none when every detector stays silent, which it also does where the file lacks what
    it needs. Nothing raises: what cannot be read as a run is the readers' to refuse.
    """
    found = (detect(run) for detect in DETECTORS)
    return tuple(suspicion for suspicion in found if suspicion is not None)


def totals(run: BenchmarkRun) -> dict[str, float]:
    """The stated figures of a run, with the totals that follow from its stated rates.

    Parameters
    ----------
    run : a run.

    Returns
    -------
    `run.stated`, and where the file has them only as rates "duration" (s), "input_tokens" and
    "output_tokens": completed / request_throughput, and throughput x duration. Raises nothing.
    """
    said = dict(run.stated)
    if "duration" not in said:
        rate = said.get("request_throughput", 0)
        if run.duration is not None:
            said["duration"] = run.duration
        elif rate > 0 and "completed" in said:
            said["duration"] = said["completed"] / rate
    for kind in ("input", "output"):
        rate = said.get(f"{kind}_throughput", 0)
        if f"{kind}_tokens" not in said and rate > 0 and "duration" in said:
            said[f"{kind}_tokens"] = float(round(rate * said["duration"]))
    return said


def tpot_word(run: BenchmarkRun) -> str | None:
    """The word under which the tool of `run` states (E2E - TTFT) / (N - 1); None where it does not.

    GuideLLM's TPOT and llmperf's ITL count the first token's wait in. Raises nothing.
    """
    if run.tool in ("aiperf", "genai-perf"):
        return "itl"
    return None if run.tool in ("guidellm", "llmperf") else "tpot"


def decode_by_means(run: BenchmarkRun) -> tuple[float, float, float, float] | None:
    """What a summary says of the time after the first token.

    Parameters
    ----------
    run : a run with `stated` figures; raises nothing where they lack something.

    Returns
    -------
    Mean E2E - TTFT (s), mean N - 1, least and largest stated TPOT (s): (N - 1) of the first two
    lies between the last two for every request, so it does on average. None where one is missing.
    """
    said, word = totals(run), tpot_word(run)
    needed = ("e2e.mean", "ttft.mean", f"{word}.min", f"{word}.max", "output_tokens", "completed")
    if any(key not in said for key in needed):
        return None
    e2e, ttft, least, most, tokens, completed = (said[key] for key in needed)
    if not 0 < completed < tokens:
        return None
    return e2e - ttft, tokens / completed - 1, least, most


def _no_first_token(run: BenchmarkRun) -> Suspicion | None:
    """Successes whose TTFT is exactly 0 or missing."""
    if (log := run.requests) is None:
        return None
    done = log.succeeded
    absent = done & np.isnan(log.first_token)
    at_once = done & (log.first_token == log.arrival)
    if not (count := int(absent.sum() + at_once.sum())):
        return None
    return Suspicion(
        name="no first token",
        seen=f"{count} of {int(done.sum())} answered requests have a TTFT of exactly 0, or none "
        f"(the first: row {int(np.flatnonzero(absent | at_once)[0])})",
        why="no server answers in no time: the client never saw a first token and kept its default."
        " A zero would pull mean and percentiles down; a missing one leaves them to the others",
        chapter="ttft",
    )


def _failures(run: BenchmarkRun) -> Suspicion | None:
    """Requests without an answer."""
    if run.requests is not None:
        sent, failed = len(run.requests), int((~run.requests.succeeded).sum())
    else:
        failed = int(run.stated.get("failed", 0))
        sent = failed + int(run.stated.get("completed", 0))
    if not failed:
        return None
    low, high = (float(edge) for edge in wilson_interval(failed, sent))
    share = failed / sent
    return Suspicion(
        name="failed requests",
        seen=f"{failed:,} of {sent:,} requests got no answer: {100 * share:.3g} % "
        f"(95 % interval {100 * low:.2g} to {100 * high:.2g} %)",
        why="latencies below describe the survivors only. Who counts a failure as an endless wait "
        f"has no percentile above p{100 * (1 - share):.4g}",
        chapter="goodput",
    )


def _tokens_per_chunk(run: BenchmarkRun) -> Suspicion | None:
    """Fewer stamps than tokens, or more."""
    log = run.requests
    if log is None or run.itl_counts is None:
        return _tokens_per_event(run)
    seen = log.succeeded & ~np.isnan(log.first_token) & (log.output_tokens > 0)
    chunks = int(run.itl_counts[seen].sum() + seen.sum())
    tokens = int(log.output_tokens[seen].sum())
    if not chunks or abs(tokens / chunks - 1) < SHOWS:
        return None
    if tokens > chunks:
        return Suspicion(
            name="fewer stamps than tokens",
            seen=f"{tokens:,} tokens came in {chunks:,} chunks, {tokens / chunks:.3g} a chunk",
            why="ITL is the gap between chunks here, not between tokens: it is about that many "
            "times TPOT, and its percentiles compare with those of no other tool",
            chapter="e2e",
        )
    return Suspicion(
        name="more stamps than tokens",
        seen=f"{chunks:,} chunks carry {tokens:,} tokens, {tokens / chunks:.3g} a chunk",
        why="chunks without a token (role, usage, pieces of one character) or the first token's "
        "wait stand among the gaps: mean ITL is not the time per token",
        chapter="e2e",
    )


def _tokens_per_event(run: BenchmarkRun) -> Suspicion | None:
    """The same from a summary: E2E - TTFT must lie between N - 1 of the least and of the largest
    TPOT, whatever they have to do with each other."""
    found = None if run.requests is not None else decode_by_means(run)
    if found is None:
        return None
    decode, after, least, most = found
    implied = decode / after
    # A request without tokens has an E2E and no TTFT; a few of them move the means a little.
    if most == 0 or least * (1 - SHOWS) <= implied <= most * (1 + SHOWS):
        return None
    nearest = run.stated.get(f"{tpot_word(run)}.mean") or most
    return Suspicion(
        name="TPOT contradicts E2E",
        seen=f"E2E - TTFT is {_s(decode)} on average for {after:.4g} tokens after the first, "
        f"{_s(implied)} a token, but the file states TPOT from {_s(least)} to {_s(most)}",
        why=f"its mean is {max(implied / nearest, nearest / implied):.3g} times too "
        + ("small" if implied > nearest else "large")
        + ": the tool divided by stream events, not by tokens, or mixed units. Use neither this "
        "TPOT nor this ITL",
        chapter="e2e",
    )


def _chunks_together(run: BenchmarkRun) -> Suspicion | None:
    """Gaps of nothing: several chunks read from the network at once."""
    if run.itl is not None and run.itl.size:
        mean = float(run.itl.mean())
        share = float(np.mean(run.itl < SHOWS * mean))
    elif run.requests is None:  # a summary says so where its median is next to nothing
        word = "chunk_itl" if "chunk_itl.mean" in run.stated else "itl"
        mean = run.stated.get(f"{word}.mean", 0.0)
        share = 0.5 * (run.stated.get(f"{word}.median", mean) < SHOWS * mean)
    else:
        return None
    if share < SHOWS:
        return None
    least = "at least " * (run.itl is None)
    return Suspicion(
        name="chunks read together",
        seen=f"{least}{100 * share:.3g} % of the gaps between chunks are below {_s(SHOWS * mean)}, "
        "a hundredth of their mean",
        why="the client found several chunks waiting: the network or a busy client bunched them, "
        "so ITL percentiles show the client's reads, not the server's steps",
        chapter="e2e",
    )


def _two_token_counts(run: BenchmarkRun) -> Suspicion | None:
    """The answer's length by usage and by counting its text again."""
    if run.requests is None or run.text_tokens is None:
        return None
    own, text = run.requests.output_tokens, run.text_tokens
    both = run.requests.succeeded & (own > 0) & ~np.isnan(text)
    if not both.any():
        return None
    total, again = float(own[both].sum()), float(text[both].sum())
    far = both & ((text < own / 2) | (text > 2 * own))
    if abs(again / total - 1) < SHOWS and not far.any():
        return None
    return Suspicion(
        name="two token counts",
        seen=f"{total:,.0f} output tokens by the tool's count, {again:,.0f} by counting the text "
        f"again ({again / total:.3g} times); {int(far.sum())} answers differ by more than twice",
        why="encoding a text again merges tokens, and a requested length is no count: TPOT and "
        "tokens/s move by the same factor",
        chapter="e2e",
    )


def _units_slip(run: BenchmarkRun) -> Suspicion | None:
    """Milliseconds read as seconds, or the reverse."""
    if run.requests is not None:
        log = run.requests.where(run.requests.succeeded & (run.requests.output_tokens > 1))
        times = (log.last_token - log.first_token) / (log.output_tokens - 1)
        times = times[~np.isnan(times)]
        typical = float(np.median(times)) if times.size else 0.0
    else:
        typical = run.stated.get("tpot.median", run.stated.get("tpot.mean", 0.0))
    if typical == 0 or FASTEST_TOKEN <= typical <= SLOWEST_TOKEN:
        return None
    slow = typical > SLOWEST_TOKEN
    return Suspicion(
        name="units slip",
        seen=f"TPOT is {typical:.3g} s a token at the median",
        why=("milliseconds were read as seconds" if slow else "seconds were read as milliseconds")
        + ", unless the model really is this "
        + ("slow" if slow else "fast")
        + ": every limit and rate is off by 1000 (see --unit)",
        chapter="dialects",
    )


def _coarse_stamps(run: BenchmarkRun) -> Suspicion | None:
    """All times on a grid that is not small beside them."""
    if (log := run.requests) is None:
        return None
    waits = (log.first_token - log.arrival)[log.succeeded]
    waits = np.round(waits[~np.isnan(waits)], 9)
    values = np.unique(waits)
    if waits.size < FEWEST or values.size < 3:
        return None
    typical = float(np.median(waits))
    steps = np.diff(values)
    grid = float(steps[steps > SLACK_S].min(initial=np.inf))
    if not isfinite(grid) or grid < SHOWS * typical:
        return None
    if np.abs(values - grid * np.round(values / grid)).max() > 1e-6:
        return None  # no grid, just a few times far apart
    return Suspicion(
        name="coarse stamps",
        seen=f"every TTFT is a multiple of {_s(grid)}, at a median of {_s(typical)}: "
        f"{values.size} values for {waits.size:,} requests",
        why="the clock or the file rounds: a shorter wait cannot be told from none, and many "
        "requests seem to arrive together",
        chapter="ttft",
    )


def _several_clocks(run: BenchmarkRun) -> Suspicion | None:
    """Stamps that no single clock can have given."""
    log = run.requests
    if log is None or not log.shared_clock:
        return None
    sent = np.sort(log.arrival[~np.isnan(log.arrival)])
    if run.due is not None:
        early = log.arrival < run.due - SLACK_S
        if early.any():
            lead = float(np.nanmax(run.due - log.arrival))
            return Suspicion(
                name="several clocks",
                seen=f"{int(early.sum())} of {len(log)} requests left before they were due, by up "
                f"to {_s(lead)}",
                why="due and sent were read from two clocks, or a clock was set back: no delay of "
                "the client can be told, and stamps of different rows may not compare",
                chapter="dialects",
            )
    if sent.size < FEWEST:
        return None
    span, gaps = float(sent[-1] - sent[0]), np.diff(sent)
    at = int(gaps.argmax())
    if gaps[at] <= PAUSE * span or min(at + 1, sent.size - at - 1) < 5:
        return None
    return Suspicion(
        name="several clocks",
        seen=f"{at + 1} requests, then {_s(float(gaps[at]))} without one, then "
        f"{sent.size - at - 1}: {gaps[at] / span:.1%} of the whole span",
        why="stamps of several machines or of several runs stand in one file: rates and occupancy "
        "over this span mean nothing",
        chapter="occupancy",
    )


def _warm_up_inside(run: BenchmarkRun) -> Suspicion | None:
    """The first requests slower than any later one."""
    if (log := run.requests) is None or not log.shared_clock:
        return None
    ok = log.succeeded & ~np.isnan(log.arrival) & ~np.isnan(log.first_token)
    order = np.argsort(log.arrival[ok], kind="stable")
    waits = (log.first_token - log.arrival)[ok][order]
    n = waits.size
    if n < FEWEST:
        return None
    largest_after = np.maximum.accumulate(waits[::-1])[::-1][1:]
    smallest_before = np.minimum.accumulate(waits)[:-1]
    leads = np.flatnonzero(smallest_before > largest_after) + 1
    leads = leads[leads <= n // 10]
    if not leads.size:
        return None
    k = int(leads[-1])
    chance = 1 / comb(n, k)
    without = float(waits[k:].mean())
    shift = float(waits.mean()) / without - 1
    if chance > CHANCE or shift < SHOWS or waits[:k].min() < COLD * np.median(waits[k:]):
        return None
    return Suspicion(
        name="warm-up inside",
        seen=f"the first {k} of {n} requests had the longest TTFT of all, {_s(float(waits[0]))} "
        f"against a mean of {_s(without)} after (by chance: 1 in {1 / chance:,.0f})",
        why=f"a cold server (compilation, empty caches) is measured: mean TTFT is {100 * shift:.2g}"
        " % above that of the rest. Warm up first, or leave them out",
        chapter="ttft",
    )


def _sent_late(run: BenchmarkRun) -> Suspicion | None:
    """Requests that left the client after they were due."""
    log = run.requests
    if log is None or run.due is None:
        return None
    known = log.succeeded & ~np.isnan(run.due) & ~np.isnan(log.arrival) & ~np.isnan(log.first_token)
    if not known.any():
        return None
    late = (log.arrival - run.due)[known]
    wait = float((log.first_token - log.arrival)[known].mean())
    mean = float(late.mean())
    if mean < SHOWS * wait:
        return None
    return Suspicion(
        name="sent late",
        seen=f"requests left the client {_s(mean)} after they were due on average, up to "
        f"{_s(float(late.max()))}; mean TTFT is {_s(wait)} from the send, {_s(wait + mean)} from "
        "when they were due",
        why="a user's wait starts when the request is due. The tool starts its watch later, so the "
        "wait in the client is in no figure below (coordinated omission)",
        chapter="ttft",
    )


def _other_rate(run: BenchmarkRun) -> Suspicion | None:
    """Another sending rate than the one asked for."""
    asked = run.request_rate
    if asked is None or not isfinite(asked):
        return None
    log = run.requests
    if log is None or not log.shared_clock:
        return _sending_took_longer(run, asked)
    sent = log.arrival[~np.isnan(log.arrival)]
    if sent.size < FEWEST or not (span := float(np.ptp(sent))):
        return None
    rate = (sent.size - 1) / span
    if abs(asked / rate - 1) < max(SIGMAS / sqrt(sent.size - 1), SHOWS):
        return None
    slower = rate < asked
    return Suspicion(
        name="not the rate asked for",
        seen=f"{asked:.4g} requests/s were asked for, {rate:.4g} were sent "
        f"({sent.size:,} in {_s(span)})",
        why=(
            "the client could not, or was not allowed to, send that fast: the load waited for the "
            "server"
            if slower
            else "the plan was not kept: latencies are those of a burst"
        )
        + f", and this is not a measurement at {asked:.4g}/s",
        chapter="occupancy",
    )


def _sending_took_longer(run: BenchmarkRun, asked: float) -> Suspicion | None:
    """The same without stamps. The last request is sent by N / rate and done within the longest
    latency after, so a longer run has held requests back."""
    needed = ("completed", "duration", "e2e.max", "e2e.mean")
    said = totals(run)
    if any(key not in said for key in needed) or said.get("failed", 0):
        return None
    n, duration, longest, mean = (said[key] for key in needed)
    if n < 1:
        return None
    plan = n / asked * (1 + SIGMAS / sqrt(n))
    held = duration - longest - plan
    if held < SHOWS * plan:
        return None
    sending = duration - mean  # the last answers take as long as any
    return Suspicion(
        name="closed loop",
        seen=f"{n:,.0f} requests at {asked:.4g}/s are sent within {_s(plan)} and answered "
        f"{_s(longest)} later at most, but the run took {_s(duration)}: the last were held back "
        f"{_s(held)} or more. Little's law: {n / duration * mean:.0f} in flight over the run, "
        f"{n / sending * mean:.0f} while it sent",
        why="the load generator had a limit of its own on requests in flight and waited for "
        "answers: this is its throughput, not the server's answer to that rate, and TTFT leaves "
        "the wait in the client out",
        chapter="occupancy",
    )


def _all_at_once(run: BenchmarkRun) -> Suspicion | None:
    """A burst, in which TTFT is the backlog's."""
    log = run.requests
    if log is None or not log.shared_clock or len(log) < FEWEST:
        return None
    sent = log.arrival[~np.isnan(log.arrival)]
    if sent.size < FEWEST or np.isnan(log.last_token).all():
        return None
    sending = float(np.ptp(sent))
    whole = float(np.nanmax(log.last_token) - sent.min())
    # By then not one answer may be there: the server has seen one heap of work, not a stream.
    if sending >= float(np.nanmin(log.last_token) - sent.min()):
        return None
    if run.max_concurrency is not None and run.max_concurrency < sent.size:
        return None  # the client's limit spread them, whatever the stamps say
    return Suspicion(
        name="all at once",
        seen=f"all {sent.size:,} requests were sent within {_s(sending)}, before the first answer "
        f"was complete; the run took {_s(whole)}",
        why="TTFT is each request's place in the backlog and grows with the number of requests: it "
        "says how fast a heap is worked off, nothing about any arrival rate",
        chapter="mm1",
    )


def _closed_loop(run: BenchmarkRun) -> Suspicion | None:
    """Sends that wait for answers."""
    log = run.requests
    if log is None or not log.shared_clock:
        return None
    ok = log.succeeded & ~np.isnan(log.arrival) & ~np.isnan(log.last_token)
    if ok.sum() < FEWEST:
        return None
    sent, left = log.arrival[ok], log.last_token[ok]
    curve = occupancy_curve(sent, left)
    peak = int(curve.counts.max(initial=0))
    if peak < 2 or sent.size < 3 * peak:
        return None
    begin, end = float(curve.times[curve.counts == peak][0]), float(sent.max())
    if begin >= end:
        return None
    widths = np.diff(np.clip(curve.times, begin, end))
    level = float(np.sum(curve.counts[:-1] * widths) / (end - begin))
    later, done = np.sort(sent[sent > begin]), np.sort(left)
    since = later - done[np.maximum(np.searchsorted(done, later, side="right") - 1, 0)]
    # A closed loop fills its seats at once; in an open one the peak may come last.
    if later.size < sent.size / 2:
        return None
    if float(np.median(since)) > PROMPTLY * (end - begin) / later.size:
        return None
    cap = run.max_concurrency
    told = f"the client's limit is {cap}" if cap else "the file names no limit"
    return Suspicion(
        name="closed loop",
        seen=f"from {_s(begin - float(sent.min()))} on {level:.3g} of at most {peak} requests were "
        f"in flight, and half of the sends follow an answer within "
        f"{_s(float(np.median(since)))} ({told})",
        why="a new request waited for an old answer, so the server set the arrival rate: by "
        "Little's law throughput is in-flight / E2E, and no queue that users would see can form",
        chapter="occupancy",
    )


def _whole_second_bins(run: BenchmarkRun) -> Suspicion | None:
    """A stated peak concurrency that the stamps never reach."""
    log, stated = run.requests, run.stated.get("peak_concurrency")
    if log is None or stated is None or not log.shared_clock:
        return None
    ok = log.succeeded & ~np.isnan(log.arrival) & ~np.isnan(log.last_token)
    if not ok.any():
        return None
    peak = int(occupancy_curve(log.arrival[ok], log.last_token[ok]).counts.max(initial=0))
    if stated <= peak:
        return None
    return Suspicion(
        name="whole-second bins",
        seen=f"the file states a peak of {stated:.0f} requests at once; by the stamps it was "
        f"{peak}",
        why="the tool counts everyone who is there at any time in a second as there together: its "
        "peak is too high, the more so the shorter the requests",
        chapter="occupancy",
    )


def _peak_below_mean(run: BenchmarkRun) -> Suspicion | None:
    """A stated peak throughput below the mean."""
    peak, mean = run.stated.get("peak_output_throughput"), run.stated.get("output_throughput")
    if peak is None or mean is None or peak >= mean:
        return None
    return Suspicion(
        name="peak below mean",
        seen=f"peak output is stated as {peak:.4g} tokens/s, its mean as {mean:.4g} tokens/s",
        why="no mean exceeds its peak: the peak counts chunks, the mean tokens",
        chapter="goodput",
    )


DETECTORS: tuple[Callable[[BenchmarkRun], Suspicion | None], ...] = (
    _failures,
    _no_first_token,
    _units_slip,
    _several_clocks,
    _coarse_stamps,
    _other_rate,
    _closed_loop,
    _all_at_once,
    _sent_late,
    _warm_up_inside,
    _tokens_per_chunk,
    _chunks_together,
    _two_token_counts,
    _whole_second_bins,
    _peak_below_mean,
)
"""Every detector, the gravest first."""


def _s(seconds: float) -> str:
    """A time in words: ms below a second."""
    if 0 < abs(seconds) < 1e-4:
        return f"{1e6 * seconds:.4g} us"
    if abs(seconds) < 1:
        return f"{1000 * seconds:.4g} ms"
    return f"{seconds:,.4g} s" if seconds < 1e4 else f"{seconds:,.0f} s"
