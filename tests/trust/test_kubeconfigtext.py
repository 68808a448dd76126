"""Kubeconfig text: limits, types, and the layout of Go's tools."""

from __future__ import annotations

import codecs
import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.kubeconfig import (
    AuthProvider,
    Cluster,
    ExecPlugin,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigError,
    KubeconfigUser,
)
from mooring.trust.kubeconfigtext import dump_object, format_kubeconfig, kubeconfig_object, parse_kubeconfig

FULL_TEXT = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority: /ca
    certificate-authority-data: Q0E=
    disable-compression: true
    extensions:
    - extension:
        last-update: 2026-01-02
      name: e
    insecure-skip-tls-verify: true
    proxy-url: http://p
    server: https://c
    tls-server-name: inner
  name: c
contexts:
- context:
    cluster: c
    namespace: ns
    user: u
  name: ctx
current-context: ctx
extensions:
- extension: 1
  name: top
kind: Config
preferences:
  colors: true
users:
- name: u
  user:
    as: someone
    as-groups:
    - g
    as-uid: '1'
    as-user-extra:
      k:
      - v
    auth-provider:
      config:
        id: secret-1
      name: oidc
    client-certificate: /c
    client-certificate-data: Qw==
    client-key: /k
    client-key-data: Sw==
    exec:
      apiVersion: v1beta1
      args:
      - --x
      command: cmd
      env:
      - name: A
        value: secret-2
      installHint: get it
      interactiveMode: Never
      provideClusterInfo: true
    extensions:
    - name: empty
    password: secret-3
    token: secret-4
    tokenFile: /t
    username: 'n'
- name: plain
  user: {}
"""
FULL = Kubeconfig(
    (
        Cluster(
            "c", "https://c", b"CA", "/ca", True, "inner", "http://p", True,
            ({"name": "e", "extension": {"last-update": "2026-01-02"}},),
        ),
    ),
    (
        KubeconfigUser(
            "u", b"C", "/c", Secret("K"), "/k", Secret("secret-4"), "/t", "n", Secret("secret-3"),
            ExecPlugin("cmd", "v1beta1", ("--x",), (("A", Secret("secret-2")),), "get it", True, "Never"),
            AuthProvider("oidc", (("id", Secret("secret-1")),)),
            "someone", "1", ("g",), (("k", ("v",)),), ({"name": "empty"},),
        ),
        KubeconfigUser("plain"),
    ),
    (KubeconfigContext("ctx", "c", "u", "ns"),),
    "ctx",
    {"colors": True},
    ({"name": "top", "extension": 1},),
)  # fmt: skip


def test_every_field_is_read() -> None:
    assert parse_kubeconfig(FULL_TEXT) == FULL
    assert parse_kubeconfig(FULL_TEXT.encode()) == FULL


def test_every_field_is_written_in_the_layout_of_gos_tools_except_that_a_date_like_text_is_quoted() -> None:
    assert format_kubeconfig(FULL) == FULL_TEXT.replace(": 2026-01-02", ": '2026-01-02'")


def test_json_is_read_too() -> None:
    assert parse_kubeconfig(json.dumps(kubeconfig_object(FULL))) == FULL


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(codecs.BOM_UTF16_LE + FULL_TEXT.encode("utf-16-le"), id="UTF-16, as PowerShell writes it"),
        pytest.param(codecs.BOM_UTF16_BE + FULL_TEXT.encode("utf-16-be"), id="UTF-16, the other way round"),
        pytest.param(codecs.BOM_UTF8 + FULL_TEXT.encode(), id="UTF-8 with a byte order mark"),
        pytest.param(FULL_TEXT.encode() + b"---\n", id="a separator at the end"),
        pytest.param(FULL_TEXT.encode() + b"---\n# nothing more\n---\n", id="separators and a comment at the end"),
        pytest.param(FULL_TEXT.encode() + b"...\n", id="an end of the document"),
        pytest.param(b"# of us\n---\n" + FULL_TEXT.encode(), id="a comment and a separator first"),
        pytest.param(FULL_TEXT.replace("\n", "\r\n").encode(), id="lines that end as on Windows"),
    ],
)
def test_forms_that_kubectl_reads(data: bytes) -> None:
    assert parse_kubeconfig(data) == parse_kubeconfig(FULL_TEXT)


def test_no_secret_shows_in_the_repr_of_the_model() -> None:
    assert "secret-" not in repr(FULL)


def test_an_empty_plugin_is_written_as_go_writes_it() -> None:
    config = Kubeconfig(users=(KubeconfigUser("u", exec=ExecPlugin("c"), auth_provider=AuthProvider("p")),))
    assert kubeconfig_object(config)["users"][0]["user"] == {
        "exec": {"command": "c", "args": None, "env": None, "provideClusterInfo": False},
        "auth-provider": {"name": "p", "config": None},
    }
    assert parse_kubeconfig(format_kubeconfig(config)) == config


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "kind: Config", "apiVersion: v1\nkind: Config\nclusters:\nusers: []\n"]
)
def test_the_empty_kubeconfig_may_be_written(text: str) -> None:
    assert parse_kubeconfig(text) == Kubeconfig()


USERS: list[tuple[dict[str, Any] | None, KubeconfigUser]] = [
    (None, KubeconfigUser("u")),
    ({}, KubeconfigUser("u")),
    (
        dict.fromkeys(("exec", "auth-provider", "token", "tokenFile", "as", "as-groups", "as-user-extra")),
        KubeconfigUser("u"),
    ),
    (dict.fromkeys(("token", "tokenFile", "as", "username", "client-certificate-data"), ""), KubeconfigUser("u")),
    (
        {"as-groups": [None], "as-user-extra": {"a": None, "b": [None]}},
        KubeconfigUser("u", impersonate_groups=("",), impersonate_extra=(("a", ()), ("b", ("",)))),
    ),
    ({"exec": {}}, KubeconfigUser("u", exec=ExecPlugin(""))),
    ({"exec": dict.fromkeys(("command", "args", "env", "interactiveMode"))}, KubeconfigUser("u", exec=ExecPlugin(""))),
    (
        {"exec": {"args": [None], "env": [None]}},
        KubeconfigUser("u", exec=ExecPlugin("", "", ("",), (("", Secret(b"")),))),
    ),
    ({"auth-provider": {}}, KubeconfigUser("u", auth_provider=AuthProvider(""))),
    (
        {"auth-provider": {"config": {"a": None}}},
        KubeconfigUser("u", auth_provider=AuthProvider("", (("a", Secret(b"")),))),
    ),
]


@pytest.mark.parametrize(("user", "read"), USERS, ids=str)
def test_null_and_empty_fields_of_a_user_are_read_as_client_go_reads_them(
    user: dict[str, Any] | None, read: KubeconfigUser
) -> None:
    """Each row was run against clientcmd.Load of Kubernetes 1.36."""
    assert parse_kubeconfig(json.dumps({"users": [{"name": "u", "user": user}]})).users == (read,)


@pytest.mark.parametrize(
    ("config", "read"),
    [
        (dict.fromkeys(("kind", "apiVersion", "clusters", "users", "contexts", "current-context", "preferences")), Kubeconfig()),
        ({"kind": "", "apiVersion": "", "clusters": [], "extensions": None}, Kubeconfig()),
        ({"clusters": [None]}, Kubeconfig((Cluster(""),))),
        ({"clusters": [{"name": None, "cluster": None}]}, Kubeconfig((Cluster(""),))),
        ({"clusters": [{"cluster": dict.fromkeys(("server", "certificate-authority-data", "insecure-skip-tls-verify"))}]},
         Kubeconfig((Cluster(""),))),
        ({"contexts": [{"name": "x", "context": None}]}, Kubeconfig(contexts=(KubeconfigContext("x"),))),
        ({"Clusters": [{"name": "c"}]}, Kubeconfig()),
    ],
    ids=str,
)  # fmt: skip
def test_null_and_empty_parts_are_read_as_client_go_reads_them(config: dict[str, Any], read: Kubeconfig) -> None:
    """Names count in their case, as in sigs.k8s.io/json."""
    assert parse_kubeconfig(json.dumps(config)) == read


@pytest.mark.parametrize("config", [{"clusters": {}}, {"clusters": ""}, {"users": [{"user": {"exec": ""}}]}], ids=str)
def test_an_empty_value_of_another_type_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(KubeconfigError, match="must be"):
        parse_kubeconfig(json.dumps(config))


def test_unknown_fields_are_ignored_and_base64_may_be_folded() -> None:
    text = 'clusters: [{name: c, more: 1, cluster: {server: s, other: [1], certificate-authority-data: "Q0\\n\\rE="}}]'
    assert parse_kubeconfig(text).clusters == (Cluster("c", "s", b"CA"),)


def test_scalars_are_read_as_kubectl_reads_them() -> None:
    config = parse_kubeconfig("preferences: {1: 1e3, date: 2026-01-02, sign: =, on: off}")
    assert config.preferences == {"1": 1000.0, "date": "2026-01-02", "sign": "=", "true": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("x" * (1 << 20) + "x", "the kubeconfig is longer than 1048576 bytes", id="too long"),
        pytest.param("[" * 65 + "]" * 65, "the kubeconfig cannot be read: nested deeper than 64 levels", id="too deep"),
        pytest.param("[" * 100_000, "the kubeconfig cannot be read: nested deeper than 64 levels", id="endlessly deep"),
        pytest.param(
            "[" + "1," * 100_000 + "]", "the kubeconfig cannot be read: more than 100000 values", id="too many values"
        ),
        pytest.param(
            "a: 1\n---\nb: 2\n", "the kubeconfig cannot be read: one document is expected", id="two documents"
        ),
        pytest.param(
            "a: &x 1\n",
            "the kubeconfig cannot be read: line 1: anchors, aliases and tags are not supported; `kubectl config view --raw",
            id="an anchor",
        ),
        pytest.param(
            "a: *x\n",
            "the kubeconfig cannot be read: line 1: anchors, aliases and tags are not supported; `kubectl config view --raw",
            id="an alias",
        ),
        pytest.param(
            "!!python/object/apply:os.system [ls]",
            "the kubeconfig cannot be read: line 1: anchors, aliases and tags are not supported; `kubectl config view --raw",
            id="a tag",
        ),
        pytest.param(
            "kind: Config\nkind: Config\n",
            'the kubeconfig has a key twice in one object: line 2: key "kind" already set in map; `kubectl config view --raw',
            id="a key twice",
        ),
        pytest.param("{[a]: b}", "the kubeconfig cannot be read: a key must be a scalar", id="a list as key"),
        pytest.param(
            "a: b: c", "the kubeconfig is neither YAML nor JSON: it cannot be read at line 1, column 5", id="no YAML"
        ),
        pytest.param("\x00", "the kubeconfig is neither YAML nor JSON", id="a NUL"),
        pytest.param("\ud800", "the kubeconfig is neither YAML nor JSON", id="a lone surrogate"),
        pytest.param(b"\xff", "the kubeconfig is neither YAML nor JSON", id="bytes that are not UTF-8"),
        pytest.param(b"\xff\xfea", "the kubeconfig is neither YAML nor JSON", id="half a character of UTF-16"),
        pytest.param(
            "kind: Config\n---\nkind: Config\n",
            "the kubeconfig cannot be read: one document is expected, and another begins in line 3",
            id="two documents",
        ),
        pytest.param("[]", "this is not a kubeconfig: the kubeconfig must be an object", id="a list"),
        pytest.param("token", "this is not a kubeconfig: the kubeconfig must be an object", id="a text"),
        pytest.param(
            "kind: Secret", "this is not a kubeconfig: kind must be Config and apiVersion v1", id="another kind"
        ),
        pytest.param(
            "apiVersion: v2", "this is not a kubeconfig: kind must be Config and apiVersion v1", id="another version"
        ),
        pytest.param("kind: 1", "kind must be text", id="a number as kind"),
        pytest.param("clusters: {}", "clusters must be a list", id="an object as list"),
        pytest.param("clusters: [1]", "clusters[0] must be an object", id="a number as cluster"),
        pytest.param(
            "clusters: [{cluster: 1}]", "clusters[0].cluster must be an object", id="a number inside a cluster"
        ),
        pytest.param(
            "clusters: [{}, {cluster: {server: 1}}]", "clusters[1].cluster.server must be text", id="a number as server"
        ),
        pytest.param(
            "clusters: [{cluster: {insecure-skip-tls-verify: 'true'}}]",
            "clusters[0].cluster.insecure-skip-tls-verify must be true or false",
            id="a text as flag",
        ),
        pytest.param(
            "clusters: [{cluster: {certificate-authority-data: '*'}}]",
            "clusters[0].cluster.certificate-authority-data is not base64",
            id="no base64",
        ),
        pytest.param(
            "clusters: [{cluster: {certificate-authority-data: 'é'}}]",
            "clusters[0].cluster.certificate-authority-data is not base64",
            id="no ASCII",
        ),
        pytest.param(
            "users: [{user: {exec: {args: [1]}}}]", "users[0].user.exec.args[0] must be text", id="a number as argument"
        ),
        pytest.param(
            "users: [{user: {as-user-extra: {k: v}}}]",
            "users[0].user.as-user-extra must be a list",
            id="a text as extra",
        ),
        pytest.param(
            "users: [{user: {as-user-extra: []}}]",
            "users[0].user.as-user-extra must be an object",
            id="a list as extra",
        ),
        pytest.param("extensions: [1]", "extensions[0] must be an object", id="a number as extension"),
        pytest.param(
            "clusters: [{name: a}, {name: a}]", "clusters has two entries of the same name", id="one name twice"
        ),
        pytest.param("users: [{}, {}]", "users has two entries of the same name", id="no name twice"),
        pytest.param("contexts: [{}, {}]", "contexts has two entries of the same name", id="no context name twice"),
    ],
)
def test_a_text_is_refused_for(text: str | bytes, message: str) -> None:
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(text)
    assert str(caught.value).startswith(message)


def test_a_wrong_type_does_not_show_its_value() -> None:
    with pytest.raises(KubeconfigError, match="password must be text") as caught:
        parse_kubeconfig("users: [{name: u, user: {password: 12345678}}]")
    assert "12345678" not in str(caught.value)


READABLE = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
"""Characters that YAML allows unescaped (YAML 1.1, 5.1): kubeconfigs are read as YAML, also those in JSON."""
WORDS = st.text(READABLE, max_size=12) | st.sampled_from(
    [
        "",
        "yes",
        "null",
        "1",
        "1e3",
        "2026-01-02",
        "=",
        "<<",
        "~",
        "- a",
        "a: b",
        "#",
        "'",
        '"',
        "&a",
        "*a",
        "!a",
        " x ",
        "\ttab",
        "two\nlines\n",
    ]
)
SECRETS = st.none() | WORDS.filter(bool).map(Secret)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS.filter(lambda word: word != "<<"), inner, max_size=3)
    ),
    max_leaves=5,
)
EXTENSIONS = st.lists(st.fixed_dictionaries({"name": WORDS, "extension": JSONS}), max_size=2).map(tuple)


def unique(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(entries, max_size=2, unique_by=lambda entry: entry.name).map(tuple)


CONFIGS = st.builds(
    Kubeconfig,
    unique(
        st.builds(
            Cluster, WORDS, WORDS, st.binary(max_size=9), WORDS, st.booleans(), WORDS, WORDS, st.booleans(), EXTENSIONS
        )
    ),
    unique(
        st.builds(
            KubeconfigUser, WORDS, st.binary(max_size=9), WORDS, st.none() | st.binary(min_size=1, max_size=9).map(Secret), WORDS,
            SECRETS, WORDS, WORDS, SECRETS,
            st.none() | st.builds(
                ExecPlugin, WORDS, WORDS, st.lists(WORDS, max_size=2).map(tuple),
                st.lists(st.tuples(WORDS, WORDS.map(Secret)), max_size=2).map(tuple), WORDS, st.booleans(), WORDS,
            ),
            st.none() | st.builds(AuthProvider, WORDS),
            WORDS, WORDS, st.lists(WORDS, max_size=2).map(tuple),
            st.just(()) | st.tuples(st.tuples(WORDS.filter(lambda word: word != "<<"), st.lists(WORDS, max_size=2).map(tuple))),
            EXTENSIONS,
        )
    ),
    unique(st.builds(KubeconfigContext, WORDS, WORDS, WORDS, WORDS, EXTENSIONS)),
    WORDS,
    st.dictionaries(WORDS.filter(lambda word: word != "<<"), JSONS, max_size=2),
    EXTENSIONS,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(CONFIGS)
def test_reading_what_was_written_gives_the_same_kubeconfig(config: Kubeconfig) -> None:
    assert parse_kubeconfig(format_kubeconfig(config)) == config
    assert parse_kubeconfig(json.dumps(kubeconfig_object(config), ensure_ascii=False)) == config


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("\u00e9 \u4e2d", "\u00e9 \u4e2d", id="letters"),
        pytest.param("\U0001f600", r'"\U0001F600"', id="what Go escapes too: four bytes of UTF-8"),
        pytest.param("a " * 200 + "a", "a " * 200 + "a", id="a long line, which is not folded"),
    ],
)
def test_characters_are_written_as_by_gos_library(text: str, written: str) -> None:
    assert dump_object({"name": text}) == f"name: {written}\n"


def test_half_a_character_is_not_written() -> None:
    with pytest.raises(KubeconfigError, match="half a character"):
        dump_object({"name": "a\udc80"})


@given(st.text() | st.binary())
def test_junk_is_read_or_refused(data: str | bytes) -> None:
    with contextlib.suppress(KubeconfigError):
        parse_kubeconfig(data)


@given(st.text(alphabet="[]{}:,-?!&*#|>'\"%@` \n\tab01._xo<=~", max_size=40))
def test_yaml_like_junk_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(KubeconfigError):
        parse_kubeconfig(text)
