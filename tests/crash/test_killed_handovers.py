"""A process is killed at each step of a handover. Readers and writers continue, and another process ends it.

Processes and stores are real. The crash model of collections breaks the same steps in memory, in more ways.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from crash.campaign import Place
from crash.handing import ANY_LAG, CONFIG, Handing
from holdfast.collections import CollectionSpec, RenditionState, StorageController
from holdfast.persist import PersistClient
from unit.collections.listeners import Heard
from unit.collections.stores import SCHEMA, Row, counted, updates

FIRST = [(number, "first", 5, 1) for number in range(12)]
PATIENCE_S = 120.0


class Readers:
    """A listener, and one who takes snapshots of the latest all the time, until they are stopped."""

    def __init__(self, client: PersistClient, name: str, had: Counter[Row]) -> None:
        controller = StorageController(client)
        self.heard = Heard(controller.reader(name, purpose="listener").listen(15), had)
        self._snapshots = controller.reader(name, purpose="snapshots")
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._looked = self._pool.submit(self._look)
        self.sizes: list[int] = []

    def _look(self) -> None:
        while not self._stop.is_set():
            found = counted(self._snapshots.snapshot(None).to_table())
            assert set(found.values()) <= {1}, f"a snapshot has a row twice: {found}"
            self.sizes.append(len(found))

    def check(self, upper: int, expected: Counter[Row]) -> None:
        """Stop, and raise `AssertionError` if something was missing or there twice."""
        assert self.heard.until(upper) == expected
        self._stop.set()
        self._looked.result(PATIENCE_S)
        self._pool.shutdown()
        assert self.sizes == sorted(self.sizes), "a snapshot lacks what an earlier one had"


@pytest.fixture
def client(place: Place) -> Iterator[PersistClient]:
    client = PersistClient.open(blob=place.blob, consensus=place.consensus, config=CONFIG)
    yield client
    client.close()


def is_broken_at(step: int, place: Place, client: PersistClient, handing: Handing) -> bool:
    """One handover, killed at a step; whether it had so many."""
    name = f"flights-{step}"
    controller = StorageController(client)
    controller.create_collection(CollectionSpec(f"c{step}", name, SCHEMA, shards=2))
    writer = controller.writer(name, purpose="writer")
    writer.append(updates(FIRST), 0, 20)
    expected = Counter(counted(updates(FIRST)))
    readers = Readers(client, name, expected.copy())

    killed = handing.is_killed(blob=place.blob, consensus=place.consensus, collection=name, step=step)
    upper = 20
    for number in range(2):
        row = (100 + number, "meanwhile")
        upper = writer.upper()
        writer.append([{"id": row[0], "name": row[1]}], upper, upper + 10)
        expected[row] += 1
    with PersistClient.open(blob=place.blob, consensus=place.consensus, config=CONFIG) as other:
        successor = StorageController(other)
        if "r2" not in {each.id for each in successor.describe(name).renditions}:
            successor.renditions.create(name, shards=3, rendition_id="r2")
        if successor.describe(name).holding.id != "r2":
            successor.renditions.catch_up(name, "r2")
        successor.renditions.hand_over(name, "r2", max_lag_ms=ANY_LAG)
        info = successor.describe(name)
        assert (info.holding.id, info.holding.state) == ("r2", RenditionState.HOLDING)
        upper = writer.upper()
        writer.append([{"id": 200, "name": "last"}], upper, upper + 10)
        expected[200, "last"] += 1
        with successor.reader(name, purpose="check") as reader:
            assert counted(reader.snapshot(None).to_table()) == expected
            readers.check(reader.upper(), expected)
    return killed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["file+sqlite"], indirect=True)
@pytest.mark.long
def test_a_handover_that_is_killed_at_any_step_is_ended_by_another(
    place: Place, client: PersistClient
) -> None:
    with Handing() as handing:
        for step in itertools.count():
            if not is_broken_at(step, place, client, handing):
                break
    assert step > 8, "a handover has more steps"


@pytest.mark.timeout(600)
@pytest.mark.postgres
@pytest.mark.s3
@pytest.mark.parametrize("place", ["s3+postgres"], indirect=True)
@pytest.mark.long
def test_a_handover_on_servers_that_is_killed_is_ended_by_another(
    place: Place, client: PersistClient
) -> None:
    with Handing() as handing:
        broken = [is_broken_at(step, place, client, handing) for step in (1, 5, 8)]
    assert broken == [True, True, True]
