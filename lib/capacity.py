"""From a trace, a step time and a memory to the rate of a replica, and to replicas (chapter
`capacity`).
"""

from dataclasses import dataclass, fields, replace
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    of_kind,
    one,
    positive,
    require,
    result,
    result_size,
    together,
)
from lib.goodput import attainment
from lib.kv_cache import max_concurrency, mean_sequence_blocks, pool_blocks
from lib.record import RequestLog
from lib.scheduling import TokenBudgetScheduler
from lib.simulator import simulate
from lib.step_time import Hardware, Line, Model, StepTime, roofline
from lib.traces import arrival_rate

ROUNDING = 1e-9
"""Share by which a quotient of rates may exceed a whole number and still be it: float64 rounds."""

HALVINGS = 30
"""How often `sustainable_rate` halves a rate before it gives up."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One engine: the length of its steps and its limits.

    Parameters
    ----------
    step_time : the length of a step.
    num_kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len : as
        `TokenBudgetScheduler`.

    Raises
    ------
    TypeError, ValueError : as `TokenBudgetScheduler`; `step_time` is no StepTime.
    """

    step_time: StepTime
    num_kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        of_kind("step_time", self.step_time, StepTime)
        self.scheduler()

    def scheduler(self) -> TokenBudgetScheduler:
        """An empty scheduler with these limits, by vLLM's rule."""
        return TokenBudgetScheduler(
            num_kv_blocks=self.num_kv_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )


def planned_replica(
    model: Model,
    hardware: Hardware,
    *,
    other_bytes: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    utilization: float = 0.9,
    block_size: int = 16,
    overhead: float = 0.0,
) -> Replica:
    """A replica from data sheets alone: `kv_cache.pool_blocks` and `step_time.roofline`.

    Parameters
    ----------
    model, hardware : one device that holds the whole model, its input embedding included.
    other_bytes, utilization : as `pool_blocks`.
    max_num_seqs, max_num_batched_tokens, max_model_len, block_size : as `Replica`.
    overhead : seconds that each step takes beside the roofline.

    Returns
    -------
    Replica. Its step time is a lower bound, so whatever follows from it is optimistic.

    Raises
    ------
    TypeError, ValueError : as `pool_blocks`, `roofline` and `Replica`.
    """
    step_time = roofline(model, hardware, overhead=overhead)
    embedding = model.vocab_size * model.hidden_size * model.bytes_per_weight
    blocks = pool_blocks(
        hardware.memory_bytes,
        utilization,
        model.weight_bytes + embedding,
        other_bytes,
        model.kv_bytes_per_token,
        block_size,
    )
    return Replica(
        step_time=step_time,
        num_kv_blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )


@dataclass(frozen=True, eq=False)
class Load:
    """The lengths that a replica serves; every request weighs the same.

    Parameters
    ----------
    input_tokens, output_tokens : (n,) N_in and N_out, whole numbers >= 1, row by row: those of a
        trace, or a resample of its rows.

    Raises
    ------
    ValueError, TypeError : no request, lengths that differ in number, a count below 1 or not whole.
    """

    input_tokens: FloatArray
    output_tokens: FloatArray

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            tokens = count(name, getattr(self, name), minimum=1)
            if tokens.ndim != 1 or tokens.size == 0:
                raise ValueError(f"{name} must be a non-empty list: got shape {tokens.shape}")
            object.__setattr__(self, name, tokens)
        if self.input_tokens.size != self.output_tokens.size:
            raise ValueError(
                "output_tokens must have one value a prompt: "
                f"got {self.output_tokens.size} for {self.input_tokens.size}"
            )

    @property
    def mean_input(self) -> float:
        """E[N_in] (tokens)."""
        return float(self.input_tokens.mean())

    @property
    def mean_output(self) -> float:
        """E[N_out] (tokens), and the steps of a request."""
        return float(self.output_tokens.mean())

    @property
    def mean_context(self) -> float:
        """Context of a sequence, averaged over steps (tokens, eq-capacity-context).

        A request is in N_out steps, so long answers weigh more than in a mean over requests.
        """
        prompt, answer = self.input_tokens, self.output_tokens
        return float(np.sum(answer * (prompt + (answer - 1) / 2)) / np.sum(answer))

    @property
    def mean_pairs(self) -> float:
        """Query-key pairs of a sequence, averaged over steps."""
        prompt, answer = self.input_tokens, self.output_tokens
        prefill = prompt * (prompt + 1) / 2
        decode = (answer - 1) * (prompt + answer / 2)
        return float(np.sum(prefill + decode) / np.sum(answer))

    def mean_blocks(self, block_size: int) -> float:
        """KV blocks of a sequence, averaged over steps, see `kv_cache.mean_sequence_blocks`.

        Raises
        ------
        ValueError : `block_size` is below 1 or not whole.
        """
        last = self.input_tokens + self.output_tokens - 1
        return mean_sequence_blocks(self.input_tokens, last, block_size)


def batch_step_time(step_time: StepTime, load: Load, batch: ArrayLike) -> FloatOrArray:
    """Mean step of a full batch, T(B) (eq-capacity-step).

    Parameters
    ----------
    step_time : the length of a step. Of a single line the mean is exact; of a maximum of several
        it is a lower bound, since the steps around the mean cross from line to line.
    load : the lengths.
    batch : B, sequences in the step, prefilling or decoding, > 0; a mean need not be whole.

    Returns
    -------
    Seconds. In the mean step, B / E[N_out] sequences compute their prompt and the others decode.

    Raises
    ------
    TypeError : `step_time` or `load` is of another kind.
    ValueError : `batch` is not positive, or NaN or infinite.
    """
    of_kind("step_time", step_time, StepTime)
    of_kind("load", load, Load)
    return step_time(*_mean_counts(load, positive("batch", batch)))


def _mean_counts(load: Load, batch: FloatArray) -> tuple[FloatArray, ...]:
    """Prompt tokens, decoding sequences, context, pairs of the mean step (eq-capacity-counts)."""
    entering = batch / load.mean_output
    return (
        entering * load.mean_input,
        batch - entering,
        batch * load.mean_context,
        batch * load.mean_pairs,
    )


def replica_rate(replica: Replica, load: Load, batch: ArrayLike) -> FloatOrArray:
    """Requests that a full batch finishes, X(B) = B / (E[N_out] T(B)) (eq-capacity-rate).

    Parameters
    ----------
    replica : its step time is used; its limits are the matter of `largest_batch`.
    load, batch : as `batch_step_time`.

    Returns
    -------
    Requests per second while the batch is always full: more than meet an SLO.

    Raises
    ------
    TypeError, ValueError : as `batch_step_time`.

    Source: Little's law on the batch; Little, Operations Research 9 (1961).
    """
    of_kind("replica", replica, Replica)
    step = batch_step_time(replica.step_time, load, batch)
    return result("replica_rate", positive("batch", batch) / (load.mean_output * step))


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest mean batch, and why it is no larger; see `largest_batch`.

    batch : B_full (sequences), not rounded. limit : the name of the smallest of `limits`.
    limits : by name the largest batch that each of them permits.
    """

    batch: float
    limit: str
    limits: dict[str, float]


def largest_batch(replica: Replica, load: Load, tpot_slo: float | None = None) -> LargestBatch:
    """The largest batch that a replica can hold in the mean, B_full (eq-capacity-batch).

    Parameters
    ----------
    replica, load : as `replica_rate`.
    tpot_slo : limit of the mean step (s); None sets none.

    Returns
    -------
    LargestBatch. Its limits: "memory" (blocks over the mean blocks of a sequence),
    "max_num_seqs", "max_num_batched_tokens" (tokens that the mean step computes), and "tpot".

    Raises
    ------
    TypeError : `replica` or `load` is of another kind, or `tpot_slo` is not one number.
    ValueError : `tpot_slo` is not positive; a limit permits less than one sequence.

    Source: the chapter.
    """
    of_kind("replica", replica, Replica)
    of_kind("load", load, Load)
    computed = (load.mean_input + load.mean_output - 1) / load.mean_output
    held = load.mean_blocks(replica.block_size)
    limits = {
        "memory": float(max_concurrency(replica.num_kv_blocks, held)),
        "max_num_seqs": float(replica.max_num_seqs),
        "max_num_batched_tokens": replica.max_num_batched_tokens / computed,
    }
    if tpot_slo is not None:
        slo = one("tpot_slo", positive("tpot_slo", tpot_slo))
        limits["tpot"] = min(_batch_within(slo, line, load) for line in replica.step_time.lines)
    limit = min(limits, key=lambda name: limits[name])
    if limits[limit] < 1:
        raise ValueError(
            f"replica must hold a batch of 1 or more: {limit} permits {limits[limit]:.6g}"
        )
    return LargestBatch(limits[limit], limit, limits)


def _batch_within(limit: float, line: Line, load: Load) -> float:
    """The batch at which a line's mean step lasts `limit` seconds."""
    fixed, *costs = line
    each = float(np.dot(costs, _mean_counts(load, np.asarray(1.0))))
    left = max(0.0, limit - fixed)
    return left / each if each else inf if left else 0.0


def serve(replica: Replica, workload: RequestLog, replicas: int = 1) -> RequestLog:
    """Simulate replicas that are fed round robin: request i goes to replica i mod n_rep.

    Parameters
    ----------
    replica : each of them.
    workload : arrivals (s), input and output tokens.
    replicas : n_rep, at most as many as there are requests.

    Returns
    -------
    The workload's rows in their order, with every stamp.

    Raises
    ------
    TypeError, ValueError : as `simulate`; `replicas` is not a whole number from 1 to the requests.
    """
    of_kind("replica", replica, Replica)
    of_kind("workload", workload, RequestLog)
    many = count("replicas", replicas, minimum=1)
    require("replicas", many, many <= len(workload), f"<= the {len(workload)} requests")
    each = int(one("replicas", many))
    order = np.argsort(workload.column("arrival"), kind="stable")
    turns = [np.sort(order[i::each]) for i in range(each)]
    served = []
    for turn in turns:
        mask = np.zeros(len(workload), dtype=np.bool_)
        mask[turn] = True
        share = workload.where(mask)
        served.append(simulate(share, replica.scheduler(), replica.step_time).requests)
    back = np.argsort(np.concatenate(turns))
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(log, field.name) for log in served])[back]
        for field in fields(RequestLog)
        if field.name != "shared_clock"
    }
    return RequestLog(**columns)


def sustainable_rate(
    replica: Replica,
    workload: RequestLog,
    *,
    target: float,
    ttft_slo: float | None = None,
    tpot_slo: float | None = None,
    e2e_slo: float | None = None,
    precision: float = 0.01,
) -> float:
    """The arrival rate at which one replica just meets an SLO, X_SLO (eq-capacity-sustainable).

    The workload's arrivals are stretched or squeezed to a rate and simulated. From X(B_full), which
    no replica exceeds for long, the rate is halved until the target is met, then the bracket is
    halved in ratio. Attainment falls with the rate but for noise: the search ends at a crossing,
    maybe not the only one.

    Parameters
    ----------
    replica : the engine.
    workload : arrivals (s) and lengths; their pattern is kept, its clock is scaled.
    target : attainment wanted, a share in (0, 1).
    ttft_slo, tpot_slo, e2e_slo : as `goodput.attainment`.
    precision : the bracket's width in the end, as a share of the rate, from 1e-6 to below 1.

    Returns
    -------
    Requests per second, at most X(B_full): the target is met here, and below that limit it is
    missed `precision` above.

    Raises
    ------
    TypeError, ValueError : as `simulate` and `attainment`; `target` is not in (0, 1); `precision`
        is out of range; fewer than two arrivals; the target is met at twice X(B_full), so that the
        workload is too short to tell; or it is missed however slowly the requests come.
    """
    of_kind("replica", replica, Replica)
    of_kind("workload", workload, RequestLog)
    goal = positive("target", target)
    require("target", goal, goal < 1, "< 1: a share that leaves room for a miss")
    share = one("target", goal)
    step = positive("precision", precision)
    require("precision", step, (step >= 1e-6) & (step < 1), "a share from 1e-6 to below 1")
    width = one("precision", step)
    arrival = workload.column("arrival")
    base = arrival_rate(arrival)

    def meets(stretch: float) -> bool:
        scaled = replace(workload, arrival=(arrival - arrival.min()) * stretch)
        metrics = serve(replica, scaled).metrics()
        return attainment(metrics, ttft_slo, tpot_slo, e2e_slo).ratio >= share

    load = Load(workload.column("input_tokens"), workload.column("output_tokens"))
    full = float(replica_rate(replica, load, largest_batch(replica, load).batch))
    if meets(base / full):
        if meets(base / (2 * full)):
            raise ValueError(
                f"workload must be long enough to overload the replica: its {len(workload)} "
                f"requests meet the target even at {2 * full:.3g} requests/s, twice what a full "
                "batch finishes"
            )
        return full
    low = full
    for _ in range(HALVINGS):
        low, high = low / 2, low
        if meets(base / low):
            break
    else:
        raise ValueError(
            f"target must be within reach: even at {low:.3g} requests/s fewer than "
            f"{share:.6g} of the requests meet the limits"
        )
    while high > low * (1 + width):
        middle = sqrt(low * high)
        low, high = (middle, high) if meets(base / middle) else (low, middle)
    return low


def required_replicas(
    arrival_rate: ArrayLike, replica_rate: ArrayLike, headroom: ArrayLike = 0.0
) -> int | FloatOrArray:
    """Replicas for a rate, n_rep = ceil(lambda (1 + h) / X_SLO) (eq-capacity-replicas).

    Parameters
    ----------
    arrival_rate : lambda (1/s).
    replica_rate : X_SLO, what one replica sustains at the SLO (1/s), see `sustainable_rate`.
    headroom : h, share of the rate kept free.

    Returns
    -------
    Whole replicas, >= 1. A quotient that is whole but for rounding is not rounded up.

    Raises
    ------
    ValueError : a rate is not positive, the headroom is negative, shapes do not broadcast.

    Source: the seed, capacity.
    """
    rate = positive("arrival_rate", arrival_rate)
    each = positive("replica_rate", replica_rate)
    spare = nonnegative("headroom", headroom)
    together(arrival_rate=rate, replica_rate=each, headroom=spare)
    quotient = rate * (1 + spare) / each
    whole = np.round(quotient)
    near = np.abs(quotient - whole) <= ROUNDING * whole
    return result_size("required_replicas", np.where(near, whole, np.ceil(quotient)))
