"""The parts of a Catalog's spec that name a store: where its data is, and where it comes from."""

from typing import Final

from pydantic import Field, field_validator

from holdfast_operator.api.base import ApiModel, LocalReference, Uuid, validations
from holdfast_operator.api.urls import NO_SECRETS, without_secrets

_HAS_SCHEME = "self.matches('^[a-zA-Z][a-zA-Z0-9+.-]*://.+')"
_URL_RULES = validations((_HAS_SCHEME, "must be a URL like file:///folder"), *NO_SECRETS)
_STASH_RULES = validations(
    (
        "self.matches('^(postgres|postgresql|sqlite)://.+')",
        "must be a URL like postgresql://host/database or sqlite:///folder/file",
    ),
    *NO_SECRETS,
)
_DUMP_RULES = validations(
    (
        "self.matches('^(file|s3)://.+')",
        "must be a URL like file:///folder/dump.json or s3://bucket/dump.json",
    ),
    *NO_SECRETS,
)
_URL_OR_PAIR = (
    "has(self.url) ? !has(self.blob) && !has(self.consensus) : has(self.blob) == has(self.consensus)",
    "give url, or both blob and consensus, or none of them",
)
STORAGE_RULES: Final = validations(_URL_OR_PAIR)


class CatalogStorage(ApiModel):
    """Where the data is stored. If empty, in files and SQLite on the operator's own volume."""

    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="One URL for both blobs and consensus, e.g. file:///srv/holdfast/demo.",
        json_schema_extra=_URL_RULES,
    )
    blob: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the blob store. Set it and consensus instead of url.",
        json_schema_extra=_URL_RULES,
    )
    consensus: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the consensus store. Set it and blob instead of url.",
        json_schema_extra=_URL_RULES,
    )
    credentials_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret with credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, PGUSER "
        "and PGPASSWORD for Postgres. The operator, applications and Spark jobs use them. A Spark job gets "
        "no other key of it: put what else it needs into spark.envSecretRef. The operator reads a changed "
        "Secret by itself. For a store for which the Secret has no credentials, the operator uses its own, "
        "from its environment (the chart's value credentialsSecret). At most 64 keys of 16 KiB each, 64 KiB "
        "in total.",
    )

    _no_secrets = field_validator("url", "blob", "consensus")(without_secrets)


class CatalogStash(ApiModel):
    """A second store for the catalog's contents: a database."""

    url: str = Field(
        min_length=1,
        max_length=2048,
        description="URL of the database, e.g. postgresql://host/database or sqlite:///folder/file.",
        json_schema_extra=_STASH_RULES,
    )
    schema_name: str | None = Field(
        default=None,
        alias="schema",
        min_length=1,
        max_length=63,
        pattern=r"^[a-z_][a-z0-9_]*$",
        description="Schema of the database that holds the stash. Postgres only.",
    )
    credentials_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret with the keys user (or username) and password of the database. At most 64 "
        "keys of 16 KiB each, 64 KiB in total.",
    )
    _no_secrets = field_validator("url")(without_secrets)


class RestoreFromDump(ApiModel):
    """A dump that `holdfast catalog dump` wrote."""

    url: str = Field(
        min_length=1,
        max_length=2048,
        description="URL of the dump: an s3:// URL, or a file:// URL below the namespace's folder on the "
        "operator's own volume.",
        json_schema_extra=_DUMP_RULES,
    )
    _no_secrets = field_validator("url")(without_secrets)


class RestoreFromCatalog(ApiModel):
    """Another catalog at a version at which it can still be read."""

    organization_id: Uuid = Field(description="The organization whose catalog to copy.")
    storage: CatalogStorage | None = Field(
        default=None,
        description="Where the other catalog is stored. By default, where this Catalog's spec.storage would "
        "put it.",
        json_schema_extra=STORAGE_RULES,
    )
    as_of: int | None = Field(
        default=None,
        ge=0,
        description="The version of the other catalog to copy. The default is the latest version.",
    )


class CatalogRestore(ApiModel):
    """The data to fill a new catalog with, instead of `bootstrap`."""

    dump: RestoreFromDump | None = Field(default=None, description="A dump of a catalog.")
    catalog: RestoreFromCatalog | None = Field(default=None, description="Another catalog.")
