"""Ids and waits derived from the seed, so that a repeated world has the same ones and the same trace."""

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from sim.scheduler import TASK


@contextmanager
def seeded_ids(chance: random.Random) -> Iterator[None]:
    """Let `uuid.uuid4` and `random.uniform` draw from `chance`, in this thread and in simulated processes.

    Other threads of this real process draw as before. Otherwise they would take draws away from the world.
    """
    here, draw, spread = threading.current_thread(), uuid.uuid4, random.uniform

    def is_simulated() -> bool:
        thread = threading.current_thread()
        return thread is here or thread.name.startswith(TASK)

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4) if is_simulated() else draw()

    def between(low: float, high: float) -> float:
        return chance.uniform(low, high) if is_simulated() else spread(low, high)

    with patch.object(uuid, "uuid4", drawn), patch.object(random, "uniform", between):
        yield
