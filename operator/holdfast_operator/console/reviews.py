"""Asks the API server who a token belongs to (TokenReview), and what that user may do (SubjectAccessReview).

Invariants
- A result is used for `SECONDS`, so a removed right or an expired token has no effect after that time.
- The memory for results is bounded, and a token is kept only as its digest.
- If the API server gives no answer, neither does this module: it raises, and nothing is shown.
- Many made-up tokens at a time neither delay the reviews of others for long nor flood the API server: only
  a few are asked about at once, and beyond a bound they are refused.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from holdfast.console.access import Viewer
from holdfast.console.work import TooBusy
from holdfast.errors import StoreUnreachable
from holdfast_operator.api.names import GROUP
from holdfast_operator.engine.kube import Kube, KubeError, ResourceType

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SECONDS: Final = 10.0
"""How long a result is used."""
_MOST_TOKENS: Final = 1024
_MOST_RIGHTS: Final = 16 * 1024
_LONGEST_TOKEN: Final = 16 * 1024
_TOKENS_AT_ONCE: Final = 4
_TOKENS_WAITING: Final = 64
_TOKEN_REVIEWS: Final = ResourceType("authentication.k8s.io", "v1", "tokenreviews")
_ACCESS_REVIEWS: Final = ResourceType("authorization.k8s.io", "v1", "subjectaccessreviews")


@dataclass(frozen=True, slots=True)
class ClusterViewer(Viewer):
    """A viewer as the API server knows them. `name` is the user name."""

    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource of a group. An empty namespace stands for all, and an empty name for any."""

    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    group: str = GROUP


class Recent(Generic[K, V]):
    """The latest results of questions. Equal questions at a time are asked once. For one event loop."""

    def __init__(
        self, most: int, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._known: OrderedDict[K, tuple[float, asyncio.Task[V]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Returns the result for a key, which is that of `ask` if none is recent. Raises its errors."""
        now = self._clock()
        known = self._known.get(key)
        if known is None or known[0] <= now:
            self._known[key] = known = now + self._seconds, asyncio.ensure_future(_result(ask))
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        task = known[1]
        try:
            # Others may wait for the same result. One that goes away must not end it.
            return await asyncio.shield(task)
        except Exception:
            if self._known.get(key, (0.0, None))[1] is task:
                del self._known[key]
            raise


async def _result(ask: Callable[[], Awaitable[V]]) -> V:
    return await ask()


class Reviews:
    """Reviews of tokens and rights, with their recent results. For one event loop."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._tokens: Recent[bytes, ClusterViewer | None] = Recent(_MOST_TOKENS, clock=clock)
        self._rights: Recent[tuple[ClusterViewer, Right], bool] = Recent(_MOST_RIGHTS, clock=clock)
        self._at_once = asyncio.Semaphore(_TOKENS_AT_ONCE)
        self._waiting = 0

    async def viewer(self, token: str) -> ClusterViewer | None:
        """Returns the user of a token, or None if the API server doesn't know it.

        Raises `StoreUnreachable`, and `TooBusy` if too many tokens are being reviewed.
        """
        if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return None
        digest = hashlib.sha256(token.encode()).digest()
        return await self._tokens.get(digest, lambda: self._review_token(token))

    async def may(self, viewer: ClusterViewer, right: Right) -> bool:
        """Returns whether a user has a right. Raises `StoreUnreachable`."""
        return await self._rights.get((viewer, right), lambda: self._review_right(viewer, right))

    async def _review_token(self, token: str) -> ClusterViewer | None:
        if self._waiting >= _TOKENS_WAITING:
            raise TooBusy("too many tokens are being checked", hint="wait a moment, then load it again")
        self._waiting += 1
        try:
            async with self._at_once:
                review = await self._create(_TOKEN_REVIEWS, "TokenReview", {"token": token})
        finally:
            self._waiting -= 1
        status = review.get("status", {})
        user = status.get("user", {})
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        extra = {name: tuple(values) for name, values in (user.get("extra") or {}).items()}
        return ClusterViewer(
            name=user["username"],
            uid=user.get("uid", ""),
            groups=tuple(user.get("groups") or ()),
            extra=tuple(sorted(extra.items())),
        )

    async def _review_right(self, viewer: ClusterViewer, right: Right) -> bool:
        attributes = {
            "group": right.group,
            "verb": right.verb,
            "resource": right.resource,
            "subresource": right.subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        spec = {
            "user": viewer.name,
            "uid": viewer.uid,
            "groups": list(viewer.groups),
            "extra": {name: list(values) for name, values in viewer.extra},
            "resourceAttributes": {name: value for name, value in attributes.items() if value},
        }
        status = (await self._create(_ACCESS_REVIEWS, "SubjectAccessReview", spec)).get("status", {})
        return status.get("allowed") is True and status.get("denied") is not True

    async def _create(self, type_: ResourceType, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": f"{type_.group}/{type_.version}", "kind": kind, "spec": dict(spec)}
        try:
            return await self._kube.request("POST", type_.path(None), body=body)
        except KubeError as error:
            raise StoreUnreachable(
                f"the API server can't be asked who you are and what you may do: {error}",
                hint="load the page again; nothing is shown without its answer",
            ) from error
