"""What a rendition is made from, and how: recorded with it, so that no other decoder writes it by mistake."""

import json
from dataclasses import replace
from typing import Any

from holdfast.collections import CollectionInfo, RenditionInfo
from holdfast.errors import BadInput
from holdfast.ingest.envelope import Envelope
from holdfast.ingest.spec import CollectionSourceSpec, IngestSpec

_FOLLOWS = "follows"


def made_from(spec: IngestSpec, *, follows: bool = True) -> str:
    """Return what of a spec decides which rows a message makes, as JSON.

    With `follows` false, the rendition reads its source from the start of the spec, whatever the rendition
    before has bound.
    """
    found: dict[str, Any] = {"format": spec.format, "envelope": spec.envelope.value}
    if spec.avro.registry is not None or spec.avro.schema_file is not None:
        found["schemas"] = "registry" if spec.avro.registry is not None else "schemaFile"
        found["keys"] = spec.avro.keys
    if spec.include:
        found["include"] = dict(spec.include)
    if isinstance(spec.source, CollectionSourceSpec) and spec.source.columns:
        found["columns"] = dict(spec.source.columns)
    if spec.keeps_row:
        found["onBadValue"] = "Keep"
    if not follows:
        found[_FOLLOWS] = False
    return json.dumps(found, separators=(",", ":"), sort_keys=True)


def spec_of_other(rendition: RenditionInfo, spec: IngestSpec) -> IngestSpec | None:
    """A spec that makes the rows of another rendition from the same collection. None if it is not recorded.

    It has the limits of `spec`.
    """
    recorded = _recorded(rendition)
    if not recorded or "schemas" in recorded or not isinstance(spec.source, CollectionSourceSpec):
        return None
    return replace(
        spec,
        source=replace(spec.source, columns=recorded.get("columns", {})),
        format=recorded["format"],
        envelope=Envelope(recorded["envelope"]),
        include=recorded.get("include", {}),
    )


def may_follow(rendition: RenditionInfo) -> bool:
    """Whether the rendition reads what the one before has bound."""
    return bool(_recorded(rendition).get(_FOLLOWS, True))


def check_fed(info: CollectionInfo, rendition: RenditionInfo, spec: IngestSpec) -> None:
    """Raise `BadInput` unless a pipeline with this spec may write the rendition."""
    if rendition.pipeline is None:
        raise BadInput(
            f"collection {info.name} is not fed from a source: its rendition {rendition.id} keeps nothing for"
            " a pipeline",
            hint="feed another collection: 'holdfast ingest' creates one if the spec has its columns; or feed"
            " a new rendition of this one with --rendition, and hand over to it",
        )
    if fault := other_recipe(rendition.made_from, made_from(spec)):
        raise BadInput(
            f"rendition {rendition.id} of collection {info.name} {fault}",
            hint="correct the spec; or feed a new rendition with it ('holdfast ingest' with --rendition), and"
            " hand over to that",
        )


def other_recipe(recorded: str, wanted: str) -> str:
    """Return how what rows are made from differs from what a spec has. Empty if not, or if it is unknown."""
    made, given = (json.loads(each or "{}") for each in (recorded, wanted))
    for each in (made, given):
        each.pop(_FOLLOWS, None)
    if not made or not given or made == given:
        return ""
    return f"is made with {_told(made)}, and the spec has {_told(given)}"


def _recorded(rendition: RenditionInfo) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rendition.made_from or "{}")
    return found


def _told(fields: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {', '.join(f'{what} as {column}' for what, column in each.items())}"
        if isinstance(each, dict)
        else f"{name} {each}"
        for name, each in fields.items()
    )
