"""A disk that fills up, without filling one."""

import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def file_size_limit(num_bytes: int) -> Generator[None]:
    """A write beyond `num_bytes` of any file is cut short, and the next one raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
