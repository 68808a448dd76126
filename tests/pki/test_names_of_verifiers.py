"""What a client takes for the name of the API server: forms of names in a certificate, three verifiers, and the gate of names.

Whatever one of the verifiers takes for the server's name is refused by the gate. The names of loopback in certificates of k3s's
agents are the one exception, which a root of its own for kubelets takes away (docs/adr/0057-a-root-for-kubelets.md).

Go's column was recorded from crypto/x509 of Go 1.27.3 by `VERIFIER`, and is verified again where a Go toolchain is on PATH. Real
clients, of older Go, are asked in `tests/compat/test_kubectl_names.py`.
OpenSSL is asked by its command, Python by a handshake in memory.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.controllers.certificates.sanpolicy.rules import NodeEvidence, Reservations, judge_node, judge_server
from mooring.pki.errors import RequestError
from mooring.pki.keys import private_key_pem
from mooring.pki.x509 import names
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.canonicalnames import canonical
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.profiles import DIGITAL_SIGNATURE, SERVER_AUTH
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import K3S_LOCAL_NAMES, KUBELET_SERVING, SIGNERS
from tests.support.testca import read

GO, OPENSSL, PYTHON = "Go", "OpenSSL", "Python"
EVERYBODY = frozenset({GO, OPENSSL, PYTHON})
OLDER_GO = "the Go of kubectl 1.27 to 1.33"
"""Takes IPv4-mapped addresses, which Go 1.27 takes for no address, and up to kubectl 1.29 the wildcard `*`."""
NOBODY: frozenset[str] = frozenset()
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
NAME, ADDRESS, ADDRESS6 = "kubernetes.default.svc", "192.0.2.10", "2001:db8::10"
DNS = x509.DNSName

VERIFIER = """
package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
)

func main() {
	var cases []struct{ Root, Leaf, Name string }
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	verdicts := []bool{}
	for _, one := range cases {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(one.Root)) {
			panic("the root cannot be read")
		}
		block, _ := pem.Decode([]byte(one.Leaf))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err == nil {
			_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: one.Name})
		}
		verdicts = append(verdicts, err == nil)
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		panic(err)
	}
}
"""


def ip(text: str) -> x509.IPAddress:
    return x509.IPAddress(ipaddress.ip_address(text))


@dataclass(frozen=True)
class Form:
    """A name in a certificate, the name that a client asks for, and who takes the one for the other."""

    meaning: str
    listed: tuple[x509.GeneralName, ...]
    asked: str
    taken_by: frozenset[str]
    common_name: str = "system:node:n1"


FORMS = (
    Form("the name itself", (DNS(NAME),), NAME, EVERYBODY),
    Form("another name", (DNS("n1"),), NAME, NOBODY),
    Form("the name in capitals", (DNS(NAME.upper()),), NAME, EVERYBODY),
    Form("the name with a trailing dot", (DNS(NAME + "."),), NAME, NOBODY),
    Form("a trailing dot on both sides", (DNS(NAME + "."),), NAME + ".", EVERYBODY),
    Form("the name, where a client asks with a trailing dot", (DNS(NAME),), NAME + ".", frozenset({GO})),
    Form("a wildcard for the first label", (DNS("*.default.svc"),), NAME, EVERYBODY),
    Form("a wildcard for part of a label", (DNS("kube*.default.svc"),), NAME, frozenset({OPENSSL})),
    Form("a wildcard for two labels", (DNS("*.svc"),), NAME, NOBODY),
    Form("a wildcard for everything", (DNS("*"),), "localhost", frozenset({OLDER_GO})),
    Form("a name that continues after a NUL", (DNS(NAME + "\0.example.com"),), NAME, NOBODY),
    Form("a name that ends with a NUL", (DNS(NAME + "\0"),), NAME, NOBODY),
    Form("an empty label before the name", (DNS("." + NAME),), NAME, NOBODY),
    Form("the domain of the name with a dot before it", (DNS(".default.svc"),), NAME, NOBODY),
    Form("the name as common name, with other names beside it", (DNS("n1"),), NAME, NOBODY, NAME),
    Form(
        "the name as common name, with an address beside it",
        (ip("192.0.2.20"),),
        NAME,
        frozenset({OPENSSL, PYTHON}),
        NAME,
    ),
    Form("the name as common name alone", (), NAME, frozenset({OPENSSL, PYTHON}), NAME),
    Form(
        "a wildcard for part of a label as common name",
        (),
        NAME,
        frozenset({OPENSSL}),
        "kube*.default.svc",
    ),
    Form("the name as e-mail address", (x509.RFC822Name("n1@" + NAME),), NAME, NOBODY),
    Form("the name as URI", (x509.UniformResourceIdentifier("https://" + NAME),), NAME, NOBODY),
    Form("localhost", (DNS("localhost"),), "localhost", EVERYBODY),
    Form("a loopback address", (ip("127.0.0.1"),), "127.0.0.1", EVERYBODY),
    Form("the address itself", (ip(ADDRESS),), ADDRESS, EVERYBODY),
    Form("another address", (ip("192.0.2.20"),), ADDRESS, NOBODY),
    Form("the address as IPv4-mapped one", (ip("::ffff:" + ADDRESS),), ADDRESS, frozenset({OLDER_GO})),
    Form(
        "the address, where a client asks for the IPv4-mapped one", (ip(ADDRESS),), "::ffff:" + ADDRESS, frozenset({GO})
    ),
    Form("the address as IPv4-compatible one", (ip("::" + ADDRESS),), ADDRESS, NOBODY),
    Form("the address within 6to4", (ip("2002:c000:20a::"),), ADDRESS, NOBODY),
    Form("the address within NAT64", (ip("64:ff9b::" + ADDRESS),), ADDRESS, NOBODY),
    Form("the address within ISATAP", (ip("fe80::5efe:c000:20a"),), ADDRESS, NOBODY),
    Form("the address as DNS name", (DNS(ADDRESS),), ADDRESS, NOBODY),
    Form("the address as common name", (DNS("n1"),), ADDRESS, NOBODY, ADDRESS),
    Form("the IPv6 address itself", (ip(ADDRESS6),), ADDRESS6, EVERYBODY),
    Form("the IPv6 address, where a client writes it out", (ip(ADDRESS6),), "2001:0db8:0:0:0:0:0:0010", EVERYBODY),
    Form("the IPv6 address as DNS name", (DNS(ADDRESS6),), ADDRESS6, NOBODY),
)


class Root:
    """A CA with the name of every cluster's, and a leaf for each form."""

    def __init__(self, directory: Path) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed(self.key, "kubernetes", (), is_ca=True)
        self.file = directory / "root.pem"
        self.pem = certificates_pem([self.certificate]).decode()
        self.file.write_text(self.pem)
        self.leaf_key = ec.generate_private_key(ec.SECP256R1())
        self.leaf_key_pem = private_key_pem(self.leaf_key)
        self.leaves: dict[Form, Path] = {}
        for number, form in enumerate(FORMS):
            leaf = self._signed(self.leaf_key, form.common_name, form.listed)
            self.leaves[form] = directory / f"{number}.pem"
            self.leaves[form].write_bytes(certificates_pem([leaf]) + self.leaf_key_pem)

    def _signed(
        self, key: ec.EllipticCurvePrivateKey, name: str, listed: tuple[x509.GeneralName, ...], *, is_ca: bool = False
    ) -> Certificate:
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(names.subject(name).for_builder())
            .issuer_name(names.subject("kubernetes").for_builder())
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FIRST)
            .not_valid_after(LAST)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(own, critical=False)
        )
        if not is_ca:
            purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
            builder = builder.add_extension(purpose, critical=False)
        if listed:
            builder = builder.add_extension(x509.SubjectAlternativeName(listed), critical=False)
        return read(builder.sign(self.key, hashes.SHA256()))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return Root(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root with the same name and another key, which nobody trusts for servers."""
    return Root(tmp_path_factory.mktemp("kubelets"))


def python_takes(trusted: Root, leaf: Path, asked: str) -> bool:
    client_context, server_context = (
        ssl.create_default_context(cafile=str(trusted.file)),
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
    )
    server_context.load_cert_chain(leaf)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=asked)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            if side is client:
                return True
    raise AssertionError("the handshake did not end")


def openssl_takes(trusted: Root, leaf: Path, asked: str) -> bool:
    try:
        ipaddress.ip_address(asked)
    except ValueError:
        option = "-verify_hostname"
    else:
        option = "-verify_ip"
    command = ["openssl", "verify", "-no-CApath", "-CAfile", str(trusted.file), option, asked, str(leaf)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def go_takes(directory: Path, cases: list[tuple[Root, Path, str]]) -> list[bool]:
    """Ask the verifier of the Go toolchain on PATH."""
    (directory / "main.go").write_text(VERIFIER)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOCACHE": str(directory / "cache")}
    asked = json.dumps([{"Root": one.pem, "Leaf": leaf.read_text(), "Name": name} for one, leaf, name in cases])
    done = subprocess.run(
        ["go", "run", str(directory / "main.go")],
        input=asked,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts: list[bool] = json.loads(done.stdout)
    return verdicts


EACH = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.meaning)
NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
NEEDS_GO = pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain on PATH")


@EACH
def test_python_takes_exactly_these_forms_for_the_server(root: Root, form: Form) -> None:
    assert python_takes(root, root.leaves[form], form.asked) == (PYTHON in form.taken_by)


@NEEDS_OPENSSL
@EACH
def test_openssl_takes_exactly_these_forms_for_the_server(root: Root, form: Form) -> None:
    assert openssl_takes(root, root.leaves[form], form.asked) == (OPENSSL in form.taken_by)


@NEEDS_GO
def test_go_takes_exactly_the_recorded_forms_for_the_server(root: Root, other: Root, tmp_path: Path) -> None:
    cases = [(root, one.leaves[form], form.asked) for one in (root, other) for form in FORMS]
    taken = dict(
        zip(((one, form.meaning) for one in ("own", "other") for form in FORMS), go_takes(tmp_path, cases), strict=True)
    )
    assert {form for (one, form), verdict in taken.items() if verdict and one == "own"} == {
        form.meaning for form in FORMS if GO in form.taken_by
    }
    assert not any(verdict for (one, _), verdict in taken.items() if one == "other")


@EACH
def test_python_takes_no_form_of_another_root_of_the_same_name(root: Root, other: Root, form: Form) -> None:
    assert not python_takes(root, other.leaves[form], form.asked)


@NEEDS_OPENSSL
@EACH
def test_openssl_takes_no_form_of_another_root_of_the_same_name(root: Root, other: Root, form: Form) -> None:
    assert not openssl_takes(root, other.leaves[form], form.asked)


API_SERVERS = frozenset(map(canonical, (NAME, ADDRESS, ADDRESS6, "localhost", "127.0.0.1")))


def parsed(form: Form) -> CertificateRequest:
    """Return the request for a certificate with this form. Raises RequestError."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        names.subject(form.common_name, ["system:nodes"]).for_builder()
    )
    if form.listed:
        builder = builder.add_extension(x509.SubjectAlternativeName(form.listed), critical=False)
    return parse_request(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def passes_for_a_node(form: Form) -> bool:
    """Return whether a node gets this certificate, which says in its own status that all names are its own."""
    try:
        request = parsed(form)
    except RequestError:
        return False
    if SIGNERS[KUBELET_SERVING].refusals(request, [DIGITAL_SIGNATURE, SERVER_AUTH]):
        return False
    requested = request.alternative_names
    said = frozenset({*map(str.lower, requested.dns), *requested.ips})
    evidence = NodeEvidence(node="n1", reservations=Reservations(api_servers=API_SERVERS), reported=said)
    return judge_node(requested, evidence) is None


def passes_for_a_server(form: Form) -> bool:
    """Return whether a signer of the operator's own gives this certificate."""
    try:
        request = parsed(form)
    except RequestError:
        return False
    return judge_server(request.common_name, request.alternative_names, API_SERVERS, lambda name: False) is None


TAKEN = pytest.mark.parametrize("form", [form for form in FORMS if form.taken_by], ids=lambda form: form.meaning)


@TAKEN
def test_no_node_gets_a_form_that_a_verifier_takes_for_the_server(form: Form) -> None:
    assert not passes_for_a_node(form)


@TAKEN
def test_no_other_signer_gives_a_form_that_a_verifier_takes_for_the_server(form: Form) -> None:
    assert not passes_for_a_server(form)


def test_a_node_gets_the_forms_that_are_its_own() -> None:
    assert [form.meaning for form in FORMS if passes_for_a_node(form)] == ["another name", "another address"]


def test_of_the_server_names_an_agent_of_k3s_gets_those_of_loopback_alone() -> None:
    evidence = NodeEvidence(node="n1", reservations=Reservations(api_servers=API_SERVERS), reported=API_SERVERS)
    own = [canonical(text) for text in (*K3S_LOCAL_NAMES.dns, *map(str, K3S_LOCAL_NAMES.ips))]
    assert sorted(map(str, own)) == ["127.0.0.1", "localhost"]
    assert judge_node(K3S_LOCAL_NAMES, evidence, K3S_LOCAL_NAMES) is None
    for name in (NAME, ADDRESS, ADDRESS6):
        form = canonical(name)
        dns, ips = ((form,), ()) if isinstance(form, str) else ((), (form,))
        asked = AlternativeNames((*K3S_LOCAL_NAMES.dns, *dns), (*K3S_LOCAL_NAMES.ips, *ips))
        assert judge_node(asked, evidence, K3S_LOCAL_NAMES) is not None
