"""Queues simulated from the process itself: customers arrive, wait, are served and leave.

No function here knows a queueing formula. Most take arrivals and service times, drawn or from a
trace, and return what happens to every customer; two turn such runs into an estimate with a
confidence interval. Randomness stays with the caller, whose generator `gamma_times` draws from.
"""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from math import ceil, cos, inf, pi, sin, sqrt, tan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    count,
    nonnegative,
    one,
    positive,
    real,
    require,
    together,
)
from lib.percentile import percentile

BLOCK = 4096
"""Customers in one running sum of `single_server`. A sum over all of them grows with their number,
and its rounding error with it: over a million, 5e-10 of the mean gap against 3e-12 in blocks."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Served:
    """What happened to every customer, in order of arrival; arrays of one shape (..., n).

    arrival, start, departure : stamps on the clock of the arrivals (s). One moment is one number: a
    customer starts at the very stamp at which the one it waited for departs. At calendar times
    float64 resolves 2e-7 s; a clock that begins near 0 does better. wait, response : from arrival
    to start and to departure (s).
    """

    arrival: FloatArray
    start: FloatArray
    departure: FloatArray
    wait: FloatArray
    response: FloatArray


def single_server(arrival: ArrayLike, service: ArrayLike) -> Served:
    """One server, first come first served: Lindley's recursion.

    W_1 = 0, W_k = max(0, W_{k-1} + S_{k-1} - T_k), with T_k the time between the arrivals k - 1 and
    k. In sums: W_k = P_k - min(0, P_1, ..., P_k), with P_k the sum of the S_{i-1} - T_i up to k.

    Parameters
    ----------
    arrival : (..., n) arrivals (s), in order along the last axis. Leading axes are replications.
    service : (..., n) service times (s) >= 0. The two broadcast: one trace serves many draws.

    Returns
    -------
    Served. O(n) in NumPy; the rounding error does not grow with the number of customers.

    Raises
    ------
    ValueError : no customer; lengths differ; arrivals out of order; a negative service time; NaN or
        infinity.
    TypeError : an argument is not numeric.

    Source: Lindley, Proc. Camb. Phil. Soc. 48 (1952) 277-289.
    """
    came, work = _customers(arrival, service=nonnegative("service", service))
    change = work[..., :-1] - np.diff(came)
    wait = np.zeros(came.shape)
    for begin in range(0, change.shape[-1], BLOCK):
        total = change[..., begin : begin + BLOCK].copy()
        total[..., 0] += wait[..., begin]
        np.cumsum(total, axis=-1, out=total)
        lowest = np.minimum(np.minimum.accumulate(total, axis=-1), 0.0)
        wait[..., begin + 1 : begin + 1 + total.shape[-1]] = total - lowest
    start = np.maximum.accumulate(came + wait, axis=-1)
    departure = start + work
    # Who waits starts the moment the one before departs: rounding must not tell the two apart.
    before, after = departure[..., :-1], start[..., 1:]
    before[...] = np.where(wait[..., 1:] > 0, after, np.minimum(before, after))
    return Served(arrival=came, start=start, departure=departure, wait=wait, response=wait + work)


def multi_server(arrival: ArrayLike, service: ArrayLike, servers: int) -> Served:
    """Several servers and one line, first come first served: the next customer takes the server
    that is free first.

    Parameters
    ----------
    arrival, service : (..., n) (s), as `single_server`.
    servers : c >= 1.

    Returns
    -------
    Served. O(n log c): one exchange on a heap of c times for each customer.

    Raises
    ------
    ValueError, TypeError : as `single_server`; `servers` is not a whole number >= 1.

    Source: the vector recursion of Kiefer and Wolfowitz, Trans. AMS 78 (1955) 1-18, on a heap.
    """
    came, work = _customers(arrival, service=nonnegative("service", service))
    c = min(_whole("servers", servers), came.shape[-1])  # more are never used
    start = np.empty(came.shape)
    for row in np.ndindex(came.shape[:-1]):
        start[row] = _next_free(came[row].tolist(), work[row].tolist(), c)
    return _served(came, start, start + work)


def shortest_first(arrival: ArrayLike, service: ArrayLike, size: ArrayLike | None = None) -> Served:
    """One server that takes the smallest of those who wait; who is in service stays to the end.

    Parameters
    ----------
    arrival, service : (..., n) (s), as `single_server`.
    size : (..., n) what the rule goes by, any unit; the service time itself when left out. Who
        knows only the prompt's length passes that. Among equals the earlier comes first.

    Returns
    -------
    Served. O(n log m), with m the number that wait.

    Raises
    ------
    ValueError, TypeError : as `single_server`; sizes that are no numbers, or of another length.

    Source: Phipps and Van Voorhis, Oper. Res. 4 (1956) 76-86.
    """
    sizes = {} if size is None else {"size": real("size", size)}
    came, work, *given = _customers(arrival, service=nonnegative("service", service), **sizes)
    (rank,) = given or (work,)
    start = np.empty(came.shape)
    for row in np.ndindex(came.shape[:-1]):
        start[row] = _smallest(came[row].tolist(), work[row].tolist(), rank[row].tolist())
    return _served(came, start, start + work)


def split_servers(arrival: ArrayLike, service: ArrayLike, server: ArrayLike) -> Served:
    """Several servers, each with its own line, first come first served; no one changes lines.

    Parameters
    ----------
    arrival, service : (..., n) (s), as `single_server`.
    server : (..., n) the server that each customer is sent to, whole numbers >= 0:
        `np.arange(n) % c` is round robin.

    Returns
    -------
    Served. O(n log n) in NumPy.

    Raises
    ------
    ValueError, TypeError : as `single_server`; `server` is no whole number, or of another length.
    """
    came, work, sent = _customers(
        arrival, service=nonnegative("service", service), server=count("server", server)
    )
    stamps = {name: np.empty(came.shape) for name in ("start", "departure", "wait", "response")}
    for row in np.ndindex(came.shape[:-1]):
        order = np.argsort(sent[row], kind="stable")
        for line in np.split(order, np.flatnonzero(np.diff(sent[row][order])) + 1):
            alone = single_server(came[row][line], work[row][line])
            for name, column in stamps.items():
                column[row][line] = getattr(alone, name)
    return Served(arrival=came, **stamps)


def shortest_queue(arrival: ArrayLike, service: ArrayLike, servers: int) -> Served:
    """Several servers, each with its own line: a customer joins the line with the fewest in it.

    The one in service counts. Among equals it is the line of the lowest number; a customer that
    leaves at the very moment of an arrival has left.

    Parameters
    ----------
    arrival, service : (..., n) (s), as `single_server`.
    servers : c >= 1.

    Returns
    -------
    Served. O(n (c + log m)), with m the number present.

    Raises
    ------
    ValueError, TypeError : as `single_server`; `servers` is not a whole number >= 1.

    Source: Winston, J. Appl. Prob. 14 (1977) 181-189.
    """
    came, work = _customers(arrival, service=nonnegative("service", service))
    c = min(_whole("servers", servers), came.shape[-1])  # more are never used
    start = np.empty(came.shape)
    for row in np.ndindex(came.shape[:-1]):
        start[row] = _join_shortest(came[row].tolist(), work[row].tolist(), c)
    return _served(came, start, start + work)


def limited_room(
    arrival: ArrayLike, service: ArrayLike, servers: int, size: ArrayLike, room: int
) -> tuple[NDArray[np.bool_], Served]:
    """`multi_server` behind a door: who does not fit into the room is refused, and gone.

    A customer takes up its size from arrival to departure, waiting or in service; one that leaves
    at the very moment of an arrival has left. With sizes of 1 the room limits the depth of the
    queue, with tokens the KV cache.

    Parameters
    ----------
    arrival, service : (n,) (s), one run, as `single_server`.
    servers : c >= 1.
    size : (n,) or one number: whole numbers >= 1, any unit.
    room : the most that all present may take up together, in the unit of `size`, >= 1.

    Returns
    -------
    Who is admitted, (n,); and Served of those alone, in order of arrival: empty if nobody fits.
    O(n log m), with m the number present.

    Raises
    ------
    ValueError, TypeError : as `multi_server`; more than one run; a size or the room is not a whole
        number >= 1; sizes of another length.
    """
    came, work, takes = _customers(
        arrival, service=nonnegative("service", service), size=count("size", size, minimum=1)
    )
    if came.ndim != 1:
        raise ValueError(f"arrival, service and size must be one run, (n,): got shape {came.shape}")
    c, most = min(_whole("servers", servers), came.size), _whole("room", room)
    starts = _admit(came.tolist(), work.tolist(), c, takes.tolist(), most)
    admitted = np.zeros(came.shape, dtype=bool)
    admitted[list(starts)] = True
    start = np.array(list(starts.values()), dtype=np.float64)
    return admitted, _served(came[admitted], start, start + work[admitted])


def processor_sharing(arrival: ArrayLike, service: ArrayLike) -> Served:
    """One server that all customers present share in equal parts, from the moment they arrive.

    Parameters
    ----------
    arrival, service : (..., n) (s), as `single_server`. A service time is what the customer
        needs alone.

    Returns
    -------
    Served; nobody waits for the start, so `wait` is 0, and response - service is the delay.
    O(n log m), with m the number present.

    Raises
    ------
    ValueError, TypeError : as `single_server`.

    Source: Kleinrock, JACM 14 (1967) 242-261.
    """
    came, work = _customers(arrival, service=nonnegative("service", service))
    departure = np.empty(came.shape)
    for row in np.ndindex(came.shape[:-1]):
        departure[row] = _share(came[row].tolist(), work[row].tolist())
    return _served(came, came, departure)


def batch_server(arrival: ArrayLike, steps: ArrayLike, step_time: ArrayLike) -> Served:
    """A server that works in steps, each of which serves every customer in the batch once.

    Before each step the waiting customers join the batch in order of arrival, up to its limit; who
    arrives at the very start of a step is in it, who arrives later waits for the next. A customer
    leaves after the last of its steps. With one step each this is a bulk service queue; with many,
    continuous batching.

    Parameters
    ----------
    arrival : (..., n) arrivals (s), as `single_server`.
    steps : (..., n) steps that each customer needs, whole numbers >= 1; they broadcast.
    step_time : (B,) length of a step with 1, 2, ..., B customers in the batch (s) > 0. The limit of
        the batch is B.

    Returns
    -------
    Served. O(n log B): steps that only repeat one batch are taken together.

    Raises
    ------
    ValueError, TypeError : as `single_server`; `steps` is not a whole number >= 1; `step_time` is
        empty, no list, or not > 0.

    Source: Bailey, J. R. Stat. Soc. B 16 (1954) 80-87, for one step each; Yu et al., Orca (OSDI
    2022), for many.
    """
    came, need = _customers(arrival, steps=count("steps", steps, minimum=1))
    lengths = positive("step_time", step_time)
    if lengths.ndim != 1 or lengths.size == 0:
        raise ValueError(
            f"step_time must be a non-empty list, one length a batch size: "
            f"got shape {lengths.shape}"
        )
    start, departure = np.empty(came.shape), np.empty(came.shape)
    for row in np.ndindex(came.shape[:-1]):
        whole = need[row].astype(np.int64).tolist()
        start[row], departure[row] = _step_by_step(came[row].tolist(), whole, lengths.tolist())
    return _served(came, start, departure)


def gamma_times(
    generator: np.random.Generator, mean: float, cv: float, size: int | tuple[int, ...]
) -> FloatArray:
    """Times of a given mean and coefficient of variation, drawn from a gamma distribution.

    Parameters
    ----------
    generator : where the randomness comes from.
    mean : (s) > 0.
    cv : standard deviation over mean, 0 or from 1e-6 to 30: 1 is the exponential distribution, 0 a
        constant. Beyond 30 most samples fall to 0 in float64.
    size : shape of the result.

    Returns
    -------
    Independent samples (s).

    Raises
    ------
    ValueError : a mean or CV out of range.
    TypeError : `generator` is no numpy Generator, or mean or CV no single number.
    """
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"generator must be a numpy Generator: got {generator!r:.80}")
    average = one("mean", positive("mean", mean))
    ratio = nonnegative("cv", cv)
    require("cv", ratio, (ratio == 0) | ((ratio >= 1e-6) & (ratio <= 30)), "0, or from 1e-6 to 30")
    spread = one("cv", ratio)
    if spread == 0:
        return np.full(size, average)
    return generator.gamma(1 / spread**2, average * spread**2, size)


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval, and what the interval rests on.

    `sections` independent replications, or batches of one run, gave one value each.
    """

    value: float
    low: float
    high: float
    confidence: float
    sections: int
    method: str

    def __str__(self) -> str:
        return (
            f"{self.value:.4g} in [{self.low:.4g}, {self.high:.4g}] "
            f"({100 * self.confidence:g} %, {self.sections} {self.method})"
        )


def mean_interval(
    values: ArrayLike, *, warm_up: int, batches: int | None = None, confidence: float = 0.95
) -> Estimate:
    """The mean of simulated values, with Student's interval over replications or batch means.

    Parameters
    ----------
    values : (r, n) r >= 2 independent replications of n customers each; or (n,) one run, with
        `batches`. Any unit.
    warm_up : customers left out at the start of each replication, or of the run: those that still
        feel the empty start. There is no default, for it depends on the load; 0 keeps all.
    batches : only for one run: the number of batches, >= 2, each long beside the time in which the
        queue forgets, or the interval is too narrow. Customers that would not fill the batches
        evenly are left out at the start, after the warm-up.
    confidence : coverage, between 0 and 1.

    Returns
    -------
    Estimate, `method` "replications" or "batches".

    Raises
    ------
    ValueError : a value is NaN or infinite; neither one run nor a table; fewer than two sections;
        nothing left after the warm-up; `batches` missing for one run, or given for replications; a
        confidence out of range.
    TypeError : an argument of another kind.

    Source: Asmussen and Glynn, Stochastic Simulation (2007), sections III.1 and IV.5.
    """
    sections, method = _sections(values, warm_up, batches)
    each = sections.mean(axis=1)
    return _interval(float(each.mean()), each, confidence, method)


def quantile_interval(
    values: ArrayLike,
    q: float,
    *,
    warm_up: int,
    batches: int | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """A percentile of simulated values, with an interval by sectioning.

    The value is the percentile of all values together. The interval is Student's, with the
    spread of the sections' own percentiles about that value: each is biased, the more the shorter
    the section, and the pooled one far less.

    Parameters
    ----------
    values, warm_up, batches, confidence : as `mean_interval`.
    q : percentage, 1 <= q < 100: 99 for p99.

    Returns
    -------
    Estimate, `method` "replications" or "batches".

    Raises
    ------
    ValueError, TypeError : as `mean_interval`; q out of range; sections so short that none of their
        values is expected beyond the percentile.

    Source: Asmussen and Glynn, Stochastic Simulation (2007), section III.5; the percentile is
    `lib.percentile.percentile`'s, linear.
    """
    sections, method = _sections(values, warm_up, batches)
    parts = [percentile(section, q) for section in sections]
    if not parts[0].supported:
        raise ValueError(
            f"values must have sections that reach beyond p{q:g}: got {sections.shape[1]} values "
            f"in each, {parts[0].beyond:.2g} of them expected beyond"
        )
    each = np.array([part.value for part in parts])
    return _interval(percentile(sections.ravel(), q).value, each, confidence, method)


def _whole(name: str, value: int) -> int:
    """One whole number >= 1."""
    return int(one(name, count(name, value, minimum=1)))


def _customers(arrival: ArrayLike, **columns: FloatArray) -> tuple[FloatArray, ...]:
    """Arrivals in order and more columns, as arrays of one shape (..., n)."""
    came = real("arrival", arrival)
    together(arrival=came, **columns)
    if came.ndim == 0 or came.shape[-1] == 0:
        raise ValueError(f"arrival must be a non-empty list: got shape {came.shape}")
    for name, column in columns.items():
        if column.ndim and column.shape[-1] not in (1, came.shape[-1]):
            raise ValueError(f"lengths must match: got arrival {came.shape}, {name} {column.shape}")
    require("arrival", came, np.diff(came, prepend=came[..., :1]) >= 0, "in order of time")
    arrays = (came, *columns.values())
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return tuple(np.broadcast_to(array, shape) for array in arrays)


def _served(arrival: FloatArray, start: FloatArray, departure: FloatArray) -> Served:
    """The record of customers whose stamps are known."""
    return Served(
        arrival=arrival,
        start=start,
        departure=departure,
        wait=start - arrival,
        response=departure - arrival,
    )


def _next_free(arrival: list[float], service: list[float], servers: int) -> list[float]:
    """Starts where each customer takes the server that is free first."""
    free = [arrival[0]] * servers  # when each server is free again
    starts = []
    for now, length in zip(arrival, service, strict=True):
        start = free[0]
        if start < now:
            start = now
        heapreplace(free, start + length)
        starts.append(start)
    return starts


def _smallest(arrival: list[float], service: list[float], size: list[float]) -> list[float]:
    """Starts where the smallest of those who wait is next."""
    starts = [0.0] * len(arrival)
    waiting: list[tuple[float, int]] = []
    now, coming = arrival[0], 0
    for _ in arrival:
        if not waiting:
            now = max(now, arrival[coming])
        while coming < len(arrival) and arrival[coming] <= now:
            heappush(waiting, (size[coming], coming))
            coming += 1
        _, first = heappop(waiting)
        starts[first] = now
        now += service[first]
    return starts


def _join_shortest(arrival: list[float], service: list[float], servers: int) -> list[float]:
    """Starts where each customer joins the line with the fewest in it."""
    free = [arrival[0]] * servers  # when each line is empty again
    numbers = [0] * servers  # in each line
    present: list[tuple[float, int]] = []  # when each customer leaves, and its line
    starts = []
    for now, length in zip(arrival, service, strict=True):
        while present and present[0][0] <= now:
            numbers[heappop(present)[1]] -= 1
        line = numbers.index(min(numbers))
        start = max(now, free[line])
        free[line] = start + length
        numbers[line] += 1
        heappush(present, (free[line], line))
        starts.append(start)
    return starts


def _admit(
    arrival: list[float], service: list[float], servers: int, size: list[float], room: int
) -> dict[int, float]:
    """Starts of the customers that fit into the room when they come."""
    free = [arrival[0]] * servers
    present: list[tuple[float, float]] = []  # when each customer leaves, and its size
    taken, starts = 0.0, {}
    for i, (now, length) in enumerate(zip(arrival, service, strict=True)):
        while present and present[0][0] <= now:
            taken -= heappop(present)[1]
        if taken + size[i] <= room:
            starts[i] = start = max(now, free[0])
            heapreplace(free, start + length)
            heappush(present, (start + length, size[i]))
            taken += size[i]
    return starts


def _share(arrival: list[float], service: list[float]) -> list[float]:
    """Departures where m customers present are each served at the rate 1/m.

    `got` is what a customer present from the first moment on would have got by now. All present get
    the same, so each leaves when `got` has grown by its service time.
    """
    departure = [0.0] * len(arrival)
    present: list[tuple[float, int]] = []  # what `got` is when a customer leaves, and which one
    now, got = arrival[0], 0.0
    # A last arrival that never comes lets everybody leave.
    for i, (came, length) in enumerate(zip([*arrival, inf], [*service, 0.0], strict=True)):
        while present:
            goal, first = present[0]
            leaves = now + (goal - got) * len(present)
            if leaves > came:
                # Rounding must not carry it past the goal, or time would run backward.
                got = min(goal, got + (came - now) / len(present))
                break
            now, got = leaves, goal
            departure[first] = now
            heappop(present)
        now = came
        heappush(present, (got + length, i))
    return departure


def _step_by_step(
    arrival: list[float], steps: list[int], lengths: list[float]
) -> tuple[list[float], list[float]]:
    """Starts and departures where one step serves the whole batch."""
    n, limit = len(arrival), len(lengths)
    start, departure = [0.0] * n, [0.0] * n
    batch: list[tuple[int, int]] = []  # the step after which a customer leaves, and who
    now, taken, coming = arrival[0], 0, 0
    while batch or coming < n:
        if not batch:
            now = max(now, arrival[coming])
        while coming < n and arrival[coming] <= now and len(batch) < limit:
            start[coming] = now
            heappush(batch, (taken + steps[coming], coming))
            coming += 1
        length = lengths[len(batch) - 1]
        repeat = batch[0][0] - taken  # until the first one leaves, or the next one joins
        if coming < n and len(batch) < limit:
            repeat = min(repeat, max(1, ceil((arrival[coming] - now) / length)))
        taken += repeat
        now += repeat * length
        while batch and batch[0][0] == taken:
            _, i = heappop(batch)
            departure[i] = now
    return start, departure


def _sections(values: ArrayLike, warm_up: int, batches: int | None) -> tuple[FloatArray, str]:
    """One row for each replication or batch, without the warm-up, and what the rows are."""
    table = real("values", values)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(
            f"values must be one run (n,) or replications (r, n), not empty: "
            f"got shape {table.shape}"
        )
    skip = int(one("warm_up", count("warm_up", warm_up)))
    left = table.shape[-1] - skip
    if left < 1:
        raise ValueError(f"warm_up must be < {table.shape[-1]} customers: got {skip}")
    if table.ndim == 2:
        if batches is not None:
            raise ValueError(f"batches must be left out for replications: got {batches!r}")
        if len(table) < 2:
            raise ValueError("values must hold 2 replications or more: got 1")
        return table[:, skip:], "replications"
    if batches is None:
        raise ValueError("batches must be given for one run")
    parts = int(one("batches", count("batches", batches, minimum=2)))
    if parts > left:
        raise ValueError(f"batches must be <= {left}, the customers after warm-up: got {parts}")
    return table[skip + left % parts :].reshape(parts, -1), "batches"


def _interval(value: float, each: FloatArray, confidence: float, method: str) -> Estimate:
    """Student's interval about `value`, from the sections' values."""
    level = one("confidence", real("confidence", confidence))
    if not 0 < level < 1:
        raise ValueError(f"confidence must be between 0 and 1, both left out: got {level:.12g}")
    freedom = each.size - 1
    error = sqrt(float(np.sum((each - value) ** 2)) / freedom / each.size)
    half = _student(level, freedom) * error
    return Estimate(value, value - half, value + half, level, each.size, method)


@lru_cache
def _student(confidence: float, freedom: int) -> float:
    """The t with Pr[|T| <= t] = confidence, for Student's T with `freedom` degrees of freedom.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4: a finite sum in the angle atan(t / sqrt(nu)),
    here solved by bisection.
    """
    odd = freedom % 2
    j = np.arange(2 + odd, freedom, 2)
    low, high = 0.0, pi / 2
    while low < (angle := (low + high) / 2) < high:
        ratios = np.append(1.0, (j - 1) / j * cos(angle) ** 2)
        total = sin(angle) * float(np.cumprod(ratios)[: freedom // 2].sum())
        covered = (angle + total * cos(angle)) * 2 / pi if odd else total
        low, high = (angle, high) if covered < confidence else (low, angle)
    return sqrt(freedom) * tan(high)
