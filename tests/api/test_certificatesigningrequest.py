"""CertificateSigningRequest: defaults, validation, `/approval`, `/status`, print columns.

Source: docs/protocol/certificate-signing-requests.md, docs/protocol/tables.md.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.certificates.certificatesigningrequest import spec_errors
from mooring.api.certificates.requestrecords import SOURCE_ADDRESS, source_address_of
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.signername import MAX_SIGNER_NAME, signer_name_errors
from mooring.errors import MAX_FIELD_ERRORS
from mooring.identity import UserInfo
from tests.support.changes import LATER, NOW, created, texts, updated
from tests.support.compared import Compared, many
from tests.support.work import work

CSR = BY_PLURAL["certificatesigningrequests"]

Obj = dict[str, Any]

_KEY = ec.generate_private_key(ec.SECP256R1())
_NAME = x509.Name.from_rfc4514_string("CN=system:node:n1,O=system:nodes")
_DER = x509.CertificateSigningRequestBuilder(_NAME).sign(_KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def pem(label: str, der: bytes) -> bytes:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n".encode()


def certificate() -> bytes:
    now = NOW.replace(tzinfo=None)
    builder = x509.CertificateBuilder(_NAME, _NAME, _KEY.public_key(), 1, now, now + timedelta(days=1))
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


REQUEST = b64(pem("CERTIFICATE REQUEST", _DER))
FORGED = b64(pem("CERTIFICATE REQUEST", _DER[:-1] + bytes([_DER[-1] ^ 1])))
CERTIFICATE = b64(certificate())
SPEC: Obj = {
    "request": REQUEST,
    "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
    "usages": ["digital signature", "client auth"],
}
SUPPORTED = ", ".join(
    f'"{usage}"'
    for usage in (
        "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment",
        "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel",
        "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime",
        "server auth", "signing", "timestamping",
    )
)  # fmt: skip


def made(**spec: Any) -> tuple[Obj, list[str]]:
    return created(CSR, {"spec": {**SPEC, **spec}})


def test_the_server_writes_the_identity_of_the_requester() -> None:
    obj, errors = created(
        CSR,
        {
            "spec": {**SPEC, "username": "root", "uid": "0", "groups": ["system:masters"], "extra": {"a": ["b"]}},
            "status": {"certificate": CERTIFICATE, "conditions": [{"type": "Approved", "status": "True"}]},
        },
    )
    assert errors == []
    assert obj["spec"] == {
        **SPEC,
        "username": "jane",
        "uid": "u-1",
        "groups": ["devs", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=ab"]},
    }
    assert obj["status"] == {}


@pytest.mark.parametrize(
    ("given", "source", "stored"),
    [
        pytest.param(None, "192.0.2.7", {SOURCE_ADDRESS: "192.0.2.7"}, id="recorded"),
        pytest.param(
            {SOURCE_ADDRESS: "10.0.0.1", "a": "b"},
            "192.0.2.7",
            {"a": "b", SOURCE_ADDRESS: "192.0.2.7"},
            id="in place of a client's",
        ),
        pytest.param({SOURCE_ADDRESS: "10.0.0.1"}, "", None, id="none within the server"),
    ],
)
def test_the_server_records_the_address_of_the_requester(given: Obj | None, source: str, stored: Obj | None) -> None:
    obj: Obj = {"metadata": {"name": "x", "annotations": given} if given else {"name": "x"}, "spec": SPEC}
    CSR.prepare_for_create(obj, Change(UserInfo("jane"), NOW, source=source))
    assert obj["metadata"].get("annotations") == stored
    assert source_address_of(obj) == source


@pytest.mark.parametrize("subresource", ["", "approval", "status"])
def test_no_update_changes_the_recorded_address(subresource: str) -> None:
    old: Obj = {"metadata": {"name": "x", "annotations": {SOURCE_ADDRESS: "192.0.2.7"}}, "spec": SPEC, "status": {}}
    policy = (CSR.subresources or {})[subresource] if subresource else CSR
    for given in ({SOURCE_ADDRESS: "10.0.0.1"}, {}, {"a": "b"}):
        new: Obj = {**old, "metadata": {"name": "x", "annotations": given}}
        policy.prepare_for_update(new, old, Change(UserInfo("jane"), NOW, source="10.0.0.9"))
        assert source_address_of(new) == "192.0.2.7"


def test_attributes_that_the_user_lacks_are_absent() -> None:
    given = {"spec": {**SPEC, "uid": "0", "groups": ["system:masters"], "extra": {"a": ["b"]}}}
    obj, _ = created(CSR, given, user=UserInfo("jane"))
    assert obj["spec"] == {**SPEC, "username": "jane"}


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        pytest.param({}, [], id="a node's request is fine"),
        pytest.param({"expirationSeconds": 600}, [], id="ten minutes are enough"),
        pytest.param(
            {"expirationSeconds": 599},
            [
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ],
            id="less is not",
        ),
        pytest.param({"usages": []}, ["spec.usages: Required value"], id="usages are needed"),
        pytest.param(
            {"usages": ["client auth", "dancing"]},
            [f'spec.usages[1]: Unsupported value: "dancing": supported values: {SUPPORTED}'],
            id="usages are known",
        ),
        pytest.param(
            {"usages": ["client auth", "client auth"]},
            ['spec.usages[1]: Duplicate value: "client auth"'],
            id="no usage twice",
        ),
        pytest.param({"signerName": ""}, ["spec.signerName: Required value"], id="a signer is needed"),
        pytest.param(
            {"signerName": "kubernetes.io/legacy-unknown"},
            [
                'spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": '
                "the legacy signerName is not allowed via this API version"
            ],
            id="the legacy signer is history",
        ),
        pytest.param(
            {"request": b64(pem("PRIVATE KEY", b"oops"))},
            ['spec.request: Invalid value: "<certificate request>": PEM block type must be CERTIFICATE REQUEST'],
            id="another PEM block is refused and never quoted",
        ),
        pytest.param(
            {"request": FORGED},
            [
                f'spec.request: Invalid value: "{FORGED}": '
                "the certificate request's signature does not verify with the key it carries"
            ],
            id="a signature must verify",
        ),
        pytest.param(
            {"request": "x"},
            [
                'spec.request: Invalid value: "<certificate request>": Invalid base64-encoded string: '
                "number of data characters (1) cannot be 1 more than a multiple of 4"
            ],
            id="base64 that is none is refused",
        ),
    ],
)
def test_spec_validation(spec: Obj, errors: list[str]) -> None:
    assert made(**spec)[1] == errors


def test_without_spec_every_required_field_is_reported() -> None:
    assert created(CSR, {})[1] == [
        "spec.request: Invalid value: null: PEM block type must be CERTIFICATE REQUEST",
        "spec.usages: Required value",
        "spec.signerName: Required value",
    ]


FORM = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LONG_DOMAIN = ".".join(["a" * 63] * 4)


@pytest.mark.parametrize(
    ("signer", "errors"),
    [
        pytest.param("kubernetes.io/kubelet-serving", [], id="a built-in signer"),
        pytest.param("example.com/ns.name", [], id="a signer per object"),
        pytest.param("example.com", [f'p: Invalid value: "example.com": {FORM}'], id="a path is needed"),
        pytest.param("a.b/c/d", [f'p: Invalid value: "a.b/c/d": {FORM}'], id="only one slash"),
        pytest.param(
            "example/x",
            ['p: Invalid value: "example": should be a domain with at least two segments separated by dots'],
            id="a domain has two labels",
        ),
        pytest.param(
            "Ex.Com/x",
            [f'p: Invalid value: "Ex.Com": validating label "Ex": {LABEL}'],
            id="the first invalid label is reported",
        ),
        pytest.param("a.b/", [f'p: Invalid value: "": validating label "": {SUBDOMAIN}'], id="the path is not empty"),
        pytest.param(
            "a.b/x.Y.Z", [f'p: Invalid value: "x.Y.Z": validating label "Y": {SUBDOMAIN}'], id="and of DNS names"
        ),
        pytest.param(f"{LONG_DOMAIN}/x", ["p: Too long: may not be more than 253 bytes"], id="a domain fits DNS"),
        pytest.param(
            "a.b/" + ".".join(["x" * 63] * 10),
            [f"p: Too long: may not be more than {MAX_SIGNER_NAME} bytes"],
            id="the whole is limited too",
        ),
    ],
)
def test_signer_names(signer: str, errors: list[str]) -> None:
    assert texts(signer_name_errors(signer, "p")) == errors


def test_the_work_is_linear_in_the_usages() -> None:
    # A client with a bootstrap token may send as many as fit into a body, and other requests wait.
    assert len(spec_errors({**SPEC, "usages": many(1000)})) == MAX_FIELD_ERRORS + 1
    assert Compared.times < 10_000


STORED = made()[0]
AT = "2026-01-02T04:00:00Z"
TIMES = {"lastUpdateTime": AT, "lastTransitionTime": AT}
APPROVED = {"type": "Approved", "status": "True", "reason": "AutoApproved"}
DENIED = {"type": "Denied", "status": "True"}
FAILED = {"type": "Failed", "status": "True"}


def stored(*conditions: Obj, **status: Any) -> Obj:
    obj = copy.deepcopy(STORED)
    obj["status"] = {"conditions": list(conditions), **status} if conditions else dict(status)
    return obj


def test_a_put_changes_only_metadata() -> None:
    old = stored({**APPROVED, **TIMES})
    asked = {
        "metadata": {"name": "x", "labels": {"a": "b"}},
        "spec": {**SPEC, "username": "root"},
        "status": {"certificate": CERTIFICATE},
    }
    new, errors = updated(CSR, asked, old)
    assert (new["spec"], new["status"], errors) == (old["spec"], old["status"], [])
    assert new["metadata"]["labels"] == {"a": "b"}


def test_a_put_over_an_untouched_request_keeps_its_empty_status() -> None:
    new, errors = updated(CSR, {"status": {"conditions": [APPROVED]}}, STORED)
    assert (new["status"], errors) == ({}, [])


def test_approval_changes_only_conditions() -> None:
    asked = {"spec": {"signerName": "evil.example/x"}, "status": {"conditions": [APPROVED], "certificate": CERTIFICATE}}
    new, errors = updated(CSR, asked, STORED, "approval")
    assert (new["spec"], errors) == (STORED["spec"], [])
    assert new["status"] == {"conditions": [{**APPROVED, **TIMES}]}


def test_approval_keeps_the_certificate() -> None:
    old = stored({**APPROVED, **TIMES}, certificate=CERTIFICATE)
    new, errors = updated(CSR, {"status": {"conditions": [APPROVED, FAILED]}}, old, "approval")
    assert (new["status"]["certificate"], errors) == (CERTIFICATE, [])


def test_an_approval_without_conditions_leaves_an_empty_status() -> None:
    new, errors = updated(CSR, {}, STORED, "approval")
    assert (new["status"], errors) == ({}, [])


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        pytest.param([], APPROVED, TIMES, id="missing times are now"),
        pytest.param(
            [],
            {**APPROVED, "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            id="given times are kept",
        ),
        pytest.param(
            [{**APPROVED, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            APPROVED,
            {"lastUpdateTime": AT, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            id="a transition is as old as the equal condition before",
        ),
        pytest.param([APPROVED], APPROVED, TIMES, id="unless that has no time"),
        pytest.param(
            [{"type": "Mine", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            {"type": "Mine", "status": "True"},
            TIMES,
            id="another status is a transition",
        ),
    ],
)
def test_condition_times(before: list[Obj], given: Obj, after: Obj) -> None:
    new, errors = updated(CSR, {"status": {"conditions": [given]}}, stored(*before), "approval")
    assert errors == []
    assert new["status"]["conditions"] == [{**given, **after}]


P = "status.conditions"
EXCLUSIVE = "Approved and Denied conditions are mutually exclusive"


@pytest.mark.parametrize(
    ("before", "after", "errors"),
    [
        pytest.param([], [DENIED], [], id="a denial is a decision too"),
        pytest.param([], [FAILED, {"type": "Mine", "status": "Unknown"}], [], id="custom conditions are allowed"),
        pytest.param([], [{"status": "True"}], [f"{P}[0].type: Required value"], id="a type is needed"),
        pytest.param([{"status": "True"}], [{"status": "True"}], [], id="unless an old one had none"),
        pytest.param([], [{"type": "Mine"}], [f"{P}[0].status: Required value"], id="a status is needed"),
        pytest.param(
            [],
            [{"type": "Mine", "status": "maybe"}],
            [f'{P}[0].status: Unsupported value: "maybe": supported values: "False", "True", "Unknown"'],
            id="one of three",
        ),
        pytest.param(
            [],
            [{"type": "Approved", "status": "False"}],
            [f'{P}[0].status: Unsupported value: "False": supported values: "True"'],
            id="decisions are True",
        ),
        pytest.param([], [APPROVED, DENIED], [f'{P}: Invalid value: "Denied": {EXCLUSIVE}'], id="not both decisions"),
        pytest.param([], [DENIED, APPROVED], [f'{P}: Invalid value: "Approved": {EXCLUSIVE}'], id="in either order"),
        pytest.param([APPROVED, DENIED], [APPROVED, DENIED], [], id="unless both were there already"),
        pytest.param([], [FAILED, FAILED], [f'{P}[1].type: Duplicate value: "Failed"'], id="no type twice"),
        pytest.param([FAILED, FAILED], [FAILED, FAILED], [], id="unless one was already"),
        pytest.param(
            [APPROVED, FAILED],
            [],
            [
                f'{P}: Forbidden: updates may not remove a condition of type "Approved"',
                f'{P}: Forbidden: updates may not remove a condition of type "Failed"',
            ],
            id="decisions stay",
        ),
        pytest.param([{"type": "Mine", "status": "True"}], [], [], id="custom conditions may go"),
    ],
)
def test_conditions_through_approval(before: list[Obj], after: list[Obj], errors: list[str]) -> None:
    asked = {"status": {"conditions": after}}
    assert updated(CSR, asked, stored(*before), "approval")[1] == errors


CERTIFICATE_PATH = "status.certificate"


@pytest.mark.parametrize(
    ("old", "status", "errors"),
    [
        pytest.param(
            stored(APPROVED), {"conditions": [APPROVED], "certificate": CERTIFICATE}, [], id="a signer issues"
        ),
        pytest.param(stored(APPROVED), {"conditions": [APPROVED, FAILED]}, [], id="or fails"),
        pytest.param(
            STORED,
            {"conditions": [APPROVED]},
            [f'{P}: Forbidden: updates may not add a condition of type "Approved"'],
            id="but does not approve",
        ),
        pytest.param(
            STORED,
            {"conditions": [DENIED]},
            [f'{P}: Forbidden: updates may not add a condition of type "Denied"'],
            id="nor deny",
        ),
        pytest.param(
            stored(APPROVED),
            {"certificate": CERTIFICATE},
            [f'{P}: Forbidden: updates may not remove a condition of type "Approved"'],
            id="nor take an approval back",
        ),
        pytest.param(
            stored(APPROVED, certificate=CERTIFICATE),
            {"conditions": [APPROVED], "certificate": CERTIFICATE},
            [],
            id="an equal certificate is no change",
        ),
        pytest.param(
            stored(APPROVED, certificate=CERTIFICATE),
            {"conditions": [APPROVED], "certificate": b64(certificate())},
            [f"{CERTIFICATE_PATH}: Forbidden: updates may not modify existing certificate content"],
            id="an issued certificate stays",
        ),
        pytest.param(
            stored(APPROVED, certificate=CERTIFICATE),
            {"conditions": [APPROVED], "certificate": b64(b"a")},
            [
                f'{CERTIFICATE_PATH}: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block',
                f"{CERTIFICATE_PATH}: Forbidden: updates may not modify existing certificate content",
            ],
            id="also for what is no certificate",
        ),
        pytest.param(
            stored(APPROVED, certificate=CERTIFICATE),
            {"conditions": [APPROVED]},
            [f"{CERTIFICATE_PATH}: Forbidden: updates may not modify existing certificate content"],
            id="and does not go away",
        ),
        pytest.param(
            stored(APPROVED),
            {"conditions": [APPROVED], "certificate": b64(b"text around\n" + certificate() * 2 + b"is fine\n")},
            [],
            id="a chain with text around it is fine",
        ),
        pytest.param(
            stored(APPROVED),
            {"conditions": [APPROVED], "certificate": b64(b"no PEM")},
            [
                f'{CERTIFICATE_PATH}: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block'
            ],
            id="something must be issued",
        ),
        pytest.param(
            stored(APPROVED),
            {"conditions": [APPROVED], "certificate": b64(certificate() + pem("CERTIFICATE REQUEST", _DER))},
            [
                f'{CERTIFICATE_PATH}: Invalid value: "<certificate data>": '
                'only CERTIFICATE PEM blocks are allowed, found "CERTIFICATE REQUEST"'
            ],
            id="and only certificates",
        ),
        pytest.param(
            stored(APPROVED),
            {"conditions": [APPROVED], "certificate": b64(pem("CERTIFICATE", b"a"))},
            [
                f'{CERTIFICATE_PATH}: Invalid value: "<certificate data>": '
                "the certificate cannot be read: an element is missing or of another type"
            ],
            id="that can be read",
        ),
    ],
)
def test_status_updates_of_a_signer(old: Obj, status: Obj, errors: list[str]) -> None:
    assert updated(CSR, {"status": status}, old, "status")[1] == errors


def test_status_resets_approved_and_denied() -> None:
    old = stored({**APPROVED, **TIMES}, {"type": "Mine", "status": "True"})
    asked = {
        "spec": {},
        "status": {"conditions": [{"type": "Mine", "status": "False"}, {**APPROVED, "reason": "Forged"}]},
    }
    new, errors = updated(CSR, asked, old, "status")
    assert errors == []
    assert new["spec"] == STORED["spec"]
    assert new["status"]["conditions"] == [{"type": "Mine", "status": "False", **TIMES}, {**APPROVED, **TIMES}]


def test_a_status_may_stay_empty() -> None:
    new, errors = updated(CSR, {}, STORED, "status")
    assert (new["status"], errors) == ({}, [])


@pytest.mark.parametrize(
    ("obj", "printed"),
    [
        pytest.param(
            STORED, "x 55m kubernetes.io/kube-apiserver-client-kubelet jane <none> Pending", id="a pending request"
        ),
        pytest.param(
            stored(APPROVED, certificate=CERTIFICATE),
            "x 55m kubernetes.io/kube-apiserver-client-kubelet jane <none> Approved,Issued",
            id="an issued one",
        ),
        pytest.param(
            {**stored(DENIED, APPROVED, FAILED), "spec": {"expirationSeconds": 3600}},
            "x 55m <none>  60m Denied,Failed",
            id="denial goes first",
        ),
    ],
)
def test_print_columns(obj: Obj, printed: str) -> None:
    assert " ".join(str(column.cell(obj, LATER)) for column in CSR.resource.columns) == printed


def test_requests_are_selected_by_signer() -> None:
    assert CSR.selectable_fields(STORED) == {"spec.signerName": "kubernetes.io/kube-apiserver-client-kubelet"}


def test_an_error_quotes_the_beginning_of_a_long_request() -> None:
    """A response has the text twice: in its message and in its causes."""
    long = b64(pem("CERTIFICATE REQUEST", bytes(30_000)))
    (error,) = made(request=long)[1]
    quoted, _, detail = error.removeprefix('spec.request: Invalid value: "').partition('": ')
    assert quoted == long[:4096] + "..."
    assert detail.startswith("the certificate request cannot be parsed")


@pytest.mark.parametrize("usage", ["client auth", "clairvoyance"], ids=["known", "not known"])
def test_usages_beyond_what_an_error_lists_cost_nothing(usage: str) -> None:
    def validating(count: int) -> Callable[[], object]:
        return lambda: spec_errors({**SPEC, "usages": [usage] * count})

    work(validating(1))  # the request is remembered
    assert work(validating(100_000)) == work(validating(1000))
    assert len(spec_errors({**SPEC, "usages": [usage] * 1000})) > MAX_FIELD_ERRORS
