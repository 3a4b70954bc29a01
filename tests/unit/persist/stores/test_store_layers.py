"""Layers over stores: what they count and retry. They lose nothing."""

import inspect
import random
from collections.abc import Callable, Sequence
from logging import LogRecord
from pathlib import Path

import pytest

from holdfast.errors import BadInput, Determinate, HoldfastError, Indeterminate
from holdfast.persist import Clock, PersistClient, PersistConfig, Schema
from holdfast.persist.stores import (
    Blob,
    CacheConfig,
    Consensus,
    Entry,
    Location,
    MemoryBlob,
    MemoryConsensus,
    Observation,
    Put,
    StoreMetrics,
)
from holdfast.persist.stores.cache import CachedBlob
from holdfast.persist.stores.layer import BlobLayer, ConsensusLayer
from holdfast.persist.stores.metrics import LATENCY_BOUNDS_S, MeteredBlob, MeteredConsensus
from holdfast.persist.stores.retry import UNSUPERVISED, RetryingBlob, RetryingConsensus, RetryPolicy
from holdfast.persist.stores.watch import Watch
from testbed.faults import (
    Fault,
    FaultyBlob,
    FaultyConsensus,
    Operation,
    ProcessDeath,
    ScriptedPlan,
)

BEFORE, AFTER, CERTAIN = Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER, Fault.DETERMINATE


class StepClock(Clock):
    """Each look is a second later than the one before; waiting takes its time."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def script(faults: Sequence[Fault]) -> ScriptedPlan:
    return ScriptedPlan(dict(enumerate(faults)))


def policy(deadline_s: float = 5.0, calls: frozenset[str] | None = None) -> RetryPolicy:
    return RetryPolicy(deadline_s=deadline_s, calls=calls, clock=StepClock(0.0), chance=random.Random(1))


class Spoken:
    """Stands for a store of which each call says its name."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, name: str):
        def call(*_: object) -> object:
            self.said.append(name)
            return iter(()) if name == "list" else None

        return call

    @property
    def description(self) -> str:
        return "spoken"


@pytest.mark.parametrize(
    ("trait", "layer"),
    [
        (Blob, BlobLayer),
        (Blob, lambda inner: MeteredBlob(inner, StoreMetrics())),
        (Blob, lambda inner: RetryingBlob(inner, policy())),
        (Blob, lambda inner: CachedBlob(inner, CacheConfig(), scope="x")),
        (Consensus, ConsensusLayer),
        (Consensus, lambda inner: MeteredConsensus(inner, StoreMetrics())),
        (Consensus, lambda inner: RetryingConsensus(inner, policy())),
    ],
)
def test_every_call_of_a_trait_reaches_the_store(trait: type, layer) -> None:
    """One that a trait gets later must be passed on too: its default would hide the store's own."""
    arguments = {"key": "k", "data": b"x", "prefix": "", "keys": ["k"], "puts": [Put("k", 1, b"")]}
    for name, method in inspect.getmembers(trait, inspect.isfunction):
        if name.startswith("_"):
            continue
        store = Spoken()
        wanted = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
        try:
            answer = getattr(layer(store), name)(*(arguments.get(each, 1) for each in wanted))
            if name == "list":
                list(answer)
        except (TypeError, AttributeError):
            pass  # the answer means nothing to who measures it
        cached = name in ("open_input", "open_spans") and store.said == ["get_start"]
        assert store.said == [name] or cached, f"{name} does not reach the store"
    assert layer(Spoken()).description == "spoken"


def test_calls_are_counted_with_bytes_errors_and_latency() -> None:
    seen: list[Observation] = []
    metrics = StoreMetrics(seen.append, clock=StepClock())
    plan = ScriptedPlan({1: CERTAIN, 2: AFTER}, matches=lambda each: each.name == "blob.put")
    blob = MeteredBlob(FaultyBlob(MemoryBlob(), plan), metrics)
    consensus = MeteredConsensus(MemoryConsensus(), metrics)

    blob.put("a", b"12345")
    for kind in (Determinate, Indeterminate):
        with pytest.raises(kind):
            blob.put("b", memoryview(b"123"))
    assert blob.get("a") == b"12345"
    assert blob.get("c") is None
    assert [meta.key for meta in blob.list("")] == ["a", "b"]
    assert consensus.compare_and_set([Put("k", 1, b"12"), Put("l", 1, b"3")])
    assert not consensus.compare_and_set([Put("k", 1, b"12")])
    assert consensus.heads(["k", "l"]).keys() == {"k", "l"}
    assert consensus.scan("k", 0, 9) == [Entry(1, b"12")]
    found = metrics.snapshot()

    put = found["blob.put"]
    assert (put.calls, put.bytes_out, put.bytes_in) == (3, 11, 0)
    assert put.errors == {"Determinate": 1, "Indeterminate": 1}
    assert put.seconds == 3.0
    assert put.buckets[LATENCY_BOUNDS_S.index(1)] == sum(put.buckets) == 3
    assert (found["blob.get"].calls, found["blob.get"].bytes_in) == (2, 5)
    assert found["blob.list"].calls == 1
    assert found["consensus.compare_and_set"].bytes_out == 5
    assert found["consensus.compare_and_set"].errors == {}
    assert found["consensus.heads"].bytes_in == 3
    assert found["consensus.scan"].bytes_in == 2
    assert [each.operation for each in seen][:3] == ["blob.put"] * 3
    assert [each.error for each in seen][:3] == [None, "Determinate", "Indeterminate"]
    blob.get("a")
    assert metrics.snapshot()["blob.get"].calls == found["blob.get"].calls + 1 == 3


def test_a_latency_above_all_bounds_has_a_bucket() -> None:
    metrics = StoreMetrics(clock=StepClock(60.0))
    MeteredBlob(MemoryBlob(), metrics).get("a")

    assert metrics.snapshot()["blob.get"].buckets == (*[0] * len(LATENCY_BOUNDS_S), 1)


def test_an_observer_that_fails_harms_no_call(own_records: Callable[[], list[LogRecord]]) -> None:
    def broken(_: Observation) -> None:
        raise ZeroDivisionError

    blob = MeteredBlob(MemoryBlob(), StoreMetrics(broken))
    blob.put("a", b"x")

    assert blob.get("a") == b"x"
    assert len(own_records()) == 1


@pytest.mark.parametrize("faults", [[CERTAIN, CERTAIN], [BEFORE], [AFTER, CERTAIN]], ids=str)
def test_calls_that_may_be_made_again_are(faults: list[Fault]) -> None:
    def retrying() -> RetryingBlob:
        return RetryingBlob(FaultyBlob(inner, script(faults)), policy())

    inner = MemoryBlob()
    retrying().put("a", b"x")
    assert inner.get("a") == b"x"
    assert retrying().get("a") == b"x"
    assert [meta.key for meta in retrying().list("")] == ["a"]
    assert retrying().clock_ms() is not None
    retrying().delete("a")
    assert inner.get("a") is None


@pytest.mark.parametrize("fault", [BEFORE, AFTER])
@pytest.mark.parametrize("call", ["compare_and_set", "truncate"])
def test_a_step_of_unknown_outcome_is_not_made_again(call: str, fault: Fault) -> None:
    inner = MemoryConsensus()
    assert inner.compare_and_set([Put("a", 1, b"x")])
    assert inner.compare_and_set([Put("a", 2, b"y")])
    plan = script([fault])
    store = RetryingConsensus(FaultyConsensus(inner, plan), policy())

    with pytest.raises(Indeterminate):
        store.compare_and_set([Put("a", 3, b"z")]) if call == "compare_and_set" else store.truncate("a", 2)

    assert plan.seen == 1
    changed = inner.heads(["a"])["a"].seqno == 3 or len(inner.scan("a", 0, 9)) == 1
    assert changed == (fault is AFTER)


def test_a_step_that_certainly_did_not_happen_is_made_again() -> None:
    inner = MemoryConsensus()
    store = RetryingConsensus(FaultyConsensus(inner, script([CERTAIN, CERTAIN])), policy())

    assert store.compare_and_set([Put("a", 1, b"x")])
    assert inner.scan("a", 0, 9) == [Entry(1, b"x")]


def test_waits_grow_at_random_until_the_deadline() -> None:
    clock = StepClock(0.0)
    limited = RetryPolicy(deadline_s=3.0, clock=clock, chance=random.Random(3))
    plan = script([CERTAIN] * 1000)

    with pytest.raises(Determinate):
        RetryingBlob(FaultyBlob(MemoryBlob(), plan), limited).get("a")

    assert plan.seen == len(clock.slept) + 1
    assert 2.0 < sum(clock.slept) <= 3.0
    assert len(set(clock.slept)) == len(clock.slept)
    for number, slept in enumerate(clock.slept):
        longest = min(0.01 * 2**number, 1.0)
        assert longest / 2 <= slept <= longest


@pytest.mark.parametrize("lasting", [True, False])
def test_a_put_that_is_refused_after_an_unknown_outcome_may_have_happened(lasting: bool) -> None:
    class Denying(MemoryBlob):
        def put(self, key: str, data: bytes | memoryview) -> None:
            if super().get(key) is None:
                super().put(key, data)
                raise Indeterminate("no response")
            refusal = Determinate("no right to write", hint="allow it")
            raise refusal.for_good() if lasting else refusal

    blob = Denying()
    with pytest.raises(Indeterminate, match=r"no right to write.* may have happened: no response") as caught:
        RetryingBlob(blob, policy()).put("a", b"1")
    assert caught.value.hint == "allow it"
    with pytest.raises(Determinate):
        RetryingBlob(blob, policy()).put("a", b"1")


def test_what_is_no_failure_of_storage_is_raised_at_once() -> None:
    blob = RetryingBlob(MemoryBlob(), policy())
    with pytest.raises(BadInput):
        blob.get("..")
    with pytest.raises(BadInput):
        blob.list("../")
    plan = script([Fault.DEATH_BEFORE])
    with pytest.raises(ProcessDeath):
        RetryingBlob(FaultyBlob(MemoryBlob(), plan), policy()).get("a")
    assert plan.seen == 1


class Torn(MemoryBlob):
    """A listing fails after every second key, once at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    def list(self, prefix: str):
        for number, meta in enumerate(super().list(prefix)):
            if number % 2 and meta.key not in self.failed:
                self.failed.add(meta.key)
                raise Determinate("torn")
            yield meta


def test_a_listing_that_fails_goes_on_where_it_was() -> None:
    inner = Torn()
    for number in range(9):
        inner.put(f"k{number}", b"")

    assert [meta.key for meta in RetryingBlob(inner, policy()).list("k")] == [f"k{n}" for n in range(9)]
    assert len(inner.failed) == 4


def test_only_the_calls_of_a_policy_are_made_again() -> None:
    assert {"compare_and_set", "heads", "scan", "get", "put", "open_input"} & UNSUPERVISED == set()
    limited = policy(calls=UNSUPERVISED)
    for call in ("get", "delete"):
        plan = script([CERTAIN])
        blob = RetryingBlob(FaultyBlob(MemoryBlob(), plan), limited)
        if call == "get":
            with pytest.raises(Determinate):
                blob.get("a")
        else:
            assert blob.delete("a") is False
        assert plan.seen == (1 if call == "get" else 2)


def test_a_watch_is_that_of_the_store() -> None:
    class Hinting(MemoryConsensus):
        def watch(self, key: str) -> Watch:
            return watch

    watch = Watch()
    store = RetryingConsensus(MeteredConsensus(Hinting(), StoreMetrics()), policy())

    assert store.watch("a") is watch


def test_a_client_counts_caches_and_opens_with_patience(tmp_path: Path) -> None:
    metrics = StoreMetrics()
    schema = Schema.of({"k": "int64"}, {"v": "string"})
    config = PersistConfig(inline_max_bytes=0, maintenance="off", retry_deadline_s=5.0)

    def opened() -> PersistClient:
        return PersistClient.open(
            f"file://{tmp_path}/data",
            config=config,
            cache=CacheConfig(folder=tmp_path / "cache"),
            metrics=metrics,
        )

    with opened() as client:
        shard = client.new_shard_id()
        writer = client.writer(shard, schema, purpose="test")
        writer.compare_and_append([{"k": 1, "v": "a"}], 0, 1)
    before = metrics.snapshot()
    with opened() as client:
        reader = client.reader(shard, purpose="test")
        for _ in range(3):
            assert reader.snapshot(0).to_table().num_rows == 1
        assert isinstance(client.location.blob, CachedBlob)
        assert client.location.blob.stats().folder_hits == 2, (
            "the part, and the rollup that the first client left"
        )
        assert client.location.blob.stats().memory_hits == 2
    after = metrics.snapshot()

    assert before["consensus.compare_and_set"].calls >= 2
    assert before["blob.put"].calls == 3, "the id, the part, and the rollup at the close"
    # The location's id is read from the store, the rollup and the part from the cache.
    assert after["blob.get"].calls == before["blob.get"].calls + 1
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("number", range(13))
@pytest.mark.parametrize("fault", [CERTAIN, AFTER])
def test_a_location_is_opened_over_passing_faults(number: int, fault: Fault) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    plan = ScriptedPlan({number: fault})
    limited = policy()
    location = Location.of(
        RetryingBlob(FaultyBlob(blob, plan), limited),
        RetryingConsensus(FaultyConsensus(consensus, plan), limited),
    )

    assert plan.seen > number or number == 12
    assert Location.of(blob, consensus).location_id == location.location_id


def test_operations_are_named_as_faults_name_them() -> None:
    metrics = StoreMetrics()
    names: set[str] = set()

    def matches(operation: Operation) -> bool:
        names.add(operation.name)
        return False

    plan = ScriptedPlan({}, matches=matches)
    blob, log = FaultyBlob(MemoryBlob(), plan), FaultyConsensus(MemoryConsensus(), plan)
    metered, watched = MeteredBlob(blob, metrics), MeteredConsensus(log, metrics)
    metered.put("a", b"")
    metered.get("a")
    metered.open_input("a", 1)
    list(metered.list(""))
    metered.delete("a")
    watched.compare_and_set([Put("a", 1, b"")])
    watched.heads(["a"])
    watched.scan("a", 0, 1)
    watched.truncate("a", 1)
    watched.list_keys()

    assert set(metrics.snapshot()) == names
    with pytest.raises(HoldfastError):
        watched.scan("a", 0, 0)
    assert metrics.snapshot()["consensus.scan"].errors == {"BadInput": 1}


class Stopping(MemoryBlob):
    """A store of which some calls fail; each takes as long as the process is stopped meanwhile."""

    def __init__(self, clock: StepClock, stops: Sequence[float]) -> None:
        super().__init__()
        self._clock, self._stops, self.seen = clock, iter(stops), 0

    def get(self, key: str) -> bytes | None:
        self.seen += 1
        stopped_s = next(self._stops, None)
        if stopped_s is None:
            return super().get(key)
        self._clock.now_s += stopped_s
        raise Determinate("no connection")


def test_time_spent_stopped_is_not_time_spent_trying() -> None:
    clock = StepClock(0.0)
    stopped = Stopping(clock, [600.0, 0.0, 0.0, 0.0])
    limited = RetryPolicy(deadline_s=3.0, clock=clock, chance=random.Random(3))
    assert RetryingBlob(stopped, limited).get("a") is None
    assert stopped.seen == 5


def test_a_store_that_hangs_is_tried_twice_and_no_more() -> None:
    clock = StepClock(0.0)
    hanging = Stopping(clock, [30.0] * 100)
    limited = RetryPolicy(deadline_s=3.0, clock=clock, chance=random.Random(3))
    with pytest.raises(Determinate):
        RetryingBlob(hanging, limited).get("a")
    assert hanging.seen == 2
