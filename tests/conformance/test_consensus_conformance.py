"""The promises of every consensus store to one caller at a time. `test_racing_writers.py` tests races."""

import os
import uuid
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.persist.stores import Consensus, Digest, Entry, Expect, Head, LogRow, Put, digest_of
from testbed.faults import FaultyConsensus

UNICODE_KEY = "sch\u00f6n/\u65e5\u672c\u8a9e/\U0001f984 'quoted' \"too\""


def _fill(consensus: Consensus, key: str, count: int) -> list[Entry]:
    entries = [Entry(seqno, f"{key} {seqno}".encode()) for seqno in range(1, count + 1)]
    for entry in entries:
        assert consensus.compare_and_set([Put(key, *entry)])
    return entries


def test_a_new_store_is_empty(consensus: Consensus) -> None:
    assert consensus.heads(["a", "b"]) == {}
    assert consensus.heads([]) == {}
    assert consensus.scan("a", 0, 10) == []
    assert consensus.list_keys() == []
    assert consensus.truncate("a", 5) == 0


def test_entries_come_back_in_order_as_they_were(consensus: Consensus) -> None:
    entries = _fill(consensus, "a", 5)

    assert consensus.scan("a", 0, 100) == entries
    assert consensus.heads(["a"]) == {"a": Head(*entries[-1])}


@pytest.mark.parametrize("seqno", [1, 2, 3, 5, 99])
def test_only_the_entry_after_the_head_is_taken(consensus: Consensus, seqno: int) -> None:
    entries = _fill(consensus, "a", 3)

    assert consensus.compare_and_set([Put("a", seqno, b"x")]) is False
    assert consensus.scan("a", 0, 100) == entries
    assert consensus.compare_and_set([Put("a", 4, b"x")]) is True


@pytest.mark.parametrize("seqno", [2, 3])
def test_the_first_entry_is_number_one(consensus: Consensus, seqno: int) -> None:
    assert consensus.compare_and_set([Put("a", seqno, b"x")]) is False
    assert consensus.list_keys() == []


def test_several_keys_are_appended_together(consensus: Consensus) -> None:
    _fill(consensus, "a", 2)

    assert consensus.compare_and_set([Put("b", 1, b"b1"), Put("a", 3, b"a3"), Put("c", 1, b"c1")])

    assert consensus.heads(["a", "b", "c", "d"]) == {
        "a": Head(3, b"a3"),
        "b": Head(1, b"b1"),
        "c": Head(1, b"c1"),
    }
    assert consensus.list_keys() == ["a", "b", "c"]


@pytest.mark.parametrize("loser", [0, 1, 2])
def test_a_conflict_on_one_key_leaves_nothing_on_any(consensus: Consensus, loser: int) -> None:
    before = {key: _fill(consensus, key, 2) for key in ("a", "b", "c")}
    puts = [Put(key, 2 if number == loser else 3, b"x") for number, key in enumerate("abc")]

    assert consensus.compare_and_set(puts) is False

    for key, entries in before.items():
        assert consensus.scan(key, 0, 100) == entries


def test_an_append_with_conditions_happens_only_where_all_hold(consensus: Consensus) -> None:
    _fill(consensus, "lock", 2)

    assert not consensus.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 1)])
    assert not consensus.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 3)])
    assert not consensus.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 0)])
    assert not consensus.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 2), Expect("b", 1)])
    assert consensus.heads(["a"]) == {}
    assert consensus.compare_and_set([Put("a", 1, b"x")], [Expect("lock", 2), Expect("b", 0)])
    assert consensus.heads(["a", "lock"]) == {"a": Head(1, b"x"), "lock": Head(2, b"lock 2")}


def test_a_condition_may_be_on_a_key_that_is_put(consensus: Consensus) -> None:
    _fill(consensus, "a", 1)

    assert not consensus.compare_and_set([Put("a", 2, b"x")], [Expect("a", 2)])
    assert consensus.compare_and_set([Put("a", 2, b"x")], [Expect("a", 1)])


def test_truncate_drops_what_is_older_and_tells_how_much(consensus: Consensus) -> None:
    entries = _fill(consensus, "a", 10)
    _fill(consensus, "b", 10)

    assert consensus.truncate("a", 1) == 0
    assert consensus.truncate("a", 4) == 3
    assert consensus.truncate("a", 4) == 0
    assert consensus.truncate("a", 2) == 0
    assert consensus.scan("a", 0, 100) == entries[3:]
    assert len(consensus.scan("b", 0, 100)) == 10


@pytest.mark.parametrize("seqno", [10, 11, 1000])
def test_truncate_never_takes_the_head(consensus: Consensus, seqno: int) -> None:
    entries = _fill(consensus, "a", 10)

    assert consensus.truncate("a", seqno) == 9
    assert consensus.scan("a", 0, 100) == entries[9:]
    assert consensus.heads(["a"]) == {"a": Head(*entries[9])}
    assert consensus.list_keys() == ["a"]


@pytest.mark.parametrize("seqno", [1, 2, 5, 9, 10])
def test_a_writer_that_slept_through_a_truncation_loses(consensus: Consensus, seqno: int) -> None:
    entries = _fill(consensus, "a", 10)
    consensus.truncate("a", 10)

    assert consensus.compare_and_set([Put("a", seqno, b"stale")]) is False
    assert consensus.compare_and_set([Put("b", 1, b"x")], [Expect("a", seqno - 1)]) is False
    assert consensus.scan("a", 0, 100) == entries[9:]
    assert consensus.list_keys() == ["a"]


def test_appends_go_on_after_a_truncation(consensus: Consensus) -> None:
    entries = _fill(consensus, "a", 10)
    consensus.truncate("a", 10)

    assert consensus.compare_and_set([Put("a", 11, b"x")])
    assert consensus.scan("a", 0, 100) == [entries[9], Entry(11, b"x")]


def test_a_scan_is_gapless_and_limited(consensus: Consensus) -> None:
    entries = _fill(consensus, "a", 10)
    consensus.truncate("a", 4)

    assert consensus.scan("a", 0, 3) == entries[3:6]
    assert consensus.scan("a", 4, 3) == entries[3:6]
    assert consensus.scan("a", 6, 1) == entries[5:6]
    assert consensus.scan("a", 6, 100) == entries[5:]
    assert consensus.scan("a", 10, 100) == entries[9:]
    assert consensus.scan("a", 11, 100) == []
    assert consensus.scan("a", 1 << 64, 100) == []
    assert consensus.scan("a", 0, 1 << 70) == entries[3:]


def test_an_empty_entry_is_an_entry(consensus: Consensus) -> None:
    assert consensus.compare_and_set([Put("a", 1, b"")])

    assert consensus.heads(["a"]) == {"a": Head(1, b"")}


def test_an_entry_of_1_mib(consensus: Consensus) -> None:
    data = os.urandom(1 << 20)

    assert consensus.compare_and_set([Put("a", 1, data), Put("b", 1, data[::-1])])

    assert consensus.scan("a", 1, 1) == [Entry(1, data)]
    assert consensus.heads(["b"]) == {"b": Head(1, data[::-1])}


def test_unicode_keys_come_back_as_they_were(consensus: Consensus) -> None:
    _fill(consensus, UNICODE_KEY, 2)
    _fill(consensus, "Z", 1)
    _fill(consensus, "a", 1)

    assert consensus.list_keys() == sorted([UNICODE_KEY, "Z", "a"])
    assert list(consensus.heads([UNICODE_KEY, "missing"])) == [UNICODE_KEY]


def test_many_keys_in_one_step(consensus: Consensus) -> None:
    keys = [f"s{number:03}" for number in range(300)]

    assert consensus.compare_and_set([Put(key, 1, key.encode()) for key in keys])

    assert consensus.list_keys() == keys
    assert consensus.heads(keys) == {key: Head(1, key.encode()) for key in keys}
    assert not consensus.compare_and_set([Put(key, 2 - (key == "s299"), b"x") for key in keys])
    assert {entry.seqno for entry in consensus.heads(keys).values()} == {1}


@pytest.mark.parametrize("key", ["", "/", "a//b", "..", "a\0b", "\ud800"])
def test_a_key_that_some_store_could_not_hold_is_refused(consensus: Consensus, key: str) -> None:
    with pytest.raises(BadInput):
        consensus.compare_and_set([Put("fine", 1, b"x"), Put(key, 1, b"x")])
    with pytest.raises(BadInput):
        consensus.compare_and_set([Put("fine", 1, b"x")], [Expect(key, 0)])
    with pytest.raises(BadInput):
        consensus.heads([key])
    with pytest.raises(BadInput):
        consensus.scan(key, 0, 1)
    with pytest.raises(BadInput):
        consensus.truncate(key, 1)
    assert consensus.list_keys() == []


def test_commands_without_meaning_are_refused(consensus: Consensus) -> None:
    with pytest.raises(BadInput, match="nothing to put"):
        consensus.compare_and_set([])
    with pytest.raises(BadInput, match="two puts on one key"):
        consensus.compare_and_set([Put("a", 1, b"x"), Put("a", 2, b"y")])
    for seqno in (0, -1, 1 << 63):
        with pytest.raises(BadInput, match="outside"):
            consensus.compare_and_set([Put("a", seqno, b"x")])
    with pytest.raises(BadInput, match="the limit must be at least 1"):
        consensus.scan("a", 0, 0)
    assert consensus.list_keys() == []


class Model:
    """The promises in their plainest form: all entries ever appended, and where each log begins."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.floors: dict[str, int] = {}

    def head(self, key: str) -> int:
        return len(self.logs.get(key, []))

    def compare_and_set(self, puts: list[Put], expect: list[Expect]) -> bool:
        wanted = [Expect(put.key, put.seqno - 1) for put in puts] + list(expect)
        if any(self.head(each.key) != each.head for each in wanted):
            return False
        for put in puts:
            self.logs.setdefault(put.key, []).append(put.data)
        return True

    def truncate(self, key: str, seqno: int) -> int:
        floor = self.floors.get(key, 1)
        self.floors[key] = max(floor, min(seqno, self.head(key)), 1)
        return self.floors[key] - floor

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        first = max(from_seqno, self.floors.get(key, 1))
        entries = [Entry(seqno, data) for seqno, data in enumerate(self.logs.get(key, []), start=1)]
        return [entry for entry in entries if entry.seqno >= first][:limit]


@dataclass(frozen=True)
class Append:
    """A compare-and-set; each number is how far the seqno or head is off what would succeed."""

    puts: dict[str, int]
    expect: dict[str, int]


@dataclass(frozen=True)
class Truncate:
    key: str
    seqno: int


@dataclass(frozen=True)
class Scan:
    key: str
    from_seqno: int
    limit: int


_NAMES = st.sampled_from(["a", "b", "c"])
_OFFSETS = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
_COMMANDS = st.one_of(
    st.builds(
        Append,
        st.dictionaries(_NAMES, _OFFSETS, min_size=1),
        st.dictionaries(_NAMES, _OFFSETS, max_size=2),
    ),
    st.builds(Truncate, _NAMES, st.integers(0, 12)),
    st.builds(Scan, _NAMES, st.integers(0, 12), st.integers(1, 5)),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands=st.lists(_COMMANDS, min_size=5, max_size=40))
def test_any_commands_answer_as_the_model_does(
    consensus: Consensus, commands: list[Append | Truncate | Scan]
) -> None:
    salt = uuid.uuid4().hex  # each example has its own keys in the one store
    model = Model()
    for number, command in enumerate(commands):
        match command:
            case Append(offsets, conditions):
                puts = [
                    Put(salt + key, max(1, model.head(salt + key) + 1 + offset), b"%d" % number)
                    for key, offset in offsets.items()
                ]
                expect = [
                    Expect(salt + key, model.head(salt + key) + offset) for key, offset in conditions.items()
                ]
                assert consensus.compare_and_set(puts, expect) == model.compare_and_set(puts, expect)
            case Truncate(key, seqno):
                assert consensus.truncate(salt + key, seqno) == model.truncate(salt + key, seqno)
            case Scan(key, first, limit):
                assert consensus.scan(salt + key, first, limit) == model.scan(salt + key, first, limit)
    for key in model.logs:
        assert consensus.scan(key, 0, 1000) == model.scan(key, 0, 1000)
        assert consensus.heads([key])[key].seqno == model.head(key)


def _framed(crc: int, size: int = 40) -> bytes:
    """Bytes of one length that differ only where a frame has its checksum."""
    return b"HFd\n\x01\x00\x00\x00" + crc.to_bytes(4, "little") + b"." * (size - 12)


MINE = digest_of(_framed(7))
OTHER = [digest_of(_framed(8)), digest_of(_framed(7, size=41)), Digest(40, b"")]


@pytest.mark.parametrize("key", ["s1", "lock"])
@pytest.mark.parametrize("other", OTHER)
def test_the_same_number_with_other_bytes_is_refused(consensus: Consensus, key: str, other: Digest) -> None:
    """Both histories of a log have entry 2; who knows the other one appends nothing to this one."""
    for put in (Put(key, 1, _framed(6)), Put(key, 2, _framed(7)), Put("t", 1, _framed(5))):
        assert consensus.compare_and_set([put])

    assert not consensus.compare_and_set([Put(key, 3, b"x", other)])
    assert not consensus.compare_and_set([Put(key, 3, b"x", other), Put("t", 2, b"x")])
    assert not consensus.compare_and_set([Put("t", 2, b"x", digest_of(_framed(5)))], [Expect(key, 2, other)])
    assert not consensus.compare_and_set([Put("new", 1, b"x")], [Expect(key, 2, other)])
    assert not consensus.compare_and_set([Put(key, 3, b"x")], [Expect(key, 2, other)])
    assert consensus.truncate(key, 2, LogRow(2, other)) == 0
    assert [entry.seqno for entry in consensus.scan(key, 0, 9)] == [1, 2]
    assert consensus.heads(["t", "new"]) == {"t": Head(1, _framed(5))}

    assert consensus.compare_and_set([Put("new", 1, b"x")], [Expect(key, 2, MINE)])
    assert consensus.compare_and_set([Put(key, 3, b"x", MINE), Put("t", 2, b"x")], [Expect(key, 2, MINE)])
    assert consensus.compare_and_set([Put(key, 4, b"y", digest_of(b"x"))])


def test_heads_come_with_the_digest_of_the_entry_that_the_caller_knows(consensus: Consensus) -> None:
    for seqno in range(1, 6):
        assert consensus.compare_and_set([Put("a", seqno, _framed(seqno))])
    assert consensus.compare_and_set([Put("b", 1, b"")])
    assert consensus.truncate("a", 3) == 2

    def known(seqno: int) -> Digest | None:
        return consensus.heads(["a", "b"], {"a": seqno})["a"].known

    assert [known(seqno) for seqno in (3, 5)] == [digest_of(_framed(3)), digest_of(_framed(5))]
    assert [known(seqno) for seqno in (0, 2, 6)] == [None, None, None]
    assert consensus.heads(["b"], {"b": 1, "a": 3}) == {"b": Head(1, b"", Digest(0, b""))}


def test_digests_are_those_of_the_entries_of_a_scan(consensus: Consensus) -> None:
    for seqno in range(1, 8):
        assert consensus.compare_and_set([Put("a", seqno, _framed(seqno, size=11 + seqno))])
    consensus.truncate("a", 3)
    for start, limit in ((0, 9), (3, 2), (6, 9), (8, 9)):
        scanned = consensus.scan("a", start, limit)
        expected = [(entry.seqno, digest_of(entry.data)) for entry in scanned]
        assert consensus.digests("a", start, limit) == expected


@pytest.mark.parametrize("seqno", [1, 2, 3, 4, 5])
def test_a_truncation_needs_the_entry_that_the_caller_knows(consensus: Consensus, seqno: int) -> None:
    for number in range(1, 6):
        assert consensus.compare_and_set([Put("a", number, _framed(number))])

    assert consensus.truncate("a", 5, LogRow(seqno, digest_of(_framed(seqno + 1)))) == 0
    assert consensus.truncate("a", seqno, LogRow(6, digest_of(_framed(6)))) == 0
    assert consensus.truncate("a", seqno, LogRow(5, digest_of(_framed(6)))) == 0
    assert consensus.truncate("a", seqno, LogRow(5, digest_of(_framed(5)))) == seqno - 1
    assert consensus.digests("a", 0, 1) == [(seqno, digest_of(_framed(seqno)))]
    assert consensus.truncate("a", 5, LogRow(seqno, digest_of(_framed(seqno)))) == 5 - seqno
    assert consensus.digests("a", 0, 1) == [(5, digest_of(_framed(5)))]


def test_a_log_that_is_made_anew_leaves_no_way_back(consensus: Consensus) -> None:
    """What aims at the old log loses, at every place of it; or the store says that it can't do this."""
    assert consensus.compare_and_set([Put("a", 1, b"one")])
    assert consensus.compare_and_set([Put("a", 2, b"two")])
    try:
        consensus.check_restart()
    except BadInput:
        assert isinstance(consensus, FaultyConsensus)
        return
    far = 1 << 40
    assert not consensus.restart("a", 2, b"no")
    assert consensus.restart("a", far, b"anew")
    assert consensus.restart("new", far, b"first")
    assert not consensus.restart("a", far, b"again")
    assert consensus.scan("a", 0, 10) == [Entry(far, b"anew")]
    for stale in (1, 2, 3, 4):
        assert not consensus.compare_and_set([Put("a", stale, b"zombie")])
        assert not consensus.compare_and_set([Put("new", stale, b"zombie")])
    assert consensus.compare_and_set([Put("a", far + 1, b"on"), Put("new", far + 1, b"on")])
    assert consensus.heads(["a"]) == {"a": Head(far + 1, b"on")}
    assert consensus.list_keys() == ["a", "new"]
