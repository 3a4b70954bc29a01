"""Ids that follow from the seed: a world that is run again has the same ones, and the same trace."""

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def seeded_ids(chance: random.Random) -> Iterator[None]:
    """Let `uuid.uuid4` draw from `chance` for the block."""
    with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)):
        yield
