"""Handles that speak Python values: a codec between a caller and the handles of one shard.

What they add to a `WriteHandle` or `ReadHandle` is the codec alone: frontiers, holds and outcomes are theirs.
The shard's codec is checked again with each read, for the shard may have moved to a newer version meanwhile.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, Self, TypeVar

import pyarrow as pa

from holdfast.persist.handles.codec import Codec, check_codec, decode, encode
from holdfast.persist.handles.read import Listen, Progress, open_reader
from holdfast.persist.handles.write import open_writer
from holdfast.persist.prepared import Prepared
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.session import HasSession

K = TypeVar("K")
V = TypeVar("V")


class TypedUpdate(NamedTuple, Generic[K, V]):
    """`diff` copies of (key, value) more at a time; a writer's `time` None is the upper that it expects."""

    key: K
    value: V
    diff: int = 1
    time: int | None = None


class TypedWriter(Generic[K, V]):
    """Appends Python values to one shard. Thread-safe; `handle` is the writer below.

    Opening raises as `PersistClient.writer` does: `CodecMismatch` where the shard has another codec, or never
    had this version of it.
    """

    def __init__(self, client: HasSession, shard_id: str, codec: Codec[K, V], *, purpose: str) -> None:
        self.codec = codec
        self.handle = open_writer(client.session, shard_id, codec.schema, purpose=purpose)
        self._session = client.session

    def compare_and_append(
        self, updates: Iterable[TypedUpdate[K, V]], expected_upper: int, new_upper: int
    ) -> None:
        """As `WriteHandle.compare_and_append`; `BadInput` where the codec can't encode an update too."""
        self._session.multi_write([self.prepare_append(updates, expected_upper, new_upper)])

    def prepare_append(
        self, updates: Iterable[TypedUpdate[K, V]], expected_upper: int, new_upper: int
    ) -> Prepared:
        """An append for `multi_write`."""
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
        """The upper, linearized."""
        return self.handle.upper()

    def seal(self, new_upper: int) -> None:
        """As `WriteHandle.seal`."""
        self.handle.seal(new_upper)

    def close(self) -> None:
        """Refuse all further work."""
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TypedReader(Generic[K, V]):
    """Reads Python values from one shard. Thread-safe; `handle` is the reader below.

    Raises, when it is opened and with each read: `CodecMismatch` where the shard has another codec,
    `VersionTooNew` where it has moved to a newer version of this one.
    """

    def __init__(self, client: HasSession, shard_id: str, codec: Codec[K, V], *, purpose: str) -> None:
        self.codec = codec
        self.handle = open_reader(client.session, shard_id, purpose=purpose)
        try:
            self._check(self.handle.schema)
        except Exception:
            self.handle.close()
            raise

    def snapshot(self, as_of: int) -> Iterator[TypedUpdate[K, V]]:
        """The contents at `as_of`, streamed in the order of the keys' bytes. Raises as a `ReadHandle`."""
        snapshot = self.handle.snapshot(as_of)
        self._check(snapshot.schema)
        return (update for batch in snapshot for update in self._decoded(pa.table(batch), as_of))

    def listen(self, as_of: int) -> "TypedListen[K, V]":
        """All changes at times after `as_of`. Raises as `ReadHandle.listen`."""
        return TypedListen(self, self.handle.listen(as_of))

    def subscribe(self, as_of: int) -> "TypedListen[K, V]":
        """The contents at `as_of`, then all changes after it. Raises as `ReadHandle.subscribe`."""
        self._check(self.handle.schema)
        return TypedListen(self, self.handle.subscribe(as_of))

    def decoded(self, updates: pa.Table) -> list[TypedUpdate[K, V]]:
        """Updates of a listen as Python values."""
        # The newest schema that this process knows: not older than the one of the updates.
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
        """Give up the lease."""
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TypedListen(Generic[K, V]):
    """As `Listen`, with `TypedUpdate` values in place of tables. Not thread-safe.

    One that has raised what `TypedReader` does has lost what it was about to give: open another.
    """

    def __init__(self, reader: TypedReader[K, V], listen: Listen) -> None:
        self._reader = reader
        self._listen = listen

    def next(self, timeout: float | None = None) -> list[TypedUpdate[K, V] | Progress]:
        """The next updates, then the progress after them. Raises as `Listen.next` does."""
        events: list[TypedUpdate[K, V] | Progress] = []
        for event in self._listen.next(timeout):
            events += [event] if isinstance(event, Progress) else self._reader.decoded(event.table)
        return events
