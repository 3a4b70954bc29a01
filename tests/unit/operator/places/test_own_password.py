"""The operator's own Postgres password: a server that a spec names gets only a proof of it."""

import psycopg
import pytest

from holdfast.pg_session import PostgresAddress, connect
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.places import own_password
from holdfast_operator.places.storage import RefusedLocation, StashLocation, Storage, resolve, url_with
from testbed.askingpostgres import AskingPostgres
from testbed.postgres import PostgresServer

PROOF = "scram-sha-256,none"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of an operator without places."""
    environ = {"PGPASSWORD": "the operator's own"}
    own_password.keep(environ)
    assert environ.keys() == {"PGPASSWORD", "PGREQUIREAUTH"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("kept")
def test_no_server_is_told_the_password_of_the_operator() -> None:
    with AskingPostgres() as server:
        for url in (server.url(), url_with(StashLocation(server.url(), "mine"), {"user": "u"})):
            with pytest.raises(psycopg.Error, match="server requested a cleartext password"):
                connect(PostgresAddress.parse(url))
        assert (server.asked, server.told) == (2, [])


@pytest.mark.usefixtures("kept")
def test_who_names_a_server_may_tell_it_their_own_password() -> None:
    with AskingPostgres() as server:
        url = url_with(StashLocation(server.url(), "mine"), {"user": "u", "password": "theirs"})
        with pytest.raises(psycopg.Error, match="that isn't it"):
            connect(PostgresAddress.parse(url))
        assert server.told == ["theirs"]


def test_with_places_it_is_as_whoever_runs_the_operator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "the operator's own")
    with AskingPostgres() as server:
        with pytest.raises(psycopg.Error, match="that isn't it"):
            connect(PostgresAddress.parse(server.url()))
        assert server.told == ["the operator's own"]


@pytest.mark.postgres
@pytest.mark.usefixtures("kept")
def test_a_server_that_asks_for_a_proof_gets_it(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with postgres.database() as name:
        connect(PostgresAddress.parse(postgres.url(name, password=False))).close()
        monkeypatch.setenv("PGPASSWORD", "another")
        with pytest.raises(psycopg.Error, match="password authentication failed"):
            connect(PostgresAddress.parse(postgres.url(name, password=False)))


@pytest.mark.parametrize(
    "options",
    ["?require_auth=password", "?schema=a&require_auth=", "?x=?require_auth=md5", "?require%5fauth=md5"],
)
def test_no_spec_says_otherwise(options: str) -> None:
    url = f"postgresql://db.example/a{options}"
    for field, spec in (
        ("spec.storage", {"storage": {"blob": "s3://b/x", "consensus": url}}),
        ("spec.stash", {"stash": {"url": url}}),
    ):
        found = resolve(
            CatalogSpec.model_validate({"organizationId": "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01", **spec}),
            "ns",
            None,
        )
        assert isinstance(found, RefusedLocation)
        assert found.reason is Reason.LOCATION_NOT_ALLOWED
        assert found.message.startswith(f"{field} has the option require_auth")


def test_what_else_a_database_is_called_is_no_option() -> None:
    spec = {"storage": {"blob": "s3://b/x", "consensus": "postgresql://h/require_auth=?sslmode=require"}}
    found = resolve(
        CatalogSpec.model_validate({"organizationId": "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01", **spec}),
        "ns",
        None,
    )
    assert isinstance(found, Storage)


def test_what_the_environment_requires_already_stays() -> None:
    environ = {"PGREQUIREAUTH": "gss"}
    own_password.keep(environ)
    assert environ == {"PGREQUIREAUTH": "gss"}


def test_a_libpq_that_would_tell_it_is_refused() -> None:
    environ: dict[str, str] = {}
    with pytest.raises(ValueError, match="libpq 15 would send the operator's password to every server"):
        own_password.keep(environ, 150006)
    own_password.keep(environ, 160000)
    assert environ == {"PGREQUIREAUTH": PROOF}
