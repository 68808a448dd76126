"""Diagnosis of the way from a machine to its cluster: its steps, their classes and exit codes, and the sentence of each finding.

Rules kept here (docs/find-what-is-broken.md):
* A step is `ok`, `failed`, `warning` or `skipped`. Names of steps, results and classes are an interface: programs read them.
* A step that needs a failed one is skipped, and names the first that failed.
* The first failed step decides the exit code, by its class. A warning and a skipped step decide nothing.
* A message says what was found and a remedy what to do. Neither holds a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from mooring.clock import rfc3339
from mooring.trust.answertext import after_colon, answer_text, is_mooring
from mooring.trust.discovery import errors
from mooring.trust.discovery.fetch import BALANCER_STATUSES

# Steps, their order and classes.

OK, FAILED, WARNING, SKIPPED = "ok", "failed", "warning", "skipped"

MACHINE, NETWORK, SERVER, CLOCK = "machine", "network", "server", "clock"
TRUST, TOKEN, NAME, MEMBERSHIP = "trust", "token", "name", "membership"
EXIT_CODES: Mapping[str, int] = {
    MACHINE: 10,
    NETWORK: 11,
    SERVER: 12,
    CLOCK: 13,
    TRUST: 14,
    TOKEN: 15,
    NAME: 16,
    MEMBERSHIP: 17,
}
"""Exit code of a first failure in each class."""
CAUSES_OF_JOIN = (NETWORK, SERVER, CLOCK, TRUST, TOKEN)
"""Classes that explain why a join did not reach, or did not trust, its server. Of the others the join says more itself."""


@dataclass(frozen=True, slots=True)
class DoctorStep:
    """One step: its class, and the steps without which it cannot be done."""

    name: str
    kind: str
    needs: tuple[str, ...] = ()


STEPS: tuple[DoctorStep, ...] = (
    DoctorStep("files", MACHINE),
    DoctorStep("machine-id", MACHINE),
    DoctorStep("disk", MACHINE),
    # Before the names: with a proxy it is the proxy's name that this machine resolves.
    DoctorStep("proxy", NETWORK),
    DoctorStep("names", NETWORK, ("proxy",)),
    DoctorStep("tcp", NETWORK, ("names",)),
    DoctorStep("tls", SERVER, ("tcp",)),
    DoctorStep("clock", CLOCK, ("tls",)),
    DoctorStep("api", SERVER, ("tls",)),
    DoctorStep("cluster-info", TRUST, ("api",)),
    DoctorStep("signature", TRUST, ("cluster-info",)),
    DoctorStep("pin", TRUST, ("cluster-info", "signature")),
    # A credential is sent over verified TLS only, and none verifies while the clock is wrong.
    DoctorStep("token", TOKEN, ("clock", "signature", "pin")),
    DoctorStep("name", NAME, ("token",)),
    DoctorStep("request", NAME, ("clock", "api")),
    DoctorStep("certificate", MEMBERSHIP, ("clock", "api")),
    DoctorStep("node", MEMBERSHIP, ("certificate",)),
    DoctorStep("service", MACHINE),
)
NETWORK_STEPS = ("proxy", "names", "tcp", "tls", "clock", "api")
"""Steps that are about one address: they are repeated for the next one when an address fails."""
BY_NAME: Mapping[str, DoctorStep] = {one.name: one for one in STEPS}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a step."""

    result: str
    message: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The message with the remedy."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


def ok(message: str, **facts: Any) -> Judgement:
    """Return the judgement of a step that passed."""
    return Judgement(OK, message, facts=facts)


def skipped(reason: str, **facts: Any) -> Judgement:
    """Return the judgement of a step that could not be done, or is not needed."""
    return Judgement(SKIPPED, reason, facts=facts)


def warning(message: str, remedy: str = "", **facts: Any) -> Judgement:
    """Return the judgement of a step that passed with a problem."""
    return Judgement(WARNING, message, remedy, facts)


def failed(message: str, remedy: str = "", **facts: Any) -> Judgement:
    """Return the judgement of a step that failed."""
    return Judgement(FAILED, message, remedy, facts)


def failed_by(text: str, **facts: Any) -> Judgement:
    """Return the judgement of a step that ended with the error `text`, whose form is `reason; remedy`."""
    message, remedy = split_remedy(text)
    return failed(message, remedy, **facts)


def split_remedy(text: str) -> tuple[str, str]:
    """Return the reason and the remedy of an error: they are parted by its first semicolon that is not in brackets."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth <= 0 and text.startswith("; ", place):
            return text[:place], text[place + 2 :]
    return text, ""


_BRACKETS_AT_END = re.compile(r" \([^()]*\)$")


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step with its judgement and its duration in seconds. `blocked_by` is the failed step for which it was skipped."""

    step: DoctorStep
    judgement: Judgement
    seconds: float = 0.0
    blocked_by: str = ""

    @property
    def sentence(self) -> str:
        """The step with its message and its remedy."""
        return f"{self.step.name}: {self.judgement.text}"

    def is_said_by(self, error: str) -> bool:
        """Return whether the text of an error names the cause that this failed step found."""
        # A join has other words for the step, and a bracket adds no other cause.
        message = _BRACKETS_AT_END.sub("", self.judgement.message)
        outcomes = {one["outcome"] for one in self.judgement.facts.get("attempts", ())}
        if self.step.kind == CLOCK:
            # The offset was measured twice.
            message = CLOCK_OFF
        return (message.partition(": ")[2] or message) in error or (
            bool(outcomes) and all(any(words in error for words in SAME_CAUSES.get(one, ())) for one in outcomes)
        )

    def document(self) -> dict[str, Any]:
        """Return the step as it is printed in JSON."""
        return {
            "name": self.step.name,
            "class": self.step.kind,
            "result": self.judgement.result,
            "message": self.judgement.message,
            "remedy": self.judgement.remedy,
            "seconds": round(self.seconds, 6),
            "facts": dict(self.judgement.facts),
        }


def blocking(name: str, finished: Mapping[str, FinishedStep]) -> str:
    """Return the failed step for which the step `name` is skipped; "" when it can be done."""
    for need in BY_NAME[name].needs:
        before = finished[need]
        if before.judgement.result == FAILED:
            return need
        if before.blocked_by:
            return before.blocked_by
    return ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every step of one run, in the order of STEPS. `others` are the addresses that were given up, with the step that failed."""

    address: str
    steps: tuple[FinishedStep, ...]
    others: tuple[tuple[str, FinishedStep], ...] = ()

    @property
    def first_failure(self) -> FinishedStep | None:
        """The first broken step; None when all is well."""
        return next((one for one in self.steps if one.judgement.result == FAILED), None)

    def cause_beyond(self, error: str) -> FinishedStep | None:
        """Return the first broken step on the way to the server, when it says more than the error of a join."""
        failures = (one for one in self.steps if one.judgement.result == FAILED and one.step.kind in CAUSES_OF_JOIN)
        first = next(failures, None)
        return None if first is None or first.is_said_by(error) else first

    @property
    def healthy(self) -> bool:
        """True when no step failed."""
        return self.first_failure is None

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        first = self.first_failure
        return 0 if first is None else EXIT_CODES[first.step.kind]

    def summary(self) -> str:
        """Return one line: the first broken step with its remedy, or that all is well."""
        first = self.first_failure
        if first is not None:
            return first.sentence
        warned = [one.step.name for one in self.steps if one.judgement.result == WARNING]
        noted = f"; look at: {', '.join(warned)}" if warned else ""
        return f"nothing is broken between this machine and {self.address}{noted}"

    def document(self) -> dict[str, Any]:
        """Return the diagnosis as it is printed in JSON."""
        first = self.first_failure
        return {
            "kind": "Doctor",
            "healthy": self.healthy,
            "exitCode": self.exit_code,
            "firstFailure": "" if first is None else first.step.name,
            "summary": self.summary(),
            "address": self.address,
            "otherAddresses": [
                {"address": address, "step": one.step.name, "message": one.judgement.message}
                for address, one in self.others
            ],
            "steps": [one.document() for one in self.steps],
        }


# Names and connections.

CONNECTED, REFUSED, SILENT, NO_ROUTE = "connected", "refused", "silent", "no route"
SAME_CAUSES: Mapping[str, tuple[str, ...]] = {
    REFUSED: (errors.REFUSED,),
    NO_ROUTE: ("network is unreachable", "no route to host"),
}
"""Words of the transport for an outcome."""
FAMILIES: Mapping[int, str] = {4: "IPv4", 6: "IPv6"}
_REASONS: Mapping[str, str] = {
    REFUSED: "refuses the connection",
    SILENT: "does not answer",
    NO_ROUTE: "cannot be reached: this machine has no route to it",
}
_REMEDIES: Mapping[str, str] = {
    REFUSED: "no program listens at that port: check the port, and that the server runs",
    SILENT: "check the address, and the firewalls on the way, which drop packets",
    NO_ROUTE: "check the address, and the network of this machine (ip route)",
}


@dataclass(frozen=True, slots=True)
class TcpAttempt:
    """A connection to one address. `outcome` is one of the constants above, or the text of another error."""

    version: int
    address: str
    outcome: str

    @property
    def sentence(self) -> str:
        return f"{self.address} {_REASONS.get(self.outcome, f'fails: {self.outcome}')}"


def judge_names(host: str, found: Sequence[tuple[int, str]], *, is_address: bool, in_hosts: bool) -> Judgement:
    """Return the judgement of a resolved name. `found` are the versions and addresses, `in_hosts`: /etc/hosts has the name."""
    facts = {"host": host, "addresses": [address for _, address in found], "hostsFile": in_hosts}
    if is_address:
        return ok(f"{host} is an address", **facts)
    by_family = [
        f"{FAMILIES[version]} {', '.join(address for one, address in found if one == version)}"
        for version in sorted({version for version, _ in found})
    ]
    source = ", from /etc/hosts" if in_hosts else ""
    return ok(f"{host} is {' and '.join(by_family)}{source}", **facts)


def judge_unresolved(host: str, reason: str, *, is_final: bool, in_hosts: bool) -> Judgement:
    """Return the judgement of a name without an address. `is_final`: the resolver says that there is no such name."""
    remedy = (
        "check the spelling, and that the DNS of this machine knows the name (getent hosts)"
        if is_final
        else "check the DNS servers of this machine (/etc/resolv.conf), and the way to them"
    )
    return failed(f"the name {host} cannot be resolved: {reason}", remedy, host=host, addresses=[], hostsFile=in_hosts)


def judge_tcp(port: int, attempts: Sequence[TcpAttempt]) -> Judgement:
    """Return the judgement of the connections to every address of a name."""
    facts = {"port": port, "attempts": [{"address": one.address, "outcome": one.outcome} for one in attempts]}
    good = [one for one in attempts if one.outcome == CONNECTED]
    bad = [one for one in attempts if one.outcome != CONNECTED]
    if not good:
        outcomes = {one.outcome for one in bad}
        remedy = _REMEDIES.get(outcomes.pop(), "") if len(outcomes) == 1 else _REMEDIES[SILENT]
        return failed(
            f"no connection to port {port}: {'; '.join(one.sentence for one in bad)}",
            remedy or "check the address and the port",
            **facts,
        )
    reached = f"connected to {', '.join(one.address for one in good)} at port {port}"
    # Without a route the system gives an address up at once, which costs nobody anything.
    if not (dead := [one for one in bad if one.outcome != NO_ROUTE]):
        return ok(reached, **facts)
    text = "; ".join(one.sentence for one in dead)
    remedy = "remove the address that is dead from the DNS, or repair that server"
    if families := {one.version for one in dead} - {one.version for one in good}:
        named = " and ".join(FAMILIES[one] for one in sorted(families))
        text = f"{named} is advertised and dead: {text}"
        remedy = (
            f"remove the {named} address from the DNS, or make the server listen there: clients may wait for it first"
        )
    return warning(f"{reached}; {text}", remedy, **facts)


# The TLS handshake.


@dataclass(frozen=True, slots=True)
class SeenCertificate:
    """The certificate that a server showed, as texts and times."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    begin: datetime
    end: datetime

    def valid_at(self, moment: datetime) -> bool:
        return self.begin <= moment < self.end

    def facts(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "issuer": self.issuer,
            "names": list(self.names),
            "notBefore": rfc3339(self.begin),
            "notAfter": rfc3339(self.end),
        }


def judge_silent_handshake(seconds: float, received: int) -> Judgement:
    """Return the judgement of a handshake that did not end within `seconds`, after `received` bytes of the server."""
    found = f"{received} bytes came back, and then nothing" if received else "nothing came back"
    return failed(
        f"the TLS handshake hangs behind ClientHello: {found} within {seconds:g} s, although the port is open",
        "a middlebox or a tunnel with a smaller MTU drops the handshake: try ping -M do -s 1400, lower the MTU of this machine's "
        "interface, or have the firewall pass TLS to this port; or the server hangs",
        received=received,
    )


def judge_first_bytes(first: bytes) -> Judgement:
    """Return the judgement of a port whose program answers something else than TLS. `first` is what it sent first."""
    if first.startswith(b"HTTP/"):
        remedy = "give the HTTPS address of the API server, usually port 6443"
        return failed("the port speaks plain HTTP and not TLS", remedy, protocol="http")
    shown = "".join(one if one.isprintable() else "." for one in first[:40].decode("latin-1"))
    text = f"the port does not speak TLS: its answer begins with {shown!r}"
    return failed(text, "another program listens there: check the address and the port", protocol="other")


def judge_closed_handshake(reason: str) -> Judgement:
    """Return the judgement of a connection that was closed during the handshake."""
    return failed(
        f"the TLS handshake failed: {reason}",
        "a load balancer without an API server behind it closes so, and a firewall that refuses TLS, or the name in the address "
        "(SNI): check the address, and the logs on the way",
    )


def judge_certificate(seen: SeenCertificate, now: datetime, server_time: datetime | None) -> Judgement:
    """Return the judgement of a certificate whose chain is not verified: only its time decides."""
    shown = f"the server shows {seen.subject}, issued by {seen.issuer}"
    moment = now if server_time is None else server_time
    if seen.valid_at(now) or seen.valid_at(moment):
        return ok(shown, **seen.facts())
    text = f"is not valid before {rfc3339(seen.begin)}" if moment < seen.begin else f"expired at {rfc3339(seen.end)}"
    remedy = "renew the certificate of the server, if the clocks of this machine and of the server are right"
    return failed(f"{shown}, which {text}", remedy, **seen.facts())


def judge_unverified(seen: SeenCertificate, reason: str, anchors: str, *, is_name: bool) -> Judgement:
    """Return the judgement of a certificate that the CA of the cluster does not verify. `anchors` names that CA."""
    facts = {"verified": False, **seen.facts()}
    if is_name:
        listed = ", ".join(seen.names) or "no name"
        text = f"the certificate of the server is not for this address ({reason}); it is for {listed}"
        remedy = "use one of these names, or add the address to the certificate of the server (--tls-san)"
        return failed(text, remedy, **facts)
    return failed(
        f'another machine answers in place of the cluster: the certificate is issued by "{seen.issuer}" and not by the CA of the '
        f'cluster ("{anchors}"): {reason}',
        "a proxy or firewall that inspects TLS does this: have it except the server; or the address is that of another cluster, or "
        "the CA was replaced",
        **facts,
    )


# The clock.

SMALL_SKEW = timedelta(seconds=30)
"""Difference that is mentioned: a Date header has whole seconds, and a request takes some."""
BACKDATED = timedelta(minutes=5)
"""Signers set the begin of a certificate this far back."""
LONGEST_AHEAD = timedelta(days=1)
"""Certificates and tokens of a day are common: this machine would take each for expired."""


CLOCK_OFF = "this machine's clock is"
"""Beginning of the sentence about a clock, here and in the errors of a join."""


def judge_clock(
    now: datetime, server_time: datetime | None, certificates: Sequence[tuple[str, datetime, datetime]]
) -> Judgement:
    """Return the judgement of this machine's clock, by the Date of the server. `certificates`: name, begin and end of each."""
    if server_time is None:
        return skipped("the server sent no Date")
    offset = (now - server_time).total_seconds()
    facts = {"offsetSeconds": round(offset, 1), "serverTime": rfc3339(server_time), "now": rfc3339(now)}
    side = "behind" if offset < 0 else "ahead of"
    text = f"{CLOCK_OFF} {abs(round(offset))} s {side} the server's"
    remedy = "set the clocks by NTP (timedatectl), then try again"
    invalid = [
        f"{name} is valid by the server's clock and not by this one"
        for name, begin, end in certificates
        if begin <= server_time < end and not begin <= now < end
    ]
    if offset <= -BACKDATED.total_seconds():
        invalid.append("a certificate that is issued now is not valid here yet")
    if offset >= LONGEST_AHEAD.total_seconds():
        invalid.append("a certificate of a day is expired here when it is issued")
    if invalid:
        return failed(f"{text}: {invalid[0]}", remedy, **facts)
    if abs(offset) > SMALL_SKEW.total_seconds():
        return warning(text, remedy, **facts)
    return ok(f"{abs(round(offset))} s from the server's clock", **facts)


# The program that answers.

KUBERNETES = "Kubernetes"


def judge_api(status: int, headers: Mapping[str, str], body: bytes) -> Judgement:
    """Return the judgement of the response to GET /version without credentials. Header names are in lower case."""
    obj, shown = _json_object(body), after_colon(answer_text(body))
    version = obj.get("gitVersion")
    if status == 200 and isinstance(version, str):
        kind = "Mooring" if is_mooring(version) else "k3s" if "+k3s" in version else KUBERNETES
        return ok(f"{kind} {version}", server=kind, version=version, status=status)
    if obj.get("kind") == "Status" and status in (401, 403):
        text = "a Kubernetes API server that answers no anonymous request, so that its version is not known"
        return ok(text, server=KUBERNETES, version="", status=status)
    return failed(*_not_an_api_server(status, headers, shown, is_status=obj.get("kind") == "Status"), status=status)


def _not_an_api_server(status: int, headers: Mapping[str, str], shown: str, *, is_status: bool) -> tuple[str, str]:
    """Return message and remedy for a response that is not that of an API server. `shown` is its text."""
    portal = "a captive portal or another web server answers"
    log_in = "log in at the portal of this network, or check the address and the port"
    if 300 <= status < 400:
        target = urlsplit(headers.get("location", ""))
        where = f" to {target.scheme}://{target.hostname}" if target.hostname else ""
        return f"{portal}: it redirects{where} (status {status})", log_in
    if is_status:
        return f"the API server answered {status}{shown}", "see the log of the server; it may be starting"
    if status == 421:
        return (
            "the server does not serve the name in the address (status 421)",
            "a load balancer routes by that name (SNI): use the name that it knows, or add this one there",
        )
    if status == 200:
        return f"{portal}: a page and not a Kubernetes version{shown}", log_in
    who, remedy = (
        "another program",
        "have it pass requests to the API server unchanged, or check the address and the port",
    )
    if status in (401, 403, 407, *BALANCER_STATUSES):
        who = "a load balancer or proxy"
    if status in BALANCER_STATUSES:
        remedy = "it reaches no API server, or has too many requests: see its log, and that an API server runs"
    # In the words of discovery: the error of a join names this cause.
    return f"{who} answers in place of the API server: status {status} without a Kubernetes Status{shown}", remedy


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
