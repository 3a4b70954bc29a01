"""A schema together with the schemas that it refers to, as one text.

A registry keeps each of them alone. Together they are stored, compared and read as one, so that no commit has
only some of them. A schema that refers to nothing is its own text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SCHEMA: Final = "schema"
_REFERENCES: Final = "references"


@dataclass(frozen=True, slots=True)
class Referenced:
    """A schema that another one refers to: its subject and version in the registry, and its text."""

    subject: str
    version: int
    schema: str


def bundled(schema: str, references: Sequence[Referenced]) -> str:
    """The schema with what it refers to. Each reference comes after those that it refers to itself."""
    if not references:
        return schema
    found = [{"subject": each.subject, "version": each.version, _SCHEMA: each.schema} for each in references]
    return json.dumps({_SCHEMA: schema, _REFERENCES: found})


def unbundled(text: str) -> tuple[str, Sequence[Referenced]]:
    """The schema alone, and what it refers to. The reverse of `bundled`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text, ()
    # A schema that is an object has a type.
    if not isinstance(found, dict) or found.keys() != {_SCHEMA, _REFERENCES}:
        return text, ()
    try:
        return found[_SCHEMA], [Referenced(**each) for each in found[_REFERENCES]]
    except TypeError:
        # It is what a registry returns for a schema with references, whose texts are not in it.
        return text, ()
