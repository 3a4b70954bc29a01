"""`holdfast migrate link` and `detach`: begin and end a link, and decide which of two stores counts.

A command that gives data up first shows what that is, and is refused without `--accept-loss`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from holdfast.cli.catalog.place import CatalogPlace, LinkedPlace, PersistPlace, linked_options, place_options
from holdfast.cli.facts import json_option, tell
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
    "--accept-loss",
    is_flag=True,
    help="Give up what the command shows without this option. It is lost permanently.",
)


@click.command(short_help="Link two catalogs and choose which one counts.")
@linked_options
@click.option(
    "--truth", type=click.Choice(BACKENDS), required=True, help="The store to make the source of truth."
)
@strategy_option
@_accept_loss
@yes_option
@json_option
def link(
    place: LinkedPlace, truth: str, strategy: str | None, accept_loss: bool, yes: bool, as_json: bool
) -> None:
    """Link two stores that both hold a catalog. --truth names the store that becomes the source of truth.

    \b
    holdfast migrate link --truth stash \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    The contents of the other store are lost with the next migration. If one of the stores is empty, you don't
    need this command: the first open for writing links them. This fences every process that writes to either
    store.

    Two linked stores record which of them is the source of truth. If one was lost or restored from an older
    state, they may no longer show it. Then, or if --truth contradicts what they record, this command shows
    the contents of both and exits with 2. With --accept-loss it decides for --truth, and what only the other
    store has is given up. If a decision is interrupted, run the same command again, for the same or the other
    store.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog.move.decision import decide, decision
    from holdfast.cli.migrate.show import at, decision_lines, strategy_name

    named = backend_named(truth)
    place = replace(with_strategy(place, strategy), truth=named)
    with place.open_to_look() as linked:
        found = decision(linked, named)
        other = at(found.places, named.other)
        if found.gives_up:
            for line in decision_lines(found):
                click.echo(line, err=as_json)
            if not accept_loss:
                raise _refusal(found)
            agree(linked.place, f"what only {other} has is given up", "a decision", yes=yes)
        else:
            done = linked.link()
            if done is not None:
                name = strategy_name(done.strategy)
                tell(
                    {"done": "already linked", "strategy": name, "sourceOfTruth": named.value},
                    f"already linked ({name}): the source of truth is {truth} ({found.places[named]})",
                    as_json=as_json,
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
    name = strategy_name(done.strategy)
    tell(
        {"done": verb, "strategy": name, "sourceOfTruth": done.truth.value},
        f"{verb} ({name}): the source of truth is {at(found.places, done.truth)}",
        as_json=as_json,
    )


@click.command(short_help="End the link of a catalog on persist.")
@place_options
@click.option("--stash-lost", is_flag=True, help="The stash is gone permanently. Give only --url.")
@_accept_loss
@generation_option
@yes_option
@json_option
def detach(
    place: CatalogPlace,
    stash_lost: bool,
    accept_loss: bool,
    deploy_generation: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """End the link, so that the catalog is only on persist. Persist must be the source of truth.

    \b
    holdfast migrate detach \\
        --stash sqlite:///a.db --url /data --organization-id UUID

    The stash keeps its contents, but can't be linked with this catalog again. This fences every process that
    writes to the catalog.

    If you give --stash-lost and persist does not record that it is the source of truth, this shows what
    persist holds and exits with 2. With --accept-loss, persist becomes the source of truth, and what only the
    stash had is given up. A process that still has the stash open is not fenced, so stop it first.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog.move.detach import check_detach
    from holdfast.catalog.move.detach import detach as end_link

    if isinstance(place, LinkedPlace) is stash_lost:
        raise BadInput(
            "--stash can't be given with --stash-lost, which means that the stash is gone"
            if stash_lost
            else "--stash is missing: ending a link needs both stores",
            hint="if the stash is gone for good, give --stash-lost with --url URL --organization-id UUID",
        )
    if accept_loss and not stash_lost:
        raise BadInput(
            "--accept-loss can be used only with --stash-lost",
            hint="give --stash-lost; if you have both stores, use 'holdfast migrate link' to decide",
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
                click.echo(line, err=as_json)
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
        facts = {"done": "detached", "catalog": openable.place, "epoch": token.epoch}
        tell(facts, f"detached: the catalog is only on persist, epoch {token.epoch}", as_json=as_json)


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
        return LinkConflict(
            str(found.conflict), hint=f"find the newest state of both stores; otherwise {accepts}"
        )
    assert found.told is not None
    return LinkConflict(
        f"the stores are already linked, and the source of truth is {at(found.places, found.told)}",
        hint=f"'holdfast migrate run' moves it without loss; {accepts}",
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
