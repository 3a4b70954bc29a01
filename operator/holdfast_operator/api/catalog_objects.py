"""`Catalog.spec.objects`: the objects that the operator keeps in a catalog, one list for each type."""

from typing import Annotated, Any

from pydantic import Field

from holdfast_operator.api.base import ApiModel, validations
from holdfast_operator.api.settings import SettingName

MAX_OBJECTS = 256
_RESERVED = "holdfast_"
_NAME = Field(
    min_length=1,
    max_length=255,
    description="The name in the catalog. Names that begin with holdfast_ are reserved.",
    json_schema_extra=validations(
        (f"!self.startsWith('{_RESERVED}')", f"names that begin with {_RESERVED} are reserved")
    ),
)
_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
MAX_SCHEMAS = 1024
_FEW_SCHEMAS = (
    f"self.map(d, has(d.schemas) ? size(d.schemas) : 0).sum() <= {MAX_SCHEMAS}",
    f"at most {MAX_SCHEMAS} schemas in all databases",
)
SettingText = Annotated[str, Field(max_length=4096)]


class DeclaredSchema(ApiModel):
    """A schema of a database."""

    name: str = _NAME


class DeclaredDatabase(ApiModel):
    """A database and its schemas."""

    name: str = _NAME
    schemas: tuple[DeclaredSchema, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Schemas of the database.",
        json_schema_extra=_BY_NAME,
    )


class DeclaredRole(ApiModel):
    """A role."""

    name: str = _NAME


class DeclaredCluster(ApiModel):
    """A cluster with replicas r1, r2, ... of one size."""

    name: str = _NAME
    size: str = Field(
        default="1",
        min_length=1,
        max_length=255,
        description="Size of each replica, in the database's own terms.",
    )
    replicas: int = Field(default=1, ge=0, le=64, description="Number of replicas.")


class CatalogObjects(ApiModel):
    """Objects that the operator keeps in the catalog as declared. It does not touch those of others."""

    databases: tuple[DeclaredDatabase, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Databases. If you remove a database from the list, the operator drops it, unless "
        "somebody else created the database or something in it.",
        json_schema_extra=_BY_NAME | validations(_FEW_SCHEMAS),
    )
    roles: tuple[DeclaredRole, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Roles. If you remove a role from the list, the operator drops it, unless somebody else "
        "created the role or something refers to it.",
        json_schema_extra=_BY_NAME,
    )
    clusters: tuple[DeclaredCluster, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Clusters. If you remove a cluster from the list, the operator drops it, unless somebody "
        "else created the cluster or one of its replicas.",
        json_schema_extra=_BY_NAME,
    )
    system_configurations: dict[SettingName, SettingText] = Field(
        default={},
        description="System configurations by name. If you remove a configuration, the operator resets it, "
        "unless somebody else set or changed it. Don't put secrets here: everybody who can read the resource "
        "sees them.",
        json_schema_extra={"maxProperties": MAX_OBJECTS}
        | validations(("self.all(name, size(name) > 0)", "a system configuration needs a name")),
    )
