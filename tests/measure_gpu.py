"""Measure decode on one GPU: its memory, its arithmetic, decode attention and a whole decode step.

A script, not a test. It needs PyTorch with CUDA, which the course itself does not use, and writes
two files that chapter `step_time` can read: every timing, and what it was measured on.

    python tests/measure_gpu.py OUT                      a data-centre GPU, some minutes
    python tests/measure_gpu.py OUT --device cpu --tiny  a dry run anywhere, seconds

OUT/decode_steps.csv has one row a timing: kind (copy, read, matmul, attention, step), batch,
context (tokens a sequence, the new one included), layers, the bytes of weights (of copy, read and
matmul: all they move) and of KV that the work needs, its FLOPs, the pass and round, and seconds.
OUT/decode_meta.json has the shape of the model, device, versions, date, and what is left out.

Each setting runs twice, in one order and then in the reverse, so that a drift of clocks shows. On
a GPU the work is captured once in a CUDA graph and replayed between two events: launching is not
part of the time. Attention runs over the caches of many layers in turn, because one layer's cache
may stay in the L2 cache from one replay to the next.
"""

import argparse
import csv
import json
import platform
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

MODELS = Path(__file__).resolve().parent.parent / "lib" / "data" / "constants" / "models.json"
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 128,
}
LEFT_OUT = "rotary embedding, sampling other than argmax, paged cache, scheduling, sharing of cards"
COLUMNS = (
    "kind", "batch", "context", "layers", "weight_bytes", "kv_bytes", "flops", "pass", "round",
    "seconds",
)  # fmt: skip


class Work(NamedTuple):
    """Something to time, and what it needs at least."""

    kind: str
    batch: int
    context: int
    layers: int
    weight_bytes: int
    kv_bytes: int
    flops: int
    prepare: Callable[[], Callable[[], Any]]


class Decoder:
    """A Llama with random weights that decodes one token a sequence; see LEFT_OUT."""

    def __init__(self, torch: Any, shape: dict[str, int], device: str) -> None:
        self.torch, self.shape, self.device = torch, shape, device
        h, f, d = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
        q, kv = shape["num_attention_heads"] * d, shape["num_key_value_heads"] * d

        def weight(rows: int, columns: int) -> Any:
            values = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
            return values.normal_(std=rows**-0.5)

        def norm() -> Any:
            return torch.ones(h, dtype=torch.bfloat16, device=device)

        self.layers = [
            {
                "qkv": weight(h, q + 2 * kv),
                "o": weight(q, h),
                "gate_up": weight(h, 2 * f),
                "down": weight(f, h),
                "norms": (norm(), norm()),
            }
            for _ in range(shape["num_hidden_layers"])
        ]
        self.norm, self.head = norm(), weight(h, shape["vocab_size"])
        self.split = [q, kv, kv]

    @property
    def weight_bytes(self) -> int:
        tensors = [self.norm, self.head]
        for layer in self.layers:
            tensors += [layer["qkv"], layer["o"], layer["gate_up"], layer["down"], *layer["norms"]]
        return sum(t.numel() * t.element_size() for t in tensors)

    def step(self, x: Any, cache: Any) -> Any:
        """Next tokens of the sequences in `cache` (layers, 2, batch, KV heads, context, d)."""
        functional = self.torch.nn.functional
        size = (self.shape["hidden_size"],)
        for layer, kv in zip(self.layers, cache, strict=True):
            first, second = layer["norms"]
            q, k, v = (functional.rms_norm(x, size, first) @ layer["qkv"]).split(self.split, dim=-1)
            kv[0, :, :, -1] = k.view(len(x), *kv.shape[2:3], -1)
            kv[1, :, :, -1] = v.view(len(x), *kv.shape[2:3], -1)
            x = x + attend(self.torch, q, kv).reshape(len(x), -1) @ layer["o"]
            gate, up = (functional.rms_norm(x, size, second) @ layer["gate_up"]).chunk(2, dim=-1)
            x = x + (functional.silu(gate) * up) @ layer["down"]
        return (functional.rms_norm(x, size, self.norm) @ self.head).argmax(dim=-1)


def attend(torch: Any, q: Any, kv: Any) -> Any:
    """Decode attention: the query heads of a group are rows that share one KV head."""
    _, batch, heads, _, d = kv.shape
    rows = q.reshape(batch, heads, -1, d)
    return torch.nn.functional.scaled_dot_product_attention(rows, kv[0], kv[1])


def grid(torch: Any, decoder: Decoder, device: str, tiny: bool) -> Iterator[Work]:
    """All that is measured."""
    shape = decoder.shape
    d, kv_heads = shape["head_dim"], shape["num_key_value_heads"]
    layers, heads = shape["num_hidden_layers"], shape["num_attention_heads"]
    batches = (1, 2) if tiny else (1, 4, 16, 64, 128, 256, 512)
    contexts = (16, 32) if tiny else (128, 512, 2048, 8192, 32_768)
    size = 2**16 if tiny else 2**32
    room = size if tiny else int(0.8 * torch.cuda.mem_get_info()[0])

    def fresh(*dimensions: int) -> Any:
        values = torch.empty(*dimensions, dtype=torch.bfloat16, device=device)
        return values.normal_()  # equal numbers might be stored as one

    def copy() -> Callable[[], Any]:
        source, target = fresh(size // 2), fresh(size // 2)
        return lambda: target.copy_(source)

    def read() -> Callable[[], Any]:
        source = fresh(size // 2)
        return lambda: source.max()

    yield Work("copy", 0, 0, 0, 2 * size, 0, 0, copy)
    yield Work("read", 0, 0, 0, size, 0, 0, read)
    n = 64 if tiny else 8192

    def matmul() -> Callable[[], Any]:
        a, b = fresh(n, n), fresh(n, n)
        return lambda: a @ b

    yield Work("matmul", 0, 0, 0, 3 * 2 * n * n, 0, 2 * n**3, matmul)

    per_token = 2 * kv_heads * d * 2  # one layer
    matrices = decoder.weight_bytes - 2 * shape["hidden_size"] * (2 * layers + 1)
    for batch in batches:
        for context in contexts:
            one = batch * context * per_token
            if layers * one > room:
                continue
            pairs = 4 * heads * d * batch * context

            def attention(batch: int = batch, context: int = context) -> Callable[[], Any]:
                cache = fresh(layers, 2, batch, kv_heads, context, d)
                q = fresh(batch, heads * d)
                return lambda: [attend(torch, q, kv) for kv in cache]

            def step(batch: int = batch, context: int = context) -> Callable[[], Any]:
                cache = fresh(layers, 2, batch, kv_heads, context, d)
                x = fresh(batch, shape["hidden_size"])
                return lambda: decoder.step(x, cache)

            yield Work(
                "attention", batch, context, layers, 0, layers * one, layers * pairs, attention
            )
            yield Work(
                "step", batch, context, layers, decoder.weight_bytes, layers * one,
                batch * matrices + layers * pairs, step,
            )  # fmt: skip


def timings(torch: Any, device: str, work: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of `work`, `rounds` times, after a few that do not count."""
    if device != "cuda":
        work()
        found = []
        for _ in range(rounds):
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
        return found
    side = torch.cuda.Stream()  # a graph is captured after a warm-up on a side stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()  # its memory belongs to the graph
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    del kept
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def check_attention(torch: Any, device: str) -> None:
    """The grouped attention is that of each query head with its KV head, in float64."""
    q = torch.randn(3, 8 * 16, dtype=torch.bfloat16, device=device)
    kv = torch.randn(2, 3, 2, 40, 16, dtype=torch.bfloat16, device=device)
    ours = attend(torch, q, kv).reshape(3, 8, 16).double()
    keys, values = kv.double().repeat_interleave(4, dim=2)
    scores = torch.einsum("bhd,bhtd->bht", q.double().view(3, 8, 16), keys) / 16**0.5
    exact = torch.einsum("bht,bhtd->bhd", scores.softmax(dim=-1), values)
    error = (ours - exact).abs().max().item()
    if not error < 0.05:  # bf16 keeps 8 bits, of values up to 4
        raise SystemExit(f"decode attention is off by {error:g}: nothing is measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder for decode_steps.csv and decode_meta.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="Llama-3.1-8B", help="a name in models.json")
    parser.add_argument("--rounds", type=int, default=15, help="timings of a setting in each pass")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: does the script run?")
    options = parser.parse_args()

    import torch  # only here: the course does not depend on it

    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: --device cpu --tiny makes a dry run")
    if device == "cpu" and not options.tiny:
        raise SystemExit("--device cpu needs --tiny: the full shapes are for a GPU")
    torch.manual_seed(0)
    published = json.loads(MODELS.read_text(encoding="utf-8"))
    shape = TINY if options.tiny else {key: published[options.model][key] for key in TINY}
    options.out.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        check_attention(torch, device)
        decoder = Decoder(torch, shape, device)
        works = list(grid(torch, decoder, device, options.tiny))
        properties = torch.cuda.get_device_properties(0) if device == "cuda" else None
        meta = {
            "model": "tiny" if options.tiny else options.model,
            "shape": shape,
            "dtype": "bfloat16",
            "weight_bytes": decoder.weight_bytes,
            "left_out": LEFT_OUT,
            "device": properties.name if properties else platform.processor() or "cpu",
            "device_memory_bytes": properties.total_memory if properties else None,
            "l2_cache_bytes": getattr(properties, "L2_cache_size", None),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": options.rounds,
        }
        (options.out / "decode_meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        with (options.out / "decode_steps.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for order, chosen in enumerate((works, works[::-1])):
                for work in chosen:
                    run = work.prepare()
                    found = timings(torch, device, run, options.rounds)
                    for i, seconds in enumerate(found):
                        writer.writerow([*work[:-1], order, i, f"{seconds:.9f}"])
                    file.flush()  # a run that is cut off keeps what it has
                    best = min(found)
                    rate = (work.weight_bytes + work.kv_bytes) / best / 1e9
                    print(
                        f"{work.kind:9} batch {work.batch:3} context {work.context:6,} "
                        f"{1e3 * best:9.3f} ms {rate:7.0f} GB/s {work.flops / best / 1e12:6.1f} "
                        "TFLOP/s",
                        flush=True,
                    )
                    del run
                    if device == "cuda":
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
