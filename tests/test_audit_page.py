"""The report: one page, well formed, self-contained, escaped, small and the same every time."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

from lib import benchmarks
from lib.audit import (
    Audit,
    Distribution,
    Goodput,
    Identity,
    Quantity,
    RunAudit,
    Saturation,
    Share,
    Slo,
    Stated,
    Suspicion,
    Sweep,
    SweepRow,
)
from lib.audit import (
    page as report,
)
from lib.benchmarks import BenchmarkRun
from lib.diagnosis import Diagnosis, Silence, Verdict
from lib.occupancy import peak
from lib.record import RequestLog

VOID = {"meta", "path", "use", "rect", "stop"}
SLO = Slo(ttft=0.25, tpot=0.025, target=0.9)


class Page(HTMLParser):
    """Collects tags and text, and fails where an element is not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += [" "] if tag in {"h1", "h2", "h3", "p", "td", "th", "li"} else []

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).replace("\N{NO-BREAK SPACE}", " ").split())


def log(n=120, seed=1, failed=0.0, slow=1.0):
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(0.25, n))
    first = arrival + slow * rng.lognormal(-2, 0.5, n)
    tokens = rng.integers(1, 60, n)
    return RequestLog(
        arrival=arrival,
        input_tokens=np.full(n, 100),
        output_tokens=tokens,
        first_token=first,
        last_token=first + (tokens - 1) * 0.02,
        succeeded=rng.random(n) >= failed,
    )


def run_audit(requests, label="4 a second", goodput=True, **changes):
    share = Share(name="TTFT", limit=0.25, good=90, judged=120, ratio=0.75, low=0.66, high=0.82)
    told = {
        "label": label,
        "file": "run.json",
        "tool": "vllm",
        "format": "vllm",
        "notes": ("4 warm-up requests left out",),
        "counts": (
            Quantity(name="requests sent", value=12345, unit="requests", chapter="goodput"),
            Quantity(name="throughput", value=3.8671, unit="1/s", chapter="goodput", note="all"),
        ),
        "latencies": (
            Distribution(
                name="TTFT",
                unit="s",
                n=120,
                mean=0.16531,
                smallest=0.058,
                largest=0.419,
                percentiles=((50, 0.1566), (99, 0.3722)),
                withheld=(99.9,),
                chapter="ttft",
            ),
        ),
        "occupancy": (Quantity(name="mean", value=5.07, unit="requests", chapter="occupancy"),),
        "identities": (
            Identity(
                name="E2E = TTFT + (N - 1) TPOT",
                verdict="holds",
                error=1e-12,
                tolerance=1e-9,
                unit="s",
                n=120,
                chapter="e2e",
            ),
            Identity(
                name="L = lambda W",
                verdict="broken",
                error=0.5,
                tolerance=1e-9,
                unit="requests",
                n=1,
                chapter="occupancy",
            ),
        ),
        "goodput": Goodput(
            slo=SLO,
            joint=share,
            single=(share, replace(share, name="TPOT", limit=0.025, good=120, ratio=1.0)),
            rate=2.8,
            rate_low=2.5,
            rate_high=3.1,
            window=31.0,
            outcome="missed",
            decided=True,
        )
        if goodput
        else None,
        "stated": (
            Stated(key="ttft.mean", stated=0.165, recomputed=0.165, unit="s", agrees=True),
            Stated(
                key="peak_concurrency",
                stated=14,
                recomputed=12,
                unit="requests",
                agrees=False,
                why="bins",
            ),
            Stated(key="ttft.p99", stated=0.3, recomputed=None, unit="s", agrees=None, why="rows"),
        ),
        "suspicions": (
            Suspicion(name="whole-second bins", seen="14 > 12", why="overcounts", chapter="audit"),
        ),
        "diagnosis": Diagnosis(
            (Verdict("queue", "late for its queue", "They wait.", ("90 of 120.",), "an idle run"),),
            (Silence("kv", "slow engine", "not known", "no floor"),),
        ),
        "run": BenchmarkRun(tool="vllm", requests=requests),
    }
    return RunAudit(**told | changes)


def audit_of(*runs, slo=SLO):
    rows = tuple(
        SweepRow(
            label=run.label,
            offered=float(rate),
            throughput=min(rate, 3.5),
            output_throughput=100.0,
            ttft=0.1,
            tpot=0.02,
            e2e=1.0,
            in_system=5.0,
            attainment=None if rate > 3 else 1 / rate,
            goodput=None if rate > 3 else 1.0,
        )
        for rate, run in enumerate(runs, 1)
    )
    says = Saturation(throughput=3.5, below=3.0, beyond=4.0, says="It saturates.")
    sweep = Sweep(rows=rows, saturation=says, best=rows[0], suspicions=())
    return Audit(runs=runs, slo=slo, sweep=sweep if len(runs) > 1 else None)


def one(**changes):
    return audit_of(run_audit(log(), **changes))


SUMMARY_ONLY = {
    "goodput": False,
    "counts": (),
    "latencies": (),
    "identities": (),
    "diagnosis": None,
}
PAGES = {
    "one run": one(),
    "no limits": audit_of(run_audit(log(), goodput=False), slo=None),
    "failures": audit_of(run_audit(log(failed=0.2))),
    "all failed": audit_of(run_audit(log(failed=1.1))),
    "one request": audit_of(run_audit(log(n=1))),
    "summary only": audit_of(run_audit(None, **SUMMARY_ONLY)),
    "sweep": audit_of(*(run_audit(log(seed=i), label=f"run {i}") for i in range(4))),
    "summary in a sweep": audit_of(run_audit(log()), run_audit(None, **SUMMARY_ONLY)),
    "slow start": audit_of(run_audit(log(slow=100.0))),
    "own clocks": audit_of(run_audit(replace(log(), shared_clock=False))),
    "many": audit_of(run_audit(log(n=5000, failed=0.3))),
}


@cache
def rendered(name="one run"):
    return report.html(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_page_is_well_formed_and_stands_alone(name):
    text = rendered(name)
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert names.count("h1") == names.count("title") == names.count("main") == 1
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(names)
    assert not re.search(r"https?:|//|@import|javascript:", text)
    for tag, attrs in page.tags:
        assert not any(name.startswith("on") for name in attrs), tag
        target = attrs.get("href", "#run-1")  # only within the page, and to something that exists
        assert target.startswith("#")
        if "href" in attrs:
            assert target[1:] in page.ids
        for name in re.findall(r"url\((.*?)\)", " ".join(map(str, attrs.values()))):
            assert name.strip("'\"").lstrip("#") in page.ids
    for tag, attrs in page.tags:
        if tag == "svg":
            assert attrs["role"] == "img"
            assert attrs["aria-label"]
    assert names.count("figcaption") == names.count("svg")
    assert '<meta name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "nan" not in page.words.lower().split()


def test_page_says_what_the_audit_says():
    words = Page(rendered()).words
    for said in (
        "Ledger of run.json",
        "TTFT ≤ 250 ms, TPOT ≤ 25 ms/token for 90.0 % of the requests: missed.",
        "90 of 120 requests keep it all: 75.0 % (95 %: 66.0 % to 82.0 %)",
        "Goodput 2.8 /s (95 %: 2.5 /s to 3.1 /s) over 31 s",
        "12,345 requests",
        "3.867 /s",
        "whole-second bins: 14 > 12. Overcounts. [audit]",
        "L = lambda W does not hold: it is off by 0.5 requests",
        "4 warm-up requests left out",
        "TTFT (ms)",
        "372.2",
        "Withheld where the sample is too small to carry it: p99.9.",
        "E2E = TTFT + (N - 1) TPOT holds 1e−6 µs 0.001 µs 120",
        "L = lambda W broken 0.5 requests 1e−9 requests",
        "peak_concurrency 14 requests 12 requests differs bins",
        "ttft.p99 300 ms not recomputed rows",
        "queue: They wait. 90 of 120. Refuted by: an idle run",
        "kv not known no floor",
        "1 rules give no verdict",
        "1 of 3 figures agree",
    ):
        assert said in words, said


def test_verdicts_are_marked_for_the_eye_and_in_words():
    text = rendered()
    assert '<td class="good">holds</td>' in text
    assert '<td class="bad">broken</td>' in text
    assert '<td class="bad">differs</td>' in text


def test_target_inside_the_interval_is_said():
    run = run_audit(log())
    unsure = replace(run, goodput=replace(run.goodput, decided=False))
    assert "too few requests to be sure" in Page(report.html(audit_of(unsure))).words
    assert "too few requests to be sure" not in Page(report.html(audit_of(run))).words


def test_without_limits_nothing_is_judged():
    words = Page(rendered("no limits")).words
    assert "No limits were given" in words
    assert "missed" not in words


def test_sweep_counts_outcomes_and_links_to_each_run():
    text = rendered("sweep")
    words = Page(text).words
    assert "missed by 4 of 4 runs" in words
    assert "It saturates." in words
    assert "Largest goodput: 1 /s in run 0." in words
    for i in range(1, 5):
        assert f'href="#run-{i}"' in text
        assert f'id="run-{i}"' in text
    assert "Throughput and goodput against the offered rate." in text


HOSTILE = "\"><script>alert(1)</script><img src=x onerror=y>&amp;'--></style></title>]]>"


def test_text_from_files_cannot_become_markup():
    bad = HOSTILE
    run = run_audit(log(), label=bad)
    run = replace(
        run,
        **dict.fromkeys(("file", "tool", "format"), bad),
        notes=(bad,),
        counts=(Quantity(name=bad, value=1, unit=bad, chapter=bad, note=bad),),
        latencies=tuple(replace(d, name=bad, unit=bad, note=bad) for d in run.latencies),
        identities=tuple(replace(i, name=bad, unit=bad, note=bad) for i in run.identities),
        stated=(Stated(key=bad, stated=1.0, recomputed=1.0, unit=bad, agrees=True, why=bad),),
        suspicions=(Suspicion(name=bad, seen=bad, why=bad, chapter=bad),),
        goodput=replace(
            run.goodput, note=bad, single=tuple(replace(s, name=bad) for s in run.goodput.single)
        ),
        diagnosis=Diagnosis((Verdict(bad, bad, bad, (bad,), bad),), (Silence(bad, bad, bad, bad),)),
    )
    other = replace(run, run=BenchmarkRun(tool=bad, requests=None))
    both = audit_of(run, other)
    both = replace(
        both,
        sweep=replace(
            both.sweep,
            saturation=replace(both.sweep.saturation, says=bad),
            suspicions=run.suspicions,
        ),
    )
    text = report.html(both)
    page, plain = Page(text), Page(rendered("sweep"))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags} | {"ul", "li"}
    assert "<script" not in text
    assert "onerror" not in {name for _, attrs in page.tags for name in attrs}
    assert page.words.count("alert(1)") > 20  # it is all there, as text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\u202egpj.exe", "a\\u202egpj.exe"),  # right to left from here on
        ("a\x00b\x1b[2J", "a\\u0000b\\u001b[2J"),
        ("a\udcffb", "a\\udcffb"),  # a byte that is no UTF-8, as file names can hold
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("Größe 模型 🚀", "Größe 模型 🚀"),
    ],
)
def test_invisible_characters_are_spelled_out(name, shown):
    text = report.html(one(file=name, label=name))
    text.encode("utf-8")
    assert shown in Page(text).words


def test_a_text_without_end_is_cut():
    text = report.html(one(file="x" * 10**6))
    assert len(text) < 200_000


def test_the_same_audit_is_the_same_page():
    assert report.html(one()) == rendered()


def test_a_readers_matplotlib_settings_change_nothing():
    import matplotlib as mpl

    before = rendered()
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "lines.linewidth": 9}):
        assert report.html(one()) == before
        assert mpl.rcParams["font.size"] == 30  # and the page leaves them alone


def test_another_value_is_another_page():
    requests = log()
    requests.first_token[7] += 1e-2
    assert report.html(audit_of(run_audit(requests))) != rendered()


def test_page_of_many_requests_is_small_and_says_how():
    text = report.html(audit_of(run_audit(log(n=200_000, failed=0.02))))
    assert len(text) < 500_000
    words = Page(text).words
    assert re.search(r"19\d,\d{3} requests in 200 groups in order of arrival", words)
    assert "time in 200 equal parts: mean (line), smallest to largest (band)" in words
    assert "failed requests. One tick in" in words


def test_page_of_few_requests_draws_each():
    text = rendered()
    assert "One dot a request." in text
    # 120 answers, and 118 or so with more than one token: a mark for each.
    tokens = log().output_tokens
    marks = sum(attrs.get("href", "") != "" for tag, attrs in Page(text).tags if tag == "use")
    assert marks >= 120 + np.sum(tokens > 1)


def values_of(monkeypatch, method, call):
    """What a figure hands to a method of matplotlib's axes."""
    from matplotlib.axes import Axes

    seen, original = [], getattr(Axes, method)

    def spy(self, *args, **kwargs):
        seen.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Axes, method, spy)
    call()
    return seen


def test_attainment_counts_failures_as_beyond_every_limit(monkeypatch):
    requests = log(failed=0.25)
    steps = values_of(
        monkeypatch, "step", lambda: report._attainment_figure("x", requests, {"ttft": 0.25})
    )
    ((value, share),) = steps
    assert share[-1] == pytest.approx(100 * requests.succeeded.mean())
    ttft = (requests.first_token - requests.arrival)[requests.succeeded]
    inside = share[value <= 250].max()
    assert inside == pytest.approx(100 * np.sum(ttft <= 0.25) / len(requests))


def test_occupancy_in_parts_keeps_area_and_extremes(monkeypatch):
    requests = log(n=20_000)
    stay = requests.arrival, requests.last_token
    (high, edges), (mean, _) = values_of(
        monkeypatch, "stairs", lambda: report._occupancy_figure("x", *stay)
    )
    area = np.sum(mean * np.diff(edges))
    assert area == pytest.approx(np.sum(stay[1] - stay[0]))
    assert max(high) == peak(*stay)
    assert np.all(mean <= np.array(high) + 1e-9)


def test_latency_groups_keep_the_largest(monkeypatch):
    requests = log(n=20_000)
    lines = values_of(monkeypatch, "plot", lambda: report._latency_figure("x", requests, {}))
    ttft = requests.first_token - requests.arrival
    medians, largest = lines[0][1], lines[1][1]
    assert len(medians) == len(largest) == report.GROUPS
    assert largest.max() == pytest.approx(1e3 * ttft.max())
    assert np.median(medians) == pytest.approx(1e3 * np.median(ttft), rel=0.05)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.16531, "s", "165.3 ms"),
        (1.5, "s", "1.5 s"),
        (0.0, "s", "0 s"),
        (-0.002, "s", "−2 ms"),
        (0.025, "s/token", "25 ms/token"),
        (12345.6, "tokens/s", "12,346 tokens/s"),
        (3.0, "1/s", "3 /s"),
        (1e-9, "", "1e−9"),
        (float("inf"), "s", "inf s"),
    ],
)
def test_figures_are_short_and_keep_their_unit(value, unit, shown):
    assert report._shown(value, unit).replace("\N{NO-BREAK SPACE}", " ") == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.99999, "99.9 %"), (1e-6, "0.1 %"), (0.725, "72.5 %")],
)
def test_only_all_is_a_hundred_percent(share, shown):
    assert report._percent(share).replace("\N{NO-BREAK SPACE}", " ") == shown


def test_an_audit_without_runs_is_refused():
    with pytest.raises(ValueError, match="audit must hold a run: got none"):
        report.html(Audit(runs=(), slo=None, sweep=None))


@pytest.mark.parametrize("name", ["vllm/4rps", "aiperf/rate3", "guidellm/2rps", "llmperf/groq_70b"])
def test_real_files_make_figures(name):
    run = benchmarks.load(name)
    text = report.html(audit_of(run_audit(run.requests, run=run)))
    clocks = run.requests.shared_clock
    Page(text)
    assert text.count("<svg") == (3 if clocks else 2)
