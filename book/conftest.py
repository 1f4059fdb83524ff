"""After a run, name the claims that fell: chapter, cell, claim and both values."""

import re

import pytest

FALLEN = re.compile(r"^EvidenceError: (.+)$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{report.nodeid}: {claim}"
        for report in terminalreporter.getreports("failed")
        for claim in FALLEN.findall(COLOUR.sub("", report.longreprtext))[-1:]
    ]
    if lines:
        terminalreporter.section("claims that fell, the first of each cell")
        for line in lines:
            terminalreporter.write_line(line)
