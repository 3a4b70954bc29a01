"""A connection to Kafka: what it needs of a spec, how long it waits, and what its errors mean.

Librdkafka connects and retries by itself, and only reports at some time that it did not succeed. So each
request has a time limit. The error that ends it shows the last reason that a connection gave.

Librdkafka ends the process if a client is destroyed by one of its own threads. Such a thread runs Python when
it completes a future, and may then collect garbage. So a client is part of no cycle: what it calls does not
refer to it. `close` destroys it at once.
"""

# ruff: noqa: SLF001 - the names of librdkafka's own errors begin with an underscore
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.errors import BadInput, StoreUnreachable
from holdfast.ingest.credentials import SecretRef
from holdfast.ingest.spec import KAFKA_KEYS, KafkaSpec
from holdfast.ingest.waits import Waits

OPEN_S: Final = 15.0
"""How long the first contact may take. A wrong address is shown after this time."""
PATIENCE_S: Final = 60.0
"""How long a broker may be gone later."""
REQUEST_S: Final = 5.0
POLL_S: Final = 0.05
PAUSE_S: Final = 0.2
_COMMIT_POLL_S: Final = 0.002

_REJECTED: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
)
_UNTRUSTED: Final = re.compile(r"ssl://(.+):(\d+)/.*certificate verify failed")
_NEEDS_CERTIFICATE: Final = re.compile(r"alert (\S+ )*certificate")
_FORBIDDEN: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_PASSING: Final = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError._NOENT,  # a broker that has just started knows no leaders yet
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_UNKNOWN: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
END: Final = KafkaError._PARTITION_EOF

_T = TypeVar("_T")


class UnknownTopic(Exception):
    """The broker doesn't know the topic or the partition."""


class _LastError:
    """The last error that a connection had."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        # The error of a connection says more than that all are gone, which follows it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.error is None:
            self.error = error


class _Commits:
    """How many commits are under way, and the error of the last one that is over."""

    def __init__(self) -> None:
        self.left = 0
        self.error: KafkaError | None = None

    def note(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        self.left -= 1
        self.error = error or next((each.error for each in offsets if each.error is not None), None)


class KafkaClient:
    """Two clients of librdkafka: `admin` asks, and `consumer` reads and commits."""

    def __init__(self, spec: KafkaSpec, group: str, waits: Waits) -> None:
        self._servers = spec.bootstrap_servers
        self._waits = waits
        self._protocol = spec.security.get("security.protocol", "PLAINTEXT")
        self.patience_s = OPEN_S
        self._last = _LastError()
        self._commits = _Commits()
        self._retired: deque[AdminClient] = deque(maxlen=16)
        for name, file in spec.security.items():
            if name.endswith(".location") and not Path(file).exists():
                raise BadInput(f"source.kafka.security.{name}: there is no file {file}")
        config: dict[str, Any] = {
            "bootstrap.servers": spec.bootstrap_servers,
            "client.id": "holdfast",
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": 10_000,
            # What it would log is in the errors, and stderr belongs to the command.
            "log_level": 0,
            "error_cb": self._last.note,
            **({} if spec.secret is None else _of_secret(spec.secret)),
            **spec.security,
        }
        config |= {name: place.read(name) for name, place in spec.secrets.items()}
        self._ca_file: str | None = config.get("ssl.ca.location")
        consumer = {
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "on_commit": self._commits.note,
            "enable.auto.offset.store": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16 << 10,
            # Librdkafka keeps a commit for so long if it knows no coordinator, and a client that closes waits
            # for that. It matters for nothing else, because nobody joins the group.
            "session.timeout.ms": 1000,
            # A full queue is emptied in milliseconds. By default, the next fetch waits a second.
            "fetch.queue.backoff.ms": 5,
        }
        try:
            self.admin, self.consumer = AdminClient(config), Consumer({**config, **consumer})
            self._new_admin: Callable[[], AdminClient] = lambda: AdminClient(config)
        except KafkaException as error:
            raise BadInput(
                f"source.kafka can't be used: {one_line(error.args[0])}", hint="correct source.kafka.security"
            ) from None

    def close(self) -> None:
        """Close the connections, once."""
        if self._commits.left:
            # `Consumer.close` waits for them without a time limit. This waits for `socket.timeout.ms`.
            del self.consumer
        else:
            self.consumer.close()
        self._retired.clear()
        del self.admin

    def asked(self, what: str, ask: Callable[[], Sequence["Future[_T]"]]) -> list[_T]:
        """The results of requests, which are repeated while a broker is gone."""

        def results() -> list[_T]:
            return [self._result(what, each) for each in ask()]

        return self.retried(what, results)

    def _result(self, what: str, future: "Future[_T]") -> _T:
        while True:
            try:
                return future.result(timeout=POLL_S)
            except FutureTimeout:
                # This calls `_LastError.note`.
                self.admin.poll(0)
                self._check_rejected(what)

    def _check_rejected(self, what: str) -> None:
        """During the first contact, don't wait for a broker that rejects the credentials."""
        error = self._last.error
        if self.patience_s == OPEN_S and error is not None and _is_rejected(error):
            raise self.failure(what, error)

    def retried(self, what: str, call: Callable[[], _T]) -> _T:
        """The result of a call, which is repeated while a broker is gone.

        Raises `UnknownTopic`, and `StoreUnreachable` for anything else.
        """
        began_s = renewed_s = time.monotonic()
        while True:
            try:
                result = call()
            except KafkaException as error:
                found: KafkaError = error.args[0]
            else:
                self.responds()
                return result
            self.admin.poll(0)
            self._check_rejected(what)
            if found.code() in _UNKNOWN:
                raise UnknownTopic
            now_s = time.monotonic()
            if not is_passing(found) or now_s > began_s + self.patience_s:
                raise self.failure(what, found)
            self.waits(began_s, found)
            if found.code() == KafkaError._TIMED_OUT or now_s > renewed_s + REQUEST_S:
                # This client may never find a broker that came back. Its requests may be under way.
                self._retired.append(self.admin)
                self.admin, renewed_s = self._new_admin(), now_s
            self._waits.pause(PAUSE_S)

    def waits(self, since_s: float, error: KafkaError | None = None) -> None:
        """Show that the brokers have not responded since then."""
        self._waits.away(f"Kafka at {self._servers}", self._reason(error)[1], since_s)

    def responds(self) -> None:
        """The end of `waits`."""
        self._waits.back(f"Kafka at {self._servers}")

    def committed(self, offsets: Sequence[TopicPartition]) -> KafkaError | None:
        """Commit offsets to the consumer group. Returns the error, if any.

        A commit that is not over after `REQUEST_S`, or when the pipeline is to end, may succeed later.
        """
        deadline = time.monotonic() + REQUEST_S
        # A commit that waits for its end by itself has no time limit. An admin client that commits ends the
        # process if a broker responds after its time limit.
        try:
            self.consumer.commit(offsets=list(offsets), asynchronous=True)
        except KafkaException as error:
            return error.args[0]
        self._commits.left += 1
        # The broker responds to them in their order.
        while self._commits.left:
            # Nothing is assigned, so this only calls `_Commits.note`. It waits to the end of its time.
            self.consumer.poll(_COMMIT_POLL_S)
            if self._commits.left and (time.monotonic() > deadline or self._waits.stopped(0)):
                return KafkaError(KafkaError._TIMED_OUT)
        return self._commits.error

    def forget_group(self, group: str) -> None:
        """Delete a consumer group. Does nothing if there is none."""
        what = f"delete the consumer group {group}"

        def delete() -> None:
            try:
                for each in self.admin.delete_consumer_groups([group], request_timeout=REQUEST_S).values():
                    self._result(what, each)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

        self.retried(what, delete)

    def _reason(self, error: KafkaError | None) -> tuple[KafkaError | None, str]:
        """The error that says most about a failure, and what it says. None: nothing came in time."""
        if error is None or is_passing(error):
            # The last one that a connection had says more than that the time is over.
            error = self._last.error or error
        if error is None:
            return None, "it does not respond"
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            # Its text is a count such as "0/2 brokers are down", which reads as if none was.
            return error, f"no broker responds to security.protocol {self._protocol}"
        return error, one_line(error)

    def failure(self, what: str, error: KafkaError | None) -> StoreUnreachable:
        """The error that says what failed. None: nothing came in time."""
        servers = self._servers
        error, reason = self._reason(error)
        if found := _UNTRUSTED.search(reason):
            where = self._ca_file or "the authorities of this host"
            return StoreUnreachable(
                f"can't trust the certificate of Kafka at {found[1]}:{found[2]} with {where}:"
                f" {_distrust(found[1], int(found[2]), self._ca_file)}",
                hint="correct ssl.ca.location in source.kafka.security; or name the brokers in"
                " source.kafka.bootstrapServers and in their advertised.listeners as their certificates do",
            )
        if _NEEDS_CERTIFICATE.search(reason):
            return StoreUnreachable(
                f"Kafka at {servers} does not accept the certificate of this client, or needs one: {reason}",
                hint="set ssl.certificate.location and ssl.key.location in source.kafka.security, to a"
                " certificate of an authority that the brokers trust",
            )
        if error is not None and error.code() in _REJECTED:
            return StoreUnreachable(
                f"Kafka at {servers} does not accept this client: {reason}",
                hint="correct the credentials or the protocol in source.kafka.security",
            )
        if error is not None and error.code() in _FORBIDDEN:
            return StoreUnreachable(
                f"can't {what}: Kafka at {servers} forbids it: {reason}",
                hint="grant Describe and Read on the topic, and Read on the consumer group",
            )
        return StoreUnreachable(
            f"can't {what}: {reason}",
            hint=f"check source.kafka.bootstrapServers ({servers}), that the broker is up, and that this port"
            f" takes security.protocol {self._protocol}",
        )


def _of_secret(secret: SecretRef) -> dict[str, str]:
    """The properties that a Secret has. Librdkafka itself reads the files of TLS."""
    return {
        KAFKA_KEYS[key]: str(file) if KAFKA_KEYS[key].endswith(".location") else secret.value(key, file)
        for key, file in secret.files().items()
    }


def _is_rejected(error: KafkaError) -> bool:
    return error.code() in _REJECTED or bool(_NEEDS_CERTIFICATE.search(error.str()))


def _distrust(host: str, port: int, ca_file: str | None) -> str:
    """Why a certificate is not trusted. Librdkafka says the same of another authority and of another name."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with (
            socket.create_connection((host, port), timeout=REQUEST_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message).rstrip(".")
    except OSError:
        pass
    return "it is of another authority, or for another host name"


def is_passing(error: KafkaError) -> bool:
    """Whether it may work later without a change of anything."""
    return bool(error.retriable()) or error.code() in _PASSING


def is_unsure(error: KafkaError | None) -> bool:
    """Whether the messages that a consumer looks for may be gone. They may also be there later."""
    return error is not None and error.code() in (*_GONE, *_UNKNOWN)


def one_line(error: KafkaError) -> str:
    """An error on one line."""
    return " ".join(error.str().split())
