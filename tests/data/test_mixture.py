"""Tests of mixtures: several sources as one source, with an exactly resumable stream on any number of processes."""

import collections
import dataclasses

import numpy as np
import pytest

from tests import forms
from tests.streams import PLAIN, file, same, train
from vit_jax import rng, schema
from vit_jax.data import catalog, images, loader, mixture, mixture_order, readahead, repeats, sources, stream
from vit_jax.data.views import Fields
from vit_jax.schema import Choice, ConfigError
from vit_jax.schema.errors import AbsentError


@pytest.fixture
def parts(tmp_path):
  """Returns three corpora in three storage formats with overlapping classes. Pixels encode the record number."""
  given = [["cat", "ant", "bee"][i % 3] for i in range(40)]
  forms.manifest(tmp_path / "m", [file(i) for i in range(40)], given)
  forms.parquet(tmp_path / "p", [file(1000 + i) for i in range(60)], [i % 2 for i in range(60)], names=["dog", "ant"])
  forms.tars(tmp_path / "t", [file(2000 + i) for i in range(90)], ["bee"] * 90)
  forms.tars(tmp_path / "t", [file(3000 + i) for i in range(5)], ["bee"] * 5, "test")
  return [
    {"name": "manifest", "path": str(tmp_path / "m/all.jsonl"), "weight": 1, "test": "train[:4]"},
    {"name": "parquet", "path": str(tmp_path / "p"), "weight": 2, "test": "train[:3]"},
    {"name": "tars", "path": str(tmp_path / "t"), "weight": 1.5},
  ]


def opened(parts, split="train", **args):
  with schema.enter_key("config.data"):
    return catalog.open_split(Choice("mixture", {"parts": parts, **args}), split)


def test_records_match_the_parts_with_classes_joined_by_name(parts):
  source = opened(parts)
  assert source.classes == ("ant", "bee", "cat", "dog") and len(source) == 190
  singles = [forms.opened(part["name"], part["path"], test="train") for part in parts]
  expected = [(*each.read(i), each) for each in singles for i in range(len(each))]
  for i, (data, label, single) in enumerate(expected):
    found = source.read(i)
    assert found[0] == data and source.classes[found[1]] == single.classes[label] and source.label(i) == found[1]
  assert source.identify(41) == "parquet/train/1" and source.place(0).startswith("mixture, part 'manifest': manifest, ")
  assert [source.runs.parse(data) for data in source.runs.read(30, 150)] == [source.read(i) for i in range(30, 150)]
  test = opened(parts, "test")
  assert [test.identify(i) for i in (0, 4, 7)] == ["manifest/train_0.png", "parquet/train/0",
                                                   "tars/photos-test-0000.tar/000000.png"]  # fmt: skip
  with pytest.raises(IndexError):
    source.read(190)


def test_record_is_public_if_the_record_of_its_part_is(parts):
  assert not any(map(opened(parts).is_published, range(190)))
  one, other = (forms.opened(part["name"], part["path"], test="train") for part in parts[:2])
  one = dataclasses.replace(one, is_published=lambda i: i == 3)
  joined = mixture.join_sources("both", "train", [other, one], [1, 1], "union", None)
  assert [i for i in range(len(joined)) if joined.is_published(i)] == [len(other) + 3]


def test_notes_contain_those_of_the_parts_and_of_all_classes(parts):
  source = opened([parts[0], parts[0] | {"weight": 3}])
  part = forms.opened(parts[0]["name"], parts[0]["path"], test="train")
  assert source.note == part.note and source.masks is None
  one, other = (dataclasses.replace(part, note=note, classes=(name,)) for note, name in (("n", "Cat"), ("m", "cat")))
  joined = mixture.join_sources("both", "train", [one, other], [1, 1], "union", None)
  assert joined.note.split("\n")[:2] == ["n", "m"] and "'Cat' and 'cat'" in joined.note and joined.masks is None
  assert len(sources.select_subset(joined, [0])) == 1


def test_classes_must_match_if_configured(parts):
  with pytest.raises(
    ConfigError, match=r"manifest and parquet differ in classes, for example bee, cat, dog. Use 'union'"
  ) as error:
    opened(parts, classes="same")
  assert error.value.place == "config.data.classes"
  twice = opened([parts[0], parts[0] | {"weight": 3}], classes="same")
  assert [corpus.name for corpus in twice.corpora] == ["manifest", "manifest_2"]


def test_part_with_lists_of_labels_gives_all_records_lists(parts, tmp_path):
  forms.tars(tmp_path / "l", [file(i) for i in range(4)], [["cat", "dog"], [], ["dog"], ["eel"]])
  source = opened([parts[0], {"name": "tars", "path": str(tmp_path / "l"), "labels": 2, "test": "train"}])
  assert source.labels == 2 and source.classes == ("ant", "bee", "cat", "dog", "eel")
  assert [source.label(i) for i in (0, 40, 41, 43)] == [(2,), (2, 3), (), (4,)]


@pytest.mark.parametrize(
  ("change", "place", "message"),
  [
    ({"parts": []}, "config.data.parts", "no part. Write parts="),
    ({"epoch": "imagenet"}, "config.data.epoch", "no part 'imagenet'. Allowed: manifest, parquet, tars"),
    ({"parts": [{"name": "tar", "path": "x"}]}, "config.data.parts[0].name", "Did you mean 'tars'"),
    ({"parts": [{"name": "mixture", "parts": []}]}, "config.data.parts[0].name", "unknown name 'mixture'"),
    ({"parts": [{"name": "tars"}]}, "config.data.parts[0].path", "missing"),
    ({"parts": [{"name": "tars", "path": "/nowhere"}]}, "config.data.parts[0].path", "does not exist"),
    ({"parts": [{"name": "tars", "path": "x", "weight": 0}]}, "config.data.parts[0].weight", "0.0 is out of range"),
    ({"parts": [{"name": "tars", "path": "x", "crop": "none"}]}, "config.data.parts[0].crop", "unknown key"),
    ({"train": "trian"}, "config.data.parts[0]", "no split 'trian'"),
  ],
)
def test_error_names_its_config_key(parts, change, place, message):
  with pytest.raises(ConfigError) as caught:
    opened(**{"parts": parts} | change)
  assert caught.value.place == place and message in caught.value.message


def test_epoch_is_that_of_all_records_or_of_a_part(parts):
  assert opened(parts).epoch_length == 190
  assert opened(parts, epoch="parquet").epoch_length == round(60 * 4.5 / 2)
  source = opened(parts, epoch="tars")
  assert source.epoch_length == 270 and mixture_order.count_epochs(source.corpora, 270)["tars"] == 1.0
  examples = stream.train_examples(source, 0, Fields(), 8)
  assert examples.epochs(540) == {"manifest": 3.0, "parquet": 4.0, "tars": 2.0}


ORDERS = {"auto": Choice("auto"), "records": Choice("records"),
          "blocks": Choice("blocks", {"size": 6, "window": 2, "groups": 3})}  # fmt: skip


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("name", ORDERS)
def test_resumed_runs_and_two_hosts_have_the_same_batches(parts, name, repeats, monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  source, batch, args = opened(parts), 12, {"order": ORDERS[name], "repeats": repeats}
  whole = train(source, batch, 10, **args)
  for start in (1, 7):
    same(train(source, batch, 3, start=start, **args), whole[start : start + 3])
  for rows in (range(6), range(6, 12)):
    for one, other in zip(train(source, batch, 4, rows=rows, **args), whole, strict=False):
      same([one], [{key: value[rows.start : rows.stop] for key, value in other.items()}])


def test_draws_depend_on_seed_corpus_epoch_and_record(parts):
  source = opened(parts)
  examples = stream.train_examples(source, 5, Fields(), 10, **PLAIN)
  batches = loader.batches(examples, 10, range(10))
  draws = np.concatenate([next(batches)["draw"] for _ in range(16)])
  batches.close()
  seen = collections.Counter()
  for position in range(160):
    record = examples.record(position)
    corpus = next(i for i, each in enumerate(source.corpora) if record in each.records)
    epoch = examples.order.visit(position)
    assert abs(epoch - seen[corpus] / len(source.corpora[corpus].records)) <= 1 + 0.3
    seen[corpus] += 1
    assert draws[position] == int(rng.make_python_generator(5, "example", epoch, record).random() * 2**32)
  assert all(abs(seen[i] - 160 * share / 4.5) < 3 for i, share in enumerate((1, 2, 1.5)))


def test_bad_image_is_replaced_by_one_of_its_own_corpus(parts, tmp_path):
  (tmp_path / "m/train_7.png").write_bytes(b"no image")
  source = opened(parts)
  examples = stream.train_examples(source, 0, Fields(), 10, **PLAIN)
  batches = loader.batches(examples, 10, range(10), on_error="skip")
  numbers = np.concatenate([[int(p[2]) + 256 * int(p[1]) for p in next(batches)["image"][:, 0, 0]] for _ in range(16)])
  batches.close()
  wanted = np.array([examples.record(position) for position in range(160)])
  assert 7 in wanted and 7 not in numbers
  assert (numbers[wanted == 7] < 40).all() and (numbers[wanted < 40] < 40).all()


def test_other_data_in_a_part_change_the_fingerprint(parts, tmp_path):
  one = opened(parts).fingerprint()
  assert opened(parts).fingerprint() == one
  forms.tars(tmp_path / "t", [file(i) for i in range(90)], ["cat"] * 90)
  assert opened(parts).fingerprint().names != one.names


def test_mixture_is_planned_without_its_data(tmp_path):
  absent = [{"name": "imagenet2012", "path": str(tmp_path)}, {"name": "cifar10", "path": str(tmp_path), "weight": 0.1}]
  choice = Choice("mixture", {"parts": absent, "epoch": "imagenet2012"})
  with schema.enter_key("config.data"):
    source = catalog.open_known_split(choice, "train")
  assert len(source) == 1_281_167 + 50_000 and source.epoch_length == round(1_281_167 * 1.1)
  assert len(source.classes) == 1000 + 10  # the upper limit, because shared classes are not known without the data
  with pytest.raises(AbsentError, match=r"config\.data\.parts\[0\]"), schema.enter_key("config.data"):
    catalog.open_split(choice, "train")


def test_absent_parts_may_have_the_same_classes(tmp_path):
  absent = [{"name": name, "path": str(tmp_path)} for name in ("imagenet2012", "imagenet2012_10pct")]
  source = catalog.open_known_split(Choice("mixture", {"parts": absent, "classes": "same"}), "train")
  assert len(source.classes) == 1000


def test_warning_names_a_part_with_unsuitable_crops_or_flips(parts, caplog):
  def warned(name, **args):
    caplog.clear()
    absent = Choice("mixture", {"parts": [{"name": name}, {"name": "cifar10"}], **args})
    choice = schema.bind(absent, schema.lookup(catalog.DATA, "mixture"), catalog.DATA)
    catalog.open_train_examples(choice, 0, Fields(), 10, opened(parts))
    return [record.getMessage() for record in caplog.records]

  assert not warned("cifar100")
  (crop,), (flip,) = warned("clevr_count"), warned("smallnorb_azimuth")
  assert "clevr_count" in crop and crop.endswith("config.data.crop=resize")
  assert "smallnorb_azimuth" in flip and flip.endswith("config.data.flip=false")
  assert not warned("clevr_count", crop={"name": "resize"}) and not warned("smallnorb_azimuth", flip=False)


def test_evaluation_reads_the_test_splits_in_order(parts):
  source = opened(parts, "test")
  bound = schema.bind(Choice("mixture", {"parts": parts}), catalog.EVAL_DATA["mixture"], catalog.EVAL_DATA)
  examples = stream.eval_examples(source, image_size=2)
  batch = next(bound.batches(examples, 16, range(16)))
  pixels = batch["image"][:, 0, 0].astype(int)
  assert (pixels[:, 2] + 256 * pixels[:, 1])[:12].tolist() == [0, 1, 2, 3, 1000, 1001, 1002, *range(3000, 3005)]
  assert batch["valid"].tolist() == [1.0] * 12 + [0.0] * 4


@pytest.mark.parametrize("copies", [1, 3])
def test_row_groups_of_a_part_are_read_ahead_and_no_image_alone(parts, copies):
  source, batch = opened([parts[1], parts[1] | {"weight": 0.5}]), 16
  blocks = Choice("blocks", {"size": 8, "window": 2, "groups": 2})
  made = repeats.RepeatedOrder(mixture_order.create_order(blocks, source.corpora, batch, 0, copies), batch, copies)
  for start in (0, 7):
    ahead = readahead.ReadAhead(source, made, start * batch)
    for step in range(start, start + 12):
      positions = range(step * batch, (step + 1) * batch)
      ahead.expect(positions)
      for position in positions:
        assert ahead.source.read(made.record(position)) == source.read(made.record(position))
    ahead.close()
    assert ahead.alone == 0


def test_remote_parts_read_record_by_record_need_more_threads(parts):
  def requests(**args):
    source = dataclasses.replace(opened(parts[1:]), remote=True)
    return stream.train_examples(source, 0, Fields(), 12, **args).requests

  assert requests() and requests(repeats=2)  # tars are read one by one
  assert requests(order=ORDERS["records"]) and not requests(order=ORDERS["blocks"])


@pytest.mark.parametrize(
  ("weights", "key", "message"),
  [
    ((1, 1e-8), "parts", "weights 1e-08 and 1. Allowed: the largest up to 1,000,000 times the smallest"),
    ((1, 1e-320), "parts[1].weight", "1e-320"),
    ((1e308, 1e308), "parts[0].weight", "1e"),
  ],
)
def test_extreme_weights_are_refused(parts, weights, key, message):
  with pytest.raises(ConfigError, match=message) as caught:
    opened([part | {"weight": weight} for part, weight in zip(parts, weights, strict=False)])
  assert caught.value.place == f"config.data.{key}"
