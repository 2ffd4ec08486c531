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
# # Your own server
#
# `hetal-server` usually runs on another machine, and its operator gives you three things: an address,
# the file of a certificate authority, and a token. This notebook plays both parts. It needs the
# program `hetal-server`; set `HETAL_SERVER` to its path.

# %%
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

program = os.environ.get("HETAL_SERVER") or shutil.which("hetal-server")
assert program, "build it: cargo build --release --bin hetal-server"
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# The operator makes a token for the tenant ann. The token goes to ann; the server's configuration
# keeps only a fingerprint of it.

# %%
token = subprocess.run([program, "token", "ann"], capture_output=True, text=True, check=True).stdout
(folder / "token").write_text(token)
(folder / "token").chmod(0o600)
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
(folder / "server.toml").write_text(
    f'folder = "{folder}/state"\naddress = "127.0.0.1:{port}"\nsets = ["insecure-toy11"]\nallow_insecure = true\n'
    + token[token.index("[[tenants]]"):]
)
log = open(folder / "log", "w")
server = subprocess.Popen([program, "--config", str(folder / "server.toml")], stdout=log, stderr=log)
while True:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        break
    except OSError:
        assert server.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)

# %% [markdown]
# Ann trains. The project stores the server's address and where the files are.

# %%
from sklearn.datasets import load_iris

from hetal import HetalClassifier

X, y = load_iris(return_X_y=True)
clf = HetalClassifier(
    server=f"localhost:{port}",
    authority=folder / "state" / "tls" / "authority.pem",
    token_file=folder / "token",
    project=folder / "ann",
    name="flowers",
    param_set="insecure-toy11",
    batch_size=64,
    max_epochs=3,
    verbose=0,
).fit(X, y)
print(clf.server_, clf.score(X, y))
assert (clf.predict_remote(X[:5]) == clf.predict(X[:5])).all()

# %% [markdown]
# The program `hetal` uses the same project:

# %%
print(subprocess.run(["hetal", "jobs", "--dir", str(folder / "ann")], capture_output=True, text=True, check=True).stdout)

# %%
server.terminate()
server.wait()
log.close()
shutil.rmtree(folder)
