"""Whether a store is where its catalog is: asked by whoever reads it, when its own state doesn't tell.

A state without a link, or with the note of the truth (`config.TRUTH`), tells it alone. Otherwise the other of
two linked stores is asked (`move.standing`), or, by who has only this one, nobody.
"""

from abc import ABC, abstractmethod

from holdfast.catalog.stores.preamble import Preamble, at_latest
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import Fenced, HoldfastError


class Standing(ABC):
    """What is known of a store beside what it holds."""

    def check_read(self, seen: Preamble, place: str) -> None:
        """Raise `LinkedElsewhere` where the store in `place` can't be read by its state `seen`."""
        seen.check_alone(place)

    def check_write(self, seen: Preamble, place: str) -> None:
        """Raise `LinkedElsewhere` where it can't be written."""
        seen.check_not_linked(place)

    def confirm(self, store: CatalogStore) -> int:
        """The time since when the store's contents have been the catalog's, without a break until now.

        Raises `NotSourceOfTruth` or `LinkedElsewhere` where they aren't, or may not be, and `StorageError`.
        """
        seen = at_latest(store, lambda seen: seen)
        return seen.truth_since if seen.is_certain else self.confirm_linked(store, seen)

    @abstractmethod
    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """The same for a store whose state `seen` is linked and without the note."""

    def confirm_writer(self, *, always: bool) -> None:  # noqa: B027 - most have nobody to ask
        """Raise where a store beside the writer's own shows that it may not write any more.

        Without `always` a look of some seconds before is enough.
        """

    def confirm_reader(self, *, always: bool) -> None:  # noqa: B027 - most have nobody to ask
        """Raise where a store beside the reader's own shows that the reader's is not the catalog.

        Without `always` a look of some seconds before is enough.
        """

    def of_subscriber(self) -> "Standing":
        """The same for a subscriber, which has a thread of its own and closes it."""
        return self

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give up what it holds."""

    def explain(self, error: Fenced) -> HoldfastError:
        """Why a process was fenced, where more is known of it than by whom."""
        return error


class Alone(Standing):
    """Of who has only this store."""

    def confirm_linked(self, store: CatalogStore, seen: Preamble) -> int:
        """Nobody can tell: `LinkedElsewhere`."""
        seen.check_alone(store.place)
        return seen.truth_since
