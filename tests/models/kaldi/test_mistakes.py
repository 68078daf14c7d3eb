"""Kaldi's descriptions that are wrong, or have what cannot be expressed: errors name line and way out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.models import from_kaldi
from tests.models.kaldi.test_from_kaldi import MIXED

INPUT = "input dim=4 name=input\n"
END = "\noutput-layer name=output dim=3"


@pytest.mark.parametrize(
    ("text", "words", "kind"),
    [
        ("", "network.xconfig: holds no line, expected a network", DataError),
        ("# all is comment\n", "holds no line", DataError),
        ("a\0b", "is no description of a network as text", DataError),
        (b"\xff\xfe\x00", "trained models (.mdl, .raw) are not read", DataError),
        (INPUT, "has no output: expected a line such as `output-layer", DataError),
        (
            "\ninput dim=$feat_dim name=input",
            "line 2: holds a variable of the shell, '$feat_dim'",
            DataError,
        ),
        (
            "component name=a type=NoOpComponent dim=3",
            "line 1: is a line of nnet3's own config",
            DataError,
        ),
        ("=3", "line 1: expected a type and settings", DataError),
        ("input dim=4 nam", "line 1: expected name=value, got 'nam'", DataError),
        ("input dim= name=input", "line 1: dim= has no value", DataError),
        ('input dim=4 name="input', 'line 1: name= has no closing "', DataError),
        ("input dim=4 dim=5 name=input", "line 1: dim= is given twice", DataError),
        ("input dim=4", "line 1: input: needs name=", DataError),
        ("input name=input", "line 1: input 'input': needs dim=", DataError),
        ("input dim=0 name=input", "dim must be at least 1, got 0", DataError),
        ("input dim=x name=input", "dim must be a whole number, got 'x'", DataError),
        ("input dim=4 name=3a", "name= must begin with a letter", DataError),
        ("input dim=4 name=input size=3", "setting 'size' is not known", UnknownNameError),
        (INPUT + INPUT, "line 2: input 'input': a line above has the same name", DataError),
        (
            INPUT + "relu-layr name=a",
            "line 2: type 'relu-layr' is not known: did you mean 'relu-layer'",
            UnknownNameError,
        ),
        (
            INPUT + "lstm-layer name=a",
            "lstm-layer is not read: networks without recurrence are read",
            DataError,
        ),
        (INPUT + "stats-layer name=a", "sums over all frames are not read", DataError),
        (INPUT + "fixed-affine-layer name=lda" + END, "needs affine-transform-file=", DataError),
        (
            INPUT + "fixed-affine-layer name=lda affine-transform-file=/nothing/lda.mat" + END,
            "/nothing/lda.mat: cannot be read",
            FileError,
        ),
        (
            INPUT + "relu-layer name=a dim=3 max-chnge=3" + END,
            "setting 'max-chnge' is not known: did you mean 'max-change'",
            UnknownNameError,
        ),
        (
            INPUT + "relu-layer name=a max-change=x" + END,
            "max-change must be a number, got 'x'",
            DataError,
        ),
        (
            INPUT + "relu-renorm-layer name=a add-log-stddev=true" + END,
            "add-log-stddev=true is not supported",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a add-log-stddev=1" + END,
            "add-log-stddev must be true or false, got '1'",
            DataError,
        ),
        (
            INPUT + "relu-dropout-layer name=a dropout-per-dim-continuous=true" + END,
            "write dropout-per-dim=true",
            DataError,
        ),
        (
            INPUT + "linear-component name=a" + END,
            "line 2: linear-component 'a': needs dim=",
            DataError,
        ),
        (
            INPUT + "tdnnf-layer name=a dim=6 bottleneck-dim=2" + END,
            "adds its input of 4 features to its 6",
            ShapeError,
        ),
        (
            INPUT + "tdnnf-layer name=a dim=4 bottleneck-dim=4" + END,
            "dim must be greater than bottleneck-dim",
            DataError,
        ),
        (
            INPUT + "tdnnf-layer name=a dim=4 bottleneck-dim=2 context=x" + END,
            "context must be default",
            DataError,
        ),
        (
            INPUT + "tdnnf-layer name=a dim=4 bottleneck-dim=2 dropout-proportion=0.1" + END,
            "write dropout-proportion=0",
            DataError,
        ),
        (
            INPUT + "tdnnf-layer name=a dim=4 bottleneck-dim=2 bypass-scale=2" + END,
            "bypass-scale must be from -1 to 1, got 2",
            DataError,
        ),
        (
            INPUT + "prefinal-layer name=a big-dim=4 small-dim=4" + END,
            "big-dim must be greater than small-dim",
            DataError,
        ),
        (
            INPUT + END + " presoftmax-scale-file=a.vec",
            "presoftmax-scale-file= is not read",
            DataError,
        ),
        (INPUT + END + " objective-type=quadratic", "write include-log-softmax=false", DataError),
        (
            INPUT + END + " objective-type=other",
            "objective-type must be linear or quadratic",
            DataError,
        ),
        (INPUT + END + "\nrelu-layer name=a", "takes the output 'output' of line 3", DataError),
        (
            INPUT + "relu-layer name=a input=inptu" + END,
            "input 'inptu' is not known: did you mean 'input'",
            UnknownNameError,
        ),
        ("relu-layer name=a", "there is no line 1 above it", DataError),
        (INPUT + "relu-layer name=a input=[-2]", "there is no line 2 above it", DataError),
        (INPUT + "relu-layer name=a input=[0]", "n is -1 or less", DataError),
        (INPUT + "relu-layer name=a input=Append(-1,0", "expected ')', got the end", DataError),
        (INPUT + "relu-layer name=a input=Append(-1 0)", "expected ')', got 0", DataError),
        (INPUT + "relu-layer name=a input=input)", "expected the end, got )", DataError),
        (INPUT + "relu-layer name=a input=,", "expected a name, got ,", DataError),
        (INPUT + "relu-layer name=a input=input@x", "expected a whole number, got x", DataError),
        (
            INPUT + "relu-layer name=a input=Offset(input, 0.5)",
            "expected a whole number, got 0.5",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a input=Scale(input, 2)",
            "expected a number, got input",
            DataError,
        ),
        (INPUT + "relu-layer name=a input=in?put", "got '?'", DataError),
        (
            INPUT + "relu-layer name=a input=Round(input, 3)",
            "Round() is not read: read are Append",
            DataError,
        ),
        (INPUT + "relu-layer name=a input=Apend(-1,0)", "expected one of Append, Sum", DataError),
        (
            INPUT + "relu-layer name=a input=ReplaceIndex(input, x, 0)",
            "ReplaceIndex(name, t, 0) only",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a\nrelu-layer name=b input=Append(a,ReplaceIndex(a,t,0))",
            "of inputs only, and 'a' is none",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a input=Append(input, ReplaceIndex(input, t, 0))" + END,
            "line 1: input 'input': is taken both by frames",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a input=ReplaceIndex(input, t, 0)" + END,
            "append frames of an input",
            DataError,
        ),
        (
            INPUT + "relu-layer name=a dim=3\nno-op-component name=b input=Sum(a, input)",
            "Sum() of 3, 4 features",
            ShapeError,
        ),
    ],
)
def test_an_error_names_the_line_and_the_way_out(
    tmp_path: Path, text: str | bytes, words: str, kind: type[Exception]
) -> None:
    file = tmp_path / "network.xconfig"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(kind) as caught:
        from_kaldi(file)
    message = str(caught.value)
    assert message.count("\n") == 0 and words in message, message


def test_errors_of_arguments(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.xconfig"):
        from_kaldi(tmp_path / "nothing.xconfig")
    file = tmp_path / "network.xconfig"
    file.write_text(INPUT + "relu-layer name=a dim=3 input=Append(-3,3)" + END)
    with pytest.raises(ShapeError, match="3 before it, 3 behind it, 7 in all"):
        from_kaldi(file, 6)
    with pytest.raises(ArgumentError, match=r"frames must be a whole number or None, got 7\.5"):
        from_kaldi(file, 7.5)
    with pytest.raises(UnknownNameError, match="did you mean 'output'"):
        from_kaldi(file, outputs=["outputs"])
    with pytest.raises(ArgumentError, match="outputs must be names of output lines in a list"):
        from_kaldi(file, outputs="output")


@pytest.mark.parametrize("seed", range(40))
def test_changed_descriptions_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Whatever a file holds, what goes wrong is one of magmadnn's errors, in one line."""
    rng, file = random.Random(seed), tmp_path / "network.xconfig"
    words = [
        "=",
        "(",
        ")",
        ",",
        "@",
        "[-1]",
        "-9",
        "0.5",
        "1e400",
        "nan",
        "dim",
        " ",
        '"',
        "\n",
        "#",
        "é",
        "\\",
    ]
    words += [
        "Append",
        "Sum",
        "Scale",
        "Offset",
        "ReplaceIndex",
        "name",
        "input",
        "99999999999999999999",
    ]
    for _ in range(10):
        text = list(MIXED)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.choice([0, 0, 1, 6])] = rng.choice(words)
        file.write_text("".join(text))
        try:
            from_kaldi(file)
        except MagmaDNNError as error:
            assert "\n" not in str(error)
