#!/usr/bin/env python3
"""Training on the GPUs of this machine, in ten minutes and one JSON: correctness, speed and faults.

Usage: scripts/gpu_scaling.sh [options]

Parts, each a list of rows in the JSON:
  follow  `longship train`, fp32, 10 steps on all GPUs with every strategy, with and without a captured step, against
          the losses of one GPU (sizes: tiny and demo of Pi0.5, or the demos of GR00T)
  tests   the test binaries beside the program: longship_dist_tests (NcclGpu, DeviceClockGpu, PeerTransportGpu) and, on
          two GPUs, longship_train_parallel_tests (ParallelGpu: bf16, graphs bit for bit, resumes, a killed rank)
  bench   `longship bench train configs/pi05/full.yaml`, 32 samples a GPU, at 1, 2, ... GPUs with every strategy:
          samples/s, share of what N GPUs do alone, communication that is exposed, bytes sent, memory
  faults  SIGKILL of one process: the others end with exit code 7 and name it; SIGTERM of one: all finish the step,
          save once and end with exit code 130

Strategies are ddp, zero1, fsdp and, from four GPUs on, hsdp (two copies of the model). Runs start in a fixed order and
share the machine where they need fewer GPUs than it has; `beside` names what ran at the same time. Every run has a time
limit of its own, and none starts that would not fit into --time-limit.

A row is green, red (with its message), skipped (with the reason: nothing to do here) or not_run (no time was left). The
last thing on standard output is the JSON; progress goes to standard error.

Exit codes: 0 no row is red or not_run, 1 some are, 2 usage, 130 interrupted.
"""
import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from rank_processes import ROOT, Fault, Ranks, kill_group, last_words, require, require_success

STEPS = 10
FP32_BOUND = 2e-6  # of losses, relative: kFp32LossBound of tests/train_parallel/bounds.h
MARGIN_S = 5       # of the time limit, kept for the report
PEER, INTERRUPTED = 7, 130  # docs/errors.md
PARTS = ('follow', 'tests', 'bench', 'faults')
PI05 = ['model.tokenizer=data/tokenizers/pi05_demo.model', 'model.parity=openpi']
GROOT = ['model.tokenizer=data/tokenizers/groot_demo.json', 'perf.feature_cache=0']
SIZES = {
    'tiny': ('configs/pi05/tiny_test.yaml', PI05),
    'demo': ('configs/pi05/pusht_demo.yaml', PI05),
    'groot_n16': ('configs/groot_n16/pusht_demo.yaml', GROOT),
    'groot_n17': ('configs/groot_n17/pusht_demo.yaml', GROOT),
}
HSDP_NEEDS_FOUR = 'hsdp needs four processes: two copies of the model, each shared by two'


def losses_of(folder):
    with open(os.path.join(folder, 'run/metrics.jsonl')) as file:
        losses = [json.loads(line)['loss'] for line in file]
    require(len(losses) == STEPS, f'metrics.jsonl has {len(losses)} of {STEPS} steps')
    return losses


class Job:
    """One run: a command, how many GPUs it takes, and what to make of its end."""

    def __init__(self, part, name, places, command, estimate_s, limit_s, ranks=None, **about):
        self.part, self.name, self.places, self.command = part, name, places, command
        self.ranks = places if ranks is None else ranks
        self.estimate_s, self.limit_s = estimate_s, limit_s
        self.row = {'part': part, 'name': name, 'status': 'not_run', 'gpus': places, **about}

    def execute(self, folder, gpus, device, limit_s):
        """Fills self.row; raises Fault."""
        ranks = Ranks(folder, self.filled(folder), self.ranks, gpus, device)
        try:
            self.watch(ranks, folder, limit_s, time.time() + limit_s)
        finally:
            ranks.kill()

    def watch(self, ranks, folder, limit_s, deadline):
        require_success(ranks, limit_s, deadline)
        self.finish(folder)

    def filled(self, folder):
        return [word.replace('FOLDER', folder) for word in self.command]

    def finish(self, folder):
        pass


class Follow(Job):
    losses = None

    def finish(self, folder):
        self.losses = losses_of(folder)
        require(all(math.isfinite(loss) for loss in self.losses), f'losses {self.losses}')


class Bench(Job):
    def finish(self, folder):
        with open(os.path.join(folder, 'report.json')) as file:
            report = json.load(file)
        parallel, profile = report.get('parallel') or {}, report.get('profile') or {}
        memory = report.get('memory') or {}
        self.row.update(
            samples_per_s=report['samples_per_s'], ms_per_step=report['ms_per_step']['median'], batch=report['batch'],
            graph_nodes=report.get('graph_nodes'), sent_mb=parallel.get('sent_mb', 0),
            predicted_mb=parallel.get('predicted_mb', 0), comm_ms=parallel.get('comm_ms', 0),
            exposed_ms=parallel.get('exposed_ms', 0),
            trace_communication_ms=profile.get('communication_ms'),
            trace_exposed_ms=profile.get('communication_exposed_ms'),
            reserved_peak_gb=gb((memory.get('allocator') or {}).get('reserved_peak')),
            held_gb=gb(((memory.get('plan') or {}).get('total') or {}).get('held')),
            planned_gb=gb(((memory.get('plan') or {}).get('total') or {}).get('planned')),
            loss_first=report['loss']['first'], loss_last=report['loss']['last'])
        require(all(math.isfinite(loss) for loss in report['losses']), f'losses {report["losses"]}')


def gb(number):
    return None if number is None else round(number / 1e9, 3)


class GoogleTests(Job):
    """Rows of a test binary, one a test."""

    def watch(self, ranks, folder, limit_s, deadline):
        self.cases = []
        finished = ranks.wait(deadline)
        path = os.path.join(folder, 'tests.json')
        if os.path.exists(path):
            with open(path) as file:
                self.take(json.load(file))
        code = ranks.codes()[0]
        require(finished, f'not done after {limit_s:.0f} s; {last_words([ranks.text(0)])}')
        failed = any(case['status'] == 'red' for case in self.cases)
        require(code == 0 or failed, f'exit code {code}: {last_words([ranks.text(0)])}')
        require(self.cases, 'no test has these names; the binary is older than this script, or has no CUDA')
        require(not failed, 'tests failed: ' + ', '.join(c['name'] for c in self.cases if c['status'] == 'red'))

    def take(self, report):
        for suite in report.get('testsuites', []):
            for test in suite.get('testsuite', []):
                case = {'part': self.part, 'name': f'{suite["name"]}.{test["name"]}', 'status': 'green',
                        'gpus': self.places, 'seconds': float(test.get('time', '0s').rstrip('s'))}
                if test.get('failures'):
                    case.update(status='red', message=test['failures'][0].get('failure', '')[:800])
                elif test.get('result') == 'SKIPPED':
                    more = 'Four' in test['name'] and self.places < 4
                    case.update(status='skipped' if more else 'red', message=f'skipped itself with {self.places} GPUs')
                self.cases.append(case)


class Killed(Job):
    """A signal to the last process after some steps."""

    def __init__(self, *args, signal_number, **about):
        super().__init__(*args, **about)
        self.signal_number = signal_number

    def watch(self, ranks, folder, limit_s, deadline):
        metrics = os.path.join(folder, 'run/metrics.jsonl')
        while not (os.path.exists(metrics) and os.path.getsize(metrics) > 2000):
            codes = ranks.codes()
            if any(code is not None for code in codes):
                words = last_words([ranks.text(r) for r in range(self.ranks)])
                raise Fault(f'ended before the signal, exit codes {codes}: {words}')
            require(time.time() < deadline, f'no step after {limit_s:.0f} s; {last_words([ranks.text(0)])}')
            time.sleep(0.02)
        victim = self.ranks - 1
        start = time.time()
        os.kill(ranks.processes[victim].pid, self.signal_number)
        finished = ranks.wait(deadline)
        codes = ranks.codes()
        self.row.update(exit_codes=codes, ended_after_s=round(time.time() - start, 2))
        others = [ranks.text(r) for r in range(self.ranks) if r != victim]
        require(finished, f'some did not end within {limit_s:.0f} s, exit codes {codes}; {last_words(others)}')
        if self.signal_number == signal.SIGTERM:
            require(set(codes) == {INTERRUPTED}, f'exit codes {codes}, expected {INTERRUPTED}; {last_words(others)}')
            require(os.path.isdir(os.path.join(folder, 'run/latest')), 'no checkpoint was saved')
            return
        require(set(codes[:-1]) == {PEER},
                f'exit codes {codes}, expected {PEER} of all but the last; {last_words(others)}')
        for r, text in enumerate(others):
            require(f'rank {victim}' in text, f'rank {r} does not name rank {victim}: {last_words([text])}')
        self.row['message'] = last_words(others)


def strategies_for(count):
    """(strategy, its overrides) that make sense for so many processes."""
    out = [(name, [f'parallel.strategy={name}']) for name in ('ddp', 'zero1', 'fsdp')]
    if count >= 4:
        out.append(('hsdp', ['parallel.strategy=hsdp', f'parallel.shard={count // 2}']))
    return out


class Plan:
    """All jobs in the order in which they start, and rows of what is left out."""

    def __init__(self, args, count):
        self.args, self.count, self.jobs, self.rows = args, count, [], []
        self.gpu = args.device == 'cuda'
        order = [self.follow, self.bench_all, self.tests, self.bench_fewer, self.faults]
        for add in order:
            if add.__name__.split('_')[0] in args.parts:
                add()

    def train(self, size, more):
        recipe, settings = SIZES[size]
        return [self.args.program, 'train', recipe, 'output_dir=FOLDER/run', f'train.device={self.args.device}',
                'data.datasets.0.path=data/pusht_v30', *settings, 'train.dtype=fp32', 'train.tf32=false',
                'train.deterministic=true', 'train.threads=1', 'data.workers=1', 'log.every=1', 'log.tensorboard=false',
                'eval.open_loop=false', 'checkpoint.every=null', 'parallel.setup_timeout_s=60', *more,
                *self.args.override]

    def skip(self, part, name, reason):
        self.rows.append({'part': part, 'name': name, 'status': 'skipped', 'message': reason})

    def follow(self):
        batch = [f'train.steps={STEPS}', f'train.global_batch={2 * self.count}', 'train.micro_batch=1']
        modes = ['none'] if not self.gpu else ['full_iteration'] if self.args.quick else ['none', 'full_iteration']
        for size in self.args.sizes:
            for strategy, settings in strategies_for(self.count):
                for mode in modes:
                    graph = '' if mode == 'none' else ' graph'
                    self.jobs.append(Follow('follow', f'{size} {strategy} x{self.count}{graph}', self.count, self.train(
                        size, [*batch, *settings, f'train.cuda_graph={mode}', 'parallel.timeout_s=60']), 10, 90,
                                            size=size, strategy=strategy, cuda_graph=mode))
            if self.count < 4:
                self.skip('follow', f'{size} hsdp x{self.count}', HSDP_NEEDS_FOUR)
        for size in self.args.sizes:
            self.jobs.append(Follow('follow', f'{size} one process', 1, self.train(
                size, [*batch, 'train.cuda_graph=none']), 10, 90, size=size, strategy='none', cuda_graph='none'))

    def tests(self):
        if not self.gpu:
            return self.skip('tests', 'test binaries', 'need CUDA devices')
        folder = os.path.dirname(os.path.abspath(self.args.program))
        for binary, filters, places, estimate, limit in (
                ('longship_dist_tests', 'NcclGpu*:DeviceClockGpu*:PeerTransportGpu*', min(self.count, 4), 30, 150),
                ('longship_train_parallel_tests', 'ParallelGpu*', 2, 150, 400)):
            if self.args.quick and 'parallel' in binary:
                self.skip('tests', binary, '--quick')
                continue
            self.jobs.append(GoogleTests('tests', binary, places, [
                os.path.join(folder, binary), f'--gtest_filter={filters}', '--gtest_output=json:FOLDER/tests.json'],
                                         estimate, limit, ranks=1))

    def bench(self, count, strategy, settings, which=''):
        per_gpu, size = (32, ['configs/pi05/full.yaml', 'model.action_dim=14']) if self.gpu else (
            2, ['configs/pi05/tiny_test.yaml', 'model.action_dim=7', 'train.micro_batch=1', 'train.threads=1'])
        steps, warmup = (6, 3) if self.args.quick else (12, 5)
        command = [self.args.program, 'bench', 'train', *size, f'train.device={self.args.device}',
                   f'train.global_batch={per_gpu * count}', *settings, *self.args.override,
                   '--synthetic', '60' if self.gpu else '20', '--steps', str(steps), '--warmup', str(warmup),
                   '--json', 'FOLDER/report.json']
        self.jobs.append(Bench('bench', f'{strategy} x{count}{which}', count, command, 45 if self.gpu else 5, 150,
                               strategy=strategy))

    def bench_all(self):
        chosen = strategies_for(self.count)
        for strategy, settings in chosen[:1] + chosen[2:3] if self.args.quick else chosen:
            self.bench(self.count, strategy, settings)
        if self.count < 4:
            self.skip('bench', f'hsdp x{self.count}', HSDP_NEEDS_FOUR)
        if self.args.quick or self.count == 2:
            self.singles()

    def singles(self):
        """Every GPU alone, all at a time: they differ by a percent, and a common step waits for the slowest."""
        for number in range(self.count if self.gpu and not self.args.quick else 1):
            self.bench(1, 'none', [], f' #{number + 1}' if number else '')

    def bench_fewer(self):
        if self.args.quick or self.count == 2:
            return
        # Four and two at a time fill a machine of eight, one at a time the rest.
        waiting = {n: strategies_for(n) for n in (4, 2) if n < self.count}
        while any(waiting.values()):
            for n, left in waiting.items():
                if left:
                    self.bench(n, *left.pop(0))
        self.singles()
        self.skip('bench', 'hsdp x2', HSDP_NEEDS_FOUR)

    def faults(self):
        few = max(2, self.count // 2)
        cases = [('ddp', signal.SIGKILL, few), ('fsdp', signal.SIGKILL, few), ('zero1', signal.SIGTERM, few)]
        if self.count >= 4:
            cases.append(('hsdp', signal.SIGKILL, max(4, few)))
        else:
            self.skip('faults', 'hsdp', HSDP_NEEDS_FOUR)
        for strategy, number, n in cases[:1] if self.args.quick else cases:
            settings = dict(strategies_for(n))[strategy]
            command = self.train('tiny', [*settings, 'train.steps=100000', f'train.global_batch={2 * n}',
                                          'train.micro_batch=1', 'parallel.timeout_s=20'])
            self.jobs.append(Killed('faults', f'{signal.Signals(number).name} {strategy} x{n}', n, command, 20, 120,
                                    signal_number=number, strategy=strategy))


class Scheduler:
    """Starts the jobs in their order, each as soon as enough GPUs are free and time is left."""

    def __init__(self, jobs, count, args, folder):
        self.jobs, self.args, self.folder = jobs, args, folder
        self.free = list(range(count))
        self.changed = threading.Condition()
        self.running = []
        self.start = time.time()

    def left(self):
        return self.args.time_limit - (time.time() - self.start) - MARGIN_S

    def run(self):
        threads = []
        for number, job in enumerate(self.jobs):
            with self.changed:
                while len(self.free) < job.places or (self.args.serial and self.running):
                    self.changed.wait(0.2)
                left = self.left()
                if left < job.estimate_s:
                    job.row['message'] = (f'needs about {job.estimate_s} s, {max(left, 0):.0f} s of '
                                          f'--time-limit {self.args.time_limit:g} were left')
                    continue
                gpus = [self.free.pop(0) for _ in range(job.places)]
                for other in self.running:
                    other.row.setdefault('beside', []).append(job.name)
                if self.running:
                    job.row['beside'] = [other.name for other in self.running]
                self.running.append(job)
            thread = threading.Thread(target=self.one, args=(number, job, gpus, min(job.limit_s, left)), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)

    def one(self, number, job, gpus, limit_s):
        folder = os.path.join(self.folder, f'{number:02d}')
        os.makedirs(folder)
        start = time.time()
        try:
            job.execute(folder, gpus, self.args.device, limit_s)
            job.row['status'] = 'green'
        except Fault as fault:
            job.row.update(status='red', message=str(fault))
        except Exception as error:  # a report without its numbers, a program that cannot start
            job.row.update(status='red', message=f'{type(error).__name__}: {error}')
        job.row['seconds'] = round(time.time() - start, 1)
        say(job.row)
        with self.changed:
            self.free = sorted(self.free + gpus)
            self.running.remove(job)
            self.changed.notify_all()


def say(row):
    colour = {'red': '\033[31m', 'green': '\033[32m'}.get(row['status'], '') if sys.stderr.isatty() else ''
    words = f'{row["status"]:<8}{row["part"]:<8}{row["name"]:<34}{row.get("seconds", 0):6.1f} s  '
    if 'samples_per_s' in row:
        words += f'{row["samples_per_s"]:.1f} samples/s  '
    print(f'{colour}{words}{row.get("message", "")}{colour and chr(27) + "[0m"}', file=sys.stderr, flush=True)


def compare_losses(jobs):
    """Every run of a size against the one of a single process."""
    follow = [job for job in jobs if isinstance(job, Follow)]
    single = {job.row['size']: job.losses for job in follow if job.row['strategy'] == 'none'}
    eager = {(job.row['size'], job.row['strategy']): job.losses for job in follow if job.row['cuda_graph'] == 'none'}
    for job in follow:
        row, one = job.row, single.get(job.row['size'])
        if row['strategy'] == 'none' or not job.losses:
            continue
        if not one:
            row.update(status='red', message='there are no losses of one process to compare with')
            continue
        row['loss_error'] = max(abs(a - b) / abs(b) for a, b in zip(job.losses, one))
        row['bound'] = FP32_BOUND
        other = eager.get((row['size'], row['strategy']))
        if row['cuda_graph'] != 'none' and other:
            row['equals_eager'] = job.losses == other
        if not row['loss_error'] <= FP32_BOUND:
            worst = max(range(STEPS), key=lambda i: abs(job.losses[i] - one[i]) / abs(one[i]))
            row.update(status='red', message=f'step {worst + 1}: loss {job.losses[worst]!r}, one process has '
                                             f'{one[worst]!r}: {row["loss_error"]:.2g} of at most {FP32_BOUND:g}')


def add_efficiency(jobs):
    """Of as many times the mean of what the GPUs do alone."""
    rows = [job.row for job in jobs if isinstance(job, Bench) and 'samples_per_s' in job.row]
    alone = [row['samples_per_s'] for row in rows if row['gpus'] == 1]
    for row in rows:
        if alone:
            row['efficiency'] = round(row['samples_per_s'] / (row['gpus'] * sum(alone) / len(alone)), 4)


def report_of(plan, args, seconds, names):
    compare_losses(plan.jobs)
    add_efficiency(plan.jobs)
    rows = []
    for job in plan.jobs:
        rows += [job.row, *getattr(job, 'cases', [])]
    rows += plan.rows
    named = {status: [f'{row["part"]}: {row["name"]}' for row in rows if row['status'] == status]
             for status in ('red', 'not_run')}
    program = subprocess.run([args.program, '--version'], capture_output=True, text=True, check=False)
    return {'ok': not any(named.values()), **named, 'device': args.device, 'gpus': plan.count, 'gpu_names': names,
            'longship': program.stdout.split('\n')[0], 'quick': args.quick, 'overrides': args.override,
            'seconds': round(seconds, 1), 'time_limit_s': args.time_limit, 'rows': rows}


def gpu_names():
    if shutil.which('nvidia-smi') is None:
        return []
    found = subprocess.run(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'], capture_output=True, text=True,
                           check=False)
    return [line.strip() for line in found.stdout.splitlines() if line.strip()] if found.returncode == 0 else []


def print_plan(plan):
    for job in plan.jobs:
        places = f'{job.ranks} process{"es" if job.ranks > 1 else ""} on {job.places} of the {plan.count} devices'
        print(f'# {job.part}: {job.name} ({places}, at most {job.limit_s} s)\n' + ' '.join(job.command))
    for row in plan.rows:
        print(f'# {row["part"]}: {row["name"]} is skipped: {row["message"]}')


def parse():
    parser = argparse.ArgumentParser(prog='scripts/gpu_scaling.sh', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)

    def words(allowed):
        def check(text):
            chosen = [word for word in text.split(',') if word]
            wrong = [word for word in chosen if word not in allowed]
            if wrong or not chosen:
                raise argparse.ArgumentTypeError(f'{text!r}: choose from {", ".join(allowed)}')
            return chosen
        return check

    parser.add_argument('--program', default='build/bin/longship', metavar='PATH',
                        help='longship; test binaries lie beside it (default: %(default)s)')
    parser.add_argument('--out', metavar='FILE', help='write the JSON to this file too')
    parser.add_argument('--quick', action='store_true', help='fewer rows: captured steps only, speed of ddp and fsdp '
                        'on all GPUs and of one, 6 timed steps, one fault, no ParallelGpu tests')
    parser.add_argument('--time-limit', type=float, default=600, metavar='S',
                        help='seconds in all (default: %(default)s)')
    parser.add_argument('--parts', type=words(PARTS), default=list(PARTS), help='comma-separated (default: all)')
    parser.add_argument('--sizes', type=words(tuple(SIZES)), default=['tiny', 'demo'],
                        help=f'of the part follow, from {",".join(SIZES)} (default: tiny,demo)')
    parser.add_argument('--override', action='append', default=[], metavar='KEY=VALUE',
                        help='of the recipe of every training and bench run; may be repeated')
    parser.add_argument('--serial', action='store_true', help='one run at a time, whatever is free')
    parser.add_argument('--gpus', type=int, metavar='N', help='use so many: 2, 4 or 8 (default: as many as there are)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                        help='cpu: the same over Gloo with the smallest model, to try the script out')
    parser.add_argument('--dry-run', action='store_true', help='print the commands in their order and start nothing')
    parser.add_argument('--keep', metavar='FOLDER', help='run in this new folder and keep it; default: a temporary one')
    args = parser.parse_args()
    names = gpu_names() if args.device == 'cuda' else []
    count = args.gpus
    if count is None:
        count = next((n for n in (8, 4, 2) if n <= len(names)), 2 if args.device == 'cpu' else 0)
    if count not in (2, 4, 8):
        parser.error(f'{count or len(names)} CUDA devices; 2, 4 or 8 are needed')
    if args.device == 'cuda' and count > len(names) and not args.dry_run:
        parser.error(f'--gpus {count}: nvidia-smi shows {len(names)}')
    if not args.dry_run and not os.access(os.path.join(ROOT, args.program), os.X_OK):
        parser.error(f'{args.program}: no such program; build it with scripts/build.sh, or give --program')
    args.program = args.program if args.dry_run else os.path.join(ROOT, args.program)
    if args.keep and os.path.exists(args.keep):
        parser.error(f'--keep {args.keep}: exists')
    return args, count, names


def main():
    args, count, names = parse()
    plan = Plan(args, count)
    if args.dry_run:
        print_plan(plan)
        return 0
    folder = os.path.abspath(args.keep) if args.keep else tempfile.mkdtemp(prefix='gpu_scaling_')
    os.makedirs(folder, exist_ok=True)
    scheduler = Scheduler(plan.jobs, count, args, folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        scheduler.run()
        report = report_of(plan, args, time.time() - scheduler.start, names)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        with Ranks.lock:
            Ranks.closed = True
            for process in Ranks.alive:
                kill_group(process)
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(report, indent=1) + '\n'
    if args.out:
        with open(args.out + '.partial', 'w') as file:
            file.write(text)
        os.replace(args.out + '.partial', args.out)
    for row in report['rows']:
        if row['status'] in ('red', 'not_run'):
            say(row)
    print(text, end='')
    return 0 if report['ok'] else 1


if __name__ == '__main__':
    sys.exit(main())
