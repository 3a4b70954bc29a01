"""The steps that the plan for a CatalogMigration can choose."""

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast_operator.engine.steps import Decision
from holdfast_operator.migrations.facts import MigrationView, RequestedMove


@dataclass(frozen=True)
class BeginMove(Decision):
    """Claim the catalog in this process, which then closes its own handle and doesn't open it again."""

    move: RequestedMove = field(repr=False)


@dataclass(frozen=True)
class TakeStep(Decision):
    """Run the next numbered step."""

    irreversible: ClassVar[bool] = True
    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)


@dataclass(frozen=True)
class OpenShadow(Decision):
    """Open the catalog so that every change is made in both stores."""

    irreversible: ClassVar[bool] = True
    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)


@dataclass(frozen=True)
class CloseShadow(Decision):
    """Close the catalog that was open in both stores."""


@dataclass(frozen=True)
class Stop(Decision):
    """Stop the migration and release the catalog. The records in the stores stay."""


@dataclass(frozen=True)
class DryRun(Decision):
    """Find out what the migration would do, without writing anything."""

    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)


@dataclass(frozen=True)
class Abandon(Decision):
    """Finish or undo the migration, so that one source of truth remains and nobody stays fenced."""

    irreversible: ClassVar[bool] = True
    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)
