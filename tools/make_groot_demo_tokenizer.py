#!/usr/bin/env python3
"""Makes data/tokenizers/groot_demo.json: a small byte-level BPE tokenizer with the structure of Qwen's
(NFC, the pre-tokeniser's pattern, ByteLevel) and the special tokens that GR00T's prompts use.

Needs the package tokenizers (0.22.1). The special tokens have the first ids, which
src/models/groot/config.cpp knows.
"""
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
    "<|endoftext|>",
    "<|image_pad|>",
    "<IMG_CONTEXT>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<img>",
    "</img>",
]
CORPUS = [
    "system\nYou are a helpful assistant.\n",
    "user\nassistant\n<image 1><image 2><image 3>\n",
    "push the t-shaped block onto the t-shaped target",
    "perform the task",
    "pick up the red cube and place it in the bowl",
    "open the drawer close the drawer turn the knob",
    "put the green cup on the blue plate with the left arm",
    "move the gripper to the right and grasp the object on the table",
    "what action should the robot take to stack the blocks",
]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: make_groot_demo_tokenizer.py OUT.json", file=sys.stderr)
        return 2
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    for index, token in enumerate(SPECIAL):
        assert tokenizer.token_to_id(token) == index, (token, tokenizer.token_to_id(token))
    tokenizer.save(sys.argv[1], pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
