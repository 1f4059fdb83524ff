"""The command `python -m lib.audit FILE...`."""

import argparse
import os
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from lib import benchmarks
from lib.audit import Slo, audit
from lib.audit.text import text, to_json
from lib.benchmarks import BenchmarkRun
from lib.diagnosis import TARGET

LONG = 20_000_000
"""Bytes of input from which on the command tells what it is doing."""

_EPILOG = """\
Limits are in seconds (0.25) unless they say ms (250ms); TPOT in seconds per token.
The SLO is missed where fewer than the target share of the requests keep every limit given; failed
requests keep none. With several runs one that misses is enough.

exit status: 0 audited; 1 an SLO was given and missed; 2 unusable input, flags or output file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command `python -m lib.audit`.

    Parameters
    ----------
    argv : its arguments; those of the process when left out.

    Returns
    -------
    The exit status: 0, 1 (an SLO given and missed) or 2 (unusable input, told on stderr). Raises
    SystemExit, also 2, for wrong flags.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console that lacks a character shows another
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(argv)
    try:
        return _command(options)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _refuse(f"{where}{error.strerror or error}")
    except (TypeError, ValueError) as error:
        return _refuse(str(error))
    except MemoryError:
        return _refuse("not enough memory for these files")


def _refuse(message: str) -> int:
    print(f"audit: {message}", file=sys.stderr)
    return 2


def _command(options: argparse.Namespace) -> int:
    given = {"ttft": options.ttft_slo, "tpot": options.tpot_slo, "e2e": options.e2e_slo}
    slo = None
    if any(limit is not None for limit in given.values()):
        slo = Slo(**given, target=TARGET if options.target is None else options.target)
    elif options.target is not None:
        return _refuse("--target needs a limit: --ttft-slo, --tpot-slo or --e2e-slo")
    paths = [Path(name) for name in options.files]
    page = None if options.html is None else Path(options.html)
    if page is not None and any(page.resolve() == path.resolve() for path in paths):
        return _refuse(f"--html would overwrite the input {page}")
    runs: list[BenchmarkRun] = []
    size = sum(path.stat().st_size for path in paths)
    loud = size >= LONG or sys.stderr.isatty()

    def progress(line: str) -> None:
        if loud:
            print(f"audit: {line}", file=sys.stderr, flush=True)

    for path in paths:
        if path.is_dir():
            return _refuse(f"{path}: a folder, not a file: name the result files in it")
        progress(f"reading {path.name} ({path.stat().st_size / 1e6:,.1f} MB)")
        runs += benchmarks.read(path, options.format, options.columns, options.unit)
    found = audit(runs, slo, max_batch_size=options.max_batch_size, progress=progress)
    if slo is not None:
        for run in found.runs:
            if run.goodput is None:
                print(f"audit: {run.label} has no rows: not judged by the SLO", file=sys.stderr)
    if page is not None:
        from lib.audit.page import html  # matplotlib is slow to import, and only the page needs it

        progress(f"drawing {page.name}")
        page.write_text(html(found), encoding="utf-8")
    sys.stdout.write(to_json(found) if options.json else text(found, each=options.each))
    sys.stdout.flush()
    return 1 if found.missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lib.audit",
        description="The ledger of a run, or of a sweep, from the result files of a load tool.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="result file; several are a sweep")
    slo = parser.add_argument_group("limits")
    slo.add_argument("--ttft-slo", type=_seconds, metavar="S", help="limit on TTFT: 0.25 or 250ms")
    slo.add_argument("--tpot-slo", type=_seconds, metavar="S", help="limit on TPOT: 0.025 or 25ms")
    slo.add_argument("--e2e-slo", type=_seconds, metavar="S", help="limit on E2E: 5 or 5000ms")
    slo.add_argument(
        "--target",
        type=_target,
        metavar="SHARE",
        help=f"share of the requests that must keep them, 0 to 1 (default {TARGET})",
    )
    what = parser.add_argument_group("reading")
    names = ", ".join(benchmarks.FORMATS)
    what.add_argument("--format", metavar="NAME", help=f"force a format: {names}")
    what.add_argument(
        "--columns",
        type=_columns,
        metavar="A=B,...",
        help="for csv: record column = header, such as arrival=start,first_token=first",
    )
    what.add_argument(
        "--unit",
        choices=tuple(benchmarks.UNITS),
        default="s",
        help="for csv: the unit of its times (default s)",
    )
    what.add_argument(
        "--max-batch-size", type=_seats, metavar="N", help="seats of the engine, for the diagnosis"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--each", action="store_true", help="of several runs, each ledger in full")
    out.add_argument("--html", metavar="FILE", help="also write a page with plots")
    out.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _seconds(word: str) -> float:
    """A limit in seconds: "0.25", "0.25s" or "250ms"."""
    for suffix, scale in (("ms", 1e-3), ("s", 1.0), ("", 1.0)):
        if word.endswith(suffix):
            try:
                value = float(word.removesuffix(suffix)) * scale
            except ValueError:
                break
            if isfinite(value) and value > 0:
                return value
            break
    raise argparse.ArgumentTypeError(f"must be a time > 0 such as 0.25 (s) or 250ms: got {word!r}")


def _target(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share in (0, 1], 0.99 for 99 %: got {word!r}")
    return value


def _seats(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number > 0: got {word!r}")
    return int(word)


def _columns(word: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in word.split(",")]
    if any(not (name and sign and header) for name, sign, header in pairs):
        raise argparse.ArgumentTypeError(
            f"must be like arrival=start,first_token=first: got {word!r}"
        )
    columns = {name.strip(): header.strip() for name, _, header in pairs}
    if len(columns) < len(pairs):
        raise argparse.ArgumentTypeError(f"a column is named twice: got {word!r}")
    return columns


if __name__ == "__main__":
    sys.exit(main())
