"""Layers of Kaldi whose weights are said: matrices in files, cosine transforms, differences."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.fft

import magmadnn as md
from magmadnn.errors import DataError, ShapeError
from magmadnn.models import from_kaldi, kaldi_context
from magmadnn.models.kaldi.matrices import inverse_cosines, read_matrix

DRAW = np.random.default_rng(4)


def binary(matrix: np.ndarray, form: bytes = b"FM ") -> bytes:
    rows, columns = matrix.shape
    sizes = b"\4" + struct.pack("<i", rows) + b"\4" + struct.pack("<i", columns)
    return b"\0B" + form + sizes + matrix.astype("<f4" if form == b"FM " else "<f8").tobytes()


def text(matrix: np.ndarray) -> bytes:
    rows = "\n  ".join(" ".join(f"{one:.17g}" for one in row) for row in matrix)
    return f" [\n  {rows} ]\n".encode()


@pytest.mark.parametrize("kind", ["FM", "DM", "text"])
def test_matrices_are_read_in_both_forms(tmp_path: Path, kind: str) -> None:
    matrix = DRAW.standard_normal((3, 5))
    file = tmp_path / "a.mat"
    file.write_bytes(text(matrix) if kind == "text" else binary(matrix, f"{kind} ".encode()))
    expected = matrix.astype(np.float32) if kind == "FM" else matrix
    np.testing.assert_array_equal(read_matrix(file), expected)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected a matrix of Kaldi, `[` rows of numbers `]`"),
        (b"[ 1 2\n 3 ]", "rows of the matrix differ in length"),
        (b"[ 1 x ]", "could not convert string to float"),
        (b"[ ]", "expected a matrix of finite numbers, got shape (1, 0)"),
        (b"[ 1 nan ]", "expected a matrix of finite numbers"),
        (b"\0BCM " + bytes(20), "compressed ones are not read"),
        (b"\0BFM \4", "in binary form"),
        (binary(np.ones((2, 2)))[:-1], "is damaged: a matrix of 2 x 2 has another length"),
        (binary(np.ones((2, 2))).replace(b"\4\2", b"\5\2", 1), "is damaged"),
        (b"\0BFM \4\xff\xff\xff\xff\4\xff\xff\xff\xff" + bytes(4), "is damaged"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_matrix(tmp_path / "a.mat")
    assert words in str(caught.value)


@pytest.mark.parametrize("beside", [True, False])
def test_an_affine_layer_has_the_matrix_of_its_file_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """As the LDA of many recipes, whose path is seen from where the recipe ran."""
    matrix = DRAW.standard_normal((3 * 2 + 4, 3 * 2 + 4 + 1))
    folder = tmp_path / "exp" / "configs"
    folder.mkdir(parents=True)
    (folder / "lda.mat").write_bytes(binary(matrix, b"DM "))
    monkeypatch.chdir(tmp_path / "exp" if beside else tmp_path)
    file = folder / "network.xconfig"
    file.write_text(
        "input dim=4 name=ivector\ninput dim=2 name=input\n"
        "fixed-affine-layer name=lda input=Append(1,-1,0,ReplaceIndex(ivector, t, 0)) "
        "affine-transform-file=exp/configs/lda.mat delay=0\n"
        "output name=output input=lda objective-type=quadratic\n"
    )
    model = from_kaldi(file, 6, precision="float64")
    x, still = DRAW.standard_normal((2, 6, 2)), DRAW.standard_normal((2, 4))
    y = model.predict([still, x])
    assert y.shape == (2, 4, 10)
    for t in range(4):
        spliced = np.concatenate([x[:, t + 2], x[:, t], x[:, t + 1], still], axis=1)
        expected = spliced @ matrix[:, :-1].T + matrix[:, -1]
        np.testing.assert_allclose(y[:, t], expected, rtol=1e-12, atol=1e-12)
    assert [one.is_trainable for one in model.layers if one.name == "lda"] == [False]
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(md.load(tmp_path / "model").predict([still, x]), y)


def test_a_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(text(np.ones((2, 3))))
    file = tmp_path / "network.xconfig"
    file.write_text(
        "input dim=4 name=input\nfixed-affine-layer name=lda affine-transform-file=a.mat\n"
        "output-layer name=output dim=3\n"
    )
    with pytest.raises(ShapeError, match=r"line 2: .* a\.mat is 2 x 3, expected 4 x 5"):
        from_kaldi(file)


def test_the_cosine_transform_is_the_inverse_of_scipys() -> None:
    energies = DRAW.standard_normal((7, 13))
    cepstra = scipy.fft.dct(energies, type=2, norm="ortho")
    np.testing.assert_allclose(cepstra @ inverse_cosines(13, 13, 0).T, energies, atol=1e-12)
    lifted = cepstra * (1 + 22 / 2 * np.sin(np.pi * np.arange(13) / 22))
    np.testing.assert_allclose(lifted @ inverse_cosines(13, 13, 22.0).T, energies, atol=1e-12)
    fewer = scipy.fft.idct(np.pad(cepstra[:, :5], ((0, 0), (0, 8))), type=2, norm="ortho")
    np.testing.assert_allclose(cepstra[:, :5] @ inverse_cosines(5, 13, 0).T, fewer, atol=1e-12)


def test_cepstra_become_energies_with_their_differences(tmp_path: Path) -> None:
    file = tmp_path / "network.xconfig"
    file.write_text(
        "input dim=5 name=input\n"
        "idct-layer name=idct dim=5 cepstral-lifter=22 affine-transform-file=configs/idct.mat\n"
        "delta-layer name=delta input=idct\n"
        "output name=output input=delta objective-type=quadratic\n"
    )
    assert kaldi_context(file) == (2, 2)
    model = from_kaldi(file, 9, precision="float64")
    x = DRAW.standard_normal((3, 9, 5))
    energies = x @ inverse_cosines(5, 5, 22.0).T
    middle = energies[:, 2:-2]
    first = energies[:, 3:-1] - energies[:, 1:-3]
    second = energies[:, :-4] - 2 * middle + energies[:, 4:]
    expected = np.concatenate([middle, first, second], -1) / np.sqrt(1 + 1e-3)
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-12, atol=1e-12)
