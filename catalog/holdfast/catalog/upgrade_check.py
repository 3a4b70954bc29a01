"""Checks whether this Holdfast can open and upgrade a catalog, without changing it.

Invariants
- The check uses a savepoint. It writes nothing, fences nobody, and a read-only client is enough.
- The result is valid for the state that was read. A running process may commit something else at any time.
"""

from collections.abc import Collection as SizeSet
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.catalog.interfaces import OpenableCatalog, OpenMode
from holdfast.catalog.objects.registry import CLUSTER_REPLICAS, CLUSTERS, OBJECT_TYPES
from holdfast.catalog.stores.preamble import READS
from holdfast.errors import AsOfTooEarly, BadInput, Determinate, OtherHistory, Uninitialized

if TYPE_CHECKING:
    from holdfast.catalog.interfaces import ReadOnlyCatalog

_SHOWN = 3
_MOST_SIZES = 10
# The greatest generation, so that no deployment can fence the savepoint. It is only in memory.
_ANY_GENERATION = (1 << 64) - 1


@dataclass(frozen=True)
class Upgradable:
    """The version of the stored catalog, its version after an open, and the number of its objects."""

    version: int
    upgraded: int
    objects: int


def check_upgrade(openable: OpenableCatalog, *, replica_sizes: SizeSet[str] | None = None) -> Upgradable:
    """Open and upgrade a catalog in memory, and decode all of its objects.

    With `replica_sizes`, the size of every cluster replica and every managed cluster must be one of them.

    Raises:
        Uninitialized: there is no catalog.
        VersionTooNew, Deprecated: this Holdfast doesn't know the version of the catalog.
        CorruptBlob: a row does not decode, or two objects share a unique field.
        BadInput: a size is not in `replica_sizes`.
        StorageError: the store failed, or changes too fast to be read. The catalog may still be upgradable.
    """
    for _ in range(READS):
        # A savepoint has no hold on the state that it reads, so read again if it is gone.
        with suppress(AsOfTooEarly, OtherHistory):
            return _checked(openable, replica_sizes)
    raise Determinate(
        f"the catalog in {openable.place} changes faster than it can be read", hint="try again later"
    )


def _checked(openable: OpenableCatalog, replica_sizes: SizeSet[str] | None) -> Upgradable:
    version = openable.config("user_version")
    if version is None:
        raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    with openable.open(
        OpenMode.SAVEPOINT, deploy_generation=_ANY_GENERATION, purpose="catalog upgrade check"
    ) as catalog:
        objects = sum(1 for collection in OBJECT_TYPES.values() for _ in catalog.stream(collection))
        if replica_sizes is not None:
            _check_sizes(catalog, replica_sizes)
        return Upgradable(version, catalog.catalog_version, objects)


def _check_sizes(catalog: "ReadOnlyCatalog", allowed: SizeSet[str]) -> None:
    wrong = [f"{what} has size {size!r}" for what, size in _sizes(catalog) if size not in allowed]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        known = ", ".join(map(repr, sorted(allowed)[:_MOST_SIZES]))
        raise BadInput(f"{', '.join(wrong[:_SHOWN])}{more}; the sizes that there are: {known}")


def _sizes(catalog: "ReadOnlyCatalog") -> Iterator[tuple[str, str]]:
    """The names of the clusters and replicas that have a size, each with its size."""
    clusters: dict[bytes, Any] = {}
    for cluster in catalog.objects(CLUSTERS):
        clusters[cluster.key.id.SerializeToString(deterministic=True)] = cluster.value
        if cluster.value.HasField("managed"):
            yield f"cluster {cluster.value.name}", cluster.value.managed.size
    for replica in catalog.objects(CLUSTER_REPLICAS):
        owner = clusters.get(replica.value.cluster_id.SerializeToString(deterministic=True))
        name = replica.value.name if owner is None else f"{owner.name}.{replica.value.name}"
        yield f"cluster replica {name}", replica.value.size
