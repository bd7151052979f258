"""Tests of the evaluate verb: errors, and figures recomputed from its files. See test_train for those of training."""

import contextlib
import csv
import json
import re

import jax
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score

import vit_jax
from tests import runs, small_weights
from vit_jax import config, evaluate
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog, pseudo_labels
from vit_jax.evals import BoundEval, Outcome
from vit_jax.inference import stored
from vit_jax.schema import ConfigError
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
  ("flags", "problem"),
  [(["--workdir={}"], "contains no run"), (["--workdir={}", "--spilt=test"], "Did you mean --split=test?")],
)
def test_error_is_one_line_and_exits_with_2(tmp_path, flags, problem):
  message = runs.finish(runs.command("evaluate", *(flag.format(tmp_path) for flag in flags)), 2)
  assert problem in message
  assert "Traceback" not in message


def test_run_without_a_checkpoint_is_an_error(tmp_path):
  prepare_dataset("digits")
  (tmp_path / "config.json").write_text(config.dumps(runs.run()))
  assert "no checkpoint yet" in runs.finish(runs.command("evaluate", f"--workdir={tmp_path}"), 2)


def test_unknown_split_is_an_error(tmp_path):
  prepare_dataset("digits")
  (tmp_path / "config.json").write_text(config.dumps(runs.run()))
  message = runs.finish(runs.command("evaluate", f"--workdir={tmp_path}", "--split=tset"), 2)
  assert "Did you mean 'test'" in message
  assert json.loads((tmp_path / "config.json").read_text())


def test_explicit_split_is_evaluated_once_and_alone():
  val, test = (BoundEval("accuracy", {"split": split, "batch": 8}) for split in ("val", "test"))
  shots = BoundEval("fewshot", {"train": "train"})
  assert evaluate.select_evaluations({"shots": shots, "val": val, "test": test}, "train", False) == {
    "test": BoundEval("accuracy", {"split": "train", "batch": 8})
  }
  assert evaluate.select_evaluations({"shots": shots, "val": val}, None, True) == {
    "shots": shots,
    "val": BoundEval("accuracy", {"split": "val", "batch": 8, "logits": True}),
  }


def test_run_without_classes_uses_its_own_evaluation_on_another_split():
  masked, shots = BoundEval("masked", {"split": "test", "batch": None}), BoundEval("fewshot", {"train": "train"})
  assert evaluate.select_evaluations({"shots": shots, "test": masked}, "train", False) == {
    "test": BoundEval("masked", {"split": "train", "batch": None})
  }


def test_predictions_of_a_run_without_classes_are_an_error(tmp_path):
  (tmp_path / "config.json").write_text(config.dumps(runs.run("configs/vit_mpp.py:digits", {})))
  with pytest.raises(
    ConfigError, match=r"does not predict classes. Its evaluations are fewshot, masked.*--features writes features"
  ):
    evaluate.main([f"--workdir={tmp_path}", f"--write-predictions={tmp_path / 'p.csv'}"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A short run with averaged weights that is evaluated on two splits."""
  workdir = tmp_path_factory.mktemp("run") / "run"
  changes = {"evals.val.name": "accuracy", "evals.val.split": "test[:100]", "optim.ema": "0.5", "total": "4"}
  loop.train(runs.parts(1, **{key.replace(".", "__"): text for key, text in changes.items()}), workdir)
  return workdir


@pytest.mark.long
def test_printed_figures_match_the_written_predictions(trained, tmp_path):
  report, file = tmp_path / "report", tmp_path / "p.csv"
  words = [f"--workdir={trained}", f"--write-predictions={file}", "--logits", f"--report={report}"]
  output = runs.finish(runs.command("evaluate", *words, devices=2))
  report_figures = json.loads((report / "figures.json").read_text())
  names = {"": "p.csv", "ema_": "p-ema.csv", "val/": "p-val.csv", "val/ema_": "p-val-ema.csv"}
  assert {path.name for path in tmp_path.iterdir()} == {*names.values(), "report"}
  for place, name in names.items():
    rows = list(csv.DictReader((tmp_path / name).open()))
    found = {
      key.removeprefix(place): value for key, value in report_figures["figures"].items() if key.startswith(place)
    }
    label, best = (np.array([int(row[key]) for row in rows]) for key in ("label", "top1"))
    five = np.array([[int(row[f"top{i}"]) for i in range(1, 6)] for row in rows])
    logits = np.array([[float(row[f"logit_{i}"]) for i in range(10)] for row in rows])
    assert len({row["id"] for row in rows}) == len(rows) == found["images"] == (100 if "val" in place else 360)
    np.testing.assert_array_equal(logits.argmax(1), best)
    assert found["top1"] == pytest.approx(accuracy_score(label, best), abs=1e-12)
    assert found["top5"] == pytest.approx((five == label[:, None]).any(1).mean(), abs=1e-12)
    assert found["mean_per_class"] == pytest.approx(balanced_accuracy_score(label, best), abs=1e-12)
    assert found["f1_macro"] == pytest.approx(f1_score(label, best, average="macro", zero_division=0), abs=1e-12)
    assert found["loss"] == pytest.approx(np.mean([float(row["loss"]) for row in rows]), abs=1e-6)
    odds = np.exp(logits - logits.max(1, keepdims=True))
    assert found["loss"] == pytest.approx(-np.log((odds / odds.sum(1, keepdims=True))[range(len(label)), label]).mean())
    low, high = report_figures["intervals"][f"{place}top1"]
    assert low <= found["top1"] <= high
    assert f"{found['top1']:.2%}   95 % [{low:.2%}, {high:.2%}]" in output
    mark = name.removeprefix("p").removesuffix(".csv")
    matrix = list(csv.reader((report / f"confusion{mark}.csv").open()))
    np.testing.assert_array_equal(np.array(matrix)[1:, 1:].astype(int), confusion_matrix(label, best, labels=range(10)))
    assert (report / f"confusion{mark}.png").stat().st_size > 1000


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--write-predictions=p.txt"], "p.txt: .txt is not a format"),
    (["--write-predictions=/nowhere/p.csv"], "the folder /nowhere does not exist"),
    (["--logits"], "--logits: no output file."),
  ],
)
def test_unwritable_output_files_are_an_early_error(words, message):
  with pytest.raises(ConfigError, match=re.escape(message)):
    evaluate.main(["--workdir=runs/none", *words])


@pytest.mark.parametrize(
  "text", ['{"model": 3}', '{"model": {"name": [3]}, "optim": {"decay": []}}', '{"evals": 3, "x": {}}']
)
def test_workdir_with_an_invalid_config_is_an_error(tmp_path, text):
  (tmp_path / "config.json").write_text(text)
  with pytest.raises(ConfigError, match=r"config\.json is not the config of a run: config\."):
    evaluate.main([f"--workdir={tmp_path}"])


@pytest.mark.long
@pytest.mark.parametrize(
  ("weights", "changes", "words"),
  [
    ("deit_small_patch16_224.fb_in1k.safetensors", {}, "validation: top-1 79.80 %, published 79.8"),
    ("deit_small_patch16_224.fb_in1k/model.safetensors", {}, ": as published"),
    ("deit_small_patch16_224.fb_in1k.safetensors", {"data.image_size": "256"}, "image size 256 instead of 224"),
    ("deit_small_patch16_224.fb_in1k.safetensors", {"evals.validation.split": "validation[:10%]"}, None),
    ("other.safetensors", {}, None),
  ],
)
def test_accuracy_of_known_weights_is_compared_with_the_published_accuracy(tmp_path, weights, changes, words):
  changes = {"data.test_crop.ratio": "0.9"} | changes
  run = build.complete(config.resolve(flags.load_config(str(runs.ROOT / "configs/deit.py:S"), changes)))
  measured = dict.fromkeys(("validation/", "real/", "v2/"), Outcome({"top1": 0.798, "images": 50_000}, None))
  lines = evaluate.compare_accuracy(run, str(tmp_path / weights), measured)
  assert len(lines) == (words is not None) and all(words in line for line in lines)


def test_weights_are_evaluated_with_a_recipe_that_requires_weights(trained):
  words = ["--config=configs/finetune.py:digits", f"--weights={trained}", "--split=test[:64]"]
  changes = ["--config.model.depth=1", "--config.model.width=16", "--config.model.heads=1", "--config.model.hidden=16"]
  output = runs.finish(runs.command("evaluate", *words, *changes, "--config.data.image_size=32"))
  assert "images                          64" in output


def test_weights_with_reordered_classes_are_matched_by_name(tmp_path):
  prepare_dataset("digits")
  names = [str(i) for i in reversed(range(10))]
  path = small_weights.file(tmp_path, small_weights.described(10, gelu="erf"), label_names=names)
  overrides = {"init.from": str(path), "init.head": "keep", "data.image_size": "32", "model.name": "ViT-S/8"}
  sizes = {"width": 64, "depth": 2, "heads": 2, "hidden": 96}
  overrides |= {f"model.{key}": str(value) for key, value in sizes.items()}
  run = build.complete(config.resolve(flags.load_config("configs/finetune.py:digits", overrides)))
  parts = build.build(run, jax.devices()[:1], training=False)
  params = evaluate.import_weights(parts, False).params
  stored = small_weights.arrays(small_weights.described(10, gelu="erf"))
  for key in ("head/kernel", "head/bias"):
    np.testing.assert_array_equal(params[key], stored[key][..., ::-1])  # the order of the data is "0" to "9"
  np.testing.assert_array_equal(params["norm/scale"], stored["norm/scale"])
  (tmp_path / "config.json").write_text(json.dumps({"label_names": [*names[1:], "ten"]}))
  with pytest.raises(ConfigError, match=r"--weights: .*classes of the weights are at other positions .*\('8'"):
    evaluate.import_weights(parts, False)


def test_normalisation_that_differs_from_the_weights_is_a_warning(tmp_path, caplog):
  run = build.complete(config.resolve(flags.load_config("configs/digits.py", {"data.path": str(tmp_path)})))
  stated = {"mean": list(run.data.args["mean"]), "std": [0.1, 0.2, 0.3]}
  evaluate.warn_of_normalisation(str(small_weights.file(tmp_path, pretrained_cfg=stated)), run)
  (record,) = caplog.records
  assert record.getMessage().endswith(": --config.data.std='(0.1,0.2,0.3)'")
  caplog.clear()
  (tmp_path / "same").mkdir()
  same = stated | {"std": list(run.data.args["std"])}
  evaluate.warn_of_normalisation(str(small_weights.file(tmp_path / "same", pretrained_cfg=same)), run)
  assert not caplog.records


@pytest.mark.long
@pytest.mark.parametrize("size", [16, 48])
def test_run_at_another_size_resamples_its_positions(trained, tmp_path, size):
  words = [f"--workdir={trained}", f"--image-size={size}", "--split=test[:16]", "--logits"]
  runs.finish(runs.command("evaluate", *words, f"--write-predictions={tmp_path / 'p.npz'}"))
  data = stored.resize_preprocessing(stored.load_run(trained).data, size)
  examples = data.eval_examples(catalog.open_split(data, "test[:16]"))
  with contextlib.closing(data.batches(examples, 16, range(16))) as batches:
    images = next(batches)["image"]
  normalised = data.normalise(images)
  for name, ema in (("p.npz", False), ("p-ema.npz", True)):
    model = vit_jax.load(trained, ema, size)
    expected = model.logits(model.params, normalised)
    np.testing.assert_allclose(np.load(tmp_path / name)["logits"], expected, rtol=1e-4, atol=1e-5)


MISTAKES = [  # flags with --write-labels, error message
  (["--split=train", "--report=x"], "--write-labels does not measure metrics. Leave out"),
  ([], "--split: missing; --write-labels labels"),
  (["--split=train", "--data.path=x"], "--data.name: missing"),
  (["--split=train", "--data.name=digit"], "Did you mean 'digits'"),
  (["--split=trian"], "Did you mean 'train'"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_invalid_flags_for_labels_are_an_error(trained, tmp_path, words, message):
  command = [f"--workdir={trained}", f"--write-labels={tmp_path / 'labels'}", *words]
  with pytest.raises((ConfigError, SystemExit), match=re.escape(message)):
    evaluate.main(command)
  assert not (tmp_path / "labels").exists()


@pytest.mark.long
def test_labels_come_from_averaged_weights_for_the_given_split(trained, tmp_path):
  folder = tmp_path / "labels"
  command = [f"--workdir={trained}", f"--write-labels={folder}", "--split=test[:50]", "--data.name=digits"]
  evaluate.main(command)
  plan = pseudo_labels.read_plan(folder)
  assert (plan.data["name"], plan.split, plan.records, plan.kept) == ("digits", "test[:50]", 50, 5)
  best, _ = pseudo_labels.read_labels(folder, plan, None, 5)
  names = [f"--write-predictions={tmp_path / 'p.npz'}", "--split=test[:50]"]
  evaluate.main([f"--workdir={trained}", *names])
  averaged = np.load(tmp_path / "p-ema.npz")
  np.testing.assert_array_equal(best, averaged["best"])
