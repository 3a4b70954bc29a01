"""The parts of the test bed that need no tier: folders, versions, tiers, certificates."""

import contextlib
import json
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from testbed import build, go, java, kafka, pki, spark
from testbed.cache import cache_folder
from testbed.errors import Unavailable
from testbed.require import Tier, missing, required

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"HOLDFAST_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c/testbed"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/holdfast/testbed"),
        ({"HOLDFAST_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/holdfast/testbed"),
    ],
)
def test_the_cache_folder_follows_the_environment(env: dict[str, str], folder: str) -> None:
    assert cache_folder(env) == Path(folder)


def test_the_versions_built_are_those_of_the_module_file() -> None:
    text = (build.MODULE / "go.mod").read_text()
    versions = dict(
        re.findall(r"^\t(go\.etcd\.io/etcd/server/v3|k8s\.io/kubernetes) (v\S+)", text, re.MULTILINE)
    )
    assert versions == {
        "go.etcd.io/etcd/server/v3": build.ETCD_VERSION,
        "k8s.io/kubernetes": build.KUBERNETES_VERSION,
    }
    text = (build.MINIO_MODULE / "go.mod").read_text()
    assert re.findall(r"^\tgithub\.com/minio/minio (v\S+)", text, re.MULTILINE) == [build.MINIO_VERSION]


def test_every_staging_module_is_replaced_by_the_same_release() -> None:
    text = (build.MODULE / "go.mod").read_text()
    replaced = dict(re.findall(r"^\t(k8s\.io/\S+) => \1 (v\S+)$", text, re.MULTILINE))
    assert len(replaced) >= 31
    assert set(replaced.values()) == {build.KUBERNETES_VERSION.replace("v1", "v0")}


def test_what_is_in_the_cache_folder_is_not_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.ETCD in build.unbuilt()
    for tool in build.needed():
        tool.path.parent.mkdir(parents=True)
        tool.path.touch()
    assert build.unbuilt() == ()
    build.ensure()


def test_a_build_that_fails_leaves_no_binary_and_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bin" / "go"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\n[ $1 = version ] && echo go version go9.9 || { echo no such module; exit 1; }\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{broken.parent}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match="no such module"):
        build.ensure((build.ETCD,))
    assert not build.ETCD.path.parent.exists()
    assert not list(cache_folder().glob(".etcd-*"))


def test_an_old_go_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert go.find() is None


@pytest.mark.parametrize(
    ("told", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ("command not found", None),
    ],
)
def test_the_version_of_java_is_read(told: str, major: int | None) -> None:
    assert java.parse_version(told) == major


def test_spark_without_java_says_what_to_install(tmp_path: Path) -> None:
    lack = spark.missing({"PATH": str(tmp_path)})
    assert lack is not None
    assert "install Java 17" in lack


def test_spark_with_an_old_java_says_what_to_install(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    lack = spark.missing({"JAVA_HOME": str(tmp_path)})
    assert lack is not None
    assert lack.startswith("Java is 11 ")


@pytest.mark.parametrize(
    ("named", "tiers"),
    [
        ("", set()),
        ("kube", {Tier.KUBE}),
        (" kube, spark,", {Tier.KUBE, Tier.SPARK}),
        ("browser", {Tier.BROWSER}),
        ("postgres", {Tier.POSTGRES}),
        ("s3", {Tier.S3}),
    ],
)
def test_required_tiers_are_read(named: str, tiers: set[Tier]) -> None:
    assert required({"HOLDFAST_REQUIRE": named}) == tiers


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ValueError, match="no tier 'cube', only kube, postgres, spark, s3"):
        required({"HOLDFAST_REQUIRE": "cube"})


def test_a_named_cluster_needs_no_binaries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    (tmp_path / "kubeconfig").touch()
    assert missing(Tier.KUBE, {"KUBECONFIG": str(tmp_path / "kubeconfig")}) is None
    assert "not built" in (missing(Tier.KUBE, {}) or "")


@pytest.mark.parametrize(
    ("require", "outcome"),
    [("", "1 passed, 1 skipped"), ("spark", "1 passed, 1 skipped"), ("kube", "1 passed, 1 error")],
)
def test_a_missing_tier_skips_unless_it_is_required(tmp_path: Path, require: str, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.kube\n"
        "def test_kube(control_plane): assert control_plane\n"
        "def test_plain(): pass\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rsf", "-p", "testbed.pytest_plugin"),
            *("--strict-markers", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(TESTS),
            "KUBECONFIG": str(tmp_path / "none"),
            "HOLDFAST_REQUIRE": require,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout, done.stdout + done.stderr
    assert f"KUBECONFIG={tmp_path / 'none'} is not a readable file" in done.stdout
    assert done.returncode == (1 if require == "kube" else 0)


def test_a_typo_in_the_required_tiers_stops_the_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "testbed.pytest_plugin", "--rootdir", tmp_path, tmp_path],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS), "HOLDFAST_REQUIRE": "kubes"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no tier 'kubes'" in done.stderr


def test_the_server_certificate_is_good_for_its_names_and_its_authority(tmp_path: Path) -> None:
    keys = pki.create(tmp_path, names=("localhost",), addresses=("127.0.0.1", "10.96.0.1"))
    assert handshake(keys, "127.0.0.1") is not None
    assert handshake(keys, "localhost") is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, "10.0.0.1")


def handshake(keys: pki.Pki, name: str) -> object:
    """What a client that calls the server by `name` gets as its certificate."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(keys.server_certificate, keys.server_key)
    server = serving.wrap_bio(incoming, outgoing, server_side=True)
    trusting = ssl.create_default_context(cafile=str(keys.ca))
    client = trusting.wrap_bio(outgoing, incoming, server_hostname=name)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert()


def test_private_files_are_for_their_owner_only(tmp_path: Path) -> None:
    keys = pki.create(tmp_path, names=("localhost",), addresses=())
    assert keys.server_key.stat().st_mode & 0o077 == 0
    assert keys.service_account_key.stat().st_mode & 0o077 == 0
    load_pem_public_key(keys.service_account_public_key.read_bytes())
    assert (
        x509.load_pem_x509_certificate(keys.ca.read_bytes())
        .extensions.get_extension_for_class(x509.BasicConstraints)
        .value.ca
    )


def test_the_doctor_has_a_line_for_each_tier(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "doctor"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(TESTS), "HOLDFAST_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"^- go: not here", done.stdout, re.MULTILINE)
    assert re.search(r"^- tier kube: etcd, .* not built yet", done.stdout, re.MULTILINE)
    assert re.search(r"^. tier postgres: ", done.stdout, re.MULTILINE)
    assert re.search(r"^- tier spark: Java is missing", done.stdout, re.MULTILINE)


def test_the_module_files_name_no_place_but_module_paths() -> None:
    for module in (build.MODULE, build.MINIO_MODULE):
        for name in ("go.mod", "go.sum"):
            assert "://" not in (module / name).read_text()
    hosts = re.findall(r"://([^/\s\"]+)", kafka.POM.read_text())
    assert hosts == ["maven.apache.org"], "the name of the format, and no place to get jars from"


def test_a_kubeconfig_holds_all_it_needs(tmp_path: Path) -> None:
    from testbed.kube import _kubeconfig

    (tmp_path / "ca").write_bytes(b"authority")
    path = _kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", tmp_path / "ca", "me", "secret")
    found = json.loads(path.read_text())
    assert found["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": "YXV0aG9yaXR5",
    }
    assert path.stat().st_mode & 0o077 == 0
