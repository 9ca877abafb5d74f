"""Pages of docs/reference, generated from the code: `python -m scripts.reference` writes them.

A module makes one page from help texts, settings, metrics, files, topics or errors. It holds the page's introduction.
"""
