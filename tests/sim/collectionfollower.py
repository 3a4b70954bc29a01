"""A listener of the simulated collection, with the changes that it has received."""

from holdfast.collections import CollectionListen
from holdfast.persist import Progress
from sim.audit import Violation
from sim.collectionwitness import NAME
from sim.history import Followed, History


class Follower:
    """A listen, and what it has given."""

    def __init__(self, listen: CollectionListen, who: str, lower: int, history: History) -> None:
        self.listen = listen
        self.followed = Followed(who, NAME, lower, lower, history.now())
        history.followed.append(self.followed)

    def follow(self, timeout: float | None) -> bool:
        """Take what comes next; whether there was anything."""
        followed = self.followed
        events = self.listen.next(timeout)
        for event in events:
            if isinstance(event, Progress):
                if event.frontier <= followed.frontier:
                    raise Violation(f"{followed.who}: progress from {followed.frontier} to {event.frontier}")
                followed.frontier = event.frontier
                continue
            columns = [event.table.column(name).to_pylist() for name in ("k", "v", "_time", "_diff")]
            for key, value, time, diff in zip(*columns, strict=True):
                if time < followed.frontier:
                    raise Violation(f"{followed.who}: an update at {time} after {followed.frontier}")
                followed.updates[key, value, time] += diff
        return bool(events)
