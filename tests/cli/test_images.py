"""The command line with folders of images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from magmadnn.ops import philox

TRAIN = (*"--hidden 7 --epochs 2 --batch-size 4 --quiet --out run --data images".split(),)


def write(root: Path, parts: tuple[str, ...] = ("train", "test"), size: int = 9) -> None:
    """Light and dark images, six of each class in each part."""
    for number, (part, name) in enumerate((p, n) for p in parts for n in ("dark", "light")):
        (root / part / name).mkdir(parents=True)
        for k in range(6):
            bits = philox.random_bits(number, k, size * (size + 2) * 3)
            pixels = (bits % np.uint32(90)).astype(np.uint8).reshape(size, size + 2, 3)
            pixels += np.uint8(150 if name == "light" else 0)
            Image.fromarray(pixels).save(root / part / name / f"{k}.png")


@pytest.fixture
def trained(tmp_path, command):
    write(tmp_path / "images")
    done = command("train", *TRAIN, "--image-size", 4, "--augment", "standard")
    assert done.code == 0, done.err


def rows_of(path: str) -> list[list[str]]:
    with Path(path).open(newline="") as file:
        return list(csv.reader(file))


def test_a_folder_is_trained_on_evaluated_and_predicted(trained, command):
    kept = json.loads(Path("run/run.json").read_text())
    assert "standard" in json.dumps(kept) and '"image_size": 4' in json.dumps(kept)
    done = command("evaluate", "run", "--data", "images", "--json", "e.json")
    assert "12 test rows" in done.out
    result = json.loads(Path("run/result.json").read_text())
    again = json.loads(Path("e.json").read_text())
    assert again["test_loss"] == pytest.approx(result["test_loss"], rel=1e-5)
    assert command("evaluate", "run", "--split", "test", "--loader-workers", 2).code == 0
    done = command("predict", "run", "--data", "images/test/light", "--out", "p.csv")
    assert done.code == 0, done.err
    header, *lines = rows_of("p.csv")
    assert header == ["file", "class", "p_dark", "p_light"]
    assert [line[0] for line in lines] == [f"images/test/light/{k}.png" for k in range(6)]
    command("predict", "run", "--data", "images/test/light/3.png", "--out", "one.csv")
    assert rows_of("one.csv") == [header, lines[3]]


def test_workers_change_nothing_and_augmentation_does(trained, tmp_path, command):
    def parameters(folder: str) -> str:
        return json.loads((tmp_path / folder / "result.json").read_text())["parameters_sha256"]

    for out, options in {
        "two": ("--augment", "standard", "--loader-workers", 2),
        "none": ("--augment", "none"),
    }.items():
        command("train", *TRAIN[:-4], "--out", out, "--data", "images", "--image-size", 4, *options)
    assert parameters("two") == parameters("run")
    assert parameters("none") != parameters("run")


def test_a_run_goes_on_only_with_its_own_options(trained, command):
    done = command("train", "--resume", "run", "--augment", "none")
    assert done.code == 2
    assert "--augment none contradicts standard" in done.err
    done = command("train", "--resume", "run", "--image-size", 4, "--loader-workers", 3)
    assert done.code == 0
    assert "finished" in done.out


def test_damaged_files_are_named_or_left_out(tmp_path, command):
    write(tmp_path / "images")
    bad = tmp_path / "images" / "train" / "dark" / "x.png"
    bad.write_bytes(b"nothing")
    done = command("train", *TRAIN)
    assert done.code == 2
    assert done.err == (
        f"magmadnn: error: {tmp_path}/images/train: 1 of 13 images cannot be decoded: {bad}: holds no "
        "image, not PNG as its name says: repair or remove them, or leave them out with --bad-images skip\n"
    )
    options = [option for option in TRAIN if option != "--quiet"]
    done = command("train", *options, "--bad-images", "skip")
    assert done.code == 0
    assert f"note: left out {bad}: holds no image" in done.out
    done = command("predict", "run", "--data", bad, "--out", "p.csv")
    assert "cannot be decoded" in done.err


def test_images_of_several_sizes_need_an_image_size(tmp_path, command):
    write(tmp_path / "images")
    Image.new("RGB", (3, 3)).save(tmp_path / "images" / "train" / "light" / "x.png")
    done = command("train", *TRAIN)
    assert done.err == (
        f"magmadnn: error: {tmp_path}/images/train/light/x.png: has 3 x 3 pixels, but "
        f"{tmp_path}/images/train/dark/0.png has 11 x 9: give --image-size 64, say, to scale all to one "
        "size\n"
    )
    done = command("train", *TRAIN[:-2], "--data", "mnist", "--image-size", 3)
    assert done.err == (
        "magmadnn: error: mnist: --image-size scales JPEG and PNG files: leave it out\n"
    )


def test_a_convolutional_network_is_trained_and_summarised(tmp_path, command):
    write(tmp_path / "images", size=14)
    options = ("--epochs", 2, "--batch-size", 4, "--quiet", "--out", "run", "--lr", "0.001")
    done = command("train", "lenet5", "--data", "images", "--image-size", 12, *options)
    assert done.code == 0, done.err
    done = command("summary", "run")
    assert "conv2" in done.out and "12 x 12 x 3" in done.out
    assert command("evaluate", "run", "--split", "test", "--report", "page").code == 0
    assert "Filters of conv1" in Path("page/index.html").read_text()
    done = command("train", "--resume", "run")
    assert "finished" in done.out
    done = command("train", "lenet5", "--data", "images", "--hidden", 5, "--out", "other")
    assert done.err == (
        "magmadnn: error: --hidden: the layers of lenet5 are fixed; leave it out, or choose mlp\n"
    )
    done = command("train", "vgg16", "--data", "images", "--image-size", 12, "--out", "other")
    assert "vgg16: needs images of at least 32 x 32, got 12 x 12" in done.err
    Path("t.csv").write_text("a,b\n" + "".join(f"{k},{k % 3}\n" for k in range(40)))
    done = command("train", "lenet5", "--data", "t.csv", "--out", "other")
    assert "lenet5: expected images" in done.err
    done = command("train", "--data", "t.csv", "--augment", "standard", "--out", "other")
    assert done.err == (
        "magmadnn: error: --augment standard: changes images, and inputs here have the shape (1,); leave it "
        "out\n"
    )
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--target", "3"), "target names columns of a table, and this is none"),
        (("--ignore", "a"), "ignore names columns of a table, and this is none"),
        (("--decimal", ","), "decimal is of numbers in the text of a table, and this is none"),
    ],
)
def test_options_of_tables_are_refused_for_images(tmp_path, command, option, words):
    write(tmp_path / "images")
    done = command("train", *TRAIN, *option)
    assert done.err == f"magmadnn: error: {tmp_path}/images: {words}\n"


def test_summary_of_a_network_by_name(command):
    done = command("summary", "resnet20")
    assert done.code == 0
    assert "272,474" in done.out


def test_images_decoded_batch_by_batch_train_to_the_same_bits(tmp_path, command):
    write(tmp_path / "images", size=14)

    def trained(out: str, *options: object) -> dict[str, object]:
        fixed = ("--image-size", 12, "--epochs", 2, "--batch-size", 4, "--validation-split", 0.3)
        done = command("train", "lenet5", "--data", "images", *fixed, "--out", out, *options)
        assert done.code == 0, done.err
        assert ("decoded batch by batch" in done.out) == ("stream" in options)
        result = json.loads((tmp_path / out / "result.json").read_text())
        kept = json.loads((tmp_path / out / "run.json").read_text())["arguments"]["data_sha256"]
        names = ("parameters_sha256", "test_loss", "test_accuracy", "validation_loss")
        return {name: result[name] for name in names} | {"data": kept}

    for augment in ("none", "standard"):
        there = trained(f"there {augment}", "--augment", augment, "--decode", "memory")
        for workers in (1, 3):
            options = ("--augment", augment, "--decode", "stream", "--loader-workers", workers)
            assert trained(f"made {augment} {workers}", *options) == there
    done = command("train", "--resume", "there none", "--decode", "stream")
    assert "finished" in done.out
    for way in ("memory", "stream"):
        options = ("--decode", way, "--json", f"{way}.json")
        assert command("evaluate", "there none", "--split", "validation", *options).code == 0
        command("predict", "there none", "--data", "images", "--decode", way, "--out", f"{way}.csv")
    assert Path("memory.json").read_bytes() == Path("stream.json").read_bytes()
    assert Path("memory.csv").read_bytes() == Path("stream.csv").read_bytes()
    done = command(
        "evaluate", "there none", "--data", "images", "--decode", "stream", "--report", "page"
    )
    assert done.code == 0
    assert "Filters of conv1" in Path("page/index.html").read_text()
