"""Describes pages and pictures as data: words, units and colours are decided here."""
