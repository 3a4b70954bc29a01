"""The long set of the crash tests, in `tests/`: python -m crash [--help]

Each seed is two campaigns on fresh shards of each pair of stores, whose writers are killed while their
servers fail over and restart: one of appends, one of writes to be sealed; and one on an API server, whose
operator is killed while it moves a catalog between Postgres and s3+postgres. A campaign that fails prints how
to repeat it (what the machine does between two kills is not repeated with it), and the others go on. A table
of what was done ends the run; the exit code is 1 if a campaign has failed.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from crash.campaign import Campaign
from crash.moves import Moves, servers_of
from crash.nursery import Nursery
from crash.places import PAIRS, opened
from crash.tally import Tally, table
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.postgres import PostgresServer

OPERATOR = "operator"
DISTURB_EVERY = 10


def run(tally: Tally, pair: str, seed: int, kills: int, *, seals: bool, disturb_every: int) -> None:
    """One campaign; its numbers are added to those of the pair, even if it fails."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name,
        opened(pair, Path(name), disturbed=disturb_every > 0) as place,
        Nursery(Path(name)) as nursery,
    ):
        campaign = Campaign(place, nursery, seed, seals=seals)
        try:
            campaign.kill_and_restart(kills, disturb_every=disturb_every)
            campaign.check()
        finally:
            done = campaign.tally()
            tally.add(done)
    print(
        f"{pair} seed {seed}: {done.kills} kills, {done.disturbances} failovers or restarts,"
        f" {done.operations} {'writes to be sealed' if seals else 'appends'} of"
        f" {len(campaign.attempts)} attempts, {done.unknown} of unknown outcome,"
        f" {time.monotonic() - started:.0f} s",
        flush=True,
    )


Servers = tuple[ControlPlane, PostgresServer, Minio]


@contextmanager
def operator_servers() -> Iterator[Servers]:
    """What operators and catalogs need."""
    with (
        ControlPlane.start() as cluster,
        PostgresServer.start(durable=False) as postgres,
        Minio.start() as minio,
    ):
        yield cluster, postgres, minio


def run_operators(tally: Tally, servers: Callable[[], Servers], seed: int, kills: int) -> None:
    """One campaign; its numbers are added, even if it fails."""
    cluster, postgres, minio = servers()
    os.environ.update(minio.credentials)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name,
        servers_of(cluster, postgres, minio, minio.make_bucket()) as fresh,
        Moves(fresh, Path(name), seed) as moves,
    ):
        try:
            moves.run(kills)
        finally:
            tally.add(moves.tally())
        print("\n".join([*moves.report(), f"  {time.monotonic() - started:.0f} s"]), flush=True)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    every = (*PAIRS, OPERATOR)
    parser.add_argument("--pairs", nargs="+", choices=every, default=every)
    parser.add_argument("--seeds", type=int, default=10, help="how often each campaign is run")
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--kills", type=int, default=60, help="kills per campaign")
    parser.add_argument("--operator-kills", type=int, default=20, help="kills per campaign of an operator")
    parser.add_argument(
        "--seals",
        action=argparse.BooleanOptionalAction,
        help="write only to be sealed, under the write lock, or only append; by default both, in turn",
    )
    parser.add_argument(
        "--disturb-every",
        type=int,
        default=DISTURB_EVERY,
        metavar="DEATHS",
        help="fail Postgres over to a synchronous standby, or restart S3, after so many deaths of any"
        f" writers; 0: never (default: {DISTURB_EVERY})",
    )
    parser.add_argument("--seconds", type=float, help="begin no campaign after this time")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Ordered:
    """A campaign to be run: the row of the table that it counts for, and the options that repeat it."""

    row: str
    seed: int
    again: str
    run: Callable[[Tally], None]


def ordered(options: argparse.Namespace, servers: Callable[[], Servers]) -> Iterator[Ordered]:
    """All campaigns, a seed after the other."""
    ways = (False, True) if options.seals is None else (options.seals,)
    for seed in range(options.first, options.first + options.seeds):
        for pair in options.pairs:
            again = f"--pairs {pair} --first {seed} --seeds 1"
            if pair == OPERATOR:
                kills = options.operator_kills
                campaign = partial(run_operators, servers=servers, seed=seed, kills=kills)
                yield Ordered(pair, seed, f"{again} --operator-kills {kills}", campaign)
                continue
            settings = {"kills": options.kills, "disturb_every": options.disturb_every}
            for seals in ways:
                yield Ordered(
                    f"{pair} {'sealed' if seals else 'appended'}",
                    seed,
                    f"{again} --{'' if seals else 'no-'}seals --kills {options.kills}"
                    f" --disturb-every {options.disturb_every}",
                    partial(run, pair=pair, seed=seed, seals=seals, **settings),
                )


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    tallies: dict[str, Tally] = {}
    end = time.monotonic() + (options.seconds or float("inf"))
    with ExitStack() as stack:
        # Also after Ctrl-C.
        stack.callback(lambda: print(f"\n{table(tallies)}", flush=True))
        servers = cache(lambda: stack.enter_context(operator_servers()))
        for campaign in ordered(options, servers):
            if time.monotonic() > end:
                break
            tally = tallies.setdefault(campaign.row, Tally())
            tally.campaigns += 1
            try:
                campaign.run(tally)
            except Exception:  # noqa: BLE001 - the others go on, and the exit code says it
                tally.violations += 1
                traceback.print_exc()
                print(
                    f"{campaign.row} seed {campaign.seed} failed; again:"
                    f" PYTHONPATH=tests .venv/bin/python -m crash {campaign.again}",
                    file=sys.stderr,
                    flush=True,
                )
    return 1 if any(tally.violations for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
