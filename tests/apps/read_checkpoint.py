"""Trains a few steps, then opens the checkpoint with the public safetensors package and compares names, shapes and
dtypes with the weights that the reference implementation wrote for the same sizes.

usage: read_checkpoint.py LONGSHIP_PROGRAM   (working folder: the source root)
"""
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings('ignore')
from safetensors import safe_open  # noqa: E402


def describe(path):
    with safe_open(path, framework='pt') as file:
        return {name: (file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()) for name in file.keys()}


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / 'run'
        subprocess.run([program, 'train', 'tests/apps/two_cameras.yaml', 'train.steps=2', f'output_dir={run}'],
                       check=True, stdout=subprocess.DEVNULL)
        checkpoint = run / 'checkpoints' / 'step_2' / 'model.safetensors'
        ours = describe(checkpoint)
        reference = describe('tests/golden/pi05/tiny_train/weights.safetensors')
        with safe_open(checkpoint, framework='pt') as file:
            for name in file.keys():
                assert file.get_tensor(name).isfinite().all(), name
    # The recipe has a larger vocabulary than the reference case; only that number may differ.
    vocabulary = {'paligemma_with_expert.paligemma.lm_head.weight', 'paligemma_with_expert.gemma_expert.lm_head.weight'}
    faults = [f'missing {n}' for n in reference.keys() - ours.keys()]
    faults += [f'unexpected {n}' for n in ours.keys() - reference.keys()]
    for name in reference.keys() & ours.keys():
        expected = ([800] + reference[name][0][1:], reference[name][1]) if name in vocabulary else reference[name]
        if ours[name] != expected:
            faults.append(f'{name}: {ours[name]}, expected {expected}')
    print('\n'.join(sorted(faults)) or f'{len(ours)} tensors agree')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
