"""The URLs of specs, which everybody reads who can read the resource: nothing secret may be in them.

The API server refuses what the rules can tell; what it can't, such as an escaped name in a
value, the models refuse.
"""

import re
from typing import Final
from urllib.parse import unquote, urlsplit

TELLING: Final = (
    r"passw|passfile|passphrase|pwd|secret|token|credential|signature|(?:access|account|api)[_-]?key"
)
"""What a name holds whose value is secret, or a file of secrets, in any case."""

_MESSAGE: Final = "must not contain a user or a password: name a Secret in credentialsSecretRef"
NO_SECRETS: Final = (
    ("!self.matches('^[^/?#]*://[^/?#]*@')", _MESSAGE),
    (f"!self.matches('(?i)[?].*((?:{TELLING})[a-z0-9_.-]*|[?&]sig)(=|%3D)')", _MESSAGE),
    ("!self.matches('[?].*(@|%40)')", _MESSAGE),
    ("!self.matches('[?&][^=&]*%[^=&]*=')", "must not escape the name of an option after '?'"),
)
"""CEL rules of a URL."""

_NAMED: Final = re.compile(rf"(?:{TELLING})[\w.-]*\s*=|(?<![\w.-])sig=", re.IGNORECASE)
_WITH_USER: Final = re.compile(r"://[^/?#]*@")
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
    if url is not None and public(url) != url:
        raise ValueError(_MESSAGE)
    return url


def public(url: str) -> str:
    """A URL without what nobody else should read."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # No URL that could be opened.
        return url.partition("?")[0].rpartition("@")[2]
    kept = [each for each in parts.query.split("&") if not tells_a_secret(each)]
    netloc = parts.netloc.rpartition("@")[2]
    if (netloc, "&".join(kept)) == (parts.netloc, parts.query):
        # As it is written: what goes through a parser may lose an empty authority.
        return url
    return parts._replace(netloc=netloc, query="&".join(kept)).geturl()
