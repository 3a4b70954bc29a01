"""A host has a wrong clock. A rendition takes over at the right time."""

import time

import pytest

from holdfast.collections import StorageController
from holdfast.errors import BadInput
from holdfast.persist import PersistClient, PersistConfig
from unit.collections.stores import SPEC, NoWait, Stores, updates

HOUR_MS = 3_600_000


class Ahead(NoWait):
    """The clock of a host that is an hour ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + HOUR_MS


def test_a_host_with_a_fast_clock_hands_over_at_no_time_of_the_next_hour() -> None:
    stores = Stores()
    with stores.open() as client:
        controller = StorageController(client)
        controller.create_collection(SPEC)
        controller.writer("flights", purpose="test").append(updates([(1, "a", 0, 1)]), 0, 1)
        controller.renditions.create("flights", shards=2, rendition_id="r2")
    config = PersistConfig(maintenance="off")
    with PersistClient(client.location, config=config, clock=Ahead()) as fast:
        controller = StorageController(fast)
        controller.renditions.catch_up("flights", "r2")
        with pytest.raises(BadInput, match="is too far ahead"):
            controller.renditions.hand_over("flights", "r2", at=time.time_ns() // 1_000_000 + HOUR_MS)
        assert controller.renditions.look("flights").promised < 100_000
        controller.renditions.hand_over("flights", "r2")
        assert controller.describe("flights").holding.id == "r2"
        assert controller.renditions.look("flights").promised < 100_000
