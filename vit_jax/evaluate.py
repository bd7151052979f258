"""Measures a trained run again: python -m vit_jax.evaluate --workdir=runs/digits [--split=test]

Reads the newest checkpoint and writes nothing. On the split that the run was evaluated on, and on the same devices, the
figures are those of the end of training.
"""

import argparse
import contextlib
import dataclasses
import pathlib

import jax

from vit_jax import build, checkpoints, config, mesh, runtime, train
from vit_jax.data import stream


def main() -> None:
  """Reads flags, restores, measures, prints the table."""
  parser = argparse.ArgumentParser("python -m vit_jax.evaluate", allow_abbrev=False, description=__doc__)
  parser.add_argument("--workdir", required=True, type=train.directory, help="where the run lives")
  parser.add_argument("--split", help="train, test, or a split of the dataset such as train[:10%%]")
  given, rest = parser.parse_known_args()
  if rest:
    raise config.ConfigError(f"unknown flag {rest[0]!r}.{config.nearest(rest[0], ['--workdir', '--split'])}")
  runtime.quiet()
  found = runtime.read_json(given.workdir / "config.json")
  if found is None:
    raise config.ConfigError(f"--workdir: {given.workdir} holds no run (no config.json); train one first")
  run = build.complete(config.resolve(found))
  if given.split:
    run = dataclasses.replace(run, evals={name: on_split(choice, given.split) for name, choice in run.evals.items()})
  runtime.start()
  evaluate(build.build(run, jax.devices()), given.workdir)


def on_split(choice: config.Choice, split: str) -> config.Choice:
  """The same evaluation on another split."""
  return config.Choice(choice.name, {**choice.args, "split": split})


def evaluate(parts: build.Parts, workdir: pathlib.Path) -> dict:
  """Figures of the newest readable checkpoint under the names of result.json."""
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), read_only=True)
  with contextlib.closing(store):
    found = store.restore(parts.state_shapes)
  if found is None:
    raise config.ConfigError(f"--workdir: {workdir} has no checkpoint yet; train first")
  state, _ = found
  try:
    figures = train.figures_of(parts.evals, state, poll=lambda: None)
  except stream.ImageError as error:
    raise config.ConfigError(str(error)) from error
  train.say(f"{workdir}, step {int(state.step)} of {parts.total}")
  train.report(figures)
  return figures


if __name__ == "__main__":
  runtime.main(main)
