"""The training process: LocalUpdate of the paper (Algorithm 1), patches, personal models.

It has no network; the agent starts it and sends it commands.
"""
