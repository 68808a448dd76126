"""Files of a member that joined the k3s way, and the token that its agent was given."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mooring.agent import disk
from mooring.agent.disk import RecordFile
from mooring.agent.pairfiles import Pair
from mooring.client.files import check_writable, exposure, make_directory, os_reason, read_limited, write_atomic
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import (
    UNREADABLE,
    PrivateKey,
    accepted_public_key,
    generate_key,
    load_private_key,
    private_key_pem,
    public_key_der,
)
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.trust.k3s.exchanges import KUBELET, SERVING, WANTED, Wanted
from mooring.trust.k3s.token import K3sToken, TokenFormatError, blank_token_lines, lines_with_token, parse_token
from mooring.trust.kubeconfig import Cluster, Kubeconfig, KubeconfigContext, KubeconfigUser, select_context
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig
from mooring.trust.serverlist import saved_urls

# Files of a member that joined the k3s way, under a chosen root. They are those of a k3s agent, so that its programs can use them.
#
#     <data-dir>/agent/client-ca.crt, server-ca.crt          the CAs that sign clients, and that verify the servers
#     <data-dir>/agent/{serving-kubelet,client-kubelet,client-kube-proxy,client-k3s-controller}.{crt,key}
#     <data-dir>/agent/{kubelet,kubeproxy,k3scontroller}.kubeconfig
#     <data-dir>/agent/etc/k3s-agent-load-balancer.json      the servers that the load balancer has learned
#     <data-dir>/agent/etc/mooring-agent.json                what the agent has to remember (`mooring.agent.disk`)
#     etc/rancher/node/password, etc/rancher/node/id         the node password, and the suffix of the node name
#
# Rules kept here (docs/protocol/k3s.md#files-of-an-agent): every file but the id has mode 0600, is written whole or not at all, and
# is durable before the next step depends on it. The node password is made once. Kubeconfigs name files, so that renewals and new
# CAs need no new kubeconfig.

DATA_DIR = "/var/lib/rancher/k3s"
"""k3s's `--data-dir`."""
PASSWORD_BYTES = 16
ID_BYTES = 4
ID_SUFFIX = 1 + 2 * ID_BYTES
"""Characters that the id adds to a node name."""
ID_MODE = 0o644
"""k3s's mode: the id is a part of the node's name."""
KUBECONFIGS: Mapping[str, str] = {
    "kubelet.kubeconfig": KUBELET.name,
    "kubeproxy.kubeconfig": WANTED[2].name,
    "k3scontroller.kubeconfig": WANTED[3].name,
}
"""Names of the kubeconfigs, and the certificate of each."""


class KeyPairFiles:
    """A certificate and its key in two files, `<name>.crt` and `<name>.key`, replaced together.

        <name>.key.next      the key of a request that is under way
        <name>.crt.next      its certificate, while both take their places

    A key is on disk before it is used, and the pair in use stays until the next one is whole.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.current = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        self.next_key = directory / f"{name}.key.next"
        self.next_certificate = directory / f"{name}.crt.next"

    def read_pair(self) -> Pair | None:
        """Return the certificate with its key; None when there is no usable pair."""
        self.recover()
        return _pair(self.current, self.key)

    def peek(self) -> Pair | None:
        """Return the current pair and write nothing: an interrupted replacement stays as it is. None without a usable pair."""
        return _pair(self.current, self.key)

    def problem(self) -> str:
        """Return the path of a file of the pair and why it cannot be used; "" when the pair can be used or there is none."""
        if not os.path.lexists(self.current):
            return ""
        readers: tuple[tuple[Path, Callable[[bytes], object]], ...] = (
            (self.current, bundles.certificates_among),
            (self.key, load_private_key),
        )
        for path, parse in readers:
            if problem := _problem(path, parse):
                return problem
        return (
            "" if _pair(self.current, self.key) is not None else f"{self.key}: the key is that of another certificate"
        )

    def files(self) -> tuple[Path, ...]:
        """Return every file, the pair in use last."""
        return (self.next_key, self.next_certificate, self.key, self.current)

    def version(self) -> tuple[int, int] | None:
        """Return what differs after each replacement: inode and time of the certificate. None without one."""
        try:
            found = self.current.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def recover(self) -> None:
        """Finish or undo a replacement that a crash interrupted."""
        if self.next_certificate.exists():
            if _pair(self.next_certificate, self.next_key) is not None:
                # The certificate takes its place first. After a crash the key that waits is known by it.
                disk.rename(self.next_certificate, self.current)
            else:
                disk.remove(self.next_certificate)
        # A crash between the two renames ends here: the certificate in place belongs to the key that waits.
        if self.next_key.exists() and _pair(self.current, self.next_key) is not None:
            disk.rename(self.next_key, self.key)

    def ensure_pending_key(self) -> PrivateKey:
        """Return the key for the next request: that of an earlier run, or a new one, which is on disk then."""
        key = self.read_pending_key()
        if key is None:
            key = generate_key()
            self.write_pending_key(key)
        return key

    @property
    def pending_key(self) -> Path:
        return self.next_key

    def read_pending_key(self) -> PrivateKey | None:
        """Return the key of a pending request; None when there is no usable one."""
        with suppress(MooringError):
            return load_private_key(read_limited(self.next_key))
        return None

    def write_pending_key(self, key: PrivateKey) -> None:
        disk.write(self.next_key, private_key_pem(key))

    def drop_pending_key(self) -> None:
        """Remove the key of a request that has ended."""
        disk.remove(self.next_key)

    def replace(self, pair: Pair) -> None:
        """Put the certificate of the pending key in place, with its key."""
        disk.write(self.next_certificate, pair.certificate_pem)
        self.recover()

    def remove(self) -> None:
        """Remove the pair and what a request has left, the certificate first."""
        for path in (self.current, self.next_certificate, self.key, self.next_key):
            disk.remove(path)


def _pair(certificate: Path, key: Path) -> Pair | None:
    with suppress(MooringError, *UNREADABLE):
        chain = bundles.certificates_among(read_limited(certificate))
        private = load_private_key(read_limited(key))
        if _public_der(chain[0]) == public_key_der(private):
            return Pair(chain, private)
    return None


def _public_der(certificate: Certificate) -> bytes:
    return public_key_der(accepted_public_key(certificate.public_key()))


class AgentFiles:
    """Files of one member."""

    def __init__(self, root: Path, data_dir: str = DATA_DIR) -> None:
        self.root = root.absolute()
        self.directory = self.root / data_dir.lstrip("/") / "agent"
        self.client_ca = self.directory / "client-ca.crt"
        self.server_ca = self.directory / "server-ca.crt"
        self.pairs = {one.name: KeyPairFiles(self.directory, one.name) for one in WANTED}
        self.client, self.serving = self.pairs[KUBELET.name], self.pairs[SERVING.name]
        self.load_balancer = self.directory / "etc/k3s-agent-load-balancer.json"
        self.record = RecordFile(self.directory / "etc/mooring-agent.json")
        self.kubeconfig = self.directory / "kubelet.kubeconfig"
        self.node_password = self.root / "etc/rancher/node/password"
        self.node_id = self.root / "etc/rancher/node/id"

    def pair(self, wanted: Wanted) -> KeyPairFiles:
        """Return the files of one certificate."""
        return self.pairs[wanted.name]

    def read_cluster_id(self) -> str:
        """Return the id of the cluster (docs/protocol/cluster-info.md#id-of-the-cluster); "" when it is not known."""
        return self.record.read().cluster_id

    @property
    def ca(self) -> Path:
        """Path of the CAs that sign clients, for hooks."""
        return self.client_ca

    def make(self) -> None:
        """Make the directory of the agent, which only its owner reads.

        Raises ConfigError, before a machine has joined also when another user may replace files there, or a link leads out of the
        root.
        """
        is_new = not self.has_joined()
        places = (self.directory, self.node_password.parent)
        if is_new:
            disk.check_places(self.root, *places)
        make_directory(self.directory, 0o700)
        if is_new:
            disk.make_places(
                self.root, *places, files=(self.client_ca, self.server_ca, self.node_password, self.node_id)
            )
            # Before certificates are requested that could not be put to use.
            check_writable(self.kubeconfig)

    def exposures(self) -> list[str]:
        """Return how other users can read or change the keys of this member, each with the command that corrects it."""
        paths = (self.directory, *(one.key for one in self.pairs.values()), self.node_password)
        found = (exposure(path, 0 if path == self.directory else stat.S_IROTH) for path in paths)
        return [one for one in found if one]

    def read_ca(self) -> bytes:
        """Return the CAs that sign clients; empty when there are none that can be read."""
        return _content(self.client_ca)

    def read_server_ca(self) -> bytes:
        """Return the CAs that verify the servers; empty when there are none that can be read."""
        return _content(self.server_ca)

    def has_joined(self) -> bool:
        """Return True when a join has left its certificate or the CAs here, also when neither can be used any more."""
        return os.path.lexists(self.client.current) or os.path.lexists(self.server_ca)

    def check_server_ca(self) -> None:
        """Raise ConfigError, which names the file, when the CAs that verify the servers are gone or cannot be used.

        They are not needed where the roots of the machine verify the servers.
        """
        if self.record.read().system_roots:
            return
        if problem := _problem(self.server_ca, bundles.certificates_among):
            raise ConfigError(
                f"{problem}; this machine has joined, and without that CA it would trust whatever server answers: restore the "
                "file, or join again with a whole token, which begins with K10 and the hash of the CA"
            )

    def read_clusters(self) -> tuple[Cluster, ...]:
        """Return the CAs of the servers as a cluster without an address, for hooks."""
        return (Cluster("", ca_pem=self.read_server_ca()),)

    def read_api_server(self) -> str:
        """Return the URL of the API server in the kubeconfig of the kubelet; empty when there is none that can be read."""
        with suppress(MooringError):
            config = parse_kubeconfig(read_limited(self.kubeconfig))
            return select_context(config).cluster.server
        return ""

    def read_learned(self) -> tuple[str, ...]:
        """Return the URLs of the servers that the load balancer has saved; none without a file that can be read."""
        return saved_urls(_content(self.load_balancer))

    def write_cas(self, client_ca: bytes, server_ca: bytes) -> tuple[Path, ...]:
        """Write both bundles where they change. Return the written files. Raises ConfigError."""
        written = []
        for path, content in ((self.client_ca, client_ca), (self.server_ca, server_ca)):
            if _content(path) != content:
                disk.write(path, content)
                written.append(path)
        return tuple(written)

    def write_kubeconfigs(self, server: str, *, by_server_ca: bool = True) -> tuple[Path, ...]:
        """Write the kubeconfigs for the URL of a server where they change. Return the written files. Raises ConfigError.

        `by_server_ca`: the CAs of the cluster verify the server there, and not the roots of the machine.
        """
        written = []
        ca_file = str(self.server_ca) if by_server_ca else ""
        for name, certificate in KUBECONFIGS.items():
            path, content = self.directory / name, self._kubeconfig(server, ca_file, self.pairs[certificate])
            if _content(path) != content:
                disk.write(path, content)
                written.append(path)
        return tuple(written)

    def _kubeconfig(self, server: str, ca_file: str, pair: KeyPairFiles) -> bytes:
        config = Kubeconfig(
            (Cluster("local", server, ca_file=ca_file),),
            (KubeconfigUser("user", certificate_file=str(pair.current), key_file=str(pair.key)),),
            (KubeconfigContext("Default", "local", "user", "default"),),
            "Default",
        )
        return format_kubeconfig(config).encode()

    def ensure_node_password(self) -> Secret:
        """Return the node password, which is made and on disk when there is none. Raises ConfigError."""
        if self.node_password.exists():
            return Secret(_word(self.node_password))
        password = secrets.token_hex(PASSWORD_BYTES)
        # On disk before a server learns it: under the same name a server accepts this password alone.
        disk.write(self.node_password, f"{password}\n".encode())
        return Secret(password)

    def ensure_node_id(self) -> str:
        """Return the suffix of the node name, which is made and on disk when there is none. Raises ConfigError."""
        if self.node_id.exists():
            return _word(self.node_id)
        node_id = secrets.token_hex(ID_BYTES)
        disk.write(self.node_id, f"{node_id}\n".encode(), ID_MODE)
        return node_id


def _problem(path: Path, parse: Callable[[bytes], object]) -> str:
    """Return the path and why the file cannot be parsed; "" when it can."""
    try:
        parse(read_limited(path))
    except MooringError as error:
        text = str(error)
        return text if str(path) in text else f"{path}: {text}"
    return ""


def _content(path: Path) -> bytes:
    with suppress(ConfigError):
        return read_limited(path)
    return b""


def _word(path: Path) -> str:
    """Return the one printable word in a file. Raises ConfigError, without the word."""
    text = read_limited(path).decode("utf-8", "replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{path} does not hold one word; restore it, or remove it and delete the Node of this machine"
        )
    return text


# The token that an agent was given, and its removal from the disk after the first certificate.
#
# Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
# * A token file is read when the token is needed, so that a new token in it is found. An empty file, and none,
#   hold no token.
# * After the certificates are on disk, the token file is emptied, and the lines of the given environment files that hold the
#   token are blanked. Other files of the machine are not searched.
# * A file is replaced whole, with its mode. What was not done is reported, and stops nothing: a file that cannot be written, one
#   that still has the token, on a line of another form, and one that was named and is not there.

MAX_TOKEN_FILE = 64 << 10
"""Bytes: a token has a hundred, an environment file a few thousand."""
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Places that can be read once, and not written: a token from there is given as a value."""
MIN_PASSWORD = 8
"""Characters of a password that is looked for without its hash and user: a shorter one is a word of the file by chance."""


@dataclass(frozen=True, slots=True)
class GivenToken:
    """Token of a flag or of the environment, the file of one, and the environment files that may hold it, too."""

    value: Secret | None = None
    file: Path | None = None
    environment_files: tuple[Path, ...] = ()
    default_files: tuple[Path, ...] = ()
    """Default environment files, which no flag names: they may be missing."""
    keeps_files: bool = False

    def read(self) -> K3sToken | None:
        """Return the token; None when none is given. Raises ConfigError."""
        text = self._text()
        if text is None:
            return None
        try:
            return parse_token(text.reveal())
        except TokenFormatError as error:
            source = f"the token in {self.file}" if self.file is not None else "the token"
            raise ConfigError(f"{source} cannot be used: {error}") from None

    def _text(self) -> Secret | None:
        if self.file is None:
            return self.value
        try:
            return Secret(read_limited(self.file, MAX_TOKEN_FILE).strip()) or None
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def forget(self) -> tuple[Sequence[Path], Sequence[str]]:
        """Remove the token from the files. Return those that changed, and what was not done."""
        used = self._text()
        if used is None or self.keeps_files:
            return (), ()
        forms = _forms(used)
        changed, problems = [], []
        own = () if self.file is None else (self.file,)
        for path in dict.fromkeys((*own, *self.environment_files, *self.default_files)):
            # No flag names it. Of a file that was named the absence is a problem, because the token may be elsewhere.
            if path in self.default_files and not path.exists():
                continue
            try:
                content = read_limited(path, MAX_TOKEN_FILE)
            except ConfigError as error:
                problems.append(f"no token was removed from a file: {error}")
                continue
            after = b"" if path == self.file else blank_token_lines(content, forms)
            try:
                if after != content:
                    _replace(path, after)
                    changed.append(path)
            except ConfigError as error:
                problems.append(f"the token is still on disk: {error}")
                continue
            # Looked for again in what was written: a line of another form still has the token.
            left = lines_with_token(after, forms)
            if left is not None:
                place = f"{path}, {_numbered(left)}," if left else f"{path}, on several lines,"
                problems.append(f"the token is still on disk: {place} in a form that is not rewritten; remove it there")
        return changed, problems


def _forms(text: Secret) -> tuple[Secret, ...]:
    """Return the token as it was given, and what stands behind its hash."""
    try:
        token = parse_token(text.reveal())
    except TokenFormatError:
        return (text,)
    if token.bootstrap is not None:
        return text, Secret(token.bootstrap.reveal())
    password = token.password
    return (text, password) if password is not None and len(password.reveal()) >= MIN_PASSWORD else (text,)


def _numbered(lines: Sequence[int]) -> str:
    return f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"


def _replace(path: Path, content: bytes) -> None:
    """Replace a file, not a link to it, and keep its mode. Raises ConfigError."""
    # The file and not the link to it: a rename would replace the link, and leave the token where it leads.
    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from None
    write_atomic(target, content, mode)
