"""Show a function's own source beside its formula, so that the page cannot go stale."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Listing:
    """Python source that a notebook renders as a highlighted block."""

    source: str

    def __repr__(self) -> str:
        return self.source

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.source}\n```"


def listing(*functions: Callable[..., Any]) -> Listing:
    """The source of `functions` as it runs, without docstrings (the chapter tells that part).

    Raises
    ------
    TypeError : something given has no Python source.
    """
    return Listing("\n\n".join(_without_docstring(function) for function in functions))


def _without_docstring(function: Callable[..., Any]) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    lines = source.rstrip().splitlines()
    nested = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    for definition in sorted(nested, key=lambda n: -n.lineno):
        first = definition.body[0]
        if ast.get_docstring(definition) is not None and len(definition.body) > 1:
            del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(lines)
