"""Speed and memory on this machine, beside peers that are installed for the bench only.

`make bench` runs every section, or one: `make bench BENCH=serving`. Seconds are shown and never
judged. A section returns what disagrees, and only that makes the bench fail. To add a section,
write a function like `serving` and name it in SECTIONS.
"""

import gc
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from plain_engine import plain_simulate

from lib.record import RequestLog
from lib.scheduling import TokenBudgetScheduler
from lib.simulator import Simulation, simulate
from lib.step_time import StepTime
from lib.traces import arrival_rate, load

BUDGET = 512
"""Token budget of a step, and with it the largest chunk."""


class Timing(NamedTuple):
    """Seconds of one run: of this process, and on the wall."""

    process: float
    wall: float


def timed(call: Callable[[], Any]) -> tuple[Any, Timing]:
    gc.collect()
    process, wall = time.process_time(), time.perf_counter()
    value = call()
    return value, Timing(time.process_time() - process, time.perf_counter() - wall)


def table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows of text in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for row in (header, *rows):
        head, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  " + "  ".join([head.strip().ljust(widths[0]), *others]))


# A serving engine ---------------------------------------------------------------------------------


def serving() -> list[str]:
    """`simulate` on the Azure conversation trace, beside a step-by-step loop and sched-sim."""
    from sched_sim.hardware.presets import get_hardware_profile
    from sched_sim.memory.block_manager import BlockManager

    hardware = get_hardware_profile("a100")
    step_time = sched_sim_step_time(hardware)
    limits = {
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": 1024,  # out of reach: sched-sim has no such limit
        "num_kv_blocks": BlockManager(hardware).total_gpu_blocks,
        "block_size": 16,
        "max_model_len": 16_384,
    }
    print(
        f"serving: {hardware.model_name} on {hardware.name}, a roofline, budget {BUDGET}; "
        "results of every\nrequest, one core, medians; requests/s and ratio by process time"
    )

    def ours(workload: RequestLog) -> Simulation:
        return simulate(workload, TokenBudgetScheduler(**limits), step_time)

    trace = load("azure2023/conv")
    rate = arrival_rate(trace.arrival)
    tokens = [column.astype(int).tolist() for column in (trace.input_tokens, trace.output_tokens)]
    mine = [timed(lambda: ours(trace)) for _ in range(5)]
    plain = timed(lambda: plain_simulate(trace.arrival.tolist(), *tokens, limits, step_time.lines))
    speed(
        f"The Azure conversation trace of 2023, whole: {len(trace):,} requests, {rate:.2f}/s",
        len(trace),
        {"simulate": mine, "step by step": [plain]},
    )
    failures = agreement(mine[0][0], *plain[0])

    part = first(trace, 5000)
    gaps = np.random.default_rng(0).standard_exponential(len(part)) / rate
    part = replace(part, arrival=np.cumsum(gaps))
    mine, peer = [], []
    for _ in range(3):  # in turns, so that a busy minute of the machine meets both
        mine.append(timed(lambda: ours(part)))
        peer.append(timed(sched_sim(part, hardware).run))
    speed(
        f"Its first {len(part):,} lengths, Poisson arrivals at the same rate",
        len(part),
        {"simulate": mine, "sched-sim": peer},
    )
    theirs, (simulation, _) = peer[0][0], mine[0]
    metrics = simulation.requests.metrics()
    print(
        f"  mean TTFT {metrics.ttft.mean():.3f} s, by sched-sim {theirs.ttft_ms.mean / 1e3:.3f} s; "
        f"mean E2E {metrics.e2e_latency.mean():.2f} s, {theirs.e2e_ms.mean / 1e3:.2f} s; "
        f"{simulation.events[:, 1].sum():,.0f} steps, {theirs.total_iterations:,}\n"
        "  What differs: sched-sim takes one decode step more for each request, counts the KV of\n"
        "  decodes only, and keeps the time of every token. With the trace's own arrivals a burst\n"
        "  fills its queue, which it scans in every step: it is far slower there."
    )
    table(
        "Growth: a quarter of the trace, half and all of it, its own arrivals",
        ("requests", "steps", "events", "requests/s", "peak memory", "a request"),
        [growth(first(trace, len(trace) // part), ours) for part in (4, 2, 1)],
    )
    return failures


def speed(title: str, requests: int, runs: dict[str, list[tuple[Any, Timing]]]) -> None:
    """A table of medians. The first row is the one that the others are measured against."""
    medians = {
        name: Timing(*map(median, zip(*(timing for _, timing in timings), strict=True)))
        for name, timings in runs.items()
    }
    fastest = next(iter(medians.values()))
    table(
        title,
        ("", "runs", "process s", "wall s", "requests/s", "times as long"),
        [
            (
                name,
                f"{len(runs[name])}",
                f"{timing.process:.2f}",
                f"{timing.wall:.2f}",
                f"{requests / timing.process:,.0f}",
                f"{timing.process / fastest.process:.1f}",
            )
            for name, timing in medians.items()
        ],
    )


def agreement(
    simulation: Simulation, stamps: dict[str, Any], preemptions: list[int], steps: list[Any]
) -> list[str]:
    """Where the simulator and the step-by-step loop differ by more than rounding."""
    log = simulation.steps()
    failures = []
    for name in ("prefill_tokens", "decode_seqs", "context_tokens", "pairs"):
        if getattr(log, name).tolist() != [step[name] for step in steps]:
            failures.append(f"{name} of the steps differ")
    if simulation.preemptions.tolist() != preemptions:
        failures.append("preemptions differ")
    # Each step adds to the clock and rounds it to the nearest float64, on either side.
    rounding = len(steps) * float(np.spacing(simulation.requests.last_token.max()))
    worst = 0.0
    for name, expected in stamps.items():
        apart = float(np.abs(getattr(simulation.requests, name) - np.array(expected)).max())
        worst = max(worst, apart)
        if not apart <= rounding:
            failures.append(f"{name} differs by {apart:.2g} s, more than {rounding:.2g} s")
    print(
        f"\n  step by step and simulate: {len(steps):,} steps, the same counts in each; stamps of "
        f"all {len(preemptions):,}\n  requests within {worst:.1e} s (rounding allows "
        f"{rounding:.1e} s)"
        if not failures
        else "\n  step by step and simulate DISAGREE"
    )
    return failures


def growth(workload: RequestLog, ours: Callable[[RequestLog], Simulation]) -> tuple[str, ...]:
    """One row of the table of growth."""
    simulation, timing = timed(lambda: ours(workload))
    steps, events = simulation.events[:, 1].sum(), len(simulation.events)
    del simulation
    gc.collect()
    tracemalloc.start()
    ours(workload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    n = len(workload)
    return (
        f"{n:,}",
        f"{steps:,.0f}",
        f"{events:,}",
        f"{n / timing.process:,.0f}",
        f"{peak / 1e6:.1f} MB",
        f"{peak / n:,.0f} B",
    )


def first(trace: RequestLog, requests: int) -> RequestLog:
    return trace.where(np.arange(len(trace)) < requests)


def sched_sim_step_time(hardware: Any) -> StepTime:
    """sched-sim's own roofline of a step, max(weights and KV, FLOPs) + launch."""
    from sched_sim.hardware.latency_model import RooflineLatencyModel

    model = RooflineLatencyModel(hardware)
    token = 2e9 * hardware.parameter_count_billions / model.compute_flops_s
    weights = model.weights_bytes / model.bandwidth_bytes_s
    kv = hardware.kv_bytes_per_token / model.bandwidth_bytes_s
    launch = model.launch_overhead_s
    return StepTime(((launch, token, token, 0.0, 0.0), (launch + weights, 0.0, 0.0, kv, 0.0)))


def sched_sim(trace: RequestLog, hardware: Any) -> Any:
    """A sched-sim simulator that holds the trace."""
    from sched_sim.core.event_engine import Simulator
    from sched_sim.core.request import Request
    from sched_sim.schedulers.factory import create_scheduler

    simulator = Simulator(hardware, create_scheduler("chunked", hardware, token_budget=BUDGET))
    rows = zip(trace.arrival, trace.input_tokens, trace.output_tokens, strict=True)
    simulator.submit_workload(
        [
            Request(request_id=f"{i}", arrived_at=a, prompt_tokens=int(p), output_tokens=int(d))
            for i, (a, p, d) in enumerate(rows)
        ]
    )
    return simulator


SECTIONS = {"serving": serving}
PEERS = ("sched-sim",)


def main(names: list[str]) -> int:
    if unknown := set(names) - set(SECTIONS):
        sys.exit(f"no such section: {', '.join(sorted(unknown))} (there are {', '.join(SECTIONS)})")
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, "
        + ", ".join(f"{peer} {version(peer)}" for peer in PEERS)
        + f"; {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    failures = [f"{name}: {failure}" for name in names or SECTIONS for failure in SECTIONS[name]()]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
