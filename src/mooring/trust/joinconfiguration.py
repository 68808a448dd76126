"""Join configuration: the inputs of `kubeadm join`, and which of them exclude or need each other.

Rules kept here (docs/protocol/discovery-and-join.md#inputs, docs/differences.md#super-simple-discovery-api):
* `--token` fills whichever of `--discovery-token` and `--tls-bootstrap-token` is empty. Without an address, token discovery is
  dropped, so that `--discovery-file F --token T` means: trust F, ask for the certificate with T.
* Exactly one way of discovery. By token: an address `host` or `host:port`, a valid token, and pins or the flag named unsafe.
  By document: a path, `file://`, `-` for standard input, or https. The caller checks that a path exists.
* A token may have k3s's form with the hash of the CA. The hash takes the place of a pin, and beside pins both must match. A
  password in that form is refused: it joins k3s's way only (docs/protocol/k3s.md#tokens).
* A credential for the certificate request is needed before anything is sent: a token, or a document whose credentials are allowed.
* Messages name the flag and never repeat a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings import addresses
from mooring.settings.addresses import DEFAULT_PORT
from mooring.trust.bootstraptoken.token import BootstrapToken, TokenError, looks_like_token, parse_token
from mooring.trust.discovery.pins import Pin, PinError, check_pins, parse_pin
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.cahash import check_ca_hash

STDIN = "-"
MAX_ENDPOINTS = 64
"""More control-plane addresses than any cluster has. Each is tried in every polling round."""

HTTPS_PORT = 443
"""RFC 9110 section 4.2.2."""


@dataclass(frozen=True, slots=True)
class JoinInput:
    """Values of the flags. Empty means not given."""

    node_name: str
    endpoints: tuple[str, ...] = ()
    token: Secret | None = None
    discovery_token: Secret | None = None
    tls_bootstrap_token: Secret | None = None
    ca_cert_hashes: tuple[str, ...] = ()
    unsafe_skip_ca_verification: bool = False
    discovery_file: str = ""
    allow_discovery_credentials: bool = False


@dataclass(frozen=True, slots=True)
class ByToken:
    """Discovery by token from `endpoints`, without pins and the hash of a CA only when the unsafe flag is set."""

    endpoints: tuple[str, ...]
    token: BootstrapToken
    pins: tuple[Pin, ...]
    ca_hash: str = ""

    @property
    def is_pinned(self) -> bool:
        """Return True when the CA of the cluster is compared with something that was given."""
        return bool(self.pins or self.ca_hash)

    def check_ca(self, ca_pem: bytes) -> None:
        """Raise DiscoveryError or ConfigError when the CA of a cluster is not the one that was given."""
        if self.ca_hash:
            ca_pem = check_ca_hash(ca_pem, self.ca_hash)
        if self.pins:
            check_pins(ca_pem, self.pins)


@dataclass(frozen=True, slots=True)
class ByFile:
    """Discovery by a local document; `path` is `-` for standard input."""

    path: str


@dataclass(frozen=True, slots=True)
class ByUrl:
    """Discovery by a document behind https."""

    url: str


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A valid join. Without `tls_token` the certificate is requested with the document's own credentials."""

    discovery: ByToken | ByFile | ByUrl
    tls_token: BootstrapToken | None
    node_name: str
    allow_credentials: bool


def parse_endpoint(text: str) -> str:
    """Read `host:port`. Raises ConfigError.

    A host without a port gets port 6443, and an IPv6 address may stand without brackets. A URL `https://host` gets port 443.
    """
    address, default = (text[8:].rstrip("/"), HTTPS_PORT) if text.startswith("https://") else (text, DEFAULT_PORT)
    misplaced = "a bootstrap token stands where the address of the API server is expected: give it with --token"
    if looks_like_token(address):
        raise ConfigError(misplaced)
    try:
        return str(addresses.parse_endpoint(address, "", default, zones=True))
    except ConfigError:
        if k3s.has_prefix(address):
            raise ConfigError(misplaced) from None
        raise ConfigError(
            f'the API server address "{text}" must be host or host:port, such as 192.0.2.1, 192.0.2.1:6443 or '
            "[2001:db8::1]:6443"
        ) from None


def validate_join_input(given: JoinInput) -> JoinPlan:
    """Return the join that the flags mean. Raises ConfigError that names the flag to change."""
    check_node_name(given.node_name)
    discovery_token, discovery_flag = _token_or_shared(given.discovery_token, "--discovery-token", given.token)
    tls_token, tls_flag = _token_or_shared(given.tls_bootstrap_token, "--tls-bootstrap-token", given.token)
    if given.discovery_file and (given.discovery_token or given.endpoints):
        what = "--discovery-token" if given.discovery_token else "an API server address"
        raise ConfigError(f"{what} and --discovery-file cannot both be given: choose one way of discovery")
    discovery: ByToken | ByFile | ByUrl
    token, tls_hash = _parse_token(tls_flag, tls_token) if tls_token is not None else (None, "")
    if given.discovery_file:
        if tls_hash:
            raise ConfigError(
                f"{tls_flag}: the hash in the token is compared in discovery by token only: give id.secret, the part after ::"
            )
        discovery = _by_document(given.discovery_file)
        if tls_token is None and not given.allow_discovery_credentials:
            raise ConfigError(
                "nothing to ask for a certificate with: give --tls-bootstrap-token, or --token, "
                "or a --discovery-file with credentials and --allow-discovery-credentials"
            )
    else:
        discovery = _by_token(given, discovery_token, discovery_flag, tls_hash)
        if tls_token is None:
            raise ConfigError("--tls-bootstrap-token or --token is needed to ask for a certificate")
    return JoinPlan(discovery, token, given.node_name, given.allow_discovery_credentials)


def _token_or_shared(specific: Secret | None, flag: str, shared: Secret | None) -> tuple[Secret | None, str]:
    return (specific, flag) if specific else (shared or None, "--token")


def check_node_name(name: str) -> None:
    """Raise ConfigError unless a Node can have this name."""
    if not name:
        raise ConfigError("--node-name is needed: the name of this machine could not be found out")
    problems = dns1123_subdomain_errors(name)
    if problems:
        raise ConfigError(f'--node-name "{name}" is invalid: {problems[0]}')


def _parse_token(flag: str, token: Secret) -> tuple[BootstrapToken, str]:
    """Return the token, and the hash of a CA that stands before it. Raises ConfigError."""
    text = token.reveal().decode("utf-8", "replace")
    try:
        if not k3s.has_prefix(text):
            return parse_token(text), ""
        whole = k3s.parse_token(text)
    except (TokenError, k3s.TokenFormatError) as error:
        raise ConfigError(f"{flag}: {error}") from None
    if whole.bootstrap is None:
        raise ConfigError(
            f"{flag}: this token holds a password, with which machines join k3s's way only (mooring agent --server); here a "
            "bootstrap token is needed, as mooring token create prints it"
        )
    return whole.bootstrap, whole.ca_hash


def _by_token(given: JoinInput, token: Secret | None, flag: str, tls_hash: str) -> ByToken:
    if token is None:
        raise ConfigError(
            "no way of discovery: give an API server address with --discovery-token (or --token), or --discovery-file"
        )
    if not given.endpoints:
        raise ConfigError(f"{flag}: discovery by token needs the address of an API server, host or host:port")
    if len(given.endpoints) > MAX_ENDPOINTS:
        raise ConfigError(f"at most {MAX_ENDPOINTS} API server addresses can be given")
    endpoints = tuple(dict.fromkeys(parse_endpoint(text) for text in given.endpoints))
    parsed, ca_hash = _parse_token(flag, token)
    if ca_hash and tls_hash and ca_hash != tls_hash:
        raise ConfigError(
            "--discovery-token and --tls-bootstrap-token hold the hashes of two CAs: both must be of one cluster"
        )
    ca_hash = ca_hash or tls_hash
    if not given.ca_cert_hashes and not ca_hash and not given.unsafe_skip_ca_verification:
        raise ConfigError(
            "discovery by token without --discovery-token-ca-cert-hash can be unsafe: give the hash, "
            "or pass --discovery-token-unsafe-skip-ca-verification to continue without it"
        )
    try:
        pins = tuple(dict.fromkeys(parse_pin(text) for text in given.ca_cert_hashes))
    except PinError as error:
        raise ConfigError(f"--discovery-token-ca-cert-hash: {error}") from None
    return ByToken(endpoints, parsed, pins, ca_hash)


def _by_document(where: str) -> ByFile | ByUrl:
    if "://" not in where:
        return ByFile(where)
    try:
        parts = urlsplit(where)
    except ValueError:
        raise ConfigError("--discovery-file is neither a path nor a URL") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError("--discovery-file: a file:// URL must name an absolute path on this machine")
        return ByFile(unquote(parts.path))
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError("--discovery-file: if a URL is used, it must be https://host/path")
    return ByUrl(where)
