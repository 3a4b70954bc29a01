"""Formats of whole files, such as CSV. A file is one message.

CSV has a header, and columns are found by name. An empty field is null. So is an empty line in a file with
one column; in others it is ignored. A value that doesn't fit its column exactly
(`holdfast.ingest.formats.exact`) makes one bad record, with the number of the record in the file. A file that
can't be read as a whole is one bad record.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from holdfast.errors import BadInput
from holdfast.ingest.formats.decoded import MOST_BAD, BadRecord, Decoded, decode_good
from holdfast.ingest.formats.exact import exact
from holdfast.ingest.formats.reasons import plain_reason

_END: Final = "\x00end of file"
"""A record behind the last one of a CSV file. A quote that is not closed takes it into its field."""
_UNCLOSED: Final = "a quote is not closed: this record has all that follows in the file"
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError)


MOST_BYTES: Final = 2 << 30
"""The values of a file may take so much memory. All of them get one time."""


class WholeFiles:
    """Decodes messages that are files."""

    whole = True
    most_bytes = MOST_BYTES

    def __init__(self, columns: pa.Schema, *, most_bad: int = MOST_BAD) -> None:
        self._columns = columns
        self._most_bad = most_bad

    def check(self) -> None:
        """Every type of a column has a form in these files, except binary values in CSV."""

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode the files."""
        rows, index, numbers, bad = [], [], [], []
        for at, value in enumerate(messages["value"]):
            try:
                table, failed = self._read(value.as_buffer())
            except _UNREADABLE as error:
                bad.append(BadRecord(at, messages["position"][at].as_py(), "file", plain_reason(error)))
                continue
            rows.append(table)
            index.append(np.full(table.num_rows, at))
            numbers.append(_others(table.num_rows, [number for number, _ in failed]))
            bad += [BadRecord(at, number, "decode", reason) for number, reason in failed]
        return Decoded(
            pa.concat_tables(rows) if rows else self._columns.empty_table(),
            np.concatenate(index) if index else np.empty(0, np.int64),
            bad,
            np.concatenate(numbers) if numbers else np.empty(0, np.int64),
        )

    def _read(self, file: pa.Buffer) -> tuple[pa.Table, list[tuple[int, str]]]:
        """The rows of a file, and its bad records."""
        raise NotImplementedError

    def _check(self, size: int) -> None:
        """Raise `ValueError` if the values of a file take more memory than they may."""
        if size > self.most_bytes:
            raise ValueError(
                f"its values take more than {self.most_bytes:,} bytes of memory: split it into smaller files"
            )

    def _chosen(self, names: list[str]) -> list[str]:
        """The columns that the file must have."""
        if missing := [each.name for each in self._columns if each.name not in names and not each.nullable]:
            raise ValueError(f"it has no column '{missing[0]}' (it has {', '.join(names)})")
        return [each.name for each in self._columns if each.name in names]

    def _cast(self, read: pa.Table) -> tuple[pa.Table, list[tuple[int, str]]]:
        """The rows with the columns' types, and the records that don't fit, by number from 1."""
        whole = read.combine_chunks()

        def decode(begin: int, end: int) -> pa.Table:
            part = whole.slice(begin, end - begin)
            return pa.table(
                [
                    exact(part[each.name], each)
                    if each.name in part.column_names
                    else pa.nulls(end - begin, each.type)
                    for each in self._columns
                ],
                schema=pa.schema([each.with_nullable(True) for each in self._columns]),
            )

        good, failed = decode_good(
            whole.num_rows, decode, (pa.ArrowInvalid, pa.ArrowNotImplementedError), self._most_bad
        )
        tables = [table for _, table in good]
        empty = pa.schema([each.with_nullable(True) for each in self._columns]).empty_table()
        return pa.concat_tables([empty, *tables]), [(at + 1, reason) for at, reason in failed]


class Csv(WholeFiles):
    """Decodes CSV files with a header."""

    def check(self) -> None:
        """Raise `BadInput` for binary columns."""
        for each in self._columns:
            if pa.types.is_binary(each.type):
                raise BadInput(f"format csv has no values for column '{each.name}' of type binary")

    def _read(self, file: pa.Buffer) -> tuple[pa.Table, list[tuple[int, str]]]:
        file, is_marked = _with_end(file)
        read, bad, unclosed = self._parsed(file, is_marked=is_marked)
        if len(read.column_names) == 1:
            # An empty line is a record of such a file. The header is the first line that is not empty.
            breaks = np.isin(np.frombuffer(file, np.uint8), list(b"\r\n"))
            file = file.slice(int(breaks.argmin()))
            read, bad, unclosed = self._parsed(file, is_marked=is_marked, empty_lines=True)
        chosen = self._chosen(read.column_names)
        if len(set(read.column_names)) != len(read.column_names):
            raise ValueError("its header names a column twice")
        if unclosed and read.num_rows:
            # The end is a record of a file with one column, or in the last field.
            is_field = len(read.column_names) == 1 and str(read.column(0)[-1]) == _END
            read = read.slice(0, read.num_rows - 1)
            if not is_field:
                bad.append((read.num_rows + len(bad) + 1, _UNCLOSED))
        table, failed = self._cast(read.select(chosen))
        if not bad:
            return table, failed
        # The numbers of `failed` count the records that were not skipped.
        kept = _others(read.num_rows, [number for number, _ in bad])
        return table, sorted([*bad, *((int(kept[number - 1]), reason) for number, reason in failed)])

    def _parsed(
        self, file: pa.Buffer, *, is_marked: bool, empty_lines: bool = False
    ) -> tuple[pa.Table, list[tuple[int, str]], bool]:
        """The records as texts, the bad ones by number, and whether a quote is not closed."""
        bad: list[tuple[int, str]] = []
        unclosed = is_marked

        def skip(row: pyarrow.csv.InvalidRow) -> str:
            nonlocal unclosed
            if is_marked and row.text == _END:
                unclosed = False
                return "skip"
            number = row.number - 1 if row.number is not None else 0
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            if is_marked and row.text.endswith(_END):
                unclosed, reason = False, _UNCLOSED
            bad.append((number, reason))
            return "skip"

        # Arrow numbers records only if it reads them with one thread.
        read = pyarrow.csv.read_csv(
            pa.BufferReader(file),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=max(file.size, 1) + 1),
            parse_options=pyarrow.csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=skip, ignore_empty_lines=not empty_lines
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={each.name: pa.string() for each in self._columns},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        return read, bad, unclosed


def _with_end(file: pa.Buffer) -> tuple[pa.Buffer, bool]:
    """A CSV file with a record behind its last one, and True. The file itself if it has no quotes."""
    if not (np.frombuffer(file, np.uint8) == ord('"')).any():
        return file, False
    break_ = b"" if file.slice(file.size - 1).to_pybytes() == b"\n" else b"\n"
    return pa.py_buffer(b"".join((file, break_, _END.encode(), b"\n"))), True


def _others(count: int, left_out: list[int]) -> np.ndarray:
    """The numbers, from 1, of `count` records that are not left out."""
    return np.setdiff1d(np.arange(1, count + len(left_out) + 1), left_out)
