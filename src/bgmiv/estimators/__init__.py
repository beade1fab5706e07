"""Methods: frozen configs that fit, and their scikit-learn-shaped faces."""
