"""Rows of another collection, as they are: columns by name.

A message is a row. Nothing is decoded, so there are no bad records.
"""

import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput, SourceStalled
from holdfast.ingest.formats.decoded import Decoded


class RowsByName:
    """Takes these columns of each row."""

    whole = False

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns

    def check(self) -> None:
        """Every type of a column has the same type in another collection."""

    def check_source(self, collection: str, source: pa.Schema) -> None:
        """Raise `BadInput` unless these columns of a collection fill all columns."""
        for each in self._columns:
            if each.name not in source.names:
                raise BadInput(
                    f"collection {collection} has no column '{each.name}' (it has {', '.join(source.names)})",
                    hint="leave the column out, or give it the name that it has there",
                )
            there = source.field(each.name)
            if there.type != each.type:
                raise BadInput(
                    f"column '{each.name}' has type {each.type}, and type {there.type} in collection"
                    f" {collection}",
                    hint="declare the column with the same type, or evolve the collection",
                )
            if there.nullable and not each.nullable:
                raise BadInput(
                    f"column '{each.name}' allows no nulls, and collection {collection} may have nulls in it",
                    hint=f"declare the column with a question mark: {each.name}: '{each.type}?'",
                )

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Take the columns of rows. Raises `SourceStalled` if one has another type by now."""
        for each in self._columns:
            now = messages.schema.field(each.name).type
            if now != each.type:
                raise SourceStalled(
                    f"column '{each.name}' of the source has type {now} now, and was {each.type}",
                    hint="evolve the collection: 'holdfast collection alter'",
                )
        rows = pa.table([messages[each.name] for each in self._columns], names=self._columns.names)
        return Decoded(rows, np.arange(messages.num_rows))
