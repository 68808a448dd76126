"""Rollover of the CA: the next step, the machines that it waits for, and the status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.carollover import (
    CLEANING,
    MAX_MACHINES,
    TRUSTED_CAS,
    ReportedCa,
    RolloverOnDisk,
    RolloverStep,
    follow,
    machines_ahead,
    next_step,
    plan,
)
from tests.support.plans import HOUR, NOW, moment, thing, views

OLD = ReportedCa("sha256:" + "a" * 64, "CN=kubernetes", NOW + 1000 * HOUR)
NEW = ReportedCa("sha256:" + "b" * 64, "CN=kubernetes@1", NOW + 9000 * HOUR)
OTHER = "sha256:" + "c" * 64


def disk(phase: str) -> RolloverOnDisk:
    issuing = OLD.pin if phase in ("", "Prepared", "TrustBoth", CLEANING) else NEW.pin
    return RolloverOnDisk(phase, issuing, OLD, NEW) if phase else RolloverOnDisk(phase, issuing)


def rollover(wanted: str, reached: str = "", force: str = "", transitions: Sequence[str] = (), **status: Any) -> Obj:
    times = [{"phase": one, "time": moment(-HOUR)} for one in transitions]
    known = {"newCA": NEW.status(), "oldCA": OLD.status()} if reached else {}
    found = {"phase": reached, "transitions": times, **known, **status} if reached or status else {}
    return thing("cluster-ca", spec={"phase": wanted, "force": force}, status=found)


def node(name: str, said: str | None = None) -> Obj:
    return thing(name, metadata={"annotations": {TRUSTED_CAS: said}} if said is not None else {})


def identity(name: str, issuer: str, end: timedelta = HOUR) -> Obj:
    return thing(name, spec={"keys": [{"issuer": OTHER}, {"issuer": issuer, "notAfter": moment(end)}]})


EMPTY = views()
BEHIND = views(nodes=[node("n1")], nodeidentities=[identity("n1", OLD.pin)])
AHEAD = views(nodes=[node("n1", f"{OLD.pin},{NEW.pin}")], nodeidentities=[identity("n1", NEW.pin)])


@pytest.mark.parametrize(
    ("phase", "wanted", "step"),
    [
        pytest.param("", "TrustBoth", RolloverStep.PREPARE, id="nothing is there"),
        pytest.param("Prepared", "Retired", RolloverStep.PUBLISH, id="one phase after the other"),
        pytest.param("TrustBoth", "TrustBoth", None, id="reached"),
        pytest.param("TrustBoth", "IssueNew", RolloverStep.ISSUE, id="issue"),
        pytest.param("IssueNew", "Drain", RolloverStep.DRAIN, id="drain"),
        pytest.param("Drain", "TrustBoth", None, id="further than wanted"),
        pytest.param("Drain", "Retired", RolloverStep.RETIRE, id="retire"),
        pytest.param("Retired", "Retired", RolloverStep.CLEAN, id="retired"),
        pytest.param("Retired", "Aborted", RolloverStep.CLEAN, id="too late for an abort"),
        pytest.param(CLEANING, "TrustBoth", RolloverStep.CLEAN, id="files of an abort"),
        pytest.param("", "Aborted", None, id="aborted"),
        pytest.param("Prepared", "Aborted", RolloverStep.CLEAN, id="back from prepared"),
        pytest.param("TrustBoth", "Aborting", RolloverStep.WITHDRAW, id="back from both"),
        pytest.param("IssueNew", "Aborted", RolloverStep.REVERT, id="back from the new CA"),
        pytest.param("Drain", "Aborted", RolloverStep.REVERT, id="back from drain"),
    ],
)
def test_the_next_step(phase: str, wanted: str, step: RolloverStep | None) -> None:
    assert next_step(phase, wanted) is step


@pytest.mark.parametrize(
    ("obj", "phase", "seen", "step", "reached", "message"),
    [
        pytest.param(rollover("TrustBoth"), "", EMPTY, RolloverStep.PREPARE, "", "make the new CA", id="start"),
        pytest.param(
            rollover("TrustBoth"), "Prepared", EMPTY, None, "Prepared", "", id="the new CA is named before it is published"
        ),
        pytest.param(
            rollover("TrustBoth", "Prepared"), "Prepared", EMPTY, RolloverStep.PUBLISH, "Prepared", "trust both CAs", id="publish"
        ),
        pytest.param(rollover("TrustBoth", "Prepared"), "TrustBoth", BEHIND, None, "TrustBoth", "", id="both trusted"),
        pytest.param(
            rollover("IssueNew", "TrustBoth"), "TrustBoth", BEHIND, RolloverStep.ISSUE, "TrustBoth", "issue from the new CA",
            id="issue whoever is behind",
        ),
        pytest.param(
            rollover("Drain", "IssueNew"), "Drain", BEHIND, None, "Drain", "1 machine would be locked out by the next phase",
            id="drain",
        ),
        pytest.param(rollover("Drain", "Drain"), "Drain", AHEAD, None, "Drain", "no machine is behind", id="drained"),
        pytest.param(
            rollover("Retired", "Drain"), "Drain", BEHIND, None, "Drain", "waiting for 1 machine", id="the gate is closed"
        ),
        pytest.param(
            rollover("Retired", "Drain", force="Retired"), "Drain", BEHIND, RolloverStep.RETIRE, "Drain", "retire the old CA",
            id="the gate is forced",
        ),
        pytest.param(
            rollover("Retired", "Drain", force="Drain"), "Drain", BEHIND, None, "Drain", "waiting for 1 machine",
            id="another phase is forced",
        ),
        pytest.param(
            rollover("Retired", "Drain"), "Drain", AHEAD, RolloverStep.RETIRE, "Drain", "retire the old CA", id="the gate is open"
        ),
        pytest.param(
            rollover("Retired", "Drain"), "Retired", BEHIND, RolloverStep.CLEAN, "Retired",
            "destroy the keys that are not needed any more", id="retired",
        ),
        pytest.param(
            rollover("Aborted", "Drain", transitions=["IssueNew"]), "Drain", AHEAD, RolloverStep.REVERT, "Aborting",
            "issue from the old CA again", id="abort",
        ),
        pytest.param(
            rollover("Aborted", "Aborting", transitions=["IssueNew"]), "TrustBoth", AHEAD, None, "Aborting",
            "waiting for 1 machine", id="an abort waits for certificates of the new CA",
        ),
        pytest.param(
            rollover("Aborted", "Aborting", force="Aborted", transitions=["IssueNew"]), "TrustBoth", AHEAD, RolloverStep.WITHDRAW,
            "Aborting", "trust the old CA alone again", id="a forced abort",
        ),
        pytest.param(
            rollover("Aborted", "TrustBoth"), "TrustBoth", AHEAD, RolloverStep.WITHDRAW, "Aborting", "trust the old CA alone again",
            id="an abort before anything was issued",
        ),
        pytest.param(rollover("Aborted", "Aborting"), "", EMPTY, None, "Aborted", "the old CA is the only one", id="aborted"),
        pytest.param(rollover("Aborted"), "", EMPTY, None, "Aborted", "", id="aborted before it began"),
        pytest.param(
            rollover("TrustBoth"), CLEANING, EMPTY, RolloverStep.CLEAN, "", "destroy the keys that are not needed any more",
            id="files of an earlier abort",
        ),
        pytest.param(
            rollover("Drain", "Drain"), "", EMPTY, None, "Drain", "the data directory of this server has no key", id="no files"
        ),
        pytest.param(
            rollover("Drain", "Drain", newCA={"publicKey": OTHER}), "Drain", EMPTY, None, "Drain", f"of the new CA {OTHER}",
            id="files of another new CA",
        ),
    ],
)  # fmt: skip
def test_a_plan(obj: Obj, phase: str, seen: Views, step: RolloverStep | None, reached: str, message: str) -> None:
    planned = plan(obj, disk(phase), seen, NOW)
    assert (planned.step, planned.status.get("phase", "")) == (step, reached)
    assert message in planned.status.get("message", "")
    again = plan({**obj, "status": planned.status}, disk(phase), seen, NOW + timedelta(minutes=1))
    assert again.status == planned.status or phase == "Prepared", "a status that is written settles"


def test_the_end_is_reached_when_the_files_are_gone_and_the_new_ca_issues() -> None:
    planned = plan(rollover("Retired", "Retired"), RolloverOnDisk("", NEW.pin), BEHIND, NOW)
    assert (planned.step, planned.status["phase"]) == (None, "Done")
    assert planned.status["transitions"] == [{"phase": "Done", "time": moment(timedelta(0))}]
    ended = rollover("Retired", "Done")
    assert plan(ended, RolloverOnDisk("", NEW.pin), BEHIND, NOW).status == ended["status"]


@pytest.mark.parametrize("forced", [False, True], ids=["waits", "forced"])
@pytest.mark.parametrize("stolen", [False, True], ids=["in use", "stolen"])
@pytest.mark.parametrize(
    ("wanted", "phase", "step"),
    [
        pytest.param("IssueNew", "TrustBoth", RolloverStep.ISSUE, id="issue"),
        pytest.param("Retired", "TrustBoth", RolloverStep.ISSUE, id="on the way to the end"),
        pytest.param("Drain", "IssueNew", RolloverStep.DRAIN, id="drain"),
        pytest.param("Retired", "Drain", RolloverStep.RETIRE, id="retire"),
        pytest.param("Aborted", "Drain", RolloverStep.REVERT, id="revert"),
        pytest.param("Aborted", "TrustBoth", RolloverStep.WITHDRAW, id="withdraw"),
    ],
)
def test_obstacles_stop_each_step_forced_or_not(
    wanted: str, phase: str, step: RolloverStep, stolen: bool, forced: bool
) -> None:
    given = rollover(wanted, phase, force=wanted if forced else "")
    given["spec"]["compromised"] = stolen
    planned = plan(given, disk(phase), EMPTY, NOW, obstacles=("a", "b"))
    assert (planned.step, planned.status["message"]) == (None, "a; b")
    assert plan(given, disk(phase), EMPTY, NOW).step is step


def test_a_phase_that_is_reached_names_what_the_next_one_waits_for() -> None:
    for phase, said in (("TrustBoth", "a"), ("IssueNew", "a"), ("Drain", "a; 1 machine would be locked out")):
        planned = plan(rollover(phase, phase), disk(phase), BEHIND, NOW, obstacles=("a",))
        assert (planned.step, planned.status["phase"]) == (None, phase)
        assert planned.status["message"].startswith(said)


def test_obstacles_stop_no_step_that_nobody_joins_by() -> None:
    for phase in ("", "Prepared", CLEANING):
        given = rollover("TrustBoth", phase if phase == "Prepared" else "")
        assert plan(given, disk(phase), EMPTY, NOW, obstacles=("a",)).step is not None


@pytest.mark.parametrize(
    ("said", "identities", "reason"),
    [
        pytest.param(NEW.pin, [identity("n1", NEW.pin)], "", id="renewed, and trusts the new CA"),
        pytest.param(
            OLD.pin, [identity("n1", NEW.pin)], "it does not trust the new CA yet", id="trusts only the old CA"
        ),
        pytest.param(None, [identity("n1", NEW.pin)], "unknown: it does not say which CAs", id="a kubelet"),
        pytest.param(
            NEW.pin, [identity("n1", OLD.pin)], "its certificate is of the old CA, valid until 2026", id="not renewed"
        ),
        pytest.param(
            NEW.pin, [identity("n1", "")], "its certificate is of the old CA", id="of an issuer that is not recorded"
        ),
        pytest.param(NEW.pin, [identity("n1", OTHER)], "", id="of a signer with a CA of its own"),
        pytest.param(NEW.pin, [identity("n1", OLD.pin, -HOUR)], "", id="expired: it comes back by recovery"),
        pytest.param(NEW.pin, [], "unknown: no certificate of it is recorded", id="without a record"),
        pytest.param(
            NEW.pin, [thing("n1", spec={})], "unknown: no certificate of it is recorded", id="with an empty record"
        ),
    ],
)
def test_a_machine_is_named_with_the_reason(said: str | None, identities: list[Obj], reason: str) -> None:
    seen = views(nodes=[node("n1", said)], nodeidentities=identities)
    status = plan(rollover("Drain", "Drain"), disk("Drain"), seen, NOW).status
    assert status["machinesBehindTotal"] == bool(reason)
    assert [one["name"] for one in status["machinesBehind"]] == ["n1"] * bool(reason)
    assert all(reason in one["reason"] for one in status["machinesBehind"])


@pytest.mark.parametrize("phase", ["Prepared", "TrustBoth", "IssueNew"])
def test_before_drain_machines_are_not_counted(phase: str) -> None:
    counted = rollover(phase, phase, machinesBehind=[], machinesBehindTotal=0)
    status = plan(counted, disk(phase), BEHIND, NOW).status
    assert not status.keys() & {"machinesBehind", "machinesBehindTotal"}


SERIAL, KEY = "a1", "sha256:" + "d" * 64


def record(number: str, issuer: str = OLD.pin, end: timedelta = HOUR, key: str = KEY) -> Obj:
    return {"serialNumber": number, "publicKey": key, "issuer": issuer, "notAfter": moment(end)}


def machine(*keys: Obj, companions: Sequence[Obj] = (), **spec: Any) -> Obj:
    return thing("n1", spec={"keys": list(keys), "companions": list(companions), **spec})


def entry(name: str, **spec: Any) -> Obj:
    return thing(name, spec={"reason": "keyCompromise", **spec})


OF_SERIAL = entry(f"serial-{SERIAL}", serialNumber=SERIAL)
OF_KEY = entry(f"key-{'d' * 64}", publicKey=KEY)
OF_NODE = entry("node-n1", nodeName="n1", issuedBefore=moment(timedelta(0)), knownSerialNumbers=[SERIAL])
OF_NODE["metadata"]["creationTimestamp"] = moment(timedelta(0))


@pytest.mark.parametrize(
    ("identity_of_it", "denylist", "is_behind"),
    [
        pytest.param(machine(record(SERIAL)), [], True, id="accepted"),
        pytest.param(machine(record(SERIAL)), [OF_SERIAL], False, id="revoked by serial number"),
        pytest.param(
            machine(record(SERIAL)),
            [entry(f"serial-{SERIAL}-{'a' * 64}", serialNumber=SERIAL, issuer=OLD.pin)],
            False,
            id="by the serial number of one CA",
        ),
        pytest.param(machine(record(SERIAL)), [OF_KEY], False, id="by key"),
        pytest.param(machine(record(SERIAL)), [OF_NODE], False, id="by node"),
        pytest.param(machine(record("b2")), [OF_NODE], True, id="issued after the revocation of the node"),
        pytest.param(machine(record(SERIAL), record("b2")), [OF_SERIAL], True, id="the newer one is accepted"),
        pytest.param(machine(record("b2"), record(SERIAL)), [OF_SERIAL], True, id="the older one is accepted"),
        pytest.param(machine(record("b2", end=-HOUR), record(SERIAL)), [OF_SERIAL], False, id="the older one has expired"),
        pytest.param(machine(record("b2"), record(SERIAL)), [OF_KEY], False, id="both have the key"),
        pytest.param(machine(record("b2", OLD.pin), record(SERIAL, NEW.pin)), [OF_SERIAL], True, id="the newer is refused"),
        pytest.param(machine(record("b2", NEW.pin), record(SERIAL, OLD.pin)), [OF_SERIAL], False, id="the older is refused"),
        pytest.param(
            machine(record(SERIAL), companions=[record("c3")]), [OF_SERIAL], True, id="one beside its own is accepted"
        ),
        pytest.param(
            machine(record(SERIAL), companions=[record("c3")]), [OF_KEY], False, id="those beside its own are refused, too"
        ),
        pytest.param(machine(record(SERIAL), nodeUID="another"), [], False, id="its Node was deleted"),
        pytest.param(machine(record(SERIAL), nodeUID="another", reregisters=True), [], True, id="it may register again"),
    ],
)  # fmt: skip
def test_a_machine_whose_certificates_are_all_refused_holds_nothing_up(
    identity_of_it: Obj, denylist: list[Obj], is_behind: bool
) -> None:
    seen = views(nodes=[node("n1", NEW.pin)], nodeidentities=[identity_of_it], certificaterevocations=denylist)
    told = plan(rollover("Drain", "Drain"), disk("Drain"), seen, NOW)
    assert told.status["machinesBehindTotal"] == is_behind
    gate = plan(rollover("Retired", "Drain"), disk("Drain"), seen, NOW)
    assert gate.step is (None if is_behind else RolloverStep.RETIRE)


@pytest.mark.parametrize("refused", [False, True])
def test_an_abort_waits_for_machines_that_are_let_in(refused: bool) -> None:
    denylist = [OF_KEY] if refused else []
    seen = views(nodes=[node("n1")], nodeidentities=[machine(record(SERIAL, NEW.pin))], certificaterevocations=denylist)
    assert bool(machines_ahead(NEW.pin, seen, NOW)) is not refused


@pytest.mark.parametrize(
    "unreadable",
    [
        pytest.param({"certificaterevocations": {("", f"serial-{SERIAL}"): "truncated"}}, id="revocation"),
        pytest.param({"certificaterevocations": {("", "node-n1"): "truncated"}}, id="revocation of the node"),
        pytest.param(
            {"configmaps": {(tombstones.NAMESPACE, tombstones.NAME): "truncated"}},
            id="Nodes that were deleted before a restore",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_holds_up(unreadable: dict[str, dict[tuple[str, str], str]]) -> None:
    seen = dict(views(nodes=[node("n1", NEW.pin)], nodeidentities=[machine(record(SERIAL))]))
    for plural, problems in unreadable.items():
        seen[plural] = FixedView(unreadable=problems)
    assert plan(rollover("Retired", "Drain"), disk("Drain"), seen, NOW).step is None


def test_where_another_ca_verifies_the_server_its_trust_does_not_matter() -> None:
    seen = views(nodes=[node("n1"), node("n2")], nodeidentities=[identity("n1", NEW.pin), identity("n2", OLD.pin)])
    status = plan(rollover("Drain", "Drain"), disk("Drain"), seen, NOW, verifies_server=False).status
    assert [one["name"] for one in status["machinesBehind"]] == ["n2"]


def test_an_abort_waits_for_certificates_of_the_new_ca_alone() -> None:
    nodes = [node(name) for name in ("a", "b", "c", "d", "e")]
    seen = views(
        nodes=nodes,
        nodeidentities=[
            identity("a", NEW.pin), identity("b", OLD.pin), identity("c", NEW.pin, -HOUR), thing("d", spec={}),
        ],
    )  # fmt: skip
    assert [one.name for one in machines_ahead(NEW.pin, seen, NOW)] == ["a"]


def test_the_status_names_a_bounded_number_of_machines() -> None:
    seen = views(nodes=[node(f"n{number}") for number in range(MAX_MACHINES + 5)])
    status = plan(rollover("Retired", "Drain"), disk("Drain"), seen, NOW).status
    assert (len(status["machinesBehind"]), status["machinesBehindTotal"]) == (MAX_MACHINES, MAX_MACHINES + 5)
    assert status["message"] == f"waiting for {MAX_MACHINES + 5} machines"


STRANGE = replace(NEW, pin=OTHER)


@pytest.mark.parametrize(
    ("obj", "found", "step", "problem"),
    [
        pytest.param(rollover("TrustBoth"), disk(""), None, "", id="nothing was reached"),
        pytest.param(rollover("TrustBoth", "Prepared"), disk(""), None, "", id="nothing is published"),
        pytest.param(rollover("TrustBoth", "TrustBoth"), disk(""), None, "copy pki/rollover/", id="no key"),
        pytest.param(
            rollover("Drain", "Drain"),
            replace(disk("Prepared"), new=STRANGE),
            None,
            "copy pki/rollover/",
            id="another key",
        ),
        pytest.param(rollover("Drain", "Drain"), disk("Prepared"), RolloverStep.PUBLISH, "", id="behind"),
        pytest.param(
            rollover("Drain", "Drain"),
            replace(disk("Prepared"), phase=""),
            RolloverStep.PREPARE,
            "",
            id="keys were copied",
        ),
        pytest.param(rollover("Drain", "IssueNew"), disk("IssueNew"), None, "", id="level"),
        pytest.param(rollover("Retired", "Done"), disk("Drain"), RolloverStep.RETIRE, "", id="behind the end"),
        pytest.param(rollover("Retired", "Done"), disk("Retired"), RolloverStep.CLEAN, "", id="retired"),
        pytest.param(rollover("Retired", "Done"), RolloverOnDisk("", NEW.pin), None, "", id="done"),
        pytest.param(rollover("Aborted", "Aborting"), disk("Drain"), RolloverStep.REVERT, "", id="on the way back"),
        pytest.param(rollover("Aborted", "Aborted"), disk("TrustBoth"), RolloverStep.WITHDRAW, "", id="back"),
        pytest.param(rollover("Aborted", "Aborted"), disk(""), None, "", id="aborted"),
    ],
)
def test_another_server_follows_with_its_own_files(
    obj: Obj, found: RolloverOnDisk, step: RolloverStep | None, problem: str
) -> None:
    taken, said = follow(obj, found)
    assert taken is step
    assert problem in said
    assert bool(problem) == bool(said)


@pytest.mark.parametrize("phase", ["Prepared", "TrustBoth", "IssueNew", "Drain"])
@pytest.mark.parametrize("wanted", ["TrustBoth", "Retired", "Aborted"])
def test_with_a_key_in_other_hands_neither_ca_vouches_for_the_other(phase: str, wanted: str) -> None:
    stolen = rollover(wanted, phase)
    stolen["spec"]["compromised"] = True
    bridged = replace(disk(phase), is_bridged=True)
    assert plan(stolen, bridged, EMPTY, NOW).step is RolloverStep.UNBRIDGE
    assert plan(stolen, disk(phase), EMPTY, NOW).step is not RolloverStep.UNBRIDGE
    if phase != "Prepared":
        assert follow(stolen, bridged) == (RolloverStep.UNBRIDGE, "")
