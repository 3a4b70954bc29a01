"""The base of released images, which operator/base/Dockerfile names: `python checks/base.py [--pin]`.

Prints the base, such as python:3.11-slim-bookworm@sha256:..., for the argument BASE of operator/Dockerfile.
Without a digest, two builds of the same sources could have different bases. So the program then fails.
`--pin` asks the registry for the digest of the tag, and writes it to the file and to operator/Dockerfile.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "operator" / "base" / "Dockerfile"
IMAGE = FILE.parents[1] / "Dockerfile"
"""The file of the image. The default of its argument BASE is what people build on."""
_FROM = re.compile(r"^FROM (?P<name>[^\s@]+)(@(?P<digest>\S+))?$", re.MULTILINE)
_DEFAULT = re.compile(r"^ARG BASE=.*$", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class NotPinned(Exception):
    """The base has no digest, or it can't be found out. The message says what to do."""


def pinned(text: str) -> str:
    """Return the base in the text of a Dockerfile. Raises `NotPinned` if it has no digest."""
    found = _FROM.search(text)
    if found is None or not _DIGEST.fullmatch(found["digest"] or ""):
        raise NotPinned(
            f"operator/base/Dockerfile names {found['name'] if found else 'no base'} without a digest: "
            "run 'make pin-base' and commit the file"
        )
    return f"{found['name']}@{found['digest']}"


def pin(text: str, crane: str | Path) -> str:
    """Return the same text with the digest that the tag has now. Raises `NotPinned` if nobody knows it."""
    found = _FROM.search(text)
    if found is None:
        raise NotPinned("operator/base/Dockerfile has no line 'FROM name:tag'")
    done = subprocess.run([crane, "digest", found["name"]], capture_output=True, text=True, check=False)
    digest = done.stdout.strip()
    if done.returncode != 0 or not _DIGEST.fullmatch(digest):
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotPinned(f"the registry doesn't give the digest of {found['name']}: {why}")
    return text[: found.start()] + f"FROM {found['name']}@{digest}" + text[found.end() :]


def set_default(text: str, base: str) -> str:
    """Return the text of operator/Dockerfile with another default of its argument BASE."""
    return _DEFAULT.sub(f"ARG BASE={base}", text, count=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or pin the base; returns the exit code."""
    try:
        if "--pin" in (sys.argv[1:] if arguments is None else arguments):
            from testbed import build

            build.ensure((build.CRANE,))
            text = pin(FILE.read_text(), build.CRANE.path)
            FILE.write_text(text)
            IMAGE.write_text(set_default(IMAGE.read_text(), pinned(text)))
        print(pinned(FILE.read_text()))
    except NotPinned as error:
        print(f"base: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
