"""Small studies for tests: a config file with a sweep, and commands that replace training."""

import json
import pathlib

from vit_jax.config import Sweep
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Trial

CONFIG = """
from vit_jax.config import Sweep, product, recipe


def get_config(lr="0.003"):
  return recipe(
    model=dict(name="vit_2_4_32", depth=1, width=16, heads=2, hidden=16),
    data=dict(name="digits", image_size=32, crop=dict(name="resize"), flip=False, train="train[:96]",
              val="train[96:160]", test="test[:64]"),
    optim=dict(name="sgd", lr=float(lr)),
    total=6,
    batch=16,
    checkpoint=dict(every=1),
    log=dict(every=1),
    evals=dict(val=dict(name="accuracy", split="val", every=3), test=dict(name="accuracy", every="100%")),
  )


"""


def sweep_file(folder: pathlib.Path, body: str = "") -> str:
  """Writes a config file of a tiny ViT on 96 digits with the given `sweep()`, and returns its path."""
  (folder / "it.py").write_text(CONFIG + body)
  return str(folder / "it.py")


def study(folder: pathlib.Path, rows=({},), overrides=(), **sweep) -> Study:
  """Returns a study of that config in the same folder."""
  return Study(sweep_file(folder), dict(overrides), Sweep(rows, **sweep), folder)


def waiting(folder: pathlib.Path, count: int = 3) -> list[Trial]:
  """Returns trials for `stand_in`."""
  return [Trial(f"t{i}", {"seed": i}, {}, folder / "trials" / f"t{i}", "{}\n") for i in range(count)]


def stand_in(trial: Trial, exits: int = 0) -> list[str]:
  """Returns a command that writes the files of a training run within a second, or ends with the exit code `exits`.

  A negative `exits` is a signal. The command appends a dot to the file `starts` at each start.
  """
  result = json.dumps({"top1": 0.5, "loss": 1.0, "train_seconds": 2.0, "packages": {}})
  text = (
    "import os, pathlib, sys\n"
    f"workdir = pathlib.Path({str(trial.workdir)!r})\n"
    "workdir.mkdir(parents=True, exist_ok=True)\n"
    "with (workdir / 'starts').open('a') as file: file.write('.')\n"
    f"exits = {exits!r}\n"
    "if exits < 0: os.kill(os.getpid(), -exits)\n"
    "if exits: print('some page'); print('error: the reason'); sys.exit(exits)\n"
    "(workdir / 'config.json').write_text('{}\\n')\n"
    f"(workdir / 'result.json').write_text({result!r})\n"
  )
  return ["python", "-c", text]
