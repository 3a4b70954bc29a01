"""The steps that the plan for a Catalog can choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast_operator.catalogs.connection import Connection
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.objects import ObjectName
from holdfast_operator.engine.steps import Decision


@dataclass(frozen=True)
class Open(Decision):
    """Take the catalog over: the epoch grows, and the previous writer is fenced."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class KeepObjects(Decision):
    """Change the catalog so that it has the declared objects."""

    irreversible: ClassVar[bool] = True
    declared: Mapping[ObjectName, str]


@dataclass(frozen=True)
class Publish(Decision):
    """Write the ConfigMap with which applications open the catalog."""

    connection: Connection


@dataclass(frozen=True)
class RollOut(Decision):
    """Try the next deploy generation in memory, and then let it take over from the operator's current one."""

    irreversible: ClassVar[bool] = True
    opening: Opening


@dataclass(frozen=True)
class GiveUp(Decision):
    """Give up the call in progress, because its result is no longer needed."""


@dataclass(frozen=True)
class Close(Decision):
    """Close the handle."""


@dataclass(frozen=True)
class Destroy(Decision):
    """Destroy the stored catalog for ever."""

    irreversible: ClassVar[bool] = True
