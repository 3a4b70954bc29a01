"""What `Catalog.spec.objects` declares: what the operator keeps in the catalog, one list for each type."""

from typing import Annotated, Any

from pydantic import Field

from holdfast_operator.api.base import ApiModel, validations

MAX_OBJECTS = 256
_RESERVED = "holdfast_"
_NAME = Field(
    min_length=1,
    max_length=255,
    description="The name in the catalog; names that begin with holdfast_ are the system's.",
    json_schema_extra=validations(
        (f"!self.startsWith('{_RESERVED}')", f"names that begin with {_RESERVED} are reserved")
    ),
)
_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
SettingText = Annotated[str, Field(max_length=4096)]


class DeclaredSchema(ApiModel):
    """A schema of a database."""

    name: str = _NAME


class DeclaredDatabase(ApiModel):
    """A database with its schemas."""

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
        description="Size of each replica, as the database names it.",
    )
    replicas: int = Field(default=1, ge=0, le=64, description="How many replicas.")


class CatalogObjects(ApiModel):
    """What the operator keeps in step with the catalog; what others made is left alone."""

    databases: tuple[DeclaredDatabase, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Databases. One that is taken out of the list is dropped if the operator made it and "
        "nothing of others is in it.",
        json_schema_extra=_BY_NAME,
    )
    roles: tuple[DeclaredRole, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Roles. One that is taken out of the list is dropped if the operator made it and nothing "
        "refers to it.",
        json_schema_extra=_BY_NAME,
    )
    clusters: tuple[DeclaredCluster, ...] = Field(
        default=(),
        max_length=MAX_OBJECTS,
        description="Clusters. One that is taken out of the list is dropped if the operator made it and it "
        "has no replicas of others.",
        json_schema_extra=_BY_NAME,
    )
    system_configurations: dict[str, SettingText] = Field(
        default={},
        description="System configurations by name. One that is taken out is removed if the operator set it "
        "and nobody changed it since. No secrets: everybody who can read the resource sees them.",
        json_schema_extra={"maxProperties": MAX_OBJECTS}
        | validations(("self.all(name, size(name) > 0)", "a system configuration needs a name")),
    )
