"""The argument checks: each refusal names the argument, the value and the rule."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from lib import _validate as v


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (Fraction(1, 4), 0.25),
        (np.int8(-7), -7.0),
        (np.float32(1.5), 1.5),
        (np.array(2), 2.0),
        ([1, 2], [1.0, 2.0]),
        (np.array([100, 127], np.int8), [100.0, 127.0]),
        (np.array([1, 2], ">f8"), [1.0, 2.0]),
        ([], []),
        ([0.5, float("nan")], [0.5, float("nan")]),
        (1e75, 1e75),
        (-1e75, -1e75),
    ],
)
def test_numeric_takes_every_real_number(value, expected):
    array = v.numeric("x", value)
    assert array.dtype == np.float64
    assert_array_equal(array, expected)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1",
        b"1",
        True,
        np.bool_(True),
        np.array([True, False]),
        1j,
        Decimal(1),
        np.timedelta64(5, "ms"),
        np.datetime64("2026-01-01"),
        np.array([1, None]),
        ["1"],
        {1.0},
        iter([1.0]),
        object(),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        [10**400],
    ],
)
def test_numeric_refuses_another_kind(value):
    with pytest.raises(TypeError, match=r"^x must be a (real number|plain array)"):
        v.numeric("x", value)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (float("inf"), "inf"),
        ([0.0, float("-inf")], "-inf at index 1"),
        (1.001e75, "1.001e[+]75"),
        (-(10**400), "a number beyond 1e308"),
        (Fraction(10**400), "a number beyond 1e308"),
        (np.array([0, 1], np.longdouble) * np.finfo(np.longdouble).max, "inf at index 1"),
    ],
)
def test_numeric_refuses_what_would_overflow(value, got):
    with pytest.raises(ValueError, match=f"^x must be finite and at most 1e[+]75.*: got {got}"):
        v.numeric("x", value)


def test_numeric_refuses_ragged_lists():
    with pytest.raises(ValueError, match=r"^x must be a number or a rectangular array"):
        v.numeric("x", [[1.0], [1.0, 2.0]])


def test_numeric_copies():
    mine = np.zeros(2)
    v.numeric("x", mine)[0] = 1.0
    assert mine[0] == 0.0


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (v.real, float("nan"), r"x must be finite \(a missing value is refused\): got nan$"),
        (v.real, [1.0, float("nan")], r"got nan at index 1$"),
        (v.real, [[1.0, 2.0], [3.0, float("nan")]], r"got nan at index \(1, 1\)$"),
        (v.nonnegative, [0.0, -1e-9], r"x must be >= 0: got -1e-09 at index 1$"),
        (v.nonnegative, float("nan"), r"finite"),
        (v.positive, 0.0, r"x must be > 0: got 0$"),
        (v.positive, [1.0, -2.0], r"x must be > 0: got -2 at index 1$"),
        (v.positive, 1e-76, r"x must be >= 1e-75: got 1e-76$"),
        (v.positive, float("nan"), r"finite"),
        (v.count, 2.5, r"x must be a whole number: got 2.5$"),
        (v.count, [3, -1], r"x must be >= 0: got -1 at index 1$"),
        (v.count, 2**53, r"x must be below 2\*\*53"),
        (v.count, 2**53 + 1, r"x must be below 2\*\*53"),
        (v.count, float("nan"), r"finite"),
    ],
)
def test_rules(check, value, message):
    with pytest.raises(ValueError, match=message):
        check("x", value)


def test_rules_hold_at_their_edge():
    assert v.real("x", -0.0) == 0
    assert v.nonnegative("x", 0) == 0
    assert v.positive("x", 1e-75) == 1e-75
    assert v.count("x", 0) == 0
    assert v.count("x", 1, minimum=1) == 1
    assert v.count("x", 2**53 - 1) == 2**53 - 1
    with pytest.raises(ValueError, match="x must be >= 1: got 0"):
        v.count("x", 0, minimum=1)


def test_one_takes_no_array():
    assert type(v.one("x", v.real("x", 3))) is float
    with pytest.raises(TypeError, match=r"x must be one number: got an array of shape \(1,\)"):
        v.one("x", v.real("x", [3]))


@pytest.mark.parametrize("value", ["c", None, 1, np.array(["a"]), ["a"]])
def test_choice(value):
    assert v.choice("x", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="x must be one of 'a', 'b': got "):
        v.choice("x", value, ("a", "b"))


def test_together_names_every_shape():
    v.together(a=np.zeros(3), b=np.zeros(()), c=np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"lengths must match: got a \(3,\), b \(2,\)"):
        v.together(a=np.zeros(3), b=np.zeros(2))


def test_ordered():
    nan = float("nan")
    v.ordered(a=np.array([0.0, nan]), b=np.array([0.0, 1.0]), c=np.array(1.0))
    with pytest.raises(ValueError, match="c must not precede b: got 1 < 2 at index 1"):
        v.ordered(a=np.zeros(2), b=np.array([0.0, 2.0]), c=np.array(1.0))
    with pytest.raises(ValueError, match=r"lengths must match: got a \(2,\), b \(3,\)"):
        v.ordered(a=np.zeros(2), b=np.zeros(3))


@pytest.mark.parametrize("value", [np.inf, np.nan, [1.0, np.inf]])
def test_result_is_never_infinite(value):
    with pytest.raises(ValueError, match="x overflows"):
        v.result("x", value)


def test_result_kinds():
    assert type(v.result("x", np.float64(1))) is float
    assert type(v.result("x", np.array(1))) is float
    assert isinstance(v.result("x", [1]), np.ndarray)
    assert type(v.result_size("x", 8.0)) is int
    assert type(v.result_size("x", 8.5)) is float
    assert type(v.result_size("x", 2.0**53 - 1)) is int
    assert type(v.result_size("x", 2.0**53)) is float  # exactness ends here
    assert isinstance(v.result_size("x", [8.0]), np.ndarray)


@given(st.floats(-1e75, 1e75))
def test_a_scalar_and_its_array_agree(value):
    assert v.numeric("x", value) == v.numeric("x", [value])[0] == value
