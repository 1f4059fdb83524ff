"""An audit as plain text, and as JSON."""

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import takewhile
from math import isfinite
from typing import Any

import numpy as np

from lib.audit import (
    Audit,
    Distribution,
    Goodput,
    Identity,
    Quantity,
    RunAudit,
    Slo,
    Sweep,
    SweepRow,
    percent,
    shown,
)
from lib.benchmarks import FORMATS, BenchmarkRun
from lib.diagnosis import Diagnosis
from lib.suspicions import Suspicion

SCHEMA = "serving-ledger/audit/1"
"""What `to_json` writes under "schema"."""

WIDTH = 84
"""Columns of the text, as many as a page of the book shows."""


def text(audit: Audit, *, each: bool = False) -> str:
    """The audit as plain ASCII text in lines of at most `WIDTH` columns.

    Parameters
    ----------
    audit : what `audit` returned.
    each : with several runs, print the whole ledger of each behind the sweep.

    Returns
    -------
    Text that ends with a line end. The name in brackets at the end of a line is the chapter that
    derives its formula. Raises nothing.
    """
    parts = []
    if audit.sweep is not None:
        parts.append(_sweep_text(audit, audit.sweep))
    if audit.sweep is None or each:
        parts += [_run_text(run) for run in audit.runs]
    lines = [line for part in parts for line in [*part, ""]]
    return "\n".join(line.encode("ascii", "replace").decode() for line in lines)


def _head(title: str) -> str:
    return f"{title} ".ljust(WIDTH, "-")


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _cited(line: str, chapter: str) -> str:
    """A line with its chapter in brackets at the right edge."""
    mark = f"[{chapter}]"
    return f"{line:<{WIDTH - len(mark) - 1}} {mark}"


def _row(begin: str, said: str, chapter: str) -> list[str]:
    """A line of a table: what is said is wrapped in the room between its begin and its chapter."""
    first, *more = textwrap.wrap(said, WIDTH - len(begin) - len(chapter) - 3) or [""]
    return [_cited(begin + first, chapter), *(f"{'':<{len(begin)}}{line}" for line in more)]


def _run_text(run: RunAudit) -> list[str]:
    lines = [_head(run.label), *_wrapped(f"Read as {run.format}: {_about(run)}.")]
    for note in run.notes:
        lines += _wrapped(f"Note: {note}.")
    lines += ["", *_quantity_lines(run.counts), *_quantity_lines(run.occupancy)]
    if run.latencies:
        lines += ["", *_latency_lines(run.latencies)]
    if run.goodput is not None:
        lines += ["", *_goodput_lines(run.goodput)]
    lines += ["", *_identity_lines(run.identities), *_stated_lines(run)]
    lines += ["", *_suspicion_lines(run.suspicions)]
    if run.diagnosis is not None:
        lines += ["", *_diagnosis_lines(run.diagnosis)]
    return lines


def _about(run: RunAudit) -> str:
    return FORMATS.get(run.format, run.tool)


def _quantity_lines(quantities: Iterable[Quantity]) -> list[str]:
    return [
        line
        for q in quantities
        for line in _row(f"  {q.name:<19}{shown(q.value, q.unit):>16}  ", q.note, q.chapter)
    ]


def _latency_lines(latencies: Sequence[Distribution]) -> list[str]:
    ranks = sorted({q for row in latencies for q, _ in row.percentiles})
    head = ["n", "mean", *(f"p{q:g}" for q in ranks), "largest"]
    lines = [f"  {'latency':<10}" + "".join(f"{word:>9}" for word in head)]
    for row in latencies:
        have = dict(row.percentiles)
        cells = [f"{row.n:,}", shown(row.mean, "s")]
        cells += [shown(have[q], "s") if q in have else "-" for q in ranks]
        cells.append("-" if row.largest is None else shown(row.largest, "s"))
        lines.append(f"  {row.name:<10}" + "".join(f"{cell:>9}" for cell in cells))
    derived: dict[str, list[str]] = {}
    for row in latencies:
        derived.setdefault(row.chapter, []).append(row.name)
    lines += _wrapped("; ".join(f"{', '.join(names)} [{c}]" for c, names in derived.items()) + ".")
    withheld = sorted({q for row in latencies for q in row.withheld})
    if withheld:
        names = ", ".join(f"p{q:g}" for q in withheld)
        lines.append(
            _cited(f"  Left out where fewer than one value lies beyond: {names}.", "goodput")
        )
    noted: dict[str, list[str]] = {}
    for row in latencies:
        if row.note:
            noted.setdefault(row.note, []).append(row.name)
    for note, whose in noted.items():
        lines += _wrapped(f"{', '.join(whose)}: {note}.")
    return lines


def _limits_text(slo: Slo) -> str:
    units = {"ttft": "s", "tpot": "s/token", "e2e": "s"}
    return " and ".join(
        f"{name.upper()} <= {shown(limit, units[name])}" for name, limit in slo.limits().items()
    )


def _goodput_lines(goodput: Goodput) -> list[str]:
    slo, joint = goodput.slo, goodput.joint
    if slo.given:
        first = f"{_limits_text(slo)} for {percent(slo.target)} of the requests: "
        first += goodput.outcome.upper()
        if not goodput.decided:
            first += " (but the interval holds the target: too few requests to be sure)"
    else:
        first = f"{_limits_text(slo)}, the limits that the file names"
    lines = _wrapped(first)
    for share in (*goodput.single, joint) if len(goodput.single) > 1 else (joint,):
        name = share.name if share.limit is None else f"{share.name} alone"
        said = f"{share.good:,} of {share.judged:,}"
        said += f"; 95 %: {percent(share.low)} to {percent(share.high)}"
        lines += _row(f"  {name:<19}{percent(share.ratio):>11}  ", said, "goodput")
    if goodput.rate is not None and goodput.rate_low is not None and goodput.rate_high is not None:
        low, high = shown(goodput.rate_low, "1/s"), shown(goodput.rate_high, "1/s")
        begin = f"  {'goodput':<19}{shown(goodput.rate, '1/s'):>11}  "
        lines += _row(begin, f"95 %: {low} to {high}", "goodput")
    if goodput.note:
        lines += _wrapped(f"Note: {goodput.note}.")
    return [*lines, "  95 %: Wilson's interval for what lies behind, if requests are independent."]


def _identity_lines(identities: Iterable[Identity]) -> list[str]:
    lines = []
    for row in identities:
        said = row.note
        if row.verdict == "broken":
            said = f"by {_gap(row)}; {row.note}"
        word = row.verdict.upper() if row.verdict == "broken" else row.verdict
        lines += _row(f"  {row.name:<35}{word:<13}", said, row.chapter)
    return lines


def _gap(row: Identity) -> str:
    """How far a broken identity is off, and what rounding would explain."""
    error, tolerance = row.error or 0.0, row.tolerance or 0.0
    if not row.unit:
        return f"{100 * error:.3g} %" if tolerance else f"{error:,.0f}"
    return f"{shown(error, row.unit, 3)}, where rounding explains {shown(tolerance, row.unit, 2)}"


def _stated_lines(run: RunAudit) -> list[str]:
    """How many of the file's own figures its rows give again, and those that differ."""
    if not run.stated:
        return []
    agree = [row for row in run.stated if row.agrees]
    differ = [row for row in run.stated if row.agrees is False]
    rest = [row for row in run.stated if row.agrees is None]
    said = f"Of {len(run.stated)} figures that the file states, {len(agree)} follow from its rows"
    said += f" under the rules of {run.tool}, {len(differ)} differ, {len(rest)} cannot be checked."
    lines = [_cited(line, "dialects") if i == 0 else line for i, line in enumerate(_wrap_at(said))]
    for row in differ[:8]:
        pair = (
            f"{shown(row.stated, row.unit, 6)} stated, {shown(row.recomputed or 0.0, row.unit, 6)}"
        )
        lines += _wrapped(f"{row.key}: {pair} from the rows. {row.why}".rstrip(), "    ")
    if len(differ) > 8:
        lines.append(f"    and {len(differ) - 8} more")
    reasons: dict[str, list[str]] = {}
    for row in rest:
        reasons.setdefault(row.why, []).append(row.key)
    for why, keys in list(reasons.items())[:4]:
        named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        lines += _wrapped(f"Not checked: {named}: {why}", "    ")
    return lines


def _wrap_at(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 12, initial_indent="  ", subsequent_indent="  ")


def _suspicion_lines(found: Sequence[Suspicion]) -> list[str]:
    if not found:
        return ["  Nothing suspicious in the data."]
    lines = [f"  Suspicious in the data: {len(found)}"]
    for i, row in enumerate(found, 1):
        first, *more = _wrap_at(f"{i}. {row.name}: {row.seen}.")
        lines += [_cited(first, row.chapter), *(f"   {line}" for line in more)]
        lines += _wrapped(f"{row.why[0].upper()}{row.why[1:]}.", "     ")
    return lines


def _diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for verdict in diagnosis.verdicts:
        first, *more = _wrap_at(f"Diagnosis: {verdict.rule}. {verdict.says}")
        lines += [_cited(first, "diagnosis"), *more]
        for sentence in verdict.evidence:
            lines += _wrapped(f"- {sentence}", "    ")
        lines += _wrapped(f"Refuted by: {verdict.refuted_by}", "    ")
    unknown = [row for row in diagnosis.silent if row.kind == "not known"]
    rules = len(diagnosis.verdicts) + len(diagnosis.silent)
    if not lines:
        says = "no rule fits these data" if len(unknown) < rules else "no verdict"
        lines.append(_cited(f"  Diagnosis: {says}.", "diagnosis"))
    if unknown:
        reasons = Counter(row.why.rpartition("? ")[2] for row in unknown)
        listed = "; ".join(f"{why} ({times})" for why, times in reasons.most_common(3))
        lines += _wrapped(f"{len(unknown)} of {rules} rules could not be tried: {listed}.")
    return lines


def _sweep_text(audit: Audit, sweep: Sweep) -> list[str]:
    columns: list[tuple[str, str, int, Callable[[SweepRow], str]]] = [
        ("offered", "/s", 9, lambda r: _cell(r.offered, "")),
        ("answered", "/s", 9, lambda r: _cell(r.throughput, "")),
        ("tokens", "/s", 8, lambda r: _cell(r.output_throughput, "")),
        ("TTFT", "", 9, lambda r: _cell(r.ttft, "s")),
        ("TPOT", "", 9, lambda r: _cell(r.tpot, "s")),
        ("E2E", "", 9, lambda r: _cell(r.e2e, "s")),
        ("in", "system", 7, lambda r: _cell(r.in_system, "", 3)),
        ("within", "", 8, lambda r: "-" if r.attainment is None else percent(r.attainment)),
        ("goodput", "/s", 9, lambda r: _cell(r.goodput, "")),
    ]
    used = [c for c in columns if any(c[3](row) != "-" for row in sweep.rows)]
    labels = _told_apart([row.label for row in sweep.rows])
    legend: list[str] = []
    if max(map(len, labels)) > WIDTH - 2 - sum(width for _, _, width, _ in used):
        numbers = [f"#{i}" for i in range(1, len(labels) + 1)]
        for number, row in zip(numbers, sweep.rows, strict=True):
            legend += _wrapped(f"{number} {row.label}")
        labels = numbers
    lines = [_head(f"{len(sweep.rows)} runs")]
    for heads in zip(*(c[:2] for c in used), strict=True):
        lines.append("".join(f"{h:>{c[2]}}" for h, c in zip(heads, used, strict=True)))
    lines[-2] += "  run"
    for row, label in zip(sweep.rows, labels, strict=True):
        lines.append("".join(f"{cell(row):>{width}}" for _, _, width, cell in used) + f"  {label}")
    lines += legend
    lines += _wrapped("TTFT, TPOT, E2E: means. In system: mean number of requests [occupancy].")
    judged = [run for run in audit.runs if run.goodput is not None]
    if judged and audit.slo is not None:
        lines += _wrapped(
            f"Within: {_limits_text(audit.slo)}; {percent(audit.slo.target)} of the requests must "
            "be [goodput]."
        )
    elif judged:
        lines += _wrapped("Within: the limits that each file names itself [goodput].")
    lines.append("")
    if sweep.saturation is not None:
        lines += _wrapped(f"Saturation: {sweep.saturation.says} [goodput]")
    elif sum(row.offered is not None for row in sweep.rows) >= 3:
        lines += _wrapped(
            "Saturation: not reached, or not one sweep: no saturation point can be told [goodput]."
        )
    if sweep.best is not None:
        rate = shown(sweep.best.goodput or 0.0, "1/s")
        lines += _wrapped(f"Largest goodput: {rate}, in {sweep.best.label} [goodput].")
    if audit.slo is not None:
        missed = sum(r.goodput is not None and r.goodput.outcome == "missed" for r in judged)
        says = f"SLO missed in {missed} of {len(judged)} runs." if judged else ""
        if blind := len(audit.runs) - len(judged):
            says += f" {blind} of {len(audit.runs)} runs have no rows to judge."
        lines += _wrapped(says.strip())
    if lines[-1]:
        lines.append("")
    lines += [*_several_text(audit, sweep)]
    return lines


def _cell(value: float | None, unit: str, digits: int = 4) -> str:
    return "-" if value is None else shown(value, unit, digits)


def _told_apart(labels: Sequence[str]) -> list[str]:
    """The labels without what they share at their ends, cut between words."""
    begin = _shared(labels)
    begin = begin[: max(begin.rfind(mark) + 1 for mark in "-_ ")]
    end = _shared([label[len(begin) :][::-1] for label in labels])[::-1]
    cuts = [at for at in map(end.find, "-_. #") if at >= 0]
    size = len(end) - min(cuts) if cuts else 0
    return [label[len(begin) : len(label) - size] or label for label in labels]


def _shared(words: Sequence[str]) -> str:
    """The letters that all begin with."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*words, strict=False))
    return "".join(letters[0] for letters in alike)


def _several_text(audit: Audit, sweep: Sweep) -> list[str]:
    """What the runs' ledgers say beside the table, each thing once."""
    checked = [row for run in audit.runs for row in run.identities if row.verdict != "not checked"]
    broken = [row for row in checked if row.verdict == "broken"]
    lines = _wrapped(f"Identities: {len(checked)} checked, {len(broken)} broken.")
    for name in dict.fromkeys(row.name for row in broken):
        off = [row for row in broken if row.name == name]
        most = max(off, key=lambda row: row.error or 0.0)
        said = f"{name}: broken in {len(off)} of {len(audit.runs)} runs, by up to {_gap(most)}"
        first, *more = _wrap_at(said)
        lines += [_cited(first, most.chapter), *more]
    figures = [row for run in audit.runs for row in run.stated]
    agree = sum(row.agrees is True for row in figures)
    differ = sum(row.agrees is False for row in figures)
    if figures:
        lines += _wrapped(
            f"Of {len(figures)} figures that the files state, {agree} follow from their rows, "
            f"{differ} differ, {len(figures) - agree - differ} cannot be checked [dialects]."
        )
    lines.append("")
    names = list(dict.fromkeys(s.name for run in audit.runs for s in run.suspicions))
    if not names:
        lines.append("  Nothing suspicious in the data.")
    for name in names:
        hit = [(r, s) for r in audit.runs for s in r.suspicions if s.name == name]
        run, found = hit[-1]
        own = [s for s in sweep.suspicions if s.name == name]
        where = f"{len(hit)} of {len(audit.runs)} runs"
        first, *more = _wrap_at(f"{name}, in {where}. {run.label}: {found.seen}.")
        lines += [_cited(first, found.chapter), *more]
        for extra in own:
            lines += _wrapped(f"{extra.seen[0].upper()}{extra.seen[1:]}.", "  ")
        why = own[0].why if own else found.why
        lines += _wrapped(f"{why[0].upper()}{why[1:]}.", "    ")
    lines.append("")
    labels = _told_apart([run.label for run in audit.runs])
    for label, run in zip(labels, audit.runs, strict=True):
        if run.diagnosis is not None:
            says = "; ".join(v.rule for v in run.diagnosis.verdicts) or "no rule fits"
            lines += _wrapped(f"Diagnosis of {label}: {says} [diagnosis].")
    lines.append("  The ledger of each run in full, and what the verdicts rest on: --each.")
    return lines


def to_json(audit: Audit) -> str:
    """The audit as strict JSON: no NaN, and an unlimited rate is the text "inf".

    Parameters
    ----------
    audit : what `audit` returned.

    Returns
    -------
    One object, keys as the fields of `Audit` and its parts, with "schema" and "missed"; the runs'
    arrays are left out. Raises ValueError if a figure is NaN, which none is.
    """
    plain = {"schema": SCHEMA, "missed": audit.missed, **_plain(audit)}
    return json.dumps(plain, allow_nan=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and NumPy numbers as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in fields(value)
            if not isinstance(getattr(value, f.name), BenchmarkRun)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isnan(value) and not isfinite(value):
        return "inf" if value > 0 else "-inf"
    return value
