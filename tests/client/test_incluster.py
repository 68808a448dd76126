"""Credentials of a Pod, as client-go's InClusterConfig reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.client import kubeconfigfiles
from mooring.errors import ConfigError

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t0k3n")
    (tmp_path / "ca.crt").write_bytes(b"pem")
    return tmp_path


def test_a_pod_uses_its_service_account(directory: Path) -> None:
    found = kubeconfigfiles.load_in_cluster(ENVIRONMENT, directory)
    assert found is not None
    assert (found.cluster.server, found.cluster.ca_pem) == ("https://10.96.0.1:443", b"pem")
    assert found.user.token_file == str(directory / "token")


def test_an_ipv6_address_stands_in_brackets(directory: Path) -> None:
    found = kubeconfigfiles.load_in_cluster(ENVIRONMENT | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, directory)
    assert found is not None
    assert found.cluster.server == "https://[fd00::1]:443"


def test_an_absolute_name_keeps_its_final_dot_for_the_resolver(directory: Path) -> None:
    found = kubeconfigfiles.load_in_cluster(
        ENVIRONMENT | {"KUBERNETES_SERVICE_HOST": "api.internal.example."}, directory
    )
    assert found is not None
    assert found.cluster.server == "https://api.internal.example.:443"


@pytest.mark.parametrize("missing", [*ENVIRONMENT, "token"])
def test_outside_of_a_pod_there_is_nothing(directory: Path, missing: str) -> None:
    (directory / missing).unlink(missing_ok=True)
    environment = {name: value for name, value in ENVIRONMENT.items() if name != missing}
    assert kubeconfigfiles.load_in_cluster(environment, directory) is None


def test_a_port_that_is_none_and_a_missing_ca_are_errors(directory: Path) -> None:
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_PORT is no port"):
        kubeconfigfiles.load_in_cluster(ENVIRONMENT | {"KUBERNETES_SERVICE_PORT": "tcp://1"}, directory)
    (directory / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        kubeconfigfiles.load_in_cluster(ENVIRONMENT, directory)
