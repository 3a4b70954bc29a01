"""The loop that feeds a rendition from a source, one commit for each step.

A step reads what is new beyond the bindings, decodes it, and commits output, errors and bindings together,
all at one time. So the commit is the reclocking:

- No binding exists before its data, and what is bound is never read again.
- Several instances may run. Each commit expects the upper that its step began with. An instance that loses
  discards its work, reads the bindings again, and continues from there.
- After a crash the next instance continues from the bindings. The outcome of a commit that nobody heard of
  makes no difference.
- The source is told only after the commit. So it may delete what it is told about.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from holdfast.collections import CollectionInfo, RenditionInfo, StorageController
from holdfast.collections.pipeline import ERRORS_SCHEMA, REMAP_SCHEMA
from holdfast.errors import BadInput, Indeterminate, SourceStalled, UpperMismatch
from holdfast.ingest.envelope import Envelope, UpsertState
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.plan import plan
from holdfast.ingest.reading import (
    RAW_BYTES,
    LocalRunner,
    Order,
    RangeReader,
    RangeWork,
    Runner,
    order_of,
    too_many_errors,
)
from holdfast.ingest.source import Binding, Range, Source
from holdfast.ingest.spec import IngestSpec
from holdfast.persist import Schema, Upload
from holdfast.persist.rows.schema import DIFF, TIME

PURPOSE: Final = "ingestion"
_FIRST: Final = (-2, "", 0)
_MOST_EMPTY_S: Final = 60.0
"""So long a source is not told how far it has nothing new, if the spec has no `progressInterval`."""


class StepOutcome(Enum):
    """What became of a step. IDLE: nothing was new. LOST: another instance committed first."""

    COMMITTED = "committed"
    IDLE = "idle"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class IngestStep:
    """A step: what it committed, and the upper after it."""

    outcome: StepOutcome
    upper: int
    messages: int = 0
    updates: int = 0
    errors: int = 0
    bytes: int = 0


@dataclass
class IngestTotal:
    """What some steps did together, and the upper after them."""

    upper: int = 0
    messages: int = 0
    updates: int = 0
    errors: int = 0

    def add(self, step: IngestStep) -> None:
        """Add a step."""
        self.upper = max(self.upper, step.upper)
        self.messages += step.messages
        self.updates += step.updates
        self.errors += step.errors


@dataclass
class _Work:
    """What a step has read, of all its ranges."""

    bound: dict[str, Binding] = field(default_factory=dict)
    records: list[pa.Table] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    good: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    uploads: list[Sequence[Upload]] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    clears: bool = False

    def add(self, done: RangeWork) -> None:
        self.clears |= done.clears
        self.bound[done.partition] = done.binding
        self.records += done.records
        self.bad += done.bad
        self.good += [(done.partition, each) for each in done.good]
        if done.uploads:
            self.uploads.append(done.uploads)
        self.messages += done.binding.rows
        self.bytes += done.bytes


class Ingestion:
    """Feeds the current rendition of a collection. One thread uses it. The caller closes the source."""

    def __init__(
        self,
        controller: StorageController,
        name: str,
        spec: IngestSpec,
        source: Source,
        form: "FormatOf",
        runner: Runner | None = None,
    ) -> None:
        self._controller = controller
        self._client = controller.client
        self._spec = spec
        self._source = source
        self._name = name
        self._form = form
        self._runner = runner or LocalRunner()
        self._open()

    def _open(self) -> None:
        self.info = _fed(self._controller.describe(self._name))
        self._rendition: RenditionInfo = self.info.holding
        self._writer = self._controller.rendition_writer(
            self.info.collection_id, self._rendition.id, purpose=PURPOSE
        )
        self.schema = self._writer.schema
        self._reader = RangeReader(
            self.info.name, self._spec, self.schema, self._source, self._form(self.schema)
        )
        self._upper = 0
        self._known = False
        self._state = UpsertState(self.schema) if self._spec.envelope is Envelope.UPSERT else None
        self._bound: dict[str, Binding] = {}
        self._standing: list[dict[str, Any]] = []
        self._moved_s = time.monotonic()
        self._is_open = True

    @property
    def bound(self) -> Mapping[str, Binding]:
        """The bindings as this instance knows them."""
        return self._bound

    def load(self) -> None:
        """Read the upper, the bindings, the errors and the state from the collection."""
        # An error in between must not leave a new upper beside old bindings.
        self._known = False
        if not self._is_open:
            self._open()
        self._upper = self._writer.upper()
        pipeline = self._rendition.pipeline
        assert pipeline is not None
        rows: Sequence[dict[str, Any]] = ()
        self._standing = []
        if self._upper:
            rows = self._contents([pipeline.remap]).to_pylist()
            self._standing = self._contents([pipeline.errors]).drop_columns([DIFF]).to_pylist()
        self._bound = self._bindings(rows)
        if self._state is not None:
            contents = (
                self._contents(self._rendition.shards) if self._upper else self.schema.arrow.empty_table()
            )
            self._state.load(contents)
        self._known = True
        if self._bound:
            # The instance that committed them may have ended before it told the source.
            self._source.acknowledge(self._bound)

    def _contents(self, shards: Iterable[str]) -> pa.Table:
        tables = []
        for shard in shards:
            with self._client.reader(shard, purpose=PURPOSE) as reader:
                tables.append(reader.snapshot(self._upper - 1).to_table())
        return pa.concat_tables(tables)

    def _bindings(self, rows: Sequence[dict[str, Any]]) -> dict[str, Binding]:
        bound: dict[str, Binding] = {}
        for row in rows:
            if row["source"] != self._source.name:
                raise SourceStalled(
                    f"collection {self.info.name} was fed from {row['source']}, not from {self._source.name}",
                    hint="feed it from the same source, or hand it over to a new rendition",
                )
            if row["partition"] in bound or row[DIFF] != 1:
                raise SourceStalled(
                    f"the bindings of collection {self.info.name} contradict each other for partition"
                    f" {row['partition']}",
                    hint="run 'holdfast persist verify', and hand the collection over to a new rendition",
                )
            bound[row["partition"]] = Binding(row["position"], row["identity"], row["rows"], row["checksum"])
        return bound

    def step(self, within: Mapping[str, int] | None = None) -> IngestStep:
        """Read what is new, at most as much as the spec allows, and commit it.

        `within` limits each partition to a position, and leaves the others alone. Raises `SourceStalled` if
        the source can't go on without losing something, and like `RenditionWriter.append`.
        """
        if not self._known:
            self.load()
        try:
            found = _within(self._source.probe(self._bound), within)
        except SourceStalled:
            # Another instance may have gone on, so that the source deleted what this one still looks for.
            if not self._is_overtaken():
                raise
            return IngestStep(StepOutcome.LOST, self._upper)
        at = max(self._upper, self._client.now_ms())
        chosen = plan([each for each in found if not each.waits], self._spec.max_rows, self._spec.max_bytes)
        # Another instance may read what waits. An empty step would take its place.
        if not chosen and (found or not self._is_progress_due()):
            return IngestStep(StepOutcome.IDLE, self._upper)
        work = self._read(chosen, at)
        if chosen and not work.bound:
            return IngestStep(StepOutcome.IDLE, self._upper)
        if within is None and self._may_wait(chosen, work):
            return IngestStep(StepOutcome.IDLE, self._upper)
        return self._commit(work, at)

    def _may_wait(self, chosen: Sequence[Range], work: _Work) -> bool:
        """Whether nothing was found, and it is early to bind how far that goes."""
        is_empty = bool(chosen) and all(each.sparse for each in chosen) and not work.messages
        every = self._spec.progress_interval_s or _MOST_EMPTY_S
        return is_empty and not work.clears and time.monotonic() - self._moved_s < every

    def _probed(self) -> Sequence[Range]:
        """What is new beyond the bindings, also if others commit meanwhile."""
        while True:
            try:
                return self._source.probe(self._bound)
            except SourceStalled:
                if not self._is_overtaken():
                    raise

    def _is_overtaken(self) -> bool:
        """Whether others have committed since this instance read the bindings. Reads them again."""
        before = self._upper
        self.load()
        return self._upper != before

    def _is_progress_due(self) -> bool:
        every = self._spec.progress_interval_s
        return bool(every) and (not self._upper or time.monotonic() - self._moved_s >= every)

    def _read(self, chosen: Sequence[Range], at: int) -> _Work:
        work = _Work()
        order = Order(chosen, frozenset(self._bound), at, self._spec.max_bytes)
        for done in self._runner.read(order, self._reader, self._writer) if chosen else ():
            work.add(done)
        return work

    def _commit(self, work: _Work, at: int) -> IngestStep:
        after = None
        if self._state is not None and work.records:
            updates, after = self._state.changes(pa.concat_tables(work.records), clears=work.clears)
        else:
            updates = pa.concat_tables(work.records) if work.records else None
        ended, bad = self._judged(work)
        try:
            self._check_limit(bad, len(self._standing) - len(ended) + len(bad))
        except SourceStalled:
            self._client.discard(each for of_range in work.uploads for each in of_range)
            raise
        errors = _signed(ERRORS_SCHEMA, ended, bad)
        remap = _signed(REMAP_SCHEMA, *self._rebound(work.bound))
        try:
            kept = (_at(at, remap), _at(at, errors))
            self._writer.append(_at(at, updates), self._upper, at + 1, kept=kept, uploads=work.uploads)
        except UpperMismatch:
            self._known = False
            return IngestStep(StepOutcome.LOST, self._upper)
        except Indeterminate:
            # The bindings say whether it happened.
            self._is_open = self._known = False
            return IngestStep(StepOutcome.LOST, self._upper)
        self._upper, self._moved_s = at + 1, time.monotonic()
        self._bound |= work.bound
        gone = [id(each) for each in ended]
        self._standing = [*(each for each in self._standing if id(each) not in gone), *bad]
        if self._state is not None and after is not None:
            self._state.rows = after
        if work.bound:
            self._source.acknowledge(self._bound)
        changed = sum(each.rows for of_range in work.uploads for each in of_range)
        changed += 0 if updates is None else updates.num_rows
        return IngestStep(StepOutcome.COMMITTED, self._upper, work.messages, changed, len(bad), work.bytes)

    def _judged(self, work: _Work) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The error rows that end, and those that begin.

        A later good message of the same key ends an error. Without keys none ends.
        """
        bad = work.bad
        if not work.clears and (not work.good or not (bad or self._standing)):
            return [], bad
        latest = _latest_good(work) if bad or not work.clears else {}
        ended = [each for each in self._standing if work.clears or each["key"] in latest]
        return ended, [each for each in bad if latest.get(each["key"], _FIRST) < order_of(each)]

    def _check_limit(self, bad: Sequence[dict[str, Any]], standing: int) -> None:
        if bad and standing > self._spec.error_limit:
            first = bad[0]
            next_ = f"{first['partition']}:{first['position']}: {first['reason']}"
            raise too_many_errors(self.info.name, self._spec.error_limit, next_)

    def _rebound(self, bound: Mapping[str, Binding]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The remap rows that end, and those that begin."""
        old = [self._remap_row(each, self._bound[each]) for each in bound if each in self._bound]
        return old, [self._remap_row(partition, binding) for partition, binding in bound.items()]

    def _remap_row(self, partition: str, binding: Binding) -> dict[str, Any]:
        return {
            "source": self._source.name,
            "partition": partition,
            "position": binding.position,
            "identity": binding.identity,
            "rows": binding.rows,
            "checksum": binding.checksum,
        }

    def run(
        self,
        *,
        once: bool = False,
        stopped: Callable[[float], bool] | None = None,
        told: Callable[[IngestStep], None] = lambda _: None,
    ) -> None:
        """Take steps until `stopped(seconds)` says so after it waited. With `once`, until the current end.

        By default it sleeps and goes on. `told` is called after each step. Raises like `step`.
        """
        stopped = stopped or threading.Event().wait
        self.load()
        ends = None
        if once:
            ends = {each.partition: each.end for each in self._probed()}
        while True:
            began = time.monotonic()
            step = self.step(ends)
            told(step)
            if once and step.outcome is StepOutcome.IDLE and not _within(self._probed(), ends):
                return
            busy = step.outcome is StepOutcome.LOST or step.messages >= self._spec.max_rows
            rest = 0 if busy or (once and step.outcome is not StepOutcome.IDLE) else self._spec.interval_s
            if stopped(max(0, rest - (time.monotonic() - began))):
                return


def _latest_good(work: _Work) -> dict[bytes, tuple[int, str, int]]:
    """What orders the last good message of each key."""
    latest: dict[bytes, tuple[int, str, int]] = {}
    for partition, messages in work.good:
        columns = (messages[each].to_pylist() for each in ("key", "timestamp", "position"))
        for key, timestamp, position in zip(*columns, strict=True):
            order = (-1 if timestamp is None else timestamp, partition, position)
            if key is not None and latest.get(key[:RAW_BYTES], order) <= order:
                latest[key[:RAW_BYTES]] = order
    return latest


FormatOf = Callable[[Schema], Format]


def _fed(info: CollectionInfo) -> CollectionInfo:
    if info.holding.pipeline is None:
        raise BadInput(
            f"collection {info.name} is not fed from a source: its current rendition {info.holding.id} keeps"
            " nothing for a pipeline",
            hint="feed another collection: 'holdfast ingest' creates one if the spec has its columns",
        )
    return info


def _at(time_: int, updates: pa.Table | None) -> pa.Table | None:
    """The updates at this time."""
    if updates is None:
        return None
    return updates.append_column(TIME, pa.repeat(pa.scalar(time_, pa.uint64()), updates.num_rows))


def _within(found: Sequence[Range], within: Mapping[str, int] | None) -> list[Range]:
    if within is None:
        return list(found)
    kept = [each for each in found if each.partition in within]
    return [
        each if each.whole else replace(each, end=min(each.end, within[each.partition]))
        for each in kept
        if each.whole or each.begin == each.end or each.begin < within[each.partition]
    ]


def _signed(
    schema: Schema, ended: Sequence[dict[str, Any]], begun: Sequence[dict[str, Any]]
) -> pa.Table | None:
    """The updates that remove and add these rows."""
    if not ended and not begun:
        return None
    rows = [*({**each, DIFF: -1} for each in ended), *({**each, DIFF: 1} for each in begun)]
    return pa.Table.from_pylist(rows, schema=schema.arrow_diff)
