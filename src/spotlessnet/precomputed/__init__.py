"""What is computed once, so that later requests are cheap: statistics of the training data, and fold models."""
