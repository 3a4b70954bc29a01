"""Commands that a text only names, in a page or a message, are there, with the flags that it names.

Those in a block of a page are run (`test_pages`).
"""

import argparse
import re
from collections.abc import Iterator

import click
import pytest

from holdfast.cli import main as library
from holdfast_operator.__main__ import _parser as operator
from holdfast_operator.kubectl.main import _command as plugin
from testbed.docpages import ROOT, pages

SOURCES = [
    *sorted((ROOT / "catalog" / "holdfast").rglob("*.py")),
    *sorted((ROOT / "operator" / "holdfast_operator").rglob("*.py")),
    *sorted((ROOT / "charts").rglob("*.yaml")),
    *sorted((ROOT / "charts").rglob("*.txt")),
]
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
QUOTED = re.compile(r"'((?:kubectl )?holdfast(?:-operator)? [^'\n]+)'")
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OTHERS = {"--no-hooks", "--part short", "--part long", "--provide", "--strict", "--take-ownership"}
"""Flags of other programs that a page names without the program."""


def fault(line: str) -> str | None:
    """What a command names that isn't there; None also for a command of another program."""
    words = line.replace("[", " ").replace("]", " ").split()
    match words:
        case ["kubectl", "holdfast", *rest]:
            return in_click(plugin, rest)
        case ["holdfast", *rest]:
            return in_click(library, rest)
        case ["holdfast-operator", *rest]:
            return in_argparse(operator(), rest)
        case ["make", target, *_] if target not in TARGETS:
            return f"make has no {target}"
        case [flag, *_] if (
            line not in OTHERS and flag.startswith("--") and flag not in known_flags() | OTHERS
        ):
            return f"nothing has {flag}"
    return None


def in_click(command: click.Command, words: list[str]) -> str | None:
    flags = flags_of(command)
    for word in words:
        if word.startswith("--"):
            if word.partition("=")[0] not in flags:
                return f"{command.name} has no {word}"
        elif isinstance(command, click.Group):
            context = click.Context(command)
            under = [command.get_command(context, name) for name in word.split("|")]
            if None in under:
                return None if not re.fullmatch(r"[a-z|-]+", word) else f"{command.name} has no {word}"
            command = next(each for each in under if each is not None)
            flags |= set().union(*(flags_of(each) for each in under if each is not None))
    return None


def flags_of(command: click.Command) -> set[str]:
    named = [[*each.opts, *each.secondary_opts] for each in command.params]
    return {"--help", *(flag for flags in named for flag in flags)}


def in_argparse(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    there = {"run": parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            there = dict(action.choices)
    if words and words[0] not in there:
        return f"{parser.prog} has no {words[0]}"
    for word in words[1:]:
        if word.startswith("--") and word.partition("=")[0] not in there[words[0]]._option_string_actions:
            return f"{parser.prog} {words[0]} has no {word}"
    return None


def known_flags() -> set[str]:
    """The flags of all of our commands."""
    found = {flag for each in (library, plugin) for command in below(each) for flag in flags_of(command)}
    for action in operator()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for each in action.choices.values() for flag in each._option_string_actions}
    return found


def below(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            yield from below(each)


@pytest.mark.parametrize("page", pages())
def test_what_a_page_names_is_there(page: str) -> None:
    text = BLOCK.sub("", (ROOT / page).read_text())
    named = [each.replace("\\|", "|") for each in SPAN.findall(text)]
    assert {each: wrong for each in named if (wrong := fault(each))} == {}


def test_what_messages_and_descriptions_name_is_there() -> None:
    named = {(path, each) for path in SOURCES for each in QUOTED.findall(path.read_text())}
    assert len(named) > 20
    wrong = {f"{path.relative_to(ROOT)}: {each}": said for path, each in named if (said := fault(each))}
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "holdfast catalog undump",
        "holdfast catalog dump|undump",
        "holdfast catalog dump --sideways",
        "holdfast --sideways catalog dump",
        "kubectl holdfast undo",
        "kubectl holdfast status --sideways",
        "holdfast-operator walk",
        "holdfast-operator run --sideways=1",
        "make haste",
        "--sideways",
    ],
)
def test_what_is_not_there_is_found(line: str) -> None:
    assert fault(line)


@pytest.mark.parametrize(
    "line",
    [
        "holdfast",
        "holdfast catalog dump URL",
        "holdfast --debug ...",
        "holdfast catalog init|dump",
        "holdfast catalog {command}",
        "kubectl holdfast status catalog/demo",
        "holdfast-operator run",
        "kubectl get catalogs --sideways",
        "make test",
    ],
)
def test_what_is_there_is_taken(line: str) -> None:
    assert fault(line) is None
