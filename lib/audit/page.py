"""An audit as one self-contained HTML page: no script, nothing loaded, light, dark and on paper.

Whatever comes from a file is escaped. Figures are inline SVG in the style of the book. Their size
is bounded: of more than `MARKS` requests a figure shows quantiles, and its caption says so.
"""

import html as markup
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._validate import FloatArray
from lib.audit import (
    Audit,
    Distribution,
    Goodput,
    Identity,
    Quantity,
    RunAudit,
    Slo,
    Stated,
    Sweep,
    percent,
    shown,
)
from lib.diagnosis import Diagnosis
from lib.figures import BLUE, GREY, ORANGE, RED, STYLE
from lib.occupancy import occupancy_curve
from lib.record import RequestLog
from lib.suspicions import Suspicion

MARKS = 1000
"""Up to so many requests a figure has a mark for each."""

GROUPS = 200
"""Of more it shows so many groups of requests, or so many parts of the time."""

LONGEST = 1000
"""Characters of one text; a file's name or model can be as long as it likes."""


SPACE = "\N{NO-BREAK SPACE}"
"""Between a number and its unit."""


# Text ---------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """A text as HTML text: escaped, one line, with nothing invisible in it."""
    shown = str(value)
    shown = shown if len(shown) <= LONGEST else shown[:LONGEST] + "…"
    plain = (c if c.isprintable() or c == SPACE else f"\\u{ord(c):04x}" for c in shown)
    return markup.escape("".join(plain))


# Figures ------------------------------------------------------------------------------------------


def _figure(
    name: str, height: float, alt: str, caption: str, draw: Callable[[Figure], None]
) -> str:
    """An HTML figure: what `draw` puts on a figure of this height (inches), as inline SVG."""
    out = StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # the reader's own matplotlibrc does not change the page
        mpl.rcParams.update(STYLE)
        mpl.rcParams["svg.hashsalt"] = name  # a figure's ids are its own
        figure = Figure(figsize=(4.8, height), layout="constrained")
        draw(figure)
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view  # matplotlib writes one
    # Inside HTML the prolog, the metadata and the namespaces only hold addresses, and the ids of
    # groups are the same in every figure.
    inner = svg[svg.index("<defs>") : svg.rindex("</svg>")]
    inner = re.sub(r'<g id="[^"]*"', "<g", inner).replace("xlink:href", "href")
    return (
        f'<figure><svg {view.group()} role="img" aria-label="{_text(alt)}">{inner}</svg>'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )


def _wide(value: FloatArray) -> bool:
    """True when only a logarithmic axis shows both the usual and the largest value."""
    return bool(value.size and value.min() > 0 and value.max() > 20 * np.median(value))


def _tpot(log: RequestLog) -> FloatArray:
    """TPOT (s per token); missing where an answer has no gap."""
    gaps = np.where(log.output_tokens > 1, log.output_tokens - 1, np.nan)
    return (log.last_token - log.first_token) / gaps


def _latencies(log: RequestLog) -> dict[str, FloatArray]:
    """TTFT, TPOT and E2E of the requests that succeeded (s); missing for all others."""
    answered = np.where(log.succeeded, 0.0, np.nan)
    return {
        "ttft": log.first_token - log.arrival + answered,
        "tpot": _tpot(log) + answered,
        "e2e": log.last_token - log.arrival + answered,
    }


def _latency_figure(name: str, log: RequestLog, limits: Mapping[str, float]) -> str:
    """TTFT and TPOT of each request over time: warm-up and growth show here."""
    clock = log.shared_clock and bool(np.isfinite(log.arrival).all())
    at = log.arrival - log.arrival.min() if clock else np.arange(len(log), dtype=np.float64)
    order = np.argsort(at, kind="stable")
    values = _latencies(log)
    failed = np.sort(at[~log.succeeded])

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for ax, metric in zip(panels, ("ttft", "tpot"), strict=True):
            known = order[np.isfinite(values[metric][order])]
            value = 1e3 * values[metric][known]
            _over(ax, at[known], value)
            if metric in limits:
                ax.axhline(1e3 * limits[metric], color=RED, lw=1.2, ls="--")
            if _wide(value):
                ax.set_yscale("log")
            else:
                ax.set_ylim(bottom=0)
            ax.set_ylabel(f"{metric.upper()} (ms)")
        if failed.size:
            some = failed[:: -(-failed.size // GROUPS)]
            where = panels[0].get_xaxis_transform()
            panels[0].plot(some, 0 * some, "|", color=RED, ms=9, transform=where, clip_on=False)
        panels[1].locator_params(axis="x", nbins=6)
        panels[1].set_xlabel("time of arrival (s)" if clock else "request, in order of the file")

    n = int(np.isfinite(values["ttft"]).sum())
    how = "One dot a request."
    if n > MARKS:
        how = (
            f"{n:,} requests in {GROUPS} groups in order of arrival: median (line), "
            "5 % to 95 % (band), largest (dots)."
        )
    if {"ttft", "tpot"} & set(limits):
        how += " Dashed: the limit."
    if failed.size:
        how += f" Red ticks below TTFT: {failed.size:,} failed requests."
        how += f" One tick in {-(-failed.size // GROUPS)} is drawn." if failed.size > GROUPS else ""
    return _figure(
        name,
        4.4,
        "Time to first token and time per output token of the requests against time.",
        "Is the run steady? Slow requests at the start are warm-up; growth to the end is a queue "
        f"that does not drain. {how}",
        draw,
    )


def _over(ax: Axes, at: FloatArray, value: FloatArray) -> None:
    """Values over time: dots, or quantiles of groups that follow each other."""
    if at.size <= MARKS:
        ax.plot(at, value, "o", ms=3, mec="none", alpha=0.7, color=BLUE)
        return
    groups = zip(np.array_split(at, GROUPS), np.array_split(value, GROUPS), strict=True)
    middle, low, mid, high, top = np.transpose(
        [(x.mean(), *np.quantile(y, (0.05, 0.5, 0.95)), y.max()) for x, y in groups]
    )
    ax.fill_between(middle, low, high, color=BLUE, alpha=0.3, lw=0)
    ax.plot(middle, mid, color=BLUE, lw=1.2)
    ax.plot(middle, top, "o", ms=2, mec="none", color=ORANGE)


def _occupancy_figure(name: str, start: FloatArray, end: FloatArray) -> str:
    """Requests in the system over time, by the exact sweep."""
    curve = occupancy_curve(start, end)
    times, counts = curve.times - curve.times[0], curve.counts
    area = np.concatenate([[0], np.cumsum(counts[:-1] * np.diff(times))])
    mean = area[-1] / times[-1] if times[-1] > 0 else 0.0
    many = times.size > 2 * MARKS

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        if many:
            edges = np.linspace(0, times[-1], GROUPS + 1)
            average = np.diff(np.interp(edges, times, area)) / np.diff(edges)
            first = np.searchsorted(times, edges[:-1], side="right") - 1
            last = np.maximum(np.searchsorted(times, edges[1:]), first + 1)
            inside = [counts[i:j] for i, j in zip(first, last, strict=True)]
            low, high = [c.min() for c in inside], [c.max() for c in inside]
            ax.stairs(high, edges, baseline=low, fill=True, color=BLUE, alpha=0.3, lw=0)
            ax.stairs(average, edges, baseline=None, color=BLUE, lw=1.2)
        else:
            ax.step(times, counts, where="post", color=BLUE, lw=1)
        ax.axhline(mean, color=GREY, lw=1.2, ls="--")
        ax.locator_params(axis="x", nbins=6)
        ax.set(xlabel="time (s)", ylabel="requests in the system")
        ax.set_ylim(bottom=0)

    how = "Each arrival and each last token is a step."
    if many:
        how = (
            f"{start.size:,} requests, time in {GROUPS} equal parts: mean (line), "
            "smallest to largest (band)."
        )
    return _figure(
        name,
        3.0,
        "Number of requests in the system against time.",
        "How many requests are in the system? A flat top is a limit that binds; a ramp is a "
        f"backlog. {how} Dashed: the mean, {mean:.3g}.",
        draw,
    )


def _attainment_figure(name: str, log: RequestLog, limits: Mapping[str, float]) -> str:
    """The share of the requests within a limit, for every limit."""
    metrics = list(limits) or ["ttft", "tpot"]
    values = _latencies(log)
    failed = int((~log.succeeded).sum())

    def draw(figure: Figure) -> None:
        panels = np.atleast_1d(figure.subplots(len(metrics), 1))
        for ax, metric in zip(panels, metrics, strict=True):
            value = np.sort(1e3 * values[metric])
            value = value[np.isfinite(value)]
            if value.size:
                marks = np.linspace(0, value.size - 1, min(value.size, MARKS)).astype(int)
                share = 100 * (marks + 1) / (value.size + failed)
                ax.step(value[marks], share, where="post", color=BLUE)
            if metric in limits:
                ax.axvline(1e3 * limits[metric], color=RED, lw=1.2, ls="--")
            if _wide(value):
                ax.set_xscale("log")
            else:
                ax.set_xlim(left=0)
            ax.set(xlabel=f"limit on {metric.upper()} (ms)", ylim=(0, 103))
            ax.set_ylabel("within (%)")

    note = " Dashed: the limit given." if limits else ""
    note += f" {failed:,} failed requests meet no limit." if failed else ""
    return _figure(
        name,
        0.4 + 2.0 * len(metrics),
        "Share of the requests within a limit, against the limit.",
        f"What would another limit give? Each one alone, over all requests.{note}",
        draw,
    )


def _sweep_figure(name: str, sweep: Sweep) -> str:
    """Throughput and goodput against the offered rate, all per second."""
    rows = [r for r in sweep.rows if r.offered is not None and np.isfinite(r.offered)]
    if len({r.offered for r in rows}) < 2:
        return ""
    top = max(r.offered for r in rows if r.offered is not None)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.plot([0, top], [0, top], color=GREY, lw=1, ls=":", label="offered")
        for field, style, color in (("throughput", "s-", BLUE), ("goodput", "o-", ORANGE)):
            known = [r for r in rows if getattr(r, field) is not None]
            if known:
                height = [getattr(r, field) for r in known]
                ax.plot([r.offered or 0 for r in known], height, style, color=color, label=field)
        if sweep.saturation is not None:
            most = sweep.saturation.throughput
            ax.axhline(most, color=RED, lw=1.2, ls="--", label="saturation")
        ax.set(xlabel="offered rate (requests/s)", ylabel="requests/s")
        ax.set(xlim=(0, None), ylim=(0, None))
        ax.legend()

    return _figure(
        name,
        3.2,
        "Throughput and goodput against the offered rate.",
        "How much can it take? Throughput follows the offered rate up to saturation. Goodput "
        "peaks at or before it.",
        draw,
    )


# The page -----------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2326; --soft: #5a6468; --ground: #fff; --line: #d5dadc;
  --accent: #1f6f78; --good: #1a7f37; --bad: #b3243e; --tint: rgb(31 111 120 / 8%); }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7e8; --soft: #9aa5a9; --ground: #14181a;
  --line: #343c40; --accent: #74c7d0; --good: #6cc784; --bad: #f08a9b;
  --tint: rgb(116 199 208 / 12%); }
  figure svg { filter: invert(0.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); overflow-wrap: anywhere;
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
body > * { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
h1 { margin: 1.6rem 0 0.2rem; font-size: 1.6rem; line-height: 1.25; }
h2 { margin: 2.6rem 0 0.4rem; padding-top: 0.6rem; border-top: 3px solid var(--accent);
  font-size: 1.3rem; }
h3 { margin: 1.8rem 0 0.4rem; font-size: 1.05rem; }
p { margin: 0.4rem 0; max-width: 48rem; }
.soft, figcaption, footer { color: var(--soft); font-size: 0.88rem; }
.box { margin: 0.7rem 0; padding: 0.6rem 0.9rem; border: 1px solid var(--line);
  border-left: 0.35rem solid var(--accent); background: var(--tint); }
.box.good { border-left-color: var(--good); }
.box.bad { border-left-color: var(--bad); }
.box p { margin: 0.15rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; }
th { border-bottom: 2px solid var(--accent); color: var(--soft); font-weight: 600;
  vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); vertical-align: top; }
th, td { padding: 0.3rem 0.9rem 0.3rem 0; text-align: left; overflow-wrap: normal; }
td.name { min-width: 9rem; overflow-wrap: anywhere; }
td.note { min-width: 14rem; color: var(--soft); }
th.number, td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.good, td.bad, b.good, b.bad { font-weight: 600; }
td.good, td.bad, td.verdict { white-space: nowrap; }
summary { margin: 0.5rem 0; color: var(--accent); font-size: 0.88rem; cursor: pointer; }
.good:is(td, b) { color: var(--good); }
.bad:is(td, b) { color: var(--bad); }
.figures { display: grid; gap: 1.2rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0.6rem 0; max-width: 34rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
nav ul { margin: 0.3rem 0; padding-left: 1.2rem; }
a { color: var(--accent); }
footer { padding-top: 1.5rem; padding-bottom: 2rem; }
@media (width <= 40rem) { th, td { padding-right: 0.6rem; } td.name { min-width: 6rem; }
  td.note { min-width: 7rem; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --ground: #fff;
  --line: #bbb; --accent: #1f6f78; --good: #1a7f37; --bad: #b3243e; --tint: none; }
  figure svg { filter: none; } .wide { overflow: visible; } table { font-size: 0.75rem; }
  th, td { padding-right: 0.5rem; } tr, .box { break-inside: avoid; }
  h2, h3 { break-after: avoid; } details::details-content { content-visibility: visible; } }
"""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""


def html(audit: Audit) -> str:
    """The audit as an HTML page that needs nothing beside it.

    Parameters
    ----------
    audit : what `audit` returned.

    Returns
    -------
    The page. The same audit gives the same text. It holds no script and loads nothing; a text
    from a file cannot become markup. Of many requests a figure shows quantiles, so the page of a
    million requests is as small as that of a thousand.

    Raises
    ------
    ValueError : the audit holds no run.
    """
    if not audit.runs:
        raise ValueError("audit must hold a run: got none")
    files = list(dict.fromkeys(run.file for run in audit.runs))
    title = f"Ledger of {files[0]}" if len(files) == 1 else f"Ledger of {len(files)} files"
    several = len(audit.runs) > 1
    parts = [_HEAD, f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"]
    parts += [f"<header>\n<h1>{_text(title)}</h1>\n{_promise(audit)}</header>\n<main>\n"]
    if several:
        links = [
            f'<li><a href="#run-{i}">{_text(run.label)}</a>{_state(run)}</li>'
            for i, run in enumerate(audit.runs, 1)
        ]
        parts.append(f"<nav><h2>Runs</h2>\n<ul>{''.join(links)}</ul></nav>\n")
    if audit.sweep is not None:
        parts.append(_sweep(audit.sweep))
    for i, run in enumerate(audit.runs, 1):
        name = f"<h2>{_text(run.label)}</h2>\n" if several else ""
        parts.append(f'<section id="run-{i}">\n{name}{_run(i, run)}</section>\n')
    parts.append(
        "</main>\n<footer>Made by lib.audit of The Serving Ledger. Names in brackets are the "
        "chapters that derive the figures.</footer>\n</body>\n</html>\n"
    )
    return "".join(parts)


def _shown(value: float | None, unit: str, digits: int = 4) -> str:
    """A figure as the audit's own text has it, with a true minus, unbroken; empty if missing."""
    return "" if value is None else _unbroken(shown(value, unit, digits))


def _percent(share: float | None) -> str:
    return "" if share is None else _unbroken(percent(share))


def _unbroken(text: str) -> str:
    text = text.replace("e-0", "e-").replace("-", "\N{MINUS SIGN}").replace(" us", " µs")
    return text.replace(" ", SPACE)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text as a table that scrolls in its own box. A column's first letter in `head` is
    its kind: "#" a number, "?" a verdict, "." a note, "=" a name."""
    kinds = {"#": "number", "?": "verdict", ".": "note", "=": "name"}
    columns = [(kinds[column[0]], column[1:]) for column in head]
    top = "".join(f'<th class="{kind}">{_text(name)}</th>' for kind, name in columns)
    body = []
    for row in rows:
        cells = []
        for (kind, _), value in zip(columns, row, strict=True):
            mark = _VERDICTS.get(value, "verdict") if kind == "verdict" else kind
            cells.append(f'<td class="{mark}">{_text(value)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    if not body:
        return ""
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{chr(10).join(body)}</tbody></table></div>\n"
    )


_VERDICTS = {"holds": "good", "agrees": "good", "broken": "bad", "differs": "bad"}


def _box(kind: str, *lines: str) -> str:
    return f'<div class="box {kind}">{"".join(f"<p>{line}</p>" for line in lines)}</div>\n'


def _folded(line: str, content: str) -> str:
    return f"<details><summary>{line}</summary>\n{content}</details>\n" if content else ""


def _slo_words(slo: Slo) -> str:
    units = {"ttft": "s", "tpot": "s/token", "e2e": "s"}
    limits = [f"{m.upper()} ≤ {_shown(x, units[m])}" for m, x in slo.limits().items()]
    return f"{', '.join(limits)} for {_percent(slo.target)} of the requests"


def _promise(audit: Audit) -> str:
    """The first thing a reader of several runs wants to know; a single run says it itself."""
    if audit.slo is None:
        return '<p class="soft">No limits were given, so nothing is judged against an SLO.</p>\n'
    if len(audit.runs) == 1:
        return ""
    outcomes = [run.goodput.outcome for run in audit.runs if run.goodput is not None]
    missed, met = outcomes.count("missed"), outcomes.count("met")
    words = {"missed": missed, "met": met, "not judged": len(audit.runs) - missed - met}
    said = ", ".join(f"{word} by {n:,}" for word, n in words.items() if n)
    kind = "bad" if missed else "good"
    verdict = f'<b class="{kind}">{said}</b> of {len(audit.runs):,} runs'
    return _box(kind, f"{_text(_slo_words(audit.slo))}: {verdict}.")


def _state(run: RunAudit) -> str:
    """What to know of a run before reading on."""
    said = []
    if run.goodput is not None and run.goodput.outcome != "not asked":
        kind = "bad" if run.goodput.outcome == "missed" else "good"
        said.append(f'<b class="{kind}">SLO {_text(run.goodput.outcome)}</b>')
    broken = sum(identity.verdict == "broken" for identity in run.identities)
    said += [
        f"{n:,} {_text(what)}"
        for n, what in (
            (broken, "identities broken" if broken > 1 else "identity broken"),
            (len(run.suspicions), "suspicions" if len(run.suspicions) > 1 else "suspicion"),
        )
        if n
    ]
    return f": {', '.join(said)}" if said else ""


def _suspicions(suspicions: Iterable[Suspicion]) -> str:
    return "".join(
        _box(
            "bad",
            f"<b>{_text(s.name)}</b>: {_text(s.seen)}.",
            f'<span class="soft">{_text(_sentence(s.why))} [{_text(s.chapter)}]</span>',
        )
        for s in suspicions
    )


def _broken(identities: Iterable[Identity]) -> str:
    """What the reader must not miss in the table of identities."""
    return "".join(
        _box(
            "bad",
            f"<b>{_text(i.name)}</b> does not hold: it is off by "
            f"{_text(_shown(i.error, i.unit, 2))}, rounding explains "
            f"{_text(_shown(i.tolerance, i.unit, 2))}.",
            f'<span class="soft">{_text(_sentence(i.note))} [{_text(i.chapter)}]</span>',
        )
        for i in identities
        if i.verdict == "broken"
    )


def _quantities(quantities: Iterable[Quantity]) -> str:
    rows = ((q.name, _shown(q.value, q.unit), f"[{q.chapter}] {q.note}") for q in quantities)
    return _table(("=figure", "#value", ".[chapter] note"), rows)


def _distributions(latencies: Sequence[Distribution]) -> str:
    """The percentiles as columns; one that a sample does not carry is a dash."""
    carried = sorted({q for d in latencies for q, _ in d.percentiles})
    head = ["=latency", "#n", "#mean", "#least", *(f"#p{q:g}" for q in carried), "#most"]
    rows = []
    for d in latencies:
        known = dict(d.percentiles)
        values = [d.mean, d.smallest, *(known.get(q) for q in carried), d.largest]
        # The time per token is shown as a time: its unit would not fit into every cell.
        rows.append([d.name, f"{d.n:,}", *(_shown(value, "s") or "–" for value in values)])
    notes = [f"{d.name} [{d.chapter}] {d.note}".strip() + "." for d in latencies]
    if withheld := sorted({q for d in latencies for q in d.withheld}):
        listed = ", ".join(f"p{q:g}" for q in withheld)
        notes.append(f"Withheld where the sample is too small to carry it: {listed}.")
    return _table(head, rows) + (f'<p class="soft">{_text(" ".join(notes))}</p>\n' if rows else "")


def _goodput(goodput: Goodput) -> str:
    joint, low, high = goodput.joint, goodput.rate_low, goodput.rate_high
    kind = {"met": "good", "missed": "bad"}.get(goodput.outcome, "")
    verdict = f"{_text(_slo_words(goodput.slo))}: "
    if goodput.slo.given:
        verdict += f'<b class="{kind}">{goodput.outcome}</b>'
        verdict += (
            "."
            if goodput.decided
            else (", but the interval holds the target: too few requests to be sure.")
        )
    else:
        verdict += "limits that the file names."
    share = (
        f"{joint.good:,} of {joint.judged:,} requests keep it all: {_percent(joint.ratio)} "
        f"(95{SPACE}%: {_percent(joint.low)} to {_percent(joint.high)})."
    )
    if goodput.rate is not None:
        share += f" Goodput {_shown(goodput.rate, '1/s')}"
        share += f" (95{SPACE}%: {_shown(low, '1/s')} to {_shown(high, '1/s')})"
        share += f" over {_shown(goodput.window, 's')}."
    note = f"95{SPACE}%: Wilson's interval, if requests are independent."
    note += f" {_sentence(goodput.note)}" if goodput.note else ""
    lines = [verdict, _text(share), f'<span class="soft">{_text(note)}</span>']
    rows = [
        (
            s.name,
            _shown(s.limit, "s/token" if s.name == "TPOT" else "s"),
            f"{s.good:,} of {s.judged:,}",
            _percent(s.ratio),
            f"{_percent(s.low)} to {_percent(s.high)}",
        )
        for s in goodput.single
    ]
    each = _table(("=limit on", "#at", "#within", "#share", "#95 % interval"), rows)
    return _box(kind, *lines) + (each if len(rows) > 1 else "")


def _identities(identities: Iterable[Identity]) -> str:
    rows = (
        (
            i.name,
            i.verdict,
            _shown(i.error, i.unit, 2),
            _shown(i.tolerance, i.unit, 2),
            f"{i.n:,}",
            f"[{i.chapter}] {i.note}",
        )
        for i in identities
    )
    head = ("=identity", "?verdict", "#largest gap", "#rounding allows", "#checked")
    return _table((*head, ".[chapter] note"), rows)


def _stated(stated: Sequence[Stated]) -> str:
    """What differs in full; all else behind lines that open."""
    words = {True: "agrees", False: "differs", None: "not recomputed"}

    def table(rows: Iterable[Stated]) -> str:
        cells = (
            (
                s.key,
                _shown(s.stated, s.unit, 6),
                _shown(s.recomputed, s.unit, 6),
                words[s.agrees],
                s.why,
            )
            for s in rows
        )
        return _table(("=figure", "#the file says", "#its rows say", "?verdict", ".why"), cells)

    parts = {verdict: [s for s in stated if s.agrees is verdict] for verdict in words}
    lines = [
        _folded(f"{len(parts[verdict])} of {len(stated)} figures {says}", table(parts[verdict]))
        for verdict, says in ((True, "agree"), (None, "are not recomputed, and why"))
    ]
    return table(parts[False]) + "".join(lines)


def _diagnosis(diagnosis: Diagnosis | None) -> str:
    """The verdicts in full, the silent rules as a table."""
    if diagnosis is None:
        return ""
    found = "".join(
        _box(
            "bad",
            f"<b>{_text(v.rule)}</b>: {_text(v.says)}",
            *map(_text, v.evidence),
            f'<span class="soft">Refuted by: {_text(v.refuted_by)} [diagnosis]</span>',
        )
        for v in diagnosis.verdicts
    )
    rows = [(s.rule, s.kind, s.why) for s in diagnosis.silent]
    silent = _table(("=rule", "?condition", ".why"), rows)
    none = "<p>No pattern of trouble is found in these data.</p>\n"
    return (found or none) + _folded(f"{len(rows)} rules give no verdict, and why", silent)


def _figures(name: str, run: RunAudit) -> str:
    """The figures that the run's rows allow."""
    log = run.run.requests
    if log is None or not len(log):
        return ""
    limits = run.goodput.slo.limits() if run.goodput is not None else {}
    drawn = []
    if any(np.isfinite(v).any() for v in _latencies(log).values()):
        drawn.append(_latency_figure(f"{name}-latency", log, limits))
        drawn.append(_attainment_figure(f"{name}-attainment", log, limits))
    stay = log.succeeded & np.isfinite(log.arrival) & np.isfinite(log.last_token)
    if log.shared_clock and stay.any():
        drawn.append(
            _occupancy_figure(f"{name}-occupancy", log.arrival[stay], log.last_token[stay])
        )
    return f'<div class="figures">\n{chr(10).join(drawn)}\n</div>\n' if drawn else ""


def _run(number: int, run: RunAudit) -> str:
    parts = [
        f'<p class="soft">{_text(run.tool)}, read as {_text(run.format)}, from '
        f"{_text(run.file)}.</p>\n"
    ]
    if run.notes:
        notes = "".join(f"<li>{_text(note)}</li>" for note in run.notes)
        parts.append(f'<ul class="soft">{notes}</ul>\n')
    parts += [_goodput(run.goodput)] if run.goodput is not None else []
    for title, content in (
        ("Suspicious in the data", _broken(run.identities) + _suspicions(run.suspicions)),
        ("Counts and rates", _quantities(run.counts)),
        ("Latencies", _distributions(run.latencies)),
        ("In the system", _quantities(run.occupancy)),
        ("Over time, and under other limits", _figures(f"run-{number}", run)),
        ("Identities", _identities(run.identities)),
        ("The file's own figures", _stated(run.stated)),
        ("Diagnosis", _diagnosis(run.diagnosis)),
    ):
        parts += [f"<h3>{title}</h3>\n{content}"] if content else []
    return "".join(parts)


def _sweep(sweep: Sweep) -> str:
    rows = [
        (
            r.label,
            _shown(r.offered, "1/s"),
            _shown(r.throughput, "1/s"),
            _percent(r.attainment),
            _shown(r.goodput, "1/s"),
            _shown(r.output_throughput, ""),
            _shown(r.ttft, "s"),
            _shown(r.tpot, "s"),
            _shown(r.e2e, "s"),
            _shown(r.in_system, ""),
        )
        for r in sweep.rows
    ]
    head = ["=run", "#offered", "#throughput", "#attainment", "#goodput", "#tokens/s"]
    head += ["#mean TTFT", "#mean TPOT", "#mean E2E", "#in system"]
    says = [_text(sweep.saturation.says)] if sweep.saturation is not None else []
    if sweep.best is not None and sweep.best.goodput is not None:
        best = f"{_shown(sweep.best.goodput, '1/s')} in {sweep.best.label}"
        says.append(f"Largest goodput: {_text(best)}.")
    return (
        "<section>\n<h2>The sweep</h2>\n"
        + (_box("", *says) if says else "")
        + _suspicions(sweep.suspicions)
        + _table(head, rows)
        + _sweep_figure("sweep", sweep)
        + "</section>\n"
    )
