"""A real Kafka broker for tests: one node on loopback, which is its own controller.

Invariants
- The jars come from Maven, once for each content of `tools/kafka/pom.xml`. Their folder gets its final name
  when it is complete.
- The broker listens on 127.0.0.1 only: on a port for everybody, on one that asks for a random password, on
  one with TLS, and on one with TLS that asks for a certificate. All its files are in one folder.
- Ports, password, topics and messages survive `kill` and `serve`.
- `start` and `serve` return when the broker responds. If they raise, they leave no process.
"""

import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from testbed import java, pki
from testbed.cache import cache_folder, locked
from testbed.errors import KafkaBrokerError, Unavailable
from testbed.postgres import free_port
from testbed.process import Child

POM: Final = Path(__file__).parent / "tools" / "kafka" / "pom.xml"
CONNECTOR_POM: Final = POM.parents[1] / "kafka-connector" / "pom.xml"
USER: Final = "testbed"
_LOOPBACK: Final = "127.0.0.1"
_BOOT_SECONDS: Final = 120.0
_BUILD_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 0.1
_FROZEN_SECONDS: Final = 20.0
_ATTEMPTS: Final = 3
"""Boots to try when somebody takes a port between our choosing it and the broker's binding it."""
_TAKEN: Final = "address already in use"
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},SASL_PLAINTEXT://{host}:{sasl_port},\
TLS://{host}:{tls_port},MTLS://{host}:{mtls_port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
TLS:SSL,MTLS:SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.mtls.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs={data}
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
log.cleaner.backoff.ms=500
log.cleaner.dedupe.buffer.size=2097152
log.retention.check.interval.ms=1000
"""
_LOG_SETTINGS: Final = """\
<Configuration status="warn"><Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/>\
</Console></Appenders><Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def impossible(env: Mapping[str, str] | None = None) -> str | None:
    """Why this machine can't have a broker, and what to do about it; None if it can."""
    env = os.environ if env is None else env
    lack = java.missing(env)
    if lack is None and not _jars().exists() and shutil.which("mvn", path=env.get("PATH")) is None:
        lack = "Maven is missing: install it, such as with apt-get install maven"
    return lack


def missing(env: Mapping[str, str] | None = None) -> str | None:
    """What a broker lacks here; None if it can be started at once."""
    not_built = "kafka not built yet: run PYTHONPATH=tests python -m testbed build (a minute, once)"
    return impossible(env) or (None if _jars().exists() else not_built)


def provide() -> None:
    """Get the jars if they are missing. Raises `Unavailable` if Java or Maven is missing, or Maven fails."""
    lack = impossible()
    if lack:
        raise Unavailable(lack)
    if _jars().exists():
        return
    with locked("kafka"):
        if not _jars().exists():
            _build()


def connector() -> list[Path]:
    """The jars of Spark's connector for Kafka, which are got if they are missing. Raises like `provide`."""
    with locked("kafka"):
        if not _jars(CONNECTOR_POM).exists():
            _build(CONNECTOR_POM)
    return sorted(_jars(CONNECTOR_POM).glob("*.jar"))


def _jars(pom: Path = POM) -> Path:
    return cache_folder() / f"{pom.parent.name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


def _build(pom: Path = POM) -> None:
    print("getting Kafka with Maven (about a minute, once) ...", file=sys.stderr, flush=True)
    folder = _jars().parent
    for leftover in folder.glob(".kafka-*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)  # of a build that was killed, since the lock is ours
    with tempfile.TemporaryDirectory(dir=folder, prefix=".kafka-") as scratch:
        result = Path(scratch) / "jars"
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={result}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0 or not result.is_dir():
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[:5])
            raise Unavailable(f"Maven can't get Kafka; is Maven Central reachable? It says:\n{last}")
        result.rename(_jars(pom))


class Kafka:
    """A broker to talk to; as a context manager it is stopped at the end."""

    def __init__(self) -> None:
        """Use `start`."""
        self._folder: Final = Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
        self._port, self._sasl_port, self._controller_port = (free_port(_LOOPBACK) for _ in range(3))
        self._tls_port, self._mtls_port = (free_port(_LOOPBACK) for _ in range(2))
        self.pki: Final = pki.create(self._folder, names=(), addresses=(_LOOPBACK,))
        self.password: Final = secrets.token_hex(16)
        self._child: Child | None = None
        self._admins: list[Any] = []

    @classmethod
    def start(cls) -> Self:
        """Boot a broker, with the jars from Maven if they are missing. It dies with the calling thread.

        Raises `Unavailable` if the machine can't have it, and `KafkaBrokerError` if it does not come up.
        """
        provide()
        for attempt in range(1, _ATTEMPTS + 1):
            broker = cls()
            try:
                broker._format()
                broker.serve()
            except BaseException as error:
                broker.stop()
                taken = isinstance(error, KafkaBrokerError) and _TAKEN in str(error).lower()
                if not taken or attempt == _ATTEMPTS:
                    raise
            else:
                return broker
        raise AssertionError("unreachable")

    @property
    def servers(self) -> str:
        """The address for clients without credentials."""
        return f"{_LOOPBACK}:{self._port}"

    @property
    def sasl_servers(self) -> str:
        """The address for clients that prove that they are `USER`, with SASL/PLAIN."""
        return f"{_LOOPBACK}:{self._sasl_port}"

    @property
    def tls_servers(self) -> str:
        """The address for clients that trust the authority of `pki`. The certificate names this address."""
        return f"{_LOOPBACK}:{self._tls_port}"

    @property
    def tls_servers_by_name(self) -> str:
        """The same with a name of the host that the certificate doesn't have."""
        return f"localhost:{self._tls_port}"

    @property
    def mtls_servers(self) -> str:
        """The address for clients that also have a certificate of that authority."""
        return f"{_LOOPBACK}:{self._mtls_port}"

    @property
    def data(self) -> Path:
        """The folder with the logs of partitions."""
        return self._folder / "data"

    def serve(self) -> None:
        """Start the broker (again), and wait until it responds."""
        self._child = Child(
            "kafka",
            self._command("kafka.Kafka", self._settings),
            log=self._folder / "kafka.log",
            env=self._environment(),
            cwd=self._folder,
        )
        try:
            self._wait_until_ready(self._child)
        except BaseException:
            self.kill()
            raise

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The broker accepts connections and does not respond, for 20 seconds at most."""
        assert self._child is not None
        pid = self._child.pid
        thaw = threading.Timer(_FROZEN_SECONDS, os.kill, (pid, signal.SIGCONT))
        os.kill(pid, signal.SIGSTOP)
        thaw.start()
        try:
            yield
        finally:
            thaw.cancel()
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the broker at once, as a crash does. `serve` starts it again."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        # The client may never find the coordinator of a broker that came back. It is kept, because requests
        # may be under way.
        self._admins.append(self.__dict__.pop("admin", None))

    def stop(self) -> None:
        """End the broker and remove its files."""
        # It is not asked to end, because nobody needs its files.
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @cached_property
    def admin(self) -> Any:
        """A client that manages topics."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def make_topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Make an empty topic and return its name. Dots in names of settings are written as underscores."""
        from confluent_kafka.admin import NewTopic

        name = name or f"test-{uuid.uuid4().hex}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    def groups(self) -> set[str]:
        """The names of all consumer groups."""
        return {each.group_id for each in self.admin.list_consumer_groups().result(30).valid}

    def producer(self, on_delivery: Callable[..., None] = lambda *_: None, **settings: Any) -> Any:
        """A new producer. Dots in names of settings are written as underscores."""
        from confluent_kafka import Producer

        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer(
            {
                "bootstrap.servers": self.servers,
                "log_level": 0,
                "acks": "all",
                "on_delivery": on_delivery,
                **config,
            }
        )

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def _format(self) -> None:
        keystore = self._folder / "server.pem"
        keystore.touch(mode=0o600)
        keystore.write_bytes(self.pki.server_key.read_bytes() + self.pki.server_certificate.read_bytes())
        self._settings.touch(mode=0o600)
        self._settings.write_text(
            _SETTINGS.format(
                host=_LOOPBACK,
                port=self._port,
                sasl_port=self._sasl_port,
                tls_port=self._tls_port,
                mtls_port=self._mtls_port,
                keystore=keystore,
                truststore=self.pki.ca,
                controller_port=self._controller_port,
                user=USER,
                password=self.password,
                data=self.data,
            )
        )
        (self._folder / "log4j2.xml").write_text(_LOG_SETTINGS)
        # A cluster id of Kafka is 16 bytes in URL-safe base64. It must not begin with a dash.
        id_ = "A" + secrets.token_urlsafe(16)[1:]
        command = self._command("kafka.tools.StorageTool", "format", "-t", id_, "-c", self._settings)
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaBrokerError(f"Kafka can't format its folder:\n{done.stdout}{done.stderr}")

    def _command(self, main: str, *arguments: str | Path) -> list[str | Path]:
        found = java.find(os.environ)
        assert found is not None, "provide has found it"
        options = [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}", "-XX:TieredStopAtLevel=1"]
        return [found, "-Xmx256m", "-XX:+UseSerialGC", *options, "-cp", f"{_jars()}/*", main, *arguments]

    def _environment(self) -> dict[str, str]:
        # Nothing of the caller's settings may reach the broker.
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder)}

    def _wait_until_ready(self, child: Child) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _BOOT_SECONDS
        while True:
            try:
                # The broker responds to this as soon as it takes requests for topics.
                self.admin.list_topics(timeout=1)
            except KafkaException as error:
                code = child.poll()
                if code is not None:
                    raise KafkaBrokerError(f"Kafka ended with exit code {code}:\n{child.tail()}") from error
                if time.monotonic() > deadline:
                    raise KafkaBrokerError(
                        f"Kafka did not respond within {_BOOT_SECONDS:.0f} s:\n{child.tail()}"
                    ) from error
                time.sleep(_POLL_SECONDS)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
