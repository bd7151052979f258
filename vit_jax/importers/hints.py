"""Facts about weights that their file, the files next to it, or the user provide."""

from collections.abc import Mapping
from typing import Any, TypedDict

from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.schema import Choice


class Hints(TypedDict, total=False):
  """Hints about a model and its images. A layout uses them for what tensors do not show.

  Attributes:
    name: name of the file or of its architecture.
    description: the description of the model in a header that this project wrote, as JSON values.
    use: metadata of images and classes in such a header.
    sidecar: metadata of images and classes in other files.
    stated: values with which the model must agree.
    derived: sizes that follow from the name of the architecture, with which the model must agree.
    notes: messages for the user.
    prepared_side: side or size of the images that a preprocessor makes.
    architecture: name of the architecture in timm.
    model_type: type of the model in Transformers.
    image_size: size of the images.
    input_size: size of the images, which is used if the size is unknown otherwise.
    heads: number of attention heads.
    width: width for which `heads` is valid.
    gelu: form of GELU.
    norm_eps: epsilon of the normalisation.
    norm_order: order of the normalisation and the branches of a block.
    turning: rotary position embedding.
    fc_norm: whether the pooled features are normalised.
    padding: padding of convolutions.
    resampling: rule by which position embeddings are resampled.
  """

  name: str
  description: Mapping[str, Any]
  use: ImageMetadata
  sidecar: ImageMetadata
  stated: Mapping[str, Any]
  derived: Mapping[str, int]
  notes: list[str]
  prepared_side: int | tuple[int, int] | None
  architecture: str
  model_type: str
  image_size: int | tuple[int, int]
  input_size: int
  heads: int
  width: int
  gelu: str
  norm_eps: float
  norm_order: str
  turning: Choice
  fc_norm: bool
  padding: str
  resampling: str
