"""Machines with an expired node certificate: what it proves, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from mooring.api.view import Views
from mooring.authn import x509
from mooring.authn.credentials import CONNECTION, Credentials, PeerMemo
from mooring.authn.recovery import RecoveryAuthenticator, RecoverySettings
from mooring.authn.requestheader import RequestHeaderAuthenticator
from mooring.authn.requestheadersettings import HeaderNames
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.x509 import CertificateCheck, ClientCertificateAuthenticator
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.pki.x509.verify import ClientTrust, ReadChain, VerifiedPeer, read_chain
from mooring.server.authentication.providers import build_recovery
from tests.support.authnhost import AuthnHost, configured
from tests.support.costlycertificates import chain

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CA = self_signed_ca(generate_key(), "kubernetes", NOW - 400 * DAY, 1)
OTHER_CA = self_signed_ca(generate_key(), "elsewhere", NOW - 400 * DAY, 3)
THIRD_CA = self_signed_ca(generate_key(), "third", NOW - 400 * DAY, 5)
KEY = generate_key()
NODE, NODES = "system:node:n1", ("system:nodes",)


def leaf(name: str = NODE, groups: tuple[str, ...] = NODES, ended: timedelta = DAY, authority: Authority = CA) -> bytes:
    """Return a certificate of two days that ended `ended` ago."""
    begin = NOW - ended - 2 * DAY
    template = profiles.client(KEY.public_key(), begin, name, groups, 2 * DAY)
    return authority.sign(template, begin, 3).der


def offered(*peer: bytes, authorization: Sequence[str] = ("Mooring-Recovery",)) -> Credentials:
    return Credentials(tuple(peer), headers=lambda name: authorization if name == "authorization" else ())


def judged(credentials: Credentials, *checks: CertificateCheck) -> Verdict:
    authenticator = RecoveryAuthenticator(ClientTrust([CA.certificate]), checks)
    return authenticator.authenticate(credentials, {}, NOW, ())


def test_an_expired_certificate_of_a_node_is_that_of_a_recovering_node() -> None:
    verdict = judged(offered(leaf()))
    assert isinstance(verdict, Accepted)
    user = verdict.user
    assert (user.username, user.groups, user.uid) == ("system:recovering-node:n1", ("system:recovering-nodes",), "")
    assert user.extra["recovery.mooring.dev/public-key"] == (f"sha256:{public_key_fingerprint(KEY)}",)
    assert user.extra["recovery.mooring.dev/not-after"] == (rfc3339(NOW - DAY),)
    assert user.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")
    assert RecoveryAuthenticator.judges == CONNECTION


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(offered(), id="no certificate"),
        pytest.param(offered(leaf(), authorization=()), id="no header"),
        pytest.param(offered(leaf(), authorization=("Bearer Mooring-Recovery",)), id="another scheme"),
        pytest.param(offered(leaf(), authorization=("Mooring-Recovery x",)), id="a value after the scheme"),
        pytest.param(offered(leaf(ended=timedelta(0))), id="a certificate in its last moment"),
        pytest.param(offered(leaf(ended=-DAY)), id="a valid certificate"),
    ],
)
def test_not_mine(credentials: Credentials) -> None:
    assert judged(credentials) == NotMine()


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        pytest.param(leaf(authority=OTHER_CA), Accepted, id="expired, of the retired CA"),
        pytest.param(leaf(authority=OTHER_CA, ended=-DAY), Accepted, id="valid, of the retired CA"),
        pytest.param(leaf(ended=-DAY), NotMine, id="valid, of the CA of clients"),
        pytest.param(leaf(authority=THIRD_CA), Rejected, id="of neither"),
    ],
)
def test_a_retired_ca_lets_its_machines_come_back(certificate: bytes, expected: type[Verdict]) -> None:
    clients, retired = ClientTrust([CA.certificate]), ClientTrust([OTHER_CA.certificate])
    authenticator = RecoveryAuthenticator(clients, (), retired)
    verdict = authenticator.authenticate(offered(certificate), {}, NOW, ())
    assert isinstance(verdict, expected)


def test_the_scheme_is_read_without_regard_to_case() -> None:
    assert isinstance(judged(offered(leaf(), authorization=(" mooring-recovery ", "x"))), Accepted)


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        pytest.param(offered(b"junk"), "malformed", id="junk"),
        pytest.param(offered(leaf(authority=OTHER_CA)), "unknown-ca", id="a CA that is not trusted"),
        pytest.param(offered(leaf("jane", ("dev",))), "recovery-not-a-node", id="a user"),
        pytest.param(offered(leaf(NODE, ("system:nodes", "system:masters"))), "recovery-not-a-node", id="a further group"),
        pytest.param(offered(leaf("jane", NODES)), "recovery-not-a-node", id="a common name of no node"),
    ],
)  # fmt: skip
def test_rejected(credentials: Credentials, reason: str) -> None:
    verdict = judged(credentials)
    assert isinstance(verdict, Rejected)
    assert verdict.reason == reason


def test_the_ca_must_have_been_valid_at_the_end_of_the_certificate() -> None:
    begin, key = NOW - 30 * DAY, generate_key()
    ended = self_signed_ca(key, "ended", NOW - 4000 * DAY, 4)
    signing = self_signed_ca(key, "ended", NOW - 400 * DAY, 4)
    template = profiles.client(KEY.public_key(), begin, NODE, NODES, DAY)
    chain = (signing.sign(template, begin, 5).der,)
    authenticator = RecoveryAuthenticator(ClientTrust([ended.certificate]))
    verdict = authenticator.authenticate(offered(*chain), {}, NOW, ())
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "expired"


class Counting(ClientTrust):
    """Counts the walks of chains."""

    walks = 0

    def verify_read(self, chain: ReadChain, now: datetime | None) -> VerifiedPeer:
        self.walks += 1
        return super().verify_read(chain, now)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[bytes]]:
    read: list[Sequence[bytes]] = []

    def counting(chain: Sequence[bytes]) -> ReadChain:
        read.append(chain)
        return read_chain(chain)

    monkeypatch.setattr(x509, "read_chain", counting)
    return read


@pytest.mark.parametrize(
    ("chain", "walks"),
    [
        pytest.param((leaf(),), (1, 0), id="an expired node of the CA of clients"),
        pytest.param((leaf(ended=-DAY),), (1, 0), id="a node that has not expired"),
        pytest.param((leaf(authority=OTHER_CA),), (1, 1), id="a node of a retired CA"),
        pytest.param((leaf(authority=THIRD_CA),), (1, 1), id="a node of a CA that is not known"),
        pytest.param((leaf("jane", ("dev",)),), (1, 0), id="a user"),
        pytest.param((b"junk",), (0, 0), id="junk"),
        pytest.param(chain("alternative names that are empty URIs", above=True), (0, 0), id="30 000 names"),
        pytest.param(chain("one policy of a long kind", above=True), (1, 1), id="all octets that are read"),
    ],
)
def test_the_requests_of_a_connection_read_its_chain_once(
    chain: tuple[bytes, ...], walks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bundle walks it once, whatever the verdict, and the time of the requests."""
    read, memo = counted_reads(monkeypatch), PeerMemo()
    clients, retired = Counting([CA.certificate]), Counting([OTHER_CA.certificate])
    authenticator = RecoveryAuthenticator(clients, (), retired)
    verdicts = [
        authenticator.authenticate(replace(offered(*chain), memo=memo), {}, NOW + number * timedelta(seconds=2), ())
        for number in range(20)
    ]
    assert len(read) == 1
    assert (clients.walks, retired.walks) == walks
    assert all(one == verdicts[0] for one in verdicts)


def test_a_chain_is_read_once_for_all_authenticators_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted_reads(monkeypatch)
    credentials, trust = offered(leaf()), ClientTrust([CA.certificate])
    proxies = RequestHeaderAuthenticator(ClientTrust([OTHER_CA.certificate]), HeaderNames(username=("x-remote-user",)))
    verdicts = [
        one.authenticate(credentials, {}, NOW, ())
        for one in (proxies, ClientCertificateAuthenticator(trust, checks=()), RecoveryAuthenticator(trust, ()))
    ]
    assert [type(one) for one in verdicts] == [Rejected, Rejected, Accepted]
    assert len(read) == 1


def test_no_chain_is_walked_under_an_empty_bundle() -> None:
    retired = Counting([])
    verdict = RecoveryAuthenticator(ClientTrust([CA.certificate]), (), retired).authenticate(
        offered(leaf(authority=OTHER_CA)), {}, NOW, ()
    )
    assert isinstance(verdict, Rejected)
    assert retired.walks == 0


def test_a_certificate_that_expires_on_an_open_connection_recovers_from_then_on() -> None:
    memo, certificate = PeerMemo(), leaf(ended=-DAY)
    authenticator = RecoveryAuthenticator(ClientTrust([CA.certificate]), ())
    verdicts = [
        authenticator.authenticate(replace(offered(certificate), memo=memo), {}, now, ())
        for now in (NOW, NOW + DAY, NOW + DAY + timedelta(seconds=1))
    ]
    assert [type(one) for one in verdicts] == [NotMine, NotMine, Accepted]


def test_a_revocation_counts_on_an_open_connection() -> None:
    memo, revoked = PeerMemo(), [False]
    check = CertificateCheck(
        (), lambda peer, views, now: Rejected("revoked") if revoked[0] else None, lambda now: revoked[0]
    )
    authenticator = RecoveryAuthenticator(ClientTrust([CA.certificate]), (check,))
    assert isinstance(authenticator.authenticate(replace(offered(leaf()), memo=memo), {}, NOW, ()), Accepted)
    revoked[0] = True
    assert authenticator.authenticate(replace(offered(leaf()), memo=memo), {}, NOW, ()) == Rejected("revoked")


def test_other_bundles_judge_an_open_connection_again() -> None:
    memo, certificate = PeerMemo(), leaf(authority=OTHER_CA)
    authenticator = RecoveryAuthenticator(ClientTrust([CA.certificate]), ())
    assert isinstance(authenticator.authenticate(replace(offered(certificate), memo=memo), {}, NOW, ()), Rejected)
    authenticator.replace(ClientTrust([CA.certificate]), ClientTrust([OTHER_CA.certificate]))
    assert isinstance(authenticator.authenticate(replace(offered(certificate), memo=memo), {}, NOW, ()), Accepted)


@dataclass
class Revoking:
    """A check of certificates that rejects all."""

    seen: list[str] = field(default_factory=list)

    def rejection(self, peer: ClientCertificate, views: Views, now: datetime) -> Rejected | None:
        self.seen.append(peer.common_name)
        return Rejected("revoked")


def test_the_checks_of_client_certificates_apply() -> None:
    revoking = Revoking()
    assert judged(offered(leaf()), CertificateCheck((), revoking.rejection)) == Rejected("revoked")
    assert judged(offered(leaf("jane")), CertificateCheck((), revoking.rejection)) != Rejected("revoked")
    assert revoking.seen == [NODE]


def test_the_setting_turns_it_off() -> None:
    config = configured(node_recovery="off")
    assert build_recovery(config, AuthnHost(config).host) is None
    running = build_recovery(configured(), AuthnHost().host)
    assert running is not None
    assert running.schemes == {}, "no response offers the scheme"


@pytest.mark.parametrize(
    ("values", "age"),
    [
        pytest.param({}, timedelta(days=30), id="by rule within thirty days unless told otherwise"),
        pytest.param({"node_recovery_max_age": timedelta(hours=5)}, timedelta(hours=5), id="a shorter age"),
        pytest.param({"node_recovery": "by-approval"}, None, id="by approval of a person"),
    ],
)
def test_age_within_which_the_rule_approves(values: dict[str, object], age: timedelta | None) -> None:
    assert configured(**values)[RecoverySettings].rule_age == age


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match='node-recovery: "always" is not one of by-rule, by-approval, off'):
        configured(node_recovery="always")
