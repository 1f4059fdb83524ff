"""Readers of AIPerf, GuideLLM, inference-perf, llmperf and GenAI-Perf: real files against their
own figures, every kind of row, and files gone wrong."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib._files import DATA
from lib.benchmarks import (
    read,
    read_aiperf,
    read_aiperf_csv,
    read_aiperf_summary,
    read_genai_perf,
    read_genai_perf_summary,
    read_guidellm,
    read_inference_perf,
    read_inference_perf_stage,
    read_llmperf,
    read_llmperf_summary,
    recognise,
)

AIPERF = DATA / "aiperf"
STAGES = sorted((DATA / "inference_perf").glob("stage_*.json"))
LLMPERF = ("anyscale_7b", "groq_70b")


def write(folder: Path, value: Any, name: str = "r.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def lines(*rows: Any) -> str:
    return "\n".join(map(json.dumps, rows))


def statistics(values: np.ndarray, ddof: int = 0) -> dict[str, float]:
    """What the tools with linear percentiles write about a list of times."""
    return {
        "mean": values.mean(),
        "median": np.median(values),
        "std": values.std(ddof=ddof),
        "min": values.min(),
        "max": values.max(),
        **{f"p{q}": np.percentile(values, q) for q in (25, 75, 90, 95, 99)},
    }


# Real files: the tool's own figures are the witness -----------------------------------------------


def test_aiperf_states_what_its_rows_give() -> None:
    run = read_aiperf(AIPERF / "profile_export.jsonl")
    felt = run.requests.metrics()
    for word, values in {
        "ttft": felt.ttft,
        "itl": felt.tpot,
        "e2e": felt.e2e_latency,
        "chunk_itl": run.itl,
    }.items():
        for name, value in statistics(values).items():
            # Stamps carry 1 ns; AIPerf estimates the percentiles of its 4,428 gaps by t-digest.
            share = 1e-2 if word == "chunk_itl" and name.startswith(("p", "med")) else 1e-6
            assert run.stated[f"{word}.{name}"] == pytest.approx(value, rel=share, abs=1e-9)
    assert run.stated["completed"] == 80
    assert run.stated["input_tokens"] == run.requests.input_tokens.sum()
    assert run.stated["output_tokens"] == run.requests.output_tokens.sum()
    good = (felt.ttft <= run.limits["ttft"]) & (felt.tpot <= run.limits["itl"])
    assert run.stated["good"] == good.sum()
    assert run.stated["attainment"] == pytest.approx(good.mean(), rel=1e-12)
    # A rate divides by the client's wall clock, not by the stated duration, which is the span.
    assert run.stated["goodput"] == pytest.approx(good.sum() / run.duration, rel=1e-7)
    assert run.stated["request_throughput"] == pytest.approx(80 / run.duration, rel=1e-7)
    assert run.duration > 1.01 * run.stated["duration"]


def test_aiperf_due_precedes_the_send() -> None:
    run = read_aiperf(AIPERF / "profile_export.jsonl")
    own = json.loads((AIPERF / "profile_export_aiperf.json").read_text("utf-8"))
    wait = (run.requests.arrival - run.due) * 1e3
    assert (wait > 0).all()
    for name, key in (("mean", "avg"), ("max", "max"), ("p99", "p99")):
        # AIPerf subtracts epoch stamps in float64, where the last place is 256 ns.
        told = own["credit_to_start_latency"][key]
        assert statistics(wait)[name] == pytest.approx(told, abs=3e-4)


def test_aiperf_says_what_it_did() -> None:
    run = read_aiperf(AIPERF / "profile_export.jsonl")
    assert (run.tool, run.format, run.source) == ("aiperf", "aiperf", "profile_export.jsonl")
    assert run.notes[0] == "4 warm-up requests are left out"
    assert "counts otherwise in 2 answers" in run.notes[1]
    assert run.request_rate == 3
    assert run.max_concurrency is None
    assert np.array_equal(run.first_content, run.requests.first_token)


def test_aiperf_summaries_agree() -> None:
    rows = read_aiperf(AIPERF / "profile_export.jsonl")
    whole = read_aiperf_summary(AIPERF / "profile_export_aiperf.json")
    table = read_aiperf_csv(AIPERF / "profile_export_aiperf.csv")
    assert whole.requests is table.requests is None
    assert whole.stated == rows.stated
    assert whole.limits == rows.limits == {"ttft": 0.25, "itl": 0.025}
    assert table.stated.keys() == whole.stated.keys()
    for key, value in table.stated.items():
        # Two decimals, of ms for a time.
        unit = 1e-3 if "." in key else 1
        assert value == pytest.approx(whole.stated[key], abs=0.00501 * unit)


def test_guidellm_states_what_its_rows_give() -> None:
    (run,) = read_guidellm(DATA / "guidellm/guidellm-0.8-poisson-2rps.json")
    log, tokens = run.requests, run.requests.output_tokens
    ttft, span = log.first_token - log.arrival, log.last_token - log.arrival
    closed = run.closed - log.arrival
    stamp = 5e-7  # Unix stamps step by 2.4e-7 s
    for word, values in {"ttft": ttft, "e2e": closed}.items():
        for name in ("mean", "std", "min", "max"):
            assert run.stated[f"{word}.{name}"] == pytest.approx(
                statistics(values)[name], abs=stamp
            )
    # Its means of TPOT and ITL weigh each request by its tokens, and by its gaps.
    assert run.stated["tpot.mean"] == pytest.approx(span.sum() / tokens.sum(), abs=stamp)
    gaps = (log.last_token - log.first_token).sum() / (tokens - 1).sum()
    assert run.stated["itl.mean"] == pytest.approx(gaps, abs=stamp)
    # Names of percentiles: p001 is the 0.1th. With 70 values it is the least, and p999 the largest.
    for word in ("ttft", "e2e"):
        assert run.stated[f"{word}.p0.1"] == run.stated[f"{word}.min"]
        assert run.stated[f"{word}.p99.9"] == run.stated[f"{word}.max"]
        ranked = [run.stated[f"{word}.p{q}"] for q in (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)]
        assert ranked == sorted(ranked)
    assert run.stated["completed"] == 70
    assert run.stated["request_throughput"] == pytest.approx(70 / run.duration, rel=1e-6)
    assert run.stated["output_throughput"] == pytest.approx(tokens.sum() / run.duration, rel=1e-6)
    # Little: the mean concurrency is the summed latency over the window.
    assert run.stated["concurrency"] == pytest.approx(closed.sum() / run.duration, rel=1e-3)


def test_guidellm_leaves_out_a_plan_on_another_clock() -> None:
    """In this real file the targeted starts lie between -0.5 and 45, the sends at 1.8e9."""
    (run,) = read_guidellm(DATA / "guidellm/guidellm-0.8-poisson-2rps.json")
    assert run.due is None
    assert run.notes == ("targeted_start is on another clock than the sends: left out",)
    assert run.request_rate == 2
    assert run.max_concurrency == 10240


@pytest.mark.parametrize("name", LLMPERF)
def test_llmperf_states_what_its_rows_give(name) -> None:
    run = read_llmperf(DATA / f"llmperf/{name}.individual.json")
    for word, key in {
        "ttft": "ttft",
        "itl": "inter_token_latency",
        "e2e": "end_to_end_latency",
    }.items():
        for statistic, value in statistics(run.reported[key], ddof=1).items():
            assert run.stated[f"{word}.{statistic}"] == pytest.approx(value, rel=1e-9)
    assert run.stated["completed"] == 150
    assert run.stated["failed"] == 0
    # Two rates over one duration, which the file does not state.
    tokens = run.requests.output_tokens.mean()
    rate = run.stated["output_throughput"] / run.stated["request_throughput"]
    assert rate == pytest.approx(tokens, rel=1e-9)
    assert run.duration is None
    assert run.max_concurrency == 5
    alone = read_llmperf_summary(DATA / f"llmperf/{name}.summary.json")
    assert alone.requests is None
    assert alone.stated == run.stated


@pytest.mark.parametrize("path", STAGES, ids=lambda path: path.name[:7])
def test_inference_perf_stages(path) -> None:
    run = read_inference_perf_stage(path)
    own = json.loads(path.read_text("utf-8"))
    assert run.requests is None
    assert run.request_rate == own["load_summary"]["requested_rate"]
    assert run.stated["completed"] == own["successes"]["count"]
    assert run.stated["failed"] == own["failures"]["count"]
    assert run.duration is None  # these files are from before the tool stated it
    # Three rates over one duration: the requests' own lengths tie them together.
    rate = run.stated["request_throughput"]
    assert run.stated["output_throughput"] / rate == pytest.approx(
        own["successes"]["output_len"]["mean"], rel=1e-9
    )
    assert run.stated["total_throughput"] == pytest.approx(
        run.stated["input_throughput"] + run.stated["output_throughput"], rel=1e-9
    )
    for word in ("ttft", "tpot", "itl", "ntpot", "e2e"):
        ranked = [
            run.stated[f"{word}.{name}"]
            for name in ("min", "p0.1", "p1", "p5", "p10", "p25", "median", "p75", "p90", "p99.9")
        ]
        assert ranked == sorted(ranked)
        assert run.stated[f"{word}.min"] < run.stated[f"{word}.mean"] < run.stated[f"{word}.max"]


def test_inference_perf_stages_climb() -> None:
    rates = [read_inference_perf_stage(path).request_rate for path in STAGES]
    assert len(rates) == 7
    assert rates == sorted(rates)


# AIPerf -------------------------------------------------------------------------------------------


def ms(value: Any) -> dict[str, Any]:
    return {"value": value, "unit": "ms"}


def tokens(value: Any) -> dict[str, Any]:
    return {"value": value, "unit": "tokens"}


def aiperf_row(second: float = 0.0) -> dict[str, Any]:
    """Sent `second` s after the first, 2 ms after its credit: 3 tokens at 0.1, 0.2 and 0.4 s."""
    sent = 1_796_006_975_000_000_000 + round(second * 1e9)
    return {
        "metadata": {
            "benchmark_phase": "profiling",
            "credit_issued_ns": sent - 2_000_000,
            "request_start_ns": sent,
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": ms(100.0),
            "time_to_first_output_token": ms(200.0),
            "request_latency": ms(400.0),
            "inter_token_latency": ms(150.0),
            "inter_chunk_latency": ms([100.0, 200.0]),
            "input_sequence_length": tokens(10),
            "output_sequence_length": tokens(3),
            "usage_completion_tokens": tokens(3),
        },
        "error": None,
    }


def changed(value: Any, *path: Any, to: Any = None, drop: bool = False) -> Any:
    """A copy of a JSON value with the member at `path` changed or left out."""
    value = json.loads(json.dumps(value))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return value


def test_aiperf_rows(tmp_path) -> None:
    failed = changed(aiperf_row(0.5), "error", to={"code": 500, "type": "x", "message": "y"})
    failed["metrics"] = {"error_isl": tokens(7)}
    cancelled = changed(aiperf_row(1.0), "metadata", "was_cancelled", to=True)
    empty = changed(cancelled, "metrics", to={})
    warm_up = changed(aiperf_row(-3.0), "metadata", "benchmark_phase", to="warmup")
    run = read_aiperf(write(tmp_path, lines(warm_up, aiperf_row(), failed, cancelled, empty)))
    log = run.requests
    assert log.succeeded.tolist() == [True, False, False, False]
    assert log.arrival.tolist() == [0, 0.5, 1, 1]
    assert run.due == pytest.approx(log.arrival - 0.002, abs=1e-15)
    assert log.input_tokens.tolist()[:2] == [10, 7]
    for column in (log.first_token, log.last_token, log.output_tokens, run.first_content):
        assert np.isnan(column).tolist() == [False, True, True, True]
    assert run.first_content[0] == 0.2
    assert run.itl.tolist() == [0.1, 0.2]
    assert run.itl_counts.tolist() == [2, 0, 0, 0]
    assert run.notes == ("1 warm-up requests are left out",)
    assert run.stated == run.limits == run.summary == {}
    assert run.duration is run.request_rate is None


def test_aiperf_without_streaming(tmp_path) -> None:
    """A whole answer has an end and no first token: that is missing, never 0."""
    whole = aiperf_row()
    for key in ("time_to_first_token", "time_to_first_output_token", "inter_token_latency"):
        del whole["metrics"][key]
    del whole["metrics"]["inter_chunk_latency"]
    run = read_aiperf(write(tmp_path, lines(whole)))
    assert np.isnan(run.requests.first_token).all()
    assert run.requests.last_token.tolist() == [0.4]
    assert run.first_content is None
    assert run.notes == ("1 answers have no time to first token: they were not streamed",)


def test_aiperf_keeps_nanoseconds(tmp_path) -> None:
    """Two sends 1 ns apart; a float64 of the epoch stamps would have a last place of 256 ns."""
    later = changed(aiperf_row(), "metadata", "request_start_ns", to=1_796_006_975_000_000_001)
    run = read_aiperf(write(tmp_path, lines(aiperf_row(), later)))
    assert run.requests.arrival.tolist() == [0, 1e-9]


def test_aiperf_without_credit_stamps(tmp_path) -> None:
    row = changed(aiperf_row(), "metadata", "credit_issued_ns", drop=True)
    assert read_aiperf(write(tmp_path, lines(row))).due is None
    run = read_aiperf(write(tmp_path, lines(row, aiperf_row())))
    assert np.isnan(run.due).tolist() == [True, False]


def test_aiperf_notes_another_count(tmp_path) -> None:
    other = changed(aiperf_row(), "metrics", "usage_completion_tokens", "value", to=4)
    run = read_aiperf(write(tmp_path, lines(other, aiperf_row())))
    assert run.requests.output_tokens.tolist() == [3, 3]
    assert run.notes == ("N is output_sequence_length; the server counts otherwise in 1 answers",)


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["metadata"], "x", "line 2, key 'metadata': expected a JSON object"),
        (["metadata", "benchmark_phase"], None, "benchmark_phase must be a text: got None"),
        (["metadata", "benchmark_phase"], "x", "benchmark_phase must be one of .*: got 'x'"),
        (["metadata", "request_start_ns"], 1.5, "request_start_ns must be a whole number"),
        (["metadata", "request_start_ns"], -1, "request_start_ns must be >= 0: got -1"),
        (["metadata", "request_start_ns"], 10**20, "request_start_ns must be a stamp in ns"),
        (["metadata", "credit_issued_ns"], "x", "credit_issued_ns must be a number: got 'x'"),
        (["metrics"], None, "line 2, key 'metrics': expected a JSON object: got None"),
        (["metrics", "time_to_first_token"], 5, "key 'time_to_first_token': expected a JSON"),
        (["metrics", "time_to_first_token", "unit"], "s", "unit must be 'ms': got 's'"),
        (["metrics", "time_to_first_token", "value"], None, "value must be a number: got None"),
        (["metrics", "time_to_first_token", "value"], 500.0, "last_token must not precede first"),
        (["metrics", "request_latency", "value"], True, "value must be a number: got True"),
        (["metrics", "request_latency", "value"], -1, "value must be >= 0: got -1"),
        (["metrics", "inter_chunk_latency", "value"], 5.0, "value must be a list: got 5.0"),
        (["metrics", "inter_chunk_latency", "value"], [1, None], r"value\[1\] must be a number"),
        (["metrics", "output_sequence_length", "unit"], "ms", "unit must be 'tokens': got 'ms'"),
        (["metrics", "output_sequence_length", "value"], 2.5, "output_tokens must be a whole"),
        (["metrics", "input_sequence_length", "value"], "9", "value must be a number: got '9'"),
    ],
)
def test_damaged_aiperf_rows(path, to, message, tmp_path) -> None:
    file = write(tmp_path, lines(aiperf_row(), changed(aiperf_row(), *path, to=to)))
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_aiperf(file)


@pytest.mark.parametrize(
    "path",
    [
        ["metadata"],
        ["metrics"],
        ["metadata", "benchmark_phase"],
        ["metadata", "request_start_ns"],
        ["metrics", "request_latency"],
        ["metrics", "output_sequence_length"],
        ["metrics", "request_latency", "unit"],
    ],
)
def test_aiperf_rows_with_a_key_left_out(path, tmp_path) -> None:
    file = write(tmp_path, lines(aiperf_row(), changed(aiperf_row(), *path, drop=True)))
    with pytest.raises(ValueError, match=rf"r\.json, line 2.*key '{path[-1]}' is missing"):
        read_aiperf(file)


def test_a_metric_that_appears_twice(tmp_path) -> None:
    """The sample record of AIPerf's own documentation repeats a key; which value is meant?"""
    text = json.dumps(aiperf_row())
    twice = text.replace('"metrics": {', '"metrics": {"time_to_first_token": {"value": 1}, ')
    with pytest.raises(ValueError, match=r"line 2: key 'time_to_first_token' appears twice"):
        read_aiperf(write(tmp_path, f"{text}\n{twice}"))


@pytest.mark.parametrize("end", ["\n{", '\n{"metadata": {"bench', "\nnull", "\n[]", "\n{} x"])
def test_an_aiperf_file_cut_off(end, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"r\.json, line 2"):
        read_aiperf(write(tmp_path, json.dumps(aiperf_row()) + end))


def aggregate(**metrics: Any) -> dict[str, Any]:
    return {
        "aiperf_version": "0.13.0",
        "request_count": {"unit": "requests", "avg": 1.0},
        "request_latency": {"unit": "ms", "avg": 400.0, "p50": 400.0, "p99": 410.0, "count": 1},
        **metrics,
    }


def test_aiperf_reads_the_aggregate_beside_it(tmp_path) -> None:
    write(tmp_path, aggregate(), "mine_aiperf.json")
    rows = write(tmp_path, lines(aiperf_row()), "mine.jsonl")
    run = read_aiperf(rows)
    assert run.stated == {
        "e2e.mean": 0.4,
        "e2e.median": 0.4,
        "e2e.p99": 0.41,
        "completed": 1,
    }
    assert run.notes == ("the stated figures stand in mine_aiperf.json",)
    write(tmp_path, aggregate(request_count={"unit": "requests", "avg": 2.0}), "mine_aiperf.json")
    with pytest.raises(ValueError, match=r"mine_aiperf\.json: request_count must agree with mine"):
        read_aiperf(rows)


def test_a_null_of_aiperf(tmp_path) -> None:
    """With failures counted as infinite, a null percentile is infinite; elsewhere it is absent."""
    told = {"unit": "ms", "avg": None, "min": 100.0, "p50": 200.0, "p99": None, "std": None}
    path = write(tmp_path, aggregate(adj_time_to_first_token=told, time_to_first_token=told))
    stated = read_aiperf_summary(path).stated
    assert stated["adj_ttft.p99"] == stated["adj_ttft.mean"] == float("inf")
    assert stated["adj_ttft.median"] == stated["ttft.median"] == 0.2
    assert not {"ttft.p99", "ttft.mean", "ttft.std", "adj_ttft.std"} & stated.keys()


def test_aiperf_settings(tmp_path) -> None:
    phases = [
        {"name": "warmup", "kind": "warmup", "rate": 9.0, "concurrency": 9},
        {"name": "profiling", "kind": "profiling", "rate": 3.0, "concurrency": 4},
    ]
    times = {"start_time": "2026-11-30T02:00:00.000000", "end_time": "2026-11-30T02:00:10.500000"}
    config = {"phases": phases, "slos": {"request_latency": 900.0, "unknown": 1}}
    run = read_aiperf_summary(write(tmp_path, aggregate(input_config=config, **times)))
    assert (run.request_rate, run.max_concurrency, run.duration) == (3.0, 4, 10.5)
    assert run.limits == {"e2e": 0.9}
    backwards = aggregate(start_time=times["end_time"], end_time=times["start_time"])
    assert read_aiperf_summary(write(tmp_path, backwards)).duration is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "the file is empty"),
        ("{", "line 1: not valid JSON"),
        ([aggregate()], "line 1: expected a JSON object"),
        ({"aiperf_version": "0.13.0"}, "no figure that AIPerf writes"),
        (aggregate(request_count=3), "key 'request_count': expected a JSON object: got 3"),
        (aggregate(request_count={"avg": 1}), "key 'unit' is missing"),
        (aggregate(request_count={"unit": "requests"}), "key 'avg' is missing"),
        (
            aggregate(request_latency={"unit": "sec", "avg": 1}),
            "key 'request_latency': unit must be 'ms': got 'sec'",
        ),
        (aggregate(request_latency={"unit": "ms", "avg": "1"}), "avg must be a number: got '1'"),
        (aggregate(request_latency={"unit": "ms", "p99": -1}), "p99 must be >= 0: got -1"),
        (aggregate(input_config=[]), "key 'input_config': expected a JSON object"),
        (aggregate(input_config={"slos": {"request_latency": "1"}}), "request_latency must be a"),
        (aggregate(start_time="today", end_time="x"), "start_time, end_time: Invalid isoformat"),
    ],
)
def test_damaged_aiperf_summaries(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_aiperf_summary(write(tmp_path, value))


TABLE = """Metric,avg,min,max,sum,p50,p99,std
Request Latency (ms),400.00,390.00,410.00,800.00,400.00,,10.00
"A title, quoted (ms)",1.00,1.00,1.00,1.00,1.00,1.00,0.00

Metric,Value
Request Count,2.00
Benchmark Duration (sec),1.50

Endpoint,GPU_Index
x,0
"""


@pytest.mark.parametrize("text", [TABLE, TABLE.replace("\n", "\r\n"), TABLE + "\n", "\n" + TABLE])
def test_an_aiperf_table(text, tmp_path) -> None:
    run = read_aiperf_csv(write(tmp_path, text))
    assert run.stated == {
        "e2e.mean": 0.4,
        "e2e.min": 0.39,
        "e2e.max": 0.41,
        "e2e.median": 0.4,
        "e2e.std": 0.01,
        "completed": 2,
        "duration": 1.5,
    }
    assert run.duration == 1.5
    assert run.summary["Request Count"] == {"Value": "2.00"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("400.00,390.00", "400.00", r"r\.csv, line 2: expected 8 fields"),
        ("Request Count,2.00", "Request Count,two", r"line 6: expected a number: got 'two'"),
        ("Request Count,2.00", "Request Count,-2", r"line 6: Request Count Value must be >= 0"),
        ("Request Count,2.00", "Request Count", r"line 6: expected 2 fields: got 'Request Count'"),
        ("Request Count,2.00", "Request Count,nan", r"line 6: expected a number: got 'nan'"),
        ("Request Latency (ms)", "Request Latency (sec)", r"line 2: the unit of 'Request Latency'"),
        (
            "Benchmark Duration (sec),1.50",
            "Request Count,3.00",
            r"line 7: metric 'Request Count' appears twice",
        ),
        (TABLE, "a,b\n1,2\n", "no figure that AIPerf writes"),
        (TABLE, "Metric,avg\nUnknown,1.00\n", "no figure that AIPerf writes"),
        (TABLE, "", "the file is empty"),
    ],
)
def test_damaged_aiperf_tables(old, new, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_aiperf_csv(write(tmp_path, TABLE.replace(old, new), "r.csv"))


# GuideLLM -----------------------------------------------------------------------------------------

START = 1_796_007_045.5


def guidellm_row(sent: float = START) -> dict[str, Any]:
    """3 tokens at 0.5, 1 and 1.5 s, the stream closed at 1.625 s; planned 0.25 s before."""
    return {
        "info": {
            "timings": {
                "targeted_start": sent - 0.25,
                "request_start": sent,
                "first_token_iteration": sent + 0.5,
                "first_output_token_iteration": sent + 1.0,
                "last_token_iteration": sent + 1.5,
                "request_end": sent + 1.625,
            }
        },
        "request_latency": 1.625,
        "prompt_tokens": 100,
        "output_tokens": 3,
        "time_to_first_token_ms": 500.0,
        "time_per_output_token_ms": 500.0,
        "inter_token_latency_ms": 500.0,
    }


def guidellm(rows: list[Any], errored: Any = (), incomplete: Any = (), **run: Any) -> Any:
    groups = {"successful": rows, "errored": list(errored), "incomplete": list(incomplete)}
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "benchmarks": [{"requests": groups, "duration": 2.0, "metrics": {}, **run}],
    }


def test_guidellm_rows(tmp_path) -> None:
    single = guidellm_row(START + 1)
    single["output_tokens"] = 1
    single["inter_token_latency_ms"] = None
    single["info"]["timings"]["last_token_iteration"] = START + 1.5
    silent = guidellm_row(START + 2)
    silent["output_tokens"] = 0
    for key in ("time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms"):
        silent[key] = None
    for key in ("first_token_iteration", "first_output_token_iteration", "last_token_iteration"):
        silent["info"]["timings"][key] = None
    broken = guidellm_row(START + 3)
    broken["output_tokens"] = None
    unsent = changed(guidellm_row(), "info", "timings", "request_start", to=None)
    unsent["info"]["timings"]["request_end"] = None
    rows = [guidellm_row(), single, silent]
    (run,) = read_guidellm(write(tmp_path, guidellm(rows, [broken], [unsent])))
    log = run.requests
    assert log.succeeded.tolist() == [True, True, True, False, False]
    assert log.arrival[:4].tolist() == [0, 1, 2, 3]
    assert np.isnan(log.arrival[4])
    assert run.due.tolist() == [-0.25, 0.75, 1.75, 2.75, -0.25]
    assert run.closed[:4].tolist() == [1.625, 2.625, 3.625, 4.625]
    assert run.first_content[:2].tolist() == [1.0, 2.0]
    for column in (log.first_token, log.last_token, run.first_content):
        assert np.isnan(column).tolist() == [False, False, True, True, True]
    assert log.output_tokens[:3].tolist() == [3, 1, 0]
    assert log.input_tokens.tolist() == [100] * 5
    own = run.reported["inter_token_latency"]
    assert np.isnan(own).tolist() == [False, True, True, True, True]
    assert run.notes == (
        "1 requests failed",
        "1 requests cut off at the end",
        "1 answers have no first token",
    )


def test_guidellm_settings(tmp_path) -> None:
    config = {
        "strategy": {"type_": "concurrent", "rate": None, "max_concurrency": 8},
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 100.0, "e2el_ms": None},
    }
    value = guidellm([guidellm_row()], config=config, warmup_duration=1.5, cooldown_duration=0.0)
    (run,) = read_guidellm(write(tmp_path, value))
    assert (run.request_rate, run.max_concurrency) == (None, 8)
    assert run.limits == {"ttft": 2.0, "itl": 0.1}  # its "tpot" limit judges its ITL
    assert run.notes == ("the stated figures leave out warmup 1.5 s",)


def test_guidellm_stated(tmp_path) -> None:
    zeros = {"mean": 0.0, "median": 0.0, "count": 0, "percentiles": {"p99": 0.0}}
    told = {**zeros, "mean": 2.0, "count": 3, "std_dev": 1.0, "percentiles": {"p001": 1.0}}
    metrics = {
        "request_totals": {"successful": 3, "errored": 1, "incomplete": 2, "total": 6},
        "request_latency": {"successful": told, "errored": zeros},
        "time_to_first_token_ms": {"successful": told},
        "inter_token_latency_ms": {"successful": zeros},
        "time_per_output_token_ms": None,
        "requests_per_second": {"successful": told},
        "slo_attainment": 0.5,
        "request_goodput": None,
    }
    (run,) = read_guidellm(write(tmp_path, guidellm([guidellm_row()], metrics=metrics)))
    assert run.stated == {
        "duration": 2.0,
        "completed": 3,
        "failed": 3,
        "ttft.mean": 2e-3,
        "ttft.median": 0.0,
        "ttft.std": 1e-3,
        "ttft.p0.1": 1e-3,
        "e2e.mean": 2.0,
        "e2e.median": 0.0,
        "e2e.std": 1.0,
        "e2e.p0.1": 1.0,
        "request_throughput": 2.0,
        "attainment": 0.5,
    }


def test_guidellm_runs_of_one_file(tmp_path) -> None:
    two = guidellm([guidellm_row()])
    two["benchmarks"].append(guidellm([guidellm_row(), guidellm_row(START + 1)])["benchmarks"][0])
    sizes = [len(run.requests) for run in read_guidellm(write(tmp_path, two))]
    assert sizes == [1, 2]


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["info"], None, r"successful\[1\], key 'info': expected a JSON object: got None"),
        (["info", "timings"], [], r"key 'timings': expected a JSON object: got \[\]"),
        (["info", "timings", "request_start"], None, "request_start must be a number: got None"),
        (["info", "timings", "request_start"], "x", "request_start must be a number: got 'x'"),
        (
            ["info", "timings", "last_token_iteration"],
            START + 0.25,
            "last_token must not precede first_token",
        ),
        (
            ["info", "timings", "first_token_iteration"],
            START - 1,
            "first_token must not precede arrival",
        ),
        (["request_latency"], None, "request_latency must be a number: got None"),
        (["request_latency"], 1625.0, "request_latency must be request_end - request_start in s"),
        (["time_to_first_token_ms"], 0.5, "time_to_first_token_ms must be first_token_iteration"),
        (["time_to_first_token_ms"], "1", "time_to_first_token_ms must be a number: got '1'"),
        (["inter_token_latency_ms"], -1, "inter_token_latency_ms must be >= 0: got -1"),
        (["output_tokens"], None, "output_tokens must be a number: got None"),
        (["prompt_tokens"], 1.5, "prompt_tokens must be a whole number: got 1.5"),
    ],
)
def test_damaged_guidellm_rows(path, to, message, tmp_path) -> None:
    rows = [guidellm_row(), changed(guidellm_row(), *path, to=to)]
    with pytest.raises(ValueError, match=rf"r\.json, line 1.*{message}"):
        read_guidellm(write(tmp_path, guidellm(rows)))


@pytest.mark.parametrize(
    "path",
    [
        ["info"],
        ["info", "timings"],
        ["info", "timings", "request_start"],
        ["info", "timings", "first_token_iteration"],
        ["info", "timings", "last_token_iteration"],
        ["request_latency"],
        ["prompt_tokens"],
        ["output_tokens"],
    ],
)
def test_guidellm_rows_with_a_key_left_out(path, tmp_path) -> None:
    rows = [guidellm_row(), changed(guidellm_row(), *path, drop=True)]
    with pytest.raises(ValueError, match=rf"successful\[1\].*key '{path[-1]}' is missing"):
        read_guidellm(write(tmp_path, guidellm(rows)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"line 1: expected a JSON object: got \[\]"),
        ({"benchmarks": None}, "key 'benchmarks': expected a list: got None"),
        ({"benchmarks": [3]}, r"key 'benchmarks'\[0\]: expected a JSON object: got 3"),
        (guidellm([3]), r"successful\[0\]: expected a JSON object: got 3"),
        (changed(guidellm([]), "benchmarks", 0, "requests", to=3), "key 'requests': expected a"),
        (
            changed(guidellm([]), "benchmarks", 0, "requests", "errored", drop=True),
            "key 'errored' is missing",
        ),
        (
            changed(guidellm([]), "benchmarks", 0, "requests", "incomplete", to={}),
            "key 'incomplete': expected a list",
        ),
        (
            guidellm([], [changed(guidellm_row(), "info", "timings", "request_start", to=None)]),
            "no request was sent",
        ),
        (guidellm([guidellm_row()], duration=None), "duration must be a number: got None"),
        (guidellm([guidellm_row()], metrics=None), "key 'metrics': expected a JSON object"),
        (guidellm([guidellm_row()], config=[]), "key 'config': expected a JSON object"),
        (
            guidellm([guidellm_row()], metrics={"request_latency": {"successful": {"mean": "1"}}}),
            "mean must be a number: got '1'",
        ),
        (
            guidellm([guidellm_row()], metrics={"request_totals": {"successful": 1}}),
            "key 'errored' is missing",
        ),
        (json.dumps(guidellm([guidellm_row()]))[:-20], "line 1: not valid JSON"),
        (json.dumps(guidellm([])).replace('"errored"', '"successful"'), "appears twice"),
    ],
)
def test_damaged_guidellm_files(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_guidellm(write(tmp_path, value))


# inference-perf -----------------------------------------------------------------------------------


def said(text: str) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}}]})


def thought(text: str) -> str:
    return json.dumps({"choices": [{"delta": {"reasoning_content": text}}]})


ROLE = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
USAGE = json.dumps({"choices": [], "usage": {"completion_tokens": 6}})


def perf_row(sent: float = 100.0) -> dict[str, Any]:
    """A role, then chunks of 1, 3 and 2 tokens at 0.25, 0.5 and 1 s, usage at 1.125, end at 1.5."""
    chunks = [ROLE, said("a"), said("b c d"), said("e f"), USAGE]
    stamps = [sent + t for t in (0.125, 0.25, 0.5, 1.0, 1.125)]
    each = [stamps[1], stamps[2], stamps[2], stamps[2], stamps[3], stamps[3]]
    return {
        "start_time": sent,
        "end_time": sent + 1.5,
        "request": "{}",
        "response": "data: ...",
        "info": {
            "request_metrics": {"text": {"input_tokens": 10}},
            "response_metrics": {
                "output_tokens": 6,
                "server_usage": None,
                "response_chunks": chunks,
                "chunk_times": stamps,
                "output_token_times": each,
            },
            "input_tokens": 10,
        },
        "error": None,
    }


def answer_of(row: dict[str, Any]) -> dict[str, Any]:
    return row["info"]["response_metrics"]


def read_perf(folder: Path, *rows: Any):
    return read_inference_perf(write(folder, list(rows)))


def test_inference_perf_rows(tmp_path) -> None:
    failed = changed(perf_row(101.0), "error", to={"error_type": "x", "error_msg": "y"})
    lost = changed(failed, "info", to=None)
    run = read_perf(tmp_path, perf_row(), failed, lost)
    log = run.requests
    assert log.succeeded.tolist() == [True, False, False]
    assert log.arrival.tolist() == [0, 1, 1]
    assert run.closed.tolist() == [1.5, 2.5, 2.5]
    assert log.input_tokens[:2].tolist() == [10, 10]
    assert log.first_token[0] == 0.25  # case T01: not the role's chunk
    assert log.last_token[0] == 1.0  # nor the usage's
    for column in (log.first_token, log.last_token, log.output_tokens):
        assert np.isnan(column).tolist() == [False, True, True]
    assert run.itl.tolist() == [0.25, 0.5]
    assert run.itl_counts.tolist() == [2, 0, 0]
    assert run.chunk_tokens.tolist() == [1, 3, 2]
    assert log.output_tokens[0] == 6
    assert run.text_tokens is run.first_content is None
    assert run.reported == {}
    assert run.notes == ()
    assert (run.tool, run.format, run.source) == ("inference-perf", "inference-perf", "r.json")


def test_inference_perf_with_the_servers_count(tmp_path) -> None:
    """Case T17: text encoded again merges tokens, so the server's count is the authority."""
    row = perf_row()
    answer_of(row)["server_usage"] = {"prompt_tokens": 10, "completion_tokens": 9}
    run = read_perf(tmp_path, row)
    assert run.requests.output_tokens.tolist() == [9]
    assert run.text_tokens.tolist() == [6]
    assert run.notes[0].startswith("N is the server's count")
    mixed = read_perf(tmp_path, row, perf_row())
    assert mixed.requests.output_tokens.tolist() == [6, 6]
    assert mixed.text_tokens is None


def test_inference_perf_with_reasoning(tmp_path) -> None:
    """Case T03: the first token is the first of any channel, even if the cap ends the thinking."""
    row, capped = perf_row(), perf_row()
    answer_of(row)["response_chunks"][1] = thought("hm")
    answer_of(row)["output_token_times"] = answer_of(row)["output_token_times"][1:]
    answer_of(capped)["response_chunks"][1:4] = [thought("a"), thought("b"), thought("c")]
    answer_of(capped)["output_token_times"] = []
    run = read_perf(tmp_path, row, capped)
    assert run.requests.first_token.tolist() == [0.25, 0.25]
    assert run.first_content[0] == 0.5
    assert np.isnan(run.first_content[1])
    assert np.isnan(run.chunk_tokens).tolist() == [True, False, False, True, True, True]
    assert run.chunk_tokens[1:3].tolist() == [3, 2]


def test_inference_perf_without_a_token(tmp_path) -> None:
    whole, silent = perf_row(), perf_row()
    whole["info"]["response_metrics"] = {"output_tokens": 6, "server_usage": None}
    silent["info"]["response_metrics"] = None
    run = read_perf(tmp_path, whole, silent)
    assert run.requests.succeeded.all()
    assert np.isnan(run.requests.first_token).all()
    assert run.requests.output_tokens.tolist() == [6, 0]
    assert run.notes == ("2 answers have no stamp of a token: not streamed, or empty",)


def test_inference_perf_of_one_token(tmp_path) -> None:
    row = perf_row()
    row["info"]["response_metrics"] |= {
        "output_tokens": 1,
        "response_chunks": [said("a")],
        "chunk_times": [100.25],
        "output_token_times": [100.25],
    }
    run = read_perf(tmp_path, row)
    assert run.requests.first_token.tolist() == run.requests.last_token.tolist() == [0.25]
    assert run.itl.size == 0
    assert run.chunk_tokens.tolist() == [1]


def test_inference_perf_without_the_texts(tmp_path) -> None:
    """The user may leave the chunks' texts out; the tool then stamps chunks with text only."""
    row = perf_row()
    del answer_of(row)["response_chunks"]
    answer_of(row)["chunk_times"] = answer_of(row)["chunk_times"][1:4]
    run = read_perf(tmp_path, row)
    assert run.requests.first_token[0] == 0.25
    assert run.chunk_tokens.tolist() == [1, 3, 2]


def test_inference_perf_of_an_earlier_version(tmp_path) -> None:
    """The counts and the tokens' stamps stood in `info` itself, and there were no chunks."""
    row = perf_row()
    row["info"] = {
        "input_tokens": 8,
        "output_tokens": 3,
        "output_token_times": [100.5, 101, 101.25],
    }
    run = read_perf(tmp_path, row)
    assert run.requests.input_tokens.tolist() == [8]
    assert run.requests.output_tokens.tolist() == [3]
    assert run.itl.tolist() == [0.5, 0.25]
    assert run.chunk_tokens is None


def test_inference_perf_with_two_chunks_of_one_stamp(tmp_path) -> None:
    row = perf_row()
    stamps = answer_of(row)["chunk_times"]
    stamps[2] = stamps[1]
    answer_of(row)["output_token_times"] = [stamps[1]] * 4 + [stamps[3]] * 2
    assert read_perf(tmp_path, row).chunk_tokens.tolist() == [4, 0, 2]


def test_inference_perf_reports_its_own_figures(tmp_path) -> None:
    row = {
        **perf_row(),
        "computed_metrics": {
            "request_latency": 1.5,
            "time_to_first_token": None,
            "normalized_time_per_output_token": 0.25,
        },
    }
    run = read_perf(tmp_path, row, perf_row())
    assert set(run.reported) == {"request_latency", "normalized_time_per_output_token"}
    assert run.reported["request_latency"][0] == 1.5
    assert np.isnan(run.reported["request_latency"][1])


def perf_summary(count: int = 1, **parts: Any) -> dict[str, Any]:
    return {
        "benchmark_time_seconds": 1.5,
        "load_summary": {"count": count, "requested_rate": 2.0, "concurrency": 8},
        "successes": {
            "count": count,
            "latency": {
                "request_latency": {"mean": 1.5, "median": 1.5, "p99.9": 1.5},
                "time_to_first_token": None,
            },
            "throughput": {"requests_per_sec": count / 1.5, "images_per_sec": 0.0},
            "prompt_tokens": {"total": 10.0},
            "output_tokens": {"total": 6.0},
            "goodput_metrics": {
                "goodput_percentage": 50.0,
                "request_goodput": 0.5,
                "good_requests": 1,
            },
        },
        "failures": {"count": 0, "request_latency": None},
        **parts,
    }


STATED = {
    "completed": 1,
    "failed": 0,
    "duration": 1.5,
    "e2e.mean": 1.5,
    "e2e.median": 1.5,
    "e2e.p99.9": 1.5,
    "request_throughput": 1 / 1.5,
    "input_tokens": 10,
    "output_tokens": 6,
    "good": 1,
    "goodput": 0.5,
    "attainment": 0.5,
}


def test_an_inference_perf_summary(tmp_path) -> None:
    """A distribution that is null is absent, never 0."""
    run = read_inference_perf_stage(write(tmp_path, perf_summary()))
    assert run.stated == STATED
    assert (run.request_rate, run.max_concurrency, run.duration) == (2.0, 8, 1.5)


def test_an_inference_perf_summary_of_failures_only(tmp_path) -> None:
    none = {"count": 0, "latency": {"request_latency": None}, "throughput": {}}
    value = perf_summary(0, successes=none, failures={"count": 4})
    del value["benchmark_time_seconds"]
    run = read_inference_perf_stage(write(tmp_path, value))
    assert run.stated == {"completed": 0, "failed": 4}
    assert run.duration is None


def test_inference_perf_reads_the_summary_beside_it(tmp_path) -> None:
    rows = write(tmp_path, [perf_row()], "per_request_lifecycle_metrics.json")
    write(tmp_path, perf_summary(), "summary_lifecycle_metrics.json")
    run = read_inference_perf(rows)
    assert run.stated == STATED
    assert run.duration == 1.5
    assert run.notes == ("the stated figures stand in summary_lifecycle_metrics.json",)
    write(tmp_path, perf_summary(2), "summary_lifecycle_metrics.json")
    with pytest.raises(ValueError, match=r"summary_.*: successes\.count must agree with per_req"):
        read_inference_perf(rows)


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["start_time"], None, "start_time must be a number: got None"),
        (["end_time"], 99.0, "end_time must not precede start_time: got 99 < 100"),
        (["end_time"], 100.5, r"must lie in its request's \[100, 100.5\] s: got \[100.25, 101\]"),
        (["start_time"], 100.375, "the stamps of the answer must lie in its request's"),
        (["info"], None, "key 'info': expected a JSON object: got None"),
        (["info", "request_metrics", "text", "input_tokens"], -1, "input_tokens must be >= 0"),
        (["info", "response_metrics"], 3, "key 'response_metrics': expected a JSON object: got 3"),
        (["info", "response_metrics", "output_tokens"], 1.5, "output_tokens must be a whole"),
        (["info", "response_metrics", "chunk_times"], 1.5, "chunk_times must be a list: got 1.5"),
        (["info", "response_metrics", "chunk_times", 2], "x", r"chunk_times\[2\] must be a number"),
        (["info", "response_metrics", "chunk_times", 2], 100.1, "answer must not run back"),
        (
            ["info", "response_metrics", "response_chunks"],
            [ROLE],
            "response_chunks must have one value a chunk: got 1 for 5 chunk_times",
        ),
        (["info", "response_metrics", "response_chunks", 1], 7, r"chunks\[1\] must be a text: got"),
        (
            ["info", "response_metrics", "response_chunks", 1],
            "{",
            r"response_chunks\[1\] must hold",
        ),
        (["info", "response_metrics", "response_chunks", 1], "3", "must hold a JSON object"),
        (
            ["info", "response_metrics", "server_usage"],
            {"completion_tokens": -1},
            "completion_tokens must be a whole number >= 0: got -1",
        ),
        (["info", "response_metrics", "output_token_times"], {}, "output_token_times must be a"),
    ],
)
def test_damaged_inference_perf_rows(path, to, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 1\[1\].*{message}"):
        read_perf(tmp_path, perf_row(), changed(perf_row(), *path, to=to))


@pytest.mark.parametrize(
    "path",
    [
        ["start_time"],
        ["end_time"],
        ["error"],
        ["info"],
        ["info", "response_metrics", "output_tokens"],
        ["info", "request_metrics", "text", "input_tokens"],
    ],
)
def test_inference_perf_rows_with_a_key_left_out(path, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"line 1\[1\].*key '{path[-1]}' is missing"):
        read_perf(tmp_path, perf_row(), changed(perf_row(), *path, drop=True))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[]", "line 1: no request"),
        ("{}", "line 1: expected a list"),
        ("[1]", r"line 1\[0\]: expected a JSON object: got 1"),
        ([perf_row(), None], r"line 1\[1\]: expected a JSON object: got None"),
        (json.dumps([perf_row()])[:-1], "line 1: not valid JSON"),
        (json.dumps([perf_row()]) + "[]", "expected one JSON value in the file"),
        ('[{"start_time": NaN}]', "NaN is not a JSON number"),
    ],
)
def test_damaged_inference_perf_files(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_inference_perf(write(tmp_path, value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected a JSON object"),
        (perf_summary(load_summary=None), "key 'load_summary': expected a JSON object"),
        (changed(perf_summary(), "failures", drop=True), "key 'failures' is missing"),
        (changed(perf_summary(), "successes", "count", to=1.5), "count must be a whole number"),
        (changed(perf_summary(), "successes", "latency", to=3), "key 'latency': expected a JSON"),
        (
            changed(perf_summary(), "successes", "latency", "request_latency", "mean", to="1"),
            "key 'request_latency': mean must be a number: got '1'",
        ),
        (
            changed(perf_summary(), "successes", "goodput_metrics", "good_requests", drop=True),
            "key 'good_requests' is missing",
        ),
        (perf_summary(benchmark_time_seconds=-1), "benchmark_time_seconds must be >= 0: got -1"),
    ],
)
def test_damaged_inference_perf_summaries(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_inference_perf_stage(write(tmp_path, value))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 500), st.integers(1, 9)), max_size=6),
        min_size=1,
        max_size=8,
    )
)
def test_inference_perf_keeps_every_chunk(tmp_path_factory, answers) -> None:
    """Chunks at chosen gaps (1/512 s: exact in a float64) with chosen tokens come back as put."""
    rows = []
    for i, chunks in enumerate(answers):
        row = perf_row(float(i))
        stamps = (i + np.cumsum([gap / 512 for gap, _ in chunks])).tolist()
        row["end_time"] = i + 8.0
        row["info"]["response_metrics"] = {
            "output_tokens": sum(n for _, n in chunks),
            "response_chunks": [said("x")] * len(chunks),
            "chunk_times": stamps,
            "output_token_times": np.repeat(stamps, [n for _, n in chunks]).tolist(),
        }
        rows.append(row)
    run = read_inference_perf(write(tmp_path_factory.mktemp("perf"), rows))
    assert run.itl_counts.tolist() == [max(len(chunks) - 1, 0) for chunks in answers]
    assert run.itl.tolist() == [gap / 512 for chunks in answers for gap, _ in chunks[1:]]
    placed = [n for chunks in answers for _, n in chunks]
    assert placed == ([] if run.chunk_tokens is None else run.chunk_tokens.tolist())
    for i, chunks in enumerate(answers):
        first = i + chunks[0][0] / 512 if chunks else np.nan
        assert run.requests.first_token[i] == pytest.approx(first, abs=0, nan_ok=True)


# llmperf ------------------------------------------------------------------------------------------

ANSWER = {
    "error_code": None,
    "error_msg": "",
    "inter_token_latency_s": 0.02,
    "ttft_s": 0.5,
    "end_to_end_latency_s": 2.0,
    "number_output_tokens": 100,
    "number_input_tokens": 550,
}


def test_llmperf_rows(tmp_path) -> None:
    """A failed row of a real file counts one output token and times of 0."""
    failed = {**ANSWER, "error_code": -1, "ttft_s": 0, "end_to_end_latency_s": 0}
    failed |= {"number_output_tokens": 1, "inter_token_latency_s": 0.0}
    silent = {**ANSWER, "ttft_s": 0, "number_output_tokens": 0}
    run = read_llmperf(write(tmp_path, [ANSWER, failed, silent]))
    log = run.requests
    assert log.succeeded.tolist() == [True, False, True]
    assert np.isnan(log.first_token).tolist() == [False, True, True]  # case T19: 0 is no time
    assert np.isnan(run.reported["ttft"]).tolist() == [False, True, True]
    assert np.isnan(log.last_token).tolist() == [False, True, False]
    assert np.isnan(log.output_tokens).tolist() == [False, True, False]
    assert log.input_tokens.tolist() == [550] * 3
    assert np.array_equal(run.closed, log.last_token, equal_nan=True)
    assert "no stamps" in run.notes[0]
    assert run.notes[2] == "1 answers have no first token"


def test_llmperf_failures_without_figures(tmp_path) -> None:
    failed = {"error_code": 429, "number_input_tokens": 550, "ttft_s": None}
    run = read_llmperf(write(tmp_path, [ANSWER, failed]))
    assert run.requests.succeeded.tolist() == [True, False]


def llmperf_summary(**values: Any) -> dict[str, Any]:
    return {
        "num_concurrent_requests": 5,
        "results_ttft_s_quantiles_p50": 0.5,
        "results_ttft_s_mean": 0.5,
        "results_ttft_s_min": "0.25",
        "results_ttft_s_stddev": None,
        "results_num_completed_requests": 1,
        "results_num_completed_requests_per_min": 30.0,
        "results_number_errors": 1,
        **values,
    }


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        ("x.individual.json", "x.summary.json"),
        ("x_individual_responses.json", "x_summary.json"),
    ],
)
def test_llmperf_reads_the_summary_beside_it(rows, summary, tmp_path) -> None:
    write(tmp_path, llmperf_summary(), summary)
    run = read_llmperf(write(tmp_path, [ANSWER], rows))
    assert run.stated == {
        "ttft.median": 0.5,
        "ttft.mean": 0.5,
        "ttft.min": 0.25,
        "completed": 1,
        "failed": 1,
        "request_throughput": 0.5,
    }
    assert run.max_concurrency == 5
    assert run.notes[-1] == f"the stated figures stand in {summary}"
    with pytest.raises(ValueError, match=r"results_num_completed_requests must agree with x"):
        read_llmperf(write(tmp_path, [ANSWER, ANSWER], rows))


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["ttft_s"], None, "ttft_s must be a number: got None"),
        (["ttft_s"], 3.0, "last_token must not precede first_token"),
        (["end_to_end_latency_s"], -1, "end_to_end_latency_s must be >= 0: got -1"),
        (["inter_token_latency_s"], "x", "inter_token_latency_s must be a number: got 'x'"),
        (["number_input_tokens"], 1.5, "number_input_tokens must be a whole number: got 1.5"),
        (["number_output_tokens"], None, "number_output_tokens must be a number: got None"),
    ],
)
def test_damaged_llmperf_rows(path, to, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 1.*{message}"):
        read_llmperf(write(tmp_path, [ANSWER, changed(ANSWER, *path, to=to)]))


@pytest.mark.parametrize("key", sorted(ANSWER.keys() - {"error_msg"}))
def test_llmperf_rows_with_a_key_left_out(key, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 1\[1\]: key '{key}' is missing"):
        read_llmperf(write(tmp_path, [ANSWER, changed(ANSWER, key, drop=True)]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected a JSON object"),
        ({"model": "x"}, "no figure that llmperf writes"),
        (llmperf_summary(results_ttft_s_min="low"), "results_ttft_s_min must be a number: got 'l"),
        (llmperf_summary(results_ttft_s_min="-1"), "results_ttft_s_min must be >= 0: got -1"),
        (llmperf_summary(results_ttft_s_min="nan"), "results_ttft_s_min must be finite"),
        (llmperf_summary(results_ttft_s_mean=[]), "results_ttft_s_mean must be a number"),
        (llmperf_summary(num_concurrent_requests=1.5), "num_concurrent_requests must be a whole"),
    ],
)
def test_damaged_llmperf_summaries(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_llmperf_summary(write(tmp_path, value))


# GenAI-Perf ---------------------------------------------------------------------------------------

NS = 1_750_000_000_000_000_000


def event(frame: str) -> str:
    return f"data: {frame}\n\n"


def genai_row(second: float = 0.0, *responses: str) -> dict[str, Any]:
    """A role, a text every 0.25 s, `[DONE]`."""
    sent = NS + round(second * 1e9)
    texts = responses or (event(ROLE), *map(event, map(said, "abc")), "data: [DONE]\n\n")
    return {
        "timestamp": sent,
        "request_inputs": {"payload": "{}"},
        "response_timestamps": [sent + 250_000_000 * (i + 1) for i in range(len(texts))],
        "response_outputs": [{"response": text} for text in texts],
    }


def genai(*rows: Any, mode: str = "concurrency", value: Any = 4) -> dict[str, Any]:
    return {
        "service_kind": "openai",
        "endpoint": "v1/chat/completions",
        "experiments": [
            {
                "experiment": {"mode": mode, "value": value},
                "requests": list(rows),
                "window_boundaries": [],
            }
        ],
        "version": "2.60.0",
    }


def read_genai(folder: Path, *rows: Any, **settings: Any):
    (run,) = read_genai_perf(write(folder, genai(*rows, **settings)))
    return run


def test_genai_perf_removes_empty_responses_first(tmp_path) -> None:
    run = read_genai(tmp_path, genai_row(), genai_row(1.0))
    log = run.requests
    assert log.arrival.tolist() == [0, 1]
    assert log.first_token.tolist() == [0.5, 1.5]  # case T01: not the role's response
    assert log.last_token.tolist() == [1.0, 2.0]  # nor `[DONE]`
    assert run.itl.tolist() == [0.25] * 4
    assert run.itl_counts.tolist() == [2, 2]
    assert log.output_tokens.tolist() == [3, 3]
    assert np.isnan(log.input_tokens).all()
    assert run.notes[0].startswith("N is the number of responses with text, not of tokens")
    assert run.notes[1] == "input tokens are not in the file"
    assert (run.max_concurrency, run.request_rate) == (4, None)
    assert run.first_content is None


def test_genai_perf_with_a_usage_frame(tmp_path) -> None:
    frame = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
    run = read_genai(tmp_path, genai_row(0.0, event(said("a")), event(frame)), mode="request_rate")
    assert run.requests.output_tokens.tolist() == [9]
    assert run.requests.input_tokens.tolist() == [7]
    assert run.requests.last_token.tolist() == [0.25]
    assert run.notes == ("N is the server's usage count; GenAI-Perf counts the text again",)
    assert (run.max_concurrency, run.request_rate) == (None, 4)
    mixed = read_genai(tmp_path, genai_row(0.0, event(said("a")), event(frame)), genai_row())
    assert mixed.requests.output_tokens.tolist() == [1, 3]


def test_genai_perf_joins_what_broke(tmp_path) -> None:
    """An event in splinters has the stamp of its beginning; several in one read have one stamp."""
    whole = event(said("a"))
    splinters = (whole[:20], whole[20:30], whole[30:] + event(said("b")), event(said("c")) * 2)
    run = read_genai(tmp_path, genai_row(0.0, *splinters))
    assert run.requests.first_token.tolist() == [0.25]
    assert run.itl.tolist() == [0.5, 0.25]
    assert run.requests.output_tokens.tolist() == [3]


def test_genai_perf_empty_and_failed_answers(tmp_path) -> None:
    """Case S08: an empty answer is skipped in every latency, yet counted in the tool's rate."""
    empty = genai_row(1.0, event(ROLE), "data: [DONE]\n\n")
    none = {**genai_row(2.0), "response_timestamps": [], "response_outputs": []}
    error = genai_row(3.0, event(said("a")), 'event: error\ndata: {"message": "x"}\n\n')
    body = genai_row(4.0, json.dumps({"error": {"message": "x"}}))
    run = read_genai(tmp_path, genai_row(), empty, none, error, body)
    log = run.requests
    assert log.succeeded.tolist() == [True, True, True, False, False]
    assert np.isnan(log.first_token).tolist() == [False, True, True, True, True]
    assert log.output_tokens[:3].tolist() == [3, 0, 0]
    assert run.itl_counts.tolist() == [2, 0, 0, 0, 0]
    assert run.itl.size == 2
    assert any(note.startswith("2 answers are empty") for note in run.notes)


def test_genai_perf_with_reasoning(tmp_path) -> None:
    row = genai_row(0.0, event(thought("hm")), event(said("a")))
    run = read_genai(tmp_path, row)
    assert run.requests.first_token.tolist() == [0.25]
    assert run.first_content.tolist() == [0.5]


def test_genai_perf_of_other_services(tmp_path) -> None:
    triton = {**genai_row(), "response_timestamps": [NS + 10**9, NS + 2 * 10**9]}
    triton["response_outputs"] = [{"text_output": "a"}, {"text_output": ""}]
    run = read_genai(tmp_path, triton)
    assert run.requests.last_token.tolist() == [1.0]
    ids = {**triton, "response_outputs": [{"output_ids": [5, 6, 7]}, {"output_ids": 8}]}
    run = read_genai(tmp_path, ids)
    assert run.requests.output_tokens.tolist() == [4]
    assert run.notes[0] == "N is the number of token ids in the responses"
    whole = genai_row(0.0, json.dumps({"choices": [{"message": {"content": "a b"}}]}))
    assert read_genai(tmp_path, whole).requests.first_token.tolist() == [0.25]


def test_genai_perf_keeps_nanoseconds(tmp_path) -> None:
    row = genai_row(0.0, event(said("a")), event(said("b")))
    row["response_timestamps"] = [NS + 1, NS + 2]
    run = read_genai(tmp_path, row)
    assert run.requests.first_token.tolist() == [1e-9]
    assert run.itl.tolist() == [1e-9]


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["timestamp"], None, "timestamp must be a number: got None"),
        (["timestamp"], 1.5, "timestamp must be a whole number"),
        (["response_timestamps"], 5, "response_timestamps must be a list: got 5"),
        (["response_timestamps"], [NS], "one value a response: got 1 for 5 response_outputs"),
        (["response_timestamps", 2], "x", r"response_timestamps\[2\] must be a number: got 'x'"),
        (["response_timestamps", 2], NS, "response_timestamps must not run back"),
        (["timestamp"], NS + 10**9, "response_timestamps must not run back from timestamp"),
        (["response_outputs"], None, "key 'response_outputs': expected a list: got None"),
        (["response_outputs", 1], 3, r"key 'response_outputs'\[1\]: expected a JSON object: got 3"),
        (["response_outputs", 1, "response"], 3, "response must be a text: got 3"),
        (["response_outputs", 1, "response"], "data: {", "response must hold JSON: got"),
        (["response_outputs", 1, "response"], "data: 3", "response must hold a JSON object"),
        (
            ["response_outputs", 1, "response"],
            'data: {"usage": {"completion_tokens": "4"}}',
            "completion_tokens must be a whole number >= 0: got '4'",
        ),
    ],
)
def test_damaged_genai_perf_rows(path, to, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json, line 1.*requests\[1\].*{message}"):
        read_genai(tmp_path, genai_row(), changed(genai_row(), *path, to=to))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected a JSON object"),
        (changed(genai(genai_row()), "service_kind", drop=True), "key 'service_kind' is missing"),
        (changed(genai(), "experiments", to=[]), "experiments must hold at least one run"),
        (genai(), r"key 'experiments'\[0\]: no request"),
        (changed(genai(), "experiments", 0, "requests", to=3), "key 'requests': expected a list"),
        (changed(genai(), "experiments", 0, "requests", drop=True), "key 'requests' is missing"),
        (genai(3), r"requests\[0\]: expected a JSON object: got 3"),
        (genai(genai_row(), value="4"), "value must be a number: got '4'"),
        (changed(genai(genai_row()), "experiments", 0, "experiment", drop=True), "'experiment' is"),
        (json.dumps(genai(genai_row()))[:-30], "not valid JSON"),
    ],
)
def test_damaged_genai_perf_files(value, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"r\.json.*{message}"):
        read_genai_perf(write(tmp_path, value))


def test_a_genai_perf_summary(tmp_path) -> None:
    told = {"unit": "ms", "avg": 100.0, "p50": 90.0, "std": 5.0}
    value = {
        "request_throughput": {"unit": "requests/sec", "avg": 2.0},
        "request_latency": told,
        "time_to_first_token": told,
        "request_goodput": {"unit": "requests/sec", "avg": -1},  # an SLO by a name it lacks
        "input_config": {"goodput": {"time_to_first_token": 200.0}},
    }
    run = read_genai_perf_summary(write(tmp_path, value, "x_genai_perf.json"))
    assert (run.tool, run.format, run.requests) == ("genai-perf", "genai-perf-summary", None)
    assert run.stated == {
        "ttft.mean": 0.1,
        "ttft.median": 0.09,
        "ttft.std": 5e-3,
        "e2e.mean": 0.1,
        "e2e.median": 0.09,
        "e2e.std": 5e-3,
        "request_throughput": 2.0,
    }
    assert run.limits == {"ttft": 0.2}
    (rows,) = read_genai_perf(write(tmp_path, genai(genai_row()), "x.json"))
    assert rows.stated == run.stated
    assert rows.notes[-1] == "the stated figures stand in x_genai_perf.json"
    with pytest.raises(ValueError, match="no figure that GenAI-Perf writes"):
        read_genai_perf_summary(write(tmp_path, {"input_config": {}}))


# Recognition --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aiperf/profile_export.jsonl", "aiperf"),
        ("aiperf/profile_export_aiperf.json", "aiperf-summary"),
        ("aiperf/profile_export_aiperf.csv", "aiperf-csv"),
        ("guidellm/guidellm-0.8-poisson-2rps.json", "guidellm"),
        *((f"inference_perf/{path.name}", "inference-perf-stage") for path in STAGES),
        *((f"llmperf/{name}.individual.json", "llmperf") for name in LLMPERF),
        *((f"llmperf/{name}.summary.json", "llmperf-summary") for name in LLMPERF),
        ("vllm_bench/vllm-0.32-poisson-1rps.json", "vllm"),
    ],
)
def test_a_real_file_is_recognised(name, kind) -> None:
    """`recognise` refuses a file that two formats fit."""
    assert recognise(DATA / name) == kind
    assert {run.format for run in read(DATA / name)} == {kind}


def test_a_small_file_is_recognised(tmp_path) -> None:
    unversioned = changed(aggregate(), "aiperf_version", drop=True)
    for kind, value in {
        "aiperf": lines(aiperf_row(), aiperf_row()),
        "aiperf-summary": aggregate(),
        "aiperf-csv": TABLE,
        "guidellm": guidellm([guidellm_row()]),
        "inference-perf": [perf_row()],
        "inference-perf-stage": perf_summary(),
        "llmperf": [ANSWER],
        "llmperf-summary": llmperf_summary(),
        "genai-perf": genai(genai_row()),
        "genai-perf-summary": unversioned,
    }.items():
        path = write(tmp_path, value)
        assert recognise(path) == kind
        assert {run.format for run in read(path)} == {kind}
    older = {**unversioned, "benchmark_duration": {"unit": "sec", "avg": 1.0}}
    assert recognise(write(tmp_path, older)) == "aiperf-summary"
    for value in ({}, [], [[]], {"metrics": 1}, {"experiments": []}, {"requests": []}):
        with pytest.raises(ValueError, match=r"r\.json: no known result file"):
            recognise(write(tmp_path, value))


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["aiperf", "inference-perf", "guidellm", "genai-perf"])
def test_memory_follows_the_record(tool, tmp_path) -> None:
    """Rows with long texts: 17 MB of file, and less than half of it in memory at any time.

    The reader holds 5.5 MB whatever the size: windows of 1 MB, the rows of one decoded.
    """
    text = "x" * 12_000
    rows = range(1400)
    match tool:
        case "aiperf":
            read: Any = read_aiperf
            value: Any = lines(*({**aiperf_row(i), "text": text} for i in rows))
        case "inference-perf":
            read, value = read_inference_perf, [{**perf_row(i), "response": text} for i in rows]
        case "guidellm":
            read = read_guidellm
            value = guidellm([{**guidellm_row(START + i), "output": text} for i in rows])
        case _:
            read = read_genai_perf
            value = genai(*({**genai_row(i), "request_inputs": text} for i in rows))
    path = write(tmp_path, value)
    size = path.stat().st_size
    del value
    tracemalloc.start()
    read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2
