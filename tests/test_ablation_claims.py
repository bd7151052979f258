"""Tests of the ablations: intervals and verdicts, names of settings, and the numbers on the page of results."""

import collections
import json
import re

import numpy as np
import pytest
from scipy import stats

from benchmarks import ablations
from benchmarks.ablation_claims import ABLATIONS, EQUAL, HIGHER, OWN, Ablation, Claim
from tests import recipes, runs
from vit_jax.evals.intervals import Summary, summarize_runs
from vit_jax.sweeps import study
from vit_jax.sweeps.trials import Trial

PAGE = (runs.ROOT / "docs/results/ablations.md").read_text()
SECTIONS = {re.search(r"`configs/ablations/(\w+)\.py`", text)[1]: text for text in PAGE.split("\n## ")[1:]}
ONE_OF = {  # a setting of each ablation, with some of its changes
  "positions": ("2-D, shared", {"model.position": dict(name="factored", at="shared")}),
  "pooling": ("mean, rate 0.003", {"model.head": "gap", "optim.lr": 0.003}),
  "optimizer": ("Muon, rate 0.02", {"optim.name": "muon", "optim.lr": 0.02}),
  "seqpool": ("patches, SeqPool", {"model.name": "vit_2_4_32", "model.pool": "seqpool"}),
  "data_size": ("patches, 718 images", {"model.name": "vit_2_4_32", "data.train": "train[:50%]"}),
  "tokenizer": ("1 convolution of 3 x 3, 144 tokens", {"model.kernel": 3, "model.convolutions": 1}),
  "shape": ("8 x 44", {"model.depth": 8, "model.width": 44}),
  "pretraining": ("pre-trained, 50 images", {"init.from": "runs/glyphs", "data.train": "train[:50]"}),
  "block": ("RMSNorm", {"model.norm.name": "rms", "model.registers": 0}),
}


def read_rows(section):
  """Returns the rows of the table of settings in a section of the page."""
  found = {}
  for name, mean, deviation, count in re.findall(r"(?m)^\| (.+?) +\| (\S+) ± (\S+) +\| (\S+) +\|", section):
    selected = name.startswith("**")
    values = [cell.strip("*") for cell in (mean, deviation, count)]
    found[name.strip("*")] = ablations.Row(Summary(float(values[0]), float(values[1]), int(values[2])), selected)
  return found


def make_values(summary):
  """Returns values with exactly the given mean, standard deviation and count."""
  steps = np.arange(summary.runs) - (summary.runs - 1) / 2
  return summary.mean + summary.deviation * steps / np.std(steps, ddof=1)


def compute_reference(claim, rows):
  """Returns SciPy's interval of a claim about two settings, from values with the means and deviations of the rows."""
  values = [make_values(ablations.find_row(name, rows).summary) for name in (claim.first, claim.second)]
  interval = stats.ttest_ind(*values, equal_var=False).confidence_interval(0.95)
  return interval.low, interval.high


@pytest.mark.parametrize("name", ABLATIONS)
def test_page_has_the_tables_of_each_ablation(name):
  rows = read_rows(SECTIONS[name])
  assert (*rows,) == ABLATIONS[name].settings
  assert ablations.format_tables(ABLATIONS[name], rows) in SECTIONS[name]


@pytest.mark.parametrize("name", ABLATIONS)
def test_intervals_on_the_page_match_scipy(name):
  rows, section = read_rows(SECTIONS[name]), SECTIONS[name].replace("**", "")
  for setting, (summary, _) in rows.items():
    low, high = stats.t.interval(0.95, summary.runs - 1, summary.mean, summary.deviation / summary.runs**0.5)
    row = re.search(rf"(?m)^\| {re.escape(setting)} +\|.* (\S+) to (\S+) +\|$", section)
    assert [float(end) for end in row.groups()] == pytest.approx([low, high], abs=0.0051)
  for claim in ABLATIONS[name].claims:
    if " + " not in claim.first:
      row = re.search(rf"(?m)^\| {re.escape(claim.text)} +\|.* (\S+) to (\S+) +\| (.+?) +\|$", section)
      low, high = compute_reference(claim, rows)
      assert [float(end) for end in row.groups()[:2]] == pytest.approx([low, high], abs=0.0051)
      equal = claim.direction == EQUAL
      inside = max(abs(low), abs(high)) <= 2 if equal else min(low, high) > 0
      outside = min(abs(low), abs(high)) > 2 and low * high > 0 if equal else max(low, high) < 0
      assert row[3] == ("appears" if inside else "reversed" if outside else "not decided")


def test_page_counts_the_verdicts():
  counts = collections.Counter(
    (claim.source == OWN, ablations.judge_claim(claim, read_rows(SECTIONS[name])).verdict)
    for name, ablation in ABLATIONS.items()
    for claim in ablation.claims
  )
  text = " ".join(PAGE.split())
  for own, words in (
    (False, r"are from papers: (\d+) appear, (\d+) is"),
    (True, r"own questions: (\d+) appear, (\d+) are"),
  ):
    found = re.search(rf"(\d+) claims are (?:{words.removeprefix('are ')}) reversed and (\d+) are not decided", text)
    expected = [counts[own, verdict] for verdict in (ablations.APPEARS, ablations.REVERSED, ablations.UNDECIDED)]
    assert [int(number) for number in found.groups()] == [sum(expected), *expected]


@pytest.mark.parametrize(
  ("first", "second", "direction", "verdict"),
  [
    ([91, 92, 93], [81, 82, 83], HIGHER, "appears"),
    ([81, 82, 83], [91, 92, 93], HIGHER, "reversed"),
    ([81, 92, 93], [81, 82, 83], HIGHER, "not decided"),
    ([90, 90.1, 90.2], [90.5, 90.6, 90.7], EQUAL, "appears"),
    ([90, 90.1, 90.2], [95, 95.1, 95.2], EQUAL, "reversed"),
    ([95, 95.1, 95.2], [90, 90.1, 90.2], EQUAL, "reversed"),
    ([90, 90.1, 90.2], [92, 92.1, 92.2], EQUAL, "not decided"),
    ([90, 90, 90], [90, 90, 90], EQUAL, "not decided"),
  ],
)
def test_verdict_follows_from_the_interval(first, second, direction, verdict):
  rows = {"a": ablations.Row(summarize_runs(first)), "b": ablations.Row(summarize_runs(second))}
  difference, interval, found = ablations.judge_claim(Claim("a and b", OWN, "a", "b", direction), rows)
  assert (difference, found) == (pytest.approx(np.mean(first) - np.mean(second)), verdict)
  if np.std(first):
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("name", ABLATIONS)
def test_settings_have_the_names_of_the_sweep(name):
  trials = [
    Trial("", changes, {}, runs.ROOT, None) for changes in study.load_sweep(recipes.path(f"ablations/{name}")).trials
  ]
  settings = dict(zip(ABLATIONS[name].settings, ablations.group_settings(trials, None), strict=True))
  setting, changes = ONE_OF[name]
  assert settings[setting].changes | changes == settings[setting].changes


def test_setting_of_a_group_is_selected_on_val():
  accuracies = {"cls": [(0.5, 0.9), (0.6, 0.8)], "gap": [(0.7, 0.7), (0.1, 0.6)]}  # on val and test
  trials = [
    Trial("", {"model.head": head, "optim.lr": rate, "seed": seed}, {}, runs.ROOT, None, "done")
    for head in accuracies
    for rate in (0, 1)
    for seed in (0, 1)
  ]
  for trial in trials:
    val, test = accuracies[trial.changes["model.head"]][trial.changes["optim.lr"]]
    trial.figures = {"val/top1": val, "top1": test + 0.01 * trial.changes["seed"]}
  ablation = Ablation(("cls, 0", "cls, 1", "gap, 0", "gap, 1"), (Claim("", OWN, "cls", "gap"),), ("cls", "gap"))
  rows = ablations.summarize(ablation, trials)
  assert [name for name, row in rows.items() if row.selected] == ["cls, 1", "gap, 0"]
  assert rows["cls, 1"].summary == pytest.approx((80.5, 0.01 * 100 / 2**0.5, 2))
  assert ablations.judge_claim(ablation.claims[0], rows).difference == pytest.approx(10)


def test_unknown_interval_is_null_in_json():
  ablation = Ablation(("a", "b"), (Claim("a is better", OWN, "a", "b"),))
  rows = dict.fromkeys(ablation.settings, ablations.Row(Summary(90.0, 0.0, 2)))
  record = json.loads(json.dumps(ablations.make_record(ablation, rows), allow_nan=False))
  assert record["claims"][0]["interval"] == record["settings"][0]["interval"] == [None, None]
  assert "| unknown" in ablations.format_tables(ablation, rows)


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_has_a_claim_about_two_settings_for_a_quick_run(name):
  ablation = ablations.select_first_claim(ABLATIONS[name])
  (claim,) = ablation.claims
  assert {claim.first, claim.second} == {*ablation.settings} and claim in ABLATIONS[name].claims


# The recipes of all ablations take two steps in tests/configs/test_all.py.
TRAINED = ("positions", "pretraining")


@pytest.mark.full
def test_command_measures_ablations_at_reduced_size(tmp_path):
  command = runs.start("benchmarks.ablations", f"--workdir={tmp_path}", f"--only={','.join(TRAINED)}", "--quick")
  printed, text = runs.finish(command, seconds=900), (tmp_path / "ablations.md").read_text()
  records = json.loads((tmp_path / "ablations.json").read_text())
  assert (*records,) == TRAINED
  for name, record in records.items():
    (claim,), settings = record["claims"], [each["setting"] for each in record["settings"]]
    (listed,) = [each for each in ABLATIONS[name].claims if each.text == claim["text"]]
    assert {listed.first, listed.second} == {*settings}
    assert [(each["changes"]["seed"], each["figures"]["steps"]) for each in record["trials"]] == [(0, 1)] * 2 + [
      (1, 1)
    ] * 2
    means = {each["setting"]: each["mean"] for each in record["settings"]}
    assert claim["difference"] == pytest.approx(means[listed.first] - means[listed.second])
    for number, each in enumerate(record["settings"]):
      accuracies = [100 * trial["figures"]["top1"] for trial in record["trials"][number::2]]
      assert (each["runs"], each["mean"]) == (2, pytest.approx(np.mean(accuracies)))
      assert f"{each['mean']:.2f} ± {np.std(accuracies, ddof=1):.2f}" in text
    _, _, section = text.partition(f"## {name}\n\n")
    assert section.partition("\n\n## ")[0].strip() in printed
