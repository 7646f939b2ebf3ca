"""The judge: a small model of the package that computes the probability that a text states a fact."""
