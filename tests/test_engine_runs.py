"""lib.engine_runs: the real engine's stamps, checked against its own step log."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lib.engine_runs import (
    DATA,
    SHIPPED,
    SHIPPED_DECODE,
    load,
    load_decode_steps,
    read_cpu_run,
    read_decode_steps,
    read_gpu_run,
)

CPU = [name for name in SHIPPED if name.startswith("cpu")]
GPU = [name for name in SHIPPED if name.startswith("gpu")]


# The CPU runs: stamps and steps were logged apart, and must tell one story ------------------------


@pytest.mark.parametrize("name", CPU)
def test_every_stamp_is_the_edge_of_a_step(name) -> None:
    run = load(name)
    assert np.isin(run.requests.scheduled, run.steps.start).all()
    assert np.isin(run.requests.first_token, run.steps.end).all()
    assert np.isin(run.requests.last_token, run.steps.end).all()
    assert np.array_equal(run.requests.prefill_end, run.requests.first_token)


@pytest.mark.parametrize("name", CPU)
def test_steps_do_the_requests_work_and_no_more(name) -> None:
    run = load(name)
    assert run.steps.prefill_tokens.sum() == run.requests.input_tokens.sum()
    assert run.steps.decode_seqs.sum() == (run.requests.output_tokens - 1).sum()


@pytest.mark.parametrize("name", CPU)
def test_one_decode_step_a_token_after_the_first(name) -> None:
    run = load(name)
    first = np.searchsorted(run.steps.end, run.requests.first_token)
    last = np.searchsorted(run.steps.end, run.requests.last_token)
    assert np.array_equal(last - first, run.requests.output_tokens - 1)


@pytest.mark.parametrize("name", CPU)
def test_running_and_waiting_are_what_the_stamps_say(name) -> None:
    run = load(name)
    log, start, end = run.requests, run.steps.start[:, None], run.steps.end[:, None]
    running = ((log.scheduled <= start) & (log.last_token >= end)).sum(axis=1)
    waiting = ((log.queued <= start) & (log.scheduled > start)).sum(axis=1)
    assert np.array_equal(running, run.steps.running)
    assert np.array_equal(waiting, run.steps.waiting)


@pytest.mark.parametrize("name", CPU)
def test_the_engine_kept_its_own_limits(name) -> None:
    run = load(name)
    assert run.steps.running.max() <= run.meta["max_num_seqs"]
    tokens = run.steps.prefill_tokens + run.steps.decode_seqs
    assert tokens.max() <= run.meta["max_num_batched_tokens"]
    assert len(run.requests) == run.meta["n"]
    assert run.name == name.split("/")[1]
    assert run.samples is None
    assert run.client_arrival is None


def test_first_row_of_rate4() -> None:
    log = load("cpu/rate4").requests
    assert log.request_id[0] == 0
    stamps = (log.arrival, log.queued, log.scheduled, log.first_token, log.last_token)
    assert [stamp[0] for stamp in stamps] == [0.788115, 0.788269, 0.789162, 0.875716, 1.111773]
    assert (log.input_tokens[0], log.output_tokens[0]) == (363, 32)


# The GPU runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ttft", "e2e"),
    [  # ms, the publisher's own summary.txt, column vLLM
        ("gpu/RTX4090_Llama-3.1-8B", 65456.6, 86578.3),
        ("gpu/RTXPRO6000_Llama-3.1-8B", 7097.2, 28200.7),
    ],
)
def test_means_agree_with_the_publishers(name, ttft, e2e) -> None:
    metrics = load(name).requests.metrics()
    # Half of the last digit printed there.
    assert metrics.ttft.mean() * 1e3 == pytest.approx(ttft, abs=0.05)
    assert metrics.e2e_latency.mean() * 1e3 == pytest.approx(e2e, abs=0.05)


@pytest.mark.parametrize("name", GPU)
def test_arrival_is_on_the_engines_clock(name) -> None:
    run = load(name)
    log = run.requests
    rows = [
        json.loads(line)
        for line in (DATA / "engine_gpu" / run.name / "requests.jsonl").read_text().splitlines()
    ]
    raw = np.array([row["queued_ts"] for row in rows])
    assert np.array_equal(log.arrival, log.queued)
    assert log.arrival.min() == 0
    # 27,536 s and 479,748 s leave a last place of 6e-11 s at most.
    assert np.allclose(log.arrival + raw.min(), raw, rtol=0, atol=1e-10)
    assert run.client_arrival.tolist() == [row["arrival_time"] for row in rows]
    # The two clocks have other origins, and the gap between their stamps is not constant.
    gap = run.client_arrival - raw
    assert gap.min() > 1.7e9
    assert 0.1 < np.ptp(gap) < 0.3
    assert run.steps is None


@pytest.mark.parametrize("name", GPU)
def test_the_log_counts_the_tokens_of_the_requests(name) -> None:
    run = load(name)
    assert run.samples.prompt_throughput.sum() == run.requests.input_tokens.sum()
    assert run.samples.gen_throughput.sum() == run.requests.output_tokens.sum()
    assert run.samples.kv_cache.max() <= 1


@pytest.mark.parametrize("name", GPU)
def test_samples_lie_on_the_requests_clock(name) -> None:
    """At each sample, the log's running + waiting is what the stamps hold in the system."""
    run = load(name)
    logged = run.samples.running + run.samples.waiting

    def missed(shift: float) -> float:
        at = run.samples.time[:, None] + shift
        inside = ((run.requests.arrival <= at) & (run.requests.last_token > at)).sum(axis=1)
        return float(np.abs(inside - logged).mean())

    assert missed(0) < 0.2  # requests, of a mean above 120 in the system
    assert min(missed(0.5), missed(-0.5)) > 8 * missed(0)  # half a second off is plain to see


def test_preemption_shows_between_stamps_and_log() -> None:
    """After its first schedule a preempted request waits again: the stamps cannot see that."""
    excess = {}
    for name in GPU:
        run = load(name)
        at = run.samples.time[:, None]
        held = ((run.requests.scheduled <= at) & (run.requests.last_token > at)).sum(axis=1)
        excess[name] = (held - run.samples.running).mean()
    tight, ample = excess.values()
    assert tight > 2
    assert abs(ample) < 0.3


# Decode steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_DECODE)
def test_decode_steps(name) -> None:
    steps = load_decode_steps(name)
    heads = steps.meta["model"]["num_key_value_heads"]
    per_token = 2 * 12 * heads * 64 * 2  # K and V, 12 layers, heads of 64, 2 B
    assert np.array_equal(steps.kv_bytes, steps.kv_tokens * per_token)
    assert (steps.kv_tokens > steps.batch * steps.context).all()
    assert (steps.duration > 0).all()
    assert steps.rep.size == 152


# Broken files -------------------------------------------------------------------------------------


@pytest.fixture
def cpu(tmp_path) -> Path:
    for path in (DATA / "engine_cpu").glob("rate6_*"):
        shutil.copy(path, tmp_path)
    for path in (DATA / "engine_cpu").glob("decode_gqa_*"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def gpu(tmp_path) -> Path:
    return Path(shutil.copytree(DATA / "engine_gpu" / "RTX4090_Llama-3.1-8B", tmp_path / "run"))


def swap(path: Path, line: int, old: str, new: str) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "line", "old", "new", "message"),
    [
        ("requests", 1, "queued", "sent", r"rate6_requests.csv, line 1: the header must be"),
        ("requests", 2, "0.299186", "nan", r"line 2: arrival must be a number >= 0: got 'nan'"),
        ("requests", 2, "0.299186", "-1", r"line 2: arrival must be a number >= 0: got '-1'"),
        ("requests", 2, "0.299186", "inf", r"line 2: arrival must be a number >= 0: got 'inf'"),
        ("requests", 2, ",225,", ",,", r"line 2: input_tokens must be a whole number >= 0: got ''"),
        ("requests", 2, ",225,", ",", r"line 2: expected 8 fields"),
        ("requests", 3, "1,", "0,", r"rate6_requests.csv: id must not appear twice: got 0"),
        (
            "requests",
            2,
            "0.299326",
            "0.2",
            r"rate6_requests.csv: queued must not precede arrival: got 0.2 < 0.299186 at index 0",
        ),
        (
            "requests",
            2,
            "0.348537",
            "0.3",
            r"prefill_end must not precede scheduled: got 0.3 < 0.30015",
        ),
        ("steps", 2, ",225,", ",x,", r"rate6_steps.csv, line 2: prefill_tokens must be a whole"),
        (
            "steps",
            2,
            "0.348537",
            "0.2",
            r"rate6_steps.csv: end must not precede start: got 0.2 < 0.30015 at index 0",
        ),
        (
            "steps",
            2,
            "0.348537",
            "0.9",
            r"start must not precede end of the step before: got 0.349242 < 0.9",
        ),
        ("steps", 2, ",1,1,0", ",2,1,0", r"rate6_steps.csv: seqs must be <= running: got 2"),
        ("meta.json", 1, "{", "[", r"rate6_meta.json, line \d+: not valid JSON"),
        ("meta.json", 2, '"engine": "vLLM"', '"rate": 6', r"key 'rate' appears twice"),
        ("meta.json", 1, "{", "{}{", r"rate6_meta.json, line 1: expected one JSON value"),
    ],
)
def test_broken_cpu_runs(cpu, file, line, old, new, message) -> None:
    path = cpu / f"rate6_{file if '.' in file else file + '.csv'}"
    swap(path, line, old, new)
    with pytest.raises(ValueError, match=message):
        read_cpu_run(cpu, "rate6")


@pytest.mark.parametrize(
    ("file", "line", "old", "new", "message"),
    [
        (
            "requests.jsonl",
            3,
            '"queued_ts": ',
            '"queued_at": ',
            r"requests.jsonl, line 3: key 'queued_ts' is missing",
        ),
        (
            "requests.jsonl",
            3,
            '"first_token_ts": ',
            '"first_token_ts": -',
            r"requests.jsonl, line 3: first_token_ts must be >= 0: got -27537",
        ),
        (
            "requests.jsonl",
            1,
            '"output_toks": 531',
            '"output_toks": 531.5',
            r"requests.jsonl, line 1: output_toks must be a whole number: got 531.5",
        ),
        (
            "requests.jsonl",
            1,
            '"last_token_ts": 27554',
            '"last_token_ts": 27537',
            r"requests.jsonl: last_token must not precede first_token",
        ),
        ("requests.jsonl", 1, '"bench-0"', "0", r"line 1: request_id must be a text: got 0"),
        (
            "requests.jsonl",
            1,
            '"bench-0"',
            '"bench-1"',
            r"requests.jsonl: request_id must not appear twice: got bench-1",
        ),
        (
            "timeseries.csv",
            2,
            "13.22",
            "",
            r"timeseries.csv, line 2: kv_cache_pct must be a number",
        ),
        ("meta.json", 20, '"started_at"', '"begun"', r"meta.json.*: key 'started_at' is missing"),
        (
            "meta.json",
            20,
            "2026-08-20T23:19:39.992496Z",
            "2026-08-20T23:19:39",
            r"started_at must be a date with a zone: got '2026-08-20T23:19:39'",
        ),
        ("meta.json", 20, "2026-08", "August", r"started_at must be a date with a zone"),
    ],
)
def test_broken_gpu_runs(gpu, file, line, old, new, message) -> None:
    swap(gpu / file, line, old, new)
    with pytest.raises(ValueError, match=message):
        read_gpu_run(gpu)


def test_broken_decode_steps(cpu) -> None:
    swap(cpu / "decode_gqa_steps.csv", 2, "792576", "792577")
    message = r"decode_gqa_steps.csv: kv_bytes must be kv_tokens x kv_bytes_per_token: got 792577"
    with pytest.raises(ValueError, match=message):
        read_decode_steps(cpu, "decode_gqa")


def test_no_such_run(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="rate9_requests"):
        read_cpu_run(tmp_path, "rate9")


def test_decode_steps_are_in_seconds():
    steps = load_decode_steps("cpu/decode_mha")
    assert steps.duration[:2].tolist() == [0.015153, 0.013888]
