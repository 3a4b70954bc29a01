"""Checks that no public class name stands for two things: `python checks/class_names.py`.

A public class is a class at the top level of a module whose name has no leading underscore. A
distribution may define each name once. `class_names.txt` lists the exceptions, one `distribution name #
reason` on each line, sorted. An exception that is no longer needed is an error too, so the list only gets
shorter.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "holdfast": ROOT / "catalog" / "holdfast",
    "holdfast-operator": ROOT / "operator" / "holdfast_operator",
}
EXCEPTIONS = Path(__file__).with_name("class_names.txt")
GENERATED = "_pb"


def duplicates(source: Path) -> dict[str, list[str]]:
    """Return the public class names that a distribution defines more than once, each with its places."""
    places = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        if GENERATED in path.relative_to(source).parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(source.parent)}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def problems(sources: Mapping[str, Path], given: list[str]) -> list[str]:
    """Return one line for each name that breaks the rule, and for each exception that is not needed.

    `given` are the lines of the exceptions.
    """
    parts = [line.partition("#") for line in given]
    exceptions = [name.strip() for name, _, _ in parts]
    found = {
        f"{distribution} {name}": places
        for distribution, source in sources.items()
        for name, places in duplicates(source).items()
    }
    lines = [
        f"class {key.split()[1]} is defined {len(places)} times: rename all but one ({', '.join(places)})"
        for key, places in found.items()
        if key not in exceptions
    ]
    lines += [
        f"{EXCEPTIONS.name}: delete the line '{each}': the name is unique now"
        for each in exceptions
        if each not in found
    ]
    lines += [
        f"{EXCEPTIONS.name}: write the reason behind the line '{name.strip()}': # reason"
        for name, _, reason in parts
        if not reason.strip()
    ]
    if exceptions != sorted(set(exceptions)):
        lines.append(f"{EXCEPTIONS.name}: sort the lines, and keep each only once")
    return lines


def main() -> int:
    """Print the problems; returns the exit code."""
    found = problems(DISTRIBUTIONS, EXCEPTIONS.read_text().splitlines())
    print("".join(f"lint: {line}\n" for line in found), end="", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
