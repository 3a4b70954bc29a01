"""The steps that the plan for a Catalog may decide on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast_operator.catalogs.connection import Connection
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.objects import ObjectName
from holdfast_operator.engine.steps import Decision


@dataclass(frozen=True)
class Open(Decision):
    """Take the catalog over: the epoch grows, whoever had it is fenced."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class KeepObjects(Decision):
    """Bring the catalog in step with what is declared."""

    irreversible: ClassVar[bool] = True
    declared: Mapping[ObjectName, str]


@dataclass(frozen=True)
class Publish(Decision):
    """Write into the ConfigMap how to open the catalog."""

    connection: Connection


@dataclass(frozen=True)
class RollOut(Decision):
    """Take over from our own lower deploy generation, after the greater one was tried in memory."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class GiveUp(Decision):
    """Leave what is under way to itself: nothing asks for it any more."""


@dataclass(frozen=True)
class Close(Decision):
    """Give the handle back."""


@dataclass(frozen=True)
class Destroy(Decision):
    """End the durable catalog for ever."""

    irreversible: ClassVar[bool] = True
