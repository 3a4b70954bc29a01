"""Orders for the demo: a topic of a real Kafka broker, or files where Kafka can't run, and who reads them."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from demo.screen import ClaimError
from testbed import kafka

PARTITIONS: Final = 3
COLLECTION: Final = "orders"


class Orders:
    """What was sent: `count` orders, with `cents` in all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.count = self.cents = 0
        self.missing = kafka.impossible()
        """Why there is no Kafka here; None if there is."""
        self._folder = folder
        self._files = folder / "orders"
        if self.missing is None:
            kafka.provide()
            self._broker = stack.enter_context(kafka.Kafka.start())
            self._topic = self._broker.make_topic(PARTITIONS, COLLECTION, retention_ms="-1")
        else:
            self._files.mkdir()

    @property
    def url(self) -> str:
        """The location that the orders flow into."""
        return (self._folder / "shop").as_uri()

    def send(self, count: int) -> None:
        """Send this number of orders, durably."""
        numbers = range(self.count, self.count + count)
        orders = [
            {"id": n, "item": ("rope", "hook", "saw")[n % 3], "cents": n * 7919 % 10_000} for n in numbers
        ]
        lines = [json.dumps(order).encode() for order in orders]
        if self.missing is None:
            producer = self._broker.producer()
            for number, line in zip(numbers, lines, strict=True):
                producer.produce(self._topic, line, partition=number % PARTITIONS)
                producer.poll(0)
            if producer.flush(60):
                raise ClaimError("the broker did not acknowledge all orders")
        else:
            whole = self._files / f"{self.count}.jsonl"
            whole.with_suffix(".tmp").write_bytes(b"\n".join(lines))
            whole.with_suffix(".tmp").rename(whole)
        self.count += count
        self.cents += sum(order["cents"] for order in orders)  # type: ignore[misc]

    def spec(self) -> Path:
        """The file for `holdfast ingest`."""
        source: dict[str, Any] = {"files": {"path": str(self._files)}}
        if self.missing is None:
            source = {"kafka": {"bootstrapServers": self._broker.servers, "topic": self._topic}}
        source |= {"format": {"json": {}}, "run": {"interval": "50ms"}, "batch": {"maxRows": 2000}}
        file = self._folder / "orders.yaml"
        columns = {"item": "string", "cents": "int64"}
        file.write_text(
            yaml.safe_dump(
                {"collection": COLLECTION, "key": {"id": "int64"}, "columns": columns, "source": source}
            )
        )
        return file

    def command(self, *options: str) -> list[str]:
        """The command that feeds the collection."""
        program = str(Path(sys.executable).with_name("holdfast"))
        return [program, "ingest", str(self.spec()), "--url", self.url, *options]

    def fed_and_killed(self) -> str:
        """Feed, and kill the process with SIGKILL when it has told of a step. Returns what it told."""
        with subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            told = process.stderr.readline().strip()
            if told.startswith("feeding "):
                told = process.stderr.readline().strip()
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        if "messages" not in told:
            raise ClaimError(f"'holdfast ingest' ended early: {told}")
        return told
