"""Trains what a config's `sweep()` lists, chooses the best setting, trains it again where that is asked, scores it.

    python -m vit_jax.sweep --config=configs/finetune.py:cifar100 --workdir=runs/sweep [--parallel=N]

Trials run as `vit_jax.train`, several at a time with --parallel, each on devices of its own. They are measured on the
split that decides and not on test; the best setting alone is, once. The same command continues a sweep that was stopped
or killed; a trial that failed is written down with its error and not tried again, unless --retry says so. --render
prints the trials as commands for other launchers; where they share the workdir, the sweep takes what is finished.

It leaves sweep.json, sweep.md (the table), sweep.png (which setting matters), and a log and a workdir of each trial.
Exit codes: 0 finished, 2 mistake or nothing to choose from, 42 asked to stop.
"""

import argparse
import contextlib
import hashlib
import inspect
import json
import pathlib
import shlex
import signal
import sys
import time

from vit_jax import build, config, evals, files, flags, runtime, schema, train
from vit_jax.config import Sweep
from vit_jax.data import catalog, sources
from vit_jax.sweeps import pool, results, trials
from vit_jax.sweeps.record import Record, Screen, say
from vit_jax.sweeps.results import Setting, Trial

FLAGS = ("--config", "--workdir", "--parallel", "--render", "--retry")
ATTEMPTS = 3  # at a trial that a signal ends: out of memory, or somebody's kill


def main() -> None:
  """Reads flags, checks every trial, runs those that are left, chooses, reports."""
  parser = argparse.ArgumentParser(
    "python -m vit_jax.sweep",
    allow_abbrev=False,
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--config", required=True, help="file with a sweep(), or file:argument; --config.KEY=VALUE for all"
  )
  parser.add_argument("--workdir", required=True, type=train.directory, help="where the sweep lives; one sweep each")
  parser.add_argument("--parallel", type=int, default=1, metavar="N", help="trials at a time, on disjoint devices")
  parser.add_argument("--render", action="store_true", help="print the commands of all trials, and do nothing")
  parser.add_argument("--retry", action="store_true", help="try failed and diverged trials again")
  given, rest = parser.parse_known_args()
  runtime.quiet()
  if given.parallel < 1:
    raise schema.ConfigError(f"--parallel: {given.parallel}; allowed: 1 and more")
  if given.workdir.exists() and not given.workdir.is_dir():
    raise schema.ConfigError(f"--workdir: {given.workdir} is a file; name a directory")
  overrides = flags.overrides(rest, FLAGS)
  sweep = of_config(given.config)
  for key in overrides:
    if any(key == tried or key.startswith(f"{tried}.") for row in [*sweep.trials, *sweep.final] for tried in row):
      raise schema.ConfigError(f"--config.{key}: the sweep itself gives this value; change sweep() in {given.config}")
  listed = planned(given.config, sweep.trials, overrides, given.workdir / "trials", sweep.decide)
  check(listed, sweep, given.config, overrides, given.workdir)
  if given.render:
    for trial in listed:
      print(
        f"# impossible: {trial}: {trial.error}" if trial.config is None else shlex.join(command(given.config, trial))
      )
    return
  places = pool.groups(given.parallel)
  opened = {}
  for trial in listed:
    if trial.config is not None:
      look(trial, sweep.decide, opened)
  impossible(listed)
  say(f"{len(listed)} different trials of the {len(sweep.trials)} listed")
  with runtime.locked(given.workdir), stoppable():
    search(given.config, given.workdir, sweep, overrides, listed, places, given.retry)


def search(file, workdir, sweep: Sweep, overrides, listed: list[Trial], places, retry: bool) -> None:
  """The sweep itself, in a workdir that is ours."""
  record = Record(workdir, file, overrides, sweep, listed)
  record.recall(listed, retry)
  work(record, listed, places, lambda trial: command(file, trial))
  best, finals = None, []
  if sweep.decide:
    order = results.ranked(results.settings(listed), sweep.decide)
    if not order:
      record.close(None, [])
      raise schema.ConfigError("no setting has all of its trials done, so nothing was chosen; see the errors above")
    best = order[0]
    finals = last_runs(file, workdir, sweep, overrides, best)
    record.best, record.finals = best, finals
    record.recall(finals, retry)
    say(f"\nbest of {len(order)}: {results.words(best.changes)}")
    again = (lambda trial: command(file, trial)) if sweep.final else scored
    work(record, finals, places, again)
  record.close(best, finals)
  if not any(trial.status == "done" for trial in listed):
    raise schema.ConfigError("no trial is done; see the errors above, and --retry")
  if any(trial.status != "done" for trial in finals):
    raise schema.ConfigError("the last runs are not all done; see the errors above, and --retry")


# Which runs.


def check(listed: list[Trial], sweep: Sweep, file: str, overrides: dict[str, str], workdir: pathlib.Path) -> None:
  """ConfigError if no trial is possible, or not what `final` makes of one."""
  impossible(listed)
  possible = next(trial for trial in listed if trial.config is not None)
  for trial in last_runs(file, workdir, sweep, overrides, results.settings([possible])[0]):
    if trial.config is None:
      raise schema.ConfigError(f"sweep: final: {trial}: {trial.error}")


def impossible(listed: list[Trial]) -> None:
  """ConfigError if all trials are."""
  if all(trial.status == "failed" for trial in listed):
    errors = list(dict.fromkeys(trial.error for trial in listed))
    raise schema.ConfigError(errors[0] if len(errors) == 1 else f"no trial is possible; the first: {errors[0]}")


def look(trial: Trial, decide: str | None, opened: dict) -> None:
  """Fails a trial whose data or weights are not there, or that decides by images of its test or training split.

  `opened` keeps the sources that trials share.
  """
  run = config.resolve(json.loads(trial.config))
  start = run.init.from_

  def images_of(split):
    key = json.dumps(schema.plain(run.data)), split
    if key not in opened:
      with schema.at("config.data"):
        opened[key] = catalog.open_split(run.data, split)
    return opened[key]

  try:
    if start and "://" not in start and not pathlib.Path(start).exists():
      raise schema.ConfigError(f"config.init.from: no file {start!r}")
    train_images = images_of("train")
    if decide:
      choice = run.evals[decide.partition("/")[0]]
      if choice.args["data"] is None:
        split = choice.args.get("split", choice.args.get("test"))
        decides = images_of(split)
        for name, images in (("test", images_of("test")), ("train", train_images)):
          if sources.share(decides, images):
            raise schema.ConfigError(
              f"{decide!r} decides by images of the {name} split: {decides.split!r} and {images.split!r} have some in "
              "common; hold out a part of train: config.data.train, config.data.val"
            )
  except schema.ConfigError as error:
    trial.status, trial.error = "failed", str(error)


def of_config(path: str) -> Sweep:
  """The sweep of a config file; its `sweep` takes the file's argument if it takes any."""
  module, argument = flags.module(path)
  if not callable(getattr(module, "sweep", None)):
    raise schema.ConfigError(f"--config: {path} defines no sweep(); see configs/finetune.py")
  takes = bool(inspect.signature(module.sweep).parameters)
  return trials.of(flags.called(path, module.sweep, *([argument] if argument and takes else [])), path)


def planned(file: str, rows, overrides: dict[str, str], folder: pathlib.Path, decide: str | None) -> list[Trial]:
  """A trial for each of the changes, without those that are the same run; impossible ones have failed already."""
  found = {}
  for changes in rows:
    trial = trial_of(file, changes, overrides, folder, decide)
    found.setdefault(trial.name, trial)
  return list(found.values())


def trial_of(file, changes, overrides, folder, decide: str | None, last: bool = False) -> Trial:
  """The trial of some changes: its flags, and the config that they make. What decides and test exclude each other."""
  texts = overrides
  try:
    texts = overrides | trials.flags(changes, schema.plain(flags.load(file)))
    run = resolved(file, texts)
    if decide:
      _check_decides(run, decide)
      on_test = [name for name, choice in run.evals.items() if reads_test(run, choice)]
      # The last runs may train on the images that decided.
      texts |= {f"evals.{name}": "default" for name in ([decide.partition("/")[0]] if last else on_test)}
      texts |= {f"evals.{name}.every": "100%" for name in on_test if last}
      if last and not on_test:
        texts |= {"evals.test.name": "accuracy", "evals.test.split": "test"}
    text = config.dumps(resolved(file, texts))
  except schema.ConfigError as error:
    name = hashlib.sha256(json.dumps([texts, schema.plain(dict(changes))], default=str).encode()).hexdigest()[:12]
    return Trial(name, changes, texts, folder / name, None, "failed", str(error))
  name = hashlib.sha256(text.encode()).hexdigest()[:12]
  return Trial(name, changes, texts, folder / name, text)


def resolved(file: str, texts: dict[str, str]) -> config.Run:
  """The run of a config file and flags."""
  return build.complete(config.resolve(flags.load(file, texts)))


def reads_test(run: config.Run, choice: schema.Choice) -> bool:
  """Whether an evaluation looks at the test split of the run's own data."""
  split = choice.args.get("split", choice.args.get("test"))
  return choice.args["data"] is None and split in ("test", run.data.args["test"])


def _check_decides(run, decide):
  name, _, figure = decide.partition("/")
  if name not in run.evals or not figure:
    raise schema.ConfigError(
      f"sweep: decide is {decide!r}; allowed: <evaluation>/<figure>, the evaluations being {', '.join(run.evals)}"
    )
  if reads_test(run, run.evals[name]):
    raise schema.ConfigError(f"sweep: {decide!r} decides by test images; hold out a part of train: config.data.val")
  known = evals.figure_names(run.evals[name])
  known += [f"ema_{one}" for one in known] if run.optim.args["ema"] else []
  if figure not in known:
    raise schema.ConfigError(
      f"sweep: decide is {decide!r}, but {name!r} has no such figure.{schema.nearest(figure, known)}"
    )


def last_runs(file, workdir, sweep, overrides, best: Setting) -> list[Trial]:
  """The runs that are scored on test: those that `final` lists, of the best setting, else its own trials."""
  if not sweep.final:
    folder = workdir / "final"
    return [Trial(t.name, t.changes, t.flags, folder / t.name, t.config, figures={}) for t in best.trials]
  rows = [{**best.changes, **changes} for changes in sweep.final]
  found = [trial_of(file, row, overrides, workdir / "final", sweep.decide, last=True) for row in rows]
  return list({trial.name: trial for trial in found}.values())


# Running them.


def command(file: str, trial: Trial) -> list[str]:
  """Trains a trial, or continues it."""
  return [
    "python",
    "-m",
    "vit_jax.train",
    f"--config={file}",
    f"--workdir={trial.workdir}",
    *(f"--config.{key}={text}" for key, text in trial.flags.items()),
  ]


def scored(trial: Trial) -> list[str]:
  """Measures a finished trial on test."""
  trained = trial.workdir.parent.parent / "trials" / trial.name
  return ["python", "-m", "vit_jax.evaluate", f"--workdir={trained}", "--split=test", f"--report={trial.workdir}"]


def work(record: Record, listed: list[Trial], places, command_of) -> None:
  """Runs what is waiting until nothing is, and writes down what comes of it."""
  names = {trial.name: trial for trial in listed}
  with contextlib.closing(pool.Pool(places)) as running, Screen(record, listed) as screen, asked(running):
    while any(trial.status in ("waiting", "running") for trial in listed):
      for name, code in running.finished().items():
        settle(names[name], code, record.log(names[name]))
        record.write()
        screen.tell(names[name])
      waiting = [trial for trial in listed if trial.status == "waiting"]
      others = sum(held(trial, screen) for trial in waiting)  # on devices of ours
      for trial in waiting:
        if trial.error or len(running.names) + others >= len(places):
          continue
        if finished(trial):
          record.write()
        else:
          trial.status, trial.attempts = "running", trial.attempts + 1
          running.start(trial.name, [sys.executable, *command_of(trial)[1:]], record.log(trial))
        screen.tell(trial)
      screen.refresh()
      time.sleep(0.2)


def held(trial: Trial, screen: Screen) -> bool:
  """Whether another process trains it now: one of a killed sweep that is saving, or one that --render was used for."""
  holder = runtime.holder(trial.workdir)
  before, trial.error = trial.error, f"held by process {holder}" if holder else ""
  if holder and trial.error != before:
    screen.tell(trial)
  return holder is not None


@contextlib.contextmanager
def asked(running: pool.Pool):
  """Says what a stop waits for."""
  try:
    yield
  except KeyboardInterrupt:
    say(f"stopping: {len(running.names)} trials save their state, which may take up to {pool.PATIENCE:.0f} s")
    raise


def finished(trial: Trial) -> bool:
  """Takes over the result of a trial, if its workdir has one."""
  done = files.read_json(trial.workdir / "result.json")
  scores = files.read_json(trial.workdir / "figures.json")  # of `scored`, which trains nothing
  if done is None and scores is None:
    return False
  if done is not None and (trial.workdir / "config.json").read_text() != trial.config:
    trial.status, trial.error = "failed", f"{trial.workdir} holds a run with another config; was the file edited?"
    return True
  found = scores["figures"] if done is None else done
  trial.figures = {key: value for key, value in found.items() if isinstance(value, float | int)}
  trial.status, trial.error, trial.seconds = "done", "", found.get("train_seconds", 0.0)
  return True


def settle(trial: Trial, code: int, log: pathlib.Path) -> None:
  """What an exit code means for a trial."""
  trial.status, trial.error = "failed", last_words(log)
  if code == 0:
    if not finished(trial):
      trial.error = f"finished without a result; see {log}"
  elif code == runtime.EXIT_NOT_FINITE:
    trial.status = "diverged"
  elif code < 0 or code in (runtime.EXIT_PREEMPTED, 130, 143) or runtime.holder(trial.workdir):
    if trial.attempts < ATTEMPTS:
      trial.status = "waiting"  # it continues from its last checkpoint
    elif code < 0:
      trial.error = f"ended {trial.attempts} times by signal {signal.Signals(-code).name}; out of memory? See {log}"


def last_words(log: pathlib.Path) -> str:
  """The error that a trial ended with."""
  lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
  said = next((line for line in reversed(lines[-40:]) if line.startswith("error:")), lines[-1] if lines else "")
  return said.removeprefix("error:").strip()[:500]


@contextlib.contextmanager
def stoppable():
  """A SIGTERM ends the sweep as Ctrl-C does: trials save and stop, and the same command continues."""

  def stop(*_):
    raise KeyboardInterrupt

  before = signal.signal(signal.SIGTERM, stop)
  try:
    yield
  except KeyboardInterrupt:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise runtime.Stop(runtime.EXIT_PREEMPTED, "stopped as asked; the same command continues") from None
  finally:
    signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
  runtime.main(main)
