"""What a migration would do, found out without a trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.durable import config
from holdfast.durable.backend_migration.link import Linked, Seen
from holdfast.durable.backend_migration.records import Record, destination, records_of, to_begin
from holdfast.durable.backend_migration.truth import STEPS, Action, Backend, Step, Strategy
from holdfast.durable.backend_migration.two_stores import TwoStores, read_both
from holdfast.durable.backend_migration.verify import contents_of, digests_of, sizes_of
from holdfast.durable.cache import APPEND_ONLY, Cache
from holdfast.durable.contents import StoredContents
from holdfast.durable.preamble import Preamble
from holdfast.durable.store import CatalogStore
from holdfast.durable.upgrade.plan import Plan, released
from holdfast.durable.upgrade.report import Size
from holdfast.durable.version import CATALOG_VERSION
from holdfast.errors import BadInput, HoldfastError


@dataclass(frozen=True)
class MigrationPlan:
    """What a migration would do to the two stores as they are.

    `steps` is empty where it has ended before. `links`: the stores aren't linked yet, and it would link them
    with that strategy and truth. `sizes` are those of the source of truth, by the name of the object type;
    `upgrade` is from and to which version it would be upgraded first; `refused` is why it can't be read.
    """

    migration_id: str
    source: Backend
    destination: Backend
    strategy: Strategy
    links: bool
    record: Record | None
    steps: tuple[Step, ...]
    places: Mapping[Backend, str]
    sizes: Mapping[str, Size]
    upgrade: tuple[int, int] | None
    refused: HoldfastError | None

    @property
    def is_there(self) -> bool:
        """Whether the source of truth is where the migration leads to, so that nothing is moved."""
        return self.source is self.destination


def plan_of(stores: TwoStores, migration_id: str, target: Backend, *, rollback: bool) -> MigrationPlan:
    """See `BackendMigration.plan`."""
    with stores.opened("plan of a migration") as opened:
        seen = read_both(opened)
        link = opened.linkage(seen)
        begins = to_begin(seen.stash.config, migration_id, target, rollback=rollback)
        leads_to = destination(target, rollback=rollback)
        steps = () if begins is None else STEPS[link.strategy, leads_to]
        if link.truth is leads_to:
            steps = _until_check(steps)
        source = opened.of(link.truth)
        at = seen.of(link.truth)
        at.check_initialized(source.place)
        return MigrationPlan(
            migration_id,
            link.truth,
            leads_to,
            link.strategy,
            not isinstance(link, Linked),
            records_of(seen.stash.config).get(migration_id),
            steps,
            opened.places,
            sizes_of(digests_of(contents_of(source, at.upper))),
            (at.config[config.USER_VERSION], CATALOG_VERSION) if at.is_older else None,
            _refused(opened, link.truth, seen),
        )


def check_source(stores: TwoStores, source: Backend, seen: Preamble) -> None:
    """Read the source of truth, and upgrade it in memory, as an open would.

    Raises what an open would, and `BadInput` for a row that the other store doesn't take.
    """
    store = stores.of(source)
    seen.check_readable()
    if seen.is_older:
        Plan(store, seen, released()).close()
        return
    batches = StoredContents(store, seen.upper).batches(but=APPEND_ONLY)
    cache = Cache.load(_fitting(batches, stores.of(source.other)))
    seen.check_history(cache.fence_row, store.place)


def _refused(stores: TwoStores, source: Backend, seen: Seen) -> HoldfastError | None:
    try:
        check_source(stores, source, seen.of(source))
    except HoldfastError as error:
        return error
    return None


def _fitting(batches: Iterator[pa.RecordBatch], target: CatalogStore) -> Iterator[pa.RecordBatch]:
    """The batches, as long as the target takes their rows."""
    limit = target.max_row_bytes
    for batch in batches:
        if limit is not None and batch.num_rows:
            lengths = (pc.binary_length(batch.column(name)) for name in ("key", "value"))
            longest = pc.max(pc.add(*lengths)).as_py()
            if longest > limit:
                raise BadInput(
                    f"an object of the catalog has {longest:,} bytes, {target.place} takes {limit:,}",
                    hint="make the object smaller",
                )
        yield batch


def _until_check(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps of a migration that finds the truth where it leads to."""
    for number, step in enumerate(steps, start=1):
        if step.action is Action.CHECK:
            return steps[:number]
    return steps
