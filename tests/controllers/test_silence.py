"""silent-node-controller: machines that never come back are removed, and none because of an outage, a clock or a lost site."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.api.core.event import KIND as EVENT
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers import silence
from mooring.controllers.actions import Action, Create, Delete, Requeue, Update
from mooring.controllers.node import EVERY
from mooring.controllers.silence import MAX_REMOVALS, PERIOD, UNOBSERVED, SilentNodes
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views, with_metadata

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
RULE = timedelta(minutes=30)


def node(name: str = "n1", ready: str = "Unknown", since: str = moment(timedelta(0)), **metadata: Any) -> Obj:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": since}] if ready else []
    created = moment(-DAY) if ready else since
    return thing(name, metadata={"creationTimestamp": created, **metadata}, status={"conditions": conditions})


def identity(name: str = "n1", **spec: Any) -> Obj:
    return thing(name, spec={"keys": [{"notAfter": moment(DAY)}], "silenceSeconds": 1800, **spec})


def lease(renewed: str, name: str = "n1") -> Obj:
    return thing(name, "kube-node-lease", spec={"renewTime": renewed})


HEALTHY = tuple(node(f"healthy-{number}", "True") for number in range(4))


class Cluster:
    """Objects that a controller judges every `PERIOD`, and that it changes as the loop lets it."""

    def __init__(self, *nodes: Obj, identities: Sequence[Obj] = (), limit: timedelta | None = RULE) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.identities = {one["metadata"]["name"]: one for one in identities}
        self.leases: dict[str, Obj] = {}
        self.mark: Obj | None = None
        self.events: list[Obj] = []
        self.log: list[str] = []
        self.marks_written = 0
        self.limit, self.now = limit, NOW
        self.restart()

    def restart(self) -> None:
        self.controller = SilentNodes(self.limit)

    @property
    def views(self) -> Views:
        return views(
            nodes=self.nodes.values(),
            nodeidentities=self.identities.values(),
            leases=self.leases.values(),
            configmaps=[self.mark] if self.mark is not None else [],
        )

    def judge(self) -> list[Action]:
        actions = plan(self.controller, EVERY, self.views, self.now)
        for action in actions:
            self._apply(action)
        return actions

    def _apply(self, action: Action) -> None:
        if isinstance(action, Delete):
            assert action.precondition is not None
            assert action.precondition(self.views, self.now)
            assert action.resource_version == "7"
            del self.nodes[action.name]
            self.log.append(action.announcement)
        elif isinstance(action, Create | Update):
            if action.plural == "configmaps":
                self.mark = {**thing("mooring-silence", "kube-system"), **action.obj}
                self.marks_written += 1
                if isinstance(action, Update) and action.announcement:
                    self.log.append(action.announcement)
            elif action.plural == "events":
                assert EVENT.validate(action.obj) == []
                self.events.append(action.obj)
            else:
                self.identities[action.obj["metadata"]["name"]] = action.obj
        else:
            assert isinstance(action, Requeue)

    def run(self, span: timedelta) -> Cluster:
        """Judge until `span` has passed."""
        ends = self.now + span
        while self.now < ends:
            self.judge()
            self.now += PERIOD
        return self

    @property
    def silent(self) -> list[str]:
        return [name for name in self.nodes if not name.startswith("healthy")]


@pytest.mark.parametrize(
    "since",
    [
        pytest.param("2090-01-01T00:00:00Z", id="into the future"),
        pytest.param("0001-01-01T00:00:00Z", id="before every clock"),
        pytest.param("", id="without a time"),
    ],
)
def test_a_machine_that_dates_its_own_silence_is_removed_as_well(since: str) -> None:
    cluster = Cluster(*HEALTHY, node(since=since), identities=[identity()])
    assert cluster.run(RULE).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []


def test_a_machine_that_never_comes_back_is_removed() -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity(silenceSeconds=None)])
    assert cluster.run(RULE + PERIOD).silent == ["n1"], "longer than the rule"
    assert cluster.run(PERIOD).silent == []
    assert cluster.identities["n1"]["spec"]["endReason"] == "Silent"
    (event,) = cluster.events
    assert (event["reason"], event["type"]) == ("Silent", "Warning")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}
    assert event["message"] == (
        "the Node n1 was deleted, because its machine has been silent since 2026-01-02T03:04:05Z, for longer than 30m0s "
        "(--end-silent-members-after). To let it back, let it join again with a valid token, or approve its request "
        "(mooring csr approve)"
    )
    assert cluster.log == [event["message"]]


def test_the_rule_of_the_token_comes_before_that_of_the_server() -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity(silenceSeconds=120)])
    assert cluster.run(2 * MINUTE).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []
    assert "2m0s (which its token set)" in cluster.log[0]
    assert cluster.log[0].endswith("with a valid token")


@pytest.mark.parametrize(
    ("found", "limit", "identities"),
    [
        pytest.param(node(ready="True"), RULE, [identity()], id="a machine that reports"),
        pytest.param(node(ready="False"), RULE, [identity()], id="a machine that is not ready, and says so"),
        pytest.param(node(), None, [], id="without a rule"),
        pytest.param(node(), None, [identity(silenceSeconds=None)], id="with a record that has none"),
        pytest.param(node(annotations={"mooring.dev/may-be-silent": "true"}), RULE, [identity()], id="exempt"),
        pytest.param(node(deletionTimestamp=moment(HOUR)), RULE, [identity()], id="deleted, and held by a finalizer"),
    ],
)
def test_what_is_not_removed(found: Obj, limit: timedelta | None, identities: list[Obj]) -> None:
    assert Cluster(*HEALTHY, found, identities=identities, limit=limit).run(2 * HOUR).silent == ["n1"]


@pytest.mark.parametrize("text", ["false", "", "True"])
def test_only_true_exempts(text: str) -> None:
    found = node(annotations={"mooring.dev/may-be-silent": text})
    assert Cluster(*HEALTHY, found).run(HOUR).silent == []


def test_a_node_that_never_reported_is_silent_since_its_creation() -> None:
    assert Cluster(*HEALTHY, node(ready="")).run(RULE + MINUTE).silent == []


def test_the_mark_is_written_once_a_minute_and_only_while_a_machine_is_silent() -> None:
    assert Cluster(*HEALTHY).run(HOUR).mark is None
    cluster = Cluster(*HEALTHY, node(), limit=DAY).run(10 * MINUTE)
    assert cluster.marks_written == 10
    cluster.nodes["n1"] = node(ready="True")
    cluster.run(10 * MINUTE)
    assert cluster.marks_written == 10


def test_an_outage_of_the_server_is_not_silence() -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    cluster.now += UNOBSERVED + MINUTE
    cluster.restart()
    assert cluster.run(RULE).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []


def test_a_short_restart_does_not_begin_again() -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - 4 * MINUTE)
    cluster.now += 2 * MINUTE
    cluster.restart()
    assert cluster.run(UNOBSERVED).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: None, id="missing"),
        pytest.param(lambda data: {}, id="empty"),
        pytest.param(lambda data: {**data, "observedSince": "junk"}, id="unreadable"),
        pytest.param(lambda data: {**data, "lastObserved": moment(DAY)}, id="of the future"),
        pytest.param(lambda data: {**data, "observedSince": moment(DAY)}, id="begun after it was written"),
        pytest.param(lambda data: {**data, "lastObserved": moment(timedelta(0))}, id="old"),
        pytest.param(lambda data: {**data, "heldSpans": "junk"}, id="with spans that cannot be read"),
        pytest.param(lambda data: {**data, "removed": "junk"}, id="with removals that cannot be read"),
    ],
)
def test_a_mark_that_says_nothing_begins_again(change: Any) -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    assert cluster.mark is not None
    data = change(cluster.mark["data"])
    cluster.mark = {**cluster.mark, "data": data} if data is not None else None
    cluster.restart()
    assert cluster.run(RULE).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []


@pytest.mark.parametrize("jump", [6 * MINUTE, HOUR, 3650 * DAY, -HOUR, -365 * DAY])
def test_a_clock_that_is_set_ends_no_membership(jump: timedelta) -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    cluster.now += jump
    assert cluster.run(RULE - MINUTE).silent == ["n1"]


def test_a_small_jump_of_the_clock_does_not_shorten_a_short_rule() -> None:
    cluster = Cluster(*HEALTHY, node(), limit=2 * MINUTE).run(MINUTE)
    cluster.now += 4 * MINUTE
    assert cluster.run(2 * MINUTE).silent == ["n1"]
    assert cluster.run(PERIOD).silent == []


@pytest.mark.parametrize(
    ("late", "left"),
    [
        pytest.param(PERIOD, ["n1"], id="a judgement that is a period late may be a clock that was set"),
        pytest.param(PERIOD - timedelta(seconds=1), [], id="one that is less late is not"),
    ],
)
def test_a_judgement_that_comes_late(late: timedelta, left: list[str]) -> None:
    cluster = Cluster(*HEALTHY, node(), limit=2 * MINUTE).run(MINUTE)
    cluster.now += late
    assert cluster.run(MINUTE + PERIOD).silent == left
    assert cluster.run(MINUTE).silent == []


def test_a_machine_whose_old_silence_is_new_here_is_watched_for_a_minute() -> None:
    other = node("n0", since=moment(-3 * HOUR))
    cluster = Cluster(*HEALTHY, other, identities=[identity("n0", silenceSeconds=86400)]).run(HOUR)
    cluster.nodes["n1"] = node()
    assert cluster.run(MINUTE).silent == ["n0", "n1"]
    assert cluster.run(PERIOD).silent == ["n0"]


@pytest.mark.parametrize(
    ("age", "left"),
    [
        pytest.param(UNOBSERVED, [], id="as old as it may be"),
        pytest.param(UNOBSERVED + timedelta(seconds=1), ["n1"], id="older"),
        pytest.param(-PERIOD, [], id="of a clock that is ahead by a difference that is not noticed"),
        pytest.param(-PERIOD - timedelta(seconds=1), ["n1"], id="of one that is ahead by more"),
    ],
)
def test_a_mark_of_another_leader_continues_while_it_is_young(age: timedelta, left: list[str]) -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    assert cluster.mark is not None
    cluster.mark = {**cluster.mark, "data": {**cluster.mark["data"], "lastObserved": rfc3339(cluster.now - age)}}
    cluster.restart()
    assert cluster.run(10 * MINUTE).silent == left


def test_a_machine_that_falls_silent_later_waits_for_its_own_silence_only() -> None:
    cluster = Cluster(*HEALTHY).run(10 * HOUR)
    cluster.nodes["n1"] = node(since=rfc3339(cluster.now))
    assert cluster.run(RULE + MINUTE).silent == []


def test_a_lease_that_is_renewed_breaks_the_silence() -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    cluster.leases["n1"] = lease("after")
    assert cluster.run(RULE).silent == ["n1"]
    assert cluster.run(MINUTE).silent == []


@pytest.mark.parametrize(
    ("renewed", "left"),
    [
        pytest.param(moment(RULE - MINUTE), ["n1"], id="it counts by its time"),
        pytest.param(moment(DAY), [], id="but for one of the future"),
        pytest.param("junk", [], id="and for one that is no time"),
    ],
)
def test_a_renewal_that_the_process_did_not_see(renewed: str, left: list[str]) -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity()]).run(RULE - MINUTE)
    cluster.leases["n1"] = lease(renewed)
    cluster.restart()
    assert cluster.run(10 * MINUTE).silent == left
    assert cluster.run(RULE).silent == []


@pytest.mark.parametrize("since", [moment(RULE - MINUTE), "2090-01-01T00:00:00Z"], ids=["now", "by its own time"])
def test_another_node_of_the_name_is_another_machine(since: str) -> None:
    cluster = Cluster(*HEALTHY, node()).run(RULE - MINUTE)
    cluster.nodes["n1"] = node(uid="u2", since=since)
    assert cluster.run(RULE).silent == ["n1"]


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        pytest.param({}, True, id="nothing changed"),
        pytest.param({"leases": [lease("now")]}, False, id="the Lease was renewed"),
        pytest.param({"nodes": [with_metadata(node(), resourceVersion="8")]}, False, id="the Node was changed"),
        pytest.param({"nodes": []}, False, id="the Node is gone"),
    ],
)
def test_a_heartbeat_between_plan_and_commit_stops_the_removal(changed: dict[str, Any], holds: bool) -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity()]).run(RULE)
    before = cluster.views
    cluster.judge()
    cluster.now += PERIOD
    removal = [
        action for action in plan(cluster.controller, EVERY, before, cluster.now) if not isinstance(action, Requeue)
    ]
    record, deletion, event = removal[-3:]
    assert isinstance(record, Update)
    assert isinstance(deletion, Delete)
    assert isinstance(event, Create)
    for action in (record, deletion):
        assert action.precondition is not None
        assert action.precondition(views(**{"nodes": [node()], **changed}), cluster.now) is holds


@pytest.mark.parametrize("others", [[], [node("n2")]], ids=["alone", "while another one is silent"])
def test_a_machine_that_came_back_is_not_called_silent(others: list[Obj]) -> None:
    cluster = Cluster(*HEALTHY, node(ready="True"), *others, identities=[identity(endReason="Silent")])
    cluster.judge()
    assert "endReason" not in cluster.identities["n1"]["spec"]


def test_a_removal_that_failed_after_its_record_is_repeated() -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity()]).run(RULE + PERIOD)
    cluster.identities["n1"] = identity(endReason="Silent")
    cluster.controller.limit = None
    assert cluster.run(PERIOD).silent == []
    assert cluster.identities["n1"]["spec"]["endReason"] == "Silent"


@pytest.mark.parametrize(
    "identity_of_gone",
    [
        pytest.param(identity("n2", endReason="Silent"), id="of a machine without a Node"),
        pytest.param(identity("healthy-1", endReason="Silent", nodeUID="another"), id="of an earlier Node"),
        pytest.param(identity("healthy-1", endReason="Revoked"), id="that is another one"),
    ],
)
def test_an_ended_membership_keeps_its_reason(identity_of_gone: Obj) -> None:
    assert plan(SilentNodes(), EVERY, Cluster(*HEALTHY, identities=[identity_of_gone]).views) == []


def site(size: int, since: datetime = NOW) -> list[Obj]:
    return [node(f"n{number}", since=rfc3339(since + number * MINUTE / 10)) for number in range(size)]


@pytest.mark.parametrize(
    ("size", "healthy", "left"),
    [(1, 0, 0), (2, 1, 2), (1, 1, 0), (2, 6, 0), (3, 5, 3), (25, 75, 0), (26, 74, 26)],
)
def test_never_more_than_a_share_at_a_time(size: int, healthy: int, left: int) -> None:
    others = [node(f"healthy-{number}", "True") for number in range(healthy)]
    assert len(Cluster(*site(size), *others).run(RULE + 10 * MINUTE).silent) == left


def test_nodes_that_are_deleted_count_for_no_share() -> None:
    deleted = node("healthy-9", "True", deletionTimestamp=moment(HOUR))
    assert len(Cluster(*site(2), *HEALTHY, node("healthy-5", "True"), deleted).run(HOUR).silent) == 2


@pytest.mark.parametrize("apart", [RULE, -RULE], ids=["later", "earlier"])
def test_a_machine_that_fell_silent_by_its_rule_apart_is_of_the_site(apart: timedelta) -> None:
    identities = [identity("n0"), identity("n1", silenceSeconds=2 * 3600)]
    cluster = Cluster(node("n0"), node("n1", since=moment(apart)), *HEALTHY, identities=identities)
    assert cluster.run(RULE + 10 * MINUTE).silent == ["n0", "n1"]
    assert cluster.mark is not None
    assert cluster.mark["data"]["heldBack"] == "2"


def at(minutes: int) -> str:
    return moment(minutes * MINUTE - DAY / 2)


@pytest.mark.parametrize(
    ("known", "silences", "spans"),
    [
        pytest.param([], [0, 10], [(-30, 30)], id="one site"),
        pytest.param([], [10, 0], [(-30, 30)], id="in whichever order its machines are listed"),
        pytest.param([], [0, 10, 40, 50], [(-30, 70)], id="a site that was cut off piece by piece"),
        pytest.param([], [0, 10, 60, 70], [(-30, 90)], id="two that touch"),
        pytest.param([], [200, 210, 0, 10], [(-30, 30), (170, 230)], id="two apart"),
        pytest.param([(31, 90)], [0, 10, 70], [(-30, 30), (31, 90)], id="one before another that was known"),
        pytest.param([(30, 90)], [0, 10, 70], [(-30, 90)], id="one that touches another that was known"),
        pytest.param([(300, 330)], [0, 10], [(-30, 30)], id="one after all machines of another have come back"),
    ],
)
def test_the_mark_says_between_which_times_machines_fell_silent(
    known: list[tuple[int, int]], silences: list[int], spans: list[tuple[int, int]]
) -> None:
    def text(pairs: list[tuple[int, int]]) -> str:
        return " ".join(f"{at(first)}/{at(last)}" for first, last in pairs)

    cluster = Cluster(*(node(f"n{number}", since=at(minutes)) for number, minutes in enumerate(silences)))
    data = {"observedSince": moment(-DAY), "lastObserved": moment(timedelta(0)), "heldSpans": text(known)}
    cluster.mark = {**thing("mooring-silence", "kube-system"), "data": data}
    cluster.run(UNOBSERVED + PERIOD)
    assert cluster.mark["data"]["heldSpans"] == text(spans), "at the first judgement of the machines"
    assert len(cluster.run(10 * MINUTE).silent) == len(silences)
    assert cluster.mark["data"]["heldSpans"] == text(spans)


def test_a_machine_with_a_short_rule_is_held_back_with_the_site_that_fell_silent_later() -> None:
    nodes = [node(f"n{number}", since=at(minutes)) for number, minutes in enumerate((0, 20, 25))]
    cluster = Cluster(*nodes, identities=[identity("n0", silenceSeconds=300)])
    data = {"observedSince": moment(-DAY), "lastObserved": moment(timedelta(0))}
    cluster.mark = {**thing("mooring-silence", "kube-system"), "data": data}
    assert cluster.run(10 * MINUTE).silent == ["n0", "n1", "n2"]


def test_a_site_is_found_among_machines_that_fell_silent_in_another_order_than_that_of_their_names() -> None:
    nodes = [node("n0"), node("n1", since=moment(-100 * MINUTE)), node("n2", since=moment(MINUTE))]
    cluster = Cluster(*nodes, *HEALTHY, identities=[identity("n1", silenceSeconds=86400)])
    assert cluster.run(RULE + 10 * MINUTE).silent == ["n0", "n1", "n2"]
    back(cluster, "n2")
    assert "n0" in cluster.run(10 * MINUTE).nodes


@pytest.mark.parametrize(
    ("since", "kept"),
    [
        pytest.param(moment(-3 * HOUR), False, id="for as long as one may be found that fell silent with it"),
        pytest.param(moment(20 * MINUTE), True, id="longer while one is silent that did"),
    ],
)
def test_a_removal_is_remembered(since: str, kept: bool) -> None:
    identities = [identity(name, silenceSeconds=86400) for name in ("n1", "n2")]
    nodes = [node("n0"), node("n1", since=since), node("n2", since=moment(-3 * HOUR))]
    fleet = [node(f"healthy-{number}", "True") for number in range(12)]
    cluster = Cluster(*nodes, *fleet, identities=identities).run(HOUR)
    assert cluster.silent == ["n1", "n2"]
    assert cluster.mark is not None
    assert cluster.mark["data"]["removed"].startswith("n0=")
    cluster.run(PERIOD)
    assert ("removed" in cluster.mark["data"]) is kept


def test_machines_without_a_rule_are_silent_with_their_site() -> None:
    identities = [identity("n0")]
    assert len(Cluster(*site(3), *HEALTHY, identities=identities, limit=None).run(HOUR).silent) == 3


def test_machines_that_fell_silent_on_different_days_are_no_site() -> None:
    days = [node(f"n{number}", since=moment(-number * 2 * HOUR)) for number in range(6)]
    assert Cluster(*days, *HEALTHY).run(HOUR).silent == []


def test_a_site_that_was_cut_off_is_said_once() -> None:
    cluster = Cluster(*site(6), *HEALTHY).run(RULE + 2 * HOUR)
    (event,) = cluster.events
    assert event["reason"] == "SilenceHeldBack"
    assert event["type"] == "Warning"
    assert len(cluster.log) == 1
    assert cluster.log[0].startswith("silent machines that are not removed: 6, n0 among them.")
    assert cluster.mark is not None
    assert cluster.mark["data"]["heldBack"] == "6"
    assert "mooring node prune" in cluster.mark["data"]["message"]
    # The site is back.
    cluster.nodes = {one["metadata"]["name"]: one for one in HEALTHY}
    cluster.run(MINUTE)
    assert cluster.mark["data"]["heldBack"] == "0"
    assert "message" not in cluster.mark["data"]


def back(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.nodes[name] = node(name, "True")


def test_a_site_stays_held_back_while_its_machines_come_back_one_after_another() -> None:
    cluster = Cluster(*site(6), *HEALTHY).run(RULE + 10 * MINUTE)
    for number in range(5):
        back(cluster, f"n{number}")
        cluster.restart()
        cluster.run(10 * MINUTE)
    assert "n5" in cluster.nodes
    assert cluster.mark is not None
    assert (cluster.mark["data"]["heldBack"], len(cluster.mark["data"]["heldSpans"].split())) == ("1", 1)
    back(cluster, "n5")
    cluster.run(MINUTE)
    assert "heldSpans" not in cluster.mark["data"]
    cluster.nodes["n5"] = node("n5", since=rfc3339(cluster.now))
    assert "n5" not in cluster.run(RULE + 10 * MINUTE).nodes, "it fell silent again, and alone"


@pytest.mark.parametrize("pause", [PERIOD, 2 * PERIOD], ids=["each time", "every other time"])
def test_machines_whose_lease_is_renewed_are_silent_with_nobody(pause: timedelta) -> None:
    cluster = Cluster(node("n5"), *site(5), *HEALTHY)
    while cluster.now < NOW + RULE + 10 * MINUTE:
        for number in range(5):
            cluster.leases[f"n{number}"] = lease(rfc3339(cluster.now), f"n{number}")
        cluster.run(pause)
    assert cluster.silent == ["n0", "n1", "n2", "n3", "n4"]


def test_machines_that_were_heard_once_more_are_a_site_all_the_same() -> None:
    cluster = Cluster(*site(6), *HEALTHY).run(5 * MINUTE)
    for number in range(6):
        cluster.leases[f"n{number}"] = lease("after", f"n{number}")
    assert len(cluster.run(HOUR).silent) == 6


def test_a_machine_that_came_back_by_its_lease_alone_is_judged_anew() -> None:
    cluster = Cluster(*site(3), *HEALTHY).run(RULE + 10 * MINUTE)
    back(cluster, "n0", "n2")
    for _ in range(6):
        cluster.leases["n1"] = lease(rfc3339(cluster.now))
        cluster.run(PERIOD)
    assert cluster.mark is not None
    assert cluster.mark["data"]["heldBack"] == "0"
    assert "n1" in cluster.run(RULE - MINUTE).nodes
    assert "n1" not in cluster.run(10 * MINUTE).nodes, "it fell silent again, and alone"


def test_a_site_stays_held_back_when_the_cluster_grows() -> None:
    cluster = Cluster(*site(3), *HEALTHY).run(RULE + 10 * MINUTE)
    for number in range(40):
        back(cluster, f"healthy-new-{number}")
    assert len(cluster.run(HOUR).silent) == 3


def test_machines_that_were_removed_count_with_those_that_fell_silent_together() -> None:
    """A site that dies piece by piece, of 13 machines one each four minutes, with a rule of ten minutes."""
    cluster = Cluster(*(node(f"healthy-{number}", "True") for number in range(13)), limit=10 * MINUTE)
    for number in range(5):
        del cluster.nodes[f"healthy-{number}"]
        cluster.nodes[f"n{number}"] = node(f"n{number}", since=rfc3339(cluster.now))
        cluster.run(4 * MINUTE)
    assert cluster.run(HOUR).silent == ["n1", "n2", "n3"], "n0 and n4 fell silent with two others, n1 with three"


def test_machines_that_fall_silent_further_apart_than_their_rule_are_no_site() -> None:
    identities = [identity(f"n{number}", silenceSeconds=120) for number in range(6)]
    nodes = [node(f"n{number}", since=moment(-number * 5 * MINUTE)) for number in range(6)]
    assert Cluster(*nodes, *HEALTHY, identities=identities).run(HOUR).silent == []


def test_the_mark_names_a_bounded_number_of_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "MAX_REMOVED", 3)
    fleet = [node(f"healthy-{number}", "True") for number in range(40)]
    cluster = Cluster(*site(5), *fleet).run(RULE + 10 * MINUTE)
    assert len(cluster.silent) == 2
    assert cluster.mark is not None
    assert [text.partition("=")[0] for text in cluster.mark["data"]["removed"].split()] == ["n0", "n1", "n2"]
    assert len(cluster.run(HOUR).silent) == 2, "those that may have fallen silent with the others wait"


def test_a_machine_that_joined_again_is_not_counted_as_removed() -> None:
    cluster = Cluster(*HEALTHY, node("n0")).run(RULE + 10 * MINUTE)
    back(cluster, "n0")
    cluster.nodes["n1"] = node("n1", since=rfc3339(cluster.now))
    cluster.run(MINUTE)
    assert cluster.mark is not None
    assert "removed" not in cluster.mark["data"]


def test_many_machines_are_removed_in_several_plans() -> None:
    fleet = [node(f"healthy-{number}", "True") for number in range(4 * MAX_REMOVALS + 100)]
    cluster = Cluster(*[node(f"n{number}") for number in range(MAX_REMOVALS + 1)], *fleet)
    cluster.run(RULE)
    while len(cluster.silent) == MAX_REMOVALS + 1:
        cluster.run(PERIOD)
    assert len(cluster.silent) == 1
    assert cluster.run(MINUTE).silent == []


@pytest.mark.parametrize("after", [timedelta(0), PERIOD / 2], ids=["again", "between"])
def test_a_judgement_before_its_time_waits(after: timedelta) -> None:
    controller = SilentNodes(RULE)
    found = Cluster(*HEALTHY, node()).views
    assert plan(controller, EVERY, found)[-1] == Requeue(NOW + PERIOD)
    assert plan(controller, EVERY, found, NOW + after) == [Requeue(NOW + PERIOD)]


def test_only_events_of_nodes_are_judged() -> None:
    cluster = Cluster(*HEALTHY, node(), identities=[identity()])
    cluster.leases["n1"] = lease("now")
    assert set(enqueued(cluster.controller, cluster.views)) == {EVERY}
    assert len(enqueued(cluster.controller, cluster.views)) == len(cluster.nodes)
