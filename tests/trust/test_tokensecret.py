"""Secrets of bootstrap tokens: lenient and strict reading, authentication, writing.

Source: docs/protocol/bootstrap-tokens.md.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.restrictions import Restrictions
from mooring.trust.bootstraptoken.token import GROUP_PATTERN, TokenError, parse_token

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKEN = parse_token("07401b.f395accd246ae52d")


def b64(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def secret(change: dict[str, str | None] | None = None, **top: Any) -> Obj:
    """A good token Secret, with data changed (None removes) and top-level fields replaced."""
    data: dict[str, str | None] = {
        "token-id": "07401b",
        "token-secret": "f395accd246ae52d",
        "expiration": "2026-01-02T03:04:06Z",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": "system:bootstrappers:b,system:bootstrappers:a",
        **(change or {}),
    }
    return {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "bootstrap-token-07401b", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: b64(value) for key, value in data.items() if value is not None},
        **top,
    }


@pytest.mark.parametrize(
    ("obj", "wanted"),
    [
        pytest.param({"data": {"k": b64("v")}}, "v", id="its value"),
        pytest.param({"data": {}}, "", id="nothing for a missing key"),
        pytest.param({}, "", id="nothing for missing data"),
        pytest.param({"data": None}, "", id="nothing for null data"),
        pytest.param({"data": {"k": ""}}, "", id="nothing for an empty value"),
        pytest.param({"data": {"k": "*"}}, "\ufffd", id="a sign that no rule accepts for what is not base64"),
        pytest.param({"data": {"k": 7}}, "\ufffd", id="the same sign for what is not text"),
        pytest.param({"data": {"k": "é"}}, "\ufffd", id="the same sign for what is not ASCII"),
        pytest.param({"data": {"k": b64(b"\xff")}}, "\ufffd", id="the same sign for bytes that are not UTF-8"),
    ],
)
def test_a_data_value_reads_as(obj: Obj, wanted: str) -> None:
    assert tokensecret.data_value(obj, "k") == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bootstrap-token-07401b", "07401b"),
        ("bootstrap-token-07401", None),
        ("bootstrap-token-07401B", None),
        ("bootstrap-token-07401b\n", None),
        ("bootstrap-token-", None),
        ("07401b", None),
        ("xbootstrap-token-07401b", None),
    ],
)
def test_a_secret_named_so_holds_the_token_of_id(name: str, wanted: str | None) -> None:
    assert tokensecret.token_id_of_name(name) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05-02:30", datetime(2026, 1, 2, 5, 34, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.5Z", datetime(2026, 1, 2, 3, 4, 5, 500000, tzinfo=UTC)),
        ("2026-01-02T03:04:05,25Z", datetime(2026, 1, 2, 3, 4, 5, 250000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789123Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02T3:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("2026-01-02T03:04:05+24:60", datetime(2026, 1, 1, 2, 4, 5, tzinfo=UTC)),
        ("9999-12-31T23:59:59-10:00", datetime.max.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00+10:00", datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_go_and_so_we_read_the_time(text: str, wanted: datetime) -> None:
    assert tokensecret.parse_expiration(text) == wanted
    assert tokensecret.expiration(secret({"expiration": text})) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02t03:04:05Z",
        "2026-01-02T03:04:05z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:05Z ",
        "2026-01-02T03:04:05Z\n",
        "2026-1-02T03:04:05Z",
        "2026-01-02T03:4:05Z",
        "2026-01-02T03:04:05+0200",
        "2026-13-02T03:04:05Z",
        "2026-02-29T03:04:05Z",
        "2026-01-02T24:00:00Z",
        "2026-01-02T03:04:60Z",
        "2026-01-02T03:04:05+25:00",
        "2026-01-02T03:04:05+00:61",
        "0000-01-02T03:04:05Z",
        "٢٠٢٦-01-02T03:04:05Z",
    ],
)
def test_an_unreadable_expiration_counts_as_expired(text: str) -> None:
    assert tokensecret.expired(secret({"expiration": text}), datetime.min.replace(tzinfo=UTC))
    with pytest.raises(TokenError, match="the expiration is not"):
        tokensecret.expiration(secret({"expiration": text}))


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        pytest.param(NOW, False, id="a second before its time it lives"),
        pytest.param(NOW + timedelta(microseconds=999_999), False, id="a microsecond before its time it lives"),
        pytest.param(NOW + timedelta(seconds=1), True, id="at the instant itself it is expired"),
        pytest.param(NOW + timedelta(days=1), True, id="a day later it is expired"),
    ],
)
def test_expiry(now: datetime, wanted: bool) -> None:
    assert tokensecret.expired(secret(), now) is wanted


@pytest.mark.parametrize("value", [None, ""])
def test_without_expiration_a_token_never_expires(value: str | None) -> None:
    assert tokensecret.expiration(secret({"expiration": value})) is None
    assert not tokensecret.expired(secret({"expiration": value}), datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize("value", ["True", "true ", " true", "true\n", "1", "yes", "", None])
def test_a_usage_is_not_enabled_by(value: str | None) -> None:
    assert not tokensecret.usage_enabled(secret({"usage-bootstrap-signing": value}), "signing")


def test_a_usage_is_enabled_by_exactly_true() -> None:
    assert tokensecret.usage_enabled(secret(), "signing")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param(None, ("system:bootstrappers",), id="no key: the default group"),
        pytest.param("", ("system:bootstrappers",), id="an empty value: the default group"),
        pytest.param(
            "system:bootstrappers:b,system:bootstrappers:a,system:bootstrappers:b",
            ("system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"),
            id="several: sorted, none twice",
        ),
    ],
)
def test_groups_are_granted(text: str | None, wanted: tuple[str, ...]) -> None:
    assert tokensecret.groups(secret({"auth-extra-groups": text})) == wanted


BAD_GROUPS = [
    pytest.param("system:bootstrappers:a,", id="a trailing comma"),
    pytest.param(",", id="only a comma"),
    pytest.param("system:bootstrappers:a, system:bootstrappers:b", id="a space after the comma"),
    pytest.param("system:masters", id="a foreign group"),
    pytest.param("system:bootstrappers", id="the bare default group"),
    pytest.param("system:bootstrappers:a,system:masters", id="one foreign group among good ones"),
]


@pytest.mark.parametrize("text", BAD_GROUPS)
def test_one_bad_group_refuses_the_whole_token(text: str) -> None:
    with pytest.raises(TokenError):
        tokensecret.groups(secret({"auth-extra-groups": text}))
    assert tokensecret.authenticate_secret(secret({"auth-extra-groups": text}), TOKEN, NOW) == ("bad-groups", ())


def test_a_good_token_is_accepted_with_its_groups() -> None:
    assert tokensecret.authenticate_secret(secret(), TOKEN, NOW) == (
        "ok",
        ("system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"),
    )


DELETING = {
    "metadata": {
        "name": "bootstrap-token-07401b",
        "namespace": "kube-system",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
}
FAULTS: list[tuple[str, dict[str, str | None], dict[str, Any]]] = [
    ("deleting", {}, DELETING),
    ("wrong-type", {}, {"type": "Opaque"}),
    ("wrong-secret", {"token-secret": "f395accd246ae52e"}, {}),
    ("id-mismatch", {"token-id": "07401c"}, {}),
    ("expired", {"expiration": "2026-01-02T03:04:05Z"}, {}),
    ("usage-missing", {"usage-bootstrap-authentication": "True"}, {}),
    ("bad-groups", {"auth-extra-groups": ","}, {}),
]


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[fault[0] for fault in FAULTS])
def test_the_first_fault_in_the_authenticators_order_is_the_reason(first: int) -> None:
    change: dict[str, str | None] = {}
    top: dict[str, Any] = {}
    for _, data, fields in FAULTS[first:]:
        change |= data
        top |= fields
    assert tokensecret.authenticate_secret(secret(change, **top), TOKEN, NOW) == (FAULTS[first][0], ())
    alone = secret(FAULTS[first][1], **FAULTS[first][2])
    assert tokensecret.authenticate_secret(alone, TOKEN, NOW) == (FAULTS[first][0], ())


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        pytest.param(None, "unknown-id", id="no Secret"),
        pytest.param(secret(data=None), "wrong-type", id="null data"),
        pytest.param(secret(data={}), "wrong-type", id="empty data"),
        pytest.param({"metadata": {}, "data": {"x": ""}}, "wrong-type", id="no type"),
        pytest.param(secret({"token-secret": None}), "wrong-secret", id="no token-secret"),
        pytest.param(secret({"token-id": None}), "id-mismatch", id="no token-id"),
        pytest.param(secret({"expiration": "soon"}), "expired", id="an unreadable expiration"),
        pytest.param(secret({"usage-bootstrap-authentication": None}), "usage-missing", id="no usage"),
    ],
)
def test_a_presented_token_is_refused_for(obj: Obj | None, reason: str) -> None:
    assert tokensecret.authenticate_secret(obj, TOKEN, NOW) == (reason, ())
    assert reason in tokensecret.REASONS


@pytest.mark.parametrize(
    ("obj", "detail"),
    [
        pytest.param(None, ": there is no Secret kube-system/bootstrap-token-07401b", id="no Secret"),
        pytest.param(secret({"token-secret": "x"}), "", id="nothing is told of a secret"),
        pytest.param(secret(None, **DELETING), "", id="on its way out"),
        pytest.param(
            secret(type=None),
            ": the Secret is of type none, or holds no data; it wants bootstrap.kubernetes.io/token",
            id="no type",
        ),
        pytest.param(
            secret({"token-id": "07401c"}), ": the Secret's token-id is not the id in its name", id="misnamed"
        ),
        pytest.param(
            secret({"expiration": "2026-01-02T00:04:05Z"}), ": expired 3h ago, at 2026-01-02T00:04:05Z", id="hours late"
        ),
        pytest.param(secret({"expiration": "2026-01-02T03:04:05Z"}), ": expires this instant", id="this very instant"),
        pytest.param(
            secret({"expiration": "soon"}),
            ": the expiration is not an RFC 3339 time such as 2026-01-02T03:04:05Z",
            id="an expiry that is no time",
        ),
        pytest.param(
            secret({"usage-bootstrap-authentication": None}),
            ": usage authentication missing: usage-bootstrap-authentication is not true",
            id="no usage",
        ),
        pytest.param(
            secret({"auth-extra-groups": "x"}),
            f': bootstrap group "x" is invalid: it must match {GROUP_PATTERN}',
            id="a group that no token may grant",
        ),
    ],
)
def test_the_operator_is_told_which_token_and_how_much_is_amiss(obj: Obj | None, detail: str) -> None:
    reason, _ = tokensecret.authenticate_secret(obj, TOKEN, NOW)
    assert tokensecret.refusal_detail(obj, TOKEN.id, reason, NOW) == f"token id 07401b{detail}"


def test_restrictions_are_written_as_annotations_and_read_back() -> None:
    restrictions = Restrictions(3, node_name="worker-*")
    made = tokensecret.to_secret(tokensecret.new_record(TOKEN, NOW, restrictions=restrictions))
    assert made["metadata"]["annotations"] == {"mooring.dev/max-joins": "3", "mooring.dev/node-name": "worker-*"}
    assert tokensecret.from_secret(made).restrictions == restrictions


def test_a_new_record_becomes_the_secret_kubeadm_writes() -> None:
    record = tokensecret.new_record(TOKEN, NOW, description="for rack 7")
    assert tokensecret.to_secret(record) == {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "bootstrap-token-07401b", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {
            "token-id": b64("07401b"),
            "token-secret": b64("f395accd246ae52d"),
            "description": b64("for rack 7"),
            "expiration": b64("2026-01-03T03:04:05Z"),
            "usage-bootstrap-signing": b64("true"),
            "usage-bootstrap-authentication": b64("true"),
            "auth-extra-groups": b64("system:bootstrappers:kubeadm:default-node-token"),
        },
    }


def test_what_is_empty_is_not_written() -> None:
    record = tokensecret.new_record(TOKEN, NOW, ttl=timedelta(0), usages=())
    assert sorted(tokensecret.to_secret(record)["data"]) == ["token-id", "token-secret"]


@pytest.mark.parametrize(
    ("given_fields", "wanted"),
    [
        pytest.param({}, NOW + timedelta(days=1), id="a day from now"),
        pytest.param({"ttl": timedelta(hours=2)}, NOW + timedelta(hours=2), id="at the end of its ttl"),
        pytest.param({"ttl": timedelta(0)}, None, id="never, with a ttl of zero"),
        pytest.param({"expires": NOW}, NOW, id="at the given time"),
        pytest.param({"ttl": None, "expires": NOW}, NOW, id="at the given time, with a ttl of None"),
    ],
)
def test_a_new_token_expires(given_fields: dict[str, Any], wanted: datetime | None) -> None:
    assert tokensecret.new_record(TOKEN, NOW, **given_fields).expires == wanted


@pytest.mark.parametrize(
    ("given_fields", "message"),
    [
        ({"ttl": timedelta(days=1), "expires": NOW}, "not both"),
        ({"ttl": timedelta(seconds=-1)}, "not negative"),
        ({"ttl": timedelta.max}, "too long"),
        ({"usages": ("signin",)}, "invalid bootstrap token usage signin"),
        ({"usages": ("signing",), "groups": ("system:bootstrappers:a",)}, "cannot be given unless"),
        ({"groups": ("system:masters",)}, 'group "system:masters" is invalid'),
    ],
    ids=["a ttl and an expiration", "a negative ttl", "an endless ttl", "a usage", "groups without usage", "a group"],
)
def test_no_record_is_made_with(given_fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenError, match=message):
        tokensecret.new_record(TOKEN, NOW, **given_fields)


@given(
    st.text(max_size=40).filter(lambda text: "\x00" not in text),
    st.none()
    | st.integers(0, 10**11).map(lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)),
    st.lists(st.sampled_from(["signing", "authentication", "made-up"]), unique=True).map(lambda u: tuple(sorted(u))),
    st.lists(st.from_regex(r"system:bootstrappers:[a-z0-9:-]{0,9}[a-z0-9]", fullmatch=True)).map(tuple),
)
def test_reading_what_was_written_gives_the_same_record(
    description: str, expires: datetime | None, usages: tuple[str, ...], groups: tuple[str, ...]
) -> None:
    record = tokensecret.TokenRecord(TOKEN, description, expires, usages, groups)
    assert tokensecret.from_secret(tokensecret.to_secret(record)) == record


def test_listing_reads_unknown_usages_too_sorted_and_groups_as_they_are_stored() -> None:
    record = tokensecret.from_secret(
        secret(
            {
                "usage-bootstrap-zoo": "true",
                "usage-bootstrap-signing": "yes",
                "auth-extra-groups": "b, a",
                "description": "x",
                "expiration": None,
            }
        )
    )
    assert record == tokensecret.TokenRecord(TOKEN, "x", None, ("authentication", "zoo"), ("b", " a"))


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (secret(type="Opaque"), "is not of type bootstrap.kubernetes.io/token: no machine can join with it"),
        (secret(type=None), "is not of type"),
        (secret({"token-id": None}), "has no token-id"),
        (secret({"token-id": "07401c"}), "is not named bootstrap-token-<token-id>"),
        (secret({"token-secret": None}), "has no token-secret"),
        (secret({"token-secret": "short"}), "is not of the form"),
        (secret({"expiration": "soon"}), "expiration is not an RFC 3339 time"),
    ],
    ids=[
        "another type",
        "no type",
        "no id",
        "another name",
        "no secret",
        "a malformed secret",
        "an unreadable expiration",
    ],
)
def test_listing_reports_a_secret_with(obj: Obj, message: str) -> None:
    with pytest.raises(TokenError, match=message) as caught:
        tokensecret.from_secret(obj)
    assert '"bootstrap-token-07401b"' in str(caught.value)
    assert "short" not in str(caught.value)
