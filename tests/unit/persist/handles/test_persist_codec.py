"""Codecs: a round trip of Python values. No codec decodes the values of another."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal

import pyarrow as pa
import pytest

from holdfast.errors import BadInput, CodecMismatch, CorruptBlob, VersionTooNew
from holdfast.persist import (
    Codec,
    PersistClient,
    Progress,
    Schema,
    TypedReader,
    TypedUpdate,
    TypedWriter,
    ValueCodec,
)
from unit.persist.open_stores import OTHER, SHARD, Stores


@dataclass(frozen=True)
class Order:
    amount: Decimal
    note: str = ""


class Orders(ValueCodec[tuple[str, int], Order]):
    """The first version: amounts alone. The second adds a note, and leaves orders without one alone."""

    name = "orders"

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def encode_key(self, key: tuple[str, int]) -> bytes:
        return f"{key[0]}/{key[1]}".encode()

    def decode_key(self, data: bytes) -> tuple[str, int]:
        country, number = data.decode().split("/")
        return country, int(number)

    def encode_value(self, value: Order) -> bytes:
        fields = {name: str(field) for name, field in asdict(value).items() if field}
        return json.dumps(fields, sort_keys=True).encode()

    def decode_value(self, data: bytes) -> Order:
        fields = json.loads(data)
        return Order(Decimal(fields["amount"]), fields.get("note", ""))


class Doubles(Codec[float, float]):
    """A codec of batches, without a loop of Python's own."""

    name = "doubles"
    version = 1

    def encode(self, keys: Sequence[float], values: Sequence[float]) -> tuple[pa.Array, pa.Array]:
        first, second = (pa.array(column, pa.float64()).cast(pa.string()) for column in (keys, values))
        return first.cast(pa.binary()), second.cast(pa.binary())

    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[float], Sequence[float]]:
        first, second = (column.cast(pa.string()).cast(pa.float64()) for column in (keys, values))
        return first.to_pylist(), second.to_pylist()


ONE, TWO = (("de", 1), Order(Decimal("1.50"))), (("fr", 2), Order(Decimal(2)))


def filled(client: PersistClient) -> TypedWriter[tuple[str, int], Order]:
    writer = TypedWriter(client, SHARD, Orders(), purpose="test")
    writer.compare_and_append([TypedUpdate(*ONE), TypedUpdate(*TWO, diff=2)], 0, 1)
    return writer


def test_python_values_go_in_and_come_out(stores: Stores) -> None:
    client = stores.open()
    writer = filled(client)
    with TypedReader(stores.open(), SHARD, Orders(), purpose="test") as reader:
        assert [*reader.snapshot(0)] == [TypedUpdate(*ONE, 1, 0), TypedUpdate(*TWO, 2, 0)]
        listen, subscription = reader.listen(0), reader.subscribe(0)
        assert subscription.next() == [TypedUpdate(*ONE, 1, 0), TypedUpdate(*TWO, 2, 0), Progress(1)]
        writer.compare_and_append([TypedUpdate(*ONE, -1, 2), TypedUpdate(*TWO, time=1)], 1, 3)
        changes = [TypedUpdate(*TWO, 1, 1), TypedUpdate(*ONE, -1, 2), Progress(3)]
        assert listen.next(0) == subscription.next(0) == changes
        assert [*reader.snapshot(2)] == [TypedUpdate(*TWO, 3, 2)]
        assert listen.next(0) == []
    writer.compare_and_append([], 3, 4)
    writer.seal(5)
    assert writer.upper() == 5
    assert stores.state().schema.codec == ("orders", 1)


def test_a_codec_of_batches(stores: Stores) -> None:
    client = stores.open(inline_max_bytes=0)
    shard = client.create_or_load("points", Doubles().schema)
    points = [TypedUpdate(float(number), number / 3) for number in range(1000)]
    with TypedWriter(client, shard, Doubles(), purpose="test") as writer:
        client.multi_write([writer.prepare_append(points, 0, 1)])
    with TypedReader(client, shard, Doubles(), purpose="test") as reader:
        found = sorted(reader.snapshot(0))
        assert found == [TypedUpdate(*point[:2], 1, 0) for point in points]


def test_another_codec_reads_and_writes_nothing(stores: Stores) -> None:
    client = stores.open()
    filled(client)
    client.writer(OTHER, Schema.of({"key": "binary"}, {"value": "binary"}), purpose="test").seal(1)
    before = stores.stored()
    with pytest.raises(CodecMismatch, match="codec doubles v1"):
        TypedWriter(client, SHARD, Doubles(), purpose="test")
    for shard in (SHARD, OTHER):
        with pytest.raises(CodecMismatch, match="codec doubles v1 does not fit"):
            TypedReader(stores.open(mode="read"), shard, Doubles(), purpose="test")
    assert stores.stored() == before
    # Nor does a refused reader leave a lease.
    with pytest.raises(CodecMismatch):
        TypedReader(client, SHARD, Doubles(), purpose="test")
    assert not stores.state().leased_readers


def test_a_newer_version_reads_what_older_ones_wrote_and_not_the_other_way(stores: Stores) -> None:
    client = stores.open(compaction_fanin=3)
    old_writer = filled(client)
    old_reader = TypedReader(client, SHARD, Orders(1), purpose="old")
    listen = old_reader.listen(0)
    with pytest.raises(CodecMismatch) as early:
        TypedWriter(client, SHARD, Orders(2), purpose="new")
    assert "evolve" in early.value.hint
    client.evolve(SHARD, Orders(2).schema)
    noted = (("it", 3), Order(Decimal(3), "gift"))
    new_writer = TypedWriter(client, SHARD, Orders(2), purpose="new")
    # What the first version put in goes by its own bytes, which the second did not change.
    new_writer.compare_and_append([TypedUpdate(*noted), TypedUpdate(*ONE, -1)], 1, 2)
    old_writer.compare_and_append([TypedUpdate(*TWO)], 2, 3)
    for _ in range(2):
        with TypedReader(stores.open(), SHARD, Orders(2), purpose="new") as reader:
            assert [*reader.snapshot(2)] == [TypedUpdate(*TWO, 3, 2), TypedUpdate(*noted, 1, 2)]
        client.maintain(SHARD)
    for attempt in (
        lambda: old_reader.snapshot(2),
        lambda: old_reader.subscribe(2),
        lambda: listen.next(0),
        lambda: TypedReader(client, SHARD, Orders(1), purpose="old"),
    ):
        with pytest.raises(VersionTooNew, match="codec orders v2, but this process has version 1"):
            attempt()


class Careless(Orders):
    """A codec with a bug, chosen by what it is given."""

    def encode(self, keys: Sequence[tuple[str, int]], values: Sequence[Order]) -> tuple[pa.Array, pa.Array]:
        first, second = super().encode(keys, values)
        match keys[0][0]:
            case "short":
                return first, second[:-1]
            case "text":
                return first.cast(pa.string()), second
            case "null":
                return first, pa.nulls(len(second), pa.binary())
        return first, second

    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[tuple[str, int]], Sequence[Order]]:
        first, second = super().decode(keys, values)
        return first[1:], second


def test_a_codec_that_fails_is_told_from_what_it_was_given(stores: Stores) -> None:
    client = stores.open()
    writer = TypedWriter(client, SHARD, Careless(), purpose="test")
    writer.compare_and_append([TypedUpdate(("ok", 1), Order(Decimal(1)))], 0, 1)
    before = stores.stored()
    for bad, words in (
        ("short", "encoded 1 rows into 0"),
        ("text", "binary arrays without nulls"),
        ("null", "binary arrays without nulls"),
    ):
        with pytest.raises(BadInput, match=words):
            writer.compare_and_append([TypedUpdate((bad, 1), Order(Decimal(1)))], 1, 2)
    with pytest.raises(BadInput, match="can't encode the given rows: TypeError") as failed:
        writer.compare_and_append([TypedUpdate(("x", 1), "secret")], 1, 2)  # type: ignore[arg-type]
    assert "secret" not in str(failed.value)
    assert stores.stored() == before
    with (
        TypedReader(client, SHARD, Careless(), purpose="test") as reader,
        pytest.raises(BadInput, match="did not decode 1 rows"),
    ):
        [*reader.snapshot(0)]


def test_bytes_that_no_codec_made_are_corrupt(stores: Stores) -> None:
    client = stores.open()
    raw = client.writer(SHARD, Orders().schema, purpose="test")
    raw.compare_and_append([{"key": b"de/1", "value": b"not JSON"}], 0, 1)
    with (
        TypedReader(client, SHARD, Orders(), purpose="test") as reader,
        pytest.raises(CorruptBlob, match="bytes of codec orders v1 or older") as corrupt,
    ):
        [*reader.snapshot(0)]
    assert "not JSON" not in str(corrupt.value)


def test_a_codec_needs_a_name_and_a_version() -> None:
    for version in (0, -1, 2**32):
        with pytest.raises(BadInput, match="expected 1 to 2"):
            Orders(version).schema  # noqa: B018
    nameless = Orders()
    nameless.name = ""
    with pytest.raises(BadInput, match="needs a name"):
        nameless.schema  # noqa: B018
