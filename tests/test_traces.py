"""lib.traces: the production traces as the common record."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.traces import (
    DATA,
    SHIPPED,
    arrival_rate,
    load,
    read_azure,
    read_mooncake,
    read_trace,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
DAY = "2023-11-16 18:15:46.6805900"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


# Right values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "last_arrival", "first", "last"),
    [  # read off the first and last lines of the files by hand
        ("azure2023/conv", 19366, 3501.721937, (374, 44), (197, 183)),
        ("azure2023/code", 8819, 3435.948056, (4808, 10), (549, 173)),
        ("mooncake/conversation", 12031, 3536.999, (6758, 500), None),
    ],
)
def test_shipped_traces(name, rows, last_arrival, first, last) -> None:
    log = load(name)
    assert len(log) == rows
    assert log.arrival[0] == 0
    # 1e-9: stamps are tenths of a microsecond, differences of them exact in nanoseconds.
    assert log.arrival[-1] == pytest.approx(last_arrival, abs=1e-9)
    assert (log.input_tokens[0], log.output_tokens[0]) == first
    if last:
        assert (log.input_tokens[-1], log.output_tokens[-1]) == last
    assert np.isnan(log.first_token).all()
    assert np.isnan(log.scheduled).all()
    assert log.succeeded.all()
    assert log.shared_clock


def test_azure_tokens_are_the_columns_of_the_file() -> None:
    lines = (DATA / SHIPPED["azure2023/code"]).read_text(encoding="utf-8").split()
    tokens = [line.split(",") for line in lines if "," in line][1:]
    log = load("azure2023/code")
    assert log.input_tokens.sum() == sum(int(row[-2]) for row in tokens)
    assert log.output_tokens.sum() == sum(int(row[-1]) for row in tokens)
    assert log.input_tokens.max() == 7437


def test_mooncake_ticks_and_its_duplicate_are_kept() -> None:
    log = load("mooncake/conversation")
    assert np.unique(log.arrival).size == 1180
    assert (np.diff(log.arrival) == 0).sum() == 12031 - 1180
    twice = (log.arrival == 2369.999) & (log.input_tokens == 901) & (log.output_tokens == 17)
    assert twice.sum() == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_azure_line_ends(end, final, tmp_path) -> None:
    text = end.join([HEADER, f"{DAY},374,44", "2023-11-16 18:15:50.9951690,396,109"])
    log = read_azure(write(tmp_path / "t.csv", text + end * final))
    assert log.arrival.tolist() == [0, pytest.approx(4.314579, abs=1e-9)]
    assert log.output_tokens.tolist() == [44, 109]


def test_azure_whole_seconds_and_a_new_day(tmp_path) -> None:
    rows = f"{HEADER}\n2023-11-16 23:59:59,1,1\n2023-11-17 00:00:01.5,2,0\n"
    log = read_azure(write(tmp_path / "t.csv", rows))
    assert log.arrival.tolist() == [0, 2.5]
    assert log.output_tokens.tolist() == [1, 0]


def test_mooncake_milliseconds(tmp_path) -> None:
    stamps = [0, 0, 3000, 3000, 3000, 6000]
    lines = [json.dumps({"timestamp": t, "input_length": 7, "output_length": 3}) for t in stamps]
    log = read_mooncake(write(tmp_path / "t.jsonl", "\n".join(lines)))
    assert np.ptp(log.arrival) == 6.0
    assert (np.diff(log.arrival) == 0).sum() == 3
    assert arrival_rate(log.arrival) == pytest.approx(0.8333333333, abs=1e-9)


def test_a_million_rows_in_seconds(tmp_path) -> None:
    stamps = np.datetime64(DAY) + np.arange(1_000_000) * np.timedelta64(1_000_100, "ns")
    rows = [f"{stamp},{i},7" for i, stamp in enumerate(np.datetime_as_string(stamps).tolist())]
    path = write(tmp_path / "t.csv", "\n".join([HEADER, *rows]).replace("T1", " 1"))
    begun = time.perf_counter()
    log = read_azure(path)
    spent = time.perf_counter() - begun
    assert len(log) == 1_000_000
    assert log.arrival[-1] == pytest.approx(999_999 * 1.0001e-3, abs=1e-9)
    assert spent < 30  # a few seconds; ten times as long would mean that the reading is not linear


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6)),
        min_size=1,
        max_size=30,
    )
)
def test_both_readers_give_back_what_was_written(tmp_path_factory, rows) -> None:
    rows.sort(key=lambda row: row[0])
    folder = tmp_path_factory.mktemp("t")
    start = np.datetime64("2023-11-16T00:00:00.000000000")
    azure = [HEADER] + [
        f"{str(start + np.timedelta64(ms, 'ms')).replace('T', ' ')},{i},{o}" for ms, i, o in rows
    ]
    mooncake = [
        json.dumps({"timestamp": ms, "input_length": i, "output_length": o}) for ms, i, o in rows
    ]
    for log in (
        read_azure(write(folder / "t.csv", "\n".join(azure))),
        read_mooncake(write(folder / "t.jsonl", "\n".join(mooncake))),
    ):
        seconds = [(ms - rows[0][0]) / 1000 for ms, _, _ in rows]
        # One rounding of a number below 1e6 s.
        assert log.arrival.tolist() == pytest.approx(seconds, abs=1e-9)
        assert log.input_tokens.tolist() == [row[1] for row in rows]
        assert log.output_tokens.tolist() == [row[2] for row in rows]


# Broken files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv: the file is empty"),
        ("\n\n", r"t\.csv: the file is empty"),
        (HEADER, r"t\.csv: no row follows the header"),
        ("a,b,c\n1,2,3", r"t\.csv, line 1: the header must be TIMESTAMP,.*: got 'a,b,c'"),
        (f"{DAY},1,2", r"t\.csv, line 1: the header must be"),
        (f"{HEADER}\n{DAY},1", r"t\.csv, line 2: expected 3 fields"),
        (f"{HEADER}\n{DAY},1,2,3", r"t\.csv, line 2: expected 3 fields"),
        (f"{HEADER}\n{DAY},1,2\n\n{DAY},1,2", r"t\.csv, line 3: expected 3 fields .*: got ''"),
        (f"{HEADER}\n{DAY},-1,2", r"line 2: ContextTokens must be a whole number >= 0: got '-1'"),
        (f"{HEADER}\n{DAY},1,2.5", r"line 2: GeneratedTokens must be a whole number .*: got '2.5'"),
        (f"{HEADER}\n{DAY},1,nan", r"line 2: GeneratedTokens must be a whole number .*: got 'nan'"),
        (f"{HEADER}\n{DAY},,2", r"line 2: ContextTokens must be a whole number .*: got ''"),
        (f"{HEADER}\n{DAY},٣,2", r"line 2: ContextTokens must be a whole number .*: got '٣'"),
        (f"{HEADER}\n{DAY},1_0,2", r"line 2: ContextTokens must be a whole number .*: got '1_0'"),
        (f"{HEADER}\nnow,1,2", r"line 2: TIMESTAMP must be a stamp like .*: got 'now'"),
        (f"{HEADER}\n2023-11-16,1,2", r"line 2: TIMESTAMP must be a stamp like"),
        (f"{HEADER}\n3023{DAY[4:]},1,2", r"line 2: TIMESTAMP must be a stamp like"),
        (
            f"{HEADER}\n{DAY},1,2\n2023-13-16 18:15:46,1,2",
            r"line 3: TIMESTAMP must be a date that exists: got '2023-13-16 18:15:46'",
        ),
        (
            f"{HEADER}\n{DAY},1,2\n2023-11-16 18:15:45,1,2",
            r"t\.csv, line 3: TIMESTAMP must not precede the line before it: "
            rf"got '2023-11-16 18:15:45' after '{DAY}'",
        ),
    ],
)
def test_broken_azure_files(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_azure(write(tmp_path / "t.csv", text))


def test_a_file_that_is_not_text(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"TIMESTAMP\xff")
    with pytest.raises(ValueError, match=r"t\.csv: the file must be UTF-8 text: bad byte 9"):
        read_azure(path)


def test_no_such_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.csv"):
        read_azure(tmp_path / "absent.csv")


GOOD = '{"timestamp": 1000, "input_length": 7, "output_length": 3}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.jsonl: the file is empty"),
        (GOOD + "{", r"t\.jsonl, line 2: not valid JSON"),
        (GOOD + "[1]", r"t\.jsonl, line 2: expected a JSON object: got \[1\]"),
        (
            GOOD + '{"timestamp": 2000, "input_length": 7}',
            r"line 2: key 'output_length' is missing",
        ),
        (GOOD + GOOD.replace("7", '"7"'), r"line 2: input_length must be a number: got '7'"),
        (GOOD + GOOD.replace("7", "true"), r"line 2: input_length must be a number: got True"),
        (GOOD + GOOD.replace("7", "null"), r"line 2: input_length must be a number: got None"),
        (GOOD + GOOD.replace("7", "7.5"), r"line 2: input_length must be a whole number: got 7.5"),
        (GOOD + GOOD.replace("3}", "-3}"), r"line 2: output_length must be >= 0: got -3"),
        (GOOD + GOOD.replace("7", "NaN"), r"line 2: NaN is not a JSON number"),
        (GOOD + GOOD.replace("7", "Infinity"), r"line 2: input_length must be finite"),
        (GOOD + GOOD.replace("7", "1" + "0" * 400), r"line 2: input_length must fit a float64"),
        (GOOD + GOOD.replace("7", "1" + "0" * 20), r"line 2: input_length must be below 2\*\*53"),
        (
            GOOD + "\n\n" + GOOD.replace("1000", "999"),
            r"t\.jsonl, line 4: timestamp must not precede the line before it: got 999 after 1000",
        ),
        (
            GOOD + GOOD.replace('"output_length": 3', '"output_length": 3, "timestamp": 1000'),
            r"line 2: key 'timestamp' appears twice",
        ),
    ],
)
def test_broken_mooncake_files(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_mooncake(write(tmp_path / "t.jsonl", text))


# Your own file ------------------------------------------------------------------------------------

OWN = "timestamp,input_tokens,output_tokens"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "stamps",
    [
        ("10", "10.5", "13"),
        ("0", "0.5", "3.0"),
        ("1e1", "1.05e1", "13"),
        ("1700158546.25", "1700158546.75", "1700158549.25"),
        ("2023-11-16 23:59:58", "2023-11-16 23:59:58.5", "2023-11-17 00:00:01"),
        ("2023-11-16T23:59:58", "2023-11-16T23:59:58.5", "2023-11-17T00:00:01.000000000"),
    ],
)
def test_own_files_in_seconds_or_calendar_stamps(stamps, end, tmp_path) -> None:
    rows = [f"{stamp},{7 + i},{i}" for i, stamp in enumerate(stamps)]
    log = read_trace(write(tmp_path / "t.csv", end.join([OWN, *rows, ""])))
    assert log.arrival.tolist() == [0, 0.5, 3]
    assert log.input_tokens.tolist() == [7, 8, 9]
    assert log.output_tokens.tolist() == [0, 1, 2]
    assert np.isnan(log.first_token).all()


def test_own_column_names_read_azure_too() -> None:
    path = DATA / SHIPPED["azure2023/code"]
    own, azure = read_trace(path, tuple(HEADER.split(","))), read_azure(path)
    for name in ("arrival", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(own, name), getattr(azure, name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv: the file is empty"),
        (OWN, r"t\.csv: no row follows the header"),
        (f"{HEADER}\n0,1,2", r"t\.csv, line 1: the header must be timestamp,input_tokens,out"),
        (f"{OWN}\n0,1", r"t\.csv, line 2: expected 3 fields"),
        (f"{OWN}\n0,1,2\n\n1,1,2", r"t\.csv, line 3: expected 3 fields .*: got ''"),
        (f"{OWN}\n-1,1,2", r"line 2: timestamp must be seconds, or a stamp like .*: got '-1'"),
        (f"{OWN}\nnan,1,2", r"line 2: timestamp must be seconds, or a stamp like .*: got 'nan'"),
        (f"{OWN}\n{DAY}Z,1,2", r"line 2: timestamp must be seconds, or a stamp like"),
        (f"{OWN}\n0,1.5,2", r"line 2: input_tokens must be a whole number >= 0: got '1.5'"),
        (f"{OWN}\n0,1,-2", r"line 2: output_tokens must be a whole number >= 0: got '-2'"),
        (f"{OWN}\n0,1,", r"line 2: output_tokens must be a whole number >= 0: got ''"),
        (f"{OWN}\n2,1,2\n1,1,2", r"line 3: timestamp must not precede .*: got '1' after '2'"),
        (
            f"{OWN}\n{DAY},1,2\n2023-11-16T18:15:45,1,2",
            r"t\.csv, line 3: timestamp must not precede the line before it",
        ),
        (
            f"{OWN}\n{DAY},1,2\n2023-02-30 00:00:00,1,2",
            r"line 3: timestamp must be a date that exists: got '2023-02-30 00:00:00'",
        ),
        (
            f"{OWN}\n{DAY},1,2\n2023,1,2",
            rf"line 3: timestamp must be of one kind in all rows: got '2023' after '{DAY}'",
        ),
        (f"{OWN}\n0,1,2\n{DAY},1,2", r"line 3: timestamp must be of one kind in all rows"),
    ],
)
def test_broken_own_files(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(write(tmp_path / "t.csv", text))


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (("t", "in"), ValueError, r"columns must be three different names: got \('t', 'in'\)"),
        (("t", "in", "in"), ValueError, r"columns must be three different names"),
        ("abc", TypeError, r"columns must be a tuple of names: got 'abc'"),
    ],
)
def test_bad_column_names(columns, error, message, tmp_path) -> None:
    with pytest.raises(error, match=message):
        read_trace(write(tmp_path / "t.csv", f"{OWN}\n0,1,2"), columns)


# Arrival rate -------------------------------------------------------------------------------------


def test_ten_arrivals_bound_nine_gaps() -> None:
    assert arrival_rate(np.arange(10.0)) == 1.0
    # Case L07: a tool reported 10 / 9.676961812 = 1.0333821911 for these ten sends.
    assert arrival_rate(np.linspace(3, 3 + 9.676961812, 10)) == pytest.approx(
        0.9300439719, abs=1e-9
    )


def test_rate_ignores_order_and_origin() -> None:
    assert arrival_rate([12.0, 10.0, 11.0]) == 1.0


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50).filter(lambda s: len(set(s)) > 1))
def test_rate_times_span_counts_the_gaps(stamps) -> None:
    # Relative rounding of one division and one product.
    assert arrival_rate(stamps) * (max(stamps) - min(stamps)) == pytest.approx(
        len(stamps) - 1, rel=1e-12
    )


@pytest.mark.parametrize(
    ("arrival", "error", "message"),
    [
        ([], ValueError, r"arrival must hold at least 2 stamps: got shape \(0,\)"),
        ([1.0], ValueError, r"arrival must hold at least 2 stamps: got shape \(1,\)"),
        (1.0, ValueError, r"arrival must hold at least 2 stamps: got shape \(\)"),
        ([2.0, 2.0, 2.0], ValueError, r"arrival must span more than 0 s: got 3 stamps"),
        ([0.0, np.nan], ValueError, r"arrival must be finite .*: got nan at index 1"),
        ([0.0, np.inf], ValueError, r"arrival must be finite .*: got inf at index 1"),
        (["a", "b"], TypeError, r"arrival must be a real number"),
    ],
)
def test_bad_arrivals(arrival, error, message) -> None:
    with pytest.raises(error, match=message):
        arrival_rate(arrival)


def test_stamps_in_milliseconds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ms.csv"
    rows = ["timestamp,input_tokens,output_tokens", "1700000000123,10,5", "1700000001123,10,5"]
    path.write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"ms.csv, line 3: timestamp must be in seconds"):
        read_trace(path)
