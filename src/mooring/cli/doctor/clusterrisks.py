"""`mooring doctor --cluster`: what in a cluster is at risk, why, and the command that mends it.

Rules kept here (docs/find-what-is-broken.md#risks-of-a-cluster):
* A check reads, and changes nothing. What the server does not tell, or the user may not read, makes it `skipped` with the reason,
  and never `ok`.
* A group that everybody or every bearer of a token is in has the rights that kubeadm, Kubernetes and Mooring give it. Each binding
  that gives it another one is a finding.
* An accepted finding is still shown, and does not affect the exit code: `ID` for all of a check, `ID/SUBJECT` for one. A check that
  could not be made is treated as a finding until it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import combinations

import click

from mooring.api.certificates.requeststate import is_issued, parsed_request, requested_node
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import BOOTSTRAP_LAST_USED
from mooring.authz.rbac.authorizer import ALL, CompiledRule, compile_rules
from mooring.authz.rbac.bootstrappolicy import default_policy, k3s_policy, kubeadm_policy
from mooring.authz.rbac.escalation import TooManyAtomsError, covers
from mooring.cli.cluster import ChosenCluster
from mooring.cli.node.machines import READY
from mooring.cli.printing import clean, echo, print_document
from mooring.cli.serverreport import NOT_SERVED, ServerReport
from mooring.cli.status.gathering import Gathering, unreadable
from mooring.cli.status.sections import token_states
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import NotMooringError
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.duration import format_duration
from mooring.errors import ApiError, NotFoundError, PeerError, qualified
from mooring.identity import (
    ANONYMOUS,
    AUTHENTICATED,
    BOOTSTRAPPERS,
    NODES,
    SERVICE_ACCOUNTS,
    UNAUTHENTICATED,
)
from mooring.settings.declaration import split_commas
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE as TOKEN_NAMESPACE
from mooring.trust.bootstraptoken.tokensecret import SECRET_TYPE, from_secret
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.joinrule import Condition, JoinRule, JoinRuleError, fits_pattern, read_rule
from mooring.trust.kubeconfig import Selected

HIGH, MEDIUM, LOW = SEVERITIES = ("high", "medium", "low")
OK, FOUND, SKIPPED = "ok", "found", "skipped"
LONG = timedelta(hours=25)
"""Life left to a token for any number of machines that is a finding: `token create` gives a day."""
IDLE = timedelta(days=7)
"""Time without a use after which a token is of no use."""
ENDS_SOON = timedelta(days=30)
"""Life left to a certificate that a person renews."""
APART = 5.0
"""Seconds between the clocks of two servers: half the time in which a Lease is renewed."""


@dataclass(frozen=True, slots=True)
class Risk:
    """One finding. `subject` is the thing that is at risk."""

    subject: str
    message: str
    remedy: str
    severity: str = ""
    """One of SEVERITIES; empty for that of the check."""

    def document(self, check: str, accepted: Collection[str]) -> Obj:
        """Return the finding for JSON and YAML."""
        return {
            "id": check,
            "severity": self.severity or CHECKS[check].severity,
            "subject": self.subject,
            "message": self.message,
            "why": CHECKS[check].why,
            "remedy": self.remedy,
            "accepted": check in accepted or f"{check}/{self.subject}" in accepted,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One check: why its findings are a risk, and how they are found. `find` raises ApiError, PeerError."""

    severity: str
    why: str
    find: Callable[[Gathering], Awaitable[Sequence[Risk]]]


# Tokens.


async def _tokens(gathering: Gathering) -> Sequence[Obj]:
    listing = partial(gathering.client.list, "secrets", TOKEN_NAMESPACE, field_selector=f"type={SECRET_TYPE}")
    return (await gathering.once("tokens", listing)).items


def of_tokens(
    judge: Callable[[Obj, Collection[str], datetime], Risk | None],
) -> Callable[[Gathering], Awaitable[Sequence[Risk]]]:
    """Return the finder that judges each token that can be read."""

    async def find(gathering: Gathering) -> Sequence[Risk]:
        found = []
        for secret in await _tokens(gathering):
            states = set(token_states(secret, gathering.now))
            risk = None if "unreadable" in states else judge(secret, states, gathering.now)
            found += [risk] if risk is not None else []
        return found

    return find


def endless_token(secret: Obj, states: Collection[str], now: datetime) -> Risk | None:
    """Judge the life of a token."""
    if "neverExpire" not in states:
        return None
    token_id = from_secret(secret).token.id
    return Risk(token_id, "it never expires", f"mooring token delete {token_id}; mooring token create --ttl 24h")


def unlimited_token(secret: Obj, states: Collection[str], now: datetime) -> Risk | None:
    """Judge the limits of a token that lives for longer than a day."""
    record = from_secret(secret)
    limits = record.restrictions
    is_limited = (
        limits.max_joins is not None
        or limits.require_approval
        or bool(limits.node_name.strip("*."))
        or (bool(limits.networks) and all(one.prefixlen for one in limits.networks))
    )
    if "unlimited" not in states or is_limited or (record.expires is not None and record.expires - now < LONG):
        return None
    return Risk(
        record.token.id,
        "it lets in any number of machines, under any name, from anywhere"
        + (f", for {human_duration(record.expires - now)} more" if record.expires is not None else ""),
        f"kubectl -n {TOKEN_NAMESPACE} annotate secret {secret['metadata']['name']} mooring.dev/max-joins=N",
    )


def idle_token(secret: Obj, states: Collection[str], now: datetime) -> Risk | None:
    """Judge whether a token is still of use."""
    metadata, token_id = secret["metadata"], from_secret(secret).token.id
    remedy = f"mooring token delete {token_id}"
    if "usedUp" in states:
        return Risk(token_id, "it has let in as many machines as it may", remedy)
    moments = (metadata.get("creationTimestamp"), (metadata.get("annotations") or {}).get(BOOTSTRAP_LAST_USED))
    try:
        last = max(parse_rfc3339(text) for text in moments if text)
    except ValueError:
        return None
    if "live" not in states or now - last < IDLE:
        return None
    return Risk(token_id, f"it was not used for {human_duration(now - last)}", remedy)


# Rights.

_EVERYBODY = {
    ANONYMOUS: (ANONYMOUS, UNAUTHENTICATED),
    UNAUTHENTICATED: (ANONYMOUS, UNAUTHENTICATED),
    AUTHENTICATED: (AUTHENTICATED, UNAUTHENTICATED),
    SERVICE_ACCOUNTS: (SERVICE_ACCOUNTS, AUTHENTICATED, UNAUTHENTICATED),
    NODES: (NODES, AUTHENTICATED, UNAUTHENTICATED),
}
"""Broad subjects, each with those whose usual rights it may have."""
_POWERFUL_VERBS = frozenset({ALL, "approve", "bind", "escalate", "impersonate", "sign"})
_POWERFUL_RESOURCES = frozenset(
    {ALL, "certificatesigningrequests/approval", "certificatesigningrequests/status", "nodes/proxy", "pods/exec", "secrets",
     "serviceaccounts/token"}
)  # fmt: skip
_OF_THE_CLUSTER = ("system:", "kubeadm:", "mooring:")
"""Prefixes of the users, groups and roles that a cluster brings."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding, with the rules of its role."""

    kind: str
    name: str
    namespace: str
    subjects: tuple[tuple[str, str], ...]
    """(kind, name) of each."""
    rules: tuple[CompiledRule, ...]

    @property
    def id(self) -> tuple[str, str, str]:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def subject(self) -> str:
        """The binding as the subject of a finding."""
        return "/".join(filter(None, self.id))

    @property
    def removal(self) -> str:
        """The command that takes the right away. A binding that the cluster brings is not deleted: it, or its role, was widened."""
        namespace, target = f" -n {self.namespace}" if self.namespace else "", f"{self.kind.lower()} {self.name}"
        if any(one.id == self.id for one in _usual()):
            return f"kubectl{namespace} edit {target}: take out the subject, or the rule out of its role"
        return f"kubectl{namespace} delete {target}"


def bindings_of(objects: Iterable[Obj]) -> Sequence[Binding]:
    """Return the bindings among RBAC objects that have their role there."""
    objects = tuple(objects)
    rules = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one.get("rules")
        for one in objects
        if one["kind"] in ("ClusterRole", "Role")
    }
    found = []
    for one in objects:
        if one["kind"] in ("ClusterRole", "Role"):
            continue
        namespace, reference = one["metadata"].get("namespace", ""), one["roleRef"]
        role = (reference["kind"], namespace if reference["kind"] == "Role" else "", reference["name"])
        subjects = tuple((subject.get("kind", ""), subject.get("name", "")) for subject in one.get("subjects") or ())
        found.append(Binding(one["kind"], one["metadata"]["name"], namespace, subjects, compile_rules(rules.get(role))))
    return found


@cache
def _usual() -> Sequence[Binding]:
    return bindings_of([*default_policy(), *kubeadm_policy(), *k3s_policy()])


def _usual_rules(subject: str, namespace: str) -> list[CompiledRule]:
    """Return the rules that a cluster gives to a broad subject, there."""
    equals = _EVERYBODY.get(subject, (AUTHENTICATED, UNAUTHENTICATED))
    is_token = subject.startswith(BOOTSTRAPPERS)
    return [
        rule
        for binding in _usual()
        if binding.namespace in ("", namespace)
        and any(name in equals or (is_token and name.startswith(BOOTSTRAPPERS)) for _, name in binding.subjects)
        for rule in binding.rules
    ]


def broad_rights(bindings: Iterable[Binding]) -> list[Risk]:
    """Return a finding for each binding that gives a group of everybody, or of every token, an unusual right."""
    found = []
    for binding in bindings:
        for kind, name in binding.subjects:
            is_broad = kind in ("Group", "User") and (name in _EVERYBODY or name.startswith(BOOTSTRAPPERS))
            if is_broad and (rights := _unusual(name, binding)):
                more = f" and {len(rights) - 1} more" if len(rights) > 1 else ""
                found.append(Risk(binding.subject, f"{name} may {rights[0]}{more}", binding.removal))
    return found


def _unusual(subject: str, binding: Binding) -> Sequence[str]:
    try:
        atoms: Iterable[Obj] = covers(_usual_rules(subject, binding.namespace), binding.rules)
    except TooManyAtomsError:
        return ["more than can be compared"]
    # Many clusters let every user and every program read something.
    if subject in (AUTHENTICATED, SERVICE_ACCOUNTS, NODES):
        atoms = [atom for atom in atoms if _is_powerful(atom)]
    verbs: dict[str, list[str]] = {}
    for atom in atoms:
        (group,), names = atom.get("apiGroups") or ("",), ",".join(atom.get("resourceNames", ()))
        resources = [qualified(resource, group) for resource in atom.get("resources", ())]
        what = ",".join([*resources, *atom.get("nonResourceURLs", ())]) + (f" {names}" if names else "")
        verbs.setdefault(what, []).extend(atom["verbs"])
    return [f"{','.join(dict.fromkeys(found))} {what}" for what, found in verbs.items()]


def _is_powerful(atom: Obj) -> bool:
    return bool(_POWERFUL_VERBS & set(atom["verbs"]) or _POWERFUL_RESOURCES & set(atom.get("resources", ())))


def broad_approval(bindings: Iterable[Binding]) -> list[Risk]:
    """Return a finding for each subject that may approve or sign for every signer, beside those of the cluster itself."""
    found = []
    for binding in bindings:
        # Signers have no namespace.
        if binding.namespace:
            continue
        verbs = sorted(
            verb
            for verb in ("approve", "sign")
            if any(
                (rule.any_verb or verb in rule.verbs)
                and (rule.any_group or "certificates.k8s.io" in rule.groups)
                and (rule.any_resource or "signers" in rule.resources)
                and not rule.names
                for rule in binding.rules
            )
        )
        # All rights are no slip: who has them is an administrator.
        if not verbs or any(rule.any_verb and rule.any_group and rule.any_resource for rule in binding.rules):
            continue
        found += [
            Risk(
                binding.subject,
                f"{kind} {name} may {' and '.join(verbs)} for every signer, that of client certificates of any user among them",
                "name the signers in resourceNames of its role",
            )
            for kind, name in binding.subjects
            if not name.startswith(_OF_THE_CLUSTER)
            and not (kind == "ServiceAccount" and binding.name.startswith(_OF_THE_CLUSTER))
        ]
    return found


async def _bindings(gathering: Gathering) -> Sequence[Binding]:
    async def read() -> Sequence[Binding]:
        plurals = {
            "ClusterRole": "clusterroles",
            "Role": "roles",
            "ClusterRoleBinding": "clusterrolebindings",
            "RoleBinding": "rolebindings",
        }
        listed = await asyncio.gather(*map(gathering.client.list, plurals.values()))
        return bindings_of(
            {**one, "kind": kind} for kind, found in zip(plurals, listed, strict=True) for one in found.items
        )

    return await gathering.once("bindings", read)


async def _broad_rights(gathering: Gathering) -> Sequence[Risk]:
    return broad_rights(await _bindings(gathering))


async def _broad_approval(gathering: Gathering) -> Sequence[Risk]:
    return broad_approval(await _bindings(gathering))


# Servers, by their reports.


def of_reports(judge: Callable[[Obj, datetime], Iterable[Risk]]) -> Callable[[Gathering], Awaitable[Sequence[Risk]]]:
    """Return the finder that judges the report of each server."""

    async def find(gathering: Gathering) -> Sequence[Risk]:
        # Raises where there is none.
        await gathering.report()
        reports = [one.report for one in await gathering.reports() if one.report is not None]
        return [risk for report in reports for risk in judge(report, gathering.now)]

    return find


def unencrypted(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge encryption at rest."""
    encryption = report["encryption"]
    # An older server says no more than that there is a file.
    if not encryption.get("encryptsSecrets", encryption["configured"]):
        yield Risk(
            report["server"],
            "Secrets are in the store, in its snapshots and on every disk that held them as they are",
            "set --encryption-provider-config of the server",
        )


def without_snapshot(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge the snapshots."""
    snapshots = report["snapshots"]
    if not snapshots["scheduled"]:
        yield Risk(report["server"], "no snapshot is scheduled", "set --snapshot-schedule-cron of the server")
    elif snapshots["problem"]:
        yield Risk(
            report["server"], f"the last snapshot failed: {snapshots['problem']}", "see the log of the server", HIGH
        )
    if (snapshots["scheduled"] or snapshots["last"]) and snapshots.get("onDiskOfStore"):
        yield Risk(
            report["server"],
            f"the snapshots in {snapshots['directory']} are on the disk of the store, and are lost with it",
            "set --snapshot-dir to another disk, or copy them away",
            LOW,
        )


def ending_certificates(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge what ends in a server, and is not renewed by itself."""
    for one in report["certificates"]:
        left = parse_rfc3339(one["notAfter"]) - now
        if left < ENDS_SOON and (not one["renewedByServer"] or left < timedelta(0)):
            when = f"ends in {human_duration(left)}" if left > timedelta(0) else f"ended {human_duration(-left)} ago"
            advice = one["advice"] or "the log of the server says why it is not renewed"
            yield Risk(f"{report['server']}:{one['name']}", f"{one['description']} {when}", advice)


def without_audit(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge the audit log."""
    # An older server does not tell.
    if not report["auditLog"].get("enabled", True):
        yield Risk(
            report["server"],
            "requests are not recorded, so that they cannot be traced later",
            "set --audit-log-path of the server, and a level other than None in its --audit-policy-file",
        )


def without_policy(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge the rules of the signers that an administrator added."""
    signing = report.get("signing") or {}
    if not signing.get("hasPolicy", True):
        for name in signing.get("ownSigners", ()):
            yield Risk(
                name,
                "it signs what was approved, with any name and for any purpose",
                "set --cluster-signing-policy-file of the server",
            )


def rsa_key(report: Obj, now: datetime) -> Iterable[Risk]:
    """Judge the key of the serving certificate."""
    key = report.get("servingKey", "")
    if key.startswith("RSA"):
        yield Risk(
            report["server"],
            f"its serving key is {key}: a new connection costs it three times the work of one with ECDSA-P256",
            "make the certificate of --tls-cert-file with a P-256 key",
        )


def clocks_apart(reports: Iterable[ServerReport]) -> list[Risk]:
    """Return the pairs of servers whose clocks differ."""
    timed = [one for one in reports if one.report is not None and "time" in one.report]
    return [
        Risk(
            f"{one.report['server']},{other.report['server']}",
            f"their clocks are {apart:.0f} s apart",
            "let both follow one time server (chronyc tracking)",
        )
        for one, other in combinations(timed, 2)
        if one.report is not None
        and other.report is not None
        and (apart := abs(one.offset - other.offset)) > APART + one.uncertainty + other.uncertainty
    ]


async def _clocks(gathering: Gathering) -> Sequence[Risk]:
    await gathering.report()
    return clocks_apart(await gathering.reports())


# Machines.


def shared_keys(identities: Iterable[Obj], requests: Iterable[Obj], revocations: Iterable[Obj] = ()) -> list[Risk]:
    """Return the keys that several machines have, by their NodeIdentities and their requests for client certificates.

    Nobody can use a revoked key.
    """
    revoked = {one["spec"].get("publicKey") for one in revocations}
    names: dict[str, set[str]] = {}
    for identity in identities:
        for key in keys_of(identity):
            names.setdefault(key["publicKey"], set()).add(identity["metadata"]["name"])
    for request in requests:
        node = requested_node(request)
        if node and is_issued(request):
            names.setdefault(f"sha256:{parsed_request(request).key_fingerprint}", set()).add(node)
    return [
        Risk(
            key,
            f"machines {', '.join(sorted(found)[:SHOWN])} have it: anyone who has one of them can act as the others",
            f"mooring node revoke {max(found)}: this revokes the key, for all of them; then join each again with a key of its own",
        )
        for key, found in names.items()
        if len(found) > 1 and key not in revoked
    ]


async def _shared_keys(gathering: Gathering) -> Sequence[Risk]:
    requests = await gathering.client.list("certificatesigningrequests")
    try:
        of_mooring = await asyncio.gather(*map(gathering.client.list, ("nodeidentities", "certificaterevocations")))
    except NotFoundError:
        return shared_keys((), requests.items)
    return shared_keys(of_mooring[0].items, requests.items, of_mooring[1].items)


async def _lapsed(gathering: Gathering) -> Sequence[Risk]:
    return [
        Risk(
            one.name,
            "the server accepts none of its certificates",
            f"kubectl delete node {one.name}, then join it again",
        )
        for one in await gathering.machines()
        if one.state == READY and one.certificates and one.certificate is None
    ]


async def _duplicates(gathering: Gathering) -> Sequence[Risk]:
    return [
        Risk(one.name, "two machines use its identity", f"mooring node show {one.name}")
        for one in await gathering.machines()
        if one.is_duplicate
    ]


# Join rules.

_GITHUB = "https://token.actions.githubusercontent.com"
_PROVIDERS: Mapping[str, tuple[Collection[str], str]] = {
    _GITHUB: (
        ("repository", "repository_id", "repository_owner", "repository_owner_id", "sub", "job_workflow_ref"),
        "repository_id",
    ),
    "https://gitlab.com": (("project_id", "project_path", "namespace_id", "namespace_path", "sub"), "project_id"),
    "https://accounts.google.com": (
        ("sub", "email", "/google/compute_engine/project_id", "/google/compute_engine/project_number"),
        "/google/compute_engine/project_id",
    ),
}
"""Claims of which one says whose token it is, for issuers that serve everybody, and the one to add."""
_OF_OWNERS = ("repository", "repository_owner", "sub", "job_workflow_ref", "project_path", "namespace_path")
"""Claims that begin with the name of an owner, which everybody may register."""
_PULL_REQUESTS = ("pull_request", "pull_request_target")
"""Events of GitHub that may run code of a fork. The second has the ref and the subject of the base branch."""
_AGAINST_PULL_REQUESTS = ("event_name", "environment", "job_workflow_ref")


async def _wide_rules(gathering: Gathering) -> Sequence[Risk]:
    listing = partial(gathering.client.list, JOIN_RULES)
    return wide_rules((await gathering.once("join rules", listing)).items)


def wide_rules(rules: Iterable[Obj]) -> list[Risk]:
    """Judge the conditions of join rules: each must say whose tokens fit. One that cannot be read lets nobody in."""
    found = []
    for obj in rules:
        try:
            rule = read_rule(obj)
        except JoinRuleError:
            continue
        found += [Risk(rule.name, message, remedy) for message, remedy in _too_wide(rule)]
    return found


def _too_wide(rule: JoinRule) -> Iterable[tuple[str, str]]:
    """Return what makes a rule too wide, each with the remedy."""
    named = {one.claim for one in rule.conditions if one.claim}
    if not named:
        yield (
            "expressions alone decide, and no claim has a value or a pattern",
            "add --claim NAME=VALUE to the rule, such as " + _PROVIDERS.get(rule.issuer, ((), "sub"))[1],
        )
        return
    for one in rule.conditions:
        if one.pattern and not any(map(str.isalnum, one.pattern.partition("*")[0])):
            yield (
                f"the pattern {one.pattern} of {one.claim} fits values with any beginning",
                f"begin --claim-pattern {one.claim}= with the name of an owner",
            )
    claims, wanted = _PROVIDERS.get(rule.issuer, (named, ""))
    if not any(_decides(one, claims) and not (wanted and _fits_any_owner(one)) for one in rule.conditions):
        yield (
            "no claim says whose tokens fit, and the issuer gives them to everybody",
            f"add --claim {wanted}=VALUE to the rule",
        )
    if rule.issuer == _GITHUB and not any(map(_keeps_out_pull_requests, rule.conditions)):
        yield (
            "no claim keeps out pull requests, which come from forks, too",
            "add --claim event_name=VALUE to the rule, such as push",
        )


def _decides(one: Condition, claims: Collection[str]) -> bool:
    """Return whether a condition is about one of these claims. Of an expression it is enough that it names one."""
    is_named = one.claim in claims or one.claim.removeprefix("/") in claims
    return is_named or any(claim.rpartition("/")[2] in one.expression for claim in claims)


def _fits_any_owner(one: Condition) -> bool:
    """Return whether a pattern such as `repo:*/app` leaves the owner open."""
    return one.claim.removeprefix("/") in _OF_OWNERS and "*" in one.pattern.partition("/")[0].rpartition(":")[2]


def _keeps_out_pull_requests(one: Condition) -> bool:
    claim = one.claim.removeprefix("/")
    if claim == "event_name":
        return not any(fits_pattern(one.pattern or one.value, event) for event in _PULL_REQUESTS)
    return _decides(one, _AGAINST_PULL_REQUESTS) or (claim == "sub" and ":environment:" in one.pattern + one.value)


CHECKS: Mapping[str, Check] = {
    "token-without-end": Check(HIGH, "a token that leaks lets machines in for ever", of_tokens(endless_token)),
    "token-without-limit": Check(
        MEDIUM, "a token that leaks lets in any machine until it expires", of_tokens(unlimited_token)
    ),
    "token-idle": Check(LOW, "a token that is not needed can only leak", of_tokens(idle_token)),
    "join-rule-too-wide": Check(HIGH, "whoever gets such a token lets a machine in", _wide_rules),
    "rights-of-everyone": Check(
        HIGH, "everyone who can reach the server, or has a token, has these rights", _broad_rights
    ),
    "approval-for-every-signer": Check(MEDIUM, "who may approve for every signer may become any user", _broad_approval),
    "secrets-unencrypted": Check(MEDIUM, "a stolen disk or backup gives every Secret", of_reports(unencrypted)),
    "no-snapshot": Check(MEDIUM, "a lost disk is a lost cluster", of_reports(without_snapshot)),
    "certificate-ends": Check(HIGH, "a certificate that ends stops what needs it", of_reports(ending_certificates)),
    "member-without-certificate": Check(HIGH, "the machine is Ready and can do nothing", _lapsed),
    "identity-shared": Check(HIGH, "a copy of a machine has its rights", _duplicates),
    "key-shared": Check(HIGH, "machines with one key cannot be told apart", _shared_keys),
    "audit-off": Check(MEDIUM, "the actions of a thief cannot be traced", of_reports(without_audit)),
    "clocks-apart": Check(MEDIUM, "Leases, tokens and certificates are judged by the clock of each server", _clocks),
    "signer-without-policy": Check(MEDIUM, "an approval alone decides about a certificate", of_reports(without_policy)),
    "rsa-serving-key": Check(LOW, "RSA makes each new connection dear", of_reports(rsa_key)),
}
"""Every check by its id, which is stable."""


# The command.

EXIT_CODE = 20
"""Exit code when a finding, or a check that could not be made, is not accepted."""
SHOWN = 5
"""Findings of one check that the screen shows."""


def accepted_ids(values: Sequence[str]) -> frozenset[str]:
    """Return what `--accept` gives. Raises UsageError for a check that does not exist."""
    accepted = frozenset(split_commas(values))
    for one in sorted(accepted):
        if one.partition("/")[0] not in CHECKS:
            raise click.UsageError(f"--accept {one}: unknown check; give one of {', '.join(CHECKS)}, or ID/SUBJECT")
    return accepted


async def examine(
    client: ClusterClient, selected: Selected, now: datetime, accepted: Collection[str], limit: timedelta
) -> Obj:
    """Return the findings of every check, the gravest first. Raises PeerError, UnauthorizedError.

    `limit`: the time in which the server has to respond at all.
    """
    gathering = Gathering(client, selected, now)
    try:
        async with asyncio.timeout(limit.total_seconds()):
            await client.read("/version")
        results = await asyncio.gather(*(_result(check, gathering) for check in CHECKS.values()))
    except TimeoutError:
        raise PeerError(f"{client.server} did not respond within {format_duration(limit)}") from None
    finally:
        await gathering.end()
    named = dict(zip(CHECKS, results, strict=True))
    findings = [
        risk.document(name, accepted) for name, found in named.items() if not isinstance(found, str) for risk in found
    ]
    findings.sort(key=lambda one: SEVERITIES.index(one["severity"]))
    # A server that has no such thing has no such risk to tell; what cannot be read is no result.
    unread = {name for name, found in named.items() if isinstance(found, str) and found != NOT_SERVED}
    return {
        "kind": "ClusterDoctor",
        "server": client.server,
        "time": rfc3339(now),
        "healthy": all(one["accepted"] for one in findings) and unread <= set(accepted),
        "findings": findings,
        "checks": [
            {"id": name, "result": SKIPPED, "reason": found}
            if isinstance(found, str)
            else {"id": name, "result": FOUND if found else OK}
            for name, found in named.items()
        ],
    }


async def _result(check: Check, gathering: Gathering) -> Sequence[Risk] | str:
    """Return the findings of a check, or why it cannot be made."""
    try:
        return await check.find(gathering)
    except ApiError as error:
        return unreadable(error)
    except (NotKubernetesError, NotMooringError):
        return NOT_SERVED


def lines(found: Obj) -> Sequence[str]:
    """Return the findings for the screen: those of one check together, with the reason and the commands."""
    shown = []
    for check in dict.fromkeys(one["id"] for one in found["findings"]):
        risks = [one for one in found["findings"] if one["id"] == check]
        shown.append(f"{risks[0]['severity'].upper():<7} {check}: {risks[0]['why']}")
        for one in risks[:SHOWN]:
            note = " (accepted)" if one["accepted"] else ""
            shown += [clean(f"        {one['subject']}: {one['message']}{note}"), clean(f"          {one['remedy']}")]
        if len(risks) > SHOWN:
            shown.append(f"        and {len(risks) - SHOWN} more: -o json has them all")
    for one in found["checks"]:
        if one["result"] == SKIPPED:
            shown.append(f"skipped {one['id']}: {clean(one['reason'])}")
    number = sum(one["result"] == OK for one in found["checks"])
    return [*shown, f"{number} of {len(found['checks'])} checks found nothing."]


def report(chosen: ChosenCluster, accept: Sequence[str], output: str) -> int:
    """Print what is at risk in a cluster. Return the exit code."""
    accepted = accepted_ids(accept)
    now = chosen.clock.now()
    found = chosen.run_with_retries(lambda client: examine(client, chosen.selected, now, accepted, chosen.timeout))
    if output == "text":
        echo(*lines(found))
    else:
        print_document(found, output)
    return 0 if found["healthy"] else EXIT_CODE
