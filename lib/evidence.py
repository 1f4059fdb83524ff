"""Evidence: claims of the book, each put against a witness that did not come from its formula.

`check` is the one device of the chapters. It raises when a claim fails, and otherwise shows one
line of evidence. A notebook stores that line as data as well, and `collect` reads it back, so
the book's evidence page is made from the executed chapters.
"""

import html
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import choice, nonnegative, one, real, together

MIME = "application/vnd.serving-ledger.evidence+json"
RELATIONS = ("==", "<=", ">=", "!=")
_HEAD = ("claim", "witness", "predicted", "observed", "error", "tolerance", "verdict")


class EvidenceError(AssertionError):
    """A claim that its witness does not bear out."""


@dataclass(frozen=True)
class Claim:
    """One line of evidence, as text ready to print; see `check`."""

    claim: str
    witness: str
    predicted: str
    observed: str
    error: str
    tolerance: str
    verdict: str


@dataclass(frozen=True)
class Evidence:
    """Lines of evidence that a notebook shows as a table."""

    claims: tuple[Claim, ...]

    def __repr__(self) -> str:
        return "\n".join(
            f"{c.claim} | {c.witness} | predicted {c.predicted}, observed {c.observed}, "
            f"error {c.error} ({c.tolerance}) | {c.verdict}"
            for c in self.claims
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/plain": repr(self),
            "text/html": _table({"": list(self.claims)}),
            MIME: [asdict(c) for c in self.claims],
        }


def check(
    claim: str,
    predicted: ArrayLike,
    observed: ArrayLike,
    tolerance: float = 0.0,
    *,
    witness: str,
    why: str,
    relation: str = "==",
    relative: bool = False,
    unit: str = "",
) -> Evidence:
    """Hold the formula's value against the witness's, element by element.

    Parameters
    ----------
    claim : what the line asserts, in words.
    predicted : the formula's value, a number or an array.
    observed : the witness's value, of a shape that broadcasts.
    tolerance : largest error that still bears the claim out, in the unit of the values, or as
        a share of the observed value when `relative`.
    witness : where `observed` comes from.
    why : the reason for the tolerance.
    relation : "==" predicted and observed agree; "<=" predicted is a lower bound on observed;
        ">=" an upper bound; "!=" predicted is a formula outside its domain, which must miss by
        more than the tolerance.
    unit : printed after the values.

    Returns
    -------
    Evidence of one line. Of an array it shows the element that comes closest to failing, and of
    equals the largest.

    Raises
    ------
    EvidenceError : the claim fails; the message gives both values, the error and the tolerance.
    ValueError : a value is missing or infinite, the shapes differ, or there is nothing to check.
    """
    choice("relation", relation, RELATIONS)
    p, o = real("predicted", predicted), real("observed", observed)
    together(predicted=p, observed=o)
    limit = one("tolerance", nonnegative("tolerance", tolerance))
    p, o = np.broadcast_arrays(p, o)
    if p.size == 0:
        raise ValueError("predicted and observed must not be empty: nothing to check")
    signed = p - o
    if relative:
        if np.any(o == 0):
            raise ValueError("observed must not be 0 for a relative error")
        with np.errstate(over="ignore"):  # beside a tiny value any error is infinite
            signed = signed / np.abs(o)
    distance = {
        "==": np.abs(signed),
        "!=": np.abs(signed),
        "<=": signed,
        ">=": -signed,
    }[relation]
    miss_wanted = relation == "!="
    # Errors far below the limit are rounding noise: which is largest differs by platform.
    ranked = np.where(np.abs(distance) < limit / 1000, 0.0, distance)
    closest = ranked.min() if miss_wanted else ranked.max()
    ties = np.flatnonzero(ranked == closest)  # of these show the largest, which says most
    worst = np.unravel_index(int(ties[np.argmax(np.abs(o.flat[ties]))]), o.shape)
    error = float(distance[worst])
    holds = error > limit if miss_wanted else error <= limit

    unit = f" {unit}" if unit else ""
    share = "%" if relative else unit
    scale = 100 if relative else 1
    many = f", worst of {p.size:,}" if p.size > 1 else ""
    if relation in ("<=", ">="):
        margin = "beyond" if ranked[worst] > 0 else "inside"
        shown_error = f"{_rounded(abs(error) * scale, limit * scale)}{share} {margin} the bound"
    else:
        shown_error = f"{_rounded(error * scale, limit * scale)}{share}"
    line = Claim(
        claim=claim,
        witness=witness,
        predicted=f"{_number(float(p[worst]))}{unit}",
        observed=f"{_number(float(o[worst]))}{unit}",
        error=shown_error + many,
        tolerance=f"{'> ' if miss_wanted else ''}{_number(limit * scale, 3)}{share}: {why}",
        verdict="breaks" if miss_wanted else "holds",
    )
    if not holds:
        raise EvidenceError(
            f"{claim}: predicted {line.predicted} {relation} observed {line.observed} fails "
            f"against {witness}: error {error * scale:.6g}{share}, tolerance {line.tolerance}"
        )
    return Evidence((line,))


def evidence(*lines: Evidence) -> Evidence:
    """Several lines as one table.

    Raises
    ------
    AttributeError : one of `lines` is not Evidence.
    """
    return Evidence(tuple(claim for line in lines for claim in line.claims))


@dataclass(frozen=True)
class Ledger:
    """Every claim of the book: (chapter, claim) in the order of the chapters."""

    entries: tuple[tuple[str, Claim], ...]

    def __repr__(self) -> str:
        return "\n".join(f"{chapter}: {Evidence((claim,))!r}" for chapter, claim in self.entries)

    def _repr_html_(self) -> str:
        groups: dict[str, list[Claim]] = {}
        for chapter, claim in self.entries:
            groups.setdefault(chapter, []).append(claim)
        return _table(groups)


def collect(notebooks: Iterable[str | Path]) -> Ledger:
    """The evidence lines stored in executed notebooks.

    Raises
    ------
    ValueError : a notebook is not JSON, or holds no evidence; the message names the file.
    """
    entries: list[tuple[str, Claim]] = []
    for path in map(Path, notebooks):
        try:
            stored = [
                Claim(**line)
                for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
                for output in cell.get("outputs", [])
                for line in output.get("data", {}).get(MIME, [])
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a notebook with evidence ({error!r})") from None
        if not stored:
            raise ValueError(f"{path}: holds no evidence")
        entries += [(path.stem, claim) for claim in stored]
    return Ledger(tuple(entries))


def _number(value: float, digits: int = 6) -> str:
    """A few significant digits: the same text on every platform."""
    return f"{value:.{digits}g}".replace("e-0", "e-")


def _rounded(error: float, limit: float) -> str:
    """An error to two digits; far below its limit it is rounding noise, the same everywhere."""
    if abs(error) < limit / 1000:
        return f"< {_number(limit / 1000, 3)}"
    return _number(float(f"{error:.2g}"))


def _table(groups: dict[str, list[Claim]]) -> str:
    """HTML table of claims by chapter; a named chapter gets a row that links to it."""
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = []
    for chapter, claims in groups.items():
        if name := html.escape(chapter):
            link = f'<a href="{name}.html">{name}</a>'
            body.append(f'<tr><th colspan="{len(_HEAD)}">{link}</th></tr>')
        body += [f"<tr>{''.join(_cell(field, claim) for field in _HEAD)}</tr>" for claim in claims]
    return (
        f'<div class="evidence"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(field: str, claim: Claim) -> str:
    text = html.escape(getattr(claim, field))
    mark = f' class="{text}"' if field == "verdict" else ""
    # A number stays on one line: no break after its sign or before it.
    text = re.sub(r"(?<=\de)-(?=\d)", "\N{MINUS SIGN}", text)
    text = re.sub(r"(&[lg]t;) (?=\d)", "\\1\N{NO-BREAK SPACE}", text)
    return f"<td{mark}>{text}</td>"
