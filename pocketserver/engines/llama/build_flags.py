"""Which way of building llama.cpp suits a processor. Standard library alone: `make setup` runs it before installing.

AMX is left out because some virtual machines report it and fault when it is used. AVX512-FP16 comes with the same
processors and was measured slower than without (a native build against one without both, 51 and 71 tokens/s).
"""

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HARMFUL = ("amx_tile", "amx_int8", "amx_bf16", "avx512_fp16")
"""Processor features, as Linux names them, for which a native build is not the best one."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}
"""Build options of ggml and the processor features that each of them needs."""

UNROLLED = "-DCMAKE_C_FLAGS=-funroll-loops"
"""Measured with GCC 12: batches of ten tokens 2 % faster, single tokens 1 %."""

REPORTED: Mapping[str, tuple[str, ...]] = {
    "AVX": ("avx",),
    "AVX2": ("avx2",),
    "FMA": ("fma",),
    "F16C": ("f16c",),
    "BMI2": ("bmi2",),
    "AVX512": OPTIONS["GGML_AVX512"],
    "AVX512_VBMI": ("avx512vbmi",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "DOTPROD": ("asimddp",),
    "MATMUL_INT8": ("i8mm",),
}
"""Names in llama.cpp's own description of a build, and the processor features that each of them uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`features` are empty where the system does not tell them."""

    system: str
    architecture: str
    features: frozenset[str]


def this_machine() -> Machine:
    return Machine(system=sys.platform, architecture=platform.machine().lower(), features=processor_features())


def processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The features that Linux reports of the processor; none on other systems."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def cmake_arguments(machine: Machine) -> list[str]:
    """Arguments for building llama.cpp here: native, or each wanted feature by name where native is not best."""
    unrolled = [] if machine.system == "win32" else [UNROLLED]
    if not machine.features.intersection(HARMFUL):
        return ["-DGGML_NATIVE=ON", *unrolled]
    switches = {option: machine.features.issuperset(needed) for option, needed in OPTIONS.items()}
    named = [f"-D{option}={'ON' if on else 'OFF'}" for option, on in switches.items()]
    return ["-DGGML_NATIVE=OFF", *named, *unrolled]


def features_of_build(description: str) -> frozenset[str]:
    """What a build uses, from its description such as `CPU : AVX2 = 1 | FMA = 1 |`."""
    return frozenset(name for name, on in re.findall(r"(\w+) = (\d+)", description) if on != "0")


def advice(description: str, machine: Machine) -> Sequence[str]:
    """Why another build would be faster or safer here, in sentences; none when this one is right."""
    built = features_of_build(description)
    missing = [name for name, needed in REPORTED.items() if name not in built and machine.features.issuperset(needed)]
    found = []
    if missing:
        found.append(f"It makes no use of {', '.join(missing)}, which this processor has.")
    if "AMX_INT8" in built and machine.features.intersection(HARMFUL):
        found.append(
            "It uses AMX, which crashes on some virtual machines, and AVX512-FP16, which is slower than without."
        )
    if machine.system == "linux" and "OPENMP" not in built and "CPU" in description:
        found.append("It was built without OpenMP.")
    return found


def rebuild_command(machine: Machine, version: str) -> str:
    """What to type to build again. Without pip's cache, which would give back the same build."""
    arguments = " ".join(cmake_arguments(machine))
    install = (
        f'"{sys.executable}" -m pip install --force-reinstall --no-deps --no-cache-dir'
        f" --no-binary llama-cpp-python llama-cpp-python=={version}"
    )
    if machine.system == "win32":
        return f"$env:CMAKE_ARGS = '{arguments}'; & {install}"
    return f"CMAKE_ARGS='{arguments}' {install}"
