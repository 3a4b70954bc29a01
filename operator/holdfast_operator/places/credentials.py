"""The Secrets that a Catalog's spec refers to.

Invariants
- Their values are used and not kept, and get into no log line, status or Event of their namespace from the
  first time that they are read until the object that names them is gone.
- One that is larger than credentials are is refused whole: nothing of it is decoded.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast.errors import BadInput
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.urls import TELLING
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.kube import SECRETS, Gone, Kube, ObjectKey
from holdfast_operator.engine.logging import forget, hide
from holdfast_operator.engine.status import Health
from holdfast_operator.engine.steps import stalled
from holdfast_operator.places.storage import StashLocation, secrets_of

_NO_SECRETS: Final = frozenset(
    {"user", "username", "host", "hostname", "port", "dbname", "database", "region"}
    | {"pguser", "pghost", "pgport", "pgdatabase", "aws_region", "aws_default_region"}
)
"""Keys of Secrets whose values stay legible: a user called postgres would mask half of every URL."""
_PLAIN: Final = 6
"""A shorter value of a key that doesn't tell a secret may be a word of any line."""
_MOST_KEYS: Final = 64
_MOST_BYTES: Final = 16 * 1024
"""Of a value."""
_MOST_IN_ALL: Final = 64 * 1024
_BOUNDS: Final = f"credentials have at most {_MOST_KEYS} keys with {_MOST_BYTES} bytes, {_MOST_IN_ALL} in all"
_HINT: Final = "put what else it has into another Secret"
_TELLS: Final = re.compile(TELLING, re.IGNORECASE)


async def unusable_secret(
    kube: Kube, key: ObjectKey, spec: CatalogSpec, *, deleting: bool = False
) -> Health | None:
    """What is wrong with the first Secret that the spec names and that can't be used.

    To delete a catalog only that of the stash is needed: the other is for Spark jobs and applications.
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


async def credentials_of(kube: Kube, key: ObjectKey, stash: StashLocation | None) -> Mapping[str, str]:
    """What the Secret of the stash holds, for an object of its namespace. Raises `Gone`, `BadInput`."""
    if stash is None or stash.secret is None:
        return {}
    return decoded(await kube.get_of(SECRETS, key.namespace, stash.secret), key)


def decoded(secret: Mapping[str, Any], key: ObjectKey) -> dict[str, str]:
    """The values of a Secret that is read for an object; what is secret of them is hidden from now on.

    Raises `BadInput` for one that is larger than credentials are.
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
    """An object is gone: what was read for it is hidden no longer."""
    forget(key.namespace, str(key))


def _check_size(name: object, data: Mapping[str, str]) -> None:
    if len(data) > _MOST_KEYS:
        raise BadInput(f"Secret '{name}' has {len(data)} keys: {_BOUNDS}", hint=_HINT)
    sizes = {key: len(encoded) // 4 * 3 - encoded[-2:].count("=") for key, encoded in data.items()}
    largest = max(sizes, key=lambda key: sizes[key], default="")
    if sum(sizes.values()) > _MOST_IN_ALL or sizes.get(largest, 0) > _MOST_BYTES:
        about = f"key '{largest}' of Secret '{name}' has {sizes[largest]} bytes"
        raise BadInput(f"{about}, of {sum(sizes.values())} in all: {_BOUNDS}", hint=_HINT)


def _hidden_keys(values: Mapping[str, str]) -> list[str]:
    """The keys whose values are hidden."""
    tells = {name: _TELLS.search(name) is not None for name in values if name.lower() not in _NO_SECRETS}
    return [name for name, telling in tells.items() if telling or len(values[name]) >= _PLAIN]


def no_secret(name: str, field: str) -> Health:
    """What is shown where a Secret isn't there that a spec names."""
    return stalled(
        Reason.SECRET_NOT_FOUND, f"Secret '{name}' is not in this namespace; create it or correct {field}"
    )
