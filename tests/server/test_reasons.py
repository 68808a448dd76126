"""One refusal for each reason code, brought about in a real server and explained under the id that the caller got.

To add a code: a row in `CASES` that makes the server refuse with it; or, where no request can, a line in `ELSEWHERE` with the place
that proves it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from mooring.authn.reasons import reasons
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509 import names
from tests.support.refused import (
    BEARER,
    CA_BIT,
    CLIENT,
    DOWN,
    ECDSA_SHA256,
    FRONT,
    LIMITS,
    SERVER,
    STRANGE,
    TOKEN,
    UNLISTED,
    Case,
    an_ordinary_secret,
    answered,
    behind_crls,
    below,
    bootstrap,
    bound_to,
    bound_to_another,
    deep,
    from_elsewhere,
    hooked,
    id_token,
    identity_token,
    keystone,
    long_unused,
    member,
    named,
    nothing,
    on_its_way_out,
    password,
    presented,
    proxied,
    restricted,
    reviewed,
    revoked,
    service_token,
    subprotocols,
    token,
    unclaimed,
)
from tests.support.serverroom import open_server
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA, name_of, user_name

EXPLAIN = "/debug/authentication/refusals"

DEMANDING = (x509.PolicyConstraints(require_explicit_policy=0, inhibit_policy_mapping=None), True)
CASES: Mapping[str, Case] = {
    "claims-not-allowed": identity_token(sub="another"),
    "join-rule-ended": identity_token(sub="machine", ended=True),
    "nothing-offered": nothing(),
    "path-not-anonymous": nothing("{enabled: true, conditions: [{path: /livez}]}"),
    "network-not-anonymous": from_elsewhere(),
    "unknown-token": token("what is this"),
    "unknown-id": token(TOKEN),
    "wrong-secret": bootstrap("abcdef.fedcba9876543210"),
    "id-mismatch": bootstrap(token_id="abcdee"),
    "expired": bootstrap(later=3600 * 4),
    "usage-missing": bootstrap(usage_bootstrap_authentication="no"),
    "bad-groups": bootstrap(auth_extra_groups="system:masters"),
    "bad-restrictions": restricted("anywhere"),
    "network-not-allowed": restricted("10.0.0.0/8,fd00::/64"),
    "deleting": Case(on_its_way_out),
    "wrong-type": Case(an_ordinary_secret),
    "certificate-on-crl": behind_crls(FRONT, present=FRONT),
    "crl-missing": behind_crls(present=UNLISTED.client("front"), client_crl_strict=True),
    "crl-not-current": behind_crls(days=8, present=FRONT, client_crl_strict=True),
    "unknown-ca": presented(lambda ca: [ThrowawayCA("stranger", ca.now).client("jane")]),
    "bad-signature": presented(lambda ca: [ThrowawayCA("kubernetes", ca.now).client("jane")]),
    "malformed": presented(lambda ca: [b"junk"]),
    "too-large": presented(lambda ca: [ca.client("jane")] * 11),
    "not-yet-valid": presented(lambda ca: [ca.custom("jane", not_before=ca.now + timedelta(seconds=40))]),
    "weak-key": presented(lambda ca: [ca.custom("jane", key=rsa_key(1024))]),
    "weak-signature": presented(lambda ca: [ca.client("jane").der.replace(ECDSA_SHA256, ECDSA_SHA256[:-1] + b"\x7f")]),
    "unknown-critical-extension": presented(lambda ca: [ca.custom("jane", extensions=[CLIENT, STRANGE])]),
    "not-a-ca": below(lambda ca: ca.client("john")),
    "path-too-long": presented(deep),
    "constrained-names": below(lambda ca: ca.custom("limited", extensions=[CA_BIT, LIMITS])),
    "no-valid-policy": below(lambda ca: ca.custom("strict", extensions=[CA_BIT, DEMANDING])),
    "wrong-usage": presented(lambda ca: [ca.custom("jane", extensions=[SERVER])]),
    "bad-uid": presented(
        lambda ca: [ca.custom(name_of(user_name("jane"), (names.UID_ATTRIBUTE, "1"), (names.UID_ATTRIBUTE, "2")))]
    ),
    "certificate-revoked": revoked(lambda pair: {"serialNumber": f"{pair.certificate.serial_number:x}"}),
    "certificate-key-revoked": revoked(lambda pair: {"publicKey": f"sha256:{public_key_fingerprint(pair.key)}"}),
    "certificate-node-revoked": revoked(lambda pair: {"nodeName": "n1", "issuedBefore": "2999-01-01T00:00:00Z"}),
    "certificate-without-common-name": Case(presented(lambda ca: [ca.custom(x509.Name([]))]).drive, status=403),
    "recovery-not-a-node": presented(
        lambda ca: [ca.custom("jane", not_after=ca.now - timedelta(seconds=1))], authorization="Mooring-Recovery"
    ),
    "node-deleted": member({"nodeUID": "gone"}),
    "node-key-replaced": member({"keys": [{"publicKey": f"sha256:{'0' * 64}", "notAfter": "2099-01-01T00:00:00Z"}]}),
    "unsupported-algorithm": service_token(header={"alg": "none"}),
    "unknown-key": service_token(stranger=True),
    "missing-expiry": service_token(exp=None),
    "issued-in-future": service_token(iat=100),
    "wrong-audience": service_token(aud=["somebody else"]),
    "malformed-claims": service_token(sub="somebody else"),
    "bound-object-gone": bound_to("secret"),
    "bound-object-replaced": Case(bound_to_another),
    "bound-object-deleted": bound_to("secret", deleted=True),
    "provider-not-ready": id_token(ready=False),
    "keys-not-fetched": id_token(kid="another"),
    "missing-claim": id_token(sub=None),
    "malformed-claim": id_token(email=5),
    "email-not-verified": id_token(email="jane@example.com", email_verified=False),
    "mapping-failed": id_token(rules=True, name=""),
    "claim-rule": id_token(rules=True, good=False),
    "wrong-claim": id_token(rules=True, team="red"),
    "user-rule": id_token(rules=True, name="mallory"),
    "distributed-claim": id_token(
        rules=True, _claim_names={"groups": "there"}, _claim_sources={"there": {"endpoint": "http://plain.example"}}
    ),
    "proxy-name-not-allowed": proxied("back", ("X-Remote-User", "jane")),
    "name-not-utf8": proxied("front", ("X-Remote-User", "M\xfcller")),
    "no-user-header": Case(proxied("front").drive, proxied("front").options),
    "token-repeated": subprotocols(f"{BEARER}YQ", f"{BEARER}YQ", "x"),
    "token-not-base64url": subprotocols(f"{BEARER}Y", "x"),
    "token-not-utf8": subprotocols(f"{BEARER}_w", "x"),
    "no-other-subprotocol": subprotocols(f"{BEARER}YQ"),
    "invalidated": Case(long_unused),
    "unknown-user": password("john"),
    "unknown-password": password(""),
    "unknown-credential": unclaimed("Negotiate"),
    "wrong-password": password("jane"),
    "webhook-unreachable": hooked(DOWN),
    "webhook-error": hooked(answered(403)),
    "webhook-bad-answer": hooked(answered(200, b"junk")),
    "refused-by-webhook": hooked(reviewed(authenticated=False, error="no such session")),
    "token-too-long": hooked(DOWN, b"x" * 70_000),
    "token-not-text": hooked(DOWN, b"t\xfcken"),
    "no-keystone-name": keystone(DOWN, "jane@"),
    "wrong-user-or-password": keystone(answered(401)),
    "needs-more-than-a-password": keystone(answered(401, openstack_auth_receipt="r")),
    "keystone-forbids": keystone(answered(403)),
    "keystone-not-found": keystone(answered(404)),
    "keystone-busy": keystone(answered(429)),
    "keystone-failed": keystone(answered(500)),
    "keystone-unexpected-status": keystone(answered(302)),
    "keystone-unreachable": keystone(DOWN),
    "keystone-answer-unreadable": keystone(answered(201, b"junk")),
    "reserved-name": keystone(named("system:admin")),
}

ELSEWHERE: Mapping[str, str] = {
    "not-asked": "tests/authn/test_chain.py: it stands beside another verdict",
    "undecided": "tests/authn/test_chain.py: no authenticator of ours asks twice",
    "timed-out": "tests/server/test_deferred.py",
    "failed": "tests/server/test_deferred.py",
    "too-busy": "tests/server/test_deferred.py",
    "too-many-guesses": "tests/server/test_deferred.py",
    "wrong-issuer": "tests/pki/test_jwt.py: a token of another issuer is nobody's here, which is unknown-token",
    "bound-object-unknown-kind": "tests/authn/test_serviceaccount.py: every kind that a claim can name is kept here",
    "wrong-join-token": "tests/server/test_supervisor.py: on paths of the supervisor only",
    "rotated-token": "tests/server/test_supervisor.py",
    "rotated-agent-token": "tests/server/test_supervisor.py",
    "supervisor-no-credential": "tests/server/test_supervisor.py",
    "supervisor-wrong-group": "tests/server/test_supervisor.py",
    "retired-ca": "tests/pki/test_verify.py, tests/controlplane/rollover/test_files.py",
    "bad-serial-number": "tests/pki/test_verify.py: openssl makes such a certificate, the library does not",
    "object-unreadable": "tests/server/test_unreadable.py",
    "supervisor-impersonation": "tests/server/test_supervisor.py",
    "supervisor-no-node": "tests/server/test_supervisor.py",
}


@pytest.mark.parametrize("code", CASES)
def test_a_refusal_is_explained_by(code: str, tmp_path: Path) -> None:
    case = CASES[code]

    async def body() -> None:
        async with open_server(**case.options(tmp_path)) as server:
            refused = await case.drive(server)
            assert refused.status == case.status, refused.text
            if case.status == 401:
                assert refused.message == "Unauthorized"
            told = (await server.get(f"{EXPLAIN}/{refused.headers['audit-id']}")).obj
            reasons = {step.get("reason") for step in told["authenticators"]}
            assert code in reasons | {told.get("why")}, told
            assert case.status != 401 or told["why"] == code, "this reason heads the record"
            assert TOKEN.partition(".")[2] not in json.dumps(told)

    asyncio.run(body())


def test_every_reason_is_brought_about() -> None:
    assert CASES.keys() & ELSEWHERE.keys() == set()
    assert set(reasons()) - CASES.keys() - ELSEWHERE.keys() == set()
    assert (CASES.keys() | ELSEWHERE.keys()) - set(reasons()) == set()
