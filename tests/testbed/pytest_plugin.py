"""The pytest plugin of the test bed: markers, options, and fixtures for the servers behind the tiers.

Tiers: each tier has a marker of its name. If the machine lacks the tier of a test, pytest skips the test and
shows the reason. If `$HOLDFAST_REQUIRE` names the tier, the test fails instead. The plugin builds what a
required tier needs before the first test, and with `--provide` what any tier needs. The end of the run lists
each tier that the machine cannot have, with the number of its tests and the reason.

Parts: `--part short` runs what `make test` runs, and `--part long` runs the rest (see `testbed.parts`).

Time: with `--budget SECONDS`, pytest starts no test later than that after the first one. The end of the run
shows how many tests it left out.

A run with `-n` is spread over processes by `testbed.spread`. Each process starts its own servers.
"""

import gc
import logging
import math
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pytest

from testbed import spark
from testbed.cache import locked
from testbed.children import plain_path
from testbed.chromium import Chromium
from testbed.errors import Unavailable
from testbed.kafka import Kafka
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.node import NodeCluster
from testbed.objects import new_namespace
from testbed.own_records import OwnRecords
from testbed.parts import LONG, Part
from testbed.postgres import PostgresServer
from testbed.refusals import OVER_BUDGET, Refusals, not_run
from testbed.require import VARIABLE, Tier, missing, provide, required

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from playwright.sync_api import Browser

    from testbed.spread import Spread

_REQUIRED = pytest.StashKey[frozenset[Tier]]()
_GIVEN_PATH = pytest.StashKey[list[str]]()
_MANY = 100
"""From this number of Spark tests on, half a minute of preparation pays, because each Spark starts faster."""
_REFUSALS = pytest.StashKey[Refusals]()
_DEADLINE = pytest.StashKey[float]()


class _Stops(Protocol):
    def stop(self) -> None: ...


_C = TypeVar("_C", bound=_Stops)


class _Server(Generic[_C]):
    """What this process runs for a tier. It stops before a test that does not use it, as idling costs too."""

    def __init__(self, start: Callable[[], _C]) -> None:
        self._start = start
        self._running: _C | None = None

    def get(self) -> _C:
        """Return the running one, or start one."""
        if self._running is None:
            self._running = self._start()
        return self._running

    def let_go(self) -> None:
        """Stop it if this process started it. The next `get` starts a new one."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


_CLUSTER = pytest.StashKey[_Server[ControlPlane]]()
_NODE = pytest.StashKey[_Server[NodeCluster]]()
_BROWSER = pytest.StashKey[_Server[Chromium]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("test bed")
    group.addoption("--part", choices=[part.value for part in Part], help="run this part (default: both)")
    group.addoption("--provide", action="store_true", help="build what each tier of the run needs")
    group.addoption(
        "--budget", type=float, metavar="SECONDS", help="start no test later than this after the first"
    )


def pytest_configure(config: pytest.Config) -> None:
    for tier in Tier:
        config.addinivalue_line("markers", f"{tier}: {tier.description}")
    config.addinivalue_line("markers", f"{LONG}: runs in `make test-all` only")
    try:
        tiers = required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_REQUIRED] = tiers
    # Each process of a run with `-n` has a temporary folder of its own, inside that of the run.
    is_worker = hasattr(config, "workerinput")
    config.stash[_REFUSALS] = Refusals(
        Path(config.option.basetemp).parent / "refusals.json" if is_worker else None
    )
    config.stash[_CLUSTER] = _Server(ControlPlane.from_environment)
    config.add_cleanup(config.stash[_CLUSTER].let_go)
    config.stash[_NODE] = _Server(NodeCluster.start)
    config.add_cleanup(config.stash[_NODE].let_go)
    config.stash[_BROWSER] = _Server(Chromium.start)
    config.add_cleanup(config.stash[_BROWSER].let_go)
    config.stash[_GIVEN_PATH] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Spread | None":
    """Return the scheduler of a run with `-n`, unless `--dist` names another one."""
    if config.option.dist != "load":
        return None
    from testbed.spread import Spread

    return Spread(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without a search for garbage: what is made stays. Searches during the tests pass over it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that `--part` names."""
    if config.option.part is None:
        return
    part = Part(config.option.part)
    others = [item for item in items if part is not Part.of(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if part is Part.of(item)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what tiers need, before the time limit of any test begins. The progress is visible."""
    config = session.config
    if config.option.collectonly:
        return
    config.stash[_DEADLINE] = time.monotonic() + (config.option.budget or math.inf)
    asked = Counter(tier for item in session.items for tier in _tiers(item))
    if Tier.SPARK in asked and spark.missing() is None:
        if asked[Tier.SPARK] >= _MANY:
            with locked("provide"):
                spark.make_archive()
        os.environ.update(spark.environment())
    refusals = config.stash[_REFUSALS]
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    required_here: frozenset[Tier] = config.stash[_REQUIRED]
    for tier in sorted(asked.keys() if config.option.provide else asked.keys() & required_here):
        # One process of the run builds it. The others wait, and find the result or the refusal.
        with capture.global_and_fixture_disabled(), locked("provide"):
            if refusals.get(tier) is None:
                try:
                    provide(tier)
                except Unavailable as error:
                    refusals.add(tier, str(error))


def pytest_runtest_setup(item: pytest.Item) -> None:
    tiers = _tiers(item)
    if Tier.KUBE not in tiers:
        item.config.stash[_CLUSTER].let_go()
    if Tier.NODE not in tiers:
        item.config.stash[_NODE].let_go()
    if Tier.BROWSER not in tiers:
        item.config.stash[_BROWSER].let_go()  # its event loop is in the way of others
    given = item.config.stash[_GIVEN_PATH]
    # Tests of the API server run Spark too.
    if Tier.SPARK not in tiers and Tier.KUBE not in tiers:
        os.environ["PYTHONPATH"] = plain_path(*given)
    elif given:
        os.environ["PYTHONPATH"] = os.pathsep.join(given)
    else:
        os.environ.pop("PYTHONPATH", None)
    if time.monotonic() > item.config.stash[_DEADLINE]:
        pytest.skip(OVER_BUDGET)
    for tier in tiers:
        refused = item.config.stash[_REFUSALS].get(tier) or missing(tier)
        if refused and tier in item.config.stash[_REQUIRED]:
            pytest.fail(f"{VARIABLE} names {tier}, but {refused}", pytrace=False)
        if refused:
            pytest.skip(f"{tier}: {refused}")


_HANDLED = (signal.SIGINT, signal.SIGTERM)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test that leaves another handler for Ctrl-C or SIGTERM. Later tests would fork with it."""
    before = [signal.getsignal(number) for number in _HANDLED]
    try:
        yield
    finally:
        after = [signal.getsignal(number) for number in _HANDLED]
        for number, handler in zip(_HANDLED, before, strict=True):
            signal.signal(number, handler)
    if after != before:
        pytest.fail("the test left a signal handler behind", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason why tests did not run."""
    skipped = terminalreporter.stats.get("skipped", [])
    for line in not_run(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line, yellow=True)


def _tiers(item: pytest.Item) -> list[Tier]:
    return [tier for tier in Tier if item.get_closest_marker(tier.value)]


@pytest.fixture
def own_records() -> Iterator[Callable[[], list[logging.LogRecord]]]:
    """Returns what the thread of this test and those that it started have logged so far.

    `caplog` also has what threads log that were there before: servers of the run, and clients of other tests.
    """
    handler = OwnRecords()
    root = logging.getLogger()
    root.addHandler(handler)
    yield lambda: list(handler.records)
    root.removeHandler(handler)


@pytest.fixture(scope="module")
def control_plane(request: pytest.FixtureRequest) -> ControlPlane:
    """The cluster of `$KUBECONFIG`, or one that the test bed boots. Mark the test `kube`.

    The next test without this tier stops the cluster, so tests of the tier should follow one another.
    """
    return request.config.stash[_CLUSTER].get()


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> NodeCluster:
    """A cluster with a real node. A machine has at most one. Mark the test `node`.

    The next test without this tier stops the cluster, so tests of the tier should follow one another.
    """
    return request.config.stash[_NODE].get()


@pytest.fixture
def chromium(request: pytest.FixtureRequest) -> "Browser":
    """The browser of this process. Mark the test `browser`.

    The next test without this tier ends the browser, so tests of the tier should follow one another.
    """
    return request.config.stash[_BROWSER].get().browser


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace for one test, ready for objects. The test does not wait for its deletion."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    with new_namespace(control_plane, name):
        yield name


@pytest.fixture
def kube_api(control_plane: ControlPlane) -> Iterator["ApiClient"]:
    """A client of the control plane."""
    with control_plane.api() as client:
        yield client


@pytest.fixture(scope="session")
def minio() -> Iterator[Minio]:
    """The object store of the whole run. No test stops it. Mark the test `s3`."""
    with Minio.start() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """The Kafka broker of the whole run. A test that kills it starts it again. Mark the test `kafka`."""
    with Kafka.start() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The Postgres server of the whole run. Mark the test `postgres`.

    A test that stops a server starts its own. It does not wait for the disk, because no test
    cuts the power of the machine.
    """
    with PostgresServer.start(durable=False) as server:
        yield server


@pytest.fixture
def bucket(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket for one test. The environment holds the credentials of the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in minio.credentials.items():
        monkeypatch.setenv(name, value)
    return minio.make_bucket()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database for one test, including the password."""
    with postgres.database() as name:
        yield postgres.url(name)
