"""The fence token: it decides which process may write to a catalog.

A greater token fences every lower one. Tokens are compared by order, never by `!=`. Two processes that open a
catalog at the same time may have tokens of the same rank. Only the one in the store is valid.
"""

import secrets
from dataclasses import dataclass, field, replace

from holdfast._pb import objects_pb2 as pb
from holdfast.errors import BadInput, Fenced
from holdfast.persist.checks import MOST_PURPOSE_CHARACTERS, is_text
from holdfast.persist.rows.casts import shown
from holdfast.text import cut

NONCE_BYTES = 16
MOST_CHARACTERS = MOST_PURPOSE_CHARACTERS
"""The most characters of a holder or a purpose. A stored one may be longer, and is read all the same."""

_LAST_EPOCH = (1 << 64) - 1
_BY_HAND = 1 << 63
_SHOWN = 500
"""How many characters of a holder or a purpose messages show."""


def check_room(epoch: int) -> None:
    """Raise `BadInput` for an epoch that can't be set by hand, because too few opens could follow it."""
    if epoch >= _BY_HAND:
        raise BadInput(f"epoch {epoch} is out of range: it must be below 2^63, so that opens can follow it")


def check_who(holder: str, purpose: str) -> None:
    """Raise `BadInput` for a holder or a purpose that is unreadable or too long for messages."""
    for what, text in (("holder", holder), ("purpose", purpose)):
        if not is_text(text) or not 0 < len(text) <= MOST_CHARACTERS:
            raise BadInput(
                f"a {what} of a catalog must have 1 to {MOST_CHARACTERS} characters, not {shown(text)}",
                hint="say in a few words who writes and why, such as 'nightly import'",
            )


@dataclass(frozen=True)
class FenceToken:
    """`(deploy_generation, epoch)`, with its holder and its purpose for messages.

    Tokens are ordered by `(deploy_generation, epoch)` only. Equality compares everything. So a token of the
    same rank with another holder or nonce is neither equal, lower nor greater.
    """

    deploy_generation: int
    epoch: int
    holder: str
    purpose: str
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES), repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        """The part of the token that tokens are ordered by."""
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
        """The holder and the purpose as messages show them. Long ones are cut."""
        return f"{cut(self.holder, _SHOWN)}, {cut(self.purpose, _SHOWN)}"

    def after(self, durable: "FenceToken | None") -> "FenceToken":
        """The same token with the epoch after the durable one's, or 1 if there is none.

        Raises `BadInput` if the durable epoch is the last one.
        """
        if durable is not None and durable.epoch >= _LAST_EPOCH:
            raise BadInput(
                f"the fence token is at the last epoch, {durable.epoch}: the catalog can't be opened",
                hint="load its dump into a new catalog",
            )
        return replace(self, epoch=1 if durable is None else durable.epoch + 1)

    def check_generation(self, durable: "FenceToken | None") -> None:
        """Raise `Fenced` if this token's generation is below that of the durable one."""
        if durable is not None and self.deploy_generation < durable.deploy_generation:
            raise Fenced(
                self,
                durable,
                message=f"generation {self.deploy_generation} can't open the catalog for writing: a greater"
                f" generation has opened it, at {durable}",
                hint=f"open it with deploy generation {durable.deploy_generation} or greater",
            )

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
        """The token in a row."""
        return cls(value.deploy_generation, value.epoch, value.holder, value.purpose, value.nonce)
