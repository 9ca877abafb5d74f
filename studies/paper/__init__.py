"""The experiments of the paper: definition, runner, results, comparison with the published figures."""
