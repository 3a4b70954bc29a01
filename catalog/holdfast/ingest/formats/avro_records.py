"""Records of Avro as rows: what fastavro decodes becomes columns, a column at a time."""

import decimal
import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import fastavro
import fastavro.read
import pyarrow as pa

from holdfast.ingest.formats.avro_schema import DECIMAL, AvroType, UnreadableSchema
from holdfast.ingest.formats.json_text import as_json

CONVERSION: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""What the conversion of a value may raise that doesn't fit its column."""


class TooManyDigits(ValueError):
    """A decimal has more digits than its schema allows."""


Fields = Mapping[str, Any]


class AvroRecords:
    """Reads records that were written with one schema."""

    def __init__(self, schema: AvroType) -> None:
        self.parsed = parsed_by_fastavro(schema)

    def read(
        self, stream: io.BytesIO, begins: Sequence[int], ends: Sequence[int]
    ) -> tuple[list[Any], list[int], list[tuple[int, str]]]:
        """Read the records between these positions.

        Returns them, their numbers, and the numbers of the others with the reason.
        """
        read, seek, tell, schema = fastavro.schemaless_reader, stream.seek, stream.tell, self.parsed
        records: list[Any] = []
        numbers: list[int] = []
        bad: list[tuple[int, str]] = []
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            seek(begin)
            try:
                record = read(stream, schema, None)
            except Exception:  # noqa: BLE001 - fastavro raises almost anything for bytes that nobody wrote
                bad.append((number, self._why(stream, begin, end)))
                continue
            # A record that ends elsewhere has read bytes of the next message, or has left some.
            if tell() != end:
                bad.append((number, self._why(stream, begin, end)))
                continue
            records.append(record)
            numbers.append(number)
        return records, numbers, bad

    def _why(self, stream: io.BytesIO, begin: int, end: int) -> str:
        """Why these bytes are no record, whatever stands beside them."""
        alone = io.BytesIO(stream.getbuffer()[begin:end])
        try:
            fastavro.schemaless_reader(alone, self.parsed, None)
        except EOFError:
            return "it ends within a record"
        except TooManyDigits as error:
            return str(error)
        except Exception:  # noqa: BLE001 - as above
            return "its bytes are no record of its schema: was it written with another one?"
        return f"{end - begin - alone.tell()} bytes follow its record"


def parsed_by_fastavro(schema: AvroType) -> Any:
    """The schema in fastavro's form. Raises `UnreadableSchema`."""
    try:
        return fastavro.parse_schema(schema.inner)
    except Exception as error:  # noqa: BLE001 - so it is with schemas
        raise UnreadableSchema(" ".join(str(error).split())) from None


def as_table(records: Sequence[Fields | None], ways: Mapping[str, str], columns: pa.Schema) -> pa.Table:
    """The rows of records. Fields fill columns as `ways_of` says. Raises the errors of `CONVERSION`."""
    arrays = []
    for each in columns:
        way = ways.get(each.name)
        if way is None:
            arrays.append(pa.nulls(len(records), each.type))
            continue
        name = each.name
        values = [None if record is None else record[name] for record in records]
        if way == "json":
            values = [None if value is None else as_json(value) for value in values]
        try:
            arrays.append(pa.array(values, each.type))
        except CONVERSION as error:
            raise ValueError(f"column '{name}': {error}") from None
    return pa.table(arrays, schema=pa.schema([each.with_nullable(True) for each in columns]))


@functools.cache
def _exactly(precision: int) -> decimal.Context:
    return decimal.Context(prec=precision, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)


def _decimal(data: Any, writer: dict[Any, Any] | None, _: object = None) -> decimal.Decimal:
    """The decimal in these bytes. Fastavro's own reader rounds one with too many digits."""
    assert writer is not None
    precision, unscaled = writer["precision"], int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= 10**precision:
        raise TooManyDigits(f"a decimal has more than {precision} digits")
    return decimal.Decimal(unscaled).scaleb(-writer["scale"], _exactly(precision))


for _kind in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_kind}-{DECIMAL}"] = _decimal
