"""Durable tables with a history, in a folder or an object store, and the catalog that names them.

`holdfast.table(url, name)` opens a table. Many processes can write, read and follow it at the same time; see
`holdfast.tables`. This package also contains all errors. Other modules are imported on first use, so `import
holdfast` is fast.
"""

from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CatalogOutOfSync,
    CodecMismatch,
    CollectionInUse,
    CollectionNotFound,
    ConflictingWrite,
    ContentsDiffer,
    CopiesRefused,
    CorruptBlob,
    Deprecated,
    Determinate,
    DiffOverflow,
    Fenced,
    FencedByMove,
    FenceRegressed,
    HandedOver,
    HandleExpired,
    HandoverInProgress,
    HoldfastError,
    Indeterminate,
    LeaseLost,
    LinkConflict,
    LinkedElsewhere,
    LocationMismatch,
    LockHeld,
    LogRegressed,
    MigrationConflict,
    MigrationInProgress,
    MigrationTimedOut,
    NeedsPersist,
    NoLocation,
    NoMultiset,
    NotCaughtUp,
    NotComparable,
    NotErased,
    NotSourceOfTruth,
    NotWritable,
    OtherHistory,
    Overtaken,
    ShadowDiverged,
    ShardFinalized,
    SourceChanged,
    SourceStalled,
    StorageError,
    StoreUnreachable,
    StrategyMismatch,
    TornRendition,
    TransactionInProgress,
    Uninitialized,
    UniquenessViolation,
    UnusablePath,
    UpgradeNeeded,
    UpperMismatch,
    UsedAfterFork,
    VersionTooNew,
    WrittenBefore,
)

if TYPE_CHECKING:
    from holdfast.ingest import ingest_source
    from holdfast.tables import (
        Delete,
        Merge,
        Revert,
        SetValues,
        SqlResult,
        Table,
        TableInfo,
        Tail,
        Update,
        Upsert,
        copy_table,
        copy_tables,
        create_table,
        drop_table,
        list_tables,
        sql,
        write,
    )

    # The package has a module of this name too.
    from holdfast.tables.opening import table

    __version__: str

_TABLES = (
    "Delete",
    "Merge",
    "Revert",
    "SetValues",
    "SqlResult",
    "Table",
    "TableInfo",
    "Tail",
    "Update",
    "Upsert",
    "copy_table",
    "copy_tables",
    "create_table",
    "drop_table",
    "list_tables",
    "sql",
    "table",
    "write",
)

__all__ = [
    "AsOfNotYetAvailable",
    "AsOfTooEarly",
    "BadInput",
    "CatalogOutOfSync",
    "CodecMismatch",
    "CollectionInUse",
    "CollectionNotFound",
    "ConflictingWrite",
    "ContentsDiffer",
    "CopiesRefused",
    "CorruptBlob",
    "Delete",
    "Deprecated",
    "Determinate",
    "DiffOverflow",
    "FenceRegressed",
    "Fenced",
    "FencedByMove",
    "HandedOver",
    "HandleExpired",
    "HandoverInProgress",
    "HoldfastError",
    "Indeterminate",
    "LeaseLost",
    "LinkConflict",
    "LinkedElsewhere",
    "LocationMismatch",
    "LockHeld",
    "LogRegressed",
    "Merge",
    "MigrationConflict",
    "MigrationInProgress",
    "MigrationTimedOut",
    "NeedsPersist",
    "NoLocation",
    "NoMultiset",
    "NotCaughtUp",
    "NotComparable",
    "NotErased",
    "NotSourceOfTruth",
    "NotWritable",
    "OtherHistory",
    "Overtaken",
    "Revert",
    "SetValues",
    "ShadowDiverged",
    "ShardFinalized",
    "SourceChanged",
    "SourceStalled",
    "SqlResult",
    "StorageError",
    "StoreUnreachable",
    "StrategyMismatch",
    "Table",
    "TableInfo",
    "Tail",
    "TornRendition",
    "TransactionInProgress",
    "Uninitialized",
    "UniquenessViolation",
    "UnusablePath",
    "Update",
    "UpgradeNeeded",
    "UpperMismatch",
    "Upsert",
    "UsedAfterFork",
    "VersionTooNew",
    "WrittenBefore",
    "__version__",
    "copy_table",
    "copy_tables",
    "create_table",
    "drop_table",
    "ingest_source",
    "list_tables",
    "sql",
    "table",
    "write",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("holdfast")
    if name == "ingest_source":
        from holdfast import ingest

        return ingest.ingest_source
    if name not in _TABLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import tables

    return getattr(tables, name)


def __dir__() -> list[str]:
    return sorted(__all__)
