"""Table of the sections of `mooring status`, in the order of the screen.

Rules kept here:
* A section has a document for JSON and YAML, and lines for the screen. No secret is in either.
* A section lists at most SHOWN of its things by name, and names the command that lists the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from mooring.api.certificates.requestrecords import APPROVED, conditions_of, source_address_of
from mooring.api.certificates.requeststate import is_approved_and_unsigned, is_undecided
from mooring.api.mooring.certificateauthorityrollover import ENDED as ENDED_PHASES
from mooring.api.mooring.certificateauthorityrollover import status_of
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.nodeidentity import SILENT
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import restorecheck
from mooring.cli.csr.show import csr_details
from mooring.cli.node.machines import ENDED, READY, STATES, TWO_MACHINES, KnownMachine, age, until
from mooring.cli.printing import MAX_CELL, clean
from mooring.cli.status.gathering import Gathering, Section
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import read_version
from mooring.clock import parse_rfc3339
from mooring.controllers import silence
from mooring.errors import ApiError, ForbiddenError, MooringError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.trust.answertext import is_mooring
from mooring.trust.bootstraptoken.restrictions import joined_keys
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION, TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE as TOKEN_NAMESPACE
from mooring.trust.bootstraptoken.tokensecret import SECRET_TYPE, from_secret
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.editedclusterinfo import (
    PUBLISHED_CAS,
    annotations_of,
    credentials_in,
    is_edited,
    join_problem,
    published_id,
)
from mooring.trust.encryption import keychange

SHOWN = 5
"""Things of one section that are named on the screen."""
SYSTEM = "kube-system"
OWN_LEASE = "mooring-controllers"
"""Lease of the server that runs the controllers of its cluster."""
STANDALONE_LEASE = "mooring-standalone-controllers"
"""Lease of `mooring controllers`. Its own module would import every controller, in 0.3 s."""
LEASES = {
    OWN_LEASE: (SYSTEM,),
    STANDALONE_LEASE: (),
    "kube-controller-manager": (SYSTEM,),
}
"""Leases of processes that run controllers, each with the one namespace in which it can be; () for any."""
USUAL_NAMESPACES = (SYSTEM, "mooring-system")
"""Namespaces of standalone controllers without a flag, and of those that `mooring controllers manifests` installs."""
NEW = timedelta(seconds=5)
"""Age up to which a request is new: controllers decide within a second, and those of a busy cluster within some."""
_NEW = "new: the controllers decide within seconds"
_UNDECIDED = "no controller approves requests of this signer or user"
_UNPUBLISHED = (
    "none for Pods: the Service default/kubernetes leads to no server; "
    "give a server an --advertise-address that is not loopback"
)
_UNREAD = "this user may not list the Leases of all namespaces"
_UNSIGNED = "approved, and not signed yet"


async def _cluster(gathering: Gathering) -> Obj:
    version = await read_version(gathering.client)
    return {"server": gathering.client.server, "version": version, "isMooring": is_mooring(version)}


def _cluster_lines(found: Obj, now: datetime) -> Sequence[str]:
    version = "" if found["isMooring"] else f", Kubernetes {found['version']}, not Mooring"
    return [f"{found['server']}{version}"]


async def _servers(gathering: Gathering) -> Obj:
    reports = await gathering.reports()
    servers = [server(one.address, one.report, one.problem) for one in reports]
    if not any("name" in one for one in servers) and len(servers) == 1:
        # Raises.
        await gathering.report()
    return {"servers": servers}


def server(address: str, report: Obj | None, problem: str) -> Obj:
    if report is None:
        return {"address": address, "problem": problem}
    serving = _certificate(report, "serving-certificate")
    return {
        "address": address,
        "name": report["server"],
        "version": report["version"],
        # An older server does not tell.
        "commit": report.get("commit", ""),
        "workers": report["workers"],
        "publishedAddresses": report["addresses"],
        "lostAddresses": report.get("lostAddresses", []),
        "servingCertificateEnds": serving.get("notAfter", ""),
        "auditProblem": report.get("auditLog", {}).get("problem", ""),
        **({"notices": report["notices"]} if "notices" in report else {}),
    }


def _certificate(report: Obj, name: str) -> Obj:
    found: Obj = next((one for one in report["certificates"] if one["name"] == name), {})
    return found


def server_lines(found: Obj, now: datetime) -> Sequence[str]:
    return [
        f"{one['address']}: {one['problem']}"
        if "problem" in one
        else f"{one['address']}: {one['name']}, {one['version']}, {_count(one['workers'], 'worker')}, "
        f"serving certificate ends {until(one['servingCertificateEnds'], now)}"
        + "".join(f"; its machine lost {lost}: restart it" for lost in one["lostAddresses"])
        + (f"; audit log: {one['auditProblem']}" if one["auditProblem"] else "")
        + _notices(one.get("notices"))
        for one in found["servers"]
    ]


def _notices(found: Obj | None) -> str:
    """Return what to know of a server's notices; "" without a receiver."""
    if found is None:
        return ""
    words = {"waiting": "waiting", "dropped": "dropped or refused"}
    numbers = [f"{found[name]} {word}" for name, word in words.items() if found[name]]
    return f"; notices to {', '.join((found['host'], *numbers))}" + (
        f": {found['problem']}" if found["problem"] else ""
    )


async def _addresses(gathering: Gathering) -> Obj:
    try:
        endpoints = await gathering.client.get("endpoints", "kubernetes", "default")
    except NotFoundError:
        return {"addresses": []}
    subsets = endpoints.get("subsets") or []
    return {"addresses": [one["ip"] for subset in subsets for one in subset.get("addresses") or []]}


def _address_lines(found: Obj, now: datetime) -> Sequence[str]:
    return [", ".join(found["addresses"]) or _UNPUBLISHED]


async def _leader(gathering: Gathering) -> Obj:
    answers = await asyncio.gather(*(_leases(gathering.client, *row) for row in LEASES.items()))
    leases = [lease for found, _ in answers for lease in found]
    return controllers(leases, gathering.now, are_all=all(are_all for _, are_all in answers))


async def _leases(client: ClusterClient, name: str, namespaces: Sequence[str]) -> tuple[list[Obj], bool]:
    """Return the Leases of a name that the user may read, and whether these are all. Without `namespaces`: of any namespace."""
    found, are_all = [], True
    if not namespaces:
        try:
            return list((await client.list("leases", field_selector=f"metadata.name={name}")).items), True
        except ForbiddenError:
            namespaces, are_all = USUAL_NAMESPACES, False
    for namespace in namespaces:
        try:
            found.append(await client.get("leases", name, namespace))
        except NotFoundError:
            continue
        except ForbiddenError:
            are_all = False
    return found, are_all


def controllers(leases: Iterable[Obj], now: datetime, *, are_all: bool) -> Obj:
    """Return which processes run controllers. Without `are_all` others may hold Leases that the user may not read."""
    held = [lease for lease in leases if spec_of(lease).get("holderIdentity")]
    is_live = {id(lease) for lease in keychange.live_servers(held, now)}
    running = [
        {
            "holder": spec_of(lease)["holderIdentity"],
            "lease": f"{lease['metadata']['namespace']}/{lease['metadata']['name']}",
        }
        | ({} if id(lease) in is_live else {"lastRenewed": str(spec_of(lease).get("renewTime") or "")})
        for lease in held
    ]
    running.sort(key=lambda one: "lastRenewed" in one)
    holder = next((one["holder"] for one in running if "lastRenewed" not in one), "")
    return {"holder": holder, "leases": running, **({} if are_all else {"unknown": _UNREAD})}


def _leader_lines(found: Obj, now: datetime) -> Sequence[str]:
    lines = [
        f"silent for {age(one['lastRenewed'], now)}: {one['holder']}, Lease {one['lease']}"
        if "lastRenewed" in one
        else f"on {one['holder']}{'' if one['lease'] == f'{SYSTEM}/{OWN_LEASE}' else ', Lease ' + one['lease']}"
        for one in found["leases"]
        if "lastRenewed" not in one or not found["holder"]
    ]
    if found.get("unknown"):
        lines.append(f"{'others ' if found['holder'] else ''}unknown, because {found['unknown']}")
    return [clean(line, MAX_CELL) for line in lines[:SHOWN]] or [
        f"none found: no process holds the Lease {', '.join(LEASES)}"
    ]


async def _ca(gathering: Gathering) -> Obj:
    ca = _certificate(await gathering.report(), "ca")
    return {"ends": ca.get("notAfter", ""), "serialNumber": ca.get("serialNumber", "")}


def _ca_lines(found: Obj, now: datetime) -> Sequence[str]:
    return [f"ends {until(found['ends'], now)}"]


async def _cluster_info(gathering: Gathering) -> Obj:
    try:
        config_map = await gathering.client.get("configmaps", clusterinfo.NAME, clusterinfo.NAMESPACE)
    except NotFoundError:
        return {"kept": False, "edited": False, "problem": join_problem(None), "credentials": [], "clusterID": ""}
    return cluster_info(config_map, gathering.selected.cluster.ca_pem)


def cluster_info(config_map: Obj, known_ca_pem: bytes) -> Obj:
    """Return what is to be known of cluster-info. `known_ca_pem`: CAs by which this client verifies the server, and prints pins."""
    is_kept = PUBLISHED_CAS in annotations_of(config_map)
    return {
        "kept": is_kept,
        "edited": is_kept and is_edited(config_map),
        "problem": join_problem(config_map, known_ca_pem),
        "credentials": list(credentials_in(config_map)),
        "clusterID": published_id(config_map),
    }


def _cluster_info_lines(found: Obj, now: datetime) -> Sequence[str]:
    edited = "edited: kept as the administrator left it, only the CAs of the cluster in it follow"
    is_in_order = found["kept"] and not found["problem"]
    parts = [edited] if found["edited"] else ["as the server writes it"] if is_in_order else []
    parts += [f"cluster id {found['clusterID']}"] if found["clusterID"] else []
    parts += [f"problem: {found['problem']}"] if found["problem"] else []
    parts += [f"public credentials: {one}" for one in found["credentials"][:SHOWN]]
    if (more := len(found["credentials"]) - SHOWN) > 0:
        parts.append(f"  and {more} more: kubectl -n {clusterinfo.NAMESPACE} get configmap {clusterinfo.NAME} -o yaml")
    return [clean(one, MAX_CELL) for one in parts or ["Mooring does not keep it up to date"]]


async def _rollover(gathering: Gathering) -> Obj:
    rollover = await gathering.rollover()
    if rollover is None:
        return {"phase": "", "wanted": "", "message": "", "machinesBehind": None}
    status = status_of(rollover)
    phase = status.get("phase", "")
    return {
        "phase": phase,
        "wanted": "" if phase in ENDED_PHASES else spec_of(rollover).get("phase", ""),
        "message": status.get("message", ""),
        # None: this phase does not count them.
        "machinesBehind": status.get("machinesBehindTotal"),
    }


def _rollover_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["phase"] and not found["wanted"]:
        return ["none"]
    wanted = f", {found['wanted']} is wanted" if found["wanted"] not in ("", found["phase"]) else ""
    behind = f", {_count(found['machinesBehind'], 'machine')} behind" if found["machinesBehind"] else ""
    return [f"{found['phase'] or 'not begun'}{wanted}{behind}", *([found["message"]] if found["message"] else [])]


async def held_back(client: ClusterClient) -> tuple[int, str]:
    """Return how many removals of silent machines are held back, and why; 0 where the cluster does not say so."""
    try:
        data = (await client.get("configmaps", silence.MARK, silence.MARK_NAMESPACE)).get("data") or {}
        return max(0, int(data.get(silence.HELD_BACK, "0"))), str(data.get(silence.MESSAGE, ""))
    except (MooringError, ValueError):
        # The section has more to show.
        return 0, ""


async def _machines(gathering: Gathering) -> Obj:
    machines, rollover = await asyncio.gather(gathering.machines(), gathering.rollover(), return_exceptions=True)
    if isinstance(machines, BaseException):
        raise machines
    held, reason = await held_back(gathering.client)
    named = status_of(rollover).get("machinesBehind") or [] if isinstance(rollover, dict) else []
    behind = {one["name"]: one.get("reason", "") for one in named}
    members = [one for one in machines if one.state != ENDED]
    counts = Counter(one.state for one in members)
    findings = [attention(one, behind.get(one.name)) for one in members]
    return {
        "total": len(members),
        "states": {state: counts[state] for state in STATES if counts[state]},
        "behind": sum(one.name in behind for one in members),
        "attention": [found for found in findings if "message" in found or found["state"] != READY],
        "endedBySilence": sum(one.end_reason == SILENT for one in machines),
        "heldBack": held,
        "heldBackReason": reason,
    }


def attention(one: KnownMachine, behind: str | None) -> Obj:
    """Return a machine with its state, and a message where it needs a person. `behind`: why a rollover waits for it."""
    has_lapsed = bool(one.certificates) and one.certificate is None
    problems = [
        one.message if one.state != READY else "",
        "the server accepts none of its certificates" if has_lapsed else "",
        f"behind the rollover: {behind}" if behind is not None else "",
        f"{TWO_MACHINES}: mooring node show {one.name}" if one.is_duplicate else "",
    ]
    message = "; ".join(filter(None, problems))
    return {"name": one.name, "state": one.state, **({"message": message} if message else {})}


def _machine_lines(found: Obj, now: datetime) -> Sequence[str]:
    parts = [f"{number} {state}" for state, number in found["states"].items()]
    parts += [f"{found['behind']} behind"] if found["behind"] else []
    rows = [(one["name"], one["state"], one.get("message", "")) for one in found["attention"]]
    ended = f"; {found['endedBySilence']} {ENDED}: {SILENT}" if found.get("endedBySilence") else ""
    lines = [f"{found['total']}{': ' if parts else ''}{', '.join(parts)}{ended}"]
    if held := found.get("heldBack", 0):
        reason = f": {found['heldBackReason']}" if found.get("heldBackReason") else ""
        lines.append(clean(f"{_count(held, 'removal')} of silent machines held back{reason}", MAX_CELL))
    return [*lines, *_named(rows, "mooring node list")]


async def _requests(gathering: Gathering) -> Obj:
    listed = await gathering.client.list("certificatesigningrequests")
    waiting = [
        request(one, gathering.now) for one in listed.items if is_undecided(one) or is_approved_and_unsigned(one)
    ]
    return {"waiting": sorted(waiting, key=lambda one: (one["created"], one["name"]))}


def request(obj: Obj, now: datetime) -> Obj:
    """Return a request that waits for a decision or for its signer, with the machine and the reason."""
    details = csr_details(obj, now)
    subject = details.get("request", {}).get("subject", {}).get("commonName", "")
    latest: Obj = next((one for one in reversed(conditions_of(obj)) if one.get("type") != APPROVED), {})
    refused = "; ".join(details.get("request", {}).get("refusedBySigner", ()))
    is_new = (
        "created" in details and abs(now - parse_rfc3339(details["created"])) < NEW
    )  # clocks of two machines differ
    otherwise = _NEW if is_new else _UNDECIDED if is_undecided(obj) else _UNSIGNED
    return {
        "name": details["name"],
        "machine": subject.removeprefix(NODE_PREFIX),
        "requester": details.get("requester", {}).get("username", ""),
        "signer": details.get("signerName", ""),
        "from": source_address_of(obj),
        "created": details.get("created", ""),
        "reason": latest.get("message") or refused or otherwise,
    }


def _request_lines(found: Obj, now: datetime) -> Sequence[str]:
    waiting = found["waiting"]
    rows = [
        (one["name"], one["machine"], one["from"] or one["requester"], age(one["created"], now), one["reason"])
        for one in waiting
    ]
    return [
        _count(len(waiting), "request") + " waiting" if waiting else "none",
        *_named(rows, "mooring csr list --pending"),
    ]


async def _tokens(gathering: Gathering) -> Obj:
    listed = await gathering.client.list("secrets", TOKEN_NAMESPACE, field_selector=f"type={SECRET_TYPE}")
    states = Counter[str]()
    for secret in listed.items:
        states.update(token_states(secret, gathering.now))
    names = ("live", "unlimited", "neverExpire", "usedUp", "expired", "unreadable")
    return {"total": len(listed.items), **{name: states[name] for name in names}}


def token_states(secret: Obj, now: datetime) -> Iterable[str]:
    """Yield what a token counts as. Unlimited: any number of machines may join with it."""
    try:
        record, joined = from_secret(secret), len(joined_keys(secret))
    except TokenError:
        yield "unreadable"
        return
    most = record.restrictions.max_joins
    if record.expires is not None and record.expires <= now:
        yield "expired"
    elif most is not None and joined >= most:
        yield "usedUp"
    else:
        yield "live"
        if most is None and USAGE_AUTHENTICATION in record.usages:
            yield "unlimited"
        if record.expires is None:
            yield "neverExpire"


def _token_lines(found: Obj, now: datetime) -> Sequence[str]:
    words = {
        "unlimited": "for any number of machines",
        "neverExpire": "without an end",
        "usedUp": "used up",
        "expired": "expired",
        "unreadable": "unreadable",
    }
    others = [f"{found[name]} {text}" for name, text in words.items() if found[name]]
    return [", ".join([f"{found['live']} live", *others])]


async def _join_rules(gathering: Gathering) -> Obj:
    listed = await gathering.client.list(JOIN_RULES)
    reports = [one.report for one in await gathering.reports() if one.report is not None]
    # An older server does not tell.
    unready = [issuer for report in reports for issuer in report.get("joinRuleIssuers", [])]
    return {"total": len(listed.items), "unreadyIssuers": unready}


def join_rule_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["total"]:
        return ["none"]
    lines = [
        f"{one['issuer']} does not give its keys: {one['problem']}"
        + (f"; the known ones count until {one['keysKnownUntil']}" if one["keysKnownUntil"] else "")
        for one in found["unreadyIssuers"]
    ]
    return [clean(line, MAX_CELL) for line in (str(found["total"]), *dict.fromkeys(lines))][: SHOWN + 1]


async def _revocations(gathering: Gathering) -> Obj:
    entries = (await gathering.client.list("certificaterevocations")).items
    newest = max((one["metadata"].get("creationTimestamp", "") for one in entries), default="")
    return {"entries": len(entries), "newest": newest}


def _revocation_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["entries"]:
        return ["none"]
    word = "entry" if found["entries"] == 1 else "entries"
    return [f"{found['entries']} {word} on the denylist, the newest {age(found['newest'], now)} old"]


async def _encryption(gathering: Gathering) -> Obj:
    report, listed = await asyncio.gather(
        gathering.report(), gathering.client.list("leases", SYSTEM, label_selector=keychange.SERVER_LABEL)
    )
    found: Obj = report["encryption"]
    servers = keychange.live_servers(listed.items, gathering.now)
    behind = keychange.servers_behind(servers, found["configHash"]) if found["configured"] else ()
    return {**found, "serversWithAnotherFile": list(behind)}


def _encryption_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["configured"]:
        return ["stored objects are not encrypted"]
    behind = found["serversWithAnotherFile"]
    plain = "" if found.get("encryptsSecrets", True) else "; Secrets are written as they are"
    return [f"on, by the file {found['configHash'][:19]}{plain}", *(f"another file: {one}" for one in behind[:SHOWN])]


async def _snapshot(gathering: Gathering) -> Obj:
    # Raises where there is none.
    await gathering.report()
    reports = [one.report["snapshots"] for one in await gathering.reports() if one.report is not None]
    made = [one["last"] for one in reports if one["last"] and "time" in one["last"]]
    problems = [one["problem"] for one in reports if one["problem"]]
    return {
        "scheduled": any(one["scheduled"] for one in reports),
        "last": max(made, key=lambda one: parse_rfc3339(one["time"]), default=None),
        "failure": next(iter(problems), ""),
    }


def _snapshot_lines(found: Obj, now: datetime) -> Sequence[str]:
    last = found["last"]
    lines = [f"{age(last['time'], now)} ago: {last['file']}, {size_text(last['bytes'])}" if last else "none"]
    if not found["scheduled"]:
        lines[0] += "; no schedule (--snapshot-schedule-cron)"
    return [*lines, *([f"the last one failed: {found['failure']}"] if found["failure"] else [])]


async def _store(gathering: Gathering) -> Obj:
    found: Obj = (await gathering.report())["store"]
    return {**found, "serves": not found["problem"] and not found.get("refusesWrites")}


def _store_lines(found: Obj, now: datetime) -> Sequence[str]:
    size = f", {size_text(found['bytes'])}" if "bytes" in found else ""
    unreadable = found["unreadableObjects"]
    serves = "serves" if found["serves"] else "does not serve" if found["problem"] else "serves reads, and writes fail"
    return [
        f"{found['kind']}{size}, revision {found['revision']}, {serves}",
        *([found["problem"]] if found["problem"] else []),
        *([f"alarm: {found['alarm']}"] if found["alarm"] else []),
        *([f"{_count(unreadable, 'object')} cannot be read"] if unreadable else []),
    ]


async def _restore_check(gathering: Gathering) -> Obj:
    return {"waiting": len(restorecheck.waiting(await restorecheck.fetch(gathering.client)))}


def _restore_check_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["waiting"]:
        return []
    return [
        f"{_count(found['waiting'], 'tombstone')} to settle, and nothing is issued meanwhile: mooring restore-check list"
    ]


async def _health(gathering: Gathering) -> Obj:
    try:
        text = (await gathering.client.read("/readyz?verbose")).decode("utf-8", "replace")
    except ApiError as error:
        return {"ready": False, "failing": [error.message], "warnings": []}
    found: dict[str, list[str]] = {"[-]": [], "[!]": []}
    for line in text.splitlines():
        if line[:3] in found:
            found[line[:3]].append(line[3:].split()[0])
    return {"ready": True, "failing": found["[-]"], "warnings": found["[!]"]}


def _health_lines(found: Obj, now: datetime) -> Sequence[str]:
    if not found["ready"] or found["failing"]:
        return [f"not ready: {', '.join(found['failing'])}"]
    return [f"ready, with warnings: {', '.join(found['warnings'])}" if found["warnings"] else "ready"]


def _named(rows: Sequence[Sequence[str]], command: str) -> list[str]:
    """Return aligned lines of the first rows, and one with the command that lists the others."""
    shown = [[clean(cell, MAX_CELL) for cell in row] for row in rows[:SHOWN]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))] if shown else []
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
    ]
    return [*lines, *([f"  and {len(rows) - SHOWN} more: {command}"] if len(rows) > SHOWN else [])]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def size_text(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


SECTIONS: Mapping[str, Section] = MappingProxyType(
    {
        "cluster": Section("Cluster", _cluster, _cluster_lines),
        "health": Section("Health", _health, _health_lines),
        "servers": Section("Servers", _servers, server_lines),
        "addresses": Section("Addresses", _addresses, _address_lines),
        "controllers": Section("Controllers", _leader, _leader_lines),
        "ca": Section("CA", _ca, _ca_lines),
        "clusterInfo": Section("Cluster-info", _cluster_info, _cluster_info_lines),
        "rollover": Section("CA rollover", _rollover, _rollover_lines),
        "machines": Section("Machines", _machines, _machine_lines),
        "requests": Section("Requests", _requests, _request_lines),
        "tokens": Section("Tokens", _tokens, _token_lines),
        "joinRules": Section("Join rules", _join_rules, join_rule_lines),
        "revocations": Section("Revocations", _revocations, _revocation_lines),
        "encryption": Section("Encryption", _encryption, _encryption_lines),
        "snapshot": Section("Snapshot", _snapshot, _snapshot_lines),
        "store": Section("Store", _store, _store_lines),
        "restoreCheck": Section("Tombstones", _restore_check, _restore_check_lines),
    }
)
"""Every section by its name in documents."""
CHANGING = frozenset({("store", "revision"), ("store", "bytes")})
"""Fields that change all the time: a watch of documents does not print for them alone."""


def without_changing(found: Mapping[str, Obj]) -> dict[str, Any]:
    """Return the sections without the fields that change all the time."""
    return {
        name: {key: value for key, value in section.items() if (name, key) not in CHANGING}
        for name, section in found.items()
    }
