"""How a collection's own hold keeps what was until `retention` lets it go."""

from typing import Final

RETENTION_PURPOSE: Final = "retention"
"""The purpose of the critical holds that a collection has on its own shards."""
