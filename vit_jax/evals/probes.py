"""Probes of frozen features: selection of training images, ridge regression in closed form (big_vision), and others.

Features and labels are host arrays. Sums are computed in float64, because the eigenvalues of a Gram matrix differ by
more orders of magnitude than float32 can represent.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import schema
from vit_jax.schema import Count, Positive
from vit_jax.shapes import Float, Integer, Num, Shaped

BIAS = 100.0  # appended constant, so large that the penalty on its weight hardly matters
# Shapes [N, D] and [N]. The types accept other shapes, for which `fit_ridge` and `draw_shots` raise errors with an
# explanation.
Features = Num[np.ndarray, "..."]
Labels = Shaped[np.ndarray, "..."]

ROWS = 8192  # rows that are standardised at once, so that a million images need no second copy of their features


@dataclasses.dataclass(frozen=True)
class Probe:
  """A linear classifier of standardised features.

  Attributes:
    mean: mean of each feature, (D,).
    deviation: divisor of each feature, (D,).
    weights: float32 weights, (D + 1, V). The last row is the weight of the constant.
  """

  mean: Float[np.ndarray, " D"]
  deviation: Float[np.ndarray, " D"]
  weights: Float[np.ndarray, "D+1 V"]


def draw_shots(labels: Labels, classes: int, shots: int, seed: int) -> Integer[np.ndarray, " drawn"]:
  """Draws a number of random images of each class.

  The draw depends only on the labels and the seed. A draw with fewer shots is a subset of a draw with more shots.

  Args:
    labels: class numbers, (N,).
    classes: number of classes.
    shots: number of images of each class. If a class has fewer images, all of them are drawn.
    seed: seed of the draw.

  Returns:
    Numbers of the drawn images, class by class.

  Raises:
    ConfigError: if labels are not class numbers, or if `shots` is less than 1.
  """
  labels = _check_labels(labels, classes)
  if shots < 1:
    raise schema.ConfigError(f"{shots}. Allowed: 1 and more", "shots")
  generator = np.random.default_rng(seed)
  return np.concatenate([generator.permutation(np.flatnonzero(labels == label))[:shots] for label in range(classes)])


def check_finite(features: Features) -> None:
  """Checks that a probe can use features.

  Args:
    features: features, (N, D).

  Raises:
    ConfigError: if a feature is NaN or infinite, or so large that the norm of a row overflows float32.
  """
  if not np.isfinite(features).all():
    raise schema.ConfigError(
      "features are not finite: the weights are damaged or the model overflows. Try dtype=float32"
    )
  largest = max(float(features.max(initial=0)), -float(features.min(initial=0)))
  if largest**2 * features.shape[-1] > np.finfo(np.float32).max:
    raise schema.ConfigError(f"features are as large as {largest:.3g}, so their norms overflow. Check the weights")


def fit_ridge(features: Features, labels: Labels, classes: int, l2: Sequence[float] = (1024.0,)) -> list[Probe]:
  """Fits ridge regressions: for each penalty, the W that minimises |X W - Y|^2 + l2 |W|^2.

  X contains the features, minus their mean and divided by their standard deviation + 1e-5, and a constant column
  `BIAS`. Y is 1 for the label and -1 for the other classes. The normal equations have as many unknowns as X has rows or
  columns, whichever is smaller.

  Args:
    features: features, (N, D).
    labels: class numbers, (N,).
    classes: number of classes V.
    l2: penalties, above 0.

  Returns:
    One probe for each penalty.

  Raises:
    ConfigError: if features, labels or penalties are invalid, or without images.
  """
  labels = _check_labels(labels, classes)
  if features.ndim != 2 or len(features) != len(labels):
    raise schema.ConfigError(f"features have shape {features.shape}, labels {labels.shape}. Allowed: [N, D] and [N]")
  if not len(labels):
    raise schema.ConfigError("a probe needs at least one image of a class")
  check_finite(features)
  if min(l2) <= 0:
    raise schema.ConfigError(f"{min(l2)}. Allowed: above 0", "l2")
  mean = features.mean(0, dtype=np.float64)
  deviation = np.sqrt(sum(np.square(part - mean).sum(0) for part in _split_rows(features)) / len(features)) + 1e-5
  if len(features) > features.shape[1]:
    solutions = _solve_primal(features, labels, classes, mean, deviation, l2)
  else:
    solutions = _solve_dual(features, labels, classes, mean, deviation, l2)
  return [Probe(mean, deviation, weights.astype(np.float32)) for weights in solutions]


def compute_scores(probe: Probe, features: Float[np.ndarray, "M D"]) -> Float[np.ndarray, "M V"]:
  """Computes the scores of features. The largest score of a row belongs to the predicted class.

  Args:
    probe: the classifier.
    features: features, (M, D).

  Returns:
    Scores, (M, V).
  """
  parts = (_standardise(part, probe.mean, probe.deviation).astype(np.float32) for part in _split_rows(features))
  return np.concatenate([part @ probe.weights for part in parts])


def _check_labels(labels: np.ndarray, classes: int) -> np.ndarray:
  labels = np.asarray(labels)
  if labels.ndim != 1 or (len(labels) and not 0 <= labels.min() <= labels.max() < classes):
    raise schema.ConfigError(f"each image needs one few-shot label from 0 to {classes - 1}")
  return labels


def _split_rows(rows: np.ndarray) -> Iterator[np.ndarray]:
  return (rows[first : first + ROWS] for first in range(0, len(rows), ROWS))


def _standardise(
  features: Num[np.ndarray, "N D"], mean: Float[np.ndarray, " D"], deviation: Float[np.ndarray, " D"]
) -> Float[np.ndarray, "N D+1"]:
  """Returns standardised features with the constant column: [N, D] -> [N, D + 1]."""
  return np.concatenate([(features - mean) / deviation, np.full((len(features), 1), BIAS)], axis=1)


def _solve_primal(
  features: Float[np.ndarray, "N D"],
  labels: Integer[np.ndarray, " N"],
  classes: int,
  mean: Float[np.ndarray, " D"],
  deviation: Float[np.ndarray, " D"],
  l2: Sequence[float],
) -> list[np.ndarray]:
  """Returns W = (X'X + l2)^-1 X'Y.

  X'Y = 2 (sum of the class) - (sum of all), so only the sums of each class are needed.
  """
  width = features.shape[1] + 1
  gram, sums = np.zeros((width, width)), np.zeros((classes, width))
  for rows, classes_of_rows in zip(_split_rows(features), _split_rows(labels), strict=True):
    x = _standardise(rows, mean, deviation)
    gram += x.T @ x
    order = np.argsort(classes_of_rows, kind="stable")
    present, first = np.unique(classes_of_rows[order], return_index=True)
    sums[present] += np.add.reduceat(x[order], first)
  targets = (2 * sums - sums.sum(0)).T
  return [np.linalg.solve(gram + penalty * np.eye(width), targets) for penalty in l2]


def _solve_dual(
  features: Float[np.ndarray, "N D"],
  labels: Integer[np.ndarray, " N"],
  classes: int,
  mean: Float[np.ndarray, " D"],
  deviation: Float[np.ndarray, " D"],
  l2: Sequence[float],
) -> list[np.ndarray]:
  """Returns W = X' (X X' + l2)^-1 Y, the same solution, for fewer rows than columns."""
  x = _standardise(features, mean, deviation)
  targets = 2.0 * np.eye(classes)[labels] - 1
  gram = x @ x.T
  return [x.T @ np.linalg.solve(gram + penalty * np.eye(len(x)), targets) for penalty in l2]


# Probes for rows that are labelled with shares of classes, such as the classes of the pixels of a patch. A config
# selects them by name.


def ridge_of_shares(features: Features, shares: Features, *, l2: Positive = 1024.0) -> Probe:
  """Fits a ridge regression to pixels that share the features of their patch.

  It minimises the sum over patches and classes of share |x W - y|^2, plus l2 |W|^2.

  Args:
    features: features of N patches, (N, D).
    shares: share of each class in the pixels of each patch, (N, V).
    l2: penalty of the weights.

  Returns:
    The fitted probe.

  Raises:
    ConfigError: if fewer than two classes occur, or if a feature is not finite.
  """
  mean, deviation, weight = _weigh_rows(features, shares)
  width, classes = features.shape[1] + 1, shares.shape[1]
  gram, targets = np.zeros((width, width)), np.zeros((width, classes))
  for rows, of_rows, weights in zip(_split_rows(features), _split_rows(shares), _split_rows(weight), strict=True):
    x = _standardise(rows, mean, deviation)
    gram += x.T @ (x * weights[:, None])
    targets += x.T @ (2 * of_rows - weights[:, None])
  return Probe(mean, deviation, np.linalg.solve(gram + l2 * np.eye(width), targets).astype(np.float32))


def logistic_of_shares(features: Features, shares: Features, *, l2: Positive = 1.0) -> Probe:
  """Fits a logistic regression to pixels that share the features of their patch, by L-BFGS.

  It minimises the sum over patches and classes of -share log p, plus l2 |W|^2 / 2. The constant column has no penalty,
  as in scikit-learn. Sums are computed in float32 on the first device of this process.

  Args:
    features: features of N patches, (N, D). They are standardised.
    shares: share of each class in the pixels of each patch, (N, V).
    l2: penalty of the weights. Because it is positive, the minimum exists.

  Returns:
    The fitted probe.

  Raises:
    ConfigError: if fewer than two classes occur, or if a feature is not finite.
  """
  from scipy.optimize import minimize  # takes 0.1 s, so only probes import it

  mean, deviation, weight = _weigh_rows(features, shares)
  total, shape = weight.sum(), (features.shape[1] + 1, shares.shape[1])
  with jax.default_device(jax.local_devices()[0]):
    x = jnp.asarray(((features - mean) / deviation).astype(np.float32))
    of_rows = jnp.asarray((shares / total).astype(np.float32))

    @jax.jit
    @jax.value_and_grad
    def loss(weights: jax.Array, x: jax.Array, of_rows: jax.Array) -> jax.Array:
      scores = jnp.matmul(x, weights[:-1], precision="highest") + weights[-1]
      return -jnp.sum(of_rows * jax.nn.log_softmax(scores)) + l2 / (2 * total) * jnp.sum(weights[:-1] ** 2)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
      value, slope = loss(jnp.asarray(flat.reshape(shape), jnp.float32), x, of_rows)
      return float(value), np.asarray(slope, np.float64).ravel()

    # With smaller tolerances, the rounding errors of the sums dominate.
    found = minimize(objective, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B",
                     options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-8, "gtol": 1e-6})  # fmt: skip
  weights = found.x.reshape(shape)
  weights[-1] /= BIAS
  return Probe(mean, deviation, weights.astype(np.float32))


OF_SHARES = {"logistic": logistic_of_shares, "ridge": ridge_of_shares}


def _weigh_rows(
  features: Float[np.ndarray, "N D"], shares: Float[np.ndarray, "N V"]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"], Float[np.ndarray, " N"]]:
  """Returns mean, deviation and weights [N] of rows, weighted by the sums of their shares.

  Raises a ConfigError if fewer than two classes occur.
  """
  weight = shares.sum(1, dtype=np.float64)
  if np.count_nonzero(shares.sum(0)) < 2:
    raise schema.ConfigError("rows contain fewer than two classes, but a probe needs two")
  check_finite(features)
  pairs = list(zip(_split_rows(features), _split_rows(weight), strict=True))
  mean = sum(weights @ rows.astype(np.float64) for rows, weights in pairs) / weight.sum()
  square = sum(weights @ np.square(rows - mean) for rows, weights in pairs) / weight.sum()
  return mean, np.sqrt(square) + 1e-5, weight


def fold_standardisation(probe: Probe) -> tuple[Float[np.ndarray, "D V"], Float[np.ndarray, " V"]]:
  """Returns the kernel (D, V) and the bias (V,) with which a probe scores features that are not standardised."""
  kernel = probe.weights[:-1] / probe.deviation[:, None]
  return kernel, BIAS * probe.weights[-1] - probe.mean @ kernel


# Probes that a config selects by name. Each takes features [N, D], labels [N], the number of classes, and a grid of
# values for one argument. For each value it returns a pair (value, classifier: features [M, D] -> classes [M]).

Fitted = tuple[float, Callable[[Float[np.ndarray, "M D"]], Integer[np.ndarray, " M"]]]


def ridge_probe(
  features: Features, labels: Labels, classes: int, *, l2: tuple[Positive, ...] = (1024.0,)
) -> list[Fitted]:
  """Fits ridge regressions to targets of -1 and 1 in closed form, see `fit_ridge`.

  Args:
    features: features, (N, D).
    labels: class numbers, (N,).
    classes: number of classes.
    l2: penalties. big_vision uses 1024 for all numbers of shots.

  Returns:
    A pair (penalty, classifier) for each penalty.

  Raises:
    ConfigError: if features or labels are invalid.
  """
  fitted = fit_ridge(features, labels, classes, l2)
  return [(penalty, functools.partial(_classify, probe)) for penalty, probe in zip(l2, fitted, strict=True)]


def _classify(probe: Probe, features: Float[np.ndarray, "M D"]) -> Integer[np.ndarray, " M"]:
  return compute_scores(probe, features).argmax(1)


def nearest_neighbours(
  features: Features,
  labels: Labels,
  classes: int,
  *,
  neighbours: tuple[Count, ...] = (5,),
  weights: Literal["distance", "softmax"] = "distance",
  temperature: Positive = 0.07,
) -> list[Fitted]:
  """Builds classifiers that predict the class with the largest weight among the nearest images by angle.

  The search is exhaustive. DINO (Caron et al. 2021) uses weights="softmax" with 10, 20, 100 and 200 neighbours, without
  standardisation of the features.

  Args:
    features: features, (N, D).
    labels: class numbers, (N,).
    classes: number of classes.
    neighbours: numbers of neighbours.
    weights: "distance" weights a neighbour by one over its distance, as in scikit-learn. "softmax" weights it by the
      exponential of its cosine divided by `temperature`.
    temperature: divisor of the cosines for "softmax".

  Returns:
    A pair (number of neighbours, classifier) for each number.

  Raises:
    ConfigError: if the list of images is empty.
  """
  from sklearn.neighbors import NearestNeighbors  # takes 0.5 s, so only probes import it

  if not len(labels):
    raise schema.ConfigError("a probe needs at least one image of a class")

  def normalise(x: Num[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)

  def compute_vote_weights(distance: np.ndarray) -> np.ndarray:
    if weights == "softmax":  # the cosine of unit vectors is 1 - distance^2 / 2; the largest cancels
      square = np.square(distance)
      return np.exp((square[:, :1] - square) / (2 * temperature))
    same = distance == 0
    return np.where(same.any(1, keepdims=True), same, 1 / np.where(same, 1, distance))

  def vote(count: int, x: np.ndarray) -> np.ndarray:
    distance, nearest = index.kneighbors(normalise(x), min(count, len(labels)))
    rows = classes * np.arange(len(x))[:, None] + labels[nearest]
    sums = np.bincount(rows.ravel(), compute_vote_weights(distance).ravel(), classes * len(x))
    return sums.reshape(len(x), classes).argmax(1)

  def classify(count: int, x: np.ndarray) -> np.ndarray:
    return np.concatenate([vote(count, part) for part in _split_rows(x)])

  index = NearestNeighbors(algorithm="brute").fit(normalise(features))
  return [(count, functools.partial(classify, count)) for count in neighbours]


def logistic(features: Features, labels: Labels, classes: int, *, l2: tuple[Positive, ...] = (1.0,)) -> list[Fitted]:
  """Fits logistic regressions of standardised features by L-BFGS until convergence (scikit-learn).

  Args:
    features: features, (N, D).
    labels: class numbers, (N,).
    classes: number of classes.
    l2: penalties. Each adds |W|^2 l2 / 2 to the loss.

  Returns:
    A pair (penalty, classifier) for each penalty.

  Raises:
    ConfigError: if the labels contain fewer than two classes.
  """
  from sklearn.linear_model import LogisticRegression
  from sklearn.pipeline import make_pipeline
  from sklearn.preprocessing import StandardScaler

  def fit(penalty: float) -> Callable[[np.ndarray], np.ndarray]:
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=1 / penalty, max_iter=10_000))
    return classifier.fit(features, labels).predict

  if len(np.unique(labels)) < 2:
    raise schema.ConfigError("a logistic probe needs images of at least two classes, but all images are of one class")
  return [(penalty, fit(penalty)) for penalty in l2]


PROBES: dict[str, Callable[..., list[Fitted]]] = {"ridge": ridge_probe, "knn": nearest_neighbours, "logistic": logistic}
