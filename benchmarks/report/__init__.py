"""Tables, figures and pages made from the measured rows, the paper's printed values beside them."""
