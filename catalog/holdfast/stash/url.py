"""Opens a stash by its URL. Messages show only scheme and path of a URL: the rest may hold secrets."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.extras import needs
from holdfast.stash.sqlite import SqliteStash
from holdfast.stash.stash import Stash

DEFAULT_SCHEMA: Final = "holdfast_stash"
_FORMS: Final = "postgresql://user@host:port/database?schema=name, sqlite:///path"
_POSTGRES: Final = ("postgresql", "postgres")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def open_stash(
    url: str,
    *,
    create: bool = False,
    read_only: bool = False,
    names: Mapping[int, str] = MappingProxyType({}),
) -> Stash:
    """Open the stash at `postgresql://user@host/database?schema=name` or `sqlite:///path`.

    In Postgres a stash is one schema, by default `DEFAULT_SCHEMA`. The password may be in the URL, in
    $PGPASSWORD or in libpq's password file. If there is no stash at the URL, it is created if `create` is
    set and `read_only` is not. `names` maps the ids of collections to their names.

    Raises:
        BadInput: the URL is invalid, or the tables at the URL are not a stash's.
        NoLocation: there is no stash at the URL, and it may not be created.
        StoreUnreachable: the server or the file can't be opened.
        VersionTooNew, Deprecated: the tables have another version.
    """
    check_url(url)
    create = create and not read_only
    if url.partition("://")[0] in _POSTGRES:
        return _open_postgres(url, create=create, read_only=read_only, names=names)
    return SqliteStash(_path(url), create=create, read_only=read_only, names=names)


def check_url(url: str) -> str:
    """The place of a stash, as messages show it. Raises `BadInput` for an invalid URL. Does no I/O."""
    scheme, separator, _ = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # Text with one of these may be a URL that lacks only its scheme, with a password in it.
        given = "the stash" if any(each in url for each in "@?") else f"stash {url!r}"
        raise BadInput(f"{given} is not a URL", hint=f"known forms: {_FORMS}")
    if scheme in _POSTGRES:
        with needs("postgres", "a postgresql:// URL"):
            from holdfast.pg_session import PostgresAddress
        return PostgresAddress.parse(url, default_schema=DEFAULT_SCHEMA).description
    if scheme == "sqlite":
        return str(_path(url))
    raise BadInput(f"the scheme {scheme[:20]}:// of a stash is unknown", hint=f"known forms: {_FORMS}")


def _open_postgres(url: str, *, create: bool, read_only: bool, names: Mapping[int, str]) -> Stash:
    with needs("postgres", "a postgresql:// URL"):
        from holdfast.pg_session import PostgresAddress
        from holdfast.stash.postgres import PostgresStash
    address = PostgresAddress.parse(url, default_schema=DEFAULT_SCHEMA)
    return PostgresStash(address, create=create, read_only=read_only, names=names)


def _path(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadInput("the sqlite:// URL can't be parsed", hint="write sqlite:///absolute/path") from None
    path = unquote(parts.path).strip("/")
    if parts.netloc or not path or "\0" in path:
        raise BadInput("a sqlite:// URL needs an absolute path", hint="write sqlite:///absolute/path")
    if parts.query or parts.fragment:
        raise BadInput("a sqlite:// URL takes no options after '?' or '#'")
    return Path("/" + path)
