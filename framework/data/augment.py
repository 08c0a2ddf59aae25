"""The geometry of photographs: random crops for training, one fixed crop for evaluation."""

from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from framework.data.images import normaliser

# Evaluation shows the centre 224/256 of the resized picture: the usual ImageNet protocol, at any size.
_EVAL_MARGIN = 256 / 224


class Augment:
    """Turns a decoded RGB picture of any size into a normalised square.

    Training: random resized crop (8 to 100 % of the area) and a horizontal flip, both drawn from torch's global
    generator. Evaluation: resize, then centre crop; no random numbers. Pickles.

    Args:
        train: whether to draw random crops and flips.
        image_size: side of the result in pixels.

    Raises:
        ValueError: `image_size` is below 1.
    """

    def __init__(self, train: bool, image_size: int) -> None:
        if image_size < 1:
            raise ValueError(f"data.image_size={image_size} must be at least 1: set it to the model's input side")
        steps = (
            [v2.RandomResizedCrop(image_size), v2.RandomHorizontalFlip()]
            if train
            else [v2.Resize(round(image_size * _EVAL_MARGIN)), v2.CenterCrop(image_size)]
        )
        self.geometry = v2.Compose(steps)
        self.normalise = normaliser(3)

    def __call__(self, picture: Image.Image) -> Tensor:
        """RGB picture -> float32 [3, image_size, image_size], normalised with ImageNet's statistics."""
        return self.normalise.from_picture(self.geometry(picture))
