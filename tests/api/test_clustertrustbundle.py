"""ClusterTrustBundle: names, trust anchors, the immutable signer. Compared with kube-apiserver 1.36.2, by hand, case by case."""

from __future__ import annotations

import pytest

from mooring.api.certificates.clustertrustbundle import KIND, KIND_V1, MAX_TRUST_BUNDLE
from mooring.api.kinds import BY_PLURAL, by_resource, versions_with_same_fields
from mooring.apimachinery.schema import Obj
from tests.support import costlycertificates
from tests.support.plans import NOW
from tests.support.testca import ThrowawayCA

A, B = (ThrowawayCA(name, now=NOW) for name in "ab")
FIRST, SECOND = A.certificate_pem.decode(), B.certificate_pem.decode()
LEAF = A.server("localhost").certificate_pem.decode()
KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
JUNK = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
HEADERS = FIRST.replace("CERTIFICATE-----\n", "CERTIFICATE-----\nProc-Type: 4\n\n", 1)
SIGNER = "example.com/web"
OMITTED = 'spec.trustBundle: Invalid value: "<value omitted>": '


def bundle(name: str = "plain", trust: str | None = FIRST, signer: str | None = None) -> Obj:
    spec = {"trustBundle": trust, "signerName": signer}
    return {"metadata": {"name": name}, "spec": {key: value for key, value in spec.items() if value is not None}}


def errors(obj: Obj) -> list[str]:
    return [str(error) for error in (*KIND.validate(obj), *KIND.validate_create(obj))]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(bundle(), id="one CA"),
        pytest.param(bundle(trust=f"hello\n{FIRST}x\n{SECOND}end"), id="text around two CAs"),
        pytest.param(bundle("example.com:web:one", signer=SIGNER), id="one of a signer"),
        pytest.param(bundle("example.com:a.b:one.two", signer="example.com/a.b"), id="dots"),
    ],
)
def test_a_valid_bundle(obj: Obj) -> None:
    assert errors(obj) == []


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param(
            bundle("a:b"),
            [
                'metadata.name: Invalid value: "a:b": ClusterTrustBundle without signer name must not have ":" in its name'
            ],
            id="a colon without a signer",
        ),
        pytest.param(
            bundle("plain", signer=SIGNER),
            [
                'metadata.name: Invalid value: "plain": ClusterTrustBundle for signerName example.com/web must be named with '
                "prefix example.com:web:"
            ],
            id="no prefix",
        ),
        pytest.param(bundle(trust=None), [OMITTED + "at least one trust anchor must be provided"], id="no bundle"),
        pytest.param(bundle(trust="text"), [OMITTED + "at least one trust anchor must be provided"], id="no block"),
        pytest.param(
            bundle(trust=FIRST + KEY + LEAF + JUNK),
            [
                OMITTED + "entry 1 has bad block type: PRIVATE KEY",
                OMITTED + "entry 2 does not have the CA bit set",
                OMITTED + "entry 3 does not parse as X.509",
            ],
            id="each wrong entry",
        ),
        pytest.param(
            bundle(trust=FIRST + costlycertificates.bundle("policies", costlycertificates.ALL, 1).decode()),
            [
                OMITTED + "entry 1 cannot be read: the extension certificate policies cannot be read: "
                "more than 8000 elements, such as names, are not read"
            ],
            id="a certificate of 64 KiB of policies",
        ),
        pytest.param(bundle(trust=FIRST + HEADERS), [OMITTED + "entry 1 has PEM block headers"], id="headers"),
        pytest.param(
            bundle(trust=FIRST + "-----BEGIN CERTIFICATE-----\n"),
            [OMITTED + "entry 1 cannot be decoded: the PEM block CERTIFICATE has no end line"],
            id="half a block, which Kubernetes ignores",
        ),
        pytest.param(
            bundle(trust=FIRST + SECOND + FIRST), [OMITTED + "duplicate trust anchor (indices [0 2])"], id="one twice"
        ),
        pytest.param(
            bundle(trust=FIRST + "x" * MAX_TRUST_BUNDLE),
            [f"spec.trustBundle: Too long: may not be more than {MAX_TRUST_BUNDLE} bytes"],
            id="too long",
        ),
    ],
)
def test_an_invalid_bundle(obj: Obj, expected: list[str]) -> None:
    assert errors(obj) == expected


@pytest.mark.parametrize(
    ("name", "signer", "paths"),
    [
        ("A_b", None, ["metadata.name"]),
        ("example.com:web:", SIGNER, ["metadata.name"]),
        ("example.com:web:A_b", SIGNER, ["metadata.name"]),
        ("web:one", "web", ["spec.signerName"]),
    ],
)
def test_names_and_signers_are_dns_names(name: str, signer: str | None, paths: list[str]) -> None:
    assert sorted({error.field for error in KIND.validate(bundle(name, signer=signer))}) == paths


def test_a_ca_without_basic_constraints_is_none() -> None:
    certificate = A.custom("a", extensions=()).certificate_pem.decode()
    assert errors(bundle(trust=certificate)) == [OMITTED + "entry 0 does not have the CA bit set"]


def test_an_update_keeps_the_signer_and_parses_a_bundle_only_when_it_changes() -> None:
    old = bundle("example.com:web:one", "stored by another server", SIGNER)

    def update(trust: str, signer: str) -> list[str]:
        return [str(one) for one in KIND.validate_update(bundle("example.com:web:one", trust, signer), old)]

    assert update("stored by another server", SIGNER) == []
    assert update(FIRST, SIGNER) == []
    assert update(LEAF, SIGNER) == [OMITTED + "entry 0 does not have the CA bit set"]
    assert update(FIRST, "example.com/b") == [
        'spec.signerName: Invalid value: "example.com/b": field is immutable',
    ]


def test_the_versions_differ_in_their_name_only() -> None:
    beta, v1 = ({"apiVersion": f"certificates.k8s.io/{version}", **bundle()} for version in ("v1beta1", "v1"))
    assert (KIND_V1.to_storage(v1), KIND_V1.from_storage(beta)) == (beta, v1)
    assert KIND_V1.validate is KIND.validate
    assert [field.number for field in KIND_V1.resource.schema.fields] == [1, 2]


def test_the_signer_is_printed_and_selectable() -> None:
    signer_column = KIND.resource.columns[1]
    assert [signer_column.cell(one, NOW) for one in (bundle(), bundle(signer=SIGNER))] == ["<none>", SIGNER]
    assert KIND.selectable_fields(bundle(signer=SIGNER)) == {"spec.signerName": SIGNER}


def test_the_kind_is_found_in_both_versions_and_stored_once() -> None:
    assert by_resource("certificates.k8s.io", "v1", KIND.resource.plural) is KIND_V1
    assert by_resource("certificates.k8s.io", "v1beta1", KIND.resource.plural) is KIND
    assert BY_PLURAL[KIND.resource.plural] is KIND_V1.storage_kind is KIND


def test_versions_with_the_same_fields() -> None:
    assert set(versions_with_same_fields(KIND)) == set(versions_with_same_fields(KIND_V1)) == {
        "certificates.k8s.io/v1", "certificates.k8s.io/v1beta1",
    }  # fmt: skip
    assert versions_with_same_fields(BY_PLURAL["events"]) == ("v1",), "the other group has other names"
