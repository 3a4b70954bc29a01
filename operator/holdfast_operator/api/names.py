"""The names that Holdfast puts into a cluster: group, labels, finalizer, condition types and reasons.

Invariants
- Each name is defined only here, so that one file lists everything that users can match on.
- A released reason keeps its meaning. It may be retired, but never reused for something else.
"""

from enum import StrEnum
from typing import Final

GROUP: Final = "holdfast.dev"
"""API group of the custom resources."""

VERSION: Final = "v1alpha1"
"""The only API version, both served and stored."""

API_VERSION: Final = f"{GROUP}/{VERSION}"

CATEGORY: Final = "holdfast"
"""The category of all kinds: `kubectl get holdfast` lists them."""

FINALIZER: Final = f"{GROUP}/operator"
"""Keeps a resource until the operator has carried out its deletion policy."""

FIELD_MANAGER: Final = "holdfast-operator"
"""The operator's name in `managedFields`, in Events and in the catalog's fence token."""

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""On every object that the operator creates, with the value `MANAGED_BY`. The operator watches its children
by it."""

MANAGED_BY: Final = FIELD_MANAGER

ANNOTATION_REOPEN: Final = f"{GROUP}/reopen"
"""On a Catalog: a new value makes the operator open the catalog again, also after `FencedByOther`."""

ANNOTATION_APPROVE_UPGRADE: Final = f"{GROUP}/approve-upgrade"
"""On a Catalog with `upgradePolicy: Manual`: the format version that the operator may upgrade it to."""

ANNOTATION_TRUTH: Final = f"{GROUP}/truth"
"""On a Catalog: the source of truth, if both stores hold a catalog when they are linked. It has an effect
only once, because `status.handledTruth` records the value. The operator never removes the annotation, which
may be in Git."""

ANNOTATION_ABANDON: Final = f"{GROUP}/abandon"
"""On a resource that is being deleted: its uid makes the operator release the resource without touching its
data. The operator never removes the annotation."""

ANNOTATION_COMPACT: Final = f"{GROUP}/compact"
"""On a StorageCollection: a new value requests one compaction. The same value never runs twice. The operator
never removes the annotation, which `kubectl holdfast compact` sets."""

ANNOTATION_SCHEDULED: Final = f"{GROUP}/scheduled-time"
"""On a CollectionSnapshot that a schedule created: the time of the run."""

ANNOTATION_PASSED_OVER: Final = f"{GROUP}/passed-over"
"""On the application or Job of an attempt: the adapters that did not launch it because nobody noticed their
last application in the namespace, each with the time of that, such as `kubeflow=2026-01-02T00:00:00Z`."""

LABEL_SCHEDULE: Final = f"{GROUP}/schedule-of"
"""On a CollectionSnapshot that a schedule created: the name of the StorageCollection, or a hash of a longer
name. The schedule deletes old snapshots with this label."""

ANNOTATION_OPEN: Final = f"{GROUP}/open-with"
"""On the ConfigMap of a Catalog: the library call that opens the catalog."""

LABEL_NAME: Final = "app.kubernetes.io/name"
"""On every object that the operator creates, with the value `holdfast`."""

OPERATORS: Final = "app.kubernetes.io/component=operator"
"""Selects the Deployments of the operator's chart and their pods, for any name of the release."""

LABEL_COLLECTION: Final = f"{GROUP}/collection"
"""On a Spark job: the name of its StorageCollection, or the uid if the name is too long."""

LABEL_SNAPSHOT: Final = f"{GROUP}/snapshot"
"""On the Spark job of a CollectionSnapshot: its name, or its uid if the name is too long."""

LABEL_JOB: Final = f"{GROUP}/job-id"
"""On a Spark job: the id of its JobRecord."""

LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
"""On a Spark job: the number of its attempt at the JobRecord, from 1."""

LABEL_JOB_KIND: Final = f"{GROUP}/job-kind"
"""On a Spark job: its kind: `snapshot`, `compact`, `hydrate` or `ingest`."""


class Kind(StrEnum):
    """The custom resources."""

    CATALOG = "Catalog"
    CATALOG_MIGRATION = "CatalogMigration"
    STORAGE_COLLECTION = "StorageCollection"
    COLLECTION_SNAPSHOT = "CollectionSnapshot"

    @property
    def plural(self) -> str:
        """The name in URLs."""
        return f"{self.value.lower()}s"


class ConditionType(StrEnum):
    """Types of conditions; the first three follow kstatus."""

    READY = "Ready"
    """True: the operator has confirmed that the stored data matches the spec."""

    RECONCILING = "Reconciling"
    """True: the operator is working, or waits for something that happens without you."""

    STALLED = "Stalled"
    """True: you have to do something. The message says what."""

    SCHEDULED_SNAPSHOT_COMPLETED = "ScheduledSnapshotCompleted"
    """For the last CollectionSnapshot of `spec.snapshotSchedule`. True: it is Ready. Unknown: it is in
    progress, or no run has started yet. False: it is Stalled, or the schedule is invalid."""

    COMPACTION_COMPLETED = "CompactionCompleted"
    """For the annotation `holdfast.dev/compact`. True: the compaction is done. Unknown: it is in progress.
    False: it was given up."""

    SCHEDULED_COMPACTION_COMPLETED = "ScheduledCompactionCompleted"
    """For the last run of `spec.compactionSchedule`. True: it is done. Unknown: it is in progress, or no run
    has started yet. False: it was given up, or the schedule is invalid."""

    SOURCE_STALLED = "SourceStalled"
    """For `spec.source`. True: nothing is read from the source, and the message says why and what to do.
    False: a job reads it. Unknown: a job is starting, or waits."""

    SCHEDULED_INGESTION_COMPLETED = "ScheduledIngestionCompleted"
    """For the last run of `spec.source.run.cron`. True: it is done. Unknown: it is in progress, or no run has
    started yet. False: it was given up, or the schedule is invalid."""

    LAGGING = "Lagging"
    """For `spec.source`. True: the collection is far behind its source. False: it is not."""

    ERRORS_COLLECTED = "ErrorsCollected"
    """For `spec.source`. True: bad records stand in the collection of errors. False: there are none."""

    OVER_MAX_BYTES = "OverMaxBytes"
    """For `spec.maxBytes`. True: the collection holds more. False: it does not."""

    RENDITION_SUSPECT = "RenditionSuspect"
    """True: the contents of a rendition can't be trusted. The message says why."""

    TIME_AHEAD = "TimeAhead"
    """True: the time of the collection is more than an hour ahead of the clock. The message says how far."""

    OBJECTS_IN_STEP = "ObjectsInStep"
    """For `spec.objects`. True: the catalog has all objects as declared. False: an object that you removed
    from the spec stays, because others use it."""

    RESTORED = "Restored"
    """For `spec.restoreFrom`. True: the data was restored. False: the catalog existed already, or the
    operator may not restore the collection."""

    SHADOW_DIVERGED = "ShadowDiverged"
    """For `spec.shadow`. True: the other store returned something else than the catalog. False: it has not
    done so since it was opened. Unknown: it can't be reached."""

    CONNECTION_PUBLISHED = "ConnectionPublished"
    """For a Catalog. False: the operator can't write the ConfigMap that describes how to open the catalog.
    The message says why. The condition is absent otherwise."""

    PROGRESSING = "Progressing"
    """For a CatalogMigration. True: its steps are running."""

    VERIFIED = "Verified"
    """For a CatalogMigration. True: both stores were compared and were equal before the target became the
    source of truth. False: they differed. Unknown: they were not compared."""

    COMPLETED = "Completed"
    """For a CatalogMigration. True: this migration made the target the source of truth."""

    ROLLED_BACK = "RolledBack"
    """For `spec.rollback`. True: the catalog is back in its original store."""


class Reason(StrEnum):
    """Reasons of conditions and of Events."""

    AVAILABLE = "Available"
    """Ready: everything matches the spec."""

    SUSPENDED = "Suspended"
    """`spec.suspend` is true: the operator reads and writes nothing until it is false again."""

    INVALID_SPEC = "InvalidSpec"
    """The resource does not have a form that this operator understands."""

    UNSUPPORTED_STORAGE = "UnsupportedStorage"
    """The scheme or form of the storage URL is one that this operator can't store a catalog in."""

    LOCATION_NOT_ALLOWED = "LocationNotAllowed"
    """The storage or the stash is outside the locations that this operator allows (`--allow-location`)."""

    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 - the name of a condition, not a secret
    """A Secret that the spec names does not exist, or has not the keys that it needs."""

    STORE_UNREACHABLE = "StoreUnreachable"
    """The store can't be reached or written. The operator retries by itself."""

    STORE_INCONSISTENT = "StoreInconsistent"
    """The store can be reached, but its contents are corrupt, from a newer version or from another
    location."""

    DELETING = "Deleting"
    """The resource's data is being deleted, as its deletionPolicy asks."""

    DATA_DELETED = "DataDeleted"
    """The resource's data existed once and was deleted for ever. Also an Event, when it is deleted."""

    STORAGE_NOT_SHARED = "StorageNotShared"
    """The data is on the operator's own volume, which Spark pods can't see."""

    DUPLICATE_CATALOG = "DuplicateCatalog"
    """An older Catalog has the same organization at the same location. Or the store records that the catalog
    belongs to another Catalog, or to a database process that an Observed Catalog shows."""

    DUPLICATE_COLLECTION = "DuplicateCollection"
    """An older StorageCollection has the same name in the same catalog."""

    DEPLOY_GENERATION_TOO_LOW = "DeployGenerationTooLow"
    """The catalog was last opened with a greater deploy generation than `spec.deployGeneration`."""

    PREFLIGHT_FAILED = "PreflightFailed"
    """The next deploy generation can't open the catalog. The current one continues, and the operator
    retries."""

    FENCE_REGRESSED = "FenceRegressed"
    """The stored fence token is lower than the operator's: the store was restored from an older state."""

    OPENING = "Opening"
    """The catalog is being opened, and this takes long. The message says since when."""

    UPGRADING = "Upgrading"
    """The catalog is being opened and its format upgraded. The message says since when."""

    RESTORING = "Restoring"
    """A catalog or a collection is being filled from `spec.restoreFrom`."""

    ROLLING_OUT = "RollingOut"
    """The next deploy generation is being tried in memory. The current one continues."""

    CATALOG_OPENED = "CatalogOpened"
    """Event: the catalog was opened for writing. The message contains the epoch."""

    CATALOG_OUT_OF_SYNC = "CatalogOutOfSync"
    """Another process committed to the catalog under the same token. The operator reads the catalog again."""

    FENCED_BY_OTHER = "FencedByOther"
    """Another process takes the catalog over again and again. The message names it."""

    VERSION_TOO_NEW = "VersionTooNew"
    """The catalog's format is newer than this operator supports."""

    DEPRECATED = "Deprecated"
    """The catalog's format is too old for this operator to upgrade."""

    UPGRADE_PENDING = "UpgradePending"
    """The catalog's format is older, and `spec.upgradePolicy` or `spec.access` leaves the upgrade to
    others."""

    CATALOG_UPGRADED = "CatalogUpgraded"
    """Event: the catalog's format was upgraded. The message shows the versions, the rows and what is kept."""

    AWAITING_WRITER = "AwaitingWriter"
    """`spec.access` is Observed, and no database process has initialized the catalog yet."""

    CATALOG_OBSERVED = "CatalogObserved"
    """The Catalog's `spec.access` is Observed: only the database process can create what is missing in it."""

    NOT_SUPPORTED = "NotSupported"
    """This version of the operator can't do what the spec asks for. The message names the field."""

    RESTORE_FAILED = "RestoreFailed"
    """The source in `spec.restoreFrom` can't be read or doesn't fit. Nothing was changed."""

    RESTORED = "Restored"
    """A new catalog was filled from `spec.restoreFrom`, or a collection has the contents that it names."""

    RESTORE_IGNORED = "RestoreIgnored"
    """The catalog existed already, so `spec.restoreFrom` has no effect."""

    SHADOW_DIVERGED = "ShadowDiverged"
    """The other store returned something else than the catalog. The message shows both."""

    SHADOW_IN_STEP = "ShadowInStep"
    """Every comparison so far found both stores equal."""

    SHADOW_OUT_OF_DATE = "ShadowOutOfDate"
    """The other store can't be reached, so nothing is compared. The operator retries by itself."""

    OBJECTS_DECLARED = "ObjectsDeclared"
    """The catalog has all objects of `spec.objects` as declared."""

    OBJECTS_KEPT = "ObjectsKept"
    """An object that you removed from `spec.objects` stays, because others use it. The message names them."""

    TRUTH_TAKEN = "TruthTaken"
    """Event: the operator applied the annotation that chooses the source of truth. It has no further
    effect."""

    LINK_CONFLICT = "LinkConflict"
    """The stash and persist don't belong together, or both hold a catalog. The message says what to do."""

    STRATEGY_MISMATCH = "StrategyMismatch"
    """The two stores were linked with another `spec.migrationStrategy`, which they keep."""

    NOT_SOURCE_OF_TRUTH = "NotSourceOfTruth"
    """The catalog is in the other one of its two stores."""

    STASH_MISSING = "StashMissing"
    """The store is linked to a stash, but the spec does not name the stash."""

    MIGRATION_IN_PROGRESS = "MigrationInProgress"
    """A migration that this operator does not run holds the catalog. The message names it."""

    MIGRATING = "Migrating"
    """A CatalogMigration holds the catalog. Afterwards the operator opens it in its source of truth by
    itself."""

    CATALOG_NOT_LINKED = "CatalogNotLinked"
    """The Catalog has no stash, so it can't move."""

    MIGRATION_PENDING = "MigrationPending"
    """The migration waits for its turn, or until the operator has closed the catalog."""

    MIGRATION_PLANNED = "MigrationPlanned"
    """With `spec.dryRun`: the plan is in the status. Nothing was written."""

    MIGRATION_REFUSED = "MigrationRefused"
    """With `spec.dryRun`: the catalog can't be read as it is. The message says why. Nothing was written."""

    MIGRATION_RUNNING = "MigrationRunning"
    """The migration is running. The message names the last step that is done."""

    MIGRATION_STEP = "MigrationStep"
    """Event: a numbered step of the migration is done."""

    SHADOWING = "Shadowing"
    """Every change to the catalog is made in both stores, until `spec.shadowFor` is over."""

    ROLLING_BACK = "RollingBack"
    """The migration is rolling back. The message names the last step that is done."""

    MIGRATION_COMPLETED = "MigrationCompleted"
    """The target is the source of truth. The migration does nothing more."""

    ROLLED_BACK = "RolledBack"
    """The catalog is back in its original store. The migration does nothing more."""

    MIGRATION_TIMED_OUT = "MigrationTimedOut"
    """`spec.timeout` is over, so no further step runs. The message names the source of truth."""

    CONFLICT = "Conflict"
    """Another migration of the same catalog came first. The message names it."""

    CONTENTS_DIFFER = "ContentsDiffer"
    """The comparison found that the stores differ, so the target was not made the source of truth."""

    CONTENTS_EQUAL = "ContentsEqual"
    """The comparison found both stores equal."""

    NOT_COMPARED = "NotCompared"
    """The stores were not compared: not yet, or because `spec.verify` is None."""

    ABANDONING = "Abandoning"
    """The migration is being deleted. It is finished or undone first, so that one source of truth remains."""

    WAITING_FOR_MIGRATIONS = "WaitingForMigrations"
    """The Catalog is being deleted, but some of its CatalogMigrations are not finished."""

    CATALOG_NOT_FOUND = "CatalogNotFound"
    """The Catalog that `catalogRef` names does not exist."""

    CATALOG_NOT_READY = "CatalogNotReady"
    """This operator has not opened the Catalog that `catalogRef` names yet."""

    CATALOG_DELETING = "CatalogDeleting"
    """The Catalog that `catalogRef` names is being deleted."""

    INVALID_SCHEMA = "InvalidSchema"
    """The columns or the key are not a valid schema."""

    NO_SUCH_SCHEMA = "NoSuchSchema"
    """The catalog doesn't have the database or schema that the spec names."""

    NAME_TAKEN = "NameTaken"
    """Another item in the same schema has the name already."""

    SCHEMA_MISMATCH = "SchemaMismatch"
    """The collection exists with other columns, another key or another number of shards."""

    WAITING_FOR_COLLECTIONS = "WaitingForCollections"
    """The Catalog is being deleted, but StorageCollections still refer to it."""

    DEPENDENTS_UNKNOWN = "DependentsUnknown"
    """The Catalog is being deleted, but the cluster does not serve a kind that may refer to it."""

    WAITING_FOR_CATALOG = "WaitingForCatalog"
    """The StorageCollection is being deleted, but its catalog can't be written at the moment."""

    DELETION_INCOMPLETE = "DeletionIncomplete"
    """Event: the resource was released, but some of its data is left. The message names the data."""

    COLLECTION_IN_USE = "CollectionInUse"
    """The collection is being dropped, but somebody still reads it."""

    FORBIDDEN = "Forbidden"
    """The operator's role, a quota, a policy or a webhook forbids a request. The message shows which."""

    INTERNAL_ERROR = "InternalError"
    """A bug in the operator. Its log has the details. The operator retries by itself."""

    OTHER_IMAGE_VERSION = "OtherImageVersion"
    """Event: the image of a Spark job has another version than the operator."""

    SNAPSHOT_SCHEDULED = "SnapshotScheduled"
    """No run of the schedule has started yet. The message says when the first one is due."""

    SNAPSHOT_RUNNING = "SnapshotRunning"
    """An attempt of the snapshot is running."""

    SNAPSHOT_SUCCEEDED = "SnapshotSucceeded"
    """The snapshot is committed."""

    SNAPSHOT_QUEUED = "SnapshotQueued"
    """The snapshot waits for another snapshot or a compaction of the collection, or because the operator
    already runs as many Spark jobs as it may."""

    SNAPSHOT_RETRYING = "SnapshotRetrying"
    """The last attempt of the snapshot failed. The next one follows."""

    SNAPSHOT_FAILED = "SnapshotFailed"
    """The snapshot was given up. Create another CollectionSnapshot. A schedule continues with its next
    run."""

    SNAPSHOT_NOT_READABLE = "SnapshotNotReadable"
    """The collection can't be read at that time: it is before `since`, or not complete yet."""

    COLLECTION_NOT_FOUND = "CollectionNotFound"
    """The StorageCollection of a CollectionSnapshot doesn't exist, or is being deleted."""

    COLLECTION_NOT_READY = "CollectionNotReady"
    """The StorageCollection of a CollectionSnapshot can't be read yet. The message says why."""

    SNAPSHOT_NOT_READY = "SnapshotNotReady"
    """The CollectionSnapshot that `spec.restoreFrom` names doesn't exist, isn't Ready, or can't be
    restored."""

    NO_DESTINATION = "NoDestination"
    """A CollectionSnapshot names no place to write to, and its StorageCollection has no schedule that names
    one."""

    COMPACTION_SCHEDULED = "CompactionScheduled"
    """No run of the schedule has started yet. The message says when the first one is due."""

    COMPACTION_RUNNING = "CompactionRunning"
    """An attempt of the compaction is running."""

    COMPACTION_SUCCEEDED = "CompactionSucceeded"
    """The compaction is done. The message contains the number of shards."""

    COMPACTION_QUEUED = "CompactionQueued"
    """The compaction waits for another Spark job of the collection, or because the operator already runs as
    many Spark jobs as it may."""

    COMPACTION_RETRYING = "CompactionRetrying"
    """The last attempt of the compaction failed. The next one follows."""

    COMPACTION_FAILED = "CompactionFailed"
    """The compaction was given up. `kubectl holdfast compact` requests another one. A schedule continues with
    its next run."""

    INVALID_SCHEDULE = "InvalidSchedule"
    """A schedule never occurs, or its time zone is unknown. Nothing runs until you correct it."""

    RUNS_MISSED = "RunsMissed"
    """Event: runs of a schedule were missed. Of several, the latest may have been made up for."""

    INGESTION_RUNNING = "IngestionRunning"
    """A Spark job reads the source."""

    INGESTION_QUEUED = "IngestionQueued"
    """The job that reads the source waits for other Spark jobs to end."""

    INGESTION_RETRYING = "IngestionRetrying"
    """An attempt to read the source failed. The next one follows by itself."""

    INGESTION_FAILED = "IngestionFailed"
    """A scheduled job that reads the source was given up."""

    INGESTION_SUCCEEDED = "IngestionSucceeded"
    """A scheduled job read up to the end that the source had."""

    INGESTION_SCHEDULED = "IngestionScheduled"
    """No run of `spec.source.run.cron` has started yet."""

    NOT_SOURCE_FED = "NotSourceFed"
    """`spec.source` is set, but the collection was created without a source."""

    SOURCE_BEHIND = "SourceBehind"
    """The collection is far behind its source."""

    SOURCE_CURRENT = "SourceCurrent"
    """The collection is not far behind its source."""

    BAD_RECORDS = "BadRecords"
    """Bad records stand in the collection of errors."""

    NO_BAD_RECORDS = "NoBadRecords"
    """No bad record stands."""

    SOURCE_LEFT = "SourceLeft"
    """Event: the collection is deleted. The message names what its source still keeps for it."""

    HYDRATING_RENDITION = "HydratingRendition"
    """A new rendition is being filled. You can read and write the collection as usual."""

    HYDRATION_FAILED = "HydrationFailed"
    """The Spark job that fills a new rendition was given up. You can read and write the collection as
    usual."""

    WAITING_FOR_HANDOVER = "WaitingForHandover"
    """A new rendition holds everything that the collection holds. The message says what its handover waits
    for."""

    RETIRING_RENDITION = "RetiringRendition"
    """A retired rendition is kept while its times can still be read. Everything else matches the spec."""

    RENDITION_CREATED = "RenditionCreated"
    """Event: a new rendition was created and will be filled."""

    HYDRATED = "Hydrated"
    """Event: a new rendition holds everything that the collection holds."""

    HANDED_OVER = "HandedOver"
    """Event: a rendition took over. The message contains the time of the handover."""

    RENDITION_DROPPED = "RenditionDropped"
    """Event: a retired rendition and its data were deleted."""

    RENDITION_ABORTED = "RenditionAborted"
    """Event: a rendition that was being filled was given up, and its data was deleted."""

    RENDITION_SUSPECT = "RenditionSuspect"
    """The contents of a rendition can't be trusted. The message says what to do. A suspect rendition that is
    being filled never takes over."""

    TIME_AHEAD = "TimeAhead"
    """A write at a wrong time moved the time of the collection ahead. The message says how far."""

    COLUMNS_ADDED = "ColumnsAdded"
    """Event: columns of the collection were added or widened according to `spec.columns`."""

    OVER_MAX_BYTES = "OverMaxBytes"
    """The collection holds more than `spec.maxBytes`, or would with the copy that a new rendition needs."""

    WITHIN_MAX_BYTES = "WithinMaxBytes"
    """The collection holds no more than `spec.maxBytes`."""

    SPARK_NOT_INSTALLED = "SparkNotInstalled"
    """The cluster does not serve what `--spark-adapter` names, or not to the operator's role. No Spark job
    can run."""

    LAUNCH_FAILED = "LaunchFailed"
    """The API server fails to create the application or Job of an attempt, several times in a row. The
    operator tries again, and no attempt counts as failed."""

    SPARK_TEMPLATE_REFUSED = "SparkTemplateRefused"
    """The Spark adapter can't run this template, such as several executors in a plain Job."""
