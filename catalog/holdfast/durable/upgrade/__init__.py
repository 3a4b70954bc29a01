"""The steps between the versions of the catalog's format, by the version that each starts from.

A step that was released never changes: `proto/hashes.json` pins its module.
"""

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.durable.upgrade import v14_to_v15
from holdfast.durable.upgrade.step import Step

__all__ = ["STEPS"]

_RELEASED = (v14_to_v15.STEP,)

STEPS: Mapping[int, Step] = MappingProxyType({step.source: step for step in _RELEASED})
