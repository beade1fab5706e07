"""Folders of saved models: written whole whatever happens, and read while they are replaced."""

from __future__ import annotations

import json
import os
import shutil
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

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere names may not be exchanged")

# Replaces model 0 by model 1, in a process that is killed before the first step, the second, ... and at last not.
KILLS = """
import os, shutil, signal, sys
from pathlib import Path
from bgmiv.persist import folder as folders

target, exchanged = Path(sys.argv[1]), sys.argv[2] == "True"
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

    folders.exchange = killed(folders.exchange if exchanged else lambda one, two: False)
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


@LINUX
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_kill_at_any_step_leaves_a_whole_model(tmp_path: Path, exchanged: bool) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path / "model"), str(exchanged)]
    path = os.pathsep.join([str(Path(folders.__file__).parents[2]), *sys.path])
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert found.returncode == 0, found.stderr
    numbers = found.stdout.split()
    # The old model up to one step, the new one from there on.
    assert numbers == sorted(numbers)
    assert {"0", "1"} == set(numbers)
    assert len(numbers) > 5


def test_what_a_killed_save_has_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "a[b]", 0)
    old, new = tmp_path / f".a[b].{'0' * 12}.new", tmp_path / f".a[b].{'1' * 12}.new"
    for left in (old, new):
        shutil.copytree(tmp_path / "a[b]", left)
    os.utime(old, (0, 0))
    write(tmp_path / "a[b]", 1)
    assert set(tmp_path.iterdir()) == {tmp_path / "a[b]", new}, "a new one may be that of a running process"


def test_what_others_have_put_there_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def meanwhile(_: Path) -> None:
        target.mkdir()
        (target / "notes.txt").write_text("mine")

    with pytest.raises(ModelFileError, match="is left as it is"):
        write_model(target, "TSLS", 0, {"a": np.zeros(3)}, overwrite=True, check=meanwhile)
    assert (target / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_is_read_whole_while_others_replace_it(tmp_path: Path) -> None:
    target, stop = tmp_path / "model", threading.Event()
    write(target, 0)

    def replace(number: int) -> None:
        while not stop.is_set():
            write(target, number, 50_000)

    writers = [threading.Thread(target=replace, args=(number,)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    seen: set[int] = set()
    reads, end = 0, time.monotonic() + 60.0
    try:
        # A busy machine may let one writer wait for long.
        while (reads < 150 or not {1, 2} <= seen) and time.monotonic() < end:
            reads += 1
            found = read_model(target)
            assert (found.arrays["a"] == found.raw).all()
            seen.add(found.raw)
    finally:
        stop.set()
        for writer in writers:
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
