"""`kubectl holdfast snapshot`, `compact`, `handover`, `holds` and `source`: StorageCollections."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click

from holdfast.errors import BadInput
from holdfast.text import one_line
from holdfast_operator.api.names import ANNOTATION_COMPACT, API_VERSION, Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, emit, output_option, tell, wait_options
from holdfast_operator.kubectl.picture import compaction_text, condition, moment, state_of
from holdfast_operator.kubectl.wait import Done, GivenUp, wait

Json = dict[str, Any]

_PLACES: Final = frozenset({"destination", "iceberg"})
_MAX_STEM: Final = 200
_COMPACTION: Final = "CompactionCompleted"
_OF_SOURCE: Final = ("SourceStalled", "ScheduledIngestionCompleted", "Lagging", "ErrorsCollected")


@click.command()
@click.argument("collection")
@click.option(
    "--name", metavar="NAME", help="Name of the CollectionSnapshot. The default has the time in it."
)
@click.option(
    "--destination",
    metavar="URL",
    help="The folder to write to. The default is that of the collection's schedule.",
)
@click.option(
    "--as-of",
    metavar="MS",
    type=click.IntRange(min=0),
    help="The time to read at. The default is the latest complete time.",
)
@click.option("--delete-files", is_flag=True, help="Delete the files when the CollectionSnapshot is deleted.")
@wait_options(1800.0)
@cluster_options()
@output_option
def snapshot(
    cluster: Cluster,
    collection: str,
    name: str | None,
    destination: str | None,
    as_of: int | None,
    delete_files: bool,
    wait: bool,
    wait_timeout: float,
    format_: str,
) -> None:
    """Create a CollectionSnapshot of a collection, which a Spark job writes."""
    there = _collection(cluster, collection)
    body = snapshot_body(there, name, destination, as_of, datetime.now(UTC), delete_files=delete_files)
    made = cluster.create(body)
    tell(made, format_, "created")
    if wait:
        _wait(cluster, made, snapshot_outcome, wait_timeout)


def snapshot_body(
    body: Json,
    name: str | None,
    destination: str | None,
    as_of: int | None,
    now: datetime,
    *,
    delete_files: bool = False,
) -> Json:
    """Returns the CollectionSnapshot to create. Raises `BadInput` if there is no destination."""
    collection, schedule = str(body["metadata"]["name"]), body["spec"].get("snapshotSchedule", {})
    if destination is None and not _PLACES & schedule.keys():
        raise BadInput(
            f"collection/{collection} has no destination for snapshots",
            hint="give one: --destination file:///folder",
        )
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.COLLECTION_SNAPSHOT.value,
        "metadata": {"name": name or f"{collection[:_MAX_STEM].rstrip('-.')}-{_stamp(now)}"},
        "spec": {
            "collectionRef": {"name": collection},
            **({} if destination is None else {"destination": destination}),
            **({} if as_of is None else {"asOf": as_of}),
            **({"deletionPolicy": "Delete"} if delete_files else {}),
        },
    }


def _stamp(now: datetime) -> str:
    """Returns a time with milliseconds, so that two requests in one second differ."""
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}"


def snapshot_outcome(body: Json) -> Done | None:
    """Returns the result of a snapshot, or None if it isn't done."""
    told = body["status"]
    if state_of(body).word != "Ready":
        return None
    rows = f", {told['rows']:,} rows" if "rows" in told else ""
    return Done(f"done: {told.get('table') or told['location']} as of {moment(told['asOf'])}{rows}")


@click.command()
@click.argument("collection")
@wait_options(1800.0)
@cluster_options()
@output_option
def compact(cluster: Cluster, collection: str, wait: bool, wait_timeout: float, format_: str) -> None:
    """Merge the batches of each shard of a collection into one, with a Spark job."""
    there = _collection(cluster, collection)
    asked = f"manual-{_stamp(datetime.now(UTC))}"
    change = {"metadata": {"annotations": {ANNOTATION_COMPACT: asked}}}
    changed = cluster.patch(Kind.STORAGE_COLLECTION, there["metadata"]["name"], change)
    tell(changed, format_, f"requests compaction {asked}")
    if wait:
        _wait(cluster, changed, compaction_outcome(asked), wait_timeout, _COMPACTION)


def compaction_outcome(request_id: str) -> Callable[[Json], Done | None]:
    """Returns a function that returns the result of this compaction, or None if it isn't done."""

    def outcome(body: Json) -> Done | None:
        told, mark = body["status"], condition(body, _COMPACTION)
        last = told.get("lastCompaction", {})
        if last.get("requestId") == request_id:
            return Done(f"done: {compaction_text(last)}")
        # An annotation doesn't change the generation. So the condition may be that of an earlier request.
        if told.get("compactionRequest") != request_id or mark is None or mark["status"] != "False":
            return None
        if not mark["reason"].endswith("Retrying"):
            raise GivenUp(f"{mark['reason']}: {mark['message']}")
        return None

    return outcome


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
        # Without a job nobody looks at the source.
        is_suspended = body["spec"].get("suspend") or spec.get("run", {}).get("suspend")
        then = f" as of {moment(complete)}" if is_suspended else ""
        behind = f", {told['behind']:,} behind{then}" if "behind" in told else ""
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
