"""Keys and certificates on disk: made once, never lost by our own hand.

Source: docs/protocol/discovery-and-join.md#files-and-waits, docs/protocol/kubeadm-init.md,
docs/protocol/certificate-signing-requests.md#signing.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mooring.client import files
from mooring.clock import SystemClock
from mooring.controlplane import datadirectory, keystore
from mooring.controlplane.addresses import published
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.datadirectory import only_server
from mooring.controlplane.keystore import Prepared, prepare
from mooring.errors import ConfigError
from mooring.pki.keys import private_key_pem
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.names import organizations
from mooring.secret import Secret
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from tests.support.testca import ThrowawayCA, by_library

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVERYTHING = (
    "admin.conf",
    "pki/apiserver.crt",
    "pki/apiserver.key",
    "pki/ca.crt",
    "pki/ca.key",
    "pki/lineage.key",
    "pki/lineage.pub",
    "pki/sa.key",
    "pki/sa.pub",
    "super-admin.conf",
)


def config(root: Path, **flags: Any) -> ServerConfig:
    return server_config(**{"data_dir": str(root), "detected_addresses": ("192.0.2.1",), **flags})


def prepared(root: Path, now: datetime = NOW, **flags: Any) -> Prepared:
    return prepare(config(root, **flags), now, secrets.token_bytes)


def made(result: Prepared, root: Path) -> Sequence[str]:
    return sorted(str(Path(path).relative_to(root)) for path in result.created)


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in EVERYTHING}


def test_the_first_boot_makes_everything(tmp_path: Path) -> None:
    root = tmp_path / "data"
    assert made(prepared(root), root) == list(EVERYTHING)


def test_the_second_boot_changes_nothing(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    before = contents(tmp_path)
    second = prepared(tmp_path, NOW + timedelta(days=100))
    assert second.created == ()
    assert contents(tmp_path) == before
    assert second.key_store.ca.authority.certificate == first.key_store.ca.authority.certificate
    assert second.key_store.token_keys == first.key_store.token_keys


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    root = tmp_path / "data"
    before = os.umask(0)
    try:
        prepared(root)
    finally:
        os.umask(before)
    modes = {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
    assert modes.pop("pki") == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}, modes


def test_a_directory_where_everybody_may_write_is_refused(tmp_path: Path) -> None:
    """Somebody could have put a CA of theirs there, or a link where we write."""
    tmp_path.chmod(0o777)
    for lock in (keystore.exclusive, only_server):
        with pytest.raises(ConfigError, match="can be written by every user"), lock(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(datadirectory, "ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    for lock in (keystore.exclusive, only_server):
        with pytest.raises(ConfigError, match="belongs to another user"), lock(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert not list(tmp_path.rglob(f"*{files.TEMPORARY}"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("pki/ca.key", "restore the key from a backup", id="the key of the authority"),
    ],
)
def test_a_lost_key_is_an_error_and_never_a_new_authority(tmp_path: Path, name: str, message: str) -> None:
    prepared(tmp_path)
    (tmp_path / name).unlink()
    before = (tmp_path / "pki/ca.crt").read_bytes()
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path)
    assert (tmp_path / "pki/ca.crt").read_bytes() == before
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("pki/ca.crt", b"junk", "restore it from a backup", id="a CA that is none"),
        pytest.param("pki/ca.key", b"junk", "restore it from a backup", id="a key that is none"),
        pytest.param("pki/sa.key", b"", "restore it from a backup", id="an empty token key"),
        pytest.param("pki/sa.pub", b"junk", "restore it from a backup", id="public keys that are none"),
        pytest.param(
            "pki/apiserver.crt", b"junk", "remove it, and it is made again", id="a serving certificate that is none"
        ),
        pytest.param("pki/apiserver.key", b"junk", "remove it, and it is made again", id="a serving key that is none"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    prepared(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        prepared(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert (tmp_path / name).read_bytes() == content, "what we cannot read we do not overwrite"


def test_a_key_of_another_authority_is_an_error(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "pki/ca.key").write_bytes(ThrowawayCA().server().key_pem)
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        prepared(tmp_path)


@pytest.mark.parametrize("issuing_first", [True, False])
def test_a_bundle_is_trusted_whole_and_the_ca_of_the_key_issues(tmp_path: Path, issuing_first: bool) -> None:
    prepared(tmp_path)
    path = tmp_path / "pki/ca.crt"
    own, other = path.read_bytes(), ThrowawayCA().certificate_pem
    path.write_bytes(own + other if issuing_first else other + own)
    result = prepared(tmp_path)
    assert result.key_store.ca.authority.certificate_pem == own
    assert result.key_store.client_ca_pem == result.key_store.serving_ca_pem == path.read_bytes()
    assert set(made(result, tmp_path)) == {"admin.conf", "super-admin.conf"}
    assert parse_kubeconfig((tmp_path / "admin.conf").read_bytes()).clusters[0].ca_pem == path.read_bytes()
    assert prepared(tmp_path).created == ()


def test_a_bundle_without_the_ca_of_the_key_is_an_error(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "pki/ca.crt").write_bytes(ThrowawayCA().certificate_pem + ThrowawayCA("other").certificate_pem)
    with pytest.raises(ConfigError, match=r"ca\.crt: the CA's private key does not belong to its certificate"):
        prepared(tmp_path)


@pytest.mark.parametrize("writes", range(8))
def test_whenever_the_power_fails_the_next_start_finishes_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    class PowerFailureError(BaseException):
        pass

    done = 0
    write = files.write_atomic

    def failing(path: Path, data: bytes) -> None:
        nonlocal done
        if done == writes:
            raise PowerFailureError
        done += 1
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(keystore, "write_atomic", failing)
        with pytest.raises(PowerFailureError):
            prepared(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    finished = prepared(tmp_path)
    assert {path: path.read_bytes() for path in kept} == kept, "nothing durable is made again"
    assert len(finished.created) == len(EVERYTHING) - writes
    assert prepared(tmp_path).created == ()


def names_of(root: Path) -> tuple[set[str], set[str]]:
    certificate = certificates((root / "pki/apiserver.crt").read_bytes())[0]
    names = by_library(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return set(names.get_values_for_type(x509.DNSName)), addresses


def test_the_serving_certificate_has_every_name_clients_use(tmp_path: Path) -> None:
    prepared(
        tmp_path,
        control_plane_endpoint=["api.example", "192.0.2.9:443"],
        apiserver_cert_extra_sans=["other.example", "::5"],
    )
    names, addresses = names_of(tmp_path)
    assert names >= {"localhost", "api.example", "other.example", "kubernetes.default.svc"}
    assert addresses >= {"127.0.0.1", "::1", "192.0.2.9", "::5"}


@pytest.mark.parametrize(
    ("flags", "days", "remade"),
    [
        pytest.param({"apiserver_cert_extra_sans": ["new.example"]}, 0, {"pki/apiserver.crt"}, id="a new name"),
        pytest.param({"bind_address": "192.0.2.1"}, 0, set(), id="an address it has already"),
        pytest.param(
            {"bind_address": "fe80::1%eth0", "control_plane_endpoint": ["192.0.2.1"]},
            0,
            {"pki/apiserver.crt"},
            id="a link-local address, without its interface",
        ),
        pytest.param(
            {"control_plane_endpoint": ["api.example"]},
            0,
            {"pki/apiserver.crt", "admin.conf", "super-admin.conf"},
            id="a new endpoint",
        ),
        pytest.param({}, 200, set(), id="most of its life left"),
        pytest.param(
            {}, 300, {"pki/apiserver.crt", "admin.conf", "super-admin.conf"}, id="less than a third of its life left"
        ),
    ],
)
def test_what_is_remade_and_when(tmp_path: Path, flags: dict[str, Any], days: int, remade: set[str]) -> None:
    prepared(tmp_path)
    before = contents(tmp_path)
    result = prepared(tmp_path, NOW + timedelta(days=days), **flags)
    assert set(made(result, tmp_path)) == remade
    changed = {name for name, content in contents(tmp_path).items() if content != before[name]}
    assert changed == remade


def test_another_authority_of_the_same_name_makes_what_hangs_on_it_anew(tmp_path: Path) -> None:
    prepared(tmp_path)
    other = ThrowawayCA("kubernetes", NOW)
    (tmp_path / "pki/ca.crt").write_bytes(other.certificate_pem)
    (tmp_path / "pki/ca.key").write_bytes(private_key_pem(other.key))
    result = prepared(tmp_path)
    assert set(made(result, tmp_path)) == {"pki/apiserver.crt", "admin.conf", "super-admin.conf"}
    assert (tmp_path / "pki/ca.crt").read_bytes() == other.certificate_pem
    by_library(result.key_store.serving_chain[0]).verify_directly_issued_by(by_library(other.certificate))


def test_the_administrators_power_can_be_taken_away_and_the_super_administrators_cannot(tmp_path: Path) -> None:
    prepared(tmp_path)
    for name, organization in (("admin.conf", "kubeadm:cluster-admins"), ("super-admin.conf", "system:masters")):
        found = parse_kubeconfig((tmp_path / name).read_bytes())
        certificate = certificates(found.users[0].certificate_pem)[0]
        assert organizations(certificate.subject) == (organization,)
        assert found.clusters[0].server == "https://192.0.2.1:6443"
        assert found.clusters[0].ca_pem == (tmp_path / "pki/ca.crt").read_bytes()


def test_a_kubeconfig_that_cannot_be_read_is_made_anew(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "admin.conf").write_text("a: [")
    assert made(prepared(tmp_path), tmp_path) == ["admin.conf"]


def test_a_token_key_that_was_replaced_still_lets_the_old_tokens_be_read(tmp_path: Path) -> None:
    old = prepared(tmp_path).key_store
    (tmp_path / "pki/sa.key").unlink()
    new = prepared(tmp_path).key_store
    assert new.token_key.public_key() != old.token_key.public_key()
    assert new.token_key.public_key() in new.token_keys
    assert old.token_key.public_key() in new.token_keys


PROGRAM = """
import secrets, sys
from mooring.clock import SystemClock
from mooring.controlplane.configuration import server_config
from mooring.controlplane.keystore import prepare
sys.stdin.read()
prepare(server_config(data_dir=sys.argv[1], detected_addresses=("192.0.2.1",)), SystemClock().now(), secrets.token_bytes)
"""


def test_several_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # all have started: now go
        process.stdin = None
    ends = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ends
    made = (tmp_path / "pki/ca.crt").read_bytes()
    assert prepared(tmp_path, SystemClock().now()).created == ()
    assert (tmp_path / "pki/ca.crt").read_bytes() == made


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        prepared(tmp_path / "file" / "data")


def test_a_bundle_that_verifies_the_server_is_in_the_kubeconfigs(tmp_path: Path) -> None:
    """The next CA is published while the serving certificate is still one of the cluster's own CA."""
    root = tmp_path / "data"
    own = prepared(root).key_store.client_ca_pem
    both = tmp_path / "both.crt"
    both.write_bytes(own + ThrowawayCA("next").certificate_pem)
    changed = prepared(root, root_ca_file=str(both))
    assert made(changed, root) == ["admin.conf", "super-admin.conf"]
    assert (changed.key_store.serving_ca_pem, changed.key_store.client_ca_pem) == (both.read_bytes(), own)
    assert parse_kubeconfig(root.joinpath("admin.conf").read_bytes()).clusters[0].ca_pem == both.read_bytes()
    assert prepared(root, root_ca_file=str(both)).created == ()


def test_a_bundle_that_does_not_verify_the_server_stops_the_start(tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_bytes(ThrowawayCA("other").certificate_pem)
    with pytest.raises(ConfigError, match="root-ca-file: no certificate in it verifies the serving certificate"):
        prepared(tmp_path / "data", root_ca_file=str(other))


def test_every_address_is_in_the_kubeconfigs(tmp_path: Path) -> None:
    prepared(tmp_path, control_plane_endpoint=("a.test", "b.test:443"))
    clusters = parse_kubeconfig((tmp_path / "admin.conf").read_bytes()).clusters
    assert [(one.name, one.server) for one in clusters] == [
        ("kubernetes", "https://a.test:6443"), ("b.test:443", "https://b.test:443"),
    ]  # fmt: skip


def test_what_an_administrator_added_to_a_kubeconfig_stays(tmp_path: Path) -> None:
    """`kubectl config` sorts the entries, so that the file's own cluster and user may stand behind others."""
    flags: dict[str, Any] = {"control_plane_endpoint": ("a.test", "10.0.0.1:6443")}
    prepared(tmp_path, **flags)
    path = tmp_path / "admin.conf"
    made_first = parse_kubeconfig(path.read_bytes())
    users = (KubeconfigUser("joe", token=Secret("secret-of-joe")), *made_first.users)
    edited = format_kubeconfig(replace(made_first, clusters=made_first.clusters[::-1], users=users))
    path.write_text(edited)
    assert prepared(tmp_path, **flags).created == ()
    assert path.read_text() == edited
    assert published(tmp_path) == ("a.test:6443", "10.0.0.1:6443")
