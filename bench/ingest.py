"""Messages of a real Kafka broker into a collection, by `holdfast ingest` in one process.

The topic has JSON messages of about 80 bytes in 4 partitions. Each side runs in a new process, on files and
SQLite, and the time counts from its start of work to the end of the topic. The sides run in turns.

- *envelope None*: the peer is what people write by hand: a consumer of `confluent_kafka`, Polars to
  decode 100,000 messages at once, and an append with `deltalake`. It commits its offsets to
  the group after the append, so a crash between the two repeats rows. Ours doesn't.
- *a goal of the design*: the same run of ours against 250,000 rows/s. It is missed. About half of the time is
  a wait for messages from the broker, which runs on the same two cores. The CPU time is 3.1 us for each
  message, of which `confluent_kafka` alone takes 1.0 us.
- *envelope Upsert*: over as many keys as messages, against our own run with envelope None.
- *latency*: messages come at 5,000 rows/s, with an interval of 1 s. For each commit, the age of its oldest
  message: p50 and p99. The peers are the goals, 2 s and 5 s.
- *a step with little*: the CPU time of this process for a step with one message, without the broker's. The
  peer is the goal, 0.15 s. The note has the step that finds nothing.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "2"

import deltalake
import polars as pl
from common import Goal, Row, log, main, median, percentile, scratch
from confluent_kafka import Consumer

from holdfast.collections import StorageController
from holdfast.ingest import IngestStep, StepOutcome, ingestion_of, parse
from holdfast.persist import PersistClient, Schema

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.kafka import Kafka

MESSAGES = 1_000_000
PARTITIONS = 4
BATCH = 100_000
ROUNDS = 3
RATE = 5_000
LATENCY_S = 20
SCHEMA = Schema.of(key={"id": "int64"}, value={"customer": "string?", "amount": "float64?"})
POLARS = {"id": pl.Int64, "customer": pl.String, "amount": pl.Float64}


def message(number: int) -> bytes:
    """Return a message of about 80 bytes."""
    customer = f"a customer with number {number * 2654435761 % 1_000_000:06}"
    return json.dumps({"id": number, "customer": customer, "amount": number % 100_003 / 8}).encode()


def fill(broker: Kafka, topic: str, first: int, count: int) -> None:
    """Send messages with their ids as keys."""
    producer = broker.producer(linger_ms=20, batch_size=1 << 20)
    for number in range(first, first + count):
        while True:
            try:
                producer.produce(topic, message(number), b'{"id": %d}' % number, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def block(servers: str, topic: str, **changed: Any) -> dict[str, Any]:
    """Return the source block."""
    return {
        "kafka": {"bootstrapServers": servers, "topic": topic},
        "format": {"json": {}},
        "run": {"progressInterval": "0s"},
        **changed,
    }


def feed(servers: str, topic: str, folder: str, envelope: str) -> tuple[float, int]:
    """Feed a new collection up to the end of the topic. Returns the seconds and the messages."""
    total = 0

    def on_step(step: IngestStep) -> None:
        nonlocal total
        total += step.messages

    start = time.perf_counter()
    with (
        PersistClient.open(f"file://{folder}") as client,
        StorageController(client) as controller,
        ingestion_of(
            controller, "orders", parse(block(servers, topic, envelope=envelope)), SCHEMA
        ) as ingestion,
    ):
        gc.freeze()  # As the command does.
        ingestion.run(once=True, on_step=on_step)
    return time.perf_counter() - start, total


def by_hand(servers: str, topic: str, folder: str, _: str) -> tuple[float, int]:
    """Consume and append with `deltalake`. Returns the seconds and the messages."""
    start = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"by-hand-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([topic])
    total = 0
    while total < MESSAGES:
        values: list[bytes] = []
        while len(values) < BATCH and total + len(values) < MESSAGES:
            values += [each.value() for each in consumer.consume(10_000, 0.5) if each.error() is None]
        rows = pl.read_ndjson(b"\n".join(values), schema=POLARS)
        deltalake.write_deltalake(folder, rows.to_arrow(), mode="append")
        consumer.commit(asynchronous=False)
        total += len(values)
    consumer.close()
    return time.perf_counter() - start, total


SIDES = {"holdfast": feed, "by hand": by_hand}


def run(side: str, servers: str, topic: str, envelope: str = "None") -> float:
    """Run one side in a new process. Returns rows per second."""
    with scratch() as folder:
        command = [sys.executable, __file__, "--side", side, servers, topic, str(folder / "to"), envelope]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        seconds, total = json.loads(done.stdout)
    assert total == MESSAGES, (side, total)
    log(f"{side}, {envelope}: {total / seconds:,.0f} rows/s")
    return float(total / seconds)


def rates(broker: Kafka) -> Iterator[Row]:
    """Yield the rows about throughput."""
    topic = broker.make_topic(PARTITIONS, retention_ms="-1")
    fill(broker, topic, 0, MESSAGES)
    ours, upsert, peer = [], [], []
    for _ in range(ROUNDS):
        ours.append(run("holdfast", broker.servers, topic))
        peer.append(run("by hand", broker.servers, topic))
        upsert.append(run("holdfast", broker.servers, topic, "Upsert"))
    unit, rounds = "rows/s", f"median of {ROUNDS} runs with {MESSAGES:,} messages"
    yield Row("ingest JSON / consumer and deltalake", median(ours), median(peer), unit, Goal(">=", 1), rounds)
    yield Row("ingest JSON: rows/s", median(ours), 250_000, unit, Goal(">=", 1), "the peer is the goal")
    yield Row("ingest Upsert / None", median(upsert), median(ours), unit, Goal(">=", 0.25), rounds)


def small(broker: Kafka) -> Iterator[Row]:
    """Yield the rows about small steps and latency."""
    topic = broker.make_topic(PARTITIONS, retention_ms="-1")
    with ExitStack() as opened:
        folder = opened.enter_context(scratch())
        client = opened.enter_context(PersistClient.open(f"file://{folder}/to"))
        controller = opened.enter_context(StorageController(client))
        spec = parse(block(broker.servers, topic, run={"interval": "1s", "progressInterval": "0s"}))
        ingestion = opened.enter_context(ingestion_of(controller, "orders", spec, SCHEMA))
        fill(broker, topic, 0, 10)
        while ingestion.step().outcome is not StepOutcome.IDLE:
            pass
        cpu: dict[StepOutcome, list[float]] = {}
        for number in range(30):
            if number % 2:
                fill(broker, topic, 10 + number, 1)
            before = time.process_time()
            outcome = ingestion.step().outcome
            cpu.setdefault(outcome, []).append(time.process_time() - before)
        one, idle = median(cpu[StepOutcome.COMMITTED]), median(cpu[StepOutcome.IDLE])
        yield Row(
            "ingest a step with one message: CPU",
            one,
            0.15,
            "s",
            Goal("<=", 1),
            f"the peer is the goal; a step that finds nothing {idle * 1e3:.1f} ms",
        )
        ages = latencies(broker, topic, ingestion.run)
    for percent, goal in ((50, 2), (99, 5)):
        yield Row(
            f"ingest latency at {RATE:,} rows/s, p{percent}",
            percentile(ages, percent),
            goal,
            "s",
            Goal("<=", 1),
            "oldest message of each commit; the peer is the goal",
        )


def latencies(broker: Kafka, topic: str, follow: Any) -> list[float]:
    """Return for each commit the seconds since its oldest message was sent."""
    sent: list[tuple[float, int]] = []
    ended = threading.Event()

    def produce() -> None:
        total = 0
        for _ in range(LATENCY_S * 10):
            sent.append((time.monotonic(), total))
            fill(broker, topic, 1_000 + total, RATE // 10)
            total += RATE // 10
            time.sleep(max(0, sent[0][0] + len(sent) / 10 - time.monotonic()))
        ended.set()

    ages: list[float] = []
    done = 0

    def on_step(step: IngestStep) -> None:
        nonlocal done
        if step.messages:
            ages.append(time.monotonic() - max(at for at, total in sent if total <= done))
            done += step.messages

    producer = threading.Thread(target=produce)
    producer.start()
    follow(on_step=on_step, stopped=ended.wait)
    producer.join()
    return ages


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with Kafka.start() as broker:
        yield from rates(broker)
        yield from small(broker)


def one(side: str, *given: str) -> None:
    """Run one side, in its own process."""
    print(json.dumps(SIDES[side](*given)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        one(*sys.argv[2:])
    else:
        main(rows)
