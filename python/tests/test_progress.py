"""What a training shows: nothing, lines, or one updating line."""

import sys
import types

import pytest
from conftest import toy

from hetal._progress import Progress

STAGES = [
    {"kind": "keys", "done": 1, "total": 9},
    {"kind": "keys", "done": 9, "total": 9},
    {"kind": "sending_rows", "done": 5, "total": 7},
    {"kind": "training", "done": 1, "total": 4, "epoch": 2},
]
CHECK = {
    "kind": "epoch", "check": 1, "accuracy": 0.5, "loss": 1.25, "largest_logit": 2.0, "verdict": "continue", "seconds": 3.0
}


def test_a_silent_fit_prints_nothing(iris, capfd):
    toy(max_epochs=1, verbose=0).fit(*iris)
    assert capfd.readouterr() == ("", "")


def test_a_fit_says_what_it_does_on_standard_error(iris, capfd):
    clf = toy(max_epochs=1, verbose=1).fit(*iris)
    out, err = capfd.readouterr()
    assert out == ""
    for text in (f"training {clf.model_name_} on this machine", clf.project_, "check 1: ", f"report: {clf.report_}"):
        assert text in err


@pytest.fixture
def bars(monkeypatch):
    """Stands for tqdm, whose lines depend on the terminal."""
    made = []

    class Bar:
        def __init__(self, total, **options):
            self.total, self.shown, self.is_closed = total, [], False
            made.append(self)

        def reset(self, total):
            self.total = total

        def set_description(self, text):
            self.text = text

        def refresh(self):
            self.shown.append((self.text, self.n, self.total))

        def close(self):
            self.is_closed = True

        @staticmethod
        def write(text, file):
            print(text, file=file)

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    return made


def notebook(monkeypatch):
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_notebook_gets_one_updating_line(bars, monkeypatch, capsys):
    notebook(monkeypatch)
    progress = Progress(1)
    for event in STAGES:
        progress.show(event)
    progress.show(CHECK)
    progress.close()
    [bar] = bars
    assert bar.shown == [
        ("making keys", 1, 9), ("making keys", 9, 9), ("sending rows", 5, 7), ("server: training, epoch 2", 1, 4)
    ]
    assert bar.is_closed
    assert capsys.readouterr().err == (
        "check 1: validation accuracy 50.00 %, loss 1.250, largest logit 2.0: continue (3.0 s)\n"
    )


@pytest.mark.parametrize("verbose, lines", [(0, 0), (1, 0), (2, 3)])
def test_stages_without_a_terminal(bars, monkeypatch, capsys, verbose, lines):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    progress = Progress(verbose)
    for event in STAGES:
        progress.show(event)
    assert not bars and capsys.readouterr().err.count("\n") == lines


def test_a_program_without_standard_error(bars, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", None)
    progress = Progress(1)
    progress.show(STAGES[0])
    progress.close()
