"""Refuses to start with credentials that every Catalog of the cluster could use at any location.

The chart refuses the same. It doesn't see what else puts credentials into a pod: a webhook that adds
variables for an IAM role, a mounted file, or variables of the image. Nobody sees those that the node gives
its pods.
"""

from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from holdfast.store_keys import ALL, trimmed

VARIABLES: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "BOTO_CONFIG"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "PGSSLKEY"),
)
"""Variables with credentials, or that name them. The chart has the same list."""
_FILES: Final = (
    *(".aws/credentials", ".aws/config", ".boto"),
    *(".pgpass", ".pg_service.conf", ".postgresql/postgresql.key"),
)
"""Files in the home folder that are read without any variable."""
FLAG: Final = "--let-all-namespaces-use-own-credentials-anywhere"


def check(
    environ: Mapping[str, str], *, namespaces: Collection[str], places: Collection[str], permitted: bool
) -> None:
    """Raises `ValueError` if a process for all namespaces and all locations has credentials of its own."""
    if namespaces or places or permitted:
        return
    found = next((f"the variable {name}" for name in VARIABLES if environ.get(name)), "")
    home = Path(environ.get("HOME") or "/")
    found = found or next((f"the file {home / name}" for name in _FILES if (home / name).exists()), "")
    if found:
        raise ValueError(
            f"{found} gives this process credentials that Catalogs of all namespaces could use at any "
            f"location: set --allow-location or --namespace, or permit it with {FLAG}"
        )


def trim(environ: MutableMapping[str, str]) -> None:
    """Removes the newlines at the ends of credentials. A variable that comes from a Secret may have some."""
    for name in environ.keys() & set(ALL):
        environ[name] = trimmed(environ[name])
