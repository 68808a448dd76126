"""Reason codes that several authenticators, the chain or the second stage give: their meaning, and what to do.

Rules kept here:
* The reasons of one authenticator stand in its folder (`mooring.authn.*.reasons`), and `mooring.authn.table` gathers them all. The
  table is closed (law 10): a test collects the codes from the source. A custom authenticator may give codes of its own, which have
  no row.
* A row is the same for every authenticator that gives the code. The detail of a rejection says more.
* Sentences are for the operator: `mooring auth explain` and docs/reference/refusals.md show them. None of them reaches the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Reason:
    """Meaning of a code, and what to do about it. `remedy` is empty when there is nothing to do."""

    meaning: str
    remedy: str = ""


COMPARE_CLOCKS = "Compare the clocks of both machines (timedatectl); a clock that is right is set by NTP."
NEW_CERTIFICATE = "Have a new certificate issued: mooring kubeconfig user, mooring join, or mooring certs client."
NEW_SERVICE_TOKEN = "Have a new token issued: kubectl create token, or let the kubelet renew the Pod's."  # noqa: S105 - a sentence
ASK_ISSUER = "Ask the operator of the issuer. The configuration of the issuer in this server holds the requirements for its tokens."

NOTHING_OFFERED = "nothing-offered"
NOT_ASKED = "not-asked"
UNKNOWN_TOKEN = "unknown-token"  # noqa: S105 - a reason code, not a password
UNKNOWN_PASSWORD = "unknown-password"  # noqa: S105 - a reason code, not a password
UNKNOWN_CREDENTIAL = "unknown-credential"
WRONG_AUDIENCE = "wrong-audience"
UNDECIDED = "undecided"
TIMED_OUT = "timed-out"
FAILED = "failed"
TOO_BUSY = "too-busy"
GUESSING = "too-many-guesses"
UNKNOWN_CA = "unknown-ca"
MALFORMED_CLAIMS = "malformed-claims"
RESERVED_NAME = "reserved-name"
TOKEN_TOO_LONG = "token-too-long"  # noqa: S105 - a reason code, not a password
TOKEN_REPEATED = "token-repeated"  # noqa: S105 - a reason code, not a password
TOKEN_NOT_BASE64URL = "token-not-base64url"  # noqa: S105 - a reason code, not a password
TOKEN_NOT_UTF8 = "token-not-utf8"  # noqa: S105 - a reason code, not a password
NO_OTHER_SUBPROTOCOL = "no-other-subprotocol"
UNREADABLE = "object-unreadable"
NOT_UTF8 = "name-not-utf8"

SHARED_REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        NOTHING_OFFERED: Reason(
            "The request carried no credential, and this server requires one.",
            "Send a credential, or allow anonymous requests (--anonymous-auth, AuthenticationConfiguration).",
        ),
        NOT_ASKED: Reason(
            "The authenticator asks a remote service, which was not necessary: another one accepted or rejected the credential."
        ),
        UNKNOWN_TOKEN: Reason(
            "No authenticator knows a token of this form.",
            "Check that the token is whole and of this cluster, and that its authenticator is turned on.",
        ),
        UNKNOWN_PASSWORD: Reason(
            "No authenticator knows this user name and password.",
            "Check that the user is in --basic-auth-file or known to the service that judges passwords, and that it is turned on.",
        ),
        UNKNOWN_CREDENTIAL: Reason(
            "No authenticator accepts this credential of the scheme that the request names.",
            "Check that the client sends it whole, in one request, and in the form that the custom authenticator expects.",
        ),
        WRONG_AUDIENCE: Reason(
            "The token was issued for another audience.",
            "Have a token issued for this server's audience, or name the token's audience in the configuration.",
        ),
        UNDECIDED: Reason(
            "The authenticator gave no verdict even after it had received the data that it requested.",
            "This is a fault of the authenticator; report it.",
        ),
        TIMED_OUT: Reason(
            "The remote service did not answer in time, so the credential was rejected.",
            "Check that the service is up and can be reached from this server.",
        ),
        FAILED: Reason(
            "The authenticator failed, so the credential was rejected.",
            "See this server's log at that time; for an authenticator of your own, its own log.",
        ),
        TOO_BUSY: Reason(
            "Too many credentials were waiting for a verdict at that moment.",
            "Try again. If it persists, find the source of the many credentials, or the reason for slow verdicts.",
        ),
        GUESSING: Reason(
            "So many wrong credentials came lately from this source that expensive ones are no longer judged.",
            "Find the source of the wrong credentials. The limit ends by itself when they stop.",
        ),
        UNREADABLE: Reason(
            "An object that decides whether the credential counts cannot be read, or is not complete. The caller got 503.",
            "The log of the server names the object and the reason. When the key or the KMS plugin is back, the credential counts "
            "again. docs/encrypt-at-rest.md tells how to delete an object that is lost.",
        ),
        NOT_UTF8: Reason(
            "The user's name, a group, the uid or an extra attribute is not UTF-8, so that two users could become one.",
            "Let the proxy or the service that names the user send UTF-8, or a name in ASCII such as the e-mail address.",
        ),
        "expired": Reason(
            "The credential was valid and has expired.",
            f"Make a new one: mooring token create, mooring kubeconfig user, or log in again. If it should live: {COMPARE_CLOCKS}",
        ),
        "not-yet-valid": Reason(
            "The validity of the credential begins in the future, by this server's clock.", COMPARE_CLOCKS
        ),
        "issued-in-future": Reason("The token was issued in the future, by this server's clock.", COMPARE_CLOCKS),
        "malformed": Reason(
            "The credential cannot be read: it does not have the form of its kind.",
            "Check that it was copied whole, without line breaks or quotes.",
        ),
        "too-large": Reason("The credential is larger than the server reads.", "Have a smaller one issued."),
        "bad-signature": Reason(
            "The credential names a known issuer, but is not signed with that issuer's key.",
            "It is of another cluster or forged, or the issuer's key was replaced: have a new one issued.",
        ),
        UNKNOWN_CA: Reason(
            "The certificate was issued by a CA that is not trusted for clients here.",
            "Present the intermediates too, add the CA to --client-ca-file, or use a certificate of this cluster's CA.",
        ),
        "unsupported-algorithm": Reason(
            "The token is signed with an algorithm that is not accepted of its issuer.", ASK_ISSUER
        ),
        "unknown-key": Reason(
            "The token names an unknown key.",
            "The issuer's keys were replaced, or the token is of another cluster of the same issuer name: have a new one issued.",
        ),
        "wrong-issuer": Reason("The token is of an unknown issuer.", ASK_ISSUER),
        "missing-expiry": Reason("The token has no expiry.", ASK_ISSUER),
        MALFORMED_CLAIMS: Reason(
            "The claims of the token name no ServiceAccount, or contradict each other.", NEW_SERVICE_TOKEN
        ),
        RESERVED_NAME: Reason(
            "The service named a user whose name is reserved for the cluster.",
            "Rename the user: names that begin with system: are the cluster's.",
        ),
        TOKEN_TOO_LONG: Reason("The token is too long to be sent to a remote service."),
        TOKEN_REPEATED: Reason(
            "The list of WebSocket subprotocols holds more than one token.", "Let the client offer one."
        ),
        TOKEN_NOT_BASE64URL: Reason(
            "The token among the WebSocket subprotocols is not base64url without padding.",
            "Encode it so, behind base64url.bearer.authorization.k8s.io and a dot.",
        ),
        TOKEN_NOT_UTF8: Reason(
            "The token among the WebSocket subprotocols is not text.", "Encode the token itself, once."
        ),
        NO_OTHER_SUBPROTOCOL: Reason(
            "The token is the only WebSocket subprotocol, so that none could be answered.",
            "Offer a real subprotocol beside it, such as v4.channel.k8s.io.",
        ),
    }
)
