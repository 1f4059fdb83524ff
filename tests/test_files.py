"""lib._files: JSON read through a window, whatever its size, and errors that say where."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import _files
from lib._files import drop, fold_lists, fold_numbers, fold_signed, read_json, read_one, rows


def collect(where: str, pieces: Any) -> tuple[str, list[Any]]:
    """A fold that keeps all, to compare with the whole."""
    return where, [item for piece in pieces for item in piece]


@pytest.fixture(params=[1, 2, 3, 7, 64, 1 << 20])
def block(request, monkeypatch) -> int:
    monkeypatch.setattr(_files, "BLOCK", request.param)
    return request.param


def write(folder, text: str | bytes):
    path = folder / "r.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


numbers = st.one_of(
    st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(
    st.lists(values, min_size=1, max_size=4),
    st.sampled_from([1, 2, 3, 5, 17, 100]),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_any_values_come_back_through_any_window(tmp_path_factory, given_, size, indent, ascii_):
    """Python's own decoder, on the whole text, is the witness."""
    folder = tmp_path_factory.mktemp("w")
    text = "\n".join(json.dumps(v, indent=indent, ensure_ascii=ascii_) for v in given_)
    path = write(folder, text.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "BLOCK", size)
        assert [value for _, value in read_json(path)] == given_


@settings(max_examples=300)
@given(
    st.lists(values, max_size=9),
    st.lists(st.dictionaries(st.sampled_from("pq"), st.lists(values, max_size=4)), max_size=4),
    st.sampled_from([1, 2, 3, 5, 17, 100]),
    st.sampled_from([None, 1]),
)
def test_any_list_comes_back_through_a_fold(tmp_path_factory, flat, nested, size, indent) -> None:
    value = {"a": flat, "b": nested, "c": 1}
    path = write(tmp_path_factory.mktemp("w"), json.dumps(value, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "BLOCK", size)
        where, read = read_one(path, {"a": collect, "b[].p": collect})
        assert read["a"] == (f"{where}: a", flat)
        for i, (row, original) in enumerate(zip(read["b"], nested, strict=True)):
            place = f"{where}, key 'b'[{i}]: p"
            assert row == original | ({"p": (place, original["p"])} if "p" in original else {})
        assert read["c"] == 1
        assert read_one(write(path.parent, json.dumps(flat)), {"": collect})[1][1] == flat


def test_pieces_are_small_and_many(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_files, "BLOCK", 1000)
    sizes: list[int] = []
    long = list(range(10_000))
    path = write(tmp_path, json.dumps({"a": long, "b": [[n] for n in long], "c": ["x,"] * 10_000}))

    def longest(_: str, pieces: Any) -> int:
        sizes[:] = [len(piece) for piece in pieces]
        assert sum(sizes) == 10_000
        return max(sizes)

    _, value = read_one(path, dict.fromkeys("abc", longest))
    assert all(largest < 500 for largest in value.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"the file is empty"),
        (" \r\n\t", r"the file is empty"),
        ("\ufeff", r"the file is empty"),
        ("nul", r"line 1: not valid JSON: Expecting value"),
        ('{"a": [1, 2', r"line 1: not valid JSON: Expecting ',' delimiter"),
        ('{"a": [1, 2,', r"line 1: not valid JSON: Expecting value"),
        ('{"a": [1, 2,]}', r"line 1: not valid JSON: (Expecting value|Illegal trailing comma)"),
        ('{"a": [1 2]}', r"line 1: not valid JSON: Expecting ',' delimiter"),
        ('{"a": [1, 2}', r"line 1: not valid JSON: Expecting ',' delimiter"),
        ('{"a": [1, 2]', r"line 1: not valid JSON: Expecting ',' delimiter"),
        (
            '{"a": [], }',
            r"line 1: not valid JSON: (Expecting property name|Illegal trailing comma)",
        ),
        ('{"a" [1, 2]}', r"line 1: not valid JSON: Expecting ':' delimiter"),
        ("{a: [1, 2]}", r"line 1: not valid JSON: Expecting property name"),
        ('{"a": [1]}\n\n{"a": [2],\n "a": [3]}', r"line 3: key 'a' appears twice"),
        ('{"a": [{"b": 1, "b": 2}]}', r"line 1: key 'b' appears twice"),
        ('{"a": [1, NaN]}', r"line 1: NaN is not a JSON number"),
        ('{"a": [1, -Infinity]}', r"line 1: -Infinity is not a JSON number"),
        ('{"c": 1}\n{"a": [1,\n\n"x]}', r"line 4: not valid JSON: Unterminated string"),
        ('{"c": 1}\n{"a": [1,\n\n01]}', r"line 4: not valid JSON: Expecting ',' delimiter"),
        ('{"a": ["\t"]}', r"line 1: not valid JSON: Invalid control character"),
        ('{"a": ["\\x"]}', r"line 1: not valid JSON: Invalid \\escape"),
        ('{"a": ' + "[" * 100_000, r"line 1: not valid JSON: nested too deeply"),
        ('{"c": ' + "[" * 100_000, r"line 1: not valid JSON: nested too deeply"),
        ('{"a": [' + "9" * 5000 + "]}", r"line 1: .*digits"),
        (b'{"a": ["\xff"]}', r"the file must be UTF-8 text: bad byte 8"),
        (
            b'{"a": ["' + b"\xc3\xa9" * 5 + b'\xe2\x82"]}',
            r"the file must be UTF-8 text: bad byte 18",
        ),
        (b'{"a": ["\xe2\x82', r"the file must be UTF-8 text: bad byte 8"),
    ],
)
@pytest.mark.parametrize("fold", [True, False])
def test_broken_text_names_the_line(text, message, fold, block, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"^r\.json(, |: )" + f"({message})"):
        list(read_json(write(tmp_path, text), {"a": collect} if fold else {}))


@pytest.mark.parametrize("written", ["1.5e-3", "-12.25E+2", "1e5", "0.5", "-7", "123456789"])
def test_a_number_is_never_cut_in_two(written, block, tmp_path) -> None:
    text = f'{{"a": [{written}, {written}], "c": {written}}}\n{written}'
    (_, value), (_, last) = read_json(write(tmp_path, text), {"a": collect})
    assert value["a"][1] == [float(written)] * 2
    assert value["c"] == last == float(written)


def test_lines_are_counted_through_windows_and_folds(block, tmp_path) -> None:
    text = '\n{"a":\r\n[1,\n2,\n3]}\n\n  {"a": [[\n]]}\n"x"'
    assert [where for where, _ in read_json(write(tmp_path, text), {"a": drop})] == [
        "r.json, line 2",
        "r.json, line 7",
        "r.json, line 9",
    ]


def test_byte_order_mark_and_many_bytes_a_character(block, tmp_path) -> None:
    text = "\ufeff" + json.dumps({"a": ["é€😀"] * 3}, ensure_ascii=False)
    assert read_one(write(tmp_path, text), {"a": collect})[1]["a"][1] == ["é€😀"] * 3


def test_infinity_passes(block, tmp_path) -> None:
    assert read_one(write(tmp_path, '{"a": Infinity}'))[1] == {"a": float("inf")}


def test_a_fold_may_leave_the_rest(block, tmp_path) -> None:
    first = lambda _, pieces: next(pieces)[0]  # noqa: E731
    path = write(tmp_path, json.dumps({"a": list(range(500)), "c": 5}))
    assert read_one(path, {"a": first})[1] == {"a": 0, "c": 5}


@pytest.mark.parametrize("other", ["5", '"x"', "null", '{"d": [1]}'])
def test_what_is_no_list_stays_as_it_is(other, block, tmp_path) -> None:
    path = write(tmp_path, f'{{"a": {other}}}')
    assert read_one(path, {"a": drop, "a[].b": drop})[1] == {"a": json.loads(other)}


def test_only_one_value(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"r\.json, line 2: expected one JSON value"):
        read_one(write(tmp_path, "1\n2"))


# Folds --------------------------------------------------------------------------------------------


def test_folds_of_numbers() -> None:
    assert fold_numbers("x", iter([[1, 2.5], [3]])).tolist() == [1, 2.5, 3]
    assert fold_numbers("x", iter([])).size == 0
    signed = fold_signed("x", iter([[1, None], [-3]]))
    assert np.isnan(signed).tolist() == [False, True, False]
    assert signed[[0, 2]].tolist() == [1, -3]
    flat, lengths = fold_lists("x", iter([[[1], []], [[2.5, 3]]]))
    assert flat.tolist() == [1, 2.5, 3]
    assert lengths.tolist() == [1, 0, 2]
    assert drop("x", iter([[1]])) is None


@pytest.mark.parametrize(
    ("fold", "pieces", "message"),
    [
        (fold_numbers, [[1], [2, "3"]], r"x\[2\] must be a number: got '3'"),
        (fold_numbers, [[1], [True]], r"x\[1\] must be a number: got True"),
        (fold_numbers, [[1], [None]], r"x\[1\] must be a number: got None"),
        (fold_numbers, [[1], [-2]], "x must be >= 0: got -2 at index 1"),
        (fold_numbers, [[1], [float("inf")]], "x must be finite"),
        (fold_numbers, [[10**400]], "x must fit a float64"),
        (fold_signed, [[1], [[]]], r"x\[1\] must be a number: got \[\]"),
        (fold_lists, [[[1]], [[2], 3]], r"x\[2\] must be a list: got 3"),
        (fold_lists, [[[1]], [[2], [-3.0]]], r"x\[2\] must be >= 0: got -3 at index 0"),
        (fold_lists, [[[1]], [[2], [3, [4]]]], r"x\[2\]\[1\] must be a number: got \[4\]"),
    ],
)
def test_folds_say_which_element(fold, pieces, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        fold("x", iter(pieces))


def test_rows_know_their_place() -> None:
    first, second = rows("f, line 1: a", iter([[{"t": 1}], [{"t": -1}]]))
    assert first.number("t") == 1
    with pytest.raises(ValueError, match=r"f, line 1: a\[1\]: t must be >= 0: got -1"):
        second.number("t")
    with pytest.raises(ValueError, match=r"a\[1\]: expected a JSON object: got 5"):
        list(rows("a", iter([[{}, 5]])))
