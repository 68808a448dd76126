"""CAs of the signers: which one signs for whom, and how each follows its files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.configuration import server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.signingkeys import SignerAuthorities
from mooring.duration import parse_duration
from mooring.errors import ConfigError
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.clusterca import CombinedIssuers
from mooring.pki.x509.signers import (
    COUNTERPARTS,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    KUBE_APISERVER_CLIENT,
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    LEGACY_UNKNOWN,
)
from mooring.server.authentication.clientcas import FollowedClientCas
from mooring.settings.signing import SigningSettings
from tests.support.softhsm import MISSING, SoftHsm, soft_hsm
from tests.support.testca import Pair, ThrowawayCA

CLUSTER, FIRST, SECOND = ThrowawayCA(), ThrowawayCA("first"), ThrowawayCA("second")
BUILT_IN = (KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, LEGACY_UNKNOWN)


def pair(ca: ThrowawayCA, directory: Path, name: str = "ca") -> tuple[str, str]:
    certificate, key = Pair(ca.certificate, ca.key).write(directory, name)
    key.chmod(0o600)
    return str(certificate), str(key)


class Room:
    def __init__(self, **values: Any) -> None:
        self.reloading = Reloading()
        self.signing = SignerAuthorities(SigningSettings.read(values), CLUSTER.cluster_ca.for_signer, self.reloading)
        self.changes = 0
        self.signing.subscribe(self._count)

    def _count(self) -> None:
        self.changes += 1

    def name(self, signer: str) -> str:
        """Return the common name of the CA that signs for a signer, `` when none does."""
        authority: Authority | None = self.signing.authority_for(signer)
        return "" if authority is None else authority.certificate.subject.rfc4514_string().removeprefix("CN=")

    def look(self) -> None:
        """Look twice: a change is read when it has not changed again."""

        async def twice() -> None:
            await self.reloading.look()
            await self.reloading.look()

        asyncio.run(twice())


def test_without_files_the_cluster_signs_for_the_built_in_signers_alone() -> None:
    room = Room()
    assert [room.name(signer) for signer in BUILT_IN] == ["kubernetes"] * 4
    assert room.name("example.com/web") == ""
    assert room.signing.client_cas() == {}


def test_one_pair_signs_for_the_four_and_is_read_once(tmp_path: Path) -> None:
    certificate, key = pair(FIRST, tmp_path)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=key)
    assert [room.name(signer) for signer in BUILT_IN] == ["first"] * 4
    assert len({id(room.signing.authority_for(signer)) for signer in BUILT_IN}) == 1
    assert list(room.signing.client_cas()) == ["cluster-signing-cert-file"]


def test_a_pair_of_one_signer_and_a_signer_of_ones_own(tmp_path: Path) -> None:
    serving, own = pair(FIRST, tmp_path, "serving"), pair(SECOND, tmp_path, "own")
    room = Room(
        cluster_signing_kubelet_serving_cert_file=serving[0],
        cluster_signing_kubelet_serving_key_file=serving[1],
        signer=(f"example.com/web={own[0]},{own[1]}",),
    )
    assert [room.name(signer) for signer in BUILT_IN] == ["kubernetes", "kubernetes", "first", "kubernetes"]
    assert room.name("example.com/web") == "second"
    assert room.signing.client_cas() == {}, "neither signs clients of the API server"


def test_signers_of_the_supervisor_have_the_ca_of_those_of_kubernetes(tmp_path: Path) -> None:
    serving = pair(FIRST, tmp_path, "serving")
    room = Room(
        cluster_signing_kubelet_serving_cert_file=serving[0], cluster_signing_kubelet_serving_key_file=serving[1]
    )
    assert [room.name(signer) for signer in COUNTERPARTS] == ["kubernetes", "first", "kubernetes", "kubernetes"]
    assert room.signing.chain_for(K3S_KUBELET_SERVING) == (FIRST.certificate,)
    assert room.signing.chain_for(K3S_KUBELET_CLIENT) == (), "the default CA"


def test_a_root_for_kubelets_signs_by_both_ways_and_verifies_no_client(tmp_path: Path) -> None:
    certificate, key = pair(FIRST, tmp_path)
    room = Room(cluster_signing_kubelet_serving_cert_file=certificate, cluster_signing_kubelet_serving_key_file=key)
    assert room.name(KUBELET_SERVING) == room.name(K3S_KUBELET_SERVING) == "first"
    assert room.name(K3S_KUBELET_CLIENT) == "kubernetes"
    assert room.signing.client_cas() == {}, "its certificates are no clients of the API server"
    assert FIRST.certificate not in CLUSTER.cluster_ca.trusted


def test_a_signer_of_ones_own_with_a_ca_of_clients_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = pair(FIRST, tmp_path, "own")
    room = Room(signer=(f"example.com/web={own[0]},{own[1]}",))
    room.signing.warn_of_client_cas((CLUSTER.certificate, SECOND.certificate))
    assert not caplog.records
    room.signing.warn_of_client_cas((CLUSTER.certificate, FIRST.certificate))
    assert "signer: the CA of example.com/web also verifies clients of this server" in caplog.text


def test_client_ca_file_without_the_ca_of_a_client_signer_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = pair(FIRST, tmp_path)
    (tmp_path / "clients.crt").write_bytes(CLUSTER.certificate_pem)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=key)
    config = server_config(data_dir="/nowhere", client_ca_file=f"{tmp_path}/clients.crt")
    FollowedClientCas(config, CombinedIssuers(CLUSTER.cluster_ca, room.signing.client_cas), room.reloading)
    assert "client-ca-file does not hold cluster-signing-cert-file: client certificates that it signs" in caplog.text


def test_a_half_replaced_pair_never_signs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = pair(FIRST, tmp_path)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=key)
    with caplog.at_level(logging.ERROR):
        Path(certificate).write_bytes(SECOND.certificate_pem)
        room.look()
    assert (room.name(KUBELET_SERVING), room.changes) == ("first", 0)
    assert (
        "ca.crt was changed and is not used, the last good content stays in force: cluster-signing-cert-file"
        in caplog.text
    )
    assert "private key does not belong to its certificate" in caplog.text
    pair(SECOND, tmp_path)
    room.look()
    assert (room.name(KUBELET_SERVING), room.changes) == ("second", 1)


def test_a_wrong_new_pair_is_logged_and_the_old_one_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = pair(FIRST, tmp_path)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=key)
    server = FIRST.server("localhost")
    for content, message in (
        (b"nothing", "the text holds no CERTIFICATE PEM block"),
        (server.certificate_pem, "the CA's private key does not belong to its certificate"),
    ):
        with caplog.at_level(logging.ERROR):
            Path(certificate).write_bytes(content)
            room.look()
        assert message in caplog.text
        assert room.name(KUBELET_SERVING) == "first"


def test_the_first_certificate_of_the_key_signs_and_all_are_trusted(tmp_path: Path) -> None:
    certificate, key = pair(FIRST, tmp_path)
    Path(certificate).write_bytes(SECOND.certificate_pem + FIRST.certificate_pem)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=key)
    assert room.name(KUBELET_SERVING) == "first"
    (state,) = room.signing.client_cas().values()
    assert state.trusted == (SECOND.certificate, FIRST.certificate)


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        pytest.param(None, b"x", "cluster-signing-cert-file: ", id="no certificate file"),
        pytest.param(b"x", b"x", "holds no CERTIFICATE PEM block", id="no certificate"),
        pytest.param(FIRST.certificate_pem, None, "cluster-signing-key-file: ", id="no key file"),
        pytest.param(FIRST.certificate_pem, b"x", "the text holds no private key in PEM form", id="no key"),
    ],
)
def test_a_start_with_a_wrong_file_names_the_setting(
    tmp_path: Path, certificate: bytes | None, key: bytes | None, message: str
) -> None:
    for name, content in (("c", certificate), ("k", key)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"^cluster-signing-") as raised:
        Room(cluster_signing_cert_file=f"{tmp_path}/c", cluster_signing_key_file=f"{tmp_path}/k")
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def hsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftHsm]:
    with soft_hsm(tmp_path_factory.mktemp("hsm")) as made:
        made.make_token("signers")
        made.put_key("signers", "first", FIRST.key)
        made.reload()
        yield made


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "SoftHSM is here")
def test_a_key_in_a_token_signs_and_its_certificate_is_followed(
    hsm: SoftHsm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, _ = pair(FIRST, tmp_path)
    room = Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=hsm.uri("signers", "first"))
    authority = room.signing.authority_for(KUBELET_SERVING)
    assert authority is not None
    assert authority.in_device
    Path(certificate).write_bytes(SECOND.certificate_pem)
    with caplog.at_level(logging.ERROR):
        room.look()
    assert 'the key "first" in the token "signers" does not belong to the CA certificate' in caplog.text
    Path(certificate).write_bytes(SECOND.certificate_pem + FIRST.certificate_pem)
    room.look()
    assert (room.name(KUBELET_SERVING), room.changes) == ("first", 1)
    with pytest.raises(ConfigError, match=r"^cluster-signing-key-file: no token of .* is the one of the key"):
        Room(cluster_signing_cert_file=certificate, cluster_signing_key_file=hsm.uri("gone", "first"))


def test_a_key_that_is_no_ca_is_refused(tmp_path: Path) -> None:
    server = FIRST.server("localhost")
    certificate, key = server.write(tmp_path, "server")
    with pytest.raises(ConfigError, match=r"cluster-signing-cert-file: .* not a CA"):
        Room(cluster_signing_cert_file=str(certificate), cluster_signing_key_file=str(key))


@pytest.mark.parametrize(
    ("duration", "warns"),
    [
        pytest.param("30s", True, id="thirty seconds"),
        pytest.param("9m59s", True, id="less than Kubernetes gives to a request for a short one"),
        pytest.param("10m", False, id="ten minutes"),
    ],
)
def test_a_signing_duration_with_which_machines_always_renew_is_warned_of(
    duration: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SigningSettings(cluster_signing_duration=parse_duration(duration))
    SignerAuthorities(settings, CLUSTER.cluster_ca.for_signer, Reloading())
    assert ("cluster-signing-duration: certificates of" in caplog.text) is warns
