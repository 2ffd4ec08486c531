#!/usr/bin/env python3
"""Measures a training from the last uploaded byte to the decrypted model.

    upload_to_model.py PROGRAMS DATA WORK [ARGUMENTS OF HETAL TRAIN]

PROGRAMS is a folder with `hetal` and `hetal-server`, DATA one with features_{train,val,test}.npy
and labels_{train,val,test}.npy, WORK a folder that does not exist yet. A server starts in WORK, in
a process of its own. The client reaches it through a relay on the loopback, which notes when bytes
pass. The verdicts and requests after the upload are small, so the last byte of the upload is the
one after which less than a megabyte passes to the server.

Prints one JSON object. `server_options` in the environment is added to the server's configuration.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

SMALL = 1 << 20


class Relay:
    """Passes bytes between clients and the server, and notes when the client's passed."""

    def __init__(self, server):
        self.server = server
        self.passed = []  # (time, bytes so far)
        self.total = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.server)
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.relay, args=ends, daemon=True).start()

    def relay(self, source, target, counted):
        buffer = bytearray(1 << 20)
        view = memoryview(buffer)
        try:
            while size := source.recv_into(buffer):
                target.sendall(view[:size])
                if counted:
                    with self.lock:
                        self.total += size
                        self.passed.append((time.monotonic(), self.total))
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def last_byte(self):
        """When the last large piece of the upload passed."""
        with self.lock:
            return next(when for when, sofar in self.passed if sofar > self.total - SMALL)


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def serve(programs, work):
    server = str(programs / "hetal-server")
    token, settings = output([server, "token", "owner"]).split("\n", 1)
    (work / "token").write_text(token + "\n")
    (work / "token").chmod(0o600)
    options = os.environ.get("server_options", "")
    head = f'folder = "{work / "server"}"\naddress = "127.0.0.1:0"\n{options}\n'
    (work / "server.toml").write_text(head + settings)
    log = open(work / "server.log", "w")
    command = [server, "--config", str(work / "server.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    address = process.stdout.readline().strip()
    if not address:
        sys.exit((work / "server.log").read_text())
    host, port = address.rsplit(":", 1)
    return process, (host, int(port))


def main():
    programs, data, work = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
    work.mkdir(parents=True)
    process, address = serve(programs, work)
    try:
        relay = Relay(address)
        command = [programs / "hetal", "train", "--json", "--dir", work / "project"]
        command += ["--server", f"127.0.0.1:{relay.port}", "--token-file", work / "token"]
        command += ["--authority", work / "server/tls/authority.pem"]
        command += ["--features", data / "features_train.npy", "--labels", data / "labels_train.npy"]
        command += ["--validation", data / "features_val.npy", "--validation-labels", data / "labels_val.npy"]
        begin = time.monotonic()
        with open(work / "events", "w") as events:
            command = [str(word) for word in command + sys.argv[4:]]
            train = subprocess.run(command, stdout=subprocess.PIPE, stderr=events, text=True)
        end = time.monotonic()
        if train.returncode != 0:
            sys.exit((work / "events").read_text()[-2000:] + (work / "server.log").read_text()[-2000:])
        trained = json.loads(train.stdout)
        predict = [programs / "hetal", "predict", "--json", "--dir", work / "project"]
        predict += ["--features", data / "features_test.npy", "--labels", data / "labels_test.npy"]
        predicted = json.loads(output([str(word) for word in predict]))
    finally:
        process.terminate()
        process.wait()
    kept = ("validation_loss", "validation_accuracy", "epochs", "best_epoch", "checks", "best_check", "iterations")
    print(json.dumps({
        "seconds_from_upload_to_model": round(end - relay.last_byte(), 3),
        "seconds_of_the_command": round(end - begin, 3),
        "sent_bytes": relay.total,
        "test_accuracy": predicted["evaluation"]["accuracy"],
        **{key: trained[key] for key in kept if key in trained},
    }))


if __name__ == "__main__":
    main()
