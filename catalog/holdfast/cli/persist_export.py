"""`holdfast persist export`: the contents of a shard at a time, as a file for other tools."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import click

from holdfast.cli.location import open_to_look
from holdfast.cli.persist_show import Progress, location_arguments
from holdfast.errors import AsOfNotYetAvailable, BadInput

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "arrow", "csv", "json")


@click.command(short_help="Write the contents at a time to a file.")
@location_arguments
@click.argument("shard")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--as-of", type=click.IntRange(min=0), metavar="TIME", help="If not given, the latest one.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="If not given, by the name of FILE.")
@click.option("--diff", is_flag=True, help="Write each row once, with its count as _diff.")
def export(
    url: str, consensus: str | None, shard: str, file: Path, as_of: int | None, form: str | None, diff: bool
) -> None:
    """Write the contents of SHARD in the location at URL to FILE: Parquet, Arrow, CSV or JSON lines.

    The file has its name when it is whole. Rows come in their order, with bounded memory; one that is there n
    times stands n times. Nothing is written to the location.
    """
    import pyarrow as pa

    from holdfast.cli.rows import format_by_suffix
    from holdfast.persist.schema import TIME

    form = form or format_by_suffix(file)
    if not file.parent.is_dir():
        raise BadInput(f"can't write {file}: {file.parent} is no folder")
    with open_to_look(url, consensus) as client:
        if not client.exists(shard):
            raise BadInput(f"shard {shard} does not exist in {client.location.blob.description}")
        reader = client.reader(shard, purpose="export")
        if as_of is None:
            upper = reader.upper()
            if upper == 0:
                raise AsOfNotYetAvailable(0, 0)
            as_of = upper - 1
        updates = reader.schema.arrow_updates
        columns = pa.schema([field for field in updates if field.name != TIME])
        rows = _write(reader.snapshot(as_of), columns, file, form, diff=diff)
    click.echo(f"wrote {rows:,} rows as of {as_of} to {file}", err=True)


def _write(
    batches: "Iterable[pa.RecordBatch]", columns: "pa.Schema", file: Path, form: str, *, diff: bool
) -> int:
    """All batches to a file that takes its name when it is durable; how many rows."""
    import pyarrow as pa

    from holdfast.cli.rows import repeated

    # Beside it, so that the last step is a rename; hidden, so that no reader of the folder takes it.
    making = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    progress = Progress("writing rows:")
    rows = 0
    try:
        with making.open("xb") as stream:
            with _writer(form, stream, columns if diff else columns.remove(len(columns) - 1)) as writer:
                for batch in batches:
                    table = pa.Table.from_batches([batch])
                    table = table if diff else repeated(table)
                    writer.write_table(table)
                    rows += table.num_rows
                    progress(f"{rows:,}")
            stream.flush()
            os.fsync(stream.fileno())
        making.replace(file)
    except OSError as error:
        raise BadInput(f"can't write {file}: {error.strerror or error}") from error
    finally:
        progress.done()
        making.unlink(missing_ok=True)
    return rows


def _writer(form: str, stream: BinaryIO, columns: "pa.Schema") -> Any:
    """What writes tables of these columns, as a context."""
    import pyarrow as pa

    match form:
        case "parquet":
            from pyarrow import parquet

            return parquet.ParquetWriter(stream, columns, compression="zstd")
        case "csv":
            from pyarrow import csv

            return csv.CSVWriter(stream, columns)
        case "json":
            return _JsonLines(stream)
        case _:
            return pa.ipc.new_file(stream, columns)


class _JsonLines:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write_table(self, table: "pa.Table") -> None:
        """One object per row and line."""
        from holdfast.cli.rows import write_json_lines

        write_json_lines(table, self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
