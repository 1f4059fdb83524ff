"""One source of pins: every file that says what to install must say the same."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]
RANGES = [
    Requirement(line)
    for group in (
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
        PYPROJECT["build-system"]["requires"],
    )
    for line in group
]
LOCK = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#")
]
PINS = {canonicalize_name(pin.name): pin for pin in LOCK}
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
SUPPORTED = [
    f"3.{minor}"
    for minor in range(50)
    if SpecifierSet(PROJECT["requires-python"]).contains(f"3.{minor}")
]


def exact(pin: Requirement) -> str:
    """The one version that a pin allows."""
    match = re.fullmatch(r"==([^*,]+)", str(pin.specifier))
    assert match, f"{pin} is no exact pin"
    return match[1]


def test_lock_pins_each_package_once_and_exactly() -> None:
    assert len(PINS) == len(LOCK)
    for pin in LOCK:
        assert exact(pin)


def test_lock_names_no_address_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert " @ " not in text
    assert not re.search(r"(^|[\s=])/\w", text)


def test_lock_satisfies_every_range() -> None:
    outside = [
        str(needed)
        for needed in RANGES
        if not needed.specifier.contains(exact(PINS[canonicalize_name(needed.name)]))
    ]
    assert not outside, "run `make lock`"


def test_jupyter_book_is_pinned_where_it_is_asked_for() -> None:
    asked = next(needed for needed in RANGES if needed.name == "jupyter-book")
    assert exact(asked) == exact(PINS["jupyter-book"])


def test_installed_is_what_the_lock_says() -> None:
    here = [pin for pin in LOCK if pin.marker is None or pin.marker.evaluate()]
    assert {pin.name: version(pin.name) for pin in here} == {pin.name: exact(pin) for pin in here}


def test_conda_takes_every_version_from_the_lock() -> None:
    *conda, pip = CONDA["dependencies"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}
    python, installer = conda
    assert installer == "pip"
    name, pinned = python.split("=", 1)
    assert name == "python"
    assert pinned.removesuffix(".*") in SUPPORTED


def test_one_list_of_pythons() -> None:
    prefix = "Programming Language :: Python :: "
    classified = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert classified == SUPPORTED
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == SUPPORTED


def test_tools_and_make_aim_at_the_same_pythons() -> None:
    oldest, newest = SUPPORTED[0], SUPPORTED[-1]
    assert TOOLS["mypy"]["python_version"] == oldest
    assert TOOLS["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    makefile = (ROOT / "Makefile").read_text()
    assert f"--python-version {oldest} " in makefile
    below = int(newest.removeprefix("3.")) + 1
    assert f"({oldest.replace('.', ', ')}) <= sys.version_info < (3, {below})" in makefile


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    steps = [step.get("run") for step in WORKFLOW["jobs"]["test"]["steps"]]
    assert [step for step in steps if step and step.startswith("make")] == [
        "make book",
        "make test",
    ]
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in script if line.startswith("make")] == [
        "make clean",
        "make book",
        "make test",
    ]


def test_citation_names_the_released_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
