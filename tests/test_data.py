"""The data that come with the course are what their provenance says, byte for byte."""

import hashlib
import shutil
from pathlib import Path

import pytest

from lib import benchmarks, engine_runs, traces

DATA = Path(traces.__file__).parent / "data"
FOLDERS = sorted(path for path in DATA.iterdir() if path.is_dir())
LICENCE_WORDS = {
    "CC BY 4.0": "Attribution 4.0 International",
    "CC0 1.0": "CC0 1.0 Universal",
    "Apache-2.0": "Apache License",
    "MIT": "MIT License",
}


def faults(folder: Path) -> list[str]:
    """What is wrong with a data folder."""
    sums, provenance = folder / "SHA256SUMS", folder / "PROVENANCE.md"
    if not sums.is_file() or not provenance.is_file():
        return ["SHA256SUMS or PROVENANCE.md is missing"]
    listed = dict(
        reversed(line.split("  ", 1)) for line in sums.read_text(encoding="utf-8").splitlines()
    )
    held = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {
        "SHA256SUMS",
        "PROVENANCE.md",
    }
    found = [f"{name}: not listed" for name in sorted(held - set(listed))]
    for name, digest in listed.items():
        if name not in held:
            found.append(f"{name}: listed but absent")
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            found.append(f"{name}: checksum differs")
    words = " ".join(provenance.read_text(encoding="utf-8").split())
    found += [
        f"PROVENANCE.md: no {part!r}"
        for part in ("- What:", "- Who:", "- When:", "- How made:", "- Licence:", "- Form:")
        if part not in words
    ]
    licence = words.partition("- Licence: ")[2]
    text = next((LICENCE_WORDS[key] for key in LICENCE_WORDS if licence.startswith(key)), None)
    if "LICENSE" not in held or text is None:
        found.append("the licence is not named, or its text is missing")
    elif text not in (folder / "LICENSE").read_text(encoding="utf-8"):
        found.append("LICENSE is not the licence that PROVENANCE.md names")
    if "No citation needed." not in words and "- Cite:" not in words:
        found.append("PROVENANCE.md: no citation")
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_folder_is_what_it_says(folder: Path) -> None:
    assert faults(folder) == []


def test_nothing_lies_beside_the_folders() -> None:
    assert [path.name for path in DATA.iterdir() if not path.is_dir()] == []
    assert {"azure2023", "mooncake", "engine_cpu", "engine_gpu", "vllm_bench"} <= {
        path.name for path in FOLDERS
    }


def _change_a_byte(folder: Path) -> None:
    path = folder / "LICENSE"
    path.write_bytes(path.read_bytes() + b"\n")


def _lose_a_file(folder: Path) -> None:
    (folder / "groq_70b.summary.json").unlink()


def _add_a_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("x", encoding="utf-8")


def _lose_provenance(folder: Path) -> None:
    (folder / "PROVENANCE.md").unlink()


def _forget(word: str) -> object:
    def change(folder: Path) -> None:
        path = folder / "PROVENANCE.md"
        path.write_text(path.read_text(encoding="utf-8").replace(word, ""), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_change_a_byte, "LICENSE: checksum differs"),
        (_lose_a_file, "groq_70b.summary.json: listed but absent"),
        (_add_a_file, "notes.txt: not listed"),
        (_lose_provenance, "SHA256SUMS or PROVENANCE.md is missing"),
        (_forget("- When:"), "PROVENANCE.md: no '- When:'"),
        (_forget("Apache-2.0"), "the licence is not named, or its text is missing"),
        (_forget("- Cite:"), "PROVENANCE.md: no citation"),
    ],
)
def test_the_check_can_fail(change, fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "llmperf"
    shutil.copytree(DATA / "llmperf", folder)
    change(folder)
    assert fault in faults(folder)


def test_a_wrong_licence_text_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "llmperf"
    shutil.copytree(DATA / "llmperf", folder)
    shutil.copy(DATA / "engine_gpu" / "LICENSE", folder / "LICENSE")
    assert "LICENSE is not the licence that PROVENANCE.md names" in faults(folder)


def test_every_shipped_name_loads() -> None:
    assert all(len(traces.load(name)) for name in traces.SHIPPED)
    assert all(len(engine_runs.load(name).requests) for name in engine_runs.SHIPPED)
    assert all(engine_runs.load_decode_steps(name).rep.size for name in engine_runs.SHIPPED_DECODE)
    assert all(len(benchmarks.load(name).requests) for name in benchmarks.SHIPPED)


@pytest.mark.parametrize(
    "load",
    [traces.load, engine_runs.load, engine_runs.load_decode_steps, benchmarks.load],
)
def test_an_unknown_name_is_refused(load) -> None:
    with pytest.raises(ValueError, match=r"name must be one of .*: got 'nothing'"):
        load("nothing")
