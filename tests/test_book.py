"""The book keeps its word: lints over the notebooks, each shown able to fail on a doctored copy."""

import ast
import copy
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lib.evidence import MIME

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
Notebook = dict[str, Any]

SECTIONS = (
    "The formula",
    "Derivation",
    "From formula to code",
    "By hand",
    "Witness",
    "Where it breaks",
    "Exercises",
    "Keep",
)
MAX_CODE_CELLS, MAX_CELL_LINES = 25, 25
CELL_METADATA = {"tags", "mystnb"}
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def toc_files() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [toc["root"], *chapters]


def read(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem != "evidence"]


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def cells(notebook: Notebook, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def prose(notebook: Notebook) -> str:
    return "\n\n".join(text(cell) for cell in cells(notebook, "markdown"))


def outputs(notebook: Notebook) -> Iterator[dict[str, Any]]:
    for cell in cells(notebook, "code"):
        yield from cell["outputs"]


def claims(notebook: Notebook) -> list[dict[str, str]]:
    return [line for output in outputs(notebook) for line in output.get("data", {}).get(MIME, [])]


# The lints: each returns the faults it finds, as text ---------------------------------------------


def not_executed_in_order(notebook: Notebook) -> list[str]:
    counts = [cell["execution_count"] for cell in cells(notebook, "code")]
    return [] if counts == list(range(1, len(counts) + 1)) else [f"execution counts {counts}"]


def without_outputs(notebook: Notebook) -> list[str]:
    return [] if any(True for _ in outputs(notebook)) else ["no cell has an output"]


def errors_shown(notebook: Notebook) -> list[str]:
    return [
        f"output: {output.get('ename', output.get('name'))}"
        for output in outputs(notebook)
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]


def unclean_metadata(notebook: Notebook) -> list[str]:
    faults = [] if notebook["metadata"] == NOTEBOOK_METADATA else [f"{notebook['metadata']}"]
    ids = [cell["id"] for cell in notebook["cells"]]
    faults += [f"cell id {i} twice" for i in set(ids) if ids.count(i) > 1]
    for cell in notebook["cells"]:
        extra = set(cell["metadata"]) - CELL_METADATA
        faults += [f"cell {cell['id']}: metadata {sorted(extra)}"] if extra else []
        if cell["cell_type"] == "markdown" and cell.get("attachments"):
            faults.append(f"cell {cell['id']}: attachments")
    return faults


def figures_without_words(notebook: Notebook) -> list[str]:
    faults = []
    for cell in cells(notebook, "code"):
        kinds = {kind for output in cell["outputs"] for kind in output.get("data", {})}
        images = {kind for kind in kinds if kind.startswith("image/")}
        if not images:
            continue
        described = cell["metadata"].get("mystnb", {})
        figure, image = described.get("figure", {}), described.get("image", {})
        for name, value in (
            ("caption", figure.get("caption")),
            ("name", figure.get("name")),
            ("alt", image.get("alt")),
        ):
            if not value:
                faults.append(f"cell {cell['id']}: figure without {name}")
        if images != {"image/svg+xml"}:
            faults.append(f"cell {cell['id']}: figure as {sorted(images)}, not SVG")
    return faults


def missing_sections(notebook: Notebook) -> list[str]:
    headings = re.findall(r"^## (.+)$", prose(notebook), flags=re.MULTILINE)
    found = [next((s for s in SECTIONS if h.startswith(s)), None) for h in headings]
    order = [section for i, section in enumerate(found) if section and section not in found[:i]]
    return [] if order == list(SECTIONS) else [f"sections {headings}"]


def missing_parts(notebook: Notebook) -> list[str]:
    body = prose(notebook)
    needed = {
        "a prediction's answer (dropdown)": r"^:::+\{dropdown\}",
        "a boxed formula": r"^:class: formula$",
        "a numbered equation": r"^\$\$ \(eq-[a-z0-9-]+\)$",
        "named assumptions": r"\bA1\b",
        "a proof": r"\{prf:proof\}",
        "a 'valid when' box": r"^:class: valid$",
        "a citation": r"\{cite:",
    }
    faults = [part for part, mark in needed.items() if not re.search(mark, body, re.MULTILINE)]
    if not any("listing(" in text(cell) for cell in cells(notebook, "code")):
        faults.append("the code's own source (listing)")
    return faults


def missing_evidence(notebook: Notebook) -> list[str]:
    verdicts = [claim["verdict"] for claim in claims(notebook)]
    faults = [] if verdicts.count("holds") >= 3 else [f"{verdicts.count('holds')} claims hold"]
    return faults if "breaks" in verdicts else [*faults, "no breaking experiment"]


def unsolved_exercises(notebook: Notebook) -> list[str]:
    """Each exercise has one solution, and a code cell is executed inside it."""
    exercises = re.findall(r"\{exercise\}[^\n]*\n:label: (\S+)", prose(notebook))
    executed: dict[str, bool] = {}
    inside = None
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            if inside:
                executed[inside] = True
            continue
        for start, end in re.findall(r"\{solution-start\} (\S+)|(\{solution-end\})", text(cell)):
            inside = start or None
            if start:
                executed[start] = False
            assert start or end
    faults = [] if 2 <= len(exercises) <= 4 else [f"{len(exercises)} exercises"]
    faults += [f"{name}: no solution" for name in exercises if name not in executed]
    return faults + [f"{name}: solution not executed" for name, ran in executed.items() if not ran]


def too_long(notebook: Notebook) -> list[str]:
    code = cells(notebook, "code")
    faults = [f"{len(code)} code cells"] if len(code) > MAX_CODE_CELLS else []
    for cell in code:
        lines = text(cell).count("\n") + 1
        if lines > MAX_CELL_LINES:
            faults.append(f"cell {cell['id']}: {lines} lines")
    return faults


def private_imports(notebook: Notebook) -> list[str]:
    """Chapters use the library's public face, as a reader would."""
    faults = []
    for cell in cells(notebook, "code"):
        for node in ast.walk(ast.parse(text(cell))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib"):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                faults += [f"{node.module}: {name}" for name in names if name.startswith("_")]
    return faults


OF_ALL: list[Callable[[Notebook], list[str]]] = [
    not_executed_in_order,
    without_outputs,
    errors_shown,
    unclean_metadata,
    figures_without_words,
    private_imports,
]
OF_CHAPTERS: list[Callable[[Notebook], list[str]]] = [
    missing_sections,
    missing_parts,
    missing_evidence,
    unsolved_exercises,
    too_long,
]


@pytest.mark.parametrize("lint", OF_ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(lint: Callable[[Notebook], list[str]], path: Path) -> None:
    assert lint(read(path)) == []


@pytest.mark.parametrize("lint", OF_CHAPTERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_chapter(lint: Callable[[Notebook], list[str]], path: Path) -> None:
    assert lint(read(path)) == []


# Each lint can fail -------------------------------------------------------------------------------


def first_figure(notebook: Notebook) -> dict[str, Any]:
    return next(
        cell
        for cell in cells(notebook, "code")
        if any("image/svg+xml" in output.get("data", {}) for output in cell["outputs"])
    )


def rewrite(notebook: Notebook, old: str, new: str) -> None:
    found = False
    for cell in notebook["cells"]:
        if old in text(cell):
            cell["source"], found = [text(cell).replace(old, new)], True
    assert found, f"nothing to doctor: {old!r}"


def drop_outputs(notebook: Notebook) -> None:
    for cell in cells(notebook, "code"):
        cell["outputs"] = []


def unbreak(notebook: Notebook) -> None:
    for claim in claims(notebook):
        claim["verdict"] = "holds"


def in_first(kind: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Notebook], object]:
    return lambda notebook: change(cells(notebook, kind)[0])


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}
DOCTORED: list[tuple[Callable[[Notebook], list[str]], Callable[[Notebook], object]]] = [
    (not_executed_in_order, in_first("code", lambda c: c.update(execution_count=7))),
    (not_executed_in_order, in_first("code", lambda c: c.update(execution_count=None))),
    (without_outputs, drop_outputs),
    (errors_shown, in_first("code", lambda c: c["outputs"].append(ERROR))),
    (
        errors_shown,
        in_first(
            "code",
            lambda c: c["outputs"].append({"output_type": "stream", "name": "stderr", "text": "x"}),
        ),
    ),
    (unclean_metadata, lambda n: n["metadata"]["language_info"].update(version="3.12.1")),
    (unclean_metadata, in_first("code", lambda c: c["metadata"].update(execution={}))),
    (unclean_metadata, lambda n: n["cells"][1].update(id=n["cells"][0]["id"])),
    (figures_without_words, lambda n: first_figure(n)["metadata"]["mystnb"].pop("image")),
    (figures_without_words, lambda n: first_figure(n)["metadata"]["mystnb"].pop("figure")),
    (
        figures_without_words,
        lambda n: first_figure(n)["outputs"][0]["data"].update({"image/png": ""}),
    ),
    (missing_sections, lambda n: rewrite(n, "## Where it breaks", "## Limits")),
    (missing_sections, lambda n: n["cells"].reverse()),
    (missing_parts, lambda n: rewrite(n, ":class: valid", ":class: note")),
    (missing_parts, lambda n: rewrite(n, "{cite:t}", "")),
    (missing_parts, lambda n: rewrite(n, "{prf:proof}", "{note}")),
    (missing_parts, lambda n: rewrite(n, "listing(", "print(")),
    (missing_evidence, unbreak),
    (missing_evidence, drop_outputs),
    (unsolved_exercises, lambda n: rewrite(n, "{solution-start}", "{note}")),
    (unsolved_exercises, lambda n: n.update(cells=cells(n, "markdown"))),
    (too_long, in_first("code", lambda c: c.update(source=["x = 1\n"] * 26))),
    (too_long, lambda n: n["cells"].extend(cells(n, "code") * 3)),
    (private_imports, in_first("code", lambda c: c.update(source=["from lib._files import DATA"]))),
    (private_imports, in_first("code", lambda c: c.update(source=["from lib.latency import _x"]))),
]


@pytest.mark.parametrize(
    ("lint", "doctor"),
    DOCTORED,
    ids=[f"{lint.__name__}-{i}" for i, (lint, _) in enumerate(DOCTORED)],
)
def test_lint_can_fail(
    lint: Callable[[Notebook], list[str]], doctor: Callable[[Notebook], object]
) -> None:
    notebook = read(BOOK / "ttft.ipynb")
    assert lint(notebook) == []
    broken = copy.deepcopy(notebook)
    doctor(broken)
    assert lint(broken)


# The book as a whole ------------------------------------------------------------------------------


def test_toc_lists_every_page_once() -> None:
    pages = {f"book/{p.stem}" for p in BOOK.iterdir() if p.suffix in {".md", ".ipynb"}}
    assert sorted(toc_files()) == sorted(pages)


def test_every_chapter_has_its_module_and_test() -> None:
    shared = {"ttft": "latency", "e2e": "latency"}
    for path in CHAPTERS:
        module = shared.get(path.stem, path.stem)
        assert importlib.util.find_spec(f"lib.{module}") is not None
        assert (ROOT / "tests" / f"test_{module}.py").is_file()


def labels() -> list[str]:
    pages = [prose(read(path)) for path in NOTEBOOKS]
    pages += [path.read_text(encoding="utf-8") for path in BOOK.glob("*.md")]
    return re.findall(r"^\$\$ \((eq-[a-z0-9-]+)\)$", "\n".join(pages), flags=re.MULTILINE)


def test_equation_labels_are_unique() -> None:
    found = labels()
    assert len(found) == len(set(found))


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those of every module of `lib`, and of its packages' own."""
    for path in sorted((ROOT / "lib").glob("[!_]*")):
        if path.suffix != ".py" and not (path / "__init__.py").is_file():
            continue
        module = importlib.import_module(f"lib.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__:
                yield f"{path.stem}.{name}", function


def test_docstrings_name_equations_that_exist() -> None:
    known = set(labels())
    for name, function in public_functions():
        named = set(re.findall(r"\((eq-[a-z0-9-]+)\)", function.__doc__ or ""))
        assert named <= known, f"{name}: {named - known}"


@pytest.mark.parametrize(("name", "function"), list(public_functions()), ids=lambda v: str(v)[:40])
def test_docstring_is_complete(name: str, function: Callable[..., Any]) -> None:
    doc = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    assert doc, name
    if signature.parameters:
        assert "Parameters\n-" in doc or len(signature.parameters) == 1, f"{name}: parameters"
        for parameter in signature.parameters:
            assert re.search(rf"\b{parameter}\b", doc), f"{name}: {parameter} is not explained"
        assert "Raises\n-" in doc or "raise" in doc.lower(), f"{name}: errors"
    assert signature.return_annotation is not inspect.Signature.empty, name


def test_nothing_names_a_machine_or_a_registry() -> None:
    forbidden = re.compile(r"/work/|/root/|/home/\w|pypi\.|files\.pythonhosted|registry\.npm")
    tracked = [
        path
        for folder in ("book", "lib", "tests", ".ci", ".github")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".ipynb", ".yml", ".css", ".bib", ".toml"}
        or path.name == "run"
    ]
    tracked += [p for p in ROOT.iterdir() if p.is_file()]
    for path in tracked:
        if path == Path(__file__).resolve() or ".ipynb_checkpoints" in path.parts:
            continue
        found = forbidden.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found and found.group()}"
