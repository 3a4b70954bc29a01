"""The Secrets that a spec refers to.

Invariants
- Their values are used and not kept. From the first read until the object that names them is gone, they are
  masked in every log line, status and Event of their namespace.
- A Secret that is too large for credentials is refused as a whole. None of it is decoded.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast.errors import BadInput
from holdfast.ingest.credentials import SecretRef
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.urls import TELLING
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.kube import SECRETS, Gone, Kube, ObjectKey
from holdfast_operator.engine.logging import forget, hide
from holdfast_operator.engine.steps import stalled
from holdfast_operator.places.storage import StashLocation, secrets_of

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


async def unusable_secret(
    kube: Kube, key: ObjectKey, spec: CatalogSpec, *, deleting: bool = False
) -> Health | None:
    """Returns the problem with the first unusable Secret of a spec, or None.

    To delete a catalog, only the stash's Secret is needed. The other ones are for Spark jobs and
    applications.
    """
    for name, field in secrets_of(spec):
        if deleting and not field.startswith("spec.stash"):
            continue
        try:
            decoded(await kube.get_of(SECRETS, key.namespace, name), key)
        except Gone:
            return no_secret(name, field)
        except BadInput as error:
            return settled(error).health
    return None


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


async def credentials_of(kube: Kube, key: ObjectKey, stash: StashLocation | None) -> Mapping[str, str]:
    """Returns the values of the stash's Secret, for an object of its namespace. Raises `Gone`, `BadInput`."""
    if stash is None or stash.secret is None:
        return {}
    return decoded(await kube.get_of(SECRETS, key.namespace, stash.secret), key)


def decoded(secret: Mapping[str, Any], key: ObjectKey) -> dict[str, str]:
    """Returns the values of a Secret that is read for an object, and hides the secret ones from now on.

    Raises `BadInput` if the Secret is too large for credentials.
    """
    data, metadata = secret.get("data") or {}, secret.get("metadata", {})
    _check_size(metadata.get("name"), data)
    values = {name: base64.b64decode(encoded).decode(errors="replace") for name, encoded in data.items()}
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


def no_secret(name: str, field: str) -> Health:
    """Returns the health if a Secret that a spec names doesn't exist."""
    return stalled(
        Reason.SECRET_NOT_FOUND, f"Secret '{name}' is not in this namespace; create it or correct {field}"
    )
