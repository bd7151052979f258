"""Trains a model: python -m vit_jax.train --config=configs/digits.py --workdir=runs/digits [--config.optim.lr=1e-3]

The same command continues a run that was stopped or killed, to the same result bit for bit. Exit codes: 0 finished,
2 mistake in config or flags, 42 preempted (run it again), 44 loss not finite, 45 no readable checkpoint.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
import time

import jax
import numpy as np

from vit_jax import build, checkpoints, config, files, flags, mesh, runtime, schema, trees, writer
from vit_jax.loop import Session
from vit_jax.runtime import say

PACKAGES = """jax jaxlib flax optax orbax-checkpoint grain tensorflow-datasets array_record ml-collections clu einops
numpy opencv-python-headless""".split()  # noqa: SIM905  two lines instead of thirteen


def main() -> None:
  """Reads flags, checks everything, trains."""
  parser = argparse.ArgumentParser("python -m vit_jax.train", allow_abbrev=False, description=__doc__)
  parser.add_argument("--config", required=True, help="file, or file:argument; --config.KEY=VALUE changes a value")
  parser.add_argument("--workdir", required=True, type=directory, help="where the run lives; one run each")
  parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="trace so many steps for TensorBoard")
  given, rest = parser.parse_known_args()
  runtime.quiet()

  overrides = flags.overrides(rest, ("--config", "--workdir", "--profile"))
  run = build.complete(config.resolve(flags.load(given.config, overrides)))
  changes = changes_of(flags.load(given.config), run, overrides)
  if given.profile < 0:
    raise schema.ConfigError(f"--profile: {given.profile} is not a number of steps")

  runtime.start()
  preemption = runtime.Preemption()  # from here on a SIGTERM is not lost
  parts = build.build(run, jax.devices())
  runtime.agree(objection(given.workdir, parts))
  weights = None if checkpoints.exist(given.workdir) else starting_weights(parts)
  with runtime.claim(given.workdir):
    say(f"{given.config}, changed by flags:" if changes else f"{given.config}, as it stands")
    for line in changes:
      say(f"  {line}")
    train(parts, given.workdir, given.profile, preemption, weights)


def starting_weights(parts: build.Parts, flag: str = "config.init.from") -> dict[str, np.ndarray]:
  """What `config.init` names, on the host; says what was done. ConfigError on every process if any has one."""
  weights, notes, problem = {}, [], None
  try:
    weights, notes = parts.weights()
  except schema.ConfigError as error:
    problem = f"{flag}: {error}"
  runtime.agree(problem)
  for note in notes:
    say(note)
  return weights


def changes_of(file, run: config.Run, overrides: dict[str, str]) -> list[str]:
  """What the flags made of the file's own run; of a file that needs flags to be a run, the flags."""
  try:
    before = build.complete(config.resolve(file))
  except schema.ConfigError:
    return [f"{key}: {value}" for key, value in overrides.items()]
  return trees.diff(schema.plain(before), schema.plain(run))


def directory(text: str) -> pathlib.Path:
  """The path of a --workdir."""
  if not text.strip():
    raise argparse.ArgumentTypeError("is empty; name a directory")
  return pathlib.Path(text)


def objection(workdir: pathlib.Path, parts: build.Parts) -> str | None:
  """Why a run may not use the workdir: it holds one with another config. None if it may."""
  if workdir.exists() and not workdir.is_dir():
    return f"--workdir: {workdir} is a file; name a directory"
  found = files.read_json(workdir / "config.json")
  if found is None:
    if checkpoints.exist(workdir):
      return f"--workdir: {workdir} holds checkpoints and no config.json; take another directory"
    return None
  with contextlib.suppress(schema.ConfigError):  # keys that are new since then have their defaults
    found = schema.plain(build.complete(config.resolve(config.renamed(found))))
  strict = [{k: v for k, v in c.items() if k not in config.MAY_CHANGE} for c in (found, schema.plain(parts.run))]
  differences = trees.diff(*strict)
  if not differences:
    return None
  listed = "\n  ".join(differences)
  return f"--workdir: {workdir} holds a run with another config; take another --workdir, or undo:\n  {listed}"


def train(
  parts: build.Parts,
  workdir: pathlib.Path,
  profile: int = 0,
  preemption: runtime.Preemption | None = None,
  weights: dict[str, np.ndarray] | None = None,
) -> dict:
  """Trains to the end, from the newest checkpoint where there is one, else from `weights`, by default those that the
  run names; returns and writes the result."""
  finished = files.read_json(workdir / "result.json")
  if finished and finished.get("steps") == parts.total and {"train_seconds", "images_per_second"} <= finished.keys():
    say(f"finished before, {parts.total} steps: nothing to do")
    close(finished, workdir)
    return finished

  # Where we are.
  first = jax.process_index() == 0
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), parts.keep, parts.keep_every)
  with contextlib.closing(store):
    found = store.restore(parts.state_shapes)
    if found and int(found[0].step) > parts.total:
      raise schema.ConfigError(
        f"config.total: {parts.total} steps, but {workdir} has done {int(found[0].step)} already"
      )
    if first:
      files.write_text(workdir / "config.json", config.dumps(parts.run))
    say(parts.overview())
    began = time.perf_counter()
    state, about = found or (
      parts.start(starting_weights(parts) if weights is None else weights),
      {"images": 0, "seconds": 0.0, "train_seconds": 0.0},
    )
    start = int(state.step)
    say(f"continues at step {start} of {parts.total}" if start else f"{parts.total} steps to go")
    log = writer.Writer(workdir, start, first)
    with contextlib.closing(log):
      session = Session(parts, start, store, log, about, began, workdir, profile, preemption or runtime.Preemption())
      state, figures = session.run(state, start)

  # What came out.
  result = {
    **figures,
    "skipped_images": session.skipped,
    "seed": parts.run.seed,
    "steps": parts.total,
    "train_seconds": session.train_seconds,
    "images_per_second": session.clock.rate,
    "config_sha256": hashlib.sha256(config.dumps(parts.run).encode()).hexdigest(),
    "weights_sha256": checkpoints.weights_digest(state.params, mesh.replicated(parts.mesh)),
    "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
  }
  if first:
    files.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")
  close(result, workdir)
  return result


def report(result: dict, intervals: dict[str, tuple[float, float]] | None = None) -> None:
  """The table of figures, with the intervals {figure: (low, high)} that are given."""
  say("")
  for key, value in result.items():
    label = f"  {key.replace('_', ' '):<24}"
    if key.endswith("images"):
      say(f"{label}{value:>10,}")
    elif isinstance(value, float) and not key.endswith(("seconds", "per_second")):
      form = ".4f" if key.endswith("loss") else ".2%"
      low, high = (intervals or {}).get(key, (None, None))
      say(f"{label}{value:>10{form}}" + (f"   95 % [{low:{form}}, {high:{form}}]" if low is not None else ""))


def close(result: dict, workdir: pathlib.Path) -> None:
  """The last words of a run: figures, time, where to look."""
  report(result)
  rate = result["images_per_second"]
  say(f"  {'training':<24}{result['train_seconds']:>8.1f} s" + (f"   {rate:,.0f} images/s" if rate else ""))
  say(f"\n  figures   {workdir / 'result.json'}\n  curves    tensorboard --logdir={workdir / 'tensorboard'}")


if __name__ == "__main__":
  runtime.main(main)
