"""PodCertificateRequest: spec, status, and its two versions (Kubernetes 1.36 and 1.37, `ValidatePodCertificateRequest…`)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.certificates.podcertificaterequest import KIND, KIND_V1, state_of
from mooring.api.certificates.podrequestvalidation import MAX_CHAIN, is_same_status, requested_key
from mooring.api.objectmeta import condition_list_errors
from mooring.apimachinery.schema import Obj
from mooring.pki.errors import RequestError
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem, public_key_der
from tests.support.changes import LATER, created, updated
from tests.support.podrequests import KEY, condition, issued_status, pod_request, stub
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=LATER)
STUB, CHAIN = "spec.stubPKCS10Request: Invalid value", "status.certificateChain: Invalid value"
WRONG_SET = "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"
ED = ed25519.Ed25519PrivateKey.generate()
P384, P521 = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP521R1())
RSA_2048, RSA_3072 = rsa_key(2048), rsa_key(3072)


def spki(key: PrivateKey) -> str:
    return base64.b64encode(public_key_der(key)).decode()


def proof(key: PrivateKey, text: bytes = b"u-pod") -> str:
    """Return the proof of possession of v1beta1."""
    digest = hashes.SHA256()
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(text)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(text, ec.ECDSA(digest))
    else:
        signature = key.sign(text, padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH), digest)
    return base64.b64encode(signature).decode()


def old_request(key: PrivateKey, **changed: Any) -> Obj:
    """Return a request in the form of v1beta1 before Kubernetes 1.36."""
    spec = {"stubPKCS10Request": None, "pkixPublicKey": spki(key), "proofOfPossession": proof(key), **changed}
    return pod_request(key, **spec)


def broken_stub() -> str:
    encoding = base64.b64decode(stub())
    return base64.b64encode(encoding[:-1] + bytes([encoding[-1] ^ 1])).decode()


def stub_of_another_curve() -> str:
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    encoding = builder.sign(ec.generate_private_key(ec.SECP256K1()), hashes.SHA256()).public_bytes(Encoding.DER)
    return base64.b64encode(encoding).decode()


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(pod_request(), id="P-256"),
        pytest.param(pod_request(P384), id="P-384"),
        pytest.param(pod_request(P521), id="P-521"),
        pytest.param(pod_request(ED), id="Ed25519"),
        pytest.param(pod_request(RSA_3072), id="RSA of 3072 bits"),
        pytest.param(pod_request(stubPKCS10Request=stub(common_name="x")), id="a request that is not empty"),
        pytest.param(pod_request(maxExpirationSeconds=3600), id="the shortest life"),
        pytest.param(pod_request(maxExpirationSeconds=7_862_400), id="the longest life"),
        pytest.param(pod_request(signerName="kubernetes.io/a"), id="a signer of kubernetes.io"),
        pytest.param(pod_request(unverifiedUserAnnotations={"Acme.io/Foo": "x" * 1000}), id="annotations"),
        pytest.param(old_request(KEY), id="the old form, ECDSA"),
        pytest.param(old_request(ED), id="the old form, Ed25519"),
        pytest.param(old_request(RSA_3072), id="the old form, RSA"),
    ],
)
def test_a_request_that_is_accepted(obj: Obj) -> None:
    stored, errors = created(KIND, obj | {"status": {"conditions": [condition("Issued", LATER)]}})
    assert errors == []
    assert (stored["status"], state_of(stored)) == ({}, "Pending")


def test_the_lifetime_has_a_default() -> None:
    assert created(KIND, pod_request(maxExpirationSeconds=None))[0]["spec"]["maxExpirationSeconds"] == 86_400


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param(
            {"metadata": {"name": "r"}},
            [
                "spec.signerName: Required value",
                'spec.podName: Invalid value: ""',
                'spec.podUID: Invalid value: "": must not be empty',
                'spec.serviceAccountName: Invalid value: ""',
                'spec.serviceAccountUID: Invalid value: "": must not be empty',
                'spec.nodeName: Invalid value: ""',
                'spec.nodeUID: Invalid value: "": must not be empty',
                WRONG_SET,
            ],
            id="an empty spec",
        ),
        pytest.param(
            pod_request(podName="P", podUID="x" * 129),
            ['spec.podName: Invalid value: "P"', "spec.podUID: Too long: may not be more than 128 bytes"],
            id="a name and a uid",
        ),
        pytest.param(
            pod_request(maxExpirationSeconds=3599),
            ["spec.maxExpirationSeconds: Invalid value: 3599: must be in the range [3600, 7862400]"],
            id="too short a life",
        ),
        pytest.param(
            pod_request(maxExpirationSeconds=7_862_401),
            ["spec.maxExpirationSeconds: Invalid value: 7862401: must be in the range [3600, 7862400]"],
            id="too long a life",
        ),
        pytest.param(
            pod_request(signerName="a.kubernetes.io/b", maxExpirationSeconds=86_401),
            ["spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]"],
            id="more than a day from a signer of kubernetes.io",
        ),
        pytest.param(
            pod_request(unverifiedUserAnnotations={"foo": "a", "": "b", "Acme.io/?": "c"}),
            [
                'spec.unverifiedUserAnnotations: Invalid value: "foo": must be a domain-prefixed key (such as "acme.io/foo")',
                "spec.unverifiedUserAnnotations: Required value",
                'spec.unverifiedUserAnnotations: Invalid value: "acme.io/?": name part must consist of',
            ],
            id="keys of annotations",
        ),
        pytest.param(
            pod_request(unverifiedUserAnnotations={"?": "x" * 262_144}),
            ["spec.unverifiedUserAnnotations: Too long: may not be more than 262144 bytes"],
            id="large annotations, whose keys are not looked at",
        ),
        pytest.param(
            pod_request(stubPKCS10Request=base64.b64encode(b"x" * 10_241).decode()),
            ["spec.stubPKCS10Request: Too long: may not be more than 10240 bytes"],
            id="a large request",
        ),
        pytest.param(pod_request(stubPKCS10Request="AAAA"), [f"{STUB}: must be a valid PKCS#10 CSR"], id="no request"),
        pytest.param(pod_request(stubPKCS10Request="A"), [f"{STUB}: must be a valid PKCS#10 CSR"], id="no base64"),
        pytest.param(pod_request(stubPKCS10Request=broken_stub()), [f"{STUB}: invalid signature"], id="another's key"),
        pytest.param(
            pod_request(RSA_2048),
            [f'{STUB}: "2048-bit modulus": RSA keys must have modulus size 3072 or 4096'],
            id="a short RSA key",
        ),
        pytest.param(
            pod_request(stubPKCS10Request=stub_of_another_curve()),
            [f"{STUB}: unsupported elliptic curve secp256k1: use P-256, P-384 or P-521"],
            id="another curve",
        ),
        pytest.param(old_request(KEY, proofOfPossession=None), [WRONG_SET], id="a key without a proof"),
        pytest.param(old_request(KEY, stubPKCS10Request=stub()), [WRONG_SET], id="both forms"),
        pytest.param(
            old_request(KEY, proofOfPossession=proof(KEY, b"another Pod")),
            ["spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature"],
            id="a proof for another Pod",
        ),
        pytest.param(
            old_request(KEY, pkixPublicKey="AAAA"),
            ["spec.pkixPublicKey: Invalid value: must be a valid PKIX-serialized public key"],
            id="no key",
        ),
        pytest.param(
            old_request(RSA_2048),
            ['spec.pkixPublicKey: Invalid value: "2048-bit modulus": RSA keys must have modulus size 3072 or 4096'],
            id="a short RSA key in the old form",
        ),
        pytest.param(
            old_request(KEY, pkixPublicKey=base64.b64encode(b"x" * 10_241).decode()),
            ["spec.pkixPublicKey: Too long: may not be more than 10240 bytes"],
            id="a large key",
        ),
        pytest.param(
            old_request(KEY, proofOfPossession=base64.b64encode(b"x" * 10_241).decode()),
            ["spec.proofOfPossession: Too long: may not be more than 10240 bytes"],
            id="a large proof",
        ),
    ],
)
def test_a_request_that_is_refused(obj: Obj, expected: list[str]) -> None:
    errors = created(KIND, obj)[1]
    assert len(errors) == len(expected)
    assert all(error.startswith(begin) for error, begin in zip(errors, expected, strict=True)), errors


def test_the_spec_cannot_change_and_the_main_resource_changes_no_status() -> None:
    old, _ = created(KIND, pod_request())
    new, errors = updated(KIND, old | {"metadata": {"labels": {"a": "b"}}, "status": {"notAfter": "x"}}, old)
    assert (errors, new["status"], new["metadata"]["labels"]) == ([], {}, {"a": "b"})
    (error,) = updated(KIND, old | {"spec": old["spec"] | {"podName": "other"}}, old)[1]
    assert error.startswith('spec: Invalid value: {"SignerName":"example.com/mesh","PodName":"other"')
    assert error.endswith("field is immutable")


def test_a_client_of_v1_does_not_see_the_old_fields_and_keeps_them() -> None:
    old, _ = created(KIND, old_request(KEY))
    assert KIND_V1.alias is not None
    shown = KIND_V1.from_storage(old)
    assert shown["apiVersion"] == "certificates.k8s.io/v1"
    assert not {"pkixPublicKey", "proofOfPossession"} & set(shown["spec"])
    new, errors = updated(KIND, KIND_V1.to_storage(shown), old)
    assert (new["spec"], errors) == (old["spec"], [])
    usual = created(KIND, pod_request())[0]
    assert KIND_V1.from_storage(usual)["spec"] is usual["spec"]


def test_an_update_of_the_status_changes_nothing_else() -> None:
    old, _ = created(KIND, pod_request())
    meta = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a.b/c"], "ownerReferences": [{"uid": "u"}]}
    status = {"conditions": [condition("Denied", LATER)]}
    new, errors = updated(KIND, {"metadata": meta, "spec": {}, "status": status}, old, "status")
    assert (errors, new["spec"], new["status"]) == ([], old["spec"], status)
    assert not set(meta) & set(new["metadata"])


def issued(**changed: Any) -> Obj:
    return issued_status(CA, LATER, **changed)


def followed_by(text: str) -> Obj:
    """Return an issued status whose chain goes on with `text`."""
    status = issued()
    return status | {"certificateChain": status["certificateChain"] + text}


BETWEEN = CA.intermediate("between").certificate_pem.decode()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        pytest.param({}, "Pending", id="nothing"),
        pytest.param({"conditions": []}, "Pending", id="no condition"),
        pytest.param({"conditions": [condition("Denied", LATER)]}, "Denied", id="denied"),
        pytest.param({"conditions": [condition("Failed", LATER)]}, "Failed", id="failed"),
        pytest.param(issued(), "Issued", id="issued"),
        pytest.param(issued(life=timedelta(hours=1)), "Issued", id="for an hour"),
        pytest.param(issued(life=timedelta(days=1)), "Issued", id="for as long as requested"),
        pytest.param(issued(begin=timedelta(seconds=299)), "Issued", id="from soon on"),
        pytest.param(followed_by(f"text\n{BETWEEN}"), "Issued", id="with an intermediate"),
    ],
)
def test_a_status_that_may_be_written(status: Obj, state: str) -> None:
    old, _ = created(KIND, pod_request())
    new, errors = updated(KIND, {"status": status}, old, "status")
    assert (errors, state_of(new)) == ([], state)


def named(*names: x509.GeneralName) -> Obj:
    return issued(extensions=[(x509.SubjectAlternativeName(names), False)])


KEY_TEXT = private_key_pem(generate_key()).decode()
JUNK = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
FINAL = "status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"
EMPTY = (
    "status: Invalid value: non-condition status fields must be empty when denying or failing the PodCertificateRequest"
)
MOVES = 'status: Invalid value: status is immutable unless transitioning to "Issued", "Denied", or "Failed"'
ONE = 'There may be at most one condition with type "Issued", "Denied", or "Failed"'


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"notAfter": "2026-01-02T04:00:00Z"}, [MOVES], id="a time alone"),
        pytest.param(
            {"conditions": [condition("Denied", LATER)], "certificateChain": "x"}, [EMPTY], id="denied, with a chain"
        ),
        pytest.param(
            {"conditions": [condition("Ready", LATER)]},
            [
                'status.conditions[0].type: Unsupported value: "Ready": supported values: "Issued", "Denied", "Failed"',
            ],
            id="a condition of another type",
        ),
        pytest.param(
            {"conditions": [condition("Denied", LATER, status="False")]},
            ['status.conditions[0].status: Unsupported value: "False": supported values: "True"'],
            id="a condition that is false",
        ),
        pytest.param(
            {"conditions": [condition("Issued", LATER), condition("Denied", LATER)]},
            [f'status.conditions[1].type: Invalid value: "Denied": {ONE}'],
            id="two decisions",
        ),
        pytest.param(
            {"conditions": [condition("Denied", LATER, lastTransitionTime=None, reason="")]},
            ["status.conditions[0].lastTransitionTime: Required value", "status.conditions[0].reason: Required value"],
            id="no time and no reason",
        ),
        pytest.param(
            issued(certificateChain="x" * (MAX_CHAIN + 1)),
            [f"status.certificateChain: Too long: may not be more than {MAX_CHAIN} bytes"],
            id="a long chain",
        ),
        pytest.param(
            issued(certificateChain="text"),
            [f"{CHAIN}: issued certificate chain must contain at least one certificate"],
            id="no block",
        ),
        pytest.param(
            issued(certificateChain="-----BEGIN CERTIFICATE-----\n"),
            [f"{CHAIN}: issued certificate chain cannot be decoded: the PEM block"],
            id="half a block",
        ),
        pytest.param(
            followed_by(KEY_TEXT),
            [f"{CHAIN}: issued certificate chain must consist entirely of CERTIFICATE PEM blocks"],
            id="a private key in the chain, which is not quoted",
        ),
        pytest.param(
            issued(certificateChain=JUNK),
            [f"{CHAIN}: leaf certificate does not parse as valid X.509"],
            id="a leaf that cannot be read",
        ),
        pytest.param(
            issued(certificateChain=KEY_TEXT.replace("PRIVATE KEY", "CERTIFICATE")),
            [f"{CHAIN}: leaf certificate does not parse as valid X.509"],
            id="a private key that is called a certificate, which is not quoted",
        ),
        pytest.param(followed_by(JUNK), [CHAIN], id="an intermediate that cannot be read"),
        pytest.param(
            named(*map(x509.DNSName, ("", "a..b", ".a", "b."))),
            [
                f'{CHAIN}: "": leaf certificate should not contain empty DNSName',
                f"{CHAIN}: \"a..b\": leaf certificate's DNSName should not contain '..'",
                f"{CHAIN}: \".a\": leaf certificate's DNSName should not start or end with '.'",
                f"{CHAIN}: \"b.\": leaf certificate's DNSName should not start or end with '.'",
            ],
            id="DNS names",
        ),
        pytest.param(
            named(x509.RFC822Name("a@b.c"), x509.RFC822Name("a..b@c")),
            [f'{CHAIN}: "a..b@c": leaf certificate should not contain invalid EmailAddress'],
            id="an email address",
        ),
        pytest.param(issued(key=ED), [CHAIN], id="another key"),
        pytest.param(issued(key=ec.generate_private_key(ec.SECP256K1())), [CHAIN], id="a key that is not accepted"),
        pytest.param(
            issued(notBefore=None, notAfter=None, beginRefreshAt=None),
            [
                "status.notBefore: Required value: must be present and consistent with the issued certificate",
                "status.notAfter: Required value: must be present and consistent with the issued certificate",
                "status.beginRefreshAt: Required value: must be present and in the range [notbefore+10min, notafter-10min]",
            ],
            id="no times",
        ),
        pytest.param(
            issued(notBefore="2026-01-02T03:58:01Z"),
            [
                'status.notBefore: Invalid value: "2026-01-02T03:58:01Z": must be set to the NotBefore time encoded in the'
            ],
            id="another beginning",
        ),
        pytest.param(
            issued(begin=timedelta(minutes=-5)),
            [
                'status.notBefore: Invalid value: "2026-01-02T03:55:00Z": must be set to within 5 minutes of kube-apiserver\'s '
                "current time"
            ],
            id="long ago",
        ),
        pytest.param(
            issued(begin=timedelta(minutes=5)),
            ['status.notBefore: Invalid value: "2026-01-02T04:05:00Z": must be set to within 5 minutes'],
            id="in the future",
        ),
        pytest.param(
            issued(notAfter="2026-01-03T00:00:00Z"),
            [
                'status.notAfter: Invalid value: "2026-01-03T00:00:00Z": must be set to the NotAfter time encoded in the leaf'
            ],
            id="another end",
        ),
        pytest.param(
            issued(life=timedelta(minutes=59)),
            [f"{CHAIN}: 3540000000000: leaf certificate lifetime must be >= 1 hour"],
            id="a short life",
        ),
        pytest.param(
            issued(life=timedelta(days=1, seconds=1)),
            [f"{CHAIN}: 86401000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"],
            id="a life that is longer than requested",
        ),
        pytest.param(
            issued(beginRefreshAt="2026-01-02T04:07:59Z"),
            [
                'status.beginRefreshAt: Invalid value: "2026-01-02T04:07:59Z": must be at least 10 minutes after status.notBefore'
            ],
            id="renewal at once",
        ),
        pytest.param(
            issued(beginRefreshAt="2026-01-02T05:48:01Z"),
            [
                'status.beginRefreshAt: Invalid value: "2026-01-02T05:48:01Z": must be at least 10 minutes before status.notAfter'
            ],
            id="renewal at the end",
        ),
    ],
)
def test_a_status_that_is_refused(status: Obj, expected: list[str]) -> None:
    old, _ = created(KIND, pod_request())
    status = {name: value for name, value in status.items() if value is not None}
    errors = updated(KIND, {"status": status}, old, "status")[1]
    assert len(errors) == len(expected), errors
    assert all(error.startswith(begin) for error, begin in zip(errors, expected, strict=True)), errors
    assert "PRIVATE" not in " ".join(errors)


@pytest.mark.parametrize("decided", [issued(), {"conditions": [condition("Denied", LATER)]}], ids=["issued", "denied"])
def test_a_decision_is_final(decided: Obj) -> None:
    old = created(KIND, pod_request())[0] | {"status": decided}
    assert updated(KIND, {"status": decided}, old, "status")[1] == []
    for status in ({}, {"conditions": [condition("Failed", LATER)]}):
        assert updated(KIND, {"status": status}, old, "status")[1] == [FINAL]


def test_the_key_of_a_stored_request_that_cannot_be_read() -> None:
    old = created(KIND, pod_request())[0]
    old["spec"]["stubPKCS10Request"] = "AAAA"
    errors = updated(KIND, {"status": issued()}, old, "status")[1]
    assert errors == [f"{STUB}: the certificate request cannot be parsed: {errors[0].rpartition('parsed: ')[2]}"]


def test_the_requested_key() -> None:
    for spec in (pod_request(P384)["spec"], old_request(P384)["spec"]):
        assert public_key_der(requested_key(spec)) == public_key_der(P384)
    with pytest.raises(RequestError, match="must be a valid PKIX"):
        requested_key({})


def test_a_condition_of_another_writer_decides_nothing() -> None:
    assert state_of({"status": {"conditions": [condition("Ready", LATER)]}}) == "Pending"


def test_statuses_that_say_the_same() -> None:
    assert is_same_status(None, {"conditions": [], "certificateChain": ""})
    assert not is_same_status({}, {"conditions": [condition("Denied", LATER)]})


def test_the_columns() -> None:
    obj = created(KIND, pod_request(unverifiedUserAnnotations={"b/x": "1", "a/x": "2"}))[0] | {"status": issued()}
    cells = [column.cell(obj, LATER) for column in KIND.resource.columns]
    assert cells == ["r1", "p", "default", "n1", "example.com/mesh", "Issued", "a/x=2,b/x=1"]


REASON = 'conditions[0].reason: Invalid value: "'


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        pytest.param([condition("A", LATER), condition("b.c/D", LATER)], [], id="two"),
        pytest.param(
            [condition("A", LATER), condition("A", LATER)],
            ['conditions[1].type: Duplicate value: "A"'],
            id="one twice",
        ),
        pytest.param(
            [condition("?", LATER)], ['conditions[0].type: Invalid value: "?": name part must consist of'], id="a type"
        ),
        pytest.param(
            [condition("A", LATER, status="Yes", observedGeneration=-1)],
            [
                'conditions[0].status: Unsupported value: "Yes": supported values: "False", "True", "Unknown"',
                "conditions[0].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            ],
            id="a status and a generation",
        ),
        pytest.param(
            [condition("A", LATER, reason="a b")], [f'{REASON}a b": a condition reason must start with'], id="a reason"
        ),
        pytest.param(
            [condition("A", LATER, reason="a" * 1025, message="x" * 32769)],
            [
                "conditions[0].reason: Too long: may not be more than 1024 bytes",
                "conditions[0].message: Too long: may not be more than 32768 bytes",
            ],
            id="long texts",
        ),
    ],
)
def test_conditions(conditions: list[Obj], expected: list[str]) -> None:
    errors = [str(error) for error in condition_list_errors(conditions, "conditions")]
    assert len(errors) == len(expected)
    assert all(error.startswith(begin) for error, begin in zip(errors, expected, strict=True)), errors
