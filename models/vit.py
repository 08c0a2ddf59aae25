"""A vision transformer that classifies images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ViT(nn.Module):
    """Pre-norm vision transformer with learned positions and mean pooling.

    The tokens are averaged after the last norm; there is no class token. That is simpler, trains at least as well
    (Beyer et al. 2022), and keeps the number of tokens at (image_size / patch_size) squared, a round number.

    Shapes: images [batch, in_channels, image_size, image_size] -> logits [batch, num_classes].

    Args:
        image_size: height and width of an image in pixels.
        patch_size: height and width in pixels of the patch that becomes one token.
        in_channels: channels of an image.
        num_classes: number of logits.
        width: features of a token.
        depth: number of blocks.
        heads: attention heads of a block.
        mlp_ratio: hidden features of the MLP over width.
        dropout: probability with which attention weights and outputs of layers are dropped in training.

    Raises:
        ValueError: when patch_size does not divide image_size or heads does not divide width.

    Source: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929; mean pooling from Beyer et al. 2022,
    https://arxiv.org/abs/2205.01580.
    """

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        in_channels: int,
        num_classes: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size < 1 or image_size % patch_size:
            raise ValueError(f"image_size={image_size} is not a multiple of patch_size={patch_size}.")
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}.")
        self.image_size = image_size
        self.patches = nn.Conv2d(in_channels, width, kernel_size=patch_size, stride=patch_size)
        self.positions = nn.Parameter(torch.empty((image_size // patch_size) ** 2, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([_Block(width, heads, mlp_ratio, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        self._initialize()

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, in_channels, image_size, image_size] -> logits [batch, num_classes].

        Raises ValueError for images of another size, because one token would broadcast over positions unnoticed.
        """
        height, width = images.shape[-2:]
        if height != self.image_size or width != self.image_size:
            raise ValueError(f"The images are {height}x{width} and this ViT has image_size={self.image_size}.")
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = self.dropout(tokens + self.positions)
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens).mean(dim=1))
        return logits

    def _initialize(self) -> None:
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)


class _Block(nn.Module):
    """Attention, then MLP, each on normalised tokens and added to them: [batch, tokens, width] -> the same."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = _Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_ratio * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        attended = tokens + self.dropout(self.attention(self.attention_norm(tokens)))
        output: Tensor = attended + self.dropout(self.mlp(self.mlp_norm(attended)))
        return output


class _Attention(nn.Module):
    """Every token attends to every token: [batch, tokens, width] -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        split = self.query_key_value(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()  # each [batch, heads, tokens, width / heads]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected
