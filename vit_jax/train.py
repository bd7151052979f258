"""Trains a model: python -m vit_jax.train --config=digits --workdir=runs/digits [--config.optim.lr=1e-3]

The same command continues a run that was stopped or killed, with bit-identical results. `runtime.EXITS` lists the exit
codes: 0 finished, 2 user error, 42 stopped on request (run the command again), 44 loss not finite, ...
"""

import contextlib
import fnmatch
import functools
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from vit_jax import checkpoints, cli, config, runtime, schema, trees
from vit_jax.checkpoints import forms, provenance
from vit_jax.config import extensions, flags, migrations
from vit_jax.corpora import check
from vit_jax.data import catalog, outputs, shared_data, sources
from vit_jax.evals import selection
from vit_jax.importers import adoption, pinning
from vit_jax.parallel import hardware
from vit_jax.reports import live_tracking, trackers
from vit_jax.runtime import print_line
from vit_jax.storage import files, paths
from vit_jax.training import build, goodput, loop
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment

# Keys that a restart in the same workdir may change.
MAY_CHANGE = (
  "total",
  "log",
  "limits",
  "data.on_error",
  "data.max_bad",
  "data.threads",
  "data.workers",
  "data.prefetch",
  "evals.*.data.on_error",
  "evals.*.data.max_bad",
)


def make_parser() -> cli.Parser:
  """Returns the parser of the command's flags."""
  parser = cli.Parser("train", __doc__)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument(
    "--workdir", required=True, type=cli.parse_workdir, help="directory of the run; one run per directory"
  )
  parser.add_argument(
    "--accept-data",
    action="store_true",
    help="resume although data files changed on disk, provided the images are the same",
  )
  parser.add_argument("--parameters", action="store_true", help=cli.PARAMETERS)
  parser.add_argument(
    "--profile", type=int, default=0, metavar="STEPS", help="number of steps to profile for TensorBoard"
  )
  parser.add_argument("--no-report", action="store_true", help="do not write report.html at the end")
  return parser


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, checks everything and trains.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  words = sys.argv[1:] if words is None else words
  arguments = make_parser().parse(words)
  workdir, overrides = arguments.workdir, arguments.overrides

  resolved = config.resolve(flags.load_config(arguments.config, overrides))
  # Settings of weights on the Hub are adopted below, when all processes know the commit.
  run = build.complete(resolved, adopt=not pinning.find_addresses(resolved))
  own = build.complete(config.resolve(flags.load_config(arguments.config, overrides)), adopt=False)
  changes = list_config_changes(flags.load_config(arguments.config), own, overrides)
  if arguments.profile < 0:
    raise schema.ConfigError(f"--profile: {arguments.profile} is not a number of steps")
  if not checkpoints.has_checkpoint(workdir):
    outputs.check_output_location(workdir, run, "--workdir")
  if run.log.tracker:
    with schema.enter_key("config.log.tracker"):
      trackers.check_installed(run.log.tracker)

  with runtime.join_processes(run.limits) as watch:  # from here on SIGTERM is handled
    runtime.raise_together(runtime.check_creatable(workdir) if runtime.process_index() == 0 else None)
    with watch.phase("restore"):
      run = apply_stored_settings(arguments.config, overrides, run, workdir)
    experiment = build.build(run, jax.devices())
    runtime.print_note(experiment.images.source.note)
    runtime.raise_together(find_bad_images(run, experiment.images.source) if runtime.process_index() == 0 else None)
    runtime.check_equal_facts(
      {"config": schema.to_plain(run), "workdir": str(workdir)} | provenance.select_shared_values(experiment.identity)
    )
    shared_data.check_same_images(experiment.splits)
    # A checkpoint contains the modification times that the first process saw. Copies on other hosts may have others.
    runtime.raise_together(
      find_workdir_conflict(workdir, experiment, arguments.accept_data) if runtime.process_index() == 0 else None
    )
    with watch.phase("restore"):
      has_state = runtime.gather_texts(json.dumps(checkpoints.has_checkpoint(workdir)), "workdir")[0] == "true"
      weights = None if has_state else loop.load_initial_weights(experiment)
    with runtime.claim_workdir(workdir, watch.leave):
      before = files.read_json(workdir / "result.json")  # a damaged file is an error before anything is written
      if runtime.process_index() == 0:
        write_recipe(workdir, arguments.config, changes, words, experiment.identity["extensions"])
      print_line(f"{arguments.config}, changed by flags:" if changes else f"{arguments.config}, unchanged")
      for line in changes:
        print_line(f"  {line}")
      for line in [] if has_state or not run.init.from_ else adoption.describe_settings(run.init.from_, own, run):
        print_line(f"  {line}")
      if arguments.parameters:
        print_line(cli.format_parameters(experiment.state_shapes.params, experiment.model.statistics))
      draw = functools.partial(draw_first_batch, run, experiment.images.source) if run.log.images else None
      start_time = goodput.get_program_start()
      tracking = live_tracking.LiveTracking(workdir, None if runtime.process_index() else run.log.tracker)
      with tracking:
        result = loop.train(experiment, workdir, arguments.profile, watch, weights, start_time, draw)
  print_result(result)
  print_line(f"\n  figures   {workdir / 'result.json'}")
  print_line(f"  curves    tensorboard {schema.texts.format_flag('logdir', workdir / 'tensorboard')}")
  print_line(f"  next      {suggest_next_command(run, workdir)}")
  if jax.process_index() == 0 and not arguments.no_report:
    from vit_jax.reports import report  # drawing libraries are slow to import

    if result != before or not (workdir / report.NAME).exists():
      report.make_final_report(workdir)
  tracking.finish()


def print_result(result: Mapping[str, Any]) -> None:
  """Prints the figures of result.json, the comparison with a published curve, and the account of the time."""
  cli.format_figures(result)
  if compared := result.get("certificate", {}).get("summary"):
    print_line(f"  {compared}")
  if chosen := selection.format_selection(result.get("selection", {})):
    print_line(f"  {chosen}")
  for line in goodput.format_summary(result["train_seconds"], result["images_per_second"]):
    print_line(line)
  for line in goodput.format_goodput(result["goodput"]) if "goodput" in result else ():  # older results have no goodput
    print_line(line)


def suggest_next_command(run: BoundRun, workdir: pathlib.Path) -> str:
  """Returns a command that uses the weights of a run.

  The command predicts classes, or probes the features of a model without classes.

  Args:
    run: a completed run.
    workdir: the workdir.
  """
  weights = schema.texts.format_flag("weights", workdir)
  if run.learns_classes:
    return f"python -m vit_jax.predict {weights} PHOTO"
  size = schema.texts.format_flag("config.image_size", run.data.image_size)
  return (
    f"python -m vit_jax.fewshot --config=probes:knn,folder {size} --config.evals.folder.data.path=LABELLED {weights}"
  )


def draw_first_batch(run: BoundRun, source: sources.Source) -> dict[str, bytes]:
  """Draws the first images that the model sees, for TensorBoard.

  Args:
    run: a completed run.
    source: the training images.

  Returns:
    Maps names to bytes of PNG files.
  """
  from vit_jax.reports import preview  # drawing libraries are slow to import

  return {"first batch": preview.draw_batch(run, source)}


def write_recipe(
  workdir: pathlib.Path, file: str, changes: list[str], words: Sequence[str], used: list[dict[str, Any]]
) -> None:
  """Writes recipe.json.

  The file contains the config file, its docstring, changes by flags, the command, the processor, and the extensions.

  Args:
    workdir: the workdir.
    file: the config file.
    changes: result of `list_config_changes`.
    words: arguments of the command.
    used: record of the extensions.
  """
  command = shlex.join(["python", "-m", "vit_jax.train", *words])
  about: dict[str, Any] = {
    "config": file,
    "about": flags.load_module(file)[0].__doc__,
    "changes": changes,
    "command": command,
  }
  about |= {"processor": hardware.get_cpu_name(), "extensions": used}
  if files.read_json(workdir / provenance.RECIPE) != about:
    files.write_text(workdir / provenance.RECIPE, json.dumps(about, indent=2) + "\n")


def list_config_changes(file: Mapping[str, object], run: BoundRun, overrides: dict[str, str]) -> list[str]:
  """Returns the differences between a run and the run of its config file without flags, one line for each.

  If the file is not complete without flags, the flags are returned.

  Args:
    file: editable config of the file.
    run: the run with flags.
    overrides: the flags.
  """
  try:
    before = build.complete(config.resolve(file), adopt=False)
  except schema.ConfigError:
    return [f"{key}: {value}" for key, value in overrides.items()]
  return trees.list_differences(schema.to_plain(before), schema.to_plain(run))


def apply_stored_settings(file: str, overrides: dict[str, str], run: BoundRun, workdir: pathlib.Path) -> BoundRun:
  """Returns the run with settings of the run in its workdir, for keys that the config does not set.

  This affects keys that did not exist or had another default when the run in the workdir started. It also affects
  settings that this run adopted from its initial weights. A restart therefore needs neither the weight file nor the
  same config file. Addresses on the Hugging Face Hub get the commit of the run, or their commit of today for a new run.

  Args:
    file: the config file.
    overrides: the flags.
    run: the run that the file and the flags define.
    workdir: the workdir, which the first process reads.

  Raises:
    ConfigError: weights on the Hub cannot be found or downloaded, or the processes name different weights. Every
      process raises the error.
  """
  stored = {}
  if runtime.process_index() == 0 and workdir.is_dir():
    stored = (
      provenance.read_stored_config(workdir, checkpoints.read_description(workdir, forms.check_metadata) or {}) or {}
    )
  pins = pinning.pin_together(run, stored)
  before = {
    "older": migrations.list_former_defaults(stored),
    "adopted": adoption.find_recorded_settings(migrations.migrate_run(stored)),
  }
  before = json.loads(runtime.gather_texts(json.dumps(before), "older")[0])
  older, editable = before["older"], flags.load_config(file, overrides)
  whole = schema.to_plain(run)  # has each key that its choices accept, so that keys of other choices are ignored
  missing = [
    key
    for key in older
    if flags.has_key(whole, key)
    and flags.has_key(editable, key.rpartition(".")[0])
    and not flags.has_key(editable, key)
  ]
  older = {key: older[key] for key in missing}
  if not older and not before["adopted"] and not pins:
    return run
  for key, text in older.items():
    print_line(f"config.{key}={text}, as in the run in {workdir}, which was started with other defaults")
  resolved = config.resolve(flags.load_config(file, overrides | older | pins))
  # A restart reads its checkpoint. Only the weights of teachers are needed again.
  needed = (lambda key: key.startswith("task.")) if before["adopted"] else (lambda key: True)
  runtime.raise_together(pinning.download(pins, needed))
  if before["adopted"]:
    return build.complete(adoption.add_settings(resolved, before["adopted"]), adopt=False)
  return build.complete(resolved)


def find_bad_images(run: BoundRun, source: sources.Source) -> str | None:
  """Returns the reason why bad images prevent a run from starting, or None.

  Only image folders that are small enough to decode completely are checked.

  Args:
    run: a completed run.
    source: the training images.
  """
  if run.data.name != "folder" or source.remote:
    return None
  own = [choice.split for choice in run.evals.values() if choice.name == "accuracy" and choice.data is None]
  assert run.data.path is not None
  splits = [source, *(catalog.open_split(run.data, split) for split in dict.fromkeys(own) if split)]
  return check.check_folder_images(run.data, splits, paths.expand_home(pathlib.Path(run.data.path)))


def may_change(key: str) -> bool:
  """Returns whether a restart in the same workdir may change this key of the config."""
  return any(fnmatch.fnmatchcase(key, each) or key.startswith(f"{each}.") for each in MAY_CHANGE)


def find_workdir_conflict(workdir: pathlib.Path, experiment: Experiment, accept: bool = False) -> str | None:
  """Returns the reason why a run cannot use a workdir, or None if it can.

  A workdir cannot be used if its run has another config or other data. The newest checkpoint contains this information.
  The file config.json is used if a checkpoint does not exist or is too old to contain it.

  Args:
    workdir: the workdir.
    experiment: the run.
    accept: whether to accept changed files if the images are the same.
  """
  if workdir.exists() and not workdir.is_dir():
    return f"--workdir: {workdir} is a file. Name a directory"
  about = checkpoints.read_description(workdir, forms.check_metadata) or {}
  before = provenance.read_stored_config(workdir, about)
  if before is None:
    if checkpoints.has_checkpoint(workdir):
      return f"--workdir: {workdir} contains checkpoints without metadata, and no config.json. Use another directory"
    return None
  with contextlib.suppress(schema.ConfigError):  # keys that were added since then have their defaults
    extensions.restore_for_workdir(workdir, about)
    before = schema.to_plain(build.complete(config.resolve(migrations.migrate_run(before)), adopt=False))
  now = schema.to_plain(experiment.run)
  differences = [line for line in trees.list_differences(before, now) if not may_change(line.partition(":")[0])]
  if differences:
    listed = "\n  ".join(differences)
    return f"--workdir: {workdir} contains a run with another config. Use another --workdir, or undo:\n  {listed}"
  if "identity" not in about:
    return None
  before = about["identity"]["data"]
  splits = provenance.compare_splits(before, experiment.images.source)
  problem = provenance.find_data_conflict(before, experiment.identity["data"], accept, splits)
  problem = problem or provenance.find_order_conflict(about["order"], experiment.images)
  return problem and f"--workdir: {workdir} contains a run with {problem}"


if __name__ == "__main__":
  cli.run_verb(main)
