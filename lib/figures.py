"""One matplotlib style for every figure: SVG that is the same, byte for byte, run after run."""

from typing import Any

import matplotlib as mpl
from cycler import cycler

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#B3243E",
    "#7A5195",
    "#6E6E6E",
)
"""Colours that stay apart for colour-blind readers (after Okabe and Ito), and in dark mode."""


STYLE: dict[Any, Any] = {
    "figure.figsize": (6.4, 3.6),
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#B0B0B0",
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, RED, PURPLE, GREY]),
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text: sharp, selectable, and stable
    "svg.hashsalt": "serving-ledger",  # ids do not change from run to run
}
"""The book's style, as matplotlib's rcParams."""


def use_style() -> None:
    """Set the book's style for this session; call it once, before the first figure."""
    # A notebook's own package: a script that draws with STYLE needs no IPython.
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    mpl.rcParams.update(STYLE)
    set_matplotlib_formats("svg", metadata={"Date": None})  # type: ignore[no-untyped-call]
