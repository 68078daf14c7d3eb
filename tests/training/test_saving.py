"""Saving and loading models: architectures of every form, custom parts, damage."""

import json

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import CheckpointError, FileError, GraphError
from magmadnn.training.model.loading import model_from
from magmadnn.training.model.plain.codec import Custom, decode
from magmadnn.training.model.saving import model_record

X = np.random.default_rng(7).normal(size=(23, 7)).astype(np.float32)


def chained():
    return md.Model(
        [
            md.layers.Input((7,)),
            md.layers.Dense(5, activation=md.ops.gelu, kernel_init=md.init.normal(0.0, 0.2)),
            md.layers.BatchNorm(),
            md.layers.Dropout(0.1),
            md.layers.Dense(3, kernel_regularizer=md.layers.L2(1e-4), name="logits"),
        ],
        loss=md.losses.CrossEntropy(label_smoothing=0.1),
        optimizer=md.optim.SGD(md.optim.step_decay(0.1, every=10, factor=0.5), momentum=0.9),
        metrics=["accuracy"],
    )


def branched():
    x = md.layers.Input((7,))
    shared = md.layers.Dense(7, activation="tanh")
    y = shared(x) + 0.5 * shared(shared(x))
    return md.Model(
        inputs=x, outputs=md.ops.concat([y, md.ops.mean(x, axis=1, keepdims=True)], axis=1)
    )


def free_variable():
    x = md.layers.Input((7,))
    scale = md.variable("scale", np.linspace(1, 2, 7, dtype=np.float32))
    return md.Model(inputs=x, outputs=x * scale + x.shape[1])


GIVEN = {
    "class": {"loss": md.losses.Huber, "metrics": [md.metrics.RootMeanSquaredError]},
    "function": {"loss": md.losses.mse, "metrics": [md.losses.mae, md.losses.huber]},
    "in a dict": {"loss": {"y": md.losses.huber}, "metrics": {"y": [md.metrics.R2, md.losses.Huber]}},
    "in a list": {"loss": [md.losses.MeanAbsoluteError], "metrics": [[md.losses.mse]]},
}  # fmt: skip


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_losses_and_metrics_given_as_classes_and_functions_load(tmp_path, given):
    """They were saved as functions of the user's, which `load` asked for."""
    x = md.layers.Input((7,))
    model = md.Model(inputs=x, outputs=md.layers.Dense(1, name="y")(x), **given)
    model.save(tmp_path / "m")
    again = md.load(tmp_path / "m")
    assert again.loss == model.loss and again.metrics == model.metrics
    expected = model.evaluate(X, X[:, 0])
    assert len(expected) == 1 + len(given["metrics"] if given is not GIVEN["in a dict"] else "ab")
    assert again.evaluate(X, X[:, 0]) == expected


def test_a_function_that_this_version_lacks_is_named(tmp_path):
    record = model_record(md.Model([md.layers.Input((7,))], loss=md.losses.mse))
    assert record["loss"] == {"magmadnn": "losses.mean_squared_error"}
    record["loss"] = {"magmadnn": "losses.os.system"}
    with pytest.raises(CheckpointError, match=r"needs magmadnn's losses\.os\.system, which"):
        model_from(record)


@pytest.mark.parametrize("make", [chained, branched, free_variable])
def test_a_loaded_model_computes_the_same_bits(tmp_path, make):
    model = make()
    if model.loss is not None:
        model.fit(X, np.arange(23) % 3, epochs=2, verbose=False)
    model.save(tmp_path / "m")
    again = md.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert [str(p.node.name) for p in again.variables()] == [
        str(p.node.name) for p in model.variables()
    ]
    assert len(again.parameters()) == len(model.parameters())
    if model.loss is not None:
        assert again.optimizer == model.optimizer and again.loss == model.loss
        assert again.evaluate(X, np.arange(23) % 3) == model.evaluate(X, np.arange(23) % 3)


class Scale(md.layers.Layer):
    factor: float = 2.0

    def build(self, x):
        self.gain = self.parameter("gain", x.shape[-1:], md.init.ones(), x.dtype)

    def forward(self, x):
        return self.factor * self.gain * x


def own_activation(x):
    return x * md.ops.sigmoid(2.0 * x)


def test_own_layers_and_functions_are_handed_over(tmp_path):
    model = md.Model(
        [md.layers.Input((7,)), Scale(3.0), md.layers.Dense(2, activation=own_activation)]
    )
    model.save(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"the model needs Scale; .*custom=\[Scale\]"):
        md.load(tmp_path / "m", custom=[own_activation])
    with pytest.raises(CheckpointError, match="the model needs the function own_activation"):
        md.load(tmp_path / "m", custom=[Scale])
    again = md.load(tmp_path / "m", custom=[Scale, own_activation])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.layers[0].factor == 3.0


def test_frozen_layers_and_the_seed_are_kept(tmp_path):
    model = chained()
    model.freeze("logits")
    model.save(tmp_path / "m")
    again = md.load(tmp_path / "m")
    assert len(again.parameters()) == len(model.parameters())
    assert again.seed == model.seed


def test_the_precision_is_kept(tmp_path):
    layers = [md.layers.Input((3,)), md.layers.Dense(2)]
    md.Model(layers, loss="mse", precision="mixed_bf16").save(tmp_path / "m")
    assert md.load(tmp_path / "m").precision == "mixed_bf16"


def test_float64_is_kept_with_its_cast(tmp_path):
    model = md.Model([md.layers.Input((3,)), md.layers.Dense(2)], precision="float64")
    model.save(tmp_path / "m")
    x = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    found = md.load(tmp_path / "m").predict(x)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, model.predict(x))


def test_a_graph_of_float32_is_not_float64():
    x = md.layers.Input((3,))
    with pytest.raises(md.errors.DTypeError, match="give Inputs of float64"):
        md.Model(inputs=[x], outputs=[md.layers.Dense(2)(x)], precision="float64")


def test_saving_again_replaces_and_a_foreign_folder_is_refused(tmp_path):
    model = chained()
    model.save(tmp_path / "m")
    model.parameters()[0].assign(np.ones((7, 5)))
    model.save(tmp_path / "m")
    assert (md.load(tmp_path / "m").parameters()[0].value.read() == 1).all()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(FileError):
        model.save(foreign)
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_a_lambda_cannot_be_written_down(tmp_path):
    model = md.Model([md.layers.Input((7,)), md.layers.Dense(2, activation=lambda x: x)])
    with pytest.raises(GraphError, match="use a named function"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_every_flipped_bit_is_noticed(tmp_path):
    chained().save(tmp_path / "m")
    rng = np.random.default_rng(8)
    for path in sorted((tmp_path / "m").iterdir()):
        whole = path.read_bytes()
        for _ in range(10):
            damaged = bytearray(whole)
            damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                md.load(tmp_path / "m")
        path.write_bytes(whole)
    md.load(tmp_path / "m")


def test_a_description_cannot_name_other_classes(tmp_path):
    from magmadnn.storage.checkpoint import load_state, save_state

    chained().save(tmp_path / "m")
    state = load_state(tmp_path / "m")
    text = json.dumps(state.record).replace("layers.Dropout", "os.system")
    state.record.clear()
    state.record.update(json.loads(text))
    save_state(tmp_path / "evil", state)
    with pytest.raises(CheckpointError, match=r"the model needs os\.system"):
        md.load(tmp_path / "evil")


def test_every_second_step_of_a_sequence_of_any_length_is_saved(tmp_path):
    x = md.layers.Input(("time", 3))
    hidden = md.layers.Dense(4, activation="tanh")(x)
    model = md.Model(
        inputs=x, outputs=md.layers.Dense(2)(md.ops.sum(hidden[:, 1::2], axis=1)), loss="mse",
        optimizer="adam", seed=1,
    )  # fmt: skip
    model.save(tmp_path / "m")
    loaded = md.load(tmp_path / "m")
    w, b, v, c = (np.asarray(value) for value in model.values().values())
    for time in (6, 7, 1):
        given = np.random.default_rng(time).normal(size=(5, time, 3)).astype(np.float32)
        wanted = np.tanh(given @ w + b)[:, 1::2].sum(axis=1) @ v + c
        np.testing.assert_allclose(model.predict(given), wanted, rtol=0, atol=2.0**-18)
        np.testing.assert_array_equal(loaded.predict(given), model.predict(given))
    model.fit(given, np.zeros((5, 2), np.float32), epochs=2, verbose=0)
    with pytest.raises(GraphError, match="give the Input a fixed shape"):
        model.export(tmp_path / "net.o")


@pytest.mark.parametrize(
    "size",
    [
        [],
        [[[], 4]],
        [[["batch"], 1], [["batch"], 0]],
        [[[{"quotient": [{"dim": [[["batch"], 1]]}, 0]}], 1]],
    ],
)
def test_sizes_without_a_symbol_are_refused(size):
    good = [[["batch"], 2], [[], 1]]
    assert str(decode({"dim": good}, Custom())) == "2*batch + 1"
    with pytest.raises(CheckpointError, match="the description is damaged: a "):
        decode({"dim": size}, Custom())
