"""The machine that code is made for, and the way from LLVM IR to object code.

`host()` describes the CPU at hand; `named("x86-64-v4")` another one, for which code can be made and
looked at, not run. Then, in order of use::

    text = str(module)                # LLVM IR
    code = object_code(text, target)  # optimise, compile: bytes of an object file

`Library` of `object/library.py` loads those without any IR.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from magmadnn.compiler.kernels.kernel import hashed_once
from magmadnn.errors import DeviceError, UnknownNameError

from .unlocked import call_unlocked

_L1_BYTES, _L2_BYTES, _LAST_BYTES = 32 << 10, 512 << 10, 32 << 20  # where the system does not say


@hashed_once
@dataclass(frozen=True)
class Target:
    """A CPU as the code generators see it.

    Attributes:
        triple: LLVM's name of architecture, vendor and system.
        cpu: LLVM's name of the CPU.
        features: LLVM's feature flags, `+avx2,-avx512f,...`; empty: those of `cpu`.
        vector_bytes: bytes in a vector register: 64 (AVX-512), 32 (AVX2), 16 (NEON, SSE).
        vector_registers: how many vector registers there are.
        l1_bytes: data cache of the first level, of one core.
        l2_bytes: cache of the second level, of one core.
        last_bytes: the last cache, which cores may share.
        dots: whether it has AVX512-BF16, sums of products of pairs of bfloat16.
        turns: that an operation on a whole vector takes: two where units are half as wide.
        halves: whether it converts between float16 and float32 by an instruction (F16C; all 64-bit ARM).
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int
    l1_bytes: int = _L1_BYTES
    l2_bytes: int = _L2_BYTES
    last_bytes: int = _LAST_BYTES
    dots: bool = False
    turns: int = 1
    halves: bool = True

    def lanes(self, item_bytes: int) -> int:
        """Elements of `item_bytes` bytes in one vector register."""
        return self.vector_bytes // item_bytes

    @property
    def is_arm(self) -> bool:
        """Whether it is a 64-bit ARM, with NEON."""
        return _is_arm(self.triple)

    @property
    def permutations(self) -> dict[int, str]:
        """Intrinsics that look up 32-bit numbers in a register by the low bits of others, by their lanes."""
        names = {
            8: ("avx2", "llvm.x86.avx2.permd"),
            16: ("avx512f", "llvm.x86.avx512.permvar.si.512"),
        }
        return {
            lanes: name
            for lanes, (feature, name) in names.items()
            if self.triple.startswith("x86_64")
            and 4 * lanes <= self.vector_bytes
            and f"-{feature}" not in self.features.split(",")
        }


_X86, _MAC, _ARM = "x86_64-unknown-linux-gnu", "arm64-apple-darwin", "aarch64-unknown-linux-gnu"
_NAMED = {
    target.cpu: target
    for target in (
        Target(_X86, "x86-64-v3", "", 32, 16),
        Target(_X86, "x86-64-v4", "", 64, 32, 32 << 10, 1 << 20),
        Target(_X86, "znver3", "", 32, 16, 32 << 10, 512 << 10),
        Target(_X86, "znver4", "", 64, 32, 32 << 10, 1 << 20, dots=True, turns=2),
        Target(_X86, "znver5", "", 64, 32, 48 << 10, 1 << 20, dots=True),
        Target(_X86, "sapphirerapids", "", 64, 32, 48 << 10, 2 << 20, dots=True),
        Target(_MAC, "apple-m1", "", 16, 32, 128 << 10, 4 << 20),
        Target(_ARM, "cortex-a72", "", 16, 32, 32 << 10, 1 << 20),
        Target(_ARM, "neoverse-v2", "", 16, 32, 64 << 10, 2 << 20),
    )
}


def named(cpu: str) -> Target:
    """The target called `cpu`, for making code that this machine may be unable to run.

    Raises:
        UnknownNameError: `cpu` is none of the known names.
    """
    if cpu not in _NAMED:
        raise UnknownNameError.of("target", cpu, _NAMED)
    return _NAMED[cpu]


@functools.cache
def host() -> Target:
    """The CPU that this process runs on."""
    features, triple = llvm.get_host_cpu_features(), llvm.get_process_triple()
    cpu = llvm.get_host_cpu_name()
    if features.get("avx512f"):
        vector_bytes, registers = 64, 32
    elif features.get("avx2"):
        vector_bytes, registers = 32, 16
    else:
        vector_bytes = 16
        registers = 32 if _is_arm(triple) else 16
    known = _NAMED.get(cpu)
    return Target(
        triple=triple,
        cpu=cpu,
        features=features.flatten(),
        vector_bytes=vector_bytes,
        vector_registers=registers,
        l1_bytes=_cache_bytes(1, _L1_BYTES),
        l2_bytes=_cache_bytes(2, _L2_BYTES),
        last_bytes=_cache_bytes(3, _LAST_BYTES),
        dots=bool(features.get("avx512bf16")),
        turns=known.turns if known and known.vector_bytes == vector_bytes else 1,
        halves=bool(features.get("f16c")) or _is_arm(triple),
    )


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_arm(triple: str) -> bool:
    return triple.startswith(("aarch64", "arm64"))


def _cache_bytes(level: int, default: int) -> int:
    """Size of the data (or unified) cache of `level` from Linux's sysfs; `default` elsewhere."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) != level:
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
            return int(size.rstrip("K")) << 10
        except (OSError, ValueError):  # a container may hide or change these files
            continue
    return default


@functools.cache
def _all_targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def machine(target: Target) -> Any:
    """A new LLVM target machine."""
    _all_targets()
    maker = llvm.Target.from_triple(target.triple)
    # "jitdefault" of llvmlite would ask for the large code model. The small one will do: an object is loaded
    # as one piece, and what it refers to outside of that is called, or found in tables of addresses.
    return maker.create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def optimised(text: str, target: Target) -> tuple[Any, Any]:
    """LLVM IR `text` verified and optimised: the LLVM module and the machine for `target`.

    Raises:
        DeviceError: LLVM refuses the text; a fault of the emitter.
    """
    engine = machine(target)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = target.triple
        module.data_layout = str(engine.target_data)
        module.verify()
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DeviceError(f"LLVM refuses the code made for {target.cpu}: {first}") from error
    _optimise(module, llvm.create_pass_builder(engine, llvm.create_pipeline_tuning_options()))
    return module, engine


def _optimise(module: Any, builder: Any) -> None:
    """A few passes in place of LLVM's standard pipeline, at a tenth of its compile time.

    Kernels come vectorised, unrolled and with their invariants outside the loops, so what is left to
    do is to put variables into registers and to tidy up. LLVM's own vectorisers would add code.
    """
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    call_unlocked("LLVMPY_RunNewModulePassManager", passes, module, builder)


def object_code(text: str, target: Target) -> bytes:
    """LLVM IR `text` optimised and compiled: the bytes of an object file."""
    module, engine = optimised(text, target)
    as_object = 1
    with llvm.ffi.OutputString() as trouble:
        emit = "LLVMPY_TargetMachineEmitToMemory"
        buffer = call_unlocked(emit, engine, module, as_object, trouble)
        if not buffer:
            raise DeviceError(f"LLVM makes no code for {target.cpu}: {trouble}")
    start, size = (
        llvm.ffi.lib.LLVMPY_GetBufferStart(buffer),
        llvm.ffi.lib.LLVMPY_GetBufferSize(buffer),
    )
    try:
        return ctypes.string_at(start, size)
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def assembly(text: str, target: Target) -> str:
    """LLVM IR `text` optimised and compiled, as assembly for people to read."""
    module, engine = optimised(text, target)
    return str(engine.emit_assembly(module))


FUTEX_CALL = {"x86_64": 202, "aarch64": 98}  # number of the system call


def can_use_futex(target: Target) -> bool:
    """Whether threads can sleep in a futex on `target`."""
    return "linux" in target.triple and target.triple.split("-")[0] in FUTEX_CALL
