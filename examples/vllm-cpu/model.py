"""Makes the folder of a tiny chat model with random weights, for vLLM's --load-format dummy.

    python model.py FOLDER

Nothing is downloaded. What it says means nothing; its token counts, blocks and events are those of any Llama. It needs the
packages that vLLM brings: tokenizers, numpy, safetensors.
"""

import json
import pathlib
import sys

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LENGTH = 2048  # longest prompt with its answer
LAYERS, WIDTH, HEADS, RANK = 2, 64, 2, 8
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"

TEMPLATE = (
    "{% for message in messages %}"
    f"{START}{{{{ message.role }}}}\n{{{{ message.content }}}}{END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


def sentences():
    """English that each Python brings along: the help texts of the language."""
    from pydoc_data import topics

    return [topics.topics[name] for name in sorted(topics.topics)]


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def tokenizer(folder):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        sentences(),
        trainers.BpeTrainer(
            vocab_size=2048,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    t.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": LENGTH,
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START],
            "chat_template": TEMPLATE,
        },
    )
    return t


def config(folder, t):
    ids = {"eos_token_id": t.token_to_id(END), "pad_token_id": t.token_to_id(PAD)}
    write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "vocab_size": t.get_vocab_size(),
            "max_position_embeddings": LENGTH,
            "num_hidden_layers": LAYERS,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": WIDTH // HEADS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            **ids,
        },
    )
    write(folder / "generation_config.json", ids)


def adapter(folder):
    """A LoRA adapter in the form of the PEFT library, on the query and value projections."""
    random = numpy.random.default_rng(1)
    tensors = {}
    for layer in range(LAYERS):
        for projection in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            for part, shape in (("lora_A", (RANK, WIDTH)), ("lora_B", (WIDTH, RANK))):
                tensors[f"{name}.{part}.weight"] = random.normal(0, 0.05, shape).astype("float32")
    write(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "tiny",
            "r": RANK,
            "lora_alpha": RANK,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["q_proj", "v_proj"],
        },
    )
    save_file(tensors, str(folder / "adapter_model.safetensors"))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True)
    t = tokenizer(folder)
    config(folder, t)
    adapter(folder / "lora" / "adapter-a")
    print(f"{folder}: {t.get_vocab_size()} tokens, 1 adapter")


if __name__ == "__main__":
    main()
