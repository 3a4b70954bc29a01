"""How an application opens a catalog: what the ConfigMap of each Catalog says. Pure.

Its values are environment variables for a pod (`envFrom`): where the catalog is, whose it is, which store has
it. Credentials are in Secrets, of which it holds the names.

Invariants
- No user, no password, nothing secret is in it, whatever a URL of the spec holds.
- Keys, labels and annotations that aren't ours are left alone.
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
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status import WantedCondition, merge_patch
from holdfast_operator.places.storage import StashLocation, Storage, stash_of, url_with

Json = dict[str, Any]

PREFIX: Final = "HOLDFAST_"
"""Of the keys that are ours."""

_SUFFIX: Final = "-connection"
_MAX_NAME: Final = 253
_DIGEST: Final = 8


@dataclass(frozen=True)
class Connection:
    """What the ConfigMap of a Catalog should say."""

    data: Mapping[str, str]
    how: str
    """The call of the library that opens the catalog."""


@dataclass(frozen=True)
class Absent:
    """There is no ConfigMap of that name."""


@dataclass(frozen=True)
class Ours:
    """The one that the operator made for the Catalog, as it is."""

    body: Json


@dataclass(frozen=True)
class Leaving:
    """One of a Catalog of this name that is gone: it goes by itself."""


@dataclass(frozen=True)
class Foreign:
    """Somebody else's."""


@dataclass(frozen=True)
class Denied:
    """It can't be read or written; `message` says why."""

    message: str


Seen = Absent | Ours | Leaving | Foreign | Denied


def config_map_name(catalog: str) -> str:
    """The name of a Catalog's ConfigMap."""
    if len(catalog) + len(_SUFFIX) <= _MAX_NAME:
        return catalog + _SUFFIX
    digest = hashlib.sha256(catalog.encode()).hexdigest()[:_DIGEST]
    return f"{catalog[: _MAX_NAME - len(_SUFFIX) - _DIGEST - 1].rstrip('-.')}-{digest}{_SUFFIX}"


def connection_of(spec: CatalogSpec, storage: Storage, truth: str) -> Connection:
    """How the catalog of a spec is opened; `truth` is the backend that has it now."""
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
    """Whether something has to be written; None: nobody has looked."""
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
    """Whether it is soon otherwise by itself."""
    return isinstance(seen, Leaving)


def connection_condition(seen: Seen | None, catalog: str) -> tuple[WantedCondition, ...]:
    """What is wrong with the ConfigMap of a Catalog; nothing where all is well."""
    name = config_map_name(catalog)
    match seen:
        case Foreign():
            text = (
                f"ConfigMap '{name}' isn't this Catalog's, so it is left alone and nothing says how to "
                "open the catalog; delete or rename it"
            )
            return (WantedCondition(ConditionType.CONNECTION_PUBLISHED, "False", Reason.NAME_TAKEN, text),)
        case Denied():
            text = f"ConfigMap '{name}' can't be kept: {seen.message}; it is tried again by itself"
            return (WantedCondition(ConditionType.CONNECTION_PUBLISHED, "False", Reason.FORBIDDEN, text),)
        case None | Absent() | Ours() | Leaving():
            return ()
        case _:
            assert_never(seen)


def config_map(key: ObjectKey, uid: str, wanted: Connection) -> Json:
    """The ConfigMap as it is made."""
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
    """What a merge patch has to change in ours; empty where it says what it should."""
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
