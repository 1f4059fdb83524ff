"""lib.capture: record, clock and refusals, against a small engine with vLLM's surface.

The engine here schedules by itself, without lib, and its clock moves only as it says. What a real
vLLM does with the recorder was tried by hand: no vLLM is installed where these tests run.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import capture, engine_runs, twin
from lib.capture import (
    Lengths,
    bandwidth_probe,
    greedy,
    kv_bytes_per_token,
    main,
    poisson_load,
    record,
    record_decode,
    settings,
    start_engine,
    trace_load,
    write,
    write_decode,
)
from lib.record import RequestLog
from lib.scheduling import TokenBudgetScheduler
from lib.step_time import Model

# A small engine -----------------------------------------------------------------------------------


class Clock:
    """Moves when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 1e-9)  # a real clock never stands still


class Scheduler:
    """Running requests first, then waiting ones, in order, within a budget of tokens."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        spec = Space(page_size_bytes=2048, block_size=16)
        group = Space(layer_names=["a", "b", "c"], kv_cache_spec=spec)
        self.kv_cache_config = Space(kv_cache_groups=[group])

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def schedule(self, throttle: bool = False) -> Any:
        engine = self.engine
        for victim in engine.preempt.get(engine.steps, ()):
            request = next(r for r in self.running if r.number == victim)
            self.running.remove(request)
            self.waiting.insert(0, request)
            request.computed = 0
        budget, tokens, held = engine.budget, {}, {}
        new: list[Any] = []
        while self.waiting and len(self.running) < engine.seqs:
            self.running.append(self.waiting.pop(0))
        for request in list(self.running):
            share = min(budget, request.known - request.computed)
            if share == 0:  # the budget ended before it: it goes on waiting
                self.running.remove(request)
                self.waiting.insert(0, request)
                continue
            budget -= share
            tokens[request.key], held[request.key] = share, request.computed
            if not request.seen:
                new.append(Space(req_id=request.key, num_computed_tokens=request.computed))
            request.seen, request.computed = True, request.computed + share
        self.waiting.sort(key=lambda request: request.number)
        old = [key for key in tokens if key not in {n.req_id for n in new}]
        return Space(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=Space(
                req_ids=old, num_computed_tokens=[held[key] for key in old]
            ),
            num_scheduled_tokens=tokens,
        )


class Engine:
    """What `record` uses of vLLM's LLMEngine, with a step that takes 1 s and 1 ms a token."""

    def __init__(self, budget: int = 8, seqs: int = 4, clock: Clock | None = None) -> None:
        self.budget, self.seqs, self.clock = budget, seqs, clock or Clock()
        self.preempt: Mapping[int, list[int]] = {}
        self.suffix, self.handover, self.stats, self.steps = "-0a1b2c3d", 0.0, True, 0
        self.open: dict[str, Any] = {}
        self.prompts: list[list[int]] = []
        self.spoil: Callable[[list[Any]], list[Any]] = lambda outputs: outputs
        self.engine_core = Space(engine_core=Space(scheduler=Scheduler(self)))
        self.model_config = Space(
            max_model_len=2048,
            get_vocab_size=lambda: 50,
            get_head_size=lambda: 16,
            hf_text_config=Space(hidden_size=64, num_hidden_layers=3, num_key_value_heads=2),
            hf_config=Space(architectures=["LlamaForCausalLM"]),
            dtype="torch.bfloat16",
            enforce_eager=True,
        )
        self.vllm_config = Space(
            scheduler_config=Space(
                async_scheduling=False, max_num_seqs=seqs, max_num_batched_tokens=budget
            ),
            cache_config=Space(enable_prefix_caching=False, block_size=16, num_gpu_blocks=1001),
            parallel_config=Space(
                pipeline_parallel_size=1, data_parallel_size=1, tensor_parallel_size=1
            ),
            load_config=Space(load_format=Space(value="dummy")),
            speculative_config=None,
        )

    @property
    def scheduler(self) -> Scheduler:
        return self.engine_core.engine_core.scheduler

    def add_request(self, request_id: str, prompt: Mapping[str, Any], asked: int) -> str:
        self.clock.now += self.handover
        tokens = prompt["prompt_token_ids"]
        self.prompts.append(tokens)
        request = Space(
            key=request_id + self.suffix, number=int(request_id), known=len(tokens),
            prompt=len(tokens), asked=asked, computed=0, seen=False, queued=self.clock.now,
            scheduled=None, first=None,
        )  # fmt: skip
        self.open[request.key] = request
        self.scheduler.waiting.append(request)
        return request.key

    def has_unfinished_requests(self) -> bool:
        return bool(self.open)

    def step(self) -> list[Any]:
        begin = self.clock.now
        decision = self.scheduler.schedule()
        self.steps += 1
        self.clock.now += 1.0 + 0.001 * sum(decision.num_scheduled_tokens.values())
        outputs = []
        for key in decision.num_scheduled_tokens:
            request = self.open[key]
            request.scheduled = request.scheduled or begin
            if request.computed < request.known:
                continue
            request.known += 1
            request.first = request.first or self.clock.now
            finished = request.known - request.prompt == request.asked
            stamps = Space(
                queued_ts=request.queued, scheduled_ts=request.scheduled,
                first_token_ts=request.first, last_token_ts=self.clock.now,
            )  # fmt: skip
            if finished:
                del self.open[key]
                self.scheduler.running.remove(request)
            outputs.append(
                Space(
                    request_id=str(request.number), outputs=[Space(token_ids=[7])],
                    finished=finished, metrics=stamps if self.stats else None,
                )
            )  # fmt: skip
        return self.spoil(outputs)


def load(*rows: tuple[float, int, int]) -> RequestLog:
    arrival, prompt, answer = np.array(rows, float).T
    return RequestLog(arrival=arrival, input_tokens=prompt, output_tokens=answer)


def run(engine: Engine, work: RequestLog, **options: Any) -> engine_runs.EngineRun:
    clock = engine.clock
    return record(engine, work, sampling=int, clock=clock, sleep=clock.sleep, **options)


# The record, by hand ------------------------------------------------------------------------------

# Budget 8, four sequences. The first request comes alone at 0.5 s; the others during its step.
THREE = load((0.5, 5, 3), (1.0, 12, 2), (1.2, 1, 1))


def test_steps_and_stamps_by_hand() -> None:
    got = run(Engine(), THREE)
    steps, log = got.steps, got.requests
    assert steps is not None
    table = np.column_stack(
        [steps.prefill_tokens, steps.decode_seqs, steps.kv_tokens, steps.seqs, steps.running,
         steps.waiting]
    )  # fmt: skip
    assert table.tolist() == [
        [5, 0, 5, 1, 1, 0],  # 0: its prompt
        [7, 1, 6 + 7, 2, 2, 1],  # 0 decodes, 7 of 12 of 1; no budget is left for 2
        [6, 1, 7 + 12 + 1, 3, 3, 0],  # 0 decodes its last, the other 5 of 1, and 2
        [0, 1, 13, 1, 1, 0],
    ]
    assert np.allclose(steps.end - steps.start, [1.005, 1.008, 1.007, 1.001], atol=2e-6)
    assert np.array_equal(log.queued, [0.5, 1.505, 1.505])
    assert np.array_equal(log.scheduled, [0.5, 1.505, 2.513])
    assert np.array_equal(log.first_token, [1.505, 3.520, 3.520])
    assert np.array_equal(log.last_token, [3.520, 4.521, 3.520])
    assert np.array_equal(log.arrival, THREE.arrival)


def test_a_late_hand_over_is_measured() -> None:
    meta = run(Engine(), THREE).meta
    late = [0.0, 0.505, 0.305]  # from the arrival to the end of the first step
    assert meta["late_mean"] == pytest.approx(np.mean(late), abs=1e-6)
    assert meta["late_max"] == 0.505
    assert meta["late_beyond_step_max"] == 0  # the step explains all of it


def test_what_the_step_does_not_explain_is_said() -> None:
    engine = Engine()
    engine.handover = 0.25  # the second of two hand-overs waits for the first
    meta = run(engine, THREE).meta
    assert meta["late_beyond_step_max"] == 0.25


def test_an_idle_engine_is_late_by_what_a_sleep_overshoots() -> None:
    engine = Engine()

    def oversleep(seconds: float) -> None:
        engine.clock.now += seconds + 0.01

    got = record(engine, load((0.5, 5, 1), (9, 5, 1)), sampling=int, clock=engine.clock,
                 sleep=oversleep)  # fmt: skip
    assert got.meta["late_max"] == got.meta["late_beyond_step_max"] == 0.01


def test_time_between_steps_is_measured_back_to_back_only() -> None:
    engine = Engine()
    got = run(engine, load((0, 5, 3), (100, 5, 3)), progress=lambda *_: engine.clock.sleep(0.002))
    assert got.meta["between_steps_mean"] == pytest.approx(0.002, abs=1e-6)


def test_rows_keep_the_order_of_the_load_not_of_arrival() -> None:
    got = run(Engine(), load((5, 3, 1), (0, 4, 1)))
    assert np.array_equal(got.requests.input_tokens, [3, 4])
    assert np.array_equal(got.requests.queued, [5, 0])


@pytest.mark.parametrize("suffix", ["", "-deadbeef"])
def test_ids_of_old_and_new_engines(suffix: str) -> None:
    engine = Engine()
    engine.suffix = suffix
    assert np.array_equal(run(engine, THREE).requests.first_token, [1.505, 3.520, 3.520])


def test_preemption_is_counted_and_its_work_booked_as_prefill() -> None:
    engine = Engine(budget=32)
    engine.preempt = {3: [0]}  # after 1 prompt step and 2 decode steps
    got = run(engine, load((0, 10, 6)))
    assert got.steps is not None
    # The fourth step computes the prompt and three tokens of the answer again, and gives the 4th.
    assert got.steps.prefill_tokens.tolist() == [10, 0, 0, 13, 0, 0]
    assert got.steps.decode_seqs.tolist() == [0, 1, 1, 0, 1, 1]
    assert got.steps.kv_tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert got.meta["preemptions"] == 1
    assert got.meta["recomputed_tokens"] == 12


def test_progress_sees_each_step() -> None:
    seen: list[tuple[float, ...]] = []
    run(Engine(), THREE, progress=lambda *now: seen.append(now))
    assert [row[1:] for row in seen] == [(0, 1, 0), (0, 2, 1), (2, 3, 0), (3, 1, 0)]


def test_the_engines_own_stamps_are_compared() -> None:
    engine = Engine()
    engine.handover = 0.25

    def early(outputs: list[Any]) -> list[Any]:
        for out in outputs:
            if out.request_id == "1":
                out.metrics.first_token_ts -= 0.02
        return outputs

    engine.spoil = early
    assert run(engine, THREE).meta["engine_stamps_differ_by_at_most"] == {
        "queued": 0.25, "scheduled": 0.0, "first_token": 0.02, "last_token": 0.0,
    }  # fmt: skip
    silent = Engine()
    silent.stats = False
    assert "engine_stamps_differ_by_at_most" not in run(silent, THREE).meta


def test_prompts_are_random_tokens_of_the_vocabulary() -> None:
    first, again, other = Engine(), Engine(), Engine()
    for engine, seed in ((first, 1), (again, 1), (other, 2)):
        run(engine, load((0, 400, 1)), seed=seed)
    assert set(first.prompts[0]) == set(range(50))
    assert first.prompts == again.prompts != other.prompts


def test_one_step_has_nothing_between() -> None:
    assert run(Engine(), load((0, 1, 1))).meta["between_steps_mean"] is None


ROWS = st.tuples(st.floats(0, 40), st.integers(1, 30), st.integers(1, 12))


@given(
    st.lists(ROWS, min_size=1, max_size=12), st.integers(4, 20), st.integers(1, 4),
    st.dictionaries(st.integers(1, 20), st.just("first"), max_size=3),
)  # fmt: skip
def test_steps_and_stamps_tell_one_story(
    rows: list[tuple[float, int, int]], budget: int, seqs: int, thrash: Mapping[int, str]
) -> None:
    work = load(*rows)
    engine = Engine(budget=max(budget, seqs), seqs=seqs)
    scheduler = engine.scheduler

    class Preempt(dict[int, list[int]]):
        def get(self, step: int, default: Any = ()) -> Any:
            asked = step in thrash and scheduler.running
            return [scheduler.running[0].number] if asked else default

    engine.preempt = Preempt()
    got = run(engine, work)
    log, steps, meta = got.requests, got.steps, got.meta
    assert steps is not None
    assert np.isin(log.scheduled, steps.start).all()
    assert np.isin(log.first_token, steps.end).all()
    assert np.isin(log.last_token, steps.end).all()
    tokens = steps.prefill_tokens + steps.decode_seqs
    assert tokens.max() <= engine.budget
    needed = (work.input_tokens + work.output_tokens - 1).sum()
    assert tokens.sum() == needed + meta["recomputed_tokens"]
    assert (meta["recomputed_tokens"] > 0) == (meta["preemptions"] > 0)
    if not meta["preemptions"]:
        assert steps.prefill_tokens.sum() == work.input_tokens.sum()
        first, last = (np.searchsorted(steps.end, x) for x in (log.first_token, log.last_token))
        assert np.all(last - first >= work.output_tokens - 1)
        start, end = steps.start[:, None], steps.end[:, None]
        inside = ((log.queued <= start) & (log.last_token >= end)).sum(axis=1)
        assert np.array_equal(inside, steps.running + steps.waiting)
    parts, metrics = log.ttft_parts(), log.metrics()
    total = np.asarray(parts.queue_wait) + parts.prefill + parts.first_decode
    assert np.allclose(total, metrics.ttft, rtol=0, atol=1e-9)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("scheduler_config", "async_scheduling", True, "async_scheduling.* must be off: a step"),
        ("cache_config", "enable_prefix_caching", True, "enable_prefix_caching.* off: no step"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline_parallel_size.* 1, .*: got 2"),
        ("parallel_config", "data_parallel_size", 4, "data_parallel_size.* 1, .*: got 4"),
    ],
)
def test_engines_that_cannot_be_recorded(part: str, name: str, value: object, message: str) -> None:
    engine = Engine()
    setattr(getattr(engine.vllm_config, part), name, value)
    with pytest.raises(ValueError, match=message):
        run(engine, THREE)


def test_speculation_is_refused() -> None:
    engine = Engine()
    engine.vllm_config.speculative_config = Space(method="ngram")
    with pytest.raises(ValueError, match="speculative_config of the engine must be off: a step"):
        run(engine, THREE)


def test_an_engine_in_another_process_is_refused() -> None:
    engine = Engine()
    engine.engine_core = Space()
    with pytest.raises(ValueError, match="in this process: set VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        run(engine, THREE)


def test_a_busy_engine_is_refused() -> None:
    engine = Engine()
    engine.add_request("9", {"prompt_token_ids": [1]}, 1)
    with pytest.raises(ValueError, match="engine must be idle"):
        run(engine, THREE)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, 1)], "input_tokens must be >= 1: got 0"),
        ([(0, 5, 1), (1, 5, 0)], "output_tokens must be >= 1: got 0 at index 1"),
        (
            [(0, 2000, 49)],
            r"input_tokens \+ output_tokens must be <= 2048 for the engine: got 2049",
        ),
        ([(-1, 5, 1)], "arrival must be >= 0: got -1"),
    ],
)
def test_loads_that_do_not_fit(rows: list[tuple[float, int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Engine(), load(*rows))


def test_an_empty_or_missing_load() -> None:
    with pytest.raises(ValueError, match="work must hold at least 1 request"):
        run(Engine(), THREE.where(np.zeros(3, bool)))
    with pytest.raises(TypeError, match="work must be of type RequestLog"):
        run(Engine(), [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="output_tokens is missing"):
        run(Engine(), RequestLog(arrival=np.zeros(1), input_tokens=np.ones(1),
                                 output_tokens=np.full(1, np.nan)))  # fmt: skip


def two_tokens(outputs: list[Any]) -> list[Any]:
    for out in outputs:
        out.outputs[0].token_ids = [7, 7]
    return outputs


def never_finished(outputs: list[Any]) -> list[Any]:
    for out in outputs:
        out.finished = False
    return outputs


def too_early(outputs: list[Any]) -> list[Any]:
    for out in outputs:
        out.finished = True
    return outputs


def from_nowhere(outputs: list[Any]) -> list[Any]:
    return [Space(request_id="2", outputs=[Space(token_ids=[7])], finished=False)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (two_tokens, "request 0 must gain 1 tokens in the step that ended at 1.505000 s.*: got 2"),
        (lambda outputs: [], "request 0 must gain 1 token in .* 1.505000 s.*: got none"),
        (from_nowhere, "request 2 must gain 0 tokens in .*: got 1"),
        (too_early, "request 0 must end after 3 tokens: ended after 1"),
        (never_finished, "request 0 must end after 3 tokens: goes on after 3"),
    ],
)
def test_an_engine_that_does_not_do_what_it_decided(
    spoil: Callable[[list[Any]], list[Any]], message: str
) -> None:
    engine = Engine()
    engine.spoil = spoil
    with pytest.raises(RuntimeError, match=message):
        run(engine, THREE)


def test_tokens_that_no_step_computed_are_refused() -> None:
    engine = Engine()
    add = engine.add_request

    def cached(*request: Any) -> str:
        key = add(*request)
        engine.open[key].computed = 2
        return key

    engine.add_request = cached  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="request 0 holds 2 tokens of which steps computed 0"):
        run(engine, THREE)


def test_a_step_serves_one_batch() -> None:
    twice, empty = Engine(), Engine()
    step = twice.step

    def two_decisions() -> list[Any]:
        twice.scheduler.schedule()
        return step()

    twice.step = two_decisions  # type: ignore[method-assign]
    empty.step = list  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"at 0\.500000 s must serve one batch: got 2 decisions"):
        run(twice, THREE)
    with pytest.raises(RuntimeError, match=r"must serve one batch: got 0 decisions"):
        run(empty, THREE)


def test_the_scheduler_is_left_as_it_was() -> None:
    engine = Engine()
    inner = engine.scheduler.schedule
    run(engine, THREE)
    assert engine.scheduler.schedule == inner
    engine.spoil = two_tokens
    with pytest.raises(RuntimeError):
        run(engine, THREE)
    assert engine.scheduler.schedule == inner


# Decode steps -------------------------------------------------------------------------------------


def decode(engine: Engine, *args: Any, **options: Any) -> engine_runs.DecodeSteps:
    clock = engine.clock
    return record_decode(engine, *args, sampling=int, clock=clock, sleep=clock.sleep, **options)


def test_decode_steps_by_hand() -> None:
    got = decode(Engine(budget=8), [1, 3], [5], steps=2, repeats=2)
    # Alone, 5 tokens of prompt: the first decode step holds 6. Three of 5 within a budget of 8:
    # 5 + 3, 1 + 2 + 5 (the first decodes), then all three decode, holding 7 + 6 + 6.
    assert got.rep.tolist() == [0] * 4 + [1] * 4
    assert got.batch.tolist() == [1, 1, 3, 3] * 2
    assert got.context.tolist() == [5] * 8
    assert got.kv_tokens.tolist() == [6, 7, 19, 22] * 2
    per_token = 3 * 2048 // 16  # layers x bytes of a block / tokens of a block
    assert got.kv_bytes.tolist() == [per_token * x for x in got.kv_tokens]
    assert np.allclose(got.duration, [1.001, 1.001, 1.003, 1.003] * 2, atol=2e-6)


def test_decode_steps_survive_their_files(tmp_path: Path) -> None:
    got = decode(Engine(), [2], [5, 9])
    back = write_decode(tmp_path, "mine", got)
    for key in ("rep", "batch", "context", "kv_tokens", "kv_bytes", "duration"):
        assert np.array_equal(getattr(got, key), getattr(back, key))
    shipped = engine_runs.DATA / "engine_cpu" / "decode_mha_steps.csv"
    assert first_line(tmp_path / "mine_steps.csv") == first_line(shipped)


def test_decode_refusals() -> None:
    with pytest.raises(ValueError, match="batches must be <= max_num_seqs, 4: got 5"):
        decode(Engine(), [5], [8])
    with pytest.raises(ValueError, match="batches and contexts must not be empty"):
        decode(Engine(), [], [8])
    with pytest.raises(ValueError, match="contexts must be >= 1: got 0"):
        decode(Engine(), [1], [0])
    with pytest.raises(ValueError, match="steps must be >= 1"):
        decode(Engine(), [1], [8], steps=0)
    with pytest.raises(ValueError, match="repeats must be >= 1"):
        decode(Engine(), [1], [8], repeats=0)
    many = Engine()
    many.scheduler.kv_cache_config.kv_cache_groups *= 2
    with pytest.raises(ValueError, match="KV must have one size a token"):
        decode(many, [1], [8])
    cramped = Engine()
    cramped.seqs = 1  # says 4, serves 1
    with pytest.raises(RuntimeError, match="batch 2 of context 5 must decode whole for 10 steps"):
        decode(cramped, [2], [5])


def test_kv_bytes_of_layers_of_one_kind_and_two_sizes() -> None:
    engine = Engine()
    page = Space(page_size_bytes=9600, block_size=16, kv_cache_specs={"a": 1, "b": 2})
    engine.scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec = page
    assert kv_bytes_per_token(engine) == 600  # the page holds all layers already


# Files --------------------------------------------------------------------------------------------


def first_line(path: Path) -> str:
    return path.read_text().split("\n", 1)[0]


def test_a_run_survives_its_files(tmp_path: Path) -> None:
    got = run(Engine(), THREE, name="mine")
    back = write(tmp_path / "new" / "folder", got)
    for key in ("arrival", "queued", "scheduled", "prefill_end", "first_token", "last_token",
                "input_tokens", "output_tokens", "request_id"):  # fmt: skip
        assert np.array_equal(getattr(got.requests, key), getattr(back.requests, key)), key
    assert got.steps is not None
    assert back.steps is not None
    for key in vars(got.steps):
        assert np.array_equal(getattr(got.steps, key), getattr(back.steps, key)), key
    assert back.meta == got.meta


def test_files_look_like_the_shipped_ones(tmp_path: Path) -> None:
    write(tmp_path, run(Engine(), THREE, name="mine"))
    shipped = engine_runs.DATA / "engine_cpu"
    for kind in ("requests", "steps"):
        ours, theirs = tmp_path / f"mine_{kind}.csv", shipped / f"rate2_{kind}.csv"
        assert first_line(ours) == first_line(theirs)
    text = (tmp_path / "mine_requests.csv").read_text()
    assert text.split("\n")[1] == "0,0.500000,0.500000,0.500000,1.505000,3.520000,5,3"
    assert (tmp_path / "mine_steps.csv").read_text().split("\n")[2] == (
        "1.505000,2.513000,7,1,13,2,2,1"
    )


@pytest.mark.parametrize("kind", ["requests.csv", "steps.csv", "meta.json"])
def test_nothing_is_overwritten(tmp_path: Path, kind: str) -> None:
    there = tmp_path / f"run_{kind}"
    there.write_text("mine")
    with pytest.raises(FileExistsError, match=f"run_{kind} is there already: choose another"):
        write(tmp_path, run(Engine(), THREE))
    assert [path.name for path in tmp_path.iterdir()] == [there.name]
    assert there.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "../run", "a/b"])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name must be the beginning of a file name: got"):
        write(tmp_path, run(Engine(), THREE, name=name))


def test_a_run_without_steps_is_not_written(tmp_path: Path) -> None:
    gpu = engine_runs.load("gpu/RTX4090_Llama-3.1-8B")
    with pytest.raises(ValueError, match=r"run RTX4090_Llama-3\.1-8B must have steps"):
        write(tmp_path, gpu)
    with pytest.raises(TypeError, match="run must be of type EngineRun"):
        write(tmp_path, THREE)  # type: ignore[arg-type]


# The load -----------------------------------------------------------------------------------------


def test_lengths() -> None:
    assert Lengths.parse("256") == Lengths(256, 0, 256)
    assert Lengths.parse("200:0.9:2000") == Lengths(200, 0.9, 2000)
    rng = np.random.default_rng(0)
    assert set(Lengths(256, 0, 256).draw(rng, 9)) == {256}
    tokens = Lengths(200, 0.9, 2000).draw(rng, 100_000)
    assert np.array_equal(tokens, np.round(tokens))
    assert tokens.min() >= 1
    assert tokens.max() == 2000
    # Half lie below the median; of 100,000, within 5 standard errors (0.0016 each).
    assert np.mean(tokens < 200) == pytest.approx(0.5, abs=0.008)
    # P(X > 200 exp(0.9)) = 1 - Phi(1) = 0.1587, standard error 0.0012.
    assert np.mean(tokens > 200 * np.exp(0.9)) == pytest.approx(0.1587, abs=0.006)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tokens must be N or MEDIAN:SIGMA:MAXIMUM: got ''"),
        ("12:3", "tokens must be N or MEDIAN:SIGMA:MAXIMUM: got '12:3'"),
        ("many", "tokens must be N or MEDIAN:SIGMA:MAXIMUM: got 'many'"),
        ("0", "tokens must be >= 1: got 0"),
        ("2.5", "tokens must be a whole number: got 2.5"),
        ("nan", "tokens must be finite"),
        ("200:-1:300", "sigma must be >= 0: got -1"),
        ("200:1:0", "maximum must be >= 1: got 0"),
        ("200:1:99.5", "maximum must be a whole number: got 99.5"),
        ("200:1:100", "median must be from 1 to the maximum, 100: got 200"),
        ("0.5:1:100", "median must be from 1 to the maximum, 100: got 0.5"),
    ],
)
def test_lengths_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lengths.parse(text)


def test_the_default_lengths_are_those_of_the_shipped_runs() -> None:
    logs = [engine_runs.load(f"cpu/rate{r}").requests for r in (2, 4, 6)]
    for key, median, sigma in (("input_tokens", 200, 0.9), ("output_tokens", 48, 0.7)):
        ln = np.log(np.concatenate([getattr(log, key) for log in logs]))
        # Cut at 10 and 5 times the median: that moves either by less than the bands, 3.3 standard
        # errors (sigma / sqrt(n), and sigma / sqrt(2 n)).
        assert ln.mean() == pytest.approx(np.log(median), abs=3.3 * sigma / np.sqrt(ln.size))
        assert ln.std() == pytest.approx(sigma, abs=3.3 * sigma / np.sqrt(2 * ln.size))


def test_poisson_load() -> None:
    lengths = Lengths(100, 0.5, 900), Lengths(10, 0, 10)
    log = poisson_load(40_000, 5, *lengths, seed=3)
    gaps = np.diff(log.arrival, prepend=0)
    # Exponential: mean 0.2 s and as much deviation, each within 5 standard errors.
    assert gaps.mean() == pytest.approx(0.2, abs=5 * 0.2 / 200)
    assert gaps.std() == pytest.approx(0.2, abs=5 * 0.2 * np.sqrt(2) / 200)
    assert (gaps > 0).all()
    again, other = poisson_load(9, 5, *lengths, seed=3), poisson_load(9, 5, *lengths, seed=4)
    assert np.array_equal(poisson_load(9, 5, *lengths, seed=3).arrival, again.arrival)
    assert not np.array_equal(again.arrival, other.arrival)
    assert not np.array_equal(again.input_tokens, other.input_tokens)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"requests": 0}, ValueError, "requests must be >= 1: got 0"),
        ({"requests": 2.5}, ValueError, "requests must be a whole number: got 2.5"),
        ({"rate": 0}, ValueError, "rate must be > 0: got 0"),
        ({"rate": float("nan")}, ValueError, "rate must be finite"),
        ({"rate": [1, 2]}, TypeError, "rate must be one number"),
        ({"seed": -1}, ValueError, "seed must be >= 0: got -1"),
        ({"input_tokens": 200}, TypeError, "input_tokens must be of type Lengths"),
        ({"output_tokens": "48"}, TypeError, "output_tokens must be of type Lengths"),
    ],
)
def test_poisson_load_refused(change: dict[str, Any], error: type, message: str) -> None:
    good = {"requests": 3, "rate": 1, "input_tokens": Lengths(9, 0, 9),
            "output_tokens": Lengths(9, 0, 9)}  # fmt: skip
    with pytest.raises(error, match=message):
        poisson_load(**(good | change))


def test_trace_load() -> None:
    trace = load((10, 5, 1), (12, 6, 2), (15, 7, 3))
    assert trace_load(trace).arrival.tolist() == [0, 2, 5]
    two = trace_load(trace, requests=2)
    assert two.arrival.tolist() == [0, 2]
    assert two.output_tokens.tolist() == [1, 2]
    poisson = trace_load(trace, rate=100, seed=1)
    assert poisson.input_tokens.tolist() == [5, 6, 7]
    assert 0 < poisson.arrival[0] < poisson.arrival[-1] < 1
    for n in (0, 4):
        with pytest.raises(ValueError, match=f"requests must be .*: got {n}"):
            trace_load(trace, requests=n)
    with pytest.raises(ValueError, match="requests must be 1 to 0"):
        trace_load(trace.where(np.zeros(3, bool)))
    with pytest.raises(TypeError, match="log must be of type RequestLog"):
        trace_load([1])  # type: ignore[arg-type]


# vLLM, absent and pretended -----------------------------------------------------------------------


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(name: str) -> Any:
        if name.partition(".")[0] in ("vllm", "torch"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name)

    monkeypatch.setattr(capture.importlib, "import_module", absent)


def test_the_module_needs_no_vllm() -> None:
    source = Path(capture.__file__).read_text()
    assert "import vllm" not in source
    assert "import torch" not in source


@pytest.mark.usefixtures("no_vllm")
@pytest.mark.parametrize(
    "use",
    [lambda: start_engine("m"), lambda: greedy(3), lambda: bandwidth_probe(),
     lambda: settings(Engine()), lambda: record(Engine(), THREE)],
)  # fmt: skip
def test_without_vllm_the_error_says_how_to_install_it(use: Callable[[], object]) -> None:
    with pytest.raises(ImportError, match=r"`pip install vllm` .*No module named 'vllm'"):
        use()


@pytest.mark.usefixtures("no_vllm")
def test_the_command_without_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--out", str(tmp_path / "x"), "--rate", "3"]) == 2
    assert "pip install vllm" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


class Ones:
    """A tensor of ones, as far as the probe goes."""

    def __init__(self, size: int, dtype: str, device: str) -> None:
        self.size, self.made = size, (dtype, device)

    def numel(self) -> int:
        return self.size

    def sum(self) -> Any:
        return Space(item=lambda: float(self.size))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Space:
    """vLLM's modules as far as they are used, around the engine above."""
    state = Space(engine=Engine(budget=64, seqs=8), arguments=None, sampling=[], device="cpu")

    class EngineArgs:
        def __init__(self, model: str, **arguments: Any) -> None:
            if "nonsense" in arguments:
                raise TypeError("unexpected keyword argument 'nonsense'")
            state.arguments = {"model": model, **arguments}

    def sampling(max_tokens: int, **rest: Any) -> int:
        state.sampling.append(rest)
        return max_tokens

    platform = Space(get_device_name=lambda: "a device", device_type=state.device)
    vllm = Space(
        __version__="0.0", EngineArgs=EngineArgs, SamplingParams=sampling,
        LLMEngine=Space(from_engine_args=lambda _: state.engine),
    )  # fmt: skip
    modules = {
        "vllm": vllm,
        "vllm.platforms": Space(current_platform=platform),
        "vllm.sampling_params": Space(RequestOutputKind=Space(DELTA="delta")),
        "torch": Space(__version__="9.9", float32="float32", ones=Ones, get_num_threads=lambda: 3),
    }
    state.platform = platform
    monkeypatch.setattr(capture.importlib, "import_module", modules.__getitem__)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    return state


def test_start_engine(pretended: Space) -> None:
    assert start_engine("m", max_num_seqs=8) is pretended.engine
    assert capture.os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert pretended.arguments == {
        "model": "m", "max_num_seqs": 8, "async_scheduling": False, "enable_prefix_caching": False,
    }  # fmt: skip
    for name in capture.REFUSED:
        with pytest.raises(ValueError, match=f"{name} must be off: .*: got True"):
            start_engine("m", **{name: True})
    with pytest.raises(ValueError, match=r"vLLM 0\.0 refuses an engine argument: .*'nonsense'"):
        start_engine("m", nonsense=1)


def test_greedy_asks_for_an_answer_of_that_length(pretended: Space) -> None:
    assert greedy(17) == 17
    assert pretended.sampling == [
        {"ignore_eos": True, "temperature": 0, "detokenize": False, "output_kind": "delta"}
    ]


def test_settings(pretended: Space) -> None:
    told = settings(pretended.engine)
    assert told["device"] == "a device, 3 thread(s)"
    assert told["dtype"] == "bfloat16"
    assert told["load_format"] == "dummy"
    assert told["kv_bytes_per_token"] == 384
    assert told["model"]["head_dim"] == 16
    assert "intermediate_size" not in told["model"]  # what the config lacks is left out
    assert set(told["model"]) < set(capture.SHAPE)
    assert json.loads(json.dumps(told)) == told
    assert Model.__slots__[:7] == capture.SHAPE


def test_bandwidth(pretended: Space) -> None:
    measure = bandwidth_probe(1024)
    assert measure is not None
    assert measure() > 0
    pretended.platform.device_type = "tpu"
    assert bandwidth_probe() is None


def command(tmp_path: Path, *more: str) -> int:
    return main(["--model", "m", "--out", str(tmp_path), *more])


FAST = ("--rate", "5000", "--requests", "20", "--input-tokens", "30:0.5:90", "--output-tokens", "6")


def test_the_command_records_an_open_loop(
    pretended: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, *FAST, "--name", "mine", "--seed", "5", "--block-size", "32") == 0
    got = engine_runs.read_cpu_run(tmp_path, "mine")
    wanted = poisson_load(20, 5000, Lengths(30, 0.5, 90), Lengths(6, 0, 6), seed=5)
    assert np.allclose(got.requests.arrival, wanted.arrival, rtol=0, atol=1e-6)
    assert np.array_equal(got.requests.input_tokens, wanted.input_tokens)
    assert pretended.arguments["block_size"] == 32
    assert "max_num_seqs" not in pretended.arguments  # left to vLLM
    assert len(pretended.engine.prompts) == 8 + 20  # the warm-up is outside the record
    meta = got.meta
    assert meta["warmup_requests"] == 8
    assert meta["n"] == 20
    assert meta["seed"] == 5
    assert meta["rate"] == 5000
    assert meta["load"] == {"rate": "5000.0", "input_tokens": "30:0.5:90", "output_tokens": "6"}
    assert meta["read_bandwidth_bytes_per_s"] == meta["read_bandwidth_bytes_per_s_before"] > 0
    assert meta["read_bandwidth_bytes_per_s_after"] > 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "20 requests in" in told.err
    assert "0 preemptions, 0 tokens computed again" in told.err
    assert twin.limits(got)["max_num_batched_tokens"] == 64


def test_the_twin_replays_what_the_command_recorded(pretended: Space, tmp_path: Path) -> None:
    """The rule of lib.scheduling, written apart from the engine above, finds the same steps."""
    assert command(tmp_path, *FAST) == 0
    got = engine_runs.read_cpu_run(tmp_path, "run")
    again = twin.retrace(got, TokenBudgetScheduler(**twin.limits(got)))
    assert got.steps is not None
    assert np.array_equal(again.steps.prefill_tokens, got.steps.prefill_tokens)
    assert np.array_equal(again.steps.context_tokens, got.steps.kv_tokens)
    assert np.array_equal(again.requests.first_token, got.requests.first_token)


def test_the_command_without_bandwidth(pretended: Space, tmp_path: Path) -> None:
    pretended.platform.device_type = "tpu"
    assert command(tmp_path, *FAST, "--warmup", "0") == 0
    assert len(pretended.engine.prompts) == 20
    meta = json.loads((tmp_path / "run_meta.json").read_text())
    assert not any("bandwidth" in key for key in meta)
    assert meta["device"] == "a device"


def test_the_command_records_a_trace(pretended: Space, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input_tokens,output_tokens\n7,30,2\n7.01,40,3\n7.02,9,1\n")
    assert command(tmp_path / "a", "--trace", str(trace)) == 0
    got = engine_runs.read_cpu_run(tmp_path / "a", "run")
    assert got.requests.arrival.tolist() == [0, 0.01, 0.02]
    assert got.requests.input_tokens.tolist() == [30, 40, 9]
    assert got.meta["rate"] is None
    assert command(tmp_path / "b", "--trace", str(trace), "--rate", "900", "--requests", "2") == 0
    assert engine_runs.read_cpu_run(tmp_path / "b", "run").requests.arrival[0] > 0


def test_the_command_records_decode_steps(pretended: Space, tmp_path: Path) -> None:
    assert command(tmp_path, "--batches", "1,4", "--contexts", "20", "--name", "dec") == 0
    got = engine_runs.read_decode_steps(tmp_path, "dec")
    assert sorted(set(got.batch)) == [1, 4]
    assert got.batch.size == 20
    assert got.meta["kv_bytes_per_token"] == 384
    assert {"read_bandwidth_bytes_per_s_before", "read_bandwidth_bytes_per_s_after"} < set(got.meta)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rate is missing"),
        (("--rate", "0"), "rate must be > 0: got 0"),
        (("--rate", "1", "--requests", "0"), "requests must be >= 1: got 0"),
        (("--rate", "1", "--input-tokens", "x"), "tokens must be N or MEDIAN:SIGMA:MAXIMUM"),
        (("--rate", "1", "--seed", "-1"), "seed must be >= 0"),
        (("--rate", "1", "--warmup", "-1"), "--warmup must be >= 0"),
        (("--rate", "1", "--engine", "{"), "--engine must be a JSON object: got '{'"),
        (("--rate", "1", "--engine", "[]"), r"--engine must be a JSON object: got '[]'"),
        (("--rate", "1", "--engine", '{"enable_prefix_caching": true}'), "must be off"),
        (("--rate", "1", "--name", "a/b"), "name must be the beginning of a file name"),
        (("--trace", "missing.csv"), "missing.csv"),
        (("--trace", "missing.csv", "--output-tokens", "5"), "--trace brings its own lengths"),
        (("--batches", "1"), "--contexts must be whole numbers >= 1"),
        (("--batches", "1,,2", "--contexts", "8"), "--batches must be whole numbers >= 1"),
        (("--batches", "0", "--contexts", "8"), "--batches must be whole numbers >= 1"),
        (("--batches", "1", "--contexts", "8", "--rate", "2"), "--batches and --contexts take no"),
    ],
)
def test_the_command_refuses(
    pretended: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert command(tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert pretended.arguments is None  # before the engine starts
    assert not (tmp_path / "out").exists()


def test_the_command_overwrites_nothing(
    pretended: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, *FAST) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    pretended.arguments = None
    assert command(tmp_path, *FAST) == 2
    assert "is there already" in capsys.readouterr().err
    assert pretended.arguments is None
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_command_stopped_by_hand_writes_nothing(
    pretended: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> list[Any]:
        raise KeyboardInterrupt

    pretended.engine.step = stop
    assert command(tmp_path / "out", *FAST) == 2
    assert "stopped; nothing is written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_progress_is_said_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    say = capture._Progress(9)
    for now in (1, 4.9, 5.1, 7, 9.9, 10.2, 30):
        say(now, 3, 2, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "5 s: 3 of 9 done, 2 running, 1 waiting"
    assert [line.split()[0] for line in lines] == ["5", "10", "30"]
