"""Who works on a collection, as one text: the program, and perhaps the user and the process.

Commands and appends record such a text: `holdfast.table (ada, pid 4711)`. Earlier builds recorded the program
alone.
"""

import getpass
import os
import re
from typing import Final, NamedTuple

_FORM: Final = re.compile(r"(?P<program>.*) \((?P<user>[^(),]+), pid (?P<pid>\d{1,9})\)")
_PROCESS: Final = re.compile(r" \([^(),]+, pid \d{1,9}\)")
_UNFIT: Final = re.compile(r"[^\w.@\\ -]")
_MOST: Final = 40


class Who(NamedTuple):
    """A program, its user and its process. The last two are None if they are not known."""

    program: str
    user: str | None
    pid: int | None


def who_here(program: str) -> str:
    """The text for a program in this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user without a name.
        user = f"uid {os.getuid()}"
    return f"{program} ({_UNFIT.sub('_', user)[:_MOST]}, pid {os.getpid()})"


def parse_who(text: str) -> Who:
    """What a text says. Any other text is that of a program."""
    found = _FORM.fullmatch(text)
    return Who(text, None, None) if found is None else Who(found["program"], found["user"], int(found["pid"]))


def without_process(text: str) -> str:
    """A text, such as the purpose of a writer, without the user and the process in it."""
    return _PROCESS.sub("", text)
