"""What a run came to, as one page that needs nothing else: `fedpatch report`."""
