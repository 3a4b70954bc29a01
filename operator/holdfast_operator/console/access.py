"""Who looks at the console of a cluster, and what they may see.

A viewer is the user of a bearer token: from the `Authorization` header, as a proxy such as oauth2-proxy
sends it, or pasted on the login page and kept in a cookie. `reviews` asks the API server about both the
token and the rights.

Invariants
- Nothing but the token says who the viewer is. No header that names a user, a group or an impersonated user
  is read.
- A viewer sees a namespace if they may list all of Holdfast's kinds there (`_VIEW`). They see rows if they
  may also `get storagecollections/data` there.
- The token is on no page and in no log. The cookie is HttpOnly and SameSite=Strict, and Secure behind TLS.
  So no script reads it, and no other site sends it.
- The login form accepts a token only from its own page. Otherwise another site could log a viewer in as
  somebody else.
"""

import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from aiohttp import web

from holdfast.console.access import Viewer
from holdfast.console.rendering import PAGES
from holdfast_operator.api.names import Kind
from holdfast_operator.console.resources import SHARED, NotListed, Resources
from holdfast_operator.console.reviews import ClusterViewer, Reviews, Right

log = logging.getLogger(__name__)

COOKIE: Final = "holdfast-token"
LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
_VIEW: Final = tuple(kind.plural for kind in Kind)
_BEARER: Final = "bearer "
_LONGEST_FORM: Final = 64 * 1024
_OWN_PAGE: Final = frozenset({"same-origin", "none"})
_HINT: Final = "kubectl create token ACCOUNT --namespace NAMESPACE"


class ClusterAccess:
    """Access by tokens of the API server. Implements `holdfast.console.access.Access`."""

    refusal = f"Log in at {LOGIN} with a token of this cluster. This makes one: {_HINT}"

    def __init__(self, reviews: Reviews, resources: Resources) -> None:
        self._reviews = reviews
        self._resources = resources

    async def enter(self, request: web.Request) -> web.StreamResponse | None:
        """Returns the login page for somebody unknown, and the response to a login or a logout."""
        if request.path == LOGIN and request.method == "POST":
            return await self._log_in(request)
        if request.path == LOGOUT and request.method == "POST":
            return _logged_out(request)
        if request.path == LOGIN:
            return _login_page(request, "", status=200)
        if await self.viewer(request) is not None:
            return None
        if _comes_from_elsewhere(request):
            return _page(request, status=401, reload=True)
        said = "The token is not valid, or it has expired." if _token(request) else ""
        return _login_page(request, said, status=401)

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Returns the user of the request's token, or None. Raises `StoreUnreachable` and `TooBusy`."""
        return await self._reviews.viewer(_token(request))

    async def may_see(self, viewer: Viewer, namespace: str) -> bool:
        """Returns whether a viewer may list all kinds in a namespace, or in all if it is empty.

        Several namespaces are separated by `SHARED`, and the viewer must be allowed to see each of them.
        """
        return await self._may_all(viewer, namespace, [Right("list", plural) for plural in _VIEW])

    async def may_see_events(self, viewer: Viewer, namespace: str) -> bool:
        """Returns whether a viewer may list the Events of a namespace."""
        return await self._may_all(viewer, namespace, [Right("list", "events", group="")])

    async def may_read_rows(self, viewer: Viewer, namespace: str, collection: str) -> bool:
        """Returns whether a viewer may read the rows of a collection, given by its id."""
        if not await self.may_see(viewer, namespace):
            return False
        name = "" if SHARED in namespace else await self._resource_of(namespace, collection)
        data = Right("get", "storagecollections", "data", name=name)
        return await self._may_all(viewer, namespace, [data])

    def logout(self, request: web.Request) -> str:
        """Returns the path of the form that deletes the cookie. Empty if a proxy sends the token."""
        return "" if request.headers.get("Authorization") else LOGOUT

    async def _resource_of(self, namespace: str, collection: str) -> str:
        """Returns the name of the resource of the collection with an id. Empty if there is not exactly one.

        A right to one resource by name is then not enough. Names of collections don't count: another Catalog
        of the namespace may have a collection of the same name.
        """
        try:
            found = await self._resources.resources("storagecollections", namespace)
        except NotListed:
            return ""
        names = [
            body["metadata"]["name"]
            for body in found
            if collection == body.get("status", {}).get("collectionId")
        ]
        return names[0] if len(names) == 1 else ""

    async def _may_all(self, viewer: Viewer, namespaces: str, rights: Sequence[Right]) -> bool:
        """Returns whether a viewer has some rights in all of these namespaces."""
        if not isinstance(viewer, ClusterViewer):
            return False
        for each in namespaces.split(SHARED):
            for right in rights:
                if not await self._has(viewer, right, each):
                    return False
        return True

    async def _has(self, viewer: ClusterViewer, right: Right, namespace: str) -> bool:
        # For a right in all namespaces, one review is enough.
        everywhere = Right(right.verb, right.resource, right.subresource, group=right.group)
        if await self._reviews.may(viewer, everywhere):
            return True
        if not namespace:
            return False
        there = Right(right.verb, right.resource, right.subresource, namespace, right.name, right.group)
        return await self._reviews.may(viewer, there)

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if not _is_own(request):
            return _login_page(request, "Log in on this page, not from another site.", status=403)
        if (request.content_length or 0) > _LONGEST_FORM:
            return _login_page(request, "The token is too long.", status=413)
        form = await request.post()
        given = form.get("token")
        token = given.strip() if isinstance(given, str) else ""
        viewer = await self._reviews.viewer(token)
        if viewer is None:
            return _login_page(request, "The API server does not accept this token.", status=401)
        log.info("%s logged in", viewer.name)
        response = web.Response(status=303, headers={"Location": _next(request)})
        response.set_cookie(
            COOKIE, token, httponly=True, samesite="Strict", secure=_is_secure(request), path="/"
        )
        return response


def _token(request: web.Request) -> str:
    """Returns the token of a request, or empty. One in the header takes precedence over the cookie."""
    header = request.headers.get("Authorization", "")
    if header:
        return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else ""
    return request.cookies.get(COOKIE, "")


def _is_secure(request: web.Request) -> bool:
    # A proxy ends TLS. A wrong header only makes the cookie stricter, or the viewer's own proxy less so.
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _is_own(request: web.Request) -> bool:
    """Returns whether a form was sent by a page of this console, or by a program that is no browser."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in _OWN_PAGE
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.host


def _comes_from_elsewhere(request: web.Request) -> bool:
    """Returns whether a link of another site led here. The browser then holds the strict cookie back.

    A reload sends it.
    """
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Site") in {"cross-site", "same-site"}
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and not _token(request)
    )


def _next(request: web.Request) -> str:
    """Returns where to go after the login: a path of this site."""
    target = request.query.get("next", "/")
    is_path = target.startswith("/") and target[1:2] not in {"/", "\\"} and target.isprintable()
    return quote(target, safe="/?&=%,:+-._~") if is_path else "/"


def _logged_out(request: web.Request) -> web.StreamResponse:
    if not _is_own(request):
        return _login_page(request, "Log out on the console's own pages.", status=403)
    response = web.Response(status=303, headers={"Location": LOGIN})
    response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=_is_secure(request))
    return response


def _login_page(request: web.Request, said: str, *, status: int) -> web.Response:
    return _page(request, status=status, said=said)


def _page(request: web.Request, *, status: int, said: str = "", reload: bool = False) -> web.Response:
    target = _next(request) if request.path == LOGIN else str(request.rel_url)
    context = {
        "action": f"{LOGIN}?next={quote(target, safe='')}",
        "said": said,
        "hint": _HINT,
        "reload": reload,
    }
    text = request.app[PAGES].render("login.html", context)
    return web.Response(text=text, content_type="text/html", status=status)
