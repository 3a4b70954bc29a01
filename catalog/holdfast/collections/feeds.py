"""Holds of collections that other collections are fed from: who has one, and when it is not needed any more.

- The pipeline of a rendition holds its source from the last time that the rendition has. So the source can
  still be read after a long pause of the pipeline.
- The pipeline releases its hold when its rendition is complete. If it can't, because the rendition or its
  collection is dropped meanwhile, the location of the source does so: before it drops the source, when it
  moves the source's retention, and in `advance`.
- A location knows only its own collections. A hold for a collection in another location ends when that
  pipeline or a user releases it.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from holdfast.collections.record.spec import CollectionInfo, RenditionState
from holdfast.collections.record.state import ControllerState
from holdfast.errors import BadInput

_PURPOSE: Final = re.compile(r"feeds .*: ([0-9a-f-]{36})/(.*)/([^/]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FedRendition:
    """A rendition that is fed from a collection, and the location that it is in."""

    location_id: UUID
    collection_id: str
    rendition_id: str

    def purpose(self, name: str) -> str:
        """The purpose of its hold on the source. `name` is the name of its collection."""
        return f"feeds {name}: {self.location_id}/{self.collection_id}/{self.rendition_id}"

    @classmethod
    def of(cls, purpose: str) -> Self | None:
        """The feed that holds with this purpose. None if it is another purpose."""
        match = _PURPOSE.fullmatch(purpose)
        if match is None:
            return None
        with suppress(ValueError):
            return cls(UUID(match[1]), match[2], match[3])
        return None


def refuse_feeding(info: CollectionInfo) -> None:
    """Raise `BadInput` if the collection feeds another one: that pipeline reads columns by their names."""
    for holder in info.holders:
        if not holder.writes and FedRendition.of(holder.purpose) is not None:
            raise BadInput(
                f"collection {info.name} {holder.purpose}, whose pipeline reads its columns by their names",
                hint="drop that collection first, or keep the columns as they are",
            )


def ended_feeds(
    info: CollectionInfo,
    state: ControllerState,
    location_id: UUID,
    upper: Callable[[CollectionInfo, str], int],
) -> Iterable[str]:
    """The purposes of the holds on a collection for renditions of this location that need it no more.

    `upper` returns the upper of a rendition.
    """
    for holder in info.holders:
        feed = None if holder.writes else FedRendition.of(holder.purpose)
        if feed is None or feed.location_id != location_id:
            continue
        fed = state.collections.get(feed.collection_id)
        rendition = None if fed is None or fed.dropped else fed.find(feed.rendition_id)
        if (
            fed is None
            or rendition is None
            or rendition.dropped
            or (rendition.state is RenditionState.RETIRED and upper(fed, rendition.id) >= rendition.held_to)
        ):
            yield holder.purpose
