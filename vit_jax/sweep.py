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
import re
import shlex
import signal
import sys
import time

import rich.console
import rich.live
import rich.table

from vit_jax import build, config, flags, pool, results, runtime, train, trials
from vit_jax.results import Setting, Trial
from vit_jax.trials import Sweep

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
  overrides = flags.overrides(rest, FLAGS)
  sweep = of_config(given.config)
  for key in overrides:
    if any(key == tried or key.startswith(f"{tried}.") for row in [*sweep.trials, *sweep.final] for tried in row):
      raise config.ConfigError(f"--config.{key}: the sweep itself gives this value; change sweep() in {given.config}")
  listed = planned(given.config, sweep.trials, overrides, given.workdir / "trials", sweep.decide)
  if given.render:
    for trial in listed:
      print(
        f"# impossible: {trial}: {trial.error}" if trial.config is None else shlex.join(command(given.config, trial))
      )
    return
  if all(trial.config is None for trial in listed):
    raise config.ConfigError(f"no trial is possible; the first: {listed[0].error}")
  places = pool.groups(given.parallel)
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
      raise config.ConfigError("no setting has all of its trials done, so nothing was chosen; see the errors above")
    best = order[0]
    finals = last_runs(file, workdir, sweep, overrides, best)
    record.best, record.finals = best, finals
    record.recall(finals, retry)
    say(f"\nbest of {len(order)}: {results.words(best.changes)}")
    again = (lambda trial: command(file, trial)) if sweep.final else scored
    work(record, finals, places, again)
  record.close(best, finals)


# Which runs.


def of_config(path: str) -> Sweep:
  """The sweep of a config file; its `sweep` takes the file's argument if it takes any."""
  module, argument = flags.module(path)
  if not callable(getattr(module, "sweep", None)):
    raise config.ConfigError(f"--config: {path} defines no sweep(); see configs/finetune.py")
  takes = bool(inspect.signature(module.sweep).parameters)
  return trials.of(module.sweep(argument) if argument and takes else module.sweep(), path)


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
    texts = overrides | trials.flags(changes, config.plain(flags.load(file)))
    run = resolved(file, texts)
    if decide:
      _check_decides(run, decide)
      on_test = [name for name, choice in run.evals.items() if reads_test(run, choice)]
      # The last runs may train on the images that decided.
      texts |= {f"evals.{name}": "default" for name in ([decide.partition("/")[0]] if last else on_test)}
      if last and not on_test:
        texts |= {"evals.test.name": "accuracy", "evals.test.split": "test"}
    text = config.dumps(resolved(file, texts))
  except config.ConfigError as error:
    name = hashlib.sha256(json.dumps([texts, config.plain(dict(changes))], default=str).encode()).hexdigest()[:12]
    return Trial(name, changes, texts, folder / name, None, "failed", str(error))
  name = hashlib.sha256(text.encode()).hexdigest()[:12]
  return Trial(name, changes, texts, folder / name, text)


def resolved(file: str, texts: dict[str, str]) -> config.Run:
  """The run of a config file and flags."""
  edited = flags.load(file)
  for key, text in texts.items():
    flags.edit(edited, key, text)
  return build.complete(config.resolve(edited))


def reads_test(run: config.Run, choice: config.Choice) -> bool:
  """Whether an evaluation looks at the test split of the run's own data."""
  split = choice.args.get("split", choice.args.get("test"))
  return choice.args["data"] is None and split in ("test", run.data.args["test"])


def _check_decides(run, decide):
  name = decide.partition("/")[0]
  if name not in run.evals or "/" not in decide:
    raise config.ConfigError(
      f"sweep: decide is {decide!r}; allowed: <evaluation>/<figure>, the evaluations being {', '.join(run.evals)}"
    )
  if reads_test(run, run.evals[name]):
    raise config.ConfigError(f"sweep: {decide!r} decides by test images; hold out a part of train: config.data.val")


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


def work(record: "Record", listed: list[Trial], places, command_of) -> None:
  """Runs what is waiting until nothing is, and writes down what comes of it."""
  names = {trial.name: trial for trial in listed}
  with contextlib.closing(pool.Pool(places)) as running, Screen(record, listed) as screen:
    while any(trial.status in ("waiting", "running") for trial in listed):
      for name, code in running.finished().items():
        settle(names[name], code, record.log(names[name]))
        record.write()
        screen.tell(names[name])
      for trial in [trial for trial in listed if trial.status == "waiting"]:
        if not running.has_room or held(trial):
          continue
        if finished(trial):
          record.write()
        else:
          trial.status, trial.attempts = "running", trial.attempts + 1
          running.start(trial.name, [sys.executable, *command_of(trial)[1:]], record.log(trial))
        screen.tell(trial)
      screen.refresh()
      time.sleep(0.2)


def held(trial: Trial) -> bool:
  """Whether another process trains it now: one of a killed sweep that is saving, or one that --render was used for."""
  holder = runtime.holder(trial.workdir)
  trial.error = f"held by process {holder}" if holder else ""
  return holder is not None


def finished(trial: Trial) -> bool:
  """Takes over the result of a trial, if its workdir has one."""
  done = runtime.read_json(trial.workdir / "result.json")
  scores = runtime.read_json(trial.workdir / "figures.json")  # of `scored`, which trains nothing
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


# Telling of them.


def say(text: str) -> None:
  """Prints a line at once."""
  print(text, flush=True)


class Record:
  """What is known of a sweep, in sweep.json after each change; the table and the picture at its end."""

  def __init__(self, workdir: pathlib.Path, file: str, overrides: dict[str, str], sweep: Sweep, listed: list[Trial]):
    self.workdir, self.sweep, self.listed = workdir, sweep, listed
    self.about = {"config": file, "flags": overrides, "decide": sweep.decide}
    self.best, self.finals = None, []
    self._before = runtime.read_json(workdir / "sweep.json") or self.about
    if self._before["config"] != file:
      raise config.ConfigError(f"--workdir: {workdir} holds the sweep of {self._before['config']}; take another")

  def log(self, trial: Trial) -> pathlib.Path:
    """Where a trial's output goes."""
    return self.workdir / "logs" / f"{trial.workdir.parent.name}-{trial.name}.log"

  def recall(self, some: list[Trial], retry: bool) -> None:
    """Takes over what an earlier session found, by the trials' names."""
    kind = "final" if some is self.finals else "trials"
    known = {told["name"]: told for told in self._before.get(kind, ())}
    for trial in some:
      told = known.get(trial.name, {})
      if told.get("status") == "done" or (told.get("status") in ("failed", "diverged") and not retry):
        for key in ("status", "error", "figures", "seconds"):
          setattr(trial, key, told[key])
    self.write()

  def write(self) -> None:
    """Replaces sweep.json."""
    places = {figure.rpartition("/")[0] for trial in self.listed for figure in trial.figures}
    figures = [place + "/" * bool(place) + name for place in sorted(places) for name in ("top1", "loss")]
    told = self.about | {
      "trials": [trial.told() for trial in self.listed],
      "settings": results.summary(results.settings(self.listed), figures),
      "best": None if self.best is None else config.plain(dict(self.best.changes)),
      "final": [trial.told() for trial in self.finals],
    }
    runtime.write_text(self.workdir / "sweep.json", json.dumps(told, indent=2, default=str) + "\n")

  def close(self, best: Setting | None, finals: list[Trial]) -> None:
    """Writes and prints the table, and draws the picture."""
    self.write()
    decide = self.sweep.decide
    seen = dict.fromkeys(figure for trial in self.listed for figure in trial.figures)
    shown = (
      [decide, decide.rpartition("/")[0] + "/loss"] if decide else [f for f in seen if f.endswith(("top1", "loss"))]
    )
    parts = [results.table(self.listed, list(dict.fromkeys(shown)), best)]
    if finals:
      trained = (
        "its own trials"
        if not self.sweep.final
        else "trained again: " + "; ".join(map(results.words, self.sweep.final))
      )
      parts.append(f"On test, the best setting ({results.words(best.changes)}), {trained}:")
      parts.append(results.markdown([["figure", "mean ± standard deviation (runs)"], *last_figures(finals)]))
    wrong = [f"- {t.status}: {t}: {t.error}" for t in [*self.listed, *finals] if t.status in ("failed", "diverged")]
    text = "\n\n".join([*parts, *(["\n".join(wrong)] if wrong else [])])
    runtime.write_text(self.workdir / "sweep.md", text + "\n")
    say("\n" + text)
    figure = decide or next((figure for figure in shown if figure.endswith("top1")), None)
    done = [trial for trial in self.listed if figure in trial.figures]
    rows, keys = [(trial.changes, trial.figures[figure]) for trial in done], results.varied(done)
    say(f"\n  record    {self.workdir / 'sweep.json'}\n  table     {self.workdir / 'sweep.md'}")
    if rows and keys:
      from vit_jax import pictures  # matplotlib takes a second

      pictures.effects(rows, keys, figure, self.workdir / "sweep.png")
      say(f"  picture   {self.workdir / 'sweep.png'}")


def last_figures(finals: list[Trial]) -> list[list[str]]:
  """Rows of the table of figures on test."""
  names = ("top1", "top5", "mean_per_class", "f1_macro", "loss", "ema_top1", "ema_loss")
  values = {name: [trial.figures[name] for trial in finals if name in trial.figures] for name in names}
  return [[name, results.mean_and_spread(found, results.is_share(name))] for name, found in values.items() if found]


class Screen:
  """A live table on a terminal; elsewhere a line for each change."""

  def __init__(self, record: Record, listed: list[Trial]):
    self._record, self._listed, self._began = record, listed, time.monotonic()
    self._live = None

  def __enter__(self):
    if sys.stdout.isatty():
      self._live = rich.live.Live(self._table(), refresh_per_second=2, transient=True)
      self._live.__enter__()
    return self

  def __exit__(self, *error):
    if self._live:
      self._live.__exit__(*error)

  def tell(self, trial: Trial) -> None:
    """What became of a trial."""
    if not self._live:
      figure = trial.figures.get(self._record.sweep.decide or "top1")
      more = trial.error if figure is None else f"{figure:.4f}"
      place = f"{self._listed.index(trial) + 1}/{len(self._listed)}"
      say(f"{time.strftime('%H:%M:%S')}  {trial.status:<9} {place}  {trial}  {more}".rstrip())

  def refresh(self) -> None:
    """Draws the table anew."""
    if self._live:
      self._live.update(self._table())

  def _table(self):
    count = {s: sum(t.status == s for t in self._listed) for s in ("done", "running", "waiting", "failed", "diverged")}
    minutes = (time.monotonic() - self._began) / 60
    table = rich.table.Table(
      title=", ".join(f"{n} {status}" for status, n in count.items() if n) + f", {minutes:.0f} min", expand=True
    )
    for column in ("trial", "status", "figure", "last words"):
      table.add_column(column, no_wrap=True)
    order = ("running", "failed", "diverged", "done", "waiting")
    for trial in sorted(self._listed, key=lambda t: order.index(t.status)):
      figure = trial.figures.get(self._record.sweep.decide or "top1")
      words = progress(self._record.log(trial)) if trial.status == "running" else trial.error
      table.add_row(str(trial), trial.status, "" if figure is None else f"{figure:.4f}", words)
    return table


def progress(log: pathlib.Path) -> str:
  """The last line of a log."""
  with contextlib.suppress(OSError), log.open("rb") as file:
    file.seek(max(0, log.stat().st_size - 2000))
    lines = re.split(r"[\r\n]+", file.read().decode(errors="replace").rstrip())
    return lines[-1].strip()
  return ""


if __name__ == "__main__":
  runtime.main(main)
