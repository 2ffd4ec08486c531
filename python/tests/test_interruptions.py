"""Interruptions: signals, kills, lost servers, full disks. The same fit goes on."""

import json
import signal
import subprocess
import threading

import pytest
from conftest import TOY, jobs, run_python, toy

from hetal import errors

TRAIN = """
import sys, json, signal
# A shell that starts the tests in the background lets them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
from sklearn.datasets import load_iris
from hetal import HetalClassifier
params = json.loads(sys.argv[1])
X, y = load_iris(return_X_y=True)
def seen(epoch):
    print("epoch", epoch["epoch"], flush=True)
clf = HetalClassifier(callbacks=seen, **params)
try:
    clf.fit(X, y)
except KeyboardInterrupt as interrupt:
    print("interrupted", interrupt, flush=True)
    sys.exit(3)
print("done", json.dumps({**clf.training_, "rounds": len(clf.history_), "accuracy": clf.score(X, y)}, default=str))
"""


#: What the protocol adds to keys and rows, and what was on its way when a connection ended.
AGAIN = 1 << 20


class Fit:
    """A fit in a process of its own, which is interrupted."""

    def __init__(self, folder, own_server=None, **params):
        self.project = folder / "p"
        given = {} if own_server is None else own_server.params()
        self.params = {
            "param_set": TOY, "project": self.project, "max_epochs": 4, "patience": 4, "batch_size": 32,
            "learning_rate": 0.5, "verbose": 1,
            **given, **params,
        }

    def start(self):
        given = json.dumps(self.params, default=str)
        self.process = run_python(TRAIN, given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, stream, word):
        for line in stream:
            if word in line:
                return
        pytest.fail(f"no line with {word!r}")

    def interrupt(self, how):
        """Sends a signal, and checks how the process ends."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=60)
        if how == signal.SIGKILL:
            assert self.process.returncode == -signal.SIGKILL
        else:
            assert self.process.returncode == 3, (out, err)
            assert "stopping: " in err
            assert "continues where it stopped" in out and "continues where it stopped" in err

    def go_on(self):
        """Starts the same fit, which ends. Returns its output and what is known about it."""
        self.start()
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, err
        assert "going on with training" in err
        return out, json.loads(out[out.index("done ") + 5 :])

    def encrypted(self):
        """Keys and encrypted rows, each with what would change if it were written again."""
        files = [*self.project.glob("*.key"), *self.project.glob("keys*.hetal"), *self.project.glob("jobs/*/*.ct")]
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size) for path in files}


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
@pytest.mark.parametrize("when", ["keys", "rows", "training"])
def test_an_interrupted_fit_goes_on(own_server, line, tmp_path, when, kill):
    """Nothing is encrypted twice, nothing is sent twice, and the server has one job."""
    fit = Fit(tmp_path, own_server, server=line.address)
    line.stall_at(1 << 16)
    fit.start()
    assert line.stalled.wait(120)
    before = fit.encrypted()
    sizes = {kind: sum(size for path, (*_, size) in before.items() if path.suffix == kind) for kind in (".hetal", ".ct")}
    assert all(sizes.values()), before
    keys, everything = sizes[".hetal"], sum(sizes.values())
    # In the middle of the key set, in the middle of the rows, or after both.
    line.stall_at({"keys": keys // 2, "rows": (keys + everything) // 2, "training": None}[when])
    if when == "training":
        fit.wait_for(fit.process.stdout, "epoch 1")
    else:
        assert line.stalled.wait(120)
    fit.interrupt(kill)
    line.cut()
    first = line.sent
    line.stall_at(None)
    out, done = fit.go_on()
    assert (done["key_bytes"], done["row_bytes"]) == (keys, sizes[".ct"])
    assert done["rounds"] >= 4 and done["accuracy"] > 0.9
    assert {path: fit.encrypted()[path] for path in before} == before, "nothing was encrypted twice"
    assert len(jobs(own_server, fit.project)) == 1
    assert first < everything or when == "training"
    assert line.sent < everything + AGAIN, "nothing was sent twice"
    if when == "training":
        assert "epoch 1\n" not in out


def test_a_lost_server_is_waited_for(own_server, iris, tmp_path):
    """The server dies in the middle of a training and comes back: the training goes on."""
    restarted = []

    def lose(epoch):
        if epoch["epoch"] == 1:
            own_server.stop(kill=True)
            timer = threading.Timer(1, own_server.start)
            timer.start()
            restarted.append(timer)

    clf = toy(project=tmp_path / "p", max_epochs=3, callbacks=lose, **own_server.params()).fit(*iris)
    assert restarted and len(clf.history_) >= 3


def test_an_interrupted_training_is_not_lost_unasked(server, iris, tmp_path):
    X, y = iris

    def stop(epoch):
        raise KeyboardInterrupt

    clf = toy(project=tmp_path / "p", name="mine", max_epochs=3, callbacks=stop, **server.params())
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    other = toy(project=tmp_path / "p", name="mine", max_epochs=1, **server.params())
    with pytest.raises(errors.ProjectError, match="replace=True"):
        other.fit(X[:90], y[:90])
    other.set_params(replace=True).fit(X[:90], y[:90])
    assert other.n_features_in_ == 4



def test_a_local_fit_goes_on_after_a_kill(tmp_path):
    fit = Fit(tmp_path)
    fit.start()
    fit.wait_for(fit.process.stdout, "epoch 2")
    before = fit.encrypted()
    fit.interrupt(signal.SIGKILL)
    out, done = fit.go_on()
    assert "epoch 1\n" not in out
    assert {path: fit.encrypted()[path] for path in before} == before
    # Both count what all runs of the training sent.
    assert (done["sent_key_bytes"], done["sent_row_bytes"]) == (done["key_bytes"], done["row_bytes"])


def test_a_fit_whose_server_is_gone_can_be_interrupted(own_server, tmp_path):
    """It says that it tries again, ends at Ctrl-C, and goes on when the server is back."""
    fit = Fit(tmp_path, own_server)
    fit.start()
    fit.wait_for(fit.process.stdout, "epoch 1")
    own_server.stop(kill=True)
    fit.wait_for(fit.process.stderr, "retrying")
    fit.interrupt(signal.SIGINT)
    own_server.start()
    fit.go_on()
    assert len(jobs(own_server, fit.project)) == 1


@pytest.mark.long
def test_a_server_that_is_gone_for_good(own_server, iris, tmp_path):
    """After five minutes it is given up; the same fit goes on when the server is back."""

    def lose(epoch):
        own_server.stop(kill=True)

    clf = toy(project=tmp_path / "p", max_epochs=3, callbacks=lose, **own_server.params())
    with pytest.raises(errors.ServerUnreachable, match=own_server.address):
        clf.fit(*iris)
    own_server.start()
    assert len(clf.set_params(callbacks=None).fit(*iris).history_) >= 3
    assert len(jobs(own_server, tmp_path / "p")) == 1


FULL = """
import sys, numpy, resource, signal
from hetal import HetalClassifier, errors
X = numpy.random.RandomState(0).normal(size=(96, 5)); y = (X[:, 0] > 0).astype(int)
clf = HetalClassifier(param_set=sys.argv[1], project=sys.argv[2], verbose=0, max_epochs=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    clf.fit(X, y)
except errors.StorageError as error:
    print("StorageError", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("score", clf.fit(X, y).score(X, y))
"""


def test_a_full_disk(tmp_path):
    """A file that cannot grow stands for a full disk: key sets are larger than the limit."""
    process = run_python(FULL, TOY, tmp_path / "p", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert "StorageError" in out and str(tmp_path) in out, (out, err)
    assert float(out.split()[-1]) > 0.7, (out, err)
