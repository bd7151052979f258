"""Tests of the end of `python -m launch`: every error has one line and a code."""

import importlib
import signal

import pytest

from launch import errors, listing
from launch.errors import LaunchError, UnknownError

main = importlib.import_module("launch.__main__")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def handlers():
  """Restores the signal handlers, which the program sets for itself."""
  before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def run_launch(monkeypatch, capsys, *words):
  monkeypatch.setattr("sys.argv", ["launch", *words])
  return main.run_command_line(), capsys.readouterr()


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "down", "ssh", "restart", "adopt", "report"])
def test_unknown_run_is_reported_in_one_line(monkeypatch, capsys, verb):
  code, output = run_launch(monkeypatch, capsys, verb, "nobody")
  assert code == errors.USAGE and "this machine has no such run" in output.err and output.err.count("\n") == 1


@pytest.mark.parametrize(
  "error, code, text",
  [
    (LaunchError("no quota", errors.DENIED), errors.DENIED, "no quota"),
    (LaunchError("\x1b[2J: no such zone"), errors.USAGE, "error: �[2J: no such zone"),
    (UnknownError("503"), errors.UNKNOWN, "no answer: 503"),
    (KeyboardInterrupt(), errors.INTERRUPTED, "interrupted"),
  ],
)
def test_error_ends_with_its_code_and_one_line(monkeypatch, capsys, error, code, text):
  def fail(_):
    raise error

  monkeypatch.setattr(listing, "ls", fail)
  found, output = run_launch(monkeypatch, capsys, "ls")
  assert found == code and text in output.err and output.err.count("\n") == 1


def test_run_is_rendered_in_all_three_formats(monkeypatch, capsys):
  words = ["vit", "--backend=gke", "--tpu=v5e-16", "--image=europe-docker.pkg.dev/p/r/vit@sha256:" + "0" * 64]
  words += ["--cluster=c"]
  run = ["--", "vit_jax.train", "--config=c.py", "--workdir=gs://bkt/a"]
  for flags, text in (([], "kind: JobSet"), (["--xpk"], "xpk workload create"), (["--skypilot"], "accelerators:")):
    code, output = run_launch(monkeypatch, capsys, "render", *words, *flags, *run)
    assert code == 0 and text in output.out


@pytest.mark.parametrize("words", [["--backend=local"], ["--backend=local", "--skypilot"], ["--backend=qr"]])
def test_unsupported_format_is_refused_with_the_supported_formats(monkeypatch, capsys, words):
  place = ["--tpu=v3-32", "--project=my-project"] * ("--backend=qr" in words)
  run = ["--", "vit_jax.train", "--config=c.py", "--workdir=gs://bkt/a"]
  code, output = run_launch(monkeypatch, capsys, "render", "vit", *words, *place, *run)
  assert code == errors.USAGE and not output.out
  assert "JobSets are for gke, --xpk and --skypilot for gke and qr" in output.err


def test_empty_list_is_reported(monkeypatch, capsys):
  code, output = run_launch(monkeypatch, capsys, "ls")
  assert code == 0 and output.out.startswith("no machines and no unfinished runs\n")
