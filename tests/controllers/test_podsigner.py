"""podcertificaterequest-signing-controller: certificates of Pods by signers of the operator's own
(docs/protocol/pod-certificate-requests.md#own-signers)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from mooring.api.certificates.podcertificaterequest import PLURAL
from mooring.api.certificates.podrequestvalidation import status_errors
from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import key_entry, node_entry
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.view import FixedView, Views, guarded
from mooring.apimachinery.schema import Obj
from mooring.authn.credentials import Credentials
from mooring.authn.revocations import NO_COMMON_NAME
from mooring.authn.verdict import NotMine
from mooring.authn.x509 import ClientCertificateAuthenticator
from mooring.controllers.actions import Action, InThread, RecordIssuance, Requeue, Retry, Update
from mooring.controllers.certificates.signing.podsigner import SETTLED_AFTER, PodSigner
from mooring.controllers.certificates.signing.signingpolicy import SigningPolicy, parse_policy
from mooring.controllers.table import CONTROLLERS, ControllerSettings
from mooring.errors import UnreadableObjectError
from mooring.pki.keys import PrivateKey, generate_key, public_key_der, public_key_fingerprint, signature_hash
from mooring.pki.pem import RootCa
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import POD_BACKDATE
from mooring.pki.x509.verify import ClientTrust
from mooring.settings.signing import SIGNING_DURATION
from tests.controllers.test_certificaterequests import SlowKey
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views, with_metadata
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA, by_library

CA = ThrowawayCA(now=NOW)
KEY = generate_key()
SIGNER, DOMAIN = "example.com/mesh", "cluster.example"
NAME = "spiffe://cluster.example/ns/shop/sa/web"
REQUEST = ("shop", "r")
MINUTE = timedelta(minutes=1)
DAY_SECONDS = 86_400


def policy(
    rules: str = "[{name: all}]", signer: str = SIGNER, extra: str = f"podCertificates: {{trustDomain: {DOMAIN}}}"
) -> SigningPolicy:
    text = (
        f"apiVersion: mooring.dev/v1alpha1\nkind: SigningPolicy\nsigners: [{{name: {signer}, rules: {rules}, {extra}}}]"
    )
    return parse_policy(text.encode(), "policy")


def rule(text: str) -> SigningPolicy:
    """Return the policy with one rule, which demands `text`."""
    return policy(f"[{{name: shop, {text}}}]")


def signer(
    used: SigningPolicy | Callable[[], SigningPolicy] | None = None,
    authority: Authority | None = CA.authority,
    duration: timedelta = SIGNING_DURATION,
) -> PodSigner:
    """Return the controller with all of its issuance checks."""
    current = used or policy()
    settings = ControllerSettings(
        authority_for=lambda name: authority if name == SIGNER else None,
        root_ca=RootCa(CA.certificate_pem),
        signing_policy=(lambda: current) if isinstance(current, SigningPolicy) else current,
        signing_duration=duration,
        trusts_source_address=True,
    )
    found = CONTROLLERS["podcertificaterequest-signing-controller"](settings)
    assert isinstance(found, PodSigner)
    return found


def stub(key: PrivateKey = KEY, change: Callable[[Any], Any] = lambda builder: builder, name: str = "") -> str:
    """Return the request of a kubelet, in base64: a key and nothing else, unless `change` adds something."""
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else []
    builder = change(x509.CertificateSigningRequestBuilder(x509.Name(attributes)))
    return base64.b64encode(builder.sign(key, signature_hash(key)).public_bytes(Encoding.DER)).decode()


def request(*conditions: str, age: timedelta = timedelta(0), created: str = "", **changed: Any) -> Obj:
    spec = {
        "signerName": SIGNER,
        "podName": "web-1",
        "podUID": "uid-of-web-1",
        "serviceAccountName": "web",
        "serviceAccountUID": "uid-of-web",
        "nodeName": "n1",
        "nodeUID": "uid-of-n1",
        "maxExpirationSeconds": DAY_SECONDS,
        "stubPKCS10Request": stub(),
        **changed,
    }
    return thing(
        "r",
        "shop",
        spec={name: value for name, value in spec.items() if value is not None},
        status={"conditions": [{"type": kind, "status": "True"} for kind in conditions]},
        metadata={"creationTimestamp": created or moment(-age)},
    )


def pod(
    phase: str = "Running", node: str = "n1", account: str = "web", uid: str = "uid-of-web-1", **metadata: str
) -> Obj:
    spec = {"nodeName": node, "serviceAccountName": account}
    return thing("web-1", "shop", spec=spec, status={"phase": phase}, metadata={"uid": uid, **metadata})


POD, ACCOUNT, NODE = pod(), thing("web", "shop"), thing("n1")


def world(obj: Obj | None = None, **changed: Sequence[Obj]) -> Views:
    """Return views in which everything is as the request says, but for what is changed."""
    present: dict[str, Sequence[Obj]] = {
        PLURAL: [obj or request()],
        "pods": [POD],
        "serviceaccounts": [ACCOUNT],
        "nodes": [NODE],
    }
    return views(**{**present, **changed})


def planned(
    obj: Obj | None = None, used: PodSigner | None = None, now: datetime = NOW, **changed: Sequence[Obj]
) -> list[Action]:
    return plan(used or signer(), REQUEST, world(obj, **changed), now)


def issued(actions: Sequence[Action]) -> tuple[Certificate, Obj, Update]:
    """Return the leaf, the entry of the issuance log and the update, which the API server accepts."""
    record, update = actions
    assert isinstance(record, RecordIssuance)
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == (PLURAL, "status")
    return certificates(update.obj["status"]["certificateChain"].encode())[0], record.entry, update


def refused(actions: Sequence[Action]) -> tuple[str, str, str]:
    """Return type, reason and message of the condition that ends a request."""
    (update,) = actions
    assert isinstance(update, Update)
    assert update.precondition is None
    assert status_errors(update.obj, request(), NOW) == []
    (condition,) = update.obj["status"]["conditions"]
    return condition["type"], condition["reason"], condition["message"]


# -- what is signed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(KEY, id="P-256"),
        pytest.param(generate_key("ECDSA-P384"), id="P-384"),
        pytest.param(generate_key("Ed25519"), id="Ed25519"),
        pytest.param(rsa_key(3072), id="RSA"),
    ],
)
def test_the_certificate_of_a_pod_is_an_svid(key: PrivateKey) -> None:
    obj = request(stubPKCS10Request=stub(key))
    leaf, _, update = issued(planned(obj))
    assert status_errors(update.obj, obj, NOW) == []
    read = by_library(leaf)
    read.verify_directly_issued_by(by_library(CA.certificate))
    assert public_key_der(key) == leaf.public_key_info
    assert list(read.subject) == []
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert (names.critical, list(names.value)) == (True, [x509.UniformResourceIdentifier(NAME)])
    bits = read.extensions.get_extension_for_class(x509.KeyUsage)
    assert bits.critical
    assert [
        name
        for name in ("digital_signature", "key_cert_sign", "crl_sign", "key_encipherment")
        if getattr(bits.value, name)
    ] == ["digital_signature"]
    purposes = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert set(purposes.value) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    basic = read.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca) == (True, False)
    assert leaf.serial_number == request_serial_number("uid-of-r")
    assert not leaf.has_extension(ExtensionOID.SUBJECT_KEY_IDENTIFIER)


def test_the_status_has_the_chain_and_the_times() -> None:
    asked = request()
    _, _, update = issued(planned(asked))
    assert update.obj["spec"] == asked["spec"]
    status = update.obj["status"]
    assert len(certificates(status["certificateChain"].encode())) == 1, "the CA is a root, which is in the trust bundle"
    assert {name: value for name, value in status.items() if name != "certificateChain"} == {
        "conditions": [
            {
                "type": "Issued",
                "status": "True",
                "lastTransitionTime": moment(0 * HOUR),
                "reason": "Issued",
                "message": f"the certificate is for {NAME}",
            }
        ],
        "notBefore": moment(-POD_BACKDATE),
        "beginRefreshAt": moment(16 * HOUR - POD_BACKDATE),
        "notAfter": moment(24 * HOUR - POD_BACKDATE),
    }


def test_a_ca_that_another_one_certified_stands_in_the_chain() -> None:
    middle = CA.intermediate("mesh")
    _, _, update = issued(planned(used=signer(authority=Authority(middle.certificate, middle.key)), now=NOW - HOUR / 2))
    chain = certificates(update.obj["status"]["certificateChain"].encode())
    assert chain[1:] == (middle.certificate,)
    assert chain[0].is_issued_by(middle.certificate)


def test_the_issuance_log_has_an_entry_before() -> None:
    leaf, entry, _ = issued(planned())
    assert entry == {
        "time": moment(0 * HOUR),
        "event": "Issued",
        "request": "shop/r",
        "requestUID": "uid-of-r",
        "requester": "system:serviceaccount:shop:web",
        "signer": SIGNER,
        "subject": NAME,
        "publicKey": f"sha256:{public_key_fingerprint(KEY)}",
        "certificate": f"sha256:{leaf.fingerprint}",
        "serialNumber": f"{leaf.serial_number:x}",
        "issuer": f"sha256:{CA.authority.key_fingerprint}",
        "notBefore": moment(-POD_BACKDATE),
        "notAfter": moment(24 * HOUR - POD_BACKDATE),
    }


def test_the_old_form_of_a_request_is_signed_too() -> None:
    key = base64.b64encode(public_key_der(KEY)).decode()
    leaf, _, _ = issued(planned(request(stubPKCS10Request=None, pkixPublicKey=key)))
    assert leaf.public_key_info == public_key_der(KEY)


def test_the_certificate_of_a_pod_authenticates_no_user() -> None:
    """Even where an operator gives the signer a CA that verifies clients of the API server."""
    leaf, _, _ = issued(planned())
    authenticator = ClientCertificateAuthenticator(ClientTrust([CA.certificate]), checks=())
    assert authenticator.authenticate(Credentials((leaf.der,)), views(), NOW, ()) == NotMine(NO_COMMON_NAME)


def test_a_device_signs_in_a_thread() -> None:
    assert isinstance(CA.key, ec.EllipticCurvePrivateKey)
    (action,) = planned(used=signer(authority=Authority(CA.certificate, SlowKey(CA.key))))
    assert isinstance(action, InThread)
    leaf, _, _ = issued(action.work())
    assert leaf.is_issued_by(CA.certificate)


@pytest.mark.parametrize(
    ("seconds", "used", "hours"),
    [
        pytest.param(DAY_SECONDS, signer(), 24, id="as long as the Pod asks"),
        pytest.param(3600, signer(), 1, id="the shortest one"),
        pytest.param(91 * DAY_SECONDS, signer(), 91 * 24, id="the longest one"),
        pytest.param(None, signer(), 24, id="a request without a lifetime"),
        pytest.param(DAY_SECONDS, signer(rule("maxLifetime: 2h")), 2, id="as long as the rule allows"),
        pytest.param(DAY_SECONDS, signer(rule("maxLifetime: 48h")), 24, id="a rule that allows more"),
        pytest.param(DAY_SECONDS, signer(duration=3 * HOUR), 3, id="as long as --cluster-signing-duration"),
    ],
)
def test_how_long_a_certificate_lives(seconds: int | None, used: PodSigner, hours: int) -> None:
    obj = request(maxExpirationSeconds=seconds)
    leaf, _, update = issued(planned(obj, used))
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc == hours * HOUR
    assert seconds is None or status_errors(update.obj, obj, NOW) == []


def test_no_certificate_outlives_its_ca() -> None:
    now = CA.authority.not_after - 2 * HOUR
    leaf, _, _ = issued(planned(now=now))
    assert leaf.not_valid_after_utc == CA.authority.not_after


@pytest.mark.parametrize("fresh", [True, False])
def test_a_fresh_key_is_claimed_by_the_entry(fresh: bool) -> None:
    record, _ = planned(used=signer(rule("freshKey: true") if fresh else None))
    assert isinstance(record, RecordIssuance)
    assert record.fresh_key is fresh


# -- what is left alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "used"),
    [
        pytest.param(request(), signer(policy(extra="")), id="a signer without a trust domain: as before"),
        pytest.param(
            request(), signer(policy(signer="example.com/other")), id="a signer that the policy does not name"
        ),
        pytest.param(request(signerName="example.com/other"), signer(), id="a signer of another program"),
        pytest.param(request(), signer(authority=None), id="a signer without a CA"),
        pytest.param(request("Issued"), signer(), id="an issued request"),
        pytest.param(request("Denied"), signer(), id="a denied one"),
        pytest.param(request("Failed"), signer(), id="a failed one"),
    ],
)
def test_what_is_left_to_others(obj: Obj, used: PodSigner) -> None:
    assert planned(obj, used) == []
    assert enqueued(used, world(obj)) == []


def test_a_request_is_planned_by_its_own_events() -> None:
    assert enqueued(signer(), world()) == [REQUEST]
    assert signer().keys(PLURAL, request(), True, views()) == ()
    assert plan(signer(), REQUEST, views()) == []


# -- what is refused ------------------------------------------------------------------------------------------------------

OLD = request(age=SETTLED_AFTER)
REVOKED_KEY = thing(key_entry(public_key_fingerprint(KEY)), spec={"publicKey": f"sha256:{public_key_fingerprint(KEY)}"})


def issuance_log(uid: str) -> Obj:
    entry = {
        "event": "Issued",
        "publicKey": f"sha256:{public_key_fingerprint(KEY)}",
        "requestUID": uid,
        "notAfter": moment(HOUR),
    }
    return thing("0000000000000001", spec={"entries": [entry]})


@pytest.mark.parametrize(
    ("obj", "used", "changed", "expected"),
    [
        pytest.param(
            request(unverifiedUserAnnotations={"example.com/b": "", "example.com/a": "x"}),
            signer(),
            {},
            ("Denied", "InvalidUnverifiedUserAnnotations", '"example.com/a"'),
            id="an annotation that the signer does not know",
        ),
        pytest.param(
            request(stubPKCS10Request=stub(name="system:masters")),
            signer(),
            {},
            ("Denied", "StubRequestNotEmpty", "a subject or attributes"),
            id="a subject in the stub",
        ),
        pytest.param(
            request(
                stubPKCS10Request=stub(
                    change=lambda builder: builder.add_extension(
                        x509.SubjectAlternativeName([x509.DNSName("kubernetes.default")]), critical=False
                    )
                )
            ),
            signer(),
            {},
            ("Denied", "StubRequestNotEmpty", "a subject or attributes"),
            id="names in the stub",
        ),
        pytest.param(
            request(
                stubPKCS10Request=stub(
                    change=lambda builder: builder.add_attribute(x509.oid.AttributeOID.CHALLENGE_PASSWORD, b"x")
                )
            ),
            signer(),
            {},
            ("Denied", "StubRequestNotEmpty", "a subject or attributes"),
            id="an attribute in the stub",
        ),
        pytest.param(
            request(stubPKCS10Request="AAAA"),
            signer(),
            {},
            ("Failed", "SignerValidationFailure", "cannot be parsed"),
            id="a stub that only another API server stores",
        ),
        pytest.param(
            request(),
            signer(policy("[]")),
            {},
            ("Denied", "SigningPolicy", "no rule is for requests of system:serviceaccount:shop:web"),
            id="no rule",
        ),
        pytest.param(
            request(),
            signer(
                rule("requesters: {users: ['system:serviceaccount:bank:*'], groups: ['system:serviceaccounts:bank']}")
            ),
            {},
            ("Denied", "SigningPolicy", "no rule is for requests of"),
            id="rules for another namespace",
        ),
        pytest.param(
            request(),
            signer(rule("uris: ['spiffe://cluster.example/ns/bank/*']")),
            {},
            ("Denied", "SigningPolicy", f'the URI "{NAME}" matches none of uris'),
            id="a name that the rule does not allow",
        ),
        pytest.param(
            request(),
            signer(rule("usages: [digital signature, client auth]")),
            {},
            ("Denied", "SigningPolicy", 'the usage "server auth" is none of usages'),
            id="a usage that the rule does not allow",
        ),
        pytest.param(
            request(),
            signer(rule("keyAlgorithms: [Ed25519, RSA]")),
            {},
            (
                "Denied",
                "UnsupportedKeyType",
                'rule "shop": the key is ECDSA-P256, which is none of keyAlgorithms; set keyType of the volume to ED25519 or '
                "RSA3072 or RSA4096",
            ),
            id="a key that the rule does not allow",
        ),
        pytest.param(
            request(),
            signer(rule("keyAlgorithms: []")),
            {},
            ("Denied", "UnsupportedKeyType", "which is none of keyAlgorithms"),
            id="a rule without any key",
        ),
        pytest.param(
            request(),
            signer(rule("freshKey: true")),
            {LINEAGE_RECORDS: [issuance_log("uid-of-another")]},
            ("Denied", "SigningPolicy", "the key has a certificate already"),
            id="a key that is not fresh",
        ),
        pytest.param(
            request(),
            signer(),
            {"certificaterevocations": [REVOKED_KEY]},
            ("Denied", "KeyRevoked", "is revoked by"),
            id="a revoked key",
        ),
        pytest.param(
            request(age=MINUTE / 2),
            signer(),
            {
                "certificaterevocations": [
                    thing(node_entry("n1"), spec={"nodeName": "n1", "issuedBefore": moment(0 * HOUR)})
                ]
            },
            ("Denied", "RequesterRevoked", "after it made the request"),
            id="a node that was revoked after it asked",
        ),
        pytest.param(
            request(),
            signer(),
            {"nodeidentities": [thing("n1", spec={"nodeUID": "uid-of-another"})]},
            ("Denied", "RequesterDeleted", 'the Node "n1" of the requester was deleted'),
            id="a node that is not a member any more",
        ),
        pytest.param(
            request(age=MINUTE / 2),
            signer(),
            {"nodeidentities": [thing("n1", spec={"nodeUID": "uid-of-n1", "changedAt": moment(0 * HOUR)})]},
            ("Denied", "RequesterDeleted", 'the name "n1" of the requester has changed hands'),
            id="a name that changed hands after the request",
        ),
        pytest.param(
            request(),
            signer(),
            {"serviceaccounts": [with_metadata(ACCOUNT, deletionTimestamp=moment(0 * HOUR))]},
            ("Denied", "RequesterDeleted", "the ServiceAccount shop/web of the requester was deleted"),
            id="an account that is being deleted",
        ),
        pytest.param(
            request(maxExpirationSeconds=3600),
            signer(rule("maxLifetime: 59m")),
            {},
            ("Failed", "LifetimeTooShort", "allow 59m0s, and the certificate of a Pod lives for an hour at least"),
            id="a rule that allows less than an hour",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": []},
            ("Failed", "PodNotFound", 'pod "shop/web-1" does not exist'),
            id="a Pod that is gone",
        ),
        pytest.param(
            request(created="yesterday"),
            signer(),
            {"pods": []},
            ("Failed", "PodNotFound", "does not exist"),
            id="a request without age",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": [pod(uid="other")]},
            ("Failed", "PodNotFound", "pod UID"),
            id="another Pod of the name",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": [pod(node="n2")]},
            ("Failed", "PodNotFound", "not running on node"),
            id="on another node",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": [pod(account="x")]},
            ("Failed", "PodNotFound", "serviceAccountName"),
            id="with another account",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": [pod("Succeeded")]},
            ("Failed", "PodNotFound", "has ended"),
            id="a Pod that has ended",
        ),
        pytest.param(
            OLD,
            signer(),
            {"pods": [pod(deletionTimestamp=moment(0 * HOUR))]},
            ("Failed", "PodNotFound", "has ended"),
            id="a Pod whose grace period is over",
        ),
        pytest.param(
            OLD,
            signer(),
            {"serviceaccounts": []},
            ("Failed", "PodNotFound", 'service account "shop/web" does not exist'),
            id="no account",
        ),
        pytest.param(
            OLD,
            signer(),
            {"serviceaccounts": [with_metadata(ACCOUNT, uid="other")]},
            ("Failed", "PodNotFound", "service account UID"),
            id="another account of the name",
        ),
        pytest.param(
            OLD, signer(), {"nodes": []}, ("Failed", "PodNotFound", 'node "n1" with the uid uid-of-n1'), id="no node"
        ),
        pytest.param(
            OLD,
            signer(),
            {"nodes": [with_metadata(NODE, uid="other")]},
            ("Failed", "PodNotFound", 'node "n1" with the uid'),
            id="another node of the name",
        ),
    ],
)
def test_a_request_that_is_refused(
    obj: Obj, used: PodSigner, changed: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    kind, reason, message = refused(planned(obj, used, **changed))
    assert (kind, reason) == expected[:2]
    assert expected[2] in message


def test_a_certificate_that_cannot_be_encoded_fails_its_request() -> None:
    used = replace(signer(), policy=lambda: replace(policy(), trust_domains={SIGNER: "ü"}))
    assert refused(planned(used=used))[:2] == ("Failed", "SignerValidationFailure")


# -- what is waited for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "now", "message"),
    [
        pytest.param({"pods": []}, NOW, 'pod "shop/web-1" does not exist', id="a Pod that is not there yet"),
        pytest.param({"pods": [pod(node="")]}, NOW, "not running on node", id="a Pod that has no node yet"),
        pytest.param({"serviceaccounts": []}, NOW, "service account", id="an account that is not there yet"),
        pytest.param({"nodes": []}, NOW, "node", id="a node that is not there yet"),
        pytest.param({}, CA.authority.not_after, "the CA ends at 2035-12-31T03:04:05Z", id="a CA that has expired"),
        pytest.param(
            {}, CA.authority.not_after - HOUR / 2, "lives for an hour at least", id="a CA that ends within the hour"
        ),
    ],
)
def test_what_may_pass_is_waited_for(changed: dict[str, Any], now: datetime, message: str) -> None:
    (action,) = planned(now=now, **changed)
    assert isinstance(action, Retry)
    assert message in action.reason


def test_a_pod_in_its_grace_period_still_runs() -> None:
    issued(planned(pods=[pod(deletionTimestamp=moment(MINUTE))]))


def test_nothing_is_signed_while_an_end_waits_to_be_settled() -> None:
    waiting = thing(tombstones.NAME, tombstones.NAMESPACE, data={"node.n7": "{}"})
    assert planned(configmaps=[waiting]) == [Requeue(NOW + tombstones.UNSETTLED_FOR)]


@pytest.mark.parametrize(
    ("plural", "name"),
    [
        ("pods", ("shop", "web-1")),
        ("serviceaccounts", ("shop", "web")),
        ("nodes", ("", "n1")),
    ],
)
def test_an_object_that_cannot_be_read_is_not_one_that_is_gone(plural: str, name: tuple[str, str]) -> None:
    seen = {**world(OLD), plural: FixedView(unreadable={name: "damaged"})}
    with pytest.raises(UnreadableObjectError, match="damaged"):
        plan(signer(), REQUEST, guarded(seen))


@pytest.mark.parametrize(("plural", "name"), [("nodeidentities", "n1"), ("certificaterevocations", node_entry("n1"))])
def test_a_node_that_cannot_be_judged_is_waited_for(plural: str, name: str) -> None:
    seen = {**world(OLD), plural: FixedView(unreadable={("", name): "damaged"})}
    (action,) = plan(signer(), REQUEST, guarded(seen))
    assert isinstance(action, Retry)
    assert "cannot be read: damaged" in action.reason


# -- at the commit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        pytest.param({}, True, id="nothing has changed"),
        pytest.param({LINEAGE_RECORDS: [issuance_log("uid-of-r")]}, True, id="the entry of the certificate itself"),
        pytest.param({"pods": []}, False, id="the Pod was deleted"),
        pytest.param({"pods": [pod(uid="other")]}, False, id="the Pod was made again"),
        pytest.param({"pods": [pod("Failed")]}, False, id="the Pod has ended"),
        pytest.param({"pods": [pod(deletionTimestamp=moment(0 * HOUR))]}, False, id="its grace period is over"),
        pytest.param({"serviceaccounts": []}, False, id="the account was deleted"),
        pytest.param({"nodes": []}, False, id="the node was deleted"),
        pytest.param({"certificaterevocations": [REVOKED_KEY]}, False, id="the key was revoked"),
        pytest.param(
            {LINEAGE_RECORDS: [issuance_log("uid-of-another")]},
            False,
            id="another request got a certificate of the key",
        ),
        pytest.param(
            {"configmaps": [thing(tombstones.NAME, tombstones.NAMESPACE, data={"node.n7": "{}"})]},
            False,
            id="an end waits to be settled",
        ),
    ],
)
def test_what_has_changed_by_the_commit_publishes_nothing(changed: dict[str, Any], holds: bool) -> None:
    _, _, update = issued(planned(used=signer(rule("freshKey: true"))))
    assert update.precondition is not None
    assert update.precondition(world(**changed), NOW) is holds


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        pytest.param(policy(), True, id="the same policy"),
        pytest.param(policy("[]"), False, id="a policy that refuses"),
        pytest.param(policy(extra=""), False, id="a policy without a trust domain"),
        pytest.param(policy(extra="podCertificates: {trustDomain: other.example}"), False, id="another trust domain"),
    ],
)
def test_a_policy_that_changed_by_the_commit_counts(after: SigningPolicy, holds: bool) -> None:
    policies = [policy()]
    _, _, update = issued(planned(used=signer(lambda: policies[0])))
    policies[0] = after
    assert update.precondition is not None
    assert update.precondition(world(), NOW) is holds
