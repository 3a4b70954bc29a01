"""The definition of a collection's item in the catalog: its columns, and over how many shards it is spread.

It follows the collection, as far as it is the operator's: what others wrote there is left alone. Pure.
"""

import json
from typing import Final

from holdfast.persist import Schema

_FIELDS: Final = {"key", "value", "shards"}


def item_definition(schema: Schema, shards: int) -> str:
    """What the item of a collection says of it."""
    fields = {"key": [*map(str, schema.key)], "value": [*map(str, schema.value)], "shards": shards}
    return json.dumps(fields, separators=(",", ":"))


def is_out_of_date(definition: str, schema: Schema, shards: int) -> bool:
    """Whether it is the operator's, of a collection as it was earlier."""
    try:
        fields = json.loads(definition)
    except ValueError:
        return False
    ours = isinstance(fields, dict) and fields.keys() == _FIELDS
    return ours and definition != item_definition(schema, shards)
