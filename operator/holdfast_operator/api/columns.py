"""The columns of a StorageCollection, and the CEL rules for changes to them."""

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
        description="Name of the column. Names that begin with an underscore are reserved.",
        json_schema_extra=validations(
            ("!self.startsWith('_')", "column names that begin with an underscore are reserved"),
            ("!self.matches('[[:cntrl:]]')", "a column name can't contain control characters or newlines"),
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
        description="Text that describes the column. You can change it at any time. Spark shows it.",
        json_schema_extra=validations(
            (
                r"!self.matches('[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}]')",
                "a comment can't contain control characters other than newline and tab",
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
_SAME_KIND = "once the collection exists, the type of a column can only change to a wider one of its kind"


def additive_rules(unborn: str) -> tuple[tuple[str, str], ...]:
    """Returns CEL rules over the whole resource: an existing collection's columns are only added or widened.

    `unborn` is an expression that is true until the collection exists. The operator itself checks what the
    rules can't: the order, decimals, and the columns of the key.
    """
    before, now = "oldSelf.spec.columns", "self.spec.columns"
    # One rule for each type: one rule for all of them would exceed the API server's cost limit.
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
            "a nullable column can't become non-nullable once the collection exists",
        ),
        (
            f"{unborn} || {now}.all(c, c.nullable || {before}.exists(o, o.name == c.name))",
            "a column that you add once the collection exists must be nullable",
        ),
        *widened,
        (
            f"{unborn} || {before}.all(o, {others} || {now}.all(c, c.name != o.name || c.type == o.type))",
            _SAME_KIND,
        ),
        (
            f"{unborn} || (has(self.spec.key) && self.spec.key.size() > 0) || {same}",
            "without spec.key, all columns are the key: spec.columns can't change once the collection exists",
        ),
    )
