"""What a sweep tells: its record after each change, a live table, and at its end the table and the picture."""

import contextlib
import json
import pathlib
import re
import sys
import time

import rich.live
import rich.table

from vit_jax import files, schema
from vit_jax.config import Sweep
from vit_jax.sweeps import results
from vit_jax.sweeps.results import Setting, Trial


def say(text: str) -> None:
  """Prints a line at once. `runtime.say` would ask JAX which process this is, and so take the trials' devices."""
  print(text, flush=True)


class Record:
  """What is known of a sweep, in sweep.json after each change; the table and the picture at its end."""

  def __init__(self, workdir: pathlib.Path, file: str, overrides: dict[str, str], sweep: Sweep, listed: list[Trial]):
    self.workdir, self.sweep, self.listed = workdir, sweep, listed
    path, colon, argument = file.partition(":")
    file = str(pathlib.Path(path).resolve()) + colon + argument
    self.about = {"config": file, "flags": overrides, "decide": sweep.decide}
    self.best, self.finals = None, []
    self._before = files.read_json(workdir / "sweep.json") or self.about
    before = {key: self._before.get(key) for key in ("config", "flags")}
    if before != {"config": self.about["config"], "flags": overrides}:
      raise schema.ConfigError(f"--workdir: {workdir} holds the sweep of {before}; take another, or the same flags")

  def log(self, trial: Trial) -> pathlib.Path:
    """Where a trial's output goes."""
    return self.workdir / "logs" / f"{trial.workdir.parent.name}-{trial.name}.log"

  def recall(self, some: list[Trial], retry: bool) -> None:
    """Takes over what an earlier session found, by the trials' names; what was never started is judged anew."""
    kind = "final" if some is self.finals else "trials"
    known = {told.get("name"): told for told in self._before.get(kind, ())}
    for trial in some:
      told = known.get(trial.name, {})
      ended = told.get("status") in ("failed", "diverged") and told.get("attempts", 0) > 0
      if told.get("status") == "done" or (ended and not retry):
        for key in ("status", "error", "figures", "seconds", "attempts"):
          setattr(trial, key, told.get(key, getattr(trial, key)))
    self.write()

  def write(self) -> None:
    """Replaces sweep.json."""
    seen = dict.fromkeys(figure for trial in self.listed for figure in trial.figures)
    figures = [figure for figure in seen if figure.endswith(("top1", "loss", "shot")) or figure == self.sweep.decide]
    told = self.about | {
      "trials": [trial.told() for trial in self.listed],
      "settings": results.summary(results.settings(self.listed), figures),
      "best": None if self.best is None else schema.plain(dict(self.best.changes)),
      "final": [trial.told() for trial in self.finals],
    }
    files.write_text(self.workdir / "sweep.json", json.dumps(told, indent=2, default=str) + "\n")

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
    wrong += ["- the same command with --retry tries these again"] if wrong else []
    text = "\n\n".join([*parts, *(["\n".join(wrong)] if wrong else [])])
    files.write_text(self.workdir / "sweep.md", text + "\n")
    say("\n" + text)
    figure = decide or next((figure for figure in shown if figure.endswith("top1")), None)
    done = [trial for trial in self.listed if figure in trial.figures]
    rows, keys = [(trial.changes, trial.figures[figure]) for trial in done], results.varied(done)
    say(f"\n  record    {self.workdir / 'sweep.json'}\n  table     {self.workdir / 'sweep.md'}")
    if rows and keys:
      from vit_jax import pictures

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
      figure = self._headline(trial)
      more = trial.error if figure is None else f"{figure:.4f}"
      place = f"{self._listed.index(trial) + 1}/{len(self._listed)}"
      say(f"{time.strftime('%H:%M:%S')}  {trial.status:<9} {place}  {trial}  {more}".rstrip())

  def refresh(self) -> None:
    """Draws the table anew."""
    if self._live:
      self._live.update(self._table())

  def _headline(self, trial):
    """The figure that decides; of the last runs top-1."""
    return trial.figures.get(self._record.sweep.decide, trial.figures.get("top1"))

  def _table(self):
    count = {s: sum(t.status == s for t in self._listed) for s in ("done", "running", "waiting", "failed", "diverged")}
    minutes = (time.monotonic() - self._began) / 60
    table = rich.table.Table(
      title=", ".join(f"{n} {status}" for status, n in count.items() if n) + f", {minutes:.0f} min", expand=True
    )
    table.add_column("trial", ratio=2, overflow="fold")
    table.add_column("status", min_width=8, no_wrap=True)
    table.add_column("figure", min_width=6, no_wrap=True)
    table.add_column("last words", ratio=3, no_wrap=True)
    order = ("running", "failed", "diverged", "done", "waiting")
    for trial in sorted(self._listed, key=lambda t: order.index(t.status)):
      figure = self._headline(trial)
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
