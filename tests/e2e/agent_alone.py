"""Process with the agent of one device, until it is killed: `python agent_alone.py FOLDER [FILE]`.
FILE has the order that the agent gets first.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from mirage.machines.agent import AgentOrder, OutsideAgent

if __name__ == "__main__":
    agent = OutsideAgent(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        agent.obeys(msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=AgentOrder))
    threading.Event().wait()
