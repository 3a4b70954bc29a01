"""A writer process of the racing tests: appends until its count is reached or it is killed.

Arguments: the URL of a consensus store, name of the writer, count, keys. It prints "ready", waits for a line
on its standard input, and prints one JSON line per append that it knows to have happened. If a store fails,
it tries again, so that a server can be stopped while it runs.
"""

import json
import os
import sys
from collections.abc import Sequence

from holdfast.errors import Determinate, Indeterminate
from holdfast.persist.stores import Consensus, Entry, Put
from holdfast.persist.stores.url import open_consensus

PARENT = os.getppid()


def append(store: Consensus, keys: Sequence[str], payload: bytes) -> list[Put]:
    """Append the payload, which no other append has, to all keys; what was put.

    An append of unknown outcome happened if its payload is at its place, and did not if another's is. Where
    there is none yet it may still land: then the same is tried again.
    """
    unknown: list[Put] = []
    while True:
        try:
            if unknown:
                found = store.scan(unknown[0].key, unknown[0].seqno, 1)
                if found == [Entry(unknown[0].seqno, payload)]:
                    return unknown
                if found:
                    unknown = []
            heads = store.heads(keys)
            puts = [Put(key, heads[key].seqno + 1 if key in heads else 1, payload) for key in keys]
            if store.compare_and_set(puts):
                return puts
        except Determinate:
            if os.getppid() != PARENT:
                raise  # the test has ended, and its server with it
        except Indeterminate:
            unknown = puts


def main(place: str, writer: str, count: str, *keys: str) -> None:
    store = open_consensus(place, create=True, read_only=False)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        payload = f"{writer}/{number}"
        puts = append(store, keys, payload.encode())
        print(json.dumps({put.key: [put.seqno, payload] for put in puts}), flush=True)
    store.close()


main(*sys.argv[1:])
