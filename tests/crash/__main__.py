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
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crash.campaign import Campaign
from crash.moves import Moves, servers_of
from crash.nursery import Nursery
from crash.places import PAIRS, opened
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.postgres import PostgresServer

OPERATOR = "operator"


def run(pair: str, seed: int, kills: int, *, seals: bool = False, disturb_every: int = 0) -> None:
    """One campaign."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name,
        opened(pair, Path(name), disturbed=disturb_every > 0) as place,
    ):
        started = time.monotonic()
        with Nursery(Path(name)) as nursery:
            campaign = Campaign(place, nursery, seed, seals=seals)
            campaign.kill_and_restart(kills, disturb_every=disturb_every)
            campaign.check()
        answers = Counter(attempt.answer for attempt in campaign.attempts)
        what = "writes to be sealed" if seals else "appends"
        print(
            f"{pair} seed {seed}: {kills} kills, {campaign.disturbances} failovers or restarts,"
            f" {answers['done']} {what} of {len(campaign.attempts)} attempts,"
            f" {answers['unknown'] + answers['none']} of unknown outcome, {time.monotonic() - started:.0f} s",
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
    parser.add_argument("--seals", action="store_true", help="write to be sealed, under the write lock")
    parser.add_argument(
        "--disturb-every",
        type=int,
        default=0,
        metavar="DEATHS",
        help="fail Postgres over to a synchronous standby, or restart S3, after so many deaths of a writer",
    )
    parser.add_argument("--seconds", type=float, help="begin no campaign after this time")
    options = parser.parse_args()
    modes = [*(["--seals"] * options.seals), f"--disturb-every {options.disturb_every}"]
    end = time.monotonic() + (options.seconds or float("inf"))
    with ExitStack() as stack:
        servers = stack.enter_context(operator_servers()) if OPERATOR in options.pairs else None
        for seed in range(options.first, options.first + options.seeds):
            for pair in options.pairs:
                if time.monotonic() > end:
                    return 0
                try:
                    if pair == OPERATOR and servers is not None:
                        run_operators(servers, seed, options.operator_kills)
                    else:
                        run(
                            pair,
                            seed,
                            options.kills,
                            seals=options.seals,
                            disturb_every=options.disturb_every,
                        )
                except Exception:
                    print(
                        f"{pair} seed {seed} failed; again: PYTHONPATH=tests .venv/bin/python -m crash"
                        f" --pairs {pair} --first {seed} --seeds 1 --kills {options.kills}"
                        f" --operator-kills {options.operator_kills} {' '.join(modes)}",
                        file=sys.stderr,
                    )
                    raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
