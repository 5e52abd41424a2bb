"""The end of a process that has exchanged gradients."""

import subprocess
import sys

# What is registered first runs last.
SCRIPT = """
import atexit, sys, threading

def look():
    print([t.name for t in threading.enumerate() if t.name.startswith("slimgrad")])
    print(sys.getrefcount(group) - 2)  # but for this script, and this call

atexit.register(look)

import torch
import torch.distributed as dist
import slimgrad as sg

dist.init_process_group("gloo", f"file://{sys.argv[1]}", rank=0, world_size=1)
group = dist.group.WORLD
sg.distributed.all_reduce(torch.ones(5000), "lossless")
assert any(t.name.startswith("slimgrad") for t in threading.enumerate())
dist.destroy_process_group()
"""


def test_no_thread_and_no_group_is_left_to_the_interpreter(tmp_path):
    """Threads that want Python's lock while it is taken down abort the process, now and then."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    threads, holders = done.stdout.splitlines()
    assert threads == "[]"
    assert holders == "0"
