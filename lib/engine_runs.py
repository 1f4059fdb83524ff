"""Runs of a real engine (vLLM) with the engine's own stamps, step log and samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import (
    COUNT,
    DATA,
    NUMBER,
    Entry,
    column,
    counts,
    entry,
    located,
    read_json,
    read_one,
    read_table,
)
from lib._validate import FloatArray, choice, ordered, require
from lib.record import RequestLog

REQUESTS = {
    "id": COUNT,
    "arrival": NUMBER,
    "queued": NUMBER,
    "scheduled": NUMBER,
    "first_token": NUMBER,
    "last_token": NUMBER,
    "input_tokens": COUNT,
    "output_tokens": COUNT,
}
STEPS = {
    "start": NUMBER,
    "end": NUMBER,
    "prefill_tokens": COUNT,
    "decode_seqs": COUNT,
    "kv_tokens": COUNT,
    "seqs": COUNT,
    "running": COUNT,
    "waiting": COUNT,
}
_SAMPLES = {
    "t": NUMBER,
    "prompt_throughput": NUMBER,
    "gen_throughput": NUMBER,
    "running": COUNT,
    "waiting": COUNT,
    "kv_cache_pct": NUMBER,
}
DECODE = {
    "rep": COUNT,
    "batch": COUNT,
    "context": COUNT,
    "kv_tokens": COUNT,
    "kv_bytes": COUNT,
    "duration": NUMBER,
}

SHIPPED = (
    "cpu/rate2",
    "cpu/rate4",
    "cpu/rate6",
    "cpu/budget2048_rate4",
    "gpu/RTX4090_Llama-3.1-8B",
    "gpu/RTXPRO6000_Llama-3.1-8B",
)
SHIPPED_DECODE = ("cpu/decode_mha", "cpu/decode_gqa")
SHIPPED_RECORDS = (
    "v0.33/s01_chunked_prefill_basic",
    "v0.33/s02_staggered_decode_first",
    "v0.33/s03_max_num_seqs",
    "v0.33/s04_long_prefill_threshold",
    "v0.33/s05_preemption_recompute",
    "v0.33/s06_preemption_chunked_recompute",
    "v0.33/s07a_reserve_full_isl_on",
    "v0.33/s07b_reserve_full_isl_off",
    "v0.33/s11_no_chunked_prefill",
    "v0.33/s15_budget_saturated_by_decodes",
    "v0.33/s16_max_model_len",
    *(
        f"v0.32/{family}/{i}"
        for family in (
            "chunked",
            "few_seqs",
            "kv_limited",
            "kv_thrash",
            "long_prefill_threshold",
            "no_chunking",
            "tight_budget",
        )
        for i in range(4)
    ),
)
_LIMITS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "scheduler_reserve_full_isl",
    "watermark",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Steps:
    """Engine steps in order, one value a step, on the clock of the run's requests.

    start, end : (s). prefill_tokens : prompt tokens computed. decode_seqs : sequences that decode
    one token. kv_tokens : context after the step, summed over the sequences in it. seqs :
    sequences in the step. running, waiting : sequences after scheduling.
    """

    start: FloatArray
    end: FloatArray
    prefill_tokens: FloatArray
    decode_seqs: FloatArray
    kv_tokens: FloatArray
    seqs: FloatArray
    running: FloatArray
    waiting: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """The engine's own log, one value a sample, on the clock of the run's requests.

    time : (s). prompt_throughput, gen_throughput : tokens in the second before it (tokens/s).
    running, waiting : sequences. kv_cache : share of the KV blocks in use, 0 to 1.
    """

    time: FloatArray
    prompt_throughput: FloatArray
    gen_throughput: FloatArray
    running: FloatArray
    waiting: FloatArray
    kv_cache: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineRun:
    """One run: its requests, its settings (`meta`), and what the engine logged besides.

    steps : every engine step, where they were recorded. samples : a log once a second, where there
    is one. client_arrival : (n,) the client's arrival stamps, on the client's own clock (s), where
    that clock is another.
    """

    name: str
    requests: RequestLog
    meta: Mapping[str, Any]
    steps: Steps | None = None
    samples: Samples | None = None
    client_arrival: FloatArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DecodeSteps:
    """Decode-only steps at a chosen batch and context, one value a step.

    rep : repetition. batch : sequences. context : tokens a sequence held when the set began.
    kv_tokens : context after the step, summed over the batch. kv_bytes : their KV (B). duration :
    the engine step, scheduling and sampling included (s). meta : model and bandwidth (B/s).
    """

    rep: FloatArray
    batch: FloatArray
    context: FloatArray
    kv_tokens: FloatArray
    kv_bytes: FloatArray
    duration: FloatArray
    meta: Mapping[str, Any]


def load(name: str) -> EngineRun:
    """A run that comes with the course, by its name in `SHIPPED`.

    Raises
    ------
    ValueError : no such name.
    """
    machine, run = _shipped(name, SHIPPED)
    if machine == "cpu":
        return read_cpu_run(DATA / "engine_cpu", run)
    return read_gpu_run(DATA / "engine_gpu" / run)


def load_decode_steps(name: str) -> DecodeSteps:
    """A set of decode steps that comes with the course, by its name in `SHIPPED_DECODE`.

    Raises
    ------
    ValueError : no such name.
    """
    return read_decode_steps(DATA / "engine_cpu", _shipped(name, SHIPPED_DECODE)[1])


def load_scheduler_record(name: str) -> dict[str, Any]:
    """A step-by-step record of the real scheduler's decisions, by its name in `SHIPPED_RECORDS`.

    Returns
    -------
    The record as stored, with `steps`: for each, `scheduled` (request to tokens), `preempted`,
    `running`, `waiting` and `free_blocks` (the file says more in v0.33). Added to it, in one form
    for both versions: `limits`, the keyword arguments of `scheduling.TokenBudgetScheduler`, and
    `workload`, a row (req_id, steps before its arrival, input tokens, output tokens) a request.

    Raises
    ------
    ValueError : no such name.
    """
    version, scenario = choice("name", name, SHIPPED_RECORDS).split("/", 1)
    family, _, number = scenario.partition("/")
    record = entry(*read_one(DATA / "vllm_scheduler" / version / f"{family}.json")).values
    limits = {key: value for key, value in record["config"].items() if key in _LIMITS}
    if number:
        record = {**record["scenarios"][int(number)], "config": record["config"]}
        limits["num_kv_blocks"] = record["config"]["num_kv_blocks"]
        workload = [
            (str(i), row["arrival_step"], row["input_tokens"], row["output_tokens"])
            for i, row in enumerate(record["requests"])
        ]
        record["steps"] = [
            {**step, **{k: [str(i) for i in step[k]] for k in ("preempted", "running", "waiting")}}
            for step in record["steps"]
        ]
    else:
        limits["num_kv_blocks"] = record["usable_blocks"]
        workload = [
            (row["id"], row["arrival_step"] - 1, row["prompt_len"], row["max_tokens"])
            for row in record["requests"]
        ]
    return {**record, "limits": limits, "workload": workload}


def _shipped(name: str, names: tuple[str, ...]) -> tuple[str, str]:
    machine, run = choice("name", name, names).split("/")
    return machine, run


def read_cpu_run(folder: str | Path, name: str) -> EngineRun:
    """A run recorded step by step: `{name}_requests.csv`, `_steps.csv` and `_meta.json`.

    Parameters
    ----------
    folder : where the three files lie.
    name : their common beginning.

    Returns
    -------
    EngineRun with every stamp of the record and `steps`, in seconds from the run's start.
    `prefill_end` is `first_token`: in vLLM the step that computes the last prompt token samples
    the first output token too.

    Raises
    ------
    ValueError : a malformed file, with file, line and column; stamps out of order.

    Source: vLLM `v1/core/sched/scheduler.py` (a step's new tokens are whatever is not computed
    yet; there is no prefill phase and no decode phase).
    """
    folder = Path(folder)
    requests, steps = folder / f"{name}_requests.csv", folder / f"{name}_steps.csv"
    columns: dict[str, Any] = {**read_table(requests, REQUESTS)}
    ids = columns.pop("id").astype(np.int64)
    with located(requests.name):
        log = RequestLog(
            request_id=_distinct("id", ids), prefill_end=columns["first_token"], **columns
        )
    table = Steps(**read_table(steps, STEPS))
    with located(steps.name):
        ordered(start=table.start, end=table.end)
        ordered(**{"end of the step before": table.end[:-1], "start": table.start[1:]})
        require("seqs", table.seqs, table.seqs <= table.running, "<= running")
    return EngineRun(
        name=name,
        requests=log,
        meta=entry(*read_one(folder / f"{name}_meta.json")).values,
        steps=table,
    )


def read_gpu_run(folder: str | Path) -> EngineRun:
    """A run recorded by request and by second: `requests.jsonl`, `timeseries.csv`, `meta.json`.

    Parameters
    ----------
    folder : where the three files lie.

    Returns
    -------
    EngineRun on the engine's monotonic clock, in seconds from the first `queued_ts`. `arrival` is
    `queued_ts`, because `arrival_time` is Unix time on the client's clock: that column is kept
    apart as `client_arrival`. `scheduled` is the first time only, also where the engine preempts
    later; `prefill_end` is `first_token`, as in `read_cpu_run`. `samples.time` puts the log on the
    requests' clock by taking the first request's two stamps, client and engine, as one instant
    (the log's `t` counts from `started_at` in the meta file, on the client's clock).

    Raises
    ------
    ValueError : a malformed file, with file, line and key or column; stamps out of order.

    Source: vLLM `v1/metrics/stats.py` (stamps; "ignore preemptions").
    """
    folder = Path(folder)
    path = folder / "requests.jsonl"
    rows = [entry(where, value) for where, value in read_json(path)]
    queued = column(rows, "queued_ts")
    origin = queued.min()
    first_token = column(rows, "first_token_ts") - origin
    with located(path.name):
        log = RequestLog(
            arrival=queued - origin,
            queued=queued - origin,
            scheduled=column(rows, "scheduled_ts") - origin,
            prefill_end=first_token,
            first_token=first_token,
            last_token=column(rows, "last_token_ts") - origin,
            input_tokens=counts(rows, "input_toks"),
            output_tokens=counts(rows, "output_toks"),
            request_id=_distinct("request_id", np.array([row.text("request_id") for row in rows])),
        )
    meta, client_arrival = entry(*read_one(folder / "meta.json")), column(rows, "arrival_time")
    sampled = read_table(folder / "timeseries.csv", _SAMPLES)
    first = int(np.argmin(queued))
    sampled["time"] = sampled.pop("t") + (_instant(meta, "started_at") - client_arrival[first])
    sampled["kv_cache"] = sampled.pop("kv_cache_pct") / 100
    return EngineRun(
        name=folder.name,
        requests=log,
        meta=meta.values,
        samples=Samples(**sampled),
        client_arrival=client_arrival,
    )


def read_decode_steps(folder: str | Path, name: str) -> DecodeSteps:
    """Decode-only steps: `{name}_steps.csv` and `{name}_meta.json`.

    Parameters
    ----------
    folder : where the two files lie.
    name : their common beginning.

    Returns
    -------
    DecodeSteps.

    Raises
    ------
    ValueError : a malformed file, with file, line and column; `kv_bytes` that is not `kv_tokens`
        times the meta file's `kv_bytes_per_token`.
    """
    path = Path(folder) / f"{name}_steps.csv"
    table, meta = read_table(path, DECODE), entry(*read_one(Path(folder) / f"{name}_meta.json"))
    fits = table["kv_bytes"] == table["kv_tokens"] * meta.number("kv_bytes_per_token")
    require(f"{path.name}: kv_bytes", table["kv_bytes"], fits, "kv_tokens x kv_bytes_per_token")
    return DecodeSteps(**table, meta=meta.values)


def _distinct(key: str, ids: NDArray[Any]) -> NDArray[Any]:
    values, times = np.unique(ids, return_counts=True)
    if np.any(times > 1):
        raise ValueError(f"{key} must not appear twice: got {values[times > 1][0]}")
    return ids


def _instant(meta: Entry, key: str) -> float:
    """A date and time with its zone, as Unix time (s)."""
    text = meta.text(key)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = datetime.min
    if instant.tzinfo is None:
        raise ValueError(f"{meta.where}: {key} must be a date with a zone: got {text!r}")
    return instant.timestamp()
