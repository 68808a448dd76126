"""Join configuration: flags that exclude or need each other.

Source: docs/protocol/discovery-and-join.md#inputs; docs/differences.md#super-simple-discovery-api.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import CaHashMismatchError, CertificateError, PinMismatchError
from mooring.trust.discovery.fetch import SIGNATURE_ALONE, UNPROVED, Polling
from mooring.trust.discovery.pins import Pin, parse_pin, pins_of
from mooring.trust.joinconfiguration import (
    LONGEST_LIFETIME,
    ByAddress,
    ByFile,
    ByUrl,
    IdentityToken,
    JoinPlan,
    JoinSettings,
    parse_endpoint,
)
from mooring.trust.k3s.cahash import CaHashError
from mooring.trust.kubeconfig import ExecPlugin
from tests.support.discoverypeer import CA, OTHER_CA, Network, Server, signed_cluster_info

T1 = "aaaaaa.1111111111111111"
T2 = "bbbbbb.2222222222222222"
PIN = "sha256:" + "ab" * 32
HOST = "192.0.2.1:6443"
CLUSTER = Network({HOST: Server(signed_cluster_info(parse_token(T1), server=f"https://{HOST}"))})
CA_HASH = "ab" * 32
K10_T1 = f"K10{CA_HASH}::{T1}"
DIGEST = sha256(CA).hexdigest()


def given(**fields: Any) -> dict[str, Any]:
    return {"node_name": "node-1"} | fields


JWT = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJhIn0.c2ln"
BY_PIN = ByAddress((HOST,), None, (parse_pin(PIN),))
BY_T1 = ByAddress((HOST,), parse_token(T1), (parse_pin(PIN),))


@pytest.mark.parametrize(
    ("typed", "plan"),
    [
        pytest.param(
            given(address=(HOST,), token=T1, discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(BY_T1, parse_token(T1), "node-1", False),
            id="--token is both tokens",
        ),
        pytest.param(
            given(address=(HOST,), token=T2, discovery_token=T1, discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(BY_T1, parse_token(T2), "node-1", False),
            id="--token fills the empty TLS token",
        ),
        pytest.param(
            given(address=(HOST,), token=T1, tls_bootstrap_token=T2, discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(BY_T1, parse_token(T2), "node-1", False),
            id="--token fills the empty discovery token",
        ),
        pytest.param(
            given(
                address=(HOST,),
                token="",
                discovery_token=T1,
                tls_bootstrap_token=T2,
                discovery_token_ca_cert_hash=(PIN,),
            ),
            JoinPlan(BY_T1, parse_token(T2), "node-1", False),
            id="both tokens on their own, an empty --token counts as none",
        ),
        pytest.param(
            given(address=(HOST,), token=T1, discovery_token_unsafe_skip_ca_verification=True),
            JoinPlan(ByAddress((HOST,), parse_token(T1), ()), parse_token(T1), "node-1", False),
            id="no pins with the flag named unsafe",
        ),
        pytest.param(
            given(
                address=(HOST,),
                token=T1,
                discovery_token_unsafe_skip_ca_verification=True,
                discovery_token_ca_cert_hash=(PIN,),
            ),
            JoinPlan(BY_T1, parse_token(T1), "node-1", False),
            id="pins are kept in spite of the unsafe flag",
        ),
        pytest.param(
            given(
                address=(HOST, f"https://{HOST}/", "b.test:1"),
                token=T1,
                discovery_token_ca_cert_hash=(PIN, PIN.upper()),
            ),
            JoinPlan(
                ByAddress((HOST, "b.test:1"), parse_token(T1), (parse_pin(PIN),)), parse_token(T1), "node-1", False
            ),
            id="several addresses and pins, none twice",
        ),
        pytest.param(
            given(address=(HOST,), token=K10_T1),
            JoinPlan(ByAddress((HOST,), parse_token(T1), (), CA_HASH), parse_token(T1), "node-1", False),
            id="a token of k3s's form: its hash takes the place of a pin",
        ),
        pytest.param(
            given(address=(HOST,), token=K10_T1, discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(ByAddress((HOST,), parse_token(T1), (parse_pin(PIN),), CA_HASH), parse_token(T1), "node-1", False),
            id="a hash in the token and a pin",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token=T1, tls_bootstrap_token=f"K10{CA_HASH}::{T2}"),
            JoinPlan(ByAddress((HOST,), parse_token(T1), (), CA_HASH), parse_token(T2), "node-1", False),
            id="the hash in the TLS token",
        ),
        pytest.param(
            given(address=(HOST,), token=f"K10::{T1}", discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(BY_T1, parse_token(T1), "node-1", False),
            id="k3s's form without a hash",
        ),
        pytest.param(
            given(discovery_file="f", token=f"K10::{T1}"),
            JoinPlan(ByFile("f"), parse_token(T1), "node-1", False),
            id="k3s's form without a hash beside a file",
        ),
        pytest.param(
            given(discovery_file="/etc/cluster.yaml", token=T1),
            JoinPlan(ByFile("/etc/cluster.yaml"), parse_token(T1), "node-1", False),
            id="a file, --token asks for the certificate",
        ),
        pytest.param(
            given(discovery_file="-", tls_bootstrap_token=T1),
            JoinPlan(ByFile("-"), parse_token(T1), "node-1", False),
            id="standard input",
        ),
        pytest.param(
            given(discovery_file="file:///etc/a%20b.yaml", token=T1),
            JoinPlan(ByFile("/etc/a b.yaml"), parse_token(T1), "node-1", False),
            id="a file URL becomes a path",
        ),
        pytest.param(
            given(discovery_file="file://localhost/etc/a.yaml", token=T1),
            JoinPlan(ByFile("/etc/a.yaml"), parse_token(T1), "node-1", False),
            id="a file URL of this machine becomes a path",
        ),
        pytest.param(
            given(discovery_file="https://example.test/c.yaml", allow_discovery_credentials=True),
            JoinPlan(ByUrl("https://example.test/c.yaml"), None, "node-1", True),
            id="a URL whose credentials are allowed needs no token",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token_ca_cert_hash=(PIN,), identity_token_file="t"),
            JoinPlan(BY_PIN, None, "node-1", False, IdentityToken("t"), "host"),
            id="an identity token in a file, and pins",
        ),
        pytest.param(
            given(
                node_name="", address=(HOST,), discovery_token_ca_cert_hash=(PIN,), identity_token_command="print it"
            ),
            JoinPlan(BY_PIN, None, "", False, IdentityToken(command="print it"), "host"),
            id="the server may name the node of an identity token",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token=T1, discovery_token_ca_cert_hash=(PIN,), identity_token_file="t"),
            JoinPlan(BY_T1, None, "node-1", False, IdentityToken("t"), "host"),
            id="a token discovers, and an identity token requests the certificate",
        ),
        pytest.param(
            given(address=(HOST,), ask=True, discovery_token_ca_cert_hash=(PIN,)),
            JoinPlan(BY_PIN, None, "node-1", False, asks=True),
            id="asking, where the pin is known",
        ),
        pytest.param(
            given(node_name="", address=(HOST,), ask=True),
            JoinPlan(ByAddress((HOST,), None, ()), None, "host", False, asks=True),
            id="asking under the name of the machine",
        ),
        pytest.param(
            given(discovery_file="f", identity_token_file="t"),
            JoinPlan(ByFile("f"), None, "node-1", False, IdentityToken("t"), "host"),
            id="a file, and an identity token",
        ),
    ],
)
def test_a_join_may_be(typed: dict[str, Any], plan: JoinPlan) -> None:
    settings = JoinSettings.read(typed)
    assert settings.has_credential is not plan.asks
    assert settings.plan("host" if plan.identity or plan.asks else "") == plan


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        pytest.param(
            given(discovery_token_ca_cert_hash=(PIN,), identity_token_file="t"),
            "an identity token needs the address of an API server",
            id="an identity token without an address",
        ),
        pytest.param(
            given(address=(HOST,), identity_token_file="t"),
            "an identity token needs --discovery-token-ca-cert-hash, or --discovery-file: it is sent to that cluster",
            id="an identity token without pins",
        ),
        pytest.param(
            given(address=(HOST,), identity_token_file="t", discovery_token_unsafe_skip_ca_verification=True),
            "an identity token needs --discovery-token-ca-cert-hash",
            id="an identity token that any server would get",
        ),
        pytest.param(
            given(address=(HOST,), identity_token_file="t", discovery_token_ca_cert_hash=("sha256:ab",)),
            '--discovery-token-ca-cert-hash: invalid CA hash "sha256:ab"',
            id="an identity token with a bad pin",
        ),
        pytest.param(
            given(address=(HOST,), identity_token_file=JWT),
            "--identity-token-file: a token stands where its file is expected: every user of this machine can read a command line",
            id="an identity token on the command line",
        ),
        pytest.param(
            given(address=(HOST,), identity_token_command=f" {JWT} "),
            "--identity-token-command: a token stands where a command is expected",
            id="an identity token in place of a command",
        ),
        pytest.param(
            given(identity_token_file="t", identity_token_command="print it"),
            "--identity-token-file and --identity-token-command cannot both be given",
            id="two identity tokens",
        ),
        pytest.param(
            given(identity_token_file="t", token=T1),
            "--identity-token-file and --token cannot both be given: one credential requests the certificate",
            id="a token and an identity token",
        ),
        pytest.param(
            given(identity_token_command="print it", tls_bootstrap_token=T1),
            "--identity-token-command and --tls-bootstrap-token cannot both be given",
            id="a TLS token and an identity token",
        ),
        pytest.param(
            given(identity_token_file="t", discovery_file="f", allow_discovery_credentials=True),
            "--identity-token-file and --allow-discovery-credentials cannot both be given",
            id="the credentials of a document and an identity token",
        ),
        pytest.param(
            given(),
            "no way of discovery: give an API server address with --discovery-token (or --token), or --discovery-file",
            id="nothing",
        ),
        pytest.param(given(address=(HOST,)), "no way of discovery", id="an address without a token"),
        pytest.param(
            given(address=(f"{T1.upper()}.test",), token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "a bootstrap token stands where the address of the API server is expected",
            id="the token in front of a domain",
        ),
        pytest.param(
            given(token=T1),
            "--token: discovery by token needs the address of an API server, host or host:port",
            id="a token without an address",
        ),
        pytest.param(
            given(discovery_token=T1),
            "--discovery-token: discovery by token needs the address",
            id="a discovery token without an address",
        ),
        pytest.param(
            given(address=(HOST,), token=T1, discovery_file="f"),
            "an API server address and --discovery-file cannot both be given",
            id="an address and a file",
        ),
        pytest.param(
            given(discovery_token=T1, discovery_file="f"),
            "--discovery-token and --discovery-file cannot both be given",
            id="a discovery token and a file",
        ),
        pytest.param(
            given(address=(HOST,), token=T1),
            "discovery by token without --discovery-token-ca-cert-hash can be unsafe: give the hash, "
            "or pass --discovery-token-unsafe-skip-ca-verification to continue without it",
            id="no pins",
        ),
        pytest.param(
            given(address=(HOST,), token=T1, discovery_token_ca_cert_hash=("sha256:ab",)),
            '--discovery-token-ca-cert-hash: invalid CA hash "sha256:ab"',
            id="a bad pin",
        ),
        pytest.param(
            given(discovery_file=T1, tls_bootstrap_token=T2),
            "--discovery-file: a token stands where the discovery document is expected: give it with --token",
            id="a token in place of a document",
        ),
        pytest.param(
            given(discovery_file=K10_T1, tls_bootstrap_token=T2),
            "--discovery-file: a token stands where the discovery document is expected: give it with --token",
            id="a token in k3s's form in place of a document",
        ),
        pytest.param(
            given(discovery_file="f", tls_bootstrap_token=T2, token=K10_T1),
            "--token: the hash in the token is compared in discovery by token only",
            id="a hash that nothing would compare",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token=T1, tls_bootstrap_token=f"K10{'cd' * 32}::{T2}", token=K10_T1),
            "the tokens that are given hold the hashes of two CAs",
            id="another hash in the token that neither step uses",
        ),
        pytest.param(
            given(address=(HOST,), token=T1 + "0", discovery_token_ca_cert_hash=(PIN,)),
            "--token: the bootstrap token is not of the form",
            id="a bad token",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token="x", token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "--discovery-token: the bootstrap token is not of the form",
            id="a bad discovery token",
        ),
        pytest.param(
            given(address=(HOST,), tls_bootstrap_token="x", token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "--tls-bootstrap-token: the bootstrap token is not of the form",
            id="a bad TLS token",
        ),
        pytest.param(
            given(address=(HOST,), token=f"K10{CA_HASH}::node:1111111111111111"),
            "--token: this token holds a password, with which machines join k3s's way only (mooring agent --server)",
            id="a password in k3s's form",
        ),
        pytest.param(
            given(address=(HOST,), token="K10abc::1111111111111111"),
            "--token: invalid token CA hash length",
            id="a bad hash in the token",
        ),
        pytest.param(
            given(address=(HOST,), token=f"K10::{T1}"),
            "discovery by token without --discovery-token-ca-cert-hash can be unsafe",
            id="k3s's form without a hash, and no pins",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token=K10_T1, tls_bootstrap_token=f"K10{'cd' * 32}::{T2}"),
            "the tokens that are given hold the hashes of two CAs",
            id="two hashes",
        ),
        pytest.param(
            given(discovery_file="f", token=K10_T1),
            "--token: the hash in the token is compared in discovery by token only: give id.secret",
            id="a hash in the token beside a file",
        ),
        pytest.param(
            given(discovery_file="f", tls_bootstrap_token="x"),
            "--tls-bootstrap-token: the bootstrap token is not of the form",
            id="a bad TLS token beside a file",
        ),
        pytest.param(
            given(address=(HOST,), discovery_token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "--tls-bootstrap-token or --token is needed to ask for a certificate",
            id="no TLS token",
        ),
        pytest.param(
            given(discovery_file="f"),
            "no credential for the certificate request: give --tls-bootstrap-token, or --token, or a --discovery-file",
            id="a file and nothing to ask with",
        ),
        pytest.param(
            given(address=(HOST,) * 65, token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "at most 64 API server addresses",
            id="too many addresses",
        ),
        pytest.param(
            given(discovery_file="http://example.test/c.yaml", token=T1),
            "--discovery-file: if a URL is used, it must be https://host/path",
            id="a URL without TLS",
        ),
        pytest.param(
            given(discovery_file="https:///c.yaml", token=T1), "must be https://host", id="a URL without host"
        ),
        pytest.param(given(discovery_file="https://[::1/c", token=T1), "neither a path nor a URL", id="a broken URL"),
        pytest.param(
            given(discovery_file="file://other/c.yaml", token=T1),
            "must name an absolute path on this machine",
            id="a file URL of another machine",
        ),
        pytest.param(given(discovery_file="file://", token=T1), "must name an absolute path", id="an empty file URL"),
        pytest.param(
            given(discovery_file="https://u:12/SECRET@192.0.2.1/c", token=T1),
            "--discovery-file: behind the host of a URL, and in a user name and a password, @ and / are written",
            id="a URL whose password has a slash",
        ),
        pytest.param(
            given(discovery_file="https://u:12?SECRET@192.0.2.1/c", token=T1),
            "--discovery-file: behind the host of a URL",
            id="a URL whose password has a question mark",
        ),
        pytest.param(
            given(discovery_file="u:SECRET@192.0.2.1", token=T1),
            "--discovery-file: a URL begins with https://",
            id="a password without a scheme",
        ),
        *(
            pytest.param(
                given(address=(address,), token=T1),
                'the API server address "(redacted)" must be host or host:port',
                id=f"a secret in the address {address}",
            )
            for address in (
                "u:SECRET@192.0.2.1",
                "https://u:12/SECRET@192.0.2.1",
                "https://192.0.2.1/?token=SECRET",
                "192.0.2.1#SECRET",
            )
        ),
        pytest.param(
            given(discovery_file="f", token=T1, discovery_token_ca_cert_hash=(PIN,)),
            "--discovery-token-ca-cert-hash and --discovery-file cannot both be given",
            id="a pin beside a document",
        ),
        pytest.param(
            given(request_fact=("color",)), '--request-fact: "color" is none of ', id="no fact of the firmware"
        ),
        *(
            pytest.param(
                given(**{field: texts}),
                f"--{field.replace('_', '-')}: give a value, or leave the flag out",
                id=f"an empty text among those of {field}: {texts}",
            )
            for field in ("request_fact", "request_annotation")
            for texts in (("",), (" , ",), ("product-serial", ""))
        ),
        pytest.param(
            given(address=(HOST,), ask=True, token=T1), "give no token and no document", id="asking with a token"
        ),
        pytest.param(given(ask=True, discovery_file="f"), "give no token and no document", id="asking with a document"),
        pytest.param(given(ask=True), "--ask needs the address", id="asking nobody"),
        pytest.param(given(node_name="", token=T1), "--node-name is needed", id="no node name"),
        pytest.param(given(node_name="Node_1", token=T1), '--node-name "Node_1" is invalid: ', id="a bad node name"),
    ],
)
def test_a_join_may_not_be(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JoinSettings.read(typed).plan("")
    assert message in str(caught.value)
    assert "1111111111111111" not in str(caught.value)


def test_facts_of_the_firmware_are_named_once() -> None:
    facts = ("product-serial", "asset-tag", "product-serial")
    assert JoinSettings.read(given(request_fact=facts)).request_fact == facts[:2]


def test_facts_may_stand_in_one_text_with_commas_between() -> None:
    read = JoinSettings.read(given(request_annotation=("rack=7, owner=web", "row=2"), request_fact=("asset-tag,",)))
    assert read.request_annotation == ("rack=7", "owner=web", "row=2")
    assert read.request_fact == ("asset-tag",)


def test_no_token_is_shown() -> None:
    settings = JoinSettings.read(given(token=T1, discovery_token=T1, tls_bootstrap_token=T1))
    assert "1111111111111111" not in repr(settings)
    assert settings.token is not None


def test_the_name_of_the_machine_is_the_default_of_the_name() -> None:
    settings = JoinSettings.read({"address": (HOST,), "token": T1, "discovery_token_ca_cert_hash": (PIN,)})
    assert settings.plan("host").node_name == "host"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"discovery_timeout": timedelta(0)}, "--discovery-timeout must be longer than 0"),
        ({"tls_bootstrap_timeout": -timedelta(1)}, "--tls-bootstrap-timeout must be longer than 0"),
        ({"certificate_lifetime": timedelta(seconds=599)}, "--certificate-lifetime must be between 10m0s and "),
        ({"certificate_lifetime": LONGEST_LIFETIME + timedelta(seconds=1)}, "--certificate-lifetime must be between"),
    ],
    ids=str,
)
def test_a_duration_may_not_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        JoinSettings.read(fields)
    assert JoinSettings.read({"certificate_lifetime": LONGEST_LIFETIME}).certificate_lifetime == LONGEST_LIFETIME


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("192.0.2.1:6443", "192.0.2.1:6443"),
        ("api.test:443", "api.test:443"),
        ("[2001:db8::1]:6443", "[2001:db8::1]:6443"),
        ("https://api.test:6443/", "api.test:6443"),
        ("https://api.test/", "api.test:443"),
        ("127.0.0.1", "127.0.0.1:6443"),
        ("api.test", "api.test:6443"),
        ("::1", "[::1]:6443"),
        ("[::1]", "[::1]:6443"),
        ("2001:db8::1:6443", "[2001:db8::1:6443]:6443"),
        ("[fe80::1%eth0]:6443", "[fe80::1%eth0]:6443"),
        ("https://[fe80::1%25eth0]:6443", "[fe80::1%eth0]:6443"),
        ("api.internal.example.:6443", "api.internal.example.:6443"),
        ("API.internal.example.", "api.internal.example.:6443"),
        ("server.averylongcompany.test", "server.averylongcompany.test:6443"),
        ("k10.test:6443", "k10.test:6443"),
    ],
)
def test_an_address_is_read_from(text: str, wanted: str) -> None:
    assert parse_endpoint(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".:6443",
        "api..:6443",
        ":6443",
        "[::1",
        "[::1]:",
        "https://",
        "api.test:",
        "api.test:0",
        "api.test:65536",
        "api.test:6443\n",
        "http://api.test:6443",
        "api.test:6443/path",
        "user@api.test:6443",
        "api.test:6443#x",
        "a b:1",
        "2001:db8::1:x",
        "http://server.averylongcompany1.test:6443",
    ],
)
def test_no_address_is_read_from(text: str) -> None:
    with pytest.raises(ConfigError, match="must be host or host:port"):
        parse_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        T1,
        f"https://{T1}",
        K10_T1,
        f"K10{CA_HASH}::server:1111",
        "K10::a:b",
        f'"{K10_T1}"',
        f"K1O{CA_HASH}::{T1}",
        f"{CA_HASH}::server:1111",
        f"token={T1}",
        f"{T1}:6443",
        f"https://{T1}:6443",
        T1.upper(),
        f"https://{T1.upper()}:6443",
        f"x.{T1}:6443",
        f"x-{T1}:6443",
        f"{T1}.",
        f"x.{T1}:99999",
        f"https://api.test/{T1}",
        f"http://{T1}",
        f"https://{K10_T1}:6443",
    ],
)
def test_a_token_in_place_of_the_address_is_neither_asked_for_by_name_nor_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text)
    assert str(caught.value) == (
        "a bootstrap token stands where the address of the API server is expected: give it with --token"
    )


@pytest.mark.parametrize(
    ("pins", "ca_hash", "accepted"),
    [
        pytest.param(pins_of(CA), "", True, id="a pin"),
        pytest.param((), DIGEST, True, id="a hash"),
        pytest.param(pins_of(CA), DIGEST, True, id="both"),
        pytest.param(pins_of(OTHER_CA), DIGEST, False, id="another pin"),
        pytest.param(pins_of(CA), "ab" * 32, False, id="another hash"),
    ],
)
def test_a_ca_must_be_the_one_of_every_pin_and_hash(pins: tuple[Pin, ...], ca_hash: str, accepted: bool) -> None:
    discovery = ByAddress((HOST,), parse_token(T1), pins, ca_hash)
    assert discovery.is_pinned
    with nullcontext() if accepted else pytest.raises((PinMismatchError, CaHashError)):
        discovery.check_ca(CA)
    with nullcontext() if accepted else pytest.raises((PinMismatchError, CaHashMismatchError)):
        assert CLUSTER.drive(discovery.discover(Polling(attempts=1))).via == "token+pins"


def test_pins_alone_discover_what_a_server_with_the_pinned_ca_publishes() -> None:
    server = Server({**clusterinfo.config_map("https://cluster.test:6443", CA, cluster_id="one")})
    net = Network({HOST: server})
    found = net.drive(ByAddress((HOST,), None, pins_of(CA)).discover(Polling(attempts=1)))
    assert (found.via, found.server, found.cluster_id) == ("pins", "https://cluster.test:6443", "one")
    assert [request.authorization for request in server.requests] == [None, None]
    with pytest.raises(PinMismatchError):
        net.drive(ByAddress((HOST,), None, pins_of(OTHER_CA)).discover(Polling(attempts=1)))
    # Whoever names the pinned CA, and does not have it.
    stranger = Network({HOST: Server(clusterinfo.config_map("https://evil.test:6443", CA), serving_ca=OTHER_CA)})
    with pytest.raises(CertificateError):
        stranger.drive(ByAddress((HOST,), None, pins_of(CA)).discover(Polling(attempts=1)))


def test_a_machine_that_asks_believes_nothing_of_what_it_discovers_without_a_pin() -> None:
    net = Network({HOST: Server(clusterinfo.config_map("https://cluster.test:6443", CA))})
    found = net.drive(ByAddress((HOST,), None, ()).discover(Polling(attempts=1)))
    assert (found.via, found.server) == (UNPROVED, "https://cluster.test:6443")
    stranger = Network({HOST: Server(clusterinfo.config_map("https://evil.test:6443", CA), serving_ca=OTHER_CA)})
    with pytest.raises(CertificateError):
        stranger.drive(ByAddress((HOST,), None, ()).discover(Polling(attempts=1)))


def test_the_users_of_an_identity_token() -> None:
    file, command = IdentityToken("/t").user(), IdentityToken(command="print it").user()
    assert (str(IdentityToken("/t")), file.token_file) == ("the identity token in /t", "/t")
    assert str(IdentityToken(command="print it")) == "the identity token of --identity-token-command"
    assert command.exec == ExecPlugin("/bin/sh", args=("-c", "print it"), interactive_mode="Never", prints_token=True)


def test_a_join_without_pins_and_hash_is_not_pinned() -> None:
    discovery = ByAddress((HOST,), parse_token(T1), ())
    assert not discovery.is_pinned
    assert CLUSTER.drive(discovery.discover(Polling(attempts=1))).via == SIGNATURE_ALONE


@pytest.mark.parametrize(
    ("given", "found"),
    [
        pytest.param([], (), id="none"),
        pytest.param(["192.0.2.7"], ("192.0.2.7",), id="one"),
        pytest.param(["2001:DB8:0::7", "192.0.2.7"], ("2001:db8::7", "192.0.2.7"), id="one of each family, as given"),
        pytest.param(["::ffff:192.0.2.7", "192.0.2.7"], ("192.0.2.7",), id="one address in two forms"),
    ],
)
def test_a_node_has_an_address_or_one_of_each_family(given: list[str], found: tuple[str, ...]) -> None:
    """docs/protocol/kubelet-certificates.md#addresses"""
    assert JoinSettings.read({"node_ip": given}).node_ip == found


PAIR = "must contain either a single IP or a dual-stack pair of IPs"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["192.0.2.7", "192.0.2.8"], PAIR),
        (["2001:db8::7", "2001:db8::8"], PAIR),
        (["192.0.2.7", "2001:db8::7", "192.0.2.8"], PAIR),
        (["worker"], '"worker" is not an IP address'),
        (["192.0.2.0/24"], '"192.0.2.0/24" is not an IP address'),
        (["0.0.0.0"], "all zeros"),
        (["192.0.2.7", "::"], "all zeros"),
        (["127.0.0.1"], "loopback"),
        (["::1"], "loopback"),
        (["224.0.0.1"], "multicast"),
        (["fe80::1%eth0"], "link-local"),
        (["169.254.1.1"], "link-local"),
    ],
)
def test_what_is_no_address_of_a_node_is_refused(given: list[str], reason: str) -> None:
    """docs/protocol/kubelet-certificates.md#addresses"""
    with pytest.raises(ConfigError, match=f"^--node-ip: .*{reason}"):
        JoinSettings.read({"node_ip": given})
