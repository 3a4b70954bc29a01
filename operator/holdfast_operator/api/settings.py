"""Rules for maps of settings in specs. All readers of a resource see its settings: they hold no secrets.

Invariants
- The API server and the model apply the same patterns. The model refuses settings that were stored before
  the API server had a rule against them.
- A setting that only names a Secret or a file is not secret.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from holdfast_operator.api.base import validations
from holdfast_operator.api.urls import SHORT, TELLING

SettingName = Annotated[str, Field(max_length=256)]
"""The name of a setting in a map."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refuses a text that matches `found` (by default any text) and does not match `unless`.

    Both patterns work in RE2 and in Python. They contain no backslashes and no single quotes.
    """

    message: str
    found: str | None = None
    unless: str | None = None

    def rule(self, text: str) -> str:
        """Returns the CEL rule for a map. `text` is a CEL expression for a part of entry `k`."""
        taken = [f"!{text}.matches('{self.found}')"] if self.found is not None else []
        taken += [f"{text}.matches('{self.unless}')"] if self.unless is not None else []
        return f"self.all(k, {' || '.join(taken)})"

    def refuses(self, text: str) -> bool:
        """Returns whether the text is refused."""
        if self.found is not None and not re.search(self.found, text):
            return False
        return self.unless is None or not re.search(self.unless, text)


@dataclass(frozen=True, slots=True)
class Settings:
    """The names and values that a map of settings refuses."""

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
        """Returns the settings, or raises `ValueError` if one is refused. The message contains no values."""
        for name, value in settings.items():
            for refusals, text in ((self.names, name), (self.values, value)):
                for each in refusals:
                    if each.refuses(text):
                        raise ValueError(each.message)
        return settings


_HARMLESS: Final = (
    "^spark[.]kubernetes[.]((driver|executor)[.]secret(s|KeyRef)[.]|container[.]image[.]pullSecrets$)"
    "|(?i:(secret|token|credentials?)[._-]?(file|type|mechanism|bitLength)$"
    "|credentials?[._-]provider([.](path|mapping|type))?$)"
)
"""Names of settings that contain a suspicious word, but only name a Secret or a file, or its use."""


def _values(message: str) -> tuple[Refusal, ...]:
    """Returns refusals of values that contain a secret."""
    return (
        Refusal(
            message,
            "(?is)://[^/]*(@|%(25)*40)|postgres[a-z0-9+]*://.{0,200}(@|%(25)*40)",
            # In these URLs, the `@` separates a container from its account.
            unless="^((abfss?|wasbs?)://[^/:@,]+@[^@]*)+$",
        ),
        Refusal(message, f'(?i)(?:{TELLING})[a-z0-9_.-]{{0,40}}(=|%(25)*3D|" *:)|[?&;](?:{SHORT})='),
    )


_USE_A_REFERENCE: Final = (
    "must not contain a secret: set envSecretRef to a Secret, whose keys become environment variables"
)
_NOT_OF_ITS_PODS: Final = (
    "must contain only settings of the job's pods, which docs/how-to/choose-what-runs-spark.md lists: the "
    "process that submits the job would read other settings with its own rights; put jars, packages and "
    "files into image, and storage into volumes; the operator sets the rest"
)
_LOADS: Final = (
    "must not load code or name files to read at the start: build what the job needs into image, and use the "
    "defaults of Spark"
)
_IS_EXPANDED: Final = (
    "must not refer to environment variables or system properties: the process that submits the job would "
    "fill in its own"
)
_OF_PODS: Final = (
    "(driver|executor)[.]((request|limit)[.]cores$|(node[.]selector|secrets"
    "|secretKeyRef|volumes[.](emptyDir|persistentVolumeClaim))[.]|scheduler[.]name$"
    "|(own|reuse|waitToReuse)PersistentVolumeClaim$)"
    "|executor[.](deleteOnTermination|terminationGracePeriodSeconds|podDeletionCost"
    "|roll(Interval|Policy)|(pvc[.])?resize(Factor|Interval|Threshold))$"
    "|allocation[.](batch[.]|executor[.]|max)|(driverEnv|node[.]selector)[.]"
    "|(memoryOverheadFactor|scheduler[.]name|local[.]dirs[.]tmpfs|container[.]image[.]pullSecrets)$"
)
"""Settings under `spark.kubernetes` that only describe a pod of the job, in its own namespace."""
_TAKEN: Final = (
    "^spark[.]((sql|executor|driver|executorEnv|memory|shuffle|network|rpc|kryo|task|dynamicAllocation"
    "|eventLog|ui|metrics|io|storage|scheduler|locality|broadcast|cleaner|rdd|reducer|stage|unsafe|log"
    "|python|buffer|excludeOnFailure|decommission|redaction|hadoop[.](parquet|mapreduce[.]fileoutputcommitter"
    "|fs[.](s3a|azure|gs)))[.]|(speculation|serializer|kryoserializer)([.]|$)"
    "|(authenticate([.](enableSaslEncryption|secretBitLength))?|default[.]parallelism|local[.]dir|port[.]maxRetries|blockManager[.]port)$"
    f"|kubernetes[.]({_OF_PODS}))[!-<>-~]*$"
)
"""Settings that only the pods of a job read."""
SPARK_CONF: Final = Settings(
    names=(
        Refusal(_NOT_OF_ITS_PODS, unless=_TAKEN),
        Refusal(
            _LOADS,
            "(?i)(class(es|path|pathFirst)?|librarypath|jars([.]path)?|listeners|extensions|providers|filters"
            "|registrator|plugins?|impl|module|python|repositories|(resources|topology|allocation[.])file"
            "|topologyMapper|replication[.]policy|cache[.]serializer|shuffle[.]manager|metrics[.]conf)$"
            "|^spark[.]sql[.]catalog[.]",
            unless="^spark[.]metrics[.]conf[.]",
        ),
        Refusal(_USE_A_REFERENCE, f"(?i){TELLING}|[._-](?:{SHORT})$", unless=_HARMLESS),
    ),
    values=(
        *_values(_USE_A_REFERENCE),
        Refusal(_IS_EXPANDED, "[$][{][^}]*:"),
        # The JVM would pass on any setting in this form.
        Refusal(_NOT_OF_ITS_PODS, "-Dspark[.]"),
    ),
)
"""Rules for the settings of a Spark job.

The process that submits a job, such as the pod of a Spark operator, reads settings that the driver does not.
For example, Spark copies the submitter's file `spark.kubernetes.kerberos.krb5.path` into a ConfigMap in the
job's namespace, and `spark.kerberos.keytab` into a Secret. A user could read the submitter's files that way.
So a setting is accepted only if it is known that nothing but the job's pods reads it.
"""

_BY_ENVIRONMENT: Final = (
    "must not contain a {}: set PYICEBERG_CATALOG__NAME__URI and the like in the environment, with "
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
"""Rules for the properties of an Iceberg catalog."""
