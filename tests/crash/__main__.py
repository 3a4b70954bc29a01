"""The long set of the crash tests, in `tests/`: python -m crash [--help]

Each seed is a campaign on a fresh shard of each pair of stores. A failure prints how to repeat its campaign;
what the machine does between two kills is not repeated with it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crash.campaign import Campaign, Place
from crash.nursery import Nursery
from testbed.minio import Minio
from testbed.postgres import PostgresServer

PAIRS = ("file+sqlite", "file+postgres", "s3+postgres", "s3+s3")


@contextmanager
def opened(pair: str, folder: Path) -> Iterator[Place]:
    """A fresh place of the pair, on servers of its own."""
    blob, consensus = f"file://{folder}/blob", f"sqlite://{folder}/consensus.sqlite"
    with ExitStack() as stack:
        if pair.startswith("s3"):
            minio = stack.enter_context(Minio.start())
            os.environ.update(minio.credentials)
            bucket = minio.make_bucket()
            blob, consensus = (
                f"s3://{bucket}/{prefix}?endpoint={minio.endpoint}" for prefix in ("blob", "log")
            )
        if pair.endswith("postgres"):
            consensus = stack.enter_context(PostgresServer.start()).url()
        yield Place(blob=blob, consensus=consensus)


def run(pair: str, seed: int, kills: int) -> None:
    """One campaign."""
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name, opened(pair, Path(name)) as place:
        started = time.monotonic()
        with Nursery(Path(name)) as nursery:
            campaign = Campaign(place, nursery, seed)
            campaign.kill_and_restart(kills)
            campaign.check()
        appends = sum(attempt.answer == "done" for attempt in campaign.attempts)
        print(
            f"{pair} seed {seed}: {kills} kills, {appends} appends, {time.monotonic() - started:.0f} s",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=PAIRS)
    parser.add_argument("--seeds", type=int, default=10, help="how many campaigns per pair")
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--kills", type=int, default=60, help="kills per campaign")
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.seeds):
        for pair in options.pairs:
            try:
                run(pair, seed, options.kills)
            except Exception:
                print(
                    f"{pair} seed {seed} failed; again: PYTHONPATH=tests .venv/bin/python -m crash"
                    f" --pairs {pair} --first {seed} --seeds 1 --kills {options.kills}",
                    file=sys.stderr,
                )
                raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
