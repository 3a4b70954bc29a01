"""`holdfast migrate`: move a catalog between a stash and persist.

Commands import heavy modules when they run. They check everything with clients that write nothing before they
open a store for writing.
"""

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.catalog.place import LinkedPlace, linked_options
from holdfast.cli.facts import json_option, tell
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

_target = click.option("--target", type=click.Choice(BACKENDS), required=True, help="The store to move to.")
_verify = click.option(
    "--verify",
    type=click.Choice(["none", "compare", "shadow"]),
    default="compare",
    show_default=True,
    help="How to check the target before it becomes the source of truth.",
)
_timeout = click.option(
    "--timeout",
    type=float,
    metavar="S",
    default=600.0,
    show_default=True,
    help="The number of seconds for which others can't write. The migration stops before the next step then.",
)


@click.group()
def migrate() -> None:
    """Move a catalog between a stash and persist, and back.

    A linked catalog is in two stores, and one of them is its source of truth. A migration makes the other one
    the source of truth, in numbered steps. To resume an interrupted migration, run the same command again.
    """


@migrate.command(short_help="Show what a migration would do.")
@linked_options
@migration_id_option
@click.option("--target", type=click.Choice(BACKENDS), help="The store to move to. Not with --rollback.")
@strategy_option
@click.option("--rollback", is_flag=True, help="Show the rollback of the migration.")
@json_option
def plan(
    place: LinkedPlace,
    migration_id: str,
    target: str | None,
    strategy: str | None,
    rollback: bool,
    as_json: bool,
) -> None:
    """Show what 'run', or with --rollback 'rollback', would do. Nothing is written and nobody is fenced.

    \b
    holdfast migrate plan --id m1 --target persist \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    Exit code 1 means that the migration would be refused, because the source of truth can't be read.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.cli.migrate.show import plan_json, plan_lines
    from holdfast.errors import HoldfastError

    if rollback is (target is not None):
        raise BadInput(
            "--target can't be given with --rollback: a rollback moves back from the target of the migration"
            if rollback
            else "--target is missing: give the store to move the catalog to"
        )
    with with_strategy(place, strategy).open_to_look() as linked:
        to = _begun_with(linked, migration_id) if target is None else backend_named(target)
        found = _migration(linked, migration_id, to, rollback=rollback).plan()
        tell(plan_json(found), *plan_lines(found), as_json=as_json)
    if found.refused is not None:
        raise HoldfastError(f"the migration would be refused: {found.refused}", hint=found.refused.hint)


@migrate.command(short_help="Move a catalog to the other store.")
@linked_options
@migration_id_option
@_target
@strategy_option
@_verify
@_timeout
@generation_option
@json_option
def run(
    place: LinkedPlace,
    migration_id: str,
    target: str,
    strategy: str | None,
    verify: str,
    timeout: float,
    deploy_generation: int | None,
    as_json: bool,
) -> None:
    """Move the catalog to the target. If the two stores are not linked yet, link them first.

    \b
    holdfast migrate run --id m1 --target persist \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    This fences every process that writes to the catalog, and none can write until the migration ends. To
    resume an interrupted migration, use the same ID. A migration ID that has ended does nothing.
    """  # noqa: D301 - the escape is for the formatter of the help
    _run(
        with_strategy(place, strategy),
        create=True,
        migration_id=migration_id,
        target=backend_named(target),
        verify=verify,
        timeout_s=timeout,
        deploy_generation=deploy_generation,
        as_json=as_json,
    )


@migrate.command(short_help="Roll a migration back.")
@linked_options
@migration_id_option
@_verify
@_timeout
@generation_option
@json_option
def rollback(
    place: LinkedPlace,
    migration_id: str,
    verify: str,
    timeout: float,
    deploy_generation: int | None,
    as_json: bool,
) -> None:
    """Move the catalog back from the target of the migration, with all that was written since.

    \b
    holdfast migrate rollback --id m1 \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    You can roll back a migration that is done or still running. To resume an interrupted rollback, run the
    same command again.
    """  # noqa: D301 - the escape is for the formatter of the help
    _run(
        place,
        create=False,
        migration_id=migration_id,
        target=None,
        verify=verify,
        timeout_s=timeout,
        deploy_generation=deploy_generation,
        as_json=as_json,
        rollback=True,
    )


@migrate.command(short_help="Give up a running migration.")
@linked_options
@migration_id_option
@generation_option
@yes_option
@json_option
def abandon(
    place: LinkedPlace, migration_id: str, deploy_generation: int | None, yes: bool, as_json: bool
) -> None:
    """End a running migration, so that others can write again. This moves nothing.

    \b
    holdfast migrate abandon --id m1 \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    If the source of truth has already moved, the migration is done. Otherwise it is undone as if it had never
    begun, and the catalog stays where it is. The process that runs the migration is fenced, and so is every
    process that writes to the catalog. A migration that has ended stays as it is.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog.move.migration_status import migration_status
    from holdfast.cli.migrate.show import at, ended_json

    with place.open_to_look() as linked:
        target = _begun_with(linked, migration_id)
        found = migration_status(linked)
        assert found.truth is not None
        record, places = found.records[migration_id], linked.stores.places
        if not record.is_running:
            line = f"is already {record}; the source of truth is {at(places, found.truth)}"
            facts = ended_json(migration_id, record, found.truth)
            tell(facts, f"migration {migration_id} {line}", as_json=as_json)
            return
        generation = linked.deploy_generation() or 0 if deploy_generation is None else deploy_generation
        agree(f"catalog {linked.place}", f"{found.holder} ran the migration last", "giving it up", yes=yes)
    with place.open_to_write() as linked:
        with _migration(linked, migration_id, target, deploy_generation=generation) as migration:
            truth = migration.abandon()
        ended = migration_status(linked).records.get(migration_id)
    told = f"is {ended}" if ended else "was undone"
    line = f"migration {migration_id} {told}: the source of truth is {at(places, truth)}"
    tell(ended_json(migration_id, ended, truth), line, as_json=as_json)


@migrate.command(short_help="Show where a catalog is, and which migrations run.")
@linked_options
@json_option
def status(place: LinkedPlace, as_json: bool) -> None:
    """Show which store is the source of truth, how the stores are linked, and all their migrations.

    \b
    holdfast migrate status \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    Nothing is written. Exit code 2 means that the stores don't show which of them is the source of truth.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog.move.migration_status import migration_status
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
    as_json: bool,
    **options: Any,
) -> None:
    """Check a migration with clients that write nothing, then run it.

    If `target` is None, use the target that the migration began with.
    """
    from holdfast.catalog.move.attempt import Verify
    from holdfast.cli.migrate.show import at, ended_json, progress_line
    from holdfast.cli.progress import ProgressLine as Line

    if verify == "shadow":
        raise BadInput(
            "--verify shadow needs the process that writes to the catalog, and can't run here",
            hint="use --verify compare, call open_shadow() in that process, or create a CatalogMigration",
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
        line_ = f"migration {migration_id} is already {planned.record}; the source of truth is {truth}"
        tell(ended_json(migration_id, planned.record, planned.source), line_, as_json=as_json)
        return
    source, target_ = (at(planned.places, each) for each in (planned.destination.other, planned.destination))
    # JSON has only the result.
    click.echo(f"migration {migration_id}: {source} -> {target_}", err=as_json)
    if planned.is_there:
        click.echo(f"the catalog is already in {target_}: nothing is moved", err=as_json)
    line = Line(" ")
    with place.open_to_write(create=create) as linked:
        migration = _migration(linked, migration_id, target, deploy_generation=deploy_generation, **options)

        def on_step(progress: "MoveProgress") -> None:
            line.done()
            click.echo(progress_line(progress), err=as_json)
            following = migration.next_step
            if following is not None:
                line(f"{following} ...")

        line(f"{planned.steps[0]} ...")
        try:
            outcome = migration.run(on_step)
        finally:
            line.done()
            migration.close()
        truth = at(linked.stores.places, outcome.truth)
    facts = ended_json(migration_id, outcome.record, outcome.truth)
    told = f"migration {migration_id} is {outcome.record}: the source of truth is {truth}"
    tell(facts, told, as_json=as_json)


def _begun_with(linked: "LinkedCatalog", migration_id: str) -> "Backend":
    """The target that a migration began with."""
    from holdfast.catalog.move.migration_status import migration_status
    from holdfast.catalog.move.records import target_to_leave

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
