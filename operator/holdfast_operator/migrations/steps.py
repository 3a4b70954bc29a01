"""The steps that the plan for a CatalogMigration may decide on."""

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast_operator.engine.steps import Decision
from holdfast_operator.migrations.facts import MigrationView, RequestedMove


@dataclass(frozen=True)
class BeginMove(Decision):
    """Claim the catalog in this process: its own handle is closed, and it isn't opened again."""

    move: RequestedMove = field(repr=False)


@dataclass(frozen=True)
class TakeStep(Decision):
    """Take the next numbered step."""

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
    """Take no further step, and let go of the catalog; what is on record in the stores stays."""


@dataclass(frozen=True)
class DryRun(Decision):
    """Find out what the migration would do; nothing is written."""

    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)


@dataclass(frozen=True)
class Abandon(Decision):
    """Finish the migration or take it back, so that one source of truth is left and nobody is shut out."""

    irreversible: ClassVar[bool] = True
    move: RequestedMove
    seen: MigrationView = field(repr=False, compare=False)
