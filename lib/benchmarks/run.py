"""What every reader of a result file returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import numbers
from lib._validate import FloatArray
from lib.record import RequestLog


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchmarkRun:
    """One run of a load tool; a figure that the file lacks is None.

    tool : "vllm", "aiperf", "guidellm" or "llmperf".
    requests : the record, or None where the file has summaries only. A failed request keeps its
        arrival and input tokens; its tokens and later stamps are missing (NaN).
    itl, itl_counts : gaps between the chunks of the answers (s), all requests' in one flat array
        in request order, and how many are whose. A chunk may carry several tokens.
    reported : the tool's own figure for each request, under the tool's own name, in seconds; NaN
        where it gives none.
    duration : the client's wall clock (s).
    request_rate : what the client was told to offer (1/s); infinite for "all at once".
    max_concurrency : the client's own limit on requests in flight.
    summary : the file's own figures, as they stand there.
    """

    tool: str
    requests: RequestLog | None
    itl: FloatArray | None = None
    itl_counts: NDArray[np.int64] | None = None
    reported: Mapping[str, FloatArray] = field(default_factory=dict)
    duration: float | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


def ragged(name: str, lists: list[Any]) -> tuple[FloatArray, NDArray[np.int64]]:
    """A list of lists of times as one flat array and the length of each list."""
    for i, value in enumerate(lists):
        if not isinstance(value, list):
            raise ValueError(f"{name}[{i}] must be a list: got {value!r:.80}")
    try:
        flat = numbers(name, list(chain.from_iterable(lists)))
    except ValueError:  # once more, list by list: the error must say which
        for i, value in enumerate(lists):
            numbers(f"{name}[{i}]", value)
        raise
    return flat, np.array([len(value) for value in lists], np.int64)
