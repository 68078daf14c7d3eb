"""Kaldi's descriptions of networks: values against those of single frames, parameters, frames, losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.models import from_kaldi, kaldi_context

MIXED = """
# names, comments, and values with spaces
input dim=3 name=ivector
input dim=4 name=input

relu-batchnorm-dropout-layer name=tdnn1 dropout-proportion=0.0 dropout-per-dim-continuous=true \
  dim=6 input=Append(-2, 0, 1, ReplaceIndex(ivector, t, 0))
tdnnf-layer name=tdnnf2 dim=6 bottleneck-dim=2 time-stride=2 bypass-scale=0.5
relu-renorm-layer name=tdnn3 dim=5 input=Append(-3,3) target-rms=0.5   # even distances
linear-component name=low dim=3 orthonormal-constraint=-1.0 input=Append(tdnn3@1, [-2], Offset(input, -1))
no-op-component name=sum input=Sum(low, Scale(-2.0, Offset(low, 1)))
prefinal-layer name=last big-dim=6 small-dim=3
output-layer name=output dim=4 max-change=1.5 ng-affine-options="update-period=2"
""".replace("\\\n", "")


def written(folder: Path, text: str) -> Path:
    file = folder / "network.xconfig"
    file.write_text(text)
    return file


def parameters(model: md.Model) -> int:
    return sum(p.value.size for p in model.named().values() if p.trained)


def at(x: np.ndarray, t: int) -> np.ndarray:
    assert 0 <= t < len(x)
    return x[t]


def by_frames(p: dict[str, np.ndarray], x: np.ndarray, still: np.ndarray, t: int) -> np.ndarray:
    """The output of MIXED for frame t, from the frames that it needs, in the words of its lines."""

    def affine(name: str, *parts: np.ndarray) -> np.ndarray:
        kernel = p[f"{name}/kernel"]
        spliced = np.concatenate(parts)
        return spliced @ kernel.reshape(len(spliced), -1) + p.get(f"{name}/bias", 0)

    def normal(name: str, y: np.ndarray) -> np.ndarray:
        spread = np.sqrt(p[f"{name}/running_variance"] + 1e-3)
        return (y - p[f"{name}/running_mean"]) / spread

    def tdnn1(t: int) -> np.ndarray:
        y = affine("tdnn1.affine", at(x, t - 2), at(x, t), at(x, t + 1), still)
        return normal("tdnn1.batchnorm", np.maximum(y, 0))

    def linear(t: int) -> np.ndarray:
        return affine("tdnnf2.linear", tdnn1(t - 2), tdnn1(t))

    def tdnnf2(t: int) -> np.ndarray:
        y = np.maximum(affine("tdnnf2.affine", linear(t), linear(t + 2)), 0)
        return 0.5 * tdnn1(t) + normal("tdnnf2.batchnorm", y)

    def tdnn3(t: int) -> np.ndarray:
        y = np.maximum(affine("tdnn3.affine", tdnnf2(t - 3), tdnnf2(t + 3)), 0)
        size = np.sqrt((y**2).mean())
        return 0.5 * y / size if size else y

    def low(t: int) -> np.ndarray:
        return affine("low", tdnn3(t + 1), tdnnf2(t), at(x, t - 1))

    y = affine("last.affine", low(t) - 2 * low(t + 1))
    y = affine("last.linear", normal("last.batchnorm1", np.maximum(y, 0)))
    return affine("output.affine", normal("last.batchnorm2", y))


def test_values_are_those_of_a_calculation_frame_by_frame(tmp_path: Path) -> None:
    file, rng = written(tmp_path, MIXED), np.random.default_rng(3)
    before, after = kaldi_context(file)
    assert (before, after) == (2 + 2 + 3 - 1, 1 + 1 + 3 + 2 + 1)
    frames = 20
    model = from_kaldi(file, frames, precision="float64")
    for name, p in model.named().items():
        if p.value.ndim:  # else a counter
            shape = p.value.shape
            p.assign(rng.random(shape) + 0.5 if "variance" in name else rng.normal(size=shape))
    x, still = rng.normal(size=(2, frames, 4)), rng.normal(size=(2, 3))
    y = model.predict([still, x])
    values = {name: np.asarray(p.value) for name, p in model.named().items()}
    assert y.shape == (2, frames - before - after, 4)
    for n in range(2):
        for t in range(y.shape[1]):
            expected = by_frames(values, x[n], still[n], before + t)
            np.testing.assert_allclose(y[n, t], expected, rtol=1e-11, atol=1e-11)


def test_the_time_delay_network_of_the_recipes_has_its_parameters_and_context(
    tmp_path: Path,
) -> None:
    """Layers as in Peddinti, Povey, Khudanpur, 2015: frames at uneven and even distances."""
    dim, features, classes = 64, 40, 30
    splices = ["-2,-1,0,1,2", "-1,2", "-3,3", "-3,3", "-7,2", "0"]
    lines = [f"input dim={features} name=input"]
    for k, splice in enumerate(splices, 1):
        lines.append(f"relu-renorm-layer name=tdnn{k} dim={dim} input=Append({splice})")
    lines.append(f"output-layer name=output input=tdnn6 dim={classes} max-change=1.5")
    file = written(tmp_path, "\n".join(lines))
    assert kaldi_context(file) == (2 + 1 + 3 + 3 + 7, 2 + 2 + 3 + 3 + 2)
    model = from_kaldi(file)
    assert model.inputs[0].shape[1:] == (29, features) and model.outputs[0].shape[1:] == (classes,)
    sizes = [5 * features, 2 * dim, 2 * dim, 2 * dim, 2 * dim, dim]
    assert parameters(model) == sum(n * dim + dim for n in sizes) + dim * classes + classes


@pytest.mark.parametrize("context", ["default", "left-only", "shift-left", "none"])
def test_parameters_and_frames_of_factored_layers(tmp_path: Path, context: str) -> None:
    dim, few = 24, 5
    file = written(
        tmp_path,
        f"input dim=8 name=input\n"
        f"relu-batchnorm-layer name=tdnn1 dim={dim}\n"
        f"tdnnf-layer name=tdnnf2 dim={dim} bottleneck-dim={few} time-stride=3 context={context}\n"
        f"tdnnf-layer name=tdnnf3 dim={dim} bottleneck-dim={few} time-stride=0 bypass-scale=0\n"
        f"output-layer name=output dim=7\n",
    )
    first, second = {"default": (2, 2), "left-only": (2, 1), "shift-left": (2, 2), "none": (1, 1)}[
        context
    ]
    frames = {"default": (3, 3), "left-only": (3, 0), "shift-left": (6, 0), "none": (0, 0)}[context]
    assert kaldi_context(file) == frames
    expected = 8 * dim + dim + first * dim * few + second * few * dim + dim
    expected += dim * few + few * dim + dim + dim * 7 + 7
    assert parameters(from_kaldi(file)) == expected


def test_outputs_are_for_the_same_frames(tmp_path: Path) -> None:
    """Frame numbers go through the network, so that each output says for which frame it is."""
    file = written(
        tmp_path,
        "input dim=1 name=input\n"
        "output name=plain input=input objective-type=quadratic\n"
        "output name=wide input=Sum(Scale(0.5, Offset(input, -4)), Scale(0.5, input@2)) "
        "objective-type=quadratic\n"
        "output name=late input=input output-delay=3 objective-type=quadratic\n",
    )
    assert kaldi_context(file) == (4, 3) and kaldi_context(file, ["late"]) == (-3, 3)
    x = np.arange(12, dtype=np.float32).reshape(1, 12, 1)
    plain, wide, late = from_kaldi(file, 12).predict(x)
    np.testing.assert_array_equal(plain[0, :, 0], np.arange(4, 9))
    np.testing.assert_array_equal(wide[0, :, 0], np.arange(4, 9) - 1)
    np.testing.assert_array_equal(late[0, :, 0], np.arange(4, 9) + 3)
    only = from_kaldi(file, outputs=["late"])
    assert only.inputs[0].shape[1:] == (1, 1)


CHAIN = """
input dim=4 name=input
relu-batchnorm-layer name=tdnn1 dim=6 input=Append(-1,0,1)
relu-batchnorm-layer name=xent dim=6
output-layer name=output input=tdnn1 include-log-softmax=false dim=3
output-layer name=output-xent input=xent dim=3 learning-rate-factor=5.0
"""


def test_outputs_of_chain_models_have_no_loss_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    assert from_kaldi(file).loss is None
    kept = from_kaldi(file, outputs=["output-xent"])
    assert len(kept.outputs) == 1 and "output.affine" not in [one.name for one in kept.layers]
    both = from_kaldi(file, loss="cross_entropy", loss_weights=[1.0, 0.5], optimizer="adam")
    x, y = np.zeros((4, 3, 4), np.float32), np.zeros(4, np.int64)
    both.fit(x, [y, y], epochs=1, batch_size=2, verbose=False)


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("output-layer name=output dim=3", "cross_entropy"),
        (
            "output-layer name=output dim=3 include-log-softmax=false objective-type=quadratic",
            "mean_squared_error",
        ),
    ],
)
def test_the_loss_is_the_one_of_the_output(tmp_path: Path, line: str, loss: str) -> None:
    file = written(tmp_path, f"input dim=4 name=input\n{line}")
    assert from_kaldi(file).loss == loss


def test_it_learns_what_only_the_frames_around_tell_and_is_saved(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "input dim=6 name=input\n"
        "relu-batchnorm-layer name=tdnn1 dim=32 input=Append(-1,0,1)\n"
        "relu-renorm-layer name=tdnn2 dim=32 input=Append(-3,3)\n"
        "output-layer name=output dim=4\n",
    )
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 28, 6)).astype(np.float32)
    told = x[:, :, 0] > 0
    y = 2 * told[:, 1:21] + told[:, 7:27]  # of the frames 3 before and 3 behind
    model = from_kaldi(file, 28, optimizer=md.optim.Adam(0.01), metrics=["accuracy"], seed=2)
    model.fit(x[:250], y[:250], epochs=12, batch_size=25, verbose=False)
    assert model.evaluate(x[250:], y[250:])["accuracy"] > 0.9
    model.save(tmp_path / "model")
    again = md.load(tmp_path / "model")
    np.testing.assert_array_equal(model.predict(x[250:]), again.predict(x[250:]))


def test_dropout_follows_its_setting(tmp_path: Path) -> None:
    def layers(settings: str) -> list[Any]:
        line = f"relu-dropout-layer name=a dim=5 {settings}"
        text = f"input dim=4 name=input\n{line}\noutput-layer name=o dim=2\n"
        return [one for one in from_kaldi(written(tmp_path, text)).layers if "dropout" in one.name]

    (plain,) = layers("")
    assert type(plain) is md.layers.Dropout and plain.rate == 0.5
    (shared,) = layers("dropout-per-dim=true dropout-proportion=0.2")
    assert type(shared) is md.layers.SpatialDropout1D and shared.rate == 0.2


@pytest.mark.long
def test_two_workers_train_it_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    file = written(
        tmp_path,
        "input dim=6 name=input\n"
        "relu-batchnorm-layer name=tdnn1 dim=16 input=Append(-1,0,1)\n"
        "tdnnf-layer name=tdnnf2 dim=16 bottleneck-dim=4 time-stride=2\n"
        "output-layer name=output dim=4\n",
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 14, 6)), rng.integers(0, 4, (64, 8))
    one, two = (
        from_kaldi(file, 14, optimizer=md.optim.SGD(0.1), precision="float64", seed=1)
        for _ in range(2)
    )
    one.fit(x, y, epochs=2, batch_size=16, verbose=False)
    with md.workers(2):
        sync = md.parallel.DataParallel(sync=True)  # batch normalisation sees the whole batch
        two.fit(x, y, epochs=2, batch_size=16, verbose=False, parallel=sync)
    for (name, a), b in zip(one.named().items(), two.named().values(), strict=True):
        np.testing.assert_allclose(a.value, b.value, rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_chain_recipe_with_all_its_parts(tmp_path: Path) -> None:
    """As recipes of factored networks write it: cepstra, their differences, the speaker, and two ends."""
    dim, few, small, classes = 48, 12, 20, 30
    options = "l2-regularize=0.01 dropout-proportion=0.0"
    file = written(
        tmp_path,
        f"""
        input dim=10 name=ivector
        input dim=8 name=input
        idct-layer name=idct input=input dim=8 cepstral-lifter=22 affine-transform-file=configs/idct.mat
        delta-layer name=delta input=idct
        no-op-component name=input2 input=Append(delta, Scale(0.4, ReplaceIndex(ivector, t, 0)))
        relu-batchnorm-layer name=tdnn1 {options} dropout-per-dim-continuous=true dim={dim} input=input2
        tdnnf-layer name=tdnnf2 {options} bypass-scale=0.66 dim={dim} bottleneck-dim={few} time-stride=1
        tdnnf-layer name=tdnnf3 {options} bypass-scale=0.66 dim={dim} bottleneck-dim={few} time-stride=3
        linear-component name=prefinal-l dim={small} l2-regularize=0.01 orthonormal-constraint=-1.0
        prefinal-layer name=prefinal-chain input=prefinal-l big-dim={dim} small-dim={small}
        output-layer name=output include-log-softmax=false dim={classes} l2-regularize=0.002
        prefinal-layer name=prefinal-xent input=prefinal-l big-dim={dim} small-dim={small}
        output-layer name=output-xent dim={classes} learning-rate-factor=5.0 l2-regularize=0.002
        """,
    )
    assert kaldi_context(file) == (2 + 1 + 3, 2 + 1 + 3)
    model = from_kaldi(file, 20, loss="cross_entropy", optimizer="adam")
    factored = 2 * dim * few + 2 * few * dim + dim
    end = small * dim + dim + dim * small + small * classes + classes
    expected = 8 * 8 + (3 * 8 + 10) * dim + dim + 2 * factored + dim * small + 2 * end
    assert parameters(model) == expected
    x, still = np.zeros((4, 20, 8), np.float32), np.zeros((4, 10), np.float32)
    y = np.zeros((4, 8), np.int64)
    model.fit([still, x], [y, y], epochs=1, batch_size=2, verbose=False)
    assert [one.shape for one in model.predict([still, x])] == [(4, 8, classes)] * 2
