"""What users may do to our kinds with the roles of Kubernetes that administrators usually give out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast_operator.api.generate import RESOURCES
from testbed.errors import KubectlError

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
KINDS = {f"{model.definition.kind.plural}.holdfast.dev" for model in RESOURCES}
READ = {"get", "list", "watch"}
EDIT = READ | {"create", "patch", "update", "delete"}
VERBS = {"view": READ, "edit": EDIT, "admin": EDIT | {"deletecollection"}}


def rights(world: Any, user: str) -> dict[str, set[str]]:
    """The verbs of a user on each of our resources."""
    table = world.kubectl("auth", "can-i", "--list", f"--as={user}")
    found: dict[str, set[str]] = {}
    for line in table.splitlines():
        if (resource := line.split(" ")[0]).partition("/")[0] in KINDS:
            found.setdefault(resource, set()).update(line.rpartition("[")[2].strip("]").split())
    return found


def has(world: Any, user: str, wanted: dict[str, set[str]]) -> bool:
    return rights(world, user) == wanted


def test_view_reads_and_edit_changes(world: Any, make_catalog: Make) -> None:
    viewer, editor, _ = users = [f"{role}-of-{world.namespace}" for role in VERBS]
    for role, user in zip(VERBS, users, strict=True):
        world.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    for user, verbs in zip(users, VERBS.values(), strict=True):
        wanted = dict.fromkeys(KINDS, verbs)
        # A controller adds our rules to the role some time after they were applied.
        world.settle(partial(has, world, user, wanted), partial(str, f"{user} has not {wanted}"))
    world.apply(make_catalog(), flags=(f"--as={editor}",))
    assert "demo" in world.kubectl("get", "catalogs", f"--as={viewer}")
    suspend = ("patch", "catalog", "demo", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    with pytest.raises(KubectlError, match="forbidden"):
        world.kubectl(*suspend, f"--as={viewer}")
    world.kubectl(*suspend, f"--as={editor}")
    assert world.get("catalog/demo")["spec"]["suspend"] is True
    forged = ("patch", "catalog", "demo", "--subresource=status", "--type=merge", "-p", '{"status":{}}')
    with pytest.raises(KubectlError, match="forbidden"):
        world.kubectl(*forged, f"--as={editor}")
    world.kubectl("delete", "catalog", "demo", f"--as={editor}")
