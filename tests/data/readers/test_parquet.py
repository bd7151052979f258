"""Tests of Parquet files in the format of Hugging Face: columns, classes and damaged files."""

import json

import pytest

from tests import forms
from tests.forms import opened
from tests.image_files import image, names, numbers
from tests.streams import same, train
from vit_jax import schema
from vit_jax.data import images, order

NAMES = ["tench", "goldfish", "great white shark"]


def parquet(root, split="train", **args):
  return opened("parquet", root, split, **{"test": "train"} | args)


def table(root, columns, name="train-00000-of-00001.parquet", metadata=None, **options):
  import pyarrow
  from pyarrow import parquet as form

  root.mkdir(parents=True, exist_ok=True)
  made = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
  form.write_table(made.replace_schema_metadata(metadata) if metadata else made, root / name, **options)


def test_classes_are_in_the_order_of_the_schema(tmp_path):
  forms.parquet(tmp_path, [image(i) for i in range(20)], [i % 2 for i in range(20)], names=NAMES)
  source = parquet(tmp_path)
  assert source.classes == tuple(NAMES) and source.label(3) == 1
  assert source.place(9).endswith("data/train-00001-of-00003.parquet, row 3)") and names(source)[9] == "train/9"
  assert parquet(tmp_path, classes="2").classes == ("0", "1")


@pytest.mark.parametrize("kind", ["Sequence", "List", "list"])
def test_lists_of_classes_are_read_in_every_spelling_of_the_schema(tmp_path, kind):
  label = {"_type": "ClassLabel", "names": NAMES}
  features = {"image": {"_type": "Image"}, "label": [label] if kind == "list" else {"_type": kind, "feature": label}}
  structs = [{"bytes": image(i), "path": None} for i in range(3)]
  table(
    tmp_path,
    {"image": structs, "label": [[0, 2], [], [1]]},
    metadata={"huggingface": json.dumps({"info": {"features": features}})},
  )
  source = parquet(tmp_path, labels=2)
  assert source.classes == tuple(NAMES) and [source.label(i) for i in range(3)] == [(0, 2), (), (1,)]


def test_columns_are_found_by_type_or_by_config_key(tmp_path):
  pictures = [image(i) for i in range(4)]
  columns = {
    "img": [{"bytes": p, "path": ""} for p in pictures],
    "fine_label": [0, 1, 2, 0],
    "coarse_label": [1, 1, 0, 0],
  }
  features = {"img": {"_type": "Image"}, "fine_label": {"_type": "ClassLabel", "names": NAMES}}
  features["coarse_label"] = {"_type": "ClassLabel", "names": ["a", "b"]}
  table(tmp_path, columns, metadata={"huggingface": json.dumps({"info": {"features": features}})})
  with pytest.raises(
    schema.ConfigError, match=r"config\.data\.label: the column of the label is unknown.*coarse_label"
  ):
    parquet(tmp_path)
  assert numbers(parquet(tmp_path, label="coarse_label")) == [*zip(pictures, [1, 1, 0, 0], strict=True)]
  with pytest.raises(schema.ConfigError, match=r"data\.label: no column 'fine_labl'. Did you mean 'fine_label'"):
    parquet(tmp_path, label="fine_labl")
  with pytest.raises(schema.ConfigError, match=r"data\.image: column 'fine_label' .* is int64. Allowed: struct"):
    parquet(tmp_path, image="fine_label", label="fine_label")
  table(tmp_path / "plain", {"image": pictures, "label": ["x", "y", "x", "z"]})
  assert numbers(parquet(tmp_path / "plain")) == [*zip(pictures, [0, 1, 0, 2], strict=True)]


def test_invalid_files_are_refused_by_name(tmp_path):
  root, other = tmp_path / "one", tmp_path / "other"
  forms.parquet(root, [image(0)] * 6, [0] * 6, names=NAMES)
  file = root / "data/train-00002-of-00003.parquet"
  whole = file.read_bytes()
  for content in (whole[:-30], whole[:100], b"not Parquet " * 50):
    file.write_bytes(content)
    with pytest.raises(schema.ConfigError, match=r"train-00002-of-00003\.parquet is not a complete Parquet file"):
      parquet(root)
  table(root / "data", {"image": [b"x"]}, file.name)
  with pytest.raises(schema.ConfigError, match="has no column 'label'"):
    parquet(root)
  forms.parquet(other, [image(0)] * 6, [0] * 6, names=NAMES[:2])
  file.write_bytes((other / "data" / file.name).read_bytes())
  with pytest.raises(schema.ConfigError, match="has other classes than the first file"):
    parquet(root)


@pytest.mark.parametrize("other", [["text"], [[b"list"]], [7], [{"bytes": b"x", "path": ""}]])
def test_images_of_two_types_are_refused_with_both_files(tmp_path, other):
  for name, pictures in (("train-0.parquet", [image(0)]), ("train-1.parquet", other)):
    table(tmp_path, {"image": pictures, "label": [0]}, name)
  with pytest.raises(schema.ConfigError, match=r"is .* in .*train-1\.parquet, but binary in .*train-0\.p") as caught:
    parquet(tmp_path)
  assert caught.value.place == "config.data.path" and "column 'image'" in caught.value.message


@pytest.mark.parametrize("names", [["image", "image", "label"], ["image", "label", "label"]])
@pytest.mark.parametrize("damaged", [0, 1])
def test_duplicate_column_is_refused(tmp_path, names, damaged):
  import pyarrow

  for i in range(2):
    table(tmp_path, {"image": [image(0)], "label": [0]}, f"train-{i}.parquet")
  columns = [pyarrow.array([0] if name == "label" else [b"x"]) for name in names]
  table(tmp_path, pyarrow.Table.from_arrays(columns, names), f"train-{damaged}.parquet")
  expected = rf"train-{damaged}\.parquet has 2 columns called '{names[1]}'"
  with pytest.raises(schema.ConfigError, match=expected) as caught:
    parquet(tmp_path)
  assert caught.value.place == "config.data.path"


def test_columns_with_a_common_prefix_are_distinguished(tmp_path):
  columns = {
    "image.bytes": [b"wrong"] * 2,
    "label.x": [5, 6],
    "image": [{"bytes": image(i), "path": ""} for i in (0, 1)],
  }
  table(tmp_path, columns | {"label": [1, 0]})
  assert numbers(parquet(tmp_path)) == [(image(0), 1), (image(1), 0)]


def test_duplicate_class_of_the_schema_is_named(tmp_path):
  forms.parquet(tmp_path, [image(0)] * 6, [0] * 6, names=["a", "b", "a"])
  with pytest.raises(schema.ConfigError, match=r"train-00000-of-00003\.parquet lists class 'a' twice. ") as caught:
    parquet(tmp_path)
  assert caught.value.place == "config.data.classes"
  assert parquet(tmp_path, classes="3").classes == ("0", "1", "2")


def test_missing_bytes_and_damaged_row_groups_affect_only_their_images(tmp_path):
  table(tmp_path, {"image": [{"bytes": None, "path": "a.png"}, {"bytes": b"x", "path": ""}], "label": [0, 1]})
  source = parquet(tmp_path)
  with pytest.raises(OSError, match="its row contains no image bytes"):
    source.read(0)
  assert source.read(1) == (b"x", 1)
  structs = [{"bytes": image(i), "path": ""} for i in range(40)]
  table(tmp_path / "b", {"image": structs, "label": [0] * 40}, row_group_size=10, compression="snappy")
  source, file = parquet(tmp_path / "b"), tmp_path / "b/train-00000-of-00001.parquet"
  data = bytearray(file.read_bytes())
  data[4:60] = b"\xff" * 56  # the first pages
  file.write_bytes(data)
  with pytest.raises(OSError, match=r"row group 0, cannot be read") as caught:
    source.read(3)
  assert caught.value.errno is None and source.read(15) == (image(15), 0)


def test_blocks_of_the_default_order_have_the_size_of_row_groups(tmp_path):
  forms.parquet(tmp_path, [image(0)] * 600, [0] * 600, group=50)
  source = parquet(tmp_path)
  made = order.auto(len(source), 64, 0, source.runs.together)
  assert (source.runs.together, made.size, made.window) == (50, 50, 10)
  assert order.auto(10**6, 64, 0, 10**5).size == 4096 and order.auto(10**6, 64, 0, 10**5).window == 1


@pytest.mark.heavy
def test_parquet_in_a_bucket_matches_parquet_on_a_disk(bucket, bucket_server, tmp_path, monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  forms.parquet(tmp_path, [image(i) for i in range(120)], [i % 3 for i in range(120)], names=NAMES, group=20)
  for file in (tmp_path / "data").iterdir():
    (bucket / "data" / file.name).write_bytes(file.read_bytes())
  here, there = parquet(tmp_path), parquet(bucket)
  assert there.read(0) == here.read(0)  # reads the footer
  asked = bucket_server.counts["GET"]
  assert [there.runs.parse(data) for data in there.runs.read(20, 40)] == numbers(here)[20:40]
  assert bucket_server.counts["GET"] == asked + 1
  whole = train(there, 32, 6)
  same(whole, train(here, 32, 6))
  same(train(there, 32, 2, start=3), whole[3:5])
