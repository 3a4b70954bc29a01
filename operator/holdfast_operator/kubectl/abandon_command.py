"""`kubectl holdfast abandon`: lets a resource go whose data can't be deleted. The data stays."""

import click

from holdfast.errors import BadInput
from holdfast_operator.api.names import ANNOTATION_ABANDON
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.options import cluster_options, output_option, tell


@click.command()
@click.argument("resource")
@cluster_options()
@output_option
def abandon(cluster: Cluster, resource: str, format_: str) -> None:
    """Delete a resource without its data: catalog/NAME, collection/NAME or migration/NAME.

    It is for a resource that is being deleted and whose store can't be written. The operator tries once more,
    then it lets the resource go. An Event names what stays.
    """
    kind, name = names.parse(resource)
    if kind is None:
        raise BadInput(
            f"{resource!r} has no kind",
            hint="write catalog/NAME, collection/NAME or migration/NAME, such as catalog/shop",
        )
    there = cluster.get(kind, name)
    if "deletionTimestamp" not in there["metadata"]:
        raise BadInput(
            f"{names.short(kind)}/{name} is not being deleted, so nothing is abandoned",
            hint=f"'kubectl delete {kind.plural} {name}' deletes it as its deletionPolicy says",
        )
    uid = there["metadata"]["uid"]
    change = {"metadata": {"uid": uid, "annotations": {ANNOTATION_ABANDON: uid}}}
    tell(cluster.patch(kind, name, change), format_, "is abandoned: its data stays where it is")
