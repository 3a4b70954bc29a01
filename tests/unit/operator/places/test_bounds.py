"""Where an operator may keep catalogs: only below a place, even if another path looks like it."""

from pathlib import Path

import pytest

from holdfast_operator.__main__ import _parser
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.places.bounds import Bounds, check_place, shared_beside
from holdfast_operator.places.storage import DumpSource, RefusedLocation, Storage, resolve, resolve_restore

ORGANIZATION = "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01"
PLACES = (
    "s3://shared/team-a",
    "file:///data/a",
    "postgresql://db.example/team_a",
    "s3://own?endpoint=http://minio:9000",
    "postgresql://db.example/shared?schema=team_a",
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
        "s3://own/x?endpoint=http%3A%2F%2Fminio%3A9000&region=x",
        "postgresql://db.example:5432/shared?schema=team_a",
    ],
)
def test_what_is_below_a_place_is_in_it(url: str) -> None:
    assert Bounds("ns", None, PLACES).refusal(url) == ""


@pytest.mark.parametrize("part", ["{ns}", "{Namespace}", "{{namespace}}", "{", "namespace}"])
def test_a_placeholder_that_is_none_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--allow-location", f"s3://bucket/{part}"])
    assert "the only placeholder is {namespace}" in capsys.readouterr().err


def test_a_place_may_be_each_namespaces_own() -> None:
    place = check_place("s3://bucket/holdfast/{namespace}")
    mine, theirs = (Bounds(each, None, (place,)) for each in ("mine", "theirs"))
    for url in ("s3://bucket/holdfast/mine", "s3://bucket/holdfast/mine/a"):
        assert mine.refusal(url) == ""
        assert "is outside of where" in theirs.refusal(url)
    for url in ("s3://bucket/holdfast/{namespace}", "s3://bucket/holdfast/mine2", "s3://bucket/holdfast"):
        assert "is outside of where" in mine.refusal(url)


def test_a_schema_may_be_each_namespaces_own() -> None:
    place = check_place("postgresql://h/db?schema=own_{namespace}")
    bounds = {each: Bounds(each, None, (place,)) for each in ("team-a", "team", "a")}
    for name, schema in (("team-a", "own_team_a"), ("team", "own_team"), ("a", "own_a")):
        inside = {
            each for each, there in bounds.items() if not there.refusal(f"postgresql://h/db?schema={schema}")
        }
        assert inside == {name}
    assert bounds["a"].refusal("postgresql://h/db")


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        ((), ()),
        (("s3://b/{namespace}",), ()),
        (("s3://b/{namespace}", "s3://dumps"), ()),
        (("s3://b", "postgresql://h/db"), ()),
        (("s3://b/{namespace}", "postgresql://h/{namespace}"), ()),
        (("s3://b/{namespace}", "postgresql://h/db?schema={namespace}"), ()),
        (("s3://b/{namespace}", "postgresql://h/db"), ("postgresql://h/db",)),
        (("s3://b/{namespace}", "postgresql://h/{namespace}", "postgres://h/db"), ("postgres://h/db",)),
        (("file:///b", "postgresql://h/{namespace}"), ("file:///b",)),
        (("file:///b/{namespace}", "sqlite:///c"), ("sqlite:///c",)),
    ],
)
def test_places_of_which_one_kind_is_shared_are_told(
    places: tuple[str, ...], shared: tuple[str, ...]
) -> None:
    assert shared_beside(places) == shared


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
        "s3://own/x?endpoint=http://minio:9000/other",
        "s3://own/x?endpoint=http://minio:9000/?x",
        "s3://own/x?endpoint=http:%252F%252Fminio:9000",
        "postgresql://db.example/shared",
        "postgresql://db.example/shared?schema=team_b",
        "postgresql://db.example/shared?schema=TEAM_A",
        "postgresql://db.example/shared?schema=team_a&schema=team_b",
        "postgresql://db.example/shared?options=-csearch_path%3Dteam_a",
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
    for source in (True, False):
        assert "--allow-location" in Bounds("ns", None, PLACES).refusal(url, source=source)
    assert Bounds("ns").refusal(url) == ""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The folder of an operator, with those of the namespaces ns and other, and links to the latter."""
    for name in ("ns", "other"):
        (tmp_path / "volume" / name).mkdir(parents=True)
    (tmp_path / "volume" / "ns" / "link").symlink_to(tmp_path / "volume" / "other")
    (tmp_path / "back").symlink_to(tmp_path)
    return tmp_path / "volume"


FOREIGN = (
    "file://{volume}/other/c",
    "file://{volume}/other",
    "file://{volume}/nsx/c",
    "file://{volume}/ns/../other/c",
    "file://{volume}/ns/%2e%2e/other/c",
    "file://{volume}//ns/link/c",
    "FILE://{volume}/other/c",
    "sqlite://{volume}/other/c/consensus.sqlite",
    "file://{volume}",
    "file://{volume}/..",
    "file:///",
    "file://{volume}/../back/volume/other/c",
    "file:///proc/self/root{volume}/other/c",
)


@pytest.mark.parametrize("places", [(), PLACES])
@pytest.mark.parametrize("url", FOREIGN)
def test_the_folder_of_another_namespace_is_nobody_elses(
    volume: Path, url: str, places: tuple[str, ...]
) -> None:
    bounds = Bounds("ns", volume, places)
    for source in (True, False):
        told = bounds.refusal(url.format(volume=volume), source=source)
        assert f"this namespace has only what is below {volume}/ns; move it there" in told
    place = f"file://{volume}/other"
    if "/other" in url:
        assert Bounds("ns", volume, (*places, place)).refusal(f"{place}/c", source=True) == ""


@pytest.mark.parametrize("places", [(), PLACES])
@pytest.mark.parametrize(
    "url", ["file://{volume}/ns/c", "sqlite://{volume}/ns/stash", "file://{volume}/../back/volume/ns/c"]
)
def test_a_namespace_has_what_is_in_its_folder(volume: Path, url: str, places: tuple[str, ...]) -> None:
    for source in (True, False):
        assert Bounds("ns", volume, places).refusal(url.format(volume=volume), source=source) == ""


def test_a_link_leads_out_of_a_place_too(volume: Path, tmp_path: Path) -> None:
    place = (f"file://{volume}/ns",)
    assert Bounds("ns", None, place).refusal(f"file://{volume}/ns/c") == ""
    assert Bounds("ns", None, place).refusal(f"file://{volume}/ns/link/c")
    assert Bounds("ns", None, (f"file://{tmp_path}/back",)).refusal(f"file://{volume}/ns/c") == ""


def test_a_file_elsewhere_may_be_written_to_and_is_no_source(volume: Path) -> None:
    bounds = Bounds("ns", volume)
    assert bounds.refusal("file:///etc/x") == ""
    assert f"has to be below {volume}/ns, or in s3://" in bounds.refusal("file:///etc/passwd", source=True)
    assert "has to be in s3://" in Bounds("ns").refusal("file:///etc/passwd", source=True)


def test_what_may_not_wait_for_a_file_system_compares_names(volume: Path) -> None:
    bounds = Bounds("ns", volume, follow=False)
    assert bounds.refusal(f"file://{volume}/other/c")
    assert bounds.refusal(f"file://{volume}/ns/../other/c")
    assert bounds.refusal(f"file://{volume}/ns/link/c") == ""


def spec(**fields: object) -> CatalogSpec:
    return CatalogSpec.model_validate({"organizationId": ORGANIZATION, **fields})


def refused(found: object) -> str:
    assert isinstance(found, RefusedLocation)
    assert found.reason is Reason.LOCATION_NOT_ALLOWED
    return found.message.partition(" is ")[0]


def test_a_catalog_is_refused_with_the_field_that_is_foreign() -> None:
    inside, volume = {"url": "s3://shared/team-a/c"}, Path("/volume")
    assert resolve(spec(storage=inside), "ns", None, PLACES) == Storage(url="s3://shared/team-a/c")
    assert isinstance(resolve(spec(), "ns", volume, PLACES), Storage)
    outside = {"blob": "s3://shared/team-a", "consensus": "postgresql://elsewhere/db"}
    assert refused(resolve(spec(storage=outside), "ns", volume, PLACES)) == "spec.storage"
    stash = {"url": "sqlite:///data/b/stash.db"}
    assert refused(resolve(spec(stash=stash), "ns", volume, PLACES)) == "spec.stash"
    schema = {"url": "postgresql://db.example/shared", "schema": "team_a"}
    assert isinstance(resolve(spec(storage=inside, stash=schema), "ns", volume, PLACES), Storage)
    assert refused(resolve(spec(stash=schema | {"schema": "team_b"}), "ns", volume, PLACES)) == "spec.stash"
    source = {"catalog": {"organizationId": ORGANIZATION, "storage": {"url": "s3://shared/team-b"}}}
    asked = spec(storage=inside, restoreFrom=source)
    assert refused(resolve_restore(asked, "ns", volume, PLACES)) == "spec.restoreFrom.catalog.storage"
    for url in ("s3://shared/team-b/d.json?endpoint=http://127.0.0.1:1", "file:///volume2/d.json"):
        dump = spec(restoreFrom={"dump": {"url": url}})
        assert refused(resolve_restore(dump, "ns", volume, PLACES)) == "spec.restoreFrom.dump"
    mine = spec(restoreFrom={"dump": {"url": "file:///volume/ns/d.json"}})
    assert resolve_restore(mine, "ns", volume, PLACES) == DumpSource("file:///volume/ns/d.json")


def test_a_place_in_which_nothing_can_be_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    told = _parser().parse_args(["run", "--allow-location", "s3://a", "--allow-location=file:///b"])
    assert told.allow_location == ["s3://a", "file:///b"]
    for place in ("gs://a", "team-a", "file:///a/../b"):
        with pytest.raises(SystemExit):
            _parser().parse_args(["run", "--allow-location", place])
        assert f"{place!r} can't be an allowed location" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("postgresql://h/db?sslmode=require", "has the option 'sslmode', which doesn't limit a location"),
        ("s3://b?region=eu", "has the option 'region', which doesn't limit a location"),
        ("file:///a?b=c", "has the option 'b', which doesn't limit a location"),
        ("postgresql://h/db?schema=a-b", "names an invalid schema"),
        ("postgresql://h/db?schema={Namespace}", "names an invalid schema"),
        ("s3://b?endpoint=http://h/other", "can't be an allowed location"),
    ],
)
def test_what_a_place_says_in_vain_is_refused_at_the_start(
    place: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--allow-location", place])
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "error: " in each]
    assert f"{place!r} {told}" in line


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("postgresql://u:geheim@h/db", "postgresql://h/db"),
        ("postgresql://u:x#geheim@h/db", "postgresql://h/db"),
        ("s3://b/x?sk=geheim", "s3://b/x"),
        ("s3://b/x#geheim", "s3://b/x"),
    ],
)
def test_a_place_with_a_password_is_refused_at_the_start(
    place: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--allow-location", place])
    told = capsys.readouterr().err
    assert f"'{shown}' has a user, a password or a '#'" in told
    assert "geheim" not in told


def test_a_path_with_a_nul_is_nowhere(tmp_path: Path) -> None:
    for places in ((), ("file:///",)):
        assert "NUL" in Bounds("ns", tmp_path, places).refusal("file:///a%00b")
