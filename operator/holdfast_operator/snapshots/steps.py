"""The steps that the plan for a CollectionSnapshot can choose, in addition to those of its job."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_operator.engine.steps import Decision
from holdfast_operator.sparkapps.adapter import AppState


@dataclass(frozen=True)
class RemoveFiles(Decision):
    """Delete everything that the job wrote."""

    irreversible: ClassVar[bool] = True
    folder: str


@dataclass(frozen=True)
class CancelApplication(Decision):
    """Delete the application of an attempt that can't commit any more, because the collection is gone."""

    irreversible: ClassVar[bool] = True
    app: AppState
