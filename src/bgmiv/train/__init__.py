"""Training phases and the one loop that runs them."""

from bgmiv.train.alternating import Alternating
from bgmiv.train.egm import WarmStart
from bgmiv.train.loop import HistoryRow, TrainingData, run_phase, training_data

__all__ = ["Alternating", "HistoryRow", "TrainingData", "WarmStart", "run_phase", "training_data"]
