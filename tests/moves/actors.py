"""The actions of processes on a linked catalog, and the record of their results.

A write adds a role with a unique name. An acknowledged write must stay in the catalog permanently, and a
refused one must never be there. If the outcome is unknown, only the catalog shows it.
"""

from dataclasses import dataclass, field
from itertools import product

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, Object, OpenMode, ReadOnlyCatalog
from holdfast.catalog.interfaces import OpenableCatalog
from holdfast.catalog.move.detach import detach
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.objects.codec import decode
from holdfast.catalog.objects.registry import ROLES, Kind
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CatalogOutOfSync,
    Fenced,
    FenceRegressed,
    Indeterminate,
    LinkConflict,
    LinkedElsewhere,
    MigrationConflict,
    MigrationInProgress,
    NeedsPersist,
    NotSourceOfTruth,
    Uninitialized,
    UpgradeNeeded,
)
from moves.world import Process, World

SHUT_OUT = (Fenced, FenceRegressed, MigrationInProgress, MigrationConflict, NotSourceOfTruth, LinkedElsewhere)
"""What a process may be told that meets another one, after which it has changed nothing."""

_ROLE = Kind.ROLE.tag
TIMEOUT_S = 600.0
MOVE = "a-move"
OTHER = "other-move"
NUMBERS = {name: number for number, name in enumerate("abcdefghijklmnopqrstuvwxyz", start=100)}


@dataclass
class Book:
    """What the writers were told, by the name of the role."""

    acked: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    handles: list[Catalog] = field(default_factory=list)
    """What was opened for writing and not closed."""
    told: list[str] = field(default_factory=list)

    def copy(self) -> "Book":
        """The same book, without the handles."""
        return Book(set(self.acked), set(self.doubtful), [], list(self.told))

    def resolve(self, found: set[str]) -> None:
        """What was in doubt, was done if it is there: nobody is at it any more."""
        self.acked |= self.doubtful & found
        self.doubtful.clear()

    def check(self, found: set[str], *, least: set[str] | None = None) -> None:
        """Whether a catalog can hold exactly these roles; `least`: those known before it was asked."""
        missing = (self.acked if least is None else least) - found
        assert not missing, f"lost: {sorted(missing)}"
        false = found - self.acked - self.doubtful
        assert not false, f"there, but refused: {sorted(false)}"


def names(catalog: ReadOnlyCatalog) -> set[str]:
    """The roles that the writers here made."""
    return {each.value.name for each in catalog.objects(ROLES) if len(each.value.name) == 1}


def add(catalog: Catalog, book: Book, name: str) -> bool:
    """Add a role; whether that was acknowledged."""
    number = NUMBERS[name]
    role = Object(pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name))
    try:
        book.doubtful.add(name)
        catalog.set_objects(ROLES, [role])
    except Indeterminate:
        book.told.append(f"{name} in doubt")
        return False
    except SHUT_OUT as error:
        book.doubtful.discard(name)
        book.told.append(f"{name} refused: {type(error).__name__}")
        return False
    book.doubtful.discard(name)
    book.acked.add(name)
    return True


def opened(openable: OpenableCatalog, book: Book) -> Catalog | None:
    """The catalog open for writing; None when somebody else has it."""
    known = set(book.acked)
    try:
        catalog = openable.open(OpenMode.WRITABLE, holder="somebody", purpose="a write")
    except SHUT_OUT as error:
        book.told.append(f"open refused: {type(error).__name__}")
        return None
    book.handles.append(catalog)
    book.check(names(catalog), least=known)
    return catalog


def write(process: Process, book: Book, name: str, **options: object) -> bool:
    """Open the catalog as anybody does who knows whether it is linked, and add a role; whether that was
    acknowledged.
    """
    is_alone = process.world.disks.is_detached
    catalog = opened(process.alone(Backend.PERSIST) if is_alone else process.linked(**options), book)
    return catalog is not None and add(catalog, book, name)


def migration(
    process: Process,
    target: Backend,
    *,
    migration_id: str = MOVE,
    rollback: bool = False,
    verify: Verify = Verify.NONE,
    timeout_s: float = TIMEOUT_S,
) -> BackendMigration:
    """A migration of the catalog, not begun."""
    return BackendMigration(
        process.linked(),
        migration_id=migration_id,
        target=target,
        verify=verify,
        rollback=rollback,
        timeout_s=timeout_s,
        holder="operator",
        now_ms=process.now_ms,
        sleep=process.sleep,
    )


def migrate(process: Process, book: Book, target: Backend, **options: object) -> bool:
    """Migrate, or roll back; False where somebody else has the catalog."""
    try:
        with migration(process, target, **options) as moving:  # type: ignore[arg-type]
            try:
                _run(moving, book)
            except (Indeterminate, CatalogOutOfSync):
                # It knows how far it was; the stores know better.
                book.told.append("migration again")
                _run(moving, book)
    except LinkConflict:
        if not process.world.disks.is_detached:
            raise
        book.told.append("migration refused: the link has ended")
        return False
    except SHUT_OUT as error:
        book.told.append(f"migration refused: {type(error).__name__}")
        return False
    except Uninitialized:
        book.told.append("nothing to move")
        return False
    except BadInput as error:
        # The way back of what was never begun.
        if "to roll back" not in str(error):
            raise
        book.told.append("nothing to roll back")
        return False
    return True


def _run(moving: BackendMigration, book: Book) -> None:
    """Do all steps, with writes to both stores before the last one where that is its verification."""
    if moving.verify is Verify.SHADOW:
        known = set(book.acked)
        try:
            catalog = moving.open_shadow()
        except BadInput as error:
            if "has ended, so no shadow can be opened" not in str(error):
                raise
        else:
            book.handles.append(catalog)
            book.check(names(catalog), least=known)
            for _ in range(2):
                add(catalog, book, free(book))
    moving.run()


def abandon(process: Process, book: Book, target: Backend, *, rollback: bool) -> bool:
    """Give a migration up, in whatever state it is; False where somebody else has the catalog."""
    try:
        with migration(process, target, rollback=rollback) as moving:
            try:
                truth = moving.abandon()
            except Indeterminate:
                book.told.append("abandoned in doubt")
                truth = moving.abandon()
    except SHUT_OUT as error:
        book.told.append(f"abandon refused: {type(error).__name__}")
        return False
    disks = process.world.disks
    assert disks.truth in (None, truth), f"given up with the truth in {truth}, but it is in {disks.truth}"
    assert disks.record(MOVE) not in (1, 3), "given up, but it runs"
    return True


def end_link(process: Process, book: Book, *, stash_lost: bool) -> bool:
    """End the link, as who says that the stash is lost if so; False where that may not be."""
    catalog = process.alone(Backend.PERSIST) if stash_lost else process.linked()
    for _ in range(2):
        try:
            detach(catalog, stash_lost=stash_lost, holder="somebody", purpose="a detach")
        except Indeterminate:
            book.told.append("detached in doubt")
        except SHUT_OUT as error:
            book.told.append(f"detach refused: {type(error).__name__}")
            return False
        except (BadInput, LinkConflict):
            # It has ended, or the catalog is in the stash.
            if not process.world.disks.is_detached and process.world.disks.truth is Backend.PERSIST:
                raise
            book.told.append("nothing to detach")
            return process.world.disks.is_detached
        else:
            break
    assert process.world.disks.is_detached, "the link has ended, but is there"
    return True


def roles_of(world: World) -> set[str]:
    """The roles in the source of truth, as the disk has them."""
    rows = [row for row in world.disks.contents if row.key[:2] == _ROLE]
    return {name for name in (decode(ROLES, row).value.name for row in rows) if len(name) == 1}


def settle(world: World, book: Book, known: set[object]) -> None:
    """The end of every story: there is one truth, it has what was acknowledged, and can be written.

    Nobody who was open before can write any more but the last, and nobody alone. What was looked at in an
    equal state, and is in `known`, is not looked at again.
    """
    disks = world.disks
    disks.check()
    book.check(roles_of(world))
    for handle in book.handles:
        # The last who opened may: then it is there. All others may not.
        add(handle, book, free(book))
    book.check(roles_of(world))
    key = (disks.fingerprint, frozenset(book.acked), frozenset(book.doubtful))
    if key in known:
        return
    known.add(key)
    world.now_ms += int(TIMEOUT_S * 1000) + 1
    process = world.process()
    linked: OpenableCatalog = process.linked()
    if disks.is_detached:
        _check_ended(process)
        linked, truth = process.alone(Backend.PERSIST), Backend.PERSIST
    else:
        truth = process.linked().source_of_truth()
    # Where there is nothing yet, it tells where it will be.
    assert disks.truth in (None, truth), f"told {truth}, but it is {disks.truth}"
    if world.disks.is_linked:
        _check_alone(process, truth)
    handles, book.handles = book.handles, []
    catalog = opened(linked, book)
    assert catalog is not None, f"nobody can open it for writing: {book.told}"
    assert add(catalog, book, free(book)), book.told
    for handle in handles:
        assert not add(handle, book, free(book)), "a writer who was fenced has written"
    with linked.open(OpenMode.READ_ONLY) as reader:
        book.check(names(reader))
        assert reader.dump() == catalog.dump()
    assert world.disks.truth is truth


def free(book: Book) -> str:
    """A name that nobody has used."""
    used = book.acked | book.doubtful
    return next(name for name in NUMBERS if name not in used and name > "m")


def _check_alone(process: Process, truth: Backend) -> None:
    """Nobody who comes through one store alone may write, nor read what isn't the truth."""
    before = process.world.disks
    for backend in Backend:
        alone = process.alone(backend)
        for mode in (OpenMode.WRITABLE, OpenMode.READ_ONLY):
            try:
                alone.open(mode, holder="alone", purpose="a try").close()
            except (LinkedElsewhere, NotSourceOfTruth):
                continue
            except UpgradeNeeded:
                # It may be read, but for that.
                assert mode is OpenMode.READ_ONLY
            assert mode is OpenMode.READ_ONLY, f"{backend} was opened for writing alone"
            assert backend is truth, f"{backend} was read alone, but the truth is {truth}"
    assert process.world.disks == before, "who was refused has changed something"


def _check_ended(process: Process) -> None:
    """Nobody takes the stash of a link that has ended for the catalog, nor the two for one."""
    before = process.world.disks
    linked, stash = process.linked(), process.alone(Backend.STASH)
    tries: list[OpenableCatalog] = [linked, stash, emergency_catalog(stash)]
    for openable, mode in product(tries, (OpenMode.WRITABLE, OpenMode.READ_ONLY)):
        try:
            openable.open(mode, holder="late", purpose="a try").close()
        except (LinkConflict, LinkedElsewhere, NotSourceOfTruth, NeedsPersist):
            continue
        raise AssertionError(f"{openable.place} was opened ({mode.name}), but its link has ended")
    assert process.world.disks == before, "who was refused has changed something"


def read_again(reader: ReadOnlyCatalog, book: Book) -> bool:
    """Sync an old reader: it has all that was acknowledged before that, or says that it can't."""
    known = set(book.acked)
    try:
        reader.sync()
        found = names(reader)
    except (*SHUT_OUT, AsOfTooEarly) as error:
        book.told.append(f"reader: {type(error).__name__}")
        return False
    book.check(found, least=known)
    return True
