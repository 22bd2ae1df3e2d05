#!/usr/bin/env python3
"""Checks every #include under src/, bench/ and apps/ against tools/layers.txt. Exit 1 with one line per breach."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
BANNED = re.compile(r'^(torch/(torch|extension|all|nn|script|jit|types)\.h|ATen/(ATen|Functions)\.h|torch/nn/.*)$')
AUTOGRAD = re.compile(r'^torch/(csrc/autograd/|library\.h)')
TORCH = re.compile(r'^(ATen|c10|torch)/')
CUDA = re.compile(r'^(cuda|cublas|cudnn|nccl|curand)[\w]*\.h$|^(c10|ATen)/cuda/')
# Heavy or third-party headers that must stay behind one file (or one folder) of ours.
QUARANTINE = {
    r'^yaml-cpp/': ['src/base/config/yaml.cpp'],
    r'^spdlog/': ['src/base/log.cpp'],
    r'^(arrow|parquet)/': ['src/io/parquet'],
    r'^lib(av|sw)\w+/': ['src/io/video'],
    r'^sentencepiece': ['src/data/tokenizer/'],
    r'^CLI/': ['apps/'],
}


def read_matrix():
    layers = {}
    for line in (ROOT / 'tools/layers.txt').read_text().splitlines():
        line = line.split('#')[0].strip()
        if not line:
            continue
        name, rest = line.split(':', 1)
        allowed, _, facts = rest.partition('|')
        layers[name.strip()] = (
            {m.group(1): m.group(2) for m in re.finditer(r'(\w+)(?:\(([\w.]+)\))?', allowed)},
            {m.group(1): m.group(2) for m in re.finditer(r'(\w+)(?:\((\w+)\))?', facts)})
    return layers


def breaches(path, layer, layers):
    allowed, facts = layers[layer]
    rel = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(1)

        def bad(why):
            return f'{rel}:{number}: {why}: {name}'

        if BANNED.match(name):
            yield bad('umbrella torch header')
        elif CUDA.match(name):
            if 'cuda' not in facts:
                yield bad(f'{layer} may not include CUDA headers')
            elif layer == 'kernels' and TORCH.match(name):
                yield bad('kernels may never include torch')
        elif AUTOGRAD.match(name):
            only = facts.get('autograd')
            if 'autograd' not in facts or path.suffix == '.h' or (only and not path.stem.startswith(only)):
                yield bad(f'autograd headers are not allowed in this file of {layer}')
        elif TORCH.match(name):
            only = facts.get('torch')
            if 'torch' not in facts or (only and not path.stem.startswith(only)):
                yield bad(f'{layer} may not include torch headers here')
        top = name.split('/')[0]
        if top in layers and top not in (layer, 'base'):
            if top not in allowed:
                yield bad(f'{layer} may not include {top}')
            elif allowed[top] and not name.endswith('/' + allowed[top]):
                yield bad(f'{layer} may include of {top} only {allowed[top]}')
        if layer == 'models':
            parts = rel.split('/')
            other = name.split('/')
            if len(parts) > 3 and len(other) > 2 and other[0] == 'models' and other[1] not in (parts[2], 'common'):
                yield bad('a model may not include another model')
        for pattern, homes in QUARANTINE.items():
            if re.match(pattern, name) and not any(rel.startswith(home) for home in homes):
                yield bad(f'belongs behind {homes[0]}')


def main():
    layers = read_matrix()
    found, files = [], 0
    for base in ['src', 'apps', 'bench']:
        for path in sorted((ROOT / base).rglob('*')):
            if path.suffix not in ('.h', '.cpp', '.cuh', '.cu'):
                continue
            files += 1
            layer = path.relative_to(ROOT / 'src').parts[0] if base == 'src' else base
            if layer not in layers:
                found.append(f'{path.relative_to(ROOT)}: layer {layer} is not in tools/layers.txt')
                continue
            found.extend(breaches(path, layer, layers))
    print('\n'.join(found) if found else f'{files} files keep the layer rules')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
