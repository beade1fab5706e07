"""Folders of saved models: written whole whatever happens, and read while they are replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bgmiv.errors import ModelFileError
from bgmiv.persist import folder as folders
from bgmiv.persist.folder import read_model, write_model

# Replaces model 0 by model 1, in a process that is killed before the first step, the second, ... and at last not.
KILLS = """
import os, shutil, signal, sys
from pathlib import Path
from bgmiv.persist import folder as folders

target = Path(sys.argv[1])
arrays = folders.np.zeros(3)


def write(number):
    folders.write_model(target, "TSLS", number, {"a": arrays + number}, overwrite=True, check=lambda new: None)


def child(wanted):
    step = 0

    def killed(function):
        def run(*given, **more):
            nonlocal step
            step += 1
            if step == wanted:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)

        return run

    for name in ("mkdir", "fsync", "rename"):
        setattr(os, name, killed(getattr(os, name)))
    shutil.rmtree = killed(shutil.rmtree)
    write(1)
    os._exit(0)


for wanted in range(1, 100):
    write(0)
    pid = os.fork()
    if not pid:
        child(wanted)
    status = os.waitpid(pid, 0)[1]
    found = folders.read_model(target)
    assert (found.arrays["a"] == found.raw).all()
    print(found.raw)
    if status == 0:
        break
"""


def write(target: Path, number: int, size: int = 3) -> None:
    arrays = {"a": np.full(size, float(number))}
    write_model(target, "TSLS", number, arrays, overwrite=True, check=lambda new: None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked for each step")
def test_a_kill_at_any_step_leaves_a_whole_model(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path / "model")]
    path = os.pathsep.join([str(Path(folders.__file__).parents[2]), *sys.path])
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert found.returncode == 0, found.stderr
    numbers = found.stdout.split()
    # The old model up to one step, the new one from there on.
    assert numbers == sorted(numbers)
    assert {"0", "1"} == set(numbers)
    assert len(numbers) > 5


def test_a_folder_is_read_whole_while_it_is_replaced(tmp_path: Path) -> None:
    target, stop = tmp_path / "model", threading.Event()
    write(target, 0)

    def replace() -> None:
        while not stop.is_set():
            for number in (1, 2):
                write(target, number, 50_000)

    writer = threading.Thread(target=replace)
    writer.start()
    seen: set[int] = set()
    reads, end = 0, time.monotonic() + 60.0
    try:
        # A busy machine may let the writer wait for long.
        while (reads < 150 or not {1, 2} <= seen) and time.monotonic() < end:
            reads += 1
            found = read_model(target)
            assert (found.arrays["a"] == found.raw).all()
            seen.add(found.raw)
    finally:
        stop.set()
        writer.join()
    assert {1, 2} <= seen
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_any_change_of_a_number_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "model", 12)
    path = tmp_path / "model" / "model.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document))
    assert read_model(tmp_path / "model").raw == 12, "another layout is no damage"
    path.write_text(json.dumps({**document, "model": 13}))
    with pytest.raises(ModelFileError, match="checksum"):
        read_model(tmp_path / "model")


@pytest.mark.parametrize("room", [0, 150])
def test_a_full_disk_leaves_the_old_model_and_nothing_else(tmp_path: Path, room: int) -> None:
    resource = pytest.importorskip("resource")
    write(tmp_path / "model", 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(ModelFileError, match="cannot be written"):
            write(tmp_path / "model", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_model(tmp_path / "model").raw == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
