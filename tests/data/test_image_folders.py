"""Folders of JPEG and PNG files, and CIFAR-100."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import magmadnn.data as data
from magmadnn.data.images.decoding import Made, decoded
from magmadnn.errors import (
    ArgumentError,
    DataError,
    MissingExtraError,
    ShapeError,
    UnknownNameError,
)
from tests.data.conftest import random_bytes


def save(path: Path, pixels: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def pixels_of(name: str, height: int = 5, width: int = 7) -> Any:
    return random_bytes(height * width * 3, name).reshape(height, width, 3)


def folder_of(root: Path, parts: tuple[str, ...] = ("train", "test"), size: int = 5) -> Path:
    """Three images for each of two classes in each part; all different."""
    for part in parts:
        for name in ("dog", "cat"):
            for k in range(3):
                image = pixels_of(f"{part}{name}{k}", size, size)
                save(root / part / name / f"{k}.png", image)
    return root


def test_classes_and_rows_are_in_the_order_of_names(tmp_path):
    found = data.image_folder(folder_of(tmp_path))
    assert found.classes == ("cat", "dog")
    assert found.train.x.shape == (6, 5, 5, 3)
    assert found.train.x.dtype == np.float32
    assert found.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.train.paths[4] == tmp_path / "train" / "dog" / "1.png"
    expected = pixels_of("traindog1", 5, 5) / np.float32(255)
    np.testing.assert_array_equal(found.train.x[4], expected)
    np.testing.assert_array_equal(found.test.x[2], pixels_of("testcat2", 5, 5) / np.float32(255))


@pytest.mark.parametrize("decode", ["memory", "stream"])
def test_what_was_read_is_shown_in_a_line(tmp_path, decode):
    (folder_of(tmp_path) / "train" / "cat" / "3.png").write_bytes(b"none")
    found = data.image_folder(tmp_path, decode=decode, image_size=4, bad_images="skip")
    assert repr(found) == (
        "<ImageFolder of 2 classes: train <Images: 6 of 4 x 4 x 3, 1 left out>, "
        "test <Images: 6 of 4 x 4 x 3>>"
    )
    loaded = data.load(str(tmp_path), decode=decode, image_size=4, bad_images="skip")
    assert repr(loaded) == f"<Dataset {loaded.description}>"


def test_val_is_the_test_set_where_there_is_no_other(tmp_path):
    folder_of(tmp_path, ("train", "val"))
    assert data.image_folder(tmp_path).test.paths[0].parent == tmp_path / "val" / "cat"
    folder_of(tmp_path, ("test",))
    assert data.image_folder(tmp_path).test.paths[0].parent == tmp_path / "test" / "cat"


def test_without_train_all_images_are_training_images_and_load_splits_them(tmp_path):
    folder_of(tmp_path, ("",))
    found = data.image_folder(tmp_path)
    assert found.test is None
    assert len(found.train.x) == 6
    loaded = data.load(str(tmp_path), test_split=0.5, seed=3)
    assert (len(loaded.x_train), len(loaded.x_test)) == (3, 3)
    assert loaded.preparation.classes == ("cat", "dog")
    assert "split by seed 3" in loaded.description


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_changes_nothing(tmp_path, workers):
    folder_of(tmp_path)
    one = data.image_folder(tmp_path, image_size=3, loader_workers=1)
    found = data.image_folder(tmp_path, image_size=3, loader_workers=workers)
    np.testing.assert_array_equal(found.train.x, one.train.x)
    assert found.train.paths == one.train.paths


# --- one image ---


def test_grey_palette_and_transparent_images_become_rgb(tmp_path):
    grey = random_bytes(20, "grey").reshape(4, 5)
    equal = np.repeat(grey[..., None], 3, axis=-1)
    np.testing.assert_array_equal(decoded(save(tmp_path / "grey.png", grey), Made()), equal)
    sixteen = Image.fromarray(grey.astype(np.uint16) * 256 + 77)
    np.testing.assert_array_equal(decoded(save(tmp_path / "sixteen.png", sixteen), Made()), equal)
    colours = np.array([[255, 0, 0], [0, 200, 0], [7, 8, 9]], np.uint8)
    palette = Image.fromarray((grey % 3).astype(np.uint8), "L")
    palette.putpalette(colours.tobytes())
    np.testing.assert_array_equal(
        decoded(save(tmp_path / "palette.png", palette), Made()), colours[grey % 3]
    )
    # Half of red over white: 255 * 128/255 + 0 ... = (255, 127, 127).
    half = Image.new("RGBA", (2, 3), (255, 0, 0, 128))
    np.testing.assert_array_equal(
        decoded(save(tmp_path / "half.png", half), Made()), np.full((3, 2, 3), [255, 127, 127])
    )
    hidden = Image.new("RGBA", (2, 3), (1, 2, 3, 0))
    assert (decoded(save(tmp_path / "hidden.png", hidden), Made()) == 255).all()


def test_the_orientation_of_exif_data_is_obeyed(tmp_path):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 250  # the left half is light
    exif = Image.Exif()
    exif[274] = 6  # turned by 90 degrees: what is left in the file is on top
    path = save(tmp_path / "turned.jpg", pixels, exif=exif, quality=95)
    found = decoded(path, Made())
    assert found.shape == (16, 8, 3)
    assert found[:7].min() > 240
    assert found[9:].max() < 15


def test_an_image_is_scaled_on_its_shorter_side_and_its_middle_kept(tmp_path):
    # Three squares of 6 x 6 in a row: the middle one is kept, and each 2 x 2 pixels of it averaged.
    pixels = np.zeros((6, 18, 3), np.uint8)
    pixels[:, 6:12] = np.repeat(np.repeat([[10, 90], [50, 130]], 3, 0), 3, 1)[..., None]
    pixels[:, :6], pixels[:, 12:] = 255, 255
    found = decoded(save(tmp_path / "wide.png", pixels), Made(2))
    assert found.shape == (2, 2, 3)
    # A triangle that reaches 3 pixels each way: of a row, 7/9 are of the own square, 1/9 of each neighbour;
    # of a column at the image's edge 7/8 and 1/8.
    across = np.array([[7, 1], [1, 7]]) / 9
    down = np.array([[7, 1], [1, 7]]) / 8
    expected = down @ (np.array([[10, 90], [50, 130]]) @ across.T + 255 / 9)
    np.testing.assert_allclose(found[..., 0], expected, atol=1)  # rounded after each direction


# --- what is wrong ---


def broken(root: Path, name: str, content: bytes) -> Path:
    path = folder_of(root) / "train" / "dog" / name
    path.write_bytes(content)
    return path


def jpeg_bytes(height: int = 40, width: int = 40) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_of("jpeg", height, width)).save(file, "jpeg")
    return file.getvalue()


def png_bytes() -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_of("png")).save(file, "png")
    return file.getvalue()


def huge_png() -> bytes:
    """A small file that says it holds 4,000,000,000 pixels."""
    import struct
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", 40_000, 100_000, 8, 2, 0, 0, 0)
    data = png_bytes()
    return data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:]


DAMAGED = {
    "cut.jpg": (jpeg_bytes()[:-200], "is cut short (image file is truncated"),
    "empty.jpg": (b"", "is empty"),
    "really.jpg": (png_bytes(), "holds PNG, not JPEG as its name says"),
    "really.png": (jpeg_bytes(), "holds JPEG, not PNG as its name says"),
    "gif.png": (b"GIF89a...", "holds GIF, not PNG as its name says"),
    "text.png": (b"hello", "holds no image, not PNG as its name says"),
    "huge.png": (huge_png(), "has 40000 x 100000 pixels, over 67,108,864, taken for an attack"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_decoded_is_named_with_its_reason(tmp_path, name):
    content, words = DAMAGED[name]
    path = broken(tmp_path, name, content)
    with pytest.raises(DataError) as found:
        data.image_folder(tmp_path, image_size=4)
    assert str(found.value).startswith(
        f"{tmp_path}/train: 1 of 7 images cannot be decoded: {path}: {words}"
    )
    assert str(found.value).endswith(
        'repair or remove them, or leave them out with bad_images="skip"'
    )


def test_all_damaged_files_are_counted_and_can_be_left_out(tmp_path):
    for name, (content, _) in DAMAGED.items():
        broken(tmp_path, name, content)
    with pytest.raises(DataError, match=r"7 of 13 images cannot be decoded.*and 2 more"):
        data.image_folder(tmp_path, image_size=4)
    found = data.image_folder(tmp_path, image_size=4, bad_images="skip")
    clean = data.image_folder(folder_of(tmp_path / "clean"), image_size=4)
    np.testing.assert_array_equal(found.train.x, clean.train.x)
    np.testing.assert_array_equal(found.train.y, clean.train.y)
    assert len(found.train.skipped) == 7
    loaded = data.load(str(tmp_path), image_size=4, bad_images="skip")
    assert len(loaded.notes) == 7
    assert "7 left out that cannot be decoded" in loaded.description


def other_sizes(root: Path) -> Path:
    save(folder_of(root) / "train" / "dog" / "9.png", pixels_of("x", 6, 5))
    return root


def without_images(root: Path) -> Path:
    (folder_of(root) / "train" / "empty").mkdir()
    return root


def with_text(root: Path) -> Path:
    (folder_of(root) / "train" / "cat" / "notes.txt").write_text("x")
    return root


def new_class(root: Path) -> Path:
    save(folder_of(root) / "test" / "horse" / "0.png", pixels_of("x", 5, 5))
    return root


def one_class(root: Path) -> Path:
    save(root / "train" / "cat" / "0.png", pixels_of("x", 5, 5))
    return root


def other_test_size(root: Path) -> Path:
    folder_of(root, ("train",), 5)
    return folder_of(root, ("test",), 6)


def of_another_name(name: str) -> Any:
    return lambda root: folder_of(root, ("train", name))


def beside_class_folders(root: Path) -> Path:
    save(root / "cat" / "0.png", pixels_of("x", 5, 5))
    save(root / "dog" / "0.png", pixels_of("x", 5, 5))
    return folder_of(root, ("test",))


MISTAKES = {
    of_another_name(
        "Test"
    ): "{p}: holds the classes of train in Test too, which is neither called test nor "
    "val: rename it, or, to test with a share of train, move it away",
    of_another_name(
        "validation"
    ): "{p}: holds the classes of train in validation too, which is neither "
    "called test nor val: rename it, or, to test with a share of train, move it away",
    beside_class_folders: "{p}: holds test but no train: put the class folders of training images into a "
    "folder train beside it",
    other_sizes: "{p}/train/dog/9.png: has 5 x 6 pixels, but {p}/train/cat/0.png has 5 x 5: give "
    "image_size=64, say, to scale all to one size",
    other_test_size: "{p}/test/cat/0.png: has 6 x 6 pixels, but training images have 5 x 5: give "
    "image_size=64, say, to scale all to one size",
    without_images: "{p}/train/empty: this class has no images: add some, or remove it",
    with_text: "{p}/train/cat/notes.txt: expected only JPEG and PNG files (.jpg, .jpeg, .png) in a "
    "class folder, and 1 of 4 are something else: move them away",
    new_class: "{p}/test: the class 'horse' is not among those of {p}/train: remove its folder, or "
    "train on it too",
    one_class: "{p}/train: holds one class, 'cat': expected a folder of images for each of two "
    "classes or more",
}


@pytest.mark.parametrize("make", MISTAKES)
def test_folders_that_cannot_be_trained_on(tmp_path, make):
    make(tmp_path)
    with pytest.raises(DataError) as found:
        data.image_folder(tmp_path)
    assert str(found.value) == MISTAKES[make].format(p=tmp_path)


def test_arguments_out_of_range(tmp_path):
    for options, words in (
        ({"image_size": 0}, "image_size must be a whole number from 1 to 4096, got 0"),
        ({"image_size": 3.5}, "image_size must be a whole number from 1 to 4096, got 3.5"),
        ({"loader_workers": 0}, "loader_workers must be a whole number from 1 to 1024, got 0"),
    ):
        with pytest.raises(ArgumentError) as found:
            data.image_folder(tmp_path, **options)
        assert str(found.value) == words
    with pytest.raises(UnknownNameError, match="bad_images"):
        data.image_folder(tmp_path, bad_images="ignore")
    with pytest.raises(ArgumentError, match="image_size scales JPEG and PNG files"):
        data.load("mnist", image_size=32)


def test_without_pillow_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    folder_of(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"reading images needs Pillow.*\[data\]"):
        data.image_folder(tmp_path)


def test_a_bomb_in_a_text_chunk_of_a_png_is_refused(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * (1 << 24), zip=True)
    path = folder_of(tmp_path) / "train" / "cat" / "bomb.png"
    Image.new("RGB", (5, 5)).save(path, pnginfo=info)
    with pytest.raises(DataError, match="is damaged"):
        data.image_folder(tmp_path)


def test_a_test_folder_is_read_with_the_labels_of_the_training_folder(tmp_path):
    """By themselves its classes would be numbered from 0, and so mean others."""
    for name in ("ant", "cat", "dog"):
        save(tmp_path / "a" / name / "0.png", pixels_of(name, 5, 5))
    for name in ("dog", "cat"):
        save(tmp_path / "b" / name / "0.png", pixels_of(name, 5, 5))
    trained = data.image_folder(tmp_path / "a")
    assert data.image_folder(tmp_path / "b").train.y.tolist() == [0, 1]
    found = data.image_folder(tmp_path / "b", classes=trained.classes)
    assert found.classes == ("ant", "cat", "dog")
    assert found.train.y.tolist() == [1, 2]
    np.testing.assert_array_equal(found.train.x, trained.train.x[1:])
    shutil.rmtree(tmp_path / "b" / "cat")
    assert data.image_folder(tmp_path / "b", classes=["dog", "cat"]).train.y.tolist() == [0]
    with pytest.raises(DataError) as error:
        data.image_folder(tmp_path / "a", classes=["dog", "cat"])
    assert str(error.value) == (
        f"{tmp_path / 'a'}: the class 'ant' is none of the classes that were given (dog, cat): rename its "
        "folder, or remove it"
    )
    for wrong in ("dog", ["dog"], ["dog", "dog"], ["dog", 3], 5):
        with pytest.raises(
            ArgumentError, match="classes must be a list of two different names or more"
        ):
            data.image_folder(tmp_path / "a", classes=wrong)


# --- for a trained model ---


def test_rows_for_a_trained_model_are_scaled_as_in_training(tmp_path):
    folder_of(tmp_path, size=9)
    loaded = data.load(str(tmp_path), image_size=4)
    assert loaded.preparation.image_size == 4
    again = data.Preparation.from_json(loaded.preparation.to_json())
    assert again == loaded.preparation
    kept = loaded.keeping_back(0.5, 0).preparation
    assert kept.image_size == 4
    rows = data.load_for(again, str(tmp_path))
    assert rows.is_test_set
    np.testing.assert_array_equal(rows.x, loaded.test()[0])
    assert rows.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.files[3] == str(tmp_path / "test" / "dog" / "0.png")


def test_images_without_classes_are_read_for_prediction(tmp_path):
    folder_of(tmp_path, size=9)
    made = data.load(str(tmp_path), image_size=4).preparation
    place = tmp_path / "test" / "dog"
    rows = data.load_for(made, str(place), with_target=False)
    assert rows.files == tuple(str(place / f"{k}.png") for k in range(3))
    one = data.load_for(made, str(place / "2.png"), with_target=False)
    np.testing.assert_array_equal(one.x, rows.x[2:])


def test_images_of_another_size_do_not_fit_a_model_of_unscaled_ones(tmp_path):
    made = data.load(str(folder_of(tmp_path / "five"))).preparation
    folder_of(tmp_path / "six", size=6)
    with pytest.raises(ShapeError, match=r"\(6, 6, 3\), expected \(5, 5, 3\)"):
        data.load_for(made, str(tmp_path / "six"))


def test_a_test_set_alone_and_one_class_of_it_will_do(tmp_path):
    made = data.load(str(folder_of(tmp_path / "both"))).preparation
    folder_of(tmp_path / "alone", ("test",))
    rows = data.load_for(made, str(tmp_path / "alone"))
    assert rows.is_test_set and rows.y.tolist() == [0, 0, 0, 1, 1, 1]
    folder_of(tmp_path / "val", ("val",))
    assert data.load_for(made, str(tmp_path / "val")).is_test_set
    shutil.rmtree(tmp_path / "alone" / "test" / "cat")
    assert data.load_for(made, str(tmp_path / "alone")).y.tolist() == [1, 1, 1]
    shutil.rmtree(tmp_path / "both" / "test" / "dog")
    assert data.load_for(made, str(tmp_path / "both")).y.tolist() == [0, 0, 0]


def test_a_test_set_of_another_name_is_not_passed_over_for_the_training_images(tmp_path):
    made = data.load(str(folder_of(tmp_path / "both"))).preparation
    folder_of(tmp_path / "named", ("train", "testing"))
    with pytest.raises(DataError, match="holds the classes of train in testing too"):
        data.load_for(made, str(tmp_path / "named"))
    folder_of(tmp_path / "only", ("train",))
    assert not data.load_for(made, str(tmp_path / "only")).is_test_set


def test_a_class_that_the_model_does_not_know_is_named_with_its_folder(tmp_path):
    made = data.load(str(folder_of(tmp_path / "known"))).preparation
    place = folder_of(tmp_path / "other", ("test",))
    (place / "test" / "dog").rename(place / "test" / "bird")
    with pytest.raises(DataError) as found:
        data.load_for(made, str(place))
    assert str(found.value) == (
        f"{place}: the class 'bird' is none of those that the model was trained on (cat, dog): rename its "
        "folder, or remove it"
    )
    assert len(data.load_for(made, str(place), with_target=False).x) == 6


def test_images_become_grey_for_a_model_of_one_channel(tmp_path):
    """As of MNIST, whose preparation says nothing of files."""
    x = random_bytes(40 * 25, "grey").reshape(40, 5, 5, 1) / np.float32(255)
    made = data.Preparation.fit(x, np.array(["cat", "dog"])[np.arange(40) % 2])
    folder_of(tmp_path)
    grey = random_bytes(25, "grey file").reshape(5, 5)
    save(tmp_path / "test" / "dog" / "3.png", grey)
    rows = data.load_for(made, str(tmp_path))
    assert "made grey" in rows.description
    assert rows.x.shape == (7, 5, 5, 1)
    raw = rows.x * made.std + made.mean
    np.testing.assert_allclose(raw[6, ..., 0], grey / 255, atol=1e-6)
    # ITU-R BT.601, and the rounding of Pillow's to whole levels
    luma = pixels_of("testcat0", 5, 5) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(255 * raw[0, ..., 0], luma, atol=1)
    streamed = data.load_for(made, str(tmp_path), decode="stream")
    np.testing.assert_array_equal(np.asarray(streamed.x), rows.x)
    with pytest.raises(
        ShapeError, match=r"\(6, 6, 1\), expected \(5, 5, 1\).*scale images to 5 x 5"
    ):
        data.load_for(made, str(folder_of(tmp_path / "six", size=6)))


# --- what is said of a folder that can be read ---


def test_a_folder_val_beside_test_is_said_not_to_be_read(tmp_path):
    loaded = data.load(str(folder_of(tmp_path, ("train", "test", "val"))))
    assert loaded.notes == (f"not read, as there is a folder test: {tmp_path / 'val'}",)
    assert loaded.test_files[0] == str(tmp_path / "test" / "cat" / "0.png")
    assert data.load_for(loaded.preparation, str(tmp_path)).notes == loaded.notes


def test_class_folders_one_level_deeper_are_found_and_named(tmp_path):
    folder_of(tmp_path / "flowers")
    with pytest.raises(DataError) as found:
        data.load(str(tmp_path))
    assert str(found.value) == (
        f"{tmp_path}: class folders stand in its folder flowers: give {tmp_path / 'flowers'}, or call it "
        "train (and that of a test set test)"
    )


def test_classes_without_training_rows_are_said(tmp_path):
    x = random_bytes(30 * 75, "few").reshape(30, 5, 5, 3)
    y = np.arange(30) % 3
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": np.arange(30) % 5}
    np.savez(tmp_path / "more.npz", **arrays)
    assert data.load(str(tmp_path / "more.npz")).notes == (
        "2 of the 5 classes are in no training row, and so never learnt: 3, 4",
    )
    np.savez(tmp_path / "one.npz", **{**arrays, "y_train": np.full(30, 2)})
    with pytest.raises(
        DataError, match="every training row is of the class '2', so there is nothing"
    ):
        data.load(str(tmp_path / "one.npz"))


# --- CIFAR-100 ---


def cifar100_files(folder: Path, rows: int = 5) -> dict[str, Any]:
    records = {}
    for name in ("train.bin", "test.bin"):
        batch = random_bytes(rows * 3074, name).reshape(rows, 3074)
        batch[:, 0], batch[:, 1] = np.arange(rows) * 7 % 20, np.arange(rows) * 37 % 100
        (folder / name).write_bytes(batch.tobytes())
        records[name] = batch
    return records


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    records = cifar100_files(tmp_path)
    (x, y), (_, y_test) = data.cifar100(tmp_path)
    assert x.shape == (5, 32, 32, 3)
    assert y.tolist() == [0, 37, 74, 11, 48]
    assert data.cifar100(tmp_path, labels="coarse")[1][1].tolist() == [0, 7, 14, 1, 8]
    assert y_test.tolist() == records["test.bin"][:, 1].tolist()
    byte = records["train.bin"][2, 2 + 1024 * 1 + 32 * 30 + 5]
    assert x[2, 30, 5, 1] == np.float32(byte) / np.float32(255.0)
    assert data.cifar100_classes(tmp_path) is None
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(f"group{k}" for k in range(20)))
    assert data.cifar100_classes(tmp_path, labels="coarse")[7] == "group7"
    assert "CIFAR-100" in data.load(str(tmp_path)).description


def test_cifar100_files_that_are_something_else(tmp_path):
    records = cifar100_files(tmp_path)
    (tmp_path / "train.bin").write_bytes(bytes(3073 * 2))  # of CIFAR-10
    with pytest.raises(DataError, match="no CIFAR-100 batch: expected a multiple of 3074 bytes"):
        data.cifar100(tmp_path)
    records["train.bin"][1, 1] = 100
    (tmp_path / "train.bin").write_bytes(records["train.bin"].tobytes())
    with pytest.raises(DataError, match=r"record 1 has the label 100, outside the classes 0\.\.99"):
        data.cifar100(tmp_path)
    (tmp_path / "train.bin").unlink()
    with pytest.raises(DataError, match=r"train\.bin .* is missing"):
        data.cifar100(tmp_path)
    with pytest.raises(UnknownNameError):
        data.cifar100(tmp_path, labels="finest")


# --- each batch decoded when it is asked for ---


def test_a_stream_has_the_values_order_and_classes_of_images_in_memory(tmp_path):
    for name, (content, _) in DAMAGED.items():
        broken(tmp_path, name, content)
    options: dict[str, Any] = {"image_size": 4, "bad_images": "skip"}
    there = data.image_folder(tmp_path, decode="memory", **options)
    for workers in (1, 3):
        made = data.image_folder(tmp_path, decode="stream", loader_workers=workers, **options)
        assert made.classes == there.classes
        assert made.train.skipped == there.train.skipped
        assert made.train.paths == there.train.paths
        np.testing.assert_array_equal(made.train.y, there.train.y)
        assert (made.train.x.shape, made.train.x.dtype) == (there.train.x.shape, np.float32)
        for rows in (np.array([5, 0, 0, 3]), slice(1, 6, 2), slice(4, 4), 2, np.arange(6) > 3):
            np.testing.assert_array_equal(made.train.x[rows], there.train.x[rows])
        np.testing.assert_array_equal(np.asarray(made.test.x), there.test.x)
        chosen = made.train.x.chosen(np.array([4, 2, 1]))
        np.testing.assert_array_equal(chosen.chosen(np.array([2, 0]))[:], there.train.x[[1, 4]])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(chosen)), there.train.x[[4, 2, 1]])
        assert copy.deepcopy(chosen) is chosen
    with pytest.raises(DataError, match=r"7 of 13 images cannot be decoded.*and 2 more"):
        data.image_folder(tmp_path, image_size=4, decode="stream")


def test_a_stream_is_chosen_by_the_memory_that_images_need(tmp_path, monkeypatch):
    folder_of(tmp_path)
    needed = 27 * 5 * 5 * 6
    monkeypatch.setattr("magmadnn.data.images.reading._SMALL", 0)
    for free, streamed in ((2 * needed, False), (2 * needed - 1, True)):
        monkeypatch.setattr("magmadnn.data.images.reading.available_bytes", lambda free=free: free)
        found = data.image_folder(tmp_path)
        assert [not isinstance(p.x, np.ndarray) for p in (found.train, found.test)] == [
            streamed
        ] * 2
        assert ("decoded batch by batch" in data.load(str(tmp_path)).description) == streamed
        assert isinstance(data.image_folder(tmp_path, decode="memory").train.x, np.ndarray)
    with pytest.raises(UnknownNameError, match="decode 'disk' is not known"):
        data.image_folder(tmp_path, decode="disk")


def test_a_file_that_changes_after_it_was_looked_at_is_named(tmp_path):
    found = data.image_folder(folder_of(tmp_path), decode="stream", loader_workers=2).train
    found.paths[3].write_bytes(b"nothing")
    save(found.paths[1], pixels_of("other", 6, 5))
    found.x[[0, 2, 4]]
    for row, words in (
        (3, "holds no image, not PNG as its name says"),
        (1, "5 x 6 pixels, not 5 x 5"),
    ):
        with pytest.raises(DataError) as told:
            found.x[[0, row]]
        assert str(told.value).startswith(f"{found.paths[row]}: ")
        assert words in str(told.value)
        assert "has changed since it was looked at" in str(told.value)


def test_a_preparation_of_a_stream_is_that_of_arrays(tmp_path):
    folder_of(tmp_path, size=9)
    options: dict[str, Any] = {"image_size": 6, "seed": 2}
    there, made = (data.load(str(tmp_path), decode=way, **options) for way in ("memory", "stream"))
    assert made.preparation == there.preparation
    kept = [one.keeping_back(0.3, 5) for one in (there, made)]
    assert kept[0].preparation == kept[1].preparation != there.preparation
    for ours, other in zip(
        kept[1].train() + kept[1].test(), kept[0].train() + kept[0].test(), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(ours), other)
    rows = data.load_for(made.preparation, str(tmp_path), decode="stream")
    np.testing.assert_array_equal(np.asarray(rows.x), there.test()[0])


def test_pillows_warnings_are_silent_while_any_thread_decodes():
    from magmadnn.data.images.reading import _quiet

    before = list(warnings.filters)
    first, second = _quiet(), _quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    warnings.warn("of a file", UserWarning, stacklevel=1)  # would be an error
    second.__exit__(None, None, None)
    assert list(warnings.filters) == before
