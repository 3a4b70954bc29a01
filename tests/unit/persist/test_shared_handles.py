"""One handle that two clients of a location use at the same time.

`PersistClient.multi_write` commits appends that another client prepared, and `PersistClient.writer_of` opens
a writer that another process handed on. So two clients can commit as the same writer, and the writer's entry
shows only the last of their appends.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import Fenced, Indeterminate, UpperMismatch
from holdfast.persist import PersistClient, Prepared, WriteHandle, WriteMode
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.machine import commit
from testbed.faults import Fault, Operation
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}


class LosesAnswers:
    """The answer to the next commit is lost, and `then` happens before its client reads what became of it."""

    def __init__(self, *, landed: bool = True) -> None:
        self.then: Callable[[], object] | None = None
        self._fault = Fault.INDETERMINATE_AFTER if landed else Fault.INDETERMINATE_BEFORE
        self._due: Callable[[], object] | None = None

    def decide(self, operation: Operation) -> Fault:
        due, self._due = self._due, None
        if due is not None:
            due()
        if self.then is None or operation.name != "consensus.compare_and_set":
            return Fault.NONE
        self._due, self.then = self.then, None
        return self._fault


def opened(client: PersistClient, shard: str = SHARD) -> WriteHandle:
    """A writer with an entry, at upper 1."""
    writer = client.writer(shard, SCHEMA, purpose="shared")
    writer.compare_and_append(rows(0), 0, 1)
    return writer


def found(stores: Stores, shard: str = SHARD) -> dict[tuple[int, str], int]:
    upper = stores.state(shard).upper
    return dict(contents(stores.open().reader(shard, purpose="test").snapshot(upper - 1).to_table()))


@pytest.mark.parametrize("settings", [{}, BLOBS])
@pytest.mark.parametrize("more", [1, 5])
def test_an_append_that_landed_is_known_although_another_client_appended_as_the_same_writer(
    stores: Stores, settings: dict[str, Any], more: int
) -> None:
    plan = LosesAnswers()
    one, two = stores.open(plan, **settings), stores.open(**settings)
    writer = opened(one)
    mine = writer.prepare_append(rows(1), 1, 5)
    theirs = [writer.prepare_append(rows(10 + n), 5 + n, 6 + n) for n in range(more)]
    plan.then = lambda: [two.multi_write([each]) for each in theirs]
    one.multi_write([mine])
    assert plan.then is None
    assert found(stores) == {(key, "x"): 1 for key in (0, 1, *range(10, 10 + more))}
    writer.compare_and_append(rows(3), 5 + more, 9 + more)


def test_an_append_that_lost_to_the_same_writer_is_known_to_have_lost(stores: Stores) -> None:
    plan = LosesAnswers(landed=False)
    one, two = stores.open(plan, **BLOBS), stores.open()
    writer = opened(one)
    mine, theirs = writer.prepare_append(rows(1), 1, 5), writer.prepare_append(rows(2), 1, 4)
    plan.then = lambda: two.multi_write([theirs])
    with pytest.raises(UpperMismatch) as raised:
        one.multi_write([mine])
    assert raised.value.actual == 4
    assert found(stores) == {(0, "x"): 1, (2, "x"): 1}
    writer.compare_and_append(rows(1), 4, 5)
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}


def test_an_append_of_a_writer_that_was_handed_on_is_known(stores: Stores) -> None:
    """Two attempts of one job append with the same ticket."""
    plan = LosesAnswers()
    one, two = stores.open(plan), stores.open()
    ticket = opened(stores.open()).hand_on(lease_s=60)
    mine, theirs = (each.writer_of(ticket, purpose="job") for each in (one, two))
    prepared = mine.prepare_append(rows(1), 1, 2)
    plan.then = lambda: theirs.compare_and_append(rows(2), 2, 3)
    one.multi_write([prepared])
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}


@pytest.mark.parametrize("order", [1, -1])
def test_a_multi_write_that_landed_is_known(stores: Stores, order: int) -> None:
    plan = LosesAnswers()
    one, two = stores.open(plan), stores.open()
    writer, other = opened(one), opened(one, OTHER)
    appends = [writer.prepare_append(rows(1), 1, 5), other.prepare_append(rows(2), 1, 5)]
    condition = one.prepare_expect_upper(SHARD, 1)
    theirs: Sequence[Prepared] = [writer.prepare_append(rows(3), 5, 7), other.prepare_append(rows(4), 5, 7)]
    plan.then = lambda: two.multi_write(theirs)
    one.multi_write([condition, *appends[::order]])
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (3, "x"): 1}
    assert found(stores, OTHER) == {(0, "x"): 1, (2, "x"): 1, (4, "x"): 1}


def test_a_multi_write_that_landed_is_known_by_a_shard_that_nobody_wrote_to_since(stores: Stores) -> None:
    plan = LosesAnswers()
    one, two = stores.open(plan), stores.open()
    writer, other = opened(one), opened(one, OTHER)
    appends = [writer.prepare_append(rows(1), 1, 5), other.prepare_append(rows(2), 1, 5)]
    theirs = other.prepare_append(rows(4), 5, 7)
    plan.then = lambda: two.multi_write([theirs])
    one.multi_write(appends)
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1}
    assert found(stores, OTHER) == {(0, "x"): 1, (2, "x"): 1, (4, "x"): 1}


def test_conditions_without_a_writer_are_known_to_have_held(stores: Stores) -> None:
    plan = LosesAnswers()
    one, two = stores.open(plan), stores.open()
    writer = opened(one)
    hold = one.critical_since(SHARD, purpose="backup")
    step = [one.prepare_expect_upper(SHARD, 1), hold.prepare_downgrade(1)]
    theirs = writer.prepare_append(rows(1), 1, 5)
    plan.then = lambda: two.multi_write([theirs])
    one.multi_write(step)
    (reader,) = stores.state().critical_readers.values()
    assert reader.since == 1


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_whose_client_was_fenced_meanwhile_is_known(stores: Stores, *, landed: bool) -> None:
    plan = LosesAnswers(landed=landed)
    one, two = stores.open(plan), stores.open()
    one.exclusive("job", purpose="test")
    writer = one.writer(SHARD, SCHEMA, purpose="shared", mode=WriteMode.WRITE_SEAL)
    writer.write(rows(0))
    mine, theirs = writer.prepare_write(rows(1)), writer.prepare_write(rows(2))

    def take_over() -> None:
        two.exclusive("job", purpose="test")
        two.multi_write([theirs])

    plan.then = take_over
    if landed:
        one.multi_write([mine])
    else:
        with pytest.raises(Fenced):
            one.multi_write([mine])
    stores.open().exclusive("job", purpose="test")
    assert len(stores.state().pending) == (3 if landed else 2)


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_that_is_accepted_again_is_not_written_twice(stores: Stores, *, landed: bool) -> None:
    """Nothing else would refuse it: a write moves no upper."""
    plan = LosesAnswers(landed=landed)
    client, two = stores.open(plan), stores.open(compaction_fanin=2)
    client.exclusive("job", purpose="test")
    writer = client.writer(SHARD, SCHEMA, purpose="shared", mode=WriteMode.WRITE_SEAL)
    writer.write(rows(0))
    mine, theirs = writer.prepare_write(rows(1)), writer.prepare_write(rows(2))
    # Another client of the same holder. It merges pending batches, so the one of this write is gone.
    held = client.session.fence.held
    assert held is not None
    two.session.fence.take(held)

    def go_on() -> None:
        two.multi_write([theirs])
        two.maintain(SHARD)

    plan.then = go_on
    client.multi_write([mine])
    writer.seal(1)
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}


@pytest.mark.parametrize("landed", [True, False])
def test_an_append_is_known_after_its_row_was_cut(stores: Stores, *, landed: bool) -> None:
    plan = LosesAnswers(landed=landed)
    one, two = stores.open(plan), stores.open(rollup_every=2)
    writer = opened(one)
    lower = 5 if landed else 1
    mine = writer.prepare_append(rows(1), 1, 5)
    theirs = [writer.prepare_append(rows(10 + n), lower + n, lower + n + 1) for n in range(6)]
    row = stores.state().seqno + 1

    def go_on() -> None:
        for each in theirs:
            two.multi_write([each])
            two.maintain(SHARD)

    plan.then = go_on
    if landed:
        one.multi_write([mine])
    else:
        with pytest.raises(UpperMismatch):
            one.multi_write([mine])
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > row
    assert ((1, "x") in found(stores)) is landed


@pytest.mark.parametrize("landed", [True, False])
def test_an_append_stays_in_doubt_where_nothing_shows_its_row(stores: Stores, *, landed: bool) -> None:
    """The shard was finalized, so its log keeps neither the row nor its digest."""
    plan = LosesAnswers(landed=landed)
    one, two = stores.open(plan), stores.open()
    writer = opened(one)
    mine = writer.prepare_append(rows(1), 1, 5)

    def finalize() -> None:
        two.finalize(SHARD)
        two.maintain(SHARD)

    plan.then = finalize
    with pytest.raises(Indeterminate):
        one.multi_write([mine])


def test_an_append_stays_in_doubt_where_the_rows_were_cut_without_their_digests(stores: Stores) -> None:
    plan = LosesAnswers()
    one, two = stores.open(plan), stores.open()
    writer = opened(one)
    mine, theirs = writer.prepare_append(rows(1), 1, 5), writer.prepare_append(rows(2), 5, 6)

    def cut() -> None:
        two.multi_write([theirs])
        stores.consensus.truncate(SHARD, stores.state().seqno)

    plan.then = cut
    with pytest.raises(Indeterminate):
        one.multi_write([mine])


@pytest.mark.parametrize("landed", [True, False])
def test_an_append_is_known_although_the_entry_of_its_writer_is_gone(stores: Stores, *, landed: bool) -> None:
    plan = LosesAnswers(landed=landed)
    one, two = stores.open(plan), stores.open()
    writer = opened(one)
    mine = writer.prepare_append(rows(1), 1, 5)

    def forget() -> None:
        machine = two.session.machine(SHARD)
        state = machine.refresh()
        two.writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(2), state.upper, 9)
        silent = tuple((each.id, each.heartbeats) for each in state.writers.values())
        commit([(machine, ExpireHandles((), silent))])

    plan.then = forget
    if landed:
        one.multi_write([mine])
    else:
        with pytest.raises(UpperMismatch):
            one.multi_write([mine])
    assert ((1, "x") in found(stores)) is landed
