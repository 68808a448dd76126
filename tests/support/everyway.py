"""A whole server with every authenticator turned on, and one good credential for each (tests/attack).

Rules kept here: outside services reject every credential, the OpenID provider with a server error; the good credentials are real,
so that damaged ones differ from them as little as possible.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mooring.authn import login as usertoken
from mooring.authn.oidc.authenticator import Published
from mooring.authn.passwordhash import PasswordHash
from mooring.authn.serviceaccountsettings import DEFAULT_ISSUER
from mooring.identity import UserInfo
from mooring.pki.jwt.keyset import parse_key_set
from mooring.pki.jwt.serviceaccount import LEGACY_ISSUER, Bound, LegacyToken, bound_claims
from mooring.pki.jwt.token import TokenSigner
from mooring.secret import Secret
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.refused import IDP, KUBECONFIG, OIDC, PROXIES, Answering, answered, reviewed
from tests.support.serverroom import Server, open_server
from tests.support.testca import Pair

FILE_TOKEN = "31ada4fd-adec-460c-809a-9e56ceb75269"
PASSWORD = "correct-horse-battery-staple"
HASHED = "tr0ub4dor-and-three"
_SALT = bytes(16)


@dataclass(frozen=True)
class EveryWay:
    """The server, and the credentials that it accepts."""

    server: Server
    tokens: Mapping[str, str]
    passwords: Mapping[str, str]
    client: Pair
    proxy: Pair

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret parts of the credentials: passwords, and the last part of each token."""
        parts = [text.rpartition(".")[2] for text in self.tokens.values()]
        return (*parts, *self.passwords.values())


def _options(directory: Path) -> Any:
    cheap = PasswordHash(10, 1, 1, _SALT, bytes(32))  # a real cost would dominate the test
    hashed = PasswordHash(10, 1, 1, _SALT, cheap.derive(Secret(HASHED))).text()
    files = {
        "tokens.csv": f'{FILE_TOKEN},filed,1,"a,b"\n',
        "passwords.csv": f'{PASSWORD},plain,1\n"{hashed}",slow,2\n',
        "hook.kubeconfig": KUBECONFIG,
        "proxies.crt": PROXIES.certificate_pem.decode(),
    }
    for name, text in files.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    return {
        "token_auth_file": str(directory / "tokens.csv"),
        "basic_auth_file": str(directory / "passwords.csv"),
        "requestheader_client_ca_file": str(directory / "proxies.crt"),
        "requestheader_allowed_names": ("front",),
        "requestheader_username_headers": ("X-Remote-User",),
        "requestheader_group_headers": ("X-Remote-Group",),
        "requestheader_extra_headers_prefix": ("X-Remote-Extra-",),
        "authentication_token_webhook_config_file": str(directory / "hook.kubeconfig"),
        "authentication_token_webhook_version": "v1beta1",
        "keystone_url": "https://keystone.example",
        "authenticators": [{"name": "guest", "class": "tests.support.guestauthenticator:Guest"}],
        "oidc_issuer_url": OIDC["oidc_issuer_url"],
        "oidc_client_id": OIDC["oidc_client_id"],
    }


@asynccontextmanager
async def every_way(directory: Path, **flags: Any) -> AsyncIterator[EveryWay]:
    async with open_server(**_options(directory), **flags) as server:
        authentication = server.assembly.trust.authentication
        authentication.host.targets["webhook"] = Answering(reviewed(authenticated=False))
        authentication.host.targets["keystone"] = Answering(answered(401))
        (issuer,) = server.authenticator("oidc").issuers
        authentication.host.targets[issuer.provider.target] = Answering(answered(500))
        keys = parse_key_set(key_set(public(key_for("RS256"))))
        issuer.learn(Published(keys, f"{IDP}/keys", timedelta(hours=1)), server.clock.now())
        yield EveryWay(
            server,
            await _tokens(server),
            {"plain": PASSWORD, "slow": HASHED},
            server.ca.client("jane", "team"),
            PROXIES.custom(
                "front",
                not_before=server.clock.now() - timedelta(hours=1),
                not_after=server.clock.now() + timedelta(days=2),
            ),
        )


async def _tokens(server: Server) -> dict[str, str]:
    now = server.clock.now()
    account = (await server.create("serviceaccounts", {"metadata": {"name": "robot"}})).obj["metadata"]["uid"]
    key = server.token_key
    bound = bound_claims(
        issuer=DEFAULT_ISSUER,
        namespace="default",
        service_account=Bound("robot", account),
        audiences=[DEFAULT_ISSUER],
        now=now,
        lifetime=timedelta(hours=1),
        jti="1",
    )
    legacy = TokenSigner(key, LEGACY_ISSUER).sign(LegacyToken("default", "old", "robot", account).claims())
    metadata = {
        "name": "old",
        "annotations": {"kubernetes.io/service-account.name": "robot", "kubernetes.io/service-account.uid": account},
    }
    data = {"token": base64.b64encode(legacy.encode()).decode()}
    await server.create("secrets", {"metadata": metadata, "type": "kubernetes.io/service-account-token", "data": data})
    login = usertoken.claims_of(
        UserInfo("jane", "7", ("team",)),
        audiences=[DEFAULT_ISSUER],
        now=now,
        lifetime=timedelta(hours=1),
        token_id="8",
    )
    seconds = int(now.timestamp())
    return {
        "token file": FILE_TOKEN,
        "bootstrap token": await server.bootstrap_token(),
        "bound service account token": TokenSigner(key, DEFAULT_ISSUER).sign(bound),
        "legacy service account token": legacy,
        "login token": TokenSigner(key, usertoken.ISSUER).sign(login),
        "ID token": signed({"iss": IDP, "aud": "us", "sub": "jane", "exp": seconds + 3600}, key_for("RS256")),
    }
