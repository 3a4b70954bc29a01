"""The fence token: which process may write to a catalog.

A greater token fences every lower one. Tokens are compared by order, never by `!=`: two processes that
opened at the same time have tokens of one rank, of which only the one in the store is somebody's.
"""

import secrets
from dataclasses import dataclass, field, replace

from holdfast._pb import objects_pb2 as pb
from holdfast.errors import BadInput
from holdfast.persist.checks import MOST_PURPOSE_CHARACTERS, is_text
from holdfast.persist.rows.casts import shown
from holdfast.text import cut

NONCE_BYTES = 16
MOST_CHARACTERS = MOST_PURPOSE_CHARACTERS
"""Of a holder, and of a purpose. What others stored may be longer, and is read all the same."""

_LAST_EPOCH = (1 << 64) - 1
_BY_HAND = 1 << 63
_SHOWN = 500
"""So many characters of a holder, and of a purpose, are in messages."""


def check_room(epoch: int) -> None:
    """`BadInput` for an epoch that is not to be set by hand: too few opens could follow it."""
    if epoch >= _BY_HAND:
        raise BadInput(f"epoch {epoch} is out of range: it must be below 2^63, so that opens can follow it")


def check_who(holder: str, purpose: str) -> None:
    """`BadInput` for a holder or a purpose that nobody could read, or that is too long for messages."""
    for what, text in (("holder", holder), ("purpose", purpose)):
        if not is_text(text) or not 0 < len(text) <= MOST_CHARACTERS:
            raise BadInput(
                f"who writes to a catalog needs a {what} of 1 to {MOST_CHARACTERS} characters,"
                f" not {shown(text)}",
                hint="say in a few words who it is, and what for: people see it in messages",
            )


@dataclass(frozen=True)
class FenceToken:
    """`(deploy_generation, epoch)` with who holds it and why, for messages.

    Order is by `(deploy_generation, epoch)` alone; equality is of everything, so a token of the same rank
    but of another holder or nonce is neither equal, lower nor greater.
    """

    deploy_generation: int
    epoch: int
    holder: str
    purpose: str
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES), repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        """What tokens are ordered by."""
        return self.deploy_generation, self.epoch

    def __lt__(self, other: "FenceToken") -> bool:
        return self.rank < other.rank

    def __gt__(self, other: "FenceToken") -> bool:
        return self.rank > other.rank

    def __le__(self, other: "FenceToken") -> bool:
        return self < other or self == other

    def __ge__(self, other: "FenceToken") -> bool:
        return self > other or self == other

    def __str__(self) -> str:
        return f"epoch {self.epoch} of generation {self.deploy_generation} ({self.by})"

    @property
    def by(self) -> str:
        """Who has it, and what for, as messages show it: cut where somebody stored a long one."""
        return f"{cut(self.holder, _SHOWN)}, {cut(self.purpose, _SHOWN)}"

    def after(self, durable: "FenceToken | None") -> "FenceToken":
        """The same token with the epoch that follows the durable one; 1 where there is none.

        Raises `BadInput` when the durable one is the last.
        """
        if durable is not None and durable.epoch >= _LAST_EPOCH:
            raise BadInput(
                f"the fence token is at the last epoch, {durable.epoch}: the catalog can't be opened",
                hint="load its dump into a new catalog",
            )
        return replace(self, epoch=1 if durable is None else durable.epoch + 1)

    def to_proto(self) -> pb.FenceTokenValue:
        """The value of its row."""
        return pb.FenceTokenValue(
            deploy_generation=self.deploy_generation,
            epoch=self.epoch,
            holder=self.holder,
            purpose=self.purpose,
            nonce=self.nonce,
        )

    @classmethod
    def from_proto(cls, value: pb.FenceTokenValue) -> "FenceToken":
        """The token of a row."""
        return cls(value.deploy_generation, value.epoch, value.holder, value.purpose, value.nonce)
