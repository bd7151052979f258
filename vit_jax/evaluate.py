"""Evaluates the weights of a run, or of any file on the data of a config, with 95 % intervals.

    python -m vit_jax.evaluate --workdir=runs/digits [--split=test]
    python -m vit_jax.evaluate --weights=PATH --config=FILE [--config.KEY=VALUE] [--split=test]
    python -m vit_jax.evaluate --workdir=runs/teacher --write-labels=FOLDER --split='train[100:]' [--data.KEY=VALUE]

By default no file is written. --write-predictions=FILE (.csv or .npz) writes a row for each image, and --logits adds
the logits to it. --report=DIR writes figures.json with the intervals, confusion.png and confusion.csv.

--workdir evaluates the newest checkpoint of a run. On the same split and the same devices, the figures equal those at
the end of training. PATH is any file that `vit_jax.convert` reads, or a workdir. The head of the weights is kept, so
the config must have the same number of classes. Positions are resampled to the resolution of the config.
--image-size=N evaluates at another resolution, also for a run. Positions are then resampled as with `init.from`, and a
test crop in pixels grows with the images.

--write-labels writes labels for a student instead of figures: docs/guides/self-train.md. The weights, or their average
if the run has one, label every image of a split. The images are those of the run, or of the dataset that --data.name
and further --data keys select. After a kill, the same command continues.
"""

import argparse
import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import checkpoints, cli, config, evals, importers, runtime, schema
from vit_jax.certificates import accuracies
from vit_jax.checkpoints import forms
from vit_jax.config import flags
from vit_jax.data import augment, catalog, outputs, shared_data
from vit_jax.data.images import ImageError
from vit_jax.evals import Outcome, labelling, metrics, outcomes
from vit_jax.evals.accuracy import get_accuracy_details
from vit_jax.evals.subject import open_source
from vit_jax.evals.table import BoundEval
from vit_jax.importers import pinning, surgery
from vit_jax.importers.hub import metadata
from vit_jax.inference import stored
from vit_jax.parallel import sharding
from vit_jax.schema import to_plain
from vit_jax.schema.errors import format_names
from vit_jax.schema.texts import format_flag
from vit_jax.storage import files, hub_files, paths
from vit_jax.training import build, loop, run_evaluation, steps
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment
from vit_jax.training.run_evaluation import Intervals


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, restores the weights, measures them and prints the table.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  parser = cli.Parser("evaluate", __doc__, data=True, forms=(("--workdir",), ("--weights", "--config")))
  parser.add_argument("--workdir", type=cli.parse_directory, help="directory of the run")
  parser.add_argument("--weights", help="a file of weights, a workdir or hf:OWNER/NAME; needs --config")
  parser.add_argument("--config", help=cli.CONFIG)
  parser.add_argument(
    "--image-size",
    type=cli.make_number_parser(schema.Count),
    metavar="N",
    help="side of the images in pixels; default: the size of the run or config",
  )
  parser.add_argument("--split", help="train, val, test, or a split of the dataset such as train[:10%%]")
  parser.add_argument(
    "--write-predictions", type=cli.parse_path, metavar="FILE", help="a row for each image: .csv or .npz"
  )
  parser.add_argument("--logits", action="store_true", help="logits of all classes in that file")
  parser.add_argument("--report", type=cli.parse_directory, metavar="DIR", help="figures.json, confusion.png and .csv")
  parser.add_argument(
    "--write-labels", type=cli.parse_directory, metavar="FOLDER", help="labels of the weights for a student"
  )
  parser.add_argument("--labels", choices=("soft", "hard"), help="the best five classes of an image (default), or one")
  arguments = parser.parse(words)
  _check_outputs(arguments)
  if arguments.write_predictions:
    files.check_path(arguments.write_predictions)
  elif arguments.logits:
    raise schema.ConfigError("--logits: no output file. Add --write-predictions=FILE")
  run = select_run(arguments)
  kinds = {choice.name for choice in run.evals.values()}
  if arguments.write_predictions and "accuracy" not in kinds:
    raise schema.ConfigError(
      f"--write-predictions: this run does not predict classes. Its evaluations are {', '.join(sorted(kinds))}. Leave "
      "it out; vit_jax.predict --features writes features"
    )
  for flag, folder in (("--report", arguments.report), ("--write-labels", arguments.write_labels)):
    if folder:
      outputs.check_output_location(folder, [run.data, run.evals, dict(arguments.data)], flag)
  again = "continues it" if arguments.write_labels else "starts it again"
  with runtime.join_processes(run.limits, again) as watch:
    runtime.check_equal_facts({"flags": cli.describe_flags(arguments)})
    with watch.phase("restore"):
      run = pin_run(run, arguments)
    runtime.check_equal_facts({"config": schema.to_plain(run)})
    experiment = build.build(run, jax.devices(), training=False)
    runtime.print_note(experiment.images.source.note)
    shared_data.check_same_images(experiment.splits)
    with watch.phase("restore"):
      state = load_state(experiment, arguments.workdir)
      if arguments.weights and jax.process_index() == 0:
        warn_of_normalisation(arguments.weights, run)
    if arguments.write_labels:
      with watch.phase("evaluation"):
        write_labels(experiment, state, arguments, watch)
      return
    with watch.phase("evaluation"):
      measured, intervals = evaluate(experiment, state, arguments.workdir or arguments.weights, watch.poll)
    if jax.process_index() == 0:
      for line in compare_accuracy(run, arguments.weights, measured) if arguments.weights else ():
        runtime.print_line(f"  {line}")
      write_outputs(measured, intervals, arguments.write_predictions, arguments.report)


def select_run(arguments: argparse.Namespace) -> BoundRun:
  """Returns the run that the flags select, with the evaluations that they select.

  Args:
    arguments: parsed flags.

  Raises:
    ConfigError: the flags contradict each other, or the workdir does not contain a run.
  """
  run = find_run(arguments)
  if arguments.workdir:
    run = prepare_run(run, arguments.workdir, arguments.image_size)
  return dataclasses.replace(run, evals=select_evaluations(run.evals, arguments.split, arguments.logits))


def pin_run(run: BoundRun, arguments: argparse.Namespace) -> BoundRun:
  """Returns the run with pinned weights: the first process finds the commits, and all processes use them.

  All processes must call this function. It adds the commits to `arguments.weights` and `arguments.overrides`.

  Args:
    run: the run that the flags select.
    arguments: parsed flags. They are changed in place.

  Raises:
    ConfigError: a process cannot find or download the weights. All processes raise the error.
  """
  if not arguments.weights or not pinning.find_addresses(run):
    return run
  arguments.weights = pinning.pin_flag("--weights", arguments.weights)
  pins = pinning.pin_together(run, {"init": {"from": arguments.weights}})
  arguments.overrides |= pins
  runtime.raise_together(pinning.download(pins))
  return select_run(arguments)


def find_run(arguments: argparse.Namespace) -> BoundRun:
  """Returns the run of a workdir, or the run of a config with weights.

  The run adopts settings of its weights. Weights on the Hub need a commit for this, see `pin_run`.

  Args:
    arguments: parsed flags.

  Raises:
    ConfigError: the flags contradict each other, or the workdir does not contain a run.
  """
  if bool(arguments.workdir) == bool(arguments.weights) or bool(arguments.weights) != bool(arguments.config):
    raise schema.ConfigError("give either --workdir=DIR of a run, or --weights=PATH and --config=FILE")
  overrides = arguments.overrides
  if arguments.weights:
    overrides |= {"init.from": arguments.weights, "init.head": "keep"}
    if arguments.image_size:
      overrides["data.image_size"] = str(arguments.image_size)
    resolved = config.resolve(flags.load_config(arguments.config, overrides))
    pinned = all(map(hub_files.is_pinned, pinning.find_addresses(resolved).values()))
    return build.complete(resolved, adopt=pinned)
  if overrides:
    raise schema.ConfigError(
      f"--config.{next(iter(overrides))}: --workdir uses the config of its run. Leave it out, or measure the run with "
      f"another config: {format_flag('weights', arguments.workdir)} --config=FILE"
    )
  try:
    run = stored.load_run(arguments.workdir)
  except schema.ConfigError as error:
    raise schema.ConfigError(f"--workdir: {error}") from error
  if run is None:
    raise schema.ConfigError(
      f"--workdir: {arguments.workdir} contains no run (no config.json). Train one, or measure a file of weights: "
      "--weights=FILE --config=CONFIG"
    )
  return run


def prepare_run(run: BoundRun, workdir: pathlib.Path, image_size: int | None) -> BoundRun:
  """Returns a run prepared for evaluation at an image size.

  Args:
    run: the run of a workdir.
    workdir: the workdir.
    image_size: size in pixels. At the size of the run, its checkpoint is restored unchanged. At another size, the
      checkpoint is imported like any other weights.
  """
  if image_size in (None, run.data.image_size):
    return dataclasses.replace(run, init=config.Init())
  resized = {
    name: choice.replace(data=stored.resize_preprocessing(choice.data, image_size)) if choice.data else choice
    for name, choice in run.evals.items()
  }
  init = config.Init(str(workdir), head="keep")
  return dataclasses.replace(run, data=stored.resize_preprocessing(run.data, image_size), evals=resized, init=init)


def warn_of_normalisation(weights: str, run: BoundRun) -> None:
  """Warns if a config normalises images differently from the weights, which reduces the accuracy.

  Args:
    weights: path of the weights.
    run: the run of the config.
  """
  wanted = stored.read_normalisation(weights, run.init.ema, run.init.prefix)
  if other := augment.find_normalisation_flags(wanted, run.data.normalisation):
    logging.warning("images for these weights are usually normalised differently from this config: %s", other)


def compare_accuracy(run: BoundRun, weights: str, measured: Mapping[str, Outcome]) -> list[str]:
  """Returns lines that compare measured accuracies on ImageNet's validation images with the published accuracy.

  Args:
    run: the run of the config.
    weights: path of the weights. Their name in a hub must be known from config.json, the folder or the file.
    measured: outcomes by prefix.
  """
  path = hub_files.resolve_weights(weights)
  if run.data.name != "imagenet2012" or importers.is_workdir(path):
    return []
  published = accuracies.find_accuracy(metadata.list_names(path))
  differences = published.list_differences(run.data.image_size, to_plain(run.data)["test_crop"]) if published else []
  return [
    f"{name}: {published.format_comparison(outcome.figures['top1'], int(outcome.figures['images']), differences)}"
    for name, choice in run.evals.items()
    if published and choice.name == "accuracy" and choice.data is None and choice.split == "validation"
    for outcome in [measured["" if name == "test" else f"{name}/"]]
  ]


def select_evaluations(evals: Mapping[str, BoundEval], split: str | None, logits: bool) -> dict[str, BoundEval]:
  """Selects the evaluations to run.

  Args:
    evals: evaluations of a run by name.
    split: if given, only the main evaluation of the run is selected. It measures this split under the name "test".
    logits: whether accuracy evaluations collect logits.
  """
  kept = dict(evals)
  if split:
    _, headline = run_evaluation.select_headline(evals)
    kept = {"test": headline.replace(split=split)}
  changes = {"logits": True} if logits else {}
  return {name: choice.replace(**changes) if choice.name == "accuracy" else choice for name, choice in kept.items()}


def load_state(experiment: Experiment, workdir: pathlib.Path | None) -> steps.State[jax.Array]:
  """Returns the weights to measure: those of `config.init`, or those of the newest checkpoint.

  Args:
    experiment: the run.
    workdir: directory of the run, or None for weights of a file.
  """
  if experiment.run.init.from_:
    return import_weights(experiment, bool(workdir))
  assert workdir is not None
  return restore_weights(experiment, workdir)


def restore_weights(experiment: Experiment, workdir: pathlib.Path) -> steps.State[jax.Array]:
  """Restores the newest readable checkpoint of the run in --workdir.

  Args:
    experiment: the run.
    workdir: its directory.

  Raises:
    ConfigError: the run has not saved a checkpoint. The message names the flag.
  """
  with schema.enter_key("--workdir"):
    return run_evaluation.restore_newest(experiment, workdir)


def import_weights(experiment: Experiment, own: bool) -> steps.State[jax.Array]:
  """Imports the weights from which the run starts, without an optimizer. The file must contain every parameter.

  Args:
    experiment: the run.
    own: whether the weights belong to the run itself, which is evaluated at another size. In this case the average of
      the weights is also imported if it exists.
  """
  shapes, init = experiment.state_shapes, experiment.run.init
  assert init.from_ is not None
  if own:
    run_evaluation.warn_of_other_data(
      experiment, checkpoints.read_description(paths.resolve_path(init.from_), forms.check_metadata) or {}
    )
  arrays, averages = loop.load_initial_weights(experiment, "--weights"), {}
  if shapes.ema and own:
    classes = experiment.images.source.classes
    fitted, _ = importers.load_fitted(
      init.from_,
      experiment.model.description,
      init.head,
      ema=True,
      classes=classes,
      task_shapes=experiment.task_shapes,
      task_constants=experiment.task.constants,
    )
    averages = surgery.stack(fitted, tuple(shapes.ema))
    _check_complete(averages, shapes.ema, init.from_)
  _check_complete(arrays, shapes.params, init.from_)
  params = {path: sharding.place_array(arrays[path], shape.sharding) for path, shape in shapes.params.items()}
  ema = {path: sharding.place_array(averages[path], shapes.ema[path].sharding) for path in averages}
  return steps.State(jnp.zeros((), jnp.int32), params, ema, optimizer=None)


def _check_complete(arrays: Mapping[str, object], shapes: Mapping[str, object], path: str) -> None:
  """Raises ConfigError if weights lack a parameter of the run."""
  if missing := sorted(shapes.keys() - arrays.keys()):
    raise schema.ConfigError(
      f"{path}: lacks {format_names(missing)} in the form that the run needs. Use weights of a run with the same task"
    )


def _check_outputs(arguments: argparse.Namespace) -> None:
  """Raises ConfigError for output directories that are files and for output flags that cannot be combined."""
  if arguments.report and arguments.report.exists() and not arguments.report.is_dir():
    raise schema.ConfigError(f"--report: {arguments.report} is a file. Name a folder")
  if not arguments.write_labels:
    if other := ["--labels"] * bool(arguments.labels) + [f"--data.{key}" for key in arguments.data]:
      raise schema.ConfigError(
        f"{other[0]}: it has no effect without --write-labels=FOLDER. Add that flag, or leave it out"
      )
    return
  if arguments.write_predictions or arguments.report or arguments.logits:
    raise schema.ConfigError(
      "--write-labels does not measure metrics. Leave out --write-predictions, --logits and --report"
    )
  if arguments.write_labels.exists() and not arguments.write_labels.is_dir():
    raise schema.ConfigError(f"--write-labels: {arguments.write_labels} is a file. Name a folder")
  if not arguments.split:
    raise schema.ConfigError("--split: missing; --write-labels labels the images of a split, such as 'train[100:]'")


def write_labels(
  experiment: Experiment, state: steps.State[jax.Array], arguments: argparse.Namespace, watch: runtime.Watch
) -> None:
  """Writes labels for the images that the flags select, computed with the averaged weights if there are any.

  Args:
    experiment: the run.
    state: weights of the run.
    arguments: parsed flags.
    watch: the watch of the process.

  Raises:
    ConfigError: the weights lack a head, the dataset is not named, or an image cannot be decoded.
  """
  run, data = experiment.run, None
  if not experiment.model.description.classes:
    raise schema.ConfigError("--write-labels: the weights have no head, so they cannot label classes")
  if arguments.data:
    if "name" not in arguments.data:
      raise schema.ConfigError("--data.name: missing; it names the dataset, as in configs")
    with schema.enter_key("data"):
      choice = schema.convert(flags.parse_choice(arguments.data, "data"), schema.Choice)
    data = evals.bind_evaluation(schema.Choice("accuracy", {"data": choice}), evals.EVALS, run.data.preparation).data
  splits = shared_data.SplitRecorder(catalog.open_split)
  subject = evals.EvalContext(experiment.model, experiment.mesh, run.data, run.batch, splits, experiment.task.predict)
  source = open_source(subject, data, arguments.split, "split")
  shared_data.check_same_images(splits.opened)
  own, folder = subject.choose_data(data), arguments.write_labels
  origin = labelling.describe_origin(own)
  params = outcomes.gather_average(state.params, state.ema) if state.ema else state.params
  classes, soft = experiment.images.source.classes, arguments.labels != "hard"
  with runtime.claim_workdir(folder, watch.leave, "another folder"):
    try:
      plan = labelling.create_plan(subject, data, origin, source, classes, params, soft)
      made = labelling.label_images(subject, data, source, params, plan, folder, watch.poll)
    except ImageError as error:
      raise schema.ConfigError(str(error)) from error
  runtime.print_line(
    f"{folder}: labels of {schema.format_amount(len(source), 'image')} of {own.name}, {source.split!r}. New labels: "
    f"{made:,}"
  )


def evaluate(
  experiment: Experiment, state: steps.State[jax.Array], name: str | None, poll: Callable[[], None]
) -> tuple[dict[str, Outcome], dict[str, Intervals]]:
  """Measures the weights of a state and prints the figures.

  Args:
    experiment: the run.
    state: its weights.
    name: title of the table.
    poll: called after each batch. It may raise an exception to stop.

  Returns:
    The result of `run_evaluation.measure_state`.
  """
  measures = {name: each.measure for name, each in experiment.evals.items()}
  measured, intervals = run_evaluation.measure_state(measures, state, poll)
  runtime.print_line(f"{name}, step {int(state.step)} of {experiment.total}" if state.step else str(name))
  figures = outcomes.collect_figures(measured)
  cli.format_figures(figures, name_figures(intervals))
  for line in run_evaluation.describe_intervals(measured, intervals):
    runtime.print_line(f"  {line}")
  return measured, intervals


def name_figures(values: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """Converts values that are grouped by prefix, such as intervals, to {name in result.json: value}."""
  return {prefix + figure: value for prefix, these in values.items() for figure, value in these.items()}


def write_outputs(
  measured: dict[str, Outcome],
  intervals: dict[str, Intervals],
  predictions_file: pathlib.Path | None,
  folder: pathlib.Path | None,
) -> None:
  """Writes the requested files.

  If several splits or weights were measured, file names contain the prefix, such as FILE-val-ema.csv.

  Args:
    measured: outcomes by prefix.
    intervals: intervals by prefix.
    predictions_file: file for a row per image, or None.
    folder: directory for the report, or None.
  """
  if folder:
    folder.mkdir(parents=True, exist_ok=True)
  for prefix in intervals:
    source, predictions, _ = get_accuracy_details(measured[prefix])
    mark = "-" + prefix.strip("/_").replace("/", "-") if prefix and len(intervals) > 1 else ""
    if predictions_file:
      path = predictions_file.with_stem(predictions_file.stem + mark)
      metrics.write_predictions(
        predictions, [source.display_name(i) for i in predictions.position.tolist()], path, source.classes
      )
      runtime.print_line(f"  predictions {path}")
    if folder and source.labels == 1:
      from vit_jax.evals import plots

      matrix = metrics.compute_confusion(predictions, len(source.classes))
      metrics.write_confusion(matrix, source.classes, folder / f"confusion{mark}.csv")
      plots.write_confusion_png(matrix, source.classes, folder / f"confusion{mark}.png")
  if folder:
    report = {
      "figures": outcomes.collect_figures(measured),
      "intervals": name_figures(intervals),
      "interval_methods": name_figures(
        {
          prefix: run_evaluation.list_methods(get_accuracy_details(measured[prefix]), ends)
          for prefix, ends in intervals.items()
        }
      ),
      "classes": {prefix: list(get_accuracy_details(measured[prefix]).source.classes) for prefix in intervals},
    }
    files.write_text(folder / "figures.json", json.dumps(report, indent=2) + "\n")
    runtime.print_line(f"  report      {folder}")


if __name__ == "__main__":
  cli.run_verb(main)
