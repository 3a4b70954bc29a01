"""Comments on the columns of a collection, for people to read.

They belong to the collection and not to the schema of its shards. Schemas that differ only in comments are
equal, and a changed comment moves no row and evolves nothing.
"""

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.checks import is_text
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.schema import Schema

Comments: TypeAlias = Mapping[str, str]
"""Texts by column name. A column without a comment has no entry."""

NO_COMMENTS: Final[Comments] = MappingProxyType({})
MOST_COMMENT_CHARACTERS: Final = 1024
"""The limit. Comments are in every version of the collection's record, so they must stay small."""


def check_comments(comments: Mapping[str, str | None], schema: Schema, where: str) -> dict[str, str | None]:
    """Check comments for columns of `schema`. In the result, None removes a comment; an empty text becomes
    None.

    Raises `BadInput`, with a message that begins with `where`, for a column that doesn't exist, and for a
    comment that is not a text of at most 1024 characters without control characters (newline and tab are
    allowed).
    """
    if not isinstance(comments, Mapping):
        raise BadInput(f"{where}: comments must be a dict of columns and texts, not {shown(comments)}")
    for name, text in comments.items():
        if name not in schema.names:
            raise BadInput(f"{where} has no column {shown(name)} to comment on ({', '.join(schema.names)})")
        if text is None:
            continue
        if not is_text(text) or len(text) > MOST_COMMENT_CHARACTERS or any(map(_is_control, text)):
            raise BadInput(
                f"{where}: the comment of column '{name}' is {shown(text)}, expected a text of at most"
                f" {MOST_COMMENT_CHARACTERS} characters, without control characters except newline and tab"
            )
    return {name: text or None for name, text in comments.items()}


def changed_comments(before: Comments, asked: Mapping[str, str | None]) -> Comments:
    """The comments after a change. `asked` is a result of `check_comments`."""
    return {name: text for name, text in {**before, **asked}.items() if text is not None}


def comment_of(name: str, comments: Comments) -> dict[str, str] | None:
    """The comment of a column as metadata of an Arrow or Spark field. None if it has no comment."""
    return {"comment": comments[name]} if name in comments else None


def commented(schema: pa.Schema, comments: Comments) -> pa.Schema:
    """An Arrow schema whose fields have the comments of their columns."""
    return pa.schema(field.with_metadata(comment_of(field.name, comments)) for field in schema)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"
