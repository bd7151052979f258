"""A run's lines of metrics replayed into a tracker of experiments, outside of the training: W&B, MLflow, Trackio.

Without a key or an address they work offline. What was sent is noted in `exports.json` of the workdir, so that the same
call later adds what is new, also where the run has gone on, or has gone back to a checkpoint and on from there.
"""

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import extras, files, paths, selection
from vit_jax.schema import ConfigError, amount, nearest, show, texts

NOTES = "exports.json"
BATCH = 500  # metrics in a request to MLflow, which takes 1,000
LAST = 2**63 - 1  # step that databases hold
_PROJECT = re.compile(r"(?=.*[^\W_])[\w. -]{1,100}")  # names that all of them take
_ID = re.compile(r"[0-9a-f]{16}")  # what `_identity` makes
_ERRORS = {  # {module: class} of what they raise themselves, and their databases
  "wandb": {"wandb.errors": "Error"},
  "mlflow": {"mlflow.exceptions": "MlflowException", "sqlalchemy.exc": "SQLAlchemyError"},
  "trackio": {"trackio.exceptions": "TrackioAPIError", "sqlite3": "Error"},
}


class Export(NamedTuple):
  """What a tracker is to get."""

  id: str  # of the run there; the same at each call
  name: str
  project: str
  config: dict[str, Any]
  rows: list[tuple[int, dict[str, float]]]  # (step, figures), in order
  folder: pathlib.Path  # for what it writes on this disk
  written: int  # milliseconds since the epoch


def export(workdir: pathlib.Path, to: str, project: str = "vit_jax", folder: pathlib.Path | None = None) -> str:
  """Gives a tracker the lines of a run's metrics.jsonl that it has not got yet; says in a line how many, and where.

  Args:
    workdir: of the run, which may be training.
    to: "wandb", "mlflow" or "trackio"; ConfigError where its package is missing.
    project: what the tracker keeps runs under, MLflow's word is experiment; a name that all of them take.
    folder: on a disk, for W&B's folder `wandb` and MLflow's `mlflow.db`; by default that around the workdir.
  """
  if to not in TRACKERS:
    raise ConfigError(f"unknown tracker {to!r}.{nearest(to, TRACKERS)}")
  if not _PROJECT.fullmatch(project):
    allowed = "1 to 100 letters, digits, '-', '_', '.' and spaces, with a letter or digit among them"
    raise ConfigError(f"--project is {show(project)}; allowed: {allowed}")
  if importlib.util.find_spec(to) is None:
    raise ConfigError(f"{to} is not installed. It comes with {extras.advice(to)}")
  config, lines = files.read_json(workdir / "config.json"), list(rows(workdir))
  if config is None or not lines:
    raise ConfigError(f"{workdir} holds no run that has measured anything (config.json, metrics.jsonl)")
  notes = _notes(workdir / NOTES)
  note = notes.get(to) or {"id": _identity(workdir, config), "step": -1, "rows": 0}
  fresh = _after(lines, note["step"], note["rows"])
  if not fresh:
    return f"{workdir}: {to} has all {amount(len(lines), 'line')}"
  folder = folder or (files.local_cache("trackers") if paths.in_bucket(workdir) else workdir.absolute().parent)
  folder.mkdir(parents=True, exist_ok=True)
  name = f"{workdir.name}-{note['id'][:6]}"
  written = int((workdir / "metrics.jsonl").stat().st_mtime * 1000) if not paths.in_bucket(workdir) else 0
  with _errors(to, workdir):
    where = TRACKERS[to](Export(note["id"], name, project, config | _ranked_by(config), fresh, folder, written))
  last = lines[-1][0]
  note |= {"step": last, "rows": sum(step == last for step, _ in lines)}
  files.write_text(workdir / NOTES, json.dumps(notes | {to: note}, indent=2) + "\n")
  return f"{workdir}: {len(fresh):,} of {amount(len(lines), 'line')} to {where}"


def rows(workdir: pathlib.Path) -> Iterator[tuple[int, dict[str, float]]]:
  """(step, figures) of the whole lines of metrics.jsonl; in a bucket it may be several objects.

  A line is left out that is torn, or has a number that a float or a database does not hold.
  """
  for file in sorted(workdir.glob("metrics.jsonl*"), key=str):
    for line in file.read_bytes().splitlines():
      try:
        values = files.parse_json(line)
        step, figures = int(values.pop("step")), {name: float(value) for name, value in values.items()}
      except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        continue  # half a line, of a run that is writing it
      if 0 <= step <= LAST:
        yield step, figures


def _ranked_by(config) -> dict[str, Any]:
  """What ranks a run of this config, for the tracker's own table: {"ranked_by": {"metric": ..., "split": ...}}."""
  evals = config.get("evals") or {}
  chosen = selection.criterion(config, ["top1" if name == "test" else f"{name}/top1" for name in evals])
  return {"ranked_by": {"metric": selection.shown(chosen.metric), "split": chosen.split}} if chosen else {}


def measured(workdir: pathlib.Path) -> bool:
  """Whether a run has lines that can be exported."""
  return next(rows(workdir), None) is not None


def _notes(file):
  """What exports.json says of each tracker."""
  notes = files.read_json(file) or {}
  for to, note in notes.items():
    values = [note.get(key) for key in ("id", "step", "rows")] if isinstance(note, Mapping) else [None] * 3
    identity, *counts = values
    known = isinstance(identity, str) and _ID.fullmatch(identity)
    if not known or not all(type(count) is int and -1 <= count <= LAST for count in counts):
      advice = "Mend the file, or remove it and the tracker's run: all lines are then sent again"
      raise ConfigError(f"{file}: {to} is {show(note)}; allowed: the id, step and rows of an export. {advice}")
  return notes


@contextlib.contextmanager
def _errors(to, workdir):
  """What a tracker raises itself is a ConfigError with its first line."""
  try:
    yield
  except _classes(to) as error:
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    advice = "The run there may have a part of the lines; mend this and run the same command again"
    raise ConfigError(f"{workdir}: {to} does not take it: {said}. {advice}") from error


def _classes(to):
  """The errors of a tracker; a module that is not imported has raised none."""
  return tuple(getattr(sys.modules[module], name) for module, name in _ERRORS[to].items() if module in sys.modules)


def _after(lines, step, count):
  """The lines after the first `count` ones of a step."""
  at = [line for line in lines if line[0] == step]
  return at[count:] + [line for line in lines if line[0] > step]


def _identity(workdir, config):
  """Of a run, by what it is and where."""
  text = json.dumps([str(paths.absolute(workdir)), config], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(values: Mapping[str, Any] | Sequence, prefix: str = "") -> dict[str, Any]:
  """A nested config as {"optim.lr": 0.1}."""
  result = {}
  for key, value in values.items():
    result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
  return result


# One function for each: adds the rows to the run of that id, and says where it is.


def _wandb(what: Export) -> str:
  """Offline unless WANDB_API_KEY or WANDB_MODE is set."""
  import wandb

  mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
  quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True)
  run = wandb.init(
    project=what.project, id=what.id, name=what.name, config=what.config, dir=str(what.folder), mode=mode,
    resume="allow", settings=quiet,
  )  # fmt: skip
  with run:  # which is a failed one for W&B if it ends by an error
    for step, figures in what.rows:
      run.log(figures, step=step)
  if mode == "offline":
    upload = shlex.join(["wandb", "sync", str(pathlib.Path(run.dir).parent)])
    return f"{what.folder / 'wandb'}, offline; upload with: {upload}"
  return str(run.url)


def _mlflow(what: Export) -> str:
  """Into MLFLOW_TRACKING_URI, or a file of SQLite."""
  from mlflow.entities import Metric, Param
  from mlflow.exceptions import MlflowException
  from mlflow.tracking import MlflowClient

  for library in ("alembic", "mlflow"):  # which say each table that they make; importing it sets their levels
    logging.getLogger(library).setLevel(logging.WARNING)
  address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{what.folder / 'mlflow.db'}"
  client = MlflowClient(tracking_uri=address)
  experiment = client.get_experiment_by_name(what.project)
  number = experiment.experiment_id if experiment else client.create_experiment(what.project)
  there = client.search_runs([number], filter_string=f"tags.vit_jax_id = '{what.id}'")
  run = there[0] if there else client.create_run(number, run_name=what.name, tags={"vit_jax_id": what.id})
  identity, broken = run.info.run_id, bool(there) and run.info.status != "FINISHED"
  # Of an export that broke off, a part is there.
  sent = {(name, row.step) for name in run.data.metrics if broken for row in client.get_metric_history(identity, name)}
  config = {_mlflow_name(key): str(value)[:500] for key, value in flat(what.config).items()}
  params = [Param(key, value) for key, value in config.items() if key not in run.data.params]
  params = params if broken or not there else []
  figures = [(_mlflow_name(name), step, value) for step, row in what.rows for name, value in row.items()]
  metrics = [Metric(name, value, what.written, step) for name, step, value in figures if (name, step) not in sent]
  client.update_run(identity, status="RUNNING")
  try:
    for i in range(0, len(params), 100):
      client.log_batch(identity, params=params[i : i + 100])
    for i in range(0, len(metrics), BATCH):
      client.log_batch(identity, metrics=metrics[i : i + BATCH])
  except MlflowException:
    with contextlib.suppress(MlflowException):  # of a server that is gone
      client.set_terminated(identity, status="FAILED")
    raise
  client.set_terminated(identity)
  show = f"mlflow ui {texts.flag('backend-store-uri', address)}"  # mlflow-skinny has no page
  return f"{address}, experiment {what.project!r}; to see it: install the package mlflow, then {show}"


def _mlflow_name(key: str) -> str:
  """A key in characters that MLflow takes, others as their hexadecimal numbers: a path without "..", "." and "//"."""
  letters = "".join(c if re.fullmatch(r"[\w./ -]", c) else f"_{ord(c):x}_" for c in key)
  return "/".join(part for part in letters[:250].split("/") if part.strip(".")) or "_"


def _trackio(what: Export) -> str:
  """Into TRACKIO_DIR, or Trackio's own folder in the cache of Hugging Face."""
  import trackio

  run = trackio.init(
    what.project, name=what.name, config=what.config, resume="allow", embed=False, auto_log_gpu=False,
    auto_log_cpu=False,
  )  # fmt: skip
  for step, figures in what.rows:
    run.log(figures, step=step)
  run.finish()
  return f"Trackio's project {what.project!r}; look at it with: trackio show {texts.flag('project', what.project)}"


TRACKERS = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}
