"""`holdfast migrate link` and `detach`: the begin and the end of a link, and deciding what nothing tells.

Whatever gives something up says first what that is, and is refused without `--accept-loss`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from holdfast.cli.catalog.place import CatalogPlace, LinkedPlace, PersistPlace, linked_options, place_options
from holdfast.cli.migrate.options import (
    BACKENDS,
    agree,
    backend_named,
    generation_option,
    holder,
    strategy_option,
    with_strategy,
    yes_option,
)
from holdfast.errors import BadInput, HoldfastError, LinkConflict

if TYPE_CHECKING:
    from holdfast.catalog import OpenableCatalog
    from holdfast.catalog.move.decision import Decision
    from holdfast.catalog.move.link import Linked
    from holdfast.catalog.move.linked import LinkedCatalog

_accept_loss = click.option(
    "--accept-loss", is_flag=True, help="Give up what is shown without it: it is lost for good."
)


@click.command(short_help="Say which of two catalogs counts, and link them.")
@linked_options
@click.option("--truth", type=click.Choice(BACKENDS), required=True, help="Which store has the catalog.")
@strategy_option
@_accept_loss
@yes_option
def link(place: LinkedPlace, truth: str, strategy: str | None, accept_loss: bool, yes: bool) -> None:
    """Link two stores that both hold a catalog: the one that is named counts from then on.

    What the other one holds is lost with the next migration. Two stores of which one is empty are linked by
    the first open for writing, and need no such word. Every process that writes to either of them is fenced.

    Two stores that were linked tell the truth themselves. Where they can't any more, since one was lost or
    restored from an older state, or against what they tell, this shows what either holds, and exits with 2.
    With --accept-loss it is decided: what only the other store has is given up. What breaks off is decided
    by the same command, for the same or the other store.
    """
    from holdfast.catalog.move.decision import decide, decision
    from holdfast.cli.migrate.show import at, decision_lines, strategy_name

    named = backend_named(truth)
    place = replace(with_strategy(place, strategy), truth=named)
    with place.open_to_look() as linked:
        found = decision(linked, named)
        other = at(found.places, named.other)
        if found.gives_up:
            for line in decision_lines(found):
                click.echo(line)
            if not accept_loss:
                raise _refusal(found)
            agree(linked.place, f"what {other} has alone is given up", "a decision", yes=yes)
        else:
            done = linked.link()
            if done is not None:
                click.echo(
                    f"linked already ({strategy_name(done.strategy)}): the source of truth is {truth}"
                    f" ({found.places[named]})"
                )
                return
            linked.check_open()
            agree(linked.place, f"the catalog in {other} does not count", "a link", yes=yes)
        generation = linked.deploy_generation() or 0
    with place.open_to_write(create=True) as linked:
        if found.gives_up:
            done = decide(linked, found, holder=holder(), purpose="holdfast migrate link --accept-loss")
        else:
            done = _linked(linked, generation)
    verb = "decided" if found.gives_up else "linked"
    click.echo(
        f"{verb} ({strategy_name(done.strategy)}): the source of truth is {at(found.places, done.truth)}"
    )


@click.command(short_help="End the link of a catalog on persist.")
@place_options
@click.option("--stash-lost", is_flag=True, help="The stash is gone for good: give persist alone.")
@_accept_loss
@generation_option
@yes_option
def detach(
    place: CatalogPlace, stash_lost: bool, accept_loss: bool, deploy_generation: int | None, yes: bool
) -> None:
    """End the link, so that the catalog is on persist alone; only while persist is its source of truth.

    The stash keeps what it has, but can't be linked with it again. Every process that writes to the catalog
    is fenced.

    With --stash-lost, where persist does not say that it is the source of truth, this shows what it holds,
    and exits with 2. With --accept-loss that is the catalog from then on: what only the stash had is given
    up. A process that still has the stash open is not fenced: stop it first.
    """
    from holdfast.catalog.move.detach import check_detach
    from holdfast.catalog.move.detach import detach as end_link

    if isinstance(place, LinkedPlace) is stash_lost:
        raise BadInput(
            "--stash-lost is for a stash that is gone: --stash can't be given with it"
            if stash_lost
            else "--stash is missing: a link is ended with both of its stores",
            hint="if the stash is gone for good, give --stash-lost with --persist URL --organization-id UUID",
        )
    if accept_loss and not stash_lost:
        raise BadInput(
            "--accept-loss is for a stash that is lost",
            hint="give --stash-lost; with both stores, 'holdfast migrate link' decides",
        )
    if isinstance(place, PersistPlace):
        place = replace(place, stash_lost=stash_lost)
    with place.open_to_look() as openable:
        try:
            check_detach(openable, stash_lost=stash_lost)
            loses = False
        except LinkConflict:
            if not stash_lost:
                raise
            for line in _what_persist_has(openable):
                click.echo(line)
            check_detach(openable, stash_lost=True, accept_loss=accept_loss)
            loses = True
        what = "what only the stash had is given up" if loses else ""
        agree(f"catalog {openable.place}", what, "ending a link", yes=yes)
    with place.open_to_write() as openable:
        token = end_link(
            openable,
            stash_lost=stash_lost,
            accept_loss=loses,
            deploy_generation=deploy_generation,
            holder=holder(),
            purpose="holdfast migrate detach",
        )
        click.echo(f"detached: the catalog is on persist alone, epoch {token.epoch}")


def _linked(linked: "LinkedCatalog", generation: int) -> "Linked":
    from holdfast.catalog import OpenMode

    linked.open(
        OpenMode.WRITABLE, deploy_generation=generation, holder=holder(), purpose="holdfast migrate link"
    ).close()
    done = linked.link()
    assert done is not None
    return done


def _refusal(found: "Decision") -> LinkConflict:
    from holdfast.cli.migrate.show import at

    accepts = f"--accept-loss decides for {found.truth.value}"
    if found.conflict is not None:
        return LinkConflict(str(found.conflict), hint=f"find the newest state of both stores; else {accepts}")
    assert found.told is not None
    return LinkConflict(
        f"they are linked already, and the source of truth is {at(found.places, found.told)}",
        hint=f"'holdfast migrate run' moves it, and loses nothing; {accepts}",
    )


def _what_persist_has(persist: "OpenableCatalog") -> Iterator[str]:
    from holdfast.catalog.one_store import OneStoreCatalog
    from holdfast.cli.migrate.show import loss_lines

    assert isinstance(persist, OneStoreCatalog)
    seen = persist.preamble()
    try:
        return loss_lines(persist.store.location, seen, persist.sizes() if seen.is_initialized else None)
    except HoldfastError as error:
        return loss_lines(persist.store.location, seen, error)
