"""Calls of cuDNN, on a stand-in that knows descriptors, proposes engines and computes by NumPy."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from magmadnn.backends.cuda import _cudnn_library
from magmadnn.backends.cuda._cudnn import Convolutions
from magmadnn.backends.cuda.engine import CONVOLUTIONS, ConvolutionNode
from magmadnn.errors import DeviceError

RNG = np.random.default_rng(6)
STREAM, HANDLE = 7, 11
TENSOR_CORE, DOWN_CONVERT, REDUCED, FFT, NONDETERMINISTIC, WINOGRAD = range(6)
# cudnn_graph.h: attributes that are arrays of 64-bit integers, addresses, C integers, real numbers
INTEGERS = {102, 103, 104, 105, 106, 900, 902, 903, 906, 1000, 402}
WORDS: dict[int, Any] = {
    0: ctypes.c_void_p, 2: ctypes.c_bool, 3: ctypes.c_int64, 4: ctypes.c_float, 5: ctypes.c_double,
    6: ctypes.c_void_p, 15: ctypes.c_void_p,
}  # fmt: skip
KINDS = {10: "fprop", 11: "wgrad", 12: "dgrad"}
OPERANDS = {10: (704, 703, 705), 11: (716, 715, 717), 12: (710, 709, 711)}  # x, w, y
TYPES = {0: "float32", 1: "float64", 2: "float16", 9: "bfloat16"}


class Described:
    def __init__(self, kind: int) -> None:
        self.kind, self.ended = kind, False
        self.told: dict[int, list[Any]] = {}


class Library:
    """cuDNN: `engines` are pairs of notes and a workspace, in the order of its heuristics."""

    def __init__(self, *engines: tuple[set[int], int], fails: dict[str, int] | None = None) -> None:
        self.engines, self.fails = engines or ((set(), 40),), fails or {}
        self.made: dict[int, Described] = {}
        self.executed: list[tuple[ConvolutionNode, int]] = []
        self.plans = self.bytes_of_last = 0

    def cudnnGetVersion(self) -> int:
        return 91900

    def cudnnGetLastErrorString(self, words: Any, size: Any) -> None:
        words.value = b"reason"

    def cudnnCreate(self, handle: Any) -> int:
        handle._obj.value = HANDLE
        return 0

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:
        assert (handle.value, stream.value) == (HANDLE, STREAM)
        return 0

    def cudnnBackendCreateDescriptor(self, kind: Any, goal: Any) -> int:
        goal._obj.value = number = 1000 + len(self.made)
        self.made[number] = Described(kind.value)
        return self.fails.get("create", 0)

    def cudnnBackendDestroyDescriptor(self, at: Any) -> int:
        return 0

    def cudnnBackendSetAttribute(
        self, at: Any, name: Any, kind: Any, count: Any, words: Any
    ) -> int:
        one = self.made[at.value]
        assert not one.ended
        word = WORDS.get(kind.value, ctypes.c_int)
        assert words._type_ is word and len(words) == count.value
        assert (name.value in INTEGERS) == (kind.value == 3)
        one.told[name.value] = list(words)
        return 0

    def cudnnBackendFinalize(self, at: Any) -> int:
        one = self.made[at.value]
        one.ended = True
        if one.kind == 5:
            assert one.told[400] == [HANDLE]
            self.plans += 1
            if self.made[one.told[401][0]].told["notes"] == {"refused"}:
                return 3008
        return 0

    def cudnnBackendGetAttribute(
        self, at: Any, name: Any, kind: Any, most: Any, count: Any, words: Any
    ) -> int:  # fmt: skip
        one = self.made[at.value]
        assert one.ended or one.kind == 3
        if name.value == 202:  # proposals
            found = self.engines if one.told[200] == [3] else ()
            for number, (notes, nbytes) in zip(words, found, strict=False):
                self.made[number].told |= {
                    "notes": notes,
                    "bytes": nbytes,
                    "graph": one.told[201][0],
                }
            count._obj.value = len(found)
        elif name.value == 300:  # the engine of a proposal
            self.made[words[0]].ended = True
            self.made[words[0]].told |= one.told
            count._obj.value = 1
        elif name.value == 1301:
            words[0] = one.told["bytes"]  # engines are numbered by their workspaces
            count._obj.value = 1
        elif name.value == 1303:
            known = sorted(n for n in one.told["notes"] if isinstance(n, int))
            words[: len(known)] = known
            count._obj.value = len(known)
        else:
            assert name.value == 402
            words[0] = self.made[one.told[401][0]].told["bytes"]
            count._obj.value = 1
        return 0

    def cudnnBackendExecute(self, handle: Any, plan: Any, pointers: Any) -> int:
        assert handle.value == HANDLE
        configuration = self.made[self.made[plan.value].told[401][0]]
        operation, *rest = self.made[configuration.told["graph"]].told[801]
        given = self.made[pointers.value]
        assert given.ended
        places = dict(zip(given.told[1000], given.told[1001], strict=True))
        self.bytes_of_last = configuration.told["bytes"]
        node = self._node(self.made[operation], places, [self.made[one] for one in rest])
        self.executed.append((node, given.told[1003][0]))
        assert set(places.values()) == {at for at in node.addresses if at}
        return self.fails.get("execute", 0)

    def _node(
        self, one: Described, places: dict[int, int], rest: list[Described]
    ) -> ConvolutionNode:
        """What operations say, in our words."""
        (how,) = (self.made[v[0]] for k, v in one.told.items() if k in (702, 708, 714))
        tensors = [self.made[one.told[name][0]] for name in OPERANDS[one.kind]]
        shapes = []
        for t in tensors:
            n, c, *sizes = t.told[902]
            shapes.append((n, *sizes, c))
            packed = np.empty(shapes[-1], np.int8).strides
            assert t.told[903] == [packed[0], packed[-1], *packed[1:-1]]
        dtypes = [TYPES[t.told[901][0]] for t in tensors]
        result = {10: 2, 11: 1, 12: 0}[one.kind]
        assert how.told[101] == [1] and how.told[106] == [len(shapes[0]) - 2]
        assert how.told[100] == [1 if dtypes[0] == "float64" else 0]
        (alpha,), (beta,) = (
            v for k, v in sorted(one.told.items()) if k in (700, 701, 706, 707, 712, 713)
        )
        assert (alpha, beta) == (1, 0)
        ends: dict[str, Any] = {}
        if rest:
            ends, last = self._ends(
                tensors[2], rest, places, "float64" if how.told[100] == [1] else "float32"
            )
            tensors[2] = last
            dtypes[2] = TYPES[last.told[901][0]]
        assert not any(t.told.get(907) for t in tensors)
        x, w, y = (places[t.told[906][0]] for t in tensors)
        groups = shapes[0][-1] // shapes[1][-1]
        return ConvolutionNode(
            KINDS[one.kind], dtypes[(result + 1) % 3], dtypes[result], False,
            (shapes[0], shapes[1], shapes[2]), tuple(how.told[103]),
            tuple(zip(how.told[105], how.told[104], strict=True)), tuple(how.told[102]), groups, x, w, y, 0,
            **ends,
        )  # fmt: skip

    def _ends(
        self, at: Described, rest: list[Described], places: dict[int, int], wide: str
    ) -> tuple[dict[str, Any], Described]:
        """What follows a convolution, in the one order that the library has engines for; the last result."""
        found: list[tuple[str, int]] = []
        for one in rest:
            assert at.told[907] == [True] and TYPES[at.told[901][0]] == wide
            assert one.kind == 13 and self.made[one.told[751][0]] is at and one.told[754] == [1]
            mode = self.made[one.told[750][0]]
            assert mode.kind == 0 and TYPES[mode.told[1][0]] == wide
            after = self.made[one.told[753][0]]
            assert after.told[902] == at.told[902] and after.told[903] == at.told[903]
            assert after is not at and after.told[906] != at.told[906]
            if mode.told[0] == [100]:
                found.append(("positive", True))
                assert 752 not in one.told
            else:
                other = self.made[one.told[752][0]]
                assert mode.told[0] == [0] and one.told[755] == [1]
                is_vector = other.told[902][0] == 1 and set(other.told[902][2:]) == {1}
                assert is_vector or other.told[902] == at.told[902]
                assert other.told[902][1] == at.told[902][1]
                found.append(("bias" if is_vector else "added", places[other.told[906][0]]))
            at = after
        assert [name for name, _ in found] == [
            name for name in ("added", "bias", "positive") if name in dict(found)
        ]
        return dict(found), at


def node(function: str = "fprop", dtype: str = "float32") -> ConvolutionNode:
    """Uneven in every axis."""
    return ConvolutionNode(
        function, dtype, dtype, False, ((2, 7, 6, 4), (6, 3, 2, 2), (2, 3, 7, 6)),
        (2, 1), ((0, 1), (2, 1)), (1, 2), 2, 101, 102, 103, 99,
    )  # fmt: skip


@pytest.mark.parametrize("function", sorted(CONVOLUTIONS))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_what_is_executed_is_what_was_asked_for(function: str, dtype: str) -> None:
    library, one = Library(), node(function, dtype)
    calls = Convolutions(library, STREAM)
    assert calls.workspace(one) == 40
    calls.call(one)
    calls.call(replace(one, x=201))
    assert library.executed == [
        (replace(one, workspace=0), 99),
        (replace(one, x=201, workspace=0), 99),
    ]
    assert library.plans == 1  # addresses make no other plan


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_what_follows_is_part_of_the_call(dtype: str) -> None:
    library, one = Library(), node("fprop", dtype)
    calls = Convolutions(library, STREAM)
    ways: list[dict[str, Any]] = [
        {"bias": 104}, {"bias": 104, "positive": True}, {"bias": 104, "added": 105},
        {"bias": 104, "added": 105, "positive": True}, {},
    ]  # fmt: skip
    for way in ways:
        calls.call(replace(one, **way))
        assert library.executed[-1] == (replace(one, **way, workspace=0), 99)
    assert library.plans == len(ways)  # each has plans of its own
    calls.call(replace(one, bias=204))
    assert library.plans == len(ways) and library.executed[-1][0].bias == 204


@pytest.mark.parametrize("notes", [REDUCED, FFT, NONDETERMINISTIC, WINOGRAD])
def test_engines_that_vary_or_transform_are_left_out(notes: int) -> None:
    library = Library(({TENSOR_CORE, notes}, 1), ({notes}, 2), (set(), 3), (set(), 4))
    for dtype in ("float32", "bfloat16"):
        assert Convolutions(library, STREAM).workspace(node(dtype=dtype)) == 3


def test_tensor_cores_round_float32_where_that_is_allowed_only() -> None:
    library = Library(({TENSOR_CORE}, 10), ({DOWN_CONVERT}, 2), (set(), 3))
    calls = Convolutions(library, STREAM)
    assert calls.workspace(node()) == 3
    assert calls.workspace(replace(node(), tensor_float=True)) == 10
    assert calls.workspace(node(dtype="bfloat16")) == 10
    assert calls.workspace(node(dtype="float64")) == 10  # whose tensor cores round as float64 does


def test_what_is_not_supported_or_wants_too_much_is_left_out() -> None:
    refused: Any = {"refused"}
    library = Library((refused, 1), (set(), 1 << 31), (set(), 3))
    assert Convolutions(library, STREAM).workspace(node()) == 3
    with pytest.raises(
        DeviceError, match=r"cuDNN 91900 has no way for library fprop of x 2 x 7 x 6 x 4"
    ):
        Convolutions(Library(({NONDETERMINISTIC}, 1)), STREAM).workspace(node())


def test_an_algorithm_is_a_place_among_the_proposals() -> None:
    library = Library((set(), 3), ({FFT}, 4), (set(), 5), (set(), 6))
    calls = Convolutions(library, STREAM)
    names = [b"cuDNN 91900 0 engine 3", b"cuDNN 91900 1 engine 5", b"cuDNN 91900 2 engine 6"]
    assert calls.algorithms(node(), 1) == names[:1]
    assert calls.algorithms(node(), 2) == names[:2]
    assert calls.algorithms(replace(node(), x=5), 9) == names
    assert [calls.workspace(replace(node(), algorithm=name)) for name in names] == [3, 5, 6]
    calls.call(replace(node(), algorithm=names[2]))
    assert library.bytes_of_last == 6
    assert Convolutions(Library(({FFT}, 4)), STREAM).algorithms(node(), 2) == []


def test_an_engine_whose_results_were_wrong_is_left_out() -> None:
    library = Library((set(), 1), (set(), 2))
    assert Convolutions(library, STREAM).workspace(node("wgrad")) == 2
    assert Convolutions(library, STREAM).workspace(node("dgrad")) == 1


def test_errors_name_the_function_and_say_what_the_library_says() -> None:
    with pytest.raises(DeviceError, match="cudnnBackendExecute of cuDNN gives status 5000: reason"):
        Convolutions(Library(fails={"execute": 5000}), STREAM).call(node())
    with pytest.raises(
        DeviceError, match="cudnnBackendCreateDescriptor of cuDNN gives status 4000"
    ):
        Convolutions(Library(fails={"create": 4000}), STREAM).workspace(node())


def test_a_library_for_another_cuda_or_too_old_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, Any] = {}

    class Functions:
        """As `ctypes` gives them: with a type of their result."""

        def __init__(self, value: int) -> None:
            self._value = value
            self.restype: Any = None

        def __call__(self) -> int:
            return self._value

    class Loaded:
        def __init__(self, version: int, cuda: int) -> None:
            self.cudnnGetVersion, self.cudnnGetCudartVersion = Functions(version), Functions(cuda)

    def load(place: str) -> Any:
        if place not in found:
            raise OSError(place)
        return found[place]

    monkeypatch.setattr(_cudnn_library.ctypes, "CDLL", load)
    monkeypatch.setattr(_cudnn_library, "_places", lambda: ["package", "system"])
    assert _cudnn_library.find_cudnn(13) is None
    found["system"] = Loaded(91900, 13000)
    assert _cudnn_library.find_cudnn(13) is found["system"]
    assert _cudnn_library.find_cudnn(12) is None
    found["package"] = Loaded(91900, 12090)
    assert _cudnn_library.find_cudnn(13) is found["system"]
    assert _cudnn_library.find_cudnn(12) is found["package"]
    found["package"] = Loaded(8907, 12010)
    assert _cudnn_library.find_cudnn(12) is None
