"""The contents of each Catalog's ConfigMap, with which an application opens the catalog. Pure.

The values are environment variables for a pod (`envFrom`): the location, the organization, and the store that
is the source of truth. Credentials are in Secrets. The ConfigMap has only the names of the Secrets.

Invariants
- The ConfigMap contains no user, no password and no other secret, even if a URL of the spec does.
- The operator leaves keys, labels and annotations alone that it didn't set.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import (
    ANNOTATION_OPEN,
    API_VERSION,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
    ConditionType,
    Kind,
    Reason,
)
from holdfast_operator.api.urls import public
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status_writer import merge_patch
from holdfast_operator.places.storage import StashLocation, Storage, stash_of, url_with

Json = dict[str, Any]

PREFIX: Final = "HOLDFAST_"
"""The prefix of the operator's keys."""

_SUFFIX: Final = "-connection"
_MAX_NAME: Final = 253
_DIGEST: Final = 8


@dataclass(frozen=True)
class Connection:
    """The contents that the ConfigMap of a Catalog should have."""

    data: Mapping[str, str]
    how: str
    """The library call that opens the catalog."""


@dataclass(frozen=True)
class Absent:
    """The ConfigMap doesn't exist."""


@dataclass(frozen=True)
class Ours:
    """The ConfigMap exists, and its owner is the Catalog."""

    body: Json


@dataclass(frozen=True)
class Leaving:
    """The ConfigMap belongs to a deleted Catalog of the same name. Kubernetes will delete it."""


@dataclass(frozen=True)
class Foreign:
    """The ConfigMap belongs to somebody else."""


@dataclass(frozen=True)
class Denied:
    """The ConfigMap can't be read or written. `message` says why."""

    message: str


Seen = Absent | Ours | Leaving | Foreign | Denied


def config_map_name(catalog: str) -> str:
    """Returns the name of a Catalog's ConfigMap."""
    if len(catalog) + len(_SUFFIX) <= _MAX_NAME:
        return catalog + _SUFFIX
    digest = hashlib.sha256(catalog.encode()).hexdigest()[:_DIGEST]
    return f"{catalog[: _MAX_NAME - len(_SUFFIX) - _DIGEST - 1].rstrip('-.')}-{digest}{_SUFFIX}"


def connection_of(spec: CatalogSpec, storage: Storage, truth: str) -> Connection:
    """Returns how to open the catalog of a spec. `truth` is the store that is the source of truth now."""
    stash = stash_of(spec)
    secret = spec.storage.credentials_secret_ref
    values = {
        "ORGANIZATION_ID": spec.organization_id,
        "SOURCE_OF_TRUTH": truth,
        "URL": storage.url and public(storage.url),
        "BLOB_URL": storage.blob and public(storage.blob),
        "CONSENSUS_URL": storage.consensus and public(storage.consensus),
        "CREDENTIALS_SECRET": secret.name if secret else None,
        "STASH_URL": public(url_with(stash, {})) if stash else None,
        "STASH_CREDENTIALS_SECRET": stash.secret if stash else None,
    }
    data = {PREFIX + name: value for name, value in values.items() if value is not None}
    return Connection(data, _call(storage, stash))


def _call(storage: Storage, stash: StashLocation | None) -> str:
    def variable(name: str) -> str:
        return f'os.environ["{PREFIX}{name}"]'

    place = (
        variable("URL")
        if storage.url is not None
        else f"blob={variable('BLOB_URL')}, consensus={variable('CONSENSUS_URL')}"
    )
    persist = f"persist_catalog(PersistClient.open({place}), {variable('ORGANIZATION_ID')})"
    if stash is None:
        return persist
    return f"linked_catalog(stash_catalog({variable('STASH_URL')}), {persist})"


def missing(seen: Seen | None, wanted: Connection) -> bool:
    """Returns whether the ConfigMap must be written. None for `seen` means that it was not read."""
    match seen:
        case Absent():
            return True
        case Ours():
            return bool(change(seen.body, wanted))
        case None | Leaving() | Foreign() | Denied():
            return False
        case _:
            assert_never(seen)


def is_passing(seen: Seen | None) -> bool:
    """Returns whether the state of the ConfigMap will soon change without the operator."""
    return isinstance(seen, Leaving)


def connection_condition(seen: Seen | None, catalog: str) -> tuple[WantedCondition, ...]:
    """Returns the condition for a problem with the ConfigMap, or nothing if there is none."""
    name = config_map_name(catalog)
    match seen:
        case Foreign():
            text = (
                f"ConfigMap '{name}' belongs to somebody else, so the operator can't publish how to open the "
                "catalog; delete or rename that ConfigMap"
            )
            return (WantedCondition(ConditionType.CONNECTION_PUBLISHED, "False", Reason.NAME_TAKEN, text),)
        case Denied():
            text = f"ConfigMap '{name}' can't be written: {seen.message}; the operator retries by itself"
            return (WantedCondition(ConditionType.CONNECTION_PUBLISHED, "False", Reason.FORBIDDEN, text),)
        case None | Absent() | Ours() | Leaving():
            return ()
        case _:
            assert_never(seen)


def config_map(key: ObjectKey, uid: str, wanted: Connection) -> Json:
    """Returns the ConfigMap to create."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(key.name),
            "namespace": key.namespace,
            **_metadata(wanted),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": Kind.CATALOG.value,
                    "name": key.name,
                    "uid": uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "data": dict(wanted.data),
    }


def _metadata(wanted: Connection) -> Json:
    return {
        "labels": {LABEL_NAME: "holdfast", LABEL_MANAGED_BY: MANAGED_BY},
        "annotations": {ANNOTATION_OPEN: wanted.how},
    }


def change(body: Json, wanted: Connection) -> Json:
    """Returns a merge patch for the operator's part of the ConfigMap. Empty if it is up to date."""
    before = body.get("data") or {}
    after = {name: value for name, value in before.items() if not name.startswith(PREFIX)}
    patch: Json = {}
    if data := merge_patch(before, {**after, **wanted.data}):
        patch["data"] = data
    found = {part: body["metadata"].get(part) or {} for part in ("labels", "annotations")}
    whole = {part: {**found[part], **value} for part, value in _metadata(wanted).items()}
    if metadata := merge_patch(found, whole):
        patch["metadata"] = metadata
    return patch
