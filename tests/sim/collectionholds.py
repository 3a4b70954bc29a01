"""Holds of simulated processes that outlive them, and the check that the held times stay readable.

Each process uses its own purposes, so no other process moves or ends its holds. A request may succeed
although its result is lost. So before each request, a process already assumes the weaker of both outcomes.
"""

from typing import TYPE_CHECKING

from holdfast.errors import AsOfTooEarly, BadInput, HandleExpired
from sim.audit import Violation
from sim.collectionwitness import NAME, contents

if TYPE_CHECKING:
    from sim.collectionprocess import Incarnation


def take_hold(me: "Incarnation") -> None:
    purpose = _named(me, "reads")
    since = me.random.choice([None, None, max(me.world.upper - 1, 0), me.world.upper // 2])
    me.process.holds[purpose] = None
    try:
        hold = me.controller.hold(NAME, purpose, since=since)
    except AsOfTooEarly:
        if since is None or any(held is not None and held <= since for held in me.process.holds.values()):
            raise
        return
    _believe(me, purpose, hold.since)
    me.meet("durable holds taken", f"since {hold.since}")


def find_hold(me: "Incarnation") -> None:
    if not me.process.holds:
        return
    purpose = me.random.choice(list(me.process.holds))
    _believe(me, purpose, me.controller.hold(NAME, purpose).since)
    if me.process.incarnations > 1:
        me.meet("durable holds found after a death")


def _believe(me: "Incarnation", purpose: str, since: int) -> None:
    held = me.process.holds[purpose]
    if held is not None and since > held:
        raise Violation(f"{me.who}: its hold '{purpose}' is at {since}, it was at {held}")
    me.process.holds[purpose] = since


def move_hold(me: "Incarnation") -> None:
    known = [(purpose, since) for purpose, since in me.process.holds.items() if since is not None]
    if not known:
        return
    purpose, held = me.random.choice(known)
    # What lies beyond the latest complete time is cut to that.
    wanted = [me.world.upper - 1, (held + me.world.upper) // 2, me.world.upper + 5]
    since = max(held, me.random.choice(wanted))
    # It may be done although the answer is lost.
    me.process.holds[purpose] = since
    try:
        me.controller.hold(NAME, purpose).downgrade(since)
    except HandleExpired as error:
        raise Violation(f"{me.who}: its hold '{purpose}' is gone") from error
    me.meet("durable holds moved")


def release_hold(me: "Incarnation") -> None:
    if not me.process.holds:
        return
    purpose = me.random.choice(list(me.process.holds))
    del me.process.holds[purpose]
    me.controller.release_hold(NAME, purpose)
    me.meet("durable holds released")


def read_held(me: "Incarnation") -> None:
    """Read at a time that is held, by nobody but this process perhaps."""
    known = [since for since in me.process.holds.values() if since is not None]
    if not known:
        return
    held, begun = me.random.choice(known), me.history.now()
    with me.controller.reader(NAME, purpose=me.who) as reader:
        upper = reader.upper()
        if upper <= held:
            return
        as_of = me.random.choice([held, held, me.random.randint(held, upper - 1)])
        try:
            as_of, found = contents(reader, as_of)
        except AsOfTooEarly:
            me.refuse_too_early(as_of, held)
            return
    me.history.read(me.who, NAME, as_of, found, begun)
    me.meet("snapshots under a durable hold")


def hold_to_write(me: "Incarnation") -> None:
    """Take a capability to write, or end one."""
    if me.random.random() < 0.5:
        try:
            me.controller.acquire_write(NAME, f"{me.process.name} writes")
        except BadInput:
            return  # Only pipelines may.
        me.meet("capabilities to write taken")
    else:
        me.controller.release_write(NAME, f"{me.process.name} writes")


def _named(me: "Incarnation", what: str) -> str:
    me.process.named += 1
    return f"{me.process.name} {what} {me.process.named}"
