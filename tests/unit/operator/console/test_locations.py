"""Which locations the console opens, and who may see those that several namespaces name."""

import asyncio
import base64
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast.errors import StoreUnreachable
from holdfast.persist import PersistClient
from holdfast_operator.api.names import Kind
from holdfast_operator.console import locations as module
from holdfast_operator.console.locations import CatalogPlace, Locations
from holdfast_operator.console.resources import NotListed, Resources
from holdfast_operator.engine.kube import Gone, Kube, resource_type

Json = dict[str, Any]


class Api(Kube):
    """An API server that has Secrets, and whose watches show some Catalogs."""

    def __init__(self) -> None:
        super().__init__(ApiClient())
        self.secrets: dict[tuple[str, str], Json] = {}
        self.secrets_read = 0

    async def get_of(self, type_: Any, namespace: str, name: str) -> Json:
        self.secrets_read += 1
        if (found := self.secrets.get((namespace, name))) is None:
            raise Gone(name)
        return found


class Seen:
    """The Catalogs of a cluster, with the places that are made of them."""

    def __init__(self, volume: Path, *allowed: str) -> None:
        self.api = Api()
        self.resources = Resources(self.api)
        self.now = 0.0
        self.volume = volume
        self.locations = Locations(
            self.api, self.resources, data_dir=volume, allowed=allowed, clock=lambda: self.now
        )
        self._followed = self.api.followed[resource_type(Kind.CATALOG), None]
        self._version = 0

    def put(self, namespace: str, name: str, *, opened: bool = False, **storage: Any) -> None:
        """Adds or replaces a Catalog. `opened`: the operator has opened its location."""
        self._version += 1
        body = {
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": f"{namespace}/{name}",
                "generation": self._version,
                "resourceVersion": str(self._version),
            },
            **({"status": {"shardId": "s1"}} if opened else {}),
            "spec": {"organizationId": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "storage": storage},
        }
        self._followed.put(body)
        self._followed.synced = True
        self.resources._version += 1

    def drop(self, namespace: str, name: str) -> None:
        (body,) = (
            each for each in self._followed.select(namespace, None) if each["metadata"]["name"] == name
        )
        self._followed.drop(body)
        self.resources._version += 1

    async def settle(self) -> dict[str, str]:
        """The namespaces by place, once everything that can be opened is open."""
        deadline = time.monotonic() + 20
        while True:
            await self.locations.refresh()
            if all(last[1].done() for last in self.locations._opening.values()):
                await self.locations.refresh()
                return {name: place.namespace for name, place in self.locations.items()}
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    def place(self, name: str) -> CatalogPlace:
        found = self.locations[name]
        assert isinstance(found, CatalogPlace)
        return found


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path / "volume")


def make(folder: Path) -> str:
    """A location in a folder."""
    PersistClient.open(folder.as_uri()).close()
    return folder.as_uri()


def test_each_catalog_has_a_place_that_only_reads(seen: Seen, tmp_path: Path) -> None:
    url = make(tmp_path / "store")

    async def story() -> None:
        with pytest.raises(NotListed):
            seen.resources.all(Kind.CATALOG)
        await seen.locations.refresh()
        assert not seen.locations
        seen.put("a", "demo", url=url)
        assert await seen.settle() == {"a.demo": "a"}
        assert seen.place("a.demo").client.mode == "read"
        seen.drop("a", "demo")
        assert await seen.settle() == {}

    asyncio.run(story())


@pytest.mark.parametrize("alias", [lambda folder: folder, lambda folder: folder.parent / "link"])
def test_a_location_of_two_namespaces_is_for_those_who_see_both(
    seen: Seen, tmp_path: Path, alias: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "store"
    url = make(folder)
    (tmp_path / "link").symlink_to(folder)
    make(tmp_path / "own")

    async def story() -> None:
        seen.put("a", "demo", url=url)
        seen.put("b", "thief", url=alias(folder).as_uri())
        seen.put("b", "own", url=(tmp_path / "own").as_uri())
        assert await seen.settle() == {"a.demo": "a,b", "b.thief": "a,b", "b.own": "b"}
        seen.drop("b", "thief")
        assert await seen.settle() == {"a.demo": "a", "b.own": "b"}

    asyncio.run(story())


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_catalog_that_cannot_open_a_location_hides_and_shows_nothing(
    seen: Seen, tmp_path: Path, order: str
) -> None:
    url = make(tmp_path / "store")

    async def story() -> None:
        for namespace in order:
            # The Secret that b names does not exist.
            named: Json = {"credentialsSecretRef": {"name": "none"}} if namespace == "b" else {}
            seen.put(namespace, "demo", url=url, **named)
        assert await seen.settle() == {"a.demo": "a"}
        assert seen.place("a.demo").client is not None

    asyncio.run(story())


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_location_that_does_not_open_for_a_catalog_is_not_shared(
    seen: Seen, tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, opens = make(tmp_path / "store"), CatalogPlace.open
    monkeypatch.setattr(
        CatalogPlace, "open", lambda place: opens(place) if place.catalog.namespace == "a" else None
    )

    async def story() -> None:
        for namespace in order:
            seen.put(namespace, "demo", url=url)
        found = await seen.settle()
        assert found["a.demo"] == "a"
        # The place that has no client is for those who may see the location.
        assert found["b.demo"] == "a,b"
        with pytest.raises(StoreUnreachable):
            _ = seen.place("b.demo").client

    asyncio.run(story())


@pytest.mark.parametrize("alias", [lambda folder: folder, lambda folder: folder.parent / "link"])
def test_a_location_stays_shared_while_the_secret_of_one_is_missing(
    seen: Seen, tmp_path: Path, alias: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "store"
    url = make(folder)
    (tmp_path / "link").symlink_to(folder)

    async def story() -> None:
        seen.api.secrets["a", "stores"] = secret("id", "one")
        seen.put("a", "demo", url=url, credentialsSecretRef={"name": "stores"})
        assert await seen.settle() == {"a.demo": "a"}
        del seen.api.secrets["a", "stores"]
        seen.now += module._SECRETS_SECONDS
        assert await seen.settle() == {}
        seen.put("b", "demo", url=alias(folder).as_uri())
        assert await seen.settle() == {"b.demo": "a,b"}
        # A Catalog that names another location has nothing to do with this one.
        seen.put("a", "demo", url=make(tmp_path / "other"))
        assert await seen.settle() == {"a.demo": "a", "b.demo": "b"}

    asyncio.run(story())


def test_pages_get_no_client_before_it_is_known_who_shares_the_location(seen: Seen, tmp_path: Path) -> None:
    url = make(tmp_path / "store")

    async def story() -> None:
        seen.put("a", "demo", url=url)
        await seen.locations.refresh()
        place = seen.place("a.demo")
        seen.locations._opening["a.demo"][1].result()
        assert place.found_id is not None
        with pytest.raises(StoreUnreachable, match="is being opened"):
            _ = place.client
        await seen.locations.refresh()
        assert place.client is not None

    asyncio.run(story())


def test_what_the_operator_may_not_open_is_not_opened(tmp_path: Path) -> None:
    inside, outside = make(tmp_path / "in" / "a"), make(tmp_path / "out")
    seen = Seen(tmp_path / "volume", f"{(tmp_path / 'in').as_uri()}/{{namespace}}")

    async def story() -> None:
        seen.put("a", "good", url=inside)
        seen.put("a", "bad", url=outside)
        seen.put("b", "bad", url=inside)
        assert await seen.settle() == {"a.good": "a"}

    asyncio.run(story())


def test_the_default_is_the_folder_of_the_namespace_on_the_volume(seen: Seen) -> None:
    organization = str(uuid.uuid5(uuid.NAMESPACE_DNS, "demo"))
    make(seen.volume / "a" / organization)

    async def story() -> None:
        seen.put("a", "demo")
        seen.put("b", "demo")
        assert await seen.settle() == {"a.demo": "a", "b.demo": "b"}
        assert seen.place("a.demo").client is not None
        with pytest.raises(StoreUnreachable, match="does not exist"):
            _ = seen.place("b.demo").client

    asyncio.run(story())


def test_a_place_that_could_not_be_opened_is_tried_again(seen: Seen) -> None:
    async def story() -> None:
        seen.put("a", "demo")
        await seen.settle()
        make(seen.volume / "a" / str(uuid.uuid5(uuid.NAMESPACE_DNS, "demo")))
        await seen.settle()
        with pytest.raises(StoreUnreachable):
            _ = seen.place("a.demo").client
        seen.now += module._RETRY_SECONDS
        await seen.settle()
        assert seen.place("a.demo").client is not None

    asyncio.run(story())


def secret(key: str, value: str) -> Json:
    data = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": value}
    return {
        "metadata": {"name": "stores", "resourceVersion": value},
        "data": {name: base64.b64encode(each.encode()).decode() for name, each in data.items()},
    }


def test_a_changed_secret_replaces_the_place_and_a_missing_one_removes_it(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatalogPlace, "open", lambda _: None)

    async def story() -> None:
        seen.api.secrets["a", "stores"] = secret("id", "first-secret")
        seen.put("a", "demo", url="s3://bucket/x", credentialsSecretRef={"name": "stores"})
        await seen.settle()
        first = seen.place("a.demo")
        assert first.secrets == {"id", "first-secret"}
        assert "secret" not in first.url
        seen.put("a", "other", url="s3://bucket/y")
        await seen.settle()
        assert (seen.place("a.demo"), seen.api.secrets_read) == (first, 1)
        seen.api.secrets["a", "stores"] = secret("id", "second-secret")
        seen.now += module._SECRETS_SECONDS
        await seen.settle()
        assert seen.place("a.demo").secrets == {"id", "second-secret"}
        del seen.api.secrets["a", "stores"]
        seen.now += module._SECRETS_SECONDS
        assert list(await seen.settle()) == ["a.other"]
        # Nobody knows yet that a has opened the location.
        seen.put("b", "demo", url="s3://bucket/x")
        assert (await seen.settle())["b.demo"] == "b"
        # The operator has.
        seen.put("a", "demo", opened=True, url="s3://bucket/x", credentialsSecretRef={"name": "stores"})
        assert (await seen.settle())["b.demo"] == "a,b"

    asyncio.run(story())
