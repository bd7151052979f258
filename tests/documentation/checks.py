"""Ways to check a documented command without running it; each raises an error for a wrong command."""

import argparse
import contextlib
import importlib
import importlib.util
import pathlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from unittest import mock

from launch import flags as launch_flags
from launch import spec
from tests.documentation.extraction import ROOT, of_markdown
from vit_jax import cli, config
from vit_jax.__main__ import VERBS
from vit_jax.config import flags
from vit_jax.sweeps import study
from vit_jax.training import build, probe_setup

# What the documentation writes in the place of a value -> a value of that kind.
PLACEHOLDERS = {
  "--config.KEY=VALUE": "--config.seed=1",
  "--data.KEY=VALUE": "--data.holdout=0",
  "py:NAME": "py:ViT-S/16",
}
PLACEHOLDERS |= {"@sha256:DIGEST": f"@sha256:{64 * '0'}"}
PLACEHOLDERS |= {"=N]": "=2]", "launch sweep NAME": "launch sweep vit", "launch adopt NAME": "launch adopt vit"}
PLACEHOLDERS |= {" FLAGS --": " --backend=local --", "gs://…": "gs://my-bucket/runs/a", "BUCKET": "my-bucket"}
VARIABLES = {"$P": "my-project", "$B": "my-bucket", "$Z": "europe-west4-a", "$R": "europe-west4", "$ME": "user:me@a.b"}
VARIABLES |= {"$SA": "vit@my-project.iam.gserviceaccount.com", "$(SEED)": "0", "$(WORKDIR)": "runs/digits"}
VARIABLES |= {"$(ROUNDS)": "2", "$(MODEL)": "ViT-Ti/16"}
# Programs of other people that the documentation names, and their subcommands.
PROGRAMS = {
  "tensorboard": (), "gcloud": ("auth", "services", "storage", "iam", "projects", "secrets", "compute", "artifacts"),
  "kill": (),
  "nvidia-smi": (), "ruff": ("check", "format"), "mlflow": ("ui",), "wandb": ("sync",), "trackio": ("show",),
  "pre-commit": ("install",),
  "model_signing": ("verify",),
  "docker": ("build", "push", "inspect", "run"),
}  # fmt: skip


class Parsed(BaseException):
  """Raised in the place of everything that a program does after it has read its flags."""

  def __init__(self, arguments: argparse.Namespace):
    super().__init__("parsed")
    self.arguments = arguments


def words(command: str) -> list[str]:
  """Returns the words of a command, with optional parts in brackets, and values for placeholders and variables."""
  for name, value in (PLACEHOLDERS | VARIABLES).items():
    command = command.replace(name, value)
  return shlex.split(re.sub(r"\[(--[^\]]*)\]", r"\1", re.sub(r"\[[A-Z]+(?: \.\.\.)?\]", "", command)))


def parsed(module: str, arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags of a program with a `main`, as its own parser reads them; nothing else of it is done."""
  program, read, read_plain = importlib.import_module(module), cli.Parser.parse, argparse.ArgumentParser.parse_args

  def parse(self, given=None):
    raise Parsed(read(self, given))

  def parse_plain(self, given=None, namespace=None):
    raise Parsed(read_plain(self, given, namespace))

  with (
    mock.patch("sys.argv", [module, *arguments]),
    mock.patch.object(cli.Parser, "parse", parse),
    mock.patch.object(argparse.ArgumentParser, "parse_args", parse_plain),
  ):
    try:
      program.main()
    except Parsed as end:
      return end.arguments
  raise AssertionError(f"{module} reads no flags")


def resolve(command: str) -> None:
  """Parses a command of a verb and resolves its config as the verb does, without data, weights and devices."""
  python, m, module, *rest = words(re.sub("^vit-jax ", "python -m vit_jax.", command))
  assert (python, m) == ("python", "-m") and module.removeprefix("vit_jax.") in VERBS, command
  resolve_verb(module.removeprefix("vit_jax."), rest)


def resolve_verb(verb: str, arguments: Sequence[str]) -> None:
  """Parses the flags of a verb and resolves the config among them; a bucket becomes a folder, as none can be asked."""
  given = parsed(f"vit_jax.{verb}", [word.replace("gs://", "/gs/") for word in arguments])
  path = getattr(given, "config", None) or getattr(given, "show", None)
  if path in (None, "…", "FILE"):
    return
  if verb == "fewshot":
    probe_setup.complete(config.resolve(flags.load_config(path, given.overrides), config.Measurement), None)
  elif verb == "sweep":
    with tempfile.TemporaryDirectory() as folder:
      trials = study.Study(path, given.overrides, study.load_sweep(path), pathlib.Path(folder)).make_trials()
    assert not [trial.error for trial in trials if trial.config is None], path
  else:
    overrides = given.overrides | ({"init.from": "none"} if verb == "plan" else {})
    build.complete(config.resolve(flags.load_config(path, overrides)))


def launch(command: str) -> None:
  """Parses a command of `launch`; resolves the run that it starts, with the config of its program."""
  _, _, module, *rest = words(command)
  assert module == "launch", command
  args, program = launch_flags.parse_flags(rest)
  if args.verb in launch_flags.SPECIFIED and program:
    run = launch_flags.build_run(args, program)
    assert run == spec.loads(run.dumps())
    resolve_verb(program[0].removeprefix("vit_jax."), program[1:])


def benchmark(command: str) -> None:
  """Parses the flags of a benchmark."""
  _, _, module, *rest = words(command)
  assert module.startswith("benchmarks."), command
  parsed(module, rest)


def module(command: str) -> None:
  """Finds a module of this repository, and its flags in its source."""
  _, _, name, *rest = words(command)
  found = importlib.util.find_spec(name)
  if found.submodule_search_locations:
    found = importlib.util.find_spec(f"{name}.__main__")
  source = pathlib.Path(found.origin).read_text()
  assert "__main__" in source or found.origin.endswith("__main__.py"), command
  for word in rest:
    if word.startswith("--"):
      assert f'"{word.partition("=")[0]}"' in source, f"{name} has no flag {word}"


def script(command: str) -> None:
  """Finds a script of this repository."""
  _, path, *_ = words(command)
  assert (ROOT / path).exists(), command


def tests(command: str) -> None:
  """Finds the files of tests that a command names, and pytest."""
  names = [word for word in words(command) if word.startswith("tests/")]
  assert all((ROOT / name).exists() for name in names), command
  assert importlib.util.find_spec("pytest")


def extend(command: str) -> None:
  """Finds a command in the pages that `tests/documentation/test_extend.py` executes."""
  pages = sorted((ROOT / "docs/extend").glob("*.md"))
  assert command in [text for page in pages for text in of_markdown(page.read_text())], command


def make(command: str) -> None:
  """Asks make what it would do for a target."""
  done = subprocess.run([*words(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0 and done.stdout.strip(), f"{command}: {done.stderr}"


def packaging() -> dict:
  """Returns the arguments that setup.py gives to setuptools."""
  given = {}
  with mock.patch("setuptools.setup", lambda **keywords: given.update(keywords)), contextlib.chdir(ROOT):
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {})
  return given


def pip(command: str) -> None:
  """Finds the extras that a command installs in setup.py."""
  (source,) = [word for word in words(command.replace("$*", "test")) if word.startswith(".")] or ["."]
  extras = re.sub(r"[.\[\]]", "", source)
  unknown = {*extras.split(",")} - {*packaging()["extras_require"], ""}
  assert not unknown, f"{command}: there is no extra {unknown}"


def program(command: str) -> None:
  """Checks the name and the subcommand of a program of other people; it needs an account, a device or a server."""
  for part in command.split(" && "):
    name, *rest = shlex.split(part)
    allowed = PROGRAMS[name]
    assert not allowed or not rest or rest[0] in allowed, part


def package(command: str) -> None:
  """Finds a program, module or verb of `launch` that is named without arguments."""
  name = command.split()[-1]
  if command.startswith("vit-jax "):
    assert name in VERBS
  elif command.startswith(("python -m launch ", "vit-launch ")):
    assert name in launch_flags.VERBS
  elif command.startswith("python"):
    assert importlib.util.find_spec(name), command
  else:
    assert command == name and command in {*PROGRAMS, "make"}, command


CHECKS: dict[str, Callable[[str], None]] = {
  each.__name__: each
  for each in (resolve, launch, benchmark, module, script, tests, extend, make, pip, program, package)
}
