"""`holdfast collection write`: write the rows of a file into a collection.

- An append adds the whole file in one commit, with bounded memory. If the command is killed before that
  commit, readers see nothing, and only blobs remain, which `persist sweep` finds.
- The commit records the file's contents in a job of kind "write" whose slot is their hash. If the same file
  is written again, the command recognizes and refuses it, even after it was killed or never got the result of
  the commit. So it is always safe to run the command again.
- Rows that replace or delete others are held in memory. Doing that twice changes nothing.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.collection.place import (
    controller_of,
    location_options,
    name_argument,
    opened_table,
    refuse_dropped,
    time,
)
from holdfast.cli.facts import count, moment, shown_moment
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note
from holdfast.cli.rows.text import FORMATS
from holdfast.errors import BadInput, HoldfastError, WrittenBefore
from holdfast.file_formats import check_file
from holdfast.text import naming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.collections import CollectionInfo, JobRecord
    from holdfast.collections.complete_times import ReadSeal
    from holdfast.tables.files.source import RowSource


@dataclass(frozen=True, slots=True)
class _Times:
    """Which times the rows may have: what the options say, and what the collection was before.

    `now` is for rows without a time. `store_ms` is None if times may be far ahead of the store's clock.
    """

    name: str
    upper: int
    seal: "ReadSeal | None"
    now: int
    store_ms: int | None
    at: int | None
    new_upper: int | None

    def check(self, first: int, last: int) -> None:
        """Raise `BadInput` for rows that can't be written at these times, as far as that is known."""
        from holdfast.tables.loading import check_times

        reached = last if self.new_upper is None else max(last, self.new_upper - 1)
        check_times(self.name, self.upper, (first, reached), self.seal, self.store_ms, "give --far-ahead")
        if self.new_upper is not None and self.new_upper <= last:
            raise BadInput(
                f"--new-upper {self.new_upper} is not above the last time of the rows, {last}",
                hint=f"give {last + 1} or more",
            )


@click.command(short_help="Append, upsert or delete the rows of a file.")
@location_options
@name_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default="-")
@click.option("--format", "form", type=click.Choice(FORMATS[1:]), help="Default: by the file's name.")
@click.option("--upsert", is_flag=True, help="Replace the rows that have the same key.")
@click.option("--delete", is_flag=True, help="Delete the rows that have these keys.")
@click.option("--at", metavar="TIME", type=time, help="The time of the rows. Default: now.")
@click.option(
    "--new-upper", metavar="TIME", type=time, help="The upper after the write. Default: just after the rows."
)
@click.option("--far-ahead", is_flag=True, help="Allow times over an hour ahead of the store's clock.")
@click.option("--once", is_flag=True, help="Succeed without writing if this file was written before.")
@click.option("--again", is_flag=True, help="Add the rows even if this file was written before.")
def write(
    location: LocationUrls,
    name: str,
    file: Path,
    form: str | None,
    upsert: bool,
    delete: bool,
    at: int | None,
    new_upper: int | None,
    far_ahead: bool,
    once: bool,
    again: bool,
) -> None:
    """Append the rows of a file (- or none for standard input) to a collection.

    \b
    holdfast write orders june.parquet
    holdfast write orders new.csv --upsert
    printf '{"id": 4}' | holdfast write orders --format json

    All rows have one time, unless a column _time gives each row its own. A column _diff is the number of
    times that a row is added; -1 removes it once. With --upsert, rows replace those with the same key. With
    --delete, all rows with the keys in the file are deleted. Each of these is one commit: readers see all of
    it or nothing, even if the command is killed.

    If the same file was written before, the command refuses it, or with --once succeeds without writing. So
    if you don't know whether a write happened, write again. Input from a pipe is not recognized. A file to
    append may be larger than memory. A file for --upsert or --delete must fit into memory.
    """  # noqa: D301 - the escape is for the formatter of the help
    timed = at is not None or new_upper is not None or far_ahead
    _check_options(upsert=upsert, delete=delete, timed=timed, once=once, again=again)
    check_file(file, form)
    from holdfast.collections.read_seals import last_seal
    from holdfast.tables.files.source import RowSource

    with controller_of(location.open_to_look()) as controller:
        info = controller.describe(name)
        refuse_dropped(info)
        upper = controller.frontiers(info.collection_id).upper
        now = max(upper, controller.client.now_ms()) if at is None else at
        client = controller.client
        store_ms = None if far_ahead else client.store_or_host_ms()
        times = _Times(info.name, upper, last_seal(client, info.holding), now, store_ms, at, new_upper)
        if at is not None:
            times.check(at, at)
        before = controller.jobs(info.collection_id)
    with RowSource(file, form, info.schema) as source:
        if upsert or delete:
            _change(location, info, source, delete=delete)
            return
        try:
            _append(location, info, source, times, before, again=again)
        except WrittenBefore as error:
            if not once:
                raise
            note(f"nothing to do: {error}")


def _check_options(*, upsert: bool, delete: bool, timed: bool, once: bool, again: bool) -> None:
    if upsert and delete:
        raise BadInput("--upsert and --delete can't be used together")
    if once and again:
        raise BadInput("--once and --again can't be used together")
    if (upsert or delete) and timed:
        raise BadInput(
            f"--{'upsert' if upsert else 'delete'} chooses the time itself",
            hint="leave out --at, --new-upper and --far-ahead",
        )


def _change(location: LocationUrls, info: "CollectionInfo", source: "RowSource", *, delete: bool) -> None:
    from holdfast import tables
    from holdfast.tables.changes import distinct_keys
    from holdfast.tables.committing import commit
    from holdfast.tables.files.source import whole

    rows = whole(source)
    change = (tables.Delete if delete else tables.Upsert)(rows)
    with _named(info, source):
        change.prepare(info.name, info.schema)  # raises on bad rows before anything is opened for writing
    with (
        opened_table(location.open_to_write(create=False), info.collection_id) as table,
        ProgressLine(f"writing {count(rows.num_rows, 'row')} to {info.name}", after_s=1),
    ):
        done = commit({table: change})
    if delete:
        keys = distinct_keys(info.schema, rows).num_rows
        what = f"deleted {count(done.removed, 'row')} of {count(keys, 'key')} from"
    else:
        what = f"upserted {count(rows.num_rows, 'row')} into"
    note(f"{what} {info.name}{_as_of(done.time)}")


def _append(
    location: LocationUrls,
    info: "CollectionInfo",
    source: "RowSource",
    times: _Times,
    known: "tuple[JobRecord, ...]",
    *,
    again: bool,
) -> None:
    from holdfast.persist.rows.canonical import prepare_updates, time_bounds
    from holdfast.tables.files.written import WRITE, record_of_file
    from holdfast.tables.loading import load
    from holdfast.tables.rows import check_diffs

    file_name = Path(source.name).name
    with ExitStack() as stack:
        progress = stack.enter_context(ProgressLine(f"hashing {file_name}"))
        contents = source.fingerprint(progress.part)
        records = [each for each in known if (each.kind, each.slot) == (WRITE, contents)]
        if records and not again:
            raise _before(info, source, records[0])
        progress.begin(f"reading {file_name}")
        pieces = source.pieces(progress.part)
        first = next(pieces)
        # Raises on rows that don't fit before anything is opened for writing.
        with _named(info, source):
            rows = prepare_updates(info.schema, first, default_time=times.now)
        times.check(*(time_bounds(rows) or (times.upper, times.upper)))
        controller = stack.enter_context(controller_of(location.open_to_write(create=False)))
        writer = controller.writer(info.collection_id, purpose=controller.purpose_of("load"))
        # `load` checks the times.
        bulk = stack.enter_context(writer.bulk(far_ahead=True))
        for piece in chain([first], pieces):
            with _named(info, source):
                bulk.add(piece)
                check_diffs(piece)
        progress.begin(f"writing {count(bulk.rows, 'row')} to {info.name}")

        def commit(effects: Any) -> None:
            if contents is None or records or not bulk.rows:
                controller.client.multi_write(effects())
                return
            spec, result = record_of_file(source, bulk.rows, controller.client.config.hostname)
            record, is_ours = controller.record_job(
                info.collection_id, WRITE, contents, spec=spec, result=result, effects=effects
            )
            if not is_ours:
                raise _before(info, source, record)

        reached = load(
            controller.client,
            writer,
            bulk,
            commit,
            at=times.at,
            new_upper=times.new_upper,
            far_ahead=times.store_ms is None,
            allow="give --far-ahead",
        )
        rows = count(bulk.rows, "row")
        try:
            controller.apply_retention(info.collection_id)
        except HoldfastError as error:
            # The write has succeeded. The next one applies it.
            click.echo(f"warning: can't apply the retention of {info.name}: {error}", err=True)
    note(f"wrote {rows} to {info.name}{_as_of(reached - 1)}")


@contextmanager
def _named(info: "CollectionInfo", source: "RowSource") -> "Iterator[None]":
    """An error about the rows names the file and the table, once."""
    with naming(source.name), naming(f"table {info.name}"):
        yield


def _as_of(time: int) -> str:
    """The time at which the rows can be read. Nothing if no time is complete, as without rows."""
    return "" if time < 0 else f", as of {shown_moment(time)}"


def _before(info: "CollectionInfo", source: "RowSource", record: "JobRecord") -> WrittenBefore:
    as_what = "" if record.spec["file"] == Path(source.name).name else f" as {record.spec['file']}"
    rows = count(record.result["updates"], "row")
    return WrittenBefore(
        f"{source.name} was written to {info.name} before{as_what}, {rows}"
        f" on {moment(record.finished_ms)} by {record.result['host']}: nothing was written now",
        hint="--again adds its rows once more; --once succeeds without writing",
    )
