"""Descriptions that are wrong, or have what cannot be expressed: errors name layer, line and the way out."""

from __future__ import annotations

import random
import re

import pytest

from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.models import from_caffe
from tests.models.caffe import descriptions as of

DATA = of.data(4, 8, 8)  # one line; the layer behind it begins in line 2
LOSS = """layer { name: "d" type: "Data" top: "data" top: "label" }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "l" %s }
"""


@pytest.fixture
def refused(tmp_path):
    """Looks that a text is refused with these words, in one line; gives the message."""

    def check(text, words, kind=DataError, input_shape=None, **options) -> None:
        file = tmp_path / "net.prototxt"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(kind) as caught:
            from_caffe(file, input_shape, **options)
        message = str(caught.value)
        assert message.count("\n") == 0 and message.count("net.prototxt") <= 1
        assert words in message.replace(f"{tmp_path}/", ""), message

    return check


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "net.prototxt: holds no layer; expected a network"),
        ("nam: 'x'", "net.prototxt, line 1: field 'nam' is not known: did you mean 'name'?"),
        ("layr { }", "net.prototxt, line 1: field 'layr' is not known: did you mean 'layer'?"),
        ("net: 'a.prototxt'\nbase_lr: 0.01", "describes a solver (base_lr), expected a network"),
        (b"\x0a\x07\xff\xfe", "net.prototxt: is no text"),
        ("layer { name: 'a' }\nlayers { }", "line 2: a file has `layer` or, in the older format"),
        ("layers { layer { name: 'a' } }", "the oldest format, `layers { layer { ... } }`"),
        (
            "layers { name: 'a' type: CONVOLUTON }",
            "type 'CONVOLUTON' is not known: did you mean 'CONVOL",
        ),
        ("layers { name: 'a' type: 'ReLU' }", "must be a word such as CONVOLUTION, got 'ReLU'"),
        (
            "layer { name: 'a' type: RELU }",
            'type must be text in quotes, such as "Convolution", got RELU',
        ),
        ("layer { name: 'a' }", "net.prototxt, line 1: layer 'a': has no type"),
        ("layer { name: 'a' name: 'b' }", "line 1: layer: name is given twice, first in line 1"),
        ("layer: 3", "net.prototxt, line 1: layer must be a message in braces, got 3"),
        (
            "input: 'a' input_dim: 1 input_dim: 2\n" + DATA,
            "expected 4 sizes (batch, channels, height, width)",
        ),
        (
            "input: 'a' input: 'b' input_shape { dim: 1 }\n" + DATA,
            "a shape for each input, got 1 for 2",
        ),
        ("input: 'data'\n" + DATA, "top 'data' is that of a layer above too"),
        ("input: 'data' input: 'data'\n" + DATA, "input 'data' is declared twice"),
        (
            "input: 'a' input_dim: 1 input_shape { dim: 1 }\n" + DATA,
            "input_dim and input_shape are both",
        ),
        (
            "layer { type: 'Input' top: 'a' input_param { shape { dim: 1 dim: 2 dim: 0 dim: 4 } } }"
            + of.layer("r", "ReLU", "a"),
            "with sizes of at least 1, got (1, 2, 0, 4)",
        ),
        (
            "layer { type: 'Input' top: 'a' top: 'b' input_param { shape { } shape { } shape { } } }",
            "expected a shape for each top, or one for all, got 3 for 2",
        ),
        (
            "layer { type: 'Input' top: 'a' imput_param { } }",
            "field 'imput_param' is not known: did you mean",
        ),
        (DATA, "the network of the training has no output"),
        (
            of.LENET.replace('bottom: "conv1"', 'bottom: "conw1"'),
            "line 17: layer 'pool1' (Pooling): bottom 'conw1' is not known: did you mean 'conv1'?",
        ),
    ],
)
def test_files_that_are_no_network(refused, text, words):
    refused(
        text, words, (DataError, UnknownNameError), (28, 28, 1) if "mnist" in str(text) else None
    )


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("Convolutoin", "", "type 'Convolutoin' is not known: did you mean 'Convolution'?"),
        ("EuclideanLoss", "", "type 'EuclideanLoss' is not known"),
        ("Scale", "", "Scale is read behind a BatchNorm layer only"),
        ("ReLU", "relu_parm { }", "field 'relu_parm' is not known: did you mean 'relu_param'?"),
        ("ReLU", "pooling_param { }", "field 'pooling_param' is not known"),
        (
            "ReLU",
            "relu_param { negative_slop: 1 }",
            "relu_param: field 'negative_slop' is not known: did you",
        ),
        ("ReLU", "propagate_down: false", "propagate_down: false is not supported"),
        ("ReLU", "loss_weight: 1", "loss_weight: only SoftmaxWithLoss has a loss"),
        (
            "ReLU",
            "include { phase: TRAINING }",
            "phase 'TRAINING' is not known: did you mean 'TRAIN'?",
        ),
        ("ReLU", "include { } exclude { }", "include and exclude are both given"),
        ("Convolution", "", "convolution_param: needs num_output, a whole number of at least 1"),
        (
            "Convolution",
            "convolution_param { num_outputs: 3 }",
            "'num_outputs' is not known: did you mean 'num",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernal_size: 3 }",
            "'kernal_size' is not known: did",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 }",
            "needs kernel_size, a whole number of at least",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_h: 3 }",
            "needs both of kernel_h and kernel_w",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 0 kernel_size: 3 }",
            "num_output must be a whole number",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 2.5 kernel_size: 3 }",
            "at least 1, got 2.5",
        ),
        (
            "Convolution",
            "convolution_param { num_output: '2' kernel_size: 3 }",
            "at least 1, got '2'",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 99999999999 kernel_size: 3 }",
            "at most 2147483647",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: [1, 2, 3] }",
            "one number or two, (hei",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 kernel_h: 3 }",
            "are both given",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 axis: 2 }",
            "axis: 2 is not supported",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 group: 2 }",
            "3 filters do not divide",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 9 }",
            "a window reaches over 9",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 engine: CUDA }",
            "engine 'CUDA' is not",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 bias_term: 3 }",
            "must be true or false",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: 'xavir' } }",
            "weight_filler: type 'xavir' is not known: did you mean 'xavier'?",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 bias_filler { type: 'msra' } }",
            "bias_filler: type 'msra' is not known",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 weight_filler { std: inf } }",
            "std must be a number, got inf",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 weight_filler { std: -inf } }",
            "std must be a finite number, got -inf",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: 'gaussian' std: -1 } }",
            "std must be at least 0, got -1",
        ),
        (
            "Convolution",
            "param { lr_mult: 0 } convolution_param { num_output: 3 kernel_size: 3 }",
            "lr_mult is 0 for some of its parameters only, got 0, 1",
        ),
        (
            "Convolution",
            "param { } param { } param { } convolution_param { num_output: 3 kernel_size: 3 }",
            "3 learning rates are given for 2 parameters",
        ),
        (
            "InnerProduct",
            "inner_product_param { num_output: 3 transpose: true }",
            "transpose: true is not supp",
        ),
        ("Pooling", "", "needs kernel_size, a whole number of at least 1, or global_pooling: true"),
        (
            "Pooling",
            "pooling_param { pool: AVG kernel_size: 2 }",
            "pool 'AVG' is not known: did you mean 'AVE'?",
        ),
        (
            "Pooling",
            "pooling_param { pool: STOCHASTIC kernel_size: 2 }",
            "pool: STOCHASTIC is not supported",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 2 pad: 2 }",
            "pad must be smaller than the window, got 8 plac",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 12 }",
            "the image has no window, got 8 places, windows of 12",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 1 stride: 4 }",
            "the last of 3 windows lies beyond the image",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 2 global_pooling: true }",
            "one window of all places",
        ),
        (
            "LRN",
            "lrn_param { norm_region: WITHIN_CHANNEL }",
            "norm_region: WITHIN_CHANNEL is not supported",
        ),
        ("LRN", "lrn_param { local_size: 4 }", "local_size must be odd, as in Caffe, got 4"),
        ("Dropout", "dropout_param { dropout_ratio: 1 }", "must be at least 0 and below 1, got 1"),
        ("Dropout", "dropout_param { scale_train: false }", "scale_train: false is not supported"),
        ("ELU", "elu_param { alpha: 2 }", "alpha: 2 is not supported"),
        ("PReLU", "prelu_param { channel_shared: true }", "channel_shared: true is not supported"),
        ("Softmax", "softmax_param { axis: 2 }", "axis: 2 is not supported"),
        ("Flatten", "flatten_param { axis: 2 }", "axis: 2 is not supported"),
        ("Eltwise", "", "expected bottoms: 2 or more, got 1 (data)"),
    ],
)
def test_layers_that_cannot_be_had(refused, kind, options, words):
    text = DATA + f'layer {{\n name: "a" type: "{kind}" bottom: "data" top: "a"\n {options} }}'
    for part in (words, ": layer 'a'", "net.prototxt, line "):
        refused(text, part, (DataError, ShapeError, UnknownNameError))


def test_lines_are_those_of_the_option(refused):
    text = (
        DATA
        + 'layer {\n name: "a" type: "ReLU" bottom: "data" top: "a"\n\n relu_param {\n  slope: 1 } }'
    )
    refused(
        text, "net.prototxt, line 6: layer 'a' (ReLU): relu_param: field 'slope'", UnknownNameError
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            of.layer("a", "Eltwise", "data b") + of.layer("b", "ReLU", "a"),
            "layer 'a' (Eltwise): bottom 'b' is made by layer 'b' in line 6, which needs this layer: they",
        ),
        (
            of.layer("a", "Eltwise", "data c")
            + of.layer("b", "ReLU", "a")
            + of.layer("c", "ReLU", "b"),
            "is made by layer 'c' in line 10, which needs this layer: they form a circle",
        ),
        (
            of.layer("a", "ReLU", "b") + of.layer("b", "ReLU", "data"),
            "bottom 'b' is made further below, by layer 'b' in line 6: move that above this layer",
        ),
        (
            of.layer("a", "ReLU", "b") + of.layer("b", "ReLU", "data", "include { phase: TEST }"),
            "by layer 'b' in line 6, which is no part of the network of the training",
        ),
        (of.in_place("a", "ReLU", "dat"), "bottom 'dat' is not known: did you mean 'data'?"),
        (
            of.layer("a", "ReLU", "data") + of.layer("b", "ReLU", "data", top="a"),
            "line 6: layer 'b' (ReLU): top 'a' is that of a layer above too",
        ),
        (
            of.layer("a", "ReLU", "data") + of.layer("a", "TanH", "a", top="b"),
            "line 6: layer 'a' (TanH): has the name of the layer in line 2",
        ),
        (of.layer("a", "ReLU", "data data"), "expected bottoms: 1, got 2 (data, data)"),
        (of.layer("a", "ReLU", "data", 'top: "b"'), "expected tops: 1, got 2 (a, b)"),
        (
            of.layer("a", "Concat", "data b") + DATA.replace('"data"', '"b"'),
            "bottom 'b' is made further",
        ),
        (
            of.conv("a", "data", 3, 3).replace("  conv", "  param { name: 'w' } conv")
            + of.conv("b", "a", 3, 3).replace("  conv", "  param { name: 'w' } conv"),
            "layer 'b' (Convolution): shares the parameter 'w' with layer 'a' in line 2",
        ),
        (
            of.layer("bn", "BatchNorm", "data"),
            "expected a Scale layer with bias_term: true behind it",
        ),
        (
            of.layer("bn", "BatchNorm", "data") + of.layer("r", "ReLU", "bn"),
            "line 2: layer 'bn' (BatchNorm): its top goes into layer 'r' in line 6",
        ),
        (
            of.layer("bn", "BatchNorm", "data") + of.in_place("s", "Scale", "bn"),
            "line 6: layer 's' (Scale): scale_param: bias_term: false is not supported",
        ),
        (
            of.layer("bn", "BatchNorm", "data", "batch_norm_param { epsilon: 1 }")
            + of.in_place("s", "Scale", "bn", "scale_param { bias_term: true }"),
            "batch_norm_param: field 'epsilon' is not known: did you mean 'eps'?",
        ),
    ],
)
def test_layers_that_do_not_fit_together(refused, text, words):
    refused(DATA + text, words, (DataError, UnknownNameError))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("loss_param { ignore_label: 255 }", "ignore_label is not supported"),
        ("loss_param { normalization: NONE }", "normalization: NONE is not supported"),
        ("loss_param { normalize: false }", "normalize: false is not supported"),
        ("loss_weight: -1", "loss_weight must be at least 0, got -1"),
        (
            "loss_pram { }",
            "line 3: layer 'l' (SoftmaxWithLoss): field 'loss_pram' is not known: did you mean",
        ),
        ("top: 'x'", "expected 2 bottoms (predictions, labels) and at most 1 top, got 2 and 2"),
    ],
)
def test_losses_that_cannot_be_had(refused, options, words):
    refused(LOSS % options, words, (DataError, UnknownNameError), (7,))


def test_labels_come_from_data(refused):
    text = LOSS % ""
    refused(
        text.replace('"ip" bottom: "label"', '"ip" bottom: "ip"'),
        "bottom 'ip' must be labels",
        input_shape=(7,),
    )
    norm = of.layer("bn", "BatchNorm", "data", "batch_norm_param { use_global_stats: true }")
    norm += of.in_place("s", "Scale", "bn", "scale_param { bias_term: true }")
    first, rest = text.split("\n", 1)
    refused(
        f"{first}\n{norm}{rest}",
        "use_global_stats: true is not supported in a network that",
        input_shape=(7,),
    )


def test_shapes_that_are_missing_or_wrong(refused):
    refused(
        LOSS % "",
        "line 1: input 'data': the file does not say its shape: give input_shape=",
        ArgumentError,
    )
    cropped = (LOSS % "").replace('top: "label"', 'top: "label" transform_param { crop_size: 227 }')
    refused(cropped, "give input_shape=(227, 227, channels)", ArgumentError)
    refused(of.LENET, "expected images, (height, width, channels), got", DataError, (784,))
    for shape in ((1, 2), (), 7, "28", (8, 8, 0), (8.0, 8, 1)):
        refused(
            LOSS % "",
            "from_caffe: input_shape must be (height, width, channels)",
            ShapeError,
            shape,
        )


def test_files_that_cannot_be_read(tmp_path, refused):
    with pytest.raises(FileError, match=re.escape("none.prototxt")):
        from_caffe(tmp_path / "none.prototxt")
    with pytest.raises(FileError, match="expected a regular file, got a folder"):
        from_caffe(tmp_path)
    with pytest.raises(ArgumentError, match="from_caffe: the file must be a path, got 3"):
        from_caffe(3)
    refused(b"#" * (1 << 24) + b"#", "has more than 16,777,216 bytes")
    refused(DATA + of.layer("r", "ReLU", "data"), "optimiser", UnknownNameError, optimizer="sdg")


def test_a_damaged_file_is_one_of_our_errors_or_a_network(tmp_path):
    """Numbers, texts and words in the place of others: no other exception, and messages of one line."""
    draw = random.Random(7)
    file = tmp_path / "net.prototxt"
    norm = of.layer("bn", "BatchNorm", "data") + of.in_place(
        "s", "Scale", "bn", "scale_param { bias_term: true }"
    )
    texts = [DATA + norm + of.pool("p", "bn", "AVE", 3, 2, "pad: 1"), of.LENET, of.OLD]
    refused = 0
    for _ in range(300):
        tokens = re.findall(r'"[^"]*"|[\w.]+|\S', draw.choice(texts))
        place = draw.randrange(len(tokens))
        old = tokens[place]
        alike = [t for t in tokens if t[0] == old[0] == '"' or t.isidentifier()]
        numbers = ["0", "-1", "1.5", "100", "2147483647", "inf", "08", "{"]
        tokens[place] = draw.choice(numbers if old[0].isdigit() else alike)
        file.write_text(" ".join(tokens), encoding="utf-8")
        try:
            from_caffe(file, (28, 28, 1))
        except MagmaDNNError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 300
