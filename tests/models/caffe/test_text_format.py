"""Protobuf's text format: odd inputs and what is no such text."""

from __future__ import annotations

import pytest

from magmadnn.errors import DataError
from magmadnn.models.caffe.text_format import Message, Scalar, parse


def plain(message: Message) -> list[tuple]:
    """Fields as (name, value) with values as tuples."""
    return [
        (f.name, plain(f.value) if isinstance(f.value, Message) else (f.value.kind, f.value.text))
        for f in message.fields
    ]


def fields(text: str) -> list[tuple]:
    return plain(parse(text, "n.prototxt"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("# nothing but a comment", []),
        ("a: 1 # one\n#b: 2\nc: 3", [("a", ("number", "1")), ("c", ("number", "3"))]),
        ("a:\n\n 1;b:2,c : -3", [(k, ("number", v)) for k, v in (("a", "1"), ("b", "2"), ("c", "-3"))]),
        ("a { }", [("a", [])]),
        ("a: { b < c { d: TEST } > }", [("a", [("b", [("c", [("d", ("word", "TEST"))])])])]),
        ("a: 1 a: 2 a: [3, 4]", [("a", ("number", k)) for k in "1234"]),
        ("a: []", []),
        ("a [{ b: 1 }, < b: 2 >]", [("a", [("b", ("number", "1"))]), ("a", [("b", ("number", "2"))])]),
        ("a: \"it's # no { comment\"", [("a", ("text", "it's # no { comment"))]),
        ("a: 'say \"hi\"'", [("a", ("text", 'say "hi"'))]),
        ("a: 'one ' \"two\"\n'.'", [("a", ("text", "one two."))]),
        (r"a: '\n\t\\\'\"\x41\101B\?'", [("a", ("text", "\n\t\\'\"AAB?"))]),
        (r"a: '\u00e9\U0001F600'", [("a", ("text", "é😀"))]),
        ("a: 1.5e-3f b: .5 c: 2. d: 0x1F", [
            ("a", ("number", "1.5e-3f")), ("b", ("number", ".5")), ("c", ("number", "2.")),
            ("d", ("number", "0x1F")),
        ]),
        ("a: -inf b: - 2", [("a", ("number", "-inf")), ("b", ("number", "-2"))]),
        ("a: true\r\nb_2: x\r\n", [("a", ("word", "true")), ("b_2", ("word", "x"))]),
    ],
)  # fmt: skip
def test_odd_texts(text, found):
    assert fields(text) == found


def test_lines_are_those_of_names_and_values():
    message = parse('# first\na: "#"\n\nb {\n  c:\n  7\n}\n', "n")
    a, b = message.fields
    assert (a.line, b.line, b.value.line) == (2, 4, 4)
    (c,) = b.value.fields
    assert c.value == Scalar("number", "7", 6) and c.line == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb 2", r"n, line 2: expected ':' or '{' behind 'b', got '2'"),
        ("a {\n b: 1\n\n", r"n, line 4: the '{' of line 1 is not closed"),
        ("a { b < c: 1 } }", r"n, line 1: expected the name of a field, got '}'"),
        ("a: 1\n}", r"n, line 2: '}' closes nothing"),
        ("a: 1\n\nb: 'open\n'", r"n, line 3: the quotation mark ' is not closed in its line"),
        ("a: 3x3", r"n, line 1: '3x3' is no number"),
        ("a: 1..2", r"n, line 1: '1..2' is no number"),
        ("a: $b", r"n, line 1: '\$b' is neither a name nor a value"),
        ("a:\n}", r"n, line 2: expected a value, got '}'"),
        ("a:", r"n, line 1: expected a value, got the end of the file"),
        ("a", r"n, line 1: expected ':' or '{' behind 'a', got the end of the file"),
        ("a: -b", r"n, line 1: expected a number behind '-', got 'b'"),
        ("a: [1 2]", r"n, line 1: expected ',' or '\]' in the list that begins in line 1, got '2'"),
        ("a: [1,\n", r"n, line 2: expected a value, got the end of the file"),
        ("a [1]", r"n, line 1: expected ':' between 'a' and its list"),
        ("[a.b]: 1", r"n, line 1: expected the name of a field, got '\[': names of extensions"),
        ("3: 1", r"n, line 1: expected the name of a field, got '3'"),
        (r"a: '\q'", r"n, line 1: .* is no character"),
        (r"a: '\UFFFFFFFF'", r"n, line 1: .* is no character"),
        ("a{" * 101, r"n, line 1: more than 100 messages lie within each other"),
        ("a: [[1]]", r"n, line 1: expected a value, got '\['"),
    ],
)
def test_errors_name_the_line(text, words):
    with pytest.raises(DataError, match=words):
        parse(text, "n")


def test_a_hundred_messages_within_each_other_are_read():
    assert parse("a{" * 100 + "}" * 100, "n").fields
