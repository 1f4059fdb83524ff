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
    read_burstgpt,
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
    assert log.succeeded.tolist() == [True, False]


def test_mooncake_milliseconds(tmp_path) -> None:
    """Case D03: whole milliseconds in steps of 3 s; as seconds the span would be 6,000 s."""
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


@pytest.mark.parametrize(
    ("unit", "stamps"),
    [
        ("s", ("7", "7", "10", "13")),
        ("ms", ("1700000000123", "1700000000123", "1700000003123", "1700000006123")),
        ("ms", ("0", "0", "3000", "6e3")),
        ("us", ("5", "5", "3000005", "6000005.0")),
        ("ns", ("1700000000000000000",) * 2 + ("1700000003000000000", "1700000006000000000")),
    ],
)
def test_own_files_in_other_units(unit, stamps, tmp_path) -> None:
    """Case D03 in a file of one's own: the unit is named, and ties are kept."""
    rows = [f"{stamp},7,3" for stamp in stamps]
    log = read_trace(write(tmp_path / "t.csv", "\n".join([OWN, *rows])), unit=unit)
    # Unix time in float64 has steps of 0.24 us.
    assert log.arrival.tolist() == pytest.approx([0, 0, 3, 6], abs=5e-7)
    assert (np.diff(log.arrival) == 0).sum() == 1
    assert arrival_rate(log.arrival) == pytest.approx(0.5, abs=1e-6)


def test_units_refused(tmp_path) -> None:
    numbers = write(tmp_path / "n.csv", f"{OWN}\n1700000000123,1,2")
    for bad in ("min", "seconds", "", None, 1000):
        with pytest.raises(ValueError, match="unit must be one of 's', 'ms', 'us', 'ns': got "):
            read_trace(numbers, unit=bad)
    with pytest.raises(ValueError, match=r"n\.csv, line 2: timestamp must be in seconds: got '17"):
        read_trace(numbers)
    with pytest.raises(ValueError, match=r"line 2: timestamp must be in ms: .*a smaller unit"):
        read_trace(write(tmp_path / "u.csv", f"{OWN}\n1700000000123456,1,2"), unit="ms")
    with pytest.raises(ValueError, match=rf"line 2: timestamp must be numbers in ms: got '{DAY}'"):
        read_trace(write(tmp_path / "c.csv", f"{OWN}\n{DAY},1,2"), unit="ms")


def test_a_byte_order_mark_passes(tmp_path) -> None:
    assert len(read_trace(write(tmp_path / "t.csv", f"\ufeff{OWN}\n0,1,2"))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{OWN}\n0,1,2".encode("utf-16"), r"t\.csv: the file must be UTF-8 text"),
        (f'{OWN}\n0,"1,234",2'.encode(), r"line 2: expected 3 fields .*: got '0,\"1,234\",2'"),
        (f"{OWN}\n0,1 234,2".encode(), r"line 2: input_tokens must be a whole .*: got '1 234'"),
        (f"{OWN}\n0,7.0,2".encode(), r"line 2: input_tokens must be a whole .*: got '7.0'"),
        (f"{OWN}\n0,,2".encode(), r"line 2: input_tokens must be a whole .*: got ''"),
        (f"{OWN}\n0.5.1,1,2".encode(), r"line 2: timestamp must be seconds, or .*: got '0.5.1'"),
        (f"{OWN}\n0,1,2\n{OWN}\n1,1,2".encode(), r"line 3: timestamp must be .*'timestamp'"),
        (OWN.replace(",", ";").encode() + b"\n0;1;2", r"line 1: the header must be timestamp,inp"),
        (OWN.replace(",", "\t").encode() + b"\n0\t1\t2", r"line 1: the header must be timestamp"),
        (b"input_tokens,timestamp,output_tokens\n0,1,2", r"line 1: the header must be timestamp"),
        (b"timestamp,input_tokens\n0,1", r"line 1: the header must be timestamp,input_tokens,out"),
    ],
)
def test_spreadsheets_and_other_damage(content, message, tmp_path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_trace(tmp_path / "t.csv")


# BurstGPT -----------------------------------------------------------------------------------------

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
LATER = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_without_a_token_are_arrivals_and_no_lengths(end, tmp_path) -> None:
    """Case D01: three rows, the second failed."""
    rows = [
        "0.0,ChatGPT,10,5,15,Conversation log",
        "1.0,GPT-4,20,0,20,API log",
        "2.0,ChatGPT,30,15,45,Conversation log",
    ]
    log = read_burstgpt(write(tmp_path / "b.csv", end.join([BURST, *rows, ""])))
    assert log.arrival.tolist() == [0, 1, 2]
    assert arrival_rate(log.arrival) == 1.0
    answered = log.where(log.succeeded)
    assert (len(answered), len(log) - len(answered)) == (2, 1)
    assert answered.output_tokens.mean() == 10.0
    assert log.output_tokens.mean() == pytest.approx(6.6666666667, abs=1e-9)  # what it hides
    assert answered.input_tokens.tolist() == [10, 30]
    assert np.isnan(log.last_token).all()


@pytest.mark.parametrize("reader", ["trace", "mooncake"])
def test_the_other_readers_mark_failures_too(reader, tmp_path) -> None:
    """Case D01 in other files."""
    rows = [(0, 10, 5), (1, 20, 0), (2, 30, 15)]
    if reader == "trace":
        text = "\n".join([OWN, *(f"{t},{i},{o}" for t, i, o in rows)])
        log = read_trace(write(tmp_path / "t.csv", text))
    else:
        keys = ("timestamp", "input_length", "output_length")
        text = "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)
        log = read_mooncake(write(tmp_path / "t.jsonl", text))
    assert log.succeeded.tolist() == [True, False, True]
    assert log.where(log.succeeded).output_tokens.mean() == 10.0


def test_a_quiet_head(tmp_path) -> None:
    """Case D01: 0.0343 requests a second at the head, 3.1713 later, 92 times as many."""
    head = np.arange(50) / 0.0343
    steady = head[-1] + np.arange(1, 20_001) / 3.1713
    rows = [f"{t:.9f},GPT-4,7,3,10,API log" for t in np.concatenate([head, steady])]
    log = read_burstgpt(write(tmp_path / "b.csv", "\n".join([BURST, *rows])))
    rates = arrival_rate(log.arrival[:50]), arrival_rate(log.arrival[50:])
    assert rates == pytest.approx((0.0343, 3.1713), rel=1e-8)  # stamps of 9 digits
    assert rates[1] / rates[0] == pytest.approx(92.46, abs=0.01)
    assert rates[0] < arrival_rate(log.arrival) < rates[1]  # one rate describes neither


def test_later_releases_of_burstgpt(tmp_path) -> None:
    rows = [
        "5,s1,2.5,ChatGPT,472,18,490,Conversation log",
        "5,,,GPT-4,0,0,0,API log",
        "45,s1,0.5,ChatGPT,1087,0,1087,Conversation log",
        "46,,1.25,GPT-4,417,276,693,API log",
    ]
    log = read_burstgpt(write(tmp_path / "b.csv", "\n".join([LATER, *rows])))
    assert log.arrival.tolist() == [0, 0, 40, 41]
    assert log.succeeded.tolist() == [True, False, False, True]
    assert log.last_token[[0, 3]].tolist() == [2.5, 42.25]
    assert np.isnan(log.last_token[[1, 2]]).all()  # a failure has no last token


def test_burstgpt_columns_in_any_order(tmp_path) -> None:
    keys = BURST.split(",")
    rows = [("5", "GPT-4", "472", "18", "490", "API log")]
    moved = [3, 0, 5, 1, 4, 2]
    text = "\n".join(",".join(row[i] for i in moved) for row in [keys, *rows])
    log = read_burstgpt(write(tmp_path / "b.csv", text))
    assert (log.input_tokens.tolist(), log.output_tokens.tolist()) == ([472], [18])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"b\.csv, line 1: the header must have the columns Timestamp, Session ID"),
        (BURST, r"b\.csv: no row follows the header"),
        (f"{OWN}\n0,1,2", r"line 1: the header must have .*: got 'timestamp,input_tokens,outp"),
        (f"{BURST},Model\n", r"line 1: the header must have .*Log Type,Model'"),
        (f"{BURST},Zone\n", r"line 1: the header must have .*Log Type,Zone'"),
        (BURST.replace(",Model", ""), r"line 1: the header must have .*: got 'Timestamp,Request"),
        (f"{BURST}\n5,GPT-4,1,2,3", r"b\.csv, line 2: expected 6 fields"),
        (f'{BURST}\n5,GPT-4,"1,087",2,3,API log', r"line 2: expected 6 fields"),
        (f"{BURST}\n-5,GPT-4,1,2,3,API log", r"line 2: Timestamp must be seconds >= 0: got '-5'"),
        (f"{BURST}\n5,GPT-4,1,2.5,3,API log", r"line 2: Response tokens must be a whole .*'2.5'"),
        (f"{BURST}\n5,GPT-4,1,,3,API log", r"line 2: Response tokens must be a whole .*: got ''"),
        (f"{BURST}\n5,A,1,2,3,x\n4,A,1,2,3,x", r"line 3: Timestamp must not precede .*'4' after"),
        (f"{LATER}\n5,s,fast,A,1,2,3,x", r"line 2: Elapsed time must be seconds .*: got 'fast'"),
    ],
)
def test_broken_burstgpt_files(text, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        read_burstgpt(write(tmp_path / "b.csv", text))


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
