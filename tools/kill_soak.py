#!/usr/bin/env python3
"""Kills a run of several processes again and again, and compares its end with a run that nobody disturbed.

Usage: tools/kill_soak.py [--kills 50] [--program build/bin/longship] [--ranks 2] [--strategy zero1] [--seed 1]
                          [--json FILE]

Needs .venv/bin/torchrun. Trains the tiny Pi0.5 twice under torchrun, with a checkpoint every other step. The first run
is left alone. In the second, SIGKILL ends one rank, all ranks, or torchrun with all ranks, at random moments: half of
them while a checkpoint is being written, some while the processes start, the rest after a random number of new steps.
torchrun starts the ranks again; where it was killed itself, this tool starts the same command again. Afterwards:
  - nothing ended a start but a kill, or the loss of a killed peer (exit code 7);
  - every attempt went on after the step it resumed from, never from a checkpoint older than the newest one written;
  - each epoch has the same order of samples (its hash in train.log, and data.expect_order_sha256);
  - metrics.jsonl has each step once, with the same samples, loss, norm and learning rate, bit for bit;
  - repeated steps had the same loss and norm as the undisturbed run;
  - the last checkpoint has the same weights and state, bit for bit; all checkpoints that are left are sound;
  - no partial folder, temporary file or process is left.
Prints one JSON line with counts. Exit codes: 0 all of this holds, 1 the first thing that does not (the folder of both
runs is kept), 2 usage, 130 interrupted.
"""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCHRUN = os.path.join(ROOT, '.venv/bin/torchrun')
RECIPE = 'configs/pi05/tiny_test.yaml'
SAVE_EVERY = 2      # steps between checkpoints
STEPS_PER_KILL = 5  # steps of the whole run
STUCK_S = 90        # without a new line in the log
POLL_S = 0.002
SAME = ('step', 'loss', 'grad_norm', 'lr', 'epoch', 'num_samples', 'skipped_steps', 'world_size')


class Fault(Exception):
    """Something that must hold does not."""


def require(holds, text):
    if not holds:
        raise Fault(text)


def children(parent):
    """{pid: rank} of the processes that torchrun started."""
    found = {}
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open(f'/proc/{name}/stat') as file:
                fields = file.read().rpartition(')')[2].split()
            if int(fields[1]) != parent or fields[0] == 'Z':
                continue
            with open(f'/proc/{name}/environ', 'rb') as file:
                rank = re.search(rb'(?:^|\0)RANK=(\d+)\0', file.read())
            if rank:
                found[int(name)] = int(rank[1])
        except OSError:
            continue
    return found


def mentioning(text):
    """Processes with `text` in their command line, but for this one."""
    found = []
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f'/proc/{name}/cmdline', 'rb') as file:
                if text.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_for_end(pids):
    deadline = time.time() + 30
    for pid in pids:
        while os.path.exists(f'/proc/{pid}') and time.time() < deadline:
            time.sleep(POLL_S)


class Attempt:
    """What train.log tells of one start."""

    def __init__(self):
        self.resumed = None  # at this step; None: as long as it has not got so far
        self.steps = []      # (step, loss and norm as printed)
        self.committed = []  # steps of checkpoints
        self.orders = {}     # epoch: hash


class Log:
    """Follows train.log, also when a run starts over with a new one."""

    STARTED = re.compile(r'process 0 of \d+, started by')
    RESUMED = re.compile(r'resumed from \S+ at step (\d+)')
    STEP = re.compile(r'info: step (\d+)/\d+  loss (\S+)  grad_norm (\S+)  lr')
    COMMITTED = re.compile(r'checkpoint \S+/step_(\d+) \(')
    ORDER = re.compile(r'order of epoch (\d+): sha256 ([0-9a-f]{64})')

    def __init__(self, path):
        self.path = path
        self.inode = None
        self.position = 0
        self.rest = ''
        self.attempts = []
        self.heard = time.time()

    def poll(self):
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return
        if found.st_ino != self.inode or found.st_size < self.position:
            self.inode, self.position, self.rest = found.st_ino, 0, ''
        if found.st_size == self.position:
            return
        with open(self.path, 'rb') as file:
            file.seek(self.position)
            new = file.read()
        self.position += len(new)
        self.heard = time.time()
        *lines, self.rest = (self.rest + new.decode(errors='replace')).split('\n')
        for line in lines:
            self.take(line)

    def take(self, line):
        if self.STARTED.search(line):
            self.attempts.append(Attempt())
        if not self.attempts:
            return
        last = self.attempts[-1]
        if found := self.RESUMED.search(line):
            last.resumed = int(found[1])
        if found := self.STEP.search(line):
            last.steps.append((int(found[1]), f'{found[2]} {found[3]}'))
            last.resumed = last.resumed or 0
        if found := self.COMMITTED.search(line):
            last.committed.append(int(found[1]))
        if found := self.ORDER.search(line):
            last.orders[int(found[1])] = found[2]

    def num_new_steps(self):
        """Of the attempt under way."""
        return len(self.attempts[-1].steps) if self.attempts else 0

    def step(self):
        """The last one that is known."""
        for attempt in reversed(self.attempts):
            if attempt.resumed is not None:
                return attempt.steps[-1][0] if attempt.steps else attempt.resumed
        return 0


class Job:
    """One run under torchrun."""

    def __init__(self, folder, name, args, settings, max_restarts):
        self.output = os.path.join(folder, name)
        self.console = os.path.join(folder, name + '.console')
        self.log = Log(os.path.join(self.output, 'train.log'))
        self.environment = dict(os.environ, TMPDIR=folder, OMP_NUM_THREADS='1')
        self.command = [TORCHRUN, '--standalone', '--nproc-per-node', str(args.ranks), '--max-restarts',
                        str(max_restarts), '--no-python', args.program, 'train', RECIPE, f'output_dir={self.output}',
                        f'parallel.strategy={args.strategy}', 'data.datasets.0.path=data/pusht_v30',
                        'data.datasets.0.episodes=[0,1,2]', 'data.val_episodes=1', 'train.threads=1',
                        'train.global_batch=8', f'checkpoint.every={SAVE_EVERY}', 'log.every=1',
                        'parallel.timeout_s=60', 'parallel.setup_timeout_s=60', *settings]
        self.torchrun = None

    def start(self):
        with open(self.console, 'ab') as out:
            self.torchrun = subprocess.Popen(self.command, cwd=ROOT, env=self.environment, stdout=out, stderr=out,
                                             stdin=subprocess.DEVNULL, start_new_session=True)

    def ranks(self):
        return children(self.torchrun.pid)

    def kill_everything(self):
        if self.torchrun is None:
            return
        ranks = self.ranks() if self.torchrun.poll() is None else {}
        kill([self.torchrun.pid, *ranks])
        self.torchrun.wait()
        left = mentioning(f'output_dir={self.output}')
        kill(left)
        wait_for_end([*ranks, *left])

    def check_alive(self):
        code = self.torchrun.poll()
        require(code is None, f'torchrun ended with code {code} before all kills were made; see {self.console}')
        require(time.time() - self.log.heard < STUCK_S, f'nothing new in {self.log.path} for {STUCK_S} s')

    def finish(self):
        self.log.heard = time.time()
        while self.torchrun.poll() is None:
            self.log.poll()
            require(time.time() - self.log.heard < STUCK_S, f'nothing new in {self.log.path} for {STUCK_S} s')
            time.sleep(0.05)
        self.log.poll()
        code = self.torchrun.returncode
        require(code == 0, f'torchrun ended with code {code}; see {self.console}')

    def partials(self):
        """(steps being written, steps being deleted)."""
        writes, whole = [], []
        try:
            for entry in os.scandir(os.path.join(self.output, 'checkpoints')):
                found = re.fullmatch(r'step_(\d+)(\.partial-\d+)?', entry.name)
                if found:
                    (writes if found[2] else whole).append(int(found[1]))
        except FileNotFoundError:
            pass
        newest = max(whole, default=-1)
        return [s for s in writes if s > newest], [s for s in writes if s < newest]


class Killer:
    def __init__(self, job, rng, num_steps):
        self.job, self.rng, self.num_steps = job, rng, num_steps
        self.counts = dict.fromkeys(['one', 'all', 'torchrun', 'during_saves', 'during_deletions', 'during_starts',
                                     'left_partials'], 0)

    def wait_for_attempt(self, number):
        while len(self.job.log.attempts) < number:
            self.job.log.poll()
            self.job.check_alive()
            time.sleep(POLL_S)

    def wait_for(self, condition):
        while not condition():
            self.job.check_alive()
            time.sleep(POLL_S)
            self.job.log.poll()

    def wait_for_moment(self, kills_left):
        """Until the next kill; which kind of moment it is."""
        log, rng = self.job.log, self.rng
        kind = rng.choices(['save', 'steps', 'start'], [50, 40, 10])[0]
        if kind == 'start':
            time.sleep(rng.uniform(0, 1))
            return kind
        # All steps of the run are used, and not before the last kill. A few of them are lost with each kill.
        left = self.num_steps - log.step()
        wanted = rng.randint(1, max(1, left // kills_left + 2)) if left > 3 * STEPS_PER_KILL else 1
        self.wait_for(lambda: log.num_new_steps() >= wanted)
        if kind == 'save':
            self.wait_for(lambda: self.job.partials()[0])
            time.sleep(rng.choice([0, rng.uniform(0, 0.03), rng.uniform(0, 0.15)]))
        else:
            time.sleep(rng.uniform(0, 0.1))
        return kind

    def strike(self, kind):
        """Kills; returns the pids."""
        job = self.job
        victims = job.ranks()
        whom = self.rng.choices(['one', 'all', 'torchrun'], [45, 35, 20])[0]
        if not victims:  # between two starts
            whom = 'torchrun'
        if whom == 'one':
            victims = [self.rng.choice(sorted(victims))]
        writes, deletes = job.partials()
        if whom == 'torchrun':
            kill([job.torchrun.pid])
        kill(victims)
        self.counts[whom] += 1
        self.counts['during_starts'] += kind == 'start'
        self.counts['during_saves'] += bool(writes) and kind != 'start'
        self.counts['during_deletions'] += bool(deletes) and kind != 'start'
        return whom, victims

    def run(self, num_kills):
        job = self.job
        job.start()
        for number in range(1, num_kills + 1):
            kind = self.wait_for_moment(num_kills - number + 1)
            job.log.poll()
            begun = len(job.log.attempts)
            whom, victims = self.strike(kind)
            job.log.heard = time.time()
            if whom == 'torchrun':
                job.torchrun.wait()
                wait_for_end(victims)
                job.log.poll()
                self.counts['left_partials'] += bool(job.partials()[0])
                begun = len(job.log.attempts)
                job.start()
            print(f'\rkill {number}/{num_kills} at step {job.log.step()}/{self.num_steps} ', end='', file=sys.stderr)
            # An attempt that ended before it opened its log is none.
            if kind != 'start' or self.rng.random() < 0.5:
                self.wait_for_attempt(begun + 1)
        print(file=sys.stderr)
        job.finish()


def check_ends(job, num_kills):
    """No start has ended otherwise than by a kill, or by the loss of a killed peer."""
    with open(job.console, errors='replace') as file:
        codes = re.findall(r'failed \(exitcode: (-?\d+)\)', file.read())
    require(set(codes) <= {'-9', '7'}, f'a rank ended with a code other than -9 and 7; see {job.console}')
    require(len(job.log.attempts) <= num_kills + 1, f'{len(job.log.attempts)} starts for {num_kills} kills')


def records(job):
    with open(os.path.join(job.output, 'metrics.jsonl')) as file:
        return [json.loads(line) for line in file]


def check_log(plain, faulted):
    """Every attempt goes on where its checkpoint is, with the numbers of the undisturbed run."""
    expected = dict(plain.log.attempts[0].steps)
    orders = plain.log.attempts[0].orders
    committed = 0
    for number, attempt in enumerate(faulted.log.attempts):
        if attempt.resumed is None:
            continue
        name = f'attempt {number} (resumed at step {attempt.resumed})'
        require(attempt.resumed >= committed, f'{name}: checkpoint {committed} had been written before')
        for i, (step, text) in enumerate(attempt.steps):
            require(step == attempt.resumed + 1 + i, f'{name}: step {step} where {attempt.resumed + 1 + i} is due')
            require(text == expected[step], f'{name}: step {step}: loss and norm {text}, undisturbed {expected[step]}')
        for epoch, value in attempt.orders.items():
            require(value == orders[epoch], f'{name}: order of epoch {epoch} is {value}, undisturbed {orders[epoch]}')
        committed = max([committed, attempt.resumed, *attempt.committed])


def check_metrics(plain, faulted, num_steps):
    want, found = records(plain), records(faulted)
    require([r['step'] for r in found] == list(range(1, num_steps + 1)), 'metrics.jsonl has not each step once')
    for a, b in zip(want, found):
        require(b['num_samples'] == 8 * b['step'], f'step {b["step"]}: num_samples {b["num_samples"]}')
        for key in SAME:
            require(a[key] == b[key], f'step {a["step"]}: {key} is {b[key]}, undisturbed {a[key]}')


def sha256(path):
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def check_checkpoints(program, plain, faulted, num_steps):
    ends = [os.path.join(job.output, 'checkpoints', f'step_{num_steps}') for job in (plain, faulted)]
    state = sorted(n for n in os.listdir(os.path.join(ends[0], 'state')) if n.endswith('.safetensors'))
    for name in ['model.safetensors', *(os.path.join('state', n) for n in state)]:
        sums = [sha256(os.path.join(end, name)) for end in ends]
        require(sums[0] == sums[1], f'{name} of step {num_steps}: SHA-256 {sums[1]}, undisturbed {sums[0]}')
    for words in (['verify', faulted.output], ['diff', *ends]):
        done = subprocess.run([program, 'checkpoint', *words], capture_output=True, text=True, cwd=ROOT)
        require(done.returncode == 0,
                f'longship checkpoint {" ".join(words)}: code {done.returncode}\n{done.stdout}{done.stderr}')
    latest = os.path.realpath(os.path.join(faulted.output, 'latest'))
    require(latest == os.path.realpath(ends[1]), f'latest points at {latest}')


def check_nothing_left(folder, job):
    for where, folders, files in os.walk(job.output):
        left = [name for name in folders + files if '.partial' in name or '.invalid' in name]
        require(not left, f'left in {where}: {" ".join(left)}')
    left = mentioning(folder)
    require(not left, f'processes left: {left}')


def soak(args, folder, jobs):
    rng = random.Random(args.seed)
    num_steps = STEPS_PER_KILL * (args.kills + 3)
    plane = [f'parallel.reduce_dtype={rng.choice(["fp32", "bf16"])}']
    if args.strategy in ('fsdp', 'hsdp'):
        plane.append(f'parallel.reshard={rng.choice(["after_forward", "never", "after_optimizer_step"])}')
    else:
        plane.append(f'parallel.bucket_mb={rng.choice([0.01, 0.05, 25])}')
    micro = rng.choice([m for m in (1, 2, 4) if m * args.ranks <= 8])
    same = [f'train.steps={num_steps}', f'train.micro_batch={micro}', f'checkpoint.keep_last={rng.choice([1, 2, 3])}',
            *plane]
    # Of these the results do not depend.
    feeds = [[f'data.workers={rng.choice([1, 2])}', f'data.prefetch={rng.choice([1, 2, 4])}'] for _ in range(2)]
    start = time.time()
    plain = Job(folder, 'plain', args, same + feeds[0], 0)
    jobs.append(plain)
    plain.start()
    plain.finish()
    plain_s = time.time() - start
    require(len(plain.log.attempts) == 1, f'the undisturbed run needed {len(plain.log.attempts)} starts')
    orders = plain.log.attempts[0].orders
    expect = ','.join(orders[epoch] for epoch in sorted(orders))
    start = time.time()
    faulted = Job(folder, 'faulted', args, same + feeds[1] + [f'data.expect_order_sha256=[{expect}]'], args.kills)
    jobs.append(faulted)
    killer = Killer(faulted, rng, num_steps)
    killer.run(args.kills)
    faulted_s = time.time() - start
    check_ends(faulted, args.kills)
    check_log(plain, faulted)
    check_metrics(plain, faulted, num_steps)
    check_checkpoints(args.program, plain, faulted, num_steps)
    check_nothing_left(folder, faulted)
    attempts = faulted.log.attempts
    return {'strategy': args.strategy, 'ranks': args.ranks, 'seed': args.seed, 'kills': args.kills, **killer.counts,
            'restarts': len(attempts) - 1, 'steps': num_steps,
            'steps_repeated': sum(len(a.steps) for a in attempts) - num_steps, 'epochs': len(orders),
            'settings': same[1:] + feeds[1], 'plain_s': round(plain_s, 1), 'faulted_s': round(faulted_s, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--program', default='build/bin/longship')
    parser.add_argument('--ranks', type=int, default=2, choices=[2, 4, 8])
    parser.add_argument('--strategy', default='zero1', choices=['ddp', 'zero1', 'fsdp', 'hsdp'])
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', help='also write the counts to this file')
    args = parser.parse_args()
    args.program = os.path.abspath(os.path.join(ROOT, args.program))
    for path in (args.program, TORCHRUN):
        if not os.path.exists(path):
            parser.error(f'{path} does not exist')
    folder = tempfile.mkdtemp(prefix='longship_kill_soak_')
    jobs = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 1
    try:
        result = soak(args, folder, jobs)
        line = json.dumps(result)
        print(line)
        if args.json:
            with open(args.json, 'w') as file:
                file.write(line + '\n')
        code = 0
    except Fault as fault:
        print(f'kill_soak: {fault}\nboth runs are in {folder}', file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for job in jobs:
            job.kill_everything()
        if code != 1:
            shutil.rmtree(folder)
    sys.exit(code)


if __name__ == '__main__':
    main()
