"""Training phases and the one loop that runs them."""

from bgmiv.train.alternating import Alternating
from bgmiv.train.direct import DirectStart
from bgmiv.train.egm import WarmStart
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import TrainingData, run_phase, training_data

__all__ = ["Alternating", "DirectStart", "HistoryRow", "TrainingData", "WarmStart", "run_phase", "training_data"]
