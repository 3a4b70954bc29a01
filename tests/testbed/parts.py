"""The two parts of the tests: the short part runs in `make test`, and `make test-all` runs the rest.

A test is long if it has the marker `long`, or if it belongs to the tier `node`. All other tests are short, so
each test belongs to exactly one part. A run without `--part` runs both parts.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from testbed.require import Tier

if TYPE_CHECKING:
    import pytest

LONG: Final = "long"
"""The marker of the tests that only `make test-all` runs."""


class Part(StrEnum):
    """A part of the tests, by the value of `--part`."""

    SHORT = "short"
    LONG = "long"

    @classmethod
    def of(cls, item: "pytest.Item") -> "Part":
        """Return the part of a test."""
        is_long = any(item.get_closest_marker(marker) for marker in (LONG, Tier.NODE.value))
        return cls.LONG if is_long else cls.SHORT
