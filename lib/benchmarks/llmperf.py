"""llmperf."""

from pathlib import Path
from typing import Any

import numpy as np

from lib._files import column, counts, entries, located, read_one
from lib._validate import FloatArray
from lib.benchmarks.run import BenchmarkRun
from lib.record import RequestLog


def read_llmperf(path: str | Path) -> BenchmarkRun:
    """llmperf's `individual_responses.json`.

    Parameters
    ----------
    path : one JSON array, one object a request.

    Returns
    -------
    BenchmarkRun. The file holds durations and no stamp: each row has its own origin
    (`shared_clock=False`, arrival 0), and the last token is where llmperf's end-to-end latency
    ends, after the stream has closed. `reported` holds ttft, end_to_end_latency and
    inter_token_latency, which counts the first token's wait among the gaps.

    Raises
    ------
    ValueError : a malformed file, with file and key; no request.

    Source: llmperf, `ray_clients/openai_chat_completions_client.py` (commit f1d6bed).
    """
    where, value = read_one(path)
    rows = entries(where, value)
    if not rows:
        raise ValueError(f"{where}: no request")
    done = np.array([row.get("error_code") is None for row in rows], bool)

    def of_done(read: Any, key: str) -> FloatArray:
        return np.where(done, read(rows, key), np.nan)

    reported = {
        key: of_done(column, f"{key}_s")
        for key in ("ttft", "end_to_end_latency", "inter_token_latency")
    }
    with located(where):
        log = RequestLog(
            arrival=np.zeros(len(rows)),
            first_token=reported["ttft"],
            last_token=reported["end_to_end_latency"],
            input_tokens=counts(rows, "number_input_tokens"),
            output_tokens=of_done(counts, "number_output_tokens"),
            succeeded=done,
            shared_clock=False,
        )
    return BenchmarkRun(tool="llmperf", requests=log, reported=reported)
