"""What each record of a migration allows: every record with every command."""

import pytest

from holdfast.catalog import config
from holdfast.catalog.move.records import (
    Record,
    Running,
    begun,
    ended,
    key_of,
    records_of,
    running_of,
    target_key_of,
    targets_of,
    to_begin,
)
from holdfast.catalog.move.truth import Backend
from holdfast.errors import BadInput, CorruptBlob, MigrationConflict

TO = Backend.PERSIST


def stash(**records: Record) -> dict[str, int]:
    """The config of a stash with these records; what is running has its deadline and its target."""
    found: dict[str, int] = {}
    for id_, record in records.items():
        wanted = dict(begun(id_, record, TO, 99))
        wanted |= {} if record.is_running else ended(id_, record)
        found |= {key: value for key, value in wanted.items() if value is not None}
    return found


@pytest.mark.parametrize(
    ("record", "rollback", "begins"),
    [
        (None, False, Record.RUNNING),
        (Record.RUNNING, False, Record.RUNNING),
        (Record.DONE, False, None),
        (Record.ROLLED_BACK, False, None),
        (Record.RUNNING, True, Record.ROLLING_BACK),
        (Record.DONE, True, Record.ROLLING_BACK),
        (Record.ROLLING_BACK, True, Record.ROLLING_BACK),
        (Record.ROLLED_BACK, True, None),
    ],
)
def test_a_record_says_what_a_command_begins_with(
    record: Record | None, begins: Record | None, *, rollback: bool
) -> None:
    found = {} if record is None else stash(m=record)
    assert to_begin(found, "m", TO, rollback=rollback) is begins


@pytest.mark.parametrize(
    ("found", "id_", "target", "rollback", "error"),
    [
        (stash(), "m", TO, True, "no migration m of this catalog to roll back"),
        (stash(m=Record.ROLLING_BACK), "m", TO, False, "m is being rolled back"),
        (stash(m=Record.RUNNING), "n", TO, False, "m of this catalog has not ended: running"),
        (stash(m=Record.ROLLING_BACK), "n", TO, False, "m of this catalog has not ended: rolling back"),
        (stash(n=Record.DONE, m=Record.RUNNING), "n", TO, True, "m of this catalog has not ended"),
        (stash(m=Record.RUNNING), "m", TO.other, False, "begun with target Persist, not Stash"),
        (stash(m=Record.RUNNING), "m", TO.other, True, "begun with target Persist, not Stash"),
        *(
            (
                stash(m=record),
                "m",
                TO.other,
                rollback,
                f"begun with target Persist, not Stash: it is {record}",
            )
            for record in (Record.DONE, Record.ROLLED_BACK)
            for rollback in (False, True)
        ),
    ],
)
def test_what_is_refused(
    found: dict[str, int], id_: str, target: Backend, error: str, *, rollback: bool
) -> None:
    with pytest.raises((MigrationConflict, BadInput), match=error):
        to_begin(found, id_, target, rollback=rollback)


def test_what_has_ended_does_nothing_even_while_another_one_runs() -> None:
    found = stash(m=Record.DONE, n=Record.RUNNING)
    assert to_begin(found, "m", TO, rollback=False) is None


def test_what_is_running_is_told_with_its_deadline_and_where_it_leads() -> None:
    found = stash(a=Record.DONE, b=Record.ROLLED_BACK, m=Record.RUNNING)
    assert records_of(found) == {"a": Record.DONE, "b": Record.ROLLED_BACK, "m": Record.RUNNING}
    assert running_of(found) == Running("m", Record.RUNNING, TO, 99)
    assert running_of(stash(a=Record.DONE)) is None
    back = running_of(stash(m=Record.ROLLING_BACK))
    assert back is not None
    assert (back.target, back.destination) == (TO, TO.other)
    assert back.shuts_out(98)
    assert not back.shuts_out(99)


def test_an_end_takes_away_what_a_begin_wrote() -> None:
    found: dict[str, int | None] = {**begun("m", Record.RUNNING, TO, 5), **ended("m", None)}
    assert set(found) == {key_of("m"), target_key_of("m"), config.MIGRATION_DEADLINE}
    assert set(found.values()) == {None}


def test_every_migration_keeps_its_target() -> None:
    found = stash(a=Record.DONE, b=Record.ROLLED_BACK, m=Record.RUNNING)
    assert targets_of(found) == {"a": TO, "b": TO, "m": TO}


@pytest.mark.parametrize(
    "found",
    [
        {"migration/m": 5},
        {"migration/m": 0},
        {"migration/m": 1},
        {"migration/m": 1, "migration_target/m": 3},
        {"migration/m": 1, "migration/n": 3, "migration_target/m": 1, "migration_target/n": 1},
        {"migration/m": 1, "migration_target/n": 1},
    ],
    ids=str,
)
def test_records_without_sense_are_corrupt(found: dict[str, int]) -> None:
    with pytest.raises(CorruptBlob):
        running_of(found)


@pytest.mark.parametrize("id_", ["", " ", "a b", "a\n", "-a", "a-", "é", "x" * 201, "a\x00b"])
def test_an_id_that_is_none(id_: str) -> None:
    with pytest.raises(BadInput, match="is not valid"):
        key_of(id_)


@pytest.mark.parametrize("id_", ["a", "x" * 200, "ns/name", "2026-11-22T01:02:03.4"])
def test_an_id(id_: str) -> None:
    assert config.is_reserved(key_of(id_))
    assert config.is_reserved(target_key_of(id_))
