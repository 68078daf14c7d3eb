"""Everything that can be computed: `md.ops.NAME`, with NumPy's names and keywords.

Each op takes Tensors, Operations, arrays or numbers. With an Operation among its operands it makes an
Operation; with a Tensor it computes a Tensor now; with arrays and numbers alone it gives an array.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names
from magmadnn.graph.gradient import Parts, use

from ._pointwise import pointwise
from .accumulation import arange, cumsum
from .activations import (
    elu,
    gaussian_rbf,
    gelu,
    leaky_relu,
    prelu,
    relu,
    sigmoid,
    softplus,
    softsign,
    swish,
)
from .arithmetic import (
    abs,
    add,
    cast,
    ceil,
    clip,
    divide,
    equal,
    floor,
    floor_divide,
    greater,
    greater_equal,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    remainder,
    sign,
    square,
    stop_gradient,
    subtract,
    where,
)
from .averages import mean, norm, std, var
from .complex_numbers import angle, conj, conjugate, imag, real, real_part
from .contraction import einsum, linear, matmul
from .elementary import cos, erf, exp, expm1, log, log1p, reciprocal, sin, sqrt, tanh
from .images.convolutions import convolution, convolution_transposed
from .images.pooling import average_pooling, max_pooling, max_pooling_indices
from .indexing import (
    embedding,
    gather,
    getitem,
    one_hot,
    scatter_add,
    slice,
    take,
    take_class,
)
from .movement import (
    broadcast_to,
    concat,
    copy,
    expand,
    expand_dims,
    flatten,
    moveaxis,
    reshape,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
)
from .probabilities import log_softmax, logsumexp, softmax
from .reductions import (
    argmax,
    argmin,
    max,
    min,
    prod,
    sum,
)
from .sampling import dropout, random_normal, random_uniform
from .slicing import flip, pad, split, unstack

use(
    Parts(
        add=add, sum=sum, reshape=reshape, broadcast_to=broadcast_to, cast=cast, copy=copy, stack=stack,
        getitem=getitem, real=real_part, conj=conjugate,
    )
)  # fmt: skip

__all__ = [
    "abs",
    "add",
    "angle",
    "arange",
    "argmax",
    "argmin",
    "average_pooling",
    "broadcast_to",
    "cast",
    "ceil",
    "clip",
    "concat",
    "conj",
    "convolution",
    "convolution_transposed",
    "cos",
    "cumsum",
    "divide",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand",
    "expand_dims",
    "expm1",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "gather",
    "gaussian_rbf",
    "gelu",
    "getitem",
    "greater",
    "greater_equal",
    "imag",
    "isnan",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "matmul",
    "max",
    "max_pooling",
    "max_pooling_indices",
    "maximum",
    "mean",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "negative",
    "norm",
    "not_equal",
    "one_hot",
    "pad",
    "pointwise",
    "power",
    "prelu",
    "prod",
    "random_normal",
    "random_uniform",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "reshape",
    "scatter_add",
    "sigmoid",
    "sign",
    "sin",
    "slice",
    "softmax",
    "softplus",
    "softsign",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "stop_gradient",
    "subtract",
    "sum",
    "swapaxes",
    "swish",
    "take",
    "take_class",
    "tanh",
    "tile",
    "transpose",
    "unstack",
    "var",
    "where",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.ops", __all__)
