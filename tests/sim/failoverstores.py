"""The stores of one client in a world whose consensus store fails over."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.persist.stores import Blob, Consensus, Digest, Entry, Expect, Head, LogRow, Put
from holdfast.persist.stores.traits import NOTHING_KNOWN
from sim.stores import SimBlob, _Calls
from sim.story import short
from sim.weather import Exposure

if TYPE_CHECKING:
    from sim.failoverprocess import Session


class FailoverBlob(SimBlob):
    """The one blob store, whose deletions are judged by who asks for them."""

    def __init__(self, inner: Blob, exposure: Exposure, session: "Session") -> None:
        super().__init__(inner, exposure, session)  # type: ignore[arg-type]
        self._session = session

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._session.uploads(key)
        super().put(key, data)

    def delete(self, key: str) -> bool:
        self._session.deletes(key)
        return super().delete(key)


class FailoverConsensus(Consensus):
    """The server that a client reaches. A write that is slow takes effect on the server that it went to."""

    def __init__(self, session: "Session", exposure: Exposure) -> None:
        self._session = session
        self._calls = _Calls("consensus", exposure)

    @property
    def description(self) -> str:
        return "simulated consensus"

    def line(self) -> str | None:
        return self._session.last.line

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        what = f"heads {' '.join(map(short, keys))}"
        return self._calls.read(what, lambda: self._session.reach().consensus.heads(keys, known))

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        what = f"scan {short(key)} from v{from_seqno}"
        return self._calls.read(what, lambda: self._session.reach().consensus.scan(key, from_seqno, limit))

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        what = f"digests {short(key)} from v{from_seqno}"
        return self._calls.read(what, lambda: self._session.reach().consensus.digests(key, from_seqno, limit))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        session = self._session
        write = session.write
        known = session.known()

        # What waits in the network when its caller gives up still arrives where it was sent.
        server = session.reach()

        def effect() -> bool:
            if not server.consensus.compare_and_set(puts, expect):
                return False
            session.commits(server, puts, expect, known, write)
            return True

        what = "cas " + " ".join(f"{short(put.key)} v{put.seqno}" for put in puts)
        return self._calls.write(what, effect)

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        world = self._session.world
        if world.random.random() < 0.3:
            world.fail_over_soon()
        server = self._session.reach()

        def effect() -> int:
            dropped = server.consensus.truncate(key, seqno, known)
            if dropped:
                self._session.truncates(server, key)
            return dropped

        return self._calls.write(f"truncate {short(key)} below v{seqno}", effect)

    def list_keys(self) -> list[str]:
        return self._calls.read("list_keys", lambda: self._session.reach().consensus.list_keys())
