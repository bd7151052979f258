"""ViT-Lite, CVT and CCT on the digits, from scratch and onwards: make compare, or python -m benchmarks.compare

Three models at the same budget, three seeds each; of the one that is best on `val` its features are probed with a few
images of each class, at the resolution of training and at a higher one, where it is then fine-tuned. Test images
decide nothing. Everything is trained by the verbs of vit_jax; the same command continues where it was killed.
It leaves compare.md, compare.json and compare.png in its workdir.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax import cli, config, files, runtime, sweep
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.results import Trial

MODELS = {"vit_2_4_32": "ViT-Lite-2/4", "cvt_2_4_32": "CVT-2/4", "cct_2_3x2_32": "CCT-2/3x2"}
SEEDS, SHOTS = (0, 1, 2), (1, 5, 10, 25)
PIXELS = (32, 48)
SPLITS = {"data.train": "train[:90%]", "data.val": "train[90%:]"}
SCRATCH = SPLITS | {  # of configs/digits.py; a checkpoint and an evaluation cost time, and two tell enough
  "total": "20ep", "evals.val.name": "accuracy", "evals.val.split": "val", "evals.val.every": "10%",
  "evals.test.every": "100%", "checkpoint.every": "50%", "log.every": "10%",
}  # fmt: skip
FINETUNE = {"total": "3ep", "checkpoint.every": "100%", "log.every": "20%", "evals.val.every": "100%"}


def main() -> None:
  """Trains, probes, fine-tunes, and tells."""
  parser = argparse.ArgumentParser("python -m benchmarks.compare", allow_abbrev=False, description=__doc__)
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/compare"))
  given = parser.parse_args()
  began, workdir = time.perf_counter(), given.workdir
  places = pool.groups(2)

  # The slowest first, so that no core waits long at the end.
  changes = config.product({"model.name": list(MODELS)[::-1], "seed": SEEDS})
  scratch = trained("configs/digits.py", workdir / "scratch", SCRATCH, changes, places)
  best = max(MODELS, key=lambda name: statistics.mean(t.figures["val/top1"] for t in of(scratch, name)))
  print(f"\nbest on val: {MODELS[best]}\n", flush=True)
  probed = probes(workdir, scratch, best, places)
  starts = [{"init.from": str(trial.workdir), "seed": trial.changes["seed"]} for trial in of(scratch, best)]
  file = f"configs/finetune.py:digits,{best},{PIXELS[1]}"
  tuned = trained(file, workdir / "finetune", FINETUNE, starts, places)

  rows = [["what", "pixels", "images of training", "test top-1, % (runs)", "seconds of training"]]
  images = images_of(scratch)
  for name, title in MODELS.items():
    seconds = statistics.mean(trial.seconds for trial in of(scratch, name))
    rows.append([f"{title} from scratch", "32", f"{images:,}", cell(of(scratch, name)), f"{seconds:.0f}"])
  for size in PIXELS:
    for k in SHOTS:
      found = [top1(figures_of, k) for figures_of in probed[best, size]]
      rows.append(
        [f"{MODELS[best]}, frozen, {k}-shot ridge", str(size), f"{10 * k}", results.mean_and_spread(found), "-"]
      )
  seconds = statistics.mean(trial.seconds for trial in tuned)
  rows.append([f"{MODELS[best]}, fine-tuned", str(PIXELS[1]), f"{images:,}", cell(tuned), f"{seconds:.0f}"])

  text = results.markdown(rows)
  files.write_text(workdir / "compare.md", text + "\n")
  told = {"best": best, "rows": rows, "trials": [trial.told() for trial in scratch + tuned]}
  told["fewshot"] = [{"model": name, "pixels": size, "figures": found} for (name, size), found in probed.items()]
  files.write_text(workdir / "compare.json", json.dumps(told, indent=2, default=str) + "\n")
  picture(scratch, probed, tuned, best, images, workdir / "compare.png")
  print(f"\n{text}\n\n{time.perf_counter() - began:.0f} s; {workdir}/compare.md, compare.json, compare.png", flush=True)


def trained(file, workdir, overrides, rows, places) -> list[Trial]:
  """A run for each of the changes, side by side; ends here if one of them fails."""
  listed = sweep.planned(file, rows, overrides, workdir / "trials", None)
  with runtime.locked(workdir), sweep.stoppable():
    sweep.search(file, workdir, config.Sweep(rows, decide=None), overrides, listed, places, retry=True)
  if bad := [f"{trial}: {trial.error}" for trial in listed if trial.status != "done"]:
    sys.exit("\n".join(bad))
  return listed


def of(listed: list[Trial], name: str) -> list[Trial]:
  """The trials of a model."""
  return [trial for trial in listed if trial.changes["model.name"] == name]


def probes(workdir, scratch, best, places) -> dict[tuple[str, int], list[dict]]:
  """(model, pixels) -> few-shot figures of the weights of each seed; the higher resolution for the best model only."""
  jobs, found = {}, {}
  for trial in scratch:
    name = trial.changes["model.name"]
    for size in PIXELS if name == best else PIXELS[:1]:
      file = workdir / "fewshot" / f"{trial.name}-{size}.json"
      found.setdefault((name, size), []).append(file)
      if not file.exists():
        jobs[file] = [
          *(sys.executable, "-m", "vit_jax.fewshot", "--config=configs/fewshot.py:digits"),
          *(f"--weights={trial.workdir}", f"--json={file}", f"--config.image_size={size}"),
          f"--config.evals.digits.data.train={SPLITS['data.train']}",
        ]
  (workdir / "fewshot").mkdir(parents=True, exist_ok=True)
  with contextlib.closing(pool.Pool(places)) as running:
    waiting = list(jobs)
    while waiting or running.names:
      while waiting and running.has_room:
        file = waiting.pop()
        running.start(str(file), jobs[file], file.with_suffix(".log"))
      for name, code in running.finished().items():
        print(f"{time.strftime('%H:%M:%S')}  few-shot  {pathlib.Path(name).stem}", flush=True)
        if code:
          sys.exit(f"{name}: {pathlib.Path(name).with_suffix('.log').read_text()}")
      time.sleep(0.1)
  return {
    key: [json.loads(file.read_text())["evals"]["digits"]["figures"] for file in files] for key, files in found.items()
  }


def top1(found: dict, shots: int) -> float:
  """Mean top-1 over draws."""
  return found[f"ridge_{shots}shot"]


def cell(listed: list[Trial]) -> str:
  """Top-1 on test, mean ± standard deviation."""
  return results.mean_and_spread([trial.figures["top1"] for trial in listed])


def images_of(listed: list[Trial]) -> int:
  """Images that a run was trained on: from its log, so as it was."""
  last = lines_of(listed[0])[-1]
  return round(last["step"] * json.loads(listed[0].config)["batch"] / last["train/epoch"])


def lines_of(trial: Trial) -> list[dict]:
  """Lines of a run's log that have an epoch and a figure on val."""
  found = {}
  for line in (trial.workdir / "metrics.jsonl").read_text().splitlines():
    told = json.loads(line)
    found.setdefault(told["step"], {}).update(told)
  return [line for line in found.values() if {"train/epoch", "val/top1"} <= line.keys()]


def picture(scratch, probed, tuned, best, images, path) -> None:
  """Left: accuracy on val over the images seen in training. Right: on test by the number of different images."""
  drawn = Figure(figsize=(11, 4.2), layout="constrained")
  FigureCanvasAgg(drawn)
  left, right = drawn.subplots(1, 2)
  for colour, (name, title) in enumerate(MODELS.items()):
    runs = [lines_of(trial) for trial in of(scratch, name)]
    seen = [line["train/epoch"] * images for line in runs[0]]
    curves = [[line["val/top1"] for line in run] for run in runs]
    mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
    spread = [statistics.stdev(values) for values in zip(*curves, strict=True)]
    left.plot(seen, mean, "o-", markersize=3, color=f"C{colour}", label=title)
    low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
    left.fill_between(seen, low, high, color=f"C{colour}", alpha=0.2)
    dotted(right, [10 * k for k in SHOTS], [[top1(f, k) for f in probed[name, 32]] for k in SHOTS], f"C{colour}",
           f"{title}, frozen, few-shot")  # fmt: skip
    ends = [trial.figures["top1"] for trial in of(scratch, name)]
    dotted(right, [images], [ends], f"C{colour}", None, "s")
  dotted(right, [10 * k for k in SHOTS], [[top1(f, k) for f in probed[best, PIXELS[1]]] for k in SHOTS], "C3",
         f"{MODELS[best]}, the same at {PIXELS[1]} px")  # fmt: skip
  dotted(right, [images * 1.15], [[t.figures["top1"] for t in tuned]], "C3", f"fine-tuned at {PIXELS[1]} px", "D")
  left.set(xlabel="training images seen", ylabel="top-1 on val", title="from scratch, mean ± std of 3 seeds")
  right.set(xlabel="different labelled images", ylabel="top-1 on test", xscale="log",
            title="probes of frozen features, which saw all labels; squares: from scratch")  # fmt: skip
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
  with files.replacing(path) as partial:
    drawn.savefig(partial, format="png", dpi=110)


def dotted(axes, places, values, colour, label, marker="o") -> None:
  """Means with bars of one standard deviation."""
  means, spreads = zip(*((statistics.mean(v), statistics.stdev(v)) for v in values), strict=True)
  axes.errorbar(
    places, means, spreads, fmt=f"{marker}-", color=colour, label=label, markersize=5, capsize=2, linewidth=1
  )


if __name__ == "__main__":
  cli.main(main)
