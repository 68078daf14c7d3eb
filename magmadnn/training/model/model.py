"""Model: layers, loss, optimiser and metrics together; train, evaluate, predict, save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from magmadnn import optim
from magmadnn.calls import FixedList
from magmadnn.data import Preparation, Standardize
from magmadnn.errors import ArgumentError, GraphError
from magmadnn.graph.drawing.diagram import Diagram
from magmadnn.graph.node import node_of, rebuild
from magmadnn.layers.layer import Layer, Parameter, number_layers
from magmadnn.layers.settings import Changes
from magmadnn.optim import Optimizer
from magmadnn.parallel.way import TrainingWay
from magmadnn.runtime import Executable, placed
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training.arguments import at_least, refuse_while_training
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import BatchSize
from magmadnn.training.loop.given import gpu_of, inputs_for
from magmadnn.training.loop.history import History
from magmadnn.training.loop.sources import Source
from magmadnn.training.objective.heads import Head, Key, output_names
from magmadnn.training.objective.objective import Objective
from magmadnn.workers.client import ENTERED

from .assigning import GRAPH, NAMES, assigned
from .checks import chained, check_model
from .classes import by_loss, class_numbers, probabilities
from .fitting import LastFit, array_source, evaluated, stream_of, training_of, way_of
from .inspection import diagram_of, memory_of, plan_of, planned, profile_of
from .parts import ModelParts
from .pictures import Pictured
from .plain.architecture import calls_of, check_parameters, free_variables, layers_of
from .raw_data import TakesRawData, takes_raw
from .summary import summary_text
from .training_step import Carried, Made, optimizer_in_force, state_to_copy, take_copied

if TYPE_CHECKING:
    from magmadnn.runtime.profile.text import Profile
    from magmadnn.runtime.step_memory import StepMemory


# Above this module in the order of imports: loaded by those who have workers.
_ON_WORKERS: Final = "magmadnn.training.many.on_workers"


class Model(Pictured, ModelParts, TakesRawData):
    """A network from inputs to outputs.

    Args:
        layers: an Input and then layers, each applied to the result of the one before.
        inputs: in place of layers: the Inputs of a graph,
        outputs: and what is computed from them.
        loss: name, Loss or function of (predictions, targets); for several outputs a dict by `output_names`,
            or a list in their order. One alone is the loss of each. A function is called when a step is made.
        loss_weights: of several outputs, by name or in order: what the losses are multiplied by before they
            are added; 1 where it is left out.
        optimizer: an optimiser of `md.optim`, or its name.
        metrics: names, Metrics or functions of (predictions, targets); for several outputs a dict of lists,
            or a list of lists. One list is that of each.
        seed: of initial values, dropout and shuffling.
        executor: "native" for compiled kernels, "reference" for NumPy, op by op.
        precision: "float32"; "float64" for everything; "mixed_bf16" or "mixed_fp16" for operands of matrix
            products that are rounded to bfloat16 or float16, with sums, parameters and all else in float32
            (in float16 the loss is scaled); "tf32" lets GPUs round them to TF32.
        device: "cpu"; "cuda", or "cuda:1" for another than the first NVIDIA GPU; "auto" for a GPU where one
            can be used. Parameters may be read and set as ever: they are copied when that is needed.
        preparation: of raw data, such as tables: `md.data.Standardize()`, from which the first `fit` makes a
            `Preparation` of the rows that it trains on; or one that is fitted. It is kept and saved with the
            model. All data is then given raw; `predict` and metrics of quantities are in their units, of
            several each in columns of its own, `<target>_mae` (the loss is that of standardised targets);
            `predict_class` gives classes as data has them.

    Attributes:
        epochs_done: passes that `fit` has made with this model; saved with it. The next `fit` counts on, so
            that three of one epoch each give what one of three epochs gives, bit for bit.

    Raises:
        UnknownNameError: if there is no such executor, precision or device.
        DeviceError: if there is no such GPU; says what is missing.
        ArgumentError, GraphError: if there is no Input, outputs do not follow, or NumPy shall run on a GPU.
    """

    def __init__(
        self,
        layers: Sequence[Any] | None = None,
        *,
        inputs: Sequence[Placeholder] | Placeholder | None = None,
        outputs: Sequence[Operation] | Operation | None = None,
        loss: Any = None,
        loss_weights: Mapping[str, float] | Sequence[float] | None = None,
        optimizer: Optimizer | str | None = None,
        metrics: Sequence[Any] | Mapping[str, Any] = (),
        seed: int = 0,
        executor: str = "native",
        precision: str = "float32",
        device: str = "cpu",
        preparation: Preparation | Standardize | None = None,
    ) -> None:
        if (layers is None) == (inputs is None or outputs is None):
            raise ArgumentError("Model: give a list of layers, or inputs=[...] and outputs=[...]")
        named: list[Layer] | None = None
        if layers is not None:
            first, last, named = chained(layers, precision)
            inputs, outputs = [first], [last]
        given = [inputs] if isinstance(inputs, Placeholder) else list(inputs or [])
        self.inputs = FixedList(given, GRAPH, "inputs")
        made = [outputs] if isinstance(outputs, Operation) else list(outputs or [])
        self.outputs = FixedList(made, GRAPH, "outputs")
        self._input_nodes = [p.node for p in self.inputs]
        at_least("Model: seed", seed, 0)
        self.loss, self.loss_weights, self.seed = loss, loss_weights, int(seed)
        self.metrics = metrics
        self.preparation = preparation
        self.executor, self.precision = executor, precision
        self.device = placed(device, executor)
        self.optimizer = optimizer
        self.epochs_done = 0
        self._origin: str | None = None
        calls = calls_of(self.outputs)
        self._layers, self._names_at = layers_of(calls), Changes.names
        check_parameters(calls, self.layers)
        self._free = free_variables(calls)
        if named != self.layers or any(layer.layers for layer in named):
            number_layers(self.layers)  # and parts that `build` has made
        for parameter in self.named().values():
            if isinstance(parameter, Parameter):
                parameter.prepare(self.seed)
        self._evaluation: tuple[Any, Objective, Executable] | None = None
        self._waited: tuple[tuple[float, float], ...] = ()  # of each worker: for data, in all
        self._prediction: Executable | None = None
        self._heads: tuple[Key, list[Head]] | None = None
        self._last_fit: LastFit | None = None
        check_model(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name[0] == "_" or (name == "epochs_done" and type(value) is int and value >= 0)):
            value = assigned(self, name, value)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return state_to_copy(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        take_copied(self, state)

    def __repr__(self) -> str:
        ends = [", ".join(str(x.node.spec) for x in side) for side in (self.inputs, self.outputs)]
        return f"<Model {ends[0]} -> {ends[1]}: {len(self.layers)} layers>"

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimiser, with the settings that the next step has: callbacks may have set some.

        An optimiser or its name that is assigned starts anew: without moments, its count of steps at 0.
        """
        return optimizer_in_force(self)

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | str | None) -> None:
        refuse_while_training(self, "Model: optimizer")
        self._given = None if optimizer is None else optim.of(optimizer)
        self._step: Made | None = None
        self._carried: Carried | None = None  # what a step goes on from where there is none yet

    def reset_optimizer(self) -> None:
        """Begin anew with the optimiser as it was given: no moments, counts and schedules from 0.

        What callbacks have set is forgotten. Parameters and `epochs_done` stay as they are.

        Raises:
            ArgumentError: while the model is being trained.
        """
        self.optimizer = self._given

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: of the layers that made them, `output_0` where none did."""
        return FixedList(output_names(self.outputs), NAMES, "output_names")

    def __call__(self, *inputs: Any) -> Any:
        """The network on other inputs: Operations, Tensors or arrays; parameters are shared.

        Raises:
            GraphError, ShapeError: if their number or shapes do not fit.
        """
        if len(inputs) != len(self.inputs):
            raise GraphError(f"Model: has {len(self.inputs)} inputs, got {len(inputs)}")
        replaced = {}
        for own, value in zip(self.inputs, inputs, strict=True):
            node = node_of(value)
            if node is None:
                raise GraphError(f"Model: input {own.name} is a number; give an array")
            replaced[own.node] = node
        fresh = [Operation(n) for n in rebuild([o.node for o in self.outputs], replaced)]
        return fresh[0] if len(fresh) == 1 else fresh

    def _code(self) -> dict[str, str]:
        """Digests of the user's own modules that it needs, for ranks to compare."""
        from .plain.own_modules import code_of

        return code_of(self)

    # --- what is told of it -----------------------------------------------------------------------

    def summary(self) -> None:
        """Print a table of layers, output shapes and numbers of parameters."""
        print(summary_text(self))

    def plan(
        self, x: Any = None, y: Any = None, *, batch_size: int = 32, expected: bool = False
    ) -> str:
        """What a training step runs, as text, with its costs and memory; a prediction, without an optimiser.

        Args:
            x: data as for `fit`, of which a few samples will do; not needed once the model was fitted.
            y: targets, likewise.
            batch_size: the batch for which sizes are given.
            expected: also the least time of each kernel, at limits of a core that are measured now.
        """
        return plan_of(self, x, y, batch_size, expected)

    def memory(self, x: Any = None, y: Any = None, *, batch_size: int = 32) -> StepMemory:
        """Bytes that a training step takes where it runs, before it does; a prediction, without an optimiser.

        `print` the result for a table; `.total` is all of it. The data that batches are taken from is not in
        it, nor what validation and a last, smaller batch take. `fit` refuses batches that do not fit.

        Args:
            x: data as for `fit`, of which a few samples will do; not needed once the model was fitted.
            y: targets, likewise.
            batch_size: rows of a batch.

        Raises:
            ArgumentError: if no targets are known, or NumPy computes the step.
            GraphError: if a dimension other than that of the batch has no known size.
        """
        return memory_of(self, x, y, batch_size)

    def _planned(self, what: str, x: Any, y: Any) -> Any:
        """The training step for data like this, for `md.parallel.plan`."""
        return planned(self, what, x, y)

    def diagram(
        self, x: Any = None, y: Any = None, *, batch_size: int = 32, optimised: bool = True
    ) -> Diagram:
        """What `plan` tells, for `md.graph.to_svg`: kernels as boxes, or nodes if not `optimised`."""
        return diagram_of(self, x, y, batch_size, optimised)

    def profile(self, x: Any, y: Any = None, *, batch_size: int = 32) -> Profile:
        """Where the time of a training step goes; of a prediction, without an optimiser.

        Runs the step on the first `batch_size` rows for some tenths of a second; nothing is trained by it.
        `print` the result for a table of kernels and one of layers, with shares of the FMA peak and of the
        memory bandwidth of a core, both measured just before; `to_chrome_trace(path)` writes a trace. On a
        GPU steps are timed by events, shares are those of a large product and of a copy on the device, and
        each step also runs once in an NVTX range.

        Raises:
            ArgumentError: if the model does not run compiled kernels, or y is missing.
        """
        return profile_of(self, x, y, batch_size)

    # --- train ------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: BatchSize = 32,
        epochs: int = 1,
        validation_data: Any = None,
        validation_split: float = 0.0,
        shuffle: bool = True,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | Literal["balanced"] | None = None,
        callbacks: Sequence[Callback] = (),
        augment: Any = None,
        loader_workers: int = 1,
        accumulate: int = 1,
        parallel: TrainingWay | Literal[False] | None = None,
        memory_limit: int | None = None,
        initial_epoch: int | None = None,
        verbose: Any = "auto",
        prepared: bool = False,
    ) -> History:
        """Train.

        Args:
            x: array, memory map, list of arrays for several inputs, dict by input name; or, without y, an
                iterable of batches (x, y) or (x, y, weights), or a function that makes one for each epoch.
            y: targets: class numbers, or numbers; for several outputs a dict by name, or a list in order.
            batch_size: samples of a step, or a function of the epoch; the last batch may be smaller. Those of
                an iterable stay as they come, and another size with it is refused.
            epochs: passes over the data; the number of the last one where initial_epoch is given.
            validation_data: (x, y) or (x, y, weights) that is evaluated after each epoch.
            validation_split: or the part of x and y, chosen by seed, that is kept back for that.
            shuffle: a new order for each epoch, which depends on seed and epoch only.
            sample_weight: weight of each sample in the loss; for several outputs also a dict of such by
                name, where 1 counts for those that are left out, or a list in order. Kept in float32.
            class_weight: weight of the samples of each class: {class: weight}, or "balanced", which gives
                all classes the same weight together: rows / (classes * rows of the class).
            callbacks: see `md.callbacks`.
            augment: changes of images at random, a list of `md.data.augment`; or "standard": moved by up to
                an eighth of their size, and colour images mirrored. Validation data stays as it is, and so do
                targets: those of places are refused where pixels move. An image depends on seed, epoch and
                its number. On a GPU that holds the data it is made within the step, but for Mixup and
                transforms of your own.
            loader_workers: threads that augment elsewhere; results do not depend on it.
            accumulate: batches whose gradients are averaged for one update, in the memory of one batch: the
                update of a batch that many times as large, but for rounding, and for layers that look at
                batches (BatchNorm, dropout). The last group of an epoch may be smaller. Schedules count
                updates.
            parallel: how several workers share the training, by `magmadnn launch` or in
                `with md.workers(4):`, such as `md.parallel.Hybrid()`. None: as `md.parallel.DataParallel()`
                there, alone otherwise; False: alone in any case. Give all ranks the same data.
            memory_limit: bytes that a step may take on each worker, all that `memory` counts; None for what
                is free. Parameters are whole on each worker before the first step and between epochs.
            initial_epoch: epochs that count as done; as many as the model has done (`epochs_done`) where it
                is left out. The order of the data and schedules by epoch depend on it.
            verbose: True for a row per epoch; "auto" for a hundred rows or so; "every 10" for one in ten;
                "line" for rows without a bar on a terminal, "bar" for a bar and the last row; False for none.
            prepared: whether x and y have gone through `preparation` already.

        Raises:
            ShapeError, DTypeError, DataError: if data does not fit, naming where.
            NumericError: if the loss becomes NaN or infinite, or a step would make a parameter so, naming the
                first operation and layer; parameters are then those before that step.
            OutOfMemoryError: if a step has no room, or takes more than memory_limit; nothing is trained then.
        """
        is_named = isinstance(parallel, TrainingWay) and parallel.communicator is not None
        if ENTERED and not (parallel is False or is_named):
            above = import_module(_ON_WORKERS)

            given = (batch_size, epochs, initial_epoch, validation_data, validation_split, shuffle)
            weights = (sample_weight, class_weight, augment, accumulate)
            history: History = above.fit_on_workers(
                self, ENTERED[-1], x, y, *given, *weights, callbacks, verbose, parallel, memory_limit,
            )  # fmt: skip
            return history
        return training_of(
            self, x, y, batch_size=batch_size, epochs=epochs, initial_epoch=initial_epoch,
            validation_data=validation_data, validation_split=validation_split, shuffle=shuffle,
            sample_weight=sample_weight, class_weight=class_weight, callbacks=callbacks,
            augment=augment, loader_workers=loader_workers, accumulate=accumulate, verbose=verbose,
            prepared=prepared, parallel=way_of(parallel), memory_limit=memory_limit,
        ).run()  # fmt: skip

    @takes_raw
    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 1024,
        sample_weight: Any = None,
        prepared: bool = False,
    ) -> dict[str, Any]:
        """Loss and metrics on data, as a dict.

        Args:
            x: as in `fit`.
            y: as in `fit`.
            batch_size: samples that are computed at a time; the result does not depend on it.
            sample_weight: as in `fit`.
            prepared: as in `fit`.
        """
        at_least("evaluate: batch_size", batch_size, 1)
        if y is None:
            source: Source = stream_of(self, x)
        else:
            source = array_source(self, "evaluate", x, y, sample_weight)
        return evaluated(self, source, batch_size)

    @takes_raw
    def predict(self, x: Any, *, batch_size: int = 4096, prepared: bool = False) -> Any:
        """The outputs for any number of samples, as an array; for several a list, as `output_names` has them.

        With a `preparation` of quantities they are in the target's units and shape, float64. For a model
        whose last layer gives logits these are logits: see `predict_probability`.
        """
        return self._predicted(x, batch_size)

    def _predicted(self, x: Any, batch_size: int) -> Any:
        """What `predict` gives for inputs that the network takes as they are."""
        at_least("predict: batch_size", batch_size, 1)
        arrays = inputs_for(self.inputs, x, "predict", gpu_of(self))
        prediction, rows = self._predictor(), len(arrays[0])
        named = list(zip(self._input_nodes, arrays, strict=True))
        if rows <= batch_size:
            whole = prediction.run(dict(named))
            return whole[0] if len(whole) == 1 else whole
        pieces = [
            prediction.run({node: a[k : k + batch_size] for node, a in named})
            for k in range(0, rows, batch_size)
        ]
        found = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        return found[0] if len(found) == 1 else found

    def _predictor(self) -> Executable:
        if self._prediction is None:
            self._prediction = self._executable(self.outputs)
        return self._prediction

    def _executable(self, outputs: Sequence[Operation]) -> Executable:
        nodes = [output.node for output in outputs]
        return Executable(
            nodes, executor=self.executor, precision=self.precision, device=self.device
        )

    @takes_raw
    def predict_probability(
        self, x: Any, *, output: str | None = None, batch_size: int = 4096, prepared: bool = False
    ) -> Any:
        """Probabilities, as the loss has them: softmax for `cross_entropy`, of each label its own otherwise.

        Args:
            x: as for `predict`.
            output: name of one of several outputs; None: a list of all.
            batch_size: samples that are computed at a time.
            prepared: as in `fit`.

        Raises:
            ArgumentError: if there are none, or no loss says what outputs are (`magmadnn.losses.Loss`).
        """
        predicted = self._predicted(x, batch_size)
        return by_loss(self, "predict_probability", predicted, output, probabilities)

    @takes_raw
    def predict_class(
        self, x: Any, *, output: str | None = None, batch_size: int = 4096, prepared: bool = False
    ) -> Any:
        """The number of the most likely class of each sample; 0 or 1 for each label. As int64.

        With a `preparation` of classes, the class itself, as it stands in the data.

        Args:
            x: as for `predict`.
            output: name of one of several outputs; None: a list of all.
            batch_size: samples that are computed at a time.
            prepared: as in `fit`.

        Raises:
            ArgumentError: if there are no classes, or no loss says what outputs are.
            NumericError: if a prediction is NaN.
        """
        predicted = self._predicted(x, batch_size)
        return by_loss(self, "predict_class", predicted, output, class_numbers)

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder: architecture, settings, parameters; see the file formats.

        Raises:
            FileError: if the folder holds something else, or cannot be written.
            GraphError: if a part of the model cannot be written down.
        """
        from .saving import save_model

        save_model(self, folder)

    def export(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        cpu: str | None = None,
        batch_size: int = 256,
        note: str = "",
    ) -> list[Path]:
        """Write predict as an object file for C and Fortran, parameters included; see the how-to.

        Args:
            path: of the object file, `net.o`; `net.h` and `net.f90` are written beside it.
            name: what names of functions begin with, as in `net_predict`; None: the file's name.
            cpu: what it is to run on, such as "x86-64-v3"; None: the CPU of this machine.
            batch_size: samples that are computed at a time.
            note: text for the header, such as units and scaling of the inputs.

        Returns:
            The paths of the files.

        Raises:
            GraphError: if an op has no native kernel, naming op and layer; for parameters of more than 2 GB.
            ArgumentError: for a name that C and Fortran do not take, or a CPU that is not known.
            FileError: if a file cannot be written, or a header is there that magmadnn did not write.
        """
        from magmadnn.training.export.exporting import export_model

        at_least("export: batch_size", batch_size, 1)
        return export_model(self, path, Model, name=name, cpu=cpu, batch_size=batch_size, note=note)
