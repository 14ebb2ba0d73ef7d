"""Fixtures of this layer; its sessions are watched for what they leave in /dev/shm."""

import signal

from left_shared import pytest_configure  # noqa: F401
from short_folders import short  # noqa: F401

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in the background of a script. Commands that tests start would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
