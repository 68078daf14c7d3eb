"""The page that `evaluate --report` writes."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import magmadnn as md
from magmadnn.cli.report_page.contents import (
    confused_pairs,
    confusions,
    feature_maps,
    worst_mistakes,
)
from magmadnn.cli.report_page.png_files import as_filter, as_map, as_pixels, png
from magmadnn.ops import philox
from tests.cli.test_images import write

RUN = (*"--hidden 7 --epochs 3 --batch-size 4 --quiet --out run --image-size 6".split(),)


class Page(HTMLParser):
    """Text, pictures, and whether every tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open, self.words, self.sources, self.tags = [], [], [], []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def page(tmp_path, command) -> Page:
    write(tmp_path / "images")
    # Labels that cannot be learnt, so that there are mistakes; and a name that is no name.
    (tmp_path / "images" / "train" / "dark").rename(tmp_path / "images" / "train" / "<b>dark&")
    (tmp_path / "images" / "test" / "dark").rename(tmp_path / "images" / "test" / "<b>dark&")
    for k in range(6):
        old, new = (tmp_path / "images" / "test" / c / f"{k}.png" for c in ("<b>dark&", "light"))
        if k % 2:
            held = old.read_bytes()
            old.write_bytes(new.read_bytes())
            new.write_bytes(held)
    assert command("train", "--data", "images", *RUN).code == 0
    done = command("evaluate", "run", "--data", "images", "--report", "page")
    assert done.code == 0, done.err
    assert "report in page/index.html" in done.out
    return Page(tmp_path / "page" / "index.html")


def test_the_page_is_whole_and_fetches_nothing(page):
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not re.search(r"https?:|url\(|@import", page.text)
    assert "default-src 'none'" in page.text
    assert "<b>dark" not in page.text  # a class's name is text
    assert any("<b>dark&" in words for words in page.words)


def test_pictures_are_the_images_and_filters(page):
    sizes = []
    for source in page.sources:
        image = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
        image.load()
        sizes.append((image.mode, image.size))
    assert set(sizes) == {("RGB", (6, 6))}
    filters = page.text.split("Filters of")[1]
    assert filters.count("<img") == 7  # the units of the first layer
    mistakes = page.text.split("Worst mistakes")[1].split("Filters of")[0]
    assert 1 <= mistakes.count("<img") <= 12
    assert ".png" in mistakes


def test_figures_are_those_of_evaluate(page, command):
    done = command("evaluate", "run", "--split", "test", "--report", "again")
    accuracy = re.search(r"test_accuracy ([0-9.]+%)", done.out)[1]
    assert accuracy in page.words
    assert "row " in Path("again/index.html").read_text()  # the rows of a run have no files


def test_confusions_and_mistakes():
    true = np.array([0, 0, 1, 2, 2, 2])
    probabilities = np.array(
        [
            [0.9, 0.1, 0],
            [0.2, 0.7, 0.1],
            [0.1, 0.8, 0.1],
            [0.6, 0.3, 0.1],
            [0.5, 0.1, 0.4],
            [0, 0, 1],
        ]
    )
    matrix = confusions(true, probabilities.argmax(axis=1), 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 1]]
    assert confused_pairs(matrix) == [(2, 0, 2), (0, 1, 1)]
    found = worst_mistakes(true, probabilities)
    assert [(m.row, m.true, m.predicted) for m in found] == [(3, 2, 0), (1, 0, 1), (4, 2, 0)]
    assert (found[0].of_true, found[0].probability) == (0.1, 0.6)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_files_are_read_by_others(channels):
    pixels = (philox.random_bits(1, 2, 5 * 7 * channels) & np.uint32(255)).astype(np.uint8)
    pixels = pixels.reshape(5, 7, channels)
    with Image.open(io.BytesIO(png(pixels))) as image:
        np.testing.assert_array_equal(np.asarray(image).reshape(5, 7, channels), pixels)


def test_values_become_bytes():
    assert as_pixels(np.array([[[0.0], [0.5], [1.0]]])).ravel().tolist() == [0, 128, 255]
    assert as_pixels(np.array([[[-1.0], [0.0], [3.0]]])).ravel().tolist() == [0, 64, 255]
    assert as_filter(np.array([[[-2.0], [0.0], [1.0]]])).ravel().tolist() == [0, 128, 191]


def test_mistakes_of_the_user(tmp_path, command):
    write(tmp_path / "images")
    command("train", "--data", "images", *RUN)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "a.txt").write_text("")
    done = command("evaluate", "run", "--split", "test", "--report", "used")
    assert done.err == (
        "magmadnn: error: --report used: expected a new or empty folder, got one that holds 'a.txt'; give "
        "another one\n"
    )
    done = command("evaluate", "run", "--split", "test", "--report", "used/a.txt")
    assert done.err == (
        "magmadnn: error: --report used/a.txt: expected a new or empty folder, got a file\n"
    )
    Path("t.csv").write_text("a,b\n" + "".join(f"{k},{k * 0.37}\n" for k in range(40)))
    command("train", "--data", "t.csv", "--epochs", 1, "--hidden", 2, "--quiet", "--out", "table")
    done = command("evaluate", "table", "--data", "t.csv", "--report", "new")
    assert "--report: shows classes" in done.err
    assert not Path("new").exists()


def test_feature_maps_are_what_layers_give():
    """Of the last layer of each size; the channels of a picture each in its own range."""
    model = md.models.lenet5((28, 28, 1), 10)
    x = philox.random_bits(3, 1, 784).astype(np.float32).reshape(1, 28, 28, 1) / np.float32(2**32)
    found = feature_maps(model, x)
    assert [(one.maps[0].shape, one.channels) for one in found] == [
        ((28, 28), 6), ((14, 14), 6), ((10, 10), 16), ((5, 5), 16)
    ]  # fmt: skip
    pooled = model.layers[[layer.label for layer in model.layers].index(found[1].layer)]
    before = md.Tensor.wrap(np.stack(found[0].maps, axis=-1)[None])
    again = np.asarray(pooled(md.variable("maps", before)).eval())[0]
    np.testing.assert_allclose(np.stack(found[1].maps, axis=-1), again, rtol=1e-6, atol=1e-6)
    pixels = as_map(found[2].maps[3])
    assert pixels.shape == (10, 10, 1) and (pixels.min(), pixels.max()) == (0, 255)
    assert (as_map(np.full((2, 3), 0.7)) == 0).all()
    assert feature_maps(md.models.mlp((28, 28, 1), 10), x) == []


def test_a_report_of_a_convolutional_network_shows_them(tmp_path, command):
    write(tmp_path / "images")
    run = (
        "train cifar_cnn --data images --epochs 1 --batch-size 4 --quiet --out run --image-size 12"
    )
    done = command(*run.split())
    assert done.code == 0, done.err
    done = command("evaluate", "run", "--data", "images", "--report", "page")
    assert done.code == 0, done.err
    page = Page(tmp_path / "page" / "index.html")
    assert page.open == []
    maps = page.text.split("Feature maps</h2>")[1]
    assert maps.count("<h3>") >= 2
    assert maps.count("<img") >= 1 + 2 * 16
    assert "the first 16 of 32 channels" in maps


def mistaken(page: Page) -> list[tuple[str, bytes]]:
    """The name below each of the worst mistakes and the pixels above it."""
    sheet = page.text.split("Worst mistakes</h2>")[1].split("<h2>")[0]
    found = re.findall(r'base64,([^"]+)"><figcaption>([^<]+)<br>', sheet)
    return [
        (name, np.asarray(Image.open(io.BytesIO(base64.b64decode(code)))).tobytes())
        for code, name in found
    ]


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "val"), ("",)])
def test_mistakes_among_rows_of_a_run_are_named_by_their_files(tmp_path, command, parts):
    """Also where the test rows, or those to validate, were chosen by the seed."""
    root = tmp_path / "images"
    write(root, parts, size=6)
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        image = Image.open(path).crop((1, 0, 7, 6))
        path.unlink()
        name = (
            "dark" if number % 2 else "light"
        )  # what cannot be learnt, so that there are mistakes
        image.save(path.parents[1] / name / f"image{number}.png")
    done = command("train", "--data", "images", *RUN[:-2], "--validation-split", 0.4)
    assert done.code == 0, done.err
    of_name = {p.name: np.asarray(Image.open(p)) for p in root.rglob("*.png")}
    seen: set[str] = set()
    for split in ("test", "validation", "train"):
        done = command("evaluate", "run", "--split", split, "--report", split)
        assert done.code == 0, done.err
        for name, pixels in mistaken(Page(tmp_path / split / "index.html")):
            assert of_name[name].tobytes() == pixels
            assert name not in seen
            seen.add(name)
    assert seen
