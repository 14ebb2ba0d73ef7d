"""Every session with tests of this layer is watched for what it leaves in /dev/shm."""

from left_shared import pytest_configure  # noqa: F401
