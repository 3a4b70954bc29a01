"""One life of a simulated process that works on a collection: its client and its handles."""

from typing import TYPE_CHECKING

from holdfast.collections import (
    CollectionReader,
    CollectionWriter,
    Recipe,
    RenditionState,
    RenditionWriter,
    StorageController,
)
from holdfast.errors import Determinate, HandleExpired, Indeterminate
from sim.audit import Violation
from sim.collectionfollower import Follower
from sim.collectionholds import find_hold
from sim.collectionrepertoire import repertoire
from sim.collectionwitness import NAME
from sim.weather import CountingPlan
from testbed.faults import SeededPlan

if TYPE_CHECKING:
    from sim.collectionworld import CollectionWorld, Process


class Incarnation:
    """A process between two deaths: its client and handles."""

    def __init__(self, world: "CollectionWorld", process: "Process") -> None:
        self.world, self.process, self.random = world, process, process.random
        self.history = world.history
        self.who = f"{process.name}.{process.incarnations}"
        weather = world.weather
        plan = SeededPlan(self.random.getrandbits(64), rate=weather.error_rate, death_rate=weather.death_rate)
        self.client, _ = world.client(weather, CountingPlan(plan, world.scheduler), self.who)
        self.controller = StorageController(self.client, who=self.who)
        self.writer: CollectionWriter | None = None
        self.pipelines: dict[str, RenditionWriter] = {}
        """What feeds renditions, by their ids."""
        self.believed: dict[str, int] = {}
        """Where they were when this process last heard."""
        self.readers: list[tuple[CollectionReader, int]] = []
        """Each with the time from which on it may read."""
        self.followers: list[Follower] = []

    def work(self) -> None:
        """Do what is left to do."""
        actions = repertoire(self.world)
        weights = [weight for weight, _ in actions]
        # A process that was started again first looks for what it held before it died.
        first = [find_hold] if self.process.incarnations > 1 and self.process.holds else []
        while self.process.left > 0:
            self.process.left -= 1
            (action,) = first or self.random.choices([each for _, each in actions], weights)
            first = []
            self.world.scheduler.head(action.__name__)
            try:
                action(self)
            except (Determinate, Indeterminate) as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")
            except HandleExpired as error:
                if not self.world.leases_end:
                    raise
                self.world.scheduler.note(f"-> {error}")
                self.writer = None
                self.pipelines.clear()

    def meet(self, what: str, where: str = "") -> None:
        """Count something that the world is made for."""
        self.world.scheduler.meet(what, where)

    def told_upper(self, before: int, upper: int) -> None:
        """Refuse an upper that is less than somebody was told before."""
        if upper < before:
            raise Violation(f"{self.who}: the upper is {upper}, and {before} was told before")
        self.world.upper = max(self.world.upper, upper)

    def reader(self) -> tuple[CollectionReader, int]:
        """One that is open, or another one."""
        if not self.readers or self.random.random() < 0.1:
            reader = self.controller.reader(NAME, purpose=self.who)
            # It holds since where that was when it came, so since is that now.
            self.readers.append((reader, reader.since()))
        return self.random.choice(self.readers)

    def hydrating(self, *recipes: Recipe) -> str | None:
        """A rendition that is being filled, of one of these recipes if any are given."""
        live = self.controller.describe(NAME).live
        ids = [
            each.id
            for each in live
            if each.state is RenditionState.HYDRATING and (not recipes or each.recipe in recipes)
        ]
        return self.random.choice(ids) if ids else None

    def refuse_too_early(self, as_of: int, held: int) -> None:
        """Refuse the answer "too early" at a time that this process holds."""
        if as_of >= held and not self.world.leases_end:
            raise Violation(f"{self.who}: too early at {as_of} despite a hold at {held}")

    def refuse_unless_changed(self, rendition: str, error: Exception) -> None:
        """A rendition may be another one's by now; else the refusal is wrong."""
        if self.controller.describe(NAME).rendition(rendition).state is RenditionState.HYDRATING:
            raise Violation(f"{self.who}: refused: {error}") from error
