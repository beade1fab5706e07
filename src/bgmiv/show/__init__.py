"""An analysis shown: in text, in a notebook, as figures, and as one page."""
