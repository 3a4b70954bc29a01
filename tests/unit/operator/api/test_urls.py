"""URLs of specs: those with a secret are refused, and never shown."""

from typing import Any

import pytest

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.urls import public, tells_a_secret
from holdfast_operator.engine.logging import redact
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.kubectl.redaction import Redactor

ORGANIZATION = "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01"
SECRET = (
    "s3://u:geheim@h/db",
    "s3://h/db?password=geheim",
    "s3://h/db?region=x&sslpassword=geheim&schema=y",
    "s3://h/db?passfile=/geheim",
    "s3://h/db?p%61ssword=geheim",
    "s3://h/db?options=-c%20x.password%3Dgeheim",
    "s3://h/db?options=-c%20x.p%61ssword%3Dgeheim",
    "s3://h/db?options=-c%2520x.password%253Dgeheim",
    "s3://h/db?endpoint=http://u:geheim@h",
    "s3://h/db?endpoint=http%3A%2F%2Fu%3Ageheim%40h",
    "s3://h/db?endpoint=https:%252F%252Fu:geheim%2540h",
    "s3://h/db?endpoint=http://h?sig=geheim",
    "s3://h/db?user=u&pass=geheim",
    "s3://h/db?sk=geheim&region=x",
    "s3://h/db?options=-c%20pass%3Dgeheim",
    "s3://u%3Ageheim%40h/db",
    "postgresql://u:pa/ss/geheim@h/db",
    "postgresql://u%3Ageheim%40h/db",
    "postgresql://u%253Ageheim%2540h/db",
    "postgresql://u:x?geheim@h/db",
    "Postgres://h/db?application_name=u:geheim@h",
)
UNUSABLE = (
    "postgresql://u:x#geheim@h/db?schema=x",
    "s3://h/db#geheim",
    "s3://h/db?region=x#password=geheim",
    "s3://h/db?pass\nword=geheim",
)
CATALOG: dict[str, Any] = {"organizationId": ORGANIZATION}
COLLECTION: dict[str, Any] = {"catalogRef": {"name": "x"}, "columns": [{"name": "a", "type": "int64"}]}


@pytest.mark.parametrize("url", SECRET)
def test_no_field_of_a_spec_takes_a_url_with_a_secret(url: str) -> None:
    other = {"organizationId": ORGANIZATION, "storage": {"url": url}}
    for path, spec in {
        "storage.url": CATALOG | {"storage": {"url": url}},
        "storage.blob": CATALOG | {"storage": {"blob": url, "consensus": "file:///x"}},
        "storage.consensus": CATALOG | {"storage": {"blob": "file:///x", "consensus": url}},
        "stash.url": CATALOG | {"stash": {"url": url}},
        "restoreFrom.dump.url": CATALOG | {"restoreFrom": {"dump": {"url": url}}},
        "restoreFrom.catalog.storage.url": CATALOG | {"restoreFrom": {"catalog": other}},
        "restoreFrom.snapshot": COLLECTION | {"restoreFrom": {"snapshot": url}},
        "snapshotSchedule.destination": COLLECTION
        | {"snapshotSchedule": {"schedule": "@daily", "destination": url}},
    }.items():
        model = CatalogSpec if "organizationId" in spec else StorageCollectionSpec
        found, problem = parse_spec(model, {"metadata": {}, "spec": spec})
        assert found is None
        assert problem.startswith(f"spec.{path}: must not contain a user or a password")
        assert "geheim" not in problem


@pytest.mark.parametrize("url", UNUSABLE)
def test_no_url_of_a_spec_has_a_fragment_or_a_control_character(url: str) -> None:
    found, problem = parse_spec(CatalogSpec, {"metadata": {}, "spec": CATALOG | {"storage": {"url": url}}})
    assert found is None
    assert problem.startswith("spec.storage.url: must not contain '#' or control characters")
    assert "geheim" not in problem


@pytest.mark.parametrize("url", [*SECRET, *UNUSABLE])
def test_nothing_secret_is_shown(url: str) -> None:
    assert "geheim" not in public(url)
    assert public(public(url)) == public(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://h/db?user=u&pass=geheim&region=x",
        "s3://h/db?sk=geheim",
        "postgresql://u%3Ageheim%40h/db",
        "postgresql://u:x#geheim@h/db",
    ],
)
def test_logs_and_reports_show_nothing_secret_of_a_url(url: str) -> None:
    text = f"can't open {url}: no answer"
    for shown in (redact(text), Redactor().text(text)):
        assert "geheim" not in shown
        assert shown.startswith(f"can't open {url[:5]}")
        assert shown.endswith(" no answer")


@pytest.mark.parametrize(
    "url",
    [
        "file:///var/lib/holdfast/a@b",
        "sqlite:///stash.db",
        "postgresql://db:5432/holdfast?sslmode=require&application_name=token%20bucket",
        "file:///",
        "s3://bucket/a@b%40c",
        "s3://secrets/password?endpoint=http://token-store:9000&region=eu",
        "postgresql://h/db?schema=secret",
    ],
)
def test_what_is_no_secret_stays(url: str) -> None:
    assert public(url) == url
    found, problem = parse_spec(CatalogSpec, {"metadata": {}, "spec": CATALOG | {"storage": {"url": url}}})
    assert (found is not None, problem) == (True, "")


def test_an_option_tells_by_its_name_and_by_what_is_in_its_value() -> None:
    assert tells_a_secret("sig=x")
    assert not tells_a_secret("design=x")
    assert not tells_a_secret("bypass=x")
    assert not tells_a_secret("schema=token")
