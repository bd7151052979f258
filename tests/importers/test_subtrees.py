"""Tests of vit_jax/importers/subtrees.py, which selects a model's tensors in files that training codes save."""

import time

import numpy as np
import pytest
import safetensors.numpy

from tests import small_weights
from vit_jax import importers
from vit_jax.schema import ConfigError

TIMM = small_weights.described(gelu="erf", eps=1e-6)
ARRAYS = small_weights.arrays(TIMM)
RAW = {name: np.ascontiguousarray(tensor) for name, tensor in importers.export_tensors(ARRAYS, TIMM, "timm").items()}
AVERAGE = {name: tensor + np.float32(1) for name, tensor in RAW.items()}
HEAD = {name: tensor for name, tensor in RAW.items() if name.startswith("head.")}
BODY = {name: tensor for name, tensor in RAW.items() if name not in HEAD}
BODY_AVERAGE = {name: AVERAGE[name] for name in BODY}
HINTS = {"heads": 2}


def under(prefix, tensors=RAW):
  return {prefix + name: tensor for name, tensor in tensors.items()}


def saved(folder, tensors, name="weights.safetensors"):
  safetensors.numpy.save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / name)
  return folder / name


def read(folder, tensors, **choice):
  """Writes and reads a file with these tensors.

  Returns:
    The constant difference between its parameters and those of RAW, the number of classes, and the notes.
  """
  description, arrays, notes, *_ = importers.read(saved(folder, tensors), HINTS, **choice)
  apart = {round(float((arrays[path] - ARRAYS[path]).min()), 3) for path in arrays}
  apart |= {round(float((arrays[path] - ARRAYS[path]).max()), 3) for path in arrays}
  assert len(apart) == 1, apart
  return apart.pop(), description.classes, "\n".join(notes)


PREFIXES = [
  *("_orig_mod.", "module._orig_mod.", "model._orig_mod.", "_orig_mod.module.", "net.", "encoder.", "teacher."),
  *("student.", "trunk.", "visual.trunk.", "_forward_module.", "_forward_module.module.", "_fsdp_wrapped_module."),
  *("base_model.model.", "image_encoder.", "vision_model.", "backbone.body.", "model.module.", "student.backbone."),
  *("teacher.backbone.", "0.", "model.visual.trunk.", "module.module.encoder.net.", "any_name.of-a user.", "params/"),
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_any_prefix_is_removed_and_noted(tmp_path, prefix):
  apart, classes, notes = read(tmp_path, under(prefix))
  assert (apart, classes) == (0, 7)
  assert notes == f"read without the prefix {prefix!r}"


def test_names_without_a_prefix_have_no_note(tmp_path):
  assert read(tmp_path, RAW) == (0, 7, "")


@pytest.mark.parametrize(
  "word", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "module"]
)
@pytest.mark.parametrize("prefix", ["", "model.", "_fsdp_wrapped_module.", "module.backbone."])
def test_wrappers_of_single_blocks_are_removed_and_noted(tmp_path, word, prefix):
  inside = {name.replace("blocks.1.", f"blocks.1.{word}."): tensor for name, tensor in RAW.items()}
  inside = {name.replace(".attn.", f".attn.{word}."): tensor for name, tensor in inside.items()}
  apart, classes, notes = read(tmp_path, under(prefix, inside))
  assert (apart, classes) == (0, 7)
  assert f"read without {word} inside of names" in notes
  assert prefix in notes


@pytest.mark.parametrize("layout", ["vit_jax", "big_vision", "hf"])
@pytest.mark.parametrize("prefix", ["model.", "teacher/", "params/encoder/"])
def test_prefixes_are_removed_in_every_layout(layout, prefix):
  tensors = importers.export_tensors(ARRAYS, TIMM, layout)
  recognised = importers.recognise(under(prefix, tensors), HINTS)
  assert recognised.layout.name == layout and recognised.notes[0] == f"read without the prefix {prefix!r}"
  bare = importers.recognise(tensors, HINTS).read()
  assert all(np.array_equal(array, bare[path]) for path, array in recognised.read().items())


# Averages.

PAIRS = [  # raw, averaged
  ("state_dict.", "state_dict_ema."),
  ("model.", "model_ema."),
  ("model.", "ema_state_dict."),
  ("state_dict.", "ema."),
  ("module.", "ema."),
  ("", "ema."),
  ("", "ema_model.module."),
  ("net.", "net_ema."),
  ("params/", "ema_params/"),
  ("model.", "swa_model.module."),
  ("model.raw.", "model.averaged."),
  ("student.", "teacher."),
  ("student.backbone.", "teacher.backbone."),
]


@pytest.mark.parametrize(("raw", "averaged"), PAIRS)
def test_averaged_weights_are_preferred_and_noted(tmp_path, raw, averaged):
  both = under(raw) | under(averaged, AVERAGE)
  apart, _, notes = read(tmp_path, both)
  assert apart == 1 and "these are averaged weights" in notes and f"prefix {averaged!r}" in notes
  assert (
    f"also in the file {repr(raw) if raw else 'names without prefix'} (32 tensors); to read another model: --no-ema"
    in notes
  )
  assert read(tmp_path, both, ema=True)[0] == 1
  apart, _, notes = read(tmp_path, both, ema=False)
  assert apart == 0 and f"also in the file {averaged!r} (32 tensors); to read another model: --ema" in notes
  assert read(tmp_path, both, prefix=averaged.rstrip("./"))[0] == 1
  assert read(tmp_path, both, prefix=raw)[0] == 0


@pytest.mark.parametrize("prefix", ["state_dict_ema.", "model_ema.", "ema_state_dict.", "ema."])
def test_file_with_only_averaged_weights_is_read(tmp_path, prefix):
  apart, classes, notes = read(tmp_path, under(prefix, AVERAGE))
  assert (apart, classes) == (1, 7) and "these are averaged weights" in notes
  with pytest.raises(ConfigError, match=r"the file has no raw weights; the file has '.*ema.*'.* Remove --no-ema"):
    read(tmp_path, under(prefix, AVERAGE), ema=False)


def test_selecting_an_absent_average_is_an_error(tmp_path):
  with pytest.raises(ConfigError, match=r"no averaged weights; the file has 'model\.' \(32 tensors\)\. Remove --ema"):
    read(tmp_path, under("model."), ema=True)


def test_teacher_of_another_size_is_not_an_average_of_the_student(tmp_path):
  wide = small_weights.described(width=128, heads=2)
  teacher = importers.export_tensors(small_weights.arrays(wide), wide, "timm")
  both = under("student.") | under("teacher.", teacher)
  with pytest.raises(ConfigError, match=r"several models are in one file; the file has 'student\.'.*'teacher\.'"):
    read(tmp_path, both)
  assert read(tmp_path, both, prefix="student")[0] == 0


@pytest.mark.parametrize(
  ("first", "second"),
  [
    ("module.base_encoder.", "module.momentum_encoder."),
    ("encoder.", "target_encoder."),
    ("", "_orig_mod."),
    ("a.", "b."),
  ],
)
def test_several_unrelated_models_are_an_error_with_their_prefixes(tmp_path, first, second):
  both = under(first) | under(second, AVERAGE)
  with pytest.raises(ConfigError, match="several models are in one file") as error:
    read(tmp_path, both)
  assert second in str(error.value) and "--prefix=NAME" in str(error.value)
  assert read(tmp_path, both, prefix=first)[0] == 0
  assert read(tmp_path, both, prefix=second)[0] == 1
  with pytest.raises(ConfigError, match=r"no model under the prefix 'other'; the file has"):
    read(tmp_path, both, prefix="other")


# Tensors outside of the prefix.


@pytest.mark.parametrize("prefix", ["backbone.", "model.backbone.", "encoder.", "visual.trunk."])
@pytest.mark.parametrize("head", ["head", "classifier", "fc", "cls_head.fc", "linear"])
def test_classifier_outside_of_the_backbone_prefix_is_read(tmp_path, prefix, head):
  outside = {name.replace("head.", f"{head}."): tensor for name, tensor in HEAD.items()}
  apart, classes, notes = read(tmp_path, under(prefix, BODY) | outside)
  assert (apart, classes) == (0, 7)
  assert f"read from outside of the prefix: {', '.join(sorted(outside))}" in notes


def test_each_model_gets_the_classifier_of_its_own_prefix(tmp_path):
  both = under("model.backbone.", BODY) | under("model.", HEAD)
  both |= under("model_ema.backbone.", BODY_AVERAGE) | under("model_ema.", {name: AVERAGE[name] for name in HEAD})
  assert read(tmp_path, both)[:2] == (1, 7)
  assert read(tmp_path, both, ema=False)[:2] == (0, 7)


def test_pooling_norm_outside_of_the_backbone_prefix_is_read(tmp_path):
  gap = small_weights.described(gelu="erf", pool="gap", norm_pooled=True)
  tensors = importers.export_tensors(small_weights.arrays(gap), gap, "timm")
  outside = ("head.", "fc_norm.")
  parts = {f"{'' if name.startswith(outside) else 'backbone.'}{name}": tensor for name, tensor in tensors.items()}
  assert "backbone.fc_norm.weight" not in parts and "fc_norm.weight" in parts
  found = importers.recognise(parts, HINTS)
  assert found.description.settings()["norm.pooled"] and found.read().keys() == small_weights.arrays(gap).keys()


OUTSIDE = {
  "student.head.mlp.0.weight": (3, 3),
  "teacher.head.mlp.0.weight": (3, 3),
  "dino_loss.center": (1, 3),
  "decoder.blocks.0.norm.weight": (3,),
  "neck.weight": (3,),
  "optimizer.state.0.exp_avg": (3,),
  "n_averaged": (),
}


def test_all_omitted_tensors_are_listed(tmp_path):
  tensors = under("student.backbone.", BODY) | under("teacher.backbone.", BODY_AVERAGE)
  outside = {name: np.ones(shape, np.float32) for name, shape in OUTSIDE.items()}
  apart, classes, notes = read(tmp_path, tensors | outside)
  assert (apart, classes) == (1, 0)
  left_out = notes.partition("left out, not part of this model: ")[2].split(", ")
  assert set(left_out) == set(OUTSIDE)


def test_omitted_names_without_prefix_are_listed_or_an_error(tmp_path):
  other = {"optimizer.state.0.exp_avg": np.ones(3, np.float32), "loss.weight": np.ones(3, np.float32)}
  assert read(tmp_path, RAW | other) == (
    0,
    7,
    "left out, not part of this model: loss.weight, optimizer.state.0.exp_avg",
  )
  with pytest.raises(ConfigError, match=r"left over \(1\): norm_pre.weight"):
    read(tmp_path, RAW | {"norm_pre.weight": np.ones(64, np.float32)})


def test_many_omitted_tensors_are_counted_by_their_first_word(tmp_path):
  text = {f"transformer.{i}.weight": np.ones(2, np.float32) for i in range(50)}
  _, _, notes = read(tmp_path, under("visual.trunk.", BODY) | text | {"logit_scale": np.ones((), np.float32)})
  assert notes.endswith("left out, not part of this model: logit_scale, transformer.* (50 tensors)")


def test_optimizer_moments_are_not_a_model(tmp_path):
  tensors = importers.export_tensors(ARRAYS, TIMM, "vit_jax")
  whole = under("opt/target/", tensors) | under("opt/state/mu/", tensors) | under("opt/0/nu/", tensors)
  found = importers.recognise(whole, HINTS)
  assert found.notes[0] == "read without the prefix 'opt/target/'" and "opt/* (" in found.notes[1]


@pytest.mark.parametrize(
  "name",
  [
    "lora.0.A",
    "model.blocks.0.attn.qkv.lora_A.default.weight",
    "model.blocks.0.attn.loraB",
    "adapter.down.weight",
    "model.blocks.0.adapters.0.weight",
    "prompt_embeddings",
    "model.prompt_tokens",
    "model.blocks.1.mlp.fc1.dora_scale",
  ],
)
def test_lora_and_other_adapters_are_an_error_with_the_fix(tmp_path, name):
  with pytest.raises(ConfigError, match=r"1 tensor of LoRA or other adapters, such as .* Merge them into the weights"):
    read(tmp_path, under("model.") | {name: np.ones((2, 2), np.float32)})


def test_peft_weights_are_an_error_although_no_layout_matches(tmp_path):
  layers = {name.replace("qkv.", "qkv.base_layer."): tensor for name, tensor in under("base_model.model.").items()}
  layers["base_model.model.blocks.0.attn.qkv.lora_A.default.weight"] = np.ones((2, 64), np.float32)
  with pytest.raises(ConfigError, match="LoRA"):
    read(tmp_path, layers)


def test_hostile_names_in_notes_are_escaped(tmp_path):
  _, _, notes = read(tmp_path, under("\x1b[2J.", BODY) | {"\x1b]0;owned\x07": np.ones(2, np.float32)})
  assert not set(notes) & set("\x1b\x07")


def test_file_with_10000_names_is_searched_within_10_seconds():
  tensors = dict(RAW)
  for i in range(9_900):
    tensors[f"other.{i // 100}.layer.{i}.weight"] = np.zeros((1, 1), np.float32)
  start_time = time.process_time()
  with pytest.raises(ConfigError, match="left over"):
    importers.recognise(tensors, HINTS).read()
  assert time.process_time() - start_time < 10


def test_name_of_very_many_levels_is_refused():
  with pytest.raises(ConfigError, match=r"has more than 100 levels\. Rename or remove the tensor"):
    importers.recognise(RAW | {"teacher." + "a." * 20000 + "weight": np.ones(2, np.float32)}, HINTS)
