"""Operations that share one look at the store stay right when others act between their reads."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

import holdfast
from holdfast.collections import StorageController
from testbed.faults import Fault, Operation
from unit.collections.listeners import contents
from unit.collections.stores import SPEC, Stores, updates


class Between:
    """Calls `action` once, before the read of heads with this number (from 0) from now on."""

    def __init__(self) -> None:
        self.left, self.action = -1, lambda: None

    def at(self, number: int, action: Callable[[], object]) -> None:
        self.left, self.action = number, action

    def decide(self, operation: Operation) -> Fault:
        if operation.name == "consensus.heads" and self.left >= 0:
            self.left -= 1
            if self.left < 0:
                # Commits of this thread would begin a new look.
                thread = threading.Thread(target=self.action)
                thread.start()
                thread.join()
        return Fault.NONE


def prepared(stores: Stores) -> StorageController:
    other = StorageController(stores.open())
    other.create_collection(SPEC)
    writer = other.writer("flights", purpose="test")
    writer.append(updates([(1, "one", 10, 1)]), 0, 20)
    other.renditions.create("flights", shards=2)
    other.renditions.catch_up("flights", "r2")
    return other


@pytest.mark.parametrize("number", range(6))
def test_a_writer_that_is_opened_during_a_handover_loses_no_rows(number: int) -> None:
    stores, between = Stores(), Between()
    other = prepared(stores)
    client = stores.open(between)
    controller = StorageController(client)
    controller.list_collections()
    between.at(number, lambda: other.renditions.hand_over("flights", "r2"))
    writer = controller.writer("flights", purpose="test")
    between.left = -1
    upper = writer.upper()
    writer.append(updates([(2, "two", upper, 1)]), upper, upper + 1)
    assert contents(other) == Counter({(1, "one"): 1, (2, "two"): 1})


@pytest.mark.parametrize("number", range(6))
def test_a_table_that_is_written_during_a_handover_loses_no_rows(number: int) -> None:
    stores, between = Stores(), Between()
    other = prepared(stores)
    with stores.open(between) as client, holdfast.table(client, "flights") as table:
        between.at(number, lambda: other.renditions.hand_over("flights", "r2"))
        table.append([{"id": 2, "name": "two"}])
        between.left = -1
        table.update([2], lambda rows: rows)
        assert len(table) == 2
        assert contents(other) == Counter({(1, "one"): 1, (2, "two"): 1})
