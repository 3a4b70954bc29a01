"""The columns of a StorageCollection, and what the API server knows of how they may change."""

from typing import Final

from pydantic import Field

from holdfast.collections.record.comments import MOST_COMMENT_CHARACTERS
from holdfast_operator.api.base import ApiModel, validations

MAX_COLUMNS: Final = 256
NO_NAME_TWICE: Final = ("self.all(name, self.exists_one(other, other == name))", "a column is named twice")
"""A CEL rule over a list of columns' names, as `validations` takes it."""

_TYPES = (
    r"^(bool|u?int(8|16|32|64)|float(32|64)|string|binary|date32|timestamp|timestamp_utc|"
    r"decimal128\\((3[0-8]|[12][0-9]|[1-9]),(3[0-8]|[12]?[0-9])\\))$"
)
_UNKNOWN_TYPE = (
    "unknown column type: use bool, int8..int64, uint8..uint64, float32, float64, "
    "decimal128(precision,scale), string, binary, date32, timestamp or timestamp_utc"
)


class CollectionColumn(ApiModel):
    """One column."""

    name: str = Field(
        min_length=1,
        max_length=128,
        description="Name of the column; names that begin with an underscore are Holdfast's own.",
        json_schema_extra=validations(
            ("!self.startsWith('_')", "column names that begin with an underscore are reserved"),
            ("!self.matches('[[:cntrl:]]')", "a column name is one line, without control characters"),
        ),
    )
    type: str = Field(
        min_length=1,
        max_length=18,
        description="bool, int8 to int64, uint8 to uint64, float32, float64, decimal128(precision,scale), "
        "string, binary, date32, timestamp or timestamp_utc.",
        json_schema_extra=validations((f"self.matches('{_TYPES}')", _UNKNOWN_TYPE)),
    )
    nullable: bool = Field(default=False, description="Whether the column may be null.")
    comment: str | None = Field(
        default=None,
        max_length=MOST_COMMENT_CHARACTERS,
        description="What people say of the column; it may change at any time. Spark shows it.",
        json_schema_extra=validations(
            (
                r"!self.matches('[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}]')",
                "a comment has no control characters but newline and tab",
            ),
        ),
    )


_WIDER: Final = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64"),
    "uint16": ("uint32", "uint64", "int32", "int64"),
    "uint32": ("uint64", "int64"),
    "float32": ("float64",),
}
_SAME_KIND = "a column keeps its type once the collection exists, or gets a wider one of its kind"


def additive_rules(unborn: str) -> tuple[tuple[str, str], ...]:
    """CEL rules over the whole resource: once the collection exists, columns are only added or widened.

    `unborn` is the expression that is true before. What they can't tell (order, decimals, the columns of the
    key) the operator tells.
    """
    before, now = "oldSelf.spec.columns", "self.spec.columns"
    # One rule for each type: a table in one rule would be too dear for the API server.
    widened = tuple(
        (f"{unborn} || {before}.all(o, o.type != '{type_}' || {among})", _SAME_KIND)
        for type_, wider in _WIDER.items()
        for among in [f"{now}.all(c, c.name != o.name || c.type in {[type_, *wider]})"]
    )
    # A comment may change.
    columns = "map(c, [c.name, c.type, string(c.nullable)])"
    same = f"{before}.{columns} == {now}.{columns}"
    others = f"o.type in {list(_WIDER)} || o.type.startsWith('decimal')"
    return (
        (
            f"{unborn} || {before}.all(o, {now}.exists(c, c.name == o.name))",
            "a column of spec.columns can't be removed or renamed once the collection exists",
        ),
        (
            f"{unborn} || {before}.all(o, !o.nullable || {now}.all(c, c.name != o.name || c.nullable))",
            "a column that may be null stays so once the collection exists",
        ),
        (
            f"{unborn} || {now}.all(c, c.nullable || {before}.exists(o, o.name == c.name))",
            "a column that is added once the collection exists must be nullable",
        ),
        *widened,
        (
            f"{unborn} || {before}.all(o, {others} || {now}.all(c, c.name != o.name || c.type == o.type))",
            _SAME_KIND,
        ),
        (
            f"{unborn} || (has(self.spec.key) && self.spec.key.size() > 0) || {same}",
            "without spec.key all columns are the key: spec.columns can't change once the collection exists",
        ),
    )
