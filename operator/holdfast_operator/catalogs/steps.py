"""The steps that the plan for a Catalog may decide on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast_operator.catalogs.connection import Connection
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.objects import ObjectName
from holdfast_operator.engine.steps import Step


@dataclass(frozen=True)
class Open(Step):
    """Take the catalog over: the epoch grows, whoever had it is fenced."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class KeepObjects(Step):
    """Bring the catalog in step with what is declared."""

    irreversible: ClassVar[bool] = True
    declared: Mapping[ObjectName, str]


@dataclass(frozen=True)
class Publish(Step):
    """Write into the ConfigMap how to open the catalog."""

    connection: Connection


@dataclass(frozen=True)
class RollOut(Step):
    """Take over from our own lower deploy generation, after the greater one was tried in memory."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class GiveUp(Step):
    """Leave what is under way to itself: nothing asks for it any more."""


@dataclass(frozen=True)
class Close(Step):
    """Give the handle back."""


@dataclass(frozen=True)
class Destroy(Step):
    """End the durable catalog for ever."""

    irreversible: ClassVar[bool] = True
