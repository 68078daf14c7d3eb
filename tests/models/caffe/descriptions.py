"""Descriptions of networks, written for the tests."""

from __future__ import annotations


def layer(name: str, kind: str, bottoms: str, options: str = "", top: str | None = None) -> str:
    """A layer of the present format; bottoms with spaces between."""
    ends = [f'bottom: "{bottom}"' for bottom in bottoms.split()]
    head = f'name: "{name}" type: "{kind}" {" ".join(ends)} top: "{top or name}"'
    return f"layer {{\n  {head}\n  {options}\n}}\n"


def data(channels: int, height: int, width: int) -> str:
    """An input of images."""
    shape = f"dim: 1 dim: {channels} dim: {height} dim: {width}"
    return f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}\n'


def conv(name: str, bottom: str, filters: int, size: int, more: str = "") -> str:
    options = f"num_output: {filters} kernel_size: {size} {more}"
    return layer(name, "Convolution", bottom, f"convolution_param {{ {options} }}")


def pool(name: str, bottom: str, kind: str, size: int, stride: int, more: str = "") -> str:
    options = f"pool: {kind} kernel_size: {size} stride: {stride} {more}"
    return layer(name, "Pooling", bottom, f"pooling_param {{ {options} }}")


def dense(name: str, bottom: str, units: int, more: str = "") -> str:
    return layer(
        name, "InnerProduct", bottom, f"inner_product_param {{ num_output: {units} {more} }}"
    )


def in_place(name: str, kind: str, blob: str, options: str = "") -> str:
    return layer(name, kind, blob, options, top=blob)


XAVIER = 'weight_filler { type: "xavier" } bias_filler { type: "constant" }'
RATES = "param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 }"

# The network for MNIST that is trained, as Caffe's examples have it: data and accuracy by phases.
LENET = (
    """name: "LeNet"
layer {
  name: "mnist" type: "Data" top: "data" top: "label"
  include { phase: TRAIN }
  transform_param { scale: 0.00390625 }
  data_param { source: "train" batch_size: 64 backend: LMDB }
}
layer {
  name: "mnist" type: "Data" top: "data" top: "label"
  include { phase: TEST }
  data_param { source: "test" batch_size: 100 backend: LMDB }
}
"""
    + conv("conv1", "data", 20, 5, f"stride: 1 {XAVIER}").replace("  convolution", f"  {RATES} convolution")
    + pool("pool1", "conv1", "MAX", 2, 2)
    + conv("conv2", "pool1", 50, 5, f"stride: 1 {XAVIER}")
    + pool("pool2", "conv2", "MAX", 2, 2)
    + dense("ip1", "pool2", 500, XAVIER)
    + in_place("relu1", "ReLU", "ip1")
    + dense("ip2", "ip1", 10, XAVIER)
    + """layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy"
  include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
)  # fmt: skip

LRN = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"
CAFFENET = (
    """name: "CaffeNet"
input: "data" input_dim: 10 input_dim: 3 input_dim: 227 input_dim: 227
"""
    + conv("conv1", "data", 96, 11, "stride: 4")
    + in_place("relu1", "ReLU", "conv1")
    + pool("pool1", "conv1", "MAX", 3, 2)
    + layer("norm1", "LRN", "pool1", LRN)
    + conv("conv2", "norm1", 256, 5, "pad: 2 group: 2")
    + in_place("relu2", "ReLU", "conv2")
    + pool("pool2", "conv2", "MAX", 3, 2)
    + layer("norm2", "LRN", "pool2", LRN)
    + conv("conv3", "norm2", 384, 3, "pad: 1")
    + in_place("relu3", "ReLU", "conv3")
    + conv("conv4", "conv3", 384, 3, "pad: 1 group: 2")
    + in_place("relu4", "ReLU", "conv4")
    + conv("conv5", "conv4", 256, 3, "pad: 1 group: 2")
    + in_place("relu5", "ReLU", "conv5")
    + pool("pool5", "conv5", "MAX", 3, 2)
    + dense("fc6", "pool5", 4096)
    + in_place("relu6", "ReLU", "fc6")
    + in_place("drop6", "Dropout", "fc6", "dropout_param { dropout_ratio: 0.5 }")
    + dense("fc7", "fc6", 4096)
    + in_place("relu7", "ReLU", "fc7")
    + in_place("drop7", "Dropout", "fc7", "dropout_param { dropout_ratio: 0.5 }")
    + dense("fc8", "fc7", 1000)
    + layer("prob", "Softmax", "fc8")
)


def inception(name: str, bottom: str, filters: tuple[int, ...]) -> str:
    """The block of GoogLeNet: 1 x 1; before and of 3 x 3; before and of 5 x 5; behind the pooling."""
    one, before3, three, before5, five, behind = filters
    parts = [
        conv(f"{name}/1x1", bottom, one, 1),
        conv(f"{name}/3x3_reduce", bottom, before3, 1),
        conv(f"{name}/3x3", f"{name}/3x3_reduce", three, 3, "pad: 1"),
        conv(f"{name}/5x5_reduce", bottom, before5, 1),
        conv(f"{name}/5x5", f"{name}/5x5_reduce", five, 5, "pad: 2"),
        pool(f"{name}/pool", bottom, "MAX", 3, 1, "pad: 1"),
        conv(f"{name}/pool_proj", f"{name}/pool", behind, 1),
    ]
    relus = [
        in_place(f"{name}/relu_{k}", "ReLU", f"{name}/{k}")
        for k in ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj")
    ]
    order = [0, 1, 2, 3, 4, 6]
    text = "".join(
        part + (relus[order.index(k)] if k in order else "") for k, part in enumerate(parts)
    )
    branches = " ".join(f"{name}/{k}" for k in ("1x1", "3x3", "5x5", "pool_proj"))
    return text + layer(f"{name}/output", "Concat", branches)


# Caffe's format until 2014: `layers`, types as words, rates as blobs_lr.
OLD = """
name: "old"
layers { name: "d" type: DATA top: "data" top: "label" include: { phase: TRAIN } }
layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
  weight_decay: 0 convolution_param { num_output: 4 kernel_size: 3 } }
layers { name: "r" type: RELU bottom: "c" top: "c" }
layers { name: "ip" type: INNER_PRODUCT bottom: "c" top: "ip" blobs_lr: 0 blobs_lr: 0
  inner_product_param { num_output: 3 } }
layers { name: "l" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" top: "l" }
"""
