"""Generated pages of docs: `python -m scripts.reference` writes them.

Each module makes one page from help texts, settings, metrics, topics or errors; a template has its prose.
"""
