"""Subscriptions on every kind of catalog return each committed change once and in order, despite faults."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from conformance.catalogs import EMBEDDED, PROTOCOL, RETAINING, SHARED, Catalogs, role, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import FenceToken, ObjectChange, OpenMode, Subscription
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import AUDIT_LOG, CONFIGS, FENCE_TOKENS, ROLES
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, BadInput, VersionTooNew
from testbed.children import plain_path

FOLLOWER = Path(__file__).with_name("catalog_follower.py")
PATIENCE_S = 180.0

Line = tuple[int, bytes, bytes, int]


def committed(store: CatalogStore, lower: int = 0) -> list[Line]:
    """What was committed at times from `lower` on, as the store has it."""
    first = [(0, *row, 1) for row in store.rows(0)] if lower == 0 else []
    rest = store.changes(max(lower, 1), store.upper())
    return sorted(first + [(time, *row, diff) for time, updates in rest for row, diff in updates])


def lines_of(changes: Sequence[ObjectChange]) -> list[Line]:
    return [(c.time, *encode(c.collection, c.object.key, c.object.value), c.diff) for c in changes]


def check(found: Sequence[Line], expected: Sequence[Line]) -> None:
    """Each change once; times in order, and at each time fence token and config before the rest."""
    assert sorted(found) == sorted(expected)
    places = [(time, key[:2], diff) for time, key, _, diff in found]
    assert places == sorted(places)


def drain(subscription: Subscription, upper: int) -> list[Line]:
    found: list[Line] = []
    while subscription.frontier < upper:
        found += lines_of(subscription.next(60))
    return found


def test_a_subscription_goes_on_from_where_another_stopped(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    catalog.set_objects(ROLES, [role(1, "a")])
    reader = catalogs.openable("read").open(OpenMode.READ_ONLY)
    first = reader.subscribe(0)
    before = drain(first, catalog.upper)
    since = first.frontier
    assert since == catalog.upper
    first.close()
    catalog = writable(catalogs.openable(), "next")
    catalog.set_objects(ROLES, [role(1, "b")])
    second = reader.subscribe(since)
    catalog.set_objects(ROLES, [role(number, f"r{number}") for number in range(1, 300)])
    after = drain(second, catalog.upper)
    store = catalogs.behind()
    check(before + after, committed(store))
    check(after, committed(store, since))
    # What this handle has in memory is where a subscription begins by itself.
    assert drain(reader.subscribe(), catalog.upper) == after
    reader.sync()
    assert reader.subscribe().next(0) == []
    second.close()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_subscription_begins_within_the_history(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    for time, error in ((-1, BadInput), (3, AsOfNotYetAvailable)):
        with pytest.raises(error):
            catalog.subscribe(time)
    waiting = catalog.subscribe(1)
    assert waiting.next(0) == []
    catalog.set_objects(ROLES, [role(1, "a")])
    (change,) = waiting.next(60)
    assert (change.time, change.collection, change.object.value.name, change.diff) == (1, ROLES, "a", 1)
    waiting.close()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_what_can_not_be_read_is_given_out_by_nobody(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    subscription = catalogs.openable().open(OpenMode.READ_ONLY).subscribe()
    store = catalogs.behind()
    catalog.set_objects(ROLES, [role(1, "a")])
    upper = store.upper()
    seen = read_preamble(store, upper)
    token = FenceToken(0, 0, "newer", "upgrade").after(seen.token)
    key = pb.ConfigKey(key="user_version")
    old = encode(CONFIGS, key, pb.ConfigValue(value=seen.config["user_version"]))
    new = encode(CONFIGS, key, pb.ConfigValue(value=9999))
    odd = Row(ROLES.kind.tag + b"\xff", b"\xff")
    store.append([*seen.fence(token), RowUpdate(old, -1), RowUpdate(new, 1), RowUpdate(odd, 1)], upper)
    found: list[ObjectChange] = []
    while not found:
        found = subscription.next(60)
    assert [c.object.value.name for c in found] == ["a"]
    assert subscription.frontier == upper
    for _ in range(2):
        with pytest.raises(VersionTooNew):
            subscription.next(60)
    assert subscription.frontier == upper


class Follower:
    """A reader process, and what it has printed."""

    def __init__(self, catalogs: Catalogs, kept: Path) -> None:
        self.lines: list[Line] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, str(FOLLOWER), json.dumps(catalogs.address), str(kept)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": plain_path(FOLLOWER.parent.parent)},
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()
        assert self._lines.get(timeout=PATIENCE_S) == "following"

    def follow(self, time: int, changes: int) -> None:
        """Until it has printed so many changes of a time."""
        while sum(line[0] == time for line in self.lines) < changes:
            self.take(self._lines.get(timeout=PATIENCE_S))

    def take(self, line: str) -> None:
        time, _, key, value, diff = json.loads(line)
        self.lines.append((time, bytes.fromhex(key), bytes.fromhex(value), diff))

    def kill(self) -> list[Line]:
        """End it as a crash does; all that it ever printed."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        while not self._lines.empty():
            line = self._lines.get()
            if line.endswith("]"):
                self.take(line)
        return self.lines

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line.rstrip("\n"))


@pytest.mark.parametrize("catalogs", SHARED[::3], indirect=True)
def test_a_reader_process_gets_every_change_exactly_once(catalogs: Catalogs, tmp_path: Path) -> None:
    kept = tmp_path / "frontier"
    store = catalogs.behind()
    catalog = writable(catalogs.openable(), "first")
    catalog.set_objects(ROLES, [role(1, "a")])
    got: list[Line] = []
    followers: list[Follower] = []
    try:
        for number in range(2):
            if number:
                # Committed while nobody followed.
                catalog.set_objects(ROLES, [role(1, "while it was dead")])
            follower = Follower(catalogs, kept)
            followers.append(follower)
            catalog = writable(catalogs.openable(), f"writer {number}")
            for step in range(5):
                catalog.set_objects(ROLES, [role(2, f"{number}.{step}")])
            catalog.set_objects(ROLES, [role(100 + each, f"{number}/{each}") for each in range(500)])
            catalog.ensure_item("holdfast", "public", f"t{number}")
            last = catalog.upper - 1
            follower.follow(last, sum(line[0] == last for line in committed(store, last)))
            printed = follower.kill()
            # What it had not noted yet, the next one gives again.
            frontier = int(kept.read_text()) if kept.exists() else 0
            got += [line for line in printed if line[0] < frontier]
        got += [line for line in printed if line[0] >= frontier]
    finally:
        for follower in followers:
            follower.kill()
    check(got, committed(store))
    assert sum(line[1][:2] == FENCE_TOKENS.kind.tag for line in got) == 2 * 3 - 1
    assert any(line[1][:2] == AUDIT_LOG.kind.tag for line in got)


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_what_the_catalog_has_let_go_of_is_too_early(
    catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in RETAINING:
        monkeypatch.setattr(f"{module}.RETAIN_VERSIONS", 20)
        monkeypatch.setattr(f"{module}.RETENTION_STEP", 5)
    catalog = writable(catalogs.openable())
    reader = catalogs.openable("read").open(OpenMode.READ_ONLY)
    slow = reader.subscribe(1)
    for number in range(60):
        catalog.set_objects(ROLES, [role(1, str(number))])
    assert catalog.upper - 30 <= catalog.since <= catalog.upper - 20
    assert len(drain(reader.subscribe(catalog.since + 1), catalog.upper)) > 2 * 18
    for ask in (lambda: reader.subscribe(1), lambda: slow.next(60), lambda: slow.next(60)):
        with pytest.raises(AsOfTooEarly):
            ask()
    assert slow.frontier == 1
    # Reading it all anew, and following from there, is what is left to do; `sync` does so by itself.
    reader.sync()
    assert reader.objects(ROLES) == catalog.objects(ROLES)
