"""What every reader of a result file returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import fold_lists
from lib._validate import FloatArray
from lib.record import ClientLog, RequestLog


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchmarkRun:
    """One run of a load tool; what the file lacks is None, or absent from its mapping.

    tool : "vllm", "sglang", "aiperf" ... ; "csv" for a plain table.
    requests : the record, or None where the file has summaries only. A failed request keeps its
        arrival and input tokens; its tokens and later stamps are missing (NaN).
    itl, itl_counts : gaps between the chunks of the answers (s), all requests' in one flat array
        in request order, and how many are whose. A chunk may carry several tokens.
    chunk_tokens : tokens of each chunk, flat in request order; an answer has one chunk more than
        it has gaps.
    due : (n,) when the request should have left the client (s, the record's clock).
    first_content : (n,) first token that is no reasoning (s, the record's clock).
    closed : (n,) where the tool's own end-to-end latency ends, if after the last token (s, same).
    text_tokens : (n,) the client's count from the answer's text, where the tool's own count,
        `requests.output_tokens`, is another.
    reported : the tool's own figure for each request, under the tool's own name, in seconds; NaN
        where it gives none.
    duration : the client's wall clock (s).
    request_rate : what the client was told to offer (1/s); infinite for "all at once".
    max_concurrency : the client's own limit on requests in flight.
    stated : the file's own figures in seconds and 1/s, as "metric.statistic" under the tool's own
        word for the metric ("ttft.mean", "itl.p99"), and scalars ("completed", "duration",
        "output_throughput").
    limits : the SLO that the file names (s): ttft, tpot, itl, e2e.
    notes : what the reader did or could not do, in words.
    summary : the file's own figures, as they stand there.
    source, format : the file's name, and its kind, a key of `FORMATS`.
    """

    tool: str
    requests: RequestLog | None
    itl: FloatArray | None = None
    itl_counts: NDArray[np.int64] | None = None
    chunk_tokens: FloatArray | None = None
    due: FloatArray | None = None
    first_content: FloatArray | None = None
    closed: FloatArray | None = None
    text_tokens: FloatArray | None = None
    reported: Mapping[str, FloatArray] = field(default_factory=dict)
    duration: float | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    stated: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    format: str = ""

    def client_log(self) -> ClientLog:
        """The run as its client saw it, for `dialects.translate`.

        The end of the tool's own latency is the last line of the stream for SGLang and GuideLLM,
        the closed connection for the others. A chunk's tokens are known where the file counts
        them, or where an answer has as many chunks as tokens.

        Raises
        ------
        ValueError : the file has no rows, only summaries.
        """
        log = self.requests
        if log is None:
            raise ValueError(f"{self.source or self.tool}: the file has no rows, only summaries")
        ends = "done" if self.tool in ("sglang", "guidellm") else "closed"
        columns: dict[str, Any] = {
            "due": self.due,
            "first_content": self.first_content,
            "text_tokens": self.text_tokens,
            ends: self.closed,
        }
        if self.itl is not None and self.itl_counts is not None:
            seen = ~np.isnan(log.first_token)
            counts = np.where(seen, self.itl_counts + 1, 0)
            gaps = self.itl[np.repeat(seen, self.itl_counts)]
            tokens = self.chunk_tokens
            if tokens is None:
                alone = np.where(counts == log.output_tokens, 1.0, np.nan)
                tokens = np.repeat(alone, counts)
            columns |= {
                "chunk_times": _chunk_times(log.first_token[seen], gaps, counts[seen]),
                "chunk_tokens": tokens,
                "chunk_counts": counts,
            }
        return ClientLog(requests=log, wall=self.duration, **columns)


def ragged(name: str, lists: list[Any]) -> tuple[FloatArray, NDArray[np.int64]]:
    """A list of lists of times as one flat array and the length of each list."""
    return fold_lists(name, [lists])


def _chunk_times(first: FloatArray, gaps: FloatArray, counts: NDArray[np.int64]) -> FloatArray:
    """Stamps of all chunks, flat in request order, from each first one and the gaps behind it."""
    steps = np.zeros(int(counts.sum()))
    starts = np.cumsum(counts) - counts
    later = np.ones(steps.size, bool)
    later[starts] = False
    steps[later] = gaps
    sums: FloatArray = np.cumsum(steps)
    times: FloatArray = sums - np.repeat(sums[starts], counts) + np.repeat(first, counts)
    return times
