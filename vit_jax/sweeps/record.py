"""Output files of a sweep in its workdir: sweep.json after each change, sweep.md and sweep.png at the end."""

import hashlib
import json
import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from vit_jax.config import flags
from vit_jax.evals import selection
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, texts, to_plain
from vit_jax.storage import files, hub_files, paths
from vit_jax.sweeps import results, suite
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Setting, Trial, format_changes, group_settings, is_record


def read_pins(workdir: pathlib.Path) -> list[str]:
  """Returns the addresses of weights on the Hub with the commits that the trials of a sweep use.

  Args:
    workdir: directory of the sweep, which may not exist yet.

  Raises:
    ConfigError: the record is damaged.
  """
  file = workdir / "sweep.json"
  pins = (files.read_json(file) or {}).get("pins", [])
  if not isinstance(pins, list) or not all(isinstance(pin, str) and hub_files.is_pinned(pin) for pin in pins):
    raise ConfigError(
      f"{file}: 'pins' is not a list of addresses hf:OWNER/NAME@REVISION:COMMIT. Fix or remove the file"
    )
  return pins


class SweepRecord:
  """The state of a study, stored in sweep.json of its workdir.

  Args:
    study: the study to record.
    trials: trials of the study.

  Raises:
    ConfigError: the workdir contains the record of another study, or a damaged record.
  """

  def __init__(self, study: Study, trials: list[Trial]) -> None:
    self.study, self.trials = study, trials
    self.best: Setting | None = None
    self.last_runs: list[Trial] = []
    path, argument = flags.split_argument(study.file)
    file = f"{pathlib.Path(path).resolve()}:{argument}".removesuffix(":")
    self._about: dict[str, Any] = {"config": file, "flags": dict(study.overrides), "decide": study.sweep.decide}
    self._earlier = files.read_json(study.workdir / "sweep.json") or self._about
    for kind in ("trials", "final"):
      rows = self._earlier.get(kind, [])
      if not isinstance(rows, list) or not all(map(is_record, rows)):
        raise ConfigError(f"{study.workdir / 'sweep.json'}: {kind!r} is not a list of trials. Fix or remove the file")
    earlier = {key: self._earlier.get(key) for key in ("config", "flags")}
    if earlier != {key: self._about[key] for key in earlier}:
      raise ConfigError(
        f"--workdir: {study.workdir} contains the sweep of {earlier}. Use another directory, or the same config and "
        f"flags"
      )

  def log(self, trial: Trial) -> pathlib.Path:
    """Returns the path of a trial's log on a disk. `keep_log` copies it to a bucket when the trial ends."""
    workdir = self.study.workdir
    if paths.is_in_bucket(workdir):
      mark = hashlib.sha256(str(workdir).encode()).hexdigest()[:12]
      workdir = pathlib.Path(tempfile.gettempdir(), f"vit_jax_sweep_{mark}")
    return workdir / "logs" / f"{trial.workdir.parent.name}-{trial.name}.log"

  def keep_log(self, trial: Trial) -> None:
    """Copies the log of a trial that has ended into the bucket, if the sweep is in a bucket."""
    log = self.log(trial)
    if paths.is_in_bucket(self.study.workdir):
      files.copy_to_bucket(log, self.study.workdir / "logs" / log.name)

  def restore(self, trials: list[Trial], retry: bool) -> None:
    """Restores trials from the record of earlier sessions, by name.

    Completed trials are restored. Unless `retry` is true, trials that were started and then failed or diverged are
    restored too. A trial that failed before its start is evaluated again.

    Args:
      trials: `self.trials` or `self.last_runs`.
      retry: true tries failed and diverged trials again.
    """
    kind = "final" if trials is self.last_runs else "trials"
    earlier = {record.get("name"): record for record in self._earlier.get(kind, ())}
    for trial in trials:
      record = earlier.get(trial.name, {})
      ended = record.get("status") in ("failed", "diverged") and record.get("attempts", 0) > 0
      if record.get("status") == "done" or (ended and not retry):
        trial.restore(record)
    self.write()

  def write(self) -> None:
    """Replaces sweep.json."""
    decide = self.study.sweep.decide
    metrics = [name for name in self._metrics() if name.endswith(("top1", "loss", "shot")) or name == decide]
    chosen = results.find_criterion(self.trials, decide)
    ranked_by = {"metric": selection.format_name(chosen.metric), "split": chosen.split} if chosen else None
    record = self._about | {
      "pins": self.study.pins,
      "ranked_by": ranked_by,
      "trials": [trial.to_json() for trial in self.trials],
      "settings": [setting.to_json(metrics) for setting in group_settings(self.trials, self.study.sweep.over)],
      "best": None if self.best is None else to_plain(dict(self.best.changes)),
      "final": [trial.to_json() for trial in self.last_runs],
    }
    files.write_text(self.study.workdir / "sweep.json", json.dumps(record, indent=2, default=str) + "\n")

  def write_pins(self) -> None:
    """Writes the commits of weights on the Hub to sweep.json, and keeps its other values."""
    record = self._earlier | {"pins": self.study.pins}
    files.write_text(self.study.workdir / "sweep.json", json.dumps(record, indent=2, default=str) + "\n")

  def close(self) -> None:
    """Writes sweep.json and sweep.md, prints the table, and draws sweep.png."""
    self.write()
    workdir, metrics = self.study.workdir, self._select_metrics()
    report = self._report(metrics)
    files.write_text(workdir / "sweep.md", report + "\n")
    print_line(f"\n{report}\n\n  record    {workdir / 'sweep.json'}\n  table     {workdir / 'sweep.md'}")
    chosen = results.find_criterion(self.trials, self.study.sweep.decide)
    if chosen is None:
      return
    metric = chosen.metric
    measured = [trial for trial in self.trials if metric in trial.figures]
    if keys := results.find_varied_keys(measured):
      from vit_jax.sweeps import board, pictures  # TensorBoard and matplotlib are slow to import

      groups = self._groups(metric)
      if self.study.sweep.decide is None and 1 < len(groups) <= pictures.ROWS:
        pictures.draw_settings(groups, str(chosen), workdir / "sweep.png")
      else:
        rows = [(trial.changes, trial.figures[metric]) for trial in measured]
        pictures.draw_effects(rows, keys, str(chosen), workdir / "sweep.png")
      board.write_board(workdir, self.trials, keys, metrics, chosen)
      print_line(f"  picture   {workdir / 'sweep.png'}")
      print_line(f"  settings  tensorboard {texts.format_flag('logdir', workdir)}   (page HParams)")

  def _groups(self, metric: str) -> dict[str, list[float]]:
    """Returns {name of a setting: values of a metric}. The names contain only keys that differ between settings."""
    keys = results.find_varied_keys(self.trials)
    named = {}
    for setting in group_settings(self.trials, self.study.sweep.over):
      words = [f"{key.rpartition('.')[2]}={to_plain(value)}" for key, value in setting.changes.items() if key in keys]
      if values := setting.values(metric):
        named[" ".join(words)] = values
    return named

  def _metrics(self) -> Iterable[str]:
    """Returns all metrics that any trial has, in order."""
    return dict.fromkeys(name for trial in self.trials for name in trial.figures)

  def _select_metrics(self) -> list[str]:
    """Returns the metrics of the table. The first one ranks the settings."""
    if decide := self.study.sweep.decide:
      return list(dict.fromkeys([decide, f"{decide.rpartition('/')[0]}/loss"]))
    chosen = results.find_criterion(self.trials, None)
    names = [name for name in self._metrics() if name.endswith(("top1", "loss"))]
    return list(dict.fromkeys([chosen.metric, *names])) if chosen else names

  def _report(self, metrics: Sequence[str]) -> str:
    """Returns the text of sweep.md."""
    over = self.study.sweep.over
    parts = [
      results.format_settings(self.trials, metrics, self.best, over),
      *results.describe_choice(self.trials, self.study.sweep),
    ]
    if over and (runs := self.last_runs if self.study.sweep.decide else self.trials):
      parts.append(suite.format_suite(runs, self.trials, over))
    elif self.last_runs and self.best is not None:
      final = "; ".join(map(format_changes, self.study.sweep.final))
      trained = f"trained again: {final}" if final else "its own trials"
      parts.append(f"On test, the best setting ({format_changes(self.best.changes)}), {trained}:")
      parts.append(results.format_final_runs(self.last_runs))
    ended = [trial for trial in [*self.trials, *self.last_runs] if trial.status in ("failed", "diverged")]
    if ended:
      lines = [f"- {trial.status}: {trial}: {trial.error}" for trial in ended]
      parts.append("\n".join([*lines, "- to try these again, run the same command with --retry"]))
    return "\n\n".join(parts)
