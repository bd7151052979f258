"""Facts about weights from three sources: the metadata of their file, the files next to it, and the user."""

from collections.abc import Mapping
from typing import Any, TypedDict

from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.schema import Choice


class Hints(TypedDict, total=False):
  """Hints about a model and its images. Layouts use a hint if names and shapes of the tensors do not determine a value.

  Attributes:
    name: name of the file or of its architecture.
    description: description of the model as JSON values, from metadata that this project wrote.
    use: preprocessing and class names, from the same metadata.
    sidecar: preprocessing and class names, from JSON files next to the weights.
    stated: {argument of the model: value} from JSON files. A model with another value is an error.
    derived: {size: value} for the name of the architecture. A model with another value is an error.
    notes: messages for the user.
    prepared_side: side, or (height, width), of the images after preprocessing, in pixels.
    architecture: name of the architecture in timm.
    model_type: type of the model in Transformers.
    image_size: side of the images, or (height, width), in pixels.
    input_size: side of the images in pixels. It is used only if `image_size` and the tensors do not give a size.
    heads: number of attention heads.
    width: width of the model to which `heads` applies. Models of another width ignore `heads`.
    gelu: form of GELU.
    norm_eps: epsilon of the normalisation.
    norm_order: order of normalisation, attention and MLP in a block.
    turning: rotary position embedding.
    fc_norm: true if the pooled features are normalised.
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
