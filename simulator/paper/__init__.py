"""The experiments of the paper: definition, runner, results, comparison with the published figures.

Nothing outside of this room imports it.
"""
