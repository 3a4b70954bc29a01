"""Pipelines of several renditions that follow each other and take over, by one seed, on stores that fail.

- A rendition begins at any time, and any pipeline may feed any rendition. Somebody hands over to one that has
  caught up. Pipelines of renditions that were handed over end.
- The source deletes what is acknowledged in most worlds. A follower that comes too late says so and is given
  up. One that has taken over must never lack anything.
- The collection is judged like that of `sim.ingestworld`, over all its renditions.
"""

from functools import partial
from types import MappingProxyType

from holdfast.collections import Recipe, RenditionState, StorageController
from holdfast.errors import BadInput, Determinate, HandoverInProgress, NotCaughtUp, SourceStalled
from holdfast.ingest import Ingestion, IngestStep, parse
from holdfast.ingest.made_from import made_from
from holdfast.ingest.opened import format_of
from holdfast.persist import PersistClient
from sim.audit import Violation
from sim.ingestworld import ACTIONS, NAME, IngestWorld, View
from sim.weather import Exposure

_FILLED = 1_000_000
"""While a rendition is filled, its upper is less than this."""
_MOST = 5
"""Number of renditions that are created."""


class Feed(Ingestion):
    """A pipeline whose rendition is given up if the source has deleted what it lacks."""

    world: "FollowWorld"

    def step(self, within: dict[str, int] | None = None) -> IngestStep:  # type: ignore[override]
        try:
            return super().step(within)
        except SourceStalled as stalled:
            if self.world.is_restored:
                raise
            # Once it has joined, the source is told only what it has.
            is_new = self.rendition.state is RenditionState.HYDRATING and self._upper < _FILLED
            if not is_new or not self.world.topic.low:
                raise Violation(f"{self.rendition.id} is stalled: {stalled}") from stalled
            self.world.scheduler.meet("followers given up", str(stalled))
            self.world.given_up.add(self.rendition.id)
            raise Determinate("given up") from stalled


class FollowWorld(IngestWorld):
    """The stores, the source, and the pipelines of all renditions."""

    choices = MappingProxyType(
        {**ACTIONS, "step": 14, "begin anew": 2, "create": 1, "hand over": 2, "wait": 1}
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.actions *= 2
        self.topic.deletes = self.random.random() < 0.5
        self.given_up: set[str] = set()
        self.feeds: list[Feed] = []

    def pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """One instance of the pipeline of any rendition."""
        controller = StorageController(client)
        live = [each.id for each in controller.describe(NAME).live if each.id not in self.given_up]
        return self._pipeline(client, exposure, self.random.choice(live))

    def last_pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """That of the current rendition, when its first time is over."""
        current = StorageController(client).describe(NAME).holding
        self.scheduler.now = max(self.scheduler.now, current.held_from / 1000 + 1)
        return self._pipeline(client, exposure, current.id)

    def _pipeline(self, client: PersistClient, exposure: Exposure, rendition: str) -> Ingestion:
        spec = parse(self.block)
        view, form = View(self.topic, exposure), partial(format_of, spec)
        feed = Feed(StorageController(client), NAME, spec, view, form, rendition=rendition)
        feed.world = self
        # One that is collected as garbage would close its reader then, at any time.
        self.feeds.append(feed)
        return feed

    def partition_of(self, id_: int, _: str) -> str:
        """A key is in one partition. A follower can't know in which order others read several."""
        return str(id_ % 3)

    def begin(self, controller: StorageController) -> None:
        """A follower that is there from the beginning can have it all."""
        if self.random.random() < 0.7:
            self.act("create", controller)

    def act(self, action: str, controller: StorageController) -> None:
        """Create a rendition, hand over to one, or let time pass."""
        info = controller.describe(NAME)
        if action == "wait":
            self.scheduler.sleep(self.random.choice([1.0, 12.0]))
        elif action == "create":
            if len(info.renditions) < _MOST:
                made = made_from(parse(self.block))
                shards = self.random.randint(1, 3)
                controller.renditions.create(
                    NAME, shards=shards, recipe=Recipe.SOURCE, pipeline=True, made_from=made
                )
        else:
            filled = [each.id for each in info.live if each.state is RenditionState.HYDRATING]
            if filled:
                try:
                    controller.renditions.hand_over(NAME, self.random.choice(filled))
                    self.scheduler.met["handovers"] += 1
                except (NotCaughtUp, HandoverInProgress, BadInput) as error:
                    self.scheduler.note(f"-> {type(error).__name__}")
