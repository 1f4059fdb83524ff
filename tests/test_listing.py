"""The listing is the code that runs, less its docstrings."""

import ast
import inspect

import pytest

from lib import goodput, kv_step, latency, percentile, record
from lib.listing import Listing, listing

SHOWN = [
    latency.ttft,
    latency.ttft_parts,
    latency.tpot,
    latency.itl,
    latency.RequestMetrics,
    goodput.attainment,
    goodput.wilson_interval,
    kv_step.kv_step_time_lower_bound,
    percentile.percentile,
    record.RequestLog,
    Listing,
]


def stripped(source):
    """The tree of `source` with every docstring taken out, for comparison."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


@pytest.mark.parametrize("thing", SHOWN, ids=lambda t: t.__name__)
def test_it_is_the_source_without_docstrings(thing):
    source = inspect.getsource(thing)
    shown = listing(thing).source
    assert ast.get_docstring(ast.parse(source).body[0]) is not None
    assert '"""' not in shown
    assert ast.dump(ast.parse(shown)) == stripped(source)
    for line in shown.splitlines():  # every line as it stands in the module
        assert line in source.splitlines()


def test_comments_stay():
    assert "# " in listing(latency.ttft_parts).source
    assert repr(listing(latency.ttft)) == listing(latency.ttft).source


def test_several_functions_and_the_markdown_block():
    both = listing(latency.ttft, latency.e2e_latency)
    assert both.source == "\n\n".join(
        listing(f).source for f in (latency.ttft, latency.e2e_latency)
    )
    assert both._repr_markdown_() == f"```python\n{both.source}\n```"


def test_methods_and_inner_functions():
    class Outer:
        """Outer words."""

        def method(self):
            """Method
            words."""

            def inner():
                """Inner words."""
                return 1

            return inner  # kept

    for shown in (listing(Outer).source, listing(Outer.method).source):
        ast.parse(shown)
        assert "words" not in shown
        assert "return inner  # kept" in shown
    assert listing(Outer.method).source.startswith("def method(self):")


def test_a_body_that_is_only_a_docstring_still_parses():
    def empty():
        """Nothing else."""

    ast.parse(listing(empty).source)


def test_without_a_docstring_nothing_changes():
    def plain(x):
        return x + 1

    assert listing(plain).source == "def plain(x):\n    return x + 1"


def test_no_source_no_listing():
    for thing in (len, 3):
        with pytest.raises(TypeError):
            listing(thing)
