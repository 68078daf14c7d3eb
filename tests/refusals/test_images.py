"""Mistakes with images and convolutional networks; those with CIFAR's files stand in `test_readers.py`.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    GraphError,
    OutOfMemoryError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.optim import memory_check
from magmadnn.runtime import evaluate
from tests.refusals.cases import (
    CommandCase,
    PythonCase,
    check_in_python,
    check_on_the_command_line,
)

L = md.layers
IMAGES = np.random.default_rng(1).random((12, 8, 8, 3), np.float32)
CLASSES = np.arange(12) % 2


def convolutional(channels: int = 3, kernel: int = 3, **options: object) -> md.Model:
    layers = [
        L.Input((8, 8, channels)), L.Conv2D(4, kernel, **options), L.Flatten(), L.Dense(2),
    ]  # fmt: skip
    return md.Model(layers, loss="cross_entropy", optimizer="sgd")


def fit(model: md.Model, images: np.ndarray = IMAGES, **options: object) -> None:
    model.fit(images, CLASSES[: len(images)], verbose=False, **options)


def prepared() -> md.Model:
    model = convolutional()
    model.preparation = md.data.Standardize()
    return model


def one_to_a_preparation(place: Path) -> None:
    model = prepared()
    fit(model)
    model.predict(IMAGES[0])


def write(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), size: int = 8) -> Path:
    for name in classes:
        for k in range(3):
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (size, size), (20 * k, 0, 0)).save(folder / name / f"{k}.jpg")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "good")
    write(tmp_path / "one", ("cat",))
    write(tmp_path / "cut")
    file = tmp_path / "cut" / "dog" / "1.jpg"
    file.write_bytes(file.read_bytes()[:-40])
    write(tmp_path / "sizes")
    Image.new("RGB", (9, 7)).save(tmp_path / "sizes" / "dog" / "9.jpg")
    write(tmp_path / "kind")
    Image.new("RGB", (8, 8)).save(tmp_path / "kind" / "cat" / "1.jpg", format="PNG")
    write(tmp_path / "text")
    (tmp_path / "text" / "cat" / "2.jpg").write_text("a cat sits on a mat")
    state = {"conv1.weight": np.zeros((64, 3, 3, 3), np.float32)}
    save_file(state, tmp_path / "other.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_memory(place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_check, "ALWAYS_THERE", 0)
        patch.setattr(evaluate, "available_bytes", lambda: 20_000)
        fit(convolutional(), batch_size=12)


PYTHON: dict[str, PythonCase] = {
    "convolution: channels": (
        lambda p: fit(convolutional(4)),
        ShapeError,
        (
            "fit: input 'input' expects samples of shape (8, 8, 4), got (8, 8, 3) (x has shape (12, "
            "8, 8, 3)); reshape x, or change Input"
        ),
    ),
    "images: channels first": (
        lambda p: fit(convolutional(), np.moveaxis(IMAGES, -1, 1)),
        ShapeError,
        (
            "fit: input 'input' expects samples of shape (8, 8, 3), got (3, 8, 8) (x has shape (12, 3, "
            "8, 8)); channels come last: give np.moveaxis(x, 1, -1), not a reshaped x, or change Input"
        ),
    ),
    "images: channels first to a preparation": (
        lambda p: fit(prepared(), np.moveaxis(IMAGES, -1, 1)),
        ShapeError,
        (
            "fit: x becomes (3, 8, 8) inputs, but input 'input' takes (8, 8, 3): channels come last: give "
            "np.moveaxis(x, 1, -1), not a reshaped x, or write Input((3, 8, 8))"
        ),
    ),
    "images: of colours for grey ones": (
        lambda p: convolutional(1).predict(IMAGES),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (8, 8, 1), got (8, 8, 3) (x has shape (12, 8, "
            "8, 3)); colours become grey by x.mean(axis=-1, keepdims=True), or change Input"
        ),
    ),
    "images: grey for those of colours": (
        lambda p: convolutional().predict(IMAGES[..., :1]),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (8, 8, 3), got (8, 8, 1) (x has shape (12, 8, "
            "8, 1)); grey becomes three colours by np.repeat(x, 3, axis=-1), or change Input"
        ),
    ),
    "images: without an axis of channels": (
        lambda p: convolutional(1).predict(IMAGES[..., 0]),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (8, 8, 1), got (8, 8) (x has shape (12, 8, "
            "8)); an axis of channels is x[..., None], or change Input"
        ),
    ),
    "images: one without an axis of channels": (
        lambda p: convolutional(1).predict(IMAGES[0, ..., 0]),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (8, 8, 1), got (8,) (x has shape (8, 8)); this "
            "is one sample without channels; a batch of one is x[None, ..., None], or change Input"
        ),
    ),
    "images: of another size": (
        lambda p: convolutional().predict(IMAGES[:, 1:]),
        ShapeError,
        (
            "predict: input 'input' expects samples of shape (8, 8, 3), got (7, 8, 3) (x has shape (12, 7, "
            "8, 3)); scale images to 8 x 8, or change Input"
        ),
    ),
    "images: one to a preparation": (
        one_to_a_preparation,
        ShapeError,
        (
            "predict: x has rows of the shape (8, 3), expected (8, 8, 3) as in training: this is one "
            "sample; a batch of one is x[None]"
        ),
    ),
    "images: a list": (
        lambda p: convolutional().predict(list(IMAGES)),
        GraphError,
        (
            "predict: the model has one input, got 12 arrays; samples in a list become an array by "
            "np.stack(x)"
        ),
    ),
    "images: a list of one": (
        lambda p: convolutional().predict([IMAGES[0]]),
        ShapeError,
        (
            "predict: x of shape (8, 8, 3) is one sample of input 'input'; a batch of one is np.stack(x)"
        ),
    ),
    "convolution: groups": (
        lambda p: convolutional(groups=2),
        ShapeError,
        "conv2d_1: 3 channels do not divide into 2 groups",
    ),
    "convolution: no channels": (
        lambda p: md.Model([L.Input((8, 8)), L.Conv2D(4, 3)]),
        ShapeError,
        (
            "conv2d_1: x must be [n, height, width, channels], got (batch, 8, 8) with 3 axes; images "
            "without an axis of channels get one by md.layers.Reshape((..., 1))"
        ),
    ),
    "convolution: channels of filters": (
        lambda p: md.ops.convolution(IMAGES, np.ones((3, 3, 4, 5), np.float32)),
        ShapeError,
        "convolution: x has 3 channels, but w takes 4: x (12, 8, 8, 3), w (3, 3, 4, 5)",
    ),
    "convolution: kernel": (
        lambda p: convolutional(kernel=9),
        ShapeError,
        (
            "convolution: a window reaches over 9 along axis 1, but x has 8 places there: use a "
            "smaller window, or more padding (in conv2d_1)"
        ),
    ),
    "convolution: kernel beyond the padding": (
        lambda p: convolutional(kernel=11, padding=1),
        ShapeError,
        (
            "convolution: a window reaches over 11 along axis 1, but x has 8 places there, 10 with "
            "padding: use a smaller window, or more padding (in conv2d_1)"
        ),
    ),
    "convolution: dilated kernel": (
        lambda p: convolutional(dilation=4),
        ShapeError,
        (
            "convolution: a window reaches over 9 along axis 1, but x has 8 places there: use a "
            "smaller window, or more padding (in conv2d_1)"
        ),
    ),
    "convolution: stride": (
        lambda p: convolutional(strides=0),
        ArgumentError,
        "conv2d: strides must be an integer from 1, or one for each of 2 axes of places, got 0",
    ),
    "transposed: stride": (
        lambda p: L.Conv2DTranspose(4, 3, strides=(2, 0)),
        ArgumentError,
        (
            "conv2d_transpose: strides must be an integer from 1, or one for each of 2 axes of places, "
            "got (2, 0)"
        ),
    ),
    "pooling: stride": (
        lambda p: L.MaxPooling1D(2, strides=0),
        ArgumentError,
        "max_pooling1d: strides must be an integer from 1, or one for each of 1 axis of places, got 0",
    ),
    "upsampling: size": (
        lambda p: L.UpSampling2D(1.5),
        ArgumentError,
        (
            "up_sampling2d: size must be an integer from 1, or one for each of 2 axes of places, got "
            "1.5"
        ),
    ),
    "upsampling: interpolation": (
        lambda p: L.UpSampling2D(2, "bilinaer"),
        UnknownNameError,
        (
            "up_sampling2d: interpolation 'bilinaer' is not known: did you mean 'bilinear'? known are "
            "bilinear, nearest"
        ),
    ),
    "pooling: kernel": (
        lambda p: md.Model([L.Input((8, 8, 3)), L.MaxPooling2D(9)]),
        ShapeError,
        (
            "max_pooling: a window reaches over 9 along axis 1, but x has 8 places there: use a "
            "smaller window, or more padding (in max_pooling2d_1)"
        ),
    ),
    "folder: one class": (
        lambda p: md.data.load("one"),
        DataError,
        "one: holds one class, 'cat': expected a folder of images for each of two classes or more",
    ),
    "folder: cut short": (
        lambda p: md.data.load("cut"),
        DataError,
        (
            "cut: 1 of 6 images cannot be decoded: cut/dog/1.jpg: is cut short (Truncated File "
            'Read): repair or remove them, or leave them out with bad_images="skip"'
        ),
    ),
    "folder: another kind": (
        lambda p: md.data.load("kind"),
        DataError,
        (
            "kind: 1 of 6 images cannot be decoded: kind/cat/1.jpg: holds PNG, not JPEG as its name "
            'says: repair or remove them, or leave them out with bad_images="skip"'
        ),
    ),
    "folder: no image": (
        lambda p: md.data.load("text"),
        DataError,
        (
            "text: 1 of 6 images cannot be decoded: text/cat/2.jpg: holds no image, not JPEG as its "
            'name says: repair or remove them, or leave them out with bad_images="skip"'
        ),
    ),
    "folder: sizes": (
        lambda p: md.data.load("sizes"),
        DataError,
        (
            "sizes/dog/9.jpg: has 9 x 7 pixels, but sizes/cat/0.jpg has 8 x 8: give image_size=64, "
            "say, to scale all to one size"
        ),
    ),
    "weights: of another network": (
        lambda p: md.models.resnet50((64, 64, 3), 10, weights="other.safetensors"),
        DataError,
        (
            "other.safetensors: holds weights of another network: layer conv1 differs first: "
            "conv1.weight would be [3, 3, 3, 64] here, expected [7, 7, 3, 64]"
        ),
    ),
    "memory: a batch": (
        without_memory,
        OutOfMemoryError,
        r"~fit: a step with batch_size=12 needs .* left; the largest that fits is batch_size=\d+.*",
    ),
}
TRAIN = ("train", "cifar_cnn", "--epochs", "1", "--data")
COMMAND: dict[str, CommandCase] = {
    "folder: one class": (
        (*TRAIN, "one"),
        "{p}/one: holds one class, 'cat': expected a folder of images for each of two classes or more",
    ),
    "folder: cut short": (
        (*TRAIN, "cut", "--decode", "stream"),
        (
            "{p}/cut: 1 of 6 images cannot be decoded: {p}/cut/dog/1.jpg: is cut short (Truncated "
            "File Read): repair or remove them, or leave them out with --bad-images skip"
        ),
    ),
    "folder: another kind": (
        (*TRAIN, "kind"),
        (
            "{p}/kind: 1 of 6 images cannot be decoded: {p}/kind/cat/1.jpg: holds PNG, not JPEG as "
            "its name says: repair or remove them, or leave them out with --bad-images skip"
        ),
    ),
    "folder: no image": (
        (*TRAIN, "text", "--image-size", "8"),
        (
            "{p}/text: 1 of 6 images cannot be decoded: {p}/text/cat/2.jpg: holds no image, not JPEG "
            "as its name says: repair or remove them, or leave them out with --bad-images skip"
        ),
    ),
    "folder: sizes": (
        (*TRAIN, "sizes"),
        (
            "{p}/sizes/dog/9.jpg: has 9 x 7 pixels, but {p}/sizes/cat/0.jpg has 8 x 8: give "
            "--image-size 64, say, to scale all to one size"
        ),
    ),
    "images: too small": (
        ("train", "vgg16", "--data", "good"),
        "vgg16: needs images of at least 32 x 32, got 8 x 8: scale them up, or choose a smaller network",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    check_on_the_command_line(place, capsys, COMMAND[name])
