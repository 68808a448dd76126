"""Token lines of environment files and config.yaml: which are blanked, and that all else stays.

Source: docs/protocol/k3s.md#token-on-the-disk-of-an-agent.
"""

from __future__ import annotations

import pytest

from mooring.secret import Secret
from mooring.trust.k3s.token import blank_token_lines, lines_with_token

TOKEN = Secret("K10::node:pass:word")
FORMS = (TOKEN, Secret("pass:word"))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param(b"K3S_TOKEN=K10::node:pass:word\n", b'K3S_TOKEN=""\n', id="bare"),
        pytest.param(b"K3S_TOKEN='K10::node:pass:word'\r\nA=1", b'K3S_TOKEN=""\r\nA=1', id="quoted, with CR LF"),
        pytest.param(b'  export K3S_TOKEN="K10::node:pass:word"  \n', b'  export K3S_TOKEN=""\n', id="exported"),
        pytest.param(b"a: 1\ntoken: K10::node:pass:word\n", b'a: 1\ntoken: ""\n', id="yaml"),
        pytest.param(b'token:   "K10::node:pass:word"', b'token: ""', id="quoted yaml without a line end"),
        pytest.param(b"token:K10::node:pass:word", b'token: ""', id="yaml without a space"),
        pytest.param(b"t: K10::node:pass:word\n", b't: ""\n', id="the short key"),
        pytest.param(b"token+: K10::node:pass:word\n", b'token+: ""\n', id="a key that appends"),
        pytest.param(b"token: K10::node:pass:word  # rack 7\n", b'token: "" # rack 7\n', id="yaml with a comment"),
        pytest.param(b"token: 'K10::node:pass:word' # rack 7", b'token: "" # rack 7', id="quoted yaml with a comment"),
        pytest.param(
            b"token: K10::node:pass:word # was K10::node:pass:word",
            b'token: ""',
            id="yaml with the token in the comment, too",
        ),
        pytest.param(b"K3S_TOKEN=K10::node:pass:word # x", b"K3S_TOKEN=K10::node:pass:word # x", id="no yaml"),
        pytest.param(b"K3S_TOKEN=another\n", b"K3S_TOKEN=another\n", id="another token"),
        pytest.param(b"K3S_TOKEN='\n", b"K3S_TOKEN='\n", id="one quote"),
        pytest.param(b"K3S_AGENT_TOKEN=K10::node:pass:word", b"K3S_AGENT_TOKEN=K10::node:pass:word", id="another name"),
        pytest.param(b"# K3S_TOKEN=K10::node:pass:word", b"# K3S_TOKEN=K10::node:pass:word", id="a comment"),
        pytest.param(b"agent-token: K10::node:pass:word", b"agent-token: K10::node:pass:word", id="another key"),
        pytest.param(b"K3S_TOKEN=pass:word\n", b'K3S_TOKEN=""\n', id="without its hash and user"),
        pytest.param(b"\xff\xfe\n", b"\xff\xfe\n", id="bytes that are no text"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
def test_a_line_with_the_token_is_blanked(text: bytes, after: bytes) -> None:
    assert blank_token_lines(text, FORMS) == after
    assert blank_token_lines(after, FORMS) == after


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(b'"token" : "K10::node:pass:word"', (1,), id="a quoted key"),
        pytest.param(b"token : K10::node:pass:word", (1,), id="a space before the colon"),
        pytest.param(b"a: 1\ntoken: >-\n  K10::node:pass:word\n", (3,), id="a folded block"),
        pytest.param(b"token: |\r\n  K10::node:pass:word\r\n", (2,), id="a block"),
        pytest.param(b"{server: a, token: K10::node:pass:word}", (1,), id="a flow mapping"),
        pytest.param(b"- token: K10::node:pass:word", (1,), id="an item of a list"),
        pytest.param(b"token: !!str K10::node:pass:word", (1,), id="a tag"),
        pytest.param(b"token: &t K10::node:pass:word\nagent-token: *t", (1,), id="an anchor"),
        pytest.param(b"agent-token: K10::node:pass:word", (1,), id="another key"),
        pytest.param(b"# token: K10::node:pass:word", (1,), id="a comment"),
        pytest.param(b"K3S_TOKEN=K10::node:pass:word # x", (1,), id="an environment file with text behind the value"),
        pytest.param(b"Environment=K3S_TOKEN=K10::node:pass:word", (1,), id="a unit of systemd"),
        pytest.param(b'Environment="A=1" "K3S_TOKEN=K10::node:pass:word"', (1,), id="a unit with quotes"),
        pytest.param(b"ExecStart=/bin/m agent \\\n  --token K10::node:pass:word \\\n  -v", (2,), id="a command line"),
        pytest.param(b"set -x K3S_TOKEN K10::node:pass:word", (1,), id="fish"),
        pytest.param(b"curl -H 'Authorization: pass:word'", (1,), id="without its hash and user"),
        pytest.param(b"a K10::node:pass:word\nb\nc K10::node:pass:word", (1, 3), id="two lines"),
        pytest.param(b"K3S_TOKEN=K10::node:\\\npass:wo\\\nrd\n", (), id="a line that goes on"),
        pytest.param(b'token: "K10::node:pass:\\\n  word"', (), id="a quoted text on two lines"),
        pytest.param("token: K10::node:pass:word\n".encode("utf-16"), (1,), id="UTF-16"),
        pytest.param(b"token: K10::node:pass:wordless", None, id="the beginning of a longer word"),
        pytest.param(b'token: ""\n', None, id="a blanked line"),
        pytest.param(b"", None, id="nothing"),
    ],
)
def test_a_token_on_a_line_of_another_form_is_found(text: bytes, lines: tuple[int, ...] | None) -> None:
    assert blank_token_lines(text, FORMS) == text
    assert lines_with_token(text, FORMS) == lines
