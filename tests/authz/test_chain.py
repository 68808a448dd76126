"""Authorizer chain, its table, the privileged group, AlwaysAllow and AlwaysDeny.

Source: docs/protocol/authorization.md, docs/protocol/rbac.md#evaluation.
"""

from __future__ import annotations

import pytest

from mooring.api.view import FixedView, Views
from mooring.authz.decision import Attributes, Authorizer, Decision, Ruling, authorize
from mooring.authz.table import AUTHORIZERS, build
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from tests.support.rbac import rbac_views

ASKED = Attributes(user=UserInfo("jane"), verb="get", resource="secrets", namespace="ns")


class Says:
    name = "says"

    def __init__(self, ruling: Ruling, reason: str = "", error: str = "") -> None:
        self.decision = Decision(ruling, reason, error)

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return self.decision


ALLOW, DENY, SILENT = Says(Ruling.ALLOW, "yes"), Says(Ruling.DENY, "never"), Says(Ruling.NO_OPINION)
SHY = Says(Ruling.NO_OPINION, "not me", "broken")
COY = Says(Ruling.NO_OPINION, "nor me", "too")


@pytest.mark.parametrize(
    ("authorizers", "decision"),
    [
        pytest.param((), Decision(Ruling.NO_OPINION), id="nobody to ask means no"),
        pytest.param((SILENT, ALLOW, DENY), Decision(Ruling.ALLOW, "yes"), id="the first opinion counts"),
        pytest.param((SHY, DENY, ALLOW), Decision(Ruling.DENY, "never"), id="a denial ends it"),
        pytest.param(
            (SHY, SILENT, COY), Decision(Ruling.NO_OPINION, "not me\nnor me", "broken, too"), id="reasons are joined"
        ),
    ],
)
def test_the_chain(authorizers: tuple[Authorizer, ...], decision: Decision) -> None:
    assert authorize(ASKED, authorizers, {}) == decision
    assert decision.allowed is (decision.ruling is Ruling.ALLOW)


@pytest.mark.parametrize(
    ("modes", "groups", "allowed"),
    [
        pytest.param(["AlwaysAllow"], (), True, id="AlwaysAllow allows"),
        pytest.param(["AlwaysDeny"], (), False, id="AlwaysDeny does not"),
        pytest.param(["AlwaysDeny"], ("system:masters",), True, id="system:masters may always"),
        pytest.param(["Node", "RBAC"], ("system:masters",), True, id="system:masters needs no binding"),
        pytest.param(["Node", "RBAC"], (), False, id="without a binding nobody may"),
    ],
)
def test_modes(modes: list[str], groups: tuple[str, ...], allowed: bool) -> None:
    asked = Attributes(user=UserInfo("jane", groups=groups), verb="get", resource="secrets", namespace="ns")
    assert authorize(asked, build(modes), rbac_views()).allowed is allowed


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ([], "at least one mode"),
        (["Magic"], '"Magic" is not one of'),
        (["RBAC", "RBAC"], '"RBAC" is given more than once'),
    ],
)
def test_bad_modes(modes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(modes)


def test_the_privileged_group_comes_first_and_names_agree_with_the_table() -> None:
    assert [authorizer.name for authorizer in build(list(AUTHORIZERS))] == ["Masters", *AUTHORIZERS]


def test_one_authorizer_judges_each_user_by_itself() -> None:
    admin, node = UserInfo("admin", groups=("system:masters",)), UserInfo("system:node:a", groups=("system:nodes",))
    authorizers = build(["Node", "RBAC"])
    views = rbac_views([])

    def ruling(user: UserInfo) -> Ruling:
        asked = Attributes(user=user, verb="create", group="authentication.k8s.io", resource="tokenreviews")
        return authorize(asked, authorizers, {**views, "nodes": FixedView([{"metadata": {"name": "a"}}])}).ruling

    users = (admin, ASKED.user, node, ASKED.user, node, node, admin, UserInfo("admin"), UserInfo("system:node:a"))
    assert [ruling(user) is Ruling.ALLOW for user in users] == [
        True, False, True, False, True, True, True, False, False
    ]  # fmt: skip
