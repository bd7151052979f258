"""Measures weights, and writes nothing: a run's own, or any file's on the data of a config.

    python -m vit_jax.evaluate --workdir=runs/digits [--split=test]
    python -m vit_jax.evaluate --weights=PATH --config=FILE [--config.KEY=VALUE] [--split=test]

A run's newest checkpoint, on the split that the run was evaluated on and on the same devices, gives the figures of the
end of training. PATH is any file that `vit_jax.convert` reads, or a workdir; its head is kept, so the config must have
as many classes, and its positions are resampled to the config's resolution.
"""

import argparse
import contextlib
import dataclasses
import pathlib

import jax
import jax.numpy as jnp

from vit_jax import build, checkpoints, config, flags, mesh, runtime, session, steps, train
from vit_jax.data import stream

FLAGS = ("--workdir", "--weights", "--config", "--split")


def main() -> None:
  """Reads flags, restores, measures, prints the table."""
  parser = argparse.ArgumentParser(
    "python -m vit_jax.evaluate",
    allow_abbrev=False,
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--workdir", type=train.directory, help="where the run lives")
  parser.add_argument("--weights", help="a file of weights or a workdir; needs --config")
  parser.add_argument("--config", help="file, or file:argument; --config.KEY=VALUE changes a value")
  parser.add_argument("--split", help="train, test, or a split of the dataset such as train[:10%%]")
  given, rest = parser.parse_known_args()
  runtime.quiet()
  run = run_of(given, rest)
  if given.split:
    run = dataclasses.replace(run, evals={name: on_split(choice, given.split) for name, choice in run.evals.items()})
  runtime.start()
  parts = build.build(run, jax.devices())
  evaluate(parts, restored(parts, given.workdir) if given.workdir else imported(parts), given.workdir or given.weights)


def run_of(given: argparse.Namespace, rest: list[str]) -> config.Run:
  """The run that the flags name: a workdir's own, or a config's with the given weights."""
  if bool(given.workdir) == bool(given.weights) or bool(given.weights) != bool(given.config):
    raise config.ConfigError("give either --workdir=DIR of a run, or --weights=PATH and --config=FILE")
  overrides = flags.overrides(rest, FLAGS)
  if given.weights:
    edited = flags.load(given.config)
    for key, value in overrides.items():
      flags.edit(edited, key, value)
    run = config.resolve(edited)
    init = config.Init(given.weights, head="keep", ema=run.init.ema)
    return build.complete(dataclasses.replace(run, init=init))
  if overrides:
    raise config.ConfigError(
      f"--config.{next(iter(overrides))}: a workdir has its own config; --split changes the split"
    )
  found = runtime.read_json(given.workdir / "config.json")
  if found is None:
    raise config.ConfigError(f"--workdir: {given.workdir} holds no run (no config.json); train one first")
  return build.complete(config.resolve(found))


def on_split(choice: config.Choice, split: str) -> config.Choice:
  """The same evaluation on another split."""
  return config.Choice(choice.name, {**choice.args, "split": split})


def restored(parts: build.Parts, workdir: pathlib.Path) -> steps.State:
  """The newest readable checkpoint of a run."""
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), read_only=True)
  with contextlib.closing(store):
    found = store.restore(parts.state_shapes)
  if found is None:
    raise config.ConfigError(f"--workdir: {workdir} has no checkpoint yet; train first")
  return found[0]


def imported(parts: build.Parts) -> steps.State:
  """The weights that the run starts from, without optimizer; every parameter comes from the file."""
  shapes = parts.state_shapes.params
  arrays = train.starting_weights(parts, "--weights")
  params = {path: mesh.place(arrays[path], shape.sharding) for path, shape in shapes.items()}
  return steps.State(jnp.zeros((), jnp.int32), params, ema={}, optimizer=None)


def evaluate(parts: build.Parts, state: steps.State, name) -> dict:
  """Figures of a state's weights under the names of result.json."""
  try:
    figures = session.figures_of(parts.evals, state, poll=lambda: None)
  except stream.ImageError as error:
    raise config.ConfigError(str(error)) from error
  session.say(f"{name}, step {int(state.step)} of {parts.total}" if state.step else str(name))
  train.report(figures)
  return figures


if __name__ == "__main__":
  runtime.main(main)
