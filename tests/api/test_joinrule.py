"""JoinRule: what may be stored, the columns of a list, and the record of keys that joined."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.api.mooring.joinrule import (
    KEPT,
    KIND,
    MAX_JOINS,
    joins_of,
    machines_of,
    machines_of_use,
    with_join,
)
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.trust.joinrule import JoinIdentity
from tests.support.plans import thing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


def use(which: int) -> str:
    return f"sha256:{which:064x}"


def join(which: int, machine: str = ONE, end: timedelta = HOUR) -> Obj:
    return {"use": use(which), "machine": machine, "expires": rfc3339(NOW + end)}


def rule(*joins: Obj, **spec: Any) -> Obj:
    status: dict[str, Any] = {"status": {"joins": list(joins)}} if joins else {}
    full = {"issuer": {"url": "https://id.example"}, "claims": [{"claim": "ref", "value": "x"}], **spec}
    return thing("ci", spec=full, **status)


def identity(which: int, end: timedelta = HOUR) -> JoinIdentity:
    return JoinIdentity(
        rule="ci", digest="d", issuer="https://id.example", subject="s", use=use(which), node_name="", expires=NOW + end
    )


def kept(before: Obj, which: int, machine: str, now: datetime = NOW) -> list[tuple[int, str]]:
    """Return number and machine of the entries behind one more join."""
    after = with_join(before, identity(which), machine, now)
    assert after is not None
    assert KIND.validate(after) == []
    assert after["metadata"] == before["metadata"], "the update is for this resourceVersion"
    return [(int(one["use"].removeprefix("sha256:"), 16), one["machine"]) for one in joins_of(after)]


ENDED = -KEPT - SECOND


@pytest.mark.parametrize(
    ("before", "which", "machine", "entries"),
    [
        pytest.param(rule(), 1, ONE, [(1, ONE)], id="the first"),
        pytest.param(rule(join(1)), 2, TWO, [(1, ONE), (2, TWO)], id="another key with another token"),
        pytest.param(rule(join(1)), 2, ONE, [(1, ONE), (2, ONE)], id="one key with two tokens: both uses are known"),
        pytest.param(rule(join(1)), 1, TWO, [(1, ONE), (1, TWO)], id="a second key that a person lets in with one token"),
        pytest.param(rule(join(1, end=ENDED)), 2, TWO, [(2, TWO)], id="an entry whose token has ended"),
        pytest.param(rule(join(1, end=-KEPT)), 2, TWO, [(1, ONE), (2, TWO)], id="one whose token ended a moment ago"),
        pytest.param(
            rule(join(1, end=ENDED), maxJoins=3), 2, TWO, [(1, ONE), (2, TWO)], id="an ended one that a number counts"
        ),
        pytest.param(rule(join(1, end=ENDED), maxJoins=3), 2, ONE, [(2, ONE)], id="the machine itself needs one entry"),
        pytest.param(
            rule(join(1, end=ENDED), join(2, end=ENDED), maxJoins=3), 3, TWO, [(2, ONE), (3, TWO)],
            id="of a machine with two ended ones the newest is counted",
        ),
        pytest.param(
            rule({"use": use(1), "machine": ONE}, {"use": use(2), "machine": ONE, "expires": "soon"}), 3, TWO,
            [(1, ONE), (2, ONE), (3, TWO)], id="an end that cannot be read has not come",
        ),
    ],
)  # fmt: skip
def test_one_more_join(before: Obj, which: int, machine: str, entries: list[tuple[int, str]]) -> None:
    if "expires" not in (joins_of(before) or [{"expires": ""}])[0]:
        after = with_join(before, identity(which), machine, NOW)
        assert after is not None
        assert [(int(one["use"][7:], 16), one["machine"]) for one in joins_of(after)] == entries
        return
    assert kept(before, which, machine) == entries


def test_a_token_to_the_end_of_time_is_recorded() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    first = with_join(rule(), identity(1, last - NOW), ONE, NOW)
    assert first is not None
    assert kept(first, 2, TWO) == [(1, ONE), (2, TWO)]


def test_a_full_rule_has_room_again_when_tokens_have_ended() -> None:
    full = rule(*(join(which, f"{which:064x}") for which in range(MAX_JOINS)))
    assert with_join(full, identity(MAX_JOINS), TWO, NOW) is None
    assert len(kept(full, MAX_JOINS, TWO, NOW + HOUR + KEPT + SECOND)) == 1


def test_a_machine_joins_again_where_all_that_a_number_allows_have_joined() -> None:
    full = rule(*(join(which, f"{which:064x}", ENDED) for which in range(MAX_JOINS)), maxJoins=MAX_JOINS)
    assert len(kept(full, MAX_JOINS, f"{7:064x}")) == MAX_JOINS
    assert with_join(full, identity(MAX_JOINS), TWO, NOW) is None


def test_machines_are_counted_once() -> None:
    found = rule(join(1), join(2), join(3, TWO), join(3, THREE))
    assert machines_of(found) == (ONE, TWO, THREE)
    assert [machines_of_use(found, use(which)) for which in (1, 3, 4)] == [(ONE,), (TWO, THREE), ()]
    assert machines_of(thing("ci", status=None)) == ()


@pytest.mark.parametrize(
    ("joins", "fields"),
    [
        pytest.param([join(1)], [], id="as the server writes them"),
        pytest.param([{**join(1), "use": "sha256:x"}], ["status.joins[0]"], id="no use"),
        pytest.param([{**join(1), "machine": ONE + "\n"}], ["status.joins[0]"], id="no machine"),
        pytest.param([{}], ["status.joins[0]"], id="an empty entry"),
        pytest.param([join(which) for which in range(MAX_JOINS + 1)], ["status.joins"], id="too many"),
    ],
)
def test_joins_that_are_stored(joins: list[Obj], fields: list[str]) -> None:
    assert [one.field for one in KIND.validate(rule(*joins))] == fields


def test_a_mistake_in_the_spec_is_reported() -> None:
    assert [one.field for one in KIND.validate(rule(claims=[]))] == ["spec.claims"]


def test_only_the_servers_write_the_status() -> None:
    assert KIND.prepare_for_create is not None
    assert KIND.prepare_for_update is not None
    before, after = rule(join(1)), rule(join(2), join(3), maxJoins=2)
    KIND.prepare_for_update(after, before, None)  # type: ignore[arg-type]  # the change is not read
    assert (joins_of(after), after["spec"]["maxJoins"]) == ([join(1)], 2)
    KIND.prepare_for_create(after, None)  # type: ignore[arg-type]  # the change is not read
    assert joins_of(after) == []
    status = rule(join(2), maxJoins=2)
    assert KIND.subresources is not None
    prepare = KIND.subresources["status"].prepare_for_update
    assert prepare is not None
    prepare(status, before, None)  # type: ignore[arg-type]  # the change is not read
    assert (joins_of(status), "maxJoins" in status["spec"]) == ([join(2)], False)


@pytest.mark.parametrize(
    ("obj", "cells"),
    [
        pytest.param(rule(), ["https://id.example", "*", "unlimited", "<none>"], id="a rule with little"),
        pytest.param(
            rule(join(1), join(2), maxJoins=3, nodeName="ci-*", expirationTimestamp="2026-02-01T00:00:00Z"),
            ["https://id.example", "ci-*", "1/3", "2026-02-01T00:00:00Z"], id="a rule with limits",
        ),
        pytest.param(rule(nodeNameExpression="claims.x"), ["https://id.example", "claims.x", "unlimited", "<none>"],
                     id="an expression"),
        pytest.param(thing("ci"), ["", "*", "unlimited", "<none>"], id="without a spec"),
    ],
)  # fmt: skip
def test_columns(obj: Obj, cells: list[str]) -> None:
    columns = {column.name: column for column in KIND.resource.columns}
    assert [columns[name].cell(obj, NOW) for name in ("Issuer", "Node", "Joins", "Ends")] == cells
