#!/usr/bin/env python3
"""What a training step of GR00T would take on one GPU if every part ran at the rate of the best library call for its shape: the budget of docs/performance.md.

  tools/groot_budget.py n16 --batch 64        two pictures of 252 x 252 (324 patches each), 58 text tokens
  tools/groot_budget.py n17 --batch 32        two pictures of 256 x 256 (256 patches each), 32 text tokens

Products are counted in floating-point operations, everything else in bytes that must be moved when neighbouring operations are fused. Prints JSON.
Sizes are those of the published models (src/models/groot/config.cpp), the fine-tuning set the published one: head, and for N1.6 the last four language layers."""
import argparse
import json

MODELS = {
    'n16': dict(vision=(1152, 27, 4304, 588), patches=324, projector=1, text=(2048, 16, 6144, 16, 8, 128), top=4, vl=0, horizon=50, dim=128),
    'n17': dict(vision=(1024, 24, 4096, 1536), patches=256, projector=4, text=(2048, 16, 6144, 16, 8, 128), top=0, vl=4, horizon=40, dim=132),
}
WIDTH, DEPTH, HIDDEN = 1536, 32, 1024  # of the diffusion transformer, and of encoders and decoder
CONTEXT = 2048


class Budget:
    def __init__(self, rates):
        self.rates = rates
        self.parts = {}

    def add(self, part, kind, amount, count=1):
        """kind: products or attention (FLOP), bytes."""
        entry = self.parts.setdefault(part, dict(products=0.0, attention=0.0, bytes=0.0))
        entry[kind] += amount * count

    def report(self):
        ms = {'products': 1e-9 / self.rates['products'], 'attention': 1e-9 / self.rates['attention'], 'bytes': 1e-9 / self.rates['bytes']}
        rows = {part: {kind: round(amount * ms[kind], 2) for kind, amount in entry.items()} | {'tflop': round(entry['products'] / 1e12, 2)}
                for part, entry in self.parts.items()}
        total = {kind: round(sum(row[kind] for row in rows.values()), 1) for kind in ms}
        return rows, total


def transformer(b, part, rows, width, mlp, qkv, layers, passes, gated, length, heads_width, stream=2):
    """`passes`: 1 forward only, 3 with backward. `qkv`: columns of queries, keys and values together. `length`: keys that a query sees."""
    up = 2 * mlp if gated else mlp
    b.add(part, 'products', 2 * rows * width * (qkv + heads_width + up + mlp) * passes, layers)
    b.add(part, 'attention', 4 * rows * length * heads_width * (1 if passes == 1 else 3.5), layers)
    # Forward, bytes a row: norm (stream in, bf16 out), rotation (in, out), residual and norm (stream, branch in; stream, bf16 out), activation
    # (in, out), residual (stream, branch in; stream out). The backward pass moves about one and a half times as much.
    forward = (stream + 2) * width + 4 * qkv + (2 * stream + 4) * width + 2 * (up + mlp) + (2 * stream + 2) * width
    b.add(part, 'bytes', rows * forward * (1 if passes == 1 else 2.5), layers)


def budget(m, batch, text_tokens, b):
    width, depth, mlp, values = m['vision']
    pictures = 2
    patches = batch * pictures * m['patches']
    b.add('vision tower', 'products', 2 * patches * values * width)
    transformer(b, 'vision tower', patches, width, mlp, 3 * width, depth, 1, False, m['patches'], width)
    image_rows, block = patches // 4, 4 * width
    if m['projector'] == 1:
        b.add('projector', 'products', 2 * image_rows * (block * CONTEXT + CONTEXT * CONTEXT))
    else:
        b.add('projector', 'products', 2 * image_rows * m['projector'] * (block * block + block * CONTEXT))
    width, depth, mlp, heads, kv, dim = m['text']
    tokens = pictures * m['patches'] // 4 + text_tokens
    rows = batch * tokens
    qkv = (heads + 2 * kv) * dim
    transformer(b, 'language, frozen', rows, width, mlp, qkv, depth - m['top'], 1, True, tokens / 2, heads * dim)
    if m['top']:
        transformer(b, 'language, trained', rows, width, mlp, qkv, m['top'], 3, True, tokens / 2, heads * dim)
    if m['vl']:
        transformer(b, 'self-attention over features', rows, CONTEXT, 4 * CONTEXT, 3 * CONTEXT, m['vl'], 3, False, tokens, CONTEXT, stream=4)
    action_rows = batch * (m['horizon'] + 1)
    transformer(b, 'diffusion transformer', action_rows, WIDTH, 4 * WIDTH, 3 * WIDTH, DEPTH // 2, 3, False, m['horizon'] + 1, WIDTH, stream=4)
    for read in (batch * text_tokens, image_rows):  # every other block reads, in turn, text and pictures
        transformer(b, 'diffusion transformer', action_rows, WIDTH, 4 * WIDTH, WIDTH, DEPTH // 4, 3, False, read / batch, WIDTH, stream=4)
        b.add('cross-attention keys, values', 'products', 2 * read * CONTEXT * 2 * WIDTH * 3, DEPTH // 4)
        b.add('cross-attention keys, values', 'bytes', read * (CONTEXT * (2 + 2 + 8) + 2 * 2 * WIDTH * 3), DEPTH // 4)
    b.add('diffusion transformer', 'products', 2 * batch * 2 * WIDTH * WIDTH * DEPTH * 3)
    per_row = m['dim'] * WIDTH + 3 * WIDTH * WIDTH + HIDDEN * HIDDEN + HIDDEN * m['dim'] + WIDTH * HIDDEN
    b.add('encoders, decoder', 'products', 2 * batch * m['horizon'] * per_row * 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('model', choices=sorted(MODELS))
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--text-tokens', type=int, help='per sample; 58 for n16, 32 for n17')
    parser.add_argument('--trained', type=float, default=1.3e9, help='elements that AdamW updates (report of bench train); 1.3e9')
    parser.add_argument('--products', type=float, default=680, help='TFLOP/s of matrix products')
    parser.add_argument('--attention', type=float, default=250, help='TFLOP/s of attention kernels at these lengths')
    parser.add_argument('--bandwidth', type=float, default=4.26, help='TB/s of a copy')
    args = parser.parse_args()
    b = Budget({'products': args.products, 'attention': args.attention, 'bytes': args.bandwidth})
    text = args.text_tokens or (58 if args.model == 'n16' else 32)
    budget(MODELS[args.model], args.batch, text, b)
    b.add('gradient norm, AdamW', 'bytes', args.trained * (2 + 28))
    rows, total = b.report()
    step = sum(total.values())
    print(json.dumps({'model': args.model, 'batch': args.batch, 'text_tokens': text, 'parts_ms': rows, 'total_ms': total, 'step_ms': round(step, 1),
                      'samples_per_s': round(1e3 * args.batch / step, 1)}, indent=1))


if __name__ == '__main__':
    main()
