"""Where an operator may keep catalogs: what is below a place is in it, whatever else looks like it is not."""

from pathlib import Path

import pytest

from holdfast_operator.__main__ import _parser
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.reconcile.locations import is_allowed
from holdfast_operator.reconcile.storage import Refused, Storage, resolve, resolve_restore

ORGANIZATION = "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01"
PLACES = (
    "s3://shared/team-a",
    "file:///data/a",
    "postgresql://db.example/team_a",
    "s3://own?endpoint=http://minio:9000",
)


@pytest.mark.parametrize(
    "url",
    [
        "s3://shared/team-a",
        "s3://shared/team-a/",
        "s3://shared/team-a/x?region=eu-west-1",
        "s3://shared/team%2Da/x",
        "file:///data/a",
        "file:///data//a/./b",
        "sqlite:///data/a/consensus.db",
        "postgresql://db.example/team_a",
        "postgres://somebody@db.example:5432/team_a",
        "postgresql://db.example/team_a?schema=stash",
        "s3://own/x?endpoint=http://minio:9000/",
    ],
)
def test_what_is_below_a_place_is_in_it(url: str) -> None:
    assert is_allowed(url, PLACES)


@pytest.mark.parametrize(
    "url",
    [
        "s3://shared",
        "s3://shared/team-ab",
        "s3://shared/team-a/../team-b",
        "s3://shared/team-a/%2e%2e/team-b",
        "s3://shared.example/team-a",
        "s3://SHARED/team-a?endpoint=http://elsewhere",
        "s3://shared/team-a?endpoint=http://elsewhere",
        "s3://own/x",
        "s3://own/x?endpoint=https://minio:9000",
        "s3://own/x?endpoint=http://minio:9000&endpoint=http://elsewhere",
        "s3://own/x?endpoint=http://minio:9000@elsewhere",
        "file:///data",
        "file:///data/ab",
        "file:///data/a%23b",
        "file:///data/a%3fb",
        "file:///data/a/../b",
        "file://host/data/a",
        "file:///data/a#b",
        "postgresql://db.example:5433/team_a",
        "postgresql://db.example/team_ab",
        "postgresql://db.example/",
        "postgresql://db.example,elsewhere/team_a",
        "postgresql://db.example/team_a?host=elsewhere",
        "postgresql://db.example:x/team_a",
        "gs://shared/team-a",
        "memory://",
        "",
    ],
)
def test_whatever_else_is_not(url: str) -> None:
    assert not is_allowed(url, PLACES)
    assert is_allowed(url, ())


def spec(**fields: object) -> CatalogSpec:
    return CatalogSpec.model_validate({"organizationId": ORGANIZATION, **fields})


def refused(found: object) -> str:
    assert isinstance(found, Refused)
    assert found.reason is Reason.LOCATION_NOT_ALLOWED
    return found.message.split(" is outside")[0]


def test_a_catalog_is_refused_with_the_field_that_is_foreign() -> None:
    inside, volume = {"url": "s3://shared/team-a/c"}, Path("/volume")
    assert resolve(spec(storage=inside), "ns", None, PLACES) == Storage(url="s3://shared/team-a/c")
    assert isinstance(resolve(spec(), "ns", volume, PLACES), Storage)
    outside = {"blob": "s3://shared/team-a", "consensus": "postgresql://elsewhere/db"}
    assert refused(resolve(spec(storage=outside), "ns", volume, PLACES)) == "spec.storage"
    stash = {"url": "sqlite:///data/b/stash.db"}
    assert refused(resolve(spec(stash=stash), "ns", volume, PLACES)) == "spec.stash"
    source = {"catalog": {"organizationId": ORGANIZATION, "storage": {"url": "s3://shared/team-b"}}}
    asked = spec(storage=inside, restoreFrom=source)
    assert refused(resolve_restore(asked, "ns", volume, PLACES)) == "spec.restoreFrom.catalog.storage"


def test_a_place_in_which_nothing_can_be_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    told = _parser().parse_args(["run", "--allow-location", "s3://a", "--allow-location=file:///b"])
    assert told.allow_location == ["s3://a", "file:///b"]
    for place in ("gs://a", "team-a", "file:///a/../b"):
        with pytest.raises(SystemExit):
            _parser().parse_args(["run", "--allow-location", place])
        assert f"{place!r} is no place for catalogs" in capsys.readouterr().err
