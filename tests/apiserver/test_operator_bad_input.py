"""Bad input is rejected by the API server or shown as Stalled.

It changes nothing durable, and a correction makes the resource ready.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from testbed.errors import KubectlError

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
ORGANIZATION = "6f1d7c1e-2b8a-4f5e-9d43-0c5b8f3a7e21"

CRON = "must be minute, hour, day, month and weekday, like '30 2 * * *', or a name like @daily"
SCHEDULES: tuple[tuple[dict[str, Any], str], ...] = (
    *(({"schedule": line}, CRON) for line in ("daily", "* * * *", "0 0 0 * * *", "60 0 * * *", "0 24 * * *")),
    *(
        ({"schedule": line}, CRON)
        for line in ("0 0 32 * *", "0 0 * 13 *", "0 0 * * 8", "0,, 0 * * *", "@soon")
    ),
    ({"schedule": ""}, "spec.snapshotSchedule.schedule"),
    ({"schedule": "@daily", "timeZone": "../etc"}, "must be the name of a time zone, like Europe/Berlin"),
    ({"schedule": "@daily", "startingDeadline": "5"}, "startingDeadline"),
)


WITH_PASSWORD = (
    "s3://h/db?password=plantUrlPw4",
    "s3://h/db?region=x&sslpassword=plantUrlPw4",
    "s3://h/db?passfile=/etc/passfile",
    "s3://h/db?AWS_SECRET_ACCESS_KEY=plantUrlPw4",
    "s3://h/db?options=-c%20x.password%3DplantUrlPw4",
    "s3://h/db?endpoint=http://u:plantUrlPw4@h",
    "s3://h/db?endpoint=http%3A%2F%2Fu%3AplantUrlPw4%40h",
    "s3://h/db?endpoint=https:%252F%252Fu:plantUrlPw4%2540h",
    "s3://h/db?user=u&pass=plantUrlPw4",
    "s3://h/db?sk=plantUrlPw4",
    "s3://u%3AplantUrlPw4%40h/db",
)


RESERVED = "must not contain names that Kubernetes, Spark or Holdfast use themselves"
SPARK: tuple[tuple[dict[str, Any], str], ...] = (
    ({"driver": {"memory": "1g"}}, "spec.spark.driver.memory"),
    ({"startDeadline": "90"}, "spec.spark.startDeadline"),
    ({"pod": {"labels": {"app.kubernetes.io/name": "x"}}}, RESERVED),
    ({"pod": {"annotations": {"spark-role": "x"}}}, RESERVED),
    ({"metadata": {"labels": {"job-name": "x"}}}, RESERVED),
    ({"metadata": {"labels": {"a b": "x"}}}, "must have keys like example.com/name"),
    ({"metadata": {"annotations": {"a": "x" * 1025}}}, "spec.spark.metadata.annotations.a"),
    ({"pod": {"labels": {"a": "x y"}}}, "must have values of at most 63 letters"),
    ({"pod": {"nodeSelector": {"disk": "${env:X}"}}}, "must have values of at most 63 letters"),
    ({"pod": {"securityContext": {"runAsUser": 0}}}, "greater than or equal to 1"),
    ({"pod": {"volumes": [{"name": "a", "mountPath": "/${env:X}"}]}}, "mountPath"),
)


SPARK_CONF = (
    *(
        ({name: "x"}, "must not contain a secret: set envSecretRef to a Secret")
        for name in ("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.azure.account.key.a", "spark.ui.Pwd")
    ),
    ({"spark.sql.u": "jdbc:postgresql://h/db?user=u&pass=x"}, "must not contain a secret: set envSecretRef"),
    ({"spark.sql.u": "https://u:x@h/maven"}, "must not contain a secret: set envSecretRef to a Secret"),
    *(
        ({name: "x"}, "must contain only settings of the job's pods")
        for name in (
            *("spark.kubernetes.namespace", "spark.master", "spark.kubernetes.driver.podTemplateFile"),
            *("spark.kubernetes.kerberos.krb5.path", "spark.kerberos.keytab", "spark.jars", "spark.sql.a b"),
            *("spark.kubernetes.driver.volumes.hostPath.h.mount.path", "spark.master=x", "spark.sql.\n"),
        )
    ),
    ({"spark.driver.extraClassPath": "x"}, "must not load code or name files to read at the start"),
    ({"spark.kubernetes.scheduler.name": "${env:TOKEN}"}, "must not refer to environment variables"),
    ({"spark.sql.a": "y" * 2049}, "sparkConf.spark.sql.a"),
    ({f"spark.sql.{number}": "y" for number in range(65)}, "must have at most 64 items"),
)


@pytest.mark.long
def test_the_api_server_refuses_what_has_no_meaning(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    column = {"name": "id", "type": "int64"}
    file = "file:///x"
    urls: tuple[Make, ...] = (
        lambda url: make_catalog(storage={"url": url}),
        lambda url: make_catalog(storage={"blob": file, "consensus": url}),
        lambda url: make_catalog(storage={"blob": url, "consensus": file}),
        lambda url: make_catalog(stash={"url": f"postgresql://{url.partition('://')[2]}"}),
        lambda url: make_catalog(
            restoreFrom={"catalog": {"organizationId": ORGANIZATION, "storage": {"url": url}}}
        ),
        lambda url: make_catalog(restoreFrom={"dump": {"url": url}}),
        lambda url: make_collection(restoreFrom={"snapshot": url}),
        lambda url: make_collection(snapshotSchedule={"schedule": "@daily", "destination": url}),
    )
    for made, message in (
        (make_catalog(organizationId="ACME"), "must be a UUID in lower case, such as 4f2c"),
        (make_catalog(storage={"url": "/folder"}), "must be a URL like file:///folder"),
        (make_catalog(storage={"url": "s3://me:secret@host/x"}), "must not contain a user or a password"),
        *((made(url), "must not contain a user or a password") for made in urls for url in WITH_PASSWORD),
        *(
            (make_catalog(storage={"blob": file, "consensus": url}), "must not contain a user or a password")
            for url in ("postgresql://u:pa/ss@h", "postgres://u%3Apw%40h/db", "postgresql://u:p?w@h/db")
        ),
        *((made("s3://u:p#w@h/db"), "must not contain '#' or control characters") for made in urls),
        (make_catalog(storage={"url": "file:///a\nb"}), "must not contain '#' or control characters"),
        (make_catalog(storage={"url": "s3://b/x?p%61ss=x"}), "must not escape the name of an option"),
        (make_catalog(storage={"blob": "file:///x"}), "give url, or both blob and consensus"),
        (make_catalog(storage={"url": "file:///x", "blob": "file:///y"}), "give url, or both"),
        (make_catalog(backend="Elsewhere"), "Unsupported value"),
        (make_catalog(deployGeneration=-1), "deployGeneration"),
        (make_collection(columns=[{"name": "id", "type": "int65"}]), "unknown column type: use bool"),
        (make_collection(columns=[{"name": "_time", "type": "int64"}], key=[]), "are reserved"),
        (make_collection(columns=[column, column]), "Duplicate value"),
        (make_collection(columns=[]), "columns"),
        (make_collection(key=["nope"]), "names a column that isn't in spec.columns"),
        (make_collection(rendition={"shards": 0}), "shards: Invalid value: 0"),
        (make_collection(rendition={"shards": 10_000}), "should be less than or equal to 256"),
        (make_collection(rendition={"hashColumns": ["nope"]}), "names a column that isn't in spec.columns"),
        (
            make_collection(rendition={"hashColumns": ["id", "id"]}),
            "spec.rendition.hashColumns: Invalid value: a column is named twice",
        ),
        (make_collection(key=["id", "id"]), "spec.key: Invalid value: a column is named twice"),
        (make_collection(columns=[{"name": "a\nb", "type": "int64"}], key=[]), "a column name can't contain"),
        (make_collection(handover={"policy": "At"}), "policy At needs at"),
        (make_collection(handover={"policy": "At", "at": "tonight"}), "date-time"),
        (make_collection(handover={"policy": "Soon"}), "Unsupported value"),
        (make_collection(maxBytes=0), "maxBytes"),
        (make_collection(maxBytes="10GB"), "maxBytes"),
        *((make_collection(spark=spark), says) for spark, says in SPARK),
        (make_catalog(spark={"pod": {"labels": {"holdfast.dev/job": "x"}}}), "Holdfast use themselves"),
        (make_collection(restoreFrom={"snapshot": "monday"}), "must be a URL like file:///folder/snapshot"),
        (
            make_collection(retention={"period": "3 weeks"}),
            "must be a number with ms, s, m, h or d",
        ),
        (
            make_collection(snapshotSchedule={"schedule": "@daily", "destination": "x"}),
            "must be a URL like s3://bucket/prefix",
        ),
        (
            make_collection(snapshotSchedule={"schedule": "@daily", "destination": "gs://bucket/x"}),
            "must be a URL like s3://bucket/prefix, or file:///folder for a folder that all pods share",
        ),
        (make_collection(snapshotSchedule={"schedule": "@daily"}), "give either destination or iceberg"),
        (
            make_collection(
                snapshotSchedule={
                    "schedule": "0 3 * * *",
                    "destination": "s3://b/x",
                    "iceberg": {"catalog": "shop", "table": "a.b"},
                }
            ),
            "give either destination or iceberg",
        ),
        (
            make_collection(
                snapshotSchedule={"schedule": "@daily", "iceberg": {"catalog": "shop", "table": "b"}}
            ),
            "iceberg.table",
        ),
        *(
            (
                make_collection(
                    snapshotSchedule={
                        "schedule": "@daily",
                        "iceberg": {"catalog": "shop", "table": "a.b", "properties": properties},
                    }
                ),
                says,
            )
            for properties, says in (
                ({"s3.secret-access-key": "x"}, "must not contain a secret"),
                ({"adls.account-key": "x"}, "must not contain a secret"),
                ({"header.Cookie": "x"}, "must not contain a secret"),
                ({"uri": "https://token@host"}, "must not contain a password"),
                ({"uri": "postgresql://me:hi#dden@host/x"}, "must not contain a password"),
                ({"uri": "postgresql://me:hidden@host/x"}, "must not contain a password"),
                ({"uri": "postgresql://host/x?password=hidden"}, "must not contain a password"),
            )
        ),
        *(
            (
                make_collection(spark={"sparkConf": settings}),
                says,
            )
            for settings, says in SPARK_CONF
        ),
        (
            make_collection(
                compactionSchedule={"schedule": "@daily", "spark": {"sparkConf": {"spark.master": "x"}}}
            ),
            "spec.compactionSchedule.spark.sparkConf: Invalid value",
        ),
        *(
            (make_collection(snapshotSchedule={"destination": "file:///x", **each}), message)
            for each, message in SCHEDULES
        ),
    ):
        with pytest.raises(KubectlError, match="is invalid") as refused:
            world.objects.make(made)
        assert message in str(refused.value), made
    assert world.kubectl("get", "catalogs,storagecollections", "-o", "name") == ""


def test_what_is_immutable_can_not_be_changed(world: Any, make_catalog: Make, make_collection: Make) -> None:
    world.start()
    world.apply(make_catalog(deployGeneration=2), make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    for what, patch, message in (
        ("catalog/demo", f'{{"organizationId":"{ORGANIZATION}"}}', "organizationId is immutable"),
        ("catalog/demo", '{"deployGeneration":1}', "deployGeneration can't decrease"),
        ("catalog/demo", '{"storage":{"url":"file:///elsewhere"}}', "spec.storage is immutable once"),
        ("storagecollection/flights", '{"key":["note"]}', "key is immutable"),
        ("storagecollection/flights", '{"key":null}', "key is immutable"),
        (
            "storagecollection/flights",
            '{"columns":[{"name":"id","type":"int64"}]}',
            "a column of spec.columns can't be removed or renamed once the collection exists",
        ),
        ("storagecollection/flights", '{"name":"other"}', "can't change once the collection exists"),
        ("storagecollection/flights", '{"catalogRef":{"name":"x"}}', "can't change once the collection"),
    ):
        with pytest.raises(KubectlError) as refused:
            world.patch(what, f'{{"spec":{patch}}}')
        assert message in str(refused.value)
    world.patch("catalog/demo", '{"spec":{"deployGeneration":3}}')
    world.wait_for("catalog/demo", ".status.deployGeneration", 3)
    world.wait_for("catalog/demo", ".status.epoch", 2)
    assert world.kubectl("get", "coll", "--field-selector=spec.catalogRef.name=x", "-o", "name") == ""
    there = world.kubectl("get", "coll", "--field-selector=spec.catalogRef.name=demo", "-o", "name")
    assert there.strip() == "storagecollection.holdfast.dev/flights"


def test_a_lost_status_lets_nobody_change_what_is_immutable(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    """A restored backup of a resource may have no status. No operator has looked yet."""
    world.apply(make_catalog(stash={"url": "sqlite:///stash.sqlite"}), make_collection())
    for what, patch, message in (
        ("catalog/demo", '{"storage":{"url":"file:///elsewhere"}}', "spec.storage is immutable once"),
        ("storagecollection/flights", '{"name":"other"}', "can't change once the collection exists"),
        ("storagecollection/flights", '{"catalogRef":{"name":"x"}}', "can't change once the collection"),
        ("catalog/demo", '{"stash":null}', "spec.stash can't be removed while it is linked"),
        (
            "catalog/demo",
            '{"restoreFrom":{"dump":{"url":"file:///dump"}}}',
            "spec.restoreFrom can't change in an",
        ),
    ):
        with pytest.raises(KubectlError) as refused:
            world.patch(what, f'{{"spec":{patch}}}')
        assert message in str(refused.value)


UNKNOWN = {
    "gopher": ("gopher://host/x", "file:///"),
    "bucket": ("s3://Not_A_Bucket/x", "s3://bucket/prefix"),
    "memory": ("memory://x", "file:///"),
    "relative": ("file://relative/x", "file:///"),
}


def test_storage_that_is_unknown_is_stalled_until_corrected(
    world: Any, make_catalog: Make, tmp_path: Path
) -> None:
    operator = world.start()
    wrong = {name: make_catalog(name, storage={"url": url}) for name, (url, _) in UNKNOWN.items()}
    world.apply(*wrong.values())
    for name, (_, advice) in UNKNOWN.items():
        assert advice in world.wait_stalled(f"catalog/{name}", "UnsupportedStorage")
    assert not (tmp_path / "volume").exists()
    for name, there in wrong.items():
        there["spec"]["storage"]["url"] = (tmp_path / name).as_uri()
    world.apply(*wrong.values())
    for name in wrong:
        world.wait_ready(f"catalog/{name}")
        assert world.condition(f"catalog/{name}", "Stalled")["status"] == "False"
    assert operator.child.poll() is None


def test_a_folder_that_can_not_be_written_is_tried_again_until_it_can(
    world: Any, make_catalog: Make, tmp_path: Path
) -> None:
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("a file where a folder should be")
    world.start()
    world.apply(make_catalog(storage={"url": (obstacle / "store").as_uri()}))
    message = world.wait_stalled("catalog/demo", "StoreUnreachable")
    assert str(obstacle) in message
    assert obstacle.read_text() == "a file where a folder should be"
    obstacle.unlink()
    world.wait_ready("catalog/demo")


@pytest.mark.long
def test_a_missing_or_large_secret_is_named_and_found_when_it_comes(world: Any, make_catalog: Make) -> None:
    operator = world.start()
    there = make_catalog(storage={"credentialsSecretRef": {"name": "keys"}})
    world.apply(there)
    message = world.wait_stalled("catalog/demo", "SecretNotFound")
    assert "'keys'" in message
    assert not (world.folder / "volume").exists()
    large = "planted-secret-7f3a" * 1000
    world.kubectl("create", "secret", "generic", "keys", f"--from-literal=PASSWORD={large}")
    message = world.wait_stalled("catalog/demo", "InvalidSpec")
    assert message.startswith(
        "key 'PASSWORD' of Secret 'keys' has 19000 bytes, of 19000 in total: credentials"
    )
    world.kubectl("delete", "secret", "keys")
    world.kubectl("create", "secret", "generic", "keys", "--from-literal=PASSWORD=planted-secret-7f3a")
    world.wait_ready("catalog/demo")
    assert "planted-secret-7f3a" not in operator.log.read_text()
    assert "planted-secret-7f3a" not in world.kubectl("get", "catalogs,events", "-o", "yaml")


def test_a_collection_of_a_missing_catalog_is_ready_when_that_comes(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    # No look by itself within the test: it must be the Catalog's coming that wakes the collection.
    world.start("--steady-interval=600")
    world.apply(make_collection())
    message = world.wait_stalled("storagecollection/flights", "CatalogNotFound")
    assert "'demo'" in message
    world.apply(make_catalog())
    world.wait_ready("catalog/demo", "storagecollection/flights")


@pytest.mark.long
def test_a_reference_can_be_corrected(world: Any, make_catalog: Make, make_collection: Make) -> None:
    world.start()
    world.apply(make_catalog(), make_collection(catalogRef={"name": "dmeo"}))
    world.wait_stalled("storagecollection/flights", "CatalogNotFound")
    world.apply(make_collection())
    world.wait_ready("storagecollection/flights")


@pytest.mark.long
def test_a_schema_that_is_missing_and_columns_that_make_no_schema(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(
        there,
        make_collection("lost", database="nowhere"),
        make_collection("odd", columns=[{"name": "id", "type": "decimal128(4,9)"}]),
    )
    assert "'nowhere'" in world.wait_stalled("storagecollection/lost", "NoSuchSchema")
    assert "decimal128" in world.wait_stalled("storagecollection/odd", "InvalidSchema")
    assert world.controller(world.volume(there["spec"]["organizationId"])).list_collections() == ()
    world.apply(make_collection("lost"), make_collection("odd"))
    world.wait_ready("storagecollection/lost", "storagecollection/odd")


@pytest.mark.long
def test_of_two_namespaces_that_ask_for_the_same_the_older_catalog_has_it(
    world: Any, neighbour: Any, make_catalog: Make, tmp_path: Path
) -> None:
    world.start(f"--namespace={neighbour.namespace}")
    there = make_catalog(storage={"url": (tmp_path / "shared").as_uri()})
    thief = make_catalog("thief", storage={"url": world.volume(there["spec"]["organizationId"])})
    neighbour.apply(thief)
    told = neighbour.wait_stalled("catalog/thief", "LocationNotAllowed")
    assert f"only what is below {tmp_path}/volume/{neighbour.namespace};" in told
    world.apply(there)
    world.wait_ready("catalog/demo")
    neighbour.apply(there)
    assert f"{world.namespace}/demo" in neighbour.wait_stalled("catalog/demo", "DuplicateCatalog")
    assert world.status("catalog/demo")["epoch"] == 1
    world.delete("catalog/demo")
    neighbour.wait_ready("catalog/demo")
    assert neighbour.status("catalog/demo")["epoch"] == 2


@pytest.mark.long
def test_a_catalog_under_another_name_of_its_store_is_neither_taken_nor_destroyed(
    world: Any, neighbour: Any, make_catalog: Make, tmp_path: Path
) -> None:
    operator = world.start(f"--namespace={neighbour.namespace}")
    there = make_catalog(storage={"url": (tmp_path / "shared").as_uri()})
    world.apply(there)
    world.wait_ready("catalog/demo")
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    organization, link = there["spec"]["organizationId"], {"url": (tmp_path / "link").as_uri()}
    alias = make_catalog("alias", organizationId=organization, storage=link, deletionPolicy="Delete")
    neighbour.apply(alias)
    told = neighbour.wait_stalled("catalog/alias", "DuplicateCatalog")
    assert f"Catalog {world.namespace}/demo has this organization in the same store" in told
    # One that nobody has open is still somebody's, also for an operator that begins with the other.
    operator.child.stop()
    world.patch("catalog/demo", '{"spec": {"suspend": true}}')
    operator = world.start(f"--namespace={neighbour.namespace}")
    operator.wait_for_looks(3)
    neighbour.delete("catalog/alias")
    world.patch("catalog/demo", '{"spec": {"suspend": false}}')
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["epoch"] == 2
    # It is there for whoever comes when that one is gone.
    world.delete("catalog/demo")
    neighbour.apply(alias)
    neighbour.wait_ready("catalog/alias")
    assert neighbour.status("catalog/alias")["epoch"] == 3


@pytest.mark.long
def test_what_a_database_process_writes_is_not_taken_from_it_under_another_name(
    world: Any, neighbour: Any, make_catalog: Make, tmp_path: Path
) -> None:
    store = {"url": (tmp_path / "shared").as_uri()}
    there = make_catalog(access="Observed", storage=store)
    organization = there["spec"]["organizationId"]
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    alias = make_catalog(
        "alias",
        organizationId=organization,
        storage={"url": (tmp_path / "link").as_uri()},
        deletionPolicy="Delete",
    )
    with (
        world.store(store["url"]) as client,
        persist_catalog(client, organization).open(
            OpenMode.WRITABLE, holder="database 7", purpose="serving"
        ) as database,
    ):
        world.apply(there)
        neighbour.apply(alias)
        # The operator begins with both, and may come to the other one first.
        world.start(f"--namespace={neighbour.namespace}")
        told = neighbour.wait_stalled("catalog/alias", "DuplicateCatalog")
        assert f"Catalog {world.namespace}/demo observes this organization in the same store" in told
        world.wait_ready("catalog/demo")
        neighbour.delete("catalog/alias")
        database.confirm_leadership()
        assert world.status("catalog/demo")["epoch"] == 1
    # Whose it is may write it: by its own resource, or by another when that one is gone.
    world.patch("catalog/demo", '{"spec": {"access": "Managed"}}')
    world.wait_for("catalog/demo", ".status.epoch", 2)
    world.delete("catalog/demo")
    neighbour.apply(alias)
    neighbour.wait_ready("catalog/alias")
    assert neighbour.status("catalog/alias")["epoch"] == 3


@pytest.mark.long
def test_a_catalog_that_is_refused_for_its_place_shuts_nobody_out(
    world: Any, neighbour: Any, make_catalog: Make, tmp_path: Path
) -> None:
    operator = world.start(
        f"--namespace={neighbour.namespace}",
        f"--allow-location=file://{tmp_path}/stores/{{namespace}}",
        "--allow-location=postgresql://db.example/all",
    )
    mine = make_catalog(
        storage={"url": (tmp_path / "stores" / world.namespace / "a").as_uri()}, deletionPolicy="Delete"
    )
    neighbour.apply(mine)
    neighbour.wait_stalled("catalog/demo", "LocationNotAllowed")
    world.apply(mine)
    world.wait_ready("catalog/demo")
    world.delete("catalog/demo")
    # It was destroyed as asked.
    world.apply(mine)
    world.wait_stalled("catalog/demo", "DataDeleted")
    assert "LocationNotAllowed" in neighbour.condition("catalog/demo", "Stalled")["reason"]
    (line,) = [each for each in operator.log.read_text().splitlines() if "are not isolated" in each]
    assert "all share postgresql://db.example/all, while" in line


def test_of_two_that_ask_for_the_same_the_older_one_has_it(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    organization = there["spec"]["organizationId"]
    # The same place, written otherwise.
    place = {"url": world.volume(organization) + "/./"}
    world.apply(
        make_catalog("twin", organizationId=organization, storage=place),
        make_collection("twin", name="flights"),
    )
    assert f"{world.namespace}/demo" in world.wait_stalled("catalog/twin", "DuplicateCatalog")
    assert "flights" in world.wait_stalled("storagecollection/twin", "DuplicateCollection")
    assert world.status("catalog/demo")["epoch"] == 1
    world.delete("storagecollection/flights")
    world.wait_ready("storagecollection/twin")
    world.delete("storagecollection/twin", "catalog/demo")
    world.wait_ready("catalog/twin")
    assert world.status("catalog/twin")["epoch"] == 2


@pytest.mark.long
def test_a_deploy_generation_that_is_too_low(world: Any, make_catalog: Make) -> None:
    there = make_catalog(deployGeneration=4)
    organization = there["spec"]["organizationId"]
    with world.store(world.volume(organization)) as client:
        newer = persist_catalog(client, organization).open(
            OpenMode.WRITABLE, deploy_generation=7, holder="another cluster", purpose="test"
        )
        upper = newer.upper
        operator = world.start()
        world.apply(there)
        message = world.wait_stalled("catalog/demo", "DeployGenerationTooLow")
        assert "another cluster" in message
        newer.confirm_leadership()
        assert newer.upper == upper
    assert operator.child.poll() is None
    world.patch("catalog/demo", '{"spec":{"deployGeneration":7}}')
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["epoch"] == 2


@pytest.mark.long
def test_a_collection_that_exists_otherwise_is_left_alone(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start()
    there = make_catalog()
    world.apply(there, make_collection())
    world.wait_ready("storagecollection/flights")
    world.delete("storagecollection/flights")
    world.wait_for("catalog/demo", ".status.objectCounts.items", 1)
    upper = world.status("catalog/demo")["upper"]
    world.apply(make_collection(columns=[{"name": "id", "type": "string"}]))
    message = world.wait_stalled("storagecollection/flights", "SchemaMismatch")
    assert "id int64" in message
    assert world.status("catalog/demo")["upper"] == upper
    (kept,) = world.controller(world.volume(there["spec"]["organizationId"])).list_collections()
    assert [str(column) for column in kept.schema.key] == ["id int64"]
    world.apply(make_collection())
    world.wait_ready("storagecollection/flights")


def test_suspended_it_lets_go_and_comes_back(world: Any, make_catalog: Make) -> None:
    world.start()
    there = make_catalog()
    world.apply(there)
    world.wait_ready("catalog/demo")
    there["spec"]["suspend"] = True
    world.apply(there)
    world.wait_for("catalog/demo", '.status.conditions[?(@.type=="Ready")].reason', "Suspended")
    there["spec"]["suspend"] = False
    world.apply(there)
    world.wait_for("catalog/demo", ".status.epoch", 2)
    world.wait_ready("catalog/demo")


@pytest.mark.long
def test_a_schedule_without_times_is_told_and_mends(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    world.start("--storage-shared")
    schedule = {"schedule": "0 0 31 2 *", "timeZone": "Europe/Berlin", "destination": "file:///x"}
    made = make_collection(snapshotSchedule=schedule)
    world.apply(make_catalog(), made)
    it, type_ = "storagecollection/flights", "ScheduledSnapshotCompleted"
    path = f'.status.conditions[?(@.type=="{type_}")].reason'
    for change, told in (
        ({}, "spec.snapshotSchedule: schedule '0 0 31 2 *' is invalid: bad day-of-month; correct it"),
        ({"schedule": "0 0 * * *", "timeZone": "Europe/Bonn"}, "timeZone 'Europe/Bonn' is not in the IANA"),
    ):
        schedule |= change
        world.apply(made)
        world.wait_for(it, ".status.observedGeneration", world.get(it)["metadata"]["generation"])
        world.wait_for(it, path, "InvalidSchedule")
        assert told in world.condition(it, type_)["message"]
    assert world.condition(it, "Ready")["status"] == "True"
    for line in ("30 2 * * *", "*/5 0-6,20-23 1,15 JAN-mar mon-Fri", "5/10 * * * 7", "@weekly"):
        schedule |= {"schedule": line, "timeZone": "Europe/Berlin"}
        world.apply(made)
    world.wait_for(it, path, "SnapshotScheduled")
