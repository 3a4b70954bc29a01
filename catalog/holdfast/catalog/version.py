"""The versions of the catalog's format. `proto/generate.py` reads this as text: keep one plain number a line.

`CATALOG_VERSION` is the version that this Holdfast writes. `MIN_VERSION` is the oldest version that it can
read and upgrade. The formats and steps up to `RELEASED_VERSION` never change. A release raises
`RELEASED_VERSION` to `CATALOG_VERSION`.
"""

MIN_VERSION = 14
CATALOG_VERSION = 19
RELEASED_VERSION = 19
