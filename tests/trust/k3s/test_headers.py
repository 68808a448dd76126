"""Paths and headers of the supervisor API."""

from __future__ import annotations

from mooring.trust.k3s import identity


def test_paths_begin_with_the_prefix_of_k3s_and_headers_with_its_name() -> None:
    values = [value for name, value in vars(identity).items() if name.isupper() and isinstance(value, str)]
    paths = {value for value in values if value.startswith("/")}
    assert {path for path in paths if not path.startswith("/v1-k3s")} == {"/cacerts", "/ping", "/static/"}
    headers = {identity.NODE_NAME, identity.NODE_PASSWORD, identity.NODE_IP}
    assert headers == {"k3s-node-name", "k3s-node-password", "k3s-node-ip"}
