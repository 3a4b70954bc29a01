"""Shell completion: the values of options and arguments, and the command `holdfast completion`.

Invariants
- A completion imports nothing heavy, and fails silently: a shell shows only values.
- The names of tables come from a file in the user's cache folder, which holds nothing else. If it is missing,
  a completion runs `holdfast ls`, which writes it, and waits for that. If it is a few seconds old, a
  completion uses it and runs `holdfast ls` in the background. Without completions there is no such file.
- URLs, which may have a password, go to that process in its environment, and into the name of the file as a
  hash.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from holdfast.cli.location import located
from holdfast.errors import HoldfastError

_VARIABLE: Final = "_HOLDFAST_COMPLETE"
_REMEMBER: Final = "_HOLDFAST_REMEMBER"
_FRESH_S: Final = 5.0
_WAIT_S: Final = 4.0
_LIST: Final = "from holdfast.cli.program import run; run()"

SHELLS: Final = ("bash", "zsh", "fish")


def complete_tables(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """The names of the tables of the location that the command line or the environment names."""
    with contextlib.suppress(HoldfastError, OSError, RuntimeError, subprocess.TimeoutExpired):
        found = located(context.params.get("url"), context.params.get("consensus"))
        names = _known_tables(found.url, found.consensus)
        return [CompletionItem(each) for each in names if each.startswith(incomplete)]
    return []


def remember_tables(url: str, consensus: str | None, names: Iterable[str]) -> None:
    """Keep the names of the tables of a location, if completions use them and it is possible."""
    # There may be no home.
    with contextlib.suppress(OSError, RuntimeError):
        file = _cache_of(url, consensus)
        if _REMEMBER not in os.environ and not file.exists():
            return
        # Another process may read it or write it now.
        making = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        making.write_text("".join(f"{each}\n" for each in names if each.isprintable()))
        making.replace(file)


def forget_tables(url: str, consensus: str | None) -> None:
    """Let the next completion look at the location, because its tables have changed."""
    with contextlib.suppress(OSError, RuntimeError):
        _cache_of(url, consensus).unlink(missing_ok=True)


def _known_tables(url: str, consensus: str | None) -> Sequence[str]:
    file = _cache_of(url, consensus)
    try:
        age_s = time.time() - file.stat().st_mtime
    except FileNotFoundError:
        _list_tables(url, consensus).wait(_WAIT_S)
    else:
        if not 0 <= age_s < _FRESH_S:
            # The next key press must not start another process.
            os.utime(file)
            _list_tables(url, consensus)
    return file.read_text().splitlines()


def _list_tables(url: str, consensus: str | None) -> "subprocess.Popen[bytes]":
    """A process that remembers the tables. The shell doesn't wait for it."""
    names = {_VARIABLE, "HOLDFAST_URL", "HOLDFAST_CONSENSUS_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOLDFAST_URL": url, _REMEMBER: "1"}
    if consensus is not None:
        environment["HOLDFAST_CONSENSUS_URL"] = consensus
    nothing = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, "-c", _LIST, "ls"],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        env=environment,
        start_new_session=True,
    )


def _cache_of(url: str, consensus: str | None) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "tables"
    return folder / hashlib.sha256(f"{url}\n{consensus or ''}".encode()).hexdigest()


@add_completion_class
class _Bash(BashComplete):
    """Bash breaks words at `:` and `@`. So the whole line is taken, and only its last piece is replaced."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' line kind value
    COMPREPLY=()
    while IFS=',' read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    @staticmethod
    def _check_version() -> None:
        """Do nothing. The script needs Bash 4.4, and the documentation says so."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words of the line before the cursor, and the last one, which may be empty."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        return words, incomplete

    def complete(self) -> str:
        """The values, without what bash takes for an earlier word."""
        words, incomplete = self.get_completion_args()
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        before = max((index + 1 for index, each in enumerate(incomplete) if each in breaks), default=0)
        found = self.get_completions(words, incomplete)
        return "".join(f"{each.type},{str(each.value)[before:]}\n" for each in found)


@click.command(short_help="Show the completion script for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Show the script that completes commands, options, and the names of tables and of named locations.

    \b
    eval "$(holdfast completion bash)"    # in ~/.bashrc, for bash 4.4 or newer
    eval "$(holdfast completion zsh)"     # in ~/.zshrc, after compinit
    holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """  # noqa: D301 - the escape is for the formatter of the help
    from holdfast.cli import main

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "holdfast", _VARIABLE).source(), nl=False)
