#!/usr/bin/env python3
"""Reads all test datasets in shuffled order under sanitizers, killed and resumed at random.

Usage: tools/soak.py SECONDS [--program build/asan/bin/longship_data_soak] [--seed N]
Builds the program with AddressSanitizer and UndefinedBehaviorSanitizer when --program is not given. The first two thirds
of the time kill it every few seconds, each time with another number of workers; the last third runs through. Exit code 0:
no sanitizer report, every sample id in its place, equal bits at every reading, and a resident size that does not grow.
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATASETS = ['data/pusht_v30', 'tests/data_sets/pusht_v21', 'tests/data_sets/two_cam_v30',
            'tests/data_sets/broken/base_v21', 'tests/data_sets/broken/base_v30']


def build():
    subprocess.run(['scripts/setup.sh', '--tests'], check=True)
    subprocess.run(['.venv/bin/cmake', '--preset', 'asan'], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['.venv/bin/cmake', '--build', '--preset', 'asan', '--target', 'longship_data_soak'], check=True)
    return 'build/asan/bin/longship_data_soak'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('seconds', type=float)
    parser.add_argument('--program')
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    os.chdir(ROOT)
    program = args.program or build()
    environment = dict(os.environ, UBSAN_OPTIONS='print_stacktrace=1:halt_on_error=1',
                       ASAN_OPTIONS='quarantine_size_mb=32',
                       LSAN_OPTIONS=f'suppressions={ROOT}/tools/lsan.supp:print_suppressions=0')
    rng = random.Random(args.seed)
    datasets = [d for d in DATASETS if os.path.isdir(d)]
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, 'ids.log')
        end = time.time() + args.seconds * 2 / 3
        kills = 0
        while time.time() < end:
            workers = rng.randrange(0, 5)
            run = subprocess.Popen([program, 'run', log, '1e9', str(workers), *datasets], env=environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                _, errors = run.communicate(timeout=rng.uniform(2, 25))
                sys.exit(f'the program ended by itself with code {run.returncode}:\n{errors}')
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                run.communicate()
                kills += 1
        last = subprocess.run([program, 'run', log, str(args.seconds / 3), '2', *datasets], env=environment,
                              capture_output=True, text=True)
        if last.returncode != 0:
            sys.exit(f'the last run ended with code {last.returncode}:\n{last.stderr}')
        resident = [int(x) for x in re.findall(r'resident_kb (\d+)', last.stdout)]
        checked = subprocess.run([program, 'verify', log, *datasets], env=environment, capture_output=True, text=True)
        if checked.returncode != 0:
            sys.exit(checked.stderr)
        print(f'{kills} kills; {checked.stdout.strip()}')
        # From a third of the run on, all files are open and all caches are full.
        settled = resident[len(resident) // 3:]
        quarter = max(1, len(settled) // 4)
        before, after = max(settled[:quarter]), max(settled[-quarter:])
        print(f'resident {before / 1024:.0f} MiB, at the end {after / 1024:.0f} MiB')
        if after > before * 1.05:
            sys.exit('the resident size grows')


if __name__ == '__main__':
    main()
