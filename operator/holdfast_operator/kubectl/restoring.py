"""`kubectl holdfast restore`: a collection from a snapshot, a new Catalog from a dump or another one."""

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
from holdfast_operator.kubectl.waiting import Done, GivenUp, wait

Json = dict[str, Any]


@click.command()
@click.argument("name", metavar="[KIND/]NAME")
@click.option("--snapshot", metavar="URL", help="Of a collection: the folder of the snapshot; else its last.")
@click.option("--dump", metavar="URL", help="Of a catalog: the dump that fills the new Catalog NAME.")
@click.option("--from", "source", metavar="CATALOG", help="Of a catalog: the one that fills the new NAME.")
@click.option("--as-of", metavar="N", type=click.IntRange(min=0), help="With --from: at this version of it.")
@click.option("--organization-id", metavar="UUID", help="Whose the new Catalog is; else a new one.")
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
    """Restore a collection from a snapshot, or make a catalog of another.

    For a collection, what was written since the snapshot is given up from then on; its history stays as long
    as its retention says. A catalog is never overwritten: NAME is a new Catalog, filled by --dump or --from.
    """
    kind, plain = names.parse(name)
    if kind is None:
        kind = Kind.CATALOG if dump or source else Kind.STORAGE_COLLECTION
    match kind:
        case Kind.STORAGE_COLLECTION:
            if dump or source or as_of is not None or organization_id:
                raise BadInput("a collection is restored by --snapshot alone")
            there = cluster.get(kind, plain)
            url = snapshot_of(there, snapshot)
            changed = cluster.patch(kind, plain, {"spec": {"restoreFrom": {"snapshot": url}}})
            tell(changed, format_, f"is restored from {url}")
            if wait:
                _wait_for_collection(cluster, changed, url, wait_timeout)
        case Kind.CATALOG:
            if snapshot:
                raise BadInput("a catalog is restored by --dump or --from, not by --snapshot")
            if bool(dump) == bool(source):
                raise BadInput("say what fills the new Catalog: --dump URL, or --from CATALOG")
            if dump and as_of is not None:
                raise BadInput("--as-of is for --from: a dump has one version")
            other = cluster.get(kind, names.name_of(source, kind)) if source else None
            made = cluster.create(catalog(plain, dump, other, as_of, organization_id or str(uuid.uuid4())))
            tell(made, format_, "created")
            if wait:
                _wait_for_catalog(cluster, made, wait_timeout)
        case Kind.CATALOG_MIGRATION:
            raise BadInput("a migration isn't restored: 'kubectl holdfast rollback' takes it back")


def snapshot_of(body: Json, asked: str | None) -> str:
    """The snapshot to restore a collection from.

    Raises `BadInput` where there is none, `GivenUp` where that was done.
    """
    name, told = body["metadata"]["name"], body.get("status", {})
    last = told.get("lastSnapshot", {})
    if asked is None and "table" in last:
        raise BadInput(
            f"the last snapshot of collection/{name} is the Iceberg table {last['table']}, which nothing is"
            " restored from",
            hint="name another one: --snapshot URL",
        )
    url = asked or last.get("destination")
    if url is not None and url.startswith("/"):
        url = Path(url).as_uri()
    if url is None:
        raise BadInput(f"collection/{name} has no snapshot", hint="name one: --snapshot URL")
    if body["spec"].get("restoreFrom", {}).get("snapshot") == url:
        raise GivenUp(f"collection/{name} was restored from {url} already: the same never restores twice")
    return str(url)


def catalog(name: str, dump: str | None, other: Json | None, as_of: int | None, organization_id: str) -> Json:
    """The new Catalog, in the stores of the other one where there is one. Raises `BadInput`."""
    spec: Json = {"organizationId": organization_id}
    if other is None:
        spec["restoreFrom"] = {"dump": {"url": dump}}
    else:
        if other.get("status", {}).get("sourceOfTruth") == "Stash":
            raise BadInput(
                f"catalog/{other['metadata']['name']} is in its stash, which can't be copied from",
                hint="'kubectl holdfast dump' shows how to dump it; then give --dump",
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
        return Done(f"done: restored into {done['rendition']} from {moment(done['at'])} on")

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
