"""lib.dialects: the four-request log in full, real files, the public faults, refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lib._files import DATA
from lib.benchmarks import SHIPPED, BenchmarkRun, load
from lib.dialects import (
    DIALECTS,
    Dialect,
    Measure,
    cumulative_quantile,
    peak_throughput,
    reproduce,
    speculation,
    tokens_per_chunk,
    translate,
)
from lib.goodput import SLACK_S
from lib.percentile import percentile
from lib.record import ClientLog, RequestLog

NAN = float("nan")
VECTOR = json.loads((DATA / "dialects/four_requests.json").read_text(encoding="utf-8"))
SLO = {"ttft_slo": VECTOR["slo_s"]["ttft"], "tpot_slo": VECTOR["slo_s"]["tpot"]}
PRINTED = 5e-7  # the vector is rounded to 1e-6


def four_requests() -> ClientLog:
    rows = VECTOR["log"]
    chunks = [
        [[row[key], 0] for key in ("role",) if row[key] is not None]
        + row["chunks"]
        + [[row[key], 0] for key in ("usage",) if row[key] is not None]
        for row in rows
    ]
    times, tokens = zip(*(chunk for answer in chunks for chunk in answer), strict=True)
    return ClientLog.from_stream(
        [row["start"] for row in rows],
        times,
        tokens,
        [len(answer) for answer in chunks],
        input_tokens=[10, 20, 30, 40],
        succeeded=[row["ok"] for row in rows],
        due=[row["start"] for row in rows],
        done=[NAN if row["done"] is None else row["done"] for row in rows],
        closed=[row["closed"] for row in rows],
        wall=VECTOR["wall"],
    )


def one_stream(times, tokens=1, start=0.0, **columns) -> ClientLog:
    """The log of one request seen chunk by chunk."""
    tokens = np.broadcast_to(tokens, np.shape(times))
    columns = {key: [value] if key != "wall" else value for key, value in columns.items()}
    return ClientLog.from_stream([start], times, tokens, [len(times)], **columns)


def value_of(log, dialect, measure):
    """The measure of a log's only request, None if it has none."""
    value = translate(log, dialect).values[measure]
    assert value.shape == (1,)
    return None if np.isnan(value[0]) else value[0]


# The vector: every number of all eight tools ------------------------------------------------------

PER_REQUEST = {  # the vector's word: our measure
    "vllm_0.33.0": {"ttft": "ttft", "e2e": "e2e", "tpot": "tpot"},
    "sglang_0.5.23_oai_chat": {"ttft": "ttft", "e2e": "e2e", "tpot": "tpot"},
    "aiperf_0.13.0": {
        "ttft": "ttft",
        "e2e": "e2e",
        "itl_per_request": "itl",
        "itl_with_per_chunk_usage": "itl_chunk_usage",
    },
    "genai_perf_0.0.16": {"ttft": "ttft", "itl": "itl"},
    "guidellm_0.8.1": {
        "ttft": "ttft",
        "e2e": "e2e",
        "time_per_output_token": "tpot",
        "inter_token_latency": "itl",
    },
    "inference_perf_7de5ef2": {"ttft": "ttft", "e2e": "e2e", "tpot": "tpot", "ntpot": "ntpot"},
    "llmperf_f1d6bed": {"ttft": "ttft", "e2e": "e2e", "inter_token_latency": "itl"},
    "mlperf_loadgen": {"ttft": "ttft", "tpot": "tpot"},
}
SAMPLES = {
    "vllm_0.33.0": {"itl": "itl"},
    "sglang_0.5.23_oai_chat": {"itl": "itl"},
    "aiperf_0.13.0": {"inter_chunk_latency": "chunk_itl"},
}
FIGURES = {
    "mean_tpot": "tpot.mean",
    "mean_itl": "itl.mean",
    "mean_tpot_token_weighted": "tpot.mean",
    "mean_itl_token_weighted": "itl.mean",
    "n_itl": "itl.count",
    "duration": "duration",
    "window": "duration",
    "req_s": "request_throughput",
    "req_s_successful": "request_throughput",
    "completed_samples_per_s": "request_throughput",
    "out_tok_s": "output_throughput",
    "out_tok_s_successful": "output_throughput",
    "concurrency": "concurrency",
    "good": "good",
    "good_by_positional_zip": "good",
    "goodput": "goodput",
    "slo_attainment": "attainment",
    "good_request_fraction": "attainment",
    "slo_determined": "judged",
}
TOOL = {
    name: name.replace("_", "-", 1) if name.startswith(("genai", "inference")) else name
    for name in VECTOR["per_tool"]
}
TOOL = {name: tool.split("_")[0] for name, tool in TOOL.items()}


@pytest.mark.parametrize("name", VECTOR["per_tool"])
def test_every_number_of_the_vector(name) -> None:
    told = translate(four_requests(), TOOL[name], **SLO)
    for key, expected in VECTOR["per_tool"][name].items():
        if key == "note":
            continue
        if key in PER_REQUEST[name]:
            values = told.values[PER_REQUEST[name][key]]
            assert np.isnan(values[3])  # the failed one
            wanted = [NAN if isinstance(v, str | None) else v for v in expected]
            wanted += [NAN] * (3 - len(wanted))  # GenAI-Perf's list ends before r3
            assert_allclose(values[:3], wanted, atol=PRINTED, rtol=0)
        elif key in SAMPLES.get(name, {}):
            assert_allclose(told.samples[SAMPLES[name][key]], expected, atol=PRINTED, rtol=0)
        elif key == "goodput_pct_of_success":
            assert 100 * told.figures["attainment"] == pytest.approx(expected, abs=PRINTED)
        else:
            assert told.figures[FIGURES[key]] == pytest.approx(expected, abs=PRINTED), key


def test_the_vector_names_the_eight_tools() -> None:
    assert sorted(TOOL.values()) == sorted(DIALECTS)


def test_first_and_last_come_from_the_chunks() -> None:
    log = four_requests().requests
    for row, first, last, n in zip(
        VECTOR["log"], log.first_token, log.last_token, log.output_tokens, strict=True
    ):
        stamps = [row.get("first", NAN), row.get("last", NAN), row.get("N", NAN)]
        assert_array_equal([first, last, n], stamps)


# Real files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("vllm")])
def test_vllm_peaks(name) -> None:
    run = load(name)
    told = translate(run.client_log(), "vllm")
    assert told.figures["peak_concurrency"] == run.summary["max_concurrent_requests"]
    assert told.figures["peak_output_throughput"] == run.summary["max_output_tokens_per_s"]


def test_guidellm_percentiles() -> None:
    """The file states each distribution's percentiles; the weights are tokens and gaps."""
    run = load("guidellm/2rps")
    told = translate(run.client_log(), "guidellm")
    for measure, key in {
        "ttft": "time_to_first_token_ms",
        "tpot": "time_per_output_token_ms",
        "itl": "inter_token_latency_ms",
    }.items():
        stated = run.summary[key]["successful"]
        for name, value in stated["percentiles"].items():
            q = {"p001": "p0.1", "p999": "p99.9"}.get(name, name)
            # Stamps in float64 Unix seconds step by 0.24 us.
            assert told.statistic(measure, q) * 1e3 == pytest.approx(value, abs=5e-4), (key, q)
        for ours, theirs in {"mean": "mean", "std": "std_dev", "median": "median"}.items():
            assert told.statistic(measure, ours) * 1e3 == pytest.approx(stated[theirs], abs=5e-4)


@pytest.mark.parametrize("name", list(SHIPPED))
def test_a_file_is_reproduced_from_its_rows(name) -> None:
    run = load(name)
    rows = reproduce(run)
    assert [row.key for row in rows] == list(run.stated)
    assert all(row.agrees for row in rows if row.recomputed is not None), [
        row for row in rows if row.agrees is False
    ]
    assert all(row.why for row in rows if row.recomputed is None)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("vllm/4rps", {"duration", "goodput"}),  # its file names no limits
        ("aiperf/rate3", set()),
        ("guidellm/2rps", {"duration"}),
        ("llmperf/groq_70b", {"request_throughput", "output_throughput"}),
    ],
)
def test_nothing_else_is_out_of_reach(name, keys) -> None:
    assert {row.key for row in reproduce(load(name)) if row.recomputed is None} == keys


def test_limits_behind_a_goodput_can_be_named() -> None:
    run = load("vllm/4rps")
    (row,) = (row for row in reproduce(run) if row.key == "goodput")
    assert (row.recomputed, row.why) == (None, "the file names no limits")
    named = reproduce(run, {"ttft": 0.25, "tpot": 0.025})
    (row,) = (row for row in named if row.key == "goodput")
    assert row.agrees is True
    assert row.why == "over the file's own window"
    with pytest.raises(ValueError, match="limits must be one of 'ttft', 'tpot', 'itl', 'e2e'"):
        reproduce(run, {"ttft_ms": 250})
    with pytest.raises(ValueError, match="tpot must be > 0: got 0"):
        reproduce(run, {"tpot": 0})


def test_two_windows_in_one_file() -> None:
    """AIPerf's rates divide by its own window, not by the span that it calls duration."""
    run = load("aiperf/rate3")
    rows = {row.key: row for row in reproduce(run)}
    assert rows["duration"].agrees is True  # first send to last token
    assert rows["request_throughput"].agrees is True
    assert run.duration > rows["duration"].stated + 0.4


def test_a_false_figure_is_found() -> None:
    run = load("vllm/4rps")
    run = replace(run, stated={**run.stated, "ttft.mean": 1.1 * run.summary["mean_ttft_ms"] / 1e3})
    (row,) = (row for row in reproduce(run) if row.key == "ttft.mean")
    assert row.agrees is False


def test_what_a_file_does_not_carry_is_listed() -> None:
    bare = BenchmarkRun(tool="vllm", requests=None, stated={"ttft.mean": 1.0})
    (row,) = reproduce(bare)
    assert (row.recomputed, row.agrees, row.why) == (
        None,
        None,
        "the file has no rows, only summaries",
    )
    log = RequestLog(arrival=[0.0], first_token=[1.0], output_tokens=[2], input_tokens=[3])
    run = BenchmarkRun(
        tool="sglang",
        requests=log,
        stated={"e2e.mean": 2.0, "duration": 3.0, "tps": 1.0, "goodput": 1.0, "concurrency": 1.0},
    )
    why = {row.key: row.why for row in reproduce(run)}
    assert why == {
        "e2e.mean": "the log has no stamp 'done'",
        "duration": "the log has no wall clock",
        "tps": "no rule of sglang for it here",
        "goodput": "the log has no wall clock",
        "concurrency": "the log has no wall clock",
    }
    other = replace(run, tool="csv")
    assert {row.why for row in reproduce(other)} == {"no tool's rules apply to 'csv'"}
    with pytest.raises(TypeError, match="run must be of type BenchmarkRun: got 3"):
        reproduce(3)


# Public faults: each kind with its right value ----------------------------------------------------


def test_t01_a_role_chunk_is_no_token() -> None:
    """Case T01: a role chunk carries no token."""
    log = one_stream([0.005, 0.214, 0.234, 0.254], [0, 1, 1, 1])
    told = translate(log, "vllm")
    assert_allclose(told.values["ttft"], [0.214], atol=1e-9)
    assert_allclose(told.samples["itl"], [0.02, 0.02], atol=1e-9)
    assert_allclose(told.values["tpot"], [0.02], atol=1e-9)
    assert_allclose(told.values["e2e"], [0.254], atol=1e-9)


def test_t03_a_reasoning_token_is_a_token() -> None:
    """Case T03: a reasoning token is a token."""
    thinking = one_stream([0.3, 0.32, 0.34, 4.3, 4.32], first_content=4.3)
    capped = one_stream([0.3, 0.32], first_content=NAN)
    assert value_of(thinking, "vllm", "ttft") == pytest.approx(0.3, abs=1e-9)
    assert value_of(thinking, "inference-perf", "ttft") == pytest.approx(4.3, abs=1e-9)
    assert value_of(capped, "vllm", "ttft") == pytest.approx(0.3, abs=1e-9)
    assert value_of(capped, "inference-perf", "ttft") is None
    told = translate(thinking, "inference-perf")  # its gaps are those after the first content
    assert told.samples["itl"].max() == pytest.approx(0.02, abs=1e-9)
    plain = one_stream([0.3, 0.32])  # no reasoning channel: one first token for both rules
    assert value_of(plain, "inference-perf", "ttft") == value_of(plain, "vllm", "ttft")


def test_t05_n_tokens_have_n_minus_1_gaps() -> None:
    """Case T05: n tokens have n - 1 gaps."""
    told = translate(one_stream([0.5, 0.52, 0.54, 0.56]), "vllm")
    assert told.figures["itl.count"] == 3
    assert told.figures["itl.mean"] == pytest.approx(0.02, abs=1e-9)
    mixed = translate(one_stream([0.5, 0.52, 0.54, 0.56]), "llmperf")
    assert mixed.figures["itl.mean"] == pytest.approx(0.14, abs=1e-9)  # the wait is one of four


def test_t07_tokens_are_counted_not_chunks() -> None:
    """Case T07: TPOT divides by tokens, not by chunks."""
    log = one_stream([0.5, 0.7, 0.9], 4)
    assert value_of(log, "vllm", "tpot") == pytest.approx(0.0363636364, abs=1e-9)
    assert value_of(log, "vllm", "itl") == pytest.approx(0.2, abs=1e-9)
    # Of several requests each has its own count; one chunk of all tokens takes no time.
    several = ClientLog.from_stream(
        [0.0, 1.0, 2.0, 3.0],
        [0.5, 0.7, 0.9, 1.4, 2.2, 2.5, 3.5],
        [4, 4, 4, 1, 3, 6, 1],
        [3, 2, 1, 1],
    )
    told = translate(several, "vllm")
    assert_allclose(told.values["tpot"], [0.4 / 11, 0.8 / 3, 0.0, NAN], atol=1e-9)
    assert_allclose(told.values["itl"], [0.2, 0.8, NAN, NAN], atol=1e-9)
    # Chunks whose tokens nobody counted: the server's count of the answer is enough.
    uncounted = ClientLog(
        requests=several.requests,
        chunk_times=several.chunk_times,
        chunk_counts=several.chunk_counts,
    )
    assert_array_equal(translate(uncounted, "vllm").values["tpot"], told.values["tpot"])


def test_t09_the_first_chunk_holds_several_tokens() -> None:
    """Case T09: the tokens of the first chunk came with the TTFT."""
    log = one_stream([0.4, 1.2], [5, 16])
    gap = value_of(log, "aiperf", "itl_chunk_usage")
    assert gap == pytest.approx(0.05, abs=1e-9)
    assert 1 / gap == pytest.approx(20.0, abs=1e-9)
    assert value_of(log, "aiperf", "itl") == pytest.approx(0.04, abs=1e-9)
    # First chunks of 5, of 1, of all tokens and, behind a role chunk, of 2.
    several = ClientLog.from_stream(
        [0.0, 0.0, 0.0, 0.0],
        [0.4, 1.2, 0.4, 1.2, 0.4, 0.1, 0.4, 1.2],
        [5, 16, 1, 4, 7, 0, 2, 8],
        [2, 2, 1, 3],
    )
    told = translate(several, "aiperf")
    assert_allclose(told.values["itl_chunk_usage"], [0.05, 0.2, NAN, 0.1], atol=1e-9)
    assert "1 of 4 answers have no itl_chunk_usage" in told.notes
    # A first chunk that nobody counted is not one token.
    uncounted = replace(several, chunk_tokens=None)
    told = translate(uncounted, "aiperf")
    assert np.isnan(told.values["itl_chunk_usage"]).all()
    assert told.missing["itl_chunk_usage"] == "the log has no token counts of chunks"
    for n_out in (5, 3):  # no token, or fewer than none, after the first chunk: no divisor
        short = one_stream([0.4, 1.2], [5, 16], output_tokens=n_out)
        assert value_of(short, "aiperf", "itl_chunk_usage") is None
    whole = translate(one_stream([0.4], [21]), "aiperf")
    assert whole.missing["itl_chunk_usage"] == "no answer has enough tokens"


def test_t11_a_peak_is_never_below_the_mean() -> None:
    """Case T11: a peak of tokens is never below the mean."""
    assert peak_throughput([0.5, 1.5, 2.5, 3.5], 8, 4.0) == pytest.approx(8.0, abs=1e-9)
    assert peak_throughput([0.5, 1.5, 2.5, 3.5], 1, 4.0) == pytest.approx(1.0, abs=1e-9)
    # A rest of 0.6 bins is a bin of its own, one of 0.4 belongs to the bin before it.
    assert peak_throughput([0.5, 1.5], 6, 1.6) == pytest.approx(6 / 0.6)
    assert peak_throughput([0.5, 1.3], 6, 1.4) == pytest.approx(12 / 1.4)
    # The last token of a run is no peak, however little time is left for it.
    assert peak_throughput([0.5, 1.5, 2.0001], 1, 2.0001) == pytest.approx(2 / 1.0001)


@pytest.mark.parametrize("bin_s", [0.1, 0.3, 0.7, 1.1])
@pytest.mark.parametrize("bins", [3, 7, 11, 199])
def test_a_whole_number_of_bins_leaves_no_sliver(bin_s, bins) -> None:
    """bins * bin_s is rarely a whole number of float64 bins, and the rest is no bin."""
    for duration in (bins * bin_s, np.nextafter(bins * bin_s, 0), np.nextafter(bins * bin_s, 999)):
        peak = peak_throughput([0.0, duration], 1, duration, bin_s)
        assert peak == pytest.approx(1 / bin_s, rel=1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=1, max_size=30),
    st.floats(0.3, 40.0),
    st.floats(0.1, 7.0),
)
def test_the_bins_tile_the_window(chunks, duration, bin_s) -> None:
    share, tokens = map(np.array, zip(*chunks, strict=True))
    mean = tokens.sum() / duration
    assert peak_throughput(share * duration, tokens, duration, bin_s) >= mean * (1 - 1e-12)


def test_t13_tokens_a_chunk_from_two_means() -> None:
    """Case T13: ITL over TPOT is the tokens of a chunk."""
    assert tokens_per_chunk(213.26, 66.76) == pytest.approx(3.1944, rel=1e-2)
    assert_allclose(tokens_per_chunk([213.26, 20.0], [66.76, 20.0]), [3.1944, 1.0], rtol=1e-2)
    log = one_stream([1.0, 2.0, 4.0], [3, 3, 3], output_tokens=9)
    told = translate(log, "vllm")
    after = tokens_per_chunk(told.figures["itl.mean"], told.figures["tpot.mean"])
    assert after == pytest.approx(8 / 2)  # eight tokens after the first, in two gaps
    # Answers of 9, 3 and 1 tokens: 10 tokens after the first ones, in 3 gaps. The mean TPOT must
    # weigh tokens, as GuideLLM's ITL does; vLLM's weighs requests and gives another ratio.
    mixed = ClientLog.from_stream(
        [0.0, 0.0, 0.0], [1.0, 2.0, 4.0, 1.0, 1.5, 2.0], [3, 3, 3, 1, 2, 1], [3, 2, 1]
    )
    vllm, guidellm = (translate(mixed, name).figures for name in ("vllm", "guidellm"))
    assert tokens_per_chunk(vllm["itl.mean"], guidellm["itl.mean"]) == pytest.approx(10 / 3)
    assert tokens_per_chunk(vllm["itl.mean"], vllm["tpot.mean"]) > 1.1 * 10 / 3


def test_t15_time_per_output_token_with_and_without_the_first() -> None:
    """Case T15: two legitimate TPOTs, each by the name of its tool."""
    requests = RequestLog(
        arrival=[0.0, 5.0, 9.0, 9.0],
        first_token=[1.0, 5.5, 9.25, NAN],
        last_token=[3.0, 6.0, 9.25, NAN],
        input_tokens=[5, 5, 5, 5],
        output_tokens=[101, 3, 1, 0],  # one token has no gap; none at all has no time
    )
    log = ClientLog(requests=requests, due=requests.arrival)
    tpot = {name: translate(log, name).values["tpot"] for name in ("vllm", "mlperf", "guidellm")}
    assert_allclose(tpot["vllm"], [0.02, 0.25, NAN, NAN], atol=1e-9)
    assert_allclose(tpot["mlperf"], [0.02, 0.25, NAN, NAN], atol=1e-9)
    assert_allclose(tpot["guidellm"], [0.0297029703, 1 / 3, 0.25, NAN], atol=1e-9)


def test_t17_the_server_counts_what_text_cannot() -> None:
    """Case T17: text encoded again gives another count."""
    requests = RequestLog(
        arrival=[0.0], first_token=[0.0], last_token=[1.06], input_tokens=[5], output_tokens=[107]
    )
    log = ClientLog(requests=requests, text_tokens=[7], due=[0.0], closed=[1.06])
    assert value_of(log, "vllm", "tpot") == pytest.approx(0.01, abs=1e-9)
    assert value_of(log, "inference-perf", "tpot") == pytest.approx(0.1766666667, abs=1e-9)
    assert translate(log, "inference-perf").notes == ()
    counted = {name: translate(log, name).figures["output_tokens"] for name in DIALECTS}
    assert {name for name, tokens in counted.items() if tokens == 7} == {
        "aiperf",
        "genai-perf",
        "inference-perf",
        "llmperf",
    }
    assert set(counted.values()) == {7, 107}
    empty = replace(log, text_tokens=[0])  # nothing to encode is a count of 0, not a missing one
    assert value_of(empty, "inference-perf", "tpot") is None
    assert translate(empty, "aiperf").figures["output_tokens"] == 0
    told = translate(replace(log, text_tokens=None), "inference-perf")
    assert told.values["tpot"][0] == pytest.approx(0.01, abs=1e-9)
    assert told.notes == ("N is the log's own count: it has no text encoded again",)


def test_t19_a_ttft_that_was_never_measured() -> None:
    """Case T19: a TTFT that was never measured is not 0."""
    e2e = 4.7602028687
    requests = RequestLog(arrival=[0.0], input_tokens=[5], output_tokens=[1000])
    log = ClientLog(requests=requests, done=[e2e], closed=[e2e], text_tokens=[0])
    told = translate(log, "sglang", ttft_slo=1.0)
    assert np.isnan(told.values["ttft"]).all()
    assert np.isnan(told.values["tpot"]).all()
    assert told.values["e2e"] == pytest.approx(e2e, abs=1e-9)
    assert told.missing["ttft"] == "the log has no stamp 'first'"
    assert "good" not in told.figures
    some = one_stream([0.5, 0.6])
    both = ClientLog(
        requests=RequestLog(
            arrival=[0.0, 0.0],
            first_token=[0.5, NAN],
            last_token=[0.6, NAN],
            input_tokens=[5, 5],
            output_tokens=[2, 1000],
        ),
        done=[0.6, e2e],
    )
    assert translate(both, "sglang", ttft_slo=1.0).figures["good"] == 1  # not the one without
    assert translate(some, "sglang", ttft_slo=1.0).figures["good"] == 1


def test_s01_a_percentile_from_a_float_sum() -> None:
    """Case S01: a percentile from a float sum."""
    ten, twenty = np.arange(1.0, 11), np.arange(1.0, 21)
    assert percentile(ten, 90, "nearest_rank").value == 9
    assert percentile(twenty, 50, "nearest_rank").value == 10
    assert cumulative_quantile(ten, 0.9) == 10
    assert cumulative_quantile(twenty, 0.5) == 11


def test_s03_a_missing_value_is_not_zero() -> None:
    """Case S03: a missing value is not 0."""
    requests = RequestLog(
        arrival=[0.0, 0.0, 0.0],
        first_token=[1.0, 1.0, 1.0],
        last_token=[2.0, 4.0, NAN],
        input_tokens=[5, 5, 5],
        output_tokens=[2, 2, 2],
    )
    figures = translate(ClientLog(requests=requests), "vllm").figures
    assert figures["e2e.mean"] == pytest.approx(3.0, abs=1e-9)
    assert figures["e2e.count"] == 2
    assert figures["completed"] - figures["e2e.count"] == 1  # missing, and countable
    assert "1 of 3 answers have no e2e" in translate(ClientLog(requests=requests), "vllm").notes


def test_s05_equality_at_the_limit() -> None:
    """Case S05: equality at the limit passes."""
    log = one_stream([0.1 + 0.2], wall=1.0)
    assert log.requests.first_token[0] > 0.3
    for dialect in ("vllm", "sglang", "guidellm"):
        assert translate(log.closed_at_once(), dialect, ttft_slo=0.3).figures["good"] == 1
    late = one_stream([0.3 + 3 * SLACK_S], wall=1.0)
    assert translate(late, "vllm", ttft_slo=0.3).figures["good"] == 0
    edge = one_stream([0.3 + SLACK_S], wall=1.0, due=0.0)  # the slack itself is within
    assert translate(edge, "vllm", ttft_slo=0.3).figures["good"] == 1
    assert translate(edge, "mlperf", ttft_slo=0.3).figures["passes"] == 1


def test_s07_wall_clock_or_span() -> None:
    """Case S07: the wall clock or the span."""
    log = one_stream([0.2, 1.1], [9, 9], start=0.1, wall=1.15)
    wall, span = (translate(log, name).figures["output_throughput"] for name in ("vllm", "aiperf"))
    assert wall == pytest.approx(15.652173913, abs=1e-9)
    assert span == pytest.approx(18.0, abs=1e-9)


def test_s07_a_failure_may_end_last() -> None:
    """Case S07: whose end closes the span."""
    requests = RequestLog(
        arrival=[0.0, 0.5],
        first_token=[1.0, NAN],
        last_token=[2.0, NAN],
        input_tokens=[5, 5],
        output_tokens=[8, NAN],
        succeeded=np.array([True, False]),
    )
    log = ClientLog(requests=requests, done=[2.0, NAN], closed=[2.0, 4.0])
    window = {
        name: translate(log, name).figures["duration"]
        for name in ("aiperf", "guidellm", "inference-perf")
    }
    assert window == {"aiperf": 2.0, "guidellm": 2.0, "inference-perf": 4.0}


def test_f05_acceptance_length_and_the_bonus_token() -> None:
    """Case F05: each verified draft also yields one token of the target model."""
    found = speculation(87, 259, 167, [70, 55, 42])
    assert found.acceptance_rate == pytest.approx(0.6447876, abs=1e-6)
    assert found.tokens_per_step == pytest.approx(2.9195402, abs=1e-6)
    assert found.accepted_per_draft == pytest.approx(1.9195402, abs=1e-6)
    assert found.tokens == 254
    assert_allclose(found.per_position, [0.8045977, 0.6321839, 0.4827586], atol=1e-6)
    nothing = speculation(87, 259, 0, [0, 0, 0])  # nothing accepted: plain decoding
    assert (nothing.acceptance_rate, nothing.accepted_per_draft) == (0, 0)
    assert (nothing.tokens_per_step, nothing.tokens) == (1, 87)
    assert_array_equal(nothing.per_position, [0, 0, 0])
    everything = speculation(10, 40, 40, [10, 10, 10, 10])
    assert (everything.acceptance_rate, everything.tokens_per_step) == (1, 5)
    assert speculation(1, 1, 1).tokens == 2


# What one-token answers and failures leave of a verdict -------------------------------------------


@pytest.mark.parametrize(
    ("name", "good", "judged"),
    [
        ("vllm", 2, None),
        ("sglang", 2, 3),
        ("aiperf", 0, 3),
        ("guidellm", 0, 1),
        ("inference-perf", 0, 2),
    ],
)
def test_only_one_token_answers_are_still_judged(name, good, judged) -> None:
    """Two answers of one token in time, one failure: no TPOT at all, and yet a verdict."""
    log = ClientLog.from_stream(
        [0.0, 1.0, 2.0],
        [0.5, 1.6],
        [1, 1],
        [1, 1, 0],
        succeeded=[True, True, False],
        wall=4.0,
        closed=[0.5, 1.6, 2.5],
    ).closed_at_once()
    told = translate(log, name, ttft_slo=1.0, tpot_slo=0.05)
    assert told.figures["good"] == good
    assert told.figures["goodput"] == good / told.figures["duration"]
    assert told.figures.get("judged") == judged
    assert told.figures.get("attainment") == (None if judged is None else good / judged)
    late = translate(log, name, ttft_slo=0.55, tpot_slo=0.05)  # the second waits 0.6 s
    assert late.figures["good"] == good / 2


def test_lists_and_tails_need_values() -> None:
    """A list to pair by position, or a P99, does not exist where no answer has a gap."""
    log = one_stream([0.5], wall=1.0).closed_at_once()
    for name in ("genai-perf", "mlperf"):
        told = translate(log, name, ttft_slo=1.0, tpot_slo=0.05)
        assert told.missing["good"] == "no answer has enough tokens"
        assert not {"good", "passes"} & set(told.figures)


@pytest.mark.parametrize(
    ("name", "attainment"), [("sglang", 0.0), ("aiperf", 0.0), ("inference-perf", None)]
)
def test_a_run_of_failures_has_no_good_request(name, attainment) -> None:
    failed = RequestLog(
        arrival=[0.0, 1.0],
        input_tokens=[1, 1],
        output_tokens=[NAN, NAN],
        succeeded=np.array([False, False]),
    )
    told = translate(ClientLog(requests=failed, wall=2.0), name, **SLO)
    assert told.figures["good"] == 0
    assert told.figures.get("attainment") == attainment
    if attainment is None:  # it judges answers only
        assert told.missing["attainment"] == "no request is judged"


def test_what_a_failure_leaves_behind_counts_nowhere() -> None:
    """A stream that broke after two chunks of 9 tokens: in no sum, no gap and no peak."""
    log = ClientLog.from_stream(
        [0.0, 0.1],
        [0.5, 1.5, 0.3, 0.4],
        [4, 4, 9, 9],
        [2, 2],
        succeeded=[True, False],
        wall=2.0,
    )
    figures = translate(log, "vllm").figures
    assert figures["output_tokens"] == 8
    assert figures["peak_output_throughput"] == 1
    assert figures["peak_concurrency"] == 1
    assert (figures["itl.count"], figures["itl.max"]) == (1, 1.0)
    ended = replace(log, done=[1.5, NAN])
    assert translate(ended, "guidellm").figures["peak_concurrency"] == 1


def test_a_failure_may_begin_first() -> None:
    """inference-perf's span covers all that was sent, AIPerf's what was answered."""
    requests = RequestLog(
        arrival=[1.0, 3.0],
        first_token=[NAN, 3.5],
        last_token=[NAN, 4.0],
        input_tokens=[5, 5],
        output_tokens=[NAN, 8],
        succeeded=np.array([False, True]),
    )
    log = ClientLog(requests=requests, closed=[2.0, 4.0])
    assert translate(log, "aiperf").figures["duration"] == 1.0
    assert translate(log, "inference-perf").figures["duration"] == 3.0


# Rules --------------------------------------------------------------------------------------------


def test_a_dialect_prints_its_rules() -> None:
    text = str(DIALECTS["guidellm"])
    for part in (
        "guidellm 0.8.1",
        "tpot: (last - sent) / N, weighted by N",
        "itl: (last - first) / (N - 1), weighted by N - 1",
        "tpot judges itl",
        "in ms",
        "one-token answers: left out",
        "failures: count as misses",
        "window: the tool's own, around earliest sent to latest done, of all answered",
        "percentile: first value whose summed share reaches q",
    ):
        assert part in text
    assert "none below 2 tokens" in str(DIALECTS["inference-perf"].measures["ttft"])
    assert "ntpot judges ntpot; in s" in str(DIALECTS["inference-perf"])
    assert "window: earliest due to latest last" in str(DIALECTS["mlperf"])
    assert "window: earliest sent to latest closed, of all sent" in str(DIALECTS["inference-perf"])


def test_each_tool_has_its_own_begin_and_end() -> None:
    """Every stamp differs, so no other begin or end gives these times (s)."""
    log = one_stream(
        [1.0, 1.2, 1.5], start=0.5, due=0.1, first_content=1.2, done=1.7, closed=2.5, wall=3.0
    )
    expected = {  # TTFT, E2E, window
        "vllm": (0.5, 1.0, 3.0),
        "sglang": (0.5, 1.2, 3.0),
        "aiperf": (0.5, 1.0, 1.0),
        "genai-perf": (0.5, 1.0, 1.0),
        "guidellm": (0.5, 1.2, 1.2),
        "inference-perf": (0.7, 2.0, 2.0),
        "llmperf": (0.5, 2.0, 3.0),
        "mlperf": (0.9, 1.4, 1.4),
    }
    for name, times in expected.items():
        figures = translate(log, name).figures
        found = [figures[key] for key in ("ttft.mean", "e2e.mean", "duration")]
        assert_allclose(found, times, atol=1e-9, err_msg=name)


def test_mlperf_runs_from_the_due_time_and_drops_one() -> None:
    log = one_stream([1.0, 1.2], start=0.5, due=0.1)
    told = translate(log, "mlperf", ttft_slo=0.9, tpot_slo=0.2)
    assert told.values["ttft"] == pytest.approx(0.9)
    assert told.figures["duration"] == pytest.approx(1.1)
    assert told.figures["request_throughput"] == 0
    assert told.figures["passes"] == 1
    assert translate(log, "mlperf", ttft_slo=0.8, tpot_slo=0.2).figures["passes"] == 0
    late = translate(log, "mlperf", e2e_slo=1.0)
    assert late.missing["good"] == "mlperf has no limit on e2e"


def test_percentile_rules() -> None:
    requests = RequestLog(
        arrival=np.zeros(10),
        first_token=np.arange(1.0, 11),
        last_token=np.arange(1.0, 11),
        input_tokens=np.ones(10),
        output_tokens=np.ones(10),
    )
    log = ClientLog(requests=requests).closed_at_once()
    for dialect, p90 in {"vllm": 9.1, "guidellm": 10.0, "mlperf": 10.0}.items():
        assert translate(log, dialect).statistic("ttft", "p90") == pytest.approx(p90)
    assert translate(log, "mlperf").statistic("ttft", "p99.9") == 10
    assert translate(log, "vllm").figures["ttft.std"] == pytest.approx(np.arange(10).std())
    assert translate(log, "llmperf").figures["ttft.std"] == pytest.approx(np.arange(10).std(ddof=1))


def test_pairing_by_position_mixes_requests() -> None:
    """r0 has no gap, so GenAI-Perf pairs its TTFT with r1's gap: two late halves pass as one."""
    requests = RequestLog(
        arrival=[0.0, 0.0],
        first_token=[0.1, 9.0],
        last_token=[0.1, 9.1],
        input_tokens=[5, 5],
        output_tokens=[1, 11],
    )
    log = ClientLog(requests=requests, wall=10.0).closed_at_once()
    limits = {"ttft_slo": 1.0, "tpot_slo": 0.05}
    good = {
        name: translate(log, name, **limits).figures["good"] for name in ("genai-perf", "aiperf")
    }
    assert good == {"genai-perf": 1, "aiperf": 0}


def test_a_dialect_of_your_own() -> None:
    mine = replace(DIALECTS["vllm"], tool="mine", one_token="fail", failures="leave_out")
    told = translate(four_requests(), mine, **SLO)
    assert told.figures["good"] == 1
    assert told.figures["attainment"] == pytest.approx(1 / 3)
    assert isinstance(mine, Dialect)


def test_closed_at_once_fills_what_is_missing_and_nothing_else() -> None:
    log = four_requests()
    assert_array_equal(log.closed_at_once().done, log.done)
    bare = ClientLog(requests=log.requests).closed_at_once()
    assert_array_equal(bare.done, log.requests.last_token)
    assert_array_equal(bare.closed, bare.done)
    assert_array_equal(bare.due, log.requests.arrival)
    assert bare.wall == 1.0
    apart = replace(log.requests, shared_clock=False)
    assert ClientLog(requests=apart).closed_at_once().wall is None


@pytest.mark.parametrize("name", list(DIALECTS))
def test_what_a_log_lacks_is_missing_not_zero(name) -> None:
    bare = ClientLog(
        requests=RequestLog(arrival=[0.0, 1.0], input_tokens=[1, 1], output_tokens=[2, 2])
    )
    told = translate(bare, name, **({} if name == "llmperf" else SLO))
    assert set(told.missing) >= set(DIALECTS[name].measures)
    assert not any("." in key and not key.endswith(".count") for key in told.figures)
    assert "goodput" not in told.figures
    assert all(np.isfinite(figure) for figure in told.figures.values())


def test_only_failures() -> None:
    failed = RequestLog(
        arrival=[0.0], input_tokens=[1], output_tokens=[NAN], succeeded=np.array([False])
    )
    told = translate(ClientLog(requests=failed, wall=2.0), "vllm", **SLO)
    assert told.figures["request_throughput"] == 0
    assert told.figures["failed"] == 1
    assert told.missing["ttft"] == "no request succeeded"


@st.composite
def logs(draw) -> ClientLog:
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    steps = st.floats(0.001, 2.0)
    total = sum(counts)
    gaps = draw(st.lists(steps, min_size=total, max_size=total))
    tokens = draw(st.lists(st.integers(1, 5), min_size=total, max_size=total))
    sent = draw(st.lists(st.floats(0, 10), min_size=len(counts), max_size=len(counts)))
    tails = draw(st.lists(steps, min_size=len(counts), max_size=len(counts)))
    ends = np.cumsum(counts)
    times = np.concatenate(
        [s + np.cumsum(gaps[e - c : e]) for s, c, e in zip(sent, counts, ends, strict=True)]
    )
    last = times[ends - 1]
    tail = np.array(tails)
    return ClientLog.from_stream(
        sent, times, tokens, counts, due=sent - tail, done=last + tail, closed=last + 2 * tail
    ).closed_at_once()


@given(logs())
def test_the_exact_distance_between_two_dialects(log) -> None:
    """eq-dialects-distance, from every measure to vLLM's TPOT and back."""
    stamps = {
        "due": log.due,
        "sent": log.requests.arrival,
        "first": log.requests.first_token,
        "first_content": log.requests.first_token,
        "last": log.requests.last_token,
        "done": log.done,
        "closed": log.closed,
    }
    n, chunks = log.requests.output_tokens, log.chunk_counts
    divisors = {
        "1": np.ones(n.size),
        "N": n,
        "N - 1": n - 1,
        "N - first chunk": n - log.chunk_tokens[np.cumsum(chunks) - chunks],
        "chunks": chunks,
        "chunk gaps": chunks - 1,
    }

    def distance(a, b, values):
        """The value under rule a, from those under rule b."""
        ends, begins = stamps[a.end] - stamps[b.end], stamps[a.begin] - stamps[b.begin]
        return (divisors[b.divisor] * values + ends - begins) / divisors[a.divisor]

    ours, base = DIALECTS["vllm"].measures["tpot"], translate(log, "vllm").values["tpot"]
    for name, dialect in DIALECTS.items():
        told = translate(log, name).values
        for measure, theirs in dialect.measures.items():
            has = ~np.isnan(base) & ~np.isnan(told[measure])
            with np.errstate(divide="ignore", invalid="ignore"):
                there, back = (
                    distance(theirs, ours, base),
                    distance(ours, theirs, told[measure]),
                )
            assert_allclose(told[measure][has], there[has], rtol=1e-9, atol=1e-12)
            assert_allclose(base[has], back[has], rtol=1e-9, atol=1e-12)


@given(logs())
def test_invariants_across_dialects(log) -> None:
    told = {name: translate(log, name) for name in DIALECTS}
    gaps = told["vllm"].samples["itl"]
    spread = told["inference-perf"].samples["itl"]
    several = log.requests.output_tokens > 1
    assert gaps.sum() == pytest.approx(spread.sum(), abs=1e-9)
    assert spread.size == (log.requests.output_tokens - 1)[several].sum()
    assert gaps.size == (log.chunk_counts - 1).sum()
    if several.any():  # the weighted mean of GuideLLM is the mean of inference-perf's gaps
        ours, theirs = (told[name].figures["itl.mean"] for name in ("guidellm", "inference-perf"))
        assert ours == pytest.approx(theirs, rel=1e-9)
    ends = [told[name].values["e2e"] for name in ("vllm", "sglang", "inference-perf")]
    assert (np.diff(ends, axis=0) >= 0).all()
    windows = [told[name].figures["duration"] for name in ("aiperf", "guidellm", "inference-perf")]
    assert (np.diff(windows) >= 0).all()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.integers(1, 99),
    st.lists(st.integers(1, 9), min_size=30, max_size=30),
)
def test_cumulative_quantile_is_nearest_rank_but_for_the_last_bit(values, q, weights) -> None:
    expanded = np.repeat(values, weights[: len(values)]).astype(float)
    value = cumulative_quantile(values, q / 100, weights[: len(values)])[0]
    below = percentile(expanded, q, "nearest_rank").value
    upper = expanded[expanded > below].min(initial=np.inf)
    assert value == below or (value == upper and np.isclose((expanded <= below).mean(), q / 100))


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dialect": "locust"}, ValueError, r"dialect must be one of 'vllm', .*: got 'locust'"),
        ({"ttft_slo": 0.0}, ValueError, r"ttft_slo must be > 0: got 0"),
        ({"tpot_slo": NAN}, ValueError, r"tpot_slo must be finite"),
        ({"e2e_slo": [1.0]}, TypeError, r"e2e_slo must be one number"),
        ({"log": "log"}, TypeError, r"log must be of type ClientLog: got 'log'"),
        (
            {"log": ClientLog(requests=RequestLog(arrival=[], input_tokens=[], output_tokens=[]))},
            ValueError,
            r"log must hold at least one request: got none",
        ),
    ],
)
def test_translate_refuses(change, error, message) -> None:
    given = {"log": four_requests(), "dialect": "vllm"} | change
    with pytest.raises(error, match=message):
        translate(given.pop("log"), given.pop("dialect"), **given)


@pytest.mark.parametrize("name", ["p", "p101", "p-1", "average", "px", "pnan", ""])
def test_unknown_statistics_are_refused(name) -> None:
    with pytest.raises(ValueError, match="statistic must be mean, median"):
        translate(four_requests(), "vllm").statistic("ttft", name)


def test_unknown_measures_are_refused() -> None:
    with pytest.raises(ValueError, match="measure must be one of 'ttft', 'tpot', 'itl', 'e2e'"):
        translate(four_requests(), "vllm").statistic("ntpot", "mean")
    with pytest.raises(ValueError, match="begin must be one of"):
        Measure("start", "last")
    with pytest.raises(ValueError, match="divisor must be one of"):
        Measure("sent", "last", "tokens")
    with pytest.raises(ValueError, match="end must come after begin 'last': got 'first'"):
        Measure("last", "first")
    with pytest.raises(ValueError, match="end must come after begin 'sent': got 'sent'"):
        Measure("sent", "sent")
    with pytest.raises(ValueError, match="weighted must be False where a sample is a token gap"):
        Measure("first", "last", "N - 1", each="token gap", weighted=True)
    with pytest.raises(ValueError, match="at_least must be >= 0: got -1"):
        Measure("sent", "first", at_least=-1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokens": "client"}, ValueError, "tokens must be one of 'server', 'text': got 'client'"),
        ({"limit_unit": "us"}, ValueError, "limit_unit must be one of"),
        ({"verdict": "mean"}, ValueError, "verdict must be one of"),
        ({"one_token": "zero"}, ValueError, "one_token must be one of 'pass', 'fail', 'skip'"),
        ({"failures": "ignore"}, ValueError, "failures must be one of"),
        ({"window": "walls"}, ValueError, "window must be one of 'wall', 'span', 'measured'"),
        ({"window_end": "end"}, ValueError, "window_end must be one of 'due', 'sent', "),
        ({"window_over": "all"}, ValueError, "window_over must be one of 'answered', 'sent'"),
        ({"percentile": "lower"}, ValueError, "percentile must be one of 'linear', "),
        ({"peaks": "minutes"}, ValueError, "peaks must be one of 'seconds', 'sweep', 'none'"),
        ({"concurrency": "max"}, ValueError, "concurrency must be one of 'sum', 'none'"),
        ({"ddof": -1}, ValueError, "ddof must be >= 0: got -1"),
        ({"rate_less": 0.5}, ValueError, "rate_less must be a whole number: got 0.5"),
        ({"limits": {"tpot": "itl2"}}, ValueError, r"limits\['tpot'\] must be one of 'ttft', "),
        ({"measures": {"ttft": "first"}}, TypeError, r"measures\['ttft'\] must be of type Measure"),
        (
            {"measures": {"ttft": Measure("sent", "first")}, "limits": {}},
            ValueError,
            "measures must hold 'e2e': got ttft",
        ),
    ],
)
def test_a_dialect_refuses(change, error, message) -> None:
    with pytest.raises(error, match=message):
        replace(DIALECTS["vllm"], **change)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: peak_throughput([], 1, 1.0), ValueError, "times must be a non-empty list"),
        (lambda: peak_throughput([2.0], 1, 1.0), ValueError, "times must be inside the window"),
        (lambda: peak_throughput([-0.1], 1, 1.0), ValueError, "times must be inside the window"),
        (lambda: peak_throughput([0.1], -1, 1.0), ValueError, "tokens must be >= 0: got -1"),
        (lambda: peak_throughput([0.1], 1, 0.0), ValueError, "duration must be > 0"),
        (lambda: peak_throughput([0.1], 1, 1.0, 0.0), ValueError, "bin_s must be > 0"),
        (
            lambda: peak_throughput([0.1], [1, 2], 1.0),
            ValueError,
            "tokens must have one value a chunk",
        ),
        (lambda: tokens_per_chunk(0.0, 1.0), ValueError, "mean_itl must be > 0: got 0"),
        (lambda: tokens_per_chunk(1.0, NAN), ValueError, "mean_tpot must be finite"),
        (lambda: speculation(0, 1, 0), ValueError, "drafts must be >= 1: got 0"),
        (lambda: speculation(3, 0, 0), ValueError, "draft_tokens must be >= 1: got 0"),
        (lambda: speculation([3, 4], 9, 4), TypeError, "drafts must be one number"),
        (lambda: speculation(3, 9, 4.5), ValueError, "accepted must be a whole number: got 4.5"),
        (lambda: speculation(3, 9, -1), ValueError, "accepted must be >= 0: got -1"),
        (lambda: tokens_per_chunk([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "lengths must match"),
        (lambda: speculation(3, 3, 4), ValueError, "accepted must be <= draft_tokens: got 4 > 3"),
        (lambda: speculation(3, 9, 4, [3, 2]), ValueError, "must sum to accepted: got 5 for 4"),
        (lambda: speculation(3, 9, 4, [1, 3]), ValueError, "<= that of the place before it"),
        (lambda: speculation(3, 9, 4, [4]), ValueError, "<= that of the place before it: got 4"),
        (lambda: speculation(3, 9, 4, [[4]]), ValueError, "accepted_per_position must be a list"),
        (lambda: cumulative_quantile([], 0.5), ValueError, "values must be a non-empty list"),
        (lambda: cumulative_quantile([1.0], 50), ValueError, "shares must be between 0 and 1"),
        (lambda: cumulative_quantile([1.0], 0.5, [-1]), ValueError, "weights must be >= 0"),
        (lambda: cumulative_quantile([1.0], 0.5, [0]), ValueError, "weights must sum"),
        (
            lambda: cumulative_quantile([1.0], 0.5, [1, 2]),
            ValueError,
            "weights must have one value",
        ),
    ],
)
def test_functions_refuse(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


ONE = {
    "requests": RequestLog(
        arrival=[1.0], first_token=[2.0], last_token=[3.0], input_tokens=[1], output_tokens=[2]
    )
}
CHUNKS = {"chunk_times": [2.0, 3.0], "chunk_tokens": [1, 1], "chunk_counts": [2]}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"requests": None}, TypeError, "requests must be of type RequestLog"),
        ({"due": [1.0, 2.0]}, ValueError, r"due must have one value a request: got shape \(2,\)"),
        ({"done": [2.5]}, ValueError, r"done must not precede last_token: got 2.5 < 3"),
        ({"closed": [2.5]}, ValueError, r"closed must not precede last_token: got 2.5 < 3"),
        ({"done": [5.0], "closed": [4.0]}, ValueError, "closed must not precede done: got 4 < 5"),
        ({"first_content": [1.5]}, ValueError, "first_content must not precede first_token"),
        ({"text_tokens": [1.5]}, ValueError, "text_tokens must be a whole number >= 0: got 1.5"),
        ({"due": [float("inf")]}, ValueError, "due must be finite"),
        ({"due": ["now"]}, TypeError, "due must be a real number"),
        ({"wall": 0.0}, ValueError, "wall must be > 0: got 0"),
        ({"chunk_times": [2.0]}, ValueError, "chunk_times and chunk_counts must be given together"),
        ({"chunk_tokens": [2]}, ValueError, "chunk_times and chunk_counts must be given together"),
        (CHUNKS | {"chunk_counts": [3]}, ValueError, "whose the 2 chunks are: got .* sum 3"),
        (CHUNKS | {"chunk_counts": [-2]}, ValueError, "chunk_counts must be >= 0: got -2"),
        (CHUNKS | {"chunk_times": [3.0, 2.0]}, ValueError, "must be >= the chunk before it: got 2"),
        (
            CHUNKS | {"chunk_times": [0.5, 2.0]},
            ValueError,
            ">= the arrival of its request: got 0.5",
        ),
        (CHUNKS | {"chunk_times": [NAN, 2.0]}, ValueError, "chunk_times must be finite"),
        (CHUNKS | {"chunk_tokens": [1]}, ValueError, "chunk_tokens must have one value a chunk"),
        (CHUNKS | {"chunk_tokens": [1, -1]}, ValueError, "chunk_tokens must be a whole number"),
    ],
)
def test_a_client_log_refuses(change, error, message) -> None:
    with pytest.raises(error, match=message):
        ClientLog(**(ONE | change))


def test_from_stream_refuses() -> None:
    with pytest.raises(ValueError, match="chunk_counts must say for 1 requests"):
        ClientLog.from_stream([0.0], [1.0, 2.0], [1, 1], [1])
    with pytest.raises(ValueError, match="chunk_tokens must be >= 0: got -1"):
        ClientLog.from_stream([0.0], [1.0], [-1], [1])


def test_client_log_of_a_run() -> None:
    run = load("vllm/4rps")
    log = run.client_log()
    assert log.wall == run.duration
    assert_array_equal(log.chunk_counts, run.itl_counts + 1)
    # Stamps near 2,800 s have a last place of 4.5e-13 s.
    gaps = translate(log, "vllm").samples["itl"]
    assert_allclose(gaps, run.itl, rtol=0, atol=2e-12)
    bare = BenchmarkRun(tool="vllm", requests=None, source="x.json")
    with pytest.raises(ValueError, match=r"x\.json: the file has no rows"):
        bare.client_log()


def test_a_million_requests() -> None:
    """Memory and time follow the rows: nothing loops over requests."""
    n = 1_000_000
    at = np.arange(n, dtype=float)
    requests = RequestLog(
        arrival=at,
        first_token=at + 0.5,
        last_token=at + 1.5,
        input_tokens=np.full(n, 7.0),
        output_tokens=np.full(n, 11.0),
    )
    log = ClientLog(requests=requests).closed_at_once()
    for name in DIALECTS:
        told = translate(log, name)
        assert told.figures["ttft.mean"] == pytest.approx(0.5)
