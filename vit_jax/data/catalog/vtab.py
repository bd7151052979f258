"""The VTAB-1k benchmark: 19 tasks in three groups, with 800 training and 200 validation images each.

Source: task_adaptation, d7630d3. The slices are positions in the order in which TFDS stores a dataset. They select the
images of VTAB only if the same builder made the files. The slice "train1000" contains both the training and the
validation images. The score of all tasks is top-1 accuracy.

The rows specify which augmentations keep the labels, according to Kolesnikov et al. 2020, appendix F. VTAB itself does
not augment images.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax.data.catalog import labels
from vit_jax.data.dataset_row import DatasetRow, MaskFeature
from vit_jax.data.readers import tfds


class VtabTask(NamedTuple):
  """A task of the VTAB leaderboard.

  Attributes:
    title: name on the leaderboard.
    group: "natural", "specialized" or "structured".
  """

  title: str
  group: str


TASKS = {  # by row name, in the order of Dosovitskiy et al. 2021, table 9
  "caltech101": VtabTask("Caltech101", "natural"),
  "cifar100": VtabTask("CIFAR-100", "natural"),
  "dtd": VtabTask("DTD", "natural"),
  "oxford_flowers102": VtabTask("Flowers102", "natural"),
  "oxford_iiit_pet": VtabTask("Pets", "natural"),
  "sun397": VtabTask("Sun397", "natural"),
  "svhn_cropped": VtabTask("SVHN", "natural"),
  "patch_camelyon": VtabTask("Camelyon", "specialized"),
  "eurosat": VtabTask("EuroSAT", "specialized"),
  "resisc45": VtabTask("Resisc45", "specialized"),
  "diabetic_retinopathy": VtabTask("Retinopathy", "specialized"),
  "clevr_count": VtabTask("Clevr-Count", "structured"),
  "clevr_distance": VtabTask("Clevr-Dist", "structured"),
  "dmlab": VtabTask("DMLab", "structured"),
  "dsprites_location": VtabTask("dSpr-Loc", "structured"),
  "dsprites_orientation": VtabTask("dSpr-Ori", "structured"),
  "kitti_distance": VtabTask("KITTI-Dist", "structured"),
  "smallnorb_azimuth": VtabTask("sNORB-Azim", "structured"),
  "smallnorb_elevation": VtabTask("sNORB-Elev", "structured"),
}


def _create_row(
  builder: str, splits: Mapping[str, int], classes: int, image_bytes: int, val: str, test: str = "test", **more: Any
) -> DatasetRow:
  """Returns a row for VTAB. `val` is the split string of the slice "val200"."""
  both = f"train[:800]+{val}"
  slices = {"train800": "train[:800]", "val200": val, "train800val200": both, "train1000": both}
  return DatasetRow(
    tfds.open_catalogued, builder, splits, classes, test=test, image_bytes=image_bytes, slices=slices, **more
  )


_CLEVR: dict[str, Any] = dict(
  builder="clevr:3.1.0",
  splits={"train": 70_000, "validation": 15_000},  # TFDS's own test split has no labels
  image_bytes=190_000,  # 19.0 GB
  val="train[63000:63200]",
  test="validation",
  crop=False,
)
_DSPRITES: dict[str, Any] = dict(
  builder="dsprites:2.0.0",
  splits={"train": 737_280},
  classes=16,
  image_bytes=300,  # PNG with 64 x 64 one-bit pixels
  val="train[589824:590024]",
  train="train[:663552]",
  test="train[663552:]",
  image=labels.brighten,
  flip=False,
)
_SMALLNORB: dict[str, Any] = dict(
  builder="smallnorb:2.0.0",
  splits={"train": 24_300, "test": 24_300},
  image_bytes=5_400,  # 262 MB with two pictures per record; only the first picture is used
  # The toys of train and test differ. VTAB validates on 200 images of test, and the second half of test is the test
  # set.
  val="test[:200]",
  test="test[50%:]",
)

ROWS = {
  "caltech101": _create_row(
    "caltech101:3.0.2",
    {"train": 3060, "test": 6084},
    102,
    14_400,  # 132 MB
    "train[2754:2954]",
    caution="TFDS draws its 30 training images a class from a file listing in the order of the file system, so "
    "the images may differ between machines",
  ),
  "cifar100": _create_row(
    "cifar100:3.0.2",
    {"train": 50_000, "test": 10_000},
    100,
    2_500,  # PNG of at most 3,072 bytes of pixels
    "train[45000:45200]",
  ),
  "dtd": _create_row(
    "dtd:3.0.1", {"train": 1880, "validation": 1880, "test": 1880}, 47, 110_000, "validation[:200]"
  ),  # 625 MB
  "oxford_flowers102": _create_row(
    "oxford_flowers102:2.1.1",
    {"train": 1020, "validation": 1020, "test": 6149},
    102,
    42_000,  # 345 MB
    "validation[:200]",
  ),
  "oxford_iiit_pet": _create_row(
    "oxford_iiit_pet:4.0.0",  # VTAB uses 3.*, which TFDS no longer supports
    {"train": 3680, "test": 3669},
    37,
    108_000,  # 792 MB
    "train[2944:3144]",
    segments=MaskFeature(
      "segmentation_mask", {"pet": 1, "background": 2}, ignored=(3,)
    ),  # 3 is the border between them
  ),
  "sun397": _create_row(
    "sun397/tfds:4.0.0",
    {"train": 76_128, "validation": 10_875, "test": 21_750},
    397,
    30_000,  # assumed: images reduced to 120,000 pixels
    "validation[:200]",
    caution="39 GB; its host, vision.princeton.edu, no longer answers (2025). An archive SUN397.tar.gz of "
    "39,077,296,924 bytes, and Partitions.zip, are taken from {manual}",
  ),
  "svhn_cropped": _create_row(
    "svhn_cropped:3.1.0",
    {"train": 73_257, "test": 26_032},  # "extra" is never used
    10,
    2_500,  # 182 MB
    "train[65931:66131]",
  ),
  "patch_camelyon": _create_row(
    "patch_camelyon:2.0.0",
    {"train": 262_144, "validation": 32_768, "test": 32_768},
    2,
    24_500,  # 8.0 GB
    "validation[:200]",
  ),
  "eurosat": _create_row(
    "eurosat/rgb:2.0.0",
    {"train": 27_000},
    10,
    3_500,  # 94 MB
    "train[16200:16400]",
    train="train[:21600]",
    test="train[21600:]",
    caution="its host, madm.dfki.de, no longer answers. An archive EuroSAT.zip of 94,280,567 bytes is taken from "
    "{manual}",
  ),
  "resisc45": _create_row(
    "resisc45:3.0.0",
    {"train": 31_500},
    45,
    13_000,  # assumed: JPEG with 256 x 256 pixels
    "train[18900:19100]",
    train="train[:25200]",
    test="train[25200:]",
    manual=("NWPU-RESISC45",),
    steps="fetch NWPU-RESISC45.rar from https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs and unpack it",
  ),
  "diabetic_retinopathy": _create_row(
    "diabetic_retinopathy_detection/btgraham-300:3.0.0",
    {"train": 35_126, "validation": 10_906, "test": 42_670},
    5,
    20_000,  # assumed: JPEG with about 540 x 540 pixels at quality 72
    "validation[:200]",
    manual=("train", "test", "sample", "trainLabels.csv"),
    steps="fetch all archives from https://www.kaggle.com/c/diabetic-retinopathy-detection/data, every part of them "
    "(train.zip.005 is easily missed), and unpack them: folders train, test and sample, and trainLabels.csv",
  ),
  "clevr_count": _create_row(classes=8, label=labels.CLEVR_COUNT, **_CLEVR),
  "clevr_distance": _create_row(classes=6, label=labels.CLEVR_DISTANCE, **_CLEVR),
  "dmlab": _create_row(
    "dmlab:2.0.1",
    {"train": 65_550, "validation": 22_628, "test": 22_735},
    6,
    27_000,  # 3.0 GB
    "validation[:200]",
    crop=False,
  ),
  "dsprites_location": _create_row(label=labels.DSPRITES_LOCATION, crop=False, **_DSPRITES),
  "dsprites_orientation": _create_row(label=labels.DSPRITES_ORIENTATION, **_DSPRITES),
  "kitti_distance": _create_row(
    "kitti:3.3.0",  # VTAB uses 3.1.0; 3.2.0 contains the same images (task_adaptation, issue 18)
    {"train": 6347, "validation": 423, "test": 711},
    4,
    838_000,  # 12.6 GB
    "validation[:200]",
    label=labels.KITTI_DISTANCE,
    crop=False,
  ),
  "smallnorb_azimuth": _create_row(classes=18, label="label_azimuth", flip=False, **_SMALLNORB),
  "smallnorb_elevation": _create_row(classes=9, label="label_elevation", **_SMALLNORB),
}
