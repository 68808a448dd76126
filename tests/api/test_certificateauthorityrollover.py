"""CertificateAuthorityRollover: one object, phases that go forward, and printed columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.api.kind import Change
from mooring.api.mooring.certificateauthorityrollover import KIND, SINGLETON, next_phase
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rollover(phase: str | None = "TrustBoth", reached: str = "", **spec: object) -> Obj:
    found: Obj = {"metadata": {"name": SINGLETON}, "spec": spec if phase is None else {"phase": phase, **spec}}
    if reached:
        found["status"] = {"phase": reached}
    return found


def test_there_is_one_object() -> None:
    assert KIND.name_errors(SINGLETON) == []
    assert KIND.name_errors("other") == ['the one rollover of a cluster is named "cluster-ca"']


@pytest.mark.parametrize(
    ("obj", "messages"),
    [
        pytest.param(rollover(), [], id="the first phase"),
        pytest.param(rollover("Retired", force="Retired", compromised=True), [], id="the last phase"),
        pytest.param(rollover("Done"), ["spec.phase: Unsupported value"], id="a phase that is only reached"),
        pytest.param(rollover(force="all"), ["spec.force: Unsupported value"], id="force of no phase"),
        pytest.param(rollover("Aborted"), ["did not begin"], id="aborted from the start"),
    ],
)
def test_what_may_be_created(obj: Obj, messages: list[str]) -> None:
    errors = [str(error) for error in (*KIND.validate(obj), *KIND.validate_create(obj))]
    assert len(errors) == len(messages)
    assert all(part in error for part, error in zip(messages, errors, strict=True)), errors


@pytest.mark.parametrize(
    ("before", "wanted", "message"),
    [
        pytest.param("TrustBoth", "TrustBoth", "", id="no change"),
        pytest.param("TrustBoth", "Retired", "", id="forward over phases, each of which the server passes"),
        pytest.param("Drain", "IssueNew", "cannot go back from Drain", id="back"),
        pytest.param("Drain", "Aborted", "", id="abort"),
        pytest.param("Retired", "Aborted", "there is no way back", id="abort of a retirement"),
        pytest.param("Aborted", "TrustBoth", "was aborted", id="on after an abort"),
        pytest.param("Drain", "oops", "", id="an unknown phase, which another check refuses"),
        pytest.param("oops", "Drain", "", id="from an unknown phase"),
    ],
)
def test_the_wanted_phase_goes_forward(before: str, wanted: str, message: str) -> None:
    errors = KIND.validate_update(rollover(wanted), rollover(before))
    assert bool(errors) == bool(message)
    assert all(message in str(error) for error in errors)


def test_status_is_the_servers_own() -> None:
    change = Change(UserInfo("jane"), NOW)
    given = rollover(None, reached="Done")
    KIND.default(given)
    KIND.prepare_for_create(given, change)
    assert (given["spec"], given["status"]) == ({"phase": "TrustBoth"}, {})
    bare: Obj = {"metadata": {"name": SINGLETON}}
    KIND.default(bare)
    assert bare["spec"] == {"phase": "TrustBoth"}
    changed = rollover("Drain", reached="Done")
    KIND.prepare_for_update(changed, rollover(reached="TrustBoth"), change)
    assert changed["status"] == {"phase": "TrustBoth"}
    assert KIND.subresources is not None
    changed = rollover("Retired", reached="Drain")
    KIND.subresources["status"].prepare_for_update(changed, rollover(), change)
    assert (changed["spec"], changed["status"]) == ({"phase": "TrustBoth"}, {"phase": "Drain"})


@pytest.mark.parametrize(
    ("obj", "phase"),
    [
        pytest.param(rollover(), "TrustBoth", id="nothing was reached"),
        pytest.param(rollover(reached="Prepared"), "TrustBoth", id="prepared"),
        pytest.param(rollover(reached="TrustBoth"), "IssueNew", id="both are trusted"),
        pytest.param(rollover(reached="Drain"), "Retired", id="machines renew"),
        pytest.param(rollover(reached="Retired"), "", id="retired"),
        pytest.param(rollover(reached="Done"), "", id="done"),
        pytest.param(rollover("Aborted", reached="Drain"), "", id="aborted"),
    ],
)
def test_the_next_phase_follows_the_one_that_was_reached(obj: Obj, phase: str) -> None:
    assert next_phase(obj) == phase


def test_columns() -> None:
    def cells(obj: Obj) -> list[object]:
        return [column.cell(obj, NOW) for column in KIND.resource.columns if column.name != "Age"]

    assert cells(rollover()) == [SINGLETON, "TrustBoth", "<none>", "<none>", ""]
    full = rollover("Retired", reached="Drain")
    full["status"] |= {"machinesBehindTotal": 2, "message": "waiting for 2 machines"}
    assert cells(full) == [SINGLETON, "Retired", "Drain", "2", "waiting for 2 machines"]
