"""The deep profile: a few whole steps are looked at layer by layer, the others not at all."""
