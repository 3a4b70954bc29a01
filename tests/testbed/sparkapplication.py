"""One application on its way through its states, in a thread of its own.

Invariants
- RUNNING is written before the first statement of the application runs.
- A write applies to the object that was read. Another object of the same name is another application.
- The drivers of an application end with its thread. The thread ends with the object or the stand-in.
"""

import base64
import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes.client import ApiClient, ApiException

from testbed.sparkdriver import (
    Driver,
    WaitingForConfigError,
    driver_environment,
    mount_secrets,
    refusal,
    within,
)
from testbed.sparkfaces import Face, Report, Target
from testbed.sparkstatus import TERMINAL, Misbehaviour, State, exit_message

_RETRY_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05


def _path(group: str, version: str, namespace: str, plural: str, *rest: str) -> str:
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    within = ["namespaces", namespace] if namespace else []
    return "/".join([root, *within, plural, *rest])


def _finish(answer: Any) -> None:
    """Read an answer to its end, so that its connection is free for the next request."""
    answer.drain_conn()
    answer.release_conn()


Misbehave = Callable[[Mapping[str, Any]], Misbehaviour | None]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Cluster:
    """The few requests that the stand-in makes."""

    def __init__(self, client: ApiClient, face: Face) -> None:
        self._client = client
        self._face = face

    def listing(self, namespace: str | None) -> tuple[Callable[..., Any], tuple[str, ...]]:
        """The call that lists (and watches) the objects, with its arguments."""
        return self._list, (namespace or "",)

    def list(self, namespace: str | None) -> Any:
        return json.loads(self._list(namespace or "").data)

    def _list(self, namespace: str, **query: Any) -> Any:
        face = self._face
        asked = {"labelSelector": face.labels} if face.labels else {}
        for name, key in (
            ("watch", "watch"),
            ("resource_version", "resourceVersion"),
            ("timeout_seconds", "timeoutSeconds"),
        ):
            if name in query:
                asked[key] = json.dumps(query[name]) if isinstance(query[name], bool) else str(query[name])
        path = _path(face.group, face.version, namespace, face.plural)
        return self._request("GET", f"{path}?{urlencode(asked)}")

    def patch_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        face = self._face
        path = _path(face.group, face.version, namespace, face.plural, name, "status")
        _finish(self._request("PATCH", path, {"metadata": {"uid": uid}, "status": status}))

    def delete(self, namespace: str, target: Target) -> None:
        path = _path(target.group, target.version, namespace, target.plural, target.name)
        body = {"propagationPolicy": "Background", "preconditions": {"uid": target.uid}}
        _finish(self._request("DELETE", path, body))

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the response, which is not read yet. Raises `ApiException` if the request fails."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        verb, url, headers, _, _ = self._client.param_serialize(
            method,
            path,
            header_params={"Accept": "application/json", "Content-Type": kind},
            auth_settings=["BearerToken"],
        )
        answer = self._client.call_api(verb, url, headers, body=body).response
        if answer.status >= 300:
            raise ApiException(status=answer.status, reason=answer.read().decode(errors="replace"))
        return answer

    def data(self, kind: str, namespace: str, name: str) -> dict[str, str] | None:
        """The decoded data of a Secret or ConfigMap; None where there is none."""
        path = _path("", "v1", namespace, "secrets" if kind == "Secret" else "configmaps", name)
        try:
            data: dict[str, str] = json.loads(self._request("GET", path).data).get("data") or {}
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        if kind != "Secret":
            return data
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]


class _GoneError(Exception):
    """The object isn't there any more, or we stop: nothing more is to be done for it."""


class Application:
    """One object, from `start` to the end of its thread."""

    def __init__(
        self,
        cluster: Cluster,
        face: Face,
        found: Mapping[str, Any],
        *,
        folder: Path,
        master: str,
        misbehave: Misbehave,
    ) -> None:
        """Serve the object `found`, with its logs in `folder`."""
        self._cluster = cluster
        self._face = face
        self._found = found
        self._name = found["metadata"]["name"]
        self._namespace = found["metadata"]["namespace"]
        self._spec = face.spec(found)
        self._steps = 0
        self._folder = folder
        self._master = master
        self._misbehave = misbehave
        self._misbehaviour: Misbehaviour | None = None
        self._cancelled = threading.Event()
        self._drivers: list[Driver] = []
        self._thread = threading.Thread(target=self._run, name=f"spark-{self._name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """The object is gone, or the stand-in stops."""
        self._cancelled.set()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with suppress(_GoneError):
            try:
                self._walk()
            finally:
                for driver in self._drivers:
                    driver.stop()

    def _walk(self) -> None:
        state = self._face.state(self._found)
        refused = refusal(self._spec)
        try:
            self._misbehaviour = self._misbehave(self._found)
        except ValueError as error:
            refused = str(error)
        if state in TERMINAL:
            pass
        elif state:
            self._fail("driver pod not found")
        elif refused:
            self._fail_submission(refused)
        elif self._misbehaviour is Misbehaviour.HANG:
            self._report(State.SUBMITTED, stuck=True)
            return
        elif self._misbehaviour is Misbehaviour.LIE:
            self._report(State.SUBMITTED)
            self._report(State.RUNNING)
            self._succeed()
        elif self._misbehaviour is Misbehaviour.VANISH:
            self._report(State.SUBMITTED)
            self._report(State.RUNNING)
            self._delete()
            return
        elif not self._drive():
            return
        self._expire()

    def _drive(self) -> bool:
        """Run the driver to its end; whether a final state was reached."""
        env = self._environment()
        for number in range(2 if self._misbehaviour is Misbehaviour.TWICE else 1):
            self._drivers.append(
                Driver.start(
                    self._name,
                    self._spec,
                    env,
                    master=self._master,
                    folder=self._folder / str(number) if number else self._folder,
                )
            )
        if not all(self._submitted(driver) for driver in self._drivers):
            self._fail_submission(self._drivers[0].last_words())
            return True
        self._report(State.SUBMITTED)
        self._report(State.RUNNING)
        if self._misbehaviour is Misbehaviour.LOSE_DRIVER:
            for driver in self._drivers:
                driver.kill()
            return False
        for driver in self._drivers:
            driver.begin()
        codes = [self._ended(driver) for driver in self._drivers]
        if codes[0] == 0 and self._misbehaviour is not Misbehaviour.LIE_FAILED:
            self._succeed()
        else:
            self._fail(exit_message(codes[0] or 1), codes[0] or 1)
        return True

    def _environment(self) -> dict[str, str]:
        """The driver's variables; where their Secret is missing, a pod waits, and the state is SUBMITTED."""
        told = False
        while True:
            try:
                root = self._folder / "mounts"
                mount_secrets(self._spec["driver"], self._data, root)
                return within(root, driver_environment(self._spec["driver"], self._data))
            except WaitingForConfigError as error:
                if not told:
                    _log.info("%s/%s waits: %s", self._namespace, self._name, error)
                    self._report(State.SUBMITTED)
                    told = True
                self._pause(_RETRY_SECONDS)

    def _data(self, kind: str, name: str) -> dict[str, str] | None:
        return self._retrying(lambda: self._cluster.data(kind, self._namespace, name))

    def _submitted(self, driver: Driver) -> bool:
        """Wait until the driver's Python runs (True) or the process ends before that (False)."""
        while not driver.started:
            if driver.poll() is not None:
                return driver.started
            self._pause(_POLL_SECONDS)
        return True

    def _ended(self, driver: Driver) -> int:
        while (code := driver.poll()) is None:
            self._pause(_POLL_SECONDS)
        return code

    def _succeed(self) -> None:
        self._report(State.SUCCEEDING)
        self._report(State.COMPLETED)

    def _fail(self, message: str, code: int = 1) -> None:
        self._report(State.FAILING, message, code=code)
        self._report(State.FAILED, message, code=code)

    def _fail_submission(self, words: str) -> None:
        message = f"failed to run spark-submit: {words}"
        self._report(State.SUBMISSION_FAILED, message)
        self._report(State.FAILED, message)

    def _expire(self) -> None:
        """Delete the object when its time to live after the end is over."""
        seconds = self._spec.get("timeToLiveSeconds")
        if seconds:
            self._pause(float(seconds))
            self._delete()

    def _report(self, state: State, message: str = "", *, code: int = 0, stuck: bool = False) -> None:
        report = Report(state, message, code, stuck)
        uid = self._found["metadata"]["uid"]
        for status in self._face.statuses(self._found, report, self._steps, datetime.now(UTC)):
            self._steps += 1
            self._retrying(partial(self._cluster.patch_status, self._namespace, self._name, uid, status))
        _log.info("%s/%s is %s", self._namespace, self._name, state)

    def _delete(self) -> None:
        target = self._face.target(self._found)
        self._retrying(lambda: self._cluster.delete(self._namespace, target))

    def _retrying(self, call: Callable[[], _T]) -> _T:
        """Call until the server responds. Ends if an object is gone or replaced."""
        while True:
            try:
                return call()
            except ApiException as error:
                if error.status in (404, 409):
                    raise _GoneError from error
                if error.status is not None and 400 <= error.status < 500 and error.status != 429:
                    raise
            except urllib3.exceptions.HTTPError:
                pass
            self._pause(_RETRY_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise _GoneError
