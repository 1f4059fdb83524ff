"""The common record: one row a request, whatever the source."""

from dataclasses import dataclass, fields
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from lib._validate import EXACT, FloatArray, numeric, ordered, require, where_first
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
