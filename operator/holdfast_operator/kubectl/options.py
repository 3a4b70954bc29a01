"""The options that commands share: the cluster, the output format, and waiting."""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

from holdfast.errors import BadInput
from holdfast_operator.kubectl.cluster import Cluster

_F = TypeVar("_F", bound=Callable[..., Any])

FORMATS: Final = ("table", "json", "yaml")
_CLUSTER: Final = ("namespace", "everywhere", "context", "kubeconfig")


def named_cluster(command: Any) -> Any:
    """Adds `-n`, `--context` and `--kubeconfig`, like kubectl."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="The kubeconfig."),
        click.option("--context", metavar="NAME", help="The context of the kubeconfig."),
        click.option(
            "-n", "--namespace", metavar="NAME", help="The namespace. The default is the context's."
        ),
    ):
        command = option(command)
    return command


def cluster_options(everywhere: bool = False) -> Callable[[_F], _F]:
    """Adds `-n`, `--context`, `--kubeconfig` and perhaps `-A`. The command gets a `Cluster` first."""

    def decorate(command: _F) -> _F:
        @wraps(command)
        def with_cluster(**given: Any) -> Any:
            before = click.get_current_context().find_root().params
            named: dict[str, Any] = {name: given.pop(name, None) or before.get(name) for name in _CLUSTER}
            if named["everywhere"] and named["namespace"]:
                raise BadInput("-A and -n can't be used together")
            cluster = Cluster(**{**named, "everywhere": bool(named["everywhere"])})
            return command(cluster, **given)

        decorated: Any = with_cluster
        if everywhere:
            decorated = click.option(
                "-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces."
            )(decorated)
        return named_cluster(decorated)  # type: ignore[no-any-return]

    return decorate


def output_option(command: _F) -> _F:
    """Adds `-o`."""
    return click.option(
        "-o", "--output", "format_", type=click.Choice(FORMATS), default="table", show_default=True
    )(command)


def wait_options(default: float) -> Callable[[_F], _F]:
    """Adds `--wait` and `--wait-timeout`, whose default is `default` seconds."""

    def decorate(command: _F) -> _F:
        command = click.option(
            "--wait-timeout",
            metavar="S",
            type=click.FloatRange(min=0, min_open=True),
            default=default,
            show_default=True,
            help="Seconds to wait with --wait.",
        )(command)
        return click.option("--wait", is_flag=True, help="Wait until it is done, and show the progress.")(
            command
        )

    return decorate


def emit(value: Any, format_: str) -> None:
    """Prints a value as JSON or YAML."""
    if format_ == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
        return
    # Imported only if needed, because the import is slow.
    import yaml

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def tell(body: Any, format_: str, what: str) -> None:
    """Prints what happened to an object in the style of kubectl, or the object itself as JSON or YAML."""
    if format_ != "table":
        emit(body, format_)
        return
    group = str(body["apiVersion"]).partition("/")[0]
    click.echo(f"{str(body['kind']).lower()}.{group}/{body['metadata']['name']} {what}")
