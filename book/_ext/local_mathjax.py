"""Serve MathJax from the book itself, so that no page needs the network.

The package ``sphinx-mathjax-offline`` ships all of MathJax (24 MB). One file of it
holds every TeX extension and draws with SVG, which needs no fonts: that file alone
joins the site.
"""

from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

MATHJAX = "tex-svg-full.js"


def add_mathjax(app: Sphinx, config: Config) -> None:
    package = find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ExtensionError(
            "sphinx-mathjax-offline is missing: see requirements.lock"
        )
    script = Path(package.origin).parent / "static" / "mathjax" / MATHJAX
    config.html_static_path.append(str(script))  # type: ignore[attr-defined]
    config.mathjax_path = MATHJAX  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", add_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
