"""The address of a location, for several processes that open it: one URL, or one for each store."""

from dataclasses import dataclass
from uuid import UUID

from holdfast.errors import LocationMismatch
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.config import Maintenance
from holdfast.persist.session import Mode
from holdfast.store_keys import StoreKeys


@dataclass(frozen=True, slots=True)
class Place:
    """A location: `url`, or `blob` and `consensus`. Picklable.

    Each process opens it with its own keys: those in the folder `$HOLDFAST_STORE_KEYS`, or else those of its
    environment.
    """

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None

    def open_to_read(self, location_id: UUID | None = None) -> PersistClient:
        """Open a read-only client. Raises `LocationMismatch` if the location has another id."""
        client = self._opened(mode="read")
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
        return self._opened(config=config)

    def _opened(self, *, mode: Mode = "write", config: PersistConfig | None = None) -> PersistClient:
        return PersistClient.open(
            self.url,
            blob=self.blob,
            consensus=self.consensus,
            mode=mode,
            config=config,
            credentials=StoreKeys.of_process(),
        )

    def __str__(self) -> str:
        return self.url or f"{self.blob} with {self.consensus}"
