"""A serving certificate of the operator's own, and how it follows its files."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import socket
import ssl
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from mooring.clock import SystemClock, rfc3339
from mooring.controlplane.configuration import server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.servingcertificate import ServingPair, from_file, read_pair, verifiable
from mooring.errors import ConfigError
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.settings.addresses import Endpoint
from mooring.settings.serving import ServingSettings
from tests.support.liveserver import start_server
from tests.support.manualclock import EPOCH
from tests.support.polling import eventually
from tests.support.testca import Pair, ThrowawayCA

CA = ThrowawayCA()
FIRST, SECOND = CA.server("localhost", "127.0.0.1"), CA.server("localhost", "127.0.0.1")
STRANGER_CA = ThrowawayCA("stranger")
STRANGER = STRANGER_CA.server("localhost")


class Room:
    """A pair on disk, perhaps a bundle that verifies it, and what follows them."""

    def __init__(self, directory: Path, pair: Pair = FIRST, chain: bytes = b"", root: bytes = b"") -> None:
        self.certificate, self.key = pair.write(directory, "tls")
        self.key.chmod(0o600)
        self.certificate.write_bytes(pair.certificate_pem + chain)
        self.root = directory / "root.crt"
        if root:
            self.root.write_bytes(root)
        self.config = server_config(
            data_dir="/nowhere",
            tls_cert_file=str(self.certificate),
            tls_private_key_file=str(self.key),
            root_ca_file=str(self.root) if root else "",
        )
        self.reloading = Reloading()
        self.told = 0
        self.endpoints = [Endpoint("192.0.2.10", 6443)] if root else []

    def start(self) -> ServingPair:
        return ServingPair(
            self.config[ServingSettings],
            read_pair(self.config[ServingSettings]),
            CA.cluster_ca,
            self.reloading,
            SystemClock().now,
            self._changed,
            self.endpoints,
        )

    def _changed(self) -> None:
        self.told += 1

    def replace(self, certificate: bytes = b"", key: bytes = b"", root: bytes = b"") -> None:
        """Write some of the files, and let the server look until it has rested."""
        for path, data in ((self.certificate, certificate), (self.key, key), (self.root, root)):
            if data:
                path.write_bytes(data)
        for _ in range(2):
            asyncio.run(self.reloading.look())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def shown(pair: ServingPair) -> Certificate:
    assert pair.chain[0].public_key() == pair.key.public_key()
    return pair.chain[0]


def test_what_the_files_hold_is_shown(room: Room) -> None:
    assert shown(room.start()) == FIRST.certificate
    assert room.told == 0


def test_a_new_pair_is_in_force_when_both_files_are_there(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    pair = room.start()
    room.replace(certificate=SECOND.certificate_pem)
    assert (shown(pair), room.told) == (FIRST.certificate, 0)
    assert "it is not the key of the first certificate in tls-cert-file" in caplog.text
    room.replace(key=SECOND.key_pem)
    assert (shown(pair), room.told) == (SECOND.certificate, 1)


def test_the_key_may_come_first(room: Room) -> None:
    pair = room.start()
    room.replace(key=SECOND.key_pem)
    room.replace(certificate=SECOND.certificate_pem)
    assert (shown(pair), room.told) == (SECOND.certificate, 1)


def test_a_certificate_renewed_for_the_same_key_needs_no_new_key(room: Room) -> None:
    pair = room.start()
    renewed = CA.custom("localhost", key=FIRST.key)
    room.replace(certificate=renewed.certificate_pem)
    assert (shown(pair), room.told) == (renewed.certificate, 1)


def test_a_file_that_was_only_touched_changes_nothing(room: Room) -> None:
    room.start()
    room.replace(certificate=FIRST.certificate_pem + b"\n")
    assert room.told == 0


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        pytest.param(b"nothing", b"", "tls-cert-file: the text holds no CERTIFICATE PEM block", id="no certificate"),
        pytest.param(b"", b"nothing", "tls-private-key-file: the text holds no private key in PEM form", id="no key"),
        pytest.param(SECOND.certificate_pem, b"", "tls-private-key-file: it is not the key of the first", id="no pair"),
    ],
)
def test_what_cannot_be_shown(
    room: Room, caplog: pytest.LogCaptureFixture, certificate: bytes, key: bytes, told: str
) -> None:
    pair = room.start()
    room.replace(certificate, key)
    assert (shown(pair), room.told) == (FIRST.certificate, 0)
    assert told in caplog.text
    with pytest.raises(ConfigError, match=told.partition(":")[0]):
        read_pair(room.config[ServingSettings])


def test_a_certificate_of_an_unknown_ca_is_warned_of(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pair = room.start()
        assert caplog.text == ""
        room.replace(STRANGER.certificate_pem, STRANGER.key_pem)
    assert shown(pair) == STRANGER.certificate
    assert pair.root_ca.pem == CA.certificate_pem
    assert "no CA that is known here verifies the certificate of CN=stranger" in caplog.text


def test_a_clock_before_the_ca_is_what_the_warning_names(caplog: pytest.LogCaptureFixture) -> None:
    settings = server_config(data_dir="/nowhere")[ServingSettings]
    pair = (FIRST.certificate,), FIRST.key
    ServingPair(settings, pair, CA.cluster_ca, Reloading(), lambda: EPOCH - timedelta(days=400), lambda: None)
    assert "clients cannot verify this server: its clock reads 2024-11-28T03:04:05Z" in caplog.text
    assert "tls-cert-file" not in caplog.text


def openssl(directory: Path, *lines: str) -> None:
    """Run commands of openssl, such as those of the recipe in Kubernetes' documentation of certificates by hand."""
    for line in lines:
        subprocess.run(["openssl", *shlex.split(line)], cwd=directory, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_an_issuer_that_has_the_name_of_the_certificate_is_not_taken_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CA and certificate have one common name, and the certificate has no other: its issuer is named as itself."""
    openssl(
        tmp_path,
        "genrsa -out ca.key 2048",
        "req -x509 -new -nodes -key ca.key -subj /CN=192.0.2.1 -days 100 -out ca.crt",
        "genrsa -out server.key 2048",
        "req -new -key server.key -subj /CN=192.0.2.1 -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 100",
    )
    recipe = Room(tmp_path)
    recipe.endpoints = [Endpoint("192.0.2.1", 6443)]
    recipe.replace((tmp_path / "server.crt").read_bytes(), (tmp_path / "server.key").read_bytes())
    pair = recipe.start()
    assert shown(pair).issuer == shown(pair).subject
    assert pair.root_ca.pem == CA.certificate_pem
    assert "the certificate has no subject alternative name, and no client reads the common name: " in caplog.text
    assert len(caplog.records) == 1, "no CA helps"
    with pytest.raises(ConfigError, match=r"^tls-cert-file: the certificate has no subject alternative name"):
        from_file((tmp_path / "ca.crt").read_bytes(), pair.chain, SystemClock().now())


ADDRESSES = [Endpoint(host, 6443) for host in ("192.0.2.10", "2001:db8::1", "api.example.com")]
NAMES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "an address": (("192.0.2.10",), (0,)),
    "an IPv6 address in another form": (("2001:db8:0:0:0:0:0:1",), (1,)),
    "a DNS name in another case": (("API.example.com",), (2,)),
    "a wildcard": (("*.example.com",), (2,)),
    "a wildcard of two labels": (("*.com",), ()),
    "all": (("192.0.2.10", "2001:db8::1", "api.example.com"), (0, 1, 2)),
    "others": (("192.0.2.1", "example.com"), ()),
    "none": ((), ()),
}


@pytest.mark.parametrize(("names", "usable"), NAMES.values(), ids=NAMES)
def test_a_server_can_be_verified_under_the_published_addresses_that_its_certificate_names(
    names: tuple[str, ...], usable: tuple[int, ...]
) -> None:
    certificate, now = CA.server(*names).certificate, SystemClock().now()
    assert verifiable(ADDRESSES, [certificate], CA.certificate_pem, now) == tuple(ADDRESSES[index] for index in usable)
    assert verifiable(ADDRESSES, [certificate], STRANGER_CA.certificate_pem, now) == ()


def test_a_published_address_that_the_certificate_does_not_name_is_warned_of(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine with both families publishes both by default."""
    room.endpoints = [Endpoint("localhost", 6443), Endpoint("2001:db8::1", 6443)]
    room.start()
    assert len(caplog.records) == 1
    assert "the certificate does not name 2001:db8::1, published beside localhost: " in caplog.text
    caplog.clear()
    both = CA.server("localhost", "2001:db8::1")
    room.replace(both.certificate_pem, both.key_pem)
    assert "does not name" not in caplog.text


def test_a_certificate_that_names_no_published_address_is_warned_of_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.endpoints = [Endpoint("api.example.com", 6443)]
    room.start()
    assert len(caplog.records) == 1
    assert "names no published address (api.example.com), but " in caplog.text
    assert "localhost" in caplog.text
    caplog.clear()
    named = CA.server("api.example.com")
    room.replace(named.certificate_pem, named.key_pem)
    assert "names no published address" not in caplog.text


# ── which CAs verify it ──────────────────────────────────────────────────────────────────────────────────────────

INTERMEDIATE = STRANGER_CA.intermediate("stranger below")
DEEP = STRANGER_CA.custom(
    "localhost", issuer=INTERMEDIATE, extensions=[(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)]
)


@pytest.mark.parametrize(
    ("pair", "chain", "system", "bundle"),
    [
        pytest.param(FIRST, b"", b"", CA.certificate_pem, id="of the cluster's CA"),
        pytest.param(
            STRANGER, STRANGER_CA.certificate_pem, b"", STRANGER_CA.certificate_pem, id="with its root in the file"
        ),
        pytest.param(
            DEEP, INTERMEDIATE.certificate_pem + STRANGER_CA.certificate_pem, b"", STRANGER_CA.certificate_pem,
            id="with an intermediate and its root in the file",
        ),
        pytest.param(
            DEEP, INTERMEDIATE.certificate_pem, STRANGER_CA.certificate_pem, STRANGER_CA.certificate_pem,
            id="with an intermediate, its root among the machine's",
        ),
        pytest.param(DEEP, b"", STRANGER_CA.certificate_pem, CA.certificate_pem, id="without its intermediate"),
    ],
)  # fmt: skip
def test_the_published_cas_are_those_that_verify_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: Pair, chain: bytes, system: bytes, bundle: bytes
) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(system or ThrowawayCA("of the machine").certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    assert Room(tmp_path, pair, chain).start().root_ca.pem == bundle


def test_a_machine_without_roots_verifies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert Room(tmp_path, STRANGER).start().root_ca.pem == CA.certificate_pem


def test_a_named_bundle_is_published_whole(tmp_path: Path) -> None:
    bundle = STRANGER_CA.certificate_pem + CA.certificate_pem
    assert Room(tmp_path, STRANGER, root=bundle).start().root_ca.pem == bundle


@pytest.mark.parametrize(
    ("root", "told"),
    [
        pytest.param(b"nothing", "root-ca-file: the text holds no CERTIFICATE PEM block", id="no certificate"),
        pytest.param(CA.certificate_pem, "root-ca-file: no certificate in it verifies the serving", id="another CA"),
    ],
)
def test_a_named_bundle_has_to_verify_the_certificate(tmp_path: Path, root: bytes, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Room(tmp_path, STRANGER, root=root).start()


@pytest.mark.parametrize("days", [1, -4000], ids=["a CA that begins tomorrow", "a CA that has ended"])
def test_a_named_bundle_whose_ca_is_not_valid_now_is_refused_with_its_times(tmp_path: Path, days: int) -> None:
    ca = ThrowawayCA("other", now=SystemClock().now() + timedelta(days=days))
    begin, end = rfc3339(ca.certificate.not_valid_before_utc), rfc3339(ca.certificate.not_valid_after_utc)
    with pytest.raises(ConfigError, match=f"root-ca-file: CN=other is valid from {begin} to {end}, and it is "):
        Room(tmp_path, ca.server("127.0.0.1"), root=STRANGER_CA.certificate_pem + ca.certificate_pem).start()


BOTH = CA.certificate_pem + STRANGER_CA.certificate_pem


def test_the_ca_is_changed_without_a_moment_in_which_nobody_trusts_the_server(tmp_path: Path) -> None:
    room = Room(tmp_path, FIRST, root=CA.certificate_pem)
    pair = room.start()
    room.replace(root=BOTH)
    assert (shown(pair), pair.root_ca.pem, room.told) == (FIRST.certificate, BOTH, 1)
    room.replace(STRANGER.certificate_pem, STRANGER.key_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (STRANGER.certificate, BOTH, 2)
    room.replace(root=STRANGER_CA.certificate_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (STRANGER.certificate, STRANGER_CA.certificate_pem, 3)


def test_a_pair_that_the_bundle_does_not_verify_waits_for_one_that_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(tmp_path, FIRST, root=CA.certificate_pem)
    pair = room.start()
    room.replace(STRANGER.certificate_pem, STRANGER.key_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (FIRST.certificate, CA.certificate_pem, 0)
    assert "root-ca-file: no certificate in it verifies the serving certificate" in caplog.text
    room.replace(root=STRANGER_CA.certificate_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (STRANGER.certificate, STRANGER_CA.certificate_pem, 1)


def test_a_bundle_that_does_not_verify_the_pair_waits_for_one_that_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(tmp_path, FIRST, root=CA.certificate_pem)
    pair = room.start()
    room.replace(root=STRANGER_CA.certificate_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (FIRST.certificate, CA.certificate_pem, 0)
    assert "root-ca-file: no certificate in it verifies the serving certificate" in caplog.text
    room.replace(STRANGER.certificate_pem, STRANGER.key_pem)
    assert (shown(pair), pair.root_ca.pem, room.told) == (STRANGER.certificate, STRANGER_CA.certificate_pem, 1)


def test_new_connections_see_the_new_pair_and_open_ones_live_on(tmp_path: Path) -> None:
    certificate, key = FIRST.write(tmp_path, "tls")
    server = start_server(tmp_path / "data", "--tls-cert-file", str(certificate), "--tls-private-key-file", str(key))

    def seen() -> Pair | None:
        pem = ssl.get_server_certificate(("127.0.0.1", server.port))
        (found,) = certificates(pem.encode())
        return next((pair for pair in (FIRST, SECOND) if pair.certificate == found), None)

    try:
        assert seen() is FIRST
        assert not (server.data_dir / "pki/apiserver.crt").exists()
        context = ssl.create_default_context(cadata=CA.certificate_pem.decode())
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as old,
        ):
            SECOND.write(tmp_path, "tls")
            eventually(lambda: seen() is SECOND)
            old.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert old.recv(1000).startswith(b"HTTP/1.1 200")
        eventually(lambda: "verifies the certificate of CN=kubernetes: joining machines" in server.log)
    finally:
        server.stop()
