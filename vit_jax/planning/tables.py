"""Plans as text: a line for each plan, and a table of all plans."""

import math
from collections.abc import Mapping, Sequence

from vit_jax.planning.estimate import WRITE_RATE, Plan
from vit_jax.schema import format_amount

METHOD = f"""\
step   the compiler's estimate of cycles of every operation, at the chip's clock, plus the time on the links.
       Operations without an estimate, such as gathers of an augmentation on TPU7x, count as 0.
       If it is below the time of the arithmetic or of the memory traffic at peak rates, the longer of these two.
parts  estimated cycles by the part of the code, with the gradients. Fused operations count for one of their parts.
kinds  the same cycles by the kind of operation. Attention is the product of queries and keys, the softmax and the
       average of the values. Outside of attention and the optimizer, a fused operation that contains a matrix product
       counts as a matrix product. "other" contains activations, residual additions, losses and augmentations.
links  bytes that a device sends for collectives, in rings, at the rate of all its links, without overlap.
MFU    the model's matrix products, forward and backward, as a share of the chip's peak, without recomputation.
checkpoint  its size, and how long it takes to write at {WRITE_RATE / 1e9:.1f} GB/s per host. Training continues
       meanwhile, and the next save waits until the checkpoint is complete.
input  images/s that the chips need from a host, and those that it prepares: --host-rate, or a rough estimate for all
       its cores with the default number of worker processes. Reading from disks or buckets is not included.
       images/s/chip, MFU, hours and cost are those of the run, including its waiting if it is input-bound.
evaluations  forward passes over whole splits, as a share of a step's arithmetic, or at the rate of the hosts if that
       is longer. Images include the padding of the last batch. Other figures exclude evaluations and the time to
       start, compile and restart."""


def format_plan(plan: Plan) -> str:
  """Returns a line that contains the fit, speed and limit of a plan, or its problem."""
  head = f"{plan.rented:<16} {plan.mesh}: "
  if plan.problem:
    return head + plan.problem
  limit = "memory bandwidth" if plan.limit == "memory" else plan.limit
  waits = f"; input-bound, {plan.pace * 1e3:,.1f} ms between the starts of two steps" if plan.input_bound else ""
  return head + (
    f"fits, {plan.hbm_bytes / 2**30:.1f} of {plan.hbm_limit / 2**30:.1f} GiB, {plan.step_seconds * 1e3:,.1f} ms per "
    "step "
    f"({plan.method}), limited by {limit}; compiled in {plan.compile_seconds:.0f} s{waits}"
  )


_COLUMNS = (  # heading, function from a plan to the cell
  ("slice", lambda p: p.rented),
  ("mesh", lambda p: p.mesh),
  ("args GiB", lambda p: f"{p.hbm_arguments / 2**30:.2f}"),
  ("temp GiB", lambda p: f"{p.hbm_temporaries / 2**30:.2f}"),
  ("of GiB", lambda p: f"{p.hbm_limit / 2**30:.2f}"),
  ("step TFLOP", lambda p: f"{p.flops / 1e12:.2f}"),
  ("GB", lambda p: f"{p.bytes / 1e9:.1f}"),
  ("links MB", lambda p: f"{sum(c['moved'] for c in p.collectives.values()) / 1e6:,.0f}"),
  ("step ms", lambda p: f"{p.step_seconds * 1e3:,.1f}"),
  ("limit", lambda p: "input" if p.input_bound else p.limit),
  ("images/s/chip", lambda p: f"{p.images_per_second_per_chip:,.0f}"),
  ("MFU", lambda p: f"{p.mfu:.0%}"),
  ("hours", lambda p: _format_number(p.hours)),
  ("core-days", lambda p: _format_number(p.core_days)),
  ("checkpoint", lambda p: f"{p.checkpoint_bytes / 1e9:.1f} GB, {p.checkpoint_seconds:.1f} s"),
  ("input a host", lambda p: _format_input(p)),
  ("cost", lambda p: "" if p.cost is None else _format_number(p.cost)),
)


def _format_number(value: float) -> str:
  """Returns a number with at least two significant digits, such as 22.4 or 0.0063. From 1,000, it is a whole number."""
  if value >= 1 or not value:
    return f"{value:,.{0 if value >= 1000 else 1}f}"
  return f"{value:.{1 - math.floor(math.log10(value))}f}"


def _format_hours(hours: float) -> str:
  """Returns a length of time in hours, or in minutes if the length is below an hour."""
  return f"{_format_number(hours)} hours" if hours >= 1 else f"{_format_number(60 * hours)} minutes"


def _format_input(plan: Plan) -> str:
  images = f"{plan.images_per_second_per_host:,.0f} of {plan.host_rate:,.0f}/s"
  size = plan.input_bytes_per_second_per_host
  return images if size is None else f"{images}, {size / 1e6:,.0f} MB/s"


def _explain_input_bound(plan: Plan) -> str:
  measured = plan.host_rate_method == "measured"
  first = (
    "Raise data.workers, if the rate was measured with fewer workers than cores"
    if measured
    else ("Measure the rate of a host, and set it with --host-rate")
  )
  return (
    f"input-bound: the chips need {plan.images_per_second_per_host:,.0f} images/s from each host, which "
    f"prepares {plan.host_rate:,.0f} ({plan.host_rate_method}). The run takes {_format_hours(plan.hours)}, and the "
    f"chips work for {_format_hours(plan.device_hours)}. {first}. Alternatively, use fewer layers in data.policy, "
    "store smaller images, or use a slice with more hosts or slower chips"
  )


def _format_shares(plan: Plan, seconds: Mapping[str, float]) -> str:
  """Returns the time and the share of each part or kind of a step."""
  return "; ".join(f"{name} {each * 1e3:,.1f} ms ({each / plan.step_seconds:.0%})" for name, each in seconds.items())


def _format_evaluations(plan: Plan) -> str:
  """Returns a description of the evaluations and their hours. Evaluations of unknown cost are marked as not counted."""
  known = [
    f"{name} {e['times']:,} x {format_amount(e['images'], 'image')}" for name, e in plan.evaluations.items() if e
  ]
  unknown = [f"{name} not counted" for name, e in plan.evaluations.items() if not e]
  return f"evaluations: additional {_format_hours(plan.evaluation_hours)}: {', '.join(known + unknown)}"


def _format_whole_run(plan: Plan) -> str:
  """Returns the hours or minutes of the whole run and their parts."""
  scale, unit = (1, "hours") if plan.total_hours >= 1 else (60, "minutes")
  return (
    f"whole run: {scale * plan.total_hours:,.2f} {unit}: training {scale * plan.hours:,.2f}, evaluations "
    f"{scale * plan.evaluation_hours:,.2f}, waiting for checkpoints {scale * plan.checkpoint_hours:,.2f}, compilation "
    f"{scale * plan.compile_seconds / 3600:,.2f}"
  )


def format_front(front: Sequence[Plan]) -> str:
  """Returns the trade-off between hours and memory: a line for each plan of a Pareto front.

  Args:
    front: plans that fit, at least one, the fastest first.
  """
  lines = [
    f"  {_format_hours(plan.hours)}, {plan.hbm_bytes / 2**30:.2f} of {plan.hbm_limit / 2**30:.1f} GiB: {plan.mesh}"
    for plan in front
  ]
  return "\n".join([f"{front[0].rented}: best trade-offs between hours and memory, fastest first:", *lines])


def format_plans(plans: Sequence[Plan]) -> str:
  """Returns a table with a row for each plan that runs, followed by notes.

  The notes list collectives, parts of a step, evaluations, the hours of the whole run, plans that wait for data, and
  the number of plans that cannot run. The line of `format_plan` contains the problem of a plan.
  """
  columns = [(heading, cell) for heading, cell in _COLUMNS if heading != "cost" or any(p.cost for p in plans)]
  rows = [[cell(plan) for _, cell in columns] for plan in plans if not plan.problem]
  lines = []
  if rows:
    rows = [[heading for heading, _ in columns], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
  for plan in plans:
    kinds = [f"{kind} {c['calls']} x, {c['payload'] / 1e6:,.1f} MB" for kind, c in plan.collectives.items()]
    if kinds:
      lines.append(f"{plan.rented}, {plan.mesh}: collectives per step: {'; '.join(kinds)}")
    if plan.parts:
      lines.append(f"{plan.rented}, {plan.mesh}: parts of a step: {_format_shares(plan, plan.parts)}")
    if plan.kinds:
      lines.append(f"{plan.rented}, {plan.mesh}: kinds of operations: {_format_shares(plan, plan.kinds)}")
    if plan.evaluations:
      lines.append(f"{plan.rented}, {plan.mesh}: {_format_evaluations(plan)}")
    if plan.hours:
      lines.append(f"{plan.rented}, {plan.mesh}: {_format_whole_run(plan)}")
    if plan.input_bound:
      lines.append(f"{plan.rented}, {plan.mesh}: {_explain_input_bound(plan)}")
  if problems := sum(plan.problem is not None for plan in plans):
    is_are = "plan is" if problems == 1 else "plans are"
    lines.append(f"{problems} {is_are} not possible. The lines above the table contain the reasons")
  return "\n".join(lines)
