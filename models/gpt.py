"""A GPT-2 language model."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INITIAL_STD = 0.02


class GPT(nn.Module):
    """Pre-norm causal transformer with learned positions, GELU MLPs of 4 x width, and a head tied to the embedding.

    The head has no module of its own: it multiplies by the weight of `embedding`, so that no copy or move of the
    model can untie the two. Weights start normal with deviation 0.02, those that write to the residual stream with
    0.02 / sqrt(2 * depth). GPT-2 is vocab 50257, context 1024, width 768, depth 12, heads 12; with the vocabulary
    rounded up to 50304, a multiple of 64, it has 124,475,904 parameters.

    Shapes: tokens int64 [batch, time] -> logits [batch, time, vocab], those at t seeing tokens up to t only.

    Args:
        vocab: number of different tokens.
        context: longest sequence in tokens.
        width: features of a token.
        depth: number of blocks.
        heads: attention heads of a block.
        dropout: probability with which attention weights and outputs of layers are dropped in training.

    Raises:
        ValueError: when heads does not divide width.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the tied head is from Press
    and Wolf 2017, https://arxiv.org/abs/1608.05859.
    """

    def __init__(self, vocab: int, context: int, width: int, depth: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}.")
        self.context = context
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([_Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self._initialize(depth)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [batch, time] -> logits [batch, time, vocab]; ValueError when time is beyond the context."""
        time = tokens.shape[1]
        if time > self.context:
            raise ValueError(f"The sequences have {time} tokens and this GPT has context={self.context}.")
        hidden = self.dropout(self.embedding(tokens) + self.positions[:time])
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.embedding.weight)

    def _initialize(self, depth: int) -> None:
        nn.init.normal_(self.embedding.weight, std=INITIAL_STD)
        nn.init.normal_(self.positions, std=INITIAL_STD)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = math.sqrt(2 * depth) if name.endswith("projection") else 1.0
                nn.init.normal_(module.weight, std=INITIAL_STD / scale)
                nn.init.zeros_(module.bias)


class _Block(nn.Module):
    """Attention, then MLP, each on normalised features and added to them: [batch, time, width] -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = _CausalAttention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = _MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        attended = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        output: Tensor = attended + self.dropout(self.mlp(self.mlp_norm(attended)))
        return output


class _CausalAttention(nn.Module):
    """Every token attends to itself and to those before it: [batch, time, width] -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        split = self.query_key_value(hidden).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()  # each [batch, heads, time, width / heads]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected


class _MLP(nn.Module):
    """[batch, time, width] -> the same. The GELU is the tanh one, as in GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expansion = nn.Linear(width, 4 * width)
        self.projection = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.projection(F.gelu(self.expansion(hidden), approximate="tanh"))
        return projected
