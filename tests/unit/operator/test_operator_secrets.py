"""What of a Secret's values may be read in a log line, a status and an Event: whose, and for how long."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_operator.api.names import Kind
from holdfast_operator.reconcile.credentials import decoded, forget_secrets
from holdfast_operator.runtime import logging as logs
from holdfast_operator.runtime.kube import ObjectKey
from holdfast_operator.runtime.status import shown

MINE = ObjectKey(Kind.CATALOG, "shop", "demo")
EVIL = ObjectKey(Kind.CATALOG, "evil", "demo")


def secret(version: int = 1, /, **values: str) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {"metadata": {"name": "keys", "resourceVersion": str(version)}, "data": encoded}


def told(key: ObjectKey, text: str) -> str:
    """As a status or an Event of an object tells it."""
    with logs.about(key):
        return shown(text)


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    yield
    forget_secrets(MINE)
    forget_secrets(EVIL)


def test_passwords_are_hidden_and_common_words_are_not() -> None:
    given = {"user": "postgres", "password": "open/sesame", "AWS_SECRET_ACCESS_KEY": "abracadabra"}
    there = secret(**given)
    assert decoded(there, MINE) == given
    assert told(MINE, "can't open postgresql://host/db") == "can't open postgresql://host/db"
    text = f"open/sesame abracadabra open%2Fsesame {there['data']['password']}"
    assert told(MINE, text) == "*** *** *** ***"
    # A line that is about nothing may be about it.
    assert logs.redact(text) == "*** *** *** ***"


def test_what_another_namespace_calls_a_secret_is_none_elsewhere() -> None:
    decoded(secret(a="collection", c="Catalog", password="pass"), EVIL)
    decoded(secret(password="planted-7f3a"), MINE)
    text = "collection holdfast.public.victim of Catalog passes"
    assert told(MINE, text) == text
    assert told(MINE, "the password planted-7f3a") == "the password ***"
    assert told(EVIL, text) == "*** holdfast.public.victim of *** ***es"
    # Also of one of a name, and of the objects in between.
    assert told(ObjectKey(Kind.STORAGE_COLLECTION, "evil", "flights"), "a collection") == "a ***"


@pytest.mark.parametrize(
    ("key", "value", "hidden"),
    [
        ("a", "Ready", False),
        ("a", "Catalog", True),
        ("password", "Ready", True),
        ("PGPASSWORD", "pw12", True),
        ("AWS_SECRET_ACCESS_KEY", "abcde", True),
        ("token", "abc", False),
    ],
)
def test_a_short_value_is_hidden_only_where_its_key_tells(key: str, value: str, hidden: bool) -> None:
    decoded(secret(**{key: value}), MINE)
    assert (told(MINE, f"it is {value} now") == "it is *** now") is hidden


def test_what_was_read_for_an_object_is_forgotten_with_it_and_never_too_much() -> None:
    other = ObjectKey(Kind.CATALOG_MIGRATION, "shop", "move")
    for key in (MINE, other):
        decoded(secret(password="planted-7f3a"), key)
    forget_secrets(MINE)
    assert told(MINE, "planted-7f3a") == "***"
    forget_secrets(other)
    assert told(MINE, "planted-7f3a") == "planted-7f3a"
    assert logs.redact("planted-7f3a") == "planted-7f3a"
    for version in range(9):
        decoded(secret(version, password=f"rotated-{version}"), MINE)
    assert told(MINE, "rotated-0 rotated-1 rotated-8") == "rotated-0 *** ***"


def test_of_a_large_secret_the_credentials_are_hidden_first() -> None:
    many = {f"k{number}": f"harmless-{number:03}" for number in range(300)}
    decoded(secret(**many, password="planted-7f3a"), MINE)
    assert told(MINE, "planted-7f3a harmless-000 harmless-299") == "*** *** harmless-299"
