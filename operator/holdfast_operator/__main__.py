"""The command `holdfast-operator`."""

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Final

from kubernetes.config import ConfigException

from holdfast_operator.api.urls import public
from holdfast_operator.app import Operator, Options
from holdfast_operator.console import command as console
from holdfast_operator.engine import checks, lease_flags
from holdfast_operator.engine import logging as logs
from holdfast_operator.engine.elector import Elector
from holdfast_operator.engine.kube import Kube
from holdfast_operator.engine.memory import use_one_allocator
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places import own_credentials, own_password
from holdfast_operator.places.bounds import check_place
from holdfast_operator.sparkapps import images
from holdfast_operator.sparkapps.choice import AdapterName
from holdfast_operator.sparkapps.limits import QUEUES, TemplateLimits
from holdfast_operator.sparkapps.slots import Caps

_NAMES: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*[*]?")
"""Names of labels and annotations, as the chart's schema takes them."""


def main(argv: list[str] | None = None) -> int:
    """Parses the command line and runs the command. Returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    own_credentials.trim(os.environ)
    if args.run is not None:
        return int(args.run(args))
    logs.configure(logs.LogFormat(args.log_format), level=args.log_level)
    host, port = args.listen
    options = Options(
        namespaces=tuple(args.namespace),
        data_dir=args.data_dir,
        allowed_locations=tuple(args.allow_location),
        storage_shared=args.storage_shared,
        spark_adapter=AdapterName(args.spark_adapter),
        spark_caps=Caps(args.spark_max_jobs, args.spark_max_jobs_per_namespace),
        spark_limits=_limits(args),
        spark_image=args.spark_image,
        identity=lease_flags.identity(),
        host=host,
        port=port,
        unsteady=args.unsteady_interval,
        steady=args.steady_interval,
        resync=args.resync_interval,
        concurrency=args.concurrency,
        store_deadline=args.store_deadline,
    )
    metrics = Metrics()
    try:
        own_credentials.check(
            os.environ,
            namespaces=args.namespace,
            places=args.allow_location,
            permitted=args.own_credentials_anywhere,
        )
        if not args.allow_location:
            own_password.keep(os.environ)
        elector = lease_flags.elector(args, metrics)
        kube = Kube.connect() if elector is None else Kube.connect(may_write=elector.leads)
    except ValueError as error:
        parser.error(str(error))
    except ConfigException as error:
        print(f"holdfast-operator: no cluster to connect to: {error}", file=sys.stderr)
        print("  hint: set KUBECONFIG, or run it in a pod with a service account", file=sys.stderr)
        return 2
    use_one_allocator()
    try:
        code, hangs = asyncio.run(_run(options, kube, metrics, elector))
    except OSError as error:
        print(f"holdfast-operator: can't listen on {host}:{port}: {error.strerror}", file=sys.stderr)
        print("  hint: choose another address with --listen; port 0 chooses a free port", file=sys.stderr)
        return 2
    if hangs:
        # Otherwise the interpreter would wait for the threads of running calls.
        sys.stderr.flush()
        os._exit(code)
    return code


async def _run(options: Options, kube: Kube, metrics: Metrics, elector: Elector | None) -> tuple[int, bool]:
    operator = Operator(options, kube, metrics, elector)
    return await operator.run(), operator.hangs


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _place(text: str) -> str:
    if (shown := public(text)) != text:
        raise argparse.ArgumentTypeError(
            f"{shown!r} has a user, a password or a '#': remove it, because others can read arguments"
        )
    try:
        return check_place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _allowed_name(text: str) -> str:
    if text and not _NAMES.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name like example.com/name, or example.com/*")
    return text


def _limits(args: argparse.Namespace) -> TemplateLimits:
    metadata = QUEUES if args.spark_allow_metadata is None else filter(None, args.spark_allow_metadata)
    return TemplateLimits(tuple(args.spark_allow_priority_class), tuple(metadata))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast-operator", description="The Kubernetes operator of Holdfast."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="reconcile Catalogs and StorageCollections until stopped")
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch only this namespace; can be repeated (default: all namespaces)",
    )
    run.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="the operator's volume, for catalogs whose spec names no storage",
    )
    run.add_argument(
        "--allow-location",
        action="append",
        default=[],
        type=_place,
        metavar="URL",
        help="allow catalogs only at or below this URL, and on the volume; can be repeated (default: any "
        "location; Postgres servers must then use SCRAM, or no password)",
    )
    _add_permission(run)
    run.add_argument(
        "--storage-shared",
        action="store_true",
        help="Spark jobs see the same files as the operator (one machine, or a shared volume)",
    )
    run.add_argument(
        "--spark-adapter",
        choices=[each.value for each in AdapterName],
        default=AdapterName.AUTO.value,
        help="how to run Spark jobs: as SparkApplications of the Kubeflow or Apache operator, or as plain "
        "Jobs with all of Spark in one pod; auto uses the first one that is served (default: %(default)s)",
    )
    run.add_argument(
        "--spark-image",
        default=images.DEFAULT,
        metavar="IMAGE",
        help="the image of Spark jobs whose spec names none; it must have the operator's version (default: "
        "%(default)s)",
    )
    run.add_argument(
        "--spark-max-jobs",
        type=_at_least_one,
        metavar="N",
        help="maximum number of concurrent Spark jobs; further ones wait (default: no limit)",
    )
    run.add_argument(
        "--spark-max-jobs-per-namespace",
        type=_at_least_one,
        metavar="N",
        help="maximum number of concurrent Spark jobs of one namespace (default: no limit)",
    )
    run.add_argument(
        "--spark-allow-priority-class",
        action="append",
        default=[],
        metavar="NAME",
        help="allow pods of Spark jobs to have this PriorityClass; can be repeated (default: none)",
    )
    run.add_argument(
        "--spark-allow-metadata",
        action="append",
        type=_allowed_name,
        metavar="NAME",
        help="allow this label or annotation of Spark jobs and their pods; example.com/* allows all with "
        "this beginning, and an empty name allows none; can be repeated (default: the queue of Kueue, "
        "Volcano and YuniKorn)",
    )
    run.add_argument("--log-format", choices=[each.value for each in logs.LogFormat], default="json")
    run.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    run.add_argument(
        "--listen",
        type=_address,
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="address of /healthz, /readyz and /metrics; port 0 chooses a free port (default: %(default)s)",
    )
    run.add_argument(
        "--unsteady-interval",
        type=float,
        default=2.0,
        metavar="S",
        help="seconds between two reconciliations of a changing object (default: %(default)s)",
    )
    run.add_argument(
        "--steady-interval",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds between two polls of a store for changes to resting objects (default: %(default)s)",
    )
    run.add_argument(
        "--resync-interval",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds between two checks of everything, for changes that no watch and no poll has reported "
        "(default: %(default)s)",
    )
    run.add_argument(
        "--store-deadline",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that a call to a store may take; after four times as long, an open that waits for its "
        "store shows StoreUnreachable (default: %(default)s)",
    )
    run.set_defaults(run=None)
    _add_console(commands)
    checks.add_commands(commands)
    lease_flags.add_to(run)
    run.add_argument(
        "--concurrency",
        type=int,
        default=16,
        metavar="N",
        help="number of concurrent reconciliations (default: %(default)s)",
    )
    return parser


def _add_permission(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        own_credentials.FLAG,
        dest="own_credentials_anywhere",
        action="store_true",
        help="start with credentials of its own even without --namespace and --allow-location; then all "
        "who can create a Catalog in any namespace can use them at any location",
    )


def _add_console(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("console", help="serve read-only pages about the resources and their data")
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="show only this namespace; can be repeated (default: all namespaces)",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="the operator's volume, as for `holdfast-operator run`"
    )
    parser.add_argument(
        "--allow-location",
        action="append",
        default=[],
        type=_place,
        metavar="URL",
        help="open only locations at or below this URL, as for `holdfast-operator run`; can be repeated",
    )
    _add_permission(parser)
    parser.add_argument(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which the console is reached, besides localhost; requests for other names are "
        "refused; can be repeated",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default="127.0.0.1:8081",
        metavar="HOST:PORT",
        help="address of the pages; port 0 chooses a free port (default: %(default)s)",
    )
    parser.add_argument(
        "--health",
        type=_address,
        default="127.0.0.1:8082",
        metavar="HOST:PORT",
        help="address of /healthz, /readyz and /metrics (default: %(default)s)",
    )
    parser.add_argument("--log-format", choices=[each.value for each in logs.LogFormat], default="json")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parser.set_defaults(run=console.run_from)


if __name__ == "__main__":
    sys.exit(main())
