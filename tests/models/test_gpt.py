"""The GPT: its shapes, its gradients, causality, the tied head, the start of its weights, its size, its errors."""

import pytest
import torch
from torch.nn import functional as F

from models.gpt import GPT

VOCAB, CONTEXT = 50, 12


def tiny(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=VOCAB, context=CONTEXT, width=16, depth=2, heads=4, dropout=dropout)


def sharpened() -> GPT:
    """Weights ten times larger, so that attention moves the logits well above the noise."""
    model = tiny().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    return model


def test_every_parameter_learns() -> None:
    model = tiny()
    tokens = torch.randint(VOCAB, (3, CONTEXT))
    logits = model(tokens)
    assert logits.shape == (3, CONTEXT, VOCAB)
    F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, dims=1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("changed", [1, 5, CONTEXT - 1])
def test_later_tokens_do_not_change_earlier_logits(changed: int) -> None:
    model = sharpened()
    tokens = torch.randint(VOCAB, (2, CONTEXT))
    others = tokens.clone()
    others[:, changed] = (others[:, changed] + 1) % VOCAB
    before, after = model(tokens), model(others)
    torch.testing.assert_close(before[:, :changed], after[:, :changed])
    moved = (before - after).abs().amax(dim=(0, 2))[changed:]
    assert (moved > 1e-3).all(), "every logit from the changed token on must see the change"


def test_a_shorter_sequence_gives_the_same_logits() -> None:
    model, tokens = sharpened(), torch.randint(VOCAB, (2, CONTEXT))
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens)[:, :5])


def test_positions_matter() -> None:
    model, same = sharpened(), torch.full((1, 4), 7)
    logits = model(same)
    assert not torch.allclose(logits[:, 0], logits[:, 1])


def test_head_and_embedding_are_one_storage() -> None:
    model = tiny().eval()
    storages = {value.data_ptr() for value in model.state_dict().values() if VOCAB in value.shape}
    assert storages == {model.embedding.weight.data_ptr()}
    tokens = torch.randint(VOCAB - 1, (2, CONTEXT))  # the last word is never read, only scored
    before = model(tokens)
    with torch.no_grad():
        model.embedding.weight[VOCAB - 1].add_(1.0 + torch.arange(16.0))
    after = model(tokens)
    assert torch.equal(before[..., :-1], after[..., :-1])
    assert (before[..., -1] != after[..., -1]).all()
    after.logsumexp(dim=-1).sum().backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad[-1].all(), "the head must train the embedding too"


def test_starting_weights() -> None:
    torch.manual_seed(0)
    model = GPT(vocab=256, context=128, width=128, depth=8, heads=4)
    residual = 0
    for name, parameter in model.named_parameters():
        if name.endswith("projection.weight"):
            residual += 1
            assert parameter.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert (parameter == 1).all(), name
    assert residual == 16


def test_size_of_gpt2() -> None:
    with torch.device("meta"):
        model = GPT(vocab=50304, context=1024, width=768, depth=12, heads=12)
        logits = model(torch.empty(1, 1024, dtype=torch.int64))
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_475_904
    assert logits.shape == (1, 1024, 50304)


def test_dropout_acts_in_training_only() -> None:
    model, tokens = tiny(dropout=0.5), torch.randint(VOCAB, (2, CONTEXT))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_attention_weights_are_dropped_too() -> None:
    attention, hidden = tiny(dropout=0.5).blocks[0].attention, torch.randn(2, 8, 16)
    assert not torch.equal(attention(hidden), attention(hidden))


def test_autocast_gives_half_precision_logits() -> None:
    model, tokens = tiny(), torch.randint(VOCAB, (2, CONTEXT))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(tokens), atol=0.02, rtol=0.05)


def test_sequence_beyond_the_context() -> None:
    with pytest.raises(ValueError, match=r"^The sequences have 13 tokens and this GPT has context=12\.$"):
        tiny()(torch.zeros(1, CONTEXT + 1, dtype=torch.int64))


@pytest.mark.parametrize(("width", "heads"), [(16, 3), (16, 0), (0, 4)])
def test_heads_must_divide_width(width: int, heads: int) -> None:
    with pytest.raises(ValueError, match=rf"^width={width} is not a multiple of heads={heads}\.$"):
        GPT(vocab=VOCAB, context=CONTEXT, width=width, depth=1, heads=heads)
