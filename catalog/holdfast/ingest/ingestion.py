"""The loop that feeds a rendition from a source, one commit for each step. It reclocks.

A step reads what is new beyond the bindings, decodes it, and commits output, errors and bindings together,
all at one time. So the commit is the reclocking:

- No binding exists before its data, and what is bound is never read again.
- Several instances may run. Each commit expects the upper that its step began with. An instance that loses
  discards its work, reads the bindings again, and continues from there.
- After a crash the next instance continues from the bindings. The outcome of a commit that nobody heard of
  makes no difference.
- Positions are acknowledged to the source only after the commit. So the source may delete what precedes them.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.collections import Recipe, RenditionInfo, RenditionState, StorageController
from holdfast.collections.pipeline import (
    BESIDE,
    ENDS,
    ERRORS_SCHEMA,
    FORGOTTEN,
    LAST,
    REMAP_SCHEMA,
    SCHEMAS,
    UNLISTED,
)
from holdfast.collections.record.spec import PipelineShards
from holdfast.collections.rendition_copy import at_time
from holdfast.collections.retention import retention_since
from holdfast.collections.uploads import upload_rows
from holdfast.errors import (
    AsOfTooEarly,
    HandedOver,
    HoldfastError,
    Indeterminate,
    ShardFinalized,
    SourceStalled,
    UpperMismatch,
)
from holdfast.ingest.envelope import UpsertState, later_than
from holdfast.ingest.following import (
    Followed,
    FollowTarget,
    InitialFill,
    binding_of,
    bindings,
    differing,
    fed_from,
    is_beyond,
    last_messages,
    missing,
    newest_rows,
)
from holdfast.ingest.forgetting import FilesChange, Unlisted, collapsed
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.made_from import check_fed, may_follow
from holdfast.ingest.output_rows import OutputRows
from holdfast.ingest.plan import plan
from holdfast.ingest.reading import (
    FILE_CHANGED,
    LocalRunner,
    Order,
    RangeReader,
    RangeWork,
    Runner,
    order_of,
    too_many_errors,
)
from holdfast.ingest.restored import given_up, lacks
from holdfast.ingest.schema_texts import SchemaTexts, stored_texts
from holdfast.ingest.source import Binding, Range, Source
from holdfast.ingest.sources.collection import is_collection
from holdfast.ingest.sources.files import MOST_LISTED, Files
from holdfast.ingest.spec import FilesSpec, IngestSpec, KafkaSpec
from holdfast.ingest.standing import MESSAGE_KEY, SETTLES, last_end, latest_good, outlived
from holdfast.ingest.waits import Stopped, Waits
from holdfast.ingest.whole import Transactions, WholeTransactions
from holdfast.persist import Schema, Upload
from holdfast.persist.rows.consolidate import negated
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.text import one_line

if TYPE_CHECKING:
    import polars as pl

PURPOSE: Final = "ingestion"
_FIRST: Final = (-2, "", 0)
_NO_LIMIT: Final = 1 << 62
_LOOK_S: Final = 5.0
"""Seconds between two checks whether another rendition follows this one or has taken over."""
_RETAIN_S: Final = 60.0
"""Seconds between two attempts to give up history."""
_MOST_EMPTY_S: Final = 60.0
"""Longest time without a progress report to an idle source, in seconds, without a `progressInterval`."""


class StepOutcome(Enum):
    """What became of a step.

    IDLE: nothing was new. LOST: another instance committed first, or the collection has other columns by now.
    The next step continues. HANDED_OVER: another rendition has taken over, and this one has all its times. So
    it is if the source is a collection that is complete for ever.
    """

    COMMITTED = "committed"
    IDLE = "idle"
    LOST = "lost"
    HANDED_OVER = "handed over"


@dataclass(frozen=True, slots=True)
class IngestStep:
    """A step: what it committed, and the upper after it. If it `fills`, the rendition has more to read.

    `more` says that the source had more than the limits of the step allow. `behind` is the number of messages
    that it had more, if its positions count them. `waits` says in words what waits for the rest of a
    transaction.
    """

    outcome: StepOutcome
    upper: int
    messages: int = 0
    updates: int = 0
    errors: int = 0
    bytes: int = 0
    fills: bool = False
    more: bool = False
    behind: int = 0
    waits: str = ""


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


class _Evolved(Exception):
    """The collection has other columns than the instance."""


@dataclass
class _Work:
    """What a step has read, of all its ranges."""

    bound: dict[str, Binding] = field(default_factory=dict)
    records: list[pa.Table] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    uploads: list[Sequence[Upload]] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    clears: bool = False
    cleared: tuple[int, str, int] | None = None

    def forget_cleared(self) -> None:
        """Leave out what a message has deleted that deletes all."""
        if self.cleared is not None:
            order, self.clears = self.cleared, True
            self.records = [later_than(each, order) for each in self.records]
            self.bad = [each for each in self.bad if order_of(each) > order]

    def add(self, done: RangeWork) -> None:
        self.clears |= done.clears
        if done.cleared is not None:
            self.cleared = max(self.cleared or done.cleared, done.cleared)
        self.bound[done.partition] = done.binding
        self.records += done.records
        self.bad += done.bad
        self.schemas |= done.schemas
        if done.uploads:
            self.uploads.append(done.uploads)
        self.messages += done.binding.rows
        self.bytes += done.bytes


class Ingestion:
    """Feeds a rendition of a collection: the current one, or `rendition`. The caller closes the source.

    Not thread-safe. The rendition stays the same for as long as this lives, also if another one takes
    over. What a step does depends on the rendition:

    - If it is being filled, the step reads what the pipeline of the current rendition has bound
      (`holdfast.ingest.following`), or the source itself if that can't be followed, or with `anew`.
    - If it has taken over, it goes on like that up to its first time. From then on it binds what is new.
    - If another one has taken over from it, it is written up to its last time.
    - If it was restored from a snapshot, the step continues from the bindings of the snapshot, and first
      reads again what the renditions before it had (`holdfast.ingest.restored`).

    `source_for` returns the source for the columns that the collection has by now, if it depends on them.
    """

    def __init__(
        self,
        controller: StorageController,
        name: str,
        spec: IngestSpec,
        source: Source,
        form: "FormatOf",
        runner: Runner | None = None,
        rendition: str = "",
        *,
        anew: bool = False,
        transactions: Callable[[SchemaTexts], Transactions] | None = None,
        waits: Waits | None = None,
        source_for: Callable[[Schema], Source] | None = None,
    ) -> None:
        self._controller = controller
        self._client = controller.client
        self._spec = spec
        self._source = source
        self._source_for = source_for
        self._name = name
        self._form = form
        self._runner = runner or LocalRunner()
        self._id = rendition
        self._anew = anew
        self._waits = waits or Waits()
        self._followed: Followed | None = None
        self._texts = SchemaTexts.of(spec.avro, self._waits)
        self._texts.elsewhere = self._kept_schemas
        self._whole = WholeTransactions(spec, source, transactions(self._texts)) if transactions else None
        self._open()

    def _open(self) -> None:
        self._is_open = False
        self._retain_s = 0.0
        self.info = info = self._controller.describe(self._name)
        rendition = info.known(self._id) if self._id else info.holding
        self._id = rendition.id
        check_fed(info, rendition, self._spec)
        self._writer = self._controller.rendition_writer(
            info.collection_id, self._id, purpose=f"{PURPOSE}: load"
        )
        self.schema = self._writer.schema
        if self._source_for is not None:
            self._source = self._source_for(self.schema)
        self._reader = RangeReader(
            self.info.name,
            self._spec,
            self.schema,
            self._source,
            self._form(self.schema, self._texts),
            self._texts,
        )
        self._upper = 0
        self._known = False
        keyed = self._spec.envelope.is_keyed
        # Besides what a step reads, the copy of the output may have as much.
        self._state = UpsertState(self.schema, self._spec.max_bytes) if keyed else None
        self._bound: dict[str, Binding] = {}
        self._ends: dict[str, Binding] = {}
        """Of partitions that have more than is bound, as they are stored."""
        files = self._spec.source
        self._lexical = isinstance(files, FilesSpec) and files.lexical
        after_ms = int(files.forget_after_s * 1000) if isinstance(files, FilesSpec) else 0
        self._unlisted = Unlisted(after_ms, lexical=self._lexical)
        self._standing: list[dict[str, Any]] = []
        self._outlived_at = 0
        """Errors that were there at this time have ended, or hide a row."""
        self._moved_s, self._looked_s = time.monotonic(), self._client.clock.monotonic()
        self._filling = InitialFill()
        self._given_up: dict[str, Binding] = {}
        self._reads_again = self._must_read_again(rendition)
        self._is_complete_before = False
        self._follows = self._spec.source.REPLAYABLE and may_follow(rendition) and not self._anew
        self._is_open = True

    @property
    def is_following(self) -> bool:
        """Whether the next step reads what another rendition has bound."""
        return self._upper < self.rendition.held_from and self._led() is not None

    def close(self) -> None:
        """Give up the lease on what it follows, and close the topic of transactions."""
        self._give_up_followed()
        if self._whole is not None:
            self._whole.close()

    @property
    def rendition(self) -> RenditionInfo:
        """The rendition that it feeds, as it was last looked at."""
        return self.info.rendition(self._id)

    @property
    def source_name(self) -> str:
        """The name of the source, as the bindings have it."""
        return self._source.name

    @property
    def bound(self) -> Mapping[str, Binding]:
        """The bindings as this instance knows them."""
        return self._bound

    def load(self) -> None:
        """Read the upper, the bindings, the errors and the state from the collection."""
        # An error in between must not leave a new upper beside old bindings.
        self._known = False
        while not self._known:
            try:
                self._load()
                self._known = True
            except AsOfTooEarly:
                # If others have committed since the look, the time before the upper may be gone.
                if self._writer.upper() == self._upper:
                    raise
        # The instance that committed them may have ended before it told the source.
        self._acknowledge()

    def _load(self) -> None:
        """Read what `load` reads, as of one upper."""
        if not self._is_open:
            self._open()
        self._look()
        pipeline = self.rendition.pipeline
        assert pipeline is not None
        rows: Sequence[dict[str, Any]] = ()
        self._standing, self._outlived_at = [], 0
        if self._upper:
            rows = self._contents([pipeline.remap]).to_pylist()
            self._standing = self._contents([pipeline.errors]).to_pylist()
        self._texts.load(stored_texts(rows))
        self._reader.mark(self._standing, stored=True)
        self._bound = self._bindings(rows)
        self._ends = {each["partition"]: binding_of(each) for each in rows if each["source"] == ENDS}
        self._unlisted.load(rows, self._bound)
        self._pass()
        if self._state is not None:
            self._state.load(self._output.all())
        if self._reads_again:
            self._given_up = given_up(
                self._client,
                self.info,
                self.rendition,
                self._source.name,
                self._bound,
                self._unlisted.forgotten,
            )

    def _pass(self) -> None:
        """Tell a source of files up to where it has nothing to look for."""
        if isinstance(self._source, Files):
            self._source.passed = self._unlisted.forgotten.identity

    def _look(self) -> None:
        """Find the upper, and what the rendition is now."""
        self._upper = self._writer.upper()
        self.info, self._looked_s = self._writer.info, self._client.clock.monotonic()

    def _check_columns(self) -> None:
        """Raise `_Evolved` if the collection has other columns than this instance knows.

        Called between the probe and the read, so what is sent after the collection got a column fills it. It
        also has all columns of the rows below the upper, which an instance that knew fewer could not remove.
        """
        if self._controller.describe(self.info.collection_id).schema != self.schema:
            raise _Evolved

    @property
    def _output(self) -> OutputRows:
        """What the output contains before the next step."""
        return OutputRows(self._client, self.rendition, self.schema, self._upper)

    def _kept_schemas(self) -> dict[str, str]:
        """The texts of schemas that the renditions of the collection have stored by now."""
        kept: dict[str, str] = {}
        for each in self._controller.describe(self.info.collection_id).live:
            if each.pipeline is not None:
                kept |= stored_texts(self._remap_of(each.pipeline))
        return kept

    def _remap_of(self, pipeline: PipelineShards) -> list[dict[str, Any]]:
        """What a rendition has bound by now, and the texts that it has stored."""
        with self._client.reader(pipeline.remap, purpose=PURPOSE) as reader:
            return newest_rows(reader)

    def _contents(self, shards: Iterable[str]) -> pa.Table:
        tables = []
        for shard in shards:
            with self._client.reader(shard, purpose=PURPOSE) as reader:
                tables.append(reader.snapshot(self._upper - 1).to_table())
        return pa.concat_tables(tables)

    def _bindings(self, rows: Sequence[dict[str, Any]]) -> dict[str, Binding]:
        bound: dict[str, Binding] = {}
        last = last_messages(rows)
        if others := fed_from(rows) - {self._source.name}:
            raise SourceStalled(
                f"collection {self.info.name} was fed from {one_line(min(others))}, not from"
                f" {one_line(self._source.name)}",
                hint="feed it from the same source, or hand it over to a new rendition",
            )
        for row in (each for each in rows if each["source"] not in BESIDE):
            if row["partition"] in bound or row[DIFF] != 1:
                raise SourceStalled(
                    f"the bindings of collection {self.info.name} contradict each other for partition"
                    f" {one_line(row['partition'])}",
                    hint="run 'holdfast persist verify', and hand the collection over to a new rendition",
                )
            bound[row["partition"]] = replace(binding_of(row), last=last.get(row["partition"]))
        return bound

    def step(self, within: Mapping[str, int] | None = None) -> IngestStep:
        """Read what is new, at most as much as the spec allows, and commit it.

        `within` limits each partition to a position, and leaves the others alone. Raises `SourceStalled` if
        the source can't go on without losing something, and like `RenditionWriter.append`.
        """
        try:
            return self._next(within)
        except _Evolved:
            # The next step opens it again, with the columns that it has now.
            self._is_open = self._known = False
            return IngestStep(StepOutcome.LOST, self._upper)

    def _next(self, within: Mapping[str, int] | None) -> IngestStep:
        """The next step. Raises like `step`, and `_Evolved`."""
        if not self._known:
            self.load()
        if self._is_look_due() and self._is_moved():
            return IngestStep(StepOutcome.LOST, self._upper)
        if self._upper < self.rendition.held_from and (followed := self._led()) is not None:
            return self._follow(followed)
        self._complete_before()
        return self._read_new(within)

    def _read_new(self, within: Mapping[str, int] | None) -> IngestStep:
        """Read what is new in the source."""
        at = max(self._upper, self._client.now_ms())
        if at >= self.rendition.held_to:
            return self._end()
        try:
            probed = self._source.probe(self._bound)
        except SourceStalled:
            # Another instance may have gone on, so that the source deleted what this one still looks for.
            if not self._is_overtaken():
                raise
            return IngestStep(StepOutcome.LOST, self._upper)
        found = _within(probed, within)
        at = max(self._upper, self._client.now_ms())
        if self.rendition.state is RenditionState.HYDRATING and not self._filling.is_done(found):
            at = self._upper
        again = self._to_read_again()
        try:
            chosen = self._chosen(again, found)
        except SourceStalled:
            if not self._is_overtaken():
                raise
            return IngestStep(StepOutcome.LOST, self._upper)
        # Another instance may read what waits. An empty step would take its place.
        if not chosen and (found or not (self._is_progress_due(at) or self._has_back())):
            return IngestStep(StepOutcome.IDLE, self._upper, waits=self._whole.waits if self._whole else "")
        work = _Work()
        self._read(work, chosen, at, self._spec.max_bytes if self._whole is None else _NO_LIMIT)
        if self._whole is not None and not self._whole.is_read(work.bound):
            self._discard(work)
            return IngestStep(StepOutcome.IDLE, self._upper)
        if again:
            self._check_again(chosen[0], work)
        if chosen and not work.bound:
            return IngestStep(StepOutcome.IDLE, self._upper)
        if within is None and self._may_wait(chosen, work):
            return IngestStep(StepOutcome.IDLE, self._upper)
        step = self._commit(work, at, self._ends_beyond(work, probed), None if again else self._listed())
        more = self._lexical and len(probed) >= MOST_LISTED
        return replace(step, more=more if self._whole is None else self._whole.more)

    def _chosen(self, again: Sequence[Range], found: Sequence[Range]) -> Sequence[Range]:
        """What this step reads."""
        if self._whole is None:
            ready = again or [each for each in found if not each.waits]
            return plan(ready, self._spec.max_rows, self._spec.max_bytes)
        # What the renditions before had ends between transactions, also if nobody can say which ones by now.
        return self._whole.plan(again or found, self._bound) or self._whole.as_planned(again)

    def _listed(self) -> FilesChange | None:
        """What the last listing changes of what is missing and forgotten."""
        listed = self._listing()
        return None if listed is None else self._unlisted.change(listed, self._bound, self._client.now_ms())

    def _listing(self) -> Collection[str] | None:
        """The bound files that the last listing has. None if this rendition decides nothing about files."""
        if not isinstance(self._source, Files) or self.rendition.state is RenditionState.HYDRATING:
            return None
        return self._source.listed

    def _has_back(self) -> bool:
        """Whether a file is listed again that was missing. If that is not kept, it is soon forgotten."""
        listed = self._listing()
        return listed is not None and self._unlisted.has_back(listed)

    def _ends_beyond(self, work: _Work, probed: Iterable[Range]) -> dict[str, Binding]:
        """The ends of the bound partitions that have more than is bound after this step."""
        if not self._spec.source.COUNTS:
            return {}
        reached = self._bound | work.bound
        known = (each for each in probed if each.partition in reached)
        return {
            each.partition: Binding(each.end) for each in known if each.end > reached[each.partition].position
        }

    def _must_read_again(self, rendition: RenditionInfo) -> bool:
        """Whether it was restored, or continues one that was, and all messages since must be there still."""
        source, until = self._spec.source, rendition.held_from
        restored = any(each.recipe is Recipe.RESTORED for each in self.info.held if each.held_from <= until)
        continues = rendition.recipe is not Recipe.SOURCE or may_follow(rendition)
        may_be_gone = self._anew or (isinstance(source, KafkaSpec) and source.new_epoch)
        return restored and continues and source.REPLAYABLE and not may_be_gone

    def _to_read_again(self) -> Sequence[Range]:
        """What the renditions before a restored one had, and this one has not read so far."""
        if not self._reads_again:
            return ()
        self._given_up = {
            name: theirs for name, theirs in self._given_up.items() if lacks(self._bound.get(name), theirs)
        }
        again = missing(self._target_again, self._bound, whole=isinstance(self._spec.source, FilesSpec))
        self._reads_again = bool(again)
        return again

    @property
    def _target_again(self) -> FollowTarget:
        return FollowTarget(self._upper, self._given_up, next=False)

    def _check_again(self, first: Range, work: _Work) -> None:
        """Raise `SourceStalled` unless the messages came again, as many as there were."""
        if not work.bound:
            raise self._unled(_gone(first))
        bound = self._summed(work.bound)
        reached = {
            name: theirs
            for name, theirs in self._given_up.items()
            if name in bound and bound[name].position == theirs.position
        }
        if why := differing(replace(self._target_again, bound=reached), bound):
            self._discard(work)
            raise self._unled(why)

    def _is_look_due(self) -> bool:
        is_old = self._client.clock.monotonic() - self._looked_s > _LOOK_S
        return is_old or self._upper < self.rendition.held_from

    def _is_moved(self) -> bool:
        """Whether others have committed. Finds what the rendition is now."""
        before = self._upper
        self._look()
        self._known = self._upper == before
        return not self._known

    def _led(self) -> Followed | None:
        """The rendition that it follows. None if the rendition reads its source by itself."""
        mine = self.rendition
        before = [each for each in self.info.held if each.held_from < mine.held_from]
        if not before or before[-1].pipeline is None or not self._follows:
            return None
        last = before[-1]
        if self._followed is None or self._followed.rendition.id != last.id:
            self._give_up_followed()
            self._followed = Followed(self._client, last)
        self._followed.until = last.held_to
        return self._followed if self._followed.is_fed_from(self._source.name) else None

    def _give_up_followed(self) -> None:
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    def _follow(self, followed: Followed) -> IngestStep:
        """Read what the other rendition has bound: the next binding, or all until some time."""
        target = followed.target(self._upper, self._bound)
        if target is None and self._complete_before():
            target = followed.target(self._upper, self._bound)
        change = None if target is None else self._forgets(target)
        if target is None or (
            not target.next and is_beyond(target, self._bound, change.forgets if change else ())
        ):
            return IngestStep(StepOutcome.IDLE, self._upper)
        wanted = missing(target, self._bound, whole=isinstance(self._spec.source, FilesSpec))
        if wanted and not target.next:
            return self._fill(wanted, followed.until)
        work = self._read_all(wanted, target)
        if why := differing(target, self._bound | self._summed(work.bound)):
            self._discard(work)
            raise self._unled(why)
        return self._commit(work, target.at, change=change)

    def _forgets(self, target: FollowTarget) -> FilesChange | None:
        """What to forget with the other rendition. Raises `SourceStalled` if this one lacks some of it."""
        before, after = self._unlisted.forgotten, target.forgotten
        if after is None or after.position <= before.position:
            return None
        forgets = target.forgets if target.next else self._bound.keys() - target.bound.keys()
        mine = collapsed(before, (self._bound[each] for each in forgets if each in self._bound))
        if replace(mine, identity=after.identity) != after:
            count = after.position - before.position
            raise self._unled(
                f"the one before it has forgotten {count:,} files that are no longer listed, with"
                f" {after.total - before.total:,} messages"
            )
        return self._unlisted.following(forgets, after)

    def _fill(self, wanted: Sequence[Range], until: int) -> IngestStep:
        """Read a part of what is missing."""
        if self._upper + 1 >= until:
            raise self._unled("the rendition before it is not readable at the times that are missing")
        chosen = plan(wanted, self._spec.max_rows, self._spec.max_bytes)
        work = _Work()
        self._read(work, chosen, self._upper, self._spec.max_bytes)
        if not work.bound:
            raise self._unled(_gone(chosen[0]))
        return self._commit(work, self._upper)

    def _read_all(self, wanted: Sequence[Range], target: FollowTarget) -> _Work:
        """Read ranges that have one time."""
        work, left = _Work(), wanted
        while left:
            before = len(work.bound)
            self._read(work, left, target.at, _NO_LIMIT)
            if len(work.bound) == before:
                self._discard(work)
                raise self._unled(_gone(left[0]))
            left = [each for each in left if each.partition not in work.bound]
        return work

    def _unled(self, why: str) -> SourceStalled:
        """The error of a rendition that can't get the messages of the one before it."""
        hint = "to go on without them, feed it with --anew"
        if self.rendition.state is RenditionState.HYDRATING:
            # Nobody may hand over to it.
            self._controller.renditions.suspect(self.info.collection_id, self._id, why)
            hint = (
                f"abort it: 'holdfast collection handover {self.info.name} --abort --rendition {self._id}';"
                " and feed another one that begins anew, with --rendition NEW --anew"
            )
        return SourceStalled(
            f"rendition {self._id} of collection {self.info.name} can't get the same messages as the one"
            f" before it: {why} ({one_line(self._source.name)})",
            hint=hint,
        )

    def _complete_before(self) -> bool:
        """Complete the rendition before this one once its last time is over, in case its pipeline doesn't.

        Returns whether that was done now.
        """
        mine = self.rendition
        if self._is_complete_before or not 0 < mine.held_from <= self._client.now_ms():
            return False
        before = self.info.held_before(mine)
        if before is not None and before.pipeline is not None and self._may_seal(before.pipeline):
            writer = self._controller.rendition_writer(
                self.info.collection_id, before.id, purpose=f"{PURPOSE}: load"
            )
            writer.seal(mine.held_from)
        self._is_complete_before = True
        return True

    def _may_seal(self, pipeline: PipelineShards) -> bool:
        """Whether a rendition may stay as it is. If it is fed from a collection, only that decides."""
        return not any(is_collection(each["source"]) for each in self._remap_of(pipeline))

    def _end(self) -> IngestStep:
        """Complete this rendition, which has no later times."""
        self._writer.seal(self.rendition.held_to)
        self._source.forget()
        return IngestStep(StepOutcome.HANDED_OVER, self.rendition.held_to)

    def _acknowledge(self) -> None:
        """Tell the source what is durable, up to the slowest rendition that needs it."""
        if not self._bound or self._upper < self.rendition.held_from:
            return
        durable = self._bound
        for follower in self._followers() if self._spec.source.REPLAYABLE else ():
            theirs = bindings(self._remap_of(follower))
            durable = {
                name: min(binding, theirs[name], key=lambda one: one.position)
                for name, binding in durable.items()
                if name in theirs
            }
        self._source.acknowledge(durable)

    def _followers(self) -> list[PipelineShards]:
        """What later renditions keep, which need the messages that this one has."""
        # Later than the commit: a rendition that is created after this look has to read it all anyway.
        self.info = self._controller.describe(self.info.collection_id)
        first = self.rendition.held_from
        return [each.pipeline for each in self.info.live if each.pipeline and each.held_from > first]

    def _discard(self, work: _Work) -> None:
        self._client.discard(each for of_range in work.uploads for each in of_range)

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

    def _is_progress_due(self, at: int) -> bool:
        if self.rendition.state is RenditionState.HYDRATING:
            # A rendition that lags can't take over.
            return at - self._upper > _LOOK_S * 1000
        if 0 < self.rendition.held_from <= at and self._upper <= self.rendition.held_from:
            # Until it is written past its first time, readers read the rendition before it.
            return True
        every = self._spec.progress_interval_s
        return bool(every) and (not self._upper or time.monotonic() - self._moved_s >= every)

    def _read(self, work: _Work, chosen: Sequence[Range], at: int, max_bytes: int) -> None:
        if chosen and not work.bound:
            self._check_columns()
        together = self._whole is not None
        known = frozenset(each.partition for each in chosen if each.partition in self._bound)
        order = Order(chosen, known, at, max_bytes, together, self._lexical)
        for done in self._runner.read(order, self._reader, self._writer) if chosen else ():
            work.add(done)

    def _commit(
        self,
        work: _Work,
        at: int,
        ends: Mapping[str, Binding] | None = None,
        change: FilesChange | None = None,
    ) -> IngestStep:
        """Commit a step. `ends` are those of the partitions that have more, `change` what is forgotten."""
        ends = ends or {}
        change = change or FilesChange(forgotten=self._unlisted.forgotten)
        work.bound = self._summed(work.bound)
        work.forget_cleared()
        work.bad = self._new(work)
        schemas = {each: text for each, text in work.schemas.items() if each not in self._texts.stored}
        texts = [self._remap_row(each, Binding(0, text), SCHEMAS) for each, text in schemas.items()]
        ended, bad = self._judged(work)
        try:
            self._check_limit(bad, len(self._standing) - len(ended) + len(bad))
        except SourceStalled:
            self._outlived_at = 0
            self._discard(work)
            raise
        errors = _signed(ERRORS_SCHEMA, ended, bad)
        remap = _signed(REMAP_SCHEMA, *self._rebound(work.bound))
        remap = _joined(
            remap,
            _signed(REMAP_SCHEMA, (), texts),
            self._changed(ENDS, self._ends, ends),
            self._changed(LAST, _last(self._bound_before(work.bound)), _last(work.bound)),
            self._changed(UNLISTED, change.ended, change.begun),
            self._changed(FORGOTTEN, self._forgotten(), self._forgotten(change)),
            _signed(REMAP_SCHEMA, [self._remap_row(each, self._bound[each]) for each in change.forgets], ()),
        )
        kept = (_at(at, remap), _at(at, errors))
        try:
            updates, after = self._changes(work, at)
        except (AsOfTooEarly, ShardFinalized):
            # If others have committed, the time before the upper may be gone, or the rendition.
            if not self._is_overtaken():
                raise
            return IngestStep(StepOutcome.LOST, self._upper)
        if not self._is_appended(_at(at, updates), self._upper, at + 1, kept, work.uploads):
            return IngestStep(StepOutcome.LOST, self._upper)
        before, self._upper, self._moved_s = self._upper, at + 1, time.monotonic()
        self._bound |= work.bound
        for each in change.forgets:
            del self._bound[each]
        self._unlisted.apply(change, work.bound)
        self._pass()
        self._ends = dict(ends)
        self._texts.stored |= schemas
        gone = [id(each) for each in ended]
        self._standing = [*(each for each in self._standing if id(each) not in gone), *bad]
        if self._state is not None and work.records:
            self._state.rows = after
        if work.bound:
            self._acknowledge()
        changed = sum(each.rows for of_range in work.uploads for each in of_range)
        changed += 0 if updates is None else updates.num_rows
        fills = self.rendition.state is RenditionState.HYDRATING and at == before
        done = (work.messages, changed, len(bad), work.bytes)
        behind = sum(end.position - self._bound[name].position for name, end in ends.items())
        return IngestStep(StepOutcome.COMMITTED, self._upper, *done, fills, behind=behind)

    def _changes(self, work: _Work, at: int) -> "tuple[pa.Table | None, pl.DataFrame | None]":
        """The updates of the output that are not uploaded, and the copy of it after the step, if any."""
        if not work.records:
            return None, None
        if self._state is None:
            return pa.concat_tables(work.records), None
        records = pa.concat_tables(work.records).drop_columns([MESSAGE_KEY, SETTLES])
        updates, after = self._state.changes(records, self._output.of, clears=work.clears)
        if not work.clears or self._state.rows is not None:
            return updates, after
        # All rows of the output end. They may be more than fit into memory.
        changes = at_time(chain(map(negated, self._output.all()), updates.to_batches()), at)
        tickets = self._writer.upload_tickets()
        work.uploads.append(
            upload_rows(self._client, changes, self.rendition, tickets, meanwhile=self._writer.keep_alive)
        )
        return None, after

    def _forgotten(self, change: FilesChange | None = None) -> dict[str, Binding]:
        """The row of what is forgotten now, or after a change."""
        found = self._unlisted.forgotten if change is None else change.forgotten
        return {self._source.name: found} if found.position else {}

    def _is_appended(
        self,
        updates: pa.Table | None,
        expected: int,
        upper: int,
        kept: Sequence[object],
        uploads: Sequence[Sequence[Upload]],
    ) -> bool:
        """Commit a step. False if another instance was faster, or if nobody knows what happened.

        Then the next step reads the bindings first.
        """
        try:
            self._writer.append(updates, expected, upper, kept=kept, uploads=uploads)
        except (UpperMismatch, HandedOver):
            self._known = False
            return False
        except Indeterminate:
            # The bindings say whether it happened.
            self._is_open = self._known = False
            return False
        return True

    def _new(self, work: _Work) -> list[dict[str, Any]]:
        """The bad records, without files that changed again: one error says that such a file has changed."""
        if work.clears or not any(each["kind"] == FILE_CHANGED for each in work.bad):
            return work.bad
        known = {each["partition"] for each in self._standing if each["kind"] == FILE_CHANGED}
        return [each for each in work.bad if each["kind"] != FILE_CHANGED or each["partition"] not in known]

    def _judged(self, work: _Work) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The error rows that end, and those that begin.

        A later good message of the same key ends an error, and so does its age (`standing`).
        """
        bad, old = work.bad, self._outlived()
        if self._state is None or not (bad or self._standing):
            return old, bad
        errors = bad if work.clears else [*self._standing, *bad]
        latest = {}
        if work.records:
            latest = latest_good(pa.concat_tables(work.records), self.schema.key_names, errors)
        ended = [each for each in self._standing if work.clears or last_end(each, latest) is not None]
        # They have no key that a message could end.
        ended += [] if work.clears else old
        return ended, [each for each in bad if (last_end(each, latest) or _FIRST) < order_of(each)]

    def _outlived(self) -> list[dict[str, Any]]:
        """The error rows that end because they are older than the history that the collection keeps.

        A rendition begins with errors that may be newer than their time, such as those of a snapshot or of a
        collection that was copied. So errors end only when the retention has moved beyond that beginning.
        """
        pipeline = self.rendition.pipeline
        assert pipeline is not None
        since = self._client.known_since(pipeline.errors) or 0
        began = max(self.rendition.start, self.info.created_ms, self._outlived_at)
        if not self._standing or since <= began or self.rendition.state is RenditionState.HYDRATING:
            return []
        with self._client.reader(pipeline.errors, purpose=PURPOSE) as reader:
            self._outlived_at = reader.since()
            old = reader.snapshot(min(self._outlived_at, self._upper - 1)).to_table()
        return outlived(self._standing, old, self._spec.envelope)

    def _check_limit(self, bad: Sequence[dict[str, Any]], standing: int) -> None:
        if bad and standing > self._spec.error_limit:
            first = (bad[0][each] for each in ("reason", "partition", "position"))
            raise too_many_errors(self.info.name, self._spec.error_limit, *first)

    def _summed(self, bound: Mapping[str, Binding]) -> dict[str, Binding]:
        """The bindings with the beginnings and totals of those that they continue."""
        return {name: self._continued(self._bound.get(name), each) for name, each in bound.items()}

    def _continued(self, before: Binding | None, binding: Binding) -> Binding:
        if before is None:
            return binding
        # After a gap, and in a topic that was made again, it begins anew.
        begin = before.begin if before.position == binding.begin else binding.begin
        last = binding.last or (before.last if before.identity == binding.identity else None)
        return replace(binding, begin=begin, total=before.total + binding.total, last=last)

    def _rebound(self, bound: Mapping[str, Binding]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The remap rows that end, and those that begin."""
        old = [self._remap_row(*each) for each in self._bound_before(bound).items()]
        return old, [self._remap_row(partition, binding) for partition, binding in bound.items()]

    def _bound_before(self, bound: Iterable[str]) -> dict[str, Binding]:
        """The bindings of these partitions that are bound already."""
        return {each: self._bound[each] for each in bound if each in self._bound}

    def _changed(
        self, source: str, before: Mapping[str, Binding], after: Mapping[str, Binding]
    ) -> pa.Table | None:
        """The updates of remap rows that are no bindings."""
        ended, begun = (
            [self._remap_row(*each, source) for each in some.items() - others.items()]
            for some, others in ((before, after), (after, before))
        )
        return _signed(REMAP_SCHEMA, ended, begun)

    def _remap_row(self, partition: str, binding: Binding, source: str = "") -> dict[str, Any]:
        return {
            "source": source or self._source.name,
            "partition": partition,
            "position": binding.position,
            "identity": binding.identity,
            "rows": binding.rows,
            "checksum": binding.checksum,
            "begin": binding.begin,
            "total": binding.total,
        }

    def run(
        self,
        *,
        once: bool = False,
        stopped: Callable[[float], bool] | None = None,
        on_step: Callable[[IngestStep], None] = lambda _: None,
    ) -> None:
        """Take steps until `stopped(seconds)` says so after it waited. With `once`, until the current end.

        By default it sleeps and goes on. `on_step` is called after each step. A source that waits or
        reads for long calls `stopped` in the middle of a step, which then ends without a commit. `run` also
        returns if the rendition is complete because another one took over. Raises like `step`.
        """
        stopped = stopped or threading.Event().wait
        self._waits.stopped = stopped
        with suppress(Stopped):
            self._run(stopped, on_step, once=once)

    def _run(
        self, stopped: Callable[[float], bool], on_step: Callable[[IngestStep], None], *, once: bool
    ) -> None:
        self.load()
        ends = None
        # Not all files are listed if they are lexical. Then it goes on until nothing is new.
        if once and not self.is_following and not self._lexical:
            ends = {each.partition: each.end for each in self._probed()}
        while True:
            began = time.monotonic()
            step = self.step(ends)
            on_step(step)
            if step.outcome is StepOutcome.COMMITTED:
                self._apply_retention()
            if step.waits or step.messages:
                self._waits.show(step.waits)
            if step.outcome is StepOutcome.HANDED_OVER:
                return
            is_idle, follows = step.outcome is StepOutcome.IDLE, self.is_following
            if once and is_idle and (follows or not _within(self._probed(), ends)):
                return
            if once and is_idle and self._whole is not None and self._whole.gives_up:
                return
            busy = step.more or step.outcome is StepOutcome.LOST or step.messages >= self._spec.max_rows
            rest = 0 if busy or ((once or follows) and not is_idle) else self._spec.interval_s
            if stopped(max(0, rest - (time.monotonic() - began))):
                return

    def _apply_retention(self) -> None:
        """Give up history that the collection need not keep, if there is much of it and it is time."""
        now_s = self._client.clock.monotonic()
        since = self._client.known_since(self.info.metadata_shard)
        if now_s < self._retain_s or since is None or retention_since(self.info, since, self._upper) is None:
            return
        # Somebody else may hold the since, so don't try again with each step.
        self._retain_s = now_s + _RETAIN_S
        # The step has succeeded. A later one tries again.
        with suppress(HoldfastError):
            self._controller.apply_retention(self.info.collection_id)


def _last(bound: Mapping[str, Binding]) -> dict[str, Binding]:
    """The last messages of partitions, as the remap has them."""
    known = ((name, each.last) for name, each in bound.items())
    return {name: Binding(last.position, checksum=last.checksum) for name, last in known if last}


FormatOf = Callable[[Schema, SchemaTexts], Format]


def _gone(wanted: Range) -> str:
    return f"messages {wanted.begin} to {wanted.end - 1} of partition {one_line(wanted.partition)} are gone"


def _at(time_: int, updates: pa.Table | None) -> pa.Table | None:
    """The updates at this time."""
    if updates is None:
        return None
    return updates.append_column(TIME, pa.repeat(pa.scalar(time_, pa.uint64()), updates.num_rows))


def _joined(*updates: pa.Table | None) -> pa.Table | None:
    some = [each for each in updates if each is not None]
    return pa.concat_tables(some) if some else None


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
