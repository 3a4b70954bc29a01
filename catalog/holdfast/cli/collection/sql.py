"""`holdfast collection sql`: run a query on the collections of a location."""

from pathlib import Path
from typing import Final

import click

from holdfast.cli.collection.place import location_options, time
from holdfast.cli.files import text_argument
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import note
from holdfast.cli.rows.text import FORMATS

_PLAN: Final = ["explain_key", "explain_value"]


@click.command(short_help="Run a query on the collections of a location.")
@location_options
@click.argument("query")
@click.option(
    "--as-of",
    metavar="TIME",
    type=time,
    help="Read all collections at this time. Default: each at its latest time.",
)
@click.option("--or-earlier", is_flag=True, help="If a TIME is not complete, use the latest one before it.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the name of FILE, or table.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write to FILE."
)
@click.option("--limit", metavar="N", type=click.IntRange(0, (1 << 63) - 1), help="Show at most N rows.")
def sql(
    location: LocationUrls,
    query: str,
    as_of: int | None,
    or_earlier: bool,
    form: str | None,
    output: Path | None,
    limit: int | None,
) -> None:
    """Run a SELECT of DuckDB's SQL on the collections of a location. Needs the extra sql.

    \b
    holdfast sql "select item, sum(count) from orders group by item"
    holdfast sql "select * from as_of('orders', '2026-01-01T12:00')"
    holdfast sql "select * from as_of('orders', now() - interval 1 hour)"
    holdfast sql @report.sql --output report.parquet
    holdfast sql "show tables"

    QUERY is the text of the query, @FILE, or - for standard input. Each collection is read at its own latest
    time, and a write of several collections is seen as a whole or not at all. The times are shown on stderr.
    Nothing is written to the location.

    as_of('NAME', TIME) reads one collection at another time. There, TIME is also an expression of SQL,
    such as now() - interval 1 hour. A time after the collection's last write may not be complete yet, and a
    query completes no time: 'holdfast read NAME --as-of TIME' does. With --or-earlier, the latest complete
    time before it is used instead.
    """  # noqa: D301 - the escape is for the formatter of the help
    query = text_argument(query, "the query")
    from holdfast.cli.rows.show import show_rows
    from holdfast.tables.queries import sql
    from holdfast.text import one_line, with_date

    with location.open_to_look() as client, sql(client, query, as_of=as_of, or_earlier=or_earlier) as result:
        for name, at in result.times.items():
            note(f"{name} {'is empty' if at is None else f'as of {with_date(at)}'}")
        with result.scan() as rows:
            if output is None and form in (None, "table") and rows.schema.names == _PLAN:
                # A plan is a drawing of many lines, which a table would show as one.
                for plan in rows.read_all()[_PLAN[1]].to_pylist():
                    click.echo("".join(f"{one_line(line)}\n" for line in str(plan).splitlines()), nl=False)
                return
            show_rows(rows, rows.schema, form, output, limit=limit, diff=True)
