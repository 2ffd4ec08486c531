"""Servers in other processes: tenants, threads, interruptions, and the program hetal."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import TOY, hetal, program, run_python, toy
from sklearn.datasets import load_iris

from hetal import HetalClassifier, errors


def jobs(server, project, tenant="ann"):
    """The jobs of a tenant on the server."""
    params = server.params(tenant)
    text = hetal(
        "jobs", "--json", "--dir", project, "--server", params["server"], "--authority", params["authority"],
        "--token-file", params["token_file"],
    )
    return json.loads(text)


def test_two_tenants_see_only_their_own(server, iris, tmp_path):
    X, y = iris
    ann = toy(max_epochs=1, project=tmp_path / "ann", name="of-ann", **server.params("ann")).fit(X, y)
    bob = toy(max_epochs=1, project=tmp_path / "bob", name="of-bob", **server.params("bob")).fit(X, y)
    np.testing.assert_array_equal(ann.predict_remote(X[:9]), ann.predict(X[:9]))
    assert "of-bob" not in [job["label"] for job in jobs(server, tmp_path / "ann", "ann")]
    assert "of-ann" not in [job["label"] for job in jobs(server, tmp_path / "bob", "bob")]
    # Bob asks for the job of ann's model: to him it does not exist.
    ann.set_params(**server.params("bob"))
    with pytest.raises(errors.HetalError, match="does not know the job"):
        ann.predict_remote(X[:9])
    assert bob.server_ == server.address


def test_two_threads_train_at_once(server, iris, tmp_path):
    X, y = iris
    spans, failures = {}, []

    def train(name):
        start = time.monotonic()
        try:
            toy(max_epochs=2, project=tmp_path / name, **server.params()).fit(X, y)
        except BaseException as error:
            failures.append(error)
        spans[name] = (start, time.monotonic())

    threads = [threading.Thread(target=train, args=(name,)) for name in ("one", "two")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures
    assert max(start for start, _ in spans.values()) < min(end for _, end in spans.values())


def test_wrong_credentials(server, iris, tmp_path):
    (tmp_path / "token").write_text("not a token\n")
    params = {**server.params(), "token_file": tmp_path / "token", "project": tmp_path / "p"}
    with pytest.raises(errors.AuthenticationFailed):
        toy(**params).fit(*iris)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with pytest.raises(errors.AuthenticationFailed, match="credentials"):
        toy(**params).fit(*iris)
    params = {name: value for name, value in server.params().items() if name != "token_file"}
    with pytest.raises(errors.AuthenticationFailed, match="give token_file"):
        toy(project=tmp_path / "q", **params).fit(*iris)


def test_nobody_listens(server, iris, tmp_path):
    params = {**server.params(), "server": "localhost:9", "project": tmp_path / "p"}
    with pytest.raises(errors.ServerUnreachable, match="localhost:9"):
        toy(**params).fit(*iris)


def certificate(days):
    """A certificate authority of its own, and a certificate of it for localhost."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]

    def build(subject, key, extension):
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(days=10))
        made = made.not_valid_after(now + datetime.timedelta(days=days if key is keys[1] else 10))
        return made.add_extension(extension, critical=False).sign(keys[0], hashes.SHA256())

    authority = build(name, keys[0], x509.BasicConstraints(ca=True, path_length=None))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    leaf = build(subject, keys[1], x509.SubjectAlternativeName([x509.DNSName("localhost")]))
    pem = serialization.Encoding.PEM
    private = keys[1].private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return authority.public_bytes(pem), leaf.public_bytes(pem), private


@pytest.mark.parametrize("days", [5, -5], ids=["of another authority", "expired"])
def test_wrong_authority_and_expired_certificate(server, iris, tmp_path, days):
    """A TLS server with another certificate: nothing is sent to it."""
    import socket
    import ssl

    authority, chain, key = certificate(days)
    (tmp_path / "chain.pem").write_bytes(chain)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "ca.pem").write_bytes(authority if days < 0 else server.authority.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    params = {
        **server.params(), "server": f"localhost:{listener.getsockname()[1]}", "authority": tmp_path / "ca.pem"
    }
    with pytest.raises(errors.ServerUnreachable, match="certificate"):
        toy(project=tmp_path / "p", **params).fit(*iris)
    listener.close()


def test_a_project_of_python_serves_the_program(server, iris, tmp_path):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    clf = toy(max_epochs=2, project=tmp_path / "p", name="flowers", **server.params()).fit(X, names)
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", header="a,b,c,d", comments="")
    for remote in ([], ["--remote"]):
        text = hetal(
            "predict", "--dir", tmp_path / "p", "--model", "flowers", "--features", tmp_path / "rows.csv", "--json",
            *remote,
        )
        predicted = [row["class"] for row in json.loads(text)["predictions"]]
        assert predicted == clf.predict(X).tolist()
    shown = json.loads(hetal("model", "show", "--dir", tmp_path / "p", "--model", "flowers", "--json"))
    assert shown["classes"] == clf.classes_.tolist()


def test_a_project_of_the_program_serves_python(server, iris, tmp_path):
    X, y = iris
    np.savez(tmp_path / "rows.npz", features=X, labels=y)
    params = server.params()
    text = hetal(
        "train", "--dir", tmp_path / "p", "--set", TOY, "--features", tmp_path / "rows.npz", "--epochs", "2",
        "--batch", "64", "--server", params["server"], "--authority", params["authority"], "--token-file",
        params["token_file"], "--json",
    )
    clf = HetalClassifier.from_project(tmp_path / "p", "model", **params)
    assert clf.classes_.tolist() == [0, 1, 2] and clf.classes_.dtype == np.int64
    np.testing.assert_array_equal(clf.predict_remote(X[:9]), clf.predict(X[:9]))
    assert clf.training_["validation_accuracy"] == json.loads(text)["validation_accuracy"]
    # Python trains on in the same folder, with the same secret key and the server it stores.
    key = (tmp_path / "p" / "secret.key").read_bytes()
    again = toy(max_epochs=1, project=tmp_path / "p", name="of-python", server=params["server"]).fit(X, y)
    assert again.server_ == params["server"] and (tmp_path / "p" / "secret.key").read_bytes() == key


TRAIN = """
import sys, json
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
print("done", json.dumps([clf.training_["sent_key_bytes"], clf.training_["sent_row_bytes"], len(clf.history_),
    clf.training_["key_bytes"], clf.training_["row_bytes"]]), clf.score(X, y), flush=True)
"""


def start(params):
    return run_python(TRAIN, json.dumps(params, default=str), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(stream, word):
    for line in stream:
        if word in line:
            return line
    pytest.fail(f"no line with {word!r}")


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
@pytest.mark.parametrize("when", ["upload", "training"])
def test_an_interrupted_fit_goes_on(own_server, tmp_path, when, kill):
    params = {
        "param_set": TOY, "project": str(tmp_path / "p"), "max_epochs": 4, "patience": 4, "batch_size": 32, "verbose": 1,
        **own_server.params(),
    }
    process = start(params)
    if when == "upload":
        # Rows are encrypted when the record is there, and then they are sent.
        records = tmp_path / "p" / "jobs"
        deadline = time.monotonic() + 120
        while not list(records.glob("*/job.json")) and time.monotonic() < deadline:
            time.sleep(0.001)
    else:
        wait_for(process.stdout, "epoch 1")
    encrypted = {path: path.read_bytes() for path in (tmp_path / "p" / "jobs").glob("*/*.ct") if "batch" in path.name}
    assert encrypted
    process.send_signal(kill)
    out, err = process.communicate(timeout=60)
    if kill == signal.SIGINT:
        assert process.returncode == 3, (out, err)
        assert "continues where it stopped" in out and "continues where it stopped" in err
    else:
        assert process.returncode == -signal.SIGKILL
    process = start(params)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "going on with training" in err
    key_sent, row_sent, epochs, keys, rows = json.loads(out[out.index("["):out.index("]") + 1])
    # All runs together sent everything once.
    assert (row_sent <= rows and key_sent <= keys), (row_sent, rows, key_sent, keys)
    after = {path: path.read_bytes() for path in encrypted}
    assert after == encrypted, "nothing was encrypted again"
    assert len(jobs(own_server, tmp_path / "p")) == 1
    assert epochs >= 4
    del when


def test_a_local_fit_goes_on_after_a_kill(tmp_path):
    params = {"param_set": TOY, "project": str(tmp_path / "p"), "max_epochs": 4, "patience": 4, "batch_size": 32}
    process = start(params)
    wait_for(process.stdout, "epoch 2")
    process.kill()
    process.communicate(timeout=60)
    out, err = start(params).communicate(timeout=300)
    assert "going on with training" in err, err
    assert "epoch 1\n" not in out and "done" in out, out


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


def test_the_program_is_in_the_wheel():
    assert "hetal" in hetal("--version")
    wrong = subprocess.run([program("hetal"), "nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    failed = subprocess.run([program("hetal"), "predict", "--dir", "/nowhere", "--features", "x"], capture_output=True)
    assert failed.returncode == 1


assert load_iris and os and sys
