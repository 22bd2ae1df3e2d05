#!/usr/bin/env python3
"""Makes tests/data_sets/tokenizers/groot_prompt_n16.json: the part of the published Qwen tokenizer that the prompts of
tests/golden/groot_preprocess/prompt_n16 need, under the published ids.

The whole vocabulary has 151,643 pieces. A word is split by the merges that it takes, in the order of their ids, and the
merges of other words leave it alone; so a tokenizer with all bytes and the merges below gives these texts the same ids.
Every merge stands as "id left right" with _ for the space. The ids 151643 and above are those of the special tokens of
N1.6's backbone.

usage: make_groot_prompt_tokenizer.py OUT.json
"""
import json
import sys

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<IMG_CONTEXT>": 151669,
    "<img>": 151670,
    "</img>": 151671,
}
MERGES = """
259 _ t, 261 e r, 263 o n, 264 _ a, 265 r e, 267 s t, 269 o r, 270 _t h, 274 _ s, 276 a n, 279 _th e, 281 _ p,
283 o u, 292 i c, 293 _ b, 296 _ m, 300 a s, 301 e l, 305 _ h, 318 i m, 332 u t, 336 e m, 339 t h, 351 a g,
354 o t, 355 u s, 357 _ st, 360 u l, 363 o w, 377 c k, 380 i st, 389 _ on, 398 l y, 424 ag e, 438 _a s, 454 u p,
473 a ck, 493 or m, 517 an t, 525 _a re, 562 o k, 586 v e, 597 y st, 612 yst em, 627 f orm, 628 p ut, 705 _ up,
708 _b o, 712 p er, 865 ic k, 872 us er, 994 o ve, 1071 _as s, 1073 as k, 1262 f ul, 1267 el p, 1492 _h elp,
1501 _b l, 1739 _s l, 1805 im age, 2176 _bo th, 2412 ot s, 2610 Y ou, 3383 _t ask, 3691 _bl ack, 6301 _sl ow,
7789 _ass ist, 8948 s ystem, 9605 ow l, 10950 _help ful, 13970 _slow ly, 17847 _assist ant, 19212 _b owl,
28488 per form, 29245 p ick, 30766 ok a, 44015 _st ove, 50031 _p ots
"""


def letters() -> list:
    """The letter of every byte in the order of their ids: printable ones stand for themselves, others follow from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(0x100 + k) for k in range(len(other))]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: make_groot_prompt_tokenizer.py OUT.json", file=sys.stderr)
        return 2
    vocab = {letter: k for k, letter in enumerate(letters())}
    merges = []
    for entry in MERGES.replace("\n", " ").split(","):
        number, left, right = entry.split()
        left = left.replace("_", "\u0120")  # the letter of the space
        if left not in vocab or right not in vocab:
            raise SystemExit(f"{entry}: a part of it is no piece")
        vocab[left + right] = int(number)
        merges.append((int(number), f"{left} {right}"))
    if merges != sorted(merges) or len(set(vocab.values())) != len(vocab):
        raise SystemExit("ids must ascend, and each may stand once")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    out = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **plain} for text, number in SPECIAL.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {**vocab, **SPECIAL}, "merges": [pair for _, pair in merges]},
    }
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")
    print(f"{sys.argv[1]}: {len(vocab)} pieces, {len(SPECIAL)} special tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
