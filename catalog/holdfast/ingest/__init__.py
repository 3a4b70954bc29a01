"""Ingestion: a source feeds a collection, exactly once, whatever crashes and however many instances run.

`ingest_source` runs a pipeline in this process. `holdfast ingest` does so from the command line.
"""

from holdfast.ingest.ingestion import Ingestion, IngestStep, StepOutcome
from holdfast.ingest.opened import ingest_source, ingestion_of
from holdfast.ingest.spec import IngestSpec, parse

__all__ = ["IngestSpec", "IngestStep", "Ingestion", "StepOutcome", "ingest_source", "ingestion_of", "parse"]
