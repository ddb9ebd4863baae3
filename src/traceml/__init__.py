"""Why is this PyTorch training job slow or unstable, and what changed between these runs?"""

__version__ = "0.1.0"
