"""lib.sensitivity: blocks, intervals and swings, against counting and known distributions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.sensitivity import Swing, interval, resample, tornado


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Resampling ---------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.data())
def test_blocks_are_runs_of_neighbours_on_a_circle(n, data) -> None:
    block = data.draw(st.integers(1, n))
    rows = resample(n, generator(data.draw(st.integers(0, 99))), block)
    assert rows.shape == (n,)
    assert rows.min() >= 0
    assert rows.max() < n
    for start in range(0, n, block):
        run = rows[start : start + block]
        assert np.array_equal(run, (run[0] + np.arange(run.size)) % n)


def test_every_row_is_equally_likely() -> None:
    """Also the first and the last: without the circle a row at the edge is in fewer blocks."""
    n, times = 10, 5_000
    source = generator(1)
    seen = np.bincount(np.concatenate([resample(n, source, 4) for _ in range(times)]), minlength=n)
    # Rows of a block come together, so a count scatters by at most 4 times its own mean's root.
    assert np.all(np.abs(seen - times) < 5 * np.sqrt(4 * times))


def test_a_block_of_all_rows_turns_the_circle() -> None:
    rows = resample(6, generator(3), 6)
    assert sorted(rows) == [0, 1, 2, 3, 4, 5]


def test_blocks_keep_the_error_of_a_mean_whose_neighbours_are_alike() -> None:
    """An AR(1) series, phi = 0.9: the variance of its mean is 19 times that of independent rows."""
    source, n, phi = generator(5), 20_000, 0.9
    noise = source.standard_normal(n)
    series = np.empty(n)
    series[0] = noise[0] / np.sqrt(1 - phi**2)
    for i in range(1, n):
        series[i] = phi * series[i - 1] + noise[i]
    alone, together = (
        np.std([series[resample(n, source, block)].mean() for _ in range(400)])
        for block in (1, 200)
    )
    ratio = np.sqrt((1 + phi) / (1 - phi))
    # 400 draws give a standard deviation to 3.5 %, 100 blocks one to 7 %: 8 %, three times.
    assert together / alone == pytest.approx(ratio, rel=0.24)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, generator()), ValueError, r"n must be >= 1: got 0"),
        ((2.5, generator()), ValueError, r"n must be a whole number: got 2.5"),
        ((5, generator(), 0), ValueError, r"block must be >= 1: got 0"),
        ((5, generator(), 6), ValueError, r"block must be <= n: got 6 > 5"),
        ((5, generator(), np.nan), ValueError, r"block must be finite"),
        (([5], generator()), TypeError, r"n must be one number"),
        ((5, 7), TypeError, r"generator must be of type Generator: got 7"),
    ],
)
def test_bad_resampling(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        resample(*arguments)


# Intervals ----------------------------------------------------------------------------------------


def test_an_interval_leaves_equal_shares_outside() -> None:
    draws = generator().permutation(np.arange(1001.0))
    assert interval(draws) == pytest.approx((25, 975), rel=1e-12)  # rounding
    assert interval(draws, 0.5) == pytest.approx((250, 750), rel=1e-12)
    assert interval([3.0, 3.0]) == (3.0, 3.0)


def test_the_interval_of_a_normal_sample() -> None:
    low, high = interval(generator(2).normal(10, 2, 100_000))
    # A 2.5 % quantile of 100,000 has a standard error of 0.017.
    assert (low, high) == (pytest.approx(10 - 3.920, abs=0.06), pytest.approx(13.920, abs=0.06))


@pytest.mark.parametrize(
    ("draws", "confidence", "message"),
    [
        ([], 0.95, r"draws must be a list of two or more: got shape \(0,\)"),
        ([1.0], 0.95, r"draws must be a list of two or more: got shape \(1,\)"),
        (1.0, 0.95, r"draws must be a list of two or more: got shape \(\)"),
        ([1.0, np.nan], 0.95, r"draws must be finite"),
        ([1.0, np.inf], 0.95, r"draws must be finite"),
        ([1.0, 2.0], 1, r"confidence must be between 0 and 1, both left out: got 1"),
        ([1.0, 2.0], 0, r"confidence must be between 0 and 1, both left out: got 0"),
    ],
)
def test_bad_intervals(draws, confidence, message) -> None:
    with pytest.raises(ValueError, match=message):
        interval(draws, confidence)


# Tornado ------------------------------------------------------------------------------------------


def test_swings_are_sorted_and_each_input_moves_alone() -> None:
    swings = tornado(
        lambda a, b, c: a + 10 * b + 0 * c,
        {"a": 1, "b": 2, "c": 3},
        {"c": [0, 100], "a": [0, 1000], "b": [-1, 1]},
    )
    assert [swing.name for swing in swings] == ["a", "b", "c"]
    assert swings[0].low == pytest.approx(20 + 25)
    assert swings[0].high == pytest.approx(20 + 975)
    assert swings[1] == Swing("b", pytest.approx(-8.5), pytest.approx(10.5))
    assert (swings[2].low, swings[2].size) == (21, 0)


def test_a_falling_function_has_low_below_high() -> None:
    (swing,) = tornado(lambda x: 1 / x, {"x": 1}, {"x": [1, 2]})
    assert swing.low < swing.high
    assert swing.size == pytest.approx(0.5 * 0.95)


def test_values_of_any_kind() -> None:
    (swing,) = tornado(lambda text: len(text), {"text": ""}, {"text": ["aa", "bb"]})
    assert (swing.low, swing.high) == (2, 2)


@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ({}, ValueError, r"draws must hold an input that varies: got none"),
        ({"y": [1, 2]}, ValueError, r"draws must name arguments of base: got 'y'"),
        ({"x": [1]}, ValueError, r"draws must be a list of two or more"),
        ({"x": [1, np.nan]}, ValueError, r"results over x must be finite"),
        ({"x": ["a", "b"]}, TypeError, r"results over x must be a real number"),
        (5, TypeError, r"draws must be a mapping: got 5"),
    ],
)
def test_bad_tornados(draws, error, message) -> None:
    with pytest.raises(error, match=message):
        tornado(lambda x: x, {"x": 1}, draws)
