"""lib.benchmarks: SGLang and CSV files, new and old keys of vLLM, and formats by their content."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib._files import DATA
from lib.benchmarks import (
    FORMATS,
    SHIPPED,
    load,
    read,
    read_csv,
    read_sglang,
    read_vllm,
    recognise,
)
from lib.benchmarks import head as head_module


def write(folder: Path, *runs: Any, name: str = "r.json") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, runs)), "utf-8")
    return path


def without(run: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in keys}


# SGLang -------------------------------------------------------------------------------------------

DETAIL = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


def sglang() -> dict[str, Any]:
    """Four requests, the third of which failed, with every figure worked out by hand.

    E2E as the tool times it, to the end of the stream: 1.0, 0.75 and 0.25 s, so that
    concurrency = 2.0 / 4.0; TPOT (1.0 - 0.25) / 3 = 0.25 and (0.75 - 0.5) / 1 = 0.25 s.
    """
    return {
        "tag": None,
        "backend": "sglang-oai",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 8,
        "sharegpt_output_len": None,
        "random_input_len": 100,
        "random_output_len": 4,
        "random_range_ratio": 0.0,
        "server_info": {"model_path": "m", "internal_states": [{"x": 1}]},
        "duration": 4.0,
        "completed": 3,
        "total_input_tokens": 60,
        "total_input_text_tokens": 60,
        "total_input_vision_tokens": 0,
        "total_output_tokens": 7,
        "total_output_tokens_retokenized": 7,
        "request_throughput": 0.75,
        "input_throughput": 15.0,
        "output_throughput": 1.75,
        "total_throughput": 16.75,
        "mean_e2e_latency_ms": 2000 / 3,
        "median_e2e_latency_ms": 750.0,
        "mean_ttft_ms": 1000 / 3,
        "median_ttft_ms": 250.0,
        "p99_ttft_ms": 495.0,
        "mean_tpot_ms": 250.0,
        "std_tpot_ms": 0.0,
        "mean_itl_ms": 187.5,
        "p95_itl_ms": 250.0,
        "concurrency": 0.5,
        "accept_length": None,
        "max_output_tokens_per_s": 5.0,
        "max_concurrent_requests": 4,
        "input_lens": [10, 20, 25, 30],
        "output_lens": [4, 2, 0, 1],
        "ttfts": [0.25, 0.5, 0.0, 0.25],
        "itls": [[0.25, 0.25, 0.125], [0.125], [], []],
        "generated_texts": ["a b c d", "e", "", "g"],
        "errors": ["", "", "Internal Server Error", ""],
    }


def test_sglang(tmp_path) -> None:
    path = write(tmp_path, sglang())
    assert "Infinity" in path.read_text("utf-8")
    (run,) = read(path)
    assert (run.tool, run.format, run.source) == ("sglang", "sglang", "r.json")
    assert (run.duration, run.request_rate, run.max_concurrency) == (4.0, float("inf"), 8)
    log = run.requests
    assert not log.shared_clock
    assert log.succeeded.tolist() == [True, True, False, True]
    assert log.arrival.tolist() == [0, 0, 0, 0]
    done = [0, 1, 3]
    assert log.first_token[done].tolist() == [0.25, 0.5, 0.25]
    assert log.last_token[done].tolist() == [0.875, 0.625, 0.25]  # the gaps' end, not the stream's
    assert log.input_tokens.tolist() == [10, 20, 25, 30]
    assert log.output_tokens[done].tolist() == [4, 2, 1]
    assert np.isnan([log.first_token[2], log.last_token[2], log.output_tokens[2]]).all()
    assert run.itl.tolist() == [0.25, 0.25, 0.125, 0.125]
    assert run.itl_counts.tolist() == [3, 1, 0, 0]
    assert run.reported["ttft"][done].tolist() == [0.25, 0.5, 0.25]
    assert "server_info" in run.summary
    assert "generated_texts" not in run.summary
    assert any("concurrency cannot be recomputed" in note for note in run.notes)
    assert any("no latencies" in note for note in run.notes)
    assert not any("length" in note for note in run.notes)  # both counts are 7


def test_sglang_states_its_figures_in_seconds(tmp_path) -> None:
    (run,) = read_sglang(write(tmp_path, sglang()))
    assert run.stated == {
        "duration": 4.0,
        "completed": 3,
        "input_tokens": 60,
        "output_tokens": 7,
        "request_throughput": 0.75,
        "input_throughput": 15.0,
        "output_throughput": 1.75,
        "total_throughput": 16.75,
        "e2e.mean": pytest.approx(2 / 3),
        "e2e.median": 0.75,
        "ttft.mean": pytest.approx(1 / 3),
        "ttft.median": 0.25,
        "ttft.p99": 0.495,
        "tpot.mean": 0.25,
        "tpot.std": 0.0,
        "itl.mean": 0.1875,
        "itl.p95": 0.25,
        "concurrency": 0.5,
        "peak_output_throughput": 5.0,
        "peak_concurrency": 4,
    }
    assert run.limits == {}
    # What the rows carry agrees: TTFT, and ITL over the chunks' gaps.
    felt = run.requests.metrics()
    assert felt.ttft.mean() == pytest.approx(run.stated["ttft.mean"])
    assert np.percentile(felt.ttft, 99) == pytest.approx(run.stated["ttft.p99"])
    assert run.itl.mean() == run.stated["itl.mean"]


def test_sglang_without_details(tmp_path) -> None:
    (run,) = read(write(tmp_path, without(sglang(), *DETAIL)))
    assert run.requests is None
    assert run.itl is None
    assert run.stated["ttft.median"] == 0.25
    assert any("without --output-details" in note for note in run.notes)


def test_sglang_appends_its_runs(tmp_path) -> None:
    rates = (float("inf"), "inf", 2.5, "trace")
    runs = read(write(tmp_path, *({**sglang(), "request_rate": rate} for rate in rates)))
    assert [run.request_rate for run in runs] == [float("inf"), float("inf"), 2.5, None]
    assert ["trace" in " ".join(run.notes) for run in runs] == [False, False, False, True]


def test_sglang_goodput(tmp_path) -> None:
    """Two of the four sent meet TTFT <= 0.3 s and TPOT <= 0.3 s: the first and the last."""
    judged = {
        **sglang(),
        "goodput_slos_ms": {"ttft": 300.0, "tpot": 300.0, "e2el": 5000},
        "request_goodput": 0.5,
        "slo_attainment": 0.5,
        "slo_attainment_by_metric": {"ttft": 0.5, "tpot": 0.75},
    }
    (run,) = read(write(tmp_path, judged))
    assert run.limits == {"ttft": 0.3, "tpot": 0.3, "e2e": 5.0}
    assert run.stated["goodput"] == 0.5
    assert run.stated["attainment"] == 0.5
    for slos, message in [
        ({"ttft": -1}, "key 'goodput_slos_ms': ttft must be >= 0: got -1"),
        ({"ttft": 0}, "key 'goodput_slos_ms': ttft must be > 0: got 0"),
        ({"ttfs": 1}, "expected ttft, tpot, e2el: got 'ttfs'"),
        ([1], "key 'goodput_slos_ms': expected a JSON object"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(write(tmp_path, {**judged, "goodput_slos_ms": slos}))


def test_sglang_ttft_of_exactly_zero_is_missing(tmp_path) -> None:
    """Case T19: no text frame matched; the requested length stands in for the count."""
    blank = {
        **sglang(),
        "duration": 5.0,
        "completed": 1,
        "total_input_tokens": 10,
        "total_output_tokens": 1000,
        "total_output_tokens_retokenized": 0,
        "mean_ttft_ms": 0.0,
        "median_ttft_ms": 0.0,
        "p99_ttft_ms": 0.0,
        "mean_itl_ms": 0.0,
        "p95_itl_ms": 0.0,
        "mean_tpot_ms": 4.7649678,
        "mean_e2e_latency_ms": 4760.2028687,
        "input_lens": [10],
        "output_lens": [1000],
        "ttfts": [0.0],
        "itls": [[]],
        "generated_texts": [""],
        "errors": [""],
    }
    (run,) = read(write(tmp_path, blank))
    assert run.requests.succeeded.all()
    assert np.isnan([run.requests.first_token[0], run.requests.last_token[0]]).all()
    assert np.isnan(run.reported["ttft"]).all()
    assert not {key for key in run.stated if key.startswith(("ttft", "itl"))}
    assert run.stated["e2e.mean"] == pytest.approx(4.7602028687)
    said = " ".join(run.notes)
    assert "1 answers without a first token" in said
    assert "the mean of ttft, itl is 0" in said
    assert "1000, but the texts have 0 tokens" in said
    with pytest.raises(ValueError, match="first_token is missing for 1 of 1 requests"):
        run.requests.metrics()


def test_sglang_lengths_that_were_requested(tmp_path) -> None:
    (run,) = read(write(tmp_path, {**sglang(), "total_output_tokens_retokenized": 5}))
    assert any("7, but the texts have 5 tokens" in note for note in run.notes)


def test_sglang_input_tokens_of_the_data_set(tmp_path) -> None:
    """The total counts the data set's prompts, the rows what the server counted."""
    (run,) = read(write(tmp_path, {**sglang(), "total_input_tokens": 0}))
    assert any("input_lens adds up to 60" in note for note in run.notes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("completed", 4, "completed must agree with the rows: got 4 for 3 rows with tokens"),
        ("total_output_tokens", 8, "total_output_tokens must agree .*: got 8 for 7 output_lens"),
        ("ttfts", [250, 500, 0, 250], r"ttft \+ sum\(itl\) must be <= .*, 4 s \(.*milli.*got 250"),
        ("ttfts", [0.25, -0.5, 0, 0.25], "ttfts must be >= 0: got -0.5 at index 1"),
        ("ttfts", [0.25], "output_lens must have one value a request: got 4 for 1|input_lens"),
        ("ttfts", None, "ttfts must be a list: got None"),
        ("itls", [[0.25], [], []], "itls must have one value a request: got 3 for 4 ttfts"),
        ("itls", [[0.25], 5, [], []], r"itls\[1\] must be a list: got 5"),
        ("itls", [[0.25], ["x"], [], []], r"itls\[1\]\[0\] must be a number: got 'x'"),
        ("errors", ["", "", "x"], "errors must have one value a request: got 3 for 4"),
        ("errors", ["", "", None, ""], r"errors\[2\] must be a text: got None"),
        ("output_lens", [4, 2, 0, 0.5], "output_lens must be a whole number: got 0.5 at index 3"),
        ("duration", 0, "duration must be > 0: got 0"),
        ("duration", "4", "duration must be a number: got '4'"),
        ("request_rate", "fast", "request_rate must be a number: got 'fast'"),
        ("request_rate", None, "request_rate must be a number: got None"),
        ("concurrency", float("inf"), "concurrency must be finite: got inf"),
        ("concurrency", "x", "concurrency must be a number: got 'x'"),
        ("mean_ttft_ms", "x", "mean_ttft_ms must be a number: got 'x'"),
        ("p99_ttft_ms", True, "p99_ttft_ms must be a number: got True"),
        ("max_concurrency", 1.5, "max_concurrency must be a whole number: got 1.5"),
    ],
)
def test_damaged_sglang(key, value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 2: ({message})"):
        read_sglang(write(tmp_path, sglang(), {**sglang(), key: value}))


@pytest.mark.parametrize(
    "key", ["duration", "completed", "request_rate", "total_output_tokens", "errors", "ttfts"]
)
def test_sglang_with_a_key_missing(key, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 1: key '{key}' is missing"):
        read_sglang(write(tmp_path, without(sglang(), key)))


# vLLM: what `stated`, `due` and `notes` hold ------------------------------------------------------


def vllm() -> dict[str, Any]:
    return json.loads((DATA / SHIPPED["vllm/3rps"]).read_text("utf-8"))


def test_vllm_states_its_figures_in_seconds() -> None:
    run, file = load("vllm/3rps"), vllm()
    assert run.format == "vllm"
    assert run.source == "vllm-0.32-poisson-3rps.json"
    assert run.limits == {}  # the file does not name the limits of its goodput
    assert run.notes == ()
    for metric, own in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}.items():
        for statistic in ("mean", "median", "std", "p99"):
            stated = run.stated[f"{metric}.{statistic}"]
            assert stated == pytest.approx(file[f"{statistic}_{own}_ms"] / 1000, rel=1e-15)
    assert {k: v for k, v in run.stated.items() if "." not in k} == {
        "duration": file["duration"],
        "completed": 120,
        "failed": 0,
        "input_tokens": 37011,
        "output_tokens": 7415,
        "request_throughput": file["request_throughput"],
        "goodput": file["request_goodput"],
        "output_throughput": file["output_throughput"],
        "total_throughput": file["total_token_throughput"],
        "peak_output_throughput": 381.0,
        "peak_concurrency": 11,
    }


def test_vllm_newer_statistics(tmp_path) -> None:
    newer = {
        **vllm(),
        "request_goodput": None,
        "p99.9_ttft_ms": 500.0,
        "p5_e2el_ms": 20.0,
        "mean_client_queue_time_ms": 1.5,
        "p99_e2el_including_client_queue_ms": 2500.0,
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_per_position_acceptance_rates": [0.5, 0.25],
        "probe_median_e2el_ms": 3.0,
        "median_mood_ms": "bad",
        "server_queue_times": [None] * 120,
        "server_ttfts": [0.1] * 120,
    }
    (run,) = read_vllm(write(tmp_path, newer))
    assert run.stated["ttft.p99.9"] == 0.5
    assert run.stated["e2e.p5"] == 0.02
    assert run.stated["client_queue_time.mean"] == 0.0015
    assert run.stated["e2e_including_client_queue.p99"] == 2.5
    assert "goodput" not in run.stated
    assert run.summary["spec_decode_acceptance_rate"] == 50.0
    assert "spec_decode_per_position_acceptance_rates" not in run.summary
    assert "server_ttfts" not in run.summary


def test_vllm_ramp_up(tmp_path) -> None:
    ramp = {
        **vllm(),
        "request_rate": "inf",
        "ramp_up_strategy": "linear",
        "ramp_up_start_rps": 1,
        "ramp_up_end_rps": 5,
        "rps_change_events": [{"rps": 2, "timestamp": "x"}],
    }
    (run,) = read_vllm(write(tmp_path, ramp))
    assert run.notes == ("the rate ramps up (linear) from 1 to 5 requests/s",)


def test_vllm_requests_were_due_before_the_client_let_them_go(tmp_path) -> None:
    file = vllm()
    run = load("vllm/3rps")
    wait = run.requests.arrival - run.due
    assert np.abs(wait - np.array(file["queue_times"])).max() < 1e-12
    # A request that failed unsent started at 0, so its wait is minus the time it came.
    file["queue_times"][0], file["start_times"][0], file["errors"][0] = -2500.0, 0.0, "no"
    file["completed"], file["failed"] = 119, 1
    file["total_input_tokens"] -= file["input_lens"][0]
    file["total_output_tokens"] -= file["output_lens"][0]
    (run,) = read_vllm(write(tmp_path, file))
    assert np.isnan(run.due).tolist() == [True] + [False] * 119
    file["queue_times"][1] = -1.0
    with pytest.raises(ValueError, match="queue_times must be >= 0: got -1 at index 1"):
        read_vllm(write(tmp_path, file))
    assert read_vllm(write(tmp_path, without(file, "queue_times")))[0].due is None


def test_vllm_without_detail_in_033(tmp_path) -> None:
    """`latencies` and `queue_times` stay in the file; they say nothing without the rest."""
    gone = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts")
    (run,) = read(write(tmp_path, without(vllm(), *gone, "errors")))
    assert run.requests is None
    assert run.due is None
    assert run.stated["ttft.mean"] == pytest.approx(0.14179221228331852)
    assert any("without --save-detailed" in note for note in run.notes)


def test_vllm_notes_on_older_files(tmp_path) -> None:
    (run,) = read(write(tmp_path, without(vllm(), "latencies", "start_times", "queue_times")))
    assert run.notes == (
        "E2E is ttft + sum(itl): the file has no latencies",
        "no send times: each request has its own clock",
    )
    assert run.stated == load("vllm/3rps").stated


def test_vllm_milliseconds_without_send_times(tmp_path) -> None:
    slow = without(vllm(), "start_times", "queue_times", "latencies")
    slow["ttfts"] = [1000 * t for t in slow["ttfts"]]
    with pytest.raises(ValueError, match=r"latency must be <= the run's duration, 40\.95"):
        read(write(tmp_path, slow))


def test_vllm_with_no_value_states_no_zero(tmp_path) -> None:
    """All requests failed: the tool writes 0 for every statistic."""
    file = vllm()
    statistics = [key for key in file if key.endswith("_ms")]
    failed = {
        **file,
        **dict.fromkeys(statistics, 0.0),
        "completed": 0,
        "failed": 120,
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "output_lens": [0] * 120,
        "errors": ["x"] * 120,
    }
    (run,) = read(write(tmp_path, failed))
    assert not [key for key in run.stated if "." in key]
    assert any("the mean of ttft, tpot, itl, e2el is 0" in note for note in run.notes)


# CSV ----------------------------------------------------------------------------------------------

HEADER = "arrival,first_token,last_token,input_tokens,output_tokens,succeeded,request_id,note"
ROWS = [
    '1.5,2.0,4.0,10,5,True,a,"x, y"',
    "2,2.25,2.25,20,1,1,b,",
    "3.125,,,30,,false,c,lost",
]


def table(folder: Path, *lines: str, end: str = "\n", name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(end.join(lines).encode("utf-8"))
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv(end, last, mark, tmp_path) -> None:
    path = table(tmp_path, mark + HEADER, *ROWS[:2], ROWS[2] + last.replace("\n", end), end=end)
    assert recognise(path) == "csv"
    (run,) = read(path)
    assert (run.tool, run.format, run.source) == ("csv", "csv", "t.csv")
    log = run.requests
    assert log.arrival.tolist() == [1.5, 2, 3.125]
    assert log.first_token[:2].tolist() == [2.0, 2.25]
    assert log.last_token[:2].tolist() == [4.0, 2.25]
    assert log.input_tokens.tolist() == [10, 20, 30]
    assert log.output_tokens[:2].tolist() == [5, 1]
    assert np.isnan([log.first_token[2], log.last_token[2], log.output_tokens[2]]).all()
    assert log.succeeded.tolist() == [True, True, False]
    assert log.request_id.tolist() == ["a", "b", "c"]
    assert log.shared_clock
    assert log.metrics().tpot.tolist()[0] == 0.5


def test_csv_that_the_engine_recorder_writes() -> None:
    (run,) = read(DATA / "engine_cpu/rate2_requests.csv")
    assert run.requests.arrival[0] == 0.100444
    assert run.requests.scheduled[0] == 0.101311
    assert run.requests.column("queued").size == len(run.requests)


def test_csv_with_names_of_its_own_and_durations_in_ms(tmp_path) -> None:
    path = table(tmp_path, "ts,TTFT,lat,n_in,n_out", "5000,250,1250,10,3", "5500,,,20,")
    names = {
        "arrival": "ts",
        "ttft": "TTFT",
        "e2e": "lat",
        "input_tokens": "n_in",
        "output_tokens": "n_out",
    }
    (run,) = read(path, columns=names, unit="ms")
    assert run.requests.arrival.tolist() == [0, 0.5]
    assert run.requests.first_token[0] == 0.25
    assert run.requests.last_token[0] == 1.25
    assert np.isnan(run.requests.last_token[1])
    with pytest.raises(ValueError, match=r"t\.csv: no known result file: a table with the columns"):
        read(path)


def test_csv_in_nanoseconds_since_1970(tmp_path) -> None:
    path = table(
        tmp_path,
        "arrival,due,first_token,last_token",
        "1796006975273735563,1796006975273000000,1796006975373735563,1796006975473735563",
        "1796006976273735563,1796006976273735563,1796006976373735563,1796006976473735563",
    )
    with pytest.raises(ValueError, match=r"t\.csv: arrival must be in s, before the year 5000"):
        read(path)
    with pytest.raises(ValueError, match=r"arrival must be in ms, before the year 5000"):
        read_csv(path, unit="ms")
    run = read_csv(path, unit="ns")
    # float64 steps by 256 ns here.
    assert run.requests.arrival.tolist() == pytest.approx([0, 1], abs=6e-7)
    assert run.requests.first_token.tolist() == pytest.approx([0.1, 1.1], abs=6e-7)
    assert run.due.tolist() == pytest.approx([-735.563e-6, 1], abs=6e-7)


def test_csv_of_durations_only(tmp_path) -> None:
    run = read_csv(table(tmp_path, "ttft,e2e,output_tokens", "0.5,1.5,3", "0.25,0.25,1"))
    assert not run.requests.shared_clock
    assert run.requests.metrics().e2e_latency.tolist() == [1.5, 0.25]
    assert np.isnan(run.requests.input_tokens).all()
    assert run.notes == ("no arrivals: each request has its own clock",)


def test_csv_takes_a_renamed_column_once(tmp_path) -> None:
    """The column `arrival` is the server's: the client's stamps are called `sent`."""
    path = table(tmp_path, "sent,arrival,last_token", "1,2,3", "4,5,6")
    run = read_csv(path, {"arrival": "sent", "queued": "arrival"})
    assert run.requests.arrival.tolist() == [1, 4]
    assert run.requests.queued.tolist() == [2, 5]
    assert run.requests.last_token.tolist() == [3, 6]


def test_csv_over_many_blocks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lib.benchmarks.table._ROWS", 3)
    rows = [f"{i / 8},{i}" for i in range(10)]
    run = read_csv(table(tmp_path, "arrival,input_tokens", *rows))
    assert run.requests.arrival.tolist() == [i / 8 for i in range(10)]
    assert run.requests.input_tokens.tolist() == list(range(10))
    rows[7] = "0.875,-7"
    with pytest.raises(ValueError, match=r"t\.csv, line 9: input_tokens must be a whole number"):
        read_csv(table(tmp_path, "arrival,input_tokens", *rows))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["arrival,x"], r"t\.csv: no row follows the header"),
        (["x,y", "1,2"], r"t\.csv, line 1: the table must have a column for arrival, ttft or e2e"),
        (["arrival,arrival", "1,2"], r"t\.csv, line 1: column 'arrival' appears twice"),
        (["arrival,ttft,first_token", "1,2,3"], "first_token must be given once: got ttft as well"),
        (["arrival,x", "1,2,3"], r"t\.csv, line 2: expected 2 fields \(arrival,x\): got '1,2,3'"),
        (["arrival,x", "1,2", "", "3,4"], r"t\.csv, line 3: expected 2 fields"),
        (["arrival,x", "1,2", "3"], r"t\.csv, line 3: expected 2 fields"),
        (["arrival,x", "1,2", "-3,4"], r"t\.csv, line 3: arrival must be a number >= 0, .*'-3'"),
        (["arrival,x", "1,2", "nan,4"], r"t\.csv, line 3: arrival must be a number .*'nan'"),
        (["arrival,x", "1,2", "inf,4"], r"t\.csv, line 3: arrival must be a number .*'inf'"),
        (["arrival,x", "1,2", "1_0,4"], r"t\.csv, line 3: arrival must be a number .*'1_0'"),
        (["arrival,x", "1,2", " 3,4"], r"t\.csv, line 3: arrival must be a number .*' 3'"),
        (["arrival,x", "1,2", "١,4"], r"t\.csv, line 3: arrival must be a number"),
        (["arrival,x", "1,2", "0x1p3,4"], r"t\.csv, line 3: arrival must be a number"),
        (["arrival,x", "1e999,4"], r"t\.csv.*arrival must be in s"),
        (["arrival,output_tokens", "1,2.5"], r"line 2: output_tokens must be a whole number"),
        (["arrival,succeeded", "1,yes"], r"line 2: succeeded must be true or false, 1 or 0"),
        (["arrival,first_token", "1,2", "5,4"], r"t\.csv.*first_token must not precede arrival"),
        (["arrival,first_token", '1,"2', "5,4"], r"t\.csv, line 3: unexpected end of data"),
        (["arrival,first_token", '1,"2"x', "5,4"], r"t\.csv, line 2: ',' expected after '\"'"),
        (["arrival;x", "1;2"], r"t\.csv, line 1: expected JSON or a CSV header: got 'arrival;x'"),
    ],
)
def test_damaged_csv(lines, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_csv(table(tmp_path, *lines))


def test_csv_arguments(tmp_path) -> None:
    path = table(tmp_path, "arrival,x", "1,2")
    with pytest.raises(TypeError, match="columns must be a mapping of names"):
        read_csv(path, ["arrival"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a name in columns must be one of 'arrival'"):
        read_csv(path, {"arival": "x"})
    with pytest.raises(ValueError, match="no column 'y' for queued: the header is arrival,x"):
        read_csv(path, {"queued": "y"})
    with pytest.raises(ValueError, match="unit must be one of 's', 'ms', 'us', 'ns': got 'min'"):
        read_csv(path, unit="min")


# Formats by their content -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_are_recognised_whatever_their_name(name, tmp_path) -> None:
    copy = tmp_path / "results.txt"
    copy.write_bytes((DATA / SHIPPED[name]).read_bytes())
    assert recognise(copy) == name.split("/")[0]
    run = read(copy)[0]
    assert run.format == name.split("/")[0]
    assert run.source == "results.txt"
    assert len(run.requests) == len(load(name).requests)


def test_every_format_says_what_it_is() -> None:
    assert {"vllm", "sglang", "csv", *(name.split("/")[0] for name in SHIPPED)} <= set(FORMATS)
    assert all(FORMATS.values())


def test_vllm_and_sglang_are_told_apart(tmp_path) -> None:
    assert recognise(write(tmp_path, vllm())) == "vllm"
    assert recognise(write(tmp_path, without(vllm(), *DETAIL))) == "vllm"
    assert recognise(write(tmp_path, sglang())) == "sglang"
    assert recognise(write(tmp_path, without(sglang(), *DETAIL))) == "sglang"


def test_recognition_reads_a_bounded_head(tmp_path, monkeypatch) -> None:
    """The keys in front of the long lists are enough, and a cut-off value does no harm."""
    monkeypatch.setattr(head_module, "SIZE", 900)
    for file, name in ((vllm(), "vllm"), (sglang(), "sglang")):
        path = write(tmp_path, file)
        assert path.stat().st_size > 900
        assert recognise(path) == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (gzip.compress(b'{"completed": 1}'), "the file is gzip-compressed: unpack it first"),
        (b"PK\x03\x04....", "the file is a zip archive: unpack it first"),
        (b"\x28\xb5\x2f\xfd....", "the file is zstd-compressed: unpack it first"),
        ('{"completed": 1}'.encode("utf-16"), "the file is UTF-16 text: save it as UTF-8"),
        ('{"completed": 1}'.encode("utf-16-be"), "the file must be text: byte 0 is 0"),
        (b"PAR1\x15\x04", "the file is a Parquet table: save it as CSV"),
        (b"\x80\x04\x95\x8c", "the file must be UTF-8 text: bad byte 0"),
        (b'{"a": "\xe9"}', "the file must be UTF-8 text: bad byte 7"),
        (b"\x7fELF\x02\x01\x01\x00", "the file must be text: byte 7 is 0"),
        (b"<!DOCTYPE html><title>502</title>", "the file is a web page or XML"),
        (b"Traceback (most recent call last):", "line 1: expected JSON or a CSV header"),
        (b"============ Serving Benchmark Result ====", "line 1: expected JSON or a CSV header"),
        (b"{}", "no known result file: a JSON object without names"),
        (b"[]", "no known result file: a JSON list of objects without names"),
        (b"[[1]]", "no known result file: a JSON list of objects without names"),
        (b"3.5", "line 1: expected JSON or a CSV header: got '3.5'"),
        (b'{"a": 1, "b": 2}', "no known result file: a JSON object with the keys a, b. Known"),
        (b"{'completed': 1}", "no known result file: a JSON object without names"),
        (b"a,b\n1,2\n", "no known result file: a table with the columns a, b"),
        (b"[" * 100_000, "no known result file"),
        (b'{"x": ' * 100_000, "no known result file: a JSON object with the keys x"),
    ],
)
def test_files_that_no_format_fits(content, message, tmp_path) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^f(, |: ){message}"):
        read(path)


def test_paths_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        read(tmp_path / "nothing.json")
    with pytest.raises(OSError, match=tmp_path.name):  # a directory
        read(tmp_path)


def test_a_file_that_fits_twice_is_not_guessed_at(tmp_path) -> None:
    both = {**vllm(), "benchmarks": [], "metadata": {"guidellm_version": "1"}}
    with pytest.raises(ValueError, match=r"it fits vllm and guidellm: name the format"):
        read(write(tmp_path, both))


def test_a_forced_format(tmp_path) -> None:
    path = write(tmp_path, sglang())
    assert read(path, format="sglang")[0].tool == "sglang"
    with pytest.raises(ValueError, match=r"format must be one of 'vllm', .*: got 'excel'"):
        read(path, format="excel")
    with pytest.raises(ValueError, match="columns and unit are for CSV tables"):
        read(path, format="sglang", unit="ms")
    with pytest.raises(ValueError, match="columns and unit are for CSV tables"):
        read(path, format="vllm", columns={"arrival": "t"})


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("vllm", "sglang")])
def test_a_forced_format_that_does_not_fit_is_refused(name, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^r\.json"):
        read(write(tmp_path, sglang()), format=name)


def test_a_truncated_file_is_recognised_and_refused(tmp_path) -> None:
    whole = json.dumps(vllm())
    path = tmp_path / "cut.json"
    for share in (0.1, 0.5, 0.9):
        path.write_text(whole[: int(len(whole) * share)], "utf-8")
        assert recognise(path) == "vllm"
        with pytest.raises(ValueError, match=r"cut\.json, line 1: not valid JSON"):
            read(path)


@pytest.mark.parametrize("make", [vllm, sglang])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.replace('"duration"', '"completed"', 1), "key 'completed' appears twice"),
        (lambda t: t.replace('"errors": [""', '"errors": [NaN'), "NaN is not a JSON number"),
        (lambda t: t.replace('"ttfts": [', '"ttfts": [,'), "not valid JSON: Expecting value"),
        (lambda t: t + "\n<html>", "not valid JSON: Expecting value"),
        (lambda t: t + ",", "not valid JSON: Expecting value"),
        (lambda t: t[:-1], "not valid JSON: Expecting ',' delimiter"),
        (lambda t: t + "\n[1]", r"expected a JSON object: got \[1\]"),
        (lambda t: t.replace(': "', ': "\x00', 1), "must be text|Invalid control character"),
    ],
)
def test_damaged_text(make, damage, message, tmp_path) -> None:
    path = tmp_path / "d.json"
    path.write_text(damage(json.dumps(make())), "utf-8")
    with pytest.raises(ValueError, match=rf"^d\.json(: the file |, line \d: )({message})"):
        read(path)


# Memory -------------------------------------------------------------------------------------------


def test_memory_follows_the_record_not_the_file(tmp_path) -> None:
    """Texts of 40 MB pass through; the record of 2,000 requests is small."""
    import tracemalloc

    n = 2000
    big = {
        **sglang(),
        "duration": 1e6,
        "completed": n,
        "total_input_tokens": n,
        "total_output_tokens": n,
        "input_lens": [1] * n,
        "output_lens": [1] * n,
        "ttfts": [0.5] * n,
        "itls": [[]] * n,
        "generated_texts": ["x" * 20_000] * n,
        "errors": [""] * n,
    }
    path = write(tmp_path, big)
    del big
    assert path.stat().st_size > 4e7
    tracemalloc.start()
    (run,) = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.requests) == n
    # The head, and a window with the block that is read into it.
    assert peak < 1.2e7
