"""The health of a resource as Argo CD, Flux and kstatus report it.

Real interpreters evaluate the files that the project ships. Lua runs as in Argo CD: version 5.1, without the
libraries for strings, files and modules. Flux uses the first of `inProgress`, `failed` and `current` that is
true.
"""

from pathlib import Path
from typing import Any, Final

import yaml
from cel_expr_python import cel
from lupa import lua51

Json = dict[str, Any]

_CRDS: Final = Path(__file__).parents[2] / "crds"
_HEALTH: Final = "resource.customizations.health.holdfast.dev_"
_WITHOUT: Final = ("string", "io", "os", "require", "package", "dofile", "loadfile", "debug", "python")


def argo(body: Json) -> tuple[str, str]:
    """Health and message of Argo CD."""
    scripts = yaml.safe_load((_CRDS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
    for name in _WITHOUT:
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(body, recursive=True)
    health = lua.execute(scripts[f"{_HEALTH}{body['kind']}"])
    return str(health["status"]), str(health["message"])


def flux(body: Json) -> str:
    """Status of Flux."""
    document = yaml.safe_load((_CRDS / "flux" / "health-check-exprs.yaml").read_text())
    (rules,) = (
        each
        for each in document["healthCheckExprs"]
        if (each["apiVersion"], each["kind"]) == (body["apiVersion"], body["kind"])
    )
    env = cel.NewEnv(variables=dict.fromkeys(("metadata", "spec", "status"), cel.Type.DYN))
    data = {name: body.get(name, {}) for name in ("metadata", "spec", "status")}
    for name, told in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if env.compile(rules[name]).eval(data=data).plain_value() is True:
            return told
    return "Unknown"


def kstatus(body: Json) -> str:
    """What kstatus makes of the conditions, as tools see a resource without our files."""
    metadata, status = body["metadata"], body.get("status", {})
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    states = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if states.get("Reconciling") == "True":
        return "InProgress"
    if states.get("Stalled") == "True":
        return "Failed"
    return "Current" if states.get("Ready", "True") == "True" else "InProgress"
