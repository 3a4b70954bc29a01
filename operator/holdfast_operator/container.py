"""The entry point of the image: `driver` and `executor` run Spark pods, anything else the operator's command.

Spark on Kubernetes starts its pods with the name of a role, and passes the rest in `SPARK_*` variables.

Invariants
- No shell is involved. A Spark role becomes its Java process by `execve`. The operator stays in this process.
- If a role lacks something, the process prints one line and exits with 2.
- A SIGTERM ends the process even before the operator handles signals, although pid 1 would ignore it.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

_LAUNCHER: Final = "org.apache.spark.launcher.Main"
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
_EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_EXECUTOR_OPTIONS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


class CannotRun(Exception):
    """A role lacks something. The message says what."""


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of Java, Spark and Python in this image."""

    java: Path
    spark_home: Path
    python: Path


def find(environ: Mapping[str, str]) -> Place:
    """Returns the paths in this image. Raises `CannotRun` if it has no Java or no Spark."""
    home = environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH"))
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or java is None or not Path(java).exists():
        lacks = "pyspark" if spec is None or spec.origin is None else "Java"
        raise CannotRun(
            f"this image has no {lacks}, so it can't run a Spark pod: "
            "set spec.spark.image of the Catalog to the image with Spark (the Dockerfile's last stage)"
        )
    return Place(Path(java), Path(spec.origin).parent, Path(sys.executable))


def spark_environment(environ: Mapping[str, str], place: Place) -> dict[str, str]:
    """Returns `environ` with variables that make Spark use this image's Python, unless they are set."""
    return {
        "PYTHONHASHSEED": "0",
        "PYSPARK_PYTHON": str(place.python),
        "PYSPARK_DRIVER_PYTHON": str(place.python),
        **environ,
        "SPARK_HOME": str(place.spark_home),
    }


def driver_arguments(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the arguments of `spark-submit` in the driver's pod, which itself runs the driver.

    Raises `CannotRun` if the pod's address isn't set.
    """
    address = environ.get("SPARK_DRIVER_BIND_ADDRESS")
    if not address:
        raise CannotRun("SPARK_DRIVER_BIND_ADDRESS is not set: only Spark can start pods of the role driver")
    return [
        *("--conf", f"spark.driver.bindAddress={address}"),
        *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
        *("--deploy-mode", "client"),
        *arguments,
    ]


def executor_command(environ: Mapping[str, str], place: Place) -> list[str]:
    """Returns the command of an executor. Raises `CannotRun` with the names of missing variables."""
    needed = [*_EXECUTOR_OPTIONS.values(), "SPARK_EXECUTOR_MEMORY"]
    unset = [name for name in needed if not environ.get(name)]
    if unset:
        raise CannotRun(f"{', '.join(unset)} not set: only Spark can start pods of the role executor")
    numbered = {int(match[1]): environ[name] for name in environ if (match := _JAVA_OPTION.fullmatch(name))}
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    classpath = [
        environ.get("SPARK_CONF_DIR"),
        environ.get("SPARK_EXTRA_CLASSPATH"),
        str(place.spark_home / "jars" / "*"),
        environ.get("SPARK_DIST_CLASSPATH"),
    ]
    options = [part for option, name in _EXECUTOR_OPTIONS.items() for part in (option, environ[name])]
    return [
        str(place.java),
        *(numbered[number] for number in sorted(numbered)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        *("-cp", ":".join(filter(None, classpath))),
        _EXECUTOR,
        *options,
    ]


def launched(told: bytes) -> list[str]:
    """Returns the command in the output of Spark's launcher: text, a NUL line, and arguments that end in NUL.

    Raises `CannotRun` with the text if there is no command.
    """
    lines, separator, command = told.partition(b"\0\n")
    arguments = [os.fsdecode(each) for each in command.split(b"\0")[:-1]]
    if not separator or not arguments:
        raise CannotRun(f"Spark's launcher printed no command: {lines.decode(errors='replace').strip()}")
    return arguments


def driver_command(arguments: Sequence[str], environ: Mapping[str, str], place: Place) -> list[str]:
    """Returns the command of a driver, from Spark's launcher, which computes the JVM's memory and options."""
    asked = [str(place.java), "-Xmx128m", "-cp", str(place.spark_home / "jars" / "*"), _LAUNCHER, _SUBMIT]
    done = subprocess.run(  # noqa: S603 - the arguments are those of the pod
        [*asked, *driver_arguments(arguments, environ)],
        stdout=subprocess.PIPE,
        check=False,
        env={**spark_environment(environ, place), **_scala(place)},
    )
    if done.returncode != 0:
        raise CannotRun(
            f"Spark's launcher exited with code {done.returncode}: "
            f"{done.stdout.decode(errors='replace').strip()}"
        )
    return launched(done.stdout)


def _scala(place: Place) -> dict[str, str]:
    """Returns the Scala version, from the names of the jars. The launcher would look for a source tree."""
    core = next((place.spark_home / "jars").glob("spark-core_*.jar"), None)
    return {"SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0]} if core else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the role that the first argument names. A Spark role doesn't return."""
    signal.signal(signal.SIGTERM, _end)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        match given:
            case ["driver", *rest]:
                place = find(os.environ)
                command = driver_command(rest, os.environ, place)
            case ["executor", *_]:
                place = find(os.environ)
                command = executor_command(os.environ, place)
            case _:
                # Imported only here, because a Spark pod doesn't need the operator.
                from holdfast_operator.__main__ import main as operate

                return operate(given)
    except CannotRun as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return _become(command, spark_environment(os.environ, place))


def _become(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    os.execvpe(command[0], command, environ)  # noqa: S606 - no shell, on purpose


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
