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
from heapq import heapreplace
from importlib.metadata import version
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from plain_engine import plain_simulate

from lib.erlang_c import mmc_avg_queue_wait
from lib.mg1 import mg1_queue_wait
from lib.mm1 import mm1_stats
from lib.queue_sim import (
    batch_server,
    gamma_times,
    limited_room,
    mean_interval,
    multi_server,
    processor_sharing,
    shortest_first,
    shortest_queue,
    single_server,
    split_servers,
)
from lib.record import RequestLog
from lib.scheduling import TokenBudgetScheduler
from lib.simulator import Simulation, simulate
from lib.step_time import StepTime
from lib.traces import arrival_rate, load

BUDGET = 512
"""Token budget of a step, and with it the largest chunk."""

CUSTOMERS, WARM_UP, BATCHES, CONFIDENCE = 100_000, 5000, 19, 0.999
"""Of a queue beside its peers. After the warm-up, customers fill batches of 5,000."""

APART = 1e-6
"""Seconds of a mean service of 1 s. A clock that passes 100,000 s is rounded to 1e-11 s at each
event, so waits may differ by far less than this; a customer served in another order by far more."""


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


def speed(
    title: str, number: int, runs: dict[str, list[tuple[Any, Timing]]], unit: str = "requests"
) -> None:
    """A table of medians. The first row is the one that the others are measured against."""
    medians = {
        name: Timing(*map(median, zip(*(timing for _, timing in timings), strict=True)))
        for name, timings in runs.items()
    }
    base = next(iter(medians.values()))
    table(
        title,
        ("", "runs", "process s", "wall s", f"{unit}/s", "times as long"),
        [
            (
                name,
                f"{len(runs[name])}",
                f"{timing.process:.2f}",
                f"{timing.wall:.2f}",
                f"{number / timing.process:,.0f}",
                f"{timing.process / base.process:.2f}",
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


# Queues -------------------------------------------------------------------------------------------


def queues() -> list[str]:
    """`queue_sim` beside Ciw and SimPy, and a million customers through each of its queues."""
    print(
        f"\nqueues: {CUSTOMERS:,} customers, mean service 1 s, the same arrivals and services for "
        "all three;\ncustomers/s and ratio by process time, queue_sim the median of 5 runs. Mean "
        f"wait after a\nwarm-up of {WARM_UP:,} customers; its error beside the closed form in "
        f"half-widths of the {100 * CONFIDENCE:g} %\ninterval of {BATCHES} batch means"
    )
    rng = np.random.default_rng(0)
    failures = [
        *beside_peers("M/M/1", rng, 0.8, 1, 1.0, mm1_stats(0.8, 1).avg_queue_wait),
        *beside_peers("M/M/8", rng, 0.8, 8, 1.0, mmc_avg_queue_wait(6.4, 1, 8)),
        *beside_peers("M/G/1, gamma service of CV 2", rng, 0.6, 1, 2.0, mg1_queue_wait(0.6, 1, 2)),
    ]
    a_million(rng)
    return failures


def beside_peers(
    name: str, rng: np.random.Generator, rho: float, servers: int, cv: float, exact: Any
) -> list[str]:
    """The same customers through `queue_sim`, Ciw and SimPy: time, error, and who disagrees."""
    gap = rng.exponential(1 / (rho * servers), CUSTOMERS)
    service = gamma_times(rng, 1.0, cv, CUSTOMERS)
    arrival, lists = np.cumsum(gap), (gap.tolist(), service.tolist())

    def ours() -> Any:
        if servers == 1:
            return single_server(arrival, service).wait
        return multi_server(arrival, service, servers).wait

    runs = {
        "queue_sim": [timed(ours) for _ in range(5)],
        "Ciw": [timed(lambda: ciw_waits(*lists, servers))],
        "SimPy": [timed(lambda: simpy_waits(*lists, servers))],
    }
    seconds = {who: median(timing.process for _, timing in runs[who]) for who in runs}
    failures, rows = [], []
    for who, ((wait, _), *_) in runs.items():
        mean = mean_interval(wait, warm_up=WARM_UP, batches=BATCHES, confidence=CONFIDENCE)
        error = (mean.value - exact) / (mean.high - mean.value)
        apart = float(np.abs(wait - runs["queue_sim"][0][0]).max())
        if not abs(error) <= 1:
            failures.append(f"{name}: {who} waits {mean}, the closed form {exact:.4g} s")
        if not apart <= APART:
            failures.append(f"{name}: a wait of {who} differs by {apart:.2g} s")
        rows.append(
            (
                who,
                f"{seconds[who]:.4f}",
                f"{CUSTOMERS / seconds[who]:,.0f}",
                f"{seconds[who] / seconds['queue_sim']:,.0f}",
                f"{mean.value:.4f}",
                f"{error:+.3f}",
                f"{apart:.1e}",
            )
        )
    columns = ("process s", "customers/s", "times as long", "mean wait s", "error", "waits apart s")
    table(f"{name}, load {rho}: closed form {exact:.4f} s", ("", *columns), rows)
    return failures


def ciw_waits(gap: list[float], service: list[float], servers: int) -> Any:
    """The wait of each customer by Ciw. After the last gap nobody comes, and all can finish."""
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gap, float("inf")])],
        service_distributions=[ciw.dists.Sequential(service)],
        number_of_servers=[servers],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(len(gap))
    waits = np.full(len(gap), np.nan)
    for record in simulation.get_all_records():
        waits[record.id_number - 1] = record.waiting_time
    return waits


def simpy_waits(gap: list[float], service: list[float], servers: int) -> Any:
    """The wait of each customer by SimPy: a process each, and a resource that they take in turn."""
    import simpy

    environment = simpy.Environment()
    server = simpy.Resource(environment, capacity=servers)
    waits = np.full(len(gap), np.nan)

    def customer(number: int, length: float) -> Any:
        came = environment.now
        with server.request() as turn:
            yield turn
            waits[number] = environment.now - came
            yield environment.timeout(length)

    def source() -> Any:
        for number, (pause, length) in enumerate(zip(gap, service, strict=True)):
            yield environment.timeout(pause)
            environment.process(customer(number, length))

    environment.process(source())
    environment.run()
    return waits


def a_million(rng: np.random.Generator) -> None:
    """Every queue at load 0.9, with gaps of CV 1.5 and services of CV 2, beside a bare heap."""
    n, servers, rho = 10**6, 8, 0.9
    arrival = np.cumsum(gamma_times(rng, 1 / rho, 1.5, n))
    service, steps = gamma_times(rng, 1.0, 2.0, n), rng.geometric(0.01, n)
    eight, step_time = servers * service, np.linspace(0.07, 0.64, 64)  # full: one customer/s

    def heap() -> None:
        free = [0.0] * servers
        for now, length in zip(*lists, strict=True):
            heapreplace(free, max(now, free[0]) + length)

    lists = arrival.tolist(), eight.tolist()
    queues: dict[str, tuple[int, Callable[[], Any]]] = {
        f"a bare heap loop, {servers} servers": (5, heap),
        "single_server, G/G/1": (5, lambda: single_server(arrival, service)),
        f"multi_server, G/G/{servers}": (5, lambda: multi_server(arrival, eight, servers)),
        "split_servers": (5, lambda: split_servers(arrival, eight, np.arange(n) % servers)),
        "shortest_queue": (1, lambda: shortest_queue(arrival, eight, servers)),
        "limited_room, 100": (1, lambda: limited_room(arrival, eight, servers, 1, 100)),
        "shortest_first": (1, lambda: shortest_first(arrival, service)),
        "processor_sharing": (1, lambda: processor_sharing(arrival, service)),
        "batch_server, 64 a batch": (1, lambda: batch_server(arrival, steps, step_time)),
    }
    speed(
        f"{n:,} customers, load {rho}, gaps of CV 1.5, services of CV 2",
        n,
        {
            name: [(None, timed(call)[1]) for _ in range(times)]
            for name, (times, call) in queues.items()
        },
        "customers",
    )


SECTIONS = {"serving": serving, "queues": queues}
PEERS = ("sched-sim", "ciw", "simpy")


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
