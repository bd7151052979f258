"""Tests that messages about the selection of weights name an option that the running command accepts."""

import pathlib

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests import runs, small_weights
from vit_jax import cli, config, fewshot, importers
from vit_jax.config import flags
from vit_jax.importers import options
from vit_jax.reports import report
from vit_jax.schema import ConfigError, suggestions

MODEL = small_weights.described()


def file(folder, **prefixes):
  """Writes a file with the same model under several prefixes."""
  arrays = importers.export_tensors(small_weights.arrays(MODEL), MODEL, "timm")
  tensors = {f"{prefix}.{name}": np.ascontiguousarray(t) for prefix in prefixes for name, t in arrays.items()}
  (folder / "config.json").write_text('{"architecture": "vit_small_patch8_224", "model_args": {"num_heads": 2}}')
  safetensors.numpy.save_file(tensors, folder / "w.safetensors")
  return str(folder / "w.safetensors")


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
  return file(tmp_path_factory.mktemp("averaged"), model=1, model_ema=1)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
  return file(tmp_path_factory.mktemp("several"), left=1, right=1)


def measurement(**words):
  return config.resolve(flags.load_config(str(runs.ROOT / "configs/fewshot.py:digits"), words), config.Measurement)


def load_probe(path):
  return fewshot.load_weights(path, measurement()).notes


def load_for_training(path):
  model = {f"model__{key}": value for key, value in MODEL.model.args.items()}
  return runs.parts(1, model__name=MODEL.model.name, init__from=path, **model).read_initial_weights()[1]


READ = {
  "fewshot": (load_probe, "--config.ema=false", "--config.prefix=NAME"),
  "train": (load_for_training, "--config.init.ema=false", "--config.init.prefix=NAME"),
  "predict": (lambda path: importers.read(path).notes, "--no-ema", "--prefix=NAME"),
  "Python": (lambda path: vit_jax.load(path).notes, "ema=False", "prefix='NAME'"),
}


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=[pytest.mark.heavy] * (verb == "Python")) for verb in READ])
def test_notes_and_errors_name_the_option_of_the_command(averaged, several, verb):
  read, raw, prefix = READ[verb]
  (note,) = [note for note in read(averaged) if "also in the file" in note]
  assert note.endswith(f"; to read another model: {raw}")
  with pytest.raises(ConfigError) as error:
    read(several)
  assert str(error.value).endswith(f". Choose one: {prefix}")


def test_option_in_the_note_of_fewshot_reads_the_raw_weights(averaged):
  raw = READ["fewshot"][1].removeprefix("--config.").split("=")
  assert "these are averaged weights" not in fewshot.load_weights(averaged, measurement(**dict([raw]))).notes


def test_error_of_report_names_the_command_that_selects_weights(several):
  with pytest.raises(ConfigError, match=r"Choose one: python -m vit_jax\.convert --prefix=NAME FILE NEW$"):
    report.make_chapters(report.ReportContents([], [pathlib.Path(several)]))


@pytest.mark.parametrize(
  ("words", "suggested"),
  [
    (["fewshot", "--weights=x", "--ema"], "--config.ema=true"),
    (["fewshot", "--weights=x", "--no-ema"], "--config.ema=false"),
    (["fewshot", "--weights=x", "--prefix=model"], "--config.prefix=model"),
    (["evaluate", "--weights=x", "--ema"], "--config.init.ema=true"),
    (["evaluate", "--weights=x", "--no-ema"], "--config.init.ema=false"),
    (["train", "--no-ema"], "--config.init.ema=false"),
  ],
)
def test_flag_of_another_verb_suggests_the_config_key(words, suggested):
  kind = config.Measurement if words[0] == "fewshot" else config.Run
  parser = cli.Parser(words[0], "", config_type=kind)
  for flag in ("--config", "--weights", "--workdir", "--no-report")[: 4 if words[0] == "train" else 2]:
    parser.add_argument(flag)
  with pytest.raises(ConfigError, match=rf"Did you mean {suggested}\?"):
    parser.parse(words[1:])


def test_ema_flag_of_training_suggests_the_decay_of_the_optimizer():
  assert suggestions.suggest_for_flag("--ema", "", {"--workdir": True}, ["optim", "init"]).flags == (
    "--config.optim.ema=0.9999",
  )


def test_form_of_options_is_restored_after_its_context():
  with options.use_form("config.init"), options.use_form(options.CONVERT):
    assert options.ema_option(True) == "python -m vit_jax.convert --ema FILE NEW"
  assert (options.ema_option(True), options.prefix_option()) == ("--ema", "--prefix=NAME")
