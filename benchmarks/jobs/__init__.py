"""Trainings in the style people publish, plain and traced: same training, right verdict?"""
