"""`holdfast migrate`: moving a catalog between a stash and persist.

What is heavy is imported in the commands. What is refused is found out by clients that write nothing, before
anything is opened for writing.
"""

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.catalog.place import LinkedPlace, linked_options
from holdfast.cli.migrate.link import detach, link
from holdfast.cli.migrate.options import (
    BACKENDS,
    agree,
    backend_named,
    generation_option,
    holder,
    migration_id_option,
    strategy_option,
    with_strategy,
    yes_option,
)
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.catalog.move.attempt import MoveProgress
    from holdfast.catalog.move.linked import LinkedCatalog
    from holdfast.catalog.move.migration import BackendMigration
    from holdfast.catalog.move.truth import Backend

_target = click.option("--target", type=click.Choice(BACKENDS), required=True, help="Where the catalog goes.")
_verify = click.option(
    "--verify",
    type=click.Choice(["none", "compare", "shadow"]),
    default="compare",
    show_default=True,
    help="What is done to be sure of the target before the truth moves.",
)
_timeout = click.option(
    "--timeout",
    type=float,
    metavar="S",
    default=600.0,
    show_default=True,
    help="For how many seconds others are shut out; it stops before the next step then.",
)


@click.group()
def migrate() -> None:
    """Move a catalog between a stash and persist, and back.

    A catalog that is linked is in one of two stores, its source of truth; a migration moves it to the other
    by numbered steps. One that broke off is resumed by the same command.
    """


@migrate.command(short_help="Show what a migration would do.")
@linked_options
@migration_id_option
@click.option("--target", type=click.Choice(BACKENDS), help="Where the catalog goes; not with --rollback.")
@strategy_option
@click.option("--rollback", is_flag=True, help="The way back of it.")
def plan(
    place: LinkedPlace, migration_id: str, target: str | None, strategy: str | None, rollback: bool
) -> None:
    """Show what 'run', or with --rollback 'rollback', would do; nothing is written and nobody is fenced.

    Exit code 1 if the source of truth can't be read, so that it would be refused.
    """
    from holdfast.cli.migrate.show import plan_lines
    from holdfast.errors import HoldfastError

    if rollback is (target is not None):
        raise BadInput(
            "--target can't be given with --rollback: it leads back from the target that the migration had"
            if rollback
            else "--target is missing: where does the catalog go?"
        )
    with with_strategy(place, strategy).open_to_look() as linked:
        to = _begun_with(linked, migration_id) if target is None else backend_named(target)
        found = _migration(linked, migration_id, to, rollback=rollback).plan()
        for line in plan_lines(found):
            click.echo(line)
    if found.refused is not None:
        raise HoldfastError(f"it would be refused: {found.refused}", hint=found.refused.hint)


@migrate.command(short_help="Move a catalog to the other store.")
@linked_options
@migration_id_option
@_target
@strategy_option
@_verify
@_timeout
@generation_option
def run(
    place: LinkedPlace,
    migration_id: str,
    target: str,
    strategy: str | None,
    verify: str,
    timeout: float,
    deploy_generation: int | None,
) -> None:
    """Move the catalog to the target, and link the two stores before if they aren't.

    Every process that writes to the catalog is fenced, and shut out until it has ended. What broke off goes
    on with the same ID; an ID that has ended does nothing.
    """
    _run(
        with_strategy(place, strategy),
        create=True,
        migration_id=migration_id,
        target=backend_named(target),
        verify=verify,
        timeout_s=timeout,
        deploy_generation=deploy_generation,
    )


@migrate.command(short_help="Take a migration back.")
@linked_options
@migration_id_option
@_verify
@_timeout
@generation_option
def rollback(
    place: LinkedPlace,
    migration_id: str,
    verify: str,
    timeout: float,
    deploy_generation: int | None,
) -> None:
    """Move the catalog back from the target that the migration had, with all that was written since.

    For one that is done, or that is still running. What broke off goes on with the same command.
    """
    _run(
        place,
        create=False,
        migration_id=migration_id,
        target=None,
        verify=verify,
        timeout_s=timeout,
        deploy_generation=deploy_generation,
        rollback=True,
    )


@migrate.command(short_help="Give a migration up that is running.")
@linked_options
@migration_id_option
@generation_option
@yes_option
def abandon(place: LinkedPlace, migration_id: str, deploy_generation: int | None, yes: bool) -> None:
    """End a migration that is running, so that nobody is shut out any more. Nothing is moved by it.

    Where the source of truth has moved already the migration is done; else it is taken back, as if it had
    never begun, and the catalog stays where it is. Whoever runs it is fenced, as is every process that writes
    to the catalog. One that has ended stays as it is.
    """
    from holdfast.catalog.move.status import migration_status
    from holdfast.cli.migrate.show import at

    with place.open_to_look() as linked:
        target = _begun_with(linked, migration_id)
        found = migration_status(linked)
        assert found.truth is not None
        record, places = found.records[migration_id], linked.stores.places
        if not record.is_running:
            truth = at(places, found.truth)
            click.echo(f"migration {migration_id} is {record} already; the source of truth is {truth}")
            return
        generation = linked.deploy_generation() or 0 if deploy_generation is None else deploy_generation
        agree(f"catalog {linked.place}", f"{found.holder} had the migration last", "giving it up", yes=yes)
    with place.open_to_write() as linked:
        with _migration(linked, migration_id, target, deploy_generation=generation) as migration:
            truth = at(places, migration.abandon())
        ended = migration_status(linked).records.get(migration_id)
    told = f"is {ended}" if ended else "was taken back"
    click.echo(f"migration {migration_id} {told}: the source of truth is {truth}")


@migrate.command(short_help="Show where a catalog is, and what runs.")
@linked_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(place: LinkedPlace, as_json: bool) -> None:
    """Show which store is the source of truth, how they are linked, and the migrations that there were.

    Nothing is written. Exit code 2 if it can't be told where the catalog is.
    """
    from holdfast.catalog.move.status import migration_status
    from holdfast.catalog.opening import wall_clock_ms
    from holdfast.cli.facts import emit_json
    from holdfast.cli.migrate.show import status_json, status_lines

    with place.open_to_look() as linked:
        found = migration_status(linked)
    if as_json:
        emit_json(status_json(found))
    else:
        for line in status_lines(found, wall_clock_ms()):
            click.echo(line)
    if found.conflict is not None:
        raise click.exceptions.Exit(found.conflict.exit_code)


def _run(
    place: LinkedPlace,
    *,
    create: bool,
    migration_id: str,
    target: "Backend | None",
    verify: str,
    deploy_generation: int | None,
    **options: Any,
) -> None:
    """Run a migration, after a look by clients that write nothing at what it is.

    `target` None: the one that it was begun with.
    """
    from holdfast.catalog.move.attempt import Verify
    from holdfast.cli.migrate.show import at, progress_line
    from holdfast.cli.progress import Progress as Line

    if verify == "shadow":
        raise BadInput(
            "a shadow needs the process that writes to the catalog: it is not to be had here",
            hint="use --verify compare, or open_shadow() in that process, or a CatalogMigration",
        )
    options["verify"] = Verify[verify.upper()]
    with place.open_to_look() as linked:
        if deploy_generation is None:
            deploy_generation = linked.deploy_generation() or 0
        if target is None:
            target = _begun_with(linked, migration_id)
        planned = _migration(linked, migration_id, target, **options).plan()
    if planned.refused is not None:
        raise planned.refused
    truth = at(planned.places, planned.source)
    if not planned.steps:
        click.echo(f"migration {migration_id} is {planned.record} already; the source of truth is {truth}")
        return
    source, target_ = (at(planned.places, each) for each in (planned.destination.other, planned.destination))
    click.echo(f"migration {migration_id}: {source} -> {target_}")
    if planned.is_there:
        click.echo(f"the catalog is in {target_} already: nothing is moved")
    line = Line(" ")
    with place.open_to_write(create=create) as linked:
        migration = _migration(linked, migration_id, target, deploy_generation=deploy_generation, **options)

        def tell(progress: "MoveProgress") -> None:
            line.done()
            click.echo(progress_line(progress))
            following = migration.next_step
            if following is not None:
                line(f"{following} ...")

        line(f"{planned.steps[0]} ...")
        try:
            outcome = migration.run(tell)
        finally:
            line.done()
            migration.close()
        truth = at(linked.stores.places, outcome.truth)
    click.echo(f"migration {migration_id} is {outcome.record}: the source of truth is {truth}")


def _begun_with(linked: "LinkedCatalog", migration_id: str) -> "Backend":
    """The target that a migration was begun with."""
    from holdfast.catalog.move.records import target_to_leave
    from holdfast.catalog.move.status import migration_status

    found = migration_status(linked)
    if found.conflict is not None:
        raise found.conflict
    return target_to_leave(found.targets, migration_id)


def _migration(
    linked: "LinkedCatalog", migration_id: str, target: "Backend", **options: Any
) -> "BackendMigration":
    from holdfast.catalog.move.migration import BackendMigration

    return BackendMigration(
        linked,
        migration_id=migration_id,
        target=target,
        holder=holder(),
        purpose="holdfast migrate",
        **options,
    )


for command in (link, detach):
    migrate.add_command(command)
