"""Runs a range of seeds, one world for each, in several processes at once.

Each worker runs blocks of seeds one after another. A block ends at its first failure. The result has the
failures, with the seeds to replay them, and how often all worlds together met each situation that they are
made for.
"""

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from sim.kinds import PERSIST, world

WORKERS = 2
BLOCK = 25


@dataclass(slots=True)
class Outcome:
    """What became of some worlds."""

    worlds: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Outcome") -> None:
        self.worlds += other.worlds
        self.failures |= other.failures
        self.met += other.met

    def told(self) -> str:
        """The failures, the least seed first, each with how to see it."""
        return "\n".join(
            f"seed {seed}: {error}\n  replay: make sim SEED={seed}"
            for seed, error in sorted(self.failures.items())
        )


def _log_errors_only() -> None:
    """Log no failed upkeep, which is part of the weather. Only for a process that runs nothing but worlds."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)


def run_block(first: int, count: int, kind: str = PERSIST) -> Outcome:
    """Run the worlds of these seeds here, until one fails."""
    outcome = Outcome()
    for seed in range(first, first + count):
        made = world(kind, seed)
        outcome.worlds += 1
        try:
            made.run()
        except Exception as error:  # noqa: BLE001 - any failure is an answer
            outcome.failures[seed] = f"{type(error).__name__}: {error}"
            break
        outcome.met += made.met()
    return outcome


def run_all(
    first: int,
    seeds: int,
    *,
    kind: str = PERSIST,
    workers: int = WORKERS,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Run `seeds` worlds from seed `first` on; `progress` hears of each block."""
    outcome = Outcome()
    # One thread each: the worlds are small, and there are as many processes as processors.
    os.environ["POLARS_MAX_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_log_errors_only) as pool:
        blocks = [
            pool.submit(run_block, start, min(BLOCK, first + seeds - start), kind)
            for start in range(first, first + seeds, BLOCK)
        ]
        for block in as_completed(blocks):
            if block.cancelled():
                continue
            outcome.add(block.result())
            progress(outcome)
            if outcome.failures:
                for other in blocks:
                    other.cancel()
    return outcome
