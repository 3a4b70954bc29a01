"""What NetworkPolicies mean on the test bed's node."""

from typing import Any

from testbed.policies import rules

Json = dict[str, Any]

SPACES: list[Json] = [
    {"metadata": {"name": "a", "labels": {"team": "one"}}},
    {"metadata": {"name": "b", "labels": {"team": "two"}}},
]


def pod(name: str, namespace: str, number: int, **labels: str) -> Json:
    ports = [{"name": "http", "containerPort": 8000 + number}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": ports}]},
        "status": {"podIP": f"10.244.0.{number}"},
    }


PODS = [pod("server", "a", 2, app="server"), pod("friend", "a", 3, app="x"), pod("far", "b", 4, app="x")]


def lines(*, pods: list[Json] = PODS, **spec: Any) -> set[str]:
    """What a policy for the server comes to, beside what is always there."""
    selector = {"matchLabels": {"app": "server"}}
    policy = {"metadata": {"namespace": "a"}, "spec": {"podSelector": selector, **spec}}
    told = rules([policy], pods, SPACES).splitlines()
    return {line for line in told if line.startswith("-A") and "ESTABLISHED" not in line}


def test_without_a_policy_all_is_free() -> None:
    free = rules([], PODS, SPACES).splitlines()
    assert [line for line in free if line.endswith(("-j DROP", "-j RETURN"))] == [
        "-A HOLDFAST-POLICIES -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    ]


def test_who_is_selected_has_nothing_but_what_is_allowed() -> None:
    assert lines(policyTypes=["Ingress", "Egress"]) == {
        "-A HOLDFAST-POLICIES -d 10.244.0.2 -j HF-I-10.244.0.2",
        "-A HF-I-10.244.0.2 -j DROP",
        "-A HOLDFAST-POLICIES -s 10.244.0.2 -j HF-E-10.244.0.2",
        "-A HF-E-10.244.0.2 -j DROP",
    }


def test_the_name_of_a_port_is_what_the_asked_pod_calls_so() -> None:
    inward = lines(policyTypes=["Ingress"], ingress=[{"ports": [{"port": "http"}]}])
    assert "-A HF-I-10.244.0.2 -s 0.0.0.0/0 -p tcp --dport 8002 -j RETURN" in inward
    peers = [{"podSelector": {"matchLabels": {"app": "x"}}}]
    outward = lines(policyTypes=["Egress"], egress=[{"ports": [{"port": "http"}], "to": peers}])
    assert {line for line in outward if "RETURN" in line} == {
        "-A HF-E-10.244.0.2 -d 10.244.0.3 -p tcp --dport 8003 -j RETURN"
    }


def test_a_peer_of_another_namespace_fulfils_both_selectors() -> None:
    peer = {
        "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["two"]}]},
        "podSelector": {"matchLabels": {"app": "x"}},
    }
    allowed = {line for line in lines(ingress=[{"from": [peer]}]) if "RETURN" in line}
    assert allowed == {"-A HF-I-10.244.0.2 -s 10.244.0.4/32 -j RETURN"}


def test_a_block_of_addresses_has_holes() -> None:
    block = {"ipBlock": {"cidr": "192.0.2.0/30", "except": ["192.0.2.2/31"]}}
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 100, "endPort": 200}]
    allowed = {
        line
        for line in lines(policyTypes=["Egress"], egress=[{"to": [block], "ports": ports}])
        if "RETURN" in line
    }
    assert allowed == {
        "-A HF-E-10.244.0.2 -d 192.0.2.0/31 -p udp --dport 53 -j RETURN",
        "-A HF-E-10.244.0.2 -d 192.0.2.0/31 -p tcp --dport 100:200 -j RETURN",
    }


def test_a_pod_without_an_address_or_of_the_node_is_left_out() -> None:
    pending = {**PODS[0], "status": {}}
    host = {**PODS[0], "spec": {**PODS[0]["spec"], "hostNetwork": True}}
    assert lines(pods=[pending, host], policyTypes=["Ingress"]) == set()
