"""What tests share: projects at the insecure set, and servers in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from hetal import HetalClassifier

TOY = "insecure-toy11"


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="takes minutes: run with --long")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A default project folder for each test."""
    monkeypatch.setenv("HETAL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HETAL_TOKEN", raising=False)
    monkeypatch.delenv("HETAL_PASSPHRASE", raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="session")
def iris():
    X, y = load_iris(return_X_y=True)
    order = np.random.RandomState(7).permutation(len(X))
    return X[order], y[order]


def toy(**params):
    """A small training at the insecure set."""
    params = {"param_set": TOY, "max_epochs": 2, "batch_size": 64, "check_every": 3, "verbose": 0, **params}
    return HetalClassifier(**params)


def program(name):
    """A program of this environment."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        pytest.fail(f"{name} is not in this environment")
    return found


def hetal(*arguments, **options):
    """Runs the program hetal and returns what it printed."""
    done = subprocess.run([program("hetal"), *map(str, arguments)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Server:
    """hetal-server in a process of its own, with the tenants ann and bob."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.binary = os.environ.get("HETAL_SERVER") or shutil.which("hetal-server")
        if self.binary is None:
            pytest.skip("no hetal-server: set HETAL_SERVER to its path")
        folder.mkdir(parents=True)
        tenants = ""
        for name in ("ann", "bob"):
            made = subprocess.run([self.binary, "token", name], capture_output=True, text=True, check=True)
            path = folder / f"{name}.token"
            path.write_text(made.stdout)
            path.chmod(0o600)
            tenants += "\n" + made.stdout[made.stdout.index("[[tenants]]"):]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "server.toml").write_text(
            f'folder = "{folder / "state"}"\naddress = "127.0.0.1:{self.port}"\n'
            f'sets = ["{TOY}"]\nallow_insecure = true\nworkers = 2\n' + tenants
        )
        self.process = None
        self.start()

    def start(self):
        self.log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(
            [self.binary, "--config", str(self.folder / "server.toml")], stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail("the server does not listen")

    def stop(self, kill=False):
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(60)
            self.process = None
            self.log.close()

    @property
    def address(self):
        return f"localhost:{self.port}"

    @property
    def authority(self):
        found = sorted((self.folder / "state").rglob("*authority*.pem"))
        assert found, sorted((self.folder / "state").rglob("*"))
        return found[0]

    def params(self, tenant="ann"):
        return {
            "server": self.address,
            "authority": self.authority,
            "token_file": self.folder / f"{tenant}.token",
        }


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("server") / "s")
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path):
    running = Server(tmp_path / "server")
    yield running
    running.stop()


def jobs(server, project, tenant="ann"):
    """The jobs of a tenant on the server."""
    params = server.params(tenant)
    text = hetal(
        "jobs", "--json", "--dir", project, "--server", params["server"], "--authority", params["authority"],
        "--token-file", params["token_file"],
    )
    return json.loads(text)


class Line:
    """What lies between a client and a server: it counts the bytes to the server, and can stall."""

    def __init__(self, port):
        self.port = port
        self.sent = 0
        self.limit = None
        self.stalled = threading.Event()
        self.changed = threading.Condition()
        self.ends = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stall_at(self, limit):
        """Lets no byte after this many through to the server; all of them without a limit."""
        with self.changed:
            self.limit = limit
            self.stalled.clear()
            self.changed.notify_all()

    def cut(self):
        """Ends all connections. New ones are possible."""
        with self.changed:
            ends, self.ends = self.ends, []
            self.changed.notify_all()
        for end in ends:
            close(end)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            with self.changed:
                self.ends += [client, server]
            for way in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source, target, to_server):
        try:
            while data := source.recv(1 << 14):
                if to_server and not self._allow(source, len(data)):
                    break
                target.sendall(data)
        except OSError:
            pass
        close(source)
        close(target)

    def _allow(self, source, count):
        """Waits while the line is stalled. Returns whether the connection is still wanted."""
        with self.changed:
            while source in self.ends and self.limit is not None and self.sent + count > self.limit:
                self.stalled.set()
                self.changed.wait()
            self.sent += count if source in self.ends else 0
            return source in self.ends


def close(end):
    """Ends a connection, and the calls that wait for it."""
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()


@pytest.fixture
def line(own_server):
    made = Line(own_server.port)
    yield made
    made.listener.close()
    made.cut()


def run_python(source, *arguments, **options):
    """Starts a Python program."""
    return subprocess.Popen([sys.executable, "-c", source, *map(str, arguments)], text=True, **options)
