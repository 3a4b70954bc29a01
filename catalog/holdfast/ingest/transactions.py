"""Which change events of Debezium belong to transactions that are complete. Pure.

Debezium writes the transactions of a table one after another, and the END of a transaction says how many
events of each table it had. So a step may end before the first event of a transaction that is not complete
yet: then the contents have all of a transaction, or nothing.

- A transaction is complete if its END is known and the events with all its orders have been read. Orders
  count, and not events, because Debezium may send events again after a crash.
- If events are sent again whose transaction is bound already, the first of them may be missing. What is bound
  ends between transactions. So an event that comes first in its partition shows that the lesser orders are
  bound, if no message of the partition is missing. In a compacted topic they may be gone.
- A transaction has events in several partitions. If one partition ends before it, all do.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import polars as pl

EVENTS: Final = {
    "partition": pl.String,
    "position": pl.Int64,
    "size": pl.Int64,
    "timestamp": pl.Int64,
    "id": pl.String,
    "order": pl.Int64,
}
"""Events by partition and position. `id` is null if an event belongs to no transaction."""


def cuts(
    events: pl.DataFrame,
    counts: Mapping[str, int],
    begins: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    gapless: Collection[str],
    bound: Collection[str] = (),
) -> tuple[dict[str, int], list[str]]:
    """Return where each partition may end, and the transactions that are not complete, first ones first.

    `begins` has all partitions of the topic, and the positions up to which they are bound. `ends` says up to
    where partitions were read. `counts` has the number of events of each transaction that has ended. Those in
    `bound` are complete. In `gapless` partitions no message is missing among those that are bound.
    """
    known = pl.DataFrame({"id": list(bound)}, {"id": pl.String})
    marked = _marked(events, begins, gapless).join(known, on="id", how="anti")
    incomplete = _incomplete(marked, counts, len(begins))
    left = incomplete.select("id")
    while True:
        of_left = marked.join(left, on="id", how="semi")
        firsts = of_left.group_by("partition").agg(pl.col("position").min().alias("until"))
        beyond = marked.join(firsts, on="partition").filter(pl.col("position") >= pl.col("until"))
        more = beyond.select("id").unique()
        if len(more) <= len(left):
            break
        left = more
    return {**ends, **dict(firsts.iter_rows())}, incomplete["id"].to_list()


def _marked(events: pl.DataFrame, begins: Mapping[str, int], gapless: Collection[str]) -> pl.DataFrame:
    """The events of transactions. `gapless` says that no message before them is missing."""
    begin = pl.DataFrame({"partition": list(begins), "begin": list(begins.values())}, _BEGINS)
    numbered = events.join(begin, on="partition", how="left", maintain_order="left").with_columns(
        gapless=pl.col("partition").is_in(list(gapless))
        & (pl.col("position") - pl.col("begin") == pl.int_range(pl.len()).over("partition"))
    )
    return numbered.filter(pl.col("id").is_not_null())


def _incomplete(marked: pl.DataFrame, counts: Mapping[str, int], partitions: int) -> pl.DataFrame:
    """The ids of transactions that are not complete, in the order of their first events."""
    known = pl.DataFrame({"id": list(counts), "count": list(counts.values())}, _COUNTS)
    firsts = marked.group_by("id", "partition", maintain_order=True).agg(
        pl.col("order").first().alias("first"), pl.col("gapless").first()
    )
    is_bound = (pl.len() == partitions) & pl.col("gapless").all()
    lowest = firsts.group_by("id").agg(
        pl.when(is_bound).then(pl.col("first").min()).otherwise(1).alias("lowest")
    )
    found = (
        marked.join(lowest, on="id")
        .group_by("id")
        .agg(
            pl.col("position").min(),
            pl.col("order").max().alias("last"),
            pl.col("order").filter(pl.col("order") >= pl.col("lowest")).n_unique().alias("seen"),
            pl.col("lowest").first(),
        )
        .join(known, on="id", how="left")
    )
    is_complete = (pl.col("last") == pl.col("count")) & (
        pl.col("seen") == pl.col("count") - pl.col("lowest") + 1
    )
    return found.filter(~is_complete.fill_null(value=False)).sort("position", "id").select("id")


def is_passed(
    events: pl.DataFrame, id_: str, ended: Mapping[str, int], partitions: Sequence[str], *, all_: bool
) -> bool:
    """Whether events of later transactions that have ended follow on this one: in all partitions, or in any.

    Debezium has sent all events of a transaction, and its END, before those of later ones.
    """
    marked = events.filter(pl.col("id").is_not_null())
    mine = marked.filter(pl.col("id") == id_)
    last = mine.group_by("partition").agg(pl.col("position").max().alias("last"))
    known = pl.DataFrame({"id": list(ended)}, {"id": pl.String})
    others = marked.join(known, on="id", how="semi").filter(pl.col("id") != id_)
    beyond = others.join(last, on="partition").filter(pl.col("position") > pl.col("last"))
    if not all_ or not len(beyond):
        return bool(len(beyond))
    later = others.join(beyond.select("id"), on="id", how="semi").join(last, on="partition", how="left")
    is_later = pl.col("last").is_null() | (pl.col("position") > pl.col("last"))
    return set(partitions) <= set(later.filter(is_later)["partition"].to_list())


_BEGINS: Final = {"partition": pl.String, "begin": pl.Int64}
_COUNTS: Final = {"id": pl.String, "count": pl.Int64}
