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
    "^spark[.]kubernetes[.]((driver|executor)[.]secret(s|KeyRef)[.]|container[.]image[.]pullSecrets$)"
    "|(?i:(secret|token|credentials?)[._-]?(file|type|mechanism|bitLength)$"
    "|credentials?[._-]provider([.](path|mapping|type))?$)"
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
_NOT_OF_ITS_PODS: Final = (
    "must have only settings of a job's pods, which docs/how-to/choose-what-runs-spark.md lists: who submits "
    "it reads others too, with its own rights; jars, packages and files belong in image, storage in volumes, "
    "and the operator says the rest"
)
_LOADS: Final = (
    "must not load code or name files to read at the start: build what the job needs into image, and use the "
    "defaults of Spark"
)
_IS_EXPANDED: Final = (
    "must not refer to an environment or to system properties: whoever submits the job would fill in its own"
)
_OF_PODS: Final = (
    "(driver|executor)[.]((request|limit)[.]cores$|((service[.])?(label|annotation)|node[.]selector|secrets"
    "|secretKeyRef|volumes[.](emptyDir|persistentVolumeClaim))[.]|scheduler[.]name$"
    "|(own|reuse|waitToReuse)PersistentVolumeClaim$)"
    "|executor[.](deleteOnTermination|decommissionLabel(Value)?|terminationGracePeriodSeconds|podDeletionCost"
    "|roll(Interval|Policy)|(pvc[.])?resize(Factor|Interval|Threshold))$"
    "|allocation[.](batch[.]|executor[.]|max)|(driverEnv|node[.]selector)[.]"
    "|(memoryOverheadFactor|scheduler[.]name|local[.]dirs[.]tmpfs|container[.]image[.]pullSecrets)$"
)
"""Settings of `spark.kubernetes`: those that say what a pod of the job has, in its own namespace."""
_TAKEN: Final = (
    "^spark[.]((sql|executor|driver|executorEnv|memory|shuffle|network|rpc|kryo|task|dynamicAllocation"
    "|eventLog|ui|metrics|io|storage|scheduler|locality|broadcast|cleaner|rdd|reducer|stage|unsafe|log"
    "|python|buffer|excludeOnFailure|decommission|redaction|hadoop[.](parquet|mapreduce[.]fileoutputcommitter"
    "|fs[.](s3a|azure|gs)))[.]|(speculation|serializer|kryoserializer)([.]|$)"
    "|(authenticate([.](enableSaslEncryption|secretBitLength))?|default[.]parallelism|local[.]dir|port[.]maxRetries|blockManager[.]port)$"
    f"|kubernetes[.]({_OF_PODS}))[!-<>-~]*$"
)
"""Settings that nothing but the pods of a job reads."""
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
        # The JVM would hand such a one on, whatever it is.
        Refusal(_NOT_OF_ITS_PODS, "-Dspark[.]"),
    ),
)
"""Of a Spark job.

Whoever submits a job, such as the pod of a Spark operator, reads more of its settings than its driver does:
`spark.kubernetes.kerberos.krb5.path` is a file there that Spark puts into a ConfigMap of the job's namespace,
`spark.kerberos.keytab` one that it puts into a Secret. So only what is known to be of the pods is taken.
"""

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
