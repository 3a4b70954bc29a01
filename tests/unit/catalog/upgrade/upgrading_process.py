"""Opens the catalog at a URL for writing, and prints a line for each committed step of its upgrade."""

import logging
import sys

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.one_store import stash_catalog
from holdfast.persist import PersistClient

logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("holdfast.catalog.upgrade.runner").setLevel(logging.INFO)
url, organization_id = sys.argv[1:]
if url.startswith("sqlite:"):
    catalog = stash_catalog(url)
else:
    catalog = persist_catalog(PersistClient.open(url), organization_id)
catalog.open(OpenMode.WRITABLE, holder="mortal", purpose="test")
