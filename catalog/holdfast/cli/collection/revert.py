"""`holdfast collection revert`: makes the rows of a collection those of an earlier time."""

from functools import partial

import click

from holdfast.cli.collection.place import location_options, name_argument, named, opened_table, time
from holdfast.cli.facts import emit_json, json_option, shown_moment
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import ProgressLine, note


@click.command(short_help="Make the rows those of an earlier time.")
@location_options
@name_argument
@click.option("--to", "as_of", metavar="TIME", type=time, required=True, help="The earlier time.")
@json_option
def revert(location: LocationUrls, name: str, as_of: int, as_json: bool) -> None:
    """Make the rows of a collection those of an earlier TIME, for example to undo a wrong load.

    \b
    holdfast collection history orders
    holdfast collection diff orders --start 2025-01-01T09:00
    holdfast collection revert orders --to 2025-01-01T09:00

    This is a new write. All times before it stay readable, so you can also undo it. The columns stay as they
    are now. The difference between the two times must fit into memory.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.collections.read_seals import complete_with
    from holdfast.tables import Revert
    from holdfast.tables.committing import commit

    with opened_table(location.open_to_look(), name) as opened:
        open_, controller = partial(location.open_to_write, create=False), opened.controller
        what, hint = (
            f"collection {opened.name}",
            f"'holdfast history {opened.name}' shows the times of writes",
        )
        opened.reading.run(lambda reader: complete_with(open_, controller, reader, as_of, what, hint))
    with (
        opened_table(location.open_to_write(create=False), name) as opened,
        ProgressLine(f"reverting {opened.name}", after_s=1),
    ):
        done = commit({opened: Revert(as_of)})
    if as_json:
        emit_json(named(opened.info, as_of=as_of, time=done.time))
        return
    again = f"{opened.name} has the rows as of {shown_moment(as_of)} again"
    note(f"{again}, as of {shown_moment(done.time)}")
