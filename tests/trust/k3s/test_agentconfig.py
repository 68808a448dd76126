"""The document of /v1-k3s/config, as Go's `config.Control` decodes it."""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import replace

from mooring.trust.k3s.settings import AgentConfig

CONFIG = AgentConfig(
    service_range=ipaddress.IPv4Network("10.43.0.0/16"),
    node_ports=range(30000, 32768),
    pod_ranges=("10.42.0.0/16", "fd00:42::/56"),
    dns=(),
    domain="cluster.local",
    port=6443,
    address="192.0.2.10",
    bind_address="0.0.0.0",
    encrypts_secrets=True,
)


def test_networks_are_those_of_go() -> None:
    document = CONFIG.to_json()
    assert document["ServiceIPRange"] == {"IP": "10.43.0.0", "Mask": base64.b64encode(b"\xff\xff\0\0").decode()}
    assert document["ServiceIPRanges"] == [document["ServiceIPRange"]]
    assert document["ClusterIPRange"] == {"IP": "10.42.0.0", "Mask": "//8AAA=="}
    assert document["ClusterIPRanges"][1] == {
        "IP": "fd00:42::",
        "Mask": base64.b64encode(b"\xff" * 7 + b"\0" * 9).decode(),
    }
    assert document["ServiceNodePortRange"] == {"Base": 30000, "Size": 2768}


def test_the_dns_is_the_tenth_address_unless_one_is_given() -> None:
    assert (CONFIG.to_json()["ClusterDNS"], CONFIG.to_json()["ClusterDNSs"]) == ("10.43.0.10", ["10.43.0.10"])
    given = replace(CONFIG, dns=("10.43.0.53", "fd00::53")).to_json()
    assert (given["ClusterDNS"], given["ClusterDNSs"]) == ("10.43.0.53", ["10.43.0.53", "fd00::53"])


def test_without_pod_ranges_the_first_is_null() -> None:
    document = replace(CONFIG, pod_ranges=()).to_json()
    assert (document["ClusterIPRange"], document["ClusterIPRanges"]) == (None, [])


def test_every_critical_argument_is_there() -> None:
    critical = (
        "ClusterDNSs ClusterIPRanges ClusterDNS ClusterDomain ClusterIPRange DisableCCM DisableHelmController DisableNPC "
        "DisableServiceLB EncryptSecrets EmbeddedRegistry FlannelBackend FlannelIPv6Masq FlannelExternalIP EgressSelectorMode "
        "ServiceIPRange ServiceIPRanges"
    )
    assert set(critical.split()) <= CONFIG.to_json().keys()


def test_nothing_secret_is_there() -> None:
    names = " ".join(CONFIG.to_json()).lower()
    assert not any(word in names for word in ("token", "psk", "password", "key", "datastore"))
