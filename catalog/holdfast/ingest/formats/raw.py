"""Raw: the value of each message goes to one column, as bytes or as text."""

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.ingest.formats.decoded import MOST_BAD, BadRecord, Decoded, decode_good, joined


class Raw:
    """Puts the value into a column of type binary or string."""

    whole = False

    def __init__(self, columns: pa.Schema, *, most_bad: int = MOST_BAD) -> None:
        self._columns = columns
        self._most_bad = most_bad

    def check(self) -> None:
        """Raise `BadInput` unless one column of type binary or string is left for the value."""
        fits = len(self._columns) == 1 and self._columns[0].type in {pa.binary(), pa.string()}
        if not fits:
            names = ", ".join(f"{each.name} {each.type}" for each in self._columns) or "none"
            raise BadInput(
                f"format raw needs exactly one column of type binary or string, found {names}",
                hint="name the columns for position, timestamp and key under 'include'",
            )

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Take the values. Bytes that are not UTF-8 are a bad record if the column is text."""
        values, column = messages["value"], self._columns[0]

        def decode(begin: int, end: int) -> pa.Table:
            return pa.table([values[begin:end].cast(column.type)], [column.name])

        good, failed = decode_good(len(values), decode, (pa.ArrowInvalid,), self._most_bad)
        bad = [
            BadRecord(at, messages["position"][at].as_py(), "decode", reason) for at, reason in sorted(failed)
        ]
        return Decoded(*joined(good, self._columns), bad)
