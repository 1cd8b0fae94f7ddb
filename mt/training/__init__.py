"""Conducts all stages: one config becomes a trained run.

Takes: a config, a run directory, a device. Gives: checkpoints, metrics and samples there.
"""
