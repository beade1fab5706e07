"""What a fit says, as numbers; and shown: in text, in a notebook, as figures, and as one page."""
