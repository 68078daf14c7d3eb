"""Object code in memory: what calls what, wherever the system puts it, and faults."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from mmap import PAGESIZE
from pathlib import Path

import pytest

from magmadnn.compiler.llvm.ir.target import host, object_code
from magmadnn.compiler.llvm.object.library import Library
from magmadnn.errors import DeviceError

ROOT = Path(__file__).resolve().parents[3]
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def compiled(text: str) -> bytes:
    return object_code(text, host())


# Functions of three files that call each other in a circle: step_0(n) = 100 n + step_1(n - 1), and so on,
# until n = 0. They multiply by numbers from tables, so each file has some pages of instructions and of data.
REST = 3 * PAGESIZE // 8
CIRCLE = [
    f"""
    @table = internal constant [{1 + REST} x i64] [i64 {factor}, {", ".join(["i64 0"] * REST)}]
    declare i64 @step_{(k + 1) % 3}(i64)
    define i64 @step_{k}(i64 %n) prefix [{3 * PAGESIZE} x i8] zeroinitializer {{
      %done = icmp sle i64 %n, 0
      br i1 %done, label %end, label %go
    go:
      %place = zext i1 %done to i64
      %entry = getelementptr i64, ptr @table, i64 %place
      %factor = load volatile i64, ptr %entry
      %own = mul i64 %n, %factor
      %less = sub i64 %n, 1
      %rest = call i64 @step_{(k + 1) % 3}(i64 %less)
      %sum = add i64 %own, %rest
      ret i64 %sum
    end:
      ret i64 0
    }}"""
    for k, factor in enumerate((100, 10, 1))
]
ENTRIES = ("step_0", "step_1", "step_2")
EXPECTED = 100 * 5 + 10 * 4 + 1 * 3 + 100 * 2 + 10 * 1


def circle() -> list[bytes]:
    return [compiled(text) for text in CIRCLE]


def run_far_apart(hole: int) -> None:
    """In a process of its own: load the files where holes of `hole` bytes are 4 GB apart, and call them."""
    codes = circle()
    make_holes(hole)
    library = Library(codes, ENTRIES)
    addresses = [library.address(entry) for entry in ENTRIES]
    assert FUNCTION(addresses[0])(5) == EXPECTED
    print(max(addresses) - min(addresses))


def make_holes(hole: int) -> None:
    """Take all gaps between mappings, and put holes that are far apart where the system looks for room.

    Gaps that this process has begun to use since it read the list of them are left to it.
    """
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    private, fixed_if_free, anonymous, no_reserve = 0x02, 0x100000, 0x20, 0x4000
    flags, step, holes = private | anonymous | no_reserve, 4 << 30, 64
    first = libc.mmap(None, step * holes, 0, flags, -1, 0)
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [(int(begin, 16), int(end, 16)) for begin, end in maps]
    for (_, end), (begin, _) in itertools.pairwise(ends):
        if end >= first and begin > end:
            libc.mmap(end, begin - end, 0, flags | fixed_if_free, -1, 0)
    for k in range(holes):
        libc.munmap(ctypes.c_void_p(first + k * step), ctypes.c_size_t(hole))


@pytest.mark.skipif(sys.platform != "linux", reason="the holes of a process are told by Linux")
@pytest.mark.parametrize("pages", [2, 8])
def test_files_and_their_data_are_loaded_wherever_there_is_room(pages):
    """Into two pages data and instructions do not go together, into eight one file goes."""
    text = f"from {__name__} import run_far_apart; run_far_apart({pages * PAGESIZE})"
    found = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert pages < 8 or int(found.stdout) > 2 << 30


def test_pieces_call_each_other_in_a_circle():
    library = Library(circle(), ENTRIES)
    assert FUNCTION(library.address("step_0"))(5) == EXPECTED


def test_functions_of_the_process_are_found():
    text = """declare i64 @labs(i64)
    define i64 @size(i64 %n) {
      %size = call i64 @labs(i64 %n)
      ret i64 %size
    }"""
    assert FUNCTION(Library([compiled(text)], ["size"]).address("size"))(-3) == 3


def test_libraries_have_names_of_their_own():
    texts = [f"define i64 @same(i64 %n) {{ ret i64 {k} }}" for k in range(2)]
    libraries = [Library([compiled(text)], ["same"]) for text in texts]
    assert [FUNCTION(found.address("same"))(0) for found in libraries] == [0, 1]


def test_a_symbol_that_is_missing_is_told():
    with pytest.raises(DeviceError, match=r"cannot load the object code: .*not found.*other"):
        Library([compiled("define i64 @one(i64 %n) { ret i64 1 }")], ["other"])


def test_a_function_that_is_nowhere_is_told():
    text = "declare i64 @nowhere(i64)\ndefine i64 @one(i64 %n) { %r = call i64 @nowhere(i64 %n)\nret i64 %r }"
    with pytest.raises(DeviceError, match="cannot load the object code"):
        Library([compiled(text)], ["one"])


def test_what_is_no_object_code_is_told():
    with pytest.raises(DeviceError, match="cannot load the object code"):
        Library([b"no object code"], ["one"])
