"""The convolutional networks: numbers of parameters, weights of PyTorch's networks, and mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import magmadnn as md
from magmadnn import models
from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    ShapeError,
    UnknownArgumentError,
    UnknownNameError,
)
from magmadnn.models.zoo import ZOO
from magmadnn.storage.formats.tensor_file import tensors_to_bytes
from tests.models.formula_weights import image, weight

STORED = json.loads((Path(__file__).parent / "data" / "torchvision_networks.json").read_text())
PHOTOGRAPH = ((224, 224, 3), 1000)


def count(model: md.Model) -> int:
    return sum(math.prod(p.shape) for p in model.parameters())


# --- sizes ---

# Of the large ones as torchvision publishes them. The others: k * k * in * out + out of a convolution with
# bias, without one and with batch normalisation k * k * in * out + 2 * out, in * out + out of a dense layer.
COUNTS = {
    "lenet5": ((28, 28, 1), 10, 156 + 2416 + 400 * 120 + 120 + 120 * 84 + 84 + 850),
    "cnn_2d": ((28, 28, 1), 10, 832 + 25632 + 512 * 768 + 768 + 768 * 500 + 500 + 5010),
    "cifar_cnn": ((32, 32, 3), 10, 896 + 9248 + 18496 + 36928 + 4096 * 256 + 256 + 2570),
    "resnet20": ((32, 32, 3), 10, 272_474),
    "resnet56": ((32, 32, 3), 10, 855_770),
    "alexnet": (*PHOTOGRAPH, 61_100_840),
    "vgg16": (*PHOTOGRAPH, 138_357_544),
    "googlenet": (*PHOTOGRAPH, 6_624_904),
    "resnet18": (*PHOTOGRAPH, 11_689_512),
    "resnet34": (*PHOTOGRAPH, 21_797_672),
    "resnet50": (*PHOTOGRAPH, 25_557_032),
    "densenet121": (*PHOTOGRAPH, 7_978_856),
}


@pytest.mark.parametrize("name", COUNTS)
def test_numbers_of_parameters(name):
    shape, outputs, expected = COUNTS[name]
    made = getattr(models, name)(shape, outputs)
    assert count(made) == expected
    assert made.outputs[0].shape[1:] == (outputs,)
    assert f"{expected:,}" in getattr(models, name).__doc__ or name == "cnn_2d"


def test_larger_images_need_no_more_parameters():
    """As torchvision: what weights for 224 x 224 are made for serves larger images."""
    for name, shape in (("alexnet", (260, 320, 3)), ("vgg16", (256, 224, 3))):
        assert count(getattr(models, name)(shape, 1000)) == COUNTS[name][2]
    assert count(models.vgg16((64, 96, 3), 10)) < COUNTS["vgg16"][2] - 90_000_000


def test_alexnet_has_the_papers_normalisation_where_it_is_asked_for():
    def places(**options):
        made = [type(layer).__name__ for layer in models.alexnet((64, 64, 3), 5, **options).layers]
        return [k for k, name in enumerate(made) if name == "LocalResponseNormalization"], made

    assert places()[0] == []
    found, made = places(normalization="local_response")
    assert [made[k - 1 : k + 2] for k in found] == 2 * [
        ["Conv2D", "LocalResponseNormalization", "MaxPooling2D"]
    ]
    with pytest.raises(UnknownNameError, match="normalization"):
        models.alexnet((64, 64, 3), 5, normalization="batch")


def test_residual_networks_for_cifar_have_the_papers_layers():
    # Stages of n blocks with two convolutions of 9 w w weights, the first of the second and third of half as
    # many; batch normalisation has 2 w; shortcuts w w / 2 + 2 w.
    for name, n in (("resnet20", 3), ("resnet56", 9)):
        expected = 9 * 3 * 16 + 2 * 16 + 64 * 10 + 10
        for w in (16, 32, 64):
            expected += 2 * n * (9 * w * w + 2 * w)
            expected += 0 if w == 16 else w * w // 2 + 2 * w - 9 * w * w // 2
        assert COUNTS[name][2] == expected
        layers = getattr(models, name)((32, 32, 3), 10).layers
        weighted = [
            layer for layer in layers if isinstance(layer, (md.layers.Conv2D, md.layers.Dense))
        ]
        assert len(weighted) - 2 == 6 * n + 2  # two shortcuts are not counted


def test_the_papers_variants():
    """Counts of the papers: option A, and GoogLeNet with biases and 5 x 5 as in Caffe's model zoo."""
    photograph, small = PHOTOGRAPH, ((32, 32, 3), 10)
    assert count(models.resnet20(*small, variant="paper")) == 269_722
    assert count(models.resnet56(*small, variant="paper")) == 853_018
    assert count(models.googlenet(*photograph, variant="paper")) == 6_998_552
    assert count(models.googlenet(*photograph, aux=True, variant="paper")) == 13_378_280
    paper = models.resnet50(*photograph, variant="paper")
    assert count(paper) == COUNTS["resnet50"][2]
    strides = {
        layer.name: layer.strides for layer in paper.layers if isinstance(layer, md.layers.Conv2D)
    }
    assert strides["layer2.0.conv1"] == 2 and strides["layer2.0.conv2"] == 1
    with pytest.raises(UnknownNameError, match="resnet50: variant 'original'"):
        models.resnet50(*photograph, variant="original")


def test_shortcuts_without_weights_take_every_second_place_and_add_zeros():
    from magmadnn.models.convolutional.residual import _every_second

    inputs = md.layers.Input((5, 6, 3))
    x = np.random.default_rng(3).random((2, 5, 6, 3), np.float32)
    found = md.Model(inputs=inputs, outputs=_every_second(inputs, 7)).predict(x)
    assert np.array_equal(found[..., :3], x[:, ::2, ::2]) and found.shape == (2, 3, 3, 7)
    assert not found[..., 3:].any()


def test_googlenet_with_auxiliary_heads():
    made = models.googlenet(*PHOTOGRAPH, aux=True)
    assert count(made) == 13_004_888
    assert [output.shape[-1] for output in made.outputs] == [1000] * 3
    small = models.googlenet(
        (80, 80, 3), 3, aux=True, loss="cross_entropy", loss_weights=[1, 0.3, 0.3]
    )
    assert len(small.outputs) == 3


@pytest.mark.parametrize("network", ZOO, ids=lambda network: network.name)
def test_every_network_takes_small_images(network):
    made = network.model((32, 32, 3), 5, network.preset("image"))
    assert made.outputs[0].shape[1:] == (5,)


def test_stems_are_for_small_images_up_to_32_pixels():
    for name in ("resnet18", "densenet121", "googlenet"):
        for side, size in ((32, 3), (33, 7)):
            first = getattr(models, name)((side, side, 3), 5).layers[0]
            assert first.kernel_size == size
    assert models.alexnet((32, 32, 3), 5).layers[0].kernel_size == 5
    assert models.alexnet((64, 64, 3), 5).layers[0].kernel_size == 11


def test_initial_values_are_those_of_the_papers():
    alexnet = models.alexnet((64, 64, 3), 5)
    for place, bias in ((0, 0), (3, 1), (6, 0), (8, 1), (10, 1)):
        assert (alexnet.layer(f"features.{place}").bias.value.read() == bias).all()
    kernel = np.asarray(alexnet.layer("features.6").kernel.value.read())
    assert kernel.std() == pytest.approx(0.01, rel=0.01)
    lenet = models.lenet5((28, 28, 1), 10, activation="tanh", pooling="average").values()
    limit = math.sqrt(3 / 150)  # uniform with variance 1 / (5 * 5 * 6)
    assert 0.95 * limit < np.abs(lenet["conv2/kernel"]).max() <= limit
    resnet = models.resnet20((32, 32, 3), 10).values()
    kernel = resnet["layer3.1.conv1/kernel"]
    assert kernel.std() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)


# --- weights of PyTorch's networks ---


def state_of(name: str, path: Path, **changed: tuple[int, ...] | None) -> Path:
    """A file with a state dict by formula; parts of it left out or of another shape."""
    shapes = dict(STORED[name]["shapes"])
    shapes |= {key: shape for key, shape in changed.items() if shape is not None}
    tensors = {k: weight(k, tuple(s)) for k, s in shapes.items() if changed.get(k, s) is not None}
    tensors["bn1.num_batches_tracked"] = np.array(5)
    path.write_bytes(tensors_to_bytes(tensors))
    return path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("resnet18", "googlenet") else pytest.mark.long)
        for n in STORED
    ],
)
def test_predictions_are_those_of_pytorch_with_the_same_weights(name, tmp_path):
    stored = STORED[name]
    size = stored["size"]
    made = getattr(models, name)(
        (size, size, 3), 7, weights=state_of(name, tmp_path / "w.safetensors"), executor="reference"
    )
    expected = np.array(stored["predictions"])
    # Rounding to 2**-24 in each of at most 121 layers, whose sums have up to 9216 terms of both signs: sums
    # err by about 2**-24 * sqrt(9216), and such errors add up to sqrt(121) of that: 6e-5 of the largest.
    error = np.abs(made.predict(image(size)) - expected).max()
    assert error < 6e-5 * 2 * np.abs(expected).max()


def test_weights_of_another_network_are_refused_by_their_first_layer(tmp_path):
    def refused(name: str, file: Path, outputs: int = 7) -> str:
        with pytest.raises(DataError) as found:
            getattr(models, name)((65, 65, 3), outputs, weights=file)
        return str(found.value).removeprefix(f"{file}: holds weights of another network: ")

    file = state_of("resnet18", tmp_path / "w.safetensors")
    assert refused("resnet34", file) == (
        "layer1.2.conv1.weight is missing, which layer layer1.2.conv1 needs"
    )
    assert refused("resnet50", file) == (
        "layer layer1.0.conv1 differs first: layer1.0.conv1.weight would be [3, 3, 64, 64] here, expected "
        "[1, 1, 64, 64]"
    )
    assert refused("resnet18", file, 8) == (
        "layer fc differs first: fc.weight would be [512, 7] here, expected [512, 8]"
    )
    assert refused("densenet121", file).startswith("features.conv0.weight is missing")
    more = state_of("resnet18", tmp_path / "more.safetensors", **{"head.weight": (3, 3)})
    assert refused("resnet18", more) == "head.weight is not in this one"
    with pytest.raises(FileError):
        models.resnet18((65, 65, 3), 7, weights=tmp_path / "none.safetensors")


@pytest.mark.parametrize("before", ["module.", "module._orig_mod."])
def test_names_that_pytorchs_wrappers_add_are_left_out(before, tmp_path):
    file = state_of("resnet18", tmp_path / "w.safetensors")
    tensors = {before + k: v for k, v in load_file(file).items()}
    (tmp_path / "wrapped").write_bytes(tensors_to_bytes(tensors))
    plain, wrapped = (
        models.resnet18((65, 65, 3), 7, weights=path).values()
        for path in (file, tmp_path / "wrapped")
    )
    assert all((wrapped[name] == value).all() for name, value in plain.items())


def test_weights_may_stand_behind_a_link_and_be_halves(tmp_path):
    file = state_of("resnet18", tmp_path / "w.safetensors")
    (tmp_path / "link").symlink_to(file)
    linked = models.resnet18((65, 65, 3), 7, weights=tmp_path / "link").values()
    halves = {k: v.astype(ml_dtypes.bfloat16) for k, v in load_file(file).items()}
    (tmp_path / "halves").write_bytes(tensors_to_bytes(halves))
    rounded = models.resnet18((65, 65, 3), 7, weights=tmp_path / "halves").values()
    kernel = linked["conv1/kernel"]
    assert (rounded["conv1/kernel"] == kernel.astype(ml_dtypes.bfloat16)).all()
    assert not (rounded["conv1/kernel"] == kernel).all()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("fc.weight", lambda a: a.astype(np.int8), "fc.weight holds int8, expected floating point"),
        ("fc.bias", lambda a: a * np.nan, "fc.bias holds NaN or infinity: the network"),
        (
            "layer1.0.bn1.weight",
            lambda a: a / np.float32(0),
            "layer1.0.bn1.weight holds NaN or inf",
        ),
        ("bn1.running_var", lambda a: a - 1, "bn1.running_var holds -.*, but a variance is never "),
    ],
)
def test_values_that_no_network_has_learnt_are_refused(name, change, words, tmp_path):
    tensors = dict(load_file(state_of("resnet18", tmp_path / "w.safetensors")))
    with np.errstate(all="ignore"):
        tensors[name] = change(tensors[name])
    (tmp_path / "w.safetensors").write_bytes(tensors_to_bytes(tensors))
    with pytest.raises(DataError, match=words):
        models.resnet18((65, 65, 3), 7, weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize("beginning", [b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P"])
def test_a_file_of_torch_save_is_told_as_such(beginning, tmp_path):
    (tmp_path / "net.pth").write_bytes(beginning + bytes(100))
    with pytest.raises(
        DataError, match=r"was written by torch\.save.* safetensors\.torch\.save_file"
    ):
        models.resnet18((65, 65, 3), 7, weights=tmp_path / "net.pth")


def test_a_dense_layer_behind_a_flatten_takes_channels_first(tmp_path):
    made = models.lenet5((12, 12, 2), 3)
    values = made.values()
    tensors = {}
    for key, value in values.items():
        layer, _, local = key.rpartition("/")
        turned = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        tensors[f"{layer}.{'weight' if local == 'kernel' else 'bias'}"] = turned
    first = values["fc1/kernel"].reshape(1, 1, 16, 120)  # [height, width, channels, out]
    tensors["fc1.weight"] = first.transpose(3, 2, 0, 1).reshape(120, 16)
    (tmp_path / "w").write_bytes(tensors_to_bytes(tensors))
    again = models.lenet5((12, 12, 2), 3, weights=tmp_path / "w", seed=5)
    x = np.random.default_rng(1).random((5, 12, 12, 2), np.float32)
    np.testing.assert_array_equal(again.predict(x), made.predict(x))


# --- training ---


@pytest.mark.parametrize("name", ["lenet5", "cifar_cnn"])
def test_a_small_network_learns_and_is_saved(name, tmp_path):
    rng = np.random.default_rng(3)
    y = np.arange(96) % 3
    x = rng.random((96, 16, 16, 3), np.float32)
    x[np.arange(96), 4 * y + 3, 4:12] += 1  # a bright line, whose row says the class
    made = getattr(models, name)(
        (16, 16, 3), 3, loss="cross_entropy", optimizer=md.optim.Adam(3e-3)
    )
    history = made.fit(x, y, batch_size=16, epochs=8, verbose=False)
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    made.save(tmp_path / "m")
    np.testing.assert_array_equal(md.load(tmp_path / "m").predict(x), made.predict(x))


def test_a_residual_network_is_trained_for_a_step():
    rng = np.random.default_rng(3)
    x, y = rng.random((8, 8, 8, 3), np.float32), np.arange(8) % 4
    made = models.resnet20(
        (8, 8, 3), 4, loss="cross_entropy", optimizer="adam", executor="reference"
    )
    before = made.values()
    made.fit(x, y, batch_size=8, verbose=False)
    after = made.values()
    assert all(not np.array_equal(before[k], after[k]) for k in before)


# --- mistakes ---

MISTAKES = {
    "lenet5: needs images of at least 12 x 12, got 11 x 28: scale them up, or choose a smaller network": (
        lambda: models.lenet5((11, 28, 1), 10)
    ),
    "vgg16: needs images of at least 32 x 32, got 28 x 28: scale them up, or choose a smaller network": (
        lambda: models.vgg16((28, 28, 1), 10)
    ),
    "resnet18: expected images, input_shape (height, width, channels), got (13,)": (
        lambda: models.resnet18((13,), 2)
    ),
    "lenet5: expected images, input_shape (height, width, channels), got 28": (
        lambda: models.lenet5(28, 10)
    ),
    "resnet50: needs images of at least 8 x 8, got 3 x 224: channels come last: write (224, 224, 3), and "
    "np.moveaxis(x, 1, -1) of images": lambda: models.resnet50((3, 224, 224), 10),
    "cifar_cnn: outputs must be a whole number of at least 1, got 0": (
        lambda: models.cifar_cnn((32, 32, 3), 0)
    ),
    "alexnet: dropout must be at least 0 and below 1, got 1.0": (
        lambda: models.alexnet((64, 64, 3), 2, dropout=1.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(words):
    with pytest.raises((ArgumentError, ShapeError)) as found:
        MISTAKES[words]()
    assert str(found.value) == words


@pytest.mark.parametrize(
    ("name", "wrong", "way"),
    [
        (
            "lenet5",
            "poling",
            "did you mean 'pooling'? known are activation, device, executor, filters",
        ),
        ("cifar_cnn", "optimiser", "did you mean 'optimizer'? known are device, dropout"),
        ("mlp", "hiden", "did you mean 'hidden'? known are activation, device, dropout"),
        ("resnet20", "dtype", 'write precision="float64"'),
    ],
)
def test_arguments_that_are_not_known_are_told_with_those_of_network_and_model(name, wrong, way):
    with pytest.raises(UnknownArgumentError) as found:
        getattr(models, name)((28, 28, 1), 10, **{wrong: 1})
    assert str(found.value).startswith(f"{name}: argument {wrong!r} is not known: {way}")


def test_sizes_may_be_numbers_of_numpy():
    x, y = np.zeros((6, 28, 28, 1)), np.arange(6)
    made = models.lenet5(np.array(x.shape[1:]), y.max() + 1)
    assert made.outputs[0].shape[1:] == (6,)
    assert models.mlp(x.shape[1:], y.max() + 1, hidden=[np.int32(5)]).outputs[0].shape[1:] == (6,)
    for outputs in (True, 2.0, np.float64(2)):
        with pytest.raises(ArgumentError, match="outputs must be a whole number of at least 1"):
            models.lenet5((28, 28, 1), outputs)


def test_other_mistakes():
    with pytest.raises(UnknownNameError, match="pooling"):
        models.lenet5((28, 28, 1), 10, pooling="mean")
    with pytest.raises(UnknownNameError, match="lenet5"):
        models.by_name("lenet")
