"""Forward and backward passes written by hand, for many small models at a time."""
