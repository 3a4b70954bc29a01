"""The option `--where`: conditions such as `id >= 3 and (name like 'a%' or note is not null)`.

The conditions mean what lists of conditions mean in `holdfast.tables.Table.scan`. A value is a number, a date
or time, true or false, hexadecimal for binary columns, or any text in single quotes (two of them stand for
one quote). A column whose name is not one word is in double quotes. As in SQL, `and` binds more strongly than
`or`, and `not` more strongly than both.

`not` in front of conditions becomes `not` of each condition, and `and` becomes `or`. That is right for null
too: a comparison and its contrary are both unknown for it.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.text import cut

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*")
      | (?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,)
      | (?P<word>[^\s'"<>=!(),]+)
    )""",
    re.VERBOSE,
)
_EQUALS: Final = ("=", "==", "!=", "<>")
_COMPARES: Final = (*_EQUALS, "<", "<=", ">", ">=")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_HINT: Final = "such as --where \"id >= 3 and (name like 'a%' or note is not null)\""
_CONTRARY: Final = {
    "=": "!=",
    "==": "!=",
    "!=": "=",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "in": "not in",
    "like": "not like",
    "is": "is not",
}
# Conditions such as (a or b) and (c or d) and ... become very many lists.
_MOST_LISTS: Final = 1000
_DEEPEST: Final = 100

Conditions = list[tuple[str, str, Any]]
Token = tuple[str, str]
_END: Final[Token] = ("end", "its end")


def parse_where(text: str, schema: Schema) -> list[Conditions]:
    """The conditions of `--where`, for columns of the schema: those of one list hold. Raises `BadInput`."""
    return _Parser(text, schema).conditions()


class _Parser:
    def __init__(self, text: str, schema: Schema) -> None:
        self._schema = schema
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def conditions(self) -> list[Conditions]:
        found = self._any_of(contrary=False)
        if self._peek() != _END:
            self._refuse("'and' or 'or'")
        return found

    def _any_of(self, *, contrary: bool) -> list[Conditions]:
        found = self._all_of(contrary=contrary)
        while self._is_word("or"):
            found = _joined(found, self._all_of(contrary=contrary), is_and=contrary)
        return found

    def _all_of(self, *, contrary: bool) -> list[Conditions]:
        found = self._one_of(contrary=contrary)
        while self._is_word("and"):
            found = _joined(found, self._one_of(contrary=contrary), is_and=not contrary)
        return found

    def _one_of(self, *, contrary: bool) -> list[Conditions]:
        while self._is_word("not"):
            contrary = not contrary
        if self._peek() != ("sign", "("):
            return self._condition(contrary=contrary)
        self._next()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadInput(f"--where: more than {_DEEPEST} parentheses are open", hint=_HINT)
        found = self._any_of(contrary=contrary)
        if self._next() != ("sign", ")"):
            self._refuse("'and', 'or' or ')'", back=True)
        self._depth -= 1
        return found

    def _condition(self, *, contrary: bool) -> list[Conditions]:
        kind, column = self._next()
        if kind not in ("word", "name"):
            self._refuse("a column", back=True)
        check_columns(self._schema, [column])
        if self._is_word("is"):
            contrary ^= self._is_word("not")
            if not self._is_word("null"):
                self._refuse("'null'")
            return _one(column, "is", None, contrary=contrary)
        is_not = self._is_word("not")
        contrary ^= is_not
        if self._is_word("in"):
            return _one(column, "in", self._values(column), contrary=contrary)
        if self._is_word("like"):
            return _one(column, "like", self._pattern(), contrary=contrary)
        if self._is_word("between"):
            least = _one(column, ">=", self._value(column), contrary=contrary)
            if not self._is_word("and"):
                self._refuse("'and'")
            greatest = _one(column, "<=", self._value(column), contrary=contrary)
            return _joined(least, greatest, is_and=not contrary)
        if is_not:
            self._refuse("in, like or between")
        kind, operator = self._next()
        if kind != "sign" or operator not in _COMPARES:
            self._refuse(f"one of {' '.join(_COMPARES)}, in, like, between, not, is", back=True)
        value = self._value(column)
        if operator in _EQUALS:
            self._check_whole(column, value)
        return _one(column, operator, value, contrary=contrary)

    def _pattern(self) -> str:
        kind, text = self._next()
        if kind != "text":
            self._refuse("a pattern in single quotes", back=True)
        return text

    def _values(self, column: str) -> list[Any]:
        if self._next() != ("sign", "("):
            self._refuse("'('", back=True)
        found = [self._value(column)]
        while (token := self._next()) == ("sign", ","):
            found.append(self._value(column))
        if token != ("sign", ")"):
            self._refuse("',' or ')'", back=True)
        for each in found:
            self._check_whole(column, each)
        return found

    def _check_whole(self, column: str, value: Any) -> None:
        """Refuse a fraction as the value of a column of whole numbers: it would find nothing, or all."""
        type_ = self._schema.arrow.field(column).type
        if not pa.types.is_integer(type_) or not _NUMBER.fullmatch(value):
            return
        try:
            number = Decimal(value)
        except InvalidOperation:
            # Its exponent has too many digits. The comparison with the column refuses it too.
            return
        # A number of many digits has no remainder in decimal arithmetic, and this works for all.
        if number != number.to_integral_value():
            given = cut(value, 60)
            raise BadInput(
                f"--where: column {column!r} has whole numbers ({type_}), so it never equals {given}",
                hint=f"compare with < or >, such as {column} > {given}",
            )

    def _value(self, column: str) -> Any:
        kind, text = self._next()
        if kind == "name":
            quoted = text.replace("'", "''")
            raise BadInput(
                f'--where: "{text}" in double quotes is a column, and a column is compared with a value',
                hint=f"for the text, write '{quoted}' in single quotes",
            )
        if kind not in ("word", "text"):
            self._refuse("a value", back=True)
        if kind == "word" and text.lower() == "null":
            raise BadInput("--where: nothing equals null", hint="write 'is null' or 'is not null'")
        type_ = self._schema.arrow.field(column).type
        if kind == "word" and pa.types.is_string(type_) and _NUMBER.fullmatch(text):
            raise BadInput(
                f"--where: column {column!r} is text, and {text} is a number",
                hint=f"for the text, write '{text}' in quotes",
            )
        if pa.types.is_boolean(type_) and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return text

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _is_word(self, word: str) -> bool:
        kind, text = self._peek()
        is_it = kind == "word" and text.lower() == word
        self._at += is_it
        return is_it

    def _refuse(self, expected: str, *, back: bool = False) -> NoReturn:
        self._at -= back
        kind, text = self._peek()
        found = text if kind == "end" else repr(text)
        raise BadInput(f"--where: expected {expected}, not {found}", hint=_HINT)


def _one(column: str, operator: str, value: Any, *, contrary: bool) -> list[Conditions]:
    return [[(column, _CONTRARY[operator] if contrary else operator, value)]]


def _joined(first: list[Conditions], second: list[Conditions], *, is_and: bool) -> list[Conditions]:
    if not is_and:
        return first + second
    if len(first) * len(second) > _MOST_LISTS:
        raise BadInput(
            f"--where: 'and' of so many 'or' has more than {_MOST_LISTS} cases",
            hint="use 'in' for the values of one column, or holdfast sql",
        )
    return [one + other for one in first for other in second]


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadInput(f"--where: can't read {text[at:].strip()[:40]!r}", hint=_HINT)
        kind = str(match.lastgroup)
        value = match[kind]
        if kind in ("text", "name"):
            quote = value[0]
            value = value[1:-1].replace(quote * 2, quote)
        found.append((kind, value))
        at = match.end()
    return found
