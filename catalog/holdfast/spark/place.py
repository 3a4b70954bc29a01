"""The address of a location, for several processes that open it: one URL, or one for each store."""

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
        """Open a read-only client. Raises `LocationMismatch` if the location has another id."""
        client = PersistClient.open(self.url, blob=self.blob, consensus=self.consensus, mode="read")
        if location_id not in (None, client.location_id):
            client.close()
            raise LocationMismatch(
                f"{self} is not the location that the query was planned for: it was created again since",
                hint="load the DataFrame again",
            )
        return client

    def open_to_write(
        self, location_id: UUID | None = None, *, maintenance: Maintenance = "off"
    ) -> PersistClient:
        """Open a client that writes to an existing location. By default it does no maintenance.

        Raises `LocationMismatch` as `open_to_read` does.
        """
        # A client that writes would create a missing location.
        self.open_to_read(location_id).close()
        config = PersistConfig(maintenance=maintenance)
        return PersistClient.open(self.url, blob=self.blob, consensus=self.consensus, config=config)

    def __str__(self) -> str:
        return self.url or f"{self.blob} with {self.consensus}"
