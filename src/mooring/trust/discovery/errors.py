"""Errors of discovery: a table of causes, each with its code and its message to the user.

Rules kept here (docs/protocol/discovery-and-join.md):
* A message names the failed step, the cause and the remedy. It may name a token's id, never its secret.
* An error for an answer keeps what the server says (`mooring.trust.answertext`), as well as the status.
* `final` is True when polling the same server again cannot help. A server may still be starting and a signature may be late, but a
  wrong signature or pin stays wrong.
"""

from __future__ import annotations

from typing import ClassVar

from mooring.errors import PeerError
from mooring.trust.answertext import after_colon

REFUSED = "connection refused"
"""ECONNREFUSED, as the transport words it."""


class DiscoveryError(PeerError):
    """Discovery failed: no cluster was trusted. `values` fill the placeholders of the text."""

    code: ClassVar[str] = "discovery"
    final: ClassVar[bool] = False
    text: ClassVar[str] = "{}"

    def __init__(self, step: str, *values: object) -> None:
        self.values = values
        super().__init__(f"{step}: {self.text.format(*values)}")


def cause(code: str, text: str, *, final: bool = False) -> type[DiscoveryError]:
    """Return the class of one cause, which takes a value for each placeholder of its text."""

    class CauseError(DiscoveryError):
        pass

    CauseError.code, CauseError.text, CauseError.final = code, text, final
    # A traceback names the cause.
    CauseError.__qualname__ = code
    return CauseError


class EndpointDownError(DiscoveryError):
    code = "unreachable"
    text = "nothing answers there ({}); check the address, the port, the firewall, and that the server runs"
    is_refused = False
    """True when the machine answered that no program listens at the port."""

    def __init__(self, step: str, reason: str) -> None:
        self.is_refused = self.code == "unreachable" and reason.startswith(REFUSED)
        super().__init__(step, reason)


class ProxyRefusalError(EndpointDownError):
    """The proxy did not connect the server, of which nothing is known."""

    code = "proxy"
    text = "{}; check the proxy, and the setting that names it: NO_PROXY excepts servers from a variable alone"


class NotKubernetesError(DiscoveryError):
    code = "not-kubernetes"
    text = "the answer is not one of a Kubernetes API server ({}); {}"

    def __init__(self, step: str, reason: str, advice: str = "check the address and the port") -> None:
        super().__init__(step, reason, advice)


class AnswerTooLongError(NotKubernetesError):
    code = "too-long"
    final = True


class BalancerAnswerError(NotKubernetesError):
    """A load balancer or proxy answered in place of the API server, which may answer later."""

    code = "balancer"

    def __init__(self, step: str, status: int, text: str = "") -> None:
        super().__init__(
            step,
            f"status {status} without a Kubernetes Status{after_colon(text)}",
            "a load balancer or proxy answers so while it reaches no API server, or has too many requests; see its log",
        )


class RefusedAnswerError(DiscoveryError):
    code = "refused"
    text = "the server answered {}"

    def __init__(self, step: str, status: int, text: str = "") -> None:
        """`text`: that of the answer, fit to be shown; "" when it has none."""
        super().__init__(
            step, f"{status}: {text}" if text else f"with status {status}; see the server's log, then try again"
        )


class UnusableClusterInfoError(DiscoveryError):
    """The signed kubeconfig or the discovery document cannot be used."""

    code = "unusable"
    text = "{}; {}"
    final = True

    def __init__(self, step: str, reason: str, remedy: str = "ask the cluster's administrator to repair it") -> None:
        super().__init__(step, reason, remedy)
        self.reason = reason


class SignatureMissingError(DiscoveryError):
    code = "signature-missing"
    text = (
        'cluster-info carries no signature for token id "{}"{}; '
        "look on the server: `mooring status` says when cluster-info cannot be signed, `mooring token list` has the tokens; "
        "make one with `mooring token create`"
    )

    def __init__(self, step: str, token_id: str, *, others: bool) -> None:
        """`others`: cluster-info has signatures of other tokens."""
        reason = (
            ": the token is unknown, expired, or lacks the signing usage"
            if others
            else ", nor for any other: the controller that signs does not run (bootstrapsigner of kube-controller-manager), "
            "or the token is unknown, expired, or lacks the signing usage"
        )
        super().__init__(step, token_id, reason)


EndpointTimeoutError = cause(
    "timeout",
    "no answer in time ({}); check the address, the firewall, and the load of the server, and that the port speaks TLS",
)
NotAskedError = cause("not-asked", "no time was left to ask it ({})")
NotTlsError = cause(
    "not-tls", "the server does not speak TLS ({}); give the HTTPS address of the API server, usually port 6443"
)
CertificateError = cause(
    "certificate",
    "the server's certificate does not verify ({}); "
    "another machine may answer in its place, or the address is not among the names of the certificate",
)
ClockSkewError = cause(
    "certificate-time",
    "the server's certificate is not valid at this machine's time ({}); "
    "compare the clocks of this machine and of the server, then renew the certificate if both are right",
)
FetchError = cause("fetch", "the request failed ({}); see the server's log")
"""The request failed for a cause that is not in the table."""
UnauthorizedAnswerError = cause(
    "unauthorized",
    "the server answered 401 Unauthorized{}: it does not accept anonymous requests from here; enable anonymous authentication "
    "there, for the network of this machine too, or join with --allow-discovery-credentials and a --discovery-file "
    "that `mooring kubeconfig discovery` prints on the server{}",
)
ForbiddenAnswerError = cause(
    "forbidden",
    "the server answered 403 Forbidden{}: anonymous access to the cluster-info ConfigMap is disabled; "
    "bind the role kubeadm:bootstrap-signer-clusterinfo to system:anonymous, or join with --discovery-file{}",
)
NotPublicError = cause(
    "not-public",
    "the server answered {}{}: cluster-info is not public there: anonymous requests are off, not accepted from this network "
    "(--anonymous-allow-cidr), or without the role kubeadm:bootstrap-signer-clusterinfo; ask an administrator of the cluster to "
    "let this machine read it, or for another kubeconfig{}",
)
"""401 and 403 in place of `UnauthorizedAnswerError` and `ForbiddenAnswerError`, where nothing joins."""
ClusterInfoMissingError = cause(
    "cluster-info-missing",
    "the server answered 404 Not Found{}: it has no ConfigMap kube-public/cluster-info; "
    "check the address, and that the cluster was initialised for token discovery",
)
NotSetUpError = cause(
    "not-set-up",
    'the cluster-info ConfigMap has no key "kubeconfig": the cluster is not set up for token discovery; '
    "ask its administrator, or join with --discovery-file",
    final=True,
)
SignatureWrongError = cause(
    "signature-wrong",
    'the signature of cluster-info for token id "{}" is wrong: the secret half of the token is not '
    "the server's, or the answer was forged; this server is not trusted: check the token and the address",
    final=True,
)
PinMismatchError = cause(
    "pin-mismatch",
    "no CA of the cluster has a pinned public key (it has {}); this server is not trusted: compare "
    "--discovery-token-ca-cert-hash with the value that `mooring token create --print-join-command` prints on the server; "
    "the hash may be of a CA that was replaced",
    final=True,
)
CaHashMismatchError = cause("ca-hash-mismatch", "{}; this server is not trusted", final=True)
"""The CA is not the one that the hash in a token names."""
AnotherClusterError = cause(
    "another-cluster",
    "another cluster answers there: its id is {}, and the known one is {}; check the address, or leave the known cluster first",
)
ClusterInfoChangedError = cause(
    "changed",
    "cluster-info differs from what was fetched before TLS was verified: the CA was just changed, or "
    "the first answer was altered; this server is not trusted: try again, and if it stays so, tell the administrator",
    final=True,
)
CredentialsRefusedError = cause(
    "credentials-refused",
    "the discovery document carries client credentials (user {}); remove them from it, "
    "or accept them with --allow-discovery-credentials",
    final=True,
)
