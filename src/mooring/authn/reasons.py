"""Every reason code, what it means, and what to do: what `mooring auth explain` tells beside the record of a refusal.

Rules kept here:
* The table is closed (law 10): each code that an authenticator, the verification of certificates and signed tokens, the chain or
  the second stage gives has a row, and a test collects them from the code. An authenticator of the operator's own may give codes
  of its own; those have no row.
* A row is the same whoever gave the code. How much was amiss is in the refusal's detail.
* Sentences are for the operator. None of them reaches the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Reason:
    """What a code means, and what to do about it; `remedy` is empty when there is nothing to do."""

    meaning: str
    remedy: str = ""


_CLOCKS = "Compare the clocks of both machines (timedatectl); a clock that is right is set by NTP."
_NEW_CERTIFICATE = "Have a new certificate issued: mooring kubeconfig user, mooring join, or mooring certs client."
_NEW_SERVICE_TOKEN = "Have a new token issued: kubectl create token, or let the kubelet renew the Pod's."  # noqa: S105 - a sentence
_ASK_ISSUER = "Ask who runs the issuer; what this server wants of its tokens is in the configuration of the issuer."

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        # of the chain
        "nothing-offered": Reason(
            "The request carried no credential, and nobody is let in without one here.",
            "Send a credential, or let anonymous requests in (--anonymous-auth, AuthenticationConfiguration).",
        ),
        "not-asked": Reason("It would have had to ask outside, and the credential was decided on before."),
        "unknown-token": Reason(
            "No authenticator knows a token of this form.",
            "See whether the token is whole and of this cluster, and whether the authenticator that should know it is on.",
        ),
        "unknown-password": Reason(
            "No authenticator knows this user name and password.",
            "See whether the user is in --basic-auth-file or at the service that judges passwords, and whether that is on.",
        ),
        "unknown-credential": Reason(
            "No authenticator accepts this credential of the scheme that the request names.",
            "See whether the client sends it whole, in one request, and what the custom authenticator that names the scheme wants.",
        ),
        "wrong-audience": Reason(
            "The token was made for somebody else.",
            "Have a token issued for this server's audience, or name the token's audience in the configuration.",
        ),
        "undecided": Reason(
            "The authenticator did not decide even after it was told what it asked for.",
            "This is a fault of the authenticator; report it.",
        ),
        # of the second stage
        "timed-out": Reason(
            "Whoever had to be asked did not answer in time, so the credential was refused.",
            "See whether the service that is asked is up and can be reached from this server.",
        ),
        "failed": Reason(
            "The authenticator failed, so the credential was refused.",
            "See this server's log at that time; for an authenticator of your own, its own log.",
        ),
        "too-busy": Reason(
            "Too many credentials waited to be judged at that moment.",
            "Try again; if it stays so, find out who floods the server with credentials, or why judging them takes long.",
        ),
        "too-many-guesses": Reason(
            "So many wrong credentials came lately that no more are judged at such a price.",
            "Find out who guesses; it passes by itself when that ends.",
        ),
        # of time and keys: certificates and signed tokens
        "expired": Reason(
            "The credential was good, and its time is over.",
            f"Make a new one: mooring token create, mooring kubeconfig user, or log in again. If it should live: {_CLOCKS}",
        ),
        "not-yet-valid": Reason("The credential begins in the future, by this server's clock.", _CLOCKS),
        "issued-in-future": Reason("The token was issued in the future, by this server's clock.", _CLOCKS),
        "malformed": Reason(
            "The credential is not what it should be: it cannot be read.",
            "See whether it was copied whole, without line breaks or quotes.",
        ),
        "too-large": Reason("The credential is larger than any that is read.", "Have a smaller one issued."),
        "bad-signature": Reason(
            "The credential names an issuer that is known here, but was not signed with its key.",
            "It is of another cluster or forged, or the issuer's key was replaced: have a new one issued.",
        ),
        # of bootstrap tokens
        "unknown-id": Reason(
            "There is no bootstrap token of this id: it was never made here, was deleted, or expired and was cleaned away.",
            "See mooring token list, and make a new one: mooring token create --print-join-command.",
        ),
        "deleting": Reason("The bootstrap token is being deleted.", "Make a new one: mooring token create."),
        "wrong-type": Reason(
            "The Secret of this name is not one of a bootstrap token.",
            "Delete it, and make the token with mooring token create.",
        ),
        "wrong-secret": Reason(
            "The id is known, and the secret part behind it is wrong.",
            "Copy the token again, whole. If nobody mistyped it, somebody guesses: delete the token (mooring token delete).",
        ),
        "id-mismatch": Reason(
            "The Secret says another id than its name does.", "Delete it, and make the token with mooring token create."
        ),
        "usage-missing": Reason(
            "The bootstrap token is not for authentication.",
            "Make one that is: mooring token create --usages signing,authentication.",
        ),
        "bad-groups": Reason(
            "The bootstrap token grants a group that no bootstrap token may grant.",
            "Change auth-extra-groups in its Secret: groups begin with system:bootstrappers and a colon.",
        ),
        # of client certificates and proxies
        "unknown-ca": Reason(
            "The certificate was issued by a CA that is not trusted for clients here.",
            "Present the intermediates too, add the CA to --client-ca-file, or use a certificate of this cluster's CA.",
        ),
        "weak-key": Reason("The certificate's key is of a kind or size that is not accepted.", _NEW_CERTIFICATE),
        "weak-signature": Reason("The certificate is signed over a hash that is broken.", _NEW_CERTIFICATE),
        "unknown-critical-extension": Reason(
            "The certificate carries a critical extension that is not understood here.", _NEW_CERTIFICATE
        ),
        "not-a-ca": Reason(
            "The certificate was issued by one that may not issue certificates.",
            "Have it issued by a CA; an intermediate needs basicConstraints CA:TRUE and keyUsage keyCertSign.",
        ),
        "path-too-long": Reason(
            "There are more intermediates than a CA of the chain allows.",
            "Have the certificate issued by a CA further up, or the pathlen of that CA raised.",
        ),
        "constrained-names": Reason(
            "A CA of the chain constrains names, and the certificate might break that.",
            "Have it issued without alternative names, or by a CA without name constraints.",
        ),
        "wrong-usage": Reason(
            "The certificate, or a CA above it, is not for clients.",
            "Have one issued with extended key usage clientAuth; a server's certificate is none.",
        ),
        "bad-uid": Reason("The certificate says a UID twice, or one that is no text.", _NEW_CERTIFICATE),
        "certificate-without-common-name": Reason(
            "The certificate is good but names no user: its subject has no common name.", _NEW_CERTIFICATE
        ),
        "proxy-name-not-allowed": Reason(
            "The certificate is of the proxies' CA, but its common name may not speak for users.",
            "Add the name to --requestheader-allowed-names if it is a proxy. An ordinary user needs another certificate.",
        ),
        "no-user-header": Reason(
            "A proxy asked for nobody: no user header was set.",
            "Let the proxy send one of --requestheader-username-headers.",
        ),
        # of signed tokens
        "unsupported-algorithm": Reason(
            "The token is signed with an algorithm that is not accepted of its issuer.", _ASK_ISSUER
        ),
        "unknown-key": Reason(
            "The token names a key that is not known here.",
            "The issuer's keys were replaced, or the token is of another cluster of the same issuer name: have a new one issued.",
        ),
        "wrong-issuer": Reason("The token is of an issuer that is not known here.", _ASK_ISSUER),
        "missing-expiry": Reason("The token does not say when it expires.", _ASK_ISSUER),
        "malformed-claims": Reason(
            "The token does not say whose it is, or contradicts itself.", _NEW_SERVICE_TOKEN
        ),
        "bound-object-gone": Reason(
            "The ServiceAccount, Secret, Pod or Node that the token lives with is gone.", _NEW_SERVICE_TOKEN
        ),
        "bound-object-replaced": Reason(
            "What the token lives with was deleted and made again under the same name.", _NEW_SERVICE_TOKEN
        ),
        "bound-object-deleted": Reason(
            "What the token lives with has been on its way out for more than a minute.", _NEW_SERVICE_TOKEN
        ),
        "bound-object-unknown-kind": Reason(
            "The token lives with an object of a kind that this server does not know.", _NEW_SERVICE_TOKEN
        ),
        "invalidated": Reason(
            "The token of an old Secret was not used for a year, and was marked invalid.",
            "Use tokens of the TokenRequest API; to bring this one back, remove the label "
            "kubernetes.io/legacy-token-invalid-since from its Secret.",
        ),
        # of files of passwords
        "unknown-user": Reason(
            "The file of passwords has no such user.", "Add the user to --basic-auth-file; it is read again when it changes."
        ),
        "wrong-password": Reason(
            "The user is in the file of passwords, and the password is another.",
            "Try it again, or set another one in --basic-auth-file; it is read again when it changes.",
        ),
        # of Keystone
        "no-keystone-name": Reason(
            "The user name is not one that Keystone could have.", "Give user, or domain and user as the documentation says."
        ),
        "wrong-user-or-password": Reason(
            "Keystone does not know this user with this password, or has disabled the user.",
            "Try the same with: openstack token issue.",
        ),
        "needs-more-than-a-password": Reason(
            "Keystone wants another factor of this user.", "Let the user come in another way; passwords alone will not do."
        ),
        "keystone-forbids": Reason(
            "Keystone knows the user and does not let the user in.", "See whether the password expired or the user is locked."
        ),
        "keystone-not-found": Reason(
            "There is no Keystone of version 3 at this URL.", "Correct --keystone-url; it ends in /v3 in most installations."
        ),
        "keystone-busy": Reason("Keystone has too much to do.", "Try again; if it stays so, see its own log."),
        "keystone-failed": Reason("Keystone failed.", "See its own log at that time."),
        "keystone-unexpected-status": Reason(
            "Keystone answered something that is none of its answers.", "See the detail, and what stands between."
        ),
        "keystone-unreachable": Reason(
            "Keystone could not be asked.",
            "See the detail: the URL, the network between, and whether its certificate is of a CA in --keystone-ca-file.",
        ),
        "keystone-answer-unreadable": Reason(
            "What Keystone answered cannot be understood.", "See the detail, and whether --keystone-url is the right one."
        ),
        "reserved-name": Reason(
            "The service names a user that only the cluster itself may name.",
            "Rename the user: names that begin with system: are the cluster's.",
        ),
        # of webhooks
        "webhook-unreachable": Reason(
            "The service that judges tokens could not be asked, so the token was refused.",
            "See the detail: the kubeconfig in --authentication-token-webhook-config-file, the network, and the service's log.",
        ),
        "webhook-error": Reason(
            "The service that judges tokens says that something went wrong.", "See the detail, and the service's own log."
        ),
        "webhook-bad-answer": Reason(
            "What the service that judges tokens answered is no TokenReview.",
            "See the detail, and whether the service speaks --authentication-token-webhook-version.",
        ),
        "refused-by-webhook": Reason(
            "The service that judges tokens refuses this one, and says why.", "See the detail, and the service's own log."
        ),
        "token-too-long": Reason("The token is too long to be sent to the service that judges tokens."),
        "token-not-text": Reason("The token is not text, so that no TokenReview could hold it."),
        # of anonymous requests
        "path-not-anonymous": Reason(
            "Anonymous requests are let in for other paths only.",
            "Send a credential, or add the path to anonymous.conditions of the AuthenticationConfiguration.",
        ),
        # of OpenID providers
        "provider-not-ready": Reason(
            "The issuer's keys are not known yet: it was not asked with success since this server started.",
            "See the detail and this server's log; the issuer is asked again every ten seconds.",
        ),
        "keys-not-fetched": Reason(
            "The token names a key that is not known, and the issuer did not give its keys when asked.",
            "See whether the issuer is up, can be reached from this server, and shows a certificate of the CA that is named.",
        ),
        "missing-claim": Reason("The token lacks a claim that the configuration wants.", _ASK_ISSUER),
        "malformed-claim": Reason("A claim is not of the type that the configuration wants.", _ASK_ISSUER),
        "wrong-claim": Reason("A claim has another value than the required one.", _ASK_ISSUER),
        "email-not-verified": Reason(
            "The user name is an e-mail address that the issuer has not verified.",
            "Let the user verify it at the issuer, or choose another claim as user name.",
        ),
        "mapping-failed": Reason(
            "An expression of the configuration did not turn the claims into a user.",
            "See the detail, and correct claimMappings in the AuthenticationConfiguration; it is read again when it changes.",
        ),
        "claim-rule": Reason(
            "A claimValidationRule of the configuration refuses the token.",
            "If it should pass, correct the rule; the file is read again when it changes.",
        ),
        "user-rule": Reason(
            "A userValidationRule of the configuration refuses the user.",
            "If the user should pass, correct the rule; the file is read again when it changes.",
        ),
        "distributed-claim": Reason(
            "The groups are kept elsewhere, and could not be fetched from there.",
            "See the detail; the source must be https and be reached from this server.",
        ),
        # of WebSockets
        "token-repeated": Reason(
            "The list of WebSocket subprotocols holds more than one token.", "Let the client offer one."
        ),
        "token-not-base64url": Reason(
            "The token among the WebSocket subprotocols is not base64url without padding.",
            "Encode it so, behind base64url.bearer.authorization.k8s.io and a dot.",
        ),
        "token-not-utf8": Reason(
            "The token among the WebSocket subprotocols is not text.", "Encode the token itself, once."
        ),
        "no-other-subprotocol": Reason(
            "The token is the only WebSocket subprotocol, so that none could be answered.",
            "Offer a real subprotocol beside it, such as v4.channel.k8s.io.",
        ),
    }
)  # fmt: skip


def reason_of(code: str) -> Reason | None:
    """What is known of a code; None for one of the operator's own."""
    return REASONS.get(code)
