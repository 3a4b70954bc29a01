"""Settings of Spark and Iceberg in specs: no secret, and none that the operator sets itself."""

from time import perf_counter
from typing import Any

import pytest

from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.specs import parse_spec

COLLECTION: dict[str, Any] = {"catalogRef": {"name": "x"}, "columns": [{"name": "a", "type": "int64"}]}


def refused(spark: dict[str, str], iceberg: dict[str, str] | None = None) -> str:
    """What the operator says of a collection with such settings; empty where it takes them."""
    table = {"catalog": "lake", "table": "a.b", "properties": iceberg or {}}
    snapshot = {"schedule": "@daily", "iceberg": table, "spark": {"sparkConf": spark}}
    found, problem = parse_spec(
        StorageCollectionSpec, {"metadata": {}, "spec": COLLECTION | {"snapshotSchedule": snapshot}}
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
                "spark.sql.lake.credential",
                "spark.sql.lake.header.Authorization",
                "spark.kubernetes.driverEnv.AWS_SECRET_ACCESS_KEY",
                "spark.executorEnv.PGPASSWORD",
                "spark.sql.x.pass",
            )
        ),
        ("spark.sql.x", "jdbc:postgresql://h/db?user=u&pass=geheim"),
        ("spark.sql.x", "jdbc:postgresql://h/db?user=u&password=geheim"),
        ("spark.sql.x", "postgresql://u:pa/geheim@h/db"),
        ("spark.sql.x", "https://geheim@h/maven"),
        ("spark.eventLog.dir", "abfss://c@a/x,https://u:geheim@h/y"),
        ("spark.eventLog.dir", "abfss://c:geheim@a/x"),
        ("spark.driver.extraJavaOptions", "-Dx=y -Djavax.net.ssl.trustStorePassword=geheim"),
        ("spark.sql.x", '{"password" : "geheim"}'),
    ],
)
def test_no_setting_of_spark_has_a_secret(name: str, value: str) -> None:
    assert refused({"spark.sql.a": "b", name: value}).startswith(
        "must not contain a secret: set envSecretRef to a Secret"
    )


NOT_OF_ITS_PODS = (
    # What is read where the job is submitted: it may end in the namespace of the job.
    *("spark.kubernetes.kerberos.krb5.path", "spark.kerberos.keytab", "spark.kerberos.principal"),
    *("spark.kerberos.access.hadoopFileSystems", "spark.kerberos.renewal.credentials"),
    *("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile"),
    *("spark.kubernetes.scheduler.volcano.podGroupTemplateFile", "spark.kubernetes.file.upload.path"),
    *("spark.kubernetes.authenticate.submission.oauthTokenFile", "spark.kubernetes.authenticate.caCertFile"),
    *("spark.kubernetes.trust.certificates", "spark.authenticate.secret.file", "spark.ssl.keyStore"),
    *("spark.files", "spark.archives", "spark.submit.pyFiles", "spark.jars", "spark.jars.packages"),
    *("spark.jars.repositories", "spark.jars.ivy", "spark.jars.ivySettings", "spark.yarn.dist.files"),
    *("spark.hadoop.fs.defaultFS", "spark.hadoop.hadoop.security.authentication", "spark.hive.x"),
    *("spark.hadoop.hadoop.security.credential.provider.path", "spark.security.credentials.hive.enabled"),
    *(
        "spark.plugins",
        "spark.extraListeners",
        "spark.resources.discoveryPlugin",
        "spark.user.groups.mapping",
    ),
    # Where and as whom a job runs.
    *("spark.master", "spark.remote", "spark.submit.deployMode", "spark.kubernetes.namespace"),
    *("spark.kubernetes.context", "spark.kubernetes.driver.master", "spark.app.name"),
    "spark.submit.proxyUser.allowCustomClasspathInClusterMode",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    *("spark.kubernetes.executor.podTemplateContainerName", "spark.kubernetes.driver.pod.featureSteps"),
    *("spark.kubernetes.driver.pod.name", "spark.kubernetes.allocation.pods.allocator"),
    *("spark.kubernetes.container.image", "spark.kubernetes.hadoop.configMapName"),
    "spark.kubernetes.kerberos.tokenSecret.name",
    "spark.kubernetes.executor.volumes.hostPath.x.options.path",
    "spark.kubernetes.driver.volumes.nfs.x.options.server",
    # Labels and annotations of pods, which the administrator limits, are in spec.spark.pod.
    *("spark.kubernetes.driver.label.team", "spark.kubernetes.executor.annotation.example.com/x"),
    *("spark.kubernetes.driver.service.label.team", "spark.kubernetes.executor.decommissionLabel"),
    # What is none, or more than one.
    *("spark.a", "spark.sql", "hive.metastore.uris", " spark.sql.x", "spark.sql.x y", "spark.sql.x\ny"),
    *("spark.sqlx.a", "spark.kubernetes.driver.request.cores.x", "Spark.sql.x", "x.spark.sql.x"),
)


@pytest.mark.parametrize("name", NOT_OF_ITS_PODS)
def test_only_what_the_pods_of_a_job_read_is_a_setting_of_spark(name: str) -> None:
    assert refused({"spark.sql.a": "b", name: "x"}).startswith("must contain only settings of the job's pods")


@pytest.mark.parametrize(
    "name",
    [
        *("spark.driver.extraClassPath", "spark.executor.extraClassPath", "spark.driver.extraLibraryPath"),
        *("spark.driver.userClassPathFirst", "spark.driver.resourcesFile", "spark.scheduler.allocation.file"),
        *("spark.metrics.conf", "spark.ui.filters", "spark.kryo.registrator", "spark.shuffle.manager"),
        *("spark.shuffle.sort.io.plugin.class", "spark.storage.replication.topologyMapper"),
        *("spark.storage.replication.policy", "spark.python.worker.module", "spark.executor.plugins"),
        *("spark.sql.extensions", "spark.sql.queryExecutionListeners", "spark.sql.extendedExplainProviders"),
        *("spark.sql.streaming.streamingQueryListeners", "spark.sql.hive.metastore.jars"),
        *("spark.sql.hive.metastore.jars.path", "spark.sql.maven.additionalRemoteRepositories"),
        *("spark.sql.catalog.lake", "spark.sql.catalog.lake.io-impl", "spark.sql.cache.serializer"),
        *("spark.sql.sources.commitProtocolClass", "spark.sql.execution.pyspark.python"),
        *("spark.hadoop.fs.s3a.impl", "spark.hadoop.fs.azure.delegation.token.provider.CLASS"),
    ],
)
def test_no_setting_of_spark_loads_code_or_names_a_file_to_read(name: str) -> None:
    assert refused({name: "x"}).startswith("must not load code or name files to read at the start")


@pytest.mark.parametrize("value", ["${env:PGPASSWORD}", "a-${system:user.home}", "${spark.x} ${hiveconf:y}"])
def test_no_setting_of_spark_takes_values_of_who_submits_a_job(value: str) -> None:
    assert refused({"spark.kubernetes.scheduler.name": value}).startswith(
        "must not refer to environment variables"
    )


OF_THE_SUBMITTER = "${env:PGPASSWORD}"


@pytest.mark.parametrize(
    ("field", "spark"),
    [
        ("image", {"image": OF_THE_SUBMITTER}),
        ("serviceAccount", {"serviceAccount": OF_THE_SUBMITTER}),
        ("nodeSelector", {"pod": {"nodeSelector": {"disk": OF_THE_SUBMITTER}}}),
        ("nodeSelector", {"pod": {"nodeSelector": {OF_THE_SUBMITTER: "ssd"}}}),
        ("labels", {"pod": {"labels": {"yunikorn.apache.org/queue": OF_THE_SUBMITTER}}}),
        ("mountPath", {"pod": {"volumes": [{"name": "a", "mountPath": f"/{OF_THE_SUBMITTER}"}]}}),
        (
            "claimName",
            {"pod": {"volumes": [{"name": "a", "mountPath": "/a", "claimName": OF_THE_SUBMITTER}]}},
        ),
    ],
)
def test_no_field_that_becomes_a_setting_of_spark_takes_values_of_who_submits_a_job(
    field: str, spark: dict[str, Any]
) -> None:
    spec = COLLECTION | {"spark": spark}
    found, problem = parse_spec(StorageCollectionSpec, {"metadata": {}, "spec": spec})
    assert found is None
    assert field in problem


@pytest.mark.parametrize(
    "image",
    ["holdfast-spark:latest", "[::1]:5000/Team/spark_4.3@sha256:0f", "r.example:5000/a/b:1.2", "a/b__c:x-Y"],
)
def test_images_have_the_names_that_registries_take(image: str) -> None:
    assert SparkTemplate.model_validate({"image": image}).image == image


def test_no_option_of_a_jvm_is_a_setting_of_spark() -> None:
    options = "-Xss4m -Dspark.kubernetes.executor.volumes.hostPath.x.options.path=/"
    assert refused({"spark.driver.extraJavaOptions": options}).startswith(
        "must contain only settings of the job's pods"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.driver.extraJavaOptions", "-Xss4m -Duser.timezone=UTC"),
        ("spark.kubernetes.driver.secrets.stores", "/etc/stores"),
        ("spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY", "stores:key"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.InstanceProfile"),
        ("spark.hadoop.fs.azure.account.oauth2.token.file", "/var/run/azure"),
        ("spark.hadoop.fs.azure.account.oauth2.client.endpoint", "https://login/oauth2/token"),
        ("spark.redaction.regex", "(?i)secret|password|token"),
        ("spark.kubernetes.driver.request.cores", "200m"),
        ("spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path", "/tmp"),
        ("spark.kubernetes.node.selector.topology.kubernetes.io/zone", "a"),
        ("spark.kubernetes.executor.limit.cores", "2"),
        ("spark.kubernetes.container.image.pullSecrets", "registry"),
        ("spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName", "OnDemand"),
        ("spark.kubernetes.driverEnv.TZ", "UTC"),
        ("spark.metrics.conf.*.sink.prometheusServlet.path", "/metrics"),
        (
            "spark.metrics.conf.*.sink.prometheusServlet.class",
            "org.apache.spark.metrics.sink.PrometheusServlet",
        ),
        ("spark.metrics.namespace", "${spark.app.name}"),
        ("spark.sql.shuffle.partitions", "200"),
        ("spark.sql.adaptive.enabled", "true"),
        ("spark.serializer", "org.apache.spark.serializer.KryoSerializer"),
        ("spark.kryoserializer.buffer.max", "1g"),
        ("spark.speculation", "true"),
        ("spark.memory.offHeap.size", "1g"),
        ("spark.dynamicAllocation.maxExecutors", "8"),
        ("spark.network.timeout", "300s"),
        ("spark.authenticate", "true"),
        ("spark.default.parallelism", "8"),
        ("spark.ui.enabled", "false"),
        ("spark.hadoop.fs.s3a.endpoint", "http://minio:9000"),
        ("spark.eventLog.dir", "abfss://c@a.dfs.core.windows.net/x"),
        ("spark.eventLog.dir", "s3a://b/a@b"),
    ],
)
def test_what_the_pods_of_a_job_read_is_taken(name: str, value: str) -> None:
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
    assert refused({}, {name: "geheim"}).startswith(
        "must not contain a secret: set PYICEBERG_CATALOG__NAME__URI"
    )


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
    assert refused({}, {"uri": uri}).startswith(
        "must not contain a password: set PYICEBERG_CATALOG__NAME__URI"
    )


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
    refused({f"spark.sql.{number}": value for number in range(64)})
    assert perf_counter() - began < 5
