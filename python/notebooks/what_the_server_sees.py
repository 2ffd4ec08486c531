# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     name: python3
#     display_name: Python 3
# ---

# %% [markdown]
# # What the server sees
#
# A server on this machine keeps its data in the project folder, in `local-server`. So we can look at
# all that a server has after a training.

# %%
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

from hetal import HetalClassifier

X, y = load_iris(return_X_y=True)
project = Path(tempfile.mkdtemp()) / "project"
clf = HetalClassifier(project=project, param_set="insecure-toy11", batch_size=64, max_epochs=2, verbose=0).fit(X, y)

# %%
files = [path for path in (project / "local-server").rglob("*") if path.is_file()]
for path in sorted(files, key=lambda path: -path.stat().st_size)[:8]:
    print(f"{path.stat().st_size:>10}  {path.relative_to(project)}")

# %% [markdown]
# Neither the rows nor the weights are in any of these files, as doubles or as floats:

# %%
contents = b"".join(path.read_bytes() for path in files)
for values in (X[:20], clf.coef_):
    for kind in (np.float64, np.float32):
        for row in values.astype(kind):
            assert row.tobytes() not in contents
print(f"{len(contents)} bytes, no row and no weights")

# %% [markdown]
# The bytes of an encrypted batch look random: each value of a byte is about as frequent as the
# others.

# %%
batch = max((project / "jobs").rglob("batch-*.ct"), key=lambda path: path.stat().st_size).read_bytes()
counts = np.bincount(np.frombuffer(batch, dtype=np.uint8), minlength=256)
entropy = -(counts / counts.sum() * np.log2(counts / counts.sum())).sum()
print(f"{entropy:.3f} of 8 bits a byte")
assert entropy > 7.5

# %% [markdown]
# What the server does learn is in the document on leakage: the numbers of rows, features and
# classes, the hyper-parameters, the name of the training, two bits for each check, and times. The
# secret key stays in the owner's folder:

# %%
print(sorted(path.name for path in project.iterdir()))
