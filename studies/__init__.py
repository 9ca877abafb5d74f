"""Studies of fedpatch, each a command, and the pages of their results; no part of the package.

- paper: the tables and figures of the MTFL paper, `python -m studies.paper table2`
- robustness: rules of aggregation under attacks, `python -m studies.robustness`
- bytes: rounds and bytes to a user accuracy by encoding, `python -m studies.bytes`
- masked_rounds: the same with masked groups, `python -m studies.masked_rounds`
- published_code: cells of the paper by its authors' code, `python -m studies.published_code`
- pages: the pages that are generated from results, `python -m studies.pages`
"""
