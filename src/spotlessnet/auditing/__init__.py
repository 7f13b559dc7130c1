"""Auditing: scrub over several trainings, compare with retraining, and say in one word what is left."""
