"""Model: what it is made of, fit, evaluate and predict."""

import gc
import sys
import weakref

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    GraphError,
    NumericError,
    ShapeError,
    UnknownNameError,
)

RNG = np.random.default_rng(5)
X = RNG.normal(size=(103, 7)).astype(np.float32)
Y = (X @ RNG.normal(size=(7, 3))).argmax(1)


def network(*, seed=0, dropout=0.0, optimizer=None, metrics=("accuracy",), loss="cross_entropy"):
    return md.Model(
        [
            md.layers.Input((7,)),
            md.layers.Dense(13, activation="tanh"),
            md.layers.Dropout(dropout),
            md.layers.Dense(3),
        ],
        loss=loss,
        optimizer=optimizer or md.optim.Adam(0.01),
        metrics=list(metrics),
        seed=seed,
    )


def values(model):
    return [np.array(p.value.read()) for p in model.variables()]


def same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(values(a), values(b), strict=True))


def test_training_learns_and_history_has_a_row_for_each_epoch():
    model = network()
    history = model.fit(X, Y, batch_size=17, epochs=30, verbose=False)
    assert len(history) == 30
    assert history["loss"][-1] < 0.4 * history["loss"][0]
    assert history["accuracy"][-1] > 0.9
    assert model.evaluate(X, Y)["accuracy"] > 0.9


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not():
    first, second, other = network(dropout=0.3), network(dropout=0.3), network(dropout=0.3, seed=1)
    for model in (first, second, other):
        model.fit(X, Y, batch_size=17, epochs=3, verbose=False)
    assert same(first, second)
    assert not same(first, other)


def test_initial_values_follow_names_not_the_history_of_the_process():
    md.layers.Dense(3)  # layers made before do not count
    first, second = network(), network()
    assert same(first, second)
    assert [layer.label for layer in second.layers] == ["dense_1", "dropout_1", "dense_2"]
    kernels = [p.value.read() for p in first.parameters() if p.local == "kernel"]
    assert not np.array_equal(kernels[0][:3, :3], kernels[1][:3, :3])


def test_the_last_partial_batch_is_used():
    seen = []
    model = network()
    model.fit(
        X, Y, batch_size=20, epochs=1, verbose=False,
        callbacks=[md.callbacks.LambdaCallback(on_batch_end=lambda fit: seen.append(fit.totals.rows))],
    )  # fmt: skip
    assert seen == [20, 40, 60, 80, 100, 103]


def test_evaluate_does_not_depend_on_the_batch_size():
    model = network(dropout=0.5, metrics=["accuracy", "f1", "matthews_correlation"])
    model.fit(X, Y, batch_size=17, epochs=2, verbose=False)
    whole, parts = model.evaluate(X, Y), model.evaluate(X, Y, batch_size=11)
    assert whole.keys() == parts.keys() == {"loss", "accuracy", "f1", "matthews_correlation"}
    for name in whole:
        # sums of 103 float32 losses in another order
        assert whole[name] == pytest.approx(parts[name], rel=103 * float(np.finfo(np.float32).eps))


@pytest.mark.parametrize("rows", [0, 1, 5, 103])
def test_predict_takes_any_number_of_rows(rows):
    model = network()
    predicted = model.predict(X[:rows], batch_size=10)
    assert predicted.shape == (rows, 3)
    assert model.predict_class(X[:rows]).shape == (rows,)
    assert predicted.dtype == np.float32


def test_predict_class_and_probability_agree_with_the_logits():
    model = network()
    logits = model.predict(X).astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_probability(X), expected, rtol=1e-5)
    np.testing.assert_array_equal(model.predict_class(X), logits.argmax(1))


def test_sample_weights_are_repeats():
    weights = RNG.integers(0, 4, len(X))
    repeated = np.repeat(np.arange(len(X)), weights)
    model, other = (network(optimizer=md.optim.SGD(0.1)) for _ in range(2))
    whole = {"epochs": 3, "shuffle": False, "verbose": False, "batch_size": 1000}
    model.fit(X, Y, sample_weight=weights, **whole)
    other.fit(X[repeated], Y[repeated], **whole)
    for a, b in zip(values(model), values(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_balanced_class_weights_make_the_classes_equal():
    rows = np.concatenate([np.flatnonzero(Y == k)[: 3 * k + 2] for k in range(3)])
    x, y = X[rows], Y[rows]
    weights = {k: len(y) / (3 * np.sum(y == k)) for k in range(3)}
    losses = [
        network().fit(x, y, class_weight=given, verbose=False)["loss"]
        for given in ("balanced", weights, None)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_class_weight_is_the_weight_of_each_sample():
    weights = {0: 0.5, 1: 2.0, 2: 3.0}
    model, other = network(), network()
    model.fit(X, Y, class_weight=weights, epochs=2, verbose=False)
    other.fit(X, Y, sample_weight=[weights[k] for k in Y.tolist()], epochs=2, verbose=False)
    assert same(model, other)


def test_validation_split_keeps_rows_back():
    model, other = network(), network()
    history = model.fit(X, Y, validation_split=0.2, epochs=2, verbose=False)
    rows, held = md.data.split_rows(len(X), 0.2, model.seed)
    given = (X[held], Y[held])
    expected = other.fit(X[rows], Y[rows], validation_data=given, epochs=2, verbose=False)
    assert same(model, other)
    assert history["val_loss"] == expected["val_loss"]
    assert history["val_accuracy"] == expected["val_accuracy"]


def test_frozen_layers_stay_as_they_are():
    model = network()
    before = values(model)
    model.freeze("dense_1")
    model.fit(X, Y, epochs=1, verbose=False)
    after = values(model)
    assert np.array_equal(before[0], after[0]) and np.array_equal(before[1], after[1])
    assert not np.array_equal(before[-1], after[-1])
    model.unfreeze()
    assert len(model.parameters()) == 4


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_frozen_batch_norm_keeps_its_statistics(executor):
    layers = [
        md.layers.Input((7,)),
        md.layers.BatchNorm(),
        md.layers.Dropout(0.5),
        md.layers.Dense(2),
    ]
    model = md.Model(layers, loss="cross_entropy", optimizer="sgd", executor=executor)
    norm, dropout = model.layer("batch_norm_1"), model.layer("dropout_1")

    def statistics():
        return [np.array(p.value.read()) for p in (norm.running_mean, norm.running_variance)]

    def fit():
        before, count = statistics(), int(dropout.counter.value.item())
        model.fit(X, Y % 2, batch_size=50, epochs=1, verbose=False)
        assert int(dropout.counter.value.item()) == count + 3
        return [np.array_equal(a, b) for a, b in zip(before, statistics(), strict=True)]

    assert fit() == [False, False]
    model.freeze("batch_norm_1", "dropout_1")
    assert fit() == [True, True]
    model.unfreeze()
    assert fit() == [False, False]


def test_regularisers_are_part_of_the_loss():
    def loss(strength):
        model = md.Model(
            [
                md.layers.Input((7,)),
                md.layers.Dense(3, kernel_regularizer=md.layers.L2(strength)),
            ],
            loss="cross_entropy",
        )
        kernel = model.parameters()[0].value.read().astype(np.float64)
        return model.evaluate(X, Y)["loss"], (kernel**2).sum()

    plain, squares = loss(0.0)
    assert loss(0.25)[0] == pytest.approx(plain + 0.25 * squares, rel=1e-5)


def test_several_inputs_and_outputs():
    a, b = md.layers.Input((7,), name="a"), md.layers.Input((2,), name="b")
    joined = md.ops.concat([md.layers.Dense(5, activation="relu")(a), b], axis=1)
    classes = md.layers.Dense(3, name="classes")(joined)
    number = md.layers.Dense(1, name="number")(joined)
    model = md.Model(
        inputs=[a, b], outputs=[classes, number], loss=["cross_entropy", "mse"], optimizer="adam"
    )
    extra = X[:, :2]
    history = model.fit({"b": extra, "a": X}, [Y, X[:, :1]], epochs=5, verbose=False)
    assert history["loss"][-1] < history["loss"][0]
    first, second = model.predict([X, extra])
    assert first.shape == (103, 3) and second.shape == (103, 1)


def test_a_model_called_on_other_inputs_shares_its_parameters():
    model = network()
    x = md.placeholder("elsewhere", ("rows", 7))
    y = model(x)
    # the same sums of up to 13 products in another order, of values up to 3
    close = {"rtol": 0, "atol": 8 * np.finfo(np.float32).eps * 13**0.5 * 3}
    np.testing.assert_allclose(y.eval({x: X}), model.predict(X), **close)
    np.testing.assert_allclose(model(X[:5]).eval(), model.predict(X[:5]), **close)


def test_iterables_functions_and_generators_of_batches():
    batches = [(X[k : k + 20], Y[k : k + 20]) for k in range(0, 100, 20)]
    listed, made = network(), network()
    listed.fit(batches, epochs=2, verbose=False)
    made.fit(lambda: iter(batches), epochs=2, verbose=False)
    assert same(listed, made)
    with pytest.raises(DataError, match="used up in epoch 2; hand over a function"):
        network().fit(iter(batches), epochs=2, verbose=False)


def test_memory_maps_train_like_arrays(tmp_path):
    for name, array in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", array)
    mapped = [np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("x", "y")]
    first, second = network(), network()
    first.fit(X, Y, epochs=2, batch_size=17, verbose=False)
    second.fit(*mapped, epochs=2, batch_size=17, verbose=False)
    assert same(first, second)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i2", ">i4"])
def test_arrays_of_the_other_order_of_bytes_train_like_others(dtype):
    def trained(way, x, y):
        model = network()
        given = {"batch_size": 17, "epochs": 2, "verbose": False}
        if way == "many":
            md.fit_many([model], x, y, **given)
        elif way == "batches":
            model.fit([(x, y)], verbose=False)
        else:
            model.fit(x, y, **given)
        return model

    # the bytes of small whole numbers, read the other way round, are finite: nothing would be looked at again
    x, y = np.round(X).astype(dtype), Y
    native = x.astype(x.dtype.newbyteorder("="))
    for way in ("fit", "many", "batches"):
        assert same(trained(way, x, y), trained(way, native, y))
        assert same(trained(way, native, y.astype(">i4")), trained(way, native, y))
    model, other = trained("fit", x, y), trained("fit", native, y)
    assert np.array_equal(model.predict(x), other.predict(native))
    for array in (x, native):  # the next fit sees what was written meanwhile
        array[:] = array[::-1].copy()
    model.fit(x, y, batch_size=17, epochs=2, verbose=False)
    other.fit(native, y, batch_size=17, epochs=2, verbose=False)
    assert same(model, other)


def test_nan_names_the_first_operation_and_layer_and_keeps_parameters():
    model = network(optimizer=md.optim.SGD(0.1))
    bad = np.array([1.0, np.nan, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.float32)
    model.parameters()[1].assign(bad)
    before = values(model)
    with pytest.raises(NumericError, match="dense_1"):
        model.fit(X, Y, epochs=1, verbose=False)
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(before, values(model), strict=True)
    )


def test_custom_loss_and_metric_are_plain_functions():
    def squared(predictions, targets):
        return md.ops.mean((predictions - md.ops.one_hot(targets, 3)) ** 2)

    def confidence(predictions, targets):
        return md.ops.max(md.ops.softmax(predictions), axis=-1)

    model = network(loss=squared, metrics=[confidence])
    history = model.fit(X, Y, epochs=8, verbose=False)
    assert history["loss"][-1] < history["loss"][0]
    expected = md.ops.softmax(model.predict(X)).max(1).mean()
    assert model.evaluate(X, Y)["confidence"] == pytest.approx(expected, rel=1e-5)


def test_another_optimizer_may_be_set_by_its_name():
    model, other = network(), network(optimizer=md.optim.SGD())
    model.optimizer = "sgd"
    assert model.fit(X, Y, verbose=False)["loss"] == other.fit(X, Y, verbose=False)["loss"]
    assert model.optimizer == md.optim.SGD()


def test_growing_batch_size():
    sizes = []
    network().fit(
        X, Y, batch_size=lambda epoch: 10 * 2**epoch, epochs=3, verbose=False,
        callbacks=[md.callbacks.LambdaCallback(on_epoch_end=lambda fit: sizes.append(fit.steps))],
    )  # fmt: skip
    assert sizes == [11, 11 + 6, 11 + 6 + 3]


def test_summary_counts_parameters(capsys):
    network().summary()
    text = capsys.readouterr().out
    assert "dense_1    Dense    (batch, 13)   104" in text
    # 7 * 13 + 13 + 13 * 3 + 3
    assert "146 parameters, 146 trained" in text


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda: md.Model([md.layers.Dense(3)]), ArgumentError, "Model: the first of the layers must be"),
        (lambda: md.Model(), ArgumentError, "Model: give a list of layers, or inputs="),
        (lambda: network().fit(X[:, :5], Y), ShapeError,
         r"fit: input 'input' expects samples of shape \(7,\), got \(5,\)"),
        (lambda: network().fit(X, Y[:50]), ShapeError, "x.* has 103 rows but y has 50"),
        (lambda: network().fit(X, Y + 1), DataError, r"has the label 3, outside the classes 0\.\.2"),
        (lambda: network().fit(X, Y, epochs=-1), ArgumentError, "fit: epochs must be an integer"),
        (lambda: network().fit(X, Y, batch_size=0), ArgumentError, "fit: batch_size must be .* got 0"),
        (lambda: network().fit(np.ma.masked_less(X, 0), Y), DataError, "x: elements are masked"),
        (lambda: network().fit([(np.ma.masked_less(X, 0), Y)]), DataError, "a batch: elements are masked"),
        (lambda: network().fit([(X, np.ma.masked_less(Y, 1))]), DataError, "a batch: elements are masked"),
        (lambda: network().predict(np.ma.masked_less(X, 0)), DataError, "input: elements are masked"),
        (lambda: network().fit(X, Y, sample_weight=np.ma.masked_less(X[:, 0] ** 2, 0.1)), DataError,
         "fit: sample_weight: elements are masked"),
        (lambda: network().fit(X, {"y": Y}), GraphError, "fit: the model's outputs are .*, got .'y'"),
        (lambda: md.Model([md.layers.Input((7,)), md.layers.Dense(3, activation="softmax")],
                          loss="cross_entropy"), ArgumentError, "an output is a softmax: leave that"),
        (lambda: md.Model([md.layers.Input((7,)), md.layers.Dense(1, activation="sigmoid")],
                          loss="binary_cross_entropy"), ArgumentError, "an output is a sigmoid: leave that"),
        (lambda: network().fit(X * np.nan, Y), DataError, "row 0, column 0 is nan"),
        (lambda: network().fit(X.astype(complex), Y), DTypeError, "complex"),
        (lambda: network().fit(X), ArgumentError, "y is missing"),
        (lambda: network().layer("dens_1"), UnknownNameError, "did you mean 'dense_1'"),
        (lambda: network(metrics=["acc"]), UnknownNameError, "called 'accuracy' here"),
        (lambda: network(metrics=["acuracy"]).fit(X, Y), UnknownNameError, "did you mean 'accuracy'"),
        (lambda: network(loss="crossentropy").fit(X, Y), UnknownNameError, 'write "cross_entropy"'),
        (lambda: md.Model([md.layers.Input((7,))], optimizer="adm"), UnknownNameError, "mean 'Adam'"),
        (lambda: network().fit(X, Y, verbose="loud"), UnknownNameError, "verbose"),
        (lambda: network().fit(X, Y, sample_weight=-np.ones(103)), DataError, "not negative"),
        (lambda: network().fit(X, Y, class_weight={0: 1.0}), ArgumentError, "no weight for class 1"),
        (lambda: network().fit(X, Y, class_weight=[1, 1, 2]), ArgumentError, 'or "balanced", got'),
        (lambda: network().fit(X, Y, class_weight={0: -1, 1: 1, 2: 1}), ArgumentError, "class 0 must"),
        (lambda: network().predict(X[0]), ShapeError, r"is one sample of input 'input'; .* x\[None\]"),
        (lambda: network().predict(X[k:] for k in (1, 2)), ShapeError, "expected an array .* got generator"),
        (lambda: network().predict(np.full((2, 7), "a")), DTypeError, "expected float32, got <U1"),
        (lambda: md.Model(inputs=[md.layers.Input((7,))], outputs=md.layers.Input((2,), name="other")),
         GraphError, "an output needs other, which is not among inputs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(act, error, text):
    with pytest.raises(error, match=text) as caught:
        act()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_step_that_makes_a_parameter_infinite_is_not_done(executor, slices):
    """The loss of the step is finite; the square root has no derivative at 0."""
    x = md.layers.Input((7,))
    h = md.layers.Dense(3, name="first", use_bias=False)(x)
    y = md.layers.Activation(lambda h: md.ops.sqrt(md.ops.square(h)), name="root")(h)
    model = md.Model(inputs=x, outputs=y, loss="mse", optimizer="sgd", executor=executor)
    data, targets = np.ones((40, 7), np.float32), np.ones((40, 3), np.float32)
    data[20:] = 0
    before = model.values()["first/kernel"]
    watch = [md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)]
    watch[0].batches = lambda fit: 7 if slices else 1
    with pytest.raises(NumericError, match="in root/gradient"):
        model.fit(data, targets, batch_size=5, shuffle=False, verbose=False, callbacks=watch)
    assert np.isfinite(model.values()["first/kernel"]).all()
    assert model._step[2].count == 4
    assert not np.array_equal(model.values()["first/kernel"], before)


def test_parameters_that_overflow_are_noticed_and_not_saved(tmp_path):
    class Explode(md.callbacks.Callback):
        def on_batch_end(self, fit):
            fit.model.parameters()[0].assign(np.full((7, 13), np.inf))

    checkpoint = md.callbacks.Checkpoint(tmp_path, every_steps=1)
    with pytest.raises(NumericError, match="dense_1/kernel has NaN or infinity after step 1"):
        network().fit(X, Y, epochs=1, verbose=False, callbacks=[Explode(), checkpoint])
    assert checkpoint.store.latest() is None


def test_layers_are_numbered_before_errors_need_their_names():
    layers = [md.layers.Input((7,)), md.layers.Dense(3), md.layers.Reshape((2, 2))]
    with pytest.raises(ShapeError, match="reshape_1"):
        md.Model(layers)


def test_10000_steps_do_not_leak():
    x = md.placeholder("x", (None, 5))
    w = md.variable("w", (5, 3), md.init.glorot_uniform())
    step = md.optim.SGD(0.01, momentum=0.9).step(md.ops.mean((x @ w) ** 2), [w])
    batch = X[:16, :5]

    def blocks_after(steps):
        for _ in range(steps):
            step({x: batch})
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(1_000)  # caches and free lists are full now
    assert blocks_after(10_000) - before < 1_000  # one forgotten object a step would be 10,000


class LookAtEachBatch(md.callbacks.Callback):
    """Does nothing, but makes batches run one by one."""

    def on_batch_end(self, fit):
        pass


@pytest.mark.parametrize("optimizer", [md.optim.SGD(0.1), md.optim.Adam(md.optim.cosine(0.01, 30))])
def test_slices_of_batches_give_the_same_bits_as_single_batches(optimizer):
    sliced, single = network(optimizer=optimizer), network(optimizer=optimizer)
    a = sliced.fit(X, Y, batch_size=17, epochs=4, verbose=False)
    b = single.fit(X, Y, batch_size=17, epochs=4, verbose=False, callbacks=[LookAtEachBatch()])
    assert same(sliced, single)
    assert [(r["loss"], r["accuracy"]) for r in a] == [(r["loss"], r["accuracy"]) for r in b]


def test_later_trainings_use_the_slices_of_earlier_ones_over_their_own_data():
    """Other rows, more of them, other dtypes: each gives what a model without slices gives."""
    md.memory.trim()  # or slices of models that are gone would be there
    sliced, single = network(optimizer=md.optim.Adam()), network(optimizer=md.optim.Adam())
    more = np.concatenate([X, X[::-1] * 0.5])
    data = [(X, Y), (X[3:40].copy(), Y[3:40].copy()), (more, np.tile(Y, 2)), (X.astype("f8"), Y)]
    for x, y in data:
        sliced.fit(x, y, batch_size=17, epochs=2, verbose=False)
        single.fit(x, y, batch_size=17, epochs=2, verbose=False, callbacks=[LookAtEachBatch()])
        assert same(sliced, single)
    native = sliced._step[2]._executable.native
    made = [key for key in getattr(native, "inner", native)._kept if key[0] == "slices"]
    assert len(made) == 2  # one for each dtype


def test_slices_do_not_keep_the_data():
    model, rows = network(), np.tile(X, (3, 1))
    kept = weakref.ref(rows)
    model.fit(rows, np.tile(Y, 3), batch_size=10, verbose=False)
    del rows
    gc.collect()
    assert kept() is None


def test_slices_run_without_python_between_batches():
    looks = []

    class Count(md.callbacks.Callback):
        def batches(self, fit):
            return None

        def on_batch_end(self, fit):
            looks.append(fit.batch)

    rows = np.tile(X, (40, 1))
    network().fit(rows, np.tile(Y, 40), batch_size=10, epochs=3, verbose=False, callbacks=[Count()])
    assert len(looks) < 3 * 412 / 4  # 412 batches an epoch


def test_nan_within_a_slice_names_the_operation_and_takes_the_batch_back():
    def linear():
        return md.Model(
            [md.layers.Input((7,)), md.layers.Dense(3)],
            loss="cross_entropy",
            optimizer=md.optim.SGD(0.1),
        )

    rows = X.copy()
    rows[53] = 3e38  # finite, but its products overflow
    once = {"batch_size": 10, "epochs": 1, "shuffle": False, "verbose": False}
    model, other = linear(), linear()
    with pytest.raises(NumericError, match="dense_1"):
        model.fit(rows, Y, **once)
    other.fit(rows[:50], Y[:50], **once)  # the batches before that of row 53
    assert same(model, other)


def test_a_new_optimiser_loss_or_frozen_layer_makes_a_new_step():
    model = network(optimizer=md.optim.SGD(0.1))
    model.fit(X, Y, epochs=1, verbose=False)
    model.optimizer = md.optim.SGD(0.0)
    before = values(model)
    model.fit(X, Y, epochs=1, verbose=False)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))
    model.optimizer = md.optim.SGD(0.1)
    model.layer("dense_1").trainable = False
    model.fit(X, Y, epochs=1, verbose=False)
    assert np.array_equal(before[0], values(model)[0])
    assert not np.array_equal(before[-1], values(model)[-1])


def test_models_that_share_layers_have_names_of_their_own(tmp_path):
    x, y = md.layers.Input((7,)), md.layers.Input((5,))
    first, second = md.layers.Dense(5), md.layers.Dense(3)
    whole = md.Model(inputs=x, outputs=second(first(x)))
    md.Model(inputs=y, outputs=second(y))  # numbers of its own would be dense_1
    assert [layer.label for layer in whole.layers] == ["dense_1", "dense_2"]
    whole.save(tmp_path / "m")
    np.testing.assert_array_equal(md.load(tmp_path / "m").predict(X), whole.predict(X))


def test_a_model_of_models_saves_and_loads(tmp_path):
    z = md.layers.Input((7,), name="z")
    generator = md.Model([md.layers.Input((7,)), md.layers.Dense(5, activation="relu")])
    critic = md.Model([md.layers.Input((5,)), md.layers.Dense(4), md.layers.Dense(1)])
    both = md.Model(inputs=z, outputs=critic(generator(z)))
    assert len({p.name for p in both.variables()}) == 6
    both.save(tmp_path / "m")
    np.testing.assert_array_equal(md.load(tmp_path / "m").predict(X), both.predict(X))
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(critic.predict(generator.predict(X)), both.predict(X), **close)


def test_unknown_losses_and_metrics_are_told_at_once():
    with pytest.raises(UnknownNameError, match='write "cross_entropy"'):
        network(loss="crossentropy")
    with pytest.raises(UnknownNameError, match="mean 'accuracy'"):
        network(metrics=["acuracy"])


def test_the_repr_of_a_model_tells_inputs_and_outputs():
    assert repr(network()) == "<Model float32[batch, 7] -> float32[batch, 3]: 3 layers>"
