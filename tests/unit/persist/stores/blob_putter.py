"""A process of `test_file_blob.py` that puts objects until it is killed.

It prints each key after its put returned.
"""

import sys

from holdfast.persist.stores import FileBlob

SIZE = 256 * 1024


def content(number: int) -> bytes:
    return number.to_bytes(8, "little") * (SIZE // 8)


if __name__ == "__main__":
    blob = FileBlob(sys.argv[1])
    for number in range(1_000_000):
        blob.put(f"s{number % 7}/w/{number}", content(number))
        print(f"s{number % 7}/w/{number}", flush=True)
