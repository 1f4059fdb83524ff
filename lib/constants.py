"""Shapes of models, figures and prices of hardware, each with its source, from one table."""

from dataclasses import dataclass, fields

from lib._files import DATA, Entry, entry, read_one
from lib._validate import choice
from lib.step_time import Hardware, Model

MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Mistral-7B-v0.1", "Qwen2.5-7B")
HARDWARE = (
    "A100 80GB SXM",
    "H100 SXM",
    "H200 SXM",
    "L4",
    "L40S",
    "RTX 4090",
    "RTX PRO 6000 Blackwell",
    "MI300X",
)
PRICED = ("A100 80GB SXM", "H100 SXM", "H200 SXM", "RTX 4090", "RTX PRO 6000 Blackwell")
"""The devices with a price in the table."""

_SHAPE = tuple(f.name for f in fields(Model) if not f.name.startswith("bytes"))


def load_model(name: str) -> Model:
    """A model by its name in `MODELS`, with weights and KV cache in bf16.

    Raises
    ------
    ValueError : no such name.
    """
    row = _row("models.json", choice("name", name, MODELS))
    return Model(**{key: row.count(key) for key in _SHAPE})


def load_hardware(name: str) -> Hardware:
    """A device by its name in `HARDWARE`: dense bf16 peak, peak bandwidth, memory.

    Raises
    ------
    ValueError : no such name.
    """
    row = _row("hardware.json", choice("name", name, HARDWARE))
    return Hardware(**{f.name: row.entry(f.name).number("value") for f in fields(Hardware)})


@dataclass(frozen=True, slots=True)
class Price:
    """What a provider asks for one GPU for one hour, and where and when that was read.

    per_gpu_hour : in `currency`; for a machine of several GPUs, its price over their number.
    provider, offer, region : who asks it, for what, and where. read : day of reading (ISO 8601).
    source : the page or list.
    """

    per_gpu_hour: float
    currency: str
    provider: str
    offer: str
    region: str
    read: str
    source: str


def load_prices(name: str) -> tuple[Price, ...]:
    """Prices on demand of a device in `PRICED`, the cheapest first.

    Examples that show a range: prices change by the week. Bring your own.

    Raises
    ------
    ValueError : no such name.
    """
    table = entry(*read_one(DATA / "constants" / "prices.json"))
    rows = table.entries(choice("name", name, PRICED))
    texts = tuple(f.name for f in fields(Price) if f.name != "per_gpu_hour")
    prices = [Price(row.number("per_gpu_hour"), *map(row.text, texts)) for row in rows]
    return tuple(sorted(prices, key=lambda price: price.per_gpu_hour))


def sources(name: str) -> dict[str, str]:
    """Where the figures of a model or device come from: figure to source.

    Raises
    ------
    ValueError : no such name.
    """
    choice("name", name, MODELS + HARDWARE)
    if name in MODELS:
        return dict.fromkeys(_SHAPE, _row("models.json", name).text("source"))
    row = _row("hardware.json", name)
    return {f.name: row.entry(f.name).text("source") for f in fields(Hardware)}


def _row(table: str, name: str) -> Entry:
    return entry(*read_one(DATA / "constants" / table)).entry(name)
