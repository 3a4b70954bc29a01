"""How plans, progress and status of migrations are shown to people."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.cli.facts import age, count, size

if TYPE_CHECKING:
    from holdfast.catalog.move.attempt import MoveProgress
    from holdfast.catalog.move.decision import Decision
    from holdfast.catalog.move.migration_status import MigrationStatus, StoreStatus
    from holdfast.catalog.move.plan import MigrationPlan
    from holdfast.catalog.move.truth import Backend, Strategy
    from holdfast.catalog.stores.preamble import Preamble
    from holdfast.catalog.upgrade_report import Size
    from holdfast.errors import HoldfastError

_LABEL = 12


def plan_lines(plan: "MigrationPlan") -> Iterator[str]:
    """The lines of a plan."""
    source, target = plan.destination.other, plan.destination
    yield f"migration {plan.migration_id}: {at(plan.places, source)} -> {at(plan.places, target)}"
    yield _field("record", "none" if plan.record is None else str(plan.record))
    already = "; already there, nothing is moved" if plan.is_there and plan.steps else ""
    yield _field("truth", f"{at(plan.places, plan.source)}{already}")
    yield _field("strategy", strategy_name(plan.strategy))
    if plan.links:
        yield _field("link", "not linked yet: it would link the two stores first")
    yield from _contents(plan.sizes)
    if plan.refused is not None:
        yield _field("refused", f"the source of truth can't be read: {plan.refused}")
    elif plan.upgrade is not None:
        yield _field("upgrade", f"from version {plan.upgrade[0]} to {plan.upgrade[1]}, before it is read")
    if plan.steps:
        yield "steps"
        yield from (f"  {step}" for step in plan.steps)
    else:
        yield _field("steps", "none: the migration has ended")


def _contents(sizes: Mapping[str, "Size"]) -> Iterator[str]:
    yield _field("contents", held_in(sizes))
    width = max(map(len, sizes))
    for name, each in sizes.items():
        if each.rows:
            noun = "row " if each.rows == 1 else "rows"
            yield f"  {name:<{width}}  {each.rows:>12,} {noun}  {size(each.bytes):>10}"


def progress_line(progress: "MoveProgress") -> str:
    """The line of a step that is done."""
    facts = []
    if progress.sizes is not None:
        rows, bytes_ = (
            sum(getattr(each, name) for each in progress.sizes.values()) for name in ("rows", "bytes")
        )
        compared = "compared " if progress.step.tombstone is not None else ""
        facts.append(f"{compared}{count(rows, 'row')}, {size(bytes_)}")
    facts.append(f"{progress.seconds:.1f} s")
    return f"  {progress.step}  ({'; '.join(facts)})"


def status_lines(status: "MigrationStatus", now_ms: int) -> Iterator[str]:
    """The lines of a status: first the conclusion, then what each store records, side by side."""
    if status.conflict is not None:
        yield _field("conflict", str(status.conflict))
        yield _field("", f"hint: {status.conflict.hint}")
    elif status.is_empty:
        yield _field("truth", "none: neither store has a catalog")
        yield _field("link", "not linked")
    else:
        assert status.truth is not None
        assert status.strategy is not None
        yield _field("truth", f"{status.truth.value}{'' if status.linked else ' (once they are linked)'}")
        linked = strategy_name(status.strategy) if status.linked else "not linked"
        yield _field("link", linked)
    if status.running is not None:
        running = status.running
        left = (running.deadline_ms - now_ms) / 1000
        shut = f"others can't write for {age(left)}" if left > 0 else "its time is over: others may take over"
        yield _field(
            "running",
            f"{running.migration_id}, {running.record} to {running.destination.value}"
            f" (last: {status.holder}); {shut}",
        )
    yield ""
    yield from _side_by_side((status.stash, status.persist))
    if status.records:
        yield ""
        yield "migrations"
        width = max(map(len, status.records))
        for id_, record in status.records.items():
            yield f"  {id_:<{width}}  {record}, target {status.targets[id_].value}"


def decision_lines(decision: "Decision") -> Iterator[str]:
    """The lines that show the effect of a decision."""
    from holdfast.catalog.move.migration_status import store_status

    kept, given_up = decision.truth, decision.truth.other
    if decision.told is not None:
        yield _field("truth", f"{at(decision.places, decision.told)}, as both stores record")
    else:
        yield _field("truth", f"unknown: {decision.conflict}")
    yield _field("to keep", f"{at(decision.places, kept)}: its contents become the catalog")
    lost = "nothing: both hold the same" if decision.same else "what only it has is lost"
    yield _field("to give up", f"{at(decision.places, given_up)}: {lost}")
    yield ""
    sides = (kept, given_up) if kept.value == "Stash" else (given_up, kept)
    stores = tuple(store_status(decision.places[each], decision.seen.of(each)) for each in sides)
    held = [held_in(decision.unreadable.get(each) or decision.sizes(each)) for each in sides]
    yield from _side_by_side(stores, ("contents", held))


def loss_lines(
    place: str, seen: "Preamble", sizes: "Mapping[str, Size] | HoldfastError | None"
) -> Iterator[str]:
    """The lines that show the effect of losing a stash that may have been the source of truth."""
    token = seen.token
    epoch = "none" if token is None else f"{token.epoch} of generation {token.deploy_generation}"
    yield _field("truth", "unknown: persist does not record that it is, and the stash is lost")
    yield _field("to keep", f"Persist ({place}): {held_in(sizes)}, upper {seen.upper}, epoch {epoch}")
    yield _field("to give up", "what only the stash had; it is unknown what that was")


def held_in(sizes: "Mapping[str, Size] | HoldfastError | None") -> str:
    """How much a store holds, in words."""
    if sizes is None:
        return "no catalog"
    if not isinstance(sizes, Mapping):
        return f"can't be read: {sizes}"
    rows, bytes_ = (sum(getattr(each, name) for each in sizes.values()) for name in ("rows", "bytes"))
    return f"{count(rows, 'row')}, {size(bytes_)}"


def _side_by_side(stores: "tuple[StoreStatus, ...]", *more: tuple[str, list[str]]) -> Iterator[str]:
    rows: list[tuple[str, list[str]]] = [("", ["STASH", "PERSIST"])]
    rows += [(name, [str(fact) for fact in facts]) for name, facts in _facts(stores)]
    rows += more
    width = max(len(texts[0]) for _, texts in rows)
    yield from (f"{name:<{_LABEL}}{texts[0]:<{width}}  {texts[1]}".rstrip() for name, texts in rows)


def _facts(stores: "tuple[StoreStatus, ...]") -> Iterator[tuple[str, list[Any]]]:
    yield "place", [store.place for store in stores]
    yield "version", ["-" if store.version is None else store.version for store in stores]
    yield "epoch", ["-" if store.token is None else store.token.epoch for store in stores]
    yield "generation", ["-" if store.token is None else store.token.deploy_generation for store in stores]
    yield "holder", ["-" if store.token is None else store.token.holder for store in stores]
    yield "upper", [store.upper for store in stores]
    yield "tombstone", ["-" if store.tombstone is None else str(store.tombstone).lower() for store in stores]
    yield "says", ["it is the truth" if store.noted else "-" for store in stores]


def status_json(status: "MigrationStatus") -> dict[str, Any]:
    """A status as JSON, for programs."""
    running = status.running
    return {
        "linked": status.linked,
        "sourceOfTruth": None if status.truth is None or status.is_empty else status.truth.value,
        "strategy": None if status.strategy is None else strategy_name(status.strategy),
        "conflict": None if status.conflict is None else str(status.conflict),
        "running": None
        if running is None
        else {
            "id": running.migration_id,
            "record": str(running.record),
            "target": running.target.value,
            "destination": running.destination.value,
            "deadlineMs": running.deadline_ms,
            "holder": status.holder,
        },
        "migrations": {id_: str(record) for id_, record in status.records.items()},
        "targets": {id_: target.value for id_, target in status.targets.items()},
        "stash": _store_json(status.stash),
        "persist": _store_json(status.persist),
    }


def _store_json(store: "StoreStatus") -> dict[str, Any]:
    token = store.token
    return {
        "place": store.place,
        "version": store.version,
        "upper": store.upper,
        "epoch": None if token is None else token.epoch,
        "deployGeneration": None if token is None else token.deploy_generation,
        "holder": None if token is None else token.holder,
        "tombstone": store.tombstone,
        "noted": store.noted,
        "link": None if store.link is None else str(store.link),
    }


def plan_json(plan: "MigrationPlan") -> dict[str, Any]:
    """A plan as JSON, for programs."""
    return {
        "id": plan.migration_id,
        "from": plan.destination.other.value,
        "to": plan.destination.value,
        "record": None if plan.record is None else str(plan.record),
        "sourceOfTruth": plan.source.value,
        "strategy": strategy_name(plan.strategy),
        "links": plan.links,
        "contents": {name: {"rows": each.rows, "bytes": each.bytes} for name, each in plan.sizes.items()},
        "upgrade": None if plan.upgrade is None else list(plan.upgrade),
        "steps": [str(step) for step in plan.steps],
        "refused": None if plan.refused is None else str(plan.refused),
    }


def ended_json(migration_id: str, record: object | None, truth: "Backend") -> dict[str, Any]:
    """The result of a migration as JSON. Without a record, it was undone."""
    return {
        "id": migration_id,
        "record": None if record is None else str(record),
        "sourceOfTruth": truth.value,
    }


def strategy_name(strategy: "Strategy") -> str:
    """The name of a strategy, as the option takes it."""
    return strategy.name.lower().replace("_", "-")


def at(places: Mapping["Backend", str], backend: "Backend") -> str:
    """The name of a store and its place."""
    return f"{backend.value} ({places[backend]})"


def _field(name: str, value: str) -> str:
    return f"{name:<{_LABEL}}{value}"
