#!/usr/bin/env python3
"""Makes data/tokenizers/pi05_demo.model: a small SentencePiece BPE model for English robot tasks, with PaliGemma's options (byte fallback, digits split,
identity normalisation, no dummy prefix, whitespace kept, pad 0 eos 1 bos 2 unk 3). All text is generated here. Needs the Python package sentencepiece 0.2.3.
usage: make_demo_tokenizer.py OUT.model [vocabulary size]"""
import io, random, sys
import sentencepiece as spm

VERBS = ["push", "pull", "pick up", "put", "place", "move", "slide", "lift", "grasp", "open", "close", "turn on", "turn off", "rotate", "stack", "insert", "pour", "press",
         "drop", "hand over", "fold", "wipe", "take", "stir", "reach for", "hold", "release", "align", "flip"]
COLORS = ["red", "green", "blue", "yellow", "black", "white", "grey", "orange", "brown", "small", "large", "left", "right", "top", "bottom", "middle"]
THINGS = ["block", "cube", "T", "T-shaped block", "L-shaped block", "bowl", "plate", "cup", "mug", "drawer", "cabinet", "door", "box", "bottle", "book", "pan", "pot", "stove",
          "spoon", "fork", "knife", "towel", "peg", "ball", "can", "tray", "basket", "button", "lid", "handle", "object", "cloth", "gripper", "arm", "tool", "toy", "banana"]
PLACES = ["target", "T-shaped target", "goal", "goal pose", "goal position", "table", "green outline", "outline", "center", "shelf", "sink", "bin", "edge", "corner", "other side", "left side",
          "right side", "box", "plate", "drawer", "hole", "rack"]
PREPS = ["to", "onto", "into", "on", "in", "next to", "towards", "from", "under", "above", "behind", "in front of", "inside"]
TAILS = ["", "", "", ".", ", then stop.", " and then stop", " until it covers the {p}", ", then release it", " and close the {t}", " with the {c} gripper", " carefully", " slowly.", " with both hands"]


def lines(n=20000, seed=5):
    r = random.Random(seed)
    out = []
    for _ in range(n):
        thing = (r.choice(COLORS) + " " if r.random() < .6 else "") + r.choice(THINGS)
        s = f"{r.choice(VERBS)} {r.choice(['the', 'the', 'the', 'a', ''])} {thing}".replace("  ", " ")
        if r.random() < .75:
            s += f" {r.choice(PREPS)} {r.choice(['the', 'the', ''])} {r.choice(PLACES)}".replace("  ", " ")
        s += r.choice(TAILS).format(p=r.choice(PLACES), t=r.choice(THINGS), c=r.choice(COLORS))
        if r.random() < .5:
            s = s[0].upper() + s[1:]
        if r.random() < .3:
            s = f"Task: {s}, State: " + " ".join(str(r.randrange(256)) for _ in range(r.randrange(2, 8)))
        out.append(s)
    return out


def main():
    out, size = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 800
    buf = io.BytesIO()
    chars = "".join(chr(c) for c in range(33, 127) if chr(c) not in "<>")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=buf, model_type="bpe", vocab_size=size, byte_fallback=True, split_digits=True,
        add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity", allow_whitespace_only_pieces=True,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", unk_piece="<unk>",
        # the fixed parts of the Pi0.5 prompt are one piece each
        user_defined_symbols=["\n", "▁▁", "▁▁▁▁", "Task:▁", ",▁State:", ";\nAction:▁"], required_chars=chars, character_coverage=1.0, hard_vocab_limit=True, num_threads=1, minloglevel=2)
    open(out, "wb").write(buf.getvalue())
    sp = spm.SentencePieceProcessor(model_proto=buf.getvalue())
    print(len(buf.getvalue()), "bytes,", sp.get_piece_size(), "pieces")
    for t in ("push T to target", "Move the block to the goal pose, then stop.", "slide the grey T until it covers the green outline", "Push the T-shaped block onto the T-shaped target."):
        e = sp.encode(f"Task: {t}, State: 128 -1;\nAction: ", out_type=str)
        print(len(e) + 1, e)
    assert sp.decode(sp.encode("Zebra #7 ~ caf\u00e9 12\n")) == "Zebra #7 ~ caf\u00e9 12\n"


if __name__ == "__main__":
    main()
