"""A topic of Kafka. Its partitions are those of the source, and offsets are positions.

- The name of the source has the cluster's id, and the identity of a partition is the topic's id. A topic that
  was deleted and created again has another id.
- The first step binds where each partition begins, without messages. So `start` is resolved once, and a crash
  doesn't change it.
- A range ends with the last stable offset. It is read to its end by the consumer's position, because
  transactions and compaction leave gaps.
- The last message that is bound is read again before those that follow it, as long as Kafka has it. If it is
  another one, the log has lost messages, and has given their offsets to others.
- A partition that is added waits until the others have passed the ends at which it was first seen. So
  messages with one key that moved to it come after those before them. An instance that starts later waits for
  later ends.
- An error of a read never means that messages are gone: a broker that starts can respond with the same one.
  The topic's id and the low watermark decide. If the messages are there, the read goes on.
- What is bound is committed to a consumer group, which nobody joins. If the group is committed beyond the
  bindings when an instance begins, the location has lost bindings, and Kafka may have deleted the messages.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    IsolationLevel,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from holdfast.errors import BadInput, HoldfastError, SourceChanged, SourceStalled
from holdfast.ingest.checksum import last_of
from holdfast.ingest.source import MESSAGES, Binding, LastMessage, Piece, Range
from holdfast.ingest.sources.kafka_client import (
    END,
    PATIENCE_S,
    PAUSE_S,
    POLL_S,
    REQUEST_S,
    KafkaClient,
    UnknownTopic,
    is_passing,
    is_unsure,
)
from holdfast.ingest.spec import KafkaSpec
from holdfast.ingest.waits import Waits

_MISSING_S: Final = 2.0
"""For so long a topic that the broker doesn't know may only be new."""
_DELETED_S: Final = 10.0
"""For so long a topic that was there may only be unknown to a broker that has just started."""
_LEADERS_S: Final = 1.0
"""So long librdkafka may take by itself until it looks for the leaders of partitions."""
_PIECE_BYTES: Final = 8 << 20
_PIECE_ROWS: Final = 20_000
_FIRST_ROWS: Final = 100

_T = TypeVar("_T")


class Kafka:
    """The source. `group` is the consumer group that gets the offsets of what is bound."""

    def __init__(self, spec: KafkaSpec, group: str, waits: Waits) -> None:
        self._spec = spec
        self._group = group
        self._shown = waits
        self._topic_id = ""
        self._is_compared = False
        self._durable: Mapping[str, Binding] = {}
        self._committed: dict[str, int] = {}
        self._first_seen: dict[str, dict[str, int]] = {}
        self._client = KafkaClient(spec, group, waits)
        try:
            (cluster,) = self._client.asked(
                f"connect to Kafka at {spec.bootstrap_servers}",
                lambda: [self._client.admin.describe_cluster(request_timeout=REQUEST_S)],
            )
            self._cluster_id = str(cluster.cluster_id)
            self._look()
        except BaseException:
            self.close()
            raise
        self._client.patience_s = PATIENCE_S

    @property
    def name(self) -> str:
        """The cluster's id and the topic's name."""
        return f"kafka://{self._cluster_id}/{self._spec.topic}"

    @property
    def _where(self) -> str:
        return f"topic {self._spec.topic} at {self._spec.bootstrap_servers}"

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return what is committed in Kafka and not bound.

        Before anything of this topic is bound, that is where each partition begins. The messages wait.
        """
        partitions, identity = self._look()
        lows = self._offsets(partitions, OffsetSpec.earliest())
        ends = self._offsets(partitions, OffsetSpec.latest())
        # Bindings with another identity are those of a topic that had this name before.
        current = {name: each for name, each in bound.items() if each.identity == identity}
        if not self._spec.new_epoch:
            if bound and not current:
                raise self._recreated(bound, identity)
            self._compare(current, lows)
        is_first, self._is_compared = not self._is_compared, True
        self._acknowledge()
        if not current:
            starts = lows if bound else self._starts(lows, ends)
            empty = [Range(each, starts[each], starts[each], identity) for each in lows]
            rest = [Range(each, starts[each], ends[each], identity, waits=True) for each in lows]
            return empty + [each for each in rest if each.end > each.begin]
        begins = {each: self._begin(each, current.get(each), lows[each], ends[each]) for each in lows}
        after = {each: _there(current.get(each), lows[each]) for each in lows}
        if is_first:
            self._check_ends(after, current, ends)
        return [
            Range(
                each,
                begins[each],
                ends[each],
                identity,
                waits=self._waits(each, current, begins, ends),
                after=after[each],
            )
            for each in lows
            if ends[each] > begins[each] or (each in current and current[each].position != begins[each])
        ]

    def _look(self) -> tuple[list[int], str]:
        """The topic's partitions and id."""
        topics = TopicCollection([self._spec.topic])
        (topic,) = self._known(
            lambda: self._client.asked(
                f"find {self._where}",
                lambda: list(self._client.admin.describe_topics(topics, request_timeout=REQUEST_S).values()),
            )
        )
        topic_id = str(topic.topic_id)
        if topic_id != self._topic_id:
            self._first_seen = {}
            self._topic_id = topic_id
        return sorted(each.id for each in topic.partitions), topic_id

    def _known(self, ask: Callable[[], _T]) -> _T:
        """The result of a request. Repeats it for a while if the broker doesn't know the topic."""
        began_s = time.monotonic()
        while True:
            try:
                found = ask()
            except UnknownTopic:
                if time.monotonic() > began_s + (_DELETED_S if self._topic_id else _MISSING_S):
                    raise self._missing() from None
                self._shown.away(self._where, "the brokers don't know it", began_s)
                self._shown.pause(PAUSE_S)
            else:
                self._shown.back(self._where)
                return found

    def _missing(self) -> HoldfastError:
        what = f"{self._where} doesn't exist"
        if self._topic_id:
            return SourceStalled(
                f"{what} any more", hint="if it is created again, its messages are others: see onReset"
            )
        return BadInput(what, hint="create the topic, or correct source.kafka.topic")

    def _offsets(self, partitions: Sequence[int], which: OffsetSpec, *, least: int = 0) -> dict[str, int]:
        wanted = {TopicPartition(self._spec.topic, each): which for each in partitions}
        what = f"find the offsets of {self._where}"
        deadline = time.monotonic() + self._client.patience_s
        while True:
            found = self._known(
                lambda: self._client.asked(
                    what,
                    lambda: list(
                        self._client.admin.list_offsets(
                            wanted,
                            isolation_level=IsolationLevel.READ_COMMITTED,
                            request_timeout=REQUEST_S,
                        ).values()
                    ),
                )
            )
            # A broker that has just started may answer with no offset, and without an error.
            if all(result.offset >= least for result in found):
                return {str(each): int(result.offset) for each, result in zip(partitions, found, strict=True)}
            if time.monotonic() > deadline:
                raise self._client.failure(what, None)
            self._shown.pause(PAUSE_S)

    def _recreated(self, bound: Mapping[str, Binding], identity: str) -> SourceStalled:
        ends = ", ".join(f"partition {name} up to {each.position}" for name, each in sorted(bound.items()))
        old = next(iter(bound.values())).identity
        return SourceStalled(
            f"{self._where} was deleted and created again: its id is {identity}, and the collection has"
            f" messages of the topic {old} ({ends})",
            hint="feed another collection from it; or set onReset: NewEpoch, so that the messages of the new"
            " topic follow those of the old one, whose rest is lost",
        )

    def _compare(self, bound: Mapping[str, Binding], lows: Mapping[str, int]) -> None:
        """Raise `SourceStalled` if the group has offsets beyond the bindings."""
        if self._is_compared:
            return
        wanted = [TopicPartition(self._spec.topic, int(each)) for each in lows]
        found = self._known(
            lambda: self._client.retried(
                f"read the offsets of consumer group {self._group}",
                lambda: self._client.consumer.committed(wanted, timeout=REQUEST_S),
            )
        )
        for each in found:
            binding = bound.get(str(each.partition))
            position = 0 if binding is None else binding.position
            if each.offset > position or (each.offset >= 0 and not bound):
                raise SourceStalled(
                    f"consumer group {self._group} has committed offset {each.offset} of partition"
                    f" {each.partition} of {self._where}, but the collection has its messages only up to"
                    f" {position}: the location was restored to an earlier state, or something else uses the"
                    f" group. Messages {position} to {each.offset - 1} may be lost (the partition begins at"
                    f" {lows[str(each.partition)]})",
                    hint="restore a newer state; or set the offsets of the group to those that 'holdfast"
                    " collection offsets' shows, if the messages are still there; or set onReset: NewEpoch to"
                    " go on with what is there",
                )

    def _starts(self, lows: Mapping[str, int], ends: Mapping[str, int]) -> Mapping[str, int]:
        """Where each partition begins."""
        start = self._spec.start
        if start == "Earliest":
            return lows
        if start == "Latest":
            return ends
        if isinstance(start, int):
            # -1: no message is so late.
            found = self._offsets([int(each) for each in lows], OffsetSpec.for_timestamp(start), least=-1)
            return {each: ends[each] if offset < 0 else offset for each, offset in found.items()}
        assert isinstance(start, Mapping)
        given = {str(partition): offset for partition, offset in start.items()}
        for partition, offset in given.items():
            if partition not in lows:
                raise BadInput(
                    f"source.kafka.start.offsets has partition {partition}, but {self._where} has partitions"
                    f" 0 to {len(lows) - 1}"
                )
            if not lows[partition] <= offset <= ends[partition]:
                raise BadInput(
                    f"source.kafka.start.offsets has {offset} for partition {partition}, but {self._where}"
                    f" has offsets {lows[partition]} to {ends[partition]} there"
                )
        return {**lows, **given}

    def _begin(self, partition: str, binding: Binding | None, low: int, end: int) -> int:
        """The next position to read. Raises `SourceStalled` if that is gone and nobody allows a gap."""
        position = 0 if binding is None else binding.position
        if position > end:
            raise self._lost(partition, position, end)
        if position < low and not self._spec.new_epoch:
            raise SourceStalled(
                f"messages {position} to {low - 1} of partition {partition} of {self._where} were deleted"
                " before they were read",
                hint="set onReset: NewEpoch to go on without them, and give the topic a longer retention",
            )
        return max(position, low)

    def _lost(self, partition: str, position: int, end: int) -> SourceStalled:
        return SourceStalled(
            f"partition {partition} of {self._where} ends at {end}, but the collection has its messages"
            f" up to {position}: Kafka has lost messages, and gives their offsets to others",
            hint="feed another collection from what is there",
        )

    def _check_ends(
        self, after: Mapping[str, LastMessage | None], bound: Mapping[str, Binding], ends: Mapping[str, int]
    ) -> None:
        """Look at the last messages of partitions with nothing new. Others are read from theirs on."""
        left = {
            int(name): last for name, last in after.items() if last and ends[name] == bound[name].position
        }
        self._assign({each: last.position for each, last in left.items()})
        try:
            began_s = time.monotonic()
            while left:
                failed = False
                for each in self._client.consumer.consume(_FIRST_ROWS, POLL_S):
                    error = each.error()
                    # The first message, or the end, shows what is there now. Later ones say nothing.
                    if each.partition() in left and (error is None or error.code() == END):
                        self._check_same(each, left.pop(each.partition()))
                    failed = failed or is_unsure(error)
                if time.monotonic() - began_s > self._client.patience_s:
                    raise self._client.failure(f"read the last messages of {self._where}", None)
                self._client.waits(began_s)
                self._shown.pause(0)
                if failed:
                    lows = self._offsets(list(left), OffsetSpec.earliest()) if left else {}
                    left = {each: last for each, last in left.items() if last.position >= lows[str(each)]}
                    self._assign({each: last.position for each, last in left.items()})
            self._client.responds()
        finally:
            self._client.consumer.unassign()

    def _assign(self, positions: Mapping[int, int]) -> None:
        """Read from these positions on."""
        # Otherwise a timer of librdkafka finds the leaders of the partitions. If this fails, it still does.
        if positions:
            with suppress(KafkaException):
                self._client.consumer.list_topics(self._spec.topic, timeout=_LEADERS_S)
        self._client.consumer.assign(
            [TopicPartition(self._spec.topic, each, position) for each, position in positions.items()]
        )

    def _check_same(self, message: Message, last: LastMessage | None) -> None:
        """Raise `SourceStalled` if there is another message in the place of the last one.

        If compaction has deleted the last one, nothing shows what was there.
        """
        is_there = last is not None and message.error() is None and message.offset() == last.position
        if is_there and last_of(_batch([message])) != last:
            raise SourceStalled(
                f"message {message.offset()} of partition {message.partition()} of {self._where} is not the"
                " one that the collection has: Kafka has lost messages, and has given their offsets to others"
                " (a broker has older data than before, or an election of a leader was unclean)",
                hint="feed another collection from what is there",
            )

    def _waits(
        self, partition: str, bound: Mapping[str, Binding], begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> bool:
        """Whether other partitions have messages from before this one was added."""
        if partition in bound:
            return False
        older = {each: ends[each] for each in begins if each in bound}
        until = self._first_seen.setdefault(partition, older)
        return any(begins[each] < end for each, end in until.items())

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Read the messages of a range. Those of transactions that were aborted are left out."""
        partition, reached, most = int(wanted.partition), wanted.begin, _FIRST_ROWS
        if reached == wanted.end:
            self._check_unchanged(wanted)
            return
        first = reached if wanted.after is None else wanted.after.position
        self._assign({partition: first})
        try:
            moved_s = time.monotonic()
            while reached < wanted.end:
                got = self._client.consumer.consume(min(most, wanted.end - reached), POLL_S)
                before = reached
                if reached == wanted.begin and wanted.after is not None:
                    for each in got:
                        self._check_same(each, wanted.after)
                    got = [each for each in got if each.error() is not None or each.offset() >= reached]
                unsure = next((error for each in got if is_unsure(error := each.error())), None)
                kept, reached = self._kept(got, wanted, reached)
                if unsure is not None:
                    position = first if reached == wanted.begin else reached
                    self._check_there(wanted, position)
                    # The consumer has given the partition up.
                    self._assign({partition: position})
                    self._shown.pause(PAUSE_S)
                if reached == before:
                    if time.monotonic() - moved_s > self._client.patience_s:
                        raise self._client.failure(f"read partition {partition} of {self._where}", unsure)
                    self._client.waits(moved_s, unsure)
                    self._shown.pause(0)
                    continue
                moved_s = time.monotonic()
                self._client.responds()
                # What was read before this look is of the topic that `wanted` names.
                self._check_unchanged(wanted)
                if kept:
                    messages = _batch(kept)
                    fitting = _PIECE_BYTES * len(kept) // max(messages.nbytes, 1)
                    most = max(1, min(fitting, _PIECE_ROWS, 16 * most))
                    yield Piece(messages, reached, last=last_of(messages))
        finally:
            self._client.consumer.unassign()

    def _kept(self, got: Sequence[Message], wanted: Range, reached: int) -> tuple[Sequence[Message], int]:
        """The messages of the range, and the position after them and after gaps."""
        # `map` with a method of the class runs no bytecode for a message.
        errors = list(map(Message.error, got))
        failed = [each for each, error in zip(got, errors, strict=True) if error is not None]
        good = [each for each in got if each.error() is None] if failed else got
        kept = good
        # Offsets ascend in a partition.
        if good and not (reached <= good[0].offset() and good[-1].offset() < wanted.end):
            kept = [each for each in good if reached <= each.offset() < wanted.end]
        if len(kept) < len(good):
            reached = wanted.end
        elif kept:
            reached = kept[-1].offset() + 1
        for each in failed:
            error = each.error()
            assert error is not None
            if error.code() == END:
                reached = max(reached, min(each.offset() or 0, wanted.end))
            elif not is_unsure(error) and not is_passing(error):
                raise self._client.failure(f"read partition {wanted.partition} of {self._where}", error)
        return kept, reached

    def _check_there(self, wanted: Range, position: int) -> None:
        """Raise `SourceChanged` if messages after a position were deleted, `SourceStalled` if lost."""
        self._check_unchanged(wanted)
        partition, name = [int(wanted.partition)], wanted.partition
        if (low := self._offsets(partition, OffsetSpec.earliest())[name]) > position:
            raise SourceChanged(
                f"partition {name} of {self._where} changed while it was read: messages {position} to"
                f" {low - 1} were deleted"
            )
        if (end := self._offsets(partition, OffsetSpec.latest())[name]) < position:
            raise self._lost(name, position, end)

    def _check_unchanged(self, wanted: Range) -> None:
        if self._look()[1] != wanted.identity:
            raise SourceChanged(f"{self._where} was deleted and created again while it was read")

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """Commit the offsets to the group, but not before the first probe has compared them."""
        self._durable = dict(bound)
        if self._is_compared:
            self._acknowledge()

    def _acknowledge(self) -> None:
        new = {
            name: each.position
            for name, each in self._durable.items()
            if each.identity == self._topic_id and self._committed.get(name) != each.position
        }
        if not new:
            return
        offsets = [TopicPartition(self._spec.topic, int(name), position) for name, position in new.items()]
        error = self._client.committed(offsets)
        # The messages are bound. If the broker is gone for a while, the next probe waits and commits again.
        if error is not None and not is_passing(error):
            raise self._client.failure(f"commit offsets to consumer group {self._group}", error)
        if error is None:
            self._committed |= new

    def forget(self) -> None:
        """Delete the consumer group, unless the spec named it."""
        if not self._spec.group:
            self._client.forget_group(self._group)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _there(binding: Binding | None, low: int) -> LastMessage | None:
    """The last message of a partition, if retention has not deleted it."""
    last = None if binding is None else binding.last
    return None if last is None or last.position < low else last


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    count = len(messages)
    # No list of tuples: that would start the garbage collector again and again.
    pairs = chain.from_iterable(map(Message.timestamp, messages))
    kinds, times = np.fromiter(pairs, np.int64, 2 * count).reshape(count, 2).T
    columns = [
        pa.array(np.fromiter(map(Message.offset, messages), np.int64, count)),
        pa.array(times, mask=kinds == TIMESTAMP_NOT_AVAILABLE),
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
