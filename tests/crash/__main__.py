"""The long set of the crash tests, in `tests/`: python -m crash [--help]

Each seed is a campaign on a fresh shard of each pair of stores, whose writers are killed, and one on an API
server, whose operator is killed while it moves a catalog between Postgres and s3+postgres. A failure prints
how to repeat its campaign; what the machine does between two kills is not repeated with it.
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
from crash.moves import Moves, servers_of
from crash.nursery import Nursery
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.postgres import PostgresServer

PAIRS = ("file+sqlite", "file+postgres", "s3+postgres", "s3+s3")
OPERATOR = "operator"


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


@contextmanager
def operator_servers() -> Iterator[tuple[ControlPlane, PostgresServer, Minio]]:
    """What operators and catalogs need."""
    with (
        ControlPlane.start() as cluster,
        PostgresServer.start(durable=False) as postgres,
        Minio.start() as minio,
    ):
        yield cluster, postgres, minio


def run_operators(servers: tuple[ControlPlane, PostgresServer, Minio], seed: int, kills: int) -> None:
    """One campaign."""
    minio = servers[2]
    os.environ.update(minio.credentials)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name,
        servers_of(*servers, minio.make_bucket()) as fresh,
        Moves(fresh, Path(name), seed) as moves,
    ):
        moves.run(kills)
        print("\n".join([*moves.report(), f"  {time.monotonic() - started:.0f} s"]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    every = (*PAIRS, OPERATOR)
    parser.add_argument("--pairs", nargs="+", choices=every, default=every)
    parser.add_argument("--seeds", type=int, default=10, help="how many campaigns per pair")
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--kills", type=int, default=60, help="kills per campaign")
    parser.add_argument("--operator-kills", type=int, default=20, help="kills per campaign of an operator")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = stack.enter_context(operator_servers()) if OPERATOR in options.pairs else None
        for seed in range(options.first, options.first + options.seeds):
            for pair in options.pairs:
                try:
                    if pair == OPERATOR and servers is not None:
                        run_operators(servers, seed, options.operator_kills)
                    else:
                        run(pair, seed, options.kills)
                except Exception:
                    print(
                        f"{pair} seed {seed} failed; again: PYTHONPATH=tests .venv/bin/python -m crash"
                        f" --pairs {pair} --first {seed} --seeds 1 --kills {options.kills}"
                        f" --operator-kills {options.operator_kills}",
                        file=sys.stderr,
                    )
                    raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
