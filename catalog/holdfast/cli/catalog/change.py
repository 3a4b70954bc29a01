"""`holdfast catalog edit`, `delete`, `load` and `fence`: manual repairs.

Invariants
- A client that writes nothing rehearses each change first. A refused command leaves no trace and fences
  nobody.
- A command announces on stderr whom it fences before it does so, and asks first if there is a terminal.
"""

import io
import json
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

import click

from holdfast.cli.asking import confirm, somebody_answers
from holdfast.cli.catalog.place import CatalogPlace, catalog_options
from holdfast.cli.facts import count, json_option, tell
from holdfast.cli.files import text_argument
from holdfast.cli.numbers import u64
from holdfast.errors import BadInput, Deprecated, NoLocation, Uninitialized, VersionTooNew

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from holdfast.catalog import OpenableCatalog


class _Claim(TypedDict):
    """Who writes, and why, as stored in fence tokens."""

    holder: str
    purpose: str


_yes = click.option("--yes", is_flag=True, help="Don't ask.")
_force = click.option(
    "--force",
    is_flag=True,
    help="Allow changes to objects that decide who can read the catalog, changes that go back,"
    " and dangling references.",
)


@click.command(short_help="Insert an object, or replace its value.")
@catalog_options
@click.argument("object_type", metavar="TYPE")
@click.argument("key")
@click.argument("value")
@_force
@_yes
@json_option
def edit(
    place: CatalogPlace, object_type: str, key: str, value: str, force: bool, yes: bool, as_json: bool
) -> None:
    """Set the object with this TYPE and KEY to VALUE. Insert it if it doesn't exist.

    \b
    holdfast catalog edit items @key.json @value.json --stash sqlite:///a.db

    Write TYPE, KEY and VALUE as 'dump' shows them: KEY and VALUE are JSON. @FILE reads one from a file, and -
    reads it from standard input. This first fences every process that writes to the catalog. Those processes
    stop, and you need to start them again.
    """  # noqa: D301 - the escape is for the formatter of the help
    if key == value == "-":
        raise BadInput("KEY and VALUE can't both come from standard input")
    key, value = text_argument(key, "KEY"), text_argument(value, "VALUE")
    _put(place, object_type, key, value, force=force, yes=yes, as_json=as_json)


@click.command(short_help="Remove an object.")
@catalog_options
@click.argument("object_type", metavar="TYPE")
@click.argument("key")
@_force
@_yes
@json_option
def delete(place: CatalogPlace, object_type: str, key: str, force: bool, yes: bool, as_json: bool) -> None:
    """Remove the object with this TYPE and KEY, even if other objects refer to it.

    \b
    holdfast catalog delete items @key.json --stash sqlite:///a.db

    Write TYPE and KEY as 'dump' shows them: KEY is JSON. @FILE reads it from a file, and - reads it from
    standard input. This first fences every process that writes to the catalog. Those processes stop, and you
    need to start them again.
    """  # noqa: D301 - the escape is for the formatter of the help
    _put(place, object_type, text_argument(key, "KEY"), None, force=force, yes=yes, as_json=as_json)


def _put(
    place: CatalogPlace,
    object_type: str,
    key: str,
    value: str | None,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from holdfast.catalog import debug
    from holdfast.catalog.objects.message_json import message_to_json

    with place.open_to_look() as openable:
        change = debug.rehearse(openable, object_type, key, value, force=force)
        what = f"{object_type} {_line(change.key)}"
        facts: dict[str, Any] = {
            "catalog": openable.place,
            "type": object_type,
            "key": message_to_json(change.key),
        }
        if change.found is not None and change.found == change.value:
            facts |= {"done": "unchanged", "before": message_to_json(change.found)}
            tell(facts, f"{what}: unchanged, it already has that value", as_json=as_json)
            return
        _announce(openable, yes=yes)
    before: Message | None
    with place.open_to_write() as openable:
        if value is None:
            before = debug.delete(openable, object_type, key, force=force, **_who("delete"))
        else:
            before = debug.edit(openable, object_type, key, value, force=force, **_who("edit"))
    done = "inserted" if before is None else "deleted" if value is None else "replaced"
    facts |= {"done": done, "before": None if before is None else message_to_json(before)}
    line = f"{what}: {done}" if before is None else f"{what}: {done}, before: {_line(before)}"
    tell(facts, line, as_json=as_json)


@click.command(short_help="Load a dump into the catalog.")
@catalog_options
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_yes
@json_option
def load(place: CatalogPlace, file: Path, yes: bool, as_json: bool) -> None:
    """Load a dump into the catalog. FILE is the dump, or - for standard input.

    \b
    holdfast catalog load dump.json --stash sqlite:///data/catalog.db

    A catalog that is not initialized then holds exactly the dump. In an initialized catalog the dump replaces
    the contents, and every process that writes to it is fenced first. This needs --yes, or confirmation at
    the terminal. Some values never go back: append-only objects and reserved config stay, and id allocators
    and timestamps keep the greater number.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog import debug

    source = _Source(file)
    try:
        with place.open_to_look() as openable:
            with source.text() as text:
                planned = debug.rehearse_load(openable, text)
            if openable.is_initialized():
                if not yes and not somebody_answers():
                    raise BadInput(
                        f"loading into catalog {openable.place} needs confirmation", hint="pass --yes"
                    )
                counts = f"{count(planned.added, 'row')} added and {planned.retracted:,} removed"
                _announce(openable, f"its contents are replaced: {counts}", yes=yes)
    except NoLocation:
        with _nowhere() as openable, source.text() as text:
            debug.rehearse_load(openable, text)
    with place.open_to_write(create=True) as openable, source.text() as text:
        loaded = debug.load(openable, text, **_who("load"))
        place_, added, removed, epoch = openable.place, loaded.added, loaded.retracted, loaded.token.epoch
        tell(
            {"catalog": place_, "added": added, "removed": removed, "epoch": epoch},
            f"loaded {source} into catalog {place_}: {count(added, 'row')} added, {removed:,} removed,"
            f" epoch {epoch}",
            as_json=as_json,
        )


@click.command(short_help="Raise the fence token after a restore, or to fence all writers.")
@catalog_options
@click.option(
    "--at-least",
    metavar="N",
    type=u64,
    help="Raise the epoch to N. An epoch that is already N or more stays.",
)
@click.option("--above", metavar="N", type=u64, help="Raise the epoch above N and above the current epoch.")
@click.option("--deploy-generation", metavar="G", type=u64, help="Also raise the deploy generation to G.")
@_yes
@json_option
def fence(
    place: CatalogPlace,
    at_least: int | None,
    above: int | None,
    deploy_generation: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Raise the fence token of a catalog. This fences every process that writes to it.

    \b
    holdfast catalog fence --above 0 --stash sqlite:///data/catalog.db

    Use --at-least after you restored an older state: a process that finds a token lower than its own stops,
    and names the epoch N that it needs. If the token is already high enough, it stays and nobody is fenced.
    --above always raises the token. No option ever lowers it.
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.catalog.fence import check_room

    if (at_least is None) == (above is None):
        raise BadInput(
            "give either --at-least N or --above N",
            hint="--above 0 raises the epoch by one, and so fences all writers",
        )
    check_room(at_least or above or 0)
    with place.open_to_look() as openable:
        before = _token(openable)
        least = max(above, before[0]) + 1 if above is not None else at_least or 0
        check_room(least)
        generation = before[1] if deploy_generation is None else deploy_generation
        if before[0] >= least and before[1] >= generation:
            tell(
                _fenced(openable, before, before),
                f"unchanged: {_shown(before)}; a fence token is never lowered, and nobody was fenced "
                f"(use --above {before[0]} to fence)",
                as_json=as_json,
            )
            return
        _announce(openable, yes=yes)
    who = _who("fence")
    with place.open_to_write() as openable:
        after = openable.raise_fence(least, deploy_generation=generation, **who)
        while above is not None and (after.holder, after.purpose) != (who["holder"], who["purpose"]):
            # Somebody took over since, at the epoch that this command wanted.
            after = openable.raise_fence(after.epoch + 1, deploy_generation=generation, **who)
        raised = (after.epoch, after.deploy_generation)
        facts = _fenced(openable, before, raised)
    tell(facts, f"raised: {_shown(before)} -> {_shown(raised)}", as_json=as_json)


def _fenced(openable: "OpenableCatalog", before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    tokens = ("before", before), ("after", after)
    return {
        "catalog": openable.place,
        **{name: {"epoch": epoch, "deploy_generation": each} for name, (epoch, each) in tokens},
    }


def _token(openable: "OpenableCatalog") -> tuple[int, int]:
    epoch, generation = openable.epoch(), openable.deploy_generation()
    if epoch is None or generation is None:
        raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    return epoch, generation


def _shown(token: tuple[int, int]) -> str:
    return f"epoch {token[0]} of generation {token[1]}"


def _announce(openable: "OpenableCatalog", what: str = "", *, yes: bool) -> None:
    """Show whom this command fences. Ask first at a terminal; without one, continue."""
    openable.check_takeover()
    place = openable.place
    click.echo(f"fencing every process that writes to catalog {place}{what and '; '}{what}", err=True)
    if not yes and somebody_answers():
        confirm("Go on?")


def _who(command: str) -> "_Claim":
    return {"holder": f"{socket.gethostname()}:{os.getpid()}", "purpose": f"holdfast catalog {command}"}


@contextmanager
def _nowhere() -> Iterator["OpenableCatalog"]:
    """A catalog in memory, to rehearse a load into a location that doesn't exist yet."""
    from holdfast.catalog import persist_catalog
    from holdfast.persist import PersistClient

    with PersistClient.open(f"memory://{uuid.uuid4()}") as client:
        yield persist_catalog(client, uuid.UUID(int=0))


class _Source:
    """A dump that can be read more than once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # Standard input can be read only once.
        self._copy = io.BytesIO(sys.stdin.buffer.read()) if str(file) == "-" else None

    def __str__(self) -> str:
        return "standard input" if self._copy else str(self._file)

    @contextmanager
    def text(self) -> Iterator[TextIO]:
        """Open the text at its beginning. Raises `BadInput` if it can't be read or loaded."""
        try:
            data = io.BytesIO(self._copy.getvalue()) if self._copy else self._file.open("rb")
        except OSError as error:
            raise BadInput(f"can't read {self}: {error.strerror or error}") from error
        try:
            with io.TextIOWrapper(data, encoding="utf-8-sig") as text:
                yield text
        except UnicodeDecodeError:
            raise BadInput(f"{self} is not UTF-8 text") from None
        except (VersionTooNew, Deprecated) as error:
            raise BadInput(f"can't load {self}: {error}", hint=error.hint) from error


def _line(message: "Message") -> str:
    """A message as 'dump' shows it."""
    from holdfast.catalog.objects.message_json import message_to_json

    return json.dumps(message_to_json(message), ensure_ascii=False)
