"""Where a location is, for processes that open it one after the other: one URL, or one for each store."""

from dataclasses import dataclass
from uuid import UUID

from holdfast.errors import LocationMismatch
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.config import Maintenance


@dataclass(frozen=True, slots=True)
class Place:
    """A location: `url`, or `blob` and `consensus`. Picklable; credentials come from the environment."""

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None

    def open_to_read(self, location_id: UUID | None = None) -> PersistClient:
        """A client that changes nothing. Raises `LocationMismatch` where the location is not of this id."""
        client = PersistClient.open(self.url, blob=self.blob, consensus=self.consensus, mode="read")
        if location_id not in (None, client.location_id):
            client.close()
            raise LocationMismatch(
                f"{self} is another location than the one that was planned: it was made anew"
            )
        return client

    def open_to_write(
        self, location_id: UUID | None = None, *, maintenance: Maintenance = "off"
    ) -> PersistClient:
        """A client that writes, of a location that is there, and leaves upkeep to others unless it is told.

        Raises likewise.
        """
        # A client that writes would make one that isn't.
        self.open_to_read(location_id).close()
        config = PersistConfig(maintenance=maintenance)
        return PersistClient.open(self.url, blob=self.blob, consensus=self.consensus, config=config)

    def __str__(self) -> str:
        return self.url or f"{self.blob} with {self.consensus}"
