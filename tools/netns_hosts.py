#!/usr/bin/env python3
"""Trains on two and three 'hosts', network namespaces of this machine, and cuts and slows the links between them.

Usage: tools/netns_hosts.py [--program build/bin/longship] [--json FILE] [--only NAME[,NAME...]]

Needs root, ip and tc, and .venv/bin/torchrun. Each host is a namespace with its own loopback and one link to a bridge,
which has a namespace of its own; nothing of the machine's own network is touched. Namespaces and processes go away at
the end, after a failure and on SIGINT and SIGTERM too; what a killed run has left, the next one removes. Scenarios:
  torchrun_2, torchrun_3   rendezvous of torchrun (c10d) over 2 and 3 hosts: the losses of as many ranks on one host
  plain_2, plain_3         the same with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment
  delay                    100 ms more for the way to one host and back: the same losses, slower. By netem where the
                           kernel has it, otherwise by a pair of tap devices and a loop that holds every frame back
  rate                     4 Mbit/s for one host (tbf): the same losses, slower
  cut_1, cut_0             the cable of host 1, of host 0 (with rank 0 and the store) is cut in the middle of a step
  down_1                   the interface of host 1 is set down, as its own host sees it
  cut_1_save, cut_0_save   the cable is cut while a checkpoint is being written
  absent_1, absent_0       a host never comes: nothing is started on it
  gone_0                   the host of rank 0 is not in the network at all
For each scenario the documented exit code and message of every rank are required, and that all end in time. Prints one
JSON line with result and seconds of each. Exit codes: 0 all hold, 1 at least one does not (the folder of the runs is
kept), 2 usage, 130 interrupted.
"""
import argparse
import fcntl
import heapq
import json
import os
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCHRUN = os.path.join(ROOT, '.venv/bin/torchrun')
PREFIX = 'longship-'
PORT = 29541
STEPS = 6
TIMEOUT_S = 10  # parallel.timeout_s
SETUP_S = 15    # parallel.setup_timeout_s
GRACE_S = 15    # for what a rank still waits for, hears and writes after that
RUN_S = 240     # of a run to the end
DELAY_S = 0.1   # there and back
RATE = '4mbit'


class Fault(Exception):
    """Something that must hold does not."""


def require(holds, text):
    if not holds:
        raise Fault(text)


def ip(*words, check=True):
    done = subprocess.run(['ip', *words], capture_output=True, text=True)
    require(not check or done.returncode == 0, f'ip {" ".join(words)}: {done.stderr.strip()}')
    return done.returncode == 0


def remove_namespaces(owned_by):
    """Those of the processes for which owned_by(pid) holds, with all links in them."""
    done = subprocess.run(['ip', 'netns', 'list'], capture_output=True, text=True)
    for name in (line.split()[0] for line in done.stdout.splitlines() if line.strip()):
        found = re.fullmatch(PREFIX + r'(\d+)-\w+', name)
        if found and owned_by(int(found[1])):
            pids = subprocess.run(['ip', 'netns', 'pids', name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            ip('netns', 'del', name, check=False)


class Relay(threading.Thread):
    """Two tap devices, and every frame between them so much later."""

    def __init__(self, names, delay_s):
        super().__init__(daemon=True)
        self.fds = [self.tap(name) for name in names]
        self.delay_s = delay_s
        self.ended = threading.Event()

    @staticmethod
    def tap(name):
        fd = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH14x', name.encode(), 0x0002 | 0x1000))  # TUNSETIFF: tap, no header
        return fd

    def run(self):
        waiting, count = [], 0
        while not self.ended.is_set():
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
            readable, _, _ = select.select(self.fds, [], [], min(wait, 0.2))
            for fd in readable:
                try:
                    frame = os.read(fd, 65536)
                except OSError:  # nothing there, or the device is down
                    continue
                count += 1
                other = self.fds[1 - self.fds.index(fd)]
                heapq.heappush(waiting, (time.monotonic() + self.delay_s, count, other, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, fd, frame = heapq.heappop(waiting)
                try:
                    os.write(fd, frame)
                except OSError:
                    continue

    def close(self):
        self.ended.set()
        self.join()
        for fd in self.fds:
            os.close(fd)


class Network:
    """Namespaces h0, h1, ... with addresses 10.77.0.1, ... on the bridge in the namespace sw."""

    def __init__(self, num_hosts, delayed=None):
        self.relays = []
        self.switch = self.name('sw')
        ip('netns', 'add', self.switch)
        ip('-n', self.switch, 'link', 'add', 'br0', 'type', 'bridge')
        ip('-n', self.switch, 'link', 'set', 'br0', 'up')
        for i in range(num_hosts):
            host = self.name(f'h{i}')
            ip('netns', 'add', host)
            ip('-n', host, 'link', 'set', 'lo', 'up')
            self.connect(i, host, relayed=i == delayed)
            ip('-n', host, 'addr', 'add', f'{self.address(i)}/24', 'dev', 'eth0')
            ip('-n', host, 'link', 'set', 'eth0', 'up')
            ip('-n', self.switch, 'link', 'set', f'port{i}', 'master', 'br0', 'up')
        for i in range(num_hosts):
            self.exec(i, 'sysctl', '-q', '-w', 'net.ipv6.conf.all.disable_ipv6=1')

    @staticmethod
    def name(part):
        return f'{PREFIX}{os.getpid()}-{part}'

    @staticmethod
    def address(host):
        return f'10.77.0.{host + 1}'

    def connect(self, i, host, relayed):
        if not relayed:
            ip('link', 'add', 'eth0', 'netns', host, 'type', 'veth', 'peer', 'name', f'port{i}', 'netns', self.switch)
            return
        names = [f'lt{os.getpid()}{end}' for end in 'ab']
        relay = Relay(names, DELAY_S / 2)
        self.relays.append(relay)
        for name, space, new in zip(names, (host, self.switch), ('eth0', f'port{i}')):
            ip('link', 'set', name, 'netns', space)
            ip('-n', space, 'link', 'set', name, 'name', new)
        relay.start()

    def exec(self, host, *words):
        return subprocess.run(['ip', 'netns', 'exec', self.name(f'h{host}'), *words], capture_output=True, text=True)

    def queue(self, host, *words):
        """A queueing discipline for the host's link, in both directions; False where the kernel has it not."""
        done = [self.exec(host, 'tc', 'qdisc', 'add', 'dev', 'eth0', 'root', *words),
                subprocess.run(['tc', '-n', self.switch, 'qdisc', 'add', 'dev', f'port{host}', 'root', *words],
                               capture_output=True, text=True)]
        return all(d.returncode == 0 for d in done)

    def cut(self, host):
        ip('-n', self.switch, 'link', 'set', f'port{host}', 'down')

    def set_down(self, host):
        ip('-n', self.name(f'h{host}'), 'link', 'set', 'eth0', 'down')

    def ping_ms(self, from_host, to_host):
        """The shorter of two TCP connections that are refused: there and back."""
        code = ('import socket,sys,time\nbest=1e9\nfor _ in range(2):\n  s=socket.socket(); t=time.time()\n'
                '  s.connect_ex((sys.argv[1], 9)); best=min(best, time.time()-t)\nprint(1e3*best)')
        return float(self.exec(from_host, sys.executable, '-c', code, self.address(to_host)).stdout)

    def close(self):
        remove_namespaces(lambda pid: pid == os.getpid())
        for relay in self.relays:
            relay.close()


class Ranks:
    """Processes of one run: commands in namespaces, each with a file for what it prints."""

    def __init__(self, folder, name):
        self.output = os.path.join(folder, name)
        self.consoles, self.processes = [], []
        self.folder = folder

    def start(self, space, words, environment):
        console = f'{self.output}.{len(self.processes)}.console'
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(('GLOO_', 'NCCL_', 'MASTER_', 'TORCH'))}
        with open(console, 'wb') as out:
            self.processes.append(subprocess.Popen(
                ['ip', 'netns', 'exec', space, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=dict(inherited, OMP_NUM_THREADS='1', TMPDIR=self.folder, **environment)))
        self.consoles.append(console)

    def text(self, rank):
        with open(self.consoles[rank], errors='replace') as file:
            return file.read()

    def last_lines(self):
        return '\n'.join(f'  {os.path.basename(c)}: {self.text(i).rstrip().rpartition(chr(10))[2]}'
                         for i, c in enumerate(self.consoles))

    def records(self):
        try:
            with open(os.path.join(self.output, 'metrics.jsonl')) as file:
                return [json.loads(line) for line in file if line.endswith('\n')]
        except FileNotFoundError:
            return []

    def wait(self, seconds):
        """Exit codes by rank; None of those that still run."""
        deadline = time.time() + seconds
        for process in self.processes:
            try:
                process.wait(max(0.01, deadline - time.time()))
            except subprocess.TimeoutExpired:
                continue
        return [p.poll() for p in self.processes]

    def wait_for(self, condition, seconds, what):
        deadline = time.time() + seconds
        while not condition():
            require(time.time() < deadline, f'{what}: not within {seconds} s')
            codes = [p.poll() for p in self.processes]
            require(not any(c is not None for c in codes), f'{what}: exit codes {codes} before\n{self.text(0)[-2000:]}')
            time.sleep(0.003)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()


class Scenarios:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.plain_losses = {}  # by number of ranks: records of the run on one host

    def command(self, output, more=()):
        return [self.program, 'train', 'configs/pi05/tiny_test.yaml', f'output_dir={output}',
                'data.datasets.0.path=data/pusht_v30', 'data.datasets.0.episodes=[0,1,2]', 'data.val_episodes=1',
                'data.workers=1', 'train.threads=1', 'train.global_batch=12', 'train.micro_batch=1',
                f'train.steps={STEPS}', 'parallel.strategy=zero1', f'parallel.timeout_s={TIMEOUT_S}',
                f'parallel.setup_timeout_s={SETUP_S}', 'checkpoint.every=3', 'log.every=1', *more]

    def ranks(self, name):
        return Ranks(self.folder, name)

    def start_plain(self, ranks, network, world, more=(), absent=(), hosts=None):
        """One rank on each host; `hosts`: the host of each rank."""
        hosts = list(range(world)) if hosts is None else hosts
        for rank in range(world):
            if rank in absent:
                continue
            environment = {'RANK': str(rank), 'WORLD_SIZE': str(world),
                           'LOCAL_RANK': str(hosts[:rank].count(hosts[rank])), 'MASTER_ADDR': network.address(hosts[0]),
                           'MASTER_PORT': str(PORT)}
            ranks.start(network.name(f'h{hosts[rank]}'), self.command(ranks.output, more), environment)

    def finish(self, ranks, seconds=RUN_S):
        codes = ranks.wait(seconds)
        require(all(c == 0 for c in codes), f'exit codes {codes}, not all 0\n' + ranks.text(0)[-3000:])
        records = ranks.records()
        require([r['step'] for r in records] == list(range(1, STEPS + 1)), 'metrics.jsonl has not each step once')
        return records

    def losses_on_one_host(self, world):
        if world not in self.plain_losses:
            network = Network(1)
            ranks = self.ranks(f'one_host_{world}')
            try:
                self.start_plain(ranks, network, world, hosts=[0] * world)
                self.plain_losses[world] = self.finish(ranks)
            finally:
                ranks.end()
                network.close()
        return self.plain_losses[world]

    def compare(self, records, world):
        for want, found in zip(self.losses_on_one_host(world), records):
            for key in ('step', 'loss', 'grad_norm', 'num_samples', 'world_size'):
                require(want[key] == found[key], f'step {want["step"]}: {key} is {found[key]}, on one host {want[key]}')

    def to_the_end(self, name, world, start, prepare=None, delayed=None):
        """A run that must end well with the losses of one host; its records."""
        want = self.losses_on_one_host(world)
        network = Network(2 if world == 4 else world, delayed)
        ranks = self.ranks(name)
        try:
            if prepare:
                prepare(network)
            start(ranks, network)
            records = self.finish(ranks)
        finally:
            ranks.end()
            network.close()
        self.compare(records, world)
        return [statistics.median(r['step_time_ms'] for r in x[1:]) for x in (want, records)]

    def torchrun(self, num_hosts, per_host):
        def start(ranks, network):
            for host in range(num_hosts):
                # All hosts have the same name here, so torchrun is told which one it is on.
                words = [TORCHRUN, '--nnodes', str(num_hosts), '--nproc-per-node', str(per_host), '--rdzv-backend',
                         'c10d', '--rdzv-endpoint', f'{network.address(0)}:{PORT}', '--rdzv-id', '17', '--local-addr',
                         network.address(host), '--rdzv-conf', f'is_host={str(host == 0).lower()}', '--no-python']
                ranks.start(network.name(f'h{host}'), words + self.command(ranks.output), {})
        self.to_the_end(f'torchrun_{num_hosts}', num_hosts * per_host, start)
        return {'ranks': num_hosts * per_host}

    def plain(self, num_hosts):
        self.to_the_end(f'plain_{num_hosts}', num_hosts,
                        lambda ranks, network: self.start_plain(ranks, network, num_hosts))
        return {'ranks': num_hosts}

    def delay(self):
        probe = Network(1)
        netem = probe.queue(0, 'netem', 'delay', '50ms')
        probe.close()
        took = []

        def prepare(network):
            if netem:
                require(network.queue(1, 'netem', 'delay', f'{500 * DELAY_S:g}ms'), 'netem')
            took.append(network.ping_ms(0, 1))
            require(took[0] >= 1e3 * DELAY_S, f'the way there and back takes {took[0]:.0f} ms')
        fast, slow = self.to_the_end('delay', 2, lambda ranks, network: self.start_plain(ranks, network, 2), prepare,
                                     delayed=None if netem else 1)
        require(slow >= fast + 1e3 * DELAY_S, f'a step takes {slow:.0f} ms, without the delay {fast:.0f} ms')
        return {'by': 'netem' if netem else 'tap relay', 'round_trip_ms': round(took[0]), 'step_ms': round(slow),
                'step_ms_one_host': round(fast)}

    def rate(self):
        def prepare(network):
            require(network.queue(1, 'tbf', 'rate', RATE, 'burst', '16kb', 'latency', '400ms'), 'the kernel has no tbf')
        fast, slow = self.to_the_end('rate', 2, lambda ranks, network: self.start_plain(ranks, network, 2), prepare)
        require(slow >= 2 * fast, f'a step takes {slow:.0f} ms, without the limit {fast:.0f} ms')
        return {'rate': RATE, 'step_ms': round(slow), 'step_ms_one_host': round(fast)}

    def cut(self, name, host, how, in_save=False):
        """Three hosts with one rank each; the link of one goes away."""
        network = Network(3)
        ranks = self.ranks(name)
        checkpoints = os.path.join(ranks.output, 'checkpoints')

        def saving():
            try:
                return any('.partial-' in n for n in os.listdir(checkpoints)) and len(os.listdir(checkpoints)) > 1
            except FileNotFoundError:
                return False
        try:
            every = 1 if in_save else 100000
            self.start_plain(ranks, network, 3, ['train.steps=100000', f'checkpoint.every={every}'])
            ranks.wait_for(lambda: len(ranks.records()) >= 4, 60, 'four steps')
            if in_save:
                ranks.wait_for(saving, 60, 'a checkpoint that is being written')
            begin = time.time()
            how(network, host)
            codes = ranks.wait(TIMEOUT_S + GRACE_S)
            ended = time.time() - begin
            self.check_cut(ranks, codes, host)
        finally:
            ranks.end()
            network.close()
        return {'ended_after_s': round(ended, 1)}

    def check_cut(self, ranks, codes, lost):
        texts = ranks.last_lines()
        running = f'{TIMEOUT_S + GRACE_S} s after the cut the exit codes are {codes}: not all ranks have ended'
        require(None not in codes, f'{running}\n{texts}')
        require(codes == [7, 7, 7], f'exit codes {codes}, not 7\n{texts}')
        for rank in range(3):
            said = re.search(rf"longship: error: rank {rank}: \w+ '.+' of step \d+ \(.+\) failed after [\d.]+ s: .*",
                             ranks.text(rank))
            require(said, f'rank {rank} does not say which collective failed\n{texts}')
            if rank == lost:
                continue
            # Whoever still reaches the store hears nothing of the lost rank; with host 0 the store is lost.
            blames = [rf'no word within 3 s from [^:]*\b{lost}\b[^:]*: dead, hanging or still busy']
            if lost == 0:
                blames.append('rank 0, which holds the store, ')
            require(any(re.search(b, said[0]) for b in blames), f'rank {rank} does not blame rank {lost}\n{texts}')

    def absent(self, name, rank, expected, gone=False):
        network = Network(3)
        ranks = self.ranks(name)
        try:
            if gone:
                network.cut(rank)
            begin = time.time()
            self.start_plain(ranks, network, 3, absent=[rank])
            codes = ranks.wait(SETUP_S + GRACE_S)
            ended = time.time() - begin
            texts = ranks.last_lines()
            require(codes == [7, 7], f'exit codes {codes} after {ended:.0f} s, not 7\n{texts}')
            for i in range(2):
                require(re.search(expected, ranks.text(i)), f'the message is not /{expected}/:\n{texts}')
        finally:
            ranks.end()
            network.close()
        return {'ended_after_s': round(ended, 1)}

    def all(self):
        where = re.escape(f'{Network.address(0)}:{PORT}')
        unreached = (rf'rank \d: the store of rank 0 at {where} \(MASTER_ADDR, MASTER_PORT\) was not reached within '
                     f'{SETUP_S} s')
        return {
            'plain_2': lambda: self.plain(2),
            'plain_3': lambda: self.plain(3),
            'torchrun_2': lambda: self.torchrun(2, 2),
            'torchrun_3': lambda: self.torchrun(3, 1),
            'delay': self.delay,
            'rate': self.rate,
            'cut_1': lambda: self.cut('cut_1', 1, Network.cut),
            'cut_0': lambda: self.cut('cut_0', 0, Network.cut),
            'down_1': lambda: self.cut('down_1', 1, Network.set_down),
            'cut_1_save': lambda: self.cut('cut_1_save', 1, Network.cut, in_save=True),
            'cut_0_save': lambda: self.cut('cut_0_save', 0, Network.cut, in_save=True),
            'absent_1': lambda: self.absent('absent_1', 1, rf'rank 1 of 3 did not come within {SETUP_S} s'),
            'absent_0': lambda: self.absent('absent_0', 0, unreached),
            'gone_0': lambda: self.absent('gone_0', 0, unreached, gone=True),
        }


def run_all(scenarios, names):
    result = {}
    for name in names:
        begin = time.time()
        try:
            result[name] = {'ok': True, **scenarios.all()[name]()}
        except Fault as fault:
            result[name] = {'ok': False, 'why': str(fault).partition('\n')[0]}
            print(f'{name}: {fault}', file=sys.stderr)
        result[name]['seconds'] = round(time.time() - begin, 1)
        print(f'{name}: {"ok" if result[name]["ok"] else "failed"}', file=sys.stderr)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--program', default='build/bin/longship')
    parser.add_argument('--json', help='also write the results to this file')
    parser.add_argument('--only', help='names of scenarios, with commas')
    args = parser.parse_args()
    program = os.path.abspath(os.path.join(ROOT, args.program))
    if os.geteuid() != 0:
        parser.error('network namespaces need root')
    for path in (program, TORCHRUN, shutil.which('ip') or 'ip', shutil.which('tc') or 'tc'):
        if not os.path.exists(path):
            parser.error(f'{path} does not exist')
    folder = tempfile.mkdtemp(prefix='longship_netns_')
    scenarios = Scenarios(program, folder)
    names = args.only.split(',') if args.only else list(scenarios.all())
    if unknown := set(names) - set(scenarios.all()):
        os.rmdir(folder)
        parser.error(f'no such scenario: {", ".join(sorted(unknown))}')
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 130
    try:
        remove_namespaces(lambda pid: not os.path.exists(f'/proc/{pid}'))
        result = run_all(scenarios, names)
        line = json.dumps(result)
        print(line)
        if args.json:
            with open(args.json, 'w') as file:
                file.write(line + '\n')
        code = 0 if all(r['ok'] for r in result.values()) else 1
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        remove_namespaces(lambda pid: pid == os.getpid())
        if code == 1:
            print(f'what the runs wrote is in {folder}', file=sys.stderr)
        else:
            shutil.rmtree(folder)
    sys.exit(code)


if __name__ == '__main__':
    main()
