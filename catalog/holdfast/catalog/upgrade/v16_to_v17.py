"""A cluster says whether its replicas are managed: so many of one size, or made and dropped one by one.

Up to version 16 a cluster was a name, and what replicas it should have was nowhere: whoever wanted three of a
size made three. A cluster whose replicas look as if they had been managed (there are some, all of one size,
named r1 to rn, n being their number) is managed from now on, with the availability zones that they have.
Any other is unmanaged, also one without replicas, which has no size to be managed by; the system's clusters
are treated alike. Replicas stay as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast._pb import objects_v16_pb2 as v16
from holdfast._pb import objects_v17_pb2 as v17
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, carried, encode, read, replaced


@dataclass
class _Replicas:
    """What the replicas of one cluster are called, have as sizes, and where they are placed."""

    names: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)
    zones: set[str] = field(default_factory=set)


def _updates(old: OldRows) -> Iterator[Update]:
    found: dict[bytes, _Replicas] = {}
    for _, _, replica in read(old, Kind.CLUSTER_REPLICA, v16.ClusterReplicaKey, v16.ClusterReplicaValue):
        replicas = found.setdefault(_bytes(replica.cluster_id), _Replicas())
        replicas.names.add(replica.name)
        replicas.sizes.add(replica.size)
        if replica.HasField("availability_zone"):
            replicas.zones.add(replica.availability_zone)
    for row, key, value in read(old, Kind.CLUSTER, v16.ClusterKey, v16.ClusterValue):
        managed = _managed(found.get(_bytes(key.id), _Replicas()))
        cluster = v17.ClusterValue(
            name=value.name, managed=managed, unmanaged=v17.Empty() if managed is None else None
        )
        yield from replaced(row, encode(Kind.CLUSTER, carried(key, v17.ClusterKey), cluster))


STEP = Step(16, 17, _updates)


def _managed(replicas: _Replicas) -> v17.ManagedCluster | None:
    count = len(replicas.names)
    if len(replicas.sizes) != 1 or replicas.names != {f"r{number + 1}" for number in range(count)}:
        return None
    return v17.ManagedCluster(
        size=min(replicas.sizes), replication_factor=count, availability_zones=sorted(replicas.zones)
    )


def _bytes(cluster: v16.ObjectId) -> bytes:
    return cluster.SerializeToString(deterministic=True)
