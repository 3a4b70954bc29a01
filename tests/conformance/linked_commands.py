"""Runs commands on a linked catalog with the installed Holdfast, and prints a line of JSON for each.

Run it with the URLs of persist and the stash. It uses only features that an earlier Holdfast also has.
"""

import json
import sys
from typing import Any

try:
    from holdfast.catalog import (
        Backend,
        OpenMode,
        emergency_catalog,
        linked_catalog,
        persist_catalog,
        stash_catalog,
    )
    from holdfast.catalog.move.migration import BackendMigration, Verify
except ModuleNotFoundError:  # In an earlier Holdfast the catalog has other module names.
    from holdfast.durable import (  # type: ignore[import-not-found, no-redef]
        Backend,
        OpenMode,
        emergency_catalog,
        linked_catalog,
        persist_catalog,
        stash_catalog,
    )
    from holdfast.durable.backend_migration.migration import (  # type: ignore[import-not-found, no-redef]
        BackendMigration,
        Verify,
    )
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient

ORG = "11111111-2222-3333-4444-555555555555"
HOLDER = {"holder": "a process", "purpose": "a test of two Holdfasts"}


def add(openable: Any, name: str) -> None:
    """Open it to write, and add an item."""
    with openable.open(OpenMode.WRITABLE, **HOLDER) as catalog:
        catalog.ensure_item("holdfast", "public", name)


def done(persist: str, stash: str, command: str, *words: str) -> list[str]:
    """Do one command in a client of its own; the items that the catalog has then."""
    with PersistClient.open(persist) as client:
        both = linked_catalog(stash_catalog(stash), persist_catalog(client, ORG), backend=Backend.STASH)
        match command:
            case "write":
                add(both, words[0])
            case "emergency":
                add(emergency_catalog(stash_catalog(stash)), words[0])
            case "move" | "back":
                BackendMigration(
                    both,
                    migration_id=words[0],
                    target=Backend.PERSIST,
                    verify=Verify(words[1]),
                    rollback=command == "back",
                    holder="a migration",
                ).run()
        with both.open(OpenMode.READ_ONLY) as catalog:
            return sorted(item.value.name for item in catalog.get_items())


def main() -> None:
    """Do commands until there are no more."""
    for line in sys.stdin:
        try:
            told: dict[str, Any] = {"items": done(*sys.argv[1:], *line.split())}
        except HoldfastError as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
