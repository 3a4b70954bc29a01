"""The flags of `holdfast-operator run` that make it one of several, of which one acts."""

import argparse
import functools
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from holdfast_operator.engine.election import Timing
from holdfast_operator.engine.elector import Elector
from holdfast_operator.engine.kube import Kube
from holdfast_operator.engine.metrics import Metrics

_NAME: Final = "holdfast-operator"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the flags to those of a command."""
    usual = Timing()
    group = parser.add_argument_group("leader election", "several operators, of which one acts")
    group.add_argument(
        "--lease",
        nargs="?",
        const=_NAME,
        metavar="NAME",
        help=f"act only while this process has this Lease, else stand by (default: no Lease; name: {_NAME})",
    )
    group.add_argument(
        "--lease-namespace",
        metavar="NAME",
        help="where the Lease is (default: $POD_NAMESPACE, that of the pod, or the first --namespace)",
    )
    for flag, value, text in (
        ("duration", usual.duration, "seconds after which a Lease that isn't renewed is another's"),
        ("renew-deadline", usual.renew_deadline, "seconds that this process acts without a renewal"),
        ("retry-period", usual.retry_period, "seconds between two renewals, and two looks when standing by"),
    ):
        group.add_argument(
            f"--lease-{flag}", type=float, default=value, metavar="S", help=f"{text} (default: %(default)g)"
        )


def elector(args: argparse.Namespace, metrics: Metrics) -> Elector | None:
    """The candidate that the flags ask for.

    Raises `ValueError` for flags that make no sense, `kubernetes.config.ConfigException` as
    `Kube.connect`.
    """
    if args.lease is None:
        return None
    timing = Timing(
        duration=args.lease_duration,
        renew_deadline=args.lease_renew_deadline,
        retry_period=args.lease_retry_period,
    )
    namespace = args.lease_namespace or _namespace() or next(iter(args.namespace), None)
    if not namespace:
        raise ValueError("--lease needs --lease-namespace outside of a pod")
    # Two tries fit into the deadline.
    kube = Kube.connect(seconds=timing.renew_deadline / 2, retries=0)
    return Elector(kube, metrics, namespace=namespace, name=args.lease, identity=identity(), timing=timing)


def _namespace() -> str:
    if found := os.environ.get("POD_NAMESPACE"):
        return found
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else ""


@functools.cache
def identity() -> str:
    """Which operator this is, as long as it runs: the pod, whose containers run one after another; elsewhere
    a name that no other process has.
    """
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
