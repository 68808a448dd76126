"""Settings of a join: those of every way, and those of `kubeadm join`, some of which exclude or need each other.

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

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki.x509 import bundles
from mooring.secret import Secret
from mooring.settings import addresses
from mooring.settings.addresses import DEFAULT_PORT
from mooring.settings.declaration import (
    COMMA_SEPARATED,
    DURATION,
    OPTIONAL_DURATION,
    SWITCH,
    TEXT,
    TEXTS,
    Settings,
    file_setting,
    one_of,
    setting,
    split_commas,
)
from mooring.settings.nodes import DELETIONS, ENDS_MEMBERSHIP, REGISTRATIONS
from mooring.trust.bootstraptoken.token import (
    BootstrapToken,
    TokenError,
    ends_in_token,
    has_token_of,
    looks_like_token,
    may_hold_token,
    parse_token,
)
from mooring.trust.discovery.fetch import DiscoveryExchange, Polling, discover_by_pins, discover_by_token
from mooring.trust.discovery.pins import Pin, PinError, check_pins, parse_pin
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpsurl import is_https
from mooring.trust.joinrule import looks_like_jwt
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.kubeconfig import ExecPlugin, KubeconfigUser
from mooring.trust.nodename import choose_node_name
from mooring.trust.requestfacts import FIRMWARE_FACTS, parse_facts

STDIN = "-"
SHELL = "/bin/sh"
MAX_ENDPOINTS = 64
"""More control-plane addresses than any cluster has. Each is tried in every polling round."""

SHORTEST_LIFETIME = timedelta(seconds=600)
"""Shortest `expirationSeconds` that a server accepts."""
LONGEST_LIFETIME = timedelta(seconds=2**31 - 1)
"""`expirationSeconds` is an int32."""
CERTIFICATE_TIMEOUT = 300.0
"""Seconds: kubeadm's `timeouts.tlsBootstrap`."""

MAX_NODE_ADDRESSES = 2
"""kubelet takes a single address, or one of each family."""

HTTPS_PORT = 443
"""RFC 9110 section 4.2.2."""
MISPLACED = "a bootstrap token stands where the address of the API server is expected: give it with --token"


@dataclass(frozen=True, slots=True)
class ByAddress:
    """Discovery from `endpoints`, by a token, or by pins alone.

    With a token there are no pins and no hash of a CA only when the unsafe flag is set.
    """

    endpoints: tuple[str, ...]
    token: BootstrapToken | None
    pins: tuple[Pin, ...]
    ca_hash: str = ""

    @property
    def is_pinned(self) -> bool:
        """Return True when the CA of the cluster is compared with something that was given."""
        return bool(self.pins or self.ca_hash)

    def check_ca(self, ca_pem: bytes) -> None:
        """Raise DiscoveryError or ConfigError when the CA of a cluster is not the one that was given."""
        vouched_cas(ca_pem, self.pins, self.ca_hash)

    def discover(self, polling: Polling) -> DiscoveryExchange[TrustedCluster]:
        """Return the exchange that discovers the cluster. It raises DiscoveryError."""
        if self.token is None:
            return discover_by_pins(self.endpoints, self.pins, polling)
        return discover_by_token(
            self.endpoints,
            self.token,
            self.pins,
            vouched=partial(check_ca_hash, wanted=self.ca_hash) if self.ca_hash else None,
            unsafe_skip_ca_verification=not self.is_pinned,
            polling=polling,
        )


def vouched_cas(ca_pem: bytes, pins: Collection[Pin], ca_hash: str) -> bytes:
    """Return the certificates that the hash in a token and the pins name; all without both. Raises DiscoveryError, ConfigError."""
    if ca_hash:
        ca_pem = check_ca_hash(ca_pem, ca_hash)
    return bundles.certificates_pem(check_pins(ca_pem, pins)) if pins else ca_pem


@dataclass(frozen=True, slots=True)
class ByFile:
    """Discovery by a local document; `path` is `-` for standard input."""

    path: str


@dataclass(frozen=True, slots=True)
class ByUrl:
    """Discovery by a document behind https."""

    url: str


@dataclass(frozen=True, slots=True)
class IdentityToken:
    """Where a machine has its identity token: in a file that may be replaced, or printed by a line for `/bin/sh`."""

    file: str = ""
    command: str = ""

    def __str__(self) -> str:
        return f"the identity token in {self.file}" if self.file else "the identity token of --identity-token-command"

    def user(self) -> KubeconfigUser:
        """Return the user of a client that reads the token when it needs one."""
        if self.file:
            return KubeconfigUser("identity-token", token_file=self.file)
        plugin = ExecPlugin(SHELL, args=("-c", self.command), interactive_mode="Never", prints_token=True)
        return KubeconfigUser("identity-token", exec=plugin)


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A valid join. Without `tls_token` and `identity` the certificate is requested with the document's own credentials.

    `node_name` is "" where the join rule of the identity token may name the node; `host_name` does otherwise.
    """

    discovery: ByAddress | ByFile | ByUrl
    tls_token: BootstrapToken | None
    node_name: str
    allow_credentials: bool
    identity: IdentityToken | None = None
    host_name: str = ""
    asks: bool = False
    """The certificate is requested without a credential."""


def parse_endpoint(text: str) -> str:
    """Read `host:port`. Raises ConfigError.

    A host without a port gets port 6443, and an IPv6 address may stand without brackets. A URL `https://host` gets port 443.
    """
    address, default = (
        (text[8:].rstrip("/").replace("%25", "%"), HTTPS_PORT) if is_https(text) else (text, DEFAULT_PORT)
    )
    # First: an error about the address would repeat the token, and a query of its name would send it.
    if ends_in_token(address):
        raise ConfigError(MISPLACED)
    try:
        return str(addresses.parse_endpoint(address, "", default, is_dialled=True))
    except ConfigError:
        # Nothing of the text is shown then.
        if may_hold_token(address):
            raise ConfigError(MISPLACED) from None
        raise ConfigError(
            f"the API server address {addresses.shown_value(text)} must be host or host:port, such as 192.0.2.1, "
            "192.0.2.1:6443 or [2001:db8::1]:6443"
        ) from None


def check_endpoints(endpoints: Collection[str], token: BootstrapToken) -> None:
    """Raise ConfigError when an address contains the token, at any place."""
    # By its id, so that no secret is compared.
    if any(has_token_of(endpoint, token.id) for endpoint in endpoints):
        raise ConfigError(MISPLACED)


def _token_or_shared(specific: Secret | None, flag: str, shared: Secret | None) -> tuple[Secret | None, str]:
    return (specific, flag) if specific else (shared or None, "--token")


def _parse_token(flag: str, token: Secret) -> tuple[BootstrapToken, str]:
    """Return the token, and the hash of a CA that stands before it. Raises ConfigError."""
    text = token.reveal().decode("utf-8", "replace")
    try:
        if not k3s.has_prefix(text):
            return parse_token(text), ""
        whole = k3s.parse_token(text)
    except (TokenError, k3s.TokenFormatError) as error:
        raise ConfigError(f"{flag}: {error}") from None
    # kubeadm's way needs the id and the secret of a bootstrap token, and a password has neither.
    if whole.bootstrap is None:
        raise ConfigError(
            f"{flag}: this token holds a password, with which machines join k3s's way only (mooring agent --server); here a "
            "bootstrap token is needed, as mooring token create prints it"
        )
    return whole.bootstrap, whole.ca_hash


def _by_token(given: JoinSettings, token: Secret | None, flag: str, more_hashes: set[str]) -> ByAddress:
    if token is None:
        raise ConfigError(
            "no way of discovery: give an API server address with --discovery-token (or --token), or --discovery-file"
        )
    if not given.address:
        raise ConfigError(f"{flag}: discovery by token needs the address of an API server, host or host:port")
    parsed, ca_hash = _parse_token(flag, token)
    check_endpoints(given.address, parsed)
    hashes = ({ca_hash} | more_hashes) - {""}
    # Two hashes cannot both be right, and neither is chosen silently.
    if len(hashes) > 1:
        raise ConfigError("the tokens that are given hold the hashes of two CAs: all must be of one cluster")
    ca_hash = "".join(hashes)
    if not given.discovery_token_ca_cert_hash and not ca_hash and not given.discovery_token_unsafe_skip_ca_verification:
        raise ConfigError(
            "discovery by token without --discovery-token-ca-cert-hash can be unsafe: give the hash, "
            "or pass --discovery-token-unsafe-skip-ca-verification to continue without it"
        )
    return ByAddress(given.address, parsed, _pins(given), ca_hash)


def _by_pins(given: JoinSettings) -> ByAddress:
    if not given.address:
        raise ConfigError(
            "an identity token needs the address of an API server, host or host:port, or --discovery-file"
        )
    if not given.discovery_token_ca_cert_hash:
        # Whoever answers would get the token.
        raise ConfigError(
            "an identity token needs --discovery-token-ca-cert-hash, or --discovery-file: it is sent to that cluster"
        )
    return ByAddress(given.address, None, _pins(given))


def _pins(given: JoinSettings) -> tuple[Pin, ...]:
    try:
        return tuple(dict.fromkeys(parse_pin(text) for text in given.discovery_token_ca_cert_hash))
    except PinError as error:
        raise ConfigError(f"--discovery-token-ca-cert-hash: {error}") from None


def _by_document(where: str) -> ByFile | ByUrl:
    if looks_like_token(where) or (k3s.has_prefix(where) and may_hold_token(where.removeprefix(k3s.PREFIX))):
        raise ConfigError(
            "--discovery-file: a token stands where the discovery document is expected: give it with --token"
        )
    if "://" not in where:
        if addresses.names_user(where) and ":" in where.partition("@")[0].partition("/")[0]:
            raise ConfigError("--discovery-file: a URL begins with https://, and a path with a : and an @ with ./")
        return ByFile(where)
    try:
        parts = urlsplit(where)
    except ValueError:
        raise ConfigError("--discovery-file is neither a path nor a URL") from None
    if addresses.names_user(parts.path + parts.query + parts.fragment):
        raise ConfigError(
            "--discovery-file: behind the host of a URL, and in a user name and a password, @ and / are written as %40 and %2F"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError("--discovery-file: a file:// URL must name an absolute path on this machine")
        return ByFile(unquote(parts.path))
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError("--discovery-file: if a URL is used, it must be https://host/path")
    return ByUrl(where)


def _secret(text: str, key: str) -> Secret | None:
    return Secret(text.encode("utf-8", "surrogateescape")) if text else None


def _longer_than_zero(value: timedelta, key: str) -> timedelta:
    if value <= timedelta(0):
        raise ConfigError(f"--{key} must be longer than 0")
    return value


def _lifetime(value: timedelta | None, key: str) -> timedelta | None:
    if value is not None and not SHORTEST_LIFETIME <= value <= LONGEST_LIFETIME:
        raise ConfigError(
            f"--{key} must be between {format_duration(SHORTEST_LIFETIME)} and {format_duration(LONGEST_LIFETIME)}"
        )
    return value


def _endpoints(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    if len(texts) > MAX_ENDPOINTS:
        raise ConfigError(f"at most {MAX_ENDPOINTS} API server addresses can be given")
    return tuple(dict.fromkeys(parse_endpoint(text) for text in texts))


def ip_addresses(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return IP addresses, each once and in one form."""
    return tuple(dict.fromkeys(str(one) for one in _parse_addresses(texts, key)))


def _parse_addresses(texts: tuple[str, ...], key: str) -> list[addresses.Address]:
    found = []
    for text in texts:
        address = addresses.parse_address(text)
        if address is None:
            raise ConfigError(f"--{key}: {addresses.shown_value(text)} is not an IP address")
        found.append(address)
    return found


def _items(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return the items of texts with commas between. An empty text is refused: a variable that was meant to hold one is not set."""
    if not all(split_commas([text]) for text in texts):
        raise ConfigError(f"--{key}: give a value, or leave the flag out")
    return split_commas(texts)


def _facts(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    items = _items(texts, key)
    parse_facts(items, f"--{key}")
    return items


def _firmware_facts(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    items = _items(texts, key)
    for text in items:
        if text not in FIRMWARE_FACTS:
            raise ConfigError(f"--{key}: {addresses.shown_value(text)} is none of {', '.join(FIRMWARE_FACTS)}")
    return tuple(dict.fromkeys(items))


def _node_addresses(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return one address, or one of each family, as kubelet takes them (docs/protocol/kubelet-certificates.md#addresses)."""
    found = list(dict.fromkeys(_parse_addresses(texts, key)))
    for address in found:
        refused = (
            (address.is_unspecified, "an all zeros address; leave the flag out for the address towards the server"),
            (address.is_loopback, "a loopback address"),
            (address.is_multicast, "a multicast address"),
            (address.is_link_local, "a link-local address"),
        )
        for is_kind, kind in refused:
            if is_kind:
                raise ConfigError(f'--{key}: "{address}" cannot be the address of a node: it is {kind}')
    if len(found) > MAX_NODE_ADDRESSES or len({one.version for one in found}) < len(found):
        raise ConfigError(
            f"--{key}: must contain either a single IP or a dual-stack pair of IPs (one IPv4 and one IPv6 address), as for kubelet"
        )
    return tuple(map(str, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings(Settings):
    """Settings of every way of joining."""

    heading: ClassVar[str] = "Every way of joining"

    token: Secret | None = setting(
        TEXT,
        default="",
        short="t",
        meaning="Token for discovery and for the certificate request, where none of their own is given; k3s's form pins the CA.",
        metavar="TOKEN",
        secret=True,
        parse=_secret,
        everyday=True,
    )
    node_name: str = setting(
        TEXT,
        default="",
        meaning="Name of the node.",
        default_note="the host name",
        metavar="NAME",
        everyday=True,
    )
    node_ip: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        short="i",
        meaning="InternalIP of the Node: an address, or one of each family. Kubeadm's way remembers it.",
        default_note="the one towards the server",
        metavar="IP",
        parse=_node_addresses,
    )
    root: str = setting(
        TEXT,
        default="/",
        meaning="Directory under which etc/kubernetes and var/lib/kubelet are written.",
        metavar="DIR",
        everyday=True,
    )
    register_node: str = setting(
        one_of(*REGISTRATIONS),
        default="",
        meaning="Node to register: none, tainted (no Pods are placed here), or ready.",
        default_note="ready with a Mooring server, tainted with another",
        everyday=True,
    )
    node_deletion: str = setting(
        one_of(*DELETIONS),
        default=ENDS_MEMBERSHIP,
        own_variable="MOORING_AGENT_NODE_DELETION",
        meaning="Meaning of the deletion of this machine's Node: the machine is no member any more, or it registers again, as "
        "kubelet does.",
    )
    discovery_timeout: timedelta = setting(
        DURATION,
        default=timedelta(seconds=Polling().total),
        meaning="Time limit of discovery. Without it an unknown token ends a join kubeadm's way after 30 s.",
        parse=_longer_than_zero,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings(MemberSettings):
    """Settings of a join as `kubeadm join` does it."""

    heading: ClassVar[str] = "A join kubeadm's way"

    address: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        positional=True,
        meaning="Addresses of API servers of one cluster, each host or host:port; each is tried until one passes.",
        parse=_endpoints,
        everyday=True,
    )
    discovery_token: Secret | None = setting(
        TEXT,
        default="",
        meaning="Token for discovery: its signature proves the cluster.",
        metavar="TOKEN",
        secret=True,
        parse=_secret,
    )
    tls_bootstrap_token: Secret | None = setting(
        TEXT, default="", meaning="Token for the certificate request.", metavar="TOKEN", secret=True, parse=_secret
    )
    discovery_token_ca_cert_hash: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Pin: hash of the public key of a CA of the cluster; repeatable, one match is enough.",
        metavar="sha256:HEX",
        everyday=True,
    )
    discovery_token_unsafe_skip_ca_verification: bool = setting(
        SWITCH,
        default=False,
        meaning="Trust the token alone, without a pin: anyone who knows the token could pose as the cluster.",
    )
    discovery_file: str = setting(
        TEXT,
        default="",
        meaning="Discovery document, a kubeconfig: a file, an https URL, or - for standard input.",
        metavar="FILE|URL|-",
        everyday=True,
    )
    allow_discovery_credentials: bool = setting(
        SWITCH,
        default=False,
        meaning="Accept credentials in the discovery document, and use them for the certificate request.",
    )
    identity_token_file: str = file_setting(
        "File with an identity token of this machine, for the certificate request: a join rule of the cluster names its issuer. It "
        "may be replaced at any time."
    )
    identity_token_command: str = setting(
        TEXT,
        default="",
        meaning="Command that prints such a token, a line for /bin/sh; it runs again when the token is refused.",
        metavar="COMMAND",
    )
    ask: bool = setting(
        SWITCH,
        default=False,
        meaning="Ask without any credential: a person approves after a comparison of codes, where the server takes such requests "
        "(--join-requests).",
    )
    tls_bootstrap_timeout: timedelta = setting(
        DURATION,
        default=timedelta(seconds=CERTIFICATE_TIMEOUT),
        meaning="Time limit of the wait for the certificate.",
        parse=_longer_than_zero,
    )
    machine_code_file: str = file_setting(
        "File with the one-time code that mooring machine authorize printed; - for standard input."
    )
    request_annotation: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="A fact about this machine that its request says to the person who approves it, such as rack=7; repeatable, or "
        "with commas. Nothing proves it.",
        metavar="NAME=VALUE,...",
        parse=_facts,
    )
    request_fact: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="A fact that is read from the firmware of this machine, and sent in the same way: product-serial, product-uuid, "
        "board-serial, chassis-serial or asset-tag; repeatable, or with commas.",
        metavar="NAME,...",
        parse=_firmware_facts,
    )
    certificate_lifetime: timedelta | None = setting(
        OPTIONAL_DURATION,
        default=None,
        meaning="Lifetime of the client certificate to ask for, at least 10m; renewals repeat it. The signer may shorten it.",
        default_note="the signer's",
        parse=_lifetime,
    )

    @property
    def has_credential(self) -> bool:
        """True when a token, a document or an identity token is given. A machine that asks has none."""
        tokens = self.token or self.discovery_token or self.tls_bootstrap_token
        return bool(tokens or self.discovery_file or self.identity_token_file or self.identity_token_command)

    def plan(self, host_name: str) -> JoinPlan:
        """Return the join that the settings mean, on a machine of this name. Raises ConfigError that names the flag to change."""
        if self.ask:
            return self._asking_plan(host_name)
        identity = self._identity()
        # A join rule may name the node.
        is_named = bool(self.node_name) or identity is None
        node_name = choose_node_name(self.node_name, host_name, self.register_node) if is_named else ""
        discovery_token, discovery_flag = _token_or_shared(self.discovery_token, "--discovery-token", self.token)
        tls_token, tls_flag = _token_or_shared(self.tls_bootstrap_token, "--tls-bootstrap-token", self.token)
        if self.discovery_file and (self.discovery_token or self.address):
            what = "--discovery-token" if self.discovery_token else "an API server address"
            raise ConfigError(f"{what} and --discovery-file cannot both be given: choose one way of discovery")
        discovery: ByAddress | ByFile | ByUrl
        token, tls_hash = _parse_token(tls_flag, tls_token) if tls_token is not None else (None, "")
        shared_hash = _parse_token("--token", self.token)[1] if self.token else ""
        if self.discovery_file:
            if self.discovery_token_ca_cert_hash:
                raise ConfigError(
                    "--discovery-token-ca-cert-hash and --discovery-file cannot both be given: the pin is compared in discovery by "
                    "token only, and the CA of a document counts by itself"
                )
            if tls_hash or shared_hash:
                flag = tls_flag if tls_hash else "--token"
                raise ConfigError(
                    f"{flag}: the hash in the token is compared in discovery by token only: give id.secret, the part after ::"
                )
            discovery = _by_document(self.discovery_file)
            if tls_token is None and identity is None and not self.allow_discovery_credentials:
                raise ConfigError(
                    "no credential for the certificate request: give --tls-bootstrap-token, or --token, "
                    "or a --discovery-file with credentials and --allow-discovery-credentials"
                )
        elif identity is not None and discovery_token is None:
            discovery = _by_pins(self)
        else:
            discovery = _by_token(self, discovery_token, discovery_flag, {tls_hash, shared_hash})
            if tls_token is None and identity is None:
                raise ConfigError("--tls-bootstrap-token or --token is needed to ask for a certificate")
        return JoinPlan(
            discovery, token, node_name, self.allow_discovery_credentials, identity, host_name if identity else ""
        )

    def _asking_plan(self, host_name: str) -> JoinPlan:
        """Return the plan of a join without a credential. Raises ConfigError."""
        if self.has_credential:
            raise ConfigError("--ask is for a machine without a credential: give no token and no document beside it")
        if not self.address:
            raise ConfigError("--ask needs the address of an API server, host or host:port")
        node_name = choose_node_name(self.node_name, host_name, self.register_node)
        return JoinPlan(ByAddress(self.address, None, _pins(self)), None, node_name, False, asks=True)

    def _identity(self) -> IdentityToken | None:
        """Return where the identity token is; None when none is used. Raises ConfigError."""
        file, command = self.identity_token_file, self.identity_token_command
        if not file and not command:
            return None
        flag = "--identity-token-file" if file else "--identity-token-command"
        for text, name in ((file, "--identity-token-file"), (command, "--identity-token-command")):
            if looks_like_jwt(text):
                raise ConfigError(
                    f"{name}: a token stands where {'its file' if file else 'a command'} is expected: every user of this machine "
                    "can read a command line; write the token to a file"
                )
        if file and command:
            raise ConfigError("--identity-token-file and --identity-token-command cannot both be given")
        for given, name in ((self.token, "--token"), (self.tls_bootstrap_token, "--tls-bootstrap-token")):
            if given:
                raise ConfigError(f"{flag} and {name} cannot both be given: one credential requests the certificate")
        if self.allow_discovery_credentials:
            raise ConfigError(
                f"{flag} and --allow-discovery-credentials cannot both be given: one credential requests the certificate"
            )
        return IdentityToken(file, command)
