#!/usr/bin/env python3
"""Checks that no kernel touches global memory before it has waited for the kernel before it.

Kernels of src/kernels/common/launch.cuh come onto the device early and begin with await_previous_kernel(); a compiler that
moved a load in front of it would read what is still being written. Usage: check_launch_order.py BINARY (built with CUDA,
cuobjdump on the PATH), check_launch_order.py - for a listing of `cuobjdump -sass` on standard input, or --self-test.
Exit 1 with one line per kernel that does not wait, or too late.
"""
import re
import subprocess
import sys

INSTRUCTION = re.compile(r'/\*[0-9a-f]{4,}\*/\s+(.*?);')
WAIT = re.compile(r'\bACQBULK\b')
MEMORY = re.compile(r'\b(LDG|STG|LD|ST|ATOM|ATOMG|RED|REDG|LDGSTS|UBLKCP|UTMALDG)\b')
# Kernels that speak to other devices keep the plain order of their stream (src/kernels/exchange).
PLAIN = re.compile(r'meet_kernel|sum_parts_kernel|stamp_kernel|_convert_cu_')


def kernels(listing):
    name, instructions = None, []
    for line in listing:
        found = re.search(r'Function : (\S+)', line)
        if found:
            if name:
                yield name, instructions
            name, instructions = found.group(1), []
            continue
        found = INSTRUCTION.search(line)
        if found and name:
            instructions.append(found.group(1))
    if name:
        yield name, instructions


def fault(instructions):
    wait = next((i for i, text in enumerate(instructions) if WAIT.search(text)), None)
    memory = next((i for i, text in enumerate(instructions) if MEMORY.search(text)), None)
    if wait is None:
        return 'does not wait for the kernel before it'
    if memory is not None and memory < wait:
        return f'instruction {memory} ({instructions[memory]}) comes before the wait at {wait}'
    return None


def report(listing):
    count, faults = 0, []
    for name, instructions in kernels(listing):
        if 'longship' not in name or PLAIN.search(name):
            continue
        count += 1
        why = fault(instructions)
        if why:
            faults.append(f'{name}: {why}')
    return count, faults


def self_test():
    load, wait = '/*0010*/ LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;', '/*0020*/ ACQBULK ;'
    def kernel(name, *lines):
        return [f'Function : {name}', '/*0000*/ LDC R1, c[0x0][0x28] ;', *lines, '/*00f0*/ EXIT ;']
    listing = (kernel('_ZN8longship7kernels4good', wait, load) + kernel('_ZN8longship7kernels4late', load, wait) +
               kernel('_ZN8longship7kernels5never', load) + kernel('_ZN8longship7kernels11meet_kernel', load) +
               kernel('_ZN5other4lateEv', load, wait))
    count, faults = report(listing)
    assert count == 3, count
    assert [text.split(':')[0] for text in faults] == ['_ZN8longship7kernels4late', '_ZN8longship7kernels5never'], faults
    assert report(kernel('_ZN5other1xEv', load)) == (0, [])


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ('-h', '--help'):
        print(__doc__)
        return 2
    if sys.argv[1] == '--self-test':
        self_test()
        return 0
    if sys.argv[1] == '-':
        listing = sys.stdin
    else:
        listing = subprocess.run(['cuobjdump', '-sass', sys.argv[1]], check=True, capture_output=True,
                                 text=True).stdout.splitlines()
    count, faults = report(listing)
    print(*faults, f'{count} kernels, {len(faults)} faults', sep='\n')
    return 1 if faults or count == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
