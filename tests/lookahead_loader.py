"""A loader that keeps one batch ahead."""


class LooksAhead:
    """As Accelerate's and timm's loaders do: the next batch is there before this one is given."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = iter(self.loader)
        ahead = next(batches)
        for batch in batches:
            yield ahead
            ahead = batch
        yield ahead
