"""Bundles of CAs for clients and proxies: when they may overlap, and what extension API servers read of them.

Source: docs/protocol/authentication.md#client-certificates, docs/protocol/authentication.md#authenticating-proxy.
"""

from __future__ import annotations

import pytest

from mooring.authn.clientcas import NAME, NAMESPACE, Bundles
from mooring.authn.requestheadersettings import RequestHeaderSettings
from mooring.errors import ConfigError
from mooring.pki.x509.bundles import certificates_pem
from tests.support.testca import ThrowawayCA

OWN, OTHER, PROXY = (ThrowawayCA(name).authority.certificate for name in ("own", "other", "proxy"))
HEADERS = {"requestheader_client_ca_file": "/ca", "requestheader_username_headers": ("X-User",)}


def bundles(**settings: object) -> Bundles:
    return Bundles((OWN,), RequestHeaderSettings.read(settings))


def test_the_clusters_own_ca_verifies_clients_at_first() -> None:
    made = bundles()
    assert (made.clients, made.proxies) == ((OWN,), ())
    made.replace_clients((OTHER,))
    assert made.clients == (OTHER,)


@pytest.mark.parametrize("change", ["clients", "proxies"])
def test_bundles_that_overlap_need_allowed_names(change: str) -> None:
    made = bundles(**HEADERS)
    made.replace_proxies((PROXY,))
    with pytest.raises(ConfigError, match="requestheader-allowed-names: it is needed"):
        getattr(made, f"replace_{change}")((OWN, PROXY))
    assert (made.clients, made.proxies) == ((OWN,), (PROXY,))
    named = bundles(**HEADERS, requestheader_allowed_names=("front",))
    named.replace_proxies((OWN, PROXY))
    assert named.proxies == (OWN, PROXY)


def test_the_config_map_names_the_proxy_where_there_is_one() -> None:
    assert bundles().config_map() == {
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"client-ca-file": certificates_pem([OWN]).decode()},
    }
    made = bundles(**HEADERS, requestheader_uid_headers=("X-Uid",), requestheader_allowed_names=("a", "b"))
    made.replace_proxies((PROXY,))
    data = made.config_map()["data"]
    assert data["requestheader-client-ca-file"] == certificates_pem([PROXY]).decode()
    assert data["requestheader-allowed-names"] == '["a","b"]'
    assert data["requestheader-uid-headers"] == '["X-Uid"]'
    assert "requestheader-uid-headers" not in bundles(**HEADERS).config_map()["data"]
