"""The gate can fail: stale outputs, changed figures and broken formulas turn notebooks red."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
Notebook = dict[str, Any]


def run_nbval(notebook: Path, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if python_path:
        environment["PYTHONPATH"] = str(python_path)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "--color=no", str(notebook)],
        cwd=notebook.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def outputs(notebook: Notebook, kind: str) -> list[dict[str, Any]]:
    found = [o for c in notebook["cells"] for o in c.get("outputs", [])]
    return [o for o in found if kind in o or kind in o.get("data", {})]


def change_text(notebook: Notebook) -> None:
    output = outputs(notebook, "text")[0]
    assert output["text"] == ["2\n"]
    output["text"] = ["3\n"]


def change_figure(notebook: Notebook) -> None:
    data = outputs(notebook, "image/svg+xml")[0]["data"]
    stored = "".join(data["image/svg+xml"])
    data["image/svg+xml"] = stored.replace("L 1", "L 2", 1)  # one point of the curve
    assert data["image/svg+xml"] != stored


def change_nothing(notebook: Notebook) -> None:
    pass


@pytest.fixture(scope="module")
def small_notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A printed number and a figure, executed as the chapters are."""
    sources = [
        "import matplotlib.pyplot as plt\n\nfrom lib.figures import use_style\n\nuse_style()",
        "print(1 + 1)",
        "plt.plot([1, 2, 3], [1, 4, 9])\nplt.show()",
    ]
    notebook = {
        "cells": [
            {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "source": source,
             "outputs": [], "execution_count": None}
            for i, source in enumerate(sources)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("gate") / "small.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--execute", "--inplace", str(path)], check=True
    )
    return path


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (change_nothing, 0, "3 passed"),
        (change_text, 1, "1 failed, 2 passed"),
        (change_figure, 1, "1 failed, 2 passed"),
    ],
)
def test_stale_outputs_are_found(
    small_notebook: Path,
    tmp_path: Path,
    change: Callable[[Notebook], None],
    status: int,
    words: str,
) -> None:
    notebook: Notebook = json.loads(small_notebook.read_text(encoding="utf-8"))
    change(notebook)
    (tmp_path / "small.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    result = run_nbval(tmp_path / "small.ipynb")
    assert result.returncode == status, result.stdout
    assert words in result.stdout


def test_a_broken_formula_names_the_claims_that_fall(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "lib", tmp_path / "lib")
    module = tmp_path / "lib" / "latency.py"
    sound = module.read_text(encoding="utf-8")
    broken = sound.replace("first + (tokens - 1) * each", "first + tokens * each")
    assert broken != sound
    module.write_text(broken, encoding="utf-8")
    result = run_nbval(ROOT / "book" / "e2e.ipynb", python_path=tmp_path)
    assert result.returncode == 1, result.stdout
    summary = result.stdout.partition("claims that fell")[2]
    assert re.search(r"e2e\.ipynb::Cell 3: TTFT \+ \(N_out - 1\) TPOT = time alive: ", summary)
    assert "observed 1274 ms fails against scheduler, 300 requests, counted" in summary
