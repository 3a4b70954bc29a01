"""The `CatalogMigration` resource: one move of one catalog between its stash and persist."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    PERIOD,
    READY_COLUMN,
    REASON_COLUMN,
    ApiModel,
    Definition,
    LocalReference,
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
    """What is compared before the target becomes the source of truth."""

    NONE = "None"
    COMPARE = "Compare"
    SHADOW = "Shadow"


class MigrationPhase(StrEnum):
    """Where a migration is, for people; the conditions are for programs."""

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
    """What is to be moved, and how."""

    catalog_ref: LocalReference = Field(description="The Catalog to move; it must name a stash.")
    target: Backend = Field(description="The backend that is to hold the truth.")
    migration_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?$",
        description="Names the move in the catalog's own records: one that is done never runs again, "
        "wherever it is applied. By default uid/namespace/name of this resource: one that is created again "
        "under the same name is another move.",
    )
    verify: Verify = Field(
        default=Verify.COMPARE,
        description="Compare reads both stores and compares them before the target becomes the source of "
        "truth; Shadow makes every change in both for shadowFor first; None compares nothing.",
    )
    shadow_for: str | None = Field(
        default=None,
        max_length=16,
        pattern=PERIOD,
        description="How long changes are made in both stores with verify Shadow, e.g. 90s or 1h; 5m where "
        "it isn't given.",
    )
    dry_run: bool = Field(
        default=False, description="True only writes the plan into the status; neither store is written."
    )
    timeout: str = Field(
        default="10m",
        max_length=16,
        pattern=PERIOD,
        description="After this time no further step is taken, and for so long others are kept out of the "
        "catalog. It begins anew with each change of this spec.",
    )
    suspend: bool = Field(default=False, description="True stops before the next step until it is false.")
    rollback: bool = Field(
        default=False, description="True moves the catalog back, after the move or from within it, for good."
    )

    @property
    def timeout_seconds(self) -> float:
        """For how long steps are taken, the time of shadowing aside."""
        return milliseconds(self.timeout) / 1000

    @property
    def shadow_seconds(self) -> float:
        """For how long changes are made in both stores."""
        return milliseconds(self.shadow_for or _SHADOW_FOR) / 1000 if self.verify == Verify.SHADOW else 0.0


_SPEC_RULES: Final = validations(
    (_UNCHANGED, "only suspend and rollback can change: create another CatalogMigration instead"),
    ("!oldSelf.rollback || self.rollback", "rollback can't be taken back: create another CatalogMigration"),
    ("!has(self.shadowFor) || self.verify == 'Shadow'", "shadowFor is for verify Shadow"),
    ("!(self.dryRun && self.rollback)", "a dry run has nothing to roll back"),
)


class ObjectSize(ApiModel):
    """How much there is of an object type."""

    rows: int = Field(description="How many rows.")
    bytes: int = Field(description="How many bytes their keys and values have.")


class CatalogMigrationStatus(Status):
    """What the two stores say; it decides only when the timeout is over, and for silent stores what ended."""

    phase: MigrationPhase | None = Field(default=None, description="Where the migration is.")
    migration_id: str | None = Field(default=None, description="Its name in the catalog's own records.")
    step: str | None = Field(default=None, description="The numbered step that was done last.")
    strategy: str | None = Field(default=None, description="The migrationStrategy of the two stores.")
    source_of_truth: str | None = Field(default=None, description="The backend that holds the truth.")
    stash_epoch: int | None = Field(default=None, description="Epoch of the fence token in the stash.")
    persist_epoch: int | None = Field(default=None, description="Epoch of the fence token on persist.")
    rows: int | None = Field(default=None, description="How many rows are moved.")
    bytes: int | None = Field(default=None, description="How many bytes are moved.")
    objects: dict[str, ObjectSize] | None = Field(
        default=None, description="Rows and bytes by object type, as they were read."
    )
    plan: tuple[str, ...] | None = Field(
        default=None,
        max_length=32,
        description="What a dry run would do.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    start_time: datetime | None = Field(default=None, description="When the first step was begun.")
    deadline: datetime | None = Field(default=None, description="When no further step is taken.")
    completion_time: datetime | None = Field(default=None, description="When the last step was done.")
    fenced_by: tuple[CatalogFence, ...] | None = Field(
        default=None,
        max_length=3,
        description="Which other operators took this migration over since the resource was last changed; "
        "after three times within ten minutes no further step is taken.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class CatalogMigration(Resource):
    """One move of one catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.CATALOG_MIGRATION,
        short_names=("catmig",),
        columns=(
            READY_COLUMN,
            PrinterColumn("Catalog", "string", ".spec.catalogRef.name", "The Catalog that is moved."),
            PrinterColumn("Target", "string", ".spec.target", "Where it is moved to."),
            PrinterColumn("Phase", "string", ".status.phase", "Where the migration is."),
            PrinterColumn("Step", "string", ".status.step", "The numbered step that was done last."),
            PrinterColumn("Truth", "string", ".status.sourceOfTruth", "The backend that holds the truth."),
            PrinterColumn("Rows", "integer", ".status.rows", "How many rows are moved."),
            PrinterColumn("Bytes", "integer", ".status.bytes", "How many bytes are moved.", wide=True),
            PrinterColumn("Verify", "string", ".spec.verify", "What is compared.", wide=True),
            PrinterColumn(
                "Stash-Epoch", "integer", ".status.stashEpoch", "Epoch of the token in the stash.", wide=True
            ),
            PrinterColumn(
                "Persist-Epoch",
                "integer",
                ".status.persistEpoch",
                "Epoch of the token on persist.",
                wide=True,
            ),
            AGE_COLUMN,
            REASON_COLUMN,
        ),
        description="A CatalogMigration moves a catalog's source of truth between its stash and persist.",
    )

    spec: CatalogMigrationSpec = Field(
        description="What is to be moved, and how; only suspend and rollback can change.",
        json_schema_extra=_SPEC_RULES,
    )
    status: CatalogMigrationStatus = Field(
        default=CatalogMigrationStatus(),
        description="What the operator last found in the two stores.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )


AT_REST: Final = frozenset({MigrationPhase.PLANNED, MigrationPhase.COMPLETED, MigrationPhase.ROLLED_BACK})
"""Phases after which nothing is done any more, unless the spec changes."""
