"""Removes secrets from text and objects before they get into a support bundle.

A value is secret because of its place or its form. Places are the user info of a URL, `password=...`, and an
environment variable, a flag or a field with a suspicious name. Forms are tokens, keys and PEM blocks.

Invariants
- A value that is secret in one place is masked everywhere. So everything is read first (`learn`) before
  anything is written (`text` and `tree`).
- In doubt, a value is masked. Names of Secrets are kept, because support needs them.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

from holdfast_operator.api.urls import SHORT, tells_a_secret

_MASK: Final = "***"
_SHORTEST: Final = 6
"""Shorter values are masked in their place, but not wherever else the same letters occur."""

_TELLING: Final = (
    r"passw|passphrase|pwd|secret|token|credential|signature|authorization|cookie|private"
    r"|(?:access|account|api|auth|encryption|signing|client|storage|master)[_.-]?key"
)
_TELLS: Final = re.compile(_TELLING, re.IGNORECASE)
_REFERENCE: Final = re.compile(
    r"(?:secret[_-]?(?:ref|name|key[_-]?ref)|credentials[_-]?secret(?:[_-]?ref)?|pull[_-]?secrets?"
    r"|service[_-]?account[_-]?token|tokenexpirationseconds|automount\w*|fence[_-]?token)$",
    re.IGNORECASE,
)
"""Names of fields that only name a Secret."""

_LOOKS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----(?s:.*?)(?:-----END [A-Z ]+-----|\Z)"),
    re.compile(r"(?<=://)[^\s\"'<>/?#]*(?=@)"),
    # A password that was not escaped may contain any character.
    re.compile(r"(?<=://)[^\s\"'<>]*(?=@[\w.-]+(?:[:/?\s\"'<>]|$))"),
    re.compile(r"(?i:(?<=%3A%2F%2F))[^\s\"'<>&]*(?=%40)"),
    re.compile(r"(?<=://)[^\s\"'<>/?&]*(?=%40)"),
    re.compile(r"(?<=bearer )[\w+/=.~-]{8,}|(?<=basic )[\w+/=.~-]{8,}", re.IGNORECASE),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}\b"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|sk_live_|hvs\.)[\w-]{10,}"),
)
_SHORT: Final = re.compile(rf"(?<![\w.-])(?:{SHORT})=([^\s&;\"'<>]+)", re.IGNORECASE)
_OPTION: Final = re.compile(r"(?<![^\s&?\"'<>=])[^\s&?\"'<>=]+=([^\s&\"'<>]+)")
"""An option of a URL."""
_BEFORE: Final = re.compile(r"[\w.-]{0,64}\Z")
_AFTER: Final = re.compile(r"[\w.-]*")
_VALUE: Final = re.compile(
    r"""\\*["']?\s*(?:=|:(?!//))\s*"""
    r"""(?:\\*"(?P<double>[^"\\]+)|\\*'(?P<single>[^'\\]+)|(?P<plain>[^\s&;,"'<>\\}\])]+))"""
)
"""A value after a name: `=value`, `: value`, `": "value"`, also with escaped quotes."""
_FLAG_VALUE: Final = re.compile(r"\s+(?P<plain>[^\s-]\S*)")
_DENSE: Final = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{24,}+")
_DROPPED: Final = {"managedFields", "kubectl.kubernetes.io/last-applied-configuration"}
_HARMLESS: Final = {"true", "false", "none", "null", _MASK}
_WORD: Final = re.compile(r"[A-Za-z]?[a-z]*")
"""A word that may follow `password:` in a sentence, or user info without a password."""
_PLACES: Final = {"name", "secretName", "path", "key", "namespace", "mountPath"}
"""Fields inside an object with a suspicious name that only say where the secret is."""
_AWS_KEY: Final = 40


class Redactor:
    """Finds secrets in everything that it learns, and masks them."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, value: Any) -> None:
        """Finds the secrets in an object or a text."""
        if isinstance(value, str):
            for begin, end in _spans(value):
                # A value that may be an ordinary word is masked only in its place.
                if not _WORD.fullmatch(value, begin, end):
                    self._note(value[begin:end])
                if "%" in value[begin:end]:
                    self.learn(unquote(value[begin:end]))
            return
        for telling, text in _leaves(value):
            if telling:
                self._note(text)
            self.learn(text)

    def text(self, text: str) -> str:
        """Returns the text without secrets."""
        for value in sorted(self._known, key=len, reverse=True):
            text = text.replace(value, _MASK)
        parts, done = [], 0
        for begin, end in sorted(_spans(text)):
            if end > done:
                parts += [text[done:begin], _MASK] if begin >= done else []
                done = end
        return "".join([*parts, text[done:]])

    def tree(self, value: Any) -> Any:
        """Returns an object without secrets, `managedFields` and the last applied configuration."""
        return _mapped(value, lambda telling, text: _MASK if telling and text else self.text(text))

    def _note(self, value: str) -> None:
        for each in {value, value.rpartition(":")[2]}:
            if len(each) >= _SHORTEST and each.lower() not in _HARMLESS:
                self._known.add(each)
                # The form of the value in JSON text.
                self._known.add(json.dumps(each)[1:-1])


def _tells(name: str) -> bool:
    return bool(_TELLS.search(name)) and not _REFERENCE.search(name)


def _after_flags(values: list[Any]) -> set[int]:
    """Returns the positions in a list of arguments that hold values of flags with suspicious names."""
    return {
        index + 1
        for index, each in enumerate(values)
        if isinstance(each, str) and each.startswith("-") and "=" not in each and _tells(each)
    }


def _leaves(value: Any) -> list[tuple[bool, str]]:
    """Returns the texts of an object, each with whether its place makes it secret."""
    leaves: list[tuple[bool, str]] = []

    def note(telling: bool, text: str) -> str:
        leaves.append((telling, text))
        return text

    _mapped(value, note)
    return leaves


def _mapped(value: Any, leaf: Callable[[bool, str], str], *, telling: bool = False) -> Any:
    """Returns the object with each text replaced by `leaf(secret by its place, text)`."""
    match value:
        case dict():
            named = str(value.get("name", ""))
            return {
                name: _mapped(each, leaf, telling=_tells_field(str(name), named, within=telling))
                for name, each in value.items()
                if name not in _DROPPED
            }
        case list():
            flags = _after_flags(value)
            return [
                _mapped(each, leaf, telling=telling or index in flags) for index, each in enumerate(value)
            ]
        case str():
            return leaf(telling, value)
        case _:
            return value


def _tells_field(name: str, named: str, *, within: bool) -> bool:
    """Returns whether a field is secret because of its name, its variable's name, or the object around it."""
    if within:
        return name not in _PLACES and not _REFERENCE.search(name)
    return _tells(name) or (name == "value" and _tells(named))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields the positions of the secrets in a text."""
    for pattern in _LOOKS:
        yield from (match.span() for match in pattern.finditer(text) if match.group() not in {"", _MASK})
    yield from _named(text)
    yield from (match.span(1) for match in _SHORT.finditer(text) if match.group(1).lower() not in _HARMLESS)
    for match in _OPTION.finditer(text):
        if "%" in match.group() and tells_a_secret(match.group()):
            yield match.span(1)
    yield from (match.span() for match in _DENSE.finditer(text) if _looks_random(match.group()))


def _named(text: str) -> Iterator[tuple[int, int]]:
    """Yields the positions of values that follow a suspicious name."""
    done = 0
    for match in _TELLS.finditer(text):
        if match.start() < done:
            continue
        before = _BEFORE.search(text, max(done, match.start() - 64), match.start())
        begin = before.start() if before else match.start()
        after = _AFTER.match(text, match.end())
        done = after.end() if after else match.end()
        name = text[begin:done]
        if not _tells(name):
            continue
        value = _VALUE.match(text, done) or (_FLAG_VALUE.match(text, done) if name.startswith("-") else None)
        if value is not None and value[value.lastgroup or 0].lower() not in _HARMLESS:
            yield value.span(value.lastgroup or 0)


def _looks_random(run: str) -> bool:
    """Returns whether a long run looks like a key, with digits and letters of both cases.

    Ids, digests and names of pods are in lower case. Paths and words in camel case have few digits.
    """
    digits = sum(each.isdigit() for each in run)
    upper = sum(each.isupper() for each in run)
    lower = sum(each.islower() for each in run)
    if len(run) == _AWS_KEY:
        return min(upper, lower) >= 3 and digits > 0
    return min(digits, upper, lower) >= 3 and run.count("/") * 8 <= len(run)
