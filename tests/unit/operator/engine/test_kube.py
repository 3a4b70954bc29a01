"""What the operator sends to an API server, and how it reads responses: real HTTP, canned responses."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from urllib3 import Retry

from holdfast_operator.api.names import FIELD_MANAGER, Kind, Reason
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.events import EventSink, Note
from holdfast_operator.engine.known import are_current, reading
from holdfast_operator.engine.kube import (
    SECRETS,
    AdmissionDenied,
    Conflict,
    Exists,
    Expired,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    NotLeading,
    NotServed,
    ObjectKey,
    RetryLater,
    clock_origin,
)
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.status_writer import StatusWriter
from testbed.serving import Serving

KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
BODY = {"metadata": {"resourceVersion": "7", "uid": "u"}, "status": {"upper": 1, "epoch": 2}}
PATH = "/apis/holdfast.dev/v1alpha1/namespaces/ns/catalogs/demo"


class Api:
    """An API server that answers what it is told to, in order, and keeps what it was asked."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.deep = 0
        """How deep the managedFields of each object are nested."""
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, str | None, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                api.asked.append((self.command, self.path, self.headers.get("Content-Type"), body))
                status, answer = api.answers.pop(0)
                content = json.dumps(answer).encode()
                if api.deep:
                    fields = b'{"f:a":' * api.deep + b"{}" + b"}" * api.deep
                    content = content.replace(b'"uid"', b'"managedFields": [%b], "uid"' % fields)
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(content)))
                headers = {"Date": self.date_time_string(), **(api.headers.pop(0) if api.headers else {})}
                for header in headers.items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = serve  # noqa: N815

        self.server = Serving(Handler)
        configuration = Configuration()
        configuration.host = self.server.url
        configuration.retries = Retry(2, respect_retry_after_header=False)
        self.kube = Kube(ApiClient(configuration))

    def run(self, story: Callable[[Kube], Awaitable[Any]]) -> Any:
        return asyncio.run(story(self.kube))  # type: ignore[arg-type]

    def close(self) -> None:
        self.kube.close()
        self.server.close()


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, Forbidden),
        (404, Gone),
        (409, Conflict),
        (410, Expired),
        (422, Invalid),
        (429, KubeError),
        (500, KubeError),
    ],
)
def test_answers_by_meaning(api: Api, status: int, error: type[KubeError]) -> None:
    api.answers = [(status, {"message": "because", "reason": "NotFound"})]
    with pytest.raises(error, match="because") as caught:
        api.run(lambda kube: kube.get(KEY))
    assert type(caught.value) is error
    assert api.asked == [("GET", PATH, "application/json", None)]


QUOTA = 'sparkapplications "a" is forbidden: exceeded quota: team, requested: x=1, used: x=1, limited: x=1'
DOWN = 'Internal error occurred: failed calling webhook "w.example": no endpoints available'
POLICY = "catalogs \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (403, QUOTA, AdmissionDenied),
        (403, 'pods "a" is forbidden: failed quota: team: must specify memory', AdmissionDenied),
        (422, POLICY, AdmissionDenied),
        (403, 'admission webhook "w.example" denied the request: no', AdmissionDenied),
        (400, 'admission webhook "w.example" denied the request without explanation', AdmissionDenied),
        (403, 'catalogs "a" is forbidden: User "u" cannot patch resource "catalogs" in API group', Forbidden),
        (422, 'Catalog "a" is invalid: spec.x: Invalid value: "denied"', Invalid),
        (500, DOWN, AdmissionDenied),
        (500, "etcdserver: request timed out", KubeError),
        (500, "etcdserver: request is too large", Invalid),
        (413, "Request entity too large: limit is 3145728", Invalid),
    ],
)
def test_what_admission_denies_differs_from_a_missing_right(
    api: Api, status: int, message: str, error: type[KubeError]
) -> None:
    api.answers = [(status, {"message": message, "reason": "Any"})]
    with pytest.raises(error) as caught:
        api.run(lambda kube: kube.create(SECRETS, "ns", {}))
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert not isinstance(caught.value, AdmissionDenied) or caught.value.for_now is (message in {QUOTA, DOWN})


def test_a_server_that_is_not_there_is_an_answer_too(api: Api) -> None:
    configuration = Configuration()
    configuration.host, configuration.retries = "http://127.0.0.1:1", False
    nobody = Kube(ApiClient(configuration))
    with pytest.raises(KubeError) as caught:
        asyncio.run(nobody.get(KEY))
    assert str(caught.value) == f"GET {PATH}: no response from http://127.0.0.1:1: Connection refused"
    nobody.close()


@pytest.mark.parametrize("retries", [0, 2])
def test_a_server_that_does_not_answer_is_told_in_the_same_words_at_each_try(retries: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        configuration.retries = retries
        kube = Kube(ApiClient(configuration), seconds=0.05)
        said = set()
        for _ in range(2):
            with pytest.raises(KubeError) as caught:
                asyncio.run(kube.get(KEY))
            said.add(str(caught.value))
        assert said == {f"GET {PATH}: no response from {configuration.host} in time"}
        kube.close()


def test_a_server_that_hangs_up_is_told_without_the_names_of_a_library() -> None:
    with socket.create_server(("127.0.0.1", 0)) as rude:
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{rude.getsockname()[1]}"
        configuration.retries = False
        kube = Kube(ApiClient(configuration))
        hangs_up = threading.Thread(target=lambda: rude.accept()[0].close())
        hangs_up.start()
        with pytest.raises(
            KubeError, match=f"no response from {configuration.host}: (Remote end|Connection)"
        ):
            asyncio.run(kube.get(KEY))
        hangs_up.join()
        kube.close()


@pytest.mark.parametrize("answer", [{"message": "404 page not found"}, ["no such page"]])
def test_a_path_that_is_not_served_says_nothing_of_an_object(api: Api, answer: Any) -> None:
    api.answers = [(404, answer), (200, {"items": [{}]})]
    with pytest.raises(NotServed):
        api.run(lambda kube: kube.get(KEY))


NOT_FOUND = (404, {"message": "404 page not found"})
FORBIDDEN = (403, {"message": "no"})
VERSIONS = (200, {"versions": [{"groupVersion": f"holdfast.dev/{each}"} for each in ("v1", "v1alpha1")]})


def serving(*names: str) -> tuple[int, dict[str, Any]]:
    return 200, {"resources": [{"name": name} for name in names]}


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([(200, {"items": []})], Gone),
        ([(500, {"message": "no"})], KubeError),
        ([FORBIDDEN, VERSIONS, serving(), serving("storagecollections")], Gone),
        # In another version than this operator's there may be objects.
        ([FORBIDDEN, VERSIONS, serving("catalogs"), serving("storagecollections")], NotServed),
        # Where nothing of the group is served, or somebody else answers, nothing is told.
        ([FORBIDDEN, VERSIONS, serving(), serving()], NotServed),
        ([FORBIDDEN, VERSIONS, serving(), NOT_FOUND], NotServed),
        ([FORBIDDEN, NOT_FOUND], NotServed),
    ],
)
def test_an_object_is_gone_where_its_definition_is(
    api: Api, answers: list[tuple[int, dict[str, Any]]], error: type[KubeError]
) -> None:
    api.answers = [NOT_FOUND, *answers]
    with pytest.raises(KubeError) as caught:
        api.run(lambda kube: kube.get(KEY))
    assert type(caught.value) is error
    assert api.answers == []
    assert api.asked[1][1].endswith(
        "customresourcedefinitions?fieldSelector=metadata.name%3Dcatalogs.holdfast.dev"
    )


def test_who_does_not_lead_changes_nothing(api: Api) -> None:
    leads = [True, False]
    configuration = Configuration()
    configuration.host = api.server.url
    kube = Kube(ApiClient(configuration), may_write=lambda: leads[0])
    api.answers = [(200, BODY), (200, BODY)]
    asyncio.run(kube.patch_status(KEY, {"status": {}}))
    leads.pop(0)
    for change in (
        lambda: kube.patch_status(KEY, {"status": {}}),
        lambda: kube.create(SECRETS, "ns", {}),
        lambda: kube.delete(SECRETS, "ns", "x"),
    ):
        with pytest.raises(NotLeading):
            asyncio.run(change())
    asyncio.run(kube.get(KEY))
    assert [method for method, *_ in api.asked] == ["PATCH", "GET"]
    kube.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_has_no_request_before_that_time(api: Api, status: int) -> None:
    api.answers = [(status, {"message": "busy"}), (200, BODY), (200, BODY)]
    api.headers = [{"Retry-After": "1"}]

    async def story(kube: Kube) -> float:
        begun = time.monotonic()
        first = asyncio.create_task(kube.read(KEY))
        while len(api.answers) > 2:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert [method for method, *_ in api.asked] == ["GET"]
        await kube.patch_status(KEY, {"status": {}})
        assert time.monotonic() - begun >= 1.0
        await first
        return 0.0

    api.run(story)
    assert sorted(method for method, *_ in api.asked) == ["GET", "GET", "PATCH"]


def test_a_server_that_asks_to_wait_again_and_again_is_an_error(api: Api) -> None:
    api.answers = [(429, {"message": "busy"})] * 3
    api.headers = [{"Retry-After": "0"}] * 3
    with pytest.raises(RetryLater, match="429 busy"):
        api.run(lambda kube: kube.read(KEY))
    # Without the header, the caller decides when to try again, as with any other error.
    api.answers = [(429, {"message": "busy"})]
    with pytest.raises(KubeError, match="429 busy"):
        api.run(lambda kube: kube.read(KEY))
    assert len(api.asked) == 4


def test_a_list_is_read_in_pages(api: Api) -> None:
    def page(names: str, more: str = "") -> tuple[int, dict[str, Any]]:
        items = [{"metadata": {"name": name}} for name in names]
        return 200, {"items": items, "metadata": {"resourceVersion": "9", "continue": more}}

    api.answers = [page("ab", "token"), page("c"), page("ab", "old"), (410, {"message": "old"}), page("xyz")]
    read = [api.run(lambda kube: kube.list_pages(SECRETS, "ns")) for _ in range(2)]
    assert [["".join(each["metadata"]["name"] for each in found), at] for found, at in read] == [
        ["abc", 9],
        ["xyz", 9],
    ]
    queries = [path.partition("?")[2] for _, path, *_ in api.asked]
    assert queries == [
        *("limit=50", "limit=50&continue=token"),
        *("limit=50", "limit=50&continue=old", "limit=50"),
    ]
    # Without a limit, one response could have all objects of the cluster.
    api.answers = [*[page("ab", "old"), (410, {"message": "old"})] * 4]
    with pytest.raises(Expired):
        api.run(lambda kube: kube.list_pages(SECRETS, "ns"))
    assert not api.answers
    api.answers = [(200, {"items": None, "metadata": {"resourceVersion": "9"}})]
    assert api.run(lambda kube: kube.list_pages(SECRETS, "ns")) == ([], 9)


def test_a_list_that_breaks_off_is_no_list(api: Api) -> None:
    api.answers = [(200, [{"items": []}])]
    with pytest.raises(KubeError, match="a response that is no object of Kubernetes"):
        api.run(lambda kube: kube.list_pages(SECRETS, "ns"))


def test_an_object_can_be_nested_as_deep_as_the_api_server_allows(api: Api) -> None:
    """A user's Job, or a Catalog, with such managedFields ended the operator's watches."""
    api.deep = 20_000
    api.answers = [(200, BODY), (200, {"items": [BODY], "metadata": {"resourceVersion": "9"}})]
    assert api.run(lambda kube: kube.read(KEY)) == BODY
    assert api.run(lambda kube: kube.list_pages(SECRETS, "ns")) == ([BODY], 9)


def test_what_is_kept_of_a_list_is_taken_from_each_page_as_it_arrives(api: Api) -> None:
    """The bodies of ten thousand objects were in memory at once."""

    def page(names: str, more: str = "") -> tuple[int, dict[str, Any]]:
        items = [{"metadata": {"name": name}} for name in names]
        return 200, {"items": items, "metadata": {"resourceVersion": "9", "continue": more}}

    seen = list[tuple[str, int]]()

    def keep(body: dict[str, Any]) -> str:
        seen.append((body["metadata"]["name"], len(api.asked)))
        return str(body["metadata"]["name"]).upper()

    api.answers = [page("ab", "token"), page("c", "old"), (410, {"message": "old"}), page("ad")]
    assert api.run(lambda kube: kube.list_each(SECRETS, "ns", keep)) == (["A", "D"], 9)
    assert seen == [("a", 1), ("b", 1), ("c", 2), ("a", 4), ("d", 4)]


def test_creating_what_is_there_and_deleting_what_is_not(api: Api) -> None:
    api.answers = [(409, {"message": "there"}), (404, {"message": "not there", "reason": "NotFound"})]
    with pytest.raises(Exists):
        api.run(lambda kube: kube.create(SECRETS, "ns", {"metadata": {"name": "x"}}))
    api.run(lambda kube: kube.delete(SECRETS, "ns", "x", uid="u"))
    assert api.asked[1][3] == {"propagationPolicy": "Background", "preconditions": {"uid": "u"}}


def test_a_status_is_written_against_what_it_was_derived_from(api: Api) -> None:
    api.answers = [(200, {"metadata": {"resourceVersion": "8"}})]
    writer = StatusWriter(api.kube, Metrics())
    api.run(lambda _: writer.write(KEY, BODY, {"upper": 2}))
    assert api.asked == [
        (
            "PATCH",
            f"{PATH}/status?fieldManager=holdfast-operator",
            "application/merge-patch+json",
            {
                "metadata": {"resourceVersion": "7", "uid": "u"},
                "status": {"upper": 2, "epoch": None},
            },
        )
    ]


def test_a_status_that_says_the_same_is_not_written(api: Api) -> None:
    assert (
        api.run(lambda _: StatusWriter(api.kube, Metrics()).write(KEY, BODY, {"epoch": 2, "upper": 1}))
        is None
    )
    assert api.asked == []


@pytest.mark.parametrize(("status", "outcome"), [(409, "conflict"), (404, "gone"), (422, "invalid")])
def test_a_refused_status_is_counted(api: Api, status: int, outcome: str) -> None:
    api.answers = [(status, {"message": "status.epoch: Invalid value", "reason": "NotFound"})]
    metrics = Metrics()
    with pytest.raises(KubeError):
        api.run(lambda _: StatusWriter(api.kube, metrics).write(KEY, BODY, {"upper": 2}))
    assert len(api.asked) == 1
    labels = {"kind": "Catalog", "outcome": outcome}
    assert metrics.registry.get_sample_value("holdfast_status_writes_total", labels) == 1


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sent", "received", "off"),
    [
        (0.2, 0.3, 0),
        (-20, 19, 0),
        (0.9, 1.2, 0),
        (600.5, 600.8, -599.5),
        (600, 640, -599),
        (-600.5, -600.2, 600.2),
    ],
)
def test_a_response_proves_how_far_the_time_that_was_believed_is_off_at_least(
    sent: float, received: float, off: float
) -> None:
    """The server says that it is noon; these are the seconds after what was believed to be noon."""
    date = format_datetime(NOON, usegmt=True)
    assert clock_origin(date, sent, received, NOON) - NOON == timedelta(seconds=off)


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "noon",
        "Thu, 01 Jan 2026 12:00:00 -0000",
        "Thu, 01 Jan 2026 12:00:00 +99999999999999999999",
        "Thu, 01 Jan 99999999999999999999 12:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -0500",
    ],
)
def test_a_response_without_a_time_proves_nothing(date: str | None) -> None:
    assert clock_origin(date, 0.0, 1.0, NOON) == NOON


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_clock_of_this_host_that_is_wrong_or_is_set_changes_no_time_of_the_server(
    monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    off = timedelta(seconds=ahead)
    monkeypatch.setattr("holdfast_operator.engine.kube._host_time", lambda: datetime.now(UTC) + off)
    api = Api()
    api.answers = [(200, BODY)]
    api.run(lambda kube: kube.get(KEY))
    assert abs(api.kube.server_time() - datetime.now(UTC)) < timedelta(seconds=5)
    off = timedelta()  # and no response follows
    assert abs(api.kube.server_time() - datetime.now(UTC)) < timedelta(seconds=5)
    api.close()


LATE = {"Date": format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)}


def is_right(kube: Kube) -> bool:
    return abs(kube.server_time() - datetime.now(UTC)) < timedelta(seconds=60)


def test_the_clock_of_a_proxy_is_not_that_of_the_server(api: Api) -> None:
    api.answers, api.headers = [(502, {"message": "bad gateway"})], [LATE]
    with pytest.raises(KubeError):
        api.run(lambda kube: kube.read(KEY))
    assert is_right(api.kube)
    api.answers, api.headers = [(404, {"kind": "Status", "reason": "NotFound"})], [LATE]
    with pytest.raises(Gone):
        api.run(lambda kube: kube.read(KEY))
    assert not is_right(api.kube), "its clock was set"


def test_a_page_instead_of_an_object_is_an_error_of_the_api_server(api: Api) -> None:
    api.answers = [(200, [])]
    with pytest.raises(KubeError, match="no object of Kubernetes"):
        api.run(lambda kube: kube.read(KEY))


@pytest.mark.parametrize("status", [200, 403])
def test_no_single_response_decides_what_time_it_is_on_the_server(api: Api, status: int) -> None:
    confirming = (status, {"kind": "Status"})

    async def decides(kube: Kube) -> bool:
        await kube.read(KEY)
        with reading() as reads:
            kube.server_time()
        return await are_current(reads)

    api.answers, api.headers = [(200, BODY), confirming], [LATE]
    assert not api.run(decides)
    api.answers = [(200, BODY), confirming]
    assert api.run(decides)
    assert [path for _, path, _, _ in api.asked] == [PATH, "/version"] * 2


class Standing(SystemClock):
    """A clock whose time of day stands still."""

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def test_the_same_event_again_is_counted_up(api: Api) -> None:
    api.answers = [(201, {}), (200, {}), (200, {})]
    sink = EventSink(api.kube, Standing(), "operator-1")
    for _ in range(3):
        api.run(lambda _: sink.post(KEY, "u", Note(Reason.SECRET_NOT_FOUND, "create it", warning=True)))
    (_, _, _, created), (_, path, _, _), (command, again, _, counted) = api.asked
    assert created["type"] == "Warning"
    assert created["involvedObject"]["uid"] == "u"
    assert (created["reportingComponent"], created["reportingInstance"]) == (FIELD_MANAGER, "operator-1")
    assert created["eventTime"] == "2026-01-01T12:00:00.250000Z"
    assert created["lastTimestamp"] == created["firstTimestamp"] == "2026-01-01T12:00:00Z"
    assert path == again
    assert (command, again.split("/")[-1].split("?")[0]) == ("PATCH", created["metadata"]["name"])
    assert counted["count"] == counted["series"]["count"] == 3
    assert counted["series"]["lastObservedTime"] > created["eventTime"]


def test_an_event_that_the_api_server_forgot_is_posted_anew(api: Api) -> None:
    api.answers = [(201, {}), (404, {"message": "not there", "reason": "NotFound"}), (201, {}), (200, {})]
    sink = EventSink(api.kube, Standing())
    for _ in range(3):
        api.run(lambda _: sink.post(KEY, "u", Note(Reason.AVAILABLE, "fine")))
    assert [command for command, _, _, _ in api.asked] == ["POST", "PATCH", "POST", "PATCH"]
    assert api.asked[2][3]["count"] == 1
    assert api.asked[3][1].split("/")[-1].split("?")[0] == api.asked[2][3]["metadata"]["name"]


def test_events_of_one_moment_are_in_order(api: Api) -> None:
    api.answers = [(201, {})] * 3
    sink = EventSink(api.kube, Standing())

    async def story(_: Kube) -> None:
        for message, uid in (("b", "u"), ("a", "u"), ("a", "other")):
            await sink.post(KEY, uid, Note(Reason.AVAILABLE, message))

    api.run(story)
    posted = [body for _, _, _, body in api.asked]
    for told in ([each["metadata"]["name"] for each in posted], [each["eventTime"] for each in posted]):
        assert told == sorted(set(told))
    assert {each["lastTimestamp"] for each in posted} == {"2026-01-01T12:00:00Z"}


def test_an_event_that_is_lost_fails_nothing(api: Api) -> None:
    api.answers = [(500, {"message": "no"})]
    api.run(lambda _: EventSink(api.kube, SystemClock()).post(KEY, "u", Note(Reason.AVAILABLE, "fine")))
    assert len(api.asked) == 1
