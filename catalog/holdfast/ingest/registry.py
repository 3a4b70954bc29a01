"""A schema registry with Confluent's REST API, which says what the text of a schema id is.

- A registry that is down, overloaded or slow is asked again for a while. Then it is an error, and never a bad
  record.
- Only an answer with the registry's own error code says that an id is unknown. Any other one means that the
  URL is wrong, or that something stands in between.
- A schema may refer to versions of subjects. They are asked for too, and the text of its id has them all
  (`holdfast.ingest.schema_bundle`).
- Messages have the address and the status. They never have what the registry sent, or a secret.
"""

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from holdfast.errors import BadInput, SourceStalled, StoreUnreachable
from holdfast.ingest.schema_bundle import Referenced, bundled
from holdfast.ingest.spec import RegistrySpec
from holdfast.ingest.waits import Waits

OPEN_S: Final = 15.0
"""Seconds for which the first request is retried."""
PATIENCE_S: Final = 60.0
"""Seconds for which a later request is retried."""
PAUSE_S: Final = 0.25
_REQUEST_S: Final = 10.0
_MOST_BYTES: Final = 4 << 20
_MOST_REFERENCES: Final = 100
_UNKNOWN: Final = (40403,)
_UNKNOWN_VERSION: Final = (40401, 40402)
_PASSING: Final = (408, 425, 429)


class Refusal(Exception):
    """The registry has no text of a schema of Avro for this id. Says why."""


class _Passing(Exception):
    """The request may succeed later."""


class Registry:
    """Asks the registry for schemas. It opens a connection for each request, because there are few."""

    def __init__(self, spec: RegistrySpec, waits: Waits) -> None:
        self._waits = waits
        self._url = spec.url.rstrip("/")
        self._parts = urlsplit(self._url)
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        secret = {} if spec.secret is None else spec.secret.read()
        if user := spec.user or secret.get("username"):
            password = secret.get("password", "")
            if spec.password is not None:
                password = spec.password.read("the password of the schema registry")
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._tls: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            trusted = None if spec.ca_file else secret.get("ca.crt")
            try:
                self._tls = ssl.create_default_context(cafile=spec.ca_file, cadata=trusted)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or type(error).__name__
                what = f"the registry's caFile {spec.ca_file}"
                if spec.secret is not None and trusted is not None:
                    what = f"ca.crt of Secret {spec.secret.name}"
                raise BadInput(f"{what} can't be used: {why}") from None
        self._patience_s = OPEN_S

    def text(self, id_: str) -> str:
        """Return the text of a schema id. Raises `Refusal` if it has none.

        Raises `StoreUnreachable` if the registry can't be asked, and `SourceStalled` if it does not have what
        the schema refers to, or that can't be used.
        """
        began_s, server = time.monotonic(), f"the schema registry at {self._url}"
        known: dict[tuple[str, int], dict[str, Any]] = {}
        while True:
            try:
                found = self._asked(id_, _REQUEST_S, known)
            except _Passing as error:
                if time.monotonic() > began_s + self._patience_s:
                    raise self.failure(id_, str(error)) from None
                self._waits.away(server, str(error), began_s)
                self._waits.pause(PAUSE_S)
            else:
                self._waits.back(server)
                self._patience_s = PATIENCE_S
                return found

    def text_at_once(self, id_: str, within_s: float) -> str | None:
        """Return what `text` would, if it needs no patience. None if the registry can't be asked.

        Raises `Refusal`.
        """
        try:
            return self._asked(id_, within_s, {})
        except (_Passing, StoreUnreachable):
            return None
        except SourceStalled as error:
            raise Refusal(str(error)) from None

    def _asked(self, id_: str, within_s: float, known: dict[tuple[str, int], dict[str, Any]]) -> str:
        """The text of an id. `known` keeps the versions of subjects that were found."""
        until = time.monotonic() + within_s
        found = self._found(id_, f"/schemas/ids/{id_}", _UNKNOWN, within_s)
        if found is None:
            raise Refusal(f"the schema registry has no schema {id_}")
        if (kind := _kind(found)) != "AVRO":
            raise Refusal(f"schema {id_} is not one of Avro, but {kind}")
        return bundled(found["schema"], _References(self, id_, until, known).of(found))

    def version(self, id_: str, subject: str, version: int, within_s: float) -> dict[str, Any] | None:
        """Return the schema of a version of a subject, which schema `id_` needs. None if there is none."""
        # A version that was deleted is still what messages were written with.
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
        return self._found(id_, path, _UNKNOWN_VERSION, within_s)

    def _found(self, id_: str, path: str, unknown: tuple[int, ...], within_s: float) -> dict[str, Any] | None:
        """The schema at a path. None if the registry says with one of these codes that it has none."""
        status, body = self._get(id_, path, within_s)
        if status >= 500 or status in _PASSING:
            raise _Passing(f"it responds with status {status}")
        found = _object(body)
        if status == 404 and found.get("error_code") in unknown:
            return None
        if status in {401, 403}:
            raise StoreUnreachable(
                f"can't find schema {id_}: the schema registry at {self._url} does not accept this client:"
                f" status {status}",
                hint="correct user and password in source.format.avro.registry",
            )
        if status != 200 or not isinstance(found.get("schema"), str):
            raise self.failure(id_, f"it responds with status {status} and not as a schema registry does")
        return found

    def unusable(self, id_: str, why: str) -> SourceStalled:
        """Return the error of a schema that refers to what can't be used."""
        return SourceStalled(
            f"schema {id_} of the schema registry at {self._url} {why}",
            hint="correct the schemas in the registry, or register one that has the types it uses in itself",
        )

    def _get(self, id_: str, path: str, within_s: float) -> tuple[int, bytes]:
        """The status and the body of the response."""
        deadline = time.monotonic() + within_s
        host = self._parts.hostname or ""
        try:
            connection = (
                http.client.HTTPSConnection(host, self._parts.port, timeout=within_s, context=self._tls)
                if self._tls is not None
                else http.client.HTTPConnection(host, self._parts.port, timeout=within_s)
            )
            try:
                connection.request("GET", self._parts.path + path, headers=self._headers)
                response = connection.getresponse()
                body = b""
                while piece := response.read1(64 << 10):
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise self.failure(id_, "its response is too large")
                    if time.monotonic() > deadline:
                        raise TimeoutError
                if response.length:
                    raise _Passing("its response ends too early")
                return response.status, body
            finally:
                connection.close()
        except TimeoutError:
            raise _Passing("it does not respond") from None
        except ssl.SSLCertVerificationError as error:
            raise self.failure(id_, error.verify_message) from None
        except OSError as error:
            raise _Passing(error.strerror or type(error).__name__) from None
        except http.client.HTTPException as error:
            raise _Passing(f"its response can't be read ({type(error).__name__})") from None

    def failure(self, id_: str, why: str) -> StoreUnreachable:
        """Return the error of a registry that gave no answer that can be used."""
        return StoreUnreachable(
            f"can't find schema {id_}: the schema registry at {self._url} can't be asked: {why}",
            hint="check source.format.avro.registry, and that the registry is up",
        )


class _References:
    """Finds what a schema refers to, also through others. Raises like `Registry.text`."""

    def __init__(
        self, registry: Registry, id_: str, until: float, known: dict[tuple[str, int], dict[str, Any]]
    ) -> None:
        self._registry = registry
        self._id = id_
        self._until = until
        self._known = known
        self._names: dict[str, tuple[str, int]] = {}
        self._found: dict[tuple[str, int], Referenced] = {}

    def of(self, schema: Mapping[str, Any]) -> list[Referenced]:
        """Return what a schema refers to. Each comes after those that it refers to itself."""
        self._add(schema, ())
        if sum(len(each.schema) for each in self._found.values()) > _MOST_BYTES:
            raise self._unusable(f"refers to schemas with more than {_MOST_BYTES:,} characters")
        return list(self._found.values())

    def _add(self, schema: Mapping[str, Any], path: tuple[tuple[str, int], ...]) -> None:
        for name, key in self._references(schema):
            subject, version = key
            if key in path:
                raise self._unusable(f"refers to version {version} of subject {subject}, which needs itself")
            if (other := self._names.setdefault(name, key)) != key:
                raise self._unusable(
                    f"refers to two schemas of {name}: version {other[1]} of subject {other[0]}, and version"
                    f" {version} of subject {subject}"
                )
            if key in self._found:
                continue
            if len(self._found) + len(path) >= _MOST_REFERENCES:
                raise self._unusable(f"refers to more than {_MOST_REFERENCES} schemas")
            found = self._version(subject, version)
            self._add(found, (*path, key))
            self._found[key] = Referenced(subject, version, found["schema"])

    def _references(self, schema: Mapping[str, Any]) -> list[tuple[str, tuple[str, int]]]:
        found = []
        given = schema.get("references") or []
        for each in given if isinstance(given, list) else [given]:
            block = each if isinstance(each, dict) else {}
            name, subject, version = (block.get(key) for key in ("name", "subject", "version"))
            if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
                raise self._registry.failure(self._id, "a reference has no name, subject and version")
            found.append((name, (subject, version)))
        return found

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        if (subject, version) in self._known:
            return self._known[subject, version]
        within_s = self._until - time.monotonic()
        if within_s <= 0:
            raise _Passing("it does not respond")
        found = self._registry.version(self._id, subject, version, within_s)
        if found is None:
            raise self._unusable(
                f"refers to version {version} of subject {subject}, which the registry doesn't have"
            )
        if (kind := _kind(found)) != "AVRO":
            raise self._unusable(f"refers to version {version} of subject {subject}, which is {kind}")
        self._known[subject, version] = found
        return found

    def _unusable(self, why: str) -> SourceStalled:
        return self._registry.unusable(self._id, why)


def _kind(found: Mapping[str, Any]) -> str:
    return str(found.get("schemaType", "AVRO"))[:20]


def _object(body: bytes) -> dict[str, Any]:
    """The object in a body of JSON. Empty if there is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
