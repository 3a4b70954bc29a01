"""The `CatalogMigration` resource: one move of one catalog between its stash and persist."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    ApiModel,
    Definition,
    LocalReference,
    Period,
    PrinterColumn,
    Resource,
    Status,
    milliseconds,
    validations,
)
from holdfast_operator.api.catalog import Backend, CatalogFence
from holdfast_operator.api.names import Kind

_FIXED: Final = ("catalogRef", "target", "verify", "dryRun", "timeout")
_FIXED_OPTIONAL: Final = ("migrationId", "shadowFor")
_UNCHANGED: Final = " && ".join(
    [
        *(f"self.{field} == oldSelf.{field}" for field in _FIXED),
        *(
            f"has(self.{field}) == has(oldSelf.{field}) && "
            f"(!has(self.{field}) || self.{field} == oldSelf.{field})"
            for field in _FIXED_OPTIONAL
        ),
    ]
)
_SHADOW_FOR: Final = "5m"


class Verify(StrEnum):
    """How the two stores are compared before the target becomes the source of truth."""

    NONE = "None"
    COMPARE = "Compare"
    SHADOW = "Shadow"


class MigrationPhase(StrEnum):
    """The phase of a migration, for people to read. Programs should read the conditions."""

    PENDING = "Pending"
    PLANNED = "Planned"
    MIGRATING = "Migrating"
    SHADOWING = "Shadowing"
    ROLLING_BACK = "RollingBack"
    SUSPENDED = "Suspended"
    STALLED = "Stalled"
    ABANDONING = "Abandoning"
    COMPLETED = "Completed"
    ROLLED_BACK = "RolledBack"


class CatalogMigrationSpec(ApiModel):
    """The catalog to move, and how to move it."""

    catalog_ref: LocalReference = Field(description="The Catalog to move. It must have a stash.")
    target: Backend = Field(description="The store to make the source of truth: Persist or Stash.")
    migration_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?$",
        description="Id of the migration in the catalog's own records. A migration that is done never runs "
        "again under the same id, no matter which resource requests it. The default is uid/namespace/name "
        "of this resource, so a resource that you create again under the same name is another migration.",
    )
    verify: Verify = Field(
        default=Verify.COMPARE,
        description="Compare reads and compares both stores before the target becomes the source of truth. "
        "Shadow first makes every change in both stores for shadowFor. None compares nothing.",
    )
    shadow_for: Period | None = Field(
        default=None,
        description="With verify Shadow, how long changes are made in both stores, e.g. 90s or 1h. The "
        "default is 5m.",
    )
    dry_run: bool = Field(
        default=False,
        description="If true, the operator only writes the plan to the status, and changes neither store.",
    )
    timeout: Period = Field(
        default="10m",
        description="How long the migration may take, and how long it keeps others out of the catalog. "
        "Afterwards no further step runs. Each change of this spec restarts the time.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, the migration stops before its next step until it is false again.",
    )
    rollback: bool = Field(
        default=False,
        description="If true, the catalog moves back for good, during the migration or after it.",
    )

    @property
    def timeout_seconds(self) -> float:
        """Seconds that the steps may take, without the time of shadowing."""
        return milliseconds(self.timeout) / 1000

    @property
    def shadow_seconds(self) -> float:
        """Seconds for which changes are made in both stores."""
        return milliseconds(self.shadow_for or _SHADOW_FOR) / 1000 if self.verify == Verify.SHADOW else 0.0


_SPEC_RULES: Final = validations(
    (_UNCHANGED, "only suspend and rollback can change: create another CatalogMigration instead"),
    ("!oldSelf.rollback || self.rollback", "rollback can't be undone: create another CatalogMigration"),
    ("!has(self.shadowFor) || self.verify == 'Shadow'", "shadowFor needs verify Shadow"),
    ("!(self.dryRun && self.rollback)", "a dry run has nothing to roll back"),
)


class ObjectSize(ApiModel):
    """Number and size of the objects of one type."""

    rows: int = Field(description="Number of rows.")
    bytes: int = Field(description="Bytes of their keys and values.")


class CatalogMigrationStatus(Status):
    """What the operator last read from the two stores.

    The operator itself reads only two things from it: when the timeout ends, and, if the stores can't be
    reached, how the migration ended.
    """

    phase: MigrationPhase | None = Field(default=None, description="Phase of the migration.")
    migration_id: str | None = Field(
        default=None, description="Id of the migration in the catalog's own records."
    )
    step: str | None = Field(default=None, description="The last numbered step that is done.")
    strategy: str | None = Field(default=None, description="The migrationStrategy of the two stores.")
    source_of_truth: str | None = Field(
        default=None, description="The store that is the source of truth: Persist or Stash."
    )
    stash_epoch: int | None = Field(
        default=None, description="Epoch of the catalog in the stash. It grows with each opening."
    )
    persist_epoch: int | None = Field(
        default=None, description="Epoch of the catalog on persist. It grows with each opening."
    )
    rows: int | None = Field(default=None, description="Number of rows to move.")
    bytes: int | None = Field(default=None, description="Number of bytes to move.")
    objects: dict[str, ObjectSize] | None = Field(
        default=None, description="Rows and bytes by object type, as they were read."
    )
    plan: tuple[str, ...] | None = Field(
        default=None,
        max_length=32,
        description="The steps that the migration would take, after a dry run.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    start_time: datetime | None = Field(default=None, description="When the first step started.")
    deadline: datetime | None = Field(default=None, description="When the timeout ends.")
    completion_time: datetime | None = Field(default=None, description="When the last step was done.")
    fenced_by: tuple[CatalogFence, ...] | None = Field(
        default=None,
        max_length=3,
        description="The other operators that took this migration over since the resource was last changed. "
        "After three times within ten minutes, no further step runs.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class CatalogMigration(Resource):
    """One migration of one catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.CATALOG_MIGRATION,
        selectable=(".spec.catalogRef.name",),
        short_names=("catmig",),
        columns=(
            READY_COLUMN,
            PrinterColumn("Catalog", "string", ".spec.catalogRef.name", "The Catalog to move."),
            PrinterColumn("Target", "string", ".spec.target", "The store to move it to."),
            PrinterColumn("Phase", "string", ".status.phase", "Phase of the migration."),
            PrinterColumn("Step", "string", ".status.step", "The last numbered step that is done."),
            PrinterColumn(
                "Truth", "string", ".status.sourceOfTruth", "The store that is the source of truth."
            ),
            PrinterColumn("Rows", "integer", ".status.rows", "Number of rows to move."),
            PrinterColumn("Bytes", "integer", ".status.bytes", "Number of bytes to move.", wide=True),
            PrinterColumn("Verify", "string", ".spec.verify", "How the stores are compared.", wide=True),
            PrinterColumn(
                "Stash-Epoch",
                "integer",
                ".status.stashEpoch",
                "Epoch of the catalog in the stash.",
                wide=True,
            ),
            PrinterColumn(
                "Persist-Epoch",
                "integer",
                ".status.persistEpoch",
                "Epoch of the catalog on persist.",
                wide=True,
            ),
            AGE_COLUMN,
            REASON_COLUMN,
        ),
        description="A CatalogMigration moves a catalog's source of truth between its stash and persist.",
    )

    spec: CatalogMigrationSpec = Field(
        description="The catalog to move, and how to move it. Only suspend and rollback can change.",
        json_schema_extra=_SPEC_RULES,
    )
    status: CatalogMigrationStatus = Field(
        default=CatalogMigrationStatus(),
        description="What the operator last read from the two stores.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )


AT_REST: Final = frozenset({MigrationPhase.PLANNED, MigrationPhase.COMPLETED, MigrationPhase.ROLLED_BACK})
"""Phases in which the operator does nothing more until the spec changes."""
