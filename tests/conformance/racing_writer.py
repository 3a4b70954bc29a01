"""A writer process of `test_racing_writers.py`: appends until its count is reached or it is killed.

Arguments: path of the SQLite file, name of the writer, count, keys. It says "ready", waits for a line on its
standard input, and prints one JSON line per successful append, after it returned.
"""

import json
import sys

from holdfast.persist.storage import Put, SqliteConsensus


def main(path: str, writer: str, count: str, *keys: str) -> None:
    store = SqliteConsensus(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        payload = f"{writer}/{number}"
        while True:
            heads = store.heads(keys)
            puts = [Put(key, heads[key].seqno + 1 if key in heads else 1, payload.encode()) for key in keys]
            if store.compare_and_set(puts):
                break
        print(json.dumps({put.key: [put.seqno, payload] for put in puts}), flush=True)
    store.close()


main(*sys.argv[1:])
