"""SVG charts that use the colours of the surrounding page, light or dark. They are drawn without a display."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import MaxNLocator, NullFormatter

# Colours that the style sheet of the page sets. Matplotlib draws with these values, and the SVG contains variables.
INK, FAINT = "#010203", "#040506"
SERIES = tuple(f"#0a0b{number:02x}" for number in range(8))
COLOURED = len(SERIES)  # maximum number of runs with a colour
_VARIABLES = {INK: "currentColor", FAINT: "var(--faint)"} | {
  colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)
}
_COLOUR = re.compile("|".join(_VARIABLES))
_STYLE = {
  "svg.fonttype": "none",  # keeps text as text, in the font and colour of the page
  "font.family": "DejaVu Sans",
  "font.size": 9,
  "text.parse_math": False,  # a name with two dollar signs is not a formula
  "text.color": INK,
  "axes.edgecolor": FAINT,
  "axes.facecolor": "none",
  "axes.labelcolor": INK,
  "axes.titlesize": 9,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.prop_cycle": cycler(color=SERIES),
  "axes.unicode_minus": False,
  "grid.color": FAINT,
  "grid.alpha": 0.35,
  "grid.linewidth": 0.6,
  "xtick.color": INK,
  "ytick.color": INK,
  "figure.facecolor": "none",
  "legend.frameon": False,
  "lines.linewidth": 1.5,
}


@contextlib.contextmanager
def use_style() -> Iterator[None]:
  """Applies the style of the page to drawings inside the context."""
  # Recent versions of Matplotlib list all keys in this type, older versions accept any text.
  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
    # The reader's browser draws the text with its own font.
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
    yield


def make_figure(
  width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
  """Creates a figure and its axes. It must be called and drawn inside `use_style`.

  Args:
    width: width in inches.
    height: height in inches.
    rows: rows of axes.
    columns: columns of axes.
    **options: arguments of `Figure.subplots`.

  Returns:
    The figure, and its axes row by row.
  """
  made = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasSVG(made)
  return made, list(made.subplots(rows, columns, squeeze=False, **options).flat)


def limit_ticks(axis: Axis) -> None:
  """Limits an axis to four intervals and its labels to three digits, so that labels do not overlap."""
  axis.set_major_locator(MaxNLocator(4))
  axis.set_major_formatter(lambda value, _: f"{value:.3g}")


def number_log_axis(axis: Axis) -> None:
  """Labels a logarithmic axis with whole numbers. Matplotlib's powers are formulas, which a page cannot show."""
  axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
  axis.set_minor_formatter(NullFormatter())


def render_svg(made: Figure, name: str) -> str:
  """Renders a figure as an SVG element for a page.

  Args:
    made: the figure.
    name: name that is unique in the page. It distinguishes the identifiers of this figure from those of other figures.
  """
  with io.StringIO() as file, matplotlib.rc_context({"svg.hashsalt": name}):
    made.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
  text = text[text.index("<svg") :]
  text = re.sub(r"<(metadata|style).*?</\1>\s*", "", text, flags=re.DOTALL)  # a style would apply to the whole page
  text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
  text = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', r'\1 style="width: \2pt"', text, count=1)
  # Group identifiers are the same in every figure and are not used.
  text = re.sub(r'<g id="(?!m[0-9a-f]{10})[^"]*">', "<g>", text)
  # Only in styles, because the name of a class may look like a colour.
  return re.sub(r'style="[^"]*"', lambda style: _COLOUR.sub(lambda match: _VARIABLES[match[0]], style[0]), text)


def make_drawable(text: str) -> str:
  """Replaces bytes that are not UTF-8, and control characters, by question marks."""
  words = text.encode("utf-8", "replace").decode()
  return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in words)


def fit_text(text: str, longest: int = 24) -> str:
  """Returns a drawable text on one line. The middle of a longer text is omitted.

  Args:
    text: the text.
    longest: maximum number of characters.
  """
  words = " ".join(make_drawable(text).split())
  half = longest // 2
  return words if len(words) <= longest else f"{words[: longest - half - 1]}…{words[-half:]}"


def fit_label(text: str, longest: int = 24) -> str:
  """Returns a text for a legend, like `fit_text`. Matplotlib would omit labels that start with an underscore.

  Args:
    text: the text.
    longest: maximum number of characters.
  """
  words = fit_text(text, longest)
  return f"\u2060{words}" if words.startswith("_") else words
