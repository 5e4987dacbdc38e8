"""What a script prints, writes and ends with is the same under watch: nothing of ours is in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.stamps.events import events_named

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripts are run by fork")

# What each script begins with: it trains for `count` steps, and gives out the number of each
BEGINS = """
import asyncio, os, pickle, resource, signal, sys, threading, time, torch
def steps(count=300, **how):
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], 0.01)
    loader = torch.utils.data.DataLoader(torch.ones(count, 4), 1, **how)
    for number, batch in enumerate(loader):
        (batch @ weights - 1).square().mean().backward()
        optimizer.step()
        yield number
    print(number, weights.tolist())
def busy_steps(seconds=0.4):
    end = 0
    for number in steps(100_000):
        sum(range(2_000))
        end = end or time.process_time() + seconds
        if time.process_time() > end:
            return
"""
# By its name, what a script does, and how many steps its record has; None where that depends
SCRIPTS = {
    "a_child_is_forked_and_trains_on": (
        "for number in steps():\n    if number == 20 and os.fork(): os.wait()",
        300,
    ),
    "a_child_is_forked_and_looks_on": (
        "for number in steps():\n"
        "    if number == 20 and not os.fork(): time.sleep(0.5); sys.exit(3)\n"
        "print(os.wait()[1])",
        300,
    ),
    "a_daemon_closes_all_it_has_open": (
        "for number in steps():\n"
        "    if number == 20:\n"
        "        if os.fork(): os.wait(); os._exit(4)\n"
        "        os.closerange(3, 4096)\n"
        "        files = [open(f'file{each}', 'w+') for each in range(20)]\n"
        "time.sleep(0.6)",
        None,
    ),
    "descriptors_are_closed_and_used_again": (
        "for number in steps():\n"
        "    if number == 20:\n"
        "        os.closerange(3, 4096)\n"
        "        file = os.open('file', os.O_CREAT | os.O_RDWR | os.O_APPEND)\n"
        "        for each in range(600, 1000): os.dup2(file, each)\n"
        "for each in range(600, 1000): os.write(each, b'mine')\n"
        "print(file, os.fstat(file).st_size)",
        300,
    ),
    "the_lowest_descriptor_is_counted_on": (
        "for number in steps():\n    if number in (0, 150): print(os.dup(0))",
        300,
    ),
    "few_descriptors_are_allowed": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
        "for number in steps():\n    if number == 9: print([os.dup(0) for _ in range(16)])",
        300,
    ),
    "stderr_is_closed": (
        "os.close(2)\n"
        "for number in steps():\n"
        "    if number == 9: print(os.open('file', os.O_CREAT | os.O_RDWR))\n"
        "print(os.write(2, b'mine'))",
        300,
    ),
    "the_environment_is_emptied": (
        "os.environ.clear()\nfor number in steps(): pass\nprint(os.environ)",
        300,
    ),
    "the_folder_is_another": (
        "os.mkdir('there'); os.chdir('there')\nfor number in steps(): pass",
        300,
    ),
    "nothing_can_be_recorded": (
        "sys.stderr = None\n"
        "there = os.environ.get('LABKIT_WATCHING')\n"
        "if there: os.rmdir(there)\n"
        "for _ in range(3):\n    for number in steps(): pass",
        0,
    ),
    "the_disk_is_full": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))\n"
        "for _ in range(2):\n    for number in steps(): pass",
        None,
    ),
    "all_threads_are_joined": (
        "busy_steps()\n"
        "print(threading.active_count(), threading.enumerate())\n"
        "for each in threading.enumerate():\n"
        "    if each is not threading.main_thread(): each.join()",
        None,
    ),
    "an_event_loop_is_told_of_signals": (
        "async def main():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    loop.add_signal_handler(signal.SIGUSR1, print, 'told')\n"
        "    busy_steps()\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())",
        None,
    ),
    "a_descriptor_is_told_of_signals": (
        "told, tells = os.pipe()\n"
        "os.set_blocking(tells, False), os.set_blocking(told, False)\n"
        "signal.set_wakeup_fd(tells)\n"
        "busy_steps()\n"
        "os.read(told, 1)",  # BlockingIOError: nothing has come
        None,
    ),
    "signals_are_held_back": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "busy_steps()\n"
        "print(signal.sigpending())",
        None,
    ),
    "signals_are_the_scripts_own": (
        "got = []\n"
        "for each in (signal.SIGALRM, signal.SIGPROF, signal.SIGURG):\n"
        "    signal.signal(each, lambda number, _: got.append(number))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "busy_steps()\n"
        "print(got, signal.getitimer(signal.ITIMER_PROF))",
        None,
    ),
    "handlers_raise_at_any_moment": (
        "class Late(Exception): pass\n"
        "def late(*_): raise kind\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "__import__('gc').disable()\n"  # what it drops may be interrupted as well
        "for number in steps(): pass\n"
        "for kind in (Late, KeyboardInterrupt, SystemExit):\n"
        "    came = 0\n"
        "    for each in range(20):\n"
        "        try:\n"
        "            signal.setitimer(signal.ITIMER_REAL, 0.004 + each * 1e-5)\n"
        "            for batch in torch.utils.data.DataLoader(range(4_000), 1): pass\n"
        "            signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "        except kind: came += 1\n"
        "    print(came > 18)",
        None,
    ),
    "a_torch_function_mode_sees_the_scripts_calls_alone": (
        "class Counts(torch.overrides.TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        called.append(function.__name__)\n"
        "        return function(*args, **kwargs or {})\n"
        "called = []\n"
        "with Counts():\n    for number in steps(40): pass\n"
        "print(called)",
        40,
    ),
    "many_workers_prepare": (
        "for number in steps(300, num_workers=17, persistent_workers=True): pass",
        300,
    ),
}

STEPS_OF_UNTOUCHED = 68  # of untouched_loops.py


def outcome(folder, how, name):
    """How a script ended, what it has printed, and its files."""
    ended = {
        what: (folder / how / f"{name}.{what}").read_text().replace(f"/{how}/", "/")
        for what in ("code", "stdout", "stderr")
    }
    said = [line for line in ended["stderr"].splitlines() if line.startswith("labkit")]
    ended["stderr"] = [line for line in ended["stderr"].splitlines() if line not in said]
    files = (folder / how / name).rglob("*")
    ended["files"] = {path.name: path.read_bytes() for path in files if path.is_file()}
    return ended, said


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Run every script by itself and under watch; return the folder of what they left."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, (script, _) in SCRIPTS.items():
        code = f"if __name__ == '__main__':\n{script}".replace("\n", "\n    ")
        (folder / f"{name}.py").write_text(BEGINS + code)
    shutil.copy(Path(__file__).with_name("untouched_loops.py"), folder)
    runner = Path(__file__).with_name("script_runner.py")
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, runner, folder], check=True, env=quiet)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCRIPTS, "untouched_loops"])
def test_a_watched_script_prints_writes_and_ends_as_without_us(name, ended):
    (plain, _), (watched, said) = (outcome(ended, how, name) for how in ("plain", "watched"))
    assert watched == plain
    assert len(said) == (name == "the_disk_is_full"), said
    steps = SCRIPTS[name][1] if name in SCRIPTS else STEPS_OF_UNTOUCHED
    logs = (ended / "watched" / f"{name}.runs").glob("*/events.jsonl")
    assert steps is None or sum(len(list(events_named("step", log))) for log in logs) == steps
