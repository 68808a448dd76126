"""ID tokens of a certified provider, with every algorithm and with keys that have names.

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.compat.openid import configuration, flags, issuer, refused, review_self, user_of
from tests.support.liveserver import start_server
from tests.support.nodeprovider import WHY, NodeProvider
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

pytestmark = pytest.mark.skipif(bool(WHY), reason=f"a provider in Node: {WHY}")

USERS = {
    "jane": {"email": "jane@example.com", "email_verified": True, "groups": ["dev"]},
    "unverified": {"email": "unverified@example.com", "email_verified": False},
}


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA("provider", datetime.now(UTC))


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "PS384", "ES256", "ES384", "ES512"])
def test_every_algorithm_of_a_provider(algorithm: str, ca: ThrowawayCA, tmp_path: Path) -> None:
    file = tmp_path / "authentication.yaml"
    with NodeProvider(ca, tmp_path, USERS, algorithm=algorithm) as provider:
        file.write_text(configuration(issuer(provider.issuer, ca, groups={"claim": "groups", "prefix": "a:"})))
        server = start_server(tmp_path / "data", "--authentication-config", str(file))
        try:
            eventually(lambda: "are known" in server.log, server)
            user = user_of(server, provider.id_token("jane"))
            assert (user["username"], user["groups"]) == ("a:jane", ["a:dev", "system:authenticated"])
            assert refused(server, provider.id_token("jane", client_id="dashboard")).startswith("wrong-audience")
        finally:
            assert server.stop() == 0


def test_a_rotation_with_named_keys(ca: ThrowawayCA, tmp_path: Path) -> None:
    with NodeProvider(ca, tmp_path, USERS) as provider:
        server = start_server(tmp_path / "data", *flags(provider), "--oidc-signing-algs", "ES256")
        try:
            eventually(lambda: "are known" in server.log, server)
            before = provider.id_token("jane")
            assert user_of(server, before)["username"] == "oidc:jane@example.com"
            assert refused(server, provider.id_token("unverified")).startswith("email-not-verified")
            provider.rotate()
            assert review_self(server, provider.id_token("jane"))[0] == 201, "the new key is found at once"
            assert refused(server, before).startswith("unknown-key"), "and the old one is gone"
        finally:
            assert server.stop() == 0


def test_an_algorithm_that_is_not_allowed_for_the_issuer(ca: ThrowawayCA, tmp_path: Path) -> None:
    with NodeProvider(ca, tmp_path, USERS) as provider:
        server = start_server(tmp_path / "data", *flags(provider))
        try:
            eventually(lambda: "are known" in server.log, server)
            assert refused(server, provider.id_token("jane")).startswith("unsupported-algorithm (issuer")
        finally:
            assert server.stop() == 0
