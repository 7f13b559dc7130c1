"""Rows, figures and the page that shows them; knows rows, never torch."""
