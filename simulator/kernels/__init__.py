"""Forward and backward passes written by hand, for many small models at a time.

Nothing here knows clients or rounds; `learners` make training of it.
"""
