"""`holdfast catalog upgrade-check`: whether this Holdfast can open a catalog, without changing anything."""

import json
from dataclasses import asdict
from typing import Any

import click

from holdfast.cli.catalog.place import CatalogPlace, catalog_options
from holdfast.cli.facts import count, json_option, tell
from holdfast.cli.files import text_argument
from holdfast.errors import BadInput, CorruptBlob, HoldfastError, StorageError, Uninitialized

_OPTION = "--cluster-replica-sizes"


@click.command("upgrade-check", short_help="Check that this Holdfast can open and upgrade a catalog.")
@catalog_options
@click.option(
    _OPTION,
    "sizes",
    metavar="JSON",
    help='The sizes that replicas and managed clusters may have, such as \'["1", "2"]\'. @FILE reads a file.',
)
@json_option
def upgrade_check(place: CatalogPlace, sizes: str | None, as_json: bool) -> None:
    """Check that this Holdfast can open the catalog and upgrade it to its own version.

    \b
    holdfast catalog upgrade-check --stash sqlite:///data/catalog.db

    This reads all objects and upgrades them in memory. It writes nothing and fences nobody, so you can run it
    while the database runs. Exit code 0 means yes, 1 means no.
    """  # noqa: D301 - the escape is for the formatter of the help
    allowed = None if sizes is None else _sizes(text_argument(sizes, _OPTION))
    from holdfast.catalog.upgrade_check import check_upgrade

    with place.open_to_look() as openable:
        try:
            found = check_upgrade(openable, replica_sizes=allowed)
        except HoldfastError as error:
            # A store that fails, or a catalog that doesn't exist, says nothing about an upgrade.
            if isinstance(error, StorageError | Uninitialized) and not isinstance(error, CorruptBlob):
                raise
            raise _negative(openable.place, error) from error
        if found.version == found.upgraded:
            answer = f"is at version {found.version}, the version of this Holdfast"
        else:
            answer = f"can be upgraded from version {found.version} to {found.upgraded}"
        valid = f"{count(found.objects, 'object')} {'is' if found.objects == 1 else 'are'} valid"
        facts = {"catalog": openable.place, **asdict(found)}
        tell(facts, f"catalog {openable.place} {answer}; {valid}", as_json=as_json)


def _negative(place: str, error: HoldfastError) -> HoldfastError:
    """A negative result. Its exit code is 1, also if the error has another code elsewhere."""
    return HoldfastError(f"catalog {place} can't be opened by this Holdfast: {error}", hint=error.hint)


def _sizes(text: str) -> frozenset[str]:
    """The names in a list, or the keys of an object. The values of the object are ignored."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list | dict) or not found or not all(isinstance(name, str) for name in found):
        raise BadInput(
            f"{_OPTION} is not a JSON list of sizes: {' '.join(text.split())[:60]}",
            hint="""write it like '["1", "2"]'""",
        )
    return frozenset(found)
