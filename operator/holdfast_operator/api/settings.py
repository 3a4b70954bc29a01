"""Maps of settings in specs, which everybody reads who can read the resource: nothing secret may be in them.

Invariants
- What a pattern says is a rule of the API server and of the model: what was there before the rule was, the
  model refuses.
- What only names a Secret, or a file, tells no secret.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast_operator.api.base import validations
from holdfast_operator.api.urls import SHORT, TELLING


@dataclass(frozen=True, slots=True)
class Refusal:
    """Texts that aren't taken: those that `found` is in, by default any, but for those that `unless` is in.

    Both are patterns of RE2 and of Python, without backslashes and single quotes.
    """

    message: str
    found: str | None = None
    unless: str | None = None

    def rule(self, text: str) -> str:
        """The CEL rule of a map; `text` is what it is about of the entry with the key `k`."""
        taken = [f"!{text}.matches('{self.found}')"] if self.found is not None else []
        taken += [f"{text}.matches('{self.unless}')"] if self.unless is not None else []
        return f"self.all(k, {' || '.join(taken)})"

    def refuses(self, text: str) -> bool:
        """Whether a text isn't taken."""
        if self.found is not None and not re.search(self.found, text):
            return False
        return self.unless is None or not re.search(self.unless, text)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a map of settings doesn't take."""

    names: tuple[Refusal, ...]
    values: tuple[Refusal, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The rules for the API server, as `json_schema_extra`."""
        return validations(
            *((each.rule("k"), each.message) for each in self.names),
            *((each.rule("self[k]"), each.message) for each in self.values),
        )

    def taken(self, settings: dict[str, str]) -> dict[str, str]:
        """The settings, for their model. Raises `ValueError`, without values, where some aren't taken."""
        for name, value in settings.items():
            for refusals, text in ((self.names, name), (self.values, value)):
                for each in refusals:
                    if each.refuses(text):
                        raise ValueError(each.message)
        return settings


_HARMLESS: Final = (
    "(?i)^spark[.]kubernetes[.]((driver|executor)[.]secret(s|KeyRef)[.]|kerberos[.]tokenSecret[.])"
    "|(password|secret|token|credentials?|secret[.](driver|executor))"
    "[._-]?(file|enabled|class|type|mechanism|bitLength)$"
    "|credentials?[._-]provider([.](path|mapping|type))?$"
    "|^spark[.](security|kerberos[.]renewal)[.]credentials([.].*[.]enabled|[.]renewalRatio|[.]retryWait)?$"
)
"""Names of settings that hold such a word, and name a Secret or a file, or say how one is used."""


def _values(message: str) -> tuple[Refusal, ...]:
    """Values with a secret in them."""
    return (
        Refusal(
            message,
            "(?is)://[^/]*(@|%(25)*40)|postgres[a-z0-9+]*://.{0,200}(@|%(25)*40)",
            # There the account of a container follows it.
            unless="^((abfss?|wasbs?)://[^/:@,]+@[^@]*)+$",
        ),
        Refusal(message, f'(?i)(?:{TELLING})[a-z0-9_.-]{{0,40}}(=|%(25)*3D|" *:)|[?&;](?:{SHORT})='),
    )


_USE_A_REFERENCE: Final = (
    "must not have a secret: let envSecretRef name one, whose keys become environment variables"
)
_IS_THE_OPERATORS: Final = (
    "must not say what the operator does (master, namespace, ServiceAccounts, submission, templates of "
    "pods): a job runs in the namespace of its collection, as serviceAccount"
)
SPARK_CONF: Final = Settings(
    names=(
        Refusal("must have names of Spark's settings: spark.NAME", unless="^spark[.][!-<>-~]{1,247}$"),
        Refusal(_USE_A_REFERENCE, f"(?i){TELLING}|[._-](?:{SHORT})$", unless=_HARMLESS),
        Refusal(
            _IS_THE_OPERATORS,
            "(?i)^spark[.](master$|submit[.]|kubernetes[.](namespace$|context$|driver[.]master$"
            "|authenticate[.]|file[.]upload[.]|(driver|executor)[.](podTemplate|pod[.])))",
        ),
        Refusal(
            "must not mount folders of nodes or of NFS servers: use volumes",
            "(?i)^spark[.]kubernetes[.](driver|executor)[.]volumes[.](hostPath|nfs)[.]",
        ),
    ),
    # The JVM would hand such a one on, whatever it is.
    values=(*_values(_USE_A_REFERENCE), Refusal(_IS_THE_OPERATORS, "-Dspark[.]")),
)
"""Of a Spark job."""

_BY_ENVIRONMENT: Final = (
    "must not have a {}: PYICEBERG_CATALOG__NAME__URI and the like come from the environment, by "
    "spark.envSecretRef"
)
ICEBERG: Final = Settings(
    names=(
        Refusal(
            _BY_ENVIRONMENT.format("secret"),
            f"(?i){TELLING}|key-id|oauth2|^header[.]|^auth|[._-](key|{SHORT})$|^({SHORT})$",
        ),
    ),
    values=_values(_BY_ENVIRONMENT.format("password")),
)
"""Of an Iceberg catalog."""
