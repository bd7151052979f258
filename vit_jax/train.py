"""Trains a model: python -m vit_jax.train --config=configs/digits.py --workdir=runs/digits [--config.optim.lr=1e-3]

The same command continues a run that was stopped or killed, to the same result bit for bit. Exit codes are those of
`runtime.EXITS`: 0 finished, 2 a mistake to mend, 42 stopped as asked (run it again), 44 loss not finite, ...
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
from vit_jax.data import catalog, sources
from vit_jax.importers import adoption
from vit_jax.runtime import say

# What a restart in the same workdir may change.
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
  """Reads flags, checks everything, trains."""
  parser = cli.Parser("train", __doc__)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument("--workdir", required=True, type=cli.workdir, help="where the run lives; one run each")
  parser.add_argument("--accept-data", action="store_true", help="go on with the same images in files that changed")
  parser.add_argument("--parameters", action="store_true", help=cli.PARAMETERS)
  parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="trace so many steps for TensorBoard")
  parser.add_argument("--no-report", action="store_true", help="make no page to look at when all is done")
  arguments = parser.parse()
  workdir, overrides = arguments.workdir, arguments.overrides

  run = build.complete(config.resolve(flags.load(arguments.config, overrides)))
  own = build.complete(config.resolve(flags.load(arguments.config, overrides)), adopt=False)
  changes = changes_of(flags.load(arguments.config), own, overrides)
  if arguments.profile < 0:
    raise schema.ConfigError(f"--profile: {arguments.profile} is not a number of steps")

  with runtime.joined(run.limits) as watch:  # from here on a SIGTERM is not lost
    runtime.agree(runtime.obstacle(workdir) if runtime.process() == 0 else None)
    run = as_begun(arguments.config, overrides, run, workdir)
    parts = build.build(run, jax.devices())
    runtime.note(parts.images.source.note)
    runtime.agree(bad_images(run, parts.images.source) if runtime.process() == 0 else None)
    runtime.compare({"config": schema.plain(run), "workdir": str(workdir)} | identity.alike(parts.identity))
    # A checkpoint has the times of change that the first process saw; copies on other hosts may have others.
    runtime.agree(objection(workdir, parts, arguments.accept_data) if runtime.process() == 0 else None)
    with watch.phase("restore"):
      has_state = runtime.gather(json.dumps(checkpoints.exist(workdir)), "workdir")[0] == "true"
      weights = None if has_state else loop.starting_weights(parts)
    with runtime.claim(workdir, watch.leave):
      if runtime.process() == 0:
        note_recipe(workdir, arguments.config, changes, parts.identity["extensions"])
      before = files.read_json(workdir / "result.json")
      say(f"{arguments.config}, changed by flags:" if changes else f"{arguments.config}, as it stands")
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
  for line in clock.lines(result["goodput"]) if "goodput" in result else ():  # older results have none
    say(line)
  say(f"\n  figures   {workdir / 'result.json'}")
  say(f"  curves    tensorboard {schema.texts.flag('logdir', workdir / 'tensorboard')}")
  if jax.process_index() == 0 and not arguments.no_report:
    from vit_jax.reports import report  # what draws takes its time

    if result != before or not (workdir / report.NAME).exists():
      report.make_at_end(workdir)


def first_batch(run: config.Run, source: sources.Source) -> dict[str, bytes]:
  """What the model sees first, for TensorBoard: PNGs by name."""
  from vit_jax import preview  # what draws takes its time

  return {"first batch": preview.picture(run, source)}


def note_recipe(workdir: pathlib.Path, file: str, changes: list[str], used: list[dict]) -> None:
  """Writes the config file, its docstring, what flags changed, the command, the processor, and the extensions used."""
  command = shlex.join(["python", "-m", "vit_jax.train", *sys.argv[1:]])
  about = {"config": file, "about": flags.module(file)[0].__doc__, "changes": changes, "command": command}
  about |= {"processor": hardware.processor(), "extensions": used}
  if files.read_json(workdir / identity.RECIPE) != about:
    files.write_text(workdir / identity.RECIPE, json.dumps(about, indent=2) + "\n")


def changes_of(file, run: config.Run, overrides: dict[str, str]) -> list[str]:
  """What the flags made of the file's own run; of a file that needs flags to be a run, the flags."""
  try:
    before = build.complete(config.resolve(file), adopt=False)
  except schema.ConfigError:
    return [f"{key}: {value}" for key, value in overrides.items()]
  return trees.diff(schema.plain(before), schema.plain(run))


def as_begun(file: str, overrides: dict[str, str], run: config.Run, workdir: pathlib.Path) -> config.Run:
  """Returns the run with what the run in its workdir did, for keys that the config does not set.

  These are keys that did not exist or had another default when that run started, and settings that it adopted from
  the weights that it started from. So a restart needs neither the file of weights nor the same file.

  Args:
    file: of the config.
    overrides: flags.
    run: that both make.
    workdir: the files of the first process count.
  """
  stored = {}
  if runtime.process() == 0 and workdir.is_dir():
    stored = identity.stored_config(workdir, checkpoints.about(workdir, identity.check) or {}) or {}
  before = {"older": renames.kept(stored), "adopted": adoption.recorded(renames.run(stored))}
  before = json.loads(runtime.gather(json.dumps(before), "older")[0])
  older, editable = before["older"], flags.load(file, overrides)
  whole = schema.plain(run)  # has each key that its choices take, so that those of other choices are left out
  missing = [
    key
    for key in older
    if flags.has(whole, key) and flags.has(editable, key.rpartition(".")[0]) and not flags.has(editable, key)
  ]
  older = {key: older[key] for key in missing}
  if not older and not before["adopted"]:
    return run
  for key, text in older.items():
    say(f"config.{key}={text}, as in the run that {workdir} holds, which was started with other defaults")
  resolved = config.resolve(flags.load(file, overrides | older))
  if before["adopted"]:
    return build.complete(adoption.with_settings(resolved, before["adopted"]), adopt=False)
  return build.complete(resolved)


def bad_images(run: config.Run, source: sources.Source) -> str | None:
  """All bad images of a folder that is small enough to look at all of them, if they are reason not to begin."""
  if run.data.name != "folder" or source.remote:
    return None
  own = [c.args["split"] for c in run.evals.values() if c.name == "accuracy" and c.args["data"] is None]
  splits = [source, *(catalog.open_split(run.data, split) for split in dict.fromkeys(own))]
  return checking.objection(run.data, splits, paths.expand(pathlib.Path(run.data.args["path"])))


def may_change(key: str) -> bool:
  """Whether a restart in the same workdir may change this key of the config."""
  return any(fnmatch.fnmatchcase(key, each) or key.startswith(f"{each}.") for each in MAY_CHANGE)


def objection(workdir: pathlib.Path, parts: build.Parts, accept: bool = False) -> str | None:
  """Why a run may not use the workdir: it holds one with another config, or on other data. None if it may.

  The newest checkpoint says what it is of; config.json counts where there is none, or one from before it said so.
  `accept`: the data may be other files with the same images.
  """
  if workdir.exists() and not workdir.is_dir():
    return f"--workdir: {workdir} is a file; name a directory"
  about = checkpoints.about(workdir, identity.check) or {}
  before = identity.stored_config(workdir, about)
  if before is None:
    if checkpoints.exist(workdir):
      return (
        f"--workdir: {workdir} holds checkpoints that do not say of what, and no config.json; take another directory"
      )
    return None
  with contextlib.suppress(schema.ConfigError):  # keys that are new since then have their defaults
    extensions.restore_of(workdir, about)
    before = schema.plain(build.complete(config.resolve(renames.run(before)), adopt=False))
  now = schema.plain(parts.run)
  differences = [line for line in trees.diff(before, now) if not may_change(line.partition(":")[0])]
  if differences:
    listed = "\n  ".join(differences)
    return f"--workdir: {workdir} holds a run with another config; take another --workdir, or undo:\n  {listed}"
  if "identity" not in about:
    return None
  problem = identity.objection(about["identity"]["data"], parts.identity["data"], accept)
  problem = problem or identity.other_order(about["order"], parts.images)
  return problem and f"--workdir: {workdir} holds a run on {problem}"


if __name__ == "__main__":
  cli.main(main)
