"""What documentation pages need before they run, and which of their blocks cannot run, with the reason.

Invariants
- The page and the beginning of its first line identify a block. `test_pages` checks that the block exists.
"""

from collections.abc import Mapping
from typing import Final

_LONG: Final = "the tests and the demo themselves, minutes each; CI runs them"

_KIND: Final = "takes docker; here a cluster is there already"
_INSTALLED: Final = "it is installed in the environment of the tests"
_IMAGE: Final = (
    "takes docker and a registry; the tests of the tier node build the image and install the chart"
)
_NO_PODS: Final = "shows what pods print, and there are none where pages are run"
_FLUX: Final = "takes Flux; tests/unit/operator/api/test_gitops.py evaluates the expressions"

_RELEASE: Final = "it publishes a release; tests/unit/release checks the versions, CI runs make release-check"
_HYDRATE: Final = "a job of Spark, with the id of a record: tests/spark/test_spark_hydrate_job.py runs it"

_BROWSER: Final = "it serves until Ctrl-C; tests/unit/console/test_console_command.py runs it"
_FORWARDED: Final = "it takes a pod to forward to; tests/apiserver/test_console.py opens the pages"
_NO_SOURCE: Final = "its collection has no source; docs/how-to/ingest-with-the-operator.md runs the command"
_ERRORS: Final = "it takes a bucket; docs/how-to/ingest-files.md runs the command on files"

NOT_RUN: Final[Mapping[tuple[str, str], str]] = {
    (
        "docs/how-to/backup-and-restore.md",
        "holdfast persist backup s3:",
    ): "it takes a bucket; tests/unit/persist/admin/test_backup.py backs up files",
    (
        "README.md",
        "make demo",
    ): _LONG,
    (
        "docs/explanation/simulation.md",
        "make sim",
    ): _LONG,
    (
        "docs/how-to/run-the-tests.md",
        "make test",
    ): _LONG,
    (
        "docs/how-to/run-the-tests.md",
        "make soak",
    ): _LONG,
    ("README.md", "pip install"): _INSTALLED,
    ("docs/how-to/ingest-avro.md", "pip install"): _INSTALLED,
    ("docs/how-to/ingest-files.md", "pip install"): _INSTALLED,
    ("docs/how-to/look-in-a-browser.md", "pip install"): _INSTALLED,
    ("docs/how-to/look-in-a-browser.md", "holdfast console"): _BROWSER,
    ("docs/how-to/cookbook.md", "pip install"): _INSTALLED,
    ("docs/tutorial/a-first-source.md", "pip install"): _INSTALLED,
    ("docs/tutorial/a-first-table.md", "pip install"): _INSTALLED,
    ("docs/how-to/ingest-kafka.md", "pip install"): _INSTALLED,
    ("docs/how-to/ingest-postgres.md", "pip install"): _INSTALLED,
    ("docs/how-to/release.md", "make test"): _LONG,
    ("docs/how-to/release.md", "git commit"): _RELEASE,
    ("docs/how-to/release.md", "make pin-base"): _RELEASE,
    ("docs/how-to/release.md", "gh release download"): _RELEASE,
    ("docs/how-to/release.md", "cosign verify-blob"): _RELEASE,
    ("docs/tutorial/on-kubernetes.md", "kind "): _KIND,
    ("docs/tutorial/on-kubernetes.md", "pip install"): _INSTALLED,
    ("docs/how-to/alerts.md", "kubectl logs"): _NO_PODS,
    ("docs/how-to/alerts.md", "kubectl describe sparkapplications"): _NO_PODS,
    ("docs/how-to/alerts.md", "kubectl holdfast source"): _NO_SOURCE,
    ("docs/how-to/alerts.md", "holdfast collection errors"): _ERRORS,
    ("docs/how-to/install-on-s3-and-postgres.md", "docker build"): _IMAGE,
    ("docs/how-to/open-the-console-on-a-cluster.md", "kubectl port-forward"): _FORWARDED,
    ("docs/how-to/use-gitops.md", "kubectl apply -f shop-kustomization.yaml"): _FLUX,
    (
        "docs/how-to/rebuild-a-collection.md",
        'job = controller.start_job("c1", "hydrate", "r2", spec={})',
    ): _HYDRATE,
    (
        "docs/how-to/rebuild-a-collection.md",
        "python -m holdfast.spark.jobs.hydrate",
    ): _HYDRATE,
}
"""By page and how the first line of a block begins: why it isn't run."""

RUN_ELSEWHERE: Final[Mapping[str, str]] = {
    "docs/how-to/compact-a-collection.md": "tests/spark/test_spark_page.py",
    "docs/how-to/ingest-avro.md": "tests/unit/ingest/test_schema_registry.py",
    "docs/how-to/ingest-kafka.md": "tests/unit/ingest/sources/test_kafka.py",
    "docs/how-to/ingest-postgres.md": "tests/unit/ingest/sources/test_postgres.py",
    "docs/how-to/ingest-with-spark.md": "tests/spark/test_spark_page.py",
    "docs/how-to/read-with-spark.md": "tests/spark/test_spark_page.py",
    "docs/how-to/take-a-snapshot.md": "tests/spark/test_spark_page.py",
    "docs/how-to/write-with-spark.md": "tests/spark/test_spark_page.py",
    "docs/tutorial/with-spark.md": "tests/spark/test_spark_page.py",
}
"""By page: the test that runs all of it, since it takes a tier."""

COSTLY: Final = frozenset({"docs/how-to/cookbook.md"})
"""Pages that take long. What is cheap of them has a test of its own, such as `test_cookbook.py`."""

_UNINSTALL: Final = "docs/how-to/uninstall.md"
LAST: Final = frozenset({_UNINSTALL})
"""Pages that take away what all pages share."""

_STASH: Final = "--stash sqlite:///data/stash.sqlite"
_BOTH: Final = (
    "--stash sqlite:///data/shop.db --persist file:///data/shop "
    "--organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"
)
_DEMO: Final = """
    kubectl apply -f crds/samples/catalog-demo.yaml
    kubectl wait catalog/demo --for=condition=Ready --timeout=2m
"""
_FLIGHTS: Final = f"""
    {_DEMO}
    kubectl apply -f crds/samples/storagecollection-flights.yaml
    kubectl wait coll/flights --for=condition=Ready --timeout=2m
"""
_STASH_SECRET: Final = (
    'kubectl create secret generic stash --from-literal=user=holdfast --from-literal=password="$PASSWORD"'
)
_DECIDE: Final = "docs/how-to/decide-which-store-counts.md"
BEFORE: Final[Mapping[tuple[str, str], str]] = {
    (
        "docs/how-to/backup-and-restore.md",
        "holdfast persist backup file:",
    ): """
        holdfast collection create orders --url file:///data/holdfast --key id:int64
    """,
    (
        "docs/how-to/inspect-and-repair-a-catalog.md",
        "$ holdfast catalog dump --stash sqlite:///data/stash.sqlite --target catalog.json",
    ): f"""
        holdfast catalog init {_STASH}
        holdfast catalog edit {_STASH} --yes system_configurations \\
          '{{"name": "max_tables"}}' '{{"value": "100"}}'
    """,
    (
        _DECIDE,
        '$ catalog="--persist file:///data/shop --organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"',
    ): f"""
        holdfast catalog init --stash sqlite:///data/shop.db
        cp data/shop.db data/older.db
        holdfast migrate run {_BOTH} --id to-persist --target persist
        mv data/older.db data/shop.db
    """,
    (_DECIDE, "$ holdfast migrate detach --stash-lost $catalog --accept-loss --yes"): "rm data/shop.db",
    ("docs/how-to/use-tables.md", "export HOLDFAST_URL=file:///tmp/shop"): """
        python - <<END
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"id": [7, 8], "item": ["fig", "date"], "count": [1, 2]}), "june.parquet")
END
        printf 'id,item,count\\n7,fig,4\\n' > new.csv
    """,
    (
        _UNINSTALL,
        "kubectl delete collectionsnapshots,catalogmigrations,storagecollections,catalogs --all",
    ): f"""
        helm upgrade --install holdfast-crds charts/holdfast-crds
        helm upgrade --install holdfast-operator charts/holdfast-operator --namespace holdfast --reset-values
        {_FLIGHTS}
    """,
    ("docs/how-to/alerts.md", "kubectl holdfast status"): f"""
        helm upgrade --install holdfast-operator charts/holdfast-operator --namespace holdfast --reset-values
        {_FLIGHTS}
    """,
    (
        "docs/how-to/alerts.md",
        "kubectl get catalogs,catalogmigrations,storagecollections,collectionsnapshots --all-namespaces \\",
    ): """
        sed 's/name: demo/name: twin/' crds/samples/catalog-demo.yaml | kubectl apply -f -
        kubectl wait catalog/twin --for=condition=Stalled --timeout=2m
    """,
    (
        "docs/how-to/install-on-s3-and-postgres.md",
        "helm upgrade --install holdfast-crds charts/holdfast-crds --take-ownership",
    ): """
        helm uninstall holdfast-crds
        kubectl annotate crd -l app.kubernetes.io/name=holdfast meta.helm.sh/release-name-
        ! helm install holdfast-crds charts/holdfast-crds 2>refused
        grep "invalid ownership metadata" refused
    """,
    # In a namespace that no operator looks at.
    (_UNINSTALL, "kubectl patch catalog/demo"): """
        kubectl apply -k crds
        kubectl wait --for=jsonpath={.status.conditions} crd -l app.kubernetes.io/name=holdfast --timeout=1m
        kubectl wait --for=condition=Established crd -l app.kubernetes.io/name=holdfast --timeout=1m
        kubectl create namespace left
        kubectl config set-context --current --namespace=left
        kubectl apply -f crds/samples/catalog-demo.yaml
        kubectl patch catalog/demo --type=merge -p '{"metadata": {"finalizers": ["holdfast.dev/operator"]}}'
        kubectl delete catalog/demo --wait=false
    """,
    ("docs/how-to/use-gitops.md", "kubectl patch configmap argocd-cm"): """
        kubectl create namespace argocd
        kubectl create configmap argocd-cm --namespace argocd
    """,
    ("docs/how-to/choose-what-runs-spark.md", "helm template spark"): "kubectl create namespace team",
    ("docs/how-to/snapshot-on-a-schedule.md", "kubectl patch coll flights"): _FLIGHTS,
    ("docs/how-to/back-up-a-collection.md", "kubectl apply -f before-the-import.yaml"): _FLIGHTS,
    ("docs/how-to/compact-with-the-operator.md", "kubectl holdfast compact flights"): _FLIGHTS,
    ("docs/how-to/ingest-with-the-operator.md", "kubectl create secret generic kafka"): _DEMO,
    ("docs/how-to/let-one-process-write.md", "kubectl annotate --overwrite catalog/demo"): _DEMO,
    ("docs/how-to/move-a-catalog.md", "kubectl apply -f to-persist.yaml"): f"""
        {_STASH_SECRET}
        kubectl apply -f crds/samples/more/catalog-linked.yaml
        kubectl wait catalog/shop --for=condition=Ready --timeout=2m
    """,
    ("docs/how-to/open-a-catalog-from-a-pod.md", 'holdfast catalog dump --persist "$HOLDFAST_URL"'): f"""
        {_DEMO}
        kubectl wait catalog/demo --timeout=2m \\
          --for=jsonpath='{{.status.connection.configMap}}'=demo-connection
        export HOLDFAST_URL=$(kubectl get configmap demo-connection -o jsonpath='{{.data.HOLDFAST_URL}}')
        export HOLDFAST_ORGANIZATION_ID=$(
          kubectl get configmap demo-connection -o jsonpath='{{.data.HOLDFAST_ORGANIZATION_ID}}')
        python report.py
    """,
    ("docs/how-to/re-shard-a-collection.md", "kubectl patch coll flights --type=merge"): _FLIGHTS,
    ("docs/how-to/restore-a-catalog.md", "kubectl apply -f crds/samples/more/catalog-restored.yaml"): """
        holdfast catalog init --stash sqlite:///data/demo.db
        holdfast catalog dump --stash sqlite:///data/demo.db --target dump.json
        python - <<END
from urllib.parse import parse_qs, urlsplit
import boto3
url = urlsplit("s3://backups/demo/dump.json?region=eu-central-1")
s3 = boto3.client("s3", endpoint_url=parse_qs(url.query)["endpoint"][0], region_name="us-east-1")
s3.upload_file("dump.json", url.netloc, url.path.strip("/"))
END
    """,
    ("docs/how-to/restore-a-catalog.md", "kubectl apply -f copy.yaml"): _DEMO,
    ("docs/how-to/restore-a-collection.md", "kubectl patch coll flights --type=merge"): f"""
        {_DEMO}
        kubectl apply -f - <<END
apiVersion: holdfast.dev/v1alpha1
kind: StorageCollection
metadata: {{name: flights}}
spec:
  catalogRef: {{name: demo}}
  key: [id]
  columns: [{{name: id, type: int64}}, {{name: name, type: string, nullable: true}}]
END
        kubectl wait coll/flights --for=condition=Ready --timeout=2m
        python - <<END
from pathlib import Path
from unit.collections.snapshots import snapshot
snapshot(Path("/var/lib/holdfast/default/snapshots/flights-2026-11-20"), [(1, "a"), (2, "b")])
END
    """,
    ("docs/how-to/restore-a-collection.md", "kubectl holdfast restore flights"): """
        python - <<END
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
import boto3
from unit.collections.snapshots import snapshot
url = urlsplit("s3://backups/flights/2026-11-21?region=eu-central-1")
s3 = boto3.client("s3", endpoint_url=parse_qs(url.query)["endpoint"][0], region_name="us-east-1")
snapshot(Path("made").absolute(), [(3, "c")])
for path in Path("made").iterdir():
    s3.upload_file(str(path), url.netloc, f"{url.path.strip('/')}/{path.name}")
END
    """,
    (
        "docs/how-to/upgrade-a-catalog.md",
        '$ catalog="--persist file:///data/demo --organization-id 3d0c7d4e-5b1f-4c8e-9a63-0f2d6a1b7c95"',
    ): """
        python - <<END
import uuid
from holdfast.catalog import OpenMode
from holdfast.catalog import persist_catalog
from holdfast.persist import PersistClient
from testbed.oldcatalogs import rows_of
with PersistClient.open("file:///data/demo") as client:
    catalog = persist_catalog(client, uuid.UUID("3d0c7d4e-5b1f-4c8e-9a63-0f2d6a1b7c95"))
    catalog.load(rows_of(18, items=3), holder="older", purpose="example")
    catalog.open(OpenMode.WRITABLE, holder="newer", purpose="example").close()
END
    """,
    (
        "docs/how-to/when-a-store-is-lost.md",
        'catalog="--persist file:///data/shop --organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"',
    ): f"""
        holdfast catalog init --stash sqlite:///data/shop.db
        holdfast migrate link {_BOTH} --truth stash --yes
    """,
    (
        "docs/how-to/when-a-store-is-lost.md",
        "holdfast migrate detach --stash-lost $catalog --yes",
    ): f"""
        holdfast migrate run {_BOTH} --id to-persist --target persist
        rm data/shop.db*
    """,
}
"""By page and how the first line of a block begins: commands that make what its reader has by then."""
