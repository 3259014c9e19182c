"""Make stand-ins for the CUDA libraries that PyTorch's wheel links.

PyPI's PyTorch does not load without the libraries of a GPU, which CPU inference never
calls. A stand-in has the functions that the loader looks for; each returns 100,
cudaErrorNoDevice, so that PyTorch finds no GPU. Run it with the Python of the
virtual environment.
"""

import collections
import importlib.util
import pathlib
import re
import subprocess
import tempfile

GPU_LIBRARY = re.compile(r"lib(cu|nccl|nvrtc|nvshmem|nvJit).*\.so")
GPU_FUNCTION = re.compile(r"(__cuda|cu|nccl|pnccl|nvrtc|nvshmem)\w+$")


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def dynamic_symbols(libraries, kind):
    """Return (name, version) of the undefined or defined symbols of libraries."""
    out = set()
    for line in run("nm", "-D", "--format=posix", f"--{kind}-only", *libraries).splitlines():
        words = line.split()
        if len(words) > 1 and words[1] != "w":  # a weak symbol may stay undefined
            name, _, version = words[0].partition("@")
            out.add((name, version.lstrip("@")))
    return out


def main():
    folder = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0], "lib")
    present = [str(p) for p in folder.glob("*.so")]
    headers = "".join(run("objdump", "-p", p) for p in present)
    missing = {name for name in re.findall(r"NEEDED\s+(\S+)", headers)
               if GPU_LIBRARY.match(name) and name != "libcuda.so.1" and not (folder / name).exists()}
    # A library must define the versions that others require from it.
    versions = collections.defaultdict(set)
    for name, block in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", headers):
        versions[name].update(re.findall(r"0x\w+ 0x\w+ \d+ (\S+)", block))
    defined = {name for name, _ in dynamic_symbols(present, "defined")}
    wanted = [(n, v) for n, v in dynamic_symbols(present, "undefined") if n not in defined]
    unversioned = {n for n, v in wanted if not v and GPU_FUNCTION.match(n)}
    for library in sorted(missing):
        with tempfile.TemporaryDirectory() as work:
            code, script = pathlib.Path(work, "code.c"), pathlib.Path(work, "versions")
            functions, nodes = set(), ""
            for version in sorted(versions[library]):
                own = {n for n, v in wanted if v == version}
                functions |= own
                nodes += f"{version} {{ global: {' '.join(f'{n};' for n in sorted(own))} }};\n"
            if not nodes:
                functions = unversioned
            code.write_text("".join(f"long {n}(void) {{ return 100; }}\n" for n in sorted(functions)))
            script.write_text(nodes)
            run("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library), str(code),
                *([f"-Wl,--version-script={script}"] if nodes else []))


main()
