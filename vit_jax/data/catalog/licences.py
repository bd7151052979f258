"""Licences of the images of TFDS datasets. TFDS does not contain this information.

The table contains the datasets with a published licence.
"""

_IMAGENET = "image-net.org's terms of access: non-commercial research and education"

LICENCES = {
  "clevr": "CC BY 4.0",  # LICENSE.txt in the archive
  "eurosat": "MIT",  # phelber/EuroSAT; the card of torchgeo/eurosat
  "imagenet_a": "MIT",  # hendrycks/natural-adv-examples
  "imagenet_sketch": "MIT",  # HaohanWang/ImageNet-Sketch
  "imagenet_v2": "MIT",  # modestyachts/ImageNetV2
  "imagenet2012": _IMAGENET,
  "imagenet2012_subset": _IMAGENET,
  "imagenet2012_fewshot": _IMAGENET,
  "imagenet2012_real": _IMAGENET,  # the images; licence of the labels: google-research/reassessed-imagenet
  "imagenet2012_multilabel": _IMAGENET,
  "imagenet2012_corrupted": _IMAGENET,
  "kitti": "CC BY-NC-SA 3.0",  # cvlibs.net/datasets/kitti
  "oxford_iiit_pet": "CC BY-SA 4.0",  # robots.ox.ac.uk/~vgg/data/pets
  "patch_camelyon": "CC0",  # basveeling/pcam; the card of bramtoula/vtab_patch_camelyon
  "uc_merced": "public domain (USGS)",  # the card of torchgeo/ucmerced
}


def describe_licence(builder: str | None) -> str:
  """Returns the licence of the images of a dataset, or a hint where to find it.

  Args:
    builder: name of the TFDS builder, "name/config:version". None: a dataset without a public builder.
  """
  name = (builder or "").partition(":")[0].partition("/")[0]
  return LICENCES.get(name, "unknown. See the page of the dataset" if builder else "see the terms of your copy")
