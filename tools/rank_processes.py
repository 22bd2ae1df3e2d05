"""Processes of one run on this machine: started with a launcher's variables, watched, ended together."""
import math
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAUNCHER = re.compile(r'^(RANK|WORLD_SIZE|LOCAL_|MASTER_|GROUP_|ROLE_|TORCHELASTIC_|SLURM_|OMPI_|PMI|MPI_)')


class Fault(Exception):
    """Makes a row red."""


def require(holds, text):
    if not holds:
        raise Fault(text)


def free_port():
    """Below the range that the kernel gives to connections: a run beside makes those by the dozen before ours begins."""
    for _ in range(1000):
        port = random.randrange(15000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(('', port))
                return port
            except OSError:
                pass
    raise Fault('no free port between 15000 and 30000')


def last_words(texts):
    """What a person reads first of the outputs of failed processes."""
    for pattern in (r'error', r'.'):
        for text in texts:
            lines = [line.strip() for line in text.splitlines() if re.search(pattern, line, re.IGNORECASE)]
            if lines:
                return lines[-1][:800]
    return 'no output'


class Ranks:
    """Processes of one run, each in a process group of its own. One alone gets no launcher's variables."""

    alive = set()
    closed = False  # the script is ending
    lock = threading.Lock()

    def __init__(self, folder, command, count, places, device):
        self.outputs = [os.path.join(folder, f'rank{r}.out') for r in range(count)]
        self.processes = []
        environment = {k: v for k, v in os.environ.items() if not LAUNCHER.match(k)}
        environment['OMP_NUM_THREADS'] = '1'
        environment['TMPDIR'] = folder
        if device == 'cuda':
            environment['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, places))
        if count > 1:
            environment.update(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count), MASTER_ADDR='127.0.0.1',
                               MASTER_PORT=str(free_port()))
        for r, path in enumerate(self.outputs):
            own = dict(environment, RANK=str(r), LOCAL_RANK=str(r)) if count > 1 else environment
            with open(path, 'wb') as out, self.lock:
                require(not Ranks.closed, 'the script was interrupted')
                process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=out, stderr=out,
                                           stdin=subprocess.DEVNULL, start_new_session=True)
                self.processes.append(process)
                self.alive.add(process)

    def codes(self):
        return [process.poll() for process in self.processes]

    def wait(self, deadline, grace_s=math.inf):
        """Until all have ended; False when `deadline` came first, or one failed `grace_s` ago and others go on."""
        while None in self.codes():
            if time.time() > deadline:
                return False
            if any(self.codes()):
                deadline, grace_s = min(deadline, time.time() + grace_s), math.inf
            time.sleep(0.05)
        return True

    def kill(self):
        for process in self.processes:
            kill_group(process)
        for process in self.processes:
            process.wait()
        with self.lock:
            self.alive.difference_update(self.processes)

    def text(self, rank):
        with open(self.outputs[rank], errors='replace') as file:
            return file.read()


def kill_group(process):
    """What it started goes with it, also when it has ended itself."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def require_success(ranks, limit_s, deadline):
    finished = ranks.wait(deadline, grace_s=30)
    codes = ranks.codes()
    failed = [r for r, code in enumerate(codes) if code]
    if finished and not failed:
        return
    words = last_words([ranks.text(r) for r in failed or range(len(codes))])
    require(finished or failed, f'not done after {limit_s:.0f} s; {words}')
    raise Fault(f'exit codes {codes}: {words}')
