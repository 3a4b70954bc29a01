"""Rules for URLs in specs. Everybody who can read the resource reads them, so they hold no secrets.

The API server refuses what its CEL rules can detect. The models refuse the rest, such as an escaped name
in a value.
"""

import re
from typing import Final
from urllib.parse import unquote

TELLING: Final = (
    r"passw|passfile|passphrase|pwd|secret|token|credential|signature|authorization|cookie"
    r"|connection[._-]?string|(?:access|account|api|private)[._-]?key"
)
"""A name that contains one of these, in upper or lower case, has a value that is secret or a file of
secrets."""
SHORT: Final = "sig|sk|pw|pass"
"""Further such names. They are too short to search for within other names, so only whole names match."""

_INSTEAD: Final = "name a Secret in credentialsSecretRef"
_MESSAGE: Final = f"must not contain a user or a password: {_INSTEAD}"
_NO_FRAGMENT: Final = "must not contain '#' or control characters: write %23 for a # in a path"
NO_SECRETS: Final = (
    ("!self.matches('[#[:cntrl:]]')", _NO_FRAGMENT),
    # libpq looks for a user in everything up to the first slash. Its paths contain no `@`.
    ("!self.matches('(?i)^([^/]*://[^/]*|postgres.*)(@|%(25)*40)')", _MESSAGE),
    (f"!self.matches('(?i)[?](.*(?:{TELLING})[a-z0-9_.-]*|(.*[?&])?(?:{SHORT}))(=|%(25)*3D)')", _MESSAGE),
    ("!self.matches('[?].*(@|%(25)*40)')", _MESSAGE),
    ("!self.matches('[?&][^=&]*%[^=&]*=')", "must not escape the name of an option after '?'"),
)
"""CEL rules for a URL, as `validations` takes them."""


def no_secrets(instead: str) -> tuple[tuple[str, str], ...]:
    """Returns the same rules for a URL whose credentials are not in `credentialsSecretRef` beside it."""
    return tuple((rule, message.replace(_INSTEAD, instead)) for rule, message in NO_SECRETS)


_NAMED: Final = re.compile(rf"(?:{TELLING})[\w.-]*\s*=|(?<![\w.-])(?:{SHORT})\s*=", re.IGNORECASE)
_WITH_USER: Final = re.compile(r"://[^/]*@")
_USER: Final = re.compile(r"^[^/]*(?:@|%(?:25)*40)")
_USER_OF_POSTGRES: Final = re.compile(r"^.*(?:@|%(?:25)*40)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MOST_DECODED: Final = 3


def tells_a_secret(parameter: str) -> bool:
    """Returns whether a URL's parameter `name=value` contains a secret, also if it is escaped."""
    for _ in range(_MOST_DECODED):
        if _NAMED.search(parameter) or _WITH_USER.search(parameter):
            return True
        parameter = unquote(parameter)
    return False


def without_secrets(url: str | None) -> str | None:
    """Returns the URL, or raises `ValueError` if it contains a secret. The message doesn't contain it."""
    if url is not None and ("#" in url or _CONTROL.search(url)):
        raise ValueError(_NO_FRAGMENT)
    if url is not None and public(url) != url:
        raise ValueError(_MESSAGE)
    return url


def public(url: str) -> str:
    """Returns the URL without its secrets, so that anybody may read it. In doubt it removes too much.

    Stores differ in how they find the end of a user name. So a Postgres URL loses everything up to its last
    `@`, and every URL loses what follows a `#`.
    """
    before, mark, after = _CONTROL.sub("", url).partition("://")
    scheme, rest = (before, after) if mark else ("", before)
    user = _USER_OF_POSTGRES if scheme.lower().startswith("postgres") else _USER
    place, asks, query = user.sub("", rest).partition("#")[0].partition("?")
    kept = "&".join(each for each in query.split("&") if not tells_a_secret(each))
    return f"{scheme}{mark}{place}{asks if kept or not query else ''}{kept}"
