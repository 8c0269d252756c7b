"""Figures and HTML pages that show results."""
