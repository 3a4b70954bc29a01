"""Enforces the NetworkPolicies of a node's cluster. The plugin that connects the pods does not.

It stands in for a network plugin. It translates policies to rules, and the kernel drops the packets.

Invariants
- A pod is free in a direction if no policy selects it. Otherwise it may do what one of its policies allows,
  and respond to it.
- All rules change at once. They come before the rules of kube-proxy, but after its choice of a pod: the
  address of a Service stands for the pods, or the API server, behind it.
- Traffic of the node itself is free, so probes reach every pod.
"""

import ipaddress
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from testbed.node import NodeCluster
from testbed.sandbox import INSIDE

Json = Mapping[str, Any]

_CHAIN: Final = "HOLDFAST-POLICIES"
_HOOKS: Final = ("FORWARD", "INPUT")
_POLL_S: Final = 0.5
_ANY: Final = "0.0.0.0/0"


def rules(policies: Sequence[Json], pods: Sequence[Json], namespaces: Sequence[Json]) -> str:
    """What `iptables-restore --noflush` takes to put the policies in force."""
    labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in namespaces}
    live = [pod for pod in pods if "podIP" in pod["status"] and not pod["spec"].get("hostNetwork")]
    chains: dict[str, list[str]] = {
        _CHAIN: [f"-A {_CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    }
    for pod in live:
        address = pod["status"]["podIP"]
        for direction, key, flag in (("Ingress", "ingress", "-d"), ("Egress", "egress", "-s")):
            selecting = [policy["spec"] for policy in policies if _selects(policy, pod, direction)]
            if not selecting:
                continue
            chain = f"HF-{direction[0]}-{address}"
            chains[_CHAIN].append(f"-A {_CHAIN} {flag} {address} -j {chain}")
            allowed = {
                f"-A {chain} {match} -j RETURN"
                for spec in selecting
                for rule in spec.get(key, ())
                for match in _matches(rule, pod, direction, live, labels)
            }
            chains[chain] = [*sorted(allowed), f"-A {chain} -j DROP"]
    return "\n".join(
        [
            "*mangle",
            *(f":{chain} - [0:0]" for chain in chains),
            *(line for lines in chains.values() for line in lines),
            "COMMIT\n",
        ]
    )


def _selects(policy: Json, pod: Json, direction: str) -> bool:
    spec = policy["spec"]
    kinds = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return (
        direction in kinds
        and policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and _has(spec["podSelector"], pod["metadata"].get("labels", {}))
    )


def _has(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether labels fulfil a selector."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for each in selector.get("matchExpressions", ()):
        key, values = each["key"], each.get("values", ())
        match each["operator"]:
            case "In":
                fulfilled = labels.get(key) in values
            case "NotIn":
                fulfilled = labels.get(key) not in values
            case "Exists":
                fulfilled = key in labels
            case "DoesNotExist":
                fulfilled = key not in labels
            case other:
                raise ValueError(f"a selector has the operator {other!r}")
        if not fulfilled:
            return False
    return True


def _matches(
    rule: Json, pod: Json, direction: str, pods: Sequence[Json], namespaces: Mapping[str, Json]
) -> Iterator[str]:
    """What a packet of a new connection looks like that a rule allows."""
    inward = direction == "Ingress"
    flag = "-s" if inward else "-d"
    for network, peer in _peers(rule.get("from" if inward else "to"), pod, pods, namespaces):
        for port in rule.get("ports") or [{}]:
            if not isinstance(port.get("port"), str):
                yield f"{flag} {network}{_port(port, port.get('port'))}"
            elif inward:
                # The name of a port means what the pod that is asked calls so.
                yield from (f"{flag} {network}{_port(port, number)}" for number in _named(pod, port))
            else:
                block = ipaddress.ip_network(network)
                for asked in [peer] if peer else pods:
                    address = asked["status"]["podIP"]
                    if ipaddress.ip_address(address) in block:
                        yield from (f"-d {address}{_port(port, number)}" for number in _named(asked, port))


def _port(port: Json, number: int | None) -> str:
    protocol = port.get("protocol", "TCP").lower()
    if number is None:
        return f" -p {protocol}" if port else ""
    last = f":{port['endPort']}" if "endPort" in port else ""
    return f" -p {protocol} --dport {number}{last}"


def _named(pod: Json, port: Json) -> Iterator[int]:
    for container in pod["spec"]["containers"]:
        for each in container.get("ports", ()):
            if each.get("name") == port["port"] and each.get("protocol", "TCP") == port.get(
                "protocol", "TCP"
            ):
                yield each["containerPort"]


def _peers(
    peers: Sequence[Json] | None, pod: Json, pods: Sequence[Json], namespaces: Mapping[str, Json]
) -> Iterator[tuple[str, Json | None]]:
    """The networks that a list of peers means, and the pod where one is a pod's address."""
    if not peers:
        yield _ANY, None
    for peer in peers or ():
        if "ipBlock" in peer:
            networks = [ipaddress.ip_network(peer["ipBlock"]["cidr"])]
            for hole in map(ipaddress.ip_network, peer["ipBlock"].get("except", ())):
                networks = [rest for network in networks for rest in _without(network, hole)]
            yield from ((str(network), None) for network in networks)
            continue
        for other in pods:
            home = other["metadata"]["namespace"]
            there = (
                _has(peer["namespaceSelector"], namespaces[home])
                if "namespaceSelector" in peer
                else home == pod["metadata"]["namespace"]
            )
            if there and _has(peer.get("podSelector", {}), other["metadata"].get("labels", {})):
                yield f"{other['status']['podIP']}/32", other


def _without(network: Any, hole: Any) -> list[Any]:
    if not network.overlaps(hole):
        return [network]
    return [] if hole.supernet_of(network) else list(network.address_exclude(hole))


class Enforcement:
    """Keeps the rules of a node as its policies are while the context lasts."""

    def __init__(self, node: NodeCluster) -> None:
        self.in_force = ""
        """The rules, as they are; empty until there are any."""
        self._node = node
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="policies", daemon=True)

    def __enter__(self) -> Self:
        self._restore(f"*mangle\n:{_CHAIN} - [0:0]\nCOMMIT\n")
        for hook in _HOOKS:
            self._node.sandbox.run("iptables", "-w", "-t", "mangle", "-A", hook, "-j", _CHAIN)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for hook in _HOOKS:
            self._node.sandbox.run("iptables", "-w", "-t", "mangle", "-D", hook, "-j", _CHAIN)
        if self._failure is not None and error is None:
            raise self._failure

    def _keep(self) -> None:
        try:
            while not self._stopping.wait(_POLL_S):
                told = self._node.plane.kubectl("get", "networkpolicies,pods,namespaces", "-A", "-o", "json")
                found: dict[str, list[Json]] = {"NetworkPolicy": [], "Pod": [], "Namespace": []}
                for each in json.loads(told)["items"]:
                    found[each["kind"]].append(each)
                wanted = rules(found["NetworkPolicy"], found["Pod"], found["Namespace"])
                if wanted != self.in_force:
                    self._restore(wanted)
                    self.in_force = wanted
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            self._failure = error

    def _restore(self, text: str) -> None:
        (self._node.folder / "policies").write_text(text)
        self._node.sandbox.run("iptables-restore", "-w", "--noflush", INSIDE / "policies")
