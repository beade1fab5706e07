"""Sieves: functions of a table's columns, penalised regressions on them in closed form, and both stages of IV."""
