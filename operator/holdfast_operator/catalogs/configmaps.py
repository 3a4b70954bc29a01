"""Keeps the ConfigMaps that say how catalogs are opened.

Invariants
- One is written when what it should say isn't there, and not otherwise: not at rest, nor by a new operator.
- Ours is the one whose owner is the Catalog, by uid. Another one of that name is never changed.
- That one can't be kept doesn't keep a catalog from being open.
"""

from dataclasses import replace
from typing import Any, Final, assert_never

from holdfast_operator.api.names import API_VERSION, Kind
from holdfast_operator.catalogs.connection import (
    Absent,
    Connection,
    Denied,
    Foreign,
    Leaving,
    Ours,
    Seen,
    change,
    config_map,
    config_map_name,
    missing,
)
from holdfast_operator.engine.kube import Forbidden, Gone, Invalid, Kube, ObjectKey, ResourceType
from holdfast_operator.engine.resources import kept_fields
from holdfast_operator.engine.steps import Settle

Json = dict[str, Any]

CONFIG_MAPS: Final = ResourceType("", "v1", "configmaps")


class Connections:
    """Looks at, and writes, the ConfigMaps of Catalogs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._seen: dict[ObjectKey, Seen] = {}
        self._denied: dict[ObjectKey, str] = {}
        self._written: dict[ObjectKey, Connection] = {}

    async def look(self, key: ObjectKey, uid: str) -> Seen:
        """What there is for a Catalog; after a write that was refused: that, once."""
        if message := self._denied.pop(key, ""):
            self._seen[key] = Denied(message)
        else:
            self._seen[key] = await self._look(key, uid)
        written, seen = self._written.pop(key, None), self._seen[key]
        if written is not None and missing(seen, written):
            # Else two that write would never come to rest.
            self._seen[key] = Denied("it isn't as it was written: something else changes it at once")
        return self._seen[key]

    async def publish(self, key: ObjectKey, uid: str, wanted: Connection) -> None:
        """Write what should be there over what was last seen. Raises `KubeError` where that is over."""
        seen = self._seen.get(key)
        try:
            if isinstance(seen, Ours):
                patch = change(seen.body, wanted)
                version = {"resourceVersion": seen.body["metadata"]["resourceVersion"]}
                patch["metadata"] = {**patch.get("metadata", {}), **version}
                await self._kube.patch(CONFIG_MAPS, key.namespace, config_map_name(key.name), patch)
            else:
                await self._kube.create(CONFIG_MAPS, key.namespace, config_map(key, uid, wanted))
        except (Forbidden, Invalid) as error:
            # By a role, a quota or a webhook: no reason to keep the catalog from who has it open.
            self._denied[key] = str(error)
        else:
            self._written[key] = wanted

    def shown(self, key: ObjectKey, before: Json, step: Settle) -> Settle:
        """The same with `status.connection`, which is known also where the store isn't.

        It stays as it was `before` while nobody has looked.
        """
        seen = self._seen.get(key)
        if seen is None and step.fields is None:
            return step
        fields = dict(kept_fields(before) if step.fields is None else step.fields)
        fields.pop("connection", None)
        if connection := _status(key, seen, before):
            fields["connection"] = connection
        return replace(step, fields=fields)

    def forget(self, key: ObjectKey) -> None:
        """The Catalog is no more."""
        self._seen.pop(key, None)
        self._denied.pop(key, None)
        self._written.pop(key, None)

    async def _look(self, key: ObjectKey, uid: str) -> Seen:
        try:
            body = await self._kube.get_of(CONFIG_MAPS, key.namespace, config_map_name(key.name))
        except Gone:
            return Absent()
        except Forbidden as error:
            return Denied(str(error))
        owners = body["metadata"].get("ownerReferences", [])
        if any(each.get("uid") == uid for each in owners):
            return Ours(body)
        ours = {"apiVersion": API_VERSION, "kind": Kind.CATALOG.value, "name": key.name, "controller": True}
        return Leaving() if any(ours.items() <= each.items() for each in owners) else Foreign()


def _status(key: ObjectKey, seen: Seen | None, before: Json) -> Json | None:
    match seen:
        case None | Denied():
            return before.get("connection")
        case Ours():
            return {"configMap": config_map_name(key.name)}
        case Absent() | Leaving() | Foreign():
            return None
        case _:
            assert_never(seen)
