#!/usr/bin/env python3
"""scripts/gpu_scaling.sh without a GPU: its commands, a run of two processes over Gloo, and programs that fail.

Usage: gpu_scaling_test.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, 'build/bin/longship')


def script(*words):
    return subprocess.run([os.path.join(ROOT, 'scripts/gpu_scaling.sh'), *words], capture_output=True, text=True,
                          check=False)


class GpuScaling(unittest.TestCase):
    def test_plan_has_every_strategy(self):
        for count in (2, 4, 8):
            plan = script('--dry-run', '--gpus', str(count)).stdout
            for part in ('follow: tiny', 'follow: demo', 'bench:'):
                for strategy in ('ddp', 'zero1', 'fsdp', 'hsdp'):
                    skipped = f'# {part} {strategy} x{count} is skipped: hsdp needs four' in plan
                    self.assertEqual(skipped, strategy == 'hsdp' and count == 2)
                    self.assertIn(f'# {part} {strategy} x{count}', plan)
            self.assertIn('# bench: none x1', plan)
            self.assertIn('--gtest_filter=ParallelGpu*', plan)
            self.assertEqual('parallel.shard=4' in plan, count == 8)

    def test_two_processes_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, 'scaling.json')
            result = script('--device', 'cpu', '--quick', '--sizes', 'tiny', '--time-limit', '200', '--program',
                            PROGRAM, '--out', out)
            self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
            with open(out) as file:
                report = json.load(file)
        self.assertEqual(json.loads(result.stdout), report)
        self.assertTrue(report['ok'])
        rows = {(row['part'], row['name']): row for row in report['rows']}
        for strategy in ('ddp', 'zero1', 'fsdp'):
            self.assertLess(rows['follow', f'tiny {strategy} x2']['loss_error'], 2e-6)
        self.assertIn('four', rows['bench', 'hsdp x2']['message'])
        one, two = rows['bench', 'none x1'], rows['bench', 'fsdp x2']
        self.assertAlmostEqual(two['efficiency'], two['samples_per_s'] / (2 * one['samples_per_s']), places=3)
        self.assertAlmostEqual(two['sent_mb'], two['predicted_mb'], places=3)
        self.assertGreater(two['held_gb'], 0)
        self.assertEqual(rows['faults', 'SIGKILL ddp x2']['exit_codes'], [7, -9])
        self.assertIn('rank 1', rows['faults', 'SIGKILL ddp x2']['message'])

    def fake(self, body, *words):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, 'longship')
            with open(program, 'w') as file:
                file.write(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{body}\n')
            os.chmod(program, 0o755)
            result = script('--device', 'cpu', '--sizes', 'tiny', '--program', program, *words)
        self.assertEqual(result.returncode, 1, result.stderr)
        return json.loads(result.stdout)

    def test_failures_are_red_with_their_message(self):
        report = self.fake('echo "longship: error: broken on purpose"; exit 5')
        self.assertFalse(report['ok'])
        self.assertEqual(len(report['red']), 11)
        for row in report['rows']:
            if row['status'] != 'skipped':
                self.assertEqual(row['status'], 'red', row)
                self.assertIn('broken on purpose', row['message'])
                self.assertIn('5', row['message'])

    def test_success_without_results_is_red(self):
        report = self.fake('exit 0', '--parts', 'follow,bench')
        self.assertEqual(len(report['red']), 8)

    def test_time_limits_hold(self):
        report = self.fake('sleep 100', '--parts', 'follow', '--time-limit', '16')
        self.assertLess(report['seconds'], 20)
        self.assertIn('not done after', report['rows'][0]['message'])
        self.assertIn('were left', report['rows'][1]['message'])
        self.assertEqual(len(report['not_run']), 3)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
