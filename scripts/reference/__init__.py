"""Generated pages of docs: `python -m scripts.reference` writes them.

A module makes one page from help texts, settings, metrics, files, topics, errors or results. Its template has the prose.
"""
