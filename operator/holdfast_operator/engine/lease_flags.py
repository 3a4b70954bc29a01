"""The leader election flags of `holdfast-operator run`."""

import argparse
import functools
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from holdfast_operator.engine.elector import Elector
from holdfast_operator.engine.kube import Kube
from holdfast_operator.engine.lease_rules import Timing
from holdfast_operator.engine.metrics import Metrics

_NAME: Final = "holdfast-operator"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to a command."""
    usual = Timing()
    group = parser.add_argument_group("leader election", "run several operators, and let one of them act")
    group.add_argument(
        "--lease",
        nargs="?",
        const=_NAME,
        metavar="NAME",
        help=f"act only while this process holds this Lease (default: no Lease; default name: {_NAME})",
    )
    group.add_argument(
        "--lease-namespace",
        metavar="NAME",
        help="namespace of the Lease (default: $POD_NAMESPACE, the pod's own, or the first --namespace)",
    )
    for flag, value, text in (
        ("duration", usual.duration, "seconds without a renewal after which another process takes the Lease"),
        ("renew-deadline", usual.renew_deadline, "seconds that this process acts without a renewal"),
        ("retry-period", usual.retry_period, "seconds between two renewals, or two checks while standing by"),
    ):
        group.add_argument(
            f"--lease-{flag}", type=float, default=value, metavar="S", help=f"{text} (default: %(default)g)"
        )


def elector(args: argparse.Namespace, metrics: Metrics) -> Elector | None:
    """Returns the elector that the flags describe, or None without a Lease.

    Raises `ValueError` for invalid flags, and `kubernetes.config.ConfigException` like `Kube.connect`.
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
        raise ValueError("outside of a pod, --lease needs --lease-namespace")
    # Two attempts fit into the deadline.
    kube = Kube.connect(seconds=timing.renew_deadline / 2, retries=0, patient=False)
    return Elector(kube, metrics, namespace=namespace, name=args.lease, identity=identity(), timing=timing)


def _namespace() -> str:
    if found := os.environ.get("POD_NAMESPACE"):
        return found
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.is_file() else ""


@functools.cache
def identity() -> str:
    """Returns the name of this process. It is the pod's name, whose containers run one after another.

    Outside of a pod, it is a unique name.
    """
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
