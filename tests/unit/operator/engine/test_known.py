"""A state that is older than one that was seen or written is never used."""

import asyncio
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast_operator.api.names import ANNOTATION_COMPACT
from holdfast_operator.engine.followed import METADATA, FollowedObjects
from holdfast_operator.engine.known import KnownObjects, are_current, reading, version_of
from holdfast_operator.engine.kube import Conflict, Gone, Kube, ResourceType, resource_type
from unit.operator.engine.oneobject import KEY, Json, OneObject

JOBS = ResourceType("batch", "v1", "jobs")


def body(version: int, name: str = "demo", **labels: str) -> Json:
    metadata = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}, "spec": {"at": version}}


def following() -> KnownObjects[str]:
    known: KnownObjects[str] = KnownObjects()
    known.follow(lambda: True)
    return known


def at(known: KnownObjects[str]) -> int | None:
    found = known.get("it")
    return None if found is None else found["spec"]["at"]


def test_an_object_never_goes_back() -> None:
    known = following()
    assert [known.put("it", body(version)) for version in (3, 2, 3, 5, 4)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert at(known) == 5
    known.drop("it", body(4))
    assert at(known) == 5, "it was created again"
    known.drop("it", body(6))
    assert at(known) is None
    # A response that was under way when it was deleted.
    assert known.learn("it", body(5), 0.0) is None
    assert not known.put("it", body(6))
    assert known.put("it", body(7))
    assert at(known) == 7


def test_an_object_that_was_read_while_a_watch_was_down_does_not_go_back() -> None:
    known = following()
    known.put("it", body(5))
    known.follow(lambda: False)
    assert known.learn("it", body(10), 0.0) == body(10)
    known.follow(lambda: True)
    # The watch works again, and its events are late.
    assert at(known) == 10


def test_nothing_is_known_while_nothing_is_followed_or_in_doubt() -> None:
    known = following()
    known.put("it", body(3))
    known.follow(lambda: False)
    assert at(known) is None
    known.follow(lambda: True)
    known.doubt("it")
    assert at(known) is None
    known.put("it", body(3), asked=1.0)
    assert at(known) == 3
    known.doubt_all()
    assert at(known) is None
    assert known.put("it", body(1)), "of an older history"


def test_what_nobody_reads_is_not_kept() -> None:
    known = following()
    large = body(3)
    large["metadata"] |= {"managedFields": [1], "annotations": {ANNOTATION_COMPACT: "b", "a": "b"}}
    large["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
    known.put("it", large)
    found = known.get("it")
    assert found is not None
    assert found["metadata"]["annotations"] == {ANNOTATION_COMPACT: "b"}
    assert "managedFields" not in found["metadata"]


class Counting(OneObject):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked: list[str] = []
        self.known.follow(lambda: True)

    async def request(self, method: str, path: str, *, query: Any = None, body: Json | None = None) -> Json:
        self.asked.append(method)
        return await super().request(method, path, query=query, body=body)


def test_a_write_is_there_at_once_and_a_late_event_changes_nothing() -> None:
    server = Counting()

    async def story() -> None:
        before = await server.get(KEY)
        written = await server.patch_status(KEY, {"status": {"upper": 1}})
        server.known.put(KEY, before)
        assert (await server.get(KEY))["status"] == {"upper": 1} == written["status"]
        assert server.asked == ["GET", "PATCH"]

    asyncio.run(story())


def test_after_a_conflict_it_is_read_again() -> None:
    server = Counting()

    async def story() -> None:
        await server.get(KEY)
        server.metadata["resourceVersion"] = "9"
        server.refusals = [Conflict("it has changed")]
        change = {"metadata": {"resourceVersion": "1"}}
        with pytest.raises(Conflict):
            await server.patch(resource_type(KEY.kind), KEY.namespace, KEY.name, change)
        assert (await server.get(KEY))["metadata"]["resourceVersion"] == "9"

    asyncio.run(story())
    assert server.asked == ["GET", "PATCH", "GET"]


def test_what_decided_is_confirmed_unless_a_response_has_just_shown_it() -> None:
    server = Counting()
    clock = [100.0]
    server.known._now = lambda: clock[0]

    async def decide() -> bool:
        with reading() as reads:
            await server.get(KEY)
        return await are_current(reads)

    async def story() -> None:
        assert await decide(), "it was read a moment ago"
        assert server.asked == ["GET"]
        clock[0] += 2.0
        assert await decide()
        assert server.asked == ["GET", "GET"], "once, to be certain"
        clock[0] += 2.0
        server.metadata["resourceVersion"] = "9"
        assert not await decide(), "somebody has changed it, and no event has come yet"
        assert await decide(), "now it is known"
        clock[0] += 2.0
        server.metadata |= {"finalizers": [], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        assert not await decide(), "it is gone"

    asyncio.run(story())


def test_what_was_known_is_confirmed_after_the_watches_went_down() -> None:
    server = Counting()

    async def story() -> None:
        with reading() as reads:
            await server.get(KEY)
        server.known.follow(lambda: False)
        assert await are_current(reads)
        server.metadata["resourceVersion"] = "9"
        assert not await are_current(reads)

    asyncio.run(story())
    assert server.asked == ["GET", "GET", "GET"]


def test_a_response_replaces_what_an_old_watch_delivered_without_new_fields() -> None:
    server = Counting()
    less = {"metadata": dict(server.metadata), "spec": {}, "status": {"upper": 0}}
    server.status = {"upper": 0, "newer": 1}
    server.known.put(KEY, less)

    async def story() -> None:
        with reading() as reads:
            assert (await server.get(KEY))["status"] == {"upper": 0}
        assert not await are_current(reads), "it has the same version, but more fields"
        assert (await server.get(KEY))["status"] == {"upper": 0, "newer": 1}

    asyncio.run(story())
    assert server.asked == ["GET"]


class Listing(Kube):
    """An API server with Jobs."""

    def __init__(self, *jobs: Json) -> None:
        super().__init__(ApiClient())
        self.jobs, self.lists = list(jobs), 0

    async def request(
        self, method: str, path: str, *, query: Any = None, body: Json | None = None, keep: Any = None
    ) -> Json:
        if method == "POST":
            assert body is not None
            self.jobs.append(body)
            return body
        self.lists += 1
        return {"items": list(map(keep, self.jobs)), "metadata": {"resourceVersion": "50"}}


def test_followed_objects_are_selected_in_memory_and_confirmed_by_a_list() -> None:
    server = Listing()
    followed = server.followed[JOBS, None] = FollowedObjects("of=us")
    followed.replace([body(1, "a", of="us", it="x"), body(2, "b", of="us", it="y")], 10, None, "of=us")
    server.jobs = [body(1, "a", of="us", it="x")]

    async def names(labels: str) -> list[str]:
        return [each["metadata"]["name"] for each in await server.list(JOBS, "ns", labels=labels)]

    async def story() -> None:
        assert await names("of=us,it=x") == ["a"], "it is listed until the first list is complete"
        assert server.lists == 1
        followed.synced = True
        assert [await names("of=us,it=x"), await names("of=us")] == [["a"], ["a", "b"]]
        assert server.lists == 1
        await names("it=x")
        assert server.lists == 2, "the others have not this label"
        with reading() as reads:
            await names("of=us,it=x")
        assert await are_current(reads)
        made = body(20, "c", of="us", it="x")
        await server.create(JOBS, "ns", made)
        assert await names("of=us,it=x") == ["a", "c"], "before any event"
        server.jobs = []
        with reading() as reads:
            await names("of=us,it=x")
        assert not await are_current(reads)
        assert await names("of=us,it=x") == []

    asyncio.run(story())


def test_a_followed_object_never_goes_back() -> None:
    followed = FollowedObjects("of=us")
    assert [followed.put(body(v, of="us")) for v in (3, 2, 3, 5)] == [True, False, False, True]
    assert not followed.drop(body(4))
    assert followed.drop(body(6))
    assert not followed.put(body(6, of="us"))
    # What is newer than a list isn't gone because the list lacks it.
    assert followed.put(body(12, of="us"))
    assert followed.replace([], 11, None, "of=us") == []
    (gone,) = followed.replace([], 12, None, "of=us")
    assert version_of(gone) == 12


def test_of_a_followed_object_only_what_is_read_is_kept_and_its_owner_finds_it() -> None:
    kept = {"metadata": {**METADATA, "labels": {"it": None}}, "status": {"state": None, "each": {"a": None}}}
    followed = FollowedObjects("of=us", kept, ["it"])
    status = {"state": {"x": 1}, "each": [{"a": 1, "b": 2}, {"b": 3}], "log": "long"}
    for version, name, it in ((1, "a", "x"), (2, "b", "y"), (3, "c", "x")):
        assert followed.put({**body(version, name, of="us", it=it), "status": status})

    def found(it: str) -> list[str]:
        return [each["metadata"]["name"] for each in followed.select("ns", f"of=us,it={it}")]

    assert [found("x"), found("y"), found("z")] == [["a", "c"], ["b"], []]
    assert followed.select("elsewhere", "of=us,it=x") == []
    one = followed.with_uid("u-a") or {}
    assert one["status"] == {"state": {"x": 1}, "each": [{"a": 1}, {}]}
    assert "spec" not in one
    assert one["metadata"]["labels"] == {"it": "x"}
    # It is deleted and created again for another owner, and nobody has noticed that it was gone.
    again = body(4, "a", of="us", it="y")
    again["metadata"]["uid"] = "another"
    assert followed.put(again)
    assert [found("x"), found("y")] == [["c"], ["b", "a"]]
    assert followed.with_uid("u-a") is None
    assert [each["metadata"]["name"] for each in followed.replace([], 9, "ns", "of=us,it=y")] == ["b", "a"]
    assert [found("x"), found("y")] == [["c"], []]
    assert followed.drop(body(10, "c"))
    assert len(followed.select(None, "of=us")) == 0


def test_an_object_that_is_gone_is_asked_for() -> None:
    server = Counting()
    server.metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    async def story() -> None:
        for _ in range(2):
            with pytest.raises(Gone):
                await server.get(KEY)

    asyncio.run(story())
    assert server.asked == ["GET", "GET"]
