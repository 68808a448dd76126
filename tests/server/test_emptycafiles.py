"""A CA file that is empty, at the doors that read one: the roots of the machine do not take its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.client import kubeconfigfiles
from mooring.errors import ConfigError, StorageError
from mooring.server.authentication.kubeconfigtarget import inlined
from mooring.settings.storage import StorageSettings
from mooring.storage.etcd.connection import EtcdConnection
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected

EMPTY = "is empty: without a CA every CA of this machine would be trusted"


def test_in_the_kubeconfig_of_a_webhook() -> None:
    chosen = Selected(Cluster("c", "https://a.test", ca_file="/etc/ca.crt"), KubeconfigUser("u"), "")
    with pytest.raises(ConfigError, match=f'cluster "c": certificate-authority: "/etc/ca.crt" {EMPTY}'):
        inlined(chosen, lambda path: b"")


def test_in_a_pod(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(b"")
    with pytest.raises(ConfigError, match=EMPTY):
        kubeconfigfiles.load_in_cluster({kubeconfigfiles.HOST: "192.0.2.1", kubeconfigfiles.PORT: "443"}, tmp_path)


def test_of_etcd(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"")
    settings = StorageSettings(etcd_cafile=str(tmp_path / "ca.crt"))
    with pytest.raises(StorageError, match=f"etcd-cafile: .* {EMPTY}"):
        EtcdConnection(settings, ["https://192.0.2.1:2379"])
