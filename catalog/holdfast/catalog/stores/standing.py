"""Whether a store is the source of truth, for a reader, if the store's own state doesn't show it.

A state without a link, or with the note of the truth (`config.TRUTH`), shows it alone. Otherwise the other
linked store is asked (`move.standing`). A process with only one store can't ask.
"""

from abc import ABC, abstractmethod

from holdfast.catalog.stores.preamble import Preamble, at_latest
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import Fenced, HoldfastError


class Standing(ABC):
    """What is known about a store in addition to its contents."""

    def check_read(self, seen: Preamble, place: str) -> None:
        """Raise `LinkedElsewhere` if the store in `place` can't be read in its state `seen`."""
        seen.check_alone(place)

    def check_write(self, seen: Preamble, place: str) -> None:
        """Raise `LinkedElsewhere` if it can't be written."""
        seen.check_not_linked(place)

    def confirm(self, store: CatalogStore) -> int:
        """The time since when the store's contents have been the catalog's, without interruption until now.

        Raises `NotSourceOfTruth` or `LinkedElsewhere` if they aren't, or may not be, and `StorageError`.
        """
        seen = at_latest(store, lambda seen: seen)
        return seen.truth_since if seen.is_certain else self.confirm_linked(store, seen)

    @abstractmethod
    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """Like `confirm`, for a store whose state `seen` is linked and has no note of the truth."""

    def confirm_writer(self, *, always: bool) -> None:  # noqa: B027 - most have nobody to ask
        """Raise if the other store shows that a writer may no longer write.

        Without `always`, a result from some seconds before is enough.
        """

    def confirm_reader(self, *, always: bool) -> None:  # noqa: B027 - most have nobody to ask
        """Raise if the other store shows that the reader's store is not the source of truth.

        Without `always`, a result from some seconds before is enough.
        """

    def of_subscriber(self) -> "Standing":
        """A copy for a subscriber, which has its own thread and closes it."""
        return self

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what it holds."""

    def explain(self, error: Fenced) -> HoldfastError:
        """Return a more exact error for a process that was fenced, if the reason is known."""
        return error


class Alone(Standing):
    """The standing of a process that has only this store."""

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """Raise `LinkedElsewhere`: nothing can show it."""
        seen.check_alone(store.place)
        return seen.truth_since
