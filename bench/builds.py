"""CPU time of this tree compared with another commit: `bench/builds.py COMMIT [WORK ...]`.

Each pair is two processes, one with this tree's library and one with the library of COMMIT. Each opens a
new location. They work in turns of 100 calls (10 for tables), so that load on a shared machine slows both
alike. The result is the CPU time of the process (user and system, all threads, including background upkeep),
not the wall clock and not a server's time. The program prints the median of the pairs' ratios and its 95 %
interval by order statistics (the interval of a sign test), which assumes nothing about the distribution of
the ratios, and the ratio of the least times of both sides. `--noise` compares COMMIT with itself.
TMPDIR=/dev/shm avoids the disk.

Work: `append` is a `compare_and_append` of 10 rows, as in `append.py`. `head` is `recent_upper` of a shard
that nobody else writes. Blobs are files. Consensus is a SQLite file, or with `-postgres` and `-s3` a server
of the test bed. `stash-append` is an `append` of one row to a stash in SQLite, `stash-append-20` of 20 rows.
`table-scan` is a scan of 2 of the 4 columns of a table of 100,000 rows, to which 10 rows were appended later.
`table-upsert` is an upsert of 10 random keys into a table of 4,000 rows, and `table-append` an append of 10
rows to it. With a table of 1,000,000 rows, `table-upsert-1` and `table-upsert-1000` are upserts of so many
random keys, `table-delete-1` and `table-lookup` delete and look up one key, and `table-diff` is the
difference that an upsert of 1,000 keys made.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import comb
from pathlib import Path
from typing import Final, Self

from common import console, scratch
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.minio import Minio
from testbed.postgres import PostgresServer

ROOT: Final = Path(__file__).resolve().parents[1]
STASH_WORK: Final = ("stash-append", "stash-append-20")
TABLE_WORK: Final = (
    "table-scan",
    "table-append",
    "table-upsert",
    "table-upsert-1",
    "table-upsert-1000",
    "table-delete-1",
    "table-lookup",
    "table-diff",
)
STORE_WORK: Final = ("append", "head", "append-postgres", "head-postgres", "append-s3", "head-s3")
WORK: Final = (*STORE_WORK, *STASH_WORK, *TABLE_WORK)
CONFIDENCE: Final = 0.95
TURN: Final = 100
WARMUP: Final = 200
# What is done with a table takes much longer.
TABLE_TURN: Final = 10


def main() -> None:
    """Compare two builds, or run as one of the working processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commit", help="what to compare with, as git names it")
    parser.add_argument("work", nargs="*", help=f"of {', '.join(WORK)}; all of them by default")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--times", type=int, default=3000)
    parser.add_argument("--noise", action="store_true", help="compare the other commit with itself")
    given = parser.parse_args()
    if unknown := set(given.work) - set(WORK):
        parser.error(f"no such work: {', '.join(sorted(unknown))}")
    table = Table("work", "CPU µs", "before", "ratio", "95 % interval", "least / least")
    with checkout(given.commit) as other:
        for work in given.work or WORK:
            trees = (other if given.noise else ROOT, other)
            ours, theirs = measure(work, trees, given.pairs, given.times)
            ratios = sorted(one / another for one, another in zip(ours, theirs, strict=True))
            low, high = interval(ratios)
            middle = (statistics.median(ours), statistics.median(theirs))
            table.add_row(
                work,
                *(f"{seconds / given.times * 1e6:.0f}" for seconds in middle),
                f"{statistics.median(ratios):.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{min(ours) / min(theirs):.3f}",
            )
    console().print(table)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Create a folder with the files of a commit."""
    with scratch() as folder:
        add = subprocess.run(
            ["git", "archive", commit, "catalog"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=add.stdout, check=True)
        yield folder


def measure(work: str, trees: tuple[Path, Path], pairs: int, times: int) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of each tree for the work done `times` times, in pairs."""
    seconds: tuple[list[float], list[float]] = ([], [])
    kind, _, store = (work, "", "") if work not in STORE_WORK else work.partition("-")
    with consensus(store) as new_consensus, Library(trees[0]) as ours, Library(trees[1]) as theirs:
        for pair in range(pairs):
            with scratch() as folder:
                for side, library in enumerate((ours, theirs)):
                    scheme = "sqlite" if work in STASH_WORK else "file"
                    library.ask(f"{kind} {scheme}://{folder}/{side} {new_consensus()}")
                turn, warmup = (TABLE_TURN, TABLE_TURN) if work in TABLE_WORK else (TURN, WARMUP)
            found = take_turns((ours, theirs), times, first=pair % 2, turn=turn, warmup=warmup)
            for side_seconds, one in zip(seconds, found, strict=True):
                side_seconds.append(one)
            latest = " ".join(f"{one / times * 1e6:.0f}" for one in found)
            print(f"{work}, pair {pair + 1}: {latest} µs", file=sys.stderr, flush=True)
    return seconds


def take_turns(
    libraries: "Sequence[Library]", times: int, *, first: int, turn: int, warmup: int
) -> list[float]:
    """Return the CPU seconds of each process for `times` of its work, after a warm-up."""
    begun = [each.work(warmup) for each in libraries]
    ended = list(begun)
    for number in range(times // turn):
        for step in range(len(libraries)):
            which = (first + number + step) % len(libraries)
            ended[which] = libraries[which].work(turn)
    for each in libraries:
        each.end()
    return [end - begin for begin, end in zip(begun, ended, strict=True)]


class Library:
    """A process that has imported the library of a tree. It forks a working process for each pair."""

    def __init__(self, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("builds_worker.py")],
            env={**os.environ, "PYTHONPATH": str(tree / "catalog")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        source = self._answer()
        assert Path(source).is_relative_to(tree), f"{source} is not of {tree}"

    def ask(self, line: str) -> None:
        """Send a line to the process."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def work(self, times: int) -> float:
        """Do the work so many times; return the CPU seconds so far."""
        self.ask(str(times))
        return float(self._answer())

    def end(self) -> None:
        """Close the location of the process."""
        self.ask("")
        assert self._answer() == "closed"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@contextmanager
def consensus(store: str) -> Iterator[Callable[[], str]]:
    """Return a function that makes URLs of new consensus stores; "" means the file next to the blobs."""
    if not store:
        yield lambda: ""
    elif store == "postgres":
        with PostgresServer.start() as server, server.database() as name:
            schemas = count(1)
            yield lambda: f"{server.url(name)}?schema=run{next(schemas)}"
    else:
        with Minio.start() as minio:
            os.environ.update(minio.credentials)
            yield lambda: f"s3://{minio.make_bucket()}?endpoint={minio.endpoint}"


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest pair of ordered ratios around the median at 95 %, or the outermost pair."""
    pairs = len(ratios)
    cut = 0
    outside = 2 / 2**pairs
    while outside + 2 * comb(pairs, cut + 1) / 2**pairs <= 1 - CONFIDENCE:
        cut += 1
        outside += 2 * comb(pairs, cut) / 2**pairs
    return ratios[cut], ratios[pairs - 1 - cut]


if __name__ == "__main__":
    main()
