"""Charts are pushed to a registry, and come back as they were."""

from pathlib import Path

import pytest

from testbed import helm, registry

pytestmark = pytest.mark.helm


def test_charts_come_back_from_a_registry_as_they_were_pushed(tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    with registry.serve() as address:
        for chart in ("holdfast-crds", "holdfast-operator"):
            helm.run("package", helm.CHARTS / chart, "--destination", tmp_path)
            (package,) = tmp_path.glob(f"{chart}-*.tgz")
            version = package.stem.removeprefix(f"{chart}-")
            place = f"oci://{address}/charts"
            helm.run("push", package, place, "--plain-http")
            # What is signed: the digest, not the tag.
            digest = registry.crane("digest", f"{address}/charts/{chart}:{version}").strip()
            assert registry.crane("digest", f"{address}/charts/{chart}@{digest}").strip() == digest
            helm.run(
                *("pull", f"{place}/{chart}", "--version", version, "--plain-http"),
                *("--destination", tmp_path / "back"),
            )
            assert (tmp_path / "back" / package.name).read_bytes() == package.read_bytes()
            rendered = ("--namespace", "holdfast", "--kube-version", helm.KUBE_VERSION)
            assert helm.run(
                "template", "x", f"{place}/{chart}", "--version", version, "--plain-http", *rendered
            ) == helm.run("template", "x", helm.CHARTS / chart, *rendered)
