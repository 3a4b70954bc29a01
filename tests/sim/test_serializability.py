"""The checker of list appends finds each anomaly in a handwritten history, and none in a sound one."""

import pytest

from sim.serializability import Anomaly, Fate, Transaction, check

T = Transaction


def at(begun: int, ended: int | None, name: str, **fields: object) -> Transaction:
    return Transaction(name, begun, ended, **fields)  # type: ignore[arg-type]


ALL = (0, 100)
"""Everything at once: real time says nothing."""

ANOMALIES = {
    "G0 (write cycle)": [
        at(*ALL, "one", appends={"x": "1", "y": "1"}),
        at(*ALL, "two", appends={"x": "2", "y": "2"}),
        at(*ALL, "end", reads={"x": ("1", "2"), "y": ("2", "1")}),
    ],
    "G1a (aborted read)": [
        at(*ALL, "one", appends={"x": "1"}, fate=Fate.REJECTED),
        at(*ALL, "end", reads={"x": ("1",)}),
    ],
    "G1c (circular information flow)": [
        at(*ALL, "one", appends={"x": "1"}, reads={"y": ("2",)}),
        at(*ALL, "two", appends={"y": "2"}, reads={"x": ("1",)}),
    ],
    "G-single (read skew)": [
        at(*ALL, "one", appends={"x": "1", "y": "1"}),
        at(*ALL, "two", reads={"x": ("1",), "y": ()}),
        at(*ALL, "end", reads={"x": ("1",), "y": ("1",)}),
    ],
    "lost update": [
        at(*ALL, "one", appends={"x": "1"}, reads={"x": ()}),
        at(*ALL, "two", appends={"x": "2"}, reads={"x": ()}),
        at(*ALL, "end", reads={"x": ("1", "2")}),
    ],
    "G2 (write skew)": [
        at(*ALL, "one", appends={"x": "1"}, reads={"y": ()}),
        at(*ALL, "two", appends={"y": "2"}, reads={"x": ()}),
        at(*ALL, "end", reads={"x": ("1",), "y": ("2",)}),
    ],
    "real-time violation": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", reads={"x": ()}),
        at(4, 5, "end", reads={"x": ("1",)}),
    ],
    "incompatible orders": [
        at(*ALL, "one", appends={"x": "1"}),
        at(*ALL, "two", appends={"x": "2"}),
        at(*ALL, "three", reads={"x": ("2",)}),
        at(*ALL, "end", reads={"x": ("1", "2")}),
    ],
    "duplicate": [
        at(*ALL, "one", appends={"x": "1"}),
        at(*ALL, "end", reads={"x": ("1", "1")}),
    ],
    "garbage read": [at(*ALL, "end", reads={"x": ("1",)})],
    "read of the future": [at(*ALL, "one", appends={"x": "1"}, reads={"x": ("1",)})],
}

LATE = {
    "an append that was acknowledged is lost": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", appends={"x": "2"}),
        at(4, 5, "end", reads={"x": ("2",)}),
    ],
    "the second of two appends stands before the first": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", appends={"x": "2"}),
        at(*ALL, "end", reads={"x": ("2", "1")}),
    ],
    "a reader goes back behind what another has read": [
        at(0, None, "one", appends={"x": "1"}, fate=Fate.UNKNOWN),
        at(1, 2, "two", reads={"x": ("1",)}),
        at(3, 4, "three", reads={"x": ()}),
    ],
    "a read of the past sees what is appended later": [
        at(0, 1, "one", reads={"x": ("1",)}, of_the_past=True),
        at(2, 3, "two", appends={"x": "1"}),
    ],
    "two shards are read at two moments": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", appends={"y": "2"}),
        at(*ALL, "both", reads={"x": (), "y": ("2",)}),
        at(101, 102, "end", reads={"x": ("1",), "y": ("2",)}),
    ],
}

SOUND = {
    "nothing": [],
    "one after the other": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", appends={"x": "2"}, reads={"x": ("1",)}),
        at(4, 5, "end", reads={"x": ("1", "2")}),
    ],
    "a write of unknown fate takes effect late": [
        at(0, None, "one", appends={"x": "1"}, fate=Fate.UNKNOWN),
        at(2, 3, "two", reads={"x": ()}),
        at(4, 5, "three", reads={"x": ("1",)}),
    ],
    "a write of unknown fate never happens": [
        at(0, None, "one", appends={"x": "1"}, fate=Fate.UNKNOWN),
        at(2, 3, "end", reads={"x": ()}),
    ],
    "a rejected one leaves nothing": [
        at(0, 1, "one", appends={"x": "1"}, fate=Fate.REJECTED),
        at(2, 3, "end", reads={"x": ()}),
    ],
    "a read of the past does not see what ended before it": [
        at(0, 1, "one", appends={"x": "1"}),
        at(2, 3, "two", reads={"x": ()}, of_the_past=True),
        at(4, 5, "end", reads={"x": ("1",)}),
    ],
    "readers beside a write may differ": [
        at(0, 9, "one", appends={"x": "1", "y": "1"}),
        at(1, 3, "two", reads={"x": ("1",), "y": ("1",)}),
        at(1, 2, "three", reads={"x": (), "y": ()}),
    ],
}


@pytest.mark.parametrize("kind", ANOMALIES)
def test_the_checker_finds(kind: str) -> None:
    with pytest.raises(Anomaly) as found:
        check(ANOMALIES[kind])
    assert found.value.kind == kind


@pytest.mark.parametrize("story", LATE)
def test_the_checker_knows_what_was_first(story: str) -> None:
    with pytest.raises(Anomaly) as found:
        check(LATE[story])
    assert found.value.kind in ("real-time violation", "incompatible orders")
    check([T(t.name, 0, None, t.appends, t.reads, t.fate) for t in LATE[story]])


@pytest.mark.parametrize("story", SOUND)
def test_the_checker_lets_pass(story: str) -> None:
    check(SOUND[story])


def test_an_anomaly_tells_who_and_what() -> None:
    with pytest.raises(Anomaly) as found:
        check(ANOMALIES["lost update"])
    assert str(found.value).splitlines() == [
        "lost update: each of these comes before the next, and the last before the first",
        "  two (0 to 100) reads x as [], appends 2 to x",
        "    rw (in x, without its element)",
        "  one (0 to 100) reads x as [], appends 1 to x",
        "    ww (in x)",
    ]
