"""`kubectl holdfast snapshot`, `compact`, `handover`, `holds` and `source`: StorageCollections."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click

from holdfast.errors import BadInput
from holdfast.text import one_line
from holdfast_operator.api.names import Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, emit, output_option, tell, wait_options
from holdfast_operator.kubectl.picture import compaction_text, condition, moment, state_of
from holdfast_operator.kubectl.wait import Done, GivenUp, wait

Json = dict[str, Any]

_PLACES: Final = frozenset({"destination", "iceberg"})
_SNAPSHOT: Final = "SnapshotCompleted"
_COMPACTION: Final = "CompactionCompleted"
_OF_SOURCE: Final = ("SourceStalled", "ScheduledIngestionCompleted", "Lagging", "ErrorsCollected")


@click.command()
@click.argument("collection")
@click.option(
    "--destination",
    metavar="URL",
    help="The folder to write to. The default is the folder of the last request or of the schedule.",
)
@click.option(
    "--as-of",
    metavar="MS",
    type=click.IntRange(min=0),
    help="The time to read at. The default is the latest complete time.",
)
@click.option("--request-id", metavar="ID", help="Id of the request. The same id never runs twice.")
@wait_options(1800.0)
@cluster_options()
@output_option
def snapshot(
    cluster: Cluster,
    collection: str,
    destination: str | None,
    as_of: int | None,
    request_id: str | None,
    wait: bool,
    wait_timeout: float,
    format_: str,
) -> None:
    """Write a snapshot of a collection with a Spark job."""
    there = _collection(cluster, collection)
    asked = snapshot_request(there, destination, as_of, request_id, datetime.now(UTC))
    changed = cluster.patch(Kind.STORAGE_COLLECTION, there["metadata"]["name"], {"spec": {"snapshot": asked}})
    tell(changed, format_, f"requests snapshot {asked['requestId']}")
    if wait:
        _wait(cluster, changed, snapshot_outcome(asked["requestId"]), wait_timeout, _SNAPSHOT)


def snapshot_request(
    body: Json, destination: str | None, as_of: int | None, request_id: str | None, now: datetime
) -> Json:
    """Returns the new `spec.snapshot`. Keeps its Spark template, or uses the template of the schedule.

    Raises `BadInput` if there is no destination.
    """
    before, schedule = (body["spec"].get(name, {}) for name in ("snapshot", "snapshotSchedule"))
    places = ({"destination": destination} if destination else {}, before, schedule)
    place = next((each for each in places if _PLACES & each.keys()), None)
    if place is None:
        raise BadInput(
            f"collection/{body['metadata']['name']} has no destination for snapshots yet",
            hint="give one: --destination file:///folder",
        )
    # None removes a place that was set before and isn't requested now.
    where = {name: place.get(name) for name in _PLACES if name in place or name in before}
    return {**_request(before, schedule, request_id, now), **where, "asOf": as_of}


def _request(before: Json, schedule: Json, request_id: str | None, now: datetime) -> Json:
    """Returns a new request. Keeps the Spark template of `before`, or uses the template of the schedule."""
    # The id contains milliseconds, so that two requests in one second are two jobs.
    asked = request_id or f"manual-{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}"
    if asked == before.get("requestId"):
        raise BadInput(f"request {asked!r} already exists", hint="give another --request-id, or none")
    template = {} if before or "spark" not in schedule else {"spark": schedule["spark"]}
    return {"requestId": asked, **template}


def snapshot_outcome(request_id: str) -> Callable[[Json], Done | None]:
    """Returns a function that returns the result of this snapshot, or None if it isn't done."""

    def done(last: Json) -> str:
        rows = f", {last['rows']:,} rows" if "rows" in last else ""
        return f"{last['destination']} as of {moment(last['asOf'])}{rows}"

    return _outcome(request_id, "lastSnapshot", _SNAPSHOT, done)


def _outcome(
    request_id: str, field: str, shown: str, done: Callable[[Json], str]
) -> Callable[[Json], Done | None]:
    """Returns a function that returns the result of a request's job from `status.<field>`, or None."""

    def outcome(body: Json) -> Done | None:
        last, mark = body["status"].get(field, {}), condition(body, shown)
        if last.get("requestId") == request_id:
            return Done(f"done: {done(last)}")
        if mark is not None and mark["status"] == "False" and not mark["reason"].endswith("Retrying"):
            raise GivenUp(f"{mark['reason']}: {mark['message']}")
        return None

    return outcome


@click.command()
@click.argument("collection")
@click.option("--request-id", metavar="ID", help="Id of the request. The same id never runs twice.")
@wait_options(1800.0)
@cluster_options()
@output_option
def compact(
    cluster: Cluster,
    collection: str,
    request_id: str | None,
    wait: bool,
    wait_timeout: float,
    format_: str,
) -> None:
    """Merge the batches of each shard of a collection into one, with a Spark job."""
    there = _collection(cluster, collection)
    asked = compaction_request(there, request_id, datetime.now(UTC))
    change = {"spec": {"compaction": asked}}
    changed = cluster.patch(Kind.STORAGE_COLLECTION, there["metadata"]["name"], change)
    tell(changed, format_, f"requests compaction {asked['requestId']}")
    if wait:
        _wait(cluster, changed, compaction_outcome(asked["requestId"]), wait_timeout, _COMPACTION)


def compaction_request(body: Json, request_id: str | None, now: datetime) -> Json:
    """Returns the new `spec.compaction`, with the Spark template as for a snapshot. Raises `BadInput`."""
    before, schedule = (body["spec"].get(name, {}) for name in ("compaction", "compactionSchedule"))
    return _request(before, schedule, request_id, now)


def compaction_outcome(request_id: str) -> Callable[[Json], Done | None]:
    """Returns a function that returns the result of this compaction, or None if it isn't done."""
    return _outcome(request_id, "lastCompaction", _COMPACTION, compaction_text)


@click.command()
@click.argument("collection")
@click.option("--to", "rendition", metavar="ID", help="The rendition. The default is the next one.")
@wait_options(600.0)
@cluster_options()
@output_option
def handover(
    cluster: Cluster, collection: str, rendition: str | None, wait: bool, wait_timeout: float, format_: str
) -> None:
    """Let the next rendition of a collection take over. Needs spec.handover.policy Manual."""
    there = _collection(cluster, collection)
    to = handover_to(there, rendition)
    change = {"spec": {"handover": {"to": to}}}
    changed = cluster.patch(Kind.STORAGE_COLLECTION, there["metadata"]["name"], change)
    tell(changed, format_, f"hands over to {to}")
    if wait:
        _wait(cluster, changed, handover_outcome(to), wait_timeout)


def handover_to(body: Json, rendition: str | None) -> str:
    """Returns the rendition that should take over.

    Raises `BadInput` if the policy isn't Manual or there is no such rendition, and `GivenUp` if it is already
    active or can't take over.
    """
    name, told = body["metadata"]["name"], body.get("status", {})
    policy = body["spec"].get("handover", {}).get("policy", "WhenCaughtUp")
    if policy != "Manual":
        raise BadInput(
            f"collection/{name} hands over by itself: spec.handover.policy is {policy}",
            hint="to hand over manually, set it to Manual",
        )
    to = rendition or told.get("nextRendition")
    if to is None:
        raise BadInput(f"collection/{name} has no next rendition", hint="change spec.rendition to create one")
    if to == told.get("activeRendition"):
        raise GivenUp(f"rendition {to} of collection/{name} is already active")
    phases = {each["id"]: each["phase"] for each in told.get("renditions", ())}
    if to not in phases:
        raise BadInput(f"collection/{name} has no rendition {to!r}; it has {', '.join(phases) or 'none'}")
    if phases[to] not in {"Hydrating", "CaughtUp"}:
        raise GivenUp(f"rendition {to} of collection/{name} is {phases[to]}: it can't take over")
    return str(to)


def handover_outcome(to: str) -> Callable[[Json], Done | None]:
    """Returns a function that returns a result when the rendition has taken over, and otherwise None."""

    def outcome(body: Json) -> Done | None:
        told = body["status"]
        if told.get("activeRendition") != to:
            return None
        at = told.get("handover", {}).get("at")
        return Done(
            f"done: {to} is the active rendition" + (f" since {moment(at)}" if at is not None else "")
        )

    return outcome


@click.command()
@click.argument("collection")
@cluster_options()
@output_option
def holds(cluster: Cluster, collection: str, format_: str) -> None:
    """Show the holds that keep retired renditions of a collection in addition to its retention."""
    from holdfast_operator.kubectl.status_command import hold_lines, holds_left_out, width

    there = _collection(cluster, collection)
    told = there.get("status", {})
    if format_ != "table":
        emit(told.get("holds", []), format_)
        if more := holds_left_out(told):
            click.echo(more, err=True)
        return
    lines = list(hold_lines(told, datetime.now(UTC), width()))
    if not lines:
        click.echo(f"Nobody holds retired renditions of collection/{there['metadata']['name']}.")
    for line in lines[1:]:
        click.echo(line)


@click.command()
@click.argument("collection")
@cluster_options()
@output_option
def source(cluster: Cluster, collection: str, format_: str) -> None:
    """Show how far the source of a collection is read, and what is wrong with it."""
    there = _collection(cluster, collection)
    name = there["metadata"]["name"]
    if "source" not in there["spec"]:
        raise BadInput(f"collection/{name} has no source", hint="applications write it")
    told = there.get("status", {}).get("source", {})
    if format_ != "table":
        emit(told, format_)
        return
    for line in source_lines(there, datetime.now(UTC)):
        click.echo(line)


def source_lines(body: Json, now: datetime) -> list[str]:
    """Returns the lines that show a source: what it is, its job, how far it is read, and its conditions."""
    told, spec = body.get("status", {}).get("source", {}), body["spec"]["source"]
    kind = next(each for each in ("kafka", "files", "postgres", "collection", "generator") if each in spec)
    names = ("topic", "path", "table", "name")
    name = next((spec[kind][each] for each in names if each in spec[kind]), "")
    lines = [f"SOURCE    {kind} {one_line(name)}".rstrip()]
    if job := told.get("job"):
        application = f", {job['application']}" if "application" in job else ""
        lines.append(f"JOB       attempt {job['attempt']}, {job['state']}{application}")
    if (complete := told.get("completeBefore")) is not None:
        ago = max(0, int(now.timestamp() - complete / 1000)) if isinstance(complete, int) else 0
        lines.append(f"COMPLETE  before {moment(complete)}, {ago:,} s ago")
        behind = f", {told['behind']:,} behind" if "behind" in told else ""
        lines.append(f"MESSAGES  {told.get('messages', 0):,} read, {told.get('errors', 0):,} bad{behind}")
    else:
        lines.append("COMPLETE  nothing has been read yet")
    shown = (condition(body, type_) for type_ in _OF_SOURCE)
    lines += [f"{each['type']}: {each['status']}, {each['message']}" for each in shown if each is not None]
    partitions = [{**each, "partition": one_line(each["partition"])} for each in told.get("partitions", ())]
    if partitions:
        wide = max(len("PARTITION"), *(len(each["partition"]) for each in partitions))
        lines += ["", f"{'PARTITION'.ljust(wide)}  POSITION"]
        lines += [
            f"{each['partition'].ljust(wide)}  {each['position']:,}{_behind(each)}" for each in partitions
        ]
        if (total := told.get("partitionsTotal")) is not None:
            lines.append(f"... and {total - len(partitions):,} more")
    return lines


def _behind(partition: Json) -> str:
    return f", {partition['behind']:,} behind" if "behind" in partition else ""


def _collection(cluster: Cluster, text: str) -> Json:
    return cluster.get(Kind.STORAGE_COLLECTION, names.name_of(text, Kind.STORAGE_COLLECTION))


def _wait(
    cluster: Cluster,
    body: Json,
    outcome: Callable[[Json], Done | None],
    seconds: float,
    shown: str | None = None,
) -> None:
    """Waits for an outcome. Shows the message of the condition `shown` meanwhile, while that is Unknown."""

    def told(found: Json) -> str:
        mark = None if shown is None else condition(found, shown)
        state = state_of(found)
        running = mark is not None and mark["status"] == "Unknown"
        return str(mark["message"]) if mark is not None and running else f"{state.reason}: {state.message}"

    wait(cluster, body, outcome, seconds=seconds, told=told)
