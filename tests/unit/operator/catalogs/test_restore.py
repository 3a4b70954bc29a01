"""The sources of a new catalog: good ones, and bad ones that leave nothing behind."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode, persist_catalog
from holdfast.catalog.objects.registry import SYSTEM_CONFIGURATIONS
from holdfast.collections.snapshots.locate import folder_at
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.catalogs.facts import Opening, RestoreFailed
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.engine.failures import settled
from holdfast_operator.places.credentials import Credentials
from holdfast_operator.places.storage import (
    CatalogSource,
    DumpSource,
    RefusedLocation,
    RestoreSource,
    Storage,
    resolve_restore,
)
from testbed.minio import Minio

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
WHO = {"holder": "test", "purpose": "source"}


def put(catalog: Catalog, name: str) -> None:
    with catalog.transaction() as tx:
        tx.insert(
            SYSTEM_CONFIGURATIONS,
            pb.SystemConfigurationKey(name=name),
            pb.SystemConfigurationValue(value="x"),
        )
        catalog.commit_transaction(tx)


def names(url: str, organization: str) -> set[str]:
    with PersistClient.open(url, mode="read", config=PersistConfig(maintenance="off")) as client:
        catalog = persist_catalog(client, organization).open(OpenMode.READ_ONLY)
        return {each.key.name for each in catalog.objects(SYSTEM_CONFIGURATIONS)}


class Source:
    """A catalog with the configurations `early` and, at a later time, `late`; and its dump of then."""

    def __init__(self, folder: Path) -> None:
        self.url = (folder / "source").as_uri()
        with PersistClient.open(self.url) as client:
            closed = persist_catalog(client, OTHER)
            with closed.open(OpenMode.WRITABLE, **WHO) as catalog:  # type: ignore[call-overload]
                put(catalog, "early")
                self.early = catalog.upper - 1
                put(catalog, "late")
            self.dump = closed.dump()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    """Of a catalog that isn't there yet."""
    storage = Storage(url=(tmp_path / "new").as_uri())
    return Opening(storage, ORGANIZATION, 3, "default", ("unwanted",), "me", "test")


def open_from(opening: Opening, restore: RestoreSource) -> OpenCatalog:
    return OpenCatalog.open(replace(opening, restore=restore))


def test_a_dump_is_what_the_new_catalog_holds(opening: Opening, source: Source, tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(source.dump)
    restore = DumpSource((tmp_path / "dump.json").as_uri())
    opened = open_from(opening, restore)
    assert opened.start.restored.endswith(f"rows of dump {restore.url}")
    facts = opened.confirm()
    # One append for the contents, one for the open; the generation is ours, not the source's.
    assert (facts.epoch, facts.deploy_generation, facts.upper) == (2, 3, 2)
    assert dict(facts.object_counts)["roles"] == 1
    opened.close()
    assert opening.storage.url is not None
    assert names(opening.storage.url, ORGANIZATION) == {"early", "late"}


@pytest.mark.s3
def test_a_dump_in_a_bucket_is_read_with_the_credentials_of_the_catalog(
    opening: Opening, source: Source, minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"s3://{bucket}/dumps"
    folder_at(f"{folder}?endpoint={minio.endpoint}").create("dump.json", source.dump.encode())
    own = {name: minio.credentials[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for name in own:
        monkeypatch.setenv(name, "of-somebody-else")
    asked = replace(opening, restore=DumpSource(f"{folder}/dump.json?endpoint={minio.endpoint}"))
    with pytest.raises(RestoreFailed):
        OpenCatalog.open(asked)
    opened = OpenCatalog.open(asked, Credentials(storage=own))
    assert opened.start.restored
    # It reads snapshots with them too.
    assert opened.s3 == own
    opened.close()


@pytest.mark.parametrize("early", [True, False])
def test_another_catalog_is_copied_as_it_was(opening: Opening, source: Source, early: bool) -> None:
    as_of = source.early if early else None
    open_from(opening, CatalogSource(Storage(url=source.url), OTHER, as_of)).close()
    assert opening.storage.url is not None
    assert names(opening.storage.url, ORGANIZATION) == ({"early"} if early else {"early", "late"})


def test_a_catalog_that_is_there_is_left_as_it_is(opening: Opening, source: Source) -> None:
    OpenCatalog.open(opening).close()
    opened = open_from(opening, CatalogSource(Storage(url=source.url), OTHER, None))
    assert opened.start.restored == ""
    assert dict(opened.confirm().object_counts)["roles"] == 2
    opened.close()
    # Not even looked at.
    open_from(opening, DumpSource("file:///nowhere/at/all")).close()


BAD: dict[str, str | bytes] = {
    "no JSON": "hello",
    "cut off": '{"config": [',
    "not whole": "{}",
    "no text": b"\xff\xfe\x00",
    "two lines": "{\n\n\nplanted\n",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_bad_dump_makes_nothing(opening: Opening, tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "dump.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RestoreFailed) as failed:
        open_from(opening, DumpSource(path.as_uri()))
    assert "\n" not in str(failed.value)
    assert "planted" not in str(failed.value)
    assert not (tmp_path / "new").exists()
    step = settled(failed.value)
    assert (step.health.reason, step.retry) == ("RestoreFailed", True)
    assert "correct spec.restoreFrom" in step.health.message


def test_a_dump_whose_objects_contradict_each_other_makes_nothing(
    opening: Opening, source: Source, tmp_path: Path
) -> None:
    row = '{"key": {"name": "early"}, "value": {"value": "x"}}'
    assert row in source.dump
    (tmp_path / "dump.json").write_text(source.dump.replace(row, f"{row},\n    {row}"))
    with pytest.raises(RestoreFailed, match="twice"):
        open_from(opening, DumpSource((tmp_path / "dump.json").as_uri()))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("source_of", "said"),
    [
        (lambda s, _: CatalogSource(Storage(url=s.url), OTHER, 10_000), "as_of 10000 is not complete"),
        (lambda s, _: CatalogSource(Storage(url=s.url), ORGANIZATION, None), "has no catalog of"),
        (lambda _, f: CatalogSource(Storage(url=f"file://{f}/none"), OTHER, None), "doesn't exist"),
        (lambda _, __: CatalogSource(Storage(url="gopher://x"), OTHER, None), "gopher"),
        (lambda _, f: DumpSource(f"file://{f}/missing.json"), "No such file"),
        (lambda _, __: DumpSource("file://etc/passwd"), "must have an absolute path"),
        (lambda _, __: DumpSource("s3://bucket"), "names no object"),
    ],
)
def test_what_can_not_be_read_is_named(
    opening: Opening, source: Source, tmp_path: Path, source_of: object, said: str
) -> None:
    assert callable(source_of)
    with pytest.raises(RestoreFailed) as failed:
        open_from(opening, source_of(source, tmp_path))
    assert said in str(failed.value)
    assert "root:" not in str(failed.value)
    assert not (tmp_path / "new").exists()


def test_nothing_is_restored_only_to_be_destroyed(opening: Opening, source: Source, tmp_path: Path) -> None:
    restore = CatalogSource(Storage(url=source.url), OTHER, None)
    with pytest.raises(HoldfastError, match=ORGANIZATION):
        OpenCatalog.open(replace(opening, restore=restore, existing_only=True))


def spec(**fields: object) -> CatalogSpec:
    return CatalogSpec.model_validate({"organizationId": ORGANIZATION, **fields})


def test_where_it_comes_from() -> None:
    volume = Path("/volume")
    here = {"storage": {"url": "file:///here"}}
    copy = {"catalog": {"organizationId": OTHER}}
    assert resolve_restore(spec(), "ns", volume) is None
    dump = spec(restoreFrom={"dump": {"url": "s3://b/d.json"}})
    assert resolve_restore(dump, "ns", volume) == DumpSource("s3://b/d.json")
    beside = resolve_restore(spec(restoreFrom=copy), "ns", volume)
    assert beside == CatalogSource(Storage(url=f"file:///volume/ns/{OTHER}"), OTHER, None)
    same = resolve_restore(spec(**here, restoreFrom=copy), "ns", volume)
    assert same == CatalogSource(Storage(url="file:///here"), OTHER, None)
    secrets = {"credentialsSecretRef": {"name": "keys"}}
    for storage in (secrets, here["storage"] | secrets):
        mine = resolve_restore(spec(storage=storage, restoreFrom=copy), "ns", volume)
        assert isinstance(mine, CatalogSource)
        assert mine.storage.secret == "keys"
    far = {"catalog": {"organizationId": OTHER, "asOf": 7, "storage": {"url": "file:///far"}}}
    found = resolve_restore(spec(**here, restoreFrom=far), "ns", volume)
    assert found == CatalogSource(Storage(url="file:///far"), OTHER, 7)
    assert isinstance(resolve_restore(spec(restoreFrom=copy), "ns", None), RefusedLocation)
