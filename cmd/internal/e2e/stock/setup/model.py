"""Make the model that the tests serve: a tiny Llama with seeded random weights, and a tokenizer.

    model.py FOLDER

Nothing is loaded from elsewhere. The weights make the next token depend on the whole prefix, so that a wrong
or missing block of the KV cache changes the text.
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED, VOCABULARY, CONTEXT = 7, 1024, 8192
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 128, 256, 2, 4, 2, 32  # vLLM on CPUs needs heads of 32, 64, …
PAD, BEGIN, END = "<pad>", "<s>", "</s>"
TEMPLATE = ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")


def make_tokenizer():
    """Train a byte-level BPE tokenizer on sentences of made-up words."""
    rng = random.Random(SEED)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(4000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator((" ".join(rng.choices(words, k=40)) for _ in range(500)), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def make_weights():
    """Return the tensors.

    With weights of 1/sqrt(n), the attention of a long prefix averages to nothing, and only the last tokens count.
    Larger queries and keys make few positions decide, anywhere in the prefix, and a larger output makes them count.
    """
    rng = torch.Generator().manual_seed(SEED)

    def matrix(rows, columns, gain=1.0):
        return torch.randn(rows, columns, generator=rng) * (gain / columns**0.5)

    out = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=rng),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        for name, tensor in {
            "self_attn.q_proj": matrix(HEADS * HEAD, HIDDEN, 1.6),
            "self_attn.k_proj": matrix(KV_HEADS * HEAD, HIDDEN, 1.6),
            "self_attn.v_proj": matrix(KV_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD, 3.0),
            "mlp.gate_proj": matrix(INNER, HIDDEN),
            "mlp.up_proj": matrix(INNER, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, INNER),
            "input_layernorm": torch.ones(HIDDEN),
            "post_attention_layernorm": torch.ones(HIDDEN),
        }.items():
            out[f"model.layers.{layer}.{name}.weight"] = tensor
    return out


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    save_file(make_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, content in {
        "config.json": ids | {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
            "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": HIDDEN, "intermediate_size": INNER,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        },
        "generation_config.json": ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
            "pad_token": PAD, "bos_token": BEGIN, "eos_token": END, "chat_template": TEMPLATE,
        },
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1))


main()
