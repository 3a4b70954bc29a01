"""`holdfast migrate`: moving a catalog between a stash and persist.

What is heavy is imported in the commands. What is refused is found out by clients that write nothing, before
anything is opened for writing.
"""

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.catalog_place import CatalogPlace, LinkedPlace, catalog_options, linked_options
from holdfast.cli.numbers import u64
from holdfast.errors import BadInput, LinkConflict, Uninitialized

if TYPE_CHECKING:
    from holdfast.durable.backend_migration.attempt import Progress
    from holdfast.durable.backend_migration.linked import LinkedCatalog
    from holdfast.durable.backend_migration.migration import BackendMigration
    from holdfast.durable.backend_migration.truth import Backend

_BACKENDS = ["stash", "persist"]

_strategy = click.option(
    "--strategy",
    type=click.Choice(["one-tombstone", "two-tombstones"]),
    help="Of the link; one-tombstone for a new one.",
)
_id = click.option("--id", "migration_id", metavar="ID", required=True, help="Its name, for ever.")
_target = click.option(
    "--target", type=click.Choice(_BACKENDS), required=True, help="Where the catalog goes."
)
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
_yes = click.option("--yes", is_flag=True, help="Don't ask.")
_generation = click.option(
    "--deploy-generation", metavar="G", type=u64, help="If not given, the greatest of the two stores."
)


@click.group()
def migrate() -> None:
    """Move a catalog between a stash and persist, and back.

    A catalog that is linked is in one of two stores, its source of truth; a migration moves it to the other
    by numbered steps. One that broke off is resumed by the same command.
    """


@migrate.command(short_help="Show what a migration would do.")
@linked_options
@_id
@click.option("--target", type=click.Choice(_BACKENDS), help="Where the catalog goes; not with --rollback.")
@_strategy
@click.option("--rollback", is_flag=True, help="The way back of it.")
def plan(
    place: LinkedPlace, migration_id: str, target: str | None, strategy: str | None, rollback: bool
) -> None:
    """Show what 'run', or with --rollback 'rollback', would do; nothing is written and nobody is fenced.

    Exit code 1 if the source of truth can't be read, so that it would be refused.
    """
    from holdfast.cli.migrate_show import plan_lines
    from holdfast.errors import HoldfastError

    if rollback is (target is not None):
        raise BadInput(
            "--target can't be given with --rollback: it leads back from the target that the migration had"
            if rollback
            else "--target is missing: where does the catalog go?"
        )
    with _with_terms(place, strategy).open_to_look() as linked:
        to = _begun_with(linked, migration_id) if target is None else _backend(target)
        found = _migration(linked, migration_id, to, rollback=rollback).plan()
        for line in plan_lines(found):
            click.echo(line)
    if found.refused is not None:
        raise HoldfastError(f"it would be refused: {found.refused}", hint=found.refused.hint)


@migrate.command(short_help="Move a catalog to the other store.")
@linked_options
@_id
@_target
@_strategy
@_verify
@_timeout
@_generation
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
        _with_terms(place, strategy),
        create=True,
        migration_id=migration_id,
        target=_backend(target),
        verify=verify,
        timeout_s=timeout,
        deploy_generation=deploy_generation,
    )


@migrate.command(short_help="Take a migration back.")
@linked_options
@_id
@_verify
@_timeout
@_generation
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


@migrate.command(short_help="Show where a catalog is, and what runs.")
@linked_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(place: LinkedPlace, as_json: bool) -> None:
    """Show which store is the source of truth, how they are linked, and the migrations that there were.

    Nothing is written. Exit code 2 if it can't be told where the catalog is.
    """
    from holdfast.cli.migrate_show import status_json, status_lines
    from holdfast.cli.persist_show import emit_json
    from holdfast.durable.backend_migration.status import migration_status
    from holdfast.durable.opening import wall_clock_ms

    with place.open_to_look() as linked:
        found = migration_status(linked)
    if as_json:
        emit_json(status_json(found))
    else:
        for line in status_lines(found, wall_clock_ms()):
            click.echo(line)
    if found.conflict is not None:
        raise click.exceptions.Exit(found.conflict.exit_code)


@migrate.command(short_help="Say which of two catalogs counts, and link them.")
@linked_options
@click.option("--truth", type=click.Choice(_BACKENDS), required=True, help="Which store has the catalog.")
@_strategy
@_yes
def link(place: LinkedPlace, truth: str, strategy: str | None, yes: bool) -> None:
    """Link two stores that both hold a catalog: the one that is named counts from then on.

    What the other one holds is lost with the next migration. Two stores of which one is empty are linked by
    the first open for writing, and need no such word. Every process that writes to either of them is fenced.
    """
    from holdfast.cli.migrate_show import strategy_name
    from holdfast.durable import OpenMode

    named = _backend(truth)
    place = replace(_with_terms(place, strategy), truth=named)
    with place.open_to_look() as linked:
        found = linked.link()
        if found is not None:
            at = linked.stores.places[found.truth]
            if found.truth is not named:
                raise LinkConflict(
                    f"they are linked already, and the source of truth is {found.truth.value} ({at})",
                    hint="'holdfast migrate run' moves it",
                )
            click.echo(
                f"linked already ({strategy_name(found.strategy)}): the source of truth is {truth} ({at})"
            )
            return
        at, other = (linked.stores.places[each] for each in (named, named.other))
        if linked.source_of_truth() is not named:
            raise Uninitialized(
                f"there is no catalog in {at}, but there is one in {other}", hint="only that can be named"
            )
        linked.check_open()
        generation = linked.deploy_generation() or 0
        click.echo(
            f"fencing every process that writes to {linked.place}; the catalog in {other} does not count",
            err=True,
        )
        if not yes:
            if not somebody_answers():
                raise BadInput(f"linking {at} with {other} needs a yes", hint="give --yes")
            confirm("Go on?")
    with place.open_to_write(create=True) as linked:
        linked.open(
            OpenMode.WRITABLE, deploy_generation=generation, holder=_holder(), purpose="holdfast migrate link"
        ).close()
        done = linked.link()
    assert done is not None
    click.echo(f"linked ({strategy_name(done.strategy)}): the source of truth is {done.truth.value} ({at})")


@migrate.command(short_help="End the link of a catalog on persist.")
@catalog_options
@click.option("--stash-lost", is_flag=True, help="The stash is gone for good: give persist alone.")
@_generation
@_yes
def detach(place: CatalogPlace, stash_lost: bool, deploy_generation: int | None, yes: bool) -> None:
    """End the link, so that the catalog is on persist alone; only while persist is its source of truth.

    The stash keeps what it has, but can't be linked with it again. Every process that writes to the catalog
    is fenced.
    """
    from holdfast.durable.backend_migration.detach import check_detach
    from holdfast.durable.backend_migration.detach import detach as end_link

    if isinstance(place, LinkedPlace) is stash_lost:
        raise BadInput(
            "--stash-lost is for a stash that is gone: --stash can't be given with it"
            if stash_lost
            else "--stash is missing: a link is ended with both of its stores",
            hint="if the stash is gone for good, give --stash-lost with --persist URL --organization-id UUID",
        )
    with place.open_to_look() as openable:
        check_detach(openable, stash_lost=stash_lost)
        click.echo(f"fencing every process that writes to catalog {openable.place}", err=True)
    if not yes:
        if not somebody_answers():
            raise BadInput("ending a link needs a yes", hint="give --yes")
        confirm("Go on?")
    with place.open_to_write() as openable:
        token = end_link(
            openable,
            stash_lost=stash_lost,
            deploy_generation=deploy_generation,
            holder=_holder(),
            purpose="holdfast migrate detach",
        )
        click.echo(f"detached: the catalog is on persist alone, epoch {token.epoch}")


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
    from holdfast.cli.migrate_show import at, progress_line
    from holdfast.cli.persist_show import Progress as Line
    from holdfast.durable.backend_migration.attempt import Verify

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

        def tell(progress: "Progress") -> None:
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
    truth = at(planned.places, outcome.truth)
    click.echo(f"migration {migration_id} is {outcome.record}: the source of truth is {truth}")


def _begun_with(linked: "LinkedCatalog", migration_id: str) -> "Backend":
    """The target that a migration was begun with."""
    from holdfast.durable.backend_migration.records import target_to_leave
    from holdfast.durable.backend_migration.status import migration_status

    found = migration_status(linked)
    if found.conflict is not None:
        raise found.conflict
    return target_to_leave(found.targets, migration_id)


def _backend(name: str) -> "Backend":
    from holdfast.durable.backend_migration.truth import Backend

    return Backend[name.upper()]


def _migration(
    linked: "LinkedCatalog", migration_id: str, target: "Backend", **options: Any
) -> "BackendMigration":
    from holdfast.durable.backend_migration.migration import BackendMigration

    return BackendMigration(
        linked,
        migration_id=migration_id,
        target=target,
        holder=_holder(),
        purpose="holdfast migrate",
        **options,
    )


def _holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _with_terms(place: LinkedPlace, strategy: str | None) -> LinkedPlace:
    from holdfast.durable.backend_migration.truth import Strategy

    chosen = None if strategy is None else Strategy[strategy.upper().replace("-", "_")]
    return replace(place, strategy=chosen)
