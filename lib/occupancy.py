"""How many requests are in the system and in the batch: Little's law (chapter `occupancy`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    one,
    ordered,
    positive,
    real,
    require,
    result,
    together,
)


def little_law_concurrency(arrival_rate: ArrayLike, avg_latency: ArrayLike) -> FloatOrArray:
    """Mean number of requests in the system, L = lambda W (eq-little).

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    avg_latency : W > 0, mean time in the system, which is the mean E2E (s).

    Returns
    -------
    L (requests), waiting ones included: it may exceed the batch limit. For the batch alone use
    `batch_occupancy`.

    Raises
    ------
    ValueError : an argument is NaN, infinite or <= 0.

    Source: Little, A Proof for the Queuing Formula L = lambda W (Operations Research 9, 1961).
    """
    rate = positive("arrival_rate", arrival_rate)
    latency = positive("avg_latency", avg_latency)
    together(arrival_rate=rate, avg_latency=latency)
    return result("little_law_concurrency", rate * latency)


def batch_occupancy(
    arrival_rate: ArrayLike, avg_latency: ArrayLike, avg_queue_wait: ArrayLike
) -> FloatOrArray:
    """Mean number of requests in the batch, B = lambda (E2E - W_queue) (eq-batch-occupancy).

    Parameters
    ----------
    arrival_rate : lambda > 0 (requests/s).
    avg_latency : mean E2E > 0 (s).
    avg_queue_wait : mean W_queue >= 0, from arrival to first service (s).

    Returns
    -------
    B (requests), never above the batch limit where all arguments describe one stretch of time.

    Raises
    ------
    ValueError : an argument is NaN, infinite or out of range, or the wait exceeds the latency.

    Source: Little's law for the time in the batch; Little (1961), as `little_law_concurrency`.
    """
    rate = positive("arrival_rate", arrival_rate)
    latency = positive("avg_latency", avg_latency)
    wait = nonnegative("avg_queue_wait", avg_queue_wait)
    together(arrival_rate=rate, avg_latency=latency, avg_queue_wait=wait)
    wait, latency = np.broadcast_arrays(wait, latency)
    require("avg_queue_wait", wait, wait <= latency, "<= avg_latency")
    return result("batch_occupancy", rate * (latency - wait))


def batch_utilization(active_batch_history: ArrayLike, max_batch_size: int) -> float:
    """Mean batch size over steps as a share of its limit (eq-batch-utilization).

    U = (1 / (n B_max)) sum B_k. Every step weighs the same, however long it lasts, and time in
    which no step was taken counts only where the history holds a 0 for it.

    Parameters
    ----------
    active_batch_history : (n,) batch size B_k of each step, whole numbers >= 0.
    max_batch_size : B_max >= 1.

    Returns
    -------
    U, from 0 to 1.

    Raises
    ------
    ValueError : no step, a size is not a whole number, B_k < 0 or > B_max, B_max < 1.

    Source: the seed, section 5.1.
    """
    limit = one("max_batch_size", count("max_batch_size", max_batch_size, minimum=1))
    history = count("active_batch_history", active_batch_history)
    if history.ndim != 1 or history.size == 0:
        raise ValueError(
            f"active_batch_history must be a non-empty list of batch sizes: "
            f"got shape {history.shape}"
        )
    require("active_batch_history", history, history <= limit, f"<= max_batch_size {limit:.12g}")
    return float(history.sum() / (history.size * limit))


@dataclass(frozen=True, eq=False)
class OccupancyCurve:
    """The number of requests present, a step function of time.

    `counts[i]` requests are present from `times[i]` (s) until `times[i + 1]`; none before the
    first time, and `counts[-1]` is 0.
    """

    times: FloatArray
    counts: NDArray[np.int64]


def occupancy_curve(start: ArrayLike, end: ArrayLike) -> OccupancyCurve:
    """Count the requests present at every time, by a sweep over their starts and ends.

    A request is present on [start, end), its end excluded: two that touch are never both
    present, and one of zero length never is. Pass arrivals and last tokens for the system,
    `scheduled` and last tokens for the batch.

    Parameters
    ----------
    start, end : (n,) stamps on one clock (s), start <= end in each row, in any order of rows.

    Returns
    -------
    OccupancyCurve. O(n log n); exact, with no bins of time.

    Raises
    ------
    ValueError : no request, lengths differ, a stamp is NaN or infinite, or an end precedes its
        start.

    Source: the sweep over events; vLLM issue 56653 shows what whole-second bins count instead.
    """
    start, end = _intervals(start, end)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    counts = np.cumsum(np.where(order < start.size, 1, -1))
    # Events of one instant act together, so only the count after the last of them is real.
    last = np.append(times[1:] > times[:-1], True)
    return OccupancyCurve(times[last], counts[last])


def time_average(
    start: ArrayLike, end: ArrayLike, window: tuple[float, float] | None = None
) -> float:
    """Time average of the number of requests present, the area under its curve over the time.

    The left side of eq-little-window. It integrates `occupancy_curve`, count times width, and
    knows nothing of how long any one request stays.

    Parameters
    ----------
    start, end : (n,) stamps, as in `occupancy_curve` (s).
    window : (t0, t1) (s), t0 < t1; from the first start to the last end when left out. A request
        that crosses an edge counts for the part inside.

    Returns
    -------
    The average (requests).

    Raises
    ------
    ValueError : as `occupancy_curve`; the window is NaN, infinite or has no length.
    """
    curve = occupancy_curve(start, end)
    if window is None:
        window = curve.times[0], curve.times[-1]
        if window[0] == window[1]:
            raise ValueError(
                f"end must come after start somewhere: all stamps are {window[0]:.12g}"
            )
    t0, t1 = _window(window)
    widths = np.diff(np.clip(curve.times, t0, t1))
    return float(np.sum(curve.counts[:-1] * widths) / (t1 - t0))


def peak(start: ArrayLike, end: ArrayLike, window: tuple[float, float] | None = None) -> int:
    """The largest number of requests present at once.

    Parameters
    ----------
    start, end : (n,) stamps, as in `occupancy_curve` (s).
    window : (t0, t1) (s), t0 < t1: look only at times t0 <= t < t1; at all times when left out.

    Returns
    -------
    The peak (requests).

    Raises
    ------
    ValueError : as `time_average`.
    """
    curve = occupancy_curve(start, end)
    if window is None:
        return int(curve.counts.max())
    t0, t1 = _window(window)
    present = np.diff(np.clip(curve.times, t0, t1)) > 0
    return int(curve.counts[:-1][present].max(initial=0))


def time_inside(start: ArrayLike, end: ArrayLike, window: tuple[float, float]) -> FloatArray:
    """Time that each request spends inside a window.

    The right side of eq-little-window: the time average over (t0, t1) is
    sum(time_inside) / (t1 - t0), in any window of any log, stationary or not.

    Parameters
    ----------
    start, end : (n,) stamps, as in `occupancy_curve` (s).
    window : (t0, t1) (s), t0 < t1.

    Returns
    -------
    (n,) times (s); 0 for a request that is never inside.

    Raises
    ------
    ValueError : as `time_average`.

    Source: Little, Little's Law as Viewed on Its 50th Anniversary (Operations Research 59, 2011).
    """
    start, end = _intervals(start, end)
    t0, t1 = _window(window)
    return np.clip(end, t0, t1) - np.clip(start, t0, t1)


def _intervals(start: ArrayLike, end: ArrayLike) -> tuple[FloatArray, FloatArray]:
    start, end = real("start", start), real("end", end)
    if start.ndim != 1 or start.size == 0:
        raise ValueError(f"start must be a non-empty list of stamps: got shape {start.shape}")
    if end.shape != start.shape:
        raise ValueError(f"lengths must match: got start {start.shape}, end {end.shape}")
    ordered(start=start, end=end)
    return start, end


def _window(window: tuple[float, float]) -> tuple[float, float]:
    edges = real("window", window)
    if edges.shape != (2,):
        raise ValueError(f"window must be a pair (t0, t1): got shape {edges.shape}")
    t0, t1 = map(float, edges)
    if not t0 < t1:
        raise ValueError(f"window must have t0 < t1: got ({t0:.12g}, {t1:.12g})")
    return t0, t1
