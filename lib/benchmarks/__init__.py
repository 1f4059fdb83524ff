"""Result files of load tools as the common record, with the tool's own figures beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lib._files import DATA
from lib._validate import choice
from lib.benchmarks.aiperf import (
    is_aiperf,
    is_aiperf_csv,
    is_aiperf_summary,
    read_aiperf,
    read_aiperf_csv,
    read_aiperf_summary,
)
from lib.benchmarks.genai_perf import (
    is_genai_perf,
    is_genai_perf_summary,
    read_genai_perf,
    read_genai_perf_summary,
)
from lib.benchmarks.guidellm import is_guidellm, read_guidellm
from lib.benchmarks.head import Head, read_head
from lib.benchmarks.inference_perf import (
    is_inference_perf,
    is_inference_perf_stage,
    read_inference_perf,
    read_inference_perf_stage,
)
from lib.benchmarks.llmperf import (
    is_llmperf,
    is_llmperf_summary,
    read_llmperf,
    read_llmperf_summary,
)
from lib.benchmarks.run import BenchmarkRun
from lib.benchmarks.sglang import is_sglang, read_sglang
from lib.benchmarks.table import COLUMNS, UNITS, is_csv, read_csv
from lib.benchmarks.vllm import is_vllm, read_vllm

__all__ = [
    "COLUMNS",
    "FORMATS",
    "SHIPPED",
    "UNITS",
    "BenchmarkRun",
    "load",
    "read",
    "read_aiperf",
    "read_aiperf_csv",
    "read_aiperf_summary",
    "read_csv",
    "read_genai_perf",
    "read_genai_perf_summary",
    "read_guidellm",
    "read_inference_perf",
    "read_inference_perf_stage",
    "read_llmperf",
    "read_llmperf_summary",
    "read_sglang",
    "read_vllm",
    "recognise",
]


@dataclass(frozen=True)
class _Format:
    """A format: what it is, how its file begins, and what reads it."""

    says: str
    fits: Callable[[Head], bool]
    reader: Callable[[str | Path], BenchmarkRun | tuple[BenchmarkRun, ...]]


_FORMATS = {
    "vllm": _Format("vLLM `bench serve`, --save-result or --append-result", is_vllm, read_vllm),
    "sglang": _Format("SGLang `bench_serving`, JSON lines", is_sglang, read_sglang),
    "aiperf": _Format("AIPerf `profile_export.jsonl`", is_aiperf, read_aiperf),
    "aiperf-summary": _Format(
        "AIPerf `profile_export_aiperf.json`, summaries only",
        is_aiperf_summary,
        read_aiperf_summary,
    ),
    "aiperf-csv": _Format(
        "AIPerf `profile_export_aiperf.csv`, summaries only", is_aiperf_csv, read_aiperf_csv
    ),
    "guidellm": _Format("GuideLLM `benchmarks.json`", is_guidellm, read_guidellm),
    "inference-perf": _Format(
        "inference-perf `per_request_lifecycle_metrics.json`",
        is_inference_perf,
        read_inference_perf,
    ),
    "inference-perf-stage": _Format(
        "inference-perf `stage_N_` or `summary_lifecycle_metrics.json`, summaries only",
        is_inference_perf_stage,
        read_inference_perf_stage,
    ),
    "llmperf": _Format("llmperf `individual_responses.json`", is_llmperf, read_llmperf),
    "llmperf-summary": _Format(
        "llmperf `summary.json`, summaries only", is_llmperf_summary, read_llmperf_summary
    ),
    "genai-perf": _Format(
        "Perf Analyzer `profile_export.json`, as GenAI-Perf has it written",
        is_genai_perf,
        read_genai_perf,
    ),
    "genai-perf-summary": _Format(
        "GenAI-Perf `profile_export_genai_perf.json`, summaries only",
        is_genai_perf_summary,
        read_genai_perf_summary,
    ),
    "csv": _Format("a CSV table, one row a request", is_csv, read_csv),
}
FORMATS: Mapping[str, str] = MappingProxyType({name: f.says for name, f in _FORMATS.items()})
"""The formats that are read, and what each is."""

_VLLM_RATES = (1, 2, 3, 4, 5, 6, 8)
SHIPPED = {
    **{f"vllm/{rate}rps": f"vllm_bench/vllm-0.32-poisson-{rate}rps.json" for rate in _VLLM_RATES},
    "aiperf/rate3": "aiperf/profile_export.jsonl",
    "guidellm/2rps": "guidellm/guidellm-0.8-poisson-2rps.json",
    "llmperf/anyscale_7b": "llmperf/anyscale_7b.individual.json",
    "llmperf/groq_70b": "llmperf/groq_70b.individual.json",
}


def load(name: str) -> BenchmarkRun:
    """A run that comes with the course, by its name in `SHIPPED`.

    Raises
    ------
    ValueError : no such name.
    """
    path = DATA / SHIPPED[choice("name", name, tuple(SHIPPED))]
    return read(path, format=name.split("/")[0])[0]


def recognise(path: str | Path) -> str:
    """The format of a file, a key of `FORMATS`, by its content; its name does not matter.

    Parameters
    ----------
    path : the file; its first megabyte is looked at.

    Raises
    ------
    ValueError : no text file, an empty one, or one that no format fits, or more than one.
    OSError : the file cannot be read.
    """
    head = read_head(path)
    fitting = [name for name, form in _FORMATS.items() if form.fits(head)]
    if not fitting:
        raise ValueError(
            f"{head.name}: no known result file: {head}. Known formats: {', '.join(FORMATS)}"
        )
    if len(fitting) > 1:
        raise ValueError(f"{head.name}: it fits {' and '.join(fitting)}: name the format: {head}")
    return fitting[0]


def read(
    path: str | Path,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str = "s",
) -> tuple[BenchmarkRun, ...]:
    """The runs in a result file of any known format.

    Parameters
    ----------
    path : the file.
    format : a key of `FORMATS`; recognised from the content when left out.
    columns, unit : the names in the header and the unit of time of a CSV table (see `read_csv`);
        with `columns` the file is taken for one.

    Returns
    -------
    The runs, in the file's order; `run.format` says which format it is.

    Raises
    ------
    ValueError : no such format; no format fits; a malformed file, with file, line or key.
    OSError : the file cannot be read.
    """
    if format is not None:
        choice("format", format, tuple(FORMATS))
    else:
        format = recognise(path) if columns is None else "csv"
    if format == "csv":
        return (read_csv(path, columns, unit),)
    if columns is not None or unit != "s":
        raise ValueError(f"columns and unit are for CSV tables: got the format {format!r}")
    runs = _FORMATS[format].reader(path)
    return runs if isinstance(runs, tuple) else (runs,)
