"""Cluster-info that an administrator edited: the CAs in it that follow the cluster, and what is wrong with the rest.

Rules kept here (docs/certificates.md#an-edited-cluster-info):
* Certificates of the cluster's own CAs are replaced by those published now, where the first of them stood. Everything else stays
  byte for byte: addresses, names, comments, CAs of the administrator. Only a text that writes a bundle in another way than on one
  line is written again, without its comments.
* A CA is the cluster's own when a server published it before, which an annotation records, or when the files of the cluster's CA
  name it: as trusted, as retired, or as given up. So a store without the annotation is followed too.
* A text without any of them does not publish the CA of the cluster. Its machines verify servers by other CAs, which a rollover
  does not change, so it is no obstacle to one. A text that cannot be used is.
* No sentence has a credential.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.errors import quoted
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates, certificates_among, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE
from mooring.trust.discovery.errors import UnusableClusterInfoError
from mooring.trust.discovery.pins import PinError, pin_of, pins_of
from mooring.trust.discovery.trustedcluster import published_cluster, trusted_cluster
from mooring.trust.kubeconfig import CLIENT_CA, Kubeconfig, KubeconfigError, cluster_id
from mooring.trust.kubeconfigtext import dump_object, load, parse_kubeconfig

PUBLISHED_CAS = "mooring.dev/published-cas"
"""Annotation of cluster-info: the pins of the CAs that servers published in it, the newest first."""
MAX_PINS = 32
"""Pins of each kind in the annotation: those of many rollovers, in 3 KiB."""
MAX_CREDENTIALS = 16
"""Credentials that a warning names."""
CA_DATA = "certificate-authority-data"
_MADE_AGAIN = "a Mooring server makes it again at its next start"
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----[ \t]*(?:\r?\n|$)", re.DOTALL)
_USER_INFO = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")
_FIELD = re.compile(r"\b(token|tokenFile|password|client-key-data|client-key|exec|auth-provider)[\"']?\s*:")
_CREDENTIALS = {
    "clientCertificate": "a client certificate or its key",
    "token": "a token",
    "tokenFile": "a token file",
    "basic": "a user name or password",
    "exec": "an exec plugin",
    "authProvider": "an auth-provider",
}

LAST_WRITTEN = "mooring.dev/last-written"
"""Annotation of a ConfigMap: the digest of each value as a server last wrote it."""
LAST_KEPT = "mooring.dev/last-kept"
"""Annotation of a ConfigMap: the digest of each edited value as a server last kept it."""


def value_digest(value: str | None) -> str:
    """Return the SHA-256 of a value; "" for one that was removed."""
    return "" if value is None else hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def digests_in(config_map: Obj, annotation: str) -> dict[str, str]:
    """Return the digests of an annotation by key; none when it is missing or cannot be read."""
    return {key: digest for key, digest in _annotated(config_map, annotation).items() if isinstance(digest, str)}


def annotations_of(config_map: Obj) -> Mapping[str, str]:
    """Return the annotations of an object, which another API server may have sent."""
    return (config_map.get("metadata") or {}).get("annotations") or {}


def _annotated(config_map: Obj, annotation: str) -> Mapping[str, Any]:
    try:
        value = json.loads(annotations_of(config_map).get(annotation, "{}"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_edited(config_map: Obj) -> bool:
    """Return whether the kubeconfig of cluster-info is not as a server wrote it."""
    return value_digest(_text(config_map)) != digests_in(config_map, LAST_WRITTEN).get(KUBECONFIG_KEY)


def is_new_edit(config_map: Obj) -> bool:
    """Return whether the kubeconfig of cluster-info was edited since a server looked at it."""
    kept = digests_in(config_map, LAST_KEPT).get(KUBECONFIG_KEY)
    return is_edited(config_map) and value_digest(_text(config_map)) != kept


def _text(config_map: Obj) -> str | None:
    text: str | None = (config_map.get("data") or {}).get(KUBECONFIG_KEY)
    return text


# ── CAs that follow ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class OwnCas:
    """CAs of the cluster for one purpose: those published now, and the pins of those published before."""

    present: tuple[Certificate, ...]
    former: tuple[str, ...] = ()

    @property
    def pins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*_pins(self.present), *self.former)))


@dataclass(frozen=True, slots=True)
class PublishedCas:
    """CAs that the cluster publishes in cluster-info."""

    servers: OwnCas
    clients: OwnCas
    ended: tuple[str, ...] = ()
    """Pins of CAs that were retired or given up."""

    @classmethod
    def of(
        cls, stored: Obj | None, server_ca_pem: bytes, clients: Collection[Certificate], ended: Collection[Certificate]
    ) -> PublishedCas:
        """Return the CAs of a cluster whose servers `server_ca_pem` verifies, and those that the stored cluster-info records.

        `clients` are the CAs of clients, `ended` those that were retired or given up.
        """
        recorded: Mapping[str, Any] = {} if stored is None else _annotated(stored, PUBLISHED_CAS)
        servers = certificates(server_ca_pem) if server_ca_pem else ()
        return cls(
            OwnCas(servers, _recorded(recorded, "servers")),
            OwnCas(tuple(clients), _recorded(recorded, "clients")),
            _pins(ended),
        )

    def annotation(self) -> str:
        """Return the record of what was published, for the annotation."""
        record = {"servers": self.servers.pins[:MAX_PINS], "clients": self.clients.pins[:MAX_PINS]}
        return json.dumps(record, sort_keys=True)

    def follow(self, text: str) -> str:
        """Return an edited kubeconfig with the present CAs in place of the cluster's own; `text` when it cannot be read."""
        try:
            parse_kubeconfig(text)
            document: Obj = load(text) or {}
        except KubeconfigError:
            return text
        # The cluster's CA verifies its servers, unless their certificate is of another CA: then one beside it was added by hand.
        is_shared = not set(_pins(self.servers.present)).isdisjoint(_pins(self.clients.present))
        servers = {*self.servers.pins, *((*self.clients.pins, *self.ended) if is_shared else ())}
        clients = {*self.clients.pins, *self.ended}
        changes: dict[str, str] = {}
        for fields, is_of_clients in _holders(document):
            before = fields[CA_DATA]
            own, pins = (self.clients, clients) if is_of_clients else (self.servers, servers)
            after = _with_present(before, own.present, pins)
            if after != before:
                fields[CA_DATA] = changes[before] = after
        if not changes:
            return text
        words = "|".join(map(re.escape, changes))
        edited = re.sub(rf"(?<![A-Za-z0-9+/=])(?:{words})(?![A-Za-z0-9+/=])", lambda found: changes[found[0]], text)
        with suppress(KubeconfigError):
            # The text with its comments and its order stays only where it means the same. Else it is written again.
            if load(edited) == document:
                return edited
        return dump_object(document)


def _recorded(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    pins = record.get(key)
    return tuple(pin for pin in pins if isinstance(pin, str))[:MAX_PINS] if isinstance(pins, list) else ()


def _pins(cas: Iterable[Certificate]) -> tuple[str, ...]:
    return tuple(pin for ca in cas if (pin := _pin(ca)))


def _pin(ca: Certificate) -> str:
    """Return the pin of a CA; "" when its key cannot be pinned."""
    try:
        return str(pin_of(ca))
    except PinError:
        return ""


def _holders(document: Obj) -> Iterator[tuple[Obj, bool]]:
    """Yield the objects of a kubeconfig that hold a bundle, and whether it is one of CAs of clients."""
    for entry in document.get("clusters") or ():
        fields = (entry or {}).get("cluster") or {}
        if isinstance(fields.get(CA_DATA), str):
            yield fields, False
        for extension in fields.get("extensions") or ():
            content = (extension or {}).get("extension")
            if (
                isinstance(content, dict)
                and extension.get("name") == CLIENT_CA
                and isinstance(content.get(CA_DATA), str)
            ):
                yield content, True


def _with_present(data: str, present: Collection[Certificate], own: Collection[str]) -> str:
    """Return a bundle in base64 with `present` in place of the certificates whose pins are `own`."""
    if not present:
        return data
    try:
        pem = base64.b64decode("".join(data.split()), validate=True)
        # Raises for a bundle that cannot be read as a whole, which is left as it is.
        certificates_among(pem)
        found = [(match, certificates(match[0])[0]) for match in _BLOCK.finditer(pem)]
    except (ValueError, PkiError):
        return data
    ours = [(match, ca) for match, ca in found if _pin(ca) in own]
    if not ours or [ca for _, ca in ours] == list(present):
        return data
    parts, end = [], 0
    for place, (match, _) in enumerate(ours):
        parts += [pem[end : match.start()], certificates_pem(present) if place == 0 else b""]
        end = match.end()
    return base64.b64encode(b"".join((*parts, pem[end:]))).decode()


# ── what is wrong with it ────────────────────────────────────────────────────────────────────────────────────────


def usable_problem(config_map: Obj) -> str:
    """Return why no machine can join by cluster-info; "" when one can."""
    text = _text(config_map)
    if text is None:
        return f"it has no key {KUBECONFIG_KEY}"
    try:
        config, cluster = published_cluster("", text)
        trusted_cluster("", config, cluster, "")
    except UnusableClusterInfoError as error:
        return error.reason
    return ""


def join_problem(config_map: Obj | None, known_ca_pem: bytes = b"") -> str:
    """Return why no machine can join by a line that is printed now; "" when one can.

    `config_map`: None for one that is missing. `known_ca_pem`: CAs whose pins the line has.
    """
    if config_map is None:
        return f"it is missing, and no machine can join by token; {_MADE_AGAIN}"
    if problem := usable_problem(config_map):
        return problem
    known = set(map(str, pins_of(known_ca_pem))) if known_ca_pem else set()
    if known and known.isdisjoint(published_pins(config_map)):
        return "it names no CA of this kubeconfig, so a join line printed with it fails"
    if config_map.get("immutable"):
        return f"it is immutable: it cannot be signed for new tokens, and no machine can join by them; delete it, and {_MADE_AGAIN}"
    return ""


def published_pins(config_map: Obj) -> tuple[str, ...]:
    """Return the pins of the CAs by which joining machines verify servers; none when it names none, or cannot be used."""
    try:
        _, cluster = published_cluster("", _text(config_map) or "")
    except UnusableClusterInfoError:
        return ()
    return _pins(_bundle(cluster.ca_pem))


def published_id(config_map: Obj) -> str:
    """Return the id of the cluster in cluster-info; "" when it has none, or cannot be used."""
    try:
        return cluster_id(published_cluster("", _text(config_map) or "")[1])
    except UnusableClusterInfoError:
        return ""


def credentials_in(config_map: Obj) -> tuple[str, ...]:
    """Return the place and kind of each credential in cluster-info, which anonymous callers read."""
    text = _text(config_map) or ""
    try:
        found = _credentials(parse_kubeconfig(text))
    except KubeconfigError:
        # Another reader may accept the text.
        found = (f"it cannot be read, and has a field {name}" for name in dict.fromkeys(_FIELD.findall(text)))
    return tuple(islice(found, MAX_CREDENTIALS))


def _credentials(config: Kubeconfig) -> Iterator[str]:
    for user in config.users:
        for kind in user.credentials:
            yield f"user {quoted(user.name)} has {_CREDENTIALS[kind]}"
    for cluster in config.clusters:
        for key, url in (("server", cluster.server), ("proxy-url", cluster.proxy_url)):
            if _USER_INFO.match(url):
                yield f"cluster {quoted(cluster.name)} has a user name or password in its {key}"


def _bundle(pem: bytes) -> tuple[Certificate, ...]:
    return certificates_among(pem) if pem else ()


def misses(
    bundle: Collection[Certificate], leaving: Certificate, staying: Certificate, ended: Collection[str] = ()
) -> bool:
    """Return whether a bundle publishes the cluster's CA, and not the one that stays: directly or by a CA that issued it."""
    is_ours = _vouches(bundle, leaving) or not set(_pins(bundle)).isdisjoint(ended)
    return is_ours and not _vouches(bundle, staying)


def _vouches(bundle: Collection[Certificate], ca: Certificate) -> bool:
    pin = _pin(ca)
    return any(_pin(one) == pin or ca.is_issued_by(one) for one in bundle)


def rollover_obstacle(
    config_map: Obj | None, leaving: Certificate, staying: Certificate, ended: Collection[str], name: str
) -> str:
    """Return why machines could not join any more without the CA that leaves; "" when they could.

    `name` is what the CA that stays is called: old or new.
    """
    again = f"or delete it, and the server makes it again while this rollover runs: kubectl -n {NAMESPACE} delete configmap {NAME}"
    if config_map is None:
        return f"the ConfigMap {NAMESPACE}/{NAME} is missing and could not be made again: look at the server's log"
    if problem := usable_problem(config_map):
        return f"the ConfigMap {NAMESPACE}/{NAME} cannot be used: {problem}; repair its {KUBECONFIG_KEY}, {again}"
    _, cluster = published_cluster("", _text(config_map) or "")
    named = next((one for one in _holders_of(config_map, cluster.name) if misses(one, leaving, staying, ended)), None)
    if named is None:
        return ""
    lacks = f"the ConfigMap {NAMESPACE}/{NAME} does not hold the {name} CA {_pin(staying)}, and no machine could join with it"
    if config_map.get("immutable"):
        return f"{lacks}; it is immutable: {again.removeprefix('or ')}"
    added = f"append pki/rollover/{name}.crt of the data directory to the {CA_DATA} of its {KUBECONFIG_KEY}"
    return f"{lacks}: {added}, {again}"


def _holders_of(config_map: Obj, name: str) -> Iterator[tuple[Certificate, ...]]:
    """Yield the bundles of the cluster with this name in a usable cluster-info."""
    document: Obj = load(_text(config_map) or "")
    clusters = [entry for entry in document["clusters"] if (entry.get("name") or "") == name]
    for fields, _ in _holders({"clusters": clusters}):
        yield _bundle(base64.b64decode("".join(fields[CA_DATA].split())))
