"""Reads and writes the ConfigMaps with which applications open catalogs.

Invariants
- A ConfigMap is written only if its contents are not as wanted. A restart of the operator writes nothing.
- The operator's ConfigMap is the one that the Catalog owns, by uid. Any other one of that name is never
  changed.
- If a ConfigMap can't be written, the catalog is still opened.
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
    """Reads and writes the ConfigMaps of Catalogs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._seen: dict[ObjectKey, Seen] = {}
        self._denied: dict[ObjectKey, str] = {}
        self._written: dict[ObjectKey, Connection] = {}

    async def look(self, key: ObjectKey, uid: str) -> Seen:
        """Returns the state of a Catalog's ConfigMap, or once after a refused write: `Denied`."""
        if message := self._denied.pop(key, ""):
            self._seen[key] = Denied(message)
        else:
            self._seen[key] = await self._look(key, uid)
        written, seen = self._written.pop(key, None), self._seen[key]
        if written is not None and missing(seen, written):
            # Otherwise two writers would overwrite each other for ever.
            self._seen[key] = Denied("something else changes it right after each write")
        return self._seen[key]

    async def publish(self, key: ObjectKey, uid: str, wanted: Connection) -> None:
        """Writes the wanted contents over what `look` saw. Raises `KubeError` if it has changed since."""
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
            # A role, a quota or a webhook forbids it. That is no reason to close the catalog.
            self._denied[key] = str(error)
        else:
            self._written[key] = wanted

    def shown(self, key: ObjectKey, before: Json, step: Settle) -> Settle:
        """Returns the step with `status.connection`, which is known even if the store can't be reached.

        The field keeps its value from `before` until the ConfigMap has been read.
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
        """Forgets a Catalog that no longer exists."""
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
