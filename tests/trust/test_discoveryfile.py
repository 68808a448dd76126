"""Discovery by file and by https URL.

Source: docs/protocol/discovery-and-join.md#discovery-by-file-or-url; docs/differences.md#super-simple-discovery-api.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.secret import Secret
from mooring.trust.discovery import clusterinfo, errors
from mooring.trust.discovery.fetch import MAX_BODY, Polling, cluster_info_request, led_by_proved, trust_of
from mooring.trust.discovery.file import discover_by_file, discover_by_url, document_cluster
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpexchange import (
    ACCEPT_JSON,
    CERTIFICATE,
    CERTIFICATE_TIME,
    PROXY,
    SYSTEM_ROOTS,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
)
from mooring.trust.kubeconfig import (
    Cluster,
    ExecPlugin,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    cluster_info_kubeconfig,
    user_kubeconfig,
)
from mooring.trust.kubeconfigtext import format_kubeconfig, kubeconfig_object, parse_kubeconfig
from tests.support.discoverypeer import CA, OTHER_CA, Network, Server, signed_cluster_info, status

HOST = "cluster.test:6443"
SERVER = f"https://{HOST}"
PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
ONCE = Polling(attempts=1)
PUBLISHED = Cluster("", SERVER, CA)

PLAIN = format_kubeconfig(cluster_info_kubeconfig(SERVER, CA))
WITHOUT_CA = format_kubeconfig(cluster_info_kubeconfig(SERVER, b""))
WITH_TOKEN = format_kubeconfig(user_kubeconfig(SERVER, CA, KubeconfigUser("joiner", token=Secret("hush"))))


def network(config_map: Obj | None = None, reply: HttpResponse | HttpFailure | None = None) -> Network:
    return Network({HOST: Server(config_map or signed_cluster_info(), override=lambda count, request: reply)})


def discover(net: Network, text: str | bytes, **options: Any) -> TrustedCluster:
    return net.drive(discover_by_file(text, **({"polling": ONCE} | options)))


def test_a_plain_document_is_checked_once_with_its_own_ca_and_without_credentials() -> None:
    net = network()
    assert discover(net, PLAIN) == TrustedCluster(PUBLISHED, None, (), "file", client_ca_pem=CA, published=(PUBLISHED,))
    assert net.servers[HOST].requests == [cluster_info_request(SERVER, Trust(CA))]


def test_a_document_may_be_json_or_bytes_with_a_byte_order_mark() -> None:
    text = json.dumps(kubeconfig_object(parse_kubeconfig(PLAIN)))
    assert discover(network(), b"\xef\xbb\xbf" + text.encode()) == discover(network(), PLAIN)


def test_a_refused_cluster_info_is_success_since_tls_proved_the_server() -> None:
    net = network(reply=status(403))
    assert discover(net, PLAIN).ca_pem == CA
    assert "TLS proved it" in net.notices[-1]


def test_a_document_without_ca_trusts_the_machines_roots_and_then_adopts_the_published_ca() -> None:
    net = network()
    assert discover(net, WITHOUT_CA).ca_pem == CA
    assert net.servers[HOST].requests == [
        cluster_info_request(SERVER, SYSTEM_ROOTS),
        cluster_info_request(SERVER, Trust(CA)),
    ]


def test_a_published_ca_that_does_not_verify_the_server_is_left_to_client_certificates() -> None:
    net = Network({HOST: Server(signed_cluster_info(ca=CA), serving_ca=OTHER_CA)})
    found = discover(net, WITHOUT_CA)
    assert (found.ca_pem, found.client_ca_pem, found.client_ca_named) == (b"", CA, False)
    assert found.warnings[0].startswith(
        f"the CA in cluster-info does not verify {SERVER}, the machine's own roots do: "
    )


def test_the_published_ca_of_clients_is_taken_beside_the_documents_own_ca() -> None:
    published = clusterinfo.config_map(SERVER, CA, client_ca_pem=OTHER_CA)
    found = discover(network(published), PLAIN)
    assert (found.ca_pem, found.client_ca_pem, found.client_ca_named) == (CA, OTHER_CA, True)


def test_the_documents_own_ca_of_clients_wins() -> None:
    document = cluster_info_kubeconfig(SERVER, CA, client_ca_pem=OTHER_CA)
    assert discover(network(), format_kubeconfig(document)).client_ca_pem == OTHER_CA


def test_addresses_of_a_document_are_tried_in_turn_and_completed_by_the_published_ones() -> None:
    document = cluster_info_kubeconfig("https://away.test:6443", CA, others=[SERVER])
    published = clusterinfo.config_map("https://away.test:6443", CA, others=[SERVER, "https://new.test:6443"])
    net = network(published)
    found = discover(net, format_kubeconfig(document))
    assert [one.server for one in found.clusters] == [SERVER, "https://away.test:6443", "https://new.test:6443"]
    assert "nothing answers there" in net.kept_notices[0]


def test_other_clusters_of_a_users_kubeconfig_are_other_clusters() -> None:
    config = user_kubeconfig(SERVER, CA, KubeconfigUser("joiner"))
    config = replace(config, clusters=(*config.clusters, Cluster("production", "https://production.test", CA)))
    assert [one.server for one in discover(network(), format_kubeconfig(config)).clusters] == [SERVER]


def test_a_refusal_leaves_a_document_without_ca_to_the_machines_roots() -> None:
    assert discover(network(reply=status(403)), WITHOUT_CA).ca_pem == b""


def test_the_documents_own_ca_and_server_win_and_another_server_is_told() -> None:
    found = discover(network(signed_cluster_info(server="https://moved.test:6443", ca=OTHER_CA)), PLAIN)
    assert (found.server, found.ca_pem) == (SERVER, CA)
    assert found.warnings == (
        f'the server in the discovery document ("{SERVER}") is not the one in cluster-info ("https://moved.test:6443")',
    )


def document_with(cluster_id: str) -> str:
    text: str = clusterinfo.config_map("https://cluster.test:6443", CA, cluster_id=cluster_id)["data"]["kubeconfig"]
    return text


@pytest.mark.parametrize(
    ("named", "published", "found"), [("one", "one", "one"), ("", "one", "one"), ("one", "", "one")]
)
def test_the_id_of_the_cluster_is_that_of_the_document_or_the_published_one(
    named: str, published: str, found: str
) -> None:
    config_map = clusterinfo.config_map("https://cluster.test:6443", CA, cluster_id=published)
    assert discover(network(config_map), document_with(named)).cluster_id == found


def test_a_server_of_another_cluster_than_the_document_names_is_not_trusted() -> None:
    config_map = clusterinfo.config_map("https://cluster.test:6443", CA, cluster_id="two")
    with pytest.raises(errors.AnotherClusterError, match="its id is two, and the known one is one"):
        discover(network(config_map), document_with("one"))


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        pytest.param({}, 'the cluster-info ConfigMap has no key "kubeconfig"', id="no kubeconfig"),
        pytest.param({"kubeconfig": "["}, "the kubeconfig of cluster-info cannot be used: ", id="no YAML"),
        pytest.param({"kubeconfig": "{}"}, "the kubeconfig of cluster-info cannot be used: ", id="no cluster"),
        pytest.param(
            {"kubeconfig": format_kubeconfig(cluster_info_kubeconfig(SERVER, b"junk"))},
            "the kubeconfig of cluster-info cannot be used: reading cluster-info: its CA cannot be read",
            id="a CA that is no certificate",
        ),
    ],
)
def test_a_broken_cluster_info_is_tolerated_and_told(data: dict[str, str], warning: str) -> None:
    found = discover(network(signed_cluster_info() | {"data": data}), PLAIN)
    assert found.server == SERVER
    assert found.warnings[0].startswith(warning)


def test_credentials_are_refused_by_default() -> None:
    net = network()
    with pytest.raises(errors.CredentialsRefusedError) as caught:
        discover(net, WITH_TOKEN)
    assert str(caught.value) == (
        'reading the discovery document (step 1): the discovery document carries client credentials (user "joiner"); '
        "remove them from it, or accept them with --allow-discovery-credentials"
    )
    assert net.servers[HOST].requests == []


def test_credentials_of_any_user_are_refused_not_only_of_the_current_one() -> None:
    config = replace(
        parse_kubeconfig(PLAIN),
        users=(KubeconfigUser("a", username="x"), KubeconfigUser("b", key_file="/k"), KubeconfigUser("c")),
    )
    with pytest.raises(errors.CredentialsRefusedError, match=r'\(user "a", "b"\)'):
        discover(network(), format_kubeconfig(config))


def test_allowed_credentials_are_used_and_returned() -> None:
    net = network()
    found = discover(net, WITH_TOKEN, allow_credentials=True)
    assert found.client_credentials == KubeconfigUser("joiner", token=Secret("hush"))
    assert net.servers[HOST].requests[0].credentials == found.client_credentials
    assert "hush" not in repr(found)


def test_a_user_without_credentials_is_no_credential() -> None:
    text = format_kubeconfig(user_kubeconfig(SERVER, CA, KubeconfigUser("nobody")))
    assert discover(network(), text).client_credentials is None
    assert discover(network(), text, allow_credentials=True).client_credentials is None


def test_files_the_document_names_are_inlined_with_the_given_reader() -> None:
    user = KubeconfigUser("joiner", certificate_file="/c", key_file="/k", token_file="/t")
    config = replace(user_kubeconfig(SERVER, b"", user), clusters=(Cluster("kubernetes", SERVER, ca_file="/ca"),))
    files = {"/ca": CA, "/c": b"cert", "/k": b"key", "/t": b" hush\n"}
    found = discover(network(), format_kubeconfig(config), allow_credentials=True, read=files.__getitem__)
    assert found.ca_pem == CA
    assert found.client_credentials == KubeconfigUser(
        "joiner", certificate_pem=b"cert", key=Secret("key"), token=Secret("hush")
    )


def test_the_cluster_of_a_document_is_read_without_its_credentials() -> None:
    user = KubeconfigUser("admin", token_file="token")
    config = replace(user_kubeconfig(SERVER, b"", user), clusters=(Cluster("kubernetes", SERVER, ca_file="ca"),))
    found = document_cluster(format_kubeconfig(config), {"/etc/found/ca": CA}.__getitem__, "/etc/found")
    assert (found.server, found.ca_pem, found.client_credentials) == (SERVER, CA, None)
    assert document_cluster(format_kubeconfig(user_kubeconfig(SERVER, CA, user))).ca_pem == CA
    with pytest.raises(KubeconfigError, match="files named by this document are not read"):
        document_cluster(format_kubeconfig(config))


def test_two_credentials_for_one_header_are_refused_before_anything_is_asked() -> None:
    """client-go refuses the configuration, so kubeadm does; the token of the file was used without a word."""
    user = KubeconfigUser("joiner", token_file="/t", username="jane", password=Secret("hush"))
    net, text = network(), format_kubeconfig(user_kubeconfig(SERVER, CA, user))
    with pytest.raises(
        errors.UnusableClusterInfoError, match='"joiner" has both a tokenFile and a username or password'
    ):
        discover(net, text, allow_credentials=True, read={"/t": b"token"}.__getitem__)
    assert net.servers[HOST].requests == []


PLUGIN = ExecPlugin("bin/get-token", "client.authentication.k8s.io/v1", interactive_mode="Never")


def test_relative_paths_count_from_the_document() -> None:
    user = KubeconfigUser("joiner", certificate_file="c", key_file="../k", exec=PLUGIN)
    config = replace(user_kubeconfig(SERVER, b"", user), clusters=(Cluster("kubernetes", SERVER, ca_file="ca"),))
    files = {"/etc/d/ca": CA, "/etc/d/c": b"cert", "/etc/k": b"key"}
    text = format_kubeconfig(config)
    found = discover(network(), text, allow_credentials=True, read=files.__getitem__, directory="/etc/d")
    assert found.ca_pem == CA
    assert found.client_credentials is not None
    assert found.client_credentials.key == Secret("key")
    assert found.client_credentials.exec == replace(PLUGIN, command="/etc/d/bin/get-token")


def test_a_relative_command_of_a_document_from_elsewhere_is_refused_before_anything_is_asked() -> None:
    net, text = network(), format_kubeconfig(user_kubeconfig(SERVER, CA, KubeconfigUser("joiner", exec=PLUGIN)))
    with pytest.raises(errors.UnusableClusterInfoError, match='the exec command "bin/get-token", which is relative'):
        discover(net, text, allow_credentials=True)
    assert net.servers[HOST].requests == []


def test_the_tls_server_name_and_the_proxy_go_with_the_request_and_the_result() -> None:
    cluster = Cluster("", SERVER, CA, tls_server_name="inner.test", proxy_url="http://proxy.test")
    net = network()
    found = discover(net, format_kubeconfig(Kubeconfig((cluster,))))
    assert found.cluster == cluster
    request = net.servers[HOST].requests[0]
    assert request.target == Trust(CA, tls_server_name="inner.test", proxy_url="http://proxy.test")


def test_addresses_that_are_learned_are_reached_through_the_proxy_of_the_document() -> None:
    cluster = Cluster(
        "", SERVER, CA, tls_server_name="inner.test", proxy_url="http://proxy.test", disable_compression=True
    )
    published = clusterinfo.config_map(SERVER, CA, others=["https://further.test:6443"])
    found = discover(network(published), format_kubeconfig(Kubeconfig((cluster,))))
    further = Cluster("further.test:6443", "https://further.test:6443", CA, proxy_url="http://proxy.test")
    assert found.clusters == (cluster, further)


def test_the_first_address_that_responds_by_the_way_to_it_is_the_one_for_a_file() -> None:
    dead = Cluster("dead.test:6443", "https://dead.test:6443", CA)
    named = Cluster("", SERVER, CA, tls_server_name="inner.test", proxy_url="http://proxy.test")
    found, net = TrustedCluster(dead, None, (), "token", others=(named,)), network()
    assert net.drive(led_by_proved(found)).clusters == (named, dead)
    assert [one.target for one in net.servers[HOST].requests] == [trust_of(named)]
    assert net.kept_notices[0].startswith("warning: asking https://dead.test:6443 with")
    assert net.kept_notices[0].endswith(f"; {SERVER} is tried instead")


def test_without_an_address_that_responds_there_is_none_for_a_file() -> None:
    found = TrustedCluster(Cluster("", "https://dead.test:6443", CA), None, (), "token")
    with pytest.raises(errors.EndpointDownError):
        network().drive(led_by_proved(found))


USABLE = "; correct the discovery document, or give another"
REPAIR = "; ask the cluster's administrator to repair it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[", "the kubeconfig is neither YAML nor JSON: it cannot be read at line 2", id="no YAML"),
        pytest.param(b"\xff", "the kubeconfig is neither YAML nor JSON" + USABLE, id="bytes that are no text"),
        pytest.param("", "the kubeconfig has no cluster" + USABLE, id="nothing"),
        pytest.param("kind: Pod", "this is not a kubeconfig", id="another kind"),
        pytest.param("clusters: [{name: a}]", "the kubeconfig has neither a cluster without a name", id="no choice"),
        pytest.param(
            "clusters: [{name: ''}]", "invalid configuration: the cluster without a name has no server", id="no server"
        ),
        pytest.param(
            format_kubeconfig(cluster_info_kubeconfig("http://cluster.test", CA)),
            "its server is not an https URL" + REPAIR,
            id="a server without TLS",
        ),
        pytest.param(
            format_kubeconfig(Kubeconfig((Cluster("", SERVER, insecure_skip_tls_verify=True),))),
            "it says insecure-skip-tls-verify" + ", so nothing would prove the server" + REPAIR,
            id="TLS that is not verified",
        ),
        pytest.param(
            format_kubeconfig(cluster_info_kubeconfig(SERVER, b"junk")),
            "its CA cannot be read",
            id="a CA that is no certificate",
        ),
        pytest.param(
            format_kubeconfig(Kubeconfig((Cluster("", SERVER, ca_file="/ca"),))),
            'certificate-authority "/ca" cannot be read: files named by this document are not read',
            id="a file nobody may read",
        ),
    ],
)
def test_a_document_is_refused_before_anything_is_asked(text: str | bytes, message: str) -> None:
    net = network()
    with pytest.raises(errors.UnusableClusterInfoError) as caught:
        discover(net, text)
    assert str(caught.value).startswith("reading the discovery document (step 1): " + message)
    assert net.servers[HOST].requests == []


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HttpFailure(UNREACHABLE, "refused"), errors.EndpointDownError),
        (HttpFailure(CERTIFICATE, "unknown CA"), errors.CertificateError),
        (HttpFailure(CERTIFICATE_TIME, "too early"), errors.ClockSkewError),
        (HttpFailure(PROXY, "the proxy answered 403"), errors.ProxyRefusalError),
        (status(401), errors.UnauthorizedAnswerError),
        (status(404), errors.ClusterInfoMissingError),
        (status(500), errors.RefusedAnswerError),
        (HttpResponse(200, b"<html>"), errors.NotKubernetesError),
    ],
    ids=[
        "endpoint down",
        "another CA",
        "clock skew",
        "a proxy that refuses",
        "401",
        "404",
        "500",
        "not a Kubernetes server",
    ],
)
def test_another_answer_is_polled_on_and_then_raised(
    reply: HttpResponse | HttpFailure, error: type[errors.DiscoveryError]
) -> None:
    net = network(reply=reply)
    with pytest.raises(error, match=r"^fetching cluster-info from https://cluster.test:6443 \(step 2\): ") as caught:
        discover(net, PLAIN, polling=Polling(attempts=3))
    assert net.waited == [5.0, 5.0]
    assert net.notices.count(str(caught.value)) == 2
    assert net.kept_notices == [str(caught.value)]


def said(code: int, body: bytes) -> HttpResponse:
    return HttpResponse(code, body)


def refused(message: str) -> bytes:
    return json.dumps({"kind": "Status", "message": message}).encode()


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        pytest.param(said(429, refused("too many requests")), "answered 429: too many requests", id="429"),
        pytest.param(said(500, refused("etcd is away")), "answered 500: etcd is away", id="500"),
        pytest.param(said(503, refused("shutting down")), "answered 503: shutting down", id="503"),
        pytest.param(
            said(503, b"runtime core not ready\n"), "Kubernetes Status: runtime core not ready", id="plain text"
        ),
        pytest.param(
            said(502, b"<html><title>502 Bad Gateway</title><body>"), "Kubernetes Status: 502 Bad Gateway)", id="a page"
        ),
        pytest.param(said(418, b"no"), "status 418 without a Kubernetes Status: no)", id="another status"),
        pytest.param(said(401, refused("no such user")), "401 Unauthorized (no such user): it", id="401"),
        pytest.param(said(404, refused("not here")), "404 Not Found (not here): it", id="404"),
        pytest.param(said(500, refused("a\nb\x1b[0m" + "c" * 2000)), "answered 500: a b [0mccc", id="a long text"),
        pytest.param(said(500, refused("your token is hush")), "see the server's log", id="the token that was sent"),
        pytest.param(said(503, b"bearer hush"), "without a Kubernetes Status); a load", id="the token in plain text"),
    ],
)
def test_the_text_of_a_refusal_is_kept(reply: HttpResponse, text: str) -> None:
    with pytest.raises(errors.DiscoveryError) as caught:
        discover(network(reply=reply), WITH_TOKEN, allow_credentials=True)
    assert text in str(caught.value)
    assert "hush" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_the_text_of_a_refusal_is_left_out_where_a_plugin_gave_the_credential() -> None:
    user = KubeconfigUser("joiner", exec=replace(PLUGIN, command="/bin/get-token"))
    text = format_kubeconfig(user_kubeconfig(SERVER, CA, user))
    with pytest.raises(errors.RefusedAnswerError, match="see the server's log"):
        discover(network(reply=said(500, refused("hush"))), text, allow_credentials=True)


def test_the_text_of_a_refused_document_is_kept_unless_its_url_has_a_secret() -> None:
    net = with_page(HttpResponse(500, b"no such bucket"))
    with pytest.raises(errors.RefusedAnswerError, match=r"answered 500: no such bucket$"):
        net.drive(discover_by_url(URL, polling=ONCE))
    with pytest.raises(errors.RefusedAnswerError, match="answered with status 500; see"):
        net.drive(discover_by_url(f"{URL}?signature=hush", polling=ONCE))


def test_a_server_that_starts_late_is_waited_for() -> None:
    net = Network({})

    def start(count: int) -> None:
        net.servers[HOST] = Server(signed_cluster_info())

    net.on_wait = start
    assert discover(net, PLAIN, polling=Polling()).server == SERVER


URL = "https://www.test/cluster.yaml"


def with_page(reply: HttpResponse | HttpFailure) -> Network:
    net = network()
    net.servers["www.test"] = Server(None, override=lambda count, request: reply)
    return net


def test_a_url_is_fetched_with_the_machines_roots_and_read_like_a_file() -> None:
    net = with_page(HttpResponse(200, PLAIN.encode()))
    found = net.drive(discover_by_url(URL, polling=ONCE))
    assert found == TrustedCluster(PUBLISHED, None, (), "url", client_ca_pem=CA, published=(PUBLISHED,))
    assert net.servers["www.test"].requests == [
        HttpRequest(SYSTEM_ROOTS, url=URL, headers=ACCEPT_JSON, max_bytes=MAX_BODY)
    ]


def test_what_a_url_may_carry_in_secret_is_sent_and_not_told() -> None:
    url = "https://jane:hush@www.test/cluster.yaml?signature=hush"
    net = with_page(HttpResponse(404, b"gone"))
    net.servers["jane:hush@www.test"] = net.servers["www.test"]
    with pytest.raises(errors.RefusedAnswerError, match=f"^fetching the discovery document {URL} ") as caught:
        net.drive(discover_by_url(url, polling=ONCE))
    assert net.servers["www.test"].requests == [
        HttpRequest(SYSTEM_ROOTS, url=url, headers=ACCEPT_JSON, max_bytes=MAX_BODY)
    ]
    assert net.notices == [f"Fetching the discovery document {URL}"]
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://mirror.test/new.yaml?signature=hush2#part", "https://mirror.test/new.yaml?signature=hush2"),
        ("HTTPS://mirror.test/new.yaml", "https://mirror.test/new.yaml"),
        ("//mirror.test/new.yaml", "https://mirror.test/new.yaml"),
        ("/new.yaml", "https://www.test/new.yaml"),
        ("new.yaml", "https://www.test/new.yaml"),
    ],
)
def test_a_redirect_to_https_is_followed_without_the_credentials_of_the_url(
    code: int, location: str, target: str
) -> None:
    page, moved = HttpResponse(200, PLAIN.encode()), HttpResponse(code, b"", {"location": location})
    net = network()
    net.servers["jane:hush@www.test"] = Server(None, override=lambda count, request: moved)
    net.servers["www.test"] = net.servers["mirror.test"] = Server(None, override=lambda count, request: page)
    found = net.drive(discover_by_url("https://jane:hush@www.test/cluster.yaml?signature=hush", polling=ONCE))
    assert found.ca_pem == CA
    (request,) = net.servers["mirror.test"].requests
    assert request == HttpRequest(SYSTEM_ROOTS, url=target, headers=ACCEPT_JSON, max_bytes=MAX_BODY)
    assert net.notices[:2] == [f"Fetching the discovery document {URL}", f"Redirected to {target.partition('?')[0]}"]


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("http://mirror.test/new.yaml", "the scheme must be https"),
        ("http://www.test/new.yaml", "the scheme must be https"),
        ("file:///etc/passwd", "the scheme must be https"),
        ("https://jane:hush@mirror.test/new.yaml", "it must not contain a user name or a password"),
        ("https://mirror.test/\x1b[2J", "it is not a URL"),
        ("https://[mirror.test/", "it is not a URL"),
        ("", "it names no URL (no Location header)"),
        (None, "it names no URL (no Location header)"),
    ],
)
def test_a_redirect_is_not_followed_to(location: str | None, problem: str) -> None:
    net = with_page(HttpResponse(302, b"moved", {} if location is None else {"location": location}))
    text = f"the server answered 302: a redirect that is not followed: {re.escape(problem)}; give the URL of the document itself"
    with pytest.raises(errors.RefusedAnswerError, match=f"{text}$"):
        net.drive(discover_by_url(URL, polling=ONCE))
    assert len(net.servers["www.test"].requests) == 1


def test_redirects_end() -> None:
    net = with_page(HttpResponse(302, b"moved", {"location": "/again"}))
    with pytest.raises(errors.RefusedAnswerError, match="it is one of more than 5; give the URL"):
        net.drive(discover_by_url(URL, polling=ONCE))
    assert len(net.servers["www.test"].requests) == 6


def test_credentials_of_a_document_from_a_url_are_refused_by_default() -> None:
    net = with_page(HttpResponse(200, WITH_TOKEN.encode()))
    with pytest.raises(errors.CredentialsRefusedError):
        net.drive(discover_by_url(URL, polling=ONCE))


def test_a_document_from_a_url_may_carry_allowed_credentials() -> None:
    net = with_page(HttpResponse(200, WITH_TOKEN.encode()))
    found = net.drive(discover_by_url(URL, allow_credentials=True, polling=ONCE))
    assert found.client_credentials is not None


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HttpFailure(UNREACHABLE, "refused"), errors.EndpointDownError),
        (HttpResponse(404, b"gone"), errors.RefusedAnswerError),
        (HttpResponse(200, WITH_TOKEN.encode()), errors.CredentialsRefusedError),
        (HttpResponse(200, json.dumps([]).encode()), errors.UnusableClusterInfoError),
    ],
    ids=["unreachable", "404", "credentials in it", "no kubeconfig"],
)
def test_a_url_fails_at_once_with(reply: HttpResponse | HttpFailure, error: type[errors.DiscoveryError]) -> None:
    net = with_page(reply)
    with pytest.raises(error):
        net.drive(discover_by_url(URL))
    assert net.waited == []
