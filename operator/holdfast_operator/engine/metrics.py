"""The metrics of the operator, in their own registry.

Invariants
- If one increment of a series matters, the series exists from the start with the value 0. Otherwise
  `increase()` would miss the first increment. The code that counts a series creates it when the process
  starts.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.catalog.upgrade_report import Size
from holdfast.ingest.kept import SourceProgress


class CompactGauge(Gauge):
    """A gauge with a series for each of thousands of objects. It keeps a number for each, not an object."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self._values: dict[tuple[str, ...], int] = {}
        super().__init__(name, documentation, labelnames, registry=registry)

    def show(self, labels: tuple[str, ...], value: int) -> None:
        """Sets the value of a series."""
        self._values[labels] = value

    def forget(self, labels: tuple[str, ...]) -> None:
        """Removes a series."""
        self._values.pop(labels, None)

    def collect(self) -> Iterable[Metric]:
        """Returns all series. For any thread."""
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, value in tuple(self._values.items()):  # another thread may change it
            family.add_metric(labels, value)
        return [family]


class Metrics:
    """All metrics. Their names are public, so changes need an entry in the change log."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "holdfast_reconciles_total",
            "Reconciliations by kind and outcome.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "holdfast_reconcile_seconds", "Duration of a reconciliation.", ["kind"], registry=self.registry
        )
        self.status_writes = Counter(
            "holdfast_status_writes_total",
            "Writes of a status by kind and outcome: written, conflict, gone, invalid or left_out.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self.store_calls = Counter(
            "holdfast_store_calls_total",
            "Calls to a store by operation and outcome: ok, error (it responded), unreachable, timeout "
            "or refused.",
            ["call", "outcome"],
            registry=self.registry,
        )
        self.objects = Gauge(
            "holdfast_objects",
            "Resources by kind and state: ready, reconciling, stalled or suspended; 0 if another process "
            "leads.",
            ["kind", "state"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "holdfast_queue_depth", "Number of objects that wait for a worker.", registry=self.registry
        )
        self.queue_oldest = Gauge(
            "holdfast_queue_oldest_seconds",
            "Seconds for which the longest waiting object has been due.",
            registry=self.registry,
        )
        self.epoch = Gauge(
            "holdfast_catalog_epoch",
            "Epoch of the operator's fence token.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.upper = CompactGauge(
            "holdfast_collection_upper",
            "Upper of a collection, in its own time (0 if it is closed).",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.since = CompactGauge(
            "holdfast_collection_since",
            "Since of a collection, in its own time (0 if it is closed).",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.rendition_lag = Gauge(
            "holdfast_rendition_lag_ms",
            "How far a rendition that is being filled is behind its collection, in its own time (ms).",
            ["namespace", "name", "rendition"],
            registry=self.registry,
        )
        self.source_complete = Gauge(
            "holdfast_source_complete_before_seconds",
            "A collection contains all source data from before this time (seconds since 1970).",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.source_behind = Gauge(
            "holdfast_source_behind_messages",
            "Messages in Kafka that were not yet read at the last step of a collection. 0 for other sources.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.source_messages = Gauge(
            "holdfast_source_messages",
            "Messages of the source that a collection contains or has recorded as bad.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.source_stalled = Gauge(
            "holdfast_source_stalled",
            "1 if nothing can be read from the source of a collection, 0 otherwise.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.source_errors = Gauge(
            "holdfast_source_bad_records",
            "Bad records of a source that stand in the collection of errors.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._lagging: dict[tuple[str, str], frozenset[str]] = {}
        self.upgrade_rows = Gauge(
            "holdfast_catalog_upgrade_rows",
            "Rows by object type before and after the last upgrade of a catalog's format.",
            ["namespace", "name", "type", "moment"],
            registry=self.registry,
        )
        self.upgrade_bytes = Gauge(
            "holdfast_catalog_upgrade_bytes",
            "Bytes by object type before and after the last upgrade of a catalog's format.",
            ["namespace", "name", "type", "moment"],
            registry=self.registry,
        )
        self.fences = Counter(
            "holdfast_fenced_total", "Times that another process fenced this one.", registry=self.registry
        )
        self.breakers_open = Gauge(
            "holdfast_store_breakers_open",
            "Locations that are not called for a while because they did not respond.",
            registry=self.registry,
        )
        self.informer_restarts = Counter(
            "holdfast_informer_restarts_total",
            "Times that the watches ended by themselves and were restarted.",
            registry=self.registry,
        )
        self.watches_down = Gauge(
            "holdfast_watches_down",
            "Watches of the API server that don't work, by resource (of Holdfast's own kinds).",
            ["resource"],
            registry=self.registry,
        )
        self.leader = Gauge(
            "holdfast_leader",
            "1 if this process leads, 0 if it stands by until another one loses the Lease.",
            registry=self.registry,
        )
        self.leader.set(1)
        self.lease_requests = Counter(
            "holdfast_lease_requests_total",
            "Requests for the Lease by outcome: acquired, renewed, held_by_other, error, lost or released.",
            ["outcome"],
            registry=self.registry,
        )
        self.spark_jobs = Counter(
            "holdfast_spark_jobs_total",
            "Attempts of Spark jobs by kind and step: launched, failed, stopped, cancelled.",
            ["kind", "step"],
            registry=self.registry,
        )
        self.missed_runs = Counter(
            "holdfast_missed_runs_total",
            "Missed runs of schedules, by kind of job.",
            ["kind"],
            registry=self.registry,
        )

        self.migration_steps = Counter(
            "holdfast_migration_steps_total",
            "Numbered steps of catalog migrations by action, store and outcome: ok or error.",
            ["step", "store", "outcome"],
            registry=self.registry,
        )

    def upgraded(
        self, namespace: str, name: str, before: Mapping[str, Size], after: Mapping[str, Size]
    ) -> None:
        """Sets the sizes of a catalog before and after an upgrade, by object type."""
        for moment, sizes in (("before", before), ("after", after)):
            for type_, size in sizes.items():
                self.upgrade_rows.labels(namespace, name, type_, moment).set(size.rows)
                self.upgrade_bytes.labels(namespace, name, type_, moment).set(size.bytes)

    def show_lags(self, namespace: str, name: str, lags: Mapping[str, int]) -> None:
        """Sets how far the renditions of a collection are behind. Removes its other renditions."""
        before = self._lagging.pop((namespace, name), frozenset())
        for rendition in before - lags.keys():
            self.rendition_lag.remove(namespace, name, rendition)
        for rendition, lag in lags.items():
            self.rendition_lag.labels(namespace, name, rendition).set(lag)
        if lags:
            self._lagging[namespace, name] = frozenset(lags)

    def show_source(
        self, namespace: str, name: str, complete_s: float | None, progress: SourceProgress
    ) -> None:
        """Sets how far the source of a collection is read. `complete_s` is None if no job follows it."""
        if complete_s is not None:
            self.source_complete.labels(namespace, name).set(complete_s)
        else:
            with contextlib.suppress(KeyError):
                self.source_complete.remove(namespace, name)
        self.source_behind.labels(namespace, name).set(progress.behind)
        self.source_messages.labels(namespace, name).set(progress.messages)
        self.source_errors.labels(namespace, name).set(progress.errors)

    def forget(self, namespace: str, name: str) -> None:
        """Removes the series of an object that is gone."""
        for frontier in (self.upper, self.since):
            frontier.forget((namespace, name))
        of_source = self.source_complete, self.source_behind, self.source_messages, self.source_errors
        for gauge in (self.epoch, *of_source, self.source_stalled):
            with contextlib.suppress(KeyError):
                gauge.remove(namespace, name)
        self.show_lags(namespace, name, {})
        for gauge in (self.upgrade_rows, self.upgrade_bytes):
            gauge.remove_by_labels({"namespace": namespace, "name": name})
