"""`kubectl holdfast migrate` and `rollback`: they make and change CatalogMigrations."""

from typing import Any, Final

import click

from holdfast.errors import BadInput
from holdfast_operator.api.names import API_VERSION, Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, output_option, tell, wait_options
from holdfast_operator.kubectl.picture import condition, size, state_of
from holdfast_operator.kubectl.waiting import Done, GivenUp, wait

Json = dict[str, Any]

_TARGETS: Final = {"persist": "Persist", "stash": "Stash"}
_VERIFY: Final = {"none": "None", "compare": "Compare", "shadow": "Shadow"}
_WAIT_SECONDS: Final = 900.0


@click.command()
@click.argument("catalog")
@click.option("--to", "target", type=click.Choice(list(_TARGETS)), required=True, help="Where to.")
@click.option("--name", metavar="NAME", help="Name of the CatalogMigration; else one is made up.")
@click.option("--verify", type=click.Choice(list(_VERIFY)), help="What is compared before; else: compare.")
@click.option("--shadow-for", metavar="TIME", help="How long, with --verify shadow, such as 5m.")
@click.option("--timeout", metavar="TIME", help="No further step after that, such as 10m, which is usual.")
@click.option("--dry-run-migration", "dry_run", is_flag=True, help="Only plan it: no store is written.")
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
    """Move a catalog back, by the migration that moved it, or that is moving it. It is for good."""
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
    """Raise `BadInput` where there is nothing to move, `GivenUp` where it is there already."""
    name = catalog["metadata"]["name"]
    if "stash" not in catalog["spec"]:
        raise BadInput(
            f"catalog/{name} names no stash, so there is nothing to move between",
            hint="add spec.stash to the Catalog; it is linked then, and stays where it is",
        )
    if catalog.get("status", {}).get("sourceOfTruth") == target:
        raise GivenUp(f"catalog/{name} is in {target} already: there is nothing to move")


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
    """The CatalogMigration of a request; what isn't asked for is left to the defaults."""
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
    """How far a migration is."""
    told = body.get("status", {})
    step = f", step {told['step']}" if told.get("step") else ""
    state = state_of(body)
    return f"{told.get('phase', state.word)}{step}: {state.message}"


def outcome(body: Json) -> Done | None:
    """What became of a migration, or of its way back; None while nobody can tell."""
    told, spec = body["status"], body["spec"]
    wanted = "RolledBack" if spec.get("rollback") else "Completed"
    found = condition(body, wanted)
    if found is not None and found["status"] == "True":
        moved = f"; {told['rows']:,} rows, {size(told.get('bytes'))}" if "rows" in told else ""
        return Done(f"done: the source of truth is {told.get('sourceOfTruth')}{moved}")
    if spec.get("dryRun") and told.get("phase") == "Planned":
        return Done("planned; nothing was written")
    return None
