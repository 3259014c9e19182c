#!/bin/sh
# Installs stock SGLang for CPUs as packages for the Python of vLLM's installation (setup/install.sh), of which nothing changes.
#
#   install.sh DIRECTORY PYTHON
#
# The packages come from PyPI, 1.4 GB on disk. Its CUDA kernels are replaced by names: the CPU never calls them.
set -eu
setup=$(cd "$(dirname "$0")" && pwd)
rm -rf "$1"
"$2" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps --target "$1" --requirement "$setup/requirements.txt"
cp "$setup/sgl_kernel.py" "$1"
PYTHONPATH=$1 "$2" -c 'import sglang.launch_server'
