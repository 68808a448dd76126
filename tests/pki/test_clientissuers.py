"""CAs of client certificates: the cluster's own, then those of signers, each once."""

from __future__ import annotations

from dataclasses import replace

from cryptography.x509.oid import NameOID

from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.clusterca import CaState, ClusterCa, CombinedIssuers
from tests.support.testca import Pair, ThrowawayCA, name_of

OWN, SIGNER, OLD = ThrowawayCA("own"), ThrowawayCA("signer"), ThrowawayCA("old")


def test_the_clusters_own_ca_stands_first_and_none_stands_twice() -> None:
    state = replace(CaState.of(SIGNER.authority), trusted=(SIGNER.certificate, OWN.certificate, OLD.certificate))
    issuers = CombinedIssuers(OWN.cluster_ca, lambda: {"cluster-signing-cert-file": state})
    assert issuers.trusted == (OWN.certificate, SIGNER.certificate, OLD.certificate)
    assert issuers.trusted_pem == certificates_pem(issuers.trusted)
    assert list(issuers.issuers.values()) == [OWN.certificate, SIGNER.certificate]
    assert list(issuers.issuers)[1] == "cluster-signing-cert-file"


def test_certificates_of_a_signer_are_not_to_be_renewed_for_a_rollover_of_the_cluster() -> None:
    trusted = (OWN.certificate, SIGNER.certificate, OLD.certificate)
    own = ClusterCa(replace(CaState.of(OWN.authority), trusted=trusted))
    assert CombinedIssuers(own, lambda: {"signer": CaState.of(SIGNER.authority)}).superseded == (OLD.certificate,)


def test_a_retired_ca_of_the_cluster_that_a_signer_uses_is_trusted() -> None:
    own = ClusterCa(replace(CaState.of(OWN.authority), retired=(OLD.certificate, SIGNER.certificate)))
    assert CombinedIssuers(own, lambda: {"signer": CaState.of(SIGNER.authority)}).retired == (OLD.certificate,)


def test_a_ca_of_the_cluster_that_a_signer_names_is_trusted_unless_it_was_given_up_or_stolen() -> None:
    again = OLD.custom(name_of((NameOID.COMMON_NAME, "again")), key=OLD.key).certificate
    signer = replace(CaState.of(SIGNER.authority), trusted=(SIGNER.certificate, OLD.certificate, again))
    for stolen in ((), (OLD.certificate,)):
        state = replace(CaState.of(OWN.authority), distrusted=(OLD.certificate, SIGNER.certificate), compromised=stolen)
        issuers = CombinedIssuers(ClusterCa(state), lambda: {"signer": signer})
        kept = () if stolen else (OLD.certificate, again)
        assert issuers.trusted == (OWN.certificate, SIGNER.certificate, *kept)
        assert issuers.distrusted == stolen


def test_a_ca_that_a_signature_alone_tells_to_be_given_up_is_trusted_for_no_signer() -> None:
    left = OWN.custom(OWN.certificate.subject, issuer=Pair(OLD.certificate, OLD.key))
    own = ClusterCa(replace(CaState.of(OWN.authority), forgotten=(left.certificate,)))
    issuers = CombinedIssuers(own, lambda: {"signer": CaState.of(OLD.authority), "other": CaState.of(SIGNER.authority)})
    assert issuers.trusted == (OWN.certificate, SIGNER.certificate)
    assert issuers.forgotten == (left.certificate,)


def test_a_change_of_the_cluster_or_of_a_signer_reaches_the_subscribers() -> None:
    own = OWN.cluster_ca
    issuers = CombinedIssuers(own, dict)
    calls: list[str] = []
    issuers.subscribe(lambda: calls.append("changed"))
    own.replace(CaState.of(OLD.authority))
    issuers.notify()
    assert calls == ["changed"] * 2
