"""The simulation from the command line, in `tests/`.

python -m sim SEED [--mutant NAME]            the world of one seed again, with all that happened
python -m sim SEED --kind KIND                the same of another kind: log, collections, failover
python -m sim run [--seeds N] [--from SEED] [--kind KIND]   many worlds, and what they met
python -m sim mutants [NAME...] [--seeds N]   hunt mutants (all): how many seeds it takes to find each
python -m sim mutants [NAME...] --table       the same, as the table of docs/explanation/simulation.md
python -m sim mutants [NAME...] --refresh     write the patches again with the lines and files of today
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sim.campaign import WORKERS, Outcome, run_all
from sim.coverage import table
from sim.kinds import PERSIST, SEEDS
from sim.mutation import Mutant, hunt, load, refresh, run_copy, worlds_preloaded
from sim.patches import DoesNotApply
from sim.replay import replay
from testbed.preloaded import Preloaded

TELL_EVERY_S = 5.0


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim run")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--kind", choices=SEEDS, default=PERSIST)
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args(arguments)
    seeds = options.seeds or SEEDS[options.kind]
    started = told = time.monotonic()

    def progress(outcome: Outcome) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= TELL_EVERY_S:
            told = now
            rate = outcome.worlds / (now - started)
            left = (seeds - outcome.worlds) / rate
            print(f"{outcome.worlds:,} of {seeds:,} worlds, {rate:.0f}/s, {left:.0f} s left", flush=True)

    outcome = run_all(options.first, seeds, kind=options.kind, workers=options.workers, progress=progress)
    print("\n".join(table(outcome)))
    print(f"{outcome.worlds:,} worlds in {time.monotonic() - started:.0f} s, {len(outcome.failures)} failed")
    if outcome.failures:
        print(outcome.told())
    return bool(outcome.failures)


def mutants(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, help="how many worlds at most (those of CI)")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    found = load(options.names)
    if options.refresh:
        return max([_refreshed(mutant) for mutant in found], default=0)
    with worlds_preloaded() as preloaded, ThreadPoolExecutor(WORKERS) as pool:
        hunted = partial(_hunted, preloaded=preloaded, seeds=options.seeds, table=options.table)
        return max(pool.map(hunted, found), default=0)


def _refreshed(mutant: Mutant) -> int:
    try:
        refresh(mutant)
    except DoesNotApply as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _hunted(mutant: Mutant, *, preloaded: Preloaded, seeds: int | None, table: bool) -> int:
    started = time.monotonic()
    try:
        found = hunt(mutant, preloaded, seeds)
    except (DoesNotApply, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1
    seed = "NOT FOUND" if found.seed is None else f"seed {found.seed}"
    if table:
        print(f"| {mutant.story} | `{mutant.name}` | {found.seed} |", flush=True)
        return found.seed is None
    print(f"{mutant.name:45} {seed:10} {time.monotonic() - started:5.1f} s  {found.error[:140]}", flush=True)
    return found.seed is None


def main() -> int:
    match sys.argv[1:]:
        case [seed] if seed.isdigit():
            return replay(int(seed))
        case [seed, "--kind", kind] if seed.isdigit() and kind in SEEDS:
            return replay(int(seed), kind)
        case [seed, "--mutant", name] if seed.isdigit():
            (mutant,) = load([name])
            with worlds_preloaded() as preloaded:
                child = run_copy(mutant, preloaded, "replay", seed)
            print(child.stdout or child.stderr, end="")
            return child.returncode
        case ["run", *arguments]:
            return run(arguments)
        case ["mutants", *arguments]:
            return mutants(arguments)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
