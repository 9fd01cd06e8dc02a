"""Simulation of a store that the online controller drives: the controller is the real one."""
