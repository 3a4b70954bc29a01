"""A stash in a forked child of the process that opened it: an error, never a hang or a harm to the parent."""

import gc
from collections.abc import Callable, Iterator

import pytest

from holdfast.stash import Stash, StashFrontiers, StashUpdate, open_stash
from testbed.forking import in_child, public_names

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ROW = StashUpdate(0, b"key", b"value", 1)
MANY = [StashUpdate(1, b"%05d" % number, bytes(4096), 1) for number in range(5000)]
"""More than the buffers of a connection hold: the server is still at it while a test reads the first."""
CALLS: dict[str, Callable[[Stash], object]] = {
    "frontiers": lambda stash: stash.frontiers(),
    "append": lambda stash: stash.append([ROW], 1),
    "rows": lambda stash: next(stash.rows(0)),
    "columns": lambda stash: next(stash.columns(0)),
    "sizes": lambda stash: stash.sizes(0),
    "changes": lambda stash: next(stash.changes(1)),
    "allow_compaction": lambda stash: stash.allow_compaction(0),
    "hold": lambda stash: stash.hold("child", 0),
    "holds": lambda stash: stash.holds(),
    "release": lambda stash: stash.release("child"),
    "consolidate": lambda stash: stash.consolidate(),
}
STREAMS: dict[str, Callable[[Stash], Iterator[object]]] = {
    "rows": lambda stash: stash.rows(1),
    "rows of a collection": lambda stash: stash.rows(1, [1]),
    "columns": lambda stash: (key for some in stash.columns(1) for key in some.keys),
    "changes": lambda stash: stash.changes(1),
}


@pytest.fixture
def stash(stash_url: str) -> Iterator[Stash]:
    with open_stash(stash_url, create=True) as stash:
        stash.append([ROW], 0)
        yield stash


def test_every_call_raises(stash: Stash) -> None:
    calls = {name: lambda call=call: call(stash) for name, call in CALLS.items()}  # type: ignore[misc]
    assert in_child(calls) == dict.fromkeys(calls, "UsedAfterFork")
    named = public_names(type(stash)) - {"description", "close", "abandon"}
    assert set(CALLS) == named
    assert stash.frontiers() == StashFrontiers(0, 1)


def test_closing_in_a_child_ends_nothing_of_the_parent(stash: Stash) -> None:
    def closed() -> None:
        with stash:
            pass
        stash.close()

    assert in_child({"close": closed}) == {"close": ""}
    stash.append([ROW], 1)
    assert [row.diff for row in stash.rows(1)] == [2]


def test_a_child_opens_the_stash_anew_and_both_go_on(stash: Stash, stash_url: str) -> None:
    def append() -> None:
        with open_stash(stash_url) as own:
            own.append([ROW], 1)

    assert in_child({"append": append}) == {"append": ""}
    stash.append([ROW], 2)
    assert [row.diff for row in stash.rows(2)] == [3]


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("opened", STREAMS.values(), ids=STREAMS)
@pytest.mark.long
def test_a_stream_that_is_open_at_the_fork_stays_the_parents(
    stash: Stash, opened: Callable[[Stash], Iterator[object]], touched: bool
) -> None:
    stash.append(MANY, 1)
    expected = sum(1 for _ in opened(stash))
    assert expected >= len(MANY)
    streams = [opened(stash)]
    assert next(streams[0])

    def rest() -> None:
        for _ in streams[0]:
            pass

    def collect() -> None:
        streams.clear()
        gc.collect()

    if touched:
        assert in_child({"next": rest, "gc": collect}) == {"next": "UsedAfterFork", "gc": ""}
    else:
        assert in_child({"gc": collect}) == {"gc": ""}
    assert sum(1 for _ in streams[0]) == expected - 1
    stash.append([ROW], 2)
