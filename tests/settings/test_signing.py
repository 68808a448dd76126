"""CAs of the signers: one pair of files for all, or a pair for each, and signers of the operator's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.pki.x509.signers import COUNTERPARTS, SIGNERS
from mooring.settings.signing import BUILT_IN, MAX_OWN_SIGNERS, SIGNING_DURATION, SigningFiles, SigningSettings

CLIENT = "kubernetes.io/kube-apiserver-client"
TOKEN = "pkcs11:token=ca;object=signing?module-path=/usr/lib/token.so&pin-source=file:/etc/pin"


def settings(**values: Any) -> SigningSettings:
    return SigningSettings.read(values)


def test_every_built_in_signer_has_its_flags() -> None:
    assert set(BUILT_IN) == set(SIGNERS) - set(COUNTERPARTS)
    declared = {one.name for one in SigningSettings.declared()}
    assert {f"cluster-signing-{word}-{part}-file" for word in BUILT_IN.values() for part in ("cert", "key")} < declared


def test_without_files_the_default_ca_signs_for_a_year() -> None:
    assert settings().files == {}
    assert settings().cluster_signing_duration == SIGNING_DURATION


def test_one_pair_signs_for_the_four_built_in_signers() -> None:
    files = settings(cluster_signing_cert_file="c", cluster_signing_key_file="k").files
    expected = SigningFiles("cluster-signing-cert-file", "c", "cluster-signing-key-file", "k")
    assert files == dict.fromkeys(BUILT_IN, expected)
    assert not expected.in_token


def test_a_pair_of_one_signer_leaves_the_default_ca_to_the_others() -> None:
    files = settings(
        cluster_signing_kube_apiserver_client_cert_file="c", cluster_signing_kube_apiserver_client_key_file=TOKEN
    ).files
    assert set(files) == {CLIENT}
    assert files[CLIENT].in_token


def test_own_signers_have_a_pair_each() -> None:
    files = settings(signer=("example.com/web=web.crt,web.key", f"example.com/hsm.v1=hsm.crt,{TOKEN},x")).files
    assert files == {
        "example.com/web": SigningFiles("signer", "web.crt", "signer", "web.key"),
        "example.com/hsm.v1": SigningFiles("signer", "hsm.crt", "signer", f"{TOKEN},x"),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param(
            {"cluster_signing_cert_file": "c"},
            "cluster-signing-key-file: it is needed with cluster-signing-cert-file",
            id="a certificate without its key",
        ),
        pytest.param(
            {"cluster_signing_kubelet_client_key_file": "k"},
            "cluster-signing-kubelet-client-cert-file: it is needed with cluster-signing-kubelet-client-key-file",
            id="a key without its certificate",
        ),
        pytest.param(
            {
                "cluster_signing_cert_file": "c",
                "cluster_signing_key_file": "k",
                "cluster_signing_kubelet_serving_cert_file": "c",
                "cluster_signing_kubelet_serving_key_file": "k",
            },
            "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
            id="one pair for all beside that of one",
        ),
        pytest.param(
            {"cluster_signing_cert_file": "c", "cluster_signing_key_file": "pkcs11:object=ca?pin-value=1234"},
            "cluster-signing-key-file: the URI must not contain the PIN; use pin-source=file:PATH or pin-source=env:NAME",
            id="a PIN on the command line",
        ),
        pytest.param(
            {"cluster_signing_duration": timedelta(0)},
            "cluster-signing-duration: give a duration from 10s to 876000h",
            id="no life",
        ),
        pytest.param({"signer": ("example.com/web",)}, "signer: give NAME=CERTIFICATE-FILE,KEY-FILE", id="no files"),
        pytest.param({"signer": ("example.com/web=c",)}, "signer: give NAME=CERTIFICATE-FILE,KEY-FILE", id="no key"),
        pytest.param(
            {"signer": ("web=c,k",)},
            'signer: "web" is no name of a signer; give DOMAIN/PATH, such as example.com/web',
            id="no domain",
        ),
        pytest.param(
            {"signer": ("kubernetes.io/mine=c,k",)},
            "signer: kubernetes.io/mine: names below kubernetes.io are reserved for Kubernetes",
            id="a name of Kubernetes",
        ),
        pytest.param(
            {"signer": ("a.k8s.io/mine=c,k",)},
            "signer: a.k8s.io/mine: names below a.k8s.io are reserved",
            id="a subdomain of Kubernetes",
        ),
        pytest.param(
            {"signer": ("example.com/web=c,k", "example.com/web=c,k")},
            "signer: example.com/web is given twice",
            id="twice",
        ),
        pytest.param(
            {"signer": ("mooring.io/k3s-kubelet-client=c,k",)},
            "signer: mooring.io/k3s-kubelet-client: names below mooring.io are reserved for the supervisor",
            id="a signer of the supervisor",
        ),
        pytest.param(
            {"signer": tuple(f"example.com/s{n}=c,k" for n in range(MAX_OWN_SIGNERS + 1))},
            f"signer: more than {MAX_OWN_SIGNERS} signers",
            id="too many",
        ),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(**values)
    assert str(raised.value).startswith(message)
    assert "1234" not in str(raised.value)
