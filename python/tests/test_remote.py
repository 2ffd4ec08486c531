"""Servers in other processes: tenants, threads, certificates, and the program hetal."""

import datetime
import json
import subprocess
import threading
import time

import numpy as np
import pytest
from conftest import TOY, hetal, jobs, program, toy

from hetal import Callback, HetalClassifier, errors


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
    """Each thread's epochs begin before the other's end, and a third thread counts on meanwhile."""
    X, y = iris
    both_begin, done = threading.Barrier(2, timeout=120), threading.Event()
    times, failures, counted = {}, [], [0]

    class Follow(Callback):
        def on_begin(self, training):
            both_begin.wait()

        def on_epoch(self, epoch):
            times.setdefault(training_of(threading.get_ident()), []).append(time.monotonic())

    names = {}

    def training_of(thread):
        return names[thread]

    def train(name):
        names[threading.get_ident()] = name
        try:
            toy(max_epochs=6, patience=6, project=tmp_path / name, callbacks=Follow(), **server.params()).fit(X, y)
        except BaseException as error:
            failures.append(error)

    def count():
        while not done.wait(0.001):
            counted[0] += 1

    threads = [threading.Thread(target=train, args=(name,)) for name in ("one", "two")]
    counter = threading.Thread(target=count)
    [thread.start() for thread in [counter, *threads]]
    start = time.monotonic()
    [thread.join() for thread in threads]
    seconds = time.monotonic() - start
    done.set()
    counter.join()
    assert not failures
    assert max(epochs[0] for epochs in times.values()) < min(epochs[-1] for epochs in times.values()), times
    assert counted[0] > 20 * seconds


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


def test_the_program_is_in_the_wheel():
    assert "hetal" in hetal("--version")
    wrong = subprocess.run([program("hetal"), "nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    failed = subprocess.run([program("hetal"), "predict", "--dir", "/nowhere", "--features", "x"], capture_output=True)
    assert failed.returncode == 1

