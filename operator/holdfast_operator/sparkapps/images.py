"""The image of Spark jobs, which has the version of the operator unless somebody says otherwise. Pure."""

import re
from importlib import metadata
from typing import Final

VERSION: Final = metadata.version("holdfast-operator")
DEFAULT: Final = f"holdfast-operator:{VERSION}"
"""The image of jobs whose template names none: the last stage of operator/Dockerfile, as that names it."""
_TAG: Final = re.compile(r":v?([0-9]+[.][0-9]+[.][0-9][0-9A-Za-z.-]*)(@|$)")
_DEV: Final = re.compile(r"[.-]dev[.]?")


def mismatch(image: str) -> str | None:
    """Returns how an image differs from the operator and what to do, or None if its tag shows no difference.

    Only a tag that is a version can show one.
    """
    found = _TAG.search(image)
    if found is None or _DEV.sub(".dev", found[1]) == VERSION:
        return None
    return (
        f"the image {image} of Spark jobs has another version than this operator, {VERSION}: jobs may fail; "
        "use the image of that version, or leave out spark.image"
    )
