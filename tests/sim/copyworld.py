"""A collection that is fed from a source, and another one that is fed from it, by one seed.

- The processes are those of `sim.ingestworld`. Each pipeline feeds one of the two collections.
- At each time from its first one, the second collection has the rows of the first one. What somebody read
  meanwhile must be the same at the end. It never stalls, because both are in one location.
- After a return to an older state of the stores, it gets what the first one gets.
"""

from contextlib import AbstractContextManager, suppress

from holdfast.collections import CollectionReader, CollectionSpec, StorageController
from holdfast.errors import AsOfNotYetAvailable, SourceStalled
from holdfast.ingest import Ingestion, StepOutcome, ingestion_of, parse
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.made_from import made_from
from holdfast.persist import PersistClient
from sim.audit import Violation
from sim.ingestworld import NAME, SCHEMA, Bad, IngestWorld, Positions, Rows, rows_at
from sim.weather import SOUND, Exposure

COPY = "copy"
BLOCK = {"collection": {"name": NAME}, "format": {"rows": {}}}


class CopyWorld(IngestWorld):
    """The stores, the source, and the pipelines of both collections."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.actions *= 2
        self.limits = {
            "maxRows": self.random.randint(1, 6),
            "maxBytes": self.random.choice(["256Mi", "100"]),
        }
        self.opened: list[AbstractContextManager[Ingestion]] = []
        """Pipelines that are open. One that is collected as garbage would close its readers at any time."""
        self.copied: list[tuple[int, Rows]] = []
        """What processes read of the copy at a time."""

    def begin(self, controller: StorageController) -> None:
        """Create the second collection."""
        made = made_from(parse(BLOCK))
        shards = self.random.randint(1, 3)
        controller.create_collection(
            CollectionSpec("c2", COPY, SCHEMA, shards=shards, source_fed=True, made_from=made)
        )

    def pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """One instance of a pipeline of either collection."""
        if self.random.random() < 0.5:
            return super().pipeline(client, exposure)
        return self._copying(client)

    def last_pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """That of the first collection, when all others have ended."""
        return super().pipeline(client, exposure)

    def _copying(self, client: PersistClient) -> Ingestion:
        spec = parse({**BLOCK, "batch": self.limits})
        opened = ingestion_of(StorageController(client), COPY, spec)
        self.opened.append(opened)
        return opened.__enter__()

    def look(self, controller: StorageController, at: int | None = None) -> tuple[int, Positions, Rows, Bad]:
        """What the first collection has at a time. Looks at the second one too."""
        if at is None:
            with suppress(AsOfNotYetAvailable):
                time, _ = offsets(controller, COPY)
                with controller.reader(COPY, purpose="look") as reader:
                    self.copied.append((time, rows_at(reader, time)))
        return super().look(controller, at)

    def _judge(self) -> None:
        super()._judge()
        client, _ = self.client(SOUND, None, "judge of the copy")
        controller = StorageController(client)
        upper = controller.frontiers(NAME).upper
        if upper == 0:
            return
        self._complete(client, controller)
        ((first,),) = [offsets(controller, COPY)[1]["begin"].to_pylist()]
        with (
            controller.reader(NAME, purpose="judge") as source,
            controller.reader(COPY, purpose="judge") as copy,
        ):
            for time in {each for at in self.judged for each in (at, at - 1)} | {upper - 1}:
                if time >= first:
                    self._compare(controller, source, copy, time)
                    self.scheduler.met["times of the copy judged"] += 1
            for time, rows in self.copied:
                if rows != rows_at(copy, time):
                    raise Violation(f"at {time} somebody read {sorted(rows.items())} of the copy")
        self.scheduler.met["looks at the copy judged"] += len(self.copied)

    def _judge_restored(self) -> None:
        super()._judge_restored()
        client, _ = self.client(SOUND, None, "copy of the restored")
        controller = StorageController(client)
        if controller.frontiers(NAME).upper:
            self._complete(client, controller)

    def _complete(self, client: PersistClient, controller: StorageController) -> None:
        """Feed the copy until nothing is new, and compare the latest time."""
        feed = self._copying(client)
        try:
            while feed.step().outcome is not StepOutcome.IDLE:
                pass
        except SourceStalled as stalled:
            raise Violation(f"the copy is stalled: {stalled}") from stalled
        upper, copied = (controller.frontiers(each).upper for each in (NAME, COPY))
        if copied != upper:
            raise Violation(f"the copy is complete up to {copied}, and its source up to {upper}")
        with (
            controller.reader(NAME, purpose="judge") as source,
            controller.reader(COPY, purpose="judge") as copy,
        ):
            self._compare(controller, source, copy, upper - 1)

    def _compare(
        self, controller: StorageController, source: CollectionReader, copy: CollectionReader, time: int
    ) -> None:
        rows, copied = rows_at(source, time), rows_at(copy, time)
        if rows != copied:
            raise Violation(f"at {time} the copy has {sorted(copied.items())}, not {sorted(rows.items())}")
        if bad := errors(controller, COPY, time)[1].num_rows:
            raise Violation(f"at {time} the copy has {bad} bad records")
