"""The steps that the plan for a CollectionSnapshot can choose, in addition to those of its job."""

from dataclasses import dataclass
from typing import ClassVar

from holdfast_operator.engine.steps import Decision


@dataclass(frozen=True)
class RemoveFiles(Decision):
    """Delete everything that the job wrote."""

    irreversible: ClassVar[bool] = True
    folder: str
