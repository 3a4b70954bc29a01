"""The keys that open the stores of a location, if the environment of the process does not have them.

Each key has the name of the environment variable of AWS or libpq that it stands for. The operator mounts the
keys of a Catalog into the pods of its Spark jobs, as files in the folder that `$HOLDFAST_STORE_KEYS` names.

Invariants
- The values are only in the files, and in the sessions that they open. No message, `repr` or pickle has them.
- All keys are read from one version of the volume, so no key is used with the secret of another one.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.errors import BadInput

VARIABLE: Final = "HOLDFAST_STORE_KEYS"
"""The variable with the folder that has a file for each key."""
USER, PASSWORD, AUTH = "PGUSER", "PGPASSWORD", "PGREQUIREAUTH"
KEY, SECRET_KEY, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
OF_S3: Final = (KEY, SECRET_KEY, TOKEN)
OF_POSTGRES: Final = {USER: "user", PASSWORD: "password", AUTH: "require_auth"}
"""The keys for Postgres, and the options of libpq that they stand for."""
ALL: Final = (*OF_S3, USER, PASSWORD)
"""The keys that may be in files."""
_VERSION: Final = "..data"
"""The link that Kubernetes replaces when it updates the files of a volume, all of them at once."""


@dataclass(frozen=True, slots=True)
class StoreKeys(Mapping[str, str]):
    """The keys in the files of a folder. A missing or empty file is a key that is not given.

    They are read again whenever a connection needs them, so files that change take effect without a restart.
    A pickle has the path of the folder and nothing else. Raises `BadInput` if a file can't be read.
    """

    folder: Path
    names: tuple[str, ...] = ALL

    @classmethod
    def of_process(cls, names: tuple[str, ...] = ALL) -> Self | None:
        """Return the keys in the folder that the environment names, or None if it names none."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder), names) if folder else None

    def read(self) -> dict[str, str]:
        """Return all keys, as they are together in the folder."""
        while True:
            version = self._version()
            found = {name: value for name in self.names if (value := self._value(name))}
            if self._version() == version:
                return found

    def __getitem__(self, name: str) -> str:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def _version(self) -> str:
        if not self.folder.is_dir():
            raise BadInput(
                f"there is no folder {self.folder}, which {VARIABLE} names",
                hint=f"set {VARIABLE} to a folder with the files {', '.join(self.names)}, or unset it",
            )
        try:
            return str((self.folder / _VERSION).readlink())
        except OSError:
            return ""

    def _value(self, name: str) -> str:
        try:
            return trimmed((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadInput(
                f"can't read {name} in {self.folder}, which {VARIABLE} names: {why}",
                hint="let the user of the process read the file, and write the key into it as text",
            ) from None


def trimmed(value: str) -> str:
    """Return a key or password without the newlines at its end, which an editor or `echo` adds."""
    return value.rstrip("\r\n")


def s3_keys(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return those of the keys that are for S3, as they are now. Empty if there are none."""
    return _named(given, OF_S3)


def postgres_options(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return those of the keys that are for Postgres, as options of libpq. Empty if there are none."""
    return {OF_POSTGRES[name]: value for name, value in _named(given, tuple(OF_POSTGRES)).items()}


def _named(given: Mapping[str, str] | None, names: tuple[str, ...]) -> dict[str, str]:
    found = given.read() if isinstance(given, StoreKeys) else given or {}
    return {name: found[name] for name in names if name in found}
