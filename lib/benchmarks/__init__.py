"""Result files of load tools as the common record, with the tool's own figures beside it."""

from lib._files import DATA
from lib._validate import choice
from lib.benchmarks.aiperf import read_aiperf
from lib.benchmarks.guidellm import read_guidellm
from lib.benchmarks.llmperf import read_llmperf
from lib.benchmarks.run import BenchmarkRun
from lib.benchmarks.vllm import read_vllm

__all__ = [
    "SHIPPED",
    "BenchmarkRun",
    "load",
    "read_aiperf",
    "read_guidellm",
    "read_llmperf",
    "read_vllm",
]

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
    match name.split("/")[0]:
        case "vllm":
            return read_vllm(path)[0]
        case "aiperf":
            return read_aiperf(path)
        case "guidellm":
            return read_guidellm(path)[0]
        case _:
            return read_llmperf(path)
