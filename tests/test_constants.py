"""The table of constants: every value loads, has a source, and fits what its maker published."""

import json
from datetime import date

import pytest

from lib import constants
from lib._files import DATA
from lib.constants import (
    HARDWARE,
    MODELS,
    PRICED,
    load_hardware,
    load_model,
    load_prices,
    sources,
)

MODEL_ROWS = json.loads((DATA / "constants" / "models.json").read_text(encoding="utf-8"))
HARDWARE_ROWS = json.loads((DATA / "constants" / "hardware.json").read_text(encoding="utf-8"))
PRICE_ROWS = json.loads((DATA / "constants" / "prices.json").read_text(encoding="utf-8"))


def test_the_names_are_those_of_the_table():
    assert tuple(MODEL_ROWS) == MODELS
    assert tuple(HARDWARE_ROWS) == HARDWARE
    assert tuple(PRICE_ROWS) == PRICED
    assert set(PRICED) <= set(HARDWARE)


@pytest.mark.parametrize("name", MODELS)
def test_a_shape_accounts_for_every_byte_of_the_checkpoint(name):
    row, model = MODEL_ROWS[name], load_model(name)
    embeddings = 0 if row["tie_word_embeddings"] else model.vocab_size * model.hidden_size
    heads = model.num_attention_heads + 2 * model.num_key_value_heads
    biases = model.num_hidden_layers * heads * model.head_dim if row["qkv_bias"] else 0
    assert model.weight_bytes + 2 * (embeddings + biases) == row["checkpoint_bytes"]


@pytest.mark.parametrize("name", MODELS)
def test_models_load_as_they_stand(name):
    model = load_model(name)
    for key in MODEL_ROWS[name].keys() & set(model.__slots__):
        assert getattr(model, key) == MODEL_ROWS[name][key]
    assert (model.bytes_per_weight, model.bytes_per_kv) == (2, 2)
    assert "config.json" in sources(name)["head_dim"]


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_loads_as_it_stands(name):
    device, row = load_hardware(name), HARDWARE_ROWS[name]
    assert set(row) == set(device.__slots__) == set(sources(name))
    for key, cell in row.items():
        assert getattr(device, key) == cell["value"]
        assert sources(name)[key] == cell["source"]
        assert any(word in cell["source"] for word in ("datasheet", "data sheet", "whitepaper"))


@pytest.mark.parametrize("name", HARDWARE)
def test_figures_are_of_the_right_size(name):
    """A TFLOP for a FLOP, a GB for a byte, or a figure with sparsity would stand out."""
    device = load_hardware(name)
    assert 1e14 <= device.flops_per_s < 2e15
    assert 2e11 <= device.memory_bandwidth_bytes_per_s < 1e13
    assert 2e10 <= device.memory_bytes < 3e11
    assert 100 < device.flops_per_s / device.memory_bandwidth_bytes_per_s < 450


def test_known_models():
    assert load_model("Llama-3.1-8B").kv_bytes_per_token == 131_072
    assert load_model("Llama-3.1-70B").kv_bytes_per_token == 327_680
    assert load_model("Qwen2.5-7B").kv_bytes_per_token == 57_344


@pytest.mark.parametrize("name", PRICED)
def test_prices_load_as_they_stand_cheapest_first(name):
    prices, rows = load_prices(name), PRICE_ROWS[name]
    asked = [price.per_gpu_hour for price in prices]
    assert asked == sorted(row["per_gpu_hour"] for row in rows)
    for price in prices:
        assert {field: getattr(price, field) for field in price.__slots__} in rows
        assert 0.1 < price.per_gpu_hour < 15  # the price of eight GPUs, or of a month, stands out
        assert price.currency == "USD"
        assert date(2026, 1, 1) <= date.fromisoformat(price.read) <= date(2026, 12, 1)
        assert price.provider
        assert price.offer
        assert price.region
        assert "://" in price.source or "price list" in price.source


def test_machines_of_eight_are_divided():
    by_hand = {"A100 80GB SXM": 27.44705, "H100 SXM": 55.04, "H200 SXM": 63.296}
    for name, machine in by_hand.items():
        (aws,) = (price for price in load_prices(name) if price.provider == "AWS")
        assert 8 * aws.per_gpu_hour == pytest.approx(machine, abs=1e-5)
        assert f"{machine} an hour for 8 GPUs" in aws.offer


@pytest.mark.parametrize("load", [load_model, load_hardware, load_prices, sources])
def test_unknown_names_are_refused(load):
    with pytest.raises(ValueError, match=r"name must be one of .*: got 'TPU'"):
        load("TPU")


def test_a_missing_or_wrong_value_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "constants"
    folder.mkdir()
    monkeypatch.setattr(constants, "DATA", tmp_path)
    row = dict(MODEL_ROWS["Llama-3.1-8B"])
    del row["head_dim"]
    (folder / "models.json").write_text(json.dumps({"Llama-3.1-8B": row}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"models\.json.*: key 'head_dim' is missing"):
        load_model("Llama-3.1-8B")
    with pytest.raises(ValueError, match=r"models\.json.*: key 'Qwen2\.5-7B' is missing"):
        load_model("Qwen2.5-7B")
    device = {**HARDWARE_ROWS["L4"], "memory_bytes": {"value": "24 GB", "source": "-"}}
    (folder / "hardware.json").write_text(json.dumps({"L4": device}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"hardware\.json.*value must be a number: got '24 GB'"):
        load_hardware("L4")
    offer = {**PRICE_ROWS["RTX 4090"][0], "per_gpu_hour": -1}
    (folder / "prices.json").write_text(json.dumps({"RTX 4090": [offer]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"prices\.json.*per_gpu_hour must be >= 0: got -1"):
        load_prices("RTX 4090")
    rows = PRICE_ROWS["H100 SXM"][::-1]
    (folder / "prices.json").write_text(json.dumps({"H100 SXM": rows}), encoding="utf-8")
    asked = [price.per_gpu_hour for price in load_prices("H100 SXM")]
    assert asked == [row["per_gpu_hour"] for row in PRICE_ROWS["H100 SXM"]]
    del offer["read"]
    (folder / "prices.json").write_text(json.dumps({"RTX 4090": [offer | {"per_gpu_hour": 1}]}))
    with pytest.raises(ValueError, match=r"prices\.json.*key 'read' is missing"):
        load_prices("RTX 4090")
