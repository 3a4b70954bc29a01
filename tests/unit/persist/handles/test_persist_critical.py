"""Critical holds with tokens: only the stored token moves the hold."""

import json
from collections.abc import Callable

import pytest

from holdfast.errors import BadInput, Fenced, HandleExpired
from holdfast.persist import CriticalSince, PersistClient
from testbed.faults import Fault, ScriptedPlan
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, rows

MINE, NEXT = b"deploy 1, epoch 1, 6f1c", b"deploy 1, epoch 2, a03b"


@pytest.fixture
def client(stores: Stores) -> PersistClient:
    client = stores.open()
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 50)
    return client


def test_taking_a_hold_over_fences_who_had_it(stores: Stores, client: PersistClient) -> None:
    held = client.critical_since(SHARD, purpose="retention", opaque=MINE)
    held.downgrade(10)
    successor = stores.open().critical_since(SHARD, purpose="retention", opaque=NEXT)
    assert (successor.id, successor.since, successor.opaque) == (held.id, 10, MINE)
    with pytest.raises(Fenced):
        successor.downgrade(11)
    successor.compare_and_downgrade(MINE, NEXT, 12)
    successor.downgrade(13)
    before = stores.stored()
    attempts: list[Callable[[], None]] = [
        lambda: held.downgrade(40),
        lambda: held.downgrade(0),
        lambda: held.compare_and_downgrade(MINE, b"again", 40),
        held.release,
    ]
    for attempt in attempts:
        with pytest.raises(Fenced) as fenced:
            attempt()
        assert "hold 'retention'" in str(fenced.value)
        assert SHARD in str(fenced.value)
        assert b"epoch".decode() not in str(fenced.value)
    assert stores.stored() == before
    # Who opens it again with the old token finds it, and no more.
    with pytest.raises(Fenced):
        client.critical_since(SHARD, purpose="retention", opaque=MINE).downgrade(40)
    assert (stores.state().since, held.since, held.opaque) == (13, 13, NEXT)
    successor.release()
    with pytest.raises(HandleExpired):
        held.downgrade(40)


def test_a_hold_without_a_token_is_everybodys(stores: Stores, client: PersistClient) -> None:
    client.critical_since(SHARD, purpose="retention").downgrade(10)
    stores.open().critical_since(SHARD, purpose="retention").downgrade(20)
    assert stores.state().since == 20
    # Until somebody puts one on it.
    fencing = stores.open().critical_since(SHARD, purpose="retention", opaque=MINE)
    with pytest.raises(Fenced):
        fencing.downgrade(30)
    fencing.compare_and_downgrade(b"", MINE, 30)
    with pytest.raises(Fenced):
        client.critical_since(SHARD, purpose="retention").downgrade(40)
    assert stores.state().since == 30


def test_a_change_of_token_of_unknown_outcome_is_safe_to_repeat(
    stores: Stores, client: PersistClient
) -> None:
    client.critical_since(SHARD, purpose="retention", opaque=MINE)
    for fault in (Fault.DETERMINATE, Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER):
        token = NEXT + fault.value.encode()
        known = client.critical_since(SHARD, purpose="retention").opaque
        plan = ScriptedPlan({0: fault}, matches=lambda each: each.name == "consensus.compare_and_set")
        shaky = stores.open(plan)
        hold = shaky.critical_since(SHARD, purpose="retention", opaque=token)
        hold.compare_and_downgrade(known, token, 5)
        hold.compare_and_downgrade(known, token, 5)
        hold.downgrade(6)
        client.session.machine(SHARD).refresh()
        assert plan.seen
        assert stores.state().critical_readers[hold.id].opaque == token


def test_a_token_guards_a_multi_write(stores: Stores, client: PersistClient) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    client.writer(OTHER, SCHEMA, purpose="test").seal(50)
    client.multi_write(
        [client.prepare_critical(shard, purpose="job", opaque=MINE) for shard in (SHARD, OTHER)]
    )
    # A hold that has not to move is a condition all the same.
    still = client.prepare_downgrade_critical(OTHER, 0, purpose="job", opaque=MINE)
    client.multi_write([writer.prepare_seal(50, 51), still])
    client.multi_write(
        [client.prepare_downgrade_critical(OTHER, 7, purpose="job", opaque=NEXT, expected=MINE)]
    )
    with pytest.raises(Fenced):
        client.multi_write([writer.prepare_seal(51, 52), still])
    with pytest.raises(Fenced):
        client.multi_write(
            [
                client.prepare_release_critical(SHARD, purpose="job", opaque=MINE),
                client.prepare_release_critical(OTHER, purpose="job", opaque=MINE),
            ]
        )
    assert stores.state().upper == 51
    hold: CriticalSince = client.critical_since(SHARD, purpose="job", opaque=MINE)
    client.multi_write([hold.prepare_compare_and_downgrade(MINE, NEXT, 3)])
    with pytest.raises(Fenced):
        hold.downgrade(4)
    client.multi_write(
        [client.prepare_release_critical(shard, purpose="job", opaque=NEXT) for shard in (SHARD, OTHER)]
    )
    assert not stores.state().critical_readers


def test_people_see_that_tokens_differ_and_never_a_token(client: PersistClient) -> None:
    hold = client.critical_since(SHARD, purpose="retention", opaque=MINE)
    client.critical_since(SHARD, purpose="open")

    def token(purpose: str) -> str:
        (found,) = [held.token for held in client.inspect(SHARD).holds if held.purpose == purpose]
        return found

    first = token("retention")
    hold.compare_and_downgrade(MINE, NEXT, 0)
    assert token("open") == "none"
    assert len(first) == len(token("retention")) == 8
    assert first != token("retention")
    shown = json.dumps(json.loads(client.inspect(SHARD).to_json()))
    assert "epoch" not in shown
    assert MINE.hex() not in shown


def test_a_token_is_a_few_bytes(client: PersistClient) -> None:
    for wrong in (b"x" * 257, "text"):
        with pytest.raises(BadInput, match="must be bytes, at most 256"):
            client.critical_since(SHARD, purpose="retention", opaque=wrong)  # type: ignore[arg-type]
