"""Signing policy: what its file may say, whom each rule is for, and what it refuses."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest

from mooring.api.certificates.requeststate import parsed_request
from mooring.api.view import AllReadable
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, RecordIssuance, Requeue, Update
from mooring.controllers.certificates.issuance import HELD_FOR, CheckResult, Hold, PendingIssue
from mooring.controllers.certificates.signing.signer import CsrSigner, SignerPolicy
from mooring.controllers.certificates.signing.signingpolicy import (
    MAX_BYTES,
    MAX_NAMES,
    MAX_NETWORKS,
    MAX_RULES,
    MAX_SIGNERS,
    MAX_WILDCARDS,
    NO_POLICY,
    SigningPolicy,
    parse_policy,
)
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.authority import request_serial_number
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.requests import CertificateRequest, build_request
from mooring.pki.x509.signers import K3S_KUBELET_CLIENT, SIGNERS
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, plan, thing, views
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA

KEY = generate_key()
SIGNER = "example.com/web"
HEAD = "apiVersion: mooring.dev/v1alpha1\nkind: SigningPolicy\n"


def policy(rules: str, signer: str = SIGNER) -> SigningPolicy:
    """Return the policy with these rules of one signer, in YAML."""
    return parse_policy(f"{HEAD}signers:\n- name: {signer}\n  rules: {rules}\n".encode(), "policy")


def csr(
    *,
    key: Any = KEY,
    name: str = "web-1",
    groups: Sequence[str] = (),
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    user: str = "alice",
    user_groups: Sequence[str] = ("staff",),
    usages: Sequence[str] = ("server auth",),
    signer: str = SIGNER,
    object_name: str = "request",
    certificate: str = "",
    **spec: Any,
) -> Obj:
    pem = build_request(key, name, groups, dns, [ip_address(one) for one in ips])
    status: Obj = {"conditions": [{"type": "Approved", "status": "True"}]}
    if certificate:
        status["certificate"] = certificate
    asked = {
        "request": base64.b64encode(pem).decode(),
        "signerName": signer,
        "usages": list(usages),
        "username": user,
        "groups": list(user_groups),
    }
    return thing(object_name, spec={**asked, **spec}, status=status)


def found(used: SigningPolicy, obj: Obj, **others: Sequence[Obj]) -> CheckResult | None:
    request = parsed_request(obj)
    pending = PendingIssue(csr=obj, request=request, now=NOW, automatic=False)
    return SignerPolicy(lambda: used).check(pending, views(**others))


def refusal(rules: str, **asked: Any) -> str:
    """Return the refusal of a request, without the name of the signer; empty when there is none."""
    finding = found(policy(rules), csr(**asked))
    if finding is None:
        return ""
    assert isinstance(finding, Hold)
    assert (finding.reason, finding.denies) == ("SigningPolicy", True)
    return finding.message.removeprefix(f"the signing policy of {SIGNER}: ")


@pytest.mark.parametrize(
    ("rule", "asked", "message"),
    [
        pytest.param("", {}, "", id="nothing is demanded"),
        pytest.param("commonNames: ['web-*']", {}, "", id="a name by pattern"),
        pytest.param(
            "commonNames: ['db-*', web]",
            {"name": 'we"b'},
            r'the common name "we\"b" matches none of commonNames',
            id="another name",
        ),
        pytest.param("commonNames: ['*-*-1']", {"name": "a-b-1"}, "", id="several stars"),
        pytest.param("commonNames: ['a*b*c']", {"name": "acb"}, 'the common name "acb" matches none', id="in another order"),
        pytest.param("commonNames: ['ab*bc']", {"name": "abc"}, 'the common name "abc" matches none', id="parts that overlap"),
        pytest.param("commonNames: ['a*b*c']", {"name": "aXc"}, 'the common name "aXc" matches none', id="a part is missing"),
        pytest.param("organizations: []", {"groups": ["x"]}, 'the organization "x" matches none', id="an empty list"),
        pytest.param("organizations: [x, 'y*']", {"groups": ["x", "yy"]}, "", id="each organization"),
        pytest.param("dnsNames: ['*.example.com']", {"dns": ["A.EXAMPLE.com"]}, "", id="a DNS name in any case"),
        pytest.param(
            "dnsNames: ['*.example.com']",
            {"dns": ["a.b.example.com"]},
            'the DNS name "a.b.example.com" matches none of dnsNames',
            id="a star is no dot",
        ),
        pytest.param(
            "dnsNames: ['web.*.com', 'b.example.com']",
            {"dns": ["db.example.com"]},
            'the DNS name "db.example.com" matches none',
            id="another label",
        ),
        pytest.param(
            "dnsNames: ['*.example.com']",
            {"dns": ["*.example.com"]},
            'the DNS name "*.example.com" is a wildcard, and allowWildcards is not true',
            id="a wildcard by a pattern",
        ),
        pytest.param("", {"dns": ["*.x.org"]}, 'the DNS name "*.x.org" is a wildcard', id="a wildcard without patterns"),
        pytest.param(
            "{dnsNames: ['*.example.com'], allowWildcards: true}"[1:-1].replace(", allow", "\n    allow"),
            {"dns": ["*.example.com"]},
            "",
            id="a wildcard that is allowed",
        ),
        pytest.param("ipAddresses: [10.0.0.0/8, 'fd00::/8']", {"ips": ["10.1.2.3", "fd00::1"]}, "", id="addresses"),
        pytest.param(
            "ipAddresses: [10.0.0.0/8]",
            {"ips": ["::ffff:10.1.2.3"]},
            "",
            id="an address in its IPv4-mapped form, which is the same",
        ),
        pytest.param(
            "ipAddresses: [10.0.0.0/8]",
            {"ips": ["10.1.2.3", "192.0.2.1"]},
            "the IP address 192.0.2.1 is in none of ipAddresses",
            id="an address of another network",
        ),
        pytest.param("usages: [server auth]", {}, "", id="a usage"),
        pytest.param(
            "usages: [server auth]",
            {"usages": ["server auth", "client auth"]},
            'the usage "client auth" is none of usages',
            id="another usage",
        ),
        pytest.param("keyAlgorithms: [ECDSA-P256]", {}, "", id="the key"),
        pytest.param(
            "keyAlgorithms: [ECDSA-P384, RSA]", {}, "the key is ECDSA-P256, which is none of keyAlgorithms", id="another key"
        ),
        pytest.param("minRSABits: 3072", {}, "", id="bits of RSA for another key"),
        pytest.param(
            "minRSABits: 3072",
            {"key": rsa_key(2048)},
            "the key is RSA-2048, and minRSABits is 3072",
            id="a short key",
        ),
        pytest.param("keyAlgorithms: [RSA]", {"key": rsa_key(2048)}, "", id="RSA of any size"),
        pytest.param(
            "maxLifetime: 24h", {"expirationSeconds": 86400 * 300}, "", id="a long life is shortened, not refused"
        ),
        pytest.param(
            "commonNames: [x]", {"name": "y" * 300}, f'the common name "{"y" * 100}…" matches none', id="a long name is cut"
        ),
        pytest.param(
            "dnsNames: ['*']",
            {"dns": [f"d{n}" for n in range(MAX_NAMES + 1)]},
            f"{MAX_NAMES + 1} values for dnsNames are more than {MAX_NAMES}",
            id="many names",
        ),
        pytest.param(
            "",
            {"ips": [f"10.0.0.{n}" for n in range(MAX_NAMES + 1)]},
            f"{MAX_NAMES + 1} IP addresses are more than {MAX_NAMES}",
            id="many addresses",
        ),
    ],
)  # fmt: skip
def test_a_rule_names_what_it_refuses(rule: str, asked: dict[str, Any], message: str) -> None:
    refused = refusal(f"\n  - name: web\n    {rule}", **asked)
    assert refused.startswith(f'rule "web": {message}' if message else "")
    assert bool(refused) == bool(message)


@pytest.mark.parametrize(
    ("rule", "names", "message"),
    [
        ("emailAddresses: ['*@example.com']", AlternativeNames(emails=("a@example.com",)), ""),
        (
            "emailAddresses: ['*@example.com']",
            AlternativeNames(emails=("a@x",)),
            'the email address "a@x" matches none of',
        ),
        (
            "uris: ['spiffe://example.com/*']",
            AlternativeNames(uris=("spiffe://x/y",)),
            'the URI "spiffe://x/y" matches none',
        ),
    ],
)
def test_other_alternative_names_have_patterns_too(rule: str, names: AlternativeNames, message: str) -> None:
    (only,) = policy(f"[{{name: web, {rule}}}]").signers[SIGNER]
    request = parsed_request(csr())
    with_names = CertificateRequest(request.subject, request.public_key, names)
    assert only.refusal(with_names, ()).startswith(message)
    assert bool(only.refusal(with_names, ())) == bool(message)


RULES = """
  - {name: robots, requesters: {users: ['system:serviceaccount:web:*', bob], groups: [robots]}, commonNames: ['r-*']}
  - {name: staff, requesters: {groups: [staff]}, commonNames: ['s-*']}
"""


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({"user": "system:serviceaccount:web:a"}, 'rule "robots": the common name', id="a user by pattern"),
        pytest.param({"user": "bob", "user_groups": []}, 'rule "robots": the common name', id="a user by name"),
        pytest.param(
            {"user_groups": ["robots", "staff"]}, 'rule "robots": the common name', id="the first rule decides"
        ),
        pytest.param({"user_groups": ["staff"]}, 'rule "staff": the common name', id="a group"),
        pytest.param({"user_groups": []}, "no rule is for requests of alice", id="somebody else"),
        pytest.param({"user_groups": [], "user": ""}, "no rule is for requests of an unknown user", id="no user"),
    ],
)
def test_the_first_rule_for_the_requester_decides(asked: dict[str, Any], message: str) -> None:
    assert refusal(RULES, **asked).startswith(message)


def test_a_signer_without_rules_refuses_and_one_that_is_not_named_is_free() -> None:
    assert refusal("[]") == "no rule is for requests of alice"
    assert found(policy("[]", "example.com/other"), csr()) is None
    assert found(NO_POLICY, csr()) is None
    assert SignerPolicy(lambda: NO_POLICY).watches == ("nodeidentities",)


# -- lifetimes and the signer --------------------------------------------------------------------------------------------

CA = ThrowawayCA(now=NOW)


def signed(used: SigningPolicy, obj: Obj) -> Obj:
    status: Obj = signature(used, obj).obj["status"]
    return status


def signature(used: SigningPolicy, obj: Obj) -> Update:
    signer = CsrSigner(
        lambda name: CA.authority,
        checks=(SignerPolicy(lambda: used),),
        policy=lambda: used,
        signing_duration=SIGNING_DURATION,
    )
    *_, update = plan(signer, ("", "request"), views(certificatesigningrequests=[obj]), NOW)
    assert isinstance(update, Update)
    return update


def test_a_certificate_of_dns_names_alone_is_signed() -> None:
    update = signature(policy("[{name: web, dnsNames: ['*.example.com']}]"), csr(name="", dns=["a.example.com"]))
    assert update.obj["status"]["certificate"]
    assert " was issued to alice, until " in update.announcement
    assert " of " not in update.announcement


@pytest.mark.parametrize(
    ("rule", "seconds", "life"),
    [
        ("maxLifetime: 2h", None, timedelta(hours=2)),
        ("maxLifetime: 2h", 3600, timedelta(hours=1)),
        ("maxLifetime: 2h", 86400, timedelta(hours=2)),
        ("maxLifetime: 20000h", None, timedelta(hours=8760, minutes=-5)),
        ("freshKey: false", None, timedelta(hours=8760, minutes=-5)),
    ],
)
def test_the_maximum_lifetime_shortens_a_certificate(rule: str, seconds: int | None, life: timedelta) -> None:
    more: dict[str, Any] = {} if seconds is None else {"expirationSeconds": seconds}
    status = signed(policy(f"[{{name: web, {rule}}}]"), csr(**more))
    assert certificates(base64.b64decode(status["certificate"]))[0].not_valid_after_utc - NOW == life


def test_a_policy_of_thirty_days_for_the_hosts_of_one_domain() -> None:
    """The example of the design document, line 174 of Kubelet TLS bootstrap."""
    rules = "[{name: hosts, dnsNames: ['*.k8s.example.com'], maxLifetime: 720h, freshKey: true}]"
    status = signed(policy(rules), csr(dns=["a.k8s.example.com"]))
    (leaf,) = certificates(base64.b64decode(status["certificate"]))
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc == timedelta(days=30)
    assert 'the DNS name "a.example.com" matches none of dnsNames' in refusal(rules, dns=["a.example.com"])


def test_what_a_person_approved_is_refused_all_the_same() -> None:
    status = signed(policy("[{name: web, commonNames: [db]}]"), csr())
    assert "certificate" not in status
    assert status["conditions"][-1] == {
        "type": "Failed",
        "status": "True",
        "reason": "SigningPolicy",
        "message": f'the signing policy of {SIGNER}: rule "web": the common name "web-1" matches none of commonNames',
    }


# -- fresh keys ----------------------------------------------------------------------------------------------------------

FRESH = policy("[{name: web, freshKey: true}]")
OTHER_KEY = generate_key()


def identity(serial: int, key: Any = KEY, name: str = "n1") -> Obj:
    entry = {"publicKey": f"sha256:{public_key_fingerprint(key)}", "serialNumber": f"{serial:x}", "notAfter": "x"}
    return thing(name, spec={"keys": [entry]})


def issuance_log(key: Any, ends: timedelta = HOUR, uid: str = "other", **more: str) -> Obj:
    entry = {
        "event": "Issued",
        "publicKey": f"sha256:{public_key_fingerprint(key)}",
        "requestUID": uid,
        "notAfter": moment(ends),
    }
    return thing("0001", spec={"entries": [entry | more]})


@pytest.mark.parametrize(
    ("others", "is_fresh"),
    [
        pytest.param({}, True, id="a new key"),
        pytest.param({"certificatesigningrequests": [csr(object_name="b")]}, True, id="one that was only requested"),
        pytest.param(
            {"certificatesigningrequests": [csr(object_name="b", certificate="x", key=OTHER_KEY)]},
            True,
            id="another key was certified",
        ),
        pytest.param({"certificatesigningrequests": [csr(object_name="b", certificate="x")]}, False, id="one with a certificate"),
        pytest.param({"certificatesigningrequests": [csr(certificate="x")]}, True, id="the request itself"),
        pytest.param(
            {"certificatesigningrequests": [csr(object_name="b", certificate="x", request="abcde")]},
            True,
            id="a request that cannot be read",
        ),
        pytest.param({"nodeidentities": [identity(7)]}, False, id="the key of a node"),
        pytest.param({"nodeidentities": [identity(7, OTHER_KEY)]}, True, id="another key of a node"),
        pytest.param(
            {"lineagerecords": [issuance_log(KEY)]}, False, id="the key of a certificate whose request was deleted"
        ),
        pytest.param({"lineagerecords": [issuance_log(OTHER_KEY)]}, True, id="another key in the issuance log"),
        pytest.param({"lineagerecords": [issuance_log(KEY, ends=-HOUR)]}, True, id="a certificate that has ended"),
        pytest.param({"lineagerecords": [issuance_log(KEY, uid="uid-of-request")]}, True, id="its own entry in the issuance log"),
        pytest.param({"lineagerecords": [issuance_log(KEY, notAfter="soon")]}, True, id="an entry without an end"),
        pytest.param({"lineagerecords": [issuance_log(KEY, event="Other")]}, True, id="an entry of another event"),
        pytest.param(
            {"nodeidentities": [identity(request_serial_number("uid-of-request"))]}, True, id="the claim of this request"
        ),
    ],
)  # fmt: skip
def test_a_key_that_was_certified_is_not_fresh(others: dict[str, Sequence[Obj]], is_fresh: bool) -> None:
    finding = found(FRESH, csr(), **others)
    assert (finding is None) == is_fresh
    if isinstance(finding, Hold):
        assert finding.message.endswith("freshKey is true: make a new key and ask again")


class ChangingView(AllReadable):
    """A view whose objects are replaced one at a time."""

    def __init__(self) -> None:
        self.objects: dict[str, Obj] = {}
        self.log: list[str] = []

    @property
    def revision(self) -> int:
        return len(self.log)

    def put(self, obj: Obj) -> None:
        self.objects[obj["metadata"]["name"]] = obj
        self.log.append(obj["metadata"]["name"])

    def remove(self, name: str) -> None:
        del self.objects[name]
        self.log.append(name)

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self.objects.get(name)

    def list(self, namespace: str = "") -> Sequence[Obj]:
        return tuple(self.objects.values())

    def changed(self, since: int) -> Sequence[tuple[str, str]] | None:
        return [("", name) for name in dict.fromkeys(self.log[since:])] if since >= 0 else None


def test_the_index_of_keys_follows_each_change() -> None:
    seen = {**views(), "nodeidentities": ChangingView()}
    identities = seen["nodeidentities"]
    assert isinstance(identities, ChangingView)
    check = SignerPolicy(lambda: FRESH)
    obj = csr()
    pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=False)

    def is_fresh() -> bool:
        return check.check(pending, seen) is None

    assert is_fresh()
    identities.put(identity(7))
    assert not is_fresh()
    identities.put(identity(7, name="n2"))
    identities.put(identity(8, name="n3"))
    assert not is_fresh()
    identities.remove("n1")
    identities.remove("n3")
    assert not is_fresh(), "n2 still has it"
    identities.put(identity(7, OTHER_KEY, name="n2"))
    assert is_fresh()
    seen["nodeidentities"] = ChangingView()
    assert is_fresh()


def test_the_index_of_the_issuance_log_follows_each_change() -> None:
    seen = {**views(), "lineagerecords": ChangingView()}
    records = seen["lineagerecords"]
    assert isinstance(records, ChangingView)
    check = SignerPolicy(lambda: FRESH)
    obj = csr()
    pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=False)
    assert check.check(pending, seen) is None
    records.put(issuance_log(KEY))
    assert check.check(pending, seen) is not None
    records.remove("0001")
    assert check.check(pending, seen) is None, "a record goes long after its certificates"


def test_the_signer_claims_a_fresh_key() -> None:
    for rules, claims in ((FRESH, True), (policy("[{name: web}]"), False), (NO_POLICY, False)):
        signer = CsrSigner(
            lambda name: CA.authority, policy=partial(SigningPolicy, rules.signers), signing_duration=SIGNING_DURATION
        )
        record, _ = plan(signer, ("", "request"), views(certificatesigningrequests=[csr()]))
        assert isinstance(record, RecordIssuance)
        assert record.fresh_key is claims


# -- the file ------------------------------------------------------------------------------------------------------------


def rules(text: str) -> str:
    return f"{HEAD}signers: [{{name: a.b/c, rules: [{{name: r, {text}}}]}}]"


def of_pods(text: str, signer: str = "a.b/c") -> str:
    return f"{HEAD}signers: [{{name: {signer}, rules: [], {text}}}]"


MANY = [f"p{n}*" for n in range(MAX_WILDCARDS + 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"\xff", "the file is not UTF-8 text", id="no text"),
        pytest.param(" " * (MAX_BYTES + 1), f"a signing policy is at most {MAX_BYTES} bytes", id="too large"),
        pytest.param("a: [", "yaml: ", id="no YAML"),
        pytest.param("[]", "one SigningPolicy of mooring.dev/v1alpha1 is expected", id="no object"),
        pytest.param("kind: Policy", "is expected; set apiVersion and kind", id="another kind"),
        pytest.param(HEAD + "signers: []\nsigners: []", "signers", id="a repeated field"),
        pytest.param(HEAD + "signers: []", f"signers: from 1 to {MAX_SIGNERS} signers are expected", id="no signers"),
        pytest.param(HEAD + "signers: [{name: x, rules: []}]", "signers[0].name: give the name of a signer", id="no signer"),
        pytest.param(HEAD + "signers: [{name: a.b/c, rules: []}]\nother: 1", 'unknown field "other"', id="an unknown field"),
        pytest.param(HEAD + "signers: [{name: a.b/c}]", "signers[0].rules: give a list of rules", id="no rules"),
        pytest.param(of_pods("podCertificates: "), "podCertificates.trustDomain: give a trust domain", id="no trust domain"),
        pytest.param(of_pods("podCertificates: x"), "signers[0].podCertificates must be an object", id="no object for Pods"),
        pytest.param(
            of_pods("podCertificates: {trustDomain: Cluster.example}"),
            "give a trust domain of SPIFFE, such as cluster.example: a-z, 0-9, dots",
            id="no trust domain of SPIFFE",
        ),
        pytest.param(of_pods("podCertificates: {trustDomain: a, x: 1}"), 'unknown field "x"', id="an unknown field for Pods"),
        pytest.param(HEAD + "signers: [{name: a.b/c, rules: [], x: 1}]", 'signers[0]: unknown field "x"', id="in a signer"),
        pytest.param(
            HEAD + "signers: [{name: a.b/c, rules: []}, {name: a.b/c, rules: []}]",
            "signers[1].name: a.b/c has rules already",
            id="a signer twice",
        ),
        pytest.param(
            HEAD + f"signers: [{{name: a.b/c, rules: [{', '.join(f'{{name: r{n}}}' for n in range(MAX_RULES + 1))}]}}]",
            f"signers[0].rules: at most {MAX_RULES} rules are allowed",
            id="many rules",
        ),
        pytest.param(
            HEAD + "signers: [{name: a.b/c, rules: [{name: r}, {name: r}]}]",
            "signers[0].rules: two rules have the same name",
            id="two rules of one name",
        ),
        pytest.param(HEAD + "signers: [{name: a.b/c, rules: [{}]}]", "rules[0].name: give the rule a name", id="no name"),
        pytest.param(rules("dnsName: [x]"), 'signers[0].rules[0]: unknown field "dnsName"', id="an unknown field of a rule"),
        pytest.param(rules("requesters: {user: x}"), 'requesters: unknown field "user"', id="an unknown field of requesters"),
        pytest.param(rules("dnsNames: "), "rules[0].dnsNames: it has no value; leave the field out", id="a field without a value"),
        pytest.param(rules("requesters: {users: }"), "requesters.users: it has no value", id="requesters without a value"),
        pytest.param(rules("dnsNames: x"), "dnsNames must be a list", id="no list"),
        pytest.param(rules("dnsNames: ['']"), "a pattern has from 1 to 1024 characters", id="an empty pattern"),
        pytest.param(rules(f"dnsNames: {MANY}"), f"a signer has at most {MAX_WILDCARDS} * in the patterns", id="many patterns"),
        pytest.param(rules("ipAddresses: [10.0.0.1/8]"), '"10.0.0.1/8" is no network', id="bits of a host"),
        pytest.param(
            rules(f"ipAddresses: {[f'10.0.{n % 256}.{n // 256}/32' for n in range(MAX_NETWORKS + 1)]}"),
            f"a signer has at most {MAX_NETWORKS} networks",
            id="many networks",
        ),
        pytest.param(rules("requesters: {groups: ['a*']}"), "give whole names; * has no meaning in groups", id="a group pattern"),
        pytest.param(rules("usages: [serving]"), "usages: give some of ", id="no usage"),
        pytest.param(rules("keyAlgorithms: [RSA-2048]"), "keyAlgorithms: give some of RSA, ECDSA-P256", id="no algorithm"),
        pytest.param(rules("minRSABits: 1024"), "minRSABits: give a number from 2048 to 8192", id="few bits"),
        pytest.param(rules("minRSABits: true"), "minRSABits: give a number", id="no number"),
        pytest.param(rules("maxLifetime: 5m"), "maxLifetime: give a duration of ten minutes or more", id="no life"),
        pytest.param(rules("maxLifetime: long"), "maxLifetime: give a duration of ten minutes", id="no duration"),
        pytest.param(rules("freshKey: 1"), "freshKey must be true or false", id="no truth value"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_field(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^policy: ") as raised:
        parse_policy(text if isinstance(text, bytes) else text.encode(), "policy")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", SIGNERS)
def test_a_built_in_signer_signs_for_no_pod(name: str) -> None:
    with pytest.raises(ConfigError, match=f"podCertificates: {name} is built in, and signs for no Pods"):
        parse_policy(of_pods("podCertificates: {trustDomain: a}", name).encode(), "policy")


def test_a_signer_with_a_trust_domain_signs_for_pods() -> None:
    read = parse_policy(of_pods("podCertificates: {trustDomain: cluster.example}").encode(), "policy")
    assert (read.trust_domains, NO_POLICY.trust_domains) == ({"a.b/c": "cluster.example"}, {})


def test_a_policy_of_thousands_of_names_is_read() -> None:
    names = [f"machine-{n}.rack-{n % 100}.example.com" for n in range(5_000)]
    read = policy(f"[{{name: web, dnsNames: {names}}}]")
    (rule,) = read.signers[SIGNER]
    assert rule.dns_names is not None
    assert rule.dns_names.match("MACHINE-4999.rack-99.example.com")
    assert not rule.dns_names.match("machine-5000.rack-0.example.com")


# -- before a person decides ---------------------------------------------------------------------------------------------

REFUSING = policy("[{name: web, commonNames: ['db-*']}]")
MESSAGE = f'the signing policy of {SIGNER}: rule "web": the common name "web-1" matches none of commonNames'
PREVIEWED = {"type": "WouldFail", "status": "True", "reason": "SigningPolicy", "message": MESSAGE}


def undecided(*conditions: Obj, **asked: Any) -> Obj:
    return {**csr(**asked), "status": {"conditions": list(conditions)} if conditions else {}}


def signer(used: SigningPolicy, **more: Any) -> CsrSigner:
    checks = (SignerPolicy(lambda: used),)
    return CsrSigner(
        lambda name: CA.authority if name != "example.com/other" else None,
        signing_duration=SIGNING_DURATION,
        checks=checks,
        **more,
    )


def preview(used: SigningPolicy, obj: Obj, **more: Any) -> list[Action]:
    controller = signer(used, **more)
    actions = plan(controller, ("", "request"), views(certificatesigningrequests=[obj]))
    concerned = bool(controller.keys("certificatesigningrequests", obj, False, views()))
    assert concerned == bool(actions)
    return actions


def test_a_person_sees_the_finding_of_the_policy_before_the_approval() -> None:
    update, again = preview(REFUSING, undecided())
    assert isinstance(update, Update)
    assert (update.obj["status"]["conditions"], update.subresource) == ([PREVIEWED], "status")
    assert again == Requeue(NOW + HELD_FOR)


def test_a_finding_is_written_once_and_removed_with_its_cause() -> None:
    assert preview(REFUSING, undecided(PREVIEWED)) == [Requeue(NOW + HELD_FOR)]
    update, _ = preview(NO_POLICY, undecided(PREVIEWED))
    assert isinstance(update, Update)
    assert update.obj["status"]["conditions"] == []
    update, _ = preview(REFUSING, undecided({**PREVIEWED, "message": "another"}))
    assert isinstance(update, Update)
    assert update.obj["status"]["conditions"] == [PREVIEWED]
    assert preview(NO_POLICY, undecided()) == [Requeue(NOW + HELD_FOR)]


KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
OF_KUBELETS = policy("[]", signer=KUBELET)
HELD: Obj = {"type": "NeedsApproval", "status": "True", "reason": "NotGranted"}


@pytest.mark.parametrize(
    ("obj", "is_checked"),
    [
        pytest.param(undecided(signer=KUBELET), False, id="an approver decides about it"),
        pytest.param(undecided(HELD, signer=KUBELET), True, id="an approver holds it for a person"),
        pytest.param(undecided(signer="example.com/other"), False, id="another program signs it"),
        pytest.param(undecided({"type": "Denied", "status": "True"}), False, id="it is denied"),
    ],
)
def test_only_requests_that_a_person_decides_about_are_checked(obj: Obj, is_checked: bool) -> None:
    assert bool(preview(OF_KUBELETS, obj)) is is_checked


def test_requests_of_the_supervisor_are_left_alone_where_others_may_state_who_joins() -> None:
    extra = {"mooring.io/k3s-node-name": ["n1"], "mooring.io/k3s-credential": ["k3s-token"]}
    obj = undecided(HELD, signer=K3S_KUBELET_CLIENT, extra=extra)
    assert preview(NO_POLICY, obj) == []
    assert preview(NO_POLICY, obj, guards_extra=True)[-1:] == [Requeue(NOW + HELD_FOR)]


@pytest.mark.parametrize(
    ("asked", "spec", "message"),
    [
        pytest.param({}, {"request": "%"}, "PEM block type must be CERTIFICATE REQUEST", id="it cannot be read"),
        pytest.param({}, {"request": "é"}, "spec.request is not base64", id="it is not base64"),
        pytest.param(
            {"signer": "kubernetes.io/kube-apiserver-client"},
            {"usages": ["server auth"]},
            "invalid usage for client certificate: server auth",
            id="it breaks a rule of its signer",
        ),
        pytest.param({}, {"usages": ["fly"]}, 'unrecognised key usage "fly"', id="no certificate has such a usage"),
    ],
)
def test_a_person_sees_whatever_the_signer_would_fail_after_the_approval(asked: Obj, spec: Obj, message: str) -> None:
    obj = undecided(**asked)
    obj["spec"] |= spec
    update, again = preview(NO_POLICY, obj)
    assert isinstance(update, Update)
    (condition,) = update.obj["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("WouldFail", "SignerValidationFailure")
    assert message in condition["message"]
    assert again == Requeue(NOW + HELD_FOR)
    approved = {**obj, "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "ByHand"}]}}
    (failed,) = plan(signer(NO_POLICY), ("", "request"), views(certificatesigningrequests=[approved]))
    assert isinstance(failed, Update)
    assert failed.obj["status"]["conditions"][-1]["message"] == condition["message"], "as the signer says it later"


def test_a_finding_that_is_out_of_date_does_not_stay_beside_the_certificate() -> None:
    obj = csr()
    obj["status"]["conditions"].append(PREVIEWED)
    *_, update = plan(signer(NO_POLICY), ("", "request"), views(certificatesigningrequests=[obj]))
    assert isinstance(update, Update)
    assert update.obj["status"]["certificate"]
    assert [one["type"] for one in update.obj["status"]["conditions"]] == ["Approved"]
