"""What steps measure: fetched from the devices late, checked, and written and printed as means."""

import collections
import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from vit_jax import build, checkpoints, clock, config, flops, hardware, metrics, runtime, selection, writer
from vit_jax.data import crops, loader
from vit_jax.data.images import ImageError, Images
from vit_jax.evals import Outcome
from vit_jax.evals.accuracy import Details
from vit_jax.runtime import say
from vit_jax.schema import Choice

WAITING, WAITS = 0.1, 3  # share of the time that is too much, and of so many lines in a row
DRAWING = 0.01  # share of a run's time that pictures may take before its end
CLASSES, MISTAKES, TILE = 1000, 24, 96  # at most so many of each in a picture; pixels of an image
AHEAD = 4  # steps that the devices may be behind this program


def due(parts: build.Parts, step: int) -> dict[str, build.Eval]:
  """The evaluations of a step before the last one."""
  return {name: each for name, each in parts.evals.items() if 0 < step < parts.total and step % each.every == 0}


class Log:
  """The lines of a run: a resource."""

  def __init__(
    self,
    parts: build.Parts,
    workdir: pathlib.Path,
    start: int,
    timer: clock.Clock,
    phase: Callable[[str], contextlib.AbstractContextManager],
    store: checkpoints.Checkpoints,
    about: dict,
  ):
    """`start`: step that the run continues from, and what is said `about` it. `store` knows which steps are saved."""
    self.clock, self._phase = timer, phase
    self._parts, self._start, self._store = parts, start, store
    self._writer = writer.Writer(
      workdir, start, jax.process_index() == 0, again=start == parts.total or not about.get("evaluated", True)
    )
    self._pending = collections.deque()  # (step, metrics on the devices), not fetched yet
    saved = about.get("pending", {"steps": 0, "sums": {}})
    self._sums = collections.defaultdict(float, saved["sums"])  # {metric: sum} over steps fetched and not written yet
    self._summed = saved["steps"]  # so many
    self._lap_began = self._seen = start  # step
    self._skipped = 0
    self._evaluated = None  # step
    self._drawing = 0.0  # seconds
    self._waits = 0  # lines in a row in which the devices waited for data; below 0: that was said

  def add(self, step: int, metrics: dict[str, jax.Array], skipped: int) -> None:
    """What `step` measured, which the devices may not have done yet, and how many images were skipped so far."""
    self._pending.append((step, metrics))
    self._skipped = skipped
    if len(self._pending) > AHEAD:  # the clock of the watch is that of the devices, and a stop comes within few steps
      jax.block_until_ready(self._pending[-1 - AHEAD][1])

  def progress(self, step: int) -> dict:
    """How far the run is at a step: its time, what the next line is to hold, whether evaluations due there are done."""
    pending = {"steps": self._summed, "sums": dict(self._sums)}
    evaluated = self._evaluated == step or not due(self._parts, step)
    return self.clock.counts() | {"pending": pending, "evaluated": evaluated}

  def write_due(self, step: int) -> None:
    """Writes the steps up to `step` if a line is due there. The first step starts the clock: it was compilation."""
    if step == self._seen:
      return
    if step == self._start + 1:
      self._fetch(step)
      self.clock.lap(0)
      self._lap_began = step
      say(f"{step:>7}/{self._parts.total}  loss {self._loss:.4f}; compiled and under way")
    if step % self._parts.log_every == 0:
      self.write(step)
    self._seen = step

  def write(self, step: int) -> None:
    """Writes and prints means over the steps since the last line, up to `step`, and rates."""
    self._fetch(step)
    self._seen = step
    if not self._summed:
      return
    means = {name: total / self._summed for name, total in self._sums.items()}
    self._summed = 0
    self._sums.clear()
    parts, headline = self._parts, self._parts.task.headline
    scalars = {f"train/{name}": value for name, value in means.items()} | {
      "train/learning_rate": float(parts.schedule(step - 1)),
      "skipped_images": self._skipped,
      "train/epoch": step * parts.run.batch / parts.examples,
    }
    scalars |= {f"train/epoch_{name}": seen for name, seen in parts.images.epochs(step * parts.run.batch).items()}
    line = f"{step:>7}/{parts.total}  {step / parts.total:4.0%}  loss {means['loss']:.4f}"
    if headline in means:
      line += f"  top-1 {means['top1']:6.1%}" if headline == "top1" else f"  {headline} {means[headline]:.4f}"
    images = (step - self._lap_began) * parts.run.batch
    self._lap_began = step
    # A process that has one step left has no lap.
    if images and (lap := self.clock.lap(images)):
      rates = self._rates(lap)
      scalars |= rates
      line += f"  {rates['images_per_second']:,.0f} images/s  waiting for data {rates['data_wait']:.0%}"
      line += f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
      left = (parts.total - step) * parts.run.batch / self.clock.rate
      line += f"  {int(left // 60)}:{int(left % 60):02d} left"
    self._writer.write(step, scalars)
    self.clock.write()
    say(line)
    self._advise(scalars.get("data_wait", 0.0))

  @contextlib.contextmanager
  def phase(self, name: str, step: int) -> Iterator[None]:
    """A phase after `step`: waits until all steps are done, and checks them."""
    self._fetch(step)
    with self._phase(name):
      yield

  def evaluated(self, step: int, figures: dict[str, float]) -> None:
    """Writes figures, and prints the most telling ones."""
    self._evaluated = step
    self._writer.write(step, {selection.shown(name): value for name, value in figures.items()})
    shown = [name for name in figures if name.endswith(("top1", "loss", "shot"))]
    say(f"{step:>7}  evaluated: " + "  ".join(f"{selection.shown(name)} {figures[name]:.4f}" for name in shown))

  def begin(self, pictures: Mapping[str, bytes]) -> None:
    """Gives TensorBoard the config and `pictures`, bytes of PNGs by name, where the run begins with its first step."""
    if self._start == 0:
      self._writer.text(0, "config", f"```\n{config.dumps(self._parts.run)}```")
      for name, png in pictures.items():
        self._writer.image(0, name, png)

  def draw(self, step: int, measured: Mapping[str, Outcome]) -> None:
    """Gives TensorBoard pictures of what was measured: at the end, and before it while they take next to no time."""
    if jax.process_index() != 0 or (step < self._parts.total and self._drawing > DRAWING * self.clock.train_seconds):
      return
    began = time.perf_counter()
    for prefix, outcome in measured.items():
      if isinstance(outcome.details, Details) and not prefix.endswith("ema_"):
        run, prefix = self._parts.run, prefix or "test/"
        data = run.evals[prefix[:-1]].args["data"] or run.data
        for name, png in pictures_of(outcome.details, data).items():
          self._writer.image(step, prefix + name, png)
    self._drawing += time.perf_counter() - began

  def flush(self) -> None:
    """Brings what was written where a restart finds it."""
    self._writer.flush()

  def _advise(self, waited):
    """Prints once what helps, if this share of the time was spent waiting for data in several lines in a row."""
    self._waits = (self._waits + 1 if waited > WAITING else 0) if self._waits >= 0 else -1
    if self._waits == WAITS:
      self._waits = -1
      data, images = self._parts.run.data.args, self._parts.images
      threads = loader.thread_count(data["threads"], images.requests)
      workers = loader.worker_count(data["workers"], len(images.source))
      remedy = loader.remedy(threads, workers, images.requests)
      say(f"{waited:.0%} of the time is spent waiting for data, with {remedy}")

  def close(self) -> None:
    """Ends the files."""
    self._writer.close()

  def _rates(self, rates):
    """A lap's rates, with those of a chip."""
    devices = self._parts.mesh.devices
    per_chip, peak = rates["images_per_second"] / devices.size, hardware.peak(devices.flat[0])
    utilisation = {"mfu": per_chip * flops.TRAINING * self._parts.forward_flops / peak} if peak else {}
    return rates | {"images_per_second_per_chip": per_chip} | utilisation

  def _fetch(self, step):
    """Brings what was measured up to `step` from the devices, which finish that step, and checks it."""
    steps = []
    while self._pending and self._pending[0][0] <= step:
      steps.append(self._pending.popleft())
    rows = jax.device_get([metrics for _, metrics in steps])
    for (number, _), row in zip(steps, rows, strict=True):
      check_finite(number, row, self._store)
      for name, value in row.items():
        self._sums[name] += float(value)
      self._summed, self._loss = self._summed + 1, row["loss"]


def pictures_of(details: Details, data: Choice) -> dict[str, bytes]:
  """PNGs by name of what was predicted of `data`: confusion of classes, and the worst mistakes; together below 1 MB."""
  from vit_jax import pictures  # half a second, and not of the start

  source, predictions, _ = details
  drawn, classes = {}, source.classes
  if source.labels == 1 and len(classes) <= CLASSES:
    figure = pictures.confusion_figure(metrics.confusion(predictions, len(classes)), classes)
    drawn["confusion"] = pictures.png(figure, 75 if len(classes) <= 100 else 50)
  if len(rows := metrics.mistakes(predictions, MISTAKES)):
    bounds = (data.args[key] for key in ("max_pixels", "max_aspect", "exif"))
    images, tiles, words = Images(source, "raise", *bounds), [], []
    for row in rows:
      record = int(predictions.position[row])
      try:
        tile = images.prepared(record, lambda image: crops.small(np.asarray(image), TILE))[0]
      except ImageError:  # it went since it was measured
        tile = None
      labels = [classes[label] for label in np.atleast_1d(predictions.label[row]) if label >= 0]
      guess = f"{predictions.confidence[row]:.0%} {classes[predictions.best[row, 0]]}"
      tiles.append(tile)
      words.append((source.called(record).rpartition("/")[2], f"is {', '.join(labels)}", guess))
    drawn["mistakes"] = pictures.png(pictures.sheet(tiles, words), 80)
  return drawn


def check_finite(step: int, metrics: dict[str, np.ndarray], store: checkpoints.Checkpoints) -> None:
  """Ends the run if a metric of a step is NaN or infinite.

  Args:
    step: of the metrics.
    metrics: {name: scalar}.
    store: the checkpoints, to name the last good one.

  Raises:
    runtime.Stop: with exit code 44.
  """
  wrong = {name: float(value) for name, value in metrics.items() if not np.isfinite(value)}
  if wrong:
    raise not_finite(step, f"not finite: {wrong}", store)


def not_finite(step: int, problem: str, store: checkpoints.Checkpoints) -> runtime.Stop:
  """Returns the exception that ends a run at a step because of NaN or infinite values, with exit code 44."""
  store.wait()
  saved = store.steps()
  return runtime.Stop(
    runtime.EXIT_NOT_FINITE,
    f"step {step}: {problem}; "
    + (f"the last good checkpoint is step {saved[-1]}. " if saved else "no checkpoint was saved yet. ")
    + "A lower config.optim.lr, a longer warmup or config.optim.clip usually helps.",
  )
