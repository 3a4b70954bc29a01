"""Every name that Holdfast puts into a cluster: group, labels, finalizer, condition types and reasons.

Invariants
- A name is written here once and used from here everywhere, so that what users match on is one file.
- A reason, once released, keeps its meaning; it may be retired but never reused for something else.
"""

from enum import StrEnum
from typing import Final

GROUP: Final = "holdfast.dev"
"""API group of the custom resources."""

VERSION: Final = "v1alpha1"
"""The one served and stored version."""

API_VERSION: Final = f"{GROUP}/{VERSION}"

CATEGORY: Final = "holdfast"
"""`kubectl get holdfast` lists all kinds of this category."""

FINALIZER: Final = f"{GROUP}/operator"
"""Keeps a resource until the operator has done what its deletion policy asks for."""

FIELD_MANAGER: Final = "holdfast-operator"
"""Who the operator is in `managedFields`, in Events and in the catalog's fence token."""

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""On every object that the operator creates, with the value `MANAGED_BY`; children are watched by it."""

MANAGED_BY: Final = FIELD_MANAGER

ANNOTATION_REOPEN: Final = f"{GROUP}/reopen"
"""On a Catalog: any new value lets the operator open it anew, also after `FencedByOther`."""

ANNOTATION_APPROVE_UPGRADE: Final = f"{GROUP}/approve-upgrade"
"""On a Catalog with `upgradePolicy: Manual`: the format version that it may be upgraded to."""

ANNOTATION_TRUTH: Final = f"{GROUP}/truth"
"""On a Catalog whose two stores both hold a catalog when they are linked: which one counts. It decides
once: `status.handledTruth` remembers the value, and the operator never removes the annotation, which may be
in Git."""

ANNOTATION_ABANDON: Final = f"{GROUP}/abandon"
"""On a resource that is being deleted: its uid, to leave its data where it is and let the resource go. The
operator never removes it."""

ANNOTATION_OPEN: Final = f"{GROUP}/open-with"
"""On the ConfigMap of a Catalog: the call of the library that opens the catalog."""

LABEL_NAME: Final = "app.kubernetes.io/name"
"""On every object that the operator creates, with the value `holdfast`."""

OPERATORS: Final = "app.kubernetes.io/component=operator"
"""Selects the Deployments of the operator's chart and their pods, whatever the release is called."""

LABEL_COLLECTION: Final = f"{GROUP}/collection"
"""On a Spark job: the StorageCollection that it works for (its uid where the name is too long)."""

LABEL_JOB: Final = f"{GROUP}/job-id"
"""On a Spark job: the id of its JobRecord."""

LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
"""On a Spark job: which attempt of the JobRecord it is, from 1."""

LABEL_JOB_KIND: Final = f"{GROUP}/job-kind"
"""On a Spark job: what it does: `snapshot`, `compact` or `hydrate`."""


class Kind(StrEnum):
    """The custom resources."""

    CATALOG = "Catalog"
    CATALOG_MIGRATION = "CatalogMigration"
    STORAGE_COLLECTION = "StorageCollection"

    @property
    def plural(self) -> str:
        """The name in URLs."""
        return f"{self.value.lower()}s"


class ConditionType(StrEnum):
    """Types of conditions; the first three follow kstatus."""

    READY = "Ready"
    """True: the durable state is as the spec asks and was confirmed."""

    RECONCILING = "Reconciling"
    """True: the operator is at work or waits for something that comes by itself."""

    STALLED = "Stalled"
    """True: somebody has to do something; the message says what."""

    SNAPSHOT_COMPLETED = "SnapshotCompleted"
    """Of the snapshot that `spec.snapshot` asks for: True done, Unknown under way, False given up."""

    SCHEDULED_SNAPSHOT_COMPLETED = "ScheduledSnapshotCompleted"
    """Of the last run of `spec.snapshotSchedule`: True done, Unknown under way or none yet, False given up,
    or the schedule makes no sense."""

    COMPACTION_COMPLETED = "CompactionCompleted"
    """Of the compaction that `spec.compaction` asks for: True done, Unknown under way, False given up."""

    SCHEDULED_COMPACTION_COMPLETED = "ScheduledCompactionCompleted"
    """Of the last run of `spec.compactionSchedule`: True done, Unknown under way or none yet, False given up,
    or the schedule makes no sense."""

    OVER_MAX_BYTES = "OverMaxBytes"
    """Of `spec.maxBytes`: True the collection holds more than that, False it doesn't."""

    RENDITION_SUSPECT = "RenditionSuspect"
    """True: the contents of a rendition of the collection are not to be trusted; the message says why."""

    OBJECTS_IN_STEP = "ObjectsInStep"
    """Of `spec.objects`: True all is as declared, False something that was taken out is kept by others."""

    RESTORED = "Restored"
    """Of `spec.restoreFrom`: True the catalog was filled with it, False it was there already, or the
    collection is not the operator's to restore."""

    SHADOW_DIVERGED = "ShadowDiverged"
    """Of `spec.shadow`: True the other store answered otherwise than the catalog, False it never did
    since it was opened, Unknown it can't be asked."""

    CONNECTION_PUBLISHED = "ConnectionPublished"
    """Of a Catalog: False its ConfigMap, which says how to open it, can't be kept; the message says why.
    There is no such condition while all is well."""

    PROGRESSING = "Progressing"
    """Of a CatalogMigration: True while its steps are taken."""

    VERIFIED = "Verified"
    """Of a CatalogMigration: True both stores were compared and held the same before the target became the
    source of truth, False they differed, Unknown nobody has compared them."""

    COMPLETED = "Completed"
    """Of a CatalogMigration: True the target is the source of truth, by this migration."""

    ROLLED_BACK = "RolledBack"
    """Of `spec.rollback`: True the catalog is back where it was."""


class Reason(StrEnum):
    """Reasons of conditions and of Events."""

    AVAILABLE = "Available"
    """Ready: all is as asked."""

    SUSPENDED = "Suspended"
    """`spec.suspend` is true: nothing is read or written until it is false again."""

    INVALID_SPEC = "InvalidSpec"
    """The resource doesn't have the shape that this operator understands."""

    UNSUPPORTED_STORAGE = "UnsupportedStorage"
    """The storage URL has a scheme or a form that this operator can't keep a catalog on."""

    LOCATION_NOT_ALLOWED = "LocationNotAllowed"
    """The storage or the stash is outside of where this operator may keep catalogs (`--allow-location`)."""

    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 - the name of a condition, not a secret
    """The Secret that `credentialsSecretRef` names isn't there."""

    STORE_UNREACHABLE = "StoreUnreachable"
    """The store doesn't answer, or can't be written; it is tried again by itself."""

    STORE_INCONSISTENT = "StoreInconsistent"
    """The store answers, but what is in it is corrupt, from a newer version or from another location."""

    DATA_DELETED = "DataDeleted"
    """What the resource stands for was there once and was deleted for ever."""

    STORAGE_NOT_SHARED = "StorageNotShared"
    """Spark pods can't see the operator's own volume."""

    DUPLICATE_CATALOG = "DuplicateCatalog"
    """An older Catalog has the same organization at the same location, or by what its store says it is
    another's: a Catalog's that wrote it, or a database process's that an Observed Catalog shows."""

    DUPLICATE_COLLECTION = "DuplicateCollection"
    """An older StorageCollection has the same name in the same catalog."""

    DEPLOY_GENERATION_TOO_LOW = "DeployGenerationTooLow"
    """The catalog was last opened with a greater deploy generation than `spec.deployGeneration`."""

    PREFLIGHT_FAILED = "PreflightFailed"
    """The next deploy generation can't open the catalog; the running one goes on, and it is tried again."""

    FENCE_REGRESSED = "FenceRegressed"
    """The durable fence token is lower than ours: the store was restored from an older state."""

    OPENING = "Opening"
    """The catalog is being opened, which takes long; the message says since when."""

    UPGRADING = "Upgrading"
    """The catalog is being opened, and its format upgraded; the message says since when."""

    RESTORING = "Restoring"
    """A catalog or a collection is being filled with what `spec.restoreFrom` names."""

    ROLLING_OUT = "RollingOut"
    """The next deploy generation is being tried in memory; the running one goes on."""

    CATALOG_OPENED = "CatalogOpened"
    """Event: the catalog was opened for writing; the message names the epoch."""

    CATALOG_OUT_OF_SYNC = "CatalogOutOfSync"
    """Somebody else committed to the catalog under the same token; it is read again."""

    FENCED_BY_OTHER = "FencedByOther"
    """Another process takes the catalog over again and again; the message names it."""

    VERSION_TOO_NEW = "VersionTooNew"
    """The catalog's format is newer than this operator knows."""

    DEPRECATED = "Deprecated"
    """The catalog's format is older than this operator can upgrade."""

    UPGRADE_PENDING = "UpgradePending"
    """The catalog's format is older, and `spec.upgradePolicy` or `spec.access` leaves that to others."""

    CATALOG_UPGRADED = "CatalogUpgraded"
    """Event: the catalog's format was upgraded; the message names versions, rows and what is kept."""

    AWAITING_WRITER = "AwaitingWriter"
    """`spec.access` is Observed and no database process has initialized the catalog yet."""

    CATALOG_OBSERVED = "CatalogObserved"
    """The Catalog's `spec.access` is Observed: what is missing in it is made by the database process."""

    NOT_SUPPORTED = "NotSupported"
    """The spec asks for something that this version of the operator can't do; the message names the field."""

    RESTORE_FAILED = "RestoreFailed"
    """What `spec.restoreFrom` names can't be read, or does not fit; nothing was changed."""

    RESTORED = "Restored"
    """What `spec.restoreFrom` names fills a catalog that was new, or is the contents of a collection."""

    RESTORE_IGNORED = "RestoreIgnored"
    """There was a catalog already, so nothing is done about `spec.restoreFrom`."""

    SHADOW_DIVERGED = "ShadowDiverged"
    """The other store answered otherwise than the catalog; the message shows both sides."""

    SHADOW_IN_STEP = "ShadowInStep"
    """Both stores hold the same, as far as anybody looked."""

    SHADOW_OUT_OF_DATE = "ShadowOutOfDate"
    """The other store can't be reached: nothing is compared; it is tried again by itself."""

    OBJECTS_DECLARED = "ObjectsDeclared"
    """Everything in `spec.objects` is in the catalog as it is declared there."""

    OBJECTS_KEPT = "ObjectsKept"
    """What was taken out of `spec.objects` stays, because others use it; the message names by what."""

    TRUTH_TAKEN = "TruthTaken"
    """Event: the annotation that says which store counts did its duty, and has no effect any more."""

    LINK_CONFLICT = "LinkConflict"
    """The stash and persist don't belong together, or both hold a catalog; the message says what to do."""

    STRATEGY_MISMATCH = "StrategyMismatch"
    """The two stores were linked with another `spec.migrationStrategy`, which they keep."""

    NOT_SOURCE_OF_TRUTH = "NotSourceOfTruth"
    """The catalog is in the other one of its two stores."""

    STASH_MISSING = "StashMissing"
    """The store is one of two that are linked, and the spec doesn't name the stash."""

    MIGRATION_IN_PROGRESS = "MigrationInProgress"
    """A migration that this operator doesn't conduct has the catalog; the message names it."""

    MIGRATING = "Migrating"
    """A CatalogMigration has the catalog; it is opened again by itself where its source of truth is."""

    CATALOG_NOT_LINKED = "CatalogNotLinked"
    """The Catalog names no stash, so there is nothing to move between."""

    MIGRATION_PENDING = "MigrationPending"
    """The migration waits for its turn, or until the catalog is given up."""

    MIGRATION_PLANNED = "MigrationPlanned"
    """`spec.dryRun`: the plan is in the status, and nothing was written."""

    MIGRATION_REFUSED = "MigrationRefused"
    """`spec.dryRun`: the catalog can't be read as it is; the message says why, and nothing was written."""

    MIGRATION_RUNNING = "MigrationRunning"
    """The steps of the migration are being taken; the message names the last one."""

    MIGRATION_STEP = "MigrationStep"
    """Event: a numbered step of the migration is done."""

    SHADOWING = "Shadowing"
    """Every change of the catalog is made in both stores, until `spec.shadowFor` is over."""

    ROLLING_BACK = "RollingBack"
    """The steps back are being taken; the message names the last one."""

    MIGRATION_COMPLETED = "MigrationCompleted"
    """The target is the source of truth, and the migration does nothing any more."""

    ROLLED_BACK = "RolledBack"
    """The catalog is back where it was, and the migration does nothing any more."""

    MIGRATION_TIMED_OUT = "MigrationTimedOut"
    """`spec.timeout` is over: no further step is taken; the message says where the source of truth is."""

    CONFLICT = "Conflict"
    """Another migration of the same catalog was first; the message names it."""

    CONTENTS_DIFFER = "ContentsDiffer"
    """Both stores were compared and differ: the target was not made the source of truth."""

    CONTENTS_EQUAL = "ContentsEqual"
    """Both stores were compared and hold the same."""

    NOT_COMPARED = "NotCompared"
    """Nothing was compared: not yet, or because `spec.verify` is None."""

    ABANDONING = "Abandoning"
    """The migration is being deleted: it is finished or undone first, so that one source of truth is left."""

    WAITING_FOR_MIGRATIONS = "WaitingForMigrations"
    """The Catalog is being deleted, but CatalogMigrations of it aren't over."""

    CATALOG_NOT_FOUND = "CatalogNotFound"
    """The Catalog that `catalogRef` names isn't there."""

    CATALOG_NOT_READY = "CatalogNotReady"
    """The Catalog that `catalogRef` names isn't open in this operator yet."""

    CATALOG_DELETING = "CatalogDeleting"
    """The Catalog that `catalogRef` names is being deleted."""

    INVALID_SCHEMA = "InvalidSchema"
    """The columns or the key make no schema."""

    NO_SUCH_SCHEMA = "NoSuchSchema"
    """The catalog has no database or schema of the name that the spec gives."""

    NAME_TAKEN = "NameTaken"
    """Something else at that place has the name already."""

    SCHEMA_MISMATCH = "SchemaMismatch"
    """The collection exists with other columns, another key or another number of shards."""

    WAITING_FOR_COLLECTIONS = "WaitingForCollections"
    """The Catalog is being deleted, but StorageCollections still refer to it."""

    DEPENDENTS_UNKNOWN = "DependentsUnknown"
    """The Catalog is being deleted, but the cluster doesn't serve a kind whose objects may refer to it."""

    WAITING_FOR_CATALOG = "WaitingForCatalog"
    """The StorageCollection is being deleted and its catalog can't be written at the moment."""

    DELETION_INCOMPLETE = "DeletionIncomplete"
    """Event: the resource was released though something durable is left; the message names it."""

    COLLECTION_IN_USE = "CollectionInUse"
    """The collection is to be dropped, but somebody reads it."""

    FORBIDDEN = "Forbidden"
    """The operator's role lacks a permission; the message names the request."""

    INTERNAL_ERROR = "InternalError"
    """A fault of the operator; its log has the details. It is tried again by itself."""

    SNAPSHOT_SCHEDULED = "SnapshotScheduled"
    """No run of the schedule has begun yet; the message says when the first one is due."""

    SNAPSHOT_RUNNING = "SnapshotRunning"
    """An attempt of the snapshot is under way."""

    SNAPSHOT_SUCCEEDED = "SnapshotSucceeded"
    """The snapshot is committed."""

    SNAPSHOT_QUEUED = "SnapshotQueued"
    """The snapshot waits until another one, or a compaction, of the collection has ended, or until fewer
    Spark jobs run than the operator may have at once."""

    SNAPSHOT_RETRYING = "SnapshotRetrying"
    """The last attempt of the snapshot failed; the next one follows."""

    SNAPSHOT_FAILED = "SnapshotFailed"
    """The snapshot was given up; a new `requestId` asks again, a schedule goes on with its next run."""

    SNAPSHOT_NOT_READABLE = "SnapshotNotReadable"
    """The time to read at can't be read: before `since`, or not complete yet."""

    COMPACTION_SCHEDULED = "CompactionScheduled"
    """No run of the schedule has begun yet; the message says when the first one is due."""

    COMPACTION_RUNNING = "CompactionRunning"
    """An attempt of the compaction is under way."""

    COMPACTION_SUCCEEDED = "CompactionSucceeded"
    """The compaction is done; the message says of how many shards."""

    COMPACTION_QUEUED = "CompactionQueued"
    """The compaction waits until another Spark job of the collection has ended, or until fewer Spark jobs
    run than the operator may have at once."""

    COMPACTION_RETRYING = "CompactionRetrying"
    """The last attempt of the compaction failed; the next one follows."""

    COMPACTION_FAILED = "CompactionFailed"
    """The compaction was given up; a new `requestId` asks again, a schedule goes on with its next run."""

    INVALID_SCHEDULE = "InvalidSchedule"
    """A schedule has no times, or an unknown time zone: nothing runs before it is corrected."""

    RUNS_MISSED = "RunsMissed"
    """Event: runs of a schedule were missed; of several the latest may have been made up for."""

    HYDRATING_RENDITION = "HydratingRendition"
    """A new rendition of the collection is being filled; the one before is read and written as ever."""

    HYDRATION_FAILED = "HydrationFailed"
    """The Spark job that fills a new rendition was given up; the collection is read and written as ever."""

    WAITING_FOR_HANDOVER = "WaitingForHandover"
    """A new rendition has all that the collection has; the message says what its handover waits for."""

    RETIRING_RENDITION = "RetiringRendition"
    """A rendition that handed over is kept while its times can still be read; all else is as asked."""

    RENDITION_CREATED = "RenditionCreated"
    """Event: a new rendition is there, to be filled."""

    HYDRATED = "Hydrated"
    """Event: a new rendition has what the collection has."""

    HANDED_OVER = "HandedOver"
    """Event: a rendition took over; the message says from which time on."""

    RENDITION_DROPPED = "RenditionDropped"
    """Event: a retired rendition and its data are gone."""

    RENDITION_ABORTED = "RenditionAborted"
    """Event: a rendition that was being filled was given up, and its data is gone."""

    RENDITION_SUSPECT = "RenditionSuspect"
    """The contents of a rendition are not to be trusted; the message says what to do. One that is being
    filled never takes over."""

    COLUMNS_ADDED = "ColumnsAdded"
    """Event: the schema of the collection follows `spec.columns`: columns were added or became wider."""

    OVER_MAX_BYTES = "OverMaxBytes"
    """The collection holds more than `spec.maxBytes`, or would with the copy that a new rendition is."""

    WITHIN_MAX_BYTES = "WithinMaxBytes"
    """The collection holds no more than `spec.maxBytes`."""

    SPARK_NOT_INSTALLED = "SparkNotInstalled"
    """What `--spark-adapter` asks for isn't served, or not to the operator's role: no Spark job can run."""

    SPARK_TEMPLATE_REFUSED = "SparkTemplateRefused"
    """What runs Spark jobs here can't do what the template asks for: several executors in a plain Job."""
