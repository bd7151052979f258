"""Tests of the chapter on mistakes, against scikit-learn and plain loops over the same predictions, for any names."""

import collections
import dataclasses
import re

import numpy as np
import pytest
import sklearn.metrics

from tests import predictions as made
from tests.reports import reading
from vit_jax.data.sources import Source
from vit_jax.evals import intervals, metrics
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.reports import mistakes, page

HOSTILE = ["<img src=x>", "caf\udce9", "x" * 500, "\x1b[31mred", "two\nlines", "$a$", "{{ 7 * 7 }}", "", "猫"]


def source_of(names, length=10**6, labels=1):
  def refuse(record):
    raise AssertionError("nothing is read")

  return Source("set", "test", tuple(names), length, refuse, str, labels, lambda i: f"test/<b>{i}</b>.jpg")


def details_of(predictions, names=None, labels=1, way=""):
  classes = predictions.logits.shape[1]
  return AccuracyDetails(source_of(names or [f"class {i}" for i in range(classes)], labels=labels), predictions, way)


def squares(positions):
  return [np.full((8, 8, 3), position % 256, np.uint8) for position in positions]


def chapter_of(predictions, **options):
  return mistakes.make_chapter(details_of(predictions, **options), squares)


def percent(value):
  return f"{100 * value:.2f} %"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("images", "classes", "present"), [(600, 10, 10), (900, 40, 30), (900, 300, 300), (9, 4, 3)])
def test_numbers_of_a_chapter_match_scikit_learn(images, classes, present):
  predictions = made.drawn(1, images, classes, present)
  chapter = chapter_of(predictions)
  label, guess = predictions.label, predictions.best[:, 0]
  names = [f"class {i}" for i in range(classes)]

  right = int((label == guess).sum())
  assert f"all {images:,} images: {right:,} right, {images - right:,} wrong" in chapter.about
  figures = {row["figure"]: row["value"] for row in reading.table(chapter, "Figures")}
  measured = metrics.compute_metrics(predictions, classes)
  assert set(figures) == set(measured)
  assert figures["top1"] == percent(sklearn.metrics.accuracy_score(label, guess))
  assert figures["loss"] == f"{measured['loss']:.4f}" and figures["images"] == f"{images:,}"

  rows = reading.table(chapter, "Classes, the worst first")
  rates = sklearn.metrics.precision_recall_fscore_support(label, guess, labels=range(classes), zero_division=0)
  occur = set(label.tolist()) | set(guess.tolist())
  assert {row["class"] for row in rows} == {names[i] for i in occur}
  for row in rows:
    i = names.index(row["class"])
    assert [row[key] for key in ("precision", "recall", "F1")] == [percent(values[i]) for values in rates[:3]]
    assert row["images"] == f"{rates[3][i]:,}"
  f1 = [float(row["F1"].removesuffix(" %")) for row in rows]
  assert f1 == sorted(f1)

  matrix = sklearn.metrics.confusion_matrix(label, guess, labels=range(classes))
  wrong = {(i, j): int(matrix[i, j]) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j}
  pairs = reading.table(chapter, "Most frequent confusions")
  assert [int(row["images"]) for row in pairs] == sorted(wrong.values(), reverse=True)[:20]
  for row in pairs:
    i, j = names.index(row["label"]), names.index(row["predicted as"])
    assert int(row["images"]) == wrong[i, j] and row["of the label's"] == percent(wrong[i, j] / matrix[i].sum())
  for row in rows:
    most = max([wrong.get((names.index(row["class"]), j), 0) for j in range(classes)])
    output = re.fullmatch(r"(class \d+) \((\d+)\)", row["most often predicted as"])
    assert (
      output is None
      if most == 0
      else wrong[names.index(row["class"]), names.index(output[1])] == most == int(output[2])
    )


@pytest.mark.parametrize("classes", [2, 20, 21, 50, 51, 300])
def test_confusion_matrix_has_names_and_numbers_if_there_is_room(classes):
  predictions = made.drawn(2, 2000, classes, classes)
  part = reading.named(chapter_of(predictions), "Confusions")
  words = collections.Counter(reading.words(part.svg))
  matrix = sklearn.metrics.confusion_matrix(predictions.label, predictions.best[:, 0], labels=range(classes))
  numbers = collections.Counter(f"{number:,}" for number in matrix[matrix > 0])
  assert {word: count for word, count in words.items() if word.isdigit()} == (numbers if classes <= 20 else {})
  assert all(words[f"class {i}"] == (2 if classes <= 50 else 0) for i in range(classes))
  assert ("A square represents up to 2 classes" in part.about) == (classes == 300)


def test_more_than_a_thousand_classes_give_tables_without_a_matrix():
  predictions = made.drawn(3, 4000, 1500, 1500)
  chapter = chapter_of(predictions)
  assert "Confusions" not in reading.titles(chapter)
  assert len(reading.table(chapter, "Classes, the worst first")) == 1000
  assert "The worst 1,000 of " in reading.named(chapter, "Classes, the worst first").about


def test_classes_that_do_not_occur_are_left_out_of_a_large_matrix():
  few = made.drawn(4, 200, 5, 5)
  predictions = few._replace(label=few.label * 3000, best=few.best * 3000)
  chapter = mistakes.make_chapter(
    AccuracyDetails(source_of([f"class {i}" for i in range(15_000)]), predictions), squares
  )
  part = reading.named(chapter, "Confusions")
  assert "Only the 5 of 15,000 classes that occur" in part.about
  assert "class 12000" in reading.words(part.svg)
  assert len(reading.table(chapter, "Classes, the worst first")) == 5


def test_reduced_matrix_keeps_the_largest_share_of_each_cell():
  share = np.random.default_rng(0).uniform(size=(777, 777))
  cells = mistakes.reduce_matrix(share)
  assert cells.shape == (250, 250) and cells.max() == share.max()
  starts = [i * 777 // 250 for i in range(251)]
  assert cells[7, 100] == max(share[i, j] for i in range(*starts[7:9]) for j in range(*starts[100:102]))


def test_images_are_the_worst_and_the_least_certain_in_order():
  predictions = made.drawn(5, 300, 10, 10)
  draw = np.random.default_rng(5)
  probability = np.sort(draw.dirichlet(np.ones(10), 300).astype(np.float32))[:, :-6:-1]
  predictions = predictions._replace(probability=probability, confidence=probability[:, 0], position=np.arange(300) * 7)
  predictions.loss[17] = np.nan
  chapter = chapter_of(predictions)
  right = predictions.label == predictions.best[:, 0]

  worst = sorted(np.flatnonzero(~right), key=lambda i: -np.nan_to_num(predictions.loss[i], nan=np.inf))[:18]
  pictures = reading.named(chapter, "Worst mistakes").pictures
  assert [picture.lines[-1] for picture in pictures] == [f"test/<b>{7 * i}</b>.jpg" for i in worst]
  for picture, i in zip(pictures, worst, strict=True):
    assert picture.lines[0] == f"label class {predictions.label[i]}"
    assert picture.lines[1] == f"predicted as class {predictions.best[i, 0]}, {percent(predictions.confidence[i])}"
    assert (picture.pixels == 7 * i % 256).all()

  margin = probability[:, 0] - probability[:, 1]
  least = sorted(range(300), key=lambda i: margin[i])[:18]
  pictures = reading.named(chapter, "Least certain").pictures
  assert [picture.lines[-1] for picture in pictures] == [f"test/<b>{7 * i}</b>.jpg" for i in least]
  assert [picture.wrong for picture in pictures] == [not right[i] for i in least]
  assert pictures[0].lines[1:3] == [
    f"class {predictions.best[least[0], k]} {percent(probability[least[0], k])}" for k in (0, 1)
  ]


def test_confidence_replaces_missing_probabilities():
  predictions = made.drawn(6, 180, 4, 4)
  pictures = reading.named(chapter_of(predictions), "Least certain").pictures
  least = np.argsort(predictions.confidence, kind="stable")[:18]
  assert [picture.lines[-1] for picture in pictures] == [f"test/<b>{i}</b>.jpg" for i in least]


def test_images_with_several_labels_have_no_matrix_but_any_label_counts():
  predictions = made.drawn(7, 500, 12, 12, most=3)
  kept = (predictions.label >= 0).any(1)  # the evaluation leaves out images without labels
  predictions = made.rows(predictions, kept)
  chapter = chapter_of(predictions, labels=3)
  sets = [{one for one in label if one >= 0} for label in predictions.label.tolist()]
  guess = predictions.best[:, 0].tolist()
  right = sum(best in labels for labels, best in zip(sets, guess, strict=True))
  assert "Confusions" not in reading.titles(chapter)
  assert f"{right} right" in chapter.about and "up to 3 labels" in chapter.about
  pairs = collections.Counter()
  for labels, best in zip(sets, guess, strict=True):
    pairs.update((one, best) for one in labels if best not in labels)
  output = reading.table(chapter, "Most frequent confusions")
  assert [int(row["images"]) for row in output] == [count for _, count in pairs.most_common(20)]
  figures = {row["figure"]: row["value"] for row in reading.table(chapter, "Figures")}
  assert figures["average_precision"] == percent(metrics.compute_metrics(predictions, 12)["average_precision"])
  assert ", class" in " ".join(line for p in reading.named(chapter, "Least certain").pictures for line in p.lines)


@pytest.mark.filterwarnings("error")
def test_hostile_class_names_do_not_break_the_page_and_fit():
  predictions = made.drawn(8, 300, len(HOSTILE), len(HOSTILE))
  chapter = chapter_of(predictions, names=HOSTILE)
  text = page.render_page("Run", "", [chapter])
  assert text.encode() and "<img src=x>" not in text and "\x1b" not in text and "{{ 7 * 7 }}" in text
  assert max(map(len, reading.words(reading.named(chapter, "Confusions").svg))) <= 24
  cells = [cell for part in chapter.parts if isinstance(part, page.Table) for row in part.rows for cell in row]
  assert max(map(len, cells)) < 70


def test_chapter_reports_the_sample_size_and_the_kind_of_figures():
  predictions = made.drawn(9, 100, 10, 10)
  intervals = {"200_way_top1": (0.25, 0.5)}
  details = details_of(predictions, way="200_way_")
  chapter = mistakes.make_chapter(details, squares, intervals, split_size=50_000, about="Weights of step 3.")
  assert "100 of 50,000 images" in chapter.about and chapter.about.endswith("Weights of step 3.")
  row = next(row for row in reading.table(chapter, "Figures") if row["figure"] == "200_way_top1")
  assert (row["95 % interval"], row["method"]) == ("25.00 % to 50.00 %", "Wilson")


def test_page_has_one_interval_per_share_and_names_figures_without_one():
  predictions = made.drawn(9, 67, 4, 4)
  predictions = predictions._replace(label=predictions.best[:, 0])
  details = details_of(predictions)
  found = metrics.compute_intervals(predictions, len(details.source.classes))
  chapter = mistakes.make_chapter(details, squares, found)
  rows = {row["figure"]: row for row in reading.table(chapter, "Figures")}
  low, high = (100 * end for end in intervals.compute_wilson_interval(1.0, 67))
  assert rows["top1"]["95 % interval"] == f"{low:.2f} % to {high:.2f} %" and rows["top1"]["method"] == "Wilson"
  assert rows["mean_per_class"]["95 % interval"] == "" and rows["loss"]["method"] == "bootstrap"
  about = reading.named(chapter, "Figures").about
  assert "No interval for mean_per_class, " in about and "too few" in about
  assert not any("100.00 % to 100.00 %" in row["95 % interval"] for row in rows.values())


def test_missing_mistakes_images_or_files_are_explained():
  predictions = made.drawn(10, 40, 5, 5)
  perfect = predictions._replace(label=predictions.best[:, 0])
  assert "All of these images are right." in reading.titles(chapter_of(perfect))
  (nothing,) = chapter_of(made.rows(predictions, slice(0))).parts
  assert "no image" in nothing.text
  gone = mistakes.make_chapter(details_of(predictions), lambda positions: [None for _ in positions])
  assert "the image no longer exists" in reading.named(gone, "Least certain").pictures[0].lines
  assert page.render_page("Run", "", [gone])


def test_large_images_are_reduced():
  predictions = made.drawn(11, 40, 5, 5)
  source = dataclasses.replace(source_of("abcde"), length=40)
  chapter = mistakes.make_chapter(
    AccuracyDetails(source, predictions), lambda some: [np.zeros((384, 384, 3), np.uint8) for _ in some]
  )
  assert {p.pixels.shape for p in reading.named(chapter, "Least certain").pictures} == {(192, 192, 3)}
