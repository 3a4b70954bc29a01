"""The plan for a StorageCollection: a pure function of what was observed.

The plan first creates the item in the catalog, and then the collection in storage. It drops them in reverse
order. Each step is idempotent. Nothing is written until the spec is known to be valid. A change that only a
deletion can undo is not made until the resource and its Catalog have the finalizer (see `catalogs.keeping`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Literal, assert_never

from holdfast.collections import RenditionState
from holdfast.collections.frontiers import retained_since
from holdfast.errors import HoldfastError
from holdfast.ingest.opened import format_of, left_in_source
from holdfast.ingest.spec import parse
from holdfast.persist import Schema
from holdfast.persist.rows.evolution import evolution_fault
from holdfast.text import one_line
from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ANNOTATION_ABANDON, ConditionType, Reason
from holdfast_operator.collections import renditions, snapshot_schedule
from holdfast_operator.collections.facts import CatalogState, CollectionFacts, CollectionView, ItemName
from holdfast_operator.collections.item_definition import is_out_of_date
from holdfast_operator.collections.renditions import RenditionReport, RenditionsView, has_layout, made_of
from holdfast_operator.collections.restore import restore_asked, restore_notes
from holdfast_operator.collections.status import (
    collection_conditions,
    rendition_notes,
    source_conditions,
    source_fields,
    status_fields,
)
from holdfast_operator.collections.steps import (
    CommentColumns,
    CreateCollection,
    DropCollection,
    DropItem,
    EnsureItem,
    Erase,
    EvolveColumns,
    LongChange,
    Retain,
)
from holdfast_operator.engine.deletion import LIMIT, left
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import Health, WantedCondition
from holdfast_operator.engine.steps import (
    SUSPENDED,
    Decision,
    Free,
    Keep,
    KeepCatalog,
    Release,
    Rhythm,
    Settle,
    Wait,
    ready,
    reconciling,
    stalled,
)
from holdfast_operator.jobs import hydration, ingestion
from holdfast_operator.jobs import requested as askedjobs
from holdfast_operator.jobs.course import COLLECTION_SUSPENDED, failed, stopped
from holdfast_operator.jobs.requested import RequestedReport
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob, StartJob

_RETENTION_GRAIN: Final = 100
"""The retention hold moves in steps of this fraction of the retention, to avoid a write at every
reconciliation."""

_AHEAD_SECONDS: Final = 600.0
"""How often to check a collection whose time is ahead of the clock."""

_DELETED: Final = "the StorageCollection is being deleted"


def schema_of(spec: StorageCollectionSpec) -> Schema:
    """Returns the schema that a spec describes. Without `spec.key`, all columns are the key.

    Raises `HoldfastError` if the columns are not a valid schema.
    """
    columns = tuple((each.name, f"{each.type}?" if each.nullable else each.type) for each in spec.columns)
    return _schema_of(columns, tuple(spec.key))


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[tuple[str, str], ...], key: tuple[str, ...]) -> Schema:
    """Returns a schema. Many collections have the same columns, and each is planned often."""
    types = dict(columns)
    keys = key or tuple(types)
    return Schema.of(
        key={name: types[name] for name in keys},
        value={name: type_ for name, type_ in types.items() if name not in keys},
    )


def changed_comments(facts: CollectionFacts, spec: StorageCollectionSpec) -> dict[str, str | None]:
    """Returns the comments, by column, that differ between spec and collection. None removes a comment."""
    wanted = {column.name: column.comment or None for column in spec.columns}
    return {name: text for name, text in wanted.items() if text != facts.comments.get(name)}


def source_fault(spec: StorageCollectionSpec, schema: Schema) -> str:
    """Returns what is wrong with `spec.source`, or empty."""
    if spec.source is None:
        return ""
    try:
        source = parse(spec.source.block, "spec.source")
        # A file with a schema is only where the job runs.
        if source.format != "avro":
            format_of(source, schema)
    except HoldfastError as error:
        return one_line(str(error))
    return ""


def _left_in_source(spec: StorageCollectionSpec, collection_id: str) -> str:
    """Returns what the source of a deleted collection still keeps for it, or empty."""
    if spec.source is None:
        return ""
    return left_in_source(parse(spec.source.block), collection_id)


def item_name(spec: StorageCollectionSpec, name: str) -> ItemName:
    """Returns the full name of the item of the resource `name`."""
    return ItemName(spec.database, spec.schema_name, spec.name or name)


def plan(seen: CollectionView, rhythm: Rhythm) -> Decision:
    """Returns the next step."""
    if seen.deleting:
        return _plan_deletion(seen, rhythm)
    if seen.needs_finalizer and seen.catalog_loose:
        return KeepCatalog()
    if seen.needs_finalizer and not seen.has_finalizer:
        return Keep()
    step = _plan(seen, rhythm)
    if isinstance(step, StartJob | RetryJob | LaunchAttempt):
        if seen.catalog_loose:
            return KeepCatalog()
        if not seen.has_finalizer:
            return Keep()
    free = seen.has_finalizer and not seen.needs_finalizer and isinstance(step, Settle)
    return Free() if free else step


def needs_finalizer(seen: CollectionView) -> bool:
    """Returns whether a deletion must delete data, or record the end of a Spark attempt."""
    if seen.asks_to_delete or seen.shown_running or seen.has_waiting_snapshots:
        return True
    return seen.facts is not None and _without_driver(seen, "") is not None


def _plan(seen: CollectionView, rhythm: Rhythm) -> Decision:
    if seen.spec is None:
        return Settle(stalled(Reason.INVALID_SPEC, f"{seen.problem}; correct the spec"))
    if seen.spec.suspend:
        return _plan_suspended(seen, seen.spec)
    if seen.older_twin is not None:
        text = f"{seen.older_twin} already has this name in the same catalog; delete one of the two"
        return Settle(stalled(Reason.DUPLICATE_COLLECTION, text), requeue_after=rhythm.steady)
    try:
        schema = schema_of(seen.spec)
    except HoldfastError as error:
        return Settle(stalled(Reason.INVALID_SCHEMA, f"{error}; correct spec.columns and spec.key"))
    if seen.catalog is not CatalogState.OPEN:
        return _without_catalog(seen.catalog, seen.spec, rhythm)
    return _plan_create(seen, seen.spec, schema, rhythm)


def _plan_suspended(seen: CollectionView, spec: StorageCollectionSpec) -> Decision:
    if seen.facts is None:
        return Settle(SUSPENDED)
    if (ended := _without_driver(seen, COLLECTION_SUSPENDED)) is not None:
        # The job continues when the suspension ends.
        return ended
    fields = dict(_fields(seen, spec, seen.facts))
    for each in seen.asked:
        fields |= askedjobs.job_fields(each)
    return Settle(SUSPENDED, fields={**fields, **source_fields(seen.source, seen.progress, {})})


def _without_driver(seen: CollectionView, why: str) -> FailAttempt | None:
    """Returns a step that ends a Spark attempt, or None if there is none or another process must end it."""
    if seen.catalog_observed:
        return None
    jobs = (seen.hydrations, seen.source, *seen.asked)
    ends = (stopped(each, each.running, why) for each in jobs if each is not None)
    # A CollectionSnapshot deletes the application of its job itself.
    others = (failed(job, why, stopped=True) for job in seen.snapshots_running)
    return next((ended for ended in chain(ends, others) if ended is not None), None)


def _fields(seen: CollectionView, spec: StorageCollectionSpec, facts: CollectionFacts) -> Mapping[str, Any]:
    jobs = hydration.job_statuses(seen.hydrations, facts.renditions)
    if seen.source is not None:
        jobs = {**jobs, **ingestion.fill_status(seen.source)}
    fields = {**status_fields(facts, seen.item_id, spec, jobs), **seen.last_snapshot}
    if seen.snapshots is not None:
        fields[snapshot_schedule.FIELD] = seen.snapshots.shown.model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
    return fields


def _without_catalog(
    catalog: Literal[CatalogState.MISSING, CatalogState.DELETING, CatalogState.CLOSED, CatalogState.OPENING],
    spec: StorageCollectionSpec,
    rhythm: Rhythm,
) -> Settle | Wait:
    name = spec.catalog_ref.name
    match catalog:
        case CatalogState.MISSING:
            text = f"there is no Catalog '{name}' in this namespace; create it or correct spec.catalogRef"
            return Settle(stalled(Reason.CATALOG_NOT_FOUND, text), requeue_after=rhythm.steady)
        case CatalogState.DELETING:
            text = f"Catalog '{name}' is being deleted; delete this resource too"
            return Settle(stalled(Reason.CATALOG_DELETING, text), requeue_after=rhythm.steady)
        case CatalogState.CLOSED:
            text = f"waiting for Catalog '{name}' to be ready; check its conditions"
            return Settle(reconciling(Reason.CATALOG_NOT_READY, text), requeue_after=rhythm.steady)
        case CatalogState.OPENING:
            # The status stays as it is until the Catalog's status changes.
            return Wait(requeue_after=rhythm.steady)
        case _:
            assert_never(catalog)


def _plan_create(
    seen: CollectionView, spec: StorageCollectionSpec, schema: Schema, rhythm: Rhythm
) -> Decision:
    item, shards = item_name(spec, seen.name), spec.rendition.shards
    if seen.catalog_observed and seen.facts is None:
        return Settle(_left_to_writer(seen, spec, item), requeue_after=rhythm.steady)
    if fault := source_fault(spec, schema):
        return Settle(stalled(Reason.INVALID_SPEC, f"{fault}; correct spec.source"))
    if seen.item_id is None or seen.collection_id is None:
        return EnsureItem(item, schema, shards)
    facts = seen.facts
    if facts is None:
        return CreateCollection(seen.collection_id, item, schema, shards, made_of(spec))
    if facts.dropped or not facts.renditions:
        text = (
            f"{item} was dropped from storage, but is still in the catalog; remove the item from the catalog"
        )
        return Settle(stalled(Reason.SCHEMA_MISMATCH, text))
    if seen.catalog_observed and (facts.schema != schema or not has_layout(facts, spec)):
        return Settle(stalled(Reason.SCHEMA_MISMATCH, _mismatch(facts, schema, shards)))
    if seen.catalog_observed:
        return _plan_bound(seen, spec, facts, rhythm)
    if fault := evolution_fault(facts.schema, schema):
        return Settle(stalled(Reason.SCHEMA_MISMATCH, _mismatch(facts, schema, shards, fault)))
    if facts.schema != schema:
        return EvolveColumns(facts.collection_id, facts.schema, schema)
    if comments := changed_comments(facts, spec):
        return CommentColumns(facts.collection_id, comments)
    if is_out_of_date(seen.definition, schema, facts.shards):
        return EnsureItem(item, schema, facts.shards)
    if not facts.due and _due(seen, facts):
        return Retain(facts.collection_id, seen.retention_since or 0)
    return _plan_there(seen, spec, facts, rhythm)


def _plan_there(
    seen: CollectionView, spec: StorageCollectionSpec, facts: CollectionFacts, rhythm: Rhythm
) -> Decision:
    """The collection exists with its columns. Plans the requested jobs and the renditions."""
    reports: list[RequestedReport] = []
    fields: dict[str, Any] = {}
    for next_of in (askedjobs.plan, askedjobs.plan_scheduled):
        for each in seen.asked:
            report = next_of(each)
            if isinstance(report, Decision):
                return report
            reports.append(report)
            fields.update(report.fields)
    report = snapshot_schedule.plan(seen.snapshots)
    if isinstance(report, Decision):
        return report
    reports.append(report)
    fields.update(report.fields)
    if seen.source is not None:
        report = ingestion.plan(seen.source)
        if isinstance(report, Decision):
            return report
        reports.append(report)
        fields.update(source_fields(seen.source, seen.progress, report.fields))
    shape = renditions.plan(
        RenditionsView(
            facts=facts,
            spec=spec,
            restore_place=seen.restore_place,
            hydrations=seen.hydrations,
            shown=dict(seen.shown),
            now=seen.reached,
        )
    )
    if isinstance(shape, Decision) and not isinstance(shape, LongChange):
        return shape
    # The next poll notices changes in the store.
    due = [report.requeue_after for report in reports]
    if any(report.asks_again for report in reports):
        due.append(rhythm.steady)
    if isinstance(shape, LongChange) or shape.soon:
        due.append(rhythm.unsteady)
    if isinstance(shape, RenditionReport):
        due.append(shape.after)
    conditions = collection_conditions(facts, spec, seen.now)
    if any(each.type is ConditionType.TIME_AHEAD for each in conditions):
        # It ends as time passes, without any change in the store.
        due.append(_AHEAD_SECONDS)
    settle = Settle(
        shape.health or ready(f"collection {facts.name} with {facts.shards} shards"),
        fields={**_fields(seen, spec, facts), **fields},
        conditions=(
            *(report.condition for report in reports if report.condition is not None),
            *source_conditions(spec, seen.progress, seen.now),
            *conditions,
        ),
        requeue_after=min((each for each in due if each is not None), default=None),
        notes=(
            *(note for report in reports for note in report.notes),
            *rendition_notes(seen.shown, facts),
            *restore_notes(seen.shown, facts, spec),
        ),
    )
    if isinstance(shape, LongChange):
        return replace(shape, resting=settle)
    return replace(settle, requeue_after=0.0) if shape.at_once else settle


def _plan_bound(
    seen: CollectionView, spec: StorageCollectionSpec, facts: CollectionFacts, rhythm: Rhythm
) -> Decision:
    """The collection exists in a catalog that another process writes. Shows it, and changes nothing."""
    health = ready(
        f"collection {facts.name} with {facts.shards} shards; its database process manages comments, "
        "retention and renditions, and drops it"
    )
    text = "the operator runs no jobs in an Observed catalog; let its database process do it"
    asked = {
        ConditionType.SCHEDULED_SNAPSHOT_COMPLETED: spec.snapshot_schedule,
        ConditionType.COMPACTION_COMPLETED: next((each.request for each in seen.asked), None),
        ConditionType.SCHEDULED_COMPACTION_COMPLETED: spec.compaction_schedule,
        ConditionType.SOURCE_STALLED: spec.source,
    }
    refused = [
        WantedCondition(
            type_, "True" if type_ is ConditionType.SOURCE_STALLED else "False", Reason.CATALOG_OBSERVED, text
        )
        for type_, field in asked.items()
        if field is not None
    ]
    restore = restore_asked(facts, spec)
    if restore is not None and not restore.done:
        text = "the operator doesn't restore into an Observed catalog; let its database process do it"
        refused.append(WantedCondition(ConditionType.RESTORED, "False", Reason.CATALOG_OBSERVED, text))
    return Settle(
        health,
        fields=status_fields(facts, seen.item_id, spec),
        conditions=(*refused, *collection_conditions(facts, spec, seen.now)),
        requeue_after=rhythm.steady,
        notes=rendition_notes(seen.shown, facts),
    )


def _left_to_writer(seen: CollectionView, spec: StorageCollectionSpec, item: ItemName) -> Health:
    """Returns what the database process must do to create a collection in an Observed catalog."""
    if seen.collection_id is None:
        missing = f"Catalog '{spec.catalog_ref.name}' is Observed and has no item {item}"
        call = f'ensure_item("{item.database}", "{item.schema}", "{item.name}") on its open catalog'
    else:
        missing = (
            f"item {item} of the Observed Catalog '{spec.catalog_ref.name}' has no collection in storage"
        )
        call = (
            f'StorageController.create_collection(CollectionSpec("{seen.collection_id}", "{item}", schema, '
            f"shards={spec.rendition.shards}))"
        )
    return stalled(Reason.CATALOG_OBSERVED, f"{missing}: let its database process call {call}")


def _due(seen: CollectionView, facts: CollectionFacts) -> bool:
    """Returns whether the retention releases enough history for a write to be worthwhile.

    History that other holds need is not counted. History that they needed until now is, because a since stays
    where it is until somebody moves it.
    """
    target = seen.retention_since
    if target is None:
        return False
    grain = max((facts.upper - target) // _RETENTION_GRAIN, 1)
    held = (each for each in facts.renditions if each.state is not RenditionState.HYDRATING)
    behind = (
        min(retained_since(target, facts.since, each.start), each.needed, each.upper - 1) - each.oldest
        for each in held
    )
    return max(min(target, facts.needed) - facts.since, *behind) >= grain


def _mismatch(facts: CollectionFacts, schema: Schema, shards: int, fault: str = "") -> str:
    if facts.schema == schema:
        what = f"it has {facts.shards} shards, spec.rendition.shards is {shards}"
    elif fault:
        what = f"{fault}; it has {_columns(facts.schema)}"
    else:
        what = f"it has {_columns(facts.schema)}, the spec has {_columns(schema)}"
    return f"collection {facts.name} exists and differs: {what}; correct the spec or choose another name"


def change_message(before: Schema, schema: Schema) -> str:
    """Returns one line about the columns that an evolution added or widened."""
    old = {column.name: column for column in before.columns}
    added = [str(column) for column in schema.columns if column.name not in old]
    wider = [
        f"{old[column.name]} became {column.type}{'?' if column.nullable else ''}"
        for column in schema.columns
        if column.name in old and column != old[column.name]
    ]
    return "; ".join([*([f"added {', '.join(added)}"] if added else []), *wider])


def _columns(schema: Schema) -> str:
    key = ", ".join(map(str, schema.key))
    value = ", ".join(map(str, schema.value))
    return f"key ({key})" + (f" and ({value})" if value else "")


def _plan_deletion(seen: CollectionView, rhythm: Rhythm) -> Decision:
    # If an older resource has the same name, the data belongs to it.
    if not seen.has_finalizer or seen.older_twin is not None:
        return Release()
    if seen.spec is None:
        return _plan_unread(seen)
    if seen.spec.deletion_policy != DeletionPolicy.DELETE:
        return _plan_leaving(seen, seen.spec, rhythm)
    # A Catalog outlives its collections. So if it doesn't exist, this collection never had any data.
    nowhere = seen.catalog_void or seen.catalog is CatalogState.MISSING
    if nowhere and not seen.created and not seen.catalog_open:
        return Release()
    item = item_name(seen.spec, seen.name)
    if seen.catalog_observed:
        text = (
            f"collection {item} and its data stay, because the operator changes nothing in an Observed "
            "catalog; let the database process drop it"
        )
        return Release((Note(Reason.DELETION_INCOMPLETE, text, warning=True),))
    # If the catalog isn't open, there is nothing to try before the data is abandoned.
    if seen.deletion.abandoned or (seen.deletion.asked and not seen.catalog_open):
        what = "stay" if seen.created else "stay, if they were ever created"
        return Release((left(f"collection {item} and its data {what}", seen.deletion),))
    if seen.catalog is CatalogState.MISSING and not seen.catalog_open:
        text = f"there is no Catalog '{seen.spec.catalog_ref.name}', so collection {item} can't be dropped"
        text = f"{text}: create the Catalog again, with the same organizationId and storage"
        return Settle(stalled(Reason.CATALOG_NOT_FOUND, text), requeue_after=rhythm.steady)
    if not seen.catalog_open:
        return _waiting_for_catalog(seen.spec, rhythm)
    return _plan_drop(seen, seen.spec, item, rhythm)


def _plan_unread(seen: CollectionView) -> Decision:
    """The spec can't be parsed, except for its deletion policy."""
    if not seen.asks_to_delete or not seen.created:
        return Release()
    if seen.deletion.abandoned:
        return Release((left("the collection and its data stay", seen.deletion),))
    text = f"{seen.problem}; correct the spec, so that the operator can delete the data"
    return Settle(stalled(Reason.INVALID_SPEC, text))


def _plan_leaving(seen: CollectionView, spec: StorageCollectionSpec, rhythm: Rhythm) -> Decision:
    """The data stays, but running attempts must end, because nobody would watch them and they hold history.

    If the store can't be read, the status shows whether attempts are running. Without them there is no need
    to wait.
    """
    facts = seen.facts if seen.catalog_open else None
    if facts is not None:
        ours = seen.created or _is_as_asked(facts, spec)
        return (_without_driver(seen, _DELETED) if ours else None) or Release()
    if not seen.shown_running or seen.catalog_void:
        return Release()
    gone = seen.catalog is CatalogState.MISSING and not seen.catalog_open
    if seen.deletion.overdue or seen.deletion.asked or seen.catalog_observed or gone:
        text = (
            f"{_why_left(seen, spec)}: {', '.join(seen.shown_running)} of collection "
            f"{item_name(spec, seen.name)} could not be stopped, and its hold keeps old history; to stop it, "
            "apply the resource again"
        )
        return Release((Note(Reason.DELETION_INCOMPLETE, text, warning=True),))
    return Release() if seen.catalog_open else _waiting_for_catalog(spec, rhythm)


def _why_left(seen: CollectionView, spec: StorageCollectionSpec) -> str:
    """Returns why the attempts of a collection can't be ended."""
    if seen.catalog_observed:
        return "the operator writes nothing to an Observed catalog"
    if seen.catalog is CatalogState.MISSING:
        return f"there is no Catalog '{spec.catalog_ref.name}'"
    if seen.deletion.asked:
        return f"abandoned by the annotation {ANNOTATION_ABANDON}"
    why = seen.deletion.last_failure or f"Catalog '{spec.catalog_ref.name}' isn't open"
    return f"the catalog could not be written for {LIMIT // 60} minutes ({why})"


def _waiting_for_catalog(spec: StorageCollectionSpec, rhythm: Rhythm) -> Settle:
    text = f"deletion waits for Catalog '{spec.catalog_ref.name}' to be ready; check its conditions"
    return Settle(reconciling(Reason.WAITING_FOR_CATALOG, text), requeue_after=rhythm.unsteady)


def _plan_drop(seen: CollectionView, spec: StorageCollectionSpec, item: ItemName, rhythm: Rhythm) -> Decision:
    """Decides by what the store holds, because a status may never have been written."""
    facts = seen.facts
    if facts is not None and not seen.created and not _is_as_asked(facts, spec):
        text = (
            f"collection {item} and its data stay: its columns or shards differ from the spec, so this "
            "resource did not create it"
        )
        return Release((Note(Reason.DELETION_INCOMPLETE, text, warning=True),))
    if seen.collection_id is not None and facts is not None and not facts.dropped:
        if (ended := _without_driver(seen, _DELETED)) is not None:
            return ended
        forgetting = ingestion.plan_forget(seen.source) if seen.source is not None else None
        return forgetting or DropCollection(seen.collection_id)
    if facts is not None and facts.dropped and not facts.erased:
        health = reconciling(Reason.DELETING, f"collection {item} is dropped, and its data is being deleted")
        return Erase(facts.collection_id, "", health, Settle(health, requeue_after=rhythm.unsteady))
    if seen.item_id is None:
        return Release()
    left = "" if ingestion.is_forgotten(seen.source) else _left_in_source(spec, seen.collection_id or "")
    if left:
        left = f"the source may still keep {left} ({ingestion.why_not_forgotten(seen.source)})"
    return DropItem(item, left)


def _is_as_asked(facts: CollectionFacts, spec: StorageCollectionSpec) -> bool:
    try:
        return (facts.schema, facts.shards) == (schema_of(spec), spec.rendition.shards)
    except HoldfastError:
        return False
