"""A figure's SVG is the same bytes every time, and other bytes when a datum changes."""

import os
import subprocess
import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from cycler import cycler

from lib import figures

# A fresh interpreter draws two figures as a notebook does and prints the stored SVG of both.
DRAW = """
import sys
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
from lib.figures import use_style
use_style()
for value in (2.0, 2.01):
    figure, axes = plt.subplots()
    axes.plot([0, 1, 2], [1.0, value, 3.0], label="a label")
    axes.fill_between([0, 1, 2], [0, 1, 2])
    axes.legend()
    axes.set_xlabel("time (s)")
    sys.stdout.write(shell.display_formatter.formatters["image/svg+xml"](figure))
"""


def test_the_same_figure_is_the_same_svg(tmp_path):
    first, again = (
        subprocess.run(
            [sys.executable, "-c", DRAW],
            capture_output=True,
            check=True,
            env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        ).stdout
        for _ in range(2)
    )
    assert first == again
    one, two = first.split(b"<?xml")[1:]
    assert one != two
    assert b"<dc:date>" not in first
    assert b">time (s)</text>" in one  # text stays text


def test_the_style_is_set():
    with mpl.rc_context():
        figures.use_style()
        assert mpl.rcParams["svg.hashsalt"] == "serving-ledger"
        assert mpl.rcParams["figure.facecolor"] == "none"
        colours = [
            figures.BLUE,
            figures.ORANGE,
            figures.GREEN,
            figures.RED,
            figures.PURPLE,
            figures.GREY,
        ]
        assert mpl.rcParams["axes.prop_cycle"] == cycler(color=colours)
        assert len(set(colours)) == 6
        figure, axes = plt.subplots()
        assert not axes.spines["top"].get_visible()
        plt.close(figure)


def luminance(colour):
    """Relative luminance after WCAG 2.1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
              for c in mpl.colors.to_rgb(colour)]  # fmt: skip
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", ["BLUE", "ORANGE", "GREEN", "RED", "PURPLE", "GREY"])
def test_lines_stand_out_on_the_page(name):
    # WCAG 2.1, 1.4.11: a graphic needs a contrast of 3 against what is beside it.
    assert 1.05 / (luminance(getattr(figures, name)) + 0.05) >= 3
