"""Parity checks of heads, targets and losses of DINO, iBOT and DINOv2. `selfsup.py` contains the table of all checks.

Original arrays are crop-major: row = crop * B + image. Matrices of linear layers are [out, in].
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tests.parity.compare import Result, compare
from vit_jax.optim import value_schedules
from vit_jax.schema import Choice
from vit_jax.selfsup import heads, losses, patch_masks, targets

LOSS, PROBABILITY, GRADIENT = 1e-5, 1e-5, 2e-5  # tolerances as shares of the largest value
Arrays = Mapping[str, np.ndarray]


def near(name: str, ours, theirs, share: float) -> Result:
  """Compares arrays that may differ by a share of the largest expected value."""
  return compare(name, np.reshape(ours, np.shape(theirs)), theirs, share * float(np.abs(theirs).max()))


def by_image(x, images: int):
  """Reorders [crop * B + image, ...] to [B, crops, ...]."""
  return jnp.swapaxes(x.reshape(-1, images, *x.shape[1:]), 0, 1)


def by_crop(x):
  """Reorders [B, crops, ...] to [crop * B + image, ...]."""
  return np.swapaxes(np.asarray(x), 0, 1).reshape(-1, *x.shape[2:])


# Heads.


def read_head(arrays: Arrays, mark: str, prefix: str) -> dict[str, jax.Array]:
  """Returns parameters or gradients by path, from arrays below a mark such as `param.student.dino_head.`."""
  params = {}
  for key in (key.removeprefix(mark) for key in arrays if key.startswith(mark)):
    value = jnp.asarray(arrays[mark + key])
    match key.split("."):
      case "mlp", number, kind:
        params[f"{prefix}/layer{int(number) // 2}/{'kernel' if kind == 'weight' else 'bias'}"] = value.T
      case "mlp", kind:  # for one layer
        params[f"{prefix}/layer0/{'kernel' if kind == 'weight' else 'bias'}"] = value.T
      case "last_layer", "weight_v" | "weight":
        params[f"{prefix}/last/kernel"] = value.T
      case "last_layer", "weight_g":
        params[f"{prefix}/last/scale"] = value[:, 0]
      case "last_layer2", "weight_v":
        params[f"{prefix}2/last/kernel"] = value.T
      case "last_layer2", "weight_g":
        params[f"{prefix}2/last/scale"] = value[:, 0]
      case _:
        raise ValueError(f"unknown parameter {mark + key}")
  return params


def make_head(meta: dict, out: int, last: heads.LastLayer) -> heads.ProjectionHead:
  layers = meta.get("layers", 3)
  return heads.ProjectionHead(meta.get("in_dim", meta.get("D")), out, meta["bottleneck"], meta["hidden"], layers, last)


def check_head(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  params = read_head(arrays, "param.", "head")
  last = "fixed_norm" if meta.get("norm_last_layer") else "weight_norm"
  if last == "fixed_norm":  # the scale is 1 and not trained
    yield compare(f"{name}/weight_g", params.pop("head/last/scale"), np.ones(meta["out_dim"]), 0)
  head = make_head(meta, meta["out_dim"], last)
  output, backward = jax.vjp(lambda params, x: head.apply(params, "head", x), params, jnp.asarray(arrays["x"]))
  of_params, of_x = backward(jnp.asarray(arrays["cotangent"]))
  yield near(f"{name}/output", output, arrays["output"], GRADIENT)
  yield near(f"{name}/grad_x", of_x, arrays["grad_x"], GRADIENT)
  expected = read_head(arrays, "grad.", "head")
  if of_params.keys() != expected.keys():
    raise ValueError(f"gradients of {sorted(of_params)}, expected {sorted(expected)}")
  for path, gradient in expected.items():
    yield near(f"{name}/{path}", of_params[path], gradient, GRADIENT)


def check_ibot_head(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  params = read_head(arrays, "param.", "head")
  head = make_head(meta, meta["out_dim"], "weight_norm")
  patch_head = make_head(meta, meta["patch_out_dim"], "weight_norm")
  patch_prefix = "head" if meta["shared"] else "head2"

  def outputs(x):
    features = head.apply_mlp(params, "head", x)
    return head.apply_last(params, "head", features[:, 0]), patch_head.apply_last(params, patch_prefix, features[:, 1:])

  x = jnp.asarray(arrays["x"])
  of_class, of_patches = outputs(x)
  yield near(f"{name}/output_cls", of_class, arrays["output_cls"], GRADIENT)
  yield near(f"{name}/output_patch", of_patches, arrays["output_patch"], GRADIENT)
  gradient = jax.grad(lambda x: sum(jnp.square(y).sum() for y in outputs(x)))(x)
  yield near(f"{name}/grad_x", gradient, arrays["grad_x"], GRADIENT)


# Losses of DINO and iBOT.


def find_temperatures(meta: dict, kind: str) -> np.ndarray:
  """Returns the teacher's temperature in each epoch, from the vit_jax schedule with epochs of one step."""
  start, end = meta[f"warmup_teacher_{kind}"], meta[f"teacher_{kind}"]
  arguments = {"start": start, "end": end, "length": f"{meta['warmup_epochs']}ep", "per_epoch": True}
  schedule = value_schedules.create_value_schedule(
    Choice("ramp", arguments), meta["epochs"], lambda duration: duration.count_steps(1, 1)
  )
  return np.asarray(jax.vmap(schedule)(jnp.arange(meta["epochs"])))


def check_dino(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  images, center = meta["B"], jnp.zeros(meta["K"])
  temperatures = find_temperatures(meta, "temp")
  yield near(f"{name}/teacher_temp_schedule", temperatures, arrays["teacher_temp_schedule"], 1e-6)
  yield near(f"{name}/teacher_temp", temperatures[arrays["epochs"]], arrays["teacher_temp"], 1e-6)
  for step in range(len(arrays["student"])):
    yield near(f"{name}/center_before_{step}", center, arrays["center_before"][step], PROBABILITY)
    teacher, student = (by_image(arrays[key][step], images) for key in ("teacher", "student"))
    probabilities = targets.center_softmax(teacher, center, float(arrays["teacher_temp"][step]))
    loss, gradient = jax.value_and_grad(
      lambda student, probabilities: losses.dino_loss(student, probabilities, meta["student_temp"]).total
    )(student, probabilities)
    center = targets.update_center(center, teacher, meta["center_momentum"])
    yield near(f"{name}/teacher_probs_{step}", by_crop(probabilities), arrays["teacher_probs"][step], PROBABILITY)
    yield near(f"{name}/loss_{step}", loss, arrays["loss"][step], LOSS)
    yield near(f"{name}/grad_student_{step}", by_crop(gradient), arrays["grad_student"][step], GRADIENT)
    yield near(f"{name}/center_after_{step}", center, arrays["center_after"][step], PROBABILITY)


def check_ibot(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  images, center, patch_center = meta["B"], jnp.zeros(meta["K"]), jnp.zeros(meta["Kp"])
  for kind in ("temp", "patch_temp"):
    ours = find_temperatures(meta, kind)[arrays["epochs"]]
    yield near(f"{name}/teacher_{kind}", ours, arrays[f"teacher_{kind}"], 1e-6)
  for step in range(len(arrays["loss"])):
    read = {key: jnp.asarray(arrays[key][step]) for key in arrays if key.startswith(("student", "teacher_cls"))}
    patches = jnp.asarray(arrays["teacher_patch"][step])
    student = [read["student_cls"], read["student_local_cls"], read["student_patch"]]
    class_targets = targets.center_softmax(
      by_image(read["teacher_cls"], images), center, float(arrays["teacher_temp"][step])
    )
    patch_targets = targets.center_softmax(patches, patch_center, float(arrays["teacher_patch_temp"][step]))
    masks = arrays["masks"][step].reshape(len(patches), 1, -1)
    chosen = patch_masks.select_patches(jnp.asarray(masks), masks.shape[2])

    def loss(student, class_targets=class_targets, patch_targets=patch_targets, chosen=chosen):
      of_global, of_local, of_patches = student
      crops = by_image(jnp.concatenate([of_global, of_local]), images)
      of_class = losses.dino_loss(crops, class_targets, meta["student_temp"]).total
      ours, theirs = (patch_masks.take_patches(x[:, None], chosen.indices) for x in (of_patches, patch_targets))
      of_patch = losses.patch_loss(ours, theirs, chosen.weights, len(of_patches), meta["student_temp"])
      parts = meta["lambda1"] * of_class, meta["lambda2"] * of_patch
      return sum(parts), parts

    (total, parts), gradients = jax.value_and_grad(loss, has_aux=True)(student)
    center = targets.update_center(center, read["teacher_cls"], meta["center_momentum"])
    patch_center = targets.update_center(patch_center, patches, meta["center_momentum2"])
    values = {"loss": total, "loss_cls": parts[0], "loss_patch": parts[1]}
    for key, value in values.items():
      yield near(f"{name}/{key}_{step}", value, arrays[key][step], LOSS)
    for key, gradient in zip(("cls", "local_cls", "patch"), gradients, strict=True):
      yield near(f"{name}/grad_student_{key}_{step}", gradient, arrays[f"grad_student_{key}"][step], GRADIENT)
    yield near(f"{name}/center_{step}", center, arrays["center"][step], PROBABILITY)
    yield near(f"{name}/center2_{step}", patch_center, arrays["center2"][step], PROBABILITY)


# Losses of DINOv2.


def check_sinkhorn(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  images, temperature = meta["B"], meta["student_temp"]
  teacher = jnp.asarray(arrays["teacher"])
  for key in (key for key in arrays if key.startswith("probs_iter")):
    ours = targets.sinkhorn(teacher, meta["teacher_temp"], int(key.removeprefix("probs_iter")))
    yield near(f"{name}/{key}", ours, arrays[key], PROBABILITY)
  probabilities = targets.sinkhorn(teacher, meta["teacher_temp"])
  of_global, of_local = (jnp.asarray(arrays[f"student_{part}"]) for part in ("global", "local"))

  def local_loss(local):
    crops = by_image(jnp.concatenate([of_global, local]), images)
    pairs = 2 + 2 * meta["n_local"]
    return pairs * losses.dino_loss(crops, by_image(probabilities, images), temperature).local_part

  def global_loss(student):
    return losses.cross_entropy(student, probabilities, temperature).mean()

  for part, function, x in (("local", local_loss, of_local), ("global", global_loss, of_global)):
    value, gradient = jax.value_and_grad(function)(x)
    yield near(f"{name}/loss_{part}_raw", value, arrays[f"loss_{part}_raw"], LOSS)
    yield near(f"{name}/grad_student_{part}", gradient, arrays[f"grad_student_{part}"], GRADIENT)


def check_centering(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  center = jnp.zeros(meta["K"])
  for step, teacher in enumerate(jnp.asarray(arrays["teacher"])):
    yield near(f"{name}/center_used_{step}", center, arrays["center_used"][step], PROBABILITY)
    ours = targets.center_softmax(teacher, center, meta["teacher_temp"])
    yield near(f"{name}/probs_{step}", ours, arrays["probs"][step], PROBABILITY)
    center = targets.update_center(center, teacher, meta["center_momentum"])
  yield near(f"{name}/center_final", center, arrays["center_final"], PROBABILITY)


def select_masked(arrays: Arrays, meta: dict) -> patch_masks.PatchMasks:
  """Returns the masked patches of all crops as one group, with the unused slots of the original's upper bound."""
  return patch_masks.select_patches(jnp.asarray(arrays["masks"])[None], meta["upperbound"])


def check_patches(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  chosen = select_masked(arrays, meta)
  crops, used, valid = len(arrays["masks"]), len(arrays["mask_indices"]), chosen.valid[0]
  yield compare(f"{name}/mask_indices", chosen.indices[0, :used], arrays["mask_indices"], 0)
  yield near(f"{name}/masks_weight", chosen.weights[0, :used], arrays["masks_weight"], 1e-7)
  # Unused slots contain values that would dominate every sum.
  student, teacher = (
    jnp.concatenate([jnp.asarray(arrays[f"{who}_masked"]), jnp.full((len(valid) - used, meta["Kp"]), 50.0)])
    for who in ("student", "teacher")
  )
  probabilities = targets.sinkhorn(teacher, meta["teacher_temp"], valid=valid)
  yield near(f"{name}/probs", probabilities[:used], arrays["probs"], PROBABILITY)
  loss, gradient = jax.value_and_grad(
    lambda x: losses.patch_loss(x, probabilities, chosen.weights[0], crops, meta["student_temp"])
  )(student)
  yield near(f"{name}/loss", loss, arrays["loss"], LOSS)
  yield near(f"{name}/loss_default_weight", loss, arrays["loss_default_weight"], LOSS)
  yield near(f"{name}/grad_student", gradient[:used], arrays["grad_student"], GRADIENT)
  yield compare(f"{name}/grad_of_unused_slots", gradient[used:], np.zeros((len(valid) - used, meta["Kp"])), 0)
  center = jnp.zeros(meta["Kp"])
  for step in range(len(arrays["centering_probs"])):
    logits = teacher * (1 + 0.5 * step)
    yield near(f"{name}/centering_center_used_{step}", center, arrays["centering_center_used"][step], PROBABILITY)
    ours = targets.center_softmax(logits, center, meta["teacher_temp"])[:used]
    yield near(f"{name}/centering_probs_{step}", ours, arrays["centering_probs"][step], PROBABILITY)
    center = targets.update_center(center, logits, meta["center_momentum"], valid)
  yield near(f"{name}/centering_center_final", center, arrays["centering_center_final"], PROBABILITY)


def check_koleo(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  for case in (key.removesuffix(".x") for key in arrays if key.endswith(".x")):
    loss, gradient = jax.value_and_grad(lambda x: losses.koleo(x, meta["eps"]))(jnp.asarray(arrays[f"{case}.x"]))
    duplicate = case.endswith("duplicate")
    expected = arrays[f"{case}.loss{'_float64' if duplicate else ''}"]
    yield near(f"{name}/{case}_loss", loss, expected, 1e-4 if duplicate else LOSS)
    if case == "near_duplicate":
      yield near(f"{name}/{case}_grad", gradient, arrays[f"{case}.grad_float64"], 2e-3)
    elif case != "duplicate":
      yield near(f"{name}/{case}_grad", gradient, arrays[f"{case}.grad"], GRADIENT)


# The whole loss of DINOv2 on fixed features.


def check_total(name: str, arrays: Arrays, meta: dict) -> Iterator[Result]:
  separate, centering = meta["separate_head"], meta["centering"] == "centering"
  parts = ("dino_head", "ibot_head") if separate else ("dino_head",)
  sizes = {"dino_head": meta["K"], "ibot_head": meta["K_ibot"]}
  used = {part: make_head(meta, sizes[part], "weight_norm") for part in parts}
  student, teacher = (
    {path: value for part in parts for path, value in read_head(arrays, f"param.{who}.{part}.", part).items()}
    for who in ("student", "teacher")
  )
  centers = {"dino": jnp.zeros(meta["K"]), "ibot": jnp.zeros(meta["K_ibot"])}
  for step in range(meta["steps"]):
    tokens = {key: jnp.asarray(arrays[f"student.{key}"][step]) for key in ("cls_global", "cls_local", "patch_global")}
    seen = {key: jnp.asarray(arrays[f"teacher.{key}"][step]) for key in ("cls_global", "patch_global")}
    chosen = select_masked(arrays, meta)
    logits = _teacher_logits(used, parts, teacher, seen, chosen)
    if centering:
      aims = {key: targets.center_softmax(logits[key], centers[key], meta["teacher_temp"]) for key in logits}
      valid = {"dino": None, "ibot": chosen.valid[0]}
      centers = {key: targets.update_center(centers[key], logits[key], valid=valid[key]) for key in centers}
    else:
      aims = {"dino": targets.sinkhorn(logits["dino"], meta["teacher_temp"])}
      aims["ibot"] = targets.sinkhorn(logits["ibot"], meta["teacher_temp"], valid=chosen.valid[0])
    (total, logged), (of_params, of_tokens) = jax.value_and_grad(
      lambda params, tokens, aims, chosen: _total_loss(used, parts, params, tokens, aims, chosen, meta),
      argnums=(0, 1),
      has_aux=True,
    )(student, tokens, aims, chosen)
    yield near(f"{name}/total_loss_{step}", total, arrays["total_loss"][step], LOSS)
    for key, value in logged.items():
      yield near(f"{name}/{key}_{step}", value, arrays[key][step], LOSS)
    for key, gradient in of_tokens.items():
      yield near(f"{name}/grad.{key}_{step}", gradient, arrays[f"grad.{key}"][step], GRADIENT)
    for part in parts:
      of_step = {key: arrays[key][step] for key in arrays if key.startswith(f"grad.{part}.")}
      for path, expected in read_head(of_step, f"grad.{part}.", part).items():
        yield near(f"{name}/grad.{path}_{step}", of_params[path], expected, GRADIENT)
  for key in ("dino", "ibot") if centering else ():
    yield near(f"{name}/{key}_center_final", centers[key], arrays[f"{key}_center_final"], PROBABILITY)


def _teacher_logits(used, parts, teacher, seen, chosen):
  patches = patch_masks.take_patches(seen["patch_global"][:, None], chosen.indices)[0]
  return {
    "dino": used["dino_head"].apply(teacher, "dino_head", seen["cls_global"]),
    "ibot": used[parts[-1]].apply(teacher, parts[-1], patches),
  }


def _total_loss(used, parts, params, tokens, aims, chosen, meta):
  images, temperature = meta["B"], meta["student_temp"]
  classes = by_image(jnp.concatenate([tokens["cls_global"], tokens["cls_local"]]), images)
  dino = losses.dino_loss(
    used["dino_head"].apply(params, "dino_head", classes), by_image(aims["dino"], images), temperature
  )
  patches = patch_masks.take_patches(tokens["patch_global"][:, None], chosen.indices)[0]
  of_patches = used[parts[-1]].apply(params, parts[-1], patches)
  crops = len(tokens["cls_global"])
  ibot = losses.patch_loss(of_patches, aims["ibot"], chosen.weights[0], crops, temperature)
  koleo = losses.koleo(tokens["cls_global"].reshape(2, images, -1)).sum()
  logged = {
    "dino_local_crops_loss": dino.local_part,
    "dino_global_crops_loss": dino.global_part,
    "koleo_loss": meta["koleo_weight"] * koleo / 2,
    "ibot_loss": ibot / 2,
  }
  return meta["dino_weight"] * dino.total + meta["ibot_weight"] * ibot + meta["koleo_weight"] * koleo, logged
