"""Foreign objects beside those of a shard change nothing."""

import pytest

from holdfast.persist import PersistClient
from holdfast.persist.admin.accept import accept
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.admin.verify import verify
from holdfast.persist.state.divergence import why_keep
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents, rows

FOREIGN = [
    "lines/README",
    "lines/1-x-line",
    f"{SHARD}/vacuum.txt",
    f"{SHARD}/v20",
    f"{SHARD}/v20-20",
    f"{SHARD}/findings.json",
    f"{SHARD}/f1-0-note",
    f"{SHARD}/copy",
    f"{SHARD}/c9-1.0 (copy)",
    f"{SHARD}/w/p",
    f"{SHARD}/v99999999999999999999-00000000-0000-4000-8000-000000000003",
    f"{SHARD}/v09-00000000-0000-4000-8000-000000000003",
    f"{SHARD}/c99999999999999999999-1.00000000",
    f"{SHARD}/f99999999999999999999-0-1.00000000-none",
    f"{SHARD}/f1-99999999999999999999-1.00000000-none",
    "lines/99999999999999999999-0-line2",
]


def write(client: PersistClient, first: int, count: int) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


@pytest.mark.parametrize("key", FOREIGN)
def test_a_foreign_object_stops_nobody(stores: Stores, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(stores.consensus, "line", lambda: "line1")
    idle = stores.open()
    stores.blob.put(key, b"")
    client = stores.open(maintenance="inline", rollup_every=4)
    write(client, 0, 10)
    idle.recent_upper(SHARD)
    cut = stores.consensus.scan(SHARD, 0, 1)[0].seqno
    assert cut > 1
    # Without its own blob the anchor is looked up in the others.
    for meta in stores.blob.list(f"{SHARD}/c"):
        if meta.key != key:
            stores.blob.delete(meta.key)
    write(client, 10, 20)
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > cut
    assert idle.recent_upper(SHARD) == 30
    machine = client.session.machine(SHARD)
    assert why_keep(machine) == ""
    assert verify(client, SHARD).findings == ()
    accept(machine)
    stores.clock.now_s += 1e6
    assert [each.refused for each in sweep(client, delete=True)] == [""]
    assert Recovery(stores.blob, stores.consensus).plan.healthy
    assert stores.blob.get(key) == b""
    assert len(contents(stores.open().reader(SHARD, purpose="r").snapshot(29).to_table())) == 30
