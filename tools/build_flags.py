"""Prints the CMake arguments with which llama.cpp suits this processor; the Makefile exports them as CMAKE_ARGS.

PYTHONPATH=. python tools/build_flags.py
"""

from pocketserver.engines.llama.build_flags import cmake_arguments, this_machine

if __name__ == "__main__":
    print(" ".join(cmake_arguments(this_machine())))
