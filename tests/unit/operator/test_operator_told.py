"""What goes wrong with an object is logged once, by the line that its Event has too."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from holdfast.errors import CatalogOutOfSync, HoldfastError, StorageError
from holdfast_operator.api.names import Kind
from holdfast_operator.reconcile.handler import Handler
from holdfast_operator.reconcile.steps import Settle, Step, ready
from holdfast_operator.runtime.kube import ObjectKey
from unit.operator.oneobject import KEY, Json, OneObject, services


class Failing(Handler[Json]):
    """Each look fails with the next of the errors; a look without one is fine."""

    kind = Kind.CATALOG

    def __init__(self, server: OneObject, errors: Sequence[HoldfastError | None]) -> None:
        super().__init__(services(server, []))
        self.errors = list(errors)

    async def observe(self, key: ObjectKey, body: Json) -> Json:
        if error := self.errors.pop(0):
            raise error
        return body

    def plan(self, observed: Json) -> Step:
        return Settle(ready("fine"))

    async def apply(self, key: ObjectKey, body: Json, step: Step) -> None:
        raise AssertionError(step)

    async def gone(self, key: ObjectKey) -> None:
        """Nothing was kept."""


def told(caplog: pytest.LogCaptureFixture, *errors: HoldfastError | None) -> list[tuple[str, str]]:
    """The levels and the texts, up to their first semicolon, of what is logged by one reconcile per error."""
    handler = Failing(OneObject([]), errors)
    with caplog.at_level(logging.INFO, logger="holdfast_operator.reconcile.handler"):
        for _ in errors:
            asyncio.run(handler.reconcile(KEY))
    return [(record.levelname, record.getMessage().split(";")[0]) for record in caplog.records]


def test_a_store_that_stays_away_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    away, slow = StorageError("no answer"), StorageError("it is full")
    assert told(caplog, away, away, away, slow, slow, None, away) == [
        ("WARNING", "StoreUnreachable: no answer"),
        ("WARNING", "StoreUnreachable: it is full"),
        ("INFO", "Available: fine"),
        ("WARNING", "StoreUnreachable: no answer"),
    ]


def test_what_mends_itself_is_logged_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    behind = CatalogOutOfSync("it is behind")
    assert told(caplog, behind, behind, None) == [
        ("INFO", "CatalogOutOfSync: it is behind"),
        ("INFO", "Available: fine"),
    ]
