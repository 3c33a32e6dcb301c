"""A small Llama with random weights and a tokenizer of its own, made on the spot: nothing is downloaded.

    python make_model.py FOLDER        # in the environment of the server, which has transformers

What it writes is nonsense; how long it takes to write it is not. Weights and tokenizer follow from one seed.
"""

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 1
VOCABULARY = 1_024
LONGEST_TOKENS = 8_192
CHAT_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"


def make(folder: Path) -> None:
    torch.manual_seed(SEED)
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1_024,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        torch_dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs of random syllables: any text can be written in it."""
    rng = random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = [" ".join("".join(rng.choices(letters, k=2)) for _ in range(200)) for _ in range(200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


if __name__ == "__main__":
    make(Path(sys.argv[1]))
