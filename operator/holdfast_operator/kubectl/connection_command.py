"""`kubectl holdfast connection`, `dump` and `fence`: show how to open a catalog with access to its stores.

The plugin has no access to stores, but `holdfast catalog` does. So the plugin shows a complete `holdfast
catalog` command, made from the catalog's ConfigMap.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import click

from holdfast.errors import HoldfastError
from holdfast_operator.api.names import ANNOTATION_OPEN, Kind
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, emit, output_option

Json = dict[str, Any]

_OPTIONS: Final = (
    ("--stash", ("HOLDFAST_STASH_URL",)),
    ("--persist", ("HOLDFAST_URL", "HOLDFAST_BLOB_URL")),
    ("--consensus", ("HOLDFAST_CONSENSUS_URL",)),
    ("--organization-id", ("HOLDFAST_ORGANIZATION_ID",)),
)


class NoConnection(HoldfastError):
    """There is no ConfigMap that shows how to open the catalog."""


@click.command()
@click.argument("catalog")
@cluster_options()
@output_option
def connection(cluster: Cluster, catalog: str, format_: str) -> None:
    """Show how an application opens a catalog: environment variables, Secrets and the call."""
    _, found = _connection(cluster, catalog)
    data, how = found["data"], (found["metadata"].get("annotations") or {}).get(ANNOTATION_OPEN, "")
    if format_ != "table":
        emit({"configMap": found["metadata"]["name"], "data": data, "call": how}, format_)
        return
    click.echo(f"# configmap/{found['metadata']['name']}")
    for name, value in sorted(data.items()):
        click.echo(f"{name}={shlex.quote(value)}")
    click.echo(f"# {how}")


@click.command()
@click.argument("catalog")
@cluster_options()
def dump(cluster: Cluster, catalog: str) -> None:
    """Show the command that dumps a catalog. The command only reads, and needs access to the stores."""
    name, found = _connection(cluster, catalog)
    _show("dump", found["data"], "--target", f"{name}.dump.json")


@click.command()
@click.argument("catalog")
@cluster_options()
def fence(cluster: Cluster, catalog: str) -> None:
    """Show the command that raises a catalog's fence token above all earlier ones, as after a restore.

    The command fences every process that has the catalog open, including one that took it over since the
    operator last looked. It also fences the operator, which then opens the catalog again.
    """
    name = names.name_of(catalog, Kind.CATALOG)
    there = cluster.get(Kind.CATALOG, name)
    epoch = there.get("status", {}).get("epoch")
    if epoch is None:
        raise NoConnection(f"catalog/{name} has no epoch yet: it was never opened")
    _, found = _connection(cluster, name, there)
    _show("fence", found["data"], "--above", str(epoch))


def command(name: str, data: Mapping[str, str], *arguments: str) -> str:
    """Returns the command `holdfast catalog <name>`, quoted for a shell."""
    place = [part for option, keys in _OPTIONS for key in keys if key in data for part in (option, data[key])]
    return shlex.join(["holdfast", "catalog", name, *place, *arguments])


def _show(name: str, data: Mapping[str, str], *arguments: str) -> None:
    secrets = [data[key] for key in sorted(data) if key.endswith("CREDENTIALS_SECRET")]
    click.echo("# run this command on a host that can reach the stores", err=True)
    if secrets:
        click.echo(
            f"# with the credentials of secret/{', secret/'.join(secrets)} in the environment", err=True
        )
    click.echo(command(name, data, *arguments))


def _connection(cluster: Cluster, catalog: str, there: Json | None = None) -> tuple[str, Json]:
    name = names.name_of(catalog, Kind.CATALOG)
    there = there or cluster.get(Kind.CATALOG, name)
    config = there.get("status", {}).get("connection", {}).get("configMap")
    if config is None:
        raise NoConnection(
            f"catalog/{name} has no ConfigMap yet that shows how to open it",
            hint=f"the operator writes it when the catalog is open: kubectl holdfast status catalog/{name}",
        )
    found = cluster.answer("get", "configmap", config, *cluster.where(), "-o", "json")
    return name, {"data": {}, **found}
