"""What a good token costs, and the plan of a fleet with the uncertainty of its inputs (chapter
`cost`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatOrArray,
    choice,
    count,
    nonnegative,
    of_kind,
    one,
    positive,
    real,
    require,
    result,
    together,
)
from lib.capacity import (
    Load,
    Replica,
    largest_batch,
    replica_rate,
    required_replicas,
    serve,
    sustainable_rate,
)
from lib.goodput import meets_slo
from lib.record import RequestLog
from lib.sensitivity import Swing, interval, resample, tornado
from lib.step_time import BLOCKS, Fit, StepTime
from lib.traces import arrival_rate

RANGED = ("price_per_gpu_hour", "arrival_rate", "headroom", "num_kv_blocks", "slowdown")
"""The inputs of a plan that a reader can give a range."""

TRACE_BLOCKS = 20
"""Blocks of a resampled trace, as in the jackknife of `step_time.fit`."""

SHARES = 3
"""Replicas' shares of the trace on which a plan searches the sustainable rate."""


def cost_per_million_tokens(
    price_per_gpu_hour: ArrayLike, gpus: ArrayLike, good_tokens_per_s: ArrayLike
) -> FloatOrArray:
    """Money per million good tokens, C_tok = 10^6 p_gpu N_gpu / (3600 Y) (eq-cost).

    Parameters
    ----------
    price_per_gpu_hour : p_gpu, in any currency, >= 0.
    gpus : N_gpu, all that are paid for, busy or not, >= 1.
    good_tokens_per_s : Y, output tokens per second of the requests that meet the SLO, > 0.

    Returns
    -------
    The currency of p_gpu per 10^6 tokens.

    Raises
    ------
    ValueError : a price is negative, a count below 1 or not whole, a rate not positive: no good
        token has no price.

    Source: definitions.
    """
    price = nonnegative("price_per_gpu_hour", price_per_gpu_hour)
    many = count("gpus", gpus, minimum=1)
    good = positive("good_tokens_per_s", good_tokens_per_s)
    together(price_per_gpu_hour=price, gpus=many, good_tokens_per_s=good)
    return result("cost_per_million_tokens", 1e6 * price * many / (3600 * good))


def fleet_cost(
    *,
    load: Load,
    replica: Replica,
    step_time: StepTime,
    slowdown: float,
    num_kv_blocks: float,
    tpot_slo: float,
    load_share: float,
    arrival_rate: float,
    headroom: float,
    good_share: float,
    gpus_per_replica: int,
    price_per_gpu_hour: float,
    whole: bool,
) -> tuple[float, float]:
    """The chain from memory to money (eq-cost-chain): replicas, and cost per million good tokens.

    Parameters
    ----------
    load : the lengths served.
    replica : its limits; `step_time`, `slowdown` (a factor of it) and `num_kv_blocks` (cut to a
        whole number) replace its own.
    tpot_slo : limit of the mean step (s), for `largest_batch`.
    load_share : eta, the share of X(B_full) at which a replica meets the SLO, in (0, 1].
    arrival_rate, headroom : lambda (1/s), h.
    good_share : share of the output tokens that belong to good requests, in (0, 1].
    gpus_per_replica, price_per_gpu_hour : n_gpu, p_gpu.
    whole : False does not round the replicas up: the cost of a fleet so large that it does not
        matter.

    Returns
    -------
    (n_rep, C_tok): replicas, and the currency of p_gpu per 10^6 tokens.

    Raises
    ------
    TypeError, ValueError : as `capacity.largest_batch`, `required_replicas` and
        `cost_per_million_tokens`; an argument of another kind; a share out of range.
    """
    of_kind("load", load, Load)
    of_kind("replica", replica, Replica)
    of_kind("step_time", step_time, StepTime)
    slow = one("slowdown", positive("slowdown", slowdown))
    blocks = one("num_kv_blocks", positive("num_kv_blocks", num_kv_blocks))
    rate = one("arrival_rate", positive("arrival_rate", arrival_rate))
    lines = tuple(tuple(slow * x for x in line) for line in step_time.lines)
    engine = replace(
        replica,
        step_time=StepTime(lines),  # type: ignore[arg-type]
        num_kv_blocks=int(blocks),
    )
    batch = largest_batch(engine, load, tpot_slo).batch
    each = _share("load_share", load_share) * float(replica_rate(engine, load, batch))
    replicas = float(required_replicas(rate, each, headroom))
    if not whole:
        replicas = rate * (1 + headroom) / each
    good = rate * load.mean_output * _share("good_share", good_share)
    cost = cost_per_million_tokens(price_per_gpu_hour, gpus_per_replica, good / replicas)
    return replicas, float(cost)


def _share(name: str, value: float) -> float:
    share = positive(name, value)
    require(name, share, share <= 1, "a share in (0, 1]: 0.99, not 99")
    return one(name, share)


def step_time_draws(fit: Fit, draws: int, generator: np.random.Generator) -> tuple[StepTime, ...]:
    """Lines as likely as a fit leaves them: normal, with the covariance of its jackknife.

    Parameters
    ----------
    fit : a line fitted to measured time.
    draws : how many, >= 1.
    generator : source of chance.

    Returns
    -------
    StepTimes of one line, coefficients cut at 0.

    Raises
    ------
    TypeError, ValueError : an argument of another kind; `draws` below 1 or not whole; a draw
        without a coefficient above 0.

    Source: Künsch (Annals of Statistics 1989), as `step_time.fit`.
    """
    of_kind("fit", fit, Fit)
    of_kind("generator", generator, np.random.Generator)
    many = int(one("draws", count("draws", draws, minimum=1)))
    spread = (fit.without - fit.without.mean(axis=0)) * np.sqrt((BLOCKS - 1) / BLOCKS)
    lines = np.array(fit.step_time.lines[0]) + generator.standard_normal((many, BLOCKS)) @ spread
    return tuple(StepTime((tuple(line),)) for line in np.maximum(lines, 0).tolist())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to buy, what it costs, and what decides about it; see `plan`.

    replicas, cost : n_rep, and the price of 10^6 good tokens. replicas_interval, cost_interval :
    95 % of the draws. attainment, good_share : requests and output tokens that are good, in a
    simulation of the fleet; target : the attainment asked for. rate : what one replica sustains
    (requests/s). load_share : that over X(B_full). batch, limit : B_full, and what limits it.
    swings : each input alone, the largest first, on the cost before rounding, which is
    `unrounded_cost`.
    """

    replicas: int
    cost: float
    replicas_interval: tuple[int, int]
    cost_interval: tuple[float, float]
    attainment: float
    target: float
    good_share: float
    rate: float
    load_share: float
    batch: float
    limit: str
    unrounded_cost: float
    swings: tuple[Swing, ...]

    def __str__(self) -> str:
        low, high = self.replicas_interval
        cheap, dear = self.cost_interval
        short = "" if self.attainment >= self.target else f": BELOW the {self.target:.1%} asked"
        most = [
            f"  {swing.name:<19}{swing.low / self.unrounded_cost - 1:+.0%} to "
            f"{swing.high / self.unrounded_cost - 1:+.0%}"
            for swing in self.swings[:3]
        ]
        return "\n".join(
            [
                f"replicas            {self.replicas} [{low}, {high}]",
                f"cost per 1e6 tokens {self.cost:.3f} [{cheap:.3f}, {dear:.3f}]",
                f"attainment          {self.attainment:.1%} in a simulation of the fleet{short}",
                f"one replica         {self.rate:.2f} requests/s, {self.load_share:.0%} of a full "
                f"batch of {self.batch:.0f} (limit: {self.limit})",
                "matters most:",
                *most,
            ]
        )


def plan(
    workload: RequestLog,
    replica: Replica,
    *,
    ttft_slo: float,
    tpot_slo: float,
    target: float,
    price_per_gpu_hour: float,
    generator: np.random.Generator,
    headroom: float = 0.0,
    gpus_per_replica: int = 1,
    fit: Fit | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    draws: int = 200,
) -> Plan:
    """From a trace, an SLO and a price to replicas and cost, with the uncertainty of the inputs.

    The sustainable rate is searched by simulation, on the share of the trace that each of a few
    replicas gets. The fleet is then simulated on the whole trace. For the intervals the chain
    (eq-cost-chain) is computed again with drawn inputs: rows of the trace resampled in blocks, the
    share that a replica sustains as it scatters over the replicas, the step time as `fit` leaves
    it, and every input in `ranges`, uniform. The arrivals' pattern is not drawn: one trace has one.

    Parameters
    ----------
    workload : arrivals (s) and lengths.
    replica : one engine.
    ttft_slo, tpot_slo, target : limits (s) and the share of requests that must meet both, < 1.
    price_per_gpu_hour, gpus_per_replica : p_gpu and n_gpu.
    generator : source of chance.
    headroom : h, share of the rate kept free.
    fit : where `replica.step_time` comes from; left out, it is taken as exact.
    ranges : (low, high) of inputs in `RANGED`, around their values in the plan; `slowdown` is a
        factor of the step time, 1 in the plan.
    draws : how many, >= 2.

    Returns
    -------
    Plan.

    Raises
    ------
    TypeError, ValueError : as `sustainable_rate`, `serve` and `fleet_cost`; a range of an unknown
        input, or one that is not low <= value <= high.
    """
    of_kind("workload", workload, RequestLog)
    of_kind("replica", replica, Replica)
    of_kind("generator", generator, np.random.Generator)
    many = int(one("draws", count("draws", draws, minimum=2)))
    one("headroom", nonnegative("headroom", headroom))
    price = nonnegative("price_per_gpu_hour", price_per_gpu_hour)
    one("price_per_gpu_hour", price)
    one("gpus_per_replica", count("gpus_per_replica", gpus_per_replica, minimum=1))
    rate = arrival_rate(workload.column("arrival"))
    at = (price_per_gpu_hour, rate, headroom, replica.num_kv_blocks, 1.0)
    _check_ranges({} if ranges is None else ranges, dict(zip(RANGED, at, strict=True)))
    load = Load(workload.column("input_tokens"), workload.column("output_tokens"))
    batch = largest_batch(replica, load, tpot_slo)
    full = float(replica_rate(replica, load, batch.batch))

    replicas = int(required_replicas(rate, full))  # each gets a share of the trace on its own clock
    turn = np.argsort(np.argsort(workload.arrival, kind="stable")) % replicas
    sustained = [
        sustainable_rate(
            replica,
            workload.where(turn == i),
            target=target,
            ttft_slo=ttft_slo,
            tpot_slo=tpot_slo,
        )
        for i in range(min(replicas, SHARES))
    ]
    share = min(float(np.mean(sustained)) / full, 1.0)
    base: dict[str, Any] = {
        "load": load,
        "replica": replica,
        "step_time": replica.step_time,
        "slowdown": 1.0,
        "num_kv_blocks": replica.num_kv_blocks,
        "tpot_slo": tpot_slo,
        "load_share": share,
        "arrival_rate": rate,
        "headroom": headroom,
        "good_share": 1.0,
        "gpus_per_replica": gpus_per_replica,
        "price_per_gpu_hour": price_per_gpu_hour,
        "whole": True,
    }
    bought = int(fleet_cost(**base)[0])
    served = serve(replica, workload, bought)
    good, judged = meets_slo(served.metrics(), ttft_slo, tpot_slo)
    base["good_share"] = float(served.output_tokens[good].sum() / served.output_tokens.sum())

    drawn: dict[str, Sequence[Any]] = {
        "load": _lengths(load, many, generator),
        **_uniform(ranges or {}, many, generator),
    }
    if len(sustained) > 1:  # Student's t for the mean of a few
        spread = np.std(sustained, ddof=1) / np.sqrt(len(sustained)) / full
        scatter = share + spread * generator.standard_t(len(sustained) - 1, many)
        drawn["load_share"] = np.clip(scatter, share / 10, 1.0).tolist()
    if fit is not None:
        drawn["step_time"] = step_time_draws(fit, many, generator)
    outcomes = [
        fleet_cost(**{**base, **dict(zip(drawn, values, strict=True))})
        for values in zip(*drawn.values(), strict=True)
    ]
    fleets, costs = np.transpose(outcomes)
    unrounded = {**base, "whole": False}
    few, most = interval(fleets)
    return Plan(
        replicas=bought,
        cost=fleet_cost(**base)[1],
        replicas_interval=(int(np.floor(few)), int(np.ceil(most))),
        cost_interval=interval(costs),
        attainment=float(good.sum() / judged.sum()),
        target=target,
        good_share=base["good_share"],
        rate=share * full,
        load_share=share,
        batch=batch.batch,
        limit=batch.limit,
        unrounded_cost=fleet_cost(**unrounded)[1],
        swings=tornado(lambda **inputs: fleet_cost(**inputs)[1], unrounded, drawn),
    )


def _lengths(load: Load, draws: int, generator: np.random.Generator) -> list[Load]:
    """Loads of resampled rows."""
    n = load.input_tokens.size
    block = -(-n // TRACE_BLOCKS)
    rows = [resample(n, generator, block) for _ in range(draws)]
    return [Load(load.input_tokens[i], load.output_tokens[i]) for i in rows]


def _check_ranges(ranges: Mapping[str, tuple[float, float]], values: Mapping[str, float]) -> None:
    """Refuse ranges that leave out a value: their interval would not be about this plan."""
    if not isinstance(ranges, Mapping):
        raise TypeError(f"ranges must be a mapping: got {ranges!r:.80}")
    for name, pair in ranges.items():
        choice("ranges", name, RANGED)
        ends = real(f"range of {name}", pair)
        if ends.shape != (2,) or ends[0] > ends[1]:
            raise ValueError(f"ranges must hold (low, high): got {pair!r:.80} for {name}")
        if not ends[0] <= values[name] <= ends[1]:
            raise ValueError(
                f"range of {name} must hold the plan's value, {values[name]:.6g}: got {pair!r:.80}"
            )


def _uniform(
    ranges: Mapping[str, tuple[float, float]], draws: int, generator: np.random.Generator
) -> dict[str, list[float]]:
    return {
        name: generator.uniform(float(low), float(high), draws).tolist()
        for name, (low, high) in ranges.items()
    }
