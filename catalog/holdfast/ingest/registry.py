"""A schema registry with Confluent's REST API, which says what the text of a schema id is.

- A registry that is down, overloaded or slow is asked again for a while. Then it is an error, and never a bad
  record.
- Only an answer with the registry's own error code says that an id is unknown. Any other one means that the
  URL is wrong, or that something stands in between.
- Messages have the address and the status. They never have what the registry sent, or a secret.
"""

import base64
import http.client
import json
import ssl
import time
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.errors import BadInput, SourceStalled, StoreUnreachable
from holdfast.ingest.spec import RegistrySpec

OPEN_S: Final = 15.0
"""So long the first request is repeated."""
PATIENCE_S: Final = 60.0
"""So long a later request is repeated."""
PAUSE_S: Final = 0.25
_REQUEST_S: Final = 10.0
_MOST_BYTES: Final = 4 << 20
_UNKNOWN: Final = 40403
_PASSING: Final = (408, 425, 429)


class Refusal(Exception):
    """The registry has no text of a schema of Avro for this id. Says why."""


class _Passing(Exception):
    """The request may succeed later."""


class Registry:
    """Asks the registry for schemas. It opens a connection for each request, because there are few."""

    def __init__(self, spec: RegistrySpec) -> None:
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

        Raises `StoreUnreachable` if the registry can't be asked, and `SourceStalled` for a schema that refers
        to others.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                found = self._asked(id_, _REQUEST_S)
            except _Passing as error:
                if time.monotonic() > deadline:
                    raise self._failure(id_, str(error)) from None
                time.sleep(PAUSE_S)
            else:
                self._patience_s = PATIENCE_S
                return found

    def text_at_once(self, id_: str, within_s: float) -> str | None:
        """Return what `text` would, if it needs no patience. None if the registry can't be asked.

        Raises `Refusal`.
        """
        try:
            return self._asked(id_, within_s)
        except (_Passing, StoreUnreachable, SourceStalled):
            return None

    def _asked(self, id_: str, within_s: float) -> str:
        status, body = self._get(f"/schemas/ids/{id_}", within_s)
        if status >= 500 or status in _PASSING:
            raise _Passing(f"it responds with status {status}")
        found = _object(body)
        if status == 404 and found.get("error_code") == _UNKNOWN:
            raise Refusal(f"the schema registry has no schema {id_}")
        if status in {401, 403}:
            raise StoreUnreachable(
                f"can't find schema {id_}: the schema registry at {self._url} does not accept this client:"
                f" status {status}",
                hint="correct user and password in source.format.avro.registry",
            )
        text = found.get("schema")
        if status != 200 or not isinstance(text, str):
            raise self._failure(id_, f"it responds with status {status} and not as a schema registry does")
        if (kind := found.get("schemaType", "AVRO")) != "AVRO":
            raise Refusal(f"schema {id_} is not one of Avro, but {str(kind)[:20]}")
        if found.get("references"):
            raise SourceStalled(
                f"schema {id_} of the schema registry at {self._url} refers to other schemas, which is not"
                " supported",
                hint="register a schema that has the types it uses in itself",
            )
        return text

    def _get(self, path: str, within_s: float) -> tuple[int, bytes]:
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
                        raise self._failure(path.rpartition("/")[2], "its response is too large")
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
            raise self._failure(path.rpartition("/")[2], error.verify_message) from None
        except OSError as error:
            raise _Passing(error.strerror or type(error).__name__) from None
        except http.client.HTTPException as error:
            raise _Passing(f"its response can't be read ({type(error).__name__})") from None

    def _failure(self, id_: str, why: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"can't find schema {id_}: the schema registry at {self._url} can't be asked: {why}",
            hint="check source.format.avro.registry, and that the registry is up",
        )


def _object(body: bytes) -> dict[str, Any]:
    """The object in a body of JSON. Empty if there is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
