"""The name of an Iceberg table, and the properties of its catalog, without secrets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import BadInput

_CATALOG: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_SECRET: Final = re.compile(r"secret|token|password|credential|access-key|key-id|oauth2", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class IcebergTarget:
    """A table of an Iceberg catalog, whose contents a snapshot or an export replaces.

    `catalog` is the name of the catalog and `table` is `namespace.table`. `properties` are those of
    pyiceberg, such as `type`, `uri`, `warehouse` and `s3.endpoint`. Missing properties are taken from
    environment variables `PYICEBERG_CATALOG__<NAME>__<PROPERTY>`. Secrets may only be given there.
    """

    catalog: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.catalog, str) or not _CATALOG.fullmatch(self.catalog):
            raise BadInput("'iceberg.catalog' must be a name of letters, digits and '-'")
        if not isinstance(self.table, str) or not all(self.table.split(".")) or "." not in self.table:
            raise BadInput(f"'iceberg.table' must be namespace.table, not {self.table!r}")
        if not isinstance(self.properties, Mapping):
            raise BadInput("'iceberg.properties' must be an object of texts")
        for name, value in self.properties.items():
            if not isinstance(value, str):
                raise BadInput(f"'iceberg.properties' must be an object of texts; {name!r} isn't one")
            if _SECRET.search(name) or _with_password(value):
                raise BadInput(
                    f"iceberg property {name!r} is a secret, and must not be given here",
                    hint=f"set {self.variable(name)} in the environment",
                )

    def variable(self, name: str) -> str:
        """Return the name of the environment variable for a property."""
        path = f"{self.catalog}__{name.replace('.', '__')}"
        return f"PYICEBERG_CATALOG__{path.replace('-', '_').upper()}"

    def __str__(self) -> str:
        return f"{self.catalog}.{self.table}"


def _with_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return True
