"""The common record: one row a request, whatever the source."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lib._validate import (
    EXACT,
    FloatArray,
    count,
    numeric,
    of_kind,
    one,
    ordered,
    positive,
    real,
    require,
    where_first,
)
from lib.latency import RequestMetrics, TTFTParts, request_metrics, ttft_parts

STAMPS = ("arrival", "queued", "scheduled", "prefill_end", "first_token", "last_token")
TOKENS = ("input_tokens", "output_tokens")

_ABSENT = cast(Any, None)  # a column left out; it becomes NaN


@dataclass(frozen=True, eq=False, kw_only=True)
class RequestLog:
    """Requests as equal-length arrays: stamps in seconds on one clock, and token counts.

    Parameters
    ----------
    arrival : (n,) the request reaches the system (s).
    input_tokens, output_tokens : (n,) whole token counts.
    queued : (n,) handed to the engine's queue (s).
    scheduled : (n,) start of the step that first serves it (s).
    prefill_end : (n,) end of the step that computes the last prompt token (s).
    first_token, last_token : (n,) end of the step that emits the token (s).
    succeeded : (n,) bool; all True when left out.
    request_id : (n,) labels; 0, 1, 2 ... when left out.
    shared_clock : False when each row has its own origin: stamps then compare only within a row.

    A column that the source lacks is left out; a value that one row lacks is NaN. Both read as
    NaN, never as 0.

    Raises
    ------
    ValueError : lengths differ, a stamp is infinite or precedes an earlier one of its row, a
        token count is negative or not whole.
    TypeError : a column is not numeric, or `succeeded` is not bool.
    """

    arrival: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    queued: FloatArray = _ABSENT
    scheduled: FloatArray = _ABSENT
    prefill_end: FloatArray = _ABSENT
    first_token: FloatArray = _ABSENT
    last_token: FloatArray = _ABSENT
    succeeded: NDArray[np.bool_] = _ABSENT
    request_id: NDArray[Any] = _ABSENT
    shared_clock: bool = True

    def __post_init__(self) -> None:
        size = numeric("arrival", self.arrival).size

        def keep(name: str, column: NDArray[Any]) -> None:
            if column.shape != (size,):
                raise ValueError(
                    f"{name} must have one value a request: got shape {column.shape} "
                    f"for {size} arrivals"
                )
            object.__setattr__(self, name, column)

        for name in STAMPS + TOKENS:
            given = getattr(self, name)
            keep(name, np.full(size, np.nan) if given is None else numeric(name, given))
        for name in TOKENS:
            tokens = getattr(self, name)
            whole = (tokens >= 0) & (tokens < EXACT) & (tokens == np.floor(tokens))
            require(name, tokens, np.isnan(tokens) | whole, "a whole number >= 0, below 2**53")
        latest, at = self.arrival, np.full(size, 0)
        for i, name in enumerate(STAMPS[1:], start=1):
            stamp = getattr(self, name)
            if np.any(bad := stamp < latest):
                before = STAMPS[at[bad][0]]
                ordered(**{before: latest, name: stamp})
            at = np.where(np.isnan(stamp), at, i)
            latest = np.where(np.isnan(stamp), latest, stamp)

        if self.succeeded is None:
            keep("succeeded", np.full(size, True))
        else:
            succeeded = np.asarray(self.succeeded)
            if succeeded.dtype != np.bool_:
                raise TypeError(f"succeeded must be bool: got {succeeded.dtype}")
            keep("succeeded", succeeded)
        ids = np.arange(size) if self.request_id is None else np.asarray(self.request_id)
        keep("request_id", ids)

    def __len__(self) -> int:
        return self.arrival.size

    def where(self, mask: NDArray[np.bool_]) -> Self:
        """The rows where `mask` (n,) is True."""
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise ValueError(
                f"mask must be bool of shape ({len(self)},): got {mask.dtype} {mask.shape}"
            )
        columns = {
            f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "shared_clock"
        }
        return type(self)(**columns, shared_clock=self.shared_clock)

    def column(self, name: str) -> FloatArray:
        """The stamp or token column `name`, refused if any row lacks it."""
        if name not in STAMPS + TOKENS:
            raise ValueError(f"name must be a column ({', '.join(STAMPS + TOKENS)}): got {name!r}")
        values: FloatArray = getattr(self, name)
        missing = np.isnan(values)
        if missing.any():
            raise ValueError(
                f"{name} is missing for {missing.sum()} of {len(self)} requests, "
                f"the first{where_first(missing)}"
            )
        return values

    def metrics(self) -> RequestMetrics:
        """TTFT, TPOT and E2E of the requests that succeeded, as arrays."""
        done = self.where(self.succeeded)
        return request_metrics(
            done.request_id,
            done.column("arrival"),
            done.column("first_token"),
            done.column("last_token"),
            done.column("output_tokens"),
        )

    def ttft_parts(self) -> TTFTParts:
        """Queue wait, prefill and first decode of the requests that succeeded, as arrays (s)."""
        done = self.where(self.succeeded)
        return ttft_parts(
            done.column("arrival"),
            done.column("scheduled"),
            done.column("prefill_end"),
            done.column("first_token"),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientLog:
    """What a client sees of each request: the record, and the stamps around it.

    Parameters
    ----------
    requests : RequestLog of n requests; `arrival` is the send.
    due : (n,) the load plan wants the request sent (s).
    done : (n,) last line of the stream, a usage frame or `[DONE]` included (s).
    closed : (n,) the connection is closed and the client has finished with the answer, or with
        the error of a failed request (s).
    first_content : (n,) first token outside the reasoning channel (s); the first token when left
        out. A request that never leaves the reasoning channel has NaN.
    text_tokens : (n,) tokens counted by encoding the text of the answer again.
    chunk_times : stamps of the chunks (s), all requests' in one flat array in request order.
    chunk_tokens : tokens in each chunk: 0 for one that carries none (role, usage), NaN if unknown.
    chunk_counts : (n,) how many chunks are whose.
    wall : the client's own clock, from before the first request to after the last (s).

    A column or value left out is missing (NaN), as in RequestLog.

    Raises
    ------
    ValueError : lengths differ, a stamp is infinite, the end of a stream precedes its last token,
        chunks are out of order or before the send, a count is negative or not whole.
    TypeError : `requests` is no RequestLog, or a column is not numeric.
    """

    requests: RequestLog
    due: FloatArray = _ABSENT
    done: FloatArray = _ABSENT
    closed: FloatArray = _ABSENT
    first_content: FloatArray = _ABSENT
    text_tokens: FloatArray = _ABSENT
    chunk_times: FloatArray | None = None
    chunk_tokens: FloatArray | None = None
    chunk_counts: NDArray[np.int64] | None = None
    wall: float | None = None

    def __post_init__(self) -> None:
        of_kind("requests", self.requests, RequestLog)
        size = len(self.requests)

        def keep(name: str, default: FloatArray) -> FloatArray:
            given = getattr(self, name)
            column = default if given is None else numeric(name, given)
            if column.shape != (size,):
                raise ValueError(
                    f"{name} must have one value a request: got shape {column.shape} "
                    f"for {size} requests"
                )
            object.__setattr__(self, name, column)
            return column

        absent = np.full(size, np.nan)
        first, last = self.requests.first_token, self.requests.last_token
        keep("due", absent)
        ordered(first_token=first, first_content=keep("first_content", first))
        done, closed = keep("done", absent), keep("closed", absent)
        ordered(last_token=last, done=done)
        ordered(arrival=self.requests.arrival, done=done)
        ordered(last_token=last, closed=closed)
        ordered(arrival=self.requests.arrival, closed=closed)
        ordered(done=done, closed=closed)
        text = keep("text_tokens", absent)
        whole = (text >= 0) & (text == np.floor(text))
        require("text_tokens", text, np.isnan(text) | whole, "a whole number >= 0")
        if self.wall is not None:
            object.__setattr__(self, "wall", one("wall", positive("wall", self.wall)))
        self._check_chunks(size)

    def _check_chunks(self, size: int) -> None:
        if self.chunk_times is None or self.chunk_counts is None:
            for name in ("chunk_times", "chunk_tokens", "chunk_counts"):
                if getattr(self, name) is not None:
                    raise ValueError("chunk_times and chunk_counts must be given together")
            return
        times = real("chunk_times", self.chunk_times)
        counts = count("chunk_counts", self.chunk_counts).astype(np.int64)
        if counts.shape != (size,) or times.shape != (int(counts.sum()),):
            raise ValueError(
                f"chunk_counts must say for {size} requests whose the {times.size} chunks are: "
                f"got shape {counts.shape} with sum {counts.sum()}"
            )
        owner = np.repeat(np.arange(size), counts)
        step = np.diff(times) >= 0
        require("chunk_times", times[1:], step | (np.diff(owner) > 0), ">= the chunk before it")
        sent = self.requests.arrival[owner]
        require("chunk_times", times, ~(times < sent), ">= the arrival of its request")
        tokens = np.full(times.size, np.nan)
        if self.chunk_tokens is not None:
            tokens = numeric("chunk_tokens", self.chunk_tokens)
            if tokens.shape != times.shape:
                raise ValueError(
                    f"chunk_tokens must have one value a chunk: got shape {tokens.shape} "
                    f"for {times.size} chunks"
                )
            whole = (tokens >= 0) & (tokens == np.floor(tokens))
            require("chunk_tokens", tokens, np.isnan(tokens) | whole, "a whole number >= 0")
        object.__setattr__(self, "chunk_times", times)
        object.__setattr__(self, "chunk_tokens", tokens)
        object.__setattr__(self, "chunk_counts", counts)

    @classmethod
    def from_stream(
        cls,
        arrival: ArrayLike,
        chunk_times: ArrayLike,
        chunk_tokens: ArrayLike,
        chunk_counts: ArrayLike,
        *,
        input_tokens: Any = None,
        output_tokens: Any = None,
        succeeded: Any = None,
        **stamps: Any,
    ) -> Self:
        """The log of streams seen chunk by chunk: first and last token come from the chunks.

        Parameters
        ----------
        arrival : (n,) the sends (s).
        chunk_times, chunk_tokens, chunk_counts : as in ClientLog. A chunk of 0 tokens is neither
            the first token nor the last.
        input_tokens : (n,) prompt lengths; missing when left out.
        output_tokens : (n,) the server's own count; the sum over the chunks when left out.
        succeeded : (n,) bool; all True when left out.
        stamps : the other columns of ClientLog, and `wall`.

        Raises
        ------
        ValueError, TypeError : as ClientLog and RequestLog.
        """
        sent = real("arrival", arrival)
        size = sent.size
        counts = count("chunk_counts", chunk_counts).astype(np.int64)
        times, tokens = real("chunk_times", chunk_times), count("chunk_tokens", chunk_tokens)
        if counts.shape != (size,) or not times.shape == tokens.shape == (int(counts.sum()),):
            raise ValueError(
                f"chunk_counts must say for {size} requests whose the chunks are: got shape "
                f"{counts.shape} with sum {counts.sum()} for {times.size} chunk_times and "
                f"{tokens.size} chunk_tokens"
            )
        owner = np.repeat(np.arange(size), counts)
        first, last = np.full(size, np.nan), np.full(size, np.nan)
        full = np.flatnonzero(tokens > 0)
        last[owner[full]] = times[full]  # of several assignments the last one stays
        first[owner[full[::-1]]] = times[full[::-1]]
        summed = np.bincount(owner, weights=tokens, minlength=size)
        good = np.full(size, True) if succeeded is None else np.asarray(succeeded)
        return cls(
            requests=RequestLog(
                arrival=sent,
                first_token=first,
                last_token=last,
                input_tokens=np.full(size, np.nan) if input_tokens is None else input_tokens,
                output_tokens=np.where(good | (summed > 0), summed, np.nan)
                if output_tokens is None
                else output_tokens,
                succeeded=good,
            ),
            chunk_times=times,
            chunk_tokens=tokens,
            chunk_counts=counts,
            **stamps,
        )

    def closed_at_once(self) -> Self:
        """This log, if nothing took time around the tokens: a stated assumption, not a fact.

        A missing `due` becomes the send, a missing `done` the last token, a missing `closed` the
        `done`, and a missing `wall` the span from the first send to the last of these.
        """
        log = self.requests
        done = np.where(np.isnan(self.done), log.last_token, self.done)
        closed = np.where(np.isnan(self.closed), done, self.closed)
        wall = self.wall
        if wall is None and log.shared_clock and not np.isnan(closed).all():
            wall = float(np.nanmax(closed) - np.nanmin(log.arrival))
        return replace(
            self,
            due=np.where(np.isnan(self.due), log.arrival, self.due),
            done=done,
            closed=closed,
            wall=wall,
        )
