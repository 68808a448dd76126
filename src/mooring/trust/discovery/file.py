"""Discovery by a file, which may be read over HTTPS."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urldefrag, urljoin, urlsplit

from mooring.trust.answertext import answer_text
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import (
    CredentialsRefusedError,
    DiscoveryError,
    ForbiddenAnswerError,
    RefusedAnswerError,
    UnusableClusterInfoError,
)
from mooring.trust.discovery.fetch import (
    MAX_BODY,
    DiscoveryExchange,
    Notice,
    Polling,
    Rounds,
    cluster_info_request,
    connection_error,
    prove_server,
    read_cluster_info,
    trust_of,
)
from mooring.trust.discovery.trustedcluster import (
    TrustedCluster,
    check_ca,
    check_same_cluster,
    check_server,
    learned_beside,
    trusted_cluster,
)
from mooring.trust.httpexchange import ACCEPT_JSON, SYSTEM_ROOTS, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.kubeconfig import (
    Cluster,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    Read,
    discovery_cluster,
    flatten_cluster,
    flatten_user,
    refuse_contradictions,
    refuse_relative_commands,
    resolve_paths,
    validate_kubeconfig,
)
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Discovery by file: trust a kubeconfig that the user brings, and complete it by what the cluster publishes.
#
# Steps (docs/protocol/discovery-and-join.md; the numbers in error messages are the same):
#  1. read the document, refuse credentials in it unless they were allowed, choose the cluster;
#  2. fetch cluster-info with the document's trust. 403 is success, because TLS proved the server. Where the two differ, the
#     document wins.


def discover_by_file(
    text: str | bytes,
    *,
    allow_credentials: bool = False,
    polling: Polling = Polling(),
    read: Read | None = None,
    directory: str = "",
    via: str = "file",
) -> DiscoveryExchange[TrustedCluster]:
    """Discover a cluster by a document that the caller has read. `read` opens the files that it names.

    `directory` is that of the document, from which relative paths in it count; "" for a document that is not in a file.
    Raises DiscoveryError.
    """
    step = "reading the discovery document (step 1)"
    try:
        config = parse_kubeconfig(text)
        if directory:
            config = resolve_paths(config, directory)
        else:
            refuse_relative_commands(config)
        cluster, user = _read_document(step, config, allow_credentials, read or _refuse_files)
    except KubeconfigError as error:
        raise UnusableClusterInfoError(step, str(error), "correct the discovery document, or give another") from None
    found = trusted_cluster(step, config, cluster, via, user)
    found = replace(found, published=())
    rounds = Rounds(polling)

    def attempt(turn: int) -> DiscoveryExchange[TrustedCluster]:
        one = found.clusters[turn]
        yield Notice(f"Asking {one.server} for cluster-info with the trust of the discovery document")
        step = f"fetching cluster-info from {one.server} (step 2)"
        reply = yield from rounds.send(cluster_info_request(one.server, trust_of(one), user))
        try:
            published = read_cluster_info(step, reply, user).get(clusterinfo.KUBECONFIG_KEY)
            return (yield from _complete(found.led_by(turn), published))
        except ForbiddenAnswerError:
            yield Notice("The server keeps cluster-info to itself; TLS proved it, so the discovery document stands")
            return found.led_by(turn)

    return (yield from rounds.first_that_passes(range(len(found.clusters)), attempt, drops_final=False))


def document_cluster(text: str | bytes, read: Read | None = None, directory: str = "") -> TrustedCluster:
    """Return the cluster for which a document vouches, whose credentials are not read. Raises ConfigError, DiscoveryError.

    `read` and `directory` are those of `discover_by_file`.
    """
    step = "reading the discovery document"
    config = parse_kubeconfig(text)
    validate_kubeconfig(config)
    if directory:
        config = resolve_paths(config, directory)
    cluster = flatten_cluster(discovery_cluster(config), read or _refuse_files)
    check_server(step, cluster)
    check_ca(step, cluster.ca_pem)
    return trusted_cluster(step, config, cluster, "file")


def _refuse_files(path: str) -> bytes:
    raise OSError(0, "files named by this document are not read")


def _read_document(
    step: str, config: Kubeconfig, allow_credentials: bool, read: Read
) -> tuple[Cluster, KubeconfigUser | None]:
    if not config.clusters:
        raise KubeconfigError("the kubeconfig has no cluster")
    cluster = discovery_cluster(config)
    validate_kubeconfig(config)
    check_server(step, cluster)
    carrying = [user.name for user in config.users if user.credentials]
    if carrying and not allow_credentials:
        raise CredentialsRefusedError(step, ", ".join(f'"{name}"' for name in carrying))
    context = config.context(config.current_context)
    user = config.user(context.user) if context else None
    refuse_contradictions(cluster, user)
    if user is not None:
        user = flatten_user(user, read) if user.credentials else None
    cluster = flatten_cluster(cluster, read)
    check_ca(step, cluster.ca_pem)
    return cluster, user


def _complete(found: TrustedCluster, published: str | None) -> DiscoveryExchange[TrustedCluster]:
    """Complete what the document says by what the cluster publishes; differences become warnings."""
    if published is None:
        return replace(found, warnings=('the cluster-info ConfigMap has no key "kubeconfig"',))
    try:
        config = parse_kubeconfig(published)
        cluster = discovery_cluster(config)
        check_ca("reading cluster-info", cluster.ca_pem)
        now = trusted_cluster("reading cluster-info", config, cluster, "")
    except (KubeconfigError, UnusableClusterInfoError) as error:
        return replace(found, warnings=(f"the kubeconfig of cluster-info cannot be used: {error}",))
    check_same_cluster(found.server, found.cluster_id, now.cluster_id)
    found = replace(found, cluster_id=found.cluster_id or now.cluster_id)
    if cluster.server != found.server:
        warning = f'the server in the discovery document ("{found.server}") is not the one in cluster-info ("{cluster.server}")'
        found = replace(found, warnings=(warning,))
    known = {one.server for one in found.clusters}
    learned = (learned_beside(found.cluster, one) for one in now.clusters if one.server not in known)
    more = (replace(one, ca_pem=found.ca_pem) for one in learned)
    found = replace(found, others=(*found.others, *more), published=now.published)
    if now.client_ca_pem and not found.client_ca_named:
        found = replace(found, client_ca_pem=now.client_ca_pem, client_ca_named=now.client_ca_named)
    if found.ca_pem or not cluster.ca_pem:
        return found
    proved = replace(found.cluster, ca_pem=cluster.ca_pem)
    try:
        yield from prove_server(proved)
    except DiscoveryError as error:
        warning = f"the CA in cluster-info does not verify {found.server}, the machine's own roots do: {error}"
        return replace(found, warnings=(*found.warnings, warning))
    others = tuple(replace(one, ca_pem=cluster.ca_pem) for one in found.others)
    return replace(found, cluster=proved, others=others)


# Discovery by URL: fetch a discovery document over https, verified by the system's roots, then proceed as with a file.
#
# A redirect is followed to https alone: that server is verified in the same way. User and password in the URL are not sent on.

MAX_REDIRECTS = 5
"""Redirects of one document. Go's client, and so kubeadm, follows ten."""
_REDIRECTS = (301, 302, 303, 307, 308)


def discover_by_url(
    url: str, *, allow_credentials: bool = False, polling: Polling = Polling()
) -> DiscoveryExchange[TrustedCluster]:
    """Discover a cluster by the document at an https URL, which is fetched once. Raises DiscoveryError."""
    text = yield from fetch_document(url, polling)
    return (yield from discover_by_file(text, allow_credentials=allow_credentials, polling=polling, via="url"))


def fetch_document(url: str, polling: Polling) -> DiscoveryExchange[bytes]:
    """Return the document at an https URL. Raises DiscoveryError, which does not repeat a credential in the URL."""
    printable = _without_secrets(url)
    rounds = Rounds(polling)
    yield Notice(f"Fetching the discovery document {printable}")
    left = MAX_REDIRECTS
    while True:
        step = f"fetching the discovery document {printable} (step 1)"
        reply = yield from rounds.send(HttpRequest(SYSTEM_ROOTS, url=url, headers=ACCEPT_JSON, max_bytes=MAX_BODY))
        if isinstance(reply, HttpFailure):
            raise connection_error(step, reply)
        if reply.status not in _REDIRECTS:
            break
        url = _redirected(step, url, reply, left)
        left -= 1
        printable = _without_secrets(url)
        yield Notice(f"Redirected to {printable}")
    if reply.status != 200:
        # A page of errors may repeat parts of the URL.
        has_secret = printable != url
        raise RefusedAnswerError(step, reply.status, "" if has_secret else answer_text(reply.body))
    return reply.body


def _redirected(step: str, url: str, reply: HttpResponse, left: int) -> str:
    """Return the URL to which a response redirects. Raises RefusedAnswerError when it is not followed."""
    location = reply.headers.get("location", "")
    try:
        target = urldefrag(urljoin(_without_secrets(url), location)).url
    except ValueError:
        target = location
    problem = https_url_problem(target, query=True) if location else "it names no URL (no Location header)"
    if not left:
        problem = f"it is one of more than {MAX_REDIRECTS}"
    if problem:
        raise RefusedAnswerError(
            step, reply.status, f"a redirect that is not followed: {problem}; give the URL of the document itself"
        )
    return target


def _without_secrets(url: str) -> str:
    """Return the URL without user name, password and query: the query of a signed URL is a credential."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
