"""The URLs of specs, which everybody reads who can read the resource: nothing secret may be in them.

The API server refuses what the rules can tell; what it can't, such as an escaped name in a
value, the models refuse.
"""

import re
from typing import Final
from urllib.parse import unquote

TELLING: Final = (
    r"passw|passfile|passphrase|pwd|secret|token|credential|signature|authorization|cookie"
    r"|connection[._-]?string|(?:access|account|api|private)[._-]?key"
)
"""What a name holds whose value is secret, or a file of secrets, in any case."""
SHORT: Final = "sig|sk|pw|pass"
"""Whole names of such options: too short to be looked for within others."""

_MESSAGE: Final = "must not contain a user or a password: name a Secret in credentialsSecretRef"
_NO_FRAGMENT: Final = "must not contain '#' or control characters: a # of a path is written %23"
NO_SECRETS: Final = (
    ("!self.matches('[#[:cntrl:]]')", _NO_FRAGMENT),
    # libpq looks for a user up to the first slash, whatever is before it, and has no @ in its paths.
    ("!self.matches('(?i)^([^/]*://[^/]*|postgres.*)(@|%(25)*40)')", _MESSAGE),
    (f"!self.matches('(?i)[?](.*(?:{TELLING})[a-z0-9_.-]*|(.*[?&])?(?:{SHORT}))(=|%(25)*3D)')", _MESSAGE),
    ("!self.matches('[?].*(@|%(25)*40)')", _MESSAGE),
    ("!self.matches('[?&][^=&]*%[^=&]*=')", "must not escape the name of an option after '?'"),
)
"""CEL rules of a URL."""

_NAMED: Final = re.compile(rf"(?:{TELLING})[\w.-]*\s*=|(?<![\w.-])(?:{SHORT})\s*=", re.IGNORECASE)
_WITH_USER: Final = re.compile(r"://[^/]*@")
_USER: Final = re.compile(r"^[^/]*(?:@|%(?:25)*40)")
_USER_OF_POSTGRES: Final = re.compile(r"^.*(?:@|%(?:25)*40)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MOST_DECODED: Final = 3


def tells_a_secret(parameter: str) -> bool:
    """Whether a parameter of a URL, `name=value`, is or holds a secret, however it is escaped."""
    for _ in range(_MOST_DECODED):
        if _NAMED.search(parameter) or _WITH_USER.search(parameter):
            return True
        parameter = unquote(parameter)
    return False


def without_secrets(url: str | None) -> str | None:
    """The URL of a spec, for its model. Raises `ValueError`, without it, for one with a secret."""
    if url is not None and ("#" in url or _CONTROL.search(url)):
        raise ValueError(_NO_FRAGMENT)
    if url is not None and public(url) != url:
        raise ValueError(_MESSAGE)
    return url


def public(url: str) -> str:
    """A URL without what nobody else should read, whoever reads it: too little of it rather than too much.

    Stores differ in where a user ends; so a Postgres URL is cut at its last `@`, and nothing follows `#`.
    """
    before, mark, after = _CONTROL.sub("", url).partition("://")
    scheme, rest = (before, after) if mark else ("", before)
    user = _USER_OF_POSTGRES if scheme.lower().startswith("postgres") else _USER
    place, asks, query = user.sub("", rest).partition("#")[0].partition("?")
    kept = "&".join(each for each in query.split("&") if not tells_a_secret(each))
    return f"{scheme}{mark}{place}{asks if kept or not query else ''}{kept}"
