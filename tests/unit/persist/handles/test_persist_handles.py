"""The promises of handles: appends, snapshots, listens, holds, multi-writes, the end of a shard."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import (
    CLOSED,
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    HandleExpired,
    LocationMismatch,
    NotWritable,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist import Progress, Schema, Updates
from holdfast.persist.handles.read import close_readers
from holdfast.persist.stores import Expect, Put
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, changes, contents, rows, updates

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}


def test_what_was_appended_is_read_at_each_time(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(updates([(1, "a", 0, 1), (2, "b", 4, 2), (1, "a", 9, -1)]), 0, 10)
    writer.compare_and_append(rows(3), 10, 12)
    writer.compare_and_append(None, 12, 13)
    reader = client.reader(SHARD, purpose="test")
    assert contents(reader.snapshot(0).to_table()) == {(1, "a"): 1}
    assert contents(reader.snapshot(8).to_table()) == {(1, "a"): 1, (2, "b"): 2}
    assert contents(reader.snapshot(9).to_table()) == {(2, "b"): 2}
    assert contents(reader.snapshot(12).to_table()) == {(2, "b"): 2, (3, "x"): 1}
    streamed = pa.Table.from_batches(reader.snapshot(12))
    assert contents(streamed) == {(2, "b"): 2, (3, "x"): 1}
    assert streamed.schema == SCHEMA.arrow_diff
    assert (reader.since(), reader.upper(), writer.upper(), client.recent_upper(SHARD)) == (0, 13, 13, 13)


def test_a_shard_comes_into_being_with_its_first_commit(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    assert (client.exists(SHARD), client.recent_upper(SHARD), client.shards()) == (False, 0, [])
    with pytest.raises(BadInput, match="does not exist"):
        client.reader(SHARD, purpose="test")
    with pytest.raises(BadInput, match="does not exist"):
        client.inspect(SHARD)
    writer.seal(1)
    assert (client.exists(SHARD), client.recent_upper(SHARD), client.shards()) == (True, 1, [SHARD])


@pytest.mark.parametrize("settings", [{}, BLOBS])
def test_an_append_at_another_upper_changes_nothing(stores: Stores, settings: dict[str, Any]) -> None:
    first, second = stores.open(**settings), stores.open(**settings)
    late = second.writer(SHARD, SCHEMA, purpose="late")
    late.compare_and_append(rows(1), 0, 3)
    first.writer(SHARD, SCHEMA, purpose="early").compare_and_append(rows(2), 3, 5)
    before = stores.state()
    blobs = stores.parts()
    with pytest.raises(UpperMismatch, match=f"upper of {SHARD} is 5, expected 3") as error:
        late.compare_and_append(rows(4), 3, 9)
    assert (error.value.expected, error.value.actual, error.value.shard_id) == (3, 5, SHARD)
    assert stores.state() == before
    assert stores.parts() == blobs
    late.compare_and_append(rows(4), 5, 9)


@pytest.mark.parametrize(
    ("given", "lower", "upper"),
    [
        (rows(1), 5, 5),
        (rows(1), 6, 5),
        (rows(1), -1, 5),
        (rows(1), 0, CLOSED + 1),
        (updates([(1, "a", 4, 1)]), 5, 9),
        (updates([(1, "a", 9, 1)]), 5, 9),
        (pa.table({"k": [1]}), 0, 5),
        (pa.table({"k": ["1"], "v": ["a"]}), 0, 5),
    ],
)
def test_an_append_without_meaning_changes_nothing(
    stores: Stores, given: pa.Table, lower: int, upper: int
) -> None:
    writer = stores.open(**BLOBS).writer(SHARD, SCHEMA, purpose="test")
    before = stores.stored()
    with pytest.raises(BadInput):
        writer.compare_and_append(given, lower, upper)
    assert stores.stored() == before


def test_another_schema_is_refused_with_both_printed(stores: Stores) -> None:
    other = Schema.of({"k": "string"}, {"v": "string"})
    early, late = stores.open(), stores.open()
    unaware = late.writer(SHARD, other, purpose="late")
    early.writer(SHARD, SCHEMA, purpose="early").seal(1)
    for attempt in (
        lambda: stores.open().writer(SHARD, other, purpose="late"),
        lambda: unaware.compare_and_append(pa.table({"k": ["a"], "v": ["b"]}), 1, 2),
        lambda: late.multi_write([late.prepare_create(SHARD, other, purpose="late")]),
    ):
        with pytest.raises(CodecMismatch) as error:
            attempt()
        assert f"{SCHEMA}" in str(error.value)
        assert f"{other}" in str(error.value)


def test_a_time_is_read_only_between_since_and_upper(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    client.multi_write([client.prepare_create(SHARD, SCHEMA, purpose="test")])
    reader = client.reader(SHARD, purpose="test")
    with pytest.raises(AsOfNotYetAvailable, match="nothing has been written yet"):
        reader.snapshot(0)
    writer.compare_and_append(rows(1), 0, 10)
    reader.allow_compaction(6)
    for read in (reader.snapshot, reader.snapshot_parts, reader.subscribe):
        with pytest.raises(AsOfTooEarly) as early:
            read(5)
        assert (early.value.as_of, early.value.since) == (5, 6)
        with pytest.raises(AsOfNotYetAvailable) as late:
            read(10)
        assert (late.value.as_of, late.value.upper) == (10, 10)
        for no_time in (-1, CLOSED):
            with pytest.raises(BadInput, match="is not a time"):
                read(no_time)
    with pytest.raises(AsOfTooEarly):
        reader.listen(5)
    with pytest.raises(BadInput, match="is not a time"):
        reader.listen(CLOSED)
    assert contents(reader.snapshot(6).to_table()) == {(1, "x"): 1}


def test_a_seal_moves_only_forward(stores: Stores) -> None:
    writer = stores.open().writer(SHARD, SCHEMA, purpose="test")
    other = stores.open().writer(SHARD, SCHEMA, purpose="other")
    writer.seal(5)
    writer.seal(3)
    assert writer.cached_upper == 5
    other.seal(4)
    assert (other.cached_upper, stores.state().seqno) == (5, 1)
    other.seal(9)
    writer.seal(12)
    assert writer.upper() == 12


def test_a_listen_gives_each_update_once_and_its_progress_after_it(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1, 2), 0, 5)
    listen = client.reader(SHARD, purpose="test").listen(2)
    assert listen.next(0) == [Progress(5)]
    assert listen.next(0) == []
    writer.compare_and_append(updates([(3, "a", 6, 1), (4, "b", 5, -2)]), 5, 7)
    writer.compare_and_append(rows(5), 7, 8)
    first, progress = listen.next(0)
    assert isinstance(first, Updates)
    assert first.table.schema == SCHEMA.arrow_updates
    assert first.table["_time"].to_pylist() == [5, 6, 7]
    assert changes(first.table) == [(3, "a", 6, 1), (4, "b", 5, -2), (5, "x", 7, 1)]
    assert progress == Progress(8)
    writer.seal(20)
    assert listen.next(0) == [Progress(20)]


def test_a_listen_may_begin_before_its_time_is_complete(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.seal(3)
    listen = client.reader(SHARD, purpose="test").listen(10)
    writer.compare_and_append(updates([(1, "a", 10, 1), (2, "b", 11, 1)]), 3, 12)
    first, progress = listen.next(0)
    assert isinstance(first, Updates)
    assert changes(first.table) == [(2, "b", 11, 1)]
    assert progress == Progress(12)


def test_a_subscription_is_the_contents_and_then_the_changes(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(updates([(1, "a", 0, 2), (1, "a", 3, -1), (2, "b", 4, 1)]), 0, 5)
    subscription = client.reader(SHARD, purpose="test").subscribe(3)
    first, progress = subscription.next(0)
    assert isinstance(first, Updates)
    assert first.table.column_names == [*SCHEMA.names, "_time", "_diff"]
    assert changes(first.table) == [(1, "a", 3, 1)]
    assert progress == Progress(4)
    then, progress = subscription.next(0)
    assert isinstance(then, Updates)
    assert changes(then.table) == [(2, "b", 4, 1)]
    assert progress == Progress(5)


def test_a_subscription_to_nothing_begins_with_its_progress(stores: Stores) -> None:
    client = stores.open()
    client.writer(SHARD, SCHEMA, purpose="test").seal(5)
    assert client.reader(SHARD, purpose="test").subscribe(4).next(0) == [Progress(5)]


@pytest.mark.parametrize("end", ["closed", "finalized"])
def test_a_listen_ends_with_its_shard(stores: Stores, end: str) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    listen = client.reader(SHARD, purpose="test").listen(4)
    if end == "closed":
        writer.seal(CLOSED)
    else:
        client.finalize(SHARD)
    assert [*listen] == [Progress(CLOSED)]
    assert listen.next() == []


def test_a_listen_that_lost_its_hold_says_so(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    reader = client.reader(SHARD, purpose="test")
    listen = reader.listen(1)
    reader.allow_compaction(2)
    with pytest.raises(AsOfTooEarly) as error:
        listen.next(0)
    assert (error.value.as_of, error.value.since) == (1, 2)


def test_since_never_passes_a_hold_and_moves_only_when_told(stores: Stores) -> None:
    client, other = stores.open(), stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 50)
    mine, theirs = client.reader(SHARD, purpose="mine"), other.reader(SHARD, purpose="theirs")
    hold = client.critical_since(SHARD, purpose="backup")
    mine.allow_compaction(30)
    hold.downgrade(20)
    assert mine.since() == 0
    theirs.allow_compaction(40)
    assert mine.since() == 20
    hold.downgrade(10)
    assert (hold.since, mine.since()) == (20, 20)
    hold.release()
    theirs.close()
    assert mine.since() == 20
    mine.allow_compaction(45)
    assert mine.since() == 45
    mine.close()
    writer.seal(90)
    assert stores.state().since == 45
    assert stores.open().reader(SHARD, purpose="new").since() == 45
    for wrong in (-1, CLOSED + 1):
        with pytest.raises(BadInput, match="is not a frontier"):
            theirs.allow_compaction(wrong)
        with pytest.raises(BadInput, match="is not a frontier"):
            hold.downgrade(wrong)


def test_a_critical_hold_is_found_again_by_its_purpose(stores: Stores) -> None:
    client = stores.open()
    client.writer(SHARD, SCHEMA, purpose="test").seal(50)
    hold = client.critical_since(SHARD, purpose="backup")
    hold.downgrade(7)
    again = stores.open().critical_since(SHARD, purpose="backup")
    assert (again.id, again.since) == (hold.id, 7)
    assert client.critical_since(SHARD, purpose="other").id != hold.id
    again.release()
    with pytest.raises(HandleExpired):
        hold.downgrade(9)
    anew = client.critical_since(SHARD, purpose="backup")
    assert stores.state().critical_readers[anew.id].since == anew.since


def test_a_multi_write_is_all_or_nothing(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    one, two = (client.writer(shard, SCHEMA, purpose="test") for shard in (SHARD, OTHER))
    client.multi_write([one.prepare_append(rows(1), 0, 5), two.prepare_append(rows(2), 0, 3)])
    before = [stores.state(SHARD), stores.state(OTHER), stores.parts(SHARD), stores.parts(OTHER)]
    with pytest.raises(UpperMismatch) as error:
        client.multi_write([one.prepare_append(rows(3), 5, 6), two.prepare_append(rows(4), 5, 6)])
    assert (error.value.shard_id, error.value.actual) == (OTHER, 3)
    assert [stores.state(SHARD), stores.state(OTHER), stores.parts(SHARD), stores.parts(OTHER)] == before
    client.multi_write([one.prepare_append(rows(3), 5, 6), two.prepare_seal(3, 6)])
    assert (client.recent_upper(SHARD), client.recent_upper(OTHER)) == (6, 6)


def test_a_multi_write_takes_several_commands_of_a_shard_in_one_version(stores: Stores) -> None:
    client = stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    client.multi_write(
        [
            client.prepare_create(SHARD, SCHEMA, purpose="test"),
            client.prepare_critical(SHARD, purpose="backup"),
            writer.prepare_append(rows(1), 0, 5),
            client.prepare_create(OTHER, SCHEMA, purpose="test"),
        ]
    )
    hold = client.critical_since(SHARD, purpose="backup")
    client.multi_write([writer.prepare_append(rows(2), 5, 9), hold.prepare_downgrade(8)])
    state = stores.state()
    assert (state.seqno, state.since, state.upper) == (2, 8, 9)
    assert stores.state(OTHER).seqno == 1
    client.multi_write([writer.prepare_seal(9, 10), client.prepare_finalize(SHARD)])
    assert stores.state().finalized


def test_a_multi_write_that_makes_no_sense_is_refused(stores: Stores) -> None:
    client, elsewhere = stores.open(), Stores().open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    twice = [writer.prepare_append(rows(1), 0, 5), writer.prepare_append(rows(2), 5, 6)]
    with pytest.raises(BadInput, match="one append or seal per shard"):
        client.multi_write(twice)
    with pytest.raises(LocationMismatch):
        elsewhere.multi_write(twice[:1])
    client.multi_write([])
    assert not client.exists(SHARD)
    client.multi_write(twice[:1])
    assert client.recent_upper(SHARD) == 5


def test_what_another_client_of_the_location_prepared_may_be_committed(stores: Stores) -> None:
    client, other = stores.open(), stores.open()
    one = client.writer(SHARD, SCHEMA, purpose="test")
    two = other.writer(OTHER, SCHEMA, purpose="test")
    client.multi_write([one.prepare_append(rows(1), 0, 5), two.prepare_append(rows(2), 0, 5)])
    assert (other.recent_upper(SHARD), other.recent_upper(OTHER)) == (5, 5)


def test_an_append_that_was_committed_is_not_taken_back_by_giving_it_again(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    prepared = writer.prepare_append(rows(1), 0, 5)
    client.multi_write([prepared])
    writer.compare_and_append(rows(2), 5, 6)
    with pytest.raises(BadInput, match="committed already"):
        client.multi_write([prepared])
    found = stores.open().reader(SHARD, purpose="test").snapshot(5).to_table()
    assert contents(found) == {(1, "x"): 1, (2, "x"): 1}


def test_an_append_whose_uploads_are_gone_is_not_committed(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    one, two = (client.writer(shard, SCHEMA, purpose="test") for shard in (SHARD, OTHER))
    prepared = one.prepare_append(rows(1), 0, 5)
    with pytest.raises(UpperMismatch):
        client.multi_write([prepared, two.prepare_append(rows(1), 3, 5)])
    assert stores.parts() == set()
    with pytest.raises(BadInput, match="its uploads are deleted"):
        client.multi_write([prepared])
    assert stores.state().upper == 0


def test_a_rejected_append_that_uploaded_nothing_may_be_given_again(stores: Stores) -> None:
    client = stores.open()
    one, two = (client.writer(shard, SCHEMA, purpose="test") for shard in (SHARD, OTHER))
    prepared = one.prepare_append(rows(1), 0, 5)
    with pytest.raises(UpperMismatch):
        client.multi_write([prepared, two.prepare_append(rows(1), 3, 5)])
    client.multi_write([prepared, two.prepare_append(rows(1), 0, 5)])
    assert (client.recent_upper(SHARD), client.recent_upper(OTHER)) == (5, 5)


def test_a_finalized_shard_has_ended_for_all(stores: Stores) -> None:
    client, other = stores.open(**BLOBS), stores.open()
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    reader, hold = other.reader(SHARD, purpose="test"), other.critical_since(SHARD, purpose="backup")
    snapshot = reader.snapshot(4)
    client.finalize(SHARD)
    client.finalize(SHARD)
    other.session.machine(SHARD).refresh()
    for attempt in (
        lambda: writer.compare_and_append(rows(2), 5, 6),
        lambda: client.writer(SHARD, SCHEMA, purpose="test"),
        lambda: client.reader(SHARD, purpose="test"),
        lambda: client.critical_since(SHARD, purpose="test"),
        lambda: reader.snapshot(4),
        lambda: reader.listen(4),
        lambda: snapshot.to_table(),
        lambda: hold.downgrade(3),
    ):
        with pytest.raises(ShardFinalized, match=SHARD):
            attempt()
    reader.allow_compaction(4)
    reader.close()
    assert client.inspect(SHARD).finalized
    client.maintain(SHARD)
    assert stores.parts() == set()


def test_a_reading_client_writes_nothing(stores: Stores) -> None:
    writer = stores.open().writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    before = stores.stored()
    client = stores.open(mode="read", maintenance="inline", lease_s=0.0)
    reader = client.reader(SHARD, purpose="look")
    assert contents(reader.snapshot(4).to_table()) == {(1, "x"): 1}
    listen, subscription = reader.listen(3), reader.subscribe(4)
    assert (listen.next(0), len(subscription.next(0)), listen.next(0)) == ([Progress(5)], 2, [])
    reader.allow_compaction(4)
    reader.heartbeat()
    assert client.inspect(SHARD).upper == client.recent_upper(SHARD) == reader.upper() == 5
    assert client.shards() == [SHARD]
    for attempt in (
        lambda: client.writer(SHARD, SCHEMA, purpose="test"),
        lambda: client.critical_since(SHARD, purpose="test"),
        lambda: client.finalize(SHARD),
        lambda: client.maintain(SHARD),
        lambda: client.multi_write([client.prepare_create(OTHER, SCHEMA, purpose="test")]),
        lambda: client.multi_write([writer.prepare_append(rows(2), 5, 6)]),
    ):
        with pytest.raises(NotWritable):
            attempt()
    reader.close()
    client.close()
    assert stores.stored() == before


def test_a_closed_client_refuses_work_and_has_given_up_its_leases(stores: Stores) -> None:
    with stores.open() as client:
        client.writer(SHARD, SCHEMA, purpose="test").seal(5)
        reader = client.reader(SHARD, purpose="test")
        assert len(stores.state().leased_readers) == 1
    assert stores.state().leased_readers == {}
    with pytest.raises(BadInput, match="closed"):
        client.writer(SHARD, SCHEMA, purpose="test")
    with pytest.raises(BadInput, match="closed"):
        client.reader(SHARD, purpose="test")
    reader.allow_compaction(3)
    client.close()


def test_readers_of_several_shards_take_and_release_their_leases_together(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stores.open()
    shards = [SHARD, OTHER]
    for shard in shards:
        client.writer(shard, SCHEMA, purpose="test").seal(5)
    before = [stores.state(shard).seqno for shard in shards]
    commits: list[list[str]] = []
    append = stores.consensus.compare_and_set

    def noted(puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        commits.append([put.key for put in puts])
        return append(puts, expect)

    monkeypatch.setattr(stores.consensus, "compare_and_set", noted)
    readers = client.readers(shards, purpose="test")
    assert commits == [shards]
    states = [stores.state(shard) for shard in shards]
    holds = [reader.seqno_hold for state in states for reader in state.leased_readers.values()]
    assert holds == [state.seqno for state in states] == [seqno + 1 for seqno in before]
    assert [reader.snapshot(4).to_table().num_rows for reader in readers] == [0, 0]
    close_readers(readers)
    assert commits == [shards, shards]
    close_readers(readers)
    assert [dict(stores.state(shard).leased_readers) for shard in shards] == [{}, {}]
    assert commits == [shards, shards]

    client.finalize(OTHER)
    with pytest.raises(ShardFinalized):
        client.readers(shards, purpose="test")
    assert stores.state().leased_readers == {}
    with pytest.raises(BadInput, match="does not exist"):
        client.readers([SHARD, client.new_shard_id()], purpose="test")
    assert client.readers([], purpose="test") == []


def test_pieces_of_a_snapshot_travel_to_other_processes_without_leases(stores: Stores) -> None:
    client = stores.open()
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1, 2), 0, 5)
    parts = client.reader(SHARD, purpose="test").snapshot_parts(4)
    before = stores.stored()
    executor = stores.open()
    found: Counter[tuple[int, str]] = Counter()
    for part in pickle.loads(pickle.dumps(parts)):
        found += contents(executor.read_snapshot_part(part).to_table())
    assert found == {(1, "x"): 1, (2, "x"): 1}
    assert stores.stored() == before


def test_a_shard_id_is_checked(stores: Stores) -> None:
    client = stores.open()
    assert client.session.machine(client.new_shard_id())
    for wrong in ("", "orders", SHARD[1:], SHARD.upper(), f"{SHARD}/x"):
        with pytest.raises(BadInput, match="is not a shard id"):
            client.exists(wrong)


def test_a_multi_write_may_depend_on_the_upper_of_a_shard_that_it_leaves_as_it_is(stores: Stores) -> None:
    first, second = stores.open(), stores.open()
    guard = second.writer(OTHER, SCHEMA, purpose="guard")
    guard.seal(1)
    writer = first.writer(SHARD, SCHEMA, purpose="test")
    first.multi_write([first.prepare_expect_upper(OTHER, 1), writer.prepare_append(rows(1), 0, 1)])
    guard.seal(2)
    with pytest.raises(UpperMismatch) as caught:
        first.multi_write([first.prepare_expect_upper(OTHER, 1), writer.prepare_append(rows(2), 1, 2)])
    assert (caught.value.shard_id, caught.value.actual) == (OTHER, 2)
    assert first.recent_upper(SHARD) == 1
