"""Hands the test bed to tests: a marker per tier, and fixtures for the servers behind them.

A test marked `kube`, `postgres`, `s3`, `spark` or `node` runs where that tier is; elsewhere it is skipped
with the reason, or fails if `$HOLDFAST_REQUIRE` names the tier. What a required tier takes is made before the
first test, not within one. A run with `-n` is spread over processes by `spread`; each starts its own servers.
"""

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pytest

from testbed import spark
from testbed.cache import locked
from testbed.children import plain_path
from testbed.errors import Unavailable
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.node import NodeCluster
from testbed.objects import new_namespace
from testbed.postgres import PostgresServer
from testbed.require import VARIABLE, Tier, missing, provide, required

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from testbed.spread import Spread

_REQUIRED = pytest.StashKey[frozenset[Tier]]()
_GIVEN_PATH = pytest.StashKey[list[str]]()
_MANY = 100
"""Tests of Spark for which it is worth half a minute that Spark starts faster."""
_REFUSED = pytest.StashKey[dict[Tier, str]]()


class _Stops(Protocol):
    def stop(self) -> None: ...


_C = TypeVar("_C", bound=_Stops)


class _Cluster(Generic[_C]):
    """The cluster of this process, for as long as tests of it follow one another: it costs at rest too."""

    def __init__(self, start: Callable[[], _C]) -> None:
        self._start = start
        self._running: _C | None = None

    def get(self) -> _C:
        """The one that runs, or a new one."""
        if self._running is None:
            self._running = self._start()
        return self._running

    def let_go(self) -> None:
        """Stop it, if it is ours, until somebody asks for it."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


_CLUSTER = pytest.StashKey[_Cluster[ControlPlane]]()
_NODE = pytest.StashKey[_Cluster[NodeCluster]]()


def pytest_configure(config: pytest.Config) -> None:
    for tier in Tier:
        config.addinivalue_line("markers", f"{tier}: {tier.description}")
    try:
        tiers = required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_REQUIRED] = tiers
    config.stash[_REFUSED] = {}
    config.stash[_CLUSTER] = _Cluster(ControlPlane.from_environment)
    config.add_cleanup(config.stash[_CLUSTER].let_go)
    config.stash[_NODE] = _Cluster(NodeCluster.start)
    config.add_cleanup(config.stash[_NODE].let_go)
    config.stash[_GIVEN_PATH] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Spread | None":
    """How a run with `-n` is spread over processes, unless `--dist` says something else."""
    if config.option.dist != "load":
        return None
    from testbed.spread import Spread

    return Spread(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what required tiers take, outside of every test's time limit and with its progress shown."""
    if session.config.option.collectonly:
        return
    asked = Counter(tier for item in session.items for tier in _tiers(item))
    if Tier.SPARK in asked and spark.missing() is None:
        if asked[Tier.SPARK] >= _MANY:
            with locked("provide"):
                spark.make_archive()
        os.environ.update(spark.environment())
    needed: frozenset[Tier] = session.config.stash[_REQUIRED]
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    for tier in sorted(asked.keys() & needed):
        try:
            # Of the processes of one run, one makes it and the others find it.
            with capture.global_and_fixture_disabled(), locked("provide"):
                provide(tier)
        except Unavailable as error:
            session.config.stash[_REFUSED][tier] = str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    tiers = _tiers(item)
    if Tier.KUBE not in tiers:
        item.config.stash[_CLUSTER].let_go()
    if Tier.NODE not in tiers:
        item.config.stash[_NODE].let_go()
    given = item.config.stash[_GIVEN_PATH]
    # Those of the API server run Spark too.
    if Tier.SPARK not in tiers and Tier.KUBE not in tiers:
        os.environ["PYTHONPATH"] = plain_path(*given)
    elif given:
        os.environ["PYTHONPATH"] = os.pathsep.join(given)
    else:
        os.environ.pop("PYTHONPATH", None)
    for tier in tiers:
        refused = item.config.stash[_REFUSED].get(tier) or missing(tier)
        if refused and tier in item.config.stash[_REQUIRED]:
            pytest.fail(f"{VARIABLE} names {tier}, but {refused}", pytrace=False)
        if refused:
            pytest.skip(f"{tier}: {refused}")


def _tiers(item: pytest.Item) -> list[Tier]:
    return [tier for tier in Tier if item.get_closest_marker(tier.value)]


@pytest.fixture(scope="module")
def control_plane(request: pytest.FixtureRequest) -> ControlPlane:
    """`$KUBECONFIG`'s cluster, or one that is booted for the tests of this tier. Mark the test `kube`.

    A test of no cluster ends it: tests of one should follow one another.
    """
    return request.config.stash[_CLUSTER].get()


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> NodeCluster:
    """A cluster with a real node, the only one on the machine. Mark the test `node`.

    A test of no node ends it: tests of one should follow one another.
    """
    return request.config.stash[_NODE].get()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace for one test, in which objects can be made at once; its deletion isn't waited for."""
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
    """The object store of the whole run, which no test stops. Mark the test `s3`."""
    with Minio.start() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The Postgres server of the whole run. Mark the test `postgres`; one that stops it starts its own.

    It doesn't wait for the disk: no test pulls the plug of the machine.
    """
    with PostgresServer.start(durable=False) as server:
        yield server


@pytest.fixture
def bucket(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket for one test, and the server's credentials in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in minio.credentials.items():
        monkeypatch.setenv(name, value)
    return minio.make_bucket()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database for one test, with the password."""
    with postgres.database() as name:
        yield postgres.url(name)
