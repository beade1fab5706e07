from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bgmiv.bench import leases as module
from bgmiv.bench.leases import Leases, this_process

HOLD = """
import sys, time
from pathlib import Path
from bgmiv.bench.leases import Leases
Leases(Path(sys.argv[1])).take("a")
print("taken", flush=True)
time.sleep(600)
"""


def test_a_lease_has_one_holder(tmp_path: Path) -> None:
    mine, other = Leases(tmp_path), Leases(tmp_path)
    assert mine.take("a")
    assert mine.take("a")
    assert not other.take("a")
    assert other.held("a")
    other.give_back("a")
    assert mine.held("a")
    mine.give_back("a")
    assert not mine.held("a")
    assert other.take("a")


def test_nothing_is_written_before_a_lease_is_taken(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "running")
    assert leases.names() == ()
    assert leases.sweep() == ()
    assert not leases.held("a")
    assert not (tmp_path / "running").exists()


def test_the_lease_of_a_killed_process_ends_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        leases = Leases(tmp_path)
        assert leases.names() == ("a",)
        assert not leases.take("a")
        process.kill()
        # Not waited for yet, it is a zombie: it runs no more.
        while Path(f"/proc/{process.pid}/stat").exists() and leases.held("a"):
            time.sleep(0.01)
        assert leases.names() == ()
        assert leases.take("a")


def test_another_process_of_the_same_number_is_another_holder() -> None:
    here = this_process()
    assert not here.is_gone
    assert replace(here, started="long ago").is_gone
    # Nothing can be said of a process elsewhere.
    assert not replace(here, machine="elsewhere", started="long ago").is_gone


def test_an_unrenewed_lease_from_elsewhere_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Leases(tmp_path)
    gone.holder = replace(gone.holder, machine="elsewhere")
    gone.take("a")
    here = Leases(tmp_path, lifetime=60.0)
    assert here.held("a")
    hour_ago = time.time() - 3600.0
    os.utime(tmp_path / "a.lease", (hour_ago, hour_ago))
    assert not here.held("a")
    assert here.take("a")


def test_leases_are_renewed_while_they_are_held(tmp_path: Path) -> None:
    leases = Leases(tmp_path, lifetime=0.2)
    with leases.holding(["a", "b"]) as mine:
        assert mine == ("a", "b")
        began = (tmp_path / "a.lease").stat().st_mtime
        for _ in range(500):
            if (tmp_path / "a.lease").stat().st_mtime > began:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it was not renewed")
    assert list(tmp_path.glob("*.lease")) == []
    assert not any(thread.name == "bgmiv-leases" for thread in threading.enumerate())


def test_what_others_hold_is_neither_taken_nor_given_back(tmp_path: Path) -> None:
    other, leases = Leases(tmp_path), Leases(tmp_path)
    other.take("b")
    with leases.holding(["a", "b"]) as mine:
        assert mine == ("a",)
    assert leases.names() == ("b",)
    with pytest.raises(ZeroDivisionError), leases.holding(["a", "b"]):
        1 / 0
    assert leases.names() == ("b",)


def test_leases_taken_before_one_fails_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(tmp_path)
    real = Leases.take
    monkeypatch.setattr(Leases, "take", lambda self, name: real(self, name) if name != "c" else 1 / 0)
    with pytest.raises(ZeroDivisionError), leases.holding(["a", "b", "c"]):
        pytest.fail("it went on")
    assert list(tmp_path.glob("*.lease")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "null"])
def test_a_torn_lease_holds_nothing_and_is_swept(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.lease").write_text(text)
    leases = Leases(tmp_path)
    leases.take("b")
    assert leases.names() == ("b",)
    assert leases.sweep() == ("a",)
    assert leases.take("a")


def test_a_store_that_cannot_be_written_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Leases(tmp_path).take("a")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(module.Path, "touch", refuse)
    assert Leases(tmp_path).names() == ("a",)


def test_one_of_many_takes_it(tmp_path: Path) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def contend(number: int) -> None:
        leases = Leases(tmp_path)
        start.wait()
        if leases.take("a"):
            won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
