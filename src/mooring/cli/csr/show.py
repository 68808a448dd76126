"""`mooring csr list` and `mooring csr show`: certificate signing requests, and what differs from the last one of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise, takewhile
from typing import Any

import click

from mooring.api.certificates.certificatesigningrequest import KIND
from mooring.api.certificates.requestrecords import conditions_of, source_address_of
from mooring.api.certificates.requeststate import is_undecided, requested_node
from mooring.api.mooring import nodeidentity
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import age
from mooring.cli import printing
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.flags import LISTED, REQUEST, output_option
from mooring.cli.printing import echo, highlight
from mooring.cli.valuecompletion import complete_request
from mooring.client.cluster import ClusterClient
from mooring.clock import human_duration, rfc3339
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, WOULD_FAIL
from mooring.errors import ConfigError, ForbiddenError, NotFoundError
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX, bootstrap_token_id, join_rule_name
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import KUBELET_SERVING, SIGNERS, issued_request
from mooring.trust.bootstraptoken.tokensecret import KEY_DESCRIPTION, NAMESPACE, secret_name
from mooring.trust.joinrule import JoinRuleError, join_identity
from mooring.trust.requestfacts import facts_of

# Details of a certificate signing request for an approver: requester, subject, key, problems, certificate.
#
# Upstream planned them for the status of a request (docs/differences.md#kubelet-tls-bootstrap). Rules kept here: only what the
# signature of the request covers is read from it. A request that cannot be read has a `problem` in place of details. The name and
# groups of the requester come from the server, the subject comes from the requester: they are kept apart.

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
SHOWN_NAME = 17
"""Characters of the name of a request in the table: `node-csr-` and eight of the hash, or all of `csr-` and a random end."""
_CONDITION = next(column for column in KIND.resource.columns if column.name == "Condition")


def csr_details(obj: Obj, now: datetime) -> dict[str, Any]:
    """Return the details of one request as one document. Empty fields are left out."""
    spec, status, metadata = obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]
    found = {
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp"),
        "requester": _present(
            {
                "username": spec.get("username"),
                "uid": spec.get("uid"),
                "groups": spec.get("groups"),
                "extra": spec.get("extra"),
            }
        ),
        "sourceAddress": source_address_of(obj),
        "saidByMachine": facts_of(obj),
        "node": requested_node(obj),
        "signerName": spec.get("signerName"),
        "usages": spec.get("usages"),
        "expirationSeconds": spec.get("expirationSeconds"),
        "request": _request(spec),
        "condition": str(_CONDITION.cell(obj, now)),
        "conditions": status.get("conditions"),
        "certificate": _certificate(status.get("certificate"), now),
    }
    return _present(found)


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (None, "", [], {}, ())}


def fingerprint(request: CertificateRequest) -> str:
    """Return `sha256:<hex>` of the public key, the form of a pin."""
    return f"sha256:{request.key_fingerprint}"


def key_of(obj: Obj) -> str:
    """Return the fingerprint of the key of a request; "" for one that cannot be read."""
    try:
        return fingerprint(parse_request(base64_field((obj.get("spec") or {}).get("request"))))
    except PkiError:
        return ""


async def resolve(client: ClusterClient, given: str, *, waiting: bool) -> tuple[Sequence[Obj], bool]:
    """Return the requests that `given` stands for, and whether it is the name of the only one.

    It is the name of a request, and that of a node: requesters choose the names of requests, and may choose that of a machine. Else
    it is the beginning of the name of one request. `waiting`: a node stands for its undecided requests only. Raises NotFoundError,
    ConfigError, PeerError.
    """
    named, unknown = list[Obj](), None
    try:
        named = [await client.get(PLURAL, given)]
    except NotFoundError as error:
        unknown = error
    try:
        listed: Sequence[Obj] = (await client.list(PLURAL)).items
    except ForbiddenError:
        listed = ()
    node = given.removeprefix(NODE_PREFIX)
    of_node = [
        obj
        for obj in listed
        if requested_node(obj) == node and (is_undecided(obj) or not waiting) and obj["metadata"]["name"] != given
    ]
    if found := [*named, *of_node]:
        return sorted(found, key=lambda obj: str(obj["metadata"].get("creationTimestamp", ""))), found == named
    begun = [obj for obj in listed if obj["metadata"]["name"].startswith(given)]
    if len(begun) > 1:
        names = ", ".join(obj["metadata"]["name"] for obj in begun)
        raise ConfigError(f'"{given}" begins the names of {len(begun)} certificate signing requests: {names}')
    if unknown is not None and not begun:
        raise unknown
    return begun, False


def reason_of(obj: Obj) -> str:
    """Return the reason for which an undecided request waits; "" for another one, and where no controller has said one."""
    conditions = conditions_of(obj) if is_undecided(obj) else ()
    return next(
        (str(one.get("reason", "")) for one in conditions if one.get("type") in (WOULD_FAIL, NEEDS_APPROVAL)), ""
    )


def refusals_by_signer(obj: Obj) -> Sequence[str]:
    """Return the rules of its signer that a request breaks; none for a request that cannot be read, and for other signers."""
    return _request(obj.get("spec") or {}).get("refusedBySigner") or ()


def _request(spec: dict[str, Any]) -> dict[str, Any]:
    try:
        request = issued_request(
            parse_request(base64_field(spec.get("request"))), spec.get("signerName") or "", spec.get("extra") or {}
        )
    except PkiError as error:
        return {"problem": str(error)}
    alternatives = request.alternative_names
    signer = SIGNERS.get(spec.get("signerName") or "")
    return _present(
        {
            "subject": _subject(request.subject),
            "dnsNames": list(alternatives.dns),
            "ipAddresses": [str(address) for address in alternatives.ips],
            "emailAddresses": list(alternatives.emails),
            "uris": list(alternatives.uris),
            "key": {"algorithm": request.key_algorithm, "fingerprint": fingerprint(request)},
            "refusedBySigner": signer.refusals(request, spec.get("usages") or ()) if signer else None,
        }
    )


def _subject(subject: DistinguishedName) -> dict[str, Any]:
    return _present(
        {
            "commonName": names.common_name(subject),
            "organizations": list(names.organizations(subject)),
            "text": subject.rfc4514_string(),
        }
    )


def _certificate(text: object, now: datetime) -> dict[str, Any]:
    if not text:
        return {}
    try:
        leaf = bundles.certificates(base64_field(text))[0]
    except PkiError as error:
        return {"problem": str(error)}
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return {
        "serialNumber": f"{leaf.serial_number:x}",
        "subject": leaf.subject.rfc4514_string(),
        "issuer": leaf.issuer.rfc4514_string(),
        "notBefore": rfc3339(begin),
        "notAfter": rfc3339(end),
        "valid": begin <= now < end,
        "fingerprint": f"sha256:{leaf.fingerprint}",
    }


# `mooring csr list`: list certificate signing requests.
#
# Rules kept here: `-o wide` begins with kubectl's columns. The table has what a person decides by. It cuts names to a unique
# beginning, which every verb takes. `-o json|yaml` prints the objects of the server.

HEADERS = ("NAME", "AGE", "NODE", "CONDITION", "SOURCE")


@click.command("list")
@click.option("--signer", default="", metavar="NAME", help="Only requests for this signer.")
@click.option("--pending", is_flag=True, help="Only requests without a decision.")
@output_option(*LISTED)
@cluster_options
def list_requests(signer: str, pending: bool, output: str, chosen: ChosenCluster) -> None:
    """List certificate signing requests, with the node, the reason for which one waits, and the address from which it came.

    Names are cut to a unique beginning, which every verb takes; -o wide and -o name print all of them.
    """
    selector = f"spec.signerName={signer}" if signer else ""
    found: Sequence[Obj] = chosen.run_with_retries(lambda client: client.list(PLURAL, field_selector=selector)).items
    if pending:
        found = [obj for obj in found if is_undecided(obj)]
    print_list(found, output, chosen.clock.now())


def print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    """Print requests in one of the forms of a list."""
    if form in ("json", "yaml"):
        printing.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No certificate signing requests found.", err=True)
    elif form == "wide":
        columns = KIND.resource.columns
        rows = [
            [
                *(str(column.cell(obj, now)) for column in columns),
                *_wide_cells(csr_details(obj, now).get("request") or {}),
            ]
            for obj in found
        ]
        printing.print_table([*(column.name.upper() for column in columns), "SUBJECT", "KEY"], rows)
    else:
        names = beginnings([obj["metadata"]["name"] for obj in found])
        printing.print_table(HEADERS, [_cells(obj, name, now) for obj, name in zip(found, names, strict=True)])


def _cells(obj: Obj, name: str, now: datetime) -> Sequence[str]:
    condition, reason = str(_CONDITION.cell(obj, now)), reason_of(obj)
    rule = join_rule_name((obj.get("spec") or {}).get("username", ""))
    return (
        name,
        age(obj["metadata"].get("creationTimestamp"), now),
        requested_node(obj) or "<none>",
        f"{condition}: {reason}" if reason else condition,
        " ".join(filter(None, (source_address_of(obj), f"(rule {rule})" if rule else ""))) or "<none>",
    )


def beginnings(names: Sequence[str]) -> Sequence[str]:
    """Return a beginning of each name that no other name has, of SHOWN_NAME characters or more."""
    ordered = sorted(names)
    needed = dict.fromkeys(ordered, SHOWN_NAME)
    for one, other in pairwise(ordered):
        shared = 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        needed[one], needed[other] = max(needed[one], shared), max(needed[other], shared)
    return [name[: needed[name]] for name in names]


def _wide_cells(request: dict[str, Any]) -> list[str]:
    if "problem" in request:
        return [f"<unreadable: {request['problem']}>", "<none>"]
    return [request.get("subject", {}).get("text", "<none>"), request["key"]["fingerprint"]]


# Difference between a request for a node's certificate and what the name of the node had before.
#
# Rules kept here:
# * The name is that of the subject. Its NodeIdentity holds the keys, the token and the address of before. The Node holds the
#   names and addresses of the machine, with which those of a serving certificate are compared.
# * An object that is missing, or that the user may not read, is left out without an error. Another Kubernetes has no
#   NodeIdentity.


@dataclass(frozen=True, slots=True)
class Before:
    """Objects that the name of a node has now: its NodeIdentity and its Node, where there are any."""

    node_name: str
    identity: Obj | None
    node: Obj | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One line: what it is about, the value of before, and that of the request. Empty texts mean none."""

    label: str
    old: str
    new: str

    @property
    def changed(self) -> bool:
        return self.old != self.new


async def fetch_before(client: ClusterClient, details: dict[str, Any]) -> Before | None:
    """Return what the node of a request has now; None for a request that is not for a node. Raises ApiError, PeerError."""
    common_name = details.get("request", {}).get("subject", {}).get("commonName", "")
    if not common_name.startswith(NODE_PREFIX):
        return None
    name = common_name.removeprefix(NODE_PREFIX)
    return Before(name, await _found(client, nodeidentity.PLURAL, name), await _found(client, "nodes", name))


async def _found(client: ClusterClient, plural: str, name: str, namespace: str = "") -> Obj | None:
    try:
        return await client.get(plural, name, namespace)
    except (NotFoundError, ForbiddenError):
        return None


def differences(obj: Obj, details: dict[str, Any], before: Before) -> list[Difference]:
    """Return what a person compares before a decision."""
    request, requester = details.get("request", {}), details.get("requester", {}).get("username", "")
    recorded = spec_of(before.identity) if before.identity is not None else {}
    keys = nodeidentity.keys_of(before.identity) if before.identity is not None else []
    newest = keys[-1] if keys else {}
    token = requester.removeprefix(BOOTSTRAP_USER_PREFIX)
    found = [
        Difference("Source address", recorded.get("sourceAddress", ""), source_address_of(obj)),
        Difference("Token", recorded.get("token", ""), token if token != requester else ""),
        Difference("Join rule", recorded.get("joinRule", ""), join_rule_name(requester)),
        Difference("Node", before.node["metadata"].get("uid", "") if before.node else "", ""),
    ]
    if details.get("signerName") == KUBELET_SERVING:
        status = (before.node.get("status") or {}) if before.node else {}
        reported = sorted({one.get("address", "") for one in status.get("addresses") or ()})
        asked = sorted((*request.get("dnsNames", ()), *request.get("ipAddresses", ())))
        return [Difference("Names and addresses", ", ".join(reported), ", ".join(asked)), *found]
    key = request.get("key", {}).get("fingerprint", "")
    has_key = any(one.get("publicKey") == key for one in keys)
    return [
        Difference("Key", key if has_key else newest.get("publicKey", ""), key),
        *found,
        Difference("Certificate serial", newest.get("serialNumber", ""), ""),
        Difference("Certificate expiry", newest.get("notAfter", ""), ""),
    ]


def document(obj: Obj, details: dict[str, Any], before: Before) -> dict[str, Any]:
    """Return the difference for JSON and YAML."""
    lines = differences(obj, details, before)
    return {
        "nodeName": before.node_name,
        "recorded": before.identity is not None,
        "fields": [{"field": one.label, "old": one.old, "new": one.new} for one in lines],
    }


def text_lines(obj: Obj, details: dict[str, Any], before: Before) -> list[tuple[str, str, bool]]:
    """Return (label, text, whether a person must look at it) for each line."""
    if before.identity is None and before.node is None:
        return [("Before", f'nothing is recorded about node "{before.node_name}"', False)]
    lines = []
    for one in differences(obj, details, before):
        if not one.old and not one.new:
            continue
        if one.label.startswith("Certificate") or one.label == "Node":
            lines.append((f"Before: {one.label.lower()}", one.old, False))
        elif one.changed:
            lines.append((one.label, f"{one.old or '<none>'} -> {one.new or '<none>'}", bool(one.old)))
        else:
            lines.append((one.label, f"{one.new} (as before)", False))
    return lines


# `mooring csr show`: show the details of certificate signing requests, before and after they are decided.
#
# Rules kept here: `-o json|yaml` prints the details (`mooring.cli.csr.show`) in one document.

Shown = tuple[Obj, dict[str, Any], Before | None]
"""A request, its details, and what its node had before; None for a decided request and for one that is not for a node."""


@click.command("show")
@click.argument("name", nargs=-1, type=REQUEST, required=True, shell_complete=complete_request)
@output_option("text", "wide", "json", "yaml", "name")
@cluster_options
def show(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Show the details of certificate signing requests.

    Before you approve a request, compare the fingerprint of its key with the one that the machine prints.
    """
    clock = chosen.clock

    async def fetch(client: ClusterClient) -> Sequence[Shown]:
        found = [await chosen.retry(partial(resolve, client, one, waiting=False)) for one in name]
        return [await chosen.retry(partial(shown, client, obj, clock.now())) for objs, _ in found for obj in objs]

    _print_requests(chosen.run(fetch), output, clock.now())


async def shown(client: ClusterClient, obj: Obj, now: datetime) -> Shown:
    """Return a request with its details and what its node had before. Raises ApiError, PeerError."""
    details = csr_details(obj, now)
    if identity := _identity(obj):
        details["requester"]["identityToken"] = identity
    if token := bootstrap_token_id(spec_of(obj).get("username", "")):
        details["requester"]["token"] = await _token(client, token)
    return obj, details, await fetch_before(client, details) if is_undecided(obj) else None


async def _token(client: ClusterClient, token_id: str) -> dict[str, Any]:
    """Return what a person knows a token by. Its description is missing where the token is gone, or may not be read."""
    secret = await _found(client, "secrets", secret_name(token_id), NAMESPACE)
    encoded = ((secret or {}).get("data") or {}).get(KEY_DESCRIPTION)
    return _present({"id": token_id, "description": base64_field(encoded).decode("utf-8", "replace")})


def _identity(obj: Obj) -> dict[str, Any]:
    """Return the join rule of a request, with issuer and subject of the identity token; empty for another requester."""
    spec = spec_of(obj)
    rule = join_rule_name(spec.get("username", ""))
    try:
        found = join_identity(spec.get("username", ""), spec.get("extra") or {})
    except JoinRuleError as error:
        return {"joinRule": rule, "problem": str(error)}
    return {} if found is None else _present({"joinRule": rule, "issuer": found.issuer, "subject": found.subject})


def _print_requests(requests: Sequence[Shown], form: str, now: datetime) -> None:
    found = [obj for obj, _, _ in requests]
    documents = [
        details if before is None else {**details, "before": document(obj, details, before)}
        for obj, details, before in requests
    ]
    if form in ("json", "yaml"):
        items = documents[0] if len(documents) == 1 else {"kind": "List", "apiVersion": "v1", "items": documents}
        printing.print_document(items, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    else:
        for index, one in enumerate(requests):
            if index:
                echo()
            print_request(one, now)
            obj = one[0]
            if form == "wide":
                for text in (obj["spec"].get("request"), (obj.get("status") or {}).get("certificate")):
                    echo(*base64_field(text).decode("ascii", "replace").rstrip().split("\n"))


def print_request(request: Shown, now: datetime) -> None:
    """Print the details of one request, and the difference to what its node had before, coloured on a terminal."""
    obj, details, before = request
    for label, value in lines(details, now):
        echo(f"{label + ':':<22}{value}")
    if before is None:
        return
    echo(f'Compared with what node "{before.node_name}" had:')
    for label, value, matters in text_lines(obj, details, before):
        (highlight if matters else echo)(f"  {label + ':':<28}{value}")


def _token_text(token: dict[str, Any]) -> str:
    return " ".join(filter(None, (token.get("id"), f"({token['description']})" if "description" in token else "")))


def lines(details: dict[str, Any], now: datetime) -> list[tuple[str, str]]:
    """Return the details as labelled lines."""
    request, requester = details.get("request", {}), details.get("requester", {})
    certificate, subject = details.get("certificate", {}), request.get("subject", {})
    seconds = details.get("expirationSeconds")
    labelled = [
        ("Name", details["name"]),
        ("Age", age(details.get("created"), now)),
        ("Condition", details["condition"]),
        ("Requester", requester.get("username", "<none>")),
        ("Token", _token_text(requester.get("token", {}))),
        ("Join rule", requester.get("identityToken", {}).get("joinRule", "")),
        ("Token issuer", requester.get("identityToken", {}).get("issuer", "")),
        ("Token subject", requester.get("identityToken", {}).get("subject", "")),
        ("Token unreadable", requester.get("identityToken", {}).get("problem", "")),
        ("Source address", details.get("sourceAddress", "")),
        *((f"Says {name}", f"{value} (not verified)") for name, value in details.get("saidByMachine", {}).items()),
        ("Requester groups", ", ".join(requester.get("groups", ()))),
        ("Signer", details.get("signerName", "<none>")),
        ("Usages", ", ".join(details.get("usages", ()))),
        ("Requested duration", human_duration(timedelta(seconds=seconds)) if seconds else ""),
        ("Subject", subject.get("text", "")),
        ("DNS names", ", ".join(request.get("dnsNames", ()))),
        ("IP addresses", ", ".join(request.get("ipAddresses", ()))),
        ("Email addresses", ", ".join(request.get("emailAddresses", ()))),
        ("URIs", ", ".join(request.get("uris", ()))),
        ("Key type", request.get("key", {}).get("algorithm", "")),
        ("Key fingerprint", request.get("key", {}).get("fingerprint", "")),
        ("Request unreadable", request.get("problem", "")),
        ("Signer would refuse", "; ".join(request.get("refusedBySigner", ()))),
    ]
    for condition in details.get("conditions", ()):
        reason = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
        labelled.append((str(condition.get("type")), reason or "<no reason>"))
    if "problem" in certificate:
        labelled.append(("Certificate", f"unreadable: {certificate['problem']}"))
    elif certificate:
        labelled += [
            ("Certificate serial", certificate["serialNumber"]),
            ("Certificate issuer", certificate["issuer"]),
            (
                "Valid",
                f"{certificate['notBefore']} to {certificate['notAfter']}"
                + ("" if certificate["valid"] else " (not now)"),
            ),
        ]
    return [(label, value) for label, value in labelled if value]
