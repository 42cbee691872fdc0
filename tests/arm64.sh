#!/usr/bin/env bash
# The full engine on 64-bit ARM, without a device: Debian's Python and the aarch64 wheels of PyPI in
# a root of their own, under qemu's user mode; numba compiles there as it does on a Raspberry Pi.
#
#     PYTHON=.venv/bin/python tests/arm64.sh [FOLDER [PYTEST ARGUMENTS]]
#     PYTHON=.venv/bin/python tests/arm64.sh --fetch [FOLDER]
#
# Runs the mlp golden, or what the arguments say; then a trimmed build that PYTHON makes for the
# Raspberry Pi 4, by its Python face and numpy alone.  Needs qemu-user-static, debootstrap,
# gcc-aarch64-linux-gnu and the network; takes minutes, so CI does not run it.  What FOLDER holds
# already, by default build/arm64, is not fetched again.
#
# With --fetch it only fetches Debian's Python and numpy, which is what tests/house/test_wheels.py needs.
# `python -m bench.wheels` needs the rest, too.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${PYTHON:=python3}"
fetch_only=
if [[ ${1:-} == --fetch ]]; then
    fetch_only=1
    shift
fi
folder=${1:-$repo/build/arm64}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
tests=("${@:2}")
((${#tests[@]})) || tests=(-v tests/training/test_goldens.py -k mlp)
root=$folder/root site=$folder/site suite=bookworm version=3.11
PYTHON=$(command -v "$PYTHON")
[[ $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON

if [[ ! -e $root/usr/bin/python$version ]]; then
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 "$suite" "$root"
    # The second stage would need a kernel that runs arm64 programs; unpacking needs none.
    for package in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$root"
    done
fi
install() { # FOLDER PACKAGE ...: wheels for the Python of the root
    [[ -d $1 ]] && return
    rm -rf "$1.new"
    "$PYTHON" -m pip install --quiet --target "$1.new" --python-version "$version" \
        --implementation cp --only-binary=:all: --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_26_aarch64 \
        --platform manylinux2014_aarch64 "${@:2}"
    mv "$1.new" "$1"
}
install "$folder/numpy" 'numpy>=2'
[[ $fetch_only ]] && exit
install "$site" 'numpy>=2' numba llvmlite onnx tqdm pytest hypothesis

cd "$repo"
arm() {
    PYTHONDONTWRITEBYTECODE=1 EDGEGRAD_CACHE_DIR=$folder/cache PYTHONPATH=$site:$1 \
        qemu-aarch64-static -L "$root" "$root/usr/bin/python$version" "${@:2}"
}

arm "$repo" - <<'END'
import platform, numba, llvmlite, numpy, onnx
from engine.kernels.machine.target import detect_host
versions = (f"{m.__name__} {m.__version__}" for m in (numba, llvmlite, numpy, onnx))
print(platform.machine(), "Python", platform.python_version(), *versions, detect_host().name)
END
arm "$repo" -m pytest -p no:cacheprovider "${tests[@]}"

"$PYTHON" -m engine.tools.cli build tests/data/goldens/mlp --target raspberrypi4 --batch 8 \
    --threads 2 --name mnist --out "$folder/build"
"$PYTHON" -m engine.tools.cli build tests/data/goldens/mlp --batch 8 --threads 2 --name mnist \
    --out "$folder/build-here"
cat >"$folder/train.py" <<'END'
import sys
import numpy as np
import mnist
assert not {"engine", "numba", "onnx", "llvmlite"} & set(sys.modules)
trainer, values = mnist.Trainer(), np.random.RandomState(0)
for _ in range(20):
    loss = trainer.step(values.rand(8, 64).astype(np.float32), values.randint(0, 10, 8))
print("loss after 20 steps of the trimmed build:", np.float32(np.asarray(loss).ravel()[0]))
END
arm "$folder/build" "$folder/train.py"
PYTHONPATH=$folder/build-here "$PYTHON" "$folder/train.py"
