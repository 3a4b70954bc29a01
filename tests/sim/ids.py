"""Ids that follow from the seed: a world that is run again has the same ones, and the same trace."""

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from sim.scheduler import TASK


@contextmanager
def seeded_ids(chance: random.Random) -> Iterator[None]:
    """Let `uuid.uuid4` draw from `chance` for the block, in this thread and in those of simulated processes.

    What else runs in this real process draws as ever: it would take ids away from the world, by chance.
    """
    here, draw = threading.current_thread(), uuid.uuid4

    def drawn() -> uuid.UUID:
        thread = threading.current_thread()
        if thread is here or thread.name.startswith(TASK):
            return uuid.UUID(int=chance.getrandbits(128), version=4)
        return draw()

    with patch.object(uuid, "uuid4", drawn):
        yield
