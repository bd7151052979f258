"""ImageNet in several sizes, its test sets, and larger datasets for pre-training.

ImageNet-A and ImageNet-R contain 200 of the 1,000 classes, with the class numbers of ImageNet. Their authors compare
only the logits of these classes. Other publications compare all logits (see `evals.accuracy`). In ImageNet-ReaL, 3,163
of the 50,000 images have no label and are not scored.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.readers import tfds

_PHOTOGRAPH = 115_000  # 147.9 GB; 135 kB in the validation split
_STEPS = "register at https://image-net.org/download-images, and download it there"
_TRAIN, _VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"

# Source: natural-adv-examples, eval.py:13. timm has the same list in data/_info/imagenet_a_indices.txt.
# fmt: off
A = (
  6, 11, 13, 15, 17, 22, 23, 27, 30, 37, 39, 42, 47, 50, 57, 70, 71, 76, 79, 89, 90, 94, 96, 97, 99, 105, 107, 108,
  110, 113, 124, 125, 130, 132, 143, 144, 150, 151, 207, 234, 235, 254, 277, 283, 287, 291, 295, 298, 301, 306, 307,
  308, 309, 310, 311, 313, 314, 315, 317, 319, 323, 324, 326, 327, 330, 334, 335, 336, 347, 361, 363, 372, 378, 386,
  397, 400, 401, 402, 404, 407, 411, 416, 417, 420, 425, 428, 430, 437, 438, 445, 456, 457, 461, 462, 470, 472, 483,
  486, 488, 492, 496, 514, 516, 528, 530, 539, 542, 543, 549, 552, 557, 561, 562, 569, 572, 573, 575, 579, 589, 606,
  607, 609, 614, 626, 627, 640, 641, 642, 643, 658, 668, 677, 682, 684, 687, 701, 704, 719, 736, 746, 749, 752, 758,
  763, 765, 768, 773, 774, 776, 779, 780, 786, 792, 797, 802, 803, 804, 813, 815, 820, 823, 831, 833, 835, 839, 845,
  847, 850, 859, 862, 870, 879, 880, 888, 890, 897, 900, 907, 913, 924, 932, 933, 934, 937, 943, 945, 947, 951, 954,
  956, 957, 959, 971, 972, 980, 981, 984, 986, 987, 988,
)
# Source: WordNet IDs in imagenet-r, eval.py. timm has the same list in data/_info/imagenet_r_indices.txt.
R = (
  1, 2, 4, 6, 8, 9, 11, 13, 22, 23, 26, 29, 31, 39, 47, 63, 71, 76, 79, 84, 90, 94, 96, 97, 99, 100, 105, 107, 113,
  122, 125, 130, 132, 144, 145, 147, 148, 150, 151, 155, 160, 161, 162, 163, 171, 172, 178, 187, 195, 199, 203, 207,
  208, 219, 231, 232, 234, 235, 242, 245, 247, 250, 251, 254, 259, 260, 263, 265, 267, 269, 276, 277, 281, 288, 289,
  291, 292, 293, 296, 299, 301, 308, 309, 310, 311, 314, 315, 319, 323, 327, 330, 334, 335, 337, 338, 340, 341, 344,
  347, 353, 355, 361, 362, 365, 366, 367, 368, 372, 388, 390, 393, 397, 401, 407, 413, 414, 425, 428, 430, 435, 437,
  441, 447, 448, 457, 462, 463, 469, 470, 471, 472, 476, 483, 487, 515, 546, 555, 558, 570, 579, 583, 587, 593, 594,
  596, 609, 613, 617, 621, 629, 637, 657, 658, 701, 717, 724, 763, 768, 774, 776, 779, 780, 787, 805, 812, 815, 820,
  824, 833, 847, 852, 866, 875, 883, 889, 895, 907, 928, 931, 932, 933, 934, 936, 937, 943, 945, 947, 948, 949, 951,
  953, 954, 957, 963, 965, 967, 980, 981, 983, 988,
)
# fmt: on


def _subset_row(builder: str, train: int) -> DatasetRow:
  """Returns a row for a subset of the training images, with the complete validation split."""
  return DatasetRow(
    tfds.open_catalogued,
    builder,
    {"train": train, "validation": 50_000},
    1000,
    test="validation",
    image_bytes=_PHOTOGRAPH,
    manual=(_TRAIN, _VALIDATION),
    steps=_STEPS,
  )


def _evaluation_row(builder: str, images: Mapping[str, int], **more: Any) -> DatasetRow:
  """Returns a row of images that are only evaluated. "train" is the same split, as models need one to be built."""
  split = next(iter(images))
  return DatasetRow(
    tfds.open_catalogued, builder, images, 1000, train=split, test=split, **{"image_bytes": _PHOTOGRAPH} | more
  )


_VALIDATED = dict(manual=(_VALIDATION,), steps=_STEPS)

ROWS = {
  "imagenet2012": _subset_row("imagenet2012:5.1.0", 1_281_167),
  # The subsets of SimCLR.
  "imagenet2012_1pct": _subset_row("imagenet2012_subset/1pct:5.0.0", 12_811),
  "imagenet2012_10pct": _subset_row("imagenet2012_subset/10pct:5.0.0", 128_116),
  "imagenet2012_1shot": _subset_row("imagenet2012_fewshot/1shot:5.0.1", 1_000),
  "imagenet2012_5shot": _subset_row("imagenet2012_fewshot/5shot:5.0.1", 5_000),
  "imagenet2012_10shot": _subset_row("imagenet2012_fewshot/10shot:5.0.1", 10_000),
  "imagenet2012_real": _evaluation_row(
    "imagenet2012_real:1.0.0",
    {"validation": 50_000},
    label="real_label",
    labels=9,  # the longest list of real.json (reassessed-imagenet, bcd006f)
    metric="share of the 46,837 labelled images for which the best class is one of the labels",
    **_VALIDATED,
  ),
  "imagenet2012_multilabel": _evaluation_row(
    "imagenet2012_multilabel:3.0.0",
    {"validation": 20_000, "imagenet_m": 68},
    label="correct_multi_labels",
    labels=64,  # assumed; an image with more labels raises an error
    metric="share of images for which the best class is one of the labels",
    **_VALIDATED,
  ),
  "imagenet_v2": _evaluation_row(
    "imagenet_v2/matched-frequency:3.0.0", {"test": 10_000}, image_bytes=126_000
  ),  # 1.26 GB
  "imagenet_v2_threshold": _evaluation_row("imagenet_v2/threshold-0.7:3.0.0", {"test": 10_000}, image_bytes=125_000),
  "imagenet_v2_topimages": _evaluation_row("imagenet_v2/topimages:3.0.0", {"test": 10_000}, image_bytes=125_000),
  "imagenet_a": _evaluation_row("imagenet_a:0.1.0", {"test": 7_500}, subset=A, image_bytes=92_000),  # 688 MB
  "imagenet_r": _evaluation_row("imagenet_r:0.2.0", {"test": 30_000}, subset=R, image_bytes=73_000),  # 2.19 GB
  "imagenet_sketch": _evaluation_row(
    "imagenet_sketch:1.0.0",
    {"test": 50_889},
    image_bytes=149_000,  # 7.6 GB
    caution="its host, Google Drive, may refuse. An archive ImageNet-Sketch.zip of 7,593,573,012 bytes is taken from "
    "{manual}",
  ),
  # One type of corruption with one severity. Name the builder to use another one: data.name=tfds, data.builder=...
  "imagenet2012_corrupted": _evaluation_row(
    "imagenet2012_corrupted/gaussian_noise_1:3.1.0",
    {"validation": 50_000},
    image_bytes=20_000,  # assumed: JPEG with 224 x 224 pixels
    manual=(_TRAIN, _VALIDATION),
    steps=_STEPS,
  ),
  # The version of fall 2011, with the two additional classes of Google's models and the splits of big_vision.
  "imagenet21k": DatasetRow(
    tfds.open_own_copy,
    splits={"full": 14_200_000},  # Kolesnikov et al. 2020: 14.2 M
    classes=21_843,
    train="full[51200:]",
    test="full[:25600]",
    image_bytes=92_000,  # 1.31 TB
  ),
  # The processed version of winter 2021: classes with more than 500 images (Ridnik et al. 2021).
  "imagenet21k_p": DatasetRow(
    tfds.open_own_copy,
    splits={"train": 11_060_223, "validation": 522_500},
    classes=10_450,
    test="validation",
    image_bytes=92_000,  # assumed: as in the version of fall 2011
  ),
  # A private dataset of Google. It has no published test split, so the first images are held out.
  "jft300m": DatasetRow(
    tfds.open_own_copy,
    splits={"train": 303_000_000},  # Dosovitskiy et al. 2021, section 4.1
    classes=18_291,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed; 1.26 on average (Kolesnikov et al. 2020, section 3.1)
    image_bytes=115_000,  # assumed: as in ImageNet
  ),
  "jft3b": DatasetRow(
    tfds.open_own_copy,
    splits={"train": 3_000_000_000},  # "nearly 3 billion": Zhai et al. 2022
    classes=29_593,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed, as for JFT-300M
    image_bytes=115_000,  # assumed: as in ImageNet
  ),
}
