"""The Secrets that a spec refers to.

Invariants
- Their values are used and not kept. From the first read until the object that names them is gone, they are
  masked in every log line, status and Event of their namespace.
- A Secret that is too large for credentials is refused as a whole. None of it is decoded.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from holdfast.errors import BadInput
from holdfast.ingest.credentials import SecretRef
from holdfast.store_keys import trimmed
from holdfast_operator.api.names import Reason
from holdfast_operator.api.urls import TELLING
from holdfast_operator.engine.failures import ReasonedError
from holdfast_operator.engine.kube import SECRETS, Gone, Kube, ObjectKey
from holdfast_operator.engine.logging import forget, hide
from holdfast_operator.places.storage import (
    CatalogSource,
    RestoreSource,
    StashLocation,
    Storage,
    of_storage,
)

_NO_SECRETS: Final = frozenset(
    {"user", "username", "host", "hostname", "port", "dbname", "database", "region"}
    | {"pguser", "pghost", "pgport", "pgdatabase", "aws_region", "aws_default_region"}
)
"""Keys of Secrets whose values are not masked. A user called postgres would mask half of every URL."""
_PLAIN: Final = 6
"""Shorter values of keys without a suspicious name are not masked, because they may be ordinary words."""
_MOST_KEYS: Final = 64
_MOST_BYTES: Final = 16 * 1024
"""The maximum size of one value."""
_MOST_IN_ALL: Final = 64 * 1024
_BOUNDS: Final = (
    f"credentials can have at most {_MOST_KEYS} keys of {_MOST_BYTES} bytes each, {_MOST_IN_ALL} in total"
)
_HINT: Final = "move other contents to another Secret"
_TELLS: Final = re.compile(TELLING, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the operator opens the stores of a Catalog with, from Secrets. What is empty is its own."""

    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those of `of_storage`."""
    stash: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All values of the stash's Secret."""
    source: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those of `of_storage` for the catalog that a new one is filled from."""

    @property
    def version(self) -> int:
        """A number that changes with the credentials of the Catalog's stores. It shows nothing of them."""
        return hash((frozenset(self.storage.items()), frozenset(self.stash.items())))


NO_CREDENTIALS: Final = Credentials()


class SecretNotFound(ReasonedError):
    """A Secret that a spec names doesn't exist."""

    reason = Reason.SECRET_NOT_FOUND

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"Secret '{name}' is not in this namespace", hint=f"create it or correct {where}")


async def missing_secret(kube: Kube, key: ObjectKey, wanted: Iterable[SecretRef]) -> str | None:
    """Returns which of the Secrets that a source needs is missing or lacks a key, and what to do, or None."""
    for ref in wanted:
        try:
            found = decoded(await kube.get_of(SECRETS, key.namespace, ref.name), key)
        except Gone:
            needs = f" with {' and '.join(ref.required)}" if ref.required else ""
            return f"Secret '{ref.name}' is not in this namespace; create it{needs}, or correct {ref.where}"
        except BadInput as error:
            return f"{error}; {error.hint}"
        if fault := ref.fault(found):
            return f"Secret '{ref.name}' {fault}"
    return None


async def credentials_of(
    kube: Kube,
    key: ObjectKey,
    storage: Storage,
    stash: StashLocation | None,
    source: RestoreSource | None = None,
    *,
    deleting: bool = False,
) -> Credentials:
    """Returns the credentials of these places, for an object of their namespace.

    Raises `SecretNotFound` and `BadInput`. If the storage's Secret is gone before a deletion, the operator
    uses its own.
    """
    values: dict[str, Mapping[str, str]] = {}

    async def read(name: str | None, where: str) -> Mapping[str, str]:
        if name is None:
            return {}
        if name not in values:
            try:
                values[name] = decoded(await kube.get_of(SECRETS, key.namespace, name), key)
            except Gone:
                raise SecretNotFound(name, f"{where}.credentialsSecretRef") from None
        return values[name]

    try:
        own = of_storage(storage, await read(storage.secret, "spec.storage"))
    except SecretNotFound:
        if not deleting:
            raise
        own = {}
    theirs: Mapping[str, str] = {}
    if isinstance(source, CatalogSource) and not deleting:
        found = await read(source.storage.secret, "spec.restoreFrom.catalog.storage")
        theirs = of_storage(source.storage, found)
    return Credentials(own, await read(stash.secret if stash else None, "spec.stash"), theirs)


async def store_keys_of(kube: Kube, catalog: ObjectKey, storage: Storage) -> tuple[str, ...]:
    """Returns which keys of a Catalog's Secret open its stores. Empty if the Secret has none of them.

    Decodes no value. Raises `SecretNotFound`, and `BadInput` for half of a pair.
    """
    if storage.secret is None:
        return ()
    try:
        secret = await kube.get_of(SECRETS, catalog.namespace, storage.secret)
    except Gone:
        where = f"spec.storage.credentialsSecretRef of Catalog '{catalog.name}'"
        raise SecretNotFound(storage.secret, where) from None
    return tuple(of_storage(storage, secret.get("data") or {}))


def decoded(secret: Mapping[str, Any], key: ObjectKey) -> dict[str, str]:
    """Returns the values of a Secret that is read for an object, and hides the secret ones from now on.

    The newlines at their ends are left out. Raises `BadInput` if the Secret is too large for credentials.
    """
    data, metadata = secret.get("data") or {}, secret.get("metadata", {})
    _check_size(metadata.get("name"), data)
    texts = {name: base64.b64decode(encoded).decode(errors="replace") for name, encoded in data.items()}
    values = {name: trimmed(text) for name, text in texts.items()}
    source = f"{metadata.get('name')}@{metadata.get('resourceVersion')}"
    hidden = _hidden_keys(values)
    written = [text for name in hidden for text in (data[name], values[name], quote(values[name], safe=""))]
    hide(key.namespace, str(key), source, written)
    return values


def forget_secrets(key: ObjectKey) -> None:
    """Stops hiding the values that were read for an object that is gone."""
    forget(key.namespace, str(key))


def _check_size(name: object, data: Mapping[str, str]) -> None:
    if len(data) > _MOST_KEYS:
        raise BadInput(f"Secret '{name}' has {len(data)} keys: {_BOUNDS}", hint=_HINT)
    sizes = {key: len(encoded) // 4 * 3 - encoded[-2:].count("=") for key, encoded in data.items()}
    largest = max(sizes, key=lambda key: sizes[key], default="")
    if sum(sizes.values()) > _MOST_IN_ALL or sizes.get(largest, 0) > _MOST_BYTES:
        about = f"key '{largest}' of Secret '{name}' has {sizes[largest]} bytes"
        raise BadInput(f"{about}, of {sum(sizes.values())} in total: {_BOUNDS}", hint=_HINT)


def _hidden_keys(values: Mapping[str, str]) -> list[str]:
    """Returns the keys whose values are hidden."""
    tells = {name: _TELLS.search(name) is not None for name in values if name.lower() not in _NO_SECRETS}
    return [name for name, telling in tells.items() if telling or len(values[name]) >= _PLAIN]
