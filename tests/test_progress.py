from __future__ import annotations

import pytest

from bgmiv.progress import Reporter, RichReporter, silent, task


def drive(reporter: Reporter) -> None:
    """What a fit of two phases tells."""
    for phase in ("warm start", "alternating updates"):
        reporter.start(phase, 20)
        reporter.advance(15, {"loss": 1.25, "outcome": 0.5})
        reporter.advance(5, {"loss": 0.123456})
        reporter.finish()


def test_silence_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    drive(silent)
    assert capfd.readouterr() == ("", "")


def test_bars_show_phase_and_loss_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with RichReporter("demand") as reporter:
        drive(reporter)
    out, err = capfd.readouterr()
    assert out == ""
    for word in ("demand: warm start", "demand: alternating updates", "loss 0.1235", "100%"):
        assert word in err


def test_a_stage_stands_before_its_phases(capfd: pytest.CaptureFixture[str]) -> None:
    with RichReporter("demand") as reporter:
        reporter.stage("networks")
        drive(reporter)
    assert "demand: networks: warm start" in capfd.readouterr().err


def test_the_next_stage_takes_the_place_of_the_last(capfd: pytest.CaptureFixture[str]) -> None:
    with RichReporter("demand") as reporter:
        for stage in ("member 1 of 2", "member 2 of 2"):
            reporter.stage(stage)
            drive(reporter)
    err = capfd.readouterr().err
    assert "demand: member 1 of 2: warm start" in err
    assert "demand: member 2 of 2: warm start" in err


def test_what_follows_a_task_that_failed_has_a_bar_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with RichReporter() as reporter:
        with pytest.raises(ValueError, match="no instruments"), task(reporter, "first stage"):
            raise ValueError("no instruments")
        with task(reporter, "last stage"):
            pass
    err = capfd.readouterr().err
    assert "first stage" in err
    assert "last stage" in err
    assert "0%" in err
    assert "100%" in err


def test_a_phase_without_a_loss_is_shown_too(capfd: pytest.CaptureFixture[str]) -> None:
    with RichReporter() as reporter:
        reporter.start("2SLS", 1)
        reporter.advance(1, {})
        reporter.finish()
    assert "2SLS" in capfd.readouterr().err


def _ended(error: Exception | None) -> None:
    with RichReporter() as reporter:
        reporter.start("joint training", 100)
        reporter.advance(70, {"loss": 0.5})
        try:
            if error is not None:
                raise error
        finally:
            reporter.finish()


def test_early_stopping_fills_the_bar_and_an_error_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    _ended(None)
    err = capfd.readouterr().err
    assert "100%" in err
    assert "stopped early" in err
    with pytest.raises(ValueError, match="no good"):
        _ended(ValueError("no good"))
    err = capfd.readouterr().err
    assert "70%" in err
    assert "stopped early" not in err


def _interrupted() -> None:
    with RichReporter("a") as reporter:
        reporter.start("warm start", 10)
        raise KeyboardInterrupt


def test_an_error_closes_the_display() -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted()
    with RichReporter("b") as reporter:
        drive(reporter)


def test_late_news_after_the_end_is_harmless() -> None:
    with RichReporter() as reporter:
        reporter.start("warm start", 10)
        reporter.finish()
        reporter.advance(3, {"loss": 1.0})
        reporter.finish()
