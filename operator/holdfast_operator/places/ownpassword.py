"""The operator's own password for Postgres, where specs may name any server.

- Without places (`bounds`) it goes to no server that asks for it as it is, or for a hash that can be
  guessed from: libpq proves that it knows it (SCRAM), and takes a server that asks for none.
- No spec says otherwise. What a stash's own Secret has, its server may ask for as it likes.
- Whoever runs the operator may have said what is required, in the environment: that stays.
"""

import os
import re
from collections.abc import MutableMapping
from typing import Final
from urllib.parse import unquote

from psycopg import pq

_VARIABLE: Final = "PGREQUIREAUTH"
_PROOF: Final = "scram-sha-256,none"
_KNOWN_FROM: Final = 160000
"""The version of libpq that reads the variable: an older one would ignore it."""
_OPTION: Final = re.compile(r"[?&]require_auth=")


def keep(environ: MutableMapping[str, str], version: int | None = None) -> None:
    """From now on libpq keeps the password to itself. Raises `ValueError` where this libpq can't."""
    if (found := pq.version() if version is None else version) < _KNOWN_FROM:
        raise ValueError(
            f"libpq {found // 10000} would tell the password of the operator to every server that a spec "
            "names: name places with --allow-location, or use libpq 16 or newer"
        )
    environ.setdefault(_VARIABLE, _PROOF)


def refusal(url: str) -> str:
    """Why a URL that is in no place may not be opened, as it follows its field; empty where it may."""
    if url.startswith("postgres") and _OPTION.search(unquote(url)):
        return "has the option require_auth, which is for whoever runs the operator to say; remove it"
    return ""


def option_of_others() -> str:
    """The option of a URL with somebody else's password, which what `keep` says isn't about."""
    return f"require_auth=password,md5,{_PROOF}" if os.environ.get(_VARIABLE) == _PROOF else ""
