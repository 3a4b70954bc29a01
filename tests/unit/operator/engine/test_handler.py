"""A failure of an object is logged once, with the text of its Event."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import CatalogOutOfSync, HoldfastError, StorageError
from holdfast_operator.api.names import Kind
from holdfast_operator.engine.handler import Handler
from holdfast_operator.engine.kube import Forbidden, Invalid, KubeError, ObjectKey
from holdfast_operator.engine.steps import Decision, Settle, ready
from unit.operator.engine.oneobject import KEY, Json, OneObject, services


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

    def plan(self, observed: Json) -> Decision:
        return Settle(ready("fine"))

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        raise AssertionError(step)

    async def gone(self, key: ObjectKey) -> None:
        """Nothing was kept."""


def of_handler(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the module of the handler has logged: nothing else of this process uses it."""
    return [record for record in caplog.records if record.name == "holdfast_operator.engine.handler"]


def told(caplog: pytest.LogCaptureFixture, *errors: HoldfastError | None) -> list[tuple[str, str]]:
    """The levels and the texts, up to their first semicolon, of what is logged by one reconcile per error."""
    handler = Failing(OneObject([]), errors)
    with caplog.at_level(logging.INFO, logger="holdfast_operator.engine.handler"):
        for _ in errors:
            asyncio.run(handler.reconcile(KEY))
    return [(record.levelname, record.getMessage().split(";")[0]) for record in of_handler(caplog)]


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


class Refusing(OneObject):
    """An API server that answers the writes of a status, or what reads the object, with these."""

    def __init__(self, method: str, answers: Sequence[KubeError | None]) -> None:
        super().__init__([])
        self.method, self.answers = method, list(answers)

    async def request(self, method: str, path: str, *, query: Any = None, body: Json | None = None) -> Json:
        if method == self.method and (error := self.answers.pop(0)):
            raise error
        self.status = {}
        return await super().request(method, path, query=query, body=body)


@pytest.mark.parametrize(
    ("method", "error", "level", "said"),
    [
        ("GET", KubeError("500"), "WARNING", "can't be read: 500"),
        ("PATCH", Forbidden("403"), "WARNING", "the status can't be written: 403"),
        ("PATCH", Invalid("422"), "ERROR", "the status is rejected; does the CRD have another version?: 422"),
    ],
)
def test_what_the_api_server_refuses_is_logged_when_it_begins_or_changes_and_when_it_is_over(
    method: str, error: KubeError, level: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = type(error)("otherwise")
    server = Refusing(method, [error, error, error, other, other, None, error])
    handler = Failing(server, [None] * 7)
    with caplog.at_level(logging.INFO, logger="holdfast_operator.engine.handler"):
        results = [asyncio.run(handler.reconcile(KEY)).retry for _ in range(7)]
    assert results == [True] * 5 + [False, True]
    told = [(record.levelname, record.getMessage()) for record in of_handler(caplog)]
    assert [line for line in told if "fine" not in line[1]] == [
        (level, said),
        (level, said.replace(str(error), "otherwise")),
        ("INFO", "the API server accepts all requests again"),
        (level, said),
    ]
