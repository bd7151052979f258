"""Export of a run's metrics to an experiment tracker: W&B, MLflow or Trackio.

Without a key or an address, the trackers work offline. The file `exports.json` in the workdir records what was sent. A
later call therefore sends only new lines, even if the run has continued or has restarted from a checkpoint. If two
calls run at the same time on a machine, the second waits for the first.
"""

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from vit_jax.evals import selection
from vit_jax.schema import ConfigError, extras, format_amount, show, suggest_nearest, texts
from vit_jax.storage import files, locks, paths

NOTES = "exports.json"
BATCH = 500  # metrics per request to MLflow, which allows 1,000
LAST = 2**63 - 1  # largest step that databases can store
_PROJECT = re.compile(r"(?=.*[^\W_])[\w. -]{1,100}")  # names that all trackers accept
_ID = re.compile(r"[0-9a-f]{16}")  # result of `_make_identifier`
ADVICE = "The tracker's run may already contain some of the lines. Fix the problem and run the same command again"
REASON = 160  # characters of a tracker's reason in an error
_ERRORS = {  # {module: class} of exceptions of the trackers, their databases and their connections
  "wandb": {"wandb.errors": "Error", "requests.exceptions": "RequestException"},
  "mlflow": {"mlflow.exceptions": "MlflowException", "sqlalchemy.exc": "SQLAlchemyError"},
  "trackio": {"trackio.exceptions": "TrackioAPIError", "sqlite3": "Error", "httpx": "HTTPError"},
}


class Export(NamedTuple):
  """Data for a tracker.

  Attributes:
    id: identifier of the run in the tracker, the same at each call.
    name: name of the run.
    project: project in the tracker.
    config: config of the run.
    rows: pairs (step, figures) in order.
    folder: directory for files of the tracker.
    written: time of the metrics in milliseconds since the epoch.
  """

  id: str
  name: str
  project: str
  config: dict[str, Any]
  rows: list[tuple[int, dict[str, float]]]
  folder: pathlib.Path
  written: int


def export_metrics(workdir: pathlib.Path, to: str, project: str = "vit_jax", folder: pathlib.Path | None = None) -> str:
  """Sends the lines of a run's metrics.jsonl that a tracker does not have yet.

  Args:
    workdir: workdir of the run, which may be training.
    to: "wandb", "mlflow" or "trackio".
    project: project in the tracker, which MLflow calls experiment.
    folder: directory for W&B's folder `wandb` and MLflow's `mlflow.db`. By default the parent of the workdir.

  Returns:
    One line with the number of lines and the location.

  Raises:
    ConfigError: the tracker is unknown, not installed or fails, or the run has no metrics.
  """
  if to not in TRACKERS:
    raise ConfigError(f"unknown tracker {to!r}.{suggest_nearest(to, TRACKERS)}")
  if not _PROJECT.fullmatch(project):
    allowed = "1 to 100 letters, digits, '-', '_', '.' and spaces, with a letter or digit among them"
    raise ConfigError(f"--project is {show(project)}. Allowed: {allowed}")
  check_installed(to)
  config = files.read_json(workdir / "config.json")
  if config is None or not has_exportable_rows(workdir):
    raise ConfigError(f"{workdir} contains no run with metrics (config.json, metrics.jsonl)")
  folder = folder or (
    files.get_local_cache_directory("trackers") if paths.is_in_bucket(workdir) else workdir.absolute().parent
  )
  folder.mkdir(parents=True, exist_ok=True)
  with locks.lock_file(_choose_lock_file(workdir)):
    return _export_later_lines(workdir, to, project, folder, config)


def _choose_lock_file(workdir: pathlib.Path) -> pathlib.Path:
  """Returns the file that exports of a workdir lock. The lock of the workdir itself is needed to write exports.json."""
  if not paths.is_in_bucket(workdir):
    return workdir / "exports.lock"
  folder = files.get_local_cache_directory("trackers")
  folder.mkdir(parents=True, exist_ok=True)
  return folder / f"{hashlib.sha256(str(workdir).encode()).hexdigest()[:16]}.lock"


def _export_later_lines(
  workdir: pathlib.Path, to: str, project: str, folder: pathlib.Path, config: dict[str, Any]
) -> str:
  """Sends the lines that a tracker does not have yet, and records them. Only one export may do this at a time."""
  lines, notes = list(read_rows(workdir)), _read_notes(workdir / NOTES)
  note = notes.get(to) or {"id": _make_identifier(workdir, config), "step": -1, "rows": 0}
  fresh = _select_later_lines(lines, note["step"], note["rows"])
  if not fresh:
    return f"{workdir}: {to} already contains all {format_amount(len(lines), 'line')}"
  name = f"{workdir.name}-{note['id'][:6]}"
  written = int((workdir / "metrics.jsonl").stat().st_mtime * 1000) if not paths.is_in_bucket(workdir) else 0
  with _convert_errors(to, workdir):
    where = TRACKERS[to](
      Export(note["id"], name, project, config | _read_ranking_figure(config), fresh, folder, written)
    )
  last = lines[-1][0]
  note |= {"step": last, "rows": sum(step == last for step, _ in lines)}
  files.write_text(workdir / NOTES, json.dumps(notes | {to: note}, indent=2) + "\n")
  return f"{workdir}: sent {len(fresh):,} of {format_amount(len(lines), 'line')} to {where}"


def check_installed(to: str) -> None:
  """Raises ConfigError if the package of a tracker is not installed."""
  if importlib.util.find_spec(to) is None:
    raise ConfigError(f"{to} is not installed. It comes with {extras.format_advice(to)}")


def read_rows(workdir: pathlib.Path) -> Iterator[tuple[int, dict[str, float]]]:
  """Yields (step, figures) of the complete lines of metrics.jsonl, which may be several objects in a bucket.

  Skips incomplete lines, and lines with a number that a float or a database cannot represent.
  """
  for file in sorted(workdir.glob("metrics.jsonl*"), key=str):
    for line in file.read_bytes().splitlines():
      try:
        values = files.parse_json(line)
        step, figures = int(values.pop("step")), {name: float(value) for name, value in values.items()}
      except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        continue  # half a line of a run that is writing it
      if 0 <= step <= LAST:
        yield step, figures


def _read_ranking_figure(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the figure that ranks a run, for the tracker's table: {"ranked_by": {"metric": ..., "split": ...}}."""
  evals = config.get("evals") or {}
  chosen = selection.select_criterion(config, ["top1" if name == "test" else f"{name}/top1" for name in evals])
  return {"ranked_by": {"metric": selection.format_name(chosen.metric), "split": chosen.split}} if chosen else {}


def has_exportable_rows(workdir: pathlib.Path) -> bool:
  """Returns whether a run has lines that can be exported."""
  return next(read_rows(workdir), None) is not None


def _read_notes(file: pathlib.Path) -> dict[str, Any]:
  """Reads exports.json and checks the record of each tracker."""
  notes = files.read_json(file) or {}
  for to, note in notes.items():
    values = [note.get(key) for key in ("id", "step", "rows")] if isinstance(note, Mapping) else [None] * 3
    identity, *counts = values
    known = isinstance(identity, str) and _ID.fullmatch(identity)
    if not known or not all(type(count) is int and -1 <= count <= LAST for count in counts):
      advice = "Fix the file. Alternatively, remove the file and the tracker's run, so that all lines are sent again"
      raise ConfigError(f"{file}: {to} is {show(note)}. Allowed: the id, step and rows of an export. {advice}")
  return notes


@contextlib.contextmanager
def _convert_errors(to: str, workdir: pathlib.Path) -> Iterator[None]:
  """Converts a tracker's exception to ConfigError with one short line."""
  try:
    yield
  except _list_exception_classes(to) as error:
    raise ConfigError(f"{workdir}: {to} rejected the metrics: {_find_reason(error)}. {ADVICE}") from error


def _find_reason(error: BaseException) -> str:
  """Returns the reason of the system that caused an exception, or else the first line of the exception."""
  cause: BaseException | None = error
  found = str(error)
  while cause is not None:
    if isinstance(cause, OSError) and type(cause).__module__ in ("builtins", "socket", "ssl"):
      found = cause.strerror or str(cause)
    cause = cause.__cause__ or cause.__context__
  line = (found.strip() or type(error).__name__).splitlines()[0]
  return texts.hide_passwords(line)[:REASON].rstrip(" .")


def _list_exception_classes(to: str) -> tuple[type[Exception], ...]:
  """Returns the exception classes of a tracker and the network. A module that is not imported raises none."""
  errors = _ERRORS.get(to, {})
  found = (getattr(sys.modules[module], name) for module, name in errors.items() if module in sys.modules)
  return (ConnectionError, TimeoutError, *found)


def _select_later_lines(lines: Sequence[Any], step: int, count: int) -> list[Any]:
  """Returns the lines after the first `count` lines of a step."""
  at = [line for line in lines if line[0] == step]
  return at[count:] + [line for line in lines if line[0] > step]


def _make_identifier(workdir: pathlib.Path, config: Mapping[str, Any]) -> str:
  """Returns an identifier of a run by its workdir and config."""
  text = json.dumps([str(paths.make_absolute(workdir)), config], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def flatten_config(values: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
  """Flattens a nested config to dotted keys, such as {"optim.lr": 0.1}.

  Args:
    values: the config.
    prefix: prefix of all keys.
  """
  result = {}
  for key, value in values.items():
    result |= flatten_config(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
  return result


# One function for each tracker. It adds the rows to the run and returns its location.


def _send_to_wandb(what: Export) -> str:
  """Sends metrics to W&B, offline unless WANDB_API_KEY or WANDB_MODE is set."""
  import wandb

  chosen = os.environ.get("WANDB_MODE")  # which W&B reads itself
  default: Literal["online", "offline"] = "online" if os.environ.get("WANDB_API_KEY") else "offline"
  quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True)
  run = wandb.init(
    project=what.project, id=what.id, name=what.name, config=what.config, dir=str(what.folder),
    mode=None if chosen else default, resume="allow", settings=quiet,
  )  # fmt: skip
  with run:  # W&B marks the run as failed if the context ends by an exception
    for step, figures in what.rows:
      run.log(figures, step=step)
  if (chosen or default) == "offline":
    # Each export writes a folder of its own. The command uploads all of them, in the order in which they were written.
    folder = pathlib.Path(run.dir).parents[1]
    return f"{folder}, offline; upload with: wandb sync {texts.quote_word(str(folder))}/offline-run-*-{what.id}"
  return str(run.url)


def _send_to_mlflow(what: Export) -> str:
  """Sends metrics to MLFLOW_TRACKING_URI, or to an SQLite file."""
  from mlflow.entities import Metric, Param
  from mlflow.exceptions import MlflowException
  from mlflow.tracking import MlflowClient

  # these libraries log each table that they create; their import sets the log levels
  for library in ("alembic", "mlflow"):
    logging.getLogger(library).setLevel(logging.WARNING)
  address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{what.folder / 'mlflow.db'}"
  client = MlflowClient(tracking_uri=address)
  experiment = client.get_experiment_by_name(what.project)
  number = experiment.experiment_id if experiment else client.create_experiment(what.project)
  there = client.search_runs([number], filter_string=f"tags.vit_jax_id = '{what.id}'")
  run = there[0] if there else client.create_run(number, run_name=what.name, tags={"vit_jax_id": what.id})
  identity, broken = run.info.run_id, bool(there) and run.info.status != "FINISHED"
  # An interrupted export has sent a part of the metrics.
  sent = {(name, row.step) for name in run.data.metrics if broken for row in client.get_metric_history(identity, name)}
  config = {escape_mlflow_key(key): str(value)[:500] for key, value in flatten_config(what.config).items()}
  params = [Param(key, value) for key, value in config.items() if key not in run.data.params]
  params = params if broken or not there else []
  figures = [(escape_mlflow_key(name), step, value) for step, row in what.rows for name, value in row.items()]
  metrics = [Metric(name, value, what.written, step) for name, step, value in figures if (name, step) not in sent]
  client.update_run(identity, status="RUNNING")
  try:
    for i in range(0, len(params), 100):
      client.log_batch(identity, params=params[i : i + 100])
    for i in range(0, len(metrics), BATCH):
      client.log_batch(identity, metrics=metrics[i : i + BATCH])
  except MlflowException:
    with contextlib.suppress(MlflowException):  # the server may be gone
      client.set_terminated(identity, status="FAILED")
    raise
  client.set_terminated(identity)
  address = texts.hide_passwords(address)
  show = f"mlflow ui {texts.format_flag('backend-store-uri', address)}"  # mlflow-skinny has no user interface
  return f"{address}, experiment {what.project!r}. To view it, install the package mlflow, then run {show}"


def escape_mlflow_key(key: str) -> str:
  """Returns a key that MLflow accepts: other characters as hexadecimal numbers, without "..", "." and "//"."""
  letters = "".join(c if re.fullmatch(r"[\w./ -]", c) else f"_{ord(c):x}_" for c in key)
  return "/".join(part for part in letters[:250].split("/") if part.strip(".")) or "_"


def _send_to_trackio(what: Export) -> str:
  """Sends metrics to TRACKIO_DIR, or to Trackio's own directory in the cache of Hugging Face."""
  import trackio

  run = trackio.init(
    what.project, name=what.name, config=what.config, resume="allow", embed=False, auto_log_gpu=False,
    auto_log_cpu=False,
  )  # fmt: skip
  for step, figures in what.rows:
    run.log(figures, step=step)
  run.finish()
  return f"Trackio's project {what.project!r}. View it with: trackio show {texts.format_flag('project', what.project)}"


TRACKERS = {"wandb": _send_to_wandb, "mlflow": _send_to_mlflow, "trackio": _send_to_trackio}
