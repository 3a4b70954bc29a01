"""The Secrets that a Catalog's spec refers to.

Invariants
- Their values are used and not kept, and get into no log line, status or Event of their namespace from the
  first time that they are read until the object that names them is gone.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.urls import TELLING
from holdfast_operator.reconcile.facts import Opening
from holdfast_operator.reconcile.storage import secrets_of
from holdfast_operator.runtime.kube import SECRETS, Gone, Kube, ObjectKey
from holdfast_operator.runtime.logging import forget, hide

_NO_SECRETS: Final = frozenset(
    {"user", "username", "host", "hostname", "port", "dbname", "database", "region"}
    | {"pguser", "pghost", "pgport", "pgdatabase", "aws_region", "aws_default_region"}
)
"""Keys of Secrets whose values stay legible: a user called postgres would mask half of every URL."""
_PLAIN: Final = 6
"""A shorter value of a key that doesn't tell a secret may be a word of any line."""
_MOST_KEYS: Final = 256
"""So many keys of a Secret are hidden, those that tell a secret first."""
_TELLS: Final = re.compile(TELLING, re.IGNORECASE)


async def missing_secret(kube: Kube, key: ObjectKey, spec: CatalogSpec) -> tuple[str, str] | None:
    """The first Secret that the spec names and that isn't there, with its field."""
    for name, field in secrets_of(spec):
        try:
            secret = await kube.get_of(SECRETS, key.namespace, name)
        except Gone:
            return name, field
        decoded(secret, key)
    return None


async def credentials_of(kube: Kube, key: ObjectKey, opening: Opening) -> Mapping[str, str]:
    """What the Secret of the stash holds, for an object of its namespace. Raises `Gone`."""
    if opening.stash is None or opening.stash.secret is None:
        return {}
    return decoded(await kube.get_of(SECRETS, key.namespace, opening.stash.secret), key)


def decoded(secret: Mapping[str, Any], key: ObjectKey) -> dict[str, str]:
    """The values of a Secret that is read for an object; what is secret of them is hidden from now on."""
    data = secret.get("data") or {}
    values = {name: base64.b64decode(encoded).decode(errors="replace") for name, encoded in data.items()}
    metadata = secret.get("metadata", {})
    source = f"{metadata.get('name')}@{metadata.get('resourceVersion')}"
    hidden = _hidden_keys(values)
    written = [text for name in hidden for text in (data[name], values[name], quote(values[name], safe=""))]
    hide(key.namespace, str(key), source, written)
    return values


def forget_secrets(key: ObjectKey) -> None:
    """An object is gone: what was read for it is hidden no longer."""
    forget(key.namespace, str(key))


def _hidden_keys(values: Mapping[str, str]) -> list[str]:
    """The keys whose values are hidden."""
    tells = {name: _TELLS.search(name) is not None for name in values if name.lower() not in _NO_SECRETS}
    found = [name for name, telling in tells.items() if telling or len(values[name]) >= _PLAIN]
    return sorted(found, key=lambda name: not tells[name])[:_MOST_KEYS]
