"""lib.benchmarks: real result files against the tools' own figures, and files gone wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib._files import DATA
from lib.benchmarks import (
    SHIPPED,
    load,
    read_aiperf,
    read_guidellm,
    read_llmperf,
    read_vllm,
)

VLLM = [name for name in SHIPPED if name.startswith("vllm")]
Change = Callable[[dict[str, Any]], Any]


def gaps_of_each(run) -> list[np.ndarray]:
    return np.split(run.itl, np.cumsum(run.itl_counts)[:-1])


# The shipped vLLM files: the file's own figures are the witness -----------------------------------


@pytest.mark.parametrize("name", VLLM)
def test_vllm_settings(name) -> None:
    run = load(name)
    assert run.tool == "vllm"
    assert f"vllm/{run.request_rate:g}rps" == name
    assert run.max_concurrency is None
    assert run.duration == run.summary["duration"]
    assert len(run.requests) == run.summary["completed"] == 120
    assert run.requests.succeeded.all()
    assert run.requests.shared_clock
    assert run.requests.input_tokens.sum() == run.summary["total_input_tokens"]
    assert run.requests.output_tokens.sum() == run.summary["total_output_tokens"]


@pytest.mark.parametrize("name", VLLM)
@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2el"])
def test_vllm_statistics_are_reproduced(name, metric) -> None:
    run = load(name)
    felt = run.requests.metrics()
    values = {"ttft": felt.ttft, "tpot": felt.tpot, "itl": run.itl, "e2el": felt.e2e_latency}
    ms = values[metric] * 1e3
    # The file rounds each time to 0.1 us = 1e-4 ms, so no statistic can move further than that.
    for statistic, value in {
        "mean": ms.mean(),
        "median": np.median(ms),
        "std": ms.std(),
        "p99": np.percentile(ms, 99),
    }.items():
        assert value == pytest.approx(run.summary[f"{statistic}_{metric}_ms"], abs=1e-4)


@pytest.mark.parametrize("name", VLLM)
def test_vllm_goodput_is_reproduced(name) -> None:
    run = load(name)
    felt = run.requests.metrics()
    good = (felt.ttft <= 0.250) & (felt.tpot <= 0.025)
    # A whole number of requests over one division: equal but for the last place.
    assert good.sum() / run.duration == pytest.approx(run.summary["request_goodput"], rel=1e-15)


@pytest.mark.parametrize("name", VLLM)
def test_vllm_gaps_add_up_to_the_decode_time(name) -> None:
    """The gaps were timed one by one; latency and ttft were not computed from them."""
    run = load(name)
    assert np.array_equal(run.itl_counts, run.requests.output_tokens - 1)
    decode = run.reported["latency"] - run.reported["ttft"]
    for gaps, total in zip(gaps_of_each(run), decode, strict=True):
        # Each of len(gaps) + 2 numbers is rounded to 0.1 us, so off by 0.05 us at most.
        assert gaps.sum() == pytest.approx(total, abs=5e-8 * (len(gaps) + 2))


@pytest.mark.parametrize("name", VLLM)
def test_vllm_stamps_keep_the_files_times(name) -> None:
    run = load(name)
    felt = run.requests.metrics()
    # Stamps near 2,800 s have a last place of 4.5e-13 s.
    assert np.abs(felt.ttft - run.reported["ttft"]).max() < 1e-12
    assert np.abs(felt.e2e_latency - run.reported["latency"]).max() < 1e-12


# The other tools ----------------------------------------------------------------------------------


def test_aiperf() -> None:
    run = load("aiperf/rate3")
    felt = run.requests.metrics()
    own = json.loads((DATA / "aiperf/profile_export_aiperf.json").read_text(encoding="utf-8"))
    assert len(run.requests) == own["request_count"]["avg"] == 80  # the 4 of warm-up are left out
    for name, value in {
        "time_to_first_token": felt.ttft,
        "request_latency": felt.e2e_latency,
        "inter_token_latency": felt.tpot,
    }.items():
        assert value.mean() * 1e3 == pytest.approx(own[name]["avg"], rel=1e-12)
        assert value.std() * 1e3 == pytest.approx(own[name]["std"], rel=1e-9)
    # AIPerf adds epoch nanoseconds in float64, where the last place is 256 ns.
    span = run.requests.last_token.max() - run.requests.arrival.min()
    assert span == pytest.approx(own["benchmark_duration"]["avg"], abs=3e-7)
    good = (felt.ttft <= 0.250) & (felt.tpot <= 0.025)
    assert good.sum() == own["good_request_count"]["avg"]
    # The identity, with the tool's own time per token; it writes 1e-6 ms.
    tokens = felt.output_tokens
    closed = felt.ttft + (tokens - 1) * run.reported["inter_token_latency"]
    assert np.abs(closed - run.reported["request_latency"]).max() < 1e-9
    assert np.array_equal(run.itl_counts, tokens - 1)
    sums = np.array([gaps.sum() for gaps in gaps_of_each(run)])
    assert np.abs(sums - (felt.e2e_latency - felt.ttft)).max() < 1e-9


def test_guidellm() -> None:
    run = load("guidellm/2rps")
    felt = run.requests.metrics()
    assert len(run.requests) == 70
    assert run.requests.succeeded.all()
    tokens = felt.output_tokens
    # Unix stamps have a last place of 2.4e-7 s.
    closed = felt.ttft + (tokens - 1) * run.reported["inter_token_latency"]
    assert np.abs(closed - felt.e2e_latency).max() < 1e-6
    # Its "TPOT" counts the first token, and its latency ends after the last token.
    own = tokens * run.reported["time_per_output_token"]
    assert np.abs(own - felt.e2e_latency).max() < 1e-6
    assert (run.reported["request_latency"] > felt.e2e_latency).all()
    mean = run.summary["time_to_first_token_ms"]["successful"]["mean"]
    assert felt.ttft.mean() * 1e3 == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("name", ["llmperf/anyscale_7b", "llmperf/groq_70b"])
def test_llmperf(name) -> None:
    run = load(name)
    felt = run.requests.metrics()
    path = DATA / SHIPPED[name].replace("individual", "summary")
    own = json.loads(path.read_text(encoding="utf-8"))
    assert len(run.requests) == own["results_num_completed_requests"] == 150
    assert not run.requests.shared_clock
    for key, value in {
        "ttft": felt.ttft,
        "end_to_end_latency": felt.e2e_latency,
        "inter_token_latency": run.reported["inter_token_latency"],
    }.items():
        assert value.mean() == pytest.approx(own[f"results_{key}_s_mean"], rel=1e-9)
    # Its inter-token latency counts the wait for the first token: above the true gap on average.
    assert run.reported["inter_token_latency"].mean() > 1.03 * felt.tpot.mean()


# Special vLLM files -------------------------------------------------------------------------------


def result() -> dict[str, Any]:
    """A small, sound result: three requests, of which the second failed."""
    return {
        "date": "20260101-000000",
        "request_rate": 2.0,
        "max_concurrency": None,
        "duration": 3.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 5,
        "request_goodput": None,
        "input_lens": [10, 15, 20],
        "output_lens": [4, 0, 1],
        "ttfts": [0.25, 0.0, 0.5],
        "itls": [[0.125, 0.25, 0.125], [], []],
        "latencies": [0.75, 0.0, 0.5],
        "start_times": [100.0, 100.5, 101.0],
        "errors": ["", "Bad Gateway", ""],
    }


def write(folder: Path, *runs: dict[str, Any], text: str | None = None) -> Path:
    path = folder / "r.json"
    path.write_text(text if text is not None else "\n".join(map(json.dumps, runs)), "utf-8")
    return path


def read(folder: Path, *runs: dict[str, Any]):
    return read_vllm(write(folder, *runs))


def without(run: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in keys}


def test_a_failed_row_is_missing_never_zero(tmp_path) -> None:
    (run,) = read(tmp_path, result())
    log = run.requests
    assert log.succeeded.tolist() == [True, False, True]
    assert log.arrival.tolist() == [100.0, 100.5, 101.0]
    assert log.first_token[[0, 2]].tolist() == [100.25, 101.5]
    assert log.last_token[[0, 2]].tolist() == [100.75, 101.5]
    failed = [log.first_token[1], log.last_token[1], log.output_tokens[1]]
    failed += [run.reported["ttft"][1], run.reported["latency"][1]]
    assert np.isnan(failed).all()
    assert log.input_tokens.tolist() == [10, 15, 20]
    assert run.itl.tolist() == [0.125, 0.25, 0.125]
    assert run.itl_counts.tolist() == [3, 0, 0]
    assert len(log.metrics().ttft) == 2


def test_a_failure_before_the_send_has_no_arrival(tmp_path) -> None:
    (run,) = read(tmp_path, {**result(), "start_times": [100.0, 0.0, 101.0]})
    assert np.isnan(run.requests.arrival).tolist() == [False, True, False]


def test_a_stream_that_broke_off_counts_for_nothing(tmp_path) -> None:
    """The client had a first token and some gaps when the connection died."""
    broken = result()
    broken["ttfts"][1], broken["itls"][1] = 0.3, [0.1, 0.1]
    (run,) = read(tmp_path, broken)
    assert np.isnan(run.requests.first_token[1])
    assert run.itl.tolist() == [0.125, 0.25, 0.125]
    assert run.itl_counts.tolist() == [3, 0, 0]


def test_a_failure_without_a_reason_is_a_failure(tmp_path) -> None:
    (run,) = read(tmp_path, {**result(), "errors": ["", "", ""]})
    assert run.requests.succeeded.tolist() == [True, False, True]


def test_an_answer_without_text_is_a_success(tmp_path) -> None:
    """A chunk came, so the tool counts it as completed; its text has 0 tokens."""
    empty = {**result(), "output_lens": [4, 0, 0], "total_output_tokens": 4}
    (run,) = read(tmp_path, empty)
    assert run.requests.succeeded.tolist() == [True, False, True]
    assert run.requests.first_token[2] == 101.5
    with pytest.raises(ValueError, match="output_tokens must be >= 1: got 0 at index 1"):
        run.requests.metrics()


def test_the_last_chunk_may_come_before_the_end(tmp_path) -> None:
    """Older clients let the latency run to the end of the stream."""
    later = {**result(), "latencies": [0.8, 0.0, 0.5]}
    assert read(tmp_path, later)[0].requests.last_token[0] == 100.8


def test_without_detail(tmp_path) -> None:
    # Newer versions write `latencies` and `queue_times` all the same.
    (run,) = read(
        tmp_path, without(result(), "input_lens", "output_lens", "ttfts", "itls", "errors")
    )
    assert run.requests is None
    assert run.itl is None
    assert run.duration == 3.0
    assert run.summary["completed"] == 2


@pytest.mark.parametrize("between", ["\n", "", "\n\n", " \n\t"])
def test_several_runs_appended(between, tmp_path) -> None:
    runs = [{**result(), "request_rate": rate} for rate in (1.0, 2.0, 4.0)]
    read_runs = read_vllm(write(tmp_path, text=between.join(map(json.dumps, runs))))
    assert [run.request_rate for run in read_runs] == [1.0, 2.0, 4.0]


def test_indented_runs_appended(tmp_path) -> None:
    text = "\n".join(json.dumps(result(), indent=2) for _ in range(2))
    assert len(read_vllm(write(tmp_path, text=text))) == 2


def test_lines_are_counted_through_an_indented_run(tmp_path) -> None:
    text = json.dumps(result(), indent=2)
    with pytest.raises(ValueError, match=rf"r\.json, line {text.count(chr(10)) + 2}: expected"):
        read_vllm(write(tmp_path, text=text + "\nnull"))


@pytest.mark.parametrize("written", ['"inf"', "Infinity"])
def test_an_unlimited_rate(written, tmp_path) -> None:
    """Case D05: SGLang writes the bare word, vLLM the text."""
    text = json.dumps(result()).replace('"request_rate": 2.0', f'"request_rate": {written}')
    assert read_vllm(write(tmp_path, text=text))[0].request_rate == float("inf")


def test_an_unlimited_burstiness(tmp_path) -> None:
    """`--burstiness inf` asks for equal gaps, and is written as the bare word."""
    (run,) = read(tmp_path, {**result(), "burstiness": float("inf")})
    assert run.summary["burstiness"] == float("inf")


def test_max_concurrency(tmp_path) -> None:
    for stored, limit in ((16, 16), (0, None), (None, None)):  # 0 sets no limit
        (run,) = read(tmp_path, {**result(), "max_concurrency": stored})
        assert run.max_concurrency == limit


def test_one_token_is_both_first_and_last(tmp_path) -> None:
    (run,) = read(tmp_path, {**result(), "latencies": [0.75, 0.0, 0.625]})
    assert run.requests.last_token[2] == run.requests.first_token[2] == 101.5
    assert run.reported["latency"][2] == 0.625
    assert run.requests.metrics().tpot[1] == 0


def test_older_files_without_latencies(tmp_path) -> None:
    (run,) = read(tmp_path, without(result(), "latencies"))
    assert run.reported["latency"][[0, 2]].tolist() == [0.75, 0.5]  # ttft + the sum of the gaps
    assert run.requests.last_token[0] == 100.75


@pytest.mark.parametrize("name", VLLM)
def test_a_real_file_without_latencies(name, tmp_path) -> None:
    """The rule for older files, held to latencies that were measured."""
    whole = json.loads((DATA / SHIPPED[name]).read_text(encoding="utf-8"))
    (run,) = read(tmp_path, without(whole, "latencies"))
    # About 100 gaps a row, each rounded by at most 0.05 us.
    assert np.abs(run.reported["latency"] - np.array(whole["latencies"])).max() < 5e-6


def test_older_files_without_start_times(tmp_path) -> None:
    (run,) = read(tmp_path, without(result(), "start_times"))
    assert not run.requests.shared_clock
    assert run.requests.arrival.tolist() == [0, 0, 0]
    assert run.requests.metrics().e2e_latency.tolist() == [0.75, 0.5]


def test_older_files_without_failed_or_limit(tmp_path) -> None:
    (run,) = read(tmp_path, without(result(), "failed", "max_concurrency"))
    assert run.requests.succeeded.sum() == 2
    assert run.max_concurrency is None


def test_a_first_token_at_exactly_zero_is_missing(tmp_path) -> None:
    """Case T19: the stream had no text, and the default 0.0 stayed."""
    row = {
        **result(),
        "duration": 5.0,
        "completed": 1,
        "failed": 0,
        "total_input_tokens": 10,
        "total_output_tokens": 1000,
        "input_lens": [10],
        "output_lens": [1000],
        "ttfts": [0.0],
        "itls": [[]],
        "latencies": [4.7602028687],
        "start_times": [0.0],
        "errors": [""],
    }
    (run,) = read(tmp_path, row)
    assert np.isnan(run.requests.first_token).all()
    assert np.isnan(run.reported["ttft"]).all()
    assert run.requests.last_token.tolist() == [4.7602028687]
    with pytest.raises(ValueError, match="first_token is missing for 1 of 1 requests"):
        run.requests.metrics()


def test_a_first_token_at_zero_in_an_older_file(tmp_path) -> None:
    """Without `latencies`, ttft + sum(itl) would be an end-to-end latency of 0."""
    (run,) = read(tmp_path, without({**result(), "ttfts": [0.25, 0.0, 0.0]}, "latencies"))
    assert np.isnan(run.requests.last_token).tolist() == [False, True, True]
    assert np.isnan(run.reported["latency"]).tolist() == [False, True, True]
    assert run.requests.succeeded.tolist() == [True, False, True]


def test_a_latency_of_zero_is_missing(tmp_path) -> None:
    zero = {**result(), "ttfts": [0.25, 0.0, 0.0], "latencies": [0.75, 0.0, 0.0]}
    (run,) = read(tmp_path, zero)
    assert np.isnan(run.requests.last_token).tolist() == [False, True, True]


def test_several_tokens_in_one_chunk(tmp_path) -> None:
    bundled = result()
    bundled["output_lens"][0], bundled["total_output_tokens"] = 40, 41
    (run,) = read(tmp_path, bundled)
    assert run.itl_counts[0] == 3 < run.requests.output_tokens[0] - 1


def test_all_requests_failed(tmp_path) -> None:
    (run,) = read(
        tmp_path,
        {
            **result(),
            "completed": 0,
            "failed": 3,
            "total_input_tokens": 0,
            "total_output_tokens": 0,
            "errors": ["x", "y", "z"],
        },
    )
    assert not run.requests.succeeded.any()
    assert run.itl.size == 0


times = st.integers(1, 10**6).map(lambda micros: micros / 1e6)


@given(st.lists(st.tuples(times, st.lists(times, max_size=6), st.booleans()), min_size=1))
def test_a_synthetic_run_comes_back(tmp_path_factory, rows) -> None:
    done = [ok for *_, ok in rows]
    lens = [1 + len(gaps) if ok else 0 for _, gaps, ok in rows]
    (run,) = read(
        tmp_path_factory.mktemp("v"),
        {
            "request_rate": "inf",
            "duration": 1e6,
            "completed": sum(done),
            "failed": len(done) - sum(done),
            "total_input_tokens": 7 * sum(done),
            "total_output_tokens": sum(lens),
            "input_lens": [7] * len(rows),
            "output_lens": lens,
            "ttfts": [ttft if ok else 0.0 for ttft, _, ok in rows],
            "itls": [gaps if ok else [] for _, gaps, ok in rows],
            "errors": ["" if ok else "no" for ok in done],
        },
    )
    kept = [(ttft, gaps) for ttft, gaps, ok in rows if ok]
    felt = run.requests.metrics()
    assert run.requests.succeeded.tolist() == done
    assert felt.ttft.tolist() == [ttft for ttft, _ in kept]
    assert run.itl.tolist() == [gap for _, gaps in kept for gap in gaps]
    assert felt.e2e_latency.tolist() == pytest.approx([t + sum(gaps) for t, gaps in kept])


# Damaged vLLM files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"r\.json: the file is empty"),
        (" \n\t\n", r"r\.json: the file is empty"),
        ("hello", r"r\.json, line 1: not valid JSON: Expecting value"),
        ("date,duration\n1,2\n", r"r\.json, line 1: not valid JSON"),
        (json.dumps(result())[:-40], r"r\.json, line 1: not valid JSON"),
        (json.dumps(result(), indent=1)[:-30], r"r\.json, line \d\d: not valid JSON"),
        (json.dumps(result()) + "\n{", r"r\.json, line 2: not valid JSON"),
        (json.dumps(result()) + "\nnull", r"r\.json, line 2: expected a JSON object: got None"),
        ("[1, 2]", r"r\.json, line 1: expected a JSON object: got \[1, 2\]"),
        ("3.5", r"r\.json, line 1: expected a JSON object: got 3.5"),
        ("[" * 100_000, r"r\.json, line 1: not valid JSON: nested too deeply"),
        ('{"duration": 1, "duration": 2}', r"r\.json, line 1: key 'duration' appears twice"),
        (json.dumps(result()).replace("0.25,", "NaN,"), r"line 1: NaN is not a JSON number"),
        (json.dumps(result()).replace("3.0", "-Infinity"), r"-Infinity is not a JSON number"),
        ("{}", r"r\.json, line 1: key 'duration' is missing"),
    ],
)
def test_files_that_are_no_result(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_vllm(write(tmp_path, text=text))


def put(key: str, value: Any) -> Change:
    return lambda run: run.update({key: value})


def put_at(key: str, index: int, value: Any) -> Change:
    return lambda run: run[key].__setitem__(index, value)


def drop(key: str) -> Change:
    return lambda run: run.pop(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("duration"), "key 'duration' is missing"),
        (drop("completed"), "key 'completed' is missing"),
        (drop("request_rate"), "key 'request_rate' is missing"),
        (drop("total_output_tokens"), "key 'total_output_tokens' is missing"),
        (drop("ttfts"), "key 'ttfts' is missing"),
        (drop("itls"), "key 'itls' is missing"),
        (drop("output_lens"), "key 'output_lens' is missing"),
        (drop("errors"), "key 'errors' is missing"),
        (put("duration", "3"), "duration must be a number: got '3'"),
        (put("duration", True), "duration must be a number: got True"),
        (put("duration", None), "duration must be a number: got None"),
        (put("duration", -3.0), "duration must be >= 0: got -3"),
        (put("duration", 0), "duration must be > 0: got 0"),
        (put("duration", float("inf")), "duration must be finite: got inf"),
        (put("duration", 1.0), r"duration must cover its requests: got 1 s .* span 1.5 s"),
        (put("mean_ttft_ms", float("inf")), "mean_ttft_ms must be finite: got inf"),
        (put("completed", 1.5), "completed must be a whole number: got 1.5"),
        (put("completed", 3), r"completed must agree with the rows: got 3 for 2 rows with tokens"),
        (put("failed", 0), "failed must agree with the rows: got 0 for 1 rows without tokens"),
        (put("total_input_tokens", 45), r"total_input_tokens must agree .*: got 45 for 30 input"),
        (put("total_output_tokens", 6), r"total_output_tokens must agree .*: got 6 for 5 output"),
        (put("request_rate", "fast"), "request_rate must be a number: got 'fast'"),
        (put("request_rate", 0), "request_rate must be > 0: got 0"),
        (put("request_rate", -2), "request_rate must be >= 0: got -2"),
        (put("request_rate", None), "request_rate must be a number: got None"),
        (put("max_concurrency", 1.5), "max_concurrency must be a whole number: got 1.5"),
        (put("max_concurrency", "16"), "max_concurrency must be a number: got '16'"),
        (put("ttfts", 0.25), "ttfts must be a list: got 0.25"),
        (put("ttfts", {"0": 0.25}), "ttfts must be a list: got {'0': 0.25}"),
        (put("ttfts", []), r"ttfts must hold at least one request: got \[\]"),
        (put_at("ttfts", 2, None), r"ttfts\[2\] must be a number: got None"),
        (put_at("ttfts", 2, "0.5"), r"ttfts\[2\] must be a number: got '0.5'"),
        (put_at("ttfts", 2, -0.5), "ttfts must be >= 0: got -0.5 at index 2"),
        (put_at("ttfts", 2, float("inf")), r"ttfts must be finite .*: got inf at index 2"),
        (put_at("latencies", 2, 0.0), r"latency must be >= the request's ttft .* got 0 at index 2"),
        (put_at("ttfts", 2, 0.6), r"latency must be >= the request's ttft .* got 0.5 at index 2"),
        (
            put_at("itls", 0, [125, 250, 125]),
            r"latency must be >= .* sum\(itl\): got 0.75 at index 0",
        ),
        (put_at("itls", 0, [0.125, 0.25, 0.126]), r"latency must be >= .* sum\(itl\): got 0.75"),
        (put_at("ttfts", 0, 10**400), "ttfts must fit a float64"),
        (put_at("latencies", 0, -0.75), "latencies must be >= 0: got -0.75 at index 0"),
        (put("latencies", [0.75, 0.0]), "latencies must have one value a request: got 2 for 3"),
        (put("start_times", [1.0]), "start_times must have one value a request: got 1 for 3"),
        (put("itls", [[], []]), "itls must have one value a request: got 2 for 3 ttfts"),
        (put("input_lens", [10]), "input_lens must have one value a request: got 1 for 3"),
        (put("errors", [""] * 4), "errors must have one value a request: got 4 for 3"),
        (put_at("errors", 0, None), r"errors\[0\] must be a text: got None"),
        (put_at("itls", 0, 0.125), r"itls\[0\] must be a list: got 0.125"),
        (put_at("itls", 0, [0.1, "x", 0.1]), r"itls\[0\]\[1\] must be a number: got 'x'"),
        (put_at("itls", 0, [0.1, -0.1, 0.1]), r"itls\[0\] must be >= 0: got -0.1 at index 1"),
        (put_at("itls", 0, [0.1, None]), r"itls\[0\]\[1\] must be a number: got None"),
        (put_at("output_lens", 0, 4.5), "output_lens must be a whole number: got 4.5 at index 0"),
        (put_at("output_lens", 0, -4), "output_lens must be >= 0: got -4 at index 0"),
        (put_at("output_lens", 0, 5), r"total_output_tokens must agree .*: got 5 for 6 output"),
        (put_at("input_lens", 0, 11), r"total_input_tokens must agree .*: got 30 for 31 input"),
        (put_at("errors", 0, "boom"), "completed must agree with the rows: got 2 for 1 rows"),
    ],
)
def test_damaged_results(change, message, tmp_path) -> None:
    damaged = result()
    change(damaged)
    with pytest.raises(ValueError, match=rf"r\.json, line 2: {message}"):
        read(tmp_path, result(), damaged)


# Damaged files of the other tools -----------------------------------------------------------------


def aiperf_record() -> dict[str, Any]:
    return {
        "metadata": {"request_start_ns": 1796006975273735563, "benchmark_phase": "profiling"},
        "metrics": {
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
            "request_latency": {"value": 400.0, "unit": "ms"},
            "inter_token_latency": {"value": 150.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [100.0, 200.0], "unit": "ms"},
            "input_sequence_length": {"value": 266, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
        },
        "error": None,
    }


def test_aiperf_stamps_are_exact(tmp_path) -> None:
    """Nanoseconds since 1970 lie 256 apart in float64."""
    first, second = aiperf_record(), aiperf_record()
    second["metadata"]["request_start_ns"] += 1
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(first) + "\n" + json.dumps(second), "utf-8")
    assert read_aiperf(path).requests.arrival.tolist() == [0.0, 1e-9]


def test_aiperf_failures_and_one_token(tmp_path) -> None:
    failed, single, cancelled = aiperf_record(), aiperf_record(), aiperf_record()
    failed["error"] = {"code": 500, "type": "x", "message": "y"}
    failed["metrics"] = {"error_isl": {"value": 266, "unit": "tokens"}}
    single["metrics"]["output_sequence_length"]["value"] = 1
    single["metrics"]["request_latency"]["value"] = 100.0
    del single["metrics"]["inter_token_latency"], single["metrics"]["inter_chunk_latency"]
    cancelled["metadata"]["was_cancelled"] = True
    run = read_aiperf(write(tmp_path, aiperf_record(), failed, single, cancelled))
    assert run.requests.succeeded.tolist() == [True, False, True, False]
    assert np.isnan(run.requests.first_token).tolist() == [False, True, False, True]
    assert run.reported["inter_token_latency"][0] == 0.15
    assert np.isnan(run.reported["inter_token_latency"][1:]).all()
    assert run.itl_counts.tolist() == [2, 0, 0, 0]
    assert run.itl.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("metadata"), "line 2: key 'metadata' is missing"),
        (lambda r: r.update(metrics=[]), "line 2, key 'metrics': expected a JSON object"),
        (
            lambda r: r["metrics"].pop("request_latency"),
            "line 2, key 'metrics': key 'request_latency' is missing",
        ),
        (
            lambda r: r["metrics"]["request_latency"].update(unit="s"),
            "key 'request_latency': unit must be 'ms': got 's'",
        ),
        (
            lambda r: r["metrics"]["request_latency"].update(value=-1.0),
            "key 'request_latency': value must be >= 0: got -1",
        ),
        (
            lambda r: r["metadata"].update(request_start_ns="now"),
            "key 'metadata': request_start_ns must be a number: got 'now'",
        ),
        (
            lambda r: r["metrics"]["time_to_first_token"].update(value=500.0),
            "last_token must not precede first_token",
        ),
    ],
)
def test_damaged_aiperf(change, message, tmp_path) -> None:
    damaged = aiperf_record()
    change(damaged)
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_aiperf(write(tmp_path, aiperf_record(), damaged))


def test_aiperf_with_warm_up_only(tmp_path) -> None:
    record = aiperf_record()
    record["metadata"]["benchmark_phase"] = "warmup"
    with pytest.raises(ValueError, match=r"r\.json: no request of the profiling phase"):
        read_aiperf(write(tmp_path, record))


def guidellm_request(start: float = 1796007045.5) -> dict[str, Any]:
    return {
        "info": {
            "timings": {
                "request_start": start,
                "first_token_iteration": start + 0.5,
                "last_token_iteration": start + 1.5,
            }
        },
        "request_latency": 1.625,
        "prompt_tokens": 100,
        "output_tokens": 5,
        "time_to_first_token_ms": 500.0,
        "time_per_output_token_ms": 300.0,
        "inter_token_latency_ms": 250.0,
    }


def guidellm(**groups: Any) -> dict[str, Any]:
    groups = {"successful": [guidellm_request()], "errored": [], "incomplete": [], **groups}
    return {"benchmarks": [{"requests": groups, "duration": 2.0, "metrics": {}}]}


def test_guidellm_failures_and_one_token(tmp_path) -> None:
    single, unsent = guidellm_request(), guidellm_request()
    single["inter_token_latency_ms"] = None
    unsent["info"]["timings"]["request_start"] = None
    groups = {
        "successful": [guidellm_request(), single],
        "errored": [guidellm_request(1796007046.0)],
        "incomplete": [unsent],
    }
    (run,) = read_guidellm(write(tmp_path, guidellm(**groups)))
    assert run.requests.succeeded.tolist() == [True, True, False, False]
    assert run.requests.arrival[:3].tolist() == [0, 0, 0.5]
    assert np.isnan(run.requests.arrival[3])
    assert np.isnan(run.requests.output_tokens).tolist() == [False, False, True, True]
    assert run.reported["inter_token_latency"][0] == 0.25
    assert np.isnan(run.reported["inter_token_latency"][1:]).all()


def damaged_guidellm(key: str, value: Any) -> dict[str, Any]:
    return guidellm(successful=[{**guidellm_request(), key: value}])


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([guidellm(), guidellm()], "line 2: expected one JSON value in the file"),
        ([{"benchmarks": []}], "line 1: benchmarks must hold at least one run"),
        ([{"results": []}], "line 1: key 'benchmarks' is missing"),
        ([guidellm(successful=[])], "key 'requests': no request"),
        ([guidellm(successful=None)], "key 'successful': expected a list: got None"),
        ([damaged_guidellm("output_tokens", None)], "output_tokens must be a number: got None"),
        ([damaged_guidellm("request_latency", -1.0)], "request_latency must be >= 0: got -1"),
        ([damaged_guidellm("info", {})], "key 'timings' is missing"),
        ([damaged_guidellm("output_tokens", 2.5)], "output_tokens must be a whole number"),
    ],
)
def test_damaged_guidellm(runs, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_guidellm(write(tmp_path, *runs))


LLMPERF = {
    "error_code": None,
    "error_msg": "",
    "inter_token_latency_s": 0.02,
    "ttft_s": 0.5,
    "end_to_end_latency_s": 2.0,
    "number_output_tokens": 100,
    "number_input_tokens": 550,
}


def test_llmperf_failures(tmp_path) -> None:
    failed = {**LLMPERF, "error_code": 500, "ttft_s": 0, "end_to_end_latency_s": 0}
    run = read_llmperf(write(tmp_path, text=json.dumps([LLMPERF, failed])))
    assert run.requests.succeeded.tolist() == [True, False]
    assert np.isnan(run.requests.first_token).tolist() == [False, True]
    assert np.isnan(run.requests.output_tokens).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"line 1: no request"),
        (json.dumps(LLMPERF), r"line 1: expected a list"),
        ("[] []", r"line 1: expected one JSON value in the file"),
        (json.dumps([LLMPERF, 1]), r"line 1\[1\]: expected a JSON object: got 1"),
        (
            json.dumps([{**LLMPERF, "ttft_s": "x"}]),
            r"line 1\[0\]: ttft_s must be a number: got 'x'",
        ),
        (
            json.dumps([LLMPERF, {**LLMPERF, "number_output_tokens": 1.5}]),
            r"line 1\[1\]: number_output_tokens must be a whole number: got 1.5",
        ),
        (json.dumps([{**LLMPERF, "ttft_s": 3.0}]), r"line 1: last_token must not precede first"),
    ],
)
def test_damaged_llmperf(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, {message}"):
        read_llmperf(write(tmp_path, text=text))
