"""llama.cpp is built for the processor at hand, without what crashes or slows it down, and advice says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketserver.engines.llama.build_flags import (
    OPTIONS,
    UNROLLED,
    Machine,
    advice,
    cmake_arguments,
    processor_features,
    rebuild_command,
)

ROOT = Path(__file__).resolve().parents[3]
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
SERVER = {"sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", *AVX512, "avx512_vnni", "amx_tile", "amx_int8", "avx512_fp16"}


def machine(*features: str, system: str = "linux") -> Machine:
    return Machine(system=system, architecture="x86_64", features=frozenset(features))


def test_most_processors_get_a_native_build() -> None:
    assert cmake_arguments(machine("avx2", "fma")) == ["-DGGML_NATIVE=ON", UNROLLED]
    assert cmake_arguments(machine(system="darwin")) == ["-DGGML_NATIVE=ON", UNROLLED]
    assert cmake_arguments(machine(system="win32")) == ["-DGGML_NATIVE=ON"]


def test_processors_with_amx_get_everything_by_name_but_that() -> None:
    arguments = cmake_arguments(machine(*SERVER))
    assert arguments[0] == "-DGGML_NATIVE=OFF"
    assert {"-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF"} <= set(arguments)
    assert len(arguments) == 2 + len(OPTIONS)
    assert not any("AMX" in argument or "FP16" in argument or "REPACK" in argument for argument in arguments)


def test_half_an_instruction_set_is_not_used() -> None:
    assert "-DGGML_AVX512=OFF" in cmake_arguments(machine("avx512f", "amx_int8"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t: x\n", {"fpu", "avx2", "fma"}),
        ("Features\t: fp asimd asimddp\n", {"fp", "asimd", "asimddp"}),
        ("nothing of the kind", set()),
    ],
)
def test_features_are_read_as_linux_writes_them(text: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_features(tmp_path / "cpuinfo") == found
    assert processor_features(tmp_path / "missing") == set()


def test_advice_names_what_a_build_leaves_unused_and_what_it_should_leave() -> None:
    full = "CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | F16C = 1 | BMI2 = 1 | OPENMP = 1 | "
    features = ("avx", "avx2", "fma", "f16c", "bmi2")
    assert not advice(full, machine(*features))
    assert "AVX2" in " ".join(advice(full.replace("AVX2 = 1", "AVX2 = 0"), machine(*features)))
    assert "AMX" in " ".join(advice(full + "AMX_INT8 = 1 | ", machine(*features, "amx_int8")))
    assert "OpenMP" in " ".join(advice(full.replace("OPENMP = 1 | ", ""), machine(*features)))


def test_the_command_to_build_again_bypasses_the_cached_build() -> None:
    command = rebuild_command(machine("amx_int8"), "0.3.36")
    assert command.startswith("CMAKE_ARGS='-DGGML_NATIVE=OFF ")
    assert "--no-cache-dir" in command
    assert command.endswith("llama-cpp-python==0.3.36")
    assert "$env:CMAKE_ARGS" in rebuild_command(machine(system="win32"), "0.3.36")


def test_the_tool_needs_nothing_installed() -> None:
    ran = subprocess.run(
        [sys.executable, "-S", str(ROOT / "tools" / "build_flags.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith("-DGGML_NATIVE=")
