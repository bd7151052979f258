"""Tests of the programs in benchmarks/: they report errors in one line, and cheap ones run at reduced size."""

import ast
import importlib
import json
import sys

import pytest

from benchmarks import children, chips, scanned_layers
from tests import recipes, runs
from vit_jax import cli, runtime
from vit_jax.schema import Choice, ConfigError
from vit_jax.sweeps.trials import Trial

FILES = {file.stem: ast.parse(file.read_text()) for file in sorted((runs.ROOT / "benchmarks").glob("*.py"))}


def guard(tree):
  """Returns the statements below `if __name__ == "__main__"`, as text."""
  tests = [
    node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
  ]
  return [ast.unparse(statement) for node in tests for statement in node.body]


PROGRAMS = [name for name, tree in FILES.items() if guard(tree)]


def run_program(monkeypatch, capsys, name, *words):
  """Runs a benchmark in this process as a program; returns its exit code and its standard error."""
  module = importlib.import_module(f"benchmarks.{name}")
  monkeypatch.setattr("sys.argv", [name, *words])
  with pytest.raises(SystemExit) as end:
    cli.run_verb(module.main)
  return end.value.code, capsys.readouterr().err


def test_benchmarks_contain_the_known_programs():
  assert {"digits_step", "digits_picture", "weights", "transfer", "self_training", "compare", "ablations"} <= {
    *PROGRAMS
  }


@pytest.mark.parametrize("name", [name for name, tree in FILES.items() if "def main" in ast.unparse(tree)])
def test_every_benchmark_calls_cli_run_verb(name):
  assert guard(FILES[name]) == ["cli.run_verb(main)"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_prints_one_line(name, monkeypatch, capsys):
  def interrupted(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr("argparse.ArgumentParser.parse_args", interrupted)
  code, text = run_program(monkeypatch, capsys, name)
  assert (code, len(text.splitlines())) == (130, 1)
  assert text.startswith("interrupted")


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("name", "words", "message"),
  [
    ("digits_picture", ["--workdir={}/none", "--out={}/a.png"], "none contains no run (no config.json). Train one"),
    ("digits_step", ["--json={}/a.json"], "cannot write to"),
    ("weights", ["--model=ViT-Q/16"], "'Q'"),
    ("weights", ["--only={}/none.npz"], "none.npz"),
    ("transfer", ["--workdir={}/runs"], "cannot write to"),
    ("self_training", ["--workdir={}/runs"], "cannot write to"),
    ("compare", ["--workdir={}/runs"], "cannot write to"),
    ("ablations", ["--workdir={}/runs"], "cannot write to"),
    ("ablations", ["--only=shape,block,poling"], "Did you mean 'pooling'?"),
    ("ablations", ["--seeds=1"], "1"),
    ("int8", ["--workdir={}/runs"], "cannot write to"),
    ("int8", ["--data=digits,glyph"], "Did you mean 'glyphs'?"),
    ("int8", ["--seeds=1"], "1"),
    ("gpu_step", ["--models=Q/16"], "'Q'"),
    ("shuffle", ["--jsn=a"], "unrecognized arguments: --jsn=a"),
    ("chips", ["--topology=v9-8"], "v9-8"),
    ("chips", ["--models=B/17"], "Did you mean 'B/16'?"),
    ("modern_block", ["--topology=v9-8"], "v9-8"),
    ("modern_block", ["--attention=fusd,xla"], "--attention: unknown implementation of attention 'fusd'. Did you mean"),
    ("muon", ["--topology=v9-8"], "v9-8"),
    ("tpu_step", ["--topology=v9-8"], "v9-8"),
    (
      "tpu_step",
      ["--attention=xla,fusd"],
      "--attention: unknown implementation of attention 'fusd'. Did you",
    ),
    (
      "tpu_step",
      ["--matmul=default,in8"],
      "--matmul: unknown matmul type 'in8'. Did you mean 'int8'? Allowed: def",
    ),
    ("scanned_layers", ["--topology=v3-32,v9-8"], "v9-8"),
  ],
)
def test_missing_data_and_wrong_values_are_errors_of_one_line(name, words, message, tmp_path, monkeypatch, capsys):
  (tmp_path / "file").write_text("no folder")
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "file"))
  code, text = run_program(monkeypatch, capsys, name, *(word.format(tmp_path) for word in words))
  assert code in (runtime.EXIT_CONFIG, runtime.EXIT_MISSING)
  assert len(text.splitlines()) == 1 and text.startswith("error: ") and message in text, text


def test_missing_profiler_is_reported_with_its_extra_before_measuring(monkeypatch, capsys):
  monkeypatch.setattr("shutil.which", lambda name, path: None)
  code, text = run_program(monkeypatch, capsys, "input_pipeline", "--gil", "--rounds=1")
  assert (code, text) == (2, "error: py-spy is not installed. Run: pip install -e '.[bench]'\n")


def test_program_is_found_next_to_python_without_an_active_environment(monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  assert children.find_program("pytest", "test").endswith("/pytest")


def test_missing_module_is_reported_with_its_extra():
  children.require("json", "torch")
  with pytest.raises(ConfigError, match=r"no_such_module is not installed\. Run: pip install -e '\.\[torch\]'"):
    children.require("no_such_module", "torch")


@pytest.mark.parametrize("name", ["bucket_input", "input_pipeline", "prepare"])
def test_benchmarks_that_need_tensorflow_name_its_install_command(name, monkeypatch, capsys):
  importlib.import_module("tensorflow_datasets")  # it imports TensorFlow later
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  code, text = run_program(monkeypatch, capsys, name)
  assert (code, len(text.splitlines())) == (2, 1)
  assert text.startswith(f"error: benchmarks.{name}: TensorFlow is missing (") and "pip install -e ." in text


@pytest.mark.heavy
def test_failed_child_process_ends_the_benchmark_with_its_last_line():
  assert children.read_output([sys.executable, "-c", "print(1)"]) == "1\n"
  with pytest.raises(runtime.Stop, match=r"no such thing \(exit code 3\)") as stop:
    children.read_output(
      [sys.executable, "-c", "import sys; print('error: no such thing', file=sys.stderr); sys.exit(3)"]
    )
  assert stop.value.code == 3


@pytest.mark.long
def test_digits_step_measures_the_ratio_to_pytorch(tmp_path, monkeypatch, capsys):
  file = tmp_path / "a.json"
  monkeypatch.setattr("sys.argv", ["digits_step", "--rounds=1", "--eager", f"--json={file}"])
  importlib.import_module("benchmarks.digits_step").main()
  figures = json.loads(file.read_text())
  printed = capsys.readouterr().out
  ratio = figures["vit_jax_images_per_second"] / figures["torch_images_per_second"]
  assert figures["ratio_to_torch"] == pytest.approx(ratio, rel=1e-6)
  assert "ratio_to_torch" in printed and "torch_compile" not in printed


@pytest.mark.parametrize(
  ("plain", "integers", "verdict"),
  [
    ([97.0, 97.2, 97.4], [97.1, 97.2, 97.5], "equal"),
    ([97.0, 97.2, 97.4], [90.0, 90.5, 91.0], "different"),
    ([90.0, 95.0, 99.0], [90.0, 94.0, 98.0], "not decided"),
  ],
)
def test_int8_verdicts_follow_from_welchs_interval(plain, integers, verdict):
  import scipy.stats

  from benchmarks import int8

  cells = int8.compare_accuracies({"bfloat16": plain, "int8": integers})
  low, high = scipy.stats.ttest_ind(integers, plain, equal_var=False).confidence_interval()
  assert cells[3:] == [f"{low:.2f} to {high:.2f}", verdict]


def test_table_of_chips_has_a_row_for_each_model_and_marks_recomputation():
  fits, recomputed, large = (
    chips.Cell(1234.4, 0.451, 3, "none"),
    chips.Cell(56, 0.3, 15, "full"),
    chips.Cell(0, 0, 99, ""),
  )
  table = chips.format_table({"S/16": {"a": fits, "b": recomputed}, "G/14": {"a": large, "b": large}}, ["a", "b"])
  assert table.splitlines()[2:] == ["| S/16 | 1,234 (45%) | 56 (30%)* |", "| G/14 | does not fit | does not fit |"]


def test_figures_of_few_blocks_are_extrapolated_linearly():
  figures = {blocks: {"step": 0.5 + 0.25 * blocks, "bytes": 7.0 + 3 * blocks} for blocks in (1, 2, 12)}
  assert scanned_layers.extrapolate(figures[1], figures[2], 12, chips.DEPTHS) == pytest.approx(figures[12])


@pytest.mark.full
def test_int8_benchmark_trains_both_products(tmp_path):
  output = runs.finish(runs.start("benchmarks.int8", f"--workdir={tmp_path}", "--quick"), seconds=600)
  record = json.loads((tmp_path / "int8.json").read_text())
  assert {name: len(values) for name, values in record["digits"]["top1"].items()} == {"bfloat16": 2, "int8": 2}
  assert "verdict" in output and (tmp_path / "int8.md").read_text().strip() in output


@pytest.mark.long
def test_gpu_benchmark_runs_a_step_of_vit_jax():
  import jax
  import numpy as np

  from benchmarks import gpu_step, sides
  from vit_jax.data import catalog
  from vit_jax.training import build

  run = gpu_step.make_run("Ti/16", "xla", 2)
  run = runs.changed(run, model=Choice(run.model.name, {**run.model.args, "depth": 1, "width": 32, "heads": 1}))
  parts = build.build(run, jax.devices()[:1], catalog.open_known_split)
  images = np.zeros((2, sides.SIDE, sides.SIDE, 3), np.uint8)
  side = gpu_step.prepare_ours(parts, images, np.zeros(2, np.int64))
  assert np.isclose(side.steps(1), np.log(sides.CLASSES))  # the head starts at zero


def test_starts_of_transfer_are_those_of_its_config_with_equal_steps():
  from benchmarks import transfer

  tasks = {"labels": "classify", "masked patches": "masked_patches", "MAE": "masked_autoencoder"}
  for corpus in transfer.CORPORA:
    trials = recipes.trials(f"ablations/objectives:{corpus}")
    assert [trial.changes["seed"] for trial in trials] == [0, 1, 2] * len(transfer.STARTS)
    for start, trial in zip(transfer.STARTS, trials[::3], strict=True):
      run = json.loads(trial.config)
      assert run["task"]["name"] == tasks.get(start, "classify" if start == "random" else start.lower())
      assert (run["total"], run["batch"]) == ("1" if start == "random" else "100", 64)
      assert run["data"]["name"] == corpus and not {"test", "val"} & run["evals"].keys()


@pytest.mark.parametrize(("entropies", "warned"), [
  ([1.0, 3.178, 1.0, 3.178], False), ([1.0, 3.178, 3.178, 1.0], True), ([], False),
])  # fmt: skip
def test_collapse_of_a_run_is_read_from_its_metrics(tmp_path, entropies, warned):
  """Uses 24 prototypes, for which a uniform output has the entropy log 24 = 3.178."""
  from benchmarks import transfer, trial_runs

  trial = Trial("run", {}, {}, tmp_path, None, figures={"steps": 9, "probes/knn_all": 0.5, "probes/linear_all": 0.25})
  lines = [{"step": 1, "test/top1": 0.5}] + [
    {"step": 2 + step, "train/teacher_entropy": value, "train/used_prototypes": 20.0, "train/feature_rank": 8.0}
    for step, value in enumerate(entropies)
  ]
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  (tmp_path / "config.json").write_text(json.dumps({"task": {"name": "dino", "prototypes": 24}}))
  record = transfer.summarise("glyphs", "DINO", [trial])
  assert record.get("teacher_entropy") == (entropies[-1:] or None)
  (warning,) = record["warnings"]
  assert ("its entropy 3.178 is close to that of a uniform output" in warning) if warned else warning is None
  assert trial_runs.read_rows(trial, ["test/top1"]) == [{"step": 1, "test/top1": 0.5}]


@pytest.mark.full
def test_transfer_measures_all_starts_and_prints_one_table(tmp_path, monkeypatch, capsys):
  from benchmarks import transfer

  monkeypatch.setattr(transfer, "CORPORA", {"glyphs": "digits"})
  monkeypatch.setattr("sys.argv", ["transfer", f"--workdir={tmp_path}", "--quick"])
  transfer.main()
  records = json.loads((tmp_path / "transfer.json").read_text())["results"]
  assert [(record["start"], *record["steps"]) for record in records] == [
    (start, 1 if start == "random" else 2) for start in transfer.STARTS
  ]
  assert all(0 <= record[probe][0] <= 1 for record in records for probe in transfer.PROBES)
  assert [record["start"] for record in records if "feature_rank" in record] == ["DINO", "DINOv2"]
  assert (tmp_path / "transfer.md").read_text().strip() in capsys.readouterr().out
  assert (tmp_path / "transfer.png").read_bytes().startswith(b"\x89PNG")
