"""Measures weights, with 95 % intervals: a run's own, or any file's on the data of a config.

    python -m vit_jax.evaluate --workdir=runs/digits [--split=test]
    python -m vit_jax.evaluate --weights=PATH --config=FILE [--config.KEY=VALUE] [--split=test]

Nothing is written unless asked for: --write-predictions=FILE, .csv or .npz, has a row for each image, --logits the
logits in it too; --report=DIR gets figures.json with the intervals, and confusion.png and confusion.csv.

A run's newest checkpoint, on the split that the run was evaluated on and on the same devices, gives the figures of the
end of training. PATH is any file that `vit_jax.convert` reads, or a workdir; its head is kept, so the config must have
as many classes, and its positions are resampled to the config's resolution.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp

from vit_jax import build, checkpoints, config, files, flags, loop, mesh, metrics, runtime, schema, steps, train
from vit_jax.data import stream
from vit_jax.evals import Outcome
from vit_jax.evals.accuracy import Details

Intervals = dict[str, tuple[float, float]]  # figure -> (low, high)
FLAGS = ("--workdir", "--weights", "--config", "--split", "--write-predictions", "--logits", "--report")


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
  parser.add_argument("--split", help="train, val, test, or a split of the dataset such as train[:10%%]")
  parser.add_argument(
    "--write-predictions", type=pathlib.Path, metavar="FILE", help="a row for each image: .csv or .npz"
  )
  parser.add_argument("--logits", action="store_true", help="logits of all classes in that file")
  parser.add_argument("--report", type=train.directory, metavar="DIR", help="figures.json, confusion.png and .csv")
  given, rest = parser.parse_known_args()
  runtime.quiet()
  if given.report and given.report.exists() and not given.report.is_dir():
    raise schema.ConfigError(f"--report: {given.report} is a file; name a folder")
  if given.write_predictions:
    files.check_path(given.write_predictions)
  elif given.logits:
    raise schema.ConfigError("--logits: write them where? Add --write-predictions=FILE")
  run = run_of(given, rest)
  run = dataclasses.replace(run, evals=chosen(run.evals, given.split, given.logits))
  runtime.start()
  parts = build.build(run, jax.devices())
  state = restored(parts, given.workdir) if given.workdir else imported(parts)
  outcomes, intervals = evaluate(parts, state, given.workdir or given.weights)
  if jax.process_index() == 0:
    write(outcomes, intervals, given.write_predictions, given.report)


def run_of(given: argparse.Namespace, rest: list[str]) -> config.Run:
  """The run that the flags name: a workdir's own, or a config's with the given weights."""
  if bool(given.workdir) == bool(given.weights) or bool(given.weights) != bool(given.config):
    raise schema.ConfigError("give either --workdir=DIR of a run, or --weights=PATH and --config=FILE")
  overrides = flags.overrides(rest, FLAGS)
  if given.weights:
    overrides |= {"init.from": given.weights, "init.head": "keep"}
    return build.complete(config.resolve(flags.load(given.config, overrides)))
  if overrides:
    raise schema.ConfigError(
      f"--config.{next(iter(overrides))}: a workdir has its own config; --split changes the split"
    )
  found = files.read_json(given.workdir / "config.json")
  if found is None:
    raise schema.ConfigError(f"--workdir: {given.workdir} holds no run (no config.json); train one first")
  return build.complete(config.resolve(config.renamed(found)))


def chosen(evals: dict[str, schema.Choice], split: str | None, logits: bool) -> dict[str, schema.Choice]:
  """A run's evaluations, or with a split its first one by accuracy on that split, under the name test."""
  kept = dict(evals)
  if split:
    first = next((choice for choice in evals.values() if choice.name == "accuracy"), schema.Choice("accuracy"))
    kept = {"test": schema.Choice("accuracy", {**first.args, "split": split})}
  changes = {"logits": True} if logits else {}
  return {
    name: schema.Choice(choice.name, {**choice.args, **changes}) if choice.name == "accuracy" else choice
    for name, choice in kept.items()
  }


def restored(parts: build.Parts, workdir: pathlib.Path) -> steps.State:
  """The newest readable checkpoint of a run."""
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), read_only=True)
  with contextlib.closing(store):
    found = store.restore(parts.state_shapes)
  if found is None:
    raise schema.ConfigError(f"--workdir: {workdir} has no checkpoint yet; train first")
  return found[0]


def imported(parts: build.Parts) -> steps.State:
  """The weights that the run starts from, without optimizer; every parameter comes from the file."""
  shapes = parts.state_shapes.params
  arrays = train.starting_weights(parts, "--weights")
  params = {path: mesh.place(arrays[path], shape.sharding) for path, shape in shapes.items()}
  return steps.State(jnp.zeros((), jnp.int32), params, ema={}, optimizer=None)


def evaluate(parts: build.Parts, state: steps.State, name) -> tuple[dict[str, Outcome], dict[str, Intervals]]:
  """Measures a state's weights and prints the figures: outcomes, and intervals of those by accuracy, by place."""
  try:
    outcomes = loop.measured(parts.evals, state, poll=lambda: None)
  except stream.ImageError as error:
    raise schema.ConfigError(str(error)) from error
  runtime.say(f"{name}, step {int(state.step)} of {parts.total}" if state.step else str(name))
  intervals = {
    place: metrics.intervals(outcome.details.predictions, len(outcome.details.source.classes))
    for place, outcome in outcomes.items()
    if isinstance(outcome.details, Details)
  }
  ends = {place + key: pair for place, found in intervals.items() for key, pair in found.items()}
  train.report(loop.figures_of(outcomes), ends)
  return outcomes, intervals


def write(
  outcomes: dict[str, Outcome],
  intervals: dict[str, Intervals],
  predictions_file: pathlib.Path | None,
  folder: pathlib.Path | None,
) -> None:
  """The files that were asked for; where several splits or weights were measured, names say which: FILE-val-ema.csv."""
  for place in intervals:
    source, predictions = outcomes[place].details
    mark = "-" + place.strip("/_").replace("/", "-") if place and len(intervals) > 1 else ""
    if predictions_file:
      path = predictions_file.with_stem(predictions_file.stem + mark)
      metrics.write(predictions, [source.identify(i) for i in predictions.position.tolist()], path)
      runtime.say(f"  predictions {path}")
    if folder and source.labels == 1:
      from vit_jax import pictures

      folder.mkdir(parents=True, exist_ok=True)
      matrix = metrics.confusion(predictions, len(source.classes))
      metrics.write_confusion(matrix, source.classes, folder / f"confusion{mark}.csv")
      pictures.confusion(matrix, source.classes, folder / f"confusion{mark}.png")
  if folder:
    ends = {place + key: list(pair) for place, found in intervals.items() for key, pair in found.items()}
    names = {place: list(outcomes[place].details.source.classes) for place in intervals}
    found = {"figures": loop.figures_of(outcomes), "intervals": ends, "classes": names}
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / "figures.json", json.dumps(found, indent=2) + "\n")
    runtime.say(f"  report      {folder}")


if __name__ == "__main__":
  runtime.main(main)
