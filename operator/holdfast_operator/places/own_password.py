"""Protects the operator's own Postgres password if specs may name any server.

- Without allowed locations (`bounds`), the password is never sent in plain text or as a hash that can be
  guessed. libpq only proves that it knows the password (SCRAM), or connects to a server that requires none.
- No spec can change this. For the password in a stash's own Secret, its server may choose any method.
- A requirement that is already set in the environment stays.
"""

import os
import re
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import unquote

from psycopg import pq

from holdfast.store_keys import AUTH

_PROOF: Final = "scram-sha-256,none"
_KNOWN_FROM: Final = 160000
"""The first version of libpq that reads the variable. Older ones ignore it."""
_OPTION: Final = re.compile(r"[?&]require_auth=")


def keep(environ: MutableMapping[str, str], version: int | None = None) -> None:
    """Makes libpq never send the password. Raises `ValueError` if this version of libpq can't do that."""
    if (found := pq.version() if version is None else version) < _KNOWN_FROM:
        raise ValueError(
            f"libpq {found // 10000} would send the operator's password to every server that a spec names: "
            "set --allow-location, or use libpq 16 or newer"
        )
    environ.setdefault(AUTH, _PROOF)


def refusal(url: str) -> str:
    """Returns why a URL may not be opened, as text after its field's name. Empty if it may."""
    if url.startswith("postgres") and _OPTION.search(unquote(url)):
        return "has the option require_auth, which only the operator's administrator may set; remove it"
    return ""


def methods_of_others() -> str:
    """Returns libpq's `require_auth` for a password of others, which `keep` doesn't protect. Empty: any."""
    return f"password,md5,{_PROOF}" if os.environ.get(AUTH) == _PROOF else ""
