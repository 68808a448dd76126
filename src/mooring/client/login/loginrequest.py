"""Login request: send a credential of the user's provider to the cluster and receive a short-lived one.

Rules kept here (docs/adr/0020): the key of a certificate is generated here and never sent. The response is checked before it is
stored: it is for that key and that user, and valid by this machine's clock. Reasons of the server are passed on unchanged.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, parse_rfc3339, rfc3339
from mooring.errors import ForbiddenError, NotFoundError, PeerError, UnauthorizedError
from mooring.identity import ANONYMOUS
from mooring.pki.errors import PkiError
from mooring.pki.keys import generate_key, private_key_pem, public_key_der
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import CertificateError, NotKubernetesError
from mooring.trust.kubeconfig.model import KubeconfigUser
from mooring.trust.loginrecord import CERTIFICATE, Credential, Place

PATH = "/mooring/v1/login"


class LoginRefusedError(PeerError):
    """The cluster does not accept the user's credential (401). `explained`: end of a message, with the command that explains it."""

    def __init__(self, server: str, user: KubeconfigUser, audit_id: str) -> None:
        self.explained = explained_by(audit_id)
        if user.password is not None:
            cause = "a wrong user name or password"
        elif user.token is not None or user.token_file:
            cause = "the token has expired, or is of another issuer, audience or cluster"
        else:
            cause = "they have expired, or are of another cluster"
        super().__init__(f"{server} does not accept the credentials: {cause}{self.explained}")


async def request_credential(place: Place, user: KubeconfigUser, kind: str, clock: Clock) -> Credential:
    """Return the credential that the cluster issues to `user`. Raises ApiError, PeerError, ConfigError."""
    cluster = place.cluster()
    key = generate_key() if kind == CERTIFICATE else None
    body: Obj = {"certificateRequest": build_request(key, "").decode()} if key else {}
    async with ClusterClient(cluster, user, clock) as client:
        try:
            answer = await client.post_path(PATH, body)
        except CertificateError:
            if place.ca_pem:
                raise
            raise PeerError(
                f"no CA of this machine vouches for the certificate of {place.server}: name the cluster's CA with "
                "--certificate-authority, or its pin with --discovery-token-ca-cert-hash"
            ) from None
        except UnauthorizedError as error:
            raise LoginRefusedError(place.server, user, error.audit_id) from None
        except ForbiddenError as error:
            if f'"{ANONYMOUS}"' not in str(error):
                raise
            raise PeerError(
                f"{place.server} ignores the credentials: it is not set up for passwords, for example"
                + explained_by(error.audit_id)
            ) from None
        except (NotFoundError, NotKubernetesError) as error:
            if isinstance(error, NotKubernetesError) and "404" not in str(error):
                raise
            raise PeerError(
                f"{place.server} offers no login: it is not a Mooring server, or its --login-ttl is 0"
            ) from None
    now = clock.now()
    try:
        username, expires = answer["user"]["username"], parse_rfc3339(answer["expirationTimestamp"])
        if key is None:
            credential = Credential(username, now, expires, token=Secret(answer["token"]))
        else:
            certificate_pem = answer["certificate"].encode("ascii")
            credential = Credential(
                username, now, expires, certificate_pem=certificate_pem, key=Secret(private_key_pem(key))
            )
            leaf = bundles.certificates(certificate_pem)[0]
            if public_key_der(leaf.public_key()) != public_key_der(key.public_key()):  # type: ignore[arg-type] # any key has a DER form
                raise PeerError(f"{place.server} certified another key than the requested one")
            if names.common_name(leaf.subject) != username:
                raise PeerError(f"{place.server} issued a certificate of another user than it says")
    except (KeyError, TypeError, ValueError, AttributeError, PkiError):
        raise PeerError(f"{place.server} answered the login with something else than a credential") from None
    if not credential.usable(now):
        raise PeerError(
            f"{place.server} issued a credential until {rfc3339(expires)}, but this machine's clock says {rfc3339(now)}: "
            "compare the clocks"
        )
    return credential
