"""`check` fails when it must, says by how much, and its lines survive the notebook."""

import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from lib.evidence import MIME, Evidence, EvidenceError, check, collect, evidence

NAN, INF = float("nan"), float("inf")
WORDS = {"witness": "a count", "why": "one tick"}


def up(x):
    return math.nextafter(x, INF)


def down(x):
    return math.nextafter(x, -INF)


@pytest.mark.parametrize(
    ("relation", "predicted", "observed", "tolerance", "relative", "holds"),
    [
        ("==", 1.0, 1.0, 0.0, False, True),
        ("==", up(1.0), 1.0, 0.0, False, False),
        ("==", down(1.0), 1.0, 0.0, False, False),
        ("==", 1.5, 1.0, 0.5, False, True),
        ("==", 0.5, 1.0, 0.5, False, True),
        ("==", up(1.5), 1.0, 0.5, False, False),
        ("==", down(down(0.5)), 1.0, 0.5, False, False),
        ("==", 6.0, 4.0, 0.5, True, True),
        ("==", up(6.0), 4.0, 0.5, True, False),
        ("==", -2.0, -4.0, 0.5, True, True),
        ("==", -6.0, -4.0, 0.4, True, False),
        ("<=", 0.0, 9.0, 0.0, False, True),
        ("<=", 9.0, 9.0, 0.0, False, True),
        ("<=", up(9.0), 9.0, 0.0, False, False),
        ("<=", 9.5, 9.0, 0.5, False, True),
        ("<=", up(9.5), 9.0, 0.5, False, False),
        ("<=", 6.0, 4.0, 0.5, True, True),
        ("<=", up(6.0), 4.0, 0.5, True, False),
        (">=", 18.0, 9.0, 0.0, False, True),
        (">=", 9.0, 9.0, 0.0, False, True),
        (">=", down(9.0), 9.0, 0.0, False, False),
        (">=", 8.5, 9.0, 0.5, False, True),
        (">=", down(8.5), 9.0, 0.5, False, False),
        ("<=", -6.0, -4.0, 0.4, True, True),
        ("<=", -2.0, -4.0, 0.4, True, False),
        (">=", 2.0, 4.0, 0.5, True, True),
        (">=", down(down(2.0)), 4.0, 0.5, True, False),
        ("!=", 1.0, 1.0, 0.0, False, False),
        ("!=", up(1.0), 1.0, 0.0, False, True),
        ("!=", 1.5, 1.0, 0.5, False, False),
        ("!=", up(1.5), 1.0, 0.5, False, True),
        ("!=", down(down(0.5)), 1.0, 0.5, False, True),
        ("!=", 6.0, 4.0, 0.5, True, False),
        ("!=", up(up(6.0)), 4.0, 0.5, True, True),
    ],
)
def test_at_the_tolerance_and_just_beyond(
    relation, predicted, observed, tolerance, relative, holds
):
    def call():
        return check(
            "a claim",
            predicted,
            observed,
            tolerance,
            relation=relation,
            relative=relative,
            **WORDS,
        )

    if holds:
        (line,) = call().claims
        assert line.verdict == ("breaks" if relation == "!=" else "holds")
    else:
        with pytest.raises(EvidenceError, match=r"a claim: predicted .* fails against a count"):
            call()


@pytest.mark.parametrize(
    ("relation", "good", "bad"), [("==", 1.0, 1.2), ("<=", 1.0, 1.2), (">=", 1.0, 0.8)]
)
def test_one_bad_element_among_many_fails(relation, good, bad):
    observed = np.ones((10, 10))
    predicted = np.full((10, 10), good)
    check("all", predicted, observed, 0.1, relation=relation, **WORDS)
    predicted[3, 7] = bad
    with pytest.raises(EvidenceError, match=rf"predicted {bad} s {relation} observed 1 s fails"):
        check("all", predicted, observed, 0.1, relation=relation, unit="s", **WORDS)


def test_every_element_must_break():
    check("all miss", [2.0, 3.0], 1.0, 0.5, relation="!=", **WORDS)
    with pytest.raises(EvidenceError, match=r"predicted 1\.25"):
        check("all miss", [2.0, 1.25], 1.0, 0.5, relation="!=", **WORDS)


def test_the_line_in_words():
    (line,) = check("TTFT agrees", 1.25, 1.0, 0.5, unit="s", **WORDS).claims
    assert vars(line) == {
        "claim": "TTFT agrees",
        "witness": "a count",
        "predicted": "1.25 s",
        "observed": "1 s",
        "error": "0.25 s",
        "tolerance": "0.5 s: one tick",
        "verdict": "holds",
    }
    (line,) = check("c", 1.25, 1.0, 0.5, relative=True, unit="s", **WORDS).claims
    assert (line.error, line.tolerance) == ("25%", "50%: one tick")
    (line,) = check("c", 0.75, 1.0, relation="<=", unit="s", **WORDS).claims
    assert line.error == "0.25 s inside the bound"
    (line,) = check("c", 1.25, 1.0, 0.5, relation="<=", unit="s", **WORDS).claims
    assert line.error == "0.25 s beyond the bound"
    (line,) = check("c", 1.0, 1.0, relation="<=", **WORDS).claims
    assert line.error == "0 inside the bound"
    (line,) = check("c", 1.25, 1.0, relation=">=", **WORDS).claims
    assert line.error == "0.25 inside the bound"
    (line,) = check("c", 2.0, 1.0, 0.5, relation="!=", **WORDS).claims
    assert (line.tolerance, line.verdict) == ("> 0.5: one tick", "breaks")
    (line,) = check("c", [1, 2, 3], [1, 2, 3.5], 0.5, **WORDS).claims
    assert (line.predicted, line.observed, line.error) == ("3", "3.5", "0.5, worst of 3")


def test_rounding_noise_is_not_printed():
    # The last bits differ from platform to platform; the stored line must not.
    (line,) = check("c", 1.0 + 2**-50, 1.0, 1e-9, **WORDS).claims
    assert line.error == "< 1e-12"
    (line,) = check("c", 1.0, 1.0, 1e-9, **WORDS).claims
    assert line.error == "< 1e-12"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"predicted": NAN}, ValueError, "predicted must be finite .*: got nan"),
        ({"observed": [1.0, NAN]}, ValueError, "observed must be finite .*: got nan at index 1"),
        ({"observed": INF}, ValueError, "observed must be finite .*: got inf"),
        ({"predicted": None}, TypeError, "predicted must be a real number"),
        ({"predicted": True}, TypeError, "predicted must be a real number"),
        ({"tolerance": -1e-9}, ValueError, "tolerance must be >= 0: got -1e-09"),
        ({"tolerance": INF}, ValueError, "tolerance must be finite"),
        ({"tolerance": [0.1]}, TypeError, "tolerance must be one number"),
        ({"relation": "~"}, ValueError, "relation must be one of '==', '<=', '>=', '!=': got '~'"),
        ({"predicted": [], "observed": []}, ValueError, "must not be empty: nothing to check"),
        (
            {"predicted": [1, 2], "observed": [1, 2, 3]},
            ValueError,
            r"lengths must match: got predicted \(2,\), observed \(3,\)",
        ),
        ({"observed": [1.0, 0.0], "relative": True}, ValueError, "observed must not be 0"),
    ],
)
def test_check_refuses(changes, error, message):
    with pytest.raises(error, match=message) as raised:
        check(**{"claim": "c", "predicted": 1.0, "observed": 1.0, **WORDS, **changes})
    assert raised.type is error


def test_a_relative_error_beside_a_tiny_value():
    with pytest.raises(EvidenceError, match="error inf%"):
        check("c", 1.0, 5e-324, 0.1, relative=True, **WORDS)


def test_a_reason_and_a_witness_are_needed():
    with pytest.raises(TypeError, match="witness"):
        check("c", 1.0, 1.0, why="w")
    with pytest.raises(TypeError, match="why"):
        check("c", 1.0, 1.0, witness="w")


# --- tables and notebooks ---------------------------------------------------------------------


class Table(HTMLParser):
    """Rows of cell texts, and every tag and attribute seen."""

    def __init__(self, markup):
        super().__init__()
        self.rows, self.tags, self.attributes = [], [], []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.rows[-1][-1] += data


def two_lines():
    return evidence(
        check("first", 1.0, 1.0, **WORDS),
        check("second", 2.0, 1.0, 0.5, relation="!=", **WORDS),
    )


def notebook(path, *outputs):
    cells = [
        {"cell_type": "markdown", "source": "text"},
        {"cell_type": "code", "outputs": [{"output_type": "stream", "text": "x"}]},
        {"cell_type": "code", "outputs": [{"output_type": "display_data", "data": d}
                                          for d in outputs]},
    ]  # fmt: skip
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}), encoding="utf-8")
    return path


def test_evidence_joins_lines_in_order():
    both = two_lines()
    assert [c.claim for c in both.claims] == ["first", "second"]
    assert repr(both).splitlines() == [
        "first | a count | predicted 1, observed 1, error 0 (0: one tick) | holds",
        "second | a count | predicted 2, observed 1, error 1 (> 0.5: one tick) | breaks",
    ]
    assert evidence() == Evidence(())


def test_the_table_has_a_row_a_claim():
    table = Table(two_lines()._repr_mimebundle_()["text/html"])
    assert table.rows == [
        ["claim", "witness", "predicted", "observed", "error", "tolerance", "verdict"],
        ["first", "a count", "1", "1", "0", "0: one tick", "holds"],
        ["second", "a count", "2", "1", "1", ">\N{NO-BREAK SPACE}0.5: one tick", "breaks"],
    ]
    assert table.attributes == [("class", "evidence"), ("class", "holds"), ("class", "breaks")]


def test_the_table_escapes_its_text(tmp_path):
    nasty = '<script>alert("x")</script> & B < B_max'
    line = check(nasty, 1.0, 1.0, witness=nasty, why=nasty, unit="<b>")
    bundle = line._repr_mimebundle_()
    table = Table(bundle["text/html"])
    assert table.rows[1][:2] == [nasty, nasty]
    assert "script" not in table.tags
    assert "b" not in table.tags
    ledger = collect([notebook(tmp_path / '"><img>.ipynb', bundle)])
    table = Table(ledger._repr_html_())
    assert "img" not in table.tags
    assert ("href", '"><img>.html') in table.attributes


def test_the_bundle_carries_text_markup_and_data():
    bundle = two_lines()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME}
    assert bundle["text/plain"] == repr(two_lines())
    assert json.loads(json.dumps(bundle[MIME])) == [vars(c) for c in two_lines().claims]


def test_collect_reads_notebooks_back(tmp_path):
    first = notebook(tmp_path / "ttft.ipynb", two_lines()._repr_mimebundle_())
    third = check("third <&>", 5.0, 5.0, **WORDS)
    second = notebook(tmp_path / "e2e.ipynb", {"text/plain": "1"}, third._repr_mimebundle_())
    ledger = collect([first, str(second)])
    assert ledger.entries == tuple(
        [("ttft", c) for c in two_lines().claims] + [("e2e", third.claims[0])]
    )
    assert repr(ledger).startswith("ttft: first | a count")
    table = Table(ledger._repr_html_())
    assert [row[:2] for row in table.rows] == [
        ["claim", "witness"],
        ["ttft"],
        ["first", "a count"],
        ["second", "a count"],
        ["e2e"],
        ["third <&>", "a count"],
    ]
    assert ("href", "e2e.html") in table.attributes


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b"{}",
        b'{"cells": 5}',
        b'{"cells": [5]}',
        json.dumps({"cells": [{"outputs": [{"data": {MIME: [{"claim": "c"}]}}]}]}).encode(),
    ],
)
def test_collect_names_the_file_it_cannot_read(tmp_path, content):
    path = tmp_path / "broken.ipynb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.ipynb: not a notebook with evidence"):
        collect([path])


def test_collect_refuses_a_chapter_without_evidence(tmp_path):
    with pytest.raises(ValueError, match=r"empty\.ipynb: holds no evidence"):
        collect([notebook(tmp_path / "empty.ipynb", {"text/plain": "1"})])
    with pytest.raises(FileNotFoundError, match=r"missing\.ipynb"):
        collect([tmp_path / "missing.ipynb"])
