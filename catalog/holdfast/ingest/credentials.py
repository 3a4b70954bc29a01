"""The secrets that a spec names and doesn't have: where they are, and how they are read.

A spec names an environment variable, a file, or a Secret of Kubernetes. The operator mounts the keys of a
Secret into the pods of a job, below the folder in `$HOLDFAST_SECRETS`. Elsewhere you make such a folder.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import BadInput
from holdfast.store_keys import trimmed

FOLDER: Final = "HOLDFAST_SECRETS"
"""The variable with the folder that has a folder for each Secret, with a file for each key."""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where a secret is: in an environment variable, or in a file."""

    variable: str = ""
    file: Path | None = None

    def read(self, what: str) -> str:
        """Return the secret. Raises `BadInput`, which says what is not there."""
        if self.file is not None:
            try:
                return trimmed(self.file.read_text())
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise BadInput(f"can't read the file {self.file} with {what}: {why}") from None
        if self.variable not in os.environ:
            raise BadInput(f"the environment variable {self.variable} with {what} is not set")
        return os.environ[self.variable]


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A Secret that a spec names in the field `where`. The source takes `keys`, and must have `required`.

    `shared` is whether every process that reads ranges needs it. Otherwise only the one that commits does.
    """

    name: str
    where: str
    keys: tuple[str, ...]
    required: tuple[str, ...] = ()
    shared: bool = False

    def fault(self, found: Mapping[str, object]) -> str:
        """Return what is wrong with a Secret that has these keys, and what to do. Empty if nothing is."""
        missing = [each for each in self.required if each not in found]
        if missing:
            return f"has no key {' and no key '.join(missing)}, which {self.where} needs: add it"
        if not any(each in found for each in self.keys):
            return f"has none of the keys that {self.where} can use: add {', '.join(self.keys)} as needed"
        return ""

    def files(self) -> dict[str, Path]:
        """Return the files of the keys that are there. Raises `BadInput` if one is missing that it needs."""
        if FOLDER not in os.environ:
            raise BadInput(
                f"{self.where} names Secret {self.name}, and the environment variable {FOLDER} is not set",
                hint=f"put {' and '.join(self.required or self.keys)} into files in a folder {self.name}, and"
                f" set {FOLDER} to the folder that has it",
            )
        folder = Path(os.environ[FOLDER]) / self.name
        found = {each: path for each in self.keys if (path := folder / each).is_file()}
        if why := self.fault(found):
            raise BadInput(f"Secret {self.name}, in the folder {folder}, {why}")
        return found

    def read(self) -> dict[str, str]:
        """Return the values of the keys that are there. Raises `BadInput` like `files`."""
        return {key: self.value(key, file) for key, file in self.files().items()}

    def value(self, key: str, file: Path) -> str:
        """Return the value of one key. Raises `BadInput` if its file can't be read."""
        return SecretPlace(file=file).read(f"{key} of Secret {self.name}")
