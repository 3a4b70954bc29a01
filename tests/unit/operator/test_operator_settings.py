"""Settings of Spark and of Iceberg catalogs in specs: none has a secret or what isn't its own."""

from time import perf_counter
from typing import Any

import pytest

from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.reconcile.specs import parse_spec

COLLECTION: dict[str, Any] = {"catalogRef": {"name": "x"}, "columns": [{"name": "a", "type": "int64"}]}


def refused(spark: dict[str, str], iceberg: dict[str, str] | None = None) -> str:
    """What the operator says of a collection with such settings; empty where it takes them."""
    table = {"catalog": "lake", "table": "a.b", "properties": iceberg or {}}
    snapshot = {"requestId": "a", "iceberg": table, "spark": {"sparkConf": spark}}
    found, problem = parse_spec(
        StorageCollectionSpec, {"metadata": {}, "spec": COLLECTION | {"snapshot": snapshot}}
    )
    assert (found is None) == bool(problem)
    assert "geheim" not in problem
    return problem.partition(": ")[2] if problem else ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, "geheim")
            for name in (
                "spark.hadoop.fs.s3a.access.key",
                "spark.hadoop.fs.s3a.bucket.b.secret.key",
                "spark.hadoop.fs.s3a.session.token",
                "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net",
                "spark.hadoop.fs.azure.account.oauth2.client.secret",
                "spark.authenticate.secret",
                "spark.ssl.keyStorePassword",
                "spark.ssl.keyPassword",
                "spark.sql.catalog.lake.credential",
                "spark.sql.catalog.lake.header.Authorization",
                "spark.kubernetes.driverEnv.AWS_SECRET_ACCESS_KEY",
                "spark.executorEnv.PGPASSWORD",
                "spark.x.pass",
            )
        ),
        ("spark.x", "jdbc:postgresql://h/db?user=u&pass=geheim"),
        ("spark.x", "jdbc:postgresql://h/db?user=u&password=geheim"),
        ("spark.x", "postgresql://u:pa/geheim@h/db"),
        ("spark.x", "https://geheim@h/maven"),
        ("spark.jars", "s3a://b/x.jar,https://u:geheim@h/y.jar"),
        ("spark.jars", "abfss://c@a/x.jar,https://u:geheim@h/y.jar"),
        ("spark.jars", "abfss://c:geheim@a/x.jar"),
        ("spark.driver.extraJavaOptions", "-Dx=y -Djavax.net.ssl.trustStorePassword=geheim"),
        ("spark.x", '{"password" : "geheim"}'),
    ],
)
def test_no_setting_of_spark_has_a_secret(name: str, value: str) -> None:
    assert refused({"spark.a": "b", name: value}).startswith("must not have a secret: let envSecretRef name")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(
            (name, "must not say what the operator does")
            for name in (
                "spark.master",
                "spark.submit.deployMode",
                "spark.kubernetes.namespace",
                "spark.kubernetes.context",
                "spark.kubernetes.driver.master",
                "spark.kubernetes.authenticate.driver.serviceAccountName",
                "spark.kubernetes.authenticate.executor.serviceAccountName",
                "spark.kubernetes.authenticate.submission.oauthTokenFile",
                "spark.kubernetes.driver.podTemplateFile",
                "spark.kubernetes.executor.podTemplateContainerName",
                "spark.kubernetes.driver.pod.featureSteps",
                "spark.kubernetes.file.upload.path",
            )
        ),
        ("spark.kubernetes.executor.volumes.hostPath.x.options.path", "must not mount folders of nodes"),
        ("spark.kubernetes.driver.volumes.nfs.x.options.server", "must not mount folders of nodes"),
        ("spark.kubernetes.namespace=kube-system", "must have names of Spark's settings"),
        (" spark.master", "must have names of Spark's settings"),
        ("hive.metastore.uris", "must have names of Spark's settings"),
    ],
)
def test_no_setting_of_spark_says_where_or_as_whom_a_job_runs(name: str, says: str) -> None:
    assert refused({name: "x"}).startswith(says)


def test_no_option_of_a_jvm_is_a_setting_of_spark() -> None:
    options = "-Xss4m -Dspark.kubernetes.executor.volumes.hostPath.x.options.path=/"
    assert refused({"spark.driver.extraJavaOptions": options}).startswith("must not say what the operator")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.driver.extraJavaOptions", "-Xss4m -Duser.timezone=UTC"),
        ("spark.kubernetes.driver.secrets.stores", "/etc/stores"),
        ("spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY", "stores:key"),
        ("spark.kubernetes.kerberos.tokenSecret.name", "tickets"),
        ("spark.authenticate.secret.file", "/etc/stores/shared"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.InstanceProfile"),
        ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://file/etc/stores"),
        ("spark.hadoop.fs.azure.account.oauth2.token.file", "/var/run/azure"),
        ("spark.hadoop.fs.azure.account.oauth2.client.endpoint", "https://login/oauth2/token"),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.redaction.regex", "(?i)secret|password|token"),
        ("spark.kubernetes.driver.request.cores", "200m"),
        ("spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path", "/tmp"),
        ("spark.kubernetes.node.selector.topology.kubernetes.io/zone", "a"),
        ("spark.metrics.conf.*.sink.prometheusServlet.path", "/metrics"),
        ("spark.jars", "abfss://c@a.dfs.core.windows.net/x.jar,abfss://c@a.dfs.core.windows.net/y.jar"),
        ("spark.jars", "s3a://b/a@b.jar"),
    ],
)
def test_what_only_names_a_secret_or_a_file_is_taken(name: str, value: str) -> None:
    assert refused({name: value}) == ""


@pytest.mark.parametrize(
    "name",
    [
        *("s3.secret-access-key", "s3.access-key-id", "s3.passwd", "pwd", "pass", "token", "hf.token"),
        *("adls.account-key", "adls.connection-string", "adls.sas-token", "adls.client-secret"),
        *("header.Authorization", "header.X-Api-Key", "header.Cookie", "header.X-Tenant"),
        *("auth", "auth.basic.password"),
        *("snowflake.private-key", "ssl.client.key", "oauth2-server-uri"),
    ],
)
def test_no_property_of_an_iceberg_catalog_is_a_secret(name: str) -> None:
    assert refused({}, {name: "geheim"}).startswith("must not have a secret: PYICEBERG_CATALOG__NAME__URI")


@pytest.mark.parametrize(
    "uri",
    [
        "https://geheim@h",
        "postgresql://u:geheim@h/db",
        "postgresql+psycopg2://u:gehe/im#geheim@h/db",
        "postgresql://u%3Ageheim%40h/db",
        "postgresql://h/db?password=geheim",
        "https://h?sig=geheim",
        '{"password": "geheim"}',
    ],
)
def test_no_property_of_an_iceberg_catalog_has_a_password(uri: str) -> None:
    assert refused({}, {"uri": uri}).startswith("must not have a password: PYICEBERG_CATALOG__NAME__URI")


def test_what_opens_an_iceberg_catalog_is_taken() -> None:
    lake = {
        "type": "rest",
        "uri": "https://lake/api/v1",
        "warehouse": "abfss://c@a.dfs.core.windows.net/lake",
        "s3.endpoint": "http://minio:9000",
        "s3.region": "eu",
        "rest.sigv4-enabled": "true",
        "adls.account-name": "a",
    }
    assert refused({}, lake) == ""
    assert refused({}, {"type": "sql", "uri": "postgresql://h/db", "warehouse": "file:///srv/a@b"}) == ""


@pytest.mark.parametrize("piece", ["token", "postgres://", "://", "abfs://a", "%25", "passw"])
def test_the_longest_settings_are_read_in_no_time(piece: str) -> None:
    value = (piece * 2048)[:2048]
    began = perf_counter()
    refused({f"spark.{number}": value for number in range(64)})
    assert perf_counter() - began < 5
