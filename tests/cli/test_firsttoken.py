"""What a first start prints: no join line that no machine could use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commandline import CommandLine, mooring
from tests.support.testca import Pair, ThrowawayCA

__all__ = ["mooring"]
COMPANY = ThrowawayCA("company")


def init(mooring: CommandLine, tmp_path: Path, pair: Pair | None, *flags: str) -> tuple[str, str]:
    given = list(flags)
    if pair is not None:
        certificate, key = pair.write(tmp_path, "tls")
        key.chmod(0o600)
        given += ["--tls-cert-file", str(certificate), "--tls-private-key-file", str(key)]
    outcome = mooring(
        *("init", "--data-dir", str(tmp_path / "data"), "--control-plane-endpoint", "api.example.com"),
        *("--control-plane-endpoint", "192.0.2.7", *given),
    )
    assert outcome.code == 0, outcome.err
    return outcome.out, outcome.err


@pytest.mark.parametrize(
    ("pair", "trusted"),
    [
        pytest.param(COMPANY.server("other.example.com"), True, id="it names no published address"),
        pytest.param(COMPANY.server("api.example.com"), False, id="no published CA verifies it"),
    ],
)
def test_a_join_line_that_no_machine_could_use_is_not_printed(
    mooring: CommandLine, tmp_path: Path, pair: Pair, trusted: bool
) -> None:
    root = tmp_path / "root.crt"
    root.write_bytes(COMPANY.certificate_pem)
    out, _ = init(mooring, tmp_path, pair, *(("--root-ca-file", str(root)) if trusted else ()))
    assert "mooring join" not in out
    assert "kubeadm join" not in out
    assert "no machine can join: the serving certificate names no published address" in out
    assert "mooring token create --print-join-command" in out


def test_a_join_line_has_the_addresses_that_the_certificate_names(mooring: CommandLine, tmp_path: Path) -> None:
    root = tmp_path / "root.crt"
    root.write_bytes(COMPANY.certificate_pem)
    out, _ = init(mooring, tmp_path, COMPANY.server("192.0.2.7"), "--root-ca-file", str(root))
    assert "kubeadm join 192.0.2.7:6443" in out
    assert "mooring join 192.0.2.7:6443" in out
    assert "api.example.com" not in out.partition("To let a machine join")[2]


def test_the_certificate_of_the_cluster_names_every_address(mooring: CommandLine, tmp_path: Path) -> None:
    out, _ = init(mooring, tmp_path, None)
    assert "mooring join api.example.com:6443" in out
    assert "192.0.2.7:6443" in out
