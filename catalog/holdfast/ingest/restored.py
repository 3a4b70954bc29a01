"""A rendition that was restored from a snapshot: its pipeline reads again what was bound after the snapshot.

The renditions before it say which messages that is, as long as they can be read. All of them must come again.
If the source no longer has some of them, it is stalled: a folder and a compacted topic never say so
themselves.
"""

from collections.abc import Mapping
from contextlib import suppress

from holdfast.collections import CollectionInfo, RenditionInfo
from holdfast.errors import AsOfTooEarly, ShardFinalized, SourceStalled
from holdfast.ingest.following import bindings, continues, forgotten, newest_rows
from holdfast.ingest.source import Binding
from holdfast.persist import PersistClient
from holdfast.text import one_line

_PURPOSE = "restored ingestion"


def given_up(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    source: str,
    bound: Mapping[str, Binding],
    forgot: Binding,
) -> dict[str, Binding]:
    """Return how far the renditions before a restored one had bound partitions that it has not so far.

    Raises `SourceStalled` if they had files that are forgotten since, and that this one never had.
    """
    found: dict[str, Binding] = {}
    for each in info.held:
        if each.pipeline is None or each.held_from >= rendition.held_from:
            continue
        # Nobody reads one that is dropped or compacted, so nobody knows what it had.
        with (
            suppress(AsOfTooEarly, ShardFinalized),
            client.reader(each.pipeline.remap, purpose=_PURPOSE) as reader,
        ):
            all_rows = newest_rows(reader)
            rows = [row for row in all_rows if row["source"] == source]
            theirs_bound, theirs_forgot = bindings(rows), forgotten(all_rows)
            # Right after a restore, these are those that the others have forgotten. Later they are more.
            mine_only = len(bound.keys() - theirs_bound.keys()) + forgot.position
            if (lost := theirs_forgot.position - mine_only) > 0:
                raise SourceStalled(
                    f"rendition {each.id} of collection {info.name} had {lost:,} files that are no longer"
                    f" listed and that rendition {rendition.id} does not have ({one_line(source)})",
                    hint="to go on without them, feed it with --anew",
                )
            for partition, theirs in theirs_bound.items():
                other = found.get(partition)
                if lacks(bound.get(partition), theirs) and (
                    other is None or other.position < theirs.position
                ):
                    found[partition] = theirs
    return found


def lacks(mine: Binding | None, theirs: Binding) -> bool:
    """Whether there are messages in their binding that are not in mine."""
    return mine is None or (theirs.position > mine.position and continues(theirs, mine))
