"""Sweeps: the same results from every executor, after every interruption, and by a plain loop."""

import json
import math
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_engine import plain_simulate

import lib.sweep
from lib.step_time import StepTime
from lib.sweep import POLICIES, Case, Result, Setting, grid, run_case, sweep
from lib.traces import load

NAN, INF = float("nan"), float("inf")
LINES = ((0.01, 1e-4, 1e-3, 1e-6, 1e-8),)
LIMITS = {"max_num_seqs": 4, "num_kv_blocks": 14, "block_size": 4, "max_model_len": 40}
SMALL = Setting(
    input_tokens=np.array([3, 9, 14, 20, 30]),
    output_tokens=np.array([11, 7, 1, 15, 4]),
    requests=12,
    limits=LIMITS,
    step_time=StepTime(LINES),
    ttft_slo=0.1,
    e2e_slo=0.4,
)
CASES = grid(rates=[5.0, 100.0], policies=list(POLICIES), max_num_batched_tokens=[40], seeds=[0, 1])


class Serial(Executor):
    """Runs a call on the spot."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Backwards(Executor):
    """Waits for as many calls as `calls`, then runs them from the last to the first."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append(lambda: future.set_result(fn(*args, **kwargs)))
        if len(self.held) == self.calls:
            for call in reversed(self.held):
                call()
        return future


class Refusing(Executor):
    """Fails the test when anything is run."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("nothing should be run")


@pytest.fixture(scope="module")
def expected() -> list[Result]:
    return [run_case(SMALL, case) for case in CASES]


# Right values -------------------------------------------------------------------------------------


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation at rank (n - 1) q / 100, from 0."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def tight(policy: str, seed: int = 3) -> tuple[Setting, Case]:
    """A case that is preempted, and in which each policy does something of its own."""
    whole = policy == "prefill first"  # it needs a budget for any prompt, and no threshold
    limits = LIMITS if whole else {**LIMITS, "long_prefill_token_threshold": 3}
    budget = 40 if whole else 8
    case = Case(rate=100, policy=policy, max_num_batched_tokens=budget, seed=seed)
    return replace(SMALL, limits=limits), case


@pytest.mark.parametrize("policy", POLICIES)
def test_a_result_is_what_a_plain_loop_gives(policy) -> None:
    """The engine is transcribed anew in plain_engine, and every figure is computed anew here."""
    setting, case = tight(policy)
    workload = setting.workload(case.rate, case.seed)
    arrival, prompts, answers = (
        column.tolist()
        for column in (workload.arrival, workload.input_tokens, workload.output_tokens)
    )
    prompts, answers = list(map(int, prompts)), list(map(int, answers))
    limits = {**setting.limits, "max_num_batched_tokens": case.max_num_batched_tokens}
    name = policy.replace("admission order", "admission")
    stamps, preemptions, steps = plain_simulate(arrival, prompts, answers, limits, LINES, name)

    first, last = stamps["first_token"], stamps["last_token"]
    ttft = [b - a for a, b in zip(arrival, first, strict=True)]
    e2e = [b - a for a, b in zip(arrival, last, strict=True)]
    tpot = [(c - b) / (n - 1) for b, c, n in zip(first, last, answers, strict=True) if n > 1]
    assert len(tpot) < len(e2e)  # a one-token answer has no TPOT
    good = sum(a <= 0.1 and b <= 0.4 for a, b in zip(ttft, e2e, strict=True))
    assert 0 < good < 12
    window = max(last) - min(arrival)

    result = run_case(setting, case)
    assert result.case == case
    assert result.n == 12
    # 1e-9 s: a run of steps is summed in closed form, the plain loop adds them one by one.
    near = {"rel": 1e-9, "abs": 1e-9}
    for summary, values in ((result.ttft, ttft), (result.tpot, tpot), (result.e2e, e2e)):
        assert summary.mean == pytest.approx(fmean(values), **near)
        for q in (50, 90, 99):
            assert getattr(summary, f"p{q}") == pytest.approx(quantile(values, q), **near)
    assert result.throughput == pytest.approx(12 / window, **near)
    assert result.goodput == pytest.approx(good / window, **near)
    assert result.attainment == good / 12
    assert result.preemptions == sum(preemptions)
    assert result.mean_batch == pytest.approx(fmean(len(step["scheduled"]) for step in steps))
    assert result.preemptions > 0


def test_each_policy_has_a_schedule_of_its_own() -> None:
    assert len({run_case(*tight(policy)).ttft.mean for policy in POLICIES}) == len(POLICIES)


def test_one_token_answers_have_no_tpot() -> None:
    setting = replace(SMALL, output_tokens=np.ones(5))
    assert run_case(setting, CASES[0]).tpot is None


def test_tpot_slo_counts() -> None:
    tight = run_case(replace(SMALL, tpot_slo=1e-6), CASES[0])
    slack = run_case(replace(SMALL, tpot_slo=1e6), CASES[0])
    assert tight.attainment < slack.attainment == run_case(SMALL, CASES[0]).attainment


def test_grid_is_every_combination_the_last_argument_fastest() -> None:
    made = grid(
        rates=[1, 2], policies=["queue back"], max_num_batched_tokens=[64, 32], seeds=range(2)
    )
    assert [(c.rate, c.max_num_batched_tokens, c.seed) for c in made] == [
        (1, 64, 0), (1, 64, 1), (1, 32, 0), (1, 32, 1),
        (2, 64, 0), (2, 64, 1), (2, 32, 0), (2, 32, 1),
    ]  # fmt: skip
    assert {c.policy for c in made} == {"queue back"}
    assert len(CASES) == 2 * 4 * 1 * 2


# The workload -------------------------------------------------------------------------------------


@given(st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_a_seed_gives_the_same_requests_at_any_rate(rate, seed) -> None:
    one, other = SMALL.workload(1.0, seed), SMALL.workload(rate, seed)
    np.testing.assert_array_equal(one.input_tokens, other.input_tokens)
    np.testing.assert_array_equal(one.output_tokens, other.output_tokens)
    np.testing.assert_allclose(other.arrival * rate, one.arrival, rtol=1e-12)
    assert not np.array_equal(one.arrival, SMALL.workload(1.0, seed + 1).arrival)


def test_arrivals_are_poisson_and_lengths_are_rows_of_the_trace() -> None:
    trace = load("azure2023/conv")
    setting = replace(
        SMALL,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        requests=100_000,
    )
    workload = setting.workload(5.0, 0)
    gaps = np.diff(workload.arrival, prepend=0)
    # Exponential gaps: mean 0.2 s, deviation 0.2 s, a share 1/e above 0.2 s. Bounds: 4 sigma.
    assert gaps.mean() == pytest.approx(0.2, abs=4 * 0.2 / 100_000**0.5)
    assert np.mean(gaps > 0.2) == pytest.approx(np.exp(-1), abs=4 * (0.24 / 100_000) ** 0.5)
    rows = set(zip(trace.input_tokens, trace.output_tokens, strict=True))
    drawn = Counter(zip(workload.input_tokens, workload.output_tokens, strict=True))
    assert set(drawn) <= rows  # prompt and answer stay together
    # 100,000 draws from 19,366 rows miss a share exp(-5.16) = 0.6 % of them.
    assert len(drawn) > 0.99 * len(rows)
    spread = trace.input_tokens.std() / 100_000**0.5
    assert workload.input_tokens.mean() == pytest.approx(trace.input_tokens.mean(), abs=4 * spread)


def test_policies_and_budgets_meet_the_same_requests(monkeypatch) -> None:
    met = []
    monkeypatch.setattr(
        lib.sweep,
        "simulate",
        lambda workload, *rest: met.append(workload) or simulate(workload, *rest),
    )
    simulate = lib.simulator.simulate
    for policy in POLICIES:
        for budget in (40, 64):
            run_case(SMALL, Case(rate=3, policy=policy, max_num_batched_tokens=budget, seed=5))
    assert len(met) == 8
    for workload in met[1:]:
        np.testing.assert_array_equal(workload.arrival, met[0].arrival)
        np.testing.assert_array_equal(workload.input_tokens, met[0].input_tokens)
        np.testing.assert_array_equal(workload.output_tokens, met[0].output_tokens)


# Any executor -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        Serial,
        lambda: Backwards(len(CASES)),
        lambda: ThreadPoolExecutor(3),
        lambda: ProcessPoolExecutor(2, mp_context=get_context("spawn")),
    ],
    ids=["serial", "backwards", "threads", "processes"],
)
def test_every_executor_gives_the_same_results(make, expected, tmp_path) -> None:
    told = []
    with make() as executor:
        results = sweep(
            executor,
            SMALL,
            CASES,
            results=tmp_path / "r.jsonl",
            progress=lambda done, total: told.append((done, total)),
        )
        assert results == expected  # in order, to the last bit
    assert told == [(done, len(CASES)) for done in range(len(CASES) + 1)]
    assert sweep(Refusing(), SMALL, CASES, results=tmp_path / "r.jsonl") == expected


def test_the_executor_stays_open() -> None:
    with ThreadPoolExecutor(1) as executor:
        sweep(executor, SMALL, CASES[:1])
        assert executor.submit(len, "ab").result() == 2


def test_cases_settings_and_results_are_frozen_and_can_be_pickled(expected) -> None:
    for thing, name in ((CASES[0], "seed"), (expected[0], "n"), (SMALL, "requests")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 1)
    assert pickle.loads(pickle.dumps(expected[0])) == expected[0]
    assert run_case(pickle.loads(pickle.dumps(SMALL)), CASES[0]) == expected[0]


# The file of results ------------------------------------------------------------------------------


def test_the_file_is_json_lines_one_a_case(expected, tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    sweep(Serial(), SMALL, CASES, results=path)
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    setting, *rows = [json.loads(line) for line in text.splitlines()]
    assert list(setting) == ["setting"]
    assert rows == [asdict(result) for result in expected]


def test_results_are_on_disk_as_soon_as_they_are_there(tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    lines = []
    sweep(
        Serial(),
        SMALL,
        CASES,
        results=path,
        progress=lambda done, _: lines.append(path.read_bytes().count(b"\n") - 1 - done),
    )
    assert lines == [0] * (len(CASES) + 1)


def test_a_sweep_can_grow(expected, tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    run = CountingSerial()
    assert sweep(run, SMALL, CASES[3:5], results=path) == expected[3:5]
    told = []
    assert (
        sweep(run, SMALL, CASES, results=path, progress=lambda *counts: told.append(counts))
        == expected
    )
    assert told[0] == (2, len(CASES))
    assert told[-1] == (len(CASES), len(CASES))
    assert sorted(run.cases, key=str) == sorted(CASES, key=str)
    # Fewer cases than the file holds: only those asked for.
    assert sweep(Refusing(), SMALL, CASES[:2], results=path) == expected[:2]


class CountingSerial(Serial):
    def __init__(self) -> None:
        self.cases: list[Case] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.cases.append(args[1])
        return super().submit(fn, *args, **kwargs)


def test_a_killed_run_goes_on_where_it_was(expected, tmp_path) -> None:
    path = tmp_path / "r.jsonl"
    script = (
        "import os, signal, sys\n"
        "from test_sweep import CASES, SMALL, Serial\n"
        "from lib.sweep import sweep\n"
        "stop = lambda done, _: done == 5 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "sweep(Serial(), SMALL, CASES, results=sys.argv[1], progress=stop)\n"
    )
    here = Path(__file__).parent
    killed = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=here,
        env={"PYTHONPATH": f"{here}:{here.parent}", "PATH": ""},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    run = CountingSerial()
    assert sweep(run, SMALL, CASES, results=path) == expected
    assert run.cases == CASES[5:]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("sweep") / "r.jsonl"
    sweep(Serial(), SMALL, CASES[:4], results=path)
    return path, path.read_bytes()


@pytest.mark.filterwarnings("ignore:r.jsonl, line")
@settings(max_examples=50)
@given(share=st.floats(0, 1))
def test_a_file_cut_anywhere_loses_the_last_line_at_most(finished, expected, share) -> None:
    path, content = finished
    cut = content[: round(share * len(content))]
    path.write_bytes(cut)
    run = CountingSerial()
    assert sweep(run, SMALL, CASES[:4], results=path) == expected[:4]
    assert run.cases == CASES[max(0, cut.count(b"\n") - 1) : 4]
    assert path.read_bytes() == content


def test_an_unfinished_line_is_cut_off_with_a_warning(finished) -> None:
    path, content = finished
    path.write_bytes(content[:-1])  # whole JSON, but nobody can know
    with pytest.warns(UserWarning, match=r"r\.jsonl, line 5: cut off an unfinished line"):
        sweep(Serial(), SMALL, CASES[:4], results=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[2].pop("n"), r"r\.jsonl, line 3: key 'n' is missing"),
        (lambda rows: rows[2].update(n=-1), r"line 3: n must be >= 0: got -1"),
        (lambda rows: rows[2].update(n=1.5), r"line 3: n must be a whole number: got 1\.5"),
        (lambda rows: rows[2].update(goodput=None), r"line 3: goodput must be a number: got None"),
        (lambda rows: rows[2].update(goodput=INF), r"line 3: goodput must be finite"),
        (lambda rows: rows[2].update(more=1), r"line 3: the line must hold the keys of a Result"),
        (lambda rows: rows[2]["case"].update(rate=0), r"line 3, key 'case': rate must be > 0"),
        (lambda rows: rows[2]["case"].update(policy="x"), r"'case': policy must be one of .* 'x'"),
        (lambda rows: rows[2]["case"].update(seed="1"), r"'case': seed must be a number: got '1'"),
        (lambda rows: rows[2].update(case=rows[1]["case"]), r"line 3: Case\(.*\) appears twice"),
        (lambda rows: rows[2].update(ttft=3), r"line 3, key 'ttft': expected a JSON object"),
        (lambda rows: rows.insert(2, [1]), r"line 3: expected a JSON object: got \[1\]"),
        (lambda rows: rows.pop(0), r"r\.jsonl, line 1: results must be a file that a sweep began"),
        (lambda rows: rows[0]["setting"].pop("slo"), r"line 1, key 'setting': key 'slo' is"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_file_and_line(finished, change, message) -> None:
    path, content = finished
    rows = [json.loads(line) for line in content.splitlines()]
    change(rows)
    damaged = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(damaged, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        sweep(Refusing(), SMALL, CASES[:4], results=path)
    assert path.read_text(encoding="utf-8") == damaged  # nothing is lost


@pytest.mark.parametrize(
    ("junk", "message"),
    [(b"{oops\n", "line 3: not valid JSON"), (b'{"n": NaN}\n', "line 3: NaN is not a JSON number")],
)
def test_a_line_that_is_no_json_is_refused(finished, junk, message) -> None:
    path, content = finished
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], junk, *lines[3:]]))
    with pytest.raises(ValueError, match=rf"r\.jsonl, {message}"):
        sweep(Refusing(), SMALL, CASES[:4], results=path)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("lengths", {"output_tokens": np.array([11, 7, 1, 15, 5])}),
        ("lengths", {"input_tokens": np.array([9, 3, 14, 20, 30])}),
        ("requests", {"requests": 13}),
        ("limits", {"limits": {**LIMITS, "num_kv_blocks": 15}}),
        ("step_time", {"step_time": StepTime(((0.02, 1e-4, 1e-3, 1e-6, 1e-8),))}),
        ("slo", {"ttft_slo": 0.2}),
        ("slo", {"e2e_slo": None}),
    ],
)
def test_a_file_of_another_sweep_is_refused_by_name(finished, key, change) -> None:
    path, content = finished
    path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=rf"r\.jsonl, line 1, key 'setting': the file holds another sweep: {key} is .*, not ",
    ):
        sweep(Refusing(), replace(SMALL, **change), CASES[:4], results=path)
    assert path.read_bytes() == content


def test_numpy_numbers_are_as_good_as_pythons(finished, expected) -> None:
    path, content = finished
    path.write_bytes(content)
    same = replace(SMALL, limits={name: np.int64(limit) for name, limit in LIMITS.items()})
    cases = grid(
        rates=np.array([5.0]),
        policies=list(POLICIES)[:2],
        max_num_batched_tokens=np.array([40]),
        seeds=np.arange(2),
    )
    assert sweep(Refusing(), same, cases, results=path) == expected[:4]


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Serial, lambda: ThreadPoolExecutor(1)])
def test_a_failing_case_names_itself(make, tmp_path) -> None:
    """The longest row never fits: a seed that draws it fails, one that does not is kept."""
    path = tmp_path / "r.jsonl"
    setting = replace(SMALL, output_tokens=np.array([11, 7, 1, 15, 400]), requests=1)
    setting = replace(setting, limits={**LIMITS, "max_model_len": 1000})
    draws = [int(setting.workload(1.0, seed).output_tokens[0]) for seed in range(20)]
    bad = draws.index(400)
    good = [seed for seed in range(20) if draws[seed] != 400][:2]
    cases = [
        Case(rate=1.0, policy="queue back", max_num_batched_tokens=40, seed=seed)
        for seed in [*good, bad, *range(100, 200)]
    ]
    message = (
        rf"Case\(rate=1\.0, policy='queue back', max_num_batched_tokens=40, seed={bad}\) failed: "
        r"ValueError: input_tokens \+ output_tokens must fit in num_kv_blocks = 14"
    )
    with make() as executor, pytest.raises(RuntimeError, match=message):
        sweep(executor, setting, cases, results=path)
    kept = [json.loads(line)["case"]["seed"] for line in path.read_text().splitlines()[1:]]
    assert kept == good


def test_the_cases_after_a_failure_are_cancelled() -> None:
    class Broken(Executor):
        futures: ClassVar[list[Future[Any]]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == 4:
                self.futures[1].set_exception(OSError("a worker is gone"))
            return self.futures[-1]

    message = r"Case\(rate=5\.0, policy='admission order'.*, seed=1\) failed: OSError: a worker is"
    with pytest.raises(RuntimeError, match=message):
        sweep(Broken(), SMALL, CASES[:4])
    assert [future.cancelled() for future in Broken.futures] == [True, False, True, True]


def test_what_the_caller_raises_ends_the_sweep(tmp_path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    run = CountingSerial()
    with pytest.raises(KeyboardInterrupt):
        sweep(run, SMALL, CASES, results=tmp_path / "r.jsonl", progress=stop)
    assert run.cases == CASES[:2]


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rate": 0}, ValueError, "rate must be > 0: got 0"),
        ({"rate": NAN}, ValueError, "rate must be finite"),
        ({"rate": INF}, ValueError, "rate must be finite"),
        ({"rate": [1, 2]}, TypeError, "rate must be one number"),
        ({"rate": "fast"}, TypeError, "rate must be a real number"),
        ({"policy": "fifo"}, ValueError, "policy must be one of 'admission order', .*: got 'fifo'"),
        ({"max_num_batched_tokens": 0}, ValueError, "max_num_batched_tokens must be >= 1: got 0"),
        ({"max_num_batched_tokens": 1.5}, ValueError, "max_num_batched_tokens must be a whole"),
        ({"seed": -1}, ValueError, "seed must be >= 0: got -1"),
        ({"seed": True}, TypeError, "seed must be a real number"),
    ],
)
def test_a_bad_case_is_refused(change, error, message) -> None:
    good = {"rate": 1, "policy": "queue back", "max_num_batched_tokens": 64, "seed": 0}
    with pytest.raises(error, match=message):
        Case(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input_tokens": []}, ValueError, r"input_tokens must be a non-empty list: got shape"),
        ({"input_tokens": [[1, 2]]}, ValueError, r"input_tokens must be a non-empty list"),
        ({"input_tokens": [1, 2, 3, 4, 0]}, ValueError, "input_tokens must be >= 1: got 0 at"),
        ({"output_tokens": [1, 2, 3, 4, NAN]}, ValueError, "output_tokens must be finite"),
        ({"output_tokens": [1, 2, 3, 4, 1.5]}, ValueError, "output_tokens must be a whole number"),
        ({"output_tokens": [1, 2]}, ValueError, "output_tokens must have one value a prompt"),
        ({"requests": 0}, ValueError, "requests must be >= 1: got 0"),
        ({"requests": [3]}, TypeError, "requests must be one number"),
        ({"limits": 3}, TypeError, "limits must be a mapping: got 3"),
        ({"limits": {"max_num_batched_tokens": 1}}, ValueError, "limits must leave"),
        ({"step_time": 0.01}, TypeError, "step_time must be a StepTime: got 0.01"),
        ({"ttft_slo": -1}, ValueError, "ttft_slo must be > 0: got -1"),
        ({"tpot_slo": "x"}, TypeError, "tpot_slo must be a real number"),
        ({"ttft_slo": None, "e2e_slo": None}, ValueError, "must be given: no limit"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused(change, error, message) -> None:
    with pytest.raises(error, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"executor": 3}, TypeError, "executor must be of type Executor: got 3"),
        ({"setting": {}}, TypeError, r"setting must be of type Setting: got \{\}"),
        ({"cases": []}, ValueError, "cases must hold a case: got none"),
        ({"cases": [3]}, TypeError, "cases must hold Case objects: got 3"),
        ({"cases": [*CASES, CASES[3]]}, ValueError, r"cases must differ: got Case\(.*\) twice"),
        (
            {"setting": replace(SMALL, limits={**LIMITS, "block_size": 0})},
            ValueError,
            r"Case\(.*'admission order'.*\): block_size must be >= 1: got 0",
        ),
        (
            {"setting": replace(SMALL, limits={**LIMITS, "speed": 1})},
            ValueError,
            r"Case\(.*\): .*unexpected keyword argument 'speed'",
        ),
        (
            {"cases": [replace(CASES[4], max_num_batched_tokens=39)]},
            ValueError,
            r"'prefill first', .*\): max_num_batched_tokens must be >= max_model_len without chu",
        ),
    ],
)
def test_a_bad_sweep_is_refused_before_anything_runs(arguments, error, message, tmp_path) -> None:
    good = {"executor": Refusing(), "setting": SMALL, "cases": CASES}
    with pytest.raises(error, match=message):
        sweep(**{**good, **arguments}, results=tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()


def test_a_file_that_no_sweep_began_is_left_as_it_is(tmp_path) -> None:
    for content in ("my notes", "my notes\nand more", '{"setting'[:5] + "x\n"):
        path = tmp_path / "notes.txt"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"notes.txt, line 1: results must be a file that a"):
            sweep(Serial(), SMALL, CASES, results=path)
        assert path.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0, -1])
def test_a_workload_needs_a_rate(rate) -> None:
    with pytest.raises(ValueError, match="rate must be"):
        SMALL.workload(rate, 0)
