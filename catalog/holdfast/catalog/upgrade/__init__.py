"""The upgrade steps between versions of the catalog's format, by the version that each step starts from.

A released step never changes: `proto/hashes.json` pins its module.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from holdfast.catalog.upgrade.step import Step
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION

__all__ = ["STEPS"]


def _step(source: int) -> Step:
    step: Step = import_module(f"{__name__}.v{source}_to_v{source + 1}").STEP
    if (step.source, step.target) != (source, source + 1):
        raise ImportError(f"v{source}_to_v{source + 1} is a step from {step.source} to {step.target}")
    return step


STEPS: Mapping[int, Step] = MappingProxyType(
    {source: _step(source) for source in range(MIN_VERSION, CATALOG_VERSION)}
)
