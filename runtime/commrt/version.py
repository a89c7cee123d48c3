"""The version of the distribution, read by the build and compared between ranks at `init()`."""

__version__ = "0.1.0"
