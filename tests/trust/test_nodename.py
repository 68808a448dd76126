"""Names of a machine's Node: what is taken, what is written in lower case, and what is refused before a join."""

from __future__ import annotations

import pytest

from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.errors import ConfigError
from mooring.trust.nodename import HOSTNAME_MAX, choose_node_name, name_note

LONG = "worker-01.rack-07.hall-02.datacenter-frankfurt.internal.corp.example.com"
LABEL = "the label kubernetes.io/hostname of a Node takes"


@pytest.mark.parametrize(
    ("given", "host_name", "name", "note"),
    [
        pytest.param("node-1", "host", "node-1", "", id="given"),
        pytest.param("", "host", "host", "", id="the host name"),
        pytest.param("RPiNode2", "host", "rpinode2", '--node-name "RPiNode2": ', id="upper case, as k3s takes it"),
        pytest.param(
            "", "HOST.Example.COM", "host.example.com", 'the host name "HOST.Example.COM": ', id="a host name"
        ),
        pytest.param(" Node-1\n", "host", "node-1", '--node-name "Node-1": ', id="blanks, as kubeadm trims them"),
        pytest.param("\tnode-1", "host", "node-1", "", id="blanks alone"),
        pytest.param("a" * 63, "host", "a" * 63, "", id="63 characters"),
        pytest.param("1", "host", "1", "", id="a digit"),
    ],
)
def test_a_name_is_the_one_of_kubelet(given: str, host_name: str, name: str, note: str) -> None:
    """Kubernetes, `pkg/util/node.GetHostname`: without blanks around it, in lower case."""
    assert choose_node_name(given, host_name) == name
    assert name_note(given, host_name) == (f"{note}the Node is called {name}, in lower case" if note else "")


@pytest.mark.parametrize(
    ("given", "host_name", "is_noted"),
    [
        ("", "localhost", True),
        ("", "localhost.localdomain", True),
        ("", "localhost4", False),
        ("localhost", "w1", False),
    ],
)
def test_the_host_name_of_a_machine_without_a_name_is_noted(given: str, host_name: str, is_noted: bool) -> None:
    assert ("set the host name before the join" in name_note(given, host_name)) is is_noted


@pytest.mark.parametrize(
    ("given", "host_name", "error"),
    [
        pytest.param("", "", "--node-name is needed: the name of this machine could not be found out", id="none"),
        pytest.param("", " ", "--node-name is needed", id="blanks"),
        pytest.param("RPi_Node2", "h", '--node-name "RPi_Node2" is invalid: .*such as --node-name rpi-node2$', id="_"),
        pytest.param(
            "", "my_host", 'the host name "my_host" is invalid: .*such as --node-name my-host$', id="host name"
        ),
        pytest.param("", "host.example.", "such as --node-name host.example$", id="a final dot"),
        pytest.param("a..b", "h", "such as --node-name a.b$", id="two dots"),
        pytest.param("-a_.b", "h", "such as --node-name a.b$", id="signs at the ends of labels"),
        pytest.param("a b", "h", "such as --node-name a-b$", id="a blank within"),
        pytest.param("büro", "h", "such as --node-name b-ro$", id="a letter that no name has"),
        pytest.param("_", "h", "; give another with --node-name$", id="nothing that could stay"),
        pytest.param("A_" * 200, "h", "is invalid: .*such as --node-name a-a[-a]*a$", id="too long and invalid"),
    ],
)
def test_a_name_that_no_object_can_have_is_refused_with_the_name_to_give(
    given: str, host_name: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        choose_node_name(given, host_name)


@pytest.mark.parametrize(
    ("given", "suffix", "limit", "advice"),
    [
        pytest.param("a" * 64, 0, 63, "a" * 63, id="64 characters"),
        pytest.param(LONG, 0, 63, "worker-01", id="72 characters of a domain"),
        pytest.param(LONG.upper(), 0, 63, "worker-01", id="in upper case"),
        pytest.param("a" * 62 + "-b", 0, 63, "a" * 62, id="a sign at the limit"),
        pytest.param(".".join(["a" * 63] * 3) + ".b", 0, 63, "a" * 63, id="a long first label"),
        pytest.param("a" * 253, 0, 63, "a" * 63, id="253 characters"),
        pytest.param("a" * 55, 9, 54, "a" * 54, id="with an id behind it"),
    ],
)
def test_a_name_that_no_label_can_have_is_refused_unless_no_node_is_registered(
    given: str, suffix: int, limit: int, advice: str
) -> None:
    """Kubernetes, `validation.LabelValueMaxLength`: the Node would be refused after the certificate was issued."""
    for register in ("", "tainted", "ready"):
        with pytest.raises(ConfigError) as caught:
            choose_node_name(given, "h", register, suffix=suffix)
        beside = " beside the 9 of --with-node-id" if suffix else ""
        assert str(caught.value) == (
            f'--node-name "{given}" is too long: it has {len(given)} characters, and {LABEL} {limit}{beside}; give another, '
            f"such as --node-name {advice}, or register no Node with --register-node none"
        )
        assert len(advice) + suffix <= HOSTNAME_MAX
        assert not dns1123_subdomain_errors(advice)
    assert choose_node_name(given, "h", "none", suffix=suffix) == given.lower()


def test_the_limit_of_another_place_holds_without_a_node_too() -> None:
    assert choose_node_name("a" * 235, "h", "none", longest=235) == "a" * 235
    with pytest.raises(ConfigError, match=r"it has 236 characters, and 235 are possible; give another, such as"):
        choose_node_name("a" * 236, "h", "none", longest=235)
