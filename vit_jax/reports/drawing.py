"""Charts as SVG whose colours are those of the page they stand in, light or dark; drawn without a display."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

# Colours that the page's style sheet sets: matplotlib draws with these, and they are variables in the SVG.
INK, FAINT = "#010203", "#040506"
SERIES = tuple(f"#0a0b{number:02x}" for number in range(8))
_VARIABLES = {INK: "currentColor", FAINT: "var(--faint)"} | {
  colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)
}
_COLOUR = re.compile("|".join(_VARIABLES))
_STYLE = {
  "svg.fonttype": "none",  # text stays text, in the page's font and colour
  "font.family": "DejaVu Sans",
  "font.size": 9,
  "text.parse_math": False,  # a name with two dollar signs is no formula
  "text.color": INK,
  "axes.edgecolor": FAINT,
  "axes.facecolor": "none",
  "axes.labelcolor": INK,
  "axes.titlesize": 9,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.prop_cycle": matplotlib.cycler(color=SERIES),
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
def style() -> Iterator[None]:
  """What is drawn inside has the page's style."""
  with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
    # The reader's own font draws it.
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
    yield


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[Axes]]:
  """A figure of so many inches, and its axes row by row. Made and drawn inside `style`."""
  made = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasSVG(made)
  return made, list(made.subplots(rows, columns, squeeze=False, **options).flat)


def few_ticks(axis: Axis) -> None:
  """Gives an axis at most four intervals, with labels of three digits, so that labels do not touch each other."""
  axis.set_major_locator(MaxNLocator(4))
  axis.set_major_formatter(lambda value, _: f"{value:.3g}")


def numbered(axis: Axis) -> None:
  """A logarithmic axis has whole numbers at its ticks: matplotlib's powers would be formulas, which are not drawn."""
  axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
  axis.set_minor_formatter(NullFormatter())


def svg(made: Figure, name: str) -> str:
  """The figure as an SVG element to stand in a page; `name` tells its parts from those of the page's other figures."""
  with io.StringIO() as file, matplotlib.rc_context({"svg.hashsalt": name}):
    made.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
  text = text[text.index("<svg") :]
  text = re.sub(r"<(metadata|style).*?</\1>\s*", "", text, flags=re.DOTALL)  # a style would be the whole page's
  text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
  text = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', r'\1 style="width: \2pt"', text, count=1)
  # Those of its groups are the same in every figure, and nothing refers to them.
  text = re.sub(r'<g id="(?!m[0-9a-f]{10})[^"]*">', "<g>", text)
  # In styles alone: a class may be called like a colour.
  return re.sub(r'style="[^"]*"', lambda style: _COLOUR.sub(lambda match: _VARIABLES[match[0]], style[0]), text)


def drawable(text: str) -> str:
  """The text as a page can have it: bytes that are not UTF-8 become question marks, as do control characters."""
  words = text.encode("utf-8", "replace").decode()
  return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in words)


def fitted(text: str, longest: int = 24) -> str:
  """The text on one line that can be drawn, of at most so many characters: the middle of a longer one is left out."""
  words = " ".join(drawable(text).split())
  half = longest // 2
  return words if len(words) <= longest else f"{words[: longest - half - 1]}…{words[-half:]}"


def labelled(text: str, longest: int = 24) -> str:
  """As `fitted`, for a legend, from which matplotlib would leave out what begins with an underscore."""
  words = fitted(text, longest)
  return f"\u2060{words}" if words.startswith("_") else words
