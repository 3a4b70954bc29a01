"""`make demo`: shows a catalog and a collection of real data, with time travel, Spark, Kafka and crashes.

The demo checks every claim against the input file and against Kubernetes. The first claim that doesn't hold
ends the demo with exit code 1. Everything runs in a temporary folder and is stopped at the end.
"""

import functools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

import holdfast
from demo import flights
from demo.operator_process import OperatorProcess
from demo.orders import COLLECTION as ORDERS
from demo.orders import Orders
from demo.screen import ClaimError, Screen, console
from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.objects.registry import ROLES
from holdfast.catalog.one_store import stash_catalog
from holdfast.collections import JobRecord, JobState, StorageController
from holdfast.collections.snapshots.manifest import verify_snapshot
from holdfast.errors import Fenced, HoldfastError
from holdfast.ingest.kept import offsets
from holdfast.persist import PersistClient
from testbed.errors import ControlPlaneError, KubectlError, Unavailable
from testbed.kube import ControlPlane
from testbed.sparkoperator import SparkOperatorStandIn, install_crd

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "holdfast-demo"
CATALOG, COLLECTION = "demo", "flights"
SHOP = "shop"
"""The name of the catalog that is moved, and of its move."""
MARCH, DECEMBER = 1_364_774_399_999, 1_388_620_799_999
"""The last milliseconds of 2013-03-31 and 2014-01-01 (UTC): the two times to read at."""


class Demo:
    """One run of the demo. The acts are methods, in their order."""

    def __init__(self, screen: Screen, cluster: ControlPlane, folder: Path, stack: ExitStack) -> None:
        self.screen = screen
        self.cluster = cluster
        self.folder = folder
        self.stack = stack
        self.data = folder / "data"
        self.input = flights.load()

    def run(self) -> None:
        """Run all acts."""
        self.screen.check(
            "the input has all flights of 2013", self.input.height == flights.ROWS, flights.ROWS
        )
        first = self.install()
        self.declare()
        self.ingest()
        self.travel()
        self.snapshot()
        self.move()
        second = self.crash(first)
        self.fence(second)
        self.feed()

    def install(self) -> OperatorProcess:
        """Install the custom resources, the stand-in for the Spark operator, and the operator."""
        self.screen.act("1. Install")
        self.show("apply", "-k", str(ROOT / "crds"))
        install_crd(self.cluster)
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.stack.enter_context(
            SparkOperatorStandIn(self.cluster.kubeconfig, namespace=NAMESPACE, log_dir=self.folder / "spark")
        )
        return self.start_operator("1")

    def declare(self) -> None:
        """Apply the sample objects and wait until they are Ready."""
        self.screen.act("2. Declare a catalog and a collection")
        self.show("apply", "-n", NAMESPACE, "-f", str(ROOT / "crds" / "samples"))
        for kind, name in (("catalog", CATALOG), ("storagecollection", COLLECTION)):
            self.kubectl("wait", "--for=condition=Ready", f"{kind}/{name}", "--timeout=60s")
        self.screen.check("the first epoch is 1", self.status("catalog", CATALOG)["epoch"] == 1)
        self.tables()

    def ingest(self) -> None:
        """Append a year of flights, day by day, at their own times."""
        self.screen.act("3. Ingest a year of flights, day by day")
        with self.open() as client:
            writer = StorageController(client).writer(self.collection_id, purpose="demo ingestion")
            upper, started = 0, time.monotonic()
            days = list(flights.days(self.input, writer.schema))
            with self.screen.progress("days", len(days)) as advance:
                for day in days:
                    writer.append(day.table, expected_upper=upper, new_upper=day.end)
                    upper = day.end
                    advance(1)
            rate = flights.ROWS / (time.monotonic() - started)
            self.screen.say(f"{flights.ROWS:,} rows in {len(days)} durable appends, {rate:,.0f} rows/s")
        self.await_status(COLLECTION, lambda status: status.get("upper") == upper)
        self.screen.check("Kubernetes shows the collection's upper", True, upper)
        self.tables()

    def travel(self) -> None:
        """Ask the same question at two times."""
        self.screen.act("4. Travel in time")
        found = {}
        for label, time_ in (("2013-03-31", MARCH), ("2014-01-01", DECEMBER)):
            found[label] = self.ask(time_)
            expected = flights.answer(flights.as_of(self.input, time_))
            claim = f"as of {label} every carrier's flights and mean delay equal those of the input"
            self.screen.check(
                claim, same(found[label], expected), f"{sum(a.flights for a in expected):,} flights"
            )
        early = {answer.carrier: answer for answer in found["2013-03-31"]}
        rows = [
            (late.carrier, *shown(early.get(late.carrier)), *shown(late))
            for late in sorted(found["2014-01-01"], key=lambda answer: -answer.flights)[:6]
        ]
        columns = ["carrier", "flights Q1", "mean delay", "flights year", "mean delay"]
        self.screen.rows("  Six largest carriers, as of two times", columns, rows)

    def snapshot(self) -> None:
        """Write the collection as of one time to Parquet, with Spark."""
        self.screen.act("5. Snapshot with Spark")
        destination = self.folder / "snapshots"
        asked = {"collectionRef": {"name": COLLECTION}, "asOf": MARCH, "destination": destination.as_uri()}
        snapshot = {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "CollectionSnapshot",
            "metadata": {"name": "demo-1"},
            "spec": asked,
        }
        self.cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(snapshot))
        self.screen.say("a SparkApplication runs real Spark on the collection ...")

        self.kubectl("wait", "--for=condition=Ready", "collectionsnapshot/demo-1", "--timeout=240s")
        taken = self.status("collectionsnapshot", "demo-1")
        self.show("get", "collectionsnapshots,sparkapplications", "-n", NAMESPACE)
        manifest = verify_snapshot(taken["location"])
        expected = flights.as_of(self.input, MARCH).height
        self.screen.check(
            "the snapshot's checksum and row count hold", manifest.rows == expected, manifest.rows
        )
        job = self.job(taken["job"]["jobId"])
        self.screen.check(
            "its JobRecord is done",
            job is not None and job.state is JobState.DONE,
            job and f"attempt {job.attempt}",
        )

    def move(self) -> None:
        """Move a catalog out of a database, write to it, and move it back with all changes."""
        self.screen.act("6. Move a catalog out of a database, write, and roll back")
        stash = f"sqlite://{self.folder}/shop.sqlite"
        for sample in shop(stash):
            self.cluster.apply({**sample, "metadata": {**sample["metadata"], "namespace": NAMESPACE}})
            if sample["kind"] == "Catalog":
                self.kubectl("wait", "--for=condition=Ready", f"catalog/{SHOP}", "--timeout=60s")
                begins = self.status("catalog", SHOP)["sourceOfTruth"]
                self.screen.check("the catalog begins in SQLite", begins == "Stash", begins)
        self.kubectl("wait", "--for=condition=Completed", f"catalogmigration/{SHOP}", "--timeout=90s")
        self.kubectl(
            "wait", "--for=jsonpath={.status.sourceOfTruth}=Persist", f"catalog/{SHOP}", "--timeout=60s"
        )
        self.kubectl("wait", "--for=condition=Ready", f"catalog/{SHOP}", "--timeout=60s")
        self.moves()
        compared = self.condition("catalogmigration", SHOP, "Verified")
        self.screen.check(
            "both stores were compared before that", compared["status"] == "True", compared["message"]
        )
        roles = self.status("catalog", SHOP)["objectCounts"]["roles"]
        self.kubectl(
            "patch",
            f"catalog/{SHOP}",
            "--type=merge",
            "-p",
            '{"spec":{"objects":{"roles":[{"name":"analyst"}]}}}',
        )
        self.await_status(SHOP, lambda status: status["objectCounts"]["roles"] == roles + 1, kind="catalog")
        self.screen.check("a role is written where the catalog is now", True)
        self.kubectl("patch", f"catalogmigration/{SHOP}", "--type=merge", "-p", '{"spec":{"rollback":true}}')
        self.kubectl("wait", "--for=condition=RolledBack", f"catalogmigration/{SHOP}", "--timeout=90s")
        self.kubectl(
            "wait", "--for=jsonpath={.status.sourceOfTruth}=Stash", f"catalog/{SHOP}", "--timeout=60s"
        )
        self.moves()
        with stash_catalog(stash, read_only=True).open(OpenMode.READ_ONLY) as catalog:
            found = {role.value.name for role in catalog.objects(ROLES)}
        self.screen.check("rolled back, SQLite has the catalog, and the role with it", "analyst" in found)

    def moves(self) -> None:
        """Show the moved catalog as a user sees it."""
        self.show("get", f"catalogmigration/{SHOP}", f"catalog/{SHOP}", "-n", NAMESPACE)

    def crash(self, first: OperatorProcess) -> OperatorProcess:
        """Kill the operator; the next one takes over with a greater epoch."""
        self.screen.act("7. Kill the operator with SIGKILL; a second one takes over")
        first.send(signal.SIGKILL)
        first.wait(10)
        self.screen.check("the first operator is dead", first.exit_code == -signal.SIGKILL)
        second = self.start_operator("2")
        self.await_epoch(2)
        self.nothing_lost()
        return second

    def fence(self, second: OperatorProcess) -> None:
        """Freeze, replace and resume the operator: it must notice that it is fenced, and exit."""
        self.screen.act("8. Freeze the operator; a third takes over; resume the frozen one")
        second.send(signal.SIGSTOP)
        third = self.start_operator("3")
        self.await_epoch(3)
        second.send(signal.SIGCONT)
        code = second.wait(60)
        self.screen.check(
            "the resumed operator found that it is fenced and exited with code 0", code == 0, code
        )
        said = "another process took over the catalog" in second.log.read_text()
        self.screen.check("its log says that another operator has taken over", said)
        self.screen.check("the third operator continues", third.exit_code is None)
        self.nothing_lost()
        self.tables()
        third.send(signal.SIGTERM)
        self.screen.check("SIGTERM ends it gracefully", third.wait(30) == 0)
        self.refuse_stale_token()
        self.nothing_lost()

    def feed(self) -> None:
        """Let orders flow in from Kafka while the process that reads them is killed."""
        self.screen.act("9. Feed orders from Kafka; kill the process that reads them, three times")
        orders = Orders(self.folder, self.stack)
        if orders.missing is not None:
            self.screen.say(f"from files, because there is no Kafka here: {orders.missing}")
        for _ in range(3):
            orders.send(10_000)
            told = orders.fed_and_killed()
            self.screen.say(f"killed after: {told}")
        done = subprocess.run(
            orders.command("--once", "--quiet"), capture_output=True, text=True, check=False, timeout=120
        )
        self.screen.output("holdfast ingest orders.yaml --once", done.stdout + done.stderr)
        with holdfast.table(orders.url, ORDERS, mode="read") as table:
            rows = table.read()
        self.screen.check(
            "every order is there once",
            sorted(rows["id"].to_pylist()) == list(range(orders.count)),
            f"{rows.num_rows:,} orders",
        )
        cents = sum(rows["cents"].to_pylist())
        self.screen.check("their sum is what was sent", cents == orders.cents, f"{cents / 100:,.2f}")
        with PersistClient.open(orders.url, mode="read") as client:
            bound = offsets(StorageController(client), ORDERS, None)[1]
        total = sum(bound["rows" if orders.missing else "position"].to_pylist())
        self.screen.check("the offsets in the collection add up to that number", total == orders.count, total)

    def refuse_stale_token(self) -> None:
        """Check that a fenced holder can't drop a collection, even if it has not noticed the fence."""
        organization = self.status("catalog", CATALOG)["organizationId"]
        with self.open() as stale, self.open() as fresh:
            catalogs = [persist_catalog(client, organization) for client in (stale, fresh)]
            old, new = (
                catalog.open(OpenMode.WRITABLE, holder="demo", purpose="taking over") for catalog in catalogs
            )
            try:
                StorageController(stale, guard=old.fence_guard).drop_collection(self.collection_id)
                refused = ""
            except Fenced as error:
                refused = str(error)
            claim = "a stale token is refused: its holder can't drop the collection"
            self.screen.check(claim, f"epoch {new.fence_token().epoch}" in refused)

    def start_operator(self, name: str) -> OperatorProcess:
        """Start one more operator process."""
        process = OperatorProcess(
            self.cluster, name=name, namespace=NAMESPACE, data=self.data, logs=self.folder
        )
        self.screen.say(f"operator {name} runs as process {process.pid}")
        return self.stack.enter_context(process)

    def nothing_lost(self) -> None:
        """Check that both answers are the same as before."""
        for time_ in (MARCH, DECEMBER):
            if not same(self.ask(time_), flights.answer(flights.as_of(self.input, time_))):
                raise ClaimError(f"the answer as of {time_} has changed")
        self.screen.check("nothing is lost: both answers are the same as before", True)

    def ask(self, time_: int) -> list[flights.Answer]:
        """Return the answer as of a time, from the collection, with a read-only client."""
        with self.open(mode="read") as client:
            reader = StorageController(client).reader(self.collection_id, purpose="demo")
            table = reader.snapshot(time_).to_table()
        return flights.answer(pl.DataFrame(pl.from_arrow(table.select(["carrier", "dep_delay", "_diff"]))))

    @functools.cached_property
    def collection_id(self) -> str:
        """The collection's id in the store, as Kubernetes shows it."""
        return str(self.status("storagecollection", COLLECTION)["collectionId"])

    def job(self, job_id: str) -> JobRecord | None:
        """Return a job record from the store."""
        with self.open(mode="read") as client:
            return StorageController(client).job(job_id)

    def open(self, mode: Any = "write") -> PersistClient:
        """Open the catalog's location, as any user of the library does."""
        organization = self.status("catalog", CATALOG)["organizationId"]
        return PersistClient.open((self.data / NAMESPACE / organization).as_uri(), mode=mode)

    def await_epoch(self, epoch: int) -> None:
        """Wait until Kubernetes shows an epoch."""
        self.await_status(CATALOG, lambda status: status.get("epoch") == epoch, kind="catalog")
        self.screen.check(f"the epoch is {epoch}", True)

    def await_status(
        self,
        name: str,
        holds: Callable[[dict[str, Any]], bool],
        *,
        kind: str = "storagecollection",
        timeout: float = 90,
    ) -> dict[str, Any]:
        """Wait until an object's status meets a condition; return the status."""
        deadline = time.monotonic() + timeout
        while not holds(status := self.status(kind, name)):
            if time.monotonic() > deadline:
                raise ClaimError(f"{kind}/{name} did not get there in {timeout:.0f} s: {json.dumps(status)}")
            time.sleep(0.3)
        return status

    def status(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object's status."""
        found = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return dict(found.get("status") or {})

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        """Return a condition of an object."""
        (found,) = (each for each in self.status(kind, name)["conditions"] if each["type"] == type_)
        return dict(found)

    def tables(self) -> None:
        """Show the resources as a user sees them."""
        self.show("get", "catalogs,storagecollections", "-n", NAMESPACE)

    def show(self, *arguments: str) -> None:
        """Run kubectl and show it."""
        shown = [argument.removeprefix(f"{ROOT}/") for argument in arguments]
        self.screen.output(" ".join(["kubectl", *shown]), self.cluster.kubectl(*arguments))

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the demo's namespace."""
        return self.cluster.kubectl("-n", NAMESPACE, *arguments)


def shop(stash: str) -> list[dict[str, Any]]:
    """Return a Catalog that begins in a database, and its move to persist."""
    catalog = {
        "kind": "Catalog",
        "spec": {
            "organizationId": "5b8e2f14-6c7d-4a9b-8e1f-3d2c1b0a9f8e",
            "backend": "Stash",
            "stash": {"url": stash},
        },
    }
    move = {"kind": "CatalogMigration", "spec": {"catalogRef": {"name": SHOP}, "target": "Persist"}}
    head = {"apiVersion": "holdfast.dev/v1alpha1", "metadata": {"name": SHOP}}
    return [{**head, **each} for each in (catalog, move)]


def same(found: list[flights.Answer], expected: list[flights.Answer]) -> bool:
    """Return whether two answers are equal. The means are exact, because they are sums of integers."""
    return found == expected and bool(expected)


def shown(answer: flights.Answer | None) -> tuple[str, str]:
    """Return the two cells of an answer in the table."""
    if answer is None:
        return "-", "-"
    return f"{answer.flights:,}", "-" if answer.mean_delay is None else f"{answer.mean_delay:.1f} min"


def main() -> int:
    """Run the demo; return 0 if every claim held."""
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    screen.act("0. Boot a Kubernetes API server (the first time its binaries are built: about 5 minutes)")
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(ControlPlane.from_environment())
            Demo(screen, cluster, folder, stack).run()
    except (ClaimError, HoldfastError, Unavailable, ControlPlaneError, KubectlError) as error:
        console.print(f"\n[bold red]demo:[/] {error}\nLogs are in {folder}")
        return 1
    except KeyboardInterrupt:
        console.print(f"\ndemo: stopped; logs are in {folder}")
        return 130
    shutil.rmtree(folder)
    console.print(f"\n[bold green]All {screen.claims} claims hold.[/] Everything is stopped and cleaned up.")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
