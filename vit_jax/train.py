"""Trains a model: python -m vit_jax.train --config=configs/digits.py --workdir=runs/digits [--config.optim.lr=1e-3]

The same command continues a run that was stopped or killed, with bit-identical results. `runtime.EXITS` lists the exit
codes: 0 finished, 2 user error, 42 stopped on request (run the command again), 44 loss not finite, ...
"""

import contextlib
import fnmatch
import json
import pathlib
import shlex
import sys

import jax

from vit_jax import (
  build,
  checkpoints,
  cli,
  clock,
  config,
  extensions,
  files,
  flags,
  hardware,
  identity,
  loop,
  paths,
  renames,
  runtime,
  schema,
  selection,
  trees,
)
from vit_jax.corpora import checking
from vit_jax.data import catalog, outputs, sources
from vit_jax.importers import adoption
from vit_jax.runtime import say

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


def main() -> None:
  """Reads the flags, checks everything and trains."""
  parser = cli.Parser("train", __doc__)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument("--workdir", required=True, type=cli.workdir, help="directory of the run; one run per directory")
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
  arguments = parser.parse()
  workdir, overrides = arguments.workdir, arguments.overrides

  run = build.complete(config.resolve(flags.load(arguments.config, overrides)))
  own = build.complete(config.resolve(flags.load(arguments.config, overrides)), adopt=False)
  changes = changes_of(flags.load(arguments.config), own, overrides)
  if arguments.profile < 0:
    raise schema.ConfigError(f"--profile: {arguments.profile} is not a number of steps")
  if not checkpoints.exist(workdir):
    outputs.check(workdir, run, "--workdir")

  with runtime.joined(run.limits) as watch:  # from here on SIGTERM is handled
    runtime.agree(runtime.obstacle(workdir) if runtime.process() == 0 else None)
    run = as_begun(arguments.config, overrides, run, workdir)
    parts = build.build(run, jax.devices())
    runtime.note(parts.images.source.note)
    runtime.agree(bad_images(run, parts.images.source) if runtime.process() == 0 else None)
    runtime.compare({"config": schema.plain(run), "workdir": str(workdir)} | identity.alike(parts.identity))
    # A checkpoint contains the modification times that the first process saw. Copies on other hosts may have others.
    runtime.agree(objection(workdir, parts, arguments.accept_data) if runtime.process() == 0 else None)
    with watch.phase("restore"):
      has_state = runtime.gather(json.dumps(checkpoints.exist(workdir)), "workdir")[0] == "true"
      weights = None if has_state else loop.starting_weights(parts)
    with runtime.claim(workdir, watch.leave):
      before = files.read_json(workdir / "result.json")  # a damaged file is an error before anything is written
      if runtime.process() == 0:
        note_recipe(workdir, arguments.config, changes, parts.identity["extensions"])
      say(f"{arguments.config}, changed by flags:" if changes else f"{arguments.config}, unchanged")
      for line in changes:
        say(f"  {line}")
      for line in [] if has_state or not run.init.from_ else adoption.notes(run.init.from_, own, run):
        say(f"  {line}")
      if arguments.parameters:
        say(cli.parameters(parts.state_shapes.params, parts.model.statistics))
      pictures = {} if has_state or runtime.process() else first_batch(run, parts.images.source)
      result = loop.train(parts, workdir, arguments.profile, watch, weights, clock.program_began(), pictures)
  cli.table(result)
  if chosen := selection.sentence(result.get("selection", {})):
    say(f"  {chosen}")
  for line in clock.summary(result["train_seconds"], result["images_per_second"]):
    say(line)
  for line in clock.lines(result["goodput"]) if "goodput" in result else ():  # older results have no goodput
    say(line)
  say(f"\n  figures   {workdir / 'result.json'}")
  say(f"  curves    tensorboard {schema.texts.flag('logdir', workdir / 'tensorboard')}")
  if jax.process_index() == 0 and not arguments.no_report:
    from vit_jax.reports import report  # drawing libraries are slow to import

    if result != before or not (workdir / report.NAME).exists():
      report.make_at_end(workdir)


def first_batch(run: config.Run, source: sources.Source) -> dict[str, bytes]:
  """Draws the first images that the model sees, for TensorBoard.

  Args:
    run: a completed run.
    source: the training images.

  Returns:
    Maps names to bytes of PNG files.
  """
  from vit_jax import preview  # drawing libraries are slow to import

  return {"first batch": preview.picture(run, source)}


def note_recipe(workdir: pathlib.Path, file: str, changes: list[str], used: list[dict]) -> None:
  """Writes recipe.json.

  The file contains the config file, its docstring, changes by flags, the command, the processor, and the extensions.

  Args:
    workdir: the workdir.
    file: the config file.
    changes: result of `changes_of`.
    used: record of the extensions.
  """
  command = shlex.join(["python", "-m", "vit_jax.train", *sys.argv[1:]])
  about = {"config": file, "about": flags.module(file)[0].__doc__, "changes": changes, "command": command}
  about |= {"processor": hardware.processor(), "extensions": used}
  if files.read_json(workdir / identity.RECIPE) != about:
    files.write_text(workdir / identity.RECIPE, json.dumps(about, indent=2) + "\n")


def changes_of(file, run: config.Run, overrides: dict[str, str]) -> list[str]:
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
  return trees.diff(schema.plain(before), schema.plain(run))


def as_begun(file: str, overrides: dict[str, str], run: config.Run, workdir: pathlib.Path) -> config.Run:
  """Returns the run with settings of the run in its workdir, for keys that the config does not set.

  This affects keys that did not exist or had another default when the run in the workdir started. It also affects
  settings that this run adopted from its initial weights. A restart therefore needs neither the weight file nor the
  same config file.

  Args:
    file: the config file.
    overrides: the flags.
    run: the run that the file and the flags define.
    workdir: the workdir, which the first process reads.
  """
  stored = {}
  if runtime.process() == 0 and workdir.is_dir():
    stored = identity.stored_config(workdir, checkpoints.about(workdir, identity.check) or {}) or {}
  before = {"older": renames.kept(stored), "adopted": adoption.recorded(renames.run(stored))}
  before = json.loads(runtime.gather(json.dumps(before), "older")[0])
  older, editable = before["older"], flags.load(file, overrides)
  whole = schema.plain(run)  # has each key that its choices accept, so that keys of other choices are ignored
  missing = [
    key
    for key in older
    if flags.has(whole, key) and flags.has(editable, key.rpartition(".")[0]) and not flags.has(editable, key)
  ]
  older = {key: older[key] for key in missing}
  if not older and not before["adopted"]:
    return run
  for key, text in older.items():
    say(f"config.{key}={text}, as in the run in {workdir}, which was started with other defaults")
  resolved = config.resolve(flags.load(file, overrides | older))
  if before["adopted"]:
    return build.complete(adoption.with_settings(resolved, before["adopted"]), adopt=False)
  return build.complete(resolved)


def bad_images(run: config.Run, source: sources.Source) -> str | None:
  """Returns the reason why bad images prevent a run from starting, or None.

  Only image folders that are small enough to decode completely are checked.

  Args:
    run: a completed run.
    source: the training images.
  """
  if run.data.name != "folder" or source.remote:
    return None
  own = [c.args["split"] for c in run.evals.values() if c.name == "accuracy" and c.args["data"] is None]
  splits = [source, *(catalog.open_split(run.data, split) for split in dict.fromkeys(own))]
  return checking.objection(run.data, splits, paths.expand(pathlib.Path(run.data.args["path"])))


def may_change(key: str) -> bool:
  """Returns whether a restart in the same workdir may change this key of the config."""
  return any(fnmatch.fnmatchcase(key, each) or key.startswith(f"{each}.") for each in MAY_CHANGE)


def objection(workdir: pathlib.Path, parts: build.Parts, accept: bool = False) -> str | None:
  """Returns the reason why a run cannot use a workdir, or None if it can.

  A workdir cannot be used if its run has another config or other data. The newest checkpoint contains this information.
  The file config.json is used if a checkpoint does not exist or is too old to contain it.

  Args:
    workdir: the workdir.
    parts: the run.
    accept: whether to accept changed files if the images are the same.
  """
  if workdir.exists() and not workdir.is_dir():
    return f"--workdir: {workdir} is a file. Name a directory"
  about = checkpoints.about(workdir, identity.check) or {}
  before = identity.stored_config(workdir, about)
  if before is None:
    if checkpoints.exist(workdir):
      return f"--workdir: {workdir} contains checkpoints without metadata, and no config.json. Use another directory"
    return None
  with contextlib.suppress(schema.ConfigError):  # keys that were added since then have their defaults
    extensions.restore_of(workdir, about)
    before = schema.plain(build.complete(config.resolve(renames.run(before)), adopt=False))
  now = schema.plain(parts.run)
  differences = [line for line in trees.diff(before, now) if not may_change(line.partition(":")[0])]
  if differences:
    listed = "\n  ".join(differences)
    return f"--workdir: {workdir} contains a run with another config. Use another --workdir, or undo:\n  {listed}"
  if "identity" not in about:
    return None
  before = about["identity"]["data"]
  splits = identity.other_splits(before, parts.images.source)
  problem = identity.objection(before, parts.identity["data"], accept, splits)
  problem = problem or identity.other_order(about["order"], parts.images)
  return problem and f"--workdir: {workdir} contains a run with {problem}"


if __name__ == "__main__":
  cli.main(main)
