"""SPIFFE IDs: names of trust domains, and the path of a ServiceAccount."""

from __future__ import annotations

import pytest

from mooring.pki.x509.names import MAX_TRUST_DOMAIN, is_trust_domain, service_account_id


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        pytest.param("cluster.example", True, id="a name of DNS"),
        pytest.param("prod", True, id="one label"),
        pytest.param("a_b-c.0", True, id="every sort of character"),
        pytest.param("192.0.2.1", True, id="an address"),
        pytest.param("x" * MAX_TRUST_DOMAIN, True, id="the longest one"),
        pytest.param("x" * (MAX_TRUST_DOMAIN + 1), False, id="one that is longer"),
        pytest.param("", False, id="nothing"),
        pytest.param("Cluster.example", False, id="upper case"),
        pytest.param("cluster.example:8443", False, id="a port"),
        pytest.param("me@cluster.example", False, id="a user"),
        pytest.param("spiffe://cluster.example", False, id="a whole ID"),
        pytest.param("cluster.example/ns", False, id="a path"),
        pytest.param("cluster%2eexample", False, id="an escape"),
        pytest.param("clüster.example", False, id="a letter outside ASCII"),
        pytest.param("cluster.example\n", False, id="a line break"),
    ],
)
def test_names_of_trust_domains(text: str, is_one: bool) -> None:
    assert is_trust_domain(text) is is_one


def test_the_id_of_a_service_account() -> None:
    assert service_account_id("cluster.example", "shop", "web") == "spiffe://cluster.example/ns/shop/sa/web"
