"""Keys of CAs in PKCS#11 tokens, with SoftHSM: what they sign, and what is said when they cannot."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring.controlplane.tokenkey import open_key
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import DeviceError, KeyRefusedError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from tests.support.commandline import process
from tests.support.softhsm import MISSING, MODULE, PIN, SoftHsm, soft_hsm
from tests.support.testca import by_library

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "SoftHSM is here")

NOW = datetime(2026, 5, 1, tzinfo=UTC)
KEYS = {"ec256": "ECDSA-P256", "ec384": "ECDSA-P384", "rsa": "RSA-2048", "ed": "Ed25519"}


class Room:
    """One token with a key of each algorithm, and a CA certificate of each."""

    def __init__(self, hsm: SoftHsm) -> None:
        self.hsm = hsm
        hsm.make_token("ca")
        hsm.make_token("other")
        self.certificates: dict[str, Certificate] = {}
        for number, (label, algorithm) in enumerate(KEYS.items(), 1):
            key = generate_key(algorithm)
            self.certificates[label] = self_signed_ca(key, label, NOW, number).certificate
            if label != "ed":
                hsm.put_key("ca", label, key, f"{number:02x}")
        for twin in ("0a", "0b"):
            hsm.put_key("ca", "twice", generate_key(), twin)
        hsm.reload()

    def uri(self, label: str, token: str = "ca") -> str:
        return self.hsm.uri(token, label)

    def authority(self, label: str) -> Authority:
        certificate = self.certificates[label]
        return Authority(certificate, open_key(self.uri(label), [certificate]))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with soft_hsm(tmp_path_factory.mktemp("hsm")) as hsm:
        yield Room(hsm)


@pytest.mark.parametrize("label", ["ec256", "ec384", "rsa"])
def test_a_key_in_a_token_signs_certificates(room: Room, label: str) -> None:
    authority = room.authority(label)
    key = generate_key()
    template = profiles.client(key.public_key(), NOW, "somebody", (), timedelta(hours=1))
    certificate = authority.sign(template, NOW, 7)
    by_library(certificate).verify_directly_issued_by(by_library(room.certificates[label]))
    assert authority.in_device


def test_the_key_of_the_first_certificate_that_belongs_to_it_signs(room: Room) -> None:
    bundle = [room.certificates[label] for label in ("ed", "ec384", "rsa", "ec256")]
    assert open_key(room.uri("ec256"), bundle).public_key() == bundle[3].public_key()


def test_the_id_of_a_key_finds_it(room: Room) -> None:
    uri = f"pkcs11:token=ca;id=%01?module-path={MODULE}&pin-source={room.hsm.pin_file}"
    assert open_key(uri, [room.certificates["ec256"]]).public_key() == room.certificates["ec256"].public_key()


def test_a_session_that_ended_is_opened_again(room: Room) -> None:
    import pkcs11

    authority = room.authority("ec256")
    template = profiles.client(generate_key().public_key(), NOW, "somebody", (), timedelta(hours=1))
    authority.sign(template, NOW, 1)
    pkcs11.lib(MODULE).reinitialize()  # ends every session, as the removal of the token does
    by_library(authority.sign(template, NOW, 2)).verify_directly_issued_by(by_library(room.certificates["ec256"]))


def test_a_token_that_is_gone_fails_the_signature_until_it_is_back(room: Room) -> None:
    import pkcs11

    authority = room.authority("rsa")
    template = profiles.client(generate_key().public_key(), NOW, "somebody", (), timedelta(hours=1))
    tokens = room.hsm.directory / "tokens"
    away = tokens.rename(room.hsm.directory / "away")
    tokens.mkdir()
    pkcs11.lib(MODULE).reinitialize()
    try:
        with pytest.raises(
            DeviceError, match=r'no token of .* is the one of the key "rsa" in the token "ca": insert it'
        ):
            authority.sign(template, NOW, 3)
    finally:
        tokens.rmdir()
        away.rename(tokens)
    pkcs11.lib(MODULE).reinitialize()
    by_library(authority.sign(template, NOW, 4)).verify_directly_issued_by(by_library(room.certificates["rsa"]))


def test_the_pin_may_stand_in_the_environment(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"pkcs11:token=ca;object=rsa?module-path={MODULE}&pin-source=env:HSM_PIN"
    monkeypatch.setenv("HSM_PIN", PIN)
    open_key(uri, [room.certificates["rsa"]])
    monkeypatch.delenv("HSM_PIN")
    with pytest.raises(ConfigError, match="the environment variable HSM_PIN of pin-source is not set"):
        open_key(uri, [room.certificates["rsa"]])


@pytest.mark.parametrize(
    ("token", "label", "message"),
    [
        pytest.param("gone", "rsa", 'is the one of the key "rsa" in the token "gone": insert it', id="no such token"),
        pytest.param("ca", "gone", 'the key "gone" in the token "ca" is not there', id="no such key"),
        pytest.param("ca", "twice", "several keys are called so; give id= as well", id="two keys of one name"),
        pytest.param("ca", "ec256", "does not belong to the CA certificate", id="the key of another certificate"),
    ],
)
def test_what_is_missing_is_named(room: Room, token: str, label: str, message: str) -> None:
    with pytest.raises(MooringError) as raised:
        open_key(room.uri(label, token), [room.certificates["rsa"]])
    assert message in str(raised.value)


def test_a_module_that_is_missing_is_named(room: Room) -> None:
    uri = room.uri("rsa").replace(MODULE, "/nowhere/module.so")
    with pytest.raises(DeviceError, match=r'the key "rsa" in the token "ca" cannot be opened with /nowhere/module.so'):
        open_key(uri, [room.certificates["rsa"]])


def test_without_a_login_the_private_key_is_hidden(room: Room) -> None:
    import pkcs11

    pkcs11.lib(MODULE).reinitialize()  # a login is for all sessions of a process
    uri = f"pkcs11:token=ca;object=rsa?module-path={MODULE}"
    with pytest.raises(KeyRefusedError, match="give pin-source, because a token hides private keys before the login"):
        open_key(uri, [room.certificates["rsa"]])


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"1" * 300])
def test_a_file_without_a_pin_is_named(room: Room, tmp_path: Path, content: bytes) -> None:
    pin = tmp_path / "pin"
    pin.write_bytes(content)
    pin.chmod(0o600)
    with pytest.raises(ConfigError, match="it holds no PIN: write the PIN alone into it"):
        open_key(f"pkcs11:token=ca;object=rsa?module-path={MODULE}&pin-source={pin}", [room.certificates["rsa"]])


def test_a_wrong_pin_is_tried_once(room: Room, tmp_path: Path) -> None:
    import pkcs11

    authority = room.authority("rsa")
    pkcs11.lib(MODULE).reinitialize()
    room.hsm.pin_file.write_text("999999")
    try:
        with pytest.raises(
            KeyRefusedError, match=r"the token refuses the PIN of pin-source \(PinIncorrect\)"
        ) as raised:
            open_key(room.uri("rsa"), [room.certificates["rsa"]])
    finally:
        room.hsm.pin_file.write_text(f"{PIN}\n")
    assert "999999" not in str(raised.value)
    template = profiles.client(generate_key().public_key(), NOW, "somebody", (), timedelta(hours=1))
    authority.sign(template, NOW, 5)  # another key of the token has the right PIN in memory


def test_a_pin_that_was_changed_while_the_server_runs_is_refused_once(room: Room) -> None:
    import pkcs11

    def change_pin(old: str, new: str) -> None:
        module = pkcs11.lib(MODULE)
        module.reinitialize()
        with module.get_token(token_label="ca").open(rw=True, user_pin=old) as session:
            session.set_pin(old, new)
        module.reinitialize()

    authority = room.authority("rsa")
    template = profiles.client(generate_key().public_key(), NOW, "somebody", (), timedelta(hours=1))
    change_pin(PIN, "161803")
    try:
        with pytest.raises(KeyRefusedError, match="the token refuses the PIN"):
            authority.sign(template, NOW, 6)
        with pytest.raises(DeviceError, match="is not opened again: the token refused the PIN; correct it and restart"):
            authority.sign(template, NOW, 6)
    finally:
        change_pin("161803", PIN)


def test_the_key_cannot_be_copied_or_written_out(room: Room) -> None:
    key = open_key(room.uri("ec256"), [room.certificates["ec256"]])
    assert copy.copy(key) is key
    assert copy.deepcopy(key) is key
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert (key.key_size, key.curve.name) == (256, "secp256r1")
    assert PIN not in repr(vars(key))
    private = open_key(room.uri("rsa"), [room.certificates["rsa"]])
    assert isinstance(private, rsa.RSAPrivateKey)
    assert copy.deepcopy(copy.copy(private)) is private
    assert private.key_size == 2048
    for use in (
        lambda: key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        key.private_numbers,
        lambda: key.exchange(ec.ECDH(), key.public_key()),
        lambda: private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        private.private_numbers,
        lambda: private.decrypt(b"", padding.PKCS1v15()),
        lambda: private.sign(b"", padding.PKCS1v15(), hashes.SHA512()),
    ):
        with pytest.raises(DeviceError, match="signs certificates, and does nothing else"):
            use()


def test_mooring_certs_makes_a_ca_of_a_key_in_a_token_and_signs_with_it(room: Room, tmp_path: Path) -> None:
    import pkcs11

    module = pkcs11.lib(MODULE)
    module.reinitialize()
    with module.get_token(token_label="other").open(rw=True, user_pin=PIN) as session:
        curve = session.create_domain_parameters(
            pkcs11.KeyType.EC,
            {pkcs11.Attribute.EC_PARAMS: pkcs11.util.ec.encode_named_curve_parameters("secp256r1")},
            local=True,
        )
        curve.generate_keypair(store=True, label="made")
        session.generate_keypair(pkcs11.KeyType.RSA, 2048, store=True, label="made-rsa")
    for label in ("made", "made-rsa"):
        uri = room.uri(label, "other")
        made = process("certs", "ca", "--key", uri, "--common-name", label, "--name", label, "--out-dir", str(tmp_path))
        assert made.code == 0, made.err
        assert not (tmp_path / f"{label}.key").exists()
        (ca,) = certificates((tmp_path / f"{label}.crt").read_bytes())
        issuer = ("--ca-cert", f"{tmp_path}/{label}.crt", "--ca-key", uri)
        signed = process(
            "certs", "client", *issuer, "--common-name", "jane", "--name", f"jane-{label}", "--out-dir", str(tmp_path)
        )
        assert signed.code == 0, signed.err
        leaf = certificates((tmp_path / f"jane-{label}.crt").read_bytes())[0]
        by_library(leaf).verify_directly_issued_by(by_library(ca))
    wrong = process("certs", "ca", "--key", room.uri("gone", "other"), "--out-dir", str(tmp_path))
    assert (wrong.code, wrong.err) == (1, 'Error: --key: the key "gone" in the token "other" is not there\n')
    alone = process("certs", "ca", "--key", room.uri("twice"), "--out-dir", str(tmp_path))
    assert "several keys are called so" in alone.err
