"""Runs the driver of one SparkApplication as a local `spark-submit`: real Spark, no pods.

The driver gets the arguments, Spark settings and memory of the object. Its environment inherits only the
search path. What only a cluster has is left out: images, volumes other than Secrets, resource requests,
separate executors.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

from testbed import spark
from testbed.process import Child

_ENTRY: Final = Path(__file__).with_name("_driver_entry.py")
_JOB_FILE: Final = re.compile(r"/opt/holdfast/jobs/([a-z_][a-z0-9_]*)\.py")
"""Where the image has the jobs; here they are modules of the installed library."""
_JOB_PACKAGE: Final = "holdfast.spark.jobs"

Lookup = Callable[[str, str], Mapping[str, str] | None]


class WaitingForConfigError(Exception):
    """The environment names a Secret, ConfigMap or key that isn't there; a kubelet waits for it for ever."""


def refusal(spec: Mapping[str, Any]) -> str | None:
    """Why the stand-in can't run this application truthfully; None if it can."""
    if spec.get("type") != "Python":
        return f"only type Python is known here, not {spec.get('type')!r}"
    if spec.get("mode", "cluster") != "cluster":
        return f"only mode cluster is known here, not {spec.get('mode')!r}"
    policy = spec.get("restartPolicy", {}).get("type", "Never")
    if policy != "Never":
        return f"only restartPolicy Never is known here, not {policy!r}"
    if not str(spec.get("mainApplicationFile", "")).startswith("local:///"):
        return (
            f"only a mainApplicationFile local:///... is known here, not {spec.get('mainApplicationFile')!r}"
        )
    return None


def target(main_application_file: str) -> str:
    """What the driver runs: `module:<name>` for a job of the library, else `file:<path>`."""
    path = main_application_file.removeprefix("local://")
    job = _JOB_FILE.fullmatch(path)
    return f"module:{_JOB_PACKAGE}.{job[1]}" if job else f"file:{path}"


def driver_environment(driver: Mapping[str, Any], lookup: Lookup) -> dict[str, str]:
    """The variables of `driver.envFrom` and `driver.env`, the latter winning, as for a container.

    `lookup(kind, name)` gives the decoded data of a Secret or ConfigMap, or None.
    Raises `WaitingForConfigError`.
    """
    found: dict[str, str] = {}
    for source in driver.get("envFrom", ()):
        for field, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if field in source:
                data = lookup(kind, source[field]["name"])
                if data is None and not source[field].get("optional"):
                    raise WaitingForConfigError(f"{kind} {source[field]['name']} not found")
                found |= {source.get("prefix", "") + key: value for key, value in (data or {}).items()}
    for entry in driver.get("env", ()):
        if "valueFrom" not in entry:
            found[entry["name"]] = entry.get("value", "")
            continue
        value = _value_from(entry["valueFrom"], lookup)
        if value is not None:
            found[entry["name"]] = value
    return found


def mount_secrets(driver: Mapping[str, Any], lookup: Lookup, root: Path) -> None:
    """Write the keys of the Secrets that a driver mounts, below `root` instead of `/`.

    Raises `WaitingForConfigError`.
    """
    volumes = {each["name"]: each["secret"] for each in driver.get("volumes", ()) if "secret" in each}
    for mount in driver.get("volumeMounts", ()):
        if (secret := volumes.get(mount["name"])) is None:
            continue
        data = lookup("Secret", secret["secretName"]) or {}
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for item in secret["items"]:
            if item["key"] in data:
                (folder / item["path"]).write_text(data[item["key"]])
            elif not secret.get("optional"):
                raise WaitingForConfigError(f"Secret {secret['secretName']} has no key {item['key']}")


def within(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The variables, where those that name a folder below `root` by its path in the pod name the real one."""
    paths = {name: root / value.lstrip("/") for name, value in env.items() if value.startswith("/")}
    return {**env, **{name: str(path) for name, path in paths.items() if path.is_dir()}}


def _value_from(source: Mapping[str, Any], lookup: Lookup) -> str | None:
    for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if field in source:
            reference = source[field]
            value = (lookup(kind, reference["name"]) or {}).get(reference["key"])
            if value is None and not reference.get("optional"):
                raise WaitingForConfigError(f"{kind} {reference['name']} has no key {reference['key']}")
            return value
    raise WaitingForConfigError(f"the stand-in knows no value from {', '.join(source) or 'nothing'}")


def command(name: str, spec: Mapping[str, Any], *, master: str, gate: Path) -> list[str | Path]:
    """The `spark-submit` command of an application; its settings yield to those that keep it local."""
    driver = spec.get("driver", {})
    settings = {
        **spec.get("sparkConf", {}),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    options: list[str] = ["--master", master, "--name", name]
    if "memory" in driver:
        options += ["--driver-memory", driver["memory"]]
    if "javaOptions" in driver:
        options += ["--driver-java-options", driver["javaOptions"]]
    for key, value in sorted(settings.items()):
        # A setting that names a master would win over the option.
        if key != "spark.master":
            options += ["--conf", f"{key}={value}"]
    return [
        spark.home() / "bin" / "spark-submit",
        *options,
        _ENTRY,
        gate,
        target(spec["mainApplicationFile"]),
        *(str(each) for each in spec.get("arguments", ())),
    ]


@dataclass(frozen=True, slots=True)
class Gate:
    """Two files: a driver makes one when it is ready, and begins when the other exists."""

    stem: Path

    @property
    def started(self) -> bool:
        return self.stem.with_name(self.stem.name + ".started").exists()

    def open(self) -> None:
        self.stem.with_name(self.stem.name + ".go").touch()


class Driver:
    """One driver process; `start` it from a thread that waits for its end, since it ends with that thread."""

    def __init__(self, child: Child, gate: Gate) -> None:
        """Use `start`."""
        self._child = child
        self._gate = gate

    @classmethod
    def start(
        cls, name: str, spec: Mapping[str, Any], env: Mapping[str, str], *, master: str, folder: Path
    ) -> "Driver":
        """Submit the application with `env` as its environment; log and working folder are in `folder`."""
        work = folder / "work"
        work.mkdir(parents=True)
        gate = Gate(folder / "driver")
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(work), "LANG": "C.UTF-8"}
        child = Child(
            f"driver of {name}",
            command(name, spec, master=master, gate=gate.stem),
            log=folder / "driver.log",
            env={**base, **env, **spark.environment()},
            cwd=work,
            death_signal=SIGTERM,
            grace=5.0,
        )
        return cls(child, gate)

    @property
    def started(self) -> bool:
        """Whether the driver's Python runs, that is, whether the submission went well."""
        return self._gate.started

    def begin(self) -> None:
        """Let the application begin."""
        self._gate.open()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._child.poll()

    def last_words(self) -> str:
        """The end of its output."""
        return self._child.tail()

    def stop(self) -> None:
        """End it, as the deletion of its pod would."""
        self._child.stop()

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self._child.kill()
