"""Listeners of a collection, and their contents at a time."""

from collections import Counter

from holdfast.collections import CollectionListen, StorageController
from holdfast.persist import Progress, Updates
from unit.collections.stores import Row, counted


class Heard:
    """What a listen has told so far, added to what the listener had."""

    def __init__(self, listen: CollectionListen, had: Counter[Row] | None = None) -> None:
        self.listen = listen
        self.contents: Counter[Row] = Counter(had or {})
        self.times: Counter[int] = Counter()

    def until(self, upper: int) -> Counter[Row]:
        """Listen until it is told that all is there below `upper`; the contents then."""
        while self.listen.frontier < upper:
            before = self.listen.frontier
            for event in self.listen.next(60.0):
                match event:
                    case Progress(frontier):
                        assert frontier > before
                    case Updates(table):
                        times = table["_time"].to_pylist()
                        assert min(times) >= before
                        self.times.update(times)
                        self.contents.update(counted(table))
        assert all(time < self.listen.frontier for time in self.times)
        return Counter({row: count for row, count in self.contents.items() if count})


def listener(controller: StorageController, as_of: int) -> Heard:
    """Who listens from a time on, and has what was there then."""
    reader = controller.reader("flights", purpose="listener")
    return Heard(reader.listen(as_of), counted(reader.snapshot(as_of).to_table()))


def contents(controller: StorageController, as_of: int | None = None) -> Counter[Row]:
    """The contents at a time, the latest where none is given."""
    with controller.reader("flights", purpose="look") as reader:
        return counted(reader.snapshot(as_of).to_table())
