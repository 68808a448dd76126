"""Configuration file of a k3s agent: the flags that it gives, the keys that are ignored, and what is wrong with the rest.

Source: docs/protocol/k3s.md#configuration-file-of-an-agent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.cli.join.agent import agent
from mooring.cli.join.flags import SETTINGS
from mooring.errors import ConfigError
from mooring.trust.k3s.agentfile import (
    ignored_keys,
    k3s_keys,
    read_agent_file,
    refused_flag,
)

SECRET = "not-so-secret"


def parts(*texts: str) -> list[tuple[str, bytes]]:
    return [(f"{number}.yaml", text.encode()) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        pytest.param(["# nothing\n"], {}, id="nothing"),
        pytest.param(["{}"], {}, id="an empty object"),
        pytest.param(["server: https://a.test:6443"], {"server": ("https://a.test:6443",)}, id="one server"),
        pytest.param(
            ["server: [https://a.test, https://b.test]"],
            {"server": ("https://a.test", "https://b.test")},
            id="two servers",
        ),
        pytest.param(["token: abc\nnode-name: worker"], {"token": "abc", "node-name": "worker"}, id="texts"),
        pytest.param(["token: ''\nnode-name:\nnode-label:"], {}, id="empty values give no flag"),
        pytest.param(["server: []\ntoken: []\nnode-label: []\nwith-node-id: []"], {}, id="empty lists give no flag"),
        pytest.param(["server: ['']\ntoken: [null]\nnode-label:\n-\n-\n"], {}, id="lists of nothing give no flag"),
        pytest.param(
            ["server: [null, https://a.test]\nnode-label: [a=b, null, '']"],
            {"server": ("https://a.test",), "node-label": ("a=b",)},
            id="items without a value",
        ),
        pytest.param(["null"], {}, id="null"),
        pytest.param(["node-ip: 192.0.2.7,2001:db8::7"], {"node-ip": ("192.0.2.7", "2001:db8::7")}, id="with a comma"),
        pytest.param(["node-label: [a=b, 'c=d,e=f']"], {"node-label": ("a=b", "c=d", "e=f")}, id="a list"),
        pytest.param(["with-node-id: true"], {"with-node-id": True}, id="a boolean"),
        pytest.param(
            ["with-node-id: 'false'\ndisable-apiserver-lb: 'true'"],
            {"with-node-id": False, "disable-apiserver-lb": True},
            id="booleans in quotes",
        ),
        pytest.param(["lb-server-port: 7444"], {"lb-server-port": 7444}, id="a port"),
        pytest.param(["lb-server-port: '7444'"], {"lb-server-port": 7444}, id="a port in quotes"),
        pytest.param(["load-balancer-port: '7444'"], {"load-balancer-port": 7444}, id="and that of the other way"),
        pytest.param(
            ["s: https://a.test\nt: abc\nd: /data\ni: 192.0.2.7"],
            {"server": ("https://a.test",), "token": "abc", "data-dir": "/data", "node-ip": ("192.0.2.7",)},
            id="short forms",
        ),
        pytest.param(
            ["node-name: a\ntoken: x", "node-name: b"], {"node-name": "b", "token": "x"}, id="a later part replaces"
        ),
        pytest.param(["node-label: [a=b]", "node-label: [c=d]"], {"node-label": ("c=d",)}, id="a later list replaces"),
        pytest.param(
            ["node-label: [a=b]", "node-label+: [c=d]", "node-label+: e=f"],
            {"node-label": ("a=b", "c=d", "e=f")},
            id="a plus appends",
        ),
        pytest.param(
            ["node-label: a=b", "node-label+:", "node-label+: c=d"],
            {"node-label": ("a=b", "c=d")},
            id="nothing is appended",
        ),
        pytest.param(["node-label:", "node-label+: c=d"], {"node-label": ("c=d",)}, id="a plus after nothing"),
        pytest.param(
            ["token: abc\nnode-name: a", "token+: ''\nnode-name+:"],
            {"token": "abc", "node-name": "a"},
            id="no second token",
        ),
        pytest.param(["token: ''", "token+: abc"], {"token": "abc"}, id="a plus after an empty text"),
        pytest.param(["node-label+: [a=b]"], {"node-label": ("a=b",)}, id="a plus alone"),
        pytest.param(
            ["i: 192.0.2.7\nnode-ip+: 192.0.2.8"], {"node-ip": ("192.0.2.7", "192.0.2.8")}, id="a plus in one part"
        ),
    ],
)
def test_flags_of_a_file(texts: list[str], values: dict[str, Any]) -> None:
    assert read_agent_file(parts(*texts), SETTINGS).values == values


def test_keys_that_do_not_concern_joining_are_listed_and_not_read() -> None:
    found = read_agent_file(
        parts("kubelet-arg: [a=b]\nserver: https://a.test", "debug: true\ntls-san: {x: 1}\nkubelet-arg+: c\nc: x"),
        SETTINGS,
    )
    assert found.values == {"server": ("https://a.test",)}
    assert found.ignored == ("kubelet-arg", "debug", "tls-san", "c")
    said = ignored_keys(found.ignored)
    assert said.startswith("ignored keys that do not concern joining: kubelet-arg (Mooring's agent runs no kubelet, ")
    assert said.endswith("); tls-san (flags of k3s server); debug, c (flags of k3s's log and program)")
    assert ignored_keys(()) == ""


def test_parts_with_a_secret_are_known() -> None:
    found = read_agent_file(
        parts("token: abc", "t: ''\nvpn-auth: x\ncluster-secret: y", "token:\nvpn-auth: []", "token+: d\ntoken: e"),
        SETTINGS,
    )
    assert found.secrets == {"0.yaml": "token", "1.yaml": "vpn-auth", "3.yaml": "token"}
    assert dict.fromkeys(found.token_paths) == dict.fromkeys(("0.yaml", "3.yaml"))
    assert "abc" not in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(b"\xff", "0.yaml: the file is not UTF-8 text", id="no text"),
        pytest.param(b"a: [", "0.yaml: yaml: ", id="no YAML"),
        pytest.param(
            b"K3S_TOKEN=not-so-secret", "0.yaml: a configuration is keys with values", id="an environment file"
        ),
        pytest.param(b"- not-so-secret", "0.yaml: a configuration is keys with values", id="a list"),
        pytest.param(b"a: &a [*a]", "0.yaml: yaml: ", id="an endless alias"),
        pytest.param(
            b"\nnode-lable: not-so-secret",
            '0.yaml: line 2: "node-lable": unknown key, did you mean "node-label"?',
            id="a wrong key",
        ),
        pytest.param(b"Node_Label: x", 'did you mean "node-label"?', id="a key in another case"),
        pytest.param(b"flanel-iface: x", 'did you mean "flannel-iface"?', id="a wrong key of the runtime"),
        pytest.param(b"zzzzzzzz: x", '"zzzzzzzz": unknown key', id="a key like no other"),
        pytest.param(b"token: [not-so-secret]", '0.yaml: line 1: "token": give a text', id="a list of tokens"),
        pytest.param(b"token: 12345", '"token": give a text; put quotes around', id="a number"),
        pytest.param(b"token: {a: not-so-secret}", '"token": give a text', id="an object"),
        pytest.param(
            b"token: a\ntoken+: not-so-secret",
            'line 2: "token+": the flag has one value, and a plus appends to lists: leave it out',
            id="a second token",
        ),
        pytest.param(
            b"token: not-so-secret\nnode-name: a\ntoken: not-so-secret",
            '0.yaml: line 3: "token": it is there twice, first in line 1',
            id="a key twice",
        ),
        pytest.param(
            b"node-label: {not-so-secret: b}", '"node-label": give a text or a list of texts', id="labels as an object"
        ),
        pytest.param(b"node-label: [7]", '"node-label": give a text or a list of texts', id="a number in a list"),
        pytest.param(b"with-node-id: 'yes'", '"with-node-id": give true or false', id="no boolean"),
        pytest.param(b"with-node-id: [true]", '"with-node-id": give true or false', id="a list of booleans"),
        pytest.param(b"lb-server-port: 70000", "70000 is not in the range", id="a port out of range"),
        pytest.param(b"lb-server-port: '70000'", "70000 is not in the range", id="and in quotes"),
        pytest.param(b"lb-server-port: not-so-secret", '"lb-server-port": give a whole number', id="no port"),
        pytest.param(b"a: 1\nnode-name: 7", "0.yaml: line 1: ", id="two mistakes: the first"),
        pytest.param(b"zzzz: 1\nnode-name: 7", '; 0.yaml: line 2: "node-name"', id="two mistakes: the second"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_without_its_value(text: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_agent_file([("0.yaml", text)], SETTINGS)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_place_of_a_mistake_is_the_part_that_gave_the_value() -> None:
    with pytest.raises(ConfigError, match=r'^1\.yaml: line 2: "node-name": give a text'):
        read_agent_file(parts("node-name: a", "# a comment\nnode-name: 7"), SETTINGS)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--kubelet-arg", "--kubelet-arg belongs to k3s's runtime, and Mooring's agent runs none"),
        ("--debug", "--debug belongs to k3s's log"),
        ("-l", "-l belongs to k3s's log"),
        ("--cluster-secret", "--cluster-secret has been replaced by --token"),
        ("--tls-san", "--tls-san belongs to k3s server"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_flag_that_is_not_taken(flag: str, said: str) -> None:
    assert refused_flag(flag).startswith(said)
    assert refused_flag("--zzz") == ""


def test_the_tables_are_apart_and_every_flag_of_the_command_is_a_key() -> None:
    taken = frozenset(one.name for one in SETTINGS)
    keys = k3s_keys()
    tables = (taken, keys.runtime, keys.log, keys.program, keys.server)
    assert sum(map(len, tables)) == len(frozenset().union(*tables))
    assert frozenset().union(*tables) >= keys.secret
    options = {name for parameter in agent.params for name in parameter.opts}
    own = {"--adopt", "--config", "-c", "--log-format", "--verbose", "-v"}
    shorts = {f"-{one.short}" for one in SETTINGS if one.short}
    assert options - own == {one.name if one.positional else f"--{one.name}" for one in SETTINGS} | shorts
    assert shorts == {"-s", "-t", "-d", "-i"}, "those of k3s"
    refused = {name for name in options if refused_flag(name)}
    assert refused == {"-v"}, "k3s's -v takes a level"


def test_a_token_of_any_way_is_a_secret_of_its_file() -> None:
    keys = [one.name for one in SETTINGS if one.secret]
    assert keys == ["token", "discovery-token", "tls-bootstrap-token"]
    for key in keys:
        assert read_agent_file(parts(f"{key}: abc"), SETTINGS).secrets == {"0.yaml": key}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("discovery-timeout: 90s", {"discovery-timeout": timedelta(seconds=90)}),
        ("certificate-lifetime: 1h", {"certificate-lifetime": timedelta(hours=1)}),
        ("register-node: none", {"register-node": "none"}),
        ("on-renew: ['a b, c', d]", {"on-renew": ("a b, c", "d")}),
        ("address: [192.0.2.1, '192.0.2.2,192.0.2.3']", {"address": ("192.0.2.1", "192.0.2.2", "192.0.2.3")}),
    ],
)
def test_kinds_of_values_that_k3s_does_not_have(text: str, values: dict[str, Any]) -> None:
    assert read_agent_file(parts(text), SETTINGS).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("register-node: [none]", "give none, tainted or ready"),
        ("node-deletion: x", "give ends-membership or reregisters"),
        ("certificate-lifetime: 600", "a duration needs a unit"),
    ],
)
def test_mistakes_of_kinds_that_k3s_does_not_have(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_agent_file(parts(text), SETTINGS)
