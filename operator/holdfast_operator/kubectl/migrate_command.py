"""`kubectl holdfast migrate` and `rollback`: create and change CatalogMigrations."""

from typing import Any, Final

import click

from holdfast.errors import BadInput
from holdfast_operator.api.names import API_VERSION, Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, output_option, tell, wait_options
from holdfast_operator.kubectl.picture import condition, size, state_of
from holdfast_operator.kubectl.wait import Done, GivenUp, wait

Json = dict[str, Any]

_TARGETS: Final = {"persist": "Persist", "stash": "Stash"}
_VERIFY: Final = {"none": "None", "compare": "Compare", "shadow": "Shadow"}
_WAIT_SECONDS: Final = 900.0


@click.command()
@click.argument("catalog")
@click.option(
    "--to", "target", type=click.Choice(list(_TARGETS)), required=True, help="The store to move it to."
)
@click.option("--name", metavar="NAME", help="Name of the CatalogMigration. By default, it is generated.")
@click.option(
    "--verify",
    type=click.Choice(list(_VERIFY)),
    help="How to compare the stores before the move. The default is compare.",
)
@click.option("--shadow-for", metavar="TIME", help="With --verify shadow: how long to shadow, such as 5m.")
@click.option("--timeout", metavar="TIME", help="Time after which no further step runs. The default is 10m.")
@click.option("--dry-run-migration", "dry_run", is_flag=True, help="Only plan the move. Writes to no store.")
@wait_options(_WAIT_SECONDS)
@cluster_options()
@output_option
def migrate(
    cluster: Cluster,
    catalog: str,
    target: str,
    wait: bool,
    wait_timeout: float,
    format_: str,
    **options: Any,
) -> None:
    """Move a catalog to persist or to its stash."""
    there = cluster.get(Kind.CATALOG, names.name_of(catalog, Kind.CATALOG))
    check(there, _TARGETS[target])
    made = cluster.create(migration(there["metadata"]["name"], _TARGETS[target], **options))
    tell(made, format_, "created")
    if wait:
        _wait(cluster, made, wait_timeout)


@click.command()
@click.argument("migration")
@wait_options(_WAIT_SECONDS)
@cluster_options()
@output_option
def rollback(cluster: Cluster, migration: str, wait: bool, wait_timeout: float, format_: str) -> None:
    """Roll back a migration that has moved a catalog, or is moving it. You can't undo this."""
    name = names.name_of(migration, Kind.CATALOG_MIGRATION)
    there = cluster.get(Kind.CATALOG_MIGRATION, name)
    if there["spec"].get("dryRun"):
        raise BadInput(f"migration/{name} is a dry run: there is nothing to roll back")
    changed = cluster.patch(Kind.CATALOG_MIGRATION, name, {"spec": {"rollback": True}})
    same = changed["metadata"]["generation"] == there["metadata"]["generation"]
    tell(changed, format_, "is rolled back already" if same else "is being rolled back")
    if wait:
        _wait(cluster, changed, wait_timeout)


def check(catalog: Json, target: str) -> None:
    """Raises `BadInput` if the catalog has no stash, and `GivenUp` if it is already in the target."""
    name = catalog["metadata"]["name"]
    if "stash" not in catalog["spec"]:
        raise BadInput(
            f"catalog/{name} has no stash, so it can't move",
            hint="add spec.stash to the Catalog; this links the two stores and doesn't move the catalog",
        )
    if catalog.get("status", {}).get("sourceOfTruth") == target:
        raise GivenUp(f"catalog/{name} is already in {target}: there is nothing to move")


def migration(
    catalog: str,
    target: str,
    *,
    name: str | None = None,
    verify: str | None = None,
    shadow_for: str | None = None,
    timeout: str | None = None,
    dry_run: bool = False,
) -> Json:
    """Returns the CatalogMigration to create. Options that aren't given keep their defaults."""
    asked = {
        "verify": _VERIFY[verify] if verify else None,
        "shadowFor": shadow_for,
        "timeout": timeout,
        "dryRun": True if dry_run else None,
    }
    called = {"name": name} if name else {"generateName": f"{catalog[:200]}-to-{target.lower()}-"}
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.CATALOG_MIGRATION.value,
        "metadata": called,
        "spec": {
            "catalogRef": {"name": catalog},
            "target": target,
            **{field: value for field, value in asked.items() if value is not None},
        },
    }


def _wait(cluster: Cluster, body: Json, seconds: float) -> None:
    found = wait(cluster, body, outcome, seconds=seconds, told=progress)
    for each in found["status"].get("plan", ()):
        click.echo(f"  {each}", err=True)


def progress(body: Json) -> str:
    """Describes the progress of a migration."""
    told = body.get("status", {})
    step = f", step {told['step']}" if told.get("step") else ""
    state = state_of(body)
    return f"{told.get('phase', state.word)}{step}: {state.message}"


def outcome(body: Json) -> Done | None:
    """Returns the result of a migration or a rollback, or None if it isn't finished."""
    told, spec = body["status"], body["spec"]
    wanted = "RolledBack" if spec.get("rollback") else "Completed"
    found = condition(body, wanted)
    if found is not None and found["status"] == "True":
        moved = f"; {told['rows']:,} rows, {size(told.get('bytes'))}" if "rows" in told else ""
        return Done(f"done: the source of truth is {told.get('sourceOfTruth')}{moved}")
    if spec.get("dryRun") and told.get("phase") == "Planned":
        return Done("planned; nothing was written")
    return None
