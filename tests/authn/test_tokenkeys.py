"""Files of token keys that change while the server runs.

Source: docs/protocol/service-account-tokens.md#keys-and-flags.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.view import FixedView
from mooring.authn.credentials import Credentials
from mooring.authn.lastuses import LastUses
from mooring.authn.login import UserTokenAuthenticator, claims_of
from mooring.authn.serviceaccount import LegacyServiceAccountAuthenticator, ServiceAccountAuthenticator
from mooring.authn.verdict import Accepted, Rejected
from mooring.controlplane.configuration import server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.keystore import KeyStore, prepare
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.pki.jwt.token import TokenSigner
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem, public_key_pem
from mooring.secret import Secret
from mooring.server.authentication.providers import FollowedTokenKeys
from tests.support.slowkeys import rsa_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ISSUER = "https://kubernetes.default.svc.cluster.local"
VIEWS = {"serviceaccounts": FixedView([{"metadata": {"name": "sa", "namespace": "ns", "uid": "u"}}])}
CLAIMS = {
    "iss": ISSUER,
    "sub": "system:serviceaccount:ns:sa",
    "aud": [ISSUER],
    "exp": int(NOW.timestamp()) + 600,
    "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "sa", "uid": "u"}},
}
OLD, NEW, OTHER = generate_key(), generate_key("ECDSA-P384"), rsa_key(2048)
ED25519 = generate_key("Ed25519")


class Server:
    """A data directory, its keys, and the authenticators that verify with them."""

    def __init__(self, root: Path, **flags: Any) -> None:
        self.root = root
        self.reloading = Reloading()
        config = server_config(data_dir=str(root), **flags)
        self.key_store: KeyStore = prepare(config, NOW, secrets.token_bytes).key_store
        self.followed = FollowedTokenKeys(
            self.key_store.token_key,
            self.key_store.token_keys,
            issuer=ISSUER,
            signing_file=self.key_store.token_signing_file,
            verifying_files=self.key_store.token_key_files,
            files=self.reloading,
        )
        self.keys = self.followed.keys
        self.bound = ServiceAccountAuthenticator((ISSUER,), self.keys.verifying)
        legacy = LegacyServiceAccountAuthenticator(self.keys.verifying, (), LastUses())
        self.user = UserTokenAuthenticator(self.keys.verifying)
        for one in (legacy, self.bound, self.user):
            self.followed.subscribe(one.replace)

    def judge(self, token: str) -> str:
        verdict = self.bound.authenticate(Credentials(bearer=Secret(token)), VIEWS, NOW, ())
        if isinstance(verdict, Accepted):
            return "accepted"
        assert isinstance(verdict, Rejected)
        return verdict.reason

    def judge_login(self, token: str) -> str:
        verdict = self.user.authenticate(Credentials(bearer=Secret(token)), VIEWS, NOW, ())
        return verdict.reason if isinstance(verdict, Rejected) else type(verdict).__name__.lower()

    def write(self, name: str, data: bytes) -> None:
        (self.root / name).write_bytes(data)
        for _ in range(2):
            asyncio.run(self.reloading.look())


def signed_with(key: PrivateKey) -> str:
    return TokenSigner(key, ISSUER).sign(CLAIMS)


def ids(*keys: PrivateKey) -> tuple[str, ...]:
    return tuple(TokenSigner(key, ISSUER).key_id for key in keys)


def test_a_first_boot_signs_and_verifies_with_keys_of_its_own(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.judge(server.keys.signer.sign(CLAIMS)) == "accepted"
    assert server.keys.key_ids == (server.keys.signer.key_id,)
    assert server.key_store.token_signing_file == str(tmp_path / "pki/sa.key")
    assert server.key_store.token_key_files == (str(tmp_path / "pki/sa.pub"),)


def test_a_rotation_refuses_no_live_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "pki").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    (tmp_path / "pki/sa.key").write_bytes(private_key_pem(OLD))
    (tmp_path / "pki/sa.pub").write_bytes(public_key_pem(OLD))
    server = Server(tmp_path)
    before = server.keys.signer.sign(CLAIMS)
    jane = UserInfo("jane")
    login = server.keys.signer.sign(
        claims_of(jane, audiences=(ISSUER,), now=NOW, lifetime=timedelta(hours=1), token_id="1")
    )
    caplog.set_level(logging.INFO, "mooring.authentication")

    server.write("pki/sa.pub", public_key_pem(OLD) + public_key_pem(NEW))
    assert server.keys.signer.key_id == ids(OLD)[0]
    assert (server.judge(before), server.judge(signed_with(NEW))) == ("accepted", "accepted")

    server.write("pki/sa.key", private_key_pem(NEW))
    assert server.keys.key_ids == ids(NEW, OLD)
    after = server.keys.signer.sign(CLAIMS)
    assert TokenSigner(NEW, ISSUER).key_id == server.keys.signer.key_id
    assert (server.judge(before), server.judge(after)) == ("accepted", "accepted")
    assert server.judge_login(login) == "accepted"
    assert "are refused from now on" not in caplog.text

    server.write("pki/sa.pub", public_key_pem(NEW))
    assert (server.judge(before), server.judge(after)) == ("unknown-key", "accepted")
    assert server.judge_login(login) == "unknown-key"
    assert f"service account tokens signed with the key {ids(OLD)[0]} are refused from now on" in caplog.text


def test_files_that_flags_name_take_the_place_of_our_own(tmp_path: Path) -> None:
    for name, data in (
        ("signing.key", private_key_pem(NEW)),
        ("one.pub", public_key_pem(OLD) + private_key_pem(OTHER)),
        ("two.pub", public_key_pem(OLD)),
    ):
        (tmp_path / name).write_bytes(data)
    server = Server(
        tmp_path / "data",
        service_account_signing_key_file=str(tmp_path / "signing.key"),
        service_account_key_file=(str(tmp_path / "one.pub"), str(tmp_path / "two.pub")),
    )
    assert server.keys.key_ids == ids(NEW, OLD, OTHER)
    assert not (tmp_path / "data/pki/sa.key").exists()
    assert not (tmp_path / "data/pki/sa.pub").exists()
    server.root = tmp_path
    server.write("one.pub", public_key_pem(OTHER))
    assert server.keys.key_ids == ids(NEW, OTHER, OLD), "the other file still holds it"
    server.write("two.pub", public_key_pem(OTHER))
    assert server.keys.key_ids == ids(NEW, OTHER)


def test_a_signing_file_alone_verifies_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_bytes(private_key_pem(NEW))
    server = Server(tmp_path / "data", service_account_signing_key_file=str(tmp_path / "signing.key"))
    assert server.key_store.token_key_files == ()
    assert server.keys.key_ids == ids(NEW)
    server.root = tmp_path
    server.write("signing.key", private_key_pem(OLD))
    assert server.keys.key_ids == ids(OLD)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("pki/sa.pub", b""),
        ("pki/sa.pub", b"-----BEGIN PUBLIC KEY-----\n"),
        ("pki/sa.pub", public_key_pem(ED25519)),
        ("pki/sa.key", b"nonsense"),
        ("pki/sa.key", public_key_pem(NEW)),
        ("pki/sa.key", private_key_pem(ED25519)),
    ],
    ids=[
        "empty",
        "half a key",
        "a key of the wrong kind",
        "no key",
        "a public key alone",
        "a key that signs no tokens",
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    tmp_path: Path, name: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    token, before = server.keys.signer.sign(CLAIMS), server.keys.key_ids
    server.write(name, data)
    assert "the last good content stays in force" in caplog.text
    flag = "service-account-key-file" if name.endswith("pub") else "service-account-signing-key-file"
    assert f"{flag}: " in caplog.text
    assert server.keys.key_ids == before
    assert server.judge(token) == server.judge(server.keys.signer.sign(CLAIMS)) == "accepted"


@pytest.mark.parametrize("data", [b"nonsense", private_key_pem(ED25519)], ids=["nonsense", "the wrong kind"])
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(data)
    named: tuple[dict[str, Any], ...] = (
        {"service_account_signing_key_file": str(path)},
        {"service_account_key_file": (str(path),)},
    )
    for flags in named:
        [flag] = flags
        with pytest.raises(ConfigError, match=f"^{flag.replace('_', '-')}: "):
            Server(tmp_path / "data", **flags)
    path.unlink()
    for flags in named:
        with pytest.raises(ConfigError):
            Server(tmp_path / "data", **flags)
