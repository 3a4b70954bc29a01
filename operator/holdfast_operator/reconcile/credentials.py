"""The Secrets that a Catalog's spec refers to.

Invariants
- Their values are used and not kept, and get into no log line from the first time that they are read.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.reconcile.facts import Opening
from holdfast_operator.reconcile.storage import secrets_of
from holdfast_operator.runtime.kube import SECRETS, Gone, Kube, ObjectKey
from holdfast_operator.runtime.logging import hide

_NO_SECRETS: Final = frozenset(
    {"user", "username", "host", "hostname", "port", "dbname", "database", "region"}
    | {"pguser", "pghost", "pgport", "pgdatabase", "aws_region", "aws_default_region"}
)
"""Keys of Secrets whose values stay legible: a user called postgres would mask half of every URL."""


async def missing_secret(kube: Kube, key: ObjectKey, spec: CatalogSpec) -> tuple[str, str] | None:
    """The first Secret that the spec names and that isn't there, with its field."""
    for name, field in secrets_of(spec):
        try:
            secret = await kube.get_of(SECRETS, key.namespace, name)
        except Gone:
            return name, field
        decoded(secret)
    return None


async def credentials_of(kube: Kube, namespace: str, opening: Opening) -> Mapping[str, str]:
    """What the Secret of the stash holds. Raises `Gone`."""
    if opening.stash is None or opening.stash.secret is None:
        return {}
    return decoded(await kube.get_of(SECRETS, namespace, opening.stash.secret))


def decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    """The values of a Secret; what is secret of them never gets into a log line from now on."""
    data = secret.get("data") or {}
    values = {name: base64.b64decode(encoded).decode(errors="replace") for name, encoded in data.items()}
    for name in data:
        if name.lower() not in _NO_SECRETS:
            hide(data[name], values[name])
    return values
