"""Compiles kernels.cu to PTX with NVRTC, which needs no GPU and no driver.

Usage: ptx.py kernels.cu > kernels.ptx, run by "make generate" in the environment that
has the wheel nvidia-cuda-nvrtc-cu12 of the pinned version.
"""

import ctypes
import glob
import os
import re
import sys
import sysconfig

VERSION = "7.0"  # the first that knows the target
TARGET = "compute_80"  # the lowest that is supported; the driver translates for newer ones


def main(path):
    lib = glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*"))[0]
    nvrtc = ctypes.CDLL(lib)
    folder = os.path.dirname(os.path.abspath(path))
    with open(path, "rb") as f:
        source = f.read()
    with open(os.path.join(folder, "core.h"), "rb") as f:
        header = f.read()
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * 1)(header)
    names = (ctypes.c_char_p * 1)(b"core.h")
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 1, headers, names))
    options = [b"--gpu-architecture=" + TARGET.encode(), b"--std=c++17"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        size = ctypes.c_size_t()
        check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetProgramLog(program, log))
        sys.exit(log.value.decode())
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx))
    # The compiler names its own version of PTX, which older drivers refuse. The
    # kernels need nothing that is newer than their target; ptxas checks that.
    sys.stdout.write(re.sub(r"\n\.version .*\n", "\n.version " + VERSION + "\n", ptx.value.decode(), count=1))


def check(code):
    if code:
        sys.exit(f"nvrtc: error {code}")


main(sys.argv[1])
