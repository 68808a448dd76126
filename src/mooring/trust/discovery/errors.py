"""Errors of discovery: one class for each cause, each with its message to the user.

Rules kept here (docs/protocol/discovery-and-join.md):
* A message names the failed step, the cause and the remedy. It may name a token's id, never its secret.
* An error for an answer keeps what the server says (`mooring.trust.answertext`), as well as the status.
* `final` is True when polling the same server again cannot help. A server may still be starting and a signature may be late, but a
  wrong signature or pin stays wrong.
"""

from __future__ import annotations

from typing import ClassVar

from mooring.errors import PeerError
from mooring.trust.answertext import after_colon, in_brackets
from mooring.trust.auditid import explained_by

REFUSED = "connection refused"
"""ECONNREFUSED, as the transport words it."""


class DiscoveryError(PeerError):
    """Discovery failed: no cluster was trusted."""

    code: ClassVar[str] = "discovery"
    final: ClassVar[bool] = False


class EndpointDownError(DiscoveryError):
    code = "unreachable"
    is_refused = False
    """True when the machine answered that no program listens at the port."""

    def __init__(self, step: str, reason: str) -> None:
        self.is_refused = reason.startswith(REFUSED)
        super().__init__(
            f"{step}: nothing answers there ({reason}); check the address, the port, the firewall, and that the server runs"
        )


class ProxyRefusalError(EndpointDownError):
    """The proxy did not connect the server, of which nothing is known."""

    code = "proxy"

    def __init__(self, step: str, reason: str) -> None:
        DiscoveryError.__init__(
            self,
            f"{step}: {reason}; check the proxy, and the setting that names it: NO_PROXY excepts servers from a variable alone",
        )


class EndpointTimeoutError(DiscoveryError):
    code = "timeout"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(
            f"{step}: no answer in time ({reason}); check the address, the firewall, and the load of the server, "
            "and that the port speaks TLS"
        )


class NotTlsError(DiscoveryError):
    code = "not-tls"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(
            f"{step}: the server does not speak TLS ({reason}); give the HTTPS address of the API server, usually port 6443"
        )


class CertificateError(DiscoveryError):
    code = "certificate"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(
            f"{step}: the server's certificate does not verify ({reason}); "
            "another machine may answer in its place, or the address is not among the names of the certificate"
        )


class ClockSkewError(DiscoveryError):
    code = "certificate-time"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(
            f"{step}: the server's certificate is not valid at this machine's time ({reason}); "
            "compare the clocks of this machine and of the server, then renew the certificate if both are right"
        )


class FetchError(DiscoveryError):
    """The request failed for a cause that has no class of its own."""

    code = "fetch"

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: the request failed ({reason}); see the server's log")


class NotKubernetesError(DiscoveryError):
    code = "not-kubernetes"

    def __init__(self, step: str, reason: str, advice: str = "check the address and the port") -> None:
        super().__init__(f"{step}: the answer is not one of a Kubernetes API server ({reason}); {advice}")


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


class UnauthorizedAnswerError(DiscoveryError):
    code = "unauthorized"

    def __init__(self, step: str, audit_id: str = "", text: str = "") -> None:
        super().__init__(
            f"{step}: the server answered 401 Unauthorized{in_brackets(text)}: it does not accept anonymous requests; "
            "enable anonymous authentication there, or join with --discovery-file and --allow-discovery-credentials"
            + explained_by(audit_id)
        )


class ForbiddenAnswerError(DiscoveryError):
    code = "forbidden"

    def __init__(self, step: str, audit_id: str = "", text: str = "") -> None:
        super().__init__(
            f"{step}: the server answered 403 Forbidden{in_brackets(text)}: "
            "anonymous access to the cluster-info ConfigMap is disabled; "
            "bind the role kubeadm:bootstrap-signer-clusterinfo to system:anonymous, or join with --discovery-file"
            + explained_by(audit_id)
        )


class ClusterInfoMissingError(DiscoveryError):
    code = "cluster-info-missing"

    def __init__(self, step: str, text: str = "") -> None:
        super().__init__(
            f"{step}: the server answered 404 Not Found{in_brackets(text)}: it has no ConfigMap kube-public/cluster-info; "
            "check the address, and that the cluster was initialised for token discovery"
        )


class RefusedAnswerError(DiscoveryError):
    code = "refused"

    def __init__(self, step: str, status: int, text: str = "") -> None:
        """`text`: that of the answer, fit to be shown; "" when it has none."""
        super().__init__(
            f"{step}: the server answered {status}: {text}"
            if text
            else f"{step}: the server answered with status {status}; see the server's log, then try again"
        )


class NotSetUpError(DiscoveryError):
    code = "not-set-up"
    final = True

    def __init__(self, step: str) -> None:
        super().__init__(
            f'{step}: the cluster-info ConfigMap has no key "kubeconfig": the cluster is not set up for token discovery; '
            "ask its administrator, or join with --discovery-file"
        )


class SignatureMissingError(DiscoveryError):
    code = "signature-missing"

    def __init__(self, step: str, token_id: str, *, others: bool) -> None:
        """`others`: cluster-info has signatures of other tokens."""
        reason = (
            ": the token is unknown, expired, or lacks the signing usage"
            if others
            else ", nor for any other: the controller that signs does not run (bootstrapsigner of kube-controller-manager), "
            "or the token is unknown, expired, or lacks the signing usage"
        )
        super().__init__(
            f'{step}: cluster-info carries no signature for token id "{token_id}"{reason}; '
            "look on the server: `mooring status` says when cluster-info cannot be signed, `mooring token list` has the tokens; "
            "make one with `mooring token create`"
        )


class SignatureWrongError(DiscoveryError):
    code = "signature-wrong"
    final = True

    def __init__(self, step: str, token_id: str) -> None:
        super().__init__(
            f'{step}: the signature of cluster-info for token id "{token_id}" is wrong: the secret half of the token is not '
            "the server's, or the answer was forged; this server is not trusted: check the token and the address"
        )


class PinMismatchError(DiscoveryError):
    code = "pin-mismatch"
    final = True

    def __init__(self, step: str, found: str) -> None:
        super().__init__(
            f"{step}: no CA of the cluster has a pinned public key (it has {found}); this server is not trusted: compare "
            "--discovery-token-ca-cert-hash with the value that `mooring token create --print-join-command` prints on the server; "
            "the hash may be of a CA that was replaced"
        )


class CaHashMismatchError(DiscoveryError):
    """The CA is not the one that the hash in a token names."""

    code = "ca-hash-mismatch"
    final = True

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}; this server is not trusted")


class UnusableClusterInfoError(DiscoveryError):
    """The signed kubeconfig or the discovery document cannot be used."""

    code = "unusable"
    final = True

    def __init__(self, step: str, reason: str, remedy: str = "ask the cluster's administrator to repair it") -> None:
        super().__init__(f"{step}: {reason}; {remedy}")
        self.reason = reason


class ClusterInfoChangedError(DiscoveryError):
    code = "changed"
    final = True

    def __init__(self, step: str) -> None:
        super().__init__(
            f"{step}: cluster-info differs from what was fetched before TLS was verified: the CA was just changed, or "
            "the first answer was altered; this server is not trusted: try again, and if it stays so, tell the administrator"
        )


class CredentialsRefusedError(DiscoveryError):
    code = "credentials-refused"
    final = True

    def __init__(self, step: str, users: str) -> None:
        super().__init__(
            f"{step}: the discovery document carries client credentials (user {users}); remove them from it, "
            "or accept them with --allow-discovery-credentials"
        )
