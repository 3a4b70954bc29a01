"""`kubectl holdfast restore`: a collection from a snapshot, or a new Catalog from a dump or another one."""

import uuid
from pathlib import Path
from typing import Any

import click

from holdfast.errors import BadInput
from holdfast_operator.api.names import API_VERSION, Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, output_option, tell, wait_options
from holdfast_operator.kubectl.picture import condition, moment, state_of
from holdfast_operator.kubectl.wait import Done, GivenUp, wait

Json = dict[str, Any]


@click.command()
@click.argument("name", metavar="[KIND/]NAME")
@click.option(
    "--snapshot",
    metavar="NAME|URL",
    help="For a collection: a CollectionSnapshot, or the URL of the folder of a snapshot. The default is the "
    "last snapshot.",
)
@click.option("--dump", metavar="URL", help="For a catalog: the dump to fill the new Catalog NAME from.")
@click.option(
    "--from",
    "source",
    metavar="CATALOG",
    help="For a catalog: the Catalog to fill the new Catalog NAME from.",
)
@click.option(
    "--as-of", metavar="N", type=click.IntRange(min=0), help="With --from: the version of that Catalog."
)
@click.option(
    "--organization-id", metavar="UUID", help="Organization of the new Catalog. The default is a new UUID."
)
@wait_options(1800.0)
@cluster_options()
@output_option
def restore(
    cluster: Cluster,
    name: str,
    snapshot: str | None,
    dump: str | None,
    source: str | None,
    as_of: int | None,
    organization_id: str | None,
    wait: bool,
    wait_timeout: float,
    format_: str,
) -> None:
    """Restore a collection from a snapshot, or create a Catalog from a dump or another Catalog.

    A collection loses the rows that were written after the snapshot, from the time of the restore on. You can
    read earlier times as long as the retention keeps them. A catalog is never overwritten: NAME is a new
    Catalog, which --dump or --from fills.
    """
    kind, plain = names.parse(name)
    if kind is None:
        kind = Kind.CATALOG if dump or source else Kind.STORAGE_COLLECTION
    match kind:
        case Kind.STORAGE_COLLECTION:
            if dump or source or as_of is not None or organization_id:
                raise BadInput("to restore a collection, use only --snapshot")
            there = cluster.get(kind, plain)
            asked = snapshot_of(there, snapshot)
            value = _value(asked)
            # None removes what was restored before.
            change = {"snapshot": None, "snapshotRef": None, **asked}
            changed = cluster.patch(kind, plain, {"spec": {"restoreFrom": change}})
            tell(changed, format_, f"is restored from {value}")
            if wait:
                _wait_for_collection(cluster, changed, value, wait_timeout)
        case Kind.CATALOG:
            if snapshot:
                raise BadInput("to restore a catalog, use --dump or --from, not --snapshot")
            if bool(dump) == bool(source):
                raise BadInput("give the source of the new Catalog: either --dump URL or --from CATALOG")
            if dump and as_of is not None:
                raise BadInput("--as-of needs --from: a dump has only one version")
            other = cluster.get(kind, names.name_of(source, kind)) if source else None
            made = cluster.create(catalog(plain, dump, other, as_of, organization_id or str(uuid.uuid4())))
            tell(made, format_, "created")
            if wait:
                _wait_for_catalog(cluster, made, wait_timeout)
        case Kind.CATALOG_MIGRATION:
            raise BadInput("a migration can't be restored: 'kubectl holdfast rollback' rolls it back")
        case Kind.COLLECTION_SNAPSHOT:
            raise BadInput("a snapshot can't be restored: name the collection to restore")


def snapshot_of(body: Json, asked: str | None) -> Json:
    """Returns the new `spec.restoreFrom` of a collection. `asked` is a CollectionSnapshot or a URL.

    Raises `BadInput` if there is no snapshot, and `GivenUp` if it was restored already.
    """
    name, last = body["metadata"]["name"], body.get("status", {}).get("lastSnapshot", {})
    if asked is None and "table" in last:
        raise BadInput(
            f"the last snapshot of collection/{name} is the Iceberg table {last['table']}, which can't be"
            " restored",
            hint="name another one: --snapshot NAME",
        )
    found = asked or last.get("name")
    if found is None:
        raise BadInput(f"collection/{name} has no snapshot", hint="name one: --snapshot NAME, or its URL")
    if found.startswith("/"):
        found = Path(found).as_uri()
    if "://" in found:
        wanted: Json = {"snapshot": found}
    else:
        wanted = {"snapshotRef": {"name": names.name_of(found, Kind.COLLECTION_SNAPSHOT)}}
    if body["spec"].get("restoreFrom") == wanted:
        raise GivenUp(
            f"collection/{name} was already restored from {_value(wanted)}: the same one never restores twice"
        )
    return wanted


def _value(asked: Json) -> str:
    """Returns what `status.restore` shows for a restore."""
    if "snapshotRef" in asked:
        return f"CollectionSnapshot {asked['snapshotRef']['name']}"
    return str(asked["snapshot"])


def catalog(name: str, dump: str | None, other: Json | None, as_of: int | None, organization_id: str) -> Json:
    """Returns the Catalog to create, with the storage of the other one, if given. Raises `BadInput`."""
    spec: Json = {"organizationId": organization_id}
    if other is None:
        spec["restoreFrom"] = {"dump": {"url": dump}}
    else:
        if other.get("status", {}).get("sourceOfTruth") == "Stash":
            raise BadInput(
                f"catalog/{other['metadata']['name']} is in its stash, which can't be copied",
                hint="'kubectl holdfast dump' shows how to dump it; then use --dump",
            )
        if storage := other["spec"].get("storage"):
            spec["storage"] = storage
        copied = {"organizationId": other["spec"]["organizationId"]}
        spec["restoreFrom"] = {"catalog": {**copied, **({} if as_of is None else {"asOf": as_of})}}
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.CATALOG.value,
        "metadata": {"name": name},
        "spec": spec,
    }


def _wait_for_collection(cluster: Cluster, body: Json, url: str, seconds: float) -> None:
    def outcome(found: Json) -> Done | None:
        done = found["status"].get("restore", {})
        if done.get("snapshot") != url:
            return None
        return Done(f"done: restored into {done['rendition']} at {moment(done['at'])}")

    wait(cluster, body, outcome, seconds=seconds, told=_told)


def _wait_for_catalog(cluster: Cluster, body: Json, seconds: float) -> None:
    def outcome(found: Json) -> Done | None:
        mark = condition(found, "Restored")
        if mark is None or state_of(found).word != "Ready":
            return None
        if mark["status"] != "True":
            raise GivenUp(mark["message"])
        return Done(f"done: {mark['message']}")

    wait(cluster, body, outcome, seconds=seconds, told=_told)


def _told(body: Json) -> str:
    state = state_of(body)
    return f"{state.reason}: {state.message}"
