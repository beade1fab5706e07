"""Errors are caught by the built-in classes a caller expects, and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from bgmiv import errors

BUILT_IN = {
    "BGMIVError": (Exception,),
    "BGMIVWarning": (UserWarning,),
    "ArgumentError": (ValueError, TypeError),
    "ConfigError": (ValueError,),
    "DataError": (ValueError,),
    "DivergedError": (ArithmeticError,),
    "FetchError": (OSError,),
    "FitInterrupted": (KeyboardInterrupt,),
    "FitWarning": (UserWarning,),
    "ForkedProcessError": (RuntimeError,),
    "KindWarning": (UserWarning,),
    "MissingExtraError": (ImportError,),
    "ModelFileError": (OSError,),
    "NotFittedError": (ValueError, AttributeError),
    "NotIdentifiedError": (ValueError,),
    "StoreError": (OSError,),
    "SupportWarning": (UserWarning,),
    "WeakInstrumentWarning": (UserWarning,),
}

CLASSES = [name for name in errors.__all__ if name[0].isupper()]
ARGUMENTS = {"DivergedError": ("egm", 5)}


@pytest.mark.parametrize("name", CLASSES)
def test_bases(name):
    kind = getattr(errors, name)
    assert issubclass(kind, BUILT_IN[name])
    assert issubclass(kind, errors.BGMIVError | Warning)
    assert kind.__doc__


@pytest.mark.parametrize("name", CLASSES)
def test_pickling_keeps_class_and_message(name):
    error = getattr(errors, name)(*ARGUMENTS.get(name, ("what to do",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


@pytest.mark.parametrize("name", [name for name in CLASSES if "Warning" not in name and name not in ARGUMENTS])
def test_messages_cannot_act_on_a_terminal(name):
    assert str(getattr(errors, name)("no column '\x1b[2J\x9b\u202e'\n")) == "no column '\ufffd[2J\ufffd\ufffd'\n"
