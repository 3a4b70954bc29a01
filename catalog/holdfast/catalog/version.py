"""The versions of the catalog's format. `proto/generate.py` reads them as text: keep one plain number a line.

`CATALOG_VERSION` is what this Holdfast writes, `MIN_VERSION` the oldest that it can read and upgrade. What
belongs to versions up to `RELEASED_VERSION` never changes: a release raises it to `CATALOG_VERSION`.
"""

MIN_VERSION = 14
CATALOG_VERSION = 19
RELEASED_VERSION = 19
