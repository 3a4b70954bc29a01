"""The actions of a process in a world whose consensus store fails over, and the errors that it must get."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    HandleExpired,
    Indeterminate,
    LogRegressed,
    UpperMismatch,
)
from holdfast.persist import Progress, Updates
from holdfast.persist.multi_write import Prepared
from sim.audit import Violation
from sim.failoverservers import Acknowledged, Read, Refused
from sim.history import MARKER, Followed, Update, Write
from sim.rows import contents, table

if TYPE_CHECKING:
    from sim.failoverprocess import Incarnation, Session


MOST_PAUSES = 200


def append(me: "Incarnation", shard: str) -> None:
    """Append to one shard."""
    _append(me, [shard])


def append_level(me: "Incarnation", shard: str) -> None:
    """Append once the server has as many versions as the client knows: perhaps those of another history."""
    _let_others_reach(me, shard, me.client.session.machine(shard).state.seqno)
    _append(me, [shard])


def _let_others_reach(me: "Incarnation", shard: str, seqno: int) -> None:
    for _ in range(MOST_PAUSES):
        if me.world.primary.state(shard).seqno >= seqno:
            return
        me.world.scheduler.pause()


def append_to_all(me: "Incarnation", shard: str) -> None:
    """Append to both shards at once."""
    _append(me, me.world.shards)


def append_if(me: "Incarnation", shard: str) -> None:
    """Append to one shard on the condition that the other one is as it is known."""
    _append(me, [shard], [other for other in me.world.shards if other != shard])


def _append(me: "Incarnation", shards: list[str], conditions: list[str] | None = None) -> None:
    known = {shard: me.writer(shard).cached_upper for shard in [*shards, *(conditions or [])]}
    lower = max(known[shard] for shard in shards)
    write = _new_write(me, shards, lower)
    me.session.write = write
    server = me.session.reach()
    try:
        with _linearized(me.session, [*known]):
            commands: list[Prepared] = [
                me.writer(shard).prepare_append(
                    table(write.updates, me.writer(shard).schema), known[shard], lower + 1
                )
                for shard in shards
            ]
            commands += [me.client.prepare_expect_upper(other, known[other]) for other in conditions or []]
            try:
                me.client.multi_write(commands)
            except UpperMismatch as mismatch:
                _told(me, write, shards, Refused(write))
                if mismatch.actual == mismatch.expected:
                    raise Violation(f"{mismatch} is no mismatch") from mismatch
                return
        _told(me, write, shards, Acknowledged(write))
        me.session.check_line(server)
    except (Indeterminate, HandleExpired) as error:
        if isinstance(error, HandleExpired) and "outcome of an earlier append is unknown" not in str(error):
            raise
        for shard in shards:
            me.writers.pop(shard, None)
    finally:
        me.session.write = None


def _told(me: "Incarnation", write: Write, shards: list[str], what: Acknowledged | Refused) -> None:
    me.world.scheduler.note(f"-> {write.name} {type(what).__name__}")
    for shard in shards:
        me.session.seen[shard].append(what)


def _new_write(me: "Incarnation", shards: list[str], lower: int) -> Write:
    world = me.world
    name = f"write-{len(world.writes)}"
    updates: list[Update] = [(MARKER, name, lower, 1)]
    updates += [(me.random.randint(0, 4), name, lower, 1) for _ in range(me.random.randint(0, 2))]
    if world.writes and me.random.random() < 0.3:
        key, value, _, diff = me.random.choice(me.random.choice(world.writes).updates)
        if key != MARKER:
            updates.append((key, value, lower, -diff))
    write = Write(name, tuple(shards), lower, lower + 1, tuple(updates), world.scheduler.steps)
    world.writes.append(write)
    return write


@contextmanager
def _linearized(session: "Session", shards: list[str]) -> Iterator[None]:
    """Refuse that a call that asks the store returns to a client that knows what its server has lost."""
    server = session.reach()
    lost = [shard for shard in shards if session.lacks(server, shard)]
    yield
    if lost and session.last is server:
        raise Violation(f"{session.who} knew a lost row of {lost}, and the call returned")


def peek(me: "Incarnation", shard: str) -> None:
    """Ask for the newest upper of a shard."""
    session = me.random.choice([me.session, me.observer])
    server = session.reach()
    before = server.state(shard).upper
    with _linearized(session, [shard]):
        upper = session.client.recent_upper(shard)
    if session.last is server and not before <= upper <= server.state(shard).upper:
        raise Violation(f"{session.who}: upper {upper} of {shard} was never true during the call")
    session.seen[shard].append(upper)


def peek_all(me: "Incarnation", shard: str) -> None:
    """Ask for the newest uppers of both shards, as of one moment."""
    session = me.random.choice([me.session, me.observer])
    with _linearized(session, me.world.shards):
        found = session.client.recent_uppers(me.world.shards)
    session.pairs.append(tuple(found[each] for each in me.world.shards))
    for each, upper in found.items():
        session.seen[each].append(upper)


def snapshot(me: "Incarnation", shard: str) -> None:
    """Read the contents at a time."""
    session = me.random.choice([me.session, me.observer])
    state = session.client.session.machine(shard).state
    if not state.exists:
        state = session.reach().state(shard)
    if not state.exists:
        return
    as_of = me.random.randint(state.since, max(state.upper - 1, state.since))
    try:
        found = contents(me.reader(session, shard).snapshot(as_of).to_table())
    except (AsOfNotYetAvailable, AsOfTooEarly):
        return
    session.seen[shard].append(Read(as_of, found))


def follow(me: "Incarnation", shard: str) -> None:
    """Take what a listen has, or begin one."""
    session = me.session
    if (session.who, shard) not in me.listens:
        state = session.reach().state(shard)
        if not state.exists or not state.upper:
            return
        as_of = me.random.randint(state.since, max(state.upper - 1, state.since))
        try:
            listen = me.reader(session, shard).listen(as_of)
        except AsOfTooEarly:
            return
        followed = Followed(me.who, shard, as_of + 1, as_of + 1, 0)
        session.seen[shard].append(followed)
        me.listens[session.who, shard] = (listen, followed)
    listen, followed = me.listens[session.who, shard]
    try:
        events = listen.next(timeout=0)
    except AsOfTooEarly:
        del me.listens[session.who, shard]
        return
    for event in events:
        match event:
            case Updates(found):
                columns = [found.column(name).to_pylist() for name in ("k", "v", "_time", "_diff")]
                for key, value, time, diff in zip(*columns, strict=True):
                    followed.updates[key, value, time] += diff
            case Progress(frontier):
                followed.frontier = frontier


def maintain(me: "Incarnation", shard: str) -> None:
    """Do the upkeep of a shard."""
    me.session.maintain(shard)


def collect_apart(me: "Incarnation", shard: str) -> None:
    """Do the upkeep of a shard; a client that is cut off first lets others write to the promoted server."""
    for _ in range(MOST_PAUSES):
        if not me.world.is_cut_off(me.session) or len(me.world.primary.moments) > 2:
            break
        me.world.scheduler.pause()
    me.session.maintain(shard)


def move_since(me: "Incarnation", shard: str) -> None:
    """Let compaction go on."""
    if (me.session.who, shard) in me.readers:
        upper = me.client.session.machine(shard).state.upper
        me.readers[me.session.who, shard].allow_compaction(max(0, upper - me.random.randint(1, 4)))


def idle(me: "Incarnation", shard: str) -> None:
    """Do nothing while the others go on."""
    me.world.scheduler.sleep(me.random.choice([0.02, 0.1, 0.3]))


def age(me: "Incarnation", shard: str) -> None:
    """Let much time pass for everybody."""
    me.world.let_time_pass()


def hand_out(me: "Incarnation", shard: str) -> None:
    """Merge what another process may install later, which remembers nothing of the log."""
    server = me.session.reach()
    try:
        task = me.client.compactions.claim(shard, purpose=me.who, full=me.random.random() < 0.5)
        if task is not None:
            me.world.merged.append((server, task, me.client.compactions.merge(task)))
            if me.random.random() < 0.3:
                me.world.fail_over_soon()
    except LogRegressed:
        raise
    except HandleExpired as error:
        if "batches of claim" not in str(error):
            raise


def install(me: "Incarnation", shard: str) -> None:
    """Install what some process has merged, most often on a server that was promoted since."""
    merged = me.world.merged
    late = [at for at, (server, _, _) in enumerate(merged) if server is not me.world.primary]
    if late or (merged and me.random.random() < 0.4):
        _, task, parts = merged.pop(me.random.choice(late or range(len(merged))))
        _let_others_reach(me, task.shard_id, max(task.batch_ids))
        done = me.client.compactions.install(task, parts)
        me.world.scheduler.meet(f"results installed: {done}")


Action = Callable[["Incarnation", str], None]
ACTIONS: tuple[tuple[int, Action], ...] = (
    (11, append),
    (3, append_level),
    (5, append_to_all),
    (4, append_if),
    (4, peek),
    (4, peek_all),
    (5, snapshot),
    (5, follow),
    (4, maintain),
    (5, collect_apart),
    (2, move_since),
    (3, idle),
    (2, age),
    (4, hand_out),
    (5, install),
)
