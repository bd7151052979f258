"""A chart in which readers of a report select metric, axis and runs, made with Vega-Lite (extra `report`)."""

import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence

from vit_jax.evals.selection import format_name
from vit_jax.reports import drawing
from vit_jax.reports.page import Interactive, Paragraph, Table
from vit_jax.reports.recorded import RecordedRun
from vit_jax.reports.verdict import find_shared_headline, format_figure
from vit_jax.schema import extras

# maximum number of points per curve, and of all curves; a point takes 130 bytes
POINTS, ALL = 200, 12_000


def make_interactive(runs: Sequence[RecordedRun], metrics: Sequence[str]) -> Interactive | Paragraph:
  """Returns a chart in which readers select metric, axis and runs. Without scripts, a table is shown.

  Args:
    runs: runs with training records.
    metrics: names of the metrics that readers can select. The first one is shown first.

  Returns:
    The chart, or a paragraph with installation advice if the extra `report` is not installed.
  """
  if not all(map(importlib.util.find_spec, ("altair", "vl_convert"))):
    return Paragraph(f"A chart in which metrics and runs can be selected needs {extras.format_advice('report')}")
  import altair  # an extra, which takes a second to import

  metrics = list(dict.fromkeys(metrics))
  most = max(2, min(POINTS, ALL // (len(runs) * len(metrics))))
  rows = [row for run in runs for metric in metrics for row in _select_points(run, metric, most)]
  metric = altair.param("metric", value=metrics[0], bind=altair.binding_select(options=metrics, name="metric "))
  axis = altair.param(
    "axis", value="images seen", bind=altair.binding_select(options=["images seen", "core-hours"], name=" over ")
  )
  picked = altair.selection_point(fields=["run"], bind="legend", name="picked")
  order = [run.name for run in runs]
  chart = (
    altair.Chart(altair.NamedData("points"))
    .add_params(metric, axis, picked)
    .transform_filter("datum.metric == metric")
    .transform_calculate(x="axis == 'images seen' ? datum.images : datum.hours")
    .mark_line(point={"size": 18}, strokeWidth=1.5)
    .encode(
      altair.X("x:Q", title=None),
      altair.Y("value:Q", title=None, scale=altair.Scale(zero=False)),
      altair.Color("run:N", sort=order, scale=altair.Scale(domain=order, range=_choose_colours(len(order)))),
      opacity=altair.condition(picked, altair.value(1.0), altair.value(0.1)),
      tooltip=[altair.Tooltip(f"{name}:{kind}") for name, kind in
               (("run", "N"), ("step", "Q"), ("images", "Q"), ("hours", "Q"), ("value", "Q"))],
    )
    .properties(width="container", height=360, background="transparent")
    .interactive()
    .configure_view(stroke=None)
    .configure_axis(labelColor="currentColor", gridColor="#8884", domainColor="#8888", tickColor="#8888")
    .configure_legend(labelColor="currentColor", titleColor="currentColor", orient="bottom", columns=2, labelLimit=300)
  )  # fmt: skip
  name = find_shared_headline(runs) or ""
  instead = Table(
    "",
    ["run", format_name(name)],
    [[run.name, format_figure(name, run.figures[name])] for run in runs if name in run.figures],
  )
  about = (
    "Select a metric. Click names in the legend to select runs (shift-click for several). Drag to move, and turn the "
    "mouse wheel to zoom."
  )
  return Interactive("Compare", _embed_specification(chart.to_dict() | {"datasets": {"points": rows}}), instead, about)


def _choose_colours(count: int) -> list[str]:
  return [f"var(--series-{number % drawing.COLOURED})" for number in range(count)]


def _select_points(run: RecordedRun, metric: str, most: int) -> Iterator[dict[str, str | float]]:
  series = run.series(metric).thin_out(most)
  for images, hours, value in zip(series.images.tolist(), series.hours.tolist(), series.values.tolist(), strict=True):
    yield {
      "run": run.name, "metric": metric, "step": round(images / run.run.batch), "images": images,
      "hours": float(f"{hours:.5g}"), "value": float(f"{value:.5g}"),
    }  # fmt: skip


def _embed_specification(specification: Mapping[str, object]) -> str:
  """Returns HTML that contains Vega. `<` is escaped, because `</script>` would end the script."""
  values = json.dumps(specification).replace("<", "\\u003c")
  options = json.dumps({"renderer": "svg", "actions": False})
  return (
    '<div id="comparison" style="width: 100%; min-width: 20rem"></div>\n'
    f'<script type="module">{_load_vega()}\nvegaEmbed("#comparison", {values}, {options});</script>'
  )


@functools.cache
def _load_vega() -> str:
  """Returns Vega-Lite, Vega and vega-embed as one script."""
  import vl_convert

  bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub omits the default of the argument
  return bundle.replace("</script", "<\\/script")
