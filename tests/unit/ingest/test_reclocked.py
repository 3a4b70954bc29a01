"""A collection that is fed from another one has the same times, and at each what that one has, decoded."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import CLOSED, AsOfTooEarly, BadInput, CollectionInUse, NoLocation, SourceStalled
from holdfast.ingest import StepOutcome
from holdfast.ingest.formats.decoded import BadRecord, Decoded
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.opened import left_in_source
from holdfast.ingest.reclocked import _Sums
from holdfast.ingest.sources.collection import CollectionSource
from holdfast.persist import PersistClient, Schema
from unit.collections.stores import Stores
from unit.ingest.reclockedworld import (
    FED,
    FIRST,
    RAW,
    RawCollection,
    bad,
    check,
    contents,
    drained,
    feeding,
    good,
    spec_of,
    upper,
)


class Lenient:
    """A format that decodes whatever it gets."""

    whole = False

    def __init__(self, form: Any) -> None:
        self._form = form

    def check(self) -> None: ...

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        values = pa.array([b'{"id": 99}'] * messages.num_rows, pa.binary())
        return Decoded(*vars_of(self._form.decode(messages.set_column(3, "value", values))))


def vars_of(decoded: Decoded) -> tuple[Any, Any]:
    return decoded.rows, decoded.index


class Strict:
    """A format that decodes nothing."""

    whole = False

    def check(self) -> None: ...

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        bad = [BadRecord(at, 0, "decode", "no") for at in range(messages.num_rows)]
        return Decoded(FED.arrow.empty_table(), np.empty(0, np.int64), bad)


@pytest.fixture
def client(tmp_path: Path) -> PersistClient:
    return PersistClient.open(f"file://{tmp_path}/location")


def test_a_collection_keeps_the_times_of_its_source(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1), bad(2))
    raw.write(FIRST + 10, good(3), good(3), upto=FIRST + 20)
    with feeding(client) as ingestion:
        assert ingestion.step().outcome is StepOutcome.COMMITTED
        drained(ingestion)
        check(client, raw, 0)
        raw.write(FIRST + 30, good(1), bad(2), diff=-1)
        raw.write(FIRST + 31, good(1, "again"), bad(2))
        drained(ingestion)
        check(client, raw, 0)
        # Nothing changed, and the upper follows all the same.
        raw.write(FIRST + 50, upto=FIRST + 60)
        assert ingestion.step().outcome is StepOutcome.COMMITTED
        assert ingestion.step().outcome is StepOutcome.IDLE
        check(client, raw, 0)


ROWS = [good(1), good(1), good(2), good(3, "y"), bad(1), bad(2), (3, None)]


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """For each time, changes: the number of a row and how often it comes or goes. No count gets negative."""
    counts: Counter[int] = Counter()
    history = []
    for _ in range(draw(st.integers(1, 8))):
        changes = []
        for number in draw(st.lists(st.integers(0, len(ROWS) - 1), max_size=5, unique=True)):
            diff = draw(st.integers(-counts[number], 2))
            counts[number] += diff
            changes += [(number, diff)] if diff else []
        history.append(changes)
    return history


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=histories(),
    most=st.integers(1, 6),
    acts=st.lists(st.sampled_from(["step", "compact", "new", "other", "since"]), max_size=12),
)
def test_any_history_is_kept_at_each_time(
    history: list[list[tuple[int, int]]], most: int, acts: list[str]
) -> None:
    client = Stores().open(inline_max_bytes=300)
    raw = RawCollection(client)
    block: dict[str, Any] = {"batch": {"maxRows": most}}
    raw.write(FIRST, good(9))
    with feeding(client, **block) as mine, feeding(client, **block) as other:
        for at, changes in enumerate(history, 1):
            raw.write_changes(FIRST + 10 * at, [(ROWS[number], diff) for number, diff in changes])
            for act in acts[at::3]:
                match act:
                    case "step":
                        mine.step()
                    case "other":
                        other.step()
                    case "new":
                        mine.load()
                    case "compact":
                        raw.compact()
                    case _:
                        raw.controller.set_retention_hold("raw", raw.upper - 1)
        drained(other)
        drained(mine)
    check(client, raw, offsets_begin(client))


def offsets_begin(client: PersistClient) -> int:
    return int(offsets(StorageController(client), "orders")[1]["begin"][0].as_py())


def test_a_time_with_many_changes_is_uploaded_in_pieces(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, *(good(each) for each in range(50)), bad(1))
    with feeding(client, batch={"maxRows": 10}) as ingestion:
        # The first contents, at the since of the source, are empty.
        assert ingestion.step().messages == 0
        step = ingestion.step()
        assert (step.messages, step.updates, step.errors) == (51, 50, 1)
        raw.write(FIRST + 1, *(good(each) for each in range(50)), bad(1), diff=-1)
        raw.write(FIRST + 2, *(good(each, "new") for each in range(8)))
        raw.write(FIRST + 3, *(good(each, "newer") for each in range(8)))
        assert [ingestion.step().messages for _ in range(3)] == [51, 8, 8]
    check(client, raw, 0)


def test_a_time_with_many_changes_is_known_before_it_is_read(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(0))
    raw.write(FIRST + 1, *(good(each) for each in range(6)))
    raw.write(FIRST + 3, *(good(each) for each in range(7, 10)))
    for _ in range(2):
        with feeding(client) as ingestion:
            source: Any = ingestion._source
            until = FIRST + 3
            assert source.bounded(FIRST - 1, until, 10) == (until, False)
            assert source.bounded(FIRST, until, 8) == (FIRST + 1, False)
            assert source.bounded(FIRST, until, 5) == (FIRST + 1, True)
            assert source.bounded(FIRST - 1, until, 5) == (FIRST, False)
        raw.compact()


def test_it_begins_with_all_that_the_source_contains(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, *(good(each) for each in range(30)), bad(1))
    raw.write(FIRST + 5, good(1), diff=-1)
    raw.controller.set_retention_hold("raw", FIRST + 3)
    with feeding(client, batch={"maxRows": 7}) as ingestion:
        assert ingestion.step().messages == 31
        drained(ingestion)
    check(client, raw, FIRST + 3)
    # Before that it would only seem empty.
    with pytest.raises(AsOfTooEarly):
        contents(client, FIRST + 2)


def test_it_may_begin_with_the_latest_time(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    raw.write(FIRST + 9, good(2), upto=FIRST + 20)
    with feeding(client, source={"start": "Latest"}) as ingestion:
        drained(ingestion)
    check(client, raw, FIRST + 19)


@pytest.mark.parametrize("most", [1000, 3])
def test_what_was_restored_goes_on_from_the_restored_time(client: PersistClient, most: int) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, *(good(each) for each in range(8)), bad(1))
    with feeding(client, batch={"maxRows": most}) as ingestion:
        drained(ingestion)
        restored = raw.decoded(FIRST)
        # As a restore does it: the upper is beyond the time that the bindings name.
        writer = StorageController(client).rendition_writer("orders", "r1", purpose="test")
        writer.seal(FIRST + 50)
        raw.write(FIRST + 10, good(1), bad(1), diff=-1)
        raw.write(FIRST + 20, *(good(each) for each in range(20, 25)))
        ingestion.load()
        assert ingestion.step().outcome is StepOutcome.IDLE
        raw.write(FIRST + 60, good(2), diff=-1)
        drained(ingestion)
    assert contents(client, FIRST + 49) == restored
    for time, position in ((FIRST + 50, FIRST + 51), (FIRST + 59, FIRST + 51), (FIRST + 60, FIRST + 61)):
        assert contents(client, time) == raw.decoded(time)
        assert len(errors(StorageController(client), "orders", time)[1]) == 0
        assert offsets(StorageController(client), "orders", time)[1]["position"].to_pylist() == [position]


def test_an_empty_source_is_waited_for(client: PersistClient) -> None:
    raw = RawCollection(client)
    with feeding(client) as ingestion:
        assert ingestion.step().outcome is StepOutcome.IDLE
        ingestion.run(once=True)
        raw.write(FIRST, good(1))
        ingestion.run(once=True)
    check(client, raw, 0)


def test_a_change_that_is_gone_stalls_and_names_the_times(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
    (hold,) = (each for each in raw.controller.holds("raw") if each.durable and not each.own)
    assert hold.purpose.startswith("feeds orders: ")
    assert hold.since == FIRST
    raw.write(FIRST + 9, good(2), upto=FIRST + 20)
    # The hold keeps what is needed.
    raw.controller.set_retention_hold("raw", FIRST + 15)
    assert raw.controller.frontiers("raw").since == FIRST
    raw.controller.release_hold("raw", hold.purpose)
    raw.controller.set_retention_hold("raw", FIRST + 16)
    lost = f"has lost the changes at times {FIRST + 1} to {FIRST + 16}: it is readable from {FIRST + 16} on"
    with feeding(client) as ingestion, pytest.raises(SourceStalled, match=lost):
        ingestion.step()
    check(client, raw, 0, FIRST + 1)


def test_a_source_that_was_dropped_or_made_again_stalls(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
        raw.controller.drop_collection("raw", force=True)
        with pytest.raises(SourceStalled, match=r"the source of collection orders is gone: .* was dropped"):
            ingestion.step()
    with (
        pytest.raises(BadInput, match="the source of collection orders, collection raw, can't be used"),
        feeding(client),
    ):
        pass
    RawCollection(client, "raw", id_="raw-2")
    with (
        feeding(client) as ingestion,
        pytest.raises(SourceStalled, match="orders was fed from collection://"),
    ):
        ingestion.step()
    assert contents(client, FIRST) == Counter({(1, "x"): 1})


def test_a_hold_ends_with_what_needs_it(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
    with pytest.raises(CollectionInUse, match="feeds orders"):
        raw.controller.drop_collection("raw")
    other = RawCollection(client, "other")
    other.write(FIRST, good(1))
    with feeding(client, source={"name": "other"}, name="copies") as ingestion:
        drained(ingestion)
    StorageController(client).drop_collection("copies")
    assert [each.purpose for each in other.controller.holds("other") if not each.own] != []
    other.controller.advance("other")
    assert [each.purpose for each in other.controller.holds("other") if not each.own] == []
    StorageController(client).drop_collection("orders")
    raw.controller.drop_collection("raw")


def test_a_cycle_is_refused(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
    with feeding(client, "rows", {"name": "orders"}, name="copies") as ingestion:
        drained(ingestion)
    with (
        pytest.raises(BadInput, match="orders can't be fed from itself"),
        feeding(client, "rows", {"name": "orders"}),
    ):
        pass
    with (
        pytest.raises(BadInput, match="orders can't be fed from copies, which is fed from it"),
        feeding(client, "rows", {"name": "copies"}, rendition="r2"),
    ):
        pass


def test_rows_are_copied_and_projected_with_their_counts(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, (1, b"a"), (1, b"b"), (2, None))
    raw.write(FIRST + 1, (1, b"a"), diff=-1)
    with feeding(client, "rows", schema=Schema.of(key={"shelf": "int64"})) as ingestion:
        drained(ingestion)
    assert contents(client, FIRST) == Counter({(1,): 2, (2,): 1})
    assert contents(client, FIRST + 1) == Counter({(1,): 1, (2,): 1})
    with feeding(client, "rows", name="whole", schema=RAW) as ingestion:
        drained(ingestion)
    assert contents(client, FIRST + 1, "whole") == Counter({(1, b"b"): 1, (2, None): 1})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema.of(key={"id": "int64"}), "collection raw has no column 'id' .it has shelf, value."),
        (Schema.of(key={"shelf": "int32"}), "'shelf' has type int32, and type int64 in collection raw"),
        (Schema.of(key={"shelf": "int64"}, value={"value": "binary"}), "'value' allows no nulls"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_made(
    client: PersistClient, schema: Schema, why: str
) -> None:
    RawCollection(client)
    with pytest.raises(BadInput, match=why), feeding(client, "rows", schema=schema):
        pass
    assert [each.name for each in StorageController(client).list_collections()] == ["raw"]


LOG = Schema.of(
    key={"topic": "string", "place": "int64"},
    value={"body": "string", "who": "binary?", "at": "int64?"},
)


def test_parts_of_a_message_come_from_the_columns_that_are_named(client: PersistClient) -> None:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("raw", "raw", LOG))
    body = '{"id": 1, "name": "a"}'
    row = {"topic": "t-0", "place": 7, "body": body, "who": b"k", "at": FIRST}
    writer = controller.writer("raw", purpose="test")
    writer.append([row, row | {"place": 8, "body": "bad"}], 0, FIRST + 1)
    columns = {"value": "body", "key": "who", "partition": "topic", "position": "place", "timestamp": "at"}
    schema = Schema.of(
        key={"id": "int64"},
        value={"name": "string?", "topic": "string", "place": "int64", "k": "binary?", "at": "timestamp?"},
    )
    include = {"partition": "topic", "position": "place", "key": "k", "timestamp": "at"}
    with feeding(client, source={"columns": columns}, schema=schema, include=include) as ingestion:
        drained(ingestion)
    ((id_, name, topic, place, key, at),) = contents(client, 0)
    assert (id_, name, topic, place, key) == (1, "a", "t-0", 7, b"k")
    assert at.timestamp() * 1000 == FIRST
    (error,) = errors(controller, "orders")[1].to_pylist()
    assert (error["partition"], error["position"], error["key"]) == ("t-0", 8, b"k")


def test_too_many_bad_records_stall_before_anything_is_committed(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, bad(1), bad(2))
    raw.write(FIRST + 1, bad(1), bad(2), diff=-1)
    raw.write(FIRST + 2, bad(3), bad(4))
    raw.write(FIRST + 3, bad(5))
    with feeding(client, onError={"collect": {"limit": 2}}, batch={"maxRows": 6}) as ingestion:
        drained_until = [ingestion.step() for _ in range(2)][-1]
        assert drained_until.upper == FIRST + 3
        with pytest.raises(SourceStalled, match="would keep more bad records than the limit 2"):
            ingestion.step()
    check(client, raw, 0, FIRST + 3)


def test_a_row_that_was_a_bad_record_is_retracted_as_one(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, bad(1), bad(1), good(2))
    with feeding(client) as ingestion:
        drained(ingestion)
        # As if a later version could decode it.
        ingestion._form_of_rows = Lenient(ingestion._form_of_rows)  # type: ignore[attr-defined]
        raw.write(FIRST + 1, bad(1), diff=-1)
        drained(ingestion)
    check(client, raw, 0)


def test_a_row_that_can_not_be_decoded_any_more_is_not_retracted_by_guess(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
    with feeding(client, "json") as ingestion:
        ingestion.load()
        ingestion._form_of_rows = Strict()  # type: ignore[attr-defined]
        raw.write(FIRST + 1, good(1), diff=-1)
        with pytest.raises(SourceStalled, match="retracts a row that could be decoded when it came"):
            ingestion.step()
    check(client, raw, 0, FIRST + 1)


def test_columns_that_come_later_stay_null_until_there_is_a_new_rendition(client: PersistClient) -> None:
    raw = RawCollection(client)
    row = 1, b'{"id": 1, "name": "x", "more": "y"}'
    raw.write(FIRST, row, row)
    with feeding(client) as ingestion:
        drained(ingestion)
    later = Schema.of(key={"id": "int64"}, value={"name": "string?", "more": "string?"})
    StorageController(client).evolve_collection("orders", later)
    raw.write(FIRST + 1, row, diff=-1)
    raw.write(FIRST + 2, (2, b'{"id": 2, "more": "z"}'))
    with feeding(client, schema=None) as ingestion:
        drained(ingestion)
    assert contents(client, FIRST) == Counter({(1, "x", None): 2})
    assert contents(client, FIRST + 2) == Counter({(1, "x", None): 1, (2, None, None): 1})
    with feeding(client, schema=None, rendition="r2") as ingestion:
        drained(ingestion)
    taken = StorageController(client).renditions.hand_over("orders", "r2").held_from
    raw.write(taken, row, diff=-1, upto=taken + 10)
    for rendition in ("r1", "r2"):
        with feeding(client, schema=None, rendition=rendition) as ingestion:
            drained(ingestion)
    assert contents(client, taken - 1) == Counter({(1, "x", None): 1, (2, None, None): 1})
    assert contents(client, taken) == Counter({(2, None, "z"): 1})


def test_a_type_that_became_wider_stalls_a_copy_until_it_has_it_too(client: PersistClient) -> None:
    narrow = Schema.of(key={"shelf": "int64"}, value={"value": "binary?", "size": "int32?"})
    wide = replace(narrow, value=(narrow.value[0], replace(narrow.value[1], type="int64")))
    raw = RawCollection(client, schema=narrow)
    writer = raw.controller.writer("raw", purpose="test")
    writer.append([{"shelf": 1, "value": b"", "size": 1}], 0, FIRST)
    with feeding(client, "rows", schema=narrow) as ingestion:
        drained(ingestion)
        raw.controller.evolve_collection("raw", wide)
        writer = raw.controller.writer("raw", purpose="test")
        writer.append([{"shelf": 1, "value": b"", "size": 1 << 40}], FIRST, FIRST + 1)
        with pytest.raises(SourceStalled, match="column 'size' of the source has type int64 now"):
            drained(ingestion)
    refused = pytest.raises(BadInput, match="column 'size' has type int32, and type int64 in collection raw")
    with feeding(client, "rows", schema=None) as ingestion, refused:
        ingestion.step()
    raw.controller.evolve_collection("orders", wide)
    with feeding(client, "rows", schema=None) as ingestion:
        drained(ingestion)
    assert contents(client, FIRST) == Counter({(1, b"", 1): 1, (1, b"", 1 << 40): 1})


def test_a_source_that_is_complete_for_ever(client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    raw.controller.writer("raw", purpose="test").seal(CLOSED)
    with feeding(client, source={"start": "Latest"}) as ingestion:
        # It ends by itself.
        ingestion.run()
        assert ingestion.step().outcome is StepOutcome.HANDED_OVER
    assert upper(client) == CLOSED
    assert contents(client, CLOSED - 1) == Counter({(1, "x"): 1})


@pytest.mark.parametrize("envelope", ["Upsert", "Debezium"])
def test_an_envelope_is_refused(client: PersistClient, envelope: str) -> None:
    with (
        pytest.raises(BadInput, match="its rows at one time have no order"),
        feeding(client, envelope=envelope),
    ):
        pass


def test_the_source_may_be_in_another_location(tmp_path: Path, client: PersistClient) -> None:
    there = f"file://{tmp_path}/there"
    with PersistClient.open(there) as other:
        raw = RawCollection(other)
        raw.write(FIRST, good(1), bad(1))
        with feeding(client, source={"url": there}) as ingestion:
            drained(ingestion)
            raw.write(FIRST + 5, good(1), bad(1), diff=-1)
            drained(ingestion)
        check(client, raw, 0)
        # Only a pipeline or a user can end this hold: the location doesn't know the other collections.
        assert f"collection raw at {there}" in left_in_source(spec_of(source={"url": there}), "orders-1")
        assert left_in_source(spec_of(), "orders-1") == ""
        StorageController(client).drop_collection("orders")
        raw.controller.advance("raw")
        (hold,) = (each for each in raw.controller.holds("raw") if each.durable and not each.own)
        raw.controller.release_hold("raw", hold.purpose)
        raw.controller.drop_collection("raw")


def test_the_url_of_the_same_location_is_the_same_source(tmp_path: Path, client: PersistClient) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client, source={"url": f"file://{tmp_path}/location"}) as ingestion:
        drained(ingestion)
    with feeding(client) as ingestion:
        assert ingestion.step().outcome is StepOutcome.IDLE
    with (
        pytest.raises(BadInput, match="orders can't be fed from itself"),
        feeding(client, source={"url": f"file://{tmp_path}/location", "name": "orders"}),
    ):
        pass


def test_a_location_that_is_not_there_is_named(tmp_path: Path, client: PersistClient) -> None:
    url = f"file://{tmp_path}/none"
    refused = pytest.raises(NoLocation, match=rf"can't open source\.collection\.url: .*{tmp_path}/none")
    with refused, feeding(client, source={"url": url}):
        pass
    assert not (tmp_path / "none").exists()
    assert list(StorageController(client).list_collections()) == []


def test_a_source_in_an_earlier_state_stalls(tmp_path: Path, client: PersistClient) -> None:
    there = tmp_path / "there"
    with PersistClient.open(f"file://{there}") as other:
        raw = RawCollection(other)
        raw.write(FIRST, good(1))
    shutil.copytree(there, tmp_path / "backup")
    with PersistClient.open(f"file://{there}") as other:
        raw.controller = StorageController(other)
        raw.write(FIRST + 5, good(2))
        with feeding(client, source={"url": f"file://{there}"}) as ingestion:
            drained(ingestion)
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "backup", there)
    stalled = pytest.raises(SourceStalled, match=f"is complete up to {FIRST + 1} only, and orders has")
    with feeding(client, source={"url": f"file://{there}"}) as ingestion, stalled:
        ingestion.step()
    check(client, raw, 0)


@pytest.mark.parametrize("after", [[], [3]])
def test_a_source_in_an_earlier_state_that_has_gone_on_stalls(
    tmp_path: Path, client: PersistClient, after: list[int]
) -> None:
    there = tmp_path / "there"
    block = {"url": f"file://{there}"}
    with PersistClient.open(f"file://{there}") as other:
        raw = RawCollection(other)
        raw.write(FIRST, good(1))
        with feeding(client, source=block) as ingestion:
            drained(ingestion)
    shutil.copytree(there, tmp_path / "backup")
    with PersistClient.open(f"file://{there}") as other:
        raw.controller = StorageController(other)
        raw.write(FIRST + 5, good(2))
        with feeding(client, source=block) as ingestion:
            drained(ingestion)
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "backup", there)
    contents = StorageController(client).reader("orders", purpose="check").snapshot().to_table()
    with PersistClient.open(f"file://{there}") as other:
        raw.controller = StorageController(other)
        for each in after:
            raw.write(FIRST + each, good(each))
        raw.write(FIRST + 50, good(4))
    stalled = pytest.raises(SourceStalled, match=rf"at times {FIRST + min([*after, 5])} to {FIRST + 5} than")
    for _ in range(2):
        with feeding(client, source=block) as ingestion, stalled:
            ingestion.step()
    assert StorageController(client).reader("orders", purpose="check").snapshot().to_table() == contents


def test_after_a_crash_the_changes_that_are_still_held_are_compared(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = RawCollection(client)
    raw.write(FIRST, good(1))
    with feeding(client) as ingestion:
        drained(ingestion)
    with monkeypatch.context() as patched:
        patched.setattr(CollectionSource, "keep", lambda *_: None)
        patched.setattr(CollectionSource, "move", lambda *_: None)
        for each in (2, 3):
            raw.write(FIRST + each, good(each))
        raw.write(FIRST + 7, good(9))
        with feeding(client, batch={"maxRows": 1}) as ingestion:
            drained(ingestion)
    raw.write(FIRST + 20, good(4))
    with feeding(client) as ingestion:
        assert drained(ingestion) == 1


@pytest.mark.parametrize("changed", [False, True])
def test_bindings_of_an_earlier_build_are_compared_by_their_counts(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    raw = RawCollection(client)
    summed, since = _Sums.by_time, 0

    def unsummed(sums: _Sums) -> Any:
        times, counts, checksums = summed(sums)
        return times, counts, np.where(times < since, checksums, 0).astype(np.uint64)

    with monkeypatch.context() as patched:
        patched.setattr(CollectionSource, "keep", lambda *_: None)
        patched.setattr(CollectionSource, "move", lambda *_: None)
        with monkeypatch.context() as earlier:
            earlier.setattr(_Sums, "by_time", unsummed)
            raw.write(FIRST, good(1))
            with feeding(client, batch={"maxRows": 1}) as ingestion:
                drained(ingestion)
                raw.write(FIRST + 3, good(3))
                # The number of rows stays the same.
                raw.write_changes(FIRST + 5, [(good(3), -1), (good(4), 1)])
                drained(ingestion)
        raw.write(FIRST + 7, good(9))
        with feeding(client) as ingestion:
            assert drained(ingestion) == 1
        # Once there are checksums, they count.
        raw.write_changes(FIRST + 9, [(good(9), -1), (good(10), 1)])
        with monkeypatch.context() as broken:
            if changed:
                since = FIRST + 9
                broken.setattr(_Sums, "by_time", unsummed)
            with feeding(client) as ingestion:
                assert drained(ingestion) == 1
    raw.write(FIRST + 20, good(4))
    with feeding(client) as ingestion:
        if changed:
            with pytest.raises(
                SourceStalled, match=f"other changes at times {FIRST + 9} to {FIRST + 9} than"
            ):
                ingestion.step()
        else:
            assert drained(ingestion) == 1
            check(client, raw, 0)
