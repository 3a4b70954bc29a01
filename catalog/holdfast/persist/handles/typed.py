"""Handles for Python values: a codec on top of the handles of one shard.

They add only the codec to a `WriteHandle` or `ReadHandle`. Frontiers, holds and outcomes are the same. Each
read checks the shard's codec again, because the shard may have moved to a newer version.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, Self, TypeVar

import pyarrow as pa

from holdfast.persist.handles.codec import Codec, check_codec, decode, encode
from holdfast.persist.handles.read import Listen, Progress, open_readers
from holdfast.persist.handles.write import open_writer
from holdfast.persist.multi_write import Prepared, multi_write
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.session import HasSession

K = TypeVar("K")
V = TypeVar("V")


class TypedUpdate(NamedTuple, Generic[K, V]):
    """Adds `diff` copies of (key, value) at `time`. For a writer, None means the upper that it expects."""

    key: K
    value: V
    diff: int = 1
    time: int | None = None


class TypedWriter(Generic[K, V]):
    """Appends Python values to one shard. Thread-safe. `handle` is the underlying writer.

    Opening it raises the errors of `PersistClient.writer`. It raises `CodecMismatch` if the shard has another
    codec, or never had this version of it.
    """

    def __init__(self, client: HasSession, shard_id: str, codec: Codec[K, V], *, purpose: str) -> None:
        self.codec = codec
        self.handle = open_writer(client.session, shard_id, codec.schema, purpose=purpose)
        self._session = client.session

    def compare_and_append(
        self, updates: Iterable[TypedUpdate[K, V]], expected_upper: int, new_upper: int
    ) -> None:
        """See `WriteHandle.compare_and_append`; `BadInput` also if the codec can't encode an update."""
        multi_write(self._session, [self.prepare_append(updates, expected_upper, new_upper)])

    def prepare_append(
        self, updates: Iterable[TypedUpdate[K, V]], expected_upper: int, new_upper: int
    ) -> Prepared:
        """Prepare an append for `multi_write`."""
        given = list(updates)
        keys, values = encode(self.codec, [each.key for each in given], [each.value for each in given])
        times = [expected_upper if each.time is None else each.time for each in given]
        table = pa.table(
            {
                "key": keys,
                "value": values,
                TIME: pa.array(times, pa.uint64()),
                DIFF: pa.array([each.diff for each in given], pa.int64()),
            }
        )
        return self.handle.prepare_append(table if given else None, expected_upper, new_upper)

    def upper(self) -> int:
        """Return the upper. Linearized."""
        return self.handle.upper()

    def seal(self, new_upper: int) -> None:
        """See `WriteHandle.seal`."""
        self.handle.seal(new_upper)

    def close(self) -> None:
        """Refuse all further work."""
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TypedReader(Generic[K, V]):
    """Reads Python values from one shard. Thread-safe. `handle` is the underlying reader.

    When it is opened, and with each read, it raises `CodecMismatch` if the shard has another codec, and
    `VersionTooNew` if the shard has a newer version of this codec.
    """

    def __init__(self, client: HasSession, shard_id: str, codec: Codec[K, V], *, purpose: str) -> None:
        self.codec = codec
        (self.handle,) = open_readers(client.session, [shard_id], purpose=purpose)
        try:
            self._check(self.handle.schema)
        except Exception:
            self.handle.close()
            raise

    def snapshot(self, as_of: int) -> Iterator[TypedUpdate[K, V]]:
        """Yield the contents at `as_of`, in the order of the keys' bytes.

        Raises like `ReadHandle.snapshot`.
        """
        snapshot = self.handle.snapshot(as_of)
        self._check(snapshot.schema)
        return (update for batch in snapshot for update in self._decoded(pa.table(batch), as_of))

    def listen(self, as_of: int) -> "TypedListen[K, V]":
        """Listen to all changes at times after `as_of`. Raises the same errors as `ReadHandle.listen`."""
        return TypedListen(self, self.handle.listen(as_of))

    def subscribe(self, as_of: int) -> "TypedListen[K, V]":
        """Return the contents at `as_of`, then all changes after it. Raises like `ReadHandle.subscribe`."""
        self._check(self.handle.schema)
        return TypedListen(self, self.handle.subscribe(as_of))

    def decoded(self, updates: pa.Table) -> list[TypedUpdate[K, V]]:
        """Decode the updates of a listen."""
        # The newest schema that this process knows. It is not older than the schema of the updates.
        self._check(self.handle.schema)
        return self._decoded(updates, None)

    def _decoded(self, rows: pa.Table, time: int | None) -> list[TypedUpdate[K, V]]:
        keys, values = (rows.column(name).combine_chunks() for name in ("key", "value"))
        decoded = decode(self.codec, keys, values, shard=self.handle.shard_id)
        times = [time] * rows.num_rows if time is not None else rows.column(TIME).to_pylist()
        diffs = rows.column(DIFF).to_pylist()
        return [TypedUpdate(*update) for update in zip(*decoded, diffs, times, strict=True)]

    def _check(self, schema: Schema) -> None:
        check_codec(self.codec, schema, shard=self.handle.shard_id)

    def close(self) -> None:
        """Release the lease."""
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TypedListen(Generic[K, V]):
    """A `Listen` that returns `TypedUpdate` values instead of tables. Not thread-safe.

    If it raises an error of `TypedReader`, the updates that it was about to return are lost. Open another
    one.
    """

    def __init__(self, reader: TypedReader[K, V], listen: Listen) -> None:
        self._reader = reader
        self._listen = listen

    def next(self, timeout: float | None = None) -> list[TypedUpdate[K, V] | Progress]:
        """Return the next updates, and then the progress after them. Raises the errors of `Listen.next`."""
        events: list[TypedUpdate[K, V] | Progress] = []
        for event in self._listen.next(timeout):
            events += [event] if isinstance(event, Progress) else self._reader.decoded(event.table)
        return events
