"""What the operator measures of itself, in a registry of its own.

Invariants
- A series of which one more already means something is there from the start, at 0: whoever counts it says so
  when the process begins, for `increase()` doesn't see the first of what wasn't there before.
"""

import contextlib
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.catalog.upgrade_report import Size


class Metrics:
    """All metrics; the names are API, so they change only with a note in the changelog."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "holdfast_reconciles_total",
            "Reconciles by kind and by how they ended.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "holdfast_reconcile_seconds", "How long a reconcile took.", ["kind"], registry=self.registry
        )
        self.status_writes = Counter(
            "holdfast_status_writes_total",
            "Writes of a status by kind and outcome: written, conflict, gone, invalid or left_out.",
            ["kind", "outcome"],
            registry=self.registry,
        )
        self.store_calls = Counter(
            "holdfast_store_calls_total",
            "Calls to a store by what they do and outcome: ok, error (it answered), unreachable, timeout "
            "or refused.",
            ["call", "outcome"],
            registry=self.registry,
        )
        self.objects = Gauge(
            "holdfast_objects",
            "Resources by kind and state: ready, reconciling, stalled or suspended; 0 where another process "
            "acts.",
            ["kind", "state"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "holdfast_queue_depth", "Objects that wait for a worker.", registry=self.registry
        )
        self.queue_oldest = Gauge(
            "holdfast_queue_oldest_seconds",
            "How long the longest waiting object has been due.",
            registry=self.registry,
        )
        self.epoch = Gauge(
            "holdfast_catalog_epoch",
            "Epoch of the operator's fence token.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.upper = Gauge(
            "holdfast_collection_upper",
            "Upper of a collection, in its own time (0 where it is closed).",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.since = Gauge(
            "holdfast_collection_since",
            "Since of a collection, in its own time (0 where it is closed).",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.rendition_lag = Gauge(
            "holdfast_rendition_lag_ms",
            "How far a rendition that is being filled is behind its collection, in its own time (ms).",
            ["namespace", "name", "rendition"],
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
            "holdfast_fenced_total", "Times that another process shut us out.", registry=self.registry
        )
        self.breakers_open = Gauge(
            "holdfast_store_breakers_open",
            "Locations that aren't asked for a while because they didn't answer.",
            registry=self.registry,
        )
        self.informer_restarts = Counter(
            "holdfast_informer_restarts_total",
            "Times that the watches ended by themselves and were begun anew.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "holdfast_leader",
            "Whether this process acts: 1, or 0 where it stands by for another to lose the Lease.",
            registry=self.registry,
        )
        self.leader.set(1)
        self.lease_requests = Counter(
            "holdfast_lease_requests_total",
            "What became of looks at the Lease: acquired, renewed, held_by_other, error, lost or released.",
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
            "Runs of schedules that were missed, by kind of job.",
            ["kind"],
            registry=self.registry,
        )

        self.migration_steps = Counter(
            "holdfast_migration_steps_total",
            "Numbered steps of catalog migrations by what they do and to which store, and by outcome: ok or "
            "error.",
            ["step", "store", "outcome"],
            registry=self.registry,
        )

    def upgraded(
        self, namespace: str, name: str, before: Mapping[str, Size], after: Mapping[str, Size]
    ) -> None:
        """Show the sizes of a catalog before and after an upgrade, by object type."""
        for moment, sizes in (("before", before), ("after", after)):
            for type_, size in sizes.items():
                self.upgrade_rows.labels(namespace, name, type_, moment).set(size.rows)
                self.upgrade_bytes.labels(namespace, name, type_, moment).set(size.bytes)

    def show_lags(self, namespace: str, name: str, lags: Mapping[str, int]) -> None:
        """Show how far the renditions of a collection are behind, and nothing of others."""
        before = self._lagging.pop((namespace, name), frozenset())
        for rendition in before - lags.keys():
            self.rendition_lag.remove(namespace, name, rendition)
        for rendition, lag in lags.items():
            self.rendition_lag.labels(namespace, name, rendition).set(lag)
        if lags:
            self._lagging[namespace, name] = frozenset(lags)

    def forget(self, namespace: str, name: str) -> None:
        """Show nothing more of an object that is gone."""
        for gauge in (self.epoch, self.upper, self.since):
            with contextlib.suppress(KeyError):
                gauge.remove(namespace, name)
        self.show_lags(namespace, name, {})
        for gauge in (self.upgrade_rows, self.upgrade_bytes):
            gauge.remove_by_labels({"namespace": namespace, "name": name})
