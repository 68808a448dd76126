"""The states of certificates that `mooring certs list` derives from objects of the cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.cli.certs.inventory import Inventory, retired_keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW, OTHER = (f"sha256:{digit * 64}" for digit in "abc")


def rollover(phase: str) -> Any:
    return {
        "metadata": {"name": "cluster-ca"},
        "status": {"phase": phase, "oldCA": {"publicKey": OLD}, "newCA": {"publicKey": NEW}},
    }


@pytest.mark.parametrize(
    ("phase", "issuer", "expected"),
    [
        pytest.param("Retired", OLD, ("rejected", "retired-ca"), id="the CA that was replaced"),
        pytest.param("Done", OLD, ("rejected", "retired-ca"), id="the CA that was replaced, at the end"),
        pytest.param("Aborted", NEW, ("rejected", "retired-ca"), id="the CA that was given up"),
        pytest.param("Retired", OTHER, ("rejected", "unknown-ca"), id="a CA that no rollover names"),
        pytest.param("Drain", OLD, ("rejected", "unknown-ca"), id="a CA that is still to be retired"),
        pytest.param("", OLD, ("rejected", "unknown-ca"), id="a rollover that has not begun"),
    ],
)
def test_a_certificate_of_a_ca_that_verifies_no_client_has_the_reason_of_the_server(
    phase: str, issuer: str, expected: tuple[str, str]
) -> None:
    key = {"publicKey": OTHER, "serialNumber": "1f", "notAfter": "2027-01-01T00:00:00Z", "issuer": issuer}
    identity = {"metadata": {"name": "n1"}, "spec": {"keys": [key]}}
    inventory = Inventory(
        identities=[identity],
        entries=[],
        client_ca_keys=frozenset({f"sha256:{'d' * 64}"}),
        retired_ca_keys=retired_keys([rollover(phase), {"metadata": {"name": "without-a-status"}}]),
    )
    (found,) = inventory.certificates(NOW)
    assert (found.state, found.reason) == expected
