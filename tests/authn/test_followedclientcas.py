"""CAs of clients that follow the cluster's own CA through a rollover."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.datadirectory import Reloading
from mooring.pki.x509.clusterca import CaState
from mooring.server.authentication.clientcas import FollowedClientCas
from tests.support.authnhost import configured
from tests.support.testca import ThrowawayCA

OLD, NEW, OTHER = (ThrowawayCA(name) for name in ("old", "new", "other"))
BOTH = replace(CaState.of(NEW.authority), trusted=(OLD.certificate, NEW.certificate))


class Followed:
    """The CAs of clients of a server, and the cluster's own CA."""

    def __init__(self, **flags: Any) -> None:
        self.own = OLD.cluster_ca
        self.cas = FollowedClientCas(configured(**flags), self.own, Reloading())
        self.changes = 0
        self.cas.subscribe(self._changed)

    def _changed(self) -> None:
        self.changes += 1


def test_both_cas_of_a_rollover_verify_clients_and_a_retired_one_does_not() -> None:
    found = Followed()
    found.own.replace(BOTH)
    assert (found.cas.clients, found.cas.issuing, found.changes) == (BOTH.trusted, BOTH.trusted, 1)
    found.own.replace(replace(CaState.of(NEW.authority), retired=(OLD.certificate,)))
    assert (found.cas.clients, found.cas.retired) == ((NEW.certificate,), (OLD.certificate,))
    assert found.changes == 2


def test_cas_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(OTHER.certificate_pem)
    found = Followed(client_ca_file=str(path))
    found.own.replace(BOTH)
    assert (found.cas.clients, found.changes) == ((OTHER.certificate,), 1)


def test_a_new_ca_that_overlaps_with_those_of_proxies_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "proxy.crt"
    path.write_bytes(NEW.certificate_pem)
    found = Followed(requestheader_client_ca_file=str(path), requestheader_username_headers=("X-Remote-User",))
    found.own.replace(BOTH)
    assert found.cas.clients == (OLD.certificate,)
    assert "the CAs of clients stay as they are: requestheader-allowed-names" in caplog.text
