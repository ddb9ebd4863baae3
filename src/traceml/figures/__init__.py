"""Describes pages and charts as data: words, units and colours are decided here."""
