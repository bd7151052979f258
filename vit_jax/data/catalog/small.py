"""Small datasets outside of VTAB: digits, generated signs and scenes, CIFAR-10, and two of big_vision's suite."""

from vit_jax.data import scenes
from vit_jax.data.dataset_row import DatasetRow, MaskFeature
from vit_jax.data.readers import tfds

ROWS = {
  "digits": DatasetRow(
    tfds.open_catalogued,
    "digits:1.0.0",
    {"train": 1437, "test": 360},
    10,
    image_bytes=1_900,  # measured
  ),
  "glyphs": DatasetRow(  # generated, for pre-training: see data/glyphs.py
    tfds.open_catalogued,
    "glyphs:1.0.0",
    {"train": 20_000, "test": 2_000},
    200,
    flip=False,
    image_bytes=1_000,
  ),
  "scenes": DatasetRow(  # generated, with segmentation masks: see data/scenes.py
    tfds.open_catalogued,
    "scenes:1.0.0",
    {"train": 2_500, "test": 500},
    7,
    image_bytes=8_900,  # measured
    segments=MaskFeature("mask", {name: number for number, name in enumerate(("ground", *scenes.CLASSES))}),
  ),
  "cifar10": DatasetRow(
    tfds.open_catalogued,
    "cifar10:3.0.2",
    {"train": 50_000, "test": 10_000},
    10,
    image_bytes=2_500,  # PNG of at most 3,072 bytes of pixels
  ),
  "cars196": DatasetRow(
    tfds.open_catalogued,
    "cars196:2.1.0",
    {"train": 8144, "test": 8041},
    196,
    image_bytes=121_000,  # 1.96 GB
    caution="its host, ai.stanford.edu, may not answer. Its files are taken from {manual}, if they are there under the "
    "names cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat",
  ),
  "uc_merced": DatasetRow(
    tfds.open_catalogued,
    "uc_merced:2.0.0",
    {"train": 2100},
    21,
    train="train[:1000]",  # the splits of big_vision: evaluators/fewshot_lsr.py
    test="train[1000:]",
    image_bytes=158_000,  # 332 MB
  ),
}
