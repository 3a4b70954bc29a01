"""`kubectl holdfast status`: an overview of catalogs, collections and migrations."""

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from holdfast_operator.api.names import Kind
from holdfast_operator.api.urls import public
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster, NoSuchObject
from holdfast_operator.kubectl.options import cluster_options, emit, output_option
from holdfast_operator.kubectl.picture import (
    age,
    by_kind,
    catalog_of,
    compaction_text,
    kind_of,
    lag,
    moment,
    remarks,
    since,
    size,
    state_of,
    summary,
)
from holdfast_operator.kubectl.tables import Column, coloured, facts, paragraph, table

Json = dict[str, Any]

_WIDEST: Final = 140
_PLAIN_WIDTH: Final = 120
"""The width if the output is not a terminal."""
_INDENT: Final = "  "
_NAMED: Final = 4


@click.command(short_help="Show catalogs, collections and migrations, and what they wait for.")
@click.argument("name", metavar="[KIND/]NAME", required=False)
@cluster_options(everywhere=True)
@output_option
def status(cluster: Cluster, name: str | None, format_: str) -> None:
    """Show catalogs, collections and migrations, and what they wait for.

    With NAME, catalog/NAME, collection/NAME or migration/NAME: show the details of that one.
    """
    chosen = None if name is None else names.parse(name)
    bodies = cluster.ours()
    if chosen is None:
        if format_ != "table":
            grouped = by_kind(bodies)
            emit({kind.plural: [summary(each) for each in grouped[kind]] for kind in Kind}, format_)
            return
        _echo(overview(bodies, _now(), width(), everywhere=cluster.everywhere))
        return
    kind, asked = chosen
    found = [
        each for each in bodies if each["metadata"]["name"] == asked and kind in (None, Kind(each["kind"]))
    ]
    if not found:
        what = "catalog, collection or migration" if kind is None else names.short(kind)
        raise NoSuchObject(f"there is no {what} {asked!r}{_place(cluster)}", hint=_known(bodies, kind))
    if format_ != "table":
        told = [summary(each) for each in found]
        emit(told[0] if len(told) == 1 else told, format_)
        return
    for index, each in enumerate(found):
        if index:
            click.echo()
        _echo(details(each, bodies, _now(), width()))


def width() -> int:
    """Returns the width of the terminal, at most 140 columns."""
    return min(shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns, _WIDEST)


def overview(bodies: Sequence[Json], now: datetime, width: int, *, everywhere: bool) -> Iterator[str]:
    """Yields a table for each kind that has objects, and then everything that needs attention."""
    if not bodies:
        yield "No resources of Holdfast here." + ("" if everywhere else " All namespaces: -A")
        return
    first = True
    for kind, those in by_kind(bodies).items():
        if not those:
            continue
        if not first:
            yield ""
        first = False
        yield from _table_of(kind, those, now, width, everywhere=everywhere)
    ordered = [each for those in by_kind(bodies).values() for each in those]
    attention = list(_attention(ordered, width, everywhere=everywhere))
    yield ""
    if not attention:
        yield "Nothing needs attention."
        return
    yield "TO DO, OR TO WAIT FOR"
    yield from attention


def _attention(bodies: Sequence[Json], width: int, *, everywhere: bool) -> Iterator[str]:
    """Yields what needs attention. Objects with the same problem are grouped."""
    said: dict[tuple[str, str], list[str]] = {}
    for body in bodies:
        state = state_of(body)
        title = f"{names.short(kind_of(body))}/{body['metadata']['name']}"
        if everywhere:
            title = f"{body['metadata']['namespace']} {title}"
        if not state.well:
            said.setdefault((f"{state.word} {state.reason}", state.message), []).append(title)
        for each in remarks(body):
            said.setdefault((f"{each['type']} {each['reason']}", each["message"]), []).append(title)
    for (what, message), titles in said.items():
        more = f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
        yield from paragraph(f"{', '.join(titles[:_NAMED])}{more}: {what}", width, _INDENT)
        yield from paragraph(message, width, _INDENT * 2)


def _table_of(
    kind: Kind, bodies: Sequence[Json], now: datetime, width: int, *, everywhere: bool
) -> Iterator[str]:
    place = [Column("NAMESPACE")] if everywhere else []
    match kind:
        case Kind.CATALOG:
            columns = [
                *(
                    Column("CATALOG"),
                    Column("STATE", state=True),
                    Column("TRUTH"),
                    Column("EPOCH", right=True),
                ),
                *(Column("VERSION", 4, right=True), Column("UPPER", 2, right=True)),
                *(Column("SINCE", 6, right=True), Column("ACCESS", 7), Column("AGE", 5, right=True)),
            ]
            row = _catalog_row
        case Kind.CATALOG_MIGRATION:
            columns = [
                *(
                    Column("MIGRATION"),
                    Column("STATE", state=True),
                    Column("CATALOG", 2),
                    Column("TARGET", 1),
                ),
                *(Column("PHASE"), Column("STEP", 4), Column("TRUTH", 3), Column("ROWS", 6, right=True)),
                Column("AGE", 5, right=True),
            ]
            row = _migration_row
        case Kind.STORAGE_COLLECTION:
            columns = [
                *(
                    Column("COLLECTION"),
                    Column("STATE", state=True),
                    Column("CATALOG", 3),
                    Column("RENDITION", 2),
                ),
                *(Column("NEXT", 1), Column("UPPER"), Column("LAG", 1, right=True)),
                *(Column("SINCE", 5), Column("BYTES", 4, right=True), Column("AGE", 6, right=True)),
            ]
            row = _collection_row
        case Kind.COLLECTION_SNAPSHOT:
            columns = [
                *(Column("SNAPSHOT"), Column("STATE", state=True), Column("COLLECTION", 2), Column("AS OF")),
                *(Column("ROWS", right=True), Column("SIZE", 1, right=True), Column("AGE", 3, right=True)),
            ]
            row = _snapshot_row
    rows = [[*([each["metadata"]["namespace"]] if everywhere else []), *row(each, now)] for each in bodies]
    yield from table([*place, *columns], rows, width)


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _catalog_row(body: Json, now: datetime) -> list[str]:
    told, spec = body.get("status", {}), body["spec"]
    return [
        body["metadata"]["name"],
        state_of(body).word,
        *(_text(told.get(name)) for name in ("sourceOfTruth", "epoch", "catalogVersion", "upper", "since")),
        spec["access"] if spec.get("access") == "Observed" else "-",
        age(body, now),
    ]


def _migration_row(body: Json, now: datetime) -> list[str]:
    told = body.get("status", {})
    return [
        body["metadata"]["name"],
        state_of(body).word,
        catalog_of(body),
        body["spec"]["target"] + (" (dry run)" if body["spec"].get("dryRun") else ""),
        *(_text(told.get(name)) for name in ("phase", "step", "sourceOfTruth", "rows")),
        age(body, now),
    ]


def _collection_row(body: Json, now: datetime) -> list[str]:
    told = body.get("status", {})
    return [
        body["metadata"]["name"],
        state_of(body).word,
        catalog_of(body),
        _text(told.get("activeRendition")),
        _text(told.get("nextRendition")),
        moment(told.get("upper")),
        lag(told.get("upper"), now.timestamp() * 1000),
        moment(told.get("since")),
        size(told.get("bytes")),
        age(body, now),
    ]


def _snapshot_row(body: Json, now: datetime) -> list[str]:
    told = body.get("status", {})
    return [
        body["metadata"]["name"],
        state_of(body).word,
        body["spec"]["collectionRef"]["name"],
        moment(told.get("asOf")),
        _text(told.get("rows")),
        size(told.get("sizeBytes")),
        age(body, now),
    ]


def details(body: Json, all_: Sequence[Json], now: datetime, width: int) -> Iterator[str]:
    """Yields the details of one object, and the objects that refer to it."""
    state, metadata, told = state_of(body), body["metadata"], body.get("status", {})
    title = f"{body['kind']} {metadata['namespace']}/{metadata['name']}"
    yield f"{title}  {coloured(state.word)} ({state.reason})"
    yield from paragraph(state.message, width, _INDENT)
    yield ""
    match kind_of(body):
        case Kind.CATALOG:
            yield from facts(_catalog_facts(body, now), width, _INDENT)
            yield from _dependents(body, all_, now, width)
        case Kind.CATALOG_MIGRATION:
            yield from facts(_migration_facts(body, now), width, _INDENT)
            for each in told.get("plan", ()):
                yield from paragraph(each, width, _INDENT * 2)
        case Kind.STORAGE_COLLECTION:
            yield from facts(_collection_facts(body, now), width, _INDENT)
            yield from _renditions(told, width)
            yield from hold_lines(told, now, width)
        case Kind.COLLECTION_SNAPSHOT:
            yield from facts(_snapshot_facts(body), width, _INDENT)
    yield ""
    rows = [
        [each["type"], each["status"], each["reason"], since(each.get("lastTransitionTime"), now)]
        for each in told.get("conditions", ())
    ]
    if rows:
        columns = [Column("CONDITION"), Column("STATUS"), Column("REASON"), Column("FOR", 1, right=True)]
        yield from table(columns, rows, width)
    for each in remarks(body):
        yield f"{_INDENT}{each['type']}:"
        yield from paragraph(each["message"], width, _INDENT * 2)


def _snapshot_facts(body: Json) -> list[tuple[str, str]]:
    told, spec = body.get("status", {}), body["spec"]
    rows = f"{told['rows']:,} rows, {size(told.get('sizeBytes'))}" if "rows" in told else ""
    return [
        ("collection", spec["collectionRef"]["name"]),
        ("as of", moment(told.get("asOf"))),
        ("location", public(told.get("table") or told.get("location", ""))),
        ("contents", rows),
        ("checksum", told.get("checksum", "")),
        ("on deletion", f"{spec.get('deletionPolicy', 'Retain')} the files"),
    ]


def _catalog_facts(body: Json, now: datetime) -> list[tuple[str, str]]:
    told, spec = body.get("status", {}), body["spec"]
    storage = spec.get("storage", {})
    place = public(storage.get("url", "")) or " with ".join(
        public(url) for url in (storage.get("blob"), storage.get("consensus")) if url
    )
    counts = told.get("objectCounts") or {}
    generation = told.get("deployGeneration")
    epoch = f"{_text(told.get('epoch'))} of deploy generation {generation}" if generation is not None else ""
    return [
        ("organization", spec["organizationId"]),
        ("storage", place or "the operator's own volume"),
        ("stash", public(spec.get("stash", {}).get("url", ""))),
        ("truth", _text(told.get("sourceOfTruth"))),
        ("epoch", epoch),
        ("holder", _text(told.get("holder"))),
        ("version", _text(told.get("catalogVersion"))),
        ("readable", f"from {told['since']} to before {told['upper']}" if "since" in told else ""),
        ("objects", ", ".join(f"{name}={number}" for name, number in counts.items() if number)),
        ("restored", _text(told.get("restoredFrom"))),
        ("connection", f"configmap/{told['connection']['configMap']}" if "connection" in told else ""),
        ("access", spec.get("access", "")),
        ("age", age(body, now)),
    ]


def _migration_facts(body: Json, now: datetime) -> list[tuple[str, str]]:
    told, spec = body.get("status", {}), body["spec"]
    moved = f"{told['rows']:,} rows, {size(told.get('bytes'))}" if "rows" in told else ""
    return [
        ("catalog", catalog_of(body)),
        ("target", spec["target"] + (" (dry run)" if spec.get("dryRun") else "")),
        ("verify", spec.get("verify", "")),
        ("phase", _text(told.get("phase"))),
        ("step", _text(told.get("step"))),
        ("truth", _text(told.get("sourceOfTruth"))),
        ("epochs", " / ".join(f"{name} {told[key]}" for name, key in _EPOCHS if key in told)),
        ("moved", moved),
        ("id", _text(told.get("migrationId"))),
        ("began", _text(told.get("startTime"))),
        ("done", _text(told.get("completionTime"))),
        ("age", age(body, now)),
    ]


_EPOCHS: Final = (("stash", "stashEpoch"), ("persist", "persistEpoch"))


def _collection_facts(body: Json, now: datetime) -> list[tuple[str, str]]:
    told, spec = body.get("status", {}), body["spec"]
    upper, handover = told.get("upper"), told.get("handover")
    late = lag(upper, now.timestamp() * 1000)
    behind = "" if late == "-" else f", {late} ago"
    snapshot, compaction = told.get("lastSnapshot"), told.get("lastCompaction")
    return [
        ("catalog", catalog_of(body)),
        ("name", f"{spec['database']}.{spec['schema']}.{spec.get('name') or body['metadata']['name']}"),
        ("collection", _text(told.get("collectionId"))),
        ("complete", f"before {moment(upper)}{behind}" if upper is not None else ""),
        ("readable", f"from {moment(told['since'])}" if "since" in told else ""),
        ("policy", f"handover {spec.get('handover', {}).get('policy', '')}"),
        (
            "handover",
            f"{_text(handover.get('from'))} to {handover['to']} at {moment(handover['at'])}"
            if handover
            else "",
        ),
        (
            "snapshot",
            f"{snapshot['name']} as of {moment(snapshot['asOf'])}: {snapshot['location']}"
            if snapshot
            else "",
        ),
        ("schedule", _schedule_fact(body, "snapshotSchedule")),
        (
            "compaction",
            f"{compaction['requestId']}: {compaction_text(compaction)}" if compaction else "",
        ),
        ("compacts", _schedule_fact(body, "compactionSchedule")),
        ("bytes", size(told.get("bytes"))),
        ("age", age(body, now)),
    ]


def _schedule_fact(body: Json, name: str) -> str:
    """Describes a schedule and its next run. Empty if there is none."""
    asked, told = body["spec"].get(name), body.get("status", {}).get(name, {})
    if asked is None:
        return ""
    missed = f", {told['missedRuns']} missed" if told.get("missedRuns") else ""
    upcoming = "suspended" if asked.get("suspend") else f"next {_text(told.get('nextScheduleTime'))}"
    return f"{asked['schedule']} ({asked.get('timeZone', 'UTC')}): {upcoming}{missed}"


def _renditions(told: Json, width: int) -> Iterator[str]:
    rows = [
        [
            each["id"],
            each["phase"],
            *(_text(each.get("shards")), _text(each.get("rows")), size(each.get("bytes"))),
            *(moment(each.get("since")), moment(each.get("upper"))),
        ]
        for each in told.get("renditions", ())
    ]
    if not rows:
        return
    columns = [
        *(Column("RENDITION"), Column("PHASE"), Column("SHARDS", 2, right=True)),
        *(Column("ROWS", 3, right=True), Column("BYTES", 3, right=True)),
        *(Column("SINCE", 4), Column("UPPER", 1)),
    ]
    yield ""
    yield from table(columns, rows, width)
    for each in told["renditions"]:
        if waits := each.get("waitsFor"):
            yield from paragraph(f"{each['id']} waits for {waits}", width, _INDENT)


def hold_lines(told: Json, now: datetime, width: int) -> Iterator[str]:
    """Yields a table of the holds that keep retired renditions, or nothing."""
    rows = [
        [
            each["purpose"],
            *(_text(each.get("who")), _text(each.get("host"))),
            "durable" if each["durable"] else "leased",
            *(moment(each["since"]), since(each.get("heldSince"), now)),
            ", ".join(each.get("renditions", ())),
        ]
        for each in told.get("holds", ())
    ]
    if rows:
        columns = [
            *(Column("HELD FOR"), Column("WHO", 1), Column("HOST", 3), Column("HOW", 4)),
            *(Column("AS OF", 2), Column("FOR", 5, right=True), Column("KEEPS")),
        ]
        yield ""
        yield from table(columns, rows, width)
    if more := holds_left_out(told):
        yield from paragraph(more, width, _INDENT)


def holds_left_out(told: Json) -> str:
    """Returns a line about holds that the status omits, or empty if it shows all."""
    more = told.get("holdsTotal", 0) - len(told.get("holds", ()))
    if more <= 0:
        return ""
    return f"... and {more} more: see `holdfast collection holds {told['collectionId']}`"


def _dependents(body: Json, all_: Sequence[Json], now: datetime, width: int) -> Iterator[str]:
    metadata = body["metadata"]
    mine = [
        each
        for each in all_
        if each["metadata"]["namespace"] == metadata["namespace"] and catalog_of(each) == metadata["name"]
    ]
    for kind, those in by_kind(mine).items():
        if those:
            yield ""
            yield from _table_of(kind, those, now, width, everywhere=False)


def _known(bodies: Sequence[Json], kind: Kind | None) -> str:
    there = sorted(
        f"{names.short(kind_of(each))}/{each['metadata']['name']}"
        for each in bodies
        if kind in (None, kind_of(each))
    )
    more = ", ..." if len(there) > 5 else ""
    return f"there are {', '.join(there[:5])}{more}" if there else "there are none; all namespaces: -A"


def _place(cluster: Cluster) -> str:
    if cluster.everywhere:
        return " in any namespace"
    return f" in namespace {cluster.namespace}" if cluster.namespace else " in this namespace"


def _now() -> datetime:
    return datetime.now(UTC)


def _echo(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)
