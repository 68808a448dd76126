"""`mooring certs`: certificates as openssl, a server and kubectl read them, and refusals."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.controlplane.keystore import exclusive
from mooring.pki.keys import private_key_pem
from mooring.pki.x509 import names
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.verify import ClientTrust
from tests.compat.kubectl import Kubectl, programs
from tests.support.commandline import CommandLine, mooring, process
from tests.support.liveserver import start_server
from tests.support.ports import free_port
from tests.support.rawcertificate import COMMON_NAME, T61, attribute, name, root
from tests.support.testca import by_library

__all__ = ["mooring"]
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def made(mooring: CommandLine, tmp_path: Path) -> Path:
    """A directory with a root, an intermediate, a client below each and a server."""
    at = ("--out-dir", str(tmp_path))
    root = ("--ca-cert", f"{tmp_path}/ca.crt", "--ca-key", f"{tmp_path}/ca.key", *at)
    middle = ("--ca-cert", f"{tmp_path}/middle.crt", "--ca-key", f"{tmp_path}/middle.key", *at)
    mooring.done("certs", "ca", "--common-name", "people", *at)
    mooring.done("certs", "ca", "--common-name", "middle", "--name", "middle", *root)
    person = ("--common-name", "jane", "--organization", "dev,ops", "--uid", "42")
    mooring.done("certs", "client", *person, *root)
    mooring.done("certs", "client", *person, "--name", "deep", *middle)
    mooring.done("certs", "server", "--dns", "localhost,*.x.example", "--ip", "127.0.0.1", "--ip", "::1", *middle)
    return tmp_path


def read(path: Path) -> tuple[Certificate, ...]:
    return certificates(path.read_bytes())


def test_files_are_for_their_owner_alone(made: Path) -> None:
    found = sorted(path.name for path in made.iterdir())
    assert found == [
        f"{name}.{kind}" for name in ("ca", "client", "deep", "middle", "server") for kind in ("crt", "key")
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}


def test_what_is_below_an_intermediate_carries_it_and_not_the_root(made: Path) -> None:
    assert [names.common_name(one.subject) for one in read(made / "deep.crt")] == ["jane", "middle"]
    assert [names.common_name(one.subject) for one in read(made / "client.crt")] == ["jane"]
    assert [names.common_name(one.subject) for one in read(made / "middle.crt")] == ["middle"]


def test_a_client_is_the_user_that_was_asked_for(made: Path) -> None:
    trust = ClientTrust(read(made / "ca.crt"))
    for file in ("client", "deep"):
        chain = [one.der for one in read(made / f"{file}.crt")]
        peer = trust.verify(chain, datetime.now(UTC))
        assert (peer.common_name, set(peer.organizations), peer.uid) == ("jane", {"dev", "ops"}, "42")


def openssl(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


@OPENSSL
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(("-purpose", "sslclient", "client.crt"), "client.crt: OK", id="a client below the root"),
        pytest.param(
            ("-purpose", "sslclient", "-untrusted", "deep.crt", "deep.crt"), "deep.crt: OK", id="one below another CA"
        ),
        pytest.param(
            ("-purpose", "sslserver", "-untrusted", "server.crt", "-verify_hostname", "a.x.example", "server.crt"),
            "server.crt: OK",
            id="a server by its name",
        ),
        pytest.param(
            ("-purpose", "sslserver", "-untrusted", "server.crt", "-verify_ip", "::1", "server.crt"),
            "server.crt: OK",
            id="a server by its address",
        ),
        pytest.param(("-purpose", "sslserver", "client.crt"), "verification failed", id="a client is no server"),
        pytest.param(("-purpose", "sslclient", "deep.crt"), "unable to get local issuer", id="without the CA between"),
    ],
)
def test_openssl_agrees(made: Path, arguments: tuple[str, ...], told: str) -> None:
    assert told in openssl(made, "verify", "-x509_strict", "-CAfile", "ca.crt", *arguments)


@OPENSSL
@pytest.mark.parametrize("algorithm", ["ECDSA-P256", "ECDSA-P384", "RSA-2048", "Ed25519"])
def test_keys_of_every_kind(mooring: CommandLine, tmp_path: Path, algorithm: str) -> None:
    at = ("--out-dir", str(tmp_path), "--key-algorithm", algorithm)
    mooring.done("certs", "ca", *at)
    signed = ("--ca-cert", f"{tmp_path}/ca.crt", "--ca-key", f"{tmp_path}/ca.key")
    mooring.done("certs", "client", "--common-name", "jane", *signed, *at)
    assert "client.crt: OK" in openssl(tmp_path, "verify", "-CAfile", "ca.crt", "client.crt")
    assert "PRIVATE KEY" in (tmp_path / "client.key").read_text()


def test_the_pin_of_a_new_ca_is_printed(mooring: CommandLine, tmp_path: Path) -> None:
    outcome = mooring("certs", "ca", "--out-dir", str(tmp_path / "new"), "--lifetime", "24h")
    assert outcome.code == 0
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", outcome.out)
    assert "ca.crt and " in outcome.err
    assert ": CN=kubernetes, valid until 20" in outcome.err
    (ca,) = read(tmp_path / "new/ca.crt")
    assert ca.not_valid_after_utc - ca.not_valid_before_utc == timedelta(hours=24, minutes=5)


def test_a_long_name_is_one_as_in_go(mooring: CommandLine, made: Path) -> None:
    ca = ("--ca-cert", f"{made}/ca.crt", "--ca-key", f"{made}/ca.key", "--out-dir", str(made))
    name = f"system:node:{'n' * 80}"
    outcome = mooring("certs", "client", "--common-name", name, "--name", "long", *ca)
    assert (outcome.code, len(outcome.err.splitlines())) == (0, 1), "without a warning of the library"
    assert f"CN={name}, valid until" in outcome.err


def test_nothing_outlives_its_ca(mooring: CommandLine, tmp_path: Path) -> None:
    at = ("--out-dir", str(tmp_path))
    mooring.done("certs", "ca", "--lifetime", "1h", *at)
    ca = ("--ca-cert", f"{tmp_path}/ca.crt", "--ca-key", f"{tmp_path}/ca.key")
    mooring.done("certs", "server", "--dns", "a.example", *ca, *at)
    (server,), (root,) = read(tmp_path / "server.crt"), read(tmp_path / "ca.crt")
    assert server.not_valid_after_utc == root.not_valid_after_utc
    usage = by_library(server).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert names.common_name(server.subject) == "a.example"


def test_nothing_is_overwritten_without_force(mooring: CommandLine, tmp_path: Path) -> None:
    at = ("certs", "ca", "--out-dir", str(tmp_path))
    mooring.done(*at)
    before = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "ca.key").read_bytes()
    outcome = mooring(*at)
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{tmp_path}/ca.key exists already" in outcome.err
    assert before == ((tmp_path / "ca.crt").read_bytes(), (tmp_path / "ca.key").read_bytes())
    (tmp_path / "ca.key").unlink()
    assert f"{tmp_path}/ca.crt exists already" in mooring(*at).err
    assert not (tmp_path / "ca.key").exists()
    mooring.done(*at, "--force")
    assert (tmp_path / "ca.crt").read_bytes() != before[0]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        pytest.param(("ca", "--ca-cert", "ca.crt"), 2, "--ca-cert and --ca-key are given together", id="half a CA"),
        pytest.param(("ca", "--common-name", " "), 2, "--common-name must not be empty", id="a CA without a name"),
        pytest.param(("ca", "--lifetime", "59s"), 2, "--lifetime must be at least 1m0s", id="no life"),
        pytest.param(("ca", "--name", "../x"), 2, "is no name for files", id="a name that leads elsewhere"),
        pytest.param(
            ("ca", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key", "--common-name", "people", "--name", "x"),
            2,
            "--common-name must differ from that of the signing CA",
            id="a CA below itself",
        ),
        pytest.param(
            ("server", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key"),
            2,
            "give at least one --dns or --ip",
            id="no name",
        ),
        pytest.param(
            ("server", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key", "--dns", "10.0.0.1"),
            2,
            '--dns: "10.0.0.1" is an IP address; give it with --ip',
            id="an address for a name",
        ),
        pytest.param(
            ("server", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key", "--dns", "a_b!"),
            2,
            "--dns: ",
            id="no name at all",
        ),
        pytest.param(
            ("server", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key", "--ip", "x"),
            2,
            '--ip: "x" is not an IP address',
            id="no address",
        ),
        pytest.param(
            ("client", "--ca-cert", "{ca}.key", "--ca-key", "{ca}.key", "--common-name", "x", "--name", "x"),
            1,
            "--ca-cert: ",
            id="a key for a certificate",
        ),
        pytest.param(
            ("client", "--ca-cert", "{ca}.crt", "--ca-key", "{middle}.key", "--common-name", "x", "--name", "x"),
            1,
            "the CA's private key does not belong to its certificate",
            id="another CA's key",
        ),
        pytest.param(
            ("client", "--ca-cert", "{client}.crt", "--ca-key", "{client}.key", "--common-name", "x", "--name", "x"),
            1,
            "--ca-cert: {client}.crt: the CA certificate is not a CA",
            id="a client for a CA",
        ),
        pytest.param(("client", "--common-name", "x"), 2, "Missing option '--ca-cert'", id="no CA"),
        *(
            pytest.param(
                ("client", "--ca-cert", "{ca}.crt", "--ca-key", "{ca}.key", "--common-name", "x", *given),
                2,
                told,
                id=why,
            )
            for given, told, why in (
                (
                    ("--common-name", "jane\n"),
                    "--common-name must be printable text on one line",
                    "a line break in a name",
                ),
                (("--organization", "dev", "--organization", ""), "--organization must not be empty", "an empty group"),
                (("--organization", "\0"), "--organization must be printable text", "a group that is no text"),
                (("--uid", ""), "--uid must not be empty", "an empty uid"),
            )
        ),
        pytest.param(
            ("client", "--ca-cert", "/nowhere", "--ca-key", "/nowhere", "--common-name", "x", "--name", "x"),
            1,
            "/nowhere cannot be read",
            id="no file",
        ),
    ],
)
def test_what_is_refused(mooring: CommandLine, made: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    places = {name: str(made / name) for name in ("ca", "middle", "client")}
    before = set(made.iterdir())
    outcome = mooring("certs", *(one.format(**places) for one in arguments), "--out-dir", str(made))
    if "exists already" in outcome.err:
        outcome = mooring("certs", *(one.format(**places) for one in arguments), "--out-dir", str(made), "--force")
    assert (outcome.code, outcome.out) == (code, "")
    assert told.format(**places) in outcome.err
    assert set(made.iterdir()) == before


@pytest.mark.client
@pytest.mark.skipif(not programs(), reason="kubectl is not installed")
def test_a_server_and_kubectl_take_them(made: Path) -> None:
    files = ("--tls-cert-file", f"{made}/server.crt", "--tls-private-key-file", f"{made}/server.key")
    server = start_server(made / "data", "--client-ca-file", f"{made}/ca.crt", *files)
    kubectl = Kubectl(programs()[-1], made / "kubeconfig", made)
    try:
        for name in ("client", "deep"):
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": f"{made}/ca.crt"}}],
                "users": [{"name": "u", "user": {"client-certificate": f"{made}/{name}.crt", "client-key": f"{made}/{name}.key"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }  # fmt: skip
            kubectl.kubeconfig.write_text(json.dumps(config))
            user = json.loads(kubectl.ok("auth", "whoami", "-o", "json"))["status"]["userInfo"]
            assert (user["username"], user["uid"]) == ("jane", "42")
            assert set(user["groups"]) == {"dev", "ops", "system:authenticated"}
    finally:
        server.stop()


def test_certs_client_signs_with_a_ca_whose_name_is_in_latin_1(tmp_path: Path, mooring: CommandLine) -> None:
    ca = root(name(attribute(COMMON_NAME, T61, "Société".encode("latin-1"))))
    (tmp_path / "ca.crt").write_bytes(ca.pem)
    (tmp_path / "ca.key").write_bytes(private_key_pem(ca.key))
    (tmp_path / "ca.key").chmod(0o600)
    pair = ("--ca-cert", str(tmp_path / "ca.crt"), "--ca-key", str(tmp_path / "ca.key"), "--out-dir", str(tmp_path))
    assert mooring("certs", "client", *pair, "--common-name", "joe", "--name", "joe").code == 0
    assert certificates((tmp_path / "joe.crt").read_bytes())[0].issuer == certificates(ca.pem)[0].subject


@pytest.mark.parametrize("command", ["ca", "client", "server"])
def test_files_that_cannot_be_written_are_known_before_anything_is_signed(
    command: str, tmp_path: Path, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.crt").mkdir()
    more = {"ca": (), "client": ("--common-name", "a"), "server": ("--dns", "a.example")}[command]
    signing = () if command == "ca" else ("--ca-cert", "/nonexistent/ca.crt", "--ca-key", "/nonexistent/ca.key")
    outcome = mooring("certs", command, *signing, *more, "--out-dir", str(tmp_path), "--name", "x", "--force")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"Error: {tmp_path}/x.crt cannot be written: it is a directory; name a file\n"
    assert [one.name for one in tmp_path.iterdir()] == ["x.crt"]


def test_pin_and_join_line_are_known_before_the_server_starts(mooring: CommandLine, tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    place = ("--data-dir", str(data))
    pin = mooring.done("certs", "ca", *place).removesuffix("\n")
    token = mooring.done("token", "generate").removesuffix("\n")
    again = mooring("certs", "ca", *place, "--token", token)
    assert again.err == f"{data}/pki/ca.crt is kept as it is.\n"
    assert again.out == f"mooring join ADDRESS:6443 --token {token} --discovery-token-ca-cert-hash {pin}\n"
    line = mooring.done("certs", "ca", *place, "--token", token, "--control-plane-endpoint", f"127.0.0.1:{port}")
    mooring.done("init", *place, "--bind-address", "127.0.0.1", "--secure-port", str(port), "--token", token)
    server = start_server(data, port=port)
    try:
        mooring.done(*shlex.split(line)[1:], "--root", str(tmp_path / "root"), "--node-name", "early")
    finally:
        server.stop()


def test_runs_of_certs_ca_at_the_same_time_print_the_one_ca_of_a_data_directory(
    mooring: CommandLine, tmp_path: Path
) -> None:
    place = ("certs", "ca", "--data-dir", str(tmp_path / "data"))
    with ThreadPoolExecutor() as runs:
        # Another run, or a server, has the lock and makes its keys.
        with exclusive(tmp_path / "data"):
            beside = [runs.submit(process, *place) for _ in range(3)]
            pin = mooring.done("certs", "ca", "--out-dir", str(tmp_path / "data" / "pki"))
        outcomes = [one.result() for one in beside]
    assert [(one.code, one.out) for one in outcomes] == [(0, pin)] * 3
    fresh = ("certs", "ca", "--data-dir", str(tmp_path / "fresh"))
    with ThreadPoolExecutor() as runs:
        outcomes = list(runs.map(lambda _: process(*fresh), range(3)))
    assert {(one.code, one.out) for one in outcomes} == {(0, mooring.done(*fresh))}


def test_a_run_of_certs_ca_that_was_killed_between_its_files_is_finished_by_the_next(
    mooring: CommandLine, tmp_path: Path
) -> None:
    place, pki = ("certs", "ca", "--data-dir", str(tmp_path / "data")), tmp_path / "data" / "pki"
    mooring.done(*place)
    key = (pki / "ca.key").read_bytes()
    (pki / "ca.crt").unlink()
    finished = mooring(*place, "--common-name", "again")
    assert finished.err.startswith(f"Wrote {pki}/ca.crt: CN=again, valid until ")
    assert (pki / "ca.key").read_bytes() == key
    assert mooring.done(*place) == finished.out
    (pki / "ca.crt").unlink()
    (pki / "ca.key").write_text("damaged")
    refused = mooring(*place)
    assert (refused.code, f"{pki}/ca.key: " in refused.err) == (1, True), refused.err
    assert not (pki / "ca.crt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data-dir", "{}", "--lifetime", "1s"), "--lifetime must be at least 1m"),
        (("--data-dir", "{}", "--common-name", ""), "--common-name must not be empty"),
        (("--data-dir", "{}", "--out-dir", "{}", "--force"), "--data-dir cannot be mixed with --force, --out-dir"),
        (("--data-dir", "{}", "--key", "pkcs11:token=a"), "--data-dir cannot be mixed with --key"),
        (("--data-dir", ""), "--data-dir"),
        (("--data-dir", "{}", "--control-plane-endpoint", "a.example"), "only of use with --token"),
        (("--out-dir", "{}", "--token", "abcdef.0123456789abcdef"), "are only of use with --data-dir"),
        (("--data-dir", "{}", "--token", "abcdef"), "the bootstrap token is not of the form"),
    ],
)
def test_no_ca_of_a_data_directory_is_made_with(
    mooring: CommandLine, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = mooring("certs", "ca", *(text.format(tmp_path / "data") for text in arguments))
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err
    assert not (tmp_path / "data").exists()
