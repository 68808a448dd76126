"""Labels and taints that a node registers itself with: the forms of kubelet's flags."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.core.registrationflags import parse_labels, parse_taints
from mooring.errors import ConfigError


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        pytest.param([], {}, id="none"),
        pytest.param(["a=b", "example.com/c=d"], {"a": "b", "example.com/c": "d"}, id="two"),
        pytest.param(["a="], {"a": ""}, id="an empty value"),
        pytest.param(["a=b", "a=c"], {"a": "c"}, id="the last one counts"),
    ],
)
def test_labels(texts: list[str], labels: dict[str, str]) -> None:
    assert parse_labels(texts, "--node-label") == labels


@pytest.mark.parametrize(
    ("texts", "taints"),
    [
        pytest.param([], (), id="none"),
        pytest.param(["a=b:NoSchedule"], ({"key": "a", "value": "b", "effect": "NoSchedule"},), id="with a value"),
        pytest.param(["example.com/a:NoExecute"], ({"key": "example.com/a", "effect": "NoExecute"},), id="without"),
        pytest.param(
            ["a=:PreferNoSchedule"], ({"key": "a", "value": "", "effect": "PreferNoSchedule"},), id="an empty one"
        ),
        pytest.param(
            ["a:NoSchedule", "a:NoExecute"],
            ({"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}),
            id="two effects",
        ),
    ],
)
def test_taints(texts: list[str], taints: tuple[dict[str, Any], ...]) -> None:
    assert parse_taints(texts, "--node-taint") == taints


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a", '--node-label: "a" is not a label; write it like rack=seven', id="no value"),
        pytest.param("=b", '--node-label: the key of "=b" is invalid: ', id="no key"),
        pytest.param("a b=c", '--node-label: the key of "a b=c" is invalid: ', id="a blank in the key"),
        pytest.param("a=b c", '--node-label: the value of "a=b c" is invalid: ', id="a blank in the value"),
        pytest.param("a=b=c", '--node-label: the value of "a=b=c" is invalid: ', id="two equals signs"),
        pytest.param("x" * 200, f'--node-label: "{"x" * 100}" is not a label', id="a long text is cut"),
    ],
)
def test_no_label(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_labels([text], "--node-label")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        pytest.param(["a"], '--node-taint: "a" is not a taint; write it like dedicated=gpu:NoSchedule', id="no effect"),
        pytest.param(["a=b:noschedule"], "with one of the effects NoExecute, NoSchedule, PreferNoSchedule", id="case"),
        pytest.param(["=b:NoSchedule"], '--node-taint: the key of "=b:NoSchedule" is invalid', id="no key"),
        pytest.param(["a=b c:NoSchedule"], "--node-taint: the value of", id="a blank in the value"),
        pytest.param(
            ["a=b:NoSchedule", "a:NoSchedule"], "two taints have the key a and the effect NoSchedule", id="two"
        ),
    ],
)
def test_no_taint(texts: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_taints(texts, "--node-taint")
    assert said in str(caught.value)
