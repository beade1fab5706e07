"""BGM-IV: the Bayesian generative model, its training, and its answers."""
