"""Tests of metrics in trackers, read with the trackers' own tools: every row is exported exactly once."""

import json
import pathlib
import re
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from vit_jax.reports import trackers
from vit_jax.schema import ConfigError

CONFIG = {"optim": {"name": "adamw", "lr": 0.1}, "evals": {"test": {"name": "accuracy"}}, "seed": 3}


def write(workdir, last, extra=0.0):
  """Writes a run up to step `last`, with a training line per step and an evaluation line every third step."""
  workdir.mkdir(exist_ok=True)
  (workdir / "config.json").write_text(json.dumps(CONFIG))
  lines = []
  for step in range(1, last + 1):
    lines.append({"step": step, "train/loss": 1 / step, "images_per_second": 9 + extra})
    lines += [{"step": step, "test/top1": step / 10, "test/1000_way_top1": 0.5}] * (step % 3 == 0)
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 99, "torn')


def wandb_rows(folder):
  """Returns [(step, {name: value})] of the files for later upload.

  They consist of blocks of 32 KiB with records as in the log of LevelDB.
  """
  from wandb.proto import wandb_internal_pb2

  rows = {}
  for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
      if 2**15 - at % 2**15 < 7:
        at += 2**15 - at % 2**15
      size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
      parts, at = parts + content[at + 7 : at + 7 + size], at + 7 + size
      if kind in (1, 4):  # a whole record, or its last part
        record = wandb_internal_pb2.Record.FromString(parts)
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        if values:
          rows.setdefault(values["_step"], {}).update({k: v for k, v in values.items() if not k.startswith("_")})
        parts = b""
  return rows


def mlflow_rows(folder):
  from mlflow.tracking import MlflowClient

  client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
  (run,) = client.search_runs([client.get_experiment_by_name("vit_jax").experiment_id])
  assert run.data.params["optim.lr"] == "0.1" and run.data.params["evals.test.name"] == "accuracy"
  assert (run.data.params["ranked_by.metric"], run.data.params["ranked_by.split"]) == ("test/top1", "test")
  rows = {}
  for name in run.data.metrics:
    for each in client.get_metric_history(run.info.run_id, name):
      assert name not in rows.setdefault(each.step, {})
      rows[each.step][name] = each.value
  return rows


def trackio_rows(folder):
  with sqlite3.connect(folder / "trackio" / "vit_jax.db") as database:
    logged = database.execute("select step, metrics from metrics order by id").fetchall()
    assert len(database.execute("select distinct run_id from metrics").fetchall()) == 1
  rows = {}
  for step, text in logged:
    assert not rows.setdefault(step, {}).keys() & json.loads(text).keys()
    rows[step] |= json.loads(text)
  return rows


def expected(workdir):
  rows = {}
  for line in (workdir / "metrics.jsonl").read_text().splitlines()[:-1]:
    values = json.loads(line)
    rows.setdefault(values.pop("step"), {}).update(values)
  return rows


READ = {"wandb": wandb_rows, "mlflow": mlflow_rows, "trackio": trackio_rows}


ADVICE = {
  "wandb": "/wandb/offline-run-*-",  # the command uploads the folders of all exports
  "mlflow": "install the package mlflow, then run mlflow ui --backend-store-uri=sqlite:///",
  "trackio": "View it with: trackio show --project=vit_jax",
}


@pytest.mark.heavy
@pytest.mark.parametrize("to", trackers.TRACKERS)
def test_every_row_is_exported_once_while_a_run_continues(to, tmp_path, monkeypatch):
  pytest.importorskip(to, reason=f"the extra {to} is not installed")
  for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
    monkeypatch.delenv(name, raising=False)
  if to == "trackio":  # it reads its folder at import
    from trackio import sqlite_storage, utils

    for module in (sqlite_storage, utils):
      monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
  workdir = tmp_path / "run"
  write(workdir, 7)
  message = trackers.export_metrics(workdir, to)
  assert "9 of 9 lines to" in message
  assert ADVICE[to] in message  # the message contains the next command
  assert f"{to} already contains all 9 lines" in trackers.export_metrics(workdir, to)
  before = expected(workdir)
  write(workdir, 5, extra=1.0)  # back at a checkpoint: the repeated steps were already exported
  assert f"{to} already contains all 6 lines" in trackers.export_metrics(workdir, to)
  write(workdir, 12, extra=1.0)
  assert "7 of 16 lines to" in trackers.export_metrics(workdir, to)
  after = {step: row for step, row in expected(workdir).items() if step > 7}
  assert READ[to](tmp_path) == before | after
  if to == "wandb":
    import wandb

    wandb.teardown()  # ends its process


def test_tracker_receives_the_metric_that_ranks_the_run(tmp_path, monkeypatch):
  write(tmp_path / "run", 3)
  evals = {name: {"name": "accuracy", "split": name, "data": None} for name in ("val", "test")}
  (tmp_path / "run/config.json").write_text(json.dumps({**CONFIG, "evals": evals}))
  sent = []
  monkeypatch.setitem(trackers.TRACKERS, "trackio", lambda export: str(sent.append(export)))
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  trackers.export_metrics(tmp_path / "run", "trackio")
  assert sent[0].config["ranked_by"] == {"metric": "val/top1", "split": "val"}


def test_mlflow_extra_is_the_package_without_a_web_page():
  """Checks the reason for which the message of an export recommends another package.

  See also docs/guides/trackers.md.
  """
  root = pathlib.Path(__file__).parents[2]
  extra = re.search(r"^MLFLOW = (\[.*?\])", (root / "setup.py").read_text(), re.M)[1]
  assert "mlflow-skinny" in extra and not re.search(r'"mlflow[><=]', extra)
  page = " ".join((root / "docs/guides/trackers.md").read_text().split())
  assert "`pip install mlflow` in any environment, then `mlflow ui --backend-store-uri=" in page


def test_nested_config_is_flattened():
  assert trackers.flatten_config(CONFIG) == {
    "optim.name": "adamw",
    "optim.lr": 0.1,
    "evals.test.name": "accuracy",
    "seed": 3,
  }


def test_errors_contain_the_fix(tmp_path, monkeypatch):
  with pytest.raises(ConfigError, match=r"unknown tracker 'wndb'. Did you mean 'wandb'"):
    trackers.export_metrics(tmp_path, "wndb")
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(
    ConfigError, match=r"mlflow is not installed. It comes with the extra mlflow: pip install -e '.\[mlflow\]'"
  ):
    trackers.export_metrics(tmp_path, "mlflow")
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  with pytest.raises(ConfigError, match="contains no run with metrics"):
    trackers.export_metrics(tmp_path, "wandb")


@pytest.mark.parametrize("project", ["", "a" * 101, "a/b:c", "..", " "])
def test_invalid_project_names_are_refused(tmp_path, project):
  for to in trackers.TRACKERS:
    with pytest.raises(ConfigError, match=r"--project is '.*1 to 100 letters, digits"):
      trackers.export_metrics(tmp_path, to, project)


@pytest.mark.parametrize(
  "note", [3, {}, {"id": 5, "step": "x", "rows": 0}, {"id": "0" * 16, "step": 1.5, "rows": 0}], ids=str
)
def test_error_of_a_damaged_export_record_contains_the_fix(tmp_path, monkeypatch, note):
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  write(tmp_path, 3)
  (tmp_path / "exports.json").write_text(json.dumps({"mlflow": note}))
  with pytest.raises(ConfigError) as error:
    trackers.export_metrics(tmp_path, "mlflow")
  assert all(part in str(error.value) for part in (str(tmp_path / "exports.json"), "mlflow is", "Fix", "remove"))


def test_lines_with_unrepresentable_numbers_are_skipped(tmp_path):
  write(tmp_path, 2)
  huge = "1" + "0" * 400
  lines = [f'{{"step": {step}, "a": 1}}' for step in ("Infinity", "NaN", huge, 2**63, "1e30", -3)]
  (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, f'{{"step": 1, "a": {huge}}}', '{"step": 4, "a": 1}']))
  assert list(trackers.read_rows(tmp_path)) == [(4, {"a": 1.0})]
  assert trackers.has_exportable_rows(tmp_path)
  (tmp_path / "metrics.jsonl").write_text(lines[0])
  assert not trackers.has_exportable_rows(tmp_path)


@pytest.mark.parametrize(
  ("key", "name"),
  [
    ("evals.a*b", "evals.a_2a_b"),
    ("test/1000_way_top1", "test/1000_way_top1"),
    ("日本/top1", "日本/top1"),
    ("../..//x", "x"),
    ("", "_"),
    ("x" * 300, "x" * 250),
  ],
)
def test_mlflow_keys_have_only_valid_characters(key, name):
  assert trackers.escape_mlflow_key(key) == name


SOURCE = """
import json, pathlib, sys
from mlflow.tracking import MlflowClient
from vit_jax.reports import trackers
from vit_jax.schema import ConfigError
workdir = pathlib.Path(sys.argv[1])
whole, times = MlflowClient.log_batch, []

def broken(self, *args, **kwargs):
  times.append(kwargs)
  return whole(self, *args, **kwargs) if len(times) < 3 else whole(self, "absent", *args[1:], **kwargs)

trackers.BATCH = 3
MlflowClient.log_batch = broken
try:
  trackers.export_metrics(workdir, "mlflow")
except ConfigError as error:
  assert "mlflow rejected the metrics" in str(error) and "same command again" in str(error), error
else:
  raise SystemExit("no error")
client = MlflowClient(tracking_uri=f"sqlite:///{workdir.parent / 'mlflow.db'}")
(run,) = client.search_runs([client.get_experiment_by_name("vit_jax").experiment_id])
assert run.info.status == "FAILED" and run.data.metrics, run
MlflowClient.log_batch = whole
trackers.export_metrics(workdir, "mlflow")
run = client.get_run(run.info.run_id)
assert run.info.status == "FINISHED" and run.data.params["evals.a_2a_b.name"] == "accuracy", run
rows = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
print(json.dumps({name: [(row.step, row.value) for row in history] for name, history in rows.items()}))
"""


def test_concurrent_exports_send_each_line_once(tmp_path, monkeypatch):
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  write(tmp_path, 5)
  both, sent = threading.Barrier(2), []

  def send(what):
    time.sleep(0.2)  # the other export reads exports.json meanwhile, unless it waits
    sent.extend(step for step, _ in what.rows)
    return "there"

  def export():
    both.wait()
    trackers.export_metrics(tmp_path, "trackio", folder=tmp_path)

  monkeypatch.setitem(trackers.TRACKERS, "trackio", send)
  threads = [threading.Thread(target=export) for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sent == [1, 2, 3, 3, 4, 5]


def refuse_connection():
  try:
    raise ConnectionRefusedError(111, "Connection refused")
  except ConnectionRefusedError as cause:
    raise sqlite3.DatabaseError(f"Max retries exceeded with url: /api {'x' * 500} (Caused by {cause!r})") from cause


def time_out():
  raise TimeoutError("timed out")


def answer_with_a_page():
  raise sqlite3.DatabaseError("\n404 at https://me:secret@host/a " + "page " * 100 + "\nmore")


@pytest.mark.parametrize(
  ("fail", "reason"),
  [
    (refuse_connection, "Connection refused"),
    (time_out, "timed out"),
    (answer_with_a_page, f"404 at https://host/a {'page ' * 100}"[:160]),
  ],
)
def test_reason_of_a_tracker_is_short(tmp_path, monkeypatch, fail, reason):
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  write(tmp_path, 3)
  monkeypatch.setitem(trackers.TRACKERS, "trackio", lambda what: fail())
  with pytest.raises(ConfigError) as error:
    trackers.export_metrics(tmp_path, "trackio", folder=tmp_path)
  assert str(error.value) == f"{tmp_path}: trackio rejected the metrics: {reason}. {trackers.ADVICE}"


def test_exception_of_a_tracker_is_reported_in_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: name)
  write(tmp_path, 3)

  def refuses(what):
    raise sqlite3.DatabaseError("file is not a database\nand more")

  monkeypatch.setitem(trackers.TRACKERS, "trackio", refuses)
  with pytest.raises(ConfigError, match=r"trackio rejected the metrics: file is not a database\. .*same command again"):
    trackers.export_metrics(tmp_path, "trackio", folder=tmp_path)
  assert not (tmp_path / "exports.json").exists()


@pytest.mark.long
def test_interrupted_mlflow_export_is_reported_and_completed_later(tmp_path):
  pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
  workdir = tmp_path / "run"
  write(workdir, 4)
  config = {**CONFIG, "evals": {"a*b": {"name": "accuracy"}}}
  (workdir / "config.json").write_text(json.dumps(config))
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('\n{"step": 5, "a*b/top1": 0.25}\n')
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run([sys.executable, "-c", SOURCE, workdir], cwd=root, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert "INFO" not in done.stderr and "alembic" not in done.stderr, done.stderr
  rows = json.loads(done.stdout)
  assert rows["a_2a_b/top1"] == [[5, 0.25]]
  assert sorted(rows["train/loss"]) == [[step, 1 / step] for step in range(1, 5)]
