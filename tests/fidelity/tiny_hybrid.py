"""A tiny hybrid model with random weights, for vLLM on a CPU.

    VENV/bin/python tests/fidelity/tiny_hybrid.py FOLDER TOKENIZER_FOLDER

Runs in the server's environment. Three layers of Gated DeltaNet and one of attention. The output
projection is its own: tied to the embedding, this server gives all tokens the same probability.
"""

import importlib
import shutil
import sys
from pathlib import Path

CONFIG = {
    "vocab_size": 49_152,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}


def main(folder: Path, tokenizer: Path) -> None:
    """Write the model."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(**CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
