"""All commands: what their help shows, which formats they have, and where hints lead."""

import inspect
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import GROUPS, SECTIONS, VERBS, main
from unit.docs.test_named_commands import fault

COLUMNS = 80


def commands(
    command: click.Command = main, path: tuple[str, ...] = ("holdfast",)
) -> Iterator[tuple[str, ...]]:
    """The paths of all commands that do something, with their short names."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))
    else:
        yield path


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path[1:]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def help_of(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(main, [*path[1:], "--help"], terminal_width=COLUMNS)
    assert done.exit_code == 0
    return done.stdout


ALL = list(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_of_a_command_has_an_example_that_fits(path: tuple[str, ...]) -> None:
    assert max(map(len, help_of(path).splitlines())) <= COLUMNS
    command = command_at(path)
    examples = examples_of(command)
    assert [words for words in examples if fault(" ".join(words))] == []
    assert any(_leads_to(words, command) for words in examples), examples


def examples_of(command: click.Command) -> list[list[str]]:
    """The words of the examples in the help of a command, from the name of the program on."""
    blocks = re.findall(r"^\x08\n((?:.+\n?)+)", inspect.cleandoc(command.help or ""), re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(re.sub(r"^eval .\$\((.*)\).", r"\1", line), comments=True) for line in lines]
    return [words[words.index("holdfast") :] for words in found if "holdfast" in words]


def _leads_to(words: list[str], command: click.Command) -> bool:
    found: click.Command | None = main
    for word in words[1:]:
        if not isinstance(found, click.Group):
            break
        found = found.get_command(click.Context(found), word)
    return found is command


OTHERS = {
    "holdfast catalog dump": "its output is the input of load",
    "holdfast collection create": "--format is that of its file",
    "holdfast collection export": "--format is that of its target; it prints nothing",
    "holdfast collection merge": "--format is that of its file; it prints nothing",
    "holdfast collection write": "--format is that of its file; it prints nothing",
    "holdfast completion": "it prints a script",
    "holdfast console": "it prints an address, and shows the rest in a browser",
    "holdfast persist export": "--format is that of its file; it prints nothing",
}
"""The commands whose output has no choice of a format, and why."""


def test_each_command_that_prints_something_has_a_format() -> None:
    without = set()
    for path in ALL:
        given = [each for each in command_at(path).params if "--format" in each.opts]
        choices = set(given[0].type.choices) if given and isinstance(given[0].type, click.Choice) else set()
        if not choices >= {"table", "json"}:
            without.add(" ".join(path))
    short = {f"holdfast {name}" for name in VERBS}
    assert without - short == OTHERS.keys()
    assert without & short == {"holdfast create", "holdfast merge", "holdfast write"}


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_has_each_command_on_one_line(group: str) -> None:
    command = command_at(("holdfast", group))
    shown = help_of(("holdfast", group))
    assert max(map(len, shown.splitlines())) <= COLUMNS
    for name, each in command.commands.items() if isinstance(command, click.Group) else ():
        assert re.search(
            rf"^  {name} +{re.escape(each.get_short_help_str(COLUMNS))}$", shown, re.MULTILINE
        ), name


def test_the_help_of_holdfast_is_grouped_and_fits() -> None:
    shown = help_of(("holdfast",))
    assert max(map(len, shown.splitlines())) <= COLUMNS
    heads = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert heads == ["Options", *SECTIONS, "Everything else"]
    # Each command is on one line, and all descriptions begin in one column.
    texts = {name: each.help for name, each in {**VERBS, **GROUPS}.items()}
    columns = {
        line.index(text)
        for name, text in texts.items()
        for line in shown.splitlines()
        if f"  {name} " in line and text in line
    }
    assert len(columns) == 1
    for name, text in texts.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", shown, re.MULTILINE), name


HARMFUL = {"drop-column", "gc", "release", "retain", "revert", "rollback", "run"}
"""Commands that don't ask, and take something away."""


def test_no_hint_leads_to_a_command_of_a_group_that_takes_something_away() -> None:
    names = {path[2] for path in ALL if len(path) == 3}
    harmful = HARMFUL | {
        path[2]
        for path in ALL
        # `kept` only shows, without --release.
        if len(path) == 3
        and path[2] != "kept"
        and any("--yes" in each.opts for each in command_at(path).params)
    }
    assert names >= harmful >= {"delete", "drop", "edit", "fence", "load", "recover", "restore"}
    for name in sorted(harmful - VERBS.keys()):
        done = CliRunner().invoke(main, [name])
        assert done.exit_code == 2
        assert "did you mean" not in done.stderr
        assert re.search(r"hint: see 'holdfast \w+ --help'", done.stderr), done.stderr
    for name in sorted(names - harmful - VERBS.keys() - {"list"}):
        assert f" {name}'" in CliRunner().invoke(main, [name]).stderr
    assert "did you mean 'holdfast delete'?" in CliRunner().invoke(main, ["delte"]).stderr
