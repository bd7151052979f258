"""Runs of a sweep: its trials as configs, and the runs that are evaluated on the test split at its end."""

import dataclasses
import hashlib
import inspect
import json
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax import config, schema
from vit_jax.config import Changes, Sweep, extensions, flags
from vit_jax.data import catalog, shared_data, sources
from vit_jax.evals import selection
from vit_jax.importers import pinning
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError, UnreachableError
from vit_jax.storage import hub_addresses, paths
from vit_jax.sweeps.trials import Setting, Trial, group_settings
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun


@dataclasses.dataclass(frozen=True)
class Study:
  """A sweep over a config file in a workdir.

  Args:
    file: the config file, with its argument if it takes one.
    overrides: flags {key: text} for every run.
    sweep: trials, the metric that decides, and the last runs.
    workdir: directory of the sweep.
    pins: addresses of weights on the Hub with the commits that all trials use. The study adds an address when a trial
      first names it.
  """

  file: str
  overrides: Mapping[str, str]
  sweep: Sweep
  workdir: pathlib.Path
  pins: list[str] = dataclasses.field(default_factory=list)

  def make_trials(self) -> list[Trial]:
    """Returns a trial for each of the sweep's changes, without duplicates of the same config.

    Changes that do not result in a valid config become failed trials. If a metric decides, the trials omit evaluations
    on test images.
    """
    return _drop_duplicates(self._trial(changes) for changes in self.sweep.trials)

  def make_last_runs(self, best: Setting) -> list[Trial]:
    """Returns the runs to evaluate on the test split.

    These are the runs that `final` lists, with the changes of the best setting. They omit the evaluation that decides,
    because these runs may train on its images. If `final` is empty, the runs are the best setting's own trials.

    Args:
      best: the best setting.
    """
    folder, over = self.workdir / "final", self.sweep.over
    if not self.sweep.final:
      return [Trial(t.name, t.changes, t.flags, folder / t.name, t.config) for t in best.trials]
    rows = self.sweep.final
    if over is not None:
      tasks = [trial.changes.get(over) for trial in best.trials]
      rows = [changes for changes in rows if changes[over] in tasks]
    return _drop_duplicates(self._last_run({**best.changes, **changes}) for changes in rows)

  def check(self, trials: Sequence[Trial]) -> None:
    """Checks that flags and trials set different keys, and that trials and last runs are possible.

    Args:
      trials: trials of the study.

    Raises:
      ConfigError: a check fails.
    """
    for key in self.overrides:
      tried = [name for changes in [*self.sweep.trials, *self.sweep.final] for name in changes]
      if any(key == name or key.startswith(f"{name}.") for name in tried):
        raise ConfigError(f"--config.{key}: sweep() already sets this key. Change sweep() in {self.file}")
    check_possible(trials)
    possible = [trial for trial in trials if trial.config is not None]
    for trial in self.make_last_runs(group_settings(possible, self.sweep.over)[0]):
      if trial.config is None:
        raise ConfigError(f"sweep: final: {trial}: {trial.error}")

  def _trial(self, changes: Changes) -> Trial:
    decide = self.sweep.decide

    def drop_test_evaluations(run: BoundRun, base: Mapping[str, object]) -> dict[str, str]:
      if not decide:
        return {}
      _check_decides(run, decide)
      return _fill_evaluations(run, base) | {f"evals.{name}": "default" for name in _find_test_evaluations(run)}

    return self._run(changes, self.workdir / "trials", drop_test_evaluations)

  def _last_run(self, changes: Changes) -> Trial:
    decide = self.sweep.decide
    assert decide is not None

    def add_test_evaluations(run: BoundRun, base: Mapping[str, object]) -> dict[str, str]:
      if decide.partition("/")[0] in run.evals:  # absent if this run does not hold out images
        _check_decides(run, decide)
      on_test = {f"evals.{name}.every": "100%" for name in _find_test_evaluations(run)}
      on_test = on_test or {"evals.test.name": "accuracy", "evals.test.split": "test"}
      return {f"evals.{decide.partition('/')[0]}": "default"} | on_test

    return self._run(changes, self.workdir / "final", add_test_evaluations)

  def _run(
    self, changes: Mapping[str, object], folder: pathlib.Path, evaluations: Callable[[Any, Any], dict[str, str]]
  ) -> Trial:
    """Returns the trial of these changes. `evaluations` maps its run and config to flags that select evaluations."""
    texts = dict(self.overrides)
    try:
      texts |= format_flags(changes, schema.to_plain(flags.load_config(self.file)))
      # Otherwise each trial would pin the commits that exist when it starts, and its config would differ from this one.
      texts |= pinning.pin_shared_weights(_resolve_config(self.file, texts, adopt=False), self.pins)
      texts |= evaluations(_resolve_config(self.file, texts), flags.load_config(self.file, texts))
      text = config.dumps(_resolve_config(self.file, texts))
    except ConfigError as error:
      name = _compute_digest(json.dumps([texts, schema.to_plain(dict(changes))], default=str))
      return Trial(name, changes, texts, folder / name, None, "failed", str(error))
    name = _compute_digest(text)
    return Trial(name, changes, texts, folder / name, text)


def _compute_digest(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def _drop_duplicates(trials: Iterable[Trial]) -> list[Trial]:
  """Returns the first trial of each name."""
  first = {}
  for trial in trials:
    first.setdefault(trial.name, trial)
  return list(first.values())


def _resolve_config(file: str, texts: Mapping[str, str], adopt: bool = True) -> BoundRun:
  return build.complete(config.resolve(flags.load_config(file, texts)), adopt)


def _find_test_evaluations(run: BoundRun) -> list[str]:
  """Returns the names of the evaluations that use the test split of the run's own data."""
  return [
    name for name, choice in run.evals.items() if selection.find_split(choice.args) in ("test", run.data.test_split)
  ]


def _fill_evaluations(run: BoundRun, base: Mapping[str, object]) -> dict[str, str]:
  """Returns flags for the evaluations that the config leaves to defaults, which depend on the evaluation of test."""
  added = [name for name in run.evals if not flags.has_key(base, f"evals.{name}.name")]
  return format_flags({f"evals.{name}": schema.to_plain(run.evals[name]) for name in added}, {})


def _check_decides(run: BoundRun, decide: str) -> None:
  """Raises ConfigError unless `decide` is a metric of an evaluation of the run that uses no test images."""
  name, _, metric = decide.partition("/")
  if name not in run.evals or not metric:
    raise ConfigError(
      f"sweep: decide is {decide!r}. Allowed: <evaluation>/<figure>, with one of the evaluations {', '.join(run.evals)}"
    )
  if name in _find_test_evaluations(run):
    raise ConfigError(
      f"sweep: decide is {decide!r}, which uses test images. Hold out a part of train with config.data.val"
    )
  known = run.list_figure_names(name)
  if metric not in known:
    raise ConfigError(
      f"sweep: decide is {decide!r}, but {name!r} has no such figure.{schema.suggest_nearest(metric, known)}"
    )


def check_possible(trials: Sequence[Trial]) -> None:
  """Raises an error with the first reason if all trials have failed.

  Args:
    trials: trials of a study.

  Raises:
    ConfigError: all trials have failed.
  """
  if all(trial.status in ("failed", "absent") for trial in trials):
    errors = list(dict.fromkeys(trial.error for trial in trials))
    raise ConfigError(errors[0] if len(errors) == 1 else f"no trial can be started. The first error is: {errors[0]}")


def check_data(trials: Sequence[Trial], decide: str | None, over: str | None = None) -> None:
  """Checks the data and weights of each trial, and marks trials that are not possible as failed.

  A trial fails if its data or weights are absent, or if it decides by images of its test or training split. Each
  dataset is opened once.

  Args:
    trials: the trials. They are changed in place.
    decide: the figure by which the sweep decides, or None.
    over: key with the tasks of a suite as values. A task with absent data then counts as absent and not as failed.

  Raises:
    ConfigError: no trial remains.
  """

  def open_in_config(data: schema.Choice, split: str) -> sources.Source:
    with schema.enter_key("config.data"):
      return catalog.open_split(data, split)

  open_split = shared_data.SplitRecorder(open_in_config)
  for trial in trials:
    if trial.config is not None:
      try:
        _check_data(config.resolve(json.loads(trial.config)), decide, open_split)
      except ConfigError as error:
        absent = isinstance(error, AbsentError) and not isinstance(error, UnreachableError)
        trial.fail(str(error), "absent" if over and absent else "failed")
  check_possible(trials)


def _check_data(
  run: config.Run, decide: str | None, open_split: Callable[[schema.Choice, str], sources.Source]
) -> None:
  weights = run.init.from_
  if problem := pinning.download(pinning.find_addresses(run)):
    raise ConfigError(problem)
  if weights and not hub_addresses.is_address(weights) and not paths.resolve_path(weights).exists():
    raise ConfigError(f"config.init.from: no file {weights!r}")
  train = open_split(run.data, "train")
  split = selection.find_split(run.evals[decide.partition("/")[0]].args) if decide else None
  if split is None:
    return
  deciding = open_split(run.data, split)
  for name, images in (("test", open_split(run.data, "test")), ("train", train)):
    if sources.share_records(deciding, images):
      raise ConfigError(
        f"sweep: decide is {decide!r}, which uses images of the {name} split: {deciding.split!r} and {images.split!r} "
        "share images. Hold out a part of train with config.data.train and config.data.val"
      )


def load_sweep(path: str) -> Sweep:
  """Returns the sweep of a config file.

  A plain list of changes becomes a sweep that does not choose a setting.

  Args:
    path: `file` or `file:argument`. The file's function `sweep` gets the argument if it has a parameter.

  Raises:
    ConfigError: the file defines no sweep, or returns a value of another type.
  """
  module, argument = flags.load_module(path)
  if not callable(getattr(module, "sweep", None)):
    raise ConfigError(
      f"--config: {path} defines no sweep(). Run it once with python -m {_find_command(path, module, argument)}, or "
      f"define sweep(), see {flags.find_example()}"
    )
  takes = bool(inspect.signature(module.sweep).parameters)
  sweep = extensions.call_function(
    path, module.sweep, *([argument] if argument and takes else []), file=module.__file__
  )
  if isinstance(sweep, list | tuple):
    sweep = Sweep(sweep, decide=None)
  if not isinstance(sweep, Sweep):
    raise ConfigError(
      f"--config: sweep() of {path} returned {sweep!r}. Allowed: a Sweep or a list of changes, see "
      "vit_jax/config/sweep.py"
    )
  return sweep


def _find_command(path: str, module: types.ModuleType, argument: str | None) -> str:
  """Returns the command for a config file without a sweep."""
  config_of_file = extensions.call_function(
    path, module.get_config, *([argument] if argument else []), file=module.__file__
  )
  is_mapping = isinstance(config_of_file, Mapping | ml_collections.ConfigDict)
  return "vit_jax.fewshot" if is_mapping and config.is_measurement(config_of_file) else "vit_jax.train"


def format_flags(changes: Changes, base: Mapping[str, Any]) -> dict[str, str]:
  """Converts changes to flags of a command, `--config.KEY=VALUE`.

  A choice replaces the choice of the config. Keys that only the old choice sets return to their defaults.

  Args:
    changes: {key: value}.
    base: values of the config.

  Returns:
    {key: text}.

  Example:
    from vit_jax.sweeps import study

    flags = study.format_flags({"optim.lr": 0.1, "optim.schedule": {"name": "constant"}}, {})
    assert flags == {"optim.lr": "0.1", "optim.schedule.name": "constant"}
  """
  texts = {}
  for key, value in changes.items():
    if not isinstance(value, Mapping):
      texts[key] = _format_value(value)
      continue
    old = base
    for name in key.split("."):
      old = old.get(name, {}) if isinstance(old, Mapping) else {}
    old = old if isinstance(old, Mapping) else {}
    texts |= {f"{key}.{name}": "default" for name in old if name not in value}
    texts |= format_flags({f"{key}.{name}": part for name, part in value.items()}, base)
  return texts


def _format_value(value: object) -> str:
  if value is None:
    return "none"
  return repr(tuple(value)) if isinstance(value, list | tuple | range) else str(value)
