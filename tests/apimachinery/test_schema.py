"""The texts of the messages: what a block says, lines that are refused, and that something asks for each message."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import resources

import pytest

from mooring.apimachinery import schema
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar, message

TEXTS = resources.files("mooring") / "data" / "api"
GOOD = """\
// A part.
message Part { // +structType=atomic
  // Its name.
  optional string name = 1; // +required
}

message Whole {
  optional .k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta metadata = 1;

  // The parts.
  repeated Part parts = 2; // +pointer +patchMergeKey=name +patchStrategy=merge +listType=map +listMapKey=a +listMapKey=b
  map<string, bytes> data = 3; // +mapType=atomic +goType=v1.Data
  map<string, ExtraValue> extra = 4; // +always
  optional Time when = 5; // +omitzero +within=7:Times
  repeated string words = 6; // +listType=set +enum=one|two words|+three
  repeated Part others = 8; // +patchStrategy=replace
}
"""


@pytest.fixture(autouse=True)
def no_messages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each text again, and keep no message of it for other tests."""
    monkeypatch.setattr(schema, "message", message.__wrapped__)
    monkeypatch.setattr(schema, "_messages", schema._messages.__wrapped__)


def read(monkeypatch: pytest.MonkeyPatch, text: str, name: str = "Whole") -> Message:
    texts = {"data/api/test.v1.proto": text.encode()}
    read_file = pkgutil.get_data
    monkeypatch.setattr(pkgutil, "get_data", lambda package, path: texts.get(path) or read_file(package, path))
    return schema.message(f"test.v1.{name}")


def test_a_block_says_everything_about_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Message(
        "test.v1.Part", (Field("name", 1, Scalar.STRING, "Its name.", required=True),), "A part.", atomic=True
    )
    assert read(monkeypatch, GOOD) == Message(
        "test.v1.Whole",
        (
            Field("metadata", 1, message("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta")),
            Field(
                "parts",
                2,
                ListOf(part),
                "The parts.",
                pointer=True,
                patch="merge",
                patch_key="name",
                list_keys=("a", "b"),
            ),
            Field("data", 3, MapOf(Scalar.BYTES), map_atomic=True, go_type="v1.Data"),
            Field("extra", 4, MapOf(Scalar.STRING_LIST), always=True),
            Field("when", 5, Scalar.TIME, always=False, within=7, embedded="Times"),
            Field("words", 6, ListOf(Scalar.STRING), list_set=True, enum=("one", "two words", "+three")),
            Field("others", 8, ListOf(part), patch="replace"),
        ),
    )


BAD = {
    "no semicolon": ("  optional string a = 1", 2),
    "no number": ("  optional string a;", 2),
    "no label": ("  string a = 1;", 2),
    "a map without an end": ("  map<string, string a = 1;", 2),
    "a map by numbers": ("  map<int32, string> a = 1;", 2),
    "an unknown marker": ("  optional string b = 1;\n  optional string a = 2; // +optional +requird", 3),
    "a number that is none": ("  optional string a = 1; // +within=x", 2),
    "a marker above the field": ("  // +required\n  optional string a = 1;", 2),
    "a text below the field": ("  optional string a = 1;\n  // A text.", 3),
    "two lines of text": ("\n  // One.\n  // Two.\n  optional string a = 1;", 3),
    "a message that is not there": ("  optional Missing a = 1;", 2),
    "a message of a file that is not there": ("  optional .k8s.io.api.missing.v1.Missing a = 1;", 2),
    "a message inside": ("  message Inner {", 2),
    "a line of no message": ("  optional string a = 1;\n}\nreserved 2;\nmessage Other {", 4),
    "an unknown marker of a message": ("}\n\nmessage Other { // +atomic", 4),
    "no end": ("  optional string a = 1;\n}\nmessage Other {\n  optional string a = 1;\n\nmessage Last {", 4),
}


@pytest.mark.parametrize(("lines", "number"), BAD.values(), ids=list(BAD))
def test_a_bad_line_is_named(lines: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"message Whole {{\n{lines}\n}}\n"
    with pytest.raises(ValueError, match=r"^data/api/test\.v1\.proto:\d+: not understood: ") as error:
        read(monkeypatch, text)
    assert str(error.value).startswith(f"data/api/test.v1.proto:{number}: ")


def test_a_bad_line_of_an_inner_message_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"^data/api/test\.v1\.proto:4: not understood: 'optional string name = 1; // \+bad'$"
    ):
        read(monkeypatch, GOOD.replace("+required", "+bad"))


def test_a_message_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match=r"data/api/test\.v1\.proto: no message Missing"):
        read(monkeypatch, GOOD, "Missing")


def test_each_message_has_one_text_and_is_asked_for() -> None:
    """A process of its own: other tests make messages."""
    names = [
        f"{text.name.removesuffix('.proto')}.{line.split()[1]}"
        for text in TEXTS.iterdir()
        for line in text.read_text().splitlines()
        if line.startswith("message ")
    ]
    assert len(names) == len(set(names)) > 300
    program = (
        "import gc, importlib, pkgutil, mooring.api, mooring.apimachinery\n"
        "for room in (mooring.api, mooring.apimachinery):\n"
        "    for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "from mooring.api.kinds import KINDS\n"
        "from mooring.apimachinery.schema import Message\n"
        "stored = [kind.storage_schema for kind in KINDS]\n"
        "print(*{one.name for one in gc.get_objects() if isinstance(one, Message)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(names) <= set(done.stdout.split()), "a text that nothing reads"


@pytest.mark.parametrize("text", sorted(text.name for text in TEXTS.iterdir()))
def test_fields_of_a_message_differ_in_name_and_number(text: str) -> None:
    package = text.removesuffix(".proto")
    for word in schema._messages(package):
        fields = message(f"{package}.{word}").fields
        assert len({field.name for field in fields}) == len(fields), word
        assert len({(field.number, field.within) for field in fields}) == len(fields), word
