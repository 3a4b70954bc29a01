"""The commands that the chart's hooks run: `check-uninstall` before an uninstall, `probe` after an install.

Invariants
- Both only read. The result is in the exit code and in lines for people.
"""

import argparse
import asyncio
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final

from kubernetes.config import ConfigException

from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.engine.kube import Kube, KubeError, NotServed, ObjectKey, resource_type
from holdfast_operator.engine.resources import has_finalizer

_SHOWN: Final = 20
_PAUSE: Final = 1.0
_ANSWER_SECONDS: Final = 5.0
_ORDER: Final = (
    Kind.COLLECTION_SNAPSHOT,
    Kind.CATALOG_MIGRATION,
    Kind.STORAGE_COLLECTION,
    Kind.CATALOG,
)
"""The order in which resources can be deleted: a Catalog waits for what refers to it."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds both commands to the command line."""
    check = commands.add_parser(
        "check-uninstall",
        help="exit with 1 if resources still have the operator's finalizer; changes nothing",
    )
    check.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="check only this namespace; can be repeated (default: all namespaces)",
    )
    check.set_defaults(run=lambda args: check_uninstall(args.namespace))
    probe_ = commands.add_parser("probe", help="wait until an operator responds with 200; changes nothing")
    probe_.add_argument("url", help="such as http://holdfast-operator:8080/readyz")
    probe_.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds to wait (default: %(default)s)"
    )
    probe_.set_defaults(run=lambda args: probe(args.url, timeout=args.timeout))


def check_uninstall(namespaces: Sequence[str]) -> int:
    """Prints the resources that would wait for ever for an uninstalled operator. Returns the exit code."""
    try:
        kube = Kube.connect()
    except ConfigException as error:
        return _fail(f"no cluster to connect to: {error}")
    try:
        kept = asyncio.run(with_finalizer(kube, namespaces))
    except KubeError as error:
        return _fail(f"the resources can't be read: {error}")
    finally:
        kube.close()
    if not kept:
        print("no resource has the operator's finalizer: you can uninstall the operator")
        return 0
    for line in advice(kept):
        print(line, file=sys.stderr)
    return 1


async def with_finalizer(kube: Kube, namespaces: Sequence[str]) -> list[ObjectKey]:
    """Returns the resources that have the operator's finalizer, in the order in which to delete them.

    If a CRD is gone, its resources are gone too. Raises `KubeError`.
    """
    kept = []
    for kind in _ORDER:
        for namespace in tuple(namespaces) or (None,):
            try:
                found, _ = await kube.list_each(
                    resource_type(kind),
                    namespace,
                    lambda body: (body["metadata"], has_finalizer(body)),
                )
            except NotServed:
                continue
            kept += [
                ObjectKey(kind, metadata["namespace"], metadata["name"])
                for metadata, is_kept in found
                if is_kept
            ]
    return kept


def advice(kept: Sequence[ObjectKey]) -> list[str]:
    """Returns lines that say what to do about resources that would be stuck."""
    more = [f"  ... and {len(kept) - _SHOWN} more"] if len(kept) > _SHOWN else []
    plurals = ",".join(kind.plural for kind in _ORDER)
    where = sorted({key.namespace for key in kept})
    head = (
        f"holdfast-operator: {len(kept)} resources have the finalizer {FINALIZER}; without an operator, "
        "nothing removes it, and you can't delete them:"
    )
    last = (
        "  With deletionPolicy Retain, their data stays. "
        "To keep them for the next operator: helm uninstall --no-hooks"
    )
    return [
        head,
        *(f"  {key}" for key in kept[:_SHOWN]),
        *more,
        *(f"  hint: kubectl delete {plurals} --all --namespace {namespace}" for namespace in where[:_SHOWN]),
        last,
    ]


def probe(
    url: str,
    *,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Requests `url` until the response is 200, for at most `timeout` seconds. Returns the exit code."""
    if not url.startswith(("http://", "https://")):
        return _fail(f"{url!r} is not an http:// or https:// URL")
    deadline = clock() + timeout
    while True:
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - checked above
                print(f"{url}: {answer.read(200).decode(errors='replace').strip()}")
                return 0
        except urllib.error.HTTPError as error:
            told = f"{error.code} {error.read(200).decode(errors='replace').strip()}"
        except OSError as error:
            told = str(error)
        if clock() >= deadline:
            return _fail(f"{url} is not ready after {timeout:.0f} s: {told}")
        pause(_PAUSE)


def _key(kind: Kind, body: dict[str, Any]) -> ObjectKey:
    return ObjectKey(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def _fail(message: str) -> int:
    print(f"holdfast-operator: {message}", file=sys.stderr)
    return 2
