"""Whether `attach` puts exits on classifiers of transformers: one line for each architecture.

    pip install transformers && python experiments/early_exit/attach_transformers.py

Models are small and have random weights. Printed per architecture: the blocks, and how far the
full output with exits is from that of the model. The exit status is 1 where it is not the same.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification as Texts,
)

from ttamer import torch as exits

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "num_labels": 3,
    "pad_token_id": 0,
    "use_cache": False,
}
OTHERS = {
    "distilbert": {"dim": 8, "n_layers": 3, "n_heads": 2, "hidden_dim": 8, "vocab_size": 40},
    "modernbert": SMALL | {"local_attention": 4, "global_attn_every_n_layers": 2},
    "vit": SMALL | {"image_size": 16, "patch_size": 4},
}
"""By architecture: the sizes that are not SMALL."""
NAMES = ("bert", "roberta", "distilbert", "modernbert", "llama", "qwen2", "mistral", "vit")


def example_for(name: str) -> dict[str, torch.Tensor]:
    """Return inputs: images, or texts of which some are padded."""
    if name == "vit":
        return {"pixel_values": torch.randn(5, 3, 16, 16)}
    mask = (torch.arange(7) < torch.tensor([[7], [4], [7], [2], [7]])).long()
    return {"input_ids": torch.randint(3, 40, (5, 7)) * mask, "attention_mask": mask}


def main() -> None:
    """Print one line for each architecture."""
    faults = 0
    for name in NAMES:
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **OTHERS.get(name, SMALL))
        kind = AutoModelForImageClassification if name == "vit" else Texts
        model = kind.from_config(config).eval()
        example = example_for(name)
        points = next(n for n, m in model.named_modules() if isinstance(m, nn.ModuleList))
        with torch.no_grad():
            network = exits.attach(model, points, example)
            expected = model(**example).logits
            difference = float((network(example)[-1] - expected).abs().max())
        faults += difference > 1e-5
        print(f"{name}: {points}, exits {', '.join(network.names)}; differs by {difference:.1e}")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
