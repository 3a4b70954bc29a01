"""A schema is what its columns are, however they were given."""

from holdfast.persist import Schema
from holdfast.persist.rows.schema import Column


def test_lists_of_columns_make_the_same_schema_as_tuples() -> None:
    key, value = Column("id", "int64", nullable=False), Column("name", "string")
    listed = Schema([key], [value])  # type: ignore[arg-type]
    assert listed == Schema((key,), (value,))
    assert hash(listed) == hash(Schema((key,), (value,)))
