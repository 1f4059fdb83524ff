"""What the result files of vLLM and SGLang share: lists by request, statistics in ms."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib._files import Entry, Fold, drop, fold_lists, fold_numbers, fold_signed
from lib._validate import FloatArray, count, real, require

BoolArray = NDArray[np.bool_]

_STATISTIC = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d+)?)_(\w+)_ms")


def fold_errors(where: str, pieces: Iterable[list[Any]]) -> BoolArray:
    """A list of error texts: whether each is empty."""
    fine, size = [np.empty(0, bool)], 0
    for piece in pieces:
        if set(map(type, piece)) - {str}:
            at, value = next((i, v) for i, v in enumerate(piece, size) if type(v) is not str)
            raise ValueError(f"{where}[{at}] must be a text: got {value!r:.80}")
        fine.append(np.array([text == "" for text in piece], bool))
        size += len(piece)
    return np.concatenate(fine)


FOLDS: Mapping[str, Fold] = {
    **dict.fromkeys(("ttfts", "input_lens", "output_lens"), fold_numbers),
    **dict.fromkeys(("latencies", "start_times"), fold_numbers),
    "itls": fold_lists,
    "errors": fold_errors,
    "queue_times": fold_signed,
    **dict.fromkeys(("generated_texts", "server_queue_times", "server_ttfts"), drop),
    **dict.fromkeys(("cached_tokens", "text_chunks"), drop),
}
"""The long lists of both formats; the texts are let go."""


class Rows:
    """The lists of one run, one value a request."""

    def __init__(self, run: Entry) -> None:
        self._run = run
        self.ttft: FloatArray = self._list("ttfts")
        self.size = self.ttft.size
        if self.size == 0:
            raise ValueError(f"{run.where}: ttfts must hold at least one request: got []")
        self.input_tokens = self._tokens("input_lens")
        self.output_tokens = self._tokens("output_lens")
        self.gaps, self.gap_counts = self._lists("itls")
        self.without_error: BoolArray = self._each("errors")

    def times(self, key: str) -> FloatArray:
        """The list under `key`, in seconds."""
        values: FloatArray = self._each(key)
        return values

    def last_chunk(self) -> FloatArray:
        """ttft + sum(itl) of each request (s)."""
        owner = np.repeat(np.arange(self.size), self.gap_counts)
        return self.ttft + np.bincount(owner, weights=self.gaps, minlength=self.size)

    def gaps_of(self, done: BoolArray) -> dict[str, Any]:
        """The gaps of the requests in `done`, as the fields of a BenchmarkRun."""
        return {
            "itl": self.gaps[np.repeat(done, self.gap_counts)],
            "itl_counts": np.where(done, self.gap_counts, 0),
        }

    def _list(self, key: str) -> Any:
        """What a fold made of the list under `key`."""
        value = self._run.get(key)
        if not isinstance(value, np.ndarray | tuple):
            raise ValueError(f"{self._run.where}: {key} must be a list: got {value!r:.80}")
        return value

    def _each(self, key: str) -> Any:
        return self._fit(key, self._list(key))

    def _lists(self, key: str) -> tuple[FloatArray, NDArray[np.int64]]:
        flat, lengths = self._list(key)
        return flat, self._fit(key, lengths)

    def _fit(self, key: str, values: Any) -> Any:
        if values.size != self.size:
            raise ValueError(
                f"{self._run.where}: {key} must have one value a request: got {values.size} for "
                f"{self.size} ttfts"
            )
        return values

    def _tokens(self, key: str) -> FloatArray:
        return count(f"{self._run.where}: {key}", self._each(key))


def summary(run: Entry) -> dict[str, Any]:
    """What the file holds beside lists; none but the settings may be infinite."""
    plain = (dict, str, int, float, bool, type(None))
    values = {k: v for k, v in run.values.items() if isinstance(v, plain) and k not in FOLDS}
    for key, value in values.items():
        # Both settings may be unlimited; an unlimited burstiness means equal gaps.
        unlimited = key in ("request_rate", "burstiness")
        if isinstance(value, float) and np.isinf(value) and not unlimited:
            raise ValueError(f"{run.where}: {key} must be finite: got {value}")
    return values


def duration(run: Entry) -> float:
    """The client's wall clock (s)."""
    value = run.number("duration")
    if value == 0:
        raise ValueError(f"{run.where}: duration must be > 0: got 0")
    return value


def request_rate(run: Entry) -> float:
    """`request_rate`: a number, or unlimited, as the text "inf" or as a bare Infinity."""
    value = run.get("request_rate")
    if value in ("inf", float("inf")):
        return float("inf")
    rate = run.number("request_rate")
    if rate == 0:
        raise ValueError(f"{run.where}: request_rate must be > 0: got 0")
    return rate


def max_concurrency(run: Entry) -> int | None:
    """The client's limit; null, 0 and a missing key set none."""
    if run.values.get("max_concurrency") is None:
        return None
    return run.count("max_concurrency") or None


def stated(
    run: Entry, metrics: Mapping[str, str], scalars: Mapping[str, str], notes: list[str]
) -> dict[str, float]:
    """The figures that the file states, in seconds and 1/s, under our names.

    metrics, scalars : the file's word for each, and ours. A figure that is null is left out, and so
    are the statistics of a metric whose mean is exactly 0: both tools write it when no request has
    a value.
    """
    figures = {}
    empty = []
    for key, value in run.values.items():
        found = _STATISTIC.fullmatch(key)
        if found and found[2] in metrics and value is not None:
            seconds = float(real(f"{run.where}: {key}", _number(run, key))) / 1000
            if run.values.get(f"mean_{found[2]}_ms") != 0:
                figures[f"{metrics[found[2]]}.{found[1]}"] = seconds
            elif found[1] == "mean":
                empty.append(found[2])
        elif key in scalars and value is not None:
            figures[scalars[key]] = run.number(key)
    if empty:
        notes.append(f"the mean of {', '.join(empty)} is 0, the default for no value: left out")
    return figures


def _number(run: Entry, key: str) -> float:
    value = run.get(key)
    if type(value) not in (int, float):
        raise ValueError(f"{run.where}: {key} must be a number: got {value!r:.80}")
    return float(value)


def agree(run: Entry, key: str, counted: int, what: str) -> None:
    """Refuse a total that the rows contradict."""
    if run.count(key) != counted:
        raise ValueError(
            f"{run.where}: {key} must agree with the rows: got {run.get(key)} for {counted} {what}"
        )


def cover(run: Entry, name: str, times: FloatArray, limit: float) -> None:
    """Refuse times longer than the run, such as milliseconds taken for seconds."""
    # Durations are written in full, times to 0.1 us or 1 ns.
    inside = np.isnan(times) | (times <= limit + 1e-6)
    rule = f"<= the run's duration, {limit:.9g} s (are they in milliseconds?)"
    require(f"{run.where}: {name}", times, inside, rule)
