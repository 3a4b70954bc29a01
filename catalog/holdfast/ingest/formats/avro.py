"""Avro: each message is one record, whose fields are columns by name.

- With a schema registry, a message begins with a byte of zero and the id of its schema. Without one, all
  messages have the schema of a file.
- A file is an object container file. It has its schema in its header.
- Nested values (records, arrays, maps, and unions of several types) go as JSON text into a column of type
  string. Other fields must have the type of their column: a schema that doesn't fit makes its messages bad.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, cast

import fastavro
import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.ingest.formats.avro_blocks import CutFileError, TooLargeBlock, UnpackedFile
from holdfast.ingest.formats.avro_records import CONVERSION, AvroRecords, TooManyDigits, as_table
from holdfast.ingest.formats.avro_schema import UnreadableSchema, parse_schema, way_of, ways_of
from holdfast.ingest.formats.decoded import MOST_BAD, BadRecord, Decoded, TooManyBad, decode_good, joined
from holdfast.ingest.formats.files import WholeFiles
from holdfast.ingest.registry import Refusal
from holdfast.ingest.schema_texts import FILE, SchemaTexts

_HEAD: Final = 5
_CHUNK_ROWS: Final = 10_000
_CHUNK_BYTES: Final = 64 << 20
_HEADER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
_MAGIC: Final = b"Obj\x01"
_SCHEMA: Final = "avro.schema"
_CODEC: Final = "avro.codec"


class Layout:
    """How records with one schema become rows."""

    def __init__(self, text: str, columns: pa.Schema, *, bare: bool = False) -> None:
        schema = parse_schema(text)
        self._columns = columns
        self._bare = ""
        if schema.kind == "record" and isinstance(schema.inner, dict):
            self._ways = ways_of(schema.fields, columns)
        elif bare and len(columns) == 1:
            self._bare = columns[0].name
            self._ways = {self._bare: way_of(schema, columns[0])}
        else:
            raise UnreadableSchema(f"it is of type {schema.kind}, and not a record")
        self.schema = schema
        self.records = AvroRecords(schema)

    def table(self, records: Sequence[Any]) -> pa.Table:
        """The rows of records. Raises the errors of `CONVERSION`."""
        if self._bare:
            records = [{self._bare: each} for each in records]
        return as_table(records, self._ways, self._columns)


class Avro:
    """Decodes messages into rows of these columns.

    Messages with the `head` that names a schema are those of a registry. If there is one column, they may be
    `bare` values without a record.
    """

    whole = False

    def __init__(
        self,
        columns: pa.Schema,
        texts: SchemaTexts,
        *,
        head: bool,
        bare: bool = False,
        most_bad: int = MOST_BAD,
    ) -> None:
        self._bare = bare
        self._columns = columns
        self._texts = texts
        self._head = head
        self._most_bad = most_bad
        self._layouts: dict[str, Layout | str] = {}

    def check(self) -> None:
        """Raise `BadInput` if the schema of the file can't fill the columns."""
        if not self._head and isinstance(found := self._layout(FILE), str):
            raise BadInput(f"source.format.avro.schemaFile can't be used: {found}")

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode messages. One that is not exactly one record is a bad record."""
        values = messages["value"]
        begins, ends, stream = _contents(values)
        groups, bad = self._by_schema(values, begins, ends, stream)
        self._texts.require([id_ for id_, _ in groups])
        good: list[pa.Table] = []
        index: list[np.ndarray] = []
        for id_, members in groups:
            rows, numbers, failed = self._decoded(id_, members, begins, ends, stream)
            good.append(rows)
            index.append(members[numbers])
            bad += [(int(members[at]), reason) for at, reason in failed]
            if len(bad) > self._most_bad:
                raise TooManyBad(*min(bad))
        positions = messages["position"]
        told = [BadRecord(at, positions[at].as_py(), "decode", reason) for at, reason in sorted(bad)]
        if len(told) > self._most_bad:
            raise TooManyBad(told[0].index, told[0].reason)
        return Decoded(*_in_order(good, index, self._columns), told)

    def _by_schema(
        self, values: pa.Array, begins: np.ndarray, ends: np.ndarray, stream: io.BytesIO
    ) -> tuple[list[tuple[str, np.ndarray]], list[tuple[int, str]]]:
        """The messages of each schema id, and those without one with the reason."""
        if not self._head:
            full = values.is_valid().to_numpy(zero_copy_only=False)
            bad = [(int(at), "the message is empty") for at in np.flatnonzero(~full)]
            return ([(FILE, np.flatnonzero(full))] if full.any() else []), bad
        contents = np.frombuffer(stream.getbuffer(), np.uint8)
        longer = np.flatnonzero(ends - begins >= _HEAD)
        heads = contents[begins[longer, None] + np.arange(_HEAD)].astype(np.int64)
        wire = heads[:, 0] == 0
        ids = heads[:, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        at_ = longer[wire]
        found, inverse = np.unique(ids[wire], return_inverse=True)
        named = np.zeros(len(values), bool)
        named[at_] = True
        bad = [
            (int(at), "the message is empty" if begins[at] == ends[at] else "the message has no schema id")
            for at in np.flatnonzero(~named)
        ]
        return [(str(id_), at_[inverse == number]) for number, id_ in enumerate(found.tolist())], bad

    def _decoded(
        self, id_: str, members: np.ndarray, begins: np.ndarray, ends: np.ndarray, stream: io.BytesIO
    ) -> tuple[pa.Table, np.ndarray, list[tuple[int, str]]]:
        """The rows of messages with one schema, their numbers, and the bad ones with the reason."""
        layout = self._layout(id_)
        if isinstance(layout, str):
            return (
                self._columns.empty_table(),
                np.empty(0, np.int64),
                [(at, layout) for at in range(len(members))],
            )
        head = _HEAD if self._head else 0
        records, numbers, bad = layout.records.read(
            stream, (begins[members] + head).tolist(), ends[members].tolist()
        )
        good, failed = decode_good(
            len(records), lambda begin, end: layout.table(records[begin:end]), CONVERSION, self._most_bad
        )
        rows, kept = joined(good, self._columns)
        read = np.array(numbers, np.int64)
        return rows, read[kept], [*bad, *((numbers[at], reason) for at, reason in failed)]

    def _layout_of(self, text: str) -> Layout:
        return Layout(text, self._columns, bare=self._bare)

    def _layout(self, id_: str) -> Layout | str:
        """How messages with this schema become rows, or why they don't."""
        try:
            text = self._texts.use(id_)
        except Refusal as refusal:
            return str(refusal)
        found = self._layouts.get(id_)
        if found is None:
            try:
                found = self._layout_of(text)
            except UnreadableSchema as error:
                found = f"its schema {'' if id_ == FILE else id_ + ' '}can't be used: {error}"
            self._layouts[id_] = found
        return found


class AvroFiles(WholeFiles):
    """Decodes object container files."""

    def _read(self, file: pa.Buffer) -> tuple[pa.Table, list[tuple[int, str]]]:
        tables = [pa.schema([each.with_nullable(True) for each in self._columns]).empty_table()]
        failed: list[tuple[int, str]] = []
        before, size = 1, 0
        try:
            layout, found = self._opened(file)
            for records in found:
                good, bad = decode_good(
                    len(records),
                    lambda begin, end, part=records: layout.table(part[begin:end]),  # type: ignore[misc]
                    CONVERSION,
                    self._most_bad,
                )
                tables += [table for _, table in good]
                failed += [(before + at, reason) for at, reason in bad]
                before += len(records)
                size += sum(table.nbytes for _, table in good)
                self._check(size)
        except UnreadableSchema as error:
            raise ValueError(f"its schema can't be used: {error}") from None
        return pa.concat_tables(tables), failed

    def _opened(self, file: pa.Buffer) -> tuple[Layout, Iterator[list[Any]]]:
        """Open a file so that fastavro reads it with the rewritten schema. Returns its records in chunks."""
        stream = io.BytesIO(file)
        try:
            header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
        except Exception:  # noqa: BLE001 - fastavro raises almost anything for such bytes
            raise ValueError("it is no object container file, or is cut off in its header") from None
        if header["magic"] != _MAGIC:
            raise ValueError("it is no object container file")
        schema = header["meta"].get(_SCHEMA, b"").decode()
        layout = Layout(schema, self._columns)
        if not layout.schema.takes_bytes:
            raise UnreadableSchema("its records take no bytes")
        meta = {_SCHEMA: json.dumps(layout.schema.inner).encode()}
        head = io.BytesIO()
        fastavro.schemaless_writer(head, _HEADER, {**header, "meta": meta})
        codec = header["meta"].get(_CODEC, b"null").decode(errors="replace")
        unpacked = UnpackedFile(head.getvalue(), stream.getbuffer()[stream.tell() :], codec)
        return layout, _chunks(unpacked)


def _chunks(file: UnpackedFile) -> Iterator[list[Any]]:
    """Some records of a file at a time. Raises `ValueError` for one that can't be read."""
    chunk: list[Any] = []
    before = file.bytes
    try:
        for record in fastavro.reader(cast("IO[bytes]", file)):
            chunk.append(record)
            if len(chunk) >= _CHUNK_ROWS or file.bytes - before >= _CHUNK_BYTES:
                yield chunk
                chunk, before = [], file.bytes
    except (TooManyDigits, TooLargeBlock) as error:
        raise ValueError(f"its records can't be read: {error}") from None
    except Exception as error:  # noqa: BLE001 - as above
        why = "ends too early" if isinstance(error, EOFError | CutFileError) else "is damaged"
        raise ValueError(f"its records can't be read: the file {why}") from None
    if chunk:
        yield chunk


def _contents(values: pa.Array) -> tuple[np.ndarray, np.ndarray, io.BytesIO]:
    """Where the messages begin and end in a stream of all of them."""
    offsets = np.frombuffer(values.buffers()[1], "<i4")[values.offset : values.offset + len(values) + 1]
    contents = values.buffers()[2]
    if contents is None or not len(offsets):
        empty = np.zeros(len(values), np.int64)
        return empty, empty, io.BytesIO()
    stream = io.BytesIO(memoryview(contents)[offsets[0] : offsets[-1]])
    offsets = offsets.astype(np.int64) - int(offsets[0])
    return offsets[:-1], offsets[1:], stream


def _in_order(
    tables: Sequence[pa.Table], index: Sequence[np.ndarray], columns: pa.Schema
) -> tuple[pa.Table, np.ndarray]:
    """The rows in the order of their messages."""
    if not tables:
        return columns.empty_table(), np.empty(0, np.int64)
    if len(tables) == 1:
        return tables[0], index[0]
    numbers = np.concatenate(index)
    order = np.argsort(numbers, kind="stable")
    nullable = pa.schema([each.with_nullable(True) for each in columns])
    whole = pa.concat_tables([each.cast(nullable) for each in tables])
    return whole.take(pa.array(order)), numbers[order]
