"""The kinds of worlds, by name. They are imported by name, so that they import the mutant under test."""

from collections import Counter
from importlib import import_module
from typing import Final, Protocol

from sim.scheduler import Scheduler

PERSIST: Final = "persist"
LOG: Final = "log"
COLLECTIONS: Final = "collections"
FAILOVER: Final = "failover"
INGEST: Final = "ingest"
FOLLOW: Final = "follow"
COPY: Final = "copy"
HYDRATE: Final = "hydrate"

SEEDS: Final = {
    PERSIST: 2000,
    LOG: 800,
    COLLECTIONS: 120,
    FAILOVER: 120,
    INGEST: 150,
    FOLLOW: 60,
    COPY: 40,
    HYDRATE: 120,
}
"""Hunts for planted bugs run the worlds of the seeds below this."""

TESTED: Final = {**SEEDS, PERSIST: 700, INGEST: 60, FOLLOW: 36, HYDRATE: 70}
"""Number of worlds that run as tests."""

_CLASSES: Final = {
    PERSIST: ("sim.world", "World"),
    LOG: ("sim.logworld", "LogWorld"),
    COLLECTIONS: ("sim.collectionworld", "CollectionWorld"),
    FAILOVER: ("sim.failoverworld", "FailoverWorld"),
    INGEST: ("sim.ingestworld", "IngestWorld"),
    FOLLOW: ("sim.followworld", "FollowWorld"),
    COPY: ("sim.copyworld", "CopyWorld"),
    HYDRATE: ("sim.hydrateworld", "HydrateWorld"),
}

MODULES: Final = tuple(module for module, _ in _CLASSES.values())
"""The modules of all kinds."""


class AnyWorld(Protocol):
    """What all kinds of worlds have."""

    scheduler: Scheduler

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""


def world(kind: str, seed: int) -> AnyWorld:
    """The world of a seed."""
    module, name = _CLASSES[kind]
    made: AnyWorld = getattr(import_module(module), name)(seed)
    return made
