"""What the pages know of a Kubernetes cluster. The library has no implementation: the operator has one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

Json = Mapping[str, Any]

Kind = Literal["catalogs", "storagecollections", "catalogmigrations", "collectionsnapshots"]


class Cluster(Protocol):
    """The resources of a cluster, as the API server has them.

    The location of a Catalog has the name `NAMESPACE.NAME`.
    """

    async def resources(self, kind: Kind, namespace: str = "") -> Sequence[Json]:
        """Return the resources of a kind, in one namespace or in all that the console may read."""

    async def resource(self, kind: Kind, namespace: str, name: str) -> Json | None:
        """Return one resource, or None if there is none."""

    async def events(self, namespace: str, name: str = "") -> Sequence[Json]:
        """Return the events of a namespace, or those of the objects with a name."""

    def changes(self, namespaces: Iterable[str]) -> int:
        """Return a number that grows with each change in these namespaces.

        It costs the API server nothing.
        """
