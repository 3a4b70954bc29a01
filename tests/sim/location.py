"""The part of a world whose processes share one location."""

import uuid

from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from sim.audit import Auditor
from sim.scheduler import Scheduler
from sim.stores import SimBlob, SimConsensus
from sim.weather import Exposure, Grid, SimClock, Weather
from testbed.faults import FaultPlan, FaultyBlob, FaultyConsensus


class OneLocation:
    """A world that opens clients of its location. It sets the attributes."""

    scheduler: Scheduler
    grid: Grid
    blob: MemoryBlob
    consensus: MemoryConsensus
    auditor: Auditor
    location_id: uuid.UUID
    config: PersistConfig

    def client(self, weather: Weather, plan: FaultPlan | None, who: str) -> tuple[PersistClient, Exposure]:
        """The location as one process has it."""
        clock = SimClock(self.scheduler)
        exposure = Exposure(self.grid, weather, clock)
        blob = SimBlob(self.blob, exposure, self.auditor)
        consensus = SimConsensus(self.consensus, exposure, self.auditor, who)
        location = Location(blob, consensus, self.location_id)
        if plan is not None:
            location = Location(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan), self.location_id)
        return PersistClient(location, config=self.config, clock=clock), exposure
