"""The audit on real result files, on planted ones and on damaged ones, as a user meets it."""

import io
import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from lib import audit as module
from lib import benchmarks
from lib._files import DATA
from lib.audit import Audit, Slo, SweepRow, __main__, audit, percent, saturation, shown
from lib.audit.__main__ import main
from lib.audit.text import SCHEMA, WIDTH, text, to_json
from lib.benchmarks import BenchmarkRun
from lib.record import RequestLog

VLLM = [DATA / f"vllm_bench/vllm-0.32-poisson-{rate}rps.json" for rate in (1, 2, 3, 4, 5, 6, 8)]
STAGES = [DATA / f"inference_perf/stage_{i}_lifecycle_metrics.json" for i in range(7)]
FILES = [
    *VLLM,
    *STAGES,
    *sorted((DATA / "aiperf").glob("profile_export*")),
    *sorted((DATA / "llmperf").glob("*.json")),
    *sorted((DATA / "guidellm").glob("*.json")),
]
GIVEN = ["--ttft-slo", "0.25", "--tpot-slo", "0.025"]


def run_of(n=100, rate=2.0, failed=0, **changes) -> BenchmarkRun:
    """A healthy run: TTFT 0.1 to 0.2 s, 11 tokens, TPOT 20 ms."""
    rng = np.random.default_rng(4)
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    ttft = rng.uniform(0.1, 0.2, n)
    done = np.arange(n) >= failed
    log = RequestLog(
        arrival=arrival,
        first_token=np.where(done, arrival + ttft, np.nan),
        last_token=np.where(done, arrival + ttft + 0.2, np.nan),
        input_tokens=np.full(n, 50.0),
        output_tokens=np.where(done, 11.0, np.nan),
        succeeded=done,
    )
    run = BenchmarkRun(tool="csv", requests=log, source="mine.csv", format="csv")
    return replace(run, **changes)


def said(capsys) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def figure(quantities, name) -> float:
    return next(q.value for q in quantities if q.name == name)


def strict(document: str):
    """JSON by the letter of its standard."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(document, parse_constant=refuse)


# Every shipped file -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shipped_file_has_a_readable_ledger(path, capsys):
    assert main([str(path)]) == 0
    out, err = said(capsys)
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith(path.name)
    assert f"Read as {benchmarks.recognise(path)}:" in out
    assert 15 <= len(lines) <= 60
    assert max(map(len, lines)) <= WIDTH
    assert out.isascii()
    assert "nan" not in re.findall(r"[a-z]+", out.lower())
    assert "[ttft]" in out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_json_of_every_shipped_file_is_strict(path, capsys):
    assert main([str(path), "--json"]) == 0
    found = strict(said(capsys)[0])
    assert found["schema"] == SCHEMA
    assert found["missed"] is False
    (run,) = found["runs"]
    assert run["format"] == benchmarks.recognise(path)
    assert "run" not in run


def test_stated_figures_follow_from_the_rows_of_every_vllm_file():
    for path in VLLM:
        (run,) = audit(benchmarks.read(path)).runs
        assert not [row.key for row in run.stated if row.agrees is False]
        assert sum(row.agrees is True for row in run.stated) >= 24


def test_ledger_of_a_real_run():
    """Figures that vLLM itself states, and some from the rows by other ways."""
    (run,) = audit(benchmarks.read(VLLM[3]), Slo(ttft=0.25, tpot=0.025, target=0.9)).runs
    assert figure(run.counts, "requests sent") == 120
    assert figure(run.counts, "throughput") == pytest.approx(3.8671029564963697, rel=1e-12)
    assert figure(run.counts, "output throughput") == pytest.approx(238.95473685350484, rel=1e-12)
    rows = {row.name: row for row in run.latencies}  # the file rounds its times to 0.1 us
    assert rows["TTFT"].mean == pytest.approx(0.16527390620834313, abs=1e-7)
    assert dict(rows["TTFT"].percentiles)[99] == pytest.approx(0.3721557739800847, abs=1e-7)
    assert dict(rows["ITL"].percentiles)[99] == pytest.approx(0.15726042804019923, abs=1e-7)
    assert rows["TPOT"].n == 120
    assert rows["TTFT"].withheld == (99.9,)
    assert rows["ITL"].withheld == ()
    goodput = run.goodput
    assert goodput.joint.good == 87
    assert goodput.rate == pytest.approx(2.803649643459868, rel=1e-12)
    assert goodput.rate_low < goodput.rate < goodput.rate_high
    assert {row.verdict for row in run.identities} == {"holds", "not checked"}


def test_sweep_of_real_runs_saturates_and_its_goodput_peaks_before():
    found = audit(
        [run for path in VLLM for run in benchmarks.read(path)], Slo(ttft=0.25, tpot=0.025)
    )
    sweep = found.sweep
    assert [row.offered for row in sweep.rows] == [1, 2, 3, 4, 5, 6, 8]
    assert sweep.saturation.throughput == pytest.approx(5.3155, abs=1e-3)
    assert (sweep.saturation.below, sweep.saturation.beyond) == (5, 6)
    assert sweep.best.offered == 4
    assert sweep.best.goodput == pytest.approx(2.8036, abs=1e-3)
    assert sweep.rows[-1].goodput == 0
    assert found.missed


def test_little_finds_the_cap_of_the_public_demo():
    """inference-perf, stages 4 to 6: some 440 requests in flight while it sent, at any rate."""
    found = audit([run for path in STAGES for run in benchmarks.read(path)])
    closed = [[s for s in run.suspicions if s.name == "closed loop"] for run in found.runs]
    assert [len(found) for found in closed] == [0, 0, 0, 0, 1, 1, 1]
    flights = [int(re.search(r"(\d+) while it sent", s[0].seen)[1]) for s in closed[5:]]
    assert all(435 <= flight <= 450 for flight in flights)
    assert [s.name for s in found.sweep.suspicions] == ["closed loop"]
    assert found.sweep.saturation.throughput == pytest.approx(103.08, abs=0.01)
    for run in found.runs:
        assert "TPOT contradicts E2E" in [s.name for s in run.suspicions]
        (identity,) = [row for row in run.identities if row.name.startswith("E2E")]
        assert identity.verdict == "broken"


def test_a_tools_contradiction_with_itself_is_found():
    """AIPerf 0.13 states 80 requests, 32.95 s, and a rate that is that of 33.41 s."""
    (run,) = audit(benchmarks.read(DATA / "aiperf/profile_export_aiperf.json")).runs
    (broken,) = [row for row in run.identities if row.verdict == "broken"]
    assert broken.name == "rate x time = total, as stated"
    assert broken.error == pytest.approx(0.0137, abs=2e-4)
    assert "33.41 s" in broken.note


# The SLO and the exit status ----------------------------------------------------------------------


def test_exit_status_tells_whether_an_slo_is_missed(capsys):
    path = str(VLLM[2])  # 90.8 % keep both limits
    assert main([path, *GIVEN, "--target", "0.9"]) == 0
    assert "for 90.0 % of the requests: MET" in said(capsys)[0]
    assert main([path, *GIVEN, "--target", "0.92"]) == 1
    out = " ".join(said(capsys)[0].split())
    assert "MISSED (but the interval holds the target: too few requests to be sure)" in out
    assert main([path, *GIVEN, "--target", "0.99"]) == 1
    out = said(capsys)[0]
    assert "MISSED" in out
    assert "too few" not in out
    assert main([path]) == 0


def test_limits_read_with_their_unit(capsys):
    path = str(VLLM[3])
    assert main([path, "--ttft-slo", "0.25", "--tpot-slo", "0.025", "--json"]) == 1
    plain = said(capsys)[0]
    for ttft, tpot in (("250ms", "25ms"), ("0.25s", "0.025s")):
        assert main([path, "--ttft-slo", ttft, "--tpot-slo", tpot, "--json"]) == 1
        assert said(capsys)[0] == plain


@pytest.mark.parametrize(("limit", "words"), [("500", "the largest"), ("0.0005", "the smallest")])
def test_a_limit_in_another_unit_is_told_and_not_guessed(limit, words, capsys):
    status = main([str(VLLM[0]), "--ttft-slo", limit])
    out = " ".join(said(capsys)[0].split())
    assert f"{words} measured" in out
    assert "limits are in s" in out
    assert status == (0 if limit == "500" else 1)


def test_one_run_that_misses_is_enough(capsys):
    assert main([str(VLLM[0]), *GIVEN]) == 0
    assert main([str(VLLM[0]), str(VLLM[6]), *GIVEN]) == 1
    assert "SLO missed in 1 of 2 runs" in said(capsys)[0]


def test_limits_of_the_file_miss_nothing(capsys):
    """AIPerf was told its limits: 65 % keep them, and nobody asked here."""
    assert main([str(DATA / "aiperf/profile_export.jsonl")]) == 0
    out, _ = said(capsys)
    assert "the limits that the file names" in out
    assert "65.0 %" in out


def test_failed_requests_keep_no_limit():
    (run,) = audit([run_of(100, failed=20)], Slo(ttft=1.0, target=0.9)).runs
    assert (run.goodput.joint.good, run.goodput.joint.judged) == (80, 100)
    assert run.goodput.outcome == "missed"
    (run,) = audit([run_of(100)], Slo(ttft=1.0, target=0.9)).runs
    assert run.goodput.outcome == "met"


def test_a_success_without_first_token_keeps_no_limit():
    run = run_of(50)
    first = run.requests.first_token.copy()
    first[3] = np.nan
    run = replace(run, requests=replace(run.requests, first_token=first))
    (found,) = audit([run], Slo(e2e=9.0)).runs
    assert (found.goodput.joint.good, found.goodput.joint.judged) == (49, 50)
    assert "1 failed or unseen" in found.goodput.note


def test_a_file_without_rows_is_not_judged(capsys):
    assert main([str(STAGES[0]), "--ttft-slo", "1"]) == 0
    out, err = said(capsys)
    assert "not judged by the SLO" in err
    assert "no request can be judged" in out


# The numbers --------------------------------------------------------------------------------------


def test_only_percentiles_that_the_sample_carries():
    for n, carried in ((1, ()), (2, (50,)), (10, (50, 90)), (100, (50, 90, 95, 99))):
        (run,) = audit([run_of(n)]).runs
        row = next(row for row in run.latencies if row.name == "TTFT")
        assert tuple(q for q, _ in row.percentiles) == carried
        assert set(row.withheld) == set(module.QUANTILES) - set(carried)


def test_occupancy_by_littles_law_and_by_counting():
    (run,) = audit([run_of(500)]).runs
    log = run.run.requests
    stay = log.last_token - log.arrival
    window = log.last_token.max() - log.arrival.min()
    assert figure(run.occupancy, "in the system, mean") == pytest.approx(stay.sum() / window)
    (identity,) = [row for row in run.identities if row.name.startswith("mean in system")]
    assert identity.verdict == "not checked"  # the rows alone say the same thing twice


@pytest.mark.parametrize(
    ("keep", "scale", "verdict"), [(500, 1.0, "holds"), (499, 1.0, "broken"), (500, 1e3, "broken")]
)
def test_little_holds_the_stated_mean_against_the_stamps(keep, scale, verdict):
    run = run_of(500)
    log = run.requests
    mean = float((log.last_token - log.arrival).mean())
    said = {"completed": 500.0, "e2e.mean": scale * mean}
    run = replace(run, requests=log.where(np.arange(500) < keep), stated=said)
    (found,) = audit([run]).runs
    (identity,) = [row for row in found.identities if row.name.startswith("mean in system")]
    assert identity.verdict == verdict


def test_little_residual_is_the_size_of_the_fault():
    start, end = np.array([0.0, 1.0, 2.0]), np.array([2.0, 4.0, 3.0])
    assert module.little_residual(3, 2.0, start, end) == pytest.approx(0)
    assert module.little_residual(3, 2.0, start[[0, 2]], end[[0, 2]]) == pytest.approx(1)
    assert module.little_residual(3, 2.0, start, end + 1) == pytest.approx(-1 / 3)
    assert module.little_residual(3, 2000.0, start, end) == pytest.approx(999)
    assert module.little_residual(3, 2000.0, 1000 * start, 1000 * end) == pytest.approx(0)


def test_request_residual_is_in_seconds_and_per_request():
    left = module.request_residual(0.5, [0.3, 0.25], [6, 6], 2.0)
    assert np.allclose(left, [0, 0.25])
    assert module.request_residual(0.5, 0.0, 1, 0.5) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2.0, [0.0], [1.0]), "completed must be"),
        ((1.5, 2.0, [0.0], [1.0]), "completed must be"),
        ((1, 0.0, [0.0], [1.0]), "mean_e2e must be"),
        ((1, float("nan"), [0.0], [1.0]), "mean_e2e must be"),
        ((1, 2.0, [], []), "start must be a non-empty list"),
        ((1, 2.0, [0.0, 1.0], [1.0]), "lengths must match"),
        ((1, 2.0, [1.0], [0.0]), "end must"),
        ((1, 2.0, [1.0], [1.0]), "end must come after start"),
    ],
)
def test_little_residual_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        module.little_residual(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-0.1, 0.1, 2, 1.0), "ttft"),
        ((0.1, float("nan"), 2, 1.0), "tpot"),
        ((0.1, 0.1, 0, 1.0), "output_tokens"),
        ((0.1, 0.1, 2, -1.0), "e2e_latency must be"),
        (([0.1, 0.1], 0.1, 2, [1.0, 1.0, 1.0]), "lengths|shapes"),
    ],
)
def test_request_residual_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        module.request_residual(*arguments)


def test_batch_is_the_system_without_the_queue():
    run = run_of(200)
    log = run.requests
    begun = log.arrival + 0.05
    run = replace(run, requests=replace(log, scheduled=begun, queued=log.arrival))
    (found,) = audit([run], max_batch_size=4).runs
    system = figure(found.occupancy, "in the system, mean")
    batch = figure(found.occupancy, "in the batch, mean")
    e2e = (log.last_token - log.arrival).mean()
    assert batch == pytest.approx(system * (e2e - 0.05) / e2e)
    assert next(row for row in found.latencies if row.name == "queue wait").mean == pytest.approx(
        0.05
    )
    assert "seats" in text(audit([run], max_batch_size=4))


def test_broken_identities_are_told(capsys):
    run = run_of(50, stated={"completed": 51.0, "duration": 10.0, "request_throughput": 6.0})
    (found,) = audit([run]).runs
    broken = {row.name: row for row in found.identities if row.verdict == "broken"}
    assert broken["totals of the rows = stated totals"].error == 1
    assert broken["rate x time = total, as stated"].error == pytest.approx(60 / 51 - 1)
    assert "BROKEN" in text(audit([run]))


def test_own_tpot_that_breaks_e2e_is_told():
    run = run_of(50)
    own = np.full(50, 0.02)
    for wrong, verdict in ((1.0, "holds"), (1.1, "broken")):
        found = audit([replace(run, reported={"tpot": own * wrong})]).runs[0]
        row = next(row for row in found.identities if row.name.startswith("E2E"))
        assert row.verdict == verdict
    assert row.error == pytest.approx(10 * 0.002)


def test_gaps_that_do_not_add_up_are_told():
    run = run_of(50)
    for gap, verdict in ((0.02, "holds"), (0.021, "broken")):
        found = audit([replace(run, itl=np.full(500, gap), itl_counts=np.full(50, 10))]).runs[0]
        row = next(row for row in found.identities if row.name.startswith("last - first"))
        assert row.verdict == verdict


def test_one_token_and_no_clock():
    """llmperf-like: durations only, one of the answers a single token."""
    log = RequestLog(
        arrival=np.zeros(3),
        first_token=np.array([0.1, 0.2, 0.3]),
        last_token=np.array([0.1, 0.4, 0.5]),
        input_tokens=np.full(3, 5.0),
        output_tokens=np.array([1.0, 2.0, 2.0]),
        shared_clock=False,
    )
    run = BenchmarkRun(tool="csv", requests=log, source="x", format="csv")
    found = audit([run], Slo(tpot=0.25))
    assert next(r for r in found.runs[0].latencies if r.name == "TPOT").n == 2
    assert found.runs[0].goodput.rate is None
    assert "1 one-token answers" in text(found)
    strict(to_json(found))


def test_every_request_failed(capsys):
    found = audit([run_of(30, failed=30)], Slo(ttft=1.0))
    assert found.missed
    assert found.runs[0].goodput.joint.good == 0
    assert "30 of 30 requests got no answer" in " ".join(text(found).split())
    strict(to_json(found))


# The sweep ----------------------------------------------------------------------------------------


def rows_of(*pairs) -> list[SweepRow]:
    blank = {f.name: None for f in fields(SweepRow)}
    return [
        SweepRow(**blank | {"label": f"{offered}", "offered": offered, "throughput": carried})
        for offered, carried in pairs
    ]


def test_saturation_is_where_throughput_stops_following():
    found = saturation(rows_of((1, 1.0), (2, 2.0), (3, 2.5), (4, 2.5)))
    assert (found.throughput, found.below, found.beyond) == (2.5, 2, 3)
    assert saturation(rows_of((1, 1.0), (2, 1.95), (3, 2.9))) is None
    assert saturation(rows_of((1, 1.0), (2, 1.2))) is None  # two points make no bend
    above = saturation(rows_of((5, 2.0), (6, 2.1), (7, 2.0)))
    assert (above.below, above.beyond) == (None, 5)
    assert "No offered rate" in above.says
    assert saturation(rows_of((math.inf, 3.0), (1, 1.0), (2, 2.0))) is None


def test_repeated_runs_at_one_rate_are_averaged():
    found = saturation(rows_of((1, 1.0), (2, 1.9), (2, 2.1), (3, 2.2)))
    assert found.throughput == pytest.approx(2.2)


def test_runs_of_different_tools_are_no_sweep(capsys):
    paths = [VLLM[0], DATA / "aiperf/profile_export.jsonl", *STAGES[:2]]
    assert main([*map(str, paths)]) == 0
    out, _ = said(capsys)
    assert "no saturation point can be told" in out
    assert re.search(r"^  #4 stage_1_lifecycle_metrics\.json$", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= WIDTH


def test_each_run_in_full(capsys):
    main([*map(str, VLLM[:2])])
    short, _ = said(capsys)
    main([*map(str, VLLM[:2]), "--each"])
    full, _ = said(capsys)
    assert full.startswith(short.rstrip("\n"))
    for path in VLLM[:2]:
        assert f"\n{path.name} --" in full
        assert f"\n{path.name} --" not in short


def test_the_same_file_twice_has_two_names():
    found = audit([*benchmarks.read(VLLM[0]), *benchmarks.read(VLLM[0])])
    assert len({run.label for run in found.runs}) == 2


# JSON ---------------------------------------------------------------------------------------------


def test_json_holds_what_the_audit_holds():
    found = audit([run for path in VLLM[:3] for run in benchmarks.read(path)], Slo(ttft=0.25))
    plain = strict(to_json(found))
    assert plain["slo"] == {"ttft": 0.25, "tpot": None, "e2e": None, "target": 0.9, "given": True}
    assert set(plain) == {"schema", "missed", *(f.name for f in fields(Audit))}
    for told, run in zip(plain["runs"], found.runs, strict=True):
        assert set(told) == {f.name for f in fields(run)} - {"run"}
        assert [row["value"] for row in told["counts"]] == [q.value for q in run.counts]
        assert [row["mean"] for row in told["latencies"]] == [d.mean for d in run.latencies]
        assert told["goodput"]["rate"] == run.goodput.rate
        assert [row["name"] for row in told["suspicions"]] == [s.name for s in run.suspicions]
        verdicts = [verdict["rule"] for verdict in told["diagnosis"]["verdicts"]]
        assert verdicts == [verdict.rule for verdict in run.diagnosis.verdicts]
    assert len(plain["sweep"]["rows"]) == 3


def test_an_unlimited_rate_is_a_text():
    found = audit([run_of(20, request_rate=math.inf)])
    rates = {q["name"]: q["value"] for q in strict(to_json(found))["runs"][0]["counts"]}
    assert rates["asked rate"] == "inf"


# Showing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.1218, "s", "121.8 ms"),
        (2.876, "s", "2.876 s"),
        (19_966.4, "s", "19,966 s"),
        (0.0000485, "s", "48.5 us"),
        (0.025, "s/token", "25 ms/token"),
        (0.0, "s", "0 s"),
        (3.8671, "1/s", "3.867 /s"),
        (120, "requests", "120 requests"),
        (1e6, "requests", "1,000,000 requests"),
        (math.inf, "1/s", "inf /s"),
        (0.999951, "s", "1,000 ms"),
    ],
)
def test_shown(value, unit, words):
    assert shown(value, unit) == words


def test_percent_is_never_all_by_rounding():
    assert [percent(x) for x in (0, 1, 0.99999, 0.00001, 0.5)] == [
        "0 %",
        "100 %",
        "99.9 %",
        "0.1 %",
        "50.0 %",
    ]


# Unusable input -----------------------------------------------------------------------------------


def refused(args, capsys) -> str:
    """The one line on stderr of a command that must end with status 2 and print nothing."""
    assert main([*map(str, args)]) == 2
    out, err = said(capsys)
    assert out == ""
    assert err.startswith("audit: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_files_that_are_no_results_are_refused(tmp_path, capsys):
    for name, content in {
        "README.md": "# Notes\n\nOne, two.\n",
        "LICENSE": "Apache License\nVersion 2.0\n",
        "empty.json": "",
        "blank.json": " \n\n",
        "number.json": "17\n",
        "list.json": "[]\n",
        "other.json": '{"a": 1}\n',
        "words.txt": "nothing at all",
    }.items():
        path = tmp_path / name
        path.write_text(content)
        assert name in refused([path], capsys)


def test_binary_is_refused(tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_bytes(bytes(range(256)) * 40)
    assert "run.json" in refused([path], capsys)


def test_paths_that_cannot_be_read_are_refused(tmp_path, capsys):
    assert "none.json" in refused([tmp_path / "none.json"], capsys)
    assert "a folder" in refused([tmp_path], capsys)
    assert "No such file" in refused([tmp_path / "a" / "b"], capsys)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_without_permission_is_refused(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text("{}")
    path.chmod(0)
    assert "mine.json" in refused([path], capsys)


def vllm(tmp_path, change) -> Path:
    """A real vLLM file with one thing changed."""
    value = json.loads(VLLM[0].read_text())
    change(value)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(value))
    return path


DAMAGE = {
    "a time is negative": lambda v: v["ttfts"].__setitem__(3, -0.1),
    "a time is a text": lambda v: v["ttfts"].__setitem__(3, "0.1"),
    "a time is NaN": lambda v: v["ttfts"].__setitem__(3, math.nan),
    "a time is infinite": lambda v: v["ttfts"].__setitem__(3, math.inf),
    "a time is null": lambda v: v["ttfts"].__setitem__(3, None),
    "a list is shorter": lambda v: v["output_lens"].pop(),
    "a list is gone": lambda v: v.pop("input_lens"),
    "a list is a number": lambda v: v.__setitem__("itls", 3),
    "a count is broken": lambda v: v["output_lens"].__setitem__(0, 3.5),
    "totals disagree": lambda v: v.__setitem__("total_output_tokens", 1),
    "completed disagrees": lambda v: v.__setitem__("completed", 119),
    "duration is zero": lambda v: v.__setitem__("duration", 0),
    "duration is short": lambda v: v.__setitem__("duration", 3.0),
    "duration is gone": lambda v: v.pop("duration"),
    "the rate is zero": lambda v: v.__setitem__("request_rate", 0),
    "the rate is a word": lambda v: v.__setitem__("request_rate", "fast"),
    "a gap is a list": lambda v: v["itls"][0].__setitem__(0, []),
    "an error is a number": lambda v: v["errors"].__setitem__(0, 4),
    "latency before the last gap": lambda v: (
        v["latencies"].__setitem__(0, 0.001) if "latencies" in v else v["ttfts"].__setitem__(0, -1)
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused(name, tmp_path, capsys):
    assert "damaged.json" in refused([vllm(tmp_path, DAMAGE[name])], capsys)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
def test_a_file_cut_off_is_refused(share, tmp_path, capsys):
    content = VLLM[0].read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(content[: int(share * len(content))])
    assert "cut.json" in refused([path], capsys)


def test_a_key_twice_is_refused(tmp_path, capsys):
    path = tmp_path / "twice.json"
    path.write_text(VLLM[0].read_text().replace('"duration":', '"duration": 1.0, "duration":', 1))
    assert "twice" in refused([path], capsys)


TABLE = "arrival,input_tokens,output_tokens,first_token,last_token\n"


@pytest.mark.parametrize(
    "rows",
    [
        "0.0,5,3,-0.1,0.5\n",  # the first token before the arrival
        "1.0,5,3,0.5,2.0\n",
        "0.0,5,3,0.4,0.3\n",  # case F07: the last token before the first
        "0.0,5,3,0.1\n",
        "0.0,5,x,0.1,0.5\n",
        "0.0,5,2.5,0.1,0.5\n",
        "0.0,5,3,nan,0.5\n",
        "",
    ],
)
def test_tables_with_impossible_rows_are_refused(rows, tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(TABLE + rows)
    assert "table.csv" in refused([path], capsys)


def test_one_bad_file_among_good_ones_is_refused(tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text("{")
    assert "bad.json" in refused([VLLM[0], path], capsys)


def test_a_forced_format_that_does_not_fit_is_refused(capsys):
    assert "format" in refused([VLLM[0], "--format", "excel"], capsys)
    assert VLLM[0].name in refused([VLLM[0], "--format", "guidellm"], capsys)


# Flags --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ttft-slo", "soon"], "a time > 0"),
        (["--ttft-slo", "0"], "a time > 0"),
        (["--tpot-slo", "-1"], "a time > 0"),
        (["--e2e-slo", "nan"], "a time > 0"),
        (["--e2e-slo", "inf"], "a time > 0"),
        (["--ttft-slo", "5min"], "a time > 0"),
        (["--ttft-slo", "0.1", "--target", "99"], "0.99 for 99 %"),
        (["--ttft-slo", "0.1", "--target", "0"], "0.99 for 99 %"),
        (["--max-batch-size", "0"], "a whole number > 0"),
        (["--max-batch-size", "2.5"], "a whole number > 0"),
        (["--columns", "arrival"], "arrival=start"),
        (["--columns", "arrival=a,arrival=b"], "twice"),
        (["--unit", "min"], "invalid choice"),
        (["--slo", "3"], "unrecognized arguments"),
        (["--ttft", "3"], "unrecognized arguments"),
    ],
)
def test_wrong_flags_are_told(args, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([str(VLLM[0]), *args])
    assert exit_.value.code == 2
    assert words in said(capsys)[1]


def test_no_file_is_told(capsys):
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert "FILE" in said(capsys)[1]


def test_a_target_needs_a_limit(capsys):
    assert "--target needs a limit" in refused([VLLM[0], "--target", "0.9"], capsys)


def test_help_tells_the_exit_status(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    out, _ = said(capsys)
    assert "exit status" in out
    assert "250ms" in out


def test_columns_and_unit_of_a_table(tmp_path, capsys):
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(500, 60))
    rows = [f"{a:.3f},{a + 150 + i:.3f},{a + 400 + i:.3f},100,11" for i, a in enumerate(arrival)]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["start,first,last,prompt,answer", *rows]) + "\n")
    names = "arrival=start,first_token=first,last_token=last,input_tokens=prompt,"
    names += "output_tokens=answer"
    assert main([str(path), "--columns", names, "--unit", "ms", "--json"]) == 0
    (run,) = strict(said(capsys)[0])["runs"]
    means = {row["name"]: row["mean"] for row in run["latencies"]}
    assert means["TPOT"] == pytest.approx(0.025)
    assert means["TTFT"] == pytest.approx(0.15 + 59 / 2 / 1000)


# The page, the pipe and the console ---------------------------------------------------------------


def test_html_is_written_beside_the_text(tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main([str(VLLM[3]), *GIVEN, "--html", str(page)]) == 1
    out, _ = said(capsys)
    assert out.startswith(VLLM[3].name)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_html_never_overwrites_the_input(tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_bytes(VLLM[0].read_bytes())
    assert "overwrite" in refused([path, "--html", path], capsys)
    assert path.read_bytes() == VLLM[0].read_bytes()


def test_html_into_a_missing_folder_is_told(tmp_path, capsys):
    page = tmp_path / "none" / "report.html"
    assert "report.html" in refused([VLLM[0], "--html", page], capsys)


def test_long_work_is_told_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr(__main__, "LONG", 1)
    assert main([str(VLLM[0])]) == 0
    _, err = said(capsys)
    assert f"audit: reading {VLLM[0].name}" in err
    assert "120 requests" in err


def command(*args, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "lib.audit", *map(str, args)],
        capture_output=True,
        cwd=Path(benchmarks.__file__).parents[2],
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_command_on_any_console(encoding, tmp_path):
    path = tmp_path / "Lauf-ü-测试.json"
    path.write_bytes(VLLM[3].read_bytes())
    done = command(path, *GIVEN, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 1
    assert done.stderr == b""
    assert b"TTFT" in done.stdout
    done = command(path, "--format", "llmperf", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"audit: ")


def test_command_writes_the_same_as_the_library(capsys):
    done = command(VLLM[3], "--json")
    assert main([str(VLLM[3]), "--json"]) == 0
    assert done.stdout.decode().replace("\r\n", "\n") == said(capsys)[0]


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_a_closed_pipe_ends_without_a_word(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main([str(VLLM[0])]) == 0
    assert said(capsys)[1] == ""


def test_main_takes_a_stream_that_cannot_be_set_up(monkeypatch):
    """A notebook's or a test's stdout is no text file with an encoding."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert main([str(VLLM[0])]) == 0
    assert out.getvalue().startswith(VLLM[0].name)


# The library's own face ---------------------------------------------------------------------------


def test_audit_refuses_what_is_no_run():
    with pytest.raises(ValueError, match="runs must hold a run: got none"):
        audit([])
    with pytest.raises(TypeError, match="runs must hold BenchmarkRun: got 3"):
        audit([3])
    with pytest.raises(ValueError, match="max_batch_size must be >= 1: got 0"):
        audit([run_of()], max_batch_size=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttft": 0.0}, "ttft_slo must be > 0: got 0"),
        ({"tpot": -1.0}, "tpot_slo must be > 0: got -1"),
        ({"e2e": math.nan}, "e2e_slo must be finite"),
        (
            {"ttft": 1.0, "target": 99.0},
            r"target must be a share in \(0, 1\]: 0.99 for 99 %: got 99",
        ),
        ({"ttft": 1.0, "target": 0.0}, "target must be a share"),
        ({}, "an SLO needs a limit"),
    ],
)
def test_slo_refuses_nonsense(changes, words):
    with pytest.raises(ValueError, match=words):
        Slo(**changes)


def test_many_requests_take_seconds():
    """Vectorised: some 10 us a row, with room for a slow machine. A loop over rows takes 100 us."""
    run = run_of(200_000, rate=50.0)
    begin = time.perf_counter()
    found = audit([run], Slo(ttft=0.15, tpot=0.025))
    assert time.perf_counter() - begin < 20
    assert found.runs[0].goodput.joint.judged == 200_000


def test_a_sweep_without_rows_is_not_judged(capsys):
    assert main([*map(str, STAGES[:3]), *GIVEN]) == 0
    out, _ = said(capsys)
    assert "3 of 3 runs have no rows to judge." in out
    assert "Within" not in out
    assert "SLO missed" not in out
    assert main([str(VLLM[6]), *map(str, STAGES[:2]), *GIVEN]) == 1
    assert "SLO missed in 1 of 1 runs. 2 of 3 runs have no rows to judge." in said(capsys)[0]


@pytest.mark.parametrize(
    ("slo", "agrees", "why"),
    [
        (Slo(ttft=0.25, tpot=0.025), True, "over the file's own window"),
        (Slo(ttft=0.3, tpot=0.025), None, "the file names no limits, and yours give another"),
        (None, None, "the file names no limits"),
    ],
)
def test_a_goodput_of_unnamed_limits_is_checked_by_the_limits_given(slo, agrees, why):
    (run,) = audit([benchmarks.load("vllm/4rps")], slo).runs
    (row,) = (row for row in run.stated if row.key == "goodput")
    assert (row.agrees, row.why) == (agrees, why)
    assert (row.recomputed is None) == (agrees is None)
    assert all(other.agrees is not False for other in run.stated)


def test_a_goodput_of_named_limits_is_checked_by_those():
    run = replace(benchmarks.load("vllm/4rps"), limits={"ttft": 0.3, "tpot": 0.025})
    (found,) = audit([run], Slo(ttft=0.25, tpot=0.025)).runs
    (row,) = (row for row in found.stated if row.key == "goodput")
    assert row.agrees is False
