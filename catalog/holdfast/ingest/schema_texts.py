"""The texts of the schemas that messages were written with.

A text is stored with the rendition in the first commit that uses it. From then on that one counts, whatever
the registry says later, and if it is down. The schemas that a schema refers to are in its text. A registry
that says something else for a stored id makes the source stall, because then nobody knows what the messages
mean.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.collections.pipeline import SCHEMAS
from holdfast.errors import BadInput, SourceStalled
from holdfast.ingest.registry import PAUSE_S, Refusal, Registry
from holdfast.ingest.schema_bundle import unbundled
from holdfast.ingest.spec import AvroSpec
from holdfast.ingest.waits import Waits

FILE: Final = "schemaFile"
"""The id of the schema that the spec names."""
_NEW_S: Final = 2.0
"""For so long an id that the registry doesn't know may only be new."""
_REFUSED_S: Final = 10.0
"""Seconds before an id that the registry refused is requested again."""
_COMPARE_S: Final = 5.0


class MissingTexts(Exception):
    """The texts of these ids are needed, and only the driver of the job can ask for them."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(sorted(ids))
        self.ids = sorted(ids)


@dataclass
class SchemaTexts:
    """The texts by id. `stored` are those in the rendition, `found` the others that are known.

    `refused` says why an id has no text. Without a `registry`, a text that is neither stored nor found is
    missing.
    """

    registry: Registry | None = None
    stored: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    elsewhere: Callable[[], Mapping[str, str]] = field(default=dict)
    """Returns the texts that other renditions of the collection have stored."""
    _refused_s: float = 0.0
    _compared: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, spec: AvroSpec, waits: Waits | None = None) -> "SchemaTexts":
        """Begin with what the spec names. Raises `BadInput` if that can't be used.

        `waits` shows that the registry does not respond.
        """
        texts = cls(Registry(spec.registry, waits or Waits()) if spec.registry else None)
        if spec.schema_file is not None:
            try:
                texts.found[FILE] = spec.schema_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise BadInput(
                    f"can't read source.format.avro.schemaFile {spec.schema_file}: {why}"
                ) from None
        return texts

    def copy(self) -> "SchemaTexts":
        """What is known now, without the registry: for another process."""
        return SchemaTexts(None, dict(self.stored), dict(self.found), dict(self.refused))

    def load(self, stored: Mapping[str, str]) -> None:
        """Use these as the stored texts. Raises `SourceStalled` if others were found for their ids."""
        self.stored = dict(stored)
        for id_, text in stored.items():
            self.refused.pop(id_, None)
            if (other := self.found.pop(id_, None)) is not None:
                self._check(id_, text, other)
        self._compare()

    def begin(self) -> None:
        """Begin a range: nothing is used yet. After a while, what was refused may be there."""
        self.used = set()
        if self.registry is not None and time.monotonic() - self._refused_s > _REFUSED_S:
            self.refused.clear()

    def require(self, ids: Collection[str]) -> None:
        """Find the texts of these ids, or why they have none.

        Raises `MissingTexts` without a registry, and like `Registry.text`.
        """
        known = (self.stored, self.found, self.refused)
        missing = [each for each in sorted(ids) if not any(each in texts for texts in known)]
        if missing:
            kept = self.elsewhere()
            self.found |= {each: kept[each] for each in missing if each in kept}
            missing = [each for each in missing if each not in kept]
        if missing and self.registry is None:
            raise MissingTexts(missing)
        deadline = time.monotonic() + _NEW_S
        while missing:
            missing = [each for each in missing if not self._is_found(each)]
            if time.monotonic() > deadline:
                break
            if missing:
                time.sleep(PAUSE_S)

    def _is_found(self, id_: str) -> bool:
        assert self.registry is not None
        try:
            self.found[id_] = self.registry.text(id_)
        except Refusal as refusal:
            self.refused[id_], self._refused_s = str(refusal), time.monotonic()
            return False
        self.refused.pop(id_, None)
        self._compared.add(id_)
        return True

    def use(self, id_: str) -> str:
        """Return the text of a required id, which the next commit stores. Raises `Refusal` if it has none."""
        for texts in (self.stored, self.found):
            if id_ in texts:
                self.used.add(id_)
                return texts[id_]
        raise Refusal(self.refused[id_])

    def taken(self) -> dict[str, str]:
        """Return the texts that were used since `begin`."""
        return {each: self.use(each) for each in sorted(self.used)}

    def _compare(self) -> None:
        """Compare the stored texts with the registry, once in a process, as far as it responds at once."""
        deadline = time.monotonic() + _COMPARE_S
        for id_ in sorted(self.stored.keys() - self._compared - {FILE}):
            within_s = deadline - time.monotonic()
            if self.registry is None or within_s <= 0:
                return
            try:
                other = self.registry.text_at_once(id_, within_s)
            except Refusal:
                # The stored text is enough. So it is if nobody can ask.
                continue
            if other is None:
                return
            self._check(id_, self.stored[id_], other)
            self._compared.add(id_)

    def _check(self, id_: str, stored: str, other: str) -> None:
        if _plainly(stored) == _plainly(other):
            return
        if id_ == FILE:
            raise SourceStalled(
                "source.format.avro.schemaFile has another schema than the one that the collection's messages"
                " were decoded with",
                hint="restore the file; or feed another collection with the new schema",
            )
        raise SourceStalled(
            f"the schema registry has another text for schema {id_} than the one that the collection's"
            " messages were decoded with: it is another registry, or has lost its schemas",
            hint="correct source.format.avro.registry.url, or restore the registry; or feed another"
            " collection",
        )


def stored_texts(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The texts by id among the rows of a remap."""
    return {each["partition"]: each["identity"] for each in rows if each["source"] == SCHEMAS}


def _plainly(text: str) -> list[str]:
    """The text and those that it refers to, without differences that mean nothing."""
    schema, references = unbundled(text)
    return [_plain(schema), *sorted(_plain(each.schema) for each in references)]


def _plain(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema), sort_keys=True)
    except (ValueError, RecursionError):
        return schema
