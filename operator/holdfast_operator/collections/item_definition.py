"""The definition of a collection's item in the catalog: its columns and its number of shards. Pure.

The operator updates a definition that it wrote itself. It leaves a definition alone that others wrote.
"""

import json
from typing import Final

from holdfast.persist import Schema

_FIELDS: Final = {"key", "value", "shards"}


def item_definition(schema: Schema, shards: int) -> str:
    """Returns the definition of a collection's item."""
    fields = {"key": [*map(str, schema.key)], "value": [*map(str, schema.value)], "shards": shards}
    return json.dumps(fields, separators=(",", ":"))


def is_out_of_date(definition: str, schema: Schema, shards: int) -> bool:
    """Returns whether the operator wrote the definition, and the collection has changed since."""
    try:
        fields = json.loads(definition)
    except ValueError:
        return False
    ours = isinstance(fields, dict) and fields.keys() == _FIELDS
    return ours and definition != item_definition(schema, shards)
