"""What a migration would do, determined without changing anything."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.catalog import config
from holdfast.catalog.move.hashed import contents_of
from holdfast.catalog.move.link import Linked
from holdfast.catalog.move.records import Record, destination, records_of, to_begin
from holdfast.catalog.move.source import checked
from holdfast.catalog.move.truth import STEPS, Action, Backend, MoveStep, Strategy
from holdfast.catalog.move.two_stores import TwoStores, read_both
from holdfast.catalog.move.verify import digests_of, sizes_of
from holdfast.catalog.upgrade_report import Size
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import HoldfastError


@dataclass(frozen=True)
class MigrationPlan:
    """What a migration would do to the two stores as they are.

    `steps` is empty if it has already ended. `links` means that the stores aren't linked yet, and that it
    would link them with that strategy and truth. `sizes` are those of the source of truth, by object type
    name. `upgrade` has the versions before and after the upgrade that it would do first. `refused` is why the
    source of truth can't be read.
    """

    migration_id: str
    source: Backend
    destination: Backend
    strategy: Strategy
    links: bool
    record: Record | None
    steps: tuple[MoveStep, ...]
    places: Mapping[Backend, str]
    sizes: Mapping[str, Size]
    upgrade: tuple[int, int] | None
    refused: HoldfastError | None

    @property
    def is_there(self) -> bool:
        """Whether the source of truth is already the destination, so that nothing is moved."""
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
        at.check_initialized(source.location)
        refused, read = None, None
        try:
            read = checked(source, at, opened.of(link.truth.other))
        except HoldfastError as error:
            refused = error
        found = digests_of(contents_of(source, at.upper)) if read is None else read.wanted.digests
        return MigrationPlan(
            migration_id,
            link.truth,
            leads_to,
            link.strategy,
            not isinstance(link, Linked),
            records_of(seen.stash.config).get(migration_id),
            steps,
            opened.places,
            sizes_of(found),
            (at.config[config.USER_VERSION], CATALOG_VERSION) if at.is_older else None,
            refused,
        )


def _until_check(steps: tuple[MoveStep, ...]) -> tuple[MoveStep, ...]:
    """The steps of a migration whose destination already is the truth."""
    for number, step in enumerate(steps, start=1):
        if step.action is Action.CHECK:
            return steps[:number]
    return steps
