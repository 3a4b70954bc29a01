"""Who a viewer is, and what the viewer may see."""

import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
_BYTES: Final = 32
_MOST_TOKEN: Final = 200
_ONCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who looks at the console. The bounds on work are per `name`."""

    name: str


class Access(Protocol):
    """Decides who may see what. Each request asks again."""

    async def enter(self, request: web.Request) -> web.StreamResponse | None:
        """Return a response that ends the request, such as one that sets a cookie. None: go on.

        It is called before `viewer`, and also if the request comes from nobody known.
        """

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return who sent the request, or None if nobody known did."""

    async def may_see(self, viewer: Viewer, namespace: str) -> bool:
        """Whether the viewer may see the status of what is in a namespace. It is empty without a cluster."""

    async def may_see_events(self, viewer: Viewer, namespace: str) -> bool:
        """Whether the viewer may see the Events of a namespace."""

    async def may_read_rows(self, viewer: Viewer, namespace: str, collection: str) -> bool:
        """Whether the viewer may read the rows of a collection, given by its id."""

    @property
    def refusal(self) -> str:
        """What a person without access is to do."""

    def logout(self, request: web.Request) -> str:
        """Return the path of a form that ends what the request came with, or empty if nothing can."""


class LocalAccess:
    """Access with one random token, for a console on this host.

    The address that the command prints has the token. The first request with it gets a cookie and is sent to
    the same address without the token, so the token is in no history, bookmark or link. Everybody with the
    cookie may see everything.
    """

    refusal = "Open the address that 'holdfast console' printed. It has a token, and is new with every start."

    def __init__(self, token: str | None = None) -> None:
        self.token = secrets.token_urlsafe(_BYTES) if token is None else token
        # Cookies don't depend on the port. Two consoles on one host must not overwrite each other's.
        self._cookie = f"holdfast-console-{secrets.token_hex(4)}"
        self._once: dict[str, float] = {}

    def once(self) -> str:
        """A token that lets one request in, within a minute.

        It is for the command that opens the browser: other users of the host see the arguments of commands.
        """
        token = secrets.token_urlsafe(_BYTES)
        self._once[token] = time.monotonic() + _ONCE_S
        return token

    async def enter(self, request: web.Request) -> web.StreamResponse | None:
        """Set the cookie if the address has the token."""
        given = request.query.get(TOKEN)
        if given is None or not (self._is_mine(given) or self._was_given_once(given)):
            return None
        query = {name: value for name, value in request.query.items() if name != TOKEN}
        # `path` begins with exactly one slash: `//host` would be another site.
        target = request.rel_url.with_path("/" + request.path.lstrip("/")).with_query(query)
        response = web.Response(status=303, headers={"Location": str(target)})
        response.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict", path="/")
        return response

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return the viewer if the cookie, or an `Authorization: Bearer`, has the token."""
        given = request.cookies.get(self._cookie, "")
        header = request.headers.get("Authorization", "")
        if not given and header.startswith("Bearer "):
            given = header.removeprefix("Bearer ").strip()
        return Viewer("local") if self._is_mine(given) else None

    async def may_see(self, viewer: Viewer, namespace: str) -> bool:  # noqa: ARG002 - the token is all that counts
        """Return True."""
        return True

    async def may_see_events(self, viewer: Viewer, namespace: str) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    async def may_read_rows(self, viewer: Viewer, namespace: str, collection: str) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def logout(self, request: web.Request) -> str:  # noqa: ARG002 - the command ends it
        """Return an empty text."""
        return ""

    def _was_given_once(self, given: str) -> bool:
        until = self._once.pop(given, None)
        return until is not None and time.monotonic() < until

    def _is_mine(self, given: str) -> bool:
        sent = given[:_MOST_TOKEN].encode(errors="replace")
        return hmac.compare_digest(sent, self.token.encode())
